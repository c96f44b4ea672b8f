//! netmap programs in a Linux guest that drive its card from their own thread, by VFIO behind the
//! machine's IOMMU; and the same driver without a virtual machine.

use std::path::{Path, PathBuf};

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use frame::Mac;
use nic::csb;
use serde_json::json;
use vm::{Accelerator, Boot, Console, Machine, Model, Nic, Qemu, Running, Version, guest, inside};

use super::cards;
use super::linux::{BOOT, Card, Figure, SETTLED, WATCHED, figure};
use super::machine::Variant;
use super::wire::Wire;
use crate::bench::bar::Bar;
use crate::bench::lab::{Daemon, Lab};
use crate::bench::netmap::{preloaded, program};
use crate::bench::peer::Peer;
use crate::bench::rows::{Row, more};
use crate::hosts::programs::Missing;

const GUEST: &str = "a Linux guest with one virtual processor (`.two`: two), a netmap program in it that sends bursts of \
    64 frames of 64 bytes by poll() and drives the guest's 82540EM itself (status block; VFIO behind QEMU's IOMMU), a \
    program that counts at the far end of its wire, and the switch (auto), on all cores";
const XDP: &str = "as netmap.guest, but the program opens eth0, which has the driver toklat_e1000: through AF_XDP in copy \
    mode, a switch in the guest, and the guest's kernel";
const PAIR: &str = "as netmap.guest, and a second guest whose netmap program counts what arrives: two guests and a switch \
    on two cores";
const PACKET: Peer = Peer::Toklat("AF_PACKET, virtio", |lab| burst(lab, Program::Packet, 1));
const PKTGEN: Peer =
    Peer::Toklat("pktgen, csb", |lab| Ok(figure(lab, Card::Csb, Figure::Burst)? / 1e3));

const CARD: &str = "core 0: two 82540EMs' slots in one thread, submitted and released as the library does, in bursts of \
    32, without its checks; core 1: both cards' worker, polling. Peer: the driver that has buffers of its own, one \
    frame at a time";
/// Bytes of a long frame.
const LONG: u16 = 1500;
const BLOCK: Peer =
    Peer::Toklat("csb", |lab| Ok(cards::rate(lab, Variant::Block(csb::Version::Two), 64)?.0 / 1e6));
const BLOCKS: Peer = Peer::Toklat("csb", |lab| {
    gbits(cards::rate(lab, Variant::Block(csb::Version::Two), LONG.into())?.0)
});

/// Gb/s of long frames.
fn gbits(rate: f64) -> Result<f64> {
    Ok(rate * f64::from(LONG) * 8.0 / 1e9)
}

/// What is measured.
pub const ROWS: &[Row] = &[
    more("netmap.guest", Bar::ratio(10.0), GUEST, |lab| burst(lab, Program::Netmap, 1), PACKET),
    more("netmap.guest.csb", Bar::ratio(0.8), GUEST, |lab| burst(lab, Program::Netmap, 1), PKTGEN),
    more("netmap.guest.xdp", Bar::NONE, XDP, |lab| burst(lab, Program::Interface, 1), PACKET),
    more("netmap.guest.two", Bar::NONE, GUEST, |lab| burst(lab, Program::Netmap, 2), PACKET),
    more("netmap.card.64", Bar::ratio(0.7), CARD, |lab| Ok(cards::slots(lab, 64)? / 1e6), BLOCK),
    Row {
        unit: "Gb/s",
        ..more(
            "netmap.card.1500",
            Bar::ratio(0.8),
            CARD,
            |lab| gbits(cards::slots(lab, LONG)?),
            BLOCKS,
        )
    },
    more("netmap.guest.pair", Bar::NONE, PAIR, pair, Peer::None),
];

/// The program in a guest, which sends for ever, or counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    /// By netmap, over our NIC.
    Netmap,
    /// By netmap over AF_XDP, over the kernel's driver for our NIC.
    Interface,
    /// By a packet socket, over virtio-net.
    Packet,
    /// Counts for some seconds, by netmap.
    Sink,
}

/// Starts a daemon in the guest, gives the card to VFIO, and runs the program.
const SCRIPT: &str = "#!/bin/sh
t() { /host/toklat --dir /run/t \"$@\"; }
mkdir -p /run/t
WAIT
echo toklat-guest: at burst
echo toklat-guest: said $(RUN 2>&1)
sleep 100
";
const WITH_CARD: &str = "vfio eth0 >/dev/null\n";
const WITH_DAEMON: &str =
    "t daemon >/tmp/log 2>&1 &\nuntil t status >/dev/null 2>&1; do sleep 0.1; done";
const WITH_LINK: &str = "until grep -q 1 /sys/class/net/eth0/carrier; do sleep 0.1; done\n";
/// Seconds for which programs send, and count.
const SENDS: &str = "100";
const COUNTS: &str = "3";

/// A station in a guest.
const fn station(number: u8) -> Mac {
    Mac::new([0x52, 0x54, 0, 0x77, 0x80, number])
}

/// Boots a guest with a card in a daemon's switch, and runs a program in it.
fn start(lab: &Lab, daemon: &Daemon, runs: Program, number: u8, cpus: u8) -> Result<Running> {
    let (name, mac) = (format!("card{number}"), station(number));
    let socket = daemon.dir().join(format!("{name}.sock"));
    let ours = runs != Program::Packet;
    let port = match ours {
        true => {
            json!({ "vfio_user": { "path": socket, "nic": { "model": "82540em", "csb": true } } })
        }
        false => json!({ "vhost_user": { "path": socket, "client": false } }),
    };
    daemon.add_port_of(&name, &port, &[])?;
    let model = if ours { Model::I82540em } else { Model::Virtio };
    daemon.set_default_coalescing(&name, model)?;
    let sends = |how: &str| format!("{how} {SENDS}");
    let (run, wait) = match runs {
        Program::Netmap => {
            (sends("t run -- /host/netmap send") + " card0", [WITH_CARD, WITH_DAEMON])
        }
        Program::Sink => {
            (format!("t run -- /host/netmap sink {COUNTS} card0"), [WITH_CARD, WITH_DAEMON])
        }
        Program::Interface => {
            (sends("t run -- /host/netmap send") + " eth0", [WITH_LINK, WITH_DAEMON])
        }
        Program::Packet => (sends("/host/netmap packet") + " eth0", [WITH_LINK, ""]),
    };
    let script = SCRIPT.replace("WAIT", &wait.concat()).replace("RUN", &run);
    let dir = guest_with(lab, number, &script)?;
    let mut boot = guest::boot(&dir, Some("10.77.80.1/24"), Some("/host/script"))?;
    let iommu = matches!(runs, Program::Netmap | Program::Sink);
    let words = match runs {
        _ if iommu => " intel_iommu=on iommu=nopt -- ",
        Program::Interface => " toklat.driver=toklat -- ",
        _ => " -- ",
    };
    if let Boot::Kernel { append, .. } = &mut boot {
        *append = append.replace(" -- ", words);
    }
    let machine = Machine {
        name,
        accelerator: Accelerator::choose().0,
        memory: 512,
        cpus,
        boot,
        iommu,
        nic: Nic { model, mac, backend: model.backend(socket), queues: 1, packed: false },
        console: Console::Plain,
        more: Vec::new(),
    };
    Running::start(&Qemu::at_least(None, Version::VFIO_USER)?, &machine, &[])
}

/// A test guest with this program, its library, `netmap.c` and a script.
fn guest_with(lab: &Lab, number: u8, script: &str) -> Result<PathBuf> {
    let to = lab.dir().join(format!("guest{number}"));
    let _ = std::fs::remove_dir_all(&to);
    std::fs::create_dir(&to)?;
    let this = std::env::current_exe()?;
    inside::with_program(&guest::find()?, &to, &this)
        .context(Missing::new("strip", "apt-get install binutils"))?;
    let library = to.join("library");
    inside::strip(&preloaded()?, &library)?;
    let read = |path: &Path| std::fs::read(path).with_context(|| path.display().to_string());
    let files = [
        ("host/netmap", read(&program(lab, "netmap", "-lpthread")?)?),
        ("host/libtoklat_preload.so", read(&library)?),
        ("host/script", script.as_bytes().to_vec()),
    ];
    inside::put(&to, &files.map(|(place, content)| (place.to_owned(), content)))?;
    Ok(to)
}

/// Mpps at the far end of the wire.
fn burst(lab: &Lab, runs: Program, cpus: u8) -> Result<f64> {
    lab.note("accelerator", format!("guests run by {}", Accelerator::choose().0.name()));
    let daemon = lab.daemon("")?;
    let mut guest = start(lab, &daemon, runs, 1, cpus)?;
    let mut far = Wire::Port(Box::new(daemon.port("far")?));
    guest.wait_for("at burst", BOOT, &false.into())?;
    let counts = |frame: &[u8]| frame.get(12..14) == Some(&[0x88, 0xb5]);
    let begun = Instant::now();
    while far.rate(Duration::from_millis(100), counts)? == 0.0 {
        ensure!(begun.elapsed() < BOOT, "the guest sends nothing: {}", said(&mut guest));
    }
    far.rate(SETTLED, counts)?;
    Ok(far.rate(WATCHED, counts)? / 1e6)
}

/// What a guest's program has printed, if it has ended.
fn said(guest: &mut Running) -> String {
    guest.wait_for("said", Duration::ZERO, &false.into()).unwrap_or_default()
}

/// Mpps from one guest to another.
fn pair(lab: &Lab) -> Result<f64> {
    let daemon = lab.daemon("")?;
    let mut from = start(lab, &daemon, Program::Netmap, 1, 1)?;
    from.wait_for("at burst", BOOT, &false.into())?;
    let mut to = start(lab, &daemon, Program::Sink, 2, 1)?;
    let got = to.wait_for("toklat-guest: said", BOOT, &false.into())?;
    let rate = got.split(' ').find_map(|word| word.parse::<f64>().ok());
    rate.filter(|rate| *rate > 0.0).with_context(|| got.clone())
}
