//! Ports whose frames come by system calls, into a buffer that the port owns.
//!
//! A frame stays in the buffer until the next batch is read, so there is nothing to return and no
//! owner to wake. The kinds of ports differ in their [`Reader`].

pub mod dgram;
pub mod host;
pub mod pcap;
pub mod stream;
pub mod tap;

use std::os::fd::{AsFd, BorrowedFd};

use port::{Effects, Ingress, Nanos, Scratch};
use rustix::event::{PollFd, PollFlags, Timespec};
use turn::attach::{Attended, Source};

/// For how long a descriptor that was empty is not read again, unless epoll reports it.
const DRY_NS: u64 = 20_000;

/// A source of frames, and the buffer that it reads them into.
trait Reader: Send {
    /// Reads up to `max` frames into `scratch` and counts them. Returns how many.
    fn read(&mut self, scratch: &mut Scratch, max: usize, now: Nanos) -> usize;

    /// The descriptors that become readable when there are frames.
    fn wake_fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// True if there is something to read now.
    fn has_frames(&mut self) -> bool;

    /// Forgets that the descriptor was empty, so that the next read tries again.
    fn clear_empty(&mut self) {}

    /// When a frame is due that no descriptor announces.
    fn deadline(&self, _now: Nanos) -> Option<Nanos> {
        None
    }

    /// True if the reader has to [write](Self::write) from time to time.
    fn writes(&self) -> bool {
        false
    }

    /// Writes the bytes that wait.
    fn write(&mut self, _now: Nanos) {}
}

/// A port of readers, one for each send queue.
struct Buffered<R>(Vec<BufferIngress<R>>);

impl<R: Reader> Buffered<R> {
    fn new(readers: impl IntoIterator<Item = R>) -> Self {
        Self(readers.into_iter().map(BufferIngress).collect())
    }
}

impl<R: Reader> Source for Buffered<R> {
    fn queues(&self) -> usize {
        self.0.len()
    }

    fn queue(&mut self, queue: usize) -> Option<&mut dyn Ingress> {
        Some(self.0.get_mut(queue)?)
    }

    fn wake_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.0.iter().flat_map(|queue| queue.0.wake_fds()).collect()
    }

    fn attends(&self) -> bool {
        self.0.iter().any(|queue| queue.0.writes())
    }

    fn attend(&mut self, now: Nanos) -> Attended {
        self.0.iter_mut().for_each(|queue| queue.0.write(now));
        Attended::next_turn(now)
    }

    fn arm(&mut self, _now: Nanos) -> bool {
        // Asks each queue, so that none that has frames is taken for dry.
        let mut work = false;
        for BufferIngress(reader) in &mut self.0 {
            if reader.has_frames() {
                reader.clear_empty();
                work = true;
            }
        }
        work
    }

    fn deadline(&self, now: Nanos) -> Option<Nanos> {
        self.0.iter().filter_map(|queue| queue.0.deadline(now)).min()
    }

    fn disarm(&mut self) {
        self.0.iter_mut().for_each(|queue| queue.0.clear_empty());
    }
}

/// A send queue: one buffer.
struct BufferIngress<R>(R);

impl<R: Reader> Ingress for BufferIngress<R> {
    fn gather(&mut self, scratch: &mut Scratch, max: usize, now: Nanos) -> usize {
        self.0.read(scratch, max, now)
    }

    /// Does nothing: the next batch may overwrite the buffer.
    fn complete(&mut self, _frames: usize) {}

    fn settle(&mut self, _now: Nanos) -> Effects {
        Effects::default()
    }
}

/// When a descriptor was found empty; `None` if it was not.
#[derive(Debug, Default)]
pub(super) struct Dry(Option<Nanos>);

impl Dry {
    /// True if the descriptor was found empty a moment ago.
    pub fn is_recent(&mut self, now: Nanos) -> bool {
        self.0 = self.0.filter(|at| now - *at < DRY_NS);
        self.0.is_some()
    }

    /// True if the descriptor was found empty, and epoll has not reported it since.
    pub fn is_set(&self) -> bool {
        self.0.is_some()
    }

    /// Notes that the source is empty.
    pub fn set(&mut self, now: Nanos) {
        self.0 = Some(now);
    }

    /// Notes that the source may have frames again.
    pub fn clear(&mut self) {
        self.0 = None;
    }
}

/// True if a descriptor has something to read.
pub(super) fn is_readable(fd: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    let polled = rustix::event::poll(&mut fds, Some(&Timespec::default()));
    polled.is_ok() && fds[0].revents().contains(PollFlags::IN)
}
