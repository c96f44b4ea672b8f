//! Objective: data, windows, ACKs, recovery and probes follow the RFCs.
//! Steps: packet scripts against one machine.

mod common;

use common::script::*;
use common::*;
use toklat_tcp::{CloseReason, Config, Drop, Ecn, KeepAlive, SendError, State, Tuning};

const MSS: usize = 1460;

/// Sends `n` segments and expects each.
fn send_segments(script: &mut Script, n: usize) {
    script.write(n * MSS);
    for i in 0..n {
        let flags = if i + 1 == n { "AP" } else { "A" };
        script.expect(flags, 1 + (i * MSS) as u32, None, MSS);
    }
}

fn at(segment: usize) -> u32 {
    1 + (segment * MSS) as u32
}

#[test]
fn the_initial_window_is_ten_segments() {
    let mut script = Script::accepted(config(), false);
    script.write(20 * MSS);
    assert_eq!(script.out.len(), 10);
    script.out.clear();
    // Slow start: each acknowledged segment allows two.
    script.send(seg("A", 1).ack(at(4)).window(1000));
    assert_eq!(script.out.len(), 8);
}

#[test]
fn a_lost_segment_is_sent_again_after_three_blocks() {
    let mut script = Script::accepted(config(), false);
    send_segments(&mut script, 10);
    script.wait(MILLI);
    script.send(seg("A", 1).ack(1).window(1000).sack(&[(at(1), at(2))]));
    script.send(seg("A", 1).ack(1).window(1000).sack(&[(at(1), at(3))]));
    script.expect_nothing();
    script.send(seg("A", 1).ack(1).window(1000).sack(&[(at(1), at(4))]));
    script.expect("A", 1, None, MSS);
    let counters = script.counters();
    assert_eq!((counters.recoveries, counters.bytes_retransmitted), (1, MSS as u64));
    // The window falls to seven tenths (RFC 9438, 4.6) when recovery is over.
    script.send(seg("A", 1).ack(at(10)).window(1000));
    let path = script.machine.path(script.id()).unwrap();
    assert_eq!((path.congestion_window, path.threshold, path.in_flight), (10_220, 10_220, 0));
}

#[test]
fn reordering_is_given_a_quarter_of_a_round_trip() {
    let mut script = Script::accepted(config(), false);
    send_segments(&mut script, 10);
    script.wait(MILLI);
    script.send(seg("A", 1).ack(1).window(1000).sack(&[(at(1), at(2))]));
    script.expect_nothing();
    let waited = script.wait_for_segment();
    assert!((MILLI / 4..MILLI / 4 + 70 * MICRO).contains(&waited), "{waited}");
    script.expect("A", 1, None, MSS);
    // The segment was only late: a duplicate SACK undoes the reduction and widens the reordering
    // window.
    script.wait(MILLI / 10);
    script.send(seg("A", 1).ack(at(2)).window(1000));
    script.send(seg("A", 1).ack(at(10)).window(1000).sack(&[(at(0), at(1))]));
    let counters = script.counters();
    assert_eq!((counters.duplicate_sacks, counters.undone), (1, 1));
    assert!(script.machine.path(script.id()).unwrap().congestion_window >= 14_600);
}

#[test]
fn a_lost_tail_is_probed() {
    let mut script = Script::accepted(config(), false);
    send_segments(&mut script, 3);
    script.wait(MILLI);
    script.send(seg("A", 1).ack(at(1)).window(1000));
    let waited = script.wait_for_segment();
    assert!((2 * MILLI..3 * MILLI).contains(&waited), "two round trips, not a time-out: {waited}");
    script.expect("AP", at(2), None, MSS);
    // The peer reports that the probe arrived, so the segment before it is known to be lost.
    script.wait(MILLI);
    script.send(seg("A", 1).ack(at(1)).window(1000).sack(&[(at(2), at(3))]));
    if script.out.is_empty() {
        script.wait_for_segment();
    }
    script.expect("A", at(1), None, MSS);
    assert_eq!((script.counters().probes, script.counters().timeouts), (1, 0));
}

#[test]
fn a_time_out_doubles_and_gives_up() {
    let tuning = Tuning { patience: 2 * SECOND, ..Tuning::default() };
    let mut script = Script::accepted(Config { tuning, sack: false, ..config() }, false);
    script.write(10);
    script.expect("AP", 1, None, 10);
    let mut waits = Vec::new();
    for _ in 0..3 {
        waits.push(script.wait_for_segment() / MILLI);
        script.expect("AP", 1, None, 10);
    }
    assert_eq!(waits, [300, 600, 1200]);
    script.wait_for_segment();
    script.expect("RA", 11, Some(1), 0);
    assert_eq!(script.machine.close_reason(script.id()), Some(CloseReason::TimedOut));
}

#[test]
fn new_data_does_not_put_off_the_time_out() {
    let mut script = Script::accepted(config(), false);
    for _ in 0..31 {
        script.write(10);
        script.wait(10 * MILLI);
    }
    // New data postpones the probe (RFC 8985, 7.2), but not the time-out after 300 ms.
    assert_eq!(script.counters().timeouts, 1);
}

#[test]
fn after_a_time_out_the_window_is_one_segment() {
    let mut script = Script::accepted(Config { sack: false, ..config() }, false);
    send_segments(&mut script, 4);
    script.wait_for_segment();
    script.expect("A", 1, None, MSS);
    script.expect_nothing();
    // The peer reports that all four segments had arrived, so nothing more is retransmitted.
    script.send(seg("A", 1).ack(at(4)).window(1000));
    script.expect_nothing();
    assert_eq!(script.machine.path(script.id()).unwrap().in_flight, 0);
}

#[test]
fn without_sack_three_duplicates_and_partial_acks_do() {
    let mut script = Script::new(config());
    script.listener = Some(script.machine.listen(None, 80, 2, None).unwrap());
    let options = toklat_tcp::Options { sack_permitted: false, ..syn_options() };
    script.send(seg("S", 0).options(options));
    script.expect("SA", 0, Some(1), 0);
    script.wait(MILLI);
    script.send(seg("A", 1).ack(1).window(1000));
    script.id = script.machine.accept(script.listener.unwrap());
    send_segments(&mut script, 8);
    for _ in 0..2 {
        script.send(seg("A", 1).ack(1).window(1000));
    }
    script.expect_nothing();
    script.send(seg("A", 1).ack(1).window(1000));
    script.expect("A", 1, None, MSS);
    script.send(seg("A", 1).ack(at(3)).window(1000));
    script.expect("A", at(3), None, MSS);
    script.send(seg("A", 1).ack(at(8)).window(1000));
    assert_eq!((script.counters().timeouts, script.counters().recoveries), (0, 1));
}

#[test]
fn blocks_tell_what_came_out_of_order() {
    let mut script = Script::accepted(config(), true);
    let blocks = |sent: &Sent| {
        let relative =
            |&(a, b): &(toklat_tcp::Seq, toklat_tcp::Seq)| (a.since(PEER_ISN), b.since(PEER_ISN));
        sent.header.options.sack.as_slice().iter().map(relative).collect::<Vec<_>>()
    };
    script.send(seg("A", 101).ack(1).data(10));
    let sent = script.expect("A", 1, Some(1), 0);
    assert_eq!(blocks(&sent), [(101, 111)]);
    script.send(seg("A", 201).ack(1).data(10));
    script.expect("A", 1, Some(1), 0);
    script.send(seg("A", 111).ack(1).data(10));
    let sent = script.expect("A", 1, Some(1), 0);
    assert_eq!(blocks(&sent), [(101, 121), (201, 211)]);
    // A duplicate is reported first (RFC 2883).
    script.send(seg("A", 201).ack(1).data(10));
    let sent = script.expect("A", 1, Some(1), 0);
    assert_eq!(blocks(&sent)[..2], [(201, 211), (201, 211)]);
    script.send(seg("A", 1).ack(1).data(100));
    let sent = script.expect("A", 1, Some(121), 0);
    assert_eq!(blocks(&sent), [(201, 211)]);
    script.send(seg("A", 1).ack(1).data(100));
    let sent = script.expect("A", 1, Some(121), 0);
    assert_eq!(blocks(&sent), [(1, 101), (201, 211)]);
    assert_eq!((script.dropped(Drop::Duplicate), script.machine.readable(script.id())), (2, 120));
}

#[test]
fn gaps_are_bounded() {
    let mut script = Script::accepted(config(), false);
    for i in 0..100 {
        script.send(seg("A", 11 + 20 * i).ack(1).data(10));
    }
    assert_eq!(script.dropped(Drop::Ranges), 36);
}

#[test]
fn old_timestamps_are_refused() {
    let mut script = Script::accepted(config(), true);
    script.send(seg("A", 1).ack(1).data(10).stamp(999));
    script.expect("A", 1, Some(1), 0);
    assert_eq!(script.dropped(Drop::Paws), 1);
    script.send(seg("A", 1).ack(1).data(10).stamp(1001));
    let sent = script.expect("A", 1, Some(11), 0);
    assert_eq!(sent.header.options.timestamp.unwrap().echo, 1001);
    // After 24 days timestamps are not comparable any more.
    script.wait(25 * 24 * 3600 * SECOND);
    script.send(seg("A", 11).ack(1).data(10).stamp(5));
    script.expect("A", 1, Some(21), 0);
}

/// Windows, illumos, macOS and stacks with SYN cookies leave timestamps out of some segments after
/// the handshake. Linux takes those.
#[test]
fn regression_segments_without_a_timestamp_are_taken_after_timestamps_were_agreed() {
    // The last segment of the handshake, data, FIN: each of them without a timestamp.
    for without in 0..8 {
        let mut script = Script::new(config());
        script.listener = Some(script.machine.listen(None, 80, 2, None).unwrap());
        script.send(seg("S", 0).options(syn_options()).stamp(1000));
        let agreed = script.expect("SA", 0, Some(1), 0).header.options.timestamp;
        assert_eq!(agreed.unwrap().echo, 1000);
        let stamp = |segment: In, bit: u32| match without >> bit & 1 {
            0 => segment.stamp(1001 + bit),
            _ => segment.no_stamp(),
        };
        script.send(stamp(seg("A", 1).ack(1).window(1000), 0));
        script.id = script.machine.accept(script.listener.unwrap());
        assert_eq!(script.state(), Some(State::Established), "{without:b}");
        script.send(stamp(seg("AP", 1).ack(1).data(10), 1));
        let sent = script.expect("A", 1, Some(11), 0);
        // What was last seen is echoed.
        let seen = (0..2).rev().find(|bit| without >> bit & 1 == 0).map_or(1000, |bit| 1001 + bit);
        assert_eq!(sent.header.options.timestamp.unwrap().echo, seen, "{without:b}");
        script.write(100);
        script.expect("AP", 1, Some(11), 100);
        script.send(stamp(seg("FA", 11).ack(101), 2));
        script.expect("A", 101, Some(12), 0);
        assert_eq!(
            (script.state(), script.counters().drops().count()),
            (Some(State::CloseWait), 0)
        );
        // An old timestamp is still refused (PAWS).
        script.send(seg("A", 12).ack(101).stamp(10));
        assert_eq!(script.dropped(Drop::Paws), 1);
    }
}

#[test]
fn a_closed_window_is_probed_until_it_opens() {
    let mut script = Script::accepted(config(), false);
    script.send(seg("A", 1).ack(1).window(0));
    script.write(3000);
    script.expect_nothing();
    let mut waits = Vec::new();
    for _ in 0..3 {
        waits.push(script.wait_for_segment() / MILLI);
        script.expect("A", 0, Some(1), 0);
        script.send(seg("A", 1).ack(1).window(0));
    }
    assert_eq!(waits, [300, 600, 1200]);
    script.send(seg("A", 1).ack(1).window(1000));
    script.expect("A", 1, None, MSS);
    script.expect("A", at(1), None, MSS);
    script.expect("AP", at(2), None, 80);
}

#[test]
fn a_silent_peer_with_a_closed_window_is_given_up() {
    let tuning = Tuning { patience: SECOND, ..Tuning::default() };
    let mut script = Script::accepted(Config { tuning, ..config() }, false);
    script.send(seg("A", 1).ack(1).window(0));
    script.write(10);
    for _ in 0..2 {
        script.wait_for_segment();
        script.expect("A", 0, None, 0);
    }
    script.wait_for_segment();
    script.expect("RA", 1, None, 0);
    assert_eq!(script.state(), Some(State::Closed));
}

#[test]
fn a_silly_window_is_left_alone_for_a_while() {
    let mut script = Script::accepted(config(), false);
    // The window falls to 512 bytes, from 128,000.
    script.send(seg("A", 1).ack(1).window(4));
    script.write(3000);
    script.expect_nothing();
    script.wait_for_segment();
    script.expect("A", 1, None, 512);
}

#[test]
fn acks_come_by_the_batch_or_late() {
    let (mut script, seq) = Script::settled(config(), false);
    let runs = script.counters().runs_in;
    let batch: Vec<_> =
        (0..10).map(|i| seg("A", seq + 1000 * i).ack(1).window(1000).data(1000)).collect();
    script.batch(&batch);
    script.expect("A", 1, Some(seq + 10_000), 0);
    script.expect_nothing();
    assert_eq!(script.counters().runs_in, runs + 1, "ten segments are one run");
    // This is less than two segments, so the ACK is delayed.
    let seq = seq + 10_000;
    script.send(seg("A", seq).ack(1).window(1000).data(100));
    script.expect_nothing();
    let waited = script.wait_for_segment();
    assert!((MILLI..MILLI + 70 * MICRO).contains(&waited), "{waited}");
    script.expect("A", 1, Some(seq + 100), 0);
    script.send(seg("A", seq + 100).ack(1).window(1000).data(100));
    script.write(5);
    script.expect("AP", 1, Some(seq + 200), 5);
    script.wait(2 * MILLI);
    script.out.retain(|sent| sent.payload.is_empty());
    script.expect_nothing();
}

#[test]
fn what_differs_is_not_merged() {
    let (mut script, seq) = Script::settled(config(), true);
    let runs = script.counters().runs_in;
    let s = |i: u32| seg("A", seq + 10 * i).ack(1).window(1000).data(10);
    let mut marked = s(2).marked();
    marked.window = 1000;
    // Segments that cannot merge: another window, a mark, a gap, another flow.
    script.batch(&[s(0), s(1).window(999), marked, s(4), s(5)]);
    assert_eq!(script.counters().runs_in, runs + 4);
}

#[test]
fn the_window_follows_the_reader() {
    let small = Config { receive_start: 20_000, receive_max: 20_000, ..config() };
    let mut script = Script::accepted(small, false);
    for i in 0..20 {
        script.send(seg("A", 1 + 1000 * i).ack(1).data(1000));
    }
    script.wait(2 * MILLI);
    let last = script.out.back().unwrap().header.window;
    assert_eq!(last, 0);
    script.out.clear();
    script.send(seg("A", 20_001).ack(1).data(1000));
    script.expect("A", 1, Some(20_001), 0);
    assert_eq!(script.dropped(Drop::BeyondWindow) + script.dropped(Drop::OutOfWindow), 1);
    // A little room is not announced; half of the window is.
    script.machine.receive_slice(script.id(), &mut [0; 1000]);
    script.transmit();
    script.expect_nothing();
    script.machine.receive(script.id(), |data| data.len());
    script.transmit();
    let sent = script.expect("A", 1, Some(20_001), 0);
    assert_eq!(sent.header.window, 20_000);
}

#[test]
fn long_data_goes_out_as_one_request() {
    let mut script = Script::accepted(Config { gso_max: 65_535, ..config() }, true);
    script.write(14_480);
    let sent = script.expect("AP", 1, None, 14_480);
    assert_eq!(sent.gso_size, 1448);
    script.send(seg("A", 1).ack(14_481).window(1000));
    script.write(100_000);
    // Slow start has doubled the window. A request is as long as IP allows, in whole segments.
    let sent = script.out.pop_front().unwrap();
    assert_eq!((sent.payload.len(), sent.gso_size), (20 * 1448, 1448));
}

#[test]
fn a_short_send_buffer_says_when_there_is_room() {
    let config = Config { send_start: 10_000, send_max: 10_000, ..config() };
    let mut script = Script::accepted(config, false);
    let id = script.id();
    assert_eq!(script.machine.send_slice(id, &[1; 30_000]), Ok(10_000));
    assert_eq!(script.machine.send_slice(id, &[1; 10]), Err(SendError::Full));
    assert_eq!(script.machine.send(id, vec![1].into()).unwrap_err().0, SendError::Full);
    script.transmit();
    while script.machine.next_event().is_some() {}
    script.send(seg("A", 1).ack(1461).window(1000));
    assert_eq!(script.machine.next_event(), None);
    script.send(seg("A", 1).ack(at(5)).window(1000));
    assert_eq!(script.machine.next_event().unwrap().1, toklat_tcp::Events::WRITABLE);
    assert_eq!(script.machine.send_room(id), 5 * MSS);
}

#[test]
fn nagle_waits_for_company() {
    let tuning = Tuning { nagle: true, ..Tuning::default() };
    let mut script = Script::accepted(Config { tuning, ..config() }, false);
    script.write(10);
    script.expect("AP", 1, None, 10);
    script.write(10);
    script.expect_nothing();
    script.write(2000);
    script.expect("A", 11, None, MSS);
    script.expect_nothing();
    script.send(seg("A", 1).ack(at(1) + 10).window(1000));
    script.expect("AP", 11 + MSS as u32, None, 550);
}

#[test]
fn congestion_marks_are_echoed_and_obeyed() {
    let mut script = Script::new(config());
    script.listener = Some(script.machine.listen(None, 80, 2, None).unwrap());
    script.send(seg("SEC", 0).options(syn_options()));
    script.expect("SAE", 0, Some(1), 0);
    script.wait(MILLI);
    script.send(seg("A", 1).ack(1).window(1000));
    script.id = script.machine.accept(script.listener.unwrap());
    // Marks are echoed until the peer has reduced.
    script.send(seg("A", 1).ack(1).window(1000).data(100).marked());
    script.expect("AE", 1, Some(101), 0);
    script.send(seg("A", 101).ack(1).window(1000).data(100));
    script.expect("AE", 1, Some(201), 0);
    script.send(seg("AC", 201).ack(1).window(1000).data(100));
    script.expect("A", 1, Some(301), 0);
    // An echo reduces the window, once, and is confirmed. Data is ECN-capable, ACKs are not.
    script.write(10 * MSS);
    let first = script.expect("A", 1, None, MSS);
    assert_eq!(first.header.ecn, Ecn::Capable0);
    script.out.clear();
    script.send(seg("AE", 301).ack(at(1)).window(1000));
    script.send(seg("AE", 301).ack(at(2)).window(1000));
    script.write(MSS);
    for i in 3..=9 {
        script.send(seg("AE", 301).ack(at(i)).window(1000));
    }
    script.expect("APC", at(10), None, MSS);
    assert_eq!(script.counters().ecn_reductions, 1);
    assert_eq!(script.counters().bytes_retransmitted, 0);
}

#[test]
fn an_idle_peer_is_probed() {
    let keep_alive = Some(KeepAlive { idle: 60 * SECOND, interval: 10 * SECOND, probes: 3 });
    let tuning = Tuning { keep_alive, ..Tuning::default() };
    let mut script = Script::accepted(Config { tuning, ..config() }, false);
    assert!(script.wait_for_segment().abs_diff(60 * SECOND) < MILLI);
    script.expect("A", 0, Some(1), 0);
    script.send(seg("A", 1).ack(1).window(1000));
    assert!(script.wait_for_segment() > 49 * SECOND);
    for _ in 0..3 {
        script.expect("A", 0, Some(1), 0);
        script.wait_for_segment();
    }
    script.expect("RA", 1, Some(1), 0);
    assert_eq!(script.machine.close_reason(script.id()), Some(CloseReason::TimedOut));
    assert_eq!(script.machine.deadline(), None);
}

#[test]
fn a_probe_is_answered() {
    let mut script = Script::accepted(config(), false);
    script.send(seg("A", 0).ack(1).window(1000));
    script.expect("A", 1, Some(1), 0);
    script.send(seg("A", 0).ack(1).window(1000).data(1));
    script.expect("A", 1, Some(1), 0);
    assert_eq!(script.machine.readable(script.id()), 0);
}

#[test]
fn a_narrow_path_gets_shorter_segments() {
    let mut script = Script::accepted(config(), false);
    send_segments(&mut script, 3);
    let flow = script.flow(5000);
    // One message quotes nothing in flight; one asks for an absurd size.
    script.machine.too_big(&flow, script.iss + 90_000, 600, script.now);
    script.transmit();
    script.expect_nothing();
    assert_eq!(script.dropped(Drop::BadTooBig), 1);
    script.machine.too_big(&flow, script.iss + 1, 1400, script.now);
    script.transmit();
    for (seq, len) in [(1, 1360), (1361, 1360), (2721, 1360), (4081, 300)] {
        let flags = if len == 300 { "AP" } else { "A" };
        script.expect(flags, seq, None, len);
    }
    let before = script.machine.path(script.id()).unwrap().congestion_window;
    assert_eq!(before, 14_600, "a narrow path is not congestion");
    script.machine.too_big(&flow, script.iss + 1, 68, script.now);
    script.transmit();
    assert_eq!(script.machine.path(script.id()).unwrap().mss, 512);
}

#[test]
fn overlapping_segments_are_taken_once() {
    let mut script = Script::accepted(config(), false);
    script.send(seg("A", 1).ack(1).data(100));
    script.send(seg("A", 51).ack(1).data(100));
    script.send(seg("A", 161).ack(1).data(10));
    script.send(seg("A", 141).ack(1).data(100));
    assert_eq!(script.machine.readable(script.id()), 240);
    assert_eq!(script.out.back().unwrap().header.ack.since(PEER_ISN), 241);
}

#[test]
fn an_empty_pool_drops_and_recovers() {
    let mut script = Script::accepted(Config { memory: 8192, ..config() }, false);
    for i in 0..10 {
        script.send(seg("A", 1 + 1000 * i).ack(1).data(1000));
    }
    assert!(script.dropped(Drop::NoMemory) > 0);
    let id = script.id();
    let got = script.machine.receive(id, |data| data.len());
    assert!((8000..=8192).contains(&got), "{got}");
    script.out.clear();
    script.send(seg("A", 1 + got as u32).ack(1).data(1000));
    script.expect("A", 1, Some(1001 + got as u32), 0);
    assert!(script.machine.usage().memory <= 8192);
}

#[test]
fn peeking_takes_nothing() {
    let mut script = Script::accepted(config(), false);
    script.send(seg("A", 1).ack(1).data(6000));
    let id = script.id();
    let mut out = [0; 5000];
    assert_eq!((script.machine.peek(id, &mut out), out[4999]), (5000, 7));
    assert_eq!(script.machine.consume(id, 4500), 4500);
    assert_eq!(
        (script.machine.readable(id), script.machine.receive_slice(id, &mut out)),
        (1500, 1500)
    );
}

#[test]
fn a_retransmission_that_is_lost_is_found_without_a_time_out() {
    let mut script = Script::accepted(config(), false);
    send_segments(&mut script, 10);
    script.wait(MILLI);
    script.send(seg("A", 1).ack(1).window(1000).sack(&[(at(1), at(5))]));
    script.expect("A", 1, None, MSS);
    // The retransmission is lost, too; what was sent after it arrives.
    script.write(10 * MSS);
    script.send(seg("A", 1).ack(1).window(1000).sack(&[(at(1), at(10))]));
    let new = script.out.drain(..).map(|sent| sent.header.seq.since(script.iss)).max().unwrap();
    assert_eq!(new % MSS as u32, 1, "new data goes out in recovery");
    script.wait(MILLI);
    script.send(seg("A", 1).ack(1).window(1000).sack(&[(at(1), new + MSS as u32)]));
    if !script.out.iter().any(|sent| sent.header.seq == script.iss + 1) {
        script.wait(MILLI / 2);
    }
    assert!(script.out.iter().any(|sent| sent.header.seq == script.iss + 1));
    assert_eq!((script.counters().timeouts, script.counters().recoveries), (0, 1));
}
