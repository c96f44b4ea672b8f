//! Timers of tasks.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ::tcp::Nanos;

/// The time, and what waits for it.
#[derive(Debug, Default)]
struct Queue {
    now: Nanos,
    next: u64,
    /// By deadline; the number tells those of one moment apart.
    waiting: BTreeMap<(Nanos, u64), Waker>,
}

/// All timers. They may be set on any thread.
#[derive(Clone, Debug, Default)]
pub(super) struct Timers(Arc<Mutex<Queue>>);

impl Timers {
    fn with<T>(&self, work: impl FnOnce(&mut Queue) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Wakes what is due.
    pub fn run(&self, now: Nanos) {
        let due = self.with(|queue| {
            queue.now = now;
            if queue.waiting.first_key_value().is_none_or(|((at, _), _)| *at > now) {
                return BTreeMap::new();
            }
            let later = queue.waiting.split_off(&(now + 1, 0));
            std::mem::replace(&mut queue.waiting, later)
        });
        due.into_values().for_each(Waker::wake);
    }

    pub fn deadline(&self) -> Option<Nanos> {
        self.with(|queue| queue.waiting.first_key_value().map(|((at, _), _)| *at))
    }

    pub fn sleep(&self, time: Duration) -> Sleep {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let at = self.with(|queue| queue.now + nanos);
        Sleep { at, number: None, timers: self.clone() }
    }
}

/// A timer for tasks: the clock of [`Net`](super::Net).
#[derive(Clone, Debug)]
pub struct Timer(Timers);

impl Timer {
    pub(super) fn new(timers: &Timers) -> Self {
        Self(timers.clone())
    }

    /// Waits for this time.
    pub fn sleep(&self, time: Duration) -> Sleep {
        self.0.sleep(time)
    }
}

/// Waits until a moment.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct Sleep {
    at: Nanos,
    /// Its number among those that wait.
    number: Option<u64>,
    timers: Timers,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Self { at, number, timers } = &mut *self;
        timers.with(|queue| {
            if queue.now >= *at {
                return Poll::Ready(());
            }
            let number = *number.get_or_insert_with(|| {
                queue.next += 1;
                queue.next
            });
            queue.waiting.insert((*at, number), cx.waker().clone());
            Poll::Pending
        })
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.timers.with(|queue| queue.waiting.remove(&(self.at, number)));
        }
    }
}
