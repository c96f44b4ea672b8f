//! Requests that are answered while a switch is busy, and the reports of a switch that a client
//! made.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use harness::Daemon;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// API requests that are answered while a switch waits for its data process, and a word that each
/// answer contains.
const READ: &[(&str, &str)] = &[
    ("/v1/status", "uptime_s"),
    ("/v1/stats", "vale1"),
    ("/v1/switches", "vale1"),
    ("/v1/switches/vale0", "restarts"),
    ("/v1/switches/vale0/ports", "vacant"),
    ("/v1/switches/vale0/ports/a", "vacant"),
    ("/v1/switches/vale0/fdb", "02:00:00:00:00:07"),
    ("/v1/switches/vale0/drops", "frames"),
    ("/v1/stats?switch=vale0", "wakeups"),
    ("/v1/topology", "vale1"),
    ("/v1/quotas", "refused"),
    ("/metrics", "toklat_switch_table_entries{switch=\\\"vale0\\\"} 1"),
];

/// Objective: readers wait for no data process, nor for commands that do.
///
/// Steps: the data process is stopped; changes of a port and of the table wait for it. All that can
/// be read is read for a second at least, and the changes still wait. The data process goes on, and
/// so do the changes.
#[test]
fn all_is_read_while_a_data_process_is_stuck_and_commands_wait_for_it() {
    let daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.a]\n[switch.vale1.port.b]");
    let entry = json!({ "mac": "02:00:00:00:00:07", "port": "a" });
    assert_eq!(daemon.ask("POST", "/v1/switches/vale0/fdb", &entry).0, 204);
    let process = Pid::from_raw(daemon.data_process("vale0")).unwrap();
    kill_process(process, Signal::STOP).unwrap();
    let (begun, changed) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let ask = |method, path, body, expected| {
            begun.fetch_add(1, Ordering::SeqCst);
            let (status, answer) = daemon.ask(method, path, &body);
            changed.store(true, Ordering::SeqCst);
            assert_eq!(status, expected, "{answer}");
        };
        let (port, flush) = ("/v1/switches/vale0/ports/a", "/v1/switches/vale0/fdb/flush");
        scope.spawn(move || ask("PATCH", port, json!({ "lossless": true }), 200));
        scope.spawn(move || ask("POST", flush, json!({}), 204));
        while begun.load(Ordering::SeqCst) < 2 {
            std::thread::yield_now();
        }
        let (started, mut late) = (Instant::now(), None);
        while late.is_none() && started.elapsed() < Duration::from_secs(1) {
            late = READ.iter().find(|(path, word)| {
                let (status, answer) = daemon.ask("GET", path, &Value::Null);
                let good = status == 200 && answer.to_string().contains(word);
                !good || changed.load(Ordering::SeqCst)
            });
        }
        // The process continues before the assertion, so that nothing waits forever if that fails.
        kill_process(process, Signal::CONT).unwrap();
        assert_eq!(late, None, "waited for the data process, or has not that word");
    });
    assert!(daemon.get("/v1/switches/vale0/ports/a")["spec"]["lossless"] == true);
    assert_eq!(daemon.data_process("vale0"), process.as_raw_nonzero().get(), "it was killed");
}

/// Objective: a user that adds a port to a switch that a client created is told how to keep the
/// switch, and that works.
#[test]
fn a_switch_that_a_client_made_says_how_to_keep_it() {
    let daemon = Daemon::start();
    let _port = daemon.open("vale7:x").unwrap();
    let add = || daemon.tool(&["port", "add", "vale7:p"]).output().unwrap();
    let said = String::from_utf8(add().stderr).unwrap();
    assert!(said.contains("only as long as programs have ports of it open"), "{said}");
    assert!(said.contains("toklat switch add vale7"), "{said}");
    daemon.done(&["switch", "add", "vale7"]);
    let output = add();
    assert!(output.status.success(), "{output:?}");
}

/// Objective: a request beyond a limit is refused for good, and not as one to repeat.
#[test]
fn a_limit_that_is_reached_is_forbidden() {
    let daemon = Daemon::start();
    daemon.apply("[switch.vale0]\nmax_ports = 1\n[switch.vale0.port.a]");
    let (status, refusal) = daemon.ask("POST", "/v1/switches/vale0/ports", &json!({"name": "b"}));
    assert_eq!((status, &refusal["error"]), (403, &json!("limit")), "{refusal}");
}
