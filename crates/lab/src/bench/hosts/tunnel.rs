//! The tunnel's data path: costs of frames, TCP, round trips.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use netring::Port;

use super::super::lab::{Daemon, Lab, wait_until};
use super::super::traffic::{BATCH, SINK, SOURCE, announce, header, take};
use super::{Threads, static_tunnel, with_guest};
use crate::hosts::programs::{Missing, done};
use crate::hosts::{NEVER, Net};

/// MTU of the underlay, so that frames of 1514 bytes fit.
const LARGE: u32 = 9000;
/// Different lengths in a round, so that no two frames in a row make a train.
const LENGTHS: usize = 16;

/// The lengths of frames: one, or a round of rising ones.
#[derive(Clone, Copy)]
pub struct Frames {
    pub len: usize,
    pub trains: bool,
}

impl Frames {
    fn shortest(self) -> usize {
        match self {
            Self { len, trains: true } => len,
            // In a round of lengths, the shortest is the minimum, and the others are longer.
            Self { len: 64, .. } => 64,
            Self { len, .. } => len + 1 - LENGTHS,
        }
    }

    fn longest(self) -> usize {
        if self.trains { self.len } else { self.shortest() + LENGTHS - 1 }
    }
}

fn counter(daemon: &Daemon, what: &str) -> Result<u64> {
    let stats = serde_json::to_value(daemon.stats()?)?;
    let mut ports = stats["ports"].as_array().into_iter().flatten();
    let fabric = ports.find(|port| port["name"] == "fabric").context("no tunnel")?;
    Ok(fabric[what].as_u64().unwrap_or(0))
}

/// The underlay cuts trains in software, as a card does that cannot. Otherwise, nothing cuts them
/// between two namespaces, and a train costs as much as a frame.
fn without_udp_segmentation(net: &Net) -> Result<()> {
    for host in ["h1", "h2"] {
        let off = net.run(host, "ethtool -K u0 tx-udp-segmentation off");
        off.context(Missing::new("ethtool", "apt-get install ethtool"))?;
    }
    Ok(())
}

/// Has the sender's switch learn where the sink is.
fn learn(source: &mut Port, sink: &mut Port) -> Result<()> {
    let begun = Instant::now();
    while take(source) == 0 {
        announce(sink)?;
        source.flush()?;
        std::thread::sleep(Duration::from_millis(10));
        ensure!(begun.elapsed() < Duration::from_secs(10), "no frame comes through the tunnel");
    }
    Ok(())
}

/// Nanoseconds of both data processes for a frame from ring to ring, through a tunnel.
pub fn cost(lab: &Lab, frames: Frames) -> Result<f64> {
    let net = Net::new(2, LARGE)?;
    without_udp_segmentation(&net)?;
    let sender = lab.daemon(&static_tunnel(&net, (1, 2), None))?;
    let receiver = lab.daemon(&static_tunnel(&net, (2, 1), None))?;
    let (mut source, mut sink) = (sender.port("gen")?, receiver.port("sink")?);
    learn(&mut source, &mut sink)?;
    let pids = [sender.data_process()?, receiver.data_process()?];
    let read = || -> Result<([u64; 2], [Threads; 2])> {
        let counts = [counter(&sender, "out_frames")?, counter(&receiver, "in_frames")?];
        Ok((counts, [Threads::of(pids[0])?, Threads::of(pids[1])?]))
    };
    let (head, mut next) = (header(SINK, SOURCE), 0);
    let (shortest, round) = (frames.shortest(), frames.longest() + 1 - frames.shortest());
    let mut run = |time: Duration| -> Result<()> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            source.send(BATCH).fill(BATCH, |window| {
                window.copy_in(&head);
                next += 1;
                shortest + next % round
            });
            source.flush()?;
            take(&mut sink);
            sink.flush()?;
        }
        Ok(())
    };
    run(lab.duration() / 5)?;
    let before = read()?;
    run(lab.duration() * 2)?;
    let after = read()?;
    let [sent, got] = std::array::from_fn(|i| (after.0[i] - before.0[i]) as f64);
    let [sending, receiving] = std::array::from_fn(|i| after.1[i].since(&before.1[i]) as f64);
    ensure!(sent > 1000.0 && got > 1000.0, "{sent} frames were sent, {got} came");
    lab.note("ours", format!("{:.0} % of the frames came", 100.0 * got / sent));
    Ok(sending / sent + receiving / got)
}

/// Nanoseconds of the sender's thread for a frame through the kernel's VXLAN.
pub fn kernel_cost(lab: &Lab, frames: Frames) -> Result<f64> {
    lab.once_missing("VXLAN", || {
        let net = Net::new(2, LARGE)?;
        without_udp_segmentation(&net)?;
        for (n, peer) in [(1, 2), (2, 1)] {
            let options = format!("id 100 local 10.99.0.{n} remote 10.99.0.{peer} dstport 4789");
            let made = net.ip(&format!("h{n}"), &format!("link add vx100 type vxlan {options}"));
            made.context(Missing::new("the kernel's VXLAN", ""))?;
            net.ip(&format!("h{n}"), "link set vx100 mtu 1600 up")?;
        }
        let program = lab.dir().join("vx");
        if !program.exists() {
            let source = lab.dir().join("vx.c");
            done(Command::new("cc").args(["-O2", "-o"]).arg(&program).arg(source))?;
        }
        let words = format!(
            "{} vx100 {} {} {}",
            program.display(),
            frames.shortest(),
            frames.longest(),
            lab.seconds() * 2.0
        );
        let came = || -> Result<f64> {
            let text = net.run("h2", "cat /sys/class/net/vx100/statistics/rx_packets")?;
            Ok(text.trim().parse()?)
        };
        let before = came()?;
        let told: serde_json::Value = serde_json::from_str(&net.run("h1", &words)?)?;
        let frames = told["frames"].as_f64().context("no number of frames")?;
        let share = 100.0 * (came()? - before) / frames;
        lab.note("kernel", format!("the kernel's: {share:.0} % came"));
        told["value"].as_f64().context("no value")
    })
}

/// Two guests behind tunnels: toklat's taps, or veth pairs at bridges of the kernel's VXLAN.
struct Guests {
    daemons: Vec<Daemon>,
    net: Net,
}

const INNER: u32 = 1450;

impl Guests {
    fn ours(lab: &Lab, idle: &str) -> Result<Self> {
        let mut net = Net::new(2, 1500)?;
        let mut daemons = Vec::new();
        for (n, peer) in [(1, 2), (2, 1)] {
            let lines =
                format!("idle = \"{idle}\"\n{}", static_tunnel(&net, (n, peer), Some(INNER)));
            daemons.push(with_guest(lab, &mut net, n, &lines)?);
        }
        net.reach("g1", "192.168.7.2", &NEVER)?;
        Ok(Self { net, daemons })
    }

    fn kernels() -> Result<Self> {
        let mut net = Net::new(2, 1500)?;
        net.kernel_tunnel(1, Some(2), INNER)?;
        net.kernel_tunnel(2, Some(1), INNER)?;
        net.reach("g1", "192.168.7.2", &NEVER)?;
        Ok(Self { net, daemons: Vec::new() })
    }

    fn without_offloads(&self) -> Result<()> {
        for (of, device) in [("h1", "u0"), ("h2", "u0"), ("link", "p1"), ("link", "p2")] {
            let off = format!("ethtool -K {device} tx off tso off gso off gro off");
            self.net.run(of, &off)?;
        }
        Ok(())
    }

    fn tcp(&self, lab: &Lab) -> Result<f64> {
        self.net.tcp("g1", ("g2", "192.168.7.2"), if lab.seconds() < 0.5 { 1 } else { 3 })
    }

    /// The median of round trips in us.
    fn round_trip(&self, lab: &Lab, pause_s: f64) -> Result<f64> {
        let count = (lab.seconds() * 2.0 / pause_s).max(20.0) as u32;
        self.net.round_trip("g1", "192.168.7.2", (pause_s, count))
    }
}

/// Gb/s of one TCP stream between taps.
pub fn tcp(lab: &Lab, offloads: bool) -> Result<f64> {
    let guests = Guests::ours(lab, "auto")?;
    if !offloads {
        guests.without_offloads()?;
    }
    guests.tcp(lab)
}

/// The same through the kernel's VXLAN.
pub fn kernel_tcp(lab: &Lab, offloads: bool) -> Result<f64> {
    lab.once_missing("VXLAN", || {
        let guests = Guests::kernels()?;
        if !offloads {
            guests.without_offloads()?;
        }
        guests.tcp(lab)
    })
}

/// Round trip of a ping in us, between taps.
pub fn round_trip(lab: &Lab, idle: &str, pause_s: f64) -> Result<f64> {
    let guests = Guests::ours(lab, idle)?;
    let switches = || -> Result<u64> {
        let of = |daemon: &Daemon| voluntary_switches(daemon.data_process()?);
        guests.daemons.iter().map(of).sum()
    };
    let before = switches()?;
    let us = guests.round_trip(lab, pause_s)?;
    let trips = (lab.seconds() * 2.0 / pause_s).max(20.0);
    let slept = (switches()? - before) as f64 / trips;
    lab.note("sleeps", format!("both data processes slept {slept:.1} times a round trip"));
    Ok(us)
}

/// The same through the kernel's VXLAN.
pub fn kernel_round_trip(lab: &Lab, pause_s: f64) -> Result<f64> {
    lab.once_missing("VXLAN", || Guests::kernels()?.round_trip(lab, pause_s))
}

/// How often threads of a process have gone to sleep.
fn voluntary_switches(pid: i32) -> Result<u64> {
    let mut all = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let status = std::fs::read_to_string(task?.path().join("status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        all += line.and_then(|line| line.trim().parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(all)
}

/// Guest 1 pings an address every 10 ms while `what` happens. Returns how many pings were lost.
pub fn lost_while(
    net: &Net,
    to: &str,
    count: u32,
    what: impl FnOnce() -> Result<()>,
) -> Result<u32> {
    let mut command = net.command("g1", &format!("ping -n -q -i 0.01 -c {count} -W 1 {to}"));
    let child = command.stdout(Stdio::piped()).spawn()?;
    let happened = what();
    let said = child.wait_with_output()?;
    happened?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let number = |word: &str| -> Option<u32> {
        said.split(word).next()?.split([' ', '\n']).rfind(|word| !word.is_empty())?.parse().ok()
    };
    let counts = number(" packets transmitted").zip(number(" received"));
    let (sent, got) = counts.context("ping says no numbers")?;
    Ok(sent - got)
}

/// Waits for a condition of a daemon's API.
pub fn wait_for(
    daemon: &Daemon,
    path: &str,
    is_so: impl Fn(&serde_json::Value) -> bool,
) -> Result<()> {
    wait_until(Duration::from_secs(60), || {
        let value = daemon.client().and_then(|mut c| Ok(c.get::<serde_json::Value>(path)?));
        value.is_ok_and(|value| is_so(&value))
    })
    .with_context(|| format!("waiting for {path}"))
}
