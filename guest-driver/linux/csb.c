// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Setting the shared status block up, and taking it away. */
#include <linux/dma-mapping.h>

#include "toklat_e1000.h"

/* Microseconds that the device may look on before it sleeps; it has a limit of its own. */
static unsigned int spin_us = 50;
module_param(spin_us, uint, 0444);
MODULE_PARM_DESC(spin_us, "Microseconds that the device looks on before it sleeps, with a status block (50)");

static bool csb = true;
module_param(csb, bool, 0444);
MODULE_PARM_DESC(csb, "Go by the shared status block, where the device has it (1)");

/* The high half first: the low half makes the device look. */
static void csb_set_address(struct nic *nic, u64 address)
{
	reg_set(nic, REG_CSBAH, upper_32_bits(address));
	reg_set(nic, REG_CSBAL, lower_32_bits(address));
	/* Behind this, it has. */
	reg_get(nic, REG_STATUS);
}

static bool csb_understood(const struct csb_page *page)
{
	u32 queues;

	if (virt_load_acquire(&page->host.magic) != cpu_to_le32(CSB_MAGIC))
		return false;
	queues = le32_to_cpu(READ_ONCE(page->host.queues));
	return le32_to_cpu(READ_ONCE(page->host.version)) == CSB_VERSION &&
	       (queues & 0xffff) >= 1 && queues >> 16 >= 1;
}

/* Shows the device a new block, off. Without one the driver goes by the registers: only memory can be missing. */
int csb_announce(struct nic *nic)
{
	struct csb_page *page;

	if (!csb)
		return 0;
	page = dma_alloc_coherent(&nic->pci->dev, CSB_PAGE, &nic->csb_dma, GFP_KERNEL);
	if (!page)
		return -ENOMEM;
	memset(page, 0, CSB_PAGE);
	page->guest.version = cpu_to_le32(CSB_VERSION);
	page->guest.queues = cpu_to_le32(1 | 1 << 16);
	page->guest.spin_us = cpu_to_le32(spin_us);
	page->send[0].guest.want_at = cpu_to_le32(CSB_NONE);
	page->receive[0].guest.want_at = cpu_to_le32(CSB_NONE);
	virt_store_release(&page->guest.magic, cpu_to_le32(CSB_MAGIC));
	nic->csb = page;
	csb_set_address(nic, nic->csb_dma);
	if (!csb_understood(page)) {
		netdev_info(nic->dev, "the device does not know status blocks of version 2\n");
		csb_withdraw(nic);
	}
	return 0;
}

static void csb_turn_on(struct nic *nic, struct csb_end *end, struct csb_queue *lines, u32 size, u32 tail, u32 doorbell)
{
	*end = (struct csb_end){ .lines = lines, .size = size, .tail = tail };
	WRITE_ONCE(lines->guest.tail, cpu_to_le32(tail));
	virt_store_release(&lines->guest.on, cpu_to_le32(1));
	reg_set(nic, doorbell, tail);
}

/* From now on both queues go by the block. Their rings are enabled. */
void csb_start(struct nic *nic)
{
	if (!nic->csb)
		return;
	csb_turn_on(nic, &nic->send.end, &nic->csb->send[0], nic->send.size, nic->send.next, REG_TDT);
	csb_turn_on(nic, &nic->receive.end, &nic->csb->receive[0], nic->receive.size, nic->receive.next, REG_RDT);
}

/* Nobody sends or receives. */
void csb_withdraw(struct nic *nic)
{
	if (!nic->csb)
		return;
	virt_store_release(&nic->csb->send[0].guest.on, 0);
	virt_store_release(&nic->csb->receive[0].guest.on, 0);
	nic->send.end.lines = NULL;
	nic->receive.end.lines = NULL;
	csb_set_address(nic, 0);
	dma_free_coherent(&nic->pci->dev, CSB_PAGE, nic->csb, nic->csb_dma);
	nic->csb = NULL;
}

/* Why the device has stopped; 0 while it runs. */
u32 csb_fault(const struct nic *nic)
{
	return nic->csb ? le32_to_cpu(READ_ONCE(nic->csb->host.fault)) : 0;
}
