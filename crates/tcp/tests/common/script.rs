//! Packet scripts, like packetdrill's: segments go in, segments are expected. Numbers are relative:
//! ours to our SYN, the peer's to its own.
#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::VecDeque;
use std::net::IpAddr;

use toklat_tcp::{
    Buffered, ConnId, Counters, Drop, Ecn, Emit, Flags, Flow, Full, Header, ListenerId, Machine,
    Nanos, Options, Request, SackBlocks, Secret, Segment, Seq, State, Timestamp,
};

use super::{MILLI, SECOND, v4};

pub const PEER_ISN: Seq = Seq(0xffff_fff0);

/// A segment that was sent.
#[derive(Clone, Debug)]
pub struct Sent {
    pub header: Header,
    pub payload: Vec<u8>,
    pub gso_size: u16,
}

#[derive(Default)]
pub struct Capture(pub VecDeque<Sent>);

impl Emit for Capture {
    fn emit(&mut self, request: &Request<'_>) -> Result<(), Full> {
        let mut payload = vec![0; request.payload.len()];
        request.payload.copy_to(&mut payload);
        self.0.push_back(Sent { header: request.header, payload, gso_size: request.gso_size });
        Ok(())
    }
}

/// Builds a segment of the peer.
#[derive(Clone)]
pub struct In {
    pub flags: Flags,
    pub seq: u32,
    pub ack: Option<u32>,
    pub window: u16,
    pub data: Vec<u8>,
    pub stamp: Option<u32>,
    pub no_stamp: bool,
    pub sack: Vec<(u32, u32)>,
    pub options: Options,
    pub ecn: Ecn,
    pub port: u16,
}

pub fn seg(flags: &str, seq: u32) -> In {
    In {
        flags: flags.chars().fold(Flags::empty(), |flags, c| flags | flag(c)),
        seq,
        ack: None,
        window: 60_000,
        data: Vec::new(),
        stamp: None,
        no_stamp: false,
        sack: Vec::new(),
        options: Options::default(),
        ecn: Ecn::NotCapable,
        port: 5000,
    }
}

fn flag(c: char) -> Flags {
    match c {
        'S' => Flags::SYN,
        'A' => Flags::ACK,
        'F' => Flags::FIN,
        'R' => Flags::RST,
        'P' => Flags::PSH,
        'E' => Flags::ECE,
        'C' => Flags::CWR,
        _ => panic!("no flag {c}"),
    }
}

impl In {
    pub fn ack(mut self, ack: u32) -> Self {
        self.ack = Some(ack);
        self
    }
    pub fn window(mut self, window: u16) -> Self {
        self.window = window;
        self
    }
    pub fn data(mut self, len: usize) -> Self {
        self.data = vec![7; len];
        self
    }
    pub fn stamp(mut self, value: u32) -> Self {
        self.stamp = Some(value);
        self
    }
    pub fn no_stamp(mut self) -> Self {
        self.no_stamp = true;
        self
    }
    pub fn sack(mut self, blocks: &[(u32, u32)]) -> Self {
        self.sack = blocks.to_vec();
        self
    }
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }
    pub fn marked(mut self) -> Self {
        self.ecn = Ecn::Congested;
        self
    }
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }
}

pub fn syn_options() -> Options {
    Options { mss: Some(1460), window_scale: Some(7), sack_permitted: true, ..Options::default() }
}

pub struct Script {
    pub machine: Machine,
    pub now: Nanos,
    pub out: VecDeque<Sent>,
    pub iss: Seq,
    pub local_port: u16,
    pub remote_port: u16,
    /// The peer's timestamp clock, if the connection uses timestamps.
    pub stamps: Option<u32>,
    pub last_value: u32,
    pub listener: Option<ListenerId>,
    pub id: Option<ConnId>,
    pub local: IpAddr,
    pub remote: IpAddr,
}

pub fn config() -> toklat_tcp::Config {
    toklat_tcp::Config::default()
}

impl Script {
    pub fn new(config: toklat_tcp::Config) -> Self {
        Self {
            machine: Machine::new(config, Secret([3, 4])),
            now: Nanos(10 * SECOND),
            out: VecDeque::new(),
            iss: Seq(0),
            local_port: 80,
            remote_port: 5000,
            stamps: None,
            last_value: 0,
            listener: None,
            id: None,
            local: v4(1),
            remote: v4(2),
        }
    }

    pub fn flow(&self, port: u16) -> Flow {
        Flow::new((self.local, self.local_port), (self.remote, port)).unwrap()
    }

    pub fn id(&self) -> ConnId {
        self.id.unwrap()
    }

    pub fn state(&self) -> Option<State> {
        self.machine.state(self.id())
    }

    pub fn counters(&self) -> Counters {
        self.machine.counters()
    }

    pub fn dropped(&self, reason: Drop) -> u64 {
        self.counters().dropped(reason)
    }

    pub fn header(&self, segment: &In) -> Header {
        let mut options = segment.options;
        let stamp = segment.stamp.or(self.stamps).filter(|_| !segment.no_stamp);
        options.timestamp = stamp.map(|value| Timestamp { value, echo: self.last_value });
        let mut sack = SackBlocks::default();
        segment.sack.iter().for_each(|(start, end)| sack.push(self.iss + *start, self.iss + *end));
        options.sack = sack;
        let acks = segment.flags.contains(Flags::ACK);
        Header {
            flow: self.flow(segment.port),
            seq: PEER_ISN + segment.seq,
            ack: segment.ack.filter(|_| acks).map_or(Seq(0), |ack| self.iss + ack),
            flags: segment.flags,
            window: segment.window,
            ecn: segment.ecn,
            options,
        }
    }

    /// Sends segments of the peer, in one batch.
    pub fn batch(&mut self, segments: &[In]) {
        let headers: Vec<_> = segments.iter().map(|s| self.header(s)).collect();
        let batch: Vec<_> = segments
            .iter()
            .zip(headers)
            .map(|(s, header)| Segment { header, payload: &s.data })
            .collect();
        self.machine.on_batch(&batch, self.now, &mut Buffered);
        self.transmit();
    }

    pub fn send(&mut self, segment: In) {
        self.batch(&[segment]);
    }

    pub fn transmit(&mut self) {
        let mut capture = Capture(std::mem::take(&mut self.out));
        self.machine.transmit(self.now, &mut capture);
        self.out = capture.0;
    }

    /// Lets time pass; timers run when they are due.
    pub fn wait(&mut self, nanos: u64) {
        let end = self.now + nanos;
        while let Some(at) = self.machine.deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.transmit();
        }
        self.now = end;
        self.transmit();
    }

    /// Lets time pass until a segment is sent. Returns how much time passed.
    pub fn wait_for_segment(&mut self) -> u64 {
        let from = self.now;
        while self.out.is_empty() {
            let at = self.machine.deadline().expect("a timer is set");
            assert!(at - from < 7200 * SECOND, "nothing comes");
            self.now = self.now.max(at);
            self.transmit();
        }
        self.now - from
    }

    /// Checks the next segment that was sent: its flags, relative numbers and payload length.
    #[track_caller]
    pub fn expect(&mut self, flags: &str, seq: u32, ack: Option<u32>, len: usize) -> Sent {
        let sent = self.out.pop_front().expect("a segment was sent");
        let expected = flags.chars().fold(Flags::empty(), |flags, c| flags | flag(c));
        if sent.header.flags.contains(Flags::SYN) {
            (self.iss, self.local_port) = (sent.header.seq, sent.header.flow.local_port());
        }
        let found = (sent.header.flags, sent.header.seq.since(self.iss), sent.payload.len());
        assert_eq!(found, (expected, seq, len), "flags, number, length of {sent:?}");
        if let Some(ack) = ack {
            assert_eq!(sent.header.ack.since(PEER_ISN), ack, "acknowledgment");
        }
        if let Some(stamp) = sent.header.options.timestamp {
            self.last_value = stamp.value;
        }
        sent
    }

    #[track_caller]
    pub fn expect_nothing(&self) {
        assert!(self.out.is_empty(), "{:?}", self.out);
    }

    /// Opens a connection from the peer and accepts it, with timestamps if `stamps`. The round trip
    /// takes a millisecond.
    pub fn accepted(config: toklat_tcp::Config, stamps: bool) -> Self {
        let mut script = Self::new(config);
        script.stamps = stamps.then_some(1000);
        script.listener = Some(script.machine.listen(None, 80, 2, None).unwrap());
        script.send(seg("S", 0).options(syn_options()));
        script.expect("SA", 0, Some(1), 0);
        script.wait(MILLI);
        script.send(seg("A", 1).ack(1).window(1000));
        script.expect_nothing();
        script.id = script.machine.accept(script.listener.unwrap());
        assert_eq!(script.state(), Some(State::Established));
        script
    }

    pub fn write(&mut self, len: usize) {
        let bytes = vec![9; len];
        self.machine.send(self.id(), bytes.into()).unwrap();
        self.transmit();
    }

    /// Exchanges data both ways until ACKs are delayed.
    pub fn settled(config: toklat_tcp::Config, stamps: bool) -> (Self, u32) {
        let mut script = Self::accepted(config, stamps);
        let mut seq = 1;
        for _ in 0..16 {
            script.send(seg("A", seq).ack(1).data(10).window(1000));
            seq += 10;
            script.expect("A", 1, Some(seq), 0);
        }
        script.machine.receive(script.id(), |data| data.len());
        (script, seq)
    }
}
