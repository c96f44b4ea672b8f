//! Sends every frame back where it came from, without copying it: the two addresses change places
//! in the buffer, and the buffer changes places with one of the send ring.
//!
//! ```text
//! toklat daemon &
//! cargo run --release -p toklat-netring --example reflect -- vale0:reflect
//! toklat ping vale0:me
//! ```

use netring::{Interest, Port};
use shmem::Bytes;

/// Exchanges the destination and the source address.
fn turn_round(frame: Bytes<'_>) {
    let mut addresses = [0; 12];
    if frame.copy_out(&mut addresses) == 12 {
        addresses.rotate_left(6);
        frame.copy_in(&addresses);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).ok_or("usage: reflect SWITCH:PORT")?;
    let mut port = Port::open(&name)?;
    loop {
        let Some((mut out, mut batch)) = port.queue(0).both(64, 64) else { break Ok(()) };
        while let Some(frame) = batch.next_within(out.room()) {
            turn_round(frame.window());
            // There is room, because `next_within` leaves frames that would need more.
            let _ = out.forward(frame);
        }
        let full = out.room() < batch.slots_left();
        port.flush()?;
        // A lossy switch always makes room; a pipe or a lossless port may let us wait.
        port.wait(if full { Interest::WRITE } else { Interest::READ }, None)?;
    }
}
