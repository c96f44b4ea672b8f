//! The C library's own functions, looked up on first use.

use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_ulong, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    epoll_event, fd_set, iovec, mode_t, msghdr, nfds_t, off_t, pollfd, sigset_t, size_t, sockaddr,
    socklen_t, ssize_t, timespec, timeval,
};

use crate::capture::abi::{Callback, Entry, Header, Program, Stats};

/// Returns the next function of this name after ours in the search order.
fn find(name: &CStr, place: &AtomicPtr<c_void>) -> *mut c_void {
    let known = place.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: a name that ends with zero.
    let mut found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if found.is_null() && name.to_bytes().starts_with(b"pcap_") {
        found = find_in_libpcap(name);
    }
    place.store(found, Ordering::Relaxed);
    found
}

/// Returns a function of a libpcap that the program loaded privately, or has not loaded yet.
fn find_in_libpcap(name: &CStr) -> *mut c_void {
    let names = [c"libpcap.so.0.8", c"libpcap.so.1", c"libpcap.so"];
    let open = |flags| {
        // SAFETY: a name that ends with zero. The library stays loaded.
        names
            .iter()
            .map(move |name| unsafe { libc::dlopen(name.as_ptr(), flags | libc::RTLD_LAZY) })
    };
    let mut loaded = open(libc::RTLD_NOLOAD).chain(open(0)).filter(|library| !library.is_null());
    // SAFETY: a library that is loaded, and a name.
    loaded
        .next()
        .map_or(std::ptr::null_mut(), |library| unsafe { libc::dlsym(library, name.as_ptr()) })
}

macro_rules! functions {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty, else $none:expr;)*) => {$(
        /// # Safety
        /// As for the C library's function.
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
            // SAFETY: the C library's function of this name has this signature. On the supported
            // machines a variadic function takes its first arguments like any other.
            let function = unsafe { std::mem::transmute::<*mut c_void, Function>(found) };
            // SAFETY: the caller keeps this function's contract.
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
    epoll_create(size: c_int) -> c_int, else -1;
    epoll_create1(flags: c_int) -> c_int, else -1;
    epoll_ctl(set: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int, else -1;
    epoll_pwait(set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int,
        mask: *const sigset_t) -> c_int, else -1;
    epoll_pwait2(set: c_int, events: *mut epoll_event, most: c_int, timeout: *const timespec,
        mask: *const sigset_t) -> c_int, else -1;
    dup(fd: c_int) -> c_int, else -1;
    dup2(fd: c_int, to: c_int) -> c_int, else -1;
    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int, else -1;
    fcntl(fd: c_int, command: c_int, arg: *mut c_void) -> c_int, else -1;
    socket(family: c_int, kind: c_int, protocol: c_int) -> c_int, else -1;
    bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int, else -1;
    send(fd: c_int, bytes: *const c_void, len: size_t, flags: c_int) -> ssize_t, else -1;
    sendto(fd: c_int, bytes: *const c_void, len: size_t, flags: c_int, address: *const sockaddr,
        address_len: socklen_t) -> ssize_t, else -1;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t, else -1;
    write(fd: c_int, bytes: *const c_void, len: size_t) -> ssize_t, else -1;
    writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t, else -1;
    read(fd: c_int, bytes: *mut c_void, len: size_t) -> ssize_t, else -1;
    __read_chk(fd: c_int, bytes: *mut c_void, len: size_t, room: size_t) -> ssize_t, else -1;
    readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t, else -1;
    recvfrom(fd: c_int, bytes: *mut c_void, len: size_t, flags: c_int, address: *mut sockaddr,
        address_len: *mut socklen_t) -> ssize_t, else -1;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t, else -1;
    getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int, else -1;
    getsockopt(fd: c_int, level: c_int, option: c_int, value: *mut c_void, len: *mut socklen_t)
        -> c_int, else -1;
    setsockopt(fd: c_int, level: c_int, option: c_int, value: *const c_void, len: socklen_t)
        -> c_int, else -1;
    if_nametoindex(name: *const c_char) -> c_uint, else 0;
    if_indextoname(index: c_uint, name: *mut c_char) -> *mut c_char, else std::ptr::null_mut();
    fopen(path: *const c_char, mode: *const c_char) -> *mut c_void, else std::ptr::null_mut();
    fopen64(path: *const c_char, mode: *const c_char) -> *mut c_void, else std::ptr::null_mut();
}

type Pcap = *mut c_void;
/// The result of functions that return nothing.
type Nothing = ();
const NOTHING: Nothing = ();

// libpcap's.
functions! {
    pcap_create(name: *const c_char, message: *mut c_char) -> Pcap, else std::ptr::null_mut();
    pcap_open_live(name: *const c_char, snapshot: c_int, promiscuous: c_int, timeout: c_int,
        message: *mut c_char) -> Pcap, else std::ptr::null_mut();
    pcap_open_dead(link: c_int, snapshot: c_int) -> Pcap, else std::ptr::null_mut();
    pcap_open_dead_with_tstamp_precision(link: c_int, snapshot: c_int, precision: u32) -> Pcap,
        else std::ptr::null_mut();
    pcap_activate(key: Pcap) -> c_int, else -1;
    pcap_close(key: Pcap) -> Nothing, else NOTHING;
    pcap_set_snaplen(key: Pcap, snapshot: c_int) -> c_int, else -1;
    pcap_set_timeout(key: Pcap, timeout: c_int) -> c_int, else -1;
    pcap_set_buffer_size(key: Pcap, size: c_int) -> c_int, else -1;
    pcap_set_promisc(key: Pcap, promiscuous: c_int) -> c_int, else -1;
    pcap_set_immediate_mode(key: Pcap, immediate: c_int) -> c_int, else -1;
    pcap_set_protocol_linux(key: Pcap, protocol: c_int) -> c_int, else -1;
    pcap_set_rfmon(key: Pcap, radio: c_int) -> c_int, else -1;
    pcap_can_set_rfmon(key: Pcap) -> c_int, else -1;
    pcap_set_tstamp_type(key: Pcap, kind: c_int) -> c_int, else -1;
    pcap_set_tstamp_precision(key: Pcap, precision: c_int) -> c_int, else -1;
    pcap_get_tstamp_precision(key: Pcap) -> c_int, else 0;
    pcap_snapshot(key: Pcap) -> c_int, else -1;
    pcap_bufsize(key: Pcap) -> c_int, else -1;
    pcap_loop(key: Pcap, most: c_int, callback: Callback, user: *mut c_uchar) -> c_int, else -1;
    pcap_dispatch(key: Pcap, most: c_int, callback: Callback, user: *mut c_uchar) -> c_int, else -1;
    pcap_next_ex(key: Pcap, header: *mut *mut Header, bytes: *mut *const c_uchar) -> c_int, else -1;
    pcap_next(key: Pcap, header: *mut Header) -> *const c_uchar, else std::ptr::null();
    pcap_breakloop(key: Pcap) -> Nothing, else NOTHING;
    pcap_inject(key: Pcap, frame: *const c_void, len: size_t) -> c_int, else -1;
    pcap_sendpacket(key: Pcap, frame: *const c_uchar, len: c_int) -> c_int, else -1;
    pcap_compile(key: Pcap, program: *mut Program, text: *const c_char, optimize: c_int, mask: u32)
        -> c_int, else -1;
    pcap_setfilter(key: Pcap, program: *const Program) -> c_int, else -1;
    pcap_setdirection(key: Pcap, direction: c_int) -> c_int, else -1;
    pcap_setnonblock(key: Pcap, nonblocking: c_int, message: *mut c_char) -> c_int, else -1;
    pcap_getnonblock(key: Pcap, message: *mut c_char) -> c_int, else -1;
    pcap_get_selectable_fd(key: Pcap) -> c_int, else -1;
    pcap_fileno(key: Pcap) -> c_int, else -1;
    pcap_get_required_select_timeout(key: Pcap) -> *const timeval, else std::ptr::null();
    pcap_stats(key: Pcap, stats: *mut Stats) -> c_int, else -1;
    pcap_geterr(key: Pcap) -> *mut c_char, else c"libpcap is not there".as_ptr().cast_mut();
    pcap_dump_open(key: Pcap, path: *const c_char) -> *mut c_void, else std::ptr::null_mut();
    pcap_dump_fopen(key: Pcap, file: *mut c_void) -> *mut c_void, else std::ptr::null_mut();
    pcap_dump_open_append(key: Pcap, path: *const c_char) -> *mut c_void, else std::ptr::null_mut();
    pcap_list_tstamp_types(key: Pcap, types: *mut *mut c_int) -> c_int, else -1;
    pcap_list_datalinks(key: Pcap, links: *mut *mut c_int) -> c_int, else -1;
    pcap_set_datalink(key: Pcap, link: c_int) -> c_int, else -1;
    pcap_lookupnet(name: *const c_char, net: *mut u32, mask: *mut u32, message: *mut c_char)
        -> c_int, else -1;
    pcap_findalldevs(first: *mut *mut Entry, message: *mut c_char) -> c_int, else -1;
}

/// The raw system call: allocators call `mmap` before any function can be looked up.
///
/// # Safety
/// As for `mmap`.
pub unsafe fn mmap(
    at: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the caller keeps this function's contract.
    let mapped = unsafe { libc::syscall(libc::SYS_mmap, at, len, protection, flags, fd, offset) };
    std::ptr::with_exposed_provenance_mut(mapped as usize)
}
