//! Refusals.

use serde::{Deserialize, Serialize};

/// Error codes, by which a program tells refusals apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The request is invalid.
    BadRequest,
    /// The path exists, but not with this method.
    MethodNotAllowed,
    /// The request's body is too long.
    TooLarge,
    /// No such switch, port, address or path.
    NotFound,
    /// It exists already.
    Exists,
    /// The object is in use, or something else refers to it.
    Busy,
    /// The topology has changed since the client read it.
    Stale,
    /// The client is not permitted to do this.
    Forbidden,
    /// The daemon lacks a privilege.
    NeedsPrivilege,
    /// A limit is reached: ports of a switch, connections, descriptors.
    Limit,
    /// The switch's data process does not run, or refused.
    DataProcess,
    /// The operating system refused.
    System,
}

impl ErrorCode {
    /// The HTTP status of this error code.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::Forbidden | Self::NeedsPrivilege | Self::Limit => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::TooLarge => 413,
            Self::Exists | Self::Busy => 409,
            Self::Stale => 412,
            Self::System => 500,
            Self::DataProcess => 503,
        }
    }
}

/// A refusal: its reason and the remedy. It is the body of every reply whose status is not 2xx.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[error("{reason}; {remedy}")]
pub struct ApiError {
    /// For programs.
    #[serde(rename = "error")]
    pub code: ErrorCode,
    /// Why.
    pub reason: String,
    /// What to do about it.
    pub remedy: String,
}

impl From<topology::Invalid> for ApiError {
    fn from(wrong: topology::Invalid) -> Self {
        Self::new(ErrorCode::BadRequest, wrong.reason, wrong.remedy)
    }
}

impl ApiError {
    /// A refusal.
    #[must_use]
    pub fn new(code: ErrorCode, reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { code, reason: reason.into(), remedy: remedy.into() }
    }
}

/// An error of the operating system, with a remedy if there is one.
#[expect(clippy::needless_pass_by_value, reason = "it stands in map_err")]
#[must_use]
pub fn system(what: &str, error: std::io::Error) -> ApiError {
    let (code, remedy) = match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => {
            (ErrorCode::Limit, "raise the limit of descriptors (ulimit -n; systemd: LimitNOFILE=)")
        }
        Some(libc::ENOMEM | libc::ENOSPC) => (ErrorCode::Limit, "free memory or disk space"),
        Some(libc::ENOENT) => (ErrorCode::NotFound, "make it first"),
        Some(libc::EACCES | libc::EPERM) => (
            ErrorCode::NeedsPrivilege,
            "give the daemon's user the permission, or name another place",
        ),
        _ => (ErrorCode::System, "see the daemon's log"),
    };
    ApiError::new(code, format!("{what}: {error}"), remedy)
}
