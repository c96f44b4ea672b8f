//! UDP sockets of VXLAN tunnels. The supervisor makes them, because data processes may neither make
//! nor configure sockets.
#![allow(unsafe_code, reason = "no library sets these options of sockets")]

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use dataplane::attach::vxlan::SENDERS;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::super::options::{get, set, set_bytes};

/// Receive buffer in bytes: some milliseconds of a fast link.
const BUFFER: libc::c_int = 4 << 20;
/// The lowest source port of VXLAN datagrams (RFC 7348, 5).
const FIRST_SOURCE_PORT: u16 = 0xc000;
/// Ports that are tried before the kernel chooses one.
const TRIES: usize = 64;
/// The maximum number of segments at one address: the length of the BPF program allows no more.
pub(super) const MAX_VNIS: usize = 1024;

/// `linux/udp.h`: the checksum of IPv6 datagrams may be zero (RFC 6935, as VXLAN allows it).
const UDP_NO_CHECK6_RX: libc::c_int = 102;

/// Makes the socket that receives a segment's datagrams, one of several at its address.
pub(super) fn receiver(at: SocketAddr) -> io::Result<OwnedFd> {
    let socket = datagrams(at.ip())?;
    rustix::net::sockopt::set_socket_reuseport(&socket, true)?;
    set(&socket, libc::SOL_UDP, libc::UDP_GRO, 1)?;
    if at.is_ipv6() {
        set(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?;
        set(&socket, libc::SOL_UDP, UDP_NO_CHECK6_RX, 1)?;
    } else {
        set(&socket, libc::IPPROTO_IP, libc::IP_RECVTOS, 1)?;
    }
    grow(&socket, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF)?;
    rustix::net::bind(&socket, &at)?;
    Ok(socket)
}

/// Makes the sockets that a tunnel sends from. Each flow has its own source port, and datagrams are
/// never fragmented.
pub(super) fn senders(local: IpAddr) -> io::Result<Vec<OwnedFd>> {
    (0..SENDERS).map(|_| sender(local)).collect()
}

fn sender(local: IpAddr) -> io::Result<OwnedFd> {
    let socket = datagrams(local)?;
    if local.is_ipv6() {
        let level = libc::IPPROTO_IPV6;
        set(&socket, level, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)?;
        set(&socket, level, libc::IPV6_DONTFRAG, 1)?;
    } else {
        set(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
    }
    grow(&socket, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)?;
    refuse_all(&socket)?;
    let random = RandomState::new();
    for attempt in 0..TRIES {
        let port = FIRST_SOURCE_PORT | random.hash_one(attempt) as u16;
        match rustix::net::bind(&socket, &SocketAddr::new(local, port)) {
            Err(rustix::io::Errno::ADDRINUSE) => {}
            bound => return bound.map(|()| socket).map_err(io::Error::from),
        }
    }
    rustix::net::bind(&socket, &SocketAddr::new(local, 0))?;
    Ok(socket)
}

/// The largest IP packet that fits the path to `to`.
pub(super) fn path_mtu(local: IpAddr, to: SocketAddr) -> io::Result<u16> {
    let socket = datagrams(local)?;
    rustix::net::bind(&socket, &SocketAddr::new(local, 0))?;
    rustix::net::connect(&socket, &to)?;
    let (level, option) = match local {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
    };
    Ok(u16::try_from(get(&socket, level, option)?).unwrap_or(u16::MAX))
}

fn datagrams(ip: IpAddr) -> io::Result<OwnedFd> {
    let family = if ip.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
    if ip.is_ipv6() {
        rustix::net::sockopt::set_ipv6_v6only(&socket, true)?;
    }
    Ok(socket)
}

/// Enlarges a buffer: beyond the machine's limit if the daemon may (CAP_NET_ADMIN).
fn grow(socket: &OwnedFd, force: libc::c_int, ask: libc::c_int) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, force, BUFFER)
        .or_else(|_| set(socket, libc::SOL_SOCKET, ask, BUFFER))
}

/// Stores a socket's index in the socket itself, where a later supervisor finds it. UDP does not
/// use this option.
pub(super) fn set_index(socket: &OwnedFd, index: usize) -> io::Result<()> {
    let number = libc::c_int::try_from(index + 1).map_err(io::Error::other)?;
    set(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, number)
}

/// Reads the index that was stored in a socket.
pub(super) fn index(socket: &OwnedFd) -> io::Result<usize> {
    let number = get(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT)?;
    usize::try_from(number - 1).map_err(io::Error::other)
}

/// Blocks all datagrams to a socket that is never read.
fn refuse_all(socket: &OwnedFd) -> io::Result<()> {
    attach(socket, libc::SO_ATTACH_FILTER, &mut [ret(0)])
}

/// Makes the socket's group choose by VNI: for each segment, the index of its socket in the group.
/// Datagrams of other segments go to `otherwise`, which counts them.
pub(super) fn choose_by_vni(
    socket: &OwnedFd,
    places: &[(u32, usize)],
    otherwise: usize,
) -> io::Result<()> {
    let mut program = program(places, otherwise);
    attach(socket, libc::SO_ATTACH_REUSEPORT_CBPF, &mut program)
}

/// The program's offset 0 is the end of the UDP header. A read beyond the datagram's end makes the
/// program return 0.
fn program(places: &[(u32, usize)], otherwise: usize) -> Vec<libc::sock_filter> {
    /// `linux/bpf_common.h`: load a word, shift right, jump if equal.
    const LOAD: u16 = 0x20;
    const SHIFT: u16 = 0x74;
    const JUMP_EQUAL: u16 = 0x15;
    let mut program = vec![step(LOAD, 4, (0, 0)), step(SHIFT, 8, (0, 0))];
    for (vni, place) in places {
        program.extend([step(JUMP_EQUAL, *vni, (0, 1)), ret(*place as u32)]);
    }
    program.push(ret(otherwise as u32));
    program
}

const fn step(code: u16, k: u32, (jt, jf): (u8, u8)) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

const fn ret(value: u32) -> libc::sock_filter {
    step(0x06, value, (0, 0))
}

fn attach(
    socket: &OwnedFd,
    option: libc::c_int,
    program: &mut [libc::sock_filter],
) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(io::Error::other)?;
    let program = libc::sock_fprog { len, filter: program.as_mut_ptr() };
    set_bytes(socket, libc::SOL_SOCKET, option, &program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_chooses_by_vni_and_others_go_to_one_place() {
        let at = SocketAddr::from(([127, 0, 0, 1], 0));
        let first = receiver(at).unwrap();
        let at: SocketAddr = rustix::net::getsockname(&first).unwrap().try_into().unwrap();
        let sockets = [first, receiver(at).unwrap(), receiver(at).unwrap()];
        choose_by_vni(&sockets[0], &[(100, 2), (200, 0)], 1).unwrap();
        let from = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        for (vni, place) in [(100u32, 2), (200, 0), (300, 1), (100, 2)] {
            let [_, a, b, c] = vni.to_be_bytes();
            from.send_to(&[8, 0, 0, 0, a, b, c, 0, 1, 2], at).unwrap();
            let mut bytes = [0; 64];
            let got =
                rustix::net::recv(&sockets[place], &mut bytes, rustix::net::RecvFlags::empty());
            assert_eq!(got.unwrap().0, 10, "VNI {vni}");
        }
        from.send_to(&[1], at).unwrap();
        let mut bytes = [0; 64];
        let got = rustix::net::recv(&sockets[0], &mut bytes, rustix::net::RecvFlags::empty());
        assert_eq!(got.unwrap().0, 1, "too short for a VNI");
    }

    #[test]
    fn senders_differ_in_their_ports_and_hear_nothing() {
        let sockets = senders([127, 0, 0, 1].into()).unwrap();
        let port = |socket: &OwnedFd| {
            SocketAddr::try_from(rustix::net::getsockname(socket).unwrap()).unwrap()
        };
        let ports: std::collections::BTreeSet<_> = sockets.iter().map(port).collect();
        assert_eq!(ports.len(), SENDERS);
        let from = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        from.send_to(&[1], port(&sockets[0])).unwrap();
        let got = rustix::net::recv(&sockets[0], &mut [0; 8], rustix::net::RecvFlags::DONTWAIT);
        assert!(got.is_err());
    }

    #[test]
    fn a_socket_keeps_its_place() {
        let socket = receiver(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        for place in [0, 1, 1023] {
            set_index(&socket, place).unwrap();
            assert_eq!(index(&socket).unwrap(), place);
        }
    }
}
