//! UDP sockets (RFC 768): queues of bounded size.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddrV4;

/// Maximum number of queued datagrams of a socket.
const MOST: usize = 256;
/// Maximum number of queued bytes of a socket.
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
    /// There is no free slot.
    #[error("The send ring is full; poll the stack and try again")]
    Full,
}

#[derive(Debug, Default)]
struct Socket {
    queue: VecDeque<(SocketAddrV4, Box<[u8]>)>,
    bytes: usize,
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
        self.0.insert(port, Socket::default());
        Ok(UdpId(port))
    }

    pub fn close(&mut self, id: UdpId) {
        self.0.remove(&id.0);
    }

    pub fn is_open(&self, id: UdpId) -> bool {
        self.0.contains_key(&id.0)
    }

    pub fn deliver(&mut self, port: u16, from: SocketAddrV4, data: &[u8]) -> Delivered {
        let Some(socket) = self.0.get_mut(&port) else { return Delivered::NoSocket };
        if socket.queue.len() >= MOST || socket.bytes + data.len() > MOST_BYTES {
            return Delivered::Full;
        }
        socket.bytes += data.len();
        socket.queue.push_back((from, data.into()));
        Delivered::Queued
    }

    pub fn receive(&mut self, id: UdpId) -> Option<(SocketAddrV4, Box<[u8]>)> {
        let socket = self.0.get_mut(&id.0)?;
        let (from, data) = socket.queue.pop_front()?;
        socket.bytes -= data.len();
        Some((from, data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn a_socket_holds_so_much_and_no_more() {
        let mut sockets = Sockets::default();
        let from = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 9), 9);
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
        sockets.close(id);
        assert_eq!((sockets.receive(id), sockets.is_open(id)), (None, false));
    }
}
