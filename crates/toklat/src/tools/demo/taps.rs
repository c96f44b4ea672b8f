//! Two taps in two network namespaces, with ping and iperf3 across the switch.

use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Context;
use hyper::Method;
use lab::hosts::programs::find;
use rustix::thread::CapabilitySet;
use topology::Tap;

use super::processes::{Process, output};
use super::{Demo, Outcome};
use crate::api::{NewPort, PortInfo, PortSpec};

/// The capabilities that are needed to make taps, and network namespaces for them.
const NEEDED: CapabilitySet = CapabilitySet::NET_ADMIN.union(CapabilitySet::SYS_ADMIN);

/// The reason why taps cannot be made; `None` if they can.
pub fn obstacle() -> Option<String> {
    if !jail::holds(NEEDED) {
        return Some("needs CAP_NET_ADMIN and CAP_SYS_ADMIN: run the demo as root".into());
    }
    if find("ip").is_none() {
        return Some("needs `ip`: install iproute2".into());
    }
    if !std::path::Path::new("/dev/net/tun").exists() {
        return Some("needs /dev/net/tun: modprobe tun".into());
    }
    None
}

/// The prefix of this process's namespaces.
pub fn namespaces() -> String {
    format!("toklat-demo-{}-", std::process::id())
}

/// A network namespace. Dropping it removes it with its content.
struct Namespace {
    name: String,
}

impl Namespace {
    fn add(name: String, stop: &AtomicBool) -> anyhow::Result<Self> {
        ip(&["netns", "add", &name], stop)?;
        Ok(Self { name })
    }

    /// A command that runs in the namespace.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        lab::hosts::namespaces::remove(&self.name);
    }
}

fn ip(args: &[&str], stop: &AtomicBool) -> anyhow::Result<String> {
    output(&format!("ip {}", args.join(" ")), Command::new("ip").args(args), stop)
}

/// Runs what this machine supports. The namespaces are gone afterwards.
///
/// # Errors
/// If something that should work does not.
pub fn run(demo: &mut Demo, duration: Duration) -> anyhow::Result<Vec<Outcome>> {
    eprintln!("two taps in two network namespaces:");
    let pid = std::process::id();
    let (stop, mut spaces) = (demo.stop.clone(), Vec::new());
    for (i, side) in ["a", "b"].into_iter().enumerate() {
        let space = Namespace::add(format!("{}{side}", namespaces()), &stop)?;
        let ifname = format!("tk{side}{pid}");
        let netns = Some(space.name.clone());
        let kind = Tap { netns, ..Tap::called(&ifname) }.into();
        let spec = PortSpec { kind, ..PortSpec::default() };
        let port = NewPort { name: format!("tap-{side}"), spec };
        let _: PortInfo = demo
            .client
            .send(Method::POST, "/v1/switches/demo/ports", &port)
            .context("Cannot add a tap port")?;
        let address = format!("10.77.77.{}/24", i + 1);
        ip(&["-n", &space.name, "addr", "add", &address, "dev", &ifname], &stop)?;
        ip(&["-n", &space.name, "link", "set", &ifname, "up"], &stop)?;
        spaces.push(space);
    }
    let ping = match find("ping") {
        Some(_) => ping(&spaces[0], &stop)?,
        None => Outcome::skipped("ping between taps", "needs `ping`: install iputils-ping"),
    };
    let iperf = match find("iperf3") {
        Some(_) => iperf(demo, &spaces, duration, &stop)?,
        None => Outcome::skipped("iperf3 between taps", "needs `iperf3`: install iperf3"),
    };
    Ok(vec![ping, iperf])
}

fn ping(from: &Namespace, stop: &AtomicBool) -> anyhow::Result<Outcome> {
    let mut command = from.command("ping");
    command.args(["-q", "-c", "20", "-i", "0.1", "-W", "2", "10.77.77.2"]).env("LC_ALL", "C");
    let text = output("ping", &mut command, stop)?;
    let loss = text.lines().find_map(|line| Some(line.split_once("received, ")?.1));
    let loss = loss.and_then(|rest| rest.split_once(" packet loss")).map_or("?", |(loss, _)| loss);
    // rtt min/avg/max/mdev = 0.052/0.071/0.113/0.020 ms
    let times = text.lines().find_map(|line| Some(line.strip_prefix("rtt ")?.split_once("= ")?.1));
    let average = times.and_then(|times| times.split('/').nth(1)).unwrap_or("?");
    let result = format!("{average} ms average, {loss} lost");
    Ok(Outcome::counted("ping between taps", result, loss == "0%"))
}

fn iperf(
    demo: &Demo,
    spaces: &[Namespace],
    duration: Duration,
    stop: &AtomicBool,
) -> anyhow::Result<Outcome> {
    let mut server = spaces[1].command("iperf3");
    let server = Process::start("iperf3 -s", server.args(["-s", "-1"]), &demo.log())?;
    // Only an attempt shows whether the server listens. It accepts one client.
    std::thread::sleep(Duration::from_millis(500));
    let seconds = duration.as_secs().max(1).to_string();
    let mut client = spaces[0].command("iperf3");
    let text = output("iperf3", client.args(["-c", "10.77.77.2", "-t", &seconds, "-J"]), stop);
    drop(server);
    let report: serde_json::Value = serde_json::from_str(&text?).context("iperf3's report")?;
    let bits = report.pointer("/end/sum_received/bits_per_second").and_then(|bits| bits.as_f64());
    let bits = bits.context("iperf3 reported no rate")?;
    Ok(Outcome::result("iperf3 between taps", format!("TCP {}", client::table::bps(bits))))
}
