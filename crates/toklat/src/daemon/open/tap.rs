//! Tap interfaces.
#![allow(unsafe_code, reason = "offloads of a tap are set by ioctls")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use control::tap::{Field, ifreq_ioctl, open_queue, privileged};
use dataplane::attach::buffered::tap::TapConfig;
use dataplane::config::Attachment;
use jail::strangers::Descriptor;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use topology::Tap;

use super::super::front_ends::Waiting;
use super::super::interfaces;
use super::super::namespace::in_namespace;
use super::super::objects::{self, Namespace};
use super::{Following, Future, Open, Opened, Opening, Reach};
use crate::api::{ApiError, ErrorCode};

const _: () = assert!(Tap::MAX_QUEUES as usize == dataplane::attach::buffered::tap::MAX_QUEUES);

impl Open for Tap {
    fn reach(&self) -> Reach<'_> {
        Reach::Host("it makes a network interface")
    }

    fn open<'a>(&'a self, at: Opening<'a>) -> Future<'a, Opened> {
        let Self { ifname, netns, queues } = self.clone();
        Box::pin(async move {
            let (uso, fds) = open_tap(ifname, netns, queues, at.mtu).await?;
            Ok(Opened::ours(TapConfig { uso }.into(), fds))
        })
    }

    fn probe(&self, _: u16) -> Future<'_, ()> {
        let Self { ifname, netns, .. } = self.clone();
        Box::pin(in_namespace(netns, move || {
            let tun = std::fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun");
            tun.map_err(|e| privileged(&format!("Cannot make tap interface {ifname}"), e))?;
            match interfaces::is_no_tap(&ifname) {
                false => Ok(()),
                true => Err(ApiError::new(
                    ErrorCode::Busy,
                    format!("Interface {ifname} is there already, and is no tap"),
                    "use another name",
                )),
            }
        }))
    }

    fn is(&self, attachment: &Attachment) -> bool {
        matches!(attachment, Attachment::Tap(_))
    }

    fn follow(
        &self,
        name: (String, String),
        Following { fds, notices, .. }: Following<'_>,
    ) -> Result<Option<Waiting>, ApiError> {
        let namespace = Namespace::of(self.netns.as_deref(), fds);
        Ok(Some(objects::watch(name, notices, move || namespace.gone())))
    }

    fn lost(&self, fds: &[Descriptor]) -> Option<String> {
        let queue = fds.first()?;
        let mut asked = [PollFd::new(queue, PollFlags::empty())];
        // A tap whose interface was removed has an error, and nothing else.
        rustix::event::poll(&mut asked, Some(&Timespec::default())).ok()?;
        let gone = asked[0].revents().contains(PollFlags::ERR);
        gone.then(|| format!("tap interface {} is gone", self.ifname))
    }

    fn set_mtu(&self, mtu: u16, _: &Attachment) -> Future<'_, ()> {
        let Self { ifname, netns, .. } = self.clone();
        Box::pin(in_namespace(netns, move || set_link_mtu(&ifname, mtu)))
    }
}

/// Offloads that the port accepts from a tap (`linux/if_tun.h`): checksums, TCP in IPv4 and IPv6
/// with ECN.
const TUN_OFFLOADS: libc::c_ulong = 0x01 | 0x02 | 0x04 | 0x08;
/// UDP in IPv4 and IPv6, since Linux 6.2.
const TUN_USO: libc::c_ulong = 0x20 | 0x40;
/// Bytes of the virtio-net header before each frame.
static VNET_HEADER: libc::c_int = frame::OFFLOAD_HEADER as libc::c_int;

/// Makes the interface in its namespace, sets its MTU and brings it up. Returns whether it accepts
/// UDP segmentation offload, and its queues.
async fn open_tap(
    ifname: String,
    netns: Option<String>,
    queues: u16,
    mtu: u16,
) -> Result<(bool, Vec<OwnedFd>), ApiError> {
    in_namespace(netns, move || {
        let mut told = Ok(());
        let made = make_tap(&ifname, queues, |ifname| told = set_link_mtu(ifname, mtu))?;
        told.map(|()| made)
    })
    .await
}

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
pub(super) fn set_link_mtu(ifname: &str, mtu: u16) -> Result<(), ApiError> {
    let failed = |e| privileged(&format!("Cannot set the MTU of {ifname} to {mtu}"), e);
    let socket = datagram_socket().map_err(failed)?;
    let mtu = Field::Number(i32::from(mtu));
    ifreq_ioctl(&socket, libc::SIOCSIFMTU as _, ifname, mtu).map_err(failed)
}

fn datagram_socket() -> io::Result<OwnedFd> {
    let (family, datagram) = (AddressFamily::INET, SocketType::DGRAM);
    Ok(rustix::net::socket_with(family, datagram, SocketFlags::CLOEXEC, None)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_namespace_that_does_not_exist_is_named() {
        let tap = |netns: &str| Tap { netns: Some(netns.into()), ..Tap::called("tap-toklat") };
        let missing = tap("no-such-namespace").open(Opening::of_test()).await.unwrap_err();
        assert_eq!(missing.code, ErrorCode::NotFound, "{missing}");
        let path = tap("../self").open(Opening::of_test()).await.unwrap_err();
        assert_eq!(path.code, ErrorCode::BadRequest, "{path}");
    }
}
