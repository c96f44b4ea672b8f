//! A switch inside this program: two ports, no daemon, no thread, no system call per frame.

use std::time::Instant;

use frame::Mac;
use inline::{Inline, Policy, SwitchConfig};
use netring::{Port, Region, RegionConfig};
use port::Nanos;

const SLOTS: u32 = 256;
const FRAMES: u64 = 1_000_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut switch = Inline::new(SwitchConfig { max_ports: 2, ..SwitchConfig::default() })?;
    let mut plug = |number: u32| -> Result<Port, Box<dyn std::error::Error>> {
        let region = Region::private(RegionConfig::ports(1, 1, SLOTS))?;
        let port = Port::inline(&region, "port", 1, 1, SLOTS)?;
        let policy = Policy { macs: vec![Mac::local(number)], ..Policy::default() };
        switch.add_rings(&format!("p{number}"), policy, &port.rings())?;
        Ok(port)
    };
    let (mut from, mut to) = (plug(0)?, plug(1)?);

    let mut frame = [0; 60];
    frame[..6].copy_from_slice(&Mac::local(1).octets());
    frame[6..12].copy_from_slice(&Mac::local(0).octets());
    let (began, mut sent, mut got) = (Instant::now(), 0, 0);
    while got < FRAMES {
        let batch = 64.min(FRAMES - sent) as usize;
        sent += from.send(batch).fill(batch, |window| window.copy_in(&frame)) as u64;
        from.flush()?;
        // Time is an argument: the switch reads no clock.
        switch.turn(Nanos(u64::try_from(began.elapsed().as_nanos())?));
        got += to.receive(batch).count() as u64;
        to.flush()?;
    }
    let rate = got as f64 / began.elapsed().as_secs_f64() / 1e6;
    println!("{got} frames, {rate:.1} million a second, sender, switch and receiver in one thread");
    Ok(())
}
