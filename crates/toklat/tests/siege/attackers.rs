//! The attackers: one function for each kind. Each runs in a process of its own until it is killed.

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
use nic::virtio::Features;
use rustix::event::epoll;
use rustix::fs::FallocateFlags;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, sockopt,
};
use zerocopy::IntoBytes;

use super::{Attacker, When, directory, pause};
use harness::frames::frame;
use harness::front_end::{FrontEnd, RECEIVE, TRANSMIT, memfd, say, send_raw, words};

/// The attacker that claims addresses of others.
pub const FORGER: &str = "forged addresses";

/// All kinds of attackers. Each has a user of its own; the number depends on the place in this
/// list.
pub const ATTACKERS: &[Attacker] = &[
    Attacker {
        name: "lingering descriptors",
        when: When::Always,
        ports: "[switch.vale0.port.linger]\nowner = UID\nkind = { vhost_user = {} }\n",
        run: linger,
    },
    Attacker {
        name: "address space",
        when: When::Always,
        ports: "[switch.vale0.port.space]\nowner = UID\nkind = { vhost_user = {} }\n",
        run: space,
    },
    Attacker {
        name: "chains of nothing",
        when: When::Always,
        ports: "[switch.vale0.port.chains]\nowner = UID\nkind = { vhost_user = {} }\n",
        run: chains,
    },
    Attacker { name: "hoarded ports", when: When::Always, ports: "", run: exhaust_quotas },
    Attacker {
        name: "double tags",
        when: When::Always,
        ports: "[switch.vale0.port.tags]\nowner = UID\n",
        run: tags,
    },
    Attacker { name: "log lines", when: When::Always, ports: "", run: log_lines },
    Attacker {
        name: "rings on and off",
        when: When::Always,
        ports: "[switch.vale0.port.rings]\nowner = UID\nkind = { vhost_user = {} }\n",
        run: rings,
    },
    Attacker { name: "source addresses", when: When::Always, ports: "", run: addresses },
    Attacker {
        name: FORGER,
        when: When::Always,
        ports: "[switch.vale0.port.forger]\nowner = UID\nguard = true\nmacs = [\"02:00:00:00:00:66\"]\n\
                ips = [\"10.0.0.7\"]\n",
        run: forge,
    },
    Attacker { name: "strangers over TCP", when: When::Always, ports: "", run: strangers },
    Attacker { name: "watched tokens", when: When::Unforeseen, ports: "", run: watches },
    Attacker { name: "punched holes", when: When::Unforeseen, ports: "", run: holes },
];

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

fn socket(port: &str) -> PathBuf {
    directory().join(format!("vale0-{port}.sock"))
}

fn open(name: &str) -> Option<Port> {
    Open::new(name).slots(64).pages(Pages::Small).directory(directory()).open().ok()
}

/// A port that is opened again when it is lost or refused.
struct Persistent {
    name: &'static str,
    port: Option<Port>,
}

impl Persistent {
    fn open(name: &'static str) -> Self {
        Self { name, port: None }
    }

    /// Returns the port, if it can be opened.
    fn get(&mut self) -> Option<&mut Port> {
        if self.port.is_none() {
            self.port = open(self.name);
        }
        self.port.as_mut()
    }

    /// Sends a frame, and receives what came.
    fn push(&mut self, frame: &[u8]) {
        let Some(port) = self.get() else { return pause() };
        port.send(1).push(frame);
        port.receive(64).count();
        if port.flush().is_err() {
            self.port = None;
        }
    }
}

/// Connects a vhost-user front end to the port, if the daemon is there to talk to.
fn front_end(port: &str) -> Option<FrontEnd> {
    let start = || FrontEnd::start(&socket(port), Features::VERSION_1);
    std::panic::catch_unwind(start).ok()
}

/// Lingering sockets go wherever a descriptor may be sent, and lie unread where it may not. Each is
/// let go of at once: the last close, which waits, is its receiver's.
fn linger() {
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

/// Windows at the far end of sparse files.
fn space() {
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

/// A receive queue whose entries all name one chain of empty descriptors, and a sender that has
/// frames go there.
fn chains() {
    let mut sender = Persistent::open("vale0:chains-sender");
    loop {
        let Some(front_end) = front_end("chains") else {
            pause();
            continue;
        };
        let queue = &front_end.queues[RECEIVE];
        let put = |at: u64, bytes: &[u8]| {
            front_end.memory.bytes(at, bytes.len() as u32).unwrap().copy_in(bytes);
        };
        let entries = 128u16;
        for n in 0..entries {
            let flags = if n + 1 == entries { 2 } else { 3u16 };
            let next = (n + 1) % entries;
            let descriptor = [
                &0x8_0000u64.to_le_bytes()[..],
                &0u32.to_le_bytes(),
                &flags.to_le_bytes(),
                &next.to_le_bytes(),
            ];
            put(queue.layout.descriptors + 16 * u64::from(n), &descriptor.concat());
            put(queue.layout.driver + 4 + 2 * u64::from(n), &[0, 0]);
        }
        put(queue.layout.driver + 2, &entries.to_le_bytes());
        for _ in 0..200 {
            // The flooded frames go to all ports, so also to the queue; the flood limit is that of
            // the switch.
            let mut flood = frame(7, 7, 0);
            flood[..6].fill(0xff);
            sender.push(&flood);
            pause();
        }
    }
}

/// Makes all ports, switches and pipes that the quotas allow.
fn exhaust_quotas() {
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

/// Double-tagged frames: the attacker hopes that a receiver strips the first tag and obeys the
/// second (VLAN hopping).
fn tags() {
    let mut port = Persistent::open("vale0:tags");
    loop {
        let mut tagged = frame(8, 2, 0);
        tagged[12..20].copy_from_slice(&[0x81, 0, 0, 0, 0x81, 0, 0, 9]);
        port.push(&tagged);
        pause();
    }
}

/// What the guard must stop: "10.0.0.1 is at me", to the honest receiver and to all.
fn forge() {
    let mut port = Persistent::open("vale0:forger");
    let arp = [0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 0, 0x66, 10, 0, 0, 1];
    loop {
        for to in [2, 0xff] {
            let mut reply = frame(0x66, to, 0);
            reply[12..14].copy_from_slice(&[8, 6]);
            reply[14..32].copy_from_slice(&arp);
            port.push(&reply);
        }
        pause();
    }
}

/// Connections to the API over TCP without the token: some without a word, some with half a
/// request, some with many requests whose answers are not read.
fn strangers() {
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
fn log_lines() {
    loop {
        let Some(socket) = attach_socket() else { continue };
        for _ in 0..100 {
            let request = Request::new(77, "vale0:nobody");
            if rustix::net::send(&socket, request.as_bytes(), SendFlags::NOSIGNAL).is_err() {
                break;
            }
            let _ = rustix::net::recv(&socket, &mut [0u8; 512], rustix::net::RecvFlags::empty());
        }
    }
}

/// A guest that switches its rings on and off.
fn rings() {
    loop {
        let Some(front_end) = front_end("rings") else {
            pause();
            continue;
        };
        let enable = |queue: usize, on: u32| {
            let payload = [queue as u32, on].map(u32::to_ne_bytes).concat();
            say(&front_end.socket, code::SET_VRING_ENABLE, &payload, &[])
        };
        while (0..100).all(|n| enable(RECEIVE, n % 2) && enable(TRANSMIT, n % 2)) {}
        send_raw(&front_end.socket, &[0xa5; 64]);
    }
}

/// Sends frames from ever new source addresses.
fn addresses() {
    let mut port = Persistent::open("vale0:addresses");
    for n in 0u32.. {
        let mut new = frame(9, 9, 0);
        new[7..11].copy_from_slice(&n.to_be_bytes());
        port.push(&new);
        if n.is_multiple_of(64) {
            pause();
        }
    }
}

/// A token that a great many epoll instances watch: a write to it walks through them all.
fn watches() {
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
fn holes() {
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
