//! A vhost-user front end of the test's own: a guest with one pair of queues, and everything it
//! says.

use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use dataplane::attach::virtio::message::{self, code};
use driver::virtio::{Buffer, Driver, layout_at};
use nic::virtio::{Features, QueueLayout};
use rustix::event::EventfdFlags;
use rustix::fs::MemfdFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use shmem::{GuestMemory, GuestRange, Mapping};

use crate::PATIENCE;

/// Bytes of the guest's memory.
pub const MEMORY: u64 = 1 << 20;
/// The address of the guest's memory in the front end's address space.
pub const USER: u64 = 1 << 40;
/// vhost-user's own feature bits.
pub const PROTOCOL_FEATURES: u64 = 1 << 30;
/// The feature of a log of written pages.
pub const LOG_ALL: u64 = 1 << 26;
/// Entries of a queue.
const SIZE: u16 = 128;
const BUFFER: u64 = 2048;
/// Buffers of a queue.
pub const BUFFERS: usize = 64;
const HEADER: usize = 12;

/// The number of the queue that the guest receives by.
pub const RECEIVE: usize = 0;
/// The number of the queue that the guest sends by.
pub const TRANSMIT: usize = 1;

/// A guest and its front end.
pub struct FrontEnd {
    /// The connection to the back end.
    pub socket: UnixStream,
    /// The file of the guest's memory.
    pub file: OwnedFd,
    /// The guest's memory.
    pub memory: Arc<GuestMemory>,
    /// The queues, by number.
    pub queues: [GuestQueue; 2],
    /// The feature bits that are negotiated.
    pub features: u64,
}

/// A queue: the guest's driver, its eventfds and buffers.
pub struct GuestQueue {
    /// The driver's end.
    pub driver: Driver,
    /// Where its parts lie in memory.
    pub layout: QueueLayout,
    /// The guest signals it.
    pub kick: OwnedFd,
    /// The back end signals it.
    pub call: OwnedFd,
    /// The back end signals it when the queue fails.
    pub error: OwnedFd,
    /// The buffer of each chain, by the chain's number.
    buffers: Vec<u64>,
    free: Vec<u64>,
}

/// A new eventfd, which never blocks.
pub fn eventfd() -> OwnedFd {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

/// A memory file of a guest.
pub fn memfd(len: u64) -> OwnedFd {
    let file = rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, len).unwrap();
    file
}

/// Numbers as a message has them.
pub fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn pair(low: u32, high: u32) -> Vec<u8> {
    [low, high].map(u32::to_ne_bytes).concat()
}

/// True if the eventfd was signalled since the last call.
pub fn was_signalled(eventfd: &OwnedFd) -> bool {
    rustix::io::read(eventfd, &mut [0; 8]).is_ok()
}

/// Sends a request; true if the socket takes it.
pub fn say(socket: &UnixStream, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
    message::send(socket, request, false, payload, fds).is_ok()
}

/// Reads a reply; its payload, or `None` if the other side hung up.
pub fn reply(mut socket: &UnixStream) -> Option<Vec<u8>> {
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut header = [0; message::HEADER];
    socket.read_exact(&mut header).ok()?;
    let size = u32::from_ne_bytes(header[8..].try_into().unwrap());
    let mut payload = vec![0; size as usize];
    socket.read_exact(&mut payload).ok()?;
    Some(payload)
}

/// Reads a reply that comes with a file.
fn reply_with_file(socket: &UnixStream) -> (Vec<u8>, OwnedFd) {
    let mut bytes = [0; 256];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [std::io::IoSliceMut::new(&mut bytes)];
    let got = rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC);
    let got = got.unwrap().bytes;
    let file = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    (bytes[message::HEADER..got].to_vec(), file.expect("a file with the reply"))
}

/// Asks for something, and reads the reply.
pub fn ask(socket: &UnixStream, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> u64 {
    message::send(socket, request, true, payload, fds).unwrap();
    let reply = reply(socket).expect("an answer");
    u64::from_ne_bytes(reply[..8].try_into().unwrap())
}

impl FrontEnd {
    /// Connects, negotiates everything, and starts both queues.
    pub fn start(path: &Path, features: Features) -> Self {
        let socket = UnixStream::connect(path).unwrap();
        Self::start_on(socket, features.bits() | PROTOCOL_FEATURES)
    }

    /// As `start`, on a socket that is connected.
    pub fn start_on(socket: UnixStream, features: u64) -> Self {
        let file = memfd(MEMORY);
        let mapping = Mapping::unsealed(file.as_fd(), MEMORY as usize).unwrap();
        let range = GuestRange { guest: 0, user: USER, size: MEMORY, mapping, offset: 0 };
        let memory = Arc::new(GuestMemory::new(vec![range]).unwrap());
        let negotiated = Features::from_bits_truncate(features);
        let queue = |number: u64| {
            let layout = layout_at(number * 0x8000, SIZE);
            GuestQueue {
                driver: Driver::new(&memory, layout, negotiated).unwrap(),
                layout,
                kick: eventfd(),
                call: eventfd(),
                error: eventfd(),
                buffers: vec![0; usize::from(SIZE)],
                free: (0..BUFFERS as u64)
                    .map(|n| 0x8_0000 + (number * BUFFERS as u64 + n) * BUFFER)
                    .collect(),
            }
        };
        let queues = [queue(0), queue(1)];
        let mut this = Self { socket, file, memory, queues, features };
        this.negotiate();
        (0..2).for_each(|queue| this.start_queue(queue, 0));
        this.fill();
        this
    }

    fn negotiate(&self) {
        let offered = ask(&self.socket, code::GET_FEATURES, &[], &[]);
        assert_eq!(self.features & !offered, 0, "{:#x} is not offered", self.features & !offered);
        let protocol = ask(&self.socket, code::GET_PROTOCOL_FEATURES, &[], &[]);
        assert!(say(&self.socket, code::SET_PROTOCOL_FEATURES, &words(&[protocol]), &[]));
        // Queues are enabled in QEMU's order.
        for queue in 0..2 {
            self.must(code::SET_VRING_ENABLE, &pair(queue, 1), &[]);
        }
        self.must(code::SET_FEATURES, &words(&[self.features]), &[]);
        let table = words(&[1, 0, MEMORY, USER, 0]);
        self.must(code::SET_MEM_TABLE, &table, &[self.file.as_fd()]);
    }

    /// Has the back end record buffers in flight. Returns the description of the areas, and their
    /// file.
    pub fn track(&self) -> (Vec<u8>, OwnedFd) {
        let sizes = [2u16, SIZE, 0, 0].map(u16::to_ne_bytes).concat();
        assert!(say(&self.socket, code::GET_INFLIGHT_FD, &[&[0; 16][..], &sizes].concat(), &[]));
        let (payload, file) = reply_with_file(&self.socket);
        self.must(code::SET_INFLIGHT_FD, &payload, &[file.as_fd()]);
        (payload, file)
    }

    /// Connects again at another socket, with the same guest. This front end does not know where
    /// the queues stood.
    pub fn reconnect(&mut self, path: &Path, (payload, file): &(Vec<u8>, OwnedFd)) {
        self.socket = UnixStream::connect(path).unwrap();
        self.negotiate();
        self.must(code::SET_INFLIGHT_FD, payload, &[file.as_fd()]);
        (0..2).for_each(|queue| self.start_queue(queue, 0));
    }

    /// Sends a request, which must succeed.
    pub fn must(&self, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        assert_eq!(ask(&self.socket, request, payload, fds), 0, "request {request} was refused");
    }

    /// Starts a queue at a position.
    pub fn start_queue(&self, queue: usize, base: u32) {
        let GuestQueue { layout, kick, call, error, .. } = &self.queues[queue];
        let number = queue as u32;
        let packed = self.features & Features::RING_PACKED.bits() != 0;
        let base = if packed && base == 0 { 0x8000 } else { base };
        self.must(code::SET_VRING_NUM, &pair(number, SIZE.into()), &[]);
        self.must(code::SET_VRING_BASE, &pair(number, base), &[]);
        let user = |at| at + USER;
        let (descriptors, used) = (user(layout.descriptors), user(layout.device));
        let address = words(&[number.into(), descriptors, used, user(layout.driver), 0]);
        self.must(code::SET_VRING_ADDR, &address, &[]);
        for (request, fd) in [
            (code::SET_VRING_ERR, error),
            (code::SET_VRING_CALL, call),
            (code::SET_VRING_KICK, kick),
        ] {
            self.must(request, &words(&[number.into()]), &[fd.as_fd()]);
        }
    }

    /// Stops a queue. Returns its position.
    pub fn stop_queue(&self, queue: usize) -> u32 {
        let answer = ask(&self.socket, code::GET_VRING_BASE, &pair(queue as u32, 0), &[]);
        (answer >> 32) as u32
    }

    /// Gives the device buffers to receive into.
    fn fill(&mut self) {
        let queue = &mut self.queues[RECEIVE];
        while let Some(at) = queue.free.pop() {
            let buffer = Buffer { at, len: BUFFER as u32, writable: true };
            let number = queue.driver.add(&[buffer], None).unwrap();
            queue.buffers[usize::from(number)] = at;
        }
        queue.publish();
    }

    /// Takes back the buffers of frames that were sent, and returns how many.
    pub fn reclaim(&mut self) -> usize {
        let queue = &mut self.queues[TRANSMIT];
        let before = queue.free.len();
        while let Some((number, _)) = queue.driver.used() {
            queue.free.push(queue.buffers[usize::from(number)]);
        }
        queue.free.len() - before
    }

    /// Sends a frame; false without room.
    pub fn send(&mut self, frame: &[u8]) -> bool {
        self.reclaim();
        let queue = &mut self.queues[TRANSMIT];
        let Some(at) = queue.free.pop() else { return false };
        let len = HEADER + frame.len();
        let bytes = self.memory.bytes(at, len as u32).unwrap();
        bytes.copy_in(&[&[0; HEADER], frame].concat());
        let buffer = Buffer { at, len: len as u32, writable: false };
        let number = queue.driver.add(&[buffer], None).unwrap();
        queue.buffers[usize::from(number)] = at;
        queue.publish();
        true
    }

    /// The frames that are there now.
    pub fn receive(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let queue = &mut self.queues[RECEIVE];
        while let Some((number, len)) = queue.driver.used() {
            let at = queue.buffers[usize::from(number)];
            let bytes = self.memory.bytes(at, len).unwrap().to_vec();
            frames.push(bytes[HEADER..].to_vec());
            queue.free.push(at);
        }
        self.fill();
        frames
    }
}

impl GuestQueue {
    /// Makes chains available, and kicks the device if it wants that.
    pub fn publish(&mut self) {
        if self.driver.publish() {
            rustix::io::write(&self.kick, &1u64.to_ne_bytes()).unwrap();
        }
    }
}

/// Raw bytes, as no front end sends them.
pub fn send_raw(mut socket: &UnixStream, bytes: &[u8]) {
    // If the other side has hung up, the write fails.
    let _ = socket.write_all(bytes);
}
