//! What a topology may be, and where the one that was applied is kept.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

use dataplane::config::{Doorbell, Policy, SwitchConfig};
use fabric::VlanMode;
use link::{Impairment, RateLimiter};
use serde::{Deserialize, Serialize};

use super::front_ends::Place;
use super::mistake;
use super::tunnels::MAX_PEERS;
use crate::api::{Action, ApiError, Change, ErrorCode, PortKind, PortSpec, SwitchSpec, Topology};
use crate::users;

/// Bytes of a switch's name: its socket's path must fit a socket address.
pub const SWITCH_NAME: usize = 15;
/// Bytes of a port's name: with its switch's it fits netmap's 64.
pub const PORT_NAME: usize = 31;

/// Bytes of the longest path of a socket: `sun_path`, and the zero byte after it.
const MAX_SOCKET_PATH: usize = 107;

fn bad(reason: impl Into<String>, remedy: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::BadRequest, reason, remedy)
}

/// Checks a name of a switch (`max` [`SWITCH_NAME`]) or port ([`PORT_NAME`]).
///
/// # Errors
/// Says what a name may be.
pub fn check_name(name: &str, max: usize) -> Result<(), ApiError> {
    let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let good = (1..=max).contains(&name.len())
        && name.chars().all(letter)
        && name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if good {
        return Ok(());
    }
    Err(bad(
        format!("{name:?} is not a name"),
        format!(
            "use 1 to {max} of the characters a-z, A-Z, 0-9, '-', '_' and '.', and start with a \
             letter or digit"
        ),
    ))
}

/// Checks a whole topology.
///
/// # Errors
/// Names the first setting that cannot be.
pub fn check(topology: &Topology) -> Result<(), ApiError> {
    check_each(topology)?;
    check_claims(topology)
}

/// Checks each setting by itself.
///
/// # Errors
/// Names the first that cannot be.
pub fn check_each(topology: &Topology) -> Result<(), ApiError> {
    for (name, spec) in &topology.switch {
        check_name(name, SWITCH_NAME)?;
        check_switch(name, spec)?;
    }
    Ok(())
}

/// Checks that no two ports claim the same thing, and that those whose names are used are there.
///
/// # Errors
/// Names both.
pub fn check_claims(topology: &Topology) -> Result<(), ApiError> {
    let mut claims = BTreeMap::new();
    for (switch, spec) in &topology.switch {
        for (port, port_spec) in &spec.port {
            let name = format!("{switch}:{port}");
            for (what, remedy) in claims_of(switch, port_spec) {
                if let Some(other) = claims.insert(what.clone(), name.clone()) {
                    return Err(bad(
                        format!("{what} is used twice: by {other} and {name}"),
                        remedy,
                    ));
                }
            }
            let mirrors = [&port_spec.policy.mirror_ingress, &port_spec.policy.mirror_egress];
            let missing = mirrors.into_iter().flatten().find(|to| !spec.port.contains_key(*to));
            if let Some(to) = missing {
                let reason = format!("{name} is mirrored to {switch}:{to}, which is not there");
                return Err(bad(reason, format!("add it before: toklat port add {switch}:{to}")));
            }
        }
    }
    Ok(())
}

/// What only one port may have, in words, and what to do if two want it.
fn claims_of(switch: &str, spec: &PortSpec) -> Vec<(String, &'static str)> {
    let socket =
        |path: &String| (format!("The socket {path}"), "give each port a socket of its own");
    // An address may be at another port in another VLAN: tables are looked up by both.
    let place = match &spec.policy.vlan {
        VlanMode::Unaware => Some(switch.to_owned()),
        VlanMode::Access(id) => Some(format!("{switch}, VLAN {id}")),
        VlanMode::Trunk { .. } => None,
    };
    let macs = place.into_iter().flat_map(|place| {
        let claim = move |mac: &frame::Mac| format!("Address {mac} on {place}");
        spec.policy.macs.iter().map(claim)
    });
    let remedy = "give each port an address of its own: --mac";
    let mut claims: Vec<_> = macs.map(|claim| (claim, remedy)).collect();
    claims.extend(match &spec.kind {
        PortKind::Tap { ifname, netns, .. } => {
            let place = netns.as_ref().map_or(String::new(), |netns| format!(" in {netns}"));
            Some((format!("Interface {ifname}{place}"), "give each port a tap of its own"))
        }
        PortKind::Vxlan { vni, local, port, netns, .. } => {
            let place = netns.as_ref().map_or(String::new(), |netns| format!(" in {netns}"));
            let at = std::net::SocketAddr::new(*local, *port);
            Some((format!("VNI {vni} at {at}{place}"), "give each tunnel a VNI of its own"))
        }
        PortKind::PcapWrite { path } => {
            Some((format!("File {path}"), "have each port write a file of its own"))
        }
        PortKind::VhostUser { path: Some(path), client: false, .. }
        | PortKind::VfioUser { path: Some(path), .. }
        | PortKind::Stream { address: Some(path), client: false }
        | PortKind::Dgram { local: path, .. } => Some(socket(path)),
        _ => None,
    });
    claims
}

/// Checks a switch and its ports.
///
/// # Errors
/// Names the first setting that cannot be.
pub fn check_switch(name: &str, spec: &SwitchSpec) -> Result<(), ApiError> {
    check_config(name, &spec.config)?;
    check_owner(name, spec.owner, spec.user)?;
    for (what, value, most) in
        [("sflow_rate", spec.sflow_rate, 1 << 24), ("sflow_polling_s", spec.sflow_polling_s, 3600)]
    {
        check_range(name, what, value.unwrap_or(1).into(), 1, most)?;
    }
    if spec.port.len() > usize::from(spec.config.max_ports) {
        let reason = format!("{name} has {} ports", spec.port.len());
        return Err(bad(reason, format!("raise max_ports from {}", spec.config.max_ports)));
    }
    for (port, port_spec) in &spec.port {
        check_name(port, PORT_NAME)?;
        let name = format!("{name}:{port}");
        check_port(&name, port_spec, &spec.config)?;
        check_owner(&name, port_spec.owner, spec.user)?;
    }
    Ok(())
}

/// Checks that what a tenant's switch has is the tenant's; `name` is for the message.
///
/// # Errors
/// Its owner is another user.
pub fn check_owner(name: &str, owner: Option<u32>, user: Option<u32>) -> Result<(), ApiError> {
    match (owner, user) {
        (Some(owner), Some(user)) if owner != user => {
            let (owner, user) = (users::name(owner), users::name(user));
            let reason = format!("{name} belongs to {owner}, and its switch is {user}'s");
            Err(bad(reason, "leave the owner out, or add a switch for each user"))
        }
        _ => Ok(()),
    }
}

fn check_config(name: &str, config: &SwitchConfig) -> Result<(), ApiError> {
    let workers = config.workers.len();
    let ranges = [
        ("max_ports", u64::from(config.max_ports), 1, 16_384),
        ("workers", workers as u64, 1, dataplane::state::MAX_WORKERS as u64),
        ("batch", u64::from(config.batch), 1, 1024),
        ("fdb_entries", u64::from(config.fdb_entries), 16, 1 << 22),
        ("stall_timeout_ms", u64::from(config.stall_timeout_ms), 0, 10_000),
        ("max_guest_memory", config.max_guest_memory, 1 << 20, i64::MAX as u64),
        ("max_mapped_memory", config.max_mapped_memory, 1 << 30, i64::MAX as u64),
        ("max_region_memory", config.max_region_memory, 4096, i64::MAX as u64),
    ];
    for (what, value, least, most) in ranges {
        check_range(name, what, value, least, most)?;
    }
    let mut cpus: Vec<_> = config.workers.iter().filter_map(|worker| worker.cpu).collect();
    cpus.sort_unstable();
    if let Some(pair) = cpus.windows(2).find(|pair| pair[0] == pair[1]) {
        let reason = format!("{name}: two workers are to run on CPU {}", pair[0]);
        return Err(bad(reason, "name each CPU once"));
    }
    Ok(())
}

/// Checks that new workers of `name` can be where they are pinned. Those of a switch as it was are not
/// looked at: its CPU may be gone since, and it runs without.
///
/// # Errors
/// Names the first CPU that cannot be used.
pub fn check_cpus(
    name: &str,
    old: Option<&SwitchConfig>,
    new: &SwitchConfig,
) -> Result<(), ApiError> {
    if old.is_some_and(|old| old.workers == new.workers) {
        return Ok(());
    }
    for cpu in new.workers.iter().filter_map(|worker| worker.cpu) {
        if !can_run_on(cpu) {
            let remedy =
                "name CPUs that this machine has and the daemon may use, or leave them out";
            return Err(bad(format!("{name}: no worker can run on CPU {cpu}"), remedy));
        }
    }
    Ok(())
}

/// Tries it, in a thread of its own.
fn can_run_on(cpu: u16) -> bool {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let there = move || {
        let mut set = CpuSet::new();
        usize::from(cpu) < CpuSet::MAX_CPU && {
            set.set(usize::from(cpu));
            sched_setaffinity(None, &set).is_ok()
        }
    };
    std::thread::spawn(there).join().unwrap_or(false)
}

fn check_range(name: &str, what: &str, value: u64, least: u64, most: u64) -> Result<(), ApiError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(bad(format!("{name}: {what} is {value}"), format!("use {least} to {most}")))
}

/// Checks a port; `name` is for the message.
///
/// # Errors
/// Names the first setting that cannot be.
pub fn check_port(name: &str, spec: &PortSpec, config: &SwitchConfig) -> Result<(), ApiError> {
    let mtu = u64::from(spec.policy.mtu);
    check_range(name, "mtu", mtu, 68, u64::from(Policy::MAX_MTU))?;
    let last = config.workers.len().saturating_sub(1) as u64;
    check_range(name, "worker", u64::from(spec.worker.unwrap_or(0)), 0, last)?;
    let limiters = [&spec.policy.tx_rate_limiter, &spec.policy.rx_rate_limiter];
    if let Err(error) = limiters.into_iter().flatten().try_for_each(RateLimiter::check) {
        return Err(bad(format!("{name}: {error}"), "see --tx-limit and --rx-limit"));
    }
    let impairments = [&spec.policy.tx_impairment, &spec.policy.rx_impairment];
    if let Err(error) = impairments.into_iter().flatten().try_for_each(Impairment::check) {
        return Err(bad(format!("{name}: {error}"), "see --tx-impair and --rx-impair"));
    }
    if let Some(mac) = spec.policy.macs.iter().find(|mac| mac.is_group()) {
        let remedy = "a port's own addresses are unicast: the first octet is even";
        return Err(bad(format!("{name}: {mac} is a group address"), remedy));
    }
    if spec.policy.guard && spec.policy.macs.is_empty() {
        let reason = format!("{name} is to be guarded, and has no address of its own");
        return Err(bad(reason, "give it one: --mac, or macs in the topology"));
    }
    if let VlanMode::Trunk { allowed, native: Some(native) } = &spec.policy.vlan
        && !allowed.is_empty()
        && !allowed.contains(native)
    {
        let reason = format!("{name}: its native VLAN {native} is none of the trunk's");
        return Err(bad(reason, "allow it, or leave it out"));
    }
    let is_guest = matches!(spec.kind, PortKind::VhostUser { .. } | PortKind::VfioUser { .. });
    if !spec.policy.link && !is_guest {
        let reason = format!("{name}: only a guest's port may have its link down");
        return Err(bad(reason, "remove the port instead"));
    }
    if spec.policy.lossless && matches!(spec.kind, PortKind::Vxlan { .. }) {
        let reason = format!("{name}: a tunnel cannot be lossless");
        return Err(bad(reason, "leave lossless out: the network between the hosts loses frames"));
    }
    let own = name.rsplit(':').next();
    let mirrors = [&spec.policy.mirror_ingress, &spec.policy.mirror_egress];
    if mirrors.into_iter().any(|m| m.as_deref() == own) {
        return Err(bad(format!("{name} is mirrored to itself"), "name another port"));
    }
    check_kind(name, &spec.kind)
}

fn check_kind(name: &str, kind: &PortKind) -> Result<(), ApiError> {
    match kind {
        PortKind::Tap { ifname, queues, .. } => {
            let most = dataplane::attach::buffered::tap::MAX_QUEUES as u64;
            check_range(name, "queues", u64::from(*queues), 1, most)?;
            let good = (1..16).contains(&ifname.len())
                && ifname.chars().all(|c| c.is_ascii_graphic() && !matches!(c, '/' | '%' | ':'))
                && !matches!(ifname.as_str(), "." | "..");
            if !good {
                let reason = format!("{name}: {ifname:?} is no name of an interface");
                return Err(bad(reason, "use up to 15 letters and digits, such as tap0"));
            }
        }
        PortKind::PcapRead { path, .. } | PortKind::PcapWrite { path } => {
            if !Path::new(path).is_absolute() {
                let reason = format!("{name}: {path:?} is a relative path");
                return Err(bad(reason, "the daemon runs elsewhere: give the whole path"));
            }
        }
        PortKind::VhostUser { path, queues, .. } => {
            check_range(name, "queues", u64::from(*queues), 1, dataplane::state::RINGS as u64)?;
            if let Some(path) = path {
                check_socket_path(name, path)?;
            }
        }
        PortKind::VfioUser { path, nic } => {
            if let Some(path) = path {
                check_socket_path(name, path)?;
            }
            let kind = nic.model.kind();
            if nic.csb && !kind.csb {
                let reason = format!("{name}: {} has no status block", kind.title);
                return Err(bad(reason, "leave --csb out"));
            }
            if nic.doorbell == Doorbell::Shared && kind.shared_pages.is_none() {
                let reason = format!("{name}: doorbells of {} cannot be shared", kind.title);
                return Err(bad(reason, "take 82574l, or leave them as they are"));
            }
            if let Some(combine) = nic.combine {
                check_range(name, "frames to combine", combine.frames.into(), 1, 4096)?;
                check_range(name, "delay_us", combine.delay_us.into(), 1, 10_000)?;
            }
        }
        PortKind::Stream { address: None, .. } => {}
        PortKind::Stream { address: Some(address), .. } => check_place(name, address)?,
        PortKind::Dgram { local, remote } => {
            check_place(name, local)?;
            check_place(name, remote)?;
            let kind = |text: &str| matches!(Place::of(text), Place::Path(_));
            if kind(local) != kind(remote) || local == remote {
                let reason = format!("{name}: no datagrams go from {local:?} to {remote:?}");
                return Err(bad(reason, "give two paths, or two addresses with their ports"));
            }
        }
        PortKind::Vxlan { local, peers, port, .. } => check_tunnel(name, *local, peers, *port)?,
        PortKind::Ring | PortKind::Null => {}
    }
    Ok(())
}

/// Checks the hosts of a tunnel.
fn check_tunnel(name: &str, local: IpAddr, peers: &[IpAddr], port: u16) -> Result<(), ApiError> {
    check_range(name, "peers", peers.len() as u64, 1, MAX_PEERS as u64)?;
    check_range(name, "port", u64::from(port), 1, u64::from(u16::MAX))?;
    let wrong = |ip: &IpAddr| ip.is_unspecified() || ip.is_multicast();
    if let Some(ip) = std::iter::once(&local).chain(peers).find(|ip| wrong(ip)) {
        let reason = format!("{name}: {ip} is no address of one host");
        return Err(bad(reason, "name each host by its own address"));
    }
    let mut seen = BTreeSet::from([local]);
    for peer in peers {
        if peer.is_ipv4() != local.is_ipv4() {
            let reason = format!("{name}: {peer} and {local} are not of one IP version");
            return Err(bad(reason, "use IPv4 for all hosts of a tunnel, or IPv6 for all"));
        }
        if !seen.insert(*peer) {
            let what = if *peer == local { "this host" } else { "named twice" };
            let reason = format!("{name}: the peer {peer} is {what}");
            return Err(bad(reason, "name each of the other hosts once"));
        }
    }
    Ok(())
}

/// A socket's path, or an address and port of this machine: frames come in with nobody's leave, and go
/// out in the clear.
fn check_place(name: &str, place: &str) -> Result<(), ApiError> {
    match Place::of(place) {
        Place::Path(_) => check_socket_path(name, place),
        Place::Inet(address) if address.ip().is_loopback() && address.port() != 0 => Ok(()),
        Place::Inet(address) => {
            let reason = format!("{name}: {address} is no address and port of this machine's own");
            Err(bad(reason, "use 127.0.0.1 or [::1], and a tunnel such as ssh -L to go further"))
        }
    }
}

fn check_socket_path(name: &str, path: &str) -> Result<(), ApiError> {
    if !Path::new(path).is_absolute() {
        let reason = format!("{name}: {path:?} is a relative path");
        return Err(bad(reason, "the daemon runs elsewhere: give the whole path"));
    }
    if path.len() > MAX_SOCKET_PATH || path.contains('\0') {
        let reason = format!("{name}: {path:?} is no path of a socket");
        return Err(bad(reason, format!("use at most {MAX_SOCKET_PATH} bytes")));
    }
    Ok(())
}

/// True if a running data process cannot take the new settings: they decide its memory or threads.
#[must_use]
pub fn needs_restart(old: &SwitchConfig, new: &SwitchConfig) -> bool {
    let shape = |c: &SwitchConfig| (c.max_ports, c.workers.clone(), c.fdb_entries);
    shape(old) != shape(new)
}

/// What is configured, and where it came from: what is kept over restarts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configured {
    /// All of it.
    topology: Topology,
    /// By name (`vale0`, `vale0:p1`, `quota`): the file that made it. What commands made has none.
    #[serde(default)]
    pub made_by: BTreeMap<String, String>,
    /// By file: what it said when it was applied last.
    #[serde(default)]
    pub applied: BTreeMap<String, Topology>,
}

impl Configured {
    /// All of a file's making.
    #[must_use]
    pub fn made(topology: Topology, file: &str) -> Self {
        let mut made = Self::from(topology);
        let switches = made.switch.iter().flat_map(|(name, spec)| {
            let ports = spec.port.keys().map(move |port| format!("{name}:{port}"));
            std::iter::once(name.clone()).chain(ports)
        });
        let names: Vec<_> = switches.chain(["quota".to_owned()]).collect();
        made.made_by = names.into_iter().map(|name| (name, file.to_owned())).collect();
        made.applied = [(file.to_owned(), made.topology.clone())].into();
        made
    }

    /// Changes with every change: an HTTP entity tag.
    #[must_use]
    pub fn tag(&self) -> String {
        let text = serde_json::to_string(&self.topology).unwrap_or_default();
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        format!("\"{:016x}\"", hasher.finish())
    }

    /// Takes note of a step that was done for a file.
    pub fn note(&mut self, change: &Change, file: &str) {
        match change.action {
            Action::Removed => drop(self.made_by.remove(&change.name)),
            Action::Changed if change.name != "quota" => {}
            Action::Replaced => {}
            _ => drop(self.made_by.insert(change.name.clone(), file.to_owned())),
        }
    }

    /// Forgets who made what is not there any more.
    pub fn tidy(&mut self) {
        let topology = &self.topology;
        self.made_by.retain(|name, _| match name.split_once(':') {
            _ if name == "quota" => true,
            None => topology.switch.contains_key(name),
            Some((switch, port)) => {
                topology.switch.get(switch).is_some_and(|switch| switch.port.contains_key(port))
            }
        });
    }
}

impl From<Topology> for Configured {
    fn from(topology: Topology) -> Self {
        Self { topology, ..Self::default() }
    }
}

impl Deref for Configured {
    type Target = Topology;

    fn deref(&self) -> &Topology {
        &self.topology
    }
}

impl DerefMut for Configured {
    fn deref_mut(&mut self) -> &mut Topology {
        &mut self.topology
    }
}

/// The file that what was applied is kept in.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
}

impl Store {
    /// The store in directory `dir`.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        Self { path: dir.join("topology.json") }
    }

    /// What was saved last, if anything was.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    pub fn load(&self) -> io::Result<Option<Configured>> {
        match fs::read(&self.path) {
            Ok(bytes) => {
                let saved: serde_json::Value = serde_json::from_slice(&bytes)?;
                // Earlier versions kept the topology alone.
                let alone = saved.get("topology").is_none();
                Ok(Some(if alone {
                    Configured::from(serde_json::from_value::<Topology>(saved)?)
                } else {
                    serde_json::from_value(saved)?
                }))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Saves: whoever reads finds the old one or the new one, whole.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn save(&self, configured: &Configured) -> io::Result<()> {
        let fresh = self.path.with_extension("json.new");
        let mut file = fs::File::create(&fresh)?;
        file.write_all(&serde_json::to_vec_pretty(configured)?)?;
        file.sync_all()?;
        fs::rename(&fresh, &self.path)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Reads the topology file of a daemon (TOML), which may say nothing yet.
///
/// # Errors
/// It cannot be read, or says something that cannot be.
pub fn read_file(path: &Path) -> anyhow::Result<Topology> {
    use anyhow::Context;
    let text =
        fs::read_to_string(path).with_context(|| format!("Cannot read {}", path.display()))?;
    let says_nothing = |line: &str| line.trim().is_empty() || line.trim().starts_with('#');
    if text.lines().all(says_nothing) {
        return Ok(Topology::default());
    }
    let topology = parse(&text).with_context(|| format!("In {}", path.display()))?;
    Ok(topology)
}

/// Parses and checks the text of a topology file.
///
/// # Errors
/// Says what is wrong where.
pub fn parse(text: &str) -> Result<Topology, ApiError> {
    let wrong =
        |error: toml::de::Error| bad(error.to_string().trim_end(), "correct the topology file");
    let table: toml::Table = toml::from_str(text).map_err(wrong)?;
    if table.is_empty() {
        // A file that was cut off, or a pipe from a command that failed.
        let remedy =
            "to remove what is there: toklat switch rm, or --prune with a file of what is to stay";
        return Err(bad("The topology is empty", remedy));
    }
    let topology: Topology = toml::from_str(text).map_err(|error| match mistake::find(&table) {
        Some(mistake) => bad(mistake, "correct the topology file"),
        None => wrong(error),
    })?;
    let given = serde_json::to_value(table).unwrap_or_default();
    super::shape::check(&given, &topology)?;
    check(&topology)?;
    Ok(topology)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataplane::config::WorkerConfig;

    /// A port that is a tunnel, with another setting.
    fn tunnel(local: &str, peers: &[&str], more: &str) -> String {
        let kind = format!("{{ vxlan = {{ vni = 7, local = '{local}', peers = {peers:?} }} }}");
        format!("[switch.v.port.p]\nkind = {kind}\n{more}\n")
    }

    #[test]
    fn settings_that_cannot_be_are_named() {
        for (text, what) in [
            ("[switch.\"va le\"]", "va le"),
            ("[switch.a2345678901234567]", "a234"),
            ("[switch.v]\nworkers = []", "workers"),
            ("[switch.v]\nbatch = 1025", "batch"),
            ("[switch.v]\nmax_ports = 1\n[switch.v.port.a]\n[switch.v.port.b]", "2 ports"),
            ("[switch.v]\nuser = 1\nowner = 2", "switch is"),
            ("[switch.v]\nuser = 1\n[switch.v.port.p]\nowner = 'root'", "v:p belongs to root"),
            ("[switch.v]\nowner = 'no such user'", "no such user"),
            ("[switch.v.port.p]\nmtu = 9217", "mtu"),
            ("[switch.v.port.p]\nworker = 1", "worker"),
            ("[switch.v.port.p]\nmacs = ['01:00:00:00:00:01']", "group"),
            ("[switch.v.port.p]\nguard = true", "no address"),
            ("[switch.v.port.p]\nmirror_egress = 'p'", "itself"),
            ("[switch.v.port.p]\nmirror_egress = 'q'", "v:q, which is not there"),
            ("[switch.v]\nworkers = [{ cpu = 0 }, { cpu = 0 }]", "CPU 0"),
            (
                "[switch.v.port.p]\nvlan = { trunk = { allowed = [2], native = 3 } }",
                "native VLAN 3",
            ),
            (
                "[switch.v.port.p]\nmacs = ['02:00:00:00:00:01']\n[switch.v.port.q]\n\
                 macs = ['02:00:00:00:00:01']",
                "used twice: by v:p and v:q",
            ),
            (
                "[switch.v.port.p]\nkind = { tap = { ifname = 't' } }\n[switch.w.port.q]\n\
                 kind = { tap = { ifname = 't' } }",
                "Interface t is used twice",
            ),
            (
                "[switch.v.port.p]\nvlan = { access = 2 }\nmacs = ['02:00:00:00:00:01']\n[switch.v.port.q]\n\
                 vlan = { access = 2 }\nmacs = ['02:00:00:00:00:01']",
                "VLAN 2 is used twice",
            ),
            ("", "empty"),
            ("# nothing", "empty"),
            ("[switch.v.port.p]\nkind = { tap = { ifname = 'a/b' } }", "a/b"),
            ("[switch.v.port.p]\nkind = { pcap_read = { path = 'x' } }", "relative"),
            ("[switch.v.port.\"../x\"]", "../x"),
            (&tunnel("0.0.0.0", &["10.0.0.2"], ""), "0.0.0.0 is no address of one host"),
            (&tunnel("10.0.0.1", &["224.0.0.1"], ""), "224.0.0.1 is no address of one host"),
            (&tunnel("10.0.0.1", &["::2"], ""), "not of one IP version"),
            (&tunnel("10.0.0.1", &["10.0.0.1"], ""), "10.0.0.1 is this host"),
            (&tunnel("10.0.0.1", &["10.0.0.2", "10.0.0.2"], ""), "named twice"),
            (&tunnel("10.0.0.1", &[], ""), "peers is 0"),
            (&tunnel("10.0.0.1", &["10.0.0.2"], "lossless = true"), "cannot be lossless"),
            (
                &(tunnel("10.0.0.1", &["10.0.0.2"], "")
                    + &tunnel("10.0.0.1", &["10.0.0.3"], "").replace(".p]", ".q]")),
                "VNI 7 at 10.0.0.1:4789 is used twice",
            ),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.reason.contains(what), "{text}: {error}");
        }
    }

    #[test]
    fn an_address_may_be_in_two_vlans() {
        let port = |name, vlan| {
            format!(
                "[switch.v.port.{name}]\nvlan = {{ access = {vlan} }}\nmacs = ['02:00:00:00:00:01']\n"
            )
        };
        parse(&(port("p", 2) + &port("q", 3))).unwrap();
    }

    #[test]
    fn a_cpu_that_is_not_there_is_refused_unless_it_was_there_before() {
        let on =
            |cpu| SwitchConfig { workers: vec![WorkerConfig { cpu }], ..SwitchConfig::default() };
        let gone = on(Some(u16::MAX));
        let error = check_cpus("v", None, &gone).unwrap_err();
        assert!(error.reason.contains("65535"), "{error}");
        check_cpus("v", Some(&on(None)), &gone).unwrap_err();
        check_cpus("v", Some(&gone), &gone).unwrap();
        check_cpus("v", None, &on(None)).unwrap();
    }

    #[test]
    fn what_was_saved_is_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path());
        assert_eq!(store.load().unwrap(), None);
        let topology = parse("[switch.v.port.p]\nlossless = true").unwrap();
        let made = Configured::made(topology.clone(), "/etc/net.toml");
        store.save(&made).unwrap();
        assert_eq!(store.load().unwrap(), Some(made.clone()));
        // What is gone was made by no file.
        let mut without = made.clone();
        without.switch.get_mut("v").unwrap().port.clear();
        without.tidy();
        assert_ne!(without.tag(), made.tag());
        store.save(&without).unwrap();
        assert!(!store.load().unwrap().unwrap().made_by.contains_key("v:p"));
        // As version 0.1 saved it.
        std::fs::write(store.path(), serde_json::to_vec(&topology).unwrap()).unwrap();
        assert_eq!(store.load().unwrap(), Some(Configured::from(topology)));
    }

    #[test]
    fn only_what_decides_memory_and_threads_needs_a_restart() {
        let old = SwitchConfig::default();
        let new = SwitchConfig { batch: 32, fdb_ageing_s: 1, ..old.clone() };
        assert!(!needs_restart(&old, &new));
        assert!(needs_restart(&old, &SwitchConfig { fdb_entries: 64, ..old.clone() }));
    }
}
