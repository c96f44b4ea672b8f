//! The SIGBUS guard: memory that fails takes down one port, not the process.
//!
//! Sealed memory files do not shrink. But a huge page may be missing when it is first touched, a
//! file system or a device may lose a page, and memory itself may be damaged. The kernel then sends
//! SIGBUS to the thread that touches the page. The handler looks the address up among the mappings
//! of files. It replaces the page by zeros, marks the mapping as failed and resumes; the mapping's
//! owner finds the mark. Any other SIGBUS ends the process as usual.
//!
//! A mapping's first fault replaces one page, so that data in its other pages still reaches the
//! other side. The second replaces the whole mapping. Otherwise a peer could cause a fault for each
//! of many pages, each with an entry in the kernel's table of mappings. While [`MAX_SPLIT`]
//! mappings have a page replaced, the first fault of another one replaces all of it.
//!
//! The handler touches only the table below: fixed, without locks, never freed. A mapping for which
//! it has no room is refused ([`crate::RegionError::Unguarded`]).

use std::ops::Range;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

use crate::GuestMemory;
use crate::place::Place;

/// The maximum number of mappings of files at once: 16 for each of 4,096 ports.
pub const MAPPINGS: usize = 1 << 16;
/// The maximum number of mappings with one replaced page: the kernel counts each as three.
pub const MAX_SPLIT: u32 = 1024;
const HUGE_PAGE: usize = 2 << 20;

/// A guarded mapping.
struct Entry {
    place: Place,
    /// Faults in it.
    ///
    /// # Protocol: fault counts of the `guard`
    /// - Writer: the SIGBUS handler
    /// - Reader: ring ports, once a batch
    /// - Ordering: a mapping's count relaxed, before the sum of all: add release / load acquire
    /// - Partner: mapping and unmapping
    /// - Without it: a fault in one of the process's own mappings ends it
    /// - Shown by: `shmem::guard` tests
    faults: AtomicU32,
    /// 1 if one page of the mapping was replaced, so that it counts as split.
    split: AtomicU32,
}

static TABLE: [Entry; MAPPINGS] =
    [const { Entry { place: Place::free(), faults: AtomicU32::new(0), split: AtomicU32::new(0) } };
        MAPPINGS];
/// Where a free entry may be. The hint keeps the time to add thousands of ports linear.
static HINT: AtomicUsize = AtomicUsize::new(0);
/// All entries that were ever used are below this index.
static USED: AtomicUsize = AtomicUsize::new(0);
/// How many mappings have one replaced page.
static SPLIT: AtomicU32 = AtomicU32::new(0);
/// Faults in all mappings since the start.
static FAULTS: AtomicU64 = AtomicU64::new(0);
/// Bytes of a page of this system.
static PAGE: AtomicUsize = AtomicUsize::new(4096);

/// Faults in all mappings since the process started. While it stays the same, no further mapping
/// has failed. A caller that sees it change must check its own mappings.
#[inline(always)]
#[must_use]
pub fn faults() -> u64 {
    FAULTS.load(Ordering::Acquire)
}

/// Notices when a guest's memory has failed. It costs one load until the first failure.
#[derive(Debug, Default)]
pub struct Watch {
    /// Faults in all memory at the last check.
    seen: u64,
}

impl Watch {
    /// True if some of `memory` has failed since the last call. Call it once a batch.
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

/// Installs the guard for this process. Further calls do nothing.
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

/// A mapping's entry in the table; dropping it frees the entry.
#[derive(Debug)]
pub(crate) struct Guarded(Option<&'static Entry>);

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Entry({} faults)", self.faults.load(Ordering::Relaxed))
    }
}

impl Guarded {
    /// Adds the mapping of `len` bytes at `start`; `None` if the table is full.
    pub fn new(start: *const u8, len: usize) -> Option<Self> {
        let range = start.addr()..start.addr() + len;
        let from = HINT.load(Ordering::Relaxed).min(MAPPINGS);
        let order = (from..MAPPINGS).chain(0..from);
        let at = order.into_iter().find(|at| TABLE[*at].place.enter(&range))?;
        HINT.store(at + 1, Ordering::Relaxed);
        USED.fetch_max(at + 1, Ordering::Release);
        Some(Self(Some(&TABLE[at])))
    }

    /// A mapping that cannot fault.
    pub const fn not_needed() -> Self {
        Self(None)
    }

    /// Costs one load until the first failure of any memory.
    #[inline(always)]
    pub fn has_failed(&self) -> bool {
        faults() != 0 && self.0.is_some_and(|entry| entry.faults.load(Ordering::Relaxed) != 0)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let Some(entry) = self.0 else { return };
        // Before another mapping can take the entry.
        entry.faults.store(0, Ordering::Relaxed);
        if entry.split.swap(0, Ordering::Relaxed) != 0 {
            SPLIT.fetch_sub(1, Ordering::Relaxed);
        }
        entry.place.leave();
        let at = (std::ptr::from_ref(entry).addr() - TABLE.as_ptr().addr()) / size_of::<Entry>();
        HINT.fetch_min(at, Ordering::Relaxed);
    }
}

extern "C" fn on_sigbus(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes a siginfo_t, with an address if the code is positive
    // (sigaction(2)).
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    if code > 0 && replace(address) {
        return;
    }
    // The fault is not in a guarded mapping. The default action ends the process: when the handler
    // returns and the fault recurs, or when the signal was sent.
    // SAFETY: both calls are allowed in handlers.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        if code <= 0 {
            libc::raise(signal);
        }
    }
}

/// Replaces the page at `address` by zeros, if it lies in a guarded mapping.
fn replace(address: usize) -> bool {
    let used = USED.load(Ordering::Acquire).min(MAPPINGS);
    let found = TABLE[..used].iter().find_map(|entry| {
        let range = entry.place.range().filter(|range| range.contains(&address))?;
        Some((entry, range))
    });
    let Some((entry, range)) = found else { return false };
    let earlier = entry.faults.fetch_add(1, Ordering::Relaxed);
    FAULTS.fetch_add(1, Ordering::Release);
    earlier == 0 && replace_page(entry, address, &range) || map_zeros(range.start, range.len())
}

/// Replaces the page at `address` by zeros, if the limit on split mappings allows it.
fn replace_page(entry: &Entry, address: usize, range: &Range<usize>) -> bool {
    if SPLIT.fetch_add(1, Ordering::Relaxed) >= MAX_SPLIT {
        SPLIT.fetch_sub(1, Ordering::Relaxed);
        return false;
    }
    entry.split.store(1, Ordering::Relaxed);
    let small = PAGE.load(Ordering::Relaxed);
    // The last page of a mapping belongs to it, even beyond its length.
    let mapping = range.start..range.end.next_multiple_of(small);
    let page = |size| page_at(address, size, &mapping).is_some_and(|at| map_zeros(at, size));
    // Part of a huge page cannot be replaced.
    page(small) || page(HUGE_PAGE)
}

/// Where the page of `size` bytes around `address` starts, if all of it lies in `mapping`.
fn page_at(address: usize, size: usize, mapping: &Range<usize>) -> Option<usize> {
    let at = address & !(size - 1);
    (at >= mapping.start && mapping.end.checked_sub(at)? >= size).then_some(at)
}

fn map_zeros(at: usize, len: usize) -> bool {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    let at = std::ptr::without_provenance_mut(at);
    // SAFETY: the range lies in a guarded mapping, into which only references to atomics exist.
    // Another process might have stored zeros there just as well. The call is a bare system call,
    // which leaves errno alone.
    unsafe { rustix::mm::mmap_anonymous(at, len, prot, flags) }.is_ok()
}

#[cfg(test)]
mod tests {
    use super::Guarded;
    use crate::{Mapping, Memfd, Pages, RegionError};
    use rustix::fs::MemfdFlags;
    use std::os::fd::AsFd;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, ExitStatus};

    const CHILD: &str = "TOKLAT_GUARD_TEST_CHILD";
    const PAGES: usize = 64;

    /// Runs the test with this name again, in its own process.
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

    /// Each first fault splits a mapping into three, as the kernel counts them.
    #[test]
    fn first_faults_split_so_many_mappings() {
        if !is_child() {
            assert!(in_child("first_faults_split_so_many_mappings").success());
            return;
        }
        super::install();
        let file = rustix::fs::memfd_create("unsealed", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 3 * 4096).unwrap();
        let map = || Mapping::unsealed(file.as_fd(), 3 * 4096).unwrap();
        let mut maps: Vec<_> = (0..=super::MAX_SPLIT).map(|_| map()).collect();
        maps[0].all().fill(9);
        rustix::fs::ftruncate(&file, 4096).unwrap();
        let first_of = |map: &Mapping| {
            map.bytes(4096, 1).unwrap().fill(1);
            map.bytes(0, 1).unwrap().to_vec()
        };
        let (last, others) = maps.split_last().unwrap();
        assert!(others.iter().all(|map| first_of(map) == [9]), "the rest is still shared");
        assert_eq!(first_of(last), [0], "all of it was replaced");
        maps.truncate(1);
        assert_eq!(first_of(&map()), [9], "there is room for splits again");
    }

    #[test]
    fn regression_what_cannot_be_guarded_is_not_mapped() {
        if !is_child() {
            assert!(in_child("regression_what_cannot_be_guarded_is_not_mapped").success());
            return;
        }
        let file = rustix::fs::memfd_create("unsealed", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        let map = || Mapping::unsealed(file.as_fd(), 4096);
        let enter = |at: usize| Guarded::new(std::ptr::without_provenance(at << 12), 4096);
        let mut entries: Vec<_> = (1..=super::MAPPINGS).map(|at| enter(at).unwrap()).collect();
        let mapped = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
        let before = mapped();
        assert!(matches!(map(), Err(RegionError::Unguarded)));
        assert_eq!(mapped(), before, "it was unmapped again");
        drop(entries.swap_remove(super::MAPPINGS / 2));
        let only = map().unwrap();
        assert!(map().is_err());
        drop(only);
        assert!(map().is_ok());
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
