//! The state of a vfio-user session (version, memory, interrupts), and how messages change it.
//!
//! A session does not know workers. It says before a message is carried out whether workers [must
//! leave](needs_quiet) the device.

use std::sync::Arc;

use jail::strangers::{Descriptor, is_event};
use nic::device::{Bar, Identity, InterruptMode, SharedPages};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::json;
use shmem::GuestMemory;
use shmem::budget::Account;

use super::message::{Request, irq, longs, version, words};
use super::migration::{self, MAX_TRANSFER, Migration};
use super::models::Card;
use super::ranges::{Commit, MAX_RANGES, Ranges};
use crate::attach::guest::kept::Kept;
use crate::attach::guest::memory::{MemoryError, Region};
use crate::attach::guest::vectors::Pin;

/// Regions: base address registers, ROM, configuration space, VGA.
const REGIONS: u32 = 9;
/// The region of configuration space.
pub const CONFIG: u32 = 7;
/// Kinds of interrupts: pin, MSI, MSI-X. PCI devices can have two more, for errors and for requests
/// to release the device; these devices have neither.
const KINDS: u32 = 3;
/// The maximum number of vectors of a kind.
const VECTORS: usize = 32;
/// The name of everything that is not a descriptor.
const SESSION: &str = "session";

/// The persistent state of a session, except its descriptors.
#[derive(Default, Serialize, Deserialize)]
struct Saved {
    agreed: bool,
    /// Which of the recorded ranges count.
    #[serde(default)]
    commit: Commit,
    /// The ranges as earlier versions kept them: region, writable, number of the file, has one.
    #[serde(default, skip_serializing)]
    ranges: Vec<(Region, bool, u32, bool)>,
    enabled: [bool; 3],
    last: (u64, Vec<u8>),
    #[serde(default)]
    migration: Migration,
}

/// A vfio-user session.
#[derive(Debug)]
pub struct Session {
    agreed: bool,
    ranges: Ranges,
    /// The eventfds, by kind of interrupt and by vector.
    eventfds: [Vec<Option<Arc<Descriptor>>>; 3],
    enabled: [bool; 3],
    pin: Arc<Pin>,
    /// The number of the last message that was carried out, and the reply to it.
    pub last: (u64, Vec<u8>),
    /// The registers that the front end may map.
    pub shared: Option<SharedPages>,
    /// The reason why the last memory file that was refused cannot be used.
    pub refused: Option<MemoryError>,
    /// The limit that the last refused mapping would have exceeded.
    pub over_limit: Option<MemoryError>,
    is_copied: bool,
    /// The migration of the device to another server.
    pub migration: Migration,
}

/// The body of a reply, or an error number.
type Answer = Result<Vec<u8>, Errno>;

/// True if no worker may use the device while this request is carried out.
#[must_use]
pub fn needs_quiet(request: &Request) -> bool {
    match request {
        Request::DmaMap { .. } | Request::DmaUnmap { .. } | Request::SetIrqs { .. } => true,
        Request::Reset => true,
        Request::Feature { flags, .. } => migration::needs_quiet(*flags),
        _ => false,
    }
}

/// Vectors of each kind.
fn kinds(identity: &Identity) -> [usize; 3] {
    let msix = identity.msix.map_or(0, |msix| usize::from(msix.vectors).min(VECTORS));
    [1, identity.msi.into(), msix]
}

/// Bytes of a region.
#[must_use]
pub fn region_size(identity: &Identity, index: u32) -> u64 {
    match (identity.bars.get(index as usize), index) {
        (Some(Some(Bar::Memory(size) | Bar::Io(size))), _) => u64::from(*size),
        // There are no extended capabilities. But without the space for them, QEMU 11.1 aborts when
        // the device is behind a root port.
        (None, CONFIG) if identity.express => nic::pci::EXTENDED_SIZE as u64,
        (None, CONFIG) => nic::pci::SIZE as u64,
        _ => 0,
    }
}

impl Session {
    /// A session before its first message.
    #[must_use]
    pub fn new(identity: &Identity, account: &Arc<Account>) -> Self {
        Self {
            agreed: false,
            ranges: Ranges::new(account),
            eventfds: kinds(identity).map(|vectors| vec![None; vectors]),
            enabled: [false; 3],
            pin: Arc::default(),
            last: (0, Vec::new()),
            shared: None,
            refused: None,
            over_limit: None,
            is_copied: false,
            migration: Migration::default(),
        }
    }

    /// The guest's memory, as far as the device may use it. It is a copy if messages carry memory.
    #[must_use]
    pub fn memory(&mut self) -> Arc<GuestMemory> {
        self.is_copied = false;
        if !self.lacks_memory() {
            return Arc::new(self.ranges.table());
        }
        let copy = self.ranges.copy();
        self.is_copied = copy.is_ok();
        copy.map(Arc::new).unwrap_or_else(|error| {
            self.refuse(error);
            Arc::default()
        })
    }

    /// Notes why memory was refused; true if it would exceed a limit.
    fn refuse(&mut self, error: MemoryError) -> bool {
        use MemoryError::{Files, OverBudget, Ranges};
        let is_limit = matches!(error, OverBudget(_) | Ranges(_) | Files(_));
        let note = if is_limit { &mut self.over_limit } else { &mut self.refused };
        *note = Some(error);
        is_limit
    }

    /// True if the last [`memory`](Self::memory) is a copy.
    #[must_use]
    pub fn is_copied(&self) -> bool {
        self.is_copied
    }

    /// How the device raises interrupts.
    #[must_use]
    pub fn mode(&self) -> InterruptMode {
        match self.enabled {
            [_, _, true] => InterruptMode::Msix,
            [_, true, _] => InterruptMode::Msi,
            _ => InterruptMode::Pin,
        }
    }

    /// True if the guest's memory came without usable files.
    #[must_use]
    pub fn lacks_memory(&self) -> bool {
        self.ranges.lack_memory()
    }

    /// The eventfds that the device's interrupts go to.
    #[must_use]
    pub fn eventfds(&self) -> Box<[Option<Arc<Descriptor>>]> {
        let [pin, msi, msix] = &self.eventfds;
        let of = match self.mode() {
            InterruptMode::Pin => pin,
            InterruptMode::Msi => msi,
            InterruptMode::Msix => msix,
        };
        of.as_slice().into()
    }

    /// The state of the pin.
    #[must_use]
    pub fn pin(&self) -> &Arc<Pin> {
        &self.pin
    }

    /// Carries out a message. The version is agreed on first, and once: a front end that offers
    /// one that is not spoken here, or malformed, may offer another.
    pub fn handle(&mut self, card: &Card<'_>, request: Request, fds: Vec<Descriptor>) -> Answer {
        let identity = card.identity;
        if self.agreed == matches!(request, Request::Version { .. }) {
            return Err(Errno::INVAL);
        }
        let got = fds.len();
        let good = match &request {
            Request::DmaMap { .. } => got <= 1,
            Request::SetIrqs { flags, count, .. } if flags & irq::DATA_EVENTFD != 0 => {
                got == 0 || got == *count as usize
            }
            _ => got == 0,
        };
        if !good {
            return Err(Errno::INVAL);
        }
        match request {
            Request::Version { major: 0, transfer, migration } => {
                self.negotiate(transfer, migration)
            }
            Request::Version { .. } => Err(Errno::OPNOTSUPP),
            Request::DmaMap { flags, offset, address, size } => {
                let region = Region { guest: address, size, user: address, offset };
                self.map(region, flags, fds.into_iter().next())
            }
            Request::DmaUnmap { flags, address, size } => self.unmap(flags, address, size),
            // Flags: the device can be reset, and it is a PCI device.
            Request::GetInfo => Ok(words(&[16, 0b11, REGIONS, KINDS])),
            Request::GetRegionInfo { index, room } => {
                region_info(index, region_size(identity, index), self.pages(index), room)
            }
            Request::GetIrqInfo(index) => self.irq_info(index),
            Request::SetIrqs { flags, index, start, count, data } => {
                self.set_irqs(flags, index, start, count, &data, fds)
            }
            Request::Reset => self.migration.reset(card),
            // A migrated state holds no messages in flight, so the device needs its memory mapped.
            Request::Feature { flags, .. }
                if migration::needs_quiet(flags) && self.lacks_memory() =>
            {
                Err(Errno::OPNOTSUPP)
            }
            Request::Feature { room, flags, data } => {
                self.migration.feature(card, room, flags, &data)
            }
            Request::StateRead { room, size } => self.migration.read(card, room, size),
            Request::StateWrite(data) => self.migration.write(card, &data),
            Request::Other(_) => Err(Errno::OPNOTSUPP),
            Request::Malformed => Err(Errno::INVAL),
        }
    }

    /// Tells the front end what this device supports. The front end accepts `transfer` bytes at a
    /// time.
    fn negotiate(&mut self, transfer: u64, migration: bool) -> Answer {
        self.agreed = true;
        self.migration.negotiate(transfer);
        let mut capabilities = json!({
            "max_msg_fds": 16,
            "max_data_xfer_size": MAX_TRANSFER,
            "max_dma_maps": MAX_RANGES,
            "pgsizes": 4096,
            "write_multiple": true,
        });
        // The name `migration` is from an earlier edition of the specification. A reply may name
        // only capabilities that the front end has proposed.
        if migration {
            capabilities["migration"] = json!({ "pgsize": 4096 });
        }
        Ok(version(&capabilities))
    }

    /// The offsets of the pages of a region that may be mapped.
    #[must_use]
    pub fn pages(&self, index: u32) -> &'static [u64] {
        self.shared.filter(|shared| shared.bar == index as usize).map_or(&[], |shared| shared.pages)
    }

    fn map(&mut self, region: Region, flags: u32, file: Option<Descriptor>) -> Answer {
        const READ: u32 = 1;
        const WRITE: u32 = 2;
        region.guest.checked_add(region.size).ok_or(Errno::INVAL)?;
        if region.size == 0 || flags & READ == 0 || flags & !(READ | WRITE) != 0 {
            return Err(Errno::INVAL);
        }
        if !self.ranges.is_free(region) {
            return Err(Errno::EXIST);
        }
        let place = file.map(|file| self.ranges.place(region, Arc::new(file))).transpose();
        let place = place.or_else(|error| match self.refuse(error) {
            true => Err(Errno::NOSPC),
            // A refusal would end the virtual machine, although the guest may never use this range
            // for frames.
            false => Ok(None),
        })?;
        self.ranges.add(region, flags & WRITE != 0, place)?;
        Ok(Vec::new())
    }

    fn unmap(&mut self, flags: u32, address: u64, size: u64) -> Answer {
        const ALL: u32 = 2;
        let (from, to) = match flags {
            ALL if (address, size) == (0, 0) => (0, u64::MAX),
            0 => (address, address.checked_add(size).ok_or(Errno::INVAL)?),
            _ => return Err(Errno::OPNOTSUPP),
        };
        let gone = self.ranges.remove(from, to)?;
        Ok([words(&[24, flags]), longs(&[address, gone])].concat())
    }

    fn irq_info(&self, index: u32) -> Answer {
        const EVENTFD: u32 = 1;
        /// A level-triggered interrupt: masked when it is signalled, unmasked by message.
        const LEVEL: u32 = 2 | 4;
        let vectors = self.eventfds.get(index as usize).ok_or(Errno::INVAL)?;
        let flags = if index == 0 { EVENTFD | LEVEL } else { EVENTFD };
        Ok(words(&[16, flags, index, vectors.len() as u32]))
    }

    fn set_irqs(
        &mut self,
        flags: u32,
        index: u32,
        start: u32,
        count: u32,
        data: &[u8],
        fds: Vec<Descriptor>,
    ) -> Answer {
        const TRIGGER_BY_NONE: u32 = irq::TRIGGER | irq::DATA_NONE;
        const TRIGGER_BY_BOOL: u32 = irq::TRIGGER | irq::DATA_BOOL;
        const TRIGGER_BY_EVENTFD: u32 = irq::TRIGGER | irq::DATA_EVENTFD;
        let kind = index as usize;
        let vectors = self.eventfds.get_mut(kind).ok_or(Errno::INVAL)?;
        let (start, count) = (start as usize, count as usize);
        let end = start.checked_add(count).ok_or(Errno::INVAL)?;
        let some = vectors.get_mut(start..end).ok_or(Errno::INVAL)?;
        let with_data = if flags == TRIGGER_BY_BOOL { count } else { 0 };
        if data.len() != with_data {
            return Err(Errno::INVAL);
        }
        match flags {
            TRIGGER_BY_NONE if count == 0 => {
                vectors.fill(None);
                self.enabled[kind] = false;
            }
            TRIGGER_BY_NONE | TRIGGER_BY_BOOL => {
                let wanted = data.iter().map(|byte| *byte != 0).chain(std::iter::repeat(true));
                let wanted = some
                    .iter()
                    .zip(wanted)
                    .filter_map(|(fd, wanted)| fd.as_ref().filter(|_| wanted));
                wanted.for_each(|fd| turn::signal(std::os::fd::AsFd::as_fd(fd)));
            }
            TRIGGER_BY_EVENTFD if count > 0 => {
                if !fds.iter().all(is_event) {
                    return Err(Errno::INVAL);
                }
                let fds =
                    fds.into_iter().map(|fd| Some(Arc::new(fd))).chain(std::iter::repeat(None));
                some.iter_mut().zip(fds).for_each(|(vector, fd)| *vector = fd);
                self.enabled[kind] = true;
            }
            _ => return Err(Errno::INVAL),
        }
        self.pin.set_masked(false);
        Ok(Vec::new())
    }

    /// The session's state, as a successor of this process needs it.
    #[must_use]
    pub fn kept(&self) -> Kept {
        let mut kept = Kept::new();
        let mut keep = |name: String, fd: &Arc<Descriptor>| {
            kept.insert(name, (serde_json::Value::Null, Some(Arc::clone(fd))));
        };
        for (kind, vectors) in self.eventfds.iter().enumerate() {
            for (vector, fd) in vectors.iter().enumerate() {
                fd.iter().for_each(|fd| keep(format!("irq {kind} {vector}"), fd));
            }
        }
        let saved = Saved {
            agreed: self.agreed,
            commit: self.ranges.keep(&mut kept),
            ranges: Vec::new(),
            enabled: self.enabled,
            last: self.last.clone(),
            migration: self.migration.clone(),
        };
        kept.insert(SESSION.into(), (json!(saved), None));
        kept
    }

    /// Restores the session that a predecessor has kept; `None` if a part is missing.
    #[must_use]
    pub fn restore(identity: &Identity, kept: &Kept, account: &Arc<Account>) -> Option<Self> {
        let fd = |name: String| kept.get(&name).and_then(|(_, fd)| fd.clone());
        let saved: Saved = serde_json::from_value(kept.get(SESSION)?.0.clone()).ok()?;
        let mut session = Self::new(identity, account);
        (session.agreed, session.enabled, session.last) = (saved.agreed, saved.enabled, saved.last);
        session.migration = saved.migration;
        for (kind, vectors) in session.eventfds.iter_mut().enumerate() {
            for (vector, to) in vectors.iter_mut().enumerate() {
                *to = fd(format!("irq {kind} {vector}"));
            }
        }
        if saved.ranges.is_empty() {
            session.ranges = Ranges::restore(kept, saved.commit, account)?;
        }
        for (region, writable, number, has_file) in saved.ranges {
            let file = if has_file { Some(fd(format!("memory {number}"))?) } else { None };
            session.ranges.add_earlier(region, writable, file)?;
        }
        Some(session)
    }
}

/// The description of a region. If there is `room`, it lists the pages that may be mapped (VFIO,
/// "sparse mmap").
fn region_info(index: u32, size: u64, pages: &[u64], room: u32) -> Answer {
    /// The size of the description without its capabilities.
    const HEAD: u32 = 32;
    const READ_WRITE: u32 = 0b11;
    const MAP_CAPS: u32 = 0b1100;
    const SPARSE: u32 = 1 | 1 << 16;
    const PAGE: u64 = 4096;
    if index >= REGIONS {
        return Err(Errno::INVAL);
    }
    let count = pages.len() as u32;
    let (total, flags, capabilities) = match (size, count) {
        (0, _) => (HEAD, 0, 0),
        (_, 0) => (HEAD, READ_WRITE, 0),
        _ => (HEAD + 16 + 16 * count, READ_WRITE | MAP_CAPS, HEAD),
    };
    let mut info = words(&[total, flags, index, capabilities]);
    info.extend(longs(&[size, 0]));
    // A front end whose room is too small asks again with more.
    if capabilities != 0 && room >= total {
        info.extend(words(&[SPARSE, 0, count, 0]));
        pages.iter().for_each(|at| info.extend(longs(&[*at, PAGE])));
    }
    Ok(info)
}
