//! What the kernel takes to run a sleeper.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use port::stamp::ticks;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

/// Wake-ups of a measurement.
const WAKE_UPS: usize = 2000;

/// Ticks of a nanosecond.
pub fn ticks_of_ns() -> f64 {
    let (start, from) = (Instant::now(), ticks());
    std::thread::sleep(Duration::from_millis(20));
    let (time, to) = (start.elapsed(), ticks());
    (to - from) as f64 / time.as_nanos() as f64
}

/// A way to wake a sleeper: it waits in `poll`, and takes the news off the descriptor.
trait Bell: AsFd + Sync {
    fn ring(&self) -> Result<()>;
    fn take(&self) -> Result<()>;
}

impl Bell for UnixStream {
    fn ring(&self) -> Result<()> {
        Ok((&mut &*self).write_all(&[0])?)
    }

    fn take(&self) -> Result<()> {
        Ok((&mut &*self).read_exact(&mut [0])?)
    }
}

/// Two eventfds: of this end and of the other.
struct Events {
    own: std::os::fd::OwnedFd,
    other: std::os::fd::OwnedFd,
}

impl AsFd for Events {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.own.as_fd()
    }
}

impl Bell for Events {
    fn ring(&self) -> Result<()> {
        rustix::io::write(&self.other, &1u64.to_ne_bytes())?;
        Ok(())
    }

    fn take(&self) -> Result<()> {
        rustix::io::read(&self.own, &mut [0; 8])?;
        Ok(())
    }
}

/// Ticks from before a sleeper is woken until it runs, on core 0: by a byte on a socket, as owners
/// of rings are, and by an eventfd, as guests are.
pub fn measure() -> Result<[f64; 2]> {
    let (a, b) = UnixStream::pair()?;
    let socket = ping_pong(&a, &b)?;
    let new = || eventfd(0, EventfdFlags::CLOEXEC);
    let (one, two) = (new()?, new()?);
    let a = Events { own: one.try_clone()?, other: two.try_clone()? };
    let event = ping_pong(&a, &Events { own: two, other: one })?;
    Ok([socket, event])
}

fn await_news(bell: &impl Bell) -> Result<()> {
    poll(&mut [PollFd::new(bell, PollFlags::IN)], None)?;
    bell.take()
}

/// The median of all wake-ups, of which one thread makes every second.
fn ping_pong(a: &impl Bell, b: &impl Bell) -> Result<f64> {
    use std::sync::atomic::{AtomicU64, Ordering};
    let rung = AtomicU64::new(0);
    let ring = |bell: &dyn Fn() -> Result<()>| {
        rung.store(ticks(), Ordering::Relaxed);
        bell()
    };
    let mut times = std::thread::scope(|scope| -> Result<Vec<u64>> {
        let answering = scope.spawn(|| -> Result<Vec<u64>> {
            let _ = client::pin(0);
            let mut times = Vec::with_capacity(WAKE_UPS);
            for _ in 0..WAKE_UPS {
                await_news(b)?;
                times.push(ticks().saturating_sub(rung.load(Ordering::Relaxed)));
                ring(&|| b.ring())?;
            }
            Ok(times)
        });
        let asking = scope.spawn(|| -> Result<()> {
            let _ = client::pin(0);
            for _ in 0..WAKE_UPS {
                ring(&|| a.ring())?;
                await_news(a)?;
            }
            Ok(())
        });
        match (asking.join(), answering.join()) {
            (Ok(asked), Ok(times)) => asked.and(times),
            _ => bail!("the measurement panicked"),
        }
    })?;
    times.sort_unstable();
    Ok(times[times.len() / 2] as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waking_a_sleeper_takes_time() {
        assert!(measure().unwrap().iter().all(|ticks| *ticks > 0.0));
    }
}
