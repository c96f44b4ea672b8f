//! Causes, masks and moderation (82540EM manual, 3.2.7, 3.4.3 and 13.4.17-24; 82574L datasheet,
//! 7.4).
//!
//! ```text
//!   frames, link, ... --> delay (RDTR, RADV, TIDV, TADV) --> ICR --and--> gap (ITR, EITR) --> raised
//!                                                                IMS
//! ```
//!
//! Any worker may set causes. The delays, and what is raised when, are decided under one lock, by
//! the thread that asks.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{MutexGuard, PoisonError};

use port::Nanos;

use super::Chip;
use super::core::Core;
use super::registers::{InterruptState, Timer, VECTORS};
use super::table::{self, cause, ctrl_ext};
use crate::device::{Interrupt, InterruptMode};

/// Nanoseconds in a unit of ITR and EITR.
const GAP: u64 = 256;
/// Nanoseconds in a unit of RDTR, RADV, TIDV and TADV.
const DELAY: u64 = 1024;

/// Causes that the 82574L sums up as "other". RXO is not one of them. The chip sets it when its
/// packet buffer overruns, and the model has no such buffer. A flooded guest would read ICR each
/// time it runs out of descriptors (e1000e, handler for other causes).
const OTHERS: u32 = cause::LSC | cause::MDAC | cause::SRPD;
/// Causes that a receive delay defers.
pub(super) const RX_HELD: u32 = cause::RXT0 | cause::RXQ0 | cause::RXQ1;
/// Causes that a transmit delay defers.
pub(super) const TX_HELD: u32 = cause::TXDW | cause::TXQ0 | cause::TXQ1;

impl Core {
    fn interrupts(&self) -> &InterruptState {
        &self.registers.interrupts
    }

    fn decide(&self) -> MutexGuard<'_, ()> {
        self.deciding.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets causes. Returns true if a thread must ask what to raise.
    #[inline]
    pub fn raise(&self, causes: u32) -> bool {
        let other = self.chip == Chip::L82574 && causes & OTHERS != 0;
        let causes = causes | if other { cause::OTHER } else { 0 };
        self.registers.set_bits(table::ICR, causes & self.causes());
        causes & self.registers.look(table::IMS) != 0
    }

    /// Causes that are set and not masked. A thread that unmasks asks afterwards; one that sets a
    /// cause reads the mask.
    pub fn pending(&self) -> u32 {
        self.registers.look(table::ICR) & self.registers.look(table::IMS)
    }

    /// The causes that the chip has.
    pub fn causes(&self) -> u32 {
        super::causes(self.chip)
    }

    /// Notes frames received on a queue: sets RXT0 at once or after a delay.
    pub fn received(&self, queue: usize, now: Nanos) -> bool {
        let own = self.received_cause(queue);
        let (delay, most) = (self.registers.get(table::RDTR), self.registers.get(table::RADV));
        self.delay(cause::RXT0 | own, now, (delay, most), (Timer::Rx, Timer::RxAbsolute))
    }

    /// Notes frames sent by a queue whose driver wants to know, but can wait.
    pub fn sent_delayed(&self, queue: usize, now: Nanos) -> bool {
        let causes = cause::TXDW | self.sent_cause(queue);
        let (delay, most) = (self.registers.get(table::TIDV), self.registers.get(table::TADV));
        self.delay(causes, now, (delay, most), (Timer::Tx, Timer::TxAbsolute))
    }

    /// The cause that the 82574L gives a receive queue.
    pub fn received_cause(&self, queue: usize) -> u32 {
        if self.chip == Chip::L82574 { cause::RXQ0 << queue } else { 0 }
    }

    /// The cause that the 82574L gives a transmit queue.
    pub fn sent_cause(&self, queue: usize) -> u32 {
        if self.chip == Chip::L82574 { cause::TXQ0 << queue } else { 0 }
    }

    /// Sets causes after a delay. Each call restarts the delay, up to a limit after the first call.
    fn delay(
        &self,
        causes: u32,
        now: Nanos,
        (delay, most): (u32, u32),
        (relative, absolute): (Timer, Timer),
    ) -> bool {
        if delay == 0 {
            return self.raise(causes);
        }
        let _deciding = self.decide();
        let state = self.interrupts();
        state.held.fetch_or(causes, Relaxed);
        let due = now.0.max(1) + DELAY * u64::from(delay);
        let was = state.timers[relative as usize].swap(due, Relaxed);
        let absolute = &state.timers[absolute as usize];
        if most != 0 && absolute.load(Relaxed) == 0 {
            absolute.store(now.0.max(1) + DELAY * u64::from(most), Relaxed);
        }
        // While a timer runs, a thread already asks when it is due, and learns if it is due now.
        was == 0
    }

    /// Sets deferred causes at once (RDTR.FPD).
    pub fn flush_receive_delay(&self) {
        let _deciding = self.decide();
        self.fire(Timer::Rx, RX_HELD);
    }

    fn fire(&self, timer: Timer, causes: u32) {
        let state = self.interrupts();
        // The relative and the absolute timer expire together.
        for timer in [timer as usize, timer as usize + 1] {
            state.timers[timer].store(0, Relaxed);
        }
        let held = state.held.fetch_and(!causes, Relaxed) & causes;
        let _ = self.raise(held);
    }

    /// Sets causes whose time has come. Returns when the next one is due.
    fn fire_timers(&self, now: Nanos) -> Option<Nanos> {
        let state = self.interrupts();
        let mut next: Option<Nanos> = None;
        for (timer, causes) in [(Timer::Rx, RX_HELD), (Timer::Tx, TX_HELD)] {
            let times = [timer as usize, timer as usize + 1];
            let due = times.map(|at| state.timers[at].load(Relaxed)).into_iter();
            match due.filter(|due| *due != 0).min() {
                Some(due) if due <= now.0 => self.fire(timer, causes),
                Some(due) => next = earlier(next, Nanos(due)),
                None => {}
            }
        }
        next
    }

    /// Decides which interrupts to raise now.
    pub fn interrupt(&self, now: Nanos) -> Interrupt {
        let _deciding = self.decide();
        let mut due = self.fire_timers(now);
        let vectors = match self.mode() {
            InterruptMode::Msix => self.messages(now, &mut due),
            mode => self.line(now, mode, &mut due),
        };
        Interrupt { vectors, due }
    }

    /// Decides for the pin, or the single message.
    fn line(&self, now: Nanos, mode: InterruptMode, due: &mut Option<Nanos>) -> u32 {
        let (registers, state) = (&self.registers, self.interrupts());
        if self.pending() == 0 {
            state.raised.store(0, Relaxed);
            return 0;
        }
        if state.raised.load(Relaxed) & 1 != 0 {
            return u32::from(mode == InterruptMode::Pin);
        }
        if !self.may_raise(0, registers.get(table::ITR), now, due) {
            return 0;
        }
        state.raised.store(1, Relaxed);
        1
    }

    /// Decides for the messages, one for each vector (82574L datasheet, 7.4.2).
    fn messages(&self, now: Nanos, due: &mut Option<Nanos>) -> u32 {
        let (registers, state) = (&self.registers, self.interrupts());
        let mut vectors = 0;
        for vector in 0..VECTORS {
            let causes = self.causes_of(vector);
            let pending = || self.pending() & causes;
            let bit = 1 << vector;
            let raised = state.raised.load(Relaxed);
            let now_pending = pending();
            if now_pending == 0 {
                state.raised.store(raised & !bit, Relaxed);
                continue;
            }
            let gap = registers.get(table::EITR + vector);
            if raised & bit != 0 || !self.may_raise(vector, gap, now, due) {
                continue;
            }
            vectors |= bit;
            self.acknowledge(now_pending);
            let still = if pending() == 0 { 0 } else { bit };
            state.raised.store(raised & !bit | still, Relaxed);
        }
        vectors
    }

    /// Applies what a message does to those of its causes that EIAC names. It clears them, and
    /// masks them unless reading ICR masks (IAME; 82574L datasheet, 10.2.4.7; Linux has relied on
    /// it since 2015).
    fn acknowledge(&self, causes: u32) {
        let registers = &self.registers;
        let automatic = registers.get(table::EIAC) & causes;
        registers.clear_bits(table::ICR, automatic);
        if registers.get(table::CTRL_EXT) & ctrl_ext::IAME == 0 {
            registers.clear_bits(table::IMS, automatic);
        }
    }

    /// The causes that map to a vector (IVAR).
    fn causes_of(&self, vector: usize) -> u32 {
        let ivar = self.registers.get(table::IVAR);
        let sources = [cause::RXQ0, cause::RXQ1, cause::TXQ0, cause::TXQ1, cause::OTHER];
        let mine = sources.iter().enumerate().filter(|(source, _)| {
            let entry = ivar >> (4 * source) & 0xf;
            entry & 8 != 0 && (entry & 7) as usize == vector
        });
        mine.fold(0, |causes, (_, source)| causes | source)
    }

    /// True if the gap since the vector's last interrupt is over; then the interrupt is noted.
    fn may_raise(&self, vector: usize, gap: u32, now: Nanos, due: &mut Option<Nanos>) -> bool {
        let last = &self.interrupts().last[vector];
        let then = last.load(Relaxed);
        let open = Nanos(then) + GAP * u64::from(gap);
        if then != 0 && gap != 0 && now < open {
            *due = earlier(*due, open);
            return false;
        }
        last.store(now.0.max(1), Relaxed);
        true
    }

    /// Reads ICR: clears everything, and on the 82574L masks what IAM says.
    pub fn read_causes(&self) -> u32 {
        let _deciding = self.decide();
        let registers = &self.registers;
        if self.chip == Chip::Em82540 {
            let causes = registers.take(table::ICR);
            self.interrupts().raised.store(0, Relaxed);
            return causes;
        }
        let mask = registers.get(table::IMS);
        let causes = registers.get(table::ICR);
        let asserted = causes & mask != 0;
        let masks = registers.get(table::CTRL_EXT) & ctrl_ext::IAME != 0;
        let message = self.mode() == InterruptMode::Msix;
        let mut clears = causes;
        if message && mask != 0 && !(asserted && masks) {
            // The queues' causes stay for their own vectors.
            clears &= !(cause::RXQ0 | cause::RXQ1 | cause::TXQ0 | cause::TXQ1);
        }
        registers.clear_bits(table::ICR, clears);
        if asserted && masks {
            registers.clear_bits(table::IMS, registers.get(table::IAM));
        }
        self.lower();
        causes | if asserted { cause::ASSERTED } else { 0 }
    }

    /// Clears the causes that the driver writes.
    pub fn clear_causes(&self, causes: u32) {
        let _deciding = self.decide();
        let registers = &self.registers;
        let masks = registers.get(table::CTRL_EXT) & ctrl_ext::IAME != 0;
        if self.chip == Chip::L82574 && masks {
            registers.clear_bits(table::IMS, registers.get(table::IAM));
        }
        registers.clear_bits(table::ICR, causes);
        self.lower();
    }

    /// Masks causes.
    pub fn mask(&self, causes: u32) {
        let _deciding = self.decide();
        self.registers.clear_bits(table::IMS, causes);
        self.lower();
    }

    /// Lowers vectors without a cause, so that the next cause raises them again.
    fn lower(&self) {
        let pending = self.pending();
        let state = self.interrupts();
        if self.mode() != InterruptMode::Msix {
            if pending == 0 {
                state.raised.store(0, Relaxed);
            }
            return;
        }
        let still = (0..VECTORS).filter(|vector| pending & self.causes_of(*vector) != 0);
        let still = still.fold(0, |bits, vector| bits | 1 << vector);
        state.raised.fetch_and(still, Relaxed);
    }

    /// How interrupts are signalled.
    pub fn mode(&self) -> InterruptMode {
        match self.interrupts().mode.load(Relaxed) {
            1 => InterruptMode::Msi,
            2 => InterruptMode::Msix,
            _ => InterruptMode::Pin,
        }
    }

    /// Changes how interrupts are signalled.
    pub fn set_mode(&self, mode: InterruptMode) {
        let _deciding = self.decide();
        self.interrupts().mode.store(mode as u32, Relaxed);
        self.interrupts().raised.store(0, Relaxed);
    }

    /// Forgets causes, masks and delays.
    pub fn reset_interrupts(&self) {
        let _deciding = self.decide();
        let state = self.interrupts();
        for word in [table::ICR, table::IMS] {
            self.registers.take(word);
        }
        state.raised.store(0, Relaxed);
        state.held.store(0, Relaxed);
        state.timers.iter().chain(&state.last).for_each(|time| time.store(0, SeqCst));
    }
}

/// The earlier of two moments.
pub(super) fn earlier(a: Option<Nanos>, b: Nanos) -> Option<Nanos> {
    Some(a.map_or(b, |a| a.min(b)))
}
