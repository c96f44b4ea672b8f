//! The walls around a data process, as the kernel reports them.

use std::fs;

use serde_json::Value;

use harness::frames::until_traffic_flows;
use harness::users::may_be_others;
use harness::{Daemon, text};

/// A line of a process's status (proc(5)).
fn status(pid: i32, key: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(&format!("{key}:")));
    line.unwrap().split_once(':').unwrap().1.trim().to_owned()
}

fn standing(info: &Value) -> Vec<&str> {
    info["walls"]["standing"].as_array().unwrap().iter().map(text).collect()
}

/// Walls that are namespaces, and the kernel's names of those.
const NAMESPACES: [(&str, &str); 7] = [
    ("user_namespace", "user"),
    ("root", "mnt"),
    ("process_namespace", "pid"),
    ("ipc_namespace", "ipc"),
    ("name_namespace", "uts"),
    ("network_namespace", "net"),
    ("cgroup_namespace", "cgroup"),
];

/// Returns the namespace of a kind in which a process is, or `None` if only root may read it: then
/// it is not our own namespace.
fn namespace(pid: u32, space: &str) -> Option<std::path::PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/{space}")).ok()
}

/// Objective: a data process has no capability, no way to new ones, a list of system calls, no core
/// file, and, started by root, a user of its own; it lives in namespaces of its own where there are
/// such; what stands is shown; its successor has the same, and frames cross.
#[test]
fn a_data_process_is_confined_and_says_how() {
    let mut daemon = Daemon::start();
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    for _ in 0..2 {
        until_traffic_flows(&mut a, &mut b, &mut 0);
        let pid = daemon.data_process("vale0");
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert_eq!(status(pid, set), "0000000000000000", "{set}");
        }
        assert_eq!((status(pid, "NoNewPrivs"), status(pid, "Seccomp")), ("1".into(), "2".into()));
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
        assert_eq!(core.split_whitespace().nth(4), Some("0"), "{core}");
        let info = daemon.get("/v1/switches/vale0");
        let standing = standing(&info);
        for wall in ["capabilities", "memory", "no_new_privileges", "descriptors", "system_calls"] {
            assert!(standing.contains(&wall), "{wall}: {info}");
        }
        if rustix::process::geteuid().is_root() {
            assert!(standing.contains(&"user"), "{info}");
            assert_eq!(status(pid, "CapBnd"), "0000000000000000");
            let uid = status(pid, "Uid");
            assert!(!uid.split_whitespace().any(|uid| uid == "0"), "{uid}");
            assert_eq!(status(pid, "Groups"), "");
        }
        for (wall, space) in NAMESPACES {
            let refused = info["walls"]["refused"].as_array().unwrap();
            let reason = refused.iter().find(|refused| refused["wall"] == wall);
            assert_ne!(standing.contains(&wall), reason.is_some(), "{wall}: {info}");
            let [ours, its] = [std::process::id(), pid as u32].map(|pid| namespace(pid, space));
            assert_eq!(standing.contains(&wall), ours != its, "{wall}: {ours:?} {its:?}");
        }
        let shown = daemon.done(&["switch", "show", "vale0"]);
        assert!(shown.contains("walls: ") && shown.contains("no_new_privileges"), "{shown}");
        harness::kill_process(pid);
        daemon.wait_for("a successor", |daemon| {
            let now = daemon.get("/v1/switches/vale0")["pid"].as_i64();
            now.is_some_and(|now| now != i64::from(pid))
        });
    }
    until_traffic_flows(&mut a, &mut b, &mut 0);
}

/// Objective: the status lists each child of the daemon with the walls around it.
#[test]
fn the_status_lists_the_walls_of_each_child() {
    let daemon = Daemon::start();
    daemon.apply("[switch.vale0]\n[guest.web]\napp = \"httpd\"\nport = \"vale0:web\"\naddress = \"10.0.0.2/24\"");
    let status = daemon.get("/v1/status");
    let all = status["children"].as_array().unwrap();
    let named = |name: &str| all.iter().find(|child| child["name"] == name).unwrap();
    let data = named("data process of vale0");
    assert_eq!(data["pid"], daemon.get("/v1/switches/vale0")["pid"]);
    assert_eq!(data["walls"], daemon.get("/v1/switches/vale0")["walls"]);
    assert!(standing(named("manager of guest.web")).contains(&"no_new_privileges"), "{status}");
    let shown = daemon.done(&["status"]);
    for line in
        ["data process of vale0, process ", "manager of guest.web, process ", "system_calls"]
    {
        assert!(shown.contains(line), "{shown}");
    }
}

/// Objective: a daemon of an ordinary user has no users to give away, and says so: the wall is
/// among those that are refused, and with `--require-walls` no switch starts.
#[test]
fn regression_the_wall_of_a_user_is_refused_where_the_daemon_is_not_root() {
    let test = "regression_the_wall_of_a_user_is_refused_where_the_daemon_is_not_root";
    if !may_be_others(test) {
        return;
    }
    let daemon = Daemon::start_as(4_445, &[]);
    daemon.apply("[switch.vale0]");
    let info = daemon.get("/v1/switches/vale0");
    assert!(!standing(&info).contains(&"user"), "{info}");
    let refused = info["walls"]["refused"].as_array().unwrap();
    let user = refused.iter().find(|refused| refused["wall"] == "user").expect("it is refused");
    assert!(text(&user["reason"]).contains("not run as root"), "{user}");
    let strict = Daemon::start_as(4_445, &["--require-walls"]);
    let added = strict.ask("POST", "/v1/switches", &serde_json::json!({ "name": "vale0" }));
    assert_ne!(added.0, 201, "{added:?}");
}

/// Objective: where not all walls stand, `--require-walls` starts nothing and says why; elsewhere
/// it changes nothing.
#[test]
fn walls_can_be_required() {
    let daemon = Daemon::start_with(&["--require-walls"]);
    let refused = daemon.ask("POST", "/v1/switches", &serde_json::json!({ "name": "vale0" }));
    let lax = Daemon::start();
    lax.apply("[switch.vale0]");
    let missing = lax.get("/v1/switches/vale0")["walls"]["refused"].as_array().unwrap().len();
    assert_eq!(refused.0 == 201, missing == 0, "{refused:?}, {missing} walls refused");
    let without = ["TOKLAT_SANDBOX", "off"];
    let daemon = Daemon::start_with_environment(&["--require-walls"], &[(without[0], without[1])]);
    let refused = daemon.ask("POST", "/v1/switches", &serde_json::json!({ "name": "vale0" }));
    assert_ne!(refused.0, 201, "without a list of system calls: {refused:?}");
}
