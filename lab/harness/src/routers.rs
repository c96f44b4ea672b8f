//! Routers for tests of EVPN: GoBGP as a route reflector, FRR with the kernel's VXLAN.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use jail::parent_death;
use lab::hosts::routers::{self, FRR, Session};
use rustix::process::Signal;

use crate::artifacts::target;
use crate::namespace::Namespace;
use crate::underlay::{complete_checksums, ip, try_ip};
use crate::wait_until;

/// The MAC address of the station at the Linux host.
pub const THEIRS: &str = "02:00:00:00:07:03";
const NO_FRR: &str = "FRR is missing (cargo xtask setup)";

/// GoBGP's daemon of version 4, if `cargo xtask setup` made it or the system has it.
pub fn gobgpd() -> Result<PathBuf, &'static str> {
    let made = target().join("go/gobgpd");
    let places =
        [std::env::var_os("TOKLAT_GOBGPD").map(PathBuf::from), Some(made), Some("gobgpd".into())];
    let found = places.into_iter().flatten().find(|program| routers::is_gobgpd(program));
    found.ok_or("gobgpd of version 4 is missing (cargo xtask setup)")
}

/// A program that is ended with the test.
pub struct Router {
    /// Its process.
    pub child: Child,
    words: Vec<String>,
    dir: tempfile::TempDir,
}

impl Router {
    /// Returns the path of the socket of the router's API.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("api.sock")
    }

    /// Kills the reflector with SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts a killed reflector again, as one that was there before (`-r`).
    pub fn start_again(&mut self, host: &Namespace) {
        self.child = start(host, &[&self.words[..], &["-r".to_owned()]].concat());
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// GoBGP as the route reflector of these clients, at `own`.
pub fn reflector(host: &Namespace, own: &str, clients: &[&str]) -> Result<Router, &'static str> {
    let clients: Vec<_> = clients.iter().map(|at| (*at, Session::default())).collect();
    reflector_with(host, own, &clients)
}

/// The same as the previous function, with these sessions.
pub fn reflector_with(
    host: &Namespace,
    own: &str,
    clients: &[(&str, Session<'_>)],
) -> Result<Router, &'static str> {
    let program = gobgpd()?;
    let dir = tempfile::tempdir().unwrap();
    let config = routers::reflector_config(own, clients);
    let words = routers::reflector_words(&program, dir.path(), &config).unwrap();
    Ok(Router { child: start(host, &words), words, dir })
}

/// Starts a program that says nothing and ends with this process.
fn start(host: &Namespace, words: &[String]) -> Child {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut command = host.command(&words);
    parent_death::signal(&mut command, Signal::KILL);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    child.unwrap()
}

/// A Linux host with FRR: a bridge with the kernel's VXLAN, `own` its address, one neighbour.
pub struct Linux {
    daemons: Vec<Child>,
    /// A machine at the host's bridge.
    pub station: Namespace,
    _dir: tempfile::TempDir,
}

impl Drop for Linux {
    fn drop(&mut self) {
        for child in &mut self.daemons {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The kernel's bridge and VXLAN on a host.
fn overlay(host: &Namespace, own: &str) -> Result<(), &'static str> {
    complete_checksums(host);
    let vxlan = format!("link add vx100 type vxlan id 100 local {own} dstport 4789 nolearning");
    if !try_ip(host, "link add br100 type bridge") || !try_ip(host, &vxlan) {
        return Err("the kernel has no bridges or no VXLAN");
    }
    ip(host, "link set vx100 master br100");
    ip(host, "link set vx100 type bridge_slave neigh_suppress on learning off");
    for link in ["br100", "vx100"] {
        ip(host, &format!("link set {link} addrgenmode none"));
        ip(host, &format!("link set {link} mtu 1400 up"));
    }
    Ok(())
}

impl Linux {
    /// Starts FRR on the host. `inside` is the address of the machine at its bridge.
    pub fn start(
        host: &Namespace,
        own: &str,
        reflector: &str,
        inside: &str,
    ) -> Result<Self, &'static str> {
        Self::start_with(host, own, (&routers::bgpd_config(own, reflector), false), inside)
    }

    /// The same, with this configuration of bgpd, which may listen for neighbours.
    pub fn start_with(
        host: &Namespace,
        own: &str,
        (config, listens): (&str, bool),
        inside: &str,
    ) -> Result<Self, &'static str> {
        if !Path::new(FRR).join("bgpd").exists() {
            return Err(NO_FRR);
        }
        overlay(host, own)?;
        let station = Namespace::new()?;
        ip(host, &format!("link add s1 type veth peer name s0 netns {}", station.id()));
        ip(host, "link set s1 master br100 up");
        ip(&station, &format!("address add {inside} dev s0"));
        ip(&station, &format!("link set s0 address {THEIRS} mtu 1400 up"));
        let dir = routers::frr_directory(&std::env::temp_dir(), config).map_err(|_| NO_FRR)?;
        let start = |name: &str| {
            let words = routers::frr_words(name, dir.path(), listens);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let mut command = host.command(&words);
            let log = std::fs::File::create(dir.path().join(format!("{name}.log"))).unwrap();
            parent_death::signal(&mut command, Signal::KILL)
                .stdin(Stdio::null())
                .stdout(log.try_clone().unwrap())
                .stderr(log)
                .spawn()
                .unwrap()
        };
        let zebra = start("zebra");
        wait_until("the socket of zebra", || routers::zserv(dir.path()).exists());
        let bgpd = start("bgpd");
        Ok(Self { daemons: vec![bgpd, zebra], station, _dir: dir })
    }
}

/// The reflector at host 2, as the neighbour in a topology file.
pub const NEIGHBOR: &str = "address = \"10.99.0.2\"";

/// A topology's lines for EVPN with one neighbour on host `number`, 10.99.0.NUMBER, and a tunnel.
pub fn evpn_lines(number: usize, program: &str, host: &Namespace, neighbor: &str) -> String {
    format!(
        r#"
        [evpn]
        as = 65000
        router_id = "10.99.0.{number}"
        vtep = "10.99.0.{number}"
        program = "{program}"
        netns = "{}"
        [[evpn.neighbor]]
        {neighbor}
        [switch.vale0.port.fabric]
        kind = {{ vxlan = {{ vni = 100, evpn = true }} }}
        "#,
        host.id()
    )
}

/// A topology's lines for a guest's tap, `tap-vale0`.
pub fn tap_lines(guest: &Namespace) -> String {
    format!(
        "[switch.vale0.port.guest]\nmtu = 1400\n\
         kind = {{ tap = {{ ifname = \"tap-vale0\", netns = \"{}\" }} }}\n",
        guest.id()
    )
}

/// Returns the host to which Linux sends a station's frames.
pub fn linux_sends_to(host: &Namespace, mac: &str) -> Option<String> {
    let table = host.run(&["bridge", "fdb", "show", "dev", "vx100"]);
    let line = table.lines().find(|line| line.starts_with(mac) && line.contains(" dst "))?;
    line.split_whitespace().skip_while(|word| *word != "dst").nth(1).map(str::to_owned)
}
