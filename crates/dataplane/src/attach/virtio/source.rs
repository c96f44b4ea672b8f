//! The part of a guest that its port's worker serves: the transmit queues.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use frame::Mac;
use jail::strangers::Descriptor;
use nic::virtio::Transmit;
use port::{DropReason, Effects, Ingress, IngressCounters, Nanos, Scratch};
use shmem::{Bytes, Shared};
use turn::attach::Source;
use turn::user::Waker;

/// Frames taken in one batch from a guest without a link.
const UNPLUGGED_BATCH: usize = 64;

/// A guest's running transmit queues.
pub struct Queues {
    pub queues: Vec<VirtioQueue>,
    /// The frame that announces the guest. Until it is sent, it acts as the ingress of queue 0,
    /// even if no queue runs.
    pub announcement: Option<Announcement>,
}

/// A transmit queue.
pub struct VirtioQueue {
    pub transmit: Transmit,
    /// The eventfd of the guest's kicks. It is polled edge-triggered and never read: each kick is
    /// an edge.
    pub kick: Arc<Descriptor>,
    /// The port has no link.
    pub unplugged: Option<Unplugged>,
}

impl Source for Queues {
    fn queues(&self) -> usize {
        self.queues.len().max(usize::from(self.announcement.is_some()))
    }

    #[inline]
    fn queue(&mut self, queue: usize) -> Option<&mut dyn Ingress> {
        if let Some(announcement) = &mut self.announcement
            && queue == 0
            && announcement.step != Step::Done
        {
            return Some(announcement);
        }
        Some(self.queues.get_mut(queue)?)
    }

    fn wake_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.queues.iter().map(|queue| queue.kick.as_fd()).collect()
    }

    fn arm(&mut self, _now: Nanos) -> bool {
        let unsent = self.announcement.as_ref().is_some_and(|frame| frame.step != Step::Done);
        let work = unsent || self.queues.iter_mut().any(|queue| queue.transmit.arm());
        if work {
            self.disarm();
        }
        work
    }

    fn disarm(&mut self) {
        self.queues.iter_mut().for_each(|queue| queue.transmit.disarm());
    }

    fn is_awaited(&self, queue: usize) -> bool {
        self.queues.get(queue).is_some_and(|queue| queue.transmit.is_awaited())
    }
}

impl Ingress for VirtioQueue {
    #[inline]
    fn gather(&mut self, scratch: &mut Scratch, max: usize, now: Nanos) -> usize {
        match &mut self.unplugged {
            None => self.transmit.gather(scratch, max, now),
            Some(unplugged) => unplugged.swallow(&mut self.transmit, now),
        }
    }

    #[inline]
    fn complete(&mut self, frames: usize) {
        self.transmit.complete(frames);
    }

    #[inline]
    fn settle(&mut self, now: Nanos) -> Effects {
        self.transmit.settle(now)
    }
}

/// Discards a guest's frames while its port has no link, as a network card without a cable does.
pub struct Unplugged {
    counters: Shared<IngressCounters>,
    call: Option<Arc<Waker>>,
    scratch: Scratch,
}

impl Unplugged {
    pub fn new(counters: Shared<IngressCounters>, call: Option<Arc<Waker>>) -> Self {
        Self { counters, call, scratch: Scratch::new(UNPLUGGED_BATCH) }
    }

    fn swallow(&mut self, transmit: &mut Transmit, now: Nanos) -> usize {
        self.scratch.clear();
        let frames = transmit.gather(&mut self.scratch, UNPLUGGED_BATCH, now);
        if frames > 0 {
            self.counters.drop_frames(DropReason::Down, frames as u64);
            transmit.complete(frames);
            std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
            if let (true, Some(call)) = (transmit.settle(now).kick, &self.call) {
                call.wake();
            }
        }
        0
    }
}

/// One frame that announces to the network where a guest's address is: a RARP request for its own
/// address (RFC 903), as hypervisors send after a migration.
pub struct Announcement {
    frame: Box<[u8; Self::LEN]>,
    counters: Shared<IngressCounters>,
    step: Step,
}

/// How far an announcement is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Unsent,
    Gathered,
    Done,
}

impl Announcement {
    const LEN: usize = 60;

    pub fn new(mac: Mac, counters: Shared<IngressCounters>) -> Self {
        let mut frame = Box::new([0; Self::LEN]);
        let mac = mac.octets();
        frame[..6].fill(0xff);
        frame[6..12].copy_from_slice(&mac);
        // Reverse ARP, Ethernet and IPv4, addresses of 6 and 4 bytes, "request reverse".
        frame[12..22].copy_from_slice(&[0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]);
        frame[22..28].copy_from_slice(&mac);
        frame[32..38].copy_from_slice(&mac);
        Self { frame, counters, step: Step::Unsent }
    }
}

impl Ingress for Announcement {
    fn gather(&mut self, scratch: &mut Scratch, max: usize, _now: Nanos) -> usize {
        if max == 0 || self.step != Step::Unsent {
            return 0;
        }
        self.step = Step::Gathered;
        self.counters.frames.add(1);
        self.counters.bytes.add(Self::LEN as u64);
        scratch.push(Bytes::of(&mut self.frame[..]).span());
        1
    }

    fn complete(&mut self, frames: usize) {
        if frames > 0 {
            self.step = Step::Done;
        }
    }

    fn settle(&mut self, _now: Nanos) -> Effects {
        Effects::default()
    }
}
