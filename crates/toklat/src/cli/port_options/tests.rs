use clap::Parser;
use dataplane::config::{Interrupts, Policy};
use fabric::VlanMode;
use frame::{Mac, VlanId};
use serde_json::{Value, json};

use super::*;
use crate::api::{PortKind, PortSpec};
use dataplane::config::{Combine, Doorbell, NicConfig, NicModel};
use frame::{Encapsulation, Vni};
use link::{Impairment, RateLimiter, TokenBucket};
use topology::{
    Card, Dgram, Host, Interface, InterfaceEngine, PcapRead, PcapWrite, Stream, Tap, VfioUser,
    VhostUser, Vxlan,
};

fn bucket(size: u64, refill_time: u64) -> TokenBucket {
    TokenBucket { size, one_time_burst: 0, refill_time }
}

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    policy: RuleOptions,
    #[command(flatten)]
    kind: KindOptions,
}

fn parse(options: &[&str]) -> Result<Line, clap::Error> {
    Line::try_parse_from([&["x"], options].concat())
}

fn spec(options: &[&str]) -> PortSpec {
    let line = parse(options).unwrap();
    let mut body = line.policy.patch();
    body.insert("kind".into(), json!(line.kind.kind("p1").unwrap()));
    serde_json::from_value(body.into()).unwrap()
}

#[test]
fn links_that_cannot_be_so_bad_are_refused() {
    for (wrong, why) in [
        ("loss=101%", "share"),
        ("loss=5", "share"),
        ("delay=10", "time"),
        ("delay=11s", "at most 10000000 us"),
        ("delay=1ms,jitter=2ms", "jitter"),
        ("reorder=1%", "needs a delay"),
        ("limit=0", "from 1"),
        ("limit=99999999999", "from 1"),
        ("seed=-1", "number"),
        ("colour=blue", "none of"),
    ] {
        let error = parse(&["--tx-impair", wrong]).err().unwrap().to_string();
        assert!(error.contains(why), "{wrong}: {error}");
    }
}

#[test]
fn options_become_the_policy() {
    assert_eq!(spec(&[]), PortSpec::default());
    let vlan = |id| VlanId::new(id).unwrap();
    let held =
        Interrupts { max_rate: Some(9), max_delay_us: 50, adaptive: true, max_sent_delay_us: 7 };
    let bad = Impairment {
        loss_ppm: 1000,
        delay_us: 10_000,
        jitter_us: 250,
        reorder_ppm: 10_000,
        duplicate_ppm: 1,
        limit: 9,
        seed: 7,
    };
    let table: [(&[&str], Policy); 19] = [
        (&["--interrupts=off"], Policy::default()),
        (
            &["--interrupts=rate=9,delay=50,adaptive,sent=7"],
            Policy { interrupts: held, ..Policy::default() },
        ),
        (
            &[
                "--tx-impair=loss=0.1%,delay=10ms,jitter=250us,reorder=1%,duplicate=0.0001%,limit=9,seed=7",
            ],
            Policy { tx_impairment: Some(bad), ..Policy::default() },
        ),
        (
            &["--rx-impair=loss=100%"],
            Policy {
                rx_impairment: Some(Impairment { loss_ppm: 1_000_000, ..Impairment::default() }),
                ..Policy::default()
            },
        ),
        (&["--link=down"], Policy { link: false, ..Policy::default() }),
        (
            &["--lossless", "--protected=on"],
            Policy { lossless: true, protected: true, ..Policy::default() },
        ),
        (
            &["--lossless=off", "--flap-guard", "off"],
            Policy { flap_guard: false, ..Policy::default() },
        ),
        (&["--vlan-access", "7"], Policy { vlan: VlanMode::Access(vlan(7)), ..Policy::default() }),
        (
            &["--vlan-trunk", "10,20", "--native", "10"],
            Policy {
                vlan: VlanMode::Trunk { allowed: vec![vlan(10), vlan(20)], native: Some(vlan(10)) },
                ..Policy::default()
            },
        ),
        (
            &["--vlan-trunk=all"],
            Policy { vlan: VlanMode::Trunk { allowed: vec![], native: None }, ..Policy::default() },
        ),
        (
            &["--mac", "02:00:00:00:00:01", "--mac", "02:00:00:00:00:02", "--locked"],
            Policy { macs: vec![Mac::local(1), Mac::local(2)], locked: true, ..Policy::default() },
        ),
        (&["--mac=none"], Policy::default()),
        (
            &["--guard", "--mac=02:00:00:00:00:01", "--ip", "10.0.0.7,fd00::7", "--ip=10.0.0.8"],
            Policy {
                guard: true,
                macs: vec![Mac::local(1)],
                ips: ["10.0.0.7", "fd00::7", "10.0.0.8"].map(|ip| ip.parse().unwrap()).into(),
                ..Policy::default()
            },
        ),
        (&["--ip=none"], Policy::default()),
        (&["--flood-limit=off"], Policy { flood_limit: None, ..Policy::default() }),
        (&["--tx-limit=off", "--rx-limit", "none"], Policy::default()),
        (
            &["--tx-limit=1Gb/s,100kpps", "--rx-limit", "8kb/s"],
            Policy {
                tx_rate_limiter: Some(RateLimiter {
                    bandwidth: Some(bucket(12_500_000, 100)),
                    ops: Some(bucket(10_000, 100)),
                }),
                rx_rate_limiter: Some(RateLimiter {
                    bandwidth: Some(bucket(1000, 1000)),
                    ops: None,
                }),
                ..Policy::default()
            },
        ),
        (
            &["--flood-limit", "5", "--mtu=9000"],
            Policy { flood_limit: Some(5), mtu: 9000, ..Policy::default() },
        ),
        (
            &["--mirror-in=p2", "--mirror-out", "none"],
            Policy { mirror_ingress: Some("p2".into()), ..Policy::default() },
        ),
    ];
    for (options, policy) in table {
        assert_eq!(spec(options).policy, policy, "{options:?}");
    }
    assert_eq!(spec(&["--worker=3", "--owner=1000"]).worker, Some(3));
}

#[test]
fn options_become_the_kind() {
    let tap = |ifname: &str, netns: Option<&str>| {
        let netns = netns.map(Into::into);
        PortKind::Tap(Tap { netns, ..Tap::called(ifname) })
    };
    let queues = PortKind::Tap(Tap { queues: 4, ..Tap::called("p1") });
    let netns = Some("blue".into());
    let interface =
        PortKind::Interface(Interface { netns, queues: 2, ..Interface::called("eth0") });
    let engine = InterfaceEngine::Xdp;
    let xdp = PortKind::Interface(Interface { engine, ..Interface::called("eth0") });
    let read = |repeat, speed_percent| {
        PortKind::PcapRead(PcapRead { path: "/a.pcap".into(), repeat, speed_percent })
    };
    let guest = |path: Option<&str>, client, queues| {
        let path = path.map(Into::into);
        PortKind::VhostUser(VhostUser { path, client, queues })
    };
    let stream = |address: Option<&str>, client| {
        let address = address.map(Into::into);
        PortKind::Stream(Stream { address, client })
    };
    let dgram = |local: &str, remote: &str| {
        let (local, remote) = (local.into(), remote.into());
        PortKind::Dgram(Dgram { local, remote })
    };
    let nic = |path: Option<&str>, model, csb, combine| {
        let nic = NicConfig { model, csb, combine, doorbell: Doorbell::Trap };
        PortKind::VfioUser(VfioUser { path: path.map(Into::into), nic })
    };
    let some = Some(Combine { frames: 16, delay_us: 50 });
    let vxlan = |local: &str, peers: &[&str], port, netns: Option<&str>| {
        PortKind::Vxlan(Vxlan {
            vni: Vni::new(100),
            vlans: Vec::new(),
            local: Some(local.parse().unwrap()),
            peers: peers.iter().map(|peer| peer.parse().unwrap()).collect(),
            evpn: false,
            drop_unknown: false,
            clamp_mss: false,
            no_suppress: false,
            import_rt: Vec::new(),
            export_rt: Vec::new(),
            encapsulation: Encapsulation::Vxlan,
            port,
            netns: netns.map(Into::into),
        })
    };
    let geneve = {
        let PortKind::Vxlan(plain) = vxlan("10.0.0.1", &["10.0.0.2"], None, None) else { return };
        PortKind::Vxlan(Vxlan { encapsulation: Encapsulation::Geneve, ..plain })
    };
    let vlans = {
        let PortKind::Vxlan(plain) = vxlan("10.0.0.1", &["10.0.0.2"], None, None) else { return };
        let vlans = ["10=10010", "20=10020"].map(|text| text.parse().unwrap()).to_vec();
        PortKind::Vxlan(Vxlan { vni: None, vlans, ..plain })
    };
    let card = PortKind::Card(Card { address: "0000:03:00.0".into() });
    let table: [(&[&str], PortKind); 29] = [
        (&["--card=0000:03:00.0"], card),
        (&["--vxlan=100", "--encapsulation=geneve", "--local=10.0.0.1", "--peer=10.0.0.2"], geneve),
        (
            &[
                "--vxlan",
                "--vxlan-vlan=20=10020",
                "--vxlan-vlan=10=10010",
                "--local=10.0.0.1",
                "--peer=10.0.0.2",
            ],
            vlans,
        ),
        (
            &["--vxlan=100", "--local=10.0.0.1", "--peer=10.0.0.2", "--peer=10.0.0.3"],
            vxlan("10.0.0.1", &["10.0.0.2", "10.0.0.3"], None, None),
        ),
        (
            &["--vxlan=100", "--local=::1", "--peer=::2", "--vxlan-port=8472", "--netns=n"],
            vxlan("::1", &["::2"], Some(8472), Some("n")),
        ),
        (&["--nic=82540em"], nic(None, NicModel::I82540EM, false, None)),
        (&["--nic=one-access"], nic(None, NicModel::ONE_ACCESS, false, None)),
        (&["--nic=pcnet", "--socket=/s"], nic(Some("/s"), NicModel::AM79C970A, false, None)),
        (&["--nic=82574l", "--csb", "--combine=16,50"], nic(None, NicModel::I82574L, true, some)),
        (&["--stream"], stream(None, false)),
        (&["--stream=/tmp/passt_1.socket", "--client"], stream(Some("/tmp/passt_1.socket"), true)),
        (&["--stream=127.0.0.1:5000"], stream(Some("127.0.0.1:5000"), false)),
        (&["--dgram=/a", "--remote=/b"], dgram("/a", "/b")),
        (&["--dgram=[::1]:1", "--remote=[::1]:2"], dgram("[::1]:1", "[::1]:2")),
        (&["--vhost-user"], guest(None, false, 16)),
        (&["--vhost-user=/a", "--client", "--queues=2"], guest(Some("/a"), true, 2)),
        (&["--tap"], tap("p1", None)),
        (&["--tap", "--queues=4"], queues),
        (&["--tap", "tap0", "--netns=blue"], tap("tap0", Some("blue"))),
        (&["--interface"], PortKind::Interface(Interface::called("p1"))),
        (&["--interface=eth0", "--netns=blue", "--queues=2"], interface),
        (&["--interface=eth0", "--engine=xdp"], xdp),
        (&["--host=eth0"], PortKind::Host(Host::behind("eth0"))),
        (&["--pcap-read=/a.pcap"], read(false, 100)),
        (&["--pcap-read=/a.pcap", "--loop", "--speed=max"], read(true, 0)),
        (&["--pcap-read=/a.pcap", "--speed=0.5"], read(false, 50)),
        (&["--pcap-write=/b"], PortKind::PcapWrite(PcapWrite { path: "/b".into() })),
        (&["--null"], PortKind::Null),
        (&["--lossless"], PortKind::Ring),
    ];
    for (options, kind) in table {
        assert_eq!(spec(options).kind, kind, "{options:?}");
    }
}

#[test]
fn contradictions_are_usage_errors() {
    let table: [&[&str]; 40] = [
        &["--vxlan=100"],
        &["--vxlan=100", "--local=10.0.0.1"],
        &["--vxlan", "--vxlan-vlan=4095=7", "--local=10.0.0.1", "--peer=10.0.0.2"],
        &["--vxlan=0", "--local=10.0.0.1", "--peer=10.0.0.2"],
        &["--peer=10.0.0.2"],
        &["--vxlan=1", "--local=10.0.0.1", "--peer=10.0.0.2", "--tap"],
        &["--nic=e1000"],
        &["--csb"],
        &["--nic=82540em", "--combine=16"],
        &["--nic=82540em", "--vhost-user"],
        &["--tx-limit=fast"],
        &["--tx-limit=100"],
        &["--tx-limit=1Gb/s,2Gb/s"],
        &["--rx-limit=0.1b/s"],
        &["--rx-limit=900000Gb/s"],
        &["--interrupts=rate=0"],
        &["--interrupts=adaptive"],
        &["--interrupts=fast"],
        &["--client"],
        &["--dgram=/a"],
        &["--remote=/a"],
        &["--stream", "--vhost-user"],
        &["--stream", "--queues=2"],
        &["--vhost-user", "--queues=17"],
        &["--link=off"],
        &["--vlan-access=1", "--vlan-trunk=2"],
        &["--vlan-access=0"],
        &["--vlan-access=4095"],
        &["--vlan-trunk=1,,2"],
        &["--native=1"],
        &["--tap", "--null"],
        &["--interface=eth0", "--queues=9"],
        &["--interface=eth0", "--engine=fast"],
        &["--netns=x"],
        &["--queues=2"],
        &["--loop"],
        &["--pcap-read=a", "--speed=-1"],
        &["--mtu=9217"],
        &["--mac=02:00"],
        &["--lossless=maybe"],
    ];
    for options in table {
        assert!(parse(options).is_err(), "{options:?}");
    }
}

#[test]
fn what_is_not_given_is_not_changed() {
    assert!(parse(&[]).unwrap().policy.patch().is_empty());
    let patch = parse(&["--mirror-in=none", "--flood-limit=off"]).unwrap().policy.patch();
    assert_eq!(Value::from(patch), json!({ "mirror_ingress": null, "flood_limit": null }));
}
