//! The driver's end of a block.

use abi::csb::{Direction, Lane, MAGIC, NONE, Page, QUEUES, V1, V2};
use shmem::SharedSlice;

/// A block, as its driver uses it. The driver announces it through its own registers.
#[derive(Clone, Debug)]
pub struct Block(Page);

impl Block {
    /// Sets up a v1 block in a zeroed page, with the queues off. `spin` is how many rounds the
    /// device may poll. With `msix`, data interrupts have a vector of their own.
    #[must_use]
    pub fn one(page: SharedSlice<V1>, spin: u32, msix: bool) -> Self {
        if let Some(block) = page.first() {
            block.host_need_txkick.set(1);
            block.guest_need_rxkick.set(1);
            block.guest_txkick_at.set(NONE);
            block.host_rxkick_at.set(NONE);
            block.host_txcycles_lim.set(spin.max(1));
            block.guest_use_msix.set(u32::from(msix));
        }
        Self(Page::One(page))
    }

    /// Sets up a v2 block in a zeroed page, for `send` transmit and `receive` receive queues, which
    /// are off.
    #[must_use]
    pub fn two(page: SharedSlice<V2>, send: usize, receive: usize, spin_us: u32) -> Self {
        if let Some(block) = page.first() {
            let [send, receive] = [send, receive].map(|queues| queues.min(QUEUES) as u32);
            block.guest.queues.set(send | receive << 16);
            block.guest.spin_us.set(spin_us);
            block.guest.version.set(2);
            block.guest.magic.publish(MAGIC);
        }
        Self(Page::Two(page))
    }

    /// How many transmit and receive queues the device serves with the block, after the
    /// announcement. `None` if the device did not understand it. A v1 device does not report this,
    /// and serves one each.
    #[must_use]
    pub fn accepted(&self) -> Option<[usize; 2]> {
        match &self.0 {
            Page::One(_) => Some([1, 1]),
            Page::Two(page) => {
                let host = &page.first()?.host;
                let understood = host.magic.observe() == MAGIC && host.version.get() == 2;
                let queues = host.queues.get();
                understood.then_some([(queues & 0xffff) as usize, (queues >> 16) as usize])
            }
        }
    }

    /// The fault that stopped the device, as a number of [`abi::csb::Fault`]. 0 while it runs, and
    /// for v1 devices.
    #[must_use]
    pub fn fault(&self) -> u32 {
        match &self.0 {
            Page::One(_) => 0,
            Page::Two(page) => page.first().map_or(0, |page| page.host.fault.observe()),
        }
    }

    /// A queue with a ring of `size` descriptors, and its tail at 0.
    #[must_use]
    pub fn queue(&self, way: Direction, queue: usize, size: u32) -> Option<BlockQueue> {
        let lane = self.0.lane(way, queue)?;
        let wanted = lane.wanted();
        Some(BlockQueue { page: self.0.clone(), way, queue, size, tail: 0, wanted, answered: 0 })
    }
}

/// One queue of a block, as its driver uses it.
#[derive(Debug)]
pub struct BlockQueue {
    page: Page,
    way: Direction,
    queue: usize,
    size: u32,
    /// The last published tail.
    tail: u32,
    /// The value that the driver last wrote to its flag.
    wanted: u32,
    /// The device's last arming that the driver has answered.
    answered: u32,
}

impl BlockQueue {
    #[inline]
    fn lane(&self) -> Option<Lane<'_>> {
        self.page.lane(self.way, self.queue)
    }

    /// Publishes the tail. True if the caller must ring the doorbell, by writing the tail's
    /// register.
    #[inline]
    #[must_use = "a doorbell that is not rung leaves the device asleep"]
    pub fn publish(&mut self, tail: u32) -> bool {
        let (mut answered, from) = (self.answered, self.tail);
        let kick =
            self.lane().is_none_or(|lane| lane.publish_tail(&mut answered, from, tail, self.size));
        (self.answered, self.tail) = (answered, tail);
        kick
    }

    /// The device's head: descriptors before it belong to the driver again.
    #[inline]
    #[must_use]
    pub fn head(&self) -> u32 {
        self.lane().map_or(0, Lane::head)
    }

    /// Prepares to sleep: asks for an interrupt when the head comes to `at`, or at once ([`NONE`]).
    /// The driver must then check for work again before it sleeps.
    pub fn sleep(&mut self, at: u32) {
        let mut wanted = self.wanted;
        if let Some(lane) = self.lane() {
            lane.request_interrupt(&mut wanted, at);
        }
        self.wanted = wanted;
    }

    /// Withdraws the request: the driver is awake.
    pub fn wake(&mut self) {
        let mut wanted = self.wanted;
        if let Some(lane) = self.lane() {
            lane.withdraw_interrupt(&mut wanted);
        }
        self.wanted = wanted;
    }

    /// Switches the queue to the block, or to the registers. Afterwards, the caller writes the
    /// tail's register.
    pub fn turn(&self, on: bool) {
        if let Some(lane) = self.lane() {
            lane.turn(on);
        }
    }

    /// Restarts the ring at 0, after a reset and before the queue is enabled.
    pub fn restart(&mut self, size: u32) {
        (self.size, self.tail) = (size, 0);
        if let Some(lane) = self.lane() {
            lane.set_tail(0);
        }
    }
}
