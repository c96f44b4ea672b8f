/*
 * host bridge IF: joins an interface and the host behind it, as netmap's bridge does: slots change rings, buffers are
 * swapped.
 * host transparent IF: takes UDP frames to port 9 for itself, and has all else forwarded both ways by NS_FORWARD.
 * host release IF: releases all frames as they are, without NR_FORWARD and NS_FORWARD.
 * host watch IF copy|sent|released: monitors the rings of the interface and its host rings, until it has seen echo
 * requests and replies in both: copies of all, or without a copy what the program sends. Or until it has seen, without a
 * copy, any slot that the program releases as it was received.
 *
 * All print "ready"; then the second prints the number of frames taken whenever it grows, and the last "seen".
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
		nm_swap(&from->slot[from->head], &to->slot[to->head]);
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

static void release_all(const char *name)
{
	struct nm d = nm_port_with(name, (struct nm_register){ .mode = NIC_SW });
	struct nm_ring *rings[2] = { nm_rx(&d, 0), host_rx(&d) };
	puts("ready");
	fflush(stdout);
	for (;;) {
		struct pollfd p = { .fd = d.fd, .events = POLLIN };
		CHECK(poll(&p, 1, -1) >= 0 && !(p.revents & POLLERR));
		for (int i = 0; i < 2; i++)
			rings[i]->head = rings[i]->cur = rings[i]->tail;
	}
}

/* Notes requests, replies and others in a ring of a monitor, by whether the program sends or receives them. */
static void note(struct nm_ring *r, int zero_copy, int seen[2][3])
{
	for (; nm_space(r); r->head = r->cur = nm_next(r, r->head)) {
		struct nm_slot *s = &r->slot[r->head];
		unsigned char *at = (unsigned char *)nm_buf(r, s->buf_idx);
		int sent = zero_copy && s->flags & TXMON;
		CHECK(s->len <= r->nr_buf_size);
		if (s->len < 42)
			continue;
		seen[sent][2] |= (at[12] == 8 && (at[13] == 0 || at[13] == 6)) || (at[12] == 0x86 && at[13] == 0xdd);
		if (at[12] == 8 && at[13] == 0 && at[23] == 1 && (at[34] == 8 || at[34] == 0))
			seen[sent][at[34] == 8] = 1;
	}
}

static void watch(const char *name, const char *how)
{
	int zero_copy = strcmp(how, "copy"), released = !strcmp(how, "released");
	struct nm_register reg = { .mode = NIC_SW, .flags = MONITOR_TX | MONITOR_RX | (zero_copy ? ZCOPY_MON : 0) };
	struct nm d = nm_port_with(name, reg), host;
	reg.mode = SW;
	reg.flags &= ~MONITOR_TX | (zero_copy ? MONITOR_TX : 0);
	host = nm_port_with(name, reg);
	CHECK(d.nifp->ni_host_rx_rings == 1 && host.nifp->ring_ofs[0] == 0);
	int nic[2][3] = { 0 }, above[2][3] = { 0 }, other[2][3] = { 0 };
	puts("ready");
	fflush(stdout);
	for (;;) {
		/* A host that asks the far end: what comes from the host, and what goes to it. */
		int copied = nic[0][1] && nic[0][0] && above[0][1] && above[0][0] && other[0][1];
		int sent = nic[1][1] && above[1][0] && other[1][0];
		int given = nic[0][2] && above[0][2] && other[0][2];
		if (released ? given : zero_copy ? sent : copied)
			break;
		struct pollfd p[2] = { { .fd = d.fd, .events = POLLIN }, { .fd = host.fd, .events = POLLIN } };
		CHECK(poll(p, 2, -1) >= 0 && !((p[0].revents | p[1].revents) & POLLERR));
		note(nm_rx(&d, 0), zero_copy, nic);
		note(host_rx(&d), zero_copy, above);
		note(host_rx(&host), zero_copy, other);
	}
	puts("seen");
}

int main(int argc, char **argv)
{
	CHECK(argc >= 3);
	if (!strcmp(argv[1], "bridge"))
		bridge(argv[2]);
	else if (!strcmp(argv[1], "transparent"))
		transparent(argv[2]);
	else if (!strcmp(argv[1], "release"))
		release_all(argv[2]);
	else
		watch(argv[2], argv[3]);
}
