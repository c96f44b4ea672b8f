//! Routers beside toklat: GoBGP as a route reflector, FRR with the kernel's VXLAN.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::{Net, Running};

/// Where Debian has FRR's programs.
pub const FRR: &str = "/usr/lib/frr";

/// GoBGP's daemon of version 4: `$TOKLAT_GOBGPD`, or on the path.
///
/// # Errors
/// It is missing, or of another version.
pub fn gobgpd() -> Result<PathBuf> {
    let program: PathBuf =
        std::env::var_os("TOKLAT_GOBGPD").unwrap_or_else(|| "gobgpd".into()).into();
    ensure!(
        is_gobgpd(&program),
        "gobgpd of version 4 is missing: see docs/many-hosts.md, or set TOKLAT_GOBGPD"
    );
    Ok(program)
}

/// True for a program that is GoBGP's daemon of version 4.
#[must_use]
pub fn is_gobgpd(program: &Path) -> bool {
    let said = Command::new(program).arg("--version").output();
    said.is_ok_and(|said| String::from_utf8_lossy(&said.stdout).contains("version 4"))
}

/// The configuration of GoBGP at `own` as the route reflector of these clients.
#[must_use]
pub fn reflector_config(own: &str, clients: &[&str]) -> String {
    let head = format!("[global.config]\nas = 65000\nrouter-id = \"{own}\"\nport = 179\n");
    clients.iter().fold(head, |text, client| text + &neighbor(own, client))
}

/// GoBGP as a route reflector in a namespace.
#[derive(Debug)]
pub struct Reflector {
    _running: Running,
    dir: tempfile::TempDir,
}

impl Reflector {
    /// Starts it on host `h<n>` for these clients.
    ///
    /// # Errors
    /// There is no gobgpd of version 4, or it makes no socket.
    pub fn start(net: &Net, n: usize, clients: &[usize]) -> Result<Self> {
        let (program, own) = (gobgpd()?, format!("10.99.0.{n}"));
        let dir = tempfile::Builder::new().prefix("toklat-reflector").tempdir()?;
        let clients: Vec<String> = clients.iter().map(|n| format!("10.99.0.{n}")).collect();
        let clients: Vec<&str> = clients.iter().map(String::as_str).collect();
        let config = dir.path().join("r.toml");
        std::fs::write(&config, reflector_config(&own, &clients))?;
        let reflector_words = format!(
            "{} -f {} --api-hosts unix://{} --pprof-disable",
            program.display(),
            config.display(),
            dir.path().join("api.sock").display()
        );
        let running = net.start(&format!("h{n}"), &reflector_words)?;
        let reflector = Self { _running: running, dir };
        until("the reflector's socket", || reflector.socket().exists())?;
        Ok(reflector)
    }

    /// The socket of its API.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("api.sock")
    }

    /// Its process's number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self._running.0.id()
    }
}

fn neighbor(own: &str, client: &str) -> String {
    format!(
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
    )
}

/// Waits for something, at most for 20 seconds.
fn until(what: &str, is_so: impl Fn() -> bool) -> Result<()> {
    let begun = Instant::now();
    while !is_so() {
        ensure!(begun.elapsed() < Duration::from_secs(20), "no {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// FRR's zebra and bgpd on a host that has a [kernel tunnel](Net::kernel_tunnel) without a peer.
#[derive(Debug)]
pub struct Frr {
    _daemons: [Running; 2],
    _dir: tempfile::TempDir,
}

impl Frr {
    /// Starts them on host `h<n>`, with the reflector at host `reflector` as the neighbour.
    ///
    /// # Errors
    /// FRR is missing, or does not start.
    pub fn start(net: &Net, n: usize, reflector: usize) -> Result<Self> {
        ensure!(Path::new(FRR).join("bgpd").exists(), "FRR is missing: apt-get install frr");
        let host = format!("h{n}");
        net.run(&host, "bridge link set dev vx100 neigh_suppress on learning off")?;
        let dir = tempfile::Builder::new().prefix("toklat-frr").tempdir()?;
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777))?;
        let frr = frr_user().context("FRR is missing: it has no user")?;
        chown(dir.path(), Some(frr), Some(frr))?;
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("zebra.conf"), "")?;
        let (own, neighbor) = (format!("10.99.0.{n}"), format!("10.99.0.{reflector}"));
        std::fs::write(at("bgpd.conf"), bgpd_config(&own, &neighbor))?;
        let start = |name: &str, more: &str| {
            let words = format!(
                "{FRR}/{name} --vty_socket {} -z {} -i {} -f {}{more}",
                dir.path().display(),
                at("zserv.api").display(),
                at(&format!("{name}.pid")).display(),
                at(&format!("{name}.conf")).display()
            );
            net.start(&host, &words)
        };
        let zebra = start("zebra", "")?;
        until("socket of zebra", || at("zserv.api").exists())?;
        let bgpd = start("bgpd", " -p 0")?;
        Ok(Self { _daemons: [bgpd, zebra], _dir: dir })
    }
}

/// The configuration of FRR's bgpd at `own`, with one neighbour.
#[must_use]
pub fn bgpd_config(own: &str, neighbor: &str) -> String {
    format!(
        "router bgp 65000\n bgp router-id {own}\n no bgp default ipv4-unicast\n \
         neighbor {neighbor} remote-as 65000\n neighbor {neighbor} timers 3 9\n \
         neighbor {neighbor} timers connect 1\n \
         address-family l2vpn evpn\n  neighbor {neighbor} activate\n  advertise-all-vni\n"
    )
}

/// The number of FRR's user, if it is installed.
#[must_use]
pub fn frr_user() -> Option<u32> {
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    let line = users.lines().find(|line| line.starts_with("frr:"))?;
    line.split(':').nth(2)?.parse().ok()
}
