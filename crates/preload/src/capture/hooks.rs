//! Replaces libpcap's functions for handles and devices of this library. All other calls go to
//! libpcap.
#![allow(
    clippy::missing_safety_doc,
    reason = "what each function demands is what libpcap's of the same name does"
)]

use std::ffi::{c_char, c_int, c_uchar, c_void};
use std::ptr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pcap::capture::{LONGEST_SNAPSHOT, Settings, Until};
use pcap::{Code, Failure, Next};
use rustix::io::Errno;

use super::abi::{Callback, Entry, Header, Program, Stats};
use super::{
    ETHERNET, Handle, Pcap, device, filter, find, forget, keep, list, open, write_message,
};
use crate::export::export;
use crate::real;

/// Dispatches a call to our handle, or to libpcap.
macro_rules! on {
    ($key:ident, $handle:ident => $ours:expr, else $real:expr) => {
        match find($key) {
            Some($handle) => $handle.returned(|| $ours),
            // SAFETY: the caller keeps this function's contract.
            None => unsafe { $real },
        }
    };
}

/// Changes a setting of our handle. Values are libpcap's `int`.
fn set(handle: &Handle, change: impl FnOnce(&mut Settings)) -> Result<c_int, Failure> {
    handle.capture.set(change).map(|()| 0)
}

/// Makes a handle for one of our devices.
unsafe fn create(device: pcap::Device, message: *mut c_char) -> Pcap {
    // SAFETY: any numbers are valid arguments.
    let key = unsafe { real::pcap_open_dead(ETHERNET, LONGEST_SNAPSHOT as c_int) };
    let kept = !key.is_null() && keep(key, Handle::new(device)).is_ok();
    if kept {
        return key;
    }
    // SAFETY: the handle is null or a dead one; the caller passes the buffer.
    unsafe {
        if !key.is_null() {
            real::pcap_close(key);
        }
        write_message(message, "Too many captures are open, or there is no memory");
    }
    ptr::null_mut()
}

export! {
    fn pcap_create(name: *const c_char, message: *mut c_char) -> Pcap {
        // SAFETY: the caller keeps this function's contract.
        unsafe {
            match device(name) {
                Some(device) => create(device, message),
                None => real::pcap_create(name, message),
            }
        }
    }
    fn pcap_open_live(
        name: *const c_char, snapshot: c_int, promiscuous: c_int, timeout: c_int,
        message: *mut c_char
    ) -> Pcap {
        // SAFETY: the caller keeps this function's contract.
        unsafe {
            let Some(device) = device(name) else {
                return real::pcap_open_live(name, snapshot, promiscuous, timeout, message);
            };
            let key = create(device, message);
            if key.is_null() {
                return key;
            }
            pcap_set_snaplen(key, snapshot);
            pcap_set_timeout(key, timeout);
            if pcap_activate(key) == 0 {
                return key;
            }
            let said = find(key).map(|handle| handle.message.get());
            if let Some(said) = said {
                ptr::copy_nonoverlapping(said.cast(), message, super::MESSAGE);
            }
            pcap_close(key);
            ptr::null_mut()
        }
    }
    fn pcap_activate(key: Pcap) -> c_int {
        on!(key, handle => handle.capture.activate(open).map(|()| 0), else real::pcap_activate(key))
    }
    fn pcap_close(key: Pcap) -> () {
        let _ = std::panic::catch_unwind(|| drop(forget(key)));
        // SAFETY: the caller keeps this function's contract.
        unsafe { real::pcap_close(key) };
    }
}

export! {
    fn pcap_set_snaplen(key: Pcap, snapshot: c_int) -> c_int {
        let wanted = u32::try_from(snapshot).ok().filter(|s| (1..=LONGEST_SNAPSHOT).contains(s));
        on!(key, handle => set(handle, |s| s.snapshot = wanted.unwrap_or(LONGEST_SNAPSHOT)),
            else real::pcap_set_snaplen(key, snapshot))
    }
    fn pcap_set_timeout(key: Pcap, timeout: c_int) -> c_int {
        let wanted = u64::try_from(timeout).ok().filter(|ms| *ms > 0).map(Duration::from_millis);
        on!(key, handle => set(handle, |s| s.timeout = wanted), else real::pcap_set_timeout(key, timeout))
    }
    fn pcap_set_buffer_size(key: Pcap, size: c_int) -> c_int {
        let wanted = usize::try_from(size).ok().filter(|size| *size > 0);
        on!(key, handle => set(handle, |s| s.buffer = wanted.unwrap_or(s.buffer)),
            else real::pcap_set_buffer_size(key, size))
    }
    // The setting is accepted without effect: a port gets what its switch sends to it, and each
    // frame is delivered at once.
    fn pcap_set_promisc(key: Pcap, promiscuous: c_int) -> c_int {
        on!(key, handle => set(handle, |_| ()), else real::pcap_set_promisc(key, promiscuous))
    }
    fn pcap_set_immediate_mode(key: Pcap, immediate: c_int) -> c_int {
        on!(key, handle => set(handle, |_| ()), else real::pcap_set_immediate_mode(key, immediate))
    }
    fn pcap_set_protocol_linux(key: Pcap, protocol: c_int) -> c_int {
        on!(key, handle => set(handle, |_| ()), else real::pcap_set_protocol_linux(key, protocol))
    }
    fn pcap_set_rfmon(key: Pcap, radio: c_int) -> c_int {
        on!(key, handle => set(handle, |_| ()), else real::pcap_set_rfmon(key, radio))
    }
    fn pcap_can_set_rfmon(key: Pcap) -> c_int {
        on!(key, _handle => Ok(0), else real::pcap_can_set_rfmon(key))
    }
    fn pcap_set_tstamp_type(key: Pcap, kind: c_int) -> c_int {
        let refused = || {
            let said = "A port has the host's timestamps only";
            Failure::new(Code::NoTimestampType, Errno::INVAL, said)
        };
        // Type 0 is the host's clock.
        on!(key, _handle => if kind == 0 { Ok(0) } else { Err(refused()) },
            else real::pcap_set_tstamp_type(key, kind))
    }
    fn pcap_set_tstamp_precision(key: Pcap, precision: c_int) -> c_int {
        let refused = || Failure::new(Code::NoPrecision, Errno::INVAL, "There is no such precision");
        on!(key, handle => match precision {
            0 | 1 => set(handle, |s| s.nanoseconds = precision == 1),
            _ => Err(refused()),
        }, else real::pcap_set_tstamp_precision(key, precision))
    }
    fn pcap_get_tstamp_precision(key: Pcap) -> c_int {
        on!(key, handle => Ok(handle.capture.settings().nanoseconds.into()),
            else real::pcap_get_tstamp_precision(key))
    }
    fn pcap_snapshot(key: Pcap) -> c_int {
        on!(key, handle => Ok(handle.capture.settings().snapshot as c_int),
            else real::pcap_snapshot(key))
    }
    fn pcap_bufsize(key: Pcap) -> c_int {
        on!(key, handle => Ok(handle.capture.settings().buffer as c_int), else real::pcap_bufsize(key))
    }
}

export! {
    fn pcap_loop(key: Pcap, most: c_int, callback: Callback, user: *mut c_uchar) -> c_int {
        match find(key) {
            // SAFETY: the caller keeps this function's contract.
            Some(handle) => unsafe { run(handle, most, Until::Full, callback, user) }.min(0),
            // SAFETY: the caller keeps this function's contract.
            None => unsafe { real::pcap_loop(key, most, callback, user) },
        }
    }
    fn pcap_dispatch(key: Pcap, most: c_int, callback: Callback, user: *mut c_uchar) -> c_int {
        match find(key) {
            // SAFETY: the caller keeps this function's contract.
            Some(handle) => unsafe { run(handle, most, Until::Empty, callback, user) },
            // SAFETY: the caller keeps this function's contract.
            None => unsafe { real::pcap_dispatch(key, most, callback, user) },
        }
    }
}

/// Passes frames to a program's callback, which may unwind through this function.
unsafe fn run(
    handle: &Handle,
    most: c_int,
    until: Until,
    callback: Callback,
    user: *mut c_uchar,
) -> c_int {
    let nanoseconds = handle.capture.settings().nanoseconds;
    let most = usize::try_from(most).unwrap_or(0);
    let done = handle.capture.run(most, until, |frame| {
        let header = handle.header(&frame, nanoseconds);
        // SAFETY: the callback is the caller's; the header and the bytes live as long as the call.
        unsafe { callback(user, &raw const header, frame.bytes.as_ptr()) };
    });
    match done {
        Ok(count) => c_int::try_from(count).unwrap_or(c_int::MAX),
        Err(failure) => handle.set_error(&failure),
    }
}

/// Gets one frame. Returns 1, or 0 if the time-out expired.
fn next(
    handle: &Handle,
    header: &mut *mut Header,
    bytes: &mut *const c_uchar,
) -> Result<c_int, Failure> {
    let nanoseconds = handle.capture.settings().nanoseconds;
    let found = handle.capture.next(|frame| {
        // SAFETY: the handle's, which the program uses in one thread at a time.
        unsafe { handle.header.get().write(handle.header(&frame, nanoseconds)) };
        (*header, *bytes) = (handle.header.get(), frame.bytes.as_ptr());
    })?;
    Ok((found == Next::Frame).into())
}

export! {
    fn pcap_next_ex(key: Pcap, header: *mut *mut Header, bytes: *mut *const c_uchar) -> c_int {
        let Some(handle) = find(key) else {
            // SAFETY: the caller keeps this function's contract.
            return unsafe { real::pcap_next_ex(key, header, bytes) };
        };
        // SAFETY: the caller keeps this function's contract.
        let (header, bytes) = unsafe { (&mut *header, &mut *bytes) };
        handle.returned(|| next(handle, header, bytes))
    }
    fn pcap_next(key: Pcap, header: *mut Header) -> *const c_uchar {
        let Some(handle) = find(key) else {
            // SAFETY: the caller keeps this function's contract.
            return unsafe { real::pcap_next(key, header) };
        };
        let (mut found, mut bytes) = (ptr::null_mut(), ptr::null());
        if handle.returned(|| next(handle, &mut found, &mut bytes)) != 1 {
            return ptr::null();
        }
        // SAFETY: both headers are valid: the handle's and the caller's.
        unsafe { header.write(*found) };
        bytes
    }
    fn pcap_breakloop(key: Pcap) -> () {
        match find(key) {
            Some(handle) => handle.capture.stop(),
            // SAFETY: the caller keeps this function's contract.
            None => unsafe { real::pcap_breakloop(key) },
        }
    }
    fn pcap_inject(key: Pcap, frame: *const c_void, len: usize) -> c_int {
        on!(key, handle => send(handle, frame, len), else real::pcap_inject(key, frame, len))
    }
    fn pcap_sendpacket(key: Pcap, frame: *const c_uchar, len: c_int) -> c_int {
        let bytes = usize::try_from(len).unwrap_or(0);
        on!(key, handle => send(handle, frame.cast(), bytes).map(|_| 0),
            else real::pcap_sendpacket(key, frame, len))
    }
}

fn send(handle: &Handle, frame: *const c_void, len: usize) -> Result<c_int, Failure> {
    let interface = handle.capture.interface()?;
    if frame.is_null() {
        return Err(Failure::new(Code::Error, Errno::FAULT, "There is no frame"));
    }
    // SAFETY: the caller passes `len` readable bytes.
    interface.send(unsafe { std::slice::from_raw_parts(frame.cast(), len) })?;
    Ok(c_int::try_from(len).unwrap_or(c_int::MAX))
}

export! {
    fn pcap_compile(
        key: Pcap, program: *mut Program, text: *const c_char, optimize: c_int, mask: u32
    ) -> c_int {
        // SAFETY: the caller keeps this function's contract.
        let done = unsafe { real::pcap_compile(key, program, text, optimize, mask) };
        if let Some(handle) = find(key).filter(|_| done < 0) {
            // libpcap left the error in the dead handle.
            handle.is_its.store(true, Ordering::Relaxed);
        }
        done
    }
    fn pcap_setfilter(key: Pcap, program: *const Program) -> c_int {
        // SAFETY: the caller keeps this function's contract.
        on!(key, handle => unsafe { filter(program) }.and_then(|filter| {
            handle.capture.set_filter(Some(filter)).map(|()| 0)
        }), else real::pcap_setfilter(key, program))
    }
    fn pcap_setdirection(key: Pcap, direction: c_int) -> c_int {
        let refused = || {
            let said = "A port has the frames that come to it; /t and /r after its name make a monitor";
            Failure::new(Code::Error, Errno::INVAL, said)
        };
        // Direction 2 means only sent frames.
        on!(key, _handle => if direction == 2 { Err(refused()) } else { Ok(0) },
            else real::pcap_setdirection(key, direction))
    }
    fn pcap_setnonblock(key: Pcap, nonblocking: c_int, message: *mut c_char) -> c_int {
        match find(key) {
            Some(handle) => {
                handle.capture.set_nonblocking(nonblocking != 0);
                0
            }
            // SAFETY: the caller keeps this function's contract.
            None => unsafe { real::pcap_setnonblock(key, nonblocking, message) },
        }
    }
    fn pcap_getnonblock(key: Pcap, message: *mut c_char) -> c_int {
        match find(key) {
            Some(handle) => handle.capture.is_nonblocking().into(),
            // SAFETY: the caller keeps this function's contract.
            None => unsafe { real::pcap_getnonblock(key, message) },
        }
    }
    fn pcap_get_selectable_fd(key: Pcap) -> c_int {
        on!(key, handle => handle.capture.descriptor(), else real::pcap_get_selectable_fd(key))
    }
    fn pcap_fileno(key: Pcap) -> c_int {
        on!(key, handle => handle.capture.descriptor(), else real::pcap_fileno(key))
    }
    fn pcap_get_required_select_timeout(key: Pcap) -> *const libc::timeval {
        match find(key) {
            Some(_) => ptr::null(),
            // SAFETY: the caller keeps this function's contract.
            None => unsafe { real::pcap_get_required_select_timeout(key) },
        }
    }
    fn pcap_stats(key: Pcap, stats: *mut Stats) -> c_int {
        on!(key, handle => handle.capture.counts().map(|counts| {
            let [received, dropped] = [counts.received, counts.dropped].map(|count| count as u32);
            // SAFETY: the caller keeps this function's contract.
            unsafe { stats.write(Stats { received, dropped, dropped_by_card: 0 }) };
            0
        }), else real::pcap_stats(key, stats))
    }
    fn pcap_geterr(key: Pcap) -> *mut c_char {
        match find(key) {
            Some(handle) if !handle.is_its.load(Ordering::Relaxed) => handle.message.get().cast(),
            // SAFETY: the caller keeps this function's contract.
            _ => unsafe { real::pcap_geterr(key) },
        }
    }
    fn pcap_perror(key: Pcap, prefix: *const c_char) -> () {
        // SAFETY: the caller keeps this function's contract.
        unsafe {
            let said = std::ffi::CStr::from_ptr(pcap_geterr(key)).to_string_lossy();
            let prefix = std::ffi::CStr::from_ptr(prefix).to_string_lossy();
            eprintln!("{prefix}: {said}");
        }
    }
}

/// Runs `call` with a temporary dead handle that has the capture's settings: libpcap writes them
/// into a file.
unsafe fn with_settings<T>(key: Pcap, call: impl FnOnce(Pcap) -> T) -> T {
    let Some(handle) = find(key) else { return call(key) };
    let Settings { snapshot, nanoseconds, .. } = handle.capture.settings();
    // SAFETY: any numbers are valid arguments; the descriptor is closed once.
    let dead = unsafe {
        real::pcap_open_dead_with_tstamp_precision(ETHERNET, snapshot as c_int, nanoseconds.into())
    };
    if dead.is_null() {
        return call(key);
    }
    let done = call(dead);
    // SAFETY: the handle is a dead one that nothing else knows.
    unsafe { real::pcap_close(dead) };
    done
}

export! {
    fn pcap_dump_open(key: Pcap, path: *const c_char) -> *mut c_void {
        // SAFETY: the caller keeps this function's contract.
        unsafe { with_settings(key, |key| real::pcap_dump_open(key, path)) }
    }
    fn pcap_dump_fopen(key: Pcap, file: *mut c_void) -> *mut c_void {
        // SAFETY: the caller keeps this function's contract.
        unsafe { with_settings(key, |key| real::pcap_dump_fopen(key, file)) }
    }
    fn pcap_dump_open_append(key: Pcap, path: *const c_char) -> *mut c_void {
        // SAFETY: the caller keeps this function's contract.
        unsafe { with_settings(key, |key| real::pcap_dump_open_append(key, path)) }
    }
    fn pcap_list_tstamp_types(key: Pcap, types: *mut *mut c_int) -> c_int {
        on!(key, _handle => {
            // SAFETY: the caller keeps this function's contract.
            unsafe { types.write(ptr::null_mut()) };
            Ok(0)
        }, else real::pcap_list_tstamp_types(key, types))
    }
    fn pcap_list_datalinks(key: Pcap, links: *mut *mut c_int) -> c_int {
        on!(key, _handle => {
            // SAFETY: memory that `pcap_free_datalinks` frees, and the caller's place for it.
            unsafe {
                let one: *mut c_int = libc::malloc(size_of::<c_int>()).cast();
                if one.is_null() {
                    return Err(Failure::new(Code::Error, Errno::NOMEM, "There is no memory"));
                }
                one.write(ETHERNET);
                links.write(one);
            }
            Ok(1)
        }, else real::pcap_list_datalinks(key, links))
    }
    fn pcap_set_datalink(key: Pcap, link: c_int) -> c_int {
        let refused = || Failure::new(Code::Error, Errno::INVAL, "Ports are Ethernet (EN10MB) only");
        on!(key, _handle => if link == ETHERNET { Ok(0) } else { Err(refused()) },
            else real::pcap_set_datalink(key, link))
    }
    fn pcap_lookupnet(
        name: *const c_char, net: *mut u32, mask: *mut u32, message: *mut c_char
    ) -> c_int {
        // SAFETY: the caller keeps this function's contract.
        unsafe {
            if device(name).is_none() {
                return real::pcap_lookupnet(name, net, mask, message);
            }
            net.write(0);
            mask.write(0);
        }
        0
    }
    fn pcap_findalldevs(first: *mut *mut Entry, message: *mut c_char) -> c_int {
        // SAFETY: the caller keeps this function's contract.
        unsafe {
            let done = real::pcap_findalldevs(first, message);
            if done == 0 {
                let _ = std::panic::catch_unwind(|| list::append(first));
            }
            done
        }
    }
}
