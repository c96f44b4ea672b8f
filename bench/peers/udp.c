// SPDX-License-Identifier: MIT OR Apache-2.0
/* Blocking UDP ping-pong over loopback between two threads on two cores: prints the median round trip in microseconds.
 *   udp BYTES SECONDS        asker on core 0, echo on core 1 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_TRIPS = 1 << 20 };
static int echo_fd;
static float trips[MAX_TRIPS];

static void pin(int core)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(core, &set);
	sched_setaffinity(0, sizeof set, &set);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *echo(void *unused)
{
	char data[2048];
	struct sockaddr_in from;

	pin(1);
	for (;;) {
		socklen_t len = sizeof from;
		ssize_t n = recvfrom(echo_fd, data, sizeof data, 0, (struct sockaddr *)&from, &len);
		if (n > 0)
			sendto(echo_fd, data, (size_t)n, 0, (struct sockaddr *)&from, len);
	}
	return unused;
}

static int by_value(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	size_t bytes = argc > 1 ? (size_t)atoi(argv[1]) : 10;
	double seconds = argc > 2 ? atof(argv[2]) : 1, start, from;
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof at;
	int fd = socket(AF_INET, SOCK_DGRAM, 0), n = 0;
	char data[2048] = { 0 };
	pthread_t thread;

	echo_fd = socket(AF_INET, SOCK_DGRAM, 0);
	if (bytes > sizeof data || bind(echo_fd, (struct sockaddr *)&at, len) || getsockname(echo_fd, (struct sockaddr *)&at, &len)
	    || connect(fd, (struct sockaddr *)&at, len)) {
		perror("udp");
		return 1;
	}
	pthread_create(&thread, NULL, echo, NULL);
	pin(0);
	usleep(100000);
	for (start = from = now(); n < MAX_TRIPS && from - start < seconds; n++) {
		if (send(fd, data, bytes, 0) < 0 || recv(fd, data, sizeof data, 0) < 0) {
			perror("udp");
			return 1;
		}
		double to = now();
		trips[n] = (float)(to - from);
		from = to;
	}
	qsort(trips, (size_t)n, sizeof *trips, by_value);
	printf("%.3f\n", trips[n / 2] * 1e6);
	return 0;
}
