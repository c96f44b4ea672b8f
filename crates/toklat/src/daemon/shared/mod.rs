//! A switch that several tasks share: one task changes it at a time, and others read.
//!
//! A task holds a switch during requests to its data process, which may take long. Readers never
//! stand in line behind tasks that want to change it: the task that holds it leaves a copy for them
//! while it waits.

mod turns;

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex as StdMutex};

use tokio::sync::{Mutex, OwnedMutexGuard};

pub use self::turns::{Turn, Turns, Whose};
use super::hangups::WatchId;
use super::locked;
use super::readers::Readers;
use super::switch::Switch;

/// A switch that several tasks share.
pub type Handle = Arc<Shared>;

/// A switch, the tasks that want to change it, and those that read.
#[derive(Debug)]
pub struct Shared {
    switch: Arc<Mutex<Switch>>,
    turns: Turns,
    readers: Arc<Readers>,
    /// Ports whose clients have closed them, and that the switch was not told of yet, by user.
    gone: StdMutex<BTreeMap<u32, Vec<(String, WatchId)>>>,
}

/// A locked switch.
#[derive(Debug)]
pub struct Locked {
    // The switch is unlocked before the next task has its turn.
    switch: OwnedMutexGuard<Switch>,
    _turn: Turn,
}

impl Shared {
    /// Shares a switch.
    #[must_use]
    pub fn new(switch: Switch) -> Self {
        let (readers, turns, gone) = (switch.readers(), Turns::default(), StdMutex::default());
        Self { switch: Arc::new(Mutex::new(switch)), turns, readers, gone }
    }

    /// Locks the switch for the daemon itself or an operator.
    pub async fn lock(&self) -> Locked {
        self.lock_for(Whose::Operators).await
    }

    /// Locks the switch when it is the turn of `whose` task.
    pub async fn lock_for(&self, whose: Whose) -> Locked {
        let turn = self.turns.take(whose).await;
        Locked { switch: Arc::clone(&self.switch).lock_owned().await, _turn: turn }
    }

    /// Locks the switch if no task has it.
    pub fn try_lock(&self) -> Option<Locked> {
        let turn = self.turns.try_take()?;
        let switch = Arc::clone(&self.switch).try_lock_owned().ok()?;
        Some(Locked { switch, _turn: turn })
    }

    /// Notes ports that a user's clients have closed. Returns true if the caller is to lock the
    /// switch and [take](Self::take_gone) them; if not, another task will. So a user whose clients
    /// close their ports one by one has one task in line for that.
    pub fn note_gone(&self, uid: u32, mut more: Vec<(String, WatchId)>) -> bool {
        let mut all = locked(&self.gone);
        let gone = all.entry(uid).or_default();
        let is_first = gone.is_empty();
        gone.append(&mut more);
        is_first
    }

    /// Takes the user's ports that were noted.
    pub fn take_gone(&self, uid: u32) -> Vec<(String, WatchId)> {
        locked(&self.gone).remove(&uid).unwrap_or_default()
    }

    /// The copies that are left for readers.
    #[must_use]
    pub fn readers(&self) -> &Readers {
        &self.readers
    }
}

impl Deref for Locked {
    type Target = Switch;

    fn deref(&self) -> &Switch {
        &self.switch
    }
}

impl DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut Switch {
        &mut self.switch
    }
}
