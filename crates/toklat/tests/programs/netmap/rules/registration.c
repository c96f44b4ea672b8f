/* How a descriptor is bound to a port, and what it then shows. */
#include "rules.h"
#include <sys/uio.h>

void unbound(void)
{
	CHECK(access("/dev/netmap", R_OK | W_OK) == 0 && access("/dev/netmap0", F_OK) == -1);
	int fd = nm_open();
	struct pollfd p = { .fd = fd, .events = POLLIN | POLLOUT };
	FAILS(ioctl(fd, NIOCTXSYNC, NULL), ENXIO);
	FAILS(ioctl(fd, NIOCRXSYNC, NULL), ENXIO);
	CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EINVAL);
	CHECK(poll(&p, 1, -1) == 1 && p.revents == POLLERR);
	/* The device has no such operations. */
	char byte = 0;
	struct iovec part = { &byte, 1 };
	FAILS(read(fd, &byte, 1), EINVAL);
	FAILS(readv(fd, &part, 1), EINVAL);
	FAILS(write(fd, &byte, 1), EINVAL);
	FAILS(writev(fd, &part, 1), EINVAL);
	FAILS(ioctl(fd, 0x6900, NULL), EOPNOTSUPP);
	FAILS(ioctl(fd, NIOCCTRL, NULL), EINVAL);
	FAILS(ioctl(fd, NIOCCTRL, (void *)8), EFAULT);
	FAILS(ioctl(fd, NIOCREGIF, NULL), EINVAL);
	FAILS(ioctl(fd, NIOCREGIF, (void *)8), EFAULT);
	CHECK(close(fd) == 0);
	FAILS(ioctl(fd, NIOCTXSYNC, NULL), EBADF);
}

/* The device that takes all that is sent. */
void sink(void)
{
	struct nm d = nm_port("nmsink0");
	struct nm_ring *t = nm_tx(&d, 0);
	struct pollfd p = { .fd = d.fd, .events = POLLOUT };
	for (uint32_t n = 0; n < 10000; n++) {
		nm_put(t, 1, -1, n);
		if (nm_space(t) == 0)
			CHECK(poll(&p, 1, 30000) == 1 && p.revents == POLLOUT && nm_space(t) == t->num_slots - 1);
	}
	int fd = nm_open();
	struct nm_register reg = { .mode = ALL_NIC };
	FAILS(nm_ctrl(fd, REGISTER, "nmsink", &reg), ENXIO);
	FAILS(nm_ctrl(fd, REGISTER, "nmsinks", &reg), ENXIO);
	/* Of memory that no port names, there is the one that NICs share. */
	struct nm_port_info info = { 0 };
	CHECK(nm_ctrl(fd, PORT_INFO_GET, "", &info) == 0 && info.mem_id == 1 && info.memsize == 343019520);
}

void lowest_number(void)
{
	int a = nm_open();
	int b = dup(0);
	CHECK(b == a + 1);
	CHECK(close(a) == 0);
	int c = open("/dev/netmap", O_RDWR | O_CLOEXEC | O_NONBLOCK);
	CHECK(c == a);
	CHECK(fcntl(c, F_GETFD) == FD_CLOEXEC && (fcntl(c, F_GETFL) & O_NONBLOCK));
	CHECK(close(c) == 0 && close(b) == 0);
	int d = nm_open();
	CHECK(d == a && fcntl(d, F_GETFD) == 0 && !(fcntl(d, F_GETFL) & O_NONBLOCK));
}

void layout(void)
{
	struct nm_register want = { .tx_rings = 2, .rx_rings = 3, .tx_slots = 128, .rx_slots = 256 };
	struct nm d = nm_port_with("vale0:p", want);
	struct nm_if *n = d.nifp;
	CHECK(d.reg.tx_rings == 2 && d.reg.rx_rings == 3 && d.reg.tx_slots == 128 && d.reg.rx_slots == 256);
	CHECK(d.reg.host_tx_rings == 0 && d.reg.host_rx_rings == 0 && d.reg.mem_id > 1);
	CHECK(d.reg.mode == ALL_NIC && d.reg.flags == 0 && d.reg.memsize % 4096 == 0);
	CHECK(!strcmp(n->ni_name, "vale0:p") && n->ni_tx_rings == 2 && n->ni_rx_rings == 3);
	CHECK(n->ni_flags == 1 && n->ni_host_tx_rings == 1 && n->ni_host_rx_rings == 1 && !n->ni_bufs_head);
	/* tx, tx host, rx, rx host. */
	CHECK(n->ring_ofs[2] == 0 && n->ring_ofs[6] == 0);
	static char seen[1 << 20];
	for (int i = 0; i < 5; i++) {
		struct nm_ring *r = i < 2 ? nm_tx(&d, i) : nm_rx(&d, i - 2);
		CHECK(r->dir == (i >= 2) && r->ringid == (i < 2 ? i : i - 2));
		CHECK(r->num_slots == (i < 2 ? 128 : 256) && r->nr_buf_size == 2112);
		CHECK(r->head == 0 && r->cur == 0 && r->tail == (i < 2 ? 127 : 0) && !r->flags);
		for (uint32_t s = 0; s < r->num_slots; s++) {
			uint32_t buf = r->slot[s].buf_idx;
			CHECK(buf >= 2 && !seen[buf] && r->slot[s].len == r->nr_buf_size && !r->slot[s].flags);
			CHECK(nm_buf(r, buf) + r->nr_buf_size <= d.mem + d.reg.memsize);
			seen[buf] = 1;
			r->slot[s].ptr = 0;
		}
		memset(r->sem, 0xaa, sizeof(r->sem));
	}
	FAILS((long)mmap(NULL, d.reg.memsize, PROT_READ, MAP_SHARED, d.fd, 4096), EINVAL);
	/* The part that is asked for. */
	char *part = mmap(NULL, 4096, PROT_READ, MAP_SHARED, d.fd, 0);
	CHECK(part != MAP_FAILED && !memcmp(part, d.mem, 4096));
	CHECK(ioctl(d.fd, NIOCRXSYNC, NULL) == 0);
	CHECK(nm_rx(&d, 0)->ts[0] > 1600000000 && nm_rx(&d, 0)->sem[127] == 0xaa);
}

void errors(void)
{
	struct nm_register reg = { .mode = ALL_NIC };
	int fd = nm_open();
#define REG(name, ...) ({ reg = (struct nm_register){ __VA_ARGS__ }; nm_ctrl(fd, REGISTER, name, &reg); })
	for (int mode = 0; mode < 12; mode++)
		if (mode != ALL_NIC && mode != ONE_NIC)
			FAILS(REG("vale0:p", .mode = mode), EINVAL);
	FAILS(REG("vale0:p", .mode = ONE_NIC, .ringid = 1), EINVAL);
	FAILS(REG("vale0:p", .mode = ALL_NIC, .mem_id = 77), EINVAL);
	FAILS(REG("", .mode = ALL_NIC), EINVAL);
	FAILS(REG("vale0:", .mode = ALL_NIC), EINVAL);
	FAILS(REG("va!e0:x", .mode = ALL_NIC), EINVAL);
	FAILS(REG("vale0:0123456789abcdef", .mode = ALL_NIC), EINVAL);
	FAILS(REG("nosuchif", .mode = ALL_NIC), ENXIO);
	FAILS(REG("p{", .mode = ALL_NIC), EINVAL);
	FAILS(REG("{1", .mode = ALL_NIC), EINVAL);
	FAILS(REG("p{1", .mode = SW), EINVAL);
	FAILS(REG("x", .mode = NULL_PORT), EINVAL);
	FAILS(REG("vale0:p", .mode = ALL_NIC, .flags = MONITOR_TX), EINVAL);
	/* A failed one leaves the descriptor as it was; one that works binds it once. */
	CHECK(REG("vale0:p", .mode = ALL_NIC, .flags = 0x1000) == 0 && reg.flags == 0x1000);
	FAILS(REG("vale0:q", .mode = ALL_NIC), EBUSY);
	struct nm_header h = { .version = 13, .reqtype = REGISTER, .body = (uintptr_t)&reg };
	FAILS(ioctl(fd, NIOCCTRL, &h), EINVAL);
	h.version = 16;
	FAILS(ioctl(fd, NIOCCTRL, &h), EINVAL);
	h = (struct nm_header){ .version = 15, .reqtype = 99 };
	FAILS(ioctl(fd, NIOCCTRL, &h), EINVAL);
	h = (struct nm_header){ .version = 15, .reqtype = PORT_INFO_GET };
	FAILS(ioctl(fd, NIOCCTRL, &h), EINVAL);
	h.body = 8;
	FAILS(ioctl(fd, NIOCCTRL, &h), EFAULT);
	h = (struct nm_header){ .version = 15, .reqtype = VALE_DELIF, .body = (uintptr_t)&reg };
	FAILS(ioctl(fd, NIOCCTRL, &h), EINVAL);
	h = (struct nm_header){ .version = 15, .reqtype = PORT_INFO_GET, .body = (uintptr_t)&reg, .reserved = 1 };
	FAILS(ioctl(fd, NIOCCTRL, &h), EINVAL);
	struct { uint32_t mode, first, cpus, pad; } polling = { 1, 0, 1, 0 };
	FAILS(nm_ctrl(fd, POLLING_ENABLE, "vale0:p", &polling), EOPNOTSUPP);
}

void options(void)
{
	struct nm_register reg = { .mode = ALL_NIC };
	struct nm_option list[64] = { 0 };
	int fd = nm_open();
	/* One that is not known. */
	list[0] = (struct nm_option){ .reqtype = 1234, .status = 7 };
	FAILS(nm_ctrl_with(fd, REGISTER, "vale0:p", &reg, list), EOPNOTSUPP);
	CHECK(list[0].status == EOPNOTSUPP && list[0].next == 0);
	/* It was undone. */
	CHECK(nm_ctrl(fd, REGISTER, "vale0:p", &reg) == 0);
	close(fd);
	fd = nm_open();
	/* No type; two of one type; one that is its own next. */
	list[0] = (struct nm_option){ .reqtype = 0 };
	FAILS(nm_ctrl_with(fd, REGISTER, "vale0:p", &reg, list), EINVAL);
	CHECK(list[0].status == EINVAL);
	char csb[2][40] = { { 0 } };
	for (int i = 0; i < 2; i++)
		((struct nm_option *)csb[i])->reqtype = 3;
	((struct nm_option *)csb[0])->next = (uintptr_t)csb[1];
	FAILS(nm_ctrl_with(fd, REGISTER, "vale0:p", &reg, csb[0]), EINVAL);
	for (int i = 0; i < 2; i++)
		CHECK(((struct nm_option *)csb[i])->status == EINVAL);
	((struct nm_option *)csb[0])->next = (uintptr_t)csb[0];
	FAILS(nm_ctrl_with(fd, REGISTER, "vale0:p", &reg, csb[0]), EINVAL);
	/* Those that are not known, in a circle: the room for them ends. */
	list[0] = (struct nm_option){ .reqtype = 1234, .status = 7, .next = (uintptr_t)list };
	FAILS(nm_ctrl_with(fd, REGISTER, "vale0:p", &reg, list), EMSGSIZE);
	CHECK(list[0].status == 7);
	struct { struct nm_option o; char fds[5000]; } events = { .o = { .reqtype = 2, .size = 5000 } };
	FAILS(nm_ctrl_with(fd, REGISTER, "vale0:p", &reg, &events), EMSGSIZE);
	FAILS(nm_ctrl_with(fd, REGISTER, "vale0:p", &reg, (void *)8), EFAULT);
	/* Requests that know no options say so, and are carried out. */
	struct nm_port_info info = { 0 };
	list[0] = (struct nm_option){ .reqtype = 1234 };
	CHECK(nm_ctrl_with(fd, PORT_INFO_GET, "vale0:p", &info, list) == 0 && info.tx_slots == 1024);
	CHECK(list[0].status == EOPNOTSUPP);
}

void exclusive(void)
{
	struct nm_register alone = { .flags = EXCLUSIVE, .mode = ALL_NIC }, any = { .mode = ALL_NIC };
	struct nm a = nm_port_with("vale0:p", alone);
	int fd = nm_open();
	FAILS(nm_ctrl(fd, REGISTER, "vale0:p", &any), EBUSY);
	close(a.fd);
	/* Free as soon as it is closed. */
	CHECK(nm_ctrl(fd, REGISTER, "vale0:p", &any) == 0);
	int other = nm_open();
	FAILS(nm_ctrl(other, REGISTER, "vale0:p", &alone), EBUSY);
	CHECK(nm_ctrl(other, REGISTER, "vale0:p", &any) == 0);
}

void one_ring_each(void)
{
	struct nm_register want = { .tx_rings = 4, .rx_rings = 4, .mode = ONE_NIC };
	struct nm d[4];
	for (int i = 0; i < 4; i++) {
		want.ringid = i;
		d[i] = nm_port_with("vale0:many", want);
		CHECK(d[i].reg.mem_id == d[0].reg.mem_id && d[i].reg.ringid == i && d[i].reg.tx_rings == 4);
		for (int r = 0; r < 10; r++)
			CHECK(!d[i].nifp->ring_ofs[r] == (r != i && r != 5 + i));
	}
	struct nm b = nm_port("vale0:b");
	for (int i = 0; i < 4; i++) {
		nm_put(nm_tx(&d[i], i), 1, -1, i);
		CHECK(ioctl(d[i].fd, NIOCTXSYNC, NULL) == 0);
		CHECK(nm_get(b.fd, nm_rx(&b, 0)) == (uint32_t)i);
	}
	want = (struct nm_register){ .mode = ALL_NIC, .flags = RX_ONLY };
	struct nm rx = nm_port_with("vale0:rx", want);
	CHECK(rx.nifp->ring_ofs[0] == 0 && rx.nifp->ring_ofs[2] != 0);
	struct pollfd p = { .fd = rx.fd, .events = POLLOUT };
	CHECK(poll(&p, 1, 1) == 0);
}

void information(void)
{
	int fd = nm_open();
	struct nm_port_info info = { 0 };
	CHECK(nm_ctrl(fd, PORT_INFO_GET, "vale0:p", &info) == 0);
	CHECK(info.memsize > 0 && info.tx_slots == 1024 && info.rx_slots == 1024 && info.tx_rings == 1);
	CHECK(info.host_tx_rings == 0 && info.mem_id > 1);
	FAILS(nm_ctrl(fd, PORT_INFO_GET, "nosuchif", &info), ENXIO);
	struct nm d = nm_port("vale0:p");
	struct nm_port_info same = { 0 };
	CHECK(nm_ctrl(fd, PORT_INFO_GET, "vale0:p", &same) == 0);
	CHECK(same.memsize == d.reg.memsize && same.mem_id == d.reg.mem_id && same.memsize == info.memsize);
	struct nm_pools_info pools = { 0 };
	CHECK(nm_ctrl(fd, POOLS_INFO_GET, "vale0:p", &pools) == 0);
	CHECK(pools.memsize == d.reg.memsize && pools.mem_id == d.reg.mem_id && pools.buf_size == 2112);
	CHECK(pools.buf_ofs + (uint64_t)pools.buf_total * pools.buf_size <= pools.memsize);
	CHECK((char *)nm_tx(&d, 0) >= d.mem + pools.ring_ofs && pools.if_ofs == 0);
	CHECK(nm_buf(nm_tx(&d, 0), 0) == d.mem + pools.buf_ofs);
	FAILS(nm_ctrl(fd, POOLS_INFO_GET, "", &pools), EINVAL);
	struct nm_port_hdr hdr = { .len = 0 };
	CHECK(nm_ctrl(fd, PORT_HDR_SET, "vale0:p", &hdr) == 0);
	hdr.len = 11;
	FAILS(nm_ctrl(fd, PORT_HDR_SET, "vale0:p", &hdr), EINVAL);
	CHECK(nm_ctrl(fd, PORT_HDR_GET, "vale0:p", &hdr) == 0 && hdr.len == 0);
	FAILS(nm_ctrl(fd, PORT_HDR_GET, "vale0:none", &hdr), ENXIO);
}

void legacy(void)
{
	struct nm_legacy r = { .version = 13 };
	int fd = nm_open();
	strcpy(r.name, "vale0:old");
	FAILS(ioctl(fd, NIOCREGIF, &r), EINVAL);
	r.version = 16;
	CHECK(ioctl(fd, NIOCGINFO, &r) == 0 && r.memsize && r.tx_slots == 1024 && r.rx_rings == 1);
	memset((char *)&r + 20, 0, sizeof(r) - 20);
	r.arg3 = 5;
	CHECK(ioctl(fd, NIOCREGIF, &r) == 0 && r.memsize && r.arg2 > 1 && r.arg3 == 5 && r.tx_slots == 1024);
	CHECK(!strcmp(r.name, "vale0:old") && r.version == 16);
	FAILS(ioctl(fd, NIOCREGIF, &r), EBUSY);
	char *mem = mmap(NULL, r.memsize, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(mem != MAP_FAILED);
	struct nm d = { .fd = fd, .mem = mem, .nifp = (struct nm_if *)(mem + r.offset) };
	struct nm b = nm_port("vale0:b");
	nm_put(nm_tx(&d, 0), 1, -1, 3);
	CHECK(ioctl(fd, NIOCTXSYNC, NULL) == 0 && nm_get(b.fd, nm_rx(&b, 0)) == 3);
	/* Both ends of a pipe by number. */
	struct nm ends[2];
	for (int i = 0; i < 2; i++) {
		r = (struct nm_legacy){ .version = 14, .ringid = 7, .flags = i ? PIPE_SLAVE : PIPE_MASTER };
		strcpy(r.name, "vale0:old");
		int end = nm_open();
		CHECK(ioctl(end, NIOCREGIF, &r) == 0 && r.ringid == 7);
		mem = mmap(NULL, r.memsize, PROT_READ | PROT_WRITE, MAP_SHARED, end, 0);
		ends[i] = (struct nm){ .fd = end, .mem = mem, .nifp = (struct nm_if *)(mem + r.offset) };
		CHECK(!strcmp(ends[i].nifp->ni_name, i ? "vale0:old}7" : "vale0:old{7"));
	}
	nm_put(nm_tx(&ends[0], 0), 1, -1, 4);
	CHECK(ioctl(ends[0].fd, NIOCTXSYNC, NULL) == 0 && nm_get(ends[1].fd, nm_rx(&ends[1], 0)) == 4);
	/* The list of ports. */
	r = (struct nm_legacy){ .version = 14, .cmd = 4 };
	CHECK(ioctl(fd, NIOCGINFO, &r) == 0 && !strcmp(r.name, "vale0:old") && r.arg1 == 0 && r.arg2 == 0);
	r = (struct nm_legacy){ .version = 14, .cmd = 4, .arg2 = 1 };
	CHECK(ioctl(fd, NIOCGINFO, &r) == 0 && !strcmp(r.name, "vale0:b") && r.arg2 == 1);
	r = (struct nm_legacy){ .version = 14, .cmd = 4, .arg2 = 2 };
	FAILS(ioctl(fd, NIOCGINFO, &r), ENOENT);
}

void persistent(void)
{
	int fd = nm_open();
	struct nm_newif new = { .tx_slots = 128, .rx_rings = 2 };
	struct nm_attach attach = { .reg.mode = ALL_NIC };
	struct nm_detach detach;
	struct nm_list list;
	CHECK(nm_ctrl(fd, VALE_NEWIF, "vi0", &new) == 0);
	CHECK(new.tx_slots == 128 && new.rx_slots == 1024 && new.rx_rings == 2 && new.tx_rings == 1);
	FAILS(nm_ctrl(fd, VALE_NEWIF, "vi0", &new), EEXIST);
	FAILS(nm_ctrl(fd, VALE_NEWIF, "vale1", &new), EINVAL);
	FAILS(nm_ctrl(fd, VALE_DELIF, "vi1", NULL), ENXIO);
	FAILS(nm_ctrl(fd, VALE_ATTACH, "vale0:vi1", &attach), EINVAL);
	FAILS(nm_ctrl(fd, VALE_DETACH, "vale0:vi0", &detach), ENXIO);
	FAILS(nm_ctrl(fd, REGISTER, "vale0:vi0", &(struct nm_register){ .mode = ALL_NIC }), EINVAL);
	attach.reg.mem_id = 0;
	CHECK(nm_ctrl(fd, VALE_ATTACH, "vale0:vi0", &attach) == 0 && attach.port_index == 0 && !attach.reg.mem_id);
	FAILS(nm_ctrl(fd, VALE_ATTACH, "vale0:vi0", &attach), EBUSY);
	FAILS(nm_ctrl(fd, VALE_DELIF, "vi0", NULL), EBUSY);
	struct nm a = nm_port("vale0:vi0"), b = nm_port("vale0:b");
	struct nm_register one = { .mode = ONE_NIC, .ringid = 1 };
	struct nm c = nm_port_with("vi0", one);
	CHECK(a.reg.mem_id == c.reg.mem_id && c.reg.mem_id == new.mem_id && a.reg.tx_slots == 128);
	nm_put(nm_tx(&c, 0), 1, -1, 5);
	CHECK(ioctl(c.fd, NIOCTXSYNC, NULL) == 0 && nm_get(b.fd, nm_rx(&b, 0)) == 5);
	list = (struct nm_list){ 0 };
	struct nm_header h = { .version = 14, .reqtype = VALE_LIST, .body = (uintptr_t)&list };
	CHECK(ioctl(fd, NIOCCTRL, &h) == 0 && !strcmp(h.name, "vale0:vi0"));
	list = (struct nm_list){ .port = 1 };
	memset(h.name, 0, sizeof(h.name));
	CHECK(ioctl(fd, NIOCCTRL, &h) == 0 && !strcmp(h.name, "vale0:b") && list.port == 1);
	CHECK(nm_ctrl(fd, VALE_LIST, "vale0:b", &list) == 0 && list.bridge == 0 && list.port == 1);
	CHECK(nm_ctrl(fd, VALE_LIST, "vale0:no", &list) == 0 && list.port == 255);
	FAILS(nm_ctrl(fd, VALE_LIST, "vale9:x", &list), ENOENT);
	FAILS(nm_ctrl(fd, VALE_LIST, "eth0", &list), EINVAL);
	list = (struct nm_list){ .bridge = 1 };
	FAILS(nm_ctrl(fd, VALE_LIST, "", &list), ENOENT);
	FAILS(nm_ctrl(fd, VALE_DETACH, "vale0:vi0", &detach), EBUSY);
	close(a.fd);
	close(c.fd);
	CHECK(nm_ctrl(fd, VALE_DETACH, "vale0:vi0", &detach) == 0 && detach.port_index == 0);
	/* In no switch: what is sent is gone, and nothing blocks. */
	a = nm_port("vi0");
	for (uint32_t n = 0; n < 1000; n++) {
		struct pollfd p = { .fd = a.fd, .events = POLLOUT };
		CHECK(poll(&p, 1, 1000) == 1 && p.revents == POLLOUT);
		nm_put(nm_tx(&a, 0), 1, -1, n);
	}
	FAILS(nm_ctrl(fd, VALE_DELIF, "vi0", NULL), EBUSY);
	close(a.fd);
	CHECK(nm_ctrl(fd, VALE_DELIF, "vi0", NULL) == 0);
	FAILS(nm_ctrl(fd, VALE_DELIF, "vi0", NULL), ENXIO);
}
