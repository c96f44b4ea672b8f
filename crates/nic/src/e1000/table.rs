//! The family's register table. It drives decoding, masks, reset values, side effects and tests.
//!
//! Offsets, names and bits are those of the *PCI/PCI-X Family of Gigabit Ethernet Controllers
//! Software Developer's Manual*, chapter 13, for the 82540EM, and of the *82574 GbE Controller
//! Family Datasheet*, chapter 10.

use super::Chip;
use crate::csb::Direction;
use crate::device::SharedPages;
use crate::model::regs::{self, PageUse, Row};
pub use crate::model::regs::{Access, Members};

/// What an access does besides reading or writing its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// CTRL: resets, link, VLAN mode.
    Ctrl,
    /// STATUS: computed when it is read.
    Status,
    /// The EEPROM's four wires.
    Eecd,
    /// A word of the EEPROM by number.
    Eerd,
    /// CTRL_EXT: reloads the EEPROM, auto-masking.
    CtrlExt,
    /// A PHY register by number.
    Mdic,
    /// Causes: read to clear, write one to clear.
    Icr,
    /// Causes: write one to set.
    Ics,
    /// Mask: write one to set.
    Ims,
    /// Mask: write one to clear.
    Imc,
    /// Receive control: filters and buffers.
    Rctl,
    /// Receive filters.
    Filter,
    /// Receive addresses: every second word has reserved bits.
    Address,
    /// Base, length or head of a receive ring.
    RxRing(u8),
    /// The tail of a receive ring: how far it has buffers.
    RxTail(u8),
    /// Base, length or head of a transmit ring.
    TxRing(u8),
    /// The tail of a transmit ring: how far it has frames. A write is the doorbell.
    TxTail(u8),
    /// Receive delay; bit 31 expires it at once.
    Rdtr,
    /// The low word of an octet counter.
    OctetsLow(u8),
    /// The high word of an octet counter; reading it resets the counter to zero.
    OctetsHigh(u8),
    /// Software semaphore: reading takes it. The 82540EM has none. Boot loaders take one all the
    /// same, and go on when they read back what they wrote.
    Swsm,
    /// Address of a shared status block: high word.
    CsbHigh,
    /// Address of a shared status block: low word, which maps it.
    CsbLow,
}

impl Effect {
    /// The effect in words, for documentation.
    #[must_use]
    pub fn text(self) -> String {
        if self == Self::None { String::new() } else { format!("{self:?}") }
    }
}

/// The 82540EM only.
pub const EM: Members = Members::of(1 << Chip::Em82540 as u8);
/// The 82574L only.
pub const L: Members = Members::of(1 << Chip::L82574 as u8);

/// A register, or several in a row: `at` is an offset in BAR 0.
pub type Register = Row<Effect>;

const ALL: u32 = u32::MAX;

const fn rw(at: u32, name: &'static str, mask: u32, reset: u32) -> Register {
    Row::new(at, name, mask, reset, Effect::None)
}

const fn ro(at: u32, name: &'static str, reset: u32) -> Register {
    Register { access: Access::ReadOnly, ..rw(at, name, 0, reset) }
}

const fn counter(at: u32, name: &'static str) -> Register {
    Register { access: Access::ReadClear, ..rw(at, name, 0, 0) }
}

impl Register {
    const fn effect(self, effect: Effect) -> Self {
        Self { effect, ..self }
    }

    const fn count(self, count: u16) -> Self {
        Self { count, ..self }
    }

    const fn of(self, members: Members) -> Self {
        Self { members, ..self }
    }

    const fn reset(self, em: u32, l: u32) -> Self {
        Self { reset: [em, l], ..self }
    }

    const fn write_only(self) -> Self {
        Self { access: Access::WriteOnly, ..self }
    }

    const fn survives(self) -> Self {
        Self { survives: u32::MAX, ..self }
    }

    const fn shared(self, shared: PageUse) -> Self {
        Self { shared: Some(shared), ..self }
    }
}

use Effect as E;
use PageUse::{Head, Last, Setup, Tail};

/// All registers, by offset.
pub const TABLE: &[Register] = &[
    rw(0x0000, "CTRL", 0x7bff_ffff, 0).reset(0x0014_0240, 0x0014_0241).effect(E::Ctrl),
    rw(0x0004, "CTRL_DUP", 0x7bff_ffff, 0).effect(E::Ctrl),
    ro(0x0008, "STATUS", 0).reset(0x8008_0780, 0x0000_0380).effect(E::Status),
    rw(0x0010, "EECD", 0x0000_0077, 0).effect(E::Eecd),
    rw(0x0014, "EERD", 0x0000_ffff, 0).effect(E::Eerd),
    rw(0x0018, "CTRL_EXT", 0xffff_dfff, 0).effect(E::CtrlExt),
    rw(0x001c, "FLA", ALL, 0).of(L),
    rw(0x0020, "MDIC", 0x2fff_ffff, 0).effect(E::Mdic),
    rw(0x0028, "FCAL", ALL, 0),
    rw(0x002c, "FCAH", 0xffff, 0),
    rw(0x0030, "FCT", 0xffff, 0),
    rw(0x0038, "VET", 0xffff, 0x8100).effect(E::Filter),
    rw(0x00c0, "ICR", 0, 0).effect(E::Icr),
    rw(0x00c4, "ITR", 0xffff, 0),
    rw(0x00c8, "ICS", 0, 0).effect(E::Ics),
    rw(0x00d0, "IMS", 0, 0).effect(E::Ims),
    rw(0x00d8, "IMC", 0, 0).write_only().effect(E::Imc),
    rw(0x00dc, "EIAC", 0x01f0_0000, 0).of(L),
    rw(0x00e0, "IAM", ALL, 0).of(L),
    rw(0x00e4, "IVAR", 0x800f_ffff, 0).of(L),
    rw(0x00e8, "EITR", 0xffff, 0).count(5).of(L),
    rw(0x0100, "RCTL", 0x06ff_fffe, 0).effect(E::Rctl),
    rw(0x0160, "FCRTL0", ALL, 0).of(EM),
    rw(0x0168, "FCRTH0", ALL, 0).of(EM),
    rw(0x0170, "FCTTV", 0xffff, 0),
    rw(0x0178, "TXCW", ALL, 0),
    ro(0x0180, "RXCW", 0),
    rw(0x0400, "TCTL", ALL, 0),
    rw(0x0404, "TCTL_EXT", ALL, 0).of(L),
    rw(0x0410, "TIPG", ALL, 0),
    rw(0x0458, "AIT", 0xffff, 0),
    rw(0x0e00, "LEDCTL", ALL, 0x602),
    rw(0x0f00, "EXTCNF_CTRL", ALL, 0).of(L),
    rw(0x0f08, "EXTCNF_SIZE", ALL, 0).of(L),
    rw(0x0f10, "POEMB", ALL, 0).of(L),
    rw(0x1000, "PBA", ALL, 0).reset(0x0010_0030, 0x0014_0014),
    rw(0x1008, "PBS", ALL, 0).of(L),
    rw(0x100c, "PBECCSTS", ALL, 0).of(L),
    rw(0x1010, "EEMNGCTL", ALL, 0).reset(0, 0x8004_0000).of(L),
    rw(0x102c, "EEWR", ALL, 0).reset(0, 2).of(L),
    rw(0x103c, "FLOP", ALL, 0).of(L),
    rw(0x2160, "FCRTL", ALL, 0).shared(Setup),
    rw(0x2168, "FCRTH", ALL, 0).shared(Setup),
    rw(0x2170, "PSRCTL", ALL, 0x0004_0402).of(L).effect(E::Rctl).shared(Setup),
    rw(0x2410, "RDFH", 0xffff, 0),
    rw(0x2418, "RDFT", 0xffff, 0),
    rw(0x2420, "RDFHS", 0xffff, 0),
    rw(0x2428, "RDFTS", 0xffff, 0),
    rw(0x2430, "RDFPC", 0xffff, 0),
    rw(0x2800, "RDBAL", 0xffff_fff0, 0).effect(E::RxRing(0)).shared(Setup),
    rw(0x2804, "RDBAH", ALL, 0).effect(E::RxRing(0)).shared(Setup),
    rw(0x2808, "RDLEN", 0x000f_ff80, 0).effect(E::RxRing(0)).shared(Setup),
    rw(0x2810, "RDH", 0xffff, 0).effect(E::RxRing(0)).shared(Head),
    rw(0x2818, "RDT", 0xffff, 0).effect(E::RxTail(0)).shared(Tail),
    rw(0x2820, "RDTR", 0xffff, 0).effect(E::Rdtr).shared(Setup),
    rw(0x2828, "RXDCTL", ALL, 0).shared(Setup),
    rw(0x282c, "RADV", 0xffff, 0).shared(Setup),
    rw(0x2830, "CSBAL", ALL, 0).effect(E::CsbLow).survives().shared(Last),
    rw(0x2834, "CSBAH", ALL, 0).effect(E::CsbHigh).survives().shared(Setup),
    rw(0x2900, "RDBAL1", 0xffff_fff0, 0).of(L).effect(E::RxRing(1)).shared(Setup),
    rw(0x2904, "RDBAH1", ALL, 0).of(L).effect(E::RxRing(1)).shared(Setup),
    rw(0x2908, "RDLEN1", 0x000f_ff80, 0).of(L).effect(E::RxRing(1)).shared(Setup),
    rw(0x2910, "RDH1", 0xffff, 0).of(L).effect(E::RxRing(1)).shared(Head),
    rw(0x2918, "RDT1", 0xffff, 0).of(L).effect(E::RxTail(1)).shared(Tail),
    rw(0x2928, "RXDCTL1", ALL, 0).of(L).shared(Setup),
    rw(0x2c00, "RSRPD", 0x0fff, 0).shared(Setup),
    rw(0x2c08, "RAID", ALL, 0).of(L),
    rw(0x3000, "TXDMAC", ALL, 0),
    rw(0x3410, "TDFH", 0xffff, 0),
    rw(0x3418, "TDFT", 0xffff, 0),
    rw(0x3420, "TDFHS", 0xffff, 0),
    rw(0x3428, "TDFTS", 0xffff, 0),
    rw(0x3430, "TDFPC", 0xffff, 0),
    rw(0x3800, "TDBAL", 0xffff_fff0, 0).effect(E::TxRing(0)).shared(Setup),
    rw(0x3804, "TDBAH", ALL, 0).effect(E::TxRing(0)).shared(Setup),
    rw(0x3808, "TDLEN", 0x000f_ff80, 0).effect(E::TxRing(0)).shared(Setup),
    rw(0x3810, "TDH", 0xffff, 0).effect(E::TxRing(0)).shared(Head),
    rw(0x3818, "TDT", 0xffff, 0).effect(E::TxTail(0)).shared(Tail),
    rw(0x3820, "TIDV", 0xffff, 0).shared(Setup),
    rw(0x3828, "TXDCTL", ALL, 0).shared(Setup),
    rw(0x382c, "TADV", 0xffff, 0).shared(Setup),
    rw(0x3840, "TARC0", ALL, 0x0000_0403).of(L).shared(Setup),
    rw(0x3900, "TDBAL1", 0xffff_fff0, 0).of(L).effect(E::TxRing(1)).shared(Setup),
    rw(0x3904, "TDBAH1", ALL, 0).of(L).effect(E::TxRing(1)).shared(Setup),
    rw(0x3908, "TDLEN1", 0x000f_ff80, 0).of(L).effect(E::TxRing(1)).shared(Setup),
    rw(0x3910, "TDH1", 0xffff, 0).of(L).effect(E::TxRing(1)).shared(Head),
    rw(0x3918, "TDT1", 0xffff, 0).of(L).effect(E::TxTail(1)).shared(Tail),
    rw(0x3928, "TXDCTL1", ALL, 0).of(L).shared(Setup),
    rw(0x3940, "TARC1", ALL, 0x0000_0403).of(L).shared(Setup),
    counter(0x4000, "CRCERRS"),
    counter(0x4004, "ALGNERRC"),
    counter(0x4008, "SYMERRS"),
    counter(0x400c, "RXERRC"),
    counter(0x4010, "MPC"),
    counter(0x4014, "SCC"),
    counter(0x4018, "ECOL"),
    counter(0x401c, "MCC"),
    counter(0x4020, "LATECOL"),
    counter(0x4028, "COLC"),
    counter(0x4030, "DC"),
    counter(0x4034, "TNCRS"),
    counter(0x4038, "SEC"),
    counter(0x403c, "CEXTERR"),
    counter(0x4040, "RLEC"),
    counter(0x4048, "XONRXC"),
    counter(0x404c, "XONTXC"),
    counter(0x4050, "XOFFRXC"),
    counter(0x4054, "XOFFTXC"),
    counter(0x4058, "FCRUC"),
    counter(0x405c, "PRC64"),
    counter(0x4060, "PRC127"),
    counter(0x4064, "PRC255"),
    counter(0x4068, "PRC511"),
    counter(0x406c, "PRC1023"),
    counter(0x4070, "PRC1522"),
    counter(0x4074, "GPRC"),
    counter(0x4078, "BPRC"),
    counter(0x407c, "MPRC"),
    counter(0x4080, "GPTC"),
    ro(0x4088, "GORCL", 0).effect(E::OctetsLow(GORC)),
    ro(0x408c, "GORCH", 0).effect(E::OctetsHigh(GORC)),
    ro(0x4090, "GOTCL", 0).effect(E::OctetsLow(GOTC)),
    ro(0x4094, "GOTCH", 0).effect(E::OctetsHigh(GOTC)),
    counter(0x40a0, "RNBC"),
    counter(0x40a4, "RUC"),
    counter(0x40a8, "RFC"),
    counter(0x40ac, "ROC"),
    counter(0x40b0, "RJC"),
    counter(0x40b4, "MGTPRC"),
    counter(0x40b8, "MGTPDC"),
    counter(0x40bc, "MGTPTC"),
    ro(0x40c0, "TORL", 0).effect(E::OctetsLow(TOR)),
    ro(0x40c4, "TORH", 0).effect(E::OctetsHigh(TOR)),
    ro(0x40c8, "TOTL", 0).effect(E::OctetsLow(TOT)),
    ro(0x40cc, "TOTH", 0).effect(E::OctetsHigh(TOT)),
    counter(0x40d0, "TPR"),
    counter(0x40d4, "TPT"),
    counter(0x40d8, "PTC64"),
    counter(0x40dc, "PTC127"),
    counter(0x40e0, "PTC255"),
    counter(0x40e4, "PTC511"),
    counter(0x40e8, "PTC1023"),
    counter(0x40ec, "PTC1522"),
    counter(0x40f0, "MPTC"),
    counter(0x40f4, "BPTC"),
    counter(0x40f8, "TSCTC"),
    counter(0x40fc, "TSCTFC"),
    counter(0x4100, "IAC").of(L),
    counter(0x4104, "ICRXPTC").count(9).of(L),
    rw(0x5000, "RXCSUM", 0x0000_3fff, 0).effect(E::Rctl),
    rw(0x5008, "RFCTL", ALL, 0).of(L).effect(E::Rctl),
    rw(0x5200, "MTA", ALL, 0).count(128).survives(),
    rw(0x5400, "RAL_RAH", ALL, 0).count(32).effect(E::Address),
    rw(0x5600, "VFTA", ALL, 0).count(128).survives(),
    rw(0x5800, "WUC", ALL, 0),
    rw(0x5808, "WUFC", ALL, 0),
    rw(0x5810, "WUS", ALL, 0),
    rw(0x5818, "MRQC", ALL, 0).of(L).effect(E::Filter),
    rw(0x5820, "MANC", ALL, 0).reset(0x0022_2300, 0),
    rw(0x5838, "IPAV", ALL, 0),
    rw(0x5840, "IP4AT", ALL, 0).count(8),
    rw(0x5860, "MANC2H", ALL, 0).of(L),
    rw(0x5864, "MFVAL", ALL, 0).of(L),
    rw(0x5880, "IP6AT", ALL, 0).count(4),
    rw(0x5890, "MDEF", ALL, 0).count(8).of(L),
    rw(0x5900, "WUPL", ALL, 0),
    rw(0x5a00, "WUPM", ALL, 0).count(32),
    rw(0x5b00, "GCR", ALL, 0).of(L),
    rw(0x5b10, "GSCL", ALL, 0).count(4).of(L),
    rw(0x5b20, "GSCN", ALL, 0).count(4).of(L),
    ro(0x5b30, "FACTPS", 0).of(L),
    rw(0x5b50, "SWSM", 0x0f, 0).effect(E::Swsm),
    ro(0x5b54, "FWSM", 0).of(L),
    rw(0x5b58, "SWSM2", ALL, 0).of(L),
    rw(0x5b64, "GCR2", ALL, 0).of(L),
    rw(0x5b68, "PBACL", 0x1f, 0).of(L),
    rw(0x5c00, "RETA", ALL, 0).count(32).of(L).effect(E::Filter),
    rw(0x5c80, "RSSRK", ALL, 0).count(10).of(L).effect(E::Filter),
    rw(0x5f00, "FFLT", ALL, 0).count(8),
    rw(0x9000, "FFMT", ALL, 0).count(256),
    rw(0x9800, "FFVT", ALL, 0).count(256),
    rw(0xb600, "SYSTIML", ALL, 0).of(L),
    rw(0xb604, "SYSTIMH", ALL, 0).of(L),
    rw(0xb608, "TIMINCA", ALL, 0).of(L),
    rw(0xb60c, "TIMADJL", ALL, 0).of(L),
    rw(0xb610, "TIMADJH", ALL, 0).of(L),
    rw(0xb614, "TSYNCTXCTL", 0xfffe, 0).of(L),
    ro(0xb618, "TXSTMPL", 0).of(L),
    ro(0xb61c, "TXSTMPH", 0).of(L),
    rw(0xb620, "TSYNCRXCTL", 0xfffe, 0).of(L),
    ro(0xb624, "RXSTMPL", 0).of(L),
    ro(0xb628, "RXSTMPH", 0).of(L),
    rw(0xb62c, "RXSATRL", ALL, 0).of(L),
    rw(0xb630, "RXSATRH", ALL, 0).of(L),
    rw(0xb634, "RXMTRL", ALL, 0).of(L),
    rw(0xb638, "RXUDP", ALL, 0).of(L),
];

/// Setup registers, in pages that need no trap.
const SETUP: &[PageUse] = &[Setup, Last];

/// The pages of the ring registers that a chip has.
macro_rules! shared_pages {
    ($chip:expr) => {{
        const CHIP: usize = $chip as usize;
        const SETUPS: [u32; regs::count_shared(TABLE, CHIP, SETUP)] =
            regs::shared(TABLE, CHIP, SETUP);
        const HEADS: [u32; regs::count_shared(TABLE, CHIP, &[Head])] =
            regs::shared(TABLE, CHIP, &[Head]);
        const TAILS: [u32; regs::count_shared(TABLE, CHIP, &[Tail])] =
            regs::shared(TABLE, CHIP, &[Tail]);
        SharedPages {
            bar: 0,
            pages: &[0x2000, 0x3000],
            registers: &SETUPS,
            heads: &HEADS,
            tails: &TAILS,
        }
    }};
}

/// Registers of a chip that its driver may write as plain memory.
#[must_use]
pub const fn shared_pages(chip: Chip) -> SharedPages {
    match chip {
        Chip::Em82540 => shared_pages!(Chip::Em82540),
        Chip::L82574 => shared_pages!(Chip::L82574),
    }
}

/// The size counter for a frame of `len` bytes, without its check sequence.
#[inline(always)]
pub fn size_class(len: usize) -> usize {
    match len.wrapping_add(4) {
        0..=64 => 0,
        more => (more.ilog2() as usize).wrapping_sub(5).min(5),
    }
}

/// Octet counters, by number.
pub const GORC: u8 = 0;
/// Good octets sent.
pub const GOTC: u8 = 1;
/// Octets received.
pub const TOR: u8 = 2;
/// Octets sent.
pub const TOT: u8 = 3;

/// Bytes of BAR 0 that the table covers.
const COVERED: usize = 0x1_0000;

/// Where each row's words start; the last entry is the number of words.
const STARTS: [u16; TABLE.len() + 1] = {
    let mut starts = [0; TABLE.len() + 1];
    let mut row = 0;
    while row < TABLE.len() {
        starts[row + 1] = starts[row] + TABLE[row].count;
        row += 1;
    }
    starts
};

/// Words that the table needs.
pub const WORDS: usize = STARTS[TABLE.len()] as usize;

/// For each word of BAR 0: the number of its row, plus one.
static ROWS: [u8; COVERED / 4] = {
    let mut rows = [0; COVERED / 4];
    let mut row = 0;
    while row < TABLE.len() {
        let mut i = 0;
        while i < TABLE[row].count as usize {
            let at = TABLE[row].at as usize / 4 + i;
            assert!(rows[at] == 0, "two registers in one place");
            rows[at] = row as u8 + 1;
            i += 1;
        }
        row += 1;
    }
    rows
};

const _: () = assert!(TABLE.len() < 256);

/// The register at offset `at` (a multiple of four) of `chip`, and its word.
#[inline]
#[must_use]
pub fn decode(at: u64, chip: Chip) -> Option<(&'static Register, usize)> {
    let row = usize::from(*ROWS.get(usize::try_from(at / 4).ok()?)?).checked_sub(1)?;
    let register = TABLE.get(row).filter(|register| register.members.has(chip))?;
    let within = (at as u32 - register.at) as usize / 4;
    Some((register, usize::from(STARTS[row]) + within))
}

/// Each row with its first word.
pub fn rows() -> impl Iterator<Item = (&'static Register, usize)> {
    TABLE.iter().zip(STARTS.iter().map(|start| usize::from(*start)))
}

/// The word of the register at `at`, which must exist.
const fn word(at: u32) -> usize {
    let mut row = 0;
    loop {
        assert!(row < TABLE.len(), "no such register");
        let register = &TABLE[row];
        if at >= register.at && at < register.at + 4 * register.count as u32 {
            return STARTS[row] as usize + ((at - register.at) / 4) as usize;
        }
        row += 1;
    }
}

macro_rules! words {
    ($($name:ident $at:literal)*) => {
        $(
            #[doc = concat!("The word of ", stringify!($name), ".")]
            pub const $name: usize = word($at);
        )*
    };
}

words! {
    CTRL 0x0000 CTRL_EXT 0x0018 VET 0x0038
    ICR 0x00c0 ITR 0x00c4 IMS 0x00d0 EIAC 0x00dc IAM 0x00e0 IVAR 0x00e4 EITR 0x00e8 RCTL 0x0100
    TCTL 0x0400 PSRCTL 0x2170 RDTR 0x2820 RADV 0x282c CSBAL 0x2830 CSBAH 0x2834
    RSRPD 0x2c00 TIDV 0x3820 TADV 0x382c TXDCTL 0x3828
    MPTC 0x40f0 BPTC 0x40f4 MPC 0x4010 PRC64 0x405c GPRC 0x4074 BPRC 0x4078 MPRC 0x407c GPTC 0x4080 RNBC 0x40a0
    ROC 0x40ac TPR 0x40d0 TPT 0x40d4 PTC64 0x40d8 TSCTC 0x40f8
    RXCSUM 0x5000 RFCTL 0x5008 MTA 0x5200 RAL 0x5400 VFTA 0x5600 MRQC 0x5818 RETA 0x5c00
}

/// The words that describe a ring, by queue.
#[derive(Clone, Copy, Debug)]
pub struct RingWords {
    /// Base address, low and high word.
    pub base: [usize; 2],
    /// Length in bytes.
    pub len: usize,
    /// The device's position.
    pub head: usize,
    /// The driver's position.
    pub tail: usize,
}

const fn ring(at: u32) -> RingWords {
    RingWords {
        base: [word(at), word(at + 4)],
        len: word(at + 8),
        head: word(at + 0x10),
        tail: word(at + 0x18),
    }
}

/// Receive rings.
pub const RX: [RingWords; 2] = [ring(0x2800), ring(0x2900)];
/// Transmit rings.
pub const TX: [RingWords; 2] = [ring(0x3800), ring(0x3900)];

/// The words of a queue's ring.
#[inline]
pub const fn words(way: Direction, queue: usize) -> &'static RingWords {
    let rings = if matches!(way, Direction::Send) { &TX } else { &RX };
    crate::model::ring::of_queue(rings, queue)
}

/// Bits of CTRL.
pub mod ctrl {
    /// Full duplex.
    pub const FD: u32 = 1;
    /// 82574L: no new bus accesses.
    pub const GIO_MASTER_DISABLE: u32 = 1 << 2;
    /// Reset.
    pub const RST: u32 = 1 << 26;
    /// Strip and insert VLAN tags.
    pub const VME: u32 = 1 << 30;
    /// Resets the PHY.
    pub const PHY_RST: u32 = 1 << 31;
}

/// Bits of STATUS.
pub mod status {
    /// Full duplex.
    pub const FD: u32 = 1;
    /// Link up.
    pub const LU: u32 = 1 << 1;
    /// 82574L: bus accesses are in progress or allowed.
    pub const GIO_MASTER_ENABLE: u32 = 1 << 19;
}

/// Bits of CTRL_EXT.
pub mod ctrl_ext {
    /// Reloads the EEPROM.
    pub const EE_RST: u32 = 1 << 13;
    /// 82574L: reading ICR applies the mask in IAM.
    pub const IAME: u32 = 1 << 27;
}

/// Interrupt causes: bits of ICR, ICS, IMS and IMC.
pub mod cause {
    /// A descriptor was sent that asked for a report.
    pub const TXDW: u32 = 1;
    /// The transmit ring is empty.
    pub const TXQE: u32 = 1 << 1;
    /// The link changed.
    pub const LSC: u32 = 1 << 2;
    /// Few receive descriptors are left.
    pub const RXDMT0: u32 = 1 << 4;
    /// No receive descriptor was left.
    pub const RXO: u32 = 1 << 6;
    /// A frame was received.
    pub const RXT0: u32 = 1 << 7;
    /// A PHY access is done.
    pub const MDAC: u32 = 1 << 9;
    /// Few transmit descriptors are left. Set only while it is unmasked. A driver of later chips
    /// enables queues with a bit that is this chip's threshold (TXDCTL, 25), and takes the cause
    /// for an error.
    pub const TXD_LOW: u32 = 1 << 15;
    /// A short frame was received.
    pub const SRPD: u32 = 1 << 16;
    /// 82574L: receive queue 0.
    pub const RXQ0: u32 = 1 << 20;
    /// 82574L: receive queue 1.
    pub const RXQ1: u32 = 1 << 21;
    /// 82574L: transmit queue 0.
    pub const TXQ0: u32 = 1 << 22;
    /// 82574L: transmit queue 1.
    pub const TXQ1: u32 = 1 << 23;
    /// 82574L: any other cause.
    pub const OTHER: u32 = 1 << 24;
    /// 82574L: an interrupt is asserted.
    pub const ASSERTED: u32 = 1 << 31;
    /// All causes of the 82540EM.
    pub const EM: u32 = 0x0001_ffff;
    /// All causes of the 82574L.
    pub const L: u32 = 0x01f7_ffff;
}

/// Bits of RCTL.
pub mod rctl {
    /// Receiver on.
    pub const EN: u32 = 1 << 1;
    /// Bad frames are stored, too.
    pub const SBP: u32 = 1 << 2;
    /// All unicast.
    pub const UPE: u32 = 1 << 3;
    /// All multicast.
    pub const MPE: u32 = 1 << 4;
    /// Long frames.
    pub const LPE: u32 = 1 << 5;
    /// Loopback in the MAC.
    pub const LBM_MAC: u32 = 1 << 6;
    /// Broadcast.
    pub const BAM: u32 = 1 << 15;
    /// VLAN filter.
    pub const VFE: u32 = 1 << 18;
    /// Buffers sixteen times as large.
    pub const BSEX: u32 = 1 << 25;
    /// Without the frame check sequence.
    pub const SECRC: u32 = 1 << 26;
}

/// Bits of TCTL.
pub mod tctl {
    /// Transmitter on.
    pub const EN: u32 = 1 << 1;
}
