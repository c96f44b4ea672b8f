//! Turns at something that one task has at a time: each user's tasks stand in a queue of their own.
//!
//! The daemon's and operators' tasks go first, then the users' one after the other. So a task waits
//! for one task of each other user at most, however many stand in the other users' queues; an
//! operator's waits for one.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use crate::daemon::locked;

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

#[derive(Debug, Default)]
struct Queues {
    /// A task has its turn.
    is_taken: bool,
    operators: VecDeque<oneshot::Sender<Turn>>,
    users: BTreeMap<u32, VecDeque<oneshot::Sender<Turn>>>,
    /// The user who had the last turn of a user.
    last: u32,
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub struct Turn(Option<Turns>);

impl Turns {
    /// Waits for a turn. A task that stops waiting leaves its queue.
    pub async fn take(&self, whose: Whose) -> Turn {
        let place = {
            let mut queues = locked(&self.0);
            if !std::mem::replace(&mut queues.is_taken, true) {
                if let Whose::User(uid) = whose {
                    queues.last = uid;
                }
                return Turn(Some(self.clone()));
            }
            let (to, place) = oneshot::channel();
            match whose {
                Whose::Operators => queues.operators.push_back(to),
                Whose::User(uid) => queues.users.entry(uid).or_default().push_back(to),
            }
            place
        };
        // The queues live as long as this.
        place.await.unwrap_or(Turn(None))
    }

    /// Returns a turn if no task has one.
    pub fn try_take(&self) -> Option<Turn> {
        let taken = std::mem::replace(&mut locked(&self.0).is_taken, true);
        (!taken).then(|| Turn(Some(self.clone())))
    }

    /// Passes the turn on to the next task that still waits.
    fn pass(self) {
        loop {
            let next = locked(&self.0).next();
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
    /// Takes the next task out of its queue. If there is none, the next turn is free.
    fn next(&mut self) -> Option<oneshot::Sender<Turn>> {
        if let Some(operator) = self.operators.pop_front() {
            return Some(operator);
        }
        let after = self.users.range((Excluded(self.last), Unbounded)).next();
        let Some((&uid, _)) = after.or_else(|| self.users.iter().next()) else {
            self.is_taken = false;
            return None;
        };
        self.last = uid;
        let queue = self.users.get_mut(&uid)?;
        let next = queue.pop_front();
        if queue.is_empty() {
            self.users.remove(&uid);
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

    /// Tasks that noted their turns, in order.
    type Order = Arc<Mutex<Vec<&'static str>>>;

    /// Starts a task that notes its turn.
    async fn stand(turns: &Turns, whose: Whose, name: &'static str, order: &Order) {
        let (turns, order) = (turns.clone(), Arc::clone(order));
        tokio::spawn(async move {
            let _turn = turns.take(whose).await;
            locked(&order).push(name);
        });
        tokio::task::yield_now().await;
    }

    async fn settled(turns: &Turns) {
        while locked(&turns.0).is_taken {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn operators_come_first_and_users_one_after_the_other() {
        let (turns, order) = (Turns::default(), Order::default());
        let busy = turns.take(Whose::User(1)).await;
        assert!(turns.try_take().is_none());
        for name in ["a1", "a2", "a3"] {
            stand(&turns, Whose::User(1), name, &order).await;
        }
        for (uid, name) in [(7, "c1"), (3, "b1"), (7, "c2")] {
            stand(&turns, Whose::User(uid), name, &order).await;
        }
        for name in ["op1", "op2"] {
            stand(&turns, Whose::Operators, name, &order).await;
        }
        drop(busy);
        settled(&turns).await;
        let order = locked(&order).clone();
        assert_eq!(order, ["op1", "op2", "b1", "c1", "a1", "c2", "a2", "a3"]);
        assert!(turns.try_take().is_some());
    }

    #[tokio::test]
    async fn tasks_that_stop_waiting_lose_no_turn() {
        let (turns, order) = (Turns::default(), Order::default());
        let busy = turns.take(Whose::Operators).await;
        let gone: Vec<_> = (0..3)
            .map(|uid| {
                let turns = turns.clone();
                tokio::spawn(async move { turns.take(Whose::User(uid)).await })
            })
            .collect();
        tokio::task::yield_now().await;
        stand(&turns, Whose::User(9), "last", &order).await;
        gone.iter().for_each(tokio::task::JoinHandle::abort);
        for task in gone {
            task.await.unwrap_err();
        }
        drop(busy);
        settled(&turns).await;
        assert_eq!(*locked(&order), ["last"]);
        assert_eq!(locked(&turns.0).users.len(), 0);
    }
}
