//! NICs that the guest drives by itself, where another process or a model is the device.
//!
//! | | the device is reached by | frames are |
//! |---|---|---|
//! | [`CardNic`] | registers: e1000, PCnet, one-access, over vfio-user or in this process | copied once each way |
//! | [`VhostNic`] | virtio queues that a vhost-user back end serves | received: copied; sent: documents lie where the device reads them |
//!
//! Devices are not trusted: what they write to memory is copied before it is looked at.

mod card;
mod drive;
mod vhost;

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

pub use self::card::{CardError, CardNic};
pub use self::drive::{Bus, Drive};
pub use self::vhost::{Documents, VhostError, VhostNic};
use crate::nic::{BATCH, Frame, Nic, Pieces};

/// An eventfd.
fn bell() -> Result<OwnedFd, Errno> {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// Sleeps until a bell is rung, or the time is over. Returns true if a bell was rung.
///
/// # Errors
/// [`Errno::PIPE`] if `socket` hangs up: its other side is gone.
fn sleep(bells: &[&OwnedFd], socket: impl AsFd, timeout: Option<Duration>) -> Result<bool, Errno> {
    let mut fds = vec![PollFd::new(&socket, PollFlags::RDHUP)];
    fds.extend(bells.iter().map(|bell| PollFd::new(*bell, PollFlags::IN)));
    let timeout = timeout.map(|time| Timespec {
        tv_sec: time.as_secs().min(i32::MAX as u64) as i64,
        tv_nsec: time.subsec_nanos().into(),
    });
    match rustix::event::poll(&mut fds, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error),
    }
    if fds[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR) {
        return Err(Errno::PIPE);
    }
    // Each bell is silenced, even if an earlier one was rung.
    let rung = bells.iter().filter(|bell| rustix::io::read(bell, &mut [0; 8]).is_ok());
    Ok(rung.count() > 0)
}

/// Lets `build` write a frame of at most `max` bytes into private memory, and sends it.
fn send_built<N: Nic>(
    nic: &mut N,
    scratch: &mut Vec<u8>,
    max: usize,
    build: impl FnOnce(&mut [u8]) -> usize,
) -> Result<(), tcp::Full> {
    scratch.resize(scratch.len().max(max), 0);
    match build(&mut scratch[..max]).min(max) {
        0 => Ok(()),
        len => nic.send(&scratch[..len], Pieces::none(), frame::Offload::NONE),
    }
}

/// Copies of received frames, in private memory, one after the other.
#[derive(Debug)]
struct Arena {
    bytes: Box<[u8]>,
    /// The end of each frame in `bytes`, and its request.
    ends: [(usize, frame::Offload); BATCH],
    frames: usize,
}

impl Arena {
    fn new(bytes: usize) -> Self {
        let ends = [(0, frame::Offload::NONE); BATCH];
        Self { bytes: vec![0; bytes].into_boxed_slice(), ends, frames: 0 }
    }

    fn used(&self) -> usize {
        self.frames.checked_sub(1).map_or(0, |last| self.ends[last].0)
    }

    /// True if another frame of `max` bytes surely fits.
    fn has_room(&self, max: usize) -> bool {
        self.frames < BATCH && self.bytes.len() - self.used() >= max
    }

    /// The free memory.
    fn free(&mut self) -> &mut [u8] {
        let used = self.used();
        &mut self.bytes[used..]
    }

    /// Keeps the first `len` bytes of the free memory as a frame.
    fn keep(&mut self, len: usize, offload: frame::Offload) {
        if self.frames < BATCH {
            self.ends[self.frames] = (self.used() + len, offload);
            self.frames += 1;
        }
    }

    /// Lends the frames to `take`, and forgets them. Returns their number.
    fn lend(&mut self, mut take: impl FnMut(&[Frame<'_>])) -> usize {
        let frames = std::mem::take(&mut self.frames);
        let mut list = [Frame::new(&[]); BATCH];
        let mut start = 0;
        for (place, (end, offload)) in list.iter_mut().zip(&self.ends[..frames]) {
            *place = Frame { front: &self.bytes[start..*end], rest: &[], offload: *offload };
            start = *end;
        }
        if frames > 0 {
            take(&list[..frames]);
        }
        frames
    }
}
