//! A Linux guest with a network card, and a program at the far end of its wire. Measures
//! throughput, and what the card costs the guest. One boot yields a sample of every figure.

use std::collections::BTreeMap;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use frame::Mac;
use port::stats::PortStats;
use serde_json::json;

use super::wire::Wire;
use crate::Bridge;
use crate::bench::lab::{Daemon, Lab};
use host::tap;
use vm::{Accelerator, Backend, Boot, Console, Machine, Model, Nic, Qemu, Running, Version, guest};

/// A network card and its backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Card {
    /// 82540EM by vfio-user, driver e1000.
    I82540em,
    /// 82574L by vfio-user, driver e1000e.
    I82574l,
    /// The same with its status block and the driver toklat_e1000.
    Csb,
    /// Am79C970A by vfio-user, driver pcnet32.
    Pcnet,
    /// virtio-net by vhost-user.
    Virtio,
    /// QEMU's own card, on its stream socket.
    Stream(QemuCard),
    /// QEMU's own, on a tap at a bridge.
    Tap(QemuCard),
}

/// QEMU's cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum QemuCard {
    /// 82540EM.
    E1000,
    /// 82574L.
    E1000e,
    /// PCnet.
    Pcnet,
}

/// A figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Figure {
    /// UDP datagrams of 18 bytes that the guest sends, in thousands per second.
    Udp,
    /// The same by pktgen, 32 at a time.
    Burst,
    /// Such datagrams of a flood that the guest receives, in thousands per second.
    Receive,
    /// Round trip from the far end through the guest's UDP, in microseconds: median and 99th
    /// percentile.
    RoundTrip,
    /// The 99th percentile of the round trips.
    RoundTrip99,
    /// Register accesses and ends of interrupts that the guest waited for, per sent frame.
    SyncSent,
    /// The same, per received frame.
    SyncReceived,
    /// Posted register writes, per sent frame.
    PostedSent,
    /// Interrupts per received frame.
    InterruptsReceived,
}

const GUEST: Mac = Mac::new([0x52, 0x54, 0, 0x77, 0x79, 1]);
const FAR: Mac = Mac::new([0x52, 0x54, 0, 0x77, 0x79, 2]);
const GUEST_IP: [u8; 4] = [10, 77, 79, 1];
const FAR_IP: [u8; 4] = [10, 77, 79, 2];
const ECHO: u16 = 7;
const DISCARD: u16 = 9;
/// Commands of the guest. It prints `at X` when phase X begins or ends.
const COMMANDS: &str = "arp -s 10.77.79.2 52:54:00:77:79:02; pkt echo 7 & \
    at() { echo toklat-guest: at $1; }; until grep -q 1 /sys/class/net/eth0/carrier; do sleep 0.1; done; now() { cat /sys/class/net/eth0/statistics/rx_packets; }; \
    at udp; pkt udp 10.77.79.2 9 18 2; at burst; insmod /lib/modules/pktgen.ko; cd /proc/net/pktgen; \
    echo add_device eth0 >kpktgend_0; for o in 'count 0' 'pkt_size 60' 'burst 32' 'dst 10.77.79.2' 'dst_mac 52:54:00:77:79:02'; \
    do echo $o >eth0; done; at pktgen; (sleep 2; echo stop >pgctrl) & echo start >pgctrl; wait %2; cd /; \
    at receive; sleep 0.5; a=$(now); sleep 2; b=$(now); echo toklat-guest: received $((b - a)) in 2 s; sleep 1; \
    at trips; sleep 60";
/// How long a phase is observed, and the delay before that.
pub(super) const WATCHED: Duration = Duration::from_millis(1200);
pub(super) const SETTLED: Duration = Duration::from_millis(400);
pub(super) const BOOT: Duration = Duration::from_secs(120);
const TRIPS: usize = 500;
/// A flood: frames of a burst, and the time between bursts.
const FLOOD: (usize, Duration) = (64, Duration::from_micros(500));

/// Returns a figure of a card: an unused one of an earlier boot, or one of a new boot.
pub fn figure(lab: &Lab, card: Card, what: Figure) -> Result<f64> {
    lab.figure(card, what, || measure(lab, card))
}

/// A running guest, the far end of its wire, and what lies between.
struct Setup {
    guest: Running,
    far: Wire,
    daemon: Option<Daemon>,
    _bridge: Option<Bridge>,
}

fn measure(lab: &Lab, card: Card) -> Result<BTreeMap<Figure, f64>> {
    lab.note("accelerator", format!("guests run by {}", Accelerator::choose().0.name()));
    let mut setup = Setup::boot(lab, card)?;
    let mut measured = BTreeMap::new();
    for (at, what) in [("at udp", Figure::Udp), ("at pktgen", Figure::Burst)] {
        setup.wait_for(at)?;
        setup.far.rate(SETTLED, |_| true)?;
        let before = setup.counters()?;
        let rate = setup.far.rate(WATCHED, |frame| is_udp(frame, DISCARD))?;
        ensure!(rate > 0.0, "nothing came of the guest's {what:?}");
        measured.insert(what, rate / 1e3);
        if what == Figure::Udp {
            let after = setup.counters()?;
            let spent = Cost::between(&before, &after);
            let sent = after.in_frames.saturating_sub(before.in_frames);
            measured.insert(Figure::SyncSent, spent.waited / sent.max(1) as f64);
            measured.insert(Figure::PostedSent, spent.posted / sent.max(1) as f64);
        }
    }
    setup.drain_until("at receive")?;
    let (received, spent) = setup.flood()?;
    ensure!(received > 0.0, "the guest received nothing");
    measured.insert(Figure::Receive, received / 2.0 / 1e3);
    measured.insert(Figure::SyncReceived, spent.waited);
    measured.insert(Figure::InterruptsReceived, spent.interrupts);
    setup.wait_for("at trips")?;
    let [half, most] = setup.trips()?;
    measured.insert(Figure::RoundTrip, half);
    measured.insert(Figure::RoundTrip99, most);
    Ok(measured)
}

/// What a network card costs the guest.
struct Cost {
    waited: f64,
    posted: f64,
    interrupts: f64,
}

impl Cost {
    fn between(before: &PortStats, after: &PortStats) -> Self {
        let of = |count: fn(&PortStats) -> u64| count(after).saturating_sub(count(before)) as f64;
        Self {
            waited: of(|c| c.reads + c.writes + c.acknowledgements),
            posted: of(|c| c.posted_writes),
            interrupts: of(|c| c.interrupts),
        }
    }
}

impl Setup {
    fn boot(lab: &Lab, card: Card) -> Result<Self> {
        // All cards use the same version of QEMU.
        let qemu = Qemu::at_least(None, Version::VFIO_USER)?;
        match card {
            Card::Stream(_) => {
                let path = lab.dir().join("card.sock");
                let _ = std::fs::remove_file(&path);
                let listener = UnixListener::bind(&path)?;
                let guest = start(&qemu, card, Backend::Stream(path), &[])?;
                let far = Wire::stream(listener.accept()?.0);
                Ok(Self { guest, far, daemon: None, _bridge: None })
            }
            Card::Tap(_) => {
                let bridge = Bridge::new()?;
                let [near, far] = bridge.taps();
                let far = Wire::Tap(tap::queue_of_tap(far, bridge.namespace())?);
                let backend = Backend::Tap { ifname: near.into(), vhost: false };
                let guest = start(&qemu, card, backend, &bridge.prefix())?;
                Ok(Self { guest, far, daemon: None, _bridge: Some(bridge) })
            }
            _ => {
                let daemon = lab.daemon("")?;
                let socket = daemon.dir().join("card.sock");
                daemon.add_port_of("card", &card.port(&socket), &[GUEST])?;
                daemon.set_default_coalescing("card", card.model())?;
                let far = Wire::Port(Box::new(daemon.port("far")?));
                let guest = start(&qemu, card, card.model().backend(socket), &[])?;
                Ok(Self { guest, far, daemon: Some(daemon), _bridge: None })
            }
        }
    }

    fn wait_for(&mut self, text: &str) -> Result<String> {
        self.guest.wait_for(text, BOOT, &AtomicBool::new(false))
    }

    /// Discards frames until the guest prints `text`.
    fn drain_until(&mut self, text: &str) -> Result<()> {
        let stop = AtomicBool::new(false);
        let limit = Instant::now() + BOOT;
        while self.guest.wait_for(text, Duration::ZERO, &stop).is_err() {
            self.far.receive(|_| {})?;
            ensure!(Instant::now() < limit, "the guest did not get to {text:?}");
        }
        Ok(())
    }

    /// Returns the counters of the guest's port; all zero where there is no switch.
    fn counters(&self) -> Result<PortStats> {
        let Some(daemon) = &self.daemon else { return Ok(PortStats::default()) };
        let port = daemon.stats()?.ports.into_iter().find(|port| port.name == "card");
        Ok(port.context("the guest's port is gone")?.counters)
    }

    /// Sends a flood. Returns how many frames the guest received in 2 s, and the cost of each.
    fn flood(&mut self) -> Result<(f64, Cost)> {
        let datagram = udp(DISCARD, &[0; 18]);
        let (frames, gap) = FLOOD;
        let before = self.counters()?;
        let start = Instant::now();
        let mut next = start;
        while start.elapsed() < Duration::from_millis(2700) {
            self.far.send(&datagram, frames)?;
            self.far.receive_now(|_| {})?;
            next += gap;
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        let after = self.counters()?;
        let said = self.wait_for("toklat-guest: received")?;
        let number = said.split(' ').find_map(|word| word.parse::<f64>().ok());
        let out = after.out_frames.saturating_sub(before.out_frames).max(1) as f64;
        let Cost { waited, posted, interrupts } = Cost::between(&before, &after);
        let spent =
            Cost { waited: waited / out, posted: posted / out, interrupts: interrupts / out };
        Ok((number.with_context(|| said.clone())?, spent))
    }

    /// Measures round trips, one at a time: median and 99th percentile, in us.
    fn trips(&mut self) -> Result<[f64; 2]> {
        let mut trips = Vec::new();
        let mut lost = 0;
        for number in 0u32.. {
            let question = udp(ECHO, &number.to_be_bytes());
            let start = Instant::now();
            self.far.send(&question, 1)?;
            let mut answered = false;
            while !answered && start.elapsed() < Duration::from_millis(300) {
                self.far.receive(|frame| {
                    answered |= frame.get(42..46) == Some(&number.to_be_bytes())
                })?;
            }
            if answered {
                trips.push(start.elapsed().as_secs_f64() * 1e6);
            } else {
                lost += 1;
            }
            if trips.len() == TRIPS {
                break;
            }
            if lost > 20 {
                bail!("the guest answered {} of {} times", trips.len(), number + 1);
            }
        }
        trips.sort_unstable_by(f64::total_cmp);
        Ok([trips[TRIPS / 2], trips[TRIPS * 99 / 100]])
    }
}

impl Card {
    const fn model(self) -> Model {
        match self {
            Self::I82540em => Model::I82540em,
            Self::I82574l | Self::Csb => Model::I82574l,
            Self::Pcnet => Model::Am79c970a,
            Self::Virtio => Model::Virtio,
            Self::Stream(own) | Self::Tap(own) => match own {
                QemuCard::E1000 => Model::E1000,
                QemuCard::E1000e => Model::E1000e,
                QemuCard::Pcnet => Model::Pcnet,
            },
        }
    }

    /// The port that the card is plugged into.
    fn port(self, socket: &std::path::Path) -> serde_json::Value {
        match self.model().emulated() {
            Some(model) => {
                let nic = json!({ "model": model, "csb": self == Self::Csb });
                json!({ "vfio_user": { "path": socket, "nic": nic } })
            }
            None => json!({ "vhost_user": { "path": socket, "client": false } }),
        }
    }
}

fn start(
    qemu: &Qemu,
    card: Card,
    backend: Backend,
    prefix: &[std::ffi::OsString],
) -> Result<Running> {
    let dir: PathBuf = guest::find()?;
    let mut boot = guest::boot(&dir, Some("10.77.79.1/24"), Some(COMMANDS))?;
    if let (Card::Csb, Boot::Kernel { append, .. }) = (card, &mut boot) {
        *append = append.replace(" -- ", " toklat.driver=toklat -- ");
    }
    let model = card.model();
    let machine = Machine {
        name: "card".into(),
        accelerator: Accelerator::choose().0,
        memory: 256,
        cpus: 1,
        boot,
        iommu: false,
        nic: Nic { model, mac: GUEST, backend, queues: 1, packed: false },
        console: Console::Plain,
        more: Vec::new(),
    };
    Running::start(qemu, &machine, prefix)
}

/// Returns true for a UDP datagram over IPv4 to or from this port.
fn is_udp(frame: &[u8], port: u16) -> bool {
    frame.get(12..14) == Some(&[8, 0])
        && frame.get(23) == Some(&17)
        && frame.get(36..38) == Some(&port.to_be_bytes())
}

/// Makes a UDP datagram from the far end to the guest, without a UDP checksum (RFC 768 allows
/// that).
fn udp(port: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = [&GUEST.octets()[..], &FAR.octets(), &[8, 0, 0x45, 0]].concat();
    frame.extend((28 + payload.len() as u16).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    frame.extend([FAR_IP, GUEST_IP].as_flattened());
    let sum = frame::checksum::checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame.extend([DISCARD.to_be_bytes(), port.to_be_bytes()].as_flattened());
    frame.extend((8 + payload.len() as u16).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    frame.resize(frame.len().max(60), 0);
    frame
}
