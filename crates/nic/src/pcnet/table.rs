//! The registers of the PCnet family: one table of CSRs, one of BCRs. They define decoding, masks,
//! resets, side effects and access classes.
//!
//! Numbers, bits and reset values are from the Am79C970A data sheet (19436), "Control and Status
//! Registers" and "Bus Configuration Registers". Those of the Am79C973 are from its own (21510), in
//! the same chapters.

use crate::model::regs::{Access, Members, RegisterTable, Row};

/// How many CSRs can be addressed: RAP has seven bits.
pub(super) const CSRS: usize = 128;
/// How many BCRs the model stores; those beyond read as zero.
pub(super) const BCRS: usize = 64;

/// A member of the family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chip {
    /// Am79C970A, PCnet-PCI II: 10 Mb/s.
    Am79C970A,
    /// Am79C973, PCnet-FAST III: 100 Mb/s with a PHY behind an MII, and SRAM.
    Am79C973,
}

impl Chip {
    /// CSR88 and CSR89: version, part number, AMD (Am79C970A, "CSR88"; Am79C973, "CSR88").
    #[must_use]
    pub fn id(self) -> (u16, u16) {
        match self {
            Self::Am79C970A => (0x1003, 0x0262),
            Self::Am79C973 => (0x5003, 0x0262),
        }
    }

    /// PCI revision id.
    #[must_use]
    pub fn revision(self) -> u8 {
        match self {
            Self::Am79C970A => 0x10,
            Self::Am79C973 => 0x40,
        }
    }
}

impl From<Chip> for usize {
    fn from(chip: Chip) -> Self {
        chip as Self
    }
}

/// The Am79C973.
const FAST: Members = Members::of(1 << Chip::Am79C973 as u8);

/// The cost of an access, classified as in VMware's paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Memory: reads or writes a latch, and has no other effect.
    Latch,
    /// Computes the value read from the state; changes nothing.
    Computed,
    /// Changes the state, and perhaps the interrupt's level. Nothing else is involved.
    Local,
    /// Asks the transmitter to send frames.
    Network,
}

impl Class {
    /// The number of classes.
    pub const COUNT: usize = 4;
    /// All classes, in order.
    pub const ALL: [Self; Self::COUNT] = [Self::Latch, Self::Computed, Self::Local, Self::Network];

    /// The class's name in tables and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Latch => "latch",
            Self::Computed => "computed",
            Self::Local => "local",
            Self::Network => "network",
        }
    }
}

/// The value of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    /// The stored value, as it is.
    Latch,
    /// CSR0: ERR and INTR computed.
    Status,
    /// CSR88: all 32 bits of the chip id, if the window is wide enough.
    ChipId,
    /// The value of that CSR.
    Csr(u8),
    /// The value of that BCR.
    Bcr(u8),
    /// Half of the address of the current receive descriptor.
    ReceiveAt(u8),
    /// Half of the address of the current transmit descriptor.
    TransmitAt(u8),
    /// Descriptors left in the receive ring, as two's complement.
    ReceiveCount,
    /// The same for the transmit ring.
    TransmitCount,
    /// An LED's register: LEDOUT computed.
    Led,
    /// BCR34: the register of the PHY that BCR33 names.
    Phy,
}

/// What a write does besides storing to the latch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    /// CSR0: starts, stops, initializes, demands.
    Control,
    /// Bits in this mask are events, which are cleared by writing 1.
    Events(u16),
    /// CSR4: events, and an interrupt that software asks for.
    Features(u16),
    /// CSR5: events, and suspending.
    Suspend(u16),
    /// Recomputes the interrupt's level.
    Line,
    /// Changes a register that the model's halves keep copies of.
    Config,
    /// Writes that CSR.
    Csr(u8),
    /// Writes that BCR.
    Bcr(u8),
    /// BCR20: the bits that follow from the software style.
    Style,
    /// BCR19: EEPROM commands end at once.
    Eeprom,
    /// BCR34.
    Phy,
    /// One of the upper quarters of the shared status block's address.
    BlockAddress,
    /// The lowest quarter of the address: maps the block.
    Block,
}

/// The effects and costs of accesses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Act {
    /// The value of a read.
    pub view: View,
    /// What a write does besides storing to the latch.
    pub effect: Effect,
    /// The class of a read.
    pub read: Class,
    /// The class of a write, unless the written value raises it.
    pub write: Class,
}

impl Act {
    const LATCH: Self =
        Self { view: View::Latch, effect: Effect::None, read: Class::Latch, write: Class::Latch };

    /// The effect in words, for documentation.
    fn text(self) -> String {
        let view = (self.view != View::Latch).then(|| format!("reads {:?}", self.view));
        let effect = (self.effect != Effect::None).then(|| format!("writes {:?}", self.effect));
        view.into_iter().chain(effect).collect::<Vec<_>>().join(", ")
    }
}

/// A row of either table. `at` is the register's number. `reset` is the value after S_RESET for
/// CSRs, and after H_RESET for BCRs. `survives` are the bits that S_RESET keeps: for BCRs, all.
pub(super) type Register = Row<Act>;

const KEEP: u16 = 0xffff;

/// A latch that software may write at any time.
const fn latch(number: u8, name: &'static str, kept: u16, reset: u16) -> Register {
    let row = Row::new(number as u32, name, 0xffff, reset as u32, Act::LATCH);
    Register { survives: kept as u32, ..row }
}

impl Register {
    const fn on(self, members: Members) -> Self {
        Self { members, ..self }
    }

    const fn halted(self) -> Self {
        Self { access: Access::Halted, ..self }
    }

    const fn fixed(self) -> Self {
        Self { access: Access::ReadOnly, ..self }
    }

    const fn stores(self, mask: u16) -> Self {
        Self { mask: mask as u32, ..self }
    }

    const fn shows(self, view: View) -> Self {
        let read = match view {
            View::Latch => Class::Latch,
            _ => Class::Computed,
        };
        Self { effect: Act { view, read, ..self.effect }, ..self }
    }

    const fn does(self, effect: Effect) -> Self {
        let write = match effect {
            Effect::None => Class::Latch,
            _ => Class::Local,
        };
        Self { effect: Act { effect, write, ..self.effect }, ..self }
    }

    /// The bits among the low sixteen that a write stores, and those that are set after a reset.
    #[inline(always)]
    pub fn bits(&self) -> (u16, u16) {
        (self.mask as u16, self.reset[0] as u16)
    }
}

/// A latch that only matters to debuggers; written only while stopped.
const fn working(number: u8, name: &'static str) -> Register {
    latch(number, name, KEEP, 0).halted()
}

/// Like [`working`], for a register that the halves keep copies of.
const fn config(number: u8, name: &'static str, kept: u16, reset: u16) -> Register {
    latch(number, name, kept, reset).halted().does(Effect::Config)
}

/// The control and status registers.
const CSR: &[Register] = &[
    latch(0, "status", 0, 0x0004).shows(View::Status).does(Effect::Control),
    latch(1, "IADRL", KEEP, 0).halted(),
    latch(2, "IADRH", KEEP, 0).halted().does(Effect::Config),
    latch(3, "masks", 0, 0).stores(0x5f7c).does(Effect::Line),
    latch(4, "features", 0, 0x0115).stores(0xfd15).does(Effect::Features(0x026a)),
    latch(5, "extended", 0, 0).stores(0xc54f).does(Effect::Suspend(0x0a90)),
    latch(6, "TLEN/RLEN", 0, 0).fixed(),
    latch(7, "extended 2", 0, 0).stores(0xf555).does(Effect::Events(0x0aaa)).on(FAST),
    config(8, "LADRF0", 0, 0),
    config(9, "LADRF1", 0, 0),
    config(10, "LADRF2", 0, 0),
    config(11, "LADRF3", 0, 0),
    config(12, "PADR0", 0, 0),
    config(13, "PADR1", 0, 0),
    config(14, "PADR2", 0, 0),
    config(15, "mode", 0x21c4, 0),
    latch(16, "IADRL alias", KEEP, 0).shows(View::Csr(1)).does(Effect::Csr(1)),
    latch(17, "IADRH alias", KEEP, 0).shows(View::Csr(2)).does(Effect::Csr(2)),
    working(18, "CRBAL"),
    working(19, "CRBAU"),
    working(20, "CXBAL"),
    working(21, "CXBAU"),
    working(22, "NRBAL"),
    working(23, "NRBAU"),
    config(24, "BADRL", KEEP, 0),
    config(25, "BADRU", KEEP, 0),
    working(26, "NRDAL"),
    working(27, "NRDAU"),
    working(28, "CRDAL").shows(View::ReceiveAt(0)),
    working(29, "CRDAU").shows(View::ReceiveAt(1)),
    config(30, "BADXL", KEEP, 0),
    config(31, "BADXU", KEEP, 0),
    working(32, "NXDAL"),
    working(33, "NXDAU"),
    working(34, "CXDAL").shows(View::TransmitAt(0)),
    working(35, "CXDAU").shows(View::TransmitAt(1)),
    working(36, "NNRDL"),
    working(37, "NNRDU"),
    working(38, "NNXDL"),
    working(39, "NNXDU"),
    working(40, "CRBC"),
    working(41, "CRST"),
    working(42, "CXBC"),
    working(43, "CXST"),
    working(44, "NRBC"),
    working(45, "NRST"),
    working(46, "TXPOLL"),
    config(47, "TXPOLLINT", KEEP, 0),
    working(48, "RXPOLL").on(FAST),
    working(49, "RXPOLLINT").on(FAST),
    latch(58, "SWS alias", 0, 0).shows(View::Bcr(20)).does(Effect::Bcr(20)),
    working(60, "PXDAL"),
    working(61, "PXDAU"),
    working(62, "PXBC"),
    working(63, "PXST"),
    working(64, "NXBAL"),
    working(65, "NXBAU"),
    working(66, "NXBC"),
    working(67, "NXST"),
    working(72, "RCVRC").shows(View::ReceiveCount),
    working(74, "XMTRC").shows(View::TransmitCount),
    config(76, "RCVRL", KEEP, 0),
    config(78, "XMTRL", KEEP, 0),
    latch(80, "DMATC/FIFO", 0, 0x1410).halted(),
    working(82, "bus activity timer"),
    working(84, "DMABAL"),
    working(85, "DMABAU"),
    working(86, "DMABC"),
    latch(88, "chip id low", 0, 0).fixed().shows(View::ChipId),
    latch(89, "chip id high", 0, 0).fixed(),
    working(92, "RCON"),
    latch(94, "XMTTDR", 0, 0).fixed(),
    // These exist only on controllers with a shared status block; silicon leaves them unused. CSBA0
    // is written last.
    latch(96, "CSBA0", KEEP, 0).does(Effect::Block),
    latch(97, "CSBA1", KEEP, 0).does(Effect::BlockAddress),
    latch(98, "CSBA2", KEEP, 0).does(Effect::BlockAddress),
    latch(99, "CSBA3", KEEP, 0).does(Effect::BlockAddress),
    latch(100, "MERRTO", 0, 0x0200).halted(),
    latch(103, "reserved", 0, 0x0105).fixed(),
    latch(112, "missed frames", 0, 0).halted(),
    latch(114, "receive collisions", 0, 0).halted(),
    latch(116, "OnNow", 0, 0).on(FAST),
    latch(122, "receive alignment", 0, 0).stores(1),
    latch(124, "test", 0, 0).halted(),
    latch(125, "IPG/IFS", 0, 0x603c).on(FAST),
];

/// The bus configuration registers.
const BCR: &[Register] = &[
    latch(0, "MSRDA", KEEP, 0x0005).fixed(),
    latch(1, "MSWRA", KEEP, 0x0005).fixed(),
    latch(2, "miscellaneous", KEEP, 0x0002).does(Effect::Config),
    latch(4, "link LED", KEEP, 0x00c0).shows(View::Led),
    latch(5, "LED1", KEEP, 0x0084).shows(View::Led),
    latch(6, "LED2", KEEP, 0x0088).shows(View::Led),
    latch(7, "LED3", KEEP, 0x0090).shows(View::Led),
    latch(9, "duplex", KEEP, 0),
    latch(16, "I/O base low", KEEP, 0).on(FAST),
    latch(17, "I/O base high", KEEP, 0).on(FAST),
    // Only a 32-bit write to RDP sets DWIO.
    latch(18, "bus", KEEP, 0x9001).stores(0xff7f),
    latch(19, "EEPROM", KEEP, 0x0002).does(Effect::Eeprom),
    latch(20, "software style", KEEP, 0x0200).halted().does(Effect::Style),
    latch(21, "interrupt control", KEEP, 0).on(FAST),
    latch(22, "PCI latency", KEEP, 0xff06),
    latch(23, "subsystem vendor", KEEP, 0).on(FAST).fixed(),
    latch(24, "subsystem id", KEEP, 0).on(FAST).fixed(),
    latch(25, "SRAM size", KEEP, 0x0018).on(FAST),
    latch(26, "SRAM boundary", KEEP, 0).on(FAST),
    latch(27, "SRAM interface", KEEP, 0).on(FAST),
    latch(28, "expansion address low", KEEP, 0).on(FAST),
    latch(29, "expansion address high", KEEP, 0).on(FAST),
    latch(30, "expansion data", KEEP, 0).on(FAST),
    latch(31, "software timer", KEEP, 0xffff).on(FAST),
    latch(32, "MII control", KEEP, 0x0400).on(FAST),
    latch(33, "MII address", KEEP, super::phy::ADDRESS << 5).on(FAST).stores(0x03ff),
    latch(34, "MII data", KEEP, 0).on(FAST).shows(View::Phy).does(Effect::Phy),
    latch(35, "PCI vendor", KEEP, 0x1022).on(FAST).fixed(),
    latch(36, "power capabilities", KEEP, 0xc811).on(FAST).fixed(),
    latch(45, "pattern 1", KEEP, 0).on(FAST),
    latch(46, "pattern 2", KEEP, 0).on(FAST),
    latch(47, "pattern 3", KEEP, 0).on(FAST),
];

/// No row: the register reads as zero, and writes do nothing.
const NONE: u8 = u8::MAX;

const fn places<const N: usize>(table: &[Register]) -> [u8; N] {
    let mut places = [NONE; N];
    let mut row = 0;
    while row < table.len() {
        places[table[row].at as usize] = row as u8;
        row += 1;
    }
    places
}

static CSR_PLACES: [u8; CSRS] = places(CSR);
static BCR_PLACES: [u8; BCRS] = places(BCR);

/// The CSR of this number, if the chip has it.
#[inline]
pub(super) fn csr(number: usize, chip: Chip) -> Option<&'static Register> {
    let place = CSR_PLACES.get(number)?;
    CSR.get(usize::from(*place)).filter(|register| register.members.has(chip))
}

/// The BCR of this number, if the chip has it.
#[inline]
pub(super) fn bcr(number: usize, chip: Chip) -> Option<&'static Register> {
    let place = BCR_PLACES.get(number)?;
    BCR.get(usize::from(*place)).filter(|register| register.members.has(chip))
}

/// All CSRs.
pub(super) fn csrs() -> impl Iterator<Item = &'static Register> {
    CSR.iter()
}

/// All BCRs.
pub(super) fn bcrs() -> impl Iterator<Item = &'static Register> {
    BCR.iter()
}

/// A register, as documentation and traces name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Described {
    /// True for a BCR, false for a CSR.
    pub bcr: bool,
    /// Its number.
    pub number: u8,
    /// The register's name, or what it is for.
    pub name: &'static str,
    /// The class of a read.
    pub read: Class,
    /// The lowest class of a write.
    pub write: Class,
}

/// The registers of a chip: CSRs, then BCRs.
pub fn describe(chip: Chip) -> impl Iterator<Item = Described> {
    let described = |bcr| {
        move |row: &Register| {
            let Act { read, write, .. } = row.effect;
            Described { bcr, number: row.at as u8, name: row.name, read, write }
        }
    };
    let mine = move |register: &&Register| register.members.has(chip);
    csrs().filter(mine).map(described(false)).chain(bcrs().filter(mine).map(described(true)))
}

/// Both tables of registers, for documentation.
pub fn tables() -> [RegisterTable; 2] {
    let table = |title, rows: &[Register]| RegisterTable {
        title,
        chips: &["Am79C970A", "Am79C973"],
        step: 1,
        rows: rows.iter().map(|row| row.described(Act::text)).collect(),
    };
    [
        table("AMD PCnet: control and status registers", CSR),
        table("AMD PCnet: bus configuration registers", BCR),
    ]
}

/// The contents of the address PROM (Am79C970A, "Address PROM Space").
pub(super) fn address_prom(mac: [u8; 6]) -> [u8; 16] {
    let mut prom = [0; 16];
    prom[..6].copy_from_slice(&mac);
    // Hardware id of a PCnet on PCI.
    prom[9] = 0x11;
    prom[14..].fill(b'W');
    let sum: u16 = prom.iter().map(|byte| u16::from(*byte)).sum();
    prom[12..14].copy_from_slice(&sum.to_le_bytes());
    prom
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_found_under_its_number_and_there_is_one_each() {
        for (rows, table) in [(CSR, true), (BCR, false)] {
            for row in rows {
                let number = row.at as usize;
                let found = match table {
                    true => csr(number, Chip::Am79C973),
                    false => bcr(number, Chip::Am79C973),
                };
                assert_eq!(found.unwrap().name, row.name, "{number}");
                let old = [csr, bcr][usize::from(!table)](number, Chip::Am79C970A);
                assert_eq!(old.is_some(), row.members == Members::ALL, "{number}");
            }
        }
        assert!(csr(104, Chip::Am79C973).is_none());
        assert!(csr(128, Chip::Am79C973).is_none());
        assert!(bcr(64, Chip::Am79C973).is_none());
    }

    #[test]
    fn what_only_latches_is_of_the_class_of_memory() {
        for row in csrs().chain(bcrs()) {
            assert_eq!(
                row.effect.read == Class::Latch,
                row.effect.view == View::Latch,
                "{}",
                row.name
            );
            assert_eq!(
                row.effect.write == Class::Latch,
                row.effect.effect == Effect::None,
                "{}",
                row.name
            );
        }
    }

    #[test]
    fn the_address_prom_has_its_sum_and_marks() {
        let prom = address_prom([0x52, 0x54, 0, 0x12, 0x34, 0x56]);
        assert_eq!(prom[..6], [0x52, 0x54, 0, 0x12, 0x34, 0x56]);
        assert_eq!((prom[9], prom[14], prom[15]), (0x11, 0x57, 0x57));
        let others = prom[..12].iter().chain(&prom[14..]);
        let sum: u16 = others.map(|byte| u16::from(*byte)).sum();
        assert_eq!(u16::from_le_bytes([prom[12], prom[13]]), sum);
    }
}
