//! Routers for tests of EVPN: GoBGP as a route reflector, FRR with the kernel's VXLAN.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use jail::parent_death;
use rustix::process::Signal;

use super::PATIENCE;
use super::namespace::Namespace;
use super::underlay::{ip, try_ip};

/// The station at Linux.
pub const THEIRS: &str = "02:00:00:00:07:03";
/// Where Debian has FRR's programs.
const FRR: &str = "/usr/lib/frr";

/// GoBGP's daemon of version 4, if `cargo xtask setup` made it or the system has it.
pub fn gobgpd() -> Result<PathBuf, &'static str> {
    let made = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/gobgp/gobgpd");
    let places =
        [std::env::var_os("TOKLAT_GOBGPD").map(PathBuf::from), Some(made), Some("gobgpd".into())];
    let is_new = |program: &PathBuf| {
        let said = Command::new(program).arg("--version").output();
        said.is_ok_and(|said| String::from_utf8_lossy(&said.stdout).contains("version 4"))
    };
    let found = places.into_iter().flatten().find(is_new);
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
    let mut text = format!("[global.config]\nas = 65000\nrouter-id = \"{own}\"\nport = 179\n");
    for client in clients {
        text += &format!(
            r#"
            [[neighbors]]
              [neighbors.config]
                peer-as = 65000
                neighbor-address = "{client}"
              [neighbors.route-reflector.config]
                route-reflector-client = true
                route-reflector-cluster-id = "{own}"
              [neighbors.timers.config]
                hold-time = 9
                keepalive-interval = 3
              [neighbors.transport.config]
                passive-mode = true
              [neighbors.graceful-restart.config]
                enabled = true
                restart-time = 60
              [[neighbors.afi-safis]]
                [neighbors.afi-safis.config]
                  afi-safi-name = "l2vpn-evpn"
                [neighbors.afi-safis.mp-graceful-restart.config]
                  enabled = true
            "#
        );
    }
    let config = dir.path().join("r.toml");
    std::fs::write(&config, text).unwrap();
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
        let frr = user("frr").ok_or("FRR has no user")?;
        chown(dir.path(), Some(frr), Some(frr)).unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        std::fs::write(at("zebra.conf"), "").unwrap();
        let bgp = format!(
            "router bgp 65000\n bgp router-id {own}\n no bgp default ipv4-unicast\n \
             neighbor {reflector} remote-as 65000\n neighbor {reflector} timers 3 9\n \
             neighbor {reflector} timers connect 1\n \
             address-family l2vpn evpn\n  neighbor {reflector} activate\n  advertise-all-vni\n"
        );
        std::fs::write(at("bgpd.conf"), bgp).unwrap();
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
        let begun = Instant::now();
        while !dir.path().join("zserv.api").exists() {
            assert!(
                begun.elapsed() < PATIENCE,
                "zebra: {}",
                std::fs::read_to_string(at("zebra.log")).unwrap()
            );
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let bgpd = start("bgpd", &["-p", "0"]);
        Ok(Self { daemons: vec![bgpd, zebra], station, _dir: dir })
    }
}

fn user(name: &str) -> Option<u32> {
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    let line = users.lines().find(|line| line.starts_with(&format!("{name}:")))?;
    line.split(':').nth(2)?.parse().ok()
}

/// The host that Linux sends a station's frames to.
pub fn linux_sends_to(host: &Namespace, mac: &str) -> Option<String> {
    let table = host.run(&["bridge", "fdb", "show", "dev", "vx100"]);
    let line = table.lines().find(|line| line.starts_with(mac) && line.contains(" dst "))?;
    line.split_whitespace().skip_while(|word| *word != "dst").nth(1).map(str::to_owned)
}
