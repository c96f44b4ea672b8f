//! Tap interfaces and network namespaces of this host.
#![allow(unsafe_code, reason = "tap interfaces are made by ioctls that take a struct ifreq")]

use std::fs::OpenOptions;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use api::{ApiError, ErrorCode, system};
use rustix::thread::LinkNameSpaceType;

use crate::part::Part;

/// Opens the only queue of an existing tap in a namespace. Each frame follows a header of 10 bytes.
///
/// # Errors
/// The tap does not exist, is in use, or may not be used by this process.
pub fn queue_of_tap(ifname: &str, netns: &str) -> Result<OwnedFd, ApiError> {
    let open = || {
        enter(netns)?;
        open_queue(ifname, false).map_err(|e| privileged(&format!("Cannot open {ifname}"), e))
    };
    let opened = std::thread::scope(|scope| scope.spawn(open).join());
    opened.unwrap_or_else(|_| Err(privileged("Cannot use tap", io::ErrorKind::Other.into())))
}

/// Opens a queue of a tap, and makes the tap if it is missing. Each frame follows a header of 10
/// bytes.
///
/// # Errors
/// The kernel has no taps, or the interface is in use or not ours to use.
pub fn open_queue(ifname: &str, one_of_several: bool) -> io::Result<OwnedFd> {
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let mut tun = OpenOptions::new();
    let tun = tun.read(true).write(true).custom_flags(nonblock).open("/dev/net/tun")?.into();
    let several = if one_of_several { libc::IFF_MULTI_QUEUE } else { 0 };
    let kind = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | several) as i16;
    ifreq_ioctl(&tun, libc::TUNSETIFF, ifname, Field::Flags(kind))?;
    Ok(tun)
}

/// The file of a network namespace: of a name in /run/netns, a process id, or an absolute path.
///
/// # Errors
/// It is none of these.
pub fn path_of(netns: &str) -> Result<PathBuf, ApiError> {
    let no_path = !netns.is_empty() && !netns.contains('/') && !netns.starts_with('.');
    match netns.parse::<u32>() {
        Ok(pid) => Ok(PathBuf::from(format!("/proc/{pid}/ns/net"))),
        Err(_) if no_path => Ok(Path::new("/run/netns").join(netns)),
        Err(_) if netns.starts_with('/') => Ok(PathBuf::from(netns)),
        Err(_) => {
            let reason = format!("{netns:?} is not a network namespace");
            let remedy = "give a name of `ip netns list`, a process id, or an absolute path";
            Err(ApiError::new(ErrorCode::BadRequest, reason, remedy))
        }
    }
}

/// Moves this thread into a network namespace, as [`path_of`] names it.
///
/// # Errors
/// There is no such namespace, or the daemon may not enter it.
pub fn enter(netns: &str) -> Result<(), ApiError> {
    let namespace = open_namespace(netns)?;
    rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|e| cannot_enter(netns, e.into()))
}

/// Opens a network namespace, as [`path_of`] names it.
///
/// # Errors
/// There is no such namespace, or the daemon may not look at it.
pub fn open_namespace(netns: &str) -> Result<OwnedFd, ApiError> {
    let path = path_of(netns)?;
    // What is no namespace must not block the thread.
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let opened = OpenOptions::new().read(true).custom_flags(nonblock).open(&path);
    Ok(opened.map_err(|e| cannot_enter(netns, e))?.into())
}

fn cannot_enter(netns: &str, error: io::Error) -> ApiError {
    let otherwise =
        "run the daemon as root or give it CAP_SYS_ADMIN (systemd: AmbientCapabilities=)";
    let remedy = Part::Containers.remedy(&error, otherwise);
    let error = privileged(&format!("Cannot enter network namespace {netns}"), error);
    match error.code {
        ErrorCode::NeedsPrivilege => ApiError { remedy, ..error },
        _ => error,
    }
}

/// The reason why an interface or a namespace cannot be used, and the remedy.
#[must_use]
pub fn privileged(what: &str, error: io::Error) -> ApiError {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => ApiError::new(
            ErrorCode::NeedsPrivilege,
            format!("{what}: {error}"),
            "run the daemon as root or give it CAP_NET_ADMIN (systemd: AmbientCapabilities=)",
        ),
        Some(libc::EBUSY) => ApiError::new(
            ErrorCode::Busy,
            format!("{what}: {error}"),
            "another program has the interface; use another name",
        ),
        Some(libc::ENOENT) => ApiError::new(
            ErrorCode::NotFound,
            format!("{what}: {error}"),
            "make it first (ip netns add; modprobe tun)",
        ),
        _ => system(what, error),
    }
}

/// The part of a `struct ifreq` that a request sets.
#[derive(Clone, Copy, Debug)]
pub enum Field {
    /// The interface's flags (`IFF_*`, or those of `TUNSETIFF`).
    Flags(i16),
    /// A number, such as an MTU.
    Number(i32),
    /// An address, or the mask of a network.
    Address(Ipv4Addr),
}

/// Sends a request about an interface (netdevice(7)).
///
/// # Errors
/// The kernel refuses.
pub fn ifreq_ioctl(
    fd: &OwnedFd,
    request: libc::Ioctl,
    ifname: &str,
    field: Field,
) -> io::Result<()> {
    // SAFETY: a struct ifreq of zeros is a valid one.
    let mut ifreq: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte of the name stays zero, to terminate it.
    let room = ifreq.ifr_name.len() - 1;
    for (to, from) in ifreq.ifr_name[..room].iter_mut().zip(ifname.bytes()) {
        *to = from as libc::c_char;
    }
    match field {
        Field::Flags(flags) => ifreq.ifr_ifru.ifru_flags = flags,
        Field::Number(number) => ifreq.ifr_ifru.ifru_mtu = number,
        Field::Address(address) => {
            let mut place = [0; 14];
            for (to, from) in place[2..6].iter_mut().zip(address.octets()) {
                *to = from as libc::c_char;
            }
            let sa_family = libc::AF_INET as libc::sa_family_t;
            ifreq.ifr_ifru.ifru_addr = libc::sockaddr { sa_family, sa_data: place };
        }
    }
    // SAFETY: these requests take a pointer to a struct ifreq, which lives during the call.
    match unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw mut ifreq) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
