// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Receiving: buffers that become frames as they are, and are given back in batches. */
#include <linux/dma-mapping.h>
#include <linux/if_vlan.h>
#include <linux/prefetch.h>

#include "toklat_e1000.h"

static bool receive_fill_one(struct nic *nic, struct receive_buffer *buffer)
{
	if (buffer->data)
		return true;
	buffer->data = netdev_alloc_frag(BUFFER_WHOLE);
	if (!buffer->data)
		return false;
	buffer->dma = dma_map_single(&nic->pci->dev, buffer->data + BUFFER_PAD, BUFFER_SIZE, DMA_FROM_DEVICE);
	if (!dma_mapping_error(&nic->pci->dev, buffer->dma))
		return true;
	skb_free_frag(buffer->data);
	buffer->data = NULL;
	return false;
}

/* Gives the device up to "most" buffers; true if there is memory. */
static bool receive_fill(struct nic *nic, u32 most)
{
	struct receive_ring *ring = &nic->receive;

	while (most--) {
		struct receive_desc *desc = &ring->desc[ring->next];
		struct receive_buffer *buffer = &ring->buffer[ring->next];

		if (!receive_fill_one(nic, buffer)) {
			nic->counts.receive_no_memory++;
			return false;
		}
		desc->address = cpu_to_le64(buffer->dma);
		desc->status = 0;
		ring->next = ring_after(ring->next, ring->size);
	}
	return true;
}

static u32 receive_unfilled(const struct receive_ring *ring)
{
	return ring->size - 1 - ring_distance(ring->oldest, ring->next, ring->size);
}

/* Fills all that is empty and tells the device, in a way that traps if it must. */
void receive_refill(struct nic *nic)
{
	struct receive_ring *ring = &nic->receive;
	u32 before = ring->next;

	receive_fill(nic, receive_unfilled(ring));
	if (ring->next == before)
		return;
	if (csb_on(&ring->end) && !csb_publish(&ring->end, ring->next)) {
		nic->counts.receive_left_out_csb++;
		return;
	}
	nic->counts.receive_doorbells++;
	writel(ring->next, nic->regs + REG_RDT);
}

static struct receive_desc *receive_ready(const struct receive_ring *ring)
{
	struct receive_desc *desc = &ring->desc[ring->oldest];

	if (ring->oldest == ring->next || !(READ_ONCE(desc->status) & RECEIVE_DD))
		return NULL;
	/* The rest of the descriptor, and the frame, after that. */
	dma_rmb();
	return desc;
}

/* True if a frame is there. */
bool receive_waits(struct nic *nic)
{
	return receive_ready(&nic->receive);
}

/* The oldest buffer's bytes as a frame: a copy if there are few. */
static struct sk_buff *receive_first(struct nic *nic, struct receive_buffer *buffer, u32 len)
{
	struct device *device = &nic->pci->dev;
	struct sk_buff *skb;

	if (len <= COPY_BREAK) {
		skb = napi_alloc_skb(&nic->napi, len);
		if (!skb)
			return NULL;
		dma_sync_single_for_cpu(device, buffer->dma, len, DMA_FROM_DEVICE);
		skb_put_data(skb, buffer->data + BUFFER_PAD, len);
		dma_sync_single_for_device(device, buffer->dma, len, DMA_FROM_DEVICE);
		return skb;
	}
	skb = napi_build_skb(buffer->data, BUFFER_WHOLE);
	if (!skb)
		return NULL;
	dma_unmap_single(device, buffer->dma, BUFFER_SIZE, DMA_FROM_DEVICE);
	buffer->data = NULL;
	skb_reserve(skb, BUFFER_PAD);
	skb_put(skb, len);
	return skb;
}

/* Hangs the oldest buffer behind a frame that is longer than one. */
static bool receive_more(struct nic *nic, struct sk_buff *skb, struct receive_buffer *buffer, u32 len)
{
	struct page *page = virt_to_head_page(buffer->data);
	u32 offset = buffer->data + BUFFER_PAD - page_address(page);

	if (skb_shinfo(skb)->nr_frags == MAX_SKB_FRAGS)
		return false;
	dma_unmap_single(&nic->pci->dev, buffer->dma, BUFFER_SIZE, DMA_FROM_DEVICE);
	skb_add_rx_frag(skb, skb_shinfo(skb)->nr_frags, page, offset, len, BUFFER_WHOLE);
	buffer->data = NULL;
	return true;
}

static void receive_deliver(struct nic *nic, struct sk_buff *skb, const struct receive_desc *desc)
{
	u8 sums = desc->status & (RECEIVE_IXSM | RECEIVE_TCPCS | RECEIVE_UDPCS);

	dev_sw_netstats_rx_add(nic->dev, skb->len);
	if (nic->dev->features & NETIF_F_RXCSUM && sums && !(sums & RECEIVE_IXSM) &&
	    !(desc->errors & (RECEIVE_TCPE | RECEIVE_IPE)))
		skb->ip_summed = CHECKSUM_UNNECESSARY;
	if (desc->status & RECEIVE_VP)
		__vlan_hwaccel_put_tag(skb, htons(ETH_P_8021Q), le16_to_cpu(desc->tag));
	skb->protocol = eth_type_trans(skb, nic->dev);
	napi_gro_receive(&nic->napi, skb);
}

static void receive_give_up(struct nic *nic, bool error)
{
	struct receive_ring *ring = &nic->receive;

	if (ring->skb)
		dev_kfree_skb_any(ring->skb);
	ring->skb = NULL;
	ring->skips = true;
	if (error)
		DEV_STATS_INC(nic->dev, rx_errors);
	else
		DEV_STATS_INC(nic->dev, rx_dropped);
}

/* Takes the oldest descriptor. */
static void receive_one(struct nic *nic, const struct receive_desc *desc)
{
	struct receive_ring *ring = &nic->receive;
	struct receive_buffer *buffer = &ring->buffer[ring->oldest];
	u32 len = le16_to_cpu(desc->length);
	bool last = desc->status & RECEIVE_EOP;

	if (ring->skips)
		goto out;
	if (unlikely(len > BUFFER_SIZE || (last && desc->errors & RECEIVE_BROKEN))) {
		receive_give_up(nic, true);
		goto out;
	}
	if (!ring->skb)
		ring->skb = receive_first(nic, buffer, len);
	else if (!receive_more(nic, ring->skb, buffer, len))
		goto no_memory;
	if (!ring->skb)
		goto no_memory;
	/* The checksum at its end is of no use; it may begin in the buffer before. */
	if (last) {
		struct sk_buff *skb = ring->skb;

		if (unlikely(skb->len < ETH_HLEN + FCS_LEN || pskb_trim(skb, skb->len - FCS_LEN))) {
			receive_give_up(nic, true);
			goto out;
		}
		ring->skb = NULL;
		receive_deliver(nic, skb, desc);
	}
	goto out;
no_memory:
	nic->counts.receive_no_memory++;
	receive_give_up(nic, false);
out:
	if (last)
		ring->skips = false;
	ring->oldest = ring_after(ring->oldest, ring->size);
}

/* Takes up to "budget" descriptors, nearly always a frame each; returns how many. */
int receive_poll(struct nic *nic, int budget)
{
	struct receive_ring *ring = &nic->receive;
	const struct receive_desc *desc;
	int taken;

	for (taken = 0; taken < budget && (desc = receive_ready(ring)); taken++) {
		prefetch(ring->buffer[ring_after(ring->oldest, ring->size)].data + BUFFER_PAD);
		receive_one(nic, desc);
		if (receive_unfilled(ring) >= ring->size / 2)
			receive_refill(nic);
	}
	if (receive_unfilled(ring) >= REFILL_BATCH)
		receive_refill(nic);
	return taken;
}

/* A ring, full of buffers that the device does not know of yet. */
int receive_open(struct nic *nic)
{
	struct receive_ring *ring = &nic->receive;

	ring->desc = dma_alloc_coherent(&nic->pci->dev, ring->size * sizeof(*ring->desc), &ring->dma, GFP_KERNEL);
	ring->buffer = kvcalloc(ring->size, sizeof(*ring->buffer), GFP_KERNEL);
	ring->next = 0;
	ring->oldest = 0;
	ring->skips = false;
	ring->end.lines = NULL;
	if (ring->desc && ring->buffer && receive_fill(nic, ring->size - 1))
		return 0;
	receive_close(nic);
	return -ENOMEM;
}

void receive_close(struct nic *nic)
{
	struct receive_ring *ring = &nic->receive;
	u32 i;

	for (i = 0; ring->buffer && i < ring->size; i++) {
		if (!ring->buffer[i].data)
			continue;
		dma_unmap_single(&nic->pci->dev, ring->buffer[i].dma, BUFFER_SIZE, DMA_FROM_DEVICE);
		skb_free_frag(ring->buffer[i].data);
	}
	if (ring->skb)
		dev_kfree_skb_any(ring->skb);
	ring->skb = NULL;
	kvfree(ring->buffer);
	ring->buffer = NULL;
	if (ring->desc)
		dma_free_coherent(&nic->pci->dev, ring->size * sizeof(*ring->desc), ring->desc, ring->dma);
	ring->desc = NULL;
}
