//! Offsets and bits that drivers use. They are taken from the manuals, independently of the model:
//! *PCI/PCI-X Family of Gigabit Ethernet Controllers Software Developer's Manual*, chapter 13;
//! *82574 GbE Controller Family Datasheet*, chapter 10.
#![allow(missing_docs, reason = "names of the manuals")]

pub const CTRL: u64 = 0x0000;
pub const STATUS: u64 = 0x0008;
pub const EECD: u64 = 0x0010;
pub const EERD: u64 = 0x0014;
pub const CTRL_EXT: u64 = 0x0018;
pub const MDIC: u64 = 0x0020;
pub const FCAL: u64 = 0x0028;
pub const FCAH: u64 = 0x002c;
pub const FCT: u64 = 0x0030;
pub const VET: u64 = 0x0038;
pub const ICR: u64 = 0x00c0;
pub const ITR: u64 = 0x00c4;
pub const ICS: u64 = 0x00c8;
pub const IMS: u64 = 0x00d0;
pub const IMC: u64 = 0x00d8;
pub const EIAC: u64 = 0x00dc;
pub const IAM: u64 = 0x00e0;
pub const IVAR: u64 = 0x00e4;
pub const EITR: u64 = 0x00e8;
pub const RCTL: u64 = 0x0100;
pub const FCTTV: u64 = 0x0170;
pub const TCTL: u64 = 0x0400;
pub const TIPG: u64 = 0x0410;
pub const EXTCNF_CTRL: u64 = 0x0f00;
pub const FCRTL: u64 = 0x2160;
pub const FCRTH: u64 = 0x2168;
pub const RDBAL: u64 = 0x2800;
pub const RDBAH: u64 = 0x2804;
pub const RDLEN: u64 = 0x2808;
pub const RDH: u64 = 0x2810;
pub const RDT: u64 = 0x2818;
pub const RDTR: u64 = 0x2820;
pub const RXDCTL: u64 = 0x2828;
pub const RADV: u64 = 0x282c;
pub const TDBAL: u64 = 0x3800;
pub const TDBAH: u64 = 0x3804;
pub const TDLEN: u64 = 0x3808;
pub const TDH: u64 = 0x3810;
pub const TDT: u64 = 0x3818;
pub const TIDV: u64 = 0x3820;
pub const TXDCTL: u64 = 0x3828;
pub const TADV: u64 = 0x382c;
pub const STATISTICS: u64 = 0x4000;
pub const STATISTICS_END: u64 = 0x4100;
/// Missed packets count: frames for which the NIC had no room. A read clears it.
pub const MPC: u64 = 0x4010;
pub const RXCSUM: u64 = 0x5000;
pub const RFCTL: u64 = 0x5008;
pub const MTA: u64 = 0x5200;
pub const RAL: u64 = 0x5400;
pub const VFTA: u64 = 0x5600;
pub const MANC: u64 = 0x5820;

pub mod ctrl {
    pub const FD: u32 = 1;
    pub const ASDE: u32 = 1 << 5;
    pub const SLU: u32 = 1 << 6;
    pub const FRCSPD: u32 = 1 << 11;
    pub const FRCDPX: u32 = 1 << 12;
    pub const RST: u32 = 1 << 26;
    pub const VME: u32 = 1 << 30;
}

pub mod status {
    pub const LU: u32 = 1 << 1;
}

pub mod eecd {
    pub const SK: u32 = 1;
    pub const CS: u32 = 1 << 1;
    pub const DI: u32 = 1 << 2;
    pub const DO: u32 = 1 << 3;
    pub const REQ: u32 = 1 << 6;
    pub const GNT: u32 = 1 << 7;
    pub const AUTO_RD: u32 = 1 << 9;
}

pub mod ctrl_ext {
    pub const EIAME: u32 = 1 << 24;
    pub const IAME: u32 = 1 << 27;
    pub const DRV_LOAD: u32 = 1 << 28;
    pub const PBA_CLR: u32 = 1 << 31;
}

pub mod mdic {
    pub const PHY: u32 = 1 << 21;
    pub const READ: u32 = 2 << 26;
    pub const READY: u32 = 1 << 28;
    pub const ERROR: u32 = 1 << 30;
}

pub mod cause {
    pub const TXDW: u32 = 1;
    pub const TXQE: u32 = 1 << 1;
    pub const LSC: u32 = 1 << 2;
    pub const RXSEQ: u32 = 1 << 3;
    pub const RXDMT0: u32 = 1 << 4;
    pub const RXO: u32 = 1 << 6;
    pub const RXT0: u32 = 1 << 7;
    pub const RXQ0: u32 = 1 << 20;
    pub const TXQ0: u32 = 1 << 22;
    pub const OTHER: u32 = 1 << 24;
}

pub mod rctl {
    pub const EN: u32 = 1 << 1;
    pub const UPE: u32 = 1 << 3;
    pub const MPE: u32 = 1 << 4;
    pub const LPE: u32 = 1 << 5;
    pub const BAM: u32 = 1 << 15;
    pub const BSEX: u32 = 1 << 25;
    pub const SECRC: u32 = 1 << 26;
}

pub mod tctl {
    pub const EN: u32 = 1 << 1;
    pub const PSP: u32 = 1 << 3;
    /// Collision threshold and distance for full duplex.
    pub const CT_COLD: u32 = 0x0f << 4 | 0x40 << 12;
}

pub mod rfctl {
    pub const ACK_DIS: u32 = 1 << 12;
    pub const EXTEN: u32 = 1 << 15;
}

pub mod rxcsum {
    pub const IPOFL: u32 = 1 << 8;
    pub const TUOFL: u32 = 1 << 9;
}

/// Second word of transmit descriptors (8254x manual, 3.3.3 to 3.3.7).
pub mod tx {
    pub const EOP: u64 = 1 << 24;
    pub const IFCS: u64 = 1 << 25;
    pub const TSE: u64 = 1 << 26;
    pub const IC: u64 = 1 << 26;
    pub const RS: u64 = 1 << 27;
    pub const DEXT: u64 = 1 << 29;
    pub const VLE: u64 = 1 << 30;
    pub const IDE: u64 = 1 << 31;
    pub const DATA: u64 = 1 << 20;
    pub const DD: u64 = 1 << 32;
    pub const IXSM: u64 = 1 << 40;
    pub const TXSM: u64 = 1 << 41;
    pub const TUCMD_TCP: u64 = 1 << 24;
    pub const TUCMD_IP: u64 = 1 << 25;
}

/// Status of receive descriptors, in both forms (8254x manual, 3.2.3; 82574 datasheet, 7.1.5).
pub mod rx {
    pub const DD: u32 = 1;
    pub const EOP: u32 = 1 << 1;
    pub const IXSM: u32 = 1 << 2;
    pub const VP: u32 = 1 << 3;
    pub const UDPCS: u32 = 1 << 4;
    pub const TCPCS: u32 = 1 << 5;
    pub const IPCS: u32 = 1 << 6;
}
