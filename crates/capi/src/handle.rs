//! The handle behind a `struct toklat_port`.

use std::borrow::Cow;
use std::ffi::{CStr, CString, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use netring::Port;
use netring::layout::MAX_FRAGS;

use crate::failure::Failure;

/// An open port, with the state that its C program needs.
#[derive(Debug)]
pub struct Handle {
    pub port: Port,
    pub name: CString,
    /// Message of the last call that failed.
    pub message: Cow<'static, CStr>,
    /// Slots that are reserved and not yet committed, by send queue.
    pub reserved: Box<[usize]>,
    /// Joined frames of several slots: lent until the next flush.
    pub joined: Vec<Box<[u8]>>,
    pub stats: Stats,
    /// A call panicked, so the port's state is not trusted any more.
    broken: bool,
}

/// `struct toklat_stats`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Stats {
    pub size: u32,
    pub fault: u32,
    pub sent_frames: u64,
    pub sent_bytes: u64,
    pub received_frames: u64,
    pub received_bytes: u64,
    pub joined_frames: u64,
    pub resets: u64,
    pub reopens: u64,
}

// toklat.h allows programs to pass a handle from thread to thread.
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<Handle>();
};

impl Handle {
    pub fn new(port: Port, name: CString) -> Self {
        let reserved = vec![0; port.queues().0].into();
        let message = Cow::Borrowed(c"");
        Self {
            port,
            name,
            message,
            reserved,
            joined: Vec::new(),
            stats: Stats::default(),
            broken: false,
        }
    }

    /// Returns the maximum length of a frame. In a pipe, only the rings set a limit.
    pub fn max_frame(&mut self) -> usize {
        if self.port.name().contains(['{', '}']) {
            return self.port.send(0).slot_bytes().saturating_mul(MAX_FRAGS);
        }
        self.port.max_frame()
    }

    /// Forgets which slots and frames were lent, after the rings were published or replaced.
    pub fn forget_lent(&mut self) {
        self.reserved.fill(0);
        self.joined.clear();
    }
}

/// Runs `call` on the handle at `handle`, and converts its result to C's form.
///
/// # Safety
/// `handle` is null, or an open handle that no other thread uses.
pub unsafe fn enter(
    handle: *mut Handle,
    call: impl FnOnce(&mut Handle) -> Result<c_int, Failure>,
) -> c_int {
    // SAFETY: the caller keeps this function's contract.
    let Some(handle) = (unsafe { handle.as_mut() }) else { return -libc::EINVAL };
    if handle.broken {
        return -libc::EIO;
    }
    let failure = match catch_unwind(AssertUnwindSafe(|| call(handle))) {
        Ok(Ok(value)) => return value,
        Ok(Err(failure)) => failure,
        Err(_) => {
            handle.broken = true;
            Failure::new(libc::EIO, c"The library panicked; close the port and open it again")
        }
    };
    handle.message = failure.message;
    -failure.errno
}

/// Converts a count of queues, slots or frames to C's `int`.
pub fn number(count: usize) -> c_int {
    c_int::try_from(count).unwrap_or(c_int::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use netring::{Region, RegionConfig};

    fn handle() -> Handle {
        let region = Region::private(RegionConfig::ports(1, 1, 16)).unwrap();
        Handle::new(Port::inline(&region, "vale0:p", 1, 1, 16).unwrap(), c"vale0:p".into())
    }

    #[test]
    fn a_panic_is_an_error_and_the_handle_stays_broken() {
        let mut handle = handle();
        // SAFETY: an open handle of this thread.
        let broken = unsafe { enter(&raw mut handle, |_| panic!("a test's")) };
        assert_eq!(broken, -libc::EIO);
        assert!(handle.message.to_str().unwrap().contains("panicked"));
        // SAFETY: as above.
        let next = unsafe { enter(&raw mut handle, |_| Ok(0)) };
        assert_eq!(next, -libc::EIO);
    }

    #[test]
    fn null_is_refused() {
        // SAFETY: the pointer may be null.
        let refused = unsafe { enter(std::ptr::null_mut(), |_| Ok(0)) };
        assert_eq!(refused, -libc::EINVAL);
    }
}
