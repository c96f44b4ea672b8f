/* Control blocks in the program's memory, and the loop that serves them. */
#include "rules.h"
#include <pthread.h>
#include <sys/eventfd.h>

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

void csb(void)
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

void kloop_sleeps(void)
{
	run_kloop(0);
}

void kloop_events(void)
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
