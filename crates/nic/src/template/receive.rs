//! The guest's receive queue as an egress.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use port::stamp::{self, Stage};
use port::{
    Batch, Delivered, DropReason, Effects, Egress, EgressCounters, FrameIdx, Limits, Nanos,
};
use shmem::Shared;

use super::Core;
use super::registers::{BUFFER, FRAMES, Fault, PROMISCUOUS};

/// Buffers to receive into, filled in order.
#[derive(Debug)]
pub(super) struct Receive {
    core: Arc<Core>,
    counters: Shared<EgressCounters>,
}

impl Receive {
    pub fn new(core: Arc<Core>, counters: Shared<EgressCounters>) -> Self {
        Self { core, counters }
    }

    /// True if the device accepts frames to this address.
    fn is_for_us(&self, head: &[u8]) -> bool {
        let promiscuous = self.core.registers.control.load(Ordering::Relaxed) & PROMISCUOUS != 0;
        let Some(destination) = head.first_chunk::<6>() else { return false };
        promiscuous || destination[0] & 1 != 0 || *destination == self.core.mac
    }

    /// Copies a frame into the buffer for frame number `number`.
    fn fill(&self, batch: &Batch<'_>, i: FrameIdx, area: u64, number: u32) -> Result<(), Fault> {
        let (place, len) = (number % FRAMES, batch.frame(i).len() as u32);
        let at = u64::from(FRAMES + place) * u64::from(BUFFER);
        let window = self.core.memory.bytes(area.wrapping_add(at), len).ok_or(Fault::Area)?;
        batch.copy_frame(i, window);
        self.core.registers.received_len[place as usize].store(len, Ordering::Relaxed);
        Ok(())
    }
}

impl Egress for Receive {
    fn deliver(&self, batch: &Batch<'_>, list: &[FrameIdx], limits: Limits) -> Delivered {
        let _receiving = self.core.lock();
        let registers = &*self.core.registers;
        let (area, begin) = (registers.area(), registers.received.load(Ordering::Relaxed));
        let freed = registers.received_freed.load(Ordering::Acquire);
        let (mut number, mut bytes, mut finished) = (begin, 0, 0);
        if self.core.memory.has_failed() {
            self.core.fail(Fault::Memory);
        }
        for i in list {
            let len = batch.frame(*i).len();
            let refused = if !registers.is_ready() {
                Some(DropReason::Down)
            } else if batch.wire_len(*i) > limits.max_frame as usize || len > BUFFER as usize {
                Some(DropReason::TooLong)
            } else if !self.is_for_us(batch.head(*i)) {
                Some(DropReason::Filtered)
            } else if number.wrapping_sub(freed) < FRAMES {
                self.fill(batch, *i, area, number).err().map(|fault| {
                    self.core.fail(fault);
                    DropReason::Down
                })
            } else if limits.lossless {
                break;
            } else {
                Some(DropReason::Full)
            };
            finished += 1;
            match refused {
                Some(reason) => self.counters.drop_frames(reason, 1),
                None => (number, bytes) = (number.wrapping_add(1), bytes + len as u64),
            }
        }
        let _scope = stamp::scope(Stage::Publish);
        registers.received.store(number, Ordering::Release);
        if number != begin {
            self.core.news.store(true, Ordering::Release);
        }
        self.counters.frames.add(u64::from(number.wrapping_sub(begin)));
        self.counters.bytes.add(bytes);
        Delivered { finished }
    }

    /// Reports whether the bus must check the level of the pin.
    fn settle(&self, _now: Nanos) -> Effects {
        Effects { kick: self.core.news.swap(false, Ordering::AcqRel) }
    }
}
