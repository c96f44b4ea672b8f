//! A rule as the line that it can be read from.

use core::fmt;

use frame::Protocol;

use crate::packet::Direction;
use crate::rule::{Action, Hosts, Protocols, Rate, Rule, Side};

const FLAGS: [(&str, u8); 6] =
    [("fin", 1), ("syn", 2), ("rst", 4), ("psh", 8), ("ack", 0x10), ("urg", 0x20)];

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let matches = &self.matches;
        self.label.iter().try_for_each(|label| write!(f, "{label}: "))?;
        match &self.action {
            Action::Allow => write!(f, "allow")?,
            Action::Deny => write!(f, "deny")?,
            Action::Reset => write!(f, "reset")?,
            Action::Next => write!(f, "count")?,
            Action::Skip(label) => write!(f, "skipto {label}")?,
        }
        f.write_str(if self.log { " log" } else { "" })?;
        self.mirror.iter().try_for_each(|port| write!(f, " mirror {port}"))?;
        self.link.iter().try_for_each(|link| write!(f, " link {link}"))?;
        match self.limit {
            None => {}
            Some(Rate::Frames(rate)) => write!(f, " limit {rate}pps")?,
            Some(Rate::Bits(rate)) => write!(f, " limit {rate}b/s")?,
        }
        match matches.protocols {
            Protocols::All => write!(f, " all")?,
            Protocols::Ip => write!(f, " ip")?,
            Protocols::Ipv4 => write!(f, " ipv4")?,
            Protocols::Ipv6 => write!(f, " ipv6")?,
            Protocols::Arp => write!(f, " arp")?,
            Protocols::Above(Protocol::TCP) => write!(f, " tcp")?,
            Protocols::Above(Protocol::UDP) => write!(f, " udp")?,
            Protocols::Above(Protocol::ICMP) => write!(f, " icmp")?,
            Protocols::Above(Protocol::ICMPV6) => write!(f, " icmp6")?,
            Protocols::Above(Protocol::SCTP) => write!(f, " sctp")?,
            Protocols::Above(Protocol(number)) => write!(f, " proto {number}")?,
        }
        side(f, "from", &matches.from)?;
        side(f, "to", &matches.to)?;
        options(f, self)
    }
}

fn side(f: &mut fmt::Formatter<'_>, word: &str, side: &Side) -> fmt::Result {
    write!(f, " {word} ")?;
    hosts(f, &side.hosts)?;
    ranges(f, " ", side.ports.iter().map(|(lo, hi)| (u32::from(*lo), u32::from(*hi))))
}

fn hosts(f: &mut fmt::Formatter<'_>, hosts: &Hosts) -> fmt::Result {
    let me = hosts.me.then(|| "me".to_owned()).into_iter();
    let prefixes = hosts.prefixes.iter().map(ToString::to_string);
    let tables = hosts.tables.iter().map(|name| format!("table:{name}"));
    let groups = hosts.groups.iter().map(|name| format!("group:{name}"));
    let all: Vec<String> = me.chain(prefixes).chain(tables).chain(groups).collect();
    f.write_str(if all.is_empty() { "any" } else { "" })?;
    f.write_str(&all.join(","))
}

fn ranges(
    f: &mut fmt::Formatter<'_>,
    before: &str,
    ranges: impl Iterator<Item = (u32, u32)>,
) -> fmt::Result {
    for (i, (lo, hi)) in ranges.enumerate() {
        f.write_str(if i == 0 { before } else { "," })?;
        if lo == hi { write!(f, "{lo}")? } else { write!(f, "{lo}-{hi}")? }
    }
    Ok(())
}

fn options(f: &mut fmt::Formatter<'_>, rule: &Rule) -> fmt::Result {
    let matches = &rule.matches;
    match matches.direction {
        None => {}
        Some(Direction::In) => write!(f, " in")?,
        Some(Direction::Out) => write!(f, " out")?,
    }
    if let Some((mask, set)) = matches.flags {
        let known = FLAGS.iter().filter(|(_, bit)| mask & bit != 0);
        let words: Vec<String> = known
            .map(|(name, bit)| if set & bit != 0 { (*name).to_owned() } else { format!("!{name}") })
            .collect();
        write!(f, " flags {}", words.join(","))?;
    }
    let same = |value: &u8| (u32::from(*value), u32::from(*value));
    ranges(f, " icmptypes ", matches.icmp_types.iter().map(same))?;
    matches.source_mac.iter().try_for_each(|mac| write!(f, " src-mac {mac}"))?;
    matches.destination_mac.iter().try_for_each(|mac| write!(f, " dst-mac {mac}"))?;
    let wide = |range: &(u16, u16)| (u32::from(range.0), u32::from(range.1));
    ranges(f, " vlan ", matches.vlans.iter().map(wide))?;
    matches.ethertype.iter().try_for_each(|kind| write!(f, " ethertype {kind:#06x}"))?;
    ranges(f, " length ", matches.length.into_iter())?;
    f.write_str(if matches.fragment { " fragment" } else { "" })?;
    if let Some(share) = matches.probability {
        // Enough digits to tell all shares apart, rounded up as reading rounds down.
        write!(f, " prob {:.12}", (f64::from(share) + 0.25) / 4_294_967_296.0)?;
    }
    matches.bpf.iter().try_for_each(|text| write!(f, " bpf \"{text}\""))?;
    f.write_str(if rule.stateless { " stateless" } else { "" })
}
