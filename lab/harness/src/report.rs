//! What a test says to those who read the end of the run.

use std::fs::File;
use std::io::Write;

/// Reports that a test cannot run here. The last lines of the test run show it.
pub fn skip(test: &str, why: &str) {
    let Some(log) = std::env::var_os("TOKLAT_SKIP_LOG") else {
        return eprintln!("SKIPPED {test}: {why}");
    };
    let mut log = File::options().create(true).append(true).open(log).unwrap();
    // Uses one call, because other programs append to the file, too.
    log.write_all(format!("{test}: {why}\n").as_bytes()).unwrap();
}
