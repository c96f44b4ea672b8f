//! What a test says to those who read the end of the run.

use std::fs::File;
use std::io::Write;

/// The seed of a test that explores: a new one in each run, which it prints, or the one that
/// `TOKLAT_FUZZ_SEED` names.
///
/// # Panics
/// That is no number.
#[must_use]
pub fn seed() -> u32 {
    const SET: &str = "TOKLAT_FUZZ_SEED";
    let seed = std::env::var(SET).map_or_else(
        |_| {
            let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
            now.subsec_nanos() ^ now.as_secs() as u32 ^ std::process::id()
        },
        |seed| seed.parse().expect("a number"),
    );
    println!("seed {seed} ({SET}={seed} repeats this run)");
    seed
}

/// Reports that a test cannot run here. The last lines of the test run show it.
pub fn skip(test: &str, why: &str) {
    let Some(log) = std::env::var_os("TOKLAT_SKIP_LOG") else {
        return eprintln!("SKIPPED {test}: {why}");
    };
    let mut log = File::options().create(true).append(true).open(log).unwrap();
    // Uses one call, because other programs append to the file, too.
    log.write_all(format!("{test}: {why}\n").as_bytes()).unwrap();
}
