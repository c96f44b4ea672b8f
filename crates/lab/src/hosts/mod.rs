//! Hosts for measurements of tunnels: network namespaces on one link, with addresses of an
//! underlay.

pub mod lines;
pub mod routers;

use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use jail::parent_death;
use rustix::process::{Pid, Signal, kill_process};

/// A program that ends with the measurement.
#[derive(Debug)]
pub struct Running(pub Child);

impl Running {
    /// Starts a program that ends when this is dropped, and when this process ends in any way.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(command: &mut Command) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = parent_death::signal(command, Signal::TERM).spawn();
        child.map(Self).with_context(|| format!("{name} is missing"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}

/// Runs a program to its end.
///
/// # Errors
/// It is missing, or fails; the error has its words.
pub fn done(command: &mut Command) -> Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("{name} is missing"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name} failed: {}", said.trim());
    Ok(output)
}

/// Runs `ip` with these words.
///
/// # Errors
/// As [`done`].
pub fn ip(words: &str) -> Result<Output> {
    done(Command::new("ip").args(words.split(' ')))
}

/// Namespaces of one measurement; removed on drop.
#[derive(Debug)]
pub struct Net {
    prefix: String,
    made: Vec<String>,
}

impl Net {
    /// Hosts `h1`, `h2`, ... on one link of this MTU: host n is 10.99.0.n.
    ///
    /// # Errors
    /// There is no root, or no `ip`.
    pub fn new(hosts: usize, mtu: u32) -> Result<Self> {
        Self::with_names(format!("toklat-hosts-{}", std::process::id()), hosts, mtu)
    }

    /// The same; the names of all namespaces begin with `prefix`.
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
        // One of an earlier process with this number may be there.
        let _ = ip(&format!("netns del {full}"));
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
        made.context("the kernel's VXLAN is missing")?;
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
        let _server = self.start(to, "iperf3 -s -1")?;
        let begun = Instant::now();
        while !self.run(to, "ss -Hltn sport = :5201")?.contains("5201") {
            ensure!(begun.elapsed() < Duration::from_secs(10), "iperf3 is missing");
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
    /// It does not.
    pub fn reach(&self, from: &str, to: &str) -> Result<()> {
        let answers = || self.run(from, &format!("ping -c 1 -W 1 {to}")).is_ok();
        ensure!((0..60).any(|_| answers()), "{from} does not reach {to}");
        Ok(())
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for name in &self.made {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}
