//! A learning bridge over two ports: `bridge LEFT RIGHT`. Frames between stations of one side stay
//! there.

use std::collections::HashMap;
use std::time::Duration;

use netring::{Interest, Open, Port, Region, RegionConfig};

/// Frames that are moved at once.
const BATCH: usize = 256;
/// Stations that are remembered at most: addresses come from strangers.
const STATIONS: usize = 4096;

/// Moves what has come at one port to the other; returns how many frames.
fn forward(from: &mut Port, to: &mut Port, side: usize, at: &mut HashMap<[u8; 6], usize>) -> usize {
    let mut out = to.send(BATCH);
    let mut moved = 0;
    // Takes only as many frames as there is room for. The rest stays in the ring, whose sender sees
    // it fill.
    for frame in from.receive(out.room()) {
        let mut addresses = [[0; 6]; 2];
        frame.copy_out(addresses.as_flattened_mut());
        let [destination, source] = addresses;
        if at.len() < STATIONS || at.contains_key(&source) {
            at.insert(source, side);
        }
        moved += 1;
        if at.get(&destination) != Some(&side) {
            // Both ports lie in one region, so buffers change places and no byte is copied.
            let _ = out.forward(frame);
        }
    }
    moved
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(left), Some(right)) = (args.next(), args.next()) else {
        return Err("usage: bridge LEFT RIGHT".into());
    };
    let region = Region::create(RegionConfig::ports(2, 1, 1024))?;
    let [mut left, mut right] =
        [Open::new(&left).in_region(&region).open()?, Open::new(&right).in_region(&region).open()?];
    let mut at = HashMap::new();
    loop {
        let moved =
            forward(&mut left, &mut right, 0, &mut at) + forward(&mut right, &mut left, 1, &mut at);
        left.flush()?;
        right.flush()?;
        if moved == 0 {
            // A program with many ports puts `Port::as_fd` into its own poll instead.
            left.wait(Interest::READ, Some(Duration::from_millis(1)))?;
        }
    }
}
