//! What rules do beside letting frames pass: expressions of libpcap, `log`, warnings, whose account
//! they are on, and which of them decides.

use harness::frames::send;
use harness::{Daemon, skip};
use serde_json::json;

use crate::daemon_rules::{NET, SYN, only_the_second, open, tcp};

/// Sets the rules of the group `web`; returns what went wrong.
fn refused(daemon: &Daemon, rule: &str) -> String {
    let (code, _, complaint) = daemon.run(&["fw", "set", "web", rule]);
    assert!(code == Some(1) || code == Some(2), "{rule}: {code:?} {complaint}");
    complaint
}

/// Objective: an expression of libpcap is a match; it is compiled in a child that reaches nothing,
/// also not names, and a wrong one is named with its place.
#[test]
fn expressions_of_libpcap_are_matches() {
    let mut daemon = Daemon::start();
    daemon.apply(NET);
    let [mut web, _, mut other] = open(&mut daemon);
    // TCP to port 26, as `tcpdump -ddd` prints it; these numbers need no library.
    let numbers = "6,48 0 0 23,21 0 3 6,40 0 0 36,21 0 1 26,6 0 0 262144,6 0 0 0";
    daemon.done(&["fw", "set", "web", &format!("allow ip from any to me bpf \"{numbers}\"")]);
    let (denied, allowed) = (tcp(3, 1, (1, 25), SYN), tcp(3, 1, (1, 26), SYN));
    only_the_second(&mut daemon, (&mut other, &mut web), &denied, &allowed);
    let text = |expression: &str| format!("allow ip from any to me bpf \"{expression}\"");
    let wrong = refused(&daemon, &text("no such thing"));
    if wrong.contains("libpcap compiles filters and is missing") {
        return skip("expressions_of_libpcap_are_matches", "libpcap is missing");
    }
    assert!(wrong.contains("group.web, line 1: bpf \"no such thing\": "), "{wrong}");
    let named = refused(&daemon, &text("tcp port no-such-service"));
    assert!(named.contains("names something: use numbers"), "{named}");
    daemon.done(&["fw", "set", "web", &text("tcp dst port 27 or udp")]);
    let (denied, allowed) = (tcp(3, 1, (2, 26), SYN), tcp(3, 1, (2, 27), SYN));
    only_the_second(&mut daemon, (&mut other, &mut web), &denied, &allowed);
    let (code, said, _) =
        daemon.run(&["why", "vale0:other", "vale0:web", "tcp", "10.0.0.3:1", "10.0.0.1:27"]);
    assert!(code == Some(0) && said.contains("group web, line 1 decides"), "{said}");
}

/// Objective: rules that never match are named where rules are changed, and change what they are
/// asked to.
#[test]
fn rules_that_never_match_are_warnings() {
    let daemon = Daemon::start();
    daemon.apply(NET);
    let hidden = "group.web, line 2: `deny tcp from any to any 80` never matches: line 1 decides \
                  before it, `allow tcp from any to any`";
    let rules = ["fw", "set", "web", "allow tcp", "deny tcp from any to any 80"];
    let (code, _, said) = daemon.run(&rules);
    assert!(code == Some(0) && said.contains(&format!("warning: {hidden}")), "{said}");
    let group = json!({"rules": &rules[3..]});
    let (status, answer) = daemon.ask("PUT", "/v1/groups/web", &group);
    assert_eq!((status, &answer["warnings"]), (200, &json!([hidden])), "{answer}");
    let file = daemon.dir().join("net.toml");
    let changed = NET.replace("'allow tcp from table:good to me 25'", "'deny icmp', 'allow icmp'");
    std::fs::write(&file, &changed).unwrap();
    let file = file.to_str().unwrap();
    for args in [vec!["apply", file, "--dry-run"], vec!["apply", file]] {
        let (code, _, said) = daemon.run(&args);
        assert!(
            code == Some(0) && said.contains("group.web, line 4: `allow icmp from any to any`"),
            "{said}"
        );
    }
    let (code, _, said) = daemon.run(&["fw", "add", "admin", "allow udp"]);
    assert!(code == Some(0) && !said.contains("warning"), "{said}");
}

/// Objective: `fw show` takes a port, and shows the rules that it has and no others.
#[test]
fn the_rules_of_one_port_are_shown() {
    let daemon = Daemon::start();
    daemon.apply(NET);
    let rules = daemon.json(&["fw", "show", "vale0:root"]);
    assert_eq!(rules, json!([{"groups": ["admin"], "ports": ["root"], "rules": []}]));
    let shown = daemon.done(&["fw", "show", "vale0:web"]);
    assert!(shown.contains("allow tcp from table:good to me 25"), "{shown}");
    assert_eq!(daemon.json(&["fw", "show", "vale0:other"]), json!([]));
}

/// Objective: `log` writes a line with rule, port and frame, and `toklat why` names the rule that
/// decides and the command that lets the frame pass.
#[test]
fn log_writes_what_a_rule_denies_and_why_names_the_rule() {
    let mut daemon = Daemon::start();
    daemon.apply(&NET.replace("'allow tcp from table:good to me 25'", "'deny log tcp'"));
    let [_web, _, mut other] = open(&mut daemon);
    daemon.wait_for("a line of the log", |daemon| {
        send(&mut other, &tcp(3, 1, (4000, 22), SYN));
        let log = daemon.log();
        let line = log.lines().find(|line| line.contains("group.web, line 3"));
        line.is_some_and(|line| {
            ["denied", "web", "tcp 10.0.0.3:4000 > 10.0.0.1:22, 60 bytes"]
                .iter()
                .all(|word| line.contains(word))
        })
    });
    let why = ["why", "vale0:other", "vale0:web", "tcp", "10.0.0.3:4000", "10.0.0.1:22"];
    let (code, said, _) = daemon.run(&why);
    assert!(code == Some(1) && said.contains("group web, line 3 decides: deny log tcp"), "{said}");
    daemon.done(&["fw", "set", "web", "allow tcp from any to me 80"]);
    let (code, said, _) = daemon.run(&why);
    assert_eq!(code, Some(1), "{said}");
    let change = "toklat fw add web 'allow tcp from any to me 22'";
    assert!(said.contains("no rule of web decides") && said.contains(change), "{said}");
    daemon.done(&["fw", "add", "web", "allow tcp from any to me 22"]);
    let (code, said, _) = daemon.run(&why);
    assert!(code == Some(0) && said.contains("group web, line 2 decides"), "{said}");
}

/// Objective: the memory for a switch's connections is on its user's account.
#[test]
fn connections_are_charged_to_the_switchs_user() {
    const USER: u32 = 65_534;
    let daemon = Daemon::start();
    if !rustix::process::geteuid().is_root() {
        return skip("connections_are_charged_to_the_switchs_user", "root only");
    }
    let memory = |daemon: &Daemon| {
        let info = daemon.get("/v1/quotas");
        let users = info["users"].as_array().unwrap().clone();
        let user = users.into_iter().find(|user| user["uid"] == USER);
        user.and_then(|user| user["usage"]["memory"].as_u64()).unwrap_or(0)
    };
    let net = format!(
        "[group.web]\nrules = ['allow tcp']\n[switch.vale0]\nuser = {USER}\n[switch.vale0.port.a]"
    );
    daemon.apply(&net);
    assert_eq!(memory(&daemon), 0);
    daemon.done(&["port", "set", "vale0:a", "--groups", "web"]);
    assert!(memory(&daemon) >= 4 << 20, "{}", memory(&daemon));
    daemon.done(&["switch", "rm", "vale0"]);
    assert_eq!(memory(&daemon), 0);
    daemon.apply(&net);
    daemon.done(&["quota", "set", "memory=1MiB"]);
    let (code, _, said) = daemon.run(&["port", "set", "vale0:a", "--groups", "web"]);
    assert!(code == Some(1) && said.contains("memory"), "{said}");
    assert!(!daemon.done(&["export"]).contains("groups ="));
}
