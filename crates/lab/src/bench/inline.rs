//! The switch embedded in one process and thread.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use frame::Mac;
use inline::{Inline, Policy, SwitchConfig};
use link::{RateLimiter, TokenBucket};
use netring::{Port, Region, RegionConfig};
use port::Nanos;

use super::lab::Lab;
use super::traffic::{self, Flow, SINK, SOURCE, on_core};

/// Makes a switch for `ports` ports, without rate limits.
pub fn switch(ports: u16) -> Result<Inline> {
    Ok(Inline::new(SwitchConfig { max_ports: ports, ..Default::default() })?)
}

/// Plugs in a new port, whose owner has the addresses `macs`.
pub fn plug(
    switch: &mut Inline,
    region: &Arc<Region>,
    name: &str,
    macs: Vec<Mac>,
    slots: u32,
) -> Result<Port> {
    let port = Port::inline(region, name, 1, 1, slots)?;
    switch.add_rings(name, policy(macs), &port.rings())?;
    Ok(port)
}

fn policy(macs: Vec<Mac>) -> Policy {
    Policy { macs, flood_limit: None, ..Policy::default() }
}

/// Turns between clock reads: some 16 us, as ageing and rate limits count in milliseconds.
const TURNS: u32 = 16;

/// The clock.
fn clock(start: Instant) -> Nanos {
    Nanos(start.elapsed().as_nanos() as u64)
}

/// Generator, switch and sink in one thread: Mpps.
pub fn throughput(lab: &Lab, len: usize) -> Result<f64> {
    forward(lab, len, |_| Ok(()))
}

/// The same with rate limiters on both ports in both directions, for bytes and frames. The limits
/// are too high to be reached. In ns per frame.
pub fn limited(lab: &Lab) -> Result<f64> {
    let bucket =
        Some(TokenBucket { size: TokenBucket::MAX_SIZE, one_time_burst: 0, refill_time: 1 });
    let limiter = Some(RateLimiter { bandwidth: bucket, ops: bucket });
    let limit = |switch: &mut Inline| {
        for (id, mac) in [(0, SOURCE), (1, SINK)] {
            let (tx_rate_limiter, rx_rate_limiter) = (limiter, limiter);
            let limited = Policy { tx_rate_limiter, rx_rate_limiter, ..policy(vec![mac]) };
            switch.set_policy(id, limited)?;
        }
        Ok(())
    };
    Ok(1e3 / forward(lab, 64, limit)?)
}

/// The same with the receiver behind a line of 400 Gb/s and 1 ms, in ns per frame.
pub fn linked(lab: &Lab) -> Result<f64> {
    let link = |switch: &mut Inline| {
        let rx_link = Some("rate=400Gb/s,delay=1ms,queue=100MB".to_owned());
        switch.set_policy(1, Policy { rx_link, ..policy(vec![SINK]) })?;
        Ok(())
    };
    Ok(1e3 / forward(lab, 64, link)?)
}

/// The same with one in 10,000 frames sampled for sFlow, in ns per frame. The samples are not read:
/// in the daemon's buffer they are overwritten, which costs as much.
pub fn sampled(lab: &Lab) -> Result<f64> {
    let sample = |switch: &mut Inline| {
        switch.state().recorder().set_rate(10_000);
        Ok(())
    };
    Ok(1e3 / forward(lab, 64, sample)?)
}

/// The cost without limits and samples, to which [`limited`] and [`sampled`] are compared.
pub fn plain(lab: &Lab) -> Result<f64> {
    Ok(1e3 / throughput(lab, 64)?)
}

fn forward(
    lab: &Lab,
    len: usize,
    set_up: impl FnOnce(&mut Inline) -> Result<()> + Send,
) -> Result<f64> {
    let time = lab.duration();
    on_core(0, move || {
        let region = Region::private(RegionConfig::ports(2, 1, 1024))?;
        let mut switch = switch(2)?;
        let mut generator = plug(&mut switch, &region, "gen", vec![SOURCE], 1024)?;
        let mut sink = plug(&mut switch, &region, "sink", vec![SINK], 1024)?;
        set_up(&mut switch)?;
        let (flow, start) = (Flow::new(len, false), Instant::now());
        let (mut turns, mut now) = (0u32, clock(start));
        traffic::rate(time, || {
            flow.generate(&mut generator)?;
            if turns.is_multiple_of(TURNS) {
                now = clock(start);
            }
            turns = turns.wrapping_add(1);
            switch.turn(now);
            flow.sink(&mut sink)
        })
    })
}

/// Round trip in us: one thread holds both ports and runs the switch.
pub fn round_trip(lab: &Lab) -> Result<f64> {
    let time = lab.duration();
    on_core(0, move || {
        let region = Region::private(RegionConfig::ports(2, 1, 1024))?;
        let mut switch = switch(2)?;
        let mut left = plug(&mut switch, &region, "left", vec![SOURCE], 1024)?;
        let mut right = plug(&mut switch, &region, "right", vec![SINK], 1024)?;
        let start = Instant::now();
        let (there, back) = (traffic::message(SINK, SOURCE), traffic::message(SOURCE, SINK));
        traffic::median_us(time, || {
            traffic::send_one(&mut left, &there)?;
            switch.turn(clock(start));
            traffic::await_one(&mut right)?;
            traffic::send_one(&mut right, &back)?;
            switch.turn(clock(start));
            traffic::await_one(&mut left)
        })
    })
}
