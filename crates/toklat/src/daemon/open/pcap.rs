//! Capture files.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use dataplane::attach::buffered::pcap::{PcapReadConfig, PcapWriteConfig};
use dataplane::config::Attachment;
use topology::{PcapRead, PcapWrite};

use super::super::front_ends::{Waiting, check_directory};
use super::super::objects;
use super::super::system;
use super::{Following, Future, Open, Opened, Opening, Reach, Written, blocking};
use crate::api::{ApiError, ErrorCode};

/// The most bytes of a file in the directory for captures of clients over TCP.
const CAPTURE: u64 = 64 << 20;
/// The most files there: 1 GiB in all.
const CAPTURES: usize = 16;

impl Open for PcapRead {
    fn reach(&self) -> Reach<'_> {
        Reach::Capture(&self.path)
    }

    fn open<'a>(&'a self, _: Opening<'a>) -> Future<'a, Opened> {
        let Self { repeat, speed_percent, .. } = *self;
        let how = PcapReadConfig { repeat, speed_percent }.into();
        let file = open_file(&self.path, None);
        Box::pin(async move { Ok(Opened::ours(how, vec![file?])) })
    }

    fn probe(&self, _: u16) -> Future<'_, ()> {
        let path = self.path.clone();
        blocking(move || check_file(&path, false))
    }

    fn is(&self, attachment: &Attachment) -> bool {
        matches!(attachment, Attachment::PcapRead(_))
    }

    fn follow(
        &self,
        name: (String, String),
        Following { fds, notices, .. }: Following<'_>,
    ) -> Result<Option<Waiting>, ApiError> {
        Ok(Some(Waiting::watch(name, notices, objects::file(&self.path, fds.first()))))
    }
}

impl Open for PcapWrite {
    fn reach(&self) -> Reach<'_> {
        Reach::Capture(&self.path)
    }

    fn open<'a>(&'a self, at: Opening<'a>) -> Future<'a, Opened> {
        let max_bytes = is_bounded(&self.path, at.captures).then_some(CAPTURE);
        let room = check_room(&self.path, at.captures);
        let file = room.and_then(|()| open_file(&self.path, Some(at.written)));
        let how = PcapWriteConfig { max_bytes }.into();
        Box::pin(async move { Ok(Opened::ours(how, vec![file?])) })
    }

    fn probe(&self, _: u16) -> Future<'_, ()> {
        let path = self.path.clone();
        blocking(move || check_file(&path, true))
    }

    fn is(&self, attachment: &Attachment) -> bool {
        matches!(attachment, Attachment::PcapWrite(_))
    }

    fn follow(
        &self,
        name: (String, String),
        Following { fds, notices, .. }: Following<'_>,
    ) -> Result<Option<Waiting>, ApiError> {
        Ok(Some(Waiting::watch(name, notices, objects::file(&self.path, fds.first()))))
    }

    fn file(&self) -> Option<&str> {
        Some(&self.path)
    }
}

/// True for a file in the directory for captures of clients over TCP, which must not fill the disk.
fn is_bounded(path: &str, captures: &Path) -> bool {
    Path::new(path).parent() == Some(captures)
}

/// Checks that there may be one more file in the directory for captures, if it would be one.
fn check_room(path: &str, captures: &Path) -> Result<(), ApiError> {
    if !is_bounded(path, captures) || Path::new(path).exists() {
        return Ok(());
    }
    let files = std::fs::read_dir(captures).into_iter().flatten().take(CAPTURES).count();
    if files < CAPTURES {
        return Ok(());
    }
    let reason = format!("{} has {CAPTURES} files, the most there may be", captures.display());
    let remedy = "name one of them again, which empties it, or remove some on the daemon's host";
    Err(ApiError::new(ErrorCode::Limit, reason, remedy))
}

/// Opens a file for reading or, if `written` is set, for writing. A file with content is written
/// only if it is a capture.
fn open_file(path: &str, written: Option<Written>) -> Result<OwnedFd, ApiError> {
    let write = written.is_some();
    let mut how = OpenOptions::new();
    let file = open_checked(path, how.read(!write).append(write).create(write), write)?;
    if written == Some(Written::Emptied) && file.metadata().is_ok_and(|about| about.is_file()) {
        file.set_len(0).map_err(|e| system(&format!("Cannot open {path}"), e))?;
    }
    Ok(file.into())
}

/// Opens what may be a port's file: a pipe, a capture, or a file that is only read.
fn open_checked(path: &str, how: &mut OpenOptions, write: bool) -> Result<File, ApiError> {
    let failed = |e| system(&format!("Cannot open {path}"), e);
    let file = open_here(path, how)?;
    let about = file.metadata().map_err(failed)?;
    if !about.is_file() && !about.file_type().is_fifo() {
        let reason = format!("{path} is not a file");
        return Err(ApiError::new(ErrorCode::BadRequest, reason, "name a pcap file"));
    }
    if !write || !about.is_file() || about.len() == 0 {
        return Ok(file);
    }
    // The file is open for appending only, so its head is read through another descriptor.
    let head = open_here(path, OpenOptions::new().read(true))?;
    let other = head.metadata().map_err(failed)?;
    let is_same = (other.dev(), other.ino()) == (about.dev(), about.ino());
    if !is_same || !is_capture(&head).map_err(failed)? {
        let reason = format!("{path} is no capture, and is left as it is");
        let remedy = "name a file that does not exist, or remove this one";
        return Err(ApiError::new(ErrorCode::BadRequest, reason, remedy));
    }
    Ok(file)
}

/// Checks that a port could open a file, and changes nothing: a pipe's other end would notice.
fn check_file(path: &str, write: bool) -> Result<(), ApiError> {
    match std::fs::symlink_metadata(path) {
        Ok(about) if about.file_type().is_fifo() => Ok(()),
        Err(error) if write && error.kind() == io::ErrorKind::NotFound => {
            check_directory(Path::new(path))
        }
        _ => {
            let mut how = OpenOptions::new();
            open_checked(path, how.read(!write).append(write), write).map(drop)
        }
    }
}

/// Opens the file at `path` itself. A named pipe without a reader must not block the supervisor,
/// and a link that another user put in the file's place must not be followed.
fn open_here(path: &str, how: &mut OpenOptions) -> Result<File, ApiError> {
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOFOLLOW;
    how.custom_flags(flags.bits().cast_signed());
    how.open(path).map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => {
            let reason = format!("{path} is a symbolic link");
            ApiError::new(ErrorCode::BadRequest, reason, "name the file that it leads to")
        }
        _ => system(&format!("Cannot open {path}"), error),
    })
}

/// True if a file begins as captures do.
fn is_capture(file: &File) -> io::Result<bool> {
    let mut head = [0; 12];
    let len = file.read_at(&mut head, 0)?;
    Ok(pcap::file::is_capture(&head[..len]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn files_are_opened_and_a_missing_one_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.pcap").to_str().unwrap().to_owned();
        let read = PcapRead { path: path.clone(), repeat: false, speed_percent: 100 };
        let write = PcapWrite { path: path.clone() };
        let emptied = || Opening { written: Written::Emptied, ..Opening::of_test() };
        let missing = read.open(Opening::of_test()).await.unwrap_err();
        assert_eq!(missing.code, ErrorCode::NotFound);
        let elsewhere = dir.path().join("private");
        std::fs::write(&elsewhere, b"secret").unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        write.open(emptied()).await.unwrap_err();
        assert_eq!(std::fs::read(&elsewhere).unwrap(), b"secret", "a link led it elsewhere");
        std::fs::remove_file(&path).unwrap();
        let old: &[u8] = &[0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0];
        std::fs::write(&path, old).unwrap();
        assert_eq!(read.open(Opening::of_test()).await.unwrap().fds.len(), 1);
        assert_eq!(std::fs::read(&path).unwrap(), old, "reading emptied the file");
        let opened = write.open(Opening::of_test()).await.unwrap();
        rustix::io::write(&opened.fds[0], b"+").unwrap();
        let longer = [old, b"+"].concat();
        assert_eq!(std::fs::read(&path).unwrap(), longer, "a port that goes on lost its file");
        write.open(emptied()).await.unwrap();
        assert!(std::fs::read(&path).unwrap().is_empty());
    }

    /// Neither an operator's mistake nor a client over TCP overwrites a file that is no capture.
    #[tokio::test]
    async fn a_file_that_is_no_capture_is_neither_emptied_nor_appended_to() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("authorized_keys").to_str().unwrap().to_owned();
        let write = PcapWrite { path: path.clone() };
        for content in [
            &b"ssh-ed25519 AAAA root@host\n"[..],
            b"\n",
            b"{}",
            &[0x0a, 0x0d, 0x0d, 0x0a],
            &[0x0a, 0x0d, 0x0d, 0x0a, 0, 0, 0, 28, 1, 2, 3, 4],
            &[0xa1, 0xb2],
        ] {
            std::fs::write(&path, content).unwrap();
            for written in [Written::Emptied, Written::Kept] {
                let at = Opening { written, ..Opening::of_test() };
                let refused = write.open(at).await.unwrap_err();
                assert_eq!(refused.code, ErrorCode::BadRequest, "{refused}");
                assert!(refused.reason.contains("authorized_keys"), "{refused}");
                assert_eq!(std::fs::read(&path).unwrap(), content, "{written:?}");
            }
        }
        for magic in [
            &[0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a][..],
            &[0x0a, 0x0d, 0x0d, 0x0a, 0, 0, 0, 28, 0x1a, 0x2b, 0x3c, 0x4d],
            &[0xa1, 0xb2, 0xc3, 0xd4],
            &[0x4d, 0x3c, 0xb2, 0xa1],
        ] {
            std::fs::write(&path, magic).unwrap();
            write.open(Opening { written: Written::Emptied, ..Opening::of_test() }).await.unwrap();
            assert!(std::fs::read(&path).unwrap().is_empty(), "{magic:?}");
        }
    }
}
