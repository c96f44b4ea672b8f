// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* What ethtool shows and sets; -S tells the traps and interrupts that were taken, and those that were not. */
#include <linux/ethtool.h>

#include "toklat_e1000.h"

struct shown {
	char name[ETH_GSTRING_LEN];
	size_t at;
};

#define SHOWN(member) { #member, offsetof(struct counts, member) }

/* What each says is in README.md. */
static const struct shown shown[] = {
	SHOWN(register_reads),
	SHOWN(register_writes),
	SHOWN(send_doorbells),
	SHOWN(send_left_out_more),
	SHOWN(send_left_out_combined),
	SHOWN(send_left_out_csb),
	SHOWN(receive_doorbells),
	SHOWN(receive_left_out_csb),
	SHOWN(interrupts),
	SHOWN(interrupts_saved),
	SHOWN(send_stops),
	SHOWN(receive_no_memory),
	SHOWN(resets),
};

/* Those that are not counters of the driver's. */
static const char derived[][ETH_GSTRING_LEN] = {
	"traps_taken", "traps_saved", "status_block", "status_block_fault", "nic_missed",
};

static int count_strings(struct net_device *dev, int set)
{
	return set == ETH_SS_STATS ? ARRAY_SIZE(shown) + ARRAY_SIZE(derived) : -EOPNOTSUPP;
}

static void get_strings(struct net_device *dev, u32 set, u8 *data)
{
	int i;

	if (set != ETH_SS_STATS)
		return;
	for (i = 0; i < ARRAY_SIZE(shown); i++)
		memcpy(data + i * ETH_GSTRING_LEN, shown[i].name, ETH_GSTRING_LEN);
	memcpy(data + i * ETH_GSTRING_LEN, derived, sizeof(derived));
}

static void get_stats(struct net_device *dev, struct ethtool_stats *stats, u64 *data)
{
	struct nic *nic = netdev_priv(dev);
	const struct counts *counts = &nic->counts;
	int i;

	for (i = 0; i < ARRAY_SIZE(shown); i++)
		*data++ = *(const unsigned long *)((const char *)counts + shown[i].at);
	*data++ = counts->register_reads + counts->register_writes + counts->send_doorbells + counts->receive_doorbells;
	*data++ = counts->send_left_out_more + counts->send_left_out_combined + counts->send_left_out_csb +
		  counts->receive_left_out_csb;
	*data++ = nic->csb ? CSB_VERSION : 0;
	*data++ = csb_fault(nic);
	/* Frames that found no buffer: reading takes it back to zero. */
	if (nic->up)
		nic->missed += reg_get(nic, REG_MPC);
	*data++ = nic->missed;
}

static int get_coalesce(struct net_device *dev, struct ethtool_coalesce *coalesce,
			struct kernel_ethtool_coalesce *kernel, struct netlink_ext_ack *extack)
{
	struct nic *nic = netdev_priv(dev);

	coalesce->rx_coalesce_usecs = DIV_ROUND_UP(nic->interval * ITR_NS, NSEC_PER_USEC);
	return 0;
}

static int set_coalesce(struct net_device *dev, struct ethtool_coalesce *coalesce,
			struct kernel_ethtool_coalesce *kernel, struct netlink_ext_ack *extack)
{
	struct nic *nic = netdev_priv(dev);

	/* The register has 16 bits. */
	if (coalesce->rx_coalesce_usecs > 16000)
		return -ERANGE;
	nic->interval = coalesce->rx_coalesce_usecs * NSEC_PER_USEC / ITR_NS;
	if (nic->up)
		nic_set_interval(nic);
	return 0;
}

static void get_ringparam(struct net_device *dev, struct ethtool_ringparam *ring,
			  struct kernel_ethtool_ringparam *kernel, struct netlink_ext_ack *extack)
{
	struct nic *nic = netdev_priv(dev);

	ring->rx_max_pending = RING_MOST;
	ring->tx_max_pending = RING_MOST;
	ring->rx_pending = nic->receive.size;
	ring->tx_pending = nic->send.size;
}

static int set_ringparam(struct net_device *dev, struct ethtool_ringparam *ring,
			 struct kernel_ethtool_ringparam *kernel, struct netlink_ext_ack *extack)
{
	struct nic *nic = netdev_priv(dev);
	u32 sizes[2] = { nic->send.size, nic->receive.size };
	bool running = nic->up;
	int error = 0;

	if (ring->rx_mini_pending || ring->rx_jumbo_pending || ring->tx_pending < RING_LEAST ||
	    ring->rx_pending < RING_LEAST)
		return -EINVAL;
	/* Memory of a ring goes by its size. */
	if (running)
		dev->netdev_ops->ndo_stop(dev);
	nic->send.size = ALIGN(ring->tx_pending, RING_STEP);
	nic->receive.size = ALIGN(ring->rx_pending, RING_STEP);
	if (running)
		error = dev->netdev_ops->ndo_open(dev);
	if (error) {
		nic->send.size = sizes[0];
		nic->receive.size = sizes[1];
		if (dev->netdev_ops->ndo_open(dev))
			netif_device_detach(dev);
	}
	return error;
}

static int get_link_ksettings(struct net_device *dev, struct ethtool_link_ksettings *settings)
{
	ethtool_link_ksettings_zero_link_mode(settings, supported);
	ethtool_link_ksettings_add_link_mode(settings, supported, 1000baseT_Full);
	ethtool_link_ksettings_add_link_mode(settings, supported, TP);
	settings->base.speed = netif_carrier_ok(dev) ? SPEED_1000 : SPEED_UNKNOWN;
	settings->base.duplex = netif_carrier_ok(dev) ? DUPLEX_FULL : DUPLEX_UNKNOWN;
	settings->base.port = PORT_TP;
	settings->base.autoneg = AUTONEG_DISABLE;
	return 0;
}

const struct ethtool_ops nic_ethtool_ops = {
	.supported_coalesce_params = ETHTOOL_COALESCE_RX_USECS,
	.get_link = ethtool_op_get_link,
	.get_ts_info = ethtool_op_get_ts_info,
	.get_sset_count = count_strings,
	.get_strings = get_strings,
	.get_ethtool_stats = get_stats,
	.get_coalesce = get_coalesce,
	.set_coalesce = set_coalesce,
	.get_ringparam = get_ringparam,
	.set_ringparam = set_ringparam,
	.get_link_ksettings = get_link_ksettings,
};
