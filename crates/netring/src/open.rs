//! Opening ports of a daemon's switches: the client's side of the attach socket.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use frame::OffloadSet;
use rustix::io::Errno;
use shmem::Pages;

use crate::ask::{Attached, OpenError, Opened, ask, ask_on, connect};
use crate::attach::{NAME, Request, flags, op, runtime_directory};
use crate::doorbell::Doorbell;
use crate::layout::SLOTS;
use crate::port::Parts;
use crate::queue::Memory;
use crate::region::{Ends, Lease, Wanted};
use crate::{Port, Region, RegionConfig, RegionError};

/// What a monitor gets copies of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Monitor {
    /// What the port's owner sends.
    Sent,
    /// What the port's owner receives.
    Received,
    /// Both.
    Both,
}

impl Monitor {
    /// The monitor of these directions; `None` for neither.
    #[must_use]
    pub const fn of(sent: bool, received: bool) -> Option<Self> {
        match (sent, received) {
            (true, true) => Some(Self::Both),
            (true, false) => Some(Self::Sent),
            (false, true) => Some(Self::Received),
            (false, false) => None,
        }
    }

    /// True if the monitor gets copies of what the port's owner sends.
    #[must_use]
    pub const fn sent(self) -> bool {
        matches!(self, Self::Sent | Self::Both)
    }

    /// True if the monitor gets copies of what the port's owner receives.
    #[must_use]
    pub const fn received(self) -> bool {
        matches!(self, Self::Received | Self::Both)
    }
}

/// How a port is to be opened.
///
/// ```no_run
/// use netring::{Open, Region, RegionConfig};
///
/// let region = Region::create(RegionConfig::ports(2, 1, 512))?;
/// let left = Open::new("vale0:left").slots(512).in_region(&region).open()?;
/// let right = Open::new("vale1:right").slots(512).in_region(&region).open()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Open {
    name: String,
    tx_rings: u32,
    rx_rings: u32,
    slots: u32,
    extra_buffers: u32,
    pages: Pages,
    region: Option<Arc<Region>>,
    directory: Option<PathBuf>,
    monitor: Option<Monitor>,
    exclusive: bool,
    existing: bool,
    offloads: OffloadSet,
    unlimited: bool,
}

type MakeRegion = fn(RegionConfig) -> Result<Arc<Region>, RegionError>;

impl Open {
    /// The port of this name, as [`Port::open`] opens it.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            tx_rings: 1,
            rx_rings: 1,
            slots: SLOTS,
            extra_buffers: 0,
            pages: Pages::default(),
            region: None,
            directory: None,
            monitor: None,
            exclusive: false,
            existing: false,
            offloads: OffloadSet::NONE,
            unlimited: false,
        }
    }

    /// Slots of every ring (2 to 4,096; 1,024 by default).
    #[must_use]
    pub fn slots(self, slots: u32) -> Self {
        Self { slots, ..self }
    }

    /// Rings in each direction (1 to 16).
    #[must_use]
    pub fn rings(self, rings: u32) -> Self {
        Self { tx_rings: rings, rx_rings: rings, ..self }
    }

    /// Send and receive rings; 0 for a port that only receives or sends.
    #[must_use]
    pub fn queues(self, send: u32, receive: u32) -> Self {
        Self { tx_rings: send, rx_rings: receive, ..self }
    }

    /// Buffers in addition to those of the slots; see [`Port::take_extra`].
    #[must_use]
    pub fn extra_buffers(self, extra_buffers: u32) -> Self {
        Self { extra_buffers, ..self }
    }

    /// The pages of the port's own region.
    #[must_use]
    pub fn pages(self, pages: Pages) -> Self {
        Self { pages, ..self }
    }

    /// Puts the port into a region together with others, to exchange buffers with them.
    #[must_use]
    pub fn in_region(self, region: &Arc<Region>) -> Self {
        Self { region: Some(Arc::clone(region)), ..self }
    }

    /// The daemon's directory, if not [`runtime_directory`].
    #[must_use]
    pub fn directory(self, directory: impl Into<PathBuf>) -> Self {
        Self { directory: Some(directory.into()), ..self }
    }

    /// Opens a monitor of the port instead: a port that only receives.
    #[must_use]
    pub fn monitor(self, monitor: Monitor) -> Self {
        Self { monitor: Some(monitor), ..self }
    }

    /// Asks for the port alone. Each port has one owner anyway: opening a port that is open fails.
    /// netmap's programs ask for it. Monitors are still allowed.
    #[must_use]
    pub fn exclusive(self) -> Self {
        Self { exclusive: true, ..self }
    }

    /// Fails if the switch does not exist, instead of making it: for names that people type.
    #[must_use]
    pub fn existing(self) -> Self {
        Self { existing: true, ..self }
    }

    /// Asks that slots carry offload requests: the receiver of a frame does its checksums and
    /// segmentation. The port may make the requests in `offloads`, and receives frames with the
    /// requests of their sender. [`Port::offloads`] returns what was granted. Without it frames
    /// arrive finished. Both ends of a pipe must ask for the same.
    #[must_use]
    pub fn offloads(self, offloads: OffloadSet) -> Self {
        Self { offloads, ..self }
    }

    /// Opens the port without limits on floods, addresses and length, except those of the switch.
    /// This holds for a port that is made for this client. It is for programs that generate
    /// traffic, and is how VALE's ports behave.
    #[must_use]
    pub fn unlimited(self) -> Self {
        Self { unlimited: true, ..self }
    }

    /// Opens the port.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(mut self) -> Result<Port, OpenError> {
        self.take_suffix()?;
        let (switch, port) = self.name.split_once(':').unwrap_or_default();
        if switch.is_empty() || port.is_empty() || self.name.len() >= NAME {
            return Err(OpenError::Name(self.name));
        }
        if port.contains(['{', '}']) { self.open_pipe() } else { self.open_port() }
    }

    /// netmap's suffixes of names: `/t` and `/r` for monitors, `/x` for exclusive.
    fn take_suffix(&mut self) -> Result<(), OpenError> {
        let Some((name, suffix)) = self.name.split_once('/') else { return Ok(()) };
        if suffix.is_empty() || !suffix.chars().all(|c| "trx".contains(c)) {
            return Err(OpenError::Name(self.name.clone()));
        }
        self.exclusive |= suffix.contains('x');
        let monitor = Monitor::of(suffix.contains('t'), suffix.contains('r'));
        self.monitor = monitor.or(self.monitor);
        self.name = name.to_owned();
        Ok(())
    }

    fn flags(&self) -> u32 {
        let when = |is_so, flag| if is_so { flag } else { 0 };
        when(self.monitor.is_some_and(Monitor::sent), flags::MONITOR_TX)
            | when(self.monitor.is_some_and(Monitor::received), flags::MONITOR_RX)
            | when(self.exclusive, flags::EXCLUSIVE)
            | when(self.existing, flags::EXISTING)
            | when(self.unlimited, flags::UNLIMITED)
    }

    fn opened(&self) -> Opened {
        let directory = self.directory.clone().unwrap_or_else(runtime_directory);
        Opened { directory, name: self.name.clone(), flags: self.flags(), offloads: self.offloads }
    }

    /// Returns the given region, or makes one that is just large enough.
    fn region(
        &self,
        rings: u32,
        buffers: u32,
        make: MakeRegion,
    ) -> Result<Arc<Region>, RegionError> {
        if let Some(region) = &self.region {
            return Ok(Arc::clone(region));
        }
        let config = RegionConfig::default().interfaces(2).rings(rings).slots(self.slots);
        make(config.buffers(buffers.max(1)).pages(self.pages))
    }

    /// Lays the port out for a switch in this process, instead of asking a daemon: see
    /// [`Port::inline`].
    ///
    /// # Errors
    /// The region does not have enough interfaces, rings or buffers.
    pub fn inline(self) -> Result<Port, RegionError> {
        let (memory, lease, ends) = self.lay_out(Region::private)?;
        let offloads = ends.carried(self.offloads, memory.usable);
        let parts = Parts {
            name: &self.name,
            memory,
            lease: Some(Arc::new(lease)),
            ends,
            twin: None,
            doorbell: Doorbell::inline().map_err(RegionError::Event)?,
            max_frame: usize::MAX,
            offloads,
        };
        Ok(Port::assemble(parts)?)
    }

    /// The port's rings, in the region that was given or one of its own.
    fn lay_out(&self, make: MakeRegion) -> Result<(Memory, Lease, Ends), RegionError> {
        // A monitor has nothing to send.
        let tx_rings = if self.monitor.is_some() { 0 } else { self.tx_rings };
        let (rx_rings, slots, extra_buffers) = (self.rx_rings, self.slots, self.extra_buffers);
        let rings = tx_rings.saturating_add(rx_rings);
        let buffers = rings.saturating_mul(slots).saturating_add(extra_buffers);
        let region = self.region(rings, buffers, make)?;
        let wanted = Wanted { name: &self.name, tx_rings, rx_rings, slots, extra_buffers };
        let (lease, ends) = Lease::port(&region, &wanted)?;
        Ok((Memory::of(&region), lease, ends))
    }

    fn open_port(self) -> Result<Port, OpenError> {
        let (memory, lease, ends) = self.lay_out(Region::create)?;
        let opened = self.opened();
        let Attached { doorbell, max_frame, offloads } = opened.attach(&memory, ends)?;
        let lease = Some(Arc::new(lease));
        let name = &self.name;
        let parts = Parts { name, memory, lease, ends, twin: None, doorbell, max_frame, offloads };
        let mut port = Port::assemble(parts).map_err(RegionError::from)?;
        port.opened = Some(opened);
        Ok(port)
    }

    /// Opens an end of a pipe, and makes the pipe if it does not exist.
    fn open_pipe(self) -> Result<Port, OpenError> {
        let name = self.name.clone();
        let [brace, other] = if name.contains('{') { ['{', '}'] } else { ['}', '{'] };
        let valid = |(base, id): (&str, &str)| {
            !base.ends_with(':') && !id.is_empty() && !id.contains(['{', '}'])
        };
        if self.monitor.is_some() || !name.split_once(brace).is_some_and(valid) {
            return Err(OpenError::Name(name));
        }
        let Opened { directory, flags, .. } = self.opened();
        let offloads = u32::from(self.offloads.bits());
        let join = Request { flags, offloads, ..Request::new(op::OPEN_PIPE, &name) };
        // Another process may make or close the pipe between the two requests, so they are
        // repeated.
        for _ in 0..8 {
            match ask(&directory, &join, &[]) {
                Err(OpenError::Refused { errno, .. }) if errno == Errno::NOENT.raw_os_error() => {}
                answer => return crate::pipe::join(&name, answer?),
            }
            match self.make_pipe(&directory, flags, &name, &name.replace(brace, &other.to_string()))
            {
                Err(OpenError::Refused { errno, .. }) if errno == Errno::EXIST.raw_os_error() => {}
                made => return made,
            }
        }
        Err(OpenError::Malformed("the pipe neither exists nor can be made"))
    }

    fn make_pipe(
        &self,
        directory: &Path,
        flags: u32,
        name: &str,
        other: &str,
    ) -> Result<Port, OpenError> {
        let (rings, slots) = (self.tx_rings.max(1), self.slots);
        let buffers = rings.saturating_mul(slots).saturating_mul(2);
        let buffers = buffers.saturating_add(self.extra_buffers);
        let region = self.region(rings.saturating_mul(4), buffers, Region::create)?;
        let extra_buffers = self.extra_buffers;
        let wanted = Wanted { name, tx_rings: rings, rx_rings: rings, slots, extra_buffers };
        let (lease, [ours, theirs]) = Lease::pipe(&region, &wanted, [name, other])?;
        let memory = Memory::of(&region);
        // The message names the rings of the `{` end first.
        let [first, second] = if name.contains('{') { [ours, theirs] } else { [theirs, ours] };
        let request = Request {
            flags,
            geometry: memory.geometry,
            buf_usable: memory.usable,
            tx: first.tx,
            rx: first.rx,
            peer_tx: second.tx,
            peer_rx: second.rx,
            offloads: self.offloads.bits().into(),
            ..Request::new(op::MAKE_PIPE, name)
        };
        let file = region.file().ok_or(OpenError::PrivateRegion)?;
        let (reply, fds) = ask(directory, &request, &[file])?;
        let Ok([token, own, peer]) = <[OwnedFd; 3]>::try_from(fds) else {
            return Err(OpenError::Malformed("number of descriptors"));
        };
        let doorbell = Doorbell::pipe(own, peer, Some(token)).map_err(OpenError::Io)?;
        let lease = Some(Arc::new(lease));
        let (twin, max_frame) = (Some(theirs.rx), reply.max_frame as usize);
        let offloads = OffloadSet::from_bits(reply.offloads);
        let parts = Parts { name, memory, lease, ends: ours, twin, doorbell, max_frame, offloads };
        Ok(Port::assemble(parts).map_err(RegionError::from)?)
    }
}

impl Port {
    /// Opens a port with one ring in each direction: `vale0:p1`, an end of a pipe (`vale0:p1{1`,
    /// `vale0:p1}1`), or a monitor (`vale0:p1/t`, `/r`, `/rt`). See [`Open`] for everything else.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(name: &str) -> Result<Self, OpenError> {
        Open::new(name).open()
    }

    /// A port for a switch in this process. It works like others but kicks no one. Give
    /// [`rings`](Self::rings) to the switch.
    ///
    /// # Errors
    /// The region does not have enough interfaces, rings or buffers.
    pub fn inline(
        region: &Arc<Region>,
        name: &str,
        tx_rings: u32,
        rx_rings: u32,
        slots: u32,
    ) -> Result<Self, RegionError> {
        Open::new(name).queues(tx_rings, rx_rings).slots(slots).in_region(region).inline()
    }
}

/// Checks that a daemon listens.
///
/// # Errors
/// There is no daemon, or permission is missing.
pub fn find_daemon(directory: &Path) -> Result<(), OpenError> {
    connect(directory).map(drop)
}

/// The names of the ports of the daemon's switches that this process's user and root have, in
/// order; for root, of all.
///
/// # Errors
/// There is no daemon, or permission is missing.
pub fn ports(directory: &Path) -> Result<Vec<String>, OpenError> {
    let socket = connect(directory)?;
    let mut names: Vec<String> = Vec::new();
    let parts = |name: &str| name.split_once(':').map(|(s, p)| (s.to_owned(), p.to_owned()));
    loop {
        let last = names.last().map_or("", String::as_str);
        match ask_on(&socket, &Request::new(op::NEXT, last), &[]) {
            // The names must ascend: a daemon that repeats one would be asked forever.
            Ok((reply, _)) if parts(reply.message()) > parts(last) => {
                names.push(reply.message().to_owned())
            }
            Err(OpenError::Refused { errno, .. }) if errno == Errno::NOENT.raw_os_error() => {
                return Ok(names);
            }
            Ok(_) => return Err(OpenError::Malformed("the order of ports")),
            Err(error) => return Err(error),
        }
    }
}
