//! The daemon's side of netmap: manages names, regions and descriptors, and carries out requests.
//!
//! ```text
//!   descriptor (by its cookie) --bound to--> adapter (by its name) --in--> region (by its number)
//!                                               |
//!                                               v
//!                                            Switches: a port of a switch, while a descriptor is bound
//! ```
//!
//! Requests run one after the other. Their effects on switches go through [`Switches`].

mod adapter;
mod books;
mod enter;
mod format;
mod host;
mod list;
mod name;
mod polling;
mod region;
mod register;
mod switches;
mod vale;
mod watch;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use netring::layout::{Geometry, RingSpec};
use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

pub use self::adapter::CardFiles;
use self::adapter::{Adapter, Choice, HostRings, Kind, Rings};
use self::list::List;
pub use self::region::File;
use self::region::Region;
pub use self::switches::{CARD_PORT, Charge, End, NewPort, Requester, Switches};
pub use self::vale::host_of;
use crate::abi::{name_of, reqtype, text};
use crate::wire::{Answer, Ask, Bound, CARD_BUFFERS, Options, port};

/// Limit of a region's size for users other than root: its pages are written, and freed, in one go.
const MOST_MEMORY: u64 = 256 << 20;

/// An open descriptor of a program.
#[derive(Debug)]
struct Opened {
    uid: u32,
    binding: Option<Binding>,
}

/// The adapter and rings that a descriptor is bound to.
#[derive(Clone, Debug)]
struct Binding {
    adapter: String,
    interface: u32,
    choice: Choice,
    flags: u64,
}

/// The daemon's side of netmap's interface.
#[derive(Debug)]
pub struct Broker<S> {
    switches: S,
    opened: HashMap<u64, Opened>,
    adapters: BTreeMap<String, Adapter>,
    regions: BTreeMap<u16, Region>,
    list: List,
    /// The interfaces in switches that are polled: the names of the switch and of the interface.
    polled: BTreeSet<(String, String)>,
}

/// An answer, and the descriptors that are sent with it.
pub type Reply = (Answer, Vec<OwnedFd>);

/// A request in progress: its input, and its answer.
struct Call<'a> {
    cookie: u64,
    /// The user who opened the descriptor.
    uid: u32,
    pid: u32,
    name: &'a mut [u8; crate::abi::NAME],
    body: &'a mut [u8; crate::abi::MOST_BODY],
    options: &'a mut Options,
    /// Memory of the program's.
    memory: Option<File>,
}

impl Call<'_> {
    const fn who(&self) -> Requester {
        Requester { uid: self.uid, pid: self.pid }
    }

    fn name(&self) -> Result<&str, Errno> {
        text(&self.name[..]).ok_or(Errno::INVAL)
    }

    fn body<T: FromBytes>(&self) -> Result<T, Errno> {
        T::read_from_prefix(&self.body[..]).map(|(body, _)| body).map_err(|_| Errno::INVAL)
    }

    fn answer<T: IntoBytes + zerocopy::Immutable>(&mut self, body: &T) {
        self.body[..size_of::<T>()].copy_from_slice(body.as_bytes());
    }
}

impl<S: Switches> Broker<S> {
    /// Makes a broker without descriptors and regions.
    pub fn new(switches: S) -> Self {
        let list = List::default();
        let (opened, adapters, regions, polled) = Default::default();
        Self { switches, opened, adapters, regions, list, polled }
    }

    /// The switches.
    #[cfg(test)]
    pub(crate) fn into_switches(self) -> S {
        self.switches
    }

    /// Registers a new descriptor of a program of this user.
    pub fn open(&mut self, cookie: u64, uid: u32) {
        self.opened.insert(cookie, Opened { uid, binding: None });
    }

    /// Returns how many descriptors the programs of a user have.
    #[must_use]
    pub fn opened_by(&self, uid: u32) -> usize {
        self.opened.values().filter(|opened| opened.uid == uid).count()
    }

    /// Carries out a request of a process, which may pass memory of its own.
    pub async fn control(
        &mut self,
        cookie: u64,
        pid: u32,
        ask: &Ask,
        memory: Option<File>,
    ) -> Reply {
        let mut answer = Answer::to(ask);
        let Some(opened) = self.opened.get(&cookie) else {
            answer.status = Errno::NXIO.raw_os_error();
            return (answer, Vec::new());
        };
        let uid = opened.uid;
        let Answer { name, body, options, .. } = &mut answer;
        let call = Call { cookie, uid, pid, name, body, options, memory };
        let done = self.dispatch(ask.reqtype, call).await;
        answer.status = done.err().map_or(0, Errno::raw_os_error);
        self.describe(cookie, answer)
    }

    async fn dispatch(&mut self, reqtype: u16, call: Call<'_>) -> Result<(), Errno> {
        match reqtype {
            reqtype::REGISTER => self.register(call).await,
            reqtype::PORT_INFO_GET => self.port_info(call),
            reqtype::POOLS_INFO_GET => self.pools_info(call),
            reqtype::VALE_ATTACH => self.vale_attach(call).await,
            reqtype::VALE_DETACH => self.vale_detach(call).await,
            reqtype::VALE_LIST => self.vale_list(call).await,
            reqtype::VALE_NEWIF => self.vale_newif(call),
            reqtype::VALE_DELIF => self.vale_delif(&call),
            reqtype::PORT_HDR_SET => self.port_header_set(&call).await,
            reqtype::PORT_HDR_GET => self.port_header_get(call),
            reqtype::VALE_POLLING_ENABLE => self.polling(call, true).await,
            reqtype::VALE_POLLING_DISABLE => self.polling(call, false).await,
            _ => Err(Errno::INVAL),
        }
    }

    /// Answers what a descriptor is bound to.
    #[must_use]
    pub fn identify(&self, cookie: u64, ask: &Ask) -> Reply {
        let mut answer = Answer::to(ask);
        if !self.opened.contains_key(&cookie) {
            answer.status = Errno::NXIO.raw_os_error();
        }
        self.describe(cookie, answer)
    }

    /// Completes the answer by what the descriptor is bound to.
    fn describe(&self, cookie: u64, mut answer: Answer) -> Reply {
        let binding = self.opened.get(&cookie).and_then(|opened| opened.binding.as_ref());
        let Some((bound, fds)) = binding.and_then(|binding| self.bound(binding)) else {
            return (answer, Vec::new());
        };
        match fds.iter().map(|fd| fd.try_clone_to_owned()).collect() {
            Ok(fds) => {
                answer.bound = bound;
                (answer, fds)
            }
            Err(_) => {
                answer.status = Errno::MFILE.raw_os_error();
                (answer, Vec::new())
            }
        }
    }

    fn bound(&self, binding: &Binding) -> Option<(Bound, Vec<BorrowedFd<'_>>)> {
        let adapter = self.adapters.get(&binding.adapter)?;
        let region = self.regions.get(&adapter.region)?;
        let rings = adapter.rings?;
        let mut bound = Bound {
            port: port::SILENT,
            geometry: region.geometry,
            tx: part(rings.tx, &binding.choice.tx),
            rx: part(rings.rx, &binding.choice.rx),
            flags: binding.flags,
            ..Bound::default()
        };
        let mut fds = vec![region.file(), region.bell()];
        if let Kind::Watcher { .. } = adapter.kind {
            bound.port = port::WATCHER;
        }
        if let Some(token) = &adapter.token {
            fds.push(token.as_fd());
            if let (Some(number), Some((switch, port))) =
                (adapter.number_if_trusted, &adapter.place)
            {
                bound.trusted = u32::from(number) + 1;
                let name = name_of(&format!("{switch}:{port}"));
                bound.name.as_flattened_mut().copy_from_slice(&name);
            }
        }
        fds.extend(adapter.host_token.as_ref().map(AsFd::as_fd));
        if adapter.token.is_some() || adapter.host_token.is_some() {
            bound.port = port::SWITCHED;
        }
        if let Some(host) = rings.host.filter(|_| adapter.has_host()) {
            let all = binding.choice.tx.len() == rings.tx.rings as usize;
            bind_host(&mut bound, &host, &binding.choice, all);
        }
        if let Kind::Pipe { twin, wake, .. } = &adapter.kind {
            let twin = self.adapters.get(twin)?;
            let Kind::Pipe { wake: other, .. } = &twin.kind else { return None };
            bound.port = port::PIPE;
            bound.twin_rx = part(twin.rings?.rx, &binding.choice.tx);
            bound.twin_tx = part(twin.rings?.tx, &binding.choice.rx);
            fds.extend([wake.as_fd(), other.as_fd()]);
        }
        if let Kind::Card { wake, files, descriptors } = &adapter.kind {
            bound.port = port::CARD;
            (bound.twin_rx, bound.twin_tx) = (rings.rx, rings.tx);
            bound.descriptors = (*descriptors)?;
            fds.push(wake.as_fd());
            fds.extend(files.as_ref()?.0.iter().map(|file| file.as_fd()));
        }
        Some((bound, fds))
    }

    /// Unbinds and forgets a descriptor whose last copy was closed.
    pub async fn close(&mut self, cookie: u64) {
        let Some(Opened { binding: Some(binding), .. }) = self.opened.remove(&cookie) else {
            return;
        };
        self.unbind(&binding).await;
        self.collect(&binding.adapter).await;
    }

    /// Returns the region for a new port: the requested one, or one of its own. The number of the
    /// region that would be made next may be requested, too.
    fn region_for(
        &mut self,
        uid: u32,
        wanted: u16,
        geometry: impl FnOnce() -> Geometry,
    ) -> Result<u16, Errno> {
        if wanted != 0 {
            if wanted == region::GLOBAL && !self.regions.contains_key(&wanted) {
                self.admit(Region::create(wanted, uid, region::global())?)?;
            }
            if let Some(region) = self.regions.get(&wanted) {
                let may = region.uid == uid || uid == 0;
                return if may { Ok(wanted) } else { Err(Errno::ACCESS) };
            }
        }
        let id = self.free_region_id().ok_or(Errno::NOMEM)?;
        // `PORT_INFO_GET` answers which region a port that is not there would get.
        if ![0, id].contains(&wanted) {
            return Err(Errno::INVAL);
        }
        self.admit(Region::create(id, uid, geometry())?)?;
        Ok(id)
    }

    /// Adds a new region, and charges its user for it.
    fn admit(&mut self, mut region: Region) -> Result<(), Errno> {
        let most = if region.uid == 0 { u64::MAX } else { MOST_MEMORY };
        if region.geometry.file_size() > most {
            return Err(Errno::NOMEM);
        }
        region.charge = Some(self.switches.charge(region.uid, region.file())?);
        self.regions.insert(region.id, region);
        Ok(())
    }

    fn free_region_id(&self) -> Option<u16> {
        (region::GLOBAL + 1..u16::MAX).find(|id| !self.regions.contains_key(id))
    }

    /// Removes an adapter that is not needed any more, and what only it needed.
    async fn collect(&mut self, name: &str) {
        let mut next = Some(name.to_owned());
        while let Some(name) = next.take() {
            let Some(adapter) = self.adapters.get(&name) else { return };
            if adapter.bindings > 0 || self.has_children(&name) {
                return;
            }
            match &adapter.kind {
                Kind::Persistent { auto: false } => return,
                Kind::Pipe { parent, twin, .. } => {
                    let twin = twin.clone();
                    if self.adapters.get(&twin).is_some_and(|twin| twin.bindings > 0) {
                        return;
                    }
                    next = Some(parent.clone());
                    self.settle_pipe(&name, &twin);
                    self.remove_rings(&name);
                    self.remove_rings(&twin);
                    self.adapters.remove(&twin);
                }
                Kind::Monitor { parent, .. } | Kind::Watcher { parent, .. } => {
                    next = Some(parent.clone());
                }
                Kind::Ephemeral | Kind::Persistent { .. } | Kind::Card { .. } | Kind::Null => {}
            }
            self.remove_adapter(&name);
        }
    }

    fn has_children(&self, name: &str) -> bool {
        self.adapters.values().any(|other| match &other.kind {
            Kind::Pipe { parent, .. }
            | Kind::Monitor { parent, .. }
            | Kind::Watcher { parent, .. } => parent == name,
            _ => false,
        })
    }

    /// Removes an adapter, and its region if no other adapter uses it.
    fn remove_adapter(&mut self, name: &str) {
        let Some(adapter) = self.adapters.remove(name) else { return };
        if let Some((switch, port)) = &adapter.place
            && !matches!(adapter.kind, Kind::Monitor { .. })
        {
            self.list.remove(switch, port);
        }
        self.drop_region(adapter.region);
    }

    /// Drops a region that no adapter uses.
    fn drop_region(&mut self, id: u16) {
        if !self.adapters.values().any(|other| other.region == id) {
            self.regions.remove(&id);
        }
    }

    /// Puts the buffers that are under way between two ends of a pipe back into the send rings.
    fn settle_pipe(&self, name: &str, twin: &str) {
        let rings = |name| self.adapters.get(name).and_then(|end| Some((end.region, end.rings?)));
        let (Some((region, ours)), Some((_, theirs))) = (rings(name), rings(twin)) else { return };
        let Some(region) = self.regions.get(&region) else { return };
        for (tx, rx) in [(ours.tx, theirs.rx), (theirs.tx, ours.rx)] {
            // Buffers that cannot be read are free when the region's last user leaves.
            let _ = region.settle_pipe(tx, rx);
        }
    }

    /// Removes an adapter's rings. A pipe's receive rings share the buffers of the twin's send
    /// rings.
    fn remove_rings(&mut self, name: &str) {
        let Some(adapter) = self.adapters.get_mut(name) else { return };
        let own = !matches!(adapter.kind, Kind::Pipe { .. });
        adapter.watchers.iter_mut().chain(&mut adapter.copiers).for_each(|rings| rings.fill(None));
        let retired = std::mem::take(&mut adapter.retired);
        let (rings, region) = (adapter.rings.take(), self.regions.get_mut(&adapter.region));
        adapter.offsets.iter_mut().for_each(|rings| rings.fill(None));
        if let (Some(rings), Some(region)) = (rings, region) {
            if let Kind::Card { descriptors, .. } = &mut adapter.kind {
                region.remove_run(descriptors.take(), CARD_BUFFERS);
            }
            region.remove_rings(rings.tx, true);
            region.remove_rings(rings.rx, own);
            let retired = retired.into_iter().map(|(rings, _)| rings);
            for Rings { tx, rx, .. } in retired.clone() {
                region.remove_rings(tx, true);
                region.remove_rings(rx, true);
            }
            let all = std::iter::once(rings).chain(retired);
            for HostRings { tx, rx, up, down } in all.filter_map(|rings| rings.host) {
                for rings in [tx, rx, up, down] {
                    region.remove_rings(rings, true);
                }
            }
        }
    }
}

/// Describes the host rings of a descriptor, which has `all` send rings of the interface or not.
fn bind_host(bound: &mut Bound, host: &HostRings, choice: &Choice, all: bool) {
    bound.host_tx = part(host.tx, &choice.host_tx);
    bound.host_rx = part(host.rx, &choice.host_rx);
    bound.up = host.up;
    bound.down = if all { host.down } else { RingSpec { rings: 0, ..host.down } };
}

/// Returns the rings in `range`.
fn part(spec: RingSpec, range: &std::ops::Range<u32>) -> RingSpec {
    RingSpec { first: spec.first + range.start, rings: range.end - range.start, ..spec }
}

#[cfg(test)]
mod tests;
