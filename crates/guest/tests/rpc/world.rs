//! A client and a server in virtual time, with a bad link between them.

use std::collections::{BTreeMap, HashMap};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use frame::Mac;
use guest::rpc::{
    Answer, Call, CallError, Carrier, Client, Config, Failure, Peer, Server, SessionId,
};
use guest::{Bytes, Nanos, Room};
use tcp::Full;

pub const CLIENT: Mac = Mac::local(1);
pub const SERVER: Mac = Mac::local(2);

/// The UDP address of an end.
pub fn address(mac: Mac, v6: bool) -> SocketAddr {
    let number = if mac == SERVER { 2 } else { 1 };
    match v6 {
        true => (Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number), 4000).into(),
        false => (Ipv4Addr::new(10, 0, 0, number as u8), 4000).into(),
    }
}

/// The client's settings, beside the server's.
fn client(config: &Config) -> Config {
    let carrier = match config.carrier {
        Carrier::Ethernet => Carrier::Ethernet,
        Carrier::Udp(server) => Carrier::Udp(address(CLIENT, server.is_ipv6())),
    };
    Config { mac: CLIENT, carrier, ..config.clone() }
}
/// Bytes of the longest frame. Three fragments hold some 3 KB.
pub const FRAME: usize = 1100;

/// A seeded generator (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
}

/// A send ring of this many frames.
pub struct Ring {
    pub frames: Vec<Vec<u8>>,
    pub slots: usize,
}

impl Ring {
    pub fn new(slots: usize) -> Self {
        Self { frames: Vec::new(), slots }
    }
}

impl Room for Ring {
    fn max_frame(&self) -> usize {
        FRAME
    }

    fn build(&mut self, max: usize, build: impl FnOnce(&mut [u8]) -> usize) -> Result<(), Full> {
        if self.frames.len() >= self.slots {
            return Err(Full);
        }
        let mut frame = vec![0; max];
        let len = build(&mut frame);
        frame.truncate(len);
        self.frames.extend((len > 0).then_some(frame));
        Ok(())
    }
}

/// How the link impairs frames, in parts of a thousand, and the longest delay in microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bad {
    pub loss: u64,
    pub twice: u64,
    pub corrupt: u64,
    pub delay: u64,
}

/// Counts how often each request ran.
#[derive(Debug, Default)]
pub struct Ran(pub HashMap<u64, u32>);

/// The reply to a request: as many bytes as it asks for, made from its name.
pub fn reply_of(request: &[u8]) -> Vec<u8> {
    let word = |at: usize| u64::from_le_bytes(request[at..at + 8].try_into().unwrap());
    let (id, len) = (word(0), word(8) as usize);
    let sum =
        request.iter().fold(0u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    let mut reply = [id.to_le_bytes(), sum.to_le_bytes()].concat();
    reply.resize(16 + len, id as u8);
    reply
}

/// A request with a name, `filler` bytes, and the length of its reply.
pub fn request(id: u64, filler: usize, reply: usize) -> Vec<u8> {
    let mut bytes = [id.to_le_bytes(), (reply as u64).to_le_bytes()].concat();
    bytes.resize(16 + filler, id as u8 ^ 0x55);
    bytes
}

impl Ran {
    fn call(&mut self, request: &[u8], reply: &mut [u8]) -> Answer {
        let id = u64::from_le_bytes(request[..8].try_into().unwrap());
        *self.0.entry(id).or_default() += 1;
        let bytes = reply_of(request);
        match reply.get_mut(..bytes.len()) {
            Some(place) => {
                place.copy_from_slice(&bytes);
                Answer::Here(bytes.len())
            }
            None => Answer::Whole(Bytes::from(bytes)),
        }
    }
}

pub struct World {
    pub now: Nanos,
    pub client: Client,
    pub server: Server,
    pub config: Config,
    pub bad: Bad,
    pub random: Random,
    pub ran: Ran,
    pub results: BTreeMap<u64, Result<Vec<u8>, Failure>>,
    pub requests: HashMap<u64, Vec<u8>>,
    /// Frames in flight, by time.
    air: BTreeMap<(u64, u64), (bool, Vec<u8>)>,
    sent: u64,
    /// Slots of each send ring, emptied in each turn.
    pub slots: usize,
    pub is_server_dead: bool,
}

impl World {
    pub fn new(seed: u64, bad: Bad) -> Self {
        Self::with(seed, bad, Config::new(SERVER))
    }

    pub fn with(seed: u64, bad: Bad, config: Config) -> Self {
        Self {
            now: Nanos(Nanos::SECOND),
            client: Client::new(client(&config)),
            server: Server::new(config.clone()),
            config,
            bad,
            random: Random(seed),
            ran: Ran::default(),
            results: BTreeMap::new(),
            requests: HashMap::new(),
            air: BTreeMap::new(),
            sent: 0,
            slots: 64,
            is_server_dead: false,
        }
    }

    /// A world whose packets travel in UDP datagrams.
    pub fn over_udp(seed: u64, bad: Bad, v6: bool) -> Self {
        let carrier = Carrier::Udp(address(SERVER, v6));
        Self::with(seed, bad, Config { carrier, ..Config::new(SERVER) })
    }

    pub fn restart_client(&mut self) {
        self.client = Client::new(client(&self.config));
    }

    pub fn restart_server(&mut self) {
        self.server = Server::new(self.config.clone());
    }

    pub fn connect(&mut self) -> SessionId {
        let mut ring = Ring::new(self.slots);
        let server = match self.config.carrier {
            Carrier::Ethernet => Peer::from(SERVER),
            Carrier::Udp(address) => Peer::over_udp(SERVER, address),
        };
        let session = self.client.connect(server, self.now, &mut ring);
        self.send(ring, true);
        session
    }

    /// Runs until the session is open.
    pub fn open(&mut self) -> SessionId {
        let session = self.connect();
        self.until("the session opens", |world| world.client.is_open(session));
        session
    }

    pub fn call(&mut self, session: SessionId, id: u64, request: Vec<u8>) -> Result<(), CallError> {
        let mut ring = Ring::new(self.slots);
        let bytes = Bytes::from(request.clone());
        let called = self.client.call_bytes(session, id, bytes, self.now, &mut ring);
        if called.is_ok() {
            self.requests.insert(id, request);
        }
        self.send(ring, true);
        called
    }

    /// Puts frames on the link.
    pub fn send(&mut self, ring: Ring, to_server: bool) {
        for frame in ring.frames {
            let copies = 1 + u64::from(self.random.below(1000) < self.bad.twice);
            for _ in 0..copies {
                if self.random.below(1000) < self.bad.loss {
                    continue;
                }
                let mut frame = frame.clone();
                if self.random.below(1000) < self.bad.corrupt {
                    let bit = self.random.below(8 * frame.len() as u64) as usize;
                    frame[bit / 8] ^= 1 << (bit % 8);
                }
                let due = self.now.0 + 1000 + 1000 * self.random.below(self.bad.delay);
                self.sent += 1;
                self.air.insert((due, self.sent), (to_server, frame));
            }
        }
    }

    /// Puts a frame on the link that neither end has sent.
    pub fn inject(&mut self, to_server: bool, frame: Vec<u8>) {
        self.sent += 1;
        self.air.insert((self.now.0, self.sent), (to_server, frame));
    }

    /// Returns the frames in flight.
    pub fn on_their_way(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.air.values().map(|(_, frame)| frame)
    }

    /// Runs a turn of both ends, ten microseconds later.
    pub fn turn(&mut self) {
        self.now = self.now + 10 * Nanos::MICRO;
        let (mut to_server, mut to_client) = (Ring::new(self.slots), Ring::new(self.slots));
        let Self { client, server, ran, results, .. } = self;
        let mut replies = |_: SessionId, tag: u64, reply: Result<&[u8], Failure>| {
            let before = results.insert(tag, reply.map(<[u8]>::to_vec));
            assert!(before.is_none(), "request {tag} has two results");
        };
        while let Some(entry) = self.air.first_entry() {
            if entry.key().0 > self.now.0 {
                break;
            }
            match entry.remove() {
                (true, _) if self.is_server_dead => {}
                (true, frame) => {
                    let mut handler =
                        |_: Call, request: &[u8], reply: &mut [u8]| ran.call(request, reply);
                    server.frame(&frame, self.now, &mut handler, &mut to_client);
                }
                (false, frame) => client.frame(&frame, self.now, &mut replies, &mut to_server),
            }
        }
        if !self.is_server_dead {
            server.poll(&mut to_client);
        }
        client.poll(self.now, &mut replies, &mut to_server);
        self.send(to_server, true);
        self.send(to_client, false);
    }

    /// Runs until `done`, for at most a virtual minute.
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let end = self.now + 60 * Nanos::SECOND;
        while !done(self) {
            self.turn();
            assert!(
                self.now < end,
                "no end: {what}; {:?} {:?}",
                self.client.counters(),
                self.server.counters()
            );
        }
    }

    /// Checks that no request ran twice, that those with replies ran, and that replies are right.
    pub fn check(&self) {
        for (id, times) in &self.ran.0 {
            assert_eq!(*times, 1, "request {id} ran {times} times");
        }
        for (id, result) in &self.results {
            let Ok(reply) = result else { continue };
            assert!(self.ran.0.contains_key(id), "request {id} has a reply and did not run");
            assert_eq!(*reply, reply_of(&self.requests[id]), "the reply to request {id}");
        }
    }
}
