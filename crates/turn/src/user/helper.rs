//! A user's helper thread, which makes calls whose cost the user sets.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::{By, MOST_HELPERS, Standing, User, Waker};

/// Bytes of a helper thread's stack.
const STACK: usize = 128 << 10;

/// The jobs of the thread, and whether it exists.
#[derive(Debug, Default)]
pub(super) struct Helper {
    jobs: Mutex<Jobs>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct Jobs {
    queue: VecDeque<Arc<Waker>>,
    /// The thread is running.
    runs: bool,
    /// The thread is to end.
    ends: bool,
}

impl Helper {
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a thread for `user`, which makes it helped; false if there can be no more threads.
    pub fn start(&self, user: &Arc<User>) -> bool {
        let mut jobs = self.lock();
        // Under the lock: a thread that found its user in good standing would end at once.
        let helped = jobs.runs || Self::spawn(&mut jobs, user);
        if helped {
            user.standing.store(Standing::Helped as u8, Ordering::Relaxed);
        }
        helped
    }

    fn spawn(jobs: &mut Jobs, user: &Arc<User>) -> bool {
        let helpers = &user.office.helpers;
        let room = |count| (count < MOST_HELPERS).then_some(count + 1);
        if helpers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_err() {
            return false;
        }
        let (name, served) = (format!("wakes {}", user.uid), Arc::clone(user));
        let thread = std::thread::Builder::new().name(name).stack_size(STACK);
        jobs.runs = thread.spawn(move || serve(&served)).is_ok();
        if !jobs.runs {
            helpers.fetch_sub(1, Ordering::Relaxed);
        }
        jobs.runs
    }

    /// Gives the thread a waker's job; false if there is no thread.
    pub fn push(&self, waker: Arc<Waker>) -> bool {
        let mut jobs = self.lock();
        if jobs.runs {
            jobs.queue.push_back(waker);
            self.more.notify_one();
        }
        jobs.runs
    }

    /// Makes the thread check its user's standing.
    pub fn nudge(&self) {
        let _jobs = self.lock();
        self.more.notify_one();
    }

    /// Ends the thread as soon as possible.
    pub fn end(&self) {
        self.lock().ends = true;
        self.more.notify_one();
    }

    /// The next job; `None` when the thread must end.
    fn next(&self, user: &User) -> Option<Arc<Waker>> {
        let mut jobs = self.lock();
        loop {
            let job = jobs.queue.pop_front().filter(|_| !jobs.ends);
            if job.is_some() {
                return job;
            }
            if jobs.ends || user.standing() == Standing::Good {
                jobs.runs = false;
                return None;
            }
            jobs = self.more.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn serve(user: &Arc<User>) {
    if let Some(cpus) = &user.office.cpus {
        // If this fails, the thread runs on any processor.
        let _ = rustix::thread::sched_setaffinity(None, cpus);
    }
    while let Some(waker) = user.helper.next(user) {
        waker.carry_out(By::Helper);
    }
    user.office.helpers.fetch_sub(1, Ordering::Relaxed);
}
