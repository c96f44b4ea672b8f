//! The device's end of a block.

use port::Nanos;
use shmem::{GuestMemory, SharedSlice};

use crate::model::ring::Place;

use super::{Fault, Lane, MAGIC, NONE, PAGE, Page, QUEUES, V1, V2, Version, Way, is_two};

/// Most microseconds that a driver can have a device look on before it sleeps.
pub const SPIN_CAP_US: u32 = 50;
/// How long after it fell asleep a device looks once more at a v1 queue, whose driver may lack a fence.
pub const LOOK_AGAIN: u64 = 100_000;

/// Why a block cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// It does not begin at a page's begin.
    #[error("The status block at {0:#x} is not aligned to 4096 bytes")]
    NotAligned(u64),
    /// Not all of the page is memory of the guest's.
    #[error("The status block at {0:#x} does not lie in guest memory")]
    NotMemory(u64),
}

/// A block that a driver has announced, mapped. What was set up is read once, here.
#[derive(Clone, Debug)]
pub struct Block {
    page: Page,
    /// Queues of each kind that it has: transmit, receive.
    queues: [usize; 2],
    spin_us: u32,
    msix: bool,
}

impl Block {
    /// The block at guest-physical address `at`, for a device with so many transmit and receive queues;
    /// `None` for address 0, which takes a block away. Doorbells are asked for from now on. A device that
    /// is made anew over its registers maps its block anew.
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
        block.each(|mut queue| queue.ask_always());
        block.answer();
        Ok(Some(block))
    }

    fn one(page: SharedSlice<V1>) -> Self {
        let setup = page.first();
        let spin = setup.map_or(0, |page| page.host_txcycles_lim.get());
        let msix = setup.is_some_and(|page| page.guest_use_msix.get() != 0);
        // One round is none, and a round is about a microsecond.
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

    /// Says what was understood; the magic last.
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

    /// Which kind of block it is.
    #[must_use]
    pub fn version(&self) -> Version {
        match self.page {
            Page::One(_) => Version::One,
            Page::Two(_) => Version::Two,
        }
    }

    /// The driver takes a vector for data, which clears its causes, and one for the rest.
    #[must_use]
    pub fn wants_msix(&self) -> bool {
        self.msix
    }

    /// How long the device is to look on before it sleeps.
    #[must_use]
    pub fn spin(&self) -> Spin {
        Spin { limit: u64::from(self.spin_us) * 1000, since: None }
    }

    /// A queue, if the block has it: taken once, by whoever owns the queue. He publishes its head first.
    #[must_use]
    pub fn queue(&self, way: Way, queue: usize) -> Option<QueueHost> {
        let has = self.queues[usize::from(way == Way::Receive)];
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
        let ways = [Way::Send, Way::Receive].into_iter();
        let queues = ways.flat_map(|way| (0..QUEUES).filter_map(move |i| self.queue(way, i)));
        queues.for_each(act);
    }
}

/// One queue of a block, as its device uses it: whoever owns the queue owns this.
#[derive(Debug)]
pub struct QueueHost {
    page: Page,
    way: Way,
    queue: usize,
    /// What the device's flag was set to last.
    asked: u32,
    /// The driver's arming that was answered last.
    answered: u32,
    /// Where the head was when an interrupt was decided on last; not known in a device made anew.
    told: Option<u32>,
    rest: Rest,
}

/// When to look once more at the queue of a driver that may lack a fence.
#[derive(Clone, Copy, Debug, Default)]
struct Rest {
    /// The tail it fell asleep at.
    at: Option<u32>,
    again: Option<Nanos>,
}

impl QueueHost {
    /// Its words. There are: it was made of a lane.
    #[inline]
    fn lane(&self) -> Option<Lane<'_>> {
        self.page.lane(self.way, self.queue)
    }

    /// The queue goes by the block, not by its tail register: to be asked once a decision.
    #[inline]
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.lane().is_some_and(Lane::is_on)
    }

    /// Where the driver's tail is in a ring of `size` descriptors: read once.
    ///
    /// # Errors
    /// [`Fault::Index`]: the device is to stop.
    #[inline]
    pub fn tail(&self, size: u32) -> Result<u32, Fault> {
        self.lane().ok_or(Fault::Index)?.tail(size)
    }

    /// Says that the device has come to `head`: once a batch, after it wrote the descriptors before it.
    #[inline]
    pub fn publish_head(&self, head: u32) {
        if let Some(lane) = self.lane() {
            lane.publish_head(head);
        }
    }

    /// The device is about to sleep and has seen all up to `seen`. Asks for a doorbell, fences and looks
    /// once more: true if there is work, and nothing is asked for; the caller goes on.
    ///
    /// # Errors
    /// [`Fault::Index`]: the device is to stop.
    pub fn sleep(&mut self, seen: u32, size: u32, now: Nanos) -> Result<bool, Fault> {
        let work = self.ask(seen, NONE, size)? != seen;
        let is_one = matches!(self.page, Page::One(_));
        if work || !is_one {
            self.rest = Rest::default();
        } else if self.rest.at != Some(seen) {
            self.rest = Rest { at: Some(seen), again: Some(now + LOOK_AGAIN) };
        } else if self.rest.again.is_some_and(|again| now >= again) {
            self.rest.again = None;
        }
        Ok(work)
    }

    /// The device is awake: nothing is asked for.
    pub fn wake(&mut self) {
        let mut asked = self.asked;
        if let Some(lane) = self.lane() {
            lane.unask(&mut asked);
        }
        self.asked = asked;
    }

    /// While asleep: when to look at the queue without being asked, because a driver of v1 without its
    /// fence may not have seen the request. Once after each falling asleep, not for ever.
    #[must_use]
    pub fn look_again_at(&self) -> Option<Nanos> {
        self.rest.again
    }

    /// A receive queue has too few buffers left, from `head` up to `tail`. Asks for a doorbell when three
    /// quarters of what is missing are back, fences and looks once more. If the tail that it returns is
    /// another, nothing is asked for.
    ///
    /// # Errors
    /// [`Fault::Index`]: the device is to stop.
    pub fn starve(&mut self, head: u32, tail: u32, size: u32) -> Result<u32, Fault> {
        if head >= size || tail >= size {
            return Err(Fault::Index);
        }
        let left = Place { at: head, len: size }.distance(tail);
        let missing = size - 1 - left;
        let step = (1 + missing / 4 * 3 + missing % 4 * 3 / 4).min(missing).max(1);
        let room = size - tail;
        let at = if step < room { tail + step } else { step - room };
        self.ask(tail, at, size)
    }

    /// Asks; takes it back if the tail is not at `seen` any more, and returns where it is.
    fn ask(&mut self, seen: u32, at: u32, size: u32) -> Result<u32, Fault> {
        let mut asked = self.asked;
        let lane = self.lane().ok_or(Fault::Index)?;
        let tail = lane.ask(&mut asked, at, size);
        if tail != Ok(seen) {
            lane.unask(&mut asked);
        }
        self.asked = asked;
        tail
    }

    /// The driver has reset the device: the head is 0, a doorbell is asked for. `on` stays.
    pub fn restart(&mut self) {
        (self.told, self.rest) = (None, Rest::default());
        self.publish_head(0);
        self.ask_always();
    }

    /// Asks for a doorbell whatever comes.
    fn ask_always(&mut self) {
        let mut asked = self.asked;
        if let Some(lane) = self.lane() {
            // Where the tail is does not matter yet.
            let _ = lane.ask(&mut asked, NONE, 1);
        }
        self.asked = asked;
    }

    /// True if the driver is to be interrupted, now that the head is at `head`. The caller has published
    /// that and fenced (`SeqCst`), once for many queues.
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

/// How long a device without work looks on before it sleeps: what the driver wished, up to a limit that it
/// cannot raise.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spin {
    limit: u64,
    since: Option<Nanos>,
}

impl Spin {
    /// There was work.
    #[inline]
    pub fn worked(&mut self) {
        self.since = None;
    }

    /// There was none: true to look again at once.
    #[inline]
    #[must_use]
    pub fn goes_on(&mut self, now: Nanos) -> bool {
        let since = *self.since.get_or_insert(now);
        now - since < self.limit
    }

    /// Nanoseconds that it may take.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }
}
