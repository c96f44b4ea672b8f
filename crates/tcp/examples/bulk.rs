//! Measures the speed of two machines in one thread: bulk data, and requests over many connections.
//!
//! A figure includes both TCP machines, parsing and writing of headers, the sender's copy into
//! slots, and a switch's copy from slot to slot (`memcpy` only). Checksums and the copies of the
//! applications are included where the row says so. There is no real switch, no ring between cores,
//! no wake-up and no system call.
//!
//! All of it runs on one core, so a figure is the sum for both ends. Time is the thread's own time
//! on a core, as the kernel counts it (`/proc/thread-self/schedstat`), otherwise wall time.
//! Neighbours still share caches and memory.
//!
//! `cargo run --release -p toklat-tcp --example bulk [SECONDS]`

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use toklat_tcp::codec::{self, Summing, Verify};
use toklat_tcp::{
    Bytes, Config, ConnId, Emit, Full, ListenerId, Machine, Nanos, Request, Secret, Segment,
};

const SLOT: usize = 65_536;

/// A ring's slots. One machine fills them; they are then copied to those of the other.
struct Slots {
    slots: Vec<(usize, Box<[u8]>)>,
    len: usize,
    summing: Summing,
}

impl Slots {
    fn new(count: usize, summing: Summing) -> Self {
        Self {
            slots: (0..count).map(|_| (0, vec![0; SLOT].into_boxed_slice())).collect(),
            len: 0,
            summing,
        }
    }
}

impl Emit for Slots {
    fn emit(&mut self, request: &Request<'_>) -> Result<(), Full> {
        let (len, slot) = self.slots.get_mut(self.len).ok_or(Full)?;
        let headers = codec::write_headers(request, slot, self.summing).ok_or(Full)?;
        *len = headers + request.payload.copy_to(&mut slot[headers..]);
        self.len += 1;
        Ok(())
    }
}

/// One measurement, which is a row of the table.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    gso_max: u32,
    mtu: u16,
    slots: usize,
    software_checksums: bool,
    application_copies: bool,
    window: u32,
}

struct World {
    machines: [Machine; 2],
    sent: [Slots; 2],
    switched: [Slots; 2],
    listener: ListenerId,
    verify: Verify,
    start: Instant,
    now: Nanos,
    sink: Option<Vec<u8>>,
    received: u64,
    packets: u64,
}

impl World {
    fn new(case: &Case, connections: usize) -> Self {
        let config = Config {
            gso_max: case.gso_max,
            mtu: case.mtu,
            receive_start: case.window,
            receive_max: case.window.max(128 << 10),
            send_start: case.window,
            send_max: case.window.max(128 << 10),
            max_connections: connections.max(64),
            ..Config::default()
        };
        let summing = if case.software_checksums { Summing::Full } else { Summing::Partial };
        let slots = || Slots::new(case.slots, summing);
        let mut machines = [1, 2].map(|key| Machine::new(config.clone(), Secret([key, 7])));
        let listener = machines[1].listen(None, 80, 64, None).expect("the port is free");
        Self {
            machines,
            sent: [slots(), slots()],
            switched: [slots(), slots()],
            listener,
            verify: if case.software_checksums { Verify::Checksums } else { Verify::Nothing },
            start: Instant::now(),
            now: Nanos(Nanos::SECOND),
            sink: case.application_copies.then(|| vec![0; SLOT * 4]),
            received: 0,
            packets: 0,
        }
    }

    /// Lets one side send and the other receive. Reads the clock once.
    fn turn(&mut self, from: usize) {
        self.now = Nanos(Nanos::SECOND) + self.start.elapsed().as_nanos() as u64;
        let (sent, switched) = (&mut self.sent[from], &mut self.switched[from]);
        self.machines[from].transmit(self.now, sent);
        for ((len, slot), (to_len, to)) in sent.slots[..sent.len].iter().zip(&mut switched.slots) {
            to[..*len].copy_from_slice(&slot[..*len]);
            *to_len = *len;
        }
        let count = core::mem::take(&mut sent.len);
        self.packets += count as u64;
        let (machine, sink, received) =
            (&mut self.machines[1 - from], &mut self.sink, &mut self.received);
        let mut app = |_: ConnId, data: &[u8]| {
            if let Some(sink) = sink {
                sink[..data.len()].copy_from_slice(data);
            }
            *received += data.len() as u64;
            data.len()
        };
        for slots in switched.slots[..count].chunks(64) {
            let mut parsed = slots
                .iter()
                .filter_map(|(len, slot)| codec::parse(&slot[..*len], self.verify).ok());
            let Some(first) = parsed.next() else { continue };
            let mut batch: [Segment<'_>; 64] = [first; 64];
            let mut n = 1;
            for segment in parsed {
                batch[n] = segment;
                n += 1;
            }
            machine.on_batch(&batch[..n], self.now, &mut app);
        }
    }

    fn connect(&mut self, n: usize) -> (ConnId, ConnId) {
        let address = |last| IpAddr::V4(Ipv4Addr::new(10, (n / 200) as u8, (n % 200) as u8, last));
        let id = self.machines[0]
            .connect((address(1), 0), (address(2), 80), None, self.now)
            .expect("there is room");
        for side in [0, 1, 0] {
            self.turn(side);
        }
        (id, self.machines[1].accept(self.listener).expect("it is connected"))
    }
}

/// The time that this thread has spent on a core.
fn busy(start: Instant) -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = stat.and_then(|stat| stat.split(' ').next()?.parse().ok());
    nanos.map_or_else(|| start.elapsed(), Duration::from_nanos)
}

/// Gb/s, and nanoseconds a byte.
fn bulk(case: &Case, time: Duration) -> (f64, f64) {
    let mut world = World::new(case, 1);
    let (id, other) = world.connect(0);
    let document = Bytes::from(vec![42; 64 << 10]);
    let source = vec![42; 64 << 10];
    let mut best = 0.0f64;
    for _ in 0..5 {
        let (start, before) = (Instant::now(), world.received);
        let busy_before = busy(start);
        while start.elapsed() < time / 5 {
            if case.application_copies {
                while world.machines[0].send_slice(id, &source).is_ok() {}
            } else {
                while world.machines[0].send(id, document.clone()).is_ok() {}
            }
            world.turn(0);
            world.received += world.machines[1].receive(other, |data| data.len()) as u64;
            world.turn(1);
            while world.machines[0].next_event().is_some()
                || world.machines[1].next_event().is_some()
            {}
        }
        let bytes = (world.received - before) as f64;
        best = best.max(bytes / (busy(start) - busy_before).as_secs_f64());
    }
    (best * 8.0 / 1e9, 1e9 / best)
}

/// Returns nanoseconds per packet, for requests of 64 bytes and their answers. They go over the
/// connections in turn, up to 32 in a batch.
fn requests(connections: usize, time: Duration) -> f64 {
    let case = Case { slots: 512, ..CASES[0] };
    let mut world = World::new(&case, connections);
    let pairs: Vec<_> = (0..connections).map(|n| world.connect(n)).collect();
    let message = Bytes::from_static(&[1; 64]);
    let mut best = f64::MAX;
    let (mut next, many) = (0, connections.min(32));
    for _ in 0..5 {
        let (start, before) = (Instant::now(), world.packets);
        let busy_before = busy(start);
        while start.elapsed() < time / 5 {
            let batch: Vec<_> = (0..many).map(|i| pairs[(next + i) % pairs.len()]).collect();
            next += many;
            for side in [0, 1] {
                for pair in &batch {
                    let id = [pair.0, pair.1][side];
                    let _ = world.machines[side].send(id, message.clone());
                }
                world.turn(side);
            }
            while world.machines[0].next_event().is_some()
                || world.machines[1].next_event().is_some()
            {}
        }
        let packets = (world.packets - before) as f64;
        best = best.min((busy(start) - busy_before).as_nanos() as f64 / packets);
    }
    best
}

const PLAIN: Case = Case {
    name: "MTU 1500, checksums in software",
    gso_max: 0,
    mtu: 1500,
    slots: 256,
    software_checksums: true,
    application_copies: true,
    window: 128 << 10,
};
const CASES: &[Case] = &[
    PLAIN,
    Case { name: "MTU 1500, checksums offloaded", software_checksums: false, ..PLAIN },
    Case { name: "MTU 9000, checksums in software", mtu: 9000, slots: 64, ..PLAIN },
    LONG,
    Case {
        name: "requests of 64 KiB, applications do not copy",
        application_copies: false,
        ..LONG
    },
    Case { name: "requests of 64 KiB, window 256 KiB", window: 256 << 10, ..LONG },
    Case { name: "requests of 64 KiB, window 1 MiB", window: 1 << 20, slots: 64, ..LONG },
];
const LONG: Case = Case {
    name: "requests of 64 KiB (TSO)",
    gso_max: 65_535,
    slots: 8,
    software_checksums: false,
    ..PLAIN
};

fn main() {
    let seconds = std::env::args().nth(1).and_then(|arg| arg.parse().ok()).unwrap_or(1.0);
    let time = Duration::from_secs_f64(seconds);
    println!(
        "Two machines and one copy for the switch, in one thread on one core; best of five.\n"
    );
    println!("{:<48} {:>8} {:>8}", "bulk, window 128 KiB unless said", "Gb/s", "ns/B");
    for case in CASES {
        let (rate, cost) = bulk(case, time);
        println!("{:<48} {rate:>8.1} {cost:>8.3}", case.name);
    }
    println!("\n{:<48} {:>8}", "64-byte requests over N connections", "ns/packet");
    for connections in [1, 10, 100, 1_000, 10_000] {
        println!("{connections:<48} {:>8.0}", requests(connections, time));
    }
}
