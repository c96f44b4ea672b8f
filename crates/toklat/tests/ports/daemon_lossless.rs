//! Lossless ports, as the operator sees them.

use std::time::{Duration, Instant};

use harness::frames::{frame, receive, send, until_traffic_flows};
use harness::{Daemon, PATIENCE, kill_process};
use serde_json::Value;

fn state(daemon: &Daemon) -> Value {
    daemon.get("/v1/switches/vale0/ports/b")["state"].clone()
}

/// Objective: a lossless port whose client frees no slot is `stalled`, visibly, after the stall
/// time; its frames are dropped at once and counted as such; as soon as it has room nothing is lost
/// any more.
#[test]
fn regression_a_receiver_that_frees_nothing_is_stalled_and_one_that_does_loses_nothing() {
    let mut daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.a]\n[switch.vale0.port.b]\nlossless = true");
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    let mut number = 0;
    until_traffic_flows(&mut a, &mut b, &mut number);
    // The sender sends more frames than the ring of `b` has slots, because the client at `b` does
    // not read.
    daemon.wait_for("the port to be stalled", |daemon| {
        a.send(1).push(&frame(1, 2, 1));
        a.flush().unwrap();
        state(daemon) == "stalled"
    });
    let lost = |daemon: &Daemon| daemon.counters("a")["in_drops"]["stall_timeout"].as_u64();
    daemon.wait_for("frames to be dropped at once", |daemon| {
        a.send(16).push(&frame(1, 2, 1));
        a.flush().unwrap();
        lost(daemon).is_some_and(|lost| lost > 16)
    });
    assert_eq!(daemon.counters("b")["stalls"], 1);
    let shown = daemon.done(&["port", "show", "vale0:b"]);
    assert!(shown.contains("stalled"), "{shown}");
    receive(&mut b);
    until_traffic_flows(&mut a, &mut b, &mut number);
    assert_eq!(state(&daemon), "attached");
    let before = lost(&daemon);
    // Sends ten times as many frames as fit the ring, to a client that reads them.
    let (first, last) = (number + 1, number + 640);
    let mut got = number;
    while got < last {
        while number < last && a.send(1).push(&frame(1, 2, number + 1)) {
            number += 1;
        }
        a.flush().unwrap();
        for seen in receive(&mut b).into_iter().filter(|seen| *seen >= first) {
            assert_eq!(seen, got + 1);
            got = seen;
        }
    }
    assert_eq!(lost(&daemon), before);
}

/// Objective: what is sent to a lossless port at 50,000 frames a second outlives eight kills.
///
/// Steps: one frame each 20 us, and the data process is killed eight times meanwhile, each time
/// after 2,000 frames. Frames come once and in order. Only those that a worker had in its
/// hands when it was killed may be lost, at most a batch each time, and all of them are counted.
#[test]
fn frames_at_a_steady_rate_outlive_eight_kills_or_are_counted() {
    const KILLS: u64 = 8;
    const BATCH: u64 = 64;
    /// Frames from one kill to the next.
    const EACH: u64 = 2000;
    let daemon = Daemon::start();
    daemon
        .apply("[switch.vale0]\nstall_timeout_ms = 10000\n[switch.vale0.port.b]\nlossless = true");
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    let mut number = 0;
    until_traffic_flows(&mut a, &mut b, &mut number);
    let (first, mut seen, mut arrived) = (number, number, 0);
    let (mut kills, mut next) = (0, EACH);
    let (begun, pace) = (Instant::now(), Duration::from_micros(20));
    let mut due = begun;
    let mut heard = begun;
    // Frames that were lost, once the last successor forwards.
    let lost = |daemon: &Daemon| {
        let gaps = daemon.get("/v1/switches/vale0")["restart_gaps"]["count"].clone();
        let stats = daemon.get("/v1/stats");
        let lost = stats["switches"][0]["lost_in_restarts"].as_u64().unwrap();
        (gaps == KILLS).then_some(lost)
    };
    let is_over =
        |arrived: u64, sent: u64| lost(&daemon).is_some_and(|lost| arrived + lost >= sent);
    while kills < KILLS
        || heard.elapsed() < Duration::from_millis(50)
        || !is_over(arrived, number - first)
    {
        if due.elapsed() >= pace && (kills < KILLS || number < first + next) {
            // What waited for a successor is not sent faster afterwards.
            due = (due + pace).max(Instant::now() - Duration::from_millis(1));
            number += u64::from(send(&mut a, &frame(1, 2, number + 1)));
        }
        for got in receive(&mut b) {
            assert!(got > seen, "frame {got} after {seen}");
            (seen, arrived, heard) = (got, arrived + 1, Instant::now());
        }
        if kills < KILLS && arrived >= next {
            kill_process(daemon.data_process("vale0"));
            (kills, next) = (kills + 1, number - first + EACH);
        }
        assert!(begun.elapsed() < PATIENCE, "{arrived} arrived: {}", daemon.log());
    }
    let lost = lost(&daemon).unwrap();
    let sent = number - first;
    println!("{arrived} of {sent} arrived over {kills} kills, {lost} lost and counted");
    assert!(sent > 10_000, "{sent}");
    assert_eq!(arrived + lost, sent, "each is delivered or counted");
    assert!(lost <= KILLS * BATCH, "{lost} of {sent}");
}
