//! The tools' loops against each other, through a pipe in this process: no daemon, no clock.

use std::time::Duration;

use ::pcap::file::Recording;
use client::units::Rate;
use frame::Mac;
use netring::{PipeConfig, Port, Region, RegionConfig, pipe};
use toklat::tools::bridge::forward;
use toklat::tools::cap;
use toklat::tools::generate::{Generator, Made, Replay, Source};
use toklat::tools::pace::Pacer;
use toklat::tools::pcap::{self, CaptureWriter, Captured, Direction, Output};
use toklat::tools::ping::{Answerer, Asker};
use toklat::tools::roundtrip::{RoundTrips, Schedule};
use toklat::tools::session::Volume;
use toklat::tools::sink::Sink;
use toklat::tools::tally::Findings;
use toklat::tools::traffic::{Sizes, Traffic, TrafficConfig};

fn ends(slots: u32) -> (Port, Port) {
    pipe(&PipeConfig::default().slots(slots)).unwrap()
}

fn flush(a: &mut Port, b: &mut Port) {
    a.flush().unwrap();
    b.flush().unwrap();
}

fn made(sizes: Sizes, pacer: Option<Pacer>, unprepared: usize) -> Source {
    let traffic = Traffic::new(&TrafficConfig {
        destination: Mac::local(2),
        source: Mac::local(0x10000),
        vlan: None,
        sizes,
        flows: 3,
        macs: 2,
        stream: 0,
    });
    Source::Made(Made { traffic: traffic.unwrap(), pacer, touch: false, unprepared })
}

/// Sends everything from `a`, passes it through `middle`, and checks it at `b`.
fn run(
    generator: &mut Generator,
    (mut a, mut b): (Port, Port),
    mut middle: impl FnMut(&mut Port, &mut Sink) -> Volume,
) -> (Volume, Volume, Findings) {
    let mut sink = Sink::new(true, 64);
    let (mut sent, mut received) = (Volume::default(), Volume::default());
    while generator.next_at().is_some() || received.frames < sent.frames {
        let (before, now) = (sent.frames + received.frames, 0);
        sent += generator.turn(&mut a, now);
        a.flush().unwrap();
        received += middle(&mut b, &mut sink);
        b.flush().unwrap();
        if sent.frames + received.frames == before {
            break;
        }
    }
    (sent, received, sink.findings().unwrap())
}

#[test]
fn a_sink_finds_no_flaw_in_what_a_generator_sends() {
    for (sizes, unprepared) in
        [("60", 0), ("64", 256), ("imix", 256), ("60-1514", 0), ("3000", 0), ("60-9000", 256)]
    {
        let source = made(sizes.parse().unwrap(), None, unprepared);
        let mut generator = Generator::new(source, 32, 10_000);
        let (sent, received, findings) =
            run(&mut generator, ends(256), |port, sink| sink.turn(port));
        assert_eq!((sent, sent.frames), (received, 10_000), "{sizes}");
        assert!(findings.is_flawless() && findings.foreign == 0, "{sizes}: {findings:?}");
        assert_eq!((findings.probes, findings.streams), (10_000, 3), "{sizes}");
    }
}

#[test]
fn a_sink_finds_what_was_dropped_doubled_swapped_or_changed() {
    /// The fault of a bad switch that affects every hundredth batch.
    #[derive(Clone, Copy, PartialEq)]
    enum Corruption {
        Drop,
        Double,
        Swap,
        Spoil,
    }
    let findings = |mischief: Corruption| {
        let mut generator = Generator::new(made(Sizes::Fixed(100), None, 1 << 20), 32, 3000);
        let (mut a, mut b) = ends(256);
        let (mut c, mut d) = ends(256);
        let mut sink = Sink::new(true, 64);
        let mut seen = 0u32;
        while generator.next_at().is_some() {
            generator.turn(&mut a, 0);
            a.flush().unwrap();
            let mut frames: Vec<Vec<u8>> = b.receive(64).map(|frame| frame.to_vec()).collect();
            seen += 1;
            if seen.is_multiple_of(10) {
                match mischief {
                    Corruption::Drop => drop(frames.remove(5)),
                    Corruption::Double => frames.insert(5, frames[5].clone()),
                    // Streams take turns of three frames. These frames are of one stream.
                    Corruption::Swap => frames.swap(5, 8),
                    Corruption::Spoil => frames[5][99] ^= 1,
                }
            }
            frames.iter().for_each(|frame| assert!(c.send(1).push(frame)));
            flush(&mut b, &mut c);
            sink.turn(&mut d);
            d.flush().unwrap();
        }
        sink.findings().unwrap()
    };
    let dropped = findings(Corruption::Drop);
    assert_eq!((dropped.lost, dropped.is_flawless()), (9, false), "{dropped:?}");
    let doubled = findings(Corruption::Double);
    assert_eq!((doubled.duplicated, doubled.is_flawless()), (9, false), "{doubled:?}");
    let swapped = findings(Corruption::Swap);
    assert_eq!((swapped.reordered, swapped.lost), (9, 0), "{swapped:?}");
    let spoilt = findings(Corruption::Spoil);
    assert_eq!((spoilt.corrupt, spoilt.is_flawless()), (9, false), "{spoilt:?}");
}

#[test]
fn a_generator_keeps_its_pace_and_stops_at_its_count() {
    let pacer = Pacer::new(Rate::Frames(1_000_000), 1, 0);
    let mut generator = Generator::new(made(Sizes::Fixed(60), Some(pacer), 0), 64, 20);
    let (mut a, mut b) = ends(256);
    let mut at = |now| {
        let sent = generator.turn(&mut a, now).frames;
        a.flush().unwrap();
        b.receive(64).for_each(drop);
        b.flush().unwrap();
        sent
    };
    assert_eq!([at(0), at(500), at(1000), at(10_000), at(10_500)], [1, 0, 1, 9, 0]);
    assert_eq!([at(1_000_000), at(2_000_000)], [9, 0], "20 in all");
    assert_eq!(generator.next_at(), None);
}

#[test]
fn a_full_ring_holds_a_generator_up_and_loses_nothing() {
    let mut generator = Generator::new(made(Sizes::Fixed(60), None, 0), 64, 1000);
    let (mut a, mut b) = ends(100);
    let mut sent = 0;
    for _ in 0..10 {
        sent += generator.turn(&mut a, 0).frames;
        a.flush().unwrap();
    }
    assert_eq!(sent, 99, "one slot stays empty");
    let mut sink = Sink::new(true, 1024);
    assert_eq!(sink.turn(&mut b).frames, 99);
    b.flush().unwrap();
    assert_eq!(generator.turn(&mut a, 0).frames, 64);
    assert!(sink.findings().unwrap().is_flawless());
}

/// Returns a capture of frames `gap` apart, of which frame `i` has `60 + i` bytes.
fn capture(frames: usize, gap: Duration) -> Recording {
    let mut file = Vec::new();
    let mut writer = CaptureWriter::new(&mut file, "test", 65_535).unwrap();
    for i in 0..frames {
        let (at, len) = (Duration::from_secs(1_000_000) + gap * i as u32, 60 + i);
        let bytes = &vec![i as u8; len];
        writer
            .frame(&Captured {
                at,
                port: "test",
                direction: Direction::Sent,
                len,
                bytes,
                comment: None,
            })
            .unwrap();
    }
    pcap::read(&file[..]).unwrap()
}

#[test]
fn a_capture_is_replayed_at_its_pace_or_another() {
    let sent_at = |speed: Option<f64>, times: [u64; 5]| {
        let replay = Replay::new(capture(4, Duration::from_micros(10)), speed, false, 1000);
        let mut generator = Generator::new(Source::Replayed(replay), 64, u64::MAX);
        let (mut a, mut b) = ends(64);
        let sent = times.map(|now| generator.turn(&mut a, now).frames);
        a.flush().unwrap();
        let frames: Vec<Vec<u8>> = b.receive(64).map(|frame| frame.to_vec()).collect();
        let right = frames.iter().enumerate().all(|(i, f)| *f == vec![i as u8; 60 + i]);
        assert!(right, "frames as captured");
        (sent, generator.next_at())
    };
    let times = [999, 1000, 11_000, 21_000, 31_000];
    assert_eq!(sent_at(Some(1.0), times), ([0, 1, 1, 1, 1], None));
    assert_eq!(sent_at(Some(2.0), times), ([0, 1, 2, 1, 0], None));
    assert_eq!(sent_at(Some(0.5), times), ([0, 1, 0, 1, 0], Some(41_000)));
    assert_eq!(sent_at(None, times), ([0, 4, 0, 0, 0], None));
}

#[test]
fn a_capture_in_a_loop_goes_on_at_its_pace() {
    let replay = Replay::new(capture(3, Duration::from_micros(10)), Some(1.0), true, 0);
    let mut generator = Generator::new(Source::Replayed(replay), 64, 7);
    let (mut a, _b) = ends(64);
    let sent: Vec<u64> = (0..8).map(|i| generator.turn(&mut a, i * 10_000).frames).collect();
    assert_eq!(sent, [1, 1, 1, 1, 1, 1, 1, 0]);
}

#[test]
fn every_request_is_answered() {
    for (schedule, size) in [(Schedule::Closed, 10), (Schedule::Open { interval: 100 }, 1400)] {
        let (mut a, mut b) = ends(64);
        let trips = RoundTrips::new(schedule, 0);
        let mut asker = Asker::new(trips, Mac::local(4), Mac::local(3), size, 1000);
        let mut answerer = Answerer::new(Mac::local(3));
        let mut now = 0;
        while !asker.is_done() {
            asker.turn(&mut a, now);
            a.flush().unwrap();
            answerer.turn(&mut b);
            b.flush().unwrap();
            now += 100;
            assert!(now < 1_000_000, "{:?}", asker.summary());
        }
        let summary = asker.summary();
        assert_eq!((summary.sent, summary.received, summary.lost), (1000, 1000, 0));
        assert_eq!((summary.min_ns, summary.max_ns), (100, 100), "{schedule:?}");
    }
}

/// Requests wait while the ring is full, and their round trips include the wait.
#[test]
fn a_full_ring_shows_in_round_trips() {
    let (mut a, mut b) = ends(3);
    let trips = RoundTrips::new(Schedule::Open { interval: 10 }, 0);
    let mut asker = Asker::new(trips, Mac::local(4), Mac::local(3), 10, 6);
    let mut answerer = Answerer::new(Mac::local(3));
    asker.turn(&mut a, 1000);
    a.flush().unwrap();
    for now in [1000, 2000, 3000, 4000] {
        answerer.turn(&mut b);
        b.flush().unwrap();
        asker.turn(&mut a, now);
        a.flush().unwrap();
    }
    let summary = asker.summary();
    assert_eq!((summary.received, summary.lost), (6, 0), "{summary:?}");
    assert!(summary.max_ns > 2000, "{summary:?}");
}

/// Passes frames from one pipe to another, each in a region of its own or in the one given.
fn bridge(region: [Option<&std::sync::Arc<Region>>; 2]) -> (Findings, Volume) {
    let config = |region: Option<&_>| {
        let config = PipeConfig::default().slots(256);
        region.map_or_else(|| config.clone(), |region| config.clone().in_region(region))
    };
    let (mut a, mut b) = pipe(&config(region[0])).unwrap();
    let (mut c, mut d) = pipe(&config(region[1])).unwrap();
    let mut generator = Generator::new(made("60-5000".parse().unwrap(), None, 1 << 20), 16, 2000);
    let (mut sink, mut received) = (Sink::new(true, 64), Volume::default());
    for _ in 0..2000 {
        generator.turn(&mut a, 0);
        a.flush().unwrap();
        forward(&mut b, &mut c, 64);
        flush(&mut b, &mut c);
        received += sink.turn(&mut d);
        d.flush().unwrap();
    }
    (sink.findings().unwrap(), received)
}

#[test]
fn a_bridge_passes_everything_on() {
    let config = RegionConfig::default().interfaces(4).rings(8).slots(256).buffers(2000);
    let region = Region::create(config).unwrap();
    for region in [[None, None], [Some(&region), Some(&region)]] {
        let (findings, received) = bridge(region);
        assert!(findings.is_flawless() && received.frames == 2000, "{findings:?}");
    }
}

/// A bridge whose receiver takes nothing stops taking, too.
#[test]
fn a_bridge_waits_for_room() {
    let ((mut a, mut b), (mut c, mut d)) = (ends(512), ends(128));
    let mut generator = Generator::new(made(Sizes::Fixed(60), None, 0), 64, 400);
    let mut sink = Sink::new(true, 1024);
    for _ in 0..20 {
        generator.turn(&mut a, 0);
        a.flush().unwrap();
        forward(&mut b, &mut c, 64);
        flush(&mut b, &mut c);
    }
    while sink.turn(&mut d).frames > 0 {
        d.flush().unwrap();
        forward(&mut b, &mut c, 64);
        flush(&mut b, &mut c);
    }
    let findings = sink.findings().unwrap();
    assert!(findings.is_flawless() && findings.probes == 400, "{findings:?}");
}

#[test]
fn a_capture_has_what_was_received() {
    let (mut a, mut b) = ends(256);
    let mut generator = Generator::new(made(Sizes::Imix, None, 256), 64, 100);
    while generator.next_at().is_some() {
        generator.turn(&mut a, 0);
    }
    a.flush().unwrap();
    let mut file = Vec::new();
    let mut writer = CaptureWriter::new(&mut file, "x", 65_535).unwrap();
    let mut taken = Volume::default();
    while taken.frames < 100 {
        taken += cap::take(&mut b, &mut writer, 64).unwrap();
    }
    drop(writer);
    let capture = pcap::read(&file[..]).unwrap();
    let bytes: usize = (0..capture.len()).map(|i| capture.frame(i).1.len()).sum();
    assert_eq!((capture.len() as u64, bytes as u64), (taken.frames, taken.bytes));
}
