/*
 * netmap MODE SECONDS ...: what programs that know netmap's public interface alone get. Prints one number.
 *
 *   ports SEND RECEIVE LEN BATCH SLOTS   Mpps from one port to another, both in one thread on core 0
 *   two   SEND RECEIVE                   Mpps of 64-byte frames between two processes: sender on core 1, receiver on core 0
 *   pipe  SEND RECEIVE                   Mpps of 64-byte slots, sender on core 1, receiver on core 0; no buffer is touched
 *   bridge A-IN A-OUT B-IN B-OUT         Mpps through two pipes in one thread on core 0, which swaps buffers between them
 *   mismatch SEND RECEIVE S R I          Mpps of a pipe, sender on core 1, receiver on core 0, which spend S and R ns on a frame,
 *                                        sleep in poll(), and look again I us after they woke at the soonest
 *   rtt   ASK ANSWER                     median round trip in us of two threads asleep in poll(), cores 0 and 1
 *   poll | read | close                  ns of a call on another descriptor
 *   send IF | packet IF                  sends 64-byte frames in batches of 64, by netmap or by a packet socket; prints nothing
 *   sink IF                              Mpps that arrive
 */
#include "nm.h"
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

enum { MAX_TRIPS = 1 << 20, CALLS = 1 << 16, SHORT = 14 };

static double seconds;
static atomic_int stop;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static void pin(int core)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(core, &set);
	CHECK(sched_setaffinity(0, sizeof set, &set) == 0);
}

/* Pushes what was sent and looks for what arrived, without waiting. */
static void look(struct nm *d, short events)
{
	struct pollfd p = { .fd = d->fd, .events = events };
	CHECK(poll(&p, 1, 0) >= 0 && !(p.revents & POLLERR));
}

/* Fills up to `batch` slots; writes headers from one station to another unless `to` is 0. */
static uint32_t send_batch(struct nm *d, int from, int to, uint32_t len, uint32_t batch)
{
	struct nm_ring *r = nm_tx(d, 0);
	static const char header[2][12] = {
		{ 2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1 }, { 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2 } };
	uint32_t room = nm_space(r), n = room < batch ? room : batch, at = r->head;
	for (uint32_t i = 0; i < n; i++, at = nm_next(r, at)) {
		struct nm_slot *s = &r->slot[at];
		if (to) {
			char *p = nm_buf(r, s->buf_idx);
			memcpy(p, header[from == 2], 12);
			p[12] = (char)0x88;
			p[13] = (char)0xb5;
		}
		s->len = len;
		s->flags = 0;
	}
	r->head = r->cur = at;
	return n;
}

/* Releases what has arrived. */
static uint64_t receive_all(struct nm *d, uint32_t len)
{
	struct nm_ring *r = nm_rx(d, 0);
	uint32_t n = nm_space(r), at = r->head;
	for (uint32_t i = 0; i < n; i++, at = nm_next(r, at))
		CHECK(r->slot[at].len == len);
	r->head = r->cur = at;
	return n;
}

/* Receives until the time is over; the first fifth warms up. Prints Mpps. */
static void rate(uint64_t (*turn)(void))
{
	double start = now(), begin = 0, end;
	uint64_t received = 0;
	do {
		for (int i = 0; i < 64; i++)
			received += turn();
		end = now();
		if (!begin && end - start > seconds / 5)
			begin = end, received = 0;
	} while (end - start < seconds || end <= begin || !begin);
	printf("%f\n", received / (end - begin) / 1e6);
}

static struct nm a, b, c, d;
static uint32_t len = 64, batch = 64;

static struct nm port(const char *name, uint32_t slots)
{
	return nm_port_with(name, (struct nm_register){ .tx_slots = slots, .rx_slots = slots });
}

static uint64_t port_turn(void)
{
	send_batch(&a, 1, 2, len, batch);
	look(&a, POLLOUT);
	look(&b, POLLIN);
	return receive_all(&b, len);
}

static void ports(char **name)
{
	uint32_t slots = atoi(name[4]);
	len = atoi(name[2]);
	batch = atoi(name[3]);
	pin(0);
	a = port(name[0], slots);
	b = port(name[1], slots);
	/* The switch learns where the receiver is; its frame is flooded to the sender. */
	CHECK(send_batch(&b, 2, 1, 60, 1) == 1);
	CHECK(ioctl(b.fd, NIOCTXSYNC, NULL) == 0);
	for (double from = now(); nm_space(nm_rx(&a, 0)) == 0; look(&a, POLLIN))
		CHECK(now() - from < 10);
	receive_all(&a, 60);
	rate(port_turn);
}

static void *produce(void *unused)
{
	pin(1);
	while (!stop) {
		send_batch(&a, 1, 0, len, batch);
		look(&a, POLLOUT);
	}
	return unused;
}

static uint64_t pipe_turn(void)
{
	look(&b, POLLIN);
	return receive_all(&b, len);
}

static void pipes(char **name)
{
	pthread_t far;
	pin(0);
	a = nm_port(name[0]);
	b = nm_port(name[1]);
	CHECK(pthread_create(&far, NULL, produce, NULL) == 0);
	rate(pipe_turn);
	stop = 1;
	CHECK(pthread_join(far, NULL) == 0);
}

/* The sender, in a process of its own until it is killed. */
static void send_for_ever(const char *name, int ready)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	pin(1);
	a = nm_port(name);
	CHECK(write(ready, "", 1) == 1);
	/* The switch learns where the receiver is by a frame from it. */
	while (nm_space(nm_rx(&a, 0)) == 0)
		look(&a, POLLIN);
	for (;;) {
		send_batch(&a, 1, 2, len, batch);
		look(&a, POLLOUT);
	}
}

static void two(char **name)
{
	int ready[2];
	char byte;
	CHECK(pipe(ready) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child)
		send_for_ever(name[0], ready[1]);
	pin(0);
	b = nm_port(name[1]);
	close(ready[1]);
	CHECK(read(ready[0], &byte, 1) == 1);
	CHECK(send_batch(&b, 2, 1, 60, 1) == 1);
	CHECK(ioctl(b.fd, NIOCTXSYNC, NULL) == 0);
	rate(pipe_turn);
	CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
}

static int pace[2];
static double interval;

static void spend(double ns)
{
	for (double until = now() + ns * 1e-9; now() < until;)
		;
}

/* Sleeps until there are slots, and until the interval since the thread woke is over. */
static void doze(struct nm *d, short events)
{
	static _Thread_local double woke;
	struct pollfd p = { .fd = d->fd, .events = events };
	CHECK(poll(&p, 1, 100) >= 0 && !(p.revents & POLLERR));
	double early = woke + interval - now();
	if (early > 0)
		nanosleep(&(struct timespec){ .tv_nsec = early * 1e9 }, NULL);
	woke = now();
}

static void *produce_at_pace(void *unused)
{
	pin(1);
	while (!stop) {
		uint32_t n = send_batch(&a, 1, 0, len, batch);
		spend(n * pace[0]);
		if (n)
			look(&a, POLLOUT);
		else
			doze(&a, POLLOUT);
	}
	return unused;
}

static uint64_t turn_at_pace(void)
{
	struct nm_ring *r = nm_rx(&b, 0);
	uint32_t n = nm_space(r);
	n = n < batch ? n : batch;
	if (!n) {
		doze(&b, POLLIN);
		return 0;
	}
	spend(n * pace[1]);
	for (uint32_t i = 0; i < n; i++)
		r->head = r->cur = nm_next(r, r->head);
	look(&b, POLLIN);
	return n;
}

static void mismatch(char **name)
{
	pthread_t far;
	pin(0);
	pace[0] = atoi(name[2]);
	pace[1] = atoi(name[3]);
	interval = atoi(name[4]) * 1e-6;
	a = nm_port(name[0]);
	b = nm_port(name[1]);
	CHECK(pthread_create(&far, NULL, produce_at_pace, NULL) == 0);
	rate(turn_at_pace);
	stop = 1;
	CHECK(pthread_join(far, NULL) == 0);
}

/* Swaps the buffers of what arrived with those of free slots. */
static void swap(struct nm *from, struct nm *to)
{
	struct nm_ring *in = nm_rx(from, 0), *out = nm_tx(to, 0);
	uint32_t n = nm_space(in), room = nm_space(out), at = in->head, next = out->head;
	for (n = n < room ? n : room; n; n--, at = nm_next(in, at), next = nm_next(out, next)) {
		struct nm_slot *x = &in->slot[at], *y = &out->slot[next];
		uint32_t idx = y->buf_idx;
		y->buf_idx = x->buf_idx;
		y->len = x->len;
		x->buf_idx = idx;
		x->flags = y->flags = BUF_CHANGED;
	}
	in->head = in->cur = at;
	out->head = out->cur = next;
}

static uint64_t bridge_turn(void)
{
	send_batch(&a, 1, 0, len, 512);
	look(&a, POLLOUT);
	look(&b, POLLIN);
	swap(&b, &c);
	look(&c, POLLOUT);
	look(&d, POLLIN);
	return receive_all(&d, len);
}

static void bridge(char **name)
{
	pin(0);
	a = nm_port(name[0]);
	struct nm_register same = { .mem_id = a.reg.mem_id };
	b = nm_port_with(name[1], same);
	c = nm_port_with(name[2], same);
	d = nm_port_with(name[3], same);
	CHECK(b.reg.mem_id == c.reg.mem_id); /* else buffers cannot be swapped */
	rate(bridge_turn);
}

/* Waits for a frame; returns its length. */
static uint32_t await(struct nm *d)
{
	struct nm_ring *r = nm_rx(d, 0);
	while (nm_space(r) == 0) {
		struct pollfd p = { .fd = d->fd, .events = POLLIN };
		CHECK(poll(&p, 1, 30000) == 1 && p.revents == POLLIN);
	}
	uint32_t got = r->slot[r->head].len;
	r->head = r->cur = nm_next(r, r->head);
	return got;
}

static void *answer(void *unused)
{
	pin(1);
	while (await(&b) != SHORT) {
		CHECK(send_batch(&b, 2, 1, 24, 1) == 1);
		look(&b, POLLOUT);
	}
	return unused;
}

static int by_value(const void *x, const void *y)
{
	float p = *(const float *)x, q = *(const float *)y;
	return (p > q) - (p < q);
}

static void ask(uint32_t bytes)
{
	CHECK(send_batch(&a, 1, 2, bytes, 1) == 1);
	look(&a, POLLOUT);
}

static void rtt(char **name)
{
	static float trips[MAX_TRIPS];
	uint32_t n = 0;
	pthread_t far;
	pin(0);
	a = nm_port(name[0]);
	b = nm_port(name[1]);
	CHECK(pthread_create(&far, NULL, answer, NULL) == 0);
	for (double start = now(), from = start; n < MAX_TRIPS && from - start < seconds; n++) {
		ask(24);
		await(&a);
		double to = now();
		trips[n] = (to - from) * 1e6;
		from = to;
	}
	ask(SHORT);
	CHECK(pthread_join(far, NULL) == 0);
	qsort(trips, n, sizeof *trips, by_value);
	printf("%f\n", trips[n / 2]);
}

/* The least of many runs: what the call costs without what interrupts it. */
static void call(const char *which)
{
	int p[2];
	char byte;
	CHECK(pipe(p) == 0 && fcntl(p[0], F_SETFL, O_NONBLOCK) == 0);
	struct pollfd f = { .fd = p[0], .events = POLLIN };
	double least = 1e9, start = now();
	pin(0);
	do {
		double from = now();
		for (int i = 0; i < CALLS; i++) {
			if (which[0] == 'p')
				poll(&f, 1, 0);
			else if (which[0] == 'r')
				CHECK(read(p[0], &byte, 1) == -1);
			else
				close(-1);
		}
		double took = (now() - from) / CALLS * 1e9;
		least = took < least ? took : least;
	} while (now() - start < seconds);
	printf("%f\n", least);
}

/* Sends until the time is over. */
static void send_all(const char *name)
{
	a = nm_port(name);
	for (double start = now(); now() - start < seconds;)
		for (int i = 0; i < 64; i++) {
			send_batch(&a, 1, 2, len, batch);
			look(&a, POLLOUT);
		}
}

static uint64_t sink_turn(void)
{
	look(&a, POLLIN);
	return receive_all(&a, len);
}

static void sink(const char *name)
{
	a = nm_port(name);
	rate(sink_turn);
}

/* The same by a packet socket, 64 frames a call. */
static void send_packets(const char *name)
{
	static char frame[64] = { 2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, (char)0x88, (char)0xb5 };
	struct sockaddr_ll to = { .sll_family = AF_PACKET, .sll_ifindex = if_nametoindex(name), .sll_protocol = htons(0x88b5) };
	struct iovec bytes = { frame, sizeof frame };
	struct mmsghdr all[64] = { 0 };
	int fd = socket(AF_PACKET, SOCK_RAW, 0), one = 1;
	CHECK(fd >= 0 && to.sll_ifindex);
	CHECK(bind(fd, (struct sockaddr *)&to, sizeof to) == 0);
	/* Frames go to the driver, not to a queue before it. */
	CHECK(setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &one, sizeof one) == 0);
	for (int i = 0; i < 64; i++)
		all[i].msg_hdr = (struct msghdr){ .msg_iov = &bytes, .msg_iovlen = 1 };
	for (double start = now(); now() - start < seconds;)
		for (int i = 0; i < 64; i++)
			sendmmsg(fd, all, 64, 0);
}

int main(int argc, char **argv)
{
	CHECK(argc >= 3);
	const char *mode = argv[1];
	seconds = atof(argv[2]);
	if (!strcmp(mode, "ports") && argc == 8)
		ports(argv + 3);
	else if (!strcmp(mode, "pipe") && argc == 5)
		pipes(argv + 3);
	else if (!strcmp(mode, "two") && argc == 5)
		two(argv + 3);
	else if (!strcmp(mode, "bridge") && argc == 7)
		bridge(argv + 3);
	else if (!strcmp(mode, "mismatch") && argc == 8)
		mismatch(argv + 3);
	else if (!strcmp(mode, "rtt") && argc == 5)
		rtt(argv + 3);
	else if (!strcmp(mode, "send") && argc == 4)
		send_all(argv[3]);
	else if (!strcmp(mode, "sink") && argc == 4)
		sink(argv[3]);
	else if (!strcmp(mode, "packet") && argc == 4)
		send_packets(argv[3]);
	else if (argc == 3)
		call(mode);
	else
		return 2;
	return 0;
}
