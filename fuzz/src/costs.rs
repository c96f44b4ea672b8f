//! What no input may cost: time of a step, threads, descriptors, addresses.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds that this thread may work for one step. Sanitizers and debug builds are slow.
const STEP_NS: u64 = 2_000_000_000;
/// Bytes of addresses that may be left over: allocators and sanitizers keep some.
const ADDRESSES: u64 = 8 << 30;
/// How long threads that close descriptors may take after their peers have gone.
const PATIENCE: Duration = Duration::from_secs(20);

/// What this process had before an input.
#[derive(Debug)]
pub struct Costs {
    threads: usize,
    descriptors: usize,
    addresses: u64,
}

impl Costs {
    /// As it is now.
    #[must_use]
    pub fn now() -> Self {
        let entries = |dir: &str| std::fs::read_dir(dir).map_or(0, Iterator::count);
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let pages: u64 = pages.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
        Self {
            threads: entries("/proc/self/task"),
            descriptors: entries("/proc/self/fd"),
            addresses: pages * 4096,
        }
    }

    /// Does a step, which may not work for long.
    pub fn step<T>(step: impl FnOnce() -> T) -> T {
        let before = worked();
        let done = step();
        let took = worked() - before;
        assert!(took < STEP_NS, "a step took {took} ns");
        done
    }

    /// Waits until all that an input brought along is gone; a leak is a finding.
    pub fn assert_gone(&self) {
        let began = Instant::now();
        loop {
            let now = Self::now();
            let gone = now.threads <= self.threads
                && now.descriptors <= self.descriptors
                && now.addresses <= self.addresses + ADDRESSES;
            if gone {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{self:?} became {now:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Nanoseconds that this thread has worked.
fn worked() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A second thread, which changes memory.
#[derive(Debug)]
pub struct Scribbler {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Scribbler {
    /// Starts one that writes words of its own to the first 64 KiB of `file`.
    pub(crate) fn start(file: OwnedFd, seed: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let mut at = seed | 1;
        let scribble = move || {
            while !stopped.load(Ordering::Relaxed) {
                // Xorshift (Marsaglia 2003).
                at ^= at << 13;
                at ^= at >> 7;
                at ^= at << 17;
                // What lies beyond the end of a file that was cut short is not written: that would
                // make it long again.
                let len = rustix::fs::fstat(&file).map_or(0, |stat| stat.st_size as u64);
                let place = at & 0xfff8;
                if place + 8 <= len {
                    let _ = rustix::io::pwrite(&file, &(at >> (at & 63)).to_le_bytes(), place);
                }
            }
        };
        Self { stop, thread: std::thread::Builder::new().spawn(scribble).ok() }
    }
}

impl Drop for Scribbler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}
