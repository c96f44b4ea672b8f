//! The peer of light guests: Linux's own stack, between two network namespaces at a bridge.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::lab::{Daemon, Lab};
use crate::hosts::programs::{Running, done, need};
use crate::hosts::{NEVER, Net};

/// Two [hosts](Net), h1 and h2, and the congestion control that both use.
pub(super) struct Hosts {
    pub(super) net: Net,
    algorithm: String,
}

impl Hosts {
    /// Hosts with offloads or without. They use cubic, as the guests do.
    pub(super) fn new(offloads: bool) -> Result<Self> {
        let mut hosts = Self { net: Net::new(2, 1500)?, algorithm: String::new() };
        for n in [1, 2] {
            let host = format!("h{n}");
            hosts.algorithm = hosts.use_cubic(&host)?;
            if !offloads {
                hosts.without_offloads(&host, "u0")?;
                hosts.without_offloads("link", &format!("p{n}"))?;
            }
        }
        hosts.net.reach("h1", "10.99.0.2", &NEVER)?;
        Ok(hosts)
    }

    /// Two hosts, of which the first `count` have taps at a daemon's switch, ports `h1` and `h2`,
    /// with the addresses 10.9.0.1 and 10.9.0.2.
    pub(super) fn at(daemon: &Daemon, count: usize) -> Result<Self> {
        let mut hosts = Self { net: Net::new(2, 1500)?, algorithm: String::new() };
        for n in 1..=count {
            let host = format!("h{n}");
            let tap = serde_json::json!({ "ifname": "t0", "netns": hosts.net.name(&host) });
            daemon.add_port(&host, &serde_json::json!({ "tap": tap }))?;
            hosts.net.ip(&host, &format!("addr add 10.9.0.{n}/24 dev t0"))?;
            hosts.net.ip(&host, "link set t0 up")?;
            hosts.algorithm = hosts.use_cubic(&host)?;
        }
        Ok(hosts)
    }

    /// Removes the bridge. Interfaces p1 and p2 of the returned namespace are left, each of which
    /// leads to a host.
    pub(super) fn without_bridge(&self) -> Result<String> {
        self.net.ip("link", "link del br0")?;
        Ok(self.net.name("link"))
    }

    /// Selects cubic, if available; returns the algorithm in use. The kernel lets a namespace have
    /// algorithms only that the host allows.
    fn use_cubic(&self, end: &str) -> Result<String> {
        const NAME: &str = "net.ipv4.tcp_congestion_control";
        let _allowed = Allowed::cubic();
        let _ = done(&mut self.net.command(end, &format!("sysctl -qw {NAME}=cubic")));
        let used = done(&mut self.net.command(end, &format!("sysctl -n {NAME}")))?;
        Ok(String::from_utf8_lossy(&used.stdout).trim().to_owned())
    }

    fn without_offloads(&self, end: &str, device: &str) -> Result<()> {
        done(
            &mut self
                .net
                .command(end, &format!("ethtool -K {device} tso off gso off gro off tx off")),
        )?;
        Ok(())
    }
}

/// The host's list of congestion control algorithms that namespaces may have, with cubic; restored
/// on drop.
struct Allowed(String);

impl Allowed {
    const FILE: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";

    fn cubic() -> Option<Self> {
        let before = std::fs::read_to_string(Self::FILE).ok()?;
        let is_there = before.split_whitespace().any(|name| name == "cubic");
        if is_there || std::fs::write(Self::FILE, format!("{} cubic", before.trim())).is_err() {
            return None;
        }
        Some(Self(before))
    }
}

impl Drop for Allowed {
    fn drop(&mut self) {
        let _ = std::fs::write(Self::FILE, &self.0);
    }
}

/// Gb/s of iperf3 per second of both ends' core time; both run on core 0.
fn iperf3(lab: &Lab, offloads: bool) -> Result<f64> {
    lab.once_missing("iperf3", || {
        need("iperf3")?;
        let hosts = Hosts::new(offloads)?;
        let _server = hosts.net.start("h2", "taskset -c 0 iperf3 -s -1")?;
        std::thread::sleep(Duration::from_millis(300));
        let client = format!("taskset -c 0 iperf3 -c 10.99.0.2 -C cubic -J -t {}", time(lab));
        let told = done(&mut hosts.net.command("h1", &client))?;
        let told: serde_json::Value = serde_json::from_slice(&told.stdout)?;
        let end = &told["end"];
        let used = end["sender_tcp_congestion"].as_str().unwrap_or("an unknown algorithm");
        lab.note("congestion", format!("iperf3 over veth and bridge, {used}"));
        let number = |value: &serde_json::Value| value.as_f64().context("iperf3 says no number");
        let bits = number(&end["sum_received"]["bits_per_second"])?;
        let cpu = &end["cpu_utilization_percent"];
        let percent = number(&cpu["host_total"])? + number(&cpu["remote_total"])?;
        ensure!(percent > 0.0, "iperf3 says that it took no time");
        Ok(bits / 1e9 * 100.0 / percent)
    })
}

/// Length of a peer's run in whole seconds.
pub(super) fn time(lab: &Lab) -> u64 {
    if lab.seconds() < 0.5 { 1 } else { 2 }
}

/// With segmentation, checksums and merging by the kernel.
pub fn offloads(lab: &Lab) -> Result<f64> {
    iperf3(lab, true)
}

/// Without offloads.
pub fn plain(lab: &Lab) -> Result<f64> {
    iperf3(lab, false)
}

/// Seconds that the main threads of processes have spent on a core. nginx's workers have no others.
fn cpu_of(pids: &[u32]) -> f64 {
    let nanos = |pid: &u32| -> Option<u64> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
        stat.split(' ').next()?.parse().ok()
    };
    pids.iter().filter_map(nanos).sum::<u64>() as f64 / 1e9
}

/// Seconds of user and kernel time of this process's children that have ended.
fn cpu_of_children() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks =
        rest.split_whitespace().skip(13).take(2).filter_map(|word| word.parse::<u64>().ok());
    ticks.sum::<u64>() as f64 / 100.0
}

/// nginx with documents of one length in memory.
pub(super) struct Nginx {
    pub(super) hosts: Hosts,
    _server: Running,
    workers: Vec<u32>,
    _dir: tempfile::TempDir,
}

impl Nginx {
    fn start(lab: &Lab, len: usize) -> Result<Self> {
        Self::at(lab, Hosts::new(true)?, len)
    }

    /// nginx in host `h2`.
    pub(super) fn at(lab: &Lab, hosts: Hosts, len: usize) -> Result<Self> {
        ["nginx", "wrk", "curl"].into_iter().try_for_each(need)?;
        let dir = tempfile::Builder::new().prefix("nginx").tempdir_in(lab.dir())?;
        let path = |name: &str| -> PathBuf { dir.path().join(name) };
        std::fs::write(path("page"), vec![b'x'; len])?;
        let (root, pid) = (dir.path().display(), path("pid"));
        let text = format!(
            "user root; worker_processes 1; worker_cpu_affinity 10; daemon off; pid {};\n\
             error_log {root}/errors; events {{ worker_connections 1024; }}\n\
             http {{ sendfile on; tcp_nopush on; tcp_nodelay on; access_log off;\n\
             keepalive_requests 100000000; open_file_cache max=100; open_file_cache_valid 600s;\n\
             server {{ listen 80; root {root}; }} }}\n",
            pid.display()
        );
        std::fs::write(path("nginx.conf"), text)?;
        let config = path("nginx.conf");
        let server = hosts.net.start("h2", &format!("nginx -c {}", config.display()))?;
        let asked =
            || done(&mut hosts.net.command("h1", "curl -sf -o /dev/null http://10.99.0.2/page"));
        let mut tries = 0;
        while let Err(error) = asked() {
            tries += 1;
            ensure!(tries < 50, "nginx does not answer: {error}");
            std::thread::sleep(Duration::from_millis(100));
        }
        let master = std::fs::read_to_string(&pid)?.trim().to_owned();
        let children = std::fs::read_to_string(format!("/proc/{master}/task/{master}/children"))?;
        let workers = children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
        Ok(Self { hosts, _server: server, workers, _dir: dir })
    }

    /// Its workers.
    pub(super) fn processes(&self) -> Vec<i32> {
        self.workers.iter().map(|pid| pid.cast_signed()).collect()
    }

    /// Pages for each second that nginx and wrk have spent on a core: the busier of them, or both.
    fn pages(&self, lab: &Lab, connections: usize, both: bool) -> Result<f64> {
        let before = cpu_of(&self.workers);
        let time = time(lab);
        let words = format!("taskset -c 0 wrk -t1 -c{connections} -d{time} http://10.99.0.2/page");
        let (requests, load) = requests(&self.hosts, &words)?;
        let server = cpu_of(&self.workers) - before;
        let used = &self.hosts.algorithm;
        lab.note("nginx", format!("nginx ({used}) had {server:.2} s, wrk {load:.2} s on a core"));
        ensure!(server.max(load) > 0.0, "neither took any time");
        Ok(requests / if both { server + load } else { server.max(load) })
    }
}

/// Requests of a wrk in host `h1`, and the seconds that it has spent on a core.
pub(super) fn requests(hosts: &Hosts, words: &str) -> Result<(f64, f64)> {
    let children = cpu_of_children();
    let told = hosts.net.run("h1", words)?;
    let requests = told.lines().find_map(|line| line.trim().split_once(" requests in "));
    let requests: f64 = requests.context("wrk says no number")?.0.trim().parse()?;
    Ok((requests, cpu_of_children() - children))
}

/// Pages of `len` bytes a second, from nginx on core 1 to wrk on core 0.
pub fn pages(lab: &Lab, len: usize) -> Result<f64> {
    lab.once_missing("nginx", || Nginx::start(lab, len)?.pages(lab, 16, false))
}

/// The same rate per second of core time that both have spent.
pub fn pages_of_both(lab: &Lab, len: usize) -> Result<f64> {
    lab.once_missing("nginx", || Nginx::start(lab, len)?.pages(lab, 16, true))
}
