// SPDX-License-Identifier: MIT OR Apache-2.0
/* Sends Ethernet frames into an interface by AF_PACKET, 64 in a system call, and prints what a frame cost this thread: with
 * the kernel's VXLAN between veth pairs that is encapsulation, hand-over and decapsulation.
 *   vx INTERFACE SHORTEST LONGEST SECONDS        lengths go round from the shortest to the longest */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { BATCH = 64, LONGEST = 2048 };

static double seconds(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	static unsigned char frame[LONGEST] = { 2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 0x88, 0xb5 };
	struct sockaddr_ll to = { .sll_family = AF_PACKET };
	struct mmsghdr messages[BATCH];
	struct iovec parts[BATCH];
	unsigned long frames = 0, failed = 0, next = 0;

	if (argc != 5)
		return 2;
	int shortest = atoi(argv[2]), longest = atoi(argv[3]), socket_fd = socket(AF_PACKET, SOCK_RAW, 0);
	to.sll_ifindex = if_nametoindex(argv[1]);
	if (socket_fd < 0 || !to.sll_ifindex || shortest < 14 || longest > LONGEST || longest < shortest) {
		perror("cannot send there");
		return 1;
	}
	bind(socket_fd, (void *)&to, sizeof to);
	double end = seconds(CLOCK_MONOTONIC) + atof(argv[4]), before = seconds(CLOCK_THREAD_CPUTIME_ID);
	while (seconds(CLOCK_MONOTONIC) < end) {
		memset(messages, 0, sizeof messages);
		for (int i = 0; i < BATCH; i++) {
			parts[i] = (struct iovec){ frame, shortest + next++ % (longest - shortest + 1) };
			messages[i].msg_hdr.msg_iov = &parts[i];
			messages[i].msg_hdr.msg_iovlen = 1;
		}
		int sent = sendmmsg(socket_fd, messages, BATCH, 0);
		if (sent > 0)
			frames += sent;
		else if (++failed > 1000000)
			break;
	}
	if (!frames) {
		perror("no frame was sent");
		return 1;
	}
	double cost = (seconds(CLOCK_THREAD_CPUTIME_ID) - before) / frames * 1e9;
	printf("{\"value\": %.1f, \"frames\": %lu}\n", cost, frames);
	return 0;
}
