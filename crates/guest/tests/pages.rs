//! The web server and load generator of the examples: two hosts on an inline switch, in virtual
//! time.

use std::net::{SocketAddr, SocketAddrV4};

use frame::OffloadSet;
use guest::{App, Bytes, Guest, Io, Nanos, RingNic};
use link::Impairment;

mod world;

use guest::apps::load::{Fetch, Load};
use guest::apps::site::Site;
use world::{CLIENT, SERVER, World, v6};

const WEB: SocketAddrV4 = SocketAddrV4::new(SERVER, 80);

fn document(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// A client that sends its text, and keeps what it receives until the peer ends its stream.
#[derive(Default)]
struct Client {
    text: Bytes,
    came: Vec<u8>,
    ended: bool,
}

impl App for Client {
    type Conn = ();
    fn accepted(&mut self, _: &mut Io<'_>) {}
    fn connected(&mut self, _: &mut (), io: &mut Io<'_>) {
        io.send(self.text.clone());
        io.finish();
    }
    fn data(&mut self, _: &mut (), _: &mut Io<'_>, data: &[u8]) -> usize {
        self.came.extend(data);
        data.len()
    }
    fn closed(&mut self, _: (), _: Option<guest::CloseReason>) {
        self.ended = true;
    }
}

fn server(world: &mut World, impairment: Option<Impairment>) -> Guest<RingNic, Site> {
    let mut site = Site::default();
    site.add("/index.html", Bytes::from(document(1024)));
    site.add("/long.bin", Bytes::from(document(8 << 20)));
    let mut server = Guest::new(world.host(SERVER, impairment), site);
    server.listen(80, 64).unwrap();
    server
}

/// Returns the server's answer to `text`, up to the end of the stream.
fn fetch(text: &str, impairment: Option<Impairment>) -> (Vec<u8>, World, Guest<RingNic, Site>) {
    let (answer, world, server, _) =
        fetch_by(text, impairment, [OffloadSet::NONE; 2], World::new());
    (answer, world, server)
}

type Fetched = (Vec<u8>, World, Guest<RingNic, Site>, Guest<RingNic, Client>);

/// Like [`fetch`], with these offloads of server and client.
fn fetch_by(
    text: &str,
    impairment: Option<Impairment>,
    offloads: [OffloadSet; 2],
    mut world: World,
) -> Fetched {
    world.offloads = offloads[0];
    let mut server = server(&mut world, impairment);
    let app = Client { text: text.to_owned().into(), ..Client::default() };
    world.offloads = offloads[1];
    let mut client = Guest::new(world.host(CLIENT, impairment), app);
    let web = if world.ipv6 { SocketAddr::new(v6(SERVER).into(), 80) } else { WEB.into() };
    client.connect(web, (), world.now).unwrap();
    for turn in 0.. {
        client.poll(world.now).unwrap();
        world.turn();
        server.poll(world.now).unwrap();
        world.turn();
        if client.app().ended {
            break;
        }
        assert!(turn < 40_000_000, "{turn} turns: {:?}", client.stack().tcp());
    }
    let came = std::mem::take(&mut client.app().came);
    (came, world, server, client)
}

#[test]
fn documents_are_fetched_by_ipv6_with_and_without_offloads_and_with_loss() {
    let (none, all) = (OffloadSet::NONE, OffloadSet::ALL);
    for (loss_ppm, offloads) in
        [(0, [none, none]), (0, [all, all]), (0, [all, none]), (10_000, [none, all])]
    {
        let lossy =
            (loss_ppm > 0).then(|| Impairment { loss_ppm, seed: 3, ..Impairment::default() });
        let world = World { ipv6: true, ..World::new() };
        let (answer, _, mut server, mut client) = fetch_by(LONG, lossy, offloads, world);
        assert!(split(&answer).1 == document(8 << 20));
        let client = client.stack().counters();
        // Reports of groups are for routers and switches.
        assert!(server.stack().counters().dropped(guest::Drop::NotForUs) <= client.reports);
        let frames = client.frames_in;
        if offloads == [all, all] {
            assert!(frames < 1000, "8 MiB in {frames} frames");
        }
    }
}

const LONG: &str = "GET /long.bin HTTP/1.1\r\nHost: x\r\n\r\n";

#[test]
fn long_frames_cross_the_switch_whole_where_both_ends_take_them() {
    for in_place in [false, true] {
        let world = World { in_place, ..World::new() };
        let (answer, _, mut server, mut client) = fetch_by(LONG, None, [OffloadSet::ALL; 2], world);
        assert!(split(&answer).1 == document(8 << 20));
        let sent = server.stack().tcp().counters().clone();
        assert_eq!(sent.bytes_retransmitted, 0);
        let frames = client.stack().counters().frames_in;
        assert!(frames < 1000, "8 MiB in {frames} frames");
        assert!(sent.segments_out > 5000, "{sent:?}");
        if in_place {
            let lent = client.stack().tcp().counters().bytes_lent;
            assert!(lent > 8 << 20, "no byte was copied into a buffer: {lent}");
        }
    }
}

#[test]
fn a_host_without_offloads_understands_one_with_them() {
    for offloads in [[OffloadSet::ALL, OffloadSet::NONE], [OffloadSet::NONE, OffloadSet::ALL]] {
        let (answer, ..) = fetch_by(LONG, None, offloads, World::new());
        assert!(split(&answer).1 == document(8 << 20));
    }
    let checksum = OffloadSet { checksum: true, ..OffloadSet::NONE };
    let (answer, ..) = fetch_by(LONG, None, [OffloadSet::ALL, checksum], World::new());
    assert!(split(&answer).1 == document(8 << 20));
}

#[test]
fn packets_of_several_slots_are_understood() {
    for in_place in [false, true] {
        let world = World { in_place, mtu: 9000, ..World::new() };
        let (answer, _, _, mut client) = fetch_by(LONG, None, [OffloadSet::NONE; 2], world);
        assert!(split(&answer).1 == document(8 << 20));
        let frames = client.stack().counters().frames_in;
        assert!(frames < 1100, "8 MiB in {frames} frames");
        assert_eq!(client.stack().counters().drops().count(), 0);
    }
}

#[test]
fn long_frames_that_are_lost_come_again() {
    let bad = Impairment { seed: 5, loss_ppm: 20_000, ..Impairment::default() };
    let (answer, ..) = fetch_by(LONG, Some(bad), [OffloadSet::ALL; 2], World::new());
    assert!(split(&answer).1 == document(8 << 20));
}

/// Splits off the first answer: returns its head and body, and what follows.
fn split(answer: &[u8]) -> (String, Vec<u8>) {
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n").expect("a head") + 4;
    (String::from_utf8(answer[..end].to_vec()).unwrap(), answer[end..].to_vec())
}

#[test]
fn a_page_is_fetched() {
    let (answer, ..) = fetch("GET /index.html HTTP/1.1\r\nHost: x\r\n\r\n", None);
    let (head, body) = split(&answer);
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("Content-Length: 1024\r\n"), "{head}");
    assert_eq!(body, document(1024));
}

#[test]
fn a_long_document_arrives_byte_for_byte() {
    let (answer, _, mut server) = fetch("GET /long.bin HTTP/1.1\r\nHost: x\r\n\r\n", None);
    assert!(split(&answer).1 == document(8 << 20));
    assert_eq!(server.stack().tcp().counters().bytes_retransmitted, 0);
}

#[test]
fn a_long_document_arrives_although_frames_are_lost() {
    let bad = Impairment { seed: 5, loss_ppm: 10_000, ..Impairment::default() };
    let (answer, world, mut server) = fetch("GET /long.bin HTTP/1.1\r\nHost: x\r\n\r\n", Some(bad));
    assert!(split(&answer).1 == document(8 << 20));
    let counters = server.stack().tcp().counters();
    assert!(counters.bytes_retransmitted > 0, "{counters:?}");
    // On average, a lost frame costs no more than the minimum time-out.
    let took = world.now - Nanos(Nanos::SECOND);
    assert!(took < 10 * Nanos::SECOND, "{took} ns for 8 MiB");
}

#[test]
fn requests_in_a_row_are_answered_in_order_without_bodies_where_none_is_asked_for() {
    let text = "HEAD /index.html HTTP/1.1\r\nHost: x\r\n\r\nGET /none HTTP/1.1\r\nHost: x\r\n\r\n\
                GET /index.html HTTP/1.1\r\nHost: x\r\nRange: bytes=1000-\r\n\r\n\
                GET /index.html HTTP/1.1\r\nHost: x\r\nRange: bytes=2000-\r\n\r\n\
                POST / HTTP/1.1\r\nHost: x\r\n\r\nGET /index.html HTTP/1.0\r\n\r\n\
                GET /index.html HTTP/1.1\r\n\r\n";
    let (mut answer, ..) = fetch(text, None);
    let expected = ["200", "404", "206", "416", "405", "200"];
    let mut tag = String::new();
    for (i, status) in expected.into_iter().enumerate() {
        let (head, rest) = split(&answer);
        assert_eq!(&head[9..12], status, "{head}");
        let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name));
        tag = field("ETag: ").map_or(tag, str::to_owned);
        let len = field("Content-Length: ").unwrap().parse().unwrap();
        let len = if i == 0 { 0 } else { len };
        let failure = format!("{}\n", &head[9..head.find('\r').unwrap()]);
        let whole = if status > "400" { failure.into_bytes() } else { document(1024) };
        assert_eq!(rest[..len], whole[whole.len() - len..], "{head}");
        answer = rest[len..].to_vec();
    }
    assert_eq!(answer, b"", "HTTP/1.0 ends after its answer");
    let text =
        format!("GET /index.html HTTP/1.1\r\nHost: x\r\nIf-None-Match: W/\"1\", {tag}\r\n\r\n");
    let (head, body) = split(&fetch(&text, None).0);
    assert_eq!((&head[9..12], &body[..]), ("304", &b""[..]));
}

#[test]
fn a_head_that_does_not_end_is_refused() {
    let text = format!("GET / HTTP/1.1\r\nLong: {}\r\n\r\n", "x".repeat(12_000));
    let (answer, ..) = fetch(&text, None);
    assert!(answer.starts_with(b"HTTP/1.1 431 "), "{}", String::from_utf8_lossy(&answer));
    let (answer, ..) = fetch("\0\r\n\r\n", None);
    assert!(answer.starts_with(b"HTTP/1.1 400 "), "{}", String::from_utf8_lossy(&answer));
}

#[test]
fn many_requests_in_a_row_for_long_documents_wait_for_their_reader() {
    let one = "GET /long.bin HTTP/1.1\r\nHost: x\r\n\r\n";
    let (answer, ..) = fetch(&one.repeat(12), None);
    let (head, _) = split(&answer);
    assert_eq!(answer.len(), 12 * (head.len() + (8 << 20)));
}

#[test]
fn a_load_of_many_connections_gets_right_answers_only() {
    let mut world = World::new();
    let mut server = server(&mut world, None);
    let mut client = Guest::new(world.host(CLIENT, None), Load::new("x", "/index.html"));
    for _ in 0..100 {
        client.connect(WEB, Fetch::default(), world.now).unwrap();
    }
    for _ in 0..1_000_000 {
        client.poll(world.now).unwrap();
        world.turn();
        server.poll(world.now).unwrap();
        world.turn();
        if client.app().answers >= 10_000 {
            break;
        }
    }
    let load = client.app();
    assert!(load.answers >= 10_000);
    assert_eq!((load.errors, load.lost, load.bytes / 1024 - load.answers), (0, 0, 0));
    assert_eq!(load.latencies.len(), load.answers);
    assert_eq!((client.connections(), server.connections()), (100, 100));
    let counters = server.stack().tcp().counters();
    assert!(counters.bytes_lent > counters.bytes_in / 2, "most requests lie in one frame");
}
