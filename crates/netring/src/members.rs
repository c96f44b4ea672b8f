//! What a process asks the daemon for to be a part of a trusted switch.

use std::os::fd::OwnedFd;
use std::path::Path;

use crate::ask::{OpenError, ask};
use crate::attach::{Request, op};

/// The state memory of a trusted switch, and what it takes to find the parts of it.
#[derive(Debug)]
pub struct Shape {
    /// The memory file.
    pub state: OwnedFd,
    /// The maximum number of ports of the switch.
    pub max_ports: u16,
    /// Entries of the switch's forwarding table.
    pub fdb_entries: u32,
    /// The maximum number of frames of a turn.
    pub batch: u16,
}

/// Asks the daemon for the state memory of a trusted switch.
///
/// # Errors
/// The daemon refused, or there is none.
pub fn ask_state(directory: &Path, switch: &str) -> Result<Shape, OpenError> {
    let (reply, fds) = ask(directory, &Request::new(op::JOIN, switch), &[])?;
    let [state] = <[OwnedFd; 1]>::try_from(fds).map_err(|_| descriptors())?;
    let number = |n: u32| u16::try_from(n).map_err(|_| OpenError::Malformed("numbers"));
    let (max_ports, batch) = (number(reply.port)?, number(reply.buf_usable)?);
    Ok(Shape { state, max_ports, fdb_entries: reply.max_frame, batch })
}

/// Asks the daemon for the memory file of a port of a trusted switch, and for the switch's end of
/// its token.
///
/// # Errors
/// The port is not open, the daemon refused, or there is none.
pub fn ask_member(directory: &Path, name: &str) -> Result<(OwnedFd, OwnedFd), OpenError> {
    let (_, fds) = ask(directory, &Request::new(op::MEMBER, name), &[])?;
    let [memory, token] = <[OwnedFd; 2]>::try_from(fds).map_err(|_| descriptors())?;
    Ok((memory, token))
}

fn descriptors() -> OpenError {
    OpenError::Malformed("number of descriptors")
}
