// SPDX-License-Identifier: MIT OR Apache-2.0
/* The floor of forwarding on a machine: the least that a learning switch with isolated ports must do per frame. Slots are
 * read once and checked, headers are copied into private memory before anything is decided from them, the table is looked
 * up, and one exact copy is made from the sender's memory into the receiver's. Nothing is counted, waited for or woken.
 * What a real switch loses to it, measured in the same run, is what its own code costs.
 *
 *   forward MODE [name=value ...]          cc -O3 -march=native -o forward forward.c -lpthread
 *
 *   isolated  generator and sink on core `near`, switch on core `far`
 *   inline    the same three in one thread on core `near`
 *   pipe      producer on `far`, consumer on `near`, one ring of slots
 *   twin      netmap's pipe: two rings, slots copied from one to the other
 *   scatter   isolated, with `ports` receive rings and `addresses` behind them, which frames go to at random, a lock for
 *             each delivery: nanoseconds of the switch's core per frame
 *   rtt       two threads hand a word to and fro, on two cache lines
 *
 *   slots=1024  frame=64 (bytes)  batch=64  near=0  far=1  seconds=1
 *   touch=0     1: the generator writes every byte of every frame, the sink compares every one (isolated, inline)
 *   stride=2112 distance of buffers: at 2048 all headers fall into two cache sets
 *   lifo=1      the switch hands out the receive buffer that came back last, so that a long ring has a small working set
 *   ports=1024  addresses=8000  scatter
 *
 * Prints one JSON object: {"peer": "floor", "what": MODE, "value": ..., "unit": "Mpps", "us" or "ns/frame", "waited": ...}.
 */
#define _GNU_SOURCE
#include <glob.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

/* Slots of each of many rings, entries of the table of many addresses, how far ahead memory is fetched. */
enum { MANY = 128, WIDE = 1 << 16, AHEAD = 64, SOON = 12 };
enum { MAX_SLOTS = 4096, MAX_STRIDE = 4096, MAX_BATCH = 512, TABLE = 1024, HEAD = 64, MAX_TRIPS = 1 << 20 };

struct slot { uint32_t buf; uint16_t len, flags; uint64_t ptr; };
struct ring {
	_Alignas(128) _Atomic uint32_t filled;   /* written by the producer */
	_Alignas(128) _Atomic uint32_t drained;  /* written by the consumer */
	_Alignas(128) struct slot slots[MAX_SLOTS];
};
struct entry { uint64_t mac; uint16_t port; };

/* gcc 12 removes calls of a function that only prefetches, unless it is inlined. Loops, which run once a batch, keep their
 * names in the program: a test looks into them. */
#define PREFETCHES static inline __attribute__((always_inline))
#define LOOP static __attribute__((noinline))

static uint32_t slots = 1024, frame = 64, batch = 64, touch, stride = 2112, lifo = 1, near, far = 1;
static uint32_t ports = 1024, addresses = 8000;
static double seconds = 1;

static struct ring *in, *out;
static char *in_buf, *out_buf;
static struct entry table[TABLE];
static const uint64_t SRC = 0x665544332211, DST = 0x0000aabbccddee;
static volatile int stop;

/* The switch's own: nobody else can reach these. */
static uint32_t in_at, out_at, reclaimed, spares, spare[MAX_SLOTS];
static _Alignas(64) char heads[MAX_BATCH][HEAD];

static void pin(uint32_t core)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(core, &set);
	pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint32_t hash(uint64_t mac) { return (uint32_t)((mac * 0x9E3779B97F4A7C15ull) >> 54); }
static uint32_t observe(_Atomic uint32_t *at) { return atomic_load_explicit(at, memory_order_acquire); }
static void publish(_Atomic uint32_t *at, uint32_t to) { atomic_store_explicit(at, to, memory_order_release); }

static uint64_t mac_at(const char *p)
{
	uint64_t v;

	memcpy(&v, p, 8);
	return v & 0xffffffffffffull;
}

/* Exactly `len` bytes, at least 64: the last vector overlaps. */
static void copy(char *to, const char *from, uint32_t len)
{
	uint32_t i = 0;

	for (; i + 64 <= len; i += 64)
		memcpy(to + i, from + i, 64);
	if (i < len)
		memcpy(to + len - 64, from + len - 64, 64);
}

/* ---- the switch ---- */

static uint32_t receive_buffer(uint32_t at)
{
	struct slot *s = &out->slots[at & (slots - 1)];

	if (lifo)
		s->buf = spare[--spares];
	return s->buf;
}

static void reclaim(uint32_t drained)
{
	for (; lifo && reclaimed != drained; reclaimed++)
		spare[spares++] = out->slots[reclaimed & (slots - 1)].buf % slots;
}

/* What the delivery `i` of this batch will write: its slot, and its buffer. */
PREFETCHES void fetch_delivery(uint32_t i)
{
	struct slot *to = &out->slots[(out_at + i) & (slots - 1)];
	uint32_t buf = lifo && spares > i ? spare[spares - 1 - i] : to->buf;
	__builtin_prefetch(to, 1);
	__builtin_prefetch(out_buf + (size_t)buf * stride, 1);
}

/* In one piece: cut into functions, compilers keep `snap` in memory and lose a quarter of the speed. */
LOOP void forward(void)
{
	uint32_t n = observe(&in->filled) - in_at, drained = observe(&out->drained), room = slots - (out_at - drained);
	struct slot snap[MAX_BATCH];
	uint64_t last = 0;

	reclaim(drained);
	n = n > batch ? batch : n;
	n = n > room ? room : n;
	if (!n)
		return;
	for (uint32_t i = 0; i < n; i++) {
		snap[i] = in->slots[(in_at + i) & (slots - 1)];
		if (snap[i].buf >= slots || snap[i].len < 60 || snap[i].len > stride)
			snap[i] = (struct slot){ .len = 60 };
		__builtin_prefetch(in_buf + (size_t)snap[i].buf * stride);
	}
	for (uint32_t i = 0; i < n; i++) {
		memcpy(heads[i], in_buf + (size_t)snap[i].buf * stride, HEAD);
		uint64_t dst = mac_at(heads[i]), src = mac_at(heads[i] + 6);
		if (src != last) {
			table[hash(src)] = (struct entry){ src, 1 };
			last = src;
		}
		snap[i].flags = table[hash(dst)].mac == dst ? table[hash(dst)].port : 0xffff;
		fetch_delivery(i);
	}
	for (uint32_t i = 0; i < n; i++) {
		if (i + 1 < n && snap[i + 1].len > HEAD)
			__builtin_prefetch(in_buf + (size_t)snap[i + 1].buf * stride + HEAD);
		struct slot *to = &out->slots[(out_at + i) & (slots - 1)];
		char *q = out_buf + (size_t)receive_buffer(out_at + i) * stride;
		memcpy(q, heads[i], HEAD);
		if (snap[i].len > HEAD)
			copy(q + HEAD, in_buf + (size_t)snap[i].buf * stride + HEAD, snap[i].len - HEAD);
		to->len = snap[i].len;
	}
	in_at += n;
	out_at += n;
	publish(&out->filled, out_at);
	publish(&in->drained, in_at);
}

static void *switch_thread(void *unused)
{
	pin(far);
	while (!stop)
		forward();
	return unused;
}

/* ---- pipes ---- */

static void *pipe_thread(void *unused)
{
	pin(far);
	for (uint32_t at = 0; !stop;) {
		if (slots - (at - observe(&in->drained)) < batch)
			continue;
		for (uint32_t i = 0; i < batch; i++) {
			struct slot *s = &in->slots[(at + i) & (slots - 1)];
			s->len = (uint16_t)frame;
			s->buf = i;
		}
		publish(&in->filled, at += batch);
	}
	return unused;
}

static void *twin_thread(void *unused)
{
	pin(far);
	for (uint32_t at = 0; !stop;) {
		if (slots - (at - observe(&in->drained)) < batch)
			continue;
		for (uint32_t i = 0; i < batch; i++) {
			uint64_t word = (uint64_t)frame << 32 | i;
			memcpy(&out->slots[(at + i) & (slots - 1)], &word, 8);
		}
		for (uint32_t i = 0; i < batch; i++)   /* the sync: slots cross to the twin */
			memcpy(&in->slots[(at + i) & (slots - 1)], &out->slots[(at + i) & (slots - 1)], 8);
		publish(&in->filled, at += batch);
	}
	return unused;
}

/* ---- traffic to many ports ---- */

struct many {
	_Alignas(128) _Atomic uint32_t filled;
	_Alignas(128) _Atomic uint32_t drained;
	_Alignas(128) struct slot slots[MANY];
};
/* The switch's own of one of them: a line, and its spare buffers. */
struct own { _Alignas(64) atomic_flag lock; uint32_t at, reclaimed, spares; uint32_t spare[MANY]; };

static struct many *many;
static struct own *own;
static char *many_buf;
static struct entry *wide;
static double busy;
static uint64_t forwarded;

static uint32_t wide_hash(uint64_t mac) { return (uint32_t)((mac * 0x9E3779B97F4A7C15ull) >> 48); }
static char *many_buffer(uint32_t port, uint32_t buf) { return many_buf + ((size_t)port * MANY + buf) * stride; }

/* The addresses are those that collide with no other: a floor needs no chains. */
static uint64_t *spread(void)
{
	uint64_t *macs = calloc(addresses, sizeof *macs), mac = 2;

	for (uint32_t n = 0; n < addresses; mac += 1 << 16) {
		struct entry *e = &wide[wide_hash(mac)];
		if (!e->mac) {
			*e = (struct entry){ mac, (uint16_t)(n % ports) };
			macs[n++] = mac;
		}
	}
	return macs;
}

static uint32_t hand_over(uint32_t i, const struct slot *snap, uint32_t port)
{
	struct own *o = &own[port];
	struct many *r = &many[port];
	uint32_t drained = observe(&r->drained);

	while (atomic_flag_test_and_set_explicit(&o->lock, memory_order_acquire))
		;
	for (; o->reclaimed != drained; o->reclaimed++)
		o->spare[o->spares++] = r->slots[o->reclaimed & (MANY - 1)].buf % MANY;
	if (o->spares > 1) {
		struct slot *to = &r->slots[o->at & (MANY - 1)];
		to->buf = o->spare[--o->spares];
		to->len = snap->len;
		memcpy(many_buffer(port, to->buf), heads[i], HEAD);
		publish(&r->filled, ++o->at);
	}
	atomic_flag_clear_explicit(&o->lock, memory_order_release);
	return port;
}

/* What a delivery will touch, in two steps: where the ring stands, then what follows from that. */
PREFETCHES void fetch(uint32_t port, int step)
{
	struct own *o = &own[port];
	struct many *r = &many[port];
	if (!step) {
		__builtin_prefetch(o, 1);
		__builtin_prefetch(&r->drained);
		__builtin_prefetch(&r->filled, 1);
	} else {
		__builtin_prefetch(&r->slots[o->at & (MANY - 1)], 1);
		__builtin_prefetch(many_buffer(port, o->spare[o->spares - 1]), 1);
	}
}

LOOP void forward_to_many(void)
{
	uint32_t n = observe(&in->filled) - in_at;
	struct slot snap[MAX_BATCH];
	double start;

	n = n > batch ? batch : n;
	if (!n)
		return;
	start = now();
	for (uint32_t i = 0; i < n; i++) {
		snap[i] = in->slots[(in_at + i) & (slots - 1)];
		if (snap[i].buf >= slots || snap[i].len < 60 || snap[i].len > stride)
			snap[i] = (struct slot){ .len = 60 };
		__builtin_prefetch(in_buf + (size_t)snap[i].buf * stride);
	}
	for (uint32_t i = 0; i < n; i++) {
		memcpy(heads[i], in_buf + (size_t)snap[i].buf * stride, HEAD);
		__builtin_prefetch(&wide[wide_hash(mac_at(heads[i]))]);
	}
	for (uint32_t i = 0; i < n; i++) {
		uint64_t dst = mac_at(heads[i]);
		struct entry *e = &wide[wide_hash(dst)];
		snap[i].flags = e->mac == dst ? e->port : 0;
	}
	for (uint32_t from = 0; from < n; from += AHEAD) {
		uint32_t to = n - from > AHEAD ? from + AHEAD : n;
		for (int step = 0; step < 2; step++)
			for (uint32_t i = from; i < to; i++)
				fetch(snap[i].flags, step);
		for (uint32_t i = from; i < to; i++)
			hand_over(i, &snap[i], snap[i].flags);
	}
	publish(&in->drained, in_at += n);
	forwarded += n;
	busy += now() - start;
}

static void *scatter_thread(void *unused)
{
	pin(far);
	while (!stop)
		forward_to_many();
	return unused;
}

/* ---- generator and sink ---- */

static char sent[MAX_STRIDE];   /* touch=1: what every frame looks like */
static int damaged;

/* A slot that will be filled soon, and its buffer: another core has read them. As toklat's client (Outgoing::fill). */
PREFETCHES void fetch_slot(uint32_t at)
{
	struct slot *soon = &in->slots[at & (slots - 1)];
	__builtin_prefetch(soon, 1);
	__builtin_prefetch(in_buf + (size_t)soon->buf * stride, 1);
}

LOOP void generate(uint32_t *at, int distant)
{
	uint32_t room = slots - (*at - observe(&in->drained));

	room = room > batch ? batch : room;
	for (uint32_t i = 0; i < room; i++) {
		struct slot *s = &in->slots[(*at + i) & (slots - 1)];
		char *p = in_buf + (size_t)s->buf * stride;
		if (distant)
			fetch_slot(*at + i + SOON);
		if (touch) {
			memcpy(p, sent, frame);
		} else {
			memcpy(p, &DST, 8);
			memcpy(p + 6, &SRC, 6);
		}
		s->len = (uint16_t)frame;
	}
	if (room)
		publish(&in->filled, *at += room);
}

static uint32_t sink(struct ring *r, uint32_t *at, uint64_t *sum)
{
	uint32_t n = observe(&r->filled) - *at;

	for (uint32_t i = 0; i < n; i++) {
		struct slot *s = &r->slots[(*at + i) & (slots - 1)];
		*sum += s->len;
		if (touch && memcmp(out_buf + (size_t)s->buf * stride, sent, frame))
			damaged = 1;
	}
	if (n)
		publish(&r->drained, *at += n);
	return n;
}

static double mpps(const char *mode, uint64_t *sum)
{
	int pipe = !strcmp(mode, "pipe") || !strcmp(mode, "twin"), alone = !strcmp(mode, "inline");
	uint32_t gen_at = 0, sink_at = 0;
	uint64_t received = 0, rounds = 0;
	double start = now(), took;

	for (;;) {
		if (!pipe)
			generate(&gen_at, !alone);
		if (alone)
			forward();
		received += sink(pipe ? in : out, &sink_at, sum);
		if ((++rounds & 0xfff) == 0 && (took = now() - start) > seconds)
			return (double)received / took / 1e6;
	}
}

/* As `toklat bench switch` does it: the sink looks at every ring when each has got about one frame. */
static double ns_to_many(uint64_t *sum)
{
	uint32_t at = 0, *sunk = calloc(ports, sizeof *sunk);
	uint64_t *macs = spread(), random = 1;
	double start = now();

	while (now() - start < seconds) {
		for (uint32_t sent = 0; sent < ports || sent < batch;) {
			uint32_t room = slots - (at - observe(&in->drained));
			room = room > batch ? batch : room;
			for (uint32_t i = 0; i < room; i++) {
				struct slot *s = &in->slots[(at + i) & (slots - 1)];
				char *p = in_buf + (size_t)s->buf * stride;
				fetch_slot(at + i + SOON);
				random = random * 6364136223846793005ull + 1442695040888963407ull;
				memcpy(p, &macs[((random >> 33) * addresses) >> 31], 8);
				memcpy(p + 6, &SRC, 6);
				s->len = (uint16_t)frame;
			}
			if (room)
				publish(&in->filled, at += room);
			sent += room;
		}
		for (uint32_t p = 0; p < ports; p++) {
			uint32_t n = observe(&many[p].filled) - sunk[p];
			for (uint32_t i = 0; i < n; i++)
				*sum += many[p].slots[(sunk[p] + i) & (MANY - 1)].len;
			if (n)
				publish(&many[p].drained, sunk[p] += n);
		}
	}
	stop = 1;
	return busy / (double)forwarded * 1e9;
}

/* ---- round trips ---- */

static void *echo_thread(void *unused)
{
	uint32_t at = 0;

	pin(far);
	while (!stop) {
		uint32_t seen = observe(&in->filled);
		if (seen != at)
			publish(&in->drained, at = seen);
	}
	return unused;
}

static int by_value(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

static double median_us(void)
{
	static float trips[MAX_TRIPS];
	uint32_t at = 0, n = 0;
	double start = now(), from = start;

	while (n < MAX_TRIPS && from - start < seconds) {
		publish(&in->filled, ++at);
		while (observe(&in->drained) != at)
			;
		double to = now();
		trips[n++] = (float)(to - from);
		from = to;
	}
	qsort(trips, n, sizeof *trips, by_value);
	return trips[n / 2] * 1e6;
}

/* ---- */

/* The greatest share of the time since `start` that one of the threads was ready and had no processor. */
static double waited(double start)
{
	double most = 0, ready, took = now() - start;
	glob_t all;
	if (glob("/proc/self/task/*/schedstat", 0, NULL, &all))
		return 0;
	for (size_t i = 0; i < all.gl_pathc; i++) {
		FILE *stat = fopen(all.gl_pathv[i], "r");
		if (stat && fscanf(stat, "%*f %lf", &ready) == 1 && ready * 1e-9 / took > most)
			most = ready * 1e-9 / took;
		if (stat)
			fclose(stat);
	}
	return most;
}

static void *memory(size_t len)
{
	size_t huge = 2 << 20, whole = (len + huge - 1) & ~(huge - 1);
	int kind = MAP_SHARED | MAP_ANONYMOUS;
	void *p = mmap(NULL, whole, PROT_READ | PROT_WRITE, kind | MAP_HUGETLB, -1, 0);

	if (p == MAP_FAILED) /* none are reserved: those that the kernel has at hand */
		p = mmap(NULL, len, PROT_READ | PROT_WRITE, kind, -1, 0);
	if (p == MAP_FAILED) {
		perror("mmap");
		exit(1);
	}
	madvise(p, len, MADV_HUGEPAGE);
	memset(p, 0, len);
	return p;
}

static int named(const char *arg, const char *name)
{
	size_t len = strlen(name);
	return !strncmp(arg, name, len) && arg[len] == '=';
}

/* Assigned by name, not through pointers: an option whose address is taken costs the loops above a quarter of their speed,
 * since every store through a pointer might then change it. */
static int set(const char *arg)
{
#define OPTION(name) if (named(arg, #name)) { name = (uint32_t)atoi(arg + sizeof #name); return 1; }
	OPTION(slots) OPTION(frame) OPTION(batch) OPTION(touch) OPTION(stride) OPTION(lifo) OPTION(near) OPTION(far)
	OPTION(ports) OPTION(addresses)
#undef OPTION
	if (named(arg, "seconds"))
		seconds = atof(arg + sizeof "seconds");
	return named(arg, "seconds") && seconds > 0;
}

static int good(void)
{
	return slots && slots <= MAX_SLOTS && !(slots & (slots - 1)) && batch && batch <= MAX_BATCH && batch <= slots
		&& ports && ports <= 4096 && addresses >= ports && addresses <= WIDE / 4
		&& stride <= MAX_STRIDE && frame >= 60 && frame <= stride && (frame <= HEAD || frame >= 2 * HEAD);
}

int main(int argc, char **argv)
{
	static const struct { const char *name; void *(*thread)(void *); } modes[] = {
		{ "isolated", switch_thread }, { "inline", NULL }, { "pipe", pipe_thread }, { "twin", twin_thread },
		{ "scatter", scatter_thread }, { "rtt", echo_thread },
	};
	const char *mode = argc > 1 ? argv[1] : "isolated";
	size_t m = 0, modes_len = sizeof modes / sizeof *modes;
	uint64_t sum = 0;
	double begun = now(), value;
	pthread_t other;

	while (m < modes_len && strcmp(mode, modes[m].name))
		m++;
	for (int i = 2; i < argc; i++)
		if (!set(argv[i]))
			m = modes_len;
	if (m == modes_len || !good()) {
		fprintf(stderr, "usage: forward isolated|inline|pipe|twin|scatter|rtt [slots= frame= batch= touch= stride= lifo= near= far= ports= addresses= seconds=]\n"
			"slots: a power of two up to %d; batch up to %d; frame 60 to 64, or 128 to stride (up to %d)\n", MAX_SLOTS, MAX_BATCH, MAX_STRIDE);
		return 2;
	}
	in = memory(sizeof *in);
	out = memory(sizeof *out);
	in_buf = memory((size_t)MAX_SLOTS * stride);
	out_buf = memory((size_t)MAX_SLOTS * stride);
	for (uint32_t i = 0; i < slots; i++)
		in->slots[i].buf = out->slots[i].buf = spare[spares++] = i;
	table[hash(DST)] = (struct entry){ DST, 2 };
	for (size_t i = 14; i < sizeof sent; i++)
		sent[i] = (char)i;
	memcpy(sent, &DST, 6);
	memcpy(sent + 6, &SRC, 6);
	if (!strcmp(mode, "scatter")) {
		many = memory(ports * sizeof *many);
		own = memory(ports * sizeof *own);
		many_buf = memory((size_t)ports * MANY * stride);
		wide = memory(WIDE * sizeof *wide);
		for (uint32_t p = 0; p < ports; p++)
			for (uint32_t i = 0; i < MANY; i++)
				many[p].slots[i].buf = own[p].spare[own[p].spares++] = i;
	}
	pin(near);
	if (modes[m].thread)
		pthread_create(&other, NULL, modes[m].thread, NULL);
	int trips = !strcmp(mode, "rtt"), many_ports = !strcmp(mode, "scatter");
	value = trips ? median_us() : many_ports ? ns_to_many(&sum) : mpps(mode, &sum);
	printf("{\"peer\": \"floor\", \"what\": \"%s\", \"value\": %.3f, \"unit\": \"%s\", \"waited\": %.3f}\n",
		mode, value, trips ? "us" : many_ports ? "ns/frame" : "Mpps", waited(begun));
	stop = 1;
	if (modes[m].thread)
		pthread_join(other, NULL);
	if (damaged)
		fprintf(stderr, "a frame arrived that was not sent so\n");
	return damaged || sum == 1;   /* the sum is used, so the compiler keeps the sink's reads */
}
