//! The world: switches, hosts, the clock, and what goes wrong.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use guest::sockets::Net;
use guest::{Nanos, RingNic, Stack};
use inline::{AttachError, Inline, Policy, PortId, PortStats, SwitchConfig};
use link::Impairment;
use netring::{Open, OpenError, PortError, Region, RegionConfig, RegionError, Rings};
use tcp::Secret;

use crate::chance::Chance;
use crate::host::{Host, Living, Machine, Place, Tasks};
use crate::nic::SimNic;
use crate::trace::{HostId, SHOWN, Seen, Trace};

/// What a turn takes, in nanoseconds: the least time from one host to another.
pub const TURN: u64 = 10 * Nanos::MICRO;
/// When a world begins. Stacks take 0 for "never".
const BEGIN: Nanos = Nanos(Nanos::SECOND);

/// A switch of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchId(usize);

/// What can go wrong, or be changed, at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// All frames from and to a host are lost.
    Cut(HostId),
    /// The port has the rules again with which the host was added, or which were set last.
    Join(HostId),
    /// What a host sends passes this bad link, instead of the line that it had.
    Impair(HostId, Impairment),
    /// A host loses its power: its memory is gone, and so is its port.
    Crash(HostId),
    /// A crashed host starts again.
    Start(HostId),
    /// The data process of a switch dies between two turns. The next one finds the state memory
    /// and the rings as they are, and recovers them.
    Kill(SwitchId),
}

/// Why a world cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// What a test waits for did not happen.
    #[error("It had not happened after {0:?}; {1}")]
    Unfinished(Duration, String),
    /// A port or a switch cannot be made.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// There is not enough memory.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// A port cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A host's port failed.
    #[error("{0} lost its port")]
    Port(String, #[source] PortError),
    /// Two runs of one seed differ.
    #[error("Two runs of seed {seed} differ from frame {frame} on; {what}")]
    Differs {
        /// The seed.
        seed: u64,
        /// The number of the first frame that differs, from 0.
        frame: usize,
        /// Its headers, as the second run had them.
        what: String,
    },
}

/// A switch, and when it is next to be called.
#[derive(Debug)]
struct SimSwitch {
    inline: Inline,
    /// Its last turn moved frames.
    moved: bool,
}

/// A host, and where it is plugged in.
struct Node {
    place: Place,
    switch: SwitchId,
    /// Its port, while the host is up.
    port: Option<(PortId, Rings)>,
    /// The rules that were set last; those of the port differ while it is cut.
    rules: Policy,
    life: Rc<dyn Living>,
    /// When it asked to be called.
    due: Nanos,
    /// How often it was started.
    starts: u64,
}

/// Switches and hosts in virtual time.
pub struct World {
    seed: u64,
    now: Nanos,
    switches: Vec<SimSwitch>,
    nodes: Vec<Node>,
    trace: Rc<RefCell<Trace>>,
    at: BTreeMap<Nanos, Vec<Fault>>,
    on_frame: BTreeMap<u64, Vec<Fault>>,
    /// When addresses were last aged.
    aged: Nanos,
    turns: u64,
    /// Nothing is printed when this world is dropped by a panic.
    pub(crate) quiet: bool,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "World(seed {}, {} hosts, {:?})", self.seed, self.nodes.len(), self.now())
    }
}

impl World {
    /// An empty world, whose chance follows from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            now: BEGIN,
            switches: Vec::new(),
            nodes: Vec::new(),
            trace: Rc::new(RefCell::new(Trace::new(BEGIN))),
            at: BTreeMap::new(),
            on_frame: BTreeMap::new(),
            aged: BEGIN,
            turns: 0,
            quiet: false,
        }
    }

    /// The seed.
    #[must_use]
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// The time since the world began.
    #[must_use]
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.now - BEGIN)
    }

    /// How many turns there were.
    #[must_use]
    pub const fn turns(&self) -> u64 {
        self.turns
    }

    /// Chance for the test itself: numbers that follow from the world's seed and this name.
    #[must_use]
    pub fn chance(&self, name: &str) -> Chance {
        Chance::named(self.seed, name)
    }

    /// Adds a switch with the usual settings.
    ///
    /// # Panics
    /// There is no memory for it.
    #[expect(clippy::expect_used, reason = "documented; a test has nothing better to do")]
    pub fn switch(&mut self, name: &str) -> SwitchId {
        self.switch_with(name, SwitchConfig::default()).expect("memory for a switch")
    }

    /// Adds a switch.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn switch_with(&mut self, name: &str, config: SwitchConfig) -> Result<SwitchId, SimError> {
        let inline = Inline::seeded(config, self.chance(&format!("switch {name}")).next())?;
        self.switches.push(SimSwitch { inline, moved: false });
        Ok(SwitchId(self.switches.len() - 1))
    }

    /// Adds a host to a switch. `start` makes its machine, now and each time when it starts again
    /// after a [crash](Fault::Crash).
    ///
    /// # Errors
    /// The port cannot be made: the switch is full, or another host has the name's MAC address.
    pub fn host<M: Machine + 'static>(
        &mut self,
        switch: SwitchId,
        place: Place,
        start: impl FnMut(Stack<SimNic>) -> M + 'static,
    ) -> Result<Host<M>, SimError> {
        let id = HostId(self.nodes.len());
        let (host, life) = Host::new(id, start);
        let mut rules = place.rules.clone();
        if rules.macs.is_empty() {
            rules.macs.push(place.config.mac);
        }
        let (port, due, starts) = (None, self.now, 0);
        self.nodes.push(Node { place, switch, port, rules, life, due, starts });
        self.start(id)?;
        Ok(host)
    }

    /// Adds a host that runs `main` over async sockets.
    ///
    /// # Errors
    /// As for [`host`](Self::host).
    pub fn tasks<F: Future<Output = ()> + 'static>(
        &mut self,
        switch: SwitchId,
        place: Place,
        mut main: impl FnMut(Net<SimNic>) -> F + 'static,
    ) -> Result<Host<Tasks>, SimError> {
        self.host(switch, place, move |stack| Tasks::start(stack, &mut main))
    }

    /// Plugs a host's port in, and starts its machine.
    fn start(&mut self, id: HostId) -> Result<(), SimError> {
        let seed = self.seed;
        let Some(node) = self.nodes.get_mut(id.0).filter(|node| node.port.is_none()) else {
            return Ok(());
        };
        let Place { name, config, offloads, slots, .. } = &node.place;
        let region = Region::private(RegionConfig::ports(1, 1, *slots))?;
        let open = Open::new(name).slots(*slots).in_region(&region).offloads(*offloads);
        let port = open.inline()?;
        let rings = port.rings();
        let switch = &mut self.switches[node.switch.0];
        // Rules name ports of their switch without it, as mirrors do.
        let of_switch = name.split_once(':').map_or(name.as_str(), |(_, port)| port);
        let number = switch.inline.add_rings(of_switch, node.rules.clone(), &rings)?;
        let mut chance = Chance::named(seed, &format!("host {name} {}", node.starts));
        let mut config = config.clone();
        config.secret = Secret([chance.next(), chance.next()]);
        config.tcp.mtu = config.tcp.mtu.min(node.rules.mtu);
        let nic = SimNic::new(RingNic::new(port), id, Rc::clone(&self.trace));
        node.life.start(Stack::new(nic, &config));
        (node.port, node.due) = (Some((number, rings)), self.now);
        node.starts += 1;
        Ok(())
    }

    /// Changes the rules of a host's port, while traffic runs.
    ///
    /// # Errors
    /// The switch refuses them.
    pub fn set_rules(&mut self, host: HostId, rules: Policy) -> Result<(), SimError> {
        let Some(node) = self.nodes.get_mut(host.0) else { return Ok(()) };
        node.rules = rules.clone();
        self.use_rules(host, rules)
    }

    fn use_rules(&mut self, host: HostId, rules: Policy) -> Result<(), SimError> {
        let Some(node) = self.nodes.get(host.0) else { return Ok(()) };
        if let Some((port, _)) = &node.port {
            self.switches[node.switch.0].inline.set_policy(*port, rules)?;
        }
        Ok(())
    }

    /// The rules of a host's port that were set last.
    #[must_use]
    pub fn rules(&self, host: HostId) -> Policy {
        self.nodes.get(host.0).map(|node| node.rules.clone()).unwrap_or_default()
    }

    /// The counters of a host's port; zero while it is down.
    #[must_use]
    pub fn stats(&self, host: HostId) -> PortStats {
        let node = self.nodes.get(host.0);
        let port = node.and_then(|node| Some((node.switch, node.port.as_ref()?.0)));
        port.map(|(switch, port)| self.switches[switch.0].inline.stats(port)).unwrap_or_default()
    }

    /// The switches, in the order in which they were added.
    pub fn switches(&self) -> impl Iterator<Item = SwitchId> + use<> {
        (0..self.switches.len()).map(SwitchId)
    }

    /// A switch, to look at.
    #[must_use]
    pub fn inline(&self, switch: SwitchId) -> &Inline {
        &self.switches[switch.0].inline
    }

    /// Lets a fault happen when this much time has passed since the world began.
    pub fn at(&mut self, time: Duration, fault: Fault) {
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.at.entry(BEGIN + time).or_default().push(fault);
    }

    /// Lets a fault happen as soon as this many frames were sent by hosts.
    pub fn on_frame(&mut self, frames: u64, fault: Fault) {
        self.on_frame.entry(frames).or_default().push(fault);
    }

    /// Lets a fault happen now.
    ///
    /// # Errors
    /// A host's port cannot be made again.
    pub fn happen(&mut self, fault: &Fault) -> Result<(), SimError> {
        match *fault {
            Fault::Cut(host) => {
                let lost = Impairment { loss_ppm: Impairment::ALL, ..Impairment::default() };
                let mut rules = self.rules(host);
                (rules.tx_impairment, rules.rx_impairment) = (Some(lost), Some(lost));
                (rules.tx_link, rules.rx_link) = (None, None);
                self.use_rules(host, rules)
            }
            Fault::Join(host) => self.use_rules(host, self.rules(host)),
            Fault::Impair(host, impairment) => {
                let rules =
                    Policy { tx_impairment: Some(impairment), tx_link: None, ..self.rules(host) };
                self.set_rules(host, rules)
            }
            Fault::Crash(host) => {
                self.crash(host);
                Ok(())
            }
            Fault::Start(host) => self.start(host),
            Fault::Kill(switch) => self.kill(switch),
        }
    }

    fn crash(&mut self, host: HostId) {
        let Some(node) = self.nodes.get_mut(host.0) else { return };
        node.life.kill();
        if let Some((port, _)) = node.port.take() {
            self.switches[node.switch.0].inline.remove(port);
        }
    }

    fn kill(&mut self, switch: SwitchId) -> Result<(), SimError> {
        let nodes = self.nodes.iter().filter(|node| node.switch == switch);
        let ports: BTreeMap<_, _> = nodes.filter_map(|node| node.port.clone()).collect();
        let Some(switch) = self.switches.get_mut(switch.0) else { return Ok(()) };
        switch.inline.recover(port::Nanos(self.now.0), |port| ports.get(&port))?;
        switch.moved = true;
        Ok(())
    }

    /// Lets all that is due at this moment happen.
    fn faults(&mut self) -> Result<(), SimError> {
        let sent = self.trace.borrow().sent;
        let later = self.at.split_off(&(self.now + 1));
        let due = std::mem::replace(&mut self.at, later);
        let later = self.on_frame.split_off(&(sent + 1));
        let reached = std::mem::replace(&mut self.on_frame, later);
        let due = due.into_values().chain(reached.into_values());
        due.flatten().try_for_each(|fault| self.happen(&fault))
    }

    /// One turn of all, and the step to the next. Returns false if nothing is left that could
    /// happen.
    ///
    /// # Errors
    /// As for [`happen`](Self::happen); or a host's port failed.
    pub fn step(&mut self) -> Result<bool, SimError> {
        self.trace.borrow_mut().now = self.now;
        self.faults()?;
        let seen = self.trace.borrow().seen;
        for at in 0..self.nodes.len() {
            let node = &mut self.nodes[at];
            if node.due <= self.now || self.switches[node.switch.0].moved {
                let due = node.life.poll(self.now);
                let due = due.map_err(|error| SimError::Port(node.place.name.clone(), error))?;
                node.due = due.unwrap_or(Nanos::NEVER);
            }
        }
        let mut moved = self.trace.borrow().seen != seen;
        let ages = self.now - self.aged >= Nanos::SECOND;
        for switch in &mut self.switches {
            switch.moved = switch.inline.turn(port::Nanos(self.now.0)) > 0;
            moved |= switch.moved;
            if ages {
                switch.inline.age(port::Nanos(self.now.0));
            }
        }
        self.aged = if ages { self.now } else { self.aged };
        self.turns += 1;
        let next = if moved { self.now + TURN } else { self.next_due() };
        if next == Nanos::NEVER {
            return Ok(false);
        }
        self.now = if next > self.now { next } else { self.now + TURN };
        Ok(true)
    }

    /// The next moment at which something happens if no frame is under way.
    fn next_due(&mut self) -> Nanos {
        let now = port::Nanos(self.now.0);
        let switches = self.switches.iter_mut().filter_map(|switch| switch.inline.due(now));
        let switches = switches.map(|due| Nanos(due.0));
        let hosts = self.nodes.iter().map(|node| node.due);
        let faults = self.at.keys().copied();
        switches.chain(hosts).chain(faults).min().unwrap_or(Nanos::NEVER)
    }

    /// Lets this much time pass.
    ///
    /// # Errors
    /// As for [`step`](Self::step).
    pub fn run_for(&mut self, time: Duration) -> Result<(), SimError> {
        let end = self.now + u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.at.entry(end).or_default();
        while self.now < end && self.step()? {}
        Ok(())
    }

    /// Lets time pass until `done`.
    ///
    /// # Errors
    /// As for [`step`](Self::step); [`SimError::Unfinished`] if `done` is false after `limit`, or
    /// nothing is left that could happen.
    pub fn run_until(
        &mut self,
        limit: Duration,
        mut done: impl FnMut(&mut Self) -> bool,
    ) -> Result<(), SimError> {
        let end = self.now + u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        let begun = self.now();
        self.at.entry(end).or_default();
        while !done(self) {
            if self.now >= end || !self.step()? {
                let passed = self.now() - begun;
                return Err(SimError::Unfinished(passed, self.report()));
            }
        }
        Ok(())
    }

    /// A number that says whether two runs were the same: of all frames that hosts sent and
    /// received, and when.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.trace.borrow().hash()
    }

    /// How many frames hosts have sent.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.trace.borrow().sent
    }

    /// Keeps all frames from now on, not the last 4,096 alone.
    pub fn keep_frames(&mut self) {
        self.trace.borrow_mut().keeps_all = true;
    }

    /// The frames that are kept, oldest first.
    #[must_use]
    pub fn seen(&self) -> Vec<Seen> {
        self.trace.borrow().frames().cloned().collect()
    }

    /// The frames that are kept, as pcapng with an interface for each host.
    #[must_use]
    pub fn pcapng(&self) -> Vec<u8> {
        self.trace.borrow().pcapng(&self.names())
    }

    pub(crate) fn names(&self) -> Vec<&str> {
        self.nodes.iter().map(|node| node.place.name.as_str()).collect()
    }

    pub(crate) fn says(&self, host: HostId) -> String {
        self.nodes.get(host.0).map_or_else(String::new, |node| node.life.says())
    }

    pub(crate) fn trace(&self) -> &RefCell<Trace> {
        &self.trace
    }

    /// All frames that are kept, a line each.
    #[must_use]
    pub fn told(&self) -> String {
        self.trace.borrow().told(&self.names(), usize::MAX)
    }

    /// The seed and the last frames, for people.
    #[must_use]
    pub fn report(&self) -> String {
        let tail = self.trace.borrow().told(&self.names(), SHOWN);
        let now = self.now().as_secs_f64();
        format!("seed {}, after {now:.6} s; the last frames:\n{tail}", self.seed)
    }

    /// Writes the frames that are kept beside the test's program, in `sim`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self) -> std::io::Result<PathBuf> {
        self.trace.borrow().save(&self.names(), self.seed)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if self.quiet || !std::thread::panicking() {
            return;
        }
        eprintln!("{}", self.report());
        match self.save() {
            Ok(path) => eprintln!("all frames that were kept: {}", path.display()),
            Err(error) => eprintln!("the frames could not be written: {error}"),
        }
    }
}
