//! A switch embedded in one process: ports of this process, forwarding in the caller's thread. And
//! a [trusted] switch, which moves between processes.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use toklat_inline::{Inline, SwitchConfig};
//! use port::Nanos;
//!
//! let mut switch = Inline::new(SwitchConfig { max_ports: 8, ..Default::default() })?;
//! # let _ = &mut switch;
//! switch.turn(Nanos(0)); // moves whatever the ports have flushed
//! # Ok(())
//! # }
//! ```
#![allow(unsafe_code, reason = "a turn vouches for the mappings of its ports")]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod trusted;

use std::ops::Range;
use std::sync::Arc;

use fabric::{Fdb, Filters, Monitor, PortSpec, Ports};
use link::LinkStats;
use netring::Rings;
use port::{Effects, MapGuard, Nanos, SoleWorker};
use turn::attach::{self, Exit};
use turn::port_link::{Files, PortLinks};
use turn::serve::{Served, Switch, Tools};
use turn::set_addresses;
use turn::state::{PortState, State};

pub use port::PortId;
pub use port::stats::PortStats;
pub use topology::{Policy, SwitchConfig};
pub use turn::attach::{AttachError, Attached, Bells, Side, Source};

/// A port, as it was plugged in.
struct Member {
    spec: PortSpec<Exit>,
    policy: Policy,
    links: PortLinks,
}

/// A switch in the caller's process and thread.
pub struct Inline {
    state: State,
    fdb: Fdb,
    ports: Ports<Exit>,
    filters: Option<Arc<Filters>>,
    members: Vec<Member>,
    /// By number, ascending.
    served: Vec<Served>,
    /// The number of turns so far. Each turn checks one idle port for a reset.
    turns: usize,
    tools: Tools,
    instances: u32,
    /// Seconds after which a learned address is forgotten.
    ageing_s: u32,
}

impl std::fmt::Debug for Inline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Inline({} ports)", self.members.len())
    }
}

impl Inline {
    /// A switch without ports.
    ///
    /// # Errors
    /// [`AttachError::Region`] when there is not enough memory.
    #[expect(clippy::needless_pass_by_value, reason = "settings are made for their switch")]
    pub fn new(config: SwitchConfig) -> Result<Self, AttachError> {
        Self::of(State::private(&config)?, &config)
    }

    /// A switch without ports whose hash table has this key, so that runs can be repeated.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    #[expect(clippy::needless_pass_by_value, reason = "settings are made for their switch")]
    pub fn seeded(config: SwitchConfig, seed: u64) -> Result<Self, AttachError> {
        let state = State::private(&config)?;
        state.seed_fdb(seed);
        Self::of(state, &config)
    }

    fn of(state: State, config: &SwitchConfig) -> Result<Self, AttachError> {
        let expected = "a table that fits its memory";
        let fdb = state.open_fdb().ok_or(AttachError::Descriptors { expected })?;
        let timeout = u64::from(config.stall_timeout_ms) * Nanos::MILLI;
        let recorder = state.recorder().clone();
        // SAFETY: this switch's egresses are reached through it alone, by a turn, which borrows it.
        let sole = unsafe { SoleWorker::new() };
        Ok(Self {
            state,
            fdb,
            ports: Ports::default(),
            filters: None,
            members: Vec::new(),
            served: Vec::new(),
            turns: 0,
            tools: Tools::new(config.batch, timeout, Some(sole), recorder),
            instances: 0,
            ageing_s: config.fdb_ageing_s,
        })
    }

    /// Plugs in the [`rings`](netring::Port::rings) of a port of this process.
    ///
    /// # Errors
    /// [`AttachError`] when the rings do not lie in their mapping, the forwarding table has no room
    /// for the port's addresses, or all port numbers are taken.
    pub fn add_rings(
        &mut self,
        name: &str,
        policy: Policy,
        rings: &Rings,
    ) -> Result<PortId, AttachError> {
        self.add(name, policy, None, |state| attach_rings(rings, state))
    }

    /// Plugs in rings that get copies of what the monitored port sends or receives.
    ///
    /// # Errors
    /// As [`add_rings`](Self::add_rings).
    pub fn add_monitor(
        &mut self,
        name: &str,
        monitor: Monitor,
        rings: &Rings,
    ) -> Result<PortId, AttachError> {
        self.add(name, Policy::default(), Some(monitor), |state| attach_rings(rings, state))
    }

    /// Plugs in any kind of port, made by one of [`attach`]'s functions from the port's state.
    ///
    /// # Errors
    /// The error of `attach`; [`AttachError::Number`] when all port numbers are taken.
    pub fn add_attached(
        &mut self,
        name: &str,
        policy: Policy,
        attach: impl FnOnce(&PortState) -> Result<Attached, AttachError>,
    ) -> Result<PortId, AttachError> {
        self.add(name, policy, None, attach)
    }

    fn add(
        &mut self,
        name: &str,
        policy: Policy,
        monitor: Option<Monitor>,
        attach: impl FnOnce(&PortState) -> Result<Attached, AttachError>,
    ) -> Result<PortId, AttachError> {
        let used = |id: &PortId| self.members.iter().any(|member| member.spec.id == *id);
        let id = (0..).find(|id| !used(id)).unwrap_or(PortId::MAX);
        self.plug(id, name, policy, monitor, Nanos(0), attach)?;
        self.rebuild();
        Ok(id)
    }

    fn plug(
        &mut self,
        id: PortId,
        name: &str,
        policy: Policy,
        monitor: Option<Monitor>,
        now: Nanos,
        attach: impl FnOnce(&PortState) -> Result<Attached, AttachError>,
    ) -> Result<(), AttachError> {
        let state = self.state.port(id).ok_or(AttachError::Number(id))?;
        let Attached { source, egresses, .. } = attach(&state)?;
        set_addresses(&self.fdb, id, &policy, &Policy::default(), now)?;
        let counters = state.ingress().ok_or(AttachError::Number(id))?;
        self.instances += 1;
        let received = state.received();
        let mut links = PortLinks::new(&policy, &Files::new())?;
        let receiving = links.receiving(&egresses, &policy, &received);
        let served = Served::new(id, source, counters.clone(), now);
        let served = served.linked(&policy, receiving.far, &mut links);
        let spec = PortSpec {
            id,
            instance: self.instances,
            name: name.to_owned(),
            send_queues: served.source.queues() as u16,
            counters,
            linked: receiving.exits,
            egresses,
            rules: policy.clone(),
            received,
            monitor,
            tunnel: false,
        };
        self.members.push(Member { spec, policy, links });
        let at = self.served.partition_point(|served| served.id < id);
        self.served.insert(at, served);
        Ok(())
    }

    /// Unplugs a port. Frames that wait for it are dropped and counted.
    pub fn remove(&mut self, id: PortId) {
        self.members.retain(|member| member.spec.id != id);
        self.served.iter_mut().filter(|served| served.id == id).for_each(Served::abandon);
        self.served.retain(|served| served.id != id);
        self.fdb.detach(id);
        self.rebuild();
        if let Some(state) = self.state.port(id) {
            state.retire(self.state.switch());
        }
    }

    /// Does what a switch does whose data process has died: loses what it had in memory of its own
    /// (frames on bad links, copies), keeps the state memory and the rings, and takes both over as
    /// a new data process does (docs/recovery.md). `rings` are those of a port; ports of other
    /// kinds are removed.
    ///
    /// # Errors
    /// As for [`add_rings`](Self::add_rings).
    pub fn recover<'r>(
        &mut self,
        now: Nanos,
        rings: impl Fn(PortId) -> Option<&'r Rings>,
    ) -> Result<(), AttachError> {
        self.served.clear();
        self.state.switch().restarts.add(1);
        self.state.count_lost();
        let expected = "a table that fits its memory";
        self.fdb = self.state.open_fdb().ok_or(AttachError::Descriptors { expected })?;
        for member in std::mem::take(&mut self.members) {
            let (id, Member { spec, policy, .. }) = (member.spec.id, member);
            let monitor = spec.monitor;
            let Some(rings) = rings(id) else {
                self.fdb.detach(id);
                continue;
            };
            let attach = |state: &PortState| {
                attach::ring::attach_mapped(&rings.mapping, None, &rings.into(), state, true)
            };
            self.plug(id, &spec.name, policy, monitor, now, attach)?;
        }
        self.rebuild();
        Ok(())
    }

    /// Changes a port's policy. If its VLANs change, its learned addresses are forgotten.
    ///
    /// # Errors
    /// There is no such port, or no room for its addresses; then nothing has changed.
    pub fn set_policy(&mut self, id: PortId, policy: Policy) -> Result<(), AttachError> {
        let member = self.members.iter_mut().find(|member| member.spec.id == id);
        let Member { spec, policy: earlier, links } = member.ok_or(AttachError::Number(id))?;
        PortLinks::new(&policy, &Files::new())?;
        set_addresses(&self.fdb, id, &policy, earlier, Nanos(0))?;
        if earlier.vlan != policy.vlan {
            self.fdb.flush(Some(id), None);
        }
        let changes = links.change((&policy, earlier), &Files::new(), spec)?;
        if let Some(served) = self.served.iter_mut().find(|served| served.id == id) {
            changes.into_iter().for_each(|change| served.change_link(change));
        }
        spec.rules = policy.clone();
        *earlier = policy;
        self.rebuild();
        Ok(())
    }

    /// Puts rules between the ports into use, or none.
    pub fn set_filters(&mut self, filters: Option<Arc<Filters>>) {
        self.filters = filters;
        self.rebuild();
    }

    /// Builds the table of the current ports.
    fn rebuild(&mut self) {
        let ports = Ports::build(self.members.iter().map(|member| &member.spec));
        self.ports = ports.with_filters(self.filters.clone());
    }

    /// Forgets addresses that were not seen for the configured time. Call it about once a second.
    pub fn age(&self, now: Nanos) {
        self.fdb.age(self.ageing_s, now);
    }

    /// One turn of every port: moves at most a batch of what each has flushed; a port that is ahead
    /// of the others by its [weight](Policy::weight) skips it. Returns how many frames were
    /// gathered. A port that asked to be reset is, within as many turns as there are
    /// ports.
    // The benchmark counts this function's instructions by its name (`cargo xtask perf`).
    // The owner of an inline port is the caller, so no owner sleeps.
    #[inline(never)]
    pub fn turn(&mut self, now: Nanos) -> usize {
        let frames = self.turn_within(0..self.served.len(), now, true, |_, _, _| ());
        self.turns = self.turns.wrapping_add(1);
        let ports = self.served.len().max(1);
        if let Some(served) = self.served.get_mut(self.turns % ports) {
            // Sees whether the owner wants the port reset.
            served.disarm();
        }
        frames
    }

    /// Like [`turn`](Self::turn), for owners that sleep: `wake` gets the port and the queue of each
    /// that is to be woken.
    pub fn turn_and_wake(&mut self, now: Nanos, mut wake: impl FnMut(PortId, Side)) -> usize {
        self.turn_within(0..self.served.len(), now, false, |port, side, effects| {
            if effects.kick {
                wake(port, side);
            }
        })
    }

    /// Like [`turn`](Self::turn), for one port: for callers that know which of many ports has
    /// flushed. Resets wait for the next turn of all ports.
    pub fn turn_of(&mut self, id: PortId, now: Nanos) -> usize {
        let at = self.served.binary_search_by_key(&id, |served| served.id);
        at.map_or(0, |at| self.turn_within(at..at + 1, now, true, |_, _, _| ()))
    }

    #[inline(always)]
    fn turn_within(
        &mut self,
        range: Range<usize>,
        now: Nanos,
        sleepless: bool,
        mut effect: impl FnMut(PortId, Side, Effects),
    ) -> usize {
        // SAFETY: regions are kept mapped by the ports' rings, and ports are only removed between
        // turns, together with the frames they hold.
        let map = unsafe { MapGuard::assume_mapped() }.at(now);
        let (ports, fdb) = (&self.ports, &self.fdb);
        let switch = Switch { ports, fdb, map: &map, now, draining: false, sleepless };
        let mut frames = 0;
        let is_whole = range.len() == self.served.len();
        if is_whole {
            self.tools.fair.begin()
        } else {
            self.tools.fair.open()
        }
        for served in self.served.get_mut(range).unwrap_or_default() {
            let _ = served.attend(switch);
            frames += served.turn(&mut self.tools, switch, &mut effect);
            if served.has_far_queues() {
                frames += served.flush(&map, now, &mut effect);
            }
        }
        frames
    }

    /// When the next turn is due if no port flushes before: a frame leaves a bad link, or a rate
    /// limiter lets a port send. `None` if no turn is.
    #[must_use]
    pub fn due(&mut self, now: Nanos) -> Option<Nanos> {
        let due = self.served.iter_mut().flat_map(|served| {
            let stalled = served.is_stalled().then_some(now);
            let links = served.deadline(now, 0).into_iter().chain(served.flush_due());
            links.chain(served.opens_at(now)).chain(stalled)
        });
        due.min()
    }

    /// The forwarding table.
    #[must_use]
    pub fn fdb(&self) -> &Fdb {
        &self.fdb
    }

    /// A port's numbers.
    #[must_use]
    pub fn stats(&self, id: PortId) -> PortStats {
        self.state.port(id).map(|state| state.snapshot()).unwrap_or_default()
    }

    /// The counters of a port's links: of what it sends, and of what it receives.
    #[must_use]
    pub fn link_stats(&self, id: PortId) -> [Option<LinkStats>; 2] {
        let member = self.members.iter().find(|member| member.spec.id == id);
        member.map(|member| member.links.stats()).unwrap_or_default()
    }

    /// The whole state: counters, and totals of removed ports.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }
}

fn attach_rings(rings: &Rings, state: &PortState) -> Result<Attached, AttachError> {
    attach::ring::attach_mapped(&rings.mapping, None, &rings.into(), state, false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabric::{Filter, Origin, Station, VlanMode};
    use frame::{Mac, VlanId};
    use netring::{Port, Region, RegionConfig};

    #[test]
    fn configured_addresses_follow_their_port_through_changes_of_its_vlans() {
        let mut switch = Inline::new(SwitchConfig { max_ports: 2, ..Default::default() }).unwrap();
        let mac = Mac::local(7);
        let [ten, twenty, thirty] = [10, 20, 30].map(|id| VlanId::new(id).unwrap());
        let policy = |vlan| Policy { macs: vec![mac], vlan, ..Policy::default() };
        let trunk = |allowed, native| policy(VlanMode::Trunk { allowed, native });
        let id = switch.add_attached("a", policy(VlanMode::Unaware), attach::null::attach).unwrap();
        let there = |switch: &Inline| -> Vec<Filter> {
            let known = |filter: &Filter| {
                switch.fdb.lookup(*filter, mac.word()).is_some_and(|at| at.port() == id)
            };
            (0..4095).filter(known).collect()
        };
        assert_eq!(there(&switch), [0]);
        for (policy, filters) in [
            (policy(VlanMode::Access(ten)), vec![10]),
            (trunk(vec![ten, twenty], Some(twenty)), vec![10, 20]),
            (trunk(vec![ten], Some(thirty)), vec![10, 30]),
            (trunk(vec![], Some(thirty)), vec![30]),
            (trunk(vec![], None), vec![]),
        ] {
            switch.set_policy(id, policy).unwrap();
            assert_eq!(there(&switch), filters);
        }
    }

    #[test]
    fn addresses_beyond_the_tables_room_are_refused_and_change_nothing() {
        let config = SwitchConfig { max_ports: 2, fdb_entries: 16, ..Default::default() };
        let mut switch = Inline::new(config).unwrap();
        let policy = |macs: std::ops::Range<u32>| Policy {
            macs: macs.map(Mac::local).collect(),
            ..Policy::default()
        };
        let id = switch.add_attached("a", policy(1..4), attach::null::attach).unwrap();
        let there = |switch: &Inline| -> Vec<u32> {
            let known = |i: &u32| {
                switch.fdb.lookup(0, Mac::local(*i).word()).is_some_and(|at| at.port() == id)
            };
            (0..10_000).filter(known).collect()
        };
        let refused = switch.set_policy(id, policy(2..10_000));
        assert!(matches!(refused, Err(AttachError::TableFull(_))));
        assert_eq!(there(&switch), [1, 2, 3]);
        let refused = switch.add_attached("b", policy(10..10_000), attach::null::attach);
        assert!(matches!(refused, Err(AttachError::TableFull(_))));
        assert_eq!(there(&switch), [1, 2, 3]);
        assert_eq!(switch.add_attached("b", policy(4..5), attach::null::attach).unwrap(), 1);
    }

    #[test]
    fn a_turn_of_one_port_moves_its_frames_only() {
        let mut switch = Inline::new(SwitchConfig { max_ports: 4, ..Default::default() }).unwrap();
        let region = Region::private(RegionConfig::ports(3, 1, 8)).unwrap();
        let plug = |switch: &mut Inline, name: &str| {
            let port = Port::inline(&region, name, 1, 1, 8).unwrap();
            (switch.add_rings(name, Policy::default(), &port.rings()).unwrap(), port)
        };
        let (_, gone) = plug(&mut switch, "gone");
        let (b, mut second) = plug(&mut switch, "b");
        switch.remove(0);
        drop(gone);
        let (a, mut first) = plug(&mut switch, "a");
        assert_eq!((a, b), (0, 1), "the last comes first");
        for port in [&mut first, &mut second] {
            assert!(port.send(1).push(&[0xff; 60]));
            port.flush().unwrap();
        }
        assert_eq!(switch.turn_of(b, Nanos(0)), 1);
        assert_eq!((first.receive(8).count(), second.receive(8).count()), (1, 0));
        assert_eq!((switch.turn_of(2, Nanos(0)), switch.turn_of(a, Nanos(0))), (0, 1));
        assert_eq!((second.receive(8).count(), switch.turn(Nanos(0))), (1, 0));
    }

    #[test]
    fn learned_addresses_are_forgotten_in_other_vlans_and_with_age() {
        let mut switch = Inline::new(SwitchConfig { max_ports: 2, ..Default::default() }).unwrap();
        let id = switch.add_attached("a", Policy::default(), attach::null::attach).unwrap();
        let learn = |switch: &Inline| {
            switch.fdb.learn(0, 2, Station::at(id, Origin::Learned), 9, true, Nanos(0));
            switch.fdb.len()
        };
        assert_eq!(learn(&switch), 1);
        let ten = VlanId::new(10).unwrap();
        let policy = Policy { vlan: VlanMode::Access(ten), ..Policy::default() };
        switch.set_policy(id, policy).unwrap();
        assert!(switch.fdb.is_empty());
        assert_eq!(learn(&switch), 1);
        switch.age(Nanos(300 * Nanos::SECOND));
        assert_eq!(switch.fdb.len(), 1);
        switch.age(Nanos(301 * Nanos::SECOND));
        assert!(switch.fdb.is_empty());
    }
}
