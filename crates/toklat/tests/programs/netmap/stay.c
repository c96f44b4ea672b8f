/*
 * stay PORT: waits for frames and says their numbers, until the port is gone.
 * stay PORT send: sends frames for ever.
 */
#include "nm.h"

static void send_for_ever(struct nm *d)
{
	for (uint32_t n = 0;; n++) {
		struct nm_ring *t = nm_tx(d, 0);
		if (nm_space(t) == 0) {
			struct pollfd p = { .fd = d->fd, .events = POLLOUT };
			CHECK(poll(&p, 1, -1) == 1 && p.revents == POLLOUT);
		}
		nm_put(t, 1, 2, n);
		if (n % 32 == 0)
			CHECK(ioctl(d->fd, NIOCTXSYNC, NULL) == 0);
	}
}

int main(int argc, char **argv)
{
	struct nm d = nm_port(argv[1]);
	puts("ready");
	fflush(stdout);
	if (argc > 2)
		send_for_ever(&d);
	for (;;) {
		struct pollfd p = { .fd = d.fd, .events = POLLIN };
		CHECK(poll(&p, 1, -1) == 1);
		if (p.revents & POLLERR)
			break;
		struct nm_ring *r = nm_rx(&d, 0);
		while (nm_space(r))
			printf("%u\n", nm_get(d.fd, r));
		fflush(stdout);
	}
	FAILS(ioctl(d.fd, NIOCTXSYNC, NULL), ENXIO);
	FAILS(ioctl(d.fd, NIOCRXSYNC, NULL), ENXIO);
	/* Its memory is still there. */
	CHECK(nm_rx(&d, 0)->num_slots == 1024);
	puts("gone");
	fflush(stdout);
	/* It does not end before it is told to. */
	getchar();
	return 0;
}
