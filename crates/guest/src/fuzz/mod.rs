//! What fuzzers drive: a host under arbitrary frames, conversations with applications, and RPC
//! between two ends.

mod frames;

pub use frames::frames;

use std::collections::{HashSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use frame::Mac;
use tcp::{Full, Nanos};

use crate::app::{App, Io, Line};
use crate::apps::iperf3::{self, Server};
use crate::nic::Room;
use crate::rpc::{
    self, Answer, Call, Carrier, Client, Config, ETHERTYPE, Failure, Peer, SessionId,
};
use crate::udp::UdpId;

/// The longest piece that an application is offered.
const PIECE: usize = 16 << 10;

/// Lets an application read `input` as a peer's stream, cut into pieces of the lengths in `cuts`,
/// in turn. Returns what it sends, to the end of its stream.
pub fn converse<A: App>(app: &mut A, input: &[u8], cuts: &[u8]) -> Vec<u8> {
    let now = Nanos(Nanos::SECOND);
    let mut sent = Vec::new();
    let Some(mut line) = Line::loose() else { return sent };
    let mut conn = app.accepted(&mut Io::new(&mut line, now));
    let (mut from, mut to, mut cuts) = (0, 0, cuts.iter().cycle());
    while to < input.len() && line.is_open() {
        let cut = cuts.next().map_or(input.len(), |cut| usize::from(*cut) + 1);
        to = input.len().min(to.saturating_add(cut));
        // Bytes that the application did not take are offered again.
        while from < to && line.is_open() {
            let piece = &input[from..to.min(from + PIECE)];
            let taken = app.data(&mut conn, &mut Io::new(&mut line, now), piece);
            assert!(taken <= piece.len(), "more was taken than was there");
            from += taken;
            let had = line.take(&mut sent);
            if had {
                app.drained(&mut conn, &mut Io::new(&mut line, now));
                line.take(&mut sent);
            }
            if taken == 0 && !had {
                break;
            }
        }
    }
    app.ended(&mut conn, &mut Io::new(&mut line, now));
    line.take(&mut sent);
    sent
}

/// An iperf3 server, which serves tests over UDP, too.
#[must_use]
pub fn iperf3_server() -> Server {
    Server::new(|| 0.0).at(SOCKET, [1472, 1452])
}

const SOCKET: UdpId = UdpId(iperf3::PORT);

/// Gives an iperf3 server datagrams from the peer of [`converse`]. Each begins with the last byte
/// of its port, and its length. Returns how many were answered.
pub fn iperf3_datagrams(server: &mut Server, mut input: &[u8]) -> usize {
    let (mut answers, mut now) = (0, Nanos(Nanos::SECOND));
    while let [port, len, rest @ ..] = input {
        let (data, after) = rest.split_at(rest.len().min((*len).into()));
        input = after;
        now = now + Nanos::MILLI;
        let from = SocketAddr::from(([10, 0, 0, 2], u16::from(*port) + 1));
        answers += usize::from(server.datagram(SOCKET, from, data, now).is_some());
    }
    answers
}

const CLIENT: Mac = Mac::local(1);
const SERVER: Mac = Mac::local(2);

/// A send ring of 32 frames.
#[derive(Default)]
struct Ring(Vec<Vec<u8>>);

impl Room for Ring {
    fn max_frame(&self) -> usize {
        600
    }

    fn build(&mut self, max: usize, build: impl FnOnce(&mut [u8]) -> usize) -> Result<(), Full> {
        if self.0.len() == 32 {
            return Err(Full);
        }
        let mut frame = vec![0; max];
        let len = build(&mut frame);
        frame.truncate(len);
        self.0.extend((len > 0).then_some(frame));
        Ok(())
    }
}

/// Two ends of RPC, and the frames between them.
struct Ends {
    client: Client,
    server: rpc::Server,
    /// Frames in flight, and whether each goes to the server.
    air: VecDeque<(bool, Vec<u8>)>,
    results: HashSet<u64>,
    now: Nanos,
}

impl Ends {
    fn deliver(&mut self, to_server: bool, frame: &[u8]) {
        let mut ring = Ring::default();
        let Self { client, server, results, now, .. } = self;
        if to_server {
            let mut handler = |_: Call, request: &[u8], reply: &mut [u8]| match request.first() {
                Some(0) => Answer::Later,
                Some(1) => Answer::Busy,
                Some(2) => Answer::Whole(tcp::Bytes::from(vec![7; 40 * request.len()])),
                _ => Answer::Here(reply.len().min(request.len())),
            };
            server.frame(frame, *now, &mut handler, &mut ring);
        } else {
            let mut replies = |_: SessionId, tag, _: Result<&[u8], Failure>| {
                assert!(results.insert(tag), "a request has two results");
            };
            client.frame(frame, *now, &mut replies, &mut ring);
        }
        self.send(ring, !to_server);
    }

    fn send(&mut self, ring: Ring, to_server: bool) {
        self.air.extend(ring.0.into_iter().map(|frame| (to_server, frame)));
        self.air.truncate(256);
    }

    fn wait(&mut self, time: u64) {
        self.now = self.now + time;
        let (mut to_server, mut to_client) = (Ring::default(), Ring::default());
        let results = &mut self.results;
        let mut replies = |_: SessionId, tag, _: Result<&[u8], Failure>| {
            assert!(results.insert(tag), "a request has two results");
        };
        self.client.poll(self.now, &mut replies, &mut to_server);
        self.server.poll(&mut to_client);
        self.send(to_server, true);
        self.send(to_client, false);
    }
}

/// Runs a script against both ends of RPC: each step is a byte that says what happens, and one that
/// says where. Frames are delivered, lost, repeated, changed or made up; requests are sent; time
/// passes. No request may have two results, and memory stays bounded. Returns how many
/// results there were.
pub fn rpc(script: &[u8]) -> usize {
    let over_udp = |address: fn(u8) -> IpAddr, ethertype| {
        let [client, server] = [1, 2].map(|number| SocketAddr::new(address(number), 4000));
        let carriers = [client, server].map(Carrier::Udp);
        rpc_in(script, carriers, Peer::over_udp(SERVER, server), ethertype)
    };
    let v4 = over_udp(|number| Ipv4Addr::new(10, 0, 0, number).into(), [0x08, 0x00]);
    let v6 = |number: u8| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number.into()).into();
    let v6 = over_udp(v6, [0x86, 0xdd]);
    let in_frames = rpc_in(script, [Carrier::Ethernet; 2], SERVER.into(), ETHERTYPE);
    v4.min(v6).min(in_frames)
}

/// The same in one kind of carriers: of the client and of the server, whose address is `peer`.
fn rpc_in(mut script: &[u8], carriers: [Carrier; 2], peer: Peer, ethertype: [u8; 2]) -> usize {
    let memory = 64 << 10;
    let [own, carrier] = carriers;
    let config = Config { checksum: false, memory, max_sessions: 4, ..Config::new(SERVER) };
    let config = Config { carrier, ..config };
    let mut ends = Ends {
        client: Client::new(Config { mac: CLIENT, carrier: own, ..config.clone() }),
        server: rpc::Server::new(config),
        air: VecDeque::new(),
        results: HashSet::new(),
        now: Nanos(Nanos::SECOND),
    };
    let mut ring = Ring::default();
    let mut session = ends.client.connect(peer, ends.now, &mut ring);
    ends.send(ring, true);
    let mut tag = 0;
    while let [what, how, rest @ ..] = script {
        script = rest;
        let (how, mut ring) = (usize::from(*how), Ring::default());
        match what % 8 {
            0 | 1 => {
                if let Some((to_server, frame)) = ends.air.pop_front() {
                    ends.deliver(to_server, &frame);
                }
            }
            2 => drop(ends.air.pop_front()),
            3 => {
                let frame = ends.air.get(how % ends.air.len().max(1)).cloned();
                ends.air.extend(frame);
            }
            4 => {
                if let (Some((_, frame)), [value, ..]) = (ends.air.front_mut(), script) {
                    let at = 14 + how % frame.len().saturating_sub(14).max(1);
                    if let Some(byte) = frame.get_mut(at) {
                        *byte ^= value;
                    }
                }
            }
            5 => {
                let (front, after) = script.split_at(script.len().min(how));
                script = after;
                let (to, from) = if what & 8 == 0 { (SERVER, CLIENT) } else { (CLIENT, SERVER) };
                let head = [&to.octets()[..], &from.octets(), &ethertype].concat();
                ends.deliver(what & 8 == 0, &[&head[..], front].concat());
            }
            6 => {
                let request = vec![*what >> 4; how * 20];
                let now = ends.now;
                let _ = ends.client.call(session, tag, &request, now, &mut ring);
                ends.send(ring, true);
                tag += 1;
            }
            _ => {
                ends.wait(how as u64 * Nanos::MILLI);
                if ends.client.is_closed(session) {
                    ends.client.close(session, &mut ring);
                    session = ends.client.connect(peer, ends.now, &mut ring);
                    ends.send(ring, true);
                }
            }
        }
        assert!(ends.server.bytes() <= memory + (1 << 20), "memory is bounded");
    }
    ends.results.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Bytes;
    use crate::apps::kv::Kv;
    use crate::apps::site::Site;

    fn site() -> Site {
        let mut site = Site::default();
        site.add("/page", Bytes::from(vec![b'x'; 100]));
        site
    }

    #[test]
    fn answers_do_not_depend_on_where_a_stream_is_cut() {
        let pages =
            b"GET /page HTTP/1.1\r\nHost: a\r\n\r\nHEAD /no HTTP/1.1\r\n\r\nGET / HTTP/1.0\r\n\r\n";
        let items =
            b"set k 0 0 5\r\nhello\r\nget k\r\nset k 0 0 x\r\nget k nothing\r\nquit\r\nget k\r\n";
        let pages_whole = converse(&mut site(), pages, &[]);
        let items_whole = converse(&mut Kv::new(1 << 20, 0), items, &[]);
        assert!(
            pages_whole.starts_with(b"HTTP/1.1 200")
                && items_whole.starts_with(b"STORED\r\nVALUE k")
        );
        for cuts in [&[0u8][..], &[3, 0, 9], &[20]] {
            assert_eq!(converse(&mut site(), pages, cuts), pages_whole);
            assert_eq!(converse(&mut Kv::new(1 << 20, 0), items, cuts), items_whole);
        }
    }

    #[test]
    fn streams_over_udp_are_opened_and_counted() {
        let params = br#"{"udp":true,"parallel":2,"len":100}"#;
        let stream = [&[b'c'; 37][..], &[0, 0, 0, params.len() as u8], params].concat();
        let mut server = iperf3_server();
        assert_eq!(converse(&mut server, &stream, &[5]), [9, 10]);
        let datagram = |port: u8, data: &[u8]| [&[port, data.len() as u8][..], data].concat();
        let greetings = [datagram(1, b"9876"), datagram(1, b"9876"), datagram(2, b"9876")];
        assert_eq!(iperf3_datagrams(&mut server, &greetings.concat()), 3);
        let data = [datagram(1, &[0; 12]), datagram(2, &[1; 100]), datagram(3, &[1; 100])];
        assert_eq!(iperf3_datagrams(&mut server, &data.concat()), 0);
        assert_eq!(server.strays, 1);
    }

    #[test]
    fn a_script_of_rpc_reaches_replies() {
        // The script opens a session in two rounds, calls, delivers, and takes the reply. Then
        // it makes a call whose reply takes many frames, and delivers those and their
        // acknowledgements.
        let mut script = vec![0, 0, 0, 0, 0, 0, 0, 0, 0x96, 3, 0, 0, 0, 0, 0x26, 20];
        script.extend([0; 2 * 100]);
        assert_eq!(rpc(&script), 2);
        assert_eq!(rpc(&script[..script.len() - 2 * 90]), 1, "ten deliveries are too few");
        assert!(rpc(&script.repeat(20)) > 20);
        let noise: Vec<u8> =
            (0..4000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        rpc(&noise);
    }
}
