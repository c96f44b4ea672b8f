/* rules NAME: one rule of netmap's interface each; see the table at the end. */
#include "nm.h"
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>

static void unbound(void)
{
	CHECK(access("/dev/netmap", R_OK | W_OK) == 0 && access("/dev/netmap0", F_OK) == -1);
	int fd = nm_open();
	struct pollfd p = { .fd = fd, .events = POLLIN | POLLOUT };
	FAILS(ioctl(fd, NIOCTXSYNC, NULL), ENXIO);
	FAILS(ioctl(fd, NIOCRXSYNC, NULL), ENXIO);
	CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EINVAL);
	CHECK(poll(&p, 1, -1) == 1 && p.revents == POLLERR);
	FAILS(ioctl(fd, 0x6900, NULL), EOPNOTSUPP);
	FAILS(ioctl(fd, NIOCCTRL, NULL), EINVAL);
	FAILS(ioctl(fd, NIOCCTRL, (void *)8), EFAULT);
	FAILS(ioctl(fd, NIOCREGIF, NULL), EINVAL);
	FAILS(ioctl(fd, NIOCREGIF, (void *)8), EFAULT);
	CHECK(close(fd) == 0);
	FAILS(ioctl(fd, NIOCTXSYNC, NULL), EBADF);
}

static void lowest_number(void)
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

static void layout(void)
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

static void errors(void)
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

static void options(void)
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

static void poll_sends(void)
{
	struct nm a = nm_port("vale0:a"), b = nm_port("vale0:b");
	struct nm_register quiet = { .flags = NO_TX_POLL };
	struct nm c = nm_port_with("vale0:c", quiet);
	struct pollfd p = { .fd = a.fd, .events = POLLIN };
	/* poll sends, also for POLLIN, and for nothing at all. */
	nm_put(nm_tx(&a, 0), 1, -1, 1);
	CHECK(poll(&p, 1, 0) == 0);
	CHECK(nm_get(b.fd, nm_rx(&b, 0)) == 1);
	nm_put(nm_tx(&a, 0), 1, -1, 2);
	p.events = 0;
	CHECK(poll(&p, 1, 0) == 0);
	CHECK(nm_get(b.fd, nm_rx(&b, 0)) == 2);
	/* With NO_TX_POLL only for POLLOUT. */
	nm_put(nm_tx(&c, 0), 3, -1, 3);
	p = (struct pollfd){ .fd = c.fd, .events = POLLIN };
	/* What a and b have sent is there. */
	CHECK(poll(&p, 1, 30000) == 1 && p.revents == POLLIN);
	CHECK(nm_tx(&c, 0)->tail == 1023);
	p.events = POLLOUT;
	CHECK(poll(&p, 1, 0) == 1 && p.revents == POLLOUT);
	CHECK(nm_get(b.fd, nm_rx(&b, 0)) == 3);
	/* Other descriptors beside netmap's. */
	int pipes[2];
	CHECK(pipe(pipes) == 0 && write(pipes[1], "x", 1) == 1);
	struct pollfd two[3] = { { .fd = b.fd, .events = POLLIN }, { .fd = pipes[0], .events = POLLIN }, { .fd = -1 } };
	CHECK(poll(two, 3, -1) == 1 && !two[0].revents && two[1].revents == POLLIN);
	nm_put(nm_tx(&a, 0), 1, -1, 4);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
	CHECK(poll(two, 2, -1) == 2 && two[0].revents == POLLIN && two[1].revents == POLLIN);
	two[1].fd = 9999;
	CHECK(poll(two, 2, -1) == 2 && two[1].revents == POLLNVAL);
}

static void wakes(void)
{
	struct nm a = nm_port("vale0:a"), b = nm_port("vale0:b");
	int pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		/* The child has both ports, too, and sends when it reads that it is to. */
		for (uint32_t n = 0; n < 200; n++) {
			if (n % 10 == 0)
				usleep(2000);
			nm_put(nm_tx(&a, 0), 1, -1, n);
			CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
		}
		_exit(0);
	}
	for (uint32_t n = 0; n < 200; n++)
		CHECK(nm_get(b.fd, nm_rx(&b, 0)) == n);
	int status;
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	/* Nothing comes: it ends when its time is over, and by signals. */
	struct pollfd p = { .fd = b.fd, .events = POLLIN };
	CHECK(ioctl(b.fd, NIOCRXSYNC, NULL) == 0 && poll(&p, 1, 20) == 0);
}

static void selects(void)
{
	struct nm a = nm_port("vale0:a"), b = nm_port("vale0:b");
	fd_set read_set, write_set;
	struct timeval t = { 0, 1000 };
	FD_ZERO(&read_set);
	FD_SET(b.fd, &read_set);
	CHECK(select(b.fd + 1, &read_set, NULL, NULL, &t) == 0 && !FD_ISSET(b.fd, &read_set));
	CHECK(t.tv_sec == 0 && t.tv_usec == 0);
	nm_put(nm_tx(&a, 0), 1, -1, 5);
	FD_ZERO(&write_set);
	FD_SET(a.fd, &write_set);
	FD_SET(b.fd, &read_set);
	CHECK(select(20, NULL, &write_set, NULL, NULL) == 1 && FD_ISSET(a.fd, &write_set));
	struct timespec s = { 30, 0 };
	CHECK(pselect(20, &read_set, NULL, NULL, &s, NULL) == 1 && FD_ISSET(b.fd, &read_set));
	CHECK(nm_get(b.fd, nm_rx(&b, 0)) == 5);
}

static void epolls(void)
{
	struct nm a = nm_port("vale0:a"), b = nm_port("vale0:b");
	int set = epoll_create1(0), pipes[2];
	struct epoll_event e = { .events = EPOLLIN, .data.u64 = 77 }, got[4];
	CHECK(set >= 0 && pipe(pipes) == 0);
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, b.fd, &e) == 0);
	FAILS(epoll_ctl(set, EPOLL_CTL_ADD, b.fd, &e), EEXIST);
	FAILS(epoll_ctl(set, EPOLL_CTL_MOD, a.fd, &e), ENOENT);
	e.data.u64 = 88;
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, pipes[0], &e) == 0);
	CHECK(epoll_wait(set, got, 4, 5) == 0);
	nm_put(nm_tx(&a, 0), 1, -1, 5);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
	CHECK(epoll_wait(set, got, 4, 30000) == 1 && got[0].data.u64 == 77 && got[0].events == EPOLLIN);
	/* Still ready: level-triggered. */
	CHECK(write(pipes[1], "x", 1) == 1);
	CHECK(epoll_wait(set, got, 4, -1) == 2);
	CHECK(got[0].data.u64 + got[1].data.u64 == 77 + 88);
	CHECK(nm_get(b.fd, nm_rx(&b, 0)) == 5 && ioctl(b.fd, NIOCRXSYNC, NULL) == 0);
	CHECK(epoll_wait(set, got, 4, -1) == 1 && got[0].data.u64 == 88);
	CHECK(epoll_ctl(set, EPOLL_CTL_DEL, b.fd, NULL) == 0);
	FAILS(epoll_ctl(set, EPOLL_CTL_DEL, b.fd, NULL), ENOENT);
	/* Edges, and once. */
	e = (struct epoll_event){ .events = EPOLLOUT | EPOLLET, .data.u64 = 1 };
	CHECK(epoll_ctl(set, EPOLL_CTL_DEL, pipes[0], NULL) == 0);
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, a.fd, &e) == 0);
	CHECK(epoll_wait(set, got, 4, 0) == 1 && got[0].events == EPOLLOUT);
	CHECK(epoll_wait(set, got, 4, 10) == 0);
	e.events = EPOLLOUT | EPOLLONESHOT;
	CHECK(epoll_ctl(set, EPOLL_CTL_MOD, a.fd, &e) == 0);
	CHECK(epoll_wait(set, got, 4, -1) == 1 && epoll_wait(set, got, 4, 10) == 0);
	CHECK(epoll_ctl(set, EPOLL_CTL_MOD, a.fd, &e) == 0);
	CHECK(epoll_wait(set, got, 4, -1) == 1);
}

static void exclusive(void)
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

static void one_ring_each(void)
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

static void bad_cursors(void)
{
	struct nm a = nm_port("vale0:a"), b = nm_port("vale0:b");
	struct nm_ring *t = nm_tx(&a, 0), *r = nm_rx(&a, 0);
	struct pollfd p = { .fd = a.fd, .events = POLLOUT };
	t->head = t->cur = 5000;
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0 && t->head == 0 && t->cur == 0 && t->tail == 1023);
	t->head = 4; /* before cur */
	CHECK(poll(&p, 1, -1) == 1 && (p.revents & POLLERR) && t->head == 0);
	CHECK(poll(&p, 1, -1) == 1 && p.revents == POLLOUT);
	r->head = r->cur = 3; /* nothing was received */
	p.events = POLLIN;
	CHECK(poll(&p, 1, -1) == 1 && (p.revents & POLLERR) && r->head == 0);
	t->tail = 77; /* the core's */
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0 && t->tail == 1023);
	/* Slots that make no sense are frames of no bytes; those around them go. */
	nm_put(t, 1, -1, 1);
	uint32_t odd[] = { t->head, nm_next(t, t->head) };
	nm_put(t, 1, -1, 2);
	nm_put(t, 1, -1, 3);
	t->slot[odd[0]].buf_idx = 1 << 30;
	t->slot[odd[1]].len = 60000;
	nm_put(t, 1, -1, 4);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
	CHECK(nm_get(b.fd, nm_rx(&b, 0)) == 1 && nm_get(b.fd, nm_rx(&b, 0)) == 4);
	/* A buffer that makes no sense in a slot that is given back. */
	struct nm_ring *br = nm_rx(&b, 0);
	br->slot[0].buf_idx = 0;
	CHECK(ioctl(b.fd, NIOCRXSYNC, NULL) == 0);
	for (uint32_t n = 0; n < 5000; n++) {
		nm_put(t, 1, -1, n);
		CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0 && nm_get(b.fd, br) == n);
	}
}

static void fragments(void)
{
	struct nm a = nm_port("vale0:a"), b = nm_port("vale0:b");
	struct nm_ring *t = nm_tx(&a, 0), *r = nm_rx(&b, 0);
	struct pollfd p = { .fd = b.fd, .events = POLLIN };
	/* Three slots of one frame, and one that its sender does not end. */
	for (int i = 0; i < 4; i++) {
		struct nm_slot *s = &t->slot[t->head];
		char *at = nm_buf(t, s->buf_idx);
		memset(at, 'a' + i, 2000);
		if (i % 3 == 0)
			nm_frame(at, 1, -1, i);
		s->len = 2000;
		s->flags = i == 2 ? 0 : MOREFRAG;
		t->head = t->cur = nm_next(t, t->head);
	}
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
	CHECK(poll(&p, 1, 30000) == 1);
	uint32_t len = 0, slots = 0, i = r->head;
	do {
		CHECK(nm_space(r) > slots);
		len += r->slot[i].len;
		slots++;
		CHECK(r->slot[i].flags >> 8 == 3);
		i = nm_next(r, i);
	} while (r->slot[(i + r->num_slots - 1) % r->num_slots].flags & MOREFRAG);
	CHECK(len == 6000 && slots == 3);
	r->head = r->cur = i;
	CHECK(nm_get(b.fd, r) == 3);
	/* Bytes at an address, good and bad. */
	char frame[60];
	nm_frame(frame, 1, -1, 9);
	nm_put(t, 1, -1, 0);
	struct nm_slot *s = &t->slot[(t->head + t->num_slots - 1) % t->num_slots];
	s->flags = INDIRECT;
	s->ptr = (uintptr_t)frame;
	nm_put(t, 1, -1, 10);
	s = &t->slot[(t->head + t->num_slots - 1) % t->num_slots];
	s->flags = INDIRECT;
	s->ptr = 8;
	nm_put(t, 1, -1, 11);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
	CHECK(nm_get(b.fd, r) == 9 && nm_get(b.fd, r) == 11);
}

static void extra_buffers(void)
{
	struct nm_register want = { .mode = ALL_NIC, .extra_bufs = 100 };
	for (int round = 0; round < 3; round++) {
		struct nm d = nm_port_with("vale0:x", want);
		struct nm_ring *t = nm_tx(&d, 0);
		CHECK(d.reg.extra_bufs == 100);
		uint32_t n = 0, i;
		for (i = d.nifp->ni_bufs_head; i; i = *(uint32_t *)nm_buf(t, i))
			CHECK(i >= 2 && ++n <= 100);
		CHECK(n == 100);
		/* One goes into a slot, and the slot's into the list. */
		uint32_t first = d.nifp->ni_bufs_head, rest = *(uint32_t *)nm_buf(t, first);
		uint32_t own = t->slot[0].buf_idx;
		t->slot[0].buf_idx = first;
		t->slot[0].flags = BUF_CHANGED;
		d.nifp->ni_bufs_head = own;
		*(uint32_t *)nm_buf(t, own) = rest;
		nm_put(t, 1, -1, 1);
		t->slot[0].flags = BUF_CHANGED;
		CHECK(ioctl(d.fd, NIOCTXSYNC, NULL) == 0 && t->slot[0].flags == 0);
		munmap(d.mem, d.reg.memsize);
		close(d.fd);
	}
}

/* Another port in the region of the first. */
static void shared_region(void)
{
	struct nm a = nm_port("vale0:a");
	struct nm_register want = { .mode = ALL_NIC, .mem_id = a.reg.mem_id, .tx_slots = 512, .rx_slots = 512 };
	/* More often than there are buffers for, if some were not given back. */
	struct nm c = nm_port("vale1:c");
	for (int round = 0; round < 100; round++) {
		struct nm b = nm_port_with("vale1:b", want);
		CHECK(b.reg.mem_id == a.reg.mem_id && b.reg.memsize == a.reg.memsize && b.reg.offset != a.reg.offset);
		/* The same memory: what the first maps has both. */
		struct nm_if *there = (struct nm_if *)(a.mem + b.reg.offset);
		CHECK(!strcmp(there->ni_name, "vale1:b"));
		/* Frames come and go: the switch has the buffers of the ring in another order then. */
		for (uint32_t n = 0; n < 500; n++) {
			nm_put(nm_tx(&c, 0), 1, -1, n);
			CHECK(ioctl(c.fd, NIOCTXSYNC, NULL) == 0 && nm_get(b.fd, nm_rx(&b, 0)) == n);
		}
		munmap(b.mem, b.reg.memsize);
		close(b.fd);
	}
	want = (struct nm_register){ .mode = NULL_PORT, .mem_id = a.reg.mem_id, .extra_bufs = 10 };
	struct nm n = nm_port_with("none", want);
	CHECK(n.reg.tx_rings == 0 && n.reg.extra_bufs == 10 && n.nifp->ni_bufs_head);
}

static void information(void)
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

static void legacy(void)
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

static void pipes(void)
{
	struct nm a = nm_port("vale0:p{x"), b = nm_port("vale0:p}x");
	struct nm_ring *t = nm_tx(&a, 0), *r = nm_rx(&b, 0);
	CHECK(a.reg.mem_id == b.reg.mem_id && r->num_slots == t->num_slots);
	/* Lossless, without a copy: the same buffers. */
	uint32_t n = 0;
	while (nm_space(t))
		nm_put(t, 1, -1, n++);
	CHECK(n == t->num_slots - 1 && ioctl(a.fd, NIOCTXSYNC, NULL) == 0 && nm_space(t) == 0);
	struct pollfd p = { .fd = a.fd, .events = POLLOUT };
	CHECK(poll(&p, 1, 5) == 0);
	for (uint32_t i = 0; i < n; i++) {
		CHECK(r->slot[i].buf_idx == t->slot[i].buf_idx || i == 0);
		CHECK(nm_get(b.fd, r) == i);
	}
	/* The writer's tail moves at its own sync, after the reader's. */
	CHECK(nm_space(t) == 0 && ioctl(a.fd, NIOCTXSYNC, NULL) == 0 && nm_space(t) == 0);
	CHECK(ioctl(b.fd, NIOCRXSYNC, NULL) == 0 && nm_space(t) == 0);
	CHECK(poll(&p, 1, -1) == 1 && p.revents == POLLOUT && nm_space(t) == n);
	/* A frame that is not complete stays. */
	nm_put(t, 1, -1, 50);
	t->slot[(t->head + t->num_slots - 1) % t->num_slots].flags = MOREFRAG;
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0 && ioctl(b.fd, NIOCRXSYNC, NULL) == 0 && nm_space(r) == 0);
	nm_put(t, 1, -1, 51);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0 && ioctl(b.fd, NIOCRXSYNC, NULL) == 0 && nm_space(r) == 2);
	CHECK(nm_get(b.fd, r) == 50 && nm_get(b.fd, r) == 51);
	/* One end is closed and opened again: the rings are as they were. */
	CHECK(ioctl(b.fd, NIOCRXSYNC, NULL) == 0);
	uint32_t head = r->head;
	close(b.fd);
	nm_put(t, 1, -1, 60);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
	b = nm_port("vale0:p}x");
	r = nm_rx(&b, 0);
	CHECK(r->head == head && nm_get(b.fd, r) == 60);
	/* Other rings, and a port that is made for its pipes. */
	struct nm_register want = { .tx_rings = 2, .rx_rings = 1, .tx_slots = 64, .rx_slots = 32 };
	struct nm c = nm_port_with("made{1", want), d = nm_port("made}1");
	CHECK(d.reg.tx_rings == 1 && d.reg.rx_rings == 2 && d.reg.rx_slots == 64 && d.reg.tx_slots == 32);
	nm_put(nm_tx(&c, 1), 1, -1, 70);
	nm_put(nm_tx(&d, 0), 1, -1, 71);
	CHECK(ioctl(c.fd, NIOCTXSYNC, NULL) == 0 && ioctl(d.fd, NIOCTXSYNC, NULL) == 0);
	CHECK(nm_get(d.fd, nm_rx(&d, 1)) == 70 && nm_get(c.fd, nm_rx(&c, 0)) == 71);
	close(c.fd);
	close(d.fd);
	struct nm_port_info info;
	int fd = nm_open();
	FAILS(nm_ctrl(fd, PORT_INFO_GET, "made", &info), ENXIO);
}

/* Buffers that are exchanged go through a pipe, and come back. */
static void pipe_zero_copy(void)
{
	struct nm a = nm_port("vale0:p{1"), b = nm_port("vale0:p}1");
	struct nm_register want = { .mode = NULL_PORT, .mem_id = a.reg.mem_id, .extra_bufs = 1 };
	struct nm spare = nm_port_with("none", want);
	struct nm_ring *t = nm_tx(&a, 0), *r = nm_rx(&b, 0);
	uint32_t mine = spare.nifp->ni_bufs_head, was = t->slot[0].buf_idx;
	nm_frame(nm_buf(t, mine), 1, -1, 99);
	t->slot[0] = (struct nm_slot){ .buf_idx = mine, .len = 60, .flags = BUF_CHANGED };
	t->head = t->cur = 1;
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0 && t->slot[0].flags == 0);
	CHECK(ioctl(b.fd, NIOCRXSYNC, NULL) == 0 && nm_space(r) == 1);
	CHECK(r->slot[0].buf_idx == mine && r->slot[0].flags == BUF_CHANGED);
	CHECK(!memcmp(nm_buf(r, mine) + 14, &(uint32_t){ 99 }, 4));
	r->slot[0].buf_idx = was;
	r->slot[0].flags = BUF_CHANGED;
	r->head = r->cur = 1;
	CHECK(ioctl(b.fd, NIOCRXSYNC, NULL) == 0 && ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
	CHECK(t->slot[0].buf_idx == was && t->slot[0].flags == BUF_CHANGED);
}

static void persistent(void)
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

static void monitors(void)
{
	struct nm a = nm_port("vale0:a"), b = nm_port("vale0:b");
	struct nm_register want = { .mode = ALL_NIC, .flags = MONITOR_TX | MONITOR_RX };
	struct nm m = nm_port_with("vale0:a", want);
	CHECK(m.reg.mem_id != a.reg.mem_id && m.reg.flags == (MONITOR_TX | MONITOR_RX));
	nm_put(nm_tx(&a, 0), 1, -1, 1);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0 && nm_get(b.fd, nm_rx(&b, 0)) == 1);
	CHECK(nm_get(m.fd, nm_rx(&m, 0)) == 1);
	nm_put(nm_tx(&b, 0), 2, 1, 2);
	CHECK(ioctl(b.fd, NIOCTXSYNC, NULL) == 0 && nm_get(a.fd, nm_rx(&a, 0)) == 2);
	CHECK(nm_get(m.fd, nm_rx(&m, 0)) == 2);
}

/* All copies of a descriptor are the same port; the last close ends it. */
static void copies(void)
{
	struct nm a = nm_port("vale0:a"), b = nm_port("vale0:b");
	int copy = dup(b.fd), high = fcntl(b.fd, F_DUPFD, 100), third = dup2(b.fd, 77);
	CHECK(copy > b.fd && high == 100 && third == 77);
	struct nm_register any = { .mode = ALL_NIC };
	FAILS(nm_ctrl(copy, REGISTER, "vale0:c", &any), EBUSY);
	close(b.fd);
	close(high);
	for (uint32_t n = 0; n < 10; n++) {
		nm_put(nm_tx(&a, 0), 1, -1, n);
		CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
		CHECK(nm_get(n % 2 ? copy : 77, nm_rx(&b, 0)) == n);
	}
	char *again = mmap(NULL, b.reg.memsize, PROT_READ, MAP_SHARED, copy, 0);
	CHECK(again != MAP_FAILED && !memcmp(again + b.reg.offset, b.nifp, 64));
	/* Another file in the place of one. */
	CHECK(dup2(0, 77) == 77);
	FAILS(ioctl(77, NIOCTXSYNC, NULL), ENOTTY);
	struct nm_list list = { 0 };
	CHECK(nm_ctrl(a.fd, VALE_LIST, "vale0:b", &list) == 0 && list.port == 1);
	close(copy);
	CHECK(nm_ctrl(a.fd, VALE_LIST, "vale0:b", &list) == 0 && list.port == 255);
}

static void pass(int to, int fd)
{
	char byte = 0, space[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec v = { &byte, 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof(space) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(int));
	CHECK(sendmsg(to, &m, 0) == 1);
}

static int passed(int from)
{
	char byte, space[CMSG_SPACE(sizeof(int))];
	struct iovec v = { &byte, 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof(space) };
	int fd;
	CHECK(recvmsg(from, &m, 0) == 1);
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(int));
	return fd;
}

/* A descriptor goes to a process that has never opened the device, which loses all others. */
static void passing(void)
{
	int pair[2];
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	int pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		for (int fd = 0; fd < 2000; fd++)
			if (fd != pair[1] && fd != 2)
				close(fd);
		int fd = passed(pair[1]);
		struct nm_register reg;
		CHECK(read(pair[1], &reg, sizeof(reg)) == sizeof(reg));
		struct nm d = { .fd = fd, .reg = reg };
		nm_map(&d);
		for (uint32_t n = 0; n < 1000; n++) {
			nm_put(nm_tx(&d, 0), 1, -1, n);
			CHECK(ioctl(fd, NIOCTXSYNC, NULL) == 0);
			CHECK(nm_get(fd, nm_rx(&d, 0)) == n);
		}
		_exit(0);
	}
	close(pair[1]);
	struct nm a = nm_port("vale0:a"), b = nm_port("vale0:b");
	pass(pair[0], a.fd);
	CHECK(write(pair[0], &a.reg, sizeof(a.reg)) == sizeof(a.reg));
	close(a.fd);
	for (uint32_t n = 0; n < 1000; n++) {
		CHECK(nm_get(b.fd, nm_rx(&b, 0)) == n);
		nm_put(nm_tx(&b, 0), 2, -1, n);
		CHECK(ioctl(b.fd, NIOCTXSYNC, NULL) == 0);
	}
	int status;
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	struct nm_list list = { 0 };
	CHECK(nm_ctrl(b.fd, VALE_LIST, "vale0:a", &list) == 0 && list.port == 255);
}

/* The program is run anew with the descriptor open. */
static void executed(void)
{
	char *given = getenv("NM_FD");
	if (given) {
		struct nm d = { .fd = atoi(given) };
		d.reg.memsize = strtoull(getenv("NM_SIZE"), NULL, 10);
		d.reg.offset = strtoull(getenv("NM_OFFSET"), NULL, 10);
		nm_map(&d);
		struct nm b = nm_port("vale0:b");
		nm_put(nm_tx(&d, 0), 1, -1, 4);
		CHECK(ioctl(d.fd, NIOCTXSYNC, NULL) == 0 && nm_get(b.fd, nm_rx(&b, 0)) == 4);
		return;
	}
	struct nm d = nm_port("vale0:a");
	char text[32];
	snprintf(text, sizeof(text), "%d", d.fd);
	setenv("NM_FD", text, 1);
	snprintf(text, sizeof(text), "%llu", (unsigned long long)d.reg.memsize);
	setenv("NM_SIZE", text, 1);
	snprintf(text, sizeof(text), "%llu", (unsigned long long)d.reg.offset);
	setenv("NM_OFFSET", text, 1);
	execl("/proc/self/exe", "rules", "executed", (char *)NULL);
	CHECK(0);
}

static void close_all(void)
{
	struct nm a = nm_port("vale0:a"), b = nm_port("vale0:b");
	/* All but netmap's two, also those of the library. */
	for (int fd = 3; fd < 70000; fd++)
		if (fd != a.fd && fd != b.fd)
			close(fd);
	nm_put(nm_tx(&a, 0), 1, -1, 5);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0 && nm_get(b.fd, nm_rx(&b, 0)) == 5);
	CHECK(close_range(3, ~0U, 0) == 0);
	FAILS(ioctl(a.fd, NIOCTXSYNC, NULL), EBADF);
	a = nm_port("vale0:a");
	nm_put(nm_tx(&a, 0), 1, -1, 5);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
}

/* A thread for each ring of a port, each with a descriptor of its own, asleep most of the time. */
static void *ring_thread(void *arg)
{
	struct nm *d = arg;
	struct nm_ring *r = nm_rx(d, d->reg.ringid);
	for (uint32_t n = 0; n < 2000; n++)
		CHECK(nm_get(d->fd, r) == n);
	return NULL;
}

static void threads(void)
{
	struct nm_register want = { .tx_rings = 4, .rx_rings = 4, .mode = ONE_NIC };
	struct nm d[4], all = nm_port_with("vale0:all", (struct nm_register){ .tx_rings = 4, .rx_rings = 4 });
	pthread_t thread[4];
	for (int i = 0; i < 4; i++) {
		want.ringid = i;
		d[i] = nm_port_with("vale0:many", want);
	}
	/* Its stations are known: frames go to the ring of the same number. */
	nm_put(nm_tx(&d[0], 0), 9, -1, 0);
	CHECK(ioctl(d[0].fd, NIOCTXSYNC, NULL) == 0);
	for (int i = 0; i < 4; i++)
		CHECK(pthread_create(&thread[i], NULL, ring_thread, &d[i]) == 0);
	for (uint32_t n = 0; n < 2000; n++) {
		for (int i = 0; i < 4; i++)
			nm_put(nm_tx(&all, i), 1, 9, n);
		CHECK(ioctl(all.fd, NIOCTXSYNC, NULL) == 0);
		if (n % 20 == 0)
			usleep(500);
		else
			usleep(1);
	}
	for (int i = 0; i < 4; i++)
		CHECK(pthread_join(thread[i], NULL) == 0);
}

static void *sleeper(void *fd)
{
	struct pollfd p = { .fd = *(int *)fd, .events = POLLIN };
	poll(&p, 1, -1);
	return fd;
}

/* A thread that sleeps in poll can be cancelled, beside netmap's descriptors and others. */
static void cancelled(void)
{
	struct nm a = nm_port("vale0:a"), b = nm_port("vale0:b");
	int other[2];
	CHECK(pipe(other) == 0);
	int *fds[] = { &b.fd, &other[0] };
	for (int i = 0; i < 2; i++) {
		pthread_t thread;
		void *end;
		CHECK(pthread_create(&thread, NULL, sleeper, fds[i]) == 0);
		usleep(20000);
		CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &end) == 0);
		CHECK(end == PTHREAD_CANCELED);
	}
	nm_put(nm_tx(&a, 0), 1, -1, 5);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0 && nm_get(b.fd, nm_rx(&b, 0)) == 5);
}

/* Processes that share a ring: each is woken for what comes, and takes what there is. */
static void shared_ring(void)
{
	struct nm a = nm_port("vale0:a"), b = nm_port("vale0:b");
	int end[2], status, pid[3];
	CHECK(pipe(end) == 0);
	for (int i = 0; i < 3; i++) {
		pid[i] = fork();
		CHECK(pid[i] >= 0);
		if (pid[i])
			continue;
		/* Says when it was woken, and leaves the frame there. */
		struct pollfd p = { .fd = b.fd, .events = POLLIN };
		CHECK(poll(&p, 1, 30000) == 1 && p.revents == POLLIN && write(end[1], "w", 1) == 1);
		_exit(0);
	}
	usleep(20000);
	nm_put(nm_tx(&a, 0), 1, -1, 1);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
	for (int i = 0; i < 3; i++)
		CHECK(waitpid(pid[i], &status, 0) == pid[i] && status == 0);
	char all[3];
	CHECK(read(end[0], all, 3) == 3);
}

struct atok { uint32_t head, cur, need_kick, sync_flags, pad[12]; };
struct ktoa { uint32_t hwcur, hwtail, need_kick, pad[13]; };
struct csb_option { struct nm_option o; uint64_t atok, ktoa; };

static struct atok blocks_in[2] __attribute__((aligned(64)));
static struct ktoa blocks_out[2] __attribute__((aligned(64)));

static struct nm csb_port(const char *name)
{
	struct csb_option csb = { .o.reqtype = 3, .atok = (uintptr_t)blocks_in, .ktoa = (uintptr_t)blocks_out };
	struct nm d = { .fd = nm_open(), .reg = { .mode = ALL_NIC, .flags = EXCLUSIVE } };
	CHECK(nm_ctrl_with(d.fd, REGISTER, name, &d.reg, &csb) == 0 && csb.o.status == 0);
	nm_map(&d);
	return d;
}

static void csb(void)
{
	struct csb_option o = { .o.reqtype = 3, .atok = (uintptr_t)blocks_in, .ktoa = (uintptr_t)blocks_out + 8 };
	struct nm_register reg = { .mode = ALL_NIC, .flags = EXCLUSIVE };
	int fd = nm_open();
	FAILS(nm_ctrl(fd, 15, "", NULL), ENXIO);
	FAILS(nm_ctrl_with(fd, REGISTER, "vale0:a", &reg, &o), EINVAL);
	CHECK(o.o.status == EINVAL);
	o.ktoa -= 8;
	reg.flags = 0;
	FAILS(nm_ctrl_with(fd, REGISTER, "vale0:a", &reg, &o), EINVAL);
	uint32_t body[2] = { 1000 };
	FAILS(nm_ctrl(fd, 13, "", body), ENXIO);
	FAILS(nm_ctrl(fd, 14, "", NULL), ENXIO);
	struct nm d = csb_port("vale0:a");
	CHECK(blocks_in[0].need_kick == 1 && blocks_in[0].sync_flags == 1 && blocks_in[1].head == 0);
	CHECK(blocks_out[0].hwtail == 1023 && blocks_out[1].hwtail == 0 && blocks_out[0].need_kick == 1);
	FAILS(ioctl(d.fd, NIOCTXSYNC, NULL), EBUSY);
	FAILS(ioctl(d.fd, NIOCRXSYNC, NULL), EBUSY);
	struct pollfd p = { .fd = d.fd, .events = POLLIN };
	CHECK(poll(&p, 1, -1) == 1 && p.revents == POLLERR);
	/* Enabled later. */
	reg.flags = EXCLUSIVE;
	CHECK(nm_ctrl(fd, REGISTER, "vale0:b", &reg) == 0);
	FAILS(nm_ctrl(fd, 13, "", body), EINVAL);
	FAILS(nm_ctrl(fd, 15, "", NULL), EINVAL);
	CHECK(nm_ctrl_with(fd, 15, "", NULL, &o) == 0 && o.o.status == 0);
	FAILS(ioctl(fd, NIOCTXSYNC, NULL), EBUSY);
	/* Stopped before it is started: once. */
	CHECK(nm_ctrl(fd, 14, "", NULL) == 0 && nm_ctrl(fd, 13, "", body) == 0);
	body[0] = 1000001;
	FAILS(nm_ctrl(fd, 13, "", body), EINVAL);
}

struct kloop { int fd, events; int32_t pairs[4]; };

static void *kloop_thread(void *arg)
{
	struct kloop *k = arg;
	uint32_t body[2] = { 100 };
	struct { struct nm_option o; int32_t pairs[4]; } o = { .o = { .reqtype = 2, .size = 24 + 16 } };
	memcpy(o.pairs, k->pairs, sizeof(o.pairs));
	CHECK(nm_ctrl_with(k->fd, 13, "", body, k->events ? &o : NULL) == 0);
	CHECK(!k->events || o.o.status == 0);
	return NULL;
}

static void run_kloop(int events)
{
	struct nm d = csb_port("vale0:a"), b = nm_port("vale0:b");
	struct kloop k = { .fd = d.fd, .events = events };
	for (int i = 0; i < 4; i++)
		CHECK((k.pairs[i] = eventfd(0, 0)) >= 0);
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, kloop_thread, &k) == 0);
	struct nm_ring *t = nm_tx(&d, 0), *r = nm_rx(&d, 0);
	uint64_t one = 1;
	for (uint32_t n = 0; n < 3000; n++) {
		/* A frame goes out by the blocks. */
		struct nm_slot *s = &t->slot[blocks_in[0].head];
		nm_frame(nm_buf(t, s->buf_idx), 1, -1, n);
		s->len = 60;
		uint32_t next = nm_next(t, blocks_in[0].head);
		blocks_in[0].cur = next;
		__atomic_store_n(&blocks_in[0].head, next, __ATOMIC_SEQ_CST);
		if (events && __atomic_load_n(&blocks_out[0].need_kick, __ATOMIC_SEQ_CST))
			CHECK(write(k.pairs[0], &one, 8) == 8);
		CHECK(nm_get(b.fd, nm_rx(&b, 0)) == n);
		/* And one comes in, after which the program is signalled. */
		nm_put(nm_tx(&b, 0), 2, -1, n);
		CHECK(ioctl(b.fd, NIOCTXSYNC, NULL) == 0);
		uint32_t head = blocks_in[1].head;
		while (__atomic_load_n(&blocks_out[1].hwtail, __ATOMIC_ACQUIRE) == head) {
			if (events)
				CHECK(read(k.pairs[3], &one, 8) == 8);
			one = 1;
		}
		CHECK(!memcmp(nm_buf(r, r->slot[head].buf_idx) + 14, &n, 4));
		blocks_in[1].cur = nm_next(r, head);
		__atomic_store_n(&blocks_in[1].head, nm_next(r, head), __ATOMIC_SEQ_CST);
		if (events && __atomic_load_n(&blocks_out[1].need_kick, __ATOMIC_SEQ_CST))
			CHECK(write(k.pairs[2], &one, 8) == 8);
	}
	uint32_t body[2] = { 0 };
	FAILS(nm_ctrl(d.fd, 13, "", body), EBUSY);
	CHECK(nm_ctrl(d.fd, 14, "", NULL) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
}

static void kloop_sleeps(void)
{
	run_kloop(0);
}

static void kloop_events(void)
{
	struct nm d = csb_port("vale0:c");
	uint32_t body[2] = { 0 };
	/* A size that is no number of pairs, and modes. */
	struct { struct nm_option o; int32_t pairs[4]; } o = { .o = { .reqtype = 2, .size = 24 + 12 } };
	FAILS(nm_ctrl_with(d.fd, 13, "", body, &o), EINVAL);
	CHECK(o.o.status == EINVAL);
	struct { struct nm_option o; uint32_t mode, pad; } m = { .o.reqtype = 4, .mode = 4 };
	FAILS(nm_ctrl_with(d.fd, 13, "", body, &m), EINVAL);
	close(d.fd);
	run_kloop(1);
}

struct extmem_option { struct nm_option o; uint64_t at; struct nm_pools_info info; };

static void extmem(void)
{
	size_t size = 1 << 22;
	char *mem = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);
	CHECK(mem != MAP_FAILED);
	struct extmem_option o = { .o.reqtype = 1, .at = (uintptr_t)mem + 8, .info = { .memsize = size, .buf_total = 300 } };
	struct nm_register reg = { .mode = ALL_NIC, .tx_slots = 128, .rx_slots = 128 };
	struct nm d[2];
	for (int i = 0; i < 2; i++)
		d[i].fd = nm_open();
	FAILS(nm_ctrl_with(d[0].fd, REGISTER, "vale0:a", &reg, &o), EINVAL);
	CHECK(o.o.status == EINVAL);
	o.at -= 8;
	o.info.buf_total = 100000;
	FAILS(nm_ctrl_with(d[0].fd, REGISTER, "vale0:a", &reg, &o), ENOMEM);
	CHECK(o.o.status == ENOMEM);
	o.info.buf_total = 300;
	o.at = 0x10000;
	FAILS(nm_ctrl_with(d[0].fd, REGISTER, "vale0:a", &reg, &o), EFAULT);
	strcpy(mem + size - 10, "kept");
	for (int i = 0; i < 2; i++) {
		o.at = (uintptr_t)mem;
		o.info = (struct nm_pools_info){ .memsize = size, .buf_total = 600, .ring_total = 8, .if_total = 4 };
		d[i].reg = (struct nm_register){ .mode = ALL_NIC, .tx_slots = 128, .rx_slots = 128 };
		CHECK(nm_ctrl_with(d[i].fd, REGISTER, i ? "vale0:b" : "vale0:a", &d[i].reg, &o) == 0);
		CHECK(o.o.status == 0 && o.at == (uintptr_t)mem && d[i].reg.memsize == size);
		CHECK(o.info.memsize == size && o.info.buf_size == 2048 && o.info.ring_total == 8);
		CHECK(o.info.buf_total > 1000);
		/* At the program's own address. */
		d[i].mem = mem;
		d[i].nifp = (struct nm_if *)(mem + d[i].reg.offset);
		CHECK(nm_tx(&d[i], 0)->num_slots == 128);
	}
	CHECK(d[0].reg.mem_id == d[1].reg.mem_id && !strcmp(mem + size - 10, "kept"));
	for (uint32_t n = 0; n < 1000; n++) {
		nm_put(nm_tx(&d[0], 0), 1, -1, n);
		CHECK(ioctl(d[0].fd, NIOCTXSYNC, NULL) == 0 && nm_get(d[1].fd, nm_rx(&d[1], 0)) == n);
	}
	/* A port that is there has its memory. */
	int fd = nm_open();
	reg = (struct nm_register){ .mode = ALL_NIC };
	struct nm c = nm_port("vale0:c");
	FAILS(nm_ctrl_with(fd, REGISTER, "vale0:c", &reg, &o), EBUSY);
	CHECK(c.reg.mem_id != d[0].reg.mem_id);
}

static const struct { const char *name; void (*run)(void); } rules[] = {
#define RULE(name) { #name, name }
	RULE(unbound), RULE(lowest_number), RULE(layout), RULE(errors), RULE(options), RULE(poll_sends),
	RULE(wakes), RULE(selects), RULE(epolls), RULE(exclusive), RULE(one_ring_each), RULE(bad_cursors),
	RULE(fragments), RULE(extra_buffers), RULE(shared_region), RULE(information), RULE(legacy),
	RULE(pipes), RULE(pipe_zero_copy), RULE(persistent), RULE(monitors), RULE(copies), RULE(passing),
	RULE(executed), RULE(close_all), RULE(threads), RULE(shared_ring),
	RULE(csb), RULE(kloop_sleeps), RULE(kloop_events), RULE(extmem), RULE(cancelled),
};

int main(int argc, char **argv)
{
	for (size_t i = 0; i < sizeof(rules) / sizeof(*rules); i++) {
		if (argc < 2)
			puts(rules[i].name);
		else if (!strcmp(argv[1], rules[i].name))
			return rules[i].run(), 0;
	}
	return argc < 2 ? 0 : 2;
}
