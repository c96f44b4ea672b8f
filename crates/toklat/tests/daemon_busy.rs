//! What can be asked while a switch is busy, and what a switch that a client made says.

mod daemon;

use std::sync::atomic::{AtomicBool, Ordering};

use daemon::Daemon;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

/// Objective: reading counters waits for no data process.
///
/// Steps: the data process is stopped; a change of a port waits for it; meanwhile status and
/// counters are read, again and again, and the change is still waiting; the data process goes on,
/// and so does the change.
#[test]
fn status_and_counters_are_read_while_a_data_process_is_asked() {
    let daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.a]\n[switch.vale1.port.b]");
    let before = daemon.get("/v1/stats");
    assert_eq!(before["switches"][0]["ports"][0]["name"], "a");
    let process = Pid::from_raw(daemon.data_process("vale0")).unwrap();
    kill_process(process, Signal::STOP).unwrap();
    let (begun, changed) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            begun.store(true, Ordering::SeqCst);
            let path = "/v1/switches/vale0/ports/a";
            let (status, answer) = daemon.ask("PATCH", path, &json!({ "lossless": true }));
            changed.store(true, Ordering::SeqCst);
            assert_eq!(status, 200, "{answer}");
        });
        while !begun.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        let mut waited = 0;
        while waited < 30 {
            assert_eq!(daemon.get("/v1/status")["ports"], 2);
            let stats = daemon.get("/v1/stats");
            assert_eq!(stats["switches"].as_array().unwrap().len(), 2, "{stats}");
            if changed.load(Ordering::SeqCst) {
                // Before the failure, so that nothing waits forever.
                kill_process(process, Signal::CONT).unwrap();
                panic!("what was read waited for the data process");
            }
            waited += 1;
        }
        kill_process(process, Signal::CONT).unwrap();
    });
    assert!(daemon.get("/v1/switches/vale0/ports/a")["spec"]["lossless"] == true);
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

/// Objective: a limit that is reached is a refusal for good, not for a while.
#[test]
fn a_limit_that_is_reached_is_forbidden() {
    let daemon = Daemon::start();
    daemon.apply("[switch.vale0]\nmax_ports = 1\n[switch.vale0.port.a]");
    let (status, refusal) = daemon.ask("POST", "/v1/switches/vale0/ports", &json!({"name": "b"}));
    assert_eq!((status, &refusal["error"]), (403, &json!("limit")), "{refusal}");
}
