/* What happens to frames, buffers and regions of memory. */
#include "rules.h"
#include <sys/wait.h>

void bad_cursors(void)
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

void fragments(void)
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

/* VALE forwards what fits into a chain of slots. */
void long_frames(void)
{
	static const uint32_t lengths[] = { 1514, 9234, 10050, 65549 };
	struct nm a = nm_port("vale0:a"), b = nm_port("vale0:b");
	struct nm_ring *t = nm_tx(&a, 0), *r = nm_rx(&b, 0);
	for (int n = 0; n < 4; n++) {
		for (uint32_t done = 0, part; done < lengths[n]; done += part) {
			struct nm_slot *s = &t->slot[t->head];
			part = lengths[n] - done < t->nr_buf_size ? lengths[n] - done : t->nr_buf_size;
			memset(nm_buf(t, s->buf_idx), n + done / 2000, part);
			if (!done)
				nm_frame(nm_buf(t, s->buf_idx), 1, -1, n);
			s->len = part;
			s->flags = done + part < lengths[n] ? MOREFRAG : 0;
			t->head = t->cur = nm_next(t, t->head);
		}
		CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
		uint32_t len = 0, more = 1;
		while (more) {
			while (nm_space(r) == 0) {
				struct pollfd p = { .fd = b.fd, .events = POLLIN };
				CHECK(poll(&p, 1, 30000) == 1 && p.revents == POLLIN);
			}
			struct nm_slot *s = &r->slot[r->head];
			CHECK(nm_buf(r, s->buf_idx)[s->len - 1] == (char)(n + len / 2000));
			len += s->len;
			more = s->flags & MOREFRAG;
			r->head = r->cur = nm_next(r, r->head);
		}
		CHECK(len == lengths[n]);
	}
}

void extra_buffers(void)
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

/* A port ends with the last close(2), before it returns: the next of its name has rings of its own. */
void closed(void)
{
	for (int round = 0; round < 300; round++) {
		struct nm d = nm_port("vale0:y");
		struct nm_ring *t = nm_tx(&d, 0);
		CHECK(t->head == 0 && t->slot[0].len == t->nr_buf_size);
		nm_put(t, 1, -1, round);
		CHECK(ioctl(d.fd, NIOCTXSYNC, NULL) == 0);
		munmap(d.mem, d.reg.memsize);
		close(d.fd);
	}
}

/* Another port in the region of the first. */
void shared_region(void)
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

void pipes(void)
{
	/* One direction for each descriptor. */
	struct nm_register one = { .mode = ALL_NIC, .flags = TX_ONLY | EXCLUSIVE };
	struct nm s = nm_port_with("vale0:q{x", one);
	CHECK(nm_tx(&s, 0)->dir == 0 && s.nifp->ring_ofs[2] == 0);
	int fd = nm_open();
	FAILS(nm_ctrl(fd, REGISTER, "vale0:q{x", &one), EBUSY);
	one.flags = RX_ONLY | EXCLUSIVE;
	struct nm o = nm_port_with("vale0:q{x", one);
	CHECK(nm_rx(&o, 0)->dir == 1 && o.nifp->ring_ofs[0] == 0);
	struct nm e = nm_port("vale0:q}x");
	nm_put(nm_tx(&s, 0), 1, -1, 1);
	nm_put(nm_tx(&e, 0), 2, -1, 2);
	CHECK(ioctl(s.fd, NIOCTXSYNC, NULL) == 0 && nm_get(e.fd, nm_rx(&e, 0)) == 1);
	CHECK(ioctl(e.fd, NIOCTXSYNC, NULL) == 0 && nm_get(o.fd, nm_rx(&o, 0)) == 2);
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
	fd = nm_open();
	FAILS(nm_ctrl(fd, PORT_INFO_GET, "made", &info), ENXIO);
}

/* Buffers that are exchanged go through a pipe, and come back. */
void pipe_zero_copy(void)
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

/* Sends frames until one has crossed. */
static void crosses(struct nm *from, struct nm *to, int station)
{
	struct nm_ring *r = nm_rx(to, 0);
	for (uint32_t n = 0; nm_space(r) == 0; n++) {
		struct pollfd p = { .fd = to->fd, .events = POLLIN };
		nm_put(nm_tx(from, 0), station, -1, n);
		CHECK(ioctl(from->fd, NIOCTXSYNC, NULL) == 0 && n < 3000 && poll(&p, 1, 10) >= 0);
	}
	struct nm_slot *s = &r->slot[r->head];
	CHECK(s->len == 60 && nm_buf(r, s->buf_idx)[11] == station);
	r->head = r->cur = r->tail;
	CHECK(ioctl(to->fd, NIOCRXSYNC, NULL) == 0);
}

/* A persistent port in a second switch joins both, and belongs to no program meanwhile. */
void joined(void)
{
	int fd = nm_open();
	struct nm_newif newif = { 0 };
	struct nm_attach attach = { .reg.mode = ALL_NIC };
	struct nm_detach detach = { 0 };
	struct nm_register reg = { .mode = ALL_NIC };
	CHECK(nm_ctrl(fd, VALE_NEWIF, "both", &newif) == 0);
	CHECK(nm_ctrl(fd, VALE_ATTACH, "vale0:both", &attach) == 0);
	FAILS(nm_ctrl(fd, VALE_ATTACH, "vale0:both", &attach), EBUSY);
	struct nm open = nm_port("vale0:both");
	FAILS(nm_ctrl(fd, VALE_ATTACH, "vale1:both", &attach), EBUSY);
	close(open.fd);
	CHECK(nm_ctrl(fd, VALE_ATTACH, "vale1:both", &attach) == 0);
	FAILS(nm_ctrl(fd, VALE_ATTACH, "vale1:both", &attach), EBUSY);
	FAILS(nm_ctrl(fd, VALE_ATTACH, "vale2:both", &attach), EBUSY);
	FAILS(nm_ctrl(fd, REGISTER, "both", &reg), EBUSY);
	FAILS(nm_ctrl(fd, REGISTER, "vale0:both", &reg), EBUSY);
	FAILS(nm_ctrl(fd, REGISTER, "vale1:both", &reg), EBUSY);
	FAILS(nm_ctrl(fd, VALE_DELIF, "both", NULL), EBUSY);
	struct nm_list list = { 0 };
	CHECK(nm_ctrl(fd, VALE_LIST, "vale1:both", &list) == 0 && list.port != 255);
	struct nm a = nm_port("vale0:a"), b = nm_port("vale1:b");
	crosses(&a, &b, 1);
	crosses(&b, &a, 2);
	FAILS(nm_ctrl(fd, VALE_DETACH, "vale0:both", &detach), EBUSY);
	CHECK(nm_ctrl(fd, VALE_DETACH, "vale1:both", &detach) == 0);
	FAILS(nm_ctrl(fd, VALE_DETACH, "vale1:both", &detach), ENXIO);
	CHECK(nm_ctrl(fd, REGISTER, "vale0:both", &reg) == 0);
	close(fd);
	fd = nm_open();
	CHECK(nm_ctrl(fd, VALE_DETACH, "vale0:both", &detach) == 0 && nm_ctrl(fd, VALE_DELIF, "both", NULL) == 0);
	/* A name that is taken in the second switch. */
	CHECK(nm_ctrl(fd, VALE_NEWIF, "b", &newif) == 0 && nm_ctrl(fd, VALE_ATTACH, "vale0:b", &attach) == 0);
	FAILS(nm_ctrl(fd, VALE_ATTACH, "vale1:b", &attach), EBUSY);
	CHECK(nm_ctrl(fd, VALE_DETACH, "vale0:b", &detach) == 0 && nm_ctrl(fd, VALE_DELIF, "b", NULL) == 0);
}

struct extmem_option { struct nm_option o; uint64_t at; struct nm_pools_info info; };

void extmem(void)
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
	/* A page that is begun counts as a whole one; the size is answered as it was given. */
	int fd = nm_open();
	size = 2 * 1024 + 64 * 512 + 4096 * 2048;
	mem = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_SHARED, -1, 0);
	CHECK(mem != MAP_FAILED);
	o.at = (uintptr_t)mem;
	o.info = (struct nm_pools_info){ .memsize = size, .if_total = 2, .if_size = 1024, .ring_total = 64,
		.ring_size = 512, .buf_total = 4096, .buf_size = 2048 };
	reg = (struct nm_register){ .mode = ALL_NIC, .tx_slots = 16, .rx_slots = 16 };
	CHECK(nm_ctrl_with(fd, REGISTER, "vale0:d", &reg, &o) == 0 && o.info.memsize == size);
	/* A port that is there has its memory. */
	fd = nm_open();
	reg = (struct nm_register){ .mode = ALL_NIC };
	struct nm c = nm_port("vale0:c");
	FAILS(nm_ctrl_with(fd, REGISTER, "vale0:c", &reg, &o), EBUSY);
	CHECK(c.reg.mem_id != d[0].reg.mem_id);
}
