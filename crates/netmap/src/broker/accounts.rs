//! Charges: all that a user's programs make here is charged to the user before it is made.

use std::fmt::Debug;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;

/// What a user is charged for.
#[derive(Clone, Copy, Debug)]
pub enum Held<'a> {
    /// An open descriptor.
    Opened,
    /// An adapter: a port, an end of a pipe, a monitor; with the descriptor that wakes it.
    Adapter,
    /// A port made by `VALE_NEWIF`, besides its adapter: it stays when the program ends.
    PersistentPort,
    /// A region, with its number, its file and its bell. Its memory is this file.
    Region(BorrowedFd<'a>),
}

/// A charge. Dropping it ends the charge.
pub type Charge = Box<dyn Send + Sync>;

/// The accounts of users. Asked while a request is carried out, so they never wait.
pub trait Accounts: Debug + Send + Sync {
    /// Charges a user.
    ///
    /// # Errors
    /// The error number for the program: the user's quota is exhausted.
    fn charge(&self, uid: u32, held: Held<'_>) -> Result<Charge, Errno>;
}
