/*
 * measure rtt [PORT PORT]: round trips between two processes, both asleep in poll(); without ports over UDP.
 * measure calls: what poll, read and close of other descriptors cost.
 */
#include "nm.h"
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

enum { ROUNDS = 20000, CALLS = 2000000 };

static void echo(const char *port, int first)
{
	struct nm d = nm_port(port);
	if (first)
		usleep(200000);
	double start = now();
	for (uint32_t n = 0; n < ROUNDS; n++) {
		if (!first)
			nm_get(d.fd, nm_rx(&d, 0));
		nm_put(nm_tx(&d, 0), first ? 1 : 2, -1, n);
		if (first)
			nm_get(d.fd, nm_rx(&d, 0));
	}
	struct pollfd p = { .fd = d.fd };
	CHECK(poll(&p, 1, 0) == 0);
	if (first)
		printf("rtt %s: %.2f us\n", port, (now() - start) / ROUNDS / 1e3);
}

static void udp(int first)
{
	int s = socket(AF_INET, SOCK_DGRAM, 0);
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) }, b = a;
	a.sin_port = htons(first ? 41001 : 41002);
	b.sin_port = htons(first ? 41002 : 41001);
	CHECK(bind(s, (void *)&a, sizeof(a)) == 0 && connect(s, (void *)&b, sizeof(b)) == 0);
	if (first)
		usleep(200000);
	char frame[60] = { 0 };
	double start = now();
	for (int n = 0; n < ROUNDS; n++) {
		if (first)
			CHECK(send(s, frame, 60, 0) == 60);
		CHECK(recv(s, frame, 60, 0) == 60);
		if (!first)
			CHECK(send(s, frame, 60, 0) == 60);
	}
	if (first)
		printf("rtt udp: %.2f us\n", (now() - start) / ROUNDS / 1e3);
}

static void calls(void)
{
	int p[2];
	CHECK(pipe(p) == 0);
	struct pollfd f = { .fd = p[0], .events = POLLIN };
	double start = now();
	for (int n = 0; n < CALLS; n++)
		poll(&f, 1, 0);
	printf("poll %.1f ns", (now() - start) / CALLS);
	start = now();
	for (int n = 0; n < CALLS; n++)
		close(-1);
	printf(", close %.1f ns\n", (now() - start) / CALLS);
}

int main(int argc, char **argv)
{
	if (!strcmp(argv[1], "calls"))
		return calls(), 0;
	int pid = fork();
	if (argc > 3)
		echo(argv[pid ? 2 : 3], !!pid);
	else
		udp(!!pid);
	if (pid)
		waitpid(pid, NULL, 0);
	return 0;
}
