//! Cards that toklat's own drivers drive by VFIO: a process for each, outside the data process.
//!
//! ```text
//!   supervisor             card process                                 card
//!     starts       ------>   opens card and port, then raises walls       |
//!     serves ring  <------   is the port's client: its region is what ----+ reads and writes,
//!     reads lines  <------   reports state and counts                       and nothing else
//! ```
//!
//! Its end closes the card's file: the kernel takes the card's bus mastering away and resets it.
//! The port then waits, and the process is started again.

pub mod driven;
mod keep;
pub mod process;

pub use self::keep::{Start, keep};
