//! Objective: another stack and ours understand each other. Steps: smoltcp's TCP at the other end
//! of the bad channel; both directions are compared byte for byte.

mod common;

use std::collections::VecDeque;

use common::*;
use proptest::prelude::*;
use smoltcp::iface::{Config as IfaceConfig, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpCidr};
use toklat_tcp::{Config, Nanos};

#[derive(Default)]
struct Queues {
    to_us: VecDeque<Vec<u8>>,
    from_us: Vec<Vec<u8>>,
}

struct Packet(Vec<u8>);

impl RxToken for Packet {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

struct Room<'a>(&'a mut Vec<Vec<u8>>);

impl TxToken for Room<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut packet = vec![0; len];
        let result = f(&mut packet);
        self.0.push(packet);
        result
    }
}

impl Device for Queues {
    type RxToken<'a> = Packet;
    type TxToken<'a> = Room<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Packet, Room<'_>)> {
        let packet = self.to_us.pop_front()?;
        Some((Packet(packet), Room(&mut self.from_us)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Room<'_>> {
        Some(Room(&mut self.from_us))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = 1500;
        capabilities
    }
}

struct Smol {
    queues: Queues,
    iface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    to_send: u64,
    sent: u64,
    expected: u64,
    received: u64,
    stream: u8,
    deadline: Option<Nanos>,
}

fn instant(now: Nanos) -> Instant {
    Instant::from_micros((now.0 / MICRO) as i64)
}

impl Smol {
    fn new(ip: std::net::IpAddr, stream: u8, to_send: u64, expected: u64, stamps: bool) -> Self {
        let mut queues = Queues::default();
        let mut config = IfaceConfig::new(HardwareAddress::Ip);
        config.random_seed = 5;
        let mut iface = Interface::new(config, &mut queues, instant(Nanos(SECOND)));
        iface.update_ip_addrs(|addresses| addresses.push(IpCidr::new(ip.into(), 24)).unwrap());
        let mut socket =
            Socket::new(SocketBuffer::new(vec![0; 100_000]), SocketBuffer::new(vec![0; 100_000]));
        if stamps {
            socket.set_tsval_generator(Some(|| 77));
        }
        let mut sockets = SocketSet::new(vec![]);
        let handle = sockets.add(socket);
        let (sent, received) = (0, 0);
        Self {
            queues,
            iface,
            sockets,
            handle,
            to_send,
            sent,
            expected,
            received,
            stream,
            deadline: Some(Nanos(SECOND)),
        }
    }

    fn work(&mut self) {
        let socket = self.sockets.get_mut::<Socket<'_>>(self.handle);
        while socket.can_recv() {
            let (stream, at) = (self.stream ^ 1, self.received);
            let n = socket.recv(|data| {
                for (i, byte) in data.iter().enumerate() {
                    assert_eq!(
                        *byte,
                        pattern(stream, at + i as u64),
                        "byte {} of stream {stream}",
                        at + i as u64
                    );
                }
                (data.len(), data.len())
            });
            self.received += n.unwrap() as u64;
        }
        while self.sent < self.to_send && socket.can_send() {
            let len = (self.to_send - self.sent).min(3000);
            let bytes: Vec<u8> = (0..len).map(|i| pattern(self.stream, self.sent + i)).collect();
            self.sent += socket.send_slice(&bytes).unwrap() as u64;
        }
        // In CLOSING smoltcp 0.12 sends no data, so it closes only when everything is acknowledged.
        if self.sent == self.to_send && socket.may_send() && socket.send_queue() == 0 {
            socket.close();
        }
    }
}

impl Host for Smol {
    fn turn(&mut self, batch: &[Vec<u8>], now: Nanos) -> Vec<Vec<u8>> {
        self.queues.to_us.extend(batch.iter().cloned());
        self.iface.poll(instant(now), &mut self.queues, &mut self.sockets);
        self.work();
        self.iface.poll(instant(now), &mut self.queues, &mut self.sockets);
        // smoltcp's clock has microseconds, so ours must have passed the deadline.
        let delay = self.iface.poll_delay(instant(now), &self.sockets);
        self.deadline =
            delay.map(|delay| Nanos(now.0 / MICRO * MICRO) + delay.total_micros().max(1) * MICRO);
        std::mem::take(&mut self.queues.from_us)
    }

    fn deadline(&self) -> Option<Nanos> {
        self.deadline
    }

    fn state(&self) -> String {
        let socket = self.sockets.get::<Socket<'_>>(self.handle);
        format!("smoltcp {} sent {} received {}", socket.state(), self.sent, self.received)
    }

    fn is_done(&self) -> bool {
        let socket = self.sockets.get::<Socket<'_>>(self.handle);
        self.sent == self.to_send && self.received == self.expected && !socket.may_recv()
    }
}

fn run(
    config: &Config,
    there: Impairments,
    seed: u64,
    sizes: (u64, u64),
    we_open: bool,
    stamps: bool,
) {
    let (ours, theirs) = if seed.is_multiple_of(3) { (v6(1), v6(2)) } else { (v4(1), v4(2)) };
    let mut us = Peer::new(config.clone(), 2);
    (us.to_send, us.expected) = sizes;
    // smoltcp 0.12 forgets its retransmission timer when a FIN comes.
    us.closes_last = true;
    us.copies = seed.is_multiple_of(2);
    let mut smol = Smol::new(theirs, 3, sizes.1, sizes.0, stamps);
    let socket = smol.sockets.get_mut::<Socket<'_>>(smol.handle);
    if we_open {
        socket.listen(80).unwrap();
        us.id = Some(us.machine.connect((ours, 0), (theirs, 80), None, Nanos(SECOND)).unwrap());
    } else {
        us.listener = Some(us.machine.listen(None, 80, 4, None).unwrap());
        socket.connect(smol.iface.context(), (ours, 80), 50_000).unwrap();
    }
    Net::new(us, smol, there, there, seed).run(3_000 * SECOND);
}

fn impairments() -> impl Strategy<Value = Impairments> {
    (0usize..3, 0usize..3, 0usize..3, 0usize..3, 0usize..3).prop_map(
        |(loss, duplicate, reorder, corrupt, delay)| Impairments {
            loss: [0, 1_000, 30_000][loss],
            duplicate: [0, 0, 20_000][duplicate],
            reorder: [0, 0, 100_000][reorder],
            corrupt: [0, 0, 5_000][corrupt],
            delay: [10 * MICRO, MILLI, 20 * MILLI][delay],
            late: [100 * MICRO, 3 * MILLI, 20 * MILLI][delay],
            lose_acks: true,
            ..Impairments::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        rng_seed: proptest::test_runner::RngSeed::Fixed(21),
        ..ProptestConfig::default()
    })]

    #[test]
    fn bytes_come_across(
        seed in any::<u64>(),
        there in impairments(),
        sizes in (0u64..200_000, 0u64..200_000),
        we_open in any::<bool>(),
        stamps in any::<bool>(),
        features in (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()),
        gso_max in prop_oneof![Just(0u32), Just(65_535)],
    ) {
        // smoltcp 0.12 forgets the length of its timestamps and drops packets that become too long.
        let mtu = if stamps { 1480 } else { 1500 };
        let mut config = Config { gso_max, mtu, ..Config::default() };
        (config.sack, config.timestamps, config.window_scaling, config.ecn) = features;
        run(&config, there, seed, sizes, we_open, stamps);
    }
}
