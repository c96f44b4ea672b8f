//! One connection of a client, which sends its text in pieces and keeps the answers.

use std::net::SocketAddrV4;

use guest::apps::kv::Kv;
use guest::{App, Bytes, Guest, Io};

use crate::world::{CLIENT, SERVER, World};

/// A client that sends its text in pieces, and keeps the answers.
#[derive(Default)]
struct Client {
    pieces: std::vec::IntoIter<Bytes>,
    came: Vec<u8>,
    ended: bool,
}

impl App for Client {
    type Conn = ();
    fn accepted(&mut self, _: &mut Io<'_>) {}
    fn connected(&mut self, _: &mut (), io: &mut Io<'_>) {
        self.drained(&mut (), io);
    }
    fn drained(&mut self, _: &mut (), io: &mut Io<'_>) {
        match self.pieces.next() {
            Some(piece) => io.send(piece),
            None => io.finish(),
        }
    }
    fn data(&mut self, _: &mut (), _: &mut Io<'_>, data: &[u8]) -> usize {
        self.came.extend(data);
        data.len()
    }
    fn closed(&mut self, _: (), _: Option<guest::CloseReason>) {
        self.ended = true;
    }
}

/// Returns the answers of a cache, and the cache.
pub fn talk(text: &[u8], cache: Kv, piece: usize) -> (Vec<u8>, Kv) {
    let mut world = World::new();
    let mut server = Guest::new(world.host(SERVER, None), cache);
    server.listen(11211, 8).unwrap();
    let pieces: Vec<_> = text.chunks(piece).map(Bytes::copy_from_slice).collect();
    let pieces = pieces.into_iter();
    let mut client = Guest::new(world.host(CLIENT, None), Client { pieces, ..Client::default() });
    client.connect(SocketAddrV4::new(SERVER, 11211), (), world.now).unwrap();
    for turn in 0.. {
        client.poll(world.now).unwrap();
        world.turn();
        server.poll(world.now).unwrap();
        world.turn();
        if client.app().ended {
            break;
        }
        assert!(turn < 10_000_000, "the cache does not end the connection");
    }
    let came = std::mem::take(&mut client.app().came);
    (came, std::mem::replace(server.app(), Kv::new(0, 0)))
}
