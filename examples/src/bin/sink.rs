//! Receives frames and counts them: `sink PORT [FRAMES]`, forever or until that many have arrived.

use std::time::{Duration, Instant};

use netring::{Interest, Port};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let name = args.next().ok_or("usage: sink PORT [FRAMES]")?;
    let most = args.next().map_or(Ok(u64::MAX), |frames| frames.parse())?;

    // The daemon makes the port if it does not exist, and removes it when this program ends.
    let mut port = Port::open(&name)?;
    let (mut frames, mut bytes, mut shown) = (0, 0, Instant::now());
    while frames < most {
        // Sleeps until a frame comes. The switch wakes a sleeper once per batch.
        port.wait(Interest::READ, Some(Duration::from_secs(1)))?;
        // Up to 1,024 frames, lent: their bytes lie in memory that this program and the switch
        // share.
        for frame in port.receive(1024) {
            frames += 1;
            bytes += frame.len() as u64;
        }
        // Gives all received frames back at once.
        port.flush()?;
        if shown.elapsed() > Duration::from_secs(1) {
            shown = Instant::now();
            println!("{frames} frames, {bytes} bytes");
        }
    }
    println!("{frames} frames, {bytes} bytes");
    Ok(())
}
