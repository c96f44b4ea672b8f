//! Handles forks. In the child, the library's locks are free and its epoll sets are replaced: an
//! event in a shared set would reach only one of the two processes.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::{capture, epoll, fds, packet, poll};

/// The process that owns the library's tables.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Returns true in the child of a `vfork`, which runs in its parent's memory.
pub fn is_borrowing() -> bool {
    let owner = OWNER.load(Ordering::Relaxed);
    owner != 0 && owner != std::process::id()
}

extern "C" fn prepare() {
    fds::hold();
    epoll::SETS.hold();
    poll::WAITERS.hold();
    packet::hold();
    packet::route::hold();
    capture::hold();
}

extern "C" fn parent() {
    capture::release();
    packet::route::release();
    packet::release();
    poll::WAITERS.release();
    epoll::SETS.release();
    fds::release();
}

extern "C" fn child() {
    parent();
    OWNER.store(std::process::id(), Ordering::Relaxed);
    netmap::client::forked();
    poll::forget_waiters();
}

extern "C" fn load() {
    OWNER.store(std::process::id(), Ordering::Relaxed);
    crate::io::prepare();
    // SAFETY: three functions that may be called at any fork. Without them, the child of a fork in
    // the middle of a call would wait forever.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
}

/// Called when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;

/// Runs when the program ends: waits until its sent frames are out.
extern "C" fn unload() {
    if !is_borrowing() {
        let _ = std::panic::catch_unwind(capture::finish_all);
    }
}

/// Registers [`unload`] for the program's normal end.
#[used]
#[unsafe(link_section = ".fini_array")]
static UNLOAD: extern "C" fn() = unload;
