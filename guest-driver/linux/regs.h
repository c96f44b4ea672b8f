/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Registers and descriptors of the 82540EM and 82574L, as far as this driver uses them. Names and sections are those
 * of the "PCI/PCI-X Family of Gigabit Ethernet Controllers Software Developer's Manual" (chapters 3 and 13) and of
 * the "82574 GbE Controller Family Datasheet" (chapters 7 and 10).
 */
#ifndef TOKLAT_E1000_REGS_H
#define TOKLAT_E1000_REGS_H

#include <linux/bits.h>
#include <linux/types.h>

#define REG_CTRL	0x0000
#define   CTRL_FD	BIT(0)
#define   CTRL_ASDE	BIT(5)
#define   CTRL_SLU	BIT(6)
#define   CTRL_RST	BIT(26)
#define   CTRL_VME	BIT(30)
#define REG_STATUS	0x0008
#define   STATUS_FD	BIT(0)
#define   STATUS_LU	BIT(1)
#define REG_CTRL_EXT	0x0018
#define   CTRL_EXT_EIAME	BIT(24)
#define   CTRL_EXT_DRV_LOAD	BIT(28)
#define   CTRL_EXT_PBA_CLR	BIT(31)
#define REG_VET		0x0038
#define REG_ICR		0x00c0
#define REG_ITR		0x00c4
#define REG_IMS		0x00d0
#define REG_IMC		0x00d8
#define REG_EIAC	0x00dc	/* 82574L */
#define REG_IVAR	0x00e4	/* 82574L */
#define REG_EITR(n)	(0x00e8 + 4 * (n))	/* 82574L */
#define REG_RCTL	0x0100
#define   RCTL_EN	BIT(1)
#define   RCTL_UPE	BIT(3)
#define   RCTL_MPE	BIT(4)
#define   RCTL_LPE	BIT(5)
#define   RCTL_BAM	BIT(15)
#define   RCTL_VFE	BIT(18)
#define REG_TCTL	0x0400
#define   TCTL_EN	BIT(1)
#define   TCTL_PSP	BIT(3)
#define   TCTL_CT_SHIFT	4
#define   TCTL_COLD_SHIFT	12
#define REG_TIPG	0x0410
#define REG_RDBAL	0x2800
#define REG_RDBAH	0x2804
#define REG_RDLEN	0x2808
#define REG_RDH		0x2810
#define REG_RDT		0x2818
#define REG_RDTR	0x2820
#define REG_RADV	0x282c
#define REG_CSBAL	0x2830	/* the shared status block, in NICs that announce it */
#define REG_CSBAH	0x2834
#define REG_TDBAL	0x3800
#define REG_TDBAH	0x3804
#define REG_TDLEN	0x3808
#define REG_TDH		0x3810
#define REG_TDT		0x3818
#define REG_TIDV	0x3820
#define REG_TXDCTL	0x3828
#define   TXDCTL_GRAN	BIT(24)
#define   TXDCTL_COUNT_DESC	BIT(22)
#define   TXDCTL_WTHRESH_1	BIT(16)
#define REG_TADV	0x382c
#define REG_MPC		0x4010
#define REG_RXCSUM	0x5000
#define   RXCSUM_IPOFL	BIT(8)
#define   RXCSUM_TUOFL	BIT(9)
#define REG_MTA(n)	(0x5200 + 4 * (n))
#define   MTA_WORDS	128
#define REG_RAL(n)	(0x5400 + 8 * (n))
#define REG_RAH(n)	(0x5404 + 8 * (n))
#define   RAH_AV	BIT(31)
#define   RAR_ENTRIES	16
#define REG_VFTA(n)	(0x5600 + 4 * (n))
#define   VFTA_WORDS	128

/* Causes: ICR, IMS, IMC, and EIAC of the 82574L. */
#define CAUSE_TXDW	BIT(0)
#define CAUSE_LSC	BIT(2)
#define CAUSE_RXDMT0	BIT(4)
#define CAUSE_RXO	BIT(6)
#define CAUSE_RXT0	BIT(7)
#define CAUSE_RXQ0	BIT(20)
#define CAUSE_TXQ0	BIT(22)
#define CAUSE_OTHER	BIT(24)
#define CAUSES_DATA	(CAUSE_TXDW | CAUSE_RXDMT0 | CAUSE_RXO | CAUSE_RXT0)
#define CAUSES_QUEUES	(CAUSE_RXQ0 | CAUSE_TXQ0)

/* IVAR: a vector for each source, four bits apart; the fourth bit makes it valid. */
#define IVAR_VALID	8
#define IVAR_RXQ0	0
#define IVAR_TXQ0	8
#define IVAR_OTHER	16

/* The units of ITR and EITR, and of RDTR, RADV, TIDV and TADV. */
#define ITR_NS		256
#define DELAY_NS	1024

/* A descriptor to send with. "lower" is length, type and command, "upper" status, options and the VLAN tag. */
struct send_desc {
	__le64 address;
	__le32 lower;
	__le32 upper;
};

#define SEND_EOP	BIT(24)
#define SEND_IFCS	BIT(25)
#define SEND_TSE	BIT(26)
#define SEND_RS		BIT(27)
#define SEND_DEXT	BIT(29)
#define SEND_VLE	BIT(30)
#define SEND_IDE	BIT(31)
#define SEND_DATA	BIT(20)
#define SEND_DD		BIT(0)
#define SEND_IXSM	BIT(8)
#define SEND_TXSM	BIT(9)
#define SEND_TAG_SHIFT	16

/* A context descriptor: where checksums are, and how to cut. */
struct context_desc {
	u8 ipcss;
	u8 ipcso;
	__le16 ipcse;
	u8 tucss;
	u8 tucso;
	__le16 tucse;
	__le32 command;		/* payload length, and bits */
	u8 status;
	u8 header;
	__le16 mss;
};

#define CONTEXT_TCP	BIT(24)
#define CONTEXT_IP4	BIT(25)

/* A descriptor to receive with, in the form that both NICs have. */
struct receive_desc {
	__le64 address;
	__le16 length;
	__le16 checksum;
	u8 status;
	u8 errors;
	__le16 tag;
};

#define RECEIVE_DD	BIT(0)
#define RECEIVE_EOP	BIT(1)
#define RECEIVE_IXSM	BIT(2)
#define RECEIVE_VP	BIT(3)
#define RECEIVE_UDPCS	BIT(4)
#define RECEIVE_TCPCS	BIT(5)
#define RECEIVE_TCPE	BIT(5)
#define RECEIVE_IPE	BIT(6)
/* CE, SE, SEQ, CXE, RXE: the frame is no good. */
#define RECEIVE_BROKEN	(BIT(0) | BIT(1) | BIT(2) | BIT(4) | BIT(7))

#endif
