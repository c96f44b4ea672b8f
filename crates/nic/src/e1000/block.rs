//! The shared status block at the family's registers ([`crate::csb`]): announced by CSBAL, which a reset
//! by CTRL.RST leaves as it is.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use super::core::Core;
use super::regs;
use super::state::Fault;
use crate::csb::{self, Block, QueueHost, Spin, Way};

/// A queue's part of the block, and whether doorbells are asked for.
#[derive(Debug, Default)]
pub(super) struct Host {
    queue: Option<QueueHost>,
    /// The block was that of then.
    blocks: u32,
    asks: bool,
    pub spin: Spin,
}

impl Core {
    /// The low half of the address was written: takes the block away and maps the one that is there.
    pub fn announce_block(&self) {
        if self.csb && !self.map_block() {
            self.registers.fail(Fault::BadCsb);
        }
    }

    /// Maps the block anew; false if there is none at the address.
    pub fn map_block(&self) -> bool {
        if !self.csb {
            return true;
        }
        let at = self.registers.address([regs::CSBAL, regs::CSBAH]);
        let block = Block::map(&self.memory, at, self.member.queues());
        let good = block.is_ok();
        *self.block.lock().unwrap_or_else(PoisonError::into_inner) = block.ok().flatten();
        self.blocks.fetch_add(1, AcqRel);
        good
    }

    /// Stops the device, and says so in the block.
    pub fn fail_by_block(&self, fault: csb::Fault) -> Fault {
        if let Some(block) = &*self.block.lock().unwrap_or_else(PoisonError::into_inner) {
            block.report(fault);
        }
        Fault::BadCsb
    }
}

impl Host {
    /// Takes notice of another block, or none; true if there is one that is new.
    #[inline]
    pub fn notice(&mut self, core: &Core, way: Way, queue: usize) -> bool {
        let blocks = core.blocks.load(Acquire);
        blocks != self.blocks && self.take(core, blocks, way, queue)
    }

    #[cold]
    fn take(&mut self, core: &Core, blocks: u32, way: Way, queue: usize) -> bool {
        let block = core.block.lock().unwrap_or_else(PoisonError::into_inner);
        self.queue = block.as_ref().and_then(|block| block.queue(way, queue));
        self.spin = block.as_ref().map_or_else(Spin::default, Block::spin);
        (self.blocks, self.asks) = (blocks, true);
        self.queue.is_some()
    }

    /// The queue's part, while it goes by it: asked once a decision.
    #[inline]
    pub fn on(&self) -> Option<&QueueHost> {
        self.queue.as_ref().filter(|queue| queue.is_on())
    }

    /// There is a block with this queue in it.
    #[inline]
    pub fn is_there(&self) -> bool {
        self.queue.is_some()
    }

    /// The ring begins anew at `head`.
    pub fn restart(&mut self, head: u32) {
        if let Some(queue) = &mut self.queue {
            queue.restart();
            queue.publish_head(head);
            self.asks = true;
        }
    }

    /// The device has come to `head`.
    #[inline]
    pub fn publish_head(&self, head: u32) {
        if let Some(queue) = &self.queue {
            queue.publish_head(head);
        }
    }

    /// True if the driver is to be interrupted; `None` if the queue does not go by the block.
    #[inline]
    pub fn wants_interrupt(&mut self, head: u32, size: u32) -> Option<bool> {
        let queue = self.queue.as_mut().filter(|queue| queue.is_on())?;
        Some(queue.wants_interrupt(head, size))
    }

    /// No doorbells are needed: the device looks by itself.
    #[inline]
    pub fn wake(&mut self) {
        if self.asks
            && let Some(queue) = &mut self.queue
        {
            queue.wake();
            self.asks = false;
        }
    }

    /// Asks for doorbells; true if there is work after all. `None` if the queue does not go by the block.
    pub fn sleep(
        &mut self,
        seen: u32,
        size: u32,
        now: port::Nanos,
    ) -> Option<Result<bool, csb::Fault>> {
        let queue = self.queue.as_mut().filter(|queue| queue.is_on())?;
        let work = queue.sleep(seen, size, now);
        self.asks = work == Ok(false);
        Some(work)
    }

    /// While asleep: when to look without being asked.
    pub fn look_again_at(&self) -> Option<port::Nanos> {
        self.queue.as_ref()?.look_again_at()
    }
}
