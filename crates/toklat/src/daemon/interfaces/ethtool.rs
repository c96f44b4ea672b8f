//! Requests that ethtool makes to an interface.
#![allow(unsafe_code, reason = "these questions are ioctls that take pointers")]

use std::os::fd::AsRawFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// `ETHTOOL_GCHANNELS`.
const GET_CHANNELS: u32 = 0x3c;
/// `SIOCETHTOOL`.
const ETHTOOL: libc::Ioctl = 0x8946;

/// How many receive queues interface `ifname` of this thread's namespace has; `None` if it does not
/// say.
pub(super) fn channels(ifname: &str) -> Option<u32> {
    // struct ethtool_channels: the command; most of each kind; receive, transmit, other, combined.
    let mut answer = [0u32; 9];
    answer[0] = GET_CHANNELS;
    // SAFETY: a struct ifreq of zeros is a valid one.
    let mut ifreq: libc::ifreq = unsafe { std::mem::zeroed() };
    let room = ifreq.ifr_name.len() - 1;
    for (to, from) in ifreq.ifr_name[..room].iter_mut().zip(ifname.bytes()) {
        *to = from as libc::c_char;
    }
    ifreq.ifr_ifru.ifru_data = (&raw mut answer).cast();
    let kind = (AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC);
    let socket = rustix::net::socket_with(kind.0, kind.1, kind.2, None).ok()?;
    // SAFETY: the request takes a struct ifreq whose pointer leads to a struct ethtool_channels;
    // both live during the call.
    let asked = unsafe { libc::ioctl(socket.as_raw_fd(), ETHTOOL, &raw mut ifreq) };
    (asked == 0).then_some(answer[5] + answer[8])
}
