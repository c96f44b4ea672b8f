//! Frames of peers that do not keep to the protocol.

use frame::Mac;
use guest::Nanos;
use guest::rpc::{Config, HEAD, Server};

use crate::world::{Bad, CLIENT, Random, Ring, SERVER, World, request};

/// A frame of a peer, without a checksum. `words` are session, token, sequence and length.
fn frame(
    from: Mac,
    kind: u8,
    slot: u8,
    words: (u32, u64, u32, u32),
    fragment: u16,
    payload: &[u8],
) -> Vec<u8> {
    let mut frame = [&SERVER.octets()[..], &from.octets(), &guest::rpc::ETHERTYPE].concat();
    frame.extend([2, kind, slot, 0]);
    frame.extend(words.0.to_le_bytes());
    frame.extend(words.1.to_le_bytes());
    frame.extend(words.2.to_le_bytes());
    frame.extend(words.3.to_le_bytes());
    frame.extend(fragment.to_le_bytes());
    frame.extend(32u16.to_le_bytes());
    frame.extend((payload.len() as u16).to_le_bytes());
    frame.extend([0; 6]);
    assert_eq!(frame.len(), HEAD);
    frame.extend(payload);
    frame
}

const OPEN: u8 = 1;
const OPENED: u8 = 2;
const COOKIE: u8 = 10;
const REQUEST: u8 = 4;

/// A server without checksums, and how often its handler ran.
struct Victim {
    server: Server,
    ran: u32,
    now: Nanos,
}

impl Victim {
    fn new(config: &Config) -> Self {
        let config = Config { checksum: false, ..config.clone() };
        Self { server: Server::new(config), ran: 0, now: Nanos(Nanos::SECOND) }
    }

    fn get(&mut self, frame: &[u8]) -> Vec<Vec<u8>> {
        let mut ring = Ring::new(64);
        let ran = &mut self.ran;
        let mut handler = |_: guest::rpc::Call, _: &[u8], reply: &mut [u8]| {
            *ran += 1;
            reply.fill(7);
            guest::rpc::Answer::Here(reply.len())
        };
        self.server.frame(frame, self.now, &mut handler, &mut ring);
        ring.frames
    }

    /// Asks for a session, with a cookie; returns the kind of the answer and the frame.
    fn ask_to_open(&mut self, from: Mac, nonce: u64, cookie: u64) -> Option<(u8, Vec<u8>)> {
        let ask = frame(from, OPEN, 8, (0, nonce, 0, 0), 1400, &cookie.to_le_bytes());
        let answer = self.get(&ask).pop()?;
        assert!(answer.len() <= ask.len(), "no answer is longer than its question");
        Some((answer[15], answer))
    }

    /// The cookie that the peer receives.
    fn cookie(&mut self, from: Mac, nonce: u64) -> u64 {
        let (kind, answer) = self.ask_to_open(from, nonce, 0).unwrap();
        assert_eq!((kind, &answer[..6]), (COOKIE, &from.octets()[..]));
        u64::from_le_bytes(answer[HEAD..].try_into().unwrap())
    }

    /// Opens a session as a peer that receives; returns its number and token.
    fn open(&mut self, from: Mac, nonce: u64) -> Option<(u32, u64)> {
        let (mut kind, mut answer) = self.ask_to_open(from, nonce, 0)?;
        if kind == COOKIE {
            let cookie = u64::from_le_bytes(answer[HEAD..].try_into().unwrap());
            (kind, answer) = self.ask_to_open(from, nonce, cookie)?;
        }
        let word = |at: usize| u32::from_le_bytes(answer[at..at + 4].try_into().unwrap());
        let token = u64::from_le_bytes(answer[22..30].try_into().unwrap());
        (kind == OPENED).then_some((word(30), token))
    }
}

#[test]
fn peers_without_the_token_or_the_address_run_nothing() {
    let mut victim = Victim::new(&Config::new(SERVER));
    let (number, token) = victim.open(CLIENT, 9).unwrap();
    for (from, token) in [(CLIENT, token ^ 1), (Mac::local(3), token), (CLIENT, 0)] {
        let answer = victim.get(&frame(from, REQUEST, 0, (number, token, 1, 2), 0, b"hi"));
        assert_eq!(answer[0][15], 8, "it learns that there is no such session");
    }
    assert_eq!((victim.ran, victim.server.counters().unknown), (0, 3));
    victim.get(&frame(CLIENT, REQUEST, 0, (number, token, 1, 2), 0, b"hi"));
    assert_eq!(victim.ran, 1);
}

/// A stranger's frames with forged senders: twenty seconds of what once filled the table.
#[test]
fn regression_forged_openings_hold_no_session() {
    let mut victim = Victim::new(&Config::new(SERVER));
    for i in 0..350 * 20u64 {
        victim.now = victim.now + 3 * Nanos::MILLI;
        let from = Mac::local(100 + i as u32);
        // The second try guesses a cookie.
        let (kind, _) = victim.ask_to_open(from, i + 1, i % 2 * 0x1234_5678).unwrap();
        assert_eq!((kind, victim.server.sessions(), victim.server.bytes()), (COOKIE, 0, 0));
    }
    assert!(victim.open(CLIENT, 1).is_some());
    assert_eq!((victim.server.sessions(), victim.server.counters().cookies), (1, 7001));
}

#[test]
fn a_cookie_is_good_for_its_sender_its_nonce_and_some_seconds() {
    let mut victim = Victim::new(&Config::new(SERVER));
    let cookie = victim.cookie(CLIENT, 7);
    let kind = |victim: &mut Victim, from, nonce| {
        victim.ask_to_open(from, nonce, cookie).map(|(kind, _)| kind)
    };
    assert_eq!(kind(&mut victim, Mac::local(9), 7), Some(COOKIE), "another sender");
    assert_eq!(kind(&mut victim, CLIENT, 8), Some(COOKIE), "another nonce");
    let start = victim.now;
    victim.now = start + 20 * Nanos::SECOND;
    assert_eq!(kind(&mut victim, CLIENT, 7), Some(COOKIE), "too old");
    assert_eq!(victim.server.sessions(), 0);
    victim.now = start + 7 * Nanos::SECOND;
    assert_eq!(kind(&mut victim, CLIENT, 7), Some(OPENED));
    victim.get(&frame(CLIENT, OPEN, 8, (0, 11, 0, 0), 1400, &[]));
    assert_eq!(victim.server.counters().malformed, 1, "an opening without room for a cookie");
}

/// Peers that do receive may still open sessions and use none.
#[test]
fn sessions_without_a_request_give_way_and_those_with_one_stay() {
    let config = Config { max_sessions: 20, ..Config::new(SERVER) };
    let mut victim = Victim::new(&config);
    let used: Vec<_> = (1..=5).map(|i| victim.open(Mac::local(i), 1).unwrap()).collect();
    for (i, (number, token)) in (1..).zip(&used) {
        victim.get(&frame(Mac::local(i), REQUEST, 3, (*number, *token, 1, 2), 0, b"hi"));
    }
    for i in 100..400 {
        assert!(victim.open(Mac::local(i), 1).is_some(), "{i}");
        assert!(victim.server.sessions() <= 20);
    }
    for (i, (number, token)) in (1..).zip(&used) {
        victim.get(&frame(Mac::local(i), REQUEST, 3, (*number, *token, 2, 2), 0, b"hi"));
    }
    assert_eq!((victim.ran, victim.server.counters().evicted), (10, 285));
    // If each has made a request, the next one is refused.
    for i in 380..400 {
        if let Some((number, token)) = victim.open(Mac::local(i), 1) {
            victim.get(&frame(Mac::local(i), REQUEST, 0, (number, token, 1, 2), 0, b"hi"));
        }
    }
    assert_eq!(victim.open(Mac::local(999), 1), None);
}

#[test]
fn announced_lengths_cost_a_peer_its_quarter_of_the_memory_and_others_nothing() {
    let config = Config { memory: 64 << 20, ..Config::new(SERVER) };
    let mut victim = Victim::new(&config);
    for nonce in 1..=20 {
        let (number, token) = victim.open(CLIENT, nonce).unwrap();
        for slot in 0..8 {
            let words = (number, token, 1, 8 << 20);
            victim.get(&frame(CLIENT, REQUEST, slot, words, 0, &[1; 1000]));
        }
    }
    assert!(victim.server.bytes() <= 16 << 20, "{} bytes", victim.server.bytes());
    assert!(victim.server.counters().memory > 100);
    let honest = Mac::local(5);
    let (number, token) = victim.open(honest, 1).unwrap();
    victim.get(&frame(honest, REQUEST, 0, (number, token, 1, 2), 0, b"hi"));
    assert_eq!(victim.ran, 1, "another peer is served");
}

#[test]
fn kept_replies_are_bounded_for_each_peer() {
    let config = Config { memory: 64 << 10, ..Config::new(SERVER) };
    let mut victim = Victim::new(&config);
    for nonce in 1..=40 {
        let (number, token) = victim.open(CLIENT, nonce).unwrap();
        for slot in 0..8 {
            victim.get(&frame(CLIENT, REQUEST, slot, (number, token, 1, 2), 0, b"hi"));
        }
    }
    assert!(victim.server.bytes() <= 20 << 10, "{} bytes", victim.server.bytes());
    let (number, token) = victim.open(Mac::local(5), 1).unwrap();
    let before = victim.ran;
    victim.get(&frame(Mac::local(5), REQUEST, 0, (number, token, 1, 2), 0, b"hi"));
    assert_eq!(victim.ran, before + 1, "another peer is served");
}

#[test]
fn a_peer_gets_its_share_of_the_sessions_and_an_opening_that_comes_again_none() {
    let config = Config { max_sessions: 100, max_sessions_of_peer: 10, ..Config::new(SERVER) };
    let mut victim = Victim::new(&config);
    let first = victim.open(CLIENT, 1);
    assert!(first.is_some() && victim.open(CLIENT, 1) == first);
    let opened = (1..50).filter(|nonce| victim.open(CLIENT, *nonce).is_some()).count();
    assert_eq!((opened, victim.server.sessions()), (10, 10));
    assert!(victim.open(Mac::local(4), 1).is_some());
}

#[test]
fn sequence_numbers_that_cannot_be_run_nothing() {
    let mut victim = Victim::new(&Config::new(SERVER));
    let (number, token) = victim.open(CLIENT, 9).unwrap();
    let ask = |victim: &mut Victim, slot, sequence| {
        let answers =
            victim.get(&frame(CLIENT, REQUEST, slot, (number, token, sequence, 2), 0, b"hi"));
        (victim.ran, answers.len())
    };
    assert_eq!(ask(&mut victim, 0, 0), (0, 0));
    assert_eq!(ask(&mut victim, 0, 2), (0, 0));
    assert_eq!(ask(&mut victim, 0, 1), (1, 1));
    assert_eq!(ask(&mut victim, 0, 1), (1, 1), "the kept reply");
    assert_eq!(ask(&mut victim, 0, 0), (1, 0));
    assert_eq!(ask(&mut victim, 200, 1), (1, 1), "no such slot: as no such session");
}

#[test]
fn random_bytes_and_mutated_packets_neither_panic_nor_run_a_request_twice() {
    let mut random = Random(11);
    let mut world = World::new(11, Bad { loss: 0, twice: 50, corrupt: 0, delay: 100 });
    let session = world.open();
    for id in 0..3_000 {
        let _ =
            world.call(session, id, request(id, (id % 7 * 700) as usize, (id % 5 * 900) as usize));
        let Some(mut frame) = world.on_their_way().next().cloned() else {
            world.turn();
            continue;
        };
        for _ in 0..=random.below(3) {
            let at = random.below(frame.len() as u64) as usize;
            frame[at] = random.next() as u8;
        }
        frame.truncate(frame.len() - random.below(4) as usize);
        world.inject(random.below(2) == 0, frame);
        world.turn();
    }
    world.check();
    assert!(world.results.len() > 500, "{} results", world.results.len());
}
