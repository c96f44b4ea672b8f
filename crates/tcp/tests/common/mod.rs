//! Machines over a simulated channel in virtual time. The channel loses, delays, reorders,
//! duplicates and corrupts packets, as a seed decides.
#![allow(dead_code, reason = "each test file uses a part")]

pub mod script;

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use frame::{ETHERNET_HEADER, EtherType, Ethernet, Mac, checksum};
use toklat_tcp::codec::{self, MAX_HEADERS, Summing, Verify};
use toklat_tcp::{
    Buffered, Bytes, ConnId, Emit, Full, ListenerId, Machine, Nanos, Receive, Request, Secret,
};
use zerocopy::IntoBytes;

pub const MICRO: u64 = Nanos::MICRO;
pub const MILLI: u64 = Nanos::MILLI;
pub const SECOND: u64 = Nanos::SECOND;

pub fn v4(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
}

pub fn v6(last: u16) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last))
}

/// SplitMix64.
#[derive(Clone)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.next() % n }
    }

    pub fn chance(&mut self, per_million: u32) -> bool {
        self.below(1_000_000) < u64::from(per_million)
    }
}

/// The byte of a stream at a position.
pub fn pattern(stream: u8, at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 ^ stream
}

/// Collects packets as a NIC without offloads would send them: requests of several segments are
/// cut.
#[derive(Default)]
pub struct Wire {
    pub packets: VecDeque<Vec<u8>>,
    /// Packets for which there is room; `None` for no limit.
    pub room: Option<usize>,
    pub requests: Vec<(usize, u16)>,
}

impl Emit for Wire {
    fn emit(&mut self, request: &Request<'_>) -> Result<(), Full> {
        if self.room.is_some_and(|room| self.packets.len() >= room) {
            return Err(Full);
        }
        self.requests.push((request.payload.len(), request.gso_size));
        if request.gso_size != 0 {
            self.cut(request);
            return Ok(());
        }
        let mut packet = vec![0; MAX_HEADERS];
        let len = codec::write_headers(request, &mut packet, Summing::Full).expect("headers fit");
        packet.truncate(len);
        request.payload.pieces().for_each(|piece| packet.extend_from_slice(piece));
        self.packets.push_back(packet);
        Ok(())
    }
}

impl Wire {
    /// Treats an offload request as the switch does: validates it, then cuts the frame.
    fn cut(&mut self, request: &Request<'_>) {
        let mut frame = vec![0; ETHERNET_HEADER + MAX_HEADERS];
        let kind = if request.header.flow.is_v4() { EtherType::IPV4 } else { EtherType::IPV6 };
        let ethernet = Ethernet::new(Mac::local(1), Mac::local(2), kind);
        frame[..ETHERNET_HEADER].copy_from_slice(ethernet.as_bytes());
        let len = codec::write_headers(request, &mut frame[ETHERNET_HEADER..], Summing::Partial);
        frame.truncate(ETHERNET_HEADER + len.expect("headers fit"));
        request.payload.pieces().for_each(|piece| frame.extend_from_slice(piece));
        let mut offload = codec::offload(request, ETHERNET_HEADER as u16);
        offload.validate(&frame, frame.len()).expect("the request is valid");
        let segments = offload.segments(&frame, frame.len()).expect("there are several");
        assert_eq!(segments.count(), request.segments());
        for i in 0..segments.count() {
            let mut piece = frame[..segments.header_len()].to_vec();
            piece.extend_from_slice(&frame[segments.payload(i)]);
            segments.write_headers(i, &mut piece);
            assert!(checksum::complete(
                &mut piece,
                offload.checksum_start,
                offload.checksum_offset
            ));
            self.packets.push_back(piece.split_off(ETHERNET_HEADER));
        }
    }
}

/// Impairments of a channel. Probabilities are in parts per million.
#[derive(Clone, Copy, Debug, Default)]
pub struct Impairments {
    pub loss: u32,
    pub duplicate: u32,
    pub reorder: u32,
    pub corrupt: u32,
    /// The delay in one direction, in nanoseconds.
    pub delay: u64,
    /// Maximum delay of a reordered packet, in nanoseconds.
    pub late: u64,
    /// Rate in bytes per second; 0 for no limit.
    pub rate: u64,
    /// Queue limit in bytes; packets beyond it are dropped.
    pub queue: u64,
    /// Queue length in bytes above which ECN-capable packets are marked; 0 for never.
    pub mark: u64,
    /// Acknowledgments without data are lost, too.
    pub lose_acks: bool,
}

/// A channel of one direction.
pub struct Channel {
    pub impairments: Impairments,
    rng: Rng,
    flying: BTreeMap<(u64, u64), Vec<u8>>,
    count: u64,
    /// When the line is free for the next packet.
    free: u64,
    pub lost: u64,
    pub passed: u64,
}

impl Channel {
    pub fn new(impairments: Impairments, seed: u64) -> Self {
        Self {
            impairments,
            rng: Rng(seed),
            flying: BTreeMap::new(),
            count: 0,
            free: 0,
            lost: 0,
            passed: 0,
        }
    }

    pub fn put(&mut self, now: Nanos, mut packet: Vec<u8>) {
        let b = self.impairments;
        let data = packet.len() > 100;
        if self.rng.chance(b.loss) && (data || b.lose_acks) {
            self.lost += 1;
            return;
        }
        let mut at = now.0;
        if b.rate > 0 {
            let waiting =
                self.free.saturating_sub(now.0) as u128 * u128::from(b.rate) / 1_000_000_000;
            if waiting as u64 + packet.len() as u64 > b.queue {
                self.lost += 1;
                return;
            }
            if b.mark > 0 && waiting as u64 > b.mark && packet[0] >> 4 == 4 && packet[1] & 3 == 2 {
                packet[1] |= 3;
                let sum =
                    checksum::update(u16::from_be_bytes([packet[10], packet[11]]), 0x4502, 0x4503);
                packet[10..12].copy_from_slice(&sum.to_be_bytes());
            }
            self.free =
                self.free.max(now.0) + (packet.len() as u64 * 1_000_000_000 / b.rate).max(1);
            at = self.free;
        }
        at += b.delay;
        if self.rng.chance(b.reorder) {
            at += self.rng.below(b.late);
        }
        if self.rng.chance(b.corrupt) {
            let bit = self.rng.below(packet.len() as u64 * 8) as usize;
            packet[bit / 8] ^= 1 << (bit % 8);
        }
        if self.rng.chance(b.duplicate) {
            let again = at + self.rng.below(b.late.max(1));
            self.fly(again, packet.clone());
        }
        self.fly(at, packet);
    }

    fn fly(&mut self, at: u64, packet: Vec<u8>) {
        self.count += 1;
        self.passed += 1;
        self.flying.insert((at, self.count), packet);
    }

    pub fn next(&self) -> Option<Nanos> {
        self.flying.first_key_value().map(|((at, _), _)| Nanos(*at))
    }

    /// Takes the packets that have arrived, at most a batch.
    pub fn take(&mut self, now: Nanos) -> Vec<Vec<u8>> {
        let mut batch = Vec::new();
        while batch.len() < 64 && self.next().is_some_and(|at| at <= now) {
            batch.extend(self.flying.pop_first().map(|(_, packet)| packet));
        }
        batch
    }
}

/// A host at one end of a channel.
pub trait Host {
    /// Takes the packets that arrived, lets the application work, and returns the packets to send.
    fn turn(&mut self, batch: &[Vec<u8>], now: Nanos) -> Vec<Vec<u8>>;
    fn deadline(&self) -> Option<Nanos>;
    fn is_done(&self) -> bool;
    fn state(&self) -> String;
}

/// Two hosts and a channel for each direction.
pub struct Net<A, B> {
    pub a: A,
    pub b: B,
    pub to_b: Channel,
    pub to_a: Channel,
    pub now: Nanos,
    pub turns: u64,
}

impl<A: Host, B: Host> Net<A, B> {
    pub fn new(a: A, b: B, there: Impairments, back: Impairments, seed: u64) -> Self {
        let (to_b, to_a) = (Channel::new(there, seed), Channel::new(back, !seed));
        Self { a, b, to_b, to_a, now: Nanos(SECOND), turns: 0 }
    }

    fn next(&self) -> Option<Nanos> {
        let times = [self.to_a.next(), self.to_b.next(), self.a.deadline(), self.b.deadline()];
        times.into_iter().flatten().min().map(|at| at.max(self.now))
    }

    pub fn step(&mut self) -> bool {
        let Some(at) = self.next() else { return false };
        self.now = at;
        self.turns += 1;
        let batch = self.to_a.take(at);
        self.a.turn(&batch, at).into_iter().for_each(|packet| self.to_b.put(at, packet));
        let batch = self.to_b.take(at);
        self.b.turn(&batch, at).into_iter().for_each(|packet| self.to_a.put(at, packet));
        true
    }

    /// Runs until both are done. Panics if that takes longer than `limit` nanoseconds of virtual
    /// time.
    pub fn run(&mut self, limit: u64) {
        let end = self.now + limit;
        while !(self.a.is_done() && self.b.is_done()) {
            assert!(self.now < end, "not done in time: {} {}", self.a.state(), self.b.state());
            assert!(
                self.turns < 400_000,
                "too many turns at {:?}: {:?} {:?}",
                self.now,
                self.to_a.passed,
                self.to_b.passed
            );
            assert!(
                self.step(),
                "nothing happens any more at {:?}: {} {}",
                self.now,
                self.a.state(),
                self.b.state()
            );
        }
    }

    pub fn run_for(&mut self, nanos: u64) {
        let end = self.now + nanos;
        while self.next().is_some_and(|at| at <= end) {
            assert!(self.turns < 400_000, "it never comes to rest");
            self.step();
        }
        self.now = end;
    }
}

/// How an application reads received data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// The application reads all data in the frame.
    Lent,
    /// The application reads a part of the data in the frame, and the rest later.
    Partly,
    /// The application reads from the receive buffer.
    Buffered,
    /// From the buffer, after a pause of this many nanoseconds.
    Slow(u64),
}

/// A machine whose application sends one stream and checks the other.
pub struct Peer {
    pub machine: Machine,
    pub id: Option<ConnId>,
    pub listener: Option<ListenerId>,
    pub to_send: u64,
    pub sent: u64,
    pub expected: u64,
    pub received: u64,
    pub reading: Reading,
    pub chunk: usize,
    pub copies: bool,
    pub at_end: bool,
    pub first_byte: Option<Nanos>,
    pub last_byte: Option<Nanos>,
    pub closed: bool,
    pub room: Option<usize>,
    /// The application ends its stream only after the peer has ended its own.
    pub closes_last: bool,
    /// Whether the application compares each byte.
    pub check: bool,
    next_read: Nanos,
    stream: u8,
    /// A chunk that is sent repeatedly when bytes are not compared.
    cached: Option<Bytes>,
    rng: Rng,
}

impl Peer {
    pub fn new(config: toklat_tcp::Config, stream: u8) -> Self {
        Self {
            machine: Machine::new(config, Secret([u64::from(stream), 42])),
            id: None,
            listener: None,
            to_send: 0,
            sent: 0,
            expected: 0,
            received: 0,
            reading: Reading::Lent,
            chunk: 10_000,
            copies: false,
            at_end: false,
            first_byte: None,
            last_byte: None,
            closed: false,
            room: None,
            closes_last: false,
            check: true,
            next_read: Nanos(0),
            stream,
            cached: None,
            rng: Rng(u64::from(stream)),
        }
    }

    fn send(&mut self) {
        let Some(id) = self.id else { return };
        while self.sent < self.to_send {
            let len = (self.to_send - self.sent).min(self.chunk as u64) as usize;
            if self.machine.send_room(id) == 0 {
                // Asks for an event when there is room.
                let _ = self
                    .machine
                    .send_slice(id, &[pattern(self.stream, self.sent)])
                    .map(|n| self.sent += n as u64);
                return;
            }
            let bytes = self.bytes(len);
            if self.copies {
                match self.machine.send_slice(id, &bytes) {
                    Ok(n) => self.sent += n as u64,
                    Err(_) => return,
                }
            } else if self.machine.send(id, bytes).is_ok() {
                self.sent += len as u64;
            } else {
                return;
            }
        }
        let may_close = !self.closes_last || self.at_end;
        if !self.closed && self.sent == self.to_send && may_close {
            self.closed = true;
            self.machine.shut_down(id);
        }
    }

    fn bytes(&mut self, len: usize) -> Bytes {
        let (stream, at) = (self.stream, self.sent);
        let made = || (0..len as u64).map(|i| pattern(stream, at + i)).collect::<Vec<_>>().into();
        if self.chunk < 100_000 {
            return made();
        }
        self.cached.get_or_insert_with(made).slice(..len)
    }

    fn read(&mut self, now: Nanos) {
        let Some(id) = self.id else { return };
        if let Reading::Slow(pause) = self.reading {
            if now < self.next_read {
                return;
            }
            self.next_read = now + pause;
        }
        let (peer, mut at, each) = (self.stream ^ 1, self.received, self.check);
        let limit = if matches!(self.reading, Reading::Slow(_)) { 5000 } else { usize::MAX };
        let mut left = limit;
        self.machine.receive(id, |data| {
            let n = data.len().min(left);
            check(peer, &mut at, &data[..n], each);
            left -= n;
            n
        });
        if at > self.received {
            self.first_byte.get_or_insert(now);
            self.last_byte = Some(now);
        }
        self.received = at;
        if self.machine.is_at_end(id) && self.machine.readable(id) == 0 {
            self.at_end = true;
        }
    }
}

fn check(stream: u8, at: &mut u64, data: &[u8], each: bool) {
    if !each {
        *at += data.len() as u64;
        return;
    }
    for byte in data {
        assert_eq!(*byte, pattern(stream, *at), "byte {at} of stream {stream}");
        *at += 1;
    }
}

struct Checker<'a> {
    stream: u8,
    at: &'a mut u64,
    partly: Option<&'a mut Rng>,
    each: bool,
}

impl Receive for Checker<'_> {
    fn receive(&mut self, _: ConnId, data: &[u8]) -> usize {
        let n = match &mut self.partly {
            Some(rng) => rng.below(data.len() as u64 + 1) as usize,
            None => data.len(),
        };
        check(self.stream, self.at, &data[..n], self.each);
        n
    }
}

impl Host for Peer {
    fn turn(&mut self, batch: &[Vec<u8>], now: Nanos) -> Vec<Vec<u8>> {
        let segments: Vec<_> =
            batch.iter().filter_map(|p| self.machine.parse(p, Verify::Checksums)).collect();
        let before = self.received;
        let partly = Some(&mut self.rng).filter(|_| self.reading == Reading::Partly);
        let mut checker =
            Checker { stream: self.stream ^ 1, at: &mut self.received, partly, each: self.check };
        match self.reading {
            Reading::Lent | Reading::Partly => self.machine.on_batch(&segments, now, &mut checker),
            _ => self.machine.on_batch(&segments, now, &mut Buffered),
        }
        if self.received > before {
            self.first_byte.get_or_insert(now);
            self.last_byte = Some(now);
        }
        if let Some(listener) = self.listener
            && let Some(id) = self.machine.accept(listener)
        {
            assert!(self.id.is_none(), "one connection at a time");
            self.id = Some(id);
        }
        while self.machine.next_event().is_some() {}
        self.read(now);
        self.send();
        let mut wire = Wire { room: self.room, ..Wire::default() };
        self.machine.transmit(now, &mut wire);
        wire.packets.into()
    }

    fn deadline(&self) -> Option<Nanos> {
        let read = match self.reading {
            Reading::Slow(_) if self.id.is_some_and(|id| self.machine.readable(id) > 0) => {
                Some(self.next_read)
            }
            _ => None,
        };
        [self.machine.deadline(), read].into_iter().flatten().min()
    }

    fn state(&self) -> String {
        let id = self.id;
        let state = id.map(|id| {
            (self.machine.state(id), self.machine.close_reason(id), self.machine.path(id))
        });
        format!(
            "sent {} received {} {state:?} {:?}",
            self.sent,
            self.received,
            self.machine.counters()
        )
    }

    fn is_done(&self) -> bool {
        self.sent == self.to_send && self.closed && self.received == self.expected && self.at_end
    }
}

/// Makes two peers: `a` connects to `b`, and sends `there` bytes; `b` sends `back` bytes.
pub fn pair(
    config: &toklat_tcp::Config,
    there: u64,
    back: u64,
    ips: (IpAddr, IpAddr),
) -> (Peer, Peer) {
    let (mut a, mut b) = (Peer::new(config.clone(), 2), Peer::new(config.clone(), 3));
    b.listener = Some(b.machine.listen(None, 80, 16, None).unwrap());
    (a.to_send, a.expected, b.to_send, b.expected) = (there, back, back, there);
    a.id = Some(a.machine.connect((ips.0, 0), (ips.1, 80), None, Nanos(SECOND)).unwrap());
    (a, b)
}
