//! VXLAN tunnels between hosts that are network namespaces: to the kernel's VXLAN, and to another
//! toklat.
//!
//! Each test makes its hosts on a link, and a daemon whose tunnels and taps are in their
//! namespaces.

use std::net::UdpSocket;
use std::time::Duration;

use dataplane::attach::virtio::message::code;
use harness::Daemon;
use harness::frames::send;
use harness::front_end::{FrontEnd, reply, say};
use harness::namespace::Namespace;
use harness::underlay::{Underlay, complete_checksums, ip, pings, transfer, try_ip};
use nic::virtio::Features;
use port::stats::{TurnTime, percentile};
use serde_json::{Value, json};

/// Returns the namespaces of a test; if there can be none, prints why and returns `None`.
fn hosts(test: &str, count: usize) -> Option<Underlay> {
    Underlay::new(count).inspect_err(|why| harness::skip(test, why)).ok()
}

/// A switch with a tap in `guest` and a tunnel in `host`; `tunnel` is the inside of its kind.
fn switch(name: &str, (guest, mtu): (&Namespace, u16), host: &Namespace, tunnel: &str) -> String {
    format!(
        r#"
        [switch.{name}.port.guest]
        mtu = {mtu}
        kind = {{ tap = {{ ifname = "tap-{name}", netns = "{}" }} }}
        [switch.{name}.port.fabric]
        kind = {{ vxlan = {{ {tunnel}, netns = "{}" }} }}
        "#,
        guest.id(),
        host.id()
    )
}

/// Gives an address to the tap that a switch has in a namespace.
fn address(guest: &Namespace, switch: &str, address: &str) {
    ip(guest, &format!("address add {address} dev tap-{switch}"));
}

fn port<'v>(stats: &'v Value, switch: &str, port: &str) -> &'v Value {
    let named = |list: &'v Value, name: &str| {
        list.as_array().unwrap().iter().find(|item| item["name"] == name).unwrap()
    };
    named(&named(&stats["switches"], switch)["ports"], port)
}

fn drops(daemon: &Daemon, switch: &str, name: &str, reason: &str) -> u64 {
    let stats = daemon.get("/v1/stats");
    let port = port(&stats, switch, name);
    let count = |side: &str| port[side][reason].as_u64().unwrap_or(0);
    count("in_drops") + count("out_drops")
}

/// A switch and the kernel's VXLAN as each other's only peer, by these addresses of hosts 1 and 2.
fn with_the_kernel(test: &str, (ours, theirs): (&str, &str), how: &str) {
    let Some(underlay) = hosts(test, 2) else { return };
    let how = format!("local {theirs} remote {ours} dstport 4789 {how}");
    if !underlay.kernel_tunnel(2, (100, &how), "192.168.7.2/24") {
        return harness::skip(test, "the kernel has no VXLAN");
    }
    let guest = Namespace::new().unwrap();
    let daemon = Daemon::start();
    let tunnel = format!(r#"vni = 100, local = "{ours}", peers = ["{theirs}"]"#);
    daemon.apply(&switch("vale0", (&guest, 1400), &underlay.hosts[0], &tunnel));
    address(&guest, "vale0", "192.168.7.1/24");
    assert!(pings(&guest, "192.168.7.2") && pings(&underlay.hosts[1], "192.168.7.1"));
    transfer(&guest, (&underlay.hosts[1], "192.168.7.2"), 8 << 20);
    transfer(&underlay.hosts[1], (&guest, "192.168.7.1"), 8 << 20);
    let info = daemon.get("/v1/switches/vale0/ports/fabric");
    let overhead = if ours.contains(':') { 70 } else { 50 };
    assert_eq!(info["tunnel"]["inner_mtu"], json!(1500 - overhead), "{info}");
    let peer = &info["tunnel"]["peers"][0];
    assert_eq!(peer["address"], theirs);
    for count in ["in_bytes", "out_bytes"] {
        assert!(peer[count].as_u64().unwrap() > 8 << 20, "{count}: {peer}");
    }
    let labels = format!("{{switch=\"vale0\",port=\"fabric\",peer=\"{theirs}\",vni=\"100\"}}");
    let line = format!("toklat_tunnel_peer_in_frames_total{labels}");
    assert!(harness::text(&daemon.get("/metrics")).contains(&line));
    let shown = daemon.done(&["port", "show", "vale0:fabric"]);
    assert!(shown.contains("VXLAN 100 at") && shown.lines().last().unwrap().contains(theirs));
    let fdb = daemon.get("/v1/switches/vale0/fdb");
    let far = fdb.as_array().unwrap().iter().find(|entry| entry["port"] == "fabric").unwrap();
    assert_eq!(far["origin"], "tunnel", "{fdb}");
}

#[test]
fn the_kernels_vxlan_over_ipv4() {
    with_the_kernel("the_kernels_vxlan_over_ipv4", ("10.99.0.1", "10.99.0.2"), "");
}

#[test]
fn the_kernels_vxlan_over_ipv6() {
    let how = "udp6zerocsumrx udp6zerocsumtx";
    with_the_kernel("the_kernels_vxlan_over_ipv6", ("fd99::1", "fd99::2"), how);
}

/// Objective: the kernel's Geneve and a switch are each other's peers.
///
/// Steps: connections both ways, of one segment and of one that carries a VLAN; a datagram with
/// options that are not critical arrives, one with critical options is counted.
#[test]
fn the_kernels_geneve() {
    let test = "the_kernels_geneve";
    let Some(underlay) = hosts(test, 2) else { return };
    let there = &underlay.hosts[1];
    complete_checksums(there);
    for (vni, net) in [(100, 7), (200, 8)] {
        let link = format!("link add gnv{net} type geneve id {vni} remote 10.99.0.1 dstport 6081");
        if !try_ip(there, &link) {
            return harness::skip(test, "the kernel has no Geneve");
        }
        ip(there, &format!("address add 192.168.{net}.2/24 dev gnv{net}"));
        ip(there, &format!("link set gnv{net} mtu 1400 up"));
    }
    let guests = [Namespace::new().unwrap(), Namespace::new().unwrap()];
    let mut daemon = Daemon::start();
    let tunnel = |segments: &str| {
        format!(
            r#"{segments}, encapsulation = "geneve", local = "10.99.0.1", peers = ["10.99.0.2"]"#
        )
    };
    let host = &underlay.hosts[0];
    let plain = switch("vale0", (&guests[0], 1400), host, &tunnel("vni = 100"));
    let tagged = tunnel(r#"vlans = { "20" = 200 }"#);
    let tagged = switch("vale1", (&guests[1], 1400), host, &tagged);
    daemon.apply(&(plain + &tagged.replace("mtu = 1400", "mtu = 1400\nvlan.access = 20")));
    for (number, net) in [(0, 7), (1, 8)] {
        let (guest, inside) = (&guests[number], format!("192.168.{net}.2"));
        address(guest, &format!("vale{number}"), &format!("192.168.{net}.1/24"));
        assert!(pings(guest, &inside), "{inside}");
        transfer(guest, (there, &inside), 4 << 20);
        transfer(there, (guest, &format!("192.168.{net}.1")), 4 << 20);
    }
    let shown = daemon.done(&["port", "show", "vale0:fabric"]);
    assert!(shown.contains("Geneve 100 at"), "{shown}");
    let mut port = daemon.open("vale0:spy").unwrap();
    let socket = there.enter(|| UdpSocket::bind(("10.99.0.2", 0)).unwrap());
    let datagram = |first: u8, second: u8| {
        let header = [first, second, 0x65, 0x58, 0, 0, 100, 0];
        let frame = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 9], &[0x88, 0xb5], &[7; 46]].concat();
        [&header[..], &[0, 1, 2, 1, 9, 9, 9, 9], &frame].concat()
    };
    let before = drops(&daemon, "vale0", "fabric", "encapsulation");
    socket.send_to(&datagram(2, 0x40), "10.99.0.1:6081").unwrap();
    daemon.wait_for("a critical option", |daemon| {
        drops(daemon, "vale0", "fabric", "encapsulation") == before + 1
    });
    socket.send_to(&datagram(2, 0), "10.99.0.1:6081").unwrap();
    daemon.wait_for("the frame behind options", |_| {
        let mut bytes = [0; 128];
        let got = port.receive(64).any(|frame| {
            let len = frame.copy_out(&mut bytes);
            bytes[12..14] == [0x88, 0xb5] && bytes[14..len] == [7; 46]
        });
        port.flush().unwrap();
        got
    });
}

#[test]
fn two_switches_of_two_hosts_are_one_and_outlive_their_processes() {
    let test = "two_switches_of_two_hosts_are_one_and_outlive_their_processes";
    ["vxlan", "geneve"].iter().for_each(|way| two_switches_by(way, test));
}

fn two_switches_by(way: &str, test: &str) {
    let Some(underlay) = hosts(test, 2) else { return };
    let by = |net: &str| net.replace("vni = ", &format!("encapsulation = '{way}', vni = "));
    let guests = [Namespace::new().unwrap(), Namespace::new().unwrap()];
    let mut daemon = Daemon::start();
    let net: String = [(0, 1, 2), (1, 2, 1)]
        .map(|(at, own, other)| {
            let tunnel =
                format!(r#"vni = 7, local = "10.99.0.{own}", peers = ["10.99.0.{other}"]"#);
            switch(&format!("vale{at}"), (&guests[at], 1450), &underlay.hosts[at], &tunnel)
        })
        .concat();
    let net = by(&net);
    daemon.apply(&net);
    address(&guests[0], "vale0", "192.168.7.1/24");
    address(&guests[1], "vale1", "192.168.7.2/24");
    let both_ways = || {
        transfer(&guests[0], (&guests[1], "192.168.7.2"), 4 << 20);
        transfer(&guests[1], (&guests[0], "192.168.7.1"), 4 << 20);
    };
    assert!(pings(&guests[0], "192.168.7.2"));
    both_ways();
    // Each process is killed in turn, then all of them.
    let before = daemon.data_process("vale0");
    harness::kill_process(before);
    daemon.wait_for("another data process", |daemon| {
        let info = daemon.get("/v1/switches/vale0");
        info["state"] == "running" && info["pid"] != before
    });
    assert!(pings(&guests[0], "192.168.7.2"));
    both_ways();
    daemon.kill();
    both_ways();
    daemon.start_again();
    both_ways();
    let peer = |daemon: &Daemon| daemon.get("/v1/switches/vale0/ports/fabric")["tunnel"].clone();
    assert!(peer(&daemon)["peers"][0]["in_bytes"].as_u64().unwrap() > 12 << 20, "counted anew");
    // A supervisor that did not create the sockets can add others and remove them.
    let third = Namespace::new().unwrap();
    let tunnel = r#"vni = 8, local = "10.99.0.1", peers = ["10.99.0.2"]"#;
    let more = switch("vale2", (&third, 1450), &underlay.hosts[0], tunnel);
    daemon.apply(&format!("{net}{}", by(&more)));
    both_ways();
    daemon.apply(&net);
    both_ways();
}

#[test]
fn segments_of_one_host_are_told_apart() {
    let test = "segments_of_one_host_are_told_apart";
    let Some(underlay) = hosts(test, 2) else { return };
    let daemon = Daemon::start();
    let vnis = [100, 200, 300];
    let guests: Vec<_> = vnis.iter().map(|_| Namespace::new().unwrap()).collect();
    let mut net = String::new();
    for (vni, guest) in vnis.into_iter().zip(&guests) {
        let how = "local 10.99.0.2 remote 10.99.0.1 dstport 4789";
        let inside = format!("192.168.{}.2/24", vni / 100);
        if !underlay.kernel_tunnel(2, (vni, how), &inside) {
            return harness::skip(test, "the kernel has no VXLAN");
        }
        let tunnel = format!(r#"vni = {vni}, local = "10.99.0.1", peers = ["10.99.0.2"]"#);
        net += &switch(&format!("vale{vni}"), (guest, 1400), &underlay.hosts[0], &tunnel);
    }
    daemon.apply(&net);
    for (vni, guest) in vnis.into_iter().zip(&guests) {
        address(guest, &format!("vale{vni}"), &format!("192.168.{}.1/24", vni / 100));
        assert!(pings(guest, &format!("192.168.{}.2", vni / 100)), "VNI {vni}");
    }
    let taken = json!({ "name": "again", "kind": { "vxlan":
        { "vni": 100, "local": "10.99.0.1", "peers": ["10.99.0.2"],
          "netns": underlay.hosts[0].id().to_string() } } });
    let (status, error) = daemon.ask("POST", "/v1/switches/vale200/ports", &taken);
    assert!(status >= 400 && error.to_string().contains("vale100:fabric"), "{error}");
}

/// Objective: each VLAN of a tunnel is a segment of its own, and a host has many tunnels of those.
///
/// Steps: two switches of one host have five VLANs each, ten VNIs in all, to the kernel's VXLAN;
/// guests of all reach their own segment; processes are killed, in turn; a VLAN goes, and others
/// stay; frames of unknown VNIs and frames with tags are counted.
#[test]
fn vlans_have_segments_of_their_own_and_ten_segments_share_a_host() {
    let test = "vlans_have_segments_of_their_own_and_ten_segments_share_a_host";
    let Some(underlay) = hosts(test, 2) else { return };
    let how = "local 10.99.0.2 remote 10.99.0.1 dstport 4789";
    let all: Vec<u32> = (1..=10).collect();
    for vlan in &all {
        if !underlay.kernel_tunnel(2, (10_000 + vlan, how), &format!("192.168.{vlan}.2/24")) {
            return harness::skip(test, "the kernel has no VXLAN");
        }
    }
    let guests: Vec<_> = all.iter().map(|_| Namespace::new().unwrap()).collect();
    let host = underlay.hosts[0].id();
    let net = |vlans: &[u32]| -> String {
        let guest = |vlan: &u32| {
            let (switch, netns) = (vlan % 2, guests[*vlan as usize - 1].id());
            format!(
                r#"
                [switch.vale{switch}.port.g{vlan}]
                mtu = 1400
                vlan.access = {vlan}
                kind = {{ tap = {{ ifname = "t{vlan}", netns = "{netns}" }} }}
                "#
            )
        };
        let tunnel = |switch: u32| {
            let its = vlans.iter().filter(|vlan| *vlan % 2 == switch);
            let map: Vec<_> = its.map(|vlan| format!(r#""{vlan}" = {}"#, 10_000 + vlan)).collect();
            format!(
                r#"
                [switch.vale{switch}.port.fabric]
                kind.vxlan = {{ vlans = {{ {} }}, local = "10.99.0.1", peers = ["10.99.0.2"], netns = "{host}" }}
                "#,
                map.join(", ")
            )
        };
        all.iter().map(guest).chain([tunnel(0), tunnel(1)]).collect()
    };
    let mut daemon = Daemon::start();
    daemon.apply(&net(&all));
    for (vlan, guest) in all.iter().zip(&guests) {
        ip(guest, &format!("address add 192.168.{vlan}.1/24 dev t{vlan}"));
    }
    let reach = |vlans: &[u32]| {
        for vlan in vlans {
            let (guest, inside) = (&guests[*vlan as usize - 1], format!("192.168.{vlan}.2"));
            assert!(pings(guest, &inside), "{vlan}");
            transfer(guest, (&underlay.hosts[1], &inside), 256 << 10);
            transfer(&underlay.hosts[1], (guest, &format!("192.168.{vlan}.1")), 256 << 10);
        }
    };
    reach(&all);
    let info = daemon.get("/v1/switches/vale0/ports/fabric");
    let peers = info["tunnel"]["peers"].as_array().unwrap();
    let vnis: Vec<_> = peers.iter().map(|peer| peer["vni"].as_u64().unwrap()).collect();
    assert_eq!(vnis, [10_002, 10_004, 10_006, 10_008, 10_010]);
    assert!(peers.iter().all(|peer| peer["in_bytes"].as_u64() > Some(256 << 10)), "{info}");
    let fdb = daemon.get("/v1/switches/vale0/fdb");
    let far = fdb.as_array().unwrap().iter().filter(|entry| entry["port"] == "fabric");
    let mut vlans: Vec<_> = far.map(|entry| entry["vlan"].as_u64().unwrap()).collect();
    vlans.sort_unstable();
    assert_eq!(vlans, [2, 4, 6, 8, 10], "{fdb}");
    let before = daemon.data_process("vale0");
    harness::kill_process(before);
    daemon.wait_for("another data process", |daemon| {
        let info = daemon.get("/v1/switches/vale0");
        info["state"] == "running" && info["pid"] != before
    });
    reach(&all);
    daemon.kill();
    daemon.start_again();
    reach(&all);
    // VLAN 4 leaves its tunnel; what comes for it is counted.
    let left: Vec<u32> = all.iter().copied().filter(|vlan| *vlan != 4).collect();
    daemon.apply(&net(&left));
    reach(&left);
    let unknown = |daemon: &Daemon| {
        ["vale0", "vale1"].map(|switch| drops(daemon, switch, "fabric", "unknown_vni")).iter().sum()
    };
    let before: u64 = unknown(&daemon);
    ip(&underlay.hosts[1], "neigh flush all");
    let ask = ["ping", "-n", "-c", "1", "-W", "1", "192.168.4.1"];
    assert!(!underlay.hosts[1].command(&ask).output().unwrap().status.success());
    daemon.wait_for("unknown VNIs", |daemon| unknown(daemon) > before);
    let socket = underlay.hosts[1].enter(|| UdpSocket::bind(("10.99.0.2", 0)).unwrap());
    let before = drops(&daemon, "vale0", "fabric", "vlan");
    let [_, a, b, c] = 10_002u32.to_be_bytes();
    let header = [8, 0, 0, 0, a, b, c, 0];
    let tagged = [&header[..], &[0xff; 6], &[2, 0, 0, 0, 0, 9, 0x81, 0, 0, 6], &[0; 48]].concat();
    socket.send_to(&tagged, "10.99.0.1:4789").unwrap();
    daemon.wait_for("a tag", |daemon| drops(daemon, "vale0", "fabric", "vlan") == before + 1);
}

#[test]
fn strangers_other_segments_and_nonsense_are_counted_and_go_nowhere() {
    let test = "strangers_other_segments_and_nonsense_are_counted_and_go_nowhere";
    let Some(underlay) = hosts(test, 2) else { return };
    ip(&underlay.hosts[1], "address add 10.99.0.66/24 dev u0");
    let mut daemon = Daemon::start();
    let guest = Namespace::new().unwrap();
    let tunnel = r#"vni = 100, local = "10.99.0.1", peers = ["10.99.0.2"]"#;
    daemon.apply(&switch("vale0", (&guest, 1400), &underlay.hosts[0], tunnel));
    let mut port = daemon.open("vale0:spy").unwrap();
    let (peer, stranger) = underlay.hosts[1].enter(|| {
        let bind = |ip: &str| UdpSocket::bind((ip, 0)).unwrap();
        (bind("10.99.0.2"), bind("10.99.0.66"))
    });
    let datagram = |vni: u8, frame: &[u8]| [&[8, 0, 0, 0, 0, 0, vni, 0], frame].concat();
    let frame = [[0xff; 6], [2, 0, 0, 0, 0, 9]].concat();
    let frame = [&frame[..], &[0; 48]].concat();
    let table: [(&UdpSocket, Vec<u8>, &str); 5] = [
        (&stranger, datagram(100, &frame), "unknown_peer"),
        (&peer, datagram(101, &frame), "unknown_vni"),
        (&peer, datagram(100, &frame[..13]), "runt"),
        (&peer, vec![0; 70], "encapsulation"),
        (&peer, vec![8], "encapsulation"),
    ];
    for (socket, bytes, reason) in &table {
        let before = drops(&daemon, "vale0", "fabric", reason);
        socket.send_to(bytes, "10.99.0.1:4789").unwrap();
        daemon.wait_for(reason, |daemon| drops(daemon, "vale0", "fabric", reason) == before + 1);
    }
    assert!(!format!("{}", daemon.get("/v1/switches/vale0/fdb")).contains("02:00:00:00:00:09"));
    // The same frame as it should be arrives.
    peer.send_to(&datagram(100, &frame), "10.99.0.1:4789").unwrap();
    daemon.wait_for("the frame", |_| {
        let got = port.receive(64).count();
        port.flush().unwrap();
        got == 1
    });
}

#[test]
fn frames_too_long_for_the_path_are_counted_as_such() {
    let test = "frames_too_long_for_the_path_are_counted_as_such";
    let Some(underlay) = hosts(test, 2) else { return };
    let guests = [Namespace::new().unwrap(), Namespace::new().unwrap()];
    let mut daemon = Daemon::start();
    let net = [(0, 1, 2), (1, 2, 1)].map(|(at, own, other)| {
        let tunnel = format!(r#"vni = 7, local = "10.99.0.{own}", peers = ["10.99.0.{other}"]"#);
        switch(&format!("vale{at}"), (&guests[at], 1500), &underlay.hosts[at], &tunnel)
    });
    daemon.apply(&net.concat());
    address(&guests[0], "vale0", "192.168.7.1/24");
    address(&guests[1], "vale1", "192.168.7.2/24");
    assert!(pings(&guests[0], "192.168.7.2"));
    let ping = |bytes: &str| {
        let args = ["ping", "-n", "-c", "1", "-W", "1", "-s", bytes, "192.168.7.2"];
        guests[0].command(&args).output().unwrap().status.success()
    };
    // 1450 bytes of IP fit, of which 28 bytes are headers.
    assert!(ping("1422"));
    assert!(!ping("1423"));
    daemon.wait_for("the drop", |daemon| drops(daemon, "vale0", "fabric", "too_long") == 1);
    let info = daemon.get("/v1/switches/vale0/ports/fabric");
    assert_eq!(info["tunnel"]["peers"][0]["too_long"], 1, "{info}");
    assert!(ping("1422"), "what fits does so still");
    // Both guests believe in an MTU of 1500 bytes. They are told of the smaller one, and TCP goes
    // on.
    transfer(&guests[0], (&guests[1], "192.168.7.2"), 2 << 20);
    transfer(&guests[1], (&guests[0], "192.168.7.1"), 2 << 20);
    let route = guests[0].run(&["ip", "route", "get", "192.168.7.2"]);
    assert!(route.contains("mtu 1450"), "{route}");
}

/// Objective: TCP between guests with a larger MTU loses nothing to it where a tunnel clamps.
///
/// Steps: two switches, of which at most the first clamps; connections both ways over IPv4 and
/// IPv6; two more whose guests are in a VLAN, so that tags cross the tunnel; two whose tunnel has a
/// segment for the VLAN; the kernel's VXLAN.
#[test]
fn segments_fit_the_inner_mtu_from_the_first_where_a_tunnel_clamps() {
    let test = "segments_fit_the_inner_mtu_from_the_first_where_a_tunnel_clamps";
    for clamps in [false, true] {
        let Some(underlay) = hosts(test, 3) else { return };
        let how = "local 10.99.0.3 remote 10.99.0.1 dstport 4789";
        if !underlay.kernel_tunnel(3, (8, how), "192.168.8.3/24") {
            return harness::skip(test, "the kernel has no VXLAN");
        }
        ip(&underlay.hosts[2], "link set vx8 mtu 1500");
        let guests = [(); 7].map(|()| Namespace::new().unwrap());
        let daemon = Daemon::start();
        let all = [
            (0, 7, 1, 2),
            (1, 7, 2, 1),
            (2, 8, 1, 3),
            (3, 9, 1, 2),
            (4, 9, 2, 1),
            (5, 5, 1, 2),
            (6, 5, 2, 1),
        ];
        let net = all.map(|(at, vni, own, other)| {
            let tunnel =
                format!(r#"vni = {vni}, local = "10.99.0.{own}", peers = ["10.99.0.{other}"]"#);
            let tunnel = match at {
                5.. => tunnel.replace("vni = 5", r#"vlans = { "5" = 5 }"#),
                _ => tunnel,
            };
            let clamps = if clamps && ![1, 4, 6].contains(&at) { ", clamp_mss = true" } else { "" };
            let host = &underlay.hosts[own - 1];
            let tunnel = format!("{tunnel}{clamps}");
            let net = switch(&format!("vale{at}"), (&guests[at], 1500), host, &tunnel);
            let access = net.replace("mtu = 1500", "mtu = 1500\nvlan.access = 5");
            match at {
                0..3 => net,
                3..5 => access + "vlan.trunk = { allowed = [5] }",
                _ => access,
            }
        });
        daemon.apply(&net.concat());
        for (at, net, own, _) in all {
            let number = if own == 1 { 1 } else { 2 };
            let inside = format!("fd0{net}::{number}/64 dev tap-vale{at} nodad");
            address(&guests[at], &format!("vale{at}"), &format!("192.168.{net}.{number}/24"));
            ip(&guests[at], &format!("address add {inside}"));
        }
        for (at, net) in [
            (0, "192.168.7."),
            (0, "fd07::"),
            (3, "192.168.9."),
            (3, "fd09::"),
            (5, "192.168.5."),
            (5, "fd05::"),
        ] {
            let [a, b] = [1, 2].map(|number| format!("{net}{number}"));
            assert!(pings(&guests[at], &b), "{b}");
            transfer(&guests[at], (&guests[at + 1], &b), 1 << 20);
            transfer(&guests[at + 1], (&guests[at], &a), 1 << 20);
        }
        transfer(&guests[2], (&underlay.hosts[2], "192.168.8.3"), 1 << 20);
        let lost = all.map(|(at, ..)| drops(&daemon, &format!("vale{at}"), "fabric", "too_long"));
        // Without the clamp, the senders that send first find the MTU by losing frames.
        let first = [lost[0], lost[2], lost[3], lost[5]].map(|lost| lost > 0);
        assert_eq!(first, [!clamps; 4], "{lost:?}");
        assert!(!clamps || lost == [0; 7], "{lost:?}");
    }
}

#[test]
fn guests_are_told_the_inner_mtu_as_tunnels_come_and_go() {
    let test = "guests_are_told_the_inner_mtu_as_tunnels_come_and_go";
    let Some(underlay) = hosts(test, 1) else { return };
    let daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.vm]\nkind.vhost_user = {}");
    let socket = daemon.dir().join("vale0-vm.sock");
    let guest = FrontEnd::start(&socket, Features::VERSION_1 | Features::EVENT_IDX);
    let mtu = || {
        // The MTU is the two bytes after address, status and the number of queue pairs (virtio 1.2,
        // 5.1.4).
        let question = [10u32, 2, 0].map(u32::to_ne_bytes).concat();
        assert!(say(&guest.socket, code::GET_CONFIG, &[&question[..], &[0; 2]].concat(), &[]));
        let reply = reply(&guest.socket).unwrap();
        u16::from_le_bytes([reply[12], reply[13]])
    };
    assert_eq!(mtu(), 1500);
    let netns = underlay.hosts[0].id().to_string();
    let add = |vni: u32, local: &str, peer: &str| {
        let kind = json!({ "vxlan":
            { "vni": vni, "local": local, "peers": [peer], "netns": netns } });
        let port = json!({ "name": format!("f{vni}"), "kind": kind });
        let (status, answer) = daemon.ask("POST", "/v1/switches/vale0/ports", &port);
        assert!(status < 300, "{answer}");
    };
    add(4, "10.99.0.1", "10.99.0.2");
    assert_eq!(mtu(), 1450);
    add(6, "fd99::1", "fd99::2");
    assert_eq!(mtu(), 1430);
    for (port, left) in [("f6", 1450), ("f4", 1500)] {
        daemon.ask("DELETE", &format!("/v1/switches/vale0/ports/{port}"), &Value::Null);
        assert_eq!(mtu(), left);
    }
}

#[test]
fn a_port_that_the_kernels_vxlan_holds_is_said_so() {
    let test = "a_port_that_the_kernels_vxlan_holds_is_said_so";
    let Some(underlay) = hosts(test, 1) else { return };
    let how = "local 10.99.0.1 remote 10.99.0.2 dstport 4789";
    if !underlay.kernel_tunnel(1, (5, how), "192.168.9.1/24") {
        return harness::skip(test, "the kernel has no VXLAN");
    }
    let daemon = Daemon::start();
    daemon.apply("[switch.vale0]");
    let netns = underlay.hosts[0].id().to_string();
    let add = |more: &[&str]| {
        let args = ["port", "add", "vale0:f", "--vxlan", "6", "--local", "10.99.0.1"];
        let args = [&args[..], &["--peer", "10.99.0.2", "--netns", &netns], more].concat();
        daemon.run(&args)
    };
    let (code, _, error) = add(&[]);
    assert_ne!(code, Some(0));
    for word in ["UDP port 4789 of 10.99.0.1 is in use", "type vxlan", "--vxlan-port"] {
        assert!(error.contains(word), "{error}");
    }
    let (code, _, error) = add(&["--vxlan-port", "8472"]);
    assert_eq!(code, Some(0), "{error}");
}

#[test]
fn floods_reach_a_thousand_hosts_some_at_a_time() {
    const HOSTS: u64 = 1000;
    const FLOODS: u64 = 200;
    const AT_A_TIME: u64 = 4;
    let test = "floods_reach_a_thousand_hosts_some_at_a_time";
    let Some(underlay) = hosts(test, 2) else { return };
    // Host 2 stands for all remote hosts.
    ip(&underlay.hosts[1], "route add local 10.98.0.0/16 dev lo");
    ip(&underlay.hosts[0], "route add 10.98.0.0/16 via 10.99.0.2");
    let socket = underlay.hosts[1].enter(|| UdpSocket::bind("0.0.0.0:4789").unwrap());
    socket.set_read_timeout(Some(harness::PATIENCE)).unwrap();
    let peers: Vec<_> =
        (0..HOSTS).map(|i| format!("\"10.98.{}.{}\"", i / 250, i % 250 + 1)).collect();
    let (mut daemon, peers, netns) = (Daemon::start(), peers.join(","), underlay.hosts[0].id());
    daemon.apply(&format!(
        r#"[switch.vale0.port.fabric]
        kind = {{ vxlan = {{ vni = 100, local = "10.99.0.1", peers = [{peers}], netns = "{netns}" }} }}"#
    ));
    let mut port = daemon.open("vale0:p").unwrap();
    let mut frame = [0xff; 64];
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    let out = |daemon: &Daemon| {
        let counters = daemon.counters("fabric");
        let dropped: u64 =
            counters["out_drops"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
        (counters["out_frames"].as_u64().unwrap(), dropped)
    };
    // A flood waits in the tunnel until all hosts have it; more than there is room for are lost.
    for flood in 1..=FLOODS {
        while !send(&mut port, &frame) {}
        if flood % AT_A_TIME == 0 {
            daemon.wait_for("the floods to be sent", |daemon| out(daemon) == (flood, 0));
        }
    }
    let info = daemon.get("/v1/switches/vale0/ports/fabric");
    for peer in info["tunnel"]["peers"].as_array().unwrap() {
        let count = |name: &str| peer[name].as_u64().unwrap();
        let refused = count("full") + count("unreachable") + count("refused");
        assert_eq!((count("out_frames"), refused), (FLOODS, 0), "{peer}");
    }
    let mut bytes = [0; 2048];
    assert!(socket.recv(&mut bytes).unwrap() >= 72);
    assert_eq!(bytes[..8], [8, 0, 0, 0, 0, 0, 100, 0]);
    let turns = &daemon.get("/v1/stats")["switches"][0]["workers"][0]["turns"];
    let turns: Vec<TurnTime> = serde_json::from_value(turns.clone()).unwrap();
    // What else runs here lengthens single turns; floods would lengthen each.
    let usual = Duration::from_nanos(percentile(&[], &turns, 0.9).unwrap());
    assert!(usual <= Duration::from_millis(2), "{usual:?}");
}
