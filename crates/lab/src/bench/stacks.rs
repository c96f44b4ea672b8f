//! Light guests: two TCP/IP stacks, their applications and an inline switch in one thread. Time is
//! that thread's own.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Instant;

use anyhow::{Result, ensure};
use frame::{Mac, OffloadSet};
use guest::apps::bulk::Bulk;
use guest::apps::load::{Fetch, Load};
use guest::apps::site::Site;
use guest::{App, Bytes, Config, Guest, Nanos, RingNic, Stack};
use inline::{Inline, Policy, SwitchConfig};
use link::Impairment;
use netring::{Open, Region, RegionConfig};

use super::lab::Lab;
use super::traffic::on_core;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// Settings of the two guests and their ports.
#[derive(Clone, Copy)]
struct Setup {
    offloads: OffloadSet,
    slots: u32,
    /// Frame loss in both directions, in parts per million.
    loss_ppm: u32,
}

const PLAIN: Setup = Setup { offloads: OffloadSet::NONE, slots: 256, loss_ppm: 0 };
const OFFLOADS: Setup = Setup { offloads: OffloadSet::ALL, ..PLAIN };

/// Two guests at a switch, in one thread.
struct World<S: App, C: App> {
    switch: Inline,
    server: Guest<RingNic, S>,
    client: Guest<RingNic, C>,
    started: Instant,
}

impl<S: App, C: App> World<S, C> {
    fn new(setup: Setup, server: S, client: C) -> Result<Self> {
        let mut switch = Inline::new(SwitchConfig { max_ports: 2, ..SwitchConfig::default() })?;
        let mut plug = |number: u32, address| -> Result<Stack<RingNic>> {
            let region = Region::private(RegionConfig::ports(1, 1, setup.slots))?;
            let open = Open::new("port").slots(setup.slots).in_region(&region);
            let port = open.offloads(setup.offloads).inline()?;
            let mac = Mac::local(number);
            let loss_ppm = setup.loss_ppm;
            let seed = u64::from(number);
            let impairment =
                (loss_ppm > 0).then(|| Impairment { seed, loss_ppm, ..Impairment::default() });
            let policy = Policy { macs: vec![mac], tx_impairment: impairment, ..Policy::default() };
            switch.add_rings(&format!("p{number}"), policy, &port.rings())?;
            #[allow(unsafe_code, reason = "the switch runs in this thread")]
            // SAFETY: the region is private and its port's own; the switch writes to it in `turn`
            // only, which runs between the stacks' turns.
            let nic = unsafe { RingNic::in_place(port) };
            Ok(Stack::new(nic, &Config::new(mac, address, 24)))
        };
        let server = Guest::new(plug(1, SERVER)?, server);
        let client = Guest::new(plug(2, CLIENT)?, client);
        Ok(Self { switch, server, client, started: Instant::now() })
    }

    fn turn(&mut self) -> Result<()> {
        let now = Nanos(Nanos::SECOND) + self.started.elapsed().as_nanos() as u64;
        self.client.poll(now)?;
        self.switch.turn(port::Nanos(now.0));
        self.server.poll(now)?;
        self.switch.turn(port::Nanos(now.0));
        Ok(())
    }

    /// Runs until `done`, for at most ten seconds.
    fn until(&mut self, what: &str, done: impl Fn(&mut Self) -> bool) -> Result<()> {
        let started = Instant::now();
        while !done(self) {
            self.turn()?;
            ensure!(started.elapsed().as_secs() < 10, "{what} takes too long");
        }
        Ok(())
    }

    /// Rate of `count` per second of this thread's own time, over the lab's time.
    fn rate(&mut self, lab: f64, count: impl Fn(&mut Self) -> u64) -> Result<f64> {
        let (start, before) = (Instant::now(), count(self));
        let busy_before = busy(start);
        while start.elapsed().as_secs_f64() < lab {
            for _ in 0..16 {
                self.turn()?;
            }
        }
        let took = busy(start) - busy_before;
        Ok((count(self) - before) as f64 / took)
    }
}

/// Seconds that this thread has spent on a core.
pub fn busy(start: Instant) -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = stat.and_then(|stat| stat.split(' ').next()?.parse::<u64>().ok());
    nanos.map_or_else(|| start.elapsed().as_secs_f64(), |nanos| nanos as f64 / 1e9)
}

/// Gb/s from one guest to the other, including the copies that programs make at both ends.
fn bulk(lab: &Lab, setup: Setup) -> Result<f64> {
    let seconds = lab.seconds();
    on_core(0, move || {
        let mut world = World::new(setup, Bulk::sink(true), Bulk::source(true))?;
        world.server.listen(5001, 8)?;
        let to = SocketAddrV4::new(SERVER, 5001);
        world.client.connect(to, (), Nanos(Nanos::SECOND))?;
        world.until("the first megabyte", |world| world.server.app().received > 1 << 20)?;
        let bytes = world.rate(seconds, |world| world.server.app().received)?;
        Ok(bytes * 8.0 / 1e9)
    })
}

/// MTU 1500, checksums in software.
pub fn plain(lab: &Lab) -> Result<f64> {
    bulk(lab, PLAIN)
}

/// The same, with checksums and segmentation left to the port.
pub fn offloads(lab: &Lab) -> Result<f64> {
    bulk(lab, OFFLOADS)
}

/// Like [`plain`], with losses in both directions.
pub fn lossy(lab: &Lab, loss_ppm: u32) -> Result<f64> {
    bulk(lab, Setup { loss_ppm, ..PLAIN })
}

/// Pages of `len` bytes per second, over this many connections.
pub fn pages(lab: &Lab, len: usize, connections: usize) -> Result<f64> {
    let seconds = lab.seconds();
    on_core(0, move || {
        let mut site = Site::default();
        site.add("/page", Bytes::from(vec![b'x'; len]));
        let mut world = World::new(OFFLOADS, site, Load::new("10.0.0.1", "/page"))?;
        world.server.listen(80, 1024)?;
        let to = SocketAddrV4::new(SERVER, 80);
        for _ in 0..connections {
            world.client.connect(to, Fetch::default(), Nanos(Nanos::SECOND))?;
        }
        world.until("connecting", |world| world.client.app().made >= connections as u64)?;
        world.until("the first pages", |world| world.client.app().answers > 100)?;
        let rate = world.rate(seconds, |world| world.client.app().answers)?;
        let load = world.client.app();
        ensure!((load.errors, load.lost) == (0, 0), "not every answer was right");
        Ok(rate)
    })
}
