//! Disciplines against transcripts of their RFCs, written apart from them, in virtual time; and
//! what they are for.
#![allow(unsafe_code, reason = "the tests vouch for the memory of their frames")]

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use port::{MapGuard, Nanos, Offload, Scratch};
use shmem::Bytes;

use crate::{Link, LinkConfig, Meter, Tally};

fn guard() -> MapGuard<'static> {
    // SAFETY: the tests' vectors and the links outlive the scratches' use.
    unsafe { MapGuard::assume_mapped() }
}

/// A frame of UDP in IPv4 from station `flow`, with `number` in its last bytes.
fn frame(flow: u16, number: u32, len: usize, ecn: u8) -> Vec<u8> {
    let mut bytes = vec![0; len];
    bytes[12..16].copy_from_slice(&[8, 0, 0x45, ecn]);
    (bytes[22], bytes[23]) = (64, 17);
    bytes[26..30].copy_from_slice(&[10, 0, (flow >> 8) as u8, flow as u8]);
    bytes[30..34].copy_from_slice(&[10, 1, 0, 1]);
    bytes[16..18].copy_from_slice(&((len - 14) as u16).to_be_bytes());
    let sum = frame::checksum::checksum(&bytes[14..34]);
    bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    bytes[len - 4..].copy_from_slice(&number.to_le_bytes());
    bytes
}

struct Line {
    link: Link,
    meter: Arc<Meter>,
}

impl Line {
    fn new(words: &str) -> Self {
        let config: LinkConfig = words.parse().unwrap();
        let meter = Arc::new(Meter::default());
        Self { link: Link::new(config, 0, Arc::clone(&meter)), meter }
    }

    fn send(&mut self, bytes: &mut [u8], now: u64) {
        let (map, mut scratch) = (guard(), Scratch::new(1));
        scratch.push(Bytes::of(bytes).span());
        scratch.judge(&map, &mut [()], |_, _| ());
        self.link.admit(scratch.batch(&map).pick(0), (Offload::NONE, 0), Nanos(now));
    }

    /// The frames that are due at `now`.
    fn receive(&mut self, now: u64) -> Vec<Vec<u8>> {
        let (map, mut scratch, mut all) = (guard(), Scratch::new(64), Vec::new());
        loop {
            scratch.clear();
            let frames = self.link.release(&mut scratch, 64, Nanos(now));
            scratch.judge(&map, &mut [(); 64], |_, _| ());
            let batch = scratch.batch(&map);
            for i in 0..frames as u16 {
                let mut bytes = vec![0; batch.frame(i).len()];
                batch.copy_frame(i, Bytes::of(&mut bytes));
                all.push(bytes);
            }
            self.link.complete(frames);
            if frames == 0 {
                return all;
            }
        }
    }
}

fn number_of(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes[bytes.len() - 4..].try_into().unwrap())
}

/// Arrivals of a load that comes and goes: time in nanoseconds and length.
fn load(frames: u32) -> Vec<(u64, usize)> {
    let mut random = crate::random::Random::of(11, 0, crate::random::Kind::Loss);
    let mut now = 0;
    let arrivals = (0..frames).map(|n| {
        // Between half and twice of what a line of 10 Mb/s carries, in turn.
        let gap = if n / 1500 % 3 == 1 { 2_000_000 } else { 500_000 };
        now += random.below(gap) + 1;
        (now, 100 + random.below(1400) as usize)
    });
    arrivals.collect()
}

/// RFC 8289, 5: the queue and its line, transcribed with floating point.
#[derive(Default)]
struct CodelOfTheRfc {
    queue: VecDeque<(u64, usize, u32)>,
    first_above: f64,
    drop_next: f64,
    count: u32,
    lastcount: u32,
    dropping: bool,
    dropped: Vec<u32>,
}

const TARGET: f64 = 5e6;
const INTERVAL: f64 = 100e6;

impl CodelOfTheRfc {
    fn dodequeue(&mut self, now: f64) -> (Option<(usize, u32)>, bool) {
        let Some((stamp, len, number)) = self.queue.pop_front() else {
            self.first_above = 0.0;
            return (None, false);
        };
        let bytes: usize = self.queue.iter().map(|(_, len, _)| len).sum();
        let mut ok = false;
        if now - (stamp as f64) < TARGET || bytes <= 1514 {
            self.first_above = 0.0;
        } else if self.first_above == 0.0 {
            self.first_above = now + INTERVAL;
        } else if now >= self.first_above {
            ok = true;
        }
        (Some((len, number)), ok)
    }

    fn dequeue(&mut self, now: f64) -> Option<(usize, u32)> {
        let (mut packet, mut ok) = self.dodequeue(now);
        let law = |t: f64, count: u32| t + INTERVAL / f64::from(count).sqrt();
        if self.dropping {
            if !ok {
                self.dropping = false;
            }
            while now >= self.drop_next && self.dropping {
                self.dropped.push(packet.unwrap().1);
                self.count += 1;
                (packet, ok) = self.dodequeue(now);
                if ok {
                    self.drop_next = law(self.drop_next, self.count);
                } else {
                    self.dropping = false;
                }
            }
        } else if ok {
            self.dropped.push(packet.unwrap().1);
            packet = self.dodequeue(now).0;
            self.dropping = true;
            let delta = self.count.wrapping_sub(self.lastcount) as i32;
            self.count =
                if delta > 1 && now - self.drop_next < 16.0 * INTERVAL { delta as u32 } else { 1 };
            self.drop_next = law(now, self.count);
            self.lastcount = self.count;
        }
        packet
    }
}

/// When a frame arrives, its length and its number.
type Arrival = (u64, usize, u32);

/// The numbers that a line of 10 Mb/s with one of the RFCs' queues delivers.
fn through(
    arrivals: &[(u64, usize)],
    mut step: impl FnMut(Option<Arrival>, u64) -> Option<(usize, u32)>,
) -> Vec<u32> {
    let (mut free, mut delivered) = (0u64, Vec::new());
    let mut serve = |step: &mut dyn FnMut(Option<Arrival>, u64) -> Option<(usize, u32)>,
                     since: u64,
                     until: u64| {
        let mut start = free.max(since);
        while start <= until {
            let Some((len, number)) = step(None, start) else { break };
            delivered.push(number);
            free = start + len as u64 * 800;
            start = free;
        }
    };
    let mut last = 0;
    for (number, (now, len)) in arrivals.iter().enumerate() {
        serve(&mut step, last, *now);
        step(Some((*now, *len, number as u32)), *now);
        serve(&mut step, *now, *now);
        last = *now;
    }
    serve(&mut step, last, u64::MAX / 2);
    delivered
}

fn through_ours(words: &str, arrivals: &[(u64, usize)]) -> (Vec<u32>, Tally) {
    let mut line = Line::new(words);
    let mut came = Vec::new();
    for (number, (now, len)) in arrivals.iter().enumerate() {
        came.extend(line.receive(*now).iter().map(|bytes| number_of(bytes)));
        line.send(&mut frame(1, number as u32, *len, 0), *now);
    }
    came.extend(line.receive(u64::MAX).iter().map(|bytes| number_of(bytes)));
    (came, line.link.take_tally())
}

/// Checks that the same frames come in the same order.
fn same(came: &[u32], wanted: &[u32]) {
    let differ = came.iter().zip(wanted).position(|(came, wanted)| came != wanted);
    let near =
        |list: &[u32], at: usize| list[at.saturating_sub(3)..(at + 4).min(list.len())].to_vec();
    let told = differ.map(|at| (at, near(came, at), near(wanted, at)));
    assert!(came == wanted, "{told:?}, {} of {}", came.len(), wanted.len());
}

#[test]
fn codel_drops_the_frames_that_rfc_8289_drops() {
    let arrivals = load(5_000);
    let mut theirs = CodelOfTheRfc::default();
    let wanted = through(&arrivals, |arrival, now| match arrival {
        Some(arrival) => {
            theirs.queue.push_back(arrival);
            None
        }
        None => theirs.dequeue(now as f64),
    });
    let (came, tally) = through_ours("rate=10Mb/s,queue=1GB,aqm=codel", &arrivals);
    assert!(tally.early > 100 && theirs.dropped.len() as u64 == tally.early, "{tally:?}");
    same(&came, &wanted);
}

/// RFC 8290, 4, transcribed: flows as lists of names, each with the controller of RFC 8289.
#[derive(Default)]
struct FqOfTheRfc {
    flows: BTreeMap<u16, (CodelOfTheRfc, i64)>,
    new: VecDeque<u16>,
    old: VecDeque<u16>,
}

impl FqOfTheRfc {
    fn enqueue(&mut self, flow: u16, packet: (u64, usize, u32)) {
        let listed = self.new.contains(&flow) || self.old.contains(&flow);
        let state = self.flows.entry(flow).or_default();
        state.0.queue.push_back(packet);
        if !listed {
            state.1 = 1514;
            self.new.push_back(flow);
        }
    }

    fn dequeue(&mut self, now: f64) -> Option<(usize, u32)> {
        loop {
            let is_new = !self.new.is_empty();
            let flow = *self.new.front().or_else(|| self.old.front())?;
            let (codel, credit) = self.flows.get_mut(&flow).unwrap();
            if *credit <= 0 {
                *credit += 1514;
                if is_new {
                    self.new.pop_front()
                } else {
                    self.old.pop_front()
                };
                self.old.push_back(flow);
                continue;
            }
            match codel.dequeue(now) {
                Some((len, number)) => {
                    *credit -= len as i64;
                    return Some((len, number));
                }
                None if is_new => {
                    self.new.pop_front();
                    self.old.push_back(flow);
                }
                None => _ = self.old.pop_front(),
            }
        }
    }
}

#[test]
fn fq_codel_serves_and_drops_as_rfc_8290_does() {
    let arrivals = load(5_000);
    let flow = |number: u32| [1, 2, 3, 4, 4, 4, 4, 4, 5, 1][number as usize % 10];
    let mut theirs = FqOfTheRfc::default();
    let wanted = through(&arrivals, |arrival, now| match arrival {
        Some(arrival) => {
            theirs.enqueue(flow(arrival.2), arrival);
            None
        }
        None => theirs.dequeue(now as f64),
    });
    let mut line = Line::new("rate=10Mb/s,queue=1GB,aqm=fq_codel");
    let mut came = Vec::new();
    for (number, (now, len)) in arrivals.iter().enumerate() {
        came.extend(line.receive(*now).iter().map(|bytes| number_of(bytes)));
        line.send(&mut frame(flow(number as u32), number as u32, *len, 0), *now);
    }
    came.extend(line.receive(u64::MAX).iter().map(|bytes| number_of(bytes)));
    let tally = line.link.take_tally();
    assert!(tally.early > 50, "{tally:?}");
    same(&came, &wanted);
}

/// RFC 8033, appendix A, transcribed with floating point; the delay is the last packet's, by its
/// time stamp. The random numbers are those of the link's generator.
struct PieOfTheRfc {
    queue: VecDeque<(u64, usize, u32)>,
    prob: f64,
    accu: f64,
    burst: f64,
    old: f64,
    sojourn: f64,
    next: Option<u64>,
    random: crate::random::Random,
}

impl PieOfTheRfc {
    fn bytes(&self) -> usize {
        self.queue.iter().map(|(_, len, _)| len).sum()
    }

    fn tick(&mut self, now: u64) {
        let mut next = self.next.unwrap_or(now + 15_000_000);
        while now >= next {
            self.calculate();
            next += 15_000_000;
        }
        self.next = Some(next);
    }

    fn calculate(&mut self) {
        let (reference, delay) = (0.015, if self.queue.is_empty() { 0.0 } else { self.sojourn });
        let mut p = 0.125 * (delay - reference) + 1.25 * (delay - self.old);
        p /= match self.prob {
            prob if prob < 0.000_001 => 2048.0,
            prob if prob < 0.000_01 => 512.0,
            prob if prob < 0.000_1 => 128.0,
            prob if prob < 0.001 => 32.0,
            prob if prob < 0.01 => 8.0,
            prob if prob < 0.1 => 2.0,
            _ => 1.0,
        };
        if self.prob >= 0.1 && p > 0.02 {
            p = 0.02;
        }
        self.prob += p;
        if delay == 0.0 && self.old == 0.0 {
            self.prob *= 0.98;
        }
        self.prob = self.prob.clamp(0.0, 1.0);
        self.burst = (self.burst - 0.015).max(0.0);
        if self.prob == 0.0 && delay < reference / 2.0 && self.old < reference / 2.0 {
            self.burst = 0.150;
        }
        self.old = delay;
    }

    fn drop_early(&mut self) -> bool {
        if (self.old < 0.015 / 2.0 && self.prob < 0.2) || self.bytes() <= 2000 {
            return false;
        }
        if self.prob == 0.0 {
            self.accu = 0.0;
        }
        self.accu += self.prob;
        if self.accu < 0.85 {
            return false;
        }
        let drop = self.accu >= 8.5 || {
            let u = self.random.below(1 << 40) as f64 / (1u64 << 40) as f64;
            u < self.prob
        };
        if drop {
            self.accu = 0.0;
        }
        drop
    }
}

#[test]
fn pie_drops_the_frames_that_rfc_8033_drops() {
    let arrivals = load(5_000);
    let mut theirs = PieOfTheRfc {
        queue: VecDeque::new(),
        prob: 0.0,
        accu: 0.0,
        burst: 0.150,
        old: 0.0,
        sojourn: 0.0,
        next: None,
        random: crate::random::Random::of(0, 0, crate::random::Kind::Early),
    };
    let mut dropped = 0;
    let wanted = through(&arrivals, |arrival, now| {
        if let Some(arrival) = arrival {
            theirs.tick(now);
            if theirs.burst < 1e-9 && theirs.drop_early() {
                dropped += 1;
            } else {
                theirs.queue.push_back(arrival);
            }
            return None;
        }
        let (stamp, len, number) = theirs.queue.pop_front()?;
        theirs.tick(now);
        theirs.sojourn = (now - stamp) as f64 / 1e9;
        Some((len, number))
    });
    let (came, tally) = through_ours("rate=10Mb/s,queue=1GB,aqm=pie", &arrivals);
    assert!(dropped > 100 && tally.early == dropped, "{tally:?}, not {dropped}");
    same(&came, &wanted);
}

/// The controllers keep a standing queue near their target, where a fifo fills.
#[test]
fn disciplines_keep_the_delay_low_and_mark_instead_of_dropping() {
    // A sender that always has 1.1 times what the line carries.
    let run = |aqm: &str, ecn: u8| {
        let mut line = Line::new(&format!("rate=10Mb/s,queue=500kB{aqm}"));
        let (mut marked, mut came) = (0, 0);
        for number in 0..5_000u32 {
            let now = u64::from(number) * 1_211_200 * 10 / 11;
            for bytes in line.receive(now) {
                let ce = frame::ecn_of(&bytes) == frame::Ecn::Ce;
                assert_eq!(frame::checksum::checksum(&bytes[14..34]), 0);
                (marked, came) = (marked + u64::from(ce), came + 1);
            }
            line.send(&mut frame(1, number, 1514, ecn), now);
        }
        let tally = line.link.take_tally();
        assert_eq!(marked, tally.marked.min(marked), "{aqm}");
        (line.meter.stats().sojourn_p50_ns / Nanos::MILLI, tally, came)
    };
    let (fifo, tally, _) = run("", 0);
    assert!(fifo > 200 && tally.full > 30 && tally.early == 0, "{fifo} ms {tally:?}");
    for aqm in [",aqm=codel", ",aqm=fq_codel", ",aqm=red", ",aqm=pie"] {
        let (p50, tally, came) = run(aqm, 0);
        assert!(p50 < fifo * 2 / 3 && tally.early > 100, "{aqm}: {p50} ms {tally:?}");
        assert!(came > 4000, "{aqm}: the line is never idle: {came}");
        let (_, tally, _) = run(&format!("{aqm},ecn"), 2);
        assert!(tally.marked > 5, "{aqm}: {tally:?}");
        let (_, plain, _) = run(&format!("{aqm},ecn"), 0);
        assert_eq!(plain.marked, 0, "{aqm}: not every transport supports it");
    }
}

/// Jain's index of what flows get.
fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    sum * sum / (shares.len() as f64 * shares.iter().map(|share| share * share).sum::<f64>())
}

#[test]
fn flows_share_the_line_evenly_or_by_weight_and_a_sparse_one_does_not_wait() {
    let shares = |words: &str, flows: u16, share: fn(u32) -> u16| {
        let mut line = Line::new(words);
        let mut bytes_of = vec![0.0; usize::from(flows)];
        let mut worst = 0;
        for number in 0..12_000u32 {
            let now = u64::from(number) * 60_000;
            for bytes in line.receive(now) {
                let flow = usize::from(bytes[28]) << 8 | usize::from(bytes[29]);
                bytes_of[flow] += bytes.len() as f64;
                if flow == 0 {
                    let sent = u64::from(number_of(&bytes)) * 60_000;
                    worst = worst.max(now - sent);
                }
            }
            // The sparse flow sends one small frame in 500.
            let (flow, len) = if number % 500 == 0 { (0, 100) } else { (share(number) + 1, 1514) };
            line.send(&mut frame(flow, number, len, 0), now);
        }
        (bytes_of.split_off(1), worst)
    };
    // 100 Mb/s, of which bulk asks for twice.
    let words = "rate=100Mb/s,queue=2MB,aqm=fq_codel";
    let (even, sparse) = shares(words, 51, |n| (n % 50) as u16);
    assert!(jain(&even) >= 0.99, "{}", jain(&even));
    assert!(sparse <= 2 * Nanos::MILLI, "the sparse flow waited {sparse} ns");
    // One flow sends twice as much as each of four others.
    let (greedy, _) = shares(words, 6, |n| (n % 6).saturating_sub(1) as u16);
    assert!(jain(&greedy) >= 0.99, "{greedy:?}");
    // Flows by destination: all are one, so the sparse one waits.
    let one = format!("{words},flows=destination");
    assert!(shares(&one, 51, |n| (n % 50) as u16).1 > 2 * Nanos::MILLI);
    // 10.0.0.1 has three times the weight of 10.0.0.2.
    let weighted = format!("{words},weight=3@10.0.0.1/32");
    let (weights, _) = shares(&weighted, 3, |n| (n % 2) as u16);
    let ratio = weights[0] / weights[1];
    assert!((2.9..3.1).contains(&ratio), "{ratio}");
}
