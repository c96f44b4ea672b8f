/*
 * answer IF [fork]: answers requests of `toklat ping` (EtherType 0x88b5, then 'p', 'q'), in their own buffers, until a
 * frame comes from station 02:00:00:00:01:01; one from 02:00:00:00:01:02 kills it. With "fork" a child does it, after its parent has used the port.
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

int main(int argc, char **argv)
{
	CHECK(argc == 2 || argc == 3);
	struct nm d = nm_port(argv[1]);
	struct nm_ring *r = nm_rx(&d, 0), *t = nm_tx(&d, 0);
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
