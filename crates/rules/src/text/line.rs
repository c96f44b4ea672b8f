//! A line of our own language.

use frame::Protocol;

use super::{Problem, TextError, Word, Words};
use super::{flags, hosts, icmp_types, number, port_ranges, ranges, rate, share};
use crate::packet::Direction;
use crate::rule::{Action, Hosts, Matches, Protocols, Rule, Side};

const ACTIONS: &[&str] =
    &["allow", "deny", "reset", "count", "log", "mirror", "limit", "link", "skipto"];
const PROTOCOLS: &[(&str, Protocols)] = &[
    ("all", Protocols::All),
    ("ip", Protocols::Ip),
    ("ipv4", Protocols::Ipv4),
    ("ip4", Protocols::Ipv4),
    ("ipv6", Protocols::Ipv6),
    ("ip6", Protocols::Ipv6),
    ("arp", Protocols::Arp),
    ("icmp", Protocols::Above(Protocol::ICMP)),
    ("igmp", Protocols::Above(Protocol(2))),
    ("tcp", Protocols::Above(Protocol::TCP)),
    ("udp", Protocols::Above(Protocol::UDP)),
    ("gre", Protocols::Above(Protocol(47))),
    ("esp", Protocols::Above(Protocol(50))),
    ("ah", Protocols::Above(Protocol(51))),
    ("icmp6", Protocols::Above(Protocol::ICMPV6)),
    ("sctp", Protocols::Above(Protocol::SCTP)),
];
const OPTIONS: &[&str] = &[
    "in",
    "out",
    "flags",
    "icmptypes",
    "src-mac",
    "dst-mac",
    "vlan",
    "ethertype",
    "length",
    "fragment",
    "prob",
    "bpf",
    "stateless",
    "limit",
    "link",
    "log",
    "from",
    "to",
    "proto",
];
const ETHERTYPES: &[(&str, u16)] =
    &[("arp", 0x806), ("ipv4", 0x800), ("ipv6", 0x86dd), ("lldp", 0x88cc), ("pppoe", 0x8864)];

/// A line that is read.
pub(super) struct Line<'t> {
    words: Words<'t>,
    rule: Rule,
    /// The options that have been read.
    seen: Vec<&'t str>,
}

impl<'t> Line<'t> {
    pub fn new(text: &'t str, number: usize) -> Result<Self, TextError> {
        let words = Words::of(text, number)?;
        let rule = Rule {
            label: None,
            action: Action::Next,
            stateless: false,
            log: false,
            mirror: None,
            limit: None,
            link: None,
            matches: Matches::default(),
            line: number,
        };
        Ok(Self { words, rule, seen: Vec::new() })
    }

    pub fn rule(mut self) -> Result<Rule, TextError> {
        self.label();
        let first = self.words.need("an action")?;
        if first.quoted || !ACTIONS.contains(&first.text) {
            return Err(self.words.unknown(&first, "an action", ACTIONS));
        }
        self.action(&first)?;
        while let Some(word) = self.words.peek().cloned()
            && ACTIONS.contains(&word.text)
            && !word.quoted
        {
            self.words.take();
            self.action(&word)?;
        }
        self.protocol()?;
        while let Some(word) = self.words.take() {
            self.option(&word)?;
        }
        self.check(&first)?;
        Ok(self.rule)
    }

    fn label(&mut self) {
        let label = self.words.peek().and_then(|word| word.text.strip_suffix(':'));
        if let Some(label) = label.filter(|label| !label.is_empty()) {
            self.rule.label = Some(label.into());
            self.words.take();
        }
    }

    fn action(&mut self, word: &Word<'t>) -> Result<(), TextError> {
        let decides = match word.text {
            "allow" => Action::Allow,
            "deny" => Action::Deny,
            "reset" => Action::Reset,
            "skipto" => Action::Skip(self.words.need("a label")?.text.into()),
            "count" => return Ok(()),
            _ => return self.effect(word),
        };
        if self.rule.action != Action::Next {
            let why = "the line has another of `allow`, `deny`, `reset` and `skipto`";
            return Err(self.words.error(word, Problem::Invalid(why)));
        }
        self.rule.action = decides;
        Ok(())
    }

    /// What may accompany a decision.
    fn effect(&mut self, word: &Word<'t>) -> Result<(), TextError> {
        if self.seen.contains(&word.text) {
            return Err(self.words.error(word, Problem::Twice));
        }
        self.seen.push(word.text);
        match word.text {
            "log" => self.rule.log = true,
            "mirror" => self.rule.mirror = Some(self.words.need("the name of a port")?.text.into()),
            "link" => self.rule.link = Some(self.words.need("the name of a link")?.text.into()),
            _ => {
                let value = self.words.need("a rate")?;
                self.rule.limit = Some(rate(&self.words, &value)?);
            }
        }
        Ok(())
    }

    fn protocol(&mut self) -> Result<(), TextError> {
        let Some(word) = self.words.peek().cloned() else { return Ok(()) };
        let found = PROTOCOLS.iter().find(|(name, _)| *name == word.text && !word.quoted);
        if let Some((_, protocols)) = found {
            self.rule.matches.protocols = *protocols;
            self.words.take();
        } else if self.words.accept("proto") {
            let value = self.words.need("a protocol number")?;
            let number = number(&self.words, &value, (0, 255), "a protocol number")?;
            self.rule.matches.protocols = Protocols::Above(Protocol(number as u8));
        } else if word.quoted || !OPTIONS.contains(&word.text) {
            let names: Vec<&str> = PROTOCOLS.iter().map(|(name, _)| *name).collect();
            let known = [&names[..], OPTIONS, ACTIONS].concat();
            return Err(self.words.unknown(&word, "a protocol, `from`, `to` or an option", &known));
        }
        Ok(())
    }

    fn option(&mut self, word: &Word<'t>) -> Result<(), TextError> {
        if word.quoted || !OPTIONS.contains(&word.text) || word.text == "proto" {
            return Err(self.words.unknown(word, "an option of a rule", OPTIONS));
        }
        if matches!(word.text, "limit" | "link" | "log") {
            return self.effect(word);
        }
        if self.seen.contains(&word.text) {
            return Err(self.words.error(word, Problem::Twice));
        }
        self.seen.push(word.text);
        match word.text {
            "from" => self.rule.matches.from = self.side()?,
            "to" => {
                self.rule.matches.to = self.side()?;
                if !self.rule.matches.to.hosts.groups.is_empty() {
                    let why = "the receiver's group is not known yet; \
                               write `from group:` into the rules of that group";
                    return Err(self.words.error(word, Problem::Invalid(why)));
                }
            }
            "in" | "out" => self.direction(word)?,
            "stateless" => self.rule.stateless = true,
            "fragment" => self.rule.matches.fragment = true,
            _ => self.valued(word.text)?,
        }
        Ok(())
    }

    fn direction(&mut self, word: &Word<'t>) -> Result<(), TextError> {
        let direction = if word.text == "in" { Direction::In } else { Direction::Out };
        if self.rule.matches.direction.is_some_and(|other| other != direction) {
            let why = "the rule has the other direction, too; leave both out for both";
            return Err(self.words.error(word, Problem::Invalid(why)));
        }
        self.rule.matches.direction = Some(direction);
        Ok(())
    }

    /// Addresses, and ports if there are any.
    fn side(&mut self) -> Result<Side, TextError> {
        let word = self.words.need("an address, `any` or `me`")?;
        let hosts: Hosts = hosts(&self.words, &word)?;
        let next = self.words.peek().cloned();
        let is_port = |word: &Word<'_>| !word.quoted && !OPTIONS.contains(&word.text);
        let ports = match next.filter(is_port) {
            Some(word) => {
                self.words.take();
                port_ranges(&self.words, &word)?
            }
            None => Vec::new(),
        };
        Ok(Side { hosts, ports })
    }

    /// An option with a value.
    fn valued(&mut self, option: &str) -> Result<(), TextError> {
        let words = &mut self.words;
        let word = words.need("a value")?;
        let matches = &mut self.rule.matches;
        let mac = |words: &Words<'_>| {
            let what = Problem::Expected("a MAC address such as 02:00:00:00:00:01");
            word.text.parse().map_err(|_| words.error(&word, what))
        };
        match option {
            "flags" => matches.flags = Some(flags(words, &word)?),
            "icmptypes" => matches.icmp_types = icmp_types(words, &word)?,
            "src-mac" => matches.source_mac = Some(mac(words)?),
            "dst-mac" => matches.destination_mac = Some(mac(words)?),
            "vlan" => {
                let ranges = ranges(words, &word, 4094, "a VLAN", |_| None)?;
                matches.vlans = ranges.iter().map(|r| (r.0 as u16, r.1 as u16)).collect();
            }
            "ethertype" => {
                let known = ETHERTYPES.iter().find(|(name, _)| *name == word.text);
                let what = "an EtherType such as 0x88cc";
                let value = || number(words, &word, (0x600, 0xffff), what).map(|kind| kind as u16);
                matches.ethertype = Some(known.map_or_else(value, |(_, kind)| Ok(*kind))?);
            }
            "length" => {
                let ranges = ranges(words, &word, 65_535, "a length or a range", |_| None)?;
                let [(least, most)] = ranges[..] else {
                    return Err(words.error(&word, Problem::Expected("one range of lengths")));
                };
                matches.length = Some((least as u32, most as u32));
            }
            "prob" => matches.probability = Some(share(words, &word)?),
            _ if word.quoted => matches.bpf = Some(word.text.into()),
            _ => return Err(words.error(&word, Problem::Expected("an expression in quotes"))),
        }
        Ok(())
    }

    /// What only the whole line shows.
    fn check(&self, first: &Word<'t>) -> Result<(), TextError> {
        let (matches, rule) = (&self.rule.matches, &self.rule);
        let has_ports = !matches.from.ports.is_empty() || !matches.to.ports.is_empty();
        let with_ports = [Protocol::TCP, Protocol::UDP, Protocol::SCTP].map(Protocols::Above);
        let icmp = [Protocol::ICMP, Protocol::ICMPV6].map(Protocols::Above);
        let me = (matches.from.hosts.me, matches.to.hosts.me);
        let why = if has_ports && !with_ports.contains(&matches.protocols) {
            "ports need the protocol tcp, udp or sctp"
        } else if matches.flags.is_some() && matches.protocols != with_ports[0] {
            "`flags` needs the protocol tcp"
        } else if !matches.icmp_types.is_empty() && !icmp.contains(&matches.protocols) {
            "`icmptypes` needs the protocol icmp or icmp6"
        } else if matches.protocols == Protocols::Arp && matches.needs_ip() {
            "arp has no IP addresses or ports that rules look at"
        } else if family(matches).is_none() {
            "the rule mixes IPv4 and IPv6, so it never matches"
        } else if !matches.applies(Direction::In) && !matches.applies(Direction::Out) {
            if me == (true, true) {
                "a frame from `me` does not come back to `me`"
            } else {
                "`me` is the receiver of frames `in`, and the sender of frames `out`"
            }
        } else if rule.stateless && rule.action != Action::Allow {
            "only `allow` may be `stateless`"
        } else {
            return Ok(());
        };
        Err(self.words.error(first, Problem::Invalid(why)))
    }
}

/// Whether IPv4 and IPv6 packets can match; `None` if neither can.
pub(crate) fn family(matches: &Matches) -> Option<(bool, bool)> {
    let side = |side: &Side| {
        let open = side.hosts.me || !side.hosts.tables.is_empty() || !side.hosts.groups.is_empty();
        let prefixes = &side.hosts.prefixes;
        let any = open || prefixes.is_empty();
        (
            any || prefixes.iter().any(|p| p.ip().is_ipv4()),
            any || prefixes.iter().any(|p| p.ip().is_ipv6()),
        )
    };
    let own = match matches.protocols {
        Protocols::Ipv4 => (true, false),
        Protocols::Ipv6 => (false, true),
        _ => (true, true),
    };
    let sides = [side(&matches.from), side(&matches.to)];
    let both = sides.iter().fold(own, |both, side| (both.0 && side.0, both.1 && side.1));
    (both.0 || both.1).then_some(both)
}
