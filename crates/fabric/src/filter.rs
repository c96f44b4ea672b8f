//! The rules between the ports of a switch: compiled programs, and which port has which.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use port::Nanos;
use rules::{Direction, Packet, Program, Sides, Stop, Tables};
use shmem::SharedSlice;

/// The connections of a switch.
pub type Connections = Mutex<rules::Connections<SharedSlice<AtomicU64>>>;

/// The rules of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortFilter {
    /// The number of its program.
    pub program: u16,
    /// Its groups, a bit each.
    pub groups: u64,
    /// The addresses that are `me`; empty for any.
    pub ips: Vec<IpAddr>,
}

/// Frames that rules with `log` have matched and that are kept until they are taken.
const LOGGED: usize = 256;
/// The number of ports whose answers are limited one by one; others share.
const SENDERS: usize = 1024;
/// The least time between two frames of one port that are logged.
const LOG_NS: u64 = Nanos::SECOND;
/// The least time between two answers to frames of one port that `reset` dropped.
const RESET_NS: u64 = Nanos::MILLI;

/// A frame that a rule with `log` has matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logged {
    /// The port whose rules were asked.
    pub port: u16,
    /// The number of its program, and of the rule in it.
    pub rule: (u16, u32),
    /// Which way the frame went.
    pub direction: Direction,
    /// The rules let it pass.
    pub allowed: bool,
    /// Source and destination of an IP packet.
    pub ip: Option<(IpAddr, IpAddr)>,
    /// The number of the protocol above IP.
    pub protocol: Option<u8>,
    /// The ports of TCP, UDP and SCTP.
    pub ports: Option<(u16, u16)>,
    /// Bytes of the frame.
    pub len: u32,
}

/// The times at which ports may do something again.
#[derive(Debug)]
struct Times(Box<[AtomicU64]>);

impl Times {
    fn new(ports: usize) -> Self {
        Self((0..ports).map(|_| AtomicU64::new(0)).collect())
    }

    /// True if the port may now. It may not again for `pause` nanoseconds.
    fn take(&self, port: u16, now: Nanos, pause: u64) -> bool {
        let Some(next) = self.0.get(usize::from(port)) else { return false };
        let seen = next.load(Ordering::Relaxed);
        let again = now.0.saturating_add(pause);
        seen <= now.0
            && next.compare_exchange(seen, again, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// A program, and what its rules count.
#[derive(Debug)]
pub(crate) struct Policy {
    pub program: Program,
    pub hits: Box<[AtomicU64]>,
    pub limits: Box<[AtomicU64]>,
}

/// All rules of a switch. A change makes another one.
pub struct Filters {
    /// Differs from that of the rules before; never 0.
    pub(crate) generation: u16,
    pub(crate) policies: Vec<Policy>,
    pub(crate) tables: Tables,
    pub(crate) connections: Arc<Connections>,
    ports: Vec<Option<PortFilter>>,
    /// For each port, which of the distinct policies for what it receives it has.
    kinds: Vec<u16>,
    /// A port of each kind.
    pub(crate) of_kind: Vec<u16>,
    log_at: Times,
    reset_at: Times,
    log: Mutex<VecDeque<Logged>>,
    /// Frames that were not logged, because of a limit.
    unlogged: AtomicU64,
}

impl std::fmt::Debug for Filters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Filters({} programs, generation {})", self.policies.len(), self.generation)
    }
}

/// The kind of a port without rules.
const NO_KIND: u16 = u16::MAX;

impl Filters {
    /// The rules of generation `generation`, which is not 0. `ports` are those of each port by
    /// number; a program that does not exist denies all.
    #[must_use]
    pub fn new(
        generation: u16,
        programs: Vec<Program>,
        tables: Tables,
        connections: Arc<Connections>,
        ports: Vec<Option<PortFilter>>,
    ) -> Self {
        let words = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect();
        let policies = programs.into_iter().map(|program| {
            let (hits, limits) = (words(program.rules()), words(program.rules()));
            Policy { program, hits, limits }
        });
        let (mut kinds, mut of_kind) = (Vec::new(), Vec::new());
        for (id, own) in ports.iter().enumerate() {
            let Some(own) = own else {
                kinds.push(NO_KIND);
                continue;
            };
            let same = |other: &u16| {
                let other: &Option<PortFilter> = &ports[usize::from(*other)];
                other.as_ref().is_some_and(|o| (o.program, &o.ips) == (own.program, &own.ips))
            };
            let kind = of_kind.iter().position(same).unwrap_or_else(|| {
                of_kind.push(id as u16);
                of_kind.len() - 1
            });
            kinds.push(kind as u16);
        }
        let policies = policies.collect();
        let (log_at, reset_at) = (Times::new(ports.len()), Times::new(SENDERS));
        let (log, unlogged) = (Mutex::default(), AtomicU64::new(0));
        Self {
            generation,
            policies,
            tables,
            connections,
            ports,
            kinds,
            of_kind,
            log_at,
            reset_at,
            log,
            unlogged,
        }
    }

    /// The rules of a port, if it has any.
    #[inline]
    #[must_use]
    pub fn of(&self, port: u16) -> Option<&PortFilter> {
        self.ports.get(usize::from(port))?.as_ref()
    }

    /// The number of the port's kind.
    #[inline]
    pub(crate) fn kind(&self, port: u16) -> Option<usize> {
        self.kinds.get(usize::from(port)).filter(|kind| **kind != NO_KIND).map(|k| usize::from(*k))
    }

    /// Keeps a frame of a rule with `log`, unless its port has just had one, or too many wait.
    #[cold]
    pub(crate) fn log(&self, frame: Logged, now: Nanos) {
        let kept = self.log_at.take(frame.port, now, LOG_NS) && {
            let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
            let has_room = log.len() < LOGGED;
            if has_room {
                log.push_back(frame);
            }
            has_room
        };
        if !kept {
            self.unlogged.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The frames of rules with `log` since the last call, and how many more there were.
    pub fn take_log(&self) -> (Vec<Logged>, u64) {
        let log = std::mem::take(&mut *self.log.lock().unwrap_or_else(PoisonError::into_inner));
        (log.into(), self.unlogged.swap(0, Ordering::Relaxed))
    }

    /// True if the sender of a frame that `reset` dropped may be told now.
    #[cold]
    pub(crate) fn may_reset(&self, sender: u16, now: Nanos) -> bool {
        self.reset_at.take(sender % SENDERS as u16, now, RESET_NS)
    }

    /// How often each rule of a program has matched.
    pub fn hits(&self, program: u16) -> impl Iterator<Item = u64> + '_ {
        let policy = self.policies.get(usize::from(program));
        let hits = policy.map_or(&[][..], |policy| &policy.hits);
        hits.iter().map(|hits| hits.load(Ordering::Relaxed))
    }

    /// Lets all rules count from 0.
    pub fn zero(&self) {
        let hits = self.policies.iter().flat_map(|policy| &policy.hits);
        hits.for_each(|hits| hits.store(0, Ordering::Relaxed));
    }

    /// The connections.
    #[must_use]
    pub fn connections(&self) -> &Arc<Connections> {
        &self.connections
    }

    /// The tables that rules name, by number.
    #[must_use]
    pub fn tables(&self) -> &Tables {
        &self.tables
    }
}

impl PortFilter {
    /// What the switch knows about the ends of a packet, for the rules of this port. `from` are the
    /// groups of its sender.
    pub(crate) fn sides(
        &self,
        from: Option<&Self>,
        direction: Direction,
        ip: Option<(IpAddr, IpAddr)>,
        vlan: u16,
    ) -> Sides {
        let (source, destination) = ip.unzip();
        let own = |ip: Option<IpAddr>| {
            self.ips.is_empty() || ip.is_none_or(|ip| self.ips.contains(&ip) || ip.is_multicast())
        };
        Sides {
            groups: from.map_or(0, |from| from.groups),
            from_me: direction == Direction::Out && own(source),
            to_me: direction == Direction::In && own(destination),
            vlan,
        }
    }
}

/// Whether a packet passes, and whether it begins a connection, so that answers pass, too. Without
/// a rule that decides, the way out is open and the way in is not.
pub(crate) fn is_allowed(
    (stop, stateless): (Stop, bool),
    direction: Direction,
    packet: &Packet<'_>,
) -> (bool, bool) {
    match (stop, direction) {
        (Stop::Allow, _) => (true, !stateless),
        (Stop::Default, Direction::Out) => (true, true),
        (Stop::Default, Direction::In) => (rules::is_housekeeping(packet, direction), false),
        (Stop::Deny | Stop::Reset, _) => (false, false),
    }
}
