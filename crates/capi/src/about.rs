//! Queries that move no frames.

use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use netring::PortError;

use crate::failure::{Failure, meaning};
use crate::handle::{Handle, Stats, enter, number};

/// See toklat.h.
#[unsafe(no_mangle)]
pub extern "C" fn toklat_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}

/// See toklat.h.
#[unsafe(no_mangle)]
pub extern "C" fn toklat_strerror(error: c_int) -> *const c_char {
    // Errors are understood with either sign.
    meaning(error.checked_abs().unwrap_or(c_int::MAX)).as_ptr()
}

/// See toklat.h.
///
/// # Safety
/// As toklat.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toklat_message(port: *const Handle) -> *const c_char {
    // SAFETY: the caller keeps this function's contract.
    unsafe { port.as_ref() }.map_or(c"The port is null".as_ptr(), |handle| handle.message.as_ptr())
}

/// See toklat.h.
///
/// # Safety
/// As toklat.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toklat_name(port: *const Handle) -> *const c_char {
    // SAFETY: the caller keeps this function's contract.
    unsafe { port.as_ref() }.map_or(ptr::null(), |handle| handle.name.as_ptr())
}

/// See toklat.h.
///
/// # Safety
/// As toklat.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toklat_send_queues(port: *mut Handle) -> c_int {
    // SAFETY: the caller keeps this function's contract.
    unsafe { enter(port, |handle| Ok(number(handle.port.queues().0))) }
}

/// See toklat.h.
///
/// # Safety
/// As toklat.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toklat_receive_queues(port: *mut Handle) -> c_int {
    // SAFETY: the caller keeps this function's contract.
    unsafe { enter(port, |handle| Ok(number(handle.port.queues().1))) }
}

/// See toklat.h.
///
/// # Safety
/// As toklat.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toklat_max_frame(port: *mut Handle) -> c_int {
    // SAFETY: the caller keeps this function's contract.
    unsafe { enter(port, |handle| Ok(number(handle.max_frame()))) }
}

/// Length of the first version of the statistics; no version is shorter.
const FIRST_SIZE: usize = 64;
const _: () = assert!(size_of::<Stats>() == FIRST_SIZE);

/// See toklat.h.
///
/// # Safety
/// As toklat.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toklat_stats(port: *mut Handle, stats: *mut Stats) -> c_int {
    let tell = |handle: &mut Handle| {
        if stats.is_null() {
            return Err(Failure::invalid(c"The statistics have no place: the pointer is null"));
        }
        // SAFETY: not null, and valid by the caller's contract; `size` is the first field.
        let size = unsafe { stats.cast::<u32>().read_unaligned() };
        if (size as usize) < FIRST_SIZE {
            return Err(Failure::invalid(
                c"The statistics have no size; begin with TOKLAT_STATS_INIT",
            ));
        }
        let fault = match handle.port.check() {
            Err(PortError::Fault(fault) | PortError::Peer(fault)) => fault as u32,
            _ => 0,
        };
        // SAFETY: as above: `size` bytes are writable, and no fewer than are written.
        unsafe { stats.write_unaligned(Stats { size: FIRST_SIZE as u32, fault, ..handle.stats }) };
        Ok(0)
    };
    // SAFETY: the caller keeps this function's contract.
    unsafe { enter(port, tell) }
}
