//! Emulated network cards over the vfio-user protocol (QEMU since 10.1, Cloud Hypervisor): the port
//! of a virtual machine with an unmodified driver.
//!
//! ```text
//!   front end --- socket: messages, descriptors ---> Wire ---> worker: Bus (registers, transmit queues)
//!       |                                             |          |  Device, Transmit: Ingress
//!       | memory, eventfds                            |          |
//!       v                                             v          v
//!   guest memory, mapped by both           control thread: VfioUser, Session     any worker: Egress, Vectors
//! ```
//!
//! A port's home worker reads the socket and answers register accesses at once. The control thread
//! carries out all other messages, while the worker leaves the socket alone. For messages about
//! memory or interrupts, it first takes the model's halves from worker and table and drops them.
//! Then it makes them again over the registers in state memory. So no memory is unmapped while it
//! is in use.
//!
//! Where a front end's memory has no files, messages fetch each piece of it ([`dma_proxy`]).
//!
//! A device in migration has no halves ([`migration`]).
//!
//! A front end that breaks the protocol is disconnected, and its port waits for the next one. If a
//! guest breaks its device, the device stops, which is logged once.

mod dma_proxy;
mod line;
#[cfg(test)]
pub(super) mod loopback;
#[cfg(test)]
pub(crate) use self::loopback::LOOPBACK;
#[cfg(test)]
pub(crate) use self::ranges::recorded;
pub mod message;
pub mod migration;
mod mirror;
mod models;
mod ranges;
mod session;
mod source;
mod stopped;

use std::os::fd::AsFd;
use std::sync::Arc;

use frame::Mac;
use jail::strangers::Descriptor;
use nic::device::{Combining, Device, DeviceConfig, Identity, Model};

use nic::pci::Config;
use port::Nanos;
use rustix::event::EventfdFlags;
use rustix::io::Errno;
use shmem::GuestMemory;
use shmem::budget::Account;
use turn::attach::{AttachError, Attached, Bells, Exit, null};
use turn::clock;
use turn::state::PortState;
use turn::user::Payer;

use self::dma_proxy::DmaProxy;
use self::line::{Front, Line};
use self::message::{Header, ProtocolError, Request};
use self::migration::DeviceState;
use self::mirror::Mirror;
use self::models::{Card, Room};
use self::session::Session;
use self::source::{Bus, Wire};
use self::stopped::Stopped;
use super::guest::FrontEnd;
use super::guest::kept::Kept;
use super::guest::moderation::{Moderation, Moved};
use super::guest::vectors::Vectors;
use crate::attach::Kind;
use crate::config::{Doorbell, Interrupts, NicConfig, PortId};

pub use self::source::ServeRequests;

/// An emulated network card over the vfio-user protocol. Descriptors: the socket connected to the
/// front end. With shared doorbells also a memory file as long as the card's first base address
/// register.
impl Kind for NicConfig {
    fn has_stranger(&self) -> bool {
        true
    }

    fn lends_memory(&self) -> bool {
        true
    }

    fn hangup_fd(&self) -> Option<usize> {
        Some(0)
    }
}

/// Receive queues that a model may have.
const RECEIVE_QUEUES: usize = 2;

/// The configuration of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plug {
    /// The model of the card.
    pub nic: NicConfig,
    /// The device's station address.
    pub mac: Mac,
    /// The cable is plugged in.
    pub link: bool,
    /// The moderation of the device's interrupts.
    pub interrupts: Interrupts,
}

/// A device and its front end, which the control thread serves.
pub struct VfioUser {
    socket: Arc<Descriptor>,
    wire: Arc<Wire>,
    session: Session,
    plug: Plug,
    kind: &'static nic::kind::Kind,
    identity: Identity,
    config: Arc<Config>,
    room: Room,
    state: PortState,
    /// The file with the registers that the front end may map.
    doorbells: Option<Arc<Descriptor>>,
    /// The device's registers were written to the file. Before that the file has no meaning.
    shown: bool,
    /// The device that the current halves serve.
    device: Option<Arc<dyn Device>>,
    /// The parts of the session that the supervisor keeps.
    kept: Kept,
    ended: bool,
    /// What was already logged about the session.
    said: (bool, Option<&'static str>),
    said_over_limit: bool,
}

impl std::fmt::Debug for VfioUser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VfioUser").field("plug", &self.plug).field("ended", &self.ended).finish()
    }
}

/// A message for the control thread.
#[derive(Debug)]
pub struct Message {
    header: Header,
    request: Request,
    fds: Vec<Descriptor>,
}

impl Message {
    /// True if no worker may use the device while the message is carried out.
    #[must_use]
    pub fn needs_quiet(&self) -> bool {
        session::needs_quiet(&self.request)
    }
}

impl VfioUser {
    /// A device on a connected socket. `kept` is a predecessor's session.
    ///
    /// # Errors
    /// [`AttachError`] when the socket cannot be used, or the state memory has no room.
    pub fn new(
        (socket, doorbells): (Descriptor, Option<Descriptor>),
        plug: Plug,
        (id, state, account): (PortId, &PortState, &Arc<Account>),
        kept: Option<Kept>,
        summons: Arc<ServeRequests>,
    ) -> Result<Self, AttachError> {
        let expected = "a stream socket to a vfio-user front end";
        let kind = rustix::net::sockopt::socket_type(&socket);
        if kind != Ok(rustix::net::SocketType::STREAM) {
            return Err(AttachError::Descriptors { expected });
        }
        let (socket, room) = (Arc::new(socket), Room::of(state));
        let kind = models::kind(plug.nic.model)?;
        if kept.is_none() {
            room.clear(kind);
        }
        let no_room = || AttachError::Registers(kind.names.title);
        let config = room.config().ok_or_else(no_room)?;
        let identity = (kind.identity)(plug.nic.csb);
        let config = Config::new(&identity, config);
        let doorbells = doorbells.filter(|_| plug.nic.doorbell == Doorbell::Shared);
        let restored = kept.as_ref().map(|kept| Session::restore(&identity, kept, account));
        // A session that is not whole was being changed when its process died. The front end must
        // start over.
        let lost = matches!(restored, Some(None));
        let mut session = restored.flatten().unwrap_or_else(|| Session::new(&identity, account));
        // Also for a stopped device: the front end may ask for the pages before it runs.
        session.shared = kind.shared_pages.filter(|_| doorbells.is_some());
        if kept.is_none() {
            config.power_on();
        }
        let opened = open(&socket, &room, &session, state.payer());
        let (line, whole) = opened.ok_or_else(no_room)?;
        let mut this = Self {
            wire: Arc::new(Wire::new(line, Arc::clone(&socket), summons, id)),
            socket,
            session,
            plug,
            kind,
            identity,
            config: Arc::new(config),
            room,
            state: state.clone(),
            doorbells: doorbells.map(Arc::new),
            shown: kept.is_some(),
            device: None,
            kept: kept.unwrap_or_default(),
            ended: false,
            said: (false, None),
            said_over_limit: false,
        };
        if lost || !whole {
            this.end();
        }
        Ok(this)
    }

    /// Receives the next message for the control thread; `None` passes the socket back to the
    /// worker.
    ///
    /// # Errors
    /// [`ProtocolError`]: the session [ends](Self::end).
    pub fn next_message(&mut self) -> Result<Option<Message>, ProtocolError> {
        if self.ended {
            return Ok(None);
        }
        if let Some(failed) = self.wire.take_failure() {
            return Err(failed);
        }
        let mut line = self.wire.line();
        if !line.look_closely()? {
            return Ok(None);
        }
        let next = next_request(&line);
        // Descriptors beyond those of this message are closed.
        let mut fds = line.take_fds();
        Ok(next?.map(|(header, request, has_fds)| {
            fds.truncate(if has_fds { fds.len() } else { 0 });
            Message { header, request, fds }
        }))
    }

    /// Applies a message to the session's state.
    pub fn handle(&mut self, message: Message) -> Done {
        let Message { header, request, fds } = message;
        let shows_pages = matches!(
            &request,
            Request::GetRegionInfo { index, .. } if !self.session.pages(*index).is_empty()
        );
        let fd = self.doorbells.clone().filter(|_| shows_pages);
        let card = Card {
            identity: &self.identity,
            kind: self.kind,
            plug: &self.plug,
            room: &self.room,
            config: &self.config,
        };
        let (was, resets) = (self.session.migration.state(), request == Request::Reset);
        let answer = self.session.handle(&card, request, fds);
        self.follow_state(was, resets);
        let reply = message::reply(header, answer.as_deref().map_err(|error| *error));
        let reply = if header.reply { reply } else { Vec::new() };
        self.session.last = (self.wire.line().requests() + 1, reply.clone());
        Done { header, reply, fd, error: answer.err() }
    }

    /// After a change of state: shows a new device's registers to the driver, or passes the
    /// driver's writes to a device that has stopped.
    fn follow_state(&mut self, was: DeviceState, resets: bool) {
        let is = self.session.migration.state();
        let exchanged = resets || was == DeviceState::Resuming && is != was;
        let stopped = was == DeviceState::Running && is != was;
        let Some(file) = self.doorbells.as_ref().filter(|_| exchanged || stopped) else { return };
        // A device that is only read needs no memory.
        let memory = if exchanged { Arc::default() } else { self.session.memory() };
        let Ok(made) = model((&self.plug, self.kind), &self.room, &self.state, memory) else {
            return;
        };
        let Some(mut mirror) = Mirror::new(made.device, file) else { return };
        if exchanged { mirror.publish() } else { mirror.forward(clock()) }
    }

    /// Takes a message from the socket and answers it, once its effects are kept.
    ///
    /// # Errors
    /// [`ProtocolError`]: the session [ends](Self::end).
    pub fn done(&mut self, done: &Done) -> Result<(), ProtocolError> {
        let mut line = self.wire.line();
        line.did_request(done.header, &done.reply, done.fd.as_ref().map(|fd| fd.as_fd()))?;
        line.take()
    }

    /// Passes the socket back to the worker, which the caller must wake.
    pub fn unpark(&self) {
        self.wire.unpark();
    }

    /// True once the session has [ended](Self::end).
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Notes that the device's halves were taken away.
    pub fn is_quiet(&mut self) {
        self.device = None;
    }

    /// Plugs the cable in, or pulls it. No worker may use the registers meanwhile.
    pub fn set_link(&mut self, up: bool, now: Nanos) {
        self.plug.link = up;
        if let Some(device) = &self.device {
            device.set_link(up, now);
        }
    }

    /// True if the cable is plugged in.
    #[must_use]
    pub fn has_link(&self) -> bool {
        self.plug.link
    }

    /// Sets the moderation of interrupts for the next [`halves`](Self::halves); true if it changed.
    pub fn set_interrupts(&mut self, interrupts: Interrupts) -> bool {
        std::mem::replace(&mut self.plug.interrupts, interrupts) != interrupts
    }

    fn dma_proxy(&self, device: &Arc<dyn Device>) -> DmaProxy {
        let (transfer, last) = (self.session.migration.transfer(), self.wire.line().asked());
        DmaProxy::new(Arc::clone(device), transfer, last)
    }

    /// The halves of a stopped device, which has configuration space only.
    fn stopped(&mut self) -> Result<Attached, AttachError> {
        let device: Arc<dyn Device> = Arc::new(Stopped(self.identity));
        let pin = Arc::clone(self.session.pin());
        let vectors = Vectors::new(
            Arc::clone(&device),
            self.session.mode(),
            [].into(),
            Arc::clone(&pin),
            Arc::clone(&self.config),
        );
        let (wire, config) = (Arc::clone(&self.wire), Arc::clone(&self.config));
        let counters = self.state.bus().ok_or(AttachError::Counters)?;
        self.device = Some(Arc::clone(&device));
        let bus = Bus::new(wire, device, Vec::new(), config, Arc::new(vectors), pin, counters);
        Ok(Attached { source: Box::new(bus), ..null::down(&self.state)? })
    }
}

impl FrontEnd for VfioUser {
    fn halves(&mut self, now: Nanos) -> Result<Attached, AttachError> {
        if self.ended {
            return null::down(&self.state);
        }
        if self.session.migration.state() != DeviceState::Running {
            return self.stopped();
        }
        let memory = self.session.memory();
        let is_copy = memory.is_copy();
        let made = model((&self.plug, self.kind), &self.room, &self.state, memory)?;
        let Model { device, transmit, receive } = made;
        device.set_bus_master(self.config.bus_master());
        device.set_interrupt_mode(self.session.mode());
        device.set_link(self.plug.link, now);
        let pin = Arc::clone(self.session.pin());
        let payer = self.state.payer();
        let wake = |fd: Option<Arc<Descriptor>>| fd.map(|fd| payer.eventfd(fd));
        let eventfds = self.session.eventfds().into_iter().map(wake).collect();
        let mode = self.session.mode();
        let vectors = Vectors::new(
            Arc::clone(&device),
            mode,
            eventfds,
            Arc::clone(&pin),
            Arc::clone(&self.config),
        );
        let counters = self.state.bus().ok_or(AttachError::Counters)?;
        let received = (0..RECEIVE_QUEUES).filter_map(|queue| self.state.egress(queue)).collect();
        let moved = Moved { sent: self.state.ingress(), received, only_sent: false };
        let moderation = Moderation::new(self.plug.interrupts, moved);
        let nudge = is_copy.then(|| rustix::event::eventfd(0, EventfdFlags::NONBLOCK)).transpose();
        let expected = "eventfds that this process may have";
        let nudge = nudge.map_err(|_| AttachError::Descriptors { expected })?;
        let vectors = vectors.counted(counters.clone()).moderated(moderation).nudging(nudge);
        let vectors = Arc::new(vectors);
        self.device = Some(Arc::clone(&device));
        let wire = Arc::clone(&self.wire);
        let config = Arc::clone(&self.config);
        let mirror = self.doorbells.as_ref();
        let mut mirror = mirror.and_then(|file| Mirror::new(Arc::clone(&device), file));
        if let Some(mirror) = &mut mirror {
            match std::mem::replace(&mut self.shown, true) {
                false => mirror.publish(),
                true => mirror.forward(now),
            }
        }
        self.session.shared = device.shared_pages().filter(|_| mirror.is_some());
        let dma_proxy = is_copy.then(|| self.dma_proxy(&device));
        let bus = Bus::new(wire, device, transmit, config, Arc::clone(&vectors), pin, counters);
        let bus = bus.with(mirror, dma_proxy);
        let bells = Bells::Guest(vectors);
        let egresses = receive.into_iter().map(Exit::from).collect();
        Ok(Attached { source: Box::new(bus), egresses, bells })
    }

    fn is_live(&self) -> bool {
        self.device.is_some()
    }

    fn end(&mut self) {
        if !std::mem::replace(&mut self.ended, true) {
            self.socket.drain_and_hang_up();
        }
    }

    /// The port's worker reads the socket.
    fn lost_worker(&mut self) {
        self.end();
    }

    fn to_keep(&self) -> Kept {
        self.session.kept()
    }

    fn kept(&mut self) -> &mut Kept {
        &mut self.kept
    }

    fn new_faults(&mut self) -> Vec<(&'static str, String)> {
        let mut news: Vec<String> = Vec::new();
        if let Some(why) = self.session.migration.refused.take() {
            news.push(format!("refused a state that the device was to go on with: {why}"));
        }
        if let Some(over) = self.session.over_limit.take().filter(|_| !self.said_over_limit) {
            self.said_over_limit = true;
            news.push(format!("the device does not reach all of the guest's memory: {over}"));
        }
        // Firmware adds and removes ranges. Once a driver uses memory, all ranges are there.
        let lacks = self.session.refused.is_some() || self.session.lacks_memory();
        let lacks = self.config.bus_master() && lacks;
        if lacks && !self.said.0 {
            let why =
                self.session.refused.take().map_or_else(String::new, |why| format!(": {why}"));
            let how = if self.session.is_copied() {
                "frames go by messages, slowly"
            } else {
                "it does not reach all of it"
            };
            news.push(format!(
                "the guest's memory came without files that the device can use: {how}; start it with \
                 memory-backend-memfd,share=on{why}"
            ));
        }
        let fault = self.device.as_ref().and_then(|device| device.fault());
        if let Some(fault) = fault.filter(|fault| self.said.1 != Some(*fault)) {
            news.push(format!("the device stopped: {fault}"));
        }
        self.said = (lacks || self.said.0, fault);
        news.into_iter().map(|news| ("news", news)).collect()
    }
}

/// The outcome of a message.
#[derive(Debug)]
pub struct Done {
    header: Header,
    reply: Vec<u8>,
    /// The descriptor that goes with the reply.
    fd: Option<Arc<Descriptor>>,
    /// The error number of the reply.
    pub error: Option<Errno>,
}

/// The line of a socket, and whether the session goes on; `None` if there is no room.
fn open(
    socket: &Arc<Descriptor>,
    room: &Room,
    session: &Session,
    payer: &Payer,
) -> Option<(Line, bool)> {
    let line = Line::new(Arc::clone(socket), room.progress()?, payer);
    let line = line.and_then(|mut line| finish(&mut line, session).map(|()| line));
    match line {
        Ok(line) => Some((line, true)),
        Err(_) => Some((Line::ended(Arc::clone(socket), room.progress()?), false)),
    }
}

/// The request at the front, and whether descriptors came with it. `None` if the message is
/// incomplete, or if the worker has to carry it out.
fn next_request(line: &Line) -> Result<Option<(Header, Request, bool)>, ProtocolError> {
    let Some(Front { header, body, has_fds }) = line.front()? else { return Ok(None) };
    if message::access(header, body).is_some() && !has_fds {
        return Ok(None);
    }
    Ok(Some((header, message::request(header, body), has_fds)))
}

/// Answers a message that a predecessor carried out but did not answer.
fn finish(line: &mut Line, session: &Session) -> Result<(), ProtocolError> {
    let (number, reply) = &session.last;
    if *number != line.requests() + 1 || !line.look()? {
        return Ok(());
    }
    let Some(front) = line.front()? else { return Ok(()) };
    let header = front.header;
    line.did_request(header, reply, None)?;
    line.take()
}

/// Makes a model.
fn model(
    (plug, kind): (&Plug, &nic::kind::Kind),
    room: &Room,
    state: &PortState,
    memory: Arc<GuestMemory>,
) -> Result<Model, AttachError> {
    let combine = |c: crate::config::Combine| Combining { frames: c.frames, delay_us: c.delay_us };
    let config = DeviceConfig {
        memory,
        mac: plug.mac,
        ingress: state.ingress().ok_or(AttachError::Counters)?,
        egress: (0..RECEIVE_QUEUES).filter_map(|queue| state.egress(queue)).collect(),
        link: plug.link,
        combining: plug.nic.combine.map(combine),
        csb: plug.nic.csb,
    };
    models::make(kind, room, config)
}

#[cfg(test)]
mod tests {
    use shmem::sync::{AtomicU32, Ordering};
    use shmem::{Memfd, Pages, Shared};

    use super::*;
    use crate::config::{NicModel, SwitchConfig};
    use turn::state::State;

    /// Objective: where registers are shared, a new card starts with its power-on values.
    ///
    /// Steps: plug in an 82574L whose memory for registers is all zero, as the supervisor makes it;
    /// read PSRCTL and TARC0 in that memory, and in the model.
    #[test]
    fn regression_a_new_card_is_not_cleared_by_its_empty_memory() {
        let (_front_end, socket) = std::os::unix::net::UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        let state = State::private(&SwitchConfig { max_ports: 1, ..SwitchConfig::default() });
        let state = state.unwrap().port(0).unwrap();
        let file = Memfd::create("doorbells", 128 << 10, Pages::Small).unwrap();
        let mapping = file.map().unwrap();
        let doorbells = file.as_fd().try_clone_to_owned().unwrap();
        let (model, doorbell) = (NicModel::I82574L, Doorbell::Shared);
        let nic = NicConfig { model, csb: false, combine: None, doorbell };
        let interrupts = Interrupts::default();
        let plug = Plug { nic, mac: Mac::local(1), link: true, interrupts };
        let summons = Arc::new(ServeRequests::new().unwrap());
        let files = (std::os::fd::OwnedFd::from(socket).into(), Some(doorbells.into()));
        let mut server =
            VfioUser::new(files, plug, (0, &state, &Account::unlimited()), None, summons).unwrap();
        let _halves = server.halves(Nanos(1)).unwrap();
        for (at, power_on) in [(0x2170, 0x0004_0402), (0x3840, 0x0000_0403)] {
            let shared: Shared<AtomicU32> = mapping.shared(at).unwrap();
            assert_eq!(shared.load(Ordering::Relaxed), power_on, "in memory at {at:#x}");
            let mut own = [0; 4];
            server.device.as_ref().unwrap().read(0, at as u64, &mut own, Nanos(1));
            assert_eq!(u32::from_le_bytes(own), power_on, "at {at:#x}");
        }
    }
}
