//! Lossless ports, as the operator sees them.

use harness::Daemon;
use harness::frames::{frame, receive, until_traffic_flows};
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
