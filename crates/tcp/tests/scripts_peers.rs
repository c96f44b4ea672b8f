//! Objective: peers that delay their ACKs get nothing twice, and silent ones are waited for.
//! Steps: packet scripts against one machine, with the delays of the systems that are out there.

mod common;

use common::script::*;
use common::*;
use toklat_tcp::{CloseReason, Config, State};

const MINUTE: u64 = 60 * SECOND;

/// A connection whose peer says how long it delays ACKs; 0 for a peer that does not.
fn with_delay(millis: u8, sack: bool, stamps: bool) -> Script {
    let mut script = Script::new(config());
    script.stamps = stamps.then_some(1000);
    script.listener = Some(script.machine.listen(None, 80, 2, None).unwrap());
    let options = toklat_tcp::Options { sack_permitted: sack, ack_delay: millis, ..syn_options() };
    script.send(seg("S", 0).options(options));
    let told = script.expect("SA", 0, Some(1), 0).header.options.ack_delay;
    assert_eq!(
        told,
        u8::from((1..=2).contains(&millis)),
        "a peer that knows the option is told, no other"
    );
    script.wait(MILLI / 10);
    script.send(seg("A", 1).ack(1).window(1000));
    script.id = script.machine.accept(script.listener.unwrap());
    script
}

/// Linux delays lone ACKs by 40 to 200 ms, BSD and macOS by 100, Windows by 40 or 200.
#[test]
fn regression_no_delay_of_a_peers_acks_is_taken_for_a_loss() {
    for delay in [0, 1, 40, 50, 100, 200, 230] {
        for (sack, stamps) in [(true, true), (true, false), (false, true), (false, false)] {
            let mut script = with_delay(0, sack, stamps);
            for i in 0..20 {
                script.write(50);
                script.expect("AP", 1 + 50 * i, None, 50);
                script.wait(delay * MILLI);
                script.expect_nothing();
                script.send(seg("A", 1).ack(51 + 50 * i).window(1000));
                script.wait(i as u64 * MILLI);
            }
            let counters = script.counters();
            assert_eq!((counters.timeouts, counters.probes), (0, 0), "{delay} ms");
        }
    }
}

/// RFC 1122, 4.2.3.2 allows half a second.
#[test]
fn longer_delays_are_learned_from_duplicate_sacks() {
    for delay in [400, 500] {
        let mut script = with_delay(0, true, false);
        let mut twice = 0;
        for i in 0..20 {
            script.write(50);
            script.wait(delay * MILLI);
            let copies = script.out.drain(..).count();
            script.send(seg("A", 1).ack(51 + 50 * i).window(1000));
            for _ in 1..copies {
                twice += 1;
                let range = (1 + 50 * i, 51 + 50 * i);
                script.send(seg("A", 1).ack(51 + 50 * i).window(1000).sack(&[range]));
            }
        }
        assert!((1..=4).contains(&twice), "{twice} of 20 segments twice at {delay} ms");
    }
}

/// A guest says that it acknowledges within 1 ms.
#[test]
fn a_peer_that_acknowledges_at_once_gets_a_lost_segment_soon() {
    for (millis, waits) in [(1, 1..=5), (2, 1..=5), (40, 200..=300), (0, 200..=300)] {
        let mut script = with_delay(millis, true, true);
        script.write(50);
        script.expect("AP", 1, None, 50);
        let waited = script.wait_for_segment() / MILLI;
        assert!(waits.contains(&waited), "{waited} ms for a peer of {millis} ms");
        script.expect("AP", 1, None, 50);
    }
    // A client tells, and learns from the answer. The second SYN does without.
    let mut script = Script::new(config());
    let id = script.machine.connect((v4(1), 0), (v4(2), 5000), None, script.now).unwrap();
    script.id = Some(id);
    script.transmit();
    assert_eq!(script.expect("SEC", 0, None, 0).header.options.ack_delay, 1);
    script.wait_for_segment();
    assert_eq!(script.expect("SEC", 0, None, 0).header.options.ack_delay, 0);
    let options = toklat_tcp::Options { ack_delay: 1, ..syn_options() };
    script.send(seg("SA", 0).ack(1).options(options));
    script.expect("A", 1, Some(1), 0);
    assert_eq!(script.state(), Some(State::Established));
    // The round trip of the second SYN counts, but not what it took to send it again.
    script.write(50);
    script.expect("AP", 1, None, 50);
    script.wait(MILLI / 10);
    script.send(seg("A", 1).ack(51).window(1000));
    script.write(50);
    script.expect("AP", 51, None, 50);
    let waited = script.wait_for_segment() / MILLI;
    assert!(waited <= 5, "{waited} ms");
}

/// Virtual machines are paused and migrated, cables pulled: TCP waits for longer than that.
#[test]
fn regression_a_silent_peer_is_waited_for_by_time() {
    for silence in [41 * SECOND, 2 * MINUTE, 14 * MINUTE] {
        for prompt in [0, 1] {
            let mut script = with_delay(prompt, true, true);
            script.write(50);
            script.wait(silence);
            assert_eq!(script.state(), Some(State::Established), "{} s", silence / SECOND);
            script.out.clear();
            // No later than a minute after its return it gets what it has missed.
            assert!(script.wait_for_segment() <= MINUTE);
            script.expect("AP", 1, None, 50);
            script.send(seg("A", 1).ack(51).window(1000));
            script.wait(30 * MINUTE);
            assert_eq!(script.state(), Some(State::Established));
        }
    }
}

#[test]
fn a_peer_that_stays_silent_is_given_up_in_a_quarter_of_an_hour() {
    let given_up = |script: &mut Script| {
        let from = script.now;
        while script.state() != Some(State::Closed) {
            script.wait_for_segment();
            script.out.clear();
        }
        assert_eq!(script.machine.close_reason(script.id()), Some(CloseReason::TimedOut));
        script.now - from
    };
    let mut script = with_delay(0, true, true);
    script.write(50);
    assert!((15 * MINUTE..17 * MINUTE).contains(&given_up(&mut script)));
    // A closed window, after a long idle time.
    let mut script = with_delay(0, true, true);
    script.send(seg("A", 1).ack(1).window(0));
    script.wait(3600 * SECOND);
    script.write(50);
    assert!((15 * MINUTE..17 * MINUTE).contains(&given_up(&mut script)));
}

#[test]
fn a_syn_is_repeated_for_three_minutes() {
    let mut script = Script::new(config());
    let id = script.machine.connect((v4(1), 0), (v4(2), 5000), None, script.now).unwrap();
    script.id = Some(id);
    script.transmit();
    script.wait(170 * SECOND);
    assert_eq!((script.state(), script.out.len()), (Some(State::SynSent), 8));
    script.wait(11 * SECOND);
    assert_eq!(script.machine.close_reason(id), Some(CloseReason::TimedOut));
}

#[test]
fn delays_of_peers_are_settings() {
    let mut tuning = config().tuning;
    (tuning.rto_min_far, tuning.peer_ack_delay_far) = (tuning.rto_min, tuning.peer_ack_delay);
    let mut script = Script::accepted(Config { tuning, tell_ack_delay: false, ..config() }, false);
    script.write(50);
    script.expect("AP", 1, None, 50);
    assert!(script.wait_for_segment() <= 5 * MILLI);
}
