//! What rules say about the frames of a batch, in memory that the forwarder keeps: a warm one
//! allocates nothing.

use frame::{Facts, Fragment, Protocol, tcp_flags};
use port::{DropReason, HEAD, Nanos, Scratch};
use rules::{Admitted, Cache, Context, Direction, NO_RULE, Outcome, Packet, Sides, Stop, Tuple};

use crate::filter::{Filters, Logged, PortFilter, is_allowed};

/// Packets that are judged at a time.
const CHUNK: usize = 64;

/// What a forwarder needs to judge, made with the first batch.
#[derive(Debug)]
pub(super) struct Judging {
    cache: Cache,
    random: u64,
    pub heads: Vec<Judged>,
    /// What the rules that were asked last say about each of `heads`.
    said: Vec<Said>,
    /// Numbers in `heads` of the frames that rules are asked about.
    asked: Vec<u16>,
    /// Frames that are judged as the first packet of their connection was.
    turned: Vec<Turned>,
    /// Frames by the program of their receiver.
    by_program: Vec<(u16, u16)>,
    outcomes: Vec<Outcome>,
    floods: Floods,
}

/// Which ports floods do not reach.
#[derive(Debug, Default)]
struct Floods {
    /// For frame i and kind k of policy, at i * kinds + k.
    denied: Vec<bool>,
    /// The port to which the connection of a frame leads.
    leads: Vec<Option<u16>>,
    kinds: usize,
}

/// A frame that rules look at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judged {
    pub frame: u16,
    /// Bytes of it that are in its head.
    pub head_len: u16,
    pub facts: Facts,
    pub len: u32,
    pub vlan: u16,
    pub draw: u32,
    /// The receiving port; `None` for a flood.
    pub to: Option<u16>,
    pub tuple: Option<Tuple>,
    pub found: Option<Admitted>,
    /// A later fragment of an admitted packet.
    pub follows: bool,
    /// A rule that makes connections allows it.
    pub begins: bool,
    pub denied: Option<DropReason>,
    /// The rule that denies it says that its sender is told.
    pub reset: bool,
}

/// What rules say about a frame.
#[derive(Clone, Copy, Debug)]
struct Said {
    denied: Option<DropReason>,
    begins: bool,
    reset: bool,
    /// The rule that logs it, or [`NO_RULE`].
    log: u32,
}

impl Said {
    const NOTHING: Self = Self { denied: None, begins: false, reset: false, log: NO_RULE };
}

/// An answer as the packet that it answers.
#[derive(Clone, Copy, Debug)]
struct Turned {
    at: u16,
    facts: Facts,
    head: [u8; HEAD],
}

/// The rules that are asked, and about what.
#[derive(Clone, Copy)]
pub(super) struct Side<'f> {
    pub filters: &'f Filters,
    /// The number of the sender, and its rules, if it has any.
    pub sender: u16,
    pub from: Option<&'f PortFilter>,
    pub now: Nanos,
    pub scratch: &'f Scratch,
}

/// The port whose rules are asked.
#[derive(Clone, Copy)]
enum Whose<'f> {
    Sender(&'f PortFilter),
    /// Each frame's receiver; all have the program of this number.
    Receiver(u16),
    /// A port for all of its kind, about floods.
    Kind(&'f PortFilter),
}

impl<'f> Whose<'f> {
    fn program(self) -> u16 {
        match self {
            Self::Sender(of) | Self::Kind(of) => of.program,
            Self::Receiver(program) => program,
        }
    }

    fn direction(self) -> Direction {
        match self {
            Self::Sender(_) => Direction::Out,
            Self::Receiver(_) | Self::Kind(_) => Direction::In,
        }
    }

    /// The rules of the port that are asked about a frame.
    fn owner(self, filters: &'f Filters, judged: &Judged) -> Option<&'f PortFilter> {
        match self {
            Self::Sender(of) | Self::Kind(of) => Some(of),
            Self::Receiver(_) => judged.to.and_then(|to| filters.of(to)),
        }
    }
}

impl Judged {
    /// The frame as a packet of which nothing but its VLAN is known besides.
    pub fn packet<'s>(&'s self, scratch: &'s Scratch) -> Packet<'s> {
        let sides = Sides { vlan: self.vlan, ..Sides::default() };
        let head = &scratch.head(self.frame.into()).bytes()[..self.head_len.into()];
        Packet { facts: &self.facts, head, len: self.len, sides, draw: self.draw }
    }

    /// The packet that this one answers, as its first packet was: turned round.
    fn turned(&self, at: u16, scratch: &Scratch) -> Turned {
        let mut head = *scratch.head(self.frame.into()).bytes();
        let mut facts = self.facts;
        (facts.source, facts.destination) = (facts.destination, facts.source);
        facts.ip = facts.ip.map(|(from, to)| (to, from));
        facts.ports = facts.ports.map(|(from, to)| (to, from));
        facts.tcp_flags = if facts.protocol == Some(Protocol::TCP) { tcp_flags::SYN } else { 0 };
        let head_len = usize::from(self.head_len);
        let message = head_len - facts.payload(&head[..head_len]).len();
        let query = match (facts.protocol, head.get(message)) {
            (Some(Protocol::ICMP), Some(0)) => Some(8),
            (Some(Protocol::ICMPV6), Some(129)) => Some(128),
            _ => None,
        };
        query.into_iter().for_each(|query| head[message] = query);
        Turned { at, facts, head }
    }

    /// True if the rules decide about it, and not an earlier decision about its connection.
    fn asks(&self, direction: Direction, generation: u16, found: Option<&Admitted>) -> bool {
        let by = found.map(|found| match direction {
            Direction::Out => found.judged.0,
            Direction::In => found.judged.1,
        });
        // An error goes on, or ends, with what it is about.
        let about = found.is_some() && self.tuple.is_some_and(|tuple| tuple.is_about_another());
        !self.follows && by != Some(generation) && !about
    }

    /// True if its sender can be told that it was refused.
    pub fn can_be_reset(&self) -> bool {
        let facts = &self.facts;
        let tcp = facts.protocol == Some(Protocol::TCP) && facts.tcp_flags & tcp_flags::RST == 0;
        self.reset && tcp && self.to.is_some() && self.facts.fragment == Fragment::Whole
    }
}

impl Judging {
    pub fn new() -> Self {
        let key = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
        Self {
            cache: Cache::new(key),
            random: key | 1,
            heads: Vec::new(),
            said: Vec::new(),
            asked: Vec::new(),
            turned: Vec::new(),
            by_program: Vec::new(),
            outcomes: vec![Outcome::DEFAULT; CHUNK],
            floods: Floods::default(),
        }
    }

    /// Begins a batch on a switch with `kinds` kinds of policy.
    pub fn begin(&mut self, kinds: usize) {
        self.heads.clear();
        self.floods.denied.clear();
        self.floods.leads.clear();
        self.floods.kinds = kinds;
    }

    /// True if a flooded frame must not reach this port, which is of this kind.
    pub fn denies(&self, frame: usize, kind: usize, port: u16) -> bool {
        let Floods { denied, leads, kinds } = &self.floods;
        let denied = denied.get(frame * kinds + kind).copied().unwrap_or(false);
        denied && leads.get(frame).copied().flatten() != Some(port)
    }

    /// True if a flooded frame must not reach some ports.
    pub fn denies_some(&self, frame: usize) -> bool {
        let Floods { denied, kinds, .. } = &self.floods;
        (0..*kinds).any(|kind| denied.get(frame * kinds + kind) == Some(&true))
    }

    pub fn draw(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 32) as u32
    }

    /// Judges all frames by the rules of their sender.
    pub fn judge_sender(&mut self, side: Side<'_>) {
        let Some(from) = side.from else { return };
        self.judge(side, Whose::Sender(from), 0..self.heads.len() as u16);
        self.note(side, |_| side.sender, Direction::Out);
    }

    /// Judges frames to ports with rules by the rules of each.
    pub fn judge_receivers(&mut self, side: Side<'_>) {
        let mut order = std::mem::take(&mut self.by_program);
        order.clear();
        order.extend(self.heads.iter().zip(0..).filter_map(|(judged, at)| {
            let of = side.filters.of(judged.to?)?;
            Some((of.program, at))
        }));
        order.sort_unstable();
        for same in order.chunk_by(|a, b| a.0 == b.0) {
            self.judge(side, Whose::Receiver(same[0].0), same.iter().map(|(_, at)| *at));
            self.note(side, |judged| judged.to.unwrap_or(side.sender), Direction::In);
        }
        self.by_program = order;
    }

    /// Judges floods, once for each kind of policy among the ports that they may reach.
    pub fn judge_floods(&mut self, side: Side<'_>) {
        let is_flood = |judged: &&Judged| judged.to.is_none() && judged.denied.is_none();
        let last = self.heads.iter().filter(is_flood).map(|judged| judged.frame).max();
        let kinds = self.floods.kinds;
        let Some(last) = last.map(usize::from).filter(|_| kinds > 0) else { return };
        self.floods.denied.resize((last + 1) * kinds, false);
        self.floods.leads.resize(last + 1, None);
        for judged in self.heads.iter().filter(is_flood) {
            let current = judged.found.filter(|found| found.judged.1 == side.filters.generation);
            let leads = current.and_then(|found| found.receiver());
            self.floods.leads[usize::from(judged.frame)] = leads;
        }
        for (kind, port) in side.filters.of_kind.iter().enumerate() {
            let Some(of) = side.filters.of(*port) else { continue };
            self.judge(side, Whose::Kind(of), 0..self.heads.len() as u16);
            for (judged, said) in self.heads.iter_mut().zip(&self.said) {
                if judged.to.is_none() && judged.denied.is_none() {
                    let at = usize::from(judged.frame) * kinds + kind;
                    self.floods.denied[at] = said.denied.is_some();
                    judged.begins |= said.begins && said.denied.is_none();
                    log(side, judged, said, *port, Direction::In);
                }
            }
        }
    }

    /// Keeps what was said by the rules of `port`.
    fn note(&mut self, side: Side<'_>, port: impl Fn(&Judged) -> u16, direction: Direction) {
        for (judged, said) in self.heads.iter_mut().zip(&self.said) {
            judged.denied = judged.denied.or(said.denied);
            judged.begins |= said.begins;
            judged.reset |= said.reset;
            log(side, judged, said, port(judged), direction);
        }
    }

    /// Asks the rules about those of `heads` whose numbers are `of`.
    fn judge(&mut self, side: Side<'_>, whose: Whose<'_>, of: impl Iterator<Item = u16>) {
        let (direction, generation) = (whose.direction(), side.filters.generation);
        // What only the connection's port may have, is judged as the first packet of another.
        let is_flood = matches!(whose, Whose::Kind(_));
        self.said.clear();
        self.said.resize(self.heads.len(), Said::NOTHING);
        self.asked.clear();
        self.turned.clear();
        for at in of {
            let judged = &self.heads[usize::from(at)];
            if judged.denied.is_some() || is_flood && judged.to.is_some() {
                continue;
            }
            if judged.facts.hidden.is_some() {
                self.said[usize::from(at)].denied = Some(DropReason::HiddenHeaders);
                continue;
            }
            let found = judged.found.as_ref().filter(|_| !is_flood);
            if !judged.asks(direction, generation, found) {
                continue;
            }
            match found {
                Some(found) if !found.forward => self.turned.push(judged.turned(at, side.scratch)),
                _ => self.asked.push(at),
            }
        }
        self.ask::<false>(side, whose);
        self.ask::<true>(side, whose);
    }

    /// Asks about frames as they are, or about answers as the packets that they answer.
    fn ask<const TURNED: bool>(&mut self, side: Side<'_>, whose: Whose<'_>) {
        let Self { heads, asked, turned, said, cache, outcomes, .. } = self;
        let count = if TURNED { turned.len() } else { asked.len() };
        let direction = if TURNED { opposite(whose.direction()) } else { whose.direction() };
        let number = |i: usize| usize::from(if TURNED { turned[i].at } else { asked[i] });
        let packet = |i: usize| {
            let judged = &heads[number(i)];
            let mut packet = judged.packet(side.scratch);
            let of = whose.owner(side.filters, judged);
            let from = match direction {
                _ if !TURNED => side.from,
                Direction::Out => of,
                Direction::In => judged.to.and_then(|to| side.filters.of(to)),
            };
            if TURNED {
                packet.facts = &turned[i].facts;
                packet.head = &turned[i].head[..judged.head_len.into()];
            }
            let ip = packet.facts.ip;
            packet.sides = of.map_or(packet.sides, |of| of.sides(from, direction, ip, judged.vlan));
            packet
        };
        for start in (0..count).step_by(CHUNK) {
            let len = CHUNK.min(count - start);
            let mut packets = [packet(start); CHUNK];
            for (place, i) in packets[..len].iter_mut().zip(start..) {
                *place = packet(i);
            }
            let asking = Asking { side, whose, direction, packets: &packets[..len] };
            asking.ask(cache, outcomes, |i, new| said[number(start + i)] = new);
        }
    }
}

/// Packets for one program.
struct Asking<'a> {
    side: Side<'a>,
    whose: Whose<'a>,
    direction: Direction,
    packets: &'a [Packet<'a>],
}

impl Asking<'_> {
    /// Asks the program, and tells what it says about each packet.
    fn ask(&self, cache: &mut Cache, outcomes: &mut [Outcome], mut tell: impl FnMut(usize, Said)) {
        let Self { side: Side { filters, now, .. }, direction, packets, .. } = *self;
        let number = self.whose.program();
        let denied = Said { denied: Some(DropReason::Denied), ..Said::NOTHING };
        let Some(policy) = filters.policies.get(usize::from(number)) else {
            return (0..packets.len()).for_each(|i| tell(i, denied));
        };
        let context = Context {
            tables: &filters.tables,
            now: now.0,
            hits: &policy.hits,
            limits: &policy.limits,
        };
        let stamp = u32::from(filters.generation) << 13 | u32::from(number) & 0x1fff;
        let outcomes = &mut outcomes[..packets.len()];
        policy.program.judge(direction, packets, outcomes, &context, Some((cache, stamp)));
        for (i, (outcome, packet)) in outcomes.iter().zip(packets).enumerate() {
            let (reset, log) = (outcome.stop == Stop::Reset, outcome.log);
            let (allowed, begins) =
                is_allowed((outcome.stop, outcome.stateless), direction, packet);
            let said = if allowed { Said { begins, ..Said::NOTHING } } else { denied };
            tell(i, Said { reset, log, ..said });
        }
    }
}

/// Logs a frame, if a rule of `port` says so.
#[inline]
fn log(side: Side<'_>, judged: &Judged, said: &Said, port: u16, direction: Direction) {
    let Some(of) = side.filters.of(port).filter(|_| said.log != NO_RULE) else { return };
    let facts = &judged.facts;
    let frame = Logged {
        port,
        rule: (of.program, said.log),
        direction,
        allowed: said.denied.is_none(),
        ip: facts.ip,
        protocol: facts.protocol.map(|protocol| protocol.0),
        ports: facts.ports,
        len: judged.len,
    };
    side.filters.log(frame, side.now);
}

fn opposite(direction: Direction) -> Direction {
    match direction {
        Direction::In => Direction::Out,
        Direction::Out => Direction::In,
    }
}
