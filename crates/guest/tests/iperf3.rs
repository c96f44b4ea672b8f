//! iperf3's two ends over the stack: results, a busy server, and clients that stop half way.

use std::net::SocketAddrV4;

use guest::apps::iperf3::{Client, Params, Report, Server};
use guest::{App, Bytes, Guest, Io, Nanos, RingNic};

mod world;

use world::{CLIENT, SERVER, World};

type Ends = (Guest<RingNic, Server>, Guest<RingNic, Client>);

fn server(world: &mut World) -> Guest<RingNic, Server> {
    let mut server = Guest::new(world.host(SERVER, None), Server::new(|| 0.0));
    server.listen(5201, 200).unwrap();
    server
}

fn to() -> SocketAddrV4 {
    SocketAddrV4::new(SERVER, 5201)
}

/// Runs a test of a second of the world's time.
fn measured(world: &mut World, (server, client): &mut Ends) -> Result<Report, &'static str> {
    client.connect(to(), guest::apps::iperf3::Line::Control, world.now).unwrap();
    for _ in 0..1_000_000 {
        client.app().tick(world.now);
        client.poll(world.now).unwrap();
        for index in client.app().wanted() {
            let line = guest::apps::iperf3::Line::Data(index);
            client.connect(to(), line, world.now).unwrap();
        }
        world.turn();
        server.poll(world.now).unwrap();
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
