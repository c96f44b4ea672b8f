//! What a vfio-user front end says: any messages, in any order and any pieces, with any
//! descriptors, are carried out, refused or end the session; what runs by then, over memory of any
//! content that may also be cut short, is served without a fault of ours; what is kept of the
//! session is the same when it is taken back, and a successor goes on with it at any time. What is
//! asked of memory that came without a file is answered, or not, or otherwise. A card's state that
//! was changed on its way is refused, or one to go on with.
//!
//! The first byte of the input picks the card and how it is; then come steps: command, flags,
//! descriptors, length, and so many bytes. One whose flags say so is no message, but a write to the
//! guest's memory, or to the registers that are shared, or to the card's state, which leaves it and
//! comes back; or it is thousands of messages that map or unmap a small range each.
#![no_main]

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use dataplane::attach::card::message::{
    Fields, HEADER, ProtocolError, command, longs, words, write_header,
};
use dataplane::attach::card::migration::{DeviceState, MAX_TRANSFER};
use dataplane::attach::card::{Plug, ServeRequests, VfioUser};
use dataplane::attach::guest::FrontEnd as _;
use dataplane::config::{Combine, Doorbell, Interrupts, NicConfig, NicModel};
use dataplane::state::PortState;
use jail::strangers::Descriptor;
use libfuzzer_sys::fuzz_target;
use port::Nanos;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use shmem::budget::Account;
use toklat_fuzz::{
    Costs, Lines, MAC, Memory, assert_same, connection, drain, port_state, serve, take,
};
use turn::attach::Attached;

/// Steps of one input.
const STEPS: usize = 128;
/// Bytes of a card's first base address register, at least.
const REGISTERS: u64 = 128 << 10;
/// A step's flags, in addition to those of messages. With this one, the message is cut off, or
/// states another size than it has.
const CUT: u8 = 1;
/// frames arrive after it,
const DELIVER: u8 = 2;
/// this process dies after it,
const RESTART: u8 = 4;
/// a write is to the registers that are shared,
const REGISTER: u8 = 8;
/// the card's state leaves it, is written to, and comes back,
const MOVE: u8 = 0x40;
/// With this flag, the message is a reply to a request of any number. Together with [`REGISTER`],
/// the request failed.
const REPLY: u8 = 0x20;
/// With this flag, the message is a write.
const WRITE: u8 = 0x80;
const WRITE_REGISTER: u8 = WRITE | REGISTER;
/// Flags of a step that maps or unmaps many ranges.
const RANGES: u8 = WRITE | MOVE;
/// Bytes of such a range.
const RANGE: u64 = 16;
/// How many messages are sent before they are carried out.
const BURST: u64 = 128;

/// A front end, its guest's memory, and who serves it.
struct Port {
    theirs: OwnedFd,
    memory: Memory,
    /// True to answer the device's requests for memory.
    answers: bool,
    /// The connection was cut short.
    cut: bool,
    /// What the keeper has.
    ours: OwnedFd,
    registers: OwnedFd,
    plug: Plug,
    state: PortState,
    summons: Arc<ServeRequests>,
    server: VfioUser,
    attached: Option<Attached>,
    lines: Lines,
    now: Nanos,
}

/// The card that the first byte of an input picks.
fn plug(choice: u8) -> Plug {
    let models = [NicModel::I82540EM, NicModel::I82574L, NicModel::AM79C970A, NicModel::AM79C973];
    let nic = NicConfig {
        model: models[usize::from(choice) % 4],
        csb: true,
        combine: (choice & 4 != 0).then_some(Combine { frames: 4, delay_us: 20 }),
        doorbell: if choice & 8 == 0 { Doorbell::Trap } else { Doorbell::Shared },
    };
    let interrupts = match choice & 0x10 {
        0 => Interrupts::default(),
        _ => Interrupts {
            max_rate: Some(500),
            max_delay_us: 3000,
            adaptive: choice & 0x20 != 0,
            max_sent_delay_us: 5000,
        },
    };
    Plug { nic, mac: MAC, link: true, interrupts }
}

impl Port {
    fn new(choice: u8) -> Option<Self> {
        let (theirs, ours) = connection().ok()?;
        let (memory, state, plug) = (Memory::new().ok()?, port_state(), plug(choice));
        let registers = rustix::fs::memfd_create("fuzz", rustix::fs::MemfdFlags::CLOEXEC).ok()?;
        rustix::fs::ftruncate(&registers, REGISTERS).ok()?;
        let summons = Arc::new(ServeRequests::new().expect("an eventfd"));
        let fds = (
            Descriptor::ours(ours.try_clone().ok()?),
            registers.try_clone().ok().map(Descriptor::ours),
        );
        let server = VfioUser::new(
            fds,
            plug,
            (0, &state, &Account::unlimited()),
            None,
            Arc::clone(&summons),
        );
        let (server, now) = (server.expect("a port"), Nanos(1));
        let mut port = Self {
            theirs,
            memory,
            answers: choice & 0x40 != 0,
            cut: false,
            ours,
            registers,
            plug,
            state,
            summons,
            server,
            attached: None,
            lines: Lines::default(),
            now,
        };
        port.remake();
        Some(port)
    }

    /// Carries out the next step of `bytes`.
    fn step(&mut self, bytes: &mut &[u8]) -> Result<(), ProtocolError> {
        let [command, flags, fds, len] = *take(bytes, 4) else {
            *bytes = &[];
            return Ok(());
        };
        let body = take(bytes, usize::from(len));
        let at = u16::from_be_bytes([command, fds]);
        match flags & (WRITE | REGISTER) {
            _ if flags & RANGES == RANGES => self.change_ranges(command, fds, body)?,
            WRITE if body.is_empty() => {
                self.cut = true;
                self.memory.write(at, body);
            }
            WRITE => self.memory.write(at, body),
            WRITE_REGISTER => drop(rustix::io::pwrite(&self.registers, body, at.into())),
            _ if flags & MOVE != 0 => self.move_state(at.into(), body)?,
            _ if flags & REPLY != 0 => {
                let failed = if flags & REGISTER == 0 { 1 } else { 0x21 };
                self.say((fds.into(), command.into()), failed, body);
            }
            _ => self.send(command, flags, &self.memory.descriptors(fds), body),
        }
        self.serve(flags & DELIVER != 0);
        self.converse()?;
        if flags & RESTART != 0 {
            self.restart()?;
        }
        Ok(())
    }

    /// Sends a message exactly as given.
    fn say(&self, (id, command): (u16, u16), flags: u32, body: &[u8]) {
        let mut message = Vec::new();
        write_header(&mut message, id, command, body.len(), flags);
        message.extend(body);
        let _ = rustix::net::send(&self.theirs, &message, SendFlags::NOSIGNAL);
    }

    /// Reads all messages, and answers requests for memory.
    fn answer(&self) {
        let mut all = vec![0; 1 << 17];
        let got = rustix::net::recv(&self.theirs, &mut all[..], RecvFlags::DONTWAIT);
        let mut rest = &all[..got.map_or(0, |(got, _)| got)];
        while let Some(header) = rest.first_chunk::<HEADER>() {
            let mut fields = Fields(header);
            let (id, command) = (fields.u16(), fields.u16());
            let (size, flags) = (fields.u32() as usize, fields.u32());
            let body = take(&mut rest, size.max(HEADER)).get(HEADER..).unwrap_or_default();
            let mut fields = Fields(body);
            let (at, len) = (fields.u64(), fields.u64());
            match command {
                command::DMA_READ if flags & 1 == 0 => {
                    let data = self.memory.read(at, len.min(4096) as usize);
                    self.say((id, command), 1, &[body, &data].concat());
                }
                command::DMA_WRITE if flags & 1 == 0 => {
                    self.memory.write(at as u16, &body[HEADER.min(body.len())..]);
                    self.say((id, command), 1, &[]);
                }
                _ => {}
            }
        }
    }

    fn send(&self, command: u8, flags: u8, fds: &[Descriptor], body: &[u8]) {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let mut message = Vec::new();
        write_header(&mut message, 1, u16::from(command % 20), body.len(), (flags & 0x30).into());
        message.extend(body);
        let cut = if flags & CUT != 0 { 3 } else { 0 };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&fds));
        }
        let parts = [IoSlice::new(&message[..message.len() - cut])];
        let _ = rustix::net::sendmsg(&self.theirs, &parts, &mut control, SendFlags::NOSIGNAL);
    }

    /// Maps or unmaps up to 8,160 small ranges, a message each, as front ends of guests behind an
    /// IOMMU do. The first bytes of `body` say where they are.
    fn change_ranges(&mut self, count: u8, fds: u8, body: &[u8]) -> Result<(), ProtocolError> {
        let [maps, stride, start, offset] = body.first_chunk().copied().unwrap_or_default();
        let fds = self.memory.descriptors(fds);
        for n in 0..32 * u64::from(count) {
            let address = (u64::from(start) * 64 + n * u64::from(stride) % 16_384) * RANGE;
            let place = (u64::from(offset) + n * u64::from(stride)) * RANGE % (1 << 16);
            let range = [place, address, RANGE];
            let (command, head, range, fds) = match maps & 1 {
                0 => (command::DMA_MAP, words(&[32, 3]), &range[..], &fds[..]),
                _ => (command::DMA_UNMAP, words(&[24, 0]), &range[1..], &[][..]),
            };
            self.send(command as u8, 0x10, fds, &[head, longs(range)].concat());
            if n % BURST == BURST - 1 {
                self.serve(false);
                self.take_messages()?;
                drain(&self.theirs);
            }
        }
        Ok(())
    }

    /// Saves the card's state, changes it at `at`, and loads it again.
    fn move_state(&mut self, at: usize, change: &[u8]) -> Result<(), ProtocolError> {
        self.change_state(DeviceState::StopCopy)?;
        let mut state = Vec::new();
        loop {
            let read = words(&[8 + MAX_TRANSFER, MAX_TRANSFER]);
            let part = self.ask(command::MIG_DATA_READ, &read)?;
            let part = part.get(HEADER + 8..).unwrap_or_default();
            state.extend(part);
            if part.len() < MAX_TRANSFER as usize {
                break;
            }
        }
        // A session that has not negotiated has no state to move.
        let at = at.checked_rem(state.len()).unwrap_or(0);
        state[at..].iter_mut().zip(change).for_each(|(byte, change)| *byte ^= change);
        self.change_state(DeviceState::Resuming)?;
        for part in state.chunks(1 << 10) {
            let size = part.len() as u32;
            self.ask(command::MIG_DATA_WRITE, &[&words(&[8, size])[..], part].concat())?;
        }
        self.change_state(DeviceState::Running)
    }

    fn change_state(&mut self, state: DeviceState) -> Result<(), ProtocolError> {
        let body = words(&[16, 1 << 17 | 2, state as u32, 0]);
        self.ask(command::DEVICE_FEATURE, &body).map(drop)
    }

    /// Sends a request, and returns what has arrived of its reply.
    fn ask(&mut self, command: u16, body: &[u8]) -> Result<Vec<u8>, ProtocolError> {
        self.send(command as u8, 0, &[], body);
        self.serve(false);
        self.take_messages()?;
        let mut reply = vec![0; HEADER + 8 + MAX_TRANSFER as usize];
        let got = rustix::net::recv(&self.theirs, &mut reply[..], RecvFlags::DONTWAIT);
        reply.truncate(got.map_or(0, |(got, _)| got));
        Ok(reply)
    }

    /// Serves the port as a worker does, until it is quiet or passes the socket to the control
    /// thread.
    fn serve(&mut self, deliver_frames: bool) {
        self.now = self.now + 1_000_000;
        let Some(attached) = &mut self.attached else { return };
        serve(attached, deliver_frames, self.now);
    }

    /// Carries out messages as the control thread does.
    fn converse(&mut self) -> Result<(), ProtocolError> {
        self.take_messages()?;
        if self.answers {
            self.answer();
            self.serve(false);
            self.take_messages()?;
            self.answer();
        } else {
            drain(&self.theirs);
        }
        Ok(())
    }

    fn take_messages(&mut self) -> Result<(), ProtocolError> {
        if !self.summons.take().is_empty() {
            while let Some(message) = self.server.next_message()? {
                if message.needs_quiet() {
                    self.attached = None;
                    self.server.is_quiet();
                }
                let done = self.server.handle(message);
                self.server.done(&done)?;
            }
            self.lines.take(self.server.new_faults());
            if self.attached.is_none() {
                self.remake();
            }
            self.server.unpark();
        }
        Ok(())
    }

    /// Rebuilds the halves.
    fn remake(&mut self) {
        self.attached = None;
        self.server.is_quiet();
        self.attached = self.server.halves(self.now).ok();
    }

    /// Continues as a successor of a process that died.
    fn restart(&mut self) -> Result<(), ProtocolError> {
        let kept = self.server.to_keep();
        self.attached = None;
        let socket = self.ours.try_clone().expect("a descriptor");
        let fds = (Descriptor::ours(socket), self.registers.try_clone().ok().map(Descriptor::ours));
        let account = Account::unlimited();
        let state = (0, &self.state, &account);
        let server =
            VfioUser::new(fds, self.plug, state, Some(kept.clone()), Arc::clone(&self.summons));
        self.server = server.expect("a port");
        if self.server.has_ended() {
            assert!(
                self.cut,
                "what was mapped can be mapped again, unless it is not there any more"
            );
            return Err(ProtocolError::Closed);
        }
        assert_same(&kept, &self.server.to_keep());
        self.remake();
        Ok(())
    }
}

fuzz_target!(|bytes: &[u8]| {
    shmem::guard::install();
    let Some((choice, rest)) = bytes.split_first() else { return };
    // Objects that are made only once are made before the measurement.
    drop(Port::new(*choice));
    let costs = Costs::now();
    if let Some(port) = Port::new(*choice) {
        carry_out(port, rest);
    }
    costs.assert_gone();
});

fn carry_out(mut port: Port, mut rest: &[u8]) {
    let mut steps = 0..STEPS;
    let mut ended = false;
    while !rest.is_empty() && !ended && steps.next().is_some() {
        ended = Costs::step(|| port.step(&mut rest)).is_err();
    }
    match ended {
        true => port.server.end(),
        false => _ = port.restart(),
    }
    port.lines.take(port.server.new_faults());
    port.lines.assert_few();
}
