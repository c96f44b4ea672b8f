//! A block among a device's halves: announced by a register, taken notice of by the owner of each queue.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use port::Nanos;
use shmem::GuestMemory;

use super::{Block, Fault, MapError, QueueHost, Spin, Way};

/// The block that a driver has announced last, if any.
#[derive(Debug, Default)]
pub struct Announced {
    block: Mutex<Option<Block>>,
    /// Blocks so far.
    ///
    /// # Protocol: `csb::Announced.count`
    /// - Writer: home worker, when a driver announces a block or takes it away
    /// - Reader: the holder of a queue, once a batch
    /// - Ordering: add acquire-release, after the block was put under its mutex / load acquire,
    ///   then the mutex
    /// - Partner: the block
    /// - Without it: a queue goes on by a block that was taken away
    /// - Shown by: `nic` tests `e1000` (`block`), `pcnet_csb`
    count: AtomicU32,
}

impl Announced {
    /// Takes the block away and maps the one at guest-physical `at`, if that is not 0. In a copy of the
    /// guest's memory there is none: its driver finds it unanswered, and rings its doorbells.
    ///
    /// # Errors
    /// [`MapError`]; then there is none.
    pub fn map(&self, memory: &GuestMemory, at: u64, queues: [usize; 2]) -> Result<(), MapError> {
        let at = if memory.is_copy() { 0 } else { at };
        let block = Block::map(memory, at, queues);
        let (block, mapped) = match block {
            Ok(block) => (block, Ok(())),
            Err(error) => (None, Err(error)),
        };
        *self.block.lock().unwrap_or_else(PoisonError::into_inner) = block;
        self.count.fetch_add(1, Ordering::AcqRel);
        mapped
    }

    /// True if there ever was one.
    #[inline]
    pub fn is_used(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    /// Tells the driver why its device has stopped.
    pub fn report(&self, fault: Fault) {
        if let Some(block) = &*self.block.lock().unwrap_or_else(PoisonError::into_inner) {
            block.report(fault);
        }
    }
}

/// A queue's part of the block, in the hands of who owns the queue.
#[derive(Debug, Default)]
pub struct Host {
    queue: Option<QueueHost>,
    /// Blocks when it was taken.
    seen: u32,
    /// Doorbells are asked for.
    asks: bool,
    /// How long to look on.
    pub spin: Spin,
}

impl Host {
    /// Takes notice of another block, or none; true if there is one that is new.
    #[inline]
    pub fn notice(&mut self, announced: &Announced, way: Way, queue: usize) -> bool {
        let count = announced.count.load(Ordering::Acquire);
        count != self.seen && self.take(announced, count, way, queue)
    }

    #[cold]
    fn take(&mut self, announced: &Announced, count: u32, way: Way, queue: usize) -> bool {
        let block = announced.block.lock().unwrap_or_else(PoisonError::into_inner);
        self.queue = block.as_ref().and_then(|block| block.queue(way, queue));
        self.spin = block.as_ref().map_or_else(Spin::default, Block::spin);
        (self.seen, self.asks) = (count, true);
        self.queue.is_some()
    }

    /// The queue's part, while it goes by it: asked once a decision.
    #[inline]
    #[must_use]
    pub fn on(&self) -> Option<&QueueHost> {
        self.queue.as_ref().filter(|queue| queue.is_on())
    }

    /// There is a block with this queue in it.
    #[inline]
    #[must_use]
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

    /// Asks for doorbells and fences. True if the driver's tail is another than the one that was `seen`,
    /// or, of a device that goes by its ring and looks there once more, has moved meanwhile; then nothing is
    /// asked for. `None` if the queue does not go by the block.
    pub fn sleep(
        &mut self,
        seen: Option<u32>,
        size: u32,
        now: Nanos,
    ) -> Option<Result<bool, Fault>> {
        let queue = self.queue.as_mut().filter(|queue| queue.is_on())?;
        let seen = seen.map_or_else(|| queue.tail(size), Ok);
        let work = seen.and_then(|seen| queue.sleep(seen, size, now));
        self.asks = work == Ok(false);
        Some(work)
    }

    /// While asleep: when to look without being asked.
    #[must_use]
    pub fn look_again_at(&self) -> Option<Nanos> {
        self.queue.as_ref()?.look_again_at()
    }
}
