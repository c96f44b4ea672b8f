//! What strangers can make a guest hold: requests that never end, answers that are never read, and
//! connections that ask nothing. The oracle is the heap of the process after so many connections.
#![allow(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::SocketAddrV4;
use std::sync::atomic::{AtomicUsize, Ordering};

use frame::OffloadSet;
use guest::apps::iperf3;
use guest::apps::kv::Kv;
use guest::apps::site::Site;
use guest::{App, Bytes, Config, Guest, Io, RingNic};

mod world;

use world::{CLIENT, SERVER, World};

static HELD: AtomicUsize = AtomicUsize::new(0);

/// Counts the bytes that are allocated.
struct Counting;

// SAFETY: all calls are passed on to the system's allocator as they are.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: as for this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as for this function.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Tests of this file measure the same heap, so one runs at a time.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn held() -> usize {
    HELD.load(Ordering::Relaxed)
}

/// A stranger: each connection sends its text and stays. One that asks for values reads none.
#[derive(Default)]
struct Stranger {
    texts: std::vec::IntoIter<Bytes>,
    reads: bool,
    came: Vec<u8>,
    ended: usize,
}

impl App for Stranger {
    type Conn = ();
    fn accepted(&mut self, _: &mut Io<'_>) {}
    fn connected(&mut self, _: &mut (), io: &mut Io<'_>) {
        if let Some(text) = self.texts.next() {
            io.send(text);
        }
    }
    fn data(&mut self, _: &mut (), _: &mut Io<'_>, data: &[u8]) -> usize {
        if !self.reads {
            return 0;
        }
        self.came.extend(data);
        data.len()
    }
    fn ended(&mut self, _: &mut (), _: &mut Io<'_>) {}
    fn closed(&mut self, _: (), _: Option<guest::CloseReason>) {
        self.ended += 1;
    }
}

/// A server with `app`, a stranger, and an honest client.
struct Town<A: App> {
    world: World,
    server: Guest<RingNic, A>,
    clients: [Guest<RingNic, Stranger>; 2],
    port: u16,
}

impl<A: App> Town<A> {
    /// `memory`: of the whole guest.
    fn new(app: A, port: u16, memory: u64) -> Self {
        let mut world = World { offloads: OffloadSet::ALL, ..World::new() };
        let mut config = Config::new(frame::Mac::local(1), SERVER, 24);
        config.tcp.fit_into(memory);
        let mut server = Guest::new(world.host_with(config, None), app);
        server.listen(port, 1024).unwrap();
        let others = [CLIENT, [10, 0, 0, 3].into()].map(|address| {
            let reads = address != CLIENT;
            Guest::new(world.host(address, None), Stranger { reads, ..Stranger::default() })
        });
        Self { world, server, clients: others, port }
    }

    /// Connects one of the clients once for each text, and lets them talk for some turns.
    fn say(&mut self, who: usize, texts: Vec<Bytes>, turns: usize) {
        let count = texts.len();
        let client = &mut self.clients[who];
        client.app().texts = texts.into_iter();
        for _ in 0..count {
            client.connect(SocketAddrV4::new(SERVER, self.port), (), self.world.now).unwrap();
        }
        for _ in 0..turns {
            self.turn();
        }
    }

    fn turn(&mut self) {
        for client in &mut self.clients {
            client.poll(self.world.now).unwrap();
        }
        self.world.turn();
        self.server.poll(self.world.now).unwrap();
        self.world.turn();
    }

    /// Asks as the honest client; returns the answer once it ends so.
    fn ask(&mut self, text: &str, end: &str) -> String {
        self.clients[1].app().came.clear();
        self.say(1, vec![text.to_owned().into()], 0);
        for _ in 0..100_000 {
            self.turn();
            if self.clients[1].app().came.ends_with(end.as_bytes()) {
                break;
            }
        }
        String::from_utf8_lossy(&self.clients[1].app().came).into_owned()
    }
}

const MEBIBYTE: usize = 1 << 20;

/// 50 values of 1 MiB without their ends once ended a guest of 48 MiB.
#[test]
fn regression_values_without_an_end_share_one_limit() {
    let _alone = ALONE.lock();
    let most = 8 * MEBIBYTE;
    let mut town = Town::new(Kv::new(most, 0), 11211, 48 << 20);
    let value = Bytes::from([&b"set big 0 0 1048576\r\n"[..], &vec![b'v'; MEBIBYTE]].concat());
    town.turn();
    let before = held();
    for round in 1..=5 {
        town.say(0, vec![value.clone(); 10], 2_000);
        assert!(town.server.app().held() <= most);
        let more = held().saturating_sub(before);
        assert!(more < most + 4 * MEBIBYTE, "{more} bytes after {} connections", 10 * round);
    }
    assert!(town.clients[0].app().ended >= 40, "the oldest gave way");
    let answer = town.ask("set a 0 0 1\r\nx\r\nget a\r\n", "END\r\n");
    assert_eq!(answer, "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
}

/// A connection that asks for a value and does not read it keeps it in memory, though the cache
/// has another by then.
#[test]
fn values_that_answers_hold_count_towards_the_limit() {
    let _alone = ALONE.lock();
    let most = 8 * MEBIBYTE;
    let mut town = Town::new(Kv::new(most, 0), 11211, 48 << 20);
    town.turn();
    let before = held();
    for round in 1..=30 {
        let set = format!("set big{round} 0 0 1000000 noreply\r\n{}\r\n", "v".repeat(1_000_000));
        let text = format!("{set}get big{round}\r\n").into();
        town.say(0, vec![text], 500);
        assert!(town.server.app().held() <= most);
        let more = held().saturating_sub(before);
        assert!(more < most + 6 * MEBIBYTE, "{more} bytes after {round} connections");
    }
    let answer = town.ask("set a 0 0 1\r\nx\r\nget a\r\n", "END\r\n");
    assert!(answer.ends_with("END\r\n"), "{answer}");
}

/// Small answers that no one reads: each connection asks for one byte, many times.
#[test]
fn unread_answers_of_a_connection_are_bounded_in_pieces_too() {
    let _alone = ALONE.lock();
    let mut town = Town::new(Kv::new(MEBIBYTE, 0), 11211, 48 << 20);
    town.ask("set a 0 0 1\r\nx\r\n", "STORED\r\n");
    let text = Bytes::from("get a\r\n".repeat(100_000));
    let before = held();
    town.say(0, vec![text; 10], 3_000);
    let more = held().saturating_sub(before) / 10;
    assert!(more < 2 * MEBIBYTE, "{more} bytes a connection");
}

/// Heads, cookies and messages that never end; and connections that say nothing.
#[test]
fn requests_without_an_end_are_bounded_and_keep_no_one_out() {
    let _alone = ALONE.lock();
    let memory = 16 << 20;
    let head = Bytes::from(format!("GET /page HTTP/1.1\r\nHost: {}", "x".repeat(7000)));
    let mut site = Site::default();
    site.add("/page", Bytes::from_static(b"here"));
    let mut town = Town::new(site, 80, memory);
    flood(&mut town, &head, memory as usize);
    let answer = town.ask("GET /page HTTP/1.1\r\nHost: a\r\n\r\n", "here");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");

    let mut town = Town::new(iperf3::Server::new(|| 0.0), iperf3::PORT, memory);
    flood(&mut town, &Bytes::from_static(b"a part of a cookie"), memory as usize);
    let hello = format!("{:a>36}\0", "");
    assert_eq!(town.ask(&hello, "\t"), "\t", "the parameters are asked for");

    let mut town = Town::new(Kv::new(MEBIBYTE, 0), 11211, memory);
    flood(&mut town, &Bytes::from_static(b"get a part of a line"), memory as usize);
    assert_eq!(town.ask("get a\r\n", "END\r\n"), "END\r\n");
}

/// Opens more connections than there are places, each with the same text.
fn flood<A: App>(town: &mut Town<A>, text: &Bytes, memory: usize) {
    town.turn();
    let before = held();
    for _ in 0..8 {
        town.say(0, vec![text.clone(); 250], 300);
        let more = held().saturating_sub(before);
        assert!(more < memory / 2, "{more} bytes");
    }
    let open = town.server.connections();
    assert!((500..=1024).contains(&open), "{open} connections are open");
}
