//! Turns at something that one task has at a time: each user's tasks stand in a queue of their own.
//!
//! The daemon's and operators' tasks go first. Of the users whose tasks wait, that one has the next
//! turn whose turns have taken the least time, over all tasks of each. So users who ask all the
//! time share the time that there is, and one who asks now and then waits for one task, however
//! many others ask. A user who did not ask for a while is not owed the time of that while, and all
//! begin from zero when no task waits.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::daemon::locked;

/// The most time that is charged for a turn: what waits for a data process that hangs, or for one
/// that starts, is not the user's fault alone.
const MOST: Duration = Duration::from_secs(1);

/// The queues for one thing.
#[derive(Clone, Debug, Default)]
pub struct Turns(Arc<Mutex<Queues>>);

/// Whose task it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The daemon's own, or an operator's.
    Operators,
    /// A user's who may open ports.
    User(u32),
}

type Queue = VecDeque<oneshot::Sender<Turn>>;

/// Nanoseconds.
type Time = u64;

#[derive(Debug, Default)]
struct Queues {
    /// A task has its turn: whose, and since when.
    taken: Option<(Whose, Instant)>,
    operators: Queue,
    users: BTreeMap<u32, Queue>,
    /// The users in `users`, after the time that their turns have taken.
    order: BTreeSet<(Time, u32)>,
    /// The time that users' turns have taken since a task has waited all the time.
    times: BTreeMap<u32, Time>,
    /// The time of the user who had the last turn of a user, when it began. All that waited then
    /// had as much or more, and a user who comes is taken to have had as much.
    least: Time,
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub struct Turn(Option<Turns>);

impl Turns {
    /// Waits for a turn. A task that stops waiting leaves its queue.
    pub async fn take(&self, whose: Whose) -> Turn {
        let place = {
            let mut queues = locked(&self.0);
            if queues.taken.is_none() {
                queues.begin(whose, Instant::now());
                return Turn(Some(self.clone()));
            }
            queues.stand(whose)
        };
        // The queues live as long as this.
        place.await.unwrap_or(Turn(None))
    }

    /// Returns a turn if no task has one.
    pub fn try_take(&self) -> Option<Turn> {
        let mut queues = locked(&self.0);
        if queues.taken.is_some() {
            return None;
        }
        queues.begin(Whose::Operators, Instant::now());
        Some(Turn(Some(self.clone())))
    }

    /// Passes the turn on to the next task that still waits.
    fn pass(self) {
        loop {
            let next = locked(&self.0).next(Instant::now());
            let Some(next) = next else { return };
            match next.send(Turn(Some(self.clone()))) {
                Ok(()) => return,
                // That task does not wait any more. The turn is still ours.
                Err(mut turn) => turn.0 = None,
            }
        }
    }
}

impl Queues {
    fn time(&self, uid: u32) -> Time {
        self.times.get(&uid).copied().unwrap_or(0).max(self.least)
    }

    /// Puts a task into its queue.
    fn stand(&mut self, whose: Whose) -> oneshot::Receiver<Turn> {
        let (to, place) = oneshot::channel();
        match whose {
            Whose::Operators => self.operators.push_back(to),
            Whose::User(uid) => {
                let time = self.time(uid);
                let queue = self.users.entry(uid).or_default();
                if queue.is_empty() {
                    self.order.insert((time, uid));
                }
                queue.push_back(to);
            }
        }
        place
    }

    /// Begins a turn.
    fn begin(&mut self, whose: Whose, now: Instant) {
        if let Whose::User(uid) = whose {
            self.least = self.time(uid);
        }
        self.taken = Some((whose, now));
    }

    /// Ends a turn, and charges its time.
    fn end(&mut self, now: Instant) {
        let Some((Whose::User(uid), began)) = self.taken.take() else { return };
        let took = now.saturating_duration_since(began).min(MOST).as_nanos() as Time;
        let before = self.time(uid);
        // A turn that takes no time is one, too.
        let time = before.saturating_add(took.max(1));
        self.times.insert(uid, time);
        if self.order.remove(&(before, uid)) {
            self.order.insert((time, uid));
        }
    }

    /// Ends a turn, and takes the next task out of its queue. If there is none, the next turn is
    /// free.
    fn next(&mut self, now: Instant) -> Option<oneshot::Sender<Turn>> {
        self.end(now);
        if let Some(operator) = self.operators.pop_front() {
            self.begin(Whose::Operators, now);
            return Some(operator);
        }
        let Some(&(time, uid)) = self.order.first() else {
            self.times.clear();
            self.least = 0;
            return None;
        };
        self.begin(Whose::User(uid), now);
        let queue = self.users.get_mut(&uid)?;
        let next = queue.pop_front();
        if queue.is_empty() {
            self.users.remove(&uid);
            self.order.remove(&(time, uid));
        }
        next
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(turns) = self.0.take() {
            turns.pass();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Queues, and the tasks that stand in them.
    struct Bed {
        queues: Queues,
        now: Instant,
        places: Vec<(&'static str, oneshot::Receiver<Turn>)>,
    }

    impl Bed {
        /// Someone has the turn.
        fn taken(whose: Whose) -> Self {
            let (mut queues, now) = (Queues::default(), Instant::now());
            queues.begin(whose, now);
            Self { queues, now, places: Vec::new() }
        }

        fn stand(&mut self, uid: u32, names: &[&'static str]) {
            for name in names {
                self.places.push((name, self.queues.stand(Whose::User(uid))));
            }
        }

        /// Ends the turn after so many milliseconds; returns whose the next one is.
        fn next(&mut self, ms: u64) -> Option<&'static str> {
            self.now += Duration::from_millis(ms);
            self.queues.next(self.now)?.send(Turn(None)).unwrap();
            let called = self.places.iter_mut().position(|(_, place)| place.try_recv().is_ok());
            Some(self.places.swap_remove(called?).0)
        }

        /// The order of all that wait, if the turn takes `first` ms, and each after it `each` ms.
        fn order(&mut self, first: u64, each: u64) -> Vec<&'static str> {
            let mut order = Vec::from_iter(self.next(first));
            order.extend(std::iter::from_fn(|| self.next(each)));
            order
        }
    }

    #[test]
    fn operators_come_first_and_users_one_after_the_other() {
        let mut bed = Bed::taken(Whose::User(1));
        bed.stand(1, &["a1", "a2", "a3"]);
        bed.stand(7, &["c1", "c2"]);
        bed.stand(3, &["b1"]);
        for name in ["op1", "op2"] {
            bed.places.push((name, bed.queues.stand(Whose::Operators)));
        }
        let order = bed.order(5, 5);
        assert_eq!(order, ["op1", "op2", "b1", "c1", "a1", "c2", "a2", "a3"]);
        assert!(bed.queues.taken.is_none());
    }

    #[test]
    fn users_share_the_time_and_one_who_asks_seldom_waits_for_one_task() {
        let mut bed = Bed::taken(Whose::User(1));
        bed.stand(1, &["a1", "a2"]);
        bed.stand(2, &["b1", "b2", "b3", "b4"]);
        // User 1 has had 30 ms, and user 2 has a turn.
        assert_eq!(bed.next(30), Some("b1"));
        bed.stand(9, &["seldom"]);
        assert_eq!(bed.order(10, 9), ["seldom", "b2", "b3", "b4", "a1", "a2"]);
    }

    #[test]
    fn time_without_tasks_is_not_saved_and_long_turns_are_charged_in_part() {
        let mut bed = Bed::taken(Whose::User(1));
        bed.stand(1, &["a1"]);
        bed.stand(2, &["b1"]);
        // User 1 has had a turn of an hour, and user 2 one of a second, while user 9 did not ask.
        assert_eq!((bed.next(3_600_000), bed.next(1000)), (Some("b1"), Some("a1")));
        bed.stand(2, &["b2", "b3"]);
        bed.stand(9, &["new1", "new2"]);
        assert_eq!(bed.order(1000, 500), ["b2", "new1", "b3", "new2"]);
        assert_eq!((bed.queues.times.len(), bed.queues.least), (0, 0));
    }

    #[tokio::test]
    async fn tasks_that_stop_waiting_lose_no_turn() {
        let turns = Turns::default();
        let busy = turns.take(Whose::Operators).await;
        assert!(turns.try_take().is_none());
        let stand = |uid| {
            let turns = turns.clone();
            tokio::spawn(async move { turns.take(Whose::User(uid)).await })
        };
        let gone: Vec<_> = (0..3).map(stand).collect();
        tokio::task::yield_now().await;
        let last = stand(9);
        tokio::task::yield_now().await;
        gone.iter().for_each(tokio::task::JoinHandle::abort);
        for task in gone {
            task.await.unwrap_err();
        }
        drop(busy);
        drop(last.await.unwrap());
        {
            let queues = locked(&turns.0);
            assert_eq!((queues.users.len(), queues.order.len()), (0, 0));
        }
        assert!(turns.try_take().is_some());
    }
}
