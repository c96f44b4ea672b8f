//! Readers: they get the frames of an interface and wait for them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use frame::bpf::Program;
use rustix::event::epoll;
use rustix::io::Errno;

use crate::failure::Failure;
use crate::interface::{AWAKE, Counts, Inner, Interface, Place};
use crate::queue::{Frame, FrameQueue};
use crate::waker::ReaderWaker;

/// Waits for the frames of a reader, without borrowing the reader itself.
#[derive(Clone, Debug)]
pub struct Sleeper {
    interface: Arc<Interface>,
    bell: Arc<ReaderWaker>,
}

impl Sleeper {
    /// The reader's port.
    #[must_use]
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Returns the bell that wakes this sleeper.
    #[must_use]
    pub fn bell(&self) -> &ReaderWaker {
        &self.bell
    }

    /// Waits for a frame, the bell or a signal, at most `time`. Call it after a fetch that found
    /// nothing.
    ///
    /// # Errors
    /// The system call failed.
    pub fn wait(&self, time: Option<Duration>) -> Result<(), Failure> {
        let started = Instant::now();
        while started.elapsed() < AWAKE.min(time.unwrap_or(AWAKE)) {
            std::thread::yield_now();
            if self.bell.is_rung() {
                self.bell.still();
                return Ok(());
            }
            if self.interface.inner.lock().port.ready().readable {
                return Ok(());
            }
        }
        self.interface.sleep(Some(&self.bell), time)?;
        self.bell.still();
        Ok(())
    }
}

/// Receives the frames of an interface.
#[derive(Debug)]
pub struct Reader {
    interface: Arc<Interface>,
    id: u64,
    bell: Arc<ReaderWaker>,
    /// The frames that the reader has taken from its place in the interface.
    current: FrameQueue,
    /// The descriptor for the program's event loop: an epoll set.
    watched: Option<OwnedFd>,
}

impl Reader {
    /// Makes a reader that keeps at most `keep` bytes of each frame, and queues at most `limit`
    /// bytes.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn new(interface: &Arc<Interface>, keep: usize, limit: usize) -> Result<Self, Failure> {
        let bell = Arc::new(ReaderWaker::new(interface.descriptors.raise)?);
        let mut inner = interface.inner.lock();
        let id = inner.next;
        inner.next += 1;
        inner.places.push(Place {
            id,
            queue: FrameQueue::default(),
            filter: None,
            keep,
            interface: interface.index(),
            limit,
            counts: Counts::default(),
            bell: Arc::clone(&bell),
        });
        drop(inner);
        let interface = Arc::clone(interface);
        Ok(Self { interface, id, bell, current: FrameQueue::default(), watched: None })
    }

    /// The interface that the reader reads from.
    #[must_use]
    pub fn interface(&self) -> &Arc<Interface> {
        &self.interface
    }

    /// Returns the bell that wakes it.
    #[must_use]
    pub fn bell(&self) -> Arc<ReaderWaker> {
        Arc::clone(&self.bell)
    }

    fn in_place<T>(&self, with: impl FnOnce(&mut Place) -> T) -> Option<T> {
        let mut inner = self.interface.inner.lock();
        inner.places.iter_mut().find(|place| place.id == self.id).map(with)
    }

    /// Sets the filter. Queued frames are dropped, as they passed the old one.
    pub fn set_filter(&mut self, filter: Option<Program>) {
        self.current.clear();
        self.in_place(|place| {
            place.filter = filter;
            place.queue.clear();
        });
    }

    /// Returns how many frames the reader received and lost.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.in_place(|place| place.counts).unwrap_or_default()
    }

    /// Checks whether there is a frame for [`take`](Self::take). If not, arms the wake-up for the
    /// next one.
    ///
    /// # Errors
    /// The port is gone.
    pub fn fetch(&mut self) -> Result<bool, Failure> {
        while self.current.is_empty() {
            self.current.clear();
            let mut inner = self.interface.inner.lock();
            let Inner { places, .. } = &mut *inner;
            let place = places.iter_mut().find(|place| place.id == self.id);
            if let Some(place) = place.filter(|place| !place.queue.is_empty()) {
                std::mem::swap(&mut place.queue, &mut self.current);
            } else if !inner.take(self.id)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes the next frame that [`fetch`](Self::fetch) found.
    pub fn take(&mut self) -> Option<Frame<'_>> {
        self.current.pop()
    }

    /// Makes the value with which a caller waits for the reader's frames.
    #[must_use]
    pub fn sleeper(&self) -> Sleeper {
        Sleeper { interface: Arc::clone(&self.interface), bell: Arc::clone(&self.bell) }
    }

    /// Lends the frames that [`fetch`](Self::fetch) found, until [`take_back`](Self::take_back).
    pub(crate) fn lend(&mut self) -> FrameQueue {
        std::mem::take(&mut self.current)
    }

    /// Puts the remaining frames back, before those that were fetched meanwhile.
    pub(crate) fn take_back(&mut self, mut left: FrameQueue) {
        if !self.current.is_empty() {
            while let Some(frame) = self.current.pop() {
                left.put(frame);
            }
        }
        self.current = left;
    }

    /// Returns a descriptor that is readable when there are frames or news.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn descriptor(&mut self) -> Result<BorrowedFd<'_>, Failure> {
        if self.watched.is_none() {
            let set = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(Failure::io)?;
            for fd in [self.interface.token(), self.bell.as_fd()] {
                let data = epoll::EventData::new_u64(0);
                epoll::add(&set, fd, data, epoll::EventFlags::IN).map_err(Failure::io)?;
            }
            // The number is not moved up: programs put it into `select` sets, which have 1,024
            // places.
            self.watched = Some(set);
            self.settle();
        }
        self.watched.as_ref().map(AsFd::as_fd).ok_or_else(|| Failure::io(Errno::BADF))
    }

    /// Like [`settle`](Self::settle), after one frame, whose bytes stay in place.
    pub(crate) fn settle_after_one(&mut self) {
        if self.watched.is_some() {
            // The next call checks again whether there are more frames.
            self.bell.ring();
        }
    }

    /// Updates the descriptor's readiness. Call it when the program returns to its event loop.
    pub fn settle(&mut self) {
        if self.watched.is_none() {
            return;
        }
        self.bell.still();
        if !matches!(self.fetch(), Ok(false)) {
            self.bell.ring();
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut inner = self.interface.inner.lock();
        inner.places.retain(|place| place.id != self.id);
        drop(inner);
        let lower = self.interface.descriptors.lower;
        lower(self.bell.as_fd().as_raw_fd());
    }
}
