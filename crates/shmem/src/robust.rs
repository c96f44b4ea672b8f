//! A lock in shared memory that its holder's death frees.
//!
//! ```text
//!   word:  0 (free) | thread | WAITERS | DIED          thread: the kernel's number of the holder
//! ```
//!
//! The kernel looks at each thread that ends, by whatever signal and at whatever instruction: it
//! reads the thread's *robust list* (`set_robust_list(2)`), and marks the lock word that is named
//! there as [`DIED`] if the word has the thread's number. So the next holder learns of the death,
//! and repairs what the lock protects.
//!
//! A thread has one such list, which the C library has registered. Its entries for locks that are
//! *held* are a linked list inside of the locks, so in shared memory: each unlock follows pointers
//! there, and a process that writes a wrong one has another process write to an address of its
//! choice. This lock needs one word of the list only, in private memory: the *pending* operation,
//! which the C library sets for a few instructions at a time. It stays set while this lock is held.
//! The kernel treats it like the others. Two such locks are never held at once, and no robust mutex
//! of the C library is used in between.
//!
//! Thread numbers belong to a PID namespace. All processes that share a lock must be in one; a
//! [keeper](RobustLock::lock_as_keeper) need not.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Once;
use std::time::{Duration, Instant};

use crate::Shareable;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The holder's number.
const OWNER: u32 = 0x3fff_ffff;
/// A holder died (`FUTEX_OWNER_DIED`).
const DIED: u32 = 0x4000_0000;
/// Threads sleep at the word (`FUTEX_WAITERS`).
const WAITERS: u32 = 0x8000_0000;
/// The number of the keeper, which no thread has.
const KEEPER: u32 = OWNER - 1;
/// How often a lock is looked at before its waiter sleeps.
const SPINS: u32 = 200;
/// The longest sleep: a wake-up that was meant for a thread that died comes this late.
const NAP: Duration = Duration::from_millis(2);

/// The lock. All zero is free.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct RobustLock {
    /// # Protocol: `RobustLock.word`
    /// - Writer: a thread that takes or frees the lock; the kernel, when its holder dies
    /// - Reader: the same
    /// - Ordering: compare-exchange acquire / swap release; the kernel's is a full barrier
    /// - Partner: everything that the lock protects
    /// - Without it: two processes are the switch at once
    /// - Shown by: `shmem` test `processes_killed_while_they_hold_it_leave_it_to_the_others`
    word: AtomicU32,
    padding: [AtomicU32; 15],
}

// SAFETY: the type consists of atomic words only.
unsafe impl Shareable for RobustLock {}

/// The lock is held, by this thread. Freed when dropped.
#[derive(Debug)]
pub struct Held<'a> {
    lock: &'a RobustLock,
    /// Where the kernel finds the lock; null for a keeper.
    list: *mut RobustList,
    died: bool,
    /// Of one thread.
    here: PhantomData<*const ()>,
}

/// `struct robust_list_head` of the kernel.
#[derive(Debug)]
#[repr(C)]
struct RobustList {
    next: *mut RobustList,
    futex_offset: libc::c_long,
    pending: usize,
}

/// What a thread knows of itself.
#[derive(Clone, Copy)]
struct Myself {
    /// The number of forks before.
    forks: u64,
    list: *mut RobustList,
    number: u32,
}

/// How often this process was forked from another one since the first lock.
///
/// # Protocol: `robust::FORKS` (of a process)
/// - Writer: the one thread of a forked process
/// - Reader: threads, before they lock
/// - Ordering: relaxed: a fork is over before its process does anything else
/// - Without it: a forked process locks with the number of its parent
/// - Shown by: `shmem` test `processes_killed_while_they_hold_it_leave_it_to_the_others`
static FORKS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static MYSELF: Cell<Option<Myself>> = const { Cell::new(None) };
}

/// Tells forks apart: the result differs in a process and in one that was forked from it.
#[must_use]
pub fn forks() -> u64 {
    static REGISTERED: Once = Once::new();
    extern "C" fn forked() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    REGISTERED.call_once(|| {
        // SAFETY: the handler stores one atomic word. It fails without memory only.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    });
    FORKS.load(Ordering::Relaxed)
}

/// Checks that this thread's death would be noticed.
///
/// # Errors
/// The kernel refuses robust lists, as a sandbox may.
pub fn check() -> std::io::Result<()> {
    myself().map(drop)
}

fn myself() -> std::io::Result<Myself> {
    let forks = forks();
    if let Some(known) = MYSELF.get().filter(|known| known.forks == forks) {
        return Ok(known);
    }
    // SAFETY: the call has no arguments.
    let number = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
    let found = Myself { forks, list: robust_list()?, number };
    MYSELF.set(Some(found));
    Ok(found)
}

/// The list that the C library registered for this thread, else a new one.
fn robust_list() -> std::io::Result<*mut RobustList> {
    let (mut list, mut len) = (std::ptr::null_mut::<RobustList>(), 0usize);
    // SAFETY: the kernel writes the two words; 0 is the calling thread.
    let got = unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut list, &raw mut len) };
    if got != 0 {
        return Err(std::io::Error::last_os_error());
    }
    if !list.is_null() {
        return Ok(list);
    }
    // The kernel reads it when the thread ends, so it is never freed.
    let new =
        Box::leak(Box::new(RobustList { next: std::ptr::null_mut(), futex_offset: 0, pending: 0 }));
    new.next = &raw mut *new;
    // SAFETY: the list is empty and stays where it is.
    let set =
        unsafe { libc::syscall(libc::SYS_set_robust_list, &raw mut *new, size_of::<RobustList>()) };
    if set != 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(&raw mut *new)
}

impl RobustLock {
    /// A free one. In shared memory, locks are mapped, not made.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "a default would hide which state it is in")]
    pub fn new() -> Self {
        Self { word: AtomicU32::new(0), padding: [const { AtomicU32::new(0) }; 15] }
    }

    /// Takes the lock. Waits as long as another thread holds it, also if that is stopped.
    ///
    /// # Errors
    /// As for [`check`].
    pub fn lock(&self) -> std::io::Result<Held<'_>> {
        let Myself { list, number, .. } = myself()?;
        self.announce(list);
        let died = self.take(number, None).unwrap_or(false);
        Ok(Held { lock: self, list, died, here: PhantomData })
    }

    /// The number of the thread that holds the lock, in the PID namespace of those that share it;
    /// `None` if the lock is free, or its keeper has it.
    #[must_use]
    pub fn holder(&self) -> Option<u32> {
        let owner = self.word.load(Ordering::Relaxed) & OWNER;
        (owner != 0 && owner != KEEPER).then_some(owner)
    }

    /// Takes the lock for its *keeper*, of which there is one at a time. A keeper that dies leaves
    /// the lock to the next keeper, not to other threads. `None` if another thread holds the lock
    /// all the time.
    #[must_use]
    pub fn lock_as_keeper(&self, time: Duration) -> Option<Held<'_>> {
        let died = self.take(KEEPER, Instant::now().checked_add(time))?;
        Some(Held { lock: self, list: std::ptr::null_mut(), died, here: PhantomData })
    }

    /// Names the lock in the thread's list, before the word is changed.
    #[inline]
    fn announce(&self, list: *mut RobustList) {
        let word = std::ptr::from_ref(&self.word).expose_provenance();
        // SAFETY: the list is this thread's and lives as long. Only this thread and, when it has
        // ended, the kernel use `pending`; so a volatile store is enough.
        unsafe {
            let offset = (*list).futex_offset as usize;
            (&raw mut (*list).pending).write_volatile(word.wrapping_sub(offset));
        }
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
    }

    /// Changes the word from free to `number`. Returns true if its last holder died; `None` after
    /// the deadline.
    #[inline]
    fn take(&self, number: u32, deadline: Option<Instant>) -> Option<bool> {
        let order = (Ordering::Acquire, Ordering::Relaxed);
        match self.word.compare_exchange(0, number, order.0, order.1) {
            Ok(_) => Some(false),
            Err(_) => self.take_slowly(number, deadline),
        }
    }

    #[cold]
    fn take_slowly(&self, number: u32, deadline: Option<Instant>) -> Option<bool> {
        let (mut spins, mut waited) = (0, 0);
        loop {
            let word = self.word.load(Ordering::Relaxed);
            let owner = word & OWNER;
            if owner == 0 || owner == KEEPER && number == KEEPER {
                let taken = number | word & WAITERS | waited;
                let order = (Ordering::Acquire, Ordering::Relaxed);
                if self.word.compare_exchange(word, taken, order.0, order.1).is_ok() {
                    return Some(word & DIED != 0 || owner == KEEPER);
                }
            } else if spins < SPINS {
                spins += 1;
                std::hint::spin_loop();
            } else if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return None;
            } else {
                self.sleep(word);
                // Other threads may sleep, too, and there is one bit for all of them.
                (spins, waited) = (0, WAITERS);
            }
        }
    }

    fn sleep(&self, word: u32) {
        let marked = word | WAITERS;
        let order = Ordering::Relaxed;
        if word == marked || self.word.compare_exchange(word, marked, order, order).is_ok() {
            self.futex(libc::FUTEX_WAIT, marked);
        }
    }

    /// The call, on a word that several processes share.
    fn futex(&self, op: libc::c_int, value: u32) {
        let time =
            libc::timespec { tv_sec: 0, tv_nsec: libc::c_long::from(NAP.subsec_nanos() as i32) };
        // SAFETY: the word and the time outlive the call, which writes neither.
        unsafe { libc::syscall(libc::SYS_futex, &raw const self.word, op, value, &raw const time) };
    }
}

impl Held<'_> {
    /// True if the last holder died: what the lock protects may be half changed.
    #[must_use]
    pub fn after_death(&self) -> bool {
        self.died
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        // A panic leaves the same behind as a death.
        let left = if std::thread::panicking() { DIED } else { 0 };
        let before = self.lock.word.swap(left, Ordering::Release);
        if before & WAITERS != 0 {
            self.lock.futex(libc::FUTEX_WAKE, 1);
        }
        if !self.list.is_null() {
            std::sync::atomic::compiler_fence(Ordering::SeqCst);
            // SAFETY: as in `announce`.
            unsafe { (&raw mut (*self.list).pending).write_volatile(0) };
        }
        if before & WAITERS != 0 {
            // A thread that takes the lock again at once would leave the one it woke behind.
            std::thread::yield_now();
        }
    }
}
