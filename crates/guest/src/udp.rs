//! UDP sockets (RFC 768): queues of bounded size.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use frame::checksum::Sum;
use frame::{Ipv4, Ipv6, Protocol, Udp};
use zerocopy::IntoBytes;

/// Maximum number of queued datagrams of a socket.
const MOST: usize = 256;
/// Maximum number of queued bytes of a socket, by default.
const MOST_BYTES: usize = 128 << 10;

/// A UDP socket's handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UdpId(pub(crate) u16);

/// The reason why a UDP socket could not be opened, or a datagram not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UdpError {
    /// The port is taken.
    #[error("UDP port {0} is in use; choose another")]
    InUse(u16),
    /// Port 0 was requested, which is not a port.
    #[error("0 is not a UDP port; choose one from 1 to 65535")]
    NoPort,
    /// The socket is closed.
    #[error("The UDP socket is closed")]
    Closed,
    /// The datagram does not fit into a packet.
    #[error("The datagram has {0} bytes; at most {1} fit into a packet")]
    TooLong(usize, usize),
    /// No address of this host reaches the destination.
    #[error("No address of this host reaches {0}")]
    NoAddress(std::net::IpAddr),
    /// There is no free slot.
    #[error("The send ring is full; poll the stack and try again")]
    Full,
}

#[derive(Debug)]
struct Socket {
    queue: VecDeque<(SocketAddr, Box<[u8]>)>,
    bytes: usize,
    most_bytes: usize,
}

/// The sockets, by port.
#[derive(Debug, Default)]
pub(crate) struct Sockets(HashMap<u16, Socket>);

/// The outcome of a datagram's delivery.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Delivered {
    Queued,
    NoSocket,
    Full,
}

impl Sockets {
    pub fn bind(&mut self, port: u16) -> Result<UdpId, UdpError> {
        if port == 0 {
            return Err(UdpError::NoPort);
        }
        if self.0.contains_key(&port) {
            return Err(UdpError::InUse(port));
        }
        let socket = Socket { queue: VecDeque::new(), bytes: 0, most_bytes: MOST_BYTES };
        self.0.insert(port, socket);
        Ok(UdpId(port))
    }

    /// Sets the maximum number of queued bytes of a socket.
    pub fn buffer(&mut self, id: UdpId, bytes: usize) {
        self.0.entry(id.0).and_modify(|socket| socket.most_bytes = bytes);
    }

    pub fn close(&mut self, id: UdpId) {
        self.0.remove(&id.0);
    }

    pub fn is_open(&self, id: UdpId) -> bool {
        self.0.contains_key(&id.0)
    }

    pub fn deliver(&mut self, port: u16, from: SocketAddr, data: &[u8]) -> Delivered {
        let Some(socket) = self.0.get_mut(&port) else { return Delivered::NoSocket };
        if socket.queue.len() >= MOST || socket.bytes + data.len() > socket.most_bytes {
            return Delivered::Full;
        }
        socket.bytes += data.len();
        socket.queue.push_back((from, data.into()));
        Delivered::Queued
    }

    pub fn receive(&mut self, id: UdpId) -> Option<(SocketAddr, Box<[u8]>)> {
        let socket = self.0.get_mut(&id.0)?;
        let (from, data) = socket.queue.pop_front()?;
        socket.bytes -= data.len();
        Some((from, data))
    }
}

/// Writes the IP and UDP headers of a datagram, which fill `head`. With `partial`, its checksum is
/// the sum of the pseudo header, and the rest is added later.
pub(crate) fn write_headers(
    head: &mut [u8],
    from: (IpAddr, u16),
    to: SocketAddr,
    data: &[u8],
    partial: bool,
) {
    let len = (Udp::LEN + data.len()) as u16;
    let (front, back) = head.split_at_mut(head.len() - Udp::LEN);
    let addresses = match (from.0, to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            front.copy_from_slice(Ipv4::new(from, to, Protocol::UDP, len).as_bytes());
            &front[12..20]
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            front.copy_from_slice(Ipv6::new(from, to, Protocol::UDP, len).as_bytes());
            &front[8..40]
        }
        _ => unreachable!("a source has the family of its destination"),
    };
    let mut udp = Udp::new(from.1, to.port(), data.len() as u16);
    let sum = Sum::new().with_pseudo_header(addresses, Protocol::UDP, len.into());
    udp.set_checksum(match partial {
        true => !sum.checksum(),
        false => sum.with(udp.as_bytes()).with(data).checksum(),
    });
    back.copy_from_slice(udp.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, SocketAddrV4};

    #[test]
    fn a_socket_holds_so_much_and_no_more() {
        let mut sockets = Sockets::default();
        let from = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 9), 9));
        let id = sockets.bind(7).unwrap();
        assert_eq!(sockets.bind(7), Err(UdpError::InUse(7)));
        assert_eq!(sockets.deliver(8, from, b"x"), Delivered::NoSocket);
        for _ in 0..MOST {
            assert_eq!(sockets.deliver(7, from, b""), Delivered::Queued);
        }
        assert_eq!(sockets.deliver(7, from, b""), Delivered::Full);
        while sockets.receive(id).is_some() {}
        let mut bytes = 0;
        while sockets.deliver(7, from, &[1; 1400]) == Delivered::Queued {
            bytes += 1400;
        }
        assert!(bytes <= MOST_BYTES && bytes > MOST_BYTES / 2);
        sockets.buffer(id, bytes + 1400);
        assert_eq!(sockets.deliver(7, from, &[1; 1400]), Delivered::Queued);
        assert_eq!(sockets.deliver(7, from, &[1; 1400]), Delivered::Full);
        sockets.close(id);
        assert_eq!((sockets.receive(id), sockets.is_open(id)), (None, false));
    }
}
