//! The parts that all families share.
//!
//! | file | what it is |
//! |---|---|
//! | [`device`] | what a model is to a bus: registers, interrupts, queues |
//! | [`kind`] | the table of NICs that there are |
//! | [`regs`] | a row for each register: decoding, masks, resets, documentation |
//! | `ring` | places in a ring of descriptors |
//! | `fault` | what a driver can do wrong: number, name, sentence |
//! | [`remote`] | guest memory that is reached by messages |
//! | [`pci`] | configuration space |
//! | `combine` | doorbells that are held back |
//! | `walk` | the descriptors that a turn may read |

pub(crate) mod combine;
pub mod device;
pub(crate) mod fault;
pub mod kind;
pub mod pci;
pub mod regs;
pub mod remote;
pub(crate) mod ring;
pub(crate) mod walk;
