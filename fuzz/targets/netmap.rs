//! What a program with netmap's interface asks, in memory of its own of any content that may change
//! between two reads: requests of the new and the old interface, with their options, bodies and
//! names; and the daemon's broker, which also gets messages of a program that does without the
//! library. All is carried out or refused with an error number; what the program reads back is its
//! own; rings over memory of any content are synced without a fault of ours; and at the end no
//! port, no region's charge, no descriptor is left.
//!
//! The input is a list of steps: what, where, and a value. They write the program's memory, or a
//! region's; lay out a request of a form that the kernel takes; or make a call.
#![no_main]

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use jail::strangers::Descriptor;
use libfuzzer_sys::fuzz_target;
use netmap::abi::{Header, Legacy, OptionHeader, Register, mode, name_of, option};
use netmap::broker::{
    Accounts, Attached, Broker, Charge, Effect, Facts, File, Held, Interface, NewPort, Outcome,
    Place, Task, interface_name,
};
use netmap::client::{
    Bound, Program, UserMemory, control, legacy_info, legacy_register, start_arguments,
};
use netmap::wire::{Answer, Ask, kind};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use toklat_fuzz::{Costs, steps};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

/// Where the program's memory starts, and its bytes.
const BASE: u64 = 0x1000;
const BYTES: usize = 64 << 10;
/// Where requests of a good form lie in it.
const HEADER: u64 = BASE + 0x100;
const BODY: u64 = BASE + 0x200;
const OPTIONS: u64 = BASE + 0x400;
const LEGACY: u64 = BASE + 0x1000;
/// How many descriptors the program has. The first of them are root's.
const COOKIES: u64 = 8;
const ROOTS: u64 = 2;
/// Bytes of a region that the switches charge for: larger ones only cost time.
const MOST: i64 = 24 << 20;
/// Steps of one input.
const STEPS: usize = 128;
const NAMES: [&str; 12] = [
    "vale0:a",
    "vale0:b",
    "vale1:a",
    "vale0:a{1",
    "vale0:a}1",
    "p{x",
    "p}x",
    "p",
    "vale0:p",
    "netmap:p",
    "eth0",
    "vale0:",
];

/// The program's memory.
struct Memory {
    bytes: RefCell<Vec<u8>>,
    /// From this number on, another thread changes the memory between two reads.
    changes: Cell<u64>,
}

impl Memory {
    fn range(at: u64, len: usize) -> Result<std::ops::Range<usize>, Errno> {
        let start = at.checked_sub(BASE).and_then(|at| usize::try_from(at).ok());
        let start = start.ok_or(Errno::FAULT)?;
        let end = start.checked_add(len).filter(|end| *end <= BYTES).ok_or(Errno::FAULT)?;
        Ok(start..end)
    }

    fn put(&self, at: u64, value: &(impl IntoBytes + Immutable)) {
        self.write(at, value.as_bytes()).expect("it lies within");
    }
}

impl UserMemory for Memory {
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Errno> {
        let range = Self::range(at, into.len())?;
        let mut bytes = self.bytes.borrow_mut();
        into.copy_from_slice(&bytes[range]);
        let mut changes = self.changes.get();
        if changes != 0 {
            changes ^= changes << 13;
            changes ^= changes >> 7;
            changes ^= changes << 17;
            self.changes.set(changes);
            bytes[changes as usize % BYTES] = (changes >> 32) as u8;
        }
        Ok(())
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Errno> {
        let range = Self::range(at, bytes.len())?;
        self.bytes.borrow_mut()[range].copy_from_slice(bytes);
        Ok(())
    }
}

impl Program for Memory {
    fn load(&self, at: u64) -> u32 {
        let mut word = [0; 4];
        // If the read fails, the word is zero.
        let _ = self.read(at, &mut word);
        u32::from_le_bytes(word)
    }

    fn store(&self, at: u64, value: u32) {
        let _ = self.write(at, &value.to_le_bytes());
    }

    fn signal(&self, _: i32) {}

    fn wait(&self, _: &[i32], _: &[BorrowedFd<'_>], _: std::time::Duration) {}
}

/// The state that the daemon keeps for programs.
#[derive(Default)]
struct Kept {
    ports: Mutex<BTreeMap<String, OwnedFd>>,
    charges: AtomicUsize,
}

/// The accounts of users.
struct Ports(Arc<Kept>);

struct Charged(Arc<Kept>);

impl Drop for Charged {
    fn drop(&mut self) {
        self.0.charges.fetch_sub(1, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for Ports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ports")
    }
}

impl Accounts for Ports {
    fn charge(&self, _: u32, held: Held<'_>) -> Result<Charge, Errno> {
        if let Held::Region(memory) = held
            && rustix::fs::fstat(memory)?.st_size > MOST
        {
            return Err(Errno::NOMEM);
        }
        self.0.charges.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(Charged(Arc::clone(&self.0))))
    }
}

impl Kept {
    /// What the daemon does for the broker.
    fn effect(&self, effect: Effect) -> Outcome {
        match effect {
            Effect::Attach(port) => Outcome::Attached(self.attach(&port)),
            Effect::Detach(Place { switch, port }) => {
                self.ports.lock().expect("no panic").remove(&format!("{switch}:{port}"));
                Outcome::Done(Ok(()))
            }
            Effect::OpenCard { .. } => Outcome::Card(Err(Errno::NXIO)),
            Effect::Plug { .. } => Outcome::Done(Err(Errno::INVAL)),
            Effect::Unplug { .. } => Outcome::Done(Err(Errno::NXIO)),
            Effect::Join { .. } => Outcome::Done(Err(Errno::BUSY)),
            _ => Outcome::Done(Ok(())),
        }
    }

    fn attach(&self, port: &NewPort) -> Result<Attached, Errno> {
        let len = rustix::fs::fstat(&port.memory)?.st_size as usize;
        let geometry = port.geometry;
        assert!(geometry.check(len).is_ok(), "{geometry:?} in {len} bytes");
        assert!(port.tx.check(&geometry).is_ok() && port.rx.check(&geometry).is_ok());
        let mut ports = self.ports.lock().expect("no panic");
        let Place { switch, port: name } = &port.place;
        let name = match port.monitor {
            None => name.clone(),
            Some(_) => format!("{name}/{}", ports.len()),
        };
        let whole = format!("{switch}:{name}");
        if ports.contains_key(&whole) {
            return Err(Errno::BUSY);
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (token, ours) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        ports.insert(whole, ours);
        Ok(Attached { token, name, number_if_trusted: None })
    }
}

struct Machine {
    memory: Rc<Memory>,
    kept: Arc<Kept>,
    broker: Broker,
    bound: BTreeMap<u64, Bound>,
}

impl Machine {
    fn new() -> Self {
        let kept = Arc::new(Kept::default());
        let mut broker = Broker::new(Box::new(Ports(Arc::clone(&kept))));
        (0..COOKIES).for_each(|cookie| broker.open(cookie, user(cookie)).expect("no limit"));
        let bytes = RefCell::new(vec![0; BYTES]);
        let memory = Rc::new(Memory { bytes, changes: Cell::new(0) });
        Self { memory, kept, broker, bound: BTreeMap::new() }
    }

    fn step(&mut self, (what, at, value): (u8, u32, u64)) {
        let cookie = u64::from(what >> 4) % COOKIES;
        let user = Rc::clone(&self.memory);
        let place = BASE + u64::from(at) % BYTES as u64;
        // A refused request is ignored.
        let _ = match what & 15 {
            0 => user.write(place, &value.to_le_bytes()),
            1 => return self.lay_out(at, value),
            2 => return self.lay_out_options(at, value),
            3 => return self.lay_out_legacy(at, value),
            4 => self.call(cookie, if value == 0 { HEADER } else { value }),
            5 => {
                let at = if value == 0 { LEGACY } else { value };
                legacy_register(&*user, at, |ask| self.ask(cookie, ask, None))
            }
            6 => legacy_info(&*user, LEGACY, |ask| self.ask(cookie, ask, None)),
            7 => self.message(cookie, place),
            8 => return self.region(cookie, at, value),
            9 => return self.sync(cookie, value),
            10 => return self.close(cookie),
            11 => self.blocks(cookie, (place, value)),
            _ => return user.changes.set(value),
        };
    }

    /// A request of the new interface.
    fn call(&mut self, cookie: u64, at: u64) -> Result<(), Errno> {
        let memory = Rc::clone(&self.memory);
        control(&*memory, at, |question| {
            // The library itself carries out the parts that the daemon does not.
            let _ = start_arguments(question.ask.body[0].into(), &question.local);
            let lent = question.local.extmem.and_then(|_| lend());
            self.ask(cookie, &question.ask, lent)
        })
    }

    /// Sends a request to the daemon, and binds the descriptor as the answer says.
    fn ask(&mut self, cookie: u64, ask: &Ask, lent: Option<File>) -> Result<Answer, Errno> {
        let (answer, fds) = match ask.kind {
            kind::IDENTIFY => self.broker.identify(cookie, ask),
            _ => {
                let name = interface_name(ask).filter(|name| name.starts_with('e'));
                let interface = name.map(|name| Interface { name: name.into(), is_card: false });
                let facts = Facts { interface, cpus: 1 };
                let task = self.broker.control(cookie, 1, ask, lent, facts);
                let task = self.finish(task);
                self.broker.reply(&task)
            }
        };
        assert!((0..134).contains(&answer.status), "status {}", answer.status);
        assert!(answer.bound.port == 0 || !fds.is_empty(), "bound without a memory file");
        if answer.status == 0 && answer.bound.port != 0 && !self.bound.contains_key(&cookie) {
            let bound = Bound::new(&answer.bound, fds, |fd| fd).expect("what the daemon describes");
            self.bound.insert(cookie, bound);
        }
        Ok(answer)
    }

    /// Carries out the effects of a request.
    fn finish(&mut self, mut task: Task) -> Task {
        while let Some(effect) = self.broker.next(&mut task) {
            let outcome = self.kept.effect(effect);
            self.broker.told(&mut task, outcome);
        }
        task
    }

    /// A message to the daemon that the library did not make.
    fn message(&mut self, cookie: u64, at: u64) -> Result<(), Errno> {
        let mut bytes = [0; size_of::<Ask>()];
        self.memory.read(at, &mut bytes)?;
        let ask = Ask::read_from_bytes(&bytes).map_err(|_| Errno::INVAL)?;
        self.ask(cookie, &ask, lend().filter(|_| ask.options.has(option::EXTMEM))).map(drop)
    }

    /// A request of a form that the kernel takes.
    fn lay_out(&self, at: u32, value: u64) {
        let [kind, name, ring, how] = at.to_le_bytes();
        let [slots, rings, extra, id, options, version, low, high] = value.to_le_bytes();
        let header = Header {
            version: 14 + u16::from(version & 3),
            reqtype: u16::from(kind % 18),
            reserved: 0,
            name: name_of(NAMES[usize::from(name) % NAMES.len()]),
            options: if options == 0 { 0 } else { OPTIONS },
            body: if kind & 0x80 == 0 { BODY } else { 0 },
        };
        let register = Register {
            tx_slots: u32::from(slots) << 2,
            rx_slots: u32::from(slots),
            tx_rings: u16::from(rings & 15),
            rx_rings: u16::from(rings >> 4),
            mem_id: u16::from(id),
            ringid: u16::from(ring),
            mode: if how == 0 { mode::ALL_NIC } else { u32::from(how) },
            extra_bufs: u32::from(extra) << 3,
            flags: u64::from(low) << 8 | u64::from(high) << 16,
            ..Register::default()
        };
        self.memory.put(HEADER, &header);
        self.memory.put(BODY, &register);
    }

    /// A list of options: kinds, and whether it ends, or ends in itself.
    fn lay_out_options(&self, at: u32, value: u64) {
        let kinds = value.to_le_bytes();
        let place = |n: usize| OPTIONS + 128 * n as u64;
        for (n, kind) in kinds.iter().enumerate() {
            let last = n == usize::from(at as u8 & 7);
            let next = if last { u64::from(at >> 8) } else { place(n + 1) };
            let size = u64::from(at >> 16);
            self.memory
                .put(place(n), &OptionHeader { next, reqtype: (*kind).into(), status: 7, size });
            if last {
                break;
            }
        }
    }

    /// A request of the old interface.
    fn lay_out_legacy(&self, at: u32, value: u64) {
        let [cmd, name, ring, how] = at.to_le_bytes();
        let [slots, rings, extra, id, arg1, version, low, high] = value.to_le_bytes();
        let mut legacy = Legacy {
            version: 14 + u32::from(version & 3),
            tx_slots: slots.into(),
            rx_slots: slots.into(),
            tx_rings: (rings & 15).into(),
            rx_rings: (rings >> 4).into(),
            ringid: u16::from(ring) | u16::from(low) << 8,
            cmd: u16::from(cmd % 14),
            arg1: arg1.into(),
            arg2: id.into(),
            arg3: extra.into(),
            flags: u32::from(how) | u32::from(high) << 8,
            ..Legacy::new_zeroed()
        };
        let name = NAMES[usize::from(name) % NAMES.len()];
        legacy.name[..name.len()].copy_from_slice(name.as_bytes());
        self.memory.put(LEGACY, &legacy);
    }

    /// Writes to the region, as a program does that maps it.
    fn region(&self, cookie: u64, at: u32, value: u64) {
        let Some(bound) = self.bound.get(&cookie) else { return };
        let (memory, size) = bound.memory();
        // Half of the writes go to the rings, which begin after the first 72 interfaces: syncs read
        // their headers.
        let at = if at & 1 == 0 { u64::from(at) } else { 72 * 1024 + u64::from(at >> 1) % 0x8000 };
        let _ = rustix::io::pwrite(memory, &value.to_le_bytes(), at % size);
    }

    fn sync(&self, cookie: u64, value: u64) {
        let Some(bound) = self.bound.get(&cookie) else { return };
        bound.arm(value & 1 != 0, value & 2 != 0);
        Costs::step(|| bound.poll(value & 4 != 0, value & 8 != 0, &*self.memory));
        Costs::step(|| bound.sync_receive(&*self.memory));
    }

    /// Blocks of the program's own with cursors.
    fn blocks(&self, cookie: u64, (program, core): (u64, u64)) -> Result<(), Errno> {
        let bound = self.bound.get(&cookie).ok_or(Errno::NXIO)?;
        let (program, core) = (program & !63, (BASE + core % BYTES as u64) & !63);
        bound.use_blocks((program, core), &*self.memory, |fd| fd)
    }

    fn close(&mut self, cookie: u64) {
        self.bound.remove(&cookie);
        let task = self.broker.close(cookie);
        self.finish(task);
        self.broker.open(cookie, user(cookie)).expect("no limit");
    }

    /// The program ends; persistent ports stay, the others do not.
    fn end(mut self) {
        self.bound.clear();
        for cookie in 0..COOKIES {
            let task = self.broker.close(cookie);
            self.finish(task);
            assert_eq!(self.broker.user_of(cookie), None);
        }
        drop(self.broker);
        assert_eq!(self.kept.charges.load(Ordering::Relaxed), 0, "charges are left");
    }
}

fn user(cookie: u64) -> u32 {
    if cookie < ROOTS { 0 } else { 1000 }
}

/// Memory of the program, as a file that is sealed as required.
fn lend() -> Option<File> {
    let file = shmem::Memfd::create("fuzz", 2 << 20, shmem::Pages::Small).ok()?;
    Some(Box::new(Descriptor::ours(file.into_fd())))
}

fuzz_target!(|input: &[u8]| {
    let costs = Costs::now();
    let mut machine = Machine::new();
    steps(input).take(STEPS).for_each(|step| Costs::step(|| machine.step(step)));
    machine.end();
    costs.assert_gone();
});
