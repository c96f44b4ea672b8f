//! The host's end of an interface: a tap beside it, and programs that move the host's network stack
//! to the tap.
//!
//! ```text
//!   host's stack --egress of eth0--> redirected --> tap eth0^ --> port of a switch
//!   host's stack <-ingress of eth0-- redirected <-- tap eth0^ <-- port of a switch
//!                        ^-- dropped: what comes from the wire is the business of its own port
//! ```
//!
//! The programs are attached by tcx links, or reached from filters by an array ([`clsact`]), and
//! the tap is not persistent. So all of it ends with the last process that has the descriptors, and
//! the host has its interface back.

use std::io;
use std::os::fd::OwnedFd;

use dataplane::config::HostConfig;
use host::part::Part;
use topology::Host;

use super::link::{self, Asker, Link};
use super::tun::make_tap;
use super::{bpf, clsact, find};
use crate::api::{ApiError, ErrorCode, system};

/// The variable that makes the daemon use clsact where the kernel has tcx, if it is `off`.
const SWITCH: &str = "TOKLAT_TCX";
/// Longest name of an interface in bytes.
const IFNAME: usize = 15;

/// The name of the tap of an interface: netmap's name for its host rings.
#[must_use]
pub fn tap_of(ifname: &str, index: u32) -> String {
    match ifname.len() < IFNAME {
        true => format!("{ifname}^"),
        false => format!("if{index}^"),
    }
}

/// True if the host's end of this interface is a port.
pub(super) fn is_taken(asker: &Asker, ifname: &str, index: u32) -> bool {
    asker.ask(&tap_of(ifname, index)).is_ok_and(|tap| tap.is_some())
}

/// Opens the host's end of an interface of this thread's namespace. Returns what the data process
/// gets: the tap's queue, then what keeps the programs attached.
///
/// # Errors
/// There is no such interface, or the daemon may not use it so.
pub fn open(settings: &Host) -> Result<(HostConfig, Vec<OwnedFd>), ApiError> {
    let Host { ifname, netns } = settings.clone();
    let Link { index, generic_xdp, .. } = find(&ifname)?;
    if generic_xdp {
        let reason = format!(
            "Generic XDP on {ifname} would take what the switch sends to the host behind it"
        );
        let remedy = "give the interface's port --engine packet";
        return Err(ApiError::new(ErrorCode::Busy, reason, remedy));
    }
    let tap = tap_of(&ifname, index);
    let quiet = |tap: &str| {
        // A kernel without IPv6 makes no addresses.
        let silenced = find(tap).and_then(|tap| {
            link::make_no_addresses(tap.index).map_err(|e| system("Cannot silence a tap", e))
        });
        _ = silenced.inspect_err(|error| tracing::debug!(tap, %error, "addresses are made"));
    };
    let (uso, mut fds) = make_tap(&tap, 1, quiet)?;
    let tap_index = find(&tap)?.index;
    let (clsact, held) = attach(index, tap_index).map_err(|error| refused(&ifname, error))?;
    fds.extend(held);
    Ok((HostConfig { ifname, netns, index, tap, tap_index, uso, clsact }, fds))
}

/// Moves the host behind an interface to a tap. Returns true if that was by clsact, and what keeps
/// the programs attached.
fn attach(interface: u32, tap: u32) -> io::Result<(bool, Vec<OwnedFd>)> {
    let programs = bpf::host_programs(interface, tap)?;
    let by_clsact = || Ok((true, vec![clsact::attach(&programs, tap)?]));
    if std::env::var_os(SWITCH).is_some_and(|value| value == "off") {
        return by_clsact();
    }
    match programs.iter().map(bpf::link_host).collect::<io::Result<_>>() {
        // The kernel does not know tcx.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => by_clsact(),
        links => Ok((false, links?)),
    }
}

/// The reason why programs cannot be attached, and the remedy.
fn refused(ifname: &str, error: io::Error) -> ApiError {
    let what = format!("Cannot move the host from {ifname} to a port: {error}");
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => ApiError::new(
            ErrorCode::NeedsPrivilege,
            what,
            Part::Interfaces.remedy(
                &error,
                "run the daemon as root, or give it CAP_NET_ADMIN and CAP_BPF (systemd: AmbientCapabilities=)",
            ),
        ),
        // A filter of another kind has the first place, or there is no clsact.
        Some(libc::EINVAL | libc::ENOENT) | None => ApiError::new(
            ErrorCode::System,
            what,
            format!(
                "free the first place there (tc qdisc del dev {ifname} ingress, tc filter del dev \
                 {ifname} egress pref 1); or run Linux 6.6, or one with sch_ingress and cls_bpf"
            ),
        ),
        _ => system(&format!("Cannot move the host from {ifname} to a port"), error),
    }
}
