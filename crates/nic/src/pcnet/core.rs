//! The controller: the state that registers, transmitter and receiver share, and what starts and
//! stops it.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shmem::guard::Watch;
use shmem::{Bytes, GuestMemory, Shared};

use super::copy::Copied;
use super::filter::Filter;
use super::registers::{Fault, board, csr, extended, features, mode, status};
use super::ring::{InitBlock, Ring, Style};
use super::table::{Chip, Class};
use super::{Registers, mii};
use crate::csb::{self, Announced, Host};
use crate::device::Combining;

/// The lowest bit of [`Registers::told`].
const TOLD: u32 = 1;

/// State that the parts of a model share.
#[derive(Debug)]
pub(super) struct Core {
    pub chip: Chip,
    pub registers: Shared<Registers>,
    pub memory: Arc<GuestMemory>,
    pub mac: [u8; 6],
    pub csb: bool,
    pub combining: Option<Combining>,
    /// The shared status block, if the driver has announced one.
    pub block: Announced,
    /// Frames were received with the block, and no thread has decided yet whether to interrupt.
    ///
    /// # Protocol: PCnet: `Core.unsettled`
    /// - Writer: holder of the receiver's lock (set; swap, by the worker that settles)
    /// - Reader: the worker that settles
    /// - Ordering: relaxed: the lock orders it, and the thread that set it settles
    /// - Partner: CSR0
    /// - Without it: the driver is not told of frames; a successor always tells
    /// - Shown by: `nic` tests `pcnet_csb`
    pub unsettled: AtomicBool,
    /// Keeps the guest's memory in step, if the device's memory is a copy.
    pub copied: Option<Copied>,
    /// The receiver. Code that stops it, or changes what it keeps copies of, takes the lock.
    filling: Mutex<Filling>,
}

/// What the receiver's lock protects.
#[derive(Debug, Default)]
pub(super) struct Filling {
    /// The value of the registers' `config` at which the other fields were read.
    pub config: Option<u32>,
    pub ring: Option<Ring>,
    pub filter: Filter,
    pub looped: bool,
    pub watch: Watch,
    /// The receiver's part of the shared status block.
    pub host: Host,
    pub epoch: u32,
    /// True once the descriptors that a predecessor was about to give back were handled.
    pub begun: bool,
}

impl Core {
    pub fn new(
        chip: Chip,
        registers: Shared<Registers>,
        config: &crate::device::DeviceConfig,
    ) -> Self {
        let core = Self {
            chip,
            registers,
            memory: Arc::clone(&config.memory),
            mac: config.mac.octets(),
            csb: config.csb,
            combining: config.combining,
            block: Announced::default(),
            unsettled: AtomicBool::new(false),
            copied: config.memory.is_copy().then(Copied::default),
            filling: Mutex::new(Filling::default()),
        };
        if !core.registers.has(board::POWERED) {
            core.registers.hard_reset(chip, core.mac);
            core.registers.set_board(board::POWERED, true);
        }
        core.registers.set_board(board::LINK, config.link);
        core.resume_copy();
        // A block that is not in the current memory may be in the next.
        let mapped = core.map_block() && core.csb && core.registers.block() != 0;
        if mapped && core.registers.status() & status::STRT != 0 {
            // A predecessor may have moved frames without telling the driver.
            core.registers.raise(status::RINT | status::TINT);
        }
        core
    }

    pub fn lock(&self) -> MutexGuard<'_, Filling> {
        self.filling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles a write to the lowest part of the status block's address.
    pub fn announce_block(&self) {
        let _stopped = self.lock();
        if !self.map_block() {
            self.fail(Fault::Block);
        }
    }

    /// Maps the status block again; false if there is none at its address.
    fn map_block(&self) -> bool {
        !self.csb || self.block.map(&self.memory, self.registers.block(), [1, 1]).is_ok()
    }

    /// Stops the device, and reports the fault in the status block.
    #[cold]
    pub fn fail_by_block(&self, fault: csb::Fault) {
        self.block.report(fault);
        self.fail(Fault::BlockIndex);
    }

    /// Settles frames that were received with the status block, as [`Filling::settle`] does.
    #[cold]
    pub fn settle_received(&self) {
        let mut filling = self.lock();
        if self.unsettled.swap(false, Ordering::Relaxed) {
            filling.settle(self);
            // Orders the event before the check whether the bus knows.
            fence(Ordering::SeqCst);
        }
    }

    /// True if frames come back to the controller that sent them.
    pub fn is_looped(&self) -> bool {
        let looped = self.registers.csr(csr::MODE) & mode::LOOP != 0;
        looped || self.chip == Chip::Am79C973 && mii::is_looped(&self.registers)
    }

    /// True if frames do not leave: they are looped back, or there is no cable.
    pub fn absorbs(&self) -> bool {
        self.is_looped() || !self.registers.has(board::LINK)
    }

    /// True if the controller should work and may: `on` (TXON or RXON) is set, it is not suspended,
    /// and it may read and write memory.
    #[inline(always)]
    pub fn works(&self, on: u16) -> bool {
        let registers = &*self.registers;
        registers.status() & on != 0 && !registers.is_suspended() && registers.has(board::MASTER)
    }

    /// Handles a fault by the driver: both halves stop, and report a memory error.
    #[cold]
    pub fn fail(&self, fault: Fault) {
        self.registers.set_fault(Some(fault));
        self.registers.change_status(status::TXON | status::RXON, status::MERR);
    }

    /// True if the bus must check the interrupt pin. The caller has fenced since events were set.
    pub fn wants_kick(&self) -> bool {
        self.registers.told.load(Ordering::Relaxed) & TOLD == 0 && self.registers.level()
    }

    /// Reads the interrupt pin's level for the bus, and notes that the bus knows it.
    pub fn read_level(&self) -> bool {
        let told = &self.registers.told;
        // A thread that sets an event meanwhile sees this store, or this thread sees the event.
        let begin = |old: u32| Some((old | TOLD).wrapping_add(1));
        let before = told.fetch_update(Ordering::SeqCst, Ordering::Relaxed, begin);
        let begun = (before.unwrap_or_default() | TOLD).wrapping_add(1);
        fence(Ordering::SeqCst);
        let level = self.registers.level();
        if level {
            // If another thread has asked meanwhile, only that thread's answer counts.
            let (done, order) = (begun | TOLD, Ordering::Relaxed);
            let _ = told.compare_exchange(begun, done, Ordering::SeqCst, order);
        }
        level
    }

    /// Performs an S_RESET or H_RESET.
    pub fn reset(&self, hard: bool) {
        let _stopped = self.lock();
        if hard {
            self.registers.hard_reset(self.chip, self.mac);
            // The address is zero: the block is gone.
            let _ = self.map_block();
        } else {
            self.registers.soft_reset(self.chip);
        }
    }

    /// Writes CSR0. Returns the access's class.
    pub fn write_status(&self, value: u16) -> Class {
        use status::{EVENTS, IENA, INIT, STOP, STRT, TDMD, TXON};
        let registers = &*self.registers;
        let old = registers.status();
        if value & STOP != 0 {
            if old & STOP == 0 {
                self.stop();
            }
            return Class::Local;
        }
        let masked = if value & IENA == 0 { IENA } else { 0 };
        let clear = value & EVENTS | masked;
        if old & clear != 0 || value & IENA & !old != 0 {
            registers.change_status(clear, value & IENA);
        }
        if value & INIT & !old != 0 {
            self.initialize();
        }
        match registers.has(board::INITIALIZING) {
            _ if value & STRT & !old == 0 => {}
            true => registers.set_board(board::STARTING, true),
            false => self.start(),
        }
        if value & TDMD == 0 || registers.status() & TXON == 0 {
            return Class::Local;
        }
        registers.count_demand();
        self.demand_copy();
        Class::Network
    }

    /// STOP (Am79C970A, "CSR0"): everything in flight belongs to the driver again.
    fn stop(&self) {
        let _stopped = self.lock();
        let registers = &*self.registers;
        registers.change_status(!0, status::STOP);
        registers.csr[csr::FEATURES].fetch_and(!features::STOPPED, Ordering::AcqRel);
        registers.csr[csr::EXTENDED].fetch_and(!extended::SPND, Ordering::AcqRel);
        registers.set_fault(None);
        registers.transmit.demands.store(0, Ordering::Relaxed);
        registers.restart();
    }

    /// INIT: reads the initialization block, or requests it.
    fn initialize(&self) {
        let registers = &*self.registers;
        {
            let _stopped = self.lock();
            registers.change_status(status::STOP, status::INIT);
            registers.set_fault(None);
        }
        if self.copied.is_some() && registers.has(board::MASTER) {
            registers.set_board(board::INITIALIZING, true);
        } else {
            self.end_initializing();
        }
    }

    /// Ends initialization once the initialization block has been read. Starts the controller if
    /// the driver has asked for that since.
    pub fn end_initializing(&self) {
        let starts = self.registers.has(board::STARTING);
        self.load_init_block();
        if starts {
            self.start();
        }
    }

    fn load_init_block(&self) {
        let _stopped = self.lock();
        let registers = &*self.registers;
        registers.set_board(board::INITIALIZING | board::STARTING, false);
        let style = Style::of(registers);
        let mut block = [0; InitBlock::MOST];
        if !self.read_init_block(&mut block[..InitBlock::size(style)]) {
            return self.fail(Fault::InitBlock);
        }
        let block = InitBlock::parse(&block, style);
        registers.set_csr(csr::MODE, block.mode);
        for (half, value) in block.station.iter().enumerate() {
            registers.set_csr(csr::STATION + half, *value);
        }
        for (half, value) in block.logical.iter().enumerate() {
            registers.set_csr(csr::LOGICAL + half, *value);
        }
        let rings = [
            (block.receive, csr::RECEIVE_BASE, csr::RECEIVE_LENGTH),
            (block.transmit, csr::TRANSMIT_BASE, csr::TRANSMIT_LENGTH),
        ];
        for ((base, code), base_csr, len_csr) in rings {
            registers.set_csr_pair(base_csr, base);
            registers.set_csr(len_csr, InitBlock::ring_len(code).wrapping_neg());
        }
        let lengths = block.transmit.1 << 12 | block.receive.1 << 8;
        registers.set_csr(csr::LENGTHS, lengths);
        registers.set_csr(csr::POLL_INTERVAL, 0);
        registers.restart();
        registers.raise(status::IDON);
    }

    fn read_init_block(&self, block: &mut [u8]) -> bool {
        let at = self.registers.csr_pair(csr::INIT_BLOCK);
        let (mut read, len) = (0, block.len() as u32);
        let visit = |bytes: Bytes<'_>| {
            read += bytes.copy_out(block.get_mut(read..).unwrap_or_default());
        };
        let mut near = self.memory.near();
        self.registers.has(board::MASTER) && near.for_each_to_read(at.into(), len, visit)
    }

    /// STRT: resets the rings to their bases (Am79C970A, "Re-Initialization").
    fn start(&self) {
        let _stopped = self.lock();
        let registers = &*self.registers;
        let mode = registers.csr(csr::MODE);
        let mut on = status::STRT;
        if mode & mode::DTX == 0 {
            on |= status::TXON;
        }
        if mode & mode::DRX == 0 {
            on |= status::RXON;
        }
        if registers.fault().is_some() {
            on = status::STRT;
        }
        registers.restart();
        self.clear_copy();
        registers.transmit.demands.store(1, Ordering::Relaxed);
        registers.change_status(status::STOP, on);
    }

    /// Writes CSR5; a bit in `events` is cleared by writing 1.
    pub fn write_extended(&self, value: u16, mask: u16, events: u16) {
        let held = self.lock();
        let registers = &*self.registers;
        let was = registers.is_suspended();
        self.store_events(csr::EXTENDED, value, mask, events);
        drop(held);
        if was && !registers.is_suspended() {
            registers.changed();
            registers.transmit.demands.fetch_add(1, Ordering::Relaxed);
            self.demand_copy();
        }
    }

    /// Writes CSR4; a bit in `events` is cleared by writing 1. Software may raise its own
    /// interrupt.
    pub fn write_features(&self, value: u16, mask: u16, events: u16) {
        self.store_events(csr::FEATURES, value, mask, events);
        if value & features::UINTCMD != 0 {
            self.registers.csr[csr::FEATURES].fetch_or(features::UINT, Ordering::AcqRel);
        }
    }

    /// Stores the bits in `mask` and clears the events that are written as ones.
    pub fn store_events(&self, number: usize, value: u16, mask: u16, events: u16) {
        let register = &self.registers.csr[number];
        register.fetch_and(!(value & events | !value & mask), Ordering::AcqRel);
        register.fetch_or(value & mask, Ordering::AcqRel);
    }
}
