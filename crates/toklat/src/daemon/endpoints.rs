//! What the supervisor opens for data processes, which may not: tap interfaces and files.
#![allow(unsafe_code, reason = "tap interfaces are made by ioctls that take a struct ifreq")]

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};

use control::tap::{Field, enter, ifreq_ioctl, open_queue, privileged};
use dataplane::config::{Attachment, Doorbell};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
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
