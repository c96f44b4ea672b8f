//! Sessions with EVPN's neighbours: another AS two hops away, BFD, hold times, passwords.

use std::time::{Duration, Instant};

use harness::namespace::Namespace;
use harness::routers::{
    Linux, Router, THEIRS, evpn_lines, gobgpd, linux_sends_to, reflector_with, tap_lines,
};
use harness::underlay::{Underlay, ip, pings};
use harness::{Daemon, wait_until};
use lab::hosts::routers::Session;
use serde_json::Value;

const STATION: &str = "02:00:00:00:07:01";

fn is_established(daemon: &Daemon) -> bool {
    daemon.get("/v1/evpn")["neighbors"][0]["state"] == "established"
}

/// Objective: a leaf of another AS, two hops away, gives and takes routes by targets that both ends
/// name.
///
/// Steps: FRR of AS 65001 is at an address behind a router; each has the other's station, and
/// frames pass.
#[test]
fn a_leaf_of_another_as_two_hops_away_exchanges_stations() {
    let test = "a_leaf_of_another_as_two_hops_away_exchanges_stations";
    let make = || -> Result<_, &'static str> {
        let (program, underlay) = (gobgpd()?.display().to_string(), Underlay::new(3)?);
        let [here, between, leaf] = [0, 1, 2].map(|n| &underlay.hosts[n]);
        // A session with TTL 1 ends at the router.
        between.run(&["sysctl", "-qw", "net.ipv4.ip_forward=1"]);
        between.run(&["sysctl", "-qw", "net.ipv4.conf.all.send_redirects=0"]);
        between.run(&["sysctl", "-qw", "net.ipv4.conf.u0.send_redirects=0"]);
        ip(here, "route add 10.99.9.3/32 via 10.99.0.2");
        ip(between, "route add 10.99.9.3/32 via 10.99.0.3");
        ip(leaf, "address add 10.99.9.3/32 dev lo");
        let config = "router bgp 65001\n bgp router-id 10.99.0.3\n no bgp default ipv4-unicast\n \
             no bgp ebgp-requires-policy\n neighbor 10.99.0.1 remote-as 65000\n \
             neighbor 10.99.0.1 ebgp-multihop 2\n neighbor 10.99.0.1 update-source 10.99.9.3\n \
             neighbor 10.99.0.1 passive\n address-family l2vpn evpn\n  \
             neighbor 10.99.0.1 activate\n  advertise-all-vni\n";
        let linux = Linux::start_with(leaf, "10.99.0.3", (config, true), "192.168.7.3/24")?;
        Ok((program, underlay, linux, Namespace::new()?))
    };
    let (program, underlay, _linux, guest) = match make() {
        Ok(made) => made,
        Err(why) => return harness::skip(test, why),
    };
    let mut daemon = Daemon::start();
    daemon.end_with_this_process();
    let neighbor = "address = \"10.99.9.3\"\nas = 65001\nmultihop = 2";
    let lines = evpn_lines(1, &program, &underlay.hosts[0], neighbor);
    // FRR's targets have its own AS.
    let targets =
        "evpn = true, import_rt = [\"65001:100\"], export_rt = [\"65000:100\", \"65001:100\"]";
    daemon.apply(&(lines.replace("evpn = true", targets) + &tap_lines(&guest)));
    ip(&guest, &format!("link set tap-vale0 address {STATION}"));
    ip(&guest, "address add 192.168.7.1/24 dev tap-vale0");
    daemon.wait_for("the leaf", |daemon| is_established(daemon));
    assert!(pings(&guest, "192.168.7.3"), "{}", daemon.log());
    wait_until("entry at the leaf", || {
        linux_sends_to(&underlay.hosts[2], STATION).as_deref() == Some("10.99.0.1")
    });
    daemon.wait_for("entry here", |daemon| {
        let macs = daemon.get("/v1/evpn/macs");
        macs.as_array().unwrap().iter().any(|m| m["mac"] == THEIRS && m["host"] == "10.99.0.3")
    });
    assert_eq!(daemon.get("/v1/evpn")["neighbors"][0]["as"], 65001);
}

/// Hosts 1 and 3 of toklat, with these lines and sessions; host 2 is the reflector.
struct Sessions {
    daemons: [Daemon; 2],
    reflector: Router,
    underlay: Underlay,
    program: String,
}

impl Sessions {
    fn new(lines: [&str; 2], sessions: [Session<'_>; 2]) -> Result<Self, &'static str> {
        let (program, underlay) = (gobgpd()?.display().to_string(), Underlay::new(4)?);
        let clients = [("10.99.0.1", sessions[0]), ("10.99.0.3", sessions[1])];
        let reflector = reflector_with(&underlay.hosts[1], "10.99.0.2", &clients)?;
        let daemons = [0, 1].map(|_| Daemon::start());
        let all = Self { daemons, reflector, underlay, program };
        for (n, lines) in lines.into_iter().enumerate() {
            all.daemons[n].end_with_this_process();
            all.apply(n, lines);
        }
        Ok(all)
    }

    fn apply(&self, n: usize, lines: &str) {
        let (number, neighbor) = (2 * n + 1, format!("address = \"10.99.0.2\"\n{lines}"));
        let host = &self.underlay.hosts[number - 1];
        self.daemons[n].apply(&evpn_lines(number, &self.program, host, &neighbor));
    }

    fn wait_for_both(&mut self) {
        for daemon in &mut self.daemons {
            daemon.wait_for("the session", |daemon| is_established(daemon));
        }
    }
}

/// Objective: BFD finds a dead neighbour long before a hold time of 90 s, and a hold time of 3 s
/// that is set here holds though the other end offers 90.
///
/// Steps: the link of the reflector goes down, which closes no connection; both hosts lose it, the
/// one with BFD, the other by its hold time; it comes up, and both have it again.
#[test]
fn a_dead_neighbor_is_found_by_bfd_and_by_its_hold_time() {
    let test = "a_dead_neighbor_is_found_by_bfd_and_by_its_hold_time";
    let lines =
        ["hold_time_s = 90\nbfd = { interval_ms = 300, multiplier = 3 }", "hold_time_s = 3"];
    let slow = Session { hold_time: 90, ..Session::default() };
    let mut sessions = match Sessions::new(lines, [Session { bfd_ms: Some(300), ..slow }, slow]) {
        Ok(sessions) => sessions,
        Err(why) => return harness::skip(test, why),
    };
    sessions.wait_for_both();
    // Both ends speak BFD before the link goes.
    wait_until("BFD", || {
        let args = ["timeout", "2", "tcpdump", "-ni", "u0", "-c", "6", "udp port 3784"];
        sessions.underlay.hosts[0].command(&args).output().unwrap().status.success()
    });
    ip(&sessions.underlay.hosts[1], "link set u0 down");
    let down = Instant::now();
    sessions.daemons[0].wait_for("BFD's word", |daemon| !is_established(daemon));
    let by_bfd = down.elapsed();
    sessions.daemons[1].wait_for("the hold time", |daemon| !is_established(daemon));
    assert!(by_bfd < Duration::from_secs(20), "{by_bfd:?} by BFD, of a hold time of 90 s");
    sessions.daemons[0].wait_for("the end of its routes", |daemon| {
        let vteps: Value = daemon.get("/v1/evpn")["vteps"].clone();
        vteps.as_array().unwrap().is_empty()
    });
    sessions.daemons[0].wait_for("a line in its log", |daemon| {
        daemon.log().contains("a neighbour's session is down")
    });
    ip(&sessions.underlay.hosts[1], "link set u0 up");
    sessions.wait_for_both();
}

/// Objective: a session with a password is with a neighbour that has the same one.
///
/// Steps: one host has the reflector's password and gets its session, another one has not and does
/// not, until it is told.
#[test]
fn a_session_needs_the_same_password_at_both_ends() {
    let test = "a_session_needs_the_same_password_at_both_ends";
    let session = Session { password: "open sesame", ..Session::default() };
    let lines = ["password = \"open sesame\"", "password = \"open barley\""];
    let mut sessions = match Sessions::new(lines, [session, session]) {
        Ok(sessions) => sessions,
        Err(why) => return harness::skip(test, why),
    };
    sessions.daemons[0].wait_for("the session", |daemon| is_established(daemon));
    assert!(!is_established(&sessions.daemons[1]), "another password");
    sessions.apply(1, lines[0]);
    sessions.wait_for_both();
}

/// Objective: of two reflectors one may die, and no route goes.
///
/// Steps: the link of the first one goes down, so its routes go after the hold time of 3 s; the
/// hosts have each other's routes by the second one all the while.
#[test]
fn the_death_of_one_of_two_reflectors_takes_no_route() {
    let test = "the_death_of_one_of_two_reflectors_takes_no_route";
    let second = "hold_time_s = 3\n[[evpn.neighbor]]\naddress = \"10.99.0.4\"";
    let mut sessions = match Sessions::new([second; 2], [Session::default(); 2]) {
        Ok(sessions) => sessions,
        Err(why) => return harness::skip(test, why),
    };
    let clients = ["10.99.0.1", "10.99.0.3"].map(|client| (client, Session::default()));
    let other = reflector_with(&sessions.underlay.hosts[3], "10.99.0.4", &clients).unwrap();
    for daemon in &mut sessions.daemons {
        daemon.wait_for("both sessions", |daemon| {
            let evpn = daemon.get("/v1/evpn");
            let received = |n: usize| evpn["neighbors"][n]["received"].as_u64();
            received(0) > Some(0) && received(1) > Some(0)
        });
    }
    let floods = |daemon: &Daemon| daemon.get("/v1/evpn")["vteps"][0]["floods"] == true;
    ip(&sessions.underlay.hosts[1], "link set u0 down");
    sessions.daemons[0].wait_for("the end of the session", |daemon| {
        assert!(floods(daemon), "{}", daemon.log());
        let neighbors = daemon.get("/v1/evpn")["neighbors"].clone();
        neighbors.as_array().unwrap().iter().any(|neighbor| neighbor["state"] != "established")
    });
    // The first one's routes are gone; a look at the neighbours is once a second.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(2) {
        assert!(floods(&sessions.daemons[0]), "{}", sessions.daemons[0].log());
    }
    drop(other);
}

/// Objective: neither the death of a route reflector nor its restart takes a route.
///
/// Steps: the reflector is killed; the hosts lose their sessions and keep each other's routes; it
/// is started again with `-r`, and they still have them when both sessions are back.
#[test]
fn a_reflector_that_is_killed_and_started_again_takes_no_route() {
    let test = "a_reflector_that_is_killed_and_started_again_takes_no_route";
    let mut sessions = match Sessions::new(["", ""], [Session::default(); 2]) {
        Ok(sessions) => sessions,
        Err(why) => return harness::skip(test, why),
    };
    let floods = |daemon: &Daemon| daemon.get("/v1/evpn")["vteps"][0]["floods"] == true;
    sessions.wait_for_both();
    for daemon in &mut sessions.daemons {
        daemon.wait_for("the other host", |daemon| floods(daemon));
    }
    sessions.reflector.kill();
    sessions.daemons[0].wait_for("the end of the session", |daemon| !is_established(daemon));
    assert!(floods(&sessions.daemons[0]));
    sessions.reflector.start_again(&sessions.underlay.hosts[1]);
    let [first, second] = &mut sessions.daemons;
    first.wait_for("both sessions", |daemon| {
        assert!(floods(daemon), "{}", daemon.log());
        is_established(daemon) && is_established(second)
    });
    // Routes that were not sent again would go as the reflector says that it has sent all.
    let own = |daemon: &Daemon| daemon.get("/v1/evpn")["neighbors"][0]["received"].clone();
    first.wait_for("the route again", |daemon| own(daemon) != 0);
    assert!(floods(first));
}
