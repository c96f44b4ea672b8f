//! Links: what a frame costs on one, what it holds, and how exact its times are.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use frame::UdpFrame;
use link::{Link, LinkConfig, LinkStats, Meter};
use port::{MapGuard, Nanos, Offload, Scratch};
use shmem::Bytes;

use super::bar::Bar;
use super::inline;
use super::lab::Lab;
use super::peer::Peer;
use super::rows::{Better, Row, less};
use super::traffic::{SINK, SOURCE, on_core};

const PIPE: &str =
    "as switch.inline.64, with the receiver behind a line of 400 Gb/s and 1 ms. Peer: no link";
const FULL: &str = "a line of 10 Gb/s and 50 ms that always has frames of 1,514 bytes, and as many bytes in its queue; \
    one thread admits and releases them: cores that it needs";
const FLOWS: &str = "admits and releases frames of 64 bytes of 1,000 flows, with 1,000 in the queue; ns a frame. Peer: fifo";
const DELAY: &str = "core 0: sender, switch and receiver in one thread, which polls; a link of 1 ms; by how much frames \
    miss it, the 99th percentile";

/// All rows.
pub const ROWS: &[Row] = &[
    Row {
        id: "links.pipe.64",
        unit: "Mpps",
        bar: Bar::least(14.0),
        better: Better::More,
        how: PIPE,
        ours: |lab| Ok(1e3 / inline::linked(lab)?),
        peer: Peer::Toklat("no link", |lab| inline::throughput(lab, 64)),
    },
    less("links.pipe.full", "cores", Bar::most(0.7), FULL, full, Peer::None),
    less(
        "links.pipe.full.rate",
        "%",
        Bar::most(0.5),
        "as links.pipe.full, in virtual time: by how much the rate is missed",
        |_| Ok(held(1514)?.error),
        Peer::None,
    ),
    less(
        "links.pipe.full.memory",
        "ratio",
        Bar::most(1.1),
        "as links.pipe.full, in virtual time: memory over bytes held",
        |_| Ok(held(1514)?.memory),
        Peer::None,
    ),
    less(
        "links.pipe.small",
        "ratio",
        Bar::most(1.3),
        "as links.pipe.full.memory, with frames of 64 bytes",
        |_| Ok(held(64)?.memory),
        Peer::None,
    ),
    less("links.delay", "us", Bar::most(20.0), DELAY, delay, Peer::None),
    less(
        "links.fq",
        "ns/frame",
        Bar::beyond(40.0),
        FLOWS,
        |lab| flows(lab, "rate=400Gb/s,queue=1GB,aqm=fq_codel"),
        Peer::Toklat("fifo", |lab| flows(lab, "rate=400Gb/s,queue=1GB")),
    ),
];

/// A link with frames to put on it.
struct Bench {
    link: Link,
    meter: Arc<Meter>,
    /// Keeps the frames' bytes.
    _frames: Vec<Vec<u8>>,
    /// The frames, to admit, and those that are released.
    frames: Scratch,
    out: Scratch,
    map: MapGuard<'static>,
}

impl Bench {
    fn new(words: &str, mut bytes: Vec<Vec<u8>>) -> Result<Self> {
        let config: LinkConfig = words.parse()?;
        let meter = Arc::new(Meter::default());
        let link = Link::new(config, 0, Arc::clone(&meter));
        // SAFETY: the frames are kept here, and the link keeps those that it lends.
        #[allow(unsafe_code, reason = "the benchmark vouches for the memory of its frames")]
        let map = unsafe { MapGuard::assume_mapped() };
        let mut frames = Scratch::new(bytes.len());
        bytes.iter_mut().for_each(|frame| frames.push(Bytes::of(frame).span()));
        frames.judge(&map, &mut [(); 1024], |_, _| ());
        Ok(Self { link, meter, _frames: bytes, frames, out: Scratch::new(64), map })
    }

    /// Puts frames on the link until it has no room, at most all.
    fn fill(&mut self, now: Nanos) {
        let batch = self.frames.batch(&self.map);
        for i in 0..self.frames.len() as u16 {
            let frame = batch.pick(i);
            if self.link.room_at(frame.len(), now) == 0 {
                break;
            }
            self.link.admit(frame, (Offload::NONE, 0), now);
        }
    }

    /// Takes the frames that are due. Returns how many.
    fn drain(&mut self, now: Nanos) -> u64 {
        let mut all = 0;
        loop {
            self.out.clear();
            let due = self.link.release(&mut self.out, 64, now);
            self.link.complete(due);
            all += due as u64;
            if due < 64 {
                self.link.take_tally();
                return all;
            }
        }
    }
}

const LINE: &str = "rate=10Gb/s,delay=50ms";
const RATE: f64 = 1e10;
/// Nanoseconds between looks, in virtual time.
const STEP: u64 = 20_000;

fn same(len: usize) -> Vec<Vec<u8>> {
    vec![vec![0; len]; 64]
}

/// Time that a core spends on a full line, by the time in which the line carries it.
fn full(lab: &Lab) -> Result<f64> {
    let time = lab.duration();
    on_core(0, move || {
        let mut bench = Bench::new(LINE, same(1514))?;
        let (mut now, mut spent, mut virtual_ns) = (0, Duration::ZERO, 0u64);
        while spent < time {
            let start = Instant::now();
            for _ in 0..100 {
                bench.fill(Nanos(now));
                bench.drain(Nanos(now));
                now += STEP;
            }
            // The first tenth of a second fills the line.
            if now > Nanos::SECOND / 10 {
                spent += start.elapsed();
                virtual_ns += 100 * STEP;
            }
        }
        Ok(spent.as_nanos() as f64 / virtual_ns as f64)
    })
}

/// What a full line holds and carries.
struct Held {
    /// Percent of the rate.
    error: f64,
    /// Memory by bytes held.
    memory: f64,
}

fn held(len: usize) -> Result<Held> {
    let mut bench = Bench::new(LINE, same(len))?;
    let (mut now, mut carried, mut worst) = (0, 0, 0f64);
    let (warm, end) = (Nanos::SECOND / 8, Nanos::SECOND / 4);
    while now < end {
        (0..4).for_each(|_| bench.fill(Nanos(now)));
        let due = bench.drain(Nanos(now));
        if now >= warm {
            carried += due;
            let LinkStats { queue_frames, queue_bytes, flight_frames, memory, .. } =
                bench.meter.stats();
            // Each frame has 16 bytes in a table.
            let all = memory + 16 * (queue_frames + flight_frames);
            worst = worst.max(all as f64 / (queue_bytes + flight_frames * len as u64) as f64);
        }
        now += STEP;
    }
    let wanted = RATE * (end - warm) as f64 / 1e9;
    let error = ((carried * len as u64 * 8) as f64 / wanted - 1.0).abs() * 100.0;
    Ok(Held { error, memory: worst })
}

fn flows(lab: &Lab, words: &'static str) -> Result<f64> {
    let time = lab.duration();
    on_core(0, move || {
        let flow = |number: u16| {
            let mut bytes = vec![0; 64];
            let _ = UdpFrame::between(SOURCE, SINK).write(&mut bytes);
            bytes[34..36].copy_from_slice(&number.to_be_bytes());
            bytes
        };
        let mut bench = Bench::new(words, (0..1000).map(flow).collect())?;
        // A frame of 64 bytes takes 1.28 ns of the line.
        let mut now = 0;
        let (start, mut frames) = (Instant::now(), 0u64);
        while start.elapsed() < time {
            for _ in 0..16 {
                bench.fill(Nanos(now));
                now += 1280;
                frames += bench.drain(Nanos(now));
            }
        }
        Ok(start.elapsed().as_nanos() as f64 / frames as f64)
    })
}

/// By how many us frames miss a delay of 1 ms, the 99th percentile.
fn delay(lab: &Lab) -> Result<f64> {
    let time = lab.duration();
    on_core(0, move || {
        let mut bench = Bench::new("delay=1ms", same(64))?;
        let start = Instant::now();
        let clock = || Nanos(start.elapsed().as_nanos() as u64);
        let mut missed = Vec::new();
        while start.elapsed() < time {
            let sent = clock();
            let batch = bench.frames.batch(&bench.map);
            bench.link.admit(batch.pick(0), (Offload::NONE, 0), sent);
            while bench.drain(clock()) == 0 {
                std::hint::spin_loop();
            }
            missed.push((clock() - sent).saturating_sub(Nanos::MILLI));
        }
        missed.sort_unstable();
        let p99 = missed.get(missed.len() * 99 / 100).context("no frame came")?;
        Ok(*p99 as f64 / 1e3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_links_measure_something() {
        let lab = Lab::new(0.01).unwrap();
        for row in ROWS {
            let figure = (row.ours)(&lab).unwrap_or_else(|error| panic!("{}: {error:#}", row.id));
            assert!(figure > 0.0 || row.unit == "%", "{}: {figure}", row.id);
        }
    }
}
