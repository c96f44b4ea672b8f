//! What several targets need: the steps of an input, a guest's memory, cards and frames for them,
//! what front ends send, and what no input may cost.

mod costs;
pub mod data_process;

use std::cell::RefCell;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use dataplane::attach::guest::kept::Kept;
use dataplane::config::SwitchConfig;
use dataplane::state::{PortState, State};
use frame::Mac;
use jail::strangers::Descriptor;
use nic::device::{Combining, DeviceConfig};
use port::{Egress, FrameIdx, Limits, MapGuard, Nanos, Scratch};
use rustix::event::EventfdFlags;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, sockopt};
use shmem::{GuestMemory, GuestRange, Mapping};
use turn::attach::Attached;

pub use self::costs::{Costs, Lines, Thread};

/// The address of cards.
pub const MAC: Mac = Mac::local(1);
/// The user of front ends.
const FRONT_END: u32 = u32::MAX - 1;
/// Bytes of a file that a front end sends. Larger files would find nothing new.
const FILE: u64 = 64 << 10;

/// The steps of an input: what to do, where, and a value.
pub fn steps(input: &[u8]) -> impl Iterator<Item = (u8, u32, u64)> {
    input.as_chunks::<13>().0.iter().map(|[what, a, b, c, d, value @ ..]| {
        (*what, u32::from_le_bytes([*a, *b, *c, *d]), u64::from_le_bytes(*value))
    })
}

/// Returns a guest's memory of two ranges, together as long as `mapping`. `offsets` are the places
/// of the ranges in the mapping.
pub fn guest_memory(mapping: &Arc<Mapping>, offsets: [usize; 2]) -> Arc<GuestMemory> {
    let half = mapping.len() as u64 / 2;
    let range = |guest: u64, offset: usize| GuestRange {
        guest,
        user: guest,
        size: half,
        mapping: Arc::clone(mapping),
        offset,
    };
    let ranges = vec![range(0, offsets[0]), range(half, offsets[1])];
    Arc::new(GuestMemory::new(ranges).expect("apart from each other"))
}

/// The configuration of a card with this many receive queues.
pub fn device_config(
    memory: &Arc<GuestMemory>,
    queues: usize,
    combining: bool,
    csb: bool,
) -> DeviceConfig {
    DeviceConfig {
        combining: combining.then_some(Combining { frames: 4, delay_us: 20 }),
        csb,
        ..DeviceConfig::alone(Arc::clone(memory), MAC, queues).expect("memory")
    }
}

/// Delivers frames to [`MAC`] and settles. Returns how many frames were finished.
pub fn deliver(
    egress: &dyn Egress,
    (count, len): (usize, usize),
    lossless: bool,
    now: Nanos,
) -> usize {
    let bytes = Mapping::private(16384).expect("memory");
    let mut scratch = Scratch::new(64);
    for i in 0..count {
        let place = bytes.bytes(i * 64, len.clamp(14, 9000)).expect("it fits");
        place.copy_in(&MAC.octets());
        scratch.push(place.span());
    }
    // SAFETY: the memory outlives the scratch.
    let map = unsafe { MapGuard::assume_mapped() };
    scratch.judge(&map, &mut [(); 64], |_, _| ());
    let list: Vec<FrameIdx> = (0..count as FrameIdx).collect();
    let limits = Limits { max_frame: 9216, lossless };
    let finished = egress.deliver(&scratch.batch(&map), &list, limits).finished;
    let _ = egress.settle(now);
    finished
}

/// Runs `work`, and checks that models read at most this many descriptors for it.
pub fn reading<T>(most: impl FnOnce(&T) -> u64, work: impl FnOnce() -> T) -> T {
    let before = nic::descriptors_read();
    let done = work();
    let (read, most) = (nic::descriptors_read() - before, most(&done));
    assert!(read <= most, "{read} descriptors were read in one turn, of {most} that may be");
    done
}

/// Serves the running queues as a worker does, until they are quiet. If `frames_come` is set,
/// frames for them arrive.
pub fn serve(attached: &mut Attached, frames_come: bool, now: Nanos) {
    let mut scratch = Scratch::new(64);
    attached.source.disarm();
    let _ = attached.source.attend(now);
    for queue in (0..attached.source.queues()).rev() {
        let Some(ingress) = attached.source.queue(queue) else { continue };
        let frames = ingress.gather(&mut scratch, 64, now);
        ingress.complete(frames);
        let _ = ingress.settle(now);
        scratch.clear();
    }
    for egress in &attached.egresses {
        if frames_come {
            assert_eq!(deliver(egress, (3, 600), false, now), 3, "taken or dropped");
        }
        let _ = egress.settle(now);
    }
    let _ = (attached.source.arm(now), attached.source.deadline(now));
}

/// Discards replies. A connection with unread replies would end.
pub fn drain(socket: &OwnedFd) {
    let mut away = [0; 4096];
    while matches!(rustix::net::recv(socket, &mut away[..], RecvFlags::DONTWAIT), Ok((_, 1..))) {}
}

/// Takes up to `n` bytes off the front.
pub fn take<'a>(bytes: &mut &'a [u8], n: usize) -> &'a [u8] {
    let (taken, rest) = bytes.split_at(n.min(bytes.len()));
    *bytes = rest;
    taken
}

/// The memory of a front end's guest: a file that it may send, write and cut short.
pub struct Memory {
    file: OwnedFd,
    /// The peers of lingering sockets. Closing such a socket waits as long as its peer is here.
    peers: RefCell<Vec<TcpStream>>,
}

impl Memory {
    pub fn new() -> rustix::io::Result<Self> {
        let file = rustix::fs::memfd_create("fuzz", rustix::fs::MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, FILE)?;
        Ok(Self { file, peers: RefCell::default() })
    }

    /// Writes `bytes` at `at`. If there are none, truncates the file there.
    pub fn write(&self, at: u16, bytes: &[u8]) {
        // A write that fails is ignored.
        let _ = match bytes {
            [] => rustix::fs::ftruncate(&self.file, at.into()),
            bytes => rustix::io::pwrite(&self.file, bytes, at.into()).map(|_| ()),
        };
    }

    /// The `len` bytes at `at`; zeros where there are none.
    pub fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        // If the read fails, the bytes stay zero.
        let _ = rustix::io::pread(&self.file, &mut bytes[..], at);
        bytes
    }

    /// Up to three descriptors of kinds that a front end may send, or should not. Others close
    /// them: that may take long.
    pub fn descriptors(&self, choice: u8) -> Vec<Descriptor> {
        let fds = (0..choice % 4).filter_map(|i| self.descriptor(choice / 4 + i));
        fds.map(|fd| Descriptor::of(FRONT_END, fd)).collect()
    }

    fn descriptor(&self, kind: u8) -> Option<OwnedFd> {
        match kind % 8 {
            0 | 1 => rustix::event::eventfd(0, EventfdFlags::NONBLOCK).ok(),
            2 => self.file.try_clone().ok(),
            3 => rustix::pipe::pipe().ok().map(|(end, _)| end),
            4 => rustix::pipe::pipe().ok().map(|(_, end)| end),
            5 => self.lingering().ok(),
            6 => std::fs::File::open("/proc/self/exe").ok().map(Into::into),
            _ => connection().ok().map(|(end, _)| end),
        }
    }

    /// A socket with unsent data, whose last close waits for a second. Longer, and a message that
    /// cannot be sent would have this thread wait.
    fn lingering(&self) -> std::io::Result<OwnedFd> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let socket = TcpStream::connect(listener.local_addr()?)?;
        self.peers.borrow_mut().push(listener.accept()?.0);
        sockopt::set_socket_linger(&socket, Some(std::time::Duration::from_secs(1)))?;
        socket.set_nonblocking(true)?;
        while rustix::io::write(&socket, &[0; 65536]).is_ok() {}
        Ok(socket.into())
    }

    /// Has a second thread change the memory while others read it, until the returned value is
    /// dropped.
    pub fn scribble(&self, seed: u64) -> Option<Thread> {
        Some(Thread::scribble(self.file.try_clone().ok()?, seed))
    }
}

/// Makes a connection: the front end's end, and ours.
pub fn connection() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// The state of a switch's only port.
pub fn port_state() -> PortState {
    let config = SwitchConfig { max_ports: 1, fdb_entries: 16, ..SwitchConfig::default() };
    State::private(&config).expect("memory").port(0).expect("a port")
}

/// Asserts that a session's kept state is the same after it was restored.
pub fn assert_same(kept: &Kept, again: &Kept) {
    assert!(kept.keys().eq(again.keys()));
    assert!(kept.values().map(|(value, _)| value).eq(again.values().map(|(value, _)| value)));
}
