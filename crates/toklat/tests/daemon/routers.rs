//! Routers for tests of EVPN: GoBGP as a route reflector, FRR with the kernel's VXLAN.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use jail::parent_death;
use lab::hosts::routers::{self, FRR};
use rustix::process::Signal;

use super::namespace::Namespace;
use super::underlay::{ip, try_ip};
use super::wait_until;

/// The station at Linux.
pub const THEIRS: &str = "02:00:00:00:07:03";
/// GoBGP's daemon of version 4, if `cargo xtask setup` made it or the system has it.
pub fn gobgpd() -> Result<PathBuf, &'static str> {
    let made = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/gobgp/gobgpd");
    let places =
        [std::env::var_os("TOKLAT_GOBGPD").map(PathBuf::from), Some(made), Some("gobgpd".into())];
    let found = places.into_iter().flatten().find(|program| routers::is_gobgpd(program));
    found.ok_or("gobgpd of version 4 is missing (cargo xtask setup)")
}

/// A program that is ended with the test.
pub struct Router {
    pub child: Child,
    _dir: tempfile::TempDir,
}

impl Drop for Router {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// GoBGP as the route reflector of these clients, at `own`.
pub fn reflector(host: &Namespace, own: &str, clients: &[&str]) -> Result<Router, &'static str> {
    let program = gobgpd()?;
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("r.toml");
    std::fs::write(&config, routers::reflector_config(own, clients)).unwrap();
    let api = format!("unix://{}", dir.path().join("api.sock").display());
    let program = program.display().to_string();
    let args = [&program, "-f", &config.display().to_string(), "--api-hosts", &api];
    let mut command = host.command(&[&args[..], &["--pprof-disable"]].concat());
    parent_death::signal(&mut command, Signal::KILL);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    Ok(Router { child: child.unwrap(), _dir: dir })
}

/// A Linux host with FRR: a bridge with the kernel's VXLAN, `own` its address, one neighbour.
pub struct Linux {
    daemons: Vec<Child>,
    /// A machine at its bridge.
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

impl Linux {
    /// Starts it. `inside` is the address of the machine at its bridge.
    pub fn start(
        host: &Namespace,
        own: &str,
        reflector: &str,
        inside: &str,
    ) -> Result<Self, &'static str> {
        if !Path::new(FRR).join("bgpd").exists() {
            return Err("FRR is missing (cargo xtask setup)");
        }
        // The kernel leaves checksums and segments inside of tunnels to the device, and a veth does
        // neither.
        host.run(&["ethtool", "-K", "u0", "tx", "off", "tso", "off", "gso", "off"]);
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
        let station = Namespace::new()?;
        ip(host, &format!("link add s1 type veth peer name s0 netns {}", station.id()));
        ip(host, "link set s1 master br100 up");
        ip(&station, &format!("address add {inside} dev s0"));
        ip(&station, &format!("link set s0 address {THEIRS} mtu 1400 up"));
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let frr = routers::frr_user().ok_or("FRR has no user")?;
        chown(dir.path(), Some(frr), Some(frr)).unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        std::fs::write(at("zebra.conf"), "").unwrap();
        std::fs::write(at("bgpd.conf"), routers::bgpd_config(own, reflector)).unwrap();
        let start = |name: &str, more: &[&str]| {
            let program = format!("{FRR}/{name}");
            let (pid, conf) = (at(&format!("{name}.pid")), at(&format!("{name}.conf")));
            let (vty, zserv) = (dir.path().display().to_string(), at("zserv.api"));
            let args = [&*program, "--vty_socket", &vty, "-z", &zserv, "-i", &pid, "-f", &conf];
            let mut command = host.command(&[&args[..], more].concat());
            let log = std::fs::File::create(at(&format!("{name}.log"))).unwrap();
            parent_death::signal(&mut command, Signal::KILL)
                .stdin(Stdio::null())
                .stdout(log.try_clone().unwrap())
                .stderr(log)
                .spawn()
                .unwrap()
        };
        let zebra = start("zebra", &[]);
        wait_until("the socket of zebra", || dir.path().join("zserv.api").exists());
        let bgpd = start("bgpd", &["-p", "0"]);
        Ok(Self { daemons: vec![bgpd, zebra], station, _dir: dir })
    }
}

/// The host that Linux sends a station's frames to.
pub fn linux_sends_to(host: &Namespace, mac: &str) -> Option<String> {
    let table = host.run(&["bridge", "fdb", "show", "dev", "vx100"]);
    let line = table.lines().find(|line| line.starts_with(mac) && line.contains(" dst "))?;
    line.split_whitespace().skip_while(|word| *word != "dst").nth(1).map(str::to_owned)
}
