//! The socket to a front end, as whoever's turn it is reads it.
//!
//! Messages are looked at in the socket and taken out of it when they are carried out: a successor of
//! this process finds those that were not. How far its predecessor was stands in state memory, in one
//! word. Two doubts are left: about one that died while it took messages out, which the next message
//! settles, because messages have numbers; and about one that died while it sent a reply. Then, if
//! nothing more was said, the front end is told that the access failed: a front end that has its reply
//! passes over that, where it would take a second reply with a body for the end of the protocol.
//! Replies to what we ask for ourselves ([`super::courier`]) come in between, and say nothing of that.
//!
//! Whose a descriptor is: the kernel hands the bytes out up to the end of the first part that carries
//! descriptors, and not beyond. They belong to the last message that it shows, which is all there.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use jail::strangers::{self, Descriptor, closer};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use shmem::sync::AtomicU64;
use shmem::{Shareable, Shared};

use super::message::{HEADER, Header, MAX_FDS, MAX_MESSAGE, ProtocolError};
use crate::user::Payer;

/// Bytes that are looked at together: more than a message has.
const BUFFER: usize = 8192;
const _: () = assert!(MAX_MESSAGE < BUFFER);

/// More messages than a socket has room for.
const ANSWERS: usize = 1 << 14;

/// In [`Progress::done`]: how many bytes; they are being taken out of the socket; the reply to the last
/// of the messages is being sent; its number and command.
const BYTES: u64 = 0xffff;
const TAKING: u64 = 1 << 16;
const SENDING: u64 = 1 << 17;
const NUMBER: u32 = 32;
const COMMAND: u32 = 48;

/// How far messages are carried out, in state memory.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Progress {
    /// Bytes at the socket's front that are carried out, and what is being done about them.
    ///
    /// # Protocol: `Progress.done`, `first`, `requests` (vfio-user, in state memory)
    /// - Writer: the thread that carries messages out: worker or control thread
    /// - Reader: a successor, as it starts
    /// - Ordering: release, before the reply and before the bytes are taken / relaxed: no two
    ///   processes at a time
    /// - Partner: the socket: what is in it
    /// - Without it: a register access is carried out again, or its reply is missing or sent twice,
    ///   after a death
    /// - Shown by: `vfio_user` test `killed_data_processes_...`
    done: AtomicU64,
    /// The number, command and size of the first message that is carried out.
    first: AtomicU64,
    /// Messages that the control thread has carried out.
    requests: AtomicU64,
    /// The number of the last message that we sent of our own accord.
    asked: AtomicU64,
}

// SAFETY: atomic words only.
unsafe impl Shareable for Progress {}

/// A socket, and what was seen in it.
#[derive(Debug)]
pub struct Line {
    socket: Arc<Descriptor>,
    payer: Payer,
    progress: Shared<Progress>,
    bytes: Box<[u8; BUFFER]>,
    /// Bytes of it that are in the socket.
    seen: usize,
    /// Bytes of those that are carried out.
    done: usize,
    /// Descriptors came with the last of them.
    has_fds: bool,
    /// Some are taken out with them, whosever they are.
    brought: bool,
    /// Those that were got.
    fds: Vec<Descriptor>,
    /// What is said all the while of a reply that is to be sent.
    doubt: u64,
}

/// What is in front.
#[derive(Clone, Copy, Debug)]
pub struct Front<'a> {
    /// Its header.
    pub header: Header,
    /// What follows it.
    pub body: &'a [u8],
    /// Descriptors came with it.
    pub has_fds: bool,
}

impl Line {
    /// Goes on where a predecessor was, if there was one.
    ///
    /// # Errors
    /// [`ProtocolError`] when the socket cannot be read.
    pub fn new(
        socket: Arc<Descriptor>,
        progress: Shared<Progress>,
        payer: &Payer,
    ) -> Result<Self, ProtocolError> {
        let mut line = Self { payer: payer.clone(), ..Self::ended(socket, progress) };
        let done = line.progress.done.load(Ordering::Relaxed);
        let first = line.progress.first.load(Ordering::Relaxed);
        if done != 0 && (done & TAKING == 0 || line.look()? && line.word(0) == first) {
            line.seen = BUFFER;
            line.done = ((done & BYTES) as usize).min(BUFFER);
            line.take()?;
        }
        line.doubt = if done & SENDING != 0 { done & !(BYTES | TAKING) } else { 0 };
        if done & SENDING != 0 && !line.passes_over_answers()? {
            let (id, command) = ((done >> NUMBER) as u16, (done >> COMMAND) as u16);
            let header = Header { id, command, size: HEADER, reply: true, answers: None };
            let reply = super::message::reply(header, Err(Errno::IO));
            line.send(&reply, None, line.doubt)?;
        }
        line.doubt = 0;
        line.progress.done.store(0, Ordering::Relaxed);
        Ok(line)
    }

    /// Takes replies out that a predecessor asked for; true if something else is there.
    fn passes_over_answers(&mut self) -> Result<bool, ProtocolError> {
        for _ in 0..ANSWERS {
            if !self.look()? {
                return Ok(false);
            }
            match self.front()?.map(|front| front.header) {
                Some(header) if header.answers.is_some() => self.did(header, &[])?,
                _ => return Ok(true),
            }
        }
        Ok(true)
    }

    /// The first eight bytes of the message at `at`: its number, command and size.
    fn word(&self, at: usize) -> u64 {
        self.bytes[at..].first_chunk().map_or(0, |word| u64::from_ne_bytes(*word))
    }

    /// One of a session that is over.
    #[must_use]
    pub fn ended(socket: Arc<Descriptor>, progress: Shared<Progress>) -> Self {
        Self {
            socket,
            payer: Payer::default(),
            progress,
            bytes: Box::new([0; BUFFER]),
            seen: 0,
            done: 0,
            has_fds: false,
            brought: true,
            fds: Vec::new(),
            doubt: 0,
        }
    }

    /// Looks at what is there, without waiting; false if nothing is. Descriptors stay in the socket: for
    /// threads that serve others.
    ///
    /// # Errors
    /// [`ProtocolError`]: the session is over.
    pub fn look(&mut self) -> Result<bool, ProtocolError> {
        self.take()?;
        self.fds.clear();
        let mut parts = [IoSliceMut::new(&mut self.bytes[..])];
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        let no_room = &mut RecvAncillaryBuffer::default();
        match rustix::net::recvmsg(&*self.socket, &mut parts, no_room, flags) {
            Ok(got) => self.saw(got.bytes, got.flags.contains(ReturnFlags::CTRUNC)).map(|()| true),
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// As [`look`](Self::look), and gets the descriptors.
    ///
    /// # Errors
    /// As there.
    pub fn look_closely(&mut self) -> Result<bool, ProtocolError> {
        self.take()?;
        self.fds.clear();
        let (flags, uid) = (RecvFlags::DONTWAIT | RecvFlags::PEEK, self.socket.uid());
        closer().admits(uid)?;
        let got = match strangers::receive(&*self.socket, uid, &mut self.bytes[..], flags) {
            Ok(got) => got,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        if got.truncated || got.descriptors.len() > MAX_FDS {
            return Err(ProtocolError::Descriptors { command: 0, got: got.descriptors.len() });
        }
        self.fds = got.descriptors;
        self.saw(got.bytes, !self.fds.is_empty()).map(|()| true)
    }

    /// So many bytes were seen, the last of them with descriptors.
    fn saw(&mut self, bytes: usize, with_fds: bool) -> Result<(), ProtocolError> {
        if bytes == 0 {
            return Err(ProtocolError::Closed);
        }
        (self.seen, self.brought) = (bytes, with_fds);
        // They may belong to what is not shown.
        self.has_fds = with_fds && bytes < BUFFER;
        Ok(())
    }

    /// The next message of those that were looked at, if it is all there.
    ///
    /// # Errors
    /// [`ProtocolError`]: the session is over.
    pub fn front(&self) -> Result<Option<Front<'_>>, ProtocolError> {
        let bytes = self.bytes.get(self.done..self.seen).unwrap_or_default();
        let header = match bytes.split_first_chunk::<HEADER>() {
            Some((header, _)) => Header::of(header)?,
            None => return self.wait_for_more(bytes),
        };
        let Some(body) = bytes.get(HEADER..header.size) else { return self.wait_for_more(bytes) };
        let has_fds = self.has_fds && bytes.len() == header.size;
        Ok(Some(Front { header, body, has_fds }))
    }

    fn wait_for_more(&self, bytes: &[u8]) -> Result<Option<Front<'_>>, ProtocolError> {
        // The kernel would not show more than the piece that came with them.
        let in_pieces = !bytes.is_empty() && self.has_fds;
        if in_pieces { Err(ProtocolError::Pieces) } else { Ok(None) }
    }

    /// The descriptors that were got with the last message.
    pub fn take_fds(&mut self) -> Vec<Descriptor> {
        std::mem::take(&mut self.fds)
    }

    /// The message in front is carried out; answers it, if it is to be.
    ///
    /// # Errors
    /// [`ProtocolError`] when the front end reads nothing.
    pub fn did(&mut self, header: Header, reply: &[u8]) -> Result<(), ProtocolError> {
        self.did_with(header, reply, None)
    }

    fn did_with(
        &mut self,
        header: Header,
        reply: &[u8],
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(), ProtocolError> {
        if self.done == 0 {
            self.progress.first.store(self.word(0), Ordering::Relaxed);
        }
        self.done = (self.done + header.size).min(self.seen);
        let done = self.done as u64;
        if reply.is_empty() {
            self.progress.done.store(done | self.doubt, Ordering::Release);
            return Ok(());
        }
        let whose = u64::from(header.id) << NUMBER | u64::from(header.command) << COMMAND;
        self.send(reply, fd, done | SENDING | whose)?;
        self.progress.done.store(done, Ordering::Release);
        Ok(())
    }

    /// As [`did`](Self::did), for one that the control thread carried out.
    ///
    /// # Errors
    /// As there.
    pub fn did_request(
        &mut self,
        header: Header,
        reply: &[u8],
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(), ProtocolError> {
        // A successor that finds the one without the other carries it out twice at worst.
        self.progress.requests.store(self.requests() + 1, Ordering::Relaxed);
        self.did_with(header, reply, fd)
    }

    /// Messages that the control thread has carried out.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.progress.requests.load(Ordering::Relaxed)
    }

    /// Sends a message of our own; false if there is no room for it now.
    ///
    /// # Errors
    /// [`ProtocolError`]: the session is over.
    pub fn say(&self, message: &[u8]) -> Result<bool, ProtocolError> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let number = message.first_chunk().map_or(0, |id| u16::from_ne_bytes(*id));
        self.progress.asked.store(number.into(), Ordering::Relaxed);
        match self.payer.call(|| rustix::net::send(&*self.socket, message, flags)) {
            Ok(sent) if sent == message.len() => Ok(true),
            Ok(_) => Err(ProtocolError::Unread),
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The number of the last of them.
    #[must_use]
    pub fn asked(&self) -> u16 {
        self.progress.asked.load(Ordering::Relaxed) as u16
    }

    /// Takes what is carried out out of the socket.
    ///
    /// # Errors
    /// [`ProtocolError`] when it is not there any more.
    pub fn take(&mut self) -> Result<(), ProtocolError> {
        let mut left = std::mem::take(&mut self.done);
        self.seen = 0;
        if left == 0 {
            return Ok(());
        }
        self.progress.done.store(left as u64 | TAKING | self.doubt, Ordering::Release);
        while left > 0 {
            match self.take_out(left) {
                Ok(0) => return Err(ProtocolError::Closed),
                Ok(got) => left -= got.min(left),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.progress.done.store(self.doubt, Ordering::Relaxed);
        Ok(())
    }

    /// Takes bytes out, and the descriptors that come with them.
    fn take_out(&mut self, bytes: usize) -> Result<usize, Errno> {
        let (to, flags) = (&mut self.bytes[..bytes], RecvFlags::DONTWAIT);
        if self.brought {
            // Those that were got before are others, of the same files.
            return strangers::receive(&*self.socket, self.socket.uid(), to, flags)
                .map(|got| got.bytes);
        }
        self.payer.call(|| rustix::net::recv(&*self.socket, to, flags)).map(|(_, got)| got)
    }

    /// Sends a reply, all of it. That it is being sent is said with nothing between: a process that is killed there
    /// leaves a doubt.
    fn send(
        &self,
        bytes: &[u8],
        fd: Option<BorrowedFd<'_>>,
        sending: u64,
    ) -> Result<(), ProtocolError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let mark = || self.progress.done.store(sending, Ordering::Release);
        loop {
            let sent = if let Some(fd) = fd {
                let (parts, fds) = ([IoSlice::new(bytes)], [fd]);
                let mut control = SendAncillaryBuffer::new(&mut space);
                control.push(SendAncillaryMessage::ScmRights(&fds));
                mark();
                rustix::net::sendmsg(&*self.socket, &parts, &mut control, flags)
            } else {
                mark();
                self.payer.call(|| rustix::net::send(&*self.socket, bytes, flags))
            };
            return match sent {
                Ok(sent) if sent == bytes.len() => Ok(()),
                Ok(_) | Err(Errno::AGAIN | Errno::NOBUFS) => Err(ProtocolError::Unread),
                Err(Errno::INTR) => continue,
                Err(error) => Err(error.into()),
            };
        }
    }
}
