//! The guest's transmit queue as an ingress.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use port::{Effects, Ingress, IngressCounters, Nanos, Scratch};
use shmem::Shared;

use super::Core;
use super::registers::{BUFFER, FRAMES, Fault};
use crate::device;

/// Frames that SEND names, in order.
#[derive(Debug)]
pub(super) struct Transmit {
    core: Arc<Core>,
    counters: Shared<IngressCounters>,
    /// The epoch in which the lent frames were gathered.
    epoch: u32,
}

impl Transmit {
    pub fn new(core: Arc<Core>, counters: Shared<IngressCounters>) -> Self {
        let epoch = core.registers.epoch.load(Ordering::Acquire);
        Self { core, counters, epoch }
    }

    /// How many frames wait to be gathered.
    fn waiting(&self) -> u32 {
        let registers = &self.core.registers;
        let taken = registers.sent_taken.load(Ordering::Relaxed);
        registers.sent.load(Ordering::Relaxed).wrapping_sub(taken)
    }
}

impl Ingress for Transmit {
    fn gather(&mut self, scratch: &mut Scratch, max: usize, _now: Nanos) -> usize {
        let registers = &*self.core.registers;
        let waiting = self.waiting();
        if waiting == 0 || !registers.is_ready() {
            return 0;
        }
        if self.core.memory.has_failed() {
            self.core.fail(Fault::Memory);
            return 0;
        }
        self.epoch = registers.epoch.load(Ordering::Acquire);
        let (area, taken) = (registers.area(), registers.sent_taken.load(Ordering::Relaxed));
        let (mut frames, mut bytes) = (0, 0);
        while frames < waiting && (frames as usize) < max && scratch.has_room() {
            let slot = taken.wrapping_add(frames) % FRAMES;
            let word = registers.sends[slot as usize].load(Ordering::Relaxed);
            // SEND checked place and length when it was written, but a state from elsewhere may
            // hold anything.
            let (place, len) = (u64::from(word & 0xffff), (word >> 16).min(BUFFER));
            let at = area.wrapping_add(place * u64::from(BUFFER));
            let Some(window) = self.core.memory.bytes_to_read(at, len) else {
                self.core.fail(Fault::Area);
                break;
            };
            scratch.push(window.span());
            frames += 1;
            bytes += u64::from(len);
        }
        // Stored before anything is delivered, so that no frame is delivered twice, whenever the
        // process dies.
        registers.sent_taken.store(taken.wrapping_add(frames), Ordering::Release);
        self.counters.frames.add(u64::from(frames));
        self.counters.bytes.add(bytes);
        frames as usize
    }

    fn complete(&mut self, frames: usize) {
        let registers = &*self.core.registers;
        if registers.epoch.load(Ordering::Acquire) == self.epoch {
            let done = registers.sent_done.load(Ordering::Relaxed);
            registers.sent_done.store(done.wrapping_add(frames as u32), Ordering::Relaxed);
        }
    }

    /// The driver reads SENT when it needs room, so sent frames raise no interrupt.
    fn settle(&mut self, _now: Nanos) -> Effects {
        Effects::default()
    }
}

impl device::Transmit for Transmit {
    /// Every SEND reaches the device, so there is no doorbell to ask for.
    fn arm(&mut self) -> bool {
        self.waiting() > 0 && self.core.registers.is_ready()
    }

    fn disarm(&mut self) {}
}
