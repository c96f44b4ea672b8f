//! The test guest with the program in it.

use tempfile::TempDir;
use vm::guest;

use crate::guests::can_run;
use crate::{program, skip};

/// The program in the guest.
pub const PROGRAM: &str = "/host/toklat";

/// Returns a directory with the test guest and, in it, the program and this machine's libraries;
/// skips the test if they are missing.
pub fn guest_with_program(test: &str) -> Option<TempDir> {
    if !can_run(test) {
        return None;
    }
    let here = tempfile::tempdir().unwrap();
    match vm::inside::with_program(&guest::find().unwrap(), here.path(), program()) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            skip(test, "strip (binutils) or ldd is missing");
            None
        }
        made => made.map(|()| Some(here)).unwrap(),
    }
}
