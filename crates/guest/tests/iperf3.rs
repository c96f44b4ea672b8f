//! iperf3's two ends over the stack: results, a busy server, and clients that stop half way.

use std::net::{SocketAddr, SocketAddrV4};

use guest::apps::iperf3::{Client, Params, Report, Server, Udp};
use guest::{App, Bytes, Guest, Io, Nanos, RingNic};

mod world;

use world::{CLIENT, SERVER, World};

type Ends = (Guest<RingNic, Server>, Guest<RingNic, Client>);

fn server(world: &mut World) -> Guest<RingNic, Server> {
    let mut stack = world.host(SERVER, None);
    let app = Server::new(|| 0.0).over_udp(&mut stack).unwrap();
    let mut server = Guest::new(stack, app);
    server.listen(5201, 200).unwrap();
    server
}

fn to() -> SocketAddrV4 {
    SocketAddrV4::new(SERVER, 5201)
}

/// Runs a test of a second of the world's time.
fn measured(world: &mut World, ends: &mut Ends) -> Result<Report, &'static str> {
    measured_at(world, ends, to().into())
}

fn measured_at(
    world: &mut World,
    (server, client): &mut Ends,
    to: SocketAddr,
) -> Result<Report, &'static str> {
    client.connect(to, guest::apps::iperf3::Line::Control, world.now).unwrap();
    for _ in 0..1_000_000 {
        client.app().tick(world.now);
        client.poll(world.now).unwrap();
        for index in client.app().wanted() {
            let line = guest::apps::iperf3::Line::Data(index);
            client.connect(to, line, world.now).unwrap();
        }
        let (stack, app) = client.parts();
        app.datagrams(stack, to, world.now).unwrap();
        client.stack().transmit(world.now).unwrap();
        world.turn();
        server.poll(world.now).unwrap();
        let (stack, app) = server.parts();
        app.datagrams(stack, world.now);
        stack.transmit(world.now).unwrap();
        world.turn();
        world.now = world.now + 10_000 * Nanos::MICRO;
        if let Some(result) = client.app().result() {
            return result.cloned();
        }
    }
    panic!("the test does not end")
}

fn ends(world: &mut World, params: Params) -> Ends {
    let server = server(world);
    let client = Client::new(params, [b'a'; 36], || 0.0);
    let client = Guest::new(world.host(CLIENT, None), client);
    (server, client)
}

#[test]
fn both_ends_count_the_same_bytes_in_all_directions() {
    for (parallel, reverse, both) in
        [(1, false, false), (1, true, false), (3, false, false), (2, true, false), (1, false, true)]
    {
        let mut world = World::new();
        let params = Params { parallel, reverse, both, seconds: 1, ..Params::default() };
        let mut ends = ends(&mut world, params);
        let report = measured(&mut world, &mut ends).unwrap();
        let its = ends.0.app().reports.pop().unwrap();
        let streams = if both { 2 } else { parallel };
        assert_eq!(report.peer.streams.len(), streams);
        assert_eq!((report.sent > 1 << 20, report.received > 1 << 20), (!reverse, reverse || both));
        let counted = |report: &Report| report.peer.streams.iter().map(|s| s.bytes).sum::<u64>();
        assert_eq!(counted(&its), report.sent + report.received);
        assert_eq!(counted(&report), its.sent + its.received);
        assert!(its.received <= report.sent && report.received <= its.sent);
        assert!((report.seconds - 1.0).abs() < 0.1, "{report:?}");
    }
}

fn udp(parallel: usize, reverse: bool, both: bool) -> Params {
    let udp = Some(Udp { rate: 4_000_000, wide: reverse });
    Params { parallel, reverse, both, seconds: 1, piece: 1000, udp }
}

/// A rate of 4 Mbit/s is 500 datagrams of 1,000 bytes a second on each stream.
#[test]
fn datagrams_are_sent_at_their_rate_and_counted_by_both_ends() {
    for (parallel, reverse, both) in
        [(1, false, false), (1, true, false), (3, false, false), (2, true, false), (2, false, true)]
    {
        for ipv6 in [false, true] {
            let mut world = World::new();
            world.ipv6 = ipv6;
            let mut ends = ends(&mut world, udp(parallel, reverse, both));
            let to =
                if ipv6 { SocketAddr::new(world::v6(SERVER).into(), 5201) } else { to().into() };
            let report = measured_at(&mut world, &mut ends, to).unwrap();
            let its = ends.0.app().reports.pop().unwrap();
            assert_eq!(report.datagrams.len(), if reverse || both { parallel } else { 0 });
            assert_eq!(its.datagrams.len(), if reverse { 0 } else { parallel });
            for counted in report.datagrams.iter().chain(&its.datagrams) {
                assert!((480..=520).contains(&counted.packets), "{counted:?}");
                assert_eq!((counted.lost, counted.reordered), (0, 0), "{counted:?}");
                assert_eq!(counted.bytes, counted.packets * 1000);
                assert!(counted.jitter < 0.02, "{counted:?}");
            }
            // Each end learns what the other one has counted.
            for (one, other) in [(&report, &its), (&its, &report)] {
                let received = other.peer.streams.iter().map(|stream| stream.bytes).sum::<u64>();
                assert_eq!(received, one.sent + one.received);
            }
            assert_eq!(ends.0.app().strays, 0);
        }
    }
}

/// A link that loses 5 % and delays some.
#[test]
fn lost_and_late_datagrams_are_counted() {
    let mut world = World::new();
    let impairment = link::Impairment {
        loss_ppm: 50_000,
        delay_us: 1000,
        reorder_ppm: 50_000,
        seed: 7,
        ..link::Impairment::default()
    };
    let server = server(&mut world);
    let client = Client::new(udp(1, false, false), [b'a'; 36], || 0.0);
    let client = Guest::new(world.host(CLIENT, Some(impairment)), client);
    let mut ends = (server, client);
    let report = measured(&mut world, &mut ends).unwrap();
    let its = ends.0.app().reports.pop().unwrap();
    let [counted] = its.datagrams[..] else { panic!("{its:?}") };
    let sent = report.sent / 1000;
    assert!((5..=80).contains(&counted.lost), "{counted:?} of {sent}");
    assert!(counted.reordered > 0 && counted.jitter > 0.0, "{counted:?}");
    // What came, and what did not, but for those that were under way at the end.
    let known = counted.bytes / 1000 + counted.lost;
    assert!(known.abs_diff(counted.packets) <= counted.reordered, "{counted:?}");
    let [told] = report.peer.streams[..] else { panic!("{report:?}") };
    assert_eq!((told.lost, told.packets), (counted.lost, counted.packets));
}

/// Datagrams of another host open no stream and are not counted, even with the right bytes.
#[test]
fn only_the_client_s_host_has_streams() {
    let mut world = World::new();
    let mut ends = ends(&mut world, udp(1, false, false));
    let mut stranger = world.host([10, 0, 0, 9].into(), None);
    let socket = stranger.udp_bind(9).unwrap();
    let began = world.now;
    ends.1.connect(to(), guest::apps::iperf3::Line::Control, began).unwrap();
    let (mut answers, mut result) = (0, None);
    while result.is_none() {
        ends.1.app().tick(world.now);
        ends.1.poll(world.now).unwrap();
        let (stack, app) = ends.1.parts();
        app.datagrams(stack, to().into(), world.now).unwrap();
        stack.transmit(world.now).unwrap();
        for bytes in [&b"9876"[..], &[0; 1000]] {
            let _ = stranger.udp_send(socket, to(), bytes, world.now);
        }
        stranger.poll(world.now).unwrap();
        answers += usize::from(stranger.udp_receive(socket).is_some());
        world.turn();
        ends.0.poll(world.now).unwrap();
        let (stack, app) = ends.0.parts();
        app.datagrams(stack, world.now);
        stack.transmit(world.now).unwrap();
        world.turn();
        world.now = world.now + 10 * Nanos::MILLI;
        result = ends.1.app().result().map(|result| result.cloned());
        assert!(world.now - began < 60 * Nanos::SECOND, "the test does not end");
    }
    let its = ends.0.app().reports.pop().unwrap();
    assert_eq!((answers, its.received), (0, result.unwrap().unwrap().sent));
    assert!(ends.0.app().strays > 100, "{}", ends.0.app().strays);
}

#[test]
fn datagrams_that_would_be_cut_are_refused() {
    for (piece, fits) in [(1472, true), (1473, false)] {
        let mut world = World::new();
        let mut ends = ends(&mut world, Params { piece, ..udp(1, false, false) });
        let result = measured(&mut world, &mut ends);
        assert_eq!(result.as_ref().err(), (!fits).then_some(&"the server cannot do this test"));
    }
}

/// A client that says what it is told to.
struct Talker(Vec<u8>, Vec<u8>);

impl App for Talker {
    type Conn = ();
    fn accepted(&mut self, _: &mut Io<'_>) {}
    fn connected(&mut self, _: &mut (), io: &mut Io<'_>) {
        io.send(Bytes::copy_from_slice(&self.0));
    }
    fn data(&mut self, _: &mut (), _: &mut Io<'_>, data: &[u8]) -> usize {
        self.1.extend_from_slice(data);
        data.len()
    }
}

/// A client that waits for whole pieces, as iperf3 does, would wait for ever for the last one.
#[test]
fn regression_streams_end_with_the_test() {
    let mut world = World::new();
    let mut server = server(&mut world);
    let cookie = [b'c'; 37];
    let params = br#"{"tcp":true,"reverse":true,"time":1,"len":1000}"#;
    let control = [&cookie[..], &[0, 0, 0, params.len() as u8], params].concat();
    let host = world.host(CLIENT, None);
    let mut client = Guest::new(host, Brief { control, data: 0, ended: false, told: Vec::new() });
    client.connect(to(), true, world.now).unwrap();
    let (mut opened, began) = (false, world.now);
    while !(client.app().ended && client.app().told.ends_with(&[13])) {
        client.poll(world.now).unwrap();
        if client.app().told.contains(&10) && !opened {
            client.connect(to(), false, world.now).unwrap();
            opened = true;
        }
        world.turn();
        server.poll(world.now).unwrap();
        world.turn();
        world.now = world.now + 10 * Nanos::MILLI;
        assert!(world.now - began < 30 * Nanos::SECOND, "the stream does not end");
    }
    assert!(client.app().data > 1000 && client.app().told.ends_with(&[1, 2, 13]));
}

/// A client of one stream, which ends the test as soon as data comes.
struct Brief {
    control: Vec<u8>,
    data: usize,
    ended: bool,
    told: Vec<u8>,
}

impl App for Brief {
    type Conn = bool;
    fn accepted(&mut self, _: &mut Io<'_>) -> bool {
        false
    }
    fn connected(&mut self, is_control: &mut bool, io: &mut Io<'_>) {
        let first = if *is_control { &self.control } else { &self.control[..37] };
        io.send(Bytes::copy_from_slice(first));
    }
    fn data(&mut self, is_control: &mut bool, io: &mut Io<'_>, data: &[u8]) -> usize {
        if !*is_control {
            self.data += data.len();
        } else {
            self.told.extend_from_slice(data);
            if data.contains(&2) {
                io.send(Bytes::from_static(&[4]));
            }
        }
        data.len()
    }
    fn ended(&mut self, is_control: &mut bool, io: &mut Io<'_>) {
        self.ended |= !*is_control;
        io.close();
    }
}

#[test]
fn a_client_that_stops_half_way_keeps_the_others_out_for_ten_seconds_only() {
    let mut world = World::new();
    let mut ends = ends(&mut world, Params { seconds: 1, ..Params::default() });
    let mut talker =
        Guest::new(world.host([10, 0, 0, 9].into(), None), Talker(vec![b'z'; 37], vec![]));
    talker.connect(to(), (), world.now).unwrap();
    while talker.app().1.is_empty() {
        talker.poll(world.now).unwrap();
        world.turn();
        ends.0.poll(world.now).unwrap();
        world.turn();
    }
    assert_eq!(talker.app().1, [9]);
    let busy = measured(&mut world, &mut ends);
    assert_eq!(busy, Err("the server is busy with another test"));
    assert_eq!((ends.0.app().refused, ends.0.app().is_busy()), (1, true));
    world.now = world.now + 10 * Nanos::SECOND;
    let client = Client::new(Params { seconds: 1, ..Params::default() }, [b'b'; 36], || 0.0);
    ends.1 = Guest::new(world.host([10, 0, 0, 8].into(), None), client);
    assert!(measured(&mut world, &mut ends).is_ok());
}
