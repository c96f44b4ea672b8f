//! Objective: a warm machine allocates nothing, and a segment costs the same beside thousands of
//! idle connections. Steps: two machines exchange packets through fixed buffers; allocations and
//! visits are counted.
#![allow(unsafe_code, reason = "an allocator that counts")]

#[path = "../../shmem/tests/allocations/mod.rs"]
mod allocations;

use std::net::{IpAddr, Ipv4Addr};

use allocations::allocations;
use toklat_tcp::codec::{self, MAX_HEADERS, Summing, Verify};
use toklat_tcp::{
    Bytes, Config, ConnId, Emit, Events, Full, ListenerId, Machine, Nanos, Request, Secret,
    Segment, State, Usage,
};

const SLOTS: usize = 256;
const DOCUMENT: &[u8] = &[42; 50_000];

/// Slots for packets, filled and emptied in turns. Of each `lose_each` packets, one is lost.
struct Slots {
    slots: Vec<(usize, Box<[u8; 65_536]>)>,
    len: usize,
    lose_each: Option<u64>,
    count: u64,
}

impl Slots {
    fn new(lose_each: Option<u64>) -> Self {
        let slots = (0..SLOTS).map(|_| (0, vec![0; 65_536].try_into().unwrap())).collect();
        Self { slots, len: 0, lose_each, count: 0 }
    }
}

impl Emit for Slots {
    fn emit(&mut self, request: &Request<'_>) -> Result<(), Full> {
        self.count += 1;
        if self.lose_each.is_some_and(|each| self.count.is_multiple_of(each)) {
            return Ok(());
        }
        let (len, slot) = self.slots.get_mut(self.len).ok_or(Full)?;
        let headers = codec::write_headers(request, &mut slot[..], Summing::Partial).unwrap();
        assert!(headers <= MAX_HEADERS);
        *len = headers + request.payload.copy_to(&mut slot[headers..]);
        self.len += 1;
        Ok(())
    }
}

struct World {
    a: Machine,
    b: Machine,
    to_a: Slots,
    to_b: Slots,
    now: Nanos,
    listener: ListenerId,
    received: u64,
}

fn deliver(machine: &mut Machine, slots: &mut Slots, now: Nanos, received: &mut u64) {
    let mut packets = slots.slots[..slots.len].iter().map(|(len, slot)| &slot[..*len]);
    let Some(first) = packets.next().and_then(|packet| codec::parse(packet, Verify::Nothing).ok())
    else {
        return;
    };
    // The batch is an array on the stack.
    let mut batch: [Segment<'_>; 64] = [first; 64];
    let mut len = 1;
    loop {
        match packets.next() {
            Some(packet) if len < batch.len() => {
                batch[len] = codec::parse(packet, Verify::Nothing).unwrap();
                len += 1;
            }
            rest => {
                let mut app = |_: ConnId, data: &[u8]| {
                    *received += data.len() as u64;
                    data.len()
                };
                machine.on_batch(&batch[..len], now, &mut app);
                let Some(packet) = rest else { break };
                batch[0] = codec::parse(packet, Verify::Nothing).unwrap();
                len = 1;
            }
        }
    }
    slots.len = 0;
}

impl World {
    fn new(config: &Config, lose_each: Option<u64>) -> Self {
        let (a, mut b) = (
            Machine::new(config.clone(), Secret([1, 2])),
            Machine::new(config.clone(), Secret([3, 4])),
        );
        let listener = b.listen(None, 80, 64, None).unwrap();
        let (to_a, to_b) = (Slots::new(None), Slots::new(lose_each));
        Self { a, b, to_a, to_b, now: Nanos(Nanos::SECOND), listener, received: 0 }
    }

    /// Both sides take a turn; 10 us pass.
    fn turn(&mut self) {
        self.now = self.now + 10 * Nanos::MICRO;
        deliver(&mut self.a, &mut self.to_a, self.now, &mut self.received);
        self.a.transmit(self.now, &mut self.to_b);
        deliver(&mut self.b, &mut self.to_b, self.now, &mut self.received);
        self.b.transmit(self.now, &mut self.to_a);
    }

    fn connect(&mut self, n: u8) -> (ConnId, ConnId) {
        let address = |last| IpAddr::V4(Ipv4Addr::new(10, 0, n, last));
        let id = self.a.connect((address(1), 0), (address(2), 80), None, self.now).unwrap();
        for _ in 0..3 {
            self.turn();
        }
        let other = self.b.accept(self.listener).unwrap();
        assert_eq!(self.a.state(id), Some(State::Established));
        while self.a.next_event().is_some() || self.b.next_event().is_some() {}
        (id, other)
    }
}

fn bulk(config: &Config, lose_each: Option<u64>, warm: usize) -> (u64, u64) {
    let mut world = World::new(config, lose_each);
    let (id, other) = world.connect(0);
    let document = Bytes::from_static(DOCUMENT);
    let mut run = |turns: usize| {
        let before = (allocations(), world.received);
        for _ in 0..turns {
            while world.a.send(id, document.clone()).is_ok() {}
            let _ = world.b.send_slice(other, &DOCUMENT[..100]);
            world.turn();
            while world.a.next_event().is_some_and(|(_, events)| !events.contains(Events::CLOSED)) {
            }
            while world.b.next_event().is_some() {}
            // Out-of-order data lies in buffers.
            world.a.receive(id, |data| data.len());
            world.received += world.b.receive(other, |data| data.len()) as u64;
        }
        (allocations() - before.0, world.received - before.1)
    };
    run(warm);
    run(1000)
}

#[test]
fn a_warm_machine_allocates_nothing() {
    for (gso_max, lose_each) in [(0, None), (65_535, None), (0, Some(300))] {
        let config = Config { gso_max, ..Config::default() };
        let (allocations, bytes) = bulk(&config, lose_each, 3_000);
        assert!(bytes > 10_000_000, "{bytes} bytes, gso {gso_max}, losing each {lose_each:?}");
        assert_eq!(allocations, 0, "gso {gso_max}, losing each {lose_each:?}, {bytes} bytes");
    }
}

/// Returns the cost of a request and its answer among `connections` connections: entries and timers
/// visited, visits to send.
fn cost(connections: usize) -> (f64, f64, f64, u64) {
    const REQUESTS: usize = 2000;
    let mut world = World::new(&Config { gso_max: 65_535, ..Config::default() }, None);
    let ids: Vec<_> = (0..connections).map(|i| world.connect((i % 200) as u8)).collect();
    let sum = |a: Usage, b: Usage| (a.lookups + b.lookups, a.timers + b.timers);
    let visits = |world: &World| world.a.counters().visits + world.b.counters().visits;
    let request = |world: &mut World, i: usize| {
        // Fifty connections are active, all over the table.
        let (id, other) = ids[i % 50 * (ids.len() / 50)];
        world.a.send(id, Bytes::from_static(&DOCUMENT[..64])).unwrap();
        world.turn();
        world.b.send(other, Bytes::from_static(&DOCUMENT[..64])).unwrap();
        world.turn();
    };
    (0..REQUESTS).for_each(|i| request(&mut world, i));
    let before = (sum(world.a.usage(), world.b.usage()), visits(&world), allocations());
    (0..REQUESTS).for_each(|i| request(&mut world, i));
    let after = sum(world.a.usage(), world.b.usage());
    let per = |n: u64| n as f64 / REQUESTS as f64;
    let found = (
        per(after.0 - before.0.0),
        per(after.1 - before.0.1),
        per(visits(&world) - before.1),
        allocations() - before.2,
    );
    println!("{connections} connections: lookups, timers, visits a request {found:?}");
    found
}

#[test]
fn the_cost_does_not_grow_with_connections() {
    let few = cost(50);
    let many = cost(8_000);
    assert!(many.0 < 1.5 * few.0, "entries visited by lookups: {few:?}, {many:?}");
    assert!(many.1 < 1.2 * few.1 + 0.1, "timers visited: {few:?}, {many:?}");
    assert!(many.2 < 1.1 * few.2, "visits to send: {few:?}, {many:?}");
    assert_eq!((few.3, many.3), (0, 0), "allocations");
}

#[test]
fn what_a_connection_costs_at_rest() {
    let mut world = World::new(&Config::default(), None);
    for i in 0..1000 {
        world.connect((i % 200) as u8);
    }
    for _ in 0..100 {
        world.turn();
    }
    let usage = world.b.usage();
    assert_eq!((usage.connections, usage.memory), (1000, 0), "no buffer without data");
    // In this second nothing happens, so no timer is due.
    world.now = world.now + Nanos::SECOND;
    world.turn();
    assert_eq!((world.a.deadline(), world.b.deadline()), (None, None));
}
