//! The fuzzing harness: drives a machine by nearly correct segments and by arbitrary calls.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr};

use crate::codec::{self, MAX_HEADERS, Summing, Verify};
use crate::{
    Bytes, Config, ConnId, Ecn, Emit, Flags, Flow, Full, Header, KeepAlive, ListenerId, Machine,
    Nanos, Options, Receive, Request, SackBlocks, Secret, Segment, Seq, Timestamp, Tuning,
};

const US: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const THEM: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const MEMORY: usize = 256 << 10;

/// Remembers what the machine has sent, so that answers can be nearly right.
#[derive(Default)]
struct Heard {
    seq: Seq,
    ack: Seq,
    stamp: u32,
    segments: usize,
    port: u16,
}

impl Emit for Heard {
    fn emit(&mut self, request: &Request<'_>) -> Result<(), Full> {
        let header = &request.header;
        let mut packet = alloc::vec![0; MAX_HEADERS];
        let len = codec::write_headers(request, &mut packet, Summing::Full);
        packet.truncate(len.unwrap_or(0));
        request.payload.pieces().for_each(|piece| packet.extend_from_slice(piece));
        assert!(packet.len() <= 65_535);
        // Every sent packet must parse back to what was written.
        if request.gso_size == 0 {
            let parsed =
                codec::parse(&packet, Verify::Checksums).map(|s| (s.header, s.payload.len()));
            let expected = Header { flow: header.flow.reversed(), ..*header };
            assert_eq!(parsed, Ok((expected, request.payload.len())));
        }
        self.seq = header.seq + request.payload.len() as u32;
        self.ack = header.ack;
        self.stamp = header.options.timestamp.map_or(self.stamp, |stamp| stamp.value);
        self.port = header.flow.local_port();
        self.segments += 1;
        Ok(())
    }
}

struct Taking(u8);

impl Receive for Taking {
    fn receive(&mut self, _: ConnId, data: &[u8]) -> usize {
        data.len() * usize::from(self.0) / 255
    }
}

struct Driver<'d> {
    input: &'d [u8],
    machine: Machine,
    listener: Option<ListenerId>,
    ids: Vec<ConnId>,
    heard: Heard,
    now: Nanos,
}

/// Drives a machine by `input`. Panics if the machine violates an invariant.
pub fn run(input: &[u8]) {
    let keep_alive = Some(KeepAlive { idle: Nanos::SECOND, interval: Nanos::SECOND, probes: 3 });
    let config = Config {
        tuning: Tuning { keep_alive, ..Tuning::default() },
        max_connections: 8,
        max_half_open: 2,
        max_time_wait: 4,
        memory: MEMORY,
        max_replies: 8,
        gso_max: 65_535,
        receive_max: 256 << 10,
        ..Config::default()
    };
    let mut machine = Machine::new(config, Secret([1, 2]));
    let listener = machine.listen(None, 80, 4, None).ok();
    let now = Nanos(Nanos::SECOND);
    let mut driver =
        Driver { input, machine, listener, ids: Vec::new(), heard: Heard::default(), now };
    while !driver.input.is_empty() {
        driver.step();
        driver.check();
    }
    driver.end();
}

impl Driver<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.input.split_first().unwrap_or((&0, &[]));
        self.input = rest;
        *first
    }

    /// Reads a number from two bytes; most are small.
    fn number(&mut self) -> u32 {
        let (shift, value) = (self.byte(), self.byte());
        u32::from(value) << (shift % 25)
    }

    fn near(&mut self, number: Seq) -> Seq {
        match self.byte() % 8 {
            0 => number + self.number(),
            1 => number - self.number(),
            _ => number,
        }
    }

    fn step(&mut self) {
        match self.byte() % 16 {
            0..=7 => self.segments(),
            8 => self.handshake(),
            9 => {
                let wait = u64::from(self.number()) * 1000;
                self.now = self.now + wait;
            }
            10 => self.open_or_accept(),
            11 => self.send(),
            12 => self.read(),
            13 => self.close(),
            14 => {
                let flow = self.flow(80);
                let (seq, mtu) = (self.near(self.heard.ack), self.number() as u16);
                self.machine.too_big(&flow, seq, mtu, self.now);
            }
            _ => {
                let bytes = self.input;
                self.machine.parse(bytes, Verify::Nothing);
            }
        }
        self.machine.transmit(self.now, &mut self.heard);
    }

    fn flow(&mut self, port: u16) -> Flow {
        let remote = 1000 + u16::from(self.byte() % 4);
        Flow::new((US, port), (THEM, remote)).unwrap_or_else(|| unreachable!("both are IPv4"))
    }

    fn segments(&mut self) {
        let data = [7; 3000];
        let kind = self.byte();
        let port = if kind & 1 == 0 { 80 } else { self.heard.port.max(1) };
        let flow = self.flow(port);
        let flags = match kind >> 1 & 7 {
            0 => Flags::SYN,
            1 => Flags::SYN | Flags::ACK,
            2 => Flags::from_bits_retain(self.byte()),
            3 => Flags::ACK | Flags::FIN,
            _ => Flags::ACK,
        };
        let mut header = Header {
            flow,
            seq: self.near(self.heard.ack),
            ack: self.near(self.heard.seq),
            flags,
            window: self.number() as u16,
            ecn: Ecn::from_traffic_class(self.byte()),
            options: self.options(),
        };
        let mut batch = Vec::new();
        for _ in 0..self.byte() % 4 + 1 {
            let len = (self.number() as usize).min(data.len());
            batch.push(Segment { header, payload: &data[..len] });
            header.seq += len as u32;
        }
        let mut app = Taking(self.byte());
        self.machine.on_batch(&batch, self.now, &mut app);
    }

    /// Completes a correct handshake, then lets the application send.
    fn handshake(&mut self) {
        let flow = self.flow(80);
        let value = u32::from(self.byte());
        let mut header = Header {
            flow,
            seq: self.near(Seq(1000)),
            ack: Seq(0),
            flags: Flags::SYN | Flags::ECE | Flags::CWR,
            window: 60_000,
            ecn: Ecn::NotCapable,
            options: Options {
                mss: Some(1460),
                window_scale: Some(3),
                sack_permitted: true,
                ack_delay: 1,
                timestamp: (value & 1 != 0).then_some(Timestamp { value, echo: 0 }),
                sack: SackBlocks::NONE,
            },
        };
        self.say(header);
        header.seq += 1;
        header.ack = self.heard.seq + 1;
        header.flags = Flags::ACK;
        let echo = self.heard.stamp;
        header.options = Options {
            timestamp: header.options.timestamp.map(|stamp| Timestamp { echo, ..stamp }),
            ..Options::default()
        };
        self.now = self.now + Nanos::MILLI;
        self.say(header);
        if let Some(id) = self.listener.and_then(|listener| self.machine.accept(listener)) {
            self.ids.push(id);
            let _ = self.machine.send(id, Bytes::from_static(&[9; 40_000]));
        }
    }

    /// Sends a segment without payload, and handles the answers.
    fn say(&mut self, header: Header) {
        self.machine.on_segment(&Segment { header, payload: &[] }, self.now, &mut Taking(0));
        self.machine.transmit(self.now, &mut self.heard);
    }

    fn options(&mut self) -> Options {
        let kind = self.byte();
        let mut sack = SackBlocks::default();
        for _ in 0..kind >> 5 & 3 {
            let start = self.heard.seq - self.number();
            sack.push(start, start + self.number());
        }
        let value = u32::from(self.byte());
        Options {
            mss: (kind & 1 != 0).then_some(value as u16 * 16),
            window_scale: (kind & 2 != 0).then_some(value as u8 & 15),
            sack_permitted: kind & 4 != 0,
            ack_delay: kind & 8,
            timestamp: (kind & 8 != 0).then_some(Timestamp { value, echo: self.heard.stamp }),
            sack,
        }
    }

    fn open_or_accept(&mut self) {
        let port = 1000 + u16::from(self.byte() % 4);
        if let Some(id) = self.listener.and_then(|listener| self.machine.accept(listener)) {
            self.ids.push(id);
        } else if let Ok(id) = self.machine.connect((US, 0), (THEM, port), None, self.now) {
            self.ids.push(id);
        }
    }

    fn id(&mut self) -> Option<ConnId> {
        let at = usize::from(self.byte());
        self.ids.get(at % self.ids.len().max(1)).copied()
    }

    fn send(&mut self) {
        let (len, Some(id)) = (self.number() as usize % 200_000, self.id()) else { return };
        let bytes = alloc::vec![3; len];
        if len.is_multiple_of(2) {
            let _ = self.machine.send(id, Bytes::from(bytes));
        } else {
            let _ = self.machine.send_slice(id, &bytes);
        }
    }

    fn read(&mut self) {
        let (n, Some(id)) = (self.number() as usize, self.id()) else { return };
        self.machine.receive(id, |data| data.len().min(n));
        let _ = (self.machine.next_event(), self.machine.path(id));
    }

    fn close(&mut self) {
        let (kind, Some(id)) = (self.byte(), self.id()) else { return };
        match kind % 3 {
            0 => self.machine.shut_down(id),
            1 => self.machine.close(id, self.now),
            _ => self.machine.abort(id, self.now),
        }
    }

    /// Checks that all limits hold.
    fn check(&mut self) {
        let usage = self.machine.usage();
        assert!(usage.connections <= 8 && usage.half_open <= 2 && usage.time_wait <= 4);
        assert!(usage.memory <= MEMORY);
        assert!(!self.machine.has_work(), "all was sent");
        assert!(self.heard.segments < 5000, "one step makes few segments");
        self.heard.segments = 0;
    }

    /// Closes everything, and checks that nothing is left.
    fn end(&mut self) {
        for id in core::mem::take(&mut self.ids) {
            self.machine.close(id, self.now);
        }
        if let Some(listener) = self.listener {
            self.machine.stop_listening(listener, self.now);
        }
        for _ in 0..10_000 {
            self.machine.transmit(self.now, &mut self.heard);
            match self.machine.deadline() {
                Some(at) => self.now = self.now.max(at),
                None => break,
            }
        }
        let usage = self.machine.usage();
        assert_eq!(
            (usage.connections, usage.half_open, usage.memory),
            (0, 0, 0),
            "{:?}",
            self.machine
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_segments_break_a_promise(input in proptest::collection::vec(any::<u8>(), 0..3000)) {
            run(&input);
        }

        #[test]
        fn any_packet_is_parsed_without_panic(mut packet in proptest::collection::vec(any::<u8>(), 0..120), six in any::<bool>()) {
            if let Some(first) = packet.first_mut() {
                *first = if six { 0x60 } else { 0x45 };
            }
            if packet.len() > 20 {
                packet[if six { 6 } else { 9 }] = 6;
            }
            let _ = codec::parse(&packet, Verify::Nothing);
            let _ = codec::parse(&packet, Verify::Checksums);
        }
    }
}
