//! Objective: over links without loss, goodput is what theory says. Steps: bulk transfers over the
//! switch's own links, in virtual time; goodput of the second half of the time, against the line's
//! rate times the payload's part of a frame.

mod common;

use std::sync::Arc;

use common::*;
use frame::ETHERNET_HEADER;
use link::{Link, LinkConfig, Meter};
use port::{MapGuard, Offload, Scratch};
use shmem::Bytes;
use toklat_tcp::{Config, Nanos};

/// A link that carries IP packets in Ethernet frames.
struct Line(Link);

fn guard() -> MapGuard<'static> {
    // SAFETY: the tests' vectors and the links outlive the scratches' use.
    #[allow(unsafe_code, reason = "the test vouches for the memory of its frames")]
    unsafe {
        MapGuard::assume_mapped()
    }
}

impl Line {
    fn new(words: &str) -> Self {
        let config: LinkConfig = words.parse().unwrap();
        Self(Link::new(config, 0, Arc::new(Meter::default())))
    }

    fn put(&mut self, packets: Vec<Vec<u8>>, now: Nanos) {
        let (map, mut scratch) = (guard(), Scratch::new(1));
        for packet in packets {
            let mut bytes = vec![0; ETHERNET_HEADER];
            bytes[12..14].copy_from_slice(&[8, 0]);
            bytes.extend(packet);
            scratch.clear();
            scratch.push(Bytes::of(&mut bytes).span());
            scratch.judge(&map, &mut [()], |_, _| ());
            let at = port::Nanos(now.0);
            self.0.admit(scratch.batch(&map).pick(0), (Offload::NONE, 0), at);
        }
    }

    fn take(&mut self, now: Nanos) -> Vec<Vec<u8>> {
        let (map, mut scratch) = (guard(), Scratch::new(64));
        let frames = self.0.release(&mut scratch, 64, port::Nanos(now.0));
        scratch.judge(&map, &mut [(); 64], |_, _| ());
        let batch = scratch.batch(&map);
        let packet = |i: u16| {
            let mut bytes = vec![0; batch.frame(i).len()];
            batch.copy_frame(i, Bytes::of(&mut bytes));
            bytes.split_off(ETHERNET_HEADER)
        };
        let packets = (0..frames as u16).map(packet).collect();
        self.0.complete(frames);
        packets
    }

    fn due(&self) -> Option<Nanos> {
        self.0.due().map(|due| Nanos(due.0))
    }
}

/// Bits a second that arrive in the second half of `time` of virtual time.
fn goodput(there: &str, back: &str, time: u64) -> f64 {
    let config = Config::default();
    let (mut a, mut b) = pair(&config, u64::MAX / 2, 0, (v4(1), v4(2)));
    (a.chunk, b.check) = (100_000, false);
    let (mut to_b, mut to_a) = (Line::new(there), Line::new(back));
    let (mut now, began) = (Nanos(SECOND), SECOND);
    let mut half = None;
    while now.0 < began + time {
        let times = [to_a.due(), to_b.due(), a.deadline(), b.deadline()];
        now = times.into_iter().flatten().min().unwrap().max(now);
        let batch = to_a.take(now);
        let sent = a.turn(&batch, now);
        to_b.put(sent, now);
        let batch = to_b.take(now);
        let sent = b.turn(&batch, now);
        to_a.put(sent, now);
        if now.0 >= began + time / 2 {
            half.get_or_insert((now, b.received));
        }
    }
    let (since, before) = half.unwrap();
    (b.received - before) as f64 * 8e9 / (now.0 - since.0) as f64
}

#[test]
fn goodput_over_lossless_links_is_within_three_percent_of_theory() {
    for (rate, mbits, delay, time) in [
        ("2Mb/s", 2.0, "5ms", 10 * SECOND),
        ("10Mb/s", 10.0, "20ms", 5 * SECOND),
        ("20Mb/s", 20.0, "1ms", 2 * SECOND),
        ("100Mb/s", 100.0, "5ms", SECOND),
    ] {
        let there = format!("rate={rate},delay={delay},queue=1000frames");
        let found = goodput(&there, &format!("delay={delay}"), time) / 1e6;
        // 1,448 bytes of payload in a frame of 1,514.
        let theory = mbits * 1448.0 / 1514.0;
        println!("{rate} {delay}: {found:.3} of {theory:.3} Mb/s");
        assert!((found / theory - 1.0).abs() < 0.03, "{rate} {delay}: {found} of {theory} Mb/s");
    }
}

#[test]
fn loss_and_full_queues_cost_goodput_as_they_do_elsewhere() {
    let line = "rate=20Mb/s,delay=20ms,queue=1000frames";
    let clean = goodput(line, "delay=20ms", 4 * SECOND);
    let lossy = goodput(&format!("{line},loss=1%,seed=3"), "delay=20ms", 4 * SECOND);
    // The square root law (Mathis et al., 1997) has 1.22 * 1448 * 8 / (0.04 s * 0.1) = 3.5 Mb/s.
    assert!(lossy < clean / 2.0 && lossy > 1.5e6, "{lossy} of {clean} b/s");
    let short = goodput("rate=20Mb/s,delay=20ms,queue=50kB", "delay=20ms", 4 * SECOND);
    assert!(short > clean * 0.7, "{short} of {clean} b/s");
    let fair = goodput("rate=20Mb/s,delay=20ms,queue=1MB,aqm=fq_codel", "delay=20ms", 4 * SECOND);
    assert!(fair > clean * 0.85, "{fair} of {clean} b/s");
}
