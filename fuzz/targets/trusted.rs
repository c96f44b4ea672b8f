//! The memory that processes of a trusted switch share, written by one of them that is hostile or
//! dies: its counters, cursors, table and board, its ports' regions, and what is at the other end
//! of their tokens. The others and the data process go on, or say that a port is gone. No panic and
//! no loop, no question to the daemon without end, nothing that stays behind. A data process that
//! starts on such memory serves its supervisor.
//!
//! The lock is left free or as a dead holder leaves it: a process that keeps it does stop the
//! others (docs/trusted.md).
//!
//! The input is a list of 13-byte steps: what to do, where (u32), and a value (u64).
#![no_main]

use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::fs::MetadataExt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use dataplane::SwitchConfig;
use dataplane::config::{Attachment, Policy, PortConfig, PortId};
use dataplane::control::{self, Answer, Command, VERSION};
use dataplane::state::{self, State};
use frame::Mac;
use inline::trusted::{Supply, Trusted};
use libfuzzer_sys::fuzz_target;
use netring::layout::RING_HEADER;
use netring::{Open, Port, PortError, Region, RegionConfig};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, socketpair};
use shmem::{Mapping, Memfd, Pages};
use toklat_fuzz::{Costs, data_process, steps};
use turn::attach::ring::RingAttach;
use turn::board::{Board, Entry};

const NAMES: [&str; 3] = ["left", "right", "hostile"];
/// Steps of an input that are carried out.
const STEPS: usize = 128;
/// Questions to the daemon that one turn may need: each port's memory, and its wake-up.
const QUESTIONS: u32 = 2 * 4;
const PAGE: usize = 4096;
/// Bytes of a port's slot of the board, and where its text begins.
const SLOT: usize = 16 << 10;
const TEXT: usize = 64;
/// A holder died (`FUTEX_OWNER_DIED`), and threads sleep at the lock (`FUTEX_WAITERS`).
const FREE: u64 = 0xc000_0000;

fn config() -> SwitchConfig {
    SwitchConfig {
        max_ports: 4,
        fdb_entries: 64,
        batch: 16,
        stall_timeout_ms: 100,
        trusted: true,
        ..SwitchConfig::default()
    }
}

/// A process's port.
struct Part {
    port: Port,
    rings: RingAttach,
    region: Arc<Region>,
    file: u64,
    /// The owner's end of the token.
    token: OwnedFd,
}

impl Part {
    /// The port, and the descriptors that the daemon has of it.
    fn new(name: &str) -> (Self, [OwnedFd; 2]) {
        let region = Region::create(RegionConfig::ports(1, 1, 32)).expect("memory");
        let port = Open::new(name).slots(32).in_region(&region).inline().expect("its size");
        let rings = RingAttach::from(&port.rings());
        let memory = region.file().expect("a file").try_clone_to_owned().expect("a descriptor");
        let file = std::fs::File::from(memory.try_clone().expect("a descriptor"));
        let file = file.metadata().expect("it has").st_ino();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let (bell, token) = pair.expect("a token");
        (Self { port, rings, region, file, token }, [memory, bell])
    }
}

/// What the daemon answers.
struct Answers {
    parts: Vec<[OwnedFd; 2]>,
    /// The port that the daemon is asked for another time, or does not know.
    refused: Option<(usize, ErrorKind)>,
    questions: u32,
}

/// The daemon.
#[derive(Clone)]
struct Daemon(Arc<Mutex<Answers>>);

impl Supply for Daemon {
    fn port(&self, name: &str) -> Result<(OwnedFd, OwnedFd)> {
        let mut answers = self.0.lock().expect("no panic");
        answers.questions += 1;
        assert!(answers.questions <= QUESTIONS, "a turn asks and asks");
        let known = NAMES.iter().position(|other| *other == name);
        let known = known.ok_or_else(|| Error::from(ErrorKind::NotFound))?;
        if let Some((_, kind)) = answers.refused.filter(|(port, _)| *port == known) {
            return Err(kind.into());
        }
        let [memory, bell] = &answers.parts[known];
        Ok((memory.try_clone()?, bell.try_clone()?))
    }
}

impl Daemon {
    /// Does something that may ask the daemon, for a bounded time and number of questions.
    fn step<T>(&self, step: impl FnOnce() -> T) -> T {
        self.0.lock().expect("no panic").questions = 0;
        Costs::step(step)
    }
}

/// The data process, and its supervisor's connection.
struct Keeper {
    connection: OwnedFd,
    thread: JoinHandle<()>,
}

impl Keeper {
    fn start(memory: &Memfd) -> Self {
        let file = memory.as_fd().try_clone_to_owned().expect("a descriptor");
        let (address, thread) = data_process::start(config(), file);
        let keeper = Self { connection: data_process::connect(&address), thread };
        let hello = keeper.ask(&Command::Hello { version: VERSION }, &[]);
        assert!(matches!(hello, Answer::Hello { .. }), "{hello:?}");
        keeper
    }

    fn ask(&self, command: &Command, fds: &[OwnedFd]) -> Answer {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        control::send(&self.connection, command, &fds).expect("it reads");
        self.answer()
    }

    fn answer(&self) -> Answer {
        data_process::answer(&self.connection).expect("it answers")
    }

    /// Adds a port; whether it could be added is not the question.
    fn add(&self, id: PortId, rings: RingAttach, fds: &[OwnedFd; 2], resume: bool) {
        let config = PortConfig {
            name: NAMES[usize::from(id)].to_owned(),
            policy: Policy::default(),
            worker: None,
            attachment: Attachment::Ring(rings),
            uid: 1000,
            pid: None,
        };
        let _ = self.ask(&Command::AddPort { id, config, resume }, fds);
    }

    fn list(&self) {
        control::send(&self.connection, &Command::ListPorts, &[]).expect("it reads");
        while matches!(self.answer(), Answer::Port { .. }) {}
    }

    fn stop(self) {
        assert_eq!(self.ask(&Command::Stop, &[]), Answer::Done);
        self.thread.join().expect("it ends well");
    }
}

struct Switch {
    memory: Memfd,
    /// The state memory, as any process of the switch has it.
    map: Arc<Mapping>,
    state: State,
    board: Board,
    daemon: Daemon,
    parts: Vec<Part>,
    /// What the data process gets with each.
    fds: Vec<[OwnedFd; 2]>,
    keeper: Keeper,
    /// The honest process.
    process: Trusted,
}

impl Switch {
    fn new() -> Self {
        let memory = Memfd::create("state", state::file_size(&config()), Pages::Small);
        let memory = memory.expect("memory");
        let (parts, fds): (Vec<_>, Vec<_>) = NAMES.iter().map(|name| Part::new(name)).unzip();
        let keeper = Keeper::start(&memory);
        for (id, (part, fds)) in parts.iter().zip(&fds).enumerate() {
            keeper.add(id as PortId, part.rings, fds, false);
        }
        assert_eq!(keeper.ask(&Command::Resume, &[]), Answer::Done);
        let answers =
            Answers { parts: fds.iter().map(twins).collect(), refused: None, questions: 0 };
        let daemon = Daemon(Arc::new(Mutex::new(answers)));
        let state = State::map(&memory, &config()).expect("its size");
        let board = Board::of(&state).expect("it is trusted");
        let process = Trusted::join(&memory, &config(), Box::new(daemon.clone()));
        let process = process.expect("an honest switch");
        let map = memory.map().expect("memory");
        Self { memory, map, state, board, daemon, parts, fds, keeper, process }
    }

    /// Writes `value` into the state memory.
    fn scribble(&self, offset: usize, value: u64) {
        if let Some(window) = self.map.bytes(offset & !7, 8) {
            window.write(0, value);
        }
    }

    fn board_at(&self) -> usize {
        state::file_size(&SwitchConfig { trusted: false, ..config() })
    }

    /// Counters, cursors and spare buffers of a port.
    fn write_port(&self, at: u32, value: u64) {
        let Some(port) = self.state.port(at as PortId & 3) else { return };
        let ring = (at >> 2 & 1) as usize;
        let (Some(receive), Some(send)) = (port.receive(ring), port.send(ring)) else { return };
        let order = Ordering::Relaxed;
        match at >> 3 & 7 {
            0 => receive.published.publish(value as u32),
            1 => receive.released.publish(value as u32),
            2 => receive.primed.store(value as u32, order),
            3 => send.taken.publish(value as u32),
            4 => receive.counters.frames.set(value),
            5 => port.ingress().iter().for_each(|counters| counters.frames.set(value)),
            6 => port.set_failed(value & 1 != 0),
            _ => {
                let spares = port.spares(ring);
                let spare = spares.as_deref().and_then(|all| all.get((at >> 6 & 31) as usize));
                spare.iter().for_each(|spare: &&AtomicU32| spare.store(value as u32, order));
            }
        }
    }

    /// The words at the head of the board.
    fn write_board(&self, at: u32, value: u64) {
        let word = (at % 6) as usize;
        match word {
            0 => {
                let lock = self.map.shared::<AtomicU64>(self.board_at());
                let free = u64::from(value as u32) & FREE;
                lock.expect("it is there").store(free, Ordering::Relaxed);
            }
            word => self.scribble(self.board_at() + 64 + 8 * (word - 1), value),
        }
    }

    /// A port's slot: its head, or eight bytes of its text.
    fn write_slot(&self, at: u32, value: u64) {
        let slot = self.board_at() + PAGE + (at & 3) as usize * SLOT;
        match at >> 2 & 3 {
            0 => self.scribble(slot, value),
            1 => self.scribble(slot + 8, value),
            _ => self.scribble(slot + TEXT + (at >> 4) as usize % 1024, value),
        }
    }

    /// An entry that reads well, in which one thing is as the peer likes.
    fn write_entry(&self, at: u32, value: u64) {
        let (id, from) = (at as PortId & 3, at >> 2 & 3);
        let Some(entry) = self.board.read(from as PortId) else { return };
        let mut entry = Entry { id, ..entry };
        let small = value as u32;
        let rings = &mut entry.rings;
        match at >> 4 & 31 {
            0 => rings.geometry.if_size = small,
            1 => rings.geometry.if_num = small,
            2 => rings.geometry.ring_size = small,
            3 => rings.geometry.ring_num = small,
            4 => rings.geometry.buf_size = small,
            5 => rings.geometry.buf_num = small,
            6 => rings.tx.first = small,
            7 => rings.tx.rings = small,
            8 => rings.tx.slots = small,
            9 => rings.rx.first = small,
            10 => rings.rx.rings = small,
            11 => rings.rx.slots = small,
            12 => rings.buf_usable = small,
            13 => rings.offloads = frame::OffloadSet::ALL,
            14 => entry.instance = value,
            15 => entry.file = value,
            16 => entry.name = NAMES[(value % 3) as usize].to_owned(),
            17 => entry.name = "n".repeat(small as usize % 2048),
            18 => entry.monitor = Some((small as PortId & 7, value >> 32 & 1 != 0, true)),
            19 => entry.policy.lossless = true,
            20 => entry.policy.mtu = value as u16,
            21 => entry.policy.flood_limit = Some(small),
            22 => entry.policy.mac_limit = small,
            23 => entry.policy.locked = true,
            24 => {
                entry.policy.guard = true;
                let own = std::net::Ipv4Addr::from_bits(small).into();
                entry.policy.ips = vec![own; small as usize % 3];
            }
            25 => entry.policy.protected = true,
            26 => entry.policy.macs = vec![Mac::local(value as u32 & 63); small as usize % 64],
            27 => rings.geometry = netring::layout::Geometry { buf_num: small, ..all_ones() },
            28 => entry.policy.mirror_ingress = Some(NAMES[(value % 3) as usize].to_owned()),
            29 => entry.policy.mirror_egress = Some(NAMES[(value % 3) as usize].to_owned()),
            30 => {
                let vlan = frame::VlanId::new(value as u16);
                entry.policy.vlan =
                    vlan.map_or(fabric::VlanMode::Unaware, fabric::VlanMode::Access);
            }
            // As it was: in another slot.
            _ => {}
        }
        let _ = self.board.write(&entry);
    }

    /// A port's region, as `hostile_ring` does it.
    fn write_region(&self, at: u32, value: u64) {
        let part = &self.parts[(at % 3) as usize];
        let (geometry, ring, at) = (part.rings.geometry, at >> 2 & 1, at >> 4);
        let offset = match at & 3 {
            0 => geometry.control_offset(ring) + u64::from(at >> 2 & 3) * 64,
            1 => geometry.ring_offset(ring) + RING_HEADER as u64 + u64::from(at >> 2 & 31) * 8,
            2 => geometry.buf_offset() + u64::from(at >> 2 & 31) * u64::from(geometry.buf_size),
            _ => (u64::from(at) % geometry.file_size()) & !7,
        };
        if let Some(window) = part.region.mapping().bytes(offset as usize, 8) {
            window.write(0, value);
        }
    }

    /// What a token's other end does, and what the daemon says.
    fn disturb(&self, at: u32, value: u64) {
        let (which, mut answers) = ((at % 3) as usize, self.daemon.0.lock().expect("no panic"));
        let token = &self.parts[which].token;
        match at >> 2 & 7 {
            0 => drop(rustix::net::shutdown(token, Shutdown::Both)),
            1 => while rustix::net::send(&answers.parts[which][1], &[1; 4096], quiet()).is_ok() {},
            2 => answers.parts.swap(which, (value % 3) as usize),
            3 => answers.parts[which].swap(0, 1),
            4 => answers.refused = Some((which, ErrorKind::NotFound)),
            5 => answers.refused = Some((which, ErrorKind::TimedOut)),
            6 => answers.refused = None,
            // A file of another size, without seals.
            _ => {
                let file = rustix::fs::memfd_create("other", rustix::fs::MemfdFlags::CLOEXEC);
                answers.parts[which][0] = file.expect("memory");
            }
        }
    }

    /// A command to the data process, whose answer is awaited.
    fn command(&self, at: u32, value: u64) {
        let id = at as PortId & 3;
        match at >> 2 & 7 {
            0 => {
                let policy = Policy { guard: value & 1 != 0, ..Policy::default() };
                let _ = self.keeper.ask(&Command::SetPolicy { id, policy }, &[]);
            }
            1 => drop(self.keeper.ask(&Command::FlushFdb { port: Some(id), vlan: None }, &[])),
            2 => drop(self.keeper.ask(&Command::RemovePort { id }, &[])),
            3 => self.add(id, true),
            4 => self.add(id, false),
            5 => {
                let add =
                    Command::AddFdb { mac: Mac::local(value as u32 & 63), vlan: None, port: id };
                let _ = self.keeper.ask(&add, &[]);
            }
            6 => drop(self.keeper.ask(&Command::Resume, &[])),
            _ => self.keeper.list(),
        }
    }

    fn add(&self, id: PortId, resume: bool) {
        let Some(part) = self.parts.get(usize::from(id)) else { return };
        self.keeper.add(id, part.rings, &self.fds[usize::from(id)], resume);
    }

    /// Another process takes part from now on, unless the memory is not one that it joins.
    fn join(&mut self) {
        let daemon = Box::new(self.daemon.clone());
        if let Ok(joined) = self.daemon.step(|| Trusted::join(&self.memory, &config(), daemon)) {
            self.process = joined;
        }
    }

    /// What a supervisor reads.
    fn look(&self) {
        Costs::step(|| {
            let state = State::map(&self.memory, &config()).expect("its size");
            let ports: Vec<_> = state.ports().collect();
            assert!(ports.len() <= usize::from(config().max_ports));
            for port in ports.iter().filter_map(|id| state.port(*id)) {
                let _ = (port.snapshot().unaccounted(), port.standing(), port.is_stalled());
            }
            let _ = (state.switch().snapshot().gone.unaccounted(), state.workers(1));
            let _ = (state.at_work(1), state.take_last_deed(1));
            assert!(state.fdb(turn::clock()).len() <= 4 * 64, "no more than the table has");
            let _ = state.recorder().rate();
        });
    }

    fn do_step(&mut self, what: u8, at: u32, value: u64) {
        let anywhere = at as usize * 8;
        match what % 12 {
            0 => {
                // Not the lock: see above.
                let offset = anywhere % self.map.len();
                if offset != self.board_at() {
                    self.scribble(offset, value);
                }
            }
            // Totals, workers, records, journal, table.
            1 => self.scribble(anywhere % (64 << 10), value),
            2 => self.write_port(at, value),
            3 => self.write_board(at, value),
            4 => self.write_slot(at, value),
            5 => self.write_entry(at, value),
            6 => self.write_region(at, value),
            7 => self.disturb(at, value),
            8 => self.command(at, value),
            9 => self.join(),
            10 => self.look(),
            // Written by hand, a slot is read again at the next change only.
            _ => self.board.clear(at as PortId & 3),
        }
    }

    /// The honest process sends from each of its two ports to the other one, and to everyone.
    fn exchange(&mut self) {
        for (from, to) in [(0_u16, 1_u16), (1, 0), (0, 9)] {
            let mut frame = [0x55; 100];
            frame[..6].copy_from_slice(&Mac::local(u32::from(to) + 1).octets());
            frame[6..12].copy_from_slice(&Mac::local(u32::from(from) + 1).octets());
            let part = &mut self.parts[usize::from(from)];
            part.port.receive(usize::MAX).for_each(drop);
            part.port.send(1).push(&frame);
            match part.port.flush() {
                Ok(()) => {}
                Err(PortError::Fault(_)) => drop(part.port.reset()),
                Err(_) => {}
            }
            let (process, file) = (&mut self.process, part.file);
            // It may be gone, as the memory has it.
            let _ = self.daemon.step(|| process.turn(from, file, turn::clock()));
        }
    }

    /// Ends the data process, and has a successor take all over.
    fn end(self) {
        let Self { memory, parts, fds, keeper, process, .. } = self;
        keeper.stop();
        let successor = Keeper::start(&memory);
        for (id, part) in parts.iter().enumerate() {
            successor.add(id as PortId, part.rings, &fds[id], true);
        }
        let _ = successor.ask(&Command::Resume, &[]);
        successor.list();
        drop(process);
        successor.stop();
    }
}

/// Duplicates of a port's descriptors.
fn twins(fds: &[OwnedFd; 2]) -> [OwnedFd; 2] {
    [0, 1].map(|at: usize| fds[at].try_clone().expect("a descriptor"))
}

const fn quiet() -> rustix::net::SendFlags {
    rustix::net::SendFlags::DONTWAIT.union(rustix::net::SendFlags::NOSIGNAL)
}

const fn all_ones() -> netring::layout::Geometry {
    let most = u32::MAX;
    netring::layout::Geometry {
        if_size: most,
        if_num: most,
        ring_size: most,
        ring_num: most,
        buf_size: most,
        buf_num: most,
    }
}

fuzz_target!(init: {
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var(dataplane::sandbox::SWITCH, "off") };
}, |input: &[u8]| {
    // One run comes first, so that things that are made once exist before anything is counted.
    Switch::new().end();
    let costs = Costs::now();
    let mut switch = Switch::new();
    for (what, at, value) in steps(input).take(STEPS) {
        switch.do_step(what & 0x7f, at, value);
        if what & 0x80 == 0 {
            switch.exchange();
        }
    }
    switch.exchange();
    switch.look();
    switch.end();
    costs.assert_gone();
});
