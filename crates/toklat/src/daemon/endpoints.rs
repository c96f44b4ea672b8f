//! What the supervisor opens for data processes, which may not: tap interfaces and files.
#![allow(unsafe_code, reason = "tap interfaces are made by ioctls that take a struct ifreq")]

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use dataplane::config::{Attachment, Doorbell};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::thread::LinkNameSpaceType;
use shmem::{Memfd, Pages};

use super::front_ends::{self, Place};
use super::system;
use crate::api::{ApiError, ErrorCode, PortKind};

/// What becomes of a file that a port writes, and that has something in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// Emptied: an operator asks for a new port.
    Emptied,
    /// Appended to: the port goes on, after a restart or what had failed.
    Kept,
}

/// Who may use a socket beside the daemon's user: the port's owner, and the group that may open ports.
pub type Users<'a> = (Option<u32>, Option<&'a str>);

/// Opens what a port of this kind is attached to. A ring port, or one that waits for who is to be at the
/// other end of its socket, has nobody yet: it is vacant.
///
/// # Errors
/// It cannot be opened.
pub async fn open(
    kind: &PortKind,
    mtu: u16,
    written: Written,
    users: Users<'_>,
) -> Result<(Attachment, Vec<OwnedFd>), ApiError> {
    Ok(match kind {
        PortKind::Ring
        | PortKind::VhostUser { .. }
        | PortKind::VfioUser { .. }
        | PortKind::Stream { .. }
        // A tunnel is opened with others of its host: see `tunnels`.
        | PortKind::Vxlan { .. } => (Attachment::Vacant, Vec::new()),
        PortKind::Dgram { local, remote } => {
            let socket = front_ends::datagrams(&Place::of(local), &Place::of(remote), users)?;
            (Attachment::Dgram, vec![socket])
        }
        PortKind::Null => (Attachment::Null, Vec::new()),
        PortKind::Tap { ifname, netns, queues } => {
            let (uso, fds) = open_tap(ifname.clone(), netns.clone(), *queues, mtu).await?;
            (Attachment::Tap { uso }, fds)
        }
        PortKind::PcapRead { path, repeat, speed_percent } => {
            let how = Attachment::PcapRead { repeat: *repeat, speed_percent: *speed_percent };
            (how, vec![open_file(path, None)?])
        }
        PortKind::PcapWrite { path } => {
            (Attachment::PcapWrite, vec![open_file(path, Some(written))?])
        }
    })
}

/// Memory for the doorbells of a port's network card, if they are to lie in memory.
///
/// # Errors
/// There is no memory.
pub fn doorbells(kind: &PortKind) -> Result<Option<OwnedFd>, ApiError> {
    /// Bytes of the e1000 family's registers.
    const REGISTERS: usize = 128 << 10;
    let PortKind::VfioUser { nic, .. } = kind else { return Ok(None) };
    if nic.doorbell == Doorbell::Trap {
        return Ok(None);
    }
    let file = Memfd::create("toklat-doorbells", REGISTERS, Pages::Small);
    let failed = |e| system("Cannot make memory for doorbells", io::Error::other(e));
    Ok(Some(file.map_err(failed)?.into_fd()))
}

/// Opens a file to be read or, if `written` says how, to be written.
fn open_file(path: &str, written: Option<Written>) -> Result<OwnedFd, ApiError> {
    let failed = |e| system(&format!("Cannot open {path}"), e);
    let mut how = OpenOptions::new();
    // A named pipe without a reader must not block the supervisor, and a link at the file's place, which another
    // user may have put there, must not lead it elsewhere.
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOFOLLOW;
    how.custom_flags(flags.bits().cast_signed());
    let write = written.is_some();
    how.read(!write).append(write).create(write);
    let file = how.open(path).map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => {
            let reason = format!("{path} is a symbolic link");
            ApiError::new(ErrorCode::BadRequest, reason, "name the file that it leads to")
        }
        _ => failed(error),
    })?;
    let kind = file.metadata().map_err(failed)?.file_type();
    if !kind.is_file() && !kind.is_fifo() {
        let reason = format!("{path} is no file");
        return Err(ApiError::new(ErrorCode::BadRequest, reason, "name a pcap file"));
    }
    if written == Some(Written::Emptied) && kind.is_file() {
        file.set_len(0).map_err(failed)?;
    }
    Ok(file.into())
}

/// Offloads that a tap is told we take (`linux/if_tun.h`): checksums, TCP in IPv4 and IPv6 with ECN.
const TUN_OFFLOADS: libc::c_ulong = 0x01 | 0x02 | 0x04 | 0x08;
/// UDP in IPv4 and IPv6, since Linux 6.2.
const TUN_USO: libc::c_ulong = 0x20 | 0x40;
/// Bytes of the virtio-net header before each frame.
static VNET_HEADER: libc::c_int = frame::OFFLOAD_HEADER as libc::c_int;

/// Makes the interface in its namespace, sets its MTU and brings it up. Returns whether it takes UDP that
/// is to be segmented, and its queues.
async fn open_tap(
    ifname: String,
    netns: Option<String>,
    queues: u16,
    mtu: u16,
) -> Result<(bool, Vec<OwnedFd>), ApiError> {
    in_namespace(netns, move || {
        let failed = |what: &str| {
            let what = format!("Cannot {what} tap interface {ifname}");
            move |e: io::Error| privileged(&what, e)
        };
        let queue = |_| open_queue(&ifname, queues > 1).map_err(failed("make"));
        let fds = (0..queues).map(queue).collect::<Result<Vec<_>, _>>()?;
        let uso = set_offloads(&fds).map_err(failed("set the offloads of"))?;
        let socket = datagram_socket().map_err(failed("reach"))?;
        let mtu = Field::Number(i32::from(mtu));
        ifreq_ioctl(&socket, libc::SIOCSIFMTU as _, &ifname, mtu)
            .map_err(failed("set the MTU of"))?;
        let up = Field::Flags((libc::IFF_UP | libc::IFF_RUNNING) as i16);
        ifreq_ioctl(&socket, libc::SIOCSIFFLAGS as _, &ifname, up).map_err(failed("bring up"))?;
        Ok((uso, fds))
    })
    .await
}

/// The only queue of a tap that is there, in a namespace; frames begin behind a header of 10 bytes.
///
/// # Errors
/// It is not there, or in use, or not ours to use.
pub fn queue_of_tap(ifname: &str, netns: &str) -> Result<OwnedFd, ApiError> {
    let open = || {
        enter(netns)?;
        open_queue(ifname, false).map_err(|e| privileged(&format!("Cannot open {ifname}"), e))
    };
    let opened = std::thread::scope(|scope| scope.spawn(open).join());
    opened.unwrap_or_else(|_| Err(system("Cannot use tap", io::ErrorKind::Other.into())))
}

fn open_queue(ifname: &str, one_of_several: bool) -> io::Result<OwnedFd> {
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let mut tun = OpenOptions::new();
    let tun = tun.read(true).write(true).custom_flags(nonblock).open("/dev/net/tun")?.into();
    let several = if one_of_several { libc::IFF_MULTI_QUEUE } else { 0 };
    let kind = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | several) as i16;
    ifreq_ioctl(&tun, libc::TUNSETIFF, ifname, Field::Flags(kind))?;
    Ok(tun)
}

/// Has the kernel hand out packets that are to be segmented; true if UDP is among them and taken.
fn set_offloads(queues: &[OwnedFd]) -> io::Result<bool> {
    let mut uso = true;
    for queue in queues {
        let queue = queue.as_raw_fd();
        // SAFETY: this request reads an int, which lives for ever.
        if unsafe { libc::ioctl(queue, libc::TUNSETVNETHDRSZ, &raw const VNET_HEADER) } == -1 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: this request takes a number.
        let set = |offloads: libc::c_ulong| unsafe { libc::ioctl(queue, libc::TUNSETOFFLOAD, offloads) } == 0;
        uso = uso && set(TUN_OFFLOADS | TUN_USO);
        if !uso && !set(TUN_OFFLOADS) {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(uso)
}

/// Tells what a port is attached to of a new MTU, where that matters.
///
/// # Errors
/// The interface is gone, or the daemon may not change it.
pub async fn set_mtu(kind: &PortKind, mtu: u16) -> Result<(), ApiError> {
    let PortKind::Tap { ifname, netns, .. } = kind.clone() else { return Ok(()) };
    in_namespace(netns, move || {
        let failed = |e| privileged(&format!("Cannot set the MTU of {ifname}"), e);
        let socket = datagram_socket().map_err(failed)?;
        let mtu = Field::Number(i32::from(mtu));
        ifreq_ioctl(&socket, libc::SIOCSIFMTU as _, &ifname, mtu).map_err(failed)
    })
    .await
}

fn datagram_socket() -> io::Result<OwnedFd> {
    let (family, datagram) = (AddressFamily::INET, SocketType::DGRAM);
    Ok(rustix::net::socket_with(family, datagram, SocketFlags::CLOEXEC, None)?)
}

/// Does something in a network namespace. A thread that has entered one cannot be trusted with
/// anything else, so this one ends with it.
///
/// # Errors
/// What it says, or the namespace cannot be entered.
pub async fn in_namespace<T: Send + 'static>(
    netns: Option<String>,
    what: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let (done, result) = tokio::sync::oneshot::channel();
    let run = move || {
        let entered = netns.as_deref().map_or(Ok(()), enter);
        // Nobody waits any more only when the daemon stops.
        let _ = done.send(entered.and_then(|()| what()));
    };
    let thread = std::thread::Builder::new().name("network namespace".into()).spawn(run);
    thread.map_err(|e| system("Cannot start a thread", e))?;
    result.await.unwrap_or_else(|_| Err(system("Cannot use tap", io::ErrorKind::Other.into())))
}

/// Moves this thread into a network namespace: a name in /run/netns, a process id, or an absolute path.
///
/// # Errors
/// There is none, or the daemon may not enter it.
pub fn enter(netns: &str) -> Result<(), ApiError> {
    let no_path = !netns.is_empty() && !netns.contains('/') && !netns.starts_with('.');
    let path = match netns.parse::<u32>() {
        Ok(pid) => PathBuf::from(format!("/proc/{pid}/ns/net")),
        Err(_) if no_path => Path::new("/run/netns").join(netns),
        Err(_) if netns.starts_with('/') => PathBuf::from(netns),
        Err(_) => {
            let reason = format!("{netns:?} is no network namespace");
            let remedy = "give a name of `ip netns list`, a process id, or an absolute path";
            return Err(ApiError::new(ErrorCode::BadRequest, reason, remedy));
        }
    };
    let failed = |e| privileged(&format!("Cannot enter network namespace {netns}"), e);
    // What is no namespace must not block the thread.
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let namespace =
        OpenOptions::new().read(true).custom_flags(nonblock).open(&path).map_err(failed)?;
    rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|e| failed(e.into()))
}

fn privileged(what: &str, error: io::Error) -> ApiError {
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
#[derive(Clone, Copy)]
enum Field {
    Flags(i16),
    Number(i32),
}

fn ifreq_ioctl(fd: &OwnedFd, request: libc::Ioctl, ifname: &str, field: Field) -> io::Result<()> {
    // SAFETY: a struct ifreq of zeros is a valid one.
    let mut ifreq: libc::ifreq = unsafe { std::mem::zeroed() };
    // One byte of it stays zero: it ends the name.
    let room = ifreq.ifr_name.len() - 1;
    for (to, from) in ifreq.ifr_name[..room].iter_mut().zip(ifname.bytes()) {
        *to = from as libc::c_char;
    }
    match field {
        Field::Flags(flags) => ifreq.ifr_ifru.ifru_flags = flags,
        Field::Number(number) => ifreq.ifr_ifru.ifru_mtu = number,
    }
    // SAFETY: these requests take a pointer to a struct ifreq, which lives during the call.
    match unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw mut ifreq) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn files_are_opened_and_a_missing_one_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.pcap").to_str().unwrap().to_owned();
        let read = PortKind::PcapRead { path: path.clone(), repeat: false, speed_percent: 100 };
        assert_eq!(
            open(&read, 1500, Written::Kept, (None, None)).await.unwrap_err().code,
            ErrorCode::NotFound
        );
        let elsewhere = dir.path().join("private");
        std::fs::write(&elsewhere, b"secret").unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        let link = PortKind::PcapWrite { path: path.clone() };
        open(&link, 1500, Written::Emptied, (None, None)).await.unwrap_err();
        assert_eq!(std::fs::read(&elsewhere).unwrap(), b"secret", "a link led it elsewhere");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, b"old").unwrap();
        assert_eq!(open(&read, 1500, Written::Kept, (None, None)).await.unwrap().1.len(), 1);
        assert_eq!(std::fs::read(&path).unwrap(), b"old", "reading emptied the file");
        let write = PortKind::PcapWrite { path: path.clone() };
        let (_, fds) = open(&write, 1500, Written::Kept, (None, None)).await.unwrap();
        rustix::io::write(&fds[0], b"+").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"old+", "a port that goes on lost its file");
        open(&write, 1500, Written::Emptied, (None, None)).await.unwrap();
        assert!(std::fs::read(&path).unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_namespace_that_does_not_exist_is_named() {
        let kind = |netns: &str| PortKind::Tap {
            ifname: "tap-toklat".into(),
            netns: Some(netns.into()),
            queues: 1,
        };
        let missing =
            open(&kind("no-such-namespace"), 1500, Written::Kept, (None, None)).await.unwrap_err();
        assert_eq!(missing.code, ErrorCode::NotFound, "{missing}");
        let path = open(&kind("../self"), 1500, Written::Kept, (None, None)).await.unwrap_err();
        assert_eq!(path.code, ErrorCode::BadRequest, "{path}");
    }
}
