//! Marks on descriptors: which are netmap's, which are epoll sets, which of these have netmap
//! descriptors in them, and which are the library's own.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Resource, getrlimit};

/// Descriptors with higher numbers are never netmap's.
const MOST: usize = 1 << 16;
/// How many numbers below the limit are reserved for the library's descriptors.
const OWN: u64 = 200;

/// One bit a descriptor.
#[derive(Debug)]
pub struct Bits([AtomicU64; MOST / 64]);

impl Bits {
    /// No bits set.
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; MOST / 64])
    }

    fn word(&self, fd: RawFd) -> Option<&AtomicU64> {
        self.0.get(usize::try_from(fd).ok()? / 64)
    }

    /// Returns true if the bit of this descriptor is set.
    #[inline]
    pub fn has(&self, fd: RawFd) -> bool {
        let bit = fd.rem_euclid(64);
        self.word(fd).is_some_and(|word| word.load(Ordering::Relaxed) >> bit & 1 != 0)
    }

    /// Sets the bit; returns false for a number that is too high.
    pub fn set(&self, fd: RawFd) -> bool {
        let bit = 1 << fd.rem_euclid(64);
        self.word(fd).map(|word| word.fetch_or(bit, Ordering::Relaxed)).is_some()
    }

    /// Clears the bit; returns true if it was set.
    pub fn clear(&self, fd: RawFd) -> bool {
        let bit = 1 << fd.rem_euclid(64);
        self.word(fd).is_some_and(|word| word.fetch_and(!bit, Ordering::Relaxed) & bit != 0)
    }

    /// Returns the descriptors from `first` to `last` whose bits are set.
    pub fn between(&self, first: u32, last: u32) -> Vec<RawFd> {
        let last = last.min(MOST as u32 - 1);
        let range = first.min(MOST as u32)..=last;
        range.map(u32::cast_signed).filter(|fd| self.has(*fd)).collect()
    }
}

/// Netmap's descriptors.
pub static NETMAP: Bits = Bits::new();
/// Epoll sets.
pub static SETS: Bits = Bits::new();
/// Epoll sets with netmap descriptors in them, or in sets in them.
pub static EPOLL: Bits = Bits::new();
/// The library's own descriptors.
pub static OURS: Bits = Bits::new();

/// Moves one of the library's descriptors to a number that programs do not use, and keeps the
/// program from closing it.
pub fn raise(fd: OwnedFd) -> OwnedFd {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(MOST as u64).min(MOST as u64);
    let least = if limit > 4 * OWN { limit - OWN } else { limit / 2 };
    let high = rustix::io::fcntl_dupfd_cloexec(&fd, least as RawFd).unwrap_or(fd);
    OURS.set(high.as_fd().as_raw_fd());
    high
}

/// Lets the library's descriptors be closed again.
pub fn lower<T: AsFd>(fds: impl Iterator<Item = T>) {
    for fd in fds {
        OURS.clear(fd.as_fd().as_raw_fd());
    }
}
