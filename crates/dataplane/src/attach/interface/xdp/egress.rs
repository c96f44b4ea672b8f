//! Frames from the switch to an interface: copied into UMEM, and sent by one call for a batch.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use port::{
    Batch, Delivered, DropReason, Effects, Egress, EgressCounters, FrameIdx, Limits, Nanos,
    Offload, OffloadSet, Software,
};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::SendFlags;
use shmem::{Mapping, Shared};

use super::super::Umem;
use super::ring::{Placed, Ring};
use super::{TX_HEADROOM, TX_METADATA};

/// `XDP_TX_METADATA`: a `struct xsk_tx_metadata` precedes the frame.
const WITH_METADATA: u32 = 1 << 1;
/// `XDP_TXMD_FLAGS_CHECKSUM`.
const CHECKSUM: u64 = 1 << 1;
/// The maximum number of calls for a batch: the kernel sends up to 32 frames with each.
const CALLS: usize = 8;

/// What the kernel has left in a transmit ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// The ring holds nothing that needs a call.
    Nothing,
    /// The ring holds frames that another call will send.
    More,
    /// The ring holds frames of an interface that is down or gone. Calls have no effect until it is
    /// up.
    Refused,
}

/// What a queue's transmit ring still holds ([`Left`]). Wakes the home worker when this begins to
/// matter.
#[derive(Debug)]
pub(super) struct Behind {
    /// # Protocol: `Behind.left`
    /// - Writer: holder of the egress lock
    /// - Reader: home worker
    /// - Ordering: relaxed: the home worker takes the lock before it looks at the ring, and a write
    ///   to the eventfd follows the store
    /// - Without it: frames wait for the next batch
    /// - Shown by: `toklat` tests `interface`
    left: AtomicU8,
    /// An eventfd that is readable after `left` has changed.
    bell: OwnedFd,
}

impl Behind {
    /// Starts with nothing left in the ring.
    pub fn new() -> rustix::io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { left: AtomicU8::new(Left::Nothing as u8), bell })
    }

    fn note(&self, left: Left) {
        let before = self.left();
        self.left.store(left as u8, Ordering::Relaxed);
        if left != Left::Nothing && left != before {
            turn::signal(self.bell.as_fd());
        }
    }

    /// Returns what the last look found in the ring.
    pub fn left(&self) -> Left {
        match self.left.load(Ordering::Relaxed) {
            0 => Left::Nothing,
            1 => Left::More,
            _ => Left::Refused,
        }
    }

    /// The descriptor that becomes readable.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// A queue of an interface, as the switch calls it.
pub(super) struct XdpEgress {
    pub socket: Arc<OwnedFd>,
    pub takes: OffloadSet,
    /// Whether the transmit ring waits for another call.
    pub behind: Arc<Behind>,
    pub sending: Mutex<Sending>,
}

/// The state of sending.
pub(super) struct Sending {
    counters: Shared<EgressCounters>,
    memory: Arc<Mapping>,
    transmit: Ring,
    completion: Ring,
    chunk_len: u64,
    /// The first chunk for frames that leave, and the end of the last.
    chunks: (u64, u64),
    /// The chunks that hold no frame. The last one was used most recently, so it is likely in the
    /// cache.
    free: Vec<u64>,
}

impl Sending {
    /// Makes the sending side with all chunks free.
    pub fn new(
        counters: Shared<EgressCounters>,
        umem: &Umem,
        memory: Arc<Mapping>,
        transmit: Ring,
        completion: Ring,
    ) -> Self {
        let chunk_len = u64::from(umem.chunk_len);
        let first = u64::from(umem.chunks) * chunk_len;
        let free = (0..u64::from(umem.chunks)).rev().map(|chunk| first + chunk * chunk_len);
        let (chunks, free) = ((first, 2 * first), free.collect());
        Self { counters, memory, transmit, completion, chunk_len, chunks, free }
    }

    /// Takes back the chunks of frames that have left.
    fn reclaim(&mut self) {
        let ready = self.completion.ready();
        if ready == 0 {
            return;
        }
        for _ in 0..ready {
            let Some(at) = self.completion.next_place() else { break };
            let ours = (self.chunks.0..self.chunks.1).contains(&at);
            if ours && self.free.len() < self.free.capacity() {
                self.free.push(at / self.chunk_len * self.chunk_len);
            }
        }
        self.completion.was_read();
    }

    /// Copies a frame into a chunk, and its place into the transmit ring.
    fn put(&mut self, batch: &Batch<'_>, i: FrameIdx, max_frame: u32) -> Result<(), DropReason> {
        let len = batch.frame(i).len();
        let room = self.chunk_len as usize - TX_HEADROOM as usize;
        if batch.wire_len(i) > max_frame as usize || len > room {
            return Err(DropReason::TooLong);
        }
        if self.transmit.room() == 0 {
            return Err(DropReason::Full);
        }
        let Some(chunk) = self.free.pop() else { return Err(DropReason::Full) };
        let at = chunk + u64::from(TX_HEADROOM);
        let bytes = self.memory.bytes(at as usize, len).ok_or(DropReason::Io)?;
        batch.copy_frame(i, bytes);
        let offload = batch.offload(i);
        let options = if offload.needs_checksum() { self.request(at, offload) } else { 0 };
        self.transmit.put_frame(Placed { at, len: len as u32, options });
        self.counters.frames.add(1);
        self.counters.bytes.add(len as u64);
        Ok(())
    }

    /// Writes the metadata of the frame at `at`: its checksum is to be completed.
    fn request(&self, at: u64, offload: Offload) -> u32 {
        let at = at as usize - TX_METADATA as usize;
        if let Some(metadata) = self.memory.bytes(at, TX_METADATA as usize) {
            metadata.write(0, CHECKSUM);
            metadata.write(8, offload.checksum_start);
            metadata.write(10, offload.checksum_offset);
            metadata.write(12, 0u32);
            metadata.write(16, 0u64);
        }
        WITH_METADATA
    }

    /// Has the kernel send what waits. Returns what still waits for a call.
    fn send(&mut self, socket: &OwnedFd) -> Left {
        for _ in 0..CALLS {
            if self.transmit.waiting() == 0 || !self.transmit.needs_wakeup() {
                return Left::Nothing;
            }
            match rustix::net::send(socket, &[], SendFlags::DONTWAIT) {
                Ok(_) | Err(Errno::AGAIN | Errno::INTR) => self.reclaim(),
                Err(Errno::NETDOWN | Errno::NXIO | Errno::NODEV) => return Left::Refused,
                // The interface has no room, so the frames stay in the ring.
                Err(_) => break,
            }
        }
        if self.transmit.waiting() > 0 { Left::More } else { Left::Nothing }
    }
}

impl XdpEgress {
    /// Has the kernel send what waits from earlier batches.
    pub fn catch_up(&self) {
        let mut sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        sending.reclaim();
        self.behind.note(sending.send(&self.socket));
    }
}

impl Egress for XdpEgress {
    fn deliver(&self, batch: &Batch<'_>, list: &[FrameIdx], limits: Limits) -> Delivered {
        let mut sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        sending.reclaim();
        let mut finished = list.len();
        for (at, i) in list.iter().enumerate() {
            match sending.put(batch, *i, limits.max_frame) {
                Ok(()) => {}
                Err(DropReason::Full) if limits.lossless => {
                    finished = at;
                    break;
                }
                Err(reason) => sending.counters.drop_frames(reason, 1),
            }
        }
        sending.transmit.written();
        self.behind.note(sending.send(&self.socket));
        Delivered { finished }
    }

    fn settle(&self, _now: Nanos) -> Effects {
        Effects::default()
    }

    fn takes(&self) -> OffloadSet {
        self.takes
    }

    fn count_software(&self, done: Software) {
        self.sending.lock().unwrap_or_else(PoisonError::into_inner).counters.add_software(done);
    }
}
