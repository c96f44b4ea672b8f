//! Generator, sink and round trips, on the fastest path of the client library.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use frame::Mac;
use netring::{Port, Received};

use super::waiting;

/// Frames a generator sends at a time.
pub const BATCH: usize = 64;
/// Address of the generator.
pub const SOURCE: Mac = Mac::local(1);
/// Address of the sink.
pub const SINK: Mac = Mac::local(2);
/// Rounds between two clock reads.
const ROUNDS: u32 = 256;

/// Runs `measure` in a thread of its own on `core`, and reports how long it waited for that core.
/// Threads and processes that are started elsewhere are not pinned.
pub fn on_core<T: Send>(core: usize, measure: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            client::pin(core)?;
            waiting::watched(measure)
        });
        thread.join().unwrap_or_else(|_| bail!("the measurement panicked"))
    })
}

/// An Ethernet header of the local experimental type (IEEE 802, 9.2).
pub fn header(to: Mac, from: Mac) -> [u8; 14] {
    let mut header = [0; 14];
    header[..6].copy_from_slice(&to.octets());
    header[6..12].copy_from_slice(&from.octets());
    header[12..].copy_from_slice(&[0x88, 0xb5]);
    header
}

/// A frame with 10 bytes of payload.
pub fn message(to: Mac, from: Mac) -> [u8; 24] {
    let mut frame = [0; 24];
    frame[..14].copy_from_slice(&header(to, from));
    frame
}

/// Frames of one kind.
pub struct Flow {
    frame: Vec<u8>,
    header: [u8; 14],
    /// Every byte is written and checked, not only the header.
    touch: bool,
}

impl Flow {
    /// Frames of `len` bytes from the generator to the sink.
    pub fn new(len: usize, touch: bool) -> Self {
        let mut frame: Vec<u8> = (0..len).map(|i| i as u8).collect();
        let header = header(SINK, SOURCE);
        frame[..14].copy_from_slice(&header);
        Self { header, frame, touch }
    }

    /// Sends up to a batch.
    #[inline]
    pub fn generate(&self, port: &mut Port) -> Result<usize> {
        let len = self.frame.len();
        let mut frames = port.send(BATCH);
        let sent = if self.touch {
            frames.fill(BATCH, |window| window.copy_in(&self.frame))
        } else {
            frames.fill(BATCH, |window| {
                window.copy_in(&self.header);
                len
            })
        };
        port.flush()?;
        Ok(sent)
    }

    /// Takes all received frames. Fails on a wrong length or, if frames are touched, a wrong byte.
    #[inline]
    pub fn sink(&self, port: &mut Port) -> Result<u64> {
        let (mut frames, mut bytes, mut bad) = (0u64, 0, 0u32);
        let mut count = |frame: &Received<'_>| {
            frames += 1;
            bytes += frame.len() as u64;
        };
        if self.touch {
            for frame in port.receive(usize::MAX) {
                count(&frame);
                bad += u32::from(!frame.equals(&self.frame));
            }
        } else {
            port.receive(usize::MAX).for_each(|frame| count(&frame));
        }
        port.flush()?;
        if bytes != frames * self.frame.len() as u64 || bad > 0 {
            bail!("a frame arrived that was not sent so");
        }
        Ok(frames)
    }
}

/// Sends a frame from the sink, so that the switch learns where it is.
pub fn announce(sink: &mut Port) -> Result<()> {
    let mut frame = [0; 60];
    frame[..14].copy_from_slice(&header(Mac::local(99), SINK));
    if !sink.send(1).push(&frame) {
        bail!("a new port has no room to send");
    }
    Ok(sink.flush()?)
}

/// Sum of what `round` returns, in millions per second, over `time`. A tenth of it warms up first.
pub fn rate(time: Duration, mut round: impl FnMut() -> Result<u64>) -> Result<f64> {
    let mut run = |time: Duration| -> Result<f64> {
        let (start, mut frames) = (Instant::now(), 0);
        loop {
            for _ in 0..ROUNDS {
                frames += round()?;
            }
            let took = start.elapsed();
            if took >= time {
                return Ok(frames as f64 / took.as_secs_f64() / 1e6);
            }
        }
    };
    run(time / 10)?;
    run(time)
}

/// The median of as many round trips as fit into `time`, in us, after a tenth of it to warm up.
pub fn median_us(time: Duration, mut trip: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut run = |time: Duration| -> Result<Vec<u32>> {
        let start = Instant::now();
        let (mut from, mut trips) = (start, Vec::with_capacity(1 << 22));
        while from - start < time && trips.len() < trips.capacity() {
            trip()?;
            let to = Instant::now();
            trips.push((to - from).as_nanos() as u32);
            from = to;
        }
        Ok(trips)
    };
    run(time / 10)?;
    let mut trips = run(time)?;
    let middle = trips.len() / 2;
    let (_, median, _) = trips.select_nth_unstable(middle);
    Ok(f64::from(*median) / 1e3)
}

/// Sends one frame of `frame` on `port`.
#[inline]
pub fn send_one(port: &mut Port, frame: &[u8]) -> Result<()> {
    if !port.send(1).push(frame) {
        bail!("no room to send one frame");
    }
    Ok(port.flush()?)
}

/// Takes the frames of `port` without publishing that; the next flush publishes it together with
/// sent frames.
#[inline]
pub fn take(port: &mut Port) -> usize {
    port.receive(BATCH).count()
}

/// Spins until a frame arrives at `port`; fails after a second.
#[inline]
pub fn await_one(port: &mut Port) -> Result<()> {
    let mut spins = 0u32;
    while take(port) == 0 {
        std::hint::spin_loop();
        spins += 1;
        if spins > 200_000_000 {
            bail!("a frame was lost");
        }
    }
    Ok(())
}
