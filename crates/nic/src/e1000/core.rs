//! The state that a device's registers, transmit and receive queues share, and its resets.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use frame::Mac;
use shmem::guard::Watch;
use shmem::{GuestMemory, Shared, SharedSlice};

use super::copy::Copied;
use super::eeprom::Eeprom;
use super::filter::Filter;
use super::registers::Registers;
use super::ring::Descriptor;
use super::table::{self, cause};
use super::{Chip, phy};
use crate::csb::{Announced, Direction, Host};
use crate::model::ring::of_queue;

/// The parts of a device.
#[derive(Debug)]
pub(super) struct Core {
    pub chip: Chip,
    pub registers: Shared<Registers>,
    pub memory: Arc<GuestMemory>,
    pub eeprom: Eeprom,
    pub mac: Mac,
    /// True if the device offers a shared status block.
    pub csb: bool,
    /// The shared status block that the driver announced.
    pub block: Announced,
    /// The holder of this lock decides about interrupts.
    ///
    /// # Protocol: e1000: ICR, IMS
    /// - Writer: any thread (set); home worker, by MSI-X also the thread that asks (clear, under
    ///   `deciding`)
    /// - Reader: the thread that asks what to raise, under `deciding`
    /// - Ordering: or, and the loads that check what the other side has set: `SeqCst`; and, swap:
    ///   acquire-release
    /// - Partner: `raised`, `last`, `timers`: under `deciding`
    /// - Without it: a cause is lost between two interrupts
    /// - Shown by: `nic` tests `e1000` (`bringup`, `l82574`, `moderation`)
    pub deciding: Mutex<()>,
    /// The receive rings' filling state.
    pub filling: [Mutex<Filling>; 2],
    /// Counts what changes filters and buffers.
    ///
    /// # Protocol: e1000: `Core.filters`, `rings`
    /// - Writer: home worker; `filters` under the locks of both receive queues
    /// - Reader: `filters`: receive queues, once a batch; `rings`: transmit queues
    /// - Ordering: add acquire-release / load acquire; `rings`: relaxed, one thread
    /// - Partner: the registers that they count changes of
    /// - Without it: old filters apply to frames, or a descriptor of an abandoned ring is written
    /// - Shown by: `nic` tests `e1000` (`hostile`)
    pub filters: AtomicU32,
    /// For each transmit queue: counts moves and removals of the ring.
    pub rings: [AtomicU32; 2],
    /// Keeps the guest's memory in step, if the device's memory is a copy.
    pub copied: Option<Copied>,
}

/// The state of filling a receive ring.
#[derive(Debug, Default)]
pub(super) struct Filling {
    pub queue: usize,
    pub ring: Option<SharedSlice<Descriptor>>,
    /// True if the ring was moved since it was last looked up.
    pub moved: bool,
    /// The number of descriptors of the ring.
    pub size: u32,
    pub head: u32,
    /// The second words of descriptors that are filled and not published.
    pub filled: Vec<u64>,
    pub filter: Filter,
    /// The value of `Core.filters` for which the copied filters hold.
    pub filters: Option<u32>,
    /// The receiver's part of the shared status block.
    pub host: Host,
    pub watch: Watch,
}

impl Core {
    pub fn lock(&self, queue: usize) -> MutexGuard<'_, Filling> {
        of_queue(&self.filling, queue).lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes something that receive queues depend on, while none is being filled.
    pub fn change_filters(&self, change: impl FnOnce()) {
        let _queues = [self.lock(0), self.lock(1)];
        change();
        self.filters.fetch_add(1, AcqRel);
    }

    /// Counts changes of the filters.
    pub fn filters(&self) -> u32 {
        self.filters.load(Acquire)
    }

    /// Notes that a transmit ring was replaced, or that its head moved.
    pub fn move_ring(&self, queue: usize) {
        let registers = &self.registers;
        let head = registers.get(of_queue(&table::TX, queue).head);
        of_queue(&registers.tx, queue).taken.store(head, Relaxed);
        of_queue(&self.rings, queue).fetch_add(1, Relaxed);
        self.start_copy(Direction::Send, queue);
    }

    /// Notes that a receive ring was replaced, or that its head moved, and makes `change` while no
    /// frame is delivered.
    pub fn move_receive_ring(&self, queue: usize, change: impl FnOnce()) {
        let mut filling = self.lock(queue);
        change();
        filling.forget_ring();
        self.start_copy(Direction::Receive, queue);
    }

    /// How far a queue's driver has made descriptors available. Where memory is a copy, counts only
    /// those in the copy.
    #[inline]
    pub fn tail(&self, way: Direction, queue: usize) -> u32 {
        match &self.copied {
            None => self.registers.observe(table::words(way, queue).tail),
            Some(copied) => copied.shown(way, queue),
        }
    }

    /// Powers the device on, if it never was.
    pub fn power_on(&self) {
        if self.registers.powered.load(Acquire) == 0 {
            self.reset_function();
            self.registers.powered.store(1, Relaxed);
        }
    }

    /// Resets everything.
    pub fn reset_function(&self) {
        phy::reset(&self.registers, self.chip);
        self.registers.io_address.store(0, Relaxed);
        self.reset_words(true);
        let _ = self.map_block();
    }

    /// Resets the device by CTRL.RST. The PHY keeps its state, and so does what the manual exempts.
    pub fn reset_by_driver(&self) {
        self.reset_words(false);
    }

    fn reset_words(&self, all: bool) {
        let registers = &self.registers;
        self.change_filters(|| {
            for (row, first) in table::rows().filter(|(row, _)| all || row.survives == 0) {
                let value = row.reset[self.chip as usize];
                (0..usize::from(row.count)).for_each(|i| registers.set(first + i, value));
            }
            registers.octets.iter().for_each(|octets| octets.store(0, Relaxed));
            registers.fault.store(0, Relaxed);
            for queue in &registers.rx {
                queue.unsettled.store(0, Relaxed);
                queue.moving.store(0, Relaxed);
            }
            for queue in &registers.tx {
                queue.told.store(0, Relaxed);
                queue.contexts.iter().flatten().for_each(|word| word.store(0, Relaxed));
            }
            self.load_address();
        });
        (0..2).for_each(|queue| self.move_receive_ring(queue, || ()));
        (0..2).for_each(|queue| self.move_ring(queue));
        self.reset_copy();
        self.reset_interrupts();
    }

    /// Loads the station address from the EEPROM into the first receive address.
    pub fn load_address(&self) {
        let word = self.mac.word();
        self.registers.set(table::RAL, word as u32);
        self.registers.set(table::RAL + 1, (word >> 32) as u32 | 1 << 31);
    }

    /// Connects or disconnects the cable.
    pub fn set_link(&self, up: bool) -> bool {
        let was = self.registers.link.swap(u32::from(up), AcqRel) != 0;
        was != up && self.raise(cause::LSC)
    }
}
