//! Waits for netmap descriptors and others at once (netmap(4), "SELECT, POLL, EPOLL, KQUEUE").
//!
//! ```text
//!   sync, check         ready? -> check the others without waiting, return
//!   arm wake-ups, sync, check once more
//!   sleep: the others directly, netmap's by an epoll set of their wake-ups; then from the start
//! ```

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::{c_short, pollfd, sigset_t, timespec};
use netmap::client::{Ready, Waiter};
use rustix::io::Errno;

use crate::device::Device;
use crate::user::Memory;
use crate::{fds, marks, real};
use pcap::lock::Lock;

/// Epoll sets that no thread uses at the moment.
pub static WAITERS: Lock<Vec<Waiter>> = Lock::new(Vec::new());
/// How long a waiter stays awake before it sleeps: waking a sleeper takes longer.
const AWAKE: Duration = Duration::from_micros(20);
/// Number of epoll sets that are kept for reuse.
const KEPT: usize = 16;

/// Drops the parent's sets in the child of a fork, where they are of no use.
pub fn forget_waiters() {
    let waiters = std::mem::take(&mut *WAITERS.lock());
    marks::lower(waiters.iter());
}

const SEND: c_short = libc::POLLOUT | libc::POLLWRNORM;
/// The events of descriptors with something to read.
pub const RECEIVE: c_short = libc::POLLIN | libc::POLLRDNORM;

/// A netmap descriptor that a call waits for.
#[derive(Debug)]
pub struct Wanted {
    pub fd: RawFd,
    pub device: Arc<Device>,
    pub events: c_short,
    /// Events that are not news, unless the rings have moved [since](position).
    pub told: c_short,
    pub since: u64,
}

impl Wanted {
    /// Syncs as `poll` does; returns the events to report. A panic is an error of the descriptor.
    pub fn look(&self) -> c_short {
        catch_unwind(AssertUnwindSafe(|| self.sync())).unwrap_or(libc::POLLERR)
    }

    /// Removes events that were told before.
    fn news(&self, events: c_short) -> c_short {
        if events & self.told == 0 {
            return events;
        }
        let (now, then) = (parts(position(self.fd)), parts(self.since));
        let moved = |moved, events| if moved { events } else { 0 };
        let again = moved(now.0 != then.0, RECEIVE) | moved(now.1 != then.1, SEND);
        events & (!self.told | again)
    }

    fn sync(&self) -> c_short {
        let Some(bound) = self.device.bound(self.fd) else { return libc::POLLERR };
        let ready = bound.poll(self.events & SEND != 0, self.events & RECEIVE != 0, &Memory);
        let Ready { readable, writable, error } = ready;
        let when = |is_so, events| if is_so { events } else { 0 };
        self.news(
            when(readable, RECEIVE & self.events)
                | when(writable, SEND & self.events)
                | when(error, libc::POLLERR),
        )
    }

    fn arm(&self) {
        if let Some(bound) = self.device.known_bound() {
            bound.arm(self.events & SEND != 0, self.events & RECEIVE != 0);
        }
    }
}

/// Where the rings of a descriptor stand: a number that changes when frames arrive, or room comes.
pub fn position(fd: RawFd) -> u64 {
    let device = fds::get(fd);
    device.and_then(|device| Some(device.known_bound()?.position())).unwrap_or(0)
}

/// The parts of a [`position`]: of receive rings, of send rings.
fn parts(position: u64) -> (u32, u32) {
    (position as u32, (position >> 32) as u32)
}

/// When a wait ends.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    Never,
    At(Instant),
    Now,
}

impl Until {
    /// The deadline after this time; `None` for no limit.
    pub fn after(time: Option<Duration>) -> Self {
        match time {
            None => Self::Never,
            Some(Duration::ZERO) => Self::Now,
            Some(time) => Instant::now().checked_add(time).map_or(Self::Never, Self::At),
        }
    }

    /// Returns the remaining time, in the kernel's form.
    fn left(self) -> Option<timespec> {
        let left = match self {
            Self::Never => return None,
            Self::At(at) => at.saturating_duration_since(Instant::now()),
            Self::Now => Duration::ZERO,
        };
        let seconds = left.as_secs().min(libc::time_t::MAX as u64);
        Some(timespec { tv_sec: seconds as libc::time_t, tv_nsec: left.subsec_nanos().into() })
    }
}

/// Converts the time-out of `poll` from milliseconds.
pub fn milliseconds(timeout: i32) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

/// Converts a time; `EINVAL` for an invalid one.
pub fn of_timespec(time: Option<&timespec>) -> Result<Option<Duration>, Errno> {
    let Some(time) = time else { return Ok(None) };
    let seconds = u64::try_from(time.tv_sec).map_err(|_| Errno::INVAL)?;
    let nanos = u32::try_from(time.tv_nsec).ok().filter(|nanos| *nanos < 1_000_000_000);
    Ok(Some(Duration::new(seconds, nanos.ok_or(Errno::INVAL)?)))
}

/// `ppoll` of the C library.
fn real_ppoll(fds: &mut [pollfd], until: Until, mask: Option<&sigset_t>) -> Result<i32, Errno> {
    let left = until.left();
    let left = left.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let mask = mask.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: a slice, and two values that live as long as the call.
    let ready = unsafe { real::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, left, mask) };
    crate::result(ready)
}

/// Waits until a netmap descriptor or another one is ready, or the time is over. Returns the events
/// of the netmap descriptors; those of the others are in `others`.
pub fn wait(
    wanted: &[&Wanted],
    others: &mut Vec<pollfd>,
    until: Until,
    mask: Option<&sigset_t>,
) -> Result<Vec<c_short>, Errno> {
    let found = look(wanted);
    if is_ready(&found) || matches!(until, Until::Now) {
        look_at(others, mask)?;
        return Ok(found);
    }
    if let Some(found) = wait_awake(wanted) {
        look_at(others, mask)?;
        return Ok(found);
    }
    let mut waiter = waiter()?;
    let slept = sleep(&mut waiter, wanted, others, until, mask);
    let mut waiters = WAITERS.lock();
    if waiters.len() < KEPT && !waiter.is_worn() {
        waiters.push(waiter);
    } else {
        drop(waiters);
        marks::lower(std::iter::once(&waiter));
    }
    slept
}

/// Yields for a moment, so that others, such as the switch, can run. Frames that arrive meanwhile
/// need no wake-up.
fn wait_awake(wanted: &[&Wanted]) -> Option<Vec<c_short>> {
    let started = Instant::now();
    while started.elapsed() < AWAKE {
        std::thread::yield_now();
        let found = look(wanted);
        if is_ready(&found) {
            return Some(found);
        }
    }
    None
}

fn look(wanted: &[&Wanted]) -> Vec<c_short> {
    wanted.iter().map(|wanted| wanted.look()).collect()
}

fn is_ready(found: &[c_short]) -> bool {
    found.iter().any(|events| *events != 0)
}

/// Checks the other descriptors without waiting.
fn look_at(others: &mut [pollfd], mask: Option<&sigset_t>) -> Result<(), Errno> {
    if others.iter().any(|other| other.fd >= 0) {
        real_ppoll(others, Until::Now, mask)?;
    }
    Ok(())
}

fn waiter() -> Result<Waiter, Errno> {
    let kept = WAITERS.lock().pop();
    kept.map_or_else(|| Waiter::new(marks::raise), Ok)
}

fn sleep(
    waiter: &mut Waiter,
    wanted: &[&Wanted],
    others: &mut Vec<pollfd>,
    until: Until,
    mask: Option<&sigset_t>,
) -> Result<Vec<c_short>, Errno> {
    for wanted in wanted {
        if let Some(fd) = wanted.device.bound(wanted.fd).and_then(|bound| bound.wake_fd()) {
            waiter.watch(fd, wanted.device.id)?;
        }
    }
    loop {
        waiter.take();
        wanted.iter().for_each(|wanted| wanted.arm());
        let found = look(wanted);
        if is_ready(&found) {
            look_at(others, mask)?;
            return Ok(found);
        }
        let is_over = sleep_once(waiter, wanted, others, until, mask)?;
        if is_over || others.iter().any(|other| other.revents != 0) {
            return Ok(look(wanted));
        }
    }
}

/// Sleeps until an event or the deadline; returns true at the deadline.
fn sleep_once(
    waiter: &Waiter,
    wanted: &[&Wanted],
    others: &mut Vec<pollfd>,
    until: Until,
    mask: Option<&sigset_t>,
) -> Result<bool, Errno> {
    let own = others.len();
    others.push(entry(waiter.as_fd().as_raw_fd(), libc::POLLIN));
    // The daemon closes its end when it exits or removes the port.
    others.extend(wanted.iter().map(|wanted| entry(wanted.fd, libc::POLLRDHUP)));
    let ready = real_ppoll(others, until, mask);
    for (wanted, entry) in wanted.iter().zip(&others[own + 1..]) {
        if ready.is_ok() && entry.revents != 0 {
            wanted.device.look(wanted.fd);
        }
    }
    others.truncate(own);
    ready.map(|count| count == 0)
}

fn entry(fd: RawFd, events: c_short) -> pollfd {
    pollfd { fd, events, revents: 0 }
}
