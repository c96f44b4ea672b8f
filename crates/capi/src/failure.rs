//! Errors in the form that C programs get: an errno and a message.

use std::borrow::Cow;
use std::error::Error;
use std::ffi::{CStr, CString, c_int};

use netring::{OpenError, PortError, RegionError};

/// The reason why a call failed.
#[derive(Debug)]
pub struct Failure {
    /// A positive errno.
    pub errno: c_int,
    /// What failed, and what to do about it.
    pub message: Cow<'static, CStr>,
}

impl Failure {
    /// Makes a failure with a static message, so that nothing is allocated.
    pub const fn new(errno: c_int, message: &'static CStr) -> Self {
        Self { errno, message: Cow::Borrowed(message) }
    }

    /// Makes a failure for an invalid argument.
    pub const fn invalid(message: &'static CStr) -> Self {
        Self::new(libc::EINVAL, message)
    }

    fn with_message(errno: c_int, message: &str) -> Self {
        // Our messages contain no zero byte, but a name in one may.
        let message = CString::new(message.replace('\0', "?")).unwrap_or_default();
        Self { errno, message: Cow::Owned(message) }
    }

    /// Formats the error and all of its sources in one line.
    fn of(errno: c_int, error: &dyn Error) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(error) = source {
            message = format!("{message}: {error}");
            source = error.source();
        }
        Self::with_message(errno, &message)
    }
}

impl From<PortError> for Failure {
    fn from(error: PortError) -> Self {
        match error {
            PortError::Fault(fault) => Self::with_message(
                libc::EBADMSG,
                &format!("The switch put the port into its error state ({fault:?}); call toklat_reset"),
            ),
            PortError::Peer(fault) => Self::with_message(
                libc::EPROTO,
                &format!(
                    "The other side of the port broke its rings ({fault:?}); close the port and open it again"
                ),
            ),
            PortError::Gone => Self::new(
                libc::ENXIO,
                c"The port was removed, or its daemon ended (`toklat port show` tells); call toklat_reopen",
            ),
            PortError::NotReset(_) => Self::of(libc::ETIMEDOUT, &error),
            PortError::NotRestartable => Self::of(libc::EOPNOTSUPP, &error),
            PortError::Io(errno) => Self::of(errno.raw_os_error(), &error),
            _ => Self::of(libc::EIO, &error),
        }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        let errno = match &error {
            OpenError::Name(_) | OpenError::PrivateRegion => libc::EINVAL,
            OpenError::NoDaemon { .. } => libc::ECONNREFUSED,
            OpenError::Denied { .. } => libc::EACCES,
            // The daemon's errno is checked, so that the result is always a valid error.
            OpenError::Refused { errno, .. } if (1..4096).contains(errno) => *errno,
            OpenError::Refused { .. } | OpenError::Malformed(_) => libc::EPROTO,
            OpenError::Region(error) => errno_of(error),
            OpenError::NotOpenedHere => libc::EOPNOTSUPP,
            OpenError::Io(errno) => errno.raw_os_error(),
            _ => libc::EIO,
        };
        Self::of(errno, &error)
    }
}

fn errno_of(error: &RegionError) -> c_int {
    match error {
        RegionError::Geometry(_) => libc::EINVAL,
        RegionError::Event(_) => libc::EMFILE,
        _ => libc::ENOMEM,
    }
}

/// Returns what an errno of this library means, for every call.
pub fn meaning(errno: c_int) -> &'static CStr {
    match errno {
        0 => c"Done",
        libc::EINVAL => c"An argument is not valid",
        libc::EAGAIN => c"There is no room in the ring; flush, and wait for TOKLAT_WRITE",
        libc::EMSGSIZE => c"The frame is longer than the port takes",
        libc::EBADMSG => c"The switch put the port into its error state; call toklat_reset",
        libc::EPROTO => c"The other side broke the protocol; close the port and open it again",
        libc::ENXIO => c"The port was removed, or its daemon ended; call toklat_reopen",
        libc::ECONNREFUSED => c"No daemon listens; start `toklat daemon`, or set TOKLAT_DIR",
        libc::EACCES => c"Not allowed to use the daemon's socket",
        libc::EBUSY => c"The port is open already",
        libc::ENOENT => c"There is no such switch",
        libc::ETIMEDOUT => c"The switch did not reset the port; close it and open it again",
        libc::EOPNOTSUPP => c"The port cannot be reset or reopened; close it and open it again",
        libc::E2BIG => c"The options are of a newer version of the library",
        libc::ENOMEM => c"There is not enough memory",
        libc::EMFILE => c"Too many files are open",
        libc::EIO => c"The library failed; close the port and open it again",
        _ => c"The operating system or the daemon refused it; see errno(3) and toklat_message",
    }
}
