//! The client library for programs in Python: a thin layer over [`netring::Port`].
//!
//! `toklat/__init__.pyi` documents what programs see; its text is the contract.
//!
//! | module | what it is |
//! |---|---|
//! | `errors` | errors of the ring library as exceptions |
//! | `memory` | memory that memoryviews lie over, and that they keep mapped |
//! | `port` | a port: open, send, wait, reset, reopen |
//! | `received` | a batch of received frames |
//! | `reserved` | free slots, to be filled without a copy |

mod errors;
mod memory;
mod port;
mod received;
mod reserved;

use pyo3::prelude::*;

#[pymodule]
mod _toklat {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::errors::{
        AlreadyOpen, Busy, Denied, Error, Fault, Full, Gone, InvalidName, Lent, NoDaemon, NoSwitch,
        NotReset, OpenError, PeerFault, Refused, Released,
    };
    #[pymodule_export]
    use crate::port::Port;
    #[pymodule_export]
    use crate::received::Batch;
    #[pymodule_export]
    use crate::reserved::Reserved;

    #[pymodule_export]
    const __VERSION__: &str = env!("CARGO_PKG_VERSION");

    /// Lets programs open ports of trusted switches.
    #[pymodule_init]
    #[expect(clippy::unnecessary_wraps, reason = "PyO3 wants a result")]
    fn init(_module: &Bound<'_, PyModule>) -> PyResult<()> {
        inline::trusted::install();
        Ok(())
    }
}
