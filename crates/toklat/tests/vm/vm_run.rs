//! `toklat vm run`: Linux guests on a switch, and their ends.

use std::time::Duration;

use serde_json::{Value, json};

use vm::guest;

use harness::guests::{Guest, can_emulate, can_run};
use harness::{Daemon, is_alive, kill_process};

fn switch() -> Daemon {
    let daemon = Daemon::start();
    assert_eq!(daemon.ask("POST", "/v1/switches", &json!({ "name": "vale0" })).0, 201);
    daemon
}

fn count(counters: &Value, name: &str) -> u64 {
    counters[name].as_u64().unwrap_or_else(|| panic!("{name}: {counters}"))
}

/// Returns the command that waits until the other guest is there, whether or not that guest serves.
fn meet(number: u8) -> String {
    format!(
        "until ping -c 1 -W 1 10.0.0.{number} >/dev/null; do sleep 0.2; done; echo toklat-guest: reached"
    )
}

/// A section's commands, with those on several lines in one.
fn joined(section: &str) -> Vec<String> {
    let mut whole: Vec<String> = Vec::new();
    for line in commands_of(section) {
        match whole.last_mut().and_then(|last| last.strip_suffix('\\').map(str::to_owned)) {
            Some(start) => *whole.last_mut().unwrap() = start + line.trim_start(),
            None => whole.push(line.to_owned()),
        }
    }
    whole
}

/// The lines of a section of docs/virtual-machines.md that are commands.
fn commands_of(section: &str) -> Vec<&'static str> {
    let text = include_str!("../../../../docs/virtual-machines.md");
    let section = text.split("\n## ").find_map(|part| part.strip_prefix(section)).unwrap();
    section.lines().filter_map(|line| line.strip_prefix("    ")).collect()
}

/// Objective: three commands lead from the installed package to two machines that reach each other.
///
/// Steps: a daemon with the unit's options and the package's topology file; the document's
/// commands, as they stand but for their images; one guest pings the other.
#[test]
fn three_commands_lead_from_the_package_to_two_machines() {
    if !can_run("three_commands_lead_from_the_package_to_two_machines") {
        return;
    }
    let unit = include_str!("../../../../packaging/systemd/toklat.service");
    assert!(unit.contains(
        " daemon --leave-data-processes --view-group toklat-view --topology /etc/toklat/net.toml\n"
    ));
    let net = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/net.toml");
    let mut daemon = Daemon::start_with(&["--leave-data-processes", "--topology", net]);
    let words = |line: &'static str| line.split(' ').skip(1).collect::<Vec<_>>();
    let [add, one, two] = commands_of("From the package\n")[..] else { panic!("three commands") };
    daemon.done(&words(add));
    let mut one = Guest::typed(&daemon, &words(one), 1, guest::SERVE);
    let ask = format!("{}; ping -q -c 3 10.0.0.1; sleep 1", guest::reach("10.0.0.1"));
    let mut two = Guest::typed(&daemon, &words(two), 2, &ask);
    two.says("3 packets received, 0% packet loss");
    two.succeeds();
    kill_process(one.qemu());
    one.says("toklat-guest: ready");
    one.ends();
    daemon.stop(&json!({}));
}

/// A segment of up to 64 KiB goes from one guest to the other in one piece, without segmentation
/// and without a checksum.
/// Objective: the document's lines for QEMU start guests that reach another.
///
/// Steps: a guest that answers; for each way to plug a guest into the switch, the document's lines,
/// but for the directory, QEMU's own name of the time to reconnect, and what "..." stands for.
#[test]
fn the_documents_lines_for_qemu_run_as_they_stand() {
    let test = "the_documents_lines_for_qemu_run_as_they_stand";
    if !can_emulate(test) {
        return;
    }
    let daemon = switch();
    let server = Guest::boot(&daemon, "server", 1, &[], "pkt echo 7 & while :; do sleep 1; done");
    let dir = daemon.dir().to_str().unwrap().to_owned();
    let here = |line: &String| {
        line.replace("/run/toklat", &dir).replace("reconnect=1", "reconnect-ms=200")
    };
    let add = |line: &str| daemon.done(&line.split(' ').skip(1).collect::<Vec<_>>());
    let ask = format!("{}; sleep 1", guest::reach("10.0.0.1"));
    let boot = |script: &str| Guest::scripted(script, 2, &ask);
    let meets = |mut guest: Guest, port: &str| {
        guest.says("toklat-guest: reached");
        let said = guest.ends();
        assert!(said.contains("toklat-guest: exit=0"), "{said}");
        daemon.done(&["port", "rm", &format!("vale0:{port}")]);
    };
    let lines: Vec<_> = joined("QEMU\n").iter().map(here).collect();
    let [listen, connects, umask, listens, connect, stream, socket] = &lines[..] else {
        panic!("{lines:#?}")
    };
    add(listen);
    meets(boot(connects), "vm1");
    // The other way round, with the rest of the line as before. The unit makes this directory.
    std::fs::create_dir(daemon.dir().join("peers")).unwrap();
    let chardev =
        |line: &str| line.split(' ').find(|word| word.starts_with("socket,")).unwrap().to_owned();
    let listens = connects.replace(&chardev(connects), &chardev(listens));
    let guest = boot(&format!("{umask}\n{listens}"));
    add(connect);
    meets(guest, "vm1");
    add(stream);
    meets(boot(&format!("{socket} -m 512M")), "vm2");
    let lines: Vec<_> = joined("Emulated NICs\n").iter().map(here).collect();
    let [_, nic, card] = &lines[..] else { panic!("{lines:#?}") };
    add(nic);
    meets(boot(card), "vm1");
    kill_process(server.qemu());
}

#[test]
fn tcp_between_guests_crosses_in_whole_segments() {
    if !can_run("tcp_between_guests_crosses_in_whole_segments") {
        return;
    }
    let daemon = switch();
    let mut server = Guest::boot(&daemon, "a", 1, &[], guest::SERVE);
    let ask = format!(
        "{}; ping -q -c 3 10.0.0.1 && iperf3 -c 10.0.0.1 -t 2 && echo toklat-guest: over; sleep 5",
        guest::reach("10.0.0.1")
    );
    let mut client = Guest::boot(&daemon, "b", 2, &[], &ask);
    client.says("3 packets received, 0% packet loss");
    client.says("toklat-guest: over");
    let (sender, receiver) = (daemon.counters("b"), daemon.counters("a"));
    let size = count(&sender, "in_bytes") / count(&sender, "in_frames");
    assert!(size > 4000, "{size} bytes a frame are no segments: {sender}");
    for counters in [&sender, &receiver] {
        assert_eq!(count(counters, "out_segmented"), 0, "{counters}");
        assert_eq!(count(counters, "out_checksums"), 0, "{counters}");
        assert_eq!(count(counters, "faults"), 0, "{counters}");
    }
    client.succeeds();
    // The guest's commands run forever.
    kill_process(server.qemu());
    server.says("toklat-guest: ready");
    server.ends();
}

/// Guests with several queues and with packed ones talk to each other.
#[test]
fn queues_of_all_kinds_meet() {
    if !can_run("queues_of_all_kinds_meet") {
        return;
    }
    let daemon = switch();
    let _server =
        Guest::boot(&daemon, "a", 1, &["--packed", "--queues", "2", "--cpus", "2"], guest::SERVE);
    let ask = format!("{}; iperf3 -c 10.0.0.1 -t 1 -P 4 --bidir", guest::reach("10.0.0.1"));
    let mut client = Guest::boot(&daemon, "b", 2, &["--queues", "2", "--cpus", "2"], &ask);
    client.says("toklat-guest: reached");
    client.succeeds();
}

/// Killed, `vm run` leaves neither a QEMU nor a port behind; a killed QEMU takes its port along,
/// and the others stay.
#[test]
fn nothing_is_left_of_a_killed_machine() {
    if !can_run("nothing_is_left_of_a_killed_machine") {
        return;
    }
    let mut daemon = switch();
    let flood =
        |number: u8| format!("{}; pkt udp 10.0.0.{number} 9 1000 100 & sleep 1000", meet(number));
    let (mut a, mut b) = (
        Guest::boot(&daemon, "a", 1, &[], &flood(2)),
        Guest::boot(&daemon, "b", 2, &[], &flood(1)),
    );
    a.says("toklat-guest: reached");
    b.says("toklat-guest: reached");
    std::thread::sleep(Duration::from_millis(500));
    let qemu = b.qemu();
    kill_process(qemu);
    b.ends();
    assert_eq!(daemon.ports("vale0"), [("a".to_owned(), "attached".to_owned())]);
    // The next machine can be reached at the same address.
    let next = Guest::boot(&daemon, "b", 2, &[], &meet(1));
    next.succeeds();
    let (qemu, run) = (a.qemu(), a.pid());
    kill_process(run);
    a.ends();
    daemon.wait_for("the port's end", |daemon| daemon.ports("vale0").is_empty());
    daemon.wait_for("QEMU's end", |_| !is_alive(qemu));
}

/// A data process that is killed while guests run is replaced within a second, and so is the
/// guests' network.
#[test]
fn guests_do_not_notice_that_the_data_process_died() {
    if !can_run("guests_do_not_notice_that_the_data_process_died") {
        return;
    }
    for queues in [&[][..], &["--packed"]] {
        let mut daemon = switch();
        let mut server = Guest::boot(&daemon, "a", 1, queues, guest::SERVE);
        let ask = format!(
            "{}; ping -i 0.05 -W 1 -c 100 10.0.0.1 >/tmp/pings; tail -3 /tmp/pings; iperf3 -c 10.0.0.1 -t 1",
            guest::reach("10.0.0.1")
        );
        let mut client = Guest::boot(&daemon, "b", 2, queues, &ask);
        server.says("toklat-guest: ready");
        client.says("toklat-guest: reached");
        std::thread::sleep(Duration::from_millis(500));
        let killed = daemon.data_process("vale0");
        kill_process(killed);
        daemon.wait_for("a new data process", |daemon| {
            let info = daemon.get("/v1/switches/vale0");
            info["pid"].as_i64().is_some_and(|pid| pid as i32 != killed)
        });
        let summary = client.says("packets received");
        let received = summary.split(", ").find_map(|part| part.strip_suffix(" packets received"));
        let received: u32 = received.unwrap().parse().unwrap();
        // 20 pings are sent each second; on a busy machine, most of the answers may come late.
        assert!(received >= 20, "{summary}");
        client.succeeds();
    }
}
