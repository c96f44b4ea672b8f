//! Limits of what an input may cost: time of a step, threads, descriptors, addresses, lines of the
//! log.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dataplane::log::Limiter;
use jail::strangers::{CLOSER_NAME, closer};
use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds that this thread may work for one step. Sanitizers and debug builds are slow.
const STEP_NS: u64 = 2_000_000_000;
/// Bytes of addresses that may be left over: allocators and sanitizers keep some.
const ADDRESSES: u64 = 8 << 30;
/// Bytes of a line of the log.
const LINE: usize = 1024;
/// Reasons that lines of the log have.
const REASONS: usize = 8;
/// Lines that one step may want to be written.
const LINES: usize = 16;
/// How long threads that close descriptors may take after their peers have gone.
const PATIENCE: Duration = Duration::from_secs(20);

/// The resources that this process used before an input.
#[derive(Debug)]
pub struct Costs {
    threads: usize,
    descriptors: usize,
    addresses: u64,
}

impl Costs {
    /// The resources that are used now. Threads that close descriptors are counted only while they
    /// close, because idle ones stay for a while.
    #[must_use]
    pub fn now() -> Self {
        let entries = |dir: &str| std::fs::read_dir(dir).map_or(0, Iterator::count);
        let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
        let closing = closer().closing();
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let pages: u64 = pages.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
        Self {
            threads: names.filter(|name| name.trim_end() != CLOSER_NAME).count()
                + closing.under_way
                + closing.waiting,
            descriptors: entries("/proc/self/fd"),
            addresses: pages * 4096,
        }
    }

    /// Does a step, and asserts that this thread did not work for too long.
    pub fn step<T>(step: impl FnOnce() -> T) -> T {
        let before = worked();
        let done = step();
        let took = worked() - before;
        assert!(took < STEP_NS, "a step took {took} ns");
        done
    }

    /// Waits until all resources of an input are released. If they are not, that is a leak, and the
    /// target fails.
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

/// The lines of the log that an input wants to be written.
#[derive(Debug, Default)]
pub struct Lines {
    limiter: Limiter<&'static str>,
    reasons: BTreeSet<&'static str>,
    written: usize,
}

impl Lines {
    /// Takes in the lines that a step wants to log about its port.
    pub fn take(&mut self, news: Vec<(&'static str, String)>) {
        assert!(news.len() <= LINES, "a step says {} lines", news.len());
        for (reason, line) in news {
            assert!(line.len() <= LINE, "a line of {} bytes", line.len());
            self.reasons.insert(reason);
            assert!(self.reasons.len() <= REASONS, "{:?}", self.reasons);
            self.written += usize::from(self.limiter.admit(reason, "port", || line));
        }
    }

    /// Asserts that there is at most one line for each reason, however often it occurred, and one
    /// for the rest.
    pub fn assert_few(mut self) {
        let rest = self.limiter.tick().len();
        let most = 2 * self.reasons.len();
        assert!(self.written + rest <= most, "{} lines and {rest}, of {most}", self.written);
    }
}

/// Nanoseconds that this thread has worked.
fn worked() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A second thread, which changes memory until this value is dropped.
#[derive(Debug)]
pub struct Thread {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Thread {
    /// Starts a thread that calls `change` with one pseudorandom number after the other.
    pub fn start(seed: u64, mut change: impl FnMut(u64) + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let mut at = seed | 1;
        let work = move || {
            while !stopped.load(Ordering::Relaxed) {
                // Xorshift (Marsaglia 2003).
                at ^= at << 13;
                at ^= at >> 7;
                at ^= at << 17;
                change(at);
            }
        };
        Self { stop, thread: std::thread::Builder::new().spawn(work).ok() }
    }

    /// Starts a thread that writes pseudorandom words to the first 64 KiB of `file`.
    pub(crate) fn scribble(file: OwnedFd, seed: u64) -> Self {
        Self::start(seed, move |random| {
            // The thread does not write beyond the end of a truncated file, because that would
            // extend it again.
            let len = rustix::fs::fstat(&file).map_or(0, |stat| stat.st_size as u64);
            let place = random & 0xfff8;
            if place + 8 <= len {
                let word = (random >> (random & 63)).to_le_bytes();
                let _ = rustix::io::pwrite(&file, &word, place);
            }
        })
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}
