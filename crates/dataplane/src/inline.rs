//! A switch embedded in one process: ports of this process, forwarding in the caller's thread.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use toklat_dataplane::{Inline, SwitchConfig};
//! use port::Nanos;
//!
//! let mut switch = Inline::new(SwitchConfig { max_ports: 8, ..Default::default() })?;
//! # let _ = &mut switch;
//! switch.turn(Nanos(0)); // moves whatever the ports have flushed
//! # Ok(())
//! # }
//! ```

use fabric::{Fdb, Monitor, Policy, PortSpec, Ports};
use port::{MapGuard, Nanos};
use shmem::Mapping;
use std::sync::Arc;

use crate::attach::{self, AttachError, Attached};
use crate::config::{PortId, RingAttach, SwitchConfig};
use crate::serve::{Served, Switch, Tools};
use crate::state::{PortState, PortStats, State};

/// A switch in the caller's process and thread.
pub struct Inline {
    state: State,
    fdb: Fdb,
    ports: Ports,
    specs: Vec<PortSpec>,
    served: Vec<Served>,
    tools: Tools,
    instances: u32,
}

impl std::fmt::Debug for Inline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Inline({} ports)", self.specs.len())
    }
}

impl Inline {
    /// A switch without ports.
    ///
    /// # Errors
    /// [`AttachError::Region`] when there is no memory.
    pub fn new(config: SwitchConfig) -> Result<Self, AttachError> {
        let state = State::private(&config)?;
        let expected = "a table that fits its memory";
        let fdb = state.open_fdb().ok_or(AttachError::Descriptors { expected })?;
        let timeout = u64::from(config.stall_timeout_ms) * Nanos::MILLI;
        Ok(Self {
            state,
            fdb,
            ports: Ports::default(),
            specs: Vec::new(),
            served: Vec::new(),
            tools: Tools::new(config.batch, timeout),
            instances: 0,
        })
    }

    /// Plugs rings in: those of a region of this process, mapped.
    ///
    /// # Errors
    /// [`AttachError`] when the rings do not lie in the mapping, or all port numbers are taken.
    pub fn add_rings(
        &mut self,
        name: &str,
        policy: Policy,
        map: &Arc<Mapping>,
        rings: &RingAttach,
    ) -> Result<PortId, AttachError> {
        self.add(name, policy, None, |state| {
            attach::ring::attach_mapped(map, None, rings, state, false)
        })
    }

    /// Plugs in rings that get copies of what port `of` sends or receives.
    ///
    /// # Errors
    /// As [`add_rings`](Self::add_rings).
    pub fn add_monitor(
        &mut self,
        name: &str,
        monitor: Monitor,
        map: &Arc<Mapping>,
        rings: &RingAttach,
    ) -> Result<PortId, AttachError> {
        self.add(name, Policy::default(), Some(monitor), |state| {
            attach::ring::attach_mapped(map, None, rings, state, false)
        })
    }

    /// Plugs in any kind of port, made by one of [`attach`]'s functions from the port's state.
    ///
    /// # Errors
    /// What `attach` says; [`AttachError::Number`] when all port numbers are taken.
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
        let used = |id: &PortId| self.specs.iter().any(|spec| spec.id == *id);
        let id = (0..).find(|id| !used(id)).unwrap_or(PortId::MAX);
        let state = self.state.port(id).ok_or(AttachError::Number(id))?;
        let Attached { source, egresses, .. } = attach(&state)?;
        for mac in &policy.macs {
            self.fdb.add_static(filter_of(&policy), *mac, id, Nanos(0));
        }
        let counters = state.ingress().ok_or(AttachError::Number(id))?;
        self.instances += 1;
        self.specs.push(PortSpec {
            id,
            instance: self.instances,
            name: name.to_owned(),
            policy,
            send_queues: source.queues() as u16,
            counters: counters.clone(),
            egresses,
            monitor,
        });
        self.served.push(Served::new(id, source, counters, Nanos(0)));
        self.ports = Ports::build(self.specs.iter());
        Ok(id)
    }

    /// Unplugs a port; frames that wait for it are dropped and counted.
    pub fn remove(&mut self, id: PortId) {
        self.specs.retain(|spec| spec.id != id);
        self.served.iter_mut().filter(|served| served.id == id).for_each(Served::abandon);
        self.served.retain(|served| served.id != id);
        self.fdb.detach(id);
        self.ports = Ports::build(self.specs.iter());
        if let Some(state) = self.state.port(id) {
            state.retire(self.state.switch());
        }
    }

    /// Changes a port's rules.
    pub fn set_policy(&mut self, id: PortId, policy: Policy) {
        if let Some(spec) = self.specs.iter_mut().find(|spec| spec.id == id) {
            spec.policy = policy;
            self.ports = Ports::build(self.specs.iter());
        }
    }

    /// One turn of every port: moves at most a batch of what each has flushed. Returns how many
    /// frames were gathered.
    pub fn turn(&mut self, now: Nanos) -> usize {
        // SAFETY: regions are kept mapped by the ports' rings, and ports are only removed between
        // turns, together with the frames they hold.
        let map = unsafe { MapGuard::assume_mapped() };
        let switch = Switch { ports: &self.ports, fdb: &self.fdb, map: &map, now, draining: false };
        let mut frames = 0;
        for served in &mut self.served {
            // Nobody sleeps on an inline port: its owner is the caller.
            frames += served.turn(&mut self.tools, switch, |_, _| ());
        }
        frames
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

    /// All state: counters, totals of ports that are gone.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }
}

/// The filter in which a port's configured addresses are looked up.
pub(crate) fn filter_of(policy: &Policy) -> fabric::Filter {
    use fabric::VlanMode;
    match &policy.vlan {
        VlanMode::Unaware => 0,
        VlanMode::Access(id) => id.get(),
        VlanMode::Trunk { native, .. } => native.map_or(0, frame::VlanId::get),
    }
}
