//! Connections: who may use one, how long it lasts, and which makes room.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::rules::{Connections, End, Layout, Packet, Quota, Sides, State, Tuple};

use crate::frames::{Made, with};

const A: u16 = 1;
const B: u16 = 2;

type Table = Connections<Arc<[AtomicU64]>>;

fn memory(connections: usize) -> Arc<[AtomicU64]> {
    (0..Layout::words(connections)).map(|_| AtomicU64::new(0)).collect()
}

fn table(connections: usize, quota: usize) -> Table {
    Connections::open(memory(connections), Quota(quota), 0x1234_5678_9abc)
}

fn end(port: u16) -> End {
    End::new(port)
}

fn tuple(made: &Made) -> Option<Tuple> {
    with(&made.bytes(), Sides::default(), 0, Tuple::of)
}

/// A packet passes if it belongs to a connection, or if it begins one where `may_begin`.
fn pass(
    table: &mut Table,
    made: &Made,
    (from, to): (u16, u16),
    now: u32,
    may_begin: bool,
) -> Option<State> {
    let tuple = tuple(made)?;
    let (from, to) = (end(from), end(to));
    match table.find(&tuple, from, Some(to), now) {
        Some(admitted) => drop(table.pass(&admitted, from, Some(to), 1, now)),
        None if may_begin => assert!(table.begin(&tuple, from, Some(to), 1, now)),
        None => return None,
    }
    state(table, now)
}

fn state(table: &Table, now: u32) -> Option<State> {
    table.list(now, 1).next().map(|connection| connection.state)
}

const SYN: u8 = 2;
const ACK: u8 = 0x10;
const FIN: u8 = 1;
const RST: u8 = 4;

/// States and times as in Linux's `nf_conntrack_proto_tcp.c`, without windows.
#[test]
fn a_tcp_connection_goes_through_linuxs_states() {
    let mut table = table(16, 16);
    let there = Made::default();
    let mut now = 0;
    for (forward, flags, expected, lasts) in [
        (true, SYN, State::SynSent, 120),
        (false, SYN | ACK, State::SynReceived, 60),
        (true, ACK, State::Established, 432_000),
        (false, ACK, State::Established, 432_000),
        (true, FIN | ACK, State::FinWait, 120),
        (false, ACK, State::CloseWait, 60),
        (false, FIN | ACK, State::LastAck, 30),
        (true, ACK, State::TimeWait, 120),
    ] {
        now += 5;
        let (packet, ends) = match forward {
            true => (Made { flags, ..there.clone() }, (A, B)),
            false => (there.reply(flags), (B, A)),
        };
        assert_eq!(pass(&mut table, &packet, ends, now, flags == SYN), Some(expected));
        assert_eq!(state(&table, now + lasts - 1), Some(expected), "after {lasts} s");
        assert_eq!(state(&table, now + lasts), None, "after {lasts} s");
    }
    // A reset ends it at any time; a packet with contradicting flags does not belong to it.
    assert_eq!(pass(&mut table, &there.reply(SYN | FIN), (B, A), now, false), None);
    assert_eq!(pass(&mut table, &there.reply(RST), (B, A), now, false), Some(State::Closed));
    assert_eq!(state(&table, now + 10), None);
}

#[test]
fn no_third_port_can_ride_a_connection() {
    let mut table = table(16, 16);
    let there = Made { protocol: 17, ..Made::default() };
    assert_eq!(pass(&mut table, &there, (A, B), 0, true), Some(State::New));
    for (from, to) in [(3, A), (3, B), (B, 3), (A, A), (B, B)] {
        assert_eq!(pass(&mut table, &there.reply(0), (from, to), 0, false), None, "{from} {to}");
    }
    // A third port that claims the same addresses has a connection of its own.
    assert_eq!(pass(&mut table, &there, (3, B), 0, true), Some(State::New));
    assert_eq!(table.len(), 2);
    assert!(pass(&mut table, &there.reply(0), (B, A), 0, false).is_some());
    assert_eq!(table.list(0, 9).filter(|c| c.state == State::Answered).count(), 1);
    assert!(pass(&mut table, &there.reply(0), (B, 3), 0, false).is_some());
    assert_eq!(table.list(0, 9).filter(|c| c.state == State::Answered).count(), 2);
}

#[test]
fn another_vlan_has_other_connections() {
    let mut table = table(16, 16);
    let made = Made::default();
    let of = |vlan| with(&made.bytes(), Sides { vlan, ..Sides::default() }, 0, Tuple::of).unwrap();
    assert!(table.begin(&of(5), end(A), Some(end(B)), 1, 0));
    assert!(table.find(&of(5), end(A), Some(end(B)), 0).is_some());
    assert_eq!(table.find(&of(6), end(A), Some(end(B)), 0), None);
}

#[test]
fn icmp_errors_belong_to_their_connection() {
    for v6 in [false, true] {
        let mut table = table(16, 16);
        let mut there = Made { protocol: 17, ..Made::default() };
        if v6 {
            (there.from, there.to) =
                ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap());
        }
        pass(&mut table, &there, (A, B), 0, true);
        let (protocol, kind) = if v6 { (58, 1) } else { (1, 3) };
        let router = if v6 { "2001:db8::ff".parse().unwrap() } else { [10, 0, 0, 254].into() };
        let about = |packet: &Made, to: std::net::IpAddr| Made {
            from: router,
            to,
            protocol,
            ports: (kind, 0),
            flags: 0,
            payload: packet.bytes()[14..].to_vec(),
            ..Made::default()
        };
        let error = about(&there, there.from);
        assert_eq!(
            pass(&mut table, &error, (B, A), 0, false),
            Some(State::New),
            "it stays unanswered"
        );
        assert_eq!(pass(&mut table, &error, (3, A), 0, false), None, "from another port");
        assert_eq!(
            pass(&mut table, &about(&there, there.to), (B, A), 0, false),
            None,
            "to another host"
        );
        let other = Made { ports: (4001, 22), ..there.clone() };
        assert_eq!(pass(&mut table, &about(&other, there.from), (B, A), 0, false), None);
    }
}

#[test]
fn only_the_asked_answers_a_ping() {
    let mut table = table(16, 16);
    let ping = |from: u8, to: u8, kind| Made {
        from: [10, 0, 0, from].into(),
        to: [10, 0, 0, to].into(),
        protocol: 1,
        ports: (kind, 0),
        flags: 9,
        ..Made::default()
    };
    assert_eq!(pass(&mut table, &ping(1, 2, 8), (A, B), 0, true), Some(State::New));
    assert_eq!(pass(&mut table, &ping(2, 1, 8), (B, A), 0, false), None, "another query");
    assert_eq!(pass(&mut table, &ping(1, 2, 0), (A, B), 0, false), None, "an answer to nothing");
    assert_eq!(pass(&mut table, &ping(2, 1, 0), (B, A), 0, false), Some(State::Answered));
}

#[test]
fn a_flood_from_one_port_evicts_its_own_unanswered_connections_alone() {
    let mut table = table(1024, 256);
    let udp = |port: u16, n: u16| Made {
        from: [10, 0, port as u8, 1].into(),
        protocol: 17,
        ports: (n, 53),
        ..Made::default()
    };
    for n in 0..200 {
        pass(&mut table, &udp(B, n), (B, 9), 0, true);
        pass(&mut table, &udp(B, n).reply(0), (9, B), 0, false);
    }
    for n in 0..56 {
        pass(&mut table, &udp(B, 1000 + n), (B, 9), 0, true);
    }
    for n in 0..20_000 {
        let tuple = tuple(&udp(A, n)).unwrap();
        assert!(table.begin(&tuple, end(A), Some(end(9)), 1, 1));
    }
    let of = |port: u16| table.list(1, 2000).filter(|c| c.from == port).count();
    assert_eq!((of(A), of(B)), (256, 256));
    assert_eq!(table.evicted, 20_000 - 256);
    let newest = tuple(&udp(A, 19_999)).unwrap();
    assert!(table.find(&newest, end(A), Some(end(9)), 1).is_some(), "the oldest go first");
    let oldest = tuple(&udp(A, 19_000)).unwrap();
    assert_eq!(table.find(&oldest, end(A), Some(end(9)), 1), None);
}

#[test]
fn a_port_with_its_quota_of_established_connections_begins_no_more() {
    let mut table = table(64, 8);
    for n in 0..8 {
        let made = Made { protocol: 17, ports: (n, 53), ..Made::default() };
        pass(&mut table, &made, (A, B), 0, true);
        pass(&mut table, &made.reply(0), (B, A), 0, false);
    }
    let another = tuple(&Made { protocol: 17, ports: (99, 53), ..Made::default() }).unwrap();
    assert!(!table.begin(&another, end(A), Some(end(B)), 1, 0));
    assert_eq!((table.refused, table.evicted, table.len()), (1, 0, 8));
    table.sweep(121, 64);
    assert!(table.is_empty(), "all have expired");
    assert!(table.begin(&another, end(A), Some(end(B)), 1, 121));
}

#[test]
fn connections_survive_the_process_and_a_half_written_one_does_not() {
    let memory = memory(64);
    let quota = Quota(64);
    let mut before = Connections::open(memory.clone(), quota, 1);
    let made = |n| Made { protocol: 17, ports: (n, 53), ..Made::default() };
    for n in 0..10 {
        pass(&mut before, &made(n), (A, B), 0, true);
    }
    pass(&mut before, &made(3).reply(0), (B, A), 0, false);
    // The state of the last one is missing.
    let states =
        memory.chunks(8).skip(1).filter(|e| e[7].load(std::sync::atomic::Ordering::Relaxed) != 0);
    states.last().unwrap()[7].store(0, std::sync::atomic::Ordering::Relaxed);
    drop(before);
    let mut after = Connections::open(memory.clone(), quota, 2);
    assert_eq!(after.len(), 9);
    assert!(pass(&mut after, &made(3).reply(0), (B, A), 5, false).is_some());
    after.forget_port(B);
    assert!(after.is_empty());
    // Another version's memory is cleared.
    memory[1].store(99, std::sync::atomic::Ordering::Relaxed);
    assert!(Connections::open(memory, quota, 3).is_empty());
}

#[test]
fn later_fragments_follow_an_admitted_first_one() {
    let mut table = table(16, 16);
    let piece = |fragment, id| Made { protocol: 17, fragment, id, ..Made::default() }.bytes();
    let has = |table: &Table, piece: &[u8], from: u16, now| {
        let asked = |packet: &Packet<'_>| table.has_fragment(packet, end(from), Some(end(B)), now);
        with(piece, Sides::default(), 0, asked)
    };
    assert!(!has(&table, &piece(9, 7), A, 0));
    with(&piece(0x2000, 7), Sides::default(), 0, |packet| {
        table.note_fragment(packet, end(A), Some(end(B)), 0);
    });
    assert!(has(&table, &piece(9, 7), A, 29));
    assert!(!has(&table, &piece(9, 7), A, 30), "too late");
    assert!(!has(&table, &piece(9, 8), A, 0), "another packet");
    assert!(!has(&table, &piece(9, 7), 3, 0), "another port");
}
