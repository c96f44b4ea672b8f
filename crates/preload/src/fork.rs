//! What a fork does to the library: its locks are free in the child, and its epoll sets are made anew,
//! as those of the parent would tell one of the two only.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::{capture, epoll, fds, packet, poll};

/// The process that the library's tables belong to.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// True in a process that has another one's memory: the child of a `vfork`.
pub fn is_borrowing() -> bool {
    let owner = OWNER.load(Ordering::Relaxed);
    owner != 0 && owner != std::process::id()
}

extern "C" fn prepare() {
    fds::TABLE.hold();
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
    fds::TABLE.release();
}

extern "C" fn child() {
    parent();
    OWNER.store(std::process::id(), Ordering::Relaxed);
    netmap::client::forked();
    poll::forget_waiters();
}

extern "C" fn load() {
    OWNER.store(std::process::id(), Ordering::Relaxed);
    // SAFETY: three functions that may be called at any fork. Without them, the child of a fork in the
    // middle of a call would wait for ever.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
}

/// Called when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;

/// The program ends: what it sent goes out.
extern "C" fn unload() {
    if !is_borrowing() {
        let _ = std::panic::catch_unwind(capture::finish_all);
    }
}

/// Called when the program ends by itself.
#[used]
#[unsafe(link_section = ".fini_array")]
static UNLOAD: extern "C" fn() = unload;
