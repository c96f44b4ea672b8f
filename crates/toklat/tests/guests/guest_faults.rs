//! Guests that are killed, stopped, or flood the switch: the effect on other guests.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::manager::{Manager, daemon, fetching, guest, named, state, until};
use harness::{Daemon, text};

/// A sink at 10.0.0.1, and a source that sends to it from 10.0.0.2 until its connection ends.
fn transfer(sink: &str) -> String {
    format!(
        "[guest.sink]\napp = \"sink\"\nport = \"vale0:sink\"\naddress = \"10.0.0.1/24\"\n{sink}\n\
         [guest.source]\napp = \"source\"\nport = \"vale0:source\"\naddress = \"10.0.0.2/24\"\n\
         args = [\"10.0.0.1:5001\", \"1000\"]\nrestart = \"never\"\n"
    )
}

/// Frames that have reached the sink.
fn reached(daemon: &Daemon) -> u64 {
    daemon.counters("sink")["out_frames"].as_u64().unwrap()
}

/// Waits until more than this number of frames have reached the sink.
fn more_than(daemon: &mut Daemon, frames: u64) {
    daemon.wait_for("bulk data", |daemon| reached(daemon) > frames);
}

fn send(daemon: &Daemon, name: &str, signal: Signal) {
    let all = daemon.json(&["guest", "list"]);
    let pid = named(all.as_array().unwrap(), name)["pid"].as_i64().unwrap() as i32;
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// Returns the report of the source after its connection has ended.
fn last_words(daemon: &Daemon) -> Value {
    // The manager ends with the last guest.
    until(daemon, "the source to end", |all| ["ended", "absent"].contains(&&*state(all, "source")));
    let log = daemon.done(&["guest", "logs", "source"]);
    serde_json::from_str(log.lines().last().unwrap()).unwrap()
}

#[test]
fn the_peer_of_a_guest_that_is_killed_and_starts_again_gets_a_reset() {
    let mut daemon = daemon();
    let _manager = Manager::of(&daemon, &transfer("restart = \"always\""));
    until(&daemon, "the transfer", |all| {
        state(all, "sink") == "running" && state(all, "source") == "running"
    });
    more_than(&mut daemon, 1000);
    send(&daemon, "sink", Signal::KILL);
    let words = last_words(&daemon);
    assert_eq!((&words["connections"], &words["lost"]), (&1.into(), &1.into()), "{words}");
    // The restarted guest serves the next connection, at the same port.
    let all = until(&daemon, "the sink", |all| state(all, "sink") == "running");
    let info = named(&all, "sink");
    assert_eq!((&info["restarts"], text(&info["last_end"])), (&1.into(), "killed by signal 9"));
    let args = ["guest", "run", "source", "vale0:next", "10.0.0.3/24", "--restart", "never"];
    let said = daemon.done(&[&args[..], &["--", "10.0.0.1:5001", "0.3"]].concat());
    let line = said.lines().find_map(|line| line.strip_prefix("next | ")).unwrap();
    let next: Value = serde_json::from_str(line).unwrap();
    assert!(next["lost"] == 0 && next["bytes"].as_u64().unwrap() > 1 << 20, "{next}");
}

#[test]
fn a_guest_that_is_killed_for_good_leaves_a_port_that_the_next_one_takes() {
    let mut daemon = daemon();
    let _manager = Manager::of(&daemon, &transfer("restart = \"never\""));
    until(&daemon, "the transfer", |all| state(all, "source") == "running");
    more_than(&mut daemon, 1000);
    send(&daemon, "sink", Signal::KILL);
    let names = |daemon: &Daemon| daemon.ports("vale0").into_iter().map(|(name, _)| name);
    daemon.wait_for("the port to go", |daemon| names(daemon).all(|name| name != "sink"));
    // The source still repeats the data that was not acknowledged; the next guest at that address
    // answers it.
    let all = daemon.json(&["guest", "list"]);
    assert_eq!(state(all.as_array().unwrap(), "source"), "running");
    daemon.done(&["guest", "run", "-d", "sink", "vale0:sink", "10.0.0.1/24"]);
    assert_eq!(last_words(&daemon)["lost"], 1);
    daemon.done(&["guest", "stop", "sink"]);
}

#[test]
fn a_stopped_guest_costs_the_others_nothing_and_goes_on_where_it_was() {
    let mut daemon = daemon();
    let manifest = transfer("restart = \"never\"") + &guest(2, "honest", "serve", "");
    let _manager = Manager::of(&daemon, &manifest);
    until(&daemon, "the guests", |all| {
        ["sink", "source", "honest"].iter().all(|name| state(all, name) == "running")
    });
    more_than(&mut daemon, 1000);
    let quiet = fetching(&daemon, "10.0.0.3", "1");
    send(&daemon, "sink", Signal::STOP);
    let told = fetching(&daemon, "10.0.0.3", "2");
    // Half the rate at least, in twice the time.
    assert!(told["answers"].as_u64() >= quiet["answers"].as_u64(), "{told}, before {quiet}");
    assert!(quiet["answers"].as_u64() > Some(0), "{quiet}");
    assert_eq!((&told["errors"], &told["lost"]), (&0.into(), &0.into()), "{told}");
    let counters = daemon.counters("honest");
    let drops = counters["out_drops"].as_object().unwrap();
    assert!(drops.values().all(|count| *count == 0), "{counters}");
    let before = reached(&daemon);
    send(&daemon, "sink", Signal::CONT);
    more_than(&mut daemon, before + 1000);
    // The data goes on over the same connection.
    let all = daemon.json(&["guest", "list"]);
    let all = all.as_array().unwrap();
    assert_eq!((state(all, "sink"), state(all, "source")), ("running".into(), "running".into()));
}

#[test]
fn a_guest_that_floods_another_costs_third_ones_nothing_and_a_limit_tames_it() {
    let mut daemon = daemon();
    let floods = guest(1, "deluge", "deluge", "restart = \"never\"");
    let manifest = [guest(0, "victim", "serve", ""), floods, guest(2, "honest", "serve", "")];
    let _manager = Manager::of(&daemon, &manifest.concat());
    daemon.wait_for("the flood", |daemon| {
        let stats = daemon.get("/v1/stats");
        let ports = stats["switches"][0]["ports"].as_array().unwrap();
        let floods = ports.iter().find(|port| port["name"] == "deluge");
        floods.is_some_and(|port| port["in_frames"].as_u64().unwrap() > 10_000)
    });
    let told = fetching(&daemon, "10.0.0.3", "1");
    assert!(told["answers"].as_u64().unwrap() > 0, "{told}");
    assert_eq!((&told["errors"], &told["lost"]), (&0.into(), &0.into()), "{told}");
    // The target's ring is full of the flood, until the sender's port has a limit.
    daemon.wait_for("the target to lose frames", |daemon| {
        daemon.counters("victim")["out_drops"]["full"].as_u64() > Some(0)
    });
    let limit = json!({ "tx_rate_limiter": { "ops": { "size": 100, "refill_time": 100 } } });
    let (status, said) = daemon.ask("PATCH", "/v1/switches/vale0/ports/deluge", &limit);
    assert_eq!(status, 200, "{said}");
    let told = fetching(&daemon, "10.0.0.1", "4");
    assert!(told["answers"].as_u64().unwrap() > 100, "{told}");
    assert_eq!((&told["errors"], &told["lost"]), (&0.into(), &0.into()), "{told}");
    daemon.done(&["guest", "stop", "deluge"]);
    daemon.wait_for("its port to go", |daemon| {
        daemon.ports("vale0").iter().all(|(name, _)| name != "deluge")
    });
}
