//! Tasks: futures that are polled when they have been woken.

use std::cell::RefCell;
use std::collections::{HashSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// The number of the future that [`run`](super::Net::run) waits for.
pub const MAIN: usize = usize::MAX;
/// Maximum number of tasks that are polled in a turn.
const TURN: usize = 1024;

type Future_ = Pin<Box<dyn Future<Output = ()>>>;

/// The tasks that are ready, in the order in which they were woken, each once.
#[derive(Debug, Default)]
struct Queue {
    order: VecDeque<usize>,
    members: HashSet<usize>,
}

/// The queue: wakers may be used on any thread.
#[derive(Debug, Default)]
struct Ready(Mutex<Queue>);

impl Ready {
    fn with<T>(&self, work: impl FnOnce(&mut Queue) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Makes a task ready.
struct TaskWaker {
    id: usize,
    ready: Arc<Ready>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ready.with(|queue| {
            if queue.members.insert(self.id) {
                queue.order.push_back(self.id);
            }
        });
    }
}

struct Task {
    /// Missing while it is polled.
    future: Option<Future_>,
    waker: Waker,
}

/// All tasks, by number.
#[derive(Default)]
pub struct Tasks {
    table: RefCell<Vec<Option<Task>>>,
    free: RefCell<Vec<usize>>,
    ready: Arc<Ready>,
}

impl Tasks {
    pub fn len(&self) -> usize {
        self.table.borrow().iter().flatten().count()
    }

    fn waker(&self, id: usize) -> Waker {
        Arc::new(TaskWaker { id, ready: Arc::clone(&self.ready) }).into()
    }

    /// The waker of the future that `run` waits for.
    pub fn main(&self) -> Waker {
        self.waker(MAIN)
    }

    pub fn spawn(&self, future: Future_) {
        let mut table = self.table.borrow_mut();
        let id = self.free.borrow_mut().pop().unwrap_or(table.len());
        let waker = self.waker(id);
        let task = Some(Task { future: Some(future), waker: waker.clone() });
        match table.get_mut(id) {
            Some(place) => *place = task,
            None => table.push(task),
        }
        waker.wake();
    }

    pub fn are_ready(&self) -> bool {
        self.ready.with(|queue| !queue.order.is_empty())
    }

    /// Takes the numbers of tasks that are ready now. Those that become so meanwhile wait.
    pub fn ready(&self) -> Vec<usize> {
        self.ready.with(|queue| {
            let n = queue.order.len().min(TURN);
            let ids: Vec<usize> = queue.order.drain(..n).collect();
            for id in &ids {
                queue.members.remove(id);
            }
            ids
        })
    }

    /// Polls a task, and drops it if it has ended.
    pub fn poll(&self, id: usize) {
        let taken = {
            let mut table = self.table.borrow_mut();
            let task = table.get_mut(id).and_then(Option::as_mut);
            task.and_then(|task| Some((task.future.take()?, task.waker.clone())))
        };
        let Some((mut future, waker)) = taken else { return };
        let ended = future.as_mut().poll(&mut Context::from_waker(&waker)) == Poll::Ready(());
        let mut table = self.table.borrow_mut();
        let Some(place) = table.get_mut(id) else { return };
        match place {
            Some(task) if !ended => task.future = Some(future),
            _ => {
                *place = None;
                self.free.borrow_mut().push(id);
                // The future's drop may use the tables.
                drop(table);
            }
        }
    }

    /// Drops all tasks.
    pub fn clear(&self) {
        let all = std::mem::take(&mut *self.table.borrow_mut());
        self.free.borrow_mut().clear();
        drop(all);
        self.ready.with(|queue| *queue = Queue::default());
    }
}
