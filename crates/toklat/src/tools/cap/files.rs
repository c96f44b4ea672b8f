//! A capture in several files, by size or time, with tcpdump's `-C`, `-G` and `-W`.
#![allow(unsafe_code, reason = "local time is the C library's")]

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::super::pcap::{CaptureWriter, Captured, Output};

/// When a file is full, and what the next one is called.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct Rotation {
    /// Start a new file after this many millions of bytes: FILE, FILE1, FILE2 and so on
    #[arg(short = 'C', long, value_name = "MB", requires = "write", group = "rotation",
        value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub file_size: Option<u64>,
    /// Start a new file after this many seconds; FILE may contain a time, as in vale0-%H%M%S.pcapng
    /// (strftime)
    #[arg(short = 'G', long, value_name = "SECONDS", requires = "write", group = "rotation",
        value_parser = clap::value_parser!(u64).range(1..))]
    pub rotate: Option<u64>,
    /// Maximum number of files: with -C, then overwrite the first; with -G, then end
    #[arg(short = 'W', long, value_name = "N", requires = "rotation",
        value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub files: Option<u32>,
}

impl Rotation {
    /// Whether the capture has more than one file.
    #[must_use]
    pub const fn is_wanted(&self) -> bool {
        self.file_size.is_some() || self.rotate.is_some()
    }
}

/// Makes the file at `path`, or empties it. The capture of one user is not for another: links are
/// not followed, and files of other users than this one and root are left as they are.
///
/// # Errors
/// The kernel's error, or the file is a link or another user's.
pub(super) fn create(path: &Path) -> io::Result<File> {
    let refused = |what: &str| Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    let mut how = OpenOptions::new();
    how.write(true).create(true).truncate(false).custom_flags(libc::O_NOFOLLOW);
    let file = match how.open(path) {
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
            return refused(
                "it is a symbolic link; name the file that it leads to, or - for stdout",
            );
        }
        opened => opened?,
    };
    let about = file.metadata()?;
    if ![0, rustix::process::geteuid().as_raw()].contains(&about.uid()) {
        return refused("it is another user's; remove it, or name another file");
    }
    if about.is_file() {
        file.set_len(0)?;
    }
    Ok(file)
}

/// A file that counts its bytes.
struct Counted {
    file: BufWriter<File>,
    bytes: u64,
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.file.write(bytes)?;
        self.bytes += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The files of a capture; one is open.
pub struct Files<'a> {
    rotation: &'a Rotation,
    base: &'a Path,
    port: &'a str,
    snaplen: u32,
    current: Option<CaptureWriter<Counted>>,
    /// In the current series of files that are split by size: the number of files before the
    /// current one.
    number: u64,
    /// Files by time that were started.
    begun: u32,
    since: Duration,
}

impl<'a> Files<'a> {
    /// Starts the first file at the first frame.
    #[must_use]
    pub const fn new(rotation: &'a Rotation, base: &'a Path, port: &'a str, snaplen: u32) -> Self {
        let since = Duration::ZERO;
        Self { rotation, base, port, snaplen, current: None, number: 0, begun: 0, since }
    }

    /// Starts a file if the current one is full, or there is none.
    fn rotate(&mut self, at: Duration) -> io::Result<()> {
        let period = self.rotation.rotate.map(Duration::from_secs);
        let Some(current) = &self.current else { return self.begin(at) };
        if period.is_some_and(|period| at.saturating_sub(self.since) >= period) {
            if self.ends_by_time() {
                return Ok(());
            }
            self.number = 0;
            return self.begin(at);
        }
        let full =
            self.rotation.file_size.is_some_and(|mb| current.get_ref().bytes > mb * 1_000_000);
        if !full {
            return Ok(());
        }
        self.number += 1;
        self.open(self.since)
    }

    /// Whether the last file that -W allows with -G exists.
    fn ends_by_time(&self) -> bool {
        // With both limits, -W is the length of the ring, as in tcpdump.
        self.rotation.file_size.is_none()
            && self.rotation.files.is_some_and(|files| self.begun >= files)
    }

    fn begin(&mut self, at: Duration) -> io::Result<()> {
        (self.since, self.begun) = (at, self.begun.saturating_add(1));
        self.open(at)
    }

    fn open(&mut self, at: Duration) -> io::Result<()> {
        if let Some(mut last) = self.current.take() {
            last.flush()?;
        }
        let path = self.path(at);
        let failed = |e: io::Error| {
            io::Error::new(e.kind(), format!("Cannot write {}: {e}", path.display()))
        };
        let file = Counted { file: BufWriter::new(create(&path).map_err(failed)?), bytes: 0 };
        self.current = Some(CaptureWriter::new(file, self.port, self.snaplen)?);
        Ok(())
    }

    /// The name of the current file.
    fn path(&self, at: Duration) -> PathBuf {
        let mut name = match self.rotation.rotate {
            Some(_) => local_time(self.base, at),
            None => self.base.as_os_str().to_owned(),
        };
        match (self.rotation.file_size, self.rotation.files) {
            (Some(_), Some(files)) => {
                let digits = (files - 1).to_string().len();
                name.push(format!("{:0digits$}", self.number % u64::from(files)));
            }
            (Some(_), None) if self.number > 0 => name.push(self.number.to_string()),
            _ => {}
        }
        name.into()
    }
}

impl Output for Files<'_> {
    fn frame(&mut self, frame: &Captured<'_>) -> io::Result<()> {
        self.rotate(frame.at)?;
        if self.is_complete(frame.at) {
            return Ok(());
        }
        self.current.as_mut().map_or(Ok(()), |current| current.frame(frame))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.current.as_mut().map_or(Ok(()), Output::flush)
    }

    fn is_complete(&self, at: Duration) -> bool {
        let period = self.rotation.rotate.map(Duration::from_secs);
        let over = period.is_some_and(|period| at.saturating_sub(self.since) >= period);
        self.current.is_some() && over && self.ends_by_time()
    }
}

impl std::fmt::Debug for Files<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Files({})", self.base.display())
    }
}

/// Replaces the `%` conversions of a name by the local time, as strftime(3) does.
fn local_time(format: &Path, at: Duration) -> std::ffi::OsString {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let as_it_is = || format.as_os_str().to_owned();
    let Ok(format_text) = CString::new(format.as_os_str().as_bytes()) else { return as_it_is() };
    let seconds = libc::time_t::try_from(at.as_secs()).unwrap_or(libc::time_t::MAX);
    // SAFETY: a struct tm of zeros is a valid one.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both point to values that live during the call.
    if unsafe { libc::localtime_r(&raw const seconds, &raw mut parts) }.is_null() {
        return as_it_is();
    }
    let mut name = vec![0_u8; 4096];
    // SAFETY: at most `name.len()` bytes are written; the format ends with a zero, and the time is
    // a valid one.
    let len = unsafe {
        libc::strftime(name.as_mut_ptr().cast(), name.len(), format_text.as_ptr(), &raw const parts)
    };
    if len == 0 {
        return as_it_is();
    }
    name.truncate(len);
    std::ffi::OsString::from_vec(name)
}

#[cfg(test)]
mod tests {
    use super::super::super::pcap::{self, Direction};
    use super::*;

    const START: Duration = Duration::from_secs(1_700_000_000);

    /// Writes frames of 1,000 bytes at these seconds; returns the files' names and frames.
    fn written(
        rotation: &Rotation,
        name: &str,
        seconds: impl Iterator<Item = u64>,
    ) -> Vec<(String, usize)> {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join(name);
        let mut files = Files::new(rotation, &base, "vale0:p1", 65_535);
        for at in seconds.map(|second| START + Duration::from_secs(second)) {
            if files.is_complete(at) {
                break;
            }
            let frame = Captured {
                at,
                port: "vale0:p1",
                direction: Direction::Sent,
                len: 1000,
                bytes: &[1; 1000],
                comment: None,
            };
            files.frame(&frame).unwrap();
        }
        files.flush().unwrap();
        let mut all: Vec<_> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|file| {
                let file = file.unwrap();
                let recording = pcap::read(File::open(file.path()).unwrap()).unwrap();
                (file.file_name().into_string().unwrap(), recording.len())
            })
            .collect();
        all.sort();
        all
    }

    #[test]
    fn files_of_a_size_are_numbered_and_a_ring_begins_again() {
        let by_size = Rotation { file_size: Some(1), ..Rotation::default() };
        let all = written(&by_size, "out", std::iter::repeat_n(0, 2500));
        let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["out", "out1", "out2"]);
        assert_eq!(all.iter().map(|(_, frames)| frames).sum::<usize>(), 2500, "{all:?}");
        let ring = Rotation { files: Some(11), ..by_size };
        let all = written(&ring, "out", std::iter::repeat_n(0, 2500));
        assert_eq!(all[0].0, "out00", "{all:?}");
        let ring = Rotation { files: Some(2), ..ring };
        let all = written(&ring, "out", std::iter::repeat_n(0, 2500));
        assert_eq!(all.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["out0", "out1"]);
        assert!(all[0].1 < all[1].1, "the third file is the first one again: {all:?}");
    }

    #[test]
    fn files_by_time_bear_it_and_end_after_so_many() {
        let by_time = Rotation { rotate: Some(10), ..Rotation::default() };
        let all = written(&by_time, "out-%s", 0..25);
        let at = |second: u64| format!("out-{}", START.as_secs() + second);
        assert_eq!(all, [(at(0), 10), (at(10), 10), (at(20), 5)]);
        let ended = Rotation { files: Some(2), ..by_time };
        assert_eq!(written(&ended, "out-%s", 0..25), [(at(0), 10), (at(10), 10)]);
        // Without a time in the name, the same file is written again.
        assert_eq!(written(&by_time, "out", 0..25), [("out".to_owned(), 5)]);
    }

    #[test]
    fn regression_links_and_files_of_others_are_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let [link, secret, other] = ["link", "secret", "other"].map(|name| dir.path().join(name));
        std::fs::write(&secret, "secret").unwrap();
        std::os::unix::fs::symlink(&secret, &link).unwrap();
        let said = create(&link).unwrap_err().to_string();
        assert!(said.contains("symbolic link"), "{said}");
        assert_eq!(std::fs::read(&secret).unwrap(), b"secret");
        create(&secret).unwrap();
        assert_eq!(std::fs::metadata(&secret).unwrap().len(), 0, "an own file is emptied");
        std::fs::write(&other, "other's").unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, 0o666.into()).unwrap();
        let _reader =
            File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&fifo).unwrap();
        create(&fifo).unwrap();
        if !rustix::process::geteuid().is_root() {
            return;
        }
        for path in [&other, &fifo] {
            std::os::unix::fs::chown(path, Some(54_321), None).unwrap();
            assert!(create(path).is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied));
        }
        assert_eq!(std::fs::read(&other).unwrap(), b"other's");
    }
}
