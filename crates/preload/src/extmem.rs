//! The program's memory as a region: a memory file with the same content replaces its pages, so
//! that the daemon and the data process can map it.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};

use netmap::abi::PoolsInfo;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

use crate::{marks, real};
use pcap::lock::Lock;

/// The name of these files, as `/proc/self/maps` shows it.
const NAME: &str = "toklat-extmem";
/// Bytes of a page.
const PAGE: u64 = 4096;
/// The files that were made, with their inode numbers.
static FILES: Lock<Vec<(u64, OwnedFd)>> = Lock::new(Vec::new());

/// Returns the memory at `at` as a file.
///
/// # Errors
/// `EINVAL` for an address that is not page-aligned, `EFAULT` for unmapped memory, `ENOMEM`.
pub fn share(at: u64, wanted: &PoolsInfo) -> Result<OwnedFd, Errno> {
    // The last page is shared as a whole.
    let len = wanted.memsize.checked_next_multiple_of(PAGE).ok_or(Errno::INVAL)?;
    if at == 0 || !at.is_multiple_of(PAGE) || len == 0 {
        return Err(Errno::INVAL);
    }
    if let Some(file) = shared_before(at) {
        return Ok(file);
    }
    let geometry = netmap::extmem::geometry(wanted)?;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(NAME, flags)?;
    // The file also holds the rest of the program's memory that is too short for a buffer.
    let size = geometry.file_size().max(len);
    rustix::fs::ftruncate(&file, size)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    copy(&file, at, len)?;
    replace(&file, at, len)?;
    let number = rustix::fs::fstat(&file)?.st_ino;
    let kept = marks::raise(rustix::io::fcntl_dupfd_cloexec(&file, 0)?);
    FILES.lock().push((number, kept));
    Ok(file)
}

/// Copies memory into a file; the kernel reports unmapped memory.
fn copy(file: &OwnedFd, at: u64, len: u64) -> Result<(), Errno> {
    let mut done = 0;
    while done < len {
        let from = std::ptr::with_exposed_provenance((at + done) as usize);
        let offset = done.cast_signed();
        // SAFETY: the kernel reads, and refuses what cannot be read.
        let wrote = unsafe { libc::pwrite(file.as_raw_fd(), from, (len - done) as usize, offset) };
        match u64::try_from(wrote) {
            Ok(0) => return Err(Errno::FAULT),
            Ok(wrote) => done += wrote,
            Err(_) => return Err(crate::errno()),
        }
    }
    Ok(())
}

/// Replaces memory by a file.
fn replace(file: &OwnedFd, at: u64, len: u64) -> Result<(), Errno> {
    let place = std::ptr::with_exposed_provenance_mut(at as usize);
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_FIXED;
    // SAFETY: the program lends these pages; they hold the same as before.
    let mapped = unsafe { real::mmap(place, len as usize, protection, flags, file.as_raw_fd(), 0) };
    if mapped == libc::MAP_FAILED { Err(crate::errno()) } else { Ok(()) }
}

/// Returns the file that replaces this memory already, if there is one.
fn shared_before(at: u64) -> Option<OwnedFd> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let start = format!("{at:x}-");
    let line = maps.lines().find(|line| line.starts_with(&start) && line.contains(NAME))?;
    let mut words = line.split_ascii_whitespace().skip(2);
    let (offset, number) = (words.next()?, words.nth(1)?.parse::<u64>().ok()?);
    if u64::from_str_radix(offset, 16) != Ok(0) {
        return None;
    }
    let files = FILES.lock();
    let (_, file) = files.iter().find(|(known, _)| *known == number)?;
    rustix::io::fcntl_dupfd_cloexec(file, 0).ok()
}
