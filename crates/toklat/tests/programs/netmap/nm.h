/*
 * netmap's interface as these tests use it: written from its documentation (API 14).
 * What does not hold ends the program with a line that says where.
 */
#ifndef NM_H
#define NM_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

struct nm_slot { uint32_t buf_idx; uint16_t len, flags; uint64_t ptr; };

struct nm_ring {
	int64_t buf_ofs;
	uint32_t num_slots, nr_buf_size;
	uint16_t ringid, dir;
	uint32_t head, cur, tail, flags;
	uint32_t pad0;
	uint64_t ts[2];
	uint64_t offset_mask, buf_align;
	uint8_t pad1[56];
	uint8_t sem[128];
	struct nm_slot slot[];
};

struct nm_if {
	char ni_name[16];
	uint32_t ni_version, ni_flags, ni_tx_rings, ni_rx_rings, ni_bufs_head;
	uint32_t ni_host_tx_rings, ni_host_rx_rings, spare[3];
	int64_t ring_ofs[];
};

struct nm_header {
	uint16_t version, reqtype;
	uint32_t reserved;
	char name[64];
	uint64_t options, body;
};

struct nm_option { uint64_t next; uint32_t reqtype, status; uint64_t size; };

struct nm_register {
	uint64_t offset, memsize;
	uint32_t tx_slots, rx_slots;
	uint16_t tx_rings, rx_rings, host_tx_rings, host_rx_rings, mem_id, ringid;
	uint32_t mode, extra_bufs;
	uint64_t flags;
};

struct nm_port_info {
	uint64_t memsize;
	uint32_t tx_slots, rx_slots;
	uint16_t tx_rings, rx_rings, host_tx_rings, host_rx_rings, mem_id, pad[3];
};

struct nm_pools_info {
	uint64_t memsize; uint16_t mem_id, pad[3];
	uint64_t if_ofs; uint32_t if_total, if_size;
	uint64_t ring_ofs; uint32_t ring_total, ring_size;
	uint64_t buf_ofs; uint32_t buf_total, buf_size;
};

struct nm_list { uint16_t bridge, pad; uint32_t port; };
struct nm_newif { uint32_t tx_slots, rx_slots; uint16_t tx_rings, rx_rings, mem_id, pad; };
struct nm_attach { struct nm_register reg; uint32_t port_index, pad; };
struct nm_detach { uint32_t port_index, pad; };
struct nm_port_hdr { uint32_t len, pad; };
struct nm_polling { uint32_t mode, first_cpu, cpus, pad; };

struct nm_legacy {
	char name[16];
	uint32_t version, offset, memsize, tx_slots, rx_slots;
	uint16_t tx_rings, rx_rings, ringid, cmd, arg1, arg2;
	uint32_t arg3, flags, spare2;
};

#define NIOCGINFO 0xc03c6991UL
#define NIOCREGIF 0xc03c6992UL
#define NIOCTXSYNC 0x6994UL
#define NIOCRXSYNC 0x6995UL
#define NIOCCONFIG 0xc1106996UL
#define NIOCCTRL 0xc0586997UL

enum { REGISTER = 1, PORT_INFO_GET, VALE_ATTACH, VALE_DETACH, VALE_LIST, PORT_HDR_SET, PORT_HDR_GET,
	VALE_NEWIF, VALE_DELIF, POLLING_ENABLE, POLLING_DISABLE, POOLS_INFO_GET };
enum { ALL_NIC = 1, SW, NIC_SW, ONE_NIC, PIPE_MASTER, PIPE_SLAVE, NULL_PORT, ONE_SW };
enum { EXCLUSIVE = 0x800, ACCEPT_VNET_HDR = 0x8000, RX_ONLY = 0x2000, TX_ONLY = 0x4000, NO_TX_POLL = 0x20000,
	MONITOR_TX = 0x100, MONITOR_RX = 0x200, ZCOPY_MON = 0x400 };
enum { BUF_CHANGED = 1, INDIRECT = 0x10, MOREFRAG = 0x20, TXMON = 0x40 };

#define CHECK(what) do { if (!(what)) { \
	fprintf(stderr, "%s:%d: %s (errno %d: %s)\n", __FILE__, __LINE__, #what, errno, strerror(errno)); \
	exit(1); } } while (0)

/* The call fails with this error number. */
#define FAILS(call, error) do { errno = 0; long got_ = (long)(call); \
	if (got_ != -1 || errno != (error)) { \
		fprintf(stderr, "%s:%d: %s: %ld, errno %d (%s), not %s\n", __FILE__, __LINE__, #call, \
			got_, errno, strerror(errno), #error); \
		exit(1); } } while (0)

static inline int nm_open(void)
{
	int fd = open("/dev/netmap", O_RDWR);
	CHECK(fd >= 0);
	return fd;
}

static inline int nm_ctrl_with(int fd, int reqtype, const char *name, void *body, void *options)
{
	struct nm_header header = { .version = 14, .reqtype = reqtype };
	strncpy(header.name, name, sizeof(header.name) - 1);
	header.body = (uintptr_t)body;
	header.options = (uintptr_t)options;
	return ioctl(fd, NIOCCTRL, &header);
}

static inline int nm_ctrl(int fd, int reqtype, const char *name, void *body)
{
	return nm_ctrl_with(fd, reqtype, name, body, NULL);
}

struct nm {
	int fd;
	struct nm_register reg;
	char *mem;
	struct nm_if *nifp;
};

static inline void nm_map(struct nm *d)
{
	d->mem = mmap(NULL, d->reg.memsize, PROT_READ | PROT_WRITE, MAP_SHARED, d->fd, 0);
	CHECK(d->mem != MAP_FAILED);
	d->nifp = (struct nm_if *)(d->mem + d->reg.offset);
}

static inline struct nm nm_port_with(const char *name, struct nm_register reg)
{
	struct nm d = { .fd = nm_open(), .reg = reg };
	if (!d.reg.mode)
		d.reg.mode = ALL_NIC;
	CHECK(nm_ctrl(d.fd, REGISTER, name, &d.reg) == 0);
	nm_map(&d);
	return d;
}

static inline struct nm nm_port(const char *name)
{
	return nm_port_with(name, (struct nm_register){ 0 });
}

static inline struct nm_ring *nm_ring_at(struct nm *d, int i)
{
	CHECK(d->nifp->ring_ofs[i] != 0);
	return (struct nm_ring *)((char *)d->nifp + d->nifp->ring_ofs[i]);
}

static inline struct nm_ring *nm_tx(struct nm *d, int i)
{
	return nm_ring_at(d, i);
}

static inline struct nm_ring *nm_rx(struct nm *d, int i)
{
	return nm_ring_at(d, i + d->nifp->ni_tx_rings + d->nifp->ni_host_tx_rings);
}

static inline char *nm_buf(struct nm_ring *r, uint32_t idx)
{
	return (char *)r + r->buf_ofs + (uint64_t)idx * r->nr_buf_size;
}

static inline uint32_t nm_next(struct nm_ring *r, uint32_t i)
{
	return i + 1 == r->num_slots ? 0 : i + 1;
}

/* Gives a slot's frame to a slot of another ring, which gives its buffer for it. */
static inline void nm_swap(struct nm_slot *from, struct nm_slot *to)
{
	uint32_t buf = to->buf_idx;
	to->buf_idx = from->buf_idx;
	to->len = from->len;
	from->buf_idx = buf;
	from->flags = to->flags = BUF_CHANGED;
}

/* Waits until a thread, given by its number, sleeps. */
static inline void nm_until_asleep(int tid)
{
	char path[32], line[512], *end;
	snprintf(path, sizeof(path), "/proc/%d/stat", tid);
	for (;;) {
		FILE *file = fopen(path, "r");
		CHECK(file && fgets(line, sizeof(line), file) && (end = strrchr(line, ')')));
		fclose(file);
		if (end[2] == 'S')
			return;
		sched_yield();
	}
}

static inline uint32_t nm_space(struct nm_ring *r)
{
	int n = (int)r->tail - (int)r->head;
	return n < 0 ? n + (int)r->num_slots : n;
}

/* A frame from a station to one or all others, with a number in it. */
static inline void nm_frame(char *at, int from, int to, uint32_t number)
{
	memset(at, 0, 60);
	if (to < 0) {
		memset(at, 0xff, 6);
	} else {
		at[0] = 2;
		at[5] = to;
	}
	at[6] = 2;
	at[11] = from;
	at[12] = (char)0x88;
	at[13] = (char)0xb5;
	memcpy(at + 14, &number, 4);
}

/* Puts a frame into the next slot. */
static inline void nm_put(struct nm_ring *r, int from, int to, uint32_t number)
{
	CHECK(nm_space(r) > 0);
	struct nm_slot *s = &r->slot[r->head];
	nm_frame(nm_buf(r, s->buf_idx), from, to, number);
	s->len = 60;
	s->flags = 0;
	r->head = r->cur = nm_next(r, r->head);
}

/* Waits for a frame, releases it and returns its number. */
static inline uint32_t nm_get(int fd, struct nm_ring *r)
{
	while (nm_space(r) == 0) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		CHECK(poll(&p, 1, 30000) == 1 && p.revents == POLLIN);
	}
	uint32_t number;
	struct nm_slot *s = &r->slot[r->head];
	CHECK(s->len >= 18);
	memcpy(&number, nm_buf(r, s->buf_idx) + 14, 4);
	r->head = r->cur = nm_next(r, r->head);
	return number;
}

#endif
