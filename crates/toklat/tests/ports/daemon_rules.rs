//! Rules between ports, as the operator sets and sees them.

use std::time::Duration;

use harness::frames::send;
use harness::{Daemon, kill_process};
use netring::Port;
use serde_json::json;

pub(crate) const SYN: u8 = 2;
const ACK: u8 = 0x10;

/// A TCP segment between two stations, 10.0.0.FROM and 10.0.0.TO.
pub(crate) fn tcp(from: u8, to: u8, ports: (u16, u16), flags: u8) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from];
    bytes.extend([8, 0, 0x45, 0, 0, 40, 0, 1, 0, 0, 64, 6, 0, 0]);
    bytes.extend([10, 0, 0, from, 10, 0, 0, to]);
    bytes.extend([ports.0.to_be_bytes(), ports.1.to_be_bytes()].concat());
    bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0]);
    bytes.resize(60, 0);
    bytes
}

/// An ARP request, so that the switch learns where a station is.
fn arp(from: u8) -> Vec<u8> {
    let mut bytes = vec![0xff; 6];
    bytes.extend([2, 0, 0, 0, 0, from, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, from]);
    bytes.extend([10, 0, 0, from, 0, 0, 0, 0, 0, 0, 10, 0, 0, 99]);
    bytes.resize(60, 0);
    bytes
}

fn take(port: &mut Port) -> Vec<Vec<u8>> {
    let frames = port.receive(64).map(|frame| frame.to_vec()).collect();
    port.flush().unwrap();
    frames
}

/// Sends a segment that is denied, then one that is allowed, until that one arrives. The first has
/// arrived before it, or not at all.
pub(crate) fn only_the_second(
    daemon: &mut Daemon,
    (from, to): (&mut Port, &mut Port),
    denied: &[u8],
    allowed: &[u8],
) {
    let mut last = Vec::new();
    daemon.wait_for("the allowed frame", |_| {
        send(from, denied);
        send(from, allowed);
        let came = take(to);
        assert!(!came.iter().any(|frame| frame[..] == *denied), "a denied frame passed");
        last.extend(came);
        last.iter().any(|frame| frame[..] == *allowed)
    });
}

/// Kills the data process, once the daemon knows it.
fn kill(daemon: &mut Daemon) {
    daemon.wait_for("the data process", |daemon| {
        daemon.get("/v1/switches/vale0")["pid"].as_i64().is_some_and(|pid| {
            kill_process(pid as i32);
            true
        })
    });
}

pub(crate) const NET: &str = "[group.web]\nrules = ['allow tcp from any to me 80,443',\n\
    'allow tcp from group:admin to me 22', 'allow tcp from table:good to me 25']\n\
    [group.admin]\nrules = []\n[table.good]\nprefixes = ['10.9.0.0/16']\n\
    [switch.vale0]\nworkers = [{}, {}]\n\
    [switch.vale0.port.web]\nworker = 0\ngroups = ['web']\n\
    [switch.vale0.port.root]\nworker = 1\ngroups = ['admin']\n[switch.vale0.port.other]\nworker = 1";

/// Opens the ports, whose stations are 1, 2 and 3, and has the switch learn them.
pub(crate) fn open(daemon: &mut Daemon) -> [Port; 3] {
    let mut ports = ["web", "root", "other"].map(|p| daemon.open(&format!("vale0:{p}")).unwrap());
    daemon.wait_for("the addresses", |daemon| {
        for (port, station) in ports.iter_mut().zip(1..) {
            send(port, &arp(station));
            take(port);
        }
        daemon.get("/v1/switches/vale0/fdb").as_array().unwrap().len() == 3
    });
    daemon.wait_for("old frames", |_| ports.iter_mut().all(|port| take(port).is_empty()));
    ports
}

/// Objective: ports with groups receive what their rules allow and answers, nothing else; counters
/// and connections are shown; what is changed holds at once.
#[test]
fn groups_fence_ports_and_are_shown_counted_and_changed() {
    let mut daemon = Daemon::start();
    daemon.apply(NET);
    let [mut web, mut root, mut other] = open(&mut daemon);
    let (ssh, http) = ((4000, 22), (4001, 80));
    only_the_second(
        &mut daemon,
        (&mut other, &mut web),
        &tcp(3, 1, ssh, SYN),
        &tcp(3, 1, http, SYN),
    );
    only_the_second(
        &mut daemon,
        (&mut root, &mut web),
        &tcp(2, 1, (1, 23), SYN),
        &tcp(2, 1, ssh, SYN),
    );
    // Answers pass to a port that allows nothing in.
    let (answer, another) = (tcp(1, 2, (22, 4000), SYN | ACK), tcp(1, 2, (22, 4001), SYN | ACK));
    only_the_second(&mut daemon, (&mut web, &mut root), &another, &answer);
    assert!(daemon.counters("other")["in_drops"]["denied"].as_u64() > Some(0));
    let rules = daemon.json(&["fw", "show", "vale0"]);
    let web_rules =
        rules.as_array().unwrap().iter().find(|p| p["groups"] == json!(["web"])).unwrap();
    assert!(web_rules["rules"][0]["frames"].as_u64() > Some(0), "{rules}");
    assert_eq!(
        (&web_rules["ports"], &web_rules["rules"][2]["frames"]),
        (&json!(["web"]), &json!(0))
    );
    let shown = daemon.done(&["fw", "connections", "vale0"]);
    assert!(shown.contains("10.0.0.2:4000") && shown.contains("root -> web"), "{shown}");
    assert!(daemon.done(&["port", "show", "vale0:web"]).contains("groups web"));
    daemon.done(&["fw", "zero", "vale0"]);
    let rules = daemon.json(&["fw", "show", "vale0"]);
    let frames = |policy: &serde_json::Value| {
        policy["rules"]
            .as_array()
            .unwrap()
            .iter()
            .map(|rule| rule["frames"].as_u64().unwrap())
            .sum::<u64>()
    };
    assert_eq!(rules.as_array().unwrap().iter().map(frames).sum::<u64>(), 0, "{rules}");
    // A table changes while it is in use.
    daemon.done(&["fw", "table", "add", "good", "10.0.0.3"]);
    let mail = tcp(3, 1, (5, 25), SYN);
    only_the_second(&mut daemon, (&mut other, &mut web), &tcp(3, 1, (5, 26), SYN), &mail);
    daemon.done(&["fw", "table", "rm", "good", "10.0.0.3"]);
    let renewed = tcp(3, 1, (6, 25), SYN);
    only_the_second(&mut daemon, (&mut other, &mut web), &renewed, &tcp(3, 1, (4002, 443), SYN));
    // A rule change judges each connection again, at its next packet.
    daemon.done(&["fw", "set", "web", "allow tcp from any to me 443"]);
    let (old, new) = (tcp(2, 1, ssh, ACK), tcp(2, 1, (7, 443), SYN));
    only_the_second(&mut daemon, (&mut root, &mut web), &old, &new);
}

/// Objective: rules hold from the first frame on that a successor of a killed data process
/// forwards, and connections go on.
#[test]
fn a_killed_data_process_lets_no_denied_frame_pass() {
    let mut daemon = Daemon::start();
    daemon.apply(NET);
    let [mut web, mut root, mut other] = open(&mut daemon);
    let ssh = (4000, 22);
    only_the_second(
        &mut daemon,
        (&mut root, &mut web),
        &tcp(2, 1, (1, 23), SYN),
        &tcp(2, 1, ssh, SYN),
    );
    let answer = tcp(1, 2, (22, 4000), SYN | ACK);
    only_the_second(&mut daemon, (&mut web, &mut root), &tcp(1, 2, (23, 1), ACK), &answer);
    for moment in 0..8u64 {
        kill(&mut daemon);
        std::thread::sleep(Duration::from_millis(moment * 3));
        // The answers belong to a connection that only the memory knows.
        let (denied, goes_on) = (tcp(1, 2, (22, 5000), ACK), tcp(1, 2, (22, 4000), ACK));
        only_the_second(&mut daemon, (&mut web, &mut root), &denied, &goes_on);
        let (denied, allowed) = (tcp(3, 1, ssh, SYN), tcp(3, 1, (4001, 80), SYN));
        only_the_second(&mut daemon, (&mut other, &mut web), &denied, &allowed);
    }
    daemon.done(&["upgrade"]);
    let (denied, goes_on) = (tcp(1, 2, (22, 5000), ACK), tcp(1, 2, (22, 4000), ACK));
    only_the_second(&mut daemon, (&mut web, &mut root), &denied, &goes_on);
    // Another supervisor finds the rules in use, and hands them to the next data process.
    daemon.kill();
    daemon.start_again();
    only_the_second(&mut daemon, (&mut web, &mut root), &denied, &goes_on);
    kill(&mut daemon);
    only_the_second(&mut daemon, (&mut web, &mut root), &denied, &goes_on);
}

/// Objective: what is wrong is refused with its place, and changes nothing.
#[test]
fn wrong_rules_are_named_and_change_nothing() {
    let daemon = Daemon::start();
    daemon.apply(NET);
    let before = daemon.done(&["export"]);
    assert!(before.contains("[group.web]") && before.contains("groups = \"web\""), "{before}");
    let rules = daemon.dir().join("old.rules");
    let file = rules.to_str().unwrap();
    for (args, said) in [
        (
            vec!["fw", "set", "web", "allow tcp", "alow udp"],
            "group.web, line 2, column 1: `alow` is not an \
            action; did you mean `allow`?",
        ),
        (
            vec!["fw", "set", "web", "allow tcp from table:bad to me"],
            "names table bad, which does not exist",
        ),
        (vec!["fw", "set", "web", "mirror mon tcp"], "a switch cannot do `mirror` yet"),
        (vec!["fw", "del", "web"], "vale0:web names group web, which does not exist"),
        (vec!["fw", "del", "none"], "There is no group none"),
        (
            vec!["fw", "table", "add", "good", "10.0.0.0/33"],
            "\"10.0.0.0/33\" is not an address or a network",
        ),
        (vec!["fw", "table", "del", "good"], "group.web names table good, which does not exist"),
        (
            vec!["port", "set", "vale0:other", "--groups", "none-such"],
            "names group none-such, which does not exist",
        ),
        (
            vec!["fw", "load", file, "--ipfw"],
            "old.rules: line 2, column 30: `via` is not an option of ipfw that \
            we have",
        ),
    ] {
        std::fs::write(&rules, "\nadd allow ip from any to any via em0\n").unwrap();
        let (code, _, complaint) = daemon.run(&args);
        assert!(code == Some(1) || code == Some(2), "{args:?}: {code:?} {complaint}");
        assert!(complaint.contains(said), "{args:?}: {complaint}");
    }
    assert_eq!(daemon.done(&["export"]), before);
}

/// Objective: a file of ipfw becomes a group and tables, and its rules are in force.
#[test]
fn a_file_of_ipfw_is_loaded() {
    let mut daemon = Daemon::start();
    daemon.apply(NET);
    let rules = daemon.dir().join("web.rules");
    let text = "table mail add 10.0.0.0/24\nadd 300 allow tcp from any to me 80 keep-state\n\
        add 100 skipto 400 tcp from table(mail) to me 25\nadd 350 deny tcp from any to any in\n\
        add 400 allow tcp from any to any in\n";
    std::fs::write(&rules, text).unwrap();
    daemon.done(&["fw", "load", rules.to_str().unwrap(), "--ipfw"]);
    let groups = daemon.json(&["fw", "show", "web"]);
    let expected = [
        "skipto r400-3 tcp from table:mail to me 25",
        "allow tcp from any to me 80",
        "deny tcp from any to any in",
        "r400-3: allow tcp from any to any in stateless",
    ];
    assert_eq!(groups[0]["rules"], json!(expected));
    let [mut web, _, mut other] = open(&mut daemon);
    let (denied, allowed) = (tcp(3, 1, (1, 22), SYN), tcp(3, 1, (1, 25), SYN));
    only_the_second(&mut daemon, (&mut other, &mut web), &denied, &allowed);
}

/// Objective: a topology file makes, changes and removes groups, in an order that works.
#[test]
fn a_file_makes_changes_and_removes_groups() {
    let daemon = Daemon::start();
    let file = daemon.dir().join("net.toml");
    let apply = |text: &str, more: &[&str]| {
        std::fs::write(&file, text).unwrap();
        daemon.done(&[&["apply", file.to_str().unwrap()], more].concat())
    };
    let plan = apply(NET, &["--dry-run"]);
    assert!(plan.contains("[group.web]") && plan.contains("[table.good]"), "{plan}");
    assert_eq!(daemon.get("/v1/groups"), json!([]));
    apply(NET, &[]);
    let changed = apply(&NET.replace("80,443", "80"), &[]);
    assert!(changed.contains("[group.web]") && !changed.contains("[group.admin]"), "{changed}");
    apply("[switch.vale0]\nworkers = [{}, {}]", &["--prune"]);
    assert_eq!(daemon.get("/v1/groups"), json!([]));
    assert_eq!(daemon.get("/v1/tables"), json!([]));
}

/// Objective: each recipe of docs/rules.md is a topology that a daemon takes.
#[test]
fn every_recipe_of_the_page_is_taken() {
    let page = std::fs::read_to_string(harness::root().join("docs/rules.md")).unwrap();
    let recipes: Vec<&str> =
        page.split("```toml\n").skip(1).map(|r| r.split("```").next().unwrap()).collect();
    assert_eq!(recipes.len(), 6);
    for recipe in recipes {
        let daemon = Daemon::start();
        daemon.apply(recipe);
        assert!(!daemon.get("/v1/groups").as_array().unwrap().is_empty(), "{recipe}");
    }
}
