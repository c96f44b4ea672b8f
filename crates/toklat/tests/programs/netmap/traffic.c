/* traffic send PORT COUNT LEN BATCH | traffic receive PORT COUNT: two processes, as fast as it goes. */
#include "nm.h"
#include <time.h>

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static void send_all(const char *port, uint64_t count, int len, uint32_t batch)
{
	struct nm d = nm_port(port);
	struct nm_ring *r = nm_tx(&d, 0);
	for (uint32_t i = 0; i < r->num_slots; i++)
		nm_frame(nm_buf(r, r->slot[i].buf_idx), 1, 2, i);
	double start = now();
	for (uint64_t sent = 0; sent < count;) {
		struct pollfd p = { .fd = d.fd, .events = POLLOUT };
		CHECK(poll(&p, 1, 30000) == 1 && p.revents == POLLOUT);
		uint32_t n = nm_space(r);
		n = n > batch ? batch : n;
		for (; n > 0 && sent < count; n--, sent++) {
			r->slot[r->head].len = len;
			r->slot[r->head].flags = 0;
			r->head = nm_next(r, r->head);
		}
		r->cur = r->head;
	}
	do {
		CHECK(ioctl(d.fd, NIOCTXSYNC, NULL) == 0);
	} while (r->tail != (r->head + r->num_slots - 1) % r->num_slots);
	double took = now() - start;
	printf("sent %llu in %.3f s: %.2f Mpps\n", (unsigned long long)count, took, count / took / 1e6);
}

static void receive_all(const char *port, uint64_t count)
{
	struct nm d = nm_port(port);
	struct nm_ring *r = nm_rx(&d, 0);
	struct nm_ring *t = nm_tx(&d, 0);
	/* The switch learns where this station is. */
	nm_put(t, 2, -1, 0);
	CHECK(ioctl(d.fd, NIOCTXSYNC, NULL) == 0);
	puts("ready");
	fflush(stdout);
	uint64_t got = 0;
	double start = 0, last = 0;
	while (got < count) {
		struct pollfd p = { .fd = d.fd, .events = POLLIN };
		int n = poll(&p, 1, start ? 1000 : 30000);
		if (n == 0)
			break;
		CHECK(n == 1 && p.revents == POLLIN);
		if (!start)
			start = now();
		got += nm_space(r);
		last = now();
		r->head = r->cur = r->tail;
	}
	/* A pipe's writer waits for what was read to be given back. */
	CHECK(ioctl(d.fd, NIOCRXSYNC, NULL) == 0);
	double took = last - start;
	printf("received %llu: %.2f Mpps\n", (unsigned long long)got, got / took / 1e6);
}

int main(int argc, char **argv)
{
	CHECK(argc > 3);
	if (!strcmp(argv[1], "send"))
		send_all(argv[2], strtoull(argv[3], NULL, 10), atoi(argv[4]), atoi(argv[5]));
	else
		receive_all(argv[2], strtoull(argv[3], NULL, 10));
	return 0;
}
