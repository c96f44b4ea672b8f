//! A TCP/IP peer without a stack: it sends what other systems send, and what none should. The same
//! script runs against a guest and against Linux.

use std::net::Ipv4Addr;
use std::time::Duration;

use frame::checksum::{Sum, checksum};
use frame::{Arp, ArpOperation, ETHERNET_HEADER, EtherType, Ethernet, Ipv4, Mac, Protocol};
use zerocopy::IntoBytes;

/// What carries the peer's frames.
pub trait Wire {
    fn send(&mut self, frame: &[u8]);
    /// The next frame, if one comes within this time.
    fn receive(&mut self, within: Duration) -> Option<Vec<u8>>;
    /// The time since some moment.
    fn now(&self) -> Duration;
}

const MAC: Mac = Mac::local(0x7977);
/// How long an answer may take, on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(20);
const ECHO: u16 = 7;

const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;
const PUSH: u8 = 8;

/// A segment of the server.
#[derive(Debug)]
pub struct Segment {
    flags: u8,
    seq: u32,
    ack: u32,
    stamped: bool,
    data: Vec<u8>,
}

pub struct Peer<W> {
    wire: W,
    own: Ipv4Addr,
    server: Ipv4Addr,
    station: Mac,
    port: u16,
}

/// The options of the segments of a connection: SYN, the ACK of the handshake, data.
type Options = [&'static [u8]; 3];

const MSS: &[u8] = &[2, 4, 5, 180];
/// MSS, SACK-permitted, timestamps; and timestamps alone.
const STAMPED: &[u8] = &[2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 3, 232, 0, 0, 0, 0];
const STAMP: &[u8] = &[1, 1, 8, 10, 0, 0, 3, 233, 0, 0, 0, 0];
const SACKED: &[u8] = &[2, 4, 5, 180, 4, 2, 1, 1];

/// Connections of strangers, all of which Linux serves.
pub const CONNECTIONS: &[(&str, Options)] = &[
    ("no options", [&[], &[], &[]]),
    ("an MSS", [MSS, &[], &[]]),
    ("timestamps everywhere", [STAMPED, STAMP, STAMP]),
    ("timestamps not in the request", [STAMPED, STAMP, &[]]),
    ("timestamps not in the handshake's end", [STAMPED, &[], STAMP]),
    ("timestamps in the SYN alone", [STAMPED, &[], &[]]),
    ("SYN: kind 99 of length 0", [&[2, 4, 5, 180, 99, 0, 0, 0], &[], &[]]),
    ("SYN: kind 99 of length 1", [&[2, 4, 5, 180, 99, 1, 1, 1], &[], &[]]),
    ("SYN: a length past the end", [&[2, 4, 5, 180, 99, 32, 0, 0], &[], &[]]),
    ("SYN: a kind in the last byte", [&[2, 4, 5, 180, 1, 1, 1, 99], &[], &[]]),
    ("SYN: MSS of length 3", [&[2, 3, 5, 1], &[], &[]]),
    ("SYN: SACK-permitted of length 3", [&[2, 4, 5, 180, 4, 3, 0, 1], &[], &[]]),
    ("SYN: window scale of length 4", [&[2, 4, 5, 180, 3, 4, 7, 0], &[], &[]]),
    ("SYN: timestamps of length 8", [&[2, 4, 5, 180, 8, 8, 0, 0, 0, 1, 0, 0], &[], &[]]),
    ("SYN: an unknown experiment", [&[2, 4, 5, 180, 254, 6, 1, 2, 3, 4, 1, 1], &[], &[]]),
    ("data: kind 99 of length 0", [SACKED, &[], &[99, 0, 0, 0]]),
    ("data: SACK of length 2", [SACKED, &[], &[5, 2, 1, 1]]),
    ("data: SACK of length 6", [SACKED, &[], &[5, 6, 0, 0, 0, 1, 1, 1]]),
    ("data: a kind in the last byte", [SACKED, &[], &[1, 1, 1, 99]]),
    ("data: timestamps of length 8", [SACKED, &[], &[8, 8, 0, 0, 0, 1, 0, 0]]),
    ("data: an MSS", [SACKED, &[], MSS]),
];

impl<W: Wire> Peer<W> {
    /// A peer at `own` of the server at `server`, which echoes what comes to port 7.
    pub fn new(wire: W, own: Ipv4Addr, server: Ipv4Addr) -> Self {
        let mut peer = Self { wire, own, server, station: Mac::BROADCAST, port: 20_000 };
        let nobody = Mac::from_word(0);
        let arp = Arp::new(ArpOperation::REQUEST, (MAC, own), (nobody, server));
        for _ in 0..20 {
            peer.put(EtherType::ARP, arp.as_bytes());
            while let Some(frame) = peer.wire.receive(Duration::from_secs(1)) {
                let Some((ethernet, rest)) = Ethernet::parse(&frame) else { continue };
                let arp = Arp::parse(rest).filter(|_| ethernet.ethertype() == EtherType::ARP);
                if let Some((mac, ip)) = arp.map(|arp| arp.sender())
                    && ip == server
                {
                    peer.station = mac;
                    return peer;
                }
            }
        }
        panic!("the server does not answer ARP");
    }

    fn put(&mut self, kind: EtherType, payload: &[u8]) {
        let mut frame = Ethernet::new(self.station, MAC, kind).as_bytes().to_vec();
        frame.extend(payload);
        frame.resize(frame.len().max(60), 0);
        self.wire.send(&frame);
    }

    fn packet(&mut self, protocol: Protocol, field: [u8; 2], payload: &[u8]) {
        let ip = Ipv4::new(self.own, self.server, protocol, payload.len() as u16);
        let mut packet = ip.as_bytes().to_vec();
        packet[4..6].copy_from_slice(&self.port.to_be_bytes());
        packet[6..8].copy_from_slice(&field);
        packet[10..12].fill(0);
        let sum = checksum(&packet);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet.extend(payload);
        self.put(EtherType::IPV4, &packet);
    }

    fn segment(&mut self, flags: u8, numbers: (u32, u32), options: &[u8], data: &[u8]) {
        let mut tcp = [self.port, ECHO].map(u16::to_be_bytes).concat();
        tcp.extend(numbers.0.to_be_bytes());
        tcp.extend(numbers.1.to_be_bytes());
        assert_eq!(options.len() % 4, 0);
        tcp.extend([(5 + options.len() as u8 / 4) << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
        tcp.extend(options);
        tcp.extend(data);
        let addresses = [self.own.octets(), self.server.octets()].concat();
        let sum = Sum::new().with_pseudo_header(&addresses, Protocol::TCP, tcp.len() as u32);
        let sum = sum.with(&tcp).checksum();
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        self.packet(Protocol::TCP, [0x40, 0], &tcp);
    }

    /// The next packet of the server. Requests for the peer's station are answered.
    fn next(&mut self, within: Duration) -> Option<(Protocol, Vec<u8>)> {
        let end = self.wire.now() + within;
        loop {
            let frame = self.wire.receive(end.saturating_sub(self.wire.now()))?;
            let (ethernet, rest) = Ethernet::parse(&frame)?;
            match ethernet.ethertype() {
                EtherType::ARP => {
                    let Some(arp) = Arp::parse(rest) else { continue };
                    let asks = arp.operation() == ArpOperation::REQUEST;
                    if asks && arp.target().1 == self.own {
                        let reply = Arp::new(ArpOperation::REPLY, (MAC, self.own), arp.sender());
                        self.put(EtherType::ARP, reply.as_bytes());
                    }
                }
                EtherType::IPV4 => {
                    let Some((ip, _)) = Ipv4::parse(rest) else { continue };
                    if ip.source() == self.server && ip.destination() == self.own {
                        let packet = &frame[ETHERNET_HEADER..][..ip.total_len()];
                        return Some((ip.protocol(), packet[ip.header_len()..].to_vec()));
                    }
                }
                _ => {}
            }
        }
    }

    /// The next segment of the current connection.
    fn heard(&mut self, within: Duration) -> Option<Segment> {
        let end = self.wire.now() + within;
        loop {
            let (protocol, tcp) = self.next(end.saturating_sub(self.wire.now()))?;
            let ports = [ECHO, self.port].map(u16::to_be_bytes).concat();
            if protocol != Protocol::TCP || tcp[..4] != ports {
                continue;
            }
            let word = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().unwrap());
            let start = usize::from(tcp[12] >> 4) * 4;
            let stamped = tcp[20..start].windows(2).any(|option| option == [8, 10]);
            let (seq, ack, data) = (word(4), word(8), tcp[start..].to_vec());
            return Some(Segment { flags: tcp[13], seq, ack, stamped, data });
        }
    }

    /// Opens a connection; returns the next number of the server.
    fn open(&mut self, name: &str, syn: &'static [u8], ack: &'static [u8]) -> (u32, bool) {
        self.port += 1;
        self.segment(SYN, (1000, 0), syn, &[]);
        let answer = self.heard(PATIENCE).unwrap_or_else(|| panic!("{name}: no answer"));
        assert_eq!((answer.flags & 0x17, answer.ack), (SYN | ACK, 1001), "{name}");
        let next = answer.seq.wrapping_add(1);
        self.segment(ACK, (1001, next), ack, &[]);
        (next, answer.stamped)
    }

    /// Makes all connections of the table: each sends ten bytes and gets them back.
    pub fn talk(&mut self) {
        for (name, [syn, ack, data]) in CONNECTIONS {
            let (next, stamped) = self.open(name, syn, ack);
            assert_eq!(stamped, *syn == STAMPED, "{name}: timestamps are agreed");
            self.segment(PUSH | ACK, (1001, next), data, b"ten bytes.");
            let echo = std::iter::from_fn(|| self.heard(PATIENCE)).find(|it| !it.data.is_empty());
            let echo = echo.unwrap_or_else(|| panic!("{name}: no echo"));
            assert_eq!(
                (&echo.data[..], echo.seq, echo.ack),
                (&b"ten bytes."[..], next, 1011),
                "{name}"
            );
            self.segment(RST | ACK, (1011, next.wrapping_add(10)), &[], &[]);
        }
    }

    /// A peer that delays its ACKs gets each lone response once.
    pub fn acknowledge_late(&mut self) {
        let delay = Duration::from_millis(150);
        let (first, _) = self.open("late", SACKED, &[]);
        for i in 0..5 {
            let numbers = (1001 + 10 * i, first.wrapping_add(10 * i));
            self.segment(PUSH | ACK, numbers, &[], b"ten bytes.");
            let (mut copies, mut end) = (0, self.wire.now() + PATIENCE);
            while let Some(segment) = self.heard(end.saturating_sub(self.wire.now())) {
                let is_first = copies == 0 && !segment.data.is_empty();
                copies += usize::from(!segment.data.is_empty());
                end = if is_first { self.wire.now() + delay } else { end };
            }
            assert_eq!(copies, 1, "response {i}");
            self.segment(ACK, (1011 + 10 * i, first.wrapping_add(10 * i + 10)), &[], &[]);
        }
        self.segment(RST | ACK, (1051, first.wrapping_add(50)), &[], &[]);
    }

    /// What is below TCP: an echo in fragments, and a datagram for a closed port.
    pub fn ask_below(&mut self) {
        let mut message = [&[8, 0, 0, 0, 1, 2, 3, 4][..], &[7; 1000]].concat();
        let sum = checksum(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        self.packet(Protocol::ICMP, [0, 63], &message[504..]);
        self.packet(Protocol::ICMP, [0x20, 0], &message[..504]);
        let (protocol, answer) = self.next(PATIENCE).expect("an echo");
        assert_eq!(
            (protocol, &answer[..2], &answer[4..]),
            (Protocol::ICMP, &[0, 0][..], &message[4..])
        );
        self.packet(Protocol::UDP, [0x40, 0], &[0, 99, 0, 98, 0, 12, 0, 0, 1, 2, 3, 4]);
        let (protocol, answer) = self.next(PATIENCE).expect("an error");
        assert_eq!((protocol, &answer[..2]), (Protocol::ICMP, &[3, 3][..]));
        assert_eq!(answer[28..40], [0, 99, 0, 98, 0, 12, 0, 0, 1, 2, 3, 4]);
    }
}
