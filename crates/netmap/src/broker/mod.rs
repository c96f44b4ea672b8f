//! The daemon's side of netmap: manages names, regions and descriptors, and carries out requests.
//!
//! ```text
//!   descriptor (by its cookie) --bound to--> adapter (by its user and name) --in--> region (by its
//!                                               |                                     number)
//!                                               v
//!                                            Effect: a port of a switch, while a descriptor is
//!                                            bound
//! ```
//!
//! The broker only changes its own state. What a request wants done to switches it returns as
//! [`Effect`]s, one after the other ([`Task`]); so the requests of several users can be under way
//! at the same time. Those of one user come one after the other, and so do those that concern one
//! user's adapters: see [`Broker::concerns`].
//!
//! No step takes longer because others have made much: each looks at what it names, by indexes.

mod accounts;
mod adapter;
mod books;
mod effect;
mod end;
mod enter;
mod format;
mod host;
mod key;
mod list;
mod lowest;
mod name;
mod persistent;
mod polling;
mod region;
mod regions;
mod register;
mod task;
mod vale;
mod watch;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use netring::layout::RingSpec;
use rustix::io::Errno;
use zerocopy::FromBytes;

pub use self::accounts::{Accounts, Charge, Held};
use self::adapter::{Adapter, Choice, HostRings, Kind, Rings};
pub use self::effect::{
    Attached, CardFiles, Effect, Facts, Interface, NewPort, Outcome, Place, Requester,
};
pub use self::end::{CARD_PORT, End, host_of};
use self::key::Key;
use self::list::{List, Owner};
pub use self::name::interface_name;
pub use self::persistent::PersistentPort;
pub use self::region::File;
use self::regions::Regions;
use self::task::Call;
pub use self::task::Task;
use crate::abi::{Register, name_of, reqtype};
use crate::wire::{Answer, Ask, Bound, CARD_BUFFERS, port};

/// An open descriptor of a program.
struct Opened {
    uid: u32,
    binding: Option<Binding>,
    _charge: Charge,
}

/// The adapter and rings that a descriptor is bound to.
#[derive(Clone, Debug)]
struct Binding {
    adapter: Key,
    interface: u32,
    choice: Choice,
    flags: u64,
}

/// The daemon's side of netmap's interface.
pub struct Broker {
    opened: HashMap<u64, Opened>,
    adapters: BTreeMap<Key, Adapter>,
    /// The adapters that are in switches; of each interface, and its host, the programs' ports.
    attached: BTreeMap<Place, Key>,
    /// The ports that `VALE_NEWIF` made.
    persistent: BTreeSet<Key>,
    regions: Regions,
    list: List,
    /// The interfaces of the host that are ports of switches, and the hosts behind them.
    plugged: BTreeSet<Place>,
    /// The interfaces in switches that are polled.
    polled: BTreeSet<Place>,
}

impl std::fmt::Debug for Broker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (opened, adapters) = (self.opened.len(), self.adapters.len());
        write!(f, "Broker of {opened} descriptors, {adapters} adapters")
    }
}

/// An answer, and the descriptors that are sent with it.
pub type Reply = (Answer, Vec<OwnedFd>);

impl Broker {
    /// Makes a broker without descriptors and regions, which charges users on these accounts.
    #[must_use]
    pub fn new(accounts: Box<dyn Accounts>) -> Self {
        let (opened, adapters, attached) = Default::default();
        let (persistent, plugged, polled) = Default::default();
        let (regions, list) = (Regions::new(accounts), List::default());
        Self { opened, adapters, attached, persistent, regions, list, plugged, polled }
    }

    /// Registers a new descriptor of a program of this user.
    ///
    /// # Errors
    /// The user may have no more.
    pub fn open(&mut self, cookie: u64, uid: u32) -> Result<(), Errno> {
        let charge = self.regions.accounts().charge(uid, Held::Opened)?;
        self.opened.insert(cookie, Opened { uid, binding: None, _charge: charge });
        Ok(())
    }

    /// The user who opened a descriptor.
    #[must_use]
    pub fn user_of(&self, cookie: u64) -> Option<u32> {
        self.opened.get(&cookie).map(|opened| opened.uid)
    }

    /// The user besides the descriptor's whose adapters a request of it, or its close, concerns:
    /// only root may ask for another user's region.
    #[must_use]
    pub fn concerns(&self, cookie: u64, ask: Option<&Ask>) -> Option<u32> {
        let opened = self.opened.get(&cookie)?;
        let bound = opened.binding.as_ref().map(|binding| binding.adapter.uid);
        let asked = ask.filter(|ask| ask.reqtype == reqtype::REGISTER && opened.uid == 0);
        let asked = asked.and_then(|ask| {
            let request = Register::read_from_prefix(&ask.body).ok()?.0;
            Some(self.regions.get(request.mem_id)?.uid)
        });
        bound.or(asked).filter(|uid| *uid != opened.uid)
    }

    /// Begins a request of a process, which may pass memory of its own. [`next`](Self::next) goes
    /// on with it.
    pub fn control(
        &mut self,
        cookie: u64,
        pid: u32,
        ask: &Ask,
        memory: Option<File>,
        facts: Facts,
    ) -> Task {
        let (answer, uid) = (Answer::to(ask), self.user_of(cookie));
        let call = Call { cookie, uid: uid.unwrap_or(0), pid, facts, answer, memory };
        let mut task = Task::new(call);
        let begun =
            if uid.is_some() { self.dispatch(ask.reqtype, &mut task) } else { Err(Errno::NXIO) };
        if let Err(error) = begun {
            task.status = Err(error);
        }
        task
    }

    fn dispatch(&mut self, reqtype: u16, task: &mut Task) -> Result<(), Errno> {
        match reqtype {
            reqtype::REGISTER => self.register(task),
            reqtype::PORT_INFO_GET => self.port_info(&mut task.call),
            reqtype::POOLS_INFO_GET => self.pools_info(&mut task.call),
            reqtype::VALE_ATTACH => self.vale_attach(task),
            reqtype::VALE_DETACH => self.vale_detach(task),
            reqtype::VALE_LIST => self.vale_list(&mut task.call),
            reqtype::VALE_NEWIF => self.vale_newif(&mut task.call),
            reqtype::VALE_DELIF => self.vale_delif(&task.call),
            reqtype::PORT_HDR_SET => self.port_header_set(task),
            reqtype::PORT_HDR_GET => self.port_header_get(&mut task.call),
            reqtype::VALE_POLLING_ENABLE => self.polling(task, true),
            reqtype::VALE_POLLING_DISABLE => self.polling(task, false),
            _ => Err(Errno::INVAL),
        }
    }

    /// The answer to a request that is done.
    #[must_use]
    pub fn reply(&self, task: &Task) -> Reply {
        let mut answer = task.call.answer;
        answer.status = task.status.err().map_or(0, Errno::raw_os_error);
        self.describe(task.call.cookie, answer)
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
        let region = self.regions.get(adapter.region)?;
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
            if let (Some(number), Some(Place { switch, port })) =
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

    /// Forgets a descriptor whose last copy was closed, and begins to unbind it.
    pub fn close(&mut self, cookie: u64) -> Task {
        let opened = self.opened.remove(&cookie);
        let uid = opened.as_ref().map_or(0, |opened| opened.uid);
        let answer = Answer::to(&Ask::new(0, 0));
        let call = Call { cookie, uid, pid: 0, facts: Facts::default(), answer, memory: None };
        let mut task = Task::new(call);
        if let Some(binding) = opened.and_then(|opened| opened.binding) {
            task.steps = self.leave(binding);
        }
        task
    }

    /// Adds an adapter, and charges a user for it and for what it is besides. If that is refused,
    /// its region goes unless others use it.
    fn insert(
        &mut self,
        payer: u32,
        key: Key,
        mut adapter: Adapter,
        besides: Option<Held<'_>>,
    ) -> Result<(), Errno> {
        let charge = |held| self.regions.accounts().charge(payer, held);
        let charges = charge(Held::Adapter).and_then(|own| {
            let besides = besides.map(charge).transpose()?;
            Ok([Some(own), besides])
        });
        match charges {
            Ok(charges) => adapter.keep(charges.into_iter().flatten()),
            Err(error) => {
                self.regions.drop_unused(adapter.region);
                return Err(error);
            }
        }
        self.regions.use_by_adapter(adapter.region);
        if let Some(parent) = adapter.parent().and_then(|parent| self.adapters.get_mut(parent)) {
            parent.children.insert(key.clone());
        }
        self.adapters.insert(key, adapter);
        Ok(())
    }

    /// Removes an adapter that is not needed any more, and what only it needed.
    fn collect(&mut self, key: &Key) {
        let mut next = Some(key.clone());
        while let Some(key) = next.take() {
            let Some(adapter) = self.adapters.get(&key) else { return };
            if adapter.bindings > 0 || !adapter.children.is_empty() {
                return;
            }
            next = adapter.parent().cloned();
            match &adapter.kind {
                Kind::Persistent { auto: false } => return,
                Kind::Pipe { twin, .. } => {
                    let twin = twin.clone();
                    if self.adapters.get(&twin).is_some_and(|twin| twin.bindings > 0) {
                        return;
                    }
                    self.settle_pipe(&key, &twin);
                    self.remove_rings(&key);
                    self.remove_rings(&twin);
                    self.remove_adapter(&twin);
                }
                _ => {}
            }
            self.remove_adapter(&key);
        }
    }

    /// Removes an adapter, and its region if no other adapter uses it.
    fn remove_adapter(&mut self, key: &Key) {
        let Some(adapter) = self.adapters.remove(key) else { return };
        if let Some(parent) = adapter.parent().and_then(|parent| self.adapters.get_mut(parent)) {
            parent.children.remove(key);
        }
        self.persistent.remove(key);
        if let Some(place) = &adapter.place
            && !matches!(adapter.kind, Kind::Monitor { .. })
        {
            self.list.remove(&place.switch, &place.port, Owner::User(key.uid));
        }
        self.regions.leave_by_adapter(adapter.region);
    }

    /// Puts the buffers that are under way between two ends of a pipe back into the send rings.
    fn settle_pipe(&self, name: &Key, twin: &Key) {
        let rings =
            |name: &Key| self.adapters.get(name).and_then(|end| Some((end.region, end.rings?)));
        let (Some((region, ours)), Some((_, theirs))) = (rings(name), rings(twin)) else { return };
        let Some(region) = self.regions.get(region) else { return };
        for (tx, rx) in [(ours.tx, theirs.rx), (theirs.tx, ours.rx)] {
            // Buffers that cannot be read are free when the region's last user leaves.
            let _ = region.settle_pipe(tx, rx);
        }
    }

    /// Removes an adapter's rings. A pipe's receive rings share the buffers of the twin's send
    /// rings.
    fn remove_rings(&mut self, name: &Key) {
        let Some(adapter) = self.adapters.get_mut(name) else { return };
        let own = !matches!(adapter.kind, Kind::Pipe { .. });
        adapter.watchers.iter_mut().chain(&mut adapter.copiers).for_each(|rings| rings.fill(None));
        let retired = std::mem::take(&mut adapter.retired);
        let (rings, region) = (adapter.rings.take(), self.regions.get_mut(adapter.region));
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
