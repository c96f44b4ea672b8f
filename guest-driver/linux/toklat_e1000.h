/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* What the parts of the driver share: the NIC, its two rings, and register accesses that count themselves. */
#ifndef TOKLAT_E1000_H
#define TOKLAT_E1000_H

#include <linux/etherdevice.h>
#include <linux/io.h>
#include <linux/netdevice.h>
#include <linux/pci.h>
#include <linux/skbuff.h>
#include <linux/workqueue.h>

#include "csb.h"
#include "regs.h"

#define NAME		"toklat_e1000"
#define SUBSYSTEM_CSB	0x1101

#define RING_LEAST	64
#define RING_MOST	4096
#define SEND_USUAL	256
#define RECEIVE_USUAL	512
#define RING_STEP	8

/* Bytes that the NIC may write to one buffer, and what is around them. */
#define BUFFER_SIZE	2048
#define BUFFER_PAD	(NET_SKB_PAD + NET_IP_ALIGN)
#define BUFFER_WHOLE	(SKB_DATA_ALIGN(BUFFER_PAD + BUFFER_SIZE) + \
			 SKB_DATA_ALIGN(sizeof(struct skb_shared_info)))
/* Frames up to this length are copied, and their buffers used again. */
#define COPY_BREAK	256
/* Buffers that are given back together. */
#define REFILL_BATCH	16
#define FCS_LEN		4
#define MTU_MOST	9216

/* Most bytes of one descriptor. */
#define PIECE_MOST	8192
/* Descriptors that the largest frame takes: its fragments, those that are cut, its head, its context. */
#define SEND_ROOM	(MAX_SKB_FRAGS + 65536 / PIECE_MOST + 2)
/* A header that is repeated in each segment may have so many bytes (8254x manual, 3.5.2). */
#define HEADER_MOST	240
/* Frames whose memory is taken back together, when sending goes by the status block. */
#define RECLAIM_BATCH	32

struct send_buffer {
	struct sk_buff *skb;	/* at a frame's last descriptor */
	dma_addr_t dma;
	u32 len;		/* 0: nothing is mapped */
	u16 last;		/* at a frame's first: its last descriptor */
	bool page;
};

struct send_ring {
	struct send_desc *desc;
	struct send_buffer *buffer;
	dma_addr_t dma;
	u32 size;
	u32 next;		/* filled next */
	u32 oldest;		/* not taken back yet */
	u32 rung;		/* the tail that the device was told of */
	u32 waiting;		/* frames behind that */
	bool expected;		/* send combining: an interrupt is on its way */
	struct context_desc context;	/* the one that the device has */
	struct csb_end end;
};

struct receive_buffer {
	void *data;
	dma_addr_t dma;
};

struct receive_ring {
	struct receive_desc *desc;
	struct receive_buffer *buffer;
	dma_addr_t dma;
	u32 size;
	u32 next;		/* filled next */
	u32 oldest;		/* the device fills this one next */
	struct sk_buff *skb;	/* a frame that is not all there */
	bool skips;		/* the rest of a frame that was given up */
	struct csb_end end;
};

/* What the driver has done; each has one writer at a time. */
struct counts {
	unsigned long register_reads;
	unsigned long register_writes;
	unsigned long send_doorbells;
	unsigned long send_left_out_more;
	unsigned long send_left_out_combined;
	unsigned long send_left_out_csb;
	unsigned long receive_doorbells;
	unsigned long receive_left_out_csb;
	unsigned long interrupts;
	unsigned long interrupts_saved;
	unsigned long send_stops;
	unsigned long receive_no_memory;
	unsigned long resets;
};

struct nic {
	struct net_device *dev;
	struct pci_dev *pci;
	void __iomem *regs;
	struct napi_struct napi;
	struct send_ring send;
	struct receive_ring receive;
	struct counts counts;

	bool up;		/* from the end of go_up to the begin of go_down */
	bool is_82574;
	bool msix;		/* vector 0: frames; vector 1: the rest */
	bool masked;		/* frames' interrupts, until polling ends */
	bool announced;		/* an interrupt began this round of polling */
	u32 combine;		/* frames that wait at most for an interrupt; 0: none */
	u32 tidy_ms;		/* sent frames are taken back after so long, with a status block; 0: never */
	u32 interval;		/* between two interrupts, in units of 256 ns */
	u32 multicast[MTA_WORDS];	/* as the registers have it */
	u32 filters;		/* RCTL without EN */
	u64 missed;		/* frames that found no buffer, until they were asked for last */

	struct csb_page *csb;
	dma_addr_t csb_dma;

	struct work_struct link;
	struct work_struct reset;
	struct delayed_work tidy;
};

static inline u32 reg_get(struct nic *nic, u32 at)
{
	nic->counts.register_reads++;
	return readl(nic->regs + at);
}

static inline void reg_set(struct nic *nic, u32 at, u32 value)
{
	nic->counts.register_writes++;
	writel(value, nic->regs + at);
}

static inline u32 ring_after(u32 at, u32 size)
{
	return at + 1 == size ? 0 : at + 1;
}

/* From one index to another. */
static inline u32 ring_distance(u32 from, u32 to, u32 size)
{
	return to >= from ? to - from : to + size - from;
}

static inline u32 send_free(const struct send_ring *ring)
{
	return ring->size - 1 - ring_distance(ring->oldest, ring->next, ring->size);
}

/* hw.c */
int nic_restart(struct nic *nic);
int nic_read_address(struct nic *nic, u8 *address);
void nic_configure(struct nic *nic);
void nic_enable_interrupts(struct nic *nic);
void nic_disable_interrupts(struct nic *nic);
void nic_set_interval(struct nic *nic);
void nic_set_filters(struct net_device *dev);
void nic_receive(struct nic *nic);
void nic_set_vlan(struct nic *nic);
void nic_set_checksum(struct nic *nic);

/* send.c */
int send_open(struct nic *nic);
void send_close(struct nic *nic);
netdev_tx_t send_frame(struct sk_buff *skb, struct net_device *dev);
netdev_features_t send_features(struct sk_buff *skb, struct net_device *dev, netdev_features_t features);
bool send_poll(struct nic *nic, int budget);

/* receive.c */
int receive_open(struct nic *nic);
void receive_close(struct nic *nic);
int receive_poll(struct nic *nic, int budget);
bool receive_waits(struct nic *nic);
void receive_refill(struct nic *nic);

/* main.c */
int nic_reopen(struct nic *nic);

/* ethtool.c */
extern const struct ethtool_ops nic_ethtool_ops;

#endif
