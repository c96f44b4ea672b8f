//! The ports of a switch as the forwarding path sees them: an immutable table. Every change builds
//! a new table and swaps it in.

use std::sync::{Arc, Mutex};

use frame::{Identity, VlanId};
use port::{Egress, EgressCounters, IngressCounters, Limits};
use shmem::Shared;

use crate::filter::Filters;
use crate::{Filter, Rules, VlanMode};

/// A receive queue's place in [`Ports`].
pub(crate) type QueueIdx = u32;

/// A port to attach to a switch. The control side keeps these and builds [`Ports`] from them.
#[derive(Clone)]
pub struct PortSpec<E = Arc<dyn Egress>> {
    /// Its number.
    pub id: u16,
    /// Distinguishes the port from earlier ones with the same number.
    pub instance: u32,
    /// The port's name, to which mirrors refer.
    pub name: String,
    /// Its rules.
    pub rules: Rules,
    /// How many send queues the port's owner has.
    pub send_queues: u16,
    /// The counters of the port's sending side.
    pub counters: Shared<IngressCounters>,
    /// The port's receive queues; none for a port that is not attached.
    pub egresses: Vec<E>,
    /// The receive queues behind the port's link; empty if the link does nothing.
    pub linked: Vec<E>,
    /// The counters of each queue, for a port that may be lossless.
    pub received: Vec<Shared<EgressCounters>>,
    /// Set for a monitor, which is not a member of the switch.
    pub monitor: Option<Monitor>,
    /// True if other hosts are behind the port, each with its own [`via`](crate::Station::via).
    pub tunnel: bool,
}

impl<E> std::fmt::Debug for PortSpec<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PortSpec").field("id", &self.id).field("name", &self.name).finish()
    }
}

/// What a monitor watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Monitor {
    /// The port that is watched.
    pub of: u16,
    /// True to copy the frames that the port sends.
    pub sent: bool,
    /// True to copy the frames that the port receives.
    pub received: bool,
}

/// A receive queue.
#[repr(align(64))]
pub(crate) struct EgressQueue<E> {
    pub egress: E,
    pub port: u16,
    /// The queue's number at its port.
    pub number: u16,
    pub limits: Limits,
    /// Queues that get copies of the frames to this queue.
    pub mirrors: Vec<QueueIdx>,
}

/// The group of protected ports, which do not talk to each other.
const PROTECTED: u8 = 1;
/// The group of tunnels. A frame from one never goes to another, because its peers already have it.
const TUNNEL: u8 = 2;

/// The properties of a port that matter for a frame to it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reach {
    pub first_queue: QueueIdx,
    /// Number of queues; 0 if the port does not exist or is not attached.
    pub queues: u32,
    /// The port's groups: [`PROTECTED`], [`TUNNEL`]. Two ports of a group do not talk to each
    /// other.
    pub apart: u8,
    /// True if the port is VLAN-aware.
    pub aware: bool,
    /// True if the port has one queue, no group and no VLANs. Other ports without VLANs may send to
    /// it.
    pub simple: bool,
}

/// The reach of a port that does not exist.
static NOWHERE: Reach = Reach { first_queue: 0, queues: 0, apart: 0, aware: false, simple: false };

/// A port, with its rules prepared for use.
pub(crate) struct PortEntry {
    pub id: u16,
    pub instance: u32,
    pub counters: Shared<IngressCounters>,
    pub reach: Reach,
    pub send_queues: u16,
    pub manner: Inspection,
    pub vlan: Vlan,
    /// The only source addresses that the port may use, if it is locked.
    pub allowed: Option<Box<[u64]>>,
    /// Whom the port may speak for, to check the addresses inside its messages, too.
    pub guard: Option<Box<Identity>>,
    pub mac_limit: u32,
    pub flap_guard: bool,
    pub flood_limit: Option<u32>,
    pub max_frame: usize,
    /// The counters of the port's receive queues.
    pub received: Vec<Received>,
    /// Queues that get copies of the frames from this port.
    pub mirrors: Vec<QueueIdx>,
}

/// The counters of a receive queue.
pub(crate) struct Received {
    pub counters: Shared<EgressCounters>,
    /// Held while a frame whose fate is recorded is delivered, so that the counters show that frame
    /// alone.
    pub alone: Mutex<()>,
}

/// How to inspect the frames of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inspection {
    /// Frames need no check of tags or source.
    Plain,
    /// Frames need both checks.
    Policed,
    /// Frames need both checks, and each comes from its own host.
    Tunnel,
}

impl PortEntry {
    /// True if frames need no check of tags or source.
    #[inline(always)]
    pub fn is_plain(&self) -> bool {
        self.manner == Inspection::Plain
    }
}

impl Reach {
    /// True if the two ports are in a group whose members do not talk to each other.
    #[inline(always)]
    pub fn is_apart_from(&self, other: &Self) -> bool {
        self.apart & other.apart != 0
    }
}

/// VLAN membership, prepared for use.
pub(crate) enum Vlan {
    Unaware,
    Access(u16),
    Trunk { allowed: Box<[u64; 64]>, native: Option<u16> },
}

/// How a frame leaves through a port.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    AsItCame,
    Untagged,
    Tagged,
}

impl Vlan {
    pub fn of(mode: &VlanMode) -> Self {
        match mode {
            VlanMode::Unaware => Self::Unaware,
            VlanMode::Access(id) => Self::Access(id.get()),
            VlanMode::Trunk { allowed, native } => {
                let mut bits = Box::new([0u64; 64]);
                let all: Vec<VlanId>;
                let ids = if allowed.is_empty() {
                    all = (1..=4094).filter_map(VlanId::new).collect();
                    &all
                } else {
                    allowed
                };
                for id in ids.iter().chain(native) {
                    bits[usize::from(id.get() / 64)] |= 1 << (id.get() % 64);
                }
                Self::Trunk { allowed: bits, native: native.map(VlanId::get) }
            }
        }
    }

    /// True if frames of this filter may pass.
    pub fn allows(&self, filter: Filter) -> bool {
        match self {
            Self::Unaware => filter == 0,
            Self::Access(id) => filter == *id,
            Self::Trunk { allowed, .. } => {
                allowed[usize::from(filter / 64) & 63] >> (filter % 64) & 1 != 0
            }
        }
    }

    /// How frames of this filter leave.
    pub fn form(&self, filter: Filter) -> Form {
        match self {
            Self::Unaware => Form::AsItCame,
            Self::Access(_) => Form::Untagged,
            Self::Trunk { native, .. } if *native == Some(filter) => Form::Untagged,
            Self::Trunk { .. } => Form::Tagged,
        }
    }

    /// The filter of a frame that came in with this tag (its VLAN id, if it has one), or `None` if
    /// the frame is not allowed.
    pub fn classify(&self, tag: Option<u16>) -> Option<Filter> {
        // A tag with id 0 carries a priority only (802.1Q, 9.6).
        let tag = tag.filter(|id| *id != 0);
        match self {
            Self::Unaware => Some(0),
            // Tags with its own number are refused, too: a nested tag would become the outer one
            // (802.1Q, 6.9.1).
            Self::Access(id) => tag.is_none().then_some(*id),
            Self::Trunk { native, .. } => {
                tag.or(*native).filter(|id| *id < 4095 && self.allows(*id))
            }
        }
    }
}

/// All ports of a switch.
pub struct Ports<E = Arc<dyn Egress>> {
    slots: Vec<Option<PortEntry>>,
    /// The reach of every port, side by side. Traffic to many ports reads only this about them.
    reach: Vec<Reach>,
    queues: Vec<EgressQueue<E>>,
    /// The members that are not VLAN-aware, and the members that are.
    unaware: Vec<u16>,
    aware: Vec<u16>,
    /// The rules of the ports that have any.
    pub(crate) filters: Option<Arc<Filters>>,
}

impl<E> Default for Ports<E> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            reach: Vec::new(),
            queues: Vec::new(),
            unaware: Vec::new(),
            aware: Vec::new(),
            filters: None,
        }
    }
}

impl<E> std::fmt::Debug for Ports<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ports({} of VLANs, {} others)", self.aware.len(), self.unaware.len())
    }
}

impl<E: Egress + Clone> Ports<E> {
    /// Builds the table of these ports.
    #[must_use]
    pub fn build<'a>(specs: impl Iterator<Item = &'a PortSpec<E>> + Clone) -> Self
    where
        E: 'a,
    {
        let mut ports = Self::default();
        let slots = specs.clone().map(|spec| usize::from(spec.id) + 1).max().unwrap_or(0);
        ports.slots.resize_with(slots, || None);
        ports.reach.resize(slots, Reach::default());
        for spec in specs.clone() {
            ports.add(spec);
        }
        ports.connect_mirrors(specs);
        ports
    }

    /// The same ports, with these rules between them.
    #[must_use]
    pub fn with_filters(mut self, filters: Option<Arc<Filters>>) -> Self {
        self.filters = filters;
        self
    }

    /// The rules between the ports.
    #[must_use]
    pub fn filters(&self) -> Option<&Arc<Filters>> {
        self.filters.as_ref()
    }

    fn add(&mut self, spec: &PortSpec<E>) {
        let rules = &spec.rules;
        let limits = Limits {
            max_frame: rules.max_frame() as u32,
            lossless: rules.lossless && spec.monitor.is_none(),
        };
        let first_queue = self.queues.len() as QueueIdx;
        let egresses = if spec.linked.is_empty() { &spec.egresses } else { &spec.linked };
        self.queues.extend(egresses.iter().zip(0..).map(|(egress, number)| EgressQueue {
            egress: egress.clone(),
            port: spec.id,
            number,
            limits,
            mirrors: Vec::new(),
        }));
        let vlan = Vlan::of(&rules.vlan);
        if spec.monitor.is_none() && !spec.egresses.is_empty() {
            let members =
                if matches!(vlan, Vlan::Unaware) { &mut self.unaware } else { &mut self.aware };
            members.push(spec.id);
        }
        let allowed = || rules.macs.iter().map(|mac| mac.word()).collect();
        let queues = spec.egresses.len() as u32;
        let protected = if rules.protected { PROTECTED } else { 0 };
        let apart = protected | if spec.tunnel { TUNNEL } else { 0 };
        let aware = !matches!(vlan, Vlan::Unaware);
        let simple = queues == 1 && apart == 0 && !aware;
        let reach = Reach { first_queue, queues, apart, aware, simple };
        let locked = rules.locked || rules.guard;
        let manner = match (spec.tunnel, aware || locked) {
            (true, _) => Inspection::Tunnel,
            (false, true) => Inspection::Policed,
            (false, false) => Inspection::Plain,
        };
        self.reach[usize::from(spec.id)] = reach;
        self.slots[usize::from(spec.id)] = Some(PortEntry {
            id: spec.id,
            instance: spec.instance,
            counters: spec.counters.clone(),
            reach,
            send_queues: spec.send_queues,
            vlan,
            allowed: locked.then(allowed),
            manner,
            guard: rules.guard.then(|| Box::new(Identity::new(&rules.macs, &rules.ips))),
            mac_limit: rules.mac_limit,
            flap_guard: rules.flap_guard,
            flood_limit: rules.flood_limit,
            max_frame: rules.max_frame(),
            received: (spec.received.iter().take(spec.egresses.len()))
                .map(|counters| Received { counters: counters.clone(), alone: Mutex::default() })
                .collect(),
            mirrors: Vec::new(),
        });
    }

    /// Resolves which queues get which copies: monitors watch a port by number, mirrors name their
    /// target.
    fn connect_mirrors<'a>(&mut self, specs: impl Iterator<Item = &'a PortSpec<E>> + Clone)
    where
        E: 'a,
    {
        let all = specs.clone();
        let named = |name: &String| all.clone().find(|s| s.name == *name).map(|s| s.id);
        let mut watch = Vec::new();
        for spec in specs {
            if let Some(monitor) = spec.monitor {
                watch.push((monitor.of, spec.id, monitor.sent, monitor.received));
            }
            if let Some(to) = spec.rules.mirror_ingress.as_ref().and_then(named) {
                watch.push((spec.id, to, true, false));
            }
            if let Some(to) = spec.rules.mirror_egress.as_ref().and_then(named) {
                watch.push((spec.id, to, false, true));
            }
        }
        for (of, to, sent, received) in watch {
            let Reach { first_queue: copy, queues: 1.., .. } = *self.reach(to) else { continue };
            let Some(watched) = self.slots.get_mut(usize::from(of)).and_then(Option::as_mut) else {
                continue;
            };
            if sent {
                watched.mirrors.push(copy);
            }
            let (first, count) =
                (watched.reach.first_queue as usize, watched.reach.queues as usize);
            if received && of != to {
                self.queues[first..first + count].iter_mut().for_each(|q| q.mirrors.push(copy));
            }
        }
    }
}

impl<E: Egress> Ports<E> {
    /// The port with this number.
    #[inline(always)]
    pub(crate) fn get(&self, id: u16) -> Option<&PortEntry> {
        self.slots.get(usize::from(id))?.as_ref()
    }

    /// How to reach the port with this number.
    #[inline(always)]
    pub(crate) fn reach(&self, id: u16) -> &Reach {
        self.reach.get(usize::from(id)).unwrap_or(&NOWHERE)
    }

    #[inline(always)]
    pub(crate) fn queue(&self, queue: QueueIdx) -> &EgressQueue<E> {
        &self.queues[queue as usize]
    }

    /// Prefetches what deliveries to these queues will touch.
    #[inline(always)]
    pub(crate) fn prefetch(&self, queues: impl Iterator<Item = QueueIdx> + Clone) {
        for queue in queues.clone() {
            self.queue(queue).egress.prefetch_self();
        }
        for queue in queues {
            self.queue(queue).egress.prefetch();
        }
    }

    pub(crate) fn queue_count(&self) -> usize {
        self.queues.len()
    }

    /// Members that a flooded frame of this filter may reach.
    pub(crate) fn flood_members(&self, filter: Filter) -> &[u16] {
        if filter == 0 { &self.unaware } else { &self.aware }
    }
}
