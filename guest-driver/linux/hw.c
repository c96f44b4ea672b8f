// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Registers for everything rare: reset, addresses and filters, interrupts, rings. */
#include <linux/delay.h>
#include <linux/if_vlan.h>

#include "toklat_e1000.h"

/* Vectors of the 82574L. */
#define VECTOR_FRAMES	0
#define VECTOR_OTHER	1

/* Stops the NIC and takes it back to its defaults; behind this it does no DMA. */
int nic_restart(struct nic *nic)
{
	int tries;

	reg_set(nic, REG_IMC, ~0);
	reg_set(nic, REG_RCTL, 0);
	reg_set(nic, REG_TCTL, TCTL_PSP);
	reg_get(nic, REG_STATUS);
	usleep_range(1000, 2000);
	reg_set(nic, REG_CTRL, CTRL_RST);
	for (tries = 0; tries < 10; tries++) {
		/* It reads its EEPROM meanwhile. */
		usleep_range(5000, 6000);
		if (!(reg_get(nic, REG_CTRL) & CTRL_RST))
			break;
	}
	if (tries == 10)
		return -EIO;
	reg_set(nic, REG_IMC, ~0);
	reg_get(nic, REG_ICR);
	return 0;
}

/* The address that a reset has loaded from the EEPROM. */
int nic_read_address(struct nic *nic, u8 *address)
{
	u32 low = reg_get(nic, REG_RAL(0)), high = reg_get(nic, REG_RAH(0));
	int i;

	for (i = 0; i < ETH_ALEN; i++)
		address[i] = i < 4 ? low >> (8 * i) : high >> (8 * (i - 4));
	return is_valid_ether_addr(address) ? 0 : -EADDRNOTAVAIL;
}

static void nic_set_exact(struct nic *nic, u32 entry, const u8 *address)
{
	u32 low = 0, high = 0;

	if (address) {
		low = address[0] | address[1] << 8 | address[2] << 16 | (u32)address[3] << 24;
		high = address[4] | address[5] << 8 | RAH_AV;
	}
	/* Invalid while it is half written. */
	reg_set(nic, REG_RAH(entry), 0);
	reg_set(nic, REG_RAL(entry), low);
	if (high)
		reg_set(nic, REG_RAH(entry), high);
}

/* Multicast addresses, by the hash of RCTL.MO 0: the upper 12 bits of the last two bytes (8254x manual, 13.5.1). */
static void nic_set_multicast(struct nic *nic)
{
	struct netdev_hw_addr *entry;
	u32 table[MTA_WORDS] = {};
	int i;

	netdev_for_each_mc_addr(entry, nic->dev) {
		u32 hash = entry->addr[4] >> 4 | entry->addr[5] << 4;

		table[hash >> 5] |= BIT(hash & 31);
	}
	for (i = 0; i < MTA_WORDS; i++) {
		if (table[i] == nic->multicast[i])
			continue;
		reg_set(nic, REG_MTA(i), table[i]);
		nic->multicast[i] = table[i];
	}
}

/* Which frames are received, but for RCTL; called with the device's addresses locked. */
void nic_set_filters(struct net_device *dev)
{
	struct nic *nic = netdev_priv(dev);
	struct netdev_hw_addr *entry;
	u32 filters = RCTL_BAM, exact = 1;

	if (dev->flags & IFF_PROMISC)
		filters |= RCTL_UPE | RCTL_MPE;
	else if (dev->flags & IFF_ALLMULTI)
		filters |= RCTL_MPE;
	if (netdev_uc_count(dev) >= RAR_ENTRIES)
		filters |= RCTL_UPE;
	else
		netdev_for_each_uc_addr(entry, dev)
			nic_set_exact(nic, exact++, entry->addr);
	while (exact < RAR_ENTRIES)
		nic_set_exact(nic, exact++, NULL);
	nic_set_exact(nic, 0, dev->dev_addr);
	nic_set_multicast(nic);
	if (dev->mtu > ETH_DATA_LEN)
		filters |= RCTL_LPE;
	nic->filters = filters;
}

/* Tags are taken off, and put in where a descriptor says so. */
void nic_set_vlan(struct nic *nic)
{
	u32 control = CTRL_SLU | CTRL_ASDE | CTRL_FD;

	if (nic->dev->features & NETIF_F_HW_VLAN_CTAG_RX)
		control |= CTRL_VME;
	reg_set(nic, REG_CTRL, control);
}

void nic_set_checksum(struct nic *nic)
{
	reg_set(nic, REG_RXCSUM, nic->dev->features & NETIF_F_RXCSUM ? RXCSUM_IPOFL | RXCSUM_TUOFL : 0);
}

void nic_set_interval(struct nic *nic)
{
	reg_set(nic, nic->msix ? REG_EITR(VECTOR_FRAMES) : REG_ITR, nic->interval);
}

/* Lets frames in that the filters pass. */
void nic_receive(struct nic *nic)
{
	reg_set(nic, REG_RCTL, nic->filters | RCTL_EN);
}

static void nic_configure_send(struct nic *nic)
{
	const struct send_ring *ring = &nic->send;

	reg_set(nic, REG_TDBAL, lower_32_bits(ring->dma));
	reg_set(nic, REG_TDBAH, upper_32_bits(ring->dma));
	reg_set(nic, REG_TDLEN, ring->size * sizeof(struct send_desc));
	reg_set(nic, REG_TDH, 0);
	reg_set(nic, REG_TDT, 0);
	reg_set(nic, REG_TIDV, 0);
	reg_set(nic, REG_TADV, 0);
	reg_set(nic, REG_TXDCTL, TXDCTL_GRAN | TXDCTL_COUNT_DESC | TXDCTL_WTHRESH_1);
	/* Gaps between frames, and what half duplex needs, as the manual has them for copper (13.4.33, 13.4.34). */
	reg_set(nic, REG_TIPG, 8 | 8 << 10 | 6 << 20);
	reg_set(nic, REG_TCTL, TCTL_EN | TCTL_PSP | 15 << TCTL_CT_SHIFT | 64 << TCTL_COLD_SHIFT);
}

static void nic_configure_receive(struct nic *nic)
{
	const struct receive_ring *ring = &nic->receive;

	reg_set(nic, REG_RDBAL, lower_32_bits(ring->dma));
	reg_set(nic, REG_RDBAH, upper_32_bits(ring->dma));
	reg_set(nic, REG_RDLEN, ring->size * sizeof(struct receive_desc));
	reg_set(nic, REG_RDH, 0);
	reg_set(nic, REG_RDT, 0);
	reg_set(nic, REG_RDTR, 0);
	reg_set(nic, REG_RADV, 0);
	nic_set_checksum(nic);
	nic_receive(nic);
}

/* Frames have a vector that clears and masks its own causes; the rest has another. */
static void nic_configure_vectors(struct nic *nic)
{
	reg_set(nic, REG_CTRL_EXT, CTRL_EXT_PBA_CLR | CTRL_EXT_EIAME | CTRL_EXT_DRV_LOAD);
	reg_set(nic, REG_EIAC, CAUSES_QUEUES);
	reg_set(nic, REG_IVAR, (VECTOR_FRAMES | IVAR_VALID) << IVAR_RXQ0 |
			       (VECTOR_FRAMES | IVAR_VALID) << IVAR_TXQ0 |
			       (VECTOR_OTHER | IVAR_VALID) << IVAR_OTHER);
}

/* After a reset: everything but the first buffers, and interrupts. */
void nic_configure(struct nic *nic)
{
	int i;

	nic_set_vlan(nic);
	reg_set(nic, REG_VET, ETH_P_8021Q);
	for (i = 0; i < VFTA_WORDS; i++)
		reg_set(nic, REG_VFTA(i), 0);
	for (i = 0; i < MTA_WORDS; i++)
		reg_set(nic, REG_MTA(i), 0);
	memset(nic->multicast, 0, sizeof(nic->multicast));
	netif_addr_lock_bh(nic->dev);
	nic_set_filters(nic->dev);
	netif_addr_unlock_bh(nic->dev);
	if (nic->msix)
		nic_configure_vectors(nic);
	nic_set_interval(nic);
	nic_configure_send(nic);
	nic_configure_receive(nic);
}

void nic_enable_interrupts(struct nic *nic)
{
	nic->masked = false;
	reg_set(nic, REG_IMS, CAUSE_LSC | (nic->msix ? CAUSES_QUEUES | CAUSE_OTHER : CAUSES_DATA));
}

void nic_disable_interrupts(struct nic *nic)
{
	reg_set(nic, REG_IMC, ~0);
	reg_get(nic, REG_STATUS);
}
