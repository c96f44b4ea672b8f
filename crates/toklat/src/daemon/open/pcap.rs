//! Capture files.

use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};

use dataplane::attach::buffered::pcap::{PcapReadConfig, PcapWriteConfig};
use dataplane::config::Attachment;
use topology::{PcapRead, PcapWrite};

use super::super::system;
use super::{Future, Open, Opened, Opening, Written};
use crate::api::{ApiError, ErrorCode};

impl Open for PcapRead {
    fn open<'a>(&'a self, _: Opening<'a>) -> Future<'a, Opened> {
        let Self { repeat, speed_percent, .. } = *self;
        let how = PcapReadConfig { repeat, speed_percent }.into();
        let file = open_file(&self.path, None);
        Box::pin(async move { Ok(Opened::ours(how, vec![file?])) })
    }

    fn is(&self, attachment: &Attachment) -> bool {
        matches!(attachment, Attachment::PcapRead(_))
    }
}

impl Open for PcapWrite {
    fn open<'a>(&'a self, at: Opening<'a>) -> Future<'a, Opened> {
        let file = open_file(&self.path, Some(at.written));
        Box::pin(async move { Ok(Opened::ours(PcapWriteConfig {}.into(), vec![file?])) })
    }

    fn is(&self, attachment: &Attachment) -> bool {
        matches!(attachment, Attachment::PcapWrite(_))
    }

    fn file(&self) -> Option<&str> {
        Some(&self.path)
    }
}

/// Opens a file for reading or, if `written` is set, for writing.
fn open_file(path: &str, written: Option<Written>) -> Result<OwnedFd, ApiError> {
    let failed = |e| system(&format!("Cannot open {path}"), e);
    let mut how = OpenOptions::new();
    // A named pipe without a reader must not block the supervisor. A link that another user put in
    // the file's place must not be followed.
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOFOLLOW;
    how.custom_flags(flags.bits().cast_signed());
    let write = written.is_some();
    how.read(!write).append(write).create(write);
    let file = how.open(path).map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => {
            let reason = format!("{path} is a symbolic link");
            ApiError::new(ErrorCode::BadRequest, reason, "name the file that it leads to")
        }
        _ => failed(error),
    })?;
    let kind = file.metadata().map_err(failed)?.file_type();
    if !kind.is_file() && !kind.is_fifo() {
        let reason = format!("{path} is not a file");
        return Err(ApiError::new(ErrorCode::BadRequest, reason, "name a pcap file"));
    }
    if written == Some(Written::Emptied) && kind.is_file() {
        file.set_len(0).map_err(failed)?;
    }
    Ok(file.into())
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
        std::fs::write(&path, b"old").unwrap();
        assert_eq!(read.open(Opening::of_test()).await.unwrap().fds.len(), 1);
        assert_eq!(std::fs::read(&path).unwrap(), b"old", "reading emptied the file");
        let opened = write.open(Opening::of_test()).await.unwrap();
        rustix::io::write(&opened.fds[0], b"+").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"old+", "a port that goes on lost its file");
        write.open(emptied()).await.unwrap();
        assert!(std::fs::read(&path).unwrap().is_empty());
    }
}
