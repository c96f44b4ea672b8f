//! Frames from an interface into the switch: lent from UMEM, not copied.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use port::{DropReason, Effects, Ingress, IngressCounters, Nanos, Scratch};
use rustix::net::RecvFlags;
use shmem::{Mapping, Shared};
use turn::attach::{Attended, Source};

use super::super::Umem;
use super::egress::{Left, XdpEgress};
use super::ring::Ring;

/// For how long frames that the kernel did not take wait for the next attempt.
const LATER_NS: u64 = 100_000;
/// The same time while the interface is down.
const REFUSED_NS: u64 = 100 * Nanos::MILLI;

/// A queue of an interface.
pub(super) struct XdpIngress {
    socket: Arc<OwnedFd>,
    memory: Arc<Mapping>,
    chunk_len: u64,
    /// Bytes of the chunks for frames that arrive.
    half: u64,
    receive: Ring,
    fill: Ring,
    counters: Shared<IngressCounters>,
    /// The chunks of frames that are lent, oldest first.
    lent: VecDeque<u64>,
    /// The current frame continues in the next entry, so it is dropped.
    continues: bool,
}

impl XdpIngress {
    /// All chunks are free.
    pub fn new(
        socket: Arc<OwnedFd>,
        umem: &Umem,
        memory: Arc<Mapping>,
        (receive, mut fill): (Ring, Ring),
        counters: Shared<IngressCounters>,
    ) -> Self {
        let chunk_len = u64::from(umem.chunk_len);
        (0..u64::from(umem.chunks)).for_each(|chunk| fill.put_place(chunk * chunk_len));
        fill.written();
        let half = u64::from(umem.chunks) * chunk_len;
        let lent = VecDeque::with_capacity(umem.chunks as usize);
        Self { socket, memory, chunk_len, half, receive, fill, counters, lent, continues: false }
    }

    fn give_back(&mut self, at: u64) {
        // There is room for all chunks.
        self.fill.put_place(at / self.chunk_len * self.chunk_len);
    }
}

impl Ingress for XdpIngress {
    fn gather(&mut self, scratch: &mut Scratch, max: usize, _now: Nanos) -> usize {
        let ready = (self.receive.ready() as usize).min(max);
        if ready == 0 {
            return 0;
        }
        let (mut frames, mut bytes, mut too_long, mut taken) = (0, 0, 0, 0);
        while taken < ready && scratch.has_room() {
            let Some(frame) = self.receive.next_frame() else { break };
            taken += 1;
            let end = frame.at % self.chunk_len + u64::from(frame.len);
            let window = self.memory.bytes(frame.at as usize, frame.len as usize);
            let window = window.filter(|_| frame.at < self.half && end <= self.chunk_len);
            // A frame in several pieces is longer than any that the port allows.
            let whole = frame.options & 1 == 0 && !self.continues;
            self.continues = frame.options & 1 != 0;
            bytes += frame.len as usize;
            match window.filter(|_| whole) {
                Some(window) => {
                    scratch.push(window.span());
                    self.lent.push_back(frame.at);
                    frames += 1;
                }
                None => {
                    too_long += usize::from(!self.continues);
                    self.give_back(frame.at % self.half.max(1));
                }
            }
        }
        self.receive.was_read();
        if frames == 0 {
            self.fill.written();
        }
        self.counters.drop_frames(DropReason::TooLong, too_long as u64);
        self.counters.frames.add((frames + too_long) as u64);
        self.counters.bytes.add(bytes as u64);
        frames
    }

    fn complete(&mut self, frames: usize) {
        for _ in 0..frames {
            let Some(at) = self.lent.pop_front() else { break };
            self.give_back(at);
        }
        self.fill.written();
    }

    fn settle(&mut self, _now: Nanos) -> Effects {
        if self.fill.needs_wakeup() {
            // The call wakes the kernel; its result says only that there is nothing to read.
            let _ = rustix::net::recv(&self.socket, &mut [0u8; 0][..], RecvFlags::DONTWAIT);
        }
        Effects::default()
    }
}

/// The sending side of an interface, as its home worker sees it.
pub(super) struct XdpSource {
    /// Each queue, with the egress for the same queue.
    pub queues: Vec<(XdpIngress, Arc<XdpEgress>)>,
    /// The map and the link, kept for the next supervisor.
    pub _kept: Vec<OwnedFd>,
}

impl XdpSource {
    fn has_left(&self, left: Left) -> bool {
        self.queues.iter().any(|(_, egress)| egress.behind.left() == left)
    }

    fn catch_up(&self) {
        for (_, egress) in &self.queues {
            if egress.behind.left() != Left::Nothing {
                egress.catch_up();
            }
        }
    }
}

impl Source for XdpSource {
    fn queues(&self) -> usize {
        self.queues.len()
    }

    fn queue(&mut self, queue: usize) -> Option<&mut dyn Ingress> {
        Some(&mut self.queues.get_mut(queue)?.0)
    }

    fn wake_fds(&self) -> Vec<BorrowedFd<'_>> {
        let queues = self.queues.iter();
        queues.flat_map(|(queue, egress)| [queue.socket.as_fd(), egress.behind.bell()]).collect()
    }

    fn attends(&self) -> bool {
        true
    }

    fn attend(&mut self, now: Nanos) -> Attended {
        self.catch_up();
        Attended { again: now + LATER_NS, access: None }
    }

    fn arm(&mut self, now: Nanos) -> bool {
        for (queue, _) in &mut self.queues {
            let _ = queue.settle(now);
        }
        self.has_left(Left::More) || self.queues.iter().any(|(queue, _)| queue.receive.ready() > 0)
    }

    fn deadline(&self, now: Nanos) -> Option<Nanos> {
        // No descriptor says that an interface is up again.
        self.has_left(Left::Refused).then_some(now + REFUSED_NS)
    }
}
