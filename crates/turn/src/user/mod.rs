//! Users, and the system calls whose cost they set.
//!
//! To wake a sleeper, the kernel walks all waiters of its descriptor, on the thread that wakes it.
//! The owner of the descriptor decides how many there are: with two million epoll watches a byte
//! takes 200 ms. The same holds for the waiters at a socket's other end when bytes are sent to it
//! or taken from it. The cost shows only in the first such call. So calls are [timed](stopwatch),
//! and slow ones are charged to the port's user, because a user may have thousands of ports.
//!
//! ```text
//!            10 ms on threads that serve others        0.5 s on its own thread, or 10 ms on theirs again
//!   Good ------------------------------------> Helped -------------------------------------------> AtFault
//!     ^     its owners are woken by a thread      ^     its owners are not woken any more,            |
//!     |     of its own, which may take its time   |     and its ports are at fault                    |
//!     +------------- after a term ----------------+--------------------- after a term ----------------+
//! ```
//!
//! A charge fades by 10 ms a second. The first term is a minute, and each further term is twice as
//! long. So the first slow call costs others what the kernel can do in one call, and the terms
//! grow. A busy machine does not harm a user: only time that the calling thread itself worked
//! counts. A user that is helped is served as well as others, with one more wake-up.
//!
//! A user's memory can delay threads, too (`suspicion` in the crate `dataplane`). No other thread
//! can touch it on the user's behalf, so a user whose memory is proven to delay threads is at fault
//! at once.

mod conduct;
mod helper;
mod stopwatch;
mod touch;
mod waker;

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use port::Nanos;
use rustix::event::EventfdFlags;
use rustix::thread::{CpuSet, sched_getaffinity};
use shmem::Shared;

pub use self::conduct::{Conduct, Standing};
use self::helper::Helper;
pub use self::stopwatch::Slow;
use self::stopwatch::{QUICK_NS, Stopwatch};
pub use self::touch::{Progress, excused};
pub use self::waker::{Payer, Waker};

/// The limits of the time of slow calls, on threads that serve others and on the user's own.
const MOST_NS: u64 = 10 * Nanos::MILLI;
const MOST_HELPED_NS: u64 = 500 * Nanos::MILLI;
/// A shorter call for a batch of frames is fine: 64 datagrams may take a few hundred microseconds.
const QUICK_BATCH_NS: u64 = 2 * Nanos::MILLI;
/// The limit of the time that touches of the user's memory are held up, and the least number of
/// such touches.
const MOST_HELD_UP_NS: u64 = 100 * Nanos::MILLI;
const HELD_UP_TIMES: u32 = 4;
/// The divisor of the time that passes: this much of a charge fades.
const FADES: u64 = 100;
/// For how long calls are timed closely after a slow one.
const CLOSELY_NS: u64 = Nanos::SECOND;
/// Nanoseconds of a user's first term.
const TERM_NS: u64 = 60 * Nanos::SECOND;
/// The maximum number of helper threads of users in this process. Without a free one, a user is at
/// fault at once.
const MOST_HELPERS: usize = 8;
/// The maximum number of users that are remembered in addition to those with ports.
const REMEMBERED: usize = 1024;

/// The kind of thread that made a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// A thread that also serves others.
    Server,
    /// The user's own helper thread.
    Helper,
}

/// What all users of a process share.
#[derive(Debug)]
struct SharedState {
    helpers: AtomicUsize,
    /// The CPUs for helper threads: those without a worker.
    cpus: Option<CpuSet>,
    news: Mutex<Vec<StandingChange>>,
    /// The number of touches of users' memory that were held up.
    touches: AtomicU64,
    doorbell: OwnedFd,
}

/// The kind of trouble with which a user is charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trouble {
    /// System calls for the user take long.
    #[default]
    Calls,
    /// The user's memory delays threads that touch it.
    Memory,
}

/// A change of a user's standing.
#[derive(Clone, Debug)]
pub struct StandingChange {
    /// Which one.
    pub user: Arc<User>,
    /// How.
    pub standing: Standing,
    /// The cause of the change.
    pub why: Trouble,
    /// Nanoseconds of the call or touch that caused it; 0 if the end of a term did.
    pub took: u64,
}

/// The users of a process.
#[derive(Debug)]
pub struct Users {
    office: Arc<SharedState>,
    by_uid: Mutex<HashMap<u32, Arc<User>>>,
}

impl Users {
    /// The users of a process, none at first. Helper threads stay off the CPUs `taken`, if there
    /// are others.
    ///
    /// # Errors
    /// The kernel has no eventfd left.
    pub fn new(taken: impl IntoIterator<Item = u16>) -> rustix::io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let office = SharedState {
            helpers: AtomicUsize::new(0),
            cpus: free_cpus(taken),
            news: Mutex::default(),
            touches: AtomicU64::new(0),
            doorbell: rustix::event::eventfd(0, flags)?,
        };
        Ok(Self { office: Arc::new(office), by_uid: Mutex::default() })
    }

    /// Returns the user with this number.
    #[must_use]
    pub fn of(&self, uid: u32) -> Arc<User> {
        let mut users = self.lock();
        let user = users.entry(uid).or_insert_with(|| Arc::new(User::new(uid, &self.office)));
        Arc::clone(user)
    }

    /// The descriptor that becomes readable when there is news.
    #[must_use]
    pub fn doorbell(&self) -> BorrowedFd<'_> {
        self.office.doorbell.as_fd()
    }

    /// The number of touches of users' memory that were held up so far.
    #[must_use]
    pub fn touches(&self) -> u64 {
        self.office.touches.load(Ordering::Relaxed)
    }

    /// Resets the doorbell. [`expire`](Self::expire) returns the news.
    pub fn reset_doorbell(&self) {
        let _ = rustix::io::read(&self.office.doorbell, &mut [0; 8]);
    }

    /// Ends expired terms, forgets users without ports, and returns the changes of standings.
    #[must_use]
    pub fn expire(&self, now: Nanos) -> Vec<StandingChange> {
        let mut users = self.lock();
        users.values().for_each(|user| user.expire(now));
        let remembered = users.len().saturating_sub(REMEMBERED);
        let mut idle: Vec<_> = users.values().filter(|user| Arc::strong_count(user) == 1).collect();
        idle.sort_by_key(|user| user.remembered_until());
        let gone =
            |(at, user): &(usize, &Arc<User>)| *at < remembered || user.remembered_until() <= now;
        let gone: Vec<_> =
            idle.into_iter().enumerate().take_while(gone).map(|(_, u)| u.uid).collect();
        gone.iter().for_each(|uid| drop(users.remove(uid)));
        drop(users);
        std::mem::take(&mut *self.office.changes())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Arc<User>>> {
        self.by_uid.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Users {
    fn drop(&mut self) {
        self.lock().values().for_each(|user| user.helper.end());
    }
}

/// The CPUs of this process that are not taken; all of them, if all are.
fn free_cpus(taken: impl IntoIterator<Item = u16>) -> Option<CpuSet> {
    let mut cpus = sched_getaffinity(None).ok()?;
    let all = cpus;
    taken
        .into_iter()
        .map(usize::from)
        .filter(|cpu| *cpu < CpuSet::MAX_CPU)
        .for_each(|cpu| cpus.unset(cpu));
    Some(if cpus.count() > 0 { cpus } else { all })
}

impl SharedState {
    fn changes(&self) -> MutexGuard<'_, Vec<StandingChange>> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self, news: StandingChange) {
        self.changes().push(news);
        crate::signal(self.doorbell.as_fd());
    }
}

/// A user that ports work for.
#[derive(Debug)]
pub struct User {
    /// Its number.
    pub uid: u32,
    /// The user's [`Standing`] as a number.
    standing: AtomicU8,
    /// Until when calls are timed closely.
    closely: AtomicU64,
    record: Mutex<Record>,
    helper: Arc<Helper>,
    office: Arc<SharedState>,
}

/// The charges and the standing of a user.
#[derive(Debug, Default)]
struct Record {
    by_servers: Spent,
    by_helper: Spent,
    /// How long touches of the user's memory were held up.
    held_up: Spent,
    /// How many touches were held up in this term.
    touches: u32,
    /// The cause of the user's present standing.
    why: Trouble,
    /// How often the user's standing has become worse.
    times: u32,
    /// When the present term ends.
    until: Nanos,
}

/// Time of slow calls, which fades.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    ns: u64,
    at: Nanos,
}

impl Spent {
    /// Adds time, and returns the sum that has not faded.
    fn add(&mut self, ns: u64, now: Nanos) -> u64 {
        self.ns = self.ns.saturating_sub((now - self.at) / FADES).saturating_add(ns);
        self.at = now;
        self.ns
    }
}

impl User {
    fn new(uid: u32, office: &Arc<SharedState>) -> Self {
        Self {
            uid,
            standing: AtomicU8::new(Standing::Good as u8),
            closely: AtomicU64::new(0),
            record: Mutex::default(),
            helper: Arc::default(),
            office: Arc::clone(office),
        }
    }

    /// The user's standing.
    #[inline]
    #[must_use]
    pub fn standing(&self) -> Standing {
        Standing::of(self.standing.load(Ordering::Relaxed).into())
    }

    /// True if the user's ports are at fault.
    #[must_use]
    pub fn is_at_fault(&self) -> bool {
        self.standing() == Standing::AtFault
    }

    /// Makes a call whose cost the user sets, on a thread that serves others.
    #[inline]
    pub fn call<T>(self: &Arc<Self>, of: Option<&Shared<Conduct>>, call: impl FnOnce() -> T) -> T {
        let watch = Stopwatch::start(Nanos(self.closely.load(Ordering::Relaxed)));
        let done = call();
        if let Some(slow) = watch.stop() {
            self.was_slow(slow, of, By::Server);
        }
        done
    }

    /// Like [`call`](Self::call), for a call that moves a batch of frames.
    #[inline]
    pub fn call_of_batch<T>(
        self: &Arc<Self>,
        of: Option<&Shared<Conduct>>,
        call: impl FnOnce() -> T,
    ) -> T {
        let watch = Stopwatch::start(Nanos(self.closely.load(Ordering::Relaxed)));
        let done = call();
        if let Some(slow) = watch.stop().filter(|slow| slow.worked >= QUICK_BATCH_NS) {
            self.was_slow(slow, of, By::Server);
        }
        done
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Charges a slow call.
    #[cold]
    fn was_slow(self: &Arc<Self>, slow: Slow, of: Option<&Shared<Conduct>>, by: By) {
        self.closely.store((slow.at + CLOSELY_NS).0, Ordering::Relaxed);
        if slow.worked < QUICK_NS {
            return;
        }
        let mut record = self.record();
        if let Some(conduct) = of {
            conduct.slow_calls.add(1);
            conduct.slowest_call_ns.set(conduct.slowest_call_ns.get().max(slow.took));
        }
        let over = match by {
            By::Server => record.by_servers.add(slow.worked, slow.at) >= MOST_NS,
            By::Helper => record.by_helper.add(slow.worked, slow.at) >= MOST_HELPED_NS,
        };
        if over && self.standing() != Standing::AtFault {
            let helped = self.standing() == Standing::Good && self.helper.start(self);
            let standing = if helped { Standing::Helped } else { Standing::AtFault };
            self.demote(&mut record, standing, Trouble::Calls, slow.took, slow.at);
        }
    }

    /// Touches memory of this user, and of no other.
    pub fn touch<T>(
        self: &Arc<Self>,
        of: Option<&Shared<Conduct>>,
        touch: impl FnOnce() -> T,
    ) -> T {
        let (done, held_up) = touch::timed(touch);
        if let Some(ns) = held_up {
            self.held_up(ns, of, crate::clock());
        }
        done
    }

    /// Charges a delay by the user's memory.
    #[cold]
    fn held_up(self: &Arc<Self>, ns: u64, of: Option<&Shared<Conduct>>, now: Nanos) {
        self.office.touches.fetch_add(1, Ordering::Relaxed);
        let mut record = self.record();
        if let Some(conduct) = of {
            conduct.slow_touches.add(1);
            conduct.slowest_touch_ns.set(conduct.slowest_touch_ns.get().max(ns));
        }
        record.touches = record.touches.saturating_add(1);
        let over = record.held_up.add(ns, now) >= MOST_HELD_UP_NS;
        if over && record.touches >= HELD_UP_TIMES && self.standing() != Standing::AtFault {
            self.demote(&mut record, Standing::AtFault, Trouble::Memory, ns, now);
        }
    }

    fn demote(
        self: &Arc<Self>,
        record: &mut Record,
        standing: Standing,
        why: Trouble,
        took: u64,
        at: Nanos,
    ) {
        let term = TERM_NS.saturating_mul(1 << record.times.min(31));
        let times = record.times + 1;
        *record = Record { times, why, ..Record::default() };
        self.enter(record, standing, at + term);
        self.office.report(StandingChange { user: Arc::clone(self), standing, why, took });
    }

    /// Returns the cause of the user's standing.
    #[must_use]
    pub fn trouble(&self) -> Trouble {
        self.record().why
    }

    fn enter(&self, record: &mut Record, standing: Standing, until: Nanos) {
        record.until = until;
        self.standing.store(standing as u8, Ordering::Relaxed);
    }

    /// Ends a term that is over: its standing improves by one.
    fn expire(self: &Arc<Self>, now: Nanos) {
        let mut record = self.record();
        let was = self.standing();
        if was == Standing::Good || now < record.until {
            return;
        }
        let term = TERM_NS.saturating_mul(1 << (record.times.saturating_sub(1)).min(31));
        let standing = match was {
            Standing::AtFault if self.helper.start(self) => Standing::Helped,
            Standing::AtFault => return,
            _ => Standing::Good,
        };
        self.enter(&mut record, standing, now + term);
        self.helper.nudge();
        let why = record.why;
        self.office.report(StandingChange { user: Arc::clone(self), standing, why, took: 0 });
    }

    /// Until when a user without ports is remembered: as long again as its last term.
    fn remembered_until(&self) -> Nanos {
        self.record().until
    }
}

#[cfg(test)]
mod tests;
