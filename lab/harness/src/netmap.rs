//! A program that uses netmap's interface, by the messages of the library.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use netmap::abi::{Register, ValeList, ValeNewif, mode, name_of, reqtype};
use netmap::wire::{Answer, Ask, kind};
use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketType,
};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

/// A user's program, with one descriptor.
pub struct Program {
    socket: OwnedFd,
    token: OwnedFd,
}

impl Program {
    /// Opens netmap's device as this thread's user; `dir` is the daemon's directory.
    ///
    /// # Errors
    /// The daemon's answer, or the kernel's.
    pub fn connect(dir: &Path) -> Result<Self, Errno> {
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
        let address = SocketAddrUnix::new(dir.join(netring::attach::SOCKET))?;
        rustix::net::connect(&socket, &address)?;
        let (answer, fds) = exchange(&socket, &Ask::new(kind::OPEN, 0), &[])?;
        status(&answer)?;
        let token = fds.into_iter().next().ok_or(Errno::PROTO)?;
        Ok(Self { socket, token })
    }

    /// Sends a request as it is, and with it a memory file.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn send(&self, ask: &Ask, memory: Option<BorrowedFd<'_>>) -> Result<Answer, Errno> {
        let fds: Vec<_> = [self.token.as_fd()].into_iter().chain(memory).collect();
        Ok(exchange(&self.socket, ask, &fds)?.0)
    }

    /// Carries out a request, and returns its body as it came back.
    ///
    /// # Errors
    /// The daemon's answer.
    pub fn ask<T: IntoBytes + FromBytes + Immutable>(
        &self,
        reqtype: u16,
        name: &str,
        body: &T,
    ) -> Result<T, Errno> {
        let answer = self.send(&ask(reqtype, name, body), None)?;
        status(&answer)?;
        T::read_from_prefix(&answer.body).map(|(body, _)| body).map_err(|_| Errno::PROTO)
    }

    /// Makes a persistent port in the region `mem_id` (0: one of its own).
    ///
    /// # Errors
    /// The daemon's answer.
    pub fn new_port(&self, name: &str, mem_id: u16) -> Result<ValeNewif, Errno> {
        let slots = ValeNewif { tx_slots: 2, rx_slots: 2, mem_id, ..ValeNewif::new_zeroed() };
        self.ask(reqtype::VALE_NEWIF, name, &slots)
    }

    /// Binds the descriptor to a port.
    ///
    /// # Errors
    /// The daemon's answer.
    pub fn register(&self, name: &str) -> Result<Register, Errno> {
        self.ask(reqtype::REGISTER, name, &all())
    }

    /// The names that `VALE_LIST` shows.
    #[must_use]
    pub fn list(&self) -> Vec<String> {
        let (mut at, mut names) = (ValeList::new_zeroed(), Vec::new());
        while let Ok(answer) = self.send(&ask(reqtype::VALE_LIST, "", &at), None) {
            let body = ValeList::read_from_prefix(&answer.body);
            let (true, Ok((next, _))) = (status(&answer).is_ok(), body) else { break };
            names.push(netmap::abi::text(&answer.name).unwrap_or_default().to_owned());
            at = next;
            at.port += 1;
        }
        names
    }
}

/// A request for all rings of a port.
#[must_use]
pub fn all() -> Register {
    Register { mode: mode::ALL_NIC, ..Register::default() }
}

/// A request of this type.
#[must_use]
pub fn ask<T: IntoBytes + Immutable>(reqtype: u16, name: &str, body: &T) -> Ask {
    let mut ask = Ask::new(kind::CONTROL, reqtype);
    ask.name = name_of(name);
    ask.body[..size_of::<T>()].copy_from_slice(body.as_bytes());
    ask
}

/// What an answer says.
///
/// # Errors
/// The request was refused.
pub fn status(answer: &Answer) -> Result<(), Errno> {
    match answer.status {
        0 => Ok(()),
        errno => Err(Errno::from_raw_os_error(errno)),
    }
}

fn exchange(
    socket: &OwnedFd,
    ask: &Ask,
    fds: &[BorrowedFd<'_>],
) -> Result<(Answer, Vec<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
    let bytes = [IoSlice::new(ask.as_bytes())];
    rustix::net::sendmsg(socket, &bytes, &mut control, SendFlags::NOSIGNAL)?;
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(16))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; size_of::<Answer>()];
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let got = rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fds = rights.flatten().collect();
    let whole = got.bytes == size_of::<Answer>();
    let answer = Answer::read_from_bytes(&bytes).ok().filter(|_| whole);
    Ok((answer.ok_or(Errno::CONNRESET)?, fds))
}
