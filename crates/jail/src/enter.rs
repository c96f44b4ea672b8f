//! A process enters its jail.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::RawFd;

use serde::{Deserialize, Serialize};

use crate::{Wall, Walls, landlock, namespaces, privileges, root};

/// The confinement of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Jail {
    /// The walls to raise.
    pub walls: BTreeSet<Wall>,
    /// The user, and the group with the same number, that the process becomes. Only a creator that
    /// may change users can set one (see [`crate::user::dedicated`]).
    pub user: Option<u32>,
}

/// The result of the confinement, as the confined process knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inside {
    /// The walls that stand, and those that could not be raised.
    pub walls: Walls,
    /// The user numbers under which the process sees peers of its creator's user. All users that a
    /// namespace does not map look alike, but differ from these.
    pub creators: Vec<u32>,
}

impl Inside {
    /// For a process that is not confined.
    #[must_use]
    pub fn outside() -> Self {
        Self { walls: Walls::default(), creators: namespaces::here() }
    }
}

/// The process could not be confined, or its confinement might have gaps.
#[derive(Debug, thiserror::Error)]
pub enum JailError {
    /// The process has another thread, which would not be confined.
    #[error("A process enters its jail before it starts threads; this one has {0}")]
    Threads(usize),
    /// A wall stands in part, and can neither be completed nor removed.
    #[error("Cannot {what}")]
    System {
        /// The step that failed.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

impl Jail {
    /// A jail with all walls, and with this user if one is given.
    #[must_use]
    pub fn new(user: Option<u32>) -> Self {
        let mut walls: BTreeSet<Wall> = Wall::ALL.into_iter().collect();
        // What a jail holds is limited elsewhere.
        walls.retain(|wall| !Wall::LIMITS.contains(wall));
        if user.is_none() {
            walls.remove(&Wall::User);
        }
        Self { walls, user }
    }

    /// The same jail without some walls.
    #[must_use]
    pub fn without(mut self, walls: &[Wall]) -> Self {
        walls.iter().for_each(|wall| {
            self.walls.remove(wall);
        });
        self
    }

    pub(crate) fn wants(&self, wall: Wall) -> bool {
        self.walls.contains(&wall)
    }

    /// Confines this process for good. It keeps only the descriptors `keep` and the three standard
    /// streams. The caller raises [`Wall::SystemCalls`], because it knows which calls it needs.
    ///
    /// With namespaces, this returns in another process, a grandchild. The caller's process ends:
    /// with status 0 once the other one is confined, or with status 1 if it cannot be. Both were
    /// one program until here, so call this first of all.
    ///
    /// # Errors
    /// [`JailError`]; the process must end then.
    pub fn enter(&self, keep: &[RawFd]) -> Result<Inside, JailError> {
        match threads() {
            1 => (),
            threads => return Err(JailError::Threads(threads)),
        }
        // Kernels before 6.4 have the auxiliary vector in /proc only, which is about to be out of
        // reach. rustix reads it once.
        let _ = rustix::param::page_size();
        let mut walls = Walls::default();
        let (place, go) = namespaces::enter(self, &mut walls)?;
        let mut raise = |wall: Wall, how: &mut dyn FnMut() -> Result<(), String>| {
            if self.wants(wall) {
                walls.note(wall, how());
            }
        };
        let failed = |error: io::Error| error.to_string();
        raise(Wall::Descriptors, &mut || {
            let kept: Vec<RawFd> = keep.iter().copied().chain(go.descriptor()).collect();
            privileges::close_others(&kept).map_err(failed)
        });
        raise(Wall::Root, &mut || match &place.mounts {
            Ok(()) => root::leave().map_err(failed),
            Err(reason) => Err(reason.clone()),
        });
        if self.wants(Wall::Capabilities) {
            privileges::drop_bounds();
        }
        raise(Wall::User, &mut || place.become_user(self.user).map_err(failed));
        raise(Wall::Capabilities, &mut || privileges::drop_capabilities().map_err(failed));
        raise(Wall::Memory, &mut || privileges::hide_memory().map_err(failed));
        raise(Wall::NoNewPrivileges, &mut || privileges::forbid_new().map_err(failed));
        let landlock = [Wall::LandlockFiles, Wall::LandlockNetwork, Wall::LandlockScope];
        for (wall, done) in landlock::restrict(landlock.map(|wall| self.wants(wall))) {
            walls.note(wall, done);
        }
        go.wait().map_err(|source| JailError::System { what: "hear from the creator", source })?;
        Ok(Inside { walls, creators: place.creators })
    }
}

/// The number of threads of this process; 1 if it cannot be read.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count)
}
