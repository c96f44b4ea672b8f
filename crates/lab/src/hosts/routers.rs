//! Routers other than toklat: GoBGP as a route reflector, FRR with the kernel's VXLAN.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::programs::{Missing, Running};
use super::{Net, until};

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
        Missing::new("gobgpd of version 4", "see docs/many-hosts.md, or set TOKLAT_GOBGPD")
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
pub fn reflector_config(own: &str, clients: &[(&str, Session<'_>)]) -> String {
    let head = format!("[global.config]\nas = 65000\nrouter-id = \"{own}\"\nport = 179\n");
    clients.iter().fold(head, |text, (client, session)| text + &neighbor(own, client, session))
}

/// The properties of a reflector's session with a client.
#[derive(Clone, Copy, Debug)]
pub struct Session<'a> {
    /// The hold time that it offers, in seconds.
    pub hold_time: u32,
    /// Whether both ends detect the other's death by BFD, after three times this in milliseconds.
    pub bfd_ms: Option<u32>,
    /// The session's password (RFC 2385); none if empty.
    pub password: &'a str,
}

impl Default for Session<'_> {
    fn default() -> Self {
        Self { hold_time: 9, bfd_ms: None, password: "" }
    }
}

/// Writes a configuration of GoBGP into a directory; returns the words that start it. The socket of
/// its API is `api.sock` there.
///
/// # Errors
/// The configuration cannot be written.
pub fn reflector_words(program: &Path, dir: &Path, config: &str) -> Result<Vec<String>> {
    let at = |name: &str| dir.join(name).display().to_string();
    std::fs::write(at("r.toml"), config)?;
    let (program, api) = (program.display().to_string(), format!("unix://{}", at("api.sock")));
    let words = [&program, "-f", &at("r.toml"), "--api-hosts", &api, "--pprof-disable"];
    Ok(words.map(str::to_owned).into())
}

/// GoBGP as a route reflector in a namespace.
#[derive(Debug)]
pub struct Reflector {
    running: Running,
    dir: tempfile::TempDir,
}

impl Reflector {
    /// Starts the reflector on host `h<n>` for these clients. Its files are in a directory in
    /// `within`.
    ///
    /// # Errors
    /// There is no gobgpd of version 4, or it makes no socket.
    pub fn start(net: &Net, n: usize, clients: &[usize], within: &Path) -> Result<Self> {
        Self::start_with(net, n, (clients, Session::default()), within)
    }

    /// The same, with these sessions.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(
        net: &Net,
        n: usize,
        (clients, session): (&[usize], Session<'_>),
        within: &Path,
    ) -> Result<Self> {
        let (program, own) = (gobgpd()?, format!("10.99.0.{n}"));
        let dir = tempfile::Builder::new().prefix("reflector").tempdir_in(within)?;
        let clients: Vec<String> = clients.iter().map(|n| format!("10.99.0.{n}")).collect();
        let clients: Vec<_> = clients.iter().map(|at| (at.as_str(), session)).collect();
        let words = reflector_words(&program, dir.path(), &reflector_config(&own, &clients))?;
        let running = net.start(&format!("h{n}"), &words.join(" "))?;
        let reflector = Self { running, dir };
        until("the reflector's socket", || reflector.socket().exists())?;
        Ok(reflector)
    }

    /// The socket of the reflector's API.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("api.sock")
    }

    /// The number of the reflector's process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.running.0.id()
    }
}

fn neighbor(own: &str, client: &str, session: &Session<'_>) -> String {
    let Session { hold_time, bfd_ms, password } = session;
    let bfd = bfd_ms.map(|ms| {
        let us = ms * 1000;
        format!(
            "  [neighbors.bfd.config]\n    enabled = true\n    desired-minimum-tx-interval = {us}\n    \
             required-minimum-receive = {us}\n    detection-multiplier = 3\n"
        )
    });
    let text = format!(
        r#"
[[neighbors]]
  [neighbors.config]
    peer-as = 65000
    neighbor-address = "{client}"
    auth-password = "{password}"
  [neighbors.route-reflector.config]
    route-reflector-client = true
    route-reflector-cluster-id = "{own}"
  [neighbors.timers.config]
    hold-time = {hold_time}
    keepalive-interval = {}
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
"#,
        hold_time / 3
    );
    text + &bfd.unwrap_or_default()
}

/// FRR's zebra and bgpd on a host that has a [kernel tunnel](Net::kernel_tunnel) without a peer.
#[derive(Debug)]
pub struct Frr {
    _daemons: [Running; 2],
    _dir: tempfile::TempDir,
}

impl Frr {
    /// Starts the daemons on host `h<n>`, with the reflector at host `reflector` as the neighbour.
    /// Their files are in a directory in `within`, which FRR's user may then pass through.
    ///
    /// # Errors
    /// FRR is missing, or does not start.
    pub fn start(net: &Net, n: usize, reflector: usize, within: &Path) -> Result<Self> {
        let host = format!("h{n}");
        let (own, neighbor) = (format!("10.99.0.{n}"), format!("10.99.0.{reflector}"));
        let dir = frr_directory(within, &bgpd_config(&own, &neighbor))?;
        net.run(&host, "bridge link set dev vx100 neigh_suppress on learning off")?;
        let start = |name: &str| net.start(&host, &frr_words(name, dir.path(), false).join(" "));
        let zebra = start("zebra")?;
        until("socket of zebra", || zserv(dir.path()).exists())?;
        Ok(Self { _daemons: [start("bgpd")?, zebra], _dir: dir })
    }
}

/// A directory in `within` for FRR's daemons, with the configuration of bgpd. FRR's user may then
/// pass through `within`.
///
/// # Errors
/// FRR is missing, or the directory cannot be made.
pub fn frr_directory(within: &Path, bgpd: &str) -> Result<tempfile::TempDir> {
    let user = frr_user().filter(|_| Path::new(FRR).join("bgpd").exists());
    let user = user.with_context(|| Missing::new("FRR", "apt-get install frr"))?;
    let mode = std::fs::metadata(within)?.permissions().mode() | 0o011;
    std::fs::set_permissions(within, std::fs::Permissions::from_mode(mode))?;
    let dir = tempfile::Builder::new().prefix("frr").tempdir_in(within)?;
    chown(dir.path(), Some(user), Some(user))?;
    for (name, text) in [("zebra", ""), ("bgpd", bgpd)] {
        std::fs::write(dir.path().join(format!("{name}.conf")), text)?;
    }
    Ok(dir)
}

/// The words that start a daemon of FRR with this [directory](frr_directory). bgpd listens at TCP
/// port 179 only if it is told so.
#[must_use]
pub fn frr_words(daemon: &str, dir: &Path, listens: bool) -> Vec<String> {
    let at = |name: &str| dir.join(name).display().to_string();
    let (vty, zserv) = (dir.display(), zserv(dir));
    let (pid, config) = (at(&format!("{daemon}.pid")), at(&format!("{daemon}.conf")));
    let port = if daemon == "bgpd" && !listens { " -p 0" } else { "" };
    let words = format!(
        "{FRR}/{daemon} --vty_socket {vty} -z {} -i {pid} -f {config}{port}",
        zserv.display()
    );
    words.split(' ').map(str::to_owned).collect()
}

/// The socket at which zebra serves the other programs of FRR.
#[must_use]
pub fn zserv(dir: &Path) -> PathBuf {
    dir.join("zserv.api")
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
