//! The socket to a front end, as it is read by the thread that holds it.
//!
//! A message stays in the socket until it is carried out, so a successor of this process finds
//! those that were not. State memory holds one word that says how far a process was. Two cases are
//! ambiguous. A process may die while it takes messages out: the next message settles that, because
//! messages are numbered. A process may die while it sends a reply: if no further message is there,
//! the front end is told that the access failed. A front end that has its reply ignores that; a
//! second reply with a body would end its session. Replies to our own requests
//! ([`super::dma_proxy`]) arrive in between and do not settle anything.
//!
//! Which message owns a descriptor: the kernel returns bytes up to the end of the first part with
//! descriptors, and no further. The descriptors belong to the last message that it returns, which
//! is complete.

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
use turn::user::Payer;

use super::message::{HEADER, Header, MAX_FDS, MAX_MESSAGE, ProtocolError};

/// Bytes that are peeked at together: more than the longest message.
const BUFFER: usize = 8192;
const _: () = assert!(MAX_MESSAGE < BUFFER);

/// More messages than fit a socket.
const ANSWERS: usize = 1 << 14;

/// The fields of [`Progress::done`]: the number of bytes; whether they are being taken out of the
/// socket; whether the reply to the last of the messages is being sent; the number and command of
/// that message.
const BYTES: u64 = 0xffff;
const TAKING: u64 = 1 << 16;
const SENDING: u64 = 1 << 17;
const NUMBER: u32 = 32;
const COMMAND: u32 = 48;

/// How far messages are carried out, in state memory.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Progress {
    /// The bytes at the front of the socket that are carried out, and what is being done with them.
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
    /// The number of messages that the control thread has carried out.
    requests: AtomicU64,
    /// The number of our last request.
    asked: AtomicU64,
}

// SAFETY: the type consists of atomic words only.
unsafe impl Shareable for Progress {}

/// A socket, and the messages that were seen in it.
#[derive(Debug)]
pub struct Line {
    socket: Arc<Descriptor>,
    payer: Payer,
    progress: Shared<Progress>,
    bytes: Box<[u8; BUFFER]>,
    /// The number of seen bytes that are still in the socket.
    seen: usize,
    /// How many of the seen bytes are carried out.
    done: usize,
    /// The last of the seen bytes came with descriptors.
    has_fds: bool,
    /// The descriptors come out of the socket with these bytes, whichever message they belong to.
    brought: bool,
    /// The descriptors that were received.
    fds: Vec<Descriptor>,
    /// The word that says that a reply is being sent.
    doubt: u64,
}

/// The message at the front of the socket.
#[derive(Clone, Copy, Debug)]
pub struct Front<'a> {
    /// Its header.
    pub header: Header,
    /// The bytes after the header.
    pub body: &'a [u8],
    /// The message came with descriptors.
    pub has_fds: bool,
}

impl Line {
    /// Continues where a predecessor stopped, if there was one.
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
            let header =
                Header { id, command, size: HEADER, reply: true, answers: None, is_known: true };
            let reply = super::message::reply(header, Err(Errno::IO));
            line.send(&reply, None, line.doubt)?;
        }
        line.doubt = 0;
        line.progress.done.store(0, Ordering::Relaxed);
        Ok(line)
    }

    /// Removes replies to a predecessor's requests. Returns true if another message is there.
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

    /// A line whose session is over.
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

    /// Peeks at the socket without waiting; false if it is empty. Descriptors stay in the socket,
    /// so threads that serve others may call it.
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

    /// Like [`look`](Self::look), and receives the descriptors.
    ///
    /// # Errors
    /// As for [`look`](Self::look).
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

    /// Notes that this many bytes were seen, and whether the last of them came with descriptors.
    fn saw(&mut self, bytes: usize, with_fds: bool) -> Result<(), ProtocolError> {
        if bytes == 0 {
            return Err(ProtocolError::Closed);
        }
        (self.seen, self.brought) = (bytes, with_fds);
        // The descriptors may belong to bytes that did not fit the buffer.
        self.has_fds = with_fds && bytes < BUFFER;
        Ok(())
    }

    /// The next message that was seen, if it is complete.
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
        // The kernel returns at most the part with which the descriptors came.
        let in_pieces = !bytes.is_empty() && self.has_fds;
        if in_pieces { Err(ProtocolError::Pieces) } else { Ok(None) }
    }

    /// Takes the descriptors that came with the last message.
    pub fn take_fds(&mut self) -> Vec<Descriptor> {
        std::mem::take(&mut self.fds)
    }

    /// Notes that the message in front is carried out, and sends its reply if it wants one.
    ///
    /// # Errors
    /// [`ProtocolError`] when the front end does not read its replies.
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

    /// Like [`did`](Self::did), for a message that the control thread carried out.
    ///
    /// # Errors
    /// As for [`did`](Self::did).
    pub fn did_request(
        &mut self,
        header: Header,
        reply: &[u8],
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(), ProtocolError> {
        // A successor that finds only one of the two stores carries the message out again, at
        // worst.
        self.progress.requests.store(self.requests() + 1, Ordering::Relaxed);
        self.did_with(header, reply, fd)
    }

    /// The number of messages that the control thread has carried out.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.progress.requests.load(Ordering::Relaxed)
    }

    /// Sends a request of our own; false if the socket has no room.
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

    /// The number of our last request.
    #[must_use]
    pub fn asked(&self) -> u16 {
        self.progress.asked.load(Ordering::Relaxed) as u16
    }

    /// Takes the messages that are carried out from the socket.
    ///
    /// # Errors
    /// [`ProtocolError`] when they are not there any more.
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
            // These are duplicates of the descriptors that were received before.
            return strangers::receive(&*self.socket, self.socket.uid(), to, flags)
                .map(|got| got.bytes);
        }
        self.payer.call(|| rustix::net::recv(&*self.socket, to, flags)).map(|(_, got)| got)
    }

    /// Sends a reply completely. The word that says so is stored right before: a process that is
    /// killed in between leaves an ambiguous reply.
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
