//! Links of ports, as the operator sets and sees them.

use std::time::{Duration, Instant};

use harness::frames::{frame, receive, send, until_traffic_flows};
use harness::{Daemon, kill_process};
use netring::Port;
use serde_json::json;

/// Sends a frame. Returns how long it took to arrive, and its number.
fn exchange(daemon: &mut Daemon, a: &mut Port, b: &mut Port, number: &mut u64) -> Duration {
    *number += 1;
    let began = Instant::now();
    assert!(send(a, &frame(1, 2, *number)));
    daemon.wait_for("the frame", |_| receive(b).contains(number));
    began.elapsed()
}

fn link_of(daemon: &Daemon, port: &str) -> serde_json::Value {
    daemon.get(&format!("/v1/switches/vale0/ports/{port}/link"))
}

/// Objective: a link is set, shown, exported, changed and lifted, in either direction; it survives
/// the data process and the supervisor.
#[test]
fn a_link_is_set_shown_kept_and_lifted() {
    let mut daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.a]\n[switch.vale0.port.b]");
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    let mut number = 0;
    until_traffic_flows(&mut a, &mut b, &mut number);
    // 64 bytes at 51.2 kb/s take 10 ms.
    let words = "rate=51200b/s,delay=20ms,queue=10kB,aqm=codel";
    for (port, option, way) in [("a", "tx-link", "sends"), ("b", "rx-link", "receives")] {
        let rule = format!("{option} {words}");
        let option = &*format!("--{option}");
        let whole = format!("vale0:{port}");
        daemon.done(&["port", "set", &whole, option, words]);
        assert!(daemon.done(&["port", "show", &whole]).contains(&rule));
        assert!(daemon.done(&["export"]).contains(words));
        let took = exchange(&mut daemon, &mut a, &mut b, &mut number);
        assert!(took >= Duration::from_millis(30), "{way}: {took:?}");
        let link = link_of(&daemon, port);
        assert!(link[way]["words"].as_str().unwrap().starts_with("rate=51200b/s,delay=20ms"));
        assert_eq!(link[way]["stats"]["sent_frames"], 1);
        let shown = daemon.done(&["link", "show", &whole]);
        assert!(shown.contains("queue at most") && shown.contains("p99"), "{shown}");
        kill_process(daemon.data_process("vale0"));
        let took = exchange(&mut daemon, &mut a, &mut b, &mut number);
        assert!(took >= Duration::from_millis(30), "the successor has it, too: {took:?}");
        daemon.done(&["port", "set", &whole, option, "off"]);
        assert_eq!(link_of(&daemon, port)[way], json!(null));
    }
    let nothing = daemon.run(&["link", "show", "vale0:a"]);
    assert!(nothing.2.contains("vale0:a has no link"), "{nothing:?}");
}

/// Objective: ports name a link of the topology. It changes for all of them while traffic runs,
/// nothing is lost, and it does not go while a port has it.
#[test]
fn named_links_change_for_all_their_ports_without_loss() {
    let mut daemon = Daemon::start();
    let net = |delay: &str| {
        format!(
            "[switch.link]\n[link.slow]\nrate = \"10Mb/s\"\ndelay = \"{delay}\"\nseed = 3\n\
             [switch.vale0.port.a]\ntx_link = \"slow\"\n[switch.vale0.port.b]\nrx_link = \"slow\""
        )
    };
    daemon.apply(&net("5ms"));
    assert!(daemon.done(&["export"]).contains("tx_link = \"slow\""));
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    let mut number = 0;
    until_traffic_flows(&mut a, &mut b, &mut number);
    let took = exchange(&mut daemon, &mut a, &mut b, &mut number);
    assert!(took >= Duration::from_millis(10), "both links: {took:?}");
    let first = number + 1;
    let mut came = Vec::new();
    for round in 0..20 {
        for _ in 0..20 {
            number += 1;
            assert!(send(&mut a, &frame(1, 2, number)));
        }
        daemon.apply(&net(if round % 2 == 0 { "2ms" } else { "5ms" }));
        came.extend(receive(&mut b));
    }
    daemon.wait_for("all frames", |_| {
        came.extend(receive(&mut b));
        came.len() as u64 == number + 1 - first
    });
    assert_eq!(came, (first..=number).collect::<Vec<_>>(), "in order, and all of them");
    let (status, problem) =
        daemon.ask("PATCH", "/v1/switches/vale0/ports/a", &json!({ "tx_link": "fast" }));
    assert!(status == 400 && problem.to_string().contains("[link.fast]"), "{problem}");
    daemon.done(&["port", "set", "vale0:a", "--tx-link", "dsl,rate=100Mb/s"]);
    assert_eq!(daemon.ports("vale0").len(), 2);
}

/// Objective: what a link could need is refused when it is set, with the sum; wrong words name the
/// near one; a missing or wrong file is refused; nothing changes then.
#[test]
fn links_that_cannot_be_are_refused_and_change_nothing() {
    let daemon = Daemon::start();
    daemon.apply(
        "[switch.vale0]\nmax_link_memory = \"20MiB\"\n[switch.vale0.port.a]\n[switch.vale0.port.b]",
    );
    let dir = daemon.dir().join("trace");
    std::fs::write(&dir, "1\nsecret\n").unwrap();
    let wrong = format!("trace={}", dir.display());
    let (pipe, long) = (daemon.dir().join("pipe"), daemon.dir().join("long"));
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
    std::fs::File::create(&long).unwrap().set_len((8 << 20) + 1).unwrap();
    let (pipe, long) = (format!("trace={}", pipe.display()), format!("trace={}", long.display()));
    for (words, expected) in [
        ("rate=1Gb/s,delay=1s", "may need"),
        ("rat=1Mb/s", "did you mean rate?"),
        ("trace=relative", "not absolute"),
        ("trace=/nonexistent", "No such file"),
        (wrong.as_str(), "Line 2 of the trace"),
        (pipe.as_str(), "not a regular file"),
        ("series=/dev/zero", "not a regular file"),
        ("delay=9ms,jitter=1ms,spread=/proc", "not a regular file"),
        (long.as_str(), "longer than 8 MiB"),
        ("nosuch", "There is no link"),
    ] {
        let (code, _, error) = daemon.run(&["port", "set", "vale0:a", "--rx-link", words]);
        assert_ne!(code, Some(0), "{words}");
        assert!(error.contains(expected), "{words}: {error}");
        assert!(!error.contains("secret"), "a file's content is not told: {error}");
    }
    assert_eq!(link_of(&daemon, "a"), json!({ "sends": null, "receives": null }));
    daemon.done(&["port", "set", "vale0:a", "--rx-link", "rate=100Mb/s,queue=10MB"]);
    let (_, _, error) =
        daemon.run(&["port", "set", "vale0:b", "--rx-link", "rate=100Mb/s,queue=10MB"]);
    assert!(error.contains("in the queue") && error.contains("--max-link-memory"), "{error}");
    daemon.done(&["switch", "set", "vale0", "--max-link-memory", "64MiB"]);
    daemon.done(&["port", "set", "vale0:b", "--rx-link", "rate=100Mb/s,queue=10MB"]);
    let quotas = daemon.get("/v1/quotas");
    let held = quotas["users"][0]["usage"]["memory"].as_u64().unwrap();
    assert!(held >= 25_000_000, "charged to the ports' user: {quotas}");
}

/// Objective: a trace says when frames come, also after the data process died.
#[test]
fn a_trace_is_read_by_the_daemon_and_survives_the_data_process() {
    let mut daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.a]\n[switch.vale0.port.b]");
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    let mut number = 0;
    until_traffic_flows(&mut a, &mut b, &mut number);
    let file = daemon.dir().join("uplink.trace");
    // An opportunity every 40 ms carries 1,504 bytes: 23 frames.
    std::fs::write(&file, "# mahimahi\n40\n").unwrap();
    daemon.done(&["port", "set", "vale0:b", "--rx-link", &format!("trace={}", file.display())]);
    for _ in 0..2 {
        let began = Instant::now();
        for _ in 0..60 {
            number += 1;
            assert!(send(&mut a, &frame(1, 2, number)));
        }
        daemon.wait_for("the last frame", |_| receive(&mut b).contains(&number));
        let took = began.elapsed();
        assert!(took >= Duration::from_millis(80), "60 frames need three opportunities: {took:?}");
        kill_process(daemon.data_process("vale0"));
        exchange(&mut daemon, &mut a, &mut b, &mut number);
    }
}

/// Objective: a link without frames costs no worker anything, though another worker may put frames
/// onto it; these come in time all the same.
#[test]
fn an_idle_link_wakes_no_worker_and_frames_of_another_worker_come_in_time() {
    let mut daemon = Daemon::start();
    daemon.apply(
        "[switch.vale0]\nworkers = [{}, {}]\n[switch.vale0.port.a]\nworker = 0\n\
         [switch.vale0.port.b]\nworker = 1\nrx_link = \"rate=10Mb/s,delay=20ms\"",
    );
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    let mut number = 0;
    until_traffic_flows(&mut a, &mut b, &mut number);
    let sleeps = |daemon: &Daemon| {
        let stats = daemon.get("/v1/stats?switch=vale0");
        let worker = &stats["switches"][0]["workers"][1];
        worker["sleeps"].as_u64().unwrap_or_else(|| panic!("{worker}"))
    };
    // A look every millisecond would be 200 sleeps.
    daemon.wait_for("a worker that sleeps on", |daemon| {
        receive(&mut b);
        let before = sleeps(daemon);
        std::thread::sleep(Duration::from_millis(200));
        sleeps(daemon) - before < 40
    });
    for _ in 0..3 {
        let took = exchange(&mut daemon, &mut a, &mut b, &mut number);
        assert!(took >= Duration::from_millis(20), "{took:?}");
    }
}

/// Objective: impairments are taken for however many ports, as they were before links were counted,
/// and work for all of them.
#[test]
fn impairments_of_many_ports_are_not_counted_as_links() {
    let mut daemon = Daemon::start();
    let port = |n| {
        format!(
            "[switch.vale0.port.p{n}]\ntx_impair = \"delay=10ms,limit=16384\"\n\
             rx_impair = \"delay=10ms,limit=16384\"\n"
        )
    };
    daemon.apply(&(0..200).map(port).collect::<String>());
    assert_eq!(daemon.ports("vale0").len(), 200);
    let (mut a, mut b) = (daemon.open("vale0:p0").unwrap(), daemon.open("vale0:p199").unwrap());
    let mut number = 0;
    until_traffic_flows(&mut a, &mut b, &mut number);
    let took = exchange(&mut daemon, &mut a, &mut b, &mut number);
    assert!(took >= Duration::from_millis(20), "{took:?}");
    // A link finds the whole of max_link_memory.
    daemon.done(&[
        "port",
        "set",
        "vale0:p7",
        "--rx-impair",
        "off",
        "--rx-link",
        "queue=800MB,rate=1Gb/s",
    ]);
    let (_, _, error) = daemon.run(&[
        "port",
        "set",
        "vale0:p8",
        "--rx-impair",
        "off",
        "--rx-link",
        "queue=800MB,rate=1Gb/s",
    ]);
    assert!(error.contains("--max-link-memory"), "{error}");
}
