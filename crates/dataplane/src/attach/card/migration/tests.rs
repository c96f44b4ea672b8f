use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use frame::Mac;
use jail::strangers::Descriptor;
use nic::pci;
use port::{Egress, FrameIdx, Limits, MapGuard, Nanos, Scratch};
use rustix::fs::MemfdFlags;
use shmem::Mapping;
use shmem::budget::Account;
use turn::state::State;

use super::super::message::{HEADER as MESSAGE, Request};
use super::super::message::{Header, command};
use super::super::models::HEADER_LEN as HEADER;
use super::super::{Message, Plug, ServeRequests, VfioUser};
use super::DeviceState::{Error, Resuming, Running, Stop, StopCopy};
use super::*;
use crate::attach::guest::FrontEnd;
use crate::config::{Doorbell, Interrupts, NicConfig, NicModel, SwitchConfig};

const MODELS: [NicModel; 5] = [
    NicModel::I82540EM,
    NicModel::I82574L,
    NicModel::AM79C970A,
    NicModel::AM79C973,
    NicModel::ONE_ACCESS,
];
/// One in this many bits is flipped, other bits for each card.
const STRIDE: usize = 7;
/// The size of guest memory in bytes, and the positions of rings and blocks in it.
const MEMORY: u64 = 0x20_0000;
const RX: u32 = 0x1000;
const TX: u32 = 0x2000;
const INIT: u32 = 0x400;

/// A server whose front end is the test. No thread serves it.
struct Bed {
    server: VfioUser,
    memory: Arc<Mapping>,
    _front_end: UnixStream,
}

fn plug(model: NicModel, csb: bool, mac: Mac) -> Plug {
    let nic = NicConfig { model, csb, combine: None, doorbell: Doorbell::Trap };
    Plug { nic, mac, link: true, interrupts: Interrupts::default() }
}

impl Bed {
    fn new(plug: Plug) -> Self {
        let (front_end, socket) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        let config = SwitchConfig { max_ports: 1, fdb_entries: 16, ..SwitchConfig::default() };
        let state = State::private(&config).unwrap().port(0).unwrap();
        let summons = Arc::new(ServeRequests::new().unwrap());
        let server = VfioUser::new(
            (OwnedFd::from(socket).into(), None),
            plug,
            (0, &state, &Account::unlimited()),
            None,
            summons,
        )
        .unwrap();
        let file = rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, MEMORY).unwrap();
        let memory = Mapping::unsealed(std::os::fd::AsFd::as_fd(&file), MEMORY as usize).unwrap();
        let mut bed = Self { server, memory, _front_end: front_end };
        bed.ask(Request::Version { major: 0, transfer: 1 << 20, migration: true }).unwrap();
        let map = Request::DmaMap { flags: 3, offset: 0, address: 0, size: MEMORY };
        bed.ask_with(map, vec![file.into()]).unwrap();
        bed
    }

    /// A card whose driver has set it up, with frames in its rings.
    fn in_use(model: NicModel, csb: bool) -> Self {
        let mut bed = Self::new(plug(model, csb, Mac::local(1)));
        bed.server.config.write(4, &[7]).bus_master.unwrap();
        let halves = bed.server.halves(Nanos(1)).unwrap();
        let device = Arc::clone(bed.server.device.as_ref().unwrap());
        let write = |at: u64, data: &[u8]| device.write(0, at, data, Nanos(1));
        let poke = |at: u32, value: u64| {
            bed.memory.bytes(at as usize, 8).unwrap().write(0, value);
        };
        if [NicModel::I82540EM, NicModel::I82574L].contains(&model) {
            let set = |at: u64, value: u32| write(at, &value.to_le_bytes());
            for (ring, at) in [(0x2800, RX), (0x3800, TX)] {
                set(ring, at);
                set(ring + 8, 128);
                set(ring + 0x18, 7);
            }
            (0..8).for_each(|i| poke(RX + 16 * i, 0x8000 + 2048 * u64::from(i)));
            (0..8).for_each(|i| {
                poke(TX + 16 * i, 0x1_0000);
                poke(TX + 16 * i + 8, 0x0900_0040);
            });
            set(0x0100, 0x801a);
            set(0x0400, 2);
            set(0x00d0, 0x9d);
            set(0x2820, 100);
        } else if model == NicModel::ONE_ACCESS {
            let set = |at: u64, value: u32| write(at, &value.to_le_bytes());
            set(nic::template::reg::AREA_LOW, 0x1000);
            set(nic::template::reg::CONTROL, 3);
            (0..8).for_each(|place| set(nic::template::reg::SEND, 60 << 16 | place));
        } else {
            let set = |window: u64, number: u16, value: u16| {
                write(0x12, &number.to_le_bytes());
                write(window, &value.to_le_bytes());
            };
            let block = [0x0000_0002_3030_0000, 0x0100, u64::from(RX) << 32, TX.into()];
            (INIT..).step_by(8).zip(block).for_each(|(at, word)| poke(at, word));
            // Rings of eight descriptors.
            (0..8).for_each(|i| {
                poke(RX + 16 * i, 0x8000_f800 << 32 | (0x8000 + 2048 * u64::from(i)));
                poke(TX + 16 * i, 0x8300_ffc0 << 32 | 0x1_0000);
            });
            set(0x16, 20, 2);
            set(0x10, 1, INIT as u16);
            set(0x10, 2, 0);
            set(0x10, 0, 0x43);
        }
        drop((halves, device));
        bed.use_it();
        bed
    }

    fn ask(&mut self, request: Request) -> Answer {
        self.ask_with(request, Vec::new())
    }

    fn ask_with(&mut self, request: Request, fds: Vec<Descriptor>) -> Answer {
        self.server.is_quiet();
        let header = Header {
            id: 1,
            command: command::VERSION,
            size: MESSAGE,
            reply: true,
            answers: None,
            is_known: true,
        };
        let done = self.server.handle(Message { header, request, fds });
        let bytes = done.reply[MESSAGE..].to_vec();
        done.error.map_or(Ok(bytes), Err)
    }

    fn to(&mut self, state: DeviceState) -> Result<(), Errno> {
        let data = words(&[state as u32, 0]);
        let flags = flag::SET | feature::DEVICE_STATE;
        self.ask(Request::Feature { room: 16, flags, data }).map(drop)
    }

    /// The migration state that the device reports.
    fn state(&mut self) -> u32 {
        let flags = flag::GET | feature::DEVICE_STATE;
        let reply = self.ask(Request::Feature { room: 16, flags, data: Vec::new() }).unwrap();
        Fields(&reply[8..]).u32()
    }

    fn save(&mut self) -> Vec<u8> {
        self.to(StopCopy).unwrap();
        let mut state = Vec::new();
        loop {
            let part = self.ask(Request::StateRead { room: 1008, size: 1000 }).unwrap();
            state.extend(&part[8..]);
            if part.len() < 1008 {
                return state;
            }
        }
    }

    /// Loads a state. Returns true if the device continues from it; otherwise the device is in its
    /// error state, which only a reset leaves.
    fn load(&mut self, state: &[u8]) -> bool {
        self.to(Resuming).unwrap();
        let mut parts = state.chunks(MAX_TRANSFER as usize);
        let written = parts.all(|part| self.ask(Request::StateWrite(part.to_vec())).is_ok());
        if written && self.to(Stop).is_ok() {
            return true;
        }
        assert_eq!(self.state(), Error as u32);
        for state in [Error, Stop, Running, StopCopy, Resuming] {
            assert_eq!(self.to(state), Err(Errno::INVAL));
        }
        let halves = self.server.halves(Nanos(1));
        assert!(halves.is_ok_and(|attached| attached.source.queues() == 0));
        self.ask(Request::Reset).unwrap();
        assert_eq!(self.state(), Running as u32);
        false
    }

    /// Uses the card as workers do: transmits and receives frames, reads registers, asks for
    /// interrupts.
    fn use_it(&mut self) {
        let mut attached = self.server.halves(Nanos(1)).unwrap();
        let mut scratch = Scratch::new(64);
        // SAFETY: guest memory outlives the scratch.
        #[allow(unsafe_code, reason = "a test's promise about its own memory")]
        let map = unsafe { MapGuard::assume_mapped() };
        for now in [2, 3_000_000_000].map(Nanos) {
            for queue in 0..attached.source.queues() {
                let ingress = attached.source.queue(queue).unwrap();
                let frames = ingress.gather(&mut scratch, 64, now);
                scratch.judge(&map, &mut [(); 64], |_, _| ());
                ingress.complete(frames);
                let _ = ingress.settle(now);
                scratch.clear();
            }
            let bytes = Mapping::private(4096).unwrap();
            bytes.bytes(0, 6).unwrap().copy_in(&Mac::local(1).octets());
            (0..3).for_each(|_| scratch.push(bytes.bytes(0, 600).unwrap().span()));
            scratch.judge(&map, &mut [(); 64], |_, _| ());
            let list: Vec<FrameIdx> = (0..3).collect();
            let limits = Limits { max_frame: 9216, lossless: false };
            for egress in &attached.egresses {
                assert_eq!(egress.deliver(&scratch.batch(&map), &list, limits).finished, 3);
                let _ = egress.settle(now);
            }
            scratch.clear();
            let device = self.server.device.as_ref().unwrap();
            let _ = device.interrupt(now);
            for at in (0..32).step_by(2).chain((0..0x6000).step_by(4)) {
                device.read(0, at, &mut [0; 4][..if at < 32 { 2 } else { 4 }], now);
            }
            let _ = (attached.source.arm(now), attached.source.deadline(now));
            attached.source.disarm();
        }
        drop(attached);
        self.server.is_quiet();
    }

    fn frames(&self) -> u64 {
        self.server.state.egress(0).unwrap().frames.get()
    }
}

/// All models of cards, with and without a shared status block.
fn cards() -> impl Iterator<Item = (NicModel, bool)> {
    let both = |model: NicModel| [(model, false), (model, true)];
    MODELS.into_iter().flat_map(both).filter(|(model, csb)| model.names().csb || !csb)
}

#[test]
fn a_state_that_was_read_is_one_to_go_on_with_and_the_same_again() {
    for (model, csb) in cards() {
        let mut from = Bed::in_use(model, csb);
        assert!(from.frames() > 0, "{model:?}: the driver's card does not work");
        let state = from.save();
        let mut to = Bed::new(plug(model, csb, Mac::local(1)));
        assert!(to.load(&state), "{model:?}: {:?}", to.server.new_faults());
        let again = to.save();
        // Only times differ between the two states: they were read at different moments.
        let same = state.iter().zip(&again).filter(|(a, b)| a == b).count();
        assert!(state.len() == again.len() && state.len() - same <= 80, "{model:?}");
        to.to(Resuming).unwrap();
        assert!(to.load(&again), "{model:?}");
        assert!(to.save() == again, "{model:?}: it changes while it stands still");
        to.to(Running).unwrap();
    }
}

#[test]
fn a_state_with_a_flipped_bit_is_refused_or_one_to_go_on_with() {
    // Runs one thread for each card, because all of them take long.
    std::thread::scope(|scope| {
        for (card, (model, csb)) in cards().enumerate() {
            scope.spawn(move || flip_bits(card, model, csb));
        }
    });
}

/// Flips bits of a card's state: those after the header and configuration space in turns with other
/// cards.
fn flip_bits(card: usize, model: NicModel, csb: bool) {
    let state = Bed::in_use(model, csb).save();
    let mut to = Bed::in_use(model, csb);
    let mut refused = 0;
    for bit in 0..8 * state.len() {
        if bit > 8 * (HEADER + pci::SIZE) && bit % STRIDE != card % STRIDE {
            continue;
        }
        let mut state = state.clone();
        state[bit / 8] ^= 1 << (bit % 8);
        let taken = to.load(&state);
        assert!(!taken || bit >= 8 * HEADER, "bit {bit} of the header");
        refused += usize::from(!taken);
        if taken {
            to.to(Running).unwrap();
            to.use_it();
        }
    }
    assert!(refused > 8 * HEADER + 8 * 64, "{model:?}: {refused} refused");
}

#[test]
fn a_state_that_is_cut_or_too_long_is_refused() {
    for (model, csb) in cards() {
        let state = Bed::in_use(model, csb).save();
        let mut to = Bed::new(plug(model, csb, Mac::local(1)));
        for len in (0..state.len()).filter(|len| *len < 600 || len % 13 == 0) {
            assert!(!to.load(&state[..len]), "{len} bytes");
        }
        assert!(!to.load(&[&state[..], &[0]].concat()), "a byte too many");
        assert!(to.load(&state));
    }
}

#[test]
fn a_state_of_another_card_is_refused_and_that_is_said() {
    for (from, to) in cards().flat_map(|from| cards().map(move |to| (from, to))) {
        let state = Bed::new(plug(from.0, from.1, Mac::local(1))).save();
        let mut bed = Bed::new(plug(to.0, to.1, Mac::local(1)));
        assert_eq!(bed.load(&state), from == to, "{from:?} to {to:?}");
        assert_eq!(bed.server.new_faults().len(), usize::from(from != to));
        let mut other = Bed::new(plug(from.0, from.1, Mac::local(2)));
        assert!(!other.load(&state), "of another address");
    }
}

/// Each transition takes the shortest way, by STOP. Reads and writes work only in the states that
/// allow them.
#[test]
fn states_follow_each_other_as_the_specification_says() {
    let all = [Stop, Running, StopCopy, Resuming];
    for (from, to) in all.iter().flat_map(|from| all.map(|to| (*from, to))) {
        let mut bed = Bed::in_use(NicModel::I82540EM, false);
        let size = bed.save().len() as u32;
        bed.to(from).unwrap();
        let read = bed.ask(Request::StateRead { room: 16, size: 8 });
        let write = bed.ask(Request::StateWrite(vec![0; 8]));
        assert_eq!((read.is_ok(), write.is_ok()), (from == StopCopy, from == Resuming));
        // An incomplete state can only be left for the error state.
        let good = from != Resuming || to == Resuming;
        assert_eq!(bed.to(to).is_ok(), good, "{from:?} to {to:?}");
        assert_eq!(bed.state(), if good { to } else { Error } as u32);
        assert!(size > 1000);
    }
    let mut bed = Bed::in_use(NicModel::I82540EM, false);
    for wrong in [0, 5, 6, 7, 8, u32::MAX] {
        let (flags, data) = (flag::SET | feature::DEVICE_STATE, words(&[wrong, 0]));
        assert_eq!(bed.ask(Request::Feature { room: 16, flags, data }), Err(Errno::INVAL));
        assert_eq!(bed.state(), Running as u32);
    }
}

#[test]
fn transfers_are_as_large_as_was_agreed_at_most() {
    let mut bed = Bed::in_use(NicModel::AM79C973, false);
    for (theirs, most) in [(1 << 20, MAX_TRANSFER), (512, 512)] {
        bed.server.session.migration.negotiate(theirs);
        bed.to(StopCopy).unwrap();
        for (room, size) in [(u32::MAX, most + 1), (u32::MAX, u32::MAX), (7, 0), (most, most)] {
            assert_eq!(bed.ask(Request::StateRead { room, size }), Err(Errno::INVAL));
        }
        let first = bed.ask(Request::StateRead { room: most + 8, size: most }).unwrap();
        assert_eq!(
            first[..8],
            words(&[most.min(first.len() as u32 - 8) + 8, first.len() as u32 - 8])
        );
        bed.to(Resuming).unwrap();
        let write = |len: u32| Request::StateWrite(vec![0; len as usize]);
        assert_eq!(bed.ask(write(most + 1)), Err(Errno::INVAL));
        assert_eq!(bed.state(), Resuming as u32, "nothing of it was written");
        bed.ask(Request::Reset).unwrap();
    }
}

#[test]
fn features_are_probed_got_and_set_as_they_can_be() {
    let mut bed = Bed::new(plug(NicModel::I82574L, false, Mac::local(1)));
    let mut ask = |flags: u32| bed.ask(Request::Feature { room: 16, flags, data: Vec::new() });
    let (get, set, probe) = (flag::GET, flag::SET, flag::PROBE);
    for flags in [probe | 1, probe | get | 1, probe | 2, probe | get | set | 2] {
        assert_eq!(ask(flags), Ok(words(&[16, flags])), "{flags:#x}");
    }
    assert_eq!(ask(get | 1), Ok([words(&[16, get | 1]), longs(&[1])].concat()));
    assert_eq!(ask(get | 2), Ok(words(&[16, get | 2, Running as u32, u32::MAX])));
    // Written pages are not logged.
    for flags in [get, get | 3, set | 6, set | 7, get | 8, get | 9, probe | 8, get | 0xffff] {
        assert_eq!(ask(flags), Err(Errno::NOTTY), "{flags:#x}");
    }
    for flags in [1, 2, set | 1, probe | set | 1, get | set | 2, set | 2, 1 << 19 | get | 1] {
        assert_eq!(ask(flags), Err(Errno::INVAL), "{flags:#x}");
    }
    let small = bed.ask(Request::Feature { room: 8, flags: get | 1, data: Vec::new() });
    assert_eq!(small, Ok(words(&[16, get | 1])), "what is needed is said");
}

/// The persistent state of a session in migration suffices for a successor.
#[test]
fn a_successor_goes_on_with_the_move() {
    let state = Bed::in_use(NicModel::AM79C970A, true).save();
    let mut bed = Bed::new(plug(NicModel::AM79C970A, true, Mac::local(1)));
    bed.to(Resuming).unwrap();
    for part in state.chunks(700) {
        bed.ask(Request::StateWrite(part.to_vec())).unwrap();
        let kept = bed.server.to_keep();
        let socket = bed.server.socket.try_clone().unwrap();
        let (plug, port) = (bed.server.plug, bed.server.state.clone());
        let summons = Arc::new(ServeRequests::new().unwrap());
        bed.server = VfioUser::new(
            (socket, None),
            plug,
            (0, &port, &Account::unlimited()),
            Some(kept),
            summons,
        )
        .unwrap();
        assert!(!bed.server.has_ended());
    }
    bed.to(Running).unwrap();
    assert!(bed.server.new_faults().is_empty());
}
