//! The C library's functions, found when they are first needed.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    epoll_event, fd_set, mode_t, nfds_t, off_t, pollfd, sigset_t, size_t, timespec, timeval,
};

/// Finds the next function of this name after ours.
fn find(name: &CStr, place: &AtomicPtr<c_void>) -> *mut c_void {
    let known = place.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: a name that ends with zero.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    place.store(found, Ordering::Relaxed);
    found
}

macro_rules! functions {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty, else $none:expr;)*) => {$(
        /// # Safety
        /// That of the C library's function.
        pub unsafe fn $name($($arg: $type),*) -> $result {
            static PLACE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
            let name = concat!(stringify!($name), "\0");
            let Ok(name) = CStr::from_bytes_with_nul(name.as_bytes()) else { return $none };
            let found = find(name, &PLACE);
            if found.is_null() {
                super::set_errno(rustix::io::Errno::NOSYS);
                return $none;
            }
            type Function = unsafe extern "C-unwind" fn($($type),*) -> $result;
            // SAFETY: the C library's function of this name has this signature; on the machines that are
            // supported one with variable arguments takes its first ones as any other does.
            let function = unsafe { std::mem::transmute::<*mut c_void, Function>(found) };
            // SAFETY: the caller's.
            unsafe { function($($arg),*) }
        }
    )*};
}

functions! {
    open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int, else -1;
    openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int, else -1;
    access(path: *const c_char, mode: c_int) -> c_int, else -1;
    close(fd: c_int) -> c_int, else -1;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int, else -1;
    ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int, else -1;
    poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int, else -1;
    ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t)
        -> c_int, else -1;
    select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *mut timeval) -> c_int, else -1;
    pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *const timespec, mask: *const sigset_t) -> c_int, else -1;
    epoll_ctl(set: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int, else -1;
    epoll_pwait(set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int,
        mask: *const sigset_t) -> c_int, else -1;
    epoll_pwait2(set: c_int, events: *mut epoll_event, most: c_int, timeout: *const timespec,
        mask: *const sigset_t) -> c_int, else -1;
    dup(fd: c_int) -> c_int, else -1;
    dup2(fd: c_int, to: c_int) -> c_int, else -1;
    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int, else -1;
    fcntl(fd: c_int, command: c_int, arg: *mut c_void) -> c_int, else -1;
}

/// The system call itself: allocators call `mmap` before anything can be found.
///
/// # Safety
/// That of `mmap`.
pub unsafe fn mmap(
    at: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the caller's.
    let mapped = unsafe { libc::syscall(libc::SYS_mmap, at, len, protection, flags, fd, offset) };
    std::ptr::with_exposed_provenance_mut(mapped as usize)
}
