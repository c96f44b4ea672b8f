//! The supervisor's children: what has ended is reaped, whatever killed it and when.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use harness::Daemon;
use harness::children::{self, Held};
use rustix::process::{Pid, Signal};

/// Adds a switch and removes it. The first may fail if its process is killed.
fn add_and_remove(daemon: &Daemon, name: &str) -> u16 {
    let added = daemon.ask("POST", "/v1/switches", &json!({ "name": name })).0;
    let removed = daemon.ask("DELETE", &format!("/v1/switches/{name}"), &Value::Null).0;
    assert!(removed == 204 || added != 201, "{removed}");
    added
}

#[test]
fn regression_removed_switches_leave_no_zombie_descriptor_or_thread() {
    let daemon = Daemon::start();
    for _ in 0..3 {
        assert_eq!(add_and_remove(&daemon, "q"), 201);
    }
    children::assert_no_zombie(daemon.pid());
    let before = Held::by(daemon.pid());
    for _ in 0..20 {
        assert_eq!(add_and_remove(&daemon, "q"), 201);
    }
    before.assert_no_more(daemon.pid());
}

/// Objective: data processes, their launchers and what these leave behind are reaped when they are
/// killed at any moment: before they are confined, while they greet, while they stop.
#[test]
fn processes_that_are_killed_at_bad_moments_leave_no_zombie_descriptor_or_thread() {
    let daemon = Daemon::start();
    for _ in 0..3 {
        assert_eq!(add_and_remove(&daemon, "q"), 201);
    }
    children::assert_no_zombie(daemon.pid());
    let before = Held::by(daemon.pid());
    let (pid, done) = (daemon.pid(), AtomicBool::new(false));
    let killed = std::thread::scope(|scope| {
        let killer = scope.spawn(|| {
            let mut killed = 0;
            while !done.load(Ordering::Relaxed) {
                // The pause grows, so that each process lives a little longer than the one before.
                std::thread::sleep(Duration::from_micros(700 * (killed % 29)));
                for child in children::of(pid).iter().filter(|child| child.state != 'Z') {
                    let pid = Pid::from_raw(child.pid).unwrap();
                    killed += u64::from(rustix::process::kill_process(pid, Signal::KILL).is_ok());
                }
            }
            killed
        });
        for round in 0..40 {
            add_and_remove(&daemon, &format!("q{round}"));
        }
        done.store(true, Ordering::Relaxed);
        killer.join().unwrap()
    });
    assert!(killed > 20, "{killed} processes were killed");
    // A switch whose process was killed as it was added may be there still.
    for round in 0..40 {
        let _ = daemon.ask("DELETE", &format!("/v1/switches/q{round}"), &Value::Null);
    }
    assert_eq!(add_and_remove(&daemon, "q"), 201);
    before.assert_no_more(daemon.pid());
}
