//! Files of FreeBSD's ipfw(8), as far as we have what they ask for. A word that we lack is an error
//! at that word.
//!
//! A rule without `keep-state` is stateless there, and the first rule without a match is number
//! 65535, which denies.

use std::collections::BTreeMap;

use frame::Protocol;

use crate::packet::Direction;
use crate::rule::{Action, Hosts, Matches, Prefix, Protocols, Rate, Rule, Side};
use crate::text::{self, Problem, TextError, Word, Words};

/// The number of the last rule.
const LAST: u32 = 65_535;
/// The distance of rules without a number.
const STEP: u32 = 100;
const COMMANDS: &[&str] = &["add", "table", "pipe", "queue", "flush", "-q", "-f", "ipfw"];
const ACTIONS: &[&str] = &[
    "allow",
    "accept",
    "pass",
    "permit",
    "deny",
    "drop",
    "reset",
    "unreach",
    "count",
    "skipto",
    "check-state",
    "pipe",
    "queue",
];
const OPTIONS: &[&str] = &[
    "in",
    "out",
    "keep-state",
    "setup",
    "tcpflags",
    "icmptypes",
    "icmp6types",
    "frag",
    "src-port",
    "dst-port",
    "src-ip",
    "dst-ip",
];

/// What a file of ipfw says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ipfw {
    /// The rules in the order of their numbers.
    pub rules: Vec<Rule>,
    /// The entries of tables.
    pub tables: BTreeMap<String, Vec<Prefix>>,
    /// Pipes and queues, by the names that rules use.
    pub pipes: BTreeMap<String, Pipe>,
}

/// What `pipe N config` says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pipe {
    /// Bits a second.
    pub bandwidth: Option<u64>,
    /// Milliseconds.
    pub delay: Option<u32>,
    /// Frames.
    pub queue: Option<u32>,
    /// The share of lost frames, out of 2^32.
    pub loss: Option<u32>,
    /// The pipe of a queue.
    pub of: Option<u32>,
}

/// Reads a file of ipfw commands, with or without `ipfw` in front of each.
///
/// # Errors
/// Names the line and the word that is wrong, or that we lack.
pub fn parse_ipfw<'t>(lines: impl IntoIterator<Item = &'t str>) -> Result<Ipfw, TextError> {
    let mut file = Ipfw::default();
    let mut numbered: Vec<(u32, Rule)> = Vec::new();
    for (text, line) in lines.into_iter().zip(1..) {
        let mut words = Words::of(text, line)?;
        while ["ipfw", "-q", "-f"].iter().any(|word| words.accept(word)) {}
        let Some(command) = words.take() else { continue };
        match command.text {
            "flush" => {}
            "add" => add(&mut words, &mut numbered)?,
            "table" => table(&mut words, &mut file)?,
            "pipe" | "queue" => configure(&mut words, command.text, &mut file)?,
            _ => return Err(words.unknown(&command, "a command of ipfw that we have", COMMANDS)),
        }
        if let Some(rest) = words.take() {
            return Err(words.error(&rest, Problem::Expected("the end of the line")));
        }
    }
    numbered.sort_by_key(|(number, _)| *number);
    file.rules = resolve(numbered)?;
    Ok(file)
}

/// `skipto` leads to the first rule whose number is not smaller.
fn resolve(numbered: Vec<(u32, Rule)>) -> Result<Vec<Rule>, TextError> {
    let numbers: Vec<u32> = numbered.iter().map(|(number, _)| *number).collect();
    let mut rules: Vec<Rule> = numbered.into_iter().map(|(_, rule)| rule).collect();
    for at in 0..rules.len() {
        let Action::Skip(text) = &rules[at].action else { continue };
        let target = text.parse().ok().and_then(|to: u32| numbers.iter().position(|n| *n >= to));
        let Some(target) = target.filter(|target| *target > at) else {
            let problem = Problem::Invalid("no later rule has this number");
            let (line, word) = (rules[at].line, text.clone());
            return Err(TextError { line, word, column: 1, problem, near: None });
        };
        let label = format!("r{}-{target}", numbers[target]);
        let label = rules[target].label.get_or_insert(label).clone();
        rules[at].action = Action::Skip(label);
    }
    Ok(rules)
}

fn number(words: &mut Words<'_>, most: u64, what: &'static str) -> Result<u32, TextError> {
    let word = words.need(what)?;
    text::number(words, &word, (0, most), what).map(|number| number as u32)
}

/// `add [NUMBER] [prob P] ACTION [log] PROTOCOL from A to B [OPTIONS]`.
fn add(words: &mut Words<'_>, numbered: &mut Vec<(u32, Rule)>) -> Result<(), TextError> {
    let is_number = |word: &Word<'_>| word.text.bytes().all(|b| b.is_ascii_digit());
    let own = match words.peek().is_some_and(is_number) {
        true => number(words, u64::from(LAST), "a number of a rule")?,
        false => {
            let last = numbered.iter().map(|(number, _)| *number).max().unwrap_or(0);
            (last + STEP).min(LAST)
        }
    };
    let mut rule = Rule {
        label: None,
        action: Action::Next,
        stateless: false,
        log: false,
        mirror: None,
        limit: None,
        link: None,
        matches: Matches::default(),
        line: words.line,
    };
    if words.accept("prob") {
        let value = words.need("a probability")?;
        rule.matches.probability = Some(text::share(words, &value)?);
    }
    let Some(action) = action(words)? else { return Ok(()) };
    let (action, link) = action;
    (rule.action, rule.link, rule.stateless) = (action, link, true);
    if words.accept("log") {
        rule.log = true;
        if words.accept("logamount") {
            number(words, u64::from(u32::MAX), "a number of lines")?;
        }
    }
    body(words, &mut rule)?;
    rule.stateless &= rule.action == Action::Allow;
    numbered.push((own, rule));
    Ok(())
}

/// The action and the pipe; none for `check-state`: connections are always looked for first.
fn action(words: &mut Words<'_>) -> Result<Option<(Action, Option<String>)>, TextError> {
    let word = words.need("an action")?;
    Ok(Some(match word.text {
        "allow" | "accept" | "pass" | "permit" => (Action::Allow, None),
        "deny" | "drop" => (Action::Deny, None),
        "reset" | "unreach" => {
            if word.text == "unreach" {
                words.need("a code")?;
            }
            (Action::Reset, None)
        }
        "count" => (Action::Next, None),
        "skipto" => {
            let target = number(words, u64::from(LAST), "a number of a rule")?;
            (Action::Skip(target.to_string()), None)
        }
        // With net.inet.ip.fw.one_pass, which is the default, a pipe ends the search.
        kind @ ("pipe" | "queue") => {
            let pipe = number(words, u64::from(LAST), "the number of a pipe")?;
            (Action::Allow, Some(format!("{kind}{pipe}")))
        }
        "check-state" => return Ok(None),
        _ => return Err(words.unknown(&word, "an action of ipfw that we have", ACTIONS)),
    }))
}

fn body(words: &mut Words<'_>, rule: &mut Rule) -> Result<(), TextError> {
    let word = words.need("a protocol")?;
    rule.matches.protocols = match word.text {
        "ip" | "all" => Protocols::All,
        "ip4" | "ipv4" => Protocols::Ipv4,
        "ip6" | "ipv6" => Protocols::Ipv6,
        "tcp" => Protocols::Above(Protocol::TCP),
        "udp" => Protocols::Above(Protocol::UDP),
        "icmp" => Protocols::Above(Protocol::ICMP),
        "ipv6-icmp" | "icmp6" => Protocols::Above(Protocol::ICMPV6),
        "sctp" => Protocols::Above(Protocol::SCTP),
        _ => {
            let number = text::number(words, &word, (0, 255), "a protocol that we have")?;
            Protocols::Above(Protocol(number as u8))
        }
    };
    for (name, to) in [("from", false), ("to", true)] {
        let word = words.need(if to { "`to`" } else { "`from`" })?;
        if word.text != name {
            return Err(words.error(&word, Problem::Expected(if to { "`to`" } else { "`from`" })));
        }
        let side = side(words)?;
        *(if to { &mut rule.matches.to } else { &mut rule.matches.from }) = side;
    }
    while let Some(word) = words.take() {
        option(words, &word, rule)?;
    }
    check(words, rule)
}

/// What ipfw accepts, and never matches.
fn check(words: &Words<'_>, rule: &Rule) -> Result<(), TextError> {
    let matches = &rule.matches;
    let ports = !matches.from.ports.is_empty() || !matches.to.ports.is_empty();
    let with = [Protocol::TCP, Protocol::UDP, Protocol::SCTP].map(Protocols::Above);
    let never = !matches.applies(Direction::In) && !matches.applies(Direction::Out);
    let why = match (ports && !with.contains(&matches.protocols), never) {
        (true, _) => "ports need the protocol tcp, udp or sctp",
        (_, true) => "`me` receives what goes in and sends what goes out",
        _ => return Ok(()),
    };
    let (line, problem) = (words.line, Problem::Invalid(why));
    Err(TextError { line, word: "add".into(), column: 1, problem, near: None })
}

/// An address, `any`, `me`, `table(N)`, and ports.
fn side(words: &mut Words<'_>) -> Result<Side, TextError> {
    let word = words.need("an address")?;
    let hosts = hosts(words, &word)?;
    let is_port = |word: &Word<'_>| {
        word.text != "to" && !OPTIONS.contains(&word.text) && !word.text.starts_with("not")
    };
    let mut ports = Vec::new();
    if words.peek().is_some_and(|word| {
        is_port(word) && word.text.starts_with(|c: char| c.is_ascii_digit()) || is_service(word)
    }) {
        let word = words.need("a port")?;
        ports = text::port_ranges(words, &word)?;
    }
    Ok(Side { hosts, ports })
}

fn is_service(word: &Word<'_>) -> bool {
    ["ssh", "http", "https", "domain", "smtp", "ntp", "ftp", "imap", "snmp", "ldap"]
        .iter()
        .any(|name| word.text.split(',').next() == Some(name))
}

fn hosts(words: &Words<'_>, word: &Word<'_>) -> Result<Hosts, TextError> {
    let named = word.text.strip_prefix("table(").and_then(|rest| rest.strip_suffix(')'));
    match named {
        Some(name) if !name.is_empty() && !name.contains(',') => {
            Ok(Hosts { tables: vec![name.into()], ..Hosts::default() })
        }
        _ => {
            let hosts = text::hosts(words, word)?;
            let ours = !hosts.tables.is_empty() || !hosts.groups.is_empty();
            match ours {
                true => Err(words.error(word, Problem::Expected("an address of ipfw"))),
                false => Ok(hosts),
            }
        }
    }
}

fn option(words: &mut Words<'_>, word: &Word<'_>, rule: &mut Rule) -> Result<(), TextError> {
    let matches = &mut rule.matches;
    match word.text {
        "in" => matches.direction = Some(Direction::In),
        "out" => matches.direction = Some(Direction::Out),
        "keep-state" => rule.stateless = false,
        "setup" => matches.flags = Some((0x12, 2)),
        "frag" => matches.fragment = true,
        "tcpflags" => {
            let value = words.need("flags")?;
            matches.flags = Some(text::flags(words, &value)?);
        }
        "icmptypes" | "icmp6types" => {
            let value = words.need("types of messages")?;
            matches.icmp_types = text::icmp_types(words, &value)?;
        }
        "src-port" | "dst-port" => {
            let value = words.need("a port")?;
            let ports = text::port_ranges(words, &value)?;
            *(if word.text == "src-port" {
                &mut matches.from.ports
            } else {
                &mut matches.to.ports
            }) = ports;
        }
        "src-ip" | "dst-ip" => {
            let value = words.need("an address")?;
            let own = hosts(words, &value)?;
            *(if word.text == "src-ip" {
                &mut matches.from.hosts
            } else {
                &mut matches.to.hosts
            }) = own;
        }
        _ => return Err(words.unknown(word, "an option of ipfw that we have", OPTIONS)),
    }
    Ok(())
}

/// `table N add PREFIX`, `table N create`.
fn table(words: &mut Words<'_>, file: &mut Ipfw) -> Result<(), TextError> {
    let name = words.need("a table")?.text.to_owned();
    let what = words.need("`add` or `create`")?;
    let entries = file.tables.entry(name).or_default();
    match what.text {
        "create" | "flush" => {}
        "add" => {
            let word = words.need("an address")?;
            let prefix = word
                .text
                .parse()
                .map_err(|()| words.error(&word, Problem::Expected("an address")))?;
            entries.push(prefix);
        }
        _ => return Err(words.unknown(&what, "`add` or `create`", &["add", "create", "flush"])),
    }
    Ok(())
}

/// `pipe N config bw 10Mbit/s delay 20 queue 50 plr 0.1`, `queue N config pipe M`.
fn configure(words: &mut Words<'_>, kind: &str, file: &mut Ipfw) -> Result<(), TextError> {
    const WORDS: &[&str] = &["config", "bw", "delay", "queue", "plr", "pipe"];
    let own = number(words, u64::from(LAST), "the number of a pipe")?;
    let config = words.need("`config`")?;
    if config.text != "config" {
        return Err(words.unknown(&config, "`config`", WORDS));
    }
    let pipe = file.pipes.entry(format!("{kind}{own}")).or_default();
    while let Some(word) = words.take() {
        match word.text {
            "bw" => pipe.bandwidth = Some(bandwidth(words)?),
            "delay" => pipe.delay = Some(number(words, 10_000, "milliseconds")?),
            "queue" => pipe.queue = Some(number(words, 1 << 20, "a number of frames")?),
            "plr" => {
                let value = words.need("a share")?;
                pipe.loss = Some(text::share(words, &value)?);
            }
            "pipe" if kind == "queue" => {
                pipe.of = Some(number(words, u64::from(LAST), "the number of a pipe")?)
            }
            _ => return Err(words.unknown(&word, "a setting of a pipe that we have", WORDS)),
        }
    }
    Ok(())
}

/// `10Mbit/s`, or with a blank before the unit.
fn bandwidth(words: &mut Words<'_>) -> Result<u64, TextError> {
    let word = words.need("a bandwidth")?;
    let units = ["bit/s", "Kbit/s", "Mbit/s", "Gbit/s"];
    let mut text = word.text.to_owned();
    if words.peek().is_some_and(|next| units.contains(&next.text)) {
        text.push_str(words.need("a unit")?.text);
    }
    let text = text.replace("Kbit/s", "kb/s").replace("bit/s", "b/s");
    let as_ours = Word { text: &text, ..word.clone() };
    match text::rate(words, &as_ours) {
        Ok(Rate::Bits(rate)) => Ok(rate),
        _ => Err(words.error(&word, Problem::Expected("a bandwidth such as `10Mbit/s`"))),
    }
}
