//! Rules between ports: what judging a frame costs, and what a change of rules holds up.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use fabric::{Filters, PortFilter};
use inline::Inline;
use netring::{Port, Region, RegionConfig};
use port::Nanos;
use rules::{Budget, Connections, Layout, Quota, Tables};
use shmem::Mapping;

use super::bar::Bar;
use super::inline as embedded;
use super::lab::Lab;
use super::peer::Peer;
use super::rows::{Row, less, more};
use super::traffic::{self, BATCH, SINK, SOURCE, on_core};

const JUDGED: &str = "as switch.inline.64, with UDP to a receiver whose 10th rule allows it, without state; no flow twice. \
    Peer: no rules";
const STATEFUL: &str = "as links.rules.10, over a million established connections, each frame of another, in random order";
const READY: &str = "as links.rules.10, while another thread makes 10,000 rules of text and puts them into use: until \
    they are; no frame may be lost";
const PAUSE: &str = "as links.rules.replace: the time without a turn while rules are replaced";

/// All rows.
pub const ROWS: &[Row] = &[
    more(
        "links.rules.10",
        Bar::least(15.0).and_ratio(0.5),
        JUDGED,
        |lab| judged(lab, 10),
        Peer::Toklat("no rules", |lab| judged(lab, 0)),
    ),
    more("links.stateful", Bar::least(7.0), STATEFUL, stateful, Peer::None),
    less("links.rules.replace", "s", Bar::most(2.0), READY, |_| Ok(replace()?.0), Peer::None),
    less(
        "links.rules.replace.pause",
        "us",
        Bar::most(100.0),
        PAUSE,
        |_| Ok(replace()?.1),
        Peer::None,
    ),
];

/// Bytes of a frame.
const LEN: usize = 64;
/// Ethernet, IPv4 and UDP.
const HEAD: usize = 42;
/// Connections of [`stateful`].
const MILLION: usize = 1 << 20;

/// A generator and a sink with a switch between them, in one thread.
struct Bench {
    switch: Inline,
    generator: Port,
    sink: Port,
    head: [u8; HEAD],
    start: Instant,
}

impl Bench {
    fn new() -> Result<Self> {
        let region = Region::private(RegionConfig::ports(2, 1, 1024))?;
        let mut switch = embedded::switch(2)?;
        let generator = embedded::plug(&mut switch, &region, "gen", vec![SOURCE], 1024)?;
        let sink = embedded::plug(&mut switch, &region, "sink", vec![SINK], 1024)?;
        let mut head = [0; HEAD];
        head[..14].copy_from_slice(&traffic::header(SINK, SOURCE));
        let ip = [8, 0, 0x45, 0, 0, 50, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        head[12..34].copy_from_slice(&ip);
        head[36..].copy_from_slice(&[0, 53, 0, 30, 0, 0]);
        Ok(Self { switch, generator, sink, head, start: Instant::now() })
    }

    /// Sends a batch of frames, which `flow` numbers: source address and port.
    #[inline]
    fn turn(&mut self, mut flow: impl FnMut() -> u32) -> Result<(u64, u64)> {
        let head = &mut self.head;
        let sent = self.generator.send(BATCH).fill(BATCH, |window| {
            let flow = flow();
            head[27..30].copy_from_slice(&[(flow >> 24) as u8, (flow >> 16) as u8, 1]);
            head[34..36].copy_from_slice(&(flow as u16).to_be_bytes());
            window.copy_in(head);
            LEN
        });
        self.generator.flush()?;
        self.switch.turn(Nanos(self.start.elapsed().as_nanos() as u64));
        let received = self.sink.receive(usize::MAX).count() as u64;
        self.sink.flush()?;
        Ok((sent as u64, received))
    }
}

/// Rules of the sink, of which the last allows all frames.
fn lines(rules: usize, last: &str) -> Vec<String> {
    let others = (1..rules).map(|n| {
        format!("deny udp from 172.{}.{}.0/24 to any {}", 16 + n / 250 % 16, n % 250, 1000 + n)
    });
    others.chain([last.to_owned()]).collect()
}

/// Compiles rules for the sink, of generation `generation`, with room for `connections`.
fn filters(generation: u16, lines: &[String], connections: usize) -> Result<Filters> {
    let mut policy = rules::Policy::default();
    policy.push(&rules::parse_lines(lines.iter().map(String::as_str))?);
    let program = rules::compile(&policy, &Budget::new(&|| false))?;
    let words = Layout::words(connections);
    let memory = Mapping::private(words * 8)?;
    let memory = memory.shared_slice::<AtomicU64>(0, words).context("no memory")?;
    let connections = Connections::open(memory, Quota(connections), 7);
    let ports = vec![None, Some(PortFilter { program: 0, groups: 1, ips: Vec::new() })];
    let connections = Arc::new(Mutex::new(connections));
    Ok(Filters::new(generation, vec![program], Tables::default(), connections, ports))
}

const STATELESS: &str = "allow udp from any to me 53 stateless";

/// Mpps to a port with so many rules.
fn judged(lab: &Lab, rules: usize) -> Result<f64> {
    let time = lab.duration();
    on_core(0, move || {
        let mut bench = Bench::new()?;
        if rules > 0 {
            let filters = filters(1, &lines(rules, STATELESS), 1024)?;
            bench.switch.set_filters(Some(Arc::new(filters)));
        }
        let mut flow = 0u32;
        traffic::rate(time, || {
            let (_, received) = bench.turn(|| {
                flow = flow.wrapping_add(1);
                flow
            })?;
            Ok(received)
        })
    })
}

/// Mpps of connections that there are.
fn stateful(lab: &Lab) -> Result<f64> {
    let time = lab.duration();
    on_core(0, move || {
        let mut bench = Bench::new()?;
        let filters = filters(1, &lines(1, "allow udp from any to me 53"), 2 * MILLION)?;
        let filters = Arc::new(filters);
        bench.switch.set_filters(Some(Arc::clone(&filters)));
        let mut flow = 0u32;
        while (flow as usize) < MILLION {
            bench.turn(|| {
                flow += 1;
                (flow - 1) % MILLION as u32
            })?;
        }
        let there = filters.connections().lock().map_or(0, |connections| connections.len());
        if there < MILLION * 99 / 100 {
            bail!("only {there} connections were made");
        }
        let mut random = 1u64;
        traffic::rate(time, || {
            let (_, received) = bench.turn(|| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (random >> 40) as u32 % MILLION as u32
            })?;
            Ok(received)
        })
    })
}

/// Replaces 10,000 rules under traffic: seconds until they are in use, and the pause in us.
fn replace() -> Result<(f64, f64)> {
    on_core(0, move || {
        let mut bench = Bench::new()?;
        bench.switch.set_filters(Some(Arc::new(filters(1, &lines(10_000, STATELESS), 1024)?)));
        let (done, coming) = std::sync::mpsc::channel();
        let began = Instant::now();
        let maker = std::thread::spawn(move || {
            let made = filters(2, &lines(10_000, STATELESS), 1024);
            // The other end waits.
            let _ = done.send(made);
        });
        let (mut sent, mut received, mut flow) = (0, 0, 0u32);
        let mut turn = |bench: &mut Bench| -> Result<()> {
            let (more, came) = bench.turn(|| {
                flow = flow.wrapping_add(1);
                flow
            })?;
            (sent, received) = (sent + more, received + came);
            Ok(())
        };
        let made = loop {
            if let Ok(made) = coming.try_recv() {
                break made?;
            }
            turn(&mut bench)?;
        };
        let paused = Instant::now();
        bench.switch.set_filters(Some(Arc::new(made)));
        let pause = paused.elapsed();
        let ready = began.elapsed();
        for _ in 0..1000 {
            turn(&mut bench)?;
        }
        if maker.join().is_err() || sent != received {
            bail!("{received} of {sent} frames arrived");
        }
        Ok((ready.as_secs_f64(), pause.as_secs_f64() * 1e6))
    })
}
