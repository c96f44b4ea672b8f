//! A tap interface: frames of the host's network stack.
//!
//! Each frame costs a system call, read(2) or write(2), and one copy by the kernel. A frame that
//! its receiver is to segment is up to 64 KiB long. A descriptor is a queue opened with `IFF_TAP |
//! IFF_NO_PI | IFF_VNET_HDR`: a virtio-net header of 10 bytes (Linux,
//! `Documentation/networking/tuntap.rst`) precedes each frame in both directions and carries its
//! offload request. The opener chose what the kernel hands out (`TUNSETOFFLOAD`). The kernel
//! accepts all requests, except UDP segmentation before Linux 6.2.
//!
//! If the interface is removed, all calls fail. The port then stays silent for good: it sends
//! nothing, and drops frames to it as `down`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use frame::OFFLOAD_HEADER;
use jail::strangers::Descriptor;
use port::{
    Batch, Delivered, DropReason, Effects, Egress, EgressCounters, FrameIdx, IngressCounters,
    Limits, Nanos, Offload, OffloadSet, Scratch, Software,
};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use shmem::{Bytes, Shared, Span};
use turn::attach::{AttachError, Attached, Bells, Exit};
use turn::state::PortState;

use super::{Buffered, Dry, Reader, is_readable};
use crate::attach::{Kind, Place};

/// The maximum number of queues of a tap.
pub const MAX_QUEUES: usize = 8;
/// Bytes of the largest frame: an IP packet with its Ethernet header and a tag.
const MAX_FRAME: usize = u16::MAX as usize + frame::ETHERNET_HEADER + 2 * frame::VLAN_TAG;
/// Bytes of a read: one more than fits, which reveals a truncated frame.
const BUFFER: usize = OFFLOAD_HEADER + MAX_FRAME + 1;
/// Bytes for the frames of one batch.
const BUFFERS: usize = 16 * BUFFER;

/// A tap interface. Descriptors: its queues, 1 to 8, opened with IFF_VNET_HDR and non-blocking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TapConfig {
    /// The kernel accepts UDP segmentation requests (since Linux 6.2).
    pub uso: bool,
}

impl Kind for TapConfig {
    fn attach(&self, fds: Vec<Descriptor>, place: Place<'_>) -> Result<Attached, AttachError> {
        let queues = fds.into_iter().map(Descriptor::into_ours).collect();
        attach(queues, self.uso, place.state)
    }

    fn has_stranger(&self) -> bool {
        false
    }
}

/// Attaches a tap by its queues. `uso` says that the kernel accepts UDP segmentation requests.
///
/// # Errors
/// [`AttachError::Descriptors`] when one is not a character device, there are none or too many, or
/// counters are missing.
pub fn attach(queues: Vec<OwnedFd>, uso: bool, state: &PortState) -> Result<Attached, AttachError> {
    attach_holding(queues, Vec::new(), uso, state)
}

/// Attaches a tap, and holds other descriptors until it is detached.
///
/// # Errors
/// As [`attach`].
pub(super) fn attach_holding(
    queues: Vec<OwnedFd>,
    held: Vec<OwnedFd>,
    uso: bool,
    state: &PortState,
) -> Result<Attached, AttachError> {
    let expected = "1 to 8 queues of a tap interface";
    if queues.is_empty() || queues.len() > MAX_QUEUES {
        return Err(AttachError::Descriptors { expected });
    }
    let counters = state.ingress().ok_or(AttachError::Counters)?;
    let held = Arc::new(held);
    let takes = OffloadSet { uso, ..OffloadSet::ALL };
    let (mut ingresses, mut egresses) = (Vec::new(), Vec::<Exit>::new());
    for (number, queue) in queues.into_iter().enumerate() {
        check(&queue).map_err(|_| AttachError::Descriptors { expected })?;
        let tap = Arc::new(Tap { queue, gone: AtomicBool::new(false), _held: Arc::clone(&held) });
        let bytes = vec![0; OFFLOAD_HEADER + MAX_FRAME].into();
        let writing =
            Writing { counters: state.egress(number).ok_or(AttachError::Counters)?, bytes };
        let writing = Mutex::new(writing);
        let egress = TapEgress { tap: Arc::clone(&tap), takes, writing };
        egresses.push(Arc::new(egress).into());
        let counters = counters.clone();
        ingresses.push(TapIngress { tap, counters, buffers: Vec::new(), dry: Dry::default() });
    }
    let source = Box::new(Buffered::new(ingresses));
    Ok(Attached { source, egresses, bells: Bells::None })
}

/// Checks that a queue is a non-blocking character device: a blocking one would block its worker.
fn check(queue: &OwnedFd) -> rustix::io::Result<()> {
    let mode = rustix::fs::fstat(queue)?.st_mode;
    if FileType::from_raw_mode(mode) != FileType::CharacterDevice {
        return Err(Errno::NODEV);
    }
    let flags = rustix::fs::fcntl_getfl(queue)?;
    rustix::fs::fcntl_setfl(queue, flags | OFlags::NONBLOCK)
}

/// What the two directions of a queue share.
struct Tap {
    queue: OwnedFd,
    /// The interface was removed.
    ///
    /// # Protocol: `Tap.gone`, `Stream.closed`
    /// - Writer: worker that was told so by the kernel
    /// - Reader: worker, egress
    /// - Ordering: relaxed: a hint that saves calls
    /// - Without it: a call that fails, more
    /// - Shown by: tap tests
    gone: AtomicBool,
    _held: Arc<Vec<OwnedFd>>,
}

impl Tap {
    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Remembers the removal if `error` says that the interface was removed.
    fn note(&self, error: Errno) {
        // tun_get() in drivers/net/tun.c: the descriptor has lost its device.
        if error == Errno::BADFD {
            self.gone.store(true, Ordering::Relaxed);
        }
    }

    /// Reads one frame into `buffer`, which has room for the largest.
    fn read(&self, buffer: &mut [u8]) -> Got {
        let bytes = match rustix::io::read(&self.queue, &mut *buffer) {
            Ok(bytes) => bytes,
            Err(error) => {
                self.note(error);
                return Got::Nothing;
            }
        };
        let Some((header, frame)) = buffer[..bytes].split_first_chunk_mut() else {
            return Got::Nothing;
        };
        match frame.len() {
            ..=MAX_FRAME => Got::Frame(Bytes::of(frame).span(), Offload::from_header(header)),
            len => Got::TooLong(len),
        }
    }
}

/// The outcome of a read(2).
enum Got {
    Frame(Span, Offload),
    TooLong(usize),
    Nothing,
}

struct TapIngress {
    tap: Arc<Tap>,
    counters: Shared<IngressCounters>,
    /// The frames of the last batch, back to back. Not touched between gathering frames and
    /// completing them.
    buffers: Vec<u8>,
    dry: Dry,
}

impl Reader for TapIngress {
    fn read(&mut self, scratch: &mut Scratch, max: usize, now: Nanos) -> usize {
        if self.tap.is_gone() || self.dry.is_recent(now) {
            return 0;
        }
        if self.buffers.is_empty() {
            self.buffers = vec![0; BUFFERS];
        }
        let (mut used, mut frames, mut too_long, mut too_long_bytes) = (0, 0, 0, 0);
        while frames + too_long < max && scratch.has_room() {
            let Some(buffer) = self.buffers.get_mut(used..used + BUFFER) else { break };
            match self.tap.read(buffer) {
                Got::Frame(bytes, request) => {
                    scratch.push(bytes);
                    if request != Offload::NONE {
                        scratch.set_offload(request);
                    }
                    used += (OFFLOAD_HEADER + bytes.len()).next_multiple_of(64);
                    frames += 1;
                }
                Got::TooLong(len) => {
                    too_long += 1;
                    too_long_bytes += len as u64;
                }
                Got::Nothing => {
                    self.dry.set(now);
                    break;
                }
            }
        }
        self.counters.drop_frames(DropReason::TooLong, too_long as u64);
        self.counters.frames.add((frames + too_long) as u64);
        self.counters.bytes.add(scratch.bytes() + too_long_bytes);
        frames
    }

    fn wake_fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.tap.queue.as_fd()]
    }

    fn has_frames(&mut self) -> bool {
        !self.tap.is_gone() && is_readable(&self.tap.queue)
    }

    fn clear_empty(&mut self) {
        self.dry.clear();
    }
}

struct TapEgress {
    tap: Arc<Tap>,
    takes: OffloadSet,
    writing: Mutex<Writing>,
}

struct Writing {
    counters: Shared<EgressCounters>,
    /// The header and the frame that is being written.
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

    fn takes(&self) -> OffloadSet {
        self.takes
    }

    fn count_software(&self, done: Software) {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner).counters.add_software(done);
    }
}

impl Writing {
    /// Writes frame `i`, or returns the reason why not.
    fn write(
        &mut self,
        tap: &Tap,
        batch: &Batch<'_>,
        i: FrameIdx,
        max_frame: u32,
    ) -> Result<(), DropReason> {
        let len = batch.frame(i).len();
        if batch.wire_len(i) > max_frame as usize || len > MAX_FRAME {
            return Err(DropReason::TooLong);
        }
        if tap.is_gone() {
            return Err(DropReason::Down);
        }
        let bytes = &mut self.bytes[..OFFLOAD_HEADER + len];
        bytes[..OFFLOAD_HEADER].copy_from_slice(&batch.offload(i).header());
        batch.copy_frame(i, Bytes::of(&mut bytes[OFFLOAD_HEADER..]));
        match rustix::io::write(&tap.queue, bytes) {
            Ok(_) => Ok(()),
            Err(Errno::AGAIN) => Err(DropReason::Full),
            // The interface is down, or removed.
            Err(error @ (Errno::IO | Errno::BADFD)) => {
                tap.note(error);
                Err(DropReason::Down)
            }
            Err(_) => Err(DropReason::Io),
        }
    }
}
