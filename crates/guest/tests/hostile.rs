//! Hostile frames: nothing panics, memory stays bounded, and every frame is counted.

use std::net::{Ipv6Addr, SocketAddrV4};

use frame::checksum::Sum;
use frame::{Arp, ArpOperation, EtherType, Ethernet, Ipv4, Ipv6, Mac, Protocol, tcp_flags};
use guest::{App, Bytes, Guest, Io, Nanos, RingNic};
use netring::Port;
use proptest::prelude::*;
use zerocopy::IntoBytes;

mod world;

use guest::apps::site::Site;
use world::{CLIENT, SERVER, World};

/// Frames of an attacker: random bytes, or nearly valid ones.
#[derive(Clone, Debug)]
enum Attack {
    Nonsense(Vec<u8>),
    Arp {
        operation: u16,
        host: u8,
        target: u8,
    },
    Ip {
        protocol: u8,
        host: u8,
        payload: Vec<u8>,
        flip: Option<(u8, u8)>,
    },
    Tcp {
        host: u8,
        ports: (u8, u8),
        seq: u8,
        flags: u8,
        payload: Vec<u8>,
    },
    Icmp {
        kind: u8,
        code: u8,
        quoted: Vec<u8>,
    },
    /// ICMPv6 from one of a few hosts to one of a few groups or the server.
    Icmp6 {
        kind: u8,
        hosts: (u8, u8),
        hops: u8,
        body: Vec<u8>,
        sum: bool,
    },
    Ip6 {
        protocol: u8,
        host: u8,
        payload: Vec<u8>,
        flip: Option<(u8, u8)>,
    },
}

fn attacks() -> impl Strategy<Value = Attack> {
    let bytes = |most| prop::collection::vec(any::<u8>(), 0..most);
    let http = prop::sample::select(vec![
        &b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..],
        b"GET /long HTTP/1.1\r\nHost: a\r\nRange: bytes=0-\r\n\r\n",
        b"GET ",
        b"\r\n",
        b"Range: bytes=-18446744073709551615\r\n\r\n",
    ]);
    let payload = prop_oneof![bytes(200), http.prop_map(<[u8]>::to_vec)];
    let flags = prop_oneof![
        any::<u8>(),
        prop::sample::select(vec![tcp_flags::SYN, tcp_flags::ACK, tcp_flags::FIN, tcp_flags::RST])
    ];
    prop_oneof![
        bytes(1600).prop_map(Attack::Nonsense),
        (0..4u16, any::<u8>(), 0..4u8).prop_map(|(operation, host, target)| Attack::Arp {
            operation,
            host,
            target
        }),
        (any::<u8>(), any::<u8>(), bytes(100), any::<Option<(u8, u8)>>()).prop_map(
            |(protocol, host, payload, flip)| Attack::Ip { protocol, host, payload, flip }
        ),
        (any::<u8>(), (0..4u8, 0..4u8), any::<u8>(), flags, payload).prop_map(
            |(host, ports, seq, flags, payload)| Attack::Tcp { host, ports, seq, flags, payload }
        ),
        icmp6(),
        (any::<u8>(), any::<u8>(), bytes(100), any::<Option<(u8, u8)>>()).prop_map(
            |(protocol, host, payload, flip)| Attack::Ip6 { protocol, host, payload, flip }
        ),
        (0..16u8, 0..6u8, bytes(80)).prop_map(|(kind, code, quoted)| Attack::Icmp {
            kind,
            code,
            quoted
        }),
    ]
}

/// Messages of ICMPv6: bodies begin as those of neighbour discovery do, and go on with options.
fn icmp6() -> impl Strategy<Value = Attack> {
    let kinds = prop::sample::select(vec![1, 2, 3, 128, 130, 131, 133, 134, 135, 136, 137, 143]);
    let hops = prop::sample::select(vec![255, 255, 255, 64, 1]);
    let option = prop_oneof![
        any::<[u8; 8]>().prop_map(|bytes| bytes.to_vec()),
        (1..6u8, 0..6u8, prop::collection::vec(any::<u8>(), 38)).prop_map(
            |(kind, len, mut bytes)| {
                bytes.truncate((8 * usize::from(len)).saturating_sub(2));
                [vec![kind, len], bytes].concat()
            }
        ),
    ];
    let options = prop::collection::vec(option, 0..4).prop_map(|options| options.concat());
    let start = prop_oneof![
        prop::collection::vec(any::<u8>(), 12..20),
        (any::<[u8; 4]>(), 0..4u8)
            .prop_map(|(flags, host)| [&flags[..], &v6(host).octets()].concat()),
    ];
    (kinds, (0..8u8, 0..8u8), hops, (start, options), prop::bool::weighted(0.9)).prop_map(
        |(kind, hosts, hops, (start, options), sum)| Attack::Icmp6 {
            kind,
            hosts,
            hops,
            body: [start, options].concat(),
            sum,
        },
    )
}

/// Addresses of one host or another, of groups, and of none.
fn v6(host: u8) -> Ipv6Addr {
    match host {
        4 => Ipv6Addr::UNSPECIFIED,
        5 => Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1),
        6 => Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 1),
        7 => Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 7),
        host => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host.into()),
    }
}

fn packet6((from, to): (u8, u8), protocol: Protocol, payload: &[u8], hops: u8) -> Vec<u8> {
    let mut frame = ethernet(EtherType::IPV6);
    frame.extend(Ipv6::new(v6(from), v6(to), protocol, payload.len() as u16).as_bytes());
    frame[21] = hops;
    if v6(to).is_multicast() {
        frame[..2].copy_from_slice(&[0x33, 0x33]);
    }
    frame.extend(payload);
    frame
}

fn ethernet(kind: EtherType) -> Vec<u8> {
    let to = Mac::local(SERVER.to_bits());
    Ethernet::new(to, Mac::local(77), kind).as_bytes().to_vec()
}

fn packet(host: u8, protocol: Protocol, payload: &[u8]) -> Vec<u8> {
    let from = std::net::Ipv4Addr::new(10, 0, 0, host);
    let mut frame = ethernet(EtherType::IPV4);
    frame.extend(Ipv4::new(from, SERVER, protocol, payload.len() as u16).as_bytes());
    frame.extend(payload);
    frame
}

impl Attack {
    fn frame(self) -> Vec<u8> {
        match self {
            Self::Nonsense(bytes) => bytes,
            Self::Arp { operation, host, target } => {
                let address = |host| std::net::Ipv4Addr::new(10, 0, 0, host);
                let sender = (Mac::local(host.into()), address(host));
                let target = (Mac::from_word(0), address(target));
                let mut frame = ethernet(EtherType::ARP);
                frame.extend(Arp::new(ArpOperation(operation), sender, target).as_bytes());
                frame
            }
            Self::Ip { protocol, host, payload, flip } => {
                let mut frame = packet(host, Protocol(protocol), &payload);
                if let Some((at, bits)) = flip {
                    let at = usize::from(at) % frame.len();
                    frame[at] ^= bits;
                }
                frame
            }
            Self::Tcp { host, ports, seq, flags, payload } => {
                let mut tcp = vec![0x40, ports.0, 0, 80 - ports.1, 0, 0, 0, seq, 0, 0, 0, 1];
                tcp.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
                tcp.extend(payload);
                let mut frame = packet(host, Protocol::TCP, &tcp);
                let sum =
                    Sum::new().with_pseudo_header(&frame[26..34], Protocol::TCP, tcp.len() as u32);
                let sum = sum.with(&tcp).checksum();
                frame[50..52].copy_from_slice(&sum.to_be_bytes());
                frame
            }
            Self::Icmp6 { kind, hosts, hops, body, sum } => {
                let mut frame =
                    packet6(hosts, Protocol::ICMPV6, &[&[kind, 0, 0, 0], &body[..]].concat(), hops);
                let len = frame.len() as u32 - 54;
                let value = Sum::new().with_pseudo_header(&frame[22..54], Protocol::ICMPV6, len);
                let value = value.with(&frame[54..]).checksum();
                if sum {
                    frame[56..58].copy_from_slice(&value.to_be_bytes());
                }
                if hops == 1 {
                    // With the router alert of queries for multicast listeners.
                    frame.splice(54..54, [58, 0, 5, 2, 0, 0, 1, 0]);
                    frame[18..20].copy_from_slice(&(len as u16 + 8).to_be_bytes());
                    frame[20] = 0;
                }
                frame
            }
            Self::Ip6 { protocol, host, payload, flip } => {
                let mut frame = packet6((host, 1), Protocol(protocol), &payload, 64);
                if let Some((at, bits)) = flip {
                    let at = usize::from(at) % frame.len();
                    frame[at] ^= bits;
                }
                frame
            }
            Self::Icmp { kind, code, quoted } => {
                let mut message = [&[kind, code, 0, 0, 0, 0, 2, 0], &quoted[..]].concat();
                let sum = frame::checksum::checksum(&message);
                message[2..4].copy_from_slice(&sum.to_be_bytes());
                packet(2, Protocol::ICMP, &message)
            }
        }
    }
}

/// An honest client, which fetches a page repeatedly.
#[derive(Default)]
struct Honest(u64);

impl App for Honest {
    type Conn = ();
    fn accepted(&mut self, _: &mut Io<'_>) {}
    fn connected(&mut self, _: &mut (), io: &mut Io<'_>) {
        io.send(Bytes::from_static(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    }
    fn data(&mut self, conn: &mut (), io: &mut Io<'_>, data: &[u8]) -> usize {
        if !data.ends_with(b"page") {
            return 0;
        }
        self.0 += 1;
        self.connected(conn, io);
        data.len()
    }
}

struct Siege {
    world: World,
    server: Guest<RingNic, Site>,
    client: Guest<RingNic, Honest>,
    attacker: Port,
}

impl Siege {
    fn new() -> Self {
        let mut world = World { ipv6: true, ..World::new() };
        let mut site = Site::default();
        site.add("/", Bytes::from_static(b"page"));
        site.add("/long", vec![1; 1 << 20].into());
        let mut server = Guest::new(world.host(SERVER, None), site);
        server.listen(80, 16).unwrap();
        let mut client = Guest::new(world.host(CLIENT, None), Honest::default());
        client.connect(SocketAddrV4::new(SERVER, 80), (), world.now).unwrap();
        let attacker = world.plug("attacker", Mac::local(77), None);
        let mut siege = Self { world, server, client, attacker };
        siege.until_served();
        siege
    }

    fn turn(&mut self) {
        self.client.poll(self.world.now).unwrap();
        self.world.turn();
        self.server.poll(self.world.now).unwrap();
        self.world.turn();
        self.attacker.receive(256).for_each(drop);
        self.attacker.flush().unwrap();
    }

    fn until_served(&mut self) {
        let before = self.client.app().0;
        let started = self.world.now;
        while self.client.app().0 == before {
            self.turn();
            let took = self.world.now - started;
            assert!(took < 20 * Nanos::SECOND, "{:?}", self.server.stack().counters());
        }
    }

    fn attack(&mut self, frame: &[u8]) {
        if !frame.is_empty() {
            assert!(self.attacker.send(1).push(frame));
            self.attacker.flush().unwrap();
        }
        self.turn();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn nothing_that_comes_breaks_a_host(attacks in prop::collection::vec(attacks(), 1..60)) {
        let mut siege = Siege::new();
        for attack in attacks {
            // The attacker may not forge the honest client's address: with ARP, that always cuts it
            // off.
            let mut frame = attack.frame();
            if frame.get(12..14) == Some(&[8, 6]) && frame.get(31) == Some(&2) {
                frame[31] = 3;
            }
            siege.attack(&frame);
        }
        siege.until_served();
        let usage = siege.server.stack().usage();
        prop_assert!(usage.neighbours <= 257 && usage.outbox <= 256, "{usage:?}");
    }
}

/// The pages that the honest client gets in 250 ms of the guests' time, in a flood of so many SYNs
/// in each turn of 20 us, and a question for each.
fn pages_in_a_while(siege: &mut Siege, syns: u32) -> u64 {
    let (before, started) = (siege.client.app().0, siege.world.now);
    let mut numbers = 0..u32::MAX;
    while siege.world.now - started < Nanos::SECOND / 4 {
        for i in numbers.by_ref().take(syns as usize) {
            let [_, a, b, c] = i.to_be_bytes();
            let host = 3 + (i % 250) as u8;
            let syn = Attack::Tcp {
                host,
                ports: (a ^ b ^ c, 0),
                seq: c,
                flags: tcp_flags::SYN,
                payload: Vec::new(),
            };
            let ask = Attack::Arp { operation: 1, host, target: 1 };
            for frame in [syn.frame(), ask.frame()] {
                assert!(siege.attacker.send(1).push(&frame));
            }
        }
        siege.attacker.flush().unwrap();
        siege.turn();
    }
    siege.client.app().0 - before
}

#[test]
fn floods_of_syns_and_questions_take_bounded_memory_and_honest_connections_live() {
    let mut siege = Siege::new();
    let alone = pages_in_a_while(&mut siege, 0);
    // A million SYNs a second.
    let flooded = pages_in_a_while(&mut siege, 20);
    assert!(flooded * 10 >= alone * 9, "{flooded} pages instead of {alone}");
    siege.until_served();
    let usage = siege.server.stack().usage();
    assert!(usage.neighbours <= 1024 && usage.tcp.half_open <= 1024, "{usage:?}");
    assert!(usage.unresolved <= 512 << 10 && usage.tcp.memory <= 64 << 20, "{usage:?}");
}
