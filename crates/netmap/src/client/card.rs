//! A card without a driver in the kernel: the process that syncs its rings drives it, as the kernel
//! does in the calling thread.
//!
//! ```text
//!   buffers of the region   | .. | holder, driver | descriptors, status block | ..
//! ```
//!
//! Processes take turns. Each has a driver of its own, which knows what the card has from the rings
//! alone. A process that finds that another one has driven the card resets it and goes on from
//! there.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use card::vfio::{Card, Files, VfioError};
use card::{Counts, Given, Model, Netmap, Nic, NicError, Turn};
use driver::Dma;
use netring::layout::{Geometry, RingMemory};
use rustix::io::Errno;
use shmem::{Mapping, Shared, SharedSlice};

use super::hold::Held;
use super::process;
use crate::wire::{Bound, CARD_BUFFERS};

/// The card's address of the region's first buffer: low enough for all cards, and far from what a
/// platform keeps for itself.
const BUFFERS_AT: u64 = 16 << 20;
/// Bytes before the descriptors, those of the word that names the holder, and the words after it.
const SHARED: usize = 64;
const HOLDER: usize = 8;
const WORDS: usize = 3;
/// How long a thread waits for another one of its process that drives the card.
const PATIENCE: Duration = Duration::from_secs(1);
/// What the driver is told: buffers are given one by one.
const GIVEN: Given<'_> = Given {
    interrupts: true,
    promiscuous: true,
    long_frames: false,
    lent: Some(&[]),
    block: false,
};

/// A card, and the words that the processes share which drive it.
pub(super) struct DrivenCard {
    /// The process that drives the card now, or 0.
    ///
    /// # Protocol: `DrivenCard.holder`
    /// - Writer: the process that drives the card
    /// - Reader: other processes that have it
    /// - Ordering: compare-exchange acquire, store release
    /// - Partner: the rings' core positions, the card's registers, `words`
    /// - Without it: two processes give the card the same slots
    /// - Shown by: `netmap` tests `a_card_that_is_driven_is_passed_over_until_its_holder_is_dead`
    holder: Shared<AtomicU32>,
    /// The process that has brought the card up, in the upper half, with how often that was done;
    /// frames that could not be sent; damaged ones.
    ///
    /// # Protocol: `DrivenCard.words`
    /// - Writer: the process that holds the card
    /// - Reader: other processes that have it; the daemon, when the port ends
    /// - Ordering: relaxed: `holder` orders them
    /// - Partner: `holder`
    /// - Without it: a driver goes on with descriptors that another one has reset
    /// - Shown by: `toklat` tests `vm_card`, with a forked child
    words: SharedSlice<AtomicU64>,
    driven: Mutex<Driven>,
    files: Arc<Files>,
    /// The card's interrupts signal it, and so does a process for others.
    wake: OwnedFd,
    geometry: Geometry,
    mapping: Arc<Mapping>,
    rings: [(u32, u32); 2],
    /// Where the descriptors are in the mapping, and their bytes.
    descriptors: (usize, usize),
}

/// What this process has brought up.
#[derive(Default)]
struct Driven {
    nic: Option<Netmap<Nic>>,
    /// What [`DrivenCard::words`] say as long as no other process has driven the card.
    driver: u64,
    vectors: usize,
}

impl std::fmt::Debug for DrivenCard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DrivenCard").field("files", &self.files).finish_non_exhaustive()
    }
}

impl DrivenCard {
    /// A card that the daemon has opened, with what [`port::CARD`](crate::wire::port::CARD) comes
    /// with.
    pub(super) fn new(
        bound: &Bound,
        mapping: &Arc<Mapping>,
        wake: OwnedFd,
        [device, group, container]: [OwnedFd; 3],
    ) -> Option<Self> {
        let geometry = bound.geometry;
        let start = u64::from(bound.descriptors) * u64::from(geometry.buf_size);
        let at = usize::try_from(geometry.buf_offset() + start).ok()?.next_multiple_of(SHARED);
        let len = (CARD_BUFFERS as usize - 1) * geometry.buf_size as usize - 2 * SHARED;
        let last = bound.descriptors.checked_add(CARD_BUFFERS)?;
        let one = |spec: netring::layout::RingSpec| (spec.first, spec.slots);
        Some(Self {
            holder: mapping.shared(at).filter(|_| last <= geometry.buf_num)?,
            words: mapping.shared_slice(at + HOLDER, WORDS)?,
            driven: Mutex::default(),
            files: Arc::new(Files { device: device.into(), group, container }),
            wake,
            geometry,
            mapping: Arc::clone(mapping),
            rings: [one(bound.twin_tx), one(bound.twin_rx)],
            descriptors: (at + SHARED, len),
        })
    }

    /// Its descriptors, which the program must not close.
    pub(super) fn fds(&self) -> [BorrowedFd<'_>; 4] {
        let Files { device, group, container } = &*self.files;
        [self.wake.as_fd(), device.as_fd(), group.as_fd(), container.as_fd()]
    }

    /// What the card's interrupts signal.
    pub(super) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Exchanges slots with the card. Returns how many moved; none if another process drives the
    /// card at this moment.
    ///
    /// # Errors
    /// `ENXIO`: the card does not work.
    pub(super) fn turn(&self) -> Result<u32, Errno> {
        let turned = self.drive(|joined, _| {
            let Turn { moved, wake } = joined.turn();
            if wake {
                self.signal();
            }
            self.tell(joined.counts());
            if joined.nic().has_fault() { Err(Errno::NXIO) } else { Ok(moved) }
        });
        turned.unwrap_or(Ok(0))
    }

    /// Wakes who sleeps.
    fn signal(&self) {
        // A full counter holds a wake-up already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Tells the daemon of frames that were lost, for its log.
    fn tell(&self, counts: Counts) {
        let lost = [(1, counts.unsendable), (2, counts.damaged)];
        for (place, count) in lost.into_iter().filter(|(_, count)| *count > 0) {
            if let Some(word) = self.words.get(place) {
                word.store(count, Relaxed);
            }
        }
    }

    /// Asks the card for interrupts, before a sleep. The caller then looks once more.
    pub(super) fn arm(&self, want_send: bool, want_receive: bool) {
        let armed = self.drive(|joined, vectors| {
            if rustix::io::read(&self.wake, &mut [0; 8]).is_ok() {
                joined.nic().interrupted((1 << vectors) - 1);
            }
            joined.nic().ask(want_send, want_receive);
            joined.nic().listen(vectors).map_err(|_| Errno::NXIO)
        });
        // If another process holds the card, it was not asked for interrupts: then the caller's
        // sleep ends at once, and it asks again. If the card does not work, the next sync fails.
        if armed.is_none_or(|armed| armed.is_err()) {
            self.signal();
        }
    }

    /// Runs `work` with the driver, which is this process's from then on. `None` if another process
    /// drives the card at this moment.
    fn drive<T>(
        &self,
        work: impl FnOnce(&mut Netmap<Nic>, usize) -> Result<T, Errno>,
    ) -> Option<Result<T, Errno>> {
        let _held = self.hold()?;
        // In the child of a fork, a thread that is no more may have it: then the child has no card.
        let Ok(mut driven) = self.driven.try_lock() else { return Some(Err(Errno::NXIO)) };
        let driven = &mut *driven;
        if !self.is_ours(driven)
            && let Err(error) = self.bring_up(driven)
        {
            return Some(Err(errno_of(&error)));
        }
        let vectors = driven.vectors;
        driven.nic.as_mut().map(|joined| work(joined, vectors))
    }

    /// True if no other process has driven the card since this one has brought it up.
    fn is_ours(&self, driven: &Driven) -> bool {
        let last = self.words.first().map_or(0, |word| word.load(Relaxed));
        last == driven.driver && last >> 32 == u64::from(process())
    }

    /// Holds the card; `None` if another process does. Waits for another thread of this one.
    fn hold(&self) -> Option<Held<'_>> {
        let since = Instant::now();
        loop {
            match Held::of(&self.holder) {
                Ok(held) => return Some(held),
                Err(other) if other == process() && since.elapsed() < PATIENCE => {
                    std::thread::yield_now();
                }
                Err(_) => return None,
            }
        }
    }

    /// Brings the card up for this process.
    fn bring_up(&self, driven: &mut Driven) -> Result<(), NicError> {
        let Some(word) = self.words.first() else { return Err(NO_MEMORY) };
        let count = (word.load(Relaxed) as u32).wrapping_add(1);
        driven.driver = 0;
        self.bring_up_card(driven)?;
        driven.driver = u64::from(process()) << 32 | u64::from(count);
        word.store(driven.driver, Relaxed);
        Ok(())
    }

    fn bring_up_card(&self, driven: &mut Driven) -> Result<(), NicError> {
        if let Some(joined) = &mut driven.nic {
            joined.nic().restart(GIVEN)?;
            joined.restart();
            return Ok(());
        }
        let mut card = Card::over(Arc::clone(&self.files))?;
        let model = Model::of(&card)?;
        let start = self.geometry.buf_offset() as usize;
        let end = start + self.geometry.buf_size as usize * self.geometry.buf_num as usize;
        let part = start..end.next_multiple_of(4096);
        match card.map_part(&self.mapping, part, BUFFERS_AT) {
            // Another process has shown it to the card.
            Err(VfioError::Memory { source, .. })
                if source.kind() == std::io::ErrorKind::AlreadyExists => {}
            shown => shown?,
        }
        model.signal(&mut card, &vec![self.wake.as_fd(); model.vectors()])?;
        let (at, len) = self.descriptors;
        let device = BUFFERS_AT + (at - start) as u64;
        let mapping = Arc::clone(&self.mapping);
        let mut dma = Dma::new(mapping, at, len, device).ok_or(NO_MEMORY)?;
        let given = Given { block: card.has_block()?, ..GIVEN };
        let nic = Nic::over(card, model, &mut dma, given)?;
        let ring = |(first, slots)| RingMemory::of(&self.mapping, &self.geometry, first, slots);
        let [send, receive] = self.rings.map(ring);
        let rings = send.zip(receive).ok_or(NO_MEMORY)?;
        let joined = Netmap::new(nic, rings, &self.geometry, BUFFERS_AT);
        (driven.vectors, driven.nic) = (model.vectors(), Some(joined.ok_or(NO_MEMORY)?));
        Ok(())
    }
}

/// The descriptor was closed in this process.
impl Drop for DrivenCard {
    fn drop(&mut self) {
        let Some(_held) = self.hold() else { return };
        let Ok(mut driven) = self.driven.try_lock() else { return };
        if self.is_ours(&driven)
            && let Some(joined) = &mut driven.nic
        {
            // Others that have the descriptor bring the card up again.
            joined.nic().stop();
            if let Some(word) = self.words.first() {
                word.store(0, Relaxed);
            }
        }
    }
}

/// The region is too small for what drivers share, which the daemon has made room for.
const NO_MEMORY: NicError = NicError::E1000(driver::e1000::SetupError::Memory);

/// The error number for the program.
fn errno_of(error: &NicError) -> Errno {
    match error {
        NicError::Card(VfioError::Memory { .. }) => Errno::NOMEM,
        _ => Errno::NXIO,
    }
}

#[cfg(test)]
mod tests {
    use netring::layout::RingSpec;
    use rustix::event::{EventfdFlags, eventfd};
    use shmem::{Memfd, Pages};

    use super::*;

    fn card() -> DrivenCard {
        let geometry = Geometry {
            if_size: 1024,
            if_num: 1,
            ring_size: 8192,
            ring_num: 2,
            buf_size: 2112,
            buf_num: 32,
        };
        let ring = |first| RingSpec { first, rings: 1, slots: 8 };
        let (twin_tx, twin_rx) = (ring(0), ring(1));
        let bound = Bound { geometry, twin_tx, twin_rx, descriptors: 16, ..Bound::default() };
        let file = Memfd::create("test", geometry.file_size() as usize, Pages::Small).unwrap();
        let fd = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        DrivenCard::new(&bound, &file.map().unwrap(), fd(), [fd(), fd(), fd()]).unwrap()
    }

    #[test]
    fn a_card_that_is_driven_is_passed_over_until_its_holder_is_dead() {
        let card = card();
        assert!(card.hold().is_some());
        let parent = std::os::unix::process::parent_id();
        let holder = &card.holder;
        holder.store(parent, Relaxed);
        for _ in 0..2 {
            assert_eq!((card.turn(), holder.load(Relaxed)), (Ok(0), parent));
        }
        // No process has this highest number.
        holder.store(i32::MAX.cast_unsigned(), Relaxed);
        assert!(card.hold().is_some());
    }

    /// Whatever other processes write to the words they share, a call ends with an error.
    #[test]
    fn a_card_that_does_not_come_up_is_an_error() {
        let card = card();
        for (holder, driver) in [(0, 0), (u32::MAX, u64::MAX), (1 << 31, 7)] {
            card.holder.store(holder, Relaxed);
            card.words.first().unwrap().store(driver, Relaxed);
            assert_eq!(card.turn(), Err(Errno::NXIO));
            assert_eq!(card.holder.load(Relaxed), 0);
        }
    }

    #[test]
    fn descriptors_outside_of_the_region_are_refused() {
        let good = card();
        let fd = || eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        for descriptors in [17, u32::MAX] {
            let bound = Bound { geometry: good.geometry, descriptors, ..Bound::default() };
            let card = DrivenCard::new(&bound, &good.mapping, fd(), [fd(), fd(), fd()]);
            assert!(card.is_none(), "{descriptors}");
        }
    }
}
