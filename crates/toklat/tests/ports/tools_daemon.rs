//! The tools as processes, with a real daemon.

use std::process::{Child, Command, Output, Stdio};

use frame::Layers;
use harness::{Daemon, wait_until};
use rustix::process::{Pid, Signal};
use serde_json::Value;
use toklat::tools::pcap;

/// A daemon with a switch on which a slow receiver loses nothing.
fn patient_daemon() -> Daemon {
    let daemon = Daemon::start();
    // On a busy machine a receiver may not run for a while.
    daemon
        .apply("[switch.vale0]\nstall_timeout_ms = 10000\n[switch.vale0.port.b]\nlossless = true");
    daemon
}

/// Returns how many frames a port has sent and received.
fn counters(daemon: &Daemon, port: &str) -> Option<(u64, u64)> {
    let stats = daemon.get("/v1/stats");
    let ports = stats["switches"].as_array()?.iter().flat_map(|s| s["ports"].as_array());
    let port = ports.flatten().find(|p| p["name"] == port)?;
    Some((port["in_frames"].as_u64()?, port["out_frames"].as_u64()?))
}

/// Starts a tool that announces itself, and waits until the switch has learned its address.
fn start_announced(daemon: &Daemon, port: &str, args: &[&str]) -> Child {
    let tool = daemon.start_tool(args);
    wait_until("the tool announces itself", || {
        counters(daemon, port).is_some_and(|(sent, _)| sent > 0)
    });
    tool
}

fn result_of(output: &Output, args: &[&str]) -> Value {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}"))
}

fn interrupt(child: &Child) {
    signal(child, Signal::INT);
}

fn signal(child: &Child, signal: Signal) {
    rustix::process::kill_process(Pid::from_child(child), signal).unwrap();
}

/// Checks that what is sent through a lossless port arrives whole and in order, and that a sink
/// that saw it all reports this.
#[test]
fn everything_sent_to_a_lossless_port_arrives() {
    let daemon = patient_daemon();
    let args = ["sink", "vale0:b", "--check", "--json", "--quiet", "--sleep", "--count", "20k"];
    let sink = start_announced(&daemon, "b", &args);
    let sent = daemon.json(&[
        "gen", "vale0:a", "--count", "20k", "--size", "imix", "--flows", "3", "--touch", "--quiet",
        "--sleep",
    ]);
    assert_eq!(sent["frames"], 20_000);
    let got = result_of(&sink.wait_with_output().unwrap(), &args);
    let findings = &got["findings"];
    assert_eq!((&findings["probes"], &findings["streams"]), (&20_000.into(), &3.into()), "{got}");
    for flaw in ["lost", "duplicated", "reordered", "corrupt", "before_first", "foreign"] {
        assert_eq!(findings[flaw], 0, "{flaw}: {got}");
    }
    assert_eq!(got["bytes"], sent["bytes"]);
    let args = ["sink", "vale0:b", "--json", "--quiet", "--sleep"];
    let sink = start_announced(&daemon, "b", &args);
    interrupt(&sink);
    assert_eq!(result_of(&sink.wait_with_output().unwrap(), &args)["frames"], 0);
}

/// Objective: frames that a sink had in its ring when it was told to end are in its result.
///
/// Steps: a sink is stopped; frames are delivered to it; it is told to end, then may run.
#[test]
fn regression_a_sink_counts_what_had_arrived_before_its_end() {
    let daemon = patient_daemon();
    let args = ["sink", "vale0:b", "--check", "--json", "--quiet", "--sleep"];
    let sink = start_announced(&daemon, "b", &args);
    signal(&sink, Signal::STOP);
    let before = counters(&daemon, "b").unwrap().1;
    daemon.json(&["gen", "vale0:a", "--count", "500", "--quiet", "--sleep"]);
    wait_until("the frames are delivered", || counters(&daemon, "b").unwrap().1 == before + 500);
    interrupt(&sink);
    signal(&sink, Signal::CONT);
    let got = result_of(&sink.wait_with_output().unwrap(), &args);
    assert_eq!((&got["frames"], &got["findings"]["lost"]), (&500.into(), &0.into()), "{got}");
}

/// A process that only spins; it ends with the test.
struct Spinner(Child);

impl Spinner {
    fn start() -> Self {
        Self(Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap())
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Objective: a lossless port with the default stall time loses nothing, though generator, worker
/// and sink share every CPU with a process that spins.
#[test]
fn the_tour_loses_nothing_while_a_process_spins_on_every_cpu() {
    let daemon = Daemon::start();
    daemon.done(&["switch", "add", "vale0"]);
    daemon.done(&["port", "add", "vale0:b", "--lossless"]);
    let args = ["sink", "vale0:b", "--check", "--json", "--quiet"];
    let sink = start_announced(&daemon, "b", &args);
    let cpus = std::thread::available_parallelism().unwrap().get();
    let spinners: Vec<_> = (0..cpus).map(|_| Spinner::start()).collect();
    let sent = daemon.json(&["gen", "vale0:a", "--size", "64", "--duration", "10s", "--quiet"]);
    let all = sent["frames"].as_u64();
    let port = daemon.counters("b");
    assert_eq!(port["stalls"], 0, "of {sent}: {port}");
    wait_until("all is delivered", || Some(counters(&daemon, "b").unwrap().1) >= all);
    drop(spinners);
    interrupt(&sink);
    let got = result_of(&sink.wait_with_output().unwrap(), &args);
    assert!(sent["frames"].as_u64() > Some(1000), "{sent}");
    assert_eq!((&got["frames"], &got["findings"]["lost"]), (&sent["frames"], &0.into()), "{got}");
    assert_eq!(daemon.counters("b")["stalls"], 0);
}

#[test]
fn round_trips_are_measured_in_one_process_and_between_two() {
    let daemon = patient_daemon();
    let run = ["--rate", "200", "--count", "100", "--quiet", "--sleep"];
    let both = daemon.json(&[&["ping", "vale0:x", "vale0:y", "--size", "1400"], &run[..]].concat());
    assert_eq!((&both["received"], &both["lost"]), (&100.into(), &0.into()), "{both}");
    assert!(
        both["min_ns"].as_u64() > Some(0) && both["p50_ns"].as_u64() >= both["min_ns"].as_u64()
    );

    let args = ["ping", "--server", "vale0:s", "--json", "--quiet", "--sleep"];
    let server = start_announced(&daemon, "s", &args);
    let asked = daemon.json(&[&["ping", "vale0:x"], &run[..]].concat());
    assert_eq!((&asked["received"], &asked["lost"]), (&100.into(), &0.into()), "{asked}");
    interrupt(&server);
    let answered = result_of(&server.wait_with_output().unwrap(), &args);
    assert_eq!(answered["frames"], 100);
}

/// A bridge joins two switches; a monitor in front of it sees what it takes.
#[test]
fn a_bridge_joins_switches_and_a_monitor_watches() {
    let daemon = patient_daemon();
    daemon.done(&["switch", "add", "vale1"]);
    let mut bridge = daemon.start_tool(&["bridge", "vale0:up", "vale1:up", "--quiet", "--sleep"]);
    wait_until("the bridge is up", || counters(&daemon, "up").is_some());
    let args = ["sink", "vale1:sink", "--check", "--json", "--quiet", "--sleep", "--count", "500"];
    let sink = start_announced(&daemon, "sink", &args);
    let file = daemon.dir().join("up.pcapng");
    let path = file.to_str().unwrap();
    let watch = ["cap", "vale0:up", "--rx", "--count", "500", "-w", path, "--quiet", "--sleep"];
    let cap = daemon.start_tool(&watch);
    // A monitor creates its file as soon as it captures.
    wait_until("the monitor is there", || file.exists());
    let sent =
        daemon.json(&["gen", "vale0:a", "--rate", "1000", "--count", "500", "--quiet", "--sleep"]);
    assert_eq!(sent["frames"], 500);
    let got = result_of(&sink.wait_with_output().unwrap(), &args);
    assert_eq!((&got["frames"], &got["findings"]["lost"]), (&500.into(), &0.into()), "{got}");
    assert!(cap.wait_with_output().unwrap().status.success());
    let capture = pcap::read(std::fs::File::open(&file).unwrap()).unwrap();
    assert_eq!(capture.len(), 500);
    assert!(Layers::of(capture.frame(0).1).is_some());
    interrupt(&bridge);
    assert!(bridge.wait().unwrap().success());
}

/// Frames that are still in a pipe survive the generator's exit.
#[test]
fn a_pipe_needs_no_switch() {
    let daemon = patient_daemon();
    let args = ["sink", "vale0:p}1", "--check", "--json", "--quiet", "--count", "5000", "--sleep"];
    let sink = daemon.start_tool(&args);
    wait_until("the pipe is there", || {
        daemon.json(&["pipes"]).as_array().is_some_and(|pipes| !pipes.is_empty())
    });
    let sent = daemon.json(&["gen", "vale0:p{1", "--count", "5000", "--quiet"]);
    assert_eq!(sent["frames"], 5000);
    let got = result_of(&sink.wait_with_output().unwrap(), &args);
    assert_eq!((&got["frames"], &got["findings"]["lost"]), (&5000.into(), &0.into()), "{got}");
}

/// Without a daemon, tools say how to start one, and exit with 3.
#[test]
fn without_a_daemon_tools_say_so() {
    let dir = tempfile::tempdir().unwrap();
    for args in [&["gen", "vale0:a"][..], &["sink", "vale0:a"], &["cap", "vale0:a"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_toklat"));
        let output = command.arg("--dir").arg(dir.path()).args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{args:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("toklat daemon"), "{args:?}");
    }
}

/// The demo, with its temporary directory in `place`.
fn demo(place: &tempfile::TempDir, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_toklat"));
    command
        .args(["demo", "--no-taps", "--no-vms", "--json"])
        .args(args)
        .env("TMPDIR", place.path());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn is_empty(place: &tempfile::TempDir) -> bool {
    place.path().read_dir().unwrap().next().is_none()
}

#[test]
fn the_demo_loses_nothing_and_cleans_up() {
    let place = tempfile::tempdir().unwrap();
    let output = demo(&place, &["--duration", "500ms"]).output().unwrap();
    let outcomes = result_of(&output, &["demo"]);
    let outcomes = outcomes.as_array().unwrap();
    let lost: Vec<_> = outcomes.iter().filter(|o| o["what"] == "  lost").collect();
    assert_eq!(lost.len(), 2, "{outcomes:?}");
    assert!(lost.iter().all(|o| o["result"].as_str().unwrap().starts_with("0 of ")), "{lost:?}");
    assert!(lost.iter().all(|o| o["result"] != "0 of 0"), "something was sent: {lost:?}");
    let of = |what: &str| outcomes.iter().find(|o| o["what"].as_str().unwrap().contains(what));
    for what in ["isolated light guests: web", "bulk data by TCP", "remote procedure calls"] {
        let state = of(what).unwrap_or_else(|| panic!("{what}: {outcomes:?}"))["state"].clone();
        assert!(state == "done" || state == "lossy", "{what}: {outcomes:?}");
    }
    assert!(is_empty(&place));
}

/// Objective: three hosts have one segment, and nothing of them is left.
///
/// Steps: the demo runs, with GoBGP and FRR as far as they are here; each part that ran has a
/// result; then no directory and no namespace is there.
#[test]
fn the_demo_of_hosts_pings_across_and_cleans_up() {
    let test = "the_demo_of_hosts_pings_across_and_cleans_up";
    let place = tempfile::tempdir().unwrap();
    let mut command = demo(&place, &["--hosts", "--duration", "500ms"]);
    if let Ok(program) = harness::routers::gobgpd() {
        command.env("TOKLAT_GOBGPD", program);
    }
    let child = command.spawn().unwrap();
    let namespaces = format!("toklat-demo-{}-", child.id());
    let output = child.wait_with_output().unwrap();
    let outcomes = result_of(&output, &["demo", "--hosts"]);
    let outcomes = outcomes.as_array().unwrap();
    assert!(outcomes.iter().all(|outcome| outcome["state"] != "failed"), "{outcomes:?}");
    let is = |what: &str| outcomes.iter().find(|outcome| outcome["what"] == what);
    match is("three hosts") {
        Some(skipped) => harness::skip(test, skipped["result"].as_str().unwrap()),
        None => {
            let pings = is("round trip between toklat and toklat").expect("they ping");
            assert!(pings["result"].as_str().unwrap().ends_with(" us"), "{outcomes:?}");
        }
    }
    assert!(is_empty(&place));
    assert_eq!(namespaces_of(&namespaces), [""; 0]);
}

/// Returns the network namespaces whose names begin with `start`.
fn namespaces_of(start: &str) -> Vec<String> {
    let all = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names = all.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(start)).collect()
}

#[test]
fn an_interrupted_demo_cleans_up() {
    let place = tempfile::tempdir().unwrap();
    let demo = demo(&place, &["--duration", "60s"]).spawn().unwrap();
    let socket = || {
        let dir = place.path().read_dir().unwrap().next()?;
        Some(dir.unwrap().path().join("control.sock"))
    };
    wait_until("the demo's daemon listens", || socket().is_some_and(|socket| socket.exists()));
    interrupt(&demo);
    let output = demo.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("Interrupted"));
    assert!(is_empty(&place));
}

/// Objective: even a demo that is killed leaves nothing behind: no process, no directory.
#[test]
fn a_killed_demo_leaves_nothing() {
    let place = tempfile::tempdir().unwrap();
    let mut demo = demo(&place, &["--duration", "60s"]).spawn().unwrap();
    let socket = || {
        let dir = place.path().read_dir().unwrap().next()?;
        Some(dir.unwrap().path().join("control.sock"))
    };
    wait_until("the demo's daemon listens", || socket().is_some_and(|socket| socket.exists()));
    demo.kill().unwrap();
    demo.wait().unwrap();
    wait_until("its directory is gone", || is_empty(&place));
    // Data processes, too, whose command lines name no directory.
    let runs = || harness::processes_with("TMPDIR", place.path()).len();
    wait_until("its processes are gone", || runs() == 0);
}

/// Objective: a demo of hosts that is killed leaves nothing, though FRR and GoBGP run as users of
/// their own and do not end with their parent.
///
/// Steps: the demo is killed as all of its daemons run, as far as they are here; then there is no
/// process of it, no namespace, no directory.
#[test]
fn a_killed_demo_of_hosts_leaves_no_process_namespace_or_directory() {
    let test = "a_killed_demo_of_hosts_leaves_no_process_namespace_or_directory";
    let place = tempfile::tempdir().unwrap();
    let mut command = demo(&place, &["--hosts", "--duration", "60s"]);
    let gobgpd = harness::routers::gobgpd();
    if let Ok(program) = &gobgpd {
        command.env("TOKLAT_GOBGPD", program);
    }
    let mut demo = command.spawn().unwrap();
    let namespaces = format!("toklat-demo-{}-", demo.id());
    let runs = |what: &str| {
        let all = harness::processes_with("TMPDIR", place.path());
        let name = |pid: rustix::process::Pid| {
            std::fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()))
        };
        all.into_iter().filter(|pid| name(*pid).is_ok_and(|name| name.trim() == what)).count()
    };
    let has_frr = gobgpd.is_ok() && std::path::Path::new("/usr/lib/frr/bgpd").exists();
    let all_run = || runs("iperf3") > 0 && (!has_frr || runs("bgpd") + runs("zebra") == 2);
    let mut ended = None;
    wait_until("all daemons run", || {
        ended = demo.try_wait().unwrap();
        all_run() || ended.is_some()
    });
    if ended.is_some() {
        let output = demo.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        return harness::skip(test, &said);
    }
    demo.kill().unwrap();
    demo.wait().unwrap();
    wait_until("its directory is gone", || is_empty(&place));
    wait_until("its processes are gone", || {
        harness::processes_with("TMPDIR", place.path()).is_empty()
    });
    assert_eq!(namespaces_of(&namespaces), [""; 0]);
}
