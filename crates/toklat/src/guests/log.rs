//! The files for the output of guests: one each, of bounded size.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes of a log before it becomes the old one (`NAME.log.1`), which replaces the one before.
const MAX_FILE: u64 = 1 << 20;
/// Bytes that are read in a turn.
pub const PIECE: usize = 16 << 10;
/// Bytes in an interval. A guest that prints more waits.
const BUDGET: usize = 256 << 10;
/// The interval.
pub const INTERVAL: Duration = Duration::from_millis(100);
/// Longest line that is printed in one piece.
const MAX_LINE: usize = 1024;

/// A guest's log.
#[derive(Debug)]
pub struct Log {
    path: PathBuf,
    len: Option<u64>,
    since: Instant,
    spent: usize,
    /// The start of a line that is not complete, if lines are printed.
    line: Vec<u8>,
}

impl Log {
    pub fn new(directory: &Path, name: &str) -> Self {
        let path = path(directory, name);
        Self { path, len: None, since: Instant::now(), spent: 0, line: Vec::new() }
    }

    /// Writes a piece. Returns false if the guest has printed enough for this interval.
    pub fn write(&mut self, bytes: &[u8], now: Instant) -> bool {
        // A full disk costs the log, and nothing else.
        let _ = self.append(bytes);
        if now.duration_since(self.since) >= INTERVAL {
            (self.since, self.spent) = (now, 0);
        }
        self.spent += bytes.len();
        self.spent < BUDGET
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut len = match self.len {
            Some(len) => len,
            None => std::fs::metadata(&self.path).map_or(0, |data| data.len()),
        };
        if len >= MAX_FILE {
            std::fs::rename(&self.path, self.path.with_extension("log.1"))?;
            len = 0;
        }
        File::options().create(true).append(true).open(&self.path)?.write_all(bytes)?;
        self.len = Some(len + bytes.len() as u64);
        Ok(())
    }

    /// Prints the complete lines, after the guest's name.
    pub fn print(&mut self, name: &str, bytes: &[u8]) {
        for byte in bytes {
            if *byte == b'\n' || self.line.len() >= MAX_LINE {
                let line = printable(&self.line);
                // A terminal that is gone is no reason to end.
                let _ = writeln!(io::stdout().lock(), "{name} | {line}");
                self.line.clear();
            }
            if *byte != b'\n' {
                self.line.push(*byte);
            }
        }
    }
}

/// The path of a guest's log.
pub fn path(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.log"))
}

/// Reads what is left of a guest's output.
///
/// # Errors
/// The kernel's error.
pub fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    for path in [path.with_extension("log.1"), path.to_owned()] {
        match File::open(path) {
            // A piece may be written meanwhile.
            Ok(file) => drop(file.take(MAX_FILE + PIECE as u64).read_to_end(&mut bytes)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(printable(&bytes))
}

/// A guest's output without characters that control a terminal.
pub fn printable(bytes: &[u8]) -> String {
    let safe = |c: char| if c.is_control() && c != '\t' && c != '\n' { '\u{fffd}' } else { c };
    String::from_utf8_lossy(bytes).chars().map(safe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_keeps_the_newest_two_pieces_of_a_mebibyte() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = Log::new(dir.path(), "web");
        for _ in 0..5 * (MAX_FILE as usize / PIECE) {
            log.write(&[b'x'; PIECE], Instant::now());
        }
        let sizes =
            ["web.log", "web.log.1"].map(|name| dir.path().join(name).metadata().unwrap().len());
        assert!(sizes.iter().all(|size| *size <= MAX_FILE), "{sizes:?}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
        let all = read(&path(dir.path(), "web")).unwrap();
        assert_eq!(all.len() as u64, sizes.iter().sum::<u64>());
        assert_eq!(read(&path(dir.path(), "other")).unwrap(), "");
    }

    #[test]
    fn a_guest_that_prints_too_much_waits_for_the_next_interval() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, start) = (Log::new(dir.path(), "web"), Instant::now());
        let pieces = (0..1000).take_while(|_| log.write(&[b'x'; PIECE], start)).count();
        assert_eq!(pieces, BUDGET / PIECE - 1);
        assert!(log.write(b"x", start + INTERVAL));
    }

    #[test]
    fn escape_sequences_never_reach_a_terminal() {
        assert_eq!(printable(b"a\x1b[2Jb\r\tc"), "a\u{fffd}[2Jb\u{fffd}\tc");
    }
}
