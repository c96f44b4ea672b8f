//! Bad links of ports, as the operator sets and sees them.

use std::time::{Duration, Instant};

use harness::frames::{frame, receive, until_traffic_flows};
use harness::{Daemon, kill_process};
use netring::Port;
use serde_json::json;

/// Sends a frame. Returns how long it took to arrive, and its number.
fn exchange(daemon: &mut Daemon, a: &mut Port, b: &mut Port, number: u64) -> Duration {
    let began = Instant::now();
    assert!(a.send(1).push(&frame(1, 2, number)));
    a.flush().unwrap();
    daemon.wait_for("the frame", |_| receive(b).contains(&number));
    began.elapsed()
}

/// Objective: frames come late, and come though nothing follows them, whichever worker serves the
/// ports and though it sleeps; a bad link survives the data process, and is shown, exported and
/// mended.
///
/// Steps: two workers, one port each; each direction of the link gets a delay in turn; frames are
/// sent one by one.
#[test]
fn a_delay_is_set_shown_kept_and_lifted() {
    let mut daemon = Daemon::start();
    daemon.apply(
        "[switch.vale0]\nworkers = [{}, {}]\n[switch.vale0.port.a]\nworker = 0\n\
         [switch.vale0.port.b]\nworker = 1",
    );
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    let mut number = 0;
    until_traffic_flows(&mut a, &mut b, &mut number);
    let late = Duration::from_millis(30);
    for (port, option) in [("vale0:a", "--tx-impair"), ("vale0:b", "--rx-impair")] {
        daemon.done(&["port", "set", port, option, "delay=30ms"]);
        let shown = daemon.done(&["port", "show", port]);
        assert!(shown.contains(&format!("{} delay=30ms", &option[2..])), "{shown}");
        for _ in 0..3 {
            number += 1;
            let took = exchange(&mut daemon, &mut a, &mut b, number);
            assert!(took >= late, "{took:?}");
        }
        assert!(daemon.done(&["export"]).contains("_impair = \"delay=30ms\""));
        kill_process(daemon.data_process("vale0"));
        number += 1;
        let took = exchange(&mut daemon, &mut a, &mut b, number);
        assert!(took >= late, "the successor has it, too: {took:?}");
        daemon.done(&["port", "set", port, option, "off"]);
        assert!(!daemon.done(&["export"]).contains("_impair"));
    }
    let drops = ["a", "b"].map(|port| daemon.counters(port)["in_drops"].clone());
    assert_eq!(drops, [json!({}), json!({})]);
}

/// Objective: frames lost by a bad link are counted at that link's port under their own name.
#[test]
fn lost_frames_are_counted_and_nonsense_is_refused() {
    let mut daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.a]\n[switch.vale0.port.b]");
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    let mut number = 0;
    until_traffic_flows(&mut a, &mut b, &mut number);
    daemon.done(&["port", "set", "vale0:b", "--rx-impair", "loss=100%"]);
    for _ in 0..20 {
        number += 1;
        a.send(1).push(&frame(1, 2, number));
    }
    a.flush().unwrap();
    daemon.wait_for("the drops", |daemon| {
        assert_eq!(receive(&mut b), [0u64; 0]);
        daemon.counters("b")["in_drops"] == json!({ "impaired": 20 })
    });
    let wrong = r#"{"tx_impairment": {"delay_us": 4, "jitter_us": 5}}"#;
    let path = "/v1/switches/vale0/ports/b";
    let (status, problem) = daemon.ask("PATCH", path, &serde_json::from_str(wrong).unwrap());
    assert_eq!(status, 400, "{problem}");
    assert!(problem.to_string().contains("at most its delay, 4 us, not 5"), "{problem}");
}
