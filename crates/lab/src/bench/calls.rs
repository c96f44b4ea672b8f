//! RPC between two light guests: round trips, rates, long messages, bursts, sizes of rings.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use frame::Mac;
use guest::rpc::{Answer, Call, Calling, Config, Failure, Handler, Serving, SessionId, bay};
use guest::{Bytes, Ipv6Config, Nanos, Nic, RingNic};
use inline::{Inline, Policy, SwitchConfig};
use netring::{Open, Region, RegionConfig};

use super::dispatch::nics::{E1000, Plug};
use super::isolated::POLLED;
use super::lab::Lab;
use super::stacks::busy;
use super::traffic::on_core;

const SERVER: Mac = Mac::local(1);
const CLIENT: Mac = Mac::local(2);
/// Bytes of a long message.
const LONG: usize = 8 << 20;

/// Frames stay in memory, and carry no checksum.
fn config(mac: Mac, slots: u16) -> Config {
    Config { checksum: false, receive_room: slots, slots: 16, ..Config::new(mac) }
}

/// Answers with the request's bytes.
fn echo(_: Call, request: &[u8], reply: &mut [u8]) -> Answer {
    let len = request.len().min(reply.len());
    reply[..len].copy_from_slice(&request[..len]);
    Answer::Here(len)
}

/// Counts replies and failures.
#[derive(Default)]
struct Count {
    replies: u64,
    failures: u64,
}

impl guest::rpc::Replies for Count {
    #[inline]
    fn done(&mut self, _: SessionId, _: u64, reply: Result<&[u8], Failure>) {
        self.replies += u64::from(reply.is_ok());
        self.failures += u64::from(reply.is_err());
    }
}

/// A server and a client at a switch, in one thread.
struct World<H, N = RingNic> {
    switch: Inline,
    server: Serving<N, H>,
    client: Calling<N>,
    count: Count,
    started: Instant,
}

impl<H: Handler> World<H> {
    fn new(slots: u32, mtu: u16, handler: H) -> Result<Self> {
        let mut switch = Inline::new(SwitchConfig { max_ports: 2, ..SwitchConfig::default() })?;
        let nics = plug(&mut switch, slots, mtu)?;
        Ok(Self::on(switch, nics, |mac| Config { mtu, ..config(mac, slots as u16 - 1) }, handler))
    }
}

/// The NICs of a server and a client at two ports.
fn plug(switch: &mut Inline, slots: u32, mtu: u16) -> Result<[RingNic; 2]> {
    let mut plug = |name: &str, mac| -> Result<RingNic> {
        let mut ports = RegionConfig::ports(1, 1, slots);
        if mtu > 1500 {
            let usable = u32::from(mtu) + 32;
            ports = ports.buffer_stride(usable.next_multiple_of(64) + 64).buffer_usable(usable);
        }
        let region = Region::private(ports)?;
        let port = Open::new(name).slots(slots).in_region(&region).inline()?;
        let policy = Policy { macs: vec![mac], mtu, ..Policy::default() };
        switch.add_rings(name, policy, &port.rings())?;
        #[allow(unsafe_code, reason = "the switch runs in this thread")]
        // SAFETY: the region is private and its port's own; the switch writes to it in `turn`
        // only, which runs between the turns of client and server.
        Ok(unsafe { RingNic::in_place(port) })
    };
    Ok([plug("server", SERVER)?, plug("client", CLIENT)?])
}

impl<H: Handler, N: Nic<Error: Send + Sync + 'static>> World<H, N> {
    fn on(
        switch: Inline,
        [server, client]: [N; 2],
        config: impl Fn(Mac) -> Config,
        handler: H,
    ) -> Self {
        let server = Serving::new(server, config(SERVER), handler);
        let client = Calling::new(client, config(CLIENT));
        Self { switch, server, client, count: Count::default(), started: Instant::now() }
    }

    fn now(&self) -> Nanos {
        Nanos(Nanos::SECOND) + self.started.elapsed().as_nanos() as u64
    }

    #[inline]
    fn turn(&mut self, now: Nanos) -> Result<()> {
        self.client.flush()?;
        self.switch.turn(port::Nanos(now.0));
        self.server.poll(now)?;
        self.switch.turn(port::Nanos(now.0));
        self.client.poll(now, &mut self.count)?;
        ensure!(self.count.failures == 0, "requests failed");
        Ok(())
    }

    fn open(&mut self, sessions: usize) -> Result<Vec<SessionId>> {
        let mut ids = Vec::new();
        for _ in 0..sessions {
            let now = self.now();
            let id = self.client.connect(SERVER, now);
            self.until_open(id)?;
            ids.push(id);
        }
        Ok(ids)
    }

    fn until_open(&mut self, id: SessionId) -> Result<()> {
        while !self.client.client().is_open(id) {
            let now = self.now();
            self.turn(now)?;
            ensure!(!self.client.client().is_closed(id), "the server refused a session");
        }
        Ok(())
    }

    /// Sends `n` requests at once; returns when all have replies.
    #[inline]
    fn burst(&mut self, id: SessionId, n: u64, request: &[u8], now: Nanos) -> Result<()> {
        let end = self.count.replies + n;
        for tag in 0..n {
            self.client.call(id, tag, request, now)?;
        }
        while self.count.replies < end {
            self.turn(now)?;
        }
        Ok(())
    }

    /// Times of bursts of `n` requests, as [`times`] has them. The clock of both ends is read every
    /// 16 bursts.
    fn times(&mut self, id: SessionId, n: u64, request: &[u8], time: Duration) -> Result<Vec<u32>> {
        let (mut now, mut rounds) = (self.now(), 0u32);
        times(time, || {
            rounds += 1;
            if rounds.is_multiple_of(16) {
                now = self.now();
            }
            self.burst(id, n, request, now)
        })
    }
}

/// Times of as many rounds as fit into `time`, sorted, in nanoseconds. A tenth warms up.
fn times(time: Duration, mut round: impl FnMut() -> Result<()>) -> Result<Vec<u32>> {
    let start = Instant::now();
    let (mut from, mut times, mut is_warm) = (start, Vec::with_capacity(1 << 20), false);
    while from - start < time && times.len() < 1 << 22 {
        round()?;
        let to = Instant::now();
        times.push((to - from).as_nanos() as u32);
        if !is_warm && to - start > time / 10 {
            times.clear();
            is_warm = true;
        }
        from = to;
    }
    ensure!(!times.is_empty(), "no round fitted into the time");
    times.sort_unstable();
    Ok(times)
}

fn us(times: &[u32], percent: usize) -> f64 {
    f64::from(times[(times.len() - 1) * percent / 100]) / 1e3
}

/// Round trip of `n` requests at once, of `len` bytes each, in us for one; notes the 99th
/// percentile.
pub fn burst(lab: &Lab, n: u64, len: usize) -> Result<f64> {
    let sorted = bursts(lab, n, len)?;
    let (median, late) = (us(&sorted, 50), us(&sorted, 99));
    lab.note(&format!("burst {n} {len}"), format!("in the last run p99 of all {n} {late:.2} us"));
    Ok(median / n as f64)
}

/// The 99th percentile of round trips of single requests of `len` bytes, in us.
pub fn late(lab: &Lab, len: usize) -> Result<f64> {
    Ok(us(&bursts(lab, 1, len)?, 99))
}

/// Times of bursts of `n` requests at once, in order.
fn bursts(lab: &Lab, n: u64, len: usize) -> Result<Vec<u32>> {
    let time = lab.duration();
    on_core(0, move || {
        let mut world = World::new(1024, 1500, echo)?;
        let id = world.open(1)?[0];
        world.times(id, n, &vec![7; len], time)
    })
}

/// Round trip of a request of 10 bytes between guests on emulated 82540EMs with status blocks, in
/// us.
pub fn round_trip_cards(lab: &Lab) -> Result<f64> {
    let time = lab.duration();
    let sorted = on_core(0, move || {
        let mut switch = Inline::new(SwitchConfig { max_ports: 2, ..SwitchConfig::default() })?;
        let card = E1000 { block: true };
        let nics = [card.plug(&mut switch, SERVER)?.nic, card.plug(&mut switch, CLIENT)?.nic];
        let mut world = World::on(switch, nics, |mac| config(mac, 255), echo);
        let id = world.open(1)?[0];
        world.times(id, 1, &[7; 10], time)
    })?;
    lab.note("rpc cards", format!("in the last run p99 {:.2} us", us(&sorted, 99)));
    Ok(us(&sorted, 50))
}

/// A host of `guest.rpc.rtt.udp`, with an address of one family.
fn host(mac: Mac, number: u8, v6: bool) -> guest::Config {
    let ip = Ipv4Addr::new(10, 0, 0, number);
    if !v6 {
        return guest::Config::new(mac, ip, 24);
    }
    let address = Some((Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number.into()), 64));
    let v6 = Some(Ipv6Config { address, probes: 0, ..Ipv6Config::default() });
    guest::Config { v6, ..guest::Config::new(mac, Ipv4Addr::UNSPECIFIED, 0) }
}

/// Round trip of a request of 10 bytes in UDP datagrams, in us.
pub fn round_trip_udp(lab: &Lab, v6: bool) -> Result<f64> {
    const PORT: u16 = 4000;
    let time = lab.duration();
    let sorted = on_core(0, move || {
        let mut switch = Inline::new(SwitchConfig { max_ports: 2, ..SwitchConfig::default() })?;
        let [server, client] = plug(&mut switch, 1024, 1500)?;
        let hosts = [host(SERVER, 1, v6), host(CLIENT, 2, v6)];
        let server = Serving::over_udp(server, &hosts[0], PORT, config(SERVER, 1023), echo);
        let client = Calling::over_udp(client, &hosts[1], PORT, config(CLIENT, 1023));
        let (count, started) = (Count::default(), Instant::now());
        let mut world = World { switch, server, client, count, started };
        let [ip, ..] = hosts.map(|host| match host.v6.and_then(|v6| v6.address) {
            Some((ip, _)) => IpAddr::V6(ip),
            None => host.address.into(),
        });
        let id = world.client.connect_udp((ip, PORT), world.now());
        world.until_open(id)?;
        world.times(id, 1, &[7; 10], time)
    })?;
    let family = if v6 { "IPv6" } else { "IPv4" };
    lab.note(&format!("rpc {family}"), format!("in the last run p99 {:.2} us", us(&sorted, 99)));
    Ok(us(&sorted, 50))
}

/// Round trip through a data process, in us: both ends in one thread on core 0, the switch on core
/// 1.
pub fn round_trip_daemon(lab: &Lab) -> Result<f64> {
    let daemon = lab.daemon(POLLED)?;
    let (server, client) = (daemon.port("server")?, daemon.port("client")?);
    let time = lab.duration();
    let sorted = on_core(0, move || {
        let mut server = Serving::new(RingNic::new(server), config(SERVER, 1023), echo);
        let mut client = Calling::new(RingNic::new(client), config(CLIENT, 1023));
        let (started, mut count) = (Instant::now(), Count::default());
        let clock = || Nanos(Nanos::SECOND) + started.elapsed().as_nanos() as u64;
        let id = client.connect(SERVER, clock());
        while !client.client().is_open(id) {
            client.poll(clock(), &mut count)?;
            server.poll(clock())?;
            ensure!(!client.client().is_closed(id), "the server does not answer");
        }
        let (mut now, mut rounds) = (clock(), 0u32);
        times(time, || {
            rounds += 1;
            if rounds.is_multiple_of(16) {
                now = clock();
            }
            client.call(id, 0, &[7; 10], now)?;
            client.flush()?;
            let (end, mut spins) = (count.replies + 1, 0u32);
            while count.replies < end {
                server.poll(now)?;
                client.poll(now, &mut count)?;
                spins += 1;
                if spins.is_multiple_of(4096) {
                    now = clock();
                }
            }
            Ok(())
        })
    })?;
    lab.note("rpc daemon", format!("in the last run p99 {:.2} us", us(&sorted, 99)));
    Ok(us(&sorted, 50))
}

/// Small requests, in millions per second of this thread's time: 8 sessions with 8 outstanding.
pub fn rate(lab: &Lab) -> Result<f64> {
    let seconds = lab.seconds();
    on_core(0, move || {
        let mut world = World::new(256, 1500, echo)?;
        let ids = world.open(8)?;
        let mut run = |seconds: f64| -> Result<f64> {
            let (start, before) = (Instant::now(), world.count.replies);
            let busy_before = busy(start);
            while start.elapsed().as_secs_f64() < seconds {
                let now = world.now();
                for _ in 0..16 {
                    for id in &ids {
                        while world.client.call(*id, 0, &[7; 10], now).is_ok() {}
                    }
                    world.turn(now)?;
                }
            }
            Ok((world.count.replies - before) as f64 / (busy(start) - busy_before))
        };
        run(seconds / 10.0)?;
        Ok(run(seconds)? / 1e6)
    })
}

/// Messages of 8 MiB to the server, in Gb/s of this thread's time.
pub fn bulk(lab: &Lab, mtu: u16) -> Result<f64> {
    let seconds = lab.seconds();
    on_core(0, move || {
        let count = |_: Call, request: &[u8], reply: &mut [u8]| {
            reply[..8].copy_from_slice(&(request.len() as u64).to_le_bytes());
            Answer::Here(8)
        };
        let mut world = World::new(128, mtu, count)?;
        let id = world.open(1)?[0];
        let message = Bytes::from(vec![7; LONG]);
        let mut run = |messages: u64| -> Result<f64> {
            let start = Instant::now();
            let (busy_before, mut done) = (busy(start), 0);
            while done < messages || start.elapsed().as_secs_f64() < seconds {
                let (now, end) = (world.now(), world.count.replies + 1);
                world.client.call_bytes(id, 0, message.clone(), now)?;
                while world.count.replies < end {
                    let now = world.now();
                    world.turn(now)?;
                }
                done += 1;
            }
            Ok((done * LONG as u64 * 8) as f64 / (busy(start) - busy_before) / 1e9)
        };
        run(2)?;
        run(8)
    })
}

/// Round trip in us of requests that a thread on core 1 answers.
pub fn workers(lab: &Lab) -> Result<f64> {
    let time = lab.duration();
    let (mut dispatch, worker) = bay(64);
    let sorted = std::thread::scope(|scope| {
        scope.spawn(move || {
            let _ = client::pin(1);
            worker.run(|_, request| Bytes::copy_from_slice(request));
        });
        on_core(0, move || {
            let posts = std::cell::RefCell::new(&mut dispatch);
            let handler = |call: Call, request: &[u8], _: &mut [u8]| {
                if posts.borrow_mut().post(call, request) { Answer::Later } else { Answer::Busy }
            };
            let mut world = World::new(256, 1500, handler)?;
            let id = world.open(1)?[0];
            times(time, || {
                let (now, end) = (world.now(), world.count.replies + 1);
                world.client.call(id, 0, &[7; 10], now)?;
                while world.count.replies < end {
                    world.turn(now)?;
                    world.server.collect(&mut posts.borrow_mut())?;
                }
                Ok(())
            })
        })
    })?;
    Ok(us(&sorted, 50))
}

/// Round trip in us of the first request after 10 ms without one.
pub fn first(lab: &Lab) -> Result<f64> {
    let time = lab.duration();
    on_core(0, move || {
        let mut world = World::new(1024, 1500, echo)?;
        let id = world.open(1)?[0];
        let (start, mut times) = (Instant::now(), Vec::new());
        while times.len() < 5 || start.elapsed() < time {
            std::thread::sleep(Duration::from_millis(10));
            let now = world.now();
            let from = Instant::now();
            world.burst(id, 1, &[7; 10], now)?;
            times.push(from.elapsed().as_nanos() as u32);
        }
        times.sort_unstable();
        Ok(us(&times, 50))
    })
}

/// 1,000 sessions ask at once, over rings of `slots`: the time in us until the median of them has
/// its reply. Notes the 99th percentile and how many requests were lost and repeated.
pub fn rings(lab: &Lab, slots: u32) -> Result<f64> {
    const SESSIONS: usize = 1000;
    let time = lab.duration();
    let (median, late, lost) = on_core(0, move || {
        let mut world = World::new(slots, 1500, echo)?;
        let ids = world.open(SESSIONS)?;
        let (start, mut times, mut asked) = (Instant::now(), Vec::new(), 0u64);
        while asked == 0 || start.elapsed() < time {
            let (from, before) = (Instant::now(), world.count.replies);
            let mut rest = ids.iter().copied().peekable();
            while world.count.replies < before + SESSIONS as u64 {
                let now = world.now();
                while let Some(id) = rest.peek()
                    && world.client.call(*id, 0, &[7; 10], now).is_ok()
                {
                    rest.next();
                }
                let was = world.count.replies;
                world.turn(now)?;
                let took = from.elapsed().as_nanos() as u32;
                times.extend((was..world.count.replies).map(|_| took));
                ensure!(from.elapsed().as_secs() < 10, "a round takes too long");
            }
            asked += SESSIONS as u64;
        }
        times.sort_unstable();
        let repeated = world.client.client().counters().repeated;
        Ok((us(&times, 50), us(&times, 99), repeated as f64 / asked as f64))
    })?;
    lab.note(
        &format!("rings {slots}"),
        format!(
            "in the last run with {slots} slots p99 {late:.1} us, {:.2} % repeated",
            lost * 1e2
        ),
    );
    Ok(median)
}
