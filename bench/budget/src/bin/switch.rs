//! Runs a scenario over a number of frames, for `cargo xtask perf` to count instructions:
//! `switch SCENARIO FRAMES`. One thread, no daemon; client and switch are counted together.

use std::sync::Arc;

use budget::{Error, Pair, fenced};
use dataplane::SwitchConfig;
use dataplane::config::Policy;
use frame::Mac;
use inline::Inline;
use link::{RateLimiter, TokenBucket};
use netring::{PipeConfig, Port, Region, RegionConfig};
use nic::virtio::Features;
use port::Nanos;

const BATCH: usize = 64;

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [scenario, frames] = args.as_slice() else {
        return Err(
            "usage: switch inline.60|inline.64|inline.1500|limited.64|link.64|sampled.64|scatter.64|broadcast.64|pipe.64|virtio.*.64|rules.10|rules.1000|stateful FRAMES".into()
        );
    };
    let frames: usize = frames.parse()?;
    match scenario.as_str() {
        "inline.60" => Bench::new(1, To::Each)?.run(frames, 60),
        "inline.64" => Bench::new(1, To::Each)?.run(frames, 64),
        "inline.1500" => Bench::new(1, To::Each)?.run(frames, 1500),
        "link.64" => Bench::new(1, To::Each)?.linked()?.run(frames, 64),
        "limited.64" => Bench::new(1, To::Each)?.limited()?.run(frames, 64),
        "sampled.64" => Bench::new(1, To::Each)?.sampled().run(frames, 64),
        // Sends each frame of a batch to another port.
        "scatter.64" => Bench::new(64, To::Each)?.run(frames, 64),
        // Counted for each copy, because receivers get copies.
        "broadcast.64" => Bench::new(64, To::All)?.run(frames / 64, 64),
        "pipe.64" => pipe(frames, 64),
        "rules.10" => fenced::run(10, fenced::NO_FLOW_TWICE, frames),
        "rules.1000" => fenced::run(1000, fenced::NO_FLOW_TWICE, frames),
        "stateful" => fenced::run(0, 1000, frames),
        "virtio.split.64" => virtio(Features::empty(), frames, 64),
        "virtio.packed.64" => virtio(Features::RING_PACKED, frames, 64),
        other => Err(format!("no scenario {other}").into()),
    }
}

/// Fills up to a batch of slots with frames of `len` bytes, headers only.
fn send<'h>(
    port: &mut Port,
    mut header: impl FnMut() -> &'h [u8; 14],
    frames: usize,
    len: usize,
) -> Result<usize, Error> {
    let sent = port.send(frames.min(BATCH)).fill(frames.min(BATCH), |window| {
        window.copy_in(header());
        len
    });
    port.flush()?;
    Ok(sent)
}

/// Receives the frames that have arrived, and adds up their lengths.
fn receive(port: &mut Port, bytes: &mut usize) -> Result<usize, Error> {
    let mut frames = 0;
    for frame in port.receive(usize::MAX) {
        *bytes += frame.len();
        frames += 1;
    }
    port.flush()?;
    Ok(frames)
}

/// The receivers of the frames.
#[derive(Clone, Copy)]
enum To {
    /// Sends to one receiver after the other.
    Each,
    /// All receivers at once.
    All,
}

/// One sender, some receivers, and the switch between them.
struct Bench {
    switch: Inline,
    sender: Port,
    receivers: Vec<Port>,
    headers: Vec<[u8; 14]>,
    /// The number of frames that arrive for each frame sent.
    copies: usize,
    /// Nanoseconds between turns, if frames wait for a time.
    tick: Option<u64>,
}

impl Bench {
    fn new(count: u32, to: To) -> Result<Self, Error> {
        let region = Region::private(RegionConfig::ports(count + 1, 1, 256))?;
        let config = SwitchConfig { max_ports: count as u16 + 1, ..Default::default() };
        let mut switch = Inline::new(config)?;
        let sender = plug(&mut switch, &region, Mac::local(1))?;
        let receivers: Vec<Port> = (0..count)
            .map(|i| plug(&mut switch, &region, Mac::local(2 + i)))
            .collect::<Result<_, _>>()?;
        let header = |to: Mac| {
            let mut header = [0; 14];
            header[..6].copy_from_slice(&to.octets());
            header[6..12].copy_from_slice(&Mac::local(1).octets());
            header[12..].copy_from_slice(&[0x88, 0xb5]);
            header
        };
        let (headers, copies) = match to {
            To::Each => ((0..count).map(|i| header(Mac::local(2 + i))).collect(), 1),
            To::All => (vec![header(Mac::BROADCAST)], receivers.len()),
        };
        Ok(Self { switch, sender, receivers, headers, copies, tick: None })
    }

    /// The same benchmark, with limits of all kinds that are never reached.
    fn limited(mut self) -> Result<Self, Error> {
        let size = TokenBucket::MAX_SIZE;
        let bucket = Some(TokenBucket { size, one_time_burst: 0, refill_time: 1 });
        let limiter = Some(RateLimiter { bandwidth: bucket, ops: bucket });
        for id in 0..=self.receivers.len() as u16 {
            let policy = policy(Mac::local(1 + u32::from(id)));
            let limited = Policy { tx_rate_limiter: limiter, rx_rate_limiter: limiter, ..policy };
            self.switch.set_policy(id, limited)?;
        }
        Ok(self)
    }

    /// The same benchmark, with the receiver behind a line with a rate and a delay.
    fn linked(mut self) -> Result<Self, Error> {
        let rx_link = Some("rate=400Gb/s,delay=2us,queue=1MB".to_owned());
        self.switch.set_policy(1, Policy { rx_link, ..policy(Mac::local(2)) })?;
        self.tick = Some(1000);
        Ok(self)
    }

    /// The same benchmark, with one in 10,000 frames sampled.
    fn sampled(self) -> Self {
        self.switch.state().recorder().set_rate(10_000);
        self
    }

    fn run(self, frames: usize, len: usize) -> Result<(), Error> {
        let headers = self.headers.clone();
        let mut by_turns = headers.iter().cycle();
        match headers.as_slice() {
            [header] => self.run_with(|| header, frames, len),
            headers => self.run_with(|| by_turns.next().unwrap_or(&headers[0]), frames, len),
        }
    }

    fn run_with<'h>(
        mut self,
        mut header: impl FnMut() -> &'h [u8; 14],
        frames: usize,
        len: usize,
    ) -> Result<(), Error> {
        let (mut sent, mut received, mut bytes, mut turns, mut now) = (0, 0, 0, 0, 0);
        // A flood takes several turns, because its copies are charged to the sender.
        while sent < frames || turns < 64 {
            turns = if sent < frames { 0 } else { turns + 1 };
            sent += send(&mut self.sender, &mut header, frames - sent, len)?;
            now = self.tick.map_or(sent as u64, |tick| now + tick);
            self.switch.turn(Nanos(now));
            for port in &mut self.receivers {
                received += receive(port, &mut bytes)?;
            }
        }
        let expected = frames * self.copies;
        if received != expected || bytes != expected * len {
            return Err(format!("{received} frames and {bytes} bytes of {expected} arrived").into());
        }
        Ok(())
    }
}

fn plug(switch: &mut Inline, region: &Arc<Region>, mac: Mac) -> Result<Port, Error> {
    let port = Port::inline(region, "bench", 1, 1, 256)?;
    switch.add_rings("bench", policy(mac), &port.rings())?;
    Ok(port)
}

fn policy(mac: Mac) -> Policy {
    Policy { macs: vec![mac], flood_limit: None, ..Policy::default() }
}

/// Two guests with untuned drivers.
fn virtio(kind: Features, frames: usize, len: usize) -> Result<(), Error> {
    let features = Features::VERSION_1 | Features::MRG_RXBUF | kind;
    Pair::new(features, len)?.run(frames as u64, |switch, now| {
        switch.turn(now);
    })
}

fn pipe(frames: usize, len: usize) -> Result<(), Error> {
    let (mut left, mut right) = netring::pipe(&PipeConfig::default())?;
    let (mut sent, mut received, mut bytes) = (0, 0, 0);
    while received < frames {
        sent += send(&mut left, || &[0; 14], frames - sent, len)?;
        received += receive(&mut right, &mut bytes)?;
    }
    if bytes != frames * len {
        return Err(format!("{bytes} bytes arrived").into());
    }
    Ok(())
}
