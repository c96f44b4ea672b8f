//! The walls that the program in a cell raises itself, once it has loaded what it needs.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use super::report::{Report, send};
use crate::{Wall, Walls, calls, landlock, privileges, root};

/// The resources that a program keeps after it is sealed, and what it may still do.
#[derive(Debug)]
pub struct Sealed<'a> {
    /// The socket to the creator.
    pub control: BorrowedFd<'a>,
    /// The descriptors that stay open, beside the standard streams and the socket.
    pub keep: &'a [RawFd],
    /// The process has a mount namespace of its own.
    pub mounts: bool,
}

/// Raises all walls around this thread, and around threads that it starts later, except
/// [`Wall::SystemCalls`]. Call this before the process has other threads.
///
/// Then start the threads, and call [`finish`].
#[must_use]
pub fn seal(cell: &Sealed<'_>) -> Walls {
    let mut walls = Walls::default();
    let failed = |error: io::Error| error.to_string();
    let kept: Vec<RawFd> = cell.keep.iter().copied().chain([cell.control.as_raw_fd()]).collect();
    walls.note(Wall::Descriptors, privileges::close_others(&kept).map_err(failed));
    let left = match cell.mounts {
        true => root::leave().map_err(failed),
        false => Err("it needs a user and a mount namespace of its own".to_owned()),
    };
    walls.note(Wall::Root, left);
    privileges::drop_bounds();
    walls.note(Wall::Capabilities, privileges::drop_capabilities().map_err(failed));
    walls.note(Wall::Memory, privileges::hide_memory().map_err(failed));
    walls.note(Wall::NoNewPrivileges, privileges::forbid_new().map_err(failed));
    for (wall, done) in landlock::restrict([true; 3]) {
        walls.note(wall, done);
    }
    walls
}

/// Forbids all system calls that a sealed program does not need, in all threads, and reports the
/// walls. From now on the program opens no file, makes no socket and runs no program: a call that
/// is not on [`calls`]' list ends it, after the call was reported.
///
/// # Errors
/// The creator is gone.
pub fn finish(control: BorrowedFd<'_>, mut walls: Walls) -> io::Result<Walls> {
    walls.note(Wall::SystemCalls, calls::forbid(control).map_err(|error| error.to_string()));
    match send(control, &Report::Sealed(walls.clone())) {
        true => Ok(walls),
        false => Err(io::ErrorKind::BrokenPipe.into()),
    }
}
