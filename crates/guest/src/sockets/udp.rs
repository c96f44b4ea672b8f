//! UDP sockets of tasks.

use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::task::Poll;

use super::{Net, register};
use crate::nic::Nic;
use crate::udp::{UdpError, UdpId};

/// A UDP socket. Its drop closes it.
pub struct UdpSocket<N: Nic> {
    net: Net<N>,
    id: UdpId,
}

impl<N: Nic> fmt::Debug for UdpSocket<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UdpSocket({:?})", self.id)
    }
}

impl<N: Nic> UdpSocket<N> {
    pub(super) fn new(net: Net<N>, id: UdpId) -> Self {
        Self { net, id }
    }

    /// Waits for a datagram; returns its sender and data.
    pub async fn receive(&self) -> (SocketAddr, Box<[u8]>) {
        let shared = &*self.net.0;
        poll_fn(|cx| match shared.stack.borrow_mut().udp_receive(self.id) {
            Some(datagram) => Poll::Ready(datagram),
            None => {
                register(&mut shared.sockets.borrow_mut(), self.id, cx.waker());
                Poll::Pending
            }
        })
        .await
    }

    /// Sends a datagram. It leaves with this turn.
    ///
    /// # Errors
    /// As for [`Stack::udp_send`](crate::Stack::udp_send).
    pub fn send(&self, to: impl Into<SocketAddr>, data: &[u8]) -> Result<(), UdpError> {
        let shared = &*self.net.0;
        shared.stack.borrow_mut().udp_send(self.id, to, data, shared.now.get())
    }
}

impl<N: Nic> Drop for UdpSocket<N> {
    fn drop(&mut self) {
        let shared = &*self.net.0;
        shared.stack.borrow_mut().udp_close(self.id);
        shared.sockets.borrow_mut().retain(|(id, _)| *id != self.id);
    }
}
