/*
 * pcap SEND RECEIVE SECONDS: frames of 64 bytes from one device to another through libpcap, in one thread, and
 * those that pass a filter. Prints millions of received frames a second. It knows libpcap alone.
 */
#define _GNU_SOURCE
#include <pcap/pcap.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LEN = 60, BURST = 64, WINDOW = 512 };

static const char *filter = "udp dst port 9 and src host 10.0.0.1";
static unsigned long received;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static pcap_t *open_device(const char *name)
{
	char err[PCAP_ERRBUF_SIZE] = "";
	pcap_t *p = pcap_create(name, err);
	if (!p || pcap_set_snaplen(p, 96) || pcap_set_timeout(p, 10) || pcap_set_immediate_mode(p, 1) ||
	    pcap_set_promisc(p, 1) || pcap_set_buffer_size(p, 16 << 20) || pcap_activate(p) < 0) {
		fprintf(stderr, "%s: %s\n", name, p ? pcap_geterr(p) : err);
		exit(1);
	}
	return p;
}

static void count(u_char *user, const struct pcap_pkthdr *h, const u_char *bytes)
{
	received += h->caplen == LEN && bytes[13] == 0;
}

int main(int argc, char **argv)
{
	cpu_set_t cpu;
	CPU_ZERO(&cpu);
	CPU_SET(0, &cpu);
	sched_setaffinity(0, sizeof(cpu), &cpu);
	if (argc != 4)
		return 2;
	pcap_t *out = open_device(argv[1]), *in = open_device(argv[2]);
	double seconds = atof(argv[3]);
	static u_char frame[LEN] = {2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, LEN - 14, 0, 0, 0, 0,
				    64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 9, 0, 9, 0, LEN - 34};
	u_char back[LEN];
	memcpy(back, frame, LEN);
	back[5] = 1;
	back[11] = 2;
	back[29] = 2;
	if (pcap_inject(in, back, LEN) != LEN) /* a switch learns where the receiver is */
		return 1;
	struct bpf_program program;
	char err[PCAP_ERRBUF_SIZE];
	if (pcap_compile(in, &program, filter, 1, PCAP_NETMASK_UNKNOWN) || pcap_setfilter(in, &program) ||
	    pcap_setnonblock(in, 1, err)) {
		fprintf(stderr, "%s\n", pcap_geterr(in));
		return 1;
	}
	unsigned long sent = 0, first = 0;
	double start = now(), begin = 0, end;
	do {
		for (int i = 0; i < BURST && sent - received < WINDOW; i++)
			if (pcap_inject(out, frame, LEN) == LEN)
				sent++;
		int got = pcap_dispatch(in, -1, count, NULL);
		if (got == 0 && sent - received >= WINDOW)
			sched_yield();
		end = now();
		if (!begin && end - start > seconds / 5) { /* warm */
			begin = end;
			first = received;
		}
	} while (end - start < seconds);
	printf("%f\n", (received - first) / (end - begin) / 1e6);
	return 0;
}
