//! Messages of the kernel's netlink protocol (netlink(7)).

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};

/// `NLM_F_REQUEST`.
pub const REQUEST: u16 = 1;
/// `NLM_F_ACK`.
pub const ACKNOWLEDGE: u16 = 4;
/// `NLM_F_ECHO`: the answer comes to who asked.
pub const ECHO: u16 = 8;
/// `NLM_F_DUMP`.
pub const DUMP: u16 = 0x300;
/// `NLM_F_CREATE | NLM_F_EXCL`: what is there already is an error.
pub const NEW: u16 = 0x600;
/// `NLMSG_ERROR`.
const ERROR: u16 = 2;
/// `NLMSG_DONE`: the end of a dump.
const DONE: u16 = 3;
/// Bytes of `struct nlmsghdr` and `struct rtattr`.
const HEADER: usize = 16;
const ATTRIBUTE: usize = 4;
/// Bytes that the kernel writes at once, at most.
const ANSWER: usize = 32 << 10;

/// Opens a netlink socket in this thread's namespace: of a protocol (`None` is `NETLINK_ROUTE`),
/// with multicast groups.
///
/// # Errors
/// The kernel's error.
pub fn open(protocol: Option<Protocol>, groups: u32) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

/// Sends a message of a type to the kernel.
///
/// # Errors
/// The kernel's error.
pub fn send(socket: &OwnedFd, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
    let len = (HEADER + body.len()) as u32;
    let mut message = len.to_ne_bytes().to_vec();
    message.extend(kind.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    // The message's number and the sender, which the kernel fills in.
    message.extend([0; 8]);
    message.extend(body);
    let kernel = SocketAddrNetlink::new(0, 0);
    rustix::net::sendto(socket, &message, SendFlags::empty(), &kernel)?;
    Ok(())
}

/// Receives what the kernel has answered: one datagram of messages.
///
/// # Errors
/// The kernel's error.
pub fn receive(socket: &OwnedFd) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; ANSWER];
    let (len, _) = rustix::net::recv(socket, &mut bytes[..], RecvFlags::DONTWAIT)?;
    bytes.truncate(len);
    Ok(bytes)
}

/// Sends a request that changes something, and waits for the kernel's word that it is done.
///
/// # Errors
/// The kernel's error.
pub fn change(socket: &OwnedFd, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
    send(socket, kind, REQUEST | ACKNOWLEDGE | flags, body)?;
    match Messages(&receive(socket)?).next() {
        Some(Message::Error(0)) => Ok(()),
        Some(Message::Error(error)) => Err(io::Error::from_raw_os_error(error)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// One message of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// A message of another type, with its body.
    Data(u16, &'a [u8]),
    /// The request failed with this error number.
    Error(i32),
    /// The dump is complete.
    Done,
}

/// The messages of a datagram. They end at the first malformed one.
#[derive(Clone, Debug)]
pub struct Messages<'a>(pub &'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let len = word(self.0, 0)? as usize;
        let body = self.0.get(HEADER..len)?;
        let kind = half(self.0, 4)?;
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(match kind {
            ERROR => Message::Error(word(body, 0)?.cast_signed().wrapping_neg()),
            DONE => Message::Done,
            kind => Message::Data(kind, body),
        })
    }
}

/// An attribute with its padding.
#[must_use]
pub fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let len = ATTRIBUTE + value.len();
    let mut bytes = (len as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(len.next_multiple_of(4), 0);
    bytes
}

/// The attributes of a message, or of an attribute: the kind and the value of each. They end at the
/// first malformed one.
#[derive(Clone, Debug)]
pub struct Attributes<'a>(pub &'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (len, kind) = (usize::from(half(self.0, 0)?), half(self.0, 2)?);
        let value = self.0.get(ATTRIBUTE..len)?;
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind & 0x3fff, value))
    }
}

/// The 32 bits at an offset.
#[must_use]
pub fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The 16 bits at an offset.
#[must_use]
pub fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}
