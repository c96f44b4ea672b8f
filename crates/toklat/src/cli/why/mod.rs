//! `toklat why`: what a frame from one port to another meets, and the first thing that stops it.

mod fence;

use std::net::{IpAddr, SocketAddr};

use clap::Args;
use fabric::VlanMode;
use fabric::why::{Check, Found, Step, Verdict, Way};
use frame::{Mac, VlanId};
use port::DropReason;
use serde_json::json;

use crate::api::{FdbEntry, PortInfo, PortState, Stats};
use client::name::PortName;
use client::{Client, Global, Result, UsageError};

use self::fence::{Book, Fenced};

/// Options of `toklat why`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    toklat why vale0:vm1 vale0:vm2\n  \
    toklat why vale0:vm1 vale0:vm2 tcp 10.0.0.1:4000 10.0.0.2:22\n  \
    toklat why vale0:vm1 vale0:vm2 --vlan 10 --size 9000")]
pub struct WhyArgs {
    /// The port that sends, as in vale0:p1
    from: PortName,
    /// The port that is to get the frame
    to: PortName,
    /// What the frame carries: tcp, udp or icmp with two addresses (and ports), or arp with two
    /// addresses [default: nothing that a guard looks at]
    #[arg(value_name = "FRAME", num_args = 0..=3)]
    frame: Vec<String>,
    /// The frame's source address [default: one of the sender's, as the switch knows it]
    #[arg(long, value_name = "MAC")]
    source: Option<Mac>,
    /// The frame's destination address [default: one of the receiver's]
    #[arg(long, value_name = "MAC")]
    destination: Option<Mac>,
    /// The VLAN of the frame's tag [default: that of the sender's port, if it is a trunk without
    /// a native one]
    #[arg(long)]
    vlan: Option<VlanId>,
    /// The frame's payload, in bytes, as MTUs count it
    #[arg(long, default_value_t = 100)]
    size: u16,
}

/// A line of the answer.
struct Line {
    what: String,
    /// What stops the frame, and what changes that.
    stops: Option<String>,
}

/// Says what a frame meets on its way.
///
/// # Errors
/// The daemon does not run, there is no such port, or something stops the frame.
pub fn run(args: &WhyArgs, global: &Global) -> Result {
    let WhyArgs { from, to, .. } = args;
    if from == to {
        return Err(
            UsageError(format!("{from} sends itself nothing; name two ports").into()).into()
        );
    }
    let lines = if from.switch == to.switch {
        Ends::ask(args, global)?.lines(args)?
    } else {
        let (a, b) = (&from.switch, &to.switch);
        vec![Line {
            what: format!("{from} and {to} are at two switches"),
            stops: Some(format!(
                "{a} and {b} exchange no frames by themselves; put both ports at one switch, or \
                 connect the two by a pipe and `toklat bridge`, or over hosts by --vxlan"
            )),
        }]
    };
    print(&lines, global)?;
    match lines.iter().find_map(|line| line.stops.as_ref()) {
        Some(_) => Err(anyhow::anyhow!("a frame from {from} does not reach {to}")),
        None => Ok(()),
    }
}

fn print(lines: &[Line], global: &Global) -> Result {
    let steps: Vec<_> = lines
        .iter()
        .map(|Line { what, stops }| json!({ "found": what, "passes": stops.is_none(), "change": stops }))
        .collect();
    let text = lines.iter().map(|Line { what, stops }| match stops {
        None => format!("  passes  {what}"),
        Some(change) => format!("  STOPS   {what}\n          {change}"),
    });
    global.print_done(&steps, &text.collect::<Vec<_>>().join("\n"))
}

/// What the daemon says of the two ports and their switch.
struct Ends {
    from: PortInfo,
    to: PortInfo,
    table: Vec<FdbEntry>,
    stats: Stats,
    book: Book,
}

impl Ends {
    fn ask(args: &WhyArgs, global: &Global) -> Result<Self> {
        let mut client = Client::connect(global)?;
        let switch = &args.from.switch;
        let ports: Vec<PortInfo> = client.get(&format!("{}/ports", switch.path()))?;
        let port = |name: &PortName| {
            let found = ports.iter().find(|port| port.name == name.port).cloned();
            found.ok_or_else(|| {
                anyhow::anyhow!("there is no port {name}; toklat port show {switch} lists them")
            })
        };
        let (from, to) = (port(&args.from)?, port(&args.to)?);
        let table = client.get(&format!("{}/fdb", switch.path()))?;
        let stats = client.get("/v1/stats")?;
        let fenced = [&from, &to].iter().any(|port| !port.spec.policy.groups.is_empty());
        let book = if fenced { Book::ask(&mut client)? } else { Book::default() };
        Ok(Self { from, to, table, stats, book })
    }

    fn lines(&self, args: &WhyArgs) -> Result<Vec<Line>> {
        let mut lines = vec![ready(&args.from, &self.from), ready(&args.to, &self.to)];
        if lines.iter().all(|line| line.stops.is_none()) {
            lines.extend(self.walk(args)?);
        }
        if lines.iter().all(|line| line.stops.is_none()) {
            lines.extend(self.afterwards(args));
        }
        Ok(lines)
    }

    fn walk(&self, args: &WhyArgs) -> Result<Vec<Line>> {
        let (from, to) = (&self.from.spec.policy, &self.to.spec.policy);
        let source = args.source.or_else(|| self.address(&self.from));
        let destination = args.destination.or_else(|| self.address(&self.to));
        // A station that has not sent anything is not known: its first frames are broadcast.
        let source = source.unwrap_or(Mac::local(0));
        let destination = destination.unwrap_or(Mac::new([0xff; 6]));
        let vlan = args.vlan.or_else(|| usual_tag(&from.vlan));
        let frame = frame_of(destination, source, vlan, &args.frame, args.size.into())?;
        let tunnels = [self.from.tunnel.is_some(), self.to.tunnel.is_some()];
        let fenced = [self.book.fenced(from)?, self.book.fenced(to)?];
        let fences = [fenced[0].as_ref().map(Fenced::fence), fenced[1].as_ref().map(Fenced::fence)];
        let tables = self.book.tables();
        let way = Way { from, to, tunnels, fences, tables: &tables, frame: &frame };
        let steps = way.walk(|filter, mac| {
            let of =
                |entry: &&FdbEntry| entry.mac == mac && entry.vlan.map_or(0, VlanId::get) == filter;
            match self.table.iter().find(of) {
                None => Found::Nowhere,
                Some(entry) if entry.port == self.to.name => Found::There,
                Some(entry) if entry.port == self.from.name => Found::Here,
                Some(entry) => Found::Elsewhere(format!("{}:{}", args.to.switch, entry.port)),
            }
        });
        let line = |step: &Step| Line {
            what: step.found.clone(),
            stops: (step.verdict != Verdict::Passes)
                .then(|| change(step, args, self, (source, vlan))),
        };
        Ok(steps.iter().map(line).collect())
    }

    /// An address of a port: a configured one, or the one that was seen last.
    fn address(&self, port: &PortInfo) -> Option<Mac> {
        let seen = self.table.iter().filter(|entry| entry.port == port.name);
        let seen = seen.min_by_key(|entry| entry.age_s).map(|entry| entry.mac);
        port.spec.policy.macs.first().copied().or(seen)
    }

    /// What happens to frames that pass: limits, bad links, what was lost so far.
    fn afterwards(&self, args: &WhyArgs) -> Vec<Line> {
        let (from, to) = (&self.from.spec.policy, &self.to.spec.policy);
        let mut notes = Vec::new();
        if from.tx_rate_limiter.is_some() {
            notes.push(format!("{} has --tx-limit: frames beyond it wait there", args.from));
        }
        if to.rx_rate_limiter.is_some() {
            notes.push(format!("{} has --rx-limit: frames beyond it are lost", args.to));
        }
        for (name, impairment) in [(&args.from, from.tx_impairment), (&args.to, to.rx_impairment)] {
            if impairment.is_some_and(|link| !link.is_off()) {
                notes.push(format!("{name} is behind a bad link (toklat port show {name})"));
            }
        }
        notes.extend(self.drops(args));
        notes.into_iter().map(|what| Line { what, stops: None }).collect()
    }

    fn drops(&self, args: &WhyArgs) -> Vec<String> {
        let switch = self.stats.switches.iter().find(|s| s.name == args.from.switch.as_str());
        let ports = switch.into_iter().flat_map(|switch| &switch.ports);
        let mut notes = Vec::new();
        for port in ports {
            let (drops, name) = match &port.name {
                name if *name == self.from.name => (&port.counters.in_drops, &args.from),
                name if *name == self.to.name => (&port.counters.out_drops, &args.to),
                _ => continue,
            };
            let all = drops.iter().map(|(reason, count)| format!("{} {count}", reason.name()));
            let all: Vec<_> = all.collect();
            if !all.is_empty() {
                notes.push(format!("{name} has lost frames so far: {}", all.join(", ")));
            }
        }
        notes
    }
}

/// Whether a port takes part.
fn ready(name: &PortName, port: &PortInfo) -> Line {
    let why = port.failure.as_ref().or(port.unconnected.as_ref());
    let why = why.map_or_else(String::new, |why| format!(": {why}"));
    let what = format!("{name} is {}{why}", port.state.name());
    let stops = match port.state {
        _ if !port.spec.policy.link => {
            Some(format!("its link is down: toklat port set {name} --link up"))
        }
        PortState::Attached => None,
        PortState::Vacant => Some(format!(
            "no program or virtual machine has it open; start the one that uses {name}"
        )),
        PortState::Waiting => Some("it is tried again every second".into()),
        PortState::Failed | PortState::Quarantined => {
            Some(format!("mend what failed, then: toklat port rm {name}, and add it again"))
        }
        PortState::Stalled => Some("its owner takes no frames; see whether it runs".into()),
    };
    Line { what, stops }
}

/// The tag of frames from a port that takes no others.
fn usual_tag(mode: &VlanMode) -> Option<VlanId> {
    match mode {
        VlanMode::Trunk { allowed, native: None } => allowed.first().copied().or(VlanId::new(1)),
        _ => None,
    }
}

/// The command that changes what a step found.
fn change(
    step: &Step,
    args: &WhyArgs,
    ends: &Ends,
    (source, vlan): (Mac, Option<VlanId>),
) -> String {
    let WhyArgs { from, to, size, .. } = args;
    match (step.check, step.verdict) {
        (Check::Length, _) => format!("toklat port set {from} --mtu {size}"),
        (Check::Room, _) => format!("toklat port set {to} --mtu {size}"),
        (Check::Vlan, _) => match vlan {
            Some(vlan) => format!("toklat port set {from} --vlan-trunk {vlan}"),
            None => format!("toklat port set {from} --native VLAN, or send tagged frames (--vlan)"),
        },
        (Check::Source, _) => format!("toklat port set {from} --mac {source}"),
        (Check::Guard, Verdict::Drops(DropReason::PortSecurity)) => {
            format!("toklat port set {from} --ip ADDRESS,...")
        }
        (Check::Guard, _) => {
            format!("the guard is there for this: toklat port set {from} --guard=off")
        }
        (Check::Destination, Verdict::Misses) => format!(
            "if the station has moved to {to}: toklat fdb flush {}, or send a frame from it",
            from.switch
        ),
        (Check::Destination, _) => "no switch forwards such frames".into(),
        (Check::Apart, _) => format!("toklat port set {to} --protected=off"),
        (Check::Member, _) => {
            format!("toklat port set {to} --vlan-access (or --vlan-trunk) with the VLAN of {from}")
        }
        (Check::RulesOut, _) => change_rules(step, args, &ends.from, "from me to any"),
        (Check::RulesIn, _) => change_rules(step, args, &ends.to, "from any to me"),
        (Check::Tag, _) => format!("make {to} a trunk: toklat port set {to} --vlan-trunk VLANS"),
    }
}

/// The command that adds a rule to a port's groups.
fn change_rules(step: &Step, args: &WhyArgs, port: &PortInfo, way: &str) -> String {
    let group = port.spec.policy.groups.last().map_or("GROUP", String::as_str);
    let end = args.frame.get(2).and_then(|to| host(to));
    let rule = match (args.frame.first().map(String::as_str), end) {
        (Some(kind @ ("tcp" | "udp")), Some((_, port @ 1..))) => {
            format!("allow {kind} {way} {port}")
        }
        (Some("icmp"), Some((ip, _))) if ip.is_ipv6() => format!("allow icmp6 {way}"),
        (Some(kind @ ("tcp" | "udp" | "icmp")), _) => format!("allow {kind} {way}"),
        (Some("arp"), _) => "allow arp".into(),
        _ => format!("allow all {way}"),
    };
    match step.verdict {
        Verdict::Drops(DropReason::HiddenHeaders) => {
            "rules let no frame through that may hide a header: send fewer options or tags".into()
        }
        _ if step.found.contains("; the default ") => format!("toklat fw add {group} '{rule}'"),
        _ => format!("put '{rule}' before it: toklat fw set {group} RULES"),
    }
}

/// A frame with this payload.
fn frame_of(
    to: Mac,
    from: Mac,
    vlan: Option<VlanId>,
    words: &[String],
    size: usize,
) -> Result<Vec<u8>> {
    let mut frame = [to.octets(), from.octets()].concat();
    if let Some(vlan) = vlan {
        frame.extend([0x81, 0]);
        frame.extend(vlan.get().to_be_bytes());
    }
    let begin = frame.len();
    frame.extend(payload(words, from)?);
    frame.resize(frame.len().max(begin + 2 + size), 0);
    Ok(frame)
}

/// The frame's type and what follows.
fn payload(words: &[String], mac: Mac) -> Result<Vec<u8>> {
    let usage = || {
        UsageError(
            "a frame is tcp, udp or icmp and two addresses, as in tcp 10.0.0.1:4000 10.0.0.2:22, \
             or arp 10.0.0.1 10.0.0.2"
                .into(),
        )
    };
    let [kind, from, to] = words else {
        // An experimental type (IEEE 802 local), which carries no addresses.
        return if words.is_empty() { Ok(vec![0x88, 0xb5]) } else { Err(usage().into()) };
    };
    let (Some((from, source)), Some((to, destination))) = (host(from), host(to)) else {
        return Err(usage().into());
    };
    let is_v6 = from.is_ipv6();
    let ports = [source.to_be_bytes(), destination.to_be_bytes()].concat();
    let (protocol, body) = match (kind.as_str(), is_v6) {
        ("tcp", _) => (6, [ports, vec![0; 8], vec![0x50, 2, 0, 0, 0, 0, 0, 0]].concat()),
        ("udp", _) => (17, [ports, vec![0, 8, 0, 0]].concat()),
        ("icmp", false) => (1, vec![8, 0, 0, 0, 0, 0, 0, 0]),
        ("icmp", true) => (58, vec![128, 0, 0, 0, 0, 0, 0, 0]),
        ("arp", false) => return Ok(arp(mac, from, to).ok_or_else(usage)?),
        _ => return Err(usage().into()),
    };
    Ok(packet(protocol, from, to, &body).ok_or_else(usage)?)
}

/// An address, with a port or without.
fn host(word: &str) -> Option<(IpAddr, u16)> {
    let with_port = word.parse::<SocketAddr>().map(|all| (all.ip(), all.port()));
    with_port.ok().or_else(|| Some((word.parse().ok()?, 0)))
}

fn packet(protocol: u8, from: IpAddr, to: IpAddr, body: &[u8]) -> Option<Vec<u8>> {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let len = (20 + body.len() as u16).to_be_bytes();
            let head = [8, 0, 0x45, 0, len[0], len[1], 0, 0, 0, 0, 64, protocol, 0, 0];
            Some([&head[..], &from.octets(), &to.octets(), body].concat())
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let len = (body.len() as u16).to_be_bytes();
            let head = [0x86, 0xdd, 0x60, 0, 0, 0, len[0], len[1], protocol, 64];
            Some([&head[..], &from.octets(), &to.octets(), body].concat())
        }
        _ => None,
    }
}

fn arp(mac: Mac, from: IpAddr, to: IpAddr) -> Option<Vec<u8>> {
    let (IpAddr::V4(from), IpAddr::V4(to)) = (from, to) else { return None };
    let head = [8, 6, 0, 1, 8, 0, 6, 4, 0, 1];
    Some([&head[..], &mac.octets(), &from.octets(), &[0; 6], &to.octets()].concat())
}
