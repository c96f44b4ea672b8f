//! Linux guests, two at a time. One boot yields a sample of every figure.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Result;

use super::lab::{Daemon, Lab};
use vm::{Accelerator, Backend, Model, Qemu, Version, time_of_process};

use crate::{Between, Bridge, Pair, Tcp};

/// The path between two guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathKind {
    /// vhost-user ports of a switch.
    Toklat,
    /// Taps at a Linux bridge.
    Bridge,
    /// A stream socket between both QEMUs.
    Stream,
}

/// A figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Figure {
    /// TCP, in Gb/s.
    Tcp,
    /// Host processor time outside of virtual processors during TCP, in nanoseconds per byte.
    HostTime,
    /// UDP round trip, in microseconds.
    RoundTrip,
    /// Kicks or interrupts, whichever number is larger, per frame of a flood. The switch only.
    Kicks(Coalescing),
}

/// How interrupts are coalesced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Coalescing {
    /// The default of `toklat vm run`.
    Usually,
    /// The longest delay that helps on this machine.
    Long,
    /// No coalescing: the default of ports that are added without `--interrupts`.
    Not,
}

impl Coalescing {
    const ALL: [Self; 3] = [Self::Usually, Self::Long, Self::Not];

    /// The argument of `--interrupts`.
    fn option(self, accelerator: Accelerator) -> &'static str {
        match self {
            Self::Usually => Model::Virtio.usual_interrupts(accelerator).unwrap_or("off"),
            Self::Long => "delay=1000,adaptive",
            Self::Not => "off",
        }
    }
}

/// One boot's figures.
type Measured = BTreeMap<Figure, f64>;

/// Seconds of TCP.
const SECONDS: u32 = 3;

/// Returns a figure of guests: an unused one of an earlier boot, or one of a new boot.
pub fn figure(lab: &Lab, way: PathKind, what: Figure) -> Result<f64> {
    lab.figure(way, what, || measure(lab, way))
}

fn measure(lab: &Lab, way: PathKind) -> Result<Measured> {
    let qemu = Qemu::for_test_guests()?;
    let (accelerator, Version(major, minor)) = (Accelerator::choose().0, qemu.version);
    lab.note("accelerator", format!("guests run by QEMU {major}.{minor}, {}", accelerator.name()));
    match way {
        PathKind::Toklat => toklat(lab, &qemu),
        PathKind::Bridge => {
            let bridge = Bridge::new()?;
            let backends =
                bridge.taps().map(|ifname| Backend::Tap { ifname: ifname.into(), vhost: vhost() });
            pair(&qemu, &Between { backends, prefix: bridge.prefix() })
        }
        PathKind::Stream => {
            let dir = tempfile::tempdir_in(lab.dir())?;
            let path = dir.path().join("socket");
            let backends = [true, false].map(|listen| Backend::Peer { path: path.clone(), listen });
            pair(&qemu, &Between { backends, prefix: Vec::new() })
        }
    }
}

/// Whether the kernel (vhost-net) serves the queues of taps.
fn vhost() -> bool {
    std::fs::File::options().read(true).write(true).open("/dev/vhost-net").is_ok()
}

fn toklat(lab: &Lab, qemu: &Qemu) -> Result<Measured> {
    let daemon = lab.daemon("")?;
    let names = ["vm0", "vm1"];
    let sockets = names.map(|name| daemon.dir().join(format!("{name}.sock")));
    for (name, socket) in names.iter().zip(&sockets) {
        let kind = serde_json::json!({ "vhost_user": { "path": socket, "client": false } });
        daemon.add_port(name, &kind)?;
        daemon.set_default_coalescing(name, Model::Virtio)?;
    }
    let pid = u32::try_from(daemon.data_process()?)?;
    let backends = sockets.map(Backend::VhostUser);
    let between = Between { backends, prefix: Vec::new() };
    let (mut pair, tcp, mut measured) = measure_pair(qemu, &between, || time_of_process(pid))?;
    let (ours, all) = (tcp.served_ns_per_byte, tcp.ns_per_byte);
    let said = format!(
        "in the last run the data process took {ours:.2} ns for each byte, the main loops of both \
         QEMUs {:.2}",
        all - ours
    );
    lab.note("host time", said);
    let flood = || {
        let signals = |held: Coalescing| {
            let option = held.option(Accelerator::choose().0);
            names.iter().try_for_each(|name| daemon.set_coalescing(name, option))?;
            Ok((held, option, signals_per_frame(&daemon)?))
        };
        Coalescing::ALL.into_iter().map(signals).collect::<Result<Vec<_>>>()
    };
    let mut said = Vec::new();
    for (held, option, [kicks, interrupts]) in pair.flood(flood, &AtomicBool::new(false))? {
        said.push(format!("{kicks:.3} kicks and {interrupts:.3} interrupts with {option}"));
        measured.insert(Figure::Kicks(held), kicks.max(interrupts));
    }
    lab.note("flood", format!("in the last run {}", said.join(", ")));
    Ok(measured)
}

/// Kicks and interrupts per delivered frame, over a second.
fn signals_per_frame(daemon: &Daemon) -> Result<[f64; 2]> {
    let before = signals(daemon)?;
    std::thread::sleep(Duration::from_secs(1));
    let after = signals(daemon)?;
    let [frames, kicks, interrupts] =
        std::array::from_fn(|i| after[i].saturating_sub(before[i]) as f64);
    Ok([kicks, interrupts].map(|signals| signals / frames.max(1.0)))
}

/// Delivered frames, wake-ups of the switch by guests, and wake-ups of guests by the switch.
fn signals(daemon: &Daemon) -> Result<[u64; 3]> {
    let ports = daemon.stats()?.ports;
    let sum = |of: fn(&port::stats::PortStats) -> u64| ports.iter().map(|p| of(&p.counters)).sum();
    Ok([sum(|c| c.out_frames), sum(|c| c.wakeups), sum(|c| c.kicks)])
}

fn pair(qemu: &Qemu, between: &Between) -> Result<Measured> {
    Ok(measure_pair(qemu, between, || Duration::ZERO)?.2)
}

fn measure_pair(
    qemu: &Qemu,
    between: &Between,
    served: impl Fn() -> Duration,
) -> Result<(Pair, Tcp, Measured)> {
    let stop = AtomicBool::new(false);
    let mut pair = Pair::boot(qemu, between, SECONDS, &stop)?;
    let round_trip = pair.round_trip(&stop)?;
    let tcp = pair.tcp(served, &stop)?;
    let measured = BTreeMap::from([
        (Figure::RoundTrip, round_trip),
        (Figure::Tcp, tcp.bits / 1e9),
        (Figure::HostTime, tcp.ns_per_byte),
    ]);
    Ok((pair, tcp, measured))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regression_floods_are_measured_with_the_settings_of_toklat_vm_run_and_with_others() {
        let options = |accelerator| Coalescing::ALL.map(|held| held.option(accelerator));
        let usual = Model::Virtio.usual_interrupts(Accelerator::Tcg).unwrap();
        assert_eq!(options(Accelerator::Tcg), [usual, "delay=1000,adaptive", "off"]);
        assert_eq!(options(Accelerator::Kvm), ["off", "delay=1000,adaptive", "off"]);
        for option in options(Accelerator::Tcg) {
            client::units::interrupts(option).unwrap();
        }
    }
}
