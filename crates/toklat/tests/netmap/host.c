/*
 * host bridge IF: joins an interface and the host behind it, as netmap's bridge does: slots change rings, buffers are
 * swapped.
 * host transparent IF: takes UDP frames to port 9 for itself, and has all else forwarded both ways by NS_FORWARD.
 *
 * Both print "ready", and then the number of frames taken whenever it grows.
 */
#include "nm.h"

#define NR_FORWARD 4
#define NS_FORWARD 4

static uint32_t taken;

static struct nm_ring *host_rx(struct nm *d)
{
	return nm_ring_at(d, d->nifp->ni_tx_rings + d->nifp->ni_host_tx_rings + d->nifp->ni_rx_rings);
}

static void move(struct nm_ring *from, struct nm_ring *to)
{
	while (nm_space(from) && nm_space(to)) {
		struct nm_slot *f = &from->slot[from->head], *t = &to->slot[to->head];
		uint32_t buf = t->buf_idx;
		t->buf_idx = f->buf_idx;
		t->len = f->len;
		f->buf_idx = buf;
		f->flags = t->flags = BUF_CHANGED;
		from->head = from->cur = nm_next(from, from->head);
		to->head = to->cur = nm_next(to, to->head);
	}
}

static void bridge(const char *name)
{
	struct nm nic = nm_port(name), host = nm_port_with(name, (struct nm_register){ .mode = SW });
	CHECK(nic.reg.mem_id == host.reg.mem_id && host.reg.host_tx_rings == 1 && host.reg.host_rx_rings == 1);
	struct nm_ring *above = (struct nm_ring *)((char *)nic.mem + ((char *)nm_ring_at(&host, 1) - host.mem));
	struct nm_ring *above_rx = (struct nm_ring *)((char *)nic.mem + ((char *)host_rx(&host) - host.mem));
	CHECK(host.nifp->ring_ofs[0] == 0 && nic.nifp->ring_ofs[1] == 0 && above->ringid == 1);
	puts("ready");
	fflush(stdout);
	for (;;) {
		struct pollfd p[2] = { { .fd = nic.fd, .events = POLLIN }, { .fd = host.fd, .events = POLLIN } };
		CHECK(poll(p, 2, -1) >= 0 && !((p[0].revents | p[1].revents) & POLLERR));
		move(nm_rx(&nic, 0), above);
		move(above_rx, nm_tx(&nic, 0));
		CHECK(ioctl(nic.fd, NIOCTXSYNC, NULL) == 0 && ioctl(host.fd, NIOCTXSYNC, NULL) == 0);
	}
}

static int is_ours(struct nm_ring *r, struct nm_slot *s)
{
	unsigned char *at = (unsigned char *)nm_buf(r, s->buf_idx);
	return s->len >= 42 && at[12] == 8 && at[13] == 0 && at[23] == 17 && at[36] == 0 && at[37] == 9;
}

static void release(struct nm_ring *r)
{
	uint32_t before = taken;
	while (nm_space(r)) {
		struct nm_slot *s = &r->slot[r->head];
		if (is_ours(r, s))
			taken++;
		else
			s->flags |= NS_FORWARD;
		r->head = r->cur = nm_next(r, r->head);
	}
	if (taken != before) {
		printf("%u\n", taken);
		fflush(stdout);
	}
}

static void transparent(const char *name)
{
	struct nm d = nm_port_with(name, (struct nm_register){ .mode = NIC_SW });
	struct nm_ring *rx = nm_rx(&d, 0), *above = host_rx(&d);
	rx->flags |= NR_FORWARD;
	above->flags |= NR_FORWARD;
	puts("ready");
	fflush(stdout);
	for (;;) {
		struct pollfd p = { .fd = d.fd, .events = POLLIN };
		CHECK(poll(&p, 1, -1) >= 0 && !(p.revents & POLLERR));
		release(rx);
		release(above);
	}
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	if (!strcmp(argv[1], "bridge"))
		bridge(argv[2]);
	transparent(argv[2]);
}
