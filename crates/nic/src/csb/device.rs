//! The device's end of a block.

use port::Nanos;
use shmem::{GuestMemory, SharedSlice};

use crate::model::ring::Place;

use super::{Direction, Fault, Lane, MAGIC, NONE, PAGE, Page, QUEUES, V1, V2, Version, is_two};

/// The longest time, in microseconds, that a driver can make a device poll before it sleeps.
pub const SPIN_CAP_US: u32 = 50;
/// A device that went to sleep checks a v1 queue again after this time, because the queue's driver
/// may lack a fence.
pub const RECHECK_NS: u64 = 100_000;

/// The reason why a block cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The block does not start at a page boundary.
    #[error("The status block at {0:#x} is not aligned to 4096 bytes")]
    NotAligned(u64),
    /// Part of the page is not guest memory.
    #[error("The status block at {0:#x} does not lie in guest memory")]
    NotMemory(u64),
}

/// A block that a driver has announced, mapped. Its setup fields are read once, here.
#[derive(Clone, Debug)]
pub struct Block {
    page: Page,
    /// The number of queues of each kind: transmit, receive.
    queues: [usize; 2],
    spin_us: u32,
    msix: bool,
}

impl Block {
    /// Maps the block at guest-physical address `at`, for a device with this many transmit and
    /// receive queues. Address 0 takes a block away and gives `None`. From then on, the block asks
    /// for doorbells. A device that is rebuilt over its registers maps its block again.
    ///
    /// # Errors
    /// [`MapError`]; then there is no block.
    pub fn map(
        memory: &GuestMemory,
        at: u64,
        queues: [usize; 2],
    ) -> Result<Option<Self>, MapError> {
        if at == 0 {
            return Ok(None);
        }
        if !at.is_multiple_of(u64::from(PAGE)) {
            return Err(MapError::NotAligned(at));
        }
        let missing = MapError::NotMemory(at);
        memory.bytes(at, PAGE).ok_or(missing)?;
        let page = memory.shared_slice::<V2>(at, 1).ok_or(missing)?;
        let setup = &page.first().ok_or(missing)?.guest;
        let block = if is_two(setup.magic.observe(), setup.version.get()) {
            Self::two(page.clone(), queues)
        } else {
            let page = memory.shared_slice::<V1>(at, 1).ok_or(missing)?;
            Self::one(page)
        };
        block.each(|mut queue| queue.always_request_doorbell());
        block.answer();
        Ok(Some(block))
    }

    fn one(page: SharedSlice<V1>) -> Self {
        let setup = page.first();
        let spin = setup.map_or(0, |page| page.host_txcycles_lim.get());
        let msix = setup.is_some_and(|page| page.guest_use_msix.get() != 0);
        // One round means no spinning, and a round takes about a microsecond.
        let spin_us = spin.saturating_sub(1).min(SPIN_CAP_US);
        Self { page: Page::One(page), queues: [1, 1], spin_us, msix }
    }

    fn two(page: SharedSlice<V2>, has: [usize; 2]) -> Self {
        let setup = page.first().map(|page| &page.guest);
        let wanted = setup.map_or(0, |setup| setup.queues.get());
        let wanted = [wanted & 0xffff, wanted >> 16].map(|queues| queues as usize);
        let queues = [0, 1].map(|way| wanted[way].min(has[way]).min(QUEUES));
        let spin_us = setup.map_or(0, |setup| setup.spin_us.get()).min(SPIN_CAP_US);
        Self { page: Page::Two(page), queues, spin_us, msix: true }
    }

    /// Writes what the device accepted; the magic comes last.
    fn answer(&self) {
        let Page::Two(page) = &self.page else { return };
        let Some(page) = page.first() else { return };
        let host = &page.host;
        host.version.set(2);
        host.features.set(0);
        host.queues.set(self.queues[0] as u32 | (self.queues[1] as u32) << 16);
        host.spin_us.set(self.spin_us);
        host.fault.set(0);
        host.magic.publish(MAGIC);
    }

    /// The version of the block.
    #[must_use]
    pub fn version(&self) -> Version {
        match self.page {
            Page::One(_) => Version::One,
            Page::Two(_) => Version::Two,
        }
    }

    /// True if the driver takes one vector for data, which clears its causes, and one for the rest.
    #[must_use]
    pub fn wants_msix(&self) -> bool {
        self.msix
    }

    /// How long the device polls before it sleeps.
    #[must_use]
    pub fn spin(&self) -> Spin {
        Spin { limit: u64::from(self.spin_us) * 1000, since: None }
    }

    /// A queue, if the block has it. The queue's owner takes it once, and publishes its head first.
    #[must_use]
    pub fn queue(&self, way: Direction, queue: usize) -> Option<QueueHost> {
        let has = self.queues[usize::from(way == Direction::Receive)];
        let lane = self.page.lane(way, queue).filter(|_| queue < has)?;
        let asked = lane.asked();
        let page = self.page.clone();
        Some(QueueHost { page, way, queue, asked, answered: 0, told: None, rest: Rest::default() })
    }

    /// Tells a v2 driver why its device has stopped.
    pub fn report(&self, fault: Fault) {
        if let Page::Two(page) = &self.page
            && let Some(page) = page.first()
        {
            page.host.fault.publish(fault as u32);
        }
    }

    fn each(&self, act: impl FnMut(QueueHost)) {
        let ways = [Direction::Send, Direction::Receive].into_iter();
        let queues = ways.flat_map(|way| (0..QUEUES).filter_map(move |i| self.queue(way, i)));
        queues.for_each(act);
    }
}

/// One queue of a block, as its device uses it. The queue's owner owns this too.
#[derive(Debug)]
pub struct QueueHost {
    page: Page,
    way: Direction,
    queue: usize,
    /// The value that the device last wrote to its flag.
    asked: u32,
    /// The driver's last arming that was answered.
    answered: u32,
    /// Where the head was at the last interrupt decision; `None` after the device was rebuilt.
    told: Option<u32>,
    rest: Rest,
}

/// When to check again the queue of a driver that may lack a fence.
#[derive(Clone, Copy, Debug, Default)]
struct Rest {
    /// The tail at which the device fell asleep.
    at: Option<u32>,
    again: Option<Nanos>,
}

impl QueueHost {
    /// The queue's words. They always exist, because the queue was made of a lane.
    #[inline]
    fn lane(&self) -> Option<Lane<'_>> {
        self.page.lane(self.way, self.queue)
    }

    /// True if the queue uses the block instead of its tail register. Call it once per decision.
    #[inline]
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.lane().is_some_and(Lane::is_on)
    }

    /// Reads the driver's tail once, in a ring of `size` descriptors.
    ///
    /// # Errors
    /// [`Fault::Index`]: the device must stop.
    #[inline]
    pub fn tail(&self, size: u32) -> Result<u32, Fault> {
        self.lane().ok_or(Fault::Index)?.tail(size)
    }

    /// Publishes `head`: once a batch, after the device wrote the descriptors before it.
    #[inline]
    pub fn publish_head(&self, head: u32) {
        if let Some(lane) = self.lane() {
            lane.publish_head(head);
        }
    }

    /// Prepares to sleep after the device saw everything up to `seen`. Asks for a doorbell, fences
    /// and reads the tail again. Returns true if there is work: then it asks for nothing, and the
    /// caller goes on.
    ///
    /// # Errors
    /// [`Fault::Index`]: the device must stop.
    pub fn sleep(&mut self, seen: u32, size: u32, now: Nanos) -> Result<bool, Fault> {
        let work = self.request_doorbell(seen, NONE, size)? != seen;
        let is_one = matches!(self.page, Page::One(_));
        if work || !is_one {
            self.rest = Rest::default();
        } else if self.rest.at != Some(seen) {
            self.rest = Rest { at: Some(seen), again: Some(now + RECHECK_NS) };
        } else if self.rest.again.is_some_and(|again| now >= again) {
            self.rest.again = None;
        }
        Ok(work)
    }

    /// Notes that the device is awake, and asks for no doorbells.
    pub fn wake(&mut self) {
        let mut asked = self.asked;
        if let Some(lane) = self.lane() {
            lane.withdraw_doorbell(&mut asked);
        }
        self.asked = asked;
    }

    /// While asleep: when to check the queue without a doorbell. A v1 driver without a fence may
    /// not have seen the request. Happens once after each time it falls asleep.
    #[must_use]
    pub fn recheck_at(&self) -> Option<Nanos> {
        self.rest.again
    }

    /// Handles a receive queue with too few buffers, from `head` up to `tail`. Asks for a doorbell
    /// when three quarters of the missing buffers are back, fences and reads the tail again. If it
    /// returns another tail than `tail`, it asks for nothing.
    ///
    /// # Errors
    /// [`Fault::Index`]: the device must stop.
    pub fn sleep_until_refilled(&mut self, head: u32, tail: u32, size: u32) -> Result<u32, Fault> {
        if head >= size || tail >= size {
            return Err(Fault::Index);
        }
        let left = Place { at: head, len: size }.distance(tail);
        let missing = size - 1 - left;
        let step = (1 + missing / 4 * 3 + missing % 4 * 3 / 4).min(missing).max(1);
        let room = size - tail;
        let at = if step < room { tail + step } else { step - room };
        self.request_doorbell(tail, at, size)
    }

    /// Asks for a doorbell, and returns the tail. Withdraws the request if the tail has moved from
    /// `seen`.
    fn request_doorbell(&mut self, seen: u32, at: u32, size: u32) -> Result<u32, Fault> {
        let mut asked = self.asked;
        let lane = self.lane().ok_or(Fault::Index)?;
        let tail = lane.request_doorbell(&mut asked, at, size);
        if tail != Ok(seen) {
            lane.withdraw_doorbell(&mut asked);
        }
        self.asked = asked;
        tail
    }

    /// Handles a reset by the driver: the head becomes 0, and a doorbell is asked for. `on` stays.
    pub fn restart(&mut self) {
        (self.told, self.rest) = (None, Rest::default());
        self.publish_head(0);
        self.always_request_doorbell();
    }

    /// Asks for a doorbell in any case.
    fn always_request_doorbell(&mut self) {
        let mut asked = self.asked;
        if let Some(lane) = self.lane() {
            // The tail's position does not matter yet.
            let _ = lane.request_doorbell(&mut asked, NONE, 1);
        }
        self.asked = asked;
    }

    /// True if the driver must be interrupted for the head's move to `head`. The caller has
    /// published the head and fenced (`SeqCst`), once for many queues.
    #[inline]
    #[must_use]
    pub fn wants_interrupt(&mut self, head: u32, size: u32) -> bool {
        let (mut answered, told) = (self.answered, self.told);
        let wants =
            self.lane().is_some_and(|lane| lane.wants_interrupt(&mut answered, told, head, size));
        (self.answered, self.told) = (answered, Some(head));
        wants
    }
}

/// How long a device without work polls before it sleeps: the driver's wish, up to a limit that the
/// driver cannot raise.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spin {
    limit: u64,
    since: Option<Nanos>,
}

impl Spin {
    /// Notes that a poll found work.
    #[inline]
    pub fn worked(&mut self) {
        self.since = None;
    }

    /// Notes that a poll found no work. True to poll again at once.
    #[inline]
    #[must_use]
    pub fn goes_on(&mut self, now: Nanos) -> bool {
        let since = *self.since.get_or_insert(now);
        now - since < self.limit
    }

    /// How long the device may poll, in nanoseconds.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }
}
