//! Sockets on the loopback interface: trains arrive as they were sent, and floods continue where
//! they stopped.
#![allow(unsafe_code, reason = "options of sockets, which the supervisor sets elsewhere")]

use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};

use frame::Ecn;
use port::Nanos;
use rustix::io::Errno;
use shmem::{Memfd, Pages};

use super::flood::{Floods, To, Way};
use super::peers::{Hosts, List, Paths, PeerCounters, Peers};
use super::socket::{Address, Inbox, Part, Post};

fn set(socket: &UdpSocket, level: i32, option: i32) {
    let one: libc::c_int = 1;
    // SAFETY: the option is an int that lives during the call.
    let done =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const one).cast(), 4) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// A socket with the options of a tunnel's socket.
fn receiver(ip: IpAddr) -> UdpSocket {
    let socket = UdpSocket::bind((ip, 0)).unwrap();
    set(&socket, libc::SOL_UDP, libc::UDP_GRO);
    match ip {
        IpAddr::V4(_) => set(&socket, libc::IPPROTO_IP, libc::IP_RECVTOS),
        IpAddr::V6(_) => set(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS),
    }
    socket
}

/// The datagrams that a socket holds, with the outer codepoint of each.
fn datagrams(socket: &UdpSocket, count: usize) -> Vec<(Vec<u8>, Ecn)> {
    let (mut inbox, mut all) = (Inbox::new(), Vec::new());
    while all.len() < count {
        rustix::event::poll(
            &mut [rustix::event::PollFd::new(socket, rustix::event::PollFlags::IN)],
            None,
        )
        .unwrap();
        for message in 0..inbox.receive(socket.as_fd()).unwrap() {
            let arrived = inbox.arrived(message).unwrap();
            assert!(!arrived.cut_off);
            let bytes = inbox.part(Part { message, at: 0, len: arrived.len });
            all.extend(bytes.chunks(arrived.segment).map(|bytes| (bytes.to_vec(), arrived.ecn)));
        }
    }
    all
}

#[test]
fn a_train_arrives_as_its_datagrams_with_its_mark() {
    for ip in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(std::net::Ipv6Addr::LOCALHOST)] {
        let Ok(probe) = UdpSocket::bind((ip, 0)) else { continue };
        let (to, from) = (receiver(ip), probe);
        let address = Address::of(to.local_addr().unwrap());
        let bytes: Vec<u8> = (0..250).collect();
        let (whole, alone) = ([IoSlice::new(&bytes)], [IoSlice::new(&bytes[..20])]);
        let mut post = Post::new();
        assert!(post.push(&address, &whole, Some(100), Ecn::Ce));
        assert!(post.push(&address, &alone, None, Ecn::NotEct));
        let mut sent = 0;
        while sent < 2 {
            sent += post.send(from.as_fd(), sent).unwrap();
        }
        let expected = [
            (bytes[..100].to_vec(), Ecn::Ce),
            (bytes[100..200].to_vec(), Ecn::Ce),
            (bytes[200..].to_vec(), Ecn::Ce),
            (bytes[..20].to_vec(), Ecn::NotEct),
        ];
        assert_eq!(datagrams(&to, 4), expected, "{ip}");
    }
}

#[test]
fn senders_are_known_by_their_addresses_of_either_version() {
    for ip in [IpAddr::V4(Ipv4Addr::new(127, 0, 0, 5)), IpAddr::V6(std::net::Ipv6Addr::LOCALHOST)] {
        let Ok(from) = UdpSocket::bind((ip, 0)) else { continue };
        let to = receiver(ip);
        from.send_to(&[1; 9], to.local_addr().unwrap()).unwrap();
        let mut inbox = Inbox::new();
        assert_eq!(inbox.receive(to.as_fd()), Ok(1));
        let arrived = inbox.arrived(0).unwrap();
        assert_eq!((arrived.from, arrived.len, arrived.segment), (ip, 9, 9));
    }
}

/// A list of peers of this many segments, these of which get floods.
fn list<'a>(peers: &'a [IpAddr], flooded: &'a [u16], (segments, port): (u16, u16)) -> List<'a> {
    List { peers, flooded: Some(flooded), segments, port }
}

/// Peers at one socket, each with an address of its own.
fn peers(count: u8, port: u16) -> Peers {
    let memory = Memfd::create("peers", PeerCounters::bytes(count.into()), Pages::Small).unwrap();
    let ips: Vec<_> = (1..=count).map(|n| IpAddr::V4(Ipv4Addr::new(127, 0, 1, n))).collect();
    Peers::new(&List { peers: &ips, flooded: None, segments: 1, port }, memory.into_fd()).unwrap()
}

#[test]
fn floods_go_on_where_they_stopped_and_no_call_makes_many_copies() {
    const PEERS: u8 = 200;
    const FRAMES: usize = 3;
    let socket = UdpSocket::bind(SocketAddr::from(([0, 0, 0, 0], 0))).unwrap();
    let peers = peers(PEERS, socket.local_addr().unwrap().port());
    let from = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (mut floods, mut paths) = (Floods::default(), Paths::new(PEERS.into()));
    for number in 0..FRAMES {
        assert!(floods.push(Way::default(), 70, |bytes| bytes.fill(number as u8)));
    }
    assert!(floods.push(Way::default(), 80, |bytes| bytes.fill(9)));
    assert_eq!(floods.pending(), FRAMES + 1);
    let (mut made, mut done) = (0, Vec::new());
    let mut bytes = [0; 100];
    while !floods.is_empty() {
        let sockets = [from.as_fd()];
        let now = Nanos(1);
        let to = &mut To { peers: &peers, paths: &mut paths, sockets: &sockets, now };
        let (tried, train) = floods.go_on(to, 32);
        assert!((1..=32).contains(&tried), "{tried}");
        made += tried;
        done.extend(train.map(|train| (train.frames, train.error.is_none())));
        // The socket's buffer must not overflow.
        for _ in 0..tried {
            let (len, _) = socket.recv_from(&mut bytes).unwrap();
            assert!(len == 70 && usize::from(bytes[0]) < FRAMES || len == 80 && bytes[0] == 9);
        }
    }
    assert_eq!(made, (FRAMES + 1) * usize::from(PEERS));
    assert_eq!(done, [(FRAMES as u64, true), (1, true)]);
    for via in 1..=u16::from(PEERS) {
        let counters = peers.counters(via).unwrap();
        assert_eq!(counters.out_frames.get(), FRAMES as u64 + 1);
        assert_eq!(counters.out_bytes.get(), FRAMES as u64 * 62 + 72);
    }
}

#[test]
fn peers_that_are_replaced_get_the_next_frames() {
    let socket = UdpSocket::bind(SocketAddr::from(([0, 0, 0, 0], 0))).unwrap();
    let port = socket.local_addr().unwrap().port();
    let (hosts, from) = (Hosts::new(peers(9, port)), UdpSocket::bind("127.0.0.1:0").unwrap());
    let mut known = hosts.current();
    assert!(!known.refresh(&hosts), "nothing new");
    let ip = |n| IpAddr::V4(Ipv4Addr::new(127, 0, 2, n));
    let free = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    // Numbers 1, 3 and 4; 3 gets no floods; 2 and 9 are nobody's.
    let four = [ip(1), free, ip(3), ip(4)];
    let new = list(&four, &[4, 1, 1, 2, 9], (1, port));
    hosts.replace(known.peers.replaced(&new).unwrap());
    assert!(known.refresh(&hosts));
    let peers = &*known.peers;
    assert_eq!(
        (peers.via(0, ip(3)), peers.via(0, free), peers.flooded_from(0, 1)),
        (Some(3), None, &[1, 4][..])
    );
    assert!(peers.address(2).is_none() && peers.address(5).is_none());
    assert!(peers.replaced(&list(&[ip(1); 10], &[], (1, port))).is_none(), "memory for nine");
    let flood = |peers: &Peers| {
        let (mut floods, mut paths) = (Floods::default(), Paths::new(peers.count()));
        assert!(floods.push(Way::default(), 70, |bytes| bytes.fill(1)));
        let sockets = [from.as_fd()];
        let to = &mut To { peers, paths: &mut paths, sockets: &sockets, now: Nanos(1) };
        let (tried, done) = floods.go_on(to, 32);
        (tried, done.unwrap().error)
    };
    assert_eq!(flood(peers), (2, None));
    let sent = [1, 3, 4].map(|via| peers.counters(via).unwrap().out_frames.get());
    assert_eq!(sent, [1, 0, 1]);
    let none = peers.replaced(&list(&[], &[], (1, port))).unwrap();
    assert_eq!(flood(&none), (0, Some(Errno::HOSTUNREACH)), "there is no host to get it");
}

#[test]
fn each_segment_has_its_own_peers_and_floods() {
    let socket = UdpSocket::bind(SocketAddr::from(([0, 0, 0, 0], 0))).unwrap();
    let port = socket.local_addr().unwrap().port();
    let ip = |n| IpAddr::V4(Ipv4Addr::new(127, 0, 2, n));
    // Hosts 1 and 2 are in both segments, host 3 in the second alone.
    let free = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let six = [ip(1), ip(1), ip(2), ip(2), free, ip(3)];
    let peers = peers(6, port).replaced(&list(&six, &[1, 2, 4, 6], (2, port))).unwrap();
    let via = |segment| [1, 2, 3].map(|n| peers.via(segment, ip(n)));
    assert_eq!((via(0), via(1)), ([Some(1), Some(3), None], [Some(2), Some(4), Some(6)]));
    assert_eq!((peers.flooded_from(0, 1), peers.flooded_from(1, 3)), (&[1][..], &[4, 6][..]));
    assert!(peers.via(2, ip(1)).is_none() && peers.flooded_from(2, 1).is_empty());
    let (mut floods, mut paths) = (Floods::default(), Paths::new(peers.count()));
    for segment in [0, 1, 1] {
        assert!(floods.push(Way { segment, ..Way::default() }, 70, |bytes| bytes.fill(9)));
    }
    let from = UdpSocket::bind("127.0.0.1:0").unwrap();
    let sockets = [from.as_fd()];
    let to = &mut To { peers: &peers, paths: &mut paths, sockets: &sockets, now: Nanos(1) };
    let mut frames = Vec::new();
    while !floods.is_empty() {
        frames.extend(floods.go_on(to, 64).1.map(|done| done.frames));
    }
    assert_eq!(frames, [1, 2], "a train is of one segment");
    let sent = (1..=6).map(|via| peers.counters(via).unwrap().out_frames.get());
    assert_eq!(sent.collect::<Vec<_>>(), [1, 2, 0, 2, 0, 2]);
}

#[test]
fn floods_that_wait_are_bounded() {
    let mut floods = Floods::default();
    let mut taken = 0;
    while floods.push(Way { socket: (taken % 7) as u8, ..Way::default() }, 1500, |_| ()) {
        taken += 1;
        assert!(taken < 100_000, "without end");
    }
    assert!(taken >= 256, "{taken}");
}
