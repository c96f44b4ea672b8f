//! The routing daemon as a child: the walls around it, and which process is it.

use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use harness::routers::gobgpd;
use harness::{Daemon, kill_process, text};
use serde_json::{Value, json};

/// A daemon with EVPN, if there is a gobgpd.
fn started(test: &str) -> Option<Daemon> {
    let program = gobgpd().inspect_err(|why| harness::skip(test, why)).ok()?;
    let mut daemon = Daemon::start();
    daemon.end_with_this_process();
    daemon.apply(&format!(
        "[evpn]\nas = 65000\nrouter_id = \"10.99.0.1\"\nvtep = \"127.0.0.1\"\nprogram = {program:?}\n\
         [[evpn.neighbor]]\naddress = \"127.0.0.9\"\n"
    ));
    daemon.wait_for("gobgpd", |daemon| child(daemon).is_some());
    Some(daemon)
}

/// The routing daemon, as the status lists it.
fn child(daemon: &Daemon) -> Option<Value> {
    let status = daemon.get("/v1/status");
    status["children"].as_array()?.iter().find(|child| child["name"] == "gobgpd").cloned()
}

#[test]
fn gobgpd_has_the_walls_that_the_status_lists_and_a_later_daemon_knows_them() {
    let test = "gobgpd_has_the_walls_that_the_status_lists_and_a_later_daemon_knows_them";
    let Some(mut daemon) = started(test) else { return };
    let gobgpd = child(&daemon).unwrap();
    let standing: Vec<&str> =
        gobgpd["walls"]["standing"].as_array().unwrap().iter().map(text).collect();
    for wall in ["capabilities", "no_new_privileges", "descriptors", "system_calls"] {
        assert!(standing.contains(&wall), "{gobgpd}");
    }
    let pid = gobgpd["pid"].as_i64().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    for line in ["CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(line), "{status}");
    }
    if jail::landlock::is_available() {
        assert!(standing.contains(&"landlock_files"), "{gobgpd}");
    }
    let is_root = rustix::process::geteuid().is_root();
    for (wall, space) in [
        ("ipc_namespace", "ipc"),
        ("name_namespace", "uts"),
        ("cgroup_namespace", "cgroup"),
        ("process_namespace", "pid"),
    ] {
        assert_eq!(standing.contains(&wall), is_root, "{gobgpd}");
        let of = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/{space}")).ok();
        assert_eq!(of("self") != of(&pid.to_string()), is_root, "{wall}");
    }
    assert_eq!(standing.contains(&"user"), is_root, "{gobgpd}");
    daemon.kill();
    daemon.start_again();
    daemon.wait_for("the same gobgpd", |daemon| child(daemon).is_some());
    assert_eq!(child(&daemon), Some(gobgpd));
}

/// Objective: a process that listens at the routing daemon's socket, and is not the routing daemon,
/// is not ended with the daemon.
#[test]
fn regression_what_listens_at_gobgpd_s_socket_is_not_ended_in_its_place() {
    let test = "regression_what_listens_at_gobgpd_s_socket_is_not_ended_in_its_place";
    let Some(mut daemon) = started(test) else { return };
    // This process is the one that listens, and would be told to end.
    let ended = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::clone(&ended)).unwrap();
    let pid = child(&daemon).unwrap()["pid"].as_i64().unwrap();
    daemon.kill();
    kill_process(pid as i32);
    let socket = daemon.dir().join("evpn/gobgp.sock");
    let _ = std::fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        let mut held = Vec::new();
        held.extend(listener.incoming().flatten());
    });
    daemon.start_again();
    daemon.wait_for("a look at the socket", |daemon| {
        daemon.log().contains("found the routing daemon")
            || daemon.log().contains("is not the routing daemon")
    });
    assert_eq!(child(&daemon), None);
    daemon.stop(&json!({}));
    assert!(!ended.load(Ordering::Relaxed), "it was told to end");
}
