/*
 * xdp tx|rx INTERFACE SECONDS: the least that an AF_XDP program does on queue 0 of an interface. Prints Mpps.
 *
 *   tx   writes the header of each frame of 64 bytes; counts those that have left
 *   rx   reads the first bytes of each frame
 *
 * Zero-copy where the driver has it, else copies; a call to the kernel only when it asks for one.
 */
#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_xdp.h>
#include <net/if.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { CHUNK = 2048, RING = 2048, BATCH = 64, LEN = 64 };

#define CHECK(x) do { if (!(x)) { perror(#x); exit(1); } } while (0)

/* A ring: `own` is this side's count. */
struct ring {
	uint32_t *producer, *consumer, *flags, own;
	void *entries;
};

static struct ring fill, completion, receive, transmit;
static char *umem;
static int fd;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static uint32_t get(uint32_t *word)
{
	return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static void put(uint32_t *word, uint32_t value)
{
	__atomic_store_n(word, value, __ATOMIC_RELEASE);
}

static int needs_call(struct ring *r)
{
	return __atomic_load_n(r->flags, __ATOMIC_RELAXED) & XDP_RING_NEED_WAKEUP;
}

static struct ring map(struct xdp_ring_offset at, off_t place, size_t entry)
{
	int how = MAP_SHARED | MAP_POPULATE;
	char *p = mmap(NULL, at.desc + RING * entry, PROT_READ | PROT_WRITE, how, fd, place);
	CHECK(p != MAP_FAILED);
	return (struct ring){ (uint32_t *)(p + at.producer), (uint32_t *)(p + at.consumer),
		(uint32_t *)(p + at.flags), 0, p + at.desc };
}

static void open_socket(unsigned index)
{
	size_t len = (size_t)CHUNK * RING;
	umem = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	CHECK(umem != MAP_FAILED);
	CHECK((fd = socket(AF_XDP, SOCK_RAW, 0)) >= 0);
	struct xdp_umem_reg reg = { .addr = (uintptr_t)umem, .len = len, .chunk_size = CHUNK };
	CHECK(setsockopt(fd, SOL_XDP, XDP_UMEM_REG, &reg, sizeof reg) == 0);
	int size = RING, buffer = 16 << 20, rings[] = {
		XDP_UMEM_FILL_RING, XDP_UMEM_COMPLETION_RING, XDP_RX_RING, XDP_TX_RING };
	for (int i = 0; i < 4; i++)
		CHECK(setsockopt(fd, SOL_XDP, rings[i], &size, sizeof size) == 0);
	setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &buffer, sizeof buffer);
	struct xdp_mmap_offsets at;
	socklen_t got = sizeof at;
	CHECK(getsockopt(fd, SOL_XDP, XDP_MMAP_OFFSETS, &at, &got) == 0);
	fill = map(at.fr, XDP_UMEM_PGOFF_FILL_RING, sizeof(uint64_t));
	completion = map(at.cr, XDP_UMEM_PGOFF_COMPLETION_RING, sizeof(uint64_t));
	receive = map(at.rx, XDP_PGOFF_RX_RING, sizeof(struct xdp_desc));
	transmit = map(at.tx, XDP_PGOFF_TX_RING, sizeof(struct xdp_desc));
	struct sockaddr_xdp to = { .sxdp_family = AF_XDP, .sxdp_ifindex = index };
	to.sxdp_flags = XDP_ZEROCOPY | XDP_USE_NEED_WAKEUP;
	if (bind(fd, (void *)&to, sizeof to) != 0) {
		to.sxdp_flags = XDP_COPY | XDP_USE_NEED_WAKEUP;
		CHECK(bind(fd, (void *)&to, sizeof to) == 0);
	}
}

static int bpf(int command, union bpf_attr *attr)
{
	return syscall(SYS_bpf, command, attr, sizeof *attr);
}

/* Attaches a program that hands the frames of the interface to the socket. Both end with this process. */
static void take_frames(unsigned index)
{
	uint32_t key = 0;
	union bpf_attr a = { .map_type = BPF_MAP_TYPE_XSKMAP, .key_size = 4, .value_size = 4, .max_entries = 1 };
	int sockets = bpf(BPF_MAP_CREATE, &a);
	CHECK(sockets >= 0);
	memset(&a, 0, sizeof a);
	a.map_fd = sockets, a.key = (uintptr_t)&key, a.value = (uintptr_t)&fd;
	CHECK(bpf(BPF_MAP_UPDATE_ELEM, &a) == 0);
	/* return bpf_redirect_map(sockets, context->rx_queue_index, XDP_DROP) */
	struct bpf_insn steps[] = {
		{ .code = BPF_LDX | BPF_W | BPF_MEM, .dst_reg = 2, .src_reg = 1, .off = 16 },
		{ .code = BPF_LD | BPF_DW | BPF_IMM, .dst_reg = 1, .src_reg = BPF_PSEUDO_MAP_FD, .imm = sockets },
		{ 0 },
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 3, .imm = XDP_DROP },
		{ .code = BPF_JMP | BPF_CALL, .imm = BPF_FUNC_redirect_map },
		{ .code = BPF_JMP | BPF_EXIT },
	};
	memset(&a, 0, sizeof a);
	a.prog_type = BPF_PROG_TYPE_XDP, a.insns = (uintptr_t)steps, a.insn_cnt = 6;
	a.license = (uintptr_t)"Dual MIT/GPL";
	int program = bpf(BPF_PROG_LOAD, &a);
	CHECK(program >= 0);
	for (int how = 2; how; how--) {
		memset(&a, 0, sizeof a);
		a.link_create.prog_fd = program, a.link_create.target_ifindex = index;
		a.link_create.attach_type = BPF_XDP;
		a.link_create.flags = how == 2 ? 1U << 2 /* native */ : 1U << 1 /* generic */;
		if (bpf(BPF_LINK_CREATE, &a) >= 0)
			return;
	}
	CHECK(!"the program can be attached");
}

static uint64_t spare[RING];
static uint32_t spares;

static uint64_t send_turn(void)
{
	static const char header[14] = { 2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, (char)0x88, (char)0xb5 };
	uint32_t left = get(completion.producer) - completion.own, n = spares < BATCH ? spares : BATCH;
	for (uint32_t i = 0; i < left; i++)
		spare[spares++] = ((uint64_t *)completion.entries)[completion.own++ % RING];
	put(completion.consumer, completion.own);
	for (uint32_t i = 0; i < n; i++) {
		uint64_t at = spare[--spares];
		memcpy(umem + at, header, sizeof header);
		((struct xdp_desc *)transmit.entries)[transmit.own++ % RING] = (struct xdp_desc){ at, LEN, 0 };
	}
	put(transmit.producer, transmit.own);
	if (get(transmit.consumer) != transmit.own && needs_call(&transmit))
		CHECK(sendto(fd, NULL, 0, MSG_DONTWAIT, NULL, 0) >= 0 || errno == EAGAIN || errno == EBUSY
			|| errno == ENOBUFS || errno == EINTR);
	return left;
}

static uint64_t receive_turn(void)
{
	static volatile uint64_t sum;
	uint32_t n = get(receive.producer) - receive.own;
	for (uint32_t i = 0; i < n; i++) {
		struct xdp_desc *d = &((struct xdp_desc *)receive.entries)[receive.own++ % RING];
		sum += *(uint64_t *)(umem + d->addr);
		((uint64_t *)fill.entries)[fill.own++ % RING] = d->addr & ~(uint64_t)(CHUNK - 1);
	}
	put(receive.consumer, receive.own);
	put(fill.producer, fill.own);
	if (needs_call(&fill))
		recvfrom(fd, NULL, 0, MSG_DONTWAIT, NULL, NULL);
	return n;
}

int main(int argc, char **argv)
{
	CHECK(argc == 4);
	int sends = !strcmp(argv[1], "tx");
	unsigned index = if_nametoindex(argv[2]);
	double seconds = atof(argv[3]), start, begin = 0, end;
	uint64_t frames = 0;
	CHECK(index);
	open_socket(index);
	for (; spares < RING; spares++) {
		spare[spares] = (uint64_t)spares * CHUNK;
		if (!sends)
			((uint64_t *)fill.entries)[fill.own++ % RING] = spare[spares];
	}
	put(fill.producer, fill.own);
	if (!sends)
		take_frames(index);
	start = now();
	do { /* The first fifth warms up. */
		for (int i = 0; i < 16; i++)
			frames += sends ? send_turn() : receive_turn();
		end = now();
		if (!begin && end - start > seconds / 5)
			begin = end, frames = 0;
	} while (end - start < seconds || end <= begin || !begin);
	printf("%f\n", frames / (end - begin) / 1e6);
	return 0;
}
