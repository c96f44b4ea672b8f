//! Frames from the switch to an interface, in batches: one call sends up to 64 of them.
#![allow(unsafe_code, reason = "rustix has no sendmmsg")]

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use frame::OFFLOAD_HEADER;
use port::{
    Batch, Delivered, DropReason, Effects, Egress, EgressCounters, FrameIdx, Limits, Nanos,
    OffloadSet, Software,
};
use rustix::io::Errno;
use shmem::{Bytes, Shared};

use crate::attach::interface::MAX_FRAME;

/// The maximum number of frames in one call.
const AT_ONCE: usize = 64;
/// Bytes of frames in one call: what stays in a processor's cache.
const ARENA: usize = 256 << 10;

/// A queue of an interface, as the switch calls it.
pub(super) struct PacketEgress {
    pub socket: Arc<OwnedFd>,
    pub takes: OffloadSet,
    pub sending: Mutex<Sending>,
}

/// The state of sending.
pub(super) struct Sending {
    counters: Shared<EgressCounters>,
    /// Frames, each after its header, as they are sent. Allocated with the first one.
    arena: Box<[u8]>,
    posts: [Post; AT_ONCE],
    count: usize,
    used: usize,
}

/// A frame that is to be sent.
#[derive(Clone, Copy, Default)]
struct Post {
    /// The frame's place in the list that is delivered.
    number: usize,
    /// Where the frame's header and bytes are in the arena.
    at: usize,
    len: usize,
}

impl Egress for PacketEgress {
    fn deliver(&self, batch: &Batch<'_>, list: &[FrameIdx], limits: Limits) -> Delivered {
        let mut sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        for (number, i) in list.iter().enumerate() {
            let len = batch.frame(*i).len();
            if batch.wire_len(*i) > limits.max_frame as usize || len > MAX_FRAME {
                sending.counters.drop_frames(DropReason::TooLong, 1);
                continue;
            }
            if !sending.has_room(len)
                && let Some(stalled) = sending.send(&self.socket, limits)
            {
                return Delivered { finished: stalled };
            }
            sending.push(batch, *i, number);
        }
        let stalled = sending.send(&self.socket, limits);
        Delivered { finished: stalled.unwrap_or(list.len()) }
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

impl Sending {
    pub fn new(counters: Shared<EgressCounters>) -> Self {
        let posts = [Post::default(); AT_ONCE];
        Self { counters, arena: Box::default(), posts, count: 0, used: 0 }
    }

    /// True if a frame of `len` bytes fits beside the frames that wait.
    fn has_room(&self, len: usize) -> bool {
        self.count < AT_ONCE && self.used + OFFLOAD_HEADER + len <= ARENA
    }

    /// Copies a frame, which [fits](Self::has_room), after its header.
    fn push(&mut self, batch: &Batch<'_>, i: FrameIdx, number: usize) {
        if self.arena.is_empty() {
            self.arena = vec![0; ARENA].into();
        }
        let (at, len) = (self.used, OFFLOAD_HEADER + batch.frame(i).len());
        let bytes = &mut self.arena[at..at + len];
        bytes[..OFFLOAD_HEADER].copy_from_slice(&batch.offload(i).header());
        batch.copy_frame(i, Bytes::of(&mut bytes[OFFLOAD_HEADER..]));
        self.posts[self.count] = Post { number, at, len };
        self.count += 1;
        self.used = (at + len).next_multiple_of(64);
    }

    /// Sends all waiting frames. If a lossless port stalls at one, returns that frame's place in
    /// the list.
    fn send(&mut self, socket: &OwnedFd, limits: Limits) -> Option<usize> {
        let count = std::mem::take(&mut self.count);
        self.used = 0;
        let (mut at, mut asked_again) = (0, false);
        while at < count {
            let posts = &self.posts[at..count];
            match send(socket, &self.arena, posts) {
                Ok(sent) => {
                    let sent = &posts[..sent.clamp(1, posts.len())];
                    let bytes: usize = sent.iter().map(|post| post.len - OFFLOAD_HEADER).sum();
                    self.counters.frames.add(sent.len() as u64);
                    self.counters.bytes.add(bytes as u64);
                    at += sent.len();
                }
                Err(Errno::INTR) => {}
                // The socket reports an earlier error of the interface once, so the call is
                // repeated.
                Err(Errno::NETDOWN) if !asked_again => asked_again = true,
                Err(error) => {
                    let (reason, all) = reason_of(error);
                    if reason == DropReason::Full && limits.lossless {
                        return posts.first().map(|post| post.number);
                    }
                    let dropped = if all { count - at } else { 1 };
                    self.counters.drop_frames(reason, dropped as u64);
                    at += dropped;
                }
            }
        }
        None
    }
}

/// The reason why the kernel refused a frame, and whether the frames behind it fail for the same
/// reason.
const fn reason_of(error: Errno) -> (DropReason, bool) {
    match error {
        Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM => (DropReason::Full, true),
        // The interface is down, or removed.
        Errno::NETDOWN | Errno::NXIO | Errno::NODEV => (DropReason::Down, true),
        Errno::MSGSIZE => (DropReason::TooLong, false),
        _ => (DropReason::Io, false),
    }
}

/// Sends frames. Returns how many the kernel took, at least one.
fn send(socket: &OwnedFd, arena: &[u8], posts: &[Post]) -> rustix::io::Result<usize> {
    let mut parts = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; AT_ONCE];
    // SAFETY: a message header may be all zero: it names nothing.
    let mut messages: [libc::mmsghdr; AT_ONCE] = unsafe { std::mem::zeroed() };
    for ((message, part), post) in messages.iter_mut().zip(&mut parts).zip(posts) {
        let bytes = &arena[post.at..post.at + post.len];
        *part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (part, 1);
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let count = posts.len().min(AT_ONCE) as u32;
    // SAFETY: each of the first `count` headers names one part, which names bytes of the arena; all
    // of it lives during the call. The kernel only reads the bytes.
    let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), count, flags) };
    let failed = || Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO);
    usize::try_from(sent).map_err(|_| failed())
}
