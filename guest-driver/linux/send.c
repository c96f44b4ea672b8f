// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Sending: frames become descriptors, and the device hears of them
 *
 *   by its tail register, once for all that the stack hands in together (xmit_more);
 *   by that, but while an interrupt is expected only when it has come (send combining);
 *   or by the shared status block, and by a trap only when it sleeps.
 *
 * All of this is under the queue's lock, taking frames back too.
 */
#include <linux/dma-mapping.h>
#include <linux/if_vlan.h>
#include <linux/ip.h>
#include <linux/tcp.h>
#include <net/ip6_checksum.h>
#include <net/netfilter/nf_conntrack.h>

#include "toklat_e1000.h"

static void send_ring_doorbell(struct nic *nic)
{
	struct send_ring *ring = &nic->send;

	ring->rung = ring->next;
	ring->waiting = 0;
	nic->counts.send_doorbells++;
	writel(ring->next, nic->regs + REG_TDT);
}

/* Makes what was filled the device's. "now": nothing may wait. */
static void send_flush(struct nic *nic, bool now)
{
	struct send_ring *ring = &nic->send;

	if (csb_on(&ring->end)) {
		if (csb_publish(&ring->end, ring->next))
			send_ring_doorbell(nic);
		else
			nic->counts.send_left_out_csb++;
		ring->rung = ring->next;
	} else if (ring->expected && !now && ring->waiting < nic->combine) {
		nic->counts.send_left_out_combined++;
	} else {
		ring->expected = nic->combine;
		send_ring_doorbell(nic);
	}
}

static void send_release(struct nic *nic, struct send_buffer *buffer, int budget)
{
	if (buffer->len && buffer->page)
		dma_unmap_page(&nic->pci->dev, buffer->dma, buffer->len, DMA_TO_DEVICE);
	else if (buffer->len)
		dma_unmap_single(&nic->pci->dev, buffer->dma, buffer->len, DMA_TO_DEVICE);
	buffer->len = 0;
	if (buffer->skb)
		napi_consume_skb(buffer->skb, budget);
	buffer->skb = NULL;
}

/* True if the device is done with the oldest frame. */
static bool send_is_done(const struct send_ring *ring, u32 head)
{
	u32 last = ring->buffer[ring->oldest].last;

	if (csb_on(&ring->end))
		return ring_distance(ring->oldest, head, ring->size) > ring_distance(ring->oldest, last, ring->size);
	if (!(READ_ONCE(ring->desc[last].upper) & cpu_to_le32(SEND_DD)))
		return false;
	dma_rmb();
	return true;
}

/* Takes back what is sent; returns how many frames. */
static u32 send_reclaim(struct nic *nic, int budget)
{
	struct send_ring *ring = &nic->send;
	u32 head = csb_on(&ring->end) ? csb_head(&ring->end, ring->oldest) : 0;
	u32 frames = 0, bytes = 0;

	while (ring->oldest != ring->next && send_is_done(ring, head)) {
		u32 end = ring_after(ring->buffer[ring->oldest].last, ring->size);

		while (ring->oldest != end) {
			struct send_buffer *buffer = &ring->buffer[ring->oldest];

			if (buffer->skb)
				bytes += buffer->skb->len;
			send_release(nic, buffer, budget);
			ring->oldest = ring_after(ring->oldest, ring->size);
		}
		frames++;
	}
	if (frames && !csb_on(&ring->end))
		netdev_completed_queue(nic->dev, frames, bytes);
	return frames;
}

/* Asks for an interrupt when half of what is on its way is sent, and looks once more. */
static void send_want_room(struct nic *nic)
{
	struct send_ring *ring = &nic->send;
	u32 half = ring->oldest + (ring_distance(ring->oldest, ring->next, ring->size) + 1) / 2;

	csb_want(&ring->end, half < ring->size ? half : half - ring->size);
	if (!send_reclaim(nic, 0) || send_free(ring) >= SEND_ROOM)
		return;
	/* The device may have passed that index already. */
	csb_want(&ring->end, CSB_NONE);
	send_reclaim(nic, 0);
}

/* The queue is stopped: lets it go on if there is room, else sees to it that an interrupt comes when there is. */
static void send_wait_for_room(struct nic *nic)
{
	struct send_ring *ring = &nic->send;

	if (csb_on(&ring->end) && send_free(ring) < SEND_ROOM)
		send_want_room(nic);
	if (send_free(ring) < SEND_ROOM)
		return;
	if (csb_on(&ring->end))
		csb_unwant(&ring->end);
	netif_wake_queue(nic->dev);
}

/* A part of polling: takes frames back, and sends what waited for that. False if it could not look. */
bool send_poll(struct nic *nic, int budget)
{
	struct netdev_queue *queue = netdev_get_tx_queue(nic->dev, 0);
	struct send_ring *ring = &nic->send;

	/* Without a budget it is called from anywhere, maybe by who holds the lock. */
	if (budget)
		__netif_tx_lock(queue, smp_processor_id());
	else if (!__netif_tx_trylock(queue))
		return false;
	send_reclaim(nic, budget);
	if (ring->expected) {
		if (ring->rung != ring->next)
			send_ring_doorbell(nic);
		else
			ring->expected = ring->oldest != ring->next;
	}
	if (netif_queue_stopped(nic->dev) && netif_carrier_ok(nic->dev))
		send_wait_for_room(nic);
	__netif_tx_unlock(queue);
	return true;
}

/* What is to be done with a frame's head. */
struct plan {
	struct context_desc context;
	bool has_context;
	u32 lower;
	u32 upper;
};

/* Segmentation: the device cuts, numbers and sums up (8254x manual, 3.5). It adds lengths to the sums itself. */
static int plan_segments(struct sk_buff *skb, struct plan *plan)
{
	u32 transport = skb_transport_offset(skb), header = skb_tcp_all_headers(skb);
	u32 command = SEND_DEXT | SEND_TSE | CONTEXT_TCP | (skb->len - header);
	int error = skb_cow_head(skb, 0);

	if (error)
		return error;
	plan->upper |= SEND_TXSM;
	if (skb->protocol == htons(ETH_P_IP)) {
		struct iphdr *ip = ip_hdr(skb);

		ip->tot_len = 0;
		ip->check = 0;
		tcp_hdr(skb)->check = ~csum_tcpudp_magic(ip->saddr, ip->daddr, 0, IPPROTO_TCP, 0);
		command |= CONTEXT_IP4;
		plan->upper |= SEND_IXSM;
		plan->context.ipcso = skb_network_offset(skb) + offsetof(struct iphdr, check);
		plan->context.ipcse = cpu_to_le16(transport - 1);
	} else {
		tcp_v6_gso_csum_prep(skb);
	}
	plan->context.ipcss = skb_network_offset(skb);
	plan->context.tucss = transport;
	plan->context.tucso = transport + offsetof(struct tcphdr, check);
	plan->context.command = cpu_to_le32(command);
	plan->context.header = header;
	plan->context.mss = cpu_to_le16(skb_shinfo(skb)->gso_size);
	plan->has_context = true;
	plan->lower |= SEND_TSE;
	return 0;
}

static int plan_checksum(struct sk_buff *skb, struct plan *plan)
{
	u32 start = skb_checksum_start_offset(skb), at = start + skb->csum_offset;

	/* A context has a byte for each. */
	if (at > 255)
		return skb_checksum_help(skb);
	plan->context.tucss = start;
	plan->context.tucso = at;
	plan->context.command = cpu_to_le32(SEND_DEXT | (skb->csum_offset == 16 ? CONTEXT_TCP : 0));
	plan->has_context = true;
	plan->upper |= SEND_TXSM;
	return 0;
}

static int plan_frame(struct sk_buff *skb, struct plan *plan)
{
	*plan = (struct plan){ .lower = SEND_DATA | SEND_DEXT | SEND_IFCS };
	if (skb_vlan_tag_present(skb)) {
		plan->lower |= SEND_VLE;
		plan->upper |= (u32)skb_vlan_tag_get(skb) << SEND_TAG_SHIFT;
	}
	if (skb_is_gso(skb))
		return plan_segments(skb, plan);
	if (skb->ip_summed == CHECKSUM_PARTIAL)
		return plan_checksum(skb, plan);
	return 0;
}

static struct send_buffer *send_next(struct send_ring *ring)
{
	struct send_buffer *buffer = &ring->buffer[ring->next];

	buffer->len = 0;
	buffer->skb = NULL;
	ring->next = ring_after(ring->next, ring->size);
	return buffer;
}

/* The device keeps the last context of each kind; only those for checksums come twice the same. */
static void send_context(struct send_ring *ring, const struct plan *plan)
{
	bool same = !memcmp(&ring->context, &plan->context, sizeof(ring->context));

	if (!plan->has_context || (same && !(plan->lower & SEND_TSE)))
		return;
	memcpy(&ring->desc[ring->next], &plan->context, sizeof(plan->context));
	if (!(plan->lower & SEND_TSE))
		ring->context = plan->context;
	send_next(ring);
}

/* Descriptors for a piece of memory, which is mapped as a whole: the first of them has the mapping. */
static void send_piece(struct send_ring *ring, const struct plan *plan, dma_addr_t dma, u32 len, bool page)
{
	u32 at = 0;

	do {
		u32 part = min_t(u32, len - at, PIECE_MOST);
		struct send_desc *desc = &ring->desc[ring->next];
		struct send_buffer *buffer = send_next(ring);

		desc->address = cpu_to_le64(dma + at);
		desc->lower = cpu_to_le32(plan->lower | part);
		desc->upper = cpu_to_le32(plan->upper);
		if (!at) {
			buffer->dma = dma;
			buffer->len = len;
			buffer->page = page;
		}
		at += part;
	} while (at < len);
}

static int send_pieces(struct nic *nic, struct sk_buff *skb, const struct plan *plan)
{
	struct device *device = &nic->pci->dev;
	u32 head = skb_headlen(skb);
	dma_addr_t dma;
	int i;

	dma = dma_map_single(device, skb->data, head, DMA_TO_DEVICE);
	if (dma_mapping_error(device, dma))
		return -ENOMEM;
	send_piece(&nic->send, plan, dma, head, false);
	for (i = 0; i < skb_shinfo(skb)->nr_frags; i++) {
		const skb_frag_t *frag = &skb_shinfo(skb)->frags[i];

		if (!skb_frag_size(frag))
			continue;
		dma = skb_frag_dma_map(device, frag, 0, skb_frag_size(frag), DMA_TO_DEVICE);
		if (dma_mapping_error(device, dma))
			return -ENOMEM;
		send_piece(&nic->send, plan, dma, skb_frag_size(frag), true);
	}
	return 0;
}

/* Fills descriptors with a frame, or none. */
static int send_fill(struct nic *nic, struct sk_buff *skb, const struct plan *plan)
{
	struct send_ring *ring = &nic->send;
	struct context_desc context = ring->context;
	u32 first = ring->next, last;
	int error;

	send_context(ring, plan);
	error = send_pieces(nic, skb, plan);
	if (error) {
		u32 end = ring->next;

		for (ring->next = first; first != end; first = ring_after(first, ring->size))
			send_release(nic, &ring->buffer[first], 0);
		ring->context = context;
		return error;
	}
	last = ring->next ? ring->next - 1 : ring->size - 1;
	ring->desc[last].lower |= cpu_to_le32(SEND_EOP | SEND_RS);
	ring->buffer[last].skb = skb;
	ring->buffer[first].last = last;
	return 0;
}

/* True if the device is to hear of it at once. Nobody waits for these frames: they are taken back some time. */
static bool send_sent_csb(struct nic *nic, struct sk_buff *skb)
{
	skb_orphan(skb);
	nf_reset_ct(skb);
	if (nic->tidy_ms && !delayed_work_pending(&nic->tidy))
		schedule_delayed_work(&nic->tidy, msecs_to_jiffies(nic->tidy_ms));
	return !netdev_xmit_more();
}

netdev_tx_t send_frame(struct sk_buff *skb, struct net_device *dev)
{
	struct nic *nic = netdev_priv(dev);
	struct send_ring *ring = &nic->send;
	struct plan plan;
	bool flush;

	if (unlikely(eth_skb_pad(skb))) {
		dev_core_stats_tx_dropped_inc(dev);
		goto dropped;
	}
	if (unlikely(send_free(ring) < SEND_ROOM)) {
		netif_stop_queue(dev);
		send_wait_for_room(nic);
		return NETDEV_TX_BUSY;
	}
	if (unlikely(plan_frame(skb, &plan) || send_fill(nic, skb, &plan))) {
		dev_kfree_skb_any(skb);
		dev_core_stats_tx_dropped_inc(dev);
		goto dropped;
	}
	dev_sw_netstats_tx_add(dev, 1, skb->len);
	skb_tx_timestamp(skb);
	ring->waiting++;
	if (csb_on(&ring->end))
		flush = send_sent_csb(nic, skb);
	else
		flush = __netdev_sent_queue(dev, skb->len, netdev_xmit_more());
	if (unlikely(send_free(ring) < SEND_ROOM)) {
		nic->counts.send_stops++;
		netif_stop_queue(dev);
		send_flush(nic, true);
		/* Somebody may have made room before it was stopped: with the lock, only the device may. */
		send_reclaim(nic, 0);
		send_wait_for_room(nic);
		return NETDEV_TX_OK;
	}
	if (!flush && !netif_queue_stopped(dev)) {
		nic->counts.send_left_out_more++;
		return NETDEV_TX_OK;
	}
	send_flush(nic, false);
	if (csb_on(&ring->end) && ring_distance(ring->oldest, ring->next, ring->size) > RECLAIM_BATCH)
		nic->counts.interrupts_saved += send_reclaim(nic, 0) != 0;
	return NETDEV_TX_OK;
dropped:
	if (ring->rung != ring->next && !netdev_xmit_more())
		send_flush(nic, false);
	return NETDEV_TX_OK;
}

netdev_features_t send_features(struct sk_buff *skb, struct net_device *dev, netdev_features_t features)
{
	if (skb_is_gso(skb) && skb_tcp_all_headers(skb) > HEADER_MOST)
		features &= ~NETIF_F_GSO_MASK;
	return vlan_features_check(skb, features);
}

int send_open(struct nic *nic)
{
	struct send_ring *ring = &nic->send;

	ring->desc = dma_alloc_coherent(&nic->pci->dev, ring->size * sizeof(*ring->desc), &ring->dma, GFP_KERNEL);
	ring->buffer = kvcalloc(ring->size, sizeof(*ring->buffer), GFP_KERNEL);
	ring->next = 0;
	ring->oldest = 0;
	ring->rung = 0;
	ring->waiting = 0;
	ring->expected = false;
	ring->end.lines = NULL;
	memset(&ring->context, 0, sizeof(ring->context));
	netdev_reset_queue(nic->dev);
	if (ring->desc && ring->buffer)
		return 0;
	send_close(nic);
	return -ENOMEM;
}

/* The device does not send any more. */
void send_close(struct nic *nic)
{
	struct send_ring *ring = &nic->send;

	while (ring->buffer && ring->oldest != ring->next) {
		send_release(nic, &ring->buffer[ring->oldest], 0);
		ring->oldest = ring_after(ring->oldest, ring->size);
	}
	kvfree(ring->buffer);
	ring->buffer = NULL;
	if (ring->desc)
		dma_free_coherent(&nic->pci->dev, ring->size * sizeof(*ring->desc), ring->desc, ring->dma);
	ring->desc = NULL;
}
