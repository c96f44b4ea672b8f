//! Waiting: in the library, or in the program's own event loop.

use std::ffi::{c_int, c_uint};
use std::os::fd::AsRawFd;
use std::time::Duration;

use netring::{Interest, Readiness};

use crate::failure::Failure;
use crate::handle::{Handle, enter};

/// Converts `TOKLAT_READ` and `TOKLAT_WRITE`; the bits are those of the ring library.
fn interest(bits: c_uint) -> Result<Interest, Failure> {
    let interest = u8::try_from(bits).ok().and_then(Interest::from_bits);
    interest
        .filter(|interest| !interest.is_empty())
        .ok_or(Failure::invalid(c"The interest is not TOKLAT_READ, TOKLAT_WRITE or both"))
}

fn bits(ready: Readiness) -> c_int {
    let bit = |is_so, bit: Interest| if is_so { c_int::from(bit.bits()) } else { 0 };
    bit(ready.readable, Interest::READ) | bit(ready.writable, Interest::WRITE)
}

/// See toklat.h.
///
/// # Safety
/// As toklat.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toklat_wait(
    port: *mut Handle,
    wanted: c_uint,
    timeout_ms: c_int,
) -> c_int {
    let wait = |handle: &mut Handle| {
        let wanted = interest(wanted)?;
        handle.forget_lent();
        // A negative timeout means to wait forever.
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        let ready = handle.port.wait(wanted, timeout)?;
        Ok(bits(Readiness {
            readable: ready.readable && wanted.contains(Interest::READ),
            writable: ready.writable && wanted.contains(Interest::WRITE),
        }))
    };
    // SAFETY: the caller keeps this function's contract.
    unsafe { enter(port, wait) }
}

/// See toklat.h.
///
/// # Safety
/// As toklat.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toklat_fd(port: *mut Handle) -> c_int {
    // SAFETY: the caller keeps this function's contract.
    unsafe { enter(port, |handle| Ok(handle.port.as_raw_fd())) }
}

/// See toklat.h.
///
/// # Safety
/// As toklat.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toklat_arm(port: *mut Handle, wanted: c_uint) -> c_int {
    // SAFETY: the caller keeps this function's contract.
    unsafe { enter(port, |handle| Ok(bits(handle.port.arm(interest(wanted)?)))) }
}

/// See toklat.h.
///
/// # Safety
/// As toklat.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toklat_disarm(port: *mut Handle) -> c_int {
    let disarm = |handle: &mut Handle| {
        handle.port.disarm()?;
        Ok(0)
    };
    // SAFETY: the caller keeps this function's contract.
    unsafe { enter(port, disarm) }
}

/// See toklat.h.
///
/// # Safety
/// As toklat.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toklat_check(port: *mut Handle) -> c_int {
    let check = |handle: &mut Handle| {
        handle.port.check()?;
        Ok(0)
    };
    // SAFETY: the caller keeps this function's contract.
    unsafe { enter(port, check) }
}
