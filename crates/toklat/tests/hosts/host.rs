//! The host's network stack behind an interface as a port (`kind.host`): a virtual Ethernet pair
//! between a host and a far end, and a switch between the host's stack and its end of the pair.
//!
//! Whatever ends, the host has its interface back.

use std::thread::scope;

use harness::Daemon;
use harness::frames::send;
use harness::namespace::{Namespace, may_load_programs};
use harness::underlay::{complete_checksums, ip, pings, transfer, try_ip};
use serde_json::Value;

/// What the daemons of a test have in their environment: programs are attached by tcx links, or by
/// filters as on kernels before 6.6.
const WAYS: [&[(&str, &str)]; 2] = [&[], &[("TOKLAT_TCX", "off")]];

/// A host with interface c1, 10.77.0.1 and fd77::1, and a far end with u0, 10.77.0.2 and fd77::2.
struct Pair {
    host: Namespace,
    far: Namespace,
}

impl Pair {
    /// Makes both; prints why and returns `None` if they cannot be made here.
    fn new(test: &str) -> Option<Self> {
        if !may_load_programs() {
            harness::skip(test, "the host's end of an interface needs programs in the kernel");
            return None;
        }
        let made = Namespace::new().and_then(|host| Ok(Self { host, far: Namespace::new()? }));
        let pair = made.inspect_err(|why| harness::skip(test, why)).ok()?;
        pair.plug();
        ip(&pair.host, "link set lo up");
        // Traffic past the switch would hide what the switch does not carry.
        assert!(pings(&pair.host, "10.77.0.2"));
        Some(pair)
    }

    fn plug(&self) {
        let far = self.far.id();
        let peer = format!("name u0 address 02:77:00:00:00:02 netns {far}");
        ip(&self.host, &format!("link add c1 address 02:77:00:00:00:01 type veth peer {peer}"));
        for (side, ifname, number) in [(&self.host, "c1", 1), (&self.far, "u0", 2)] {
            ip(side, &format!("address add 10.77.0.{number}/24 dev {ifname}"));
            ip(side, &format!("address add fd77::{number}/64 dev {ifname} nodad"));
            ip(side, &format!("link set {ifname} up"));
        }
    }

    /// A switch with the wire's port and the host's; `engine` is the wire's.
    fn switch(&self, engine: &str) -> String {
        let netns = self.host.id();
        format!(
            "[switch.vale0.port.wire]\n\
             kind.interface = {{ ifname = \"c1\", netns = \"{netns}\", engine = \"{engine}\" }}\n\
             [switch.vale0.port.host]\n\
             kind.host = {{ ifname = \"c1\", netns = \"{netns}\" }}\n"
        )
    }

    /// Sends TCP data both ways between the host and its far end.
    fn both_ways(&self, bytes: usize) {
        transfer(&self.host, (&self.far, "10.77.0.2"), bytes);
        transfer(&self.far, (&self.host, "fd77::1"), bytes);
    }

    /// The host uses its interface itself: nothing of toklat's is at work there.
    fn is_free(&self) -> bool {
        let links = self.host.run(&["ip", "link", "show"]);
        !links.contains("c1^") && self.host.command(&PING).output().unwrap().status.success()
    }

    /// The filters at the interface, both ways, a line each.
    fn filters(&self) -> Vec<String> {
        let at = |way| self.host.run(&["tc", "filter", "show", "dev", "c1", way]);
        let all = [at("ingress"), at("egress")].concat();
        all.lines().filter(|line| line.contains("handle")).map(str::to_owned).collect()
    }

    /// Asserts that our programs are at the interface by filters, or by none.
    fn is_attached(&self, way: &[(&str, &str)]) {
        let filters = self.filters();
        let ours = filters.iter().filter(|line| line.contains("toklat host")).count();
        assert_eq!(ours, if way.is_empty() { 0 } else { 2 }, "{filters:?}");
    }
}

const PING: [&str; 7] = ["ping", "-n", "-c", "1", "-W", "1", "10.77.0.2"];

fn port(daemon: &Daemon, name: &str) -> Value {
    daemon.get(&format!("/v1/switches/vale0/ports/{name}"))
}

fn frames(daemon: &Daemon, port: &str, counter: &str) -> u64 {
    daemon.counters(port)[counter].as_u64().unwrap()
}

#[test]
fn the_host_talks_through_the_switch_and_has_its_interface_back_afterwards() {
    let test = "the_host_talks_through_the_switch_and_has_its_interface_back_afterwards";
    for (engine, way) in
        [("packet", WAYS[0]), ("xdp", WAYS[0]), ("packet", WAYS[1]), ("xdp", WAYS[1])]
    {
        let Some(pair) = Pair::new(test) else { return };
        if engine == "xdp" {
            complete_checksums(&pair.far);
        }
        let daemon = Daemon::start_with_environment(&[], way);
        daemon.apply(&pair.switch(engine));
        pair.is_attached(way);
        assert!(pings(&pair.host, "10.77.0.2"), "{engine}: {}", daemon.log());
        assert!(pings(&pair.far, "fd77::1"), "{engine}: {}", daemon.log());
        pair.both_ways(8 << 20);
        // All of it crossed the switch, and nothing came twice.
        for (port, sent) in [("wire", "out_bytes"), ("host", "in_bytes")] {
            assert!(frames(&daemon, port, sent) > 8 << 20, "{engine}: {}", daemon.counters(port));
        }
        let twice = pair.host.run(&["ping", "-n", "-c", "3", "-i", "0.2", "10.77.0.2"]);
        assert!(twice.contains("3 received") && !twice.contains("DUP"), "{twice}");
        // What the host sends to its own listeners never leaves it.
        let own = pair.host.run(&["ping", "-n", "-c", "1", "-W", "1", "10.77.0.1"]);
        assert!(own.contains("1 received"), "{own}");
        for (port, words) in
            [("wire", "a port, by tap c1^"), ("host", "what the host sends on c1 comes by tap c1^")]
        {
            let shown = daemon.done(&["port", "show", &format!("vale0:{port}")]);
            assert!(shown.contains(words), "{shown}");
        }
        daemon.done(&["port", "rm", "vale0:host"]);
        let shown = daemon.done(&["port", "show", "vale0:wire"]);
        let words = if engine == "xdp" { "gets nothing" } else { "gets a copy of what arrives" };
        assert!(shown.contains(words), "{shown}");
        if engine == "xdp" {
            // AF_XDP leaves the host only what it sends.
            daemon.done(&["port", "rm", "vale0:wire"]);
        }
        harness::wait_until("the interface to be free", || pair.is_free());
        harness::wait_until("the filters to be gone", || pair.filters().is_empty());
    }
}

#[test]
fn without_a_port_for_the_wire_a_program_is_the_host_s_only_neighbour() {
    let test = "without_a_port_for_the_wire_a_program_is_the_host_s_only_neighbour";
    let Some(pair) = Pair::new(test) else { return };
    let mut daemon = Daemon::start();
    let netns = pair.host.id().to_string();
    daemon.done(&["switch", "add", "vale0"]);
    daemon.done(&["port", "add", "vale0:host", "--host", "c1", "--netns", &netns]);
    let mut port = daemon.open("vale0:client").unwrap();
    let mut ping = pair.host.command(&["ping", "-n", "-c", "1", "-w", "60", "10.77.0.9"]);
    let mut ping = ping.stdout(std::process::Stdio::null()).spawn().unwrap();
    // The program answers the host's ARP request for 10.77.0.9, and then its ping.
    let (host, us) = ([2, 0x77, 0, 0, 0, 1], [2, 0, 0, 0, 0, 9]);
    daemon.wait_for("the ping to be answered", |_| {
        let mut got = Vec::new();
        port.receive(64).for_each(|frame| got.push(frame.to_vec()));
        port.flush().unwrap();
        for mut frame in got {
            frame[..6].copy_from_slice(&host);
            frame[6..12].copy_from_slice(&us);
            if frame[12..14] == [8, 6] && frame[38..42] == [10, 77, 0, 9] {
                frame[20..22].copy_from_slice(&[0, 2]);
                let asked: [u8; 10] = frame[22..32].try_into().unwrap();
                frame[32..42].copy_from_slice(&asked);
                frame[22..28].copy_from_slice(&us);
                frame[28..32].copy_from_slice(&[10, 77, 0, 9]);
                assert!(send(&mut port, &frame));
            } else if frame[12..14] == [8, 0] && frame[23] == 1 && frame[34] == 8 {
                let asked: [u8; 8] = frame[26..34].try_into().unwrap();
                frame[26..30].copy_from_slice(&asked[4..]);
                frame[30..34].copy_from_slice(&asked[..4]);
                // A request becomes a reply, and its checksum grows by the difference.
                frame[34] = 0;
                let sum = u16::from_be_bytes([frame[36], frame[37]]);
                let (sum, carry) = sum.overflowing_add(0x0800);
                frame[36..38].copy_from_slice(&(sum + u16::from(carry)).to_be_bytes());
                assert!(send(&mut port, &frame));
            }
        }
        ping.try_wait().unwrap().is_some_and(|status| status.success())
    });
    // The wire is cut off in both directions: one broadcast of its far end would show.
    let before = frames(&daemon, "host", "in_frames");
    pair.far.run(&["ping", "-n", "-c", "2", "-i", "0.2", "-W", "1", "10.77.0.1"]);
    let neighbours = pair.far.run(&["ip", "neigh", "show", "10.77.0.1"]);
    assert!(!neighbours.contains("REACHABLE"), "{neighbours}, {before}");
}

#[test]
fn the_host_is_never_cut_off_by_a_death() {
    WAYS.iter().for_each(|way| death(way));
}

fn death(way: &[(&str, &str)]) {
    let Some(pair) = Pair::new("the_host_is_never_cut_off_by_a_death") else { return };
    let mut daemon = Daemon::start_with_environment(&[], way);
    daemon.apply(&pair.switch("packet"));
    assert!(pings(&pair.host, "10.77.0.2"));
    pair.is_attached(way);
    // Connections outlive data processes.
    scope(|scope| {
        let traffic = scope.spawn(|| (0..4).for_each(|_| pair.both_ways(4 << 20)));
        for _ in 0..3 {
            let before = daemon.data_process("vale0");
            harness::kill_process(before);
            daemon.wait_for("another data process", |daemon| {
                let info = daemon.get("/v1/switches/vale0");
                info["state"] == "running" && info["pid"] != before
            });
        }
        traffic.join().unwrap();
    });
    // The port goes on without the supervisor, whose successor takes it over.
    daemon.kill();
    pair.both_ways(1 << 20);
    assert!(!pair.is_free());
    daemon.start_again();
    pair.both_ways(1 << 20);
    assert!(daemon.ports("vale0").iter().all(|(_, state)| state == "attached"));
    // When both are killed, in this or the other order, the host is on its own.
    for supervisor_first in [true, false] {
        let data_process = daemon.data_process("vale0");
        if supervisor_first {
            daemon.kill();
            harness::kill_process(data_process);
        } else {
            harness::kill_process(data_process);
            daemon.kill();
            // It may have started another one by then, which forks as it starts.
            harness::wait_until("the end of all processes", || {
                let left = harness::processes_with("TOKLAT_DIR", daemon.dir());
                left.iter().for_each(|pid| harness::kill_process(pid.as_raw_nonzero().get()));
                left.is_empty()
            });
        }
        harness::wait_until("the interface to be free", || pair.is_free());
        // Filters without programs may be left. They let everything pass, both ways.
        pair.both_ways(1 << 20);
        daemon.start_again();
        pair.both_ways(1 << 20);
        assert!(!pair.is_free());
        pair.is_attached(way);
    }
    // A daemon that stops takes them away.
    daemon.stop(&serde_json::json!({}));
    assert!(pair.is_free());
    assert_eq!(pair.filters(), [""; 0]);
}

#[test]
fn a_tap_or_an_interface_that_is_deleted_is_a_state_of_the_port() {
    WAYS.iter().for_each(|way| deletion(way));
}

fn deletion(way: &[(&str, &str)]) {
    let test = "a_tap_or_an_interface_that_is_deleted_is_a_state_of_the_port";
    let Some(pair) = Pair::new(test) else { return };
    let mut daemon = Daemon::start_with_environment(&[], way);
    daemon.apply(&pair.switch("packet"));
    for (change, fault) in [
        ("link set c1^ down", "interface c1^ is down"),
        ("link set c1 down", "interface c1 is down"),
        ("link del c1", "interface c1 is gone"),
    ] {
        ip(&pair.host, change);
        daemon.wait_for(fault, |daemon| {
            let port = port(daemon, "host");
            port["state"] == "waiting" && harness::text(&port["unconnected"]).starts_with(fault)
        });
        match change.split_once(" down") {
            Some((start, _)) => ip(&pair.host, &format!("{start} up")),
            None => pair.plug(),
        }
        if change.contains("c1 ") {
            // The interface has lost this address while it was down.
            try_ip(&pair.host, "address add fd77::1/64 dev c1 nodad");
        }
        daemon
            .wait_for("the port to be back", |daemon| port(daemon, "host")["state"] == "attached");
        daemon
            .wait_for("the wire to be back", |daemon| port(daemon, "wire")["state"] == "attached");
        assert!(pings(&pair.host, "10.77.0.2"), "{change}: {}", daemon.log());
    }
    // Without its tap the host would send into the void, so it gets another one.
    ip(&pair.host, "link del c1^");
    daemon.wait_for("the host to be back", |_| pings(&pair.host, "10.77.0.2"));
    pair.both_ways(1 << 20);
    assert!(!pair.is_free());
    // The filters of earlier ends are gone.
    pair.is_attached(way);
}

#[test]
fn filters_of_others_stay_and_another_discipline_is_said_so() {
    let test = "filters_of_others_stay_and_another_discipline_is_said_so";
    let Some(pair) = Pair::new(test) else { return };
    let daemon = Daemon::start_with_environment(&[], WAYS[1]);
    daemon.done(&["switch", "add", "vale0"]);
    let netns = pair.host.id().to_string();
    let add = ["port", "add", "vale0:host", "--host", "c1", "--netns", &netns];
    let discipline = |change: &str, kind: &str| {
        let tc = pair.host.command(&["tc", "qdisc", change, "dev", "c1", kind]).status();
        assert!(tc.unwrap().success(), "{change} {kind}");
    };
    // A filter that lets everything pass, of a protocol and a preference.
    let filter = |protocol: &str, preference: &str| {
        let place = ["tc", "filter", "add", "dev", "c1", "egress", "protocol", protocol];
        let what = ["pref", preference, "bpf", "da", "bytecode", "1,6 0 0 0,"];
        assert!(pair.host.command(&[&place[..], &what].concat()).status().unwrap().success());
    };
    discipline("add", "ingress");
    let (code, _, error) = daemon.run(&add);
    assert!(code == Some(1) && error.contains("tc qdisc del dev c1 ingress"), "{error}");
    harness::wait_until("the interface to be free", || pair.is_free());
    discipline("del", "ingress");
    discipline("add", "clsact");
    filter("all", "7");
    daemon.done(&add);
    pair.is_attached(WAYS[1]);
    daemon.done(&["port", "rm", "vale0:host"]);
    harness::wait_until("our filters to be gone", || pair.filters().len() == 1);
    harness::wait_until("the interface to be free", || pair.is_free());
    // Another filter has our place.
    filter("ip", "1");
    let (code, _, error) = daemon.run(&add);
    assert!(code == Some(1) && error.contains("tc filter del dev c1 egress"), "{error}");
    harness::wait_until("the interface to be free", || pair.is_free());
}

#[test]
fn what_cannot_be_the_host_s_end_is_said_so() {
    let Some(pair) = Pair::new("what_cannot_be_the_host_s_end_is_said_so") else { return };
    let daemon = Daemon::start();
    daemon.done(&["switch", "add", "vale0"]);
    let netns = pair.host.id().to_string();
    let add = |port: &str, ifname: &str| {
        daemon.run(&["port", "add", port, "--host", ifname, "--netns", &netns])
    };
    let (code, _, error) = add("vale0:x", "c9");
    assert!(code == Some(1) && error.contains("There is no interface c9"), "{error}");
    assert_eq!(add("vale0:host", "c1").0, Some(0));
    let (code, _, error) = add("vale0:other", "c1");
    assert!(code == Some(1) && error.contains("only one port can be"), "{error}");
    // Generic XDP would loop what the switch sends to the host back into the switch.
    daemon.done(&["port", "rm", "vale0:host"]);
    ip(&pair.host, "link add br0 type bridge");
    ip(&pair.host, "link set br0 up");
    let wire = ["port", "add", "vale0:wire", "--interface", "br0", "--netns", &netns];
    let by_xdp = [&wire[..], &["--engine", "xdp"]].concat();
    daemon.done(&by_xdp);
    let (code, _, error) = add("vale0:host", "br0");
    assert!(code == Some(1) && error.contains("--engine packet"), "{error}");
    daemon.done(&["port", "rm", "vale0:wire"]);
    assert_eq!(add("vale0:host", "br0").0, Some(0));
    let (code, _, error) = daemon.run(&by_xdp);
    assert!(code == Some(1) && error.contains("the host's end is a port"), "{error}");
    daemon.done(&wire);
}

#[test]
fn regression_a_port_that_cannot_become_the_hosts_stays_what_it_is() {
    let daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.a]\n");
    let kind = serde_json::json!({ "kind": { "host": { "ifname": "no-such-if" } } });
    for _ in 0..3 {
        let (status, answer) = daemon.ask("PATCH", "/v1/switches/vale0/ports/a", &kind);
        assert!((400..500).contains(&status), "{status}: {answer}");
        daemon.open("vale0:a").unwrap();
    }
}
