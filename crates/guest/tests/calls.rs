//! RPC between processes: the example programs on ports of a real daemon.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use harness::{Daemon, Running, artifacts};

fn example(daemon: &Daemon, name: &str, args: &[&str]) -> Command {
    let mut command = daemon.client(&artifacts::example("toklat-guest", name));
    command.args(args);
    command
}

/// A server on `vale0:calls` that is ready.
fn server(daemon: &Daemon) -> Running {
    let mut command = example(daemon, "rpc-server", &["vale0:calls"]);
    let mut server = Running(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains(':'), "an address: {line}");
    server
}

/// Runs `rpc-load`; returns what it printed.
fn load(daemon: &Daemon, args: &[&str]) -> Result<String, String> {
    let args = [&["vale0:load", "vale0:calls"], args].concat();
    let out = example(daemon, "rpc-load", &args).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if out.status.success() { Ok(text(&out.stdout)) } else { Err(text(&out.stderr)) }
}

#[test]
fn requests_of_all_lengths_are_answered_through_a_daemon() {
    let daemon = Daemon::with_switch("vale0");
    let _server = server(&daemon);
    for (args, replies) in [
        (&["2000", "10"][..], "2000 replies"),
        (&["0", "10"], "0 replies"),
        (&["500", "1400"], "500 replies"),
        (&["20", "300000"], "20 replies"),
        (&["2", "8388608"], "2 replies"),
        (&["500", "10", "W"], "500 replies"),
        (&["20", "100000", "W"], "20 replies"),
    ] {
        let told = load(&daemon, args).unwrap();
        assert!(told.starts_with(replies), "{args:?}: {told}");
    }
}

#[test]
fn regression_requests_took_no_time() {
    let daemon = Daemon::with_switch("vale0");
    let _server = server(&daemon);
    let told = load(&daemon, &["100", "10"]).unwrap();
    assert!(!told.contains(" 0.0 "), "{told}");
}

#[test]
fn a_client_learns_that_its_server_was_killed_and_the_next_server_serves() {
    let daemon = Daemon::with_switch("vale0");
    let mut killed = server(&daemon);
    let args = ["vale0:load", "vale0:calls", "100000000", "10"];
    let mut command = example(&daemon, "rpc-load", &args);
    let mut client = Running(command.stderr(Stdio::piped()).spawn().unwrap());
    let mut errors = BufReader::new(client.0.stderr.take().unwrap());
    let mut told = String::new();
    errors.read_line(&mut told).unwrap();
    assert_eq!(told, "connected\n");
    killed.0.kill().unwrap();
    drop(killed);
    errors.read_to_string(&mut told).unwrap();
    assert!(!client.0.wait().unwrap().success());
    assert!(told.contains("session ended") || told.contains("does not answer"), "{told}");
    let _server = server(&daemon);
    assert!(load(&daemon, &["1000", "10"]).unwrap().starts_with("1000 replies"));
}
