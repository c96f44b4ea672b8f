//! The parts that all families share.
//!
//! | file | what it is |
//! |---|---|
//! | [`device`] | the interface of a model to its bus: registers, interrupts, queues |
//! | [`kind`] | the table of all NICs |
//! | [`regs`] | a row for each register: decoding, masks, resets, documentation |
//! | `ring` | places in a ring of descriptors |
//! | `fault` | driver errors: number, name, sentence |
//! | [`remote`] | guest memory that is reached by messages |
//! | [`pci`] | configuration space |
//! | `combine` | combining doorbells |
//! | `walk` | the limit on descriptors read in a turn |

pub(crate) mod combine;
pub mod device;
pub(crate) mod fault;
pub mod kind;
pub mod pci;
pub mod regs;
pub mod remote;
pub(crate) mod ring;
pub(crate) mod walk;
