//! Frames in datagrams, one each, as QEMU's `-netdev dgram`, libkrun and vfkit send them: over a
//! pair of Unix sockets or UDP.
//!
//! recvmmsg(2) and sendmmsg(2) move up to 64 frames in one call. An absent peer does not end the
//! port: frames to it are dropped as `down`, and the supervisor reconnects the socket from time to
//! time. A datagram has no room for offload requests, so they are carried out in software.
#![allow(unsafe_code, reason = "rustix has neither recvmmsg nor sendmmsg")]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use fabric::Rules;
use jail::strangers::{Descriptor, Inlet};
use port::{
    Batch, Delivered, DropReason, Effects, Egress, EgressCounters, FrameIdx, IngressCounters,
    Limits, Nanos, Scratch, Software,
};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketType};
use serde::{Deserialize, Serialize};
use shmem::{Bytes, Shared};
use turn::attach::{AttachError, Attached, Bells};
use turn::state::PortState;
use turn::user::Payer;

use super::{Buffered, Dry, Reader, is_readable};
use crate::attach::{Kind, Place, one};

/// The maximum number of datagrams a call moves.
const AT_ONCE: usize = 64;
/// Bytes of the largest frame.
const MAX_FRAME: usize = Rules::MAX_MTU as usize + frame::ETHERNET_HEADER + 2 * frame::VLAN_TAG;
/// Distance in bytes between the buffers of received frames.
const STRIDE: usize = MAX_FRAME.next_multiple_of(64);

/// Frames in datagrams (QEMU's `-netdev dgram`). Descriptors: the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DgramConfig {}

impl Kind for DgramConfig {
    fn attach(&self, fds: Vec<Descriptor>, place: Place<'_>) -> Result<Attached, AttachError> {
        attach(one(fds, "a datagram socket")?, place.state)
    }

    fn has_stranger(&self) -> bool {
        true
    }
}

/// Attaches a datagram socket.
///
/// # Errors
/// [`AttachError::Descriptors`] when it is not a datagram socket, or counters are missing.
pub fn attach(socket: Descriptor, state: &PortState) -> Result<Attached, AttachError> {
    let (ingress, egress) = (state.ingress().ok_or(AttachError::Counters)?, state.egress(0));
    let counters = egress.ok_or(AttachError::Counters)?;
    match rustix::net::sockopt::socket_type(&socket) {
        Ok(SocketType::DGRAM) => (),
        _ => return Err(AttachError::Descriptors { expected: "a datagram socket" }),
    }
    let socket = Arc::new(Inlet::new(socket));
    let bytes = vec![0; AT_ONCE * STRIDE].into();
    let sending = Mutex::new(Sending { counters, bytes });
    let (socket, payer) = (Arc::clone(&socket), state.payer().clone());
    let egress = DgramEgress { socket: Arc::clone(&socket), payer: payer.clone(), sending };
    let (counters, buffers) = (ingress, Box::default());
    let source = DgramIngress { socket, payer, counters, buffers, dry: Dry::default() };
    Ok(Attached {
        source: Box::new(Buffered::new([source])),
        egresses: vec![Arc::new(egress).into()],
        bells: Bells::None,
    })
}

struct DgramIngress {
    socket: Arc<Inlet>,
    payer: Payer,
    counters: Shared<IngressCounters>,
    /// [`STRIDE`] bytes for each frame of a batch, allocated with the first batch. Not touched
    /// between gathering frames and completing them.
    buffers: Box<[u8]>,
    dry: Dry,
}

impl Reader for DgramIngress {
    fn read(&mut self, scratch: &mut Scratch, max: usize, now: Nanos) -> usize {
        if max == 0 || self.dry.is_recent(now) {
            return 0;
        }
        if self.buffers.is_empty() {
            self.buffers = vec![0; AT_ONCE * STRIDE].into();
        }
        let mut lens = [0; AT_ONCE];
        let max = max.min(AT_ONCE).min(scratch.capacity());
        let buffers = &mut self.buffers[..max * STRIDE];
        let got = self.payer.call_of_batch(|| match self.socket.refuses() {
            true => receive(self.socket.as_fd(), buffers, &mut lens),
            false => receive_by_one(&self.socket, buffers, &mut lens),
        });
        let Ok(got) = got else {
            // The socket is empty, or the peer is absent.
            self.dry.set(now);
            return 0;
        };
        let (mut too_long, mut too_long_bytes) = (0, 0);
        for (buffer, len) in self.buffers.chunks_exact_mut(STRIDE).zip(&lens[..got]) {
            match buffer.get_mut(..*len).filter(|_| *len <= MAX_FRAME) {
                Some(frame) => scratch.push(Bytes::of(frame).span()),
                None => {
                    too_long += 1;
                    too_long_bytes += *len as u64;
                }
            }
        }
        self.counters.drop_frames(DropReason::TooLong, too_long);
        self.counters.frames.add(got as u64);
        self.counters.bytes.add(scratch.bytes() + too_long_bytes);
        got - too_long as usize
    }

    fn wake_fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.socket.as_fd()]
    }

    fn has_frames(&mut self) -> bool {
        is_readable(&*self.socket)
    }

    fn clear_empty(&mut self) {
        self.dry.clear();
    }
}

struct DgramEgress {
    socket: Arc<Inlet>,
    payer: Payer,
    sending: Mutex<Sending>,
}

struct Sending {
    counters: Shared<EgressCounters>,
    /// [`STRIDE`] bytes for each of [`AT_ONCE`] frames.
    bytes: Box<[u8]>,
}

impl Egress for DgramEgress {
    fn deliver(&self, batch: &Batch<'_>, list: &[FrameIdx], limits: Limits) -> Delivered {
        let mut sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let mut finished = 0;
        for list in list.chunks(AT_ONCE) {
            let socket = self.socket.as_fd();
            let sent = self.payer.call_of_batch(|| sending.send(socket, batch, list, limits));
            finished += sent;
            if sent < list.len() {
                break;
            }
        }
        Delivered { finished }
    }

    fn settle(&self, _now: Nanos) -> Effects {
        Effects::default()
    }

    fn count_software(&self, done: Software) {
        let sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        sending.counters.add_software(done);
    }
}

impl Sending {
    /// Sends at most [`AT_ONCE`] frames; returns how many are finished.
    fn send(
        &mut self,
        to: BorrowedFd<'_>,
        batch: &Batch<'_>,
        list: &[FrameIdx],
        limits: Limits,
    ) -> usize {
        // The length of each frame; `None` for frames that are too long.
        let mut lens = [None; AT_ONCE];
        let buffers = self.bytes.chunks_exact_mut(STRIDE);
        for ((i, buffer), len) in list.iter().zip(buffers).zip(&mut lens) {
            let bytes = batch.frame(*i).len();
            if bytes <= (limits.max_frame as usize).min(MAX_FRAME) {
                batch.copy_frame(*i, Bytes::of(&mut buffer[..bytes]));
                *len = Some(bytes);
            }
        }
        let lens = &lens[..list.len()];
        let mut at = 0;
        while at < lens.len() {
            let run = lens[at..].iter().map_while(|len| *len).count();
            if run == 0 {
                self.counters.drop_frames(DropReason::TooLong, 1);
                at += 1;
                continue;
            }
            match send(to, &self.bytes[at * STRIDE..], &lens[at..at + run]) {
                Ok(sent) => {
                    self.counters.frames.add(sent as u64);
                    let bytes: usize = lens[at..at + sent].iter().flatten().sum();
                    self.counters.bytes.add(bytes as u64);
                    at += sent;
                }
                Err(Errno::INTR) => (),
                Err(Errno::AGAIN | Errno::NOBUFS) if limits.lossless => return at,
                Err(Errno::AGAIN | Errno::NOBUFS) => {
                    self.counters.drop_frames(DropReason::Full, run as u64);
                    at += run;
                }
                // The error of this datagram, or of an earlier one to an absent peer.
                Err(error) => {
                    self.counters.drop_frames(reason(error), 1);
                    at += 1;
                }
            }
        }
        at
    }
}

fn reason(error: Errno) -> DropReason {
    match error {
        Errno::MSGSIZE => DropReason::TooLong,
        Errno::CONNREFUSED
        | Errno::CONNRESET
        | Errno::NOTCONN
        | Errno::DESTADDRREQ
        | Errno::NOENT
        | Errno::PIPE
        | Errno::HOSTUNREACH
        | Errno::NETUNREACH => DropReason::Down,
        _ => DropReason::Io,
    }
}

/// An empty message header.
fn no_message() -> libc::mmsghdr {
    // SAFETY: all fields of the structure may be zero.
    unsafe { std::mem::zeroed() }
}

/// Receives datagrams into buffers of [`STRIDE`] bytes. Returns their lengths; that of a truncated
/// one is its full length.
fn receive(
    from: BorrowedFd<'_>,
    buffers: &mut [u8],
    lens: &mut [usize; AT_ONCE],
) -> rustix::io::Result<usize> {
    let mut parts = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; AT_ONCE];
    let mut messages = [no_message(); AT_ONCE];
    let mut count = 0;
    for (buffer, (part, message)) in
        buffers.chunks_exact_mut(STRIDE).zip(parts.iter_mut().zip(&mut messages))
    {
        *part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: STRIDE };
        (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (part, 1);
        count += 1;
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    // SAFETY: `count` headers, each with one part, which is a buffer of its own of STRIDE bytes;
    // all of it lives during the call.
    let got = unsafe {
        libc::recvmmsg(from.as_raw_fd(), messages.as_mut_ptr(), count, flags, std::ptr::null_mut())
    };
    let got = usize::try_from(got).map_err(|_| last_error())?;
    for (len, message) in lens.iter_mut().zip(&messages[..got]) {
        *len = message.msg_len as usize;
    }
    Ok(got)
}

/// As [`receive`], for sockets that can carry descriptors, which are discarded. Stops at the first
/// datagram with descriptors.
#[cold]
fn receive_by_one(
    from: &Inlet,
    buffers: &mut [u8],
    lens: &mut [usize; AT_ONCE],
) -> rustix::io::Result<usize> {
    let mut got = 0;
    for (buffer, len) in buffers.chunks_exact_mut(STRIDE).zip(lens) {
        match from.recv(buffer, RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
            Ok(bytes) => *len = bytes,
            // The datagram with this error is lost. Other ports get their turn before the next one.
            Err(Errno::BADMSG) => return Ok(got),
            Err(error) if got == 0 => return Err(error),
            Err(_) => break,
        }
        got += 1;
    }
    Ok(got)
}

/// Sends datagrams of these lengths that lie [`STRIDE`] bytes apart. Returns how many were sent, at
/// least one.
fn send(to: BorrowedFd<'_>, bytes: &[u8], lens: &[Option<usize>]) -> rustix::io::Result<usize> {
    let mut parts = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; AT_ONCE];
    let mut messages = [no_message(); AT_ONCE];
    let mut count = 0;
    let buffers = bytes.chunks(STRIDE).zip(lens.iter().flatten());
    for ((buffer, len), (part, message)) in buffers.zip(parts.iter_mut().zip(&mut messages)) {
        let buffer = &buffer[..*len];
        *part = libc::iovec { iov_base: buffer.as_ptr().cast_mut().cast(), iov_len: buffer.len() };
        (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (part, 1);
        count += 1;
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: `count` headers, each with one part, which lies in `bytes` and is only read; all of
    // it lives during the call.
    let sent = unsafe { libc::sendmmsg(to.as_raw_fd(), messages.as_mut_ptr(), count, flags) };
    usize::try_from(sent).map_err(|_| last_error())
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
