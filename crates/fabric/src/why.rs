//! What a switch decides about one frame from one port to another, step by step: the walk of
//! `toklat why`. The steps are those of the forwarder, in its order; a test holds the two together.

use frame::{ETHERNET_HEADER, Facts, Identity, Mac, VLAN_TAG, VlanId};
use port::{DropReason, HEAD};
use rules::{Action, Direction, Packet, Policy, Rule, Stop, Tables};

use crate::filter::is_allowed;
use crate::ports::{Form, Vlan};
use crate::{Filter, PortFilter, Rules};

/// A frame's way from one port to another of the same switch.
#[derive(Debug)]
pub struct Way<'a> {
    /// The rules of the port that sends it, and of the one that is to get it.
    pub from: &'a Rules,
    /// See `from`.
    pub to: &'a Rules,
    /// Which of the two is a tunnel.
    pub tunnels: [bool; 2],
    /// The groups of rules of the two ports, if they have any.
    pub fences: [Option<Fence<'a>>; 2],
    /// The tables that their rules name.
    pub tables: &'a Tables,
    /// The frame, from its destination address on.
    pub frame: &'a [u8],
}

/// The groups of rules of a port.
#[derive(Clone, Copy, Debug)]
pub struct Fence<'a> {
    /// Their rules.
    pub policy: &'a Policy,
    /// Their names, in order.
    pub names: &'a [String],
    /// What they are to the switch.
    pub filter: &'a PortFilter,
}

/// Where the table has a frame's destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// At the port that is to get the frame.
    There,
    /// At the port that sends it.
    Here,
    /// At another port, of this name.
    Elsewhere(String),
    /// Nowhere: the frame goes to all ports of its VLAN.
    Nowhere,
}

/// What a step asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Whether the frame is neither too short nor too long for its sender's port.
    Length,
    /// Which VLAN it is in.
    Vlan,
    /// Whether its sender may use its source address.
    Source,
    /// Whether a guarded port may send what the frame says.
    Guard,
    /// Where its destination is.
    Destination,
    /// Whether the two ports may talk to each other.
    Apart,
    /// Whether the receiver is in its VLAN.
    Member,
    /// Whether the rules of the sender's groups let it out.
    RulesOut,
    /// Whether the rules of the receiver's groups let it in.
    RulesIn,
    /// Whether it can leave with the tag that the receiver gets.
    Tag,
    /// Whether it is not too long for the receiver's port.
    Room,
}

/// How a step ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The frame goes on.
    Passes,
    /// It is dropped, and counted for this reason.
    Drops(DropReason),
    /// It does not go to this receiver. Others may get it.
    Misses,
}

/// A step of the walk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What was asked.
    pub check: Check,
    /// How it ended.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
}

impl Way<'_> {
    /// The steps up to the first that stops the frame. `find` looks an address up in the table.
    pub fn walk(&self, find: impl FnOnce(Filter, Mac) -> Found) -> Vec<Step> {
        let mut walk = Walk { way: self, steps: Vec::new() };
        // What stops the frame is the last step.
        let _ = walk.all(find);
        walk.steps
    }
}

struct Walk<'a> {
    way: &'a Way<'a>,
    steps: Vec<Step>,
}

/// Ends the walk.
struct Stopped;

impl Walk<'_> {
    fn step(&mut self, check: Check, verdict: Verdict, found: String) -> Result<(), Stopped> {
        self.steps.push(Step { check, verdict, found });
        if verdict == Verdict::Passes { Ok(()) } else { Err(Stopped) }
    }

    fn all(&mut self, find: impl FnOnce(Filter, Mac) -> Found) -> Result<(), Stopped> {
        self.length()?;
        let (filter, tag) = self.vlan()?;
        self.source()?;
        let floods = self.destination(filter, find)?;
        self.apart(floods)?;
        self.member(filter, floods)?;
        self.rules(filter, floods)?;
        self.leave(filter, tag)
    }

    fn length(&mut self) -> Result<(), Stopped> {
        let (len, most) = (self.way.frame.len(), self.way.from.max_frame());
        let verdict = match len {
            ..ETHERNET_HEADER => Verdict::Drops(DropReason::Runt),
            _ if len > most => Verdict::Drops(DropReason::TooLong),
            _ => Verdict::Passes,
        };
        let mtu = self.way.from.mtu;
        self.step(Check::Length, verdict, format!("{len} bytes; the sender's MTU is {mtu}"))
    }

    /// The frame's filter, and the VLAN of its tag if it has one.
    fn vlan(&mut self) -> Result<(Filter, Option<u16>), Stopped> {
        let frame = self.way.frame;
        // Ports without VLANs, guard and lock do not look at tags.
        let is_tagged = word(frame, 12) == 0x8100 && frame.len() >= ETHERNET_HEADER + VLAN_TAG;
        let tag = is_tagged.then(|| word(frame, 14) & 0xfff);
        let said = tag.map_or_else(|| "untagged".into(), |tag| format!("tagged {tag}"));
        let filter = Vlan::of(&self.way.from.vlan).classify(tag);
        let (verdict, found) = match filter {
            None => (
                Verdict::Drops(DropReason::Vlan),
                format!("{said}: the sender's port takes no such frames"),
            ),
            Some(0) => (Verdict::Passes, format!("{said}; the port does not look at VLANs")),
            Some(filter) => (Verdict::Passes, format!("{said}: VLAN {filter}")),
        };
        self.step(Check::Vlan, verdict, found)?;
        Ok((filter.unwrap_or(0), tag))
    }

    fn source(&mut self) -> Result<(), Stopped> {
        let (rules, frame) = (self.way.from, self.way.frame);
        if !rules.locked && !rules.guard {
            return Ok(());
        }
        let source = mac(frame, 6);
        let (verdict, found) = if rules.macs.is_empty() {
            (Verdict::Passes, format!("{source}, if it is the first that the port has sent"))
        } else if rules.macs.contains(&source) {
            (Verdict::Passes, format!("{source} is the port's own"))
        } else {
            let found = format!("{source} is none of the port's addresses");
            (Verdict::Drops(DropReason::PortSecurity), found)
        };
        self.step(Check::Source, verdict, found)?;
        if !rules.guard {
            return Ok(());
        }
        let head = &frame[..frame.len().min(port::HEAD)];
        let forged = Identity::new(&rules.macs, &rules.ips).forged(head);
        match forged {
            None => self.step(Check::Guard, Verdict::Passes, "the frame forges nothing".into()),
            Some(spoof) => {
                let reason = crate::forward::reason_of(spoof);
                let found = format!("the frame forges something: {}", reason.name());
                self.step(Check::Guard, Verdict::Drops(reason), found)
            }
        }
    }

    /// True if the frame is flooded.
    fn destination(
        &mut self,
        filter: Filter,
        find: impl FnOnce(Filter, Mac) -> Found,
    ) -> Result<bool, Stopped> {
        let to = mac(self.way.frame, 0);
        if to.is_link_local() {
            let found = format!("{to} is kept in by bridges");
            self.step(Check::Destination, Verdict::Drops(DropReason::LinkLocal), found)?;
        }
        if to.is_group() {
            return self.flood(&format!("{to} is for all")).map(|()| true);
        }
        let found = match find(filter, to) {
            // The switch learns the source first.
            Found::Nowhere if to == mac(self.way.frame, 6) => Found::Here,
            found => found,
        };
        match found {
            Found::There => self
                .step(Check::Destination, Verdict::Passes, format!("{to} is at the receiver"))
                .map(|()| false),
            Found::Nowhere => self.flood(&format!("{to} is unknown")).map(|()| true),
            Found::Here => {
                let found = format!("{to} is at the sender's own port");
                self.step(Check::Destination, Verdict::Drops(DropReason::SamePort), found)
                    .map(|()| false)
            }
            Found::Elsewhere(port) => self
                .step(Check::Destination, Verdict::Misses, format!("{to} is at {port}"))
                .map(|()| false),
        }
    }

    fn flood(&mut self, why: &str) -> Result<(), Stopped> {
        let limit = self.way.from.flood_limit;
        let limit = limit.map_or_else(String::new, |limit| format!(", at most {limit} a second"));
        self.step(Check::Destination, Verdict::Passes, format!("{why}: to all ports{limit}"))
    }

    fn apart(&mut self, floods: bool) -> Result<(), Stopped> {
        let Way { from, to, tunnels, .. } = self.way;
        let why = match (from.protected && to.protected, *tunnels == [true; 2]) {
            (true, _) => "both ports are protected",
            (_, true) => "both ports are tunnels",
            _ => return Ok(()),
        };
        self.step(Check::Apart, stops(floods, DropReason::Protected), why.into())
    }

    fn member(&mut self, filter: Filter, floods: bool) -> Result<(), Stopped> {
        let is_member = Vlan::of(&self.way.to.vlan).allows(filter);
        let what = match VlanId::new(filter) {
            None => "a network without VLANs".into(),
            Some(id) => format!("VLAN {id}"),
        };
        if is_member {
            return self.step(Check::Member, Verdict::Passes, format!("the receiver is in {what}"));
        }
        let found = format!("the receiver is not in {what}");
        self.step(Check::Member, stops(floods, DropReason::Vlan), found)
    }

    /// What the rules of both ports say about the first frame of a connection.
    fn rules(&mut self, filter: Filter, floods: bool) -> Result<(), Stopped> {
        let Way { frame, fences, .. } = *self.way;
        let head = &frame[..frame.len().min(HEAD)];
        let Some(facts) = Facts::of(head) else { return Ok(()) };
        let vlan = if filter == 0 { facts.vlan.unwrap_or(0) } else { filter };
        let sender = fences[0].map(|fence| fence.filter);
        let ways = [(Direction::Out, Check::RulesOut), (Direction::In, Check::RulesIn)];
        for ((direction, check), fence) in ways.into_iter().zip(fences) {
            let Some(fence) = fence else { continue };
            let stopped = |reason| match direction {
                Direction::Out => Verdict::Drops(reason),
                Direction::In => stops(floods, reason),
            };
            if facts.hidden.is_some() {
                let found = "the frame's head does not show all headers".into();
                self.step(check, stopped(DropReason::HiddenHeaders), found)?;
            }
            let sides = fence.filter.sides(sender, direction, facts.ip, vlan);
            let len = frame.len() as u32;
            let packet = Packet { facts: &facts, head, len, sides, draw: 0 };
            let (allowed, found) = fence.decide(self.way.tables, direction, &packet);
            let verdict = if allowed { Verdict::Passes } else { stopped(DropReason::Denied) };
            self.step(check, verdict, found)?;
        }
        Ok(())
    }

    /// The frame's form at the receiver, and its length there.
    fn leave(&mut self, filter: Filter, tag: Option<u16>) -> Result<(), Stopped> {
        let form = match filter {
            0 => Form::AsItCame,
            _ => Vlan::of(&self.way.to.vlan).form(filter),
        };
        let inner = word(self.way.frame, if tag.is_some() { 16 } else { 12 });
        if form == Form::Untagged && frame::is_tag(inner) {
            let found = "a second tag would become the frame's first".into();
            self.step(Check::Tag, Verdict::Drops(DropReason::DoubleTag), found)?;
        }
        let bare = self.way.frame.len() - if tag.is_some() { VLAN_TAG } else { 0 };
        let len = match form {
            Form::AsItCame => self.way.frame.len(),
            Form::Untagged => bare,
            Form::Tagged => bare + VLAN_TAG,
        };
        let verdict = match len > self.way.to.max_frame() {
            true => Verdict::Drops(DropReason::TooLong),
            false => Verdict::Passes,
        };
        let mtu = self.way.to.mtu;
        self.step(Check::Room, verdict, format!("{len} bytes; the receiver's MTU is {mtu}"))
    }
}

impl Fence<'_> {
    /// Whether a packet passes, and the rule that says so.
    fn decide(&self, tables: &Tables, direction: Direction, packet: &Packet<'_>) -> (bool, String) {
        let way = if direction == Direction::Out { "out" } else { "in" };
        let found = rules::first_match(self.policy, tables, direction, packet);
        let Some((at, rule)) = found.and_then(|at| Some((at, self.policy.rules.get(at)?))) else {
            let (allowed, _) = is_allowed((Stop::Default, false), direction, packet);
            let says = match (allowed, direction) {
                (true, Direction::In) => "lets ARP, neighbour discovery and DHCP in",
                (true, Direction::Out) => "lets frames out",
                (false, _) => "lets nothing in but answers",
            };
            let names = self.names.join(",");
            return (allowed, format!("{way}: no rule of {names} decides; the default {says}"));
        };
        let group = self.policy.ends.iter().position(|end| *end > at);
        let group = group.and_then(|group| self.names.get(group)).map_or("", String::as_str);
        let (allowed, _) = is_allowed((stop_of(rule), rule.stateless), direction, packet);
        let line = rule.line;
        let mut found = format!("{way}: group {group}, line {line} decides: {rule}");
        if rule.limit.is_some() {
            found.push_str(" (frames beyond its limit are denied)");
        }
        if rule.matches.probability.is_some() {
            found.push_str(" (of a share of frames; later rules decide about others)");
        }
        (allowed, found)
    }
}

/// A frame to one port is dropped; a flood goes to others.
fn stops(floods: bool, reason: DropReason) -> Verdict {
    if floods { Verdict::Misses } else { Verdict::Drops(reason) }
}

fn word(frame: &[u8], at: usize) -> u16 {
    frame.get(at..at + 2).map_or(0, |bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
}

fn mac(frame: &[u8], at: usize) -> Mac {
    let mut octets = [0; 6];
    octets.copy_from_slice(&frame[at..at + 6]);
    Mac::new(octets)
}

/// Where a rule ends the walk.
fn stop_of(rule: &Rule) -> Stop {
    match rule.action {
        Action::Allow => Stop::Allow,
        Action::Deny => Stop::Deny,
        Action::Reset => Stop::Reset,
        Action::Next | Action::Skip(_) => Stop::Default,
    }
}
