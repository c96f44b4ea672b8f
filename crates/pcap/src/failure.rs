//! Failures of calls, in the form for callers of libpcap and for callers of the system.

use std::fmt;

use rustix::io::Errno;

/// What libpcap's calls return for a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Code {
    /// `PCAP_ERROR`: the message says it.
    Error = -1,
    /// `PCAP_ERROR_BREAK`: `pcap_breakloop` was called.
    Break = -2,
    /// `PCAP_ERROR_NOT_ACTIVATED`.
    NotActivated = -3,
    /// `PCAP_ERROR_ACTIVATED`.
    Activated = -4,
    /// `PCAP_ERROR_NO_SUCH_DEVICE`.
    NoSuchDevice = -5,
    /// `PCAP_ERROR_RFMON_NOTSUP`.
    NoRadio = -6,
    /// `PCAP_ERROR_PERM_DENIED`.
    PermissionDenied = -8,
    /// `PCAP_ERROR_CANTSET_TSTAMP_TYPE`.
    NoTimestampType = -10,
    /// `PCAP_ERROR_TSTAMP_PRECISION_NOTSUP`.
    NoPrecision = -12,
}

/// The reason why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// For callers of libpcap.
    pub code: Code,
    /// For callers of the system.
    pub errno: Errno,
    /// For people.
    pub message: String,
}

impl Failure {
    /// A failure.
    #[must_use]
    pub fn new(code: Code, errno: Errno, message: impl Into<String>) -> Self {
        Self { code, errno, message: message.into() }
    }

    pub(crate) fn not_activated() -> Self {
        Self::new(Code::NotActivated, Errno::INVAL, "The capture is not activated yet")
    }

    /// The system refused something.
    pub(crate) fn io(errno: Errno) -> Self {
        Self::new(Code::Error, errno, format!("The system refused something: {errno}"))
    }

    /// `pcap_breakloop` ended the call.
    #[must_use]
    pub fn stopped() -> Self {
        Self::new(Code::Break, Errno::CANCELED, "")
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}
