//! Hosts for measurements of tunnels: network namespaces on one link, with addresses of an
//! underlay.

pub mod crowd;
pub mod lines;
pub mod migration;
pub mod namespaces;
pub mod pings;
pub mod programs;
pub mod routers;

use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use self::programs::{Missing, Running, done, ip, need};

/// How the names of namespaces begin; the number of the process that made them follows.
const PREFIX: &str = "toklat-hosts-";
/// How long a guest may take to answer another.
const ANSWER: Duration = Duration::from_secs(60);
/// A flag to stop that is never set.
pub static NEVER: AtomicBool = AtomicBool::new(false);

/// Waits for something, at most for 20 seconds.
fn until(what: &str, is_so: impl Fn() -> bool) -> Result<()> {
    let begun = Instant::now();
    while !is_so() {
        ensure!(begun.elapsed() < Duration::from_secs(20), "no {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Namespaces of one measurement; removed on drop.
#[derive(Debug)]
pub struct Net {
    prefix: String,
    made: Vec<String>,
}

impl Net {
    /// Hosts `h1`, `h2`, ... on one link of this MTU: host n is 10.99.0.n. Removes what an earlier
    /// process has left, if it is gone.
    ///
    /// # Errors
    /// There is no root, or no `ip`.
    pub fn new(hosts: usize, mtu: u32) -> Result<Self> {
        namespaces::remove_abandoned(PREFIX);
        Self::with_names(format!("{PREFIX}{}", std::process::id()), hosts, mtu)
    }

    /// Like [`new`](Self::new), with namespaces whose names begin with `prefix`.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_names(prefix: String, hosts: usize, mtu: u32) -> Result<Self> {
        ensure!(rustix::process::geteuid().is_root(), "network namespaces are root's to make");
        let mut net = Self { prefix, made: Vec::new() };
        net.add("link")?;
        net.ip("link", &format!("link add br0 mtu {mtu} type bridge stp_state 0"))?;
        net.ip("link", "link set br0 up")?;
        for n in 1..=hosts {
            let host = format!("h{n}");
            net.add(&host)?;
            net.veth(("link", &format!("p{n}")), (&host, "u0"), mtu)?;
            net.ip("link", &format!("link set p{n} master br0"))?;
            net.ip(&host, &format!("addr add 10.99.0.{n}/24 dev u0"))?;
        }
        Ok(net)
    }

    /// Adds a namespace.
    ///
    /// # Errors
    /// `ip` fails.
    pub fn add(&mut self, name: &str) -> Result<()> {
        let full = self.name(name);
        // An earlier process with this number may have left a namespace of this name.
        namespaces::remove(&full);
        ip(&format!("netns add {full}"))?;
        self.made.push(full);
        self.ip(name, "link set lo up").map(drop)
    }

    /// The full name of a namespace, as in /run/netns.
    #[must_use]
    pub fn name(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    /// Runs `ip` with these words in a namespace.
    ///
    /// # Errors
    /// As [`done`].
    pub fn ip(&self, of: &str, words: &str) -> Result<Output> {
        ip(&format!("-n {} {words}", self.name(of)))
    }

    /// A pair of interfaces, both up.
    ///
    /// # Errors
    /// `ip` fails.
    pub fn veth(&self, a: (&str, &str), b: (&str, &str), mtu: u32) -> Result<()> {
        let other = self.name(b.0);
        let words = format!("link add {} mtu {mtu} type veth peer name {} netns {other}", a.1, b.1);
        self.ip(a.0, &words)?;
        self.ip(b.0, &format!("link set {} mtu {mtu}", b.1))?;
        for (of, device) in [a, b] {
            self.ip(of, &format!("link set {device} up"))?;
        }
        Ok(())
    }

    /// A command in a namespace.
    #[must_use]
    pub fn command(&self, of: &str, words: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name(of)]);
        command.args(words.split(' ')).stdin(Stdio::null());
        command
    }

    /// Runs a program in a namespace to its end, and returns what it says.
    ///
    /// # Errors
    /// As [`done`].
    pub fn run(&self, of: &str, words: &str) -> Result<String> {
        let output = done(&mut self.command(of, words))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Starts a program in a namespace.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(&self, of: &str, words: &str) -> Result<Running> {
        let mut command = self.command(of, words);
        Running::start(command.stdout(Stdio::null()).stderr(Stdio::null()))
    }

    /// A tunnel of the kernel's VXLAN (VNI 100) from host `n` to `peer`, in a bridge, with a guest
    /// `g<n>` whose interface `e0` is 192.168.7.n.
    ///
    /// # Errors
    /// The kernel has no VXLAN, or `ip` fails.
    pub fn kernel_tunnel(&mut self, n: usize, peer: Option<usize>, mtu: u32) -> Result<()> {
        let (host, guest) = (format!("h{n}"), format!("g{n}"));
        let remote = peer.map(|peer| format!(" remote 10.99.0.{peer}")).unwrap_or_default();
        let options = format!("id 100 local 10.99.0.{n}{remote} dstport 4789");
        let learning = if peer.is_some() { "" } else { " nolearning" };
        let made = self.ip(&host, &format!("link add vx100 type vxlan {options}{learning}"));
        made.context(Missing::new("the kernel's VXLAN", ""))?;
        self.ip(&host, "link add br100 type bridge stp_state 0")?;
        self.add(&guest)?;
        self.veth((&host, "g0"), (&guest, "e0"), mtu)?;
        for device in ["vx100", "g0"] {
            self.ip(&host, &format!("link set {device} mtu {mtu}"))?;
            self.ip(&host, &format!("link set {device} master br100 up"))?;
        }
        self.ip(&host, "link set br100 up")?;
        self.ip(&guest, &format!("addr add 192.168.7.{n}/24 dev e0")).map(drop)
    }

    /// Gb/s of one TCP stream by iperf3.
    ///
    /// # Errors
    /// iperf3 is missing, or does not come through.
    pub fn tcp(&self, from: &str, (to, address): (&str, &str), seconds: u32) -> Result<f64> {
        need("iperf3")?;
        let _server = self.start(to, "iperf3 -s -1")?;
        let begun = Instant::now();
        while !self.run(to, "ss -Hltn sport = :5201")?.contains("5201") {
            ensure!(begun.elapsed() < Duration::from_secs(10), "iperf3 does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        let told = self.run(from, &format!("iperf3 -c {address} -J -t {seconds}"))?;
        let told: serde_json::Value = serde_json::from_str(&told)?;
        let bits = told["end"]["sum_received"]["bits_per_second"].as_f64();
        Ok(bits.context("iperf3 says no number")? / 1e9)
    }

    /// The median of `count` pings' round trips in us, with this pause between them.
    ///
    /// # Errors
    /// Less than half of them are answered.
    pub fn round_trip(&self, from: &str, to: &str, (pause_s, count): (f64, u32)) -> Result<f64> {
        let told = self.run(from, &format!("ping -n -i {pause_s} -c {count} {to}"))?;
        let ms = told.lines().filter_map(|line| line.split_once("time=")?.1.split(' ').next());
        let mut us: Vec<f64> =
            ms.filter_map(|ms| ms.parse().ok()).map(|ms: f64| ms * 1e3).collect();
        ensure!(us.len() > count as usize / 2, "{} of {count} pings were answered", us.len());
        us.sort_by(f64::total_cmp);
        Ok(us[us.len() / 2])
    }

    /// Waits until a guest reaches an address.
    ///
    /// # Errors
    /// It does not within a minute, or `stop` is set before.
    pub fn reach(&self, from: &str, to: &str, stop: &AtomicBool) -> Result<()> {
        let begun = Instant::now();
        while self.run(from, &format!("ping -c 1 -W 1 {to}")).is_err() {
            ensure!(!stop.load(Ordering::Relaxed), "Interrupted");
            ensure!(begun.elapsed() < ANSWER, "{from} does not reach {to}");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for name in &self.made {
            namespaces::remove(name);
        }
    }
}
