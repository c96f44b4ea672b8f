//! Network interfaces of the host that are ports. The supervisor opens what reaches them; the data
//! process only polls and sends.
#![allow(unsafe_code, reason = "no library asks for the number of an interface")]

mod packet;

use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;

use dataplane::config::Engine;

use crate::api::{ApiError, ErrorCode, system};

/// Opens the interface called `ifname` of this thread's namespace, with this many queues. Returns
/// its number, how frames come and go, and the descriptors of the queues.
///
/// # Errors
/// There is no such interface, or the daemon may not use it.
pub fn open(ifname: &str, queues: u16) -> Result<(u32, Engine, Vec<OwnedFd>), ApiError> {
    let index = index_of(ifname)?;
    let failed = |e| privileged(&format!("Cannot use interface {ifname}"), e);
    let (engine, fds) = packet::open(index, queues).map_err(failed)?;
    Ok((index, engine, fds))
}

/// The number of the interface called `ifname`.
fn index_of(ifname: &str) -> Result<u32, ApiError> {
    let name = CString::new(ifname).map_err(|e| system("Cannot name an interface", e.into()))?;
    // SAFETY: the name ends with a zero byte, and lives during the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => {
            let reason = format!("There is no interface {ifname}");
            let remedy = "see `ip link`; `netns` names the namespace it is in";
            Err(ApiError::new(ErrorCode::NotFound, reason, remedy))
        }
        index => Ok(index),
    }
}

/// Why an interface cannot be used, and the remedy.
fn privileged(what: &str, error: io::Error) -> ApiError {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => ApiError::new(
            ErrorCode::NeedsPrivilege,
            format!("{what}: {error}"),
            "run the daemon as root or give it CAP_NET_RAW (systemd: AmbientCapabilities=)",
        ),
        _ => system(what, error),
    }
}
