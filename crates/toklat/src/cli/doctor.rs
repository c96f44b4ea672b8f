//! `toklat doctor`: what this machine lacks, and what to do about it.

use std::net::UdpSocket;
use std::process::Command;

use serde::Serialize;
use serde_json::Value;

use control::table::Table;
use control::{Client, Global, Result};

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
        checks.push(tunnel_port());
    }
    global.print_list(&checks, || table(&checks), "")?;
    let bad = checks.iter().filter(|check| check.state == State::Bad).count();
    anyhow::ensure!(bad == 0, "{bad} checks failed; the list says what to do");
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
    let devices = [
        (
            "taps",
            "/dev/net/tun",
            "modprobe tun; as an ordinary user, --netns of a namespace of yours",
        ),
        ("KVM", "/dev/kvm", "enable virtualization in the firmware; add yourself to the group kvm"),
    ];
    checks.extend(devices.map(|(what, path, remedy)| device(what, path, remedy)));
    checks.push(gobgpd("gobgpd"));
    checks
}

/// The kernel's version, as `6.1.0-9-amd64`.
fn kernel(release: &str) -> Check {
    let release = release.trim();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    match version {
        (5, 13..) | (6.., _) => Check::good("kernel", release),
        _ => {
            Check::limited("kernel", release, "use Linux 5.13 or later: it confines with Landlock")
        }
    }
}

/// What data processes are confined by.
fn walls() -> Check {
    const WHAT: &str = "walls";
    let seccomp = read("/proc/self/status").contains("Seccomp:");
    let modules = read("/sys/kernel/security/lsm");
    match (seccomp, modules.split(',').any(|module| module.trim() == "landlock")) {
        (false, _) => Check::bad(WHAT, "no seccomp", "use a kernel with CONFIG_SECCOMP_FILTER"),
        (true, false) => {
            let remedy = "boot with lsm=landlock,... to have guests confined by Landlock, too";
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

/// The routing daemon's program, for EVPN.
fn gobgpd(program: &str) -> Check {
    const WHAT: &str = "gobgpd";
    let remedy = "for EVPN: go install github.com/osrg/gobgp/v4/cmd/gobgpd@v4.8.0";
    match Command::new(program).arg("--version").output() {
        Err(error) => Check::limited(WHAT, format!("{program}: {error}"), remedy),
        Ok(said) => {
            let said = String::from_utf8_lossy(&said.stdout).trim().to_owned();
            match said.contains("version 4") {
                true => Check::good(WHAT, said),
                false => Check::limited(WHAT, format!("{said}: version 4 is needed"), remedy),
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
            let check = match status.version.starts_with(own) {
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
    if let Ok(summary) = client.get::<Value>("/v1/evpn") {
        checks.push(routes(&summary));
    }
    let switches = client.get::<Value>("/v1/switches").unwrap_or_default();
    for switch in switches.as_array().into_iter().flatten() {
        let name = switch["name"].as_str().unwrap_or_default();
        if let Ok(ports) = client.get::<Value>(&format!("/v1/switches/{name}/ports")) {
            checks.extend(failures(name, &ports));
            checks.extend(inner_mtu(name, &ports));
        }
    }
    checks
}

fn routes(summary: &Value) -> Check {
    const WHAT: &str = "EVPN";
    let neighbors: Vec<&Value> = summary["neighbors"].as_array().into_iter().flatten().collect();
    let is_up = |neighbor: &&&Value| neighbor["state"] == "established";
    let up = neighbors.iter().filter(is_up).count();
    if summary["connected"] != true {
        let trouble = summary["trouble"].as_str().unwrap_or("not connected yet");
        return Check::limited(WHAT, trouble, "see docs/many-hosts.md, and the daemon's log");
    }
    let found = format!("{} routes, {up} of {} neighbours up", summary["routes"], neighbors.len());
    match up == neighbors.len() {
        true => Check::good(WHAT, found),
        false => Check::limited(WHAT, found, "toklat evpn show neighbors; TCP port 179 there"),
    }
}

/// Ports that do not work.
fn failures(switch: &str, ports: &Value) -> Vec<Check> {
    let ports = ports.as_array().into_iter().flatten();
    let failed = ports.filter_map(|port| {
        let (name, why) = (port["name"].as_str()?, port["failure"].as_str()?);
        let remedy = "toklat port show; see the daemon's log";
        Some(Check::limited("port", format!("{switch}:{name}: {why}"), remedy))
    });
    failed.collect()
}

/// Ports whose frames do not fit the tunnel of their switch.
fn inner_mtu(switch: &str, ports: &Value) -> Option<Check> {
    let ports = || ports.as_array().into_iter().flatten();
    let inner = ports().filter_map(|port| port["tunnel"]["inner_mtu"].as_u64()).min()?;
    let too_large = ports().filter(|port| port["tunnel"].is_null()).find_map(|port| {
        let mtu = port["spec"]["mtu"].as_u64().filter(|mtu| *mtu > inner)?;
        Some(format!("{switch}:{} has MTU {mtu}", port["name"].as_str().unwrap_or_default()))
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
    use serde_json::json;

    use super::*;

    #[test]
    fn old_kernels_are_named() {
        for (release, state) in [
            ("6.1.0-9-amd64\n", State::Good),
            ("5.13.0", State::Good),
            ("5.4.0-42", State::Limited),
            ("", State::Limited),
        ] {
            assert_eq!(kernel(release).state, state, "{release}");
        }
    }

    #[test]
    fn what_keeps_routes_away_is_said() {
        let up =
            json!({ "connected": true, "routes": 3, "neighbors": [{ "state": "established" }] });
        assert_eq!(routes(&up).state, State::Good);
        let down = json!({ "connected": true, "routes": 3, "neighbors": [{ "state": "active" }] });
        assert!(routes(&down).found.contains("0 of 1") && !routes(&down).remedy.is_empty());
        let lost = json!({ "connected": false, "trouble": "GoBGP 4 is needed" });
        assert_eq!(routes(&lost).found, "GoBGP 4 is needed");
    }

    #[test]
    fn a_port_whose_frames_do_not_fit_the_tunnel_is_named() {
        let ports = |mtu: u64| {
            json!([
                { "name": "fabric", "tunnel": { "inner_mtu": 1450 } },
                { "name": "vm1", "tunnel": null, "spec": { "mtu": mtu } }
            ])
        };
        assert_eq!(inner_mtu("vale0", &ports(1450)).unwrap().state, State::Good);
        let check = inner_mtu("vale0", &ports(1500)).unwrap();
        assert!(check.state == State::Limited && check.found.contains("vale0:vm1"), "{check:?}");
        assert_eq!(inner_mtu("vale0", &json!([])), None);
    }

    #[test]
    fn another_gobgpd_than_version_4_is_refused() {
        assert_eq!(gobgpd("/nowhere/gobgpd").state, State::Limited);
        assert!(gobgpd("echo").found.contains("version 4 is needed"));
    }

    #[test]
    fn each_check_that_is_not_good_says_what_to_do() {
        for check in machine().into_iter().chain([tunnel_port()]) {
            assert_eq!(check.state == State::Good, check.remedy.is_empty(), "{check:?}");
        }
    }
}
