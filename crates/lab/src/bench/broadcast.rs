//! Floods: copies to many ports, compared with the same frames sent to each port.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use frame::Mac;
use inline::{Inline, PortId};
use netring::{Port, Region, RegionConfig};
use port::Nanos;

use super::inline::{plug, switch};
use super::lab::Lab;
use super::traffic::{SOURCE, header, on_core};

/// Frames of a burst, sent before the receivers take them, and slots of a ring that holds a burst.
const BURST: usize = 32;
const SLOTS: u32 = 64;
/// Ports per region: a region has room for 1,024 rings.
const PORTS: u32 = 256;
/// The sending port, which is the first.
const SENDER: PortId = 0;

struct Bench {
    switch: Inline,
    sender: Port,
    receivers: Vec<Port>,
    start: Instant,
    forwarding: Duration,
}

impl Bench {
    fn new(receivers: u32) -> Result<Self> {
        let mut switch = switch(receivers as u16 + 1)?;
        let region = Region::private(RegionConfig::ports(1, 1, SLOTS))?;
        let sender = plug(&mut switch, &region, "sender", vec![SOURCE], SLOTS)?;
        let mut ports = Vec::new();
        for first in (0..receivers).step_by(PORTS as usize) {
            let here = PORTS.min(receivers - first);
            let region = Region::private(RegionConfig::ports(here, 1, SLOTS))?;
            for i in first..first + here {
                let name = format!("p{i}");
                ports.push(plug(&mut switch, &region, &name, vec![address(i)], SLOTS)?);
            }
        }
        let forwarding = Duration::ZERO;
        Ok(Self { switch, sender, receivers: ports, start: Instant::now(), forwarding })
    }

    /// Sends a burst of frames to `to` and forwards it; only the forwarding is timed.
    fn burst(&mut self, to: Mac) -> Result<()> {
        let header = header(to, SOURCE);
        let sent = self.sender.send(BURST).fill(BURST, |window| {
            window.copy_in(&header);
            64
        });
        self.sender.flush()?;
        let began = Instant::now();
        let mut frames = 0;
        while frames < sent {
            frames += self.turn();
        }
        // Runs a second turn, because the frames gathered last may not be delivered yet.
        self.turn();
        self.forwarding += began.elapsed();
        Ok(())
    }

    /// Runs the sender's turn only. A turn of all ports also visits those that send nothing. With
    /// 1,024 ports, this is most of the cost of a burst to one port, and hardly anything beside a
    /// flood.
    fn turn(&mut self) -> usize {
        self.switch.turn_of(SENDER, Nanos(self.start.elapsed().as_nanos() as u64))
    }

    fn take(&mut self) -> Result<usize> {
        let mut frames = 0;
        for port in &mut self.receivers {
            frames += port.receive(usize::MAX).count();
            port.flush()?;
        }
        Ok(frames)
    }
}

fn address(receiver: u32) -> Mac {
    Mac::local(1000 + receiver)
}

/// Nanoseconds of forwarding per copy to `receivers` ports.
pub fn flood(lab: &Lab, receivers: u32) -> Result<f64> {
    measure(lab, receivers, |bench| bench.burst(Mac::BROADCAST))
}

/// Nanoseconds of forwarding per frame, when each port is sent the same frames by unicast.
pub fn unicast(lab: &Lab, receivers: u32) -> Result<f64> {
    measure(lab, receivers, |bench| (0..receivers).try_for_each(|i| bench.burst(address(i))))
}

fn measure(
    lab: &Lab,
    receivers: u32,
    mut round: impl FnMut(&mut Bench) -> Result<()> + Send,
) -> Result<f64> {
    let time = lab.duration();
    on_core(0, move || {
        let mut bench = Bench::new(receivers)?;
        let mut copies = 0;
        for warm in [true, false] {
            let began = Instant::now();
            copies = 0;
            bench.forwarding = Duration::ZERO;
            while copies == 0 || began.elapsed() < if warm { time / 10 } else { time } {
                round(&mut bench)?;
                let taken = bench.take()?;
                if taken != BURST * receivers as usize {
                    bail!("{taken} of {} copies arrived", BURST * receivers as usize);
                }
                copies += taken;
            }
        }
        Ok(bench.forwarding.as_nanos() as f64 / copies as f64)
    })
}
