//! The C library functions that this library replaces.
//!
//! On the supported machines a variadic function takes its first arguments like any other function.
//! So `open`, `ioctl` and `fcntl` have fixed arguments here.
//!
//! A cancelled thread unwinds through the function in which it sleeps, so functions that sleep
//! allow unwinding.
#![allow(
    clippy::missing_safety_doc,
    reason = "what each function demands is what the C library's of the same name does"
)]

use std::ffi::{c_char, c_int, c_uint, c_ulong, c_void};
use std::os::fd::IntoRawFd;

use libc::{
    epoll_event, fd_set, mode_t, nfds_t, off_t, pollfd, sigset_t, size_t, timespec, timeval,
};
use netmap::abi::ioctl::is_netmap;
use rustix::io::Errno;

use crate::export::export;
use crate::poll::{Until, milliseconds, of_timespec};
use crate::{
    device, epoll, fds, list, marks, real, returned, returned_uncaught, select, set_errno,
};

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
compile_error!("variable arguments are passed as fixed ones only on x86-64 and aarch64 Linux");

/// Opens the device, or the named file by `real`.
unsafe fn open_path(path: *const c_char, flags: c_int, real: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: the caller keeps this function's contract.
    if unsafe { crate::packet::hooks::is_list(path) }
        && let Ok(list) = crate::packet::names::interfaces()
    {
        return list.into_raw_fd();
    }
    if device::is_device(path) { returned(|| fds::open(flags)) } else { real() }
}

export! {
    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        // SAFETY: the caller keeps this function's contract.
        unsafe { open_path(path, flags, || real::open(path, flags, mode)) }
    }
    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        // SAFETY: the caller keeps this function's contract.
        unsafe { open(path, flags, mode) }
    }
    fn __open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        // SAFETY: the caller keeps this function's contract.
        unsafe { open(path, flags, mode) }
    }
    fn __open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        // SAFETY: the caller keeps this function's contract.
        unsafe { open(path, flags, mode) }
    }
    fn __open_2(path: *const c_char, flags: c_int) -> c_int {
        // SAFETY: the caller keeps this function's contract.
        unsafe { open(path, flags, 0) }
    }
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
        // SAFETY: the caller keeps this function's contract.
        unsafe { open(path, flags, 0) }
    }
    fn openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        // SAFETY: the caller keeps this function's contract.
        unsafe { open_path(path, flags, || real::openat(dir, path, flags, mode)) }
    }
    fn openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        // SAFETY: the caller keeps this function's contract.
        unsafe { openat(dir, path, flags, mode) }
    }
    fn __openat_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
        // SAFETY: the caller keeps this function's contract.
        unsafe { openat(dir, path, flags, 0) }
    }
    fn __openat64_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
        // SAFETY: the caller keeps this function's contract.
        unsafe { openat(dir, path, flags, 0) }
    }
}

export! {
    fn access(path: *const c_char, mode: c_int) -> c_int {
        if device::is_device(path) && mode & libc::X_OK == 0 {
            return 0;
        }
        // SAFETY: the caller keeps this function's contract.
        unsafe { real::access(path, mode) }
    }
}

/// Returns true for requests that apply to any file; the kernel handles them for a token, too.
fn is_general(request: c_ulong) -> bool {
    matches!(request, libc::FIONBIO | libc::FIOCLEX | libc::FIONCLEX | libc::FIOASYNC)
}

export! {
    fn ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int {
        let number = request as u32;
        if is_netmap(number) {
            let mut is_ours = true;
            let done = returned(|| match fds::netmap_ioctl(fd, number, arg) {
                Some(done) => done,
                None => {
                    is_ours = false;
                    Ok(0)
                }
            });
            if is_ours {
                return done;
            }
        } else if crate::packet::names::is_request(request)
            && let Some(done) = crate::packet::names::request(request, arg)
        {
            return returned(|| done);
        } else if marks::NETMAP.has(fd) && !is_general(request) {
            set_errno(Errno::OPNOTSUPP);
            return -1;
        }
        // SAFETY: the caller keeps this function's contract.
        unsafe { real::ioctl(fd, request, arg) }
    }
    fn mmap(at: *mut c_void, len: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t)
        -> *mut c_void
    {
        let wanted = device::Wanted { at, len, protection, flags, offset };
        if !marks::NETMAP.has(fd) {
            // SAFETY: the caller keeps this function's contract.
            let mapped = unsafe { real::mmap(at, len, protection, flags, fd, offset) };
            // Sockets cannot be mapped. This one may be a token from another process.
            if mapped != libc::MAP_FAILED || crate::errno() != Errno::NODEV {
                return mapped;
            }
        }
        let mut mapped = libc::MAP_FAILED;
        returned(|| {
            let device = fds::find(fd).ok_or(Errno::NODEV)?;
            mapped = device::mmap(&device, fd, &wanted)?;
            Ok(0)
        });
        mapped
    }
    fn mmap64(at: *mut c_void, len: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t)
        -> *mut c_void
    {
        // SAFETY: the caller keeps this function's contract.
        unsafe { mmap(at, len, protection, flags, fd, offset) }
    }
    fn __mmap(at: *mut c_void, len: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t)
        -> *mut c_void
    {
        // SAFETY: the caller keeps this function's contract.
        unsafe { mmap(at, len, protection, flags, fd, offset) }
    }
}

/// Returns true if a netmap descriptor, or an epoll set with one, is in the list.
unsafe fn has_netmap(list: *const pollfd, count: nfds_t) -> bool {
    let is_ours = |fd: c_int| marks::NETMAP.has(fd) || marks::EPOLL.has(fd);
    // SAFETY: the caller's list has `count` entries.
    (0..count as usize).any(|at| is_ours(unsafe { (*list.add(at)).fd }))
}

/// Returns the value behind a pointer that may be null.
unsafe fn given<'a, T>(at: *const T) -> Option<&'a T> {
    // SAFETY: the pointer is null, or valid by this function's contract.
    unsafe { at.as_ref() }
}

/// Handles `poll` for a list with netmap descriptors.
unsafe fn poll_list(
    list: *mut pollfd,
    count: nfds_t,
    until: Result<Until, Errno>,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's list has `count` entries.
    let entries = unsafe { std::slice::from_raw_parts_mut(list, count as usize) };
    // SAFETY: the pointer is null, or valid by this function's contract.
    let mask = unsafe { given(mask) };
    returned_uncaught(until.and_then(|until| list::poll(entries, until, mask)))
}

export! {
    fn poll(list: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
        // SAFETY: the caller keeps this function's contract.
        unsafe {
            if !has_netmap(list, count) {
                return real::poll(list, count, timeout);
            }
            poll_list(list, count, Ok(Until::after(milliseconds(timeout))), std::ptr::null())
        }
    }
    fn __poll(list: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
        // SAFETY: the caller keeps this function's contract.
        unsafe { poll(list, count, timeout) }
    }
    fn __poll_chk(list: *mut pollfd, count: nfds_t, timeout: c_int, len: size_t) -> c_int {
        if len / size_of::<pollfd>() < count as usize {
            std::process::abort();
        }
        // SAFETY: the caller keeps this function's contract.
        unsafe { poll(list, count, timeout) }
    }
    fn ppoll(list: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t)
        -> c_int
    {
        // SAFETY: the caller keeps this function's contract.
        unsafe {
            if !has_netmap(list, count) {
                return real::ppoll(list, count, timeout, mask);
            }
            let until = of_timespec(given(timeout)).map(Until::after);
            poll_list(list, count, until, mask)
        }
    }
    fn __ppoll_chk(
        list: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t,
        len: size_t
    ) -> c_int {
        if len / size_of::<pollfd>() < count as usize {
            std::process::abort();
        }
        // SAFETY: the caller keeps this function's contract.
        unsafe { ppoll(list, count, timeout, mask) }
    }
    fn select(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *mut timeval
    ) -> c_int {
        // SAFETY: each pointer is null, or valid by this function's contract.
        let mut sets = unsafe { [read.as_mut(), write.as_mut(), except.as_mut()] };
        if !select::has_netmap(count, &sets) {
            // SAFETY: the caller keeps this function's contract.
            return unsafe { real::select(count, read, write, except, timeout) };
        }
        // SAFETY: the pointer is null, or valid by this function's contract.
        let timeout = unsafe { timeout.as_mut() };
        returned_uncaught(select::select_for(count, &mut sets, timeout))
    }
    fn __select(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *mut timeval
    ) -> c_int {
        // SAFETY: the caller keeps this function's contract.
        unsafe { select(count, read, write, except, timeout) }
    }
    fn pselect(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *const timespec, mask: *const sigset_t
    ) -> c_int {
        // SAFETY: each pointer is null, or valid by this function's contract.
        let mut sets = unsafe { [read.as_mut(), write.as_mut(), except.as_mut()] };
        if !select::has_netmap(count, &sets) {
            // SAFETY: the caller keeps this function's contract.
            return unsafe { real::pselect(count, read, write, except, timeout, mask) };
        }
        // SAFETY: each pointer is null, or valid by this function's contract.
        let (timeout, mask) = unsafe { (given(timeout), given(mask)) };
        let time = of_timespec(timeout);
        returned_uncaught(time.and_then(|time| select::select(count, &mut sets, time, mask)))
    }
}

/// Handles `epoll_wait` for a set with netmap descriptors.
unsafe fn wait_set(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    until: Result<Until, Errno>,
    mask: *const sigset_t,
) -> c_int {
    let Some(most) = usize::try_from(most).ok().filter(|most| *most > 0) else {
        return returned_uncaught(Err(Errno::INVAL));
    };
    // SAFETY: the caller's array has this many entries.
    let events = unsafe { std::slice::from_raw_parts_mut(events, most) };
    // SAFETY: the pointer is null, or valid by this function's contract.
    let mask = unsafe { given(mask) };
    returned_uncaught(until.and_then(|until| epoll::wait(set, events, until, mask)))
}

/// Notes that a descriptor is an epoll set.
fn created(set: c_int) -> c_int {
    marks::SETS.set(set);
    set
}

export! {
    fn epoll_create(size: c_int) -> c_int {
        // SAFETY: the caller keeps this function's contract.
        created(unsafe { real::epoll_create(size) })
    }
    fn epoll_create1(flags: c_int) -> c_int {
        // SAFETY: the caller keeps this function's contract.
        created(unsafe { real::epoll_create1(flags) })
    }
    fn epoll_ctl(set: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        if !marks::NETMAP.has(fd) {
            // SAFETY: the caller keeps this function's contract.
            let done = unsafe { real::epoll_ctl(set, op, fd, event) };
            if done == 0 && marks::SETS.has(fd) {
                // SAFETY: the kernel has read it, or needs none.
                let event = unsafe { given(event) }.copied();
                returned(|| {
                    epoll::control_set(set, op, fd, event);
                    Ok(0)
                });
            }
            return done;
        }
        // SAFETY: the pointer is null, or valid by this function's contract.
        let event = unsafe { given(event) }.copied();
        marks::SETS.set(set);
        returned(|| epoll::control(set, op, fd, event))
    }
    fn epoll_wait(set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int {
        // SAFETY: the caller keeps this function's contract.
        unsafe { epoll_pwait(set, events, most, timeout, std::ptr::null()) }
    }
    fn epoll_pwait(
        set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int, mask: *const sigset_t
    ) -> c_int {
        // SAFETY: the caller keeps this function's contract.
        unsafe {
            if !marks::EPOLL.has(set) {
                return real::epoll_pwait(set, events, most, timeout, mask);
            }
            wait_set(set, events, most, Ok(Until::after(milliseconds(timeout))), mask)
        }
    }
    fn epoll_pwait2(
        set: c_int, events: *mut epoll_event, most: c_int, timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int {
        // SAFETY: the caller keeps this function's contract.
        unsafe {
            if !marks::EPOLL.has(set) {
                return real::epoll_pwait2(set, events, most, timeout, mask);
            }
            wait_set(set, events, most, of_timespec(given(timeout)).map(Until::after), mask)
        }
    }
}

/// Returns true if the library tracks this descriptor.
fn is_known(fd: c_int) -> bool {
    marks::NETMAP.has(fd) || marks::SETS.has(fd) || crate::packet::PACKET.has(fd)
}

/// Forgets a descriptor that is about to be closed. The child of a `vfork` shares its parent's
/// tables, so it leaves them unchanged.
fn closing(fd: c_int) {
    if is_known(fd) && !crate::fork::is_borrowing() {
        let _ = returned(|| {
            if marks::SETS.clear(fd) {
                epoll::forget_set(fd);
            }
            if fds::forget(fd) {
                epoll::forget_member(fd);
            }
            crate::packet::forget(fd);
            Ok(0)
        });
    }
}

/// Notes that a descriptor was duplicated to another number.
fn copied(from: c_int, to: c_int) -> c_int {
    if to >= 0 && is_known(from) && !crate::fork::is_borrowing() {
        crate::packet::copied(from, to);
        if let Some(device) = fds::get(from) {
            fds::insert(to, device);
        }
        if marks::SETS.has(from) {
            epoll::copy_set(from, to);
        }
    }
    to
}

export! {
    fn close(fd: c_int) -> c_int {
        if marks::OURS.has(fd) {
            set_errno(Errno::BADF);
            return -1;
        }
        closing(fd);
        // SAFETY: the caller keeps this function's contract.
        unsafe { real::close(fd) }
    }
    fn __close(fd: c_int) -> c_int {
        // SAFETY: the caller keeps this function's contract.
        unsafe { close(fd) }
    }
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        if first > last || flags & libc::CLOSE_RANGE_CLOEXEC as c_int != 0 {
            // SAFETY: the caller keeps this function's contract.
            return unsafe { real::close_range(first, last, flags) };
        }
        marks::NETMAP.between(first, last).into_iter().for_each(closing);
        marks::SETS.between(first, last).into_iter().for_each(closing);
        crate::packet::between(first, last).into_iter().for_each(closing);
        let mut from = first;
        for ours in marks::OURS.between(first, last) {
            let ours = ours.cast_unsigned();
            if ours > from {
                // SAFETY: the caller keeps the contract for all descriptors that are not ours.
                let done = unsafe { real::close_range(from, ours - 1, flags) };
                if done < 0 {
                    return done;
                }
            }
            from = ours.saturating_add(1);
        }
        if from > last {
            return 0;
        }
        // SAFETY: as above.
        unsafe { real::close_range(from, last, flags) }
    }
    fn closefrom(first: c_int) -> () {
        // SAFETY: the caller keeps this function's contract.
        unsafe { close_range(first.max(0).cast_unsigned(), c_uint::MAX, 0) };
    }
    fn dup(fd: c_int) -> c_int {
        // SAFETY: the caller keeps this function's contract.
        copied(fd, unsafe { real::dup(fd) })
    }
    fn dup2(fd: c_int, to: c_int) -> c_int {
        // SAFETY: the caller keeps this function's contract.
        unsafe { dup_to(fd, to, || real::dup2(fd, to)) }
    }
    fn __dup2(fd: c_int, to: c_int) -> c_int {
        // SAFETY: the caller keeps this function's contract.
        unsafe { dup2(fd, to) }
    }
    fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
        // SAFETY: the caller keeps this function's contract.
        unsafe { dup_to(fd, to, || real::dup3(fd, to, flags)) }
    }
    fn fcntl(fd: c_int, command: c_int, arg: *mut c_void) -> c_int {
        // SAFETY: the caller keeps this function's contract.
        let done = unsafe { real::fcntl(fd, command, arg) };
        match command {
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => copied(fd, done),
            _ => done,
        }
    }
    fn fcntl64(fd: c_int, command: c_int, arg: *mut c_void) -> c_int {
        // SAFETY: the caller keeps this function's contract.
        unsafe { fcntl(fd, command, arg) }
    }
    fn __fcntl(fd: c_int, command: c_int, arg: *mut c_void) -> c_int {
        // SAFETY: the caller keeps this function's contract.
        unsafe { fcntl(fd, command, arg) }
    }
}

/// Duplicates a descriptor to a number that may be in use, unless the library owns that number.
unsafe fn dup_to(fd: c_int, to: c_int, real: impl FnOnce() -> c_int) -> c_int {
    if marks::OURS.has(to) {
        set_errno(Errno::BUSY);
        return -1;
    }
    let device = fds::get(fd);
    let done = real();
    if done < 0 || fd == to {
        return done;
    }
    closing(to);
    match device {
        Some(_) => copied(fd, to),
        None if is_known(fd) => copied(fd, to),
        None => done,
    }
}
