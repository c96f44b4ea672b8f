/* Monitors: copies, and buffers without a copy. */
#include "rules.h"
#include <sys/wait.h>

void monitors(void)
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

static int has_arrived(struct nm *d)
{
	CHECK(ioctl(d->fd, NIOCRXSYNC, NULL) == 0);
	return nm_space(nm_rx(d, 0)) > 0;
}

static struct nm watch(const char *name)
{
	struct nm_register want = { .mode = ALL_NIC, .flags = ZCOPY_MON };
	struct nm m = nm_port_with(name, want);
	CHECK(m.reg.flags == (ZCOPY_MON | MONITOR_TX | MONITOR_RX));
	return m;
}

/* Zero-copy monitors get the buffers themselves, when these are given back. */
void watchers(void)
{
	struct nm_register want = { .mode = ALL_NIC, .flags = ZCOPY_MON };
	int fd = nm_open();
	FAILS(nm_ctrl(fd, REGISTER, "vale0:a", &want), EINVAL);
	struct nm a = nm_port("vale0:a"), b = nm_port("vale0:b"), m = watch("vale0:a");
	struct nm_ring *t = nm_tx(&a, 0), *r = nm_rx(&b, 0), *mr = nm_rx(&m, 0);
	CHECK(m.reg.mem_id == a.reg.mem_id);
	/* What is sent: when the switch has taken it. */
	uint32_t buf = t->slot[0].buf_idx;
	nm_put(t, 1, -1, 1);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0 && nm_get(b.fd, r) == 1);
	while (!has_arrived(&m))
		CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
	CHECK(mr->slot[0].buf_idx == buf && mr->slot[0].flags & TXMON && mr->slot[0].len == 60);
	CHECK(t->slot[0].buf_idx != buf && t->slot[0].flags & BUF_CHANGED && nm_get(m.fd, mr) == 1);
	/* What is received: when it is released. */
	nm_put(nm_tx(&b, 0), 2, 1, 2);
	CHECK(ioctl(b.fd, NIOCTXSYNC, NULL) == 0 && nm_get(a.fd, nm_rx(&a, 0)) == 2 && !has_arrived(&m));
	CHECK(ioctl(a.fd, NIOCRXSYNC, NULL) == 0 && has_arrived(&m));
	CHECK(!(mr->slot[mr->head].flags & TXMON) && nm_get(m.fd, mr) == 2);
	/* The next monitor gets what the first has released. */
	CHECK(!has_arrived(&m));
	struct nm n = watch("vale0:a");
	struct nm_ring *nr = nm_rx(&n, 0);
	nm_put(nm_tx(&b, 0), 2, 1, 3);
	CHECK(ioctl(b.fd, NIOCTXSYNC, NULL) == 0 && nm_get(a.fd, nm_rx(&a, 0)) == 3);
	CHECK(ioctl(a.fd, NIOCRXSYNC, NULL) == 0 && has_arrived(&m) && !has_arrived(&n) && nm_get(m.fd, mr) == 3);
	CHECK(ioctl(m.fd, NIOCRXSYNC, NULL) == 0 && has_arrived(&n) && nm_get(n.fd, nr) == 3);
	/* Monitors that do not keep up hold nothing up, and miss frames; no buffer is lost or doubled. */
	for (uint32_t i = 0; i < 5000; i++) {
		nm_put(t, 1, 2, i);
		CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0 && nm_get(b.fd, r) == i);
	}
	static char seen[1 << 16];
	struct nm_ring *rings[] = { t, nm_rx(&a, 0), mr, nr };
	CHECK(ioctl(a.fd, NIOCRXSYNC, NULL) == 0 && has_arrived(&m));
	for (int i = 2; i < 4; i++)
		for (uint32_t s = 0; s < rings[i]->num_slots; s++) {
			buf = rings[i]->slot[s].buf_idx;
			CHECK(buf >= 2 && !seen[buf]);
			seen[buf] = 1;
		}
	for (uint32_t s = 0; s < t->num_slots; s++)
		CHECK(!seen[t->slot[s].buf_idx]);
	/* The first one goes: the second takes its place. A sleeper is woken. */
	close(m.fd);
	/* A request is carried out after what was closed before it. */
	struct nm_port_info info = { 0 };
	CHECK(nm_ctrl(fd, PORT_INFO_GET, "vale0:a", &info) == 0);
	int pid = fork(), status;
	CHECK(pid >= 0);
	if (!pid) {
		nm_until_asleep(getppid());
		nm_put(nm_tx(&b, 0), 2, 1, 4);
		CHECK(ioctl(b.fd, NIOCTXSYNC, NULL) == 0 && nm_get(a.fd, nm_rx(&a, 0)) == 4);
		CHECK(ioctl(a.fd, NIOCRXSYNC, NULL) == 0);
		_exit(0);
	}
	CHECK(nm_get(n.fd, nr) == 4 && waitpid(pid, &status, 0) == pid && status == 0);
	CHECK(!has_arrived(&n));
	/* More often than there are rings for, if some were not used again. */
	for (uint32_t i = 0; i < 100; i++) {
		m = watch("vale0:a");
		nm_put(nm_tx(&b, 0), 2, 1, i);
		CHECK(ioctl(b.fd, NIOCTXSYNC, NULL) == 0 && nm_get(a.fd, nm_rx(&a, 0)) == i);
		CHECK(ioctl(a.fd, NIOCRXSYNC, NULL) == 0 && nm_get(n.fd, nr) == i);
		CHECK(ioctl(n.fd, NIOCRXSYNC, NULL) == 0 && nm_get(m.fd, nm_rx(&m, 0)) == i);
		close(m.fd);
	}
	/* Both ends of a pipe, and buffers that come back through it. */
	struct nm p = nm_port("vale0:p{1"), q = nm_port("vale0:p}1"), pm = watch("vale0:p{1"), qm = watch("vale0:p}1");
	for (uint32_t i = 0; i < 5000; i++) {
		nm_put(nm_tx(&p, 0), 1, -1, i);
		CHECK(ioctl(p.fd, NIOCTXSYNC, NULL) == 0 && nm_get(q.fd, nm_rx(&q, 0)) == i);
		CHECK(ioctl(q.fd, NIOCRXSYNC, NULL) == 0 && nm_get(qm.fd, nm_rx(&qm, 0)) == i);
		CHECK(ioctl(p.fd, NIOCTXSYNC, NULL) == 0 && has_arrived(&pm));
		struct nm_ring *pr = nm_rx(&pm, 0);
		CHECK(pr->slot[pr->head].flags & TXMON);
		pr->head = pr->cur = nm_next(pr, pr->head);
	}
	/* Their port goes. */
	close(a.fd);
	struct pollfd gone = { .fd = n.fd, .events = POLLIN };
	while (poll(&gone, 1, 30000) == 1 && !(gone.revents & POLLERR))
		nr->head = nr->cur = nr->tail;
	CHECK(gone.revents & POLLERR);
	a = nm_port("vale0:a");
	CHECK(poll(&gone, 1, -1) == 1 && gone.revents & POLLERR);
	m = watch("vale0:a");
	nm_put(nm_tx(&b, 0), 2, 1, 5);
	CHECK(ioctl(b.fd, NIOCTXSYNC, NULL) == 0 && nm_get(a.fd, nm_rx(&a, 0)) == 5);
	CHECK(ioctl(a.fd, NIOCRXSYNC, NULL) == 0 && nm_get(m.fd, nm_rx(&m, 0)) == 5);
}

static struct nm copier(const char *name, uint64_t of)
{
	struct nm m = nm_port_with(name, (struct nm_register){ .mode = ALL_NIC, .flags = of });
	CHECK(m.reg.flags == of);
	return m;
}

/* Takes the next frame of a monitor; checks its number, and whether it was sent. */
static void seen(struct nm *m, uint32_t number, int sent)
{
	struct nm_ring *r = nm_rx(m, 0);
	CHECK(has_arrived(m) && !(r->slot[r->head].flags & TXMON) == !sent && nm_get(m->fd, r) == number);
}

/* Copying monitors of pipes get frames when they are sent, from the process that sends. */
void pipe_monitors(void)
{
	struct nm p = nm_port("vale0:p{1"), a = nm_port("vale0:a");
	struct nm_register want = { .mode = ALL_NIC, .flags = MONITOR_RX };
	int fd = nm_open(), status;
	FAILS(nm_ctrl(fd, REGISTER, "vale0:p}1", &want), EINVAL);
	struct nm q = nm_port("vale0:p}1");
	struct nm t = copier("vale0:p{1", MONITOR_TX), r = copier("vale0:p{1", MONITOR_RX);
	struct nm both = copier("vale0:p{1", MONITOR_TX | MONITOR_RX), other = copier("vale0:p}1", MONITOR_RX);
	/* They are in the region of the pipe, and cannot be in another one. */
	CHECK(t.reg.mem_id == p.reg.mem_id);
	struct nm b = nm_port("vale1:b");
	want.mem_id = b.reg.mem_id;
	FAILS(nm_ctrl(fd, REGISTER, "vale0:p}1", &want), EOPNOTSUPP);
	struct nm_ring *tx = nm_tx(&p, 0), *rx = nm_rx(&q, 0);
	uint32_t buf = tx->slot[0].buf_idx;
	nm_put(tx, 1, -1, 1);
	CHECK(ioctl(p.fd, NIOCTXSYNC, NULL) == 0);
	CHECK(nm_rx(&t, 0)->slot[0].buf_idx != buf && tx->slot[0].buf_idx == buf);
	seen(&t, 1, 1);
	seen(&both, 1, 1);
	seen(&other, 1, 0);
	CHECK(!has_arrived(&r) && nm_get(q.fd, rx) == 1);
	nm_put(nm_tx(&q, 0), 2, -1, 2);
	CHECK(ioctl(q.fd, NIOCTXSYNC, NULL) == 0);
	seen(&r, 2, 0);
	seen(&both, 2, 0);
	CHECK(!has_arrived(&t) && !has_arrived(&other) && nm_get(p.fd, nm_rx(&p, 0)) == 2);
	/* A frame in several slots, when it is complete. */
	nm_put(tx, 1, -1, 3);
	tx->slot[1].flags = MOREFRAG;
	CHECK(ioctl(p.fd, NIOCTXSYNC, NULL) == 0 && !has_arrived(&t));
	nm_put(tx, 1, -1, 4);
	CHECK(ioctl(p.fd, NIOCTXSYNC, NULL) == 0 && has_arrived(&t));
	CHECK(nm_rx(&t, 0)->slot[1].flags == (MOREFRAG | TXMON) && nm_rx(&t, 0)->slot[2].flags == TXMON);
	seen(&t, 3, 1);
	seen(&t, 4, 1);
	CHECK(nm_get(q.fd, rx) == 3 && nm_get(q.fd, rx) == 4);
	/* Lengths and buffers that make no sense are no frames, and end nothing. */
	nm_put(tx, 1, -1, 5);
	tx->slot[3].len = 0xffff;
	nm_put(tx, 1, -1, 6);
	buf = tx->slot[4].buf_idx;
	tx->slot[4].buf_idx = 0xfffffff0;
	CHECK(ioctl(p.fd, NIOCTXSYNC, NULL) == 0 && has_arrived(&t));
	CHECK(nm_space(nm_rx(&t, 0)) == 1 && nm_rx(&t, 0)->slot[3].len == nm_rx(&t, 0)->nr_buf_size);
	CHECK(ioctl(q.fd, NIOCRXSYNC, NULL) == 0 && nm_space(rx) == 2);
	tx->slot[4].buf_idx = rx->slot[4].buf_idx = buf;
	nm_rx(&t, 0)->head = nm_rx(&t, 0)->cur = 4;
	rx->head = rx->cur = 5;
	CHECK(ioctl(q.fd, NIOCRXSYNC, NULL) == 0 && ioctl(t.fd, NIOCRXSYNC, NULL) == 0);
	/* A sleeper is woken by another process. */
	int pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		nm_until_asleep(getppid());
		nm_put(tx, 1, -1, 7);
		CHECK(ioctl(p.fd, NIOCTXSYNC, NULL) == 0);
		_exit(0);
	}
	CHECK(nm_get(t.fd, nm_rx(&t, 0)) == 7 && waitpid(pid, &status, 0) == pid && status == 0);
	CHECK(nm_get(q.fd, rx) == 7);
	/* A monitor that does not keep up holds nothing up, and has the first frames that fit. */
	for (uint32_t i = 0; i < 3000; i++) {
		nm_put(tx, 1, -1, i);
		CHECK(ioctl(p.fd, NIOCTXSYNC, NULL) == 0 && nm_get(q.fd, rx) == i && ioctl(q.fd, NIOCRXSYNC, NULL) == 0);
	}
	CHECK(has_arrived(&t) && nm_space(nm_rx(&t, 0)) == 1022);
	seen(&t, 0, 1);
	/* The first of the list goes; new ones come to its end, more than there are rings for. */
	close(t.fd);
	nm_rx(&both, 0)->head = nm_rx(&both, 0)->cur = nm_rx(&both, 0)->tail;
	CHECK(ioctl(both.fd, NIOCRXSYNC, NULL) == 0);
	nm_rx(&both, 0)->head = nm_rx(&both, 0)->cur = nm_rx(&both, 0)->tail;
	CHECK(ioctl(both.fd, NIOCRXSYNC, NULL) == 0);
	for (uint32_t i = 0; i < 100; i++) {
		t = copier("vale0:p{1", MONITOR_TX);
		nm_put(tx, 1, -1, i);
		CHECK(ioctl(p.fd, NIOCTXSYNC, NULL) == 0 && nm_get(q.fd, rx) == i);
		seen(&both, i, 1);
		seen(&t, i, 1);
		close(t.fd);
	}
	/* The end that is monitored goes. */
	close(p.fd);
	struct pollfd gone = { .fd = both.fd, .events = POLLIN };
	CHECK(poll(&gone, 1, 30000) == 1 && gone.revents & POLLERR);
	/* A port that is in no switch has its sends monitored, too. */
	struct nm_newif newif = { 0 };
	CHECK(nm_ctrl(fd, VALE_NEWIF, "lone", &newif) == 0);
	struct nm lone = nm_port("lone"), l = copier("lone", MONITOR_TX | MONITOR_RX);
	nm_put(nm_tx(&lone, 0), 1, -1, 8);
	CHECK(ioctl(lone.fd, NIOCTXSYNC, NULL) == 0);
	seen(&l, 8, 1);
	close(a.fd);
}
