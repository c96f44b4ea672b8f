//! Emulated network cards: a front end and a whole data process, with the smallest device.

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use frame::Mac;
use rustix::event::EventfdFlags;
use rustix::net::SocketAddrUnix;
use shmem::Mapping;

use super::*;
use crate::attach::card::message::{HEADER, command, flags, irq, longs, words};
use crate::attach::card::migration::DeviceState;
use crate::config::{Doorbell, NicConfig, NicModel};
use card::vfio_user::{Client, ClientError};

mod breakers;
mod forms;
mod limits;
mod ranges;

const PATIENCE: Duration = Duration::from_secs(30);
const PORTS: u16 = 2;
/// The size of guest memory in bytes, and where frames are sent from and received into.
const MEMORY: u64 = 0x10_0000;
const SEND_AT: u64 = 0x1000;
const RECEIVE_AT: u64 = 0x2000;
/// Registers.
const CAUSE: u64 = 0;
const MASK: u64 = 4;
/// A cause: the link changed.
const LINK: u32 = 4;

/// A data process in a thread, and what its supervisor would keep.
struct Host {
    dir: tempfile::TempDir,
    memory: Memfd,
    control: OwnedFd,
    thread: Option<JoinHandle<()>>,
    kept: BTreeMap<(PortId, String), (serde_json::Value, Option<Descriptor>)>,
    sockets: Vec<Option<OwnedFd>>,
}

fn config() -> SwitchConfig {
    SwitchConfig { max_ports: PORTS, ..SwitchConfig::default() }
}

impl Host {
    fn start() -> Self {
        let memory = Memfd::create("state", state::file_size(&config()), Pages::Small).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (control, _) = pair(SocketType::SEQPACKET);
        let (kept, sockets) = (BTreeMap::new(), vec![None, None]);
        let mut host = Self { dir, memory, control, thread: None, kept, sockets };
        host.start_process();
        host
    }

    fn start_process(&mut self) {
        let memory = self.memory.as_fd().try_clone_to_owned().unwrap();
        let process = Process::start(Memfd::adopt(memory).unwrap(), "test".into(), config());
        let mut process = process.unwrap();
        let address = SocketAddrUnix::new(self.dir.path().join("control")).unwrap();
        let _ = std::fs::remove_file(self.dir.path().join("control"));
        let socket = || {
            let (family, flags) = (AddressFamily::UNIX, SocketFlags::CLOEXEC);
            rustix::net::socket_with(family, SocketType::SEQPACKET, flags, None).unwrap()
        };
        let listener = socket();
        rustix::net::bind(&listener, &address).unwrap();
        rustix::net::listen(&listener, 4).unwrap();
        self.thread = Some(std::thread::spawn(move || {
            process.serve(&listener).unwrap();
            process.finish();
        }));
        self.control = socket();
        rustix::net::connect(&self.control, &address).unwrap();
        self.ask(&Command::Hello { version: control::VERSION }, &[]);
    }

    /// Sends a command to the process and returns its answer. Stores the persistent state that
    /// arrives before it.
    fn ask(&mut self, command: &Command, fds: &[BorrowedFd<'_>]) -> Answer {
        control::send(&self.control, command, fds).unwrap();
        loop {
            match control::receive::<Answer>(&self.control).unwrap() {
                (Answer::Keep { id, key, value, .. }, mut fds) => {
                    self.kept.insert((id, key), (value, fds.pop()));
                }
                (Answer::Forget { id, key }, _) => drop(self.kept.remove(&(id, key))),
                (answer, _) => return answer,
            }
        }
    }

    /// Stores the persistent state that has arrived.
    fn listen(&mut self) {
        let filter = Command::FlushFdb { port: None, vlan: None };
        assert_eq!(self.ask(&filter, &[]), Answer::Done);
    }

    fn add(&mut self, id: PortId, resume: bool) {
        let nic = NicConfig {
            model: NicModel::add(crate::attach::card::LOOPBACK.names),
            csb: false,
            combine: None,
            doorbell: Doorbell::Trap,
        };
        let config = PortConfig {
            name: format!("p{id}"),
            policy: Policy::default(),
            worker: None,
            attachment: Attachment::VfioUser(nic),
            uid: 0,
            pid: None,
        };
        let socket = self.sockets[usize::from(id)].as_ref().unwrap().try_clone().unwrap();
        let answer = self.ask(&Command::AddPort { id, config, resume }, &[socket.as_fd()]);
        assert_eq!(answer, Answer::Added { worker: 0 });
    }

    /// Connects a front end to a new port.
    fn plug(&mut self, id: PortId) -> UnixStream {
        let (front_end, socket) = UnixStream::pair().unwrap();
        self.sockets[usize::from(id)] = Some(socket.into());
        self.add(id, false);
        self.ask(&Command::Resume, &[]);
        front_end
    }

    fn remove(&mut self, id: PortId) {
        assert_eq!(self.ask(&Command::RemovePort { id }, &[]), Answer::Done);
        self.sockets[usize::from(id)] = None;
        self.kept.retain(|(of, _), _| *of != id);
    }

    /// Replaces the process; `then` runs while there is none.
    fn replace(&mut self, then: impl FnOnce()) {
        assert_eq!(self.ask(&Command::Stop, &[]), Answer::Done);
        self.thread.take().unwrap().join().unwrap();
        then();
        let kept = std::mem::take(&mut self.kept);
        self.start_process();
        for ((id, key), (value, fd)) in &kept {
            let fds: Vec<_> = fd.iter().map(AsFd::as_fd).collect();
            let restore =
                Command::Restore { id: *id, uid: 0, key: key.clone(), value: value.clone() };
            assert_eq!(self.ask(&restore, &fds), Answer::Done);
        }
        let mut all = kept;
        all.append(&mut self.kept);
        self.kept = all;
        let there: Vec<_> =
            (0..PORTS).filter(|id| self.sockets[usize::from(*id)].is_some()).collect();
        there.into_iter().for_each(|id| self.add(id, true));
        self.ask(&Command::Resume, &[]);
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = control::send(&self.control, &Command::Stop, &[]);
            let _ = thread.join();
        }
    }
}

/// A guest with the device.
struct Guest {
    client: Client,
    file: OwnedFd,
    memory: Arc<Mapping>,
    call: OwnedFd,
}

fn eventfd() -> OwnedFd {
    rustix::event::eventfd(0, EventfdFlags::NONBLOCK).unwrap()
}

fn signals(eventfd: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    rustix::io::read(eventfd, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
}

fn memfd(len: u64) -> OwnedFd {
    let file = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, len).unwrap();
    file
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "no end of waiting for {what}");
        std::thread::yield_now();
    }
}

impl Guest {
    /// Interrupts of `kind`: pin, MSI or MSI-X.
    fn start(socket: UnixStream, kind: u32) -> Self {
        let (file, call) = (memfd(MEMORY), eventfd());
        let memory = Mapping::unsealed(file.as_fd(), MEMORY as usize).unwrap();
        let mut client = Client::on(socket).unwrap();
        client.dma_map(Some(file.as_fd()), 0, 0, MEMORY, true).unwrap();
        client.set_irqs(kind, &[&call]).unwrap();
        let mut guest = Self { client, file, memory, call };
        guest.write(0x10, RECEIVE_AT as u32);
        guest.offer();
        guest
    }

    fn read(&mut self, at: u64) -> u32 {
        let mut data = [0; 4];
        self.client.read(0, at, &mut data).unwrap();
        u32::from_le_bytes(data)
    }

    fn write(&mut self, at: u64, value: u32) {
        self.client.write(0, at, &value.to_le_bytes(), true).unwrap();
    }

    /// Offers the buffer for the next frame.
    fn offer(&mut self) {
        self.write(0x14, 0);
    }

    fn send(&mut self, to: u32, from: u32, text: u8) {
        let [to, from] = [to, from].map(|n| Mac::local(n).octets());
        let frame = [&to[..], &from[..], &[0x88, 0xb5], &[text; 50]].concat();
        self.memory.bytes(SEND_AT as usize, frame.len()).unwrap().copy_in(&frame);
        self.write(0x08, SEND_AT as u32);
        self.write(0x0c, frame.len() as u32);
    }

    /// The content of the received frame, if there is one.
    fn received(&mut self) -> Option<u8> {
        let len = self.read(0x14);
        (len > 0 && len < 1 << 31)
            .then(|| self.memory.bytes(RECEIVE_AT as usize + 14, 1).unwrap().to_vec()[0])
    }

    fn refused(&mut self, command: u16, body: &[u8], fds: &[BorrowedFd<'_>]) -> i32 {
        match self.client.ask(command, body, fds) {
            Err(ClientError::Refused(error)) => error.raw_os_error(),
            other => panic!("not refused: {other:?}"),
        }
    }
}

/// Sends frames from one guest to the other and back, with interrupts.
fn exchange(a: &mut Guest, b: &mut Guest, text: u8) {
    a.offer();
    b.offer();
    wait_until("a frame", || {
        b.send(1, 2, 0);
        a.send(2, 1, text);
        b.received() == Some(text)
    });
}

#[test]
fn registers_frames_and_interrupts() {
    let mut host = Host::start();
    for kind in 0..3 {
        let mut a = Guest::start(host.plug(0), kind);
        let mut b = Guest::start(host.plug(1), kind);
        exchange(&mut a, &mut b, 7);
        b.read(CAUSE);
        if kind == 0 {
            b.client.unmask().unwrap();
        }
        signals(&b.call);
        b.write(MASK, 2);
        b.offer();
        exchange(&mut a, &mut b, 8);
        wait_until("an interrupt", || signals(&b.call) > 0);
        if kind == 0 {
            b.write(MASK, 2);
            b.read(CAUSE);
            assert_eq!(signals(&b.call), 0, "signalled twice without having been looked at");
            b.client.unmask().unwrap();
            b.write(CAUSE, 2);
            wait_until("the level to be signalled again", || signals(&b.call) == 1);
        }
        drop((a, b));
        (0..PORTS).for_each(|id| host.remove(id));
    }
}

/// Drivers that share the pin with others, or pass it to programs, check the status register for
/// this device's interrupt, and mask the pin in the command register (PCI 3.0, 6.2.2 and 6.2.3).
#[test]
fn regression_a_pin_is_seen_in_the_status_register_and_masked_in_the_command_register() {
    const COMMAND: (u32, u64) = (7, 4);
    let mut host = Host::start();
    let mut guest = Guest::start(host.plug(0), 0);
    let is_pending = |guest: &mut Guest| {
        let mut status = [0];
        guest.client.read(COMMAND.0, COMMAND.1 + 2, &mut status).unwrap();
        status[0] & 8 != 0
    };
    let disable = |guest: &mut Guest, on: bool| {
        guest.client.write(COMMAND.0, COMMAND.1 + 1, &[if on { 4 } else { 0 }], false).unwrap();
    };
    assert!(!is_pending(&mut guest));
    guest.write(MASK, 2);
    guest.write(CAUSE, 2);
    wait_until("an interrupt", || signals(&guest.call) == 1);
    assert!(is_pending(&mut guest));
    // Masked: the front end says that it has looked, and gets no signal, although the cause is
    // pending.
    disable(&mut guest, true);
    guest.client.unmask().unwrap();
    assert!(is_pending(&mut guest));
    assert_eq!(signals(&guest.call), 0, "signalled, though it is disabled");
    disable(&mut guest, false);
    wait_until("the level to be signalled again", || signals(&guest.call) == 1);
    guest.read(CAUSE);
    assert!(!is_pending(&mut guest));
}

#[test]
fn regression_a_change_of_the_link_interrupts_a_guest_that_is_silent() {
    let mut host = Host::start();
    for kind in 0..3 {
        let mut guest = Guest::start(host.plug(0), kind);
        guest.write(MASK, LINK);
        for up in [false, true] {
            // Leaves the worker time to become idle.
            std::thread::sleep(Duration::from_millis(5));
            let policy = Policy { link: up, ..Policy::default() };
            assert_eq!(host.ask(&Command::SetPolicy { id: 0, policy }, &[]), Answer::Done);
            wait_until("an interrupt", || signals(&guest.call) == 1);
            if kind == 0 {
                assert_eq!(guest.read(CAUSE), LINK);
                guest.client.unmask().unwrap();
            }
        }
        drop(guest);
        host.remove(0);
    }
}

#[test]
fn a_successor_continues_unnoticed() {
    let mut host = Host::start();
    let mut a = Guest::start(host.plug(0), 2);
    let mut b = Guest::start(host.plug(1), 0);
    for round in 1..5 {
        exchange(&mut a, &mut b, round);
        a.write(0x18, 0x1234 + u32::from(round));
        a.client.write(7, 0x3c, &[round], false).unwrap();
        let mut waiting = a.client.socket().try_clone().unwrap();
        host.listen();
        // Messages sent while no process listens are carried out later: a write, and a read that
        // waits.
        host.replace(|| {
            let bytes = [
                &[1, 0, 10, 0][..],
                &words(&[36, flags::NO_REPLY, 0, 0x1c, 0, 0, 4, 0x55 + u32::from(round)]),
            ];
            std::io::Write::write_all(&mut waiting, &bytes.concat()).unwrap();
        });
        assert_eq!(a.read(0x18), 0x1234 + u32::from(round));
        assert_eq!(a.read(0x1c), 0x55 + u32::from(round));
        let mut line = [0];
        a.client.read(7, 0x3c, &mut line).unwrap();
        assert_eq!(line, [round]);
    }
    exchange(&mut a, &mut b, 100);
}

#[test]
fn memory_that_is_unmapped_is_not_touched_any_more() {
    let mut host = Host::start();
    let mut a = Guest::start(host.plug(0), 2);
    let mut b = Guest::start(host.plug(1), 2);
    exchange(&mut a, &mut b, 7);
    for _ in 0..20 {
        b.offer();
        a.send(2, 1, 9);
        b.client.dma_unmap(0, MEMORY).unwrap();
        b.memory.all().fill(0);
        a.send(2, 1, 10);
        a.read(CAUSE);
        assert_eq!(b.memory.bytes(RECEIVE_AT as usize, 64).unwrap().to_vec(), [0; 64]);
        // Read-only memory: frames are sent from there, but none is received into it.
        b.client.dma_map(Some(b.file.as_fd()), 0, 0, MEMORY, false).unwrap();
        b.offer();
        a.send(2, 1, 11);
        a.read(CAUSE);
        a.offer();
        wait_until("a frame from memory that is only read", || {
            b.send(1, 2, 12);
            a.received() == Some(12)
        });
        assert_eq!(b.memory.bytes(RECEIVE_AT as usize, 64).unwrap().to_vec(), [0; 64]);
        b.client.dma_unmap(0, MEMORY).unwrap();
        b.client.dma_map(Some(b.file.as_fd()), 0, 0, MEMORY, true).unwrap();
    }
    exchange(&mut a, &mut b, 13);
}

/// Objective: a device that was stopped for migration does not write, does not interrupt, and keeps
/// its state.
///
/// Steps: stop one of two devices that exchange frames; send frames to it until they are counted as
/// dropped; check its memory, eventfd and registers; let it run and exchange frames again. Reset it
/// while it is stopped.
#[test]
fn a_device_that_stands_still_touches_nothing_and_goes_on() {
    let mut host = Host::start();
    let mut a = Guest::start(host.plug(0), 2);
    let mut b = Guest::start(host.plug(1), 2);
    let down = |host: &Host| {
        let state = state::State::map(&host.memory, &config()).unwrap().port(1).unwrap();
        state.egress(0).unwrap().drops[port::DropReason::Down as usize].get()
    };
    exchange(&mut a, &mut b, 7);
    b.write(0x18, 0x1234);
    for round in 0..5 {
        b.write(MASK, 2);
        b.read(CAUSE);
        b.offer();
        b.client.set_device_state(DeviceState::Stop).unwrap();
        signals(&b.call);
        b.memory.all().fill(0);
        let before = down(&host);
        wait_until("a frame to be dropped", || {
            a.send(2, 1, 9);
            down(&host) > before
        });
        assert_eq!(b.memory.bytes(RECEIVE_AT as usize, 64).unwrap().to_vec(), [0; 64]);
        assert_eq!((signals(&b.call), b.read(0x18)), (0, u32::MAX));
        let mut vendor = [0; 2];
        b.client.read(7, 0, &mut vendor).unwrap();
        assert_eq!(vendor, [0xf4, 0x1a], "configuration space is there");
        if round == 3 {
            host.listen();
            host.replace(|| ());
            assert_eq!(b.client.device_state().unwrap(), DeviceState::Stop as u32);
        }
        b.client.set_device_state(DeviceState::Running).unwrap();
        assert_eq!(b.read(0x18), 0x1234);
        exchange(&mut a, &mut b, 10 + round);
    }
    b.client.set_device_state(DeviceState::Stop).unwrap();
    b.client.reset().unwrap();
    assert_eq!(b.client.device_state().unwrap(), DeviceState::Running as u32);
    assert_eq!(b.read(0x18), 0);
}

#[test]
fn what_cannot_be_had_is_refused_and_the_session_goes_on() {
    const INVAL: i32 = 22;
    let mut host = Host::start();
    let mut guest = Guest::start(host.plug(0), 2);
    let file = memfd(MEMORY);
    let map = |flags: u32, offset: u64, address: u64, size: u64| {
        [words(&[32, flags]), longs(&[offset, address, size])].concat()
    };
    let read = |region: u32, at: u64, count: u32| {
        [&at.to_ne_bytes()[..], &region.to_ne_bytes(), &count.to_ne_bytes()].concat()
    };
    for (what, command, body, want) in [
        ("memory twice", command::DMA_MAP, map(3, 0, 0x1000, 0x1000), 17),
        ("no memory", command::DMA_MAP, map(3, 0, 1 << 40, 0), INVAL),
        ("beyond the end", command::DMA_MAP, map(3, 0, u64::MAX, 2), INVAL),
        ("written only", command::DMA_MAP, map(2, 0, 1 << 40, 4096), INVAL),
        ("half of a range", command::DMA_UNMAP, map(0, 0, 0x1000, 0)[..24].into(), INVAL),
        ("no region", command::DEVICE_GET_REGION_INFO, words(&[32, 0, 9, 0, 0, 0, 0, 0]), INVAL),
        ("no kind", command::DEVICE_GET_IRQ_INFO, words(&[16, 0, 3, 0]), INVAL),
        ("no vector", command::DEVICE_SET_IRQS, words(&[20, 33, 2, 2, 1]), INVAL),
        ("all vectors", command::DEVICE_SET_IRQS, words(&[20, 33, 2, 1, u32::MAX]), INVAL),
        ("no action", command::DEVICE_SET_IRQS, words(&[20, 1, 2, 0, 1]), INVAL),
        ("three bytes", command::REGION_READ, read(0, 0, 3), INVAL),
        ("no bytes", command::REGION_READ, read(0, 0, 0), INVAL),
        ("beyond a region", command::REGION_READ, read(0, 4094, 4), INVAL),
        ("far beyond it", command::REGION_READ, read(0, u64::MAX, 4), INVAL),
        ("no such region", command::REGION_READ, read(2, 0, 4), INVAL),
        ("all of it", command::REGION_READ, read(7, 0, u32::MAX), INVAL),
        ("something unknown", 999, vec![1; 64], 95),
    ] {
        let fds = [file.as_fd()];
        let fds = if command == command::DMA_MAP { &fds[..] } else { &[] };
        assert_eq!(guest.refused(command, &body, fds), want, "{what}");
        assert_eq!(guest.read(0x10), RECEIVE_AT as u32);
    }
    let mut all = [0; 256];
    guest.client.read(7, 0, &mut all).unwrap();
    assert_eq!(all[..4], [0xf4, 0x1a, 0xfe, 0xff]);
}
