//! Interfaces of the host that programs open, and the host behind them.

use std::net::UdpSocket;

use super::Machine;
use harness::namespace::{Namespace, may_load_programs};
use harness::underlay::{complete_checksums, ip, pings, transfer};
use harness::{Daemon, PATIENCE, kill_process, wait};

#[test]
fn a_program_opens_interfaces_of_the_host_and_they_are_free_afterwards() {
    let test = "a_program_opens_interfaces_of_the_host_and_they_are_free_afterwards";
    let host = match Namespace::new() {
        Ok(host) => host,
        Err(why) => return harness::skip(test, why),
    };
    ip(&host, "link add c1 type veth peer name c2");
    ["c1", "c2"].iter().for_each(|name| ip(&host, &format!("link set {name} up")));
    let programs = tempfile::tempdir().unwrap();
    let mut machine = Machine { daemon: host.enter(Daemon::start), programs };
    // Killed, a program leaves nothing behind either.
    let stay = machine.start_program("stay", &["c1"]);
    assert!(machine.daemon.done(&["port", "show"]).contains("nic-c1:card"));
    let card = machine.daemon.get("/v1/switches/nic-c1/ports/card");
    if may_load_programs() {
        assert_eq!(card["interface"]["engine"], "xdp", "{card}");
    }
    // The interface belongs to this program: meanwhile no switch, port or program of toklat's gets
    // it.
    machine.daemon.done(&["switch", "add", "vale1"]);
    for taken in [
        &["switch", "add", "nic-c1"][..],
        &["port", "add", "vale1:up", "--interface", "c1"],
        &["gen", "nic-c1:x", "--duration", "1"],
    ] {
        let (code, _, said) = machine.daemon.run(taken);
        assert!(code == Some(1) && said.contains("netmap program has"), "{taken:?}: {said}");
    }
    machine.daemon.done(&["switch", "rm", "vale1"]);
    // Other programs can open an interface while a capture of it runs.
    let mut watcher = machine.daemon.start_tool(&["cap", "nic-c1:card", "-w", "/dev/null"]);
    machine.daemon.wait_for("the monitor", |daemon| daemon.ports("nic-c1").len() == 3);
    drop(stay);
    wait(&mut watcher, PATIENCE).expect("it ends");
    let gone = |machine: &mut Machine| {
        machine.daemon.wait_for("the interface's switch to go", |daemon| {
            daemon.get("/v1/switches").as_array().is_some_and(Vec::is_empty)
        });
        let links = host.run(&["ip", "link", "show"]);
        assert!(!links.contains("prog/xdp"), "{links}");
    };
    gone(&mut machine);
    machine.good("cards", &["c1", "c2"]);
    gone(&mut machine);
    // An interface that is a port already is not taken.
    machine.daemon.done(&["switch", "add", "vale0"]);
    machine.daemon.done(&["port", "add", "vale0:up", "--interface", "c1"]);
    let refused = machine.run("stay", &["c1"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("Device or resource busy"), "{refused:?}");
    assert_eq!(machine.daemon.get("/v1/switches").as_array().unwrap().len(), 1);
}

/// A host with an interface, 10.77.0.1, where the daemon runs, and a far end with 10.77.0.2.
struct Wire {
    machine: Machine,
    host: Namespace,
    far: Namespace,
}

impl Wire {
    /// Makes all three; prints why and returns `None` if they cannot be made here.
    fn new(test: &str) -> Option<Self> {
        Self::called("c1", test)
    }

    /// The same with an interface of this name.
    fn called(card: &str, test: &str) -> Option<Self> {
        if !may_load_programs() {
            harness::skip(test, "host rings need programs in the kernel: that is root's alone");
            return None;
        }
        let made = Namespace::new().and_then(|host| Ok((host, Namespace::new()?)));
        let (host, far) = made.inspect_err(|why| harness::skip(test, why)).ok()?;
        ip(&host, &format!("link add {card} type veth peer name u0 netns {}", far.id()));
        for (side, ifname, number) in [(&host, card, 1), (&far, "u0", 2)] {
            ip(side, &format!("address add 10.77.0.{number}/24 dev {ifname}"));
            ip(side, &format!("link set {ifname} up"));
            ip(side, "link set lo up");
        }
        complete_checksums(&far);
        let programs = tempfile::tempdir().unwrap();
        let machine = Machine { daemon: host.enter(Daemon::start), programs };
        Some(Self { machine, host, far })
    }

    /// Sends TCP data both ways between the host and its far end.
    fn both_ways(&self, bytes: usize) {
        transfer(&self.host, (&self.far, "10.77.0.2"), bytes);
        transfer(&self.far, (&self.host, "10.77.0.1"), bytes);
    }

    /// Waits until nothing of toklat's is at the interface, and the host uses it itself.
    fn wait_until_free(&mut self) {
        let (host, machine) = (&self.host, &mut self.machine);
        machine.daemon.wait_for("the interface's switches to go", |daemon| {
            daemon.get("/v1/switches").as_array().is_some_and(Vec::is_empty)
        });
        machine.daemon.wait_for("its links to go", |_| {
            let links = host.run(&["ip", "link", "show"]);
            !links.contains('^') && !links.contains("prog/xdp")
        });
        self.both_ways(1 << 20);
    }
}

#[test]
fn a_program_joins_an_interface_and_its_host_and_leaves_it_as_it_was() {
    let test = "a_program_joins_an_interface_and_its_host_and_leaves_it_as_it_was";
    let Some(mut wire) = Wire::new(test) else { return };
    let mut bridge = wire.machine.start_program("host", &["bridge", "c1"]);
    assert!(pings(&wire.host, "10.77.0.2") && pings(&wire.far, "10.77.0.1"));
    wire.both_ways(4 << 20);
    for port in ["os-c1:host", "os-c1:netmap", "nic-c1:card", "nic-c1:netmap"] {
        let counters = wire.machine.daemon.done(&["stats", port, "--json"]);
        assert!(counters.contains("in_frames"), "{counters}");
    }
    // A data process that dies is replaced, on either side.
    for switch in ["os-c1", "nic-c1"] {
        let before = wire.machine.daemon.data_process(switch);
        kill_process(before);
        wire.machine.daemon.wait_for("another data process", |daemon| {
            let info = daemon.get(&format!("/v1/switches/{switch}"));
            info["state"] == "running" && info["pid"] != before
        });
        wire.both_ways(1 << 20);
    }
    // Without a program that moves frames the host is cut off, as in the kernel.
    bridge.kill();
    wire.wait_until_free();
    // The daemon's end is the end of the program's descriptors.
    let bridge = wire.machine.start_program("host", &["bridge", "c1"]);
    assert!(pings(&wire.host, "10.77.0.2"));
    let (host, daemon) = (&wire.host, &mut wire.machine.daemon);
    daemon.kill();
    host.enter(|| daemon.start_again());
    drop(bridge);
    wire.wait_until_free();
}

#[test]
fn what_a_transparent_program_does_not_take_goes_on_to_the_host_and_back() {
    let test = "what_a_transparent_program_does_not_take_goes_on_to_the_host_and_back";
    let Some(mut wire) = Wire::new(test) else { return };
    let mut program = wire.machine.start_program("host", &["transparent", "c1"]);
    assert!(pings(&wire.host, "10.77.0.2") && pings(&wire.far, "10.77.0.1"));
    wire.both_ways(4 << 20);
    // What it takes does not go on, in either direction.
    let bind = |side: &Namespace, at: &str| side.enter(|| UdpSocket::bind(at).unwrap());
    let (near, far) = (bind(&wire.host, "10.77.0.1:0"), bind(&wire.far, "10.77.0.2:0"));
    let taken = [(&wire.host, &far, "10.77.0.1:9"), (&wire.far, &near, "10.77.0.2:9")];
    for (number, (side, from, to)) in (1..).zip(taken) {
        let receiver = bind(side, to);
        from.send_to(b"taken", to).unwrap();
        assert_eq!(program.line(), number.to_string());
        receiver.set_nonblocking(true).unwrap();
        assert!(pings(&wire.far, "10.77.0.1"), "what was sent later arrives");
        assert!(receiver.recv(&mut [0; 8]).is_err(), "{to}");
    }
    program.kill();
    wire.wait_until_free();
}

#[test]
fn with_forward_all_that_a_program_releases_goes_on() {
    let Some(mut wire) = Wire::new("with_forward_all_that_a_program_releases_goes_on") else {
        return;
    };
    let mut program = wire.machine.start_program("host", &["release", "c1"]);
    let once = ["ping", "-n", "-c", "1", "-W", "1", "10.77.0.2"];
    let output = wire.host.command(&once).output().unwrap();
    assert!(!output.status.success(), "the program has it all: {output:?}");
    program.kill();
    let mut program = wire.machine.start_program_with(&["--forward"], "host", &["release", "c1"]);
    assert!(pings(&wire.host, "10.77.0.2") && pings(&wire.far, "10.77.0.1"));
    wire.both_ways(1 << 20);
    program.kill();
    wire.wait_until_free();
}

#[test]
fn monitors_see_host_rings() {
    let Some(mut wire) = Wire::new("monitors_see_host_rings") else { return };
    let mut bridge = wire.machine.start_program("host", &["bridge", "c1"]);
    for how in ["copy", "sent"] {
        let mut watcher = wire.machine.start_program("host", &["watch", "c1", how]);
        assert!(pings(&wire.host, "10.77.0.2"), "{how}");
        assert_eq!(watcher.line(), "seen", "{how}");
        watcher.ends_well();
        assert!(pings(&wire.host, "10.77.0.2"), "without the monitor");
    }
    bridge.kill();
    // A program that swaps buffers releases other ones. This one does not.
    let mut program = wire.machine.start_program("host", &["release", "c1"]);
    let mut watcher = wire.machine.start_program("host", &["watch", "c1", "released"]);
    for (side, to) in [(&wire.host, "10.77.0.2"), (&wire.far, "10.77.0.1")] {
        side.command(&["ping", "-n", "-c", "1", "-W", "1", to]).output().unwrap();
    }
    assert_eq!(watcher.line(), "seen");
    watcher.ends_well();
    program.kill();
    wire.wait_until_free();
}

#[test]
fn an_interface_with_a_long_name_is_opened_with_its_host() {
    let test = "an_interface_with_a_long_name_is_opened_with_its_host";
    let card = "long-segment-15";
    let Some(mut wire) = Wire::called(card, test) else { return };
    // The switch of another interface with a name of the same beginning.
    ip(&wire.host, "link add long-segment-14 type veth peer name long-segment-13");
    ["13", "14"].iter().for_each(|n| ip(&wire.host, &format!("link set long-segment-{n} up")));
    let mut other = wire.machine.start_program("stay", &["long-segment-14"]);
    let mut bridge = wire.machine.start_program("host", &["bridge", card]);
    assert!(pings(&wire.host, "10.77.0.2") && pings(&wire.far, "10.77.0.1"));
    wire.both_ways(1 << 20);
    let switches = wire.machine.daemon.get("/v1/switches");
    assert_eq!(switches.as_array().unwrap().len(), 4, "{switches}");
    other.kill();
    bridge.kill();
    wire.wait_until_free();
}

#[test]
fn a_switch_that_is_named_as_interfaces_are_survives_the_daemon() {
    let mut machine = Machine::start();
    machine.daemon.done(&["switch", "add", "nic-own"]);
    let mut port = machine.daemon.open("nic-own:card").unwrap();
    let process = machine.daemon.data_process("nic-own");
    machine.daemon.kill();
    // Without its topology, the new daemon knows the switch by its data process alone.
    std::fs::remove_file(machine.daemon.dir().join("topology.json")).unwrap();
    machine.daemon.start_again();
    assert_eq!(machine.daemon.data_process("nic-own"), process);
    port.flush().unwrap();
    assert_eq!(machine.daemon.ports("nic-own").len(), 1);
}

#[test]
fn an_interface_and_its_host_are_attached_to_a_switch_and_detached() {
    let test = "an_interface_and_its_host_are_attached_to_a_switch_and_detached";
    let Some(mut wire) = Wire::new(test) else { return };
    let list = |wire: &Wire| {
        let listed = String::from_utf8(wire.machine.run("valectl", &["list"]).stdout).unwrap();
        listed.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    for (how, ports) in [("host", &["vale0:c1", "vale0:c1^"][..]), ("attach", &["vale0:c1"])] {
        wire.machine.good("valectl", &[how, "vale0:c1"]);
        assert_eq!(list(&wire), ports);
        let mut names: Vec<_> =
            wire.machine.daemon.ports("vale0").into_iter().map(|(name, _)| name).collect();
        names.sort_unstable();
        assert_eq!(names, &["c1", "c1-host"][..ports.len()]);
        if how == "host" {
            assert!(pings(&wire.host, "10.77.0.2") && pings(&wire.far, "10.77.0.1"));
            wire.both_ways(4 << 20);
            let counters = wire.machine.daemon.counters("c1-host");
            assert!(counters["in_bytes"].as_u64() > Some(4 << 20), "{counters}");
        }
        // Another daemon knows them, too.
        let (host, daemon) = (&wire.host, &mut wire.machine.daemon);
        daemon.kill();
        host.enter(|| daemon.start_again());
        assert_eq!(list(&wire), ports);
        wire.machine.good("valectl", &["poll", "vale0:c1"]);
        wire.machine.good("valectl", &["detach", "vale0:c1"]);
        assert!(list(&wire).is_empty());
        wire.wait_until_free();
    }
}
