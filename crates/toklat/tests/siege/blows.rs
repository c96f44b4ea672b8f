//! Attacks that need code of their own. Each runs until its process is killed.

use std::collections::VecDeque;
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use dataplane::attach::virtio::message::code;
use netring::attach::Request;
use netring::{Open, Pages, Port};
use rustix::event::epoll;
use rustix::fs::FallocateFlags;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, sockopt,
};
use zerocopy::IntoBytes;

use super::{directory, pause};
use harness::frames::frame;
use harness::front_end::{memfd, say, words};

/// A socket whose last close waits for as long as its peer does not read.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let peer = listener.accept().unwrap().0;
    sockopt::set_socket_linger(&socket, Some(Duration::from_secs(3))).unwrap();
    socket.set_nonblocking(true).unwrap();
    while rustix::io::write(&socket, &[0; 65536]).is_ok() {}
    (socket.into(), peer)
}

/// Sends a message with descriptors; it may be refused.
fn send_with(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let _ = rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags);
}

/// A connection to `attach.sock`, if there is room.
fn attach_socket() -> Option<OwnedFd> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).ok()?;
    let address = SocketAddrUnix::new(directory().join(netring::attach::SOCKET)).ok()?;
    rustix::net::connect(&socket, &address).ok()?;
    Some(socket)
}

pub fn socket(port: &str) -> PathBuf {
    directory().join(format!("vale0-{port}.sock"))
}

pub fn open(name: &str) -> Option<Port> {
    open_with(name, 64)
}

fn open_with(name: &str, slots: u32) -> Option<Port> {
    Open::new(name).slots(slots).pages(Pages::Small).directory(directory()).open().ok()
}

/// A port that is opened again when it is lost or refused.
pub struct Persistent {
    name: &'static str,
    slots: u32,
    port: Option<Port>,
}

impl Persistent {
    pub fn open(name: &'static str) -> Self {
        Self::with_slots(name, 64)
    }

    pub fn with_slots(name: &'static str, slots: u32) -> Self {
        Self { name, slots, port: None }
    }

    /// Returns the port, if it can be opened.
    fn get(&mut self) -> Option<&mut Port> {
        if self.port.is_none() {
            self.port = open_with(self.name, self.slots);
        }
        self.port.as_mut()
    }

    /// Sends a frame, and receives what came.
    pub fn push(&mut self, frame: &[u8]) {
        self.push_all(std::slice::from_ref(&frame));
    }

    /// Sends frames, and receives what came.
    pub fn push_all(&mut self, frames: &[impl AsRef<[u8]>]) {
        let Some(port) = self.get() else { return pause() };
        {
            let mut batch = port.send(frames.len());
            frames.iter().take_while(|frame| batch.push(frame.as_ref())).count();
        }
        port.receive(64).count();
        if port.flush().is_err() {
            self.port = None;
        }
    }
}

/// Lingering sockets go wherever a descriptor may be sent, and lie unread where it may not. Each is
/// let go of at once: the last close, which waits, is its receiver's.
pub fn linger() {
    let mut token = Persistent::open("vale0:token");
    let (mut peers, mut front_ends) = (VecDeque::new(), VecDeque::new());
    loop {
        let strike = |peers: &mut VecDeque<TcpStream>, socket: BorrowedFd<'_>, bytes: &[u8]| {
            let (lingering, peer) = lingering();
            // This peer does not read, and stays.
            peers.push_back(peer);
            send_with(socket, bytes, &[lingering.as_fd()]);
            // Where the receiver closed its copy earlier, this close is the one that waits.
            drop(lingering);
        };
        if let Some(attach) = attach_socket() {
            strike(&mut peers, attach.as_fd(), &[0xa5; 40]);
        }
        if let Some(token) = token.get() {
            strike(&mut peers, token.as_fd(), b"k");
        }
        token.push(&frame(20, 21, 0));
        if let Ok(front_end) = UnixStream::connect(socket("linger")) {
            let header = [code::SET_MEM_TABLE, 1, 40].map(u32::to_ne_bytes).concat();
            let message = [header, words(&[1, 0, 4096, 0, 0])].concat();
            strike(&mut peers, front_end.as_fd(), &message);
            front_ends.push_back(front_end);
        }
        if peers.len() > 200 {
            peers.drain(..3);
        }
        if front_ends.len() > 2 {
            front_ends.pop_front();
        }
        pause();
    }
}

/// Files of a file system that answers no close, wherever a descriptor may be sent. The attacker
/// closes none itself.
pub fn slow_files() {
    let path = std::env::var(super::OPTIONS).unwrap();
    let (mut held, mut front_ends) = (Vec::new(), VecDeque::new());
    for n in 0usize.. {
        if held.len() < 64 {
            held.extend(std::fs::File::open(&path));
        }
        let Some(file) = held.get(n % held.len().max(1)) else {
            pause();
            continue;
        };
        if let Some(attach) = attach_socket() {
            send_with(&attach, &[0xa5; 40], &[file.as_fd()]);
        }
        if let Ok(front_end) = UnixStream::connect(socket("slow")) {
            let header = [code::SET_MEM_TABLE, 1, 40].map(u32::to_ne_bytes).concat();
            let message = [header, words(&[1, 0, 4096, 0, 0])].concat();
            send_with(&front_end, &message, &[file.as_fd()]);
            front_ends.push_back(front_end);
        }
        if front_ends.len() > 2 {
            front_ends.pop_front();
        }
        pause();
    }
}

/// Windows at the far end of sparse files.
pub fn space() {
    let file = memfd(3 << 40);
    loop {
        let Ok(front_end) = UnixStream::connect(socket("space")) else { continue };
        for at in 0..32u64 {
            // Each region is one page at an offset of almost three TiB, with another address each
            // time.
            let region = words(&[0, at << 20, 4096, at << 20, (3 << 40) - 4096 * (at + 1)]);
            if !say(&front_end, code::ADD_MEM_REG, &region, &[file.as_fd()]) {
                break;
            }
        }
        pause();
    }
}

/// Makes all ports, switches and pipes that the quotas allow.
pub fn exhaust_quotas() {
    let mut held = Vec::new();
    for n in 0u64.. {
        held.extend(open(&format!("vale0:hoard{n}")));
        held.extend(open(&format!("hoard{n}:a")));
        held.extend(open(&format!("vale0:hoard{{{n}")));
        if held.len() > 300 {
            held.clear();
        }
        pause();
    }
}

/// Connections to the API over TCP without the token: some without a word, some with half a
/// request, some with many requests whose answers are not read.
pub fn strangers() {
    let address = std::env::var(super::TCP).unwrap();
    let mut all = VecDeque::new();
    let request = b"GET /openapi.json HTTP/1.1\r\nHost: here\r\n\r\n".repeat(100);
    loop {
        for bytes in [&[][..], &request[..20], &request[..]] {
            let Ok(mut stream) = TcpStream::connect(&address) else { continue };
            let _ = stream.write_all(bytes);
            all.push_back(stream);
        }
        if all.len() > 600 {
            all.drain(..3);
        }
        pause();
    }
}

/// As many requests as possible that are refused and logged.
pub fn log_lines() {
    loop {
        let Some(socket) = attach_socket() else { continue };
        for _ in 0..100 {
            let request = Request::new(77, "vale0:none");
            if rustix::net::send(&socket, request.as_bytes(), SendFlags::NOSIGNAL).is_err() {
                break;
            }
            let _ = rustix::net::recv(&socket, &mut [0u8; 512], rustix::net::RecvFlags::empty());
        }
    }
}

/// A token that a great many epoll instances watch: a write to it walks through them all.
pub fn watches() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let most = rustix::process::Rlimit { current: limit.maximum, ..limit };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, most);
    let mut sender = Persistent::open("vale0:watched-s");
    loop {
        let Some(mut victim) = open("vale0:watched") else {
            pause();
            continue;
        };
        let _watches = watch(victim.as_fd());
        // The attacker says that it sleeps, and is woken by frames of its own.
        while victim.flush().is_ok() {
            let _ = victim.arm(netring::Interest::READ);
            sender.push(&frame(10, 11, 0));
            pause();
            victim.receive(64).count();
            victim.send(1).push(&frame(11, 10, 0));
        }
    }
}

/// Makes 160,000 epoll watches on a token.
fn watch(token: BorrowedFd<'_>) -> Vec<OwnedFd> {
    let copies: Vec<_> = (0..400).map_while(|_| token.try_clone_to_owned().ok()).collect();
    let mut held = Vec::new();
    for _ in 0..400 {
        let Ok(instance) = epoll::create(epoll::CreateFlags::CLOEXEC) else { break };
        for copy in &copies {
            let data = epoll::EventData::new_u64(0);
            let _ = epoll::add(&instance, copy, data, epoll::EventFlags::IN);
        }
        held.push(instance);
    }
    held.extend(copies);
    held
}

/// A region whose owner takes its pages away while frames are stored there.
pub fn holes() {
    let mut sender = Persistent::open("vale0:holes-s");
    loop {
        let Some(mut victim) = open("vale0:holes") else {
            pause();
            continue;
        };
        let region = victim.region().unwrap().clone();
        let (file, len) = (region.file().unwrap(), region.mapping().len() as u64);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let at = region.geometry().buf_offset();
        while victim.flush().is_ok() {
            victim.send(1).push(&frame(13, 12, 0));
            sender.push(&frame(12, 13, 0));
            let _ = rustix::fs::fallocate(file, punch, at, len - at);
            victim.receive(64).count();
            pause();
        }
    }
}
