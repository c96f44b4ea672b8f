//! `toklat gen`: sends frames, as fast as possible, at a rate, or as a capture has them.

use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use ::pcap::file::Recording;
use anyhow::Context;
use frame::{Mac, ParseAddressError, VlanId};
use netring::layout::MAX_FRAGS;
use netring::{Interest, Outgoing, Port};

use crate::SINK_MAC;
use crate::pace::Pacer;
use crate::pcap;
use crate::session::{Idler, Meter, OpenArgs, RunArgs, Session, Totals, Volume, now};
use crate::traffic::{Sizes, Traffic, TrafficConfig};
use client::Global;
use client::units::Rate;

/// Options of `toklat gen`.
#[derive(Clone, Debug, clap::Args)]
pub struct GenArgs {
    /// The port to send from, such as vale0:p1, or an end of a pipe, such as vale0:x{1
    port: String,
    /// Send at this rate: frames a second (2M, 14.88Mpps) or bits a second (10Gb/s) [default: as
    /// fast as possible]
    #[arg(short, long)]
    rate: Option<Rate>,
    /// Bytes of each frame without check sequence: 64, a range such as 64-1514, or imix (7:4:1 of
    /// 60, 590 and 1514)
    #[arg(short, long, default_value = "64")]
    size: Sizes,
    /// Flows (UDP source ports)
    #[arg(long, default_value_t = 1, value_name = "N")]
    flows: usize,
    /// Source addresses
    #[arg(long, default_value_t = 1, value_name = "N")]
    macs: usize,
    /// Destination address, or the word broadcast
    #[arg(long, default_value_t = SINK_MAC, value_name = "MAC", value_parser = parse_destination)]
    dst: Mac,
    /// First source address [default: made from the process id]
    #[arg(long, value_name = "MAC")]
    src: Option<Mac>,
    /// Tag frames with this VLAN
    #[arg(long, value_name = "ID")]
    vlan: Option<VlanId>,
    /// Number of the first stream: a sink distinguishes generators with equal source addresses by
    /// it
    #[arg(long, default_value_t = 0, value_name = "N")]
    stream: u16,
    /// Frames published at a time [default: 64, or 1 with --rate]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    burst: Option<u16>,
    /// Write every byte of each frame, not only headers and numbers
    #[arg(long)]
    touch: bool,
    /// Send the frames of this pcap or pcapng file at their recorded pace
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "size", "flows", "macs", "dst", "src", "vlan", "stream", "touch"])]
    pcap: Option<PathBuf>,
    /// With --pcap: a speed factor, such as 2 or 0.1
    #[arg(long, value_name = "X", requires = "pcap", value_parser = parse_speed)]
    speed: Option<f64>,
    /// With --pcap: as fast as possible
    #[arg(long, requires = "pcap", conflicts_with = "speed")]
    fast: bool,
    /// With --pcap: start over at the end of the file
    #[arg(long = "loop", requires = "pcap")]
    repeat: bool,
    #[command(flatten)]
    open: OpenArgs,
    #[command(flatten)]
    run: RunArgs,
}

fn parse_destination(text: &str) -> Result<Mac, ParseAddressError> {
    if text == "broadcast" { Ok(Mac::BROADCAST) } else { text.parse() }
}

fn parse_speed(text: &str) -> Result<f64, String> {
    let speed = text.parse().ok().filter(|speed| (1e-6..=1e6).contains(speed));
    speed.ok_or_else(|| "a speed is a factor such as 2 or 0.1".into())
}

/// The frames to send, and their schedule.
#[derive(Debug)]
pub enum Source {
    /// Frames that the generator makes.
    Made(Made),
    /// Frames of a capture.
    Replayed(Replay),
}

/// Frames made on the way.
#[derive(Debug)]
pub struct Made {
    /// The frames.
    pub traffic: Traffic,
    /// The schedule; `None` for as fast as possible.
    pub pacer: Option<Pacer>,
    /// Write every byte.
    pub touch: bool,
    /// Frames that still have to be written completely: one for each buffer.
    pub unprepared: usize,
}

impl Made {
    /// Fills up to `wanted` slots with frames that are due at `now`.
    fn fill(&mut self, out: &mut Outgoing<'_>, wanted: usize, now: u64) -> Volume {
        let mut volume = Volume::default();
        if self.traffic.longest() > out.slot_bytes() {
            return self.fill_long(out, wanted, now);
        }
        out.fill(wanted, |window| {
            if self.pacer.as_ref().is_some_and(|pacer| !pacer.is_due(now)) {
                return 0;
            }
            let whole = self.touch || self.unprepared > 0;
            self.unprepared = self.unprepared.saturating_sub(1);
            let (bytes, len) = self.traffic.next(now, whole);
            window.copy_in(bytes);
            if let Some(pacer) = &mut self.pacer {
                pacer.sent(len);
            }
            volume += Volume { frames: 1, bytes: len as u64 };
            len
        });
        volume
    }

    /// Works as [`fill`](Self::fill), for frames that need several slots. Each frame is written
    /// completely.
    fn fill_long(&mut self, out: &mut Outgoing<'_>, wanted: usize, now: u64) -> Volume {
        let mut volume = Volume::default();
        let slots = self.traffic.longest().div_ceil(out.slot_bytes().max(1));
        while volume.frames < wanted as u64
            && out.room() >= slots
            && self.pacer.as_ref().is_none_or(|pacer| pacer.is_due(now))
        {
            let (bytes, len) = self.traffic.next(now, true);
            out.push(bytes);
            if let Some(pacer) = &mut self.pacer {
                pacer.sent(len);
            }
            volume += Volume { frames: 1, bytes: len as u64 };
        }
        volume
    }
}

/// A capture that is being replayed.
#[derive(Debug)]
pub struct Replay {
    capture: Recording,
    /// The speed, as a multiple of the captured pace; `None` for as fast as possible.
    speed: Option<f64>,
    repeat: bool,
    /// When the current round started (ns).
    start: u64,
    next: usize,
}

impl Replay {
    /// Starts at `start` (ns).
    #[must_use]
    pub fn new(capture: Recording, speed: Option<f64>, repeat: bool, start: u64) -> Self {
        Self { capture, speed, repeat, start, next: 0 }
    }

    /// The captured time span, scaled to the replay's speed, in nanoseconds.
    fn scaled(&self, captured: Duration) -> u64 {
        self.speed.map_or(0, |speed| (captured.as_nanos() as f64 / speed) as u64)
    }

    /// When the next frame is due; `None` after the last.
    fn next_at(&self) -> Option<u64> {
        let (at, _) = (self.next < self.capture.len()).then(|| self.capture.frame(self.next))?;
        Some(self.start.saturating_add(self.scaled(at)))
    }

    /// Sends up to `wanted` frames that are due at `now`.
    fn fill(&mut self, out: &mut Outgoing<'_>, wanted: usize, now: u64) -> Volume {
        let mut volume = Volume::default();
        while volume.frames < wanted as u64 && self.next_at().is_some_and(|at| at <= now) {
            let (_, bytes) = self.capture.frame(self.next);
            if !out.push(bytes) {
                break;
            }
            volume += Volume { frames: 1, bytes: bytes.len() as u64 };
            self.advance();
        }
        volume
    }

    fn advance(&mut self) {
        self.next += 1;
        if self.repeat && self.next == self.capture.len() {
            // The gap between the last frame and the first is the average gap between frames.
            let gaps = u32::try_from(self.capture.len() - 1).unwrap_or(u32::MAX).max(1);
            let round = self.capture.duration() + self.capture.duration() / gaps;
            self.start = self.start.saturating_add(self.scaled(round));
            self.next = 0;
        }
    }
}

/// Sends the frames of a [`Source`], as far as the port has room; the caller passes the time.
#[derive(Debug)]
pub struct Generator {
    source: Source,
    burst: usize,
    left: u64,
}

impl Generator {
    /// Sends up to `count` frames, `burst` at a time.
    #[must_use]
    pub fn new(source: Source, burst: usize, count: u64) -> Self {
        Self { source, burst, left: count }
    }

    /// When the next frame is due (0: at once); `None` after the last.
    #[inline]
    #[must_use]
    pub fn next_at(&self) -> Option<u64> {
        match &self.source {
            _ if self.left == 0 => None,
            Source::Made(made) => Some(made.pacer.as_ref().map_or(0, Pacer::next_at)),
            Source::Replayed(replay) => replay.next_at(),
        }
    }

    /// Fills free slots with frames that are due at `now`, one burst at most; the caller flushes.
    #[inline]
    pub fn turn(&mut self, port: &mut Port, now: u64) -> Volume {
        let wanted = usize::try_from(self.left).map_or(self.burst, |left| left.min(self.burst));
        // A frame may need several slots.
        let mut out = port.send(wanted + MAX_FRAGS);
        let volume = match &mut self.source {
            Source::Made(made) => made.fill(&mut out, wanted, now),
            Source::Replayed(replay) => replay.fill(&mut out, wanted, now),
        };
        self.left -= volume.frames;
        volume
    }
}

/// Runs `toklat gen`.
///
/// # Errors
/// If options contradict each other, the port cannot be opened or fails.
pub fn run(args: &GenArgs, global: &Global) -> anyhow::Result<()> {
    let mut port = args.open.port(&args.port, global)?;
    let mut generator = args.generator(&port)?;
    let session = Session::start(&args.run)?;
    let totals = send(&mut generator, &mut port, &session, &args.run)?;
    global.print_done(&totals, &format!("sent from {totals}"))
}

impl GenArgs {
    fn generator(&self, port: &Port) -> anyhow::Result<Generator> {
        let default_burst = if self.rate.is_some() { 1 } else { 64 };
        let burst = self.burst.unwrap_or(default_burst);
        let source = match &self.pcap {
            Some(path) => self.replay(path)?,
            None => Source::Made(Made {
                traffic: Traffic::new(&self.traffic())?,
                pacer: self.rate.map(|rate| Pacer::new(rate, burst.into(), now())),
                touch: self.touch,
                unprepared: port.slots().0,
            }),
        };
        // At a rate, several bursts may be due at once. They are sent together.
        let batch = if self.rate.is_some() { burst.max(64) } else { burst };
        Ok(Generator::new(source, batch.into(), self.run.count.unwrap_or(u64::MAX)))
    }

    fn traffic(&self) -> TrafficConfig {
        let own = Mac::local(std::process::id() << 16);
        TrafficConfig {
            destination: self.dst,
            source: self.src.unwrap_or(own),
            vlan: self.vlan,
            sizes: self.size,
            flows: self.flows,
            macs: self.macs,
            stream: self.stream,
        }
    }

    fn replay(&self, path: &std::path::Path) -> anyhow::Result<Source> {
        let what = || format!("Cannot replay {}", path.display());
        let capture = pcap::read(File::open(path).with_context(what)?).with_context(what)?;
        if !capture.left_out().is_nothing() {
            eprintln!("toklat: left out of {}: {}", path.display(), capture.left_out());
        }
        let speed = (!self.fast).then(|| self.speed.unwrap_or(1.0));
        Ok(Source::Replayed(Replay::new(capture, speed, self.repeat, now())))
    }
}

/// Sends until it is time to end, then until the other side has taken everything.
fn send(
    generator: &mut Generator,
    port: &mut Port,
    session: &Session,
    args: &RunArgs,
) -> anyhow::Result<Totals> {
    let mut idler = Idler::new(args.idle);
    let mut at = now();
    let mut meter = Meter::new(at, args.quiet);
    while session.goes_on(at) {
        let Some(due) = generator.next_at() else { break };
        let volume = generator.turn(port, at);
        port.flush()?;
        meter.add(volume, at);
        meter.tick(at, "sent", String::new);
        if volume.frames > 0 {
            idler.worked();
        } else if due > at {
            idler.idle(at, due).take(port, Interest::empty())?;
        } else {
            idler.idle(at, u64::MAX).take(port, Interest::WRITE)?;
        }
        at = now();
    }
    drain(port)?;
    Ok(meter.totals(port.name()))
}

/// Time limit for the receiver to take the last frames, in nanoseconds.
const DRAIN: u64 = 1_000_000_000;

/// Waits until the other side has taken everything that was sent.
///
/// # Errors
/// If the port fails. Frames that are not taken within a second are abandoned without an error.
pub fn drain(port: &mut Port) -> Result<(), netring::PortError> {
    let (slots, deadline) = (port.slots().0, now() + DRAIN);
    while port.send(slots).room() + 1 < slots && now() < deadline {
        port.flush()?;
        std::thread::sleep(Duration::from_micros(100));
    }
    Ok(())
}
