//! When guests are interrupted, and when they have to kick.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use dataplane::attach::virtio::message::code;
use serde_json::json;

use super::{PACKED, SPLIT, daemon, guest, numbers, state, until_frames_flow, wait_until};
use harness::PATIENCE;
use harness::frames::frame;
use harness::front_end::{RECEIVE, TRANSMIT, eventfd, was_signalled, words};

#[test]
fn regression_a_guest_without_a_link_is_interrupted_where_it_said_last() {
    let daemon = daemon(&["a"]);
    let mut a = guest(&daemon, "a", SPLIT);
    let path = "/v1/switches/vale0/ports/a";
    assert_eq!(daemon.ask("PATCH", path, &json!({ "link": false })).0, 200);
    a.queues[TRANSMIT].call = eventfd();
    let call = [a.queues[TRANSMIT].call.as_fd()];
    a.must(code::SET_VRING_CALL, &words(&[TRANSMIT as u64]), &call);
    was_signalled(&a.queues[TRANSMIT].call);
    a.queues[TRANSMIT].driver.want_interrupts(true);
    a.send(&frame(1, 2, 1));
    wait_until(|| was_signalled(&a.queues[TRANSMIT].call));
}

#[test]
fn interrupts_are_held_back_and_none_is_lost() {
    let daemon = daemon(&["a", "b"]);
    let (mut a, mut b) = (guest(&daemon, "a", SPLIT), guest(&daemon, "b", SPLIT));
    let mut number = 0;
    until_frames_flow(&mut a, &mut b, &mut number);
    let path = "/v1/switches/vale0/ports/b";
    for (interrupts, least, most_a_second) in [
        (json!({}), 30, 1_000_000),
        (json!({ "max_rate": 50 }), 1, 51),
        (json!({ "max_delay_us": 20_000, "adaptive": true }), 1, 150),
    ] {
        assert_eq!(daemon.ask("PATCH", path, &json!({ "interrupts": interrupts })).0, 200);
        was_signalled(&b.queues[RECEIVE].call);
        let (mut signals, started) = (0, Instant::now());
        while started.elapsed() < Duration::from_millis(300) || signals < least {
            assert!(started.elapsed() < PATIENCE, "{signals} with {interrupts}");
            number += 1;
            a.send(&frame(1, 2, number));
            b.queues[RECEIVE].driver.want_interrupts(true);
            std::thread::sleep(Duration::from_micros(300));
            signals += u32::from(was_signalled(&b.queues[RECEIVE].call));
            numbers(&mut b);
        }
        let most = 5.0 + started.elapsed().as_secs_f64() * f64::from(most_a_second);
        assert!(f64::from(signals) < most, "{signals} with {interrupts}");
        // The interrupt for a last frame is late, but comes.
        numbers(&mut b);
        b.queues[RECEIVE].driver.want_interrupts(true);
        was_signalled(&b.queues[RECEIVE].call);
        a.send(&frame(1, 2, number));
        wait_until(|| was_signalled(&b.queues[RECEIVE].call));
    }
}

#[test]
fn a_driver_that_has_looked_is_not_interrupted_for_sent_frames() {
    let mut daemon = daemon(&["a", "b"]);
    for queues in [SPLIT, PACKED] {
        let (mut a, mut b) = (guest(&daemon, "a", queues), guest(&daemon, "b", queues));
        let mut number = 0;
        until_frames_flow(&mut a, &mut b, &mut number);
        let interrupts = json!({ "interrupts": { "max_sent_delay_us": 50_000 } });
        assert_eq!(daemon.ask("PATCH", "/v1/switches/vale0/ports/a", &interrupts).0, 200);
        for looks in [false, true] {
            a.reclaim();
            let sending = &mut a.queues[TRANSMIT];
            sending.driver.want_interrupts(true);
            was_signalled(&sending.call);
            number += 1;
            a.send(&frame(1, 2, number));
            wait_until(|| numbers(&mut b).contains(&number));
            if looks {
                wait_until(|| a.reclaim() > 0);
                let sending = &mut a.queues[TRANSMIT];
                sending.driver.want_interrupts(true);
                std::thread::sleep(Duration::from_millis(200));
                assert!(!was_signalled(&sending.call), "it was interrupted, though it had looked");
            } else {
                wait_until(|| was_signalled(&a.queues[TRANSMIT].call));
            }
        }
        drop(a);
        daemon.wait_for("the port to be vacant", |daemon| state(daemon, "a") == "vacant");
        drop(b);
        daemon.wait_for("the port to be vacant", |daemon| state(daemon, "b") == "vacant");
    }
}

#[test]
fn under_heavy_traffic_guests_are_not_asked_for_kicks_and_no_frame_stays() {
    let daemon = daemon(&["a", "b"]);
    let (mut a, mut b) = (guest(&daemon, "a", SPLIT), guest(&daemon, "b", SPLIT));
    let mut number = 0;
    until_frames_flow(&mut a, &mut b, &mut number);
    let mut seen = number;
    for port in ["a", "b"] {
        let interrupts = json!({ "interrupts": { "max_delay_us": 20_000, "adaptive": true } });
        let path = format!("/v1/switches/vale0/ports/{port}");
        assert_eq!(daemon.ask("PATCH", &path, &interrupts).0, 200);
    }
    let before = daemon.counters("a");
    let first = number;
    // A frame is sent every few hundred microseconds: without suppression, each would be a kick.
    for _ in 0..2000 {
        a.reclaim();
        a.queues[TRANSMIT].driver.want_interrupts(true);
        b.queues[RECEIVE].driver.want_interrupts(true);
        number += u64::from(a.send(&frame(1, 2, number + 1)));
        std::thread::sleep(Duration::from_micros(200));
        for got in numbers(&mut b) {
            assert_eq!(got, seen + 1);
            seen = got;
        }
    }
    wait_until(|| {
        seen = numbers(&mut b).last().copied().unwrap_or(seen);
        seen == number
    });
    let after = daemon.counters("a");
    let kicks = after["wakeups"].as_u64().unwrap() - before["wakeups"].as_u64().unwrap();
    assert!(kicks < (number - first) / 2, "{kicks} kicks for {} frames", number - first);
}
