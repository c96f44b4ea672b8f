//! The SIGBUS guard: memory that fails under us fails one port, not the process.
//!
//! Sealed memory files do not shrink; but a huge page may be missing when it is first touched, a file
//! system or a device may lose a page, and memory itself may be damaged. The kernel then sends SIGBUS to
//! the thread that touches it. The handler looks the address up among the mappings of files, puts zeros
//! where the page was, marks the mapping as failed and goes on; its owner finds the mark. Any other
//! SIGBUS ends the process as it always did.
//!
//! A mapping's first fault replaces one page, so that what can still be said to the other side is said;
//! the second replaces the whole mapping, so that nobody can make us take a fault, and keep an entry in
//! the kernel's table of mappings, for each of many pages.
//!
//! All that the handler touches is the table below: fixed, without locks, never freed.

use std::ops::Range;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

use crate::GuestMemory;

/// Most mappings of files that are guarded at once; further ones are not.
const MAPPINGS: usize = 1 << 15;
const HUGE_PAGE: usize = 2 << 20;
/// An entry's start while it is being filled in or cleared.
const CLAIMED: usize = 1;

/// A guarded mapping.
struct Entry {
    /// Its first address, 0 in a free entry. Written last, so that whoever finds it finds the rest.
    start: AtomicUsize,
    end: AtomicUsize,
    /// Faults in it.
    faults: AtomicU32,
}

static TABLE: [Entry; MAPPINGS] = [const {
    Entry { start: AtomicUsize::new(0), end: AtomicUsize::new(0), faults: AtomicU32::new(0) }
}; MAPPINGS];
/// Faults in all mappings ever.
static FAULTS: AtomicU64 = AtomicU64::new(0);
/// Bytes of a page of this system.
static PAGE: AtomicUsize = AtomicUsize::new(4096);

/// Faults in all mappings since the process started: while it stays the same, no mapping has failed
/// that had not failed before; who sees it change sees which one has.
#[inline(always)]
#[must_use]
pub fn faults() -> u64 {
    FAULTS.load(Ordering::Acquire)
}

/// Notices when a guest's memory has failed: one load as long as none has.
#[derive(Debug, Default)]
pub struct Watch {
    /// Faults in all memory when it was looked at last.
    seen: u64,
}

impl Watch {
    /// True if some of `memory` has failed since this was asked last: to be asked once a batch.
    #[inline(always)]
    #[must_use]
    pub fn finds_failed(&mut self, memory: &GuestMemory) -> bool {
        let faults = faults();
        if faults == self.seen {
            return false;
        }
        self.seen = faults;
        memory.has_failed()
    }
}

/// Sets up the guard for this process. More than once does nothing more.
pub fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        PAGE.store(rustix::param::page_size(), Ordering::Relaxed);
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
            on_sigbus;
        // SAFETY: a zeroed sigaction is one without flags and with an empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the handler makes system calls and touches atomics only, as handlers may.
        unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) };
    });
}

/// A mapping's place in the table; free again when dropped.
#[derive(Debug)]
pub(crate) struct Guarded(Option<&'static Entry>);

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Entry({} faults)", self.faults.load(Ordering::Relaxed))
    }
}

impl Guarded {
    /// Enters the mapping of `len` bytes at `start`.
    pub fn new(start: *const u8, len: usize) -> Self {
        let claim = |entry: &&Entry| {
            let (free, claimed) = (0, CLAIMED);
            entry.start.load(Ordering::Relaxed) == free
                && entry
                    .start
                    .compare_exchange(free, claimed, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
        };
        let Some(entry) = TABLE.iter().find(claim) else { return Self(None) };
        entry.faults.store(0, Ordering::Relaxed);
        entry.end.store(start.addr() + len, Ordering::Relaxed);
        entry.start.store(start.addr(), Ordering::Release);
        Self(Some(entry))
    }

    /// A mapping that cannot fault.
    pub const fn not_needed() -> Self {
        Self(None)
    }

    /// One load as long as no memory has failed.
    #[inline(always)]
    pub fn has_failed(&self) -> bool {
        faults() != 0 && self.0.is_some_and(|entry| entry.faults.load(Ordering::Relaxed) != 0)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if let Some(entry) = self.0 {
            entry.start.store(0, Ordering::Release);
        }
    }
}

extern "C" fn on_sigbus(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes a siginfo_t, with an address if the code is positive (sigaction(2)).
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    if code > 0 && replace(address) {
        return;
    }
    // Not ours. The default action ends the process: as we return and fault again, or by this signal,
    // if somebody sent it.
    // SAFETY: both calls are allowed in handlers.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        if code <= 0 {
            libc::raise(signal);
        }
    }
}

/// Puts zeros where `address` is, if it lies in a guarded mapping.
fn replace(address: usize) -> bool {
    for entry in &TABLE {
        let start = entry.start.load(Ordering::Acquire);
        let end = entry.end.load(Ordering::Relaxed);
        if start <= CLAIMED || !(start..end).contains(&address) {
            continue;
        }
        let earlier = entry.faults.fetch_add(1, Ordering::Relaxed);
        FAULTS.fetch_add(1, Ordering::Release);
        let small = PAGE.load(Ordering::Relaxed);
        // The last page of a mapping is its own, also beyond its length.
        let mapping = start..end.next_multiple_of(small);
        let page = |size| page_at(address, size, &mapping).is_some_and(|at| map_zeros(at, size));
        // Part of a huge page cannot be replaced.
        let one = earlier == 0 && (page(small) || page(HUGE_PAGE));
        return one || map_zeros(start, end - start);
    }
    false
}

/// Where the page of `size` bytes starts that `address` is in, if all of it lies in `mapping`.
fn page_at(address: usize, size: usize, mapping: &Range<usize>) -> Option<usize> {
    let at = address & !(size - 1);
    (at >= mapping.start && mapping.end.checked_sub(at)? >= size).then_some(at)
}

fn map_zeros(at: usize, len: usize) -> bool {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    let at = std::ptr::without_provenance_mut(at);
    // SAFETY: the range lies in a guarded mapping, of which nobody holds references but to atomics, and
    // zeros are as good as what another process might have stored there. The call is a bare system
    // call, which leaves errno alone.
    unsafe { rustix::mm::mmap_anonymous(at, len, prot, flags) }.is_ok()
}

#[cfg(test)]
mod tests {
    use crate::{Mapping, Memfd, Pages};
    use rustix::fs::MemfdFlags;
    use std::os::fd::AsFd;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, ExitStatus};

    const CHILD: &str = "TOKLAT_GUARD_TEST_CHILD";
    const PAGES: usize = 64;

    /// Runs the test of this name again, in a process of its own.
    fn in_child(test: &str) -> ExitStatus {
        let name = format!("guard::tests::{test}");
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", &name, "--nocapture"]).env(CHILD, "1");
        child.stdout(std::process::Stdio::null()).status().unwrap()
    }

    fn is_child() -> bool {
        std::env::var_os(CHILD).is_some()
    }

    #[test]
    fn a_truncated_file_fails_its_mapping_alone() {
        if !is_child() {
            assert!(in_child("a_truncated_file_fails_its_mapping_alone").success());
            return;
        }
        super::install();
        let file = rustix::fs::memfd_create("unsealed", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, (PAGES * 4096) as u64).unwrap();
        let hostile = Mapping::unsealed(file.as_fd(), PAGES * 4096).unwrap();
        let other = Memfd::create("other", 4096, Pages::Small).unwrap().map().unwrap();
        other.all().fill(7);
        hostile.all().fill(9);
        assert_eq!((hostile.has_failed(), super::faults()), (false, 0));

        rustix::fs::ftruncate(&file, 4096).unwrap();
        assert_eq!(hostile.bytes(4096 * 3, 2).unwrap().to_vec(), [0; 2]);
        assert_eq!((hostile.has_failed(), super::faults()), (true, 1));
        assert_eq!(hostile.bytes(0, 1).unwrap().to_vec(), [9], "the rest is still shared");

        hostile.all().fill(5);
        assert_eq!(super::faults(), 2, "the second fault is the last");
        assert_eq!(hostile.bytes(4096 * 63, 1).unwrap().to_vec(), [5]);
        assert!(!other.has_failed());
        assert_eq!(other.bytes(4095, 1).unwrap().to_vec(), [7]);
        drop(hostile);
        let again = Memfd::create("again", 4096, Pages::Small).unwrap().map().unwrap();
        assert!(!again.has_failed(), "an entry is used anew");
    }

    #[test]
    fn no_page_is_replaced_that_reaches_beyond_its_mapping() {
        let huge = super::HUGE_PAGE;
        let mapping = huge + 4096..3 * huge + 4096;
        let at = |address, size| super::page_at(address, size, &mapping);
        assert_eq!(at(huge + 5000, 4096), Some(huge + 4096));
        assert_eq!(at(huge + 5000, huge), None, "it starts before");
        assert_eq!(at(2 * huge + 1, huge), Some(2 * huge));
        assert_eq!(at(3 * huge + 1, 4096), Some(3 * huge));
        assert_eq!(at(3 * huge + 1, huge), None, "it ends beyond");
    }

    #[test]
    fn another_fault_ends_the_process() {
        if is_child() {
            super::install();
            // SAFETY: raise only sends a signal.
            unsafe { libc::raise(libc::SIGBUS) };
            return;
        }
        assert_eq!(in_child("another_fault_ends_the_process").signal(), Some(libc::SIGBUS));
    }
}
