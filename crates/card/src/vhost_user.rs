//! The front end's side of vhost-user (QEMU, `docs/interop/vhost-user.rst`): a program that has
//! virtio queues served by another process, as QEMU has for its guests.

use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use abi::vhost_user::{HEADER, NEED_REPLY, PROTOCOL_FEATURES, REPLY, VERSION, code, protocol};
use abi::virtio::packed::WRAP;
use abi::virtio::{Features, QueueLayout};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

/// How long to wait for a reply.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of the longest payload of a reply that is read.
const MAX_REPLY: usize = 4096;
/// The addresses of memory in this process, as the protocol names them, begin here.
const USER: u64 = 1 << 40;

/// The reason why a session failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrontEndError {
    /// The socket failed, or no reply came in time.
    #[error("The vhost-user back end does not answer")]
    Io(#[from] std::io::Error),
    /// A feature is needed that the back end does not offer.
    #[error("The vhost-user back end lacks features {0:?}")]
    Lacks(Features),
    /// A protocol feature is needed that the back end does not offer.
    #[error("The vhost-user back end acknowledges no requests, or has no configuration space")]
    Protocol,
    /// The back end refused a request.
    #[error("The vhost-user back end refused request {0}")]
    Refused(u32),
    /// A reply is not that of the request.
    #[error("The reply of the vhost-user back end is malformed")]
    Malformed,
}

/// The eventfds of a queue.
#[derive(Debug)]
pub struct Bells {
    /// Wakes the device.
    pub kick: OwnedFd,
    /// Wakes the driver.
    pub call: OwnedFd,
}

/// A session with a back end.
#[derive(Debug)]
pub struct FrontEnd {
    socket: UnixStream,
    features: Features,
}

impl FrontEnd {
    /// Connects to a back end, and negotiates: all of `needed`, and of `wished` what there is.
    ///
    /// # Errors
    /// [`FrontEndError`].
    pub fn connect(path: &Path, needed: Features, wished: Features) -> Result<Self, FrontEndError> {
        Self::on(UnixStream::connect(path)?, needed, wished)
    }

    /// Like [`connect`](Self::connect), on a connected socket.
    ///
    /// # Errors
    /// [`FrontEndError`].
    pub fn on(
        socket: UnixStream,
        needed: Features,
        wished: Features,
    ) -> Result<Self, FrontEndError> {
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        let mut this = Self { socket, features: Features::empty() };
        let bits = this.number(code::GET_FEATURES)?;
        let offered = Features::from_bits_truncate(bits);
        if !offered.contains(needed) {
            return Err(FrontEndError::Lacks(needed - offered));
        }
        let wanted = protocol::REPLY_ACK | protocol::CONFIG;
        if bits & PROTOCOL_FEATURES == 0
            || this.number(code::GET_PROTOCOL_FEATURES)? & wanted != wanted
        {
            return Err(FrontEndError::Protocol);
        }
        this.say(code::SET_PROTOCOL_FEATURES, false, &wanted.to_ne_bytes(), &[])?;
        this.must(code::SET_OWNER, &[], &[])?;
        this.features = needed | offered & wished;
        let features = this.features.bits() | PROTOCOL_FEATURES;
        this.must(code::SET_FEATURES, &features.to_ne_bytes(), &[])?;
        Ok(this)
    }

    /// The features that were negotiated.
    #[must_use]
    pub fn features(&self) -> Features {
        self.features
    }

    /// The socket, which hangs up when the back end goes.
    #[must_use]
    pub fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Reads the first bytes of the device's configuration space (virtio 1.2, 5.1.4).
    ///
    /// # Errors
    /// [`FrontEndError`].
    pub fn configuration<const N: usize>(&mut self) -> Result<[u8; N], FrontEndError> {
        let head = [0u32, N as u32, 0].map(u32::to_ne_bytes).concat();
        self.say(code::GET_CONFIG, false, &[&head[..], &[0; N]].concat(), &[])?;
        let reply = self.reply(code::GET_CONFIG)?;
        let bytes = reply.get(head.len()..).and_then(<[u8]>::first_chunk);
        bytes.copied().ok_or(FrontEndError::Malformed)
    }

    /// Shares the `len` bytes of a memory file with the device, at guest-physical address 0.
    ///
    /// # Errors
    /// [`FrontEndError`].
    pub fn share(&mut self, file: BorrowedFd<'_>, len: u64) -> Result<(), FrontEndError> {
        let table = [1u64, 0, len, USER, 0].map(u64::to_ne_bytes).concat();
        self.must(code::SET_MEM_TABLE, &table, &[file])
    }

    /// Starts a queue at this place in the shared memory.
    ///
    /// # Errors
    /// [`FrontEndError`].
    pub fn start_queue(
        &mut self,
        queue: u32,
        layout: QueueLayout,
        bells: &Bells,
    ) -> Result<(), FrontEndError> {
        let pair = |value: u32| [queue, value].map(u32::to_ne_bytes).concat();
        let packed = self.features.contains(Features::RING_PACKED);
        let base = if packed { WRAP.into() } else { 0 };
        self.must(code::SET_VRING_NUM, &pair(layout.size.into()), &[])?;
        self.must(code::SET_VRING_BASE, &pair(base), &[])?;
        let [descriptors, used, available] =
            [layout.descriptors, layout.device, layout.driver].map(|at| USER + at);
        let address = [queue.into(), descriptors, used, available, 0].map(u64::to_ne_bytes);
        self.must(code::SET_VRING_ADDR, &address.concat(), &[])?;
        for (request, bell) in
            [(code::SET_VRING_CALL, &bells.call), (code::SET_VRING_KICK, &bells.kick)]
        {
            self.must(request, &u64::from(queue).to_ne_bytes(), &[bell.as_fd()])?;
        }
        self.must(code::SET_VRING_ENABLE, &pair(1), &[])
    }

    /// Asks for a number.
    fn number(&mut self, request: u32) -> Result<u64, FrontEndError> {
        self.say(request, false, &[], &[])?;
        let reply = self.reply(request)?;
        reply.try_into().map(u64::from_ne_bytes).map_err(|_| FrontEndError::Malformed)
    }

    /// Sends a request that the back end must acknowledge.
    fn must(
        &mut self,
        request: u32,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), FrontEndError> {
        self.say(request, true, payload, fds)?;
        match self.reply(request)?.try_into().map(u64::from_ne_bytes) {
            Ok(0) => Ok(()),
            Ok(_) => Err(FrontEndError::Refused(request)),
            Err(_) => Err(FrontEndError::Malformed),
        }
    }

    fn say(
        &self,
        request: u32,
        acknowledged: bool,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), FrontEndError> {
        let flags = VERSION | if acknowledged { NEED_REPLY } else { 0 };
        let mut message = [request, flags, payload.len() as u32].map(u32::to_ne_bytes).concat();
        message.extend(payload);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        let parts = [std::io::IoSlice::new(&message)];
        let sent = rustix::net::sendmsg(&self.socket, &parts, &mut control, SendFlags::NOSIGNAL);
        match sent.map_err(std::io::Error::from)? {
            sent if sent == message.len() => Ok(()),
            _ => Err(FrontEndError::Malformed),
        }
    }

    fn reply(&mut self, request: u32) -> Result<Vec<u8>, FrontEndError> {
        let mut header = [0; HEADER];
        self.socket.read_exact(&mut header)?;
        let word = |i: usize| {
            header[4 * i..].first_chunk().map_or(0, |bytes: &[u8; 4]| u32::from_ne_bytes(*bytes))
        };
        let (of, flags, size) = (word(0), word(1), word(2) as usize);
        if of != request || flags & REPLY == 0 || size > MAX_REPLY {
            return Err(FrontEndError::Malformed);
        }
        let mut payload = vec![0; size];
        self.socket.read_exact(&mut payload)?;
        Ok(payload)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// Has a back end give these replies, whatever is asked.
    fn against(replies: &[(u32, u32, &[u8])]) -> Result<FrontEnd, FrontEndError> {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        for (request, flags, payload) in replies {
            let header = [*request, *flags, payload.len() as u32].map(u32::to_ne_bytes).concat();
            theirs.write_all(&[&header, *payload].concat()).unwrap();
        }
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        FrontEnd::on(ours, Features::VERSION_1, Features::all())
    }

    const YES: u32 = VERSION | REPLY;

    #[test]
    fn a_back_end_that_lies_is_an_error() {
        let offer = Features::VERSION_1.bits() | PROTOCOL_FEATURES;
        let features = (code::GET_FEATURES, YES, &offer.to_ne_bytes()[..]);
        let all = (code::GET_PROTOCOL_FEATURES, YES, &u64::MAX.to_ne_bytes()[..]);
        let done = |request| (request, YES, &[0; 8][..]);
        let good = [features, all, done(code::SET_OWNER), done(code::SET_FEATURES)];
        assert_eq!(against(&good).unwrap().features(), Features::VERSION_1);

        use FrontEndError as E;
        let none = (code::GET_FEATURES, YES, &[0; 8][..]);
        assert!(matches!(against(&[none]), Err(E::Lacks(Features::VERSION_1))));
        let plain = Features::VERSION_1.bits().to_ne_bytes();
        let plain = (code::GET_FEATURES, YES, &plain[..]);
        assert!(matches!(against(&[plain]), Err(E::Protocol)));
        let refused = (code::SET_OWNER, YES, &[1; 8][..]);
        assert!(matches!(against(&[features, all, refused]), Err(E::Refused(code::SET_OWNER))));
        for wrong in [
            (code::GET_FEATURES, VERSION, &[0; 8][..]),
            (code::SET_FEATURES, YES, &[0; 8][..]),
            (code::GET_FEATURES, YES, &[0; 7][..]),
            (code::GET_FEATURES, YES, &[0; MAX_REPLY + 1][..]),
        ] {
            assert!(matches!(against(&[wrong]), Err(E::Malformed)), "{wrong:?}");
        }
        assert!(matches!(against(&[]), Err(E::Io(_))));
    }
}
