//! The rules between the ports of a switch: compiled here, off the reactor, carried out by the data
//! process.
//!
//! The compiled rules and the memory for connections are kept, so the next data process has them
//! before it gathers a frame. Rules that do not compile change nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use dataplane::config::{Policy, PortId};
use dataplane::control::{Answer, Command, LoggedFrame, MAX_HITS};
use frame::bpf;
use rules::{Budget, Bundle, BundlePort, CompileError, Layout, Program, Rule};
use shmem::{Memfd, Pages};

use super::super::quota::{Charge, File, Item};
use super::super::{locked, system};
use super::Switch;
use crate::api::{
    ApiError, ConnectionInfo, ConnectionsInfo, ErrorCode, PolicyInfo, RuleInfo, Topology,
};

/// Connections of a switch.
const CONNECTIONS: usize = 65_536;
/// How long compiling may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Groups and tables, as all switches have them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuleBook {
    /// The rules of each group, as text and as they are meant.
    groups: BTreeMap<String, (Vec<String>, Vec<Rule>)>,
    tables: BTreeMap<String, Vec<rules::Prefix>>,
    /// The programs of expressions.
    pub filters: BTreeMap<String, bpf::Program>,
}

impl RuleBook {
    /// The groups and tables of a topology, which has been checked. `filters` are the programs of
    /// expressions that are known.
    #[must_use]
    pub fn of(topology: &Topology, mut filters: BTreeMap<String, bpf::Program>) -> Self {
        let groups = topology.group.iter().map(|(name, group)| {
            (name.clone(), (group.rules.clone(), group.parse().unwrap_or_default()))
        });
        let tables = topology.table.iter();
        let tables = tables.map(|(name, t)| (name.clone(), t.parse().unwrap_or_default()));
        let groups: BTreeMap<_, (Vec<String>, Vec<Rule>)> = groups.collect();
        let used: BTreeSet<&String> = expressions(&groups).map(|(_, _, text)| text).collect();
        filters.retain(|text, _| used.contains(text));
        Self { tables: tables.collect(), filters, groups }
    }

    /// The expressions without a program.
    #[must_use]
    pub fn missing(&self) -> Vec<String> {
        let all: BTreeSet<&String> = expressions(&self.groups).map(|(_, _, text)| text).collect();
        all.into_iter().filter(|text| !self.filters.contains_key(*text)).cloned().collect()
    }

    /// Where an expression stands: its group and its line.
    #[must_use]
    pub fn place_of(&self, expression: &str) -> String {
        let mut places = expressions(&self.groups).filter(|(_, _, text)| *text == expression);
        let place = places.next().map(|(name, line, _)| format!("group.{name}, line {line}"));
        place.unwrap_or_default()
    }

    fn policy(&self, groups: &[String]) -> Result<rules::Policy, CompileError> {
        let numbers = self.groups.keys().zip(0..).map(|(name, number)| (name.clone(), number));
        let tables = self.tables.keys().zip(0..).map(|(name, number)| (name.clone(), number));
        let mut policy = rules::Policy {
            groups: numbers.collect(),
            tables: tables.collect(),
            ..rules::Policy::default()
        };
        for name in groups {
            let (_, rules) =
                self.groups.get(name).ok_or_else(|| CompileError::Group(name.clone()))?;
            policy.push(rules);
        }
        for text in policy.rules.iter().filter_map(|rule| rule.matches.bpf.as_ref()) {
            let filter = self.filters.get(text).map(|filter| (text.clone(), filter.clone()));
            policy.filters.extend(filter);
        }
        Ok(policy)
    }
}

/// The expressions of groups: group, line and text.
fn expressions(
    groups: &BTreeMap<String, (Vec<String>, Vec<Rule>)>,
) -> impl Iterator<Item = (&String, usize, &String)> {
    groups.iter().flat_map(|(name, (_, rules))| {
        rules.iter().filter_map(move |rule| Some((name, rule.line, rule.matches.bpf.as_ref()?)))
    })
}

/// What a port with rules is asked to be.
#[derive(Clone, Debug)]
struct Wanted {
    id: PortId,
    groups: Vec<String>,
    ips: Vec<IpAddr>,
}

/// The rules that a switch has.
#[derive(Debug)]
pub(super) struct Firewall {
    book: Arc<RuleBook>,
    /// The program of each list of groups, by number.
    programs: Vec<(Vec<String>, Program)>,
    ports: Vec<BundlePort>,
    generation: u16,
    bundle: Memfd,
    connections: Memfd,
    /// For `connections`.
    charge: Charge,
    /// Some rule says `log`.
    logs: bool,
}

impl Firewall {
    /// The rules of all programs, with their groups.
    fn rules(&self) -> impl Iterator<Item = (&String, &Rule)> {
        let names = self.programs.iter().flat_map(|(groups, _)| groups);
        names.flat_map(|name| {
            let rules = self.book.groups.get(name).map(|(_, rules)| rules);
            rules.into_iter().flatten().map(move |rule| (name, rule))
        })
    }

    /// Where a rule stands: its group and its line.
    fn place_of(&self, (program, rule): (u16, u32)) -> String {
        let groups = self.programs.get(usize::from(program)).map(|(groups, _)| groups);
        let rules = groups.into_iter().flatten().flat_map(|name| {
            let rules = self.book.groups.get(name).map(|(_, rules)| rules);
            rules.into_iter().flatten().map(move |rule| format!("group.{name}, line {}", rule.line))
        });
        rules.into_iter().nth(rule as usize).unwrap_or_default()
    }
}

impl Switch {
    /// Makes the rules what groups, tables and ports say, and has the data process carry them out.
    ///
    /// # Errors
    /// They are too large, or name what does not exist: the earlier rules stay.
    pub async fn renew_rules(&mut self) -> Result<(), ApiError> {
        let book = Arc::clone(&locked(&self.environment.rules));
        let wanted: Vec<Wanted> = (self.ports.values())
            .filter(|port| !port.spec.policy.groups.is_empty())
            .map(|port| {
                let policy = &port.spec.policy;
                Wanted { id: port.id, groups: policy.groups.clone(), ips: policy.ips.clone() }
            })
            .collect();
        if wanted.is_empty() && self.firewall.is_none() {
            return Ok(());
        }
        let earlier = self.firewall.as_ref();
        let known = match earlier.filter(|own| Arc::ptr_eq(&own.book, &book)) {
            Some(own) => own.programs.clone(),
            None => Vec::new(),
        };
        let generation = earlier.map_or_else(first_generation, |own| own.generation);
        let generation = generation.wrapping_add(1).max(1);
        let its = Arc::clone(&book);
        let compiling = tokio::task::spawn_blocking(move || compile(&its, known, &wanted));
        let compiled = self.patient(compiling).await;
        let compiled = compiled.map_err(|e| system("Cannot compile rules", e.into()))?;
        let (programs, ports) = compiled.map_err(|e| refused(&self.name, &e))?;
        let tables = book.tables.values().cloned().collect();
        let compiled = programs.iter().map(|(_, program)| program.clone()).collect();
        let bundle = Bundle { generation, programs: compiled, ports: ports.clone(), tables };
        let bundle = file_of(&bundle.to_bytes())?;
        let (connections, charge) = match self.firewall.take() {
            Some(own) => (own.connections, own.charge),
            None => self.memory_for_connections()?,
        };
        let own = Firewall {
            book,
            programs,
            ports,
            generation,
            bundle,
            connections,
            charge,
            logs: false,
        };
        let logs = own.rules().any(|(_, rule)| rule.log);
        self.firewall = Some(Firewall { logs, ..own });
        self.send_rules().await
    }

    /// Renews the rules after a port's settings were changed from `old`, if these say otherwise. A
    /// port whose rules are refused keeps its earlier groups.
    ///
    /// # Errors
    /// As [`renew_rules`](Self::renew_rules).
    pub(super) async fn renew_rules_of(&mut self, name: &str, old: Policy) -> Result<(), ApiError> {
        let policy = &self.port(name)?.spec.policy;
        if (&policy.groups, &policy.ips) == (&old.groups, &old.ips) {
            return Ok(());
        }
        let renewed = self.renew_rules().await;
        if renewed.is_err() {
            let policy = &mut self.port_mut(name)?.spec.policy;
            (policy.groups, policy.ips) = (old.groups, old.ips);
        }
        renewed
    }

    /// The memory for connections, which the switch's user is charged for.
    fn memory_for_connections(&self) -> Result<(Memfd, Charge), ApiError> {
        let connections = memory("toklat-connections", Layout::words(CONNECTIONS) * 8)?;
        let file = File::of(&connections).map_err(|e| system("Cannot make memory", e))?;
        let user = self.access.trusted_user();
        let charge = self.environment.ledger.charge(user, Item::Memory(file))?;
        Ok((connections, charge))
    }

    /// Sends the rules to the data process.
    pub(super) async fn send_rules(&self) -> Result<(), ApiError> {
        let Some(own) = &self.firewall else { return Ok(()) };
        let files = [own.bundle.as_fd(), own.connections.as_fd()];
        self.command(&Command::SetRules, &files).await.map(drop)
    }

    /// The rules of the switch's ports, and how often each has matched.
    ///
    /// # Errors
    /// The data process refused.
    pub async fn policies(&self) -> Result<Vec<PolicyInfo>, ApiError> {
        let Some(own) = &self.firewall else { return Ok(Vec::new()) };
        let mut policies = Vec::new();
        for (number, (groups, program)) in own.programs.iter().enumerate() {
            let hits = self.hits(number as u16, program.rules()).await?;
            let ports = own.ports.iter().filter(|port| usize::from(port.program) == number);
            let ports = ports.map(|port| self.name_of(port.id)).collect();
            let rules = groups.iter().flat_map(|name| {
                let (text, rules) = own.book.groups.get(name).cloned().unwrap_or_default();
                let text = move |rule: &Rule| text.get(rule.line - 1).cloned().unwrap_or_default();
                rules.into_iter().map(move |rule| (name.clone(), text(&rule)))
            });
            let rules = rules.enumerate().map(|(at, (group, rule))| RuleInfo {
                group,
                rule,
                frames: hits.get(at).copied().unwrap_or(0),
            });
            let rules = rules.collect();
            policies.push(PolicyInfo { groups: groups.clone(), ports, rules });
        }
        policies.retain(|policy: &PolicyInfo| !policy.ports.is_empty());
        Ok(policies)
    }

    async fn hits(&self, program: u16, rules: usize) -> Result<Vec<u64>, ApiError> {
        let mut all = Vec::new();
        while all.len() < rules {
            let from = all.len() as u32;
            match self.command(&Command::ReadHits { program, from }, &[]).await? {
                Some(Answer::Hits { hits }) if !hits.is_empty() => all.extend(hits),
                _ => break,
            }
            debug_assert!(all.len() % MAX_HITS == 0 || all.len() >= rules);
        }
        Ok(all)
    }

    /// Logs frames of rules with `log`, if there are such rules.
    pub async fn log_frames(&self) {
        let Some(own) = self.firewall.as_ref().filter(|own| own.logs) else { return };
        // A data process that is being replaced has none.
        let answer = self.command(&Command::ReadLog, &[]).await;
        let Ok(Some(Answer::Logged { list, others })) = answer else { return };
        for (at, frame) in list.iter().enumerate() {
            let (switch, port) = (&self.name, self.name_of(frame.port));
            let rule = own.place_of(frame.rule);
            let way = if frame.sent { "out" } else { "in" };
            let verdict = if frame.allowed { "allowed" } else { "denied" };
            let others = if at == 0 { others } else { 0 };
            tracing::info!(switch, port, rule, way, frame = packet(frame), others, "{verdict}");
        }
    }

    /// Lets all rules count from 0.
    ///
    /// # Errors
    /// No data process runs.
    pub async fn zero_rules(&self) -> Result<(), ApiError> {
        self.command_unrecorded(&Command::ZeroHits).await
    }

    /// The connections that rules have admitted: how many there are, and the first of them.
    ///
    /// # Errors
    /// No data process runs.
    pub async fn connections(&self) -> Result<ConnectionsInfo, ApiError> {
        let answer = self.command(&Command::ReadConnections, &[]).await?;
        let Some(Answer::Connections { all, refused, evicted, list }) = answer else {
            return Err(self.is_starting());
        };
        let list = list.into_iter().map(|entry| ConnectionInfo {
            protocol: entry.protocol,
            source: entry.source.0,
            source_port: entry.source.1,
            destination: entry.destination.0,
            destination_port: entry.destination.1,
            vlan: entry.vlan,
            from: self.name_of(entry.from),
            to: entry.to.map(|to| self.name_of(to)),
            state: entry.state,
            expires_s: entry.expires_s,
        });
        Ok(ConnectionsInfo { connections: all, refused, evicted, list: list.collect() })
    }

    /// Adds prefixes to a table of the running switch and removes others, without compiling.
    ///
    /// # Errors
    /// There is no memory, or the data process refused.
    pub async fn change_table(
        &mut self,
        name: &str,
        add: Vec<String>,
        remove: Vec<String>,
    ) -> Result<(), ApiError> {
        let Some(own) = &mut self.firewall else { return Ok(()) };
        let book = Arc::clone(&locked(&self.environment.rules));
        let Some(table) = own.book.tables.keys().position(|known| known == name) else {
            return self.renew_rules().await;
        };
        let programs = own.programs.iter().map(|(_, program)| program.clone()).collect();
        let tables = book.tables.values().cloned().collect();
        let (generation, ports) = (own.generation, own.ports.clone());
        own.bundle = file_of(&Bundle { generation, programs, ports, tables }.to_bytes())?;
        own.book = book;
        let table = table as u32;
        for (add, remove) in in_parts(add, remove) {
            self.command(&Command::ChangeTable { table, add, remove }, &[]).await?;
        }
        Ok(())
    }
}

/// A packet in a line of the log.
fn packet(frame: &LoggedFrame) -> String {
    let LoggedFrame { ip, protocol, ports, len, .. } = frame;
    let Some((from, to)) = ip else { return format!("no IP, {len} bytes") };
    let kind = protocol.map_or_else(
        || "ip".into(),
        |number| match number {
            1 => "icmp".into(),
            6 => "tcp".into(),
            17 => "udp".into(),
            58 => "icmp6".into(),
            other => format!("protocol {other}"),
        },
    );
    match ports {
        Some((source, destination)) => {
            let (from, to) = (SocketAddr::new(*from, *source), SocketAddr::new(*to, *destination));
            format!("{kind} {from} > {to}, {len} bytes")
        }
        None => format!("{kind} {from} > {to}, {len} bytes"),
    }
}

/// Lists in parts that fit a message.
fn in_parts(
    add: Vec<String>,
    remove: Vec<String>,
) -> impl Iterator<Item = (Vec<String>, Vec<String>)> {
    const PART: usize = 1000;
    let split = |list: Vec<String>| -> Vec<Vec<String>> {
        list.chunks(PART).map(<[String]>::to_vec).collect()
    };
    let removed = split(remove).into_iter().map(|part| (Vec::new(), part));
    removed.chain(split(add).into_iter().map(|part| (part, Vec::new())))
}

/// A number that an earlier daemon probably did not use last.
fn first_generation() -> u16 {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    since.as_millis() as u16
}

type Compiled = (Vec<(Vec<String>, Program)>, Vec<BundlePort>);

/// The programs of all lists of groups that ports have.
fn compile(
    book: &RuleBook,
    known: Vec<(Vec<String>, Program)>,
    wanted: &[Wanted],
) -> Result<Compiled, CompileError> {
    let start = Instant::now();
    let stop = || start.elapsed() > PATIENCE;
    let mut programs = known;
    programs.retain(|(groups, _)| wanted.iter().any(|port| port.groups == *groups));
    let mut ports = Vec::new();
    for port in wanted {
        let found = programs.iter().position(|(groups, _)| *groups == port.groups);
        let number = match found {
            Some(number) => number,
            None => {
                let program = rules::compile(&book.policy(&port.groups)?, &Budget::new(&stop))?;
                programs.push((port.groups.clone(), program));
                programs.len() - 1
            }
        };
        let own = |name: &String| book.groups.keys().position(|known| known == name);
        let groups = port.groups.iter().filter_map(own).fold(0, |bits, number| bits | 1 << number);
        let (id, ips) = (port.id, port.ips.clone());
        ports.push(BundlePort { id, program: number as u16, groups, ips });
    }
    Ok((programs, ports))
}

fn refused(switch: &str, error: &CompileError) -> ApiError {
    let code = match error {
        CompileError::TooLarge(_) | CompileError::TooLong => ErrorCode::Limit,
        _ => ErrorCode::NotFound,
    };
    let remedy = match error {
        CompileError::TooLarge(_) | CompileError::TooLong => {
            "use tables for long lists of addresses; the earlier rules stay"
        }
        _ => "see `toklat fw show`; the earlier rules stay",
    };
    ApiError::new(code, format!("{switch}: {error}"), remedy)
}

fn memory(name: &str, len: usize) -> Result<Memfd, ApiError> {
    Memfd::create(name, len, Pages::Small)
        .map_err(|e| system("Cannot make memory for rules", std::io::Error::other(e)))
}

fn file_of(bytes: &[u8]) -> Result<Memfd, ApiError> {
    let file = memory("toklat-rules", bytes.len().max(1))?;
    let written = rustix::io::pwrite(&file, bytes, 0);
    match written {
        Ok(len) if len == bytes.len() => Ok(file),
        Ok(_) => Err(system("Cannot write rules", std::io::ErrorKind::WriteZero.into())),
        Err(error) => Err(system("Cannot write rules", error.into())),
    }
}
