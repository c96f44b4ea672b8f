//! A tap interface: frames of the host's network stack.
//!
//! Each frame costs a system call, read(2) or write(2), and one copy by the kernel. The descriptor is a
//! queue opened with `IFF_TAP | IFF_NO_PI | IFF_VNET_HDR`: a virtio-net header of 10 bytes (Linux,
//! `Documentation/networking/tuntap.rst`) is before each frame. No offload is enabled on it, so the
//! kernel hands out no unfinished checksums and no frames to be segmented; should somebody else enable
//! one, such frames are dropped and counted.
//!
//! An interface that is removed under us answers every call with an error: the port then goes quiet for
//! good, sends nothing, and drops what is sent to it as `down`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fabric::Policy;
use port::{
    Batch, Delivered, DropReason, Effects, Egress, EgressCounters, FrameIdx, Ingress,
    IngressCounters, Limits, Nanos, Offload, Scratch,
};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use shmem::{Bytes, Shared, Span};

use super::{AttachError, Attached, Source};
use crate::state::PortState;

/// Bytes of the virtio-net header before a frame (virtio 1.2, 5.1.6, without `num_buffers`).
const HEADER: usize = 10;
/// Bytes of the largest frame.
const MAX_FRAME: usize = Policy::MAX_MTU as usize + frame::ETHERNET_HEADER + frame::VLAN_TAG;
/// Bytes read at most: one more than fits, which tells a frame that was cut off.
const BUFFER: usize = HEADER + MAX_FRAME + 1;
/// virtio-net header flag: the checksum is to be filled in.
const NEEDS_CHECKSUM: u8 = 1;
/// Distance of the buffers for frames that are read.
const STRIDE: usize = BUFFER.next_multiple_of(64);
/// How long a queue found empty is not read again, unless epoll says that there is something.
const DRY_NS: u64 = 20_000;

/// Attaches a tap's queue.
///
/// # Errors
/// [`AttachError::Descriptors`] when it is no character device, or counters are missing.
pub fn attach(queue: OwnedFd, state: &PortState) -> Result<Attached, AttachError> {
    let missing = || AttachError::Descriptors { expected: "counters in the state memory" };
    let (ingress, egress) = (state.ingress().ok_or_else(missing)?, state.egress(0));
    let egress = egress.ok_or_else(missing)?;
    check(&queue).map_err(|_| AttachError::Descriptors { expected: "a tap interface's queue" })?;
    let tap = Arc::new(Tap { queue, gone: AtomicBool::new(false) });
    let writing = Writing { counters: egress, bytes: vec![0; HEADER + MAX_FRAME].into() };
    let egress = TapEgress { tap: Arc::clone(&tap), writing: Mutex::new(writing) };
    let source = TapIngress { tap, counters: ingress, buffers: Vec::new(), dry_at: None };
    Ok(Attached { source: Box::new(source), egresses: vec![Arc::new(egress)], token: None })
}

/// A queue that blocked would block its worker.
fn check(queue: &OwnedFd) -> rustix::io::Result<()> {
    let mode = rustix::fs::fstat(queue)?.st_mode;
    if FileType::from_raw_mode(mode) != FileType::CharacterDevice {
        return Err(Errno::NODEV);
    }
    let flags = rustix::fs::fcntl_getfl(queue)?;
    rustix::fs::fcntl_setfl(queue, flags | OFlags::NONBLOCK)
}

/// What the two directions share.
struct Tap {
    queue: OwnedFd,
    /// The interface was removed.
    gone: AtomicBool,
}

impl Tap {
    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Remembers it if `error` says that the interface was removed.
    fn note(&self, error: Errno) {
        // tun_get() in drivers/net/tun.c: the descriptor has no device any more.
        if error == Errno::BADFD {
            self.gone.store(true, Ordering::Relaxed);
        }
    }
}

struct TapIngress {
    tap: Arc<Tap>,
    counters: Shared<IngressCounters>,
    /// [`STRIDE`] bytes per frame of the largest batch so far. Not touched between gathering frames
    /// and completing them.
    buffers: Vec<u8>,
    /// When the queue was found empty.
    dry_at: Option<Nanos>,
}

/// What a read(2) brought.
enum Got {
    Frame(Span),
    Refused(DropReason, usize),
    Nothing,
}

impl Tap {
    /// Reads one frame.
    fn read(&self, buffer: &mut [u8]) -> Got {
        let bytes = match rustix::io::read(&self.queue, &mut *buffer) {
            Ok(bytes) => bytes,
            Err(error) => {
                self.note(error);
                return Got::Nothing;
            }
        };
        let Some(len) = bytes.checked_sub(HEADER) else { return Got::Nothing };
        let (flags, gso_type) = (buffer[0], buffer[1]);
        if gso_type != 0 || flags & NEEDS_CHECKSUM != 0 {
            return Got::Refused(DropReason::Offload, len);
        }
        if len > MAX_FRAME {
            return Got::Refused(DropReason::TooLong, len);
        }
        Got::Frame(Bytes::of(&mut buffer[HEADER..bytes]).span())
    }
}

impl Ingress for TapIngress {
    fn gather(&mut self, scratch: &mut Scratch, max: usize, now: Nanos) -> usize {
        if self.tap.is_gone() || self.dry_at.is_some_and(|at| now - at < DRY_NS) {
            return 0;
        }
        self.dry_at = None;
        if self.buffers.len() < max * STRIDE {
            self.buffers = vec![0; max * STRIDE];
        }
        let mut buffers = self.buffers.chunks_exact_mut(STRIDE);
        let mut buffer = buffers.next();
        let (mut frames, mut refused, mut refused_bytes) = (0, 0, 0);
        while frames + refused < max && scratch.has_room() {
            let Some(space) = buffer.as_deref_mut() else { break };
            match self.tap.read(&mut space[..BUFFER]) {
                Got::Frame(bytes) => {
                    scratch.push(bytes);
                    frames += 1;
                    buffer = buffers.next();
                }
                Got::Refused(reason, len) => {
                    self.counters.drop_frames(reason, 1);
                    refused += 1;
                    refused_bytes += len as u64;
                }
                Got::Nothing => {
                    self.dry_at = Some(now);
                    break;
                }
            }
        }
        self.counters.frames.add((frames + refused) as u64);
        self.counters.bytes.add(scratch.bytes() + refused_bytes);
        frames
    }

    /// Nobody waits for buffers: the next batch may use them.
    fn complete(&mut self, _frames: usize) {}

    fn settle(&mut self, _now: Nanos) -> Effects {
        Effects::default()
    }
}

impl Source for TapIngress {
    fn queues(&self) -> usize {
        1
    }

    fn queue(&mut self, _queue: usize) -> &mut dyn Ingress {
        self
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.tap.queue.as_fd())
    }

    fn arm(&mut self) -> bool {
        if self.tap.is_gone() {
            return false;
        }
        let mut fds = [PollFd::new(&self.tap.queue, PollFlags::IN)];
        let polled = rustix::event::poll(&mut fds, Some(&Timespec::default()));
        let work = polled.is_ok() && fds[0].revents().contains(PollFlags::IN);
        if work {
            self.dry_at = None;
        }
        work
    }

    fn disarm(&mut self) {
        self.dry_at = None;
    }
}

struct TapEgress {
    tap: Arc<Tap>,
    writing: Mutex<Writing>,
}

struct Writing {
    counters: Shared<EgressCounters>,
    /// A header that asks for nothing, and the frame that is being written.
    bytes: Box<[u8]>,
}

impl Egress for TapEgress {
    fn deliver(&self, batch: &Batch<'_>, list: &[FrameIdx], limits: Limits) -> Delivered {
        let mut writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        for (at, i) in list.iter().enumerate() {
            match writing.write(&self.tap, batch, *i, limits.max_frame) {
                Ok(()) => {
                    writing.counters.frames.add(1);
                    writing.counters.bytes.add(batch.frame(*i).len() as u64);
                }
                Err(DropReason::Full) if limits.lossless => return Delivered { finished: at },
                Err(reason) => writing.counters.drop_frames(reason, 1),
            }
        }
        Delivered { finished: list.len() }
    }

    fn settle(&self, _now: Nanos) -> Effects {
        Effects::default()
    }
}

impl Writing {
    /// Writes frame `i`, or says why not.
    fn write(
        &mut self,
        tap: &Tap,
        batch: &Batch<'_>,
        i: FrameIdx,
        max_frame: u32,
    ) -> Result<(), DropReason> {
        let len = batch.frame(i).len();
        if len > (max_frame as usize).min(MAX_FRAME) {
            return Err(DropReason::TooLong);
        }
        if batch.offload(i) != Offload::NONE {
            return Err(DropReason::Offload);
        }
        if tap.is_gone() {
            return Err(DropReason::Down);
        }
        let bytes = &mut self.bytes[..HEADER + len];
        batch.copy_frame(i, Bytes::of(&mut bytes[HEADER..]));
        match rustix::io::write(&tap.queue, bytes) {
            Ok(_) => Ok(()),
            Err(Errno::AGAIN) => Err(DropReason::Full),
            // The interface is not up, or no more.
            Err(error @ (Errno::IO | Errno::BADFD)) => {
                tap.note(error);
                Err(DropReason::Down)
            }
            Err(_) => Err(DropReason::Io),
        }
    }
}
