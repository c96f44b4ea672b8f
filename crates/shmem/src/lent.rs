//! A window of a file that a peer lends.
//!
//! The peer says where in the file its memory starts, and may give any number; what lies before is
//! not mapped. The window is mapped in whole pages of the file, because hugetlbfs maps and unmaps
//! only whole pages.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::io::Errno;

use crate::budget::Account;
use crate::{Mapping, RegionError};

/// Accepted sizes of a file's pages.
const PAGES: std::ops::RangeInclusive<u64> = 4096..=16 << 30;

/// A mapped window, and its offset in the file.
#[derive(Clone, Debug)]
pub struct LentWindow {
    mapping: Arc<Mapping>,
    from: u64,
}

impl LentWindow {
    /// Maps the `len` bytes at `offset` of a file, charged to `account`. Install the
    /// [guard](crate::guard) first, unless the file is sealed.
    ///
    /// # Errors
    /// [`RegionError::OverBudget`] before anything is mapped; [`RegionError::Map`] when the kernel
    /// refuses, or the bytes do not exist.
    pub fn map(
        file: BorrowedFd<'_>,
        offset: u64,
        len: u64,
        account: &Arc<Account>,
    ) -> Result<Self, RegionError> {
        let stat = rustix::fs::fstat(file).map_err(RegionError::Inspect)?;
        let page = u64::try_from(stat.st_blksize).unwrap_or(0).next_power_of_two();
        let page = page.clamp(*PAGES.start(), *PAGES.end());
        let from = offset & !(page - 1);
        let end = offset.checked_add(len.max(1)).and_then(|end| end.checked_next_multiple_of(page));
        let size = end.and_then(|end| usize::try_from(end - from).ok());
        let beyond = RegionError::Map { len: usize::MAX, source: Errno::OVERFLOW };
        let mapping = Mapping::lent(file, from, size.ok_or(beyond)?, account)?;
        Ok(Self { mapping, from })
    }

    /// The mapping of the window.
    #[must_use]
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// The mapping's offset of the `len` bytes at `offset` of the file; `None` if they are not all
    /// there.
    #[must_use]
    pub fn position(&self, offset: u64, len: u64) -> Option<usize> {
        let at = usize::try_from(offset.checked_sub(self.from)?).ok()?;
        let len = usize::try_from(len).ok()?;
        self.mapping.bytes(at, len).map(|_| at)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::MemfdFlags;

    use super::*;

    /// An offset in a sparse file costs no addresses.
    #[test]
    fn regression_what_lies_before_a_window_is_not_mapped() {
        let file = rustix::fs::memfd_create("lent", MemfdFlags::CLOEXEC).unwrap();
        let offset = (60 << 40) + 5;
        rustix::fs::ftruncate(&file, offset + 8192).unwrap();
        let account = Account::unlimited();
        let window = |offset, len| LentWindow::map(file.as_fd(), offset, len, &account);
        let there = window(offset, 4096).unwrap();
        assert_eq!(account.used().bytes, 8192);
        assert_eq!(there.position(offset, 4096), Some(5));
        assert_eq!(there.position(offset - 5, 8192), Some(0));
        for (outside, len) in
            [(0, 1), (offset - 6, 1), (offset, 8192), (u64::MAX, 1), (offset, u64::MAX)]
        {
            assert_eq!(there.position(outside, len), None, "{outside} {len}");
        }
        there.mapping().bytes(5, 2).unwrap().copy_in(b"ab");
        let mut bytes = [0; 2];
        rustix::io::pread(&file, &mut bytes, offset).unwrap();
        assert_eq!(&bytes, b"ab");
        for (offset, len) in [(u64::MAX, 1), (1, u64::MAX), (u64::MAX - 4096, 4096)] {
            assert!(matches!(window(offset, len), Err(RegionError::Map { .. })), "{offset} {len}");
        }
        assert!(window(0, 0).is_ok_and(|window| window.mapping().len() == 4096));
    }

    #[test]
    fn huge_pages_are_mapped_whole() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        let file = match rustix::fs::memfd_create("lent", flags) {
            Ok(file) if rustix::fs::ftruncate(&file, 8 << 20).is_ok() => file,
            // A kernel without huge pages.
            _ => return,
        };
        let account = Account::unlimited();
        match LentWindow::map(file.as_fd(), (2 << 20) + 4096, 2 << 20, &account) {
            Ok(window) => {
                assert_eq!(account.used().bytes, 4 << 20);
                assert_eq!(window.position((2 << 20) + 4096, 2 << 20), Some(4096));
                drop(window);
                assert_eq!(account.used().bytes, 0);
            }
            // No addresses are free, because mappings reserve them.
            Err(RegionError::Map { source, .. }) => assert_eq!(source, Errno::NOMEM),
            Err(error) => panic!("{error}"),
        }
    }
}
