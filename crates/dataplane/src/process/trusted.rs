//! The data process of a trusted switch. It forwards nothing: the processes that have ports do, one
//! at a time, as holders of the board's lock. This one adds and removes ports, ages the table, and
//! repairs what a holder left that died, as one more holder.
//!
//! Its clients can write the state memory. What it reads there is checked, and a data process that
//! fails loses its switch, not the daemon.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::Ordering;
use std::time::Duration;

use port::Nanos;
use shmem::robust::Held;
use turn::board::{Board, Entry};
use turn::clock;
use turn::serve::Served;

use super::{Process, Record};
use crate::config::{Attachment, Policy, PortConfig, PortId};
use crate::worker::Job;

/// How long a command waits for the lock.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long it waits while the lock could not be had the last time.
const SHORT: Duration = Duration::from_millis(2);

/// What the data process knows of a trusted switch.
pub(super) struct Trusted {
    board: Board,
    /// Our number as a holder: the upper half of our ports' instances. 0 before the first lock.
    holder: u64,
    /// The deaths that were repaired.
    deaths: u64,
    /// What is on the board.
    written: HashMap<PortId, Entry>,
    /// The lock cannot be had, because a process was stopped while it held it.
    locked_out: bool,
    /// Ports that were removed while the lock could not be had. They go when it is free.
    leaving: Vec<PortId>,
}

/// Why commands are refused while the lock cannot be had.
const LOCKED_OUT: &str = "A process of the trusted switch holds it and does not go on: let it run (kill -CONT), or end it";

/// Becomes the switch, as a data process starts: a predecessor that died as the holder left it.
pub(super) fn take_over(board: &Board) -> Option<Held<'_>> {
    let held = board.lock_as_keeper(PATIENCE)?;
    if held.after_death() {
        board.count_death();
    }
    Some(held)
}

impl Trusted {
    pub(super) fn new(board: Board) -> Self {
        let (deaths, written) = (board.deaths(), HashMap::new());
        Self { board, holder: 0, deaths, written, locked_out: false, leaving: Vec::new() }
    }
}

impl Process {
    /// The board of a trusted switch.
    pub(super) fn board(&self) -> Option<Board> {
        self.trusted.as_ref().map(|trusted| trusted.board.clone())
    }

    /// Becomes the switch, for some commands. On other switches, and if the lock cannot be had, it
    /// does nothing.
    pub(super) fn hold<'b>(&mut self, board: Option<&'b Board>) -> Option<Held<'b>> {
        let (board, trusted) = board.zip(self.trusted.as_mut())?;
        // After a lock-out, commands that are queued do not wait a second each.
        let patience = if trusted.locked_out { SHORT } else { PATIENCE };
        let held = board.lock_as_keeper(patience);
        trusted.locked_out = held.is_none();
        let held = held?;
        if trusted.holder == 0 {
            trusted.holder = board.new_holder();
        }
        board.enter(trusted.holder);
        if held.after_death() {
            board.count_death();
            self.state.count_lost();
        }
        if std::mem::replace(&mut trusted.deaths, board.deaths()) != board.deaths() {
            self.repair();
        }
        self.common.fdb.take_stock();
        self.let_go();
        Some(held)
    }

    /// Notes that a port is to go when the lock is free.
    pub(super) fn remove_later(&mut self, id: PortId) -> Result<(), String> {
        self.record(id)?;
        let leaving = self.trusted.as_mut().map(|trusted| &mut trusted.leaving);
        leaving.into_iter().for_each(|leaving| leaving.push(id));
        Ok(())
    }

    /// Removes the ports that were to go. The lock is held.
    fn let_go(&mut self) {
        let leaving = self.trusted.as_mut().map(|trusted| std::mem::take(&mut trusted.leaving));
        let Some(leaving) = leaving.filter(|leaving| !leaving.is_empty()) else { return };
        // A port that was removed twice is not there the second time.
        let taken: Vec<_> = leaving.into_iter().filter_map(|id| self.take_port(id).ok()).collect();
        self.publish();
        taken.into_iter().for_each(|port| self.retire_port(port));
        self.write_board();
    }

    /// A holder died. What it delivered is shown to its receivers, and everyone is woken.
    fn repair(&mut self) {
        for record in self.ports.iter_mut().flatten() {
            record.idle.iter_mut().for_each(|served| served.source.refresh());
            record.bells.ring_all(clock());
        }
    }

    /// Has a worker serve a port. On a trusted switch, its owner does.
    pub(super) fn give_out(&mut self, worker: u16, served: Box<Served>) {
        match self.ports.get_mut(usize::from(served.id)).and_then(Option::as_mut) {
            Some(record) if self.trusted.is_some() => record.idle = Some(served),
            _ => self.common.workers[usize::from(worker)].send(Job::Serve(served)),
        }
    }

    /// Refuses a command while the lock of a trusted switch cannot be had.
    pub(super) fn check_lock(&self) -> Result<(), String> {
        match self.trusted.as_ref().is_some_and(|trusted| trusted.locked_out) {
            true => Err(LOCKED_OUT.to_owned()),
            false => Ok(()),
        }
    }

    /// Checks that a port can be one of a trusted switch. The supervisor has checked it, too.
    pub(super) fn check_trusted(&self, config: &PortConfig) -> Result<(), String> {
        let served = matches!(
            config.attachment,
            Attachment::Ring(_) | Attachment::Monitor { .. } | Attachment::Vacant
        );
        if self.trusted.is_some() && !served {
            return Err("Ports of a trusted switch are rings".to_owned());
        }
        self.check_rules(&config.policy)
    }

    /// Checks that a port's rules fit the board.
    pub(super) fn check_rules(&self, policy: &Policy) -> Result<(), String> {
        let checked = self.trusted.as_ref().map_or(Ok(()), |_| Entry::check(policy));
        checked.map_err(|error| error.to_string())
    }

    /// Writes the ports to the board. Before all ports of a predecessor are back, its own are
    /// there.
    pub(super) fn write_board(&mut self) {
        let Some(mut trusted) = self.trusted.take() else { return };
        if !trusted.locked_out && !self.common.draining.load(Ordering::Relaxed) {
            self.write_changes(&mut trusted);
        }
        self.trusted = Some(trusted);
    }

    fn write_changes(&self, trusted: &mut Trusted) {
        // Slots of other numbers were never written, and take no memory.
        let ids: BTreeSet<_> = self.state.ports().chain(trusted.written.keys().copied()).collect();
        for id in ids {
            let record = self.ports.get(usize::from(id)).and_then(Option::as_ref);
            let entry = record.and_then(|record| entry_of(trusted.holder, id, record));
            match entry {
                Some(entry) if trusted.written.get(&id) == Some(&entry) => (),
                Some(entry) if trusted.board.write(&entry).is_ok() => {
                    trusted.written.insert(id, entry);
                }
                // Rules that do not fit were refused before.
                Some(_) => (),
                // A predecessor's slot may be there.
                None if trusted.written.remove(&id).is_some() || trusted.board.is_used(id) => {
                    trusted.board.clear(id);
                }
                None => (),
            }
        }
    }

    /// Once a second: ages the table, and lets ports of a predecessor go.
    pub(super) fn look_after_board(&mut self, now: Nanos) {
        let board = self.board();
        let _held = self.hold(board.as_ref());
        if self.check_lock().is_ok() {
            self.common.fdb.age(self.config.fdb_ageing_s, now);
            self.write_board();
        }
    }
}

/// What the board says of a port; `None` if it has no client.
fn entry_of(holder: u64, id: PortId, record: &Record) -> Option<Entry> {
    let rings = *record.config.attachment.rings()?;
    let monitor = match record.config.attachment {
        Attachment::Monitor { of, tx, rx, .. } => Some((of, tx, rx)),
        _ => None,
    };
    Some(Entry {
        id,
        instance: holder << 32 | u64::from(record.spec.instance),
        name: record.config.name.clone(),
        policy: record.config.policy.clone(),
        monitor,
        rings,
        file: rustix::fs::fstat(record.descriptors.first()?).ok()?.st_ino,
    })
}
