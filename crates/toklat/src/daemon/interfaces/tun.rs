//! What the kernel is asked for taps: the interface, its offloads, its MTU.
#![allow(unsafe_code, reason = "offloads of a tap are set by ioctls")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use host::tap::{Field, ifreq_ioctl, open_queue, privileged};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::api::ApiError;

/// Offloads that the port accepts from a tap (`linux/if_tun.h`): checksums, TCP in IPv4 and IPv6
/// with ECN.
const TUN_OFFLOADS: libc::c_ulong = 0x01 | 0x02 | 0x04 | 0x08;
/// UDP in IPv4 and IPv6, since Linux 6.2.
const TUN_USO: libc::c_ulong = 0x20 | 0x40;
/// Bytes of the virtio-net header before each frame.
static VNET_HEADER: libc::c_int = frame::OFFLOAD_HEADER as libc::c_int;

/// Makes a tap in this thread's namespace, and brings it up after `prepare`. Returns whether it
/// accepts UDP segmentation offload, and its queues.
///
/// # Errors
/// The name is taken, or the daemon may not make a tap.
pub(in crate::daemon) fn make_tap(
    ifname: &str,
    queues: u16,
    prepare: impl FnOnce(&str),
) -> Result<(bool, Vec<OwnedFd>), ApiError> {
    let failed = |what: &str| {
        let what = format!("Cannot {what} tap interface {ifname}");
        move |e: io::Error| privileged(&what, e)
    };
    let queue = |_| open_queue(ifname, queues > 1).map_err(failed("make"));
    let fds = (0..queues).map(queue).collect::<Result<Vec<_>, _>>()?;
    let uso = set_offloads(&fds).map_err(failed("set the offloads of"))?;
    prepare(ifname);
    let socket = datagram_socket().map_err(failed("reach"))?;
    let up = Field::Flags((libc::IFF_UP | libc::IFF_RUNNING) as i16);
    ifreq_ioctl(&socket, libc::SIOCSIFFLAGS as _, ifname, up).map_err(failed("bring up"))?;
    Ok((uso, fds))
}

/// Makes the kernel deliver packets that are still to be segmented. Returns true if that includes
/// UDP.
fn set_offloads(queues: &[OwnedFd]) -> io::Result<bool> {
    let mut uso = true;
    for queue in queues {
        let queue = queue.as_raw_fd();
        // SAFETY: this request reads an int, which is static.
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

/// Sets the MTU of an interface of this thread's namespace.
///
/// # Errors
/// The interface is gone, its device does not allow this MTU, or the daemon may not change it.
pub(in crate::daemon) fn set_link_mtu(ifname: &str, mtu: u16) -> Result<(), ApiError> {
    let failed = |e| privileged(&format!("Cannot set the MTU of {ifname} to {mtu}"), e);
    let socket = datagram_socket().map_err(failed)?;
    let mtu = Field::Number(i32::from(mtu));
    ifreq_ioctl(&socket, libc::SIOCSIFMTU as _, ifname, mtu).map_err(failed)
}

fn datagram_socket() -> io::Result<OwnedFd> {
    let (family, datagram) = (AddressFamily::INET, SocketType::DGRAM);
    Ok(rustix::net::socket_with(family, datagram, SocketFlags::CLOEXEC, None)?)
}
