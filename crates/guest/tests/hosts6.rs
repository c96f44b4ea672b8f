//! Hosts with IPv6: what they answer (neighbour discovery, echo, UDP), what they ignore, and how
//! they get their addresses.

use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};

use frame::checksum::Sum;
use frame::{EtherType, Ethernet, Ipv6, Mac, OffloadSet, Protocol};
use guest::{Config, Drop, Ipv6Config, Nanos, RingNic, Stack, UdpError};
use netring::Port;
use zerocopy::IntoBytes;

mod world;

use world::{CLIENT, SERVER, World, v6};

/// The bare port's addresses.
const MAC: Mac = Mac::local(77);
const THEIRS: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 77);
const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 77);

const ROUTER_FAR: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

fn own() -> Ipv6Addr {
    v6(SERVER)
}

fn host_mac() -> Mac {
    Mac::local(SERVER.to_bits())
}

/// A host, and a bare port that sends arbitrary frames.
struct Pair {
    world: World,
    host: Stack<RingNic>,
    bare: Port,
}

impl Pair {
    /// A host that has its address at once.
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut Ipv6Config)) -> Self {
        let mut world = World::new();
        let mut config = Config::new(host_mac(), SERVER, 24);
        let mut ipv6 =
            Ipv6Config { address: Some((own(), 64)), probes: 0, ..Ipv6Config::default() };
        change(&mut ipv6);
        config.v6 = Some(ipv6);
        let host = world.host_with(config, None);
        let bare = world.plug("bare", MAC, None);
        let mut pair = Self { world, host, bare };
        pair.answers();
        pair
    }

    fn send(&mut self, frame: &[u8]) -> Vec<Vec<u8>> {
        assert!(self.bare.send(1).push(frame));
        self.bare.flush().unwrap();
        self.world.turn();
        self.answers()
    }

    /// Returns the frames that the host sends in two turns.
    fn answers(&mut self) -> Vec<Vec<u8>> {
        let mut came = Vec::new();
        for _ in 0..2 {
            self.host.poll(self.world.now).unwrap();
            self.world.turn();
            came.extend(self.bare.receive(64).map(|frame| frame.to_vec()));
            self.bare.flush().unwrap();
        }
        came
    }

    fn after(&mut self, seconds: u64) -> Vec<Vec<u8>> {
        self.world.now = self.world.now + seconds * Nanos::SECOND;
        self.answers()
    }

    fn dropped(&self) -> Vec<Drop> {
        self.host.counters().drops().map(|(reason, _)| reason).collect()
    }
}

fn group_mac(ip: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = ip.octets();
    Mac::new([0x33, 0x33, a, b, c, d])
}

fn solicited_node(ip: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = ip.octets();
    let [low, high] = [u16::from_be_bytes([b, c]), 0xff00 | u16::from(a)];
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, high, low)
}

/// A frame with an IPv6 packet, whose checksum at `sum` is written.
fn packet(
    (from, to): (Ipv6Addr, Ipv6Addr),
    protocol: Protocol,
    payload: &[u8],
    sum: usize,
) -> Vec<u8> {
    let mac = if to.is_multicast() { group_mac(to) } else { host_mac() };
    let mut frame = Ethernet::new(mac, MAC, EtherType::IPV6).as_bytes().to_vec();
    let ip = Ipv6::new(from, to, protocol, payload.len() as u16);
    frame.extend(ip.as_bytes());
    frame.extend(payload);
    let len = payload.len() as u32;
    let value = Sum::new().with_pseudo_header(ip.addresses(), protocol, len).with(payload);
    frame[54 + sum..56 + sum].copy_from_slice(&value.checksum().to_be_bytes());
    frame
}

/// The same with the hop limit of neighbour discovery.
fn discovery(from: Ipv6Addr, to: Ipv6Addr, message: &[u8]) -> Vec<u8> {
    let mut frame = packet((from, to), Protocol::ICMPV6, message, 2);
    frame[14 + 7] = 255;
    frame
}

fn icmp(from: Ipv6Addr, to: Ipv6Addr, message: &[u8]) -> Vec<u8> {
    packet((from, to), Protocol::ICMPV6, message, 2)
}

fn option(kind: u8, mac: Mac) -> Vec<u8> {
    [&[kind, 1][..], &mac.octets()].concat()
}

fn solicitation(target: Ipv6Addr, options: &[u8]) -> Vec<u8> {
    [&[135, 0, 0, 0, 0, 0, 0, 0][..], &target.octets(), options].concat()
}

fn advertisement(target: Ipv6Addr, flags: u8, options: &[u8]) -> Vec<u8> {
    [&[136, 0, 0, 0, flags, 0, 0, 0][..], &target.octets(), options].concat()
}

fn echo(data: &[u8]) -> Vec<u8> {
    [&[128, 0, 0, 0, 1, 2, 3, 4], data].concat()
}

/// The header and the payload of a frame with a packet whose checksum is right.
fn parsed(frame: &[u8]) -> (Mac, Ipv6, Vec<u8>) {
    let (ethernet, rest) = Ethernet::parse(frame).unwrap();
    let (ip, payload) = Ipv6::parse(rest).unwrap();
    let sum = Sum::new().with_pseudo_header(ip.addresses(), ip.next_header(), payload.len() as u32);
    assert_eq!(sum.with(payload).checksum(), 0, "{frame:02x?}");
    (ethernet.destination(), *ip, payload.to_vec())
}

#[test]
fn an_address_is_probed_announced_and_solicitations_for_it_are_answered() {
    let mut pair = Pair::with(|config| config.probes = 1);
    let ask = discovery(THEIRS, solicited_node(own()), &solicitation(own(), &option(1, MAC)));
    assert!(pair.send(&ask).is_empty(), "it does not have the address yet");
    let said = pair.after(1);
    let targets: Vec<(u8, Vec<u8>)> = said
        .iter()
        .filter(|frame| !is_report(frame))
        .map(|frame| parsed(frame).2)
        .map(|message| (message[0], message[8..24].to_vec()))
        .collect();
    assert!(targets.contains(&(136, own().octets().to_vec())), "{targets:?}");
    let answers = pair.send(&ask);
    let [answer] = &answers[..] else { panic!("{answers:?}") };
    let (to, ip, message) = parsed(answer);
    assert_eq!((to, ip.hop_limit()), (MAC, 255));
    assert_eq!((ip.source(), ip.destination()), (own(), THEIRS));
    let expected = advertisement(own(), 0x60, &option(2, host_mac()));
    assert_eq!((&message[..2], &message[4..]), (&expected[..2], &expected[4..]));
    // The sender's address is known by its question.
    assert_eq!(
        pair.send(&icmp(THEIRS, own(), &echo(b"x"))).len(),
        2,
        "a reply, and a unicast check"
    );
}

#[test]
fn an_address_that_another_host_has_is_given_up() {
    for claim in [
        discovery(Ipv6Addr::UNSPECIFIED, solicited_node(own()), &solicitation(own(), &[])),
        discovery(own(), "ff02::1".parse().unwrap(), &advertisement(own(), 0x20, &option(2, MAC))),
    ] {
        let mut pair = Pair::with(|config| config.probes = 1);
        pair.send(&claim);
        pair.after(1);
        assert_eq!(pair.dropped(), [Drop::Duplicate]);
        assert!(pair.host.addresses().all(|ip| ip != own()) && !pair.host.is_configured());
        assert!(pair.send(&icmp(THEIRS, own(), &echo(b"x"))).is_empty());
    }
}

#[test]
fn an_echo_comes_back_after_the_host_has_asked_where_to() {
    let mut pair = Pair::new();
    let request = echo(&[9; 1000]);
    let asked = pair.send(&icmp(THEIRS, own(), &request));
    let [question] = &asked[..] else { panic!("{asked:?}") };
    let (to, ip, message) = parsed(question);
    assert_eq!((to, ip.destination()), (group_mac(solicited_node(THEIRS)), solicited_node(THEIRS)));
    assert_eq!((message[0], &message[8..24]), (135, &THEIRS.octets()[..]));
    let answer = advertisement(THEIRS, 0x60, &option(2, MAC));
    let answers = pair.send(&discovery(THEIRS, own(), &answer));
    let [answer] = &answers[..] else { panic!("{answers:?}") };
    let (_, ip, message) = parsed(answer);
    assert_eq!((ip.source(), ip.destination()), (own(), THEIRS));
    assert_eq!((message[0], &message[4..]), (129, &request[4..]));
    // A question to all hosts, with padding before it.
    let all = "ff02::1".parse().unwrap();
    let inner = icmp(THEIRS, all, &echo(b"all"));
    let padded = [&[58, 0, 1, 4, 0, 0, 0, 0], &inner[54..]].concat();
    let mut frame = packet((THEIRS, all), Protocol(0), &padded, 0);
    frame[54..62].copy_from_slice(&padded[..8]);
    let answers = pair.send(&frame);
    assert_eq!(answers.len(), 1, "{:?}", pair.dropped());
    assert_eq!(pair.dropped(), []);
}

/// A query for multicast listeners: with a router alert, from one hop away.
fn query(from: Ipv6Addr, to: Ipv6Addr, group: Ipv6Addr, more: &[u8]) -> Vec<u8> {
    let message = [&[130, 0, 0, 0, 0, 0, 0, 0][..], &group.octets(), more].concat();
    let mut frame = icmp(from, to, &message);
    let mut inner = frame.split_off(54);
    // A hop-by-hop header comes between. The pseudo header has the last protocol.
    inner.splice(0..0, [58, 0, 5, 2, 0, 0, 1, 0]);
    frame[18..20].copy_from_slice(&(inner.len() as u16).to_be_bytes());
    (frame[20], frame[21]) = (0, 1);
    frame.extend(inner);
    frame
}

/// Whether the packet has a hop-by-hop header, as reports for multicast listeners have.
fn is_report(frame: &[u8]) -> bool {
    frame[12..14] == [0x86, 0xdd] && frame[20] == 0
}

/// The records of a report for multicast listeners: type and group.
fn records(frame: &[u8]) -> Vec<(u8, Ipv6Addr)> {
    let (ethernet, rest) = Ethernet::parse(frame).unwrap();
    let (ip, payload) = Ipv6::parse(rest).unwrap();
    let routers: Ipv6Addr = "ff02::16".parse().unwrap();
    assert_eq!((ethernet.destination(), ip.destination()), (group_mac(routers), routers));
    assert_eq!((ip.hop_limit(), &payload[..8]), (1, &[58, 0, 5, 2, 0, 0, 1, 0][..]));
    let message = &payload[8..];
    let sum = Sum::new().with_pseudo_header(ip.addresses(), Protocol::ICMPV6, message.len() as u32);
    assert_eq!((sum.with(message).checksum(), message[0]), (0, 143), "{frame:02x?}");
    let (count, records) = (usize::from(message[7]), message[8..].chunks(20));
    assert_eq!(records.len(), count);
    let group = |bytes: &[u8]| Ipv6Addr::from(<[u8; 16]>::try_from(bytes).unwrap());
    records.map(|record| (record[0], group(&record[4..20]))).collect()
}

#[test]
fn switches_are_told_the_groups_of_addresses_and_queries_are_answered() {
    let mut world = World::new();
    let mut config = Config::new(host_mac(), SERVER, 24);
    let address = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0xab, 0xcdef);
    config.v6 =
        Some(Ipv6Config { address: Some((address, 64)), probes: 1, ..Ipv6Config::default() });
    let host = world.host_with(config, None);
    let bare = world.plug("bare", MAC, None);
    let mut pair = Pair { world, host, bare };
    let reports = |frames: Vec<Vec<u8>>| -> Vec<Vec<(u8, Ipv6Addr)>> {
        frames.iter().filter(|frame| is_report(frame)).map(|frame| records(frame)).collect()
    };
    let first = pair.answers();
    assert!(first.iter().find(|frame| frame[12] == 0x86).is_some_and(|frame| is_report(frame)));
    let [first] = &reports(first)[..] else { panic!("no report") };
    let groups: Vec<Ipv6Addr> = first.iter().map(|(_, group)| *group).collect();
    assert!(first.iter().all(|(kind, _)| *kind == 4) && groups.contains(&solicited_node(address)));
    assert_eq!(groups.len(), 2, "and that of the link-local address");
    // With the link-local address it reports again, and then no more.
    let again: Vec<_> = (0..5).flat_map(|_| reports(pair.after(1))).collect();
    assert!((2..=3).contains(&again.len()) && again.iter().all(|all| all == first), "{again:?}");
    assert_eq!(reports(pair.after(1000)), Vec::<Vec<_>>::new());
    let all: Ipv6Addr = "ff02::1".parse().unwrap();
    let ask = query(ROUTER, all, Ipv6Addr::UNSPECIFIED, &[2, 125, 0, 0]);
    let answers = reports(pair.send(&ask));
    assert_eq!(answers, [groups.iter().map(|group| (2, *group)).collect::<Vec<_>>()]);
    // One for a group, which comes to that.
    let group = solicited_node(address);
    pair.after(1);
    let answers = reports(pair.send(&query(ROUTER, group, group, &[2, 125, 0, 0])));
    assert_eq!(answers, [[(2, group)]]);
    assert_eq!((pair.dropped(), pair.host.counters().reports), (vec![], 3 + again.len() as u64));
}

#[test]
fn queries_that_no_router_of_the_link_has_sent_are_counted() {
    let all: Ipv6Addr = "ff02::1".parse().unwrap();
    let none = Ipv6Addr::UNSPECIFIED;
    let good = query(ROUTER, all, none, &[2, 125, 0, 0]);
    let changed = |at: usize, value: u8| {
        let mut frame = good.clone();
        frame[at] = value;
        frame
    };
    for (frame, reason) in [
        (changed(21, 2), Drop::BadQuery),
        // Padding in place of the router alert, and an alert of another protocol.
        (changed(56, 1), Drop::BadQuery),
        (changed(59, 1), Drop::BadQuery),
        (changed(63, 1), Drop::BadChecksum),
        (query(THEIRS, all, none, &[2, 125, 0, 0]), Drop::BadQuery),
        (query(ROUTER, all, none, &[2, 125, 0]), Drop::BadQuery),
        (query(ROUTER, all, THEIRS, &[2, 125, 0, 0]), Drop::BadQuery),
    ] {
        let mut pair = Pair::new();
        pair.after(5);
        pair.after(5);
        assert_eq!(pair.send(&frame), Vec::<Vec<u8>>::new(), "{frame:02x?}");
        assert_eq!(pair.after(100), Vec::<Vec<u8>>::new(), "{frame:02x?}");
        assert_eq!(pair.dropped(), [reason], "{frame:02x?}");
    }
}

#[test]
fn a_redirect_is_counted_and_changes_no_route() {
    let mut pair = Pair::with(|config| config.gateway = Some(THEIRS));
    let ask = solicitation(own(), &option(1, MAC));
    pair.send(&discovery(THEIRS, solicited_node(own()), &ask));
    let far: Ipv6Addr = "2001:db8::9".parse().unwrap();
    let [target, to] = [Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 66), far].map(|ip| ip.octets());
    let options = option(2, Mac::local(66));
    let redirect = [&[137, 0, 0, 0, 0, 0, 0, 0][..], &target, &to, &options].concat();
    pair.send(&discovery(THEIRS, own(), &redirect));
    pair.send(&discovery(ROUTER, own(), &redirect));
    assert_eq!(pair.host.counters().dropped(Drop::Redirect), 2);
    let socket = pair.host.udp_bind(9).unwrap();
    let to = SocketAddrV6::new(far, 7, 0, 0);
    pair.host.udp_send(socket, to, b"x", pair.world.now).unwrap();
    let sent = pair.answers();
    let datagram = sent.iter().find(|frame| frame[20] == Protocol::UDP.0).unwrap();
    assert_eq!(parsed(datagram).0, MAC, "by the router that was named");
}

#[test]
fn what_makes_no_sense_is_counted_and_not_answered() {
    let all: Ipv6Addr = "ff02::1".parse().unwrap();
    let group = solicited_node(own());
    let ask = solicitation(own(), &option(1, MAC));
    let mut routed = discovery(THEIRS, group, &ask);
    routed[14 + 7] = 254;
    let mut coded = ask.clone();
    coded[1] = 1;
    let mut bad_sum = icmp(THEIRS, own(), &echo(b"x"));
    bad_sum[60] ^= 1;
    let mut short = icmp(THEIRS, own(), &echo(b"x"));
    short.truncate(58);
    let mut without_sum = packet((THEIRS, own()), Protocol::UDP, &[0, 9, 0, 9, 0, 8, 0, 0], 6);
    without_sum[60..62].fill(0);
    let extended = |kind: u8, header: [u8; 8]| {
        let payload = [&header[..], &echo(b"x")].concat();
        packet((THEIRS, own()), Protocol(kind), &payload, 10)
    };
    let to = |mac: Mac, mut frame: Vec<u8>| {
        frame[..6].copy_from_slice(&mac.octets());
        frame
    };
    let advertised = |from, message: &[u8]| discovery(from, all, message);
    let router = [&[134, 0, 0, 0, 64, 0, 7, 8][..], &[0; 8]].concat();
    let mut endless = [&router[..], &[1, 0]].concat();
    endless.extend([0; 6]);
    for (frame, reason) in [
        (routed, Drop::BadDiscovery),
        (discovery(THEIRS, group, &coded), Drop::BadDiscovery),
        (discovery(THEIRS, group, &ask[..20]), Drop::BadDiscovery),
        (
            discovery(THEIRS, group, &[&ask[..], &[1, 0, 0, 0, 0, 0, 0, 0]].concat()),
            Drop::BadDiscovery,
        ),
        (discovery(Ipv6Addr::UNSPECIFIED, group, &ask), Drop::BadDiscovery),
        (discovery(Ipv6Addr::UNSPECIFIED, own(), &ask[..24]), Drop::BadDiscovery),
        (discovery(THEIRS, group, &solicitation(all, &[])), Drop::BadDiscovery),
        (discovery(THEIRS, group, &solicitation(THEIRS, &[])), Drop::NotForUs),
        (discovery(own(), group, &ask), Drop::BadSource),
        (discovery(THEIRS, all, &advertisement(THEIRS, 0x40, &[])), Drop::BadDiscovery),
        (discovery(THEIRS, all, &advertisement(all, 0, &[])), Drop::BadDiscovery),
        (discovery(THEIRS, all, &advertisement(own(), 0, &option(2, MAC))), Drop::Duplicate),
        (advertised(THEIRS, &router), Drop::BadDiscovery),
        (advertised(ROUTER, &endless), Drop::BadDiscovery),
        (bad_sum, Drop::BadChecksum),
        (without_sum, Drop::BadChecksum),
        (short, Drop::Truncated),
        (icmp(all, own(), &echo(b"x")), Drop::BadSource),
        (icmp(Ipv6Addr::LOCALHOST, own(), &echo(b"x")), Drop::BadSource),
        (icmp("::ffff:10.0.0.9".parse().unwrap(), own(), &echo(b"x")), Drop::BadSource),
        (icmp(Ipv6Addr::UNSPECIFIED, own(), &echo(b"x")), Drop::BadSource),
        (icmp(own(), own(), &echo(b"x")), Drop::BadSource),
        (icmp(THEIRS, THEIRS, &echo(b"x")), Drop::NotForUs),
        (icmp(THEIRS, "ff02::2".parse().unwrap(), &echo(b"x")), Drop::NotForUs),
        (to(host_mac(), icmp(THEIRS, all, &echo(b"x"))), Drop::NotForUs),
        (
            icmp(THEIRS, own(), &[&[2, 0, 0, 0, 0, 0, 5, 0][..], &[0x60; 30]].concat()),
            Drop::OtherIcmp,
        ),
        (icmp(THEIRS, own(), &[137, 0, 0, 0, 0, 0, 0, 0]), Drop::Redirect),
        (packet((THEIRS, own()), Protocol::SCTP, &[0; 8], 2), Drop::UnknownProtocol),
        (extended(44, [58, 0, 0, 1, 0, 0, 0, 1]), Drop::Fragment),
        (extended(44, [58, 0, 0, 8, 0, 0, 0, 1]), Drop::Fragment),
        (extended(43, [58, 0, 0, 1, 0, 0, 0, 0]), Drop::BadExtension),
        (extended(60, [58, 0, 0x80, 4, 0, 0, 0, 0]), Drop::BadExtension),
        (extended(60, [58, 0, 1, 40, 0, 0, 0, 0]), Drop::BadExtension),
        (extended(60, [58, 200, 1, 4, 0, 0, 0, 0]), Drop::Truncated),
    ] {
        let mut pair = Pair::with(|config| config.autoconfigure = true);
        assert_eq!(pair.send(&frame), Vec::<Vec<u8>>::new(), "{reason:?} {frame:02x?}");
        assert_eq!(pair.dropped(), [reason], "{frame:02x?}");
    }
    let mut world = World::new();
    let mut host = world.host(SERVER, None);
    let mut bare = world.plug("bare", MAC, None);
    assert!(bare.send(1).push(&icmp(THEIRS, own(), &echo(b"x"))));
    bare.flush().unwrap();
    world.turn();
    host.poll(world.now).unwrap();
    assert_eq!(host.counters().dropped(Drop::UnknownType), 1, "a host without IPv6");
}

#[test]
fn floods_of_neighbours_and_routers_take_bounded_memory() {
    let mut pair = Pair::with(|config| config.autoconfigure = true);
    let all: Ipv6Addr = "ff02::1".parse().unwrap();
    for i in 0..5000u16 {
        let from = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 1, i);
        let ask = solicitation(own(), &option(1, Mac::local(i.into())));
        pair.send(&discovery(from, solicited_node(own()), &ask));
        let prefix = Ipv6Addr::new(0x2001, 0xdb8, i, 0, 0, 0, 0, 0).octets();
        let router = [
            &[134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0, 3, 4, 64, 0xc0][..],
            &[0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0],
            &prefix,
        ];
        let from = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 1, i);
        pair.send(&discovery(from, all, &router.concat()));
        // And echoes from hosts that are not there.
        let stranger = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 2, i);
        pair.send(&icmp(stranger, own(), &echo(&[0; 900])));
    }
    let usage = pair.host.usage();
    assert!(usage.neighbours <= 1024 && usage.outbox <= 256, "{usage:?}");
    assert!(usage.unresolved <= 512 << 10, "{usage:?}");
    assert!(pair.host.addresses().count() <= 9, "IPv4, and eight of IPv6");
    (0..5).for_each(|_| drop(pair.after(2)));
    assert_eq!(pair.host.usage().unresolved, 0);
}

#[test]
fn datagrams_go_both_ways_with_and_without_offloads() {
    for offloads in [OffloadSet::NONE, OffloadSet::ALL] {
        let mut world = World::new();
        (world.offloads, world.ipv6) = (offloads, true);
        let (mut a, mut b) = (world.host(SERVER, None), world.host(CLIENT, None));
        let (at_a, at_b) = (a.udp_bind(7).unwrap(), b.udp_bind(9).unwrap());
        for to in [SocketAddr::new(own().into(), 7), SocketAddr::new(SERVER.into(), 7)] {
            let most = if to.is_ipv6() { 1452 } else { 1472 };
            a.poll(world.now).unwrap();
            b.poll(world.now).unwrap();
            let data = vec![5; most + 1];
            let long = b.udp_send(at_b, to, &data, world.now);
            assert_eq!(long, Err(UdpError::TooLong(most + 1, most)));
            b.udp_send(at_b, to, &data[..most], world.now).unwrap();
            let came = (0..1000).find_map(|_| {
                a.poll(world.now).unwrap();
                b.poll(world.now).unwrap();
                world.turn();
                a.udp_receive(at_a)
            });
            let (from, came) = came.unwrap();
            assert_eq!((from.port(), from.is_ipv6(), came.len()), (9, to.is_ipv6(), most));
        }
        let far = SocketAddrV6::new("2001:db8::1".parse().unwrap(), 7, 0, 0);
        b.udp_send(at_b, far, b"x", world.now).unwrap();
        assert_eq!(b.counters().dropped(Drop::NoRoute), 1);
    }
    let mut world = World::new();
    let mut plain = world.host(SERVER, None);
    let socket = plain.udp_bind(7).unwrap();
    let to = SocketAddrV6::new(own(), 7, 0, 0);
    let refused = plain.udp_send(socket, to, b"x", world.now);
    assert_eq!(refused, Err(UdpError::NoAddress(own().into())));
    assert!(plain.connect(to, world.now).is_err());
}

/// A TCP segment of the bare port, without options but the MSS in a SYN.
fn segment(flags: u8, seq: u32, ack: u32, data: &[u8]) -> Vec<u8> {
    let mut tcp = [&[4, 0, 0, 80][..], &seq.to_be_bytes(), &ack.to_be_bytes()].concat();
    let syn = flags & 2 != 0;
    tcp.extend([if syn { 0x60 } else { 0x50 }, flags, 0xff, 0xff, 0, 0, 0, 0]);
    tcp.extend(syn.then_some([2, 4, 5, 160]).into_iter().flatten());
    tcp.extend(data);
    packet((THEIRS, own()), Protocol::TCP, &tcp, 16)
}

/// A fragment header on a packet that is whole (RFC 6946): hosts behind translators send it.
#[test]
fn regression_atomic_fragments_are_packets() {
    let atomic = |frame: &[u8]| {
        let kind = frame[20];
        let mut frame = [&frame[..54], &[kind, 0, 0, 0, 1, 2, 3, 4], &frame[54..]].concat();
        frame[20] = 44;
        let len = (frame.len() - 54) as u16;
        frame[18..20].copy_from_slice(&len.to_be_bytes());
        frame
    };
    let mut pair = Pair::new();
    pair.send(&discovery(THEIRS, solicited_node(own()), &solicitation(own(), &option(1, MAC))));
    let answers = pair.send(&atomic(&icmp(THEIRS, own(), &echo(b"x"))));
    assert_eq!(parsed(&answers[0]).2[0], 129, "an echo");
    pair.host.listen(80, 4).unwrap();
    let answers = pair.send(&atomic(&segment(2, 0, 0, b"")));
    let [answer] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!((parsed(answer).1.next_header(), answer[54 + 13]), (Protocol::TCP, 0x12));
    // The port of a datagram is closed: the error quotes it.
    let datagram = packet((THEIRS, own()), Protocol::UDP, &[0, 9, 0, 9, 0, 8, 0, 0], 6);
    for frame in [datagram.clone(), atomic(&datagram)] {
        let answers = pair.send(&frame);
        let (_, ip, message) = parsed(&answers[0]);
        assert_eq!((ip.next_header(), &message[..2]), (Protocol::ICMPV6, &[1, 4][..]));
        assert_eq!(message[8..], frame[14..]);
    }
    let socket = pair.host.udp_bind(9).unwrap();
    pair.send(&atomic(&datagram));
    assert!(pair.host.udp_receive(socket).is_some());
    assert_eq!(pair.dropped(), [Drop::NoSocket]);
}

#[test]
fn a_path_with_a_lower_mtu_gets_shorter_segments() {
    let Pair { mut world, host, mut bare } = Pair::new();
    let mut site = guest::apps::site::Site::default();
    site.add("/", vec![7; 100_000].into());
    let mut server = guest::Guest::new(host, site);
    server.listen(80, 4).unwrap();
    let mut send = |frame: &[u8]| -> Vec<Vec<u8>> {
        assert!(bare.send(1).push(frame));
        let mut came = Vec::new();
        for _ in 0..2 {
            bare.flush().unwrap();
            world.turn();
            server.poll(world.now).unwrap();
            world.turn();
            came.extend(bare.receive(64).map(|frame| frame.to_vec()));
        }
        came.retain(|frame| frame[20] == Protocol::TCP.0);
        came
    };
    let seq = |frame: &[u8]| u32::from_be_bytes(frame[58..62].try_into().unwrap());
    let ask = solicitation(own(), &option(1, MAC));
    send(&discovery(THEIRS, solicited_node(own()), &ask));
    let answers = send(&segment(2, 0, 0, b""));
    let [syn] = &answers[..] else { panic!("{answers:?}") };
    let first = seq(syn).wrapping_add(1);
    let data = send(&segment(0x18, 1, first, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    let longest = |frames: &[Vec<u8>]| frames.iter().map(Vec::len).max();
    assert_eq!(longest(&data), Some(1514), "{} frames", data.len());
    let too_big = |quoted: &[u8], mtu: u32| {
        let message = [&[2, 0, 0, 0][..], &mtu.to_be_bytes(), quoted].concat();
        icmp(ROUTER_FAR, own(), &message)
    };
    // One that quotes what is not in flight, and one with less than every path carries.
    let mut stranger = data[0][14..110].to_vec();
    stranger[44..48].fill(9);
    assert_eq!(send(&too_big(&stranger, 1280)), Vec::<Vec<u8>>::new());
    let again = send(&too_big(&data[0][14..110], 600));
    assert_eq!((longest(&again), seq(&again[0])), (Some(14 + 1280), first));
}

#[test]
fn a_router_gives_addresses_and_an_mtu_and_is_the_way_out() {
    let mut pair = Pair::with(|config| (config.address, config.autoconfigure) = (None, true));
    assert!(!pair.host.is_configured());
    let all: Ipv6Addr = "ff02::1".parse().unwrap();
    let prefix = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 0);
    let told = [
        &[134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0, 3, 4, 64, 0xc0][..],
        &[0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0],
        &prefix.octets(),
        &option(1, MAC),
        // 1300.
        &[5, 1, 0, 0, 0, 0, 5, 20],
    ]
    .concat();
    pair.send(&discovery(ROUTER, all, &told));
    pair.after(2);
    assert!(pair.host.is_configured());
    let socket = pair.host.udp_bind(9).unwrap();
    let far = SocketAddrV6::new("2001:db8:ffff::1".parse().unwrap(), 7, 0, 0);
    let long = pair.host.udp_send(socket, far, &[0; 1300], pair.world.now);
    assert_eq!(long, Err(UdpError::TooLong(1300, 1300 - 48)));
    pair.host.udp_send(socket, far, &[0; 1252], pair.world.now).unwrap();
    let sent = pair.answers();
    let datagram = sent.iter().find(|frame| frame[20] == Protocol::UDP.0).unwrap();
    let (to, ip, _) = parsed(datagram);
    assert_eq!((to, ip.destination()), (MAC, *far.ip()));
    assert_eq!(ip.source().segments()[..3], prefix.segments()[..3]);
}
