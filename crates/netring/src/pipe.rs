//! Pipes without a daemon, and ports that are passed to another process.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use frame::OffloadSet;
use rustix::io::Errno;
use shmem::{Memfd, Pages};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::ask::OpenError;
use crate::attach::{NAME, Reply};
use crate::doorbell::{Doorbell, new_eventfd};
use crate::layout::{Geometry, GeometryError, RingSpec, SLOTS};
use crate::port::{Parts, PortError};
use crate::queue::{Memory, SendQueue};
use crate::region::{Ends, Lease, Wanted};
use crate::{Port, Region, RegionConfig, RegionError};

/// A pipe's rings.
#[derive(Clone, Debug)]
pub struct PipeConfig {
    rings: u32,
    slots: u32,
    pages: Pages,
    region: Option<Arc<Region>>,
    offloads: OffloadSet,
}

impl Default for PipeConfig {
    /// One ring in each direction, of default size, in a region of its own.
    fn default() -> Self {
        Self {
            rings: 1,
            slots: SLOTS,
            pages: Pages::default(),
            region: None,
            offloads: OffloadSet::NONE,
        }
    }
}

impl PipeConfig {
    /// Rings in each direction (1 to 16).
    #[must_use]
    pub fn rings(self, rings: u32) -> Self {
        Self { rings, ..self }
    }

    /// Slots of every ring (2 to 4,096).
    #[must_use]
    pub fn slots(self, slots: u32) -> Self {
        Self { slots, ..self }
    }

    /// Sets the kind of pages of the pipe's own region.
    #[must_use]
    pub fn pages(self, pages: Pages) -> Self {
        Self { pages, ..self }
    }

    /// Lets slots of the pipe carry these offload requests: see
    /// [`Open::offloads`](crate::Open::offloads). They are not validated between the ends.
    #[must_use]
    pub fn offloads(self, offloads: OffloadSet) -> Self {
        Self { offloads, ..self }
    }

    /// Puts the pipe into a region. It takes two interfaces, four ring objects for each ring, and
    /// buffers for half of those.
    #[must_use]
    pub fn in_region(self, region: &Arc<Region>) -> Self {
        Self { region: Some(Arc::clone(region)), ..self }
    }
}

/// Makes a pipe (netmap's twin rings) and returns its two ends: for two threads, or for a process
/// that forks or passes one end on. It is lossless, and frames pass without a copy.
///
/// # Errors
/// The region does not have enough interfaces, rings or buffers, or the kernel has no memory or
/// descriptor left.
pub fn pipe(config: &PipeConfig) -> Result<(Port, Port), RegionError> {
    let PipeConfig { rings, slots, pages, .. } = *config;
    let region = match &config.region {
        Some(region) => Arc::clone(region),
        None => {
            let all = rings.saturating_mul(4);
            let buffers = rings.saturating_mul(slots).saturating_mul(2);
            let sizes = RegionConfig::default().interfaces(2).rings(all).slots(slots);
            Region::create(sizes.buffers(buffers).pages(pages))?
        }
    };
    let names = ["pipe{0", "pipe}0"];
    let wanted =
        Wanted { name: names[0], tx_rings: rings, rx_rings: rings, slots, extra_buffers: 0 };
    let (lease, ends) = Lease::pipe(&region, &wanted, names)?;
    let (lease, eventfd) = (Arc::new(lease), || new_eventfd().map_err(RegionError::Event));
    let wakes = [eventfd()?, eventfd()?];
    let end = |i: usize| -> Result<Port, RegionError> {
        let copy = |fd: &OwnedFd| fd.try_clone().map_err(|_| RegionError::Event(Errno::MFILE));
        let doorbell = Doorbell::pipe(copy(&wakes[i])?, copy(&wakes[1 - i])?, None);
        let parts = Parts {
            name: names[i],
            memory: Memory::of(&region),
            lease: Some(Arc::clone(&lease)),
            ends: ends[i],
            twin: Some(ends[1 - i].rx),
            doorbell: doorbell.map_err(RegionError::Event)?,
            max_frame: usize::MAX,
            offloads: ends[i].carried(config.offloads, region.buffer_usable()),
        };
        Ok(Port::assemble(parts)?)
    };
    Ok((end(0)?, end(1)?))
}

/// An end of a pipe, from the daemon's reply.
pub(crate) fn join(name: &str, (reply, fds): (Reply, Vec<OwnedFd>)) -> Result<Port, OpenError> {
    let Ok([token, own, peer, file]) = <[OwnedFd; 4]>::try_from(fds) else {
        return Err(OpenError::Malformed("number of descriptors"));
    };
    let doorbell = Doorbell::pipe(own, peer, Some(token)).map_err(OpenError::Io)?;
    let Reply { geometry, tx, rx, peer_rx, buf_usable, max_frame, offloads, .. } = reply;
    let (twin, usable, offloads) = (peer_rx, buf_usable, offloads.into());
    let foreign = Foreign { geometry, tx, rx, twin, usable, max_frame, offloads };
    foreign.port(name, file, doorbell, true).map_err(|error| match error {
        PartsError::Region(error) => OpenError::Region(error),
        _ => OpenError::Malformed("rings"),
    })
}

/// The reason why a port could not be taken over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PartsError {
    /// The bytes or the number of descriptors are not what [`Port::into_parts`] made.
    #[error("These are not the parts of a port; pass on what Port::into_parts returned, in order")]
    Malformed,
    /// The memory is not usable, or the rings are not within it.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The port cannot be passed on.
    #[error("A port in a private region cannot leave its process; make it with Region::create")]
    PrivateRegion,
    /// A process that gets the port could not forward.
    #[error("A port of a trusted switch cannot leave its process; open it there")]
    Trusted,
    /// The port has an error.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The operating system refused something.
    #[error("A descriptor of the port could not be used")]
    Io(#[source] Errno),
}

/// A port in memory that another process made.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Foreign {
    geometry: Geometry,
    tx: RingSpec,
    rx: RingSpec,
    twin: RingSpec,
    usable: u32,
    max_frame: u32,
    offloads: u32,
}

impl Foreign {
    /// Validates everything, maps the memory, and makes the port.
    fn port(
        &self,
        name: &str,
        file: OwnedFd,
        doorbell: Doorbell,
        is_pipe: bool,
    ) -> Result<Port, PartsError> {
        let file = Memfd::adopt(file).map_err(RegionError::from)?;
        let Self { geometry, tx, rx, twin, usable, max_frame, offloads } = *self;
        let check = || {
            geometry.check(file.len())?;
            [tx, rx, twin].iter().try_for_each(|spec| spec.check(&geometry))?;
            if is_pipe && (twin.rings, twin.slots) != (tx.rings, tx.slots) {
                return Err(GeometryError("twin rings"));
            }
            let usable_fits = (1..=geometry.buf_size).contains(&usable);
            usable_fits.then_some(()).ok_or(GeometryError("usable bytes of a buffer"))
        };
        check().map_err(RegionError::from)?;
        let mapping = file.map().map_err(RegionError::from)?;
        let memory = Memory { mapping, geometry, usable, region: None, file: Some(Arc::new(file)) };
        let twin = is_pipe.then_some(twin);
        let (ends, max_frame) = (Ends { tx, rx }, max_frame as usize);
        let offloads = OffloadSet::from_bits(offloads as u8);
        let parts = Parts { name, memory, lease: None, ends, twin, doorbell, max_frame, offloads };
        Ok(Port::assemble(parts).map_err(RegionError::from)?)
    }
}

const PARTS_VERSION: u16 = 2;

/// A port's description, to travel with its descriptors.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Description {
    version: u16,
    is_pipe: u16,
    foreign: Foreign,
    name: [u8; NAME],
}

/// Bytes of the description of a port that is passed on.
pub const PARTS_BYTES: usize = size_of::<Description>();

impl Port {
    /// Takes the port apart to pass it to another process. Returns its descriptors, to be passed in
    /// this order (SCM_RIGHTS, or inherited), and its description. Filled and released slots are
    /// published first. Its rings stay allocated in their region.
    ///
    /// # Errors
    /// [`PartsError::PrivateRegion`], or an error of [`flush`](Self::flush).
    pub fn into_parts(mut self) -> Result<(Vec<OwnedFd>, [u8; PARTS_BYTES]), PartsError> {
        self.flush()?;
        self.send.iter_mut().for_each(SendQueue::settle);
        let copy = |fd: &dyn AsFd| fd.as_fd().try_clone_to_owned().map_err(|_| Errno::MFILE);
        let file = self.memory.file.as_deref().ok_or(PartsError::PrivateRegion)?;
        let mut fds = vec![copy(file).map_err(PartsError::Io)?];
        match &self.doorbell {
            Doorbell::Token(token) => fds.push(copy(token).map_err(PartsError::Io)?),
            Doorbell::Pipe { own, peer, token } => {
                for fd in [Some(own), Some(peer), token.as_ref()].into_iter().flatten() {
                    fds.push(copy(fd).map_err(PartsError::Io)?);
                }
            }
            Doorbell::Trusted { .. } => return Err(PartsError::Trusted),
            Doorbell::Inline(_) => return Err(PartsError::PrivateRegion),
        }
        let mut description = Description {
            version: PARTS_VERSION,
            is_pipe: u16::from(self.twin.is_some()),
            foreign: Foreign {
                geometry: self.memory.geometry,
                tx: self.ends.tx,
                rx: self.ends.rx,
                twin: self.twin.unwrap_or_default(),
                usable: self.memory.usable,
                max_frame: u32::try_from(self.max_frame).unwrap_or(u32::MAX),
                offloads: self.offloads().bits().into(),
            },
            name: FromZeros::new_zeroed(),
        };
        let len = self.name.len().min(NAME);
        description.name[..len].copy_from_slice(&self.name.as_bytes()[..len]);
        if let Some(lease) = &self.lease {
            lease.keep();
        }
        Ok((fds, zerocopy::transmute!(description)))
    }

    /// Makes a port from the parts that another process took apart.
    ///
    /// # Errors
    /// See [`PartsError`].
    pub fn from_parts(fds: Vec<OwnedFd>, description: &[u8]) -> Result<Self, PartsError> {
        let description =
            Description::read_from_bytes(description).map_err(|_| PartsError::Malformed)?;
        let Description { version, is_pipe, foreign, name } = description;
        let mut fds = fds.into_iter();
        let (Some(file), Some(own), peer) = (fds.next(), fds.next(), fds.next()) else {
            return Err(PartsError::Malformed);
        };
        let doorbell = match (is_pipe, peer) {
            (0, None) => Doorbell::Token(own),
            (1, Some(peer)) => Doorbell::pipe(own, peer, fds.next()).map_err(PartsError::Io)?,
            _ => return Err(PartsError::Malformed),
        };
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(NAME);
        let name = std::str::from_utf8(&name[..end]).map_err(|_| PartsError::Malformed)?;
        if version != PARTS_VERSION || fds.next().is_some() {
            return Err(PartsError::Malformed);
        }
        foreign.port(name, file, doorbell, is_pipe == 1)
    }
}
