//! Hosts below TCP: what they answer (ARP, echo, UDP), and what they ignore.

use std::net::{Ipv4Addr, SocketAddrV4};

use frame::checksum::checksum;
use frame::{Arp, ArpOperation, EtherType, Ethernet, Ipv4, Ipv6, Mac, Protocol};
use guest::{Config, Drop, Ipv6Config, Nanos, RingNic, Stack, UdpError};
use netring::Port;
use zerocopy::IntoBytes;

mod world;

use world::{CLIENT, SERVER, World};

const MAC: Mac = Mac::local(77);

/// A host, and a bare port that sends arbitrary frames.
struct Pair {
    world: World,
    host: Stack<RingNic>,
    bare: Port,
}

impl Pair {
    fn new() -> Self {
        let mut world = World::new();
        let host = world.host(SERVER, None);
        let bare = world.plug("bare", MAC, None);
        let mut pair = Self { world, host, bare };
        let announced = pair.answers();
        assert_eq!(announced.len(), 1, "it says where it is");
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

    fn dropped(&self) -> Vec<Drop> {
        self.host.counters().drops().map(|(reason, _)| reason).collect()
    }
}

fn host_mac() -> Mac {
    Mac::local(SERVER.to_bits())
}

fn arp(operation: ArpOperation, from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    let mut frame = Ethernet::new(Mac::BROADCAST, MAC, EtherType::ARP).as_bytes().to_vec();
    frame.extend(Arp::new(operation, (MAC, from), (Mac::from_word(0), to)).as_bytes());
    frame
}

fn packet(from: Ipv4Addr, to: Ipv4Addr, protocol: Protocol, payload: &[u8]) -> Vec<u8> {
    let mut frame = Ethernet::new(host_mac(), MAC, EtherType::IPV4).as_bytes().to_vec();
    frame.extend(Ipv4::new(from, to, protocol, payload.len() as u16).as_bytes());
    frame.extend(payload);
    frame
}

fn echo(data: &[u8]) -> Vec<u8> {
    let mut message = [&[8, 0, 0, 0, 1, 2, 3, 4], data].concat();
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    message
}

/// A host with both kinds of addresses that announces itself to the switch alone.
fn quiet() -> (Pair, Vec<Vec<u8>>) {
    let mut world = World::new();
    let address = Some((world::v6(SERVER), 64));
    let v6 = Some(Ipv6Config { address, probes: 0, ..Ipv6Config::default() });
    let config = Config { announces: false, v6, ..Config::new(host_mac(), SERVER, 24) };
    let host = world.host_with(config, None);
    let bare = world.plug("bare", MAC, None);
    let mut pair = Pair { world, host, bare };
    let told = pair.answers();
    (pair, told)
}

#[test]
fn a_host_that_does_not_announce_itself_tells_the_switch_alone_and_is_found() {
    let (mut pair, told) = quiet();
    // Reports of groups are for switches that snoop, and pass those that do not.
    let reports = |frame: &Vec<u8>| frame[..6] == [0x33, 0x33, 0, 0, 0, 0x16];
    assert!(told.iter().all(reports), "{told:02x?}");
    assert!(pair.host.counters().frames_out >= told.len() as u64 + 3, "two IPv6 addresses");
    assert_eq!(pair.send(&arp(ArpOperation::REQUEST, CLIENT, SERVER)).len(), 1, "it answers");
}

/// Who remembers the station that had an address before gets no answer from that one. The switch
/// does not know the station any more, and floods the frame.
#[test]
fn a_sender_that_remembers_another_station_is_told_who_has_the_address() {
    let (mut pair, _) = quiet();
    let gone = Mac::local(99);
    let mut v4 = packet(CLIENT, SERVER, Protocol::UDP, &[1; 16]);
    v4[..6].copy_from_slice(&gone.octets());
    let answers = pair.send(&v4);
    let [answer] = &answers[..] else { panic!("{answers:02x?}") };
    let (header, rest) = Ethernet::parse(answer).unwrap();
    let arp = Arp::parse(rest).unwrap();
    assert_eq!((header.destination(), arp.operation()), (MAC, ArpOperation::REPLY));
    assert_eq!((arp.sender(), arp.target()), ((host_mac(), SERVER), (MAC, CLIENT)));

    let mut v6 = Ethernet::new(gone, MAC, EtherType::IPV6).as_bytes().to_vec();
    let (client, server) = (world::v6(CLIENT), world::v6(SERVER));
    v6.extend(Ipv6::new(client, server, Protocol::UDP, 8).as_bytes());
    v6.extend([0; 8]);
    let answers = pair.send(&v6);
    let [answer] = &answers[..] else { panic!("{answers:02x?}") };
    let (header, rest) = Ethernet::parse(answer).unwrap();
    let (ip, message) = Ipv6::parse(rest).unwrap();
    assert_eq!((header.destination(), ip.source(), ip.destination()), (MAC, server, client));
    assert_eq!((message[0], &message[8..24]), (136, &server.octets()[..]), "an advertisement");
    assert_eq!(pair.dropped(), [Drop::NotForUs]);

    // Frames for others cost nothing; of its own, a bounded number is answered.
    v4[30..34].copy_from_slice(&[10, 0, 0, 77]);
    assert_eq!(pair.send(&v4).len(), 0);
    v4[30..34].copy_from_slice(&SERVER.octets());
    let answered: usize = (0..300).map(|_| pair.send(&v4).len()).sum();
    assert!((1..=100).contains(&answered), "{answered} in less than a second");
}

#[test]
fn requests_for_the_hosts_address_are_answered_and_no_others() {
    let mut pair = Pair::new();
    assert!(pair.send(&arp(ArpOperation::REQUEST, CLIENT, Ipv4Addr::new(10, 0, 0, 99))).is_empty());
    let answers = pair.send(&arp(ArpOperation::REQUEST, CLIENT, SERVER));
    let [answer] = &answers[..] else { panic!("{answers:?}") };
    let (header, rest) = Ethernet::parse(answer).unwrap();
    let arp = Arp::parse(rest).unwrap();
    assert_eq!((header.destination(), answer.len()), (MAC, 60));
    assert_eq!(arp.operation(), ArpOperation::REPLY);
    assert_eq!((arp.sender(), arp.target()), ((host_mac(), SERVER), (MAC, CLIENT)));
}

#[test]
fn an_echo_comes_back_after_the_host_has_asked_where_to() {
    let mut pair = Pair::new();
    let request = echo(&[9; 1000]);
    let asked = pair.send(&packet(CLIENT, SERVER, Protocol::ICMP, &request));
    assert_eq!(asked.len(), 1, "it asks for the address");
    let answers = pair.send(&arp(ArpOperation::REPLY, CLIENT, SERVER));
    let [answer] = &answers[..] else { panic!("{answers:?}") };
    let (ip, message) = Ipv4::parse(&answer[14..]).unwrap();
    assert_eq!((ip.source(), ip.destination()), (SERVER, CLIENT));
    assert!(Ipv4::checksum_ok(&answer[14..]) && checksum(message) == 0);
    assert_eq!((message[0], &message[4..]), (0, &request[4..]));
    assert_eq!(pair.dropped(), []);
}

/// A fragment of a packet; the first byte of its field with flags and offset.
fn fragment(protocol: Protocol, field: u8, payload: &[u8]) -> Vec<u8> {
    fragment_at(protocol, [field, 0], payload)
}

fn fragment_at(protocol: Protocol, field: [u8; 2], payload: &[u8]) -> Vec<u8> {
    let mut fragment = packet(CLIENT, SERVER, protocol, payload);
    fragment[20..22].copy_from_slice(&field);
    fragment[24..26].fill(0);
    let sum = checksum(&fragment[14..34]);
    fragment[24..26].copy_from_slice(&sum.to_be_bytes());
    fragment
}

/// The frame with a tag of this VLAN, in a tag of service.
fn in_vlan(vlan: u8, frame: &[u8]) -> Vec<u8> {
    [&frame[..12], &[0x88, 0xa8, 0xe0, 0, 0x81, 0, 0x60, vlan], &frame[12..]].concat()
}

/// A pair that knows each other's stations.
fn acquainted() -> Pair {
    let mut pair = Pair::new();
    pair.send(&arp(ArpOperation::REQUEST, CLIENT, SERVER));
    pair
}

/// Switches and NICs put a priority into a tag without a VLAN (IEEE 802.1Q, 6.9).
#[test]
fn regression_tags_of_priority_are_passed_over() {
    let mut pair = acquainted();
    let request = packet(CLIENT, SERVER, Protocol::ICMP, &echo(b"x"));
    let plain = pair.send(&request);
    let tag = |kind: [u8; 2]| [&request[..12], &kind, &[0xe0, 0], &request[12..]].concat();
    for frame in [tag([0x81, 0]), tag([0x88, 0xa8]), in_vlan(0, &request)] {
        assert_eq!(pair.send(&frame), plain, "{frame:02x?}");
    }
    let question = arp(ArpOperation::REQUEST, CLIENT, SERVER);
    assert_eq!(pair.send(&in_vlan(0, &question)).len(), 1);
    assert_eq!(pair.send(&in_vlan(5, &question)), Vec::<Vec<u8>>::new(), "a VLAN is another link");
    assert_eq!(pair.dropped(), [Drop::UnknownType]);
}

#[test]
fn fragments_become_packets_and_unfinished_ones_are_bounded() {
    let mut pair = acquainted();
    let message = echo(&[7; 2000]);
    let whole = pair.send(&fragment_at(Protocol::ICMP, [0x20, 0], &message[..1000]));
    assert_eq!((whole.len(), pair.host.usage().fragments > 1000), (0, true));
    let answers = pair.send(&fragment_at(Protocol::ICMP, [0, 125], &message[1000..]));
    assert_eq!((pair.host.counters().reassembled, pair.host.usage().fragments), (1, 0));
    // Its answer would be longer than a packet.
    assert_eq!((answers.len(), pair.host.counters().dropped(Drop::TooLong)), (0, 1));
    let short = &echo(&[7; 1000]);
    pair.send(&fragment_at(Protocol::ICMP, [0, 125], &short[1000..]));
    let answers = pair.send(&fragment_at(Protocol::ICMP, [0x20, 0], &short[..1000]));
    assert_eq!((answers.len(), &answers[0][38..]), (1, &short[4..]));

    // TCP, too: a SYN in two parts.
    pair.host.listen(80, 4).unwrap();
    let mut syn =
        [&[0x13, 0x88, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2][..], &[255, 255, 0, 0, 0, 0]]
            .concat();
    syn.extend([0; 4]);
    syn[12] = 0x60;
    let addresses = [CLIENT.octets(), SERVER.octets()].concat();
    let sum = frame::checksum::Sum::new().with_pseudo_header(&addresses, Protocol::TCP, 24);
    let sum = sum.with(&syn).checksum();
    syn[16..18].copy_from_slice(&sum.to_be_bytes());
    pair.send(&fragment_at(Protocol::TCP, [0x20, 0], &syn[..16]));
    let answers = pair.send(&fragment_at(Protocol::TCP, [0, 2], &syn[16..]));
    assert_eq!(answers.len(), 1, "a SYN-ACK");

    // Strangers send first fragments without end.
    for i in 0..2000u16 {
        let mut part = fragment(Protocol::UDP, 0x20, &[1; 1400]);
        part[18..20].copy_from_slice(&i.to_be_bytes());
        part[24..26].fill(0);
        let sum = checksum(&part[14..34]);
        part[24..26].copy_from_slice(&sum.to_be_bytes());
        pair.send(&part);
        assert!(pair.host.usage().fragments <= 256 << 10);
    }
    assert!(pair.host.counters().dropped(Drop::Fragment) > 1500);
    pair.world.now = pair.world.now + 31 * Nanos::SECOND;
    pair.answers();
    assert_eq!(pair.host.usage().fragments, 0, "nothing waits for ever");
}

#[test]
fn a_closed_port_is_reported_so_many_times_a_second() {
    let mut pair = acquainted();
    let datagram = packet(CLIENT, SERVER, Protocol::UDP, &[0, 9, 0, 9, 0, 8, 0, 0]);
    let answers = pair.send(&datagram);
    let [answer] = &answers[..] else { panic!("{answers:?}") };
    let (ip, message) = Ipv4::parse(&answer[14..]).unwrap();
    assert_eq!((ip.protocol(), &message[..2]), (Protocol::ICMP, &[3, 3][..]));
    assert_eq!((checksum(message), &message[8..36]), (0, &datagram[14..42]));
    let reported = |pair: &mut Pair| (0..500).map(|_| pair.send(&datagram).len()).sum::<usize>();
    assert_eq!(reported(&mut pair), 99);
    pair.world.now = pair.world.now + Nanos::SECOND;
    assert_eq!(reported(&mut pair), 100);
    assert_eq!(pair.dropped(), [Drop::NoSocket]);
    // What all hosts get is not answered (RFC 1122, 3.2.2).
    pair.world.now = pair.world.now + Nanos::SECOND;
    let all =
        packet(CLIENT, Ipv4Addr::new(10, 0, 0, 255), Protocol::UDP, &[0, 9, 0, 9, 0, 8, 0, 0]);
    assert_eq!(pair.send(&all), Vec::<Vec<u8>>::new());
}

#[test]
fn a_reply_without_a_request_is_counted_and_not_answered() {
    let other = Ipv4Addr::new(10, 0, 0, 200);
    let broadcast = Ipv4Addr::new(10, 0, 0, 255);
    let mut bad_sum = echo(b"x");
    bad_sum[8] ^= 1;
    let mut redirect = [&[5, 1, 0, 0][..], &other.octets(), &[0x45; 28]].concat();
    let sum = checksum(&redirect);
    redirect[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut to_other_mac = packet(CLIENT, SERVER, Protocol::ICMP, &echo(b"x"));
    to_other_mac[..6].copy_from_slice(&[0x01, 0, 0x5e, 1, 2, 3]);
    let mut short = packet(CLIENT, SERVER, Protocol::ICMP, &echo(b"x"));
    short.truncate(40);
    for (frame, reason) in [
        (packet(CLIENT, other, Protocol::ICMP, &echo(b"x")), Drop::NotForUs),
        (packet(CLIENT, broadcast, Protocol::ICMP, &echo(b"x")), Drop::NotForUs),
        (packet(CLIENT, SERVER, Protocol::ICMP, &bad_sum), Drop::BadChecksum),
        (packet(CLIENT, SERVER, Protocol::SCTP, b"x"), Drop::UnknownProtocol),
        (packet(broadcast, SERVER, Protocol::ICMP, &echo(b"x")), Drop::BadSource),
        (packet(SERVER, SERVER, Protocol::ICMP, &echo(b"x")), Drop::BadSource),
        (packet(CLIENT, SERVER, Protocol::UDP, &[0, 9, 0, 9, 0, 9, 0, 0]), Drop::Truncated),
        (fragment(Protocol::UDP, 0x20, &[]), Drop::Fragment),
        (fragment(Protocol::UDP, 0x20, &[0; 21]), Drop::Fragment),
        (in_vlan(5, &packet(CLIENT, SERVER, Protocol::ICMP, &echo(b"x"))), Drop::UnknownType),
        (packet(CLIENT, SERVER, Protocol::ICMP, &redirect), Drop::Redirect),
        (short, Drop::Truncated),
        (arp(ArpOperation::REQUEST, SERVER, SERVER), Drop::BadArp),
        (arp(ArpOperation::REPLY, Ipv4Addr::new(10, 1, 0, 1), SERVER), Drop::BadArp),
        (arp(ArpOperation::REQUEST, Ipv4Addr::new(224, 0, 0, 1), SERVER), Drop::BadArp),
        (arp(ArpOperation::REQUEST, broadcast, SERVER), Drop::BadArp),
    ] {
        let mut pair = Pair::new();
        assert_eq!(pair.send(&frame), Vec::<Vec<u8>>::new(), "{reason:?}");
        assert_eq!(pair.dropped(), [reason]);
        assert_eq!(reason.name(), pair.host.counters().drops().next().unwrap().0.name());
    }
    let mut pair = Pair::new();
    assert!(pair.send(&to_other_mac).len() <= 1, "at most a question for the address");
}

/// Clouds lend addresses of no network (`/32`), and routers that are in none.
#[test]
fn regression_a_router_outside_the_network_is_a_neighbour() {
    let router = Ipv4Addr::new(10, 9, 0, 254);
    let far = Ipv4Addr::new(192, 0, 2, 1);
    let mut world = World::new();
    let mut config = guest::Config::new(host_mac(), SERVER, 32);
    config.gateway = Some(router);
    let host = world.host_with(config, None);
    let bare = world.plug("bare", MAC, None);
    let mut pair = Pair { world, host, bare };
    pair.answers();
    // A packet from afar: the host asks for its router, and answers by it.
    let asked = pair.send(&packet(far, SERVER, Protocol::ICMP, &echo(b"x")));
    let [question] = &asked[..] else { panic!("{asked:?}") };
    assert_eq!(Arp::parse(&question[14..]).unwrap().target().1, router);
    let answers = pair.send(&arp(ArpOperation::REPLY, router, SERVER));
    let [answer] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!(Ipv4::parse(&answer[14..]).unwrap().0.destination(), far);
    // The router asks for the host.
    assert_eq!(pair.send(&arp(ArpOperation::REQUEST, router, SERVER)).len(), 1);
    assert_eq!((pair.host.usage().neighbours, pair.dropped()), (1, vec![]));
    // So may others on the link, but they are not noted.
    for i in 0..100 {
        let other = Ipv4Addr::new(172, 16, 0, i);
        assert_eq!(pair.send(&arp(ArpOperation::REQUEST, other, SERVER)).len(), 1);
    }
    assert_eq!(pair.host.usage().neighbours, 1);
}

#[test]
fn a_host_without_an_address_asks_a_server_and_is_silent_otherwise() {
    let mut world = World::new();
    let mut config = guest::Config::new(host_mac(), SERVER, 24);
    config.dhcp = true;
    let host = world.host_with(config, None);
    let bare = world.plug("bare", MAC, None);
    let mut pair = Pair { world, host, bare };
    let asked = pair.answers();
    let [discover] = &asked[..] else { panic!("{asked:?}") };
    let (ip, rest) = Ipv4::parse(&discover[14..]).unwrap();
    assert_eq!((ip.destination(), rest[..4].to_vec()), (Ipv4Addr::BROADCAST, vec![0, 68, 0, 67]));
    let none = Ipv4Addr::UNSPECIFIED;
    for frame in [
        packet(CLIENT, none, Protocol::ICMP, &echo(b"x")),
        packet(CLIENT, none, Protocol::TCP, &[0; 20]),
        packet(CLIENT, SERVER, Protocol::ICMP, &echo(b"x")),
        arp(ArpOperation::REQUEST, CLIENT, none),
        arp(ArpOperation::REQUEST, CLIENT, SERVER),
        // To the client's port, and no message of DHCP.
        packet(CLIENT, Ipv4Addr::BROADCAST, Protocol::UDP, &[0, 67, 0, 68, 0, 9, 0, 0, 2]),
    ] {
        assert_eq!(pair.send(&frame), Vec::<Vec<u8>>::new(), "{frame:02x?}");
    }
    assert_eq!(pair.dropped(), [Drop::NotForUs, Drop::BadArp]);
    assert!(pair.host.connect(SocketAddrV4::new(CLIENT, 80), pair.world.now).is_err());
}

#[test]
fn datagrams_go_both_ways_and_queues_are_bounded() {
    let mut world = World::new();
    let (mut a, mut b) = (world.host(SERVER, None), world.host(CLIENT, None));
    let (at_a, at_b) = (a.udp_bind(7).unwrap(), b.udp_bind(9).unwrap());
    assert_eq!(a.udp_bind(7), Err(UdpError::InUse(7)));
    assert_eq!(a.udp_bind(0), Err(UdpError::NoPort));
    let to = SocketAddrV4::new(SERVER, 7);
    assert_eq!(b.udp_send(at_b, to, &[0; 1473], world.now), Err(UdpError::TooLong(1473, 1472)));
    b.udp_send(at_b, to, &[5; 1472], world.now).unwrap();
    let mut turn = |a: &mut Stack<RingNic>, b: &mut Stack<RingNic>| {
        a.poll(world.now).unwrap();
        b.poll(world.now).unwrap();
        world.turn();
        world.now
    };
    let (from, data) = loop {
        let now = turn(&mut a, &mut b);
        assert!(now < Nanos(2 * Nanos::SECOND), "no datagram");
        if let Some(came) = a.udp_receive(at_a) {
            break came;
        }
    };
    assert_eq!((from, &data[..]), (SocketAddrV4::new(CLIENT, 9).into(), &[5; 1472][..]));
    for _ in 0..1000 {
        let now = turn(&mut a, &mut b);
        b.udp_send(at_b, to, b"more", now).unwrap();
    }
    for _ in 0..3 {
        turn(&mut a, &mut b);
    }
    let came = std::iter::from_fn(|| a.udp_receive(at_a)).count();
    assert_eq!(a.counters().dropped(Drop::SocketFull), 1000 - came as u64);
    let sent = b.counters().datagrams_out;
    assert_eq!(sent, a.counters().datagrams_in + a.counters().dropped(Drop::SocketFull));
}

#[test]
fn a_host_that_is_not_there_is_asked_for_and_given_up() {
    let mut world = World::new();
    let mut host = world.host(SERVER, None);
    let id = host.udp_bind(7).unwrap();
    host.poll(world.now).unwrap();
    let nobody = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 66), 7);
    host.udp_send(id, nobody, b"x", world.now).unwrap();
    let far = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 7);
    host.udp_send(id, far, b"x", world.now).unwrap();
    assert_eq!(host.counters().dropped(Drop::NoRoute), 1);
    let mut deadlines = 0;
    while let Some(deadline) = host.poll(world.now).unwrap() {
        world.now = deadline;
        world.turn();
        deadlines += 1;
        assert!(deadlines < 100, "it sleeps until something is due");
    }
    assert_eq!(host.counters().arp_requests, 3);
    assert_eq!(host.counters().dropped(Drop::NoNeighbour), 1);
    assert_eq!((host.usage().neighbours, host.usage().unresolved), (0, 0));
}
