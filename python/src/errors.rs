//! Errors of the ring library as exceptions: one class for each kind that a program can answer.

use std::error::Error as StdError;

use netring::PortError;
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(toklat, Error, PyException, "What the library raises.");
create_exception!(toklat, OpenError, Error, "The port could not be opened.");
create_exception!(toklat, InvalidName, OpenError, "The name is not a port's.");
create_exception!(toklat, NoDaemon, OpenError, "No daemon listens.");
create_exception!(toklat, Denied, OpenError, "The daemon's socket may not be used.");
create_exception!(toklat, Refused, OpenError, "The daemon refused.");
create_exception!(toklat, AlreadyOpen, Refused, "Another client has the port.");
create_exception!(toklat, NoSwitch, Refused, "The switch or port does not exist.");
create_exception!(
    toklat,
    Fault,
    Error,
    "The switch put the port into its error state; call reset()."
);
create_exception!(toklat, PeerFault, Error, "The other side broke the rings; close the port.");
create_exception!(toklat, Gone, Error, "The port was removed, or its daemon ended; call reopen().");
create_exception!(
    toklat,
    NotReset,
    Error,
    "The port cannot be reset; close it, and open it again."
);
create_exception!(toklat, Full, Error, "The ring has no room.");
create_exception!(toklat, Busy, Error, "Another thread uses the port.");
create_exception!(toklat, Lent, Error, "A batch is still lent; release it first.");
create_exception!(toklat, Released, Error, "The batch was released, or the port closed.");

/// The error and all of its sources in one line.
fn told(error: &dyn StdError) -> String {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        message = format!("{message}: {error}");
        source = error.source();
    }
    message
}

/// The exception for an error of an open port.
pub fn of_port(error: PortError) -> PyErr {
    let message = told(&error);
    match error {
        PortError::Fault(_) => Fault::new_err(format!("{message}; call reset()")),
        PortError::Peer(_) => PeerFault::new_err(message),
        PortError::Gone => Gone::new_err(format!("{message}; call reopen()")),
        PortError::NotReset(_) | PortError::NotRestartable => NotReset::new_err(message),
        _ => Error::new_err(message),
    }
}

/// The exception for an error of `open` or `reopen`.
pub fn of_open(error: netring::OpenError) -> PyErr {
    const ENOENT: i32 = 2;
    const EBUSY: i32 = 16;
    let message = told(&error);
    match error {
        netring::OpenError::Name(_) => InvalidName::new_err(message),
        netring::OpenError::NoDaemon { .. } => NoDaemon::new_err(message),
        netring::OpenError::Denied { .. } => Denied::new_err(message),
        netring::OpenError::Refused { errno: EBUSY, .. } => AlreadyOpen::new_err(message),
        netring::OpenError::Refused { errno: ENOENT, .. } => NoSwitch::new_err(message),
        netring::OpenError::Refused { .. } => Refused::new_err(message),
        _ => OpenError::new_err(message),
    }
}
