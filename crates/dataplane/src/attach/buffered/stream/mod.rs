//! Frames over a stream socket, as QEMU's `-netdev stream` and passt send them: a length of 4
//! bytes, most significant first, precedes each frame.
//!
//! One recv(2) takes as many frames as fit the buffer, one send(2) sends a batch. What the socket
//! does not accept at once waits in a buffer of the port and is sent later, in order. If that is
//! full, too, frames are dropped, or their senders stall if the port is lossless. The protocol
//! cannot express offload requests, so they are carried out in software.
//!
//! A peer that announces a frame longer than QEMU sends has lost its place in the stream. The
//! frames that follow cannot be found, so the connection is closed and a fault counted. The
//! supervisor sees that like a hang-up, and connects or accepts again.
//!
//! Bytes that were received and not gathered, or delivered and not sent, are in the state memory: a
//! successor continues in the middle of a frame. If a process dies within a system call, the
//! position is ambiguous; then the connection is closed, too.

mod fifo;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jail::strangers::{Descriptor, Inlet};
use port::{
    Batch, Delivered, DropReason, Effects, Egress, EgressCounters, FrameIdx, IngressCounters,
    Limits, Nanos, Scratch, Software,
};
use rustix::event::EventfdFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketType};
use serde::{Deserialize, Serialize};
use shmem::{Bytes, Shared};
use turn::attach::{AttachError, Attached, Bells};
use turn::state::PortState;
use turn::user::Payer;

use super::{Buffered, Dry, Reader};
use crate::attach::{Kind, Place, one};

pub use fifo::Fifo;

/// The size in bytes of the length before each frame.
const PREFIX: usize = 4;
/// The size in bytes of the longest frame: `NET_BUFSIZE` of QEMU.
const MAX_FRAME: usize = (4 << 10) + (64 << 10);
/// The least and the most nanoseconds until a full socket is tried again.
const RETRY_NS: (u64, u64) = (100_000, 10 * Nanos::MILLI);

/// Frames over a stream socket, with a length before each (QEMU's `-netdev stream`, passt).
/// Descriptors: the connected socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamConfig {}

impl Kind for StreamConfig {
    fn attach(&self, fds: Vec<Descriptor>, place: Place<'_>) -> Result<Attached, AttachError> {
        attach(one(fds, "a connected stream socket")?, place.state, place.resume)
    }

    fn has_stranger(&self) -> bool {
        true
    }

    fn hangup_fd(&self) -> Option<usize> {
        Some(0)
    }
}

/// Attaches a connected stream socket. A successor (`resume`) continues the stream.
///
/// # Errors
/// [`AttachError::Descriptors`] when it is not a stream socket, or counters are missing.
pub fn attach(
    socket: Descriptor,
    state: &PortState,
    resume: bool,
) -> Result<Attached, AttachError> {
    let (ingress, egress) = (state.ingress().ok_or(AttachError::Counters)?, state.egress(0));
    let counters = egress.ok_or(AttachError::Counters)?;
    match rustix::net::sockopt::socket_type(&socket) {
        Ok(SocketType::STREAM) => (),
        _ => return Err(AttachError::Descriptors { expected: "a connected stream socket" }),
    }
    let (map, room) = state.room();
    let open = |at, resume| Fifo::open(&map, room.start + at, resume);
    let both = |resume| open(0, resume).zip(open(fifo::MEMORY, resume));
    let known = both(resume);
    let lost = known.is_none();
    let (inbox, bytes) = known.or_else(|| both(false)).ok_or(AttachError::Counters)?;
    let doorbell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let expected = "a descriptor to spare for an eventfd";
    let stream = Arc::new(Stream {
        socket: Inlet::new(socket),
        payer: state.payer().clone(),
        doorbell: doorbell.map_err(|_| AttachError::Descriptors { expected })?,
        closed: AtomicBool::new(false),
        waits: AtomicBool::new(!bytes.is_empty()),
        out: Mutex::new(Out { bytes, counters }),
    });
    if lost {
        stream.close();
    }
    let source = StreamIngress {
        stream: Arc::clone(&stream),
        counters: ingress,
        inbox,
        dry: Dry::default(),
        retry_at: None,
        backoff: RETRY_NS.0,
    };
    let source = Box::new(Buffered::new([source]));
    Ok(Attached { source, egresses: vec![stream.into()], bells: Bells::None })
}

/// The state that both directions share.
struct Stream {
    socket: Inlet,
    payer: Payer,
    /// Signals the worker when output begins to wait. Polled edge-triggered and never read.
    doorbell: OwnedFd,
    /// The connection is closed.
    closed: AtomicBool,
    /// Set while bytes wait for room in the socket.
    ///
    /// # Protocol: `Stream.waits` (stream ports)
    /// - Writer: the worker that sends, under the egress's lock
    /// - Reader: worker
    /// - Ordering: relaxed: a hint; what waits is looked at under the lock
    /// - Partner: the port's eventfd, written when output begins to wait
    /// - Without it: output waits until the next delivery
    /// - Shown by: `sockets` tests
    waits: AtomicBool,
    out: Mutex<Out>,
}

impl Stream {
    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Closes the connection, for all duplicates of the descriptor.
    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.socket.hang_up();
    }

    fn lock(&self) -> MutexGuard<'_, Out> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends waiting bytes until the socket is full. Returns true if any were sent.
    fn flush(&self, out: &mut Out) -> bool {
        let mut moved = false;
        out.bytes.mark_changing();
        while !out.bytes.is_empty() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match self
                .payer
                .call_of_batch(|| rustix::net::send(&self.socket, out.bytes.unread(), flags))
            {
                Ok(sent) => {
                    out.bytes.take(sent);
                    moved = true;
                }
                Err(Errno::INTR) => (),
                Err(Errno::AGAIN | Errno::NOBUFS) => break,
                Err(_) => {
                    // The waiting frames counted as delivered when they were buffered. They are
                    // lost with the connection, as are those in the kernel.
                    self.close();
                    out.bytes.take(usize::MAX);
                }
            }
        }
        out.bytes.settle();
        self.waits.store(!out.bytes.is_empty(), Ordering::Relaxed);
        moved
    }
}

/// Frames that count as delivered and wait to be sent.
struct Out {
    bytes: Fifo,
    counters: Shared<EgressCounters>,
}

impl Out {
    /// Appends frame `i`, or returns the reason why not.
    fn append(&mut self, batch: &Batch<'_>, i: FrameIdx, max_frame: u32) -> Result<(), DropReason> {
        let len = batch.frame(i).len();
        if len > (max_frame as usize).min(MAX_FRAME) {
            return Err(DropReason::TooLong);
        }
        let space = self.bytes.space();
        let (prefix, rest) = space.split_first_chunk_mut::<PREFIX>().ok_or(DropReason::Full)?;
        let to = rest.get_mut(..len).ok_or(DropReason::Full)?;
        *prefix = (len as u32).to_be_bytes();
        batch.copy_frame(i, Bytes::of(to));
        self.bytes.fill(PREFIX + len);
        Ok(())
    }
}

impl Egress for Stream {
    fn deliver(&self, batch: &Batch<'_>, list: &[FrameIdx], limits: Limits) -> Delivered {
        let mut out = self.lock();
        if self.is_closed() {
            out.counters.drop_frames(DropReason::Down, list.len() as u64);
            return Delivered { finished: list.len() };
        }
        let waited = self.waits.load(Ordering::Relaxed);
        let (mut frames, mut bytes, mut finished) = (0, 0, list.len());
        for (at, i) in list.iter().enumerate() {
            let mut appended = out.append(batch, *i, limits.max_frame);
            if appended == Err(DropReason::Full) && self.flush(&mut out) {
                appended = out.append(batch, *i, limits.max_frame);
            }
            match appended {
                Ok(()) => {
                    frames += 1;
                    bytes += batch.frame(*i).len() as u64;
                }
                Err(DropReason::Full) if limits.lossless => {
                    finished = at;
                    break;
                }
                Err(reason) => out.counters.drop_frames(reason, 1),
            }
        }
        out.counters.frames.add(frames);
        out.counters.bytes.add(bytes);
        self.flush(&mut out);
        if !waited && self.waits.load(Ordering::Relaxed) {
            turn::signal(self.doorbell.as_fd());
        }
        Delivered { finished }
    }

    fn settle(&self, _now: Nanos) -> Effects {
        Effects::default()
    }

    fn count_software(&self, done: Software) {
        self.lock().counters.add_software(done);
    }
}

struct StreamIngress {
    stream: Arc<Stream>,
    counters: Shared<IngressCounters>,
    inbox: Fifo,
    dry: Dry,
    /// When to try a full socket again.
    retry_at: Option<Nanos>,
    backoff: u64,
}

/// A peer announced a frame beyond the longest length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

/// Takes the next frame out of the received bytes, if it is complete.
///
/// # Errors
/// [`TooLong`]: the start of the next frame is unknown.
pub fn next_frame(from: &mut Fifo) -> Result<Option<Bytes<'_>>, TooLong> {
    let Some((prefix, _)) = from.unread().split_first_chunk::<PREFIX>() else { return Ok(None) };
    let len = u32::from_be_bytes(*prefix) as usize;
    if len > MAX_FRAME {
        return Err(TooLong);
    }
    if from.unread().len() < PREFIX + len {
        return Ok(None);
    }
    let taken = from.take(PREFIX + len);
    Ok(Some(Bytes::of(&mut taken[PREFIX..])))
}

impl StreamIngress {
    /// Gathers the complete frames.
    fn take(&mut self, scratch: &mut Scratch, max: usize) -> usize {
        let mut frames = 0;
        while frames < max && scratch.has_room() {
            match next_frame(&mut self.inbox) {
                Ok(Some(frame)) => scratch.push(frame.span()),
                Ok(None) => break,
                Err(TooLong) => {
                    self.counters.faults.add(1);
                    self.stream.close();
                    break;
                }
            }
            frames += 1;
        }
        frames
    }

    /// Receives the bytes that are available. Returns false if there were none.
    fn receive(&mut self, now: Nanos) -> bool {
        let space = self.inbox.space();
        let stream = &self.stream;
        let got = stream.payer.call_of_batch(|| stream.socket.recv(space, RecvFlags::DONTWAIT));
        match got {
            Ok(0) => self.stream.close(),
            Ok(bytes) => self.inbox.fill(bytes),
            Err(Errno::AGAIN | Errno::INTR) => self.dry.set(now),
            Err(_) => self.stream.close(),
        }
        self.inbox.settle();
        got.is_ok_and(|bytes| bytes > 0)
    }

    /// Sends waiting bytes if it is time to try.
    #[cold]
    fn flush(&mut self, now: Nanos) {
        if self.retry_at.is_some_and(|at| now < at) {
            return;
        }
        let moved = self.stream.flush(&mut self.stream.lock());
        self.backoff = if moved { RETRY_NS.0 } else { (2 * self.backoff).min(RETRY_NS.1) };
        let waits = self.stream.waits.load(Ordering::Relaxed);
        self.retry_at = waits.then(|| now + self.backoff);
    }
}

impl Reader for StreamIngress {
    fn read(&mut self, scratch: &mut Scratch, max: usize, now: Nanos) -> usize {
        if self.stream.is_closed() {
            return 0;
        }
        let mut frames = self.take(scratch, max);
        let reads = frames == 0 && max > 0 && !self.dry.is_recent(now);
        if reads && !self.stream.is_closed() && self.receive(now) {
            frames = self.take(scratch, max);
        }
        if frames > 0 {
            // Settled before the frames are delivered, so that none is delivered twice.
            self.inbox.settle();
            self.counters.frames.add(frames as u64);
            self.counters.bytes.add(scratch.bytes());
        }
        frames
    }

    fn wake_fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.stream.socket.as_fd(), self.stream.doorbell.as_fd()]
    }

    /// Epoll reports input only, not room for output. Waiting output is retried by the clock.
    fn has_frames(&mut self) -> bool {
        if self.stream.waits.load(Ordering::Relaxed) && self.retry_at.is_none() {
            return true;
        }
        if self.stream.is_closed() {
            return false;
        }
        !self.dry.is_set() || {
            let mut byte = [0];
            let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
            !matches!(self.stream.socket.recv(&mut byte, flags), Err(Errno::AGAIN))
        }
    }

    fn clear_empty(&mut self) {
        self.dry.clear();
    }

    fn deadline(&self, _now: Nanos) -> Option<Nanos> {
        self.retry_at.filter(|_| self.stream.waits.load(Ordering::Relaxed))
    }

    fn writes(&self) -> bool {
        true
    }

    fn write(&mut self, now: Nanos) {
        if self.stream.waits.load(Ordering::Relaxed) {
            self.flush(now);
        }
    }
}
