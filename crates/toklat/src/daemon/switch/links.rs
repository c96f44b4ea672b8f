//! Links of ports: names in place of words, files, memory, counters.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dataplane::config::{Policy, PortId};
use dataplane::control::{Answer, Command};
use link::LinkConfig;
use shmem::{Memfd, Pages};
use tokio::sync::Semaphore;
use topology::{Invalid, LinkSpec, link_words};

use super::super::locked;
use super::super::quota::Item;
use super::{Port, Switch};
use crate::api::{ApiError, ErrorCode, Line, LinkStats, PortKind, PortLink, PortSpec};

/// The largest file that a link may name, in bytes.
const MAX_FILE: u64 = 8 << 20;
/// How long a file system may take to give the files of a port's links.
const PATIENCE: Duration = Duration::from_secs(5);
/// Reads of files at a time. One of a file system that does not answer keeps its permit.
static READERS: Semaphore = Semaphore::const_new(8);

/// The content of files by name.
type Files = BTreeMap<String, Arc<str>>;

/// The links of the topology, by name.
#[derive(Debug, Default)]
pub struct Links(Mutex<BTreeMap<String, LinkSpec>>);

impl Links {
    /// Takes these links into use for later changes of ports.
    pub fn set(&self, links: &BTreeMap<String, LinkSpec>) {
        locked(&self.0).clone_from(links);
    }

    /// A port's policy with words in place of the names of links.
    ///
    /// # Errors
    /// There is no such link.
    pub fn policy(&self, spec: &PortSpec) -> Result<Policy, ApiError> {
        Ok(in_words(spec, &locked(&self.0))?)
    }

    /// The same for a port that is added to a data process, with the files that were read for it; a
    /// port whose links are missing has none.
    pub(super) fn policy_or_none(&self, port: &Port) -> Policy {
        let policy = self.policy(&port.spec).and_then(|policy| {
            match files_of(&policy).iter().find(|file| !port.links.files.contains_key(*file)) {
                Some(file) => Err(wrong(file, "it was not read")),
                None => Ok(policy),
            }
        });
        policy.unwrap_or_else(|error| {
            tracing::error!(port = port.name, %error, "port has no link");
            Policy { tx_link: None, rx_link: None, ..port.spec.rules() }
        })
    }
}

/// A port's policy with words in place of the names of these links.
fn in_words(spec: &PortSpec, links: &BTreeMap<String, LinkSpec>) -> Result<Policy, Invalid> {
    let mut policy = spec.rules();
    for link in [&mut policy.tx_link, &mut policy.rx_link].into_iter().flatten() {
        *link = link_words(link, links)?;
    }
    Ok(policy)
}

/// What the links of a port need.
#[derive(Clone, Debug, Default)]
pub(super) struct PortLinks {
    /// The content of the files that they name.
    files: Files,
    /// Bytes of memory that the line may need for what the port sends, and for what it receives.
    most: [u64; 2],
    /// Bytes that are charged. Impairments are not: each holds no more than its own limit.
    charged: u64,
    /// How the bytes come about, for messages.
    why: String,
}

impl PortLinks {
    /// The needs of a policy's links, which are in words and name these files.
    fn new(policy: &Policy, files: Files, kind: &PortKind) -> Result<Self, ApiError> {
        let (mut links, mut why) = (Self::default(), Vec::new());
        let said = [policy.tx_link.is_some(), policy.rx_link.is_some()];
        for (way, line) in lines(policy).into_iter().enumerate() {
            let Some(mut line) = line else { continue };
            let read = line.read_files(|file| files.get(file).cloned());
            read.map_err(|error| {
                ApiError::new(ErrorCode::BadRequest, error.to_string(), "correct it")
            })?;
            let sends = way == 0;
            links.most[way] = memory_of(&line, sends, kind);
            if said[way] {
                links.charged = links.charged.saturating_add(links.most[way]);
                let (room, way) = (line.room(), if sends { "sending" } else { "receiving" });
                let (queue, flight) = (size(room.queue_memory), size(room.flight_memory));
                why.push(format!("{way}: {queue} in the queue and {flight} on the way"));
            }
        }
        (links.files, links.why) = (files, why.join(", "));
        Ok(links)
    }

    /// The links of a port that was taken over. Files that they name are read later.
    pub(super) fn taken_over(policy: &Policy, kind: &PortKind) -> Self {
        Self::new(policy, Files::new(), kind).unwrap_or_default()
    }

    /// Bytes of memory that the port's user is charged.
    pub(super) const fn charged(&self) -> u64 {
        self.charged
    }
}

/// The lines of a policy whose links are in words: of what the port sends, and what it receives.
fn lines(policy: &Policy) -> [Option<LinkConfig>; 2] {
    let line = |link: &Option<String>, impairment: Option<link::Impairment>| match link {
        Some(words) => words.parse().ok(),
        None => impairment.map(LinkConfig::from),
    };
    let lines =
        [line(&policy.tx_link, policy.tx_impairment), line(&policy.rx_link, policy.rx_impairment)];
    lines.map(|line| line.filter(|line: &LinkConfig| !line.is_off()))
}

/// The names of the files of a policy's links.
fn files_of(policy: &Policy) -> BTreeSet<String> {
    if policy.tx_link.is_none() && policy.rx_link.is_none() {
        return BTreeSet::new();
    }
    lines(policy).iter().flatten().flat_map(LinkConfig::files).map(str::to_owned).collect()
}

fn wrong(file: &str, reason: &str) -> ApiError {
    let remedy = "links name files by their absolute paths; see docs/links.md";
    ApiError::new(ErrorCode::BadRequest, format!("{file}: {reason}"), remedy)
}

/// Reads a file that a link names. It may be on a file system that does not answer.
fn read(file: &str) -> Result<Arc<str>, ApiError> {
    let failed = |error: std::io::Error| wrong(file, &error.to_string());
    if !file.starts_with('/') {
        return Err(wrong(file, "its path is not absolute"));
    }
    // Some devices do something when they are opened.
    check_file(file, &std::fs::metadata(file).map_err(failed)?)?;
    // What is there by now may be a pipe, whose opening would wait for a writer.
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(file);
    let opened: File = opened.map_err(failed)?;
    check_file(file, &opened.metadata().map_err(failed)?)?;
    let mut bytes = Vec::new();
    opened.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(wrong(file, TOO_LONG));
    }
    let text = String::from_utf8(bytes).map_err(|_| wrong(file, "it is not a text"))?;
    Ok(text.into())
}

const TOO_LONG: &str = "it is longer than 8 MiB";

fn check_file(file: &str, about: &std::fs::Metadata) -> Result<(), ApiError> {
    if !about.is_file() {
        return Err(wrong(file, "it is not a regular file"));
    }
    if about.len() > MAX_FILE { Err(wrong(file, TOO_LONG)) } else { Ok(()) }
}

/// Reads files, without holding up other tasks.
async fn read_all(names: BTreeSet<String>) -> Result<Files, ApiError> {
    let Some(first) = names.first().cloned() else { return Ok(Files::new()) };
    let reading = async {
        let permit = READERS.acquire().await.ok()?;
        let read = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            names.into_iter().map(|name| read(&name).map(|text| (name, text))).collect()
        });
        read.await.ok()
    };
    let slow = || wrong(&first, "it cannot be read within 5 s");
    tokio::time::timeout(PATIENCE, reading).await.ok().flatten().ok_or_else(slow)?
}

/// Bytes in the largest unit in which they are a short number.
fn size(bytes: u64) -> String {
    client::table::binary_bytes(bytes)
}

/// How many queues the kind of a port has at most, each with a line of its own.
fn queues(kind: &PortKind) -> u64 {
    u64::from(match kind {
        PortKind::Tap(tap) => tap.queues,
        PortKind::Interface(interface) => interface.queues,
        PortKind::VhostUser(user) => user.queues,
        _ => 1,
    })
}

/// Bytes of memory that a line of a port may need.
fn memory_of(line: &LinkConfig, sends: bool, kind: &PortKind) -> u64 {
    if sends && line.is_rate_only() {
        return 0;
    }
    let beyond = if sends { LinkConfig::SENT_BEYOND } else { 0 };
    (line.room().memory() + beyond).saturating_mul(queues(kind))
}

/// A port whose links have other words because a link of the topology has.
#[derive(Debug)]
pub struct Renewal {
    id: PortId,
    policy: Policy,
    links: PortLinks,
}

impl Switch {
    /// Reads the files that the links of these policies name.
    async fn read_link_files(&self, names: BTreeSet<String>) -> Result<Files, ApiError> {
        let mut files = self.patient(read_all(names)).await?;
        // Ports that name the same file share its content.
        for (name, text) in &mut files {
            let mut known = self.ports.values().filter_map(|port| port.links.files.get(name));
            if let Some(same) = known.find(|known| *known == text) {
                *text = Arc::clone(same);
            }
        }
        Ok(files)
    }

    /// What the links of a port need, if they exist, their files are right, and there is memory for
    /// them.
    pub(super) async fn prepare_links(
        &self,
        name: &str,
        spec: &PortSpec,
    ) -> Result<PortLinks, ApiError> {
        let policy = self.environment.links.policy(spec)?;
        let files = self.read_link_files(files_of(&policy)).await?;
        let links = PortLinks::new(&policy, files, &spec.kind)?;
        let others = self.ports.values().filter(|port| port.name != name);
        let others: u64 = others.map(|port| port.links.charged).sum();
        self.check_link_memory(name, spec, &links, others)?;
        Ok(links)
    }

    /// Checks that there is memory for the links of a port, beside what those of others may need.
    fn check_link_memory(
        &self,
        name: &str,
        spec: &PortSpec,
        links: &PortLinks,
        others: u64,
    ) -> Result<(), ApiError> {
        let most = self.config.max_link_memory;
        let PortLinks { charged, why, .. } = links;
        if *charged == 0 || *charged <= most.saturating_sub(others) {
            return self.check_users_link_memory(name, spec, links);
        }
        let reason = format!(
            "The links of {}:{name} may need {} ({why}, for {} queues), and other links of the switch \
             have {} of its {}",
            self.name,
            size(*charged),
            queues(&spec.kind),
            size(others),
            size(most)
        );
        let remedy = format!(
            "use a lower rate or delay, or queue=; or toklat switch set {} --max-link-memory BYTES",
            self.name
        );
        Err(ApiError::new(ErrorCode::Limit, reason, remedy))
    }

    /// Checks that a port's user may have the memory for its links.
    fn check_users_link_memory(
        &self,
        name: &str,
        spec: &PortSpec,
        links: &PortLinks,
    ) -> Result<(), ApiError> {
        let port = self.port(name).ok();
        let owner = || self.access.to(spec.owner);
        let uid = port.map(|port| port.uid(self.access)).or_else(owner);
        let uid = uid.unwrap_or_else(|| rustix::process::geteuid().as_raw());
        let held = port.map_or(0, |port| port.links.charged);
        let more = links.charged.saturating_sub(held);
        if more == 0 || self.environment.ledger.allows(uid, &Item::Links { bytes: more }) {
            return Ok(());
        }
        let reason = format!(
            "The links of {}:{name} may need {} more ({}), and its user {} may not have that",
            self.name,
            size(more),
            links.why,
            crate::users::name(uid)
        );
        let remedy =
            "use a lower rate or delay, or queue=; or raise the user's memory: toklat quota set";
        Err(ApiError::new(ErrorCode::Limit, reason, remedy))
    }

    /// Gives the data process the files that the links of a port name.
    pub(super) async fn send_link_files(&self, links: &PortLinks) -> Result<(), ApiError> {
        for (name, text) in &links.files {
            self.send_link_file(name, text).await?;
        }
        Ok(())
    }

    async fn send_link_file(&self, name: &str, text: &str) -> Result<(), ApiError> {
        let failed = |error: &dyn std::fmt::Display| {
            let reason = format!("{name} cannot be passed on: {error}");
            ApiError::new(ErrorCode::DataProcess, reason, "try again")
        };
        // Whole pages; the rest is zero.
        let len = text.len().max(1).next_multiple_of(4096);
        let memory = Memfd::create("toklat-link", len, Pages::Small);
        let memory = memory.map_err(|error| failed(&error))?;
        let mapping = memory.map().map_err(|error| failed(&error))?;
        mapping.all().copy_in(text.as_bytes());
        let (fd, name) = (memory.into_fd(), name.to_owned());
        self.command(&Command::LinkFile { name }, &[fd.as_fd()]).await.map(drop)
    }

    /// The same for all ports, before they are added to a new data process. Reads what was not read
    /// because the port was taken over.
    pub(super) async fn send_all_link_files(&mut self) {
        let linked = |port: &&Port| {
            let policy = &port.spec.policy;
            policy.tx_link.is_some() || policy.rx_link.is_some()
        };
        let ids: Vec<_> = self.ports.values().filter(linked).map(|port| port.id).collect();
        let mut all = Files::new();
        for id in ids {
            let Some(port) = self.ports.get(&id) else { continue };
            let named = self.environment.links.policy(&port.spec).map(|policy| files_of(&policy));
            let named = named.unwrap_or_default();
            if named.iter().any(|file| !port.links.files.contains_key(file)) {
                let read = self.read_link_files(named).await.unwrap_or_default();
                self.ports.entry(id).and_modify(|port| port.links.files = read);
            }
            let files = self.ports.get(&id).map(|port| port.links.files.clone());
            all.extend(files.unwrap_or_default());
        }
        for (name, text) in &all {
            if let Err(error) = self.send_link_file(name, text).await {
                tracing::error!(switch = self.name, %error, "links have no file");
            }
        }
    }

    /// The ports that name links of the topology, with what these links mean.
    ///
    /// # Errors
    /// A port's link is not there, a file is wrong, or there is not enough memory.
    pub async fn prepare_named_links(
        &self,
        links: &BTreeMap<String, LinkSpec>,
    ) -> Result<Vec<Renewal>, ApiError> {
        let (mut changed, mut names) = (Vec::new(), BTreeSet::new());
        for port in self.ports.values() {
            let policy = in_words(&port.spec, links).map_err(|error| {
                let reason = format!("{}:{}: {}", self.name, port.name, error.reason);
                ApiError::new(ErrorCode::BadRequest, reason, error.remedy)
            })?;
            let own = &port.spec.policy;
            if (&policy.tx_link, &policy.rx_link) != (&own.tx_link, &own.rx_link) {
                names.extend(files_of(&policy));
                changed.push((port, policy));
            }
        }
        let files = self.read_link_files(names).await?;
        let mut sum: u64 = self.ports.values().map(|port| port.links.charged).sum();
        let mut renewals = Vec::new();
        for (port, policy) in changed {
            let file =
                |name: String| files.get_key_value(&name).map(|(n, t)| (n.clone(), t.clone()));
            let files = files_of(&policy).into_iter().filter_map(file).collect();
            let links = PortLinks::new(&policy, files, &port.spec.kind)?;
            sum = (sum - port.links.charged).saturating_add(links.charged);
            renewals.push((port, Renewal { id: port.id, policy, links }));
        }
        for (port, Renewal { links, .. }) in &renewals {
            self.check_link_memory(&port.name, &port.spec, links, sum - links.charged)?;
        }
        Ok(renewals.into_iter().map(|(_, renewal)| renewal).collect())
    }

    /// Gives the data process the policies of ports whose links mean other words from now on.
    pub async fn renew_named_links(&mut self, renewals: Vec<Renewal>) {
        for Renewal { id, policy, links } in renewals {
            let Some(port) = self.ports.get(&id) else { continue };
            let name = port.name.clone();
            let sent = self.send_link_files(&links).await;
            let told = self.command(&Command::SetPolicy { id, policy }, &[]).await;
            if let Err(error) = sent.and(told) {
                tracing::error!(switch = self.name, port = name, %error, "link was not changed");
            }
            self.ports.entry(id).and_modify(|port| port.links = links);
            self.recharge(id);
        }
    }

    /// The lines of a port and their counters.
    ///
    /// # Errors
    /// There is no such port, or the data process does not answer.
    pub async fn port_link(&self, name: &str) -> Result<PortLink, ApiError> {
        let port = self.port(name)?;
        let policy = self.environment.links.policy(&port.spec)?;
        let asked = self.command(&Command::LinkStats { id: port.id }, &[]).await?;
        let counted = match asked {
            Some(Answer::Links { sends, receives }) => [sends, receives],
            _ => [None, None],
        };
        let [sent, received] = counted.map(|stats| stats.map(|stats| *stats).unwrap_or_default());
        let line = |line: Option<LinkConfig>, most_memory: u64, stats: LinkStats| {
            Some(Line { words: line?.to_string(), most_memory, stats })
        };
        let ([sends, receives], most) = (lines(&policy), port.links.most);
        Ok(PortLink {
            sends: line(sends, most[0], sent),
            receives: line(receives, most[1], received),
        })
    }
}
