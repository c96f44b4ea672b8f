//! Messages from a socket.

use jail::strangers::{self, Descriptor, Kind, closer, kind};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::{
    Fields, HEADER, MAX_PAYLOAD, MAX_REGIONS, Message, NO_DESCRIPTOR, ProtocolError, code, decode,
};

/// Whether a message carries descriptors; `None` if it may or may not.
fn has_descriptors(code: u32, payload: &[u8]) -> Option<bool> {
    let first = Fields(payload).u32();
    Some(match code {
        code::SET_MEM_TABLE => first > 0,
        code::SET_VRING_KICK | code::SET_VRING_CALL | code::SET_VRING_ERR => {
            u64::from(first) & NO_DESCRIPTOR == 0
        }
        code::SET_LOG_BASE
        | code::ADD_MEM_REG
        | code::SET_BACKEND_REQ_FD
        | code::SET_INFLIGHT_FD => true,
        code::SET_LOG_FD | code::REM_MEM_REG => return None,
        _ => false,
    })
}

/// Receives messages from a socket. A complete message stays in the socket until it is
/// [done](Self::done). If this process is killed in the meantime, its successor finds it there.
#[derive(Debug)]
pub struct Receiver {
    bytes: [u8; HEADER + MAX_PAYLOAD],
    /// For a message that comes in pieces: the bytes taken from the socket so far.
    have: usize,
    fds: Vec<Descriptor>,
    /// Bytes and descriptors of the message that was returned and is still in the socket.
    given: (usize, usize),
}

impl Default for Receiver {
    fn default() -> Self {
        Self { bytes: [0; HEADER + MAX_PAYLOAD], have: 0, fds: Vec::new(), given: (0, 0) }
    }
}

impl Receiver {
    /// Returns the next message; `None` if it is not complete yet. Never waits. It also marks the
    /// previous message as [done](Self::done).
    ///
    /// # Errors
    /// [`ProtocolError`] when the session cannot go on.
    pub fn receive(&mut self, socket: &Descriptor) -> Result<Option<Message>, ProtocolError> {
        closer().admits(socket.uid())?;
        self.done(socket)?;
        let received = if self.have == 0 { self.peek(socket)? } else { None };
        if received.is_some() { Ok(received) } else { self.receive_pieces(socket) }
    }

    /// Takes the message that was returned last from the socket, because it is carried out.
    ///
    /// # Errors
    /// [`ProtocolError`] when the socket failed.
    pub fn done(&mut self, socket: &Descriptor) -> Result<(), ProtocolError> {
        let (bytes, fds) = std::mem::take(&mut self.given);
        while self.have < bytes {
            match self.read(socket, bytes, RecvFlags::empty()) {
                Ok(got) => self.have += got,
                Err(ProtocolError::Io(Errno::INTR)) => {}
                Err(error) => return Err(error),
            }
        }
        if bytes > 0 {
            self.have = 0;
            let got = std::mem::take(&mut self.fds).len();
            if got != fds {
                return Err(ProtocolError::Descriptors { code: self.word(0), got });
            }
        }
        Ok(())
    }

    /// The next message, if the socket holds all of it.
    fn peek(&mut self, socket: &Descriptor) -> Result<Option<Message>, ProtocolError> {
        let (flags, header) = (RecvFlags::DONTWAIT | RecvFlags::PEEK, &mut self.bytes[..HEADER]);
        let peeked = rustix::net::recv(socket, header, flags);
        if !matches!(peeked, Ok((_, HEADER))) {
            return Ok(None);
        }
        let want = HEADER + self.size()?;
        let whole = self.read(socket, want, RecvFlags::PEEK);
        let mut fds = std::mem::take(&mut self.fds);
        if whole? < want {
            return Ok(None);
        }
        // The kernel may show the next message's descriptors with a message that has none. Only
        // taking the message shows which one they belong to.
        match has_descriptors(self.word(0), &self.bytes[HEADER..want]) {
            Some(true) => {}
            Some(false) => fds.clear(),
            None => return Ok(None),
        }
        self.given = (want, fds.len());
        decode(self.word(0), self.word(4), &self.bytes[HEADER..want], fds).map(Some)
    }

    fn receive_pieces(&mut self, socket: &Descriptor) -> Result<Option<Message>, ProtocolError> {
        loop {
            let want = HEADER + if self.have < HEADER { 0 } else { self.size()? };
            if self.have >= HEADER && self.have == want {
                self.have = 0;
                let fds = std::mem::take(&mut self.fds);
                let payload = &self.bytes[HEADER..want];
                return decode(self.word(0), self.word(4), payload, fds).map(Some);
            }
            match self.read(socket, want, RecvFlags::empty()) {
                Ok(got) => self.have += got,
                Err(ProtocolError::Io(Errno::AGAIN)) => return self.wait_for_more(),
                Err(ProtocolError::Io(Errno::INTR)) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Keeps the descriptors that have come so far. One of a kind that could block the exit of this
    /// process ends the session.
    fn wait_for_more(&mut self) -> Result<Option<Message>, ProtocolError> {
        if self.fds.iter().any(|fd| kind(fd) == Kind::Other) {
            let got = std::mem::take(&mut self.fds).len();
            return Err(ProtocolError::Descriptors { code: self.word(0), got });
        }
        Ok(None)
    }

    fn word(&self, at: usize) -> u32 {
        Fields(&self.bytes[at..]).u32()
    }

    /// Bytes of the payload, as the header announces.
    fn size(&self) -> Result<usize, ProtocolError> {
        let size = self.word(8) as usize;
        let too_long = ProtocolError::Size { code: self.word(0), size };
        if size <= MAX_PAYLOAD { Ok(size) } else { Err(too_long) }
    }

    /// Reads up to `want` bytes of a message, and its descriptors. Returns the number of bytes
    /// read.
    fn read(
        &mut self,
        socket: &Descriptor,
        want: usize,
        how: RecvFlags,
    ) -> Result<usize, ProtocolError> {
        let (to, flags) = (&mut self.bytes[self.have..want], RecvFlags::DONTWAIT | how);
        let got = strangers::receive(socket, socket.uid(), to, flags)?;
        self.fds.extend(got.descriptors);
        let got_fds = self.fds.len();
        if got.truncated || got_fds > MAX_REGIONS {
            return Err(ProtocolError::Descriptors { code: self.word(0), got: got_fds });
        }
        if got.bytes == 0 { Err(ProtocolError::Closed) } else { Ok(got.bytes) }
    }
}
