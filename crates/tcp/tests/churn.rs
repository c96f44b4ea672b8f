//! Objective: many short connections come and go over a bad channel, with undersized tables. Steps:
//! a client keeps a fixed number open; each asks for some bytes and checks them; nothing is left at
//! the end.

mod common;

use std::collections::HashMap;

use common::*;
use toklat_tcp::codec::Verify;
use toklat_tcp::{
    Buffered, Bytes, CloseReason, Config, ConnId, Events, ListenerId, Machine, Nanos, Secret,
};

#[derive(Default)]
struct Job {
    /// At the client, the bytes requested and received; at the server, the bytes to send and sent.
    len: u64,
    at: u64,
    started: bool,
}

struct Client {
    machine: Machine,
    jobs: HashMap<ConnId, Job>,
    concurrent: usize,
    left: usize,
    done: usize,
    failed: usize,
    rng: Rng,
}

impl Client {
    fn open(&mut self, now: Nanos) {
        while self.left > 0 && self.jobs.len() < self.concurrent {
            let Ok(id) = self.machine.connect((v4(1), 0), (v4(2), 80), None, now) else { return };
            self.left -= 1;
            let len = self.rng.below(20_000);
            // The request travels with the last segment of the handshake.
            assert_eq!(self.machine.send_slice(id, &len.to_be_bytes()), Ok(8));
            self.machine.shut_down(id);
            self.jobs.insert(id, Job { len, ..Job::default() });
        }
    }

    fn work(&mut self, now: Nanos) {
        while let Some((id, events)) = self.machine.next_event() {
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            let at = &mut job.at;
            self.machine.receive(id, |data| {
                for byte in data {
                    assert_eq!(*byte, pattern(9, *at));
                    *at += 1;
                }
                data.len()
            });
            if !events.contains(Events::CLOSED) && !self.machine.is_at_end(id) {
                continue;
            }
            match self.machine.close_reason(id) {
                Some(CloseReason::Finished) | None => {
                    assert_eq!(job.at, job.len, "all that was asked for");
                    self.done += 1;
                }
                // The server may have dropped a half-open connection that the client considers
                // open.
                Some(_) => self.failed += 1,
            }
            self.jobs.remove(&id);
            self.machine.close(id, now);
        }
    }
}

impl Host for Client {
    fn turn(&mut self, batch: &[Vec<u8>], now: Nanos) -> Vec<Vec<u8>> {
        let segments: Vec<_> =
            batch.iter().filter_map(|p| self.machine.parse(p, Verify::Checksums)).collect();
        self.machine.on_batch(&segments, now, &mut Buffered);
        self.work(now);
        self.open(now);
        let mut wire = Wire::default();
        self.machine.transmit(now, &mut wire);
        wire.packets.into()
    }

    fn deadline(&self) -> Option<Nanos> {
        self.machine.deadline()
    }

    fn is_done(&self) -> bool {
        self.left == 0 && self.jobs.is_empty()
    }

    fn state(&self) -> String {
        let states: Vec<_> = self.jobs.keys().map(|id| self.machine.state(*id)).collect();
        format!("client {:?} {states:?} done {} failed {}", self.machine, self.done, self.failed)
    }
}

struct Server {
    machine: Machine,
    listener: ListenerId,
    jobs: HashMap<ConnId, Job>,
    document: Bytes,
}

impl Server {
    fn work(&mut self, now: Nanos) {
        while let Some(id) = self.machine.accept(self.listener) {
            self.jobs.insert(id, Job::default());
        }
        while let Some((id, events)) = self.machine.next_event() {
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            if !job.started && self.machine.readable(id) >= 8 {
                let mut request = [0; 8];
                self.machine.receive_slice(id, &mut request);
                (job.len, job.started) = (u64::from_be_bytes(request), true);
            }
            while job.started && job.at < job.len {
                let end = job.len.min(job.at + 5000);
                match self.machine.send(id, self.document.slice(job.at as usize..end as usize)) {
                    Ok(()) => job.at = end,
                    Err(_) => break,
                }
            }
            let answered = job.started && job.at == job.len;
            if answered || events.contains(Events::CLOSED) {
                self.jobs.remove(&id);
                self.machine.close(id, now);
            }
        }
    }
}

impl Host for Server {
    fn turn(&mut self, batch: &[Vec<u8>], now: Nanos) -> Vec<Vec<u8>> {
        let segments: Vec<_> =
            batch.iter().filter_map(|p| self.machine.parse(p, Verify::Checksums)).collect();
        self.machine.on_batch(&segments, now, &mut Buffered);
        self.work(now);
        let mut wire = Wire::default();
        self.machine.transmit(now, &mut wire);
        wire.packets.into()
    }

    fn deadline(&self) -> Option<Nanos> {
        self.machine.deadline()
    }

    fn is_done(&self) -> bool {
        true
    }

    fn state(&self) -> String {
        format!("server {:?} {:?}", self.machine, self.machine.counters())
    }
}

fn run(
    client: Config,
    server: Config,
    there: Impairments,
    concurrent: usize,
    total: usize,
    seed: u64,
) -> Net<Client, Server> {
    let mut machine = Machine::new(server, Secret([seed, 2]));
    let listener = machine.listen(None, 80, 16, None).unwrap();
    let document = (0..20_000).map(|at| pattern(9, at)).collect::<Vec<_>>().into();
    let server = Server { machine, listener, jobs: HashMap::new(), document };
    let machine = Machine::new(client, Secret([seed, 1]));
    let (jobs, rng) = (HashMap::new(), Rng(seed));
    let mut client = Client { machine, jobs, concurrent, left: total, done: 0, failed: 0, rng };
    client.open(Nanos(SECOND));
    let mut net = Net::new(client, server, there, there, seed);
    net.run(4000 * SECOND);
    net.run_for(400 * SECOND);
    for machine in [&net.a.machine, &net.b.machine] {
        let usage = machine.usage();
        assert_eq!((usage.connections, usage.half_open, usage.memory), (0, 0, 0));
        assert_eq!(machine.deadline(), None);
    }
    net
}

#[test]
fn connections_come_and_go() {
    let there = Impairments { delay: 100 * MICRO, ..Impairments::default() };
    let net = run(Config::default(), Config::default(), there, 50, 3000, 1);
    assert_eq!((net.a.done, net.a.failed), (3000, 0));
    let drops: u64 = net.b.machine.counters().drops().map(|(_, n)| n).sum();
    assert_eq!(
        drops,
        net.b.machine.counters().dropped(toklat_tcp::Drop::AcceptFull),
        "{:?}",
        net.b.machine.counters()
    );
}

#[test]
fn small_tables_and_a_bad_channel_lose_no_byte() {
    for seed in 1..8 {
        let there = Impairments {
            loss: 20_000,
            duplicate: 10_000,
            reorder: 50_000,
            corrupt: 2_000,
            delay: 200 * MICRO,
            late: 500 * MICRO,
            lose_acks: true,
            ..Impairments::default()
        };
        let server =
            Config { max_half_open: 3, max_connections: 24, max_time_wait: 8, ..Config::default() };
        // Few ports: flows are reused while the other side remembers them.
        let client = Config { ephemeral: 50_000..=50_200, time_wait: SECOND, ..Config::default() };
        let net = run(client, server, there, 40, 400, seed);
        let counters = net.b.machine.counters();
        assert!(counters.cookies_in > 10, "{counters:?}");
        println!("done {} failed {} cookies {}", net.a.done, net.a.failed, counters.cookies_in);
        // A few connections are reset: a cookie cannot be retransmitted, and an evicted TIME-WAIT
        // entry answers no FIN.
        assert!(net.a.done >= 399, "done {} failed {}", net.a.done, net.a.failed);
    }
}
