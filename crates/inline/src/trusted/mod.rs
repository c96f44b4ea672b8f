//! A switch that moves between the processes of one user: each forwards what it sends in its own
//! thread, as the kernel's VALE does.
//!
//! ```text
//!   process A: Trusted --+                                       +-- process B: Trusted
//!                        +--> board, counters, table, cursors <--+
//!                        +--> memory files of all ports      <---+     no worker; one holder at a time
//! ```
//!
//! A *turn* takes the board's lock, continues from the state memory, gives one port a turn of at
//! most one batch, and frees the lock. A process may die at any instruction: the next holder
//! learns of it, and repairs the switch as a new data process does (docs/recovery.md).

mod member;
mod view;

use std::os::fd::OwnedFd;
use std::os::linux::fs::MetadataExt;
use std::sync::Arc;

use port::{Nanos, PortId};
use shmem::robust::{self, Held};
use shmem::{Mapping, Memfd};
use topology::SwitchConfig;
use turn::board::Board;
use turn::state::State;

pub use self::member::{install, install_with};
use self::view::View;

/// Where a process finds what belongs to a port of the switch.
pub trait Supply: Send {
    /// The memory file of the port of this name, and the switch's end of its token.
    ///
    /// # Errors
    /// `NotFound` if the port is gone; another one if the port should be asked for again.
    fn port(&self, name: &str) -> std::io::Result<(OwnedFd, OwnedFd)>;
}

/// Why a process cannot be the switch.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrustedError {
    /// The state memory is not that of a trusted switch.
    #[error("The switch's state memory cannot be used")]
    State(#[from] shmem::RegionError),
    /// The memory has no board or no table.
    #[error("The switch's state memory is not that of a trusted switch")]
    NoBoard,
    /// The kernel would not notice the death of this thread.
    #[error("The kernel refuses robust locks to this process (get_robust_list)")]
    NotRobust(#[source] std::io::Error),
    /// Thread numbers mean something else to the others.
    #[error(
        "The processes of a trusted switch must be in one PID namespace; this one is in another, or \
         cannot read /proc/self/ns/pid"
    )]
    OtherNamespace,
    /// The port is not there any more.
    #[error("The port was removed")]
    Gone,
}

/// A process's part in a trusted switch.
#[derive(Debug)]
pub struct Trusted {
    board: Board,
    view: View,
}

impl Trusted {
    /// Joins the switch whose state is in this memory file.
    ///
    /// # Errors
    /// [`TrustedError`], but not `Gone`.
    pub fn join(
        state: &Memfd,
        config: &SwitchConfig,
        supply: Box<dyn Supply>,
    ) -> Result<Self, TrustedError> {
        robust::check().map_err(TrustedError::NotRobust)?;
        let state = State::map(state, config)?;
        let board = Board::of(&state).ok_or(TrustedError::NoBoard)?;
        if !namespace().is_some_and(|ours| board.is_of(ours)) {
            return Err(TrustedError::OtherNamespace);
        }
        let held = board.lock().map_err(TrustedError::NotRobust)?;
        let mut view = View::new(state, &board, config, supply).ok_or(TrustedError::NoBoard)?;
        if held.after_death() {
            view.repair(&board);
        }
        drop(held);
        Ok(Self { board, view })
    }

    /// Uses this mapping of the memory file with this inode, instead of mapping the file again.
    pub fn lend(&mut self, file: u64, mapping: Arc<Mapping>) {
        self.view.lend(file, mapping);
    }

    /// Is the switch, and gives a port turns until all that its owner has flushed is forwarded.
    /// `file` is the inode of the port's memory file.
    ///
    /// # Errors
    /// [`TrustedError::Gone`] when the switch has no such port.
    // `cargo xtask perf` counts this function's instructions by its name.
    #[inline(never)]
    pub fn turn(&mut self, id: PortId, file: u64, now: Nanos) -> Result<(), TrustedError> {
        loop {
            let held = enter(&self.board, &mut self.view, now)?;
            let more = self.view.serve(id, file, now).ok_or(TrustedError::Gone)?;
            drop(held);
            self.view.wake_late();
            if !more {
                return Ok(());
            }
        }
    }

    /// The whole state: counters, and totals of removed ports.
    #[must_use]
    pub fn state(&self) -> &State {
        self.view.state()
    }
}

/// Becomes the switch, and catches up with what others have done to it.
#[inline]
fn enter<'b>(board: &'b Board, view: &mut View, now: Nanos) -> Result<Held<'b>, TrustedError> {
    loop {
        let held = board.lock().map_err(TrustedError::NotRobust)?;
        if held.after_death() {
            view.repair(board);
        }
        let missing = view.catch_up(board, now);
        if missing.is_empty() {
            return Ok(held);
        }
        // The daemon is asked without the lock: it may wait for the data process, which may wait
        // for the lock.
        drop(held);
        view.fetch(&missing, now);
    }
}

/// The PID namespace of this process, if it can be told.
fn namespace() -> Option<u64> {
    Some(std::fs::metadata("/proc/self/ns/pid").ok()?.st_ino())
}
