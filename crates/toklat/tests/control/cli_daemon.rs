//! The command line against a real daemon: what commands do, print and return.

use harness::Daemon;
use serde_json::{Value, json};

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples/net.toml");

#[test]
fn switches_and_ports_come_and_go() {
    let daemon = Daemon::start();
    assert_eq!(daemon.done(&["switch", "add", "vale0", "--workers", "2"]), "added vale0\n");
    assert_eq!(daemon.done(&["port", "add", "vale0:p1", "--vlan-access=7"]), "added vale0:p1\n");
    assert_eq!(daemon.done(&["port", "add", "vale0:hole", "--null"]), "added vale0:hole\n");

    let table = daemon.done(&["port", "show"]);
    let rows: Vec<&str> = table.lines().collect();
    assert!(rows[0].starts_with("PORT        ID  STATE"), "{table}");
    assert_eq!(rows.len(), 3, "{table}");
    assert!(
        rows.iter().any(|row| row.starts_with("vale0:p1") && row.contains("vacant")),
        "{table}"
    );

    let ports = daemon.json(&["port", "show", "vale0:p1"]);
    assert_eq!(ports[0]["switch"], "vale0");
    assert_eq!(ports[0]["spec"]["vlan"], json!({ "access": 7 }));
    let switches = daemon.json(&["switch", "show"]);
    assert_eq!((&switches[0]["ports"], &switches[0]["state"]), (&json!(2), &json!("running")));

    assert_eq!(daemon.done(&["port", "rm", "vale0:p1", "vale0:hole"]).lines().count(), 2);
    assert_eq!(daemon.done(&["switch", "rm", "vale0"]), "removed vale0\n");
    assert_eq!(daemon.json(&["switch", "show"]), json!([]));
    assert_eq!(daemon.done(&["switch", "show"]), "", "an empty list is said on stderr");
}

#[test]
fn refusals_end_with_1_and_say_reason_and_remedy() {
    let daemon = Daemon::start();
    daemon.done(&["switch", "add", "vale0"]);
    let refused: [&[&str]; 7] = [
        &["switch", "add", "vale0"],
        &["switch", "rm", "vale9"],
        &["port", "add", "vale9:p1"],
        &["port", "set", "vale0:p1", "--lossless"],
        &["port", "add", "vale0:p1", "--worker=5"],
        &["port", "add", "vale0:p1", "--pcap-read=/no/such/file"],
        &["stats", "vale0:p1"],
    ];
    for command in refused {
        let (code, stdout, stderr) = daemon.run(command);
        assert_eq!((code, stdout.as_str()), (Some(1), ""), "{command:?}: {stderr}");
        assert!(stderr.starts_with("toklat: ") && stderr.contains("; "), "{command:?}: {stderr}");
    }
}

/// Arguments of `vm run` for a machine that is never booted.
fn machine<'a>(port: &'a str, qemu: &'a str, kernel: &'a str) -> Vec<&'a str> {
    let at = ["vm", "run", "--switch", "vale0", "--port", port, "--qemu", qemu];
    [&at[..], &["--accel", "tcg", "--kernel", kernel]].concat()
}

#[test]
fn a_machine_is_plugged_into_a_port_that_is_there() {
    let daemon = Daemon::start();
    let at = |name: &str| daemon.dir().join(name).to_str().unwrap().to_owned();
    let (kernel, socket) = (at("kernel"), at("own.sock"));
    std::fs::write(&kernel, "").unwrap();
    daemon.done(&["switch", "add", "vale0"]);
    for kind in [
        &["p1", "--vhost-user", &socket, "--queues", "2", "--mac", "02:00:00:00:00:05"][..],
        &["p2", "--nic", "82574l"],
        &["p3", "--vhost-user", &at("theirs.sock"), "--client"],
        &["p4", "--null"],
    ] {
        let name = format!("vale0:{}", kind[0]);
        daemon.done(&[&["port", "add", &name], &kind[1..]].concat());
    }
    let print = |port: &str, more: &[&str]| {
        daemon.run(&[&machine(port, "/no/qemu", &kernel)[..], &["--print"], more].concat())
    };
    for (port, more, socket, device) in [
        ("p1", &[][..], socket.as_str(), "mac=02:00:00:00:00:05"),
        ("p1", &["--queues", "2", "--mac", "02:00:00:00:00:06"], &socket, "mac=02:00:00:00:00:06"),
        ("p2", &[], &at("vale0-p2.sock"), "vfio-user-pci"),
        ("p2", &["--nic", "82574l"], &at("vale0-p2.sock"), "vfio-user-pci"),
    ] {
        let (code, printed, stderr) = print(port, more);
        assert_eq!(code, Some(0), "{port} {more:?}: {stderr}");
        assert!(printed.starts_with(&format!("# vale0:{port} is there\n/no/qemu ")), "{printed}");
        assert!(printed.contains(socket) && printed.contains(device), "{printed}");
    }
    for (port, more, status) in [
        ("p1", &["--queues", "3"][..], 1),
        ("p1", &["--nic", "82574l"], 1),
        ("p1", &["--interrupts", "off"], 2),
        ("p2", &["--nic", "virtio"], 1),
        ("p2", &["--csb"], 2),
        ("p2", &["--mac", "02:00:00:00:00:06"], 2),
        ("p2", &["--queues", "2"], 2),
        ("p3", &[], 1),
        ("p4", &[], 1),
    ] {
        let (code, printed, stderr) = print(port, more);
        assert_eq!((code, printed.as_str()), (Some(status), ""), "{port} {more:?}: {stderr}");
    }
    assert!(print("p5", &[]).1.starts_with("# toklat port add vale0:p5 --vhost-user "));
}

/// The program that stands in for QEMU ends at once.
#[test]
fn a_port_that_was_there_before_its_machine_is_there_after_it() {
    use std::os::unix::fs::PermissionsExt;
    let daemon = Daemon::start();
    let at = |name: &str| daemon.dir().join(name).to_str().unwrap().to_owned();
    let (kernel, qemu) = (at("kernel"), at("qemu"));
    std::fs::write(&kernel, "").unwrap();
    std::fs::write(&qemu, "#!/bin/sh\necho QEMU emulator version 9.2.0\n").unwrap();
    std::fs::set_permissions(&qemu, std::fs::Permissions::from_mode(0o755)).unwrap();
    daemon.done(&["switch", "add", "vale0"]);
    daemon.done(&["port", "add", "vale0:p1", "--vhost-user"]);
    for port in ["p1", "p2"] {
        let (code, _, stderr) = daemon.run(&machine(port, &qemu, &kernel));
        assert_eq!(code, Some(0), "{stderr}");
        assert_eq!(daemon.ports("vale0"), [("p1".to_owned(), "vacant".to_owned())], "{port}");
    }
}

#[test]
fn a_port_is_changed_in_what_is_named_only() {
    let daemon = Daemon::start();
    daemon.done(&["switch", "add", "vale0", "--workers=2"]);
    daemon.done(&["port", "add", "vale0:p1", "--lossless", "--vlan-access", "5", "--mtu=9000"]);
    daemon.done(&[
        "port",
        "set",
        "vale0:p1",
        "--flood-limit=off",
        "--vlan-trunk=5,6",
        "--worker=1",
    ]);
    let port = daemon.json(&["port", "show", "vale0:p1"])[0].clone();
    assert_eq!(port["worker"], 1);
    let spec = &port["spec"];
    assert_eq!((&spec["lossless"], &spec["mtu"]), (&json!(true), &json!(9000)));
    assert_eq!(spec["flood_limit"], Value::Null);
    assert_eq!(spec["vlan"], json!({ "trunk": { "allowed": [5, 6], "native": null } }));

    daemon.done(&["switch", "set", "vale0", "--batch=32", "--idle=sleep"]);
    let config = daemon.json(&["switch", "show", "vale0"])[0]["config"].clone();
    assert_eq!((&config["batch"], &config["idle"]), (&json!(32), &json!("sleep")));
}

#[test]
fn the_example_is_applied_once_and_exported_as_it_was() {
    let daemon = Daemon::start();
    let changes = daemon.json(&["apply", EXAMPLE]);
    let added = changes["changes"].as_array().unwrap();
    assert!(added.iter().all(|change| change["action"] == "added"), "{changes}");
    assert!(added.iter().any(|change| change["name"] == "vale1:uplink"), "{changes}");
    assert_eq!(daemon.json(&["apply", EXAMPLE]), json!({ "changes": [] }));

    let exported = daemon.dir().join("exported.toml");
    std::fs::write(&exported, daemon.done(&["export"])).unwrap();
    assert_eq!(daemon.json(&["apply", exported.to_str().unwrap()]), json!({ "changes": [] }));

    std::fs::write(&exported, "[switch.new.port.hole]\nkind = \"null\"\n").unwrap();
    let table = daemon.done(&["apply", exported.to_str().unwrap()]);
    let rows: Vec<Vec<_>> = table.lines().map(|row| row.split_whitespace().collect()).collect();
    assert_eq!(rows[1..], [["-", "added", "new"], ["-", "added", "new:hole"]], "{table}");
}

#[test]
fn addresses_are_added_shown_and_removed() {
    let daemon = Daemon::start();
    daemon.done(&["switch", "add", "vale0"]);
    daemon.done(&["port", "add", "vale0:p1"]);
    daemon.done(&["fdb", "add", "vale0:p1", "02:00:00:00:00:01"]);
    let table = daemon.done(&["fdb", "show", "vale0"]);
    assert!(table.contains("02:00:00:00:00:01     -  p1    fixed"), "{table}");
    daemon.done(&["fdb", "flush", "vale0"]);
    let entries = daemon.json(&["fdb", "show", "vale0:p1"]);
    assert_eq!(entries.as_array().unwrap().len(), 1, "what was added stays: {entries}");
    daemon.done(&["fdb", "rm", "vale0", "02:00:00:00:00:01"]);
    assert_eq!(daemon.json(&["fdb", "show", "vale0"]), json!([]));
}

#[test]
fn counters_are_shown_and_watched() {
    let daemon = Daemon::start();
    daemon.done(&["switch", "add", "vale0"]);
    daemon.done(&["port", "add", "vale0:p1"]);
    let stats = daemon.json(&["stats"]);
    assert_eq!(stats["switches"][0]["ports"][0]["in_frames"], 0);
    assert!(daemon.done(&["stats"]).contains("vale0:p1"));
    assert!(daemon.done(&["stats", "vale0:p1"]).starts_with("vale0:p1: vacant\n"));
    let lines = daemon.lines_of(&["stats", "--watch=0.1", "--json"], 3);
    let at: Vec<u64> = lines
        .iter()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["at_ns"].as_u64().unwrap())
        .collect();
    assert!(at[1] - at[0] >= 90_000_000 && at[2] > at[1], "{at:?}");
}

#[test]
fn top_draws_in_a_terminal_follows_keys_and_leaves_it_as_it_was() {
    let daemon = Daemon::start();
    daemon.done(&["switch", "add", "vale0"]);
    daemon.done(&["port", "add", "vale0:p1"]);
    let mut terminal = daemon.in_terminal(&["top", "--interval=0.2"], 80, 20);
    terminal.wait_for("LOAD");
    terminal.wait_for("vale0:p1");
    terminal.press(b"s");
    terminal.wait_for("out");
    terminal.press(b"?");
    terminal.wait_for("PgUp");
    terminal.press(b" ");
    terminal.press(b"/zz");
    terminal.wait_for("filter:");
    terminal.press(b"\r");
    terminal.press(b"p");
    terminal.wait_for("paused");
    terminal.press(b"q");
    assert_eq!(terminal.end(), Some(0));
    assert!(terminal.output().contains("\x1b[?1049l"), "it is still on the other screen");
}

#[test]
fn an_upgrade_replaces_the_data_process() {
    let daemon = Daemon::start();
    daemon.done(&["switch", "add", "vale0"]);
    let before = daemon.json(&["switch", "show", "vale0"])[0]["pid"].clone();
    let upgraded = daemon.json(&["upgrade"]);
    assert_eq!(upgraded["switches"][0]["old_pid"], before);
    let after = daemon.json(&["switch", "show", "vale0"])[0]["pid"].clone();
    assert_eq!(upgraded["switches"][0]["new_pid"], after);
    assert_ne!(before, after);
}

#[test]
fn a_stopped_daemon_is_gone() {
    let mut daemon = Daemon::start();
    daemon.done(&["switch", "add", "vale0"]);
    let pid = daemon.json(&["switch", "show"])[0]["pid"].to_string();
    assert_eq!(daemon.done(&["stop"]), "stopped\n");
    assert_eq!(daemon.run(&["status"]).0, Some(3), "the command waits until it is gone");
    assert!(daemon.ends_within(harness::PATIENCE));
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    assert!(command.is_empty(), "its data process {pid} lives");
}

#[test]
fn the_doctor_names_ports_that_do_not_work_and_what_fits_tunnels() {
    let mut daemon = Daemon::start();
    daemon.apply(
        "[switch.vale0.port.up]
        kind.stream = { address = '/nowhere/passt.sock', client = true }
        [switch.vale0.port.vm]
        [switch.vale0.port.fabric]
        kind.vxlan = { vni = 7, local = '127.0.0.1', peers = ['127.0.0.2'], port = 14789 }",
    );
    let found = |daemon: &Daemon, what: &str| {
        let checks = daemon.json(&["doctor"]);
        checks.as_array().unwrap().iter().find(|check| check["what"] == what).cloned()
    };
    daemon.wait_for("why it has no peer", |daemon| found(daemon, "port").is_some());
    let port = found(&daemon, "port").unwrap();
    assert!(port["found"].as_str().unwrap().starts_with("vale0:up: "), "{port}");
    assert_eq!(found(&daemon, "daemon").unwrap()["state"], "good");
    let mtu = found(&daemon, "MTU").unwrap();
    assert!(mtu["found"].as_str().unwrap().contains("fits the tunnel of vale0"), "{mtu}");
    // The doctor checks for gobgpd if the settings have EVPN.
    daemon.apply(
        "[evpn]
        as = 65000
        router_id = '10.0.0.1'
        vtep = '127.0.0.1'
        program = '/nowhere/gobgpd'
        [switch.vale0]",
    );
    let program = found(&daemon, "gobgpd").unwrap();
    assert!(program["found"].as_str().unwrap().starts_with("/nowhere/gobgpd: "), "{program}");
}
