//! Measures how many pages a second one core serves to itself: httpd, load generator and an inline
//! switch in one thread.
//!
//!     cargo run --release -p toklat-guest --example page-rate [SECONDS]
//!
//! A figure includes both TCP/IP stacks with checksums in software, parsing of requests and
//! answers, and the switch with its copies. There is no other process, no wake-up, no system call
//! and no NIC.
//!
//! Requests are answered from memory. There are 16 connections unless stated, with one request each
//! at a time. A figure is the sum for client, switch and server. Time is the thread's own on a core
//! (`/proc/thread-self/schedstat`), otherwise wall time; best of five.

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use frame::Mac;
use guest::{Bytes, Config, Guest, Nanos, RingNic, Stack};
use inline::{Inline, Policy, SwitchConfig};
use netring::{Port, Region, RegionConfig};

use guest::apps::load::{Fetch, Load};
use guest::apps::site::Site;

const SLOTS: u32 = 256;
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

type Fallible<T> = Result<T, Box<dyn Error>>;

struct World {
    switch: Inline,
    server: Guest<RingNic, Site>,
    client: Guest<RingNic, Load>,
    started: Instant,
}

impl World {
    fn new(path: &str, len: usize, connections: usize, in_place: bool) -> Fallible<Self> {
        let mut switch = Inline::new(SwitchConfig { max_ports: 2, ..SwitchConfig::default() })?;
        let mut plug = |number: u32, address| -> Fallible<Stack<RingNic>> {
            let region = Region::private(RegionConfig::ports(1, 1, SLOTS))?;
            let port = Port::inline(&region, "port", 1, 1, SLOTS)?;
            let mac = Mac::local(number);
            let policy = Policy { macs: vec![mac], ..Policy::default() };
            switch.add_rings(&format!("p{number}"), policy, &port.rings())?;
            #[allow(unsafe_code, reason = "the switch runs in this thread")]
            let nic = match in_place {
                // SAFETY: the region is private and its port's own; the switch writes to it in
                // `turn` only, which runs between the stacks' turns.
                true => unsafe { RingNic::in_place(port) },
                false => RingNic::new(port),
            };
            Ok(Stack::new(nic, &Config::new(mac, address, 24)))
        };
        let mut site = Site::default();
        site.add(path, Bytes::from(vec![b'x'; len]));
        let mut server = Guest::new(plug(1, SERVER)?, site);
        server.listen(80, 1024)?;
        let mut client = Guest::new(plug(2, CLIENT)?, Load::new("10.0.0.1", path));
        let to = SocketAddrV4::new(SERVER, 80);
        for _ in 0..connections {
            client.connect(to, Fetch::default(), Nanos(Nanos::SECOND))?;
        }
        Ok(Self { switch, server, client, started: Instant::now() })
    }

    fn turn(&mut self) -> Fallible<()> {
        let now = Nanos(Nanos::SECOND) + self.started.elapsed().as_nanos() as u64;
        self.client.poll(now)?;
        self.switch.turn(port::Nanos(now.0));
        self.server.poll(now)?;
        self.switch.turn(port::Nanos(now.0));
        Ok(())
    }
}

/// The time that this thread has spent on a core.
fn busy(start: Instant) -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = stat.and_then(|stat| stat.split(' ').next()?.parse().ok());
    nanos.map_or_else(|| start.elapsed(), Duration::from_nanos)
}

/// Returns pages per second, and Gb/s of bodies.
fn measure(len: usize, connections: usize, in_place: bool, time: Duration) -> Fallible<(f64, f64)> {
    let mut world = World::new("/page", len, connections, in_place)?;
    while world.client.app().made < connections as u64 {
        world.turn()?;
    }
    let mut best = (0.0, 0.0);
    for _ in 0..5 {
        let (start, load) = (Instant::now(), world.client.app());
        let before = (load.answers, load.bytes);
        let busy_before = busy(start);
        while start.elapsed() < time / 5 {
            for _ in 0..16 {
                world.turn()?;
            }
        }
        let took = (busy(start) - busy_before).as_secs_f64();
        let load = world.client.app();
        let rate = (load.answers - before.0) as f64 / took;
        if rate > best.0 {
            best = (rate, (load.bytes - before.1) as f64 * 8.0 / took / 1e9);
        }
    }
    let load = world.client.app();
    assert_eq!((load.errors, load.lost), (0, 0), "every answer was right");
    Ok(best)
}

fn main() -> Fallible<()> {
    let seconds = std::env::args().nth(1).and_then(|arg| arg.parse().ok()).unwrap_or(1.0);
    let time = Duration::from_secs_f64(seconds);
    println!("httpd, load generator and inline switch in one thread, MTU 1500; best of five.\n");
    println!("{:<32} {:>9} {:>12} {:>8}", "received frames", "page", "pages/s", "Gb/s");
    for (name, in_place) in [("lent where they lie", true), ("copied to private memory", false)] {
        for len in [1 << 10, 4 << 10, 16 << 10, 64 << 10, 1 << 20] {
            let (rate, gigabits) = measure(len, 16, in_place, time)?;
            println!("{name:<32} {:>5} KiB {rate:>12.0} {gigabits:>8.2}", len >> 10);
        }
    }
    println!("\n{:<32} {:>12}", "pages of 1 KiB, connections", "pages/s");
    for connections in [1, 16, 256, 1_000, 10_000] {
        let (rate, _) = measure(1 << 10, connections, true, time)?;
        println!("{connections:<32} {rate:>12.0}");
    }
    Ok(())
}
