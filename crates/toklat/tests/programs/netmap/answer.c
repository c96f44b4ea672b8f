/*
 * answer IF [fork | flood]: answers requests of `toklat ping` (EtherType 0x88b5, then 'p', 'q'), in their own buffers, until a
 * frame comes from station 02:00:00:00:01:01; one from 02:00:00:00:01:02 kills it. With "fork" a child does it,
 * after its parent has used the port. "flood" sends 600 numbered frames instead.
 */
#include "nm.h"
#include <signal.h>
#include <sys/wait.h>

/* Makes a reply of a request; returns 0 if it is none. */
static int answer(char *at, uint32_t len)
{
	char station[6];
	if (len < 24 || memcmp(at + 12, "\x88\xb5pq", 4))
		return 0;
	memcpy(station, at, 6);
	memcpy(at, at + 6, 6);
	memcpy(at + 6, station, 6);
	at[15] = 'r';
	return 1;
}

/* Sends numbered frames (EtherType 0x88b6), more than the ring holds, and waits until all are sent. */
static int flood(struct nm *d)
{
	struct nm_ring *t = nm_tx(d, 0);
	for (uint32_t n = 0; n < 600;) {
		struct pollfd p = { .fd = d->fd, .events = POLLOUT };
		CHECK(poll(&p, 1, -1) == 1 && !(p.revents & POLLERR));
		for (; nm_space(t) && n < 600; n++) {
			struct nm_slot *to = &t->slot[t->head];
			char *at = nm_buf(t, to->buf_idx);
			memset(at, 0, 60);
			memcpy(at, "\2\0\0\0\0\2\2\0\0\0\0\1\x88\xb6", 14);
			memcpy(at + 14, &n, 4);
			to->len = 60;
			t->head = t->cur = nm_next(t, t->head);
		}
	}
	do
		CHECK(ioctl(d->fd, NIOCTXSYNC, NULL) == 0);
	while (nm_space(t) + 1 != t->num_slots);
	return 0;
}

int main(int argc, char **argv)
{
	CHECK(argc == 2 || argc == 3);
	struct nm d = nm_port(argv[1]);
	struct nm_ring *r = nm_rx(&d, 0), *t = nm_tx(&d, 0);
	if (argc == 3 && !strcmp(argv[2], "flood"))
		return flood(&d);
	if (argc == 3) {
		int status;
		CHECK(ioctl(d.fd, NIOCRXSYNC, NULL) == 0);
		pid_t child = fork();
		CHECK(child >= 0);
		if (child) {
			CHECK(waitpid(child, &status, 0) == child);
			return status != 0;
		}
	}
	for (;;) {
		/* Replies wait for room. */
		struct pollfd p = { .fd = d.fd, .events = nm_space(r) ? POLLOUT : POLLIN };
		CHECK(poll(&p, 1, -1) == 1 && !(p.revents & POLLERR));
		while (nm_space(r) && nm_space(t)) {
			struct nm_slot *from = &r->slot[r->head], *to = &t->slot[t->head];
			char *at = nm_buf(r, from->buf_idx);
			if (from->len >= 14 && !memcmp(at + 6, "\2\0\0\0\1\1", 6))
				return 0;
			if (from->len >= 14 && !memcmp(at + 6, "\2\0\0\0\1\2", 6))
				kill(getpid(), SIGKILL);
			if (answer(at, from->len)) {
				nm_swap(from, to);
				t->head = t->cur = nm_next(t, t->head);
			}
			r->head = r->cur = nm_next(r, r->head);
		}
		CHECK(ioctl(d.fd, NIOCTXSYNC, NULL) == 0);
	}
}
