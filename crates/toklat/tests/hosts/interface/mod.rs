//! Network interfaces as ports: virtual Ethernet pairs between namespaces, with the kernel's
//! network stack at the far ends.

mod xdp;

use std::collections::{BTreeMap, BTreeSet};
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Stdio;

use harness::Daemon;
use harness::frames::send;
use harness::namespace::{Namespace, may_load_programs};
use harness::underlay::{complete_checksums, ip, pings, transfer};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use serde_json::Value;

/// The reason for which a test of AF_XDP is skipped.
const NO_PROGRAMS: &str = "AF_XDP needs a program in the kernel: that is root's alone";

/// A host with interfaces c1, c2, ... without addresses. At the other end of each is a namespace
/// with u0: 10.77.0.1, 10.77.0.2, ...
struct Cards {
    host: Namespace,
    far: Vec<Namespace>,
    queues: usize,
}

impl Cards {
    /// Makes `count` interfaces; prints why and returns `None` if they cannot be made here.
    fn new(test: &str, count: usize) -> Option<Self> {
        Self::with_queues(test, count, 1)
    }

    /// Works as [`new`](Self::new); the interfaces have so many queues each way.
    fn with_queues(test: &str, count: usize, queues: usize) -> Option<Self> {
        let made = Namespace::new().and_then(|host| {
            let far = (0..count).map(|_| Namespace::new()).collect::<Result<Vec<_>, _>>()?;
            Ok(Self { host, far, queues })
        });
        let cards = made.inspect_err(|why| harness::skip(test, why)).ok()?;
        (1..=count).for_each(|number| cards.plug(number));
        Some(cards)
    }

    /// Makes interface number `number` again after it was deleted.
    fn plug(&self, number: usize) {
        let (far, host) = (&self.far[number - 1], &self.host);
        // The far end keeps its address, so that its neighbours still know it.
        let peer = format!("name u0 address 02:77:00:00:00:0{number} netns {}", far.id());
        let queues = format!("numtxqueues {0} numrxqueues {0}", self.queues);
        ip(host, &format!("link add c{number} {queues} type veth peer {peer} {queues}"));
        ip(host, &format!("link set c{number} addrgenmode none up"));
        ip(far, &format!("address add 10.77.0.{number}/24 dev u0"));
        ip(far, &format!("address add fd77::{number}/64 dev u0 nodad"));
        ip(far, "link set u0 up");
        ip(far, "link set lo up");
    }

    /// Makes the far ends complete checksums themselves: a veth gives AF_XDP packets whose
    /// checksums its other end left to the veth.
    fn complete_checksums(&self) {
        self.far.iter().for_each(complete_checksums);
    }

    /// Makes a switch with a port p1, p2, ... for each interface; `more` is in each port's kind.
    fn switch(&self, more: &str) -> String {
        let port = |number| {
            format!(
                "[switch.vale0.port.p{number}]\nkind.interface = {{ ifname = \"c{number}\", \
                 netns = \"{}\"{more} }}\n",
                self.host.id()
            )
        };
        (1..=self.far.len()).map(port).collect()
    }

    /// Sends TCP data both ways between hosts 1 and 2.
    fn both_ways(&self, bytes: usize) {
        transfer(&self.far[0], (&self.far[1], "10.77.0.2"), bytes);
        transfer(&self.far[1], (&self.far[0], "fd77::1"), bytes);
    }
}

/// Returns the number of frames that a switch's ports took in and that no counter of an outcome
/// includes.
fn unaccounted(daemon: &Daemon) -> i64 {
    let stats = daemon.get("/v1/stats");
    let count = |port: &Value, name: &str| port[name].as_i64().unwrap_or(0);
    let drops = |port: &Value, side: &str| -> i64 {
        port[side].as_object().map_or(0, |all| all.values().filter_map(Value::as_i64).sum())
    };
    let ports = stats["switches"][0]["ports"].as_array().unwrap().iter();
    ports
        .map(|port| {
            let came =
                count(port, "in_frames") + count(port, "in_copies") + count(port, "out_segments");
            came - count(port, "out_frames") - drops(port, "in_drops") - drops(port, "out_drops")
        })
        .sum()
}

#[test]
fn hosts_talk_through_the_interfaces_of_a_switch() {
    let Some(cards) = Cards::new("hosts_talk_through_the_interfaces_of_a_switch", 2) else {
        return;
    };
    let mut daemon = Daemon::start();
    daemon.apply(&cards.switch(""));
    assert!(pings(&cards.far[0], "10.77.0.2") && pings(&cards.far[1], "fd77::1"));
    cards.both_ways(16 << 20);
    // TCP data crosses in long packets: with frames of 1,514 bytes there would be 22,000 or more.
    let counters = daemon.counters("p1");
    let (frames, bytes) = (&counters["in_frames"], &counters["in_bytes"]);
    assert!(bytes.as_u64().unwrap() > 16 << 20, "{counters}");
    assert!(frames.as_u64().unwrap() < 15_000, "{counters}");
    let links = cards.host.run(&["ip", "-d", "link", "show", "c1"]);
    assert!(links.contains("promiscuity 1"), "{links}");
    daemon.wait_for("the sums to agree", |daemon| unaccounted(daemon) == 0);
}

#[test]
fn tags_pass_an_interface_though_the_kernel_takes_them_out() {
    let test = "tags_pass_an_interface_though_the_kernel_takes_them_out";
    let Some(cards) = Cards::new(test, 2) else { return };
    let mut daemon = Daemon::start();
    daemon.apply(&cards.switch("").replace("kind.", "vlan = { trunk = { allowed = [5] } }\nkind."));
    let tcpdump = ["tcpdump", "-i", "u0", "-n", "-e", "-l", "-c", "1", "vlan", "5"];
    let mut seen = cards.far[1].command(&tcpdump);
    let mut seen = seen.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let sender = cards.far[0].enter(|| harness::raw::Socket::open("u0"));
    let tagged = |vid: u8| {
        let to_all_from_2 = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 2];
        let tag_then_local_experimental = [0x81, 0, 0, vid, 0x88, 0xb5];
        [&to_all_from_2[..], &tag_then_local_experimental, &[0x5a; 46]].concat()
    };
    daemon.wait_for("a tagged frame to arrive", |_| {
        assert!(sender.send(&tagged(5)));
        seen.try_wait().unwrap().is_some()
    });
    let line = std::io::read_to_string(seen.stdout.unwrap()).unwrap();
    assert!(line.contains("vlan 5,") && line.contains("0x88b5"), "{line}");
    // Another VLAN's frames, and those without a tag, have no way through.
    let dropped = |daemon: &Daemon| daemon.counters("p1")["in_drops"]["vlan"].as_u64().unwrap_or(0);
    let untagged = [&tagged(5)[..12], &tagged(5)[16..]].concat();
    for other in [tagged(6), untagged] {
        // Neighbour discovery sends some frames of its own, but not as many.
        let before = dropped(&daemon);
        (0..100).for_each(|_| assert!(sender.send(&other)));
        daemon.wait_for("frames to be dropped", |daemon| dropped(daemon) >= before + 100);
    }
}

#[test]
fn flows_spread_over_the_queues_of_an_interface() {
    let Some(cards) = Cards::new("flows_spread_over_the_queues_of_an_interface", 2) else { return };
    let daemon = Daemon::start();
    daemon.apply(&cards.switch(", queues = 4"));
    assert!(pings(&cards.far[0], "10.77.0.2"));
    let before = packets(&daemon);
    assert_eq!((before.len(), before.values().map(Vec::len).sum::<usize>()), (2, 8), "{before:?}");
    for _ in 0..8 {
        cards.both_ways(1 << 20);
    }
    // 16 flows: that fewer than two of four queues have any is as likely as one in a billion.
    for (interface, queues) in packets(&daemon) {
        let used = queues.iter().filter(|packets| **packets > 0).count();
        assert!(used >= 2, "interface {interface}: {queues:?}");
    }
}

/// How many packets each queue of each interface has received since the last call, by the
/// interface's number: of the packet sockets of the data process.
fn packets(daemon: &Daemon) -> BTreeMap<u32, Vec<u32>> {
    let pid = daemon.data_process("vale0");
    let process = Pid::from_raw(pid).unwrap();
    let process = pidfd_open(process, PidfdFlags::empty()).unwrap();
    let (mut found, mut seen) = (BTreeMap::<u32, Vec<u32>>::new(), BTreeSet::new());
    for file in std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
        let number = file.unwrap().file_name().to_str().unwrap().parse().unwrap();
        let Ok(fd) = pidfd_getfd(&process, number, PidfdGetfdFlags::empty()) else { continue };
        // The data process has more than one descriptor of some.
        if !seen.insert(rustix::fs::fstat(&fd).unwrap().st_ino) {
            continue;
        }
        let Some((interface, packets)) = packets_of(&fd) else { continue };
        found.entry(interface).or_default().push(packets);
    }
    found
}

/// The interface of a packet socket, and how many packets it has received since the last call;
/// `None` of anything else.
#[allow(unsafe_code, reason = "options and addresses that no library has")]
fn packets_of(socket: &OwnedFd) -> Option<(u32, u32)> {
    let mut counts = [0_u32; 3];
    let mut len = size_of_val(&counts) as libc::socklen_t;
    let (fd, to) = (socket.as_raw_fd(), counts.as_mut_ptr().cast());
    // SAFETY: the kernel writes at most `len` bytes of packets and drops, which are there.
    let done = unsafe {
        libc::getsockopt(fd, libc::SOL_PACKET, libc::PACKET_STATISTICS, to, &raw mut len)
    };
    // SAFETY: all bits zero are an address.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes of the address, which are there.
    let named = unsafe { libc::getsockname(fd, (&raw mut address).cast(), &raw mut len) };
    let interface = u32::try_from(address.sll_ifindex).ok()?;
    (done == 0 && named == 0).then_some((interface, counts[0]))
}

#[test]
fn connections_outlive_the_data_process_and_the_supervisor() {
    let test = "connections_outlive_the_data_process_and_the_supervisor";
    let Some(cards) = Cards::new(test, 2) else { return };
    let mut daemon = Daemon::start();
    daemon.apply(&cards.switch(""));
    assert!(pings(&cards.far[0], "10.77.0.2"));
    std::thread::scope(|scope| {
        let traffic = scope.spawn(|| (0..8).for_each(|_| cards.both_ways(16 << 20)));
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
    daemon.kill();
    cards.both_ways(1 << 20);
    daemon.start_again();
    cards.both_ways(1 << 20);
    assert_eq!(daemon.ports("vale0").len(), 2);
    assert!(daemon.ports("vale0").iter().all(|(_, state)| state == "attached"));
}

/// Returns what a port reports about its interface.
fn info(daemon: &Daemon, port: &str) -> Value {
    daemon.get(&format!("/v1/switches/vale0/ports/{port}"))
}

#[test]
fn an_interface_that_is_deleted_is_a_state_of_its_port_which_comes_back_with_it() {
    let test = "an_interface_that_is_deleted_is_a_state_of_its_port_which_comes_back_with_it";
    let engines = [", engine = \"packet\"", ", engine = \"xdp\""];
    for engine in engines {
        if engine.contains("xdp") && !may_load_programs() {
            return harness::skip(test, NO_PROGRAMS);
        }
        let Some(cards) = Cards::new(test, 2) else { return };
        cards.complete_checksums();
        let mut daemon = Daemon::start();
        daemon.apply(&cards.switch(engine));
        assert!(pings(&cards.far[0], "10.77.0.2"), "{engine}: {}", daemon.log());
        let before = daemon.data_process("vale0");
        // This also holds while no supervisor runs, and while another data process is started.
        for round in 0..3 {
            ip(&cards.host, "link del c1");
            match round {
                0 => daemon.wait_for("the port to wait", |daemon| {
                    let port = info(daemon, "p1");
                    port["state"] == "waiting"
                        && harness::text(&port["unconnected"])
                            .starts_with("interface c1 is gone, for")
                }),
                1 => {
                    daemon.kill();
                    daemon.start_again();
                }
                _ => harness::kill_process(daemon.data_process("vale0")),
            }
            cards.plug(1);
            cards.complete_checksums();
            daemon.wait_for("the port to be back", |daemon| {
                info(daemon, "p1")["state"] == "attached"
            });
            assert!(pings(&cards.far[0], "10.77.0.2"), "{engine} {round}: {}", daemon.log());
            cards.both_ways(1 << 20);
            assert_eq!(daemon.data_process("vale0") == before, round < 2, "{engine} {round}");
        }
    }
}

#[test]
fn ports_show_the_engine_the_link_and_the_counters_of_their_interface() {
    let test = "ports_show_the_engine_the_link_and_the_counters_of_their_interface";
    let Some(cards) = Cards::new(test, 1) else { return };
    let mut daemon = Daemon::start();
    daemon.apply(&cards.switch(""));
    daemon
        .wait_for("the link", |daemon| info(daemon, "p1")["interface"]["link"]["carrier"] == true);
    let interface = info(&daemon, "p1")["interface"].clone();
    assert_eq!(interface["engine"], "packet");
    assert!(harness::text(&interface["why"]).starts_with("veth has no zero-copy"), "{interface}");
    let link = &interface["link"];
    assert_eq!((&link["mtu"], &link["kind"]), (&1500.into(), &"veth".into()), "{link}");
    assert_eq!(link["promiscuous"], true);
    let sent = cards.far[0].enter(|| UdpSocket::bind("10.77.0.1:0").unwrap());
    sent.set_broadcast(true).unwrap();
    sent.send_to(b"hello", ("10.77.0.255", 9)).unwrap();
    daemon.wait_for("a counter to move", |daemon| {
        let counters = &info(daemon, "p1")["interface"]["link"]["statistics"];
        counters["rx_packets"].as_u64().unwrap() > 0
    });
    let shown = daemon.done(&["port", "show", "vale0:p1"]);
    for word in
        ["packet: veth has no zero-copy", "up, carrier, promiscuous, MTU 1500", "rx_packets"]
    {
        assert!(shown.contains(word), "{shown}");
    }
    for (change, word) in [("c1 down", "is down"), ("c1 up", "")] {
        ip(&cards.host, &format!("link set {change}"));
        daemon.wait_for(change, |daemon| {
            let port = info(daemon, "p1");
            let state = if word.is_empty() { "attached" } else { "waiting" };
            port["state"] == state && port["unconnected"].as_str().unwrap_or("").contains(word)
        });
    }
}

#[test]
fn connections_cross_af_xdp_and_outlive_both_processes() {
    let test = "connections_cross_af_xdp_and_outlive_both_processes";
    if !may_load_programs() {
        return harness::skip(test, NO_PROGRAMS);
    }
    let Some(cards) = Cards::new(test, 2) else { return };
    cards.complete_checksums();
    let mut daemon = Daemon::start();
    daemon.apply(&cards.switch(", engine = \"xdp\""));
    let interface = info(&daemon, "p1")["interface"].clone();
    assert_eq!(interface["engine"], "xdp", "{}", daemon.log());
    assert!(harness::text(&interface["why"]).starts_with("as configured"), "{interface}");
    assert!(pings(&cards.far[0], "10.77.0.2") && pings(&cards.far[1], "fd77::1"));
    cards.both_ways(8 << 20);
    daemon.wait_for("the sums to agree", |daemon| unaccounted(daemon) == 0);
    std::thread::scope(|scope| {
        let traffic = scope.spawn(|| (0..4).for_each(|_| cards.both_ways(8 << 20)));
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
    daemon.kill();
    cards.both_ways(1 << 20);
    daemon.start_again();
    cards.both_ways(1 << 20);
    // The host's stack sees nothing of what is the port's.
    let addressed = cards.host.run(&["ip", "-s", "link", "show", "c1"]);
    assert!(addressed.contains("prog/xdp"), "{addressed}");
    daemon.apply("[switch.vale0]");
    let released = cards.host.run(&["ip", "link", "show", "c1"]);
    assert!(!released.contains("prog/xdp"), "{released}");
}

#[test]
fn frames_to_an_interface_that_is_down_are_counted_and_it_comes_back() {
    let test = "frames_to_an_interface_that_is_down_are_counted_and_it_comes_back";
    let Some(cards) = Cards::new(test, 1) else { return };
    let mut daemon = Daemon::start();
    daemon.apply(&cards.switch(""));
    let mut port = daemon.open("vale0:client").unwrap();
    let frame = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1, 8, 0x88], &[0; 46]].concat();
    ip(&cards.host, "link set c1 down");
    daemon.wait_for("a drop", |daemon| {
        send(&mut port, &frame);
        daemon.counters("p1")["out_drops"]["down"].as_u64().unwrap_or(0) > 0
    });
    ip(&cards.host, "link set c1 up");
    let before = daemon.counters("p1")["out_frames"].as_u64().unwrap();
    daemon.wait_for("frames to leave again", |daemon| {
        send(&mut port, &frame);
        daemon.counters("p1")["out_frames"].as_u64().unwrap() > before
    });
    let from = cards.far[0].enter(|| UdpSocket::bind("10.77.0.1:0").unwrap());
    from.set_broadcast(true).unwrap();
    daemon.wait_for("frames to come again", |_| {
        from.send_to(b"hello", ("10.77.0.255", 9)).unwrap();
        let got = port.receive(64).count();
        port.flush().unwrap();
        got > 0
    });
}

#[test]
fn regression_a_worker_sleeps_while_frames_wait_for_an_interface_that_is_down() {
    let test = "regression_a_worker_sleeps_while_frames_wait_for_an_interface_that_is_down";
    if !may_load_programs() {
        return harness::skip(test, NO_PROGRAMS);
    }
    let Some(cards) = Cards::new(test, 1) else { return };
    let mut daemon = Daemon::start();
    daemon.apply(&cards.switch(", engine = \"xdp\""));
    let mut port = daemon.open("vale0:client").unwrap();
    let frame = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1, 8, 0x88], &[0; 46]].concat();
    let (count, out) = (64, |daemon: &Daemon| daemon.counters("p1")["out_frames"].as_u64());
    let sleeps = |daemon: &Daemon| -> u64 {
        let stats = daemon.get("/v1/stats");
        stats["switches"][0]["workers"][0]["sleeps"].as_u64().unwrap()
    };
    let left = |daemon: &Daemon| -> u64 {
        let statistics = &info(daemon, "p1")["interface"]["link"]["statistics"];
        statistics["tx_packets"].as_u64().unwrap()
    };
    ip(&cards.host, "link set c1 down");
    let before = (out(&daemon).unwrap(), left(&daemon));
    daemon.wait_for("frames to wait for the interface", |daemon| {
        send(&mut port, &frame);
        out(daemon) >= Some(before.0 + count)
    });
    // Each attempt to send the waiting frames ends a sleep of 100 ms.
    let (begun, slept) = (std::time::Instant::now(), sleeps(&daemon));
    daemon.wait_for("the worker to sleep between attempts", |daemon| sleeps(daemon) > slept + 6);
    assert!(begun.elapsed().as_millis() > 300, "{:?} for six sleeps", begun.elapsed());
    assert_eq!(left(&daemon), before.1);
    ip(&cards.host, "link set c1 up");
    daemon.wait_for("frames to leave, though none follows", |daemon| {
        left(daemon) >= before.1 + count
    });
}

/// The MTU of a port's interface.
fn mtu_of(daemon: &Daemon, port: &str) -> u64 {
    info(daemon, port)["interface"]["link"]["mtu"].as_u64().unwrap()
}

/// Sets the MTU of the first port. Returns whether that was done, and the error.
fn set_mtu(daemon: &Daemon, mtu: &str) -> (bool, String) {
    let (code, _, error) = daemon.run(&["port", "set", "vale0:p1", "--mtu", mtu]);
    (code == Some(0), error)
}

#[test]
fn the_mtu_of_an_interface_is_raised_to_its_ports_and_never_lowered() {
    let test = "the_mtu_of_an_interface_is_raised_to_its_ports_and_never_lowered";
    let Some(cards) = Cards::new(test, 2) else { return };
    let daemon = Daemon::start();
    let of = |port: &str| mtu_of(&daemon, port);
    let set = |mtu: &str| set_mtu(&daemon, mtu);
    ip(&cards.host, "link set c2 mtu 1280");
    daemon.apply(&cards.switch(""));
    assert_eq!((of("p1"), of("p2")), (1500, 1280), "the usual MTU changes no interface");
    assert!(set("9000").0 && of("p1") == 9000);
    assert!(set("1500").0 && of("p1") == 9000);
}

#[test]
fn an_interface_keeps_its_mtu_if_af_xdp_has_no_room_for_a_larger_one() {
    let test = "an_interface_keeps_its_mtu_if_af_xdp_has_no_room_for_a_larger_one";
    if !may_load_programs() {
        return harness::skip(test, NO_PROGRAMS);
    }
    let Some(cards) = Cards::new(test, 2) else { return };
    let daemon = Daemon::start();
    let of = |port: &str| mtu_of(&daemon, port);
    let set = |mtu: &str| set_mtu(&daemon, mtu);
    daemon.apply(&cards.switch(", engine = \"xdp\""));
    for (mtu, fits) in [("1700", true), ("3000", false), ("9000", false)] {
        let (done, error) = set(mtu);
        assert_eq!(done, fits, "{mtu}: {error}");
        assert!(fits || error.contains("no room") && error.contains("add it with"), "{error}");
        assert_eq!(of("p1"), 1700);
    }
    daemon.apply("[switch.vale0]");
    let netns = cards.host.id().to_string();
    let more = ["--netns", &netns, "--engine", "xdp", "--mtu", "9000"];
    let add = [&["port", "add", "vale0:huge", "--interface", "c1"][..], &more].concat();
    let (code, _, error) = daemon.run(&add);
    assert!(code == Some(1) && error.contains("no room"), "{error}");
    let links = cards.host.run(&["ip", "link", "show", "c1"]);
    assert!(links.contains("mtu 1700"), "{links}");
    let jumbo = cards.switch(", engine = \"xdp\"").replace("kind.", "mtu = 3000\nkind.");
    daemon.apply(&jumbo);
    assert_eq!((of("p1"), of("p2")), (3000, 3000));
}

/// The link partner sends what it likes: garbage, the shortest and the longest frames, and floods
/// of them.
#[test]
fn a_hostile_link_partner_harms_no_other_port() {
    let Some(cards) = Cards::new("a_hostile_link_partner_harms_no_other_port", 3) else { return };
    let mut daemon = Daemon::start();
    daemon.apply(&cards.switch(""));
    assert!(pings(&cards.far[0], "10.77.0.2"));
    ip(&cards.far[2], "link set u0 mtu 9000");
    ip(&cards.host, "link set c3 mtu 9000");
    let before = daemon.data_process("vale0");
    let stop = std::sync::atomic::AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        let flood = scope.spawn(|| cards.far[2].enter(|| garbage("u0", &stop)));
        cards.both_ways(8 << 20);
        daemon.wait_for("a frame that is too long", |daemon| {
            daemon.counters("p3")["in_drops"]["too_long"].as_u64().unwrap_or(0) > 0
        });
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        flood.join().unwrap()
    });
    assert!(sent > 1000, "{sent}");
    assert!(pings(&cards.far[0], "10.77.0.2"));
    assert_eq!(daemon.data_process("vale0"), before);
    daemon.wait_for("the sums to agree", |daemon| unaccounted(daemon) == 0);
}

/// Sends frames of random bytes and lengths by an interface until `stop`. Returns how many.
fn garbage(ifname: &str, stop: &std::sync::atomic::AtomicBool) -> u64 {
    let socket = harness::raw::Socket::open(ifname);
    let (mut seed, mut sent, mut bytes) = (1u64, 0, vec![0; 9014]);
    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
        for byte in bytes.chunks_mut(8).take(16) {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            byte.copy_from_slice(&seed.to_le_bytes()[..byte.len()]);
        }
        // The garbage has unicast, broadcast and multicast addresses, and looks like IPv4, IPv6 or
        // a tagged frame.
        bytes[0] = [2, 0xff, 1, bytes[0]][seed as usize % 4];
        bytes[12..14]
            .copy_from_slice(&[[8, 0], [0x86, 0xdd], [0x81, 0], [9, 9]][(seed >> 8) as usize % 4]);
        let len = [14, 15, 60, 1514, 1518, 9014][(seed >> 16) as usize % 6];
        sent += u64::from(socket.send(&bytes[..len]));
    }
    sent
}

#[test]
fn an_interface_that_does_not_exist_or_is_taken_is_said_so() {
    let test = "an_interface_that_does_not_exist_or_is_taken_is_said_so";
    let Some(cards) = Cards::new(test, 1) else { return };
    let daemon = Daemon::start();
    daemon.apply(&cards.switch(""));
    let netns = cards.host.id().to_string();
    let add = |ifname: &str| {
        daemon.run(&["port", "add", "vale0:x", "--interface", ifname, "--netns", &netns])
    };
    for (ifname, words) in [
        ("c9", ["There is no interface c9", "ip link"]),
        ("c1", ["Interface c1", "give each port an interface of its own"]),
    ] {
        let (code, _, error) = add(ifname);
        assert_ne!(code, Some(0));
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}
