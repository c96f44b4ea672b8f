//! `toklat doctor`: what this machine lacks, what is wrong with the network, and what to do.

mod network;

use std::net::UdpSocket;
use std::process::Command;

use rustix::thread::CapabilitySet;
use serde::Serialize;
use topology::{Evpn, PortKind, Topology};

use client::table::{Table, counted};
use client::{Client, Global, Result};
use evpn::report::Summary;
use host::library;
use vm::Accelerator;

use crate::api::{PortInfo, Stats, SwitchInfo};
use crate::daemon::evpn::gobgpd::{INSTALL, is_new_enough};

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Good,
    /// Some things cannot be done, or are slow.
    Limited,
    /// toklat does not work.
    Bad,
}

/// A check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Check {
    /// What was looked at.
    what: &'static str,
    state: State,
    /// What was found.
    found: String,
    /// What to do; empty if nothing.
    remedy: String,
}

impl Check {
    fn good(what: &'static str, found: impl Into<String>) -> Self {
        Self { what, state: State::Good, found: found.into(), remedy: String::new() }
    }

    fn limited(what: &'static str, found: impl Into<String>, remedy: &str) -> Self {
        Self { what, state: State::Limited, found: found.into(), remedy: remedy.to_owned() }
    }

    fn bad(what: &'static str, found: impl Into<String>, remedy: &str) -> Self {
        Self { state: State::Bad, ..Self::limited(what, found, remedy) }
    }
}

/// Looks at everything, and prints it.
///
/// # Errors
/// Something keeps toklat from working, or the output cannot be written.
pub fn run(global: &Global) -> Result {
    let mut checks = machine();
    let (daemon, mut client) = daemon(global);
    checks.push(daemon);
    if let Some(client) = &mut client {
        checks.extend(of_daemon(client));
    } else {
        checks.extend([gobgpd(Evpn::PROGRAM), tunnel_port()]);
    }
    global.print_list(&checks, || table(&checks), "")?;
    let bad = checks.iter().filter(|check| check.state == State::Bad).count();
    anyhow::ensure!(
        bad == 0,
        "{} failed; the list says what to do",
        counted(bad as u64, "check", "s")
    );
    Ok(())
}

fn table(checks: &[Check]) -> Table {
    let mut table = Table::new(&["", "what", "found", "what to do"]);
    for check in checks {
        let mark = match check.state {
            State::Good => "ok",
            State::Limited => "limited",
            State::Bad => "bad",
        };
        let cells = [mark, check.what, &check.found, &check.remedy];
        table.row(cells.map(str::to_owned));
    }
    table
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// What needs no daemon.
fn machine() -> Vec<Check> {
    let mut checks = vec![kernel(&read("/proc/sys/kernel/osrelease")), walls(), hugepages()];
    checks.extend([taps(), kvm(Accelerator::choose()), programs()]);
    checks
}

/// The kernel's version, as `6.1.0-9-amd64`.
fn kernel(release: &str) -> Check {
    let release = release.trim();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    match version {
        (5, 15..) | (6.., _) => Check::good("kernel", release),
        _ => Check::limited("kernel", release, "use Linux 5.15 or later"),
    }
}

/// What data processes are confined by.
fn walls() -> Check {
    const WHAT: &str = "walls";
    let seccomp = read("/proc/self/status").contains("Seccomp:");
    match (seccomp, jail::landlock::is_available()) {
        (false, _) => Check::bad(WHAT, "no seccomp", "use a kernel with CONFIG_SECCOMP_FILTER"),
        (true, false) => {
            let remedy = "boot with lsm=landlock,...: it confines data processes and guests";
            Check::limited(WHAT, "seccomp, no Landlock", remedy)
        }
        (true, true) => Check::good(WHAT, "seccomp, Landlock"),
    }
}

fn hugepages() -> Check {
    const WHAT: &str = "hugepages";
    let memory = read("/proc/meminfo");
    let free = memory.lines().find_map(|line| line.strip_prefix("HugePages_Free:"));
    match free.and_then(|free| free.trim().parse::<u64>().ok()).unwrap_or(0) {
        0 => {
            let remedy = "sysctl vm.nr_hugepages=512 makes ports of much memory faster";
            Check::limited(WHAT, "none are free", remedy)
        }
        free => Check::good(WHAT, format!("{free} are free")),
    }
}

fn device(what: &'static str, path: &str, remedy: &str) -> Check {
    match std::fs::File::options().read(true).write(true).open(path) {
        Ok(_) => Check::good(what, path),
        Err(error) => Check::limited(what, format!("{path}: {error}"), remedy),
    }
}

/// What `toklat vm run` will use, and why.
fn kvm(chosen: (Accelerator, Option<String>)) -> Check {
    const WHAT: &str = "KVM";
    match chosen {
        (Accelerator::Kvm, _) => Check::good(WHAT, "/dev/kvm"),
        (Accelerator::Tcg, why) => {
            let remedy = "enable virtualization in the firmware; until then toklat vm run emulates, \
                          which is slow";
            Check::limited(WHAT, why.unwrap_or_default(), remedy)
        }
    }
}

/// Whether a daemon that this user starts can make taps.
fn taps() -> Check {
    const WHAT: &str = "taps";
    let check = device(WHAT, "/dev/net/tun", "modprobe tun");
    if check.state == State::Good && !jail::holds(CapabilitySet::NET_ADMIN) {
        let remedy = "run the daemon as root, or --netns of a namespace of yours";
        return Check::limited(WHAT, "no CAP_NET_ADMIN", remedy);
    }
    check
}

/// The library that `toklat run` has loaded into programs.
fn programs() -> Check {
    const WHAT: &str = "toklat run";
    match library::find() {
        Ok(library) => Check::good(WHAT, library.display().to_string()),
        Err(error) => Check::limited(WHAT, error.to_string(), library::REMEDY),
    }
}

/// The routing daemon's program, for EVPN.
fn gobgpd(program: &str) -> Check {
    const WHAT: &str = "gobgpd";
    match Command::new(program).arg("--version").output() {
        Err(error) => Check::limited(WHAT, format!("{program}: {error}"), INSTALL),
        Ok(said) => {
            let said = String::from_utf8_lossy(&said.stdout).trim().to_owned();
            match is_new_enough(&said) {
                true => Check::good(WHAT, said),
                false => Check::limited(WHAT, format!("{said}: version 4 is needed"), INSTALL),
            }
        }
    }
}

/// Whether another program holds VXLAN's port.
fn tunnel_port() -> Check {
    const WHAT: &str = "UDP port 4789";
    match UdpSocket::bind(("0.0.0.0", 4789)) {
        Ok(_) => Check::good(WHAT, "free for tunnels"),
        Err(error) => {
            let remedy = "ip -d link show type vxlan; a tunnel takes another by --vxlan-port";
            Check::limited(WHAT, error.to_string(), remedy)
        }
    }
}

fn daemon(global: &Global) -> (Check, Option<Client>) {
    const WHAT: &str = "daemon";
    let asked = Client::connect(global).and_then(|mut client| {
        let status: crate::api::Status = client.get("/v1/status")?;
        Ok((client, status))
    });
    match asked {
        Err(error) => {
            let socket = global.dir().join("control.sock");
            let remedy = match socket.exists() {
                true => "see its permissions, or the daemon's log",
                false => "start it: toklat daemon",
            };
            (Check::limited(WHAT, format!("{error:#}"), remedy), None)
        }
        Ok((client, status)) => {
            let found = format!("{} in {}", status.version, status.runtime_dir);
            let own = env!("CARGO_PKG_VERSION");
            let check = match status.version == own {
                true => Check::good(WHAT, found),
                false => {
                    let remedy = "restart it, then: toklat upgrade";
                    Check::limited(WHAT, format!("{found}; this program is {own}"), remedy)
                }
            };
            (check, Some(client))
        }
    }
}

/// What the daemon knows: EVPN, and what fits tunnels.
fn of_daemon(client: &mut Client) -> Vec<Check> {
    let mut checks = Vec::new();
    let evpn = client.get::<Topology>("/v1/topology").ok().and_then(|topology| topology.evpn);
    match &evpn {
        None => checks.push(gobgpd(Evpn::PROGRAM)),
        // Another service starts it.
        Some(evpn) if evpn.socket().is_some() => {}
        Some(evpn) => checks.push(gobgpd(&evpn.program)),
    }
    // Without EVPN the answer is an error.
    if let Ok(summary) = client.get::<Summary>("/v1/evpn") {
        checks.push(routes(&summary));
    }
    let none = || Stats { at_ns: 0, switches: Vec::new() };
    let stats: Stats = client.get("/v1/stats").unwrap_or_else(|_| none());
    match ports(client) {
        Ok(switches) => {
            for (switch, ports) in switches {
                checks.extend(failures(&switch, &ports));
                checks.extend(inner_mtu(&switch, &ports));
                if let Some(stats) = stats.switches.iter().find(|stats| stats.name == switch) {
                    checks.extend(network::look(&ports, stats));
                }
            }
        }
        Err(error) => {
            let remedy = "see the daemon's log";
            checks.push(Check::limited("ports", format!("{error:#}"), remedy));
        }
    }
    checks
}

/// The ports of each switch.
fn ports(client: &mut Client) -> Result<Vec<(String, Vec<PortInfo>)>> {
    let switches: Vec<SwitchInfo> = client.get("/v1/switches")?;
    let mut all = Vec::new();
    for switch in switches {
        let ports = client.get(&format!("/v1/switches/{}/ports", switch.name))?;
        all.push((switch.name, ports));
    }
    Ok(all)
}

fn routes(summary: &Summary) -> Check {
    const WHAT: &str = "EVPN";
    if !summary.connected {
        let trouble = summary.trouble.as_deref().unwrap_or("not connected yet");
        return Check::limited(WHAT, trouble, "see docs/many-hosts.md, and the daemon's log");
    }
    let (up, neighbors) = (summary.neighbors_up(), summary.neighbors.len());
    let found = format!("{} routes, {up} of {neighbors} neighbours up", summary.routes);
    match up == neighbors {
        true => Check::good(WHAT, found),
        false => Check::limited(WHAT, found, "toklat evpn show neighbors; TCP port 179 there"),
    }
}

/// Ports that do not work.
fn failures(switch: &str, ports: &[PortInfo]) -> Vec<Check> {
    let failed = ports.iter().filter_map(|port| {
        let why = port.failure.as_ref().or(port.unconnected.as_ref())?;
        let remedy = "toklat port show; see the daemon's log";
        Some(Check::limited("port", format!("{switch}:{}: {why}", port.name), remedy))
    });
    failed.collect()
}

/// Ports whose frames do not fit the tunnel of their switch. Guests of vhost-user ports are told.
fn inner_mtu(switch: &str, ports: &[PortInfo]) -> Option<Check> {
    let tunnels = ports.iter().filter_map(|port| port.tunnel.as_ref());
    let inner = tunnels.filter_map(|tunnel| tunnel.inner_mtu).min()?;
    let is_told = |port: &PortInfo| matches!(port.spec.kind, PortKind::VhostUser(_));
    let mut others = ports.iter().filter(|port| port.tunnel.is_none() && !is_told(port));
    let too_large = others.find_map(|port| {
        let mtu = Some(port.spec.policy.mtu).filter(|mtu| *mtu > inner)?;
        Some(format!("{switch}:{} has MTU {mtu}", port.name))
    });
    Some(match too_large {
        None => Check::good("MTU", format!("{inner} fits the tunnel of {switch}")),
        Some(port) => {
            let remedy = "toklat port set --mtu, or a larger MTU between the hosts";
            Check::limited("MTU", format!("{port}, and {inner} fits the tunnel"), remedy)
        }
    })
}

#[cfg(test)]
mod tests {
    use evpn::report::NeighborInfo;

    use super::*;

    #[test]
    fn old_kernels_are_named() {
        for (release, state) in [
            ("6.1.0-9-amd64\n", State::Good),
            ("5.15.0", State::Good),
            ("5.14.0-42", State::Limited),
            ("", State::Limited),
        ] {
            assert_eq!(kernel(release).state, state, "{release}");
        }
    }

    #[test]
    fn what_keeps_routes_away_is_said() {
        let neighbor = |state: &str| NeighborInfo {
            address: "10.0.0.2".into(),
            asn: 65000,
            state: state.into(),
            received: 0,
            advertised: 0,
            flaps: 0,
            reason: String::new(),
        };
        let with = |state| Summary {
            connected: true,
            neighbors: vec![neighbor(state)],
            ..Summary::default()
        };
        assert_eq!(routes(&with("established")).state, State::Good);
        let down = routes(&with("active"));
        assert!(down.found.contains("0 of 1") && !down.remedy.is_empty(), "{down:?}");
        let trouble = Some("GoBGP 4 is needed".to_owned());
        let lost = Summary { trouble, ..Summary::default() };
        assert_eq!(routes(&lost).found, "GoBGP 4 is needed");
    }

    #[test]
    fn guests_that_are_told_their_mtu_are_not_named() {
        let port = |mtu: u16, kind: serde_json::Value, tunnel: Option<u16>| -> PortInfo {
            let mut port = serde_json::json!({
                "name": "p", "id": 0, "state": "attached", "ephemeral": false,
                "memory": { "mappings": 0, "bytes": 0, "refused": 0 }, "spec": { "mtu": mtu, "kind": kind },
            });
            if let Some(inner) = tunnel {
                port["tunnel"] = serde_json::json!({ "inner_mtu": inner, "peers": [] });
            }
            serde_json::from_value(port).unwrap()
        };
        let tunnel = || port(1500, "ring".into(), Some(1450));
        let of = |port| inner_mtu("vale0", &[tunnel(), port]).unwrap();
        assert_eq!(
            of(port(1500, serde_json::json!({ "vhost_user": {} }), None)).state,
            State::Good
        );
        assert_eq!(of(port(1450, "ring".into(), None)).state, State::Good);
        let named = of(port(1500, "ring".into(), None));
        assert!(named.found.contains("vale0:p has MTU 1500"), "{named:?}");
    }

    #[test]
    fn another_gobgpd_than_version_4_is_refused() {
        assert_eq!(gobgpd("/nowhere/gobgpd").state, State::Limited);
        assert!(gobgpd("echo").found.contains("version 4 is needed"));
    }
}
