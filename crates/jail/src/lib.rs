//! What confines a process, and how the descriptors that strangers send are closed.
//!
//! Every child of the supervisor passes through here: the data process, passt, and those to come. A child says what is to
//! confine it in a [`Jail`], which is data, and [enters](Jail::enter) it before it starts a thread; it is told which [`Walls`]
//! stand. A wall that the kernel or a container refuses is left out, with the reason. How children are started, and what they
//! inherit, is in [`child`].
#![allow(
    unsafe_code,
    reason = "socket options that rustix does not name, and a descriptor moved out of its owner"
)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod child;
mod fork;
mod landlock;
mod namespaces;
pub mod parent_death;
pub mod peer;
mod privileges;
mod root;
pub mod strangers;
pub mod user;
mod wall;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::RawFd;

use serde::{Deserialize, Serialize};

pub use self::wall::{Refused, Wall, Walls};

/// What is to confine a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Jail {
    /// The walls to raise.
    pub walls: BTreeSet<Wall>,
    /// The user and group, of the same number, that the process is to become. Only a creator that may change users can give
    /// one (see [`user::dedicated`]).
    pub user: Option<u32>,
}

/// What a process knows once it is confined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inside {
    /// What stands, and what could not be raised.
    pub walls: Walls,
    /// As which users the process sees peers that its creator's user started. Users that a namespace does not map all look
    /// alike, and like nobody of these.
    pub creators: Vec<u32>,
}

impl Inside {
    /// Of a process that is not confined.
    #[must_use]
    pub fn outside() -> Self {
        Self { walls: Walls::default(), creators: namespaces::here() }
    }
}

/// The process could not be confined, or might be confined wrongly.
#[derive(Debug, thiserror::Error)]
pub enum JailError {
    /// Another thread would stay outside.
    #[error("A process enters its jail before it starts threads; this one has {0}")]
    Threads(usize),
    /// A wall that stands in part can neither be completed nor taken down.
    #[error("Cannot {what}")]
    System {
        /// What was done.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl Jail {
    /// All walls, and this user.
    #[must_use]
    pub fn new(user: Option<u32>) -> Self {
        let mut walls: BTreeSet<Wall> = Wall::ALL.into_iter().collect();
        if user.is_none() {
            walls.remove(&Wall::User);
        }
        Self { walls, user }
    }

    /// The same without some walls.
    #[must_use]
    pub fn without(mut self, walls: &[Wall]) -> Self {
        walls.iter().for_each(|wall| {
            self.walls.remove(wall);
        });
        self
    }

    fn wants(&self, wall: Wall) -> bool {
        self.walls.contains(&wall)
    }

    /// Confines this process for good; of its descriptors it keeps `keep` and the three standard streams.
    /// [`Wall::SystemCalls`] is the caller's, which knows what it needs of the kernel.
    ///
    /// Where there are namespaces the process that returns is another one, a grandchild: the caller's ends with status 0 when
    /// the other is confined, and with status 1 when it cannot be. Both were one program until here, so call this first of all.
    ///
    /// # Errors
    /// [`JailError`]; the process must end then.
    pub fn enter(&self, keep: &[RawFd]) -> Result<Inside, JailError> {
        match threads() {
            1 => (),
            threads => return Err(JailError::Threads(threads)),
        }
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

/// How many threads this process has; 1 where that cannot be told.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count)
}
