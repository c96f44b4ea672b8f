//! A PCnet's state, in memory that outlives the process that runs its model.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use port::Counter;
use shmem::Shareable;

use super::table::{self, Chip, Class};
use crate::model::fault::faults;

/// CSR0, the controller's status (Am79C970A, "CSR0").
pub(super) mod status {
    pub const INIT: u16 = 1;
    pub const STRT: u16 = 1 << 1;
    pub const STOP: u16 = 1 << 2;
    pub const TDMD: u16 = 1 << 3;
    pub const TXON: u16 = 1 << 4;
    pub const RXON: u16 = 1 << 5;
    pub const IENA: u16 = 1 << 6;
    pub const INTR: u16 = 1 << 7;
    pub const IDON: u16 = 1 << 8;
    pub const TINT: u16 = 1 << 9;
    pub const RINT: u16 = 1 << 10;
    pub const MERR: u16 = 1 << 11;
    pub const MISS: u16 = 1 << 12;
    pub const CERR: u16 = 1 << 13;
    pub const BABL: u16 = 1 << 14;
    pub const ERR: u16 = 1 << 15;
    /// Event bits, which are cleared by writing 1.
    pub const EVENTS: u16 = 0x7f00;
    /// Events that set [`ERR`].
    pub const ERRORS: u16 = BABL | CERR | MISS | MERR;
    /// Events that interrupt, unless CSR3 masks them.
    pub const CAUSES: u16 = 0x5f00;
}

/// CSR3 (Am79C970A, "CSR3").
pub(super) mod masks {
    /// A transmitter that finds an incomplete frame continues with the next frame.
    pub const DXSUFLO: u16 = 1 << 6;
}

/// CSR4 (Am79C970A, "CSR4").
pub(super) mod features {
    pub const TXDPOLL: u16 = 1 << 12;
    pub const APAD_XMT: u16 = 1 << 11;
    pub const ASTRP_RCV: u16 = 1 << 10;
    pub const MFCO: u16 = 1 << 9;
    pub const UINTCMD: u16 = 1 << 7;
    pub const UINT: u16 = 1 << 6;
    pub const TXSTRT: u16 = 1 << 3;
    /// Events whose masks are one bit lower.
    pub const MASKED: u16 = 0x0115;
    /// Events that STOP clears.
    pub const STOPPED: u16 = 0x02c2;
}

/// CSR5 (Am79C970A, "CSR5").
pub(super) mod extended {
    pub const TOKINTD: u16 = 1 << 15;
    pub const LTINTEN: u16 = 1 << 14;
    pub const SPND: u16 = 1;
    /// Events whose enable bits are one bit lower.
    pub const ENABLED: u16 = 0x0548;
}

/// CSR15, the mode (Am79C970A, "CSR15").
pub(super) mod mode {
    pub const PROM: u16 = 1 << 15;
    pub const DRCVBC: u16 = 1 << 14;
    pub const DRCVPA: u16 = 1 << 13;
    pub const DXMTFCS: u16 = 1 << 3;
    pub const LOOP: u16 = 1 << 2;
    pub const DTX: u16 = 1 << 1;
    pub const DRX: u16 = 1;
}

/// CSR numbers that other files use.
pub(super) mod csr {
    pub const STATUS: usize = 0;
    pub const INIT_BLOCK: usize = 1;
    pub const MASKS: usize = 3;
    pub const FEATURES: usize = 4;
    pub const EXTENDED: usize = 5;
    pub const LENGTHS: usize = 6;
    pub const LOGICAL: usize = 8;
    pub const STATION: usize = 12;
    pub const MODE: usize = 15;
    pub const RECEIVE_BASE: usize = 24;
    pub const TRANSMIT_BASE: usize = 30;
    pub const POLL_INTERVAL: usize = 47;
    pub const RECEIVE_LENGTH: usize = 76;
    pub const TRANSMIT_LENGTH: usize = 78;
    pub const BLOCK: usize = 96;
    pub const MISSED: usize = 112;
}

/// BCR numbers that other files use.
pub(super) mod bcr {
    pub const MISCELLANEOUS: usize = 2;
    pub const DUPLEX: usize = 9;
    pub const BUS: usize = 18;
    pub const STYLE: usize = 20;
    pub const MII_ADDRESS: usize = 33;
}

/// BCR18: the windows are 32 bits wide.
pub(super) const DWIO: u16 = 1 << 7;
/// BCR2: the address PROM may be written.
pub(super) const APROMWE: u16 = 1 << 8;

/// Bits of [`Registers::board`].
pub(super) mod board {
    /// The controller was powered on.
    pub const POWERED: u32 = 1;
    /// The card may read and write memory.
    pub const MASTER: u32 = 2;
    /// The cable is connected.
    pub const LINK: u32 = 4;
    /// Where memory is a copy: the initialization block is being fetched.
    pub const INITIALIZING: u32 = 8;
    /// Start the controller once the initialization block is there.
    pub const STARTING: u32 = 16;
}

/// Not a place in a ring: nothing of the ring was ever sent.
pub(super) const NOT_SENT: u32 = u32::MAX;

faults! {
    /// Errors of a driver that stop the controller.
    Fault {
        /// The initialization block does not lie in guest memory.
        InitBlock = 1, "the initialization block is not in the guest's memory";
        /// A descriptor ring does not lie in guest memory, in one piece.
        Ring = 2, "a descriptor ring is not in the guest's memory, in one piece";
        /// A buffer does not lie in guest memory.
        Buffer = 3, "a buffer is not in the guest's memory";
        /// Guest memory that has failed: its file was truncated, or a page was lost.
        Memory = 4, "the guest's memory has failed";
        /// The shared status block does not lie in guest memory, or crosses a page.
        Block = 5, "the status block is not a page of the guest's memory";
        /// An index in the status block is beyond its ring's end.
        BlockIndex = 6, "an index in the status block is beyond the ring's end";
        /// Guest memory that could not be read or written by messages.
        Unreachable = 7, "the guest's memory cannot be reached by messages";
    }
}

/// A PCnet's registers and positions. All zero means never powered on.
///
/// The home worker writes them, unless a field says otherwise. Any thread that delivers or sends
/// sets events in CSR0, CSR4 and CSR5, with read-modify-write operations.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Registers {
    /// # Protocol: PCnet: events in CSR0, CSR4, CSR5
    /// - Writer: worker that sends, holder of the receiver's lock (set); home worker (set, clear)
    /// - Reader: home worker, the thread that asks for the interrupt
    /// - Ordering: or, and: acquire-release, after the data that they report
    /// - Partner: `told`
    /// - Without it: an event is lost
    /// - Shown by: `nic` tests `pcnet_registers`, `pcnet_csb`
    pub(super) csr: [AtomicU16; table::CSRS],
    pub(super) bcr: [AtomicU16; table::BCRS],
    pub(super) phy: [AtomicU16; 32],
    /// The address PROM, as words of little-endian bytes.
    pub(super) prom: [AtomicU32; 4],
    pub(super) board: AtomicU32,
    pub(super) rap: AtomicU32,
    pub(super) fault: AtomicU32,
    /// Changes with every register that the halves keep copies of.
    ///
    /// # Protocol: PCnet: `config`, `epoch`
    /// - Writer: home worker, under the receiver's lock where that runs
    /// - Reader: both halves, once a batch
    /// - Ordering: add release / load acquire
    /// - Partner: registers that rings and filters are made of
    /// - Without it: a descriptor of an abandoned ring is given back
    /// - Shown by: `nic` tests `pcnet_rings`, `pcnet_hostile`
    pub(super) config: AtomicU32,
    /// Changes when rings restart: the driver then owns again what was lent before.
    pub(super) epoch: AtomicU32,
    /// The lowest bit says that the bus was told that the interrupt's level is high. The other bits
    /// count how often the bus asked. The thread that asks writes it.
    ///
    /// # Protocol: PCnet: `told`
    /// - Writer: the thread that asks for the interrupt's level: first a new number, `SeqCst`
    ///   fence, the events read, then its answer if no other thread asked since
    /// - Reader: the worker that settles, after a `SeqCst` fence between event and look
    /// - Ordering: the writer's answer holds only if its number is still the latest
    /// - Partner: events
    /// - Without it: an interrupt is lost, because the model believes that the bus knows
    /// - Shown by: `nic` test `the thread that_settles_kicks_once_until_the_level_was_asked_for`
    pub(super) told: AtomicU32,
    pub(super) transmit: TransmitState,
    pub(super) receive: ReceiveState,
    counts: Counts,
}

/// The transmitter's position.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct TransmitState {
    /// [`Position`], in one word.
    ///
    /// # Protocol: PCnet: transmit position (next, lent), receive place (next, returning)
    /// - Writer: home worker; holder of the receiver's lock
    /// - Reader: a successor, as it starts
    /// - Ordering: transmitter: after OWN was given back; receiver: before, and taken back after
    ///   the batch: store release / relaxed
    /// - Partner: OWN bits
    /// - Without it: after a death the driver waits at a descriptor that the device does not look
    ///   at
    /// - Shown by: `nic` tests `pcnet`, `pcnet_rings`
    position: AtomicU64,
    /// Transmit demands that were not answered yet.
    pub demands: AtomicU32,
    /// Where memory is a copy: descriptors before this place have left for the guest's memory in
    /// their final form. Otherwise [`NOT_SENT`].
    pub sent: AtomicU32,
}

/// The receiver's position.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct ReceiveState {
    /// The descriptor to fill next. The upper half says how many before it are being filled. It is
    /// stored before they are given back, so that a successor knows. Written under the receiver's
    /// lock.
    place: AtomicU32,
    /// Like [`TransmitState::sent`].
    pub sent: AtomicU32,
}

impl ReceiveState {
    pub fn at(&self) -> u32 {
        self.place.load(Ordering::Relaxed) & 0xffff
    }

    pub fn moving(&self) -> u32 {
        self.place.load(Ordering::Relaxed) >> 16
    }

    #[inline(always)]
    pub fn set(&self, at: u32, moving: u32) {
        self.place.store(at | moving << 16, Ordering::Release);
    }
}

/// Counts, each written by the home worker.
#[derive(Debug)]
#[repr(C, align(64))]
struct Counts {
    accesses: [Counter; Class::COUNT],
    demands: Counter,
    deferred: Counter,
}

#[allow(unsafe_code, reason = "a promise about a type that lies in shared memory")]
// SAFETY: the type consists of atomic words only; padding is never read.
unsafe impl Shareable for Registers {}

const _: () = assert!(size_of::<Registers>() <= 16 * 1024);

/// A place in the transmit ring: the next descriptor, and how many before it are lent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    pub at: u32,
    pub lent: u32,
}

/// Register accesses since power-on, by class, and transmit demands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accesses {
    /// Accesses of each [`Class`], in its order.
    pub by_class: [u64; Class::COUNT],
    /// Transmit demands: doorbells.
    pub demands: u64,
    /// Transmit demands that were deferred, to be answered together with others.
    pub deferred: u64,
}

impl Accesses {
    /// The accesses of a class.
    #[must_use]
    pub fn of(&self, class: Class) -> u64 {
        self.by_class[class as usize]
    }
}

impl Registers {
    /// Returns the accesses since power-on.
    #[must_use]
    pub fn accesses(&self) -> Accesses {
        Accesses {
            by_class: std::array::from_fn(|class| self.counts.accesses[class].get()),
            demands: self.counts.demands.get(),
            deferred: self.counts.deferred.get(),
        }
    }

    /// The fault that stopped the controller.
    #[must_use]
    pub fn fault(&self) -> Option<Fault> {
        Fault::of(self.fault.load(Ordering::Relaxed))
    }

    pub(super) fn set_fault(&self, fault: Option<Fault>) {
        self.fault.store(fault.map_or(0, |fault| fault as u32), Ordering::Relaxed);
    }

    #[inline(always)]
    pub(super) fn count(&self, class: Class) {
        self.counts.accesses[class as usize].add(1);
    }

    pub(super) fn count_demand(&self) {
        self.counts.demands.add(1);
        self.transmit.demands.store(self.demands() + 1, Ordering::Relaxed);
    }

    pub(super) fn count_deferred(&self, demands: u32) {
        self.counts.deferred.add(u64::from(demands));
    }

    /// Transmit demands that were not answered yet. The sum cannot saturate, because each demand is
    /// a trap.
    #[inline(always)]
    pub(super) fn demands(&self) -> u32 {
        self.transmit.demands.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn csr(&self, number: usize) -> u16 {
        self.csr[number].load(Ordering::Relaxed)
    }

    pub(super) fn set_csr(&self, number: usize, value: u16) {
        self.csr[number].store(value, Ordering::Relaxed);
    }

    /// Two CSRs as one number, the lower half first.
    pub(super) fn csr_pair(&self, low: usize) -> u32 {
        u32::from(self.csr(low)) | u32::from(self.csr(low + 1)) << 16
    }

    /// The shared status block's address.
    pub(super) fn block(&self) -> u64 {
        let halves = [csr::BLOCK, csr::BLOCK + 2].map(|low| u64::from(self.csr_pair(low)));
        halves[0] | halves[1] << 32
    }

    pub(super) fn set_csr_pair(&self, low: usize, value: u32) {
        self.set_csr(low, value as u16);
        self.set_csr(low + 1, (value >> 16) as u16);
    }

    #[inline(always)]
    pub(super) fn bcr(&self, number: usize) -> u16 {
        self.bcr[number].load(Ordering::Relaxed)
    }

    pub(super) fn set_bcr(&self, number: usize, value: u16) {
        self.bcr[number].store(value, Ordering::Relaxed);
    }

    /// CSR0, without its computed bits.
    #[inline(always)]
    pub(super) fn status(&self) -> u16 {
        self.csr[csr::STATUS].load(Ordering::Acquire)
    }

    /// Sets events, after the data that they report.
    #[inline(always)]
    pub(super) fn raise(&self, events: u16) {
        self.csr[csr::STATUS].fetch_or(events, Ordering::AcqRel);
    }

    pub(super) fn change_status(&self, clear: u16, set: u16) {
        self.csr[csr::STATUS].fetch_and(!clear, Ordering::AcqRel);
        self.csr[csr::STATUS].fetch_or(set, Ordering::AcqRel);
    }

    #[inline(always)]
    pub(super) fn is_suspended(&self) -> bool {
        self.csr(csr::EXTENDED) & extended::SPND != 0
    }

    #[inline(always)]
    pub(super) fn has(&self, board: u32) -> bool {
        self.board.load(Ordering::Relaxed) & board != 0
    }

    pub(super) fn set_board(&self, bits: u32, on: bool) {
        if on {
            self.board.fetch_or(bits, Ordering::AcqRel);
        } else {
            self.board.fetch_and(!bits, Ordering::AcqRel);
        }
    }

    pub(super) fn changed(&self) {
        self.config.fetch_add(1, Ordering::Release);
    }

    /// Restarts the rings.
    pub(super) fn restart(&self) {
        self.set_position(Position::default());
        self.receive.set(0, 0);
        self.set_board(board::INITIALIZING | board::STARTING, false);
        for sent in [&self.transmit.sent, &self.receive.sent] {
            if sent.load(Ordering::Relaxed) != NOT_SENT {
                sent.store(0, Ordering::Relaxed);
            }
        }
        self.epoch.fetch_add(1, Ordering::Release);
        self.changed();
    }

    #[inline(always)]
    pub(super) fn position(&self) -> Position {
        let word = self.transmit.position.load(Ordering::Relaxed);
        Position { at: word as u32, lent: (word >> 32) as u32 }
    }

    #[inline(always)]
    pub(super) fn set_position(&self, position: Position) {
        let word = u64::from(position.at) | u64::from(position.lent) << 32;
        self.transmit.position.store(word, Ordering::Release);
    }

    /// The number of descriptors of the ring whose length is in this CSR, as two's complement.
    pub(super) fn ring_len(&self, number: usize) -> u32 {
        u32::from(self.csr(number).wrapping_neg()).max(1)
    }

    /// True if an event asks for an interrupt: INTR of CSR0.
    #[inline]
    pub(super) fn pending(&self) -> bool {
        let (four, five) = (self.csr(csr::FEATURES), self.csr(csr::EXTENDED));
        self.status() & !self.csr(csr::MASKS) & status::CAUSES != 0
            || four >> 1 & !four & features::MASKED != 0
            || four & features::UINT != 0
            || five >> 1 & five & extended::ENABLED != 0
    }

    /// The interrupt pin's level.
    #[inline]
    pub(super) fn level(&self) -> bool {
        self.status() & status::IENA != 0 && self.pending()
    }

    /// Resets the state as power-on or H_RESET does. The board's connections stay.
    pub(super) fn hard_reset(&self, chip: Chip, mac: [u8; 6]) {
        self.csr.iter().chain(&self.bcr).for_each(|word| word.store(0, Ordering::Relaxed));
        for register in table::bcrs().filter(|register| register.members.has(chip)) {
            self.set_bcr(register.at as usize, register.bits().1);
        }
        self.write_prom(&table::address_prom(mac));
        self.reset_phy();
        self.soft_reset(chip);
    }

    pub(super) fn reset_phy(&self) {
        for row in &super::phy::PHY {
            self.phy[row.number].store(row.reset, Ordering::Relaxed);
        }
    }

    /// S_RESET.
    pub(super) fn soft_reset(&self, chip: Chip) {
        self.rap.store(0, Ordering::Relaxed);
        for register in table::csrs().filter(|register| register.members.has(chip)) {
            let number = register.at as usize;
            let kept = self.csr(number) & register.survives as u16;
            self.set_csr(number, kept | register.bits().1);
        }
        let (low, high) = chip.id();
        self.set_csr(88, low);
        self.set_csr(89, high);
        for word in 0..3 {
            self.set_csr(csr::STATION + word, self.prom_half(word));
        }
        self.transmit.demands.store(0, Ordering::Relaxed);
        self.set_fault(None);
        self.restart();
    }

    pub(super) fn read_prom(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        for (word, bytes) in self.prom.iter().zip(bytes.chunks_exact_mut(4)) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        bytes
    }

    pub(super) fn write_prom(&self, bytes: &[u8; 16]) {
        for (word, bytes) in self.prom.iter().zip(bytes.chunks_exact(4)) {
            let mut four = [0; 4];
            four.copy_from_slice(bytes);
            word.store(u32::from_le_bytes(four), Ordering::Relaxed);
        }
    }

    fn prom_half(&self, half: usize) -> u16 {
        let bytes = self.read_prom();
        u16::from_le_bytes([bytes[2 * half], bytes[2 * half + 1]])
    }
}
