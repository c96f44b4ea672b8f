// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * A driver of the 82540EM and the 82574L as toklat has them, which traps little.
 *
 * NICs that announce a shared status block (PCI subsystem id 0x1101) are told, and tell, most things in memory; without
 * it, doorbells are combined. Registers are not read where that can be helped: in a virtual machine a read costs a way
 * to the device and back, a write often only a message.
 *
 * Who runs when: frames are handed in under the send queue's lock, which polling takes, too, for what is sent;
 * receiving is polling's alone. Opening, closing and resetting are under the RTNL lock, while neither runs.
 */
#include <linux/dma-mapping.h>
#include <linux/interrupt.h>
#include <linux/module.h>
#include <linux/pm.h>
#include <linux/rtnetlink.h>

#include "toklat_e1000.h"

static unsigned int combine = 32;
module_param(combine, uint, 0444);
MODULE_PARM_DESC(combine, "Frames that wait at most for an interrupt that is expected; 0: none; without a status block (32)");

static unsigned int interval_us = 50;
module_param(interval_us, uint, 0444);
MODULE_PARM_DESC(interval_us, "Microseconds between two interrupts at least, at first; ethtool -C rx-usecs changes it (50)");

static unsigned int tidy_ms = 100;
module_param(tidy_ms, uint, 0444);
MODULE_PARM_DESC(tidy_ms, "Milliseconds after which sent frames are taken back if nothing else does it, with a status block (100)");

static irqreturn_t frames_came(struct nic *nic)
{
	nic->announced = true;
	napi_schedule_irqoff(&nic->napi);
	return IRQ_HANDLED;
}

/* The pin, or one message: the causes have to be read. */
static irqreturn_t on_interrupt(int irq, void *data)
{
	struct nic *nic = data;
	u32 causes = reg_get(nic, REG_ICR);

	/* Another's, or a device that is gone. */
	if (!causes || causes == ~0u)
		return IRQ_NONE;
	nic->counts.interrupts++;
	if (causes & CAUSE_LSC)
		schedule_work(&nic->link);
	if (!(causes & (CAUSES_DATA | CAUSES_QUEUES)))
		return IRQ_HANDLED;
	/* A status block is a mask by itself. */
	if (!nic->csb) {
		reg_set(nic, REG_IMC, CAUSES_DATA);
		nic->masked = true;
	}
	return frames_came(nic);
}

/* The vector of frames clears and masks its causes by itself. */
static irqreturn_t on_frames(int irq, void *data)
{
	struct nic *nic = data;

	nic->counts.interrupts++;
	nic->masked = true;
	return frames_came(nic);
}

static irqreturn_t on_other(int irq, void *data)
{
	struct nic *nic = data;

	nic->counts.interrupts++;
	reg_set(nic, REG_ICR, CAUSE_LSC | CAUSE_OTHER);
	schedule_work(&nic->link);
	reg_set(nic, REG_IMS, CAUSE_LSC | CAUSE_OTHER);
	return IRQ_HANDLED;
}

/* Polling is over: frames may interrupt again, if they may not. */
static void unmask(struct nic *nic)
{
	if (!nic->masked)
		return;
	nic->masked = false;
	reg_set(nic, REG_IMS, nic->msix ? CAUSES_QUEUES : CAUSES_DATA);
}

/* Before polling ends: asks the device for an interrupt, and looks once more. True if it may end. */
static bool may_sleep(struct nic *nic)
{
	struct csb_end *end = &nic->receive.end;

	if (!csb_on(end))
		return true;
	csb_want(end, CSB_NONE);
	if (!receive_waits(nic))
		return true;
	csb_unwant(end);
	return false;
}

static int poll(struct napi_struct *napi, int budget)
{
	struct nic *nic = container_of(napi, struct nic, napi);
	bool announced = nic->announced;
	bool sent = send_poll(nic, budget);
	int frames;

	/* Called for sending alone, by somebody who does not wait for an interrupt. */
	if (!budget)
		return 0;
	nic->announced = false;
	if (csb_on(&nic->receive.end))
		csb_unwant(&nic->receive.end);
	frames = receive_poll(nic, budget);
	nic->counts.interrupts_saved += frames && !announced;
	if (frames == budget || !sent || !may_sleep(nic))
		return budget;
	if (napi_complete_done(napi, frames))
		unmask(nic);
	return frames;
}

static void look_at_link(struct work_struct *work)
{
	struct nic *nic = container_of(work, struct nic, link);
	bool up = reg_get(nic, REG_STATUS) & STATUS_LU;

	if (up == netif_carrier_ok(nic->dev))
		return;
	netdev_info(nic->dev, "link is %s\n", up ? "up" : "down");
	if (up)
		netif_carrier_on(nic->dev);
	else
		netif_carrier_off(nic->dev);
}

/* With a status block no interrupt tells that frames are sent: their memory is taken back some time later. */
static void tidy_up(struct work_struct *work)
{
	struct nic *nic = container_of(to_delayed_work(work), struct nic, tidy);

	local_bh_disable();
	napi_schedule(&nic->napi);
	local_bh_enable();
	if (nic->tidy_ms && nic->csb && READ_ONCE(nic->send.oldest) != READ_ONCE(nic->send.next))
		schedule_delayed_work(&nic->tidy, msecs_to_jiffies(nic->tidy_ms));
}

static int take_interrupts(struct nic *nic)
{
	struct pci_dev *pci = nic->pci;
	const char *name = nic->dev->name;
	int error;

	if (!nic->msix)
		return request_irq(pci_irq_vector(pci, 0), on_interrupt, IRQF_SHARED, name, nic);
	error = request_irq(pci_irq_vector(pci, 0), on_frames, 0, name, nic);
	if (error)
		return error;
	error = request_irq(pci_irq_vector(pci, 1), on_other, 0, name, nic);
	if (error)
		free_irq(pci_irq_vector(pci, 0), nic);
	return error;
}

static void leave_interrupts(struct nic *nic)
{
	if (nic->msix)
		free_irq(pci_irq_vector(nic->pci, 1), nic);
	free_irq(pci_irq_vector(nic->pci, 0), nic);
}

/* From a NIC that was reset to one that sends and receives. */
static int go_up(struct nic *nic)
{
	int error = send_open(nic);

	if (error)
		return error;
	error = receive_open(nic);
	if (error)
		goto no_receive;
	nic_configure(nic);
	error = csb_announce(nic);
	if (error)
		goto no_block;
	reg_set(nic, REG_RDT, nic->receive.next);
	csb_start(nic);
	error = take_interrupts(nic);
	if (error)
		goto no_interrupts;
	nic->up = true;
	napi_enable(&nic->napi);
	nic_enable_interrupts(nic);
	netif_start_queue(nic->dev);
	schedule_work(&nic->link);
	/* Frames may have come before there was anybody to be told. */
	tidy_up(&nic->tidy.work);
	return 0;
no_interrupts:
	csb_withdraw(nic);
no_block:
	nic_restart(nic);
	receive_close(nic);
no_receive:
	send_close(nic);
	return error;
}

static void go_down(struct nic *nic)
{
	if (!nic->up)
		return;
	nic->up = false;
	netif_tx_disable(nic->dev);
	/* Polling unmasks at its end. */
	napi_disable(&nic->napi);
	nic_disable_interrupts(nic);
	leave_interrupts(nic);
	cancel_work_sync(&nic->link);
	cancel_delayed_work_sync(&nic->tidy);
	netif_carrier_off(nic->dev);
	csb_withdraw(nic);
	nic_restart(nic);
	receive_close(nic);
	send_close(nic);
}

static int on_open(struct net_device *dev)
{
	struct nic *nic = netdev_priv(dev);
	int error = nic_restart(nic);

	netif_carrier_off(dev);
	return error ?: go_up(nic);
}

static int on_stop(struct net_device *dev)
{
	go_down(netdev_priv(dev));
	return 0;
}

/* Takes what was changed into use. */
int nic_reopen(struct nic *nic)
{
	int error;

	if (!nic->up)
		return 0;
	go_down(nic);
	error = go_up(nic);
	if (error) {
		netdev_err(nic->dev, "cannot begin anew (%d)\n", error);
		netif_device_detach(nic->dev);
	}
	return error;
}

static void reset(struct work_struct *work)
{
	struct nic *nic = container_of(work, struct nic, reset);

	rtnl_lock();
	nic->counts.resets++;
	nic_reopen(nic);
	rtnl_unlock();
}

static void on_timeout(struct net_device *dev, unsigned int queue)
{
	struct nic *nic = netdev_priv(dev);
	const struct send_ring *ring = &nic->send;

	netdev_warn(dev, "nothing is sent: oldest %u, next %u, told %u, TDH %u, status block %s, its fault %u\n",
		    ring->oldest, ring->next, ring->rung, reg_get(nic, REG_TDH), nic->csb ? "on" : "off", csb_fault(nic));
	schedule_work(&nic->reset);
}

static void on_rx_mode(struct net_device *dev)
{
	struct nic *nic = netdev_priv(dev);

	if (!nic->up)
		return;
	nic_set_filters(dev);
	nic_receive(nic);
}

static int on_address(struct net_device *dev, void *address)
{
	int error = eth_prepare_mac_addr_change(dev, address);

	if (error)
		return error;
	eth_commit_mac_addr_change(dev, address);
	netif_addr_lock_bh(dev);
	on_rx_mode(dev);
	netif_addr_unlock_bh(dev);
	return 0;
}

static int on_mtu(struct net_device *dev, int mtu)
{
	WRITE_ONCE(dev->mtu, mtu);
	return nic_reopen(netdev_priv(dev));
}

/* One bit lets tags be taken off and put in. */
static netdev_features_t on_fix_features(struct net_device *dev, netdev_features_t features)
{
	if (!(features & NETIF_F_HW_VLAN_CTAG_RX))
		features &= ~NETIF_F_HW_VLAN_CTAG_TX;
	return features;
}

static int on_set_features(struct net_device *dev, netdev_features_t features)
{
	struct nic *nic = netdev_priv(dev);

	dev->features = features;
	if (nic->up) {
		nic_set_vlan(nic);
		nic_set_checksum(nic);
	}
	/* It is done. */
	return 1;
}

static const struct net_device_ops nic_ops = {
	.ndo_open = on_open,
	.ndo_stop = on_stop,
	.ndo_start_xmit = send_frame,
	.ndo_features_check = send_features,
	.ndo_tx_timeout = on_timeout,
	.ndo_set_mac_address = on_address,
	.ndo_validate_addr = eth_validate_addr,
	.ndo_set_rx_mode = on_rx_mode,
	.ndo_change_mtu = on_mtu,
	.ndo_fix_features = on_fix_features,
	.ndo_set_features = on_set_features,
	.ndo_get_stats64 = dev_get_tstats64,
};

static void describe(struct nic *nic)
{
	struct net_device *dev = nic->dev;

	dev->netdev_ops = &nic_ops;
	dev->ethtool_ops = &nic_ethtool_ops;
	dev->watchdog_timeo = 5 * HZ;
	dev->min_mtu = ETH_MIN_MTU;
	dev->max_mtu = MTU_MOST;
	dev->hw_features = NETIF_F_SG | NETIF_F_HW_CSUM | NETIF_F_TSO | NETIF_F_TSO6 | NETIF_F_RXCSUM |
			   NETIF_F_HW_VLAN_CTAG_RX | NETIF_F_HW_VLAN_CTAG_TX;
	dev->features = dev->hw_features | NETIF_F_HIGHDMA;
	dev->vlan_features = NETIF_F_SG | NETIF_F_HW_CSUM | NETIF_F_TSO | NETIF_F_TSO6;
	dev->priv_flags |= IFF_UNICAST_FLT;
	netif_napi_add(dev, &nic->napi, poll);
}

static int take_device(struct nic *nic)
{
	struct pci_dev *pci = nic->pci;
	int error = pcim_enable_device(pci);

	if (error)
		return error;
	error = pcim_iomap_regions(pci, BIT(0), NAME);
	if (error)
		return error;
	nic->regs = pcim_iomap_table(pci)[0];
	error = dma_set_mask_and_coherent(&pci->dev, DMA_BIT_MASK(64));
	if (error)
		error = dma_set_mask_and_coherent(&pci->dev, DMA_BIT_MASK(32));
	if (error)
		return error;
	pci_set_master(pci);
	if (nic->is_82574 && pci_alloc_irq_vectors(pci, 2, 2, PCI_IRQ_MSIX) == 2) {
		nic->msix = true;
		return 0;
	}
	error = pci_alloc_irq_vectors(pci, 1, 1, PCI_IRQ_ALL_TYPES & ~PCI_IRQ_MSIX);
	return error < 0 ? error : 0;
}

static int nic_probe(struct pci_dev *pci, const struct pci_device_id *id)
{
	struct net_device *dev = devm_alloc_etherdev(&pci->dev, sizeof(struct nic));
	u8 address[ETH_ALEN];
	struct nic *nic;
	int error;

	if (!dev)
		return -ENOMEM;
	SET_NETDEV_DEV(dev, &pci->dev);
	pci_set_drvdata(pci, dev);
	nic = netdev_priv(dev);
	nic->dev = dev;
	nic->pci = pci;
	nic->is_82574 = id->driver_data;
	nic->combine = combine;
	nic->tidy_ms = tidy_ms;
	nic->interval = min(interval_us, 16000u) * NSEC_PER_USEC / ITR_NS;
	nic->send.size = SEND_USUAL;
	nic->receive.size = RECEIVE_USUAL;
	INIT_WORK(&nic->link, look_at_link);
	INIT_WORK(&nic->reset, reset);
	INIT_DELAYED_WORK(&nic->tidy, tidy_up);
	dev->tstats = devm_netdev_alloc_pcpu_stats(&pci->dev, struct pcpu_sw_netstats);
	if (!dev->tstats)
		return -ENOMEM;
	error = take_device(nic);
	if (error)
		return error;
	describe(nic);
	error = nic_restart(nic) ?: nic_read_address(nic, address);
	if (error)
		goto failed;
	eth_hw_addr_set(dev, address);
	error = register_netdev(dev);
	if (error)
		goto failed;
	netdev_info(dev, "%s with %s interrupts\n", nic->is_82574 ? "82574L" : "82540EM",
		    nic->msix ? "MSI-X" : pci->msi_enabled ? "MSI" : "pin");
	return 0;
failed:
	netif_napi_del(&nic->napi);
	pci_free_irq_vectors(pci);
	return error;
}

static void nic_remove(struct pci_dev *pci)
{
	struct net_device *dev = pci_get_drvdata(pci);
	struct nic *nic = netdev_priv(dev);

	unregister_netdev(dev);
	cancel_work_sync(&nic->reset);
	netif_napi_del(&nic->napi);
	pci_free_irq_vectors(pci);
}

static void nic_shutdown(struct pci_dev *pci)
{
	struct net_device *dev = pci_get_drvdata(pci);

	rtnl_lock();
	netif_device_detach(dev);
	if (netif_running(dev))
		dev_close(dev);
	rtnl_unlock();
	pci_clear_master(pci);
}

static int nic_suspend(struct device *device)
{
	struct net_device *dev = dev_get_drvdata(device);

	rtnl_lock();
	netif_device_detach(dev);
	if (netif_running(dev))
		go_down(netdev_priv(dev));
	rtnl_unlock();
	return 0;
}

static int nic_resume(struct device *device)
{
	struct net_device *dev = dev_get_drvdata(device);
	int error = 0;

	rtnl_lock();
	if (netif_running(dev))
		error = on_open(dev);
	if (!error)
		netif_device_attach(dev);
	rtnl_unlock();
	return error;
}

static DEFINE_SIMPLE_DEV_PM_OPS(nic_pm_ops, nic_suspend, nic_resume);

static const struct pci_device_id nic_ids[] = {
	{ PCI_DEVICE_SUB(PCI_VENDOR_ID_INTEL, 0x100e, PCI_ANY_ID, SUBSYSTEM_CSB), .driver_data = false },
	{ PCI_DEVICE_SUB(PCI_VENDOR_ID_INTEL, 0x10d3, PCI_ANY_ID, SUBSYSTEM_CSB), .driver_data = true },
	{}
};
MODULE_DEVICE_TABLE(pci, nic_ids);

static struct pci_driver nic_driver = {
	.name = NAME,
	.id_table = nic_ids,
	.probe = nic_probe,
	.remove = nic_remove,
	.shutdown = nic_shutdown,
	.driver.pm = pm_sleep_ptr(&nic_pm_ops),
};
module_pci_driver(nic_driver);

MODULE_DESCRIPTION("toklat's 82540EM and 82574L, with send combining and a shared status block");
MODULE_AUTHOR("The toklat maintainers");
MODULE_LICENSE("Dual MIT/GPL");
