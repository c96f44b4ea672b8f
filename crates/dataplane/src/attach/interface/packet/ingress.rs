//! Frames from an interface into the switch: lent from the ring, not copied.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use port::{DropReason, Effects, Ingress, IngressCounters, Nanos, Offload, Scratch};
use shmem::Shared;
use turn::attach::Source;

use super::blocks::{Blocks, Found};

/// A queue of an interface.
pub(super) struct PacketIngress {
    /// The socket of the ring; readable when the kernel hands over a block.
    pub socket: Arc<OwnedFd>,
    pub blocks: Blocks,
    pub counters: Shared<IngressCounters>,
}

impl Ingress for PacketIngress {
    fn gather(&mut self, scratch: &mut Scratch, max: usize, _now: Nanos) -> usize {
        let (mut frames, mut bytes, mut too_long) = (0, 0, 0);
        while frames + too_long < max && scratch.has_room() {
            match self.blocks.take() {
                Some(Found::Frame(span, request)) => {
                    scratch.push(span);
                    if request != Offload::NONE {
                        scratch.set_offload(request);
                    }
                    frames += 1;
                    bytes += span.len();
                }
                Some(Found::TooLong(len)) => {
                    too_long += 1;
                    bytes += len;
                }
                None => break,
            }
        }
        if frames + too_long > 0 {
            self.counters.drop_frames(DropReason::TooLong, too_long as u64);
            self.counters.frames.add((frames + too_long) as u64);
            self.counters.bytes.add(bytes as u64);
        }
        frames
    }

    fn complete(&mut self, frames: usize) {
        self.blocks.give_back(frames);
    }

    fn settle(&mut self, _now: Nanos) -> Effects {
        Effects::default()
    }
}

/// The sending side of an interface, as its home worker sees it.
pub(super) struct PacketSource(pub Vec<PacketIngress>);

impl Source for PacketSource {
    fn queues(&self) -> usize {
        self.0.len()
    }

    fn queue(&mut self, queue: usize) -> Option<&mut dyn Ingress> {
        Some(self.0.get_mut(queue)?)
    }

    fn wake_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.0.iter().map(|queue| queue.socket.as_fd()).collect()
    }

    fn arm(&mut self, _now: Nanos) -> bool {
        self.0.iter().any(|queue| queue.blocks.has_frames())
    }
}
