//! The rows of `toklat bench netmap`: unmodified netmap and libpcap programs, with the library of
//! `toklat run`.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use host::library;

use super::bar::Bar;
use super::inline;
use super::isolated::{self, POLLED};
use super::lab::{Daemon, Lab};
use super::peer::Peer;
use super::pipe;
use super::rows::{Row, less, more};
use super::traffic;
use crate::hosts::programs::Missing;

const PORTS: &str = "core 0: one thread of one netmap program with both ports, which writes headers, and looks by \
    poll() with no time after each batch; core 1: the switch's worker, polling";
const TRUSTED: &str = "core 0: one thread of one netmap program with both ports of a trusted switch, as \
    above; it forwards. Peer: a switch embedded in one process";
const TWO: &str = "core 0: receiver, core 1: sender, two netmap programs on a trusted switch that look by poll() with no \
    time; the sender writes headers and forwards. Peer: one client with both ports on core 0, a polling worker on core 1";
const PIPE: &str = "core 0: receiver, core 1: sender, two threads of one netmap program that look by poll() with no \
    time; no buffer is touched";
const BRIDGE: &str = "core 0: one thread of one netmap program with all four ends: it fills slots, swaps buffers from \
    one pipe to the other, and reads lengths, in batches of up to 512; no buffer is touched; core 1: nothing";
const SLEEP: &str = "core 0: asker, core 1: answerer, two threads asleep in poll(); the switch's worker on core 1 in \
    `auto`. Peer: blocking UDP on loopback with the same pinning";
const SLEEP_TRUSTED: &str = "core 0: asker, core 1: answerer, two threads asleep in poll(), which forward themselves. Peer: \
    blocking UDP on loopback with the same pinning";
const CALL: &str = "core 0: the fastest of many runs of 65,536 calls, under the library; core 1: nothing. Peer: the \
    same program without the library. Beyond the peer's: what interposing costs";
const PCAP: &str = "core 0: one thread of one process that sends by pcap_inject and receives by pcap_dispatch with a \
    filter; core 1: the switch's worker, polling. Peer: the same program on a pair of veth with the system's libpcap";

const PYTHON: &str = "core 0: one Python thread with both ports, batches of 256 as NumPy arrays; it writes headers and \
    sums a byte of each frame; core 1: the switch's worker, polling. Peer: a Rust client that does the same";
const MISMATCH: &str = "core 0: receiver, core 1: sender, two threads of one netmap program at a pipe, asleep in poll() \
    when they have nothing to do; one spends 50 ns a frame and the other 250 (`.sender`: the sender is the faster \
    one); after a wake-up each looks again after 0, 20 or 100 us at the soonest";

/// The Rust client in the same situation.
const CLIENT: Peer = Peer::Toklat("Rust client", |lab| isolated::throughput(lab, 64, false));

const fn ports_row(id: &'static str, bar: Bar, ours: fn(&Lab) -> Result<f64>) -> Row {
    more(id, bar, PORTS, ours, Peer::None)
}

const fn trusted_row(
    id: &'static str,
    bar: Bar,
    ours: fn(&Lab) -> Result<f64>,
    inline: fn(&Lab) -> Result<f64>,
) -> Row {
    more(id, bar, TRUSTED, ours, Peer::Toklat("inline", inline))
}

const fn mismatch_row(id: &'static str, ours: fn(&Lab) -> Result<f64>) -> Row {
    more(id, Bar::NONE, MISMATCH, ours, Peer::None)
}

const fn call_row(
    id: &'static str,
    ours: fn(&Lab) -> Result<f64>,
    plain: fn(&Lab) -> Result<f64>,
) -> Row {
    less(id, "ns", Bar::beyond(5.0), CALL, ours, Peer::Toklat("plain", plain))
}

/// What is measured.
pub const ROWS: &[Row] = &[
    more("netmap.isolated.64", Bar::ratio(0.8), PORTS, |lab| ports(lab, 64, 64, 0), CLIENT),
    more(
        "netmap.isolated.1500",
        Bar::NONE,
        PORTS,
        |lab| ports(lab, 1500, 64, 0),
        Peer::Toklat("Rust client", |lab| isolated::throughput(lab, 1500, false)),
    ),
    trusted_row(
        "netmap.trusted.64",
        Bar::ratio(0.7),
        |lab| trusted(lab, 64),
        |lab| inline::throughput(lab, 64),
    ),
    trusted_row(
        "netmap.trusted.1500",
        Bar::ratio(0.8),
        |lab| trusted(lab, 1500),
        |lab| inline::throughput(lab, 1500),
    ),
    more("netmap.trusted.two.64", Bar::ratio(1.0), TWO, two, CLIENT),
    more(
        "netmap.pipe.64",
        Bar::ratio(0.8),
        PIPE,
        netmap_pipe,
        Peer::Toklat("Rust client", pipe::throughput),
    ),
    more("netmap.bridge.64", Bar::least(80.0), BRIDGE, bridge, Peer::None),
    ports_row("netmap.batch.1", Bar::NONE, |lab| ports(lab, 64, 1, 0)),
    ports_row("netmap.batch.8", Bar::NONE, |lab| ports(lab, 64, 8, 0)),
    ports_row("netmap.batch.64", Bar::NONE, |lab| ports(lab, 64, 64, 0)),
    ports_row("netmap.batch.512", Bar::NONE, |lab| ports(lab, 64, 512, 0)),
    ports_row("netmap.rings.64", Bar::NONE, |lab| ports(lab, 64, 64, 64)),
    ports_row("netmap.rings.256", Bar::NONE, |lab| ports(lab, 64, 64, 256)),
    ports_row("netmap.rings.1024", Bar::NONE, |lab| ports(lab, 64, 64, 1024)),
    ports_row("netmap.rings.4096", Bar::NONE, |lab| ports(lab, 64, 64, 4096)),
    mismatch_row("netmap.mismatch.sender.0", |lab| mismatch(lab, FAST_SENDER, 0)),
    mismatch_row("netmap.mismatch.sender.20", |lab| mismatch(lab, FAST_SENDER, 20)),
    mismatch_row("netmap.mismatch.sender.100", |lab| mismatch(lab, FAST_SENDER, 100)),
    mismatch_row("netmap.mismatch.receiver.0", |lab| mismatch(lab, FAST_RECEIVER, 0)),
    mismatch_row("netmap.mismatch.receiver.20", |lab| mismatch(lab, FAST_RECEIVER, 20)),
    mismatch_row("netmap.mismatch.receiver.100", |lab| mismatch(lab, FAST_RECEIVER, 100)),
    less("netmap.rtt.sleep", "us", Bar::ratio(0.67), SLEEP, sleeping, Peer::Runner("udp", "rtt")),
    less(
        "netmap.rtt.sleep.trusted",
        "us",
        Bar::ratio(1.11),
        SLEEP_TRUSTED,
        |lab| netmap(lab, "trusted = true", "rtt", &["vale0:l", "vale0:r"]),
        Peer::Runner("udp", "rtt"),
    ),
    call_row("netmap.interpose.poll", |lab| under(lab, "poll"), |lab| plain(lab, "poll")),
    call_row("netmap.interpose.read", |lab| under(lab, "read"), |lab| plain(lab, "read")),
    call_row("netmap.interpose.close", |lab| under(lab, "close"), |lab| plain(lab, "close")),
    more(
        "python.batch.64",
        Bar::ratio(0.5),
        PYTHON,
        python,
        Peer::Toklat("Rust client", client_column),
    ),
    more(
        "netmap.pcap.64",
        Bar::ratio(10.0),
        PCAP,
        pcap,
        Peer::Toklat("veth, libpcap", pcap_on_veth),
    ),
];

/// A program of `programs/`, compiled at its first use.
pub(super) fn program(lab: &Lab, name: &str, option: &str) -> Result<PathBuf> {
    let program = lab.dir().join(name);
    if !program.exists() {
        let source = program.with_extension("c");
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-o"]).arg(&program).arg(source).arg(option);
        let built = cc.output().context(Missing::new("cc", "apt-get install gcc libc6-dev"))?;
        let said = String::from_utf8_lossy(&built.stderr);
        ensure!(built.status.success(), "{name}.c does not compile: {said}");
    }
    Ok(program)
}

/// Returns the number that a program prints.
pub(super) fn figure(command: &mut Command) -> Result<f64> {
    let output = command.output().with_context(|| format!("{command:?} cannot be run"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("{}", said.trim());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().with_context(|| format!("{text:?} is not a number: {said}"))
}

/// The library that `toklat run` has loaded into programs.
pub(super) fn preloaded() -> Result<PathBuf> {
    library::find().context(Missing::new(library::LIBRARY, library::REMEDY))
}

/// `toklat run` with a program on this daemon.
fn under_library(daemon: &Daemon, program: PathBuf) -> Result<Command> {
    preloaded()?;
    let mut run = Command::new(std::env::current_exe()?);
    run.env("TOKLAT_DIR", daemon.dir()).args(["run", "--"]).arg(program);
    Ok(run)
}

/// Runs `netmap.c` with these arguments under the library, while a daemon runs.
fn netmap(lab: &Lab, switch: &str, mode: &str, args: &[&str]) -> Result<f64> {
    let daemon = lab.daemon(switch)?;
    let mut run = under_library(&daemon, program(lab, "netmap", "-pthread")?)?;
    figure(run.arg(mode).arg(lab.seconds().to_string()).args(args))
}

/// Mpps between two isolated ports. 0 slots stands for the usual number.
fn ports(lab: &Lab, len: u32, batch: u32, slots: u32) -> Result<f64> {
    let [len, batch, slots] = [len, batch, slots].map(|number| number.to_string());
    netmap(lab, POLLED, "ports", &["vale0:s", "vale0:r", &len, &batch, &slots])
}

/// Mpps between two ports of a trusted switch.
fn trusted(lab: &Lab, len: u32) -> Result<f64> {
    netmap(lab, "trusted = true", "ports", &["vale0:s", "vale0:r", &len.to_string(), "64", "0"])
}

/// Mpps between two processes on a trusted switch.
fn two(lab: &Lab) -> Result<f64> {
    netmap(lab, "trusted = true", "two", &["vale0:s", "vale0:r"])
}

fn netmap_pipe(lab: &Lab) -> Result<f64> {
    netmap(lab, POLLED, "pipe", &["p{1", "p}1"])
}

/// Nanoseconds that a sender and a receiver spend on a frame.
type Pace = (u32, u32);
const FAST_SENDER: Pace = (50, 250);
const FAST_RECEIVER: Pace = (250, 50);

/// Mpps of a pipe whose ends have different speeds, and look at it once in `interval` us.
fn mismatch(lab: &Lab, pace: Pace, interval: u32) -> Result<f64> {
    let [send, receive, interval] = [pace.0, pace.1, interval].map(|number| number.to_string());
    netmap(lab, POLLED, "mismatch", &["p{1", "p}1", &send, &receive, &interval])
}

fn bridge(lab: &Lab) -> Result<f64> {
    netmap(lab, POLLED, "bridge", &["p{1", "p}1", "p{2", "p}2"])
}

fn sleeping(lab: &Lab) -> Result<f64> {
    netmap(lab, "idle = \"auto\"\nworkers = [{ cpu = 1 }]", "rtt", &["vale0:l", "vale0:r"])
}

/// Nanoseconds of a call under the library.
fn under(lab: &Lab, call: &str) -> Result<f64> {
    netmap(lab, "idle = \"sleep\"", call, &[])
}

/// Nanoseconds of a call without the library, while the same daemon runs.
fn plain(lab: &Lab, call: &str) -> Result<f64> {
    let _daemon = lab.daemon("idle = \"sleep\"")?;
    let mut run = Command::new(program(lab, "netmap", "-pthread")?);
    figure(run.arg(call).arg(lab.seconds().to_string()))
}

/// Millions of frames per second through libpcap's calls on ports.
fn pcap(lab: &Lab) -> Result<f64> {
    let daemon = lab.daemon(POLLED)?;
    let mut run = under_library(&daemon, program(lab, "pcap", "-lpcap")?)?;
    figure(run.args(["vale0:s", "vale0:r", &lab.seconds().to_string()]))
}

/// The same on a pair of veth interfaces, in its own network namespace.
fn pcap_on_veth(lab: &Lab) -> Result<f64> {
    lab.once_missing("veth", || {
        let script = "ip link add s type veth peer name r && ip link set s up && ip link set r up && exec \"$@\"";
        let mut run = Command::new("unshare");
        run.args(["--net", "sh", "-ec", script, "sh"]).arg(program(lab, "pcap", "-lpcap")?);
        figure(run.args(["s", "r", &lab.seconds().to_string()]))
    })
}

/// Mpps of Python with NumPy. `TOKLAT_PYTHON` names the interpreter.
fn python(lab: &Lab) -> Result<f64> {
    lab.once_missing("python", || {
        let interpreter = std::env::var_os("TOKLAT_PYTHON").unwrap_or_else(|| "python3".into());
        let mut imports = Command::new(&interpreter);
        let imports = imports.args(["-c", "import numpy, toklat"]).output();
        let there = imports.is_ok_and(|done| done.status.success());
        ensure!(there, Missing::new("toklat for Python", "pip install ./python numpy"));
        let daemon = lab.daemon(POLLED)?;
        let mut run = Command::new(interpreter);
        run.env("TOKLAT_DIR", daemon.dir()).arg(lab.dir().join("batch.py"));
        figure(run.args(["vale0:gen", "vale0:sink", &lab.seconds().to_string()]))
    })
}

/// Mpps of a client that sends batches of 256 and sums a byte of each frame that it receives.
fn client_column(lab: &Lab) -> Result<f64> {
    const BATCH: usize = 256;
    let daemon = lab.daemon(POLLED)?;
    let (mut generator, mut sink) = isolated::ports(&daemon)?;
    let header = traffic::header(traffic::SINK, traffic::SOURCE);
    let (last, time) = (u64::from(header[11]), lab.duration());
    traffic::on_core(0, move || {
        traffic::rate(time, || {
            generator.send(BATCH).fill(BATCH, |window| {
                window.copy_in(&header);
                64
            });
            generator.flush()?;
            let (mut frames, mut sum) = (0, 0);
            for frame in sink.receive(BATCH) {
                frames += 1;
                sum += frame.window().read(11).map_or(0, |byte: u8| u64::from(byte));
            }
            sink.flush()?;
            ensure!(sum == frames * last, "a frame arrived that was not sent so");
            Ok(frames)
        })
    })
}
