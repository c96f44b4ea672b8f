/*
 * Rules of libpcap's interface, one a test: rules NAME [PORT]. Written from pcap(3PCAP); it knows nothing of
 * toklat but the names of ports.
 */
#include <assert.h>
#include <errno.h>
#include <net/if.h>
#include <pcap/pcap.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <unistd.h>

static char err[PCAP_ERRBUF_SIZE];

static pcap_t *open_port(const char *name)
{
	pcap_t *p = pcap_open_live(name, 65535, 1, 10, err);
	if (!p) {
		fprintf(stderr, "%s: %s\n", name, err);
		abort();
	}
	return p;
}

/* A broadcast frame of this length with a number in it. */
static void fill(u_char *frame, int len, int number)
{
	memset(frame, 0, len);
	memset(frame, 0xff, 6);
	frame[6] = 2;
	frame[11] = 9;
	frame[12] = 0x88;
	frame[13] = 0xb5;
	frame[14] = number;
}

static void send_one(pcap_t *p, int len, int number)
{
	u_char frame[1514];
	fill(frame, len, number);
	assert(pcap_inject(p, frame, len) == len);
}

/* The next frame, waited for. */
static const u_char *take(pcap_t *p, struct pcap_pkthdr **h)
{
	const u_char *bytes;
	int got;
	while ((got = pcap_next_ex(p, h, &bytes)) == 0)
		;
	assert(got == 1);
	return bytes;
}

static void states(void)
{
	pcap_t *p = pcap_create("vale0:a", err);
	struct pcap_pkthdr *h;
	const u_char *bytes;
	assert(p);
	assert(pcap_next_ex(p, &h, &bytes) == PCAP_ERROR_NOT_ACTIVATED);
	assert(pcap_inject(p, "x", 1) < 0);
	assert(pcap_set_snaplen(p, 100) == 0 && pcap_set_timeout(p, 20) == 0);
	assert(pcap_set_promisc(p, 1) == 0 && pcap_set_immediate_mode(p, 1) == 0);
	assert(pcap_set_buffer_size(p, 1 << 20) == 0);
	assert(pcap_can_set_rfmon(p) == 0);
	assert(pcap_activate(p) == 0);
	assert(pcap_activate(p) == PCAP_ERROR_ACTIVATED);
	assert(pcap_set_snaplen(p, 100) == PCAP_ERROR_ACTIVATED);
	assert(pcap_snapshot(p) == 100);
	assert(pcap_datalink(p) == DLT_EN10MB);
	assert(pcap_set_datalink(p, DLT_EN10MB) == 0 && pcap_set_datalink(p, DLT_RAW) < 0);
	assert(pcap_next_ex(p, &h, &bytes) == 0); /* the time is over */
	pcap_close(p);
	/* Both names of a port are one, and a name is free after the close. */
	p = open_port("vale0.a");
	pcap_close(p);
}

static void errors(void)
{
	pcap_t *p = pcap_create("netmap:eth0", err);
	assert(p && pcap_activate(p) == PCAP_ERROR_NO_SUCH_DEVICE);
	assert(strstr(pcap_geterr(p), "switch:port"));
	pcap_close(p);
	assert(!pcap_open_live("netmap:eth0", 100, 0, 0, err) && strlen(err) > 0);
	p = open_port("vale0:a");
	struct bpf_program f;
	assert(pcap_compile(p, &f, "no such thing", 1, 0) < 0);
	assert(strlen(pcap_geterr(p)) > 0);
	struct bpf_insn endless = {BPF_JMP | BPF_JA, 0, 0, (bpf_u_int32)-1};
	struct bpf_program bad = {1, &endless}, empty = {0, NULL};
	assert(pcap_setfilter(p, &bad) < 0 && strstr(pcap_geterr(p), "filter"));
	assert(pcap_setfilter(p, &empty) < 0);
	assert(pcap_inject(p, "", 0) < 0);
	static u_char large[1 << 20];
	assert(pcap_inject(p, large, sizeof(large)) < 0);
	assert(pcap_setdirection(p, PCAP_D_OUT) < 0 && pcap_setdirection(p, PCAP_D_IN) == 0);
	/* It still works. */
	pcap_t *q = open_port("vale0:b");
	struct pcap_pkthdr *h;
	send_one(q, 60, 7);
	assert(take(p, &h)[14] == 7 && h->len == 60);
	pcap_close(q);
	pcap_close(p);
}

static void filters(void)
{
	pcap_t *p = open_port("vale0:a"), *q = open_port("vale0:b");
	struct bpf_program f;
	struct pcap_pkthdr *h;
	struct pcap_stat stats;
	assert(pcap_compile(p, &f, "ether[14] = 3 and greater 70", 1, PCAP_NETMASK_UNKNOWN) == 0);
	assert(pcap_setfilter(p, &f) == 0);
	pcap_freecode(&f);
	send_one(q, 60, 3);
	send_one(q, 80, 2);
	send_one(q, 80, 3);
	assert(take(p, &h)[14] == 3 && h->len == 80);
	assert(pcap_stats(p, &stats) == 0 && stats.ps_recv == 1 && stats.ps_drop == 0);
	pcap_close(q);
	pcap_close(p);
}

/* What libpcap asks the system about a frame is answered, or refused by its name. */
static void metadata(void)
{
	pcap_t *p = open_port("vale0:a"), *q = open_port("vale0:b");
	struct bpf_program f;
	struct pcap_pkthdr *h;
	char here[40], there[40];
	snprintf(here, sizeof(here), "ifindex %u", if_nametoindex("vale0.a"));
	snprintf(there, sizeof(there), "ifindex %u or outbound", if_nametoindex("vale0.b"));
	const char *texts[] = {"inbound", "inbound or udp", here, there};
	for (int i = 0; i < 4; i++) {
		assert(pcap_compile(p, &f, texts[i], 1, PCAP_NETMASK_UNKNOWN) == 0);
		assert(pcap_setfilter(p, &f) == 0);
		pcap_freecode(&f);
		send_one(q, 60, i);
		if (i < 3)
			assert(take(p, &h)[14] == i);
	}
	const u_char *bytes;
	assert(pcap_next_ex(p, &h, &bytes) == 0);
	struct bpf_insn code[] = {{BPF_LD | BPF_W | BPF_ABS, 0, 0, -0x1000 + 36}, {BPF_RET | BPF_A, 0, 0, 0}};
	struct bpf_program cpu = {2, code};
	assert(pcap_setfilter(p, &cpu) < 0 && strstr(pcap_geterr(p), "SKF_AD_CPU"));
	pcap_close(q);
	pcap_close(p);
}

static int seen;

static void count(u_char *user, const struct pcap_pkthdr *h, const u_char *bytes)
{
	assert(h->caplen == 40 && h->len == 60 && bytes[14] == seen);
	if (++seen == 3)
		pcap_breakloop((pcap_t *)user);
}

static void loops(void)
{
	pcap_t *p = pcap_open_live("vale0:a", 40, 0, 10, err), *q = open_port("vale0:b");
	for (int i = 0; i < 5; i++)
		send_one(q, 60, i);
	assert(pcap_loop(p, -1, count, (u_char *)p) == PCAP_ERROR_BREAK && seen == 3);
	int got = 0, n;
	while (got < 2 && (n = pcap_dispatch(p, 1, count, (u_char *)p)) >= 0)
		got += n;
	assert(seen == 5);
	seen = 0;
	for (int i = 0; i < 2; i++)
		send_one(q, 60, i);
	assert(pcap_loop(p, 2, count, (u_char *)p) == 0 && seen == 2);
	pcap_close(q);
	pcap_close(p);
}

static pcap_t *broken;

static void on_signal(int number)
{
	pcap_breakloop(broken);
}

static void signals(void)
{
	broken = pcap_create("vale0:a", err);
	assert(pcap_set_timeout(broken, 0) == 0 && pcap_activate(broken) == 0);
	struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
	sigaction(SIGALRM, &action, NULL);
	ualarm(50000, 0);
	assert(pcap_loop(broken, -1, count, NULL) == PCAP_ERROR_BREAK);
	pcap_close(broken);
}

static int readable(int fd, int ms)
{
	struct pollfd list = {fd, POLLIN};
	fd_set set;
	struct timeval now = {0, 0};
	int by_poll = poll(&list, 1, ms);
	FD_ZERO(&set);
	FD_SET(fd, &set);
	assert(select(fd + 1, &set, NULL, NULL, &now) == by_poll);
	return by_poll;
}

static void selectable(void)
{
	pcap_t *p = open_port("vale0:a"), *q = open_port("vale0:b");
	struct pcap_pkthdr *h;
	const u_char *bytes;
	assert(pcap_getnonblock(p, err) == 0);
	assert(pcap_setnonblock(p, 1, err) == 0 && pcap_getnonblock(p, err) == 1);
	int fd = pcap_get_selectable_fd(p);
	assert(fd >= 0 && fd < FD_SETSIZE && !readable(fd, 0));
	assert(pcap_next_ex(p, &h, &bytes) == 0);
	for (int round = 0; round < 3; round++) {
		send_one(q, 60, 1);
		send_one(q, 60, 2);
		for (int got = 0; got < 2; got++) {
			assert(readable(fd, 10000) == 1);
			while (pcap_next_ex(p, &h, &bytes) != 1)
				assert(readable(fd, 10000) == 1);
		}
		assert(pcap_next_ex(p, &h, &bytes) == 0);
		assert(!readable(fd, 0));
	}
	pcap_close(q);
	pcap_close(p);
}

static void files(const char *path)
{
	pcap_t *p = pcap_create("vale0:a", err), *q = open_port("vale0:b");
	struct pcap_pkthdr *h, from_file;
	assert(pcap_set_snaplen(p, 96) == 0 && pcap_set_timeout(p, 10) == 0);
	assert(pcap_set_tstamp_precision(p, PCAP_TSTAMP_PRECISION_NANO) == 0);
	assert(pcap_activate(p) == 0);
	assert(pcap_get_tstamp_precision(p) == PCAP_TSTAMP_PRECISION_NANO);
	pcap_dumper_t *file = pcap_dump_open(p, path);
	assert(file);
	send_one(q, 200, 5);
	const u_char *bytes = take(p, &h);
	assert(h->caplen == 96 && h->len == 200 && h->ts.tv_sec > 1000000000);
	pcap_dump((u_char *)file, h, bytes);
	pcap_dump_close(file);
	pcap_close(q);
	pcap_close(p);
	/* Files and handles of libpcap's own are as they were. */
	p = pcap_open_offline_with_tstamp_precision(path, PCAP_TSTAMP_PRECISION_NANO, err);
	assert(p && pcap_snapshot(p) == 96);
	bytes = pcap_next(p, &from_file);
	assert(bytes && bytes[14] == 5 && from_file.caplen == 96 && from_file.len == 200);
	assert(pcap_next(p, &from_file) == NULL);
	pcap_close(p);
}

static void lists(void)
{
	pcap_if_t *all, *at;
	int found = 0;
	pcap_t *p = open_port("vale0:listed");
	assert(pcap_findalldevs(&all, err) == 0);
	for (at = all; at; at = at->next)
		found += strcmp(at->name, "vale0:listed") == 0;
	assert(found == 1);
	pcap_freealldevs(all);
	pcap_close(p);
}

static void shared(void)
{
	/* Two handles of one port: both get each frame. */
	pcap_t *p = open_port("vale0:a"), *also = open_port("vale0:a"), *q = open_port("vale0:b");
	struct pcap_pkthdr *h;
	send_one(q, 60, 4);
	assert(take(p, &h)[14] == 4 && take(also, &h)[14] == 4);
	pcap_close(p);
	send_one(q, 60, 5);
	assert(take(also, &h)[14] == 5);
	pcap_close(also);
	pcap_close(q);
}

static void forks(void)
{
	pcap_t *p = open_port("vale0:a"), *q = open_port("vale0:b");
	struct pcap_pkthdr *h;
	pid_t child = fork();
	if (child == 0) {
		/* A daemon goes on in the child. */
		pcap_t *other = open_port("vale0:c");
		send_one(other, 60, 6);
		pcap_close(other);
		_exit(0);
	}
	int status;
	assert(waitpid(child, &status, 0) == child && status == 0);
	assert(take(p, &h)[14] == 6);
	pcap_close(q);
	pcap_close(p);
}

/* Ends at once after it has sent: nothing is lost. */
static void leaves(void)
{
	pcap_t *q = open_port("vale0:b");
	for (int i = 0; i < 500; i++)
		send_one(q, 60, 1);
	exit(0);
}

/* Waits until the port is gone. */
static void waits(void)
{
	pcap_t *p = pcap_open_live("vale0:a", 100, 0, 0, err);
	struct pcap_pkthdr *h;
	const u_char *bytes;
	int got;
	puts("ready");
	fflush(stdout);
	while ((got = pcap_next_ex(p, &h, &bytes)) >= 0)
		;
	puts(pcap_geterr(p));
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*test)(void);
	} rules[] = {
		{"states", states}, {"errors", errors}, {"filters", filters}, {"metadata", metadata}, {"loops", loops},
		{"signals", signals}, {"selectable", selectable}, {"lists", lists}, {"shared", shared},
		{"forks", forks}, {"leaves", leaves}, {"waits", waits},
	};
	if (argc == 3 && !strcmp(argv[1], "files")) {
		files(argv[2]);
		return 0;
	}
	for (size_t i = 0; argc > 1 && i < sizeof(rules) / sizeof(*rules); i++)
		if (!strcmp(argv[1], rules[i].name)) {
			rules[i].test();
			return 0;
		}
	return 2;
}
