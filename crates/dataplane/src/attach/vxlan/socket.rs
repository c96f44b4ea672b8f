//! The UDP sockets of a tunnel: many datagrams in one call, and trains of them by `UDP_SEGMENT` and
//! `UDP_GRO`.
//!
//! The supervisor makes the sockets, binds them and sets their options. None is connected: a
//! connected socket would report one peer's refusal (ICMP) instead of sending to another peer.
#![allow(unsafe_code, reason = "rustix has neither recvmmsg nor sendmmsg")]

use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

use frame::Ecn;
use rustix::io::Errno;

/// The maximum number of messages in one call.
pub(super) const AT_ONCE: usize = 64;
/// Bytes of a message's control part: `UDP_SEGMENT` or `UDP_GRO`, and a type of service.
const CONTROL: usize = 64;
/// The maximum number of messages that a call receives. Each may be a train of 64 KiB.
const MESSAGES: usize = 32;
/// Bytes of the longest datagram or train.
const LONGEST: usize = u16::MAX as usize;
/// Distance between the buffers: not a power of two, so that their first lines fall into different
/// cache sets.
const STRIDE: usize = (LONGEST + 1) + 13 * 64;

/// Control messages, aligned for the kernel.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL]);

/// The address of a peer, in the kernel's format.
pub(super) enum Address {
    V4(libc::sockaddr_in),
    V6(libc::sockaddr_in6),
}

impl Address {
    pub fn of(address: SocketAddr) -> Self {
        match address {
            SocketAddr::V4(v4) => Self::V4(libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            }),
            SocketAddr::V6(v6) => Self::V6(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            }),
        }
    }

    fn as_ptr(&self) -> (*const libc::c_void, usize) {
        match self {
            Self::V4(v4) => (std::ptr::from_ref(v4).cast(), size_of_val(v4)),
            Self::V6(v6) => (std::ptr::from_ref(v6).cast(), size_of_val(v6)),
        }
    }

    const fn is_v6(&self) -> bool {
        matches!(self, Self::V6(_))
    }
}

/// Messages to send with one call.
pub(super) struct Post<'a> {
    messages: [libc::mmsghdr; AT_ONCE],
    controls: [Control; AT_ONCE],
    count: usize,
    /// Borrows the parts of the messages.
    parts: std::marker::PhantomData<&'a [u8]>,
}

impl<'a> Post<'a> {
    pub fn new() -> Self {
        // SAFETY: a message header may be all zero: it names nothing.
        let messages = unsafe { std::mem::zeroed() };
        let controls = [Control([0; CONTROL]); AT_ONCE];
        Self { messages, controls, count: 0, parts: std::marker::PhantomData }
    }

    /// Adds a message of these parts. With `segment`, it is a train of datagrams of this many
    /// bytes, the last of which may be shorter. Returns false if there is no room.
    pub fn push(
        &mut self,
        to: &'a Address,
        parts: &'a [IoSlice<'a>],
        segment: Option<u16>,
        ecn: Ecn,
    ) -> bool {
        let Some(message) = self.messages.get_mut(self.count) else { return false };
        let header = &mut message.msg_hdr;
        let (name, len) = to.as_ptr();
        (header.msg_name, header.msg_namelen) = (name.cast_mut(), len as libc::socklen_t);
        // An IoSlice has the layout of an iovec.
        header.msg_iov = parts.as_ptr().cast_mut().cast();
        header.msg_iovlen = parts.len() as _;
        let control = &mut self.controls[self.count].0;
        let mut used = 0;
        if let Some(segment) = segment {
            let bytes = segment.to_ne_bytes();
            put(control, &mut used, (libc::SOL_UDP, libc::UDP_SEGMENT), &bytes);
        }
        if ecn != Ecn::NotEct {
            let kind = match to.is_v6() {
                true => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
                false => (libc::IPPROTO_IP, libc::IP_TOS),
            };
            put(control, &mut used, kind, &i32::from(ecn.outer()).to_ne_bytes());
        }
        (header.msg_control, header.msg_controllen) = match used {
            0 => (std::ptr::null_mut(), 0),
            used => (control.as_mut_ptr().cast(), used as _),
        };
        self.count += 1;
        true
    }

    /// Sends the messages from number `from` on. Returns how many were sent, at least one.
    pub fn send(&mut self, socket: BorrowedFd<'_>, from: usize) -> rustix::io::Result<usize> {
        let messages = &mut self.messages[from..self.count];
        // The array may have moved when messages were added, so the pointers are set here.
        for (message, control) in messages.iter_mut().zip(&mut self.controls[from..]) {
            if !message.msg_hdr.msg_control.is_null() {
                message.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
            }
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: each header names an address, parts and a control part that live during the call:
        // the first two are borrowed for 'a, the third lies in `self`. The kernel only reads them.
        let sent = unsafe {
            let count = messages.len() as u32;
            libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), count, flags)
        };
        usize::try_from(sent).map_err(|_| last_error())
    }
}

/// Appends a control message (`CMSG_LEN`, `CMSG_SPACE`).
fn put(
    control: &mut [u8; CONTROL],
    used: &mut usize,
    (level, kind): (libc::c_int, libc::c_int),
    data: &[u8],
) {
    const HEADER: usize = size_of::<libc::cmsghdr>();
    let Some(room) = control.get_mut(*used..) else { return };
    let len = HEADER + data.len();
    let space = HEADER + data.len().next_multiple_of(size_of::<usize>());
    if room.len() < space {
        return;
    }
    room[..space].fill(0);
    room[..size_of::<usize>()].copy_from_slice(&len.to_ne_bytes());
    room[8..12].copy_from_slice(&level.to_ne_bytes());
    room[12..16].copy_from_slice(&kind.to_ne_bytes());
    room[HEADER..len].copy_from_slice(data);
    *used += space;
}

const _: () = assert!(size_of::<libc::cmsghdr>() == 16, "as `put` and `controls_of` lay it out");

/// The content of one message: a datagram, or several of one flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived {
    /// The address that the message came from.
    pub from: IpAddr,
    /// Bytes.
    pub len: usize,
    /// Bytes of each of its datagrams except the last.
    pub segment: usize,
    /// The congestion mark (ECN) of the outer header.
    pub ecn: Ecn,
    /// The message was truncated, because it did not fit the buffer.
    pub cut_off: bool,
}

/// A range of a message in an inbox.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Part {
    /// The message.
    pub message: usize,
    /// Where the range begins in the message.
    pub at: usize,
    /// How many bytes the range has.
    pub len: usize,
}

/// Buffers for messages, with their headers, allocated once.
pub(super) struct Inbox {
    bytes: Box<[u8]>,
    messages: Box<[libc::mmsghdr]>,
    parts: Box<[libc::iovec]>,
    names: Box<[libc::sockaddr_in6]>,
    controls: Box<[Control]>,
    /// The number of messages that the last call received.
    count: usize,
}

// SAFETY: the pointers in the value point into its own boxes.
unsafe impl Send for Inbox {}

impl Inbox {
    pub fn new() -> Self {
        let null = std::ptr::null_mut();
        // SAFETY: a header and an address of zeros are valid ones.
        let (message, name): (libc::mmsghdr, libc::sockaddr_in6) = unsafe { std::mem::zeroed() };
        Self {
            bytes: vec![0; MESSAGES * STRIDE].into(),
            messages: vec![message; MESSAGES].into(),
            parts: vec![libc::iovec { iov_base: null, iov_len: 0 }; MESSAGES].into(),
            names: vec![name; MESSAGES].into(),
            controls: vec![Control([0; CONTROL]); MESSAGES].into(),
            count: 0,
        }
    }

    /// Receives messages in place of the previous ones; returns the number of messages.
    ///
    /// # Errors
    /// `AGAIN` if there are none.
    pub fn receive(&mut self, from: BorrowedFd<'_>) -> rustix::io::Result<usize> {
        self.count = 0;
        let buffers = self.bytes.chunks_exact_mut(STRIDE).zip(&mut self.parts);
        let names = self.names.iter_mut().zip(&mut self.controls);
        for ((message, (buffer, part)), (name, control)) in
            self.messages.iter_mut().zip(buffers).zip(names)
        {
            *part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: LONGEST };
            let header = &mut message.msg_hdr;
            (header.msg_iov, header.msg_iovlen) = (part, 1);
            header.msg_name = std::ptr::from_mut(name).cast();
            header.msg_namelen = size_of_val(name) as libc::socklen_t;
            header.msg_control = control.0.as_mut_ptr().cast();
            header.msg_controllen = CONTROL as _;
            header.msg_flags = 0;
        }
        let (messages, none) = (self.messages.as_mut_ptr(), std::ptr::null_mut());
        // SAFETY: each of the headers has a buffer, a place for an address and one for control
        // messages of its own, with their lengths; all of it lives during the call.
        let got = unsafe {
            let flags = libc::MSG_DONTWAIT;
            libc::recvmmsg(from.as_raw_fd(), messages, MESSAGES as u32, flags, none)
        };
        self.count = usize::try_from(got).map_err(|_| last_error())?.min(MESSAGES);
        Ok(self.count)
    }

    /// Describes message `number`.
    pub fn arrived(&self, number: usize) -> Option<Arrived> {
        let message = self.messages[..self.count].get(number)?;
        let len = (message.msg_len as usize).min(LONGEST);
        let header = &message.msg_hdr;
        let control = &self.controls[number].0[..CONTROL.min(header.msg_controllen)];
        let (segment, ecn) = controls_of(control);
        Some(Arrived {
            from: ip_of(&self.names[number]),
            len,
            segment: segment.filter(|segment| *segment > 0).unwrap_or_else(|| len.max(1)),
            ecn,
            cut_off: header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0,
        })
    }

    /// Bytes of a message.
    pub fn part(&self, part: Part) -> &[u8] {
        &self.bytes[part.message * STRIDE + part.at..][..part.len]
    }

    /// The same bytes, for writing.
    pub fn part_mut(&mut self, part: Part) -> &mut [u8] {
        &mut self.bytes[part.message * STRIDE + part.at..][..part.len]
    }
}

/// The address, of either family, that the kernel wrote.
fn ip_of(name: &libc::sockaddr_in6) -> IpAddr {
    if i32::from(name.sin6_family) == libc::AF_INET6 {
        return IpAddr::V6(Ipv6Addr::from(name.sin6_addr.s6_addr));
    }
    // A sockaddr_in has its address where a sockaddr_in6 has its flow information.
    IpAddr::V4(Ipv4Addr::from(name.sin6_flowinfo.to_ne_bytes()))
}

/// The datagram size of a train and the outer codepoint, from the control messages.
fn controls_of(mut control: &[u8]) -> (Option<usize>, Ecn) {
    const HEADER: usize = size_of::<libc::cmsghdr>();
    let (mut segment, mut ecn) = (None, Ecn::NotEct);
    while let Some((header, data)) = control.split_first_chunk::<HEADER>() {
        let word = |at: usize| {
            header[at..].first_chunk().map_or(0, |bytes: &[u8; 4]| i32::from_ne_bytes(*bytes))
        };
        let len = header.first_chunk().map_or(0, |bytes| usize::from_ne_bytes(*bytes));
        let Some(data) = len.checked_sub(HEADER).and_then(|len| data.get(..len)) else { break };
        let number = data.first_chunk().map(|bytes: &[u8; 4]| i32::from_ne_bytes(*bytes));
        match (word(8), word(12)) {
            (libc::SOL_UDP, libc::UDP_GRO) => segment = number.and_then(|n| n.try_into().ok()),
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                ecn = Ecn::of_tos(data.first().copied().unwrap_or(0));
            }
            _ => {}
        }
        control = control.get(len.next_multiple_of(size_of::<usize>())..).unwrap_or_default();
    }
    (segment, ecn)
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_messages_are_read_as_they_are_written() {
        let mut control = [0; CONTROL];
        let mut used = 0;
        put(&mut control, &mut used, (libc::SOL_UDP, libc::UDP_GRO), &1458i32.to_ne_bytes());
        put(&mut control, &mut used, (libc::IPPROTO_IP, libc::IP_TOS), &[3]);
        assert_eq!(controls_of(&control[..used]), (Some(1458), Ecn::Ce));
        // The two control messages fill the buffer exactly.
        put(&mut control, &mut used, (libc::SOL_UDP, libc::UDP_GRO), &[0; 8]);
        assert_eq!(used, 48);
    }

    #[test]
    fn control_messages_of_any_bytes_end() {
        for len in 0..=CONTROL {
            for byte in [0, 1, 15, 16, 17, 0x7f, 0xff] {
                let _ = controls_of(&vec![byte; len]);
            }
        }
    }
}
