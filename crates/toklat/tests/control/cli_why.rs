//! `toklat why`: what it names stops the frame, and the command that it gives changes that.

use harness::Daemon;

/// A pair of ports that are open.
fn pair(daemon: &Daemon) -> [netring::Port; 2] {
    daemon.done(&["switch", "add", "vale0"]);
    ["vale0:a", "vale0:b"].map(|name| daemon.open(name).unwrap())
}

fn why(daemon: &Daemon, words: &str) -> (Option<i32>, String, String) {
    let line: Vec<_> =
        ["why", "vale0:a", "vale0:b"].into_iter().chain(words.split_whitespace()).collect();
    daemon.run(&line)
}

/// Objective: each thing that stops a frame is named, and goes by the command that is given for it.
///
/// Steps: a rule of one of two ports is changed; a frame that the rule stops is asked about; the
/// command in the answer is carried out; the same frame passes.
#[test]
fn the_command_that_is_given_lets_the_frame_pass() {
    let daemon = Daemon::start();
    let _ports = pair(&daemon);
    assert_eq!(why(&daemon, "").0, Some(0));
    for (rules, frame, says) in [
        ("a --mtu 1000", "--size 1400", "the sender's MTU is 1000"),
        ("b --mtu 1000", "--size 1400", "the receiver's MTU is 1000"),
        ("a --locked --mac 02:00:00:00:00:07", "--source 02:00:00:00:00:08", "none of the port's"),
        ("a --vlan-access 10", "--vlan 10 --destination ff:ff:ff:ff:ff:ff", "takes no such frames"),
    ] {
        let (port, rules) = rules.split_once(' ').unwrap();
        let name = format!("vale0:{port}");
        let set: Vec<_> = ["port", "set", &name].into_iter().chain(rules.split(' ')).collect();
        daemon.done(&set);
        let (code, said, _) = why(&daemon, frame);
        assert!(code == Some(1) && said.contains(says), "{rules}: {said}");
        let lines: Vec<_> = said.lines().skip_while(|line| !line.contains("STOPS")).collect();
        let change = lines[1].trim().strip_prefix("toklat ").unwrap_or_else(|| panic!("{said}"));
        daemon.done(&change.split(' ').collect::<Vec<_>>());
        if rules.starts_with("--vlan") {
            daemon.done(&["port", "set", "vale0:b", "--vlan-trunk", "10"]);
        }
        let (code, said, _) = why(&daemon, frame);
        assert_eq!(code, Some(0), "after `{change}`: {said}");
    }
}

#[test]
fn what_stops_a_frame_is_named_once_and_last() {
    let daemon = Daemon::start();
    let _ports = pair(&daemon);
    let stops = |words: &str| {
        let (code, said, error) = why(&daemon, words);
        assert_eq!(code, Some(1), "{words}: {said} {error}");
        assert!(error.contains("does not reach vale0:b"), "{error}");
        assert_eq!(said.matches("STOPS").count(), 1, "{said}");
        said
    };
    let guard =
        ["port", "set", "vale0:a", "--guard", "--mac", "02:00:00:00:00:07", "--ip", "10.0.0.7"];
    daemon.done(&guard);
    assert_eq!(why(&daemon, "tcp 10.0.0.7:4000 10.0.0.2:22").0, Some(0));
    assert!(stops("tcp 10.0.0.8:4000 10.0.0.2:22").contains("--ip"));
    assert!(stops("arp 10.0.0.1 10.0.0.2").contains("arp_spoof"));
    assert_eq!(why(&daemon, "arp 10.0.0.7 10.0.0.2").0, Some(0));
    for port in ["vale0:a", "vale0:b"] {
        daemon.done(&["port", "set", port, "--protected"]);
    }
    assert!(stops("").contains("both ports are protected"));
    daemon.done(&["port", "set", "vale0:b", "--protected=off", "--vlan-access", "10"]);
    assert!(stops("").contains("the receiver is not in"));
    daemon.done(&["port", "add", "vale0:c"]);
    let (code, said, _) = daemon.run(&["why", "vale0:a", "vale0:c"]);
    assert!(code == Some(1) && said.contains("vacant"), "{said}");
    daemon.done(&["switch", "add", "vale1"]);
    daemon.done(&["port", "add", "vale1:d"]);
    let (code, said, _) = daemon.run(&["why", "vale0:a", "vale1:d"]);
    assert!(code == Some(1) && said.contains("two switches"), "{said}");
}

#[test]
fn wrong_questions_are_answered_with_how_to_ask() {
    let daemon = Daemon::start();
    let _ports = pair(&daemon);
    for (words, says) in [
        ("tcp 10.0.0.1", "a frame is tcp, udp or icmp and two addresses"),
        ("tcp 10.0.0.1:1 fd00::1", "a frame is tcp, udp or icmp"),
        ("gre 10.0.0.1 10.0.0.2", "a frame is tcp, udp or icmp"),
    ] {
        let (code, _, error) = why(&daemon, words);
        assert!(code == Some(2) && error.contains(says), "{words}: {error}");
    }
    let (code, _, error) = daemon.run(&["why", "vale0:a", "vale0:a"]);
    assert!(code == Some(2) && error.contains("name two ports"), "{error}");
    let (code, _, error) = daemon.run(&["why", "vale0:a", "vale0:none"]);
    assert!(code == Some(1) && error.contains("there is no port vale0:none"), "{error}");
}
