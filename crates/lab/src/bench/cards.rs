//! The rows of `toklat bench netmap` about interfaces as ports: virtual Ethernet pairs between
//! network namespaces.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::bar::Bar;
use super::isolated::POLLED;
use super::lab::{Daemon, Lab};
use super::netmap::{figure, program};
use super::peer::Peer;
use super::rows::{Better, Row, more};
use super::stacks_linux::{Hosts, time};
use super::traffic::{Flow, SINK, on_core};
use crate::hosts::NEVER;
use crate::hosts::programs::{done, need};

const OUT: &str = "core 0: a client's generator, core 1: the switch's worker, polling, which sends by the interface; frames \
    that its far end counts. Peer: a minimal AF_XDP program sends on core 1";
const TAP: &str = "the same. Peer: the same generator and worker with a tap";
const IN: &str = "core 0: a minimal AF_XDP program sends at the interface's far end; core 1: the switch's worker, polling, \
    which forwards to a `null` port. Peer: a minimal AF_XDP program receives on core 1";
const TCP: &str = "core 0: both ends of iperf3, in namespaces with an interface each; core 1: the switch's worker, polling, \
    between two interfaces by packet sockets. Peer: Linux's bridge between the same interfaces";

/// The rows of this measurement.
pub const ROWS: &[Row] = &[
    more(
        "card.xdp.64",
        Bar::ratio(0.9),
        OUT,
        |lab| out(lab, Far::Card),
        Peer::Toklat("AF_XDP program", |lab| alone(lab, "tx")),
    ),
    more(
        "card.xdp.64.tap",
        Bar::ratio(1.5),
        TAP,
        |lab| out(lab, Far::Card),
        Peer::Toklat("tap", |lab| out(lab, Far::Tap)),
    ),
    more(
        "card.xdp.64.in",
        Bar::ratio(0.9),
        IN,
        into,
        Peer::Toklat("AF_XDP program", |lab| alone(lab, "rx")),
    ),
    Row {
        id: "card.tcp",
        unit: "Gb/s",
        bar: Bar::ratio(0.9),
        better: Better::More,
        how: TCP,
        ours: tcp,
        peer: Peer::Toklat("Linux's bridge", |lab| iperf3(lab, &Hosts::new(true)?)),
    },
];

/// The port through which frames leave the switch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Far {
    Card,
    Tap,
}

/// A port of the interface that leads to a host.
fn interface(host: u32, netns: &str, engine: &str) -> Value {
    json!({ "interface": { "ifname": format!("p{host}"), "netns": netns, "engine": engine } })
}

/// A counter of an interface of a host.
fn counter(hosts: &Hosts, end: &str, ifname: &str, way: &str) -> Result<f64> {
    let told = done(&mut hosts.net.command(end, &format!("ip -s -j link show dev {ifname}")))?;
    let told: Value = serde_json::from_slice(&told.stdout)?;
    told[0]["stats64"][way]["packets"].as_f64().context("ip says no number of packets")
}

/// Mpps that `count` counts while `work` is repeated on core 0, after a tenth of the time.
fn counted(
    time: Duration,
    count: impl Fn() -> Result<f64> + Send,
    mut work: impl FnMut() -> Result<()> + Send,
) -> Result<f64> {
    on_core(0, move || {
        let mut run = |time: Duration| -> Result<f64> {
            let (start, before) = (Instant::now(), count()?);
            while start.elapsed() < time {
                work()?;
            }
            Ok((count()? - before) / start.elapsed().as_secs_f64() / 1e6)
        };
        run(time / 10)?;
        run(time)
    })
}

/// A client's frames out of the switch.
fn out(lab: &Lab, far: Far) -> Result<f64> {
    let hosts = Hosts::new(false)?;
    let netns = hosts.without_bridge()?;
    let daemon = lab.daemon(POLLED)?;
    let kind = match far {
        Far::Card => interface(1, &netns, "xdp"),
        Far::Tap => json!({ "tap": { "ifname": "tap0", "netns": netns } }),
    };
    daemon.add_port_of("far", &kind, &[SINK])?;
    let (mut port, flow) = (daemon.port("gen")?, Flow::new(64, false));
    let (end, ifname) = if far == Far::Card { ("h1", "u0") } else { ("link", "tap0") };
    counted(
        lab.duration(),
        || counter(&hosts, end, ifname, "rx"),
        || (0..64).try_for_each(|_| flow.generate(&mut port).map(drop)),
    )
}

/// Frames that have come from the interface into the switch.
fn come(daemon: &Daemon) -> Result<f64> {
    let stats = serde_json::to_value(daemon.stats()?)?;
    let ports = stats["ports"].as_array().context("no ports in the statistics")?;
    let near = ports.iter().find(|port| port["name"] == "near");
    near.and_then(|port| port["in_frames"].as_f64()).context("no port of the interface")
}

/// A sender at the interface's far end, for longer than any measurement takes.
fn sender(lab: &Lab) -> Result<String> {
    Ok(format!("taskset -c 0 {} tx u0 60", program(lab, "xdp", "-O2")?.display()))
}

/// Frames from an interface into the switch.
fn into(lab: &Lab) -> Result<f64> {
    let hosts = Hosts::new(false)?;
    let netns = hosts.without_bridge()?;
    let daemon = lab.daemon(POLLED)?;
    daemon.add_port("near", &interface(1, &netns, "xdp"))?;
    daemon.add_port_of("far", &json!("null"), &[SINK])?;
    let _sender = hosts.net.start("h1", &sender(lab)?)?;
    let start = Instant::now();
    while come(&daemon)? < 1000.0 {
        ensure!(start.elapsed() < Duration::from_secs(10), "nothing comes from the interface");
    }
    counted(
        lab.duration(),
        || come(&daemon),
        || {
            std::thread::sleep(Duration::from_millis(10));
            Ok(())
        },
    )
}

/// The program alone, at the near end of the interface.
fn alone(lab: &Lab, way: &str) -> Result<f64> {
    let hosts = Hosts::new(false)?;
    hosts.without_bridge()?;
    let xdp = program(lab, "xdp", "-O2")?;
    let _sender = (way == "rx").then(|| hosts.net.start("h1", &sender(lab)?)).transpose()?;
    figure(
        &mut hosts
            .net
            .command("link", &format!("taskset -c 1 {} {way} p1 {}", xdp.display(), lab.seconds())),
    )
}

/// Gb/s of TCP between two hosts, both ends on core 0.
fn iperf3(lab: &Lab, hosts: &Hosts) -> Result<f64> {
    lab.once_missing("iperf3", || {
        need("iperf3")?;
        let _server = hosts.net.start("h2", "taskset -c 0 iperf3 -s -1")?;
        let client = format!("taskset -c 0 iperf3 -c 10.99.0.2 -J -t {}", time(lab));
        // Until the server listens. With -J, iperf3 may fail with a status of success.
        let (start, mut bits) = (Instant::now(), None);
        while bits.is_none() && start.elapsed() < Duration::from_secs(10) {
            let Ok(told) = done(&mut hosts.net.command("h1", &client)) else { continue };
            let told: Value = serde_json::from_slice(&told.stdout)?;
            bits = told["end"]["sum_received"]["bits_per_second"].as_f64();
        }
        Ok(bits.context("iperf3 says no number")? / 1e9)
    })
}

/// TCP through the switch.
fn tcp(lab: &Lab) -> Result<f64> {
    let hosts = Hosts::new(true)?;
    let netns = hosts.without_bridge()?;
    let daemon = lab.daemon(POLLED)?;
    for host in [1, 2] {
        daemon.add_port(&format!("p{host}"), &interface(host, &netns, "packet"))?;
    }
    hosts.net.reach("h1", "10.99.0.2", &NEVER)?;
    iperf3(lab, &hosts)
}
