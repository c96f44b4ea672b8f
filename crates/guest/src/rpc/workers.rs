//! Threads for handlers that take long: a ring of slots between the thread that serves and others.
//!
//! The serving thread fills slots in order. Workers claim them without locks, one by one. A reply
//! leaves as soon as its worker is done; slots are used again in order.

use std::fmt;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use tcp::Bytes;

use super::server::Call;

/// How long a worker polls for requests before it sleeps.
const SPIN: Duration = Duration::from_micros(50);

/// The contents of a slot.
mod state {
    /// A request that was posted, and that its worker has not finished.
    pub const POSTED: u8 = 0;
    /// A reply.
    pub const DONE: u8 = 1;
    /// Empty: the reply was taken.
    pub const FREE: u8 = 2;
}

#[derive(Debug, Default)]
struct Job {
    call: Option<Call>,
    request: Vec<u8>,
    reply: Bytes,
}

#[derive(Debug)]
#[repr(align(128))]
struct Slot {
    /// # Protocol: `Slot.state` (a request at the workers)
    ///
    /// - Writer: the worker that claimed the slot (to `DONE`); the serving thread (other values)
    /// - Reader: the serving thread
    /// - Ordering: release, after the reply is written / acquire, before it is read
    /// - Partner: `job`
    /// - Without it: a reply leaves before it is written
    /// - Shown by: `guest` tests `workers`
    state: AtomicU8,
    /// Held by the serving thread while the slot is free or done, and by the worker that claimed it
    /// between; never by both, so `lock` never waits.
    job: Mutex<Job>,
}

#[derive(Debug)]
struct Bay {
    slots: Box<[Slot]>,
    /// How many requests were posted.
    ///
    /// # Protocol: `Bay.posted`
    ///
    /// - Writer: the serving thread
    /// - Reader: workers
    /// - Ordering: release, after the slot is filled, then a full fence / acquire
    /// - Partner: `job`; `asleep`
    /// - Without it: a worker reads half a request, or sleeps beside one
    /// - Shown by: `guest` tests `workers`
    posted: AtomicU64,
    /// How many requests were claimed.
    ///
    /// # Protocol: `Bay.claimed`
    ///
    /// - Writer: workers: the one that exchanges `n` for `n + 1` has claimed slot `n`
    /// - Reader: workers
    /// - Ordering: relaxed: what the slot holds is ordered by `posted`
    /// - Without it: two workers answer one request
    /// - Shown by: `guest` tests `workers`
    claimed: AtomicU64,
    /// How many requests are done.
    ///
    /// # Protocol: `Bay.done`
    ///
    /// - Writer: workers
    /// - Reader: the serving thread: it looks at slots if this has changed
    /// - Ordering: release, after `state` / acquire
    /// - Partner: `state`
    /// - Without it: the serving thread looks at every slot in every turn
    /// - Shown by: `guest` tests `workers`
    done: AtomicU64,
    /// How many workers sleep.
    ///
    /// # Protocol: `Bay.asleep`
    ///
    /// - Writer: workers: one adds itself, fences, looks at `posted` once more, sleeps
    /// - Reader: the serving thread, after `posted` and a full fence
    /// - Ordering: sequentially consistent, between full fences
    /// - Partner: `posted`: one side sees the other
    /// - Without it: a worker sleeps beside a request
    /// - Shown by: `guest` tests `workers`
    asleep: AtomicU64,
    /// The serving thread is gone.
    ///
    /// # Protocol: `Bay.is_over`
    ///
    /// - Writer: the serving thread, once, before it wakes all workers
    /// - Reader: workers
    /// - Ordering: sequentially consistent, with `asleep`
    /// - Without it: workers outlive the server
    /// - Shown by: `guest` tests `workers`
    is_over: AtomicBool,
    sleepers: Mutex<Vec<Thread>>,
}

/// Makes a ring of `slots` slots. Returns the end for the thread that serves, and the end for the
/// workers, of which each worker has a clone.
#[must_use]
pub fn bay(slots: usize) -> (Dispatch, Worker) {
    let slot = |_| Slot { state: AtomicU8::new(state::FREE), job: Mutex::default() };
    let bay = Arc::new(Bay {
        slots: (0..slots.clamp(1, 1 << 16)).map(slot).collect(),
        posted: AtomicU64::new(0),
        claimed: AtomicU64::new(0),
        done: AtomicU64::new(0),
        asleep: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
        sleepers: Mutex::default(),
    });
    (Dispatch { bay: Arc::clone(&bay), head: 0, tail: 0, seen: 0 }, Worker { bay })
}

impl Bay {
    fn slot(&self, number: u64) -> &Slot {
        &self.slots[(number % self.slots.len() as u64) as usize]
    }

    fn wake(&self) {
        let sleepers = self.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
        sleepers.iter().for_each(Thread::unpark);
    }
}

/// The end of the thread that serves.
pub struct Dispatch {
    bay: Arc<Bay>,
    /// Requests that were posted.
    head: u64,
    /// The oldest whose slot is not free again.
    tail: u64,
    /// Done requests whose replies were taken.
    seen: u64,
}

impl fmt::Debug for Dispatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dispatch({} of {} slots)", self.outstanding(), self.bay.slots.len())
    }
}

impl Dispatch {
    /// Slots in use.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        (self.head - self.tail) as usize
    }

    /// Hands a request to the workers; returns false if no slot is free. The handler then returns
    /// [`Answer::Later`](super::Answer::Later) or [`Answer::Busy`](super::Answer::Busy) then.
    pub fn post(&mut self, call: Call, request: &[u8]) -> bool {
        if self.outstanding() == self.bay.slots.len() {
            return false;
        }
        let slot = self.bay.slot(self.head);
        let mut job = slot.job.lock().unwrap_or_else(PoisonError::into_inner);
        job.call = Some(call);
        job.request.clear();
        job.request.extend_from_slice(request);
        drop(job);
        slot.state.store(state::POSTED, Relaxed);
        self.head += 1;
        self.bay.posted.store(self.head, Release);
        fence(SeqCst);
        if self.bay.asleep.load(Relaxed) > 0 {
            self.bay.wake();
        }
        true
    }

    /// Takes the finished replies, for [`Server::answer`](super::Server::answer).
    pub fn collect(&mut self, mut reply: impl FnMut(Call, Bytes)) {
        let done = self.bay.done.load(Acquire);
        if done == self.seen {
            return;
        }
        self.seen = done;
        for number in self.tail..self.head {
            let slot = self.bay.slot(number);
            if slot.state.load(Acquire) == state::DONE {
                let mut job = slot.job.lock().unwrap_or_else(PoisonError::into_inner);
                let (call, bytes) = (job.call.take(), std::mem::take(&mut job.reply));
                slot.state.store(state::FREE, Relaxed);
                if let Some(call) = call {
                    reply(call, bytes);
                }
            }
        }
        while self.tail < self.head && self.bay.slot(self.tail).state.load(Relaxed) == state::FREE {
            self.tail += 1;
        }
    }
}

impl Drop for Dispatch {
    fn drop(&mut self) {
        self.bay.is_over.store(true, SeqCst);
        self.bay.wake();
    }
}

/// A worker's end.
#[derive(Clone)]
pub struct Worker {
    bay: Arc<Bay>,
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Worker")
    }
}

impl Worker {
    /// Answers requests by `work` in this thread, until the serving thread drops its end.
    pub fn run(&self, mut work: impl FnMut(Call, &[u8]) -> Bytes) {
        let thread = std::thread::current();
        let sleepers = || self.bay.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
        sleepers().push(thread);
        let mut last = Instant::now();
        while !self.bay.is_over.load(SeqCst) {
            if self.serve_one(&mut work) {
                last = Instant::now();
            } else if last.elapsed() < SPIN {
                std::hint::spin_loop();
            } else {
                self.sleep();
            }
        }
    }

    /// Claims a request and answers it; false if there is none.
    pub fn serve_one(&self, work: &mut impl FnMut(Call, &[u8]) -> Bytes) -> bool {
        let bay = &self.bay;
        let mut number = bay.claimed.load(Relaxed);
        loop {
            if number == bay.posted.load(Acquire) {
                return false;
            }
            match bay.claimed.compare_exchange_weak(number, number + 1, Relaxed, Relaxed) {
                Ok(_) => break,
                Err(other) => number = other,
            }
        }
        let slot = bay.slot(number);
        let mut job = slot.job.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(call) = job.call {
            job.reply = work(call, &job.request);
        }
        drop(job);
        slot.state.store(state::DONE, Release);
        bay.done.fetch_add(1, Release);
        true
    }

    fn sleep(&self) {
        let bay = &self.bay;
        bay.asleep.fetch_add(1, SeqCst);
        fence(SeqCst);
        let is_idle = bay.claimed.load(Relaxed) == bay.posted.load(Relaxed);
        if is_idle && !bay.is_over.load(SeqCst) {
            std::thread::park();
        }
        bay.asleep.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Posts `count` requests to `threads` workers; each is answered once, with its own bytes.
    fn serve(slots: usize, threads: usize, count: u32) {
        let (mut dispatch, worker) = bay(slots);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                let worker = worker.clone();
                scope.spawn(move || worker.run(|_, request| Bytes::copy_from_slice(request)));
            }
            let (mut posted, mut answered) = (0, HashSet::new());
            while answered.len() < count as usize {
                while posted < count && dispatch.post(Call::of_test(posted), &posted.to_le_bytes())
                {
                    posted += 1;
                }
                dispatch.collect(|call, reply| {
                    let number = u32::from_le_bytes(reply[..].try_into().unwrap());
                    assert_eq!(call, Call::of_test(number));
                    assert!(answered.insert(number), "request {number} is answered twice");
                });
                std::thread::yield_now();
            }
            assert_eq!(dispatch.outstanding(), 0);
            drop(dispatch);
        });
    }

    #[test]
    fn workers_answer_each_request_once_and_end_with_the_server() {
        serve(8, 3, 5_000);
        serve(1, 2, 200);
    }

    #[test]
    fn workers_that_sleep_are_woken() {
        let (mut dispatch, worker) = bay(4);
        std::thread::scope(|scope| {
            scope.spawn(move || worker.run(|_, _| Bytes::new()));
            for number in 0..20 {
                let is_asleep = || dispatch.bay.asleep.load(SeqCst) == 1;
                while !is_asleep() {
                    std::thread::yield_now();
                }
                assert!(dispatch.post(Call::of_test(number), b"x"));
                let mut answers = 0;
                while answers == 0 {
                    dispatch.collect(|_, _| answers += 1);
                    std::thread::yield_now();
                }
            }
            drop(dispatch);
        });
    }

    #[test]
    fn a_full_bay_takes_no_more_and_its_slots_are_used_again_in_order() {
        let (mut dispatch, worker) = bay(2);
        assert!(dispatch.post(Call::of_test(1), b"a") && dispatch.post(Call::of_test(2), b"b"));
        assert!(!dispatch.post(Call::of_test(3), b"c"));
        assert!(worker.serve_one(&mut |_, request: &[u8]| Bytes::copy_from_slice(request)));
        let mut replies = Vec::new();
        dispatch.collect(|call, reply| replies.push((call, reply)));
        assert_eq!(replies, [(Call::of_test(1), Bytes::from_static(b"a"))]);
        assert!(dispatch.post(Call::of_test(3), b"c"));
    }
}
