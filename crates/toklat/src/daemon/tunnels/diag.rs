//! The UDP sockets of this host, from the kernel (sock_diag(7)).
//!
//! `/proc/net/udp` is read in parts: while other programs open and close sockets, a socket may be
//! missing there or be listed twice. The kernel lists all sockets of a port together.

use std::io;
use std::net::{IpAddr, SocketAddr};

use rustix::net::netlink::SOCK_DIAG;

use super::super::netlink::{self, DUMP, Message, Messages, REQUEST, word};

/// `SOCK_DIAG_BY_FAMILY`.
const BY_FAMILY: u16 = 20;
/// Bytes of `struct inet_diag_msg`, and the offsets of the local address and the inode in it.
const SOCKET: usize = 72;
const SOURCE: usize = 8;
const INODE: usize = 68;

/// The inodes of the sockets bound at exactly this address, in the namespace of this thread.
///
/// # Errors
/// The kernel's error; `ENOENT` from a kernel that was built without `udp_diag`.
pub(super) fn inodes_at(at: SocketAddr) -> io::Result<Vec<u64>> {
    let socket = netlink::open(Some(SOCK_DIAG), 0)?;
    netlink::send(&socket, BY_FAMILY, REQUEST | DUMP, &question(at))?;
    let mut inodes = Vec::new();
    loop {
        let answer = netlink::receive(&socket)?;
        if answer.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for message in Messages(&answer) {
            match message {
                Message::Done => return Ok(inodes),
                Message::Error(number) => return Err(io::Error::from_raw_os_error(number)),
                Message::Data(_, socket) => inodes.extend(inode_at(socket, at.ip())),
            }
        }
    }
}

/// `struct inet_diag_req_v2`: all UDP sockets of a port.
fn question(at: SocketAddr) -> Vec<u8> {
    let family = if at.is_ipv6() { libc::AF_INET6 } else { libc::AF_INET } as u8;
    let mut question = vec![family, libc::IPPROTO_UDP as u8, 0, 0];
    // Sockets in any state.
    question.extend(u32::MAX.to_ne_bytes());
    question.extend(at.port().to_be_bytes());
    // Any remote port, addresses and interface. All ones: a socket with any cookie.
    question.extend([0; 38]);
    question.extend([0xff; 8]);
    question
}

/// The inode of a listed socket if it is bound at this address.
fn inode_at(socket: &[u8], ip: IpAddr) -> Option<u64> {
    let source = socket.get(SOURCE..SOCKET)?;
    let same = match ip {
        IpAddr::V4(ip) => source.starts_with(&ip.octets()),
        IpAddr::V6(ip) => source.starts_with(&ip.octets()),
    };
    same.then(|| word(socket, INODE).map(u64::from)).flatten()
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn inode(socket: impl AsFd) -> u64 {
        rustix::fs::fstat(socket).unwrap().st_ino
    }

    #[test]
    fn exactly_the_sockets_of_an_address_are_listed() {
        for local in ["127.0.0.1:0", "[::1]:0"] {
            let socket = UdpSocket::bind(local).unwrap();
            let at = socket.local_addr().unwrap();
            assert_eq!(inodes_at(at).unwrap(), [inode(&socket)], "{local}");
            drop(socket);
            assert!(inodes_at(at).unwrap().is_empty(), "{local}");
        }
        let socket = UdpSocket::bind("127.0.0.2:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        assert_eq!(inodes_at(([127, 0, 0, 1], port).into()).unwrap(), [0; 0]);
    }

    #[test]
    fn regression_no_socket_is_missed_while_others_come_and_go() {
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    (0..100).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).for_each(drop);
                }
            });
            let first = super::super::sockets::receiver(([127, 0, 0, 1], 0).into()).unwrap();
            let at = rustix::net::getsockname(&first).unwrap().try_into().unwrap();
            let more = (1..100).map(|_| super::super::sockets::receiver(at).unwrap());
            let mut group: Vec<_> = std::iter::once(first).chain(more).collect();
            while let Some(socket) = group.pop() {
                let mut listed = inodes_at(at).unwrap();
                listed.sort_unstable();
                let mut all: Vec<_> = group.iter().chain([&socket]).map(inode).collect();
                all.sort_unstable();
                assert_eq!(listed, all);
            }
            ended.store(true, Ordering::Relaxed);
        });
    }
}
