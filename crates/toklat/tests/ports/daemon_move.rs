//! Ports change workers while they are used.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use harness::Daemon;
use harness::frames::{frame, receive, until_traffic_flows};
use netring::Interest;
use serde_json::json;

/// How often each end is moved to the other worker and back.
const MOVES: usize = 100;

/// Objective: a port that is moved between workers under traffic loses no frame, and none comes
/// twice or out of order.
#[test]
fn a_port_is_moved_between_workers_under_traffic_and_loses_nothing() {
    let daemon = Daemon::start();
    daemon.apply(
        "[switch.vale0]\nworkers = [{}, {}]\nstall_timeout_ms = 10000\n[switch.vale0.port.a]\nworker = 0\n\
         [switch.vale0.port.b]\nlossless = true\nworker = 1",
    );
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    let mut number = 0;
    until_traffic_flows(&mut a, &mut b, &mut number);
    let (first, moved) = (number, AtomicBool::new(false));
    // The number of the last frame, once all are sent.
    let last_sent = OnceLock::new();
    let pause = Some(Duration::from_millis(10));
    let sent = std::thread::scope(|scope| {
        let (moved, last_sent) = (&moved, &last_sent);
        let sending = scope.spawn(move || {
            let mut last = first;
            while !moved.load(Ordering::Acquire) {
                if a.send(1).push(&frame(1, 2, last + 1)) {
                    last += 1;
                    a.flush().unwrap();
                } else {
                    a.flush().unwrap();
                    let _ = a.wait(Interest::WRITE, pause);
                }
            }
            // The receiver's port stays open until all has arrived.
            (last, a)
        });
        let receiving = scope.spawn(move || {
            let mut seen = first;
            while last_sent.get() != Some(&seen) {
                for got in receive(&mut b) {
                    assert_eq!(got, seen + 1);
                    seen = got;
                }
                let _ = b.wait(Interest::READ, pause);
            }
        });
        for n in 0..MOVES {
            for (port, worker) in [("a", (n + 1) % 2), ("b", n % 2)] {
                let path = format!("/v1/switches/vale0/ports/{port}");
                let (status, info) = daemon.ask("PATCH", &path, &json!({ "worker": worker }));
                assert_eq!((status, &info["worker"]), (200, &json!(worker)), "{info}");
            }
        }
        moved.store(true, Ordering::Release);
        let (last, _a) = sending.join().unwrap();
        last_sent.set(last).unwrap();
        receiving.join().unwrap();
        last
    });
    assert!(sent > first + MOVES as u64, "{sent} frames over {MOVES} moves");
    assert_eq!(daemon.counters("a")["in_drops"], json!({}));
}
