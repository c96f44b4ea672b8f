//! The guest's side of a measurement, for any registers and any source of interrupts.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use driver::Regs;
use driver::e1000::{E1000Driver, Request};

/// Bytes of a short frame, without its check sequence.
pub const SHORT: u32 = 60;
/// Frames between two clock reads.
const ROUND: u32 = 64;
/// Time limit without progress.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// A source of interrupts: returns the vectors raised since the last call. Each costs its trap.
pub trait Raised {
    /// Returns the vectors raised since the last call.
    fn take(&mut self) -> u32;
}

impl<F: FnMut() -> u32> Raised for F {
    fn take(&mut self) -> u32 {
        self()
    }
}

/// Handles an interrupt as a stock driver does: reclaims sent frames, and takes all received ones.
/// Returns how many were received.
#[inline]
pub fn interrupt<R: Regs>(driver: &mut E1000Driver<R>, raised: &mut dyn Raised) -> u64 {
    let vectors = raised.take();
    if vectors == 0 {
        return 0;
    }
    driver.interrupt(vectors);
    driver.reclaim();
    let mut frames = 0;
    loop {
        frames += driver.receive(usize::MAX, |_| ()) as u64;
        if !driver.wait_for_frames() {
            break;
        }
    }
    driver.rearm();
    frames
}

/// Writes the same frame into all send buffers.
pub fn prepare<R: Regs>(driver: &E1000Driver<R>, frame: &[u8]) {
    (0..driver.places()).for_each(|i| {
        driver.place(i).copy_in(frame);
    });
}

/// Sends frames of `len` bytes for `time`, as a stack does: one at a time, each with a doorbell.
/// Returns completed frames per second.
pub fn send<R: Regs>(
    driver: &mut E1000Driver<R>,
    raised: &mut dyn Raised,
    len: u32,
    time: Duration,
) -> Result<f64> {
    let (start, before) = (Instant::now(), driver.counts().done);
    let mut moved = start;
    loop {
        for _ in 0..ROUND {
            interrupt(driver, raised);
            if driver.room() == 0 {
                driver.reclaim();
                if !driver.wait_for_room(1) {
                    break;
                }
            }
            driver.send_placed(len, &Request::default());
            driver.flush();
            moved = start;
        }
        let now = Instant::now();
        if now - start >= time {
            let done = driver.counts().done - before;
            return Ok(done as f64 / (now - start).as_secs_f64());
        }
        moved = if moved == start { now } else { moved };
        if now - moved > PATIENCE {
            bail!("the NIC has stopped sending");
        }
    }
}

/// Receives for `time`. Returns frames a second.
pub fn receive<R: Regs>(
    driver: &mut E1000Driver<R>,
    raised: &mut dyn Raised,
    time: Duration,
) -> Result<f64> {
    let (start, before) = (Instant::now(), driver.counts().received);
    loop {
        for _ in 0..ROUND {
            interrupt(driver, raised);
        }
        let passed = start.elapsed();
        if passed >= time {
            return Ok((driver.counts().received - before) as f64 / passed.as_secs_f64());
        }
    }
}

/// Sends a frame and waits for one to return, repeatedly. Returns the sorted times in microseconds.
pub fn round_trips<R: Regs>(
    driver: &mut E1000Driver<R>,
    raised: &mut dyn Raised,
    time: Duration,
) -> Result<Vec<f64>> {
    let (begin, mut times) = (Instant::now(), Vec::new());
    while begin.elapsed() < time {
        let start = Instant::now();
        driver.send_placed(SHORT, &Request::default());
        driver.flush();
        while interrupt(driver, raised) == 0 {
            if start.elapsed() > PATIENCE {
                bail!("a frame did not come back");
            }
        }
        driver.reclaim();
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_unstable_by(f64::total_cmp);
    Ok(times)
}
