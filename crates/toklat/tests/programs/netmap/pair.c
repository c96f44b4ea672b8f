/* Two ports of one switch in one process: frames, readiness, order. */
#include "nm.h"

int main(void)
{
	struct nm a = nm_port("vale0:a"), b = nm_port("vale0:b");
	struct nm_ring *tx = nm_tx(&a, 0), *rx = nm_rx(&b, 0);
	struct pollfd p = { .fd = b.fd, .events = POLLIN };
	CHECK(poll(&p, 1, 0) == 0);
	nm_put(tx, 1, -1, 7);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
	/* On return all was taken. */
	CHECK(tx->tail == (tx->head + tx->num_slots - 1) % tx->num_slots);
	CHECK(nm_get(b.fd, rx) == 7);
	for (uint32_t n = 0; n < 100000; n++) {
		if (nm_space(tx) == 0) {
			struct pollfd q = { .fd = a.fd, .events = POLLOUT };
			CHECK(poll(&q, 1, 30000) == 1 && q.revents == POLLOUT);
		}
		nm_put(tx, 1, 2, n);
		if (n % 64 == 63 || n == 99999) {
			CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
			for (uint32_t m = n / 64 * 64; m <= n; m++)
				CHECK(nm_get(b.fd, rx) == m);
		}
	}
	puts("ok");
	return 0;
}
