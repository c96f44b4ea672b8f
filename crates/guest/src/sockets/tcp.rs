//! Connections as streams.

use std::fmt;
use std::future::poll_fn;
use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::task::{Context, Poll};

use ::tcp::{Bytes, CloseReason, ConnId, ListenerId, SendError, State};

use super::{Net, register};
use crate::nic::Nic;

/// Accepts connections at a port.
pub struct TcpListener<N: Nic> {
    net: Net<N>,
    id: ListenerId,
}

impl<N: Nic> fmt::Debug for TcpListener<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TcpListener({:?})", self.id)
    }
}

impl<N: Nic> TcpListener<N> {
    pub(super) fn new(net: Net<N>, id: ListenerId) -> Self {
        Self { net, id }
    }

    /// Waits for a connection.
    pub async fn accept(&self) -> TcpStream<N> {
        let shared = &*self.net.0;
        let id = poll_fn(|cx| match shared.stack.borrow_mut().tcp().accept(self.id) {
            Some(id) => Poll::Ready(id),
            None => {
                register(&mut shared.listeners.borrow_mut(), self.id, cx.waker());
                Poll::Pending
            }
        });
        TcpStream::new(self.net.clone(), id.await)
    }
}

impl<N: Nic> Drop for TcpListener<N> {
    fn drop(&mut self) {
        let shared = &*self.net.0;
        shared.stack.borrow_mut().tcp().stop_listening(self.id, shared.now.get());
        shared.listeners.borrow_mut().retain(|(id, _)| *id != self.id);
    }
}

/// A connection. Its drop closes it: the peer gets what was written, and a reset if something was
/// not read.
///
/// One task may read and another one write.
pub struct TcpStream<N: Nic> {
    net: Net<N>,
    id: ConnId,
}

impl<N: Nic> fmt::Debug for TcpStream<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TcpStream({:?})", self.id)
    }
}

/// The error of a connection that has ended.
fn ended(reason: Option<CloseReason>) -> Error {
    let (kind, why) = match reason {
        Some(CloseReason::Reset) => {
            (ErrorKind::ConnectionReset, "The peer has reset the connection")
        }
        Some(CloseReason::Refused) => {
            (ErrorKind::ConnectionRefused, "The peer refuses connections")
        }
        Some(CloseReason::TimedOut) => (ErrorKind::TimedOut, "The peer does not answer"),
        Some(CloseReason::Unreachable) => (ErrorKind::HostUnreachable, "The peer is unreachable"),
        Some(CloseReason::Aborted) => (ErrorKind::ConnectionAborted, "The connection was aborted"),
        _ => (ErrorKind::BrokenPipe, "The connection is closed"),
    };
    Error::new(kind, why)
}

impl<N: Nic> TcpStream<N> {
    pub(super) fn new(net: Net<N>, id: ConnId) -> Self {
        net.0.connections.borrow_mut().entry(id).or_default();
        Self { net, id }
    }

    /// The peer's address and port; `None` once the connection has ended.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        let mut stack = self.net.0.stack.borrow_mut();
        stack.tcp().flow(self.id).map(|flow| flow.remote().into())
    }

    /// Waits until the peer has answered.
    pub(super) async fn connected(&self) -> Result<()> {
        poll_fn(|cx| {
            let mut stack = self.net.0.stack.borrow_mut();
            match stack.tcp().state(self.id) {
                Some(State::SynSent | State::SynReceived) => {
                    self.wait(cx, false);
                    Poll::Pending
                }
                Some(State::Closed) | None => {
                    Poll::Ready(Err(ended(stack.tcp().close_reason(self.id))))
                }
                Some(_) => Poll::Ready(Ok(())),
            }
        })
        .await
    }

    /// Keeps the task's waker, for data or for room.
    fn wait(&self, cx: &Context<'_>, reads: bool) {
        let mut connections = self.net.0.connections.borrow_mut();
        let waiting = connections.entry(self.id).or_default();
        let place = if reads { &mut waiting.reader } else { &mut waiting.writer };
        *place = Some(cx.waker().clone());
    }

    /// Passes received data to `take`, which returns how many bytes it took, piece by piece. 0
    /// bytes in all mean that the stream has ended.
    pub(super) fn poll_receive(
        &self,
        cx: &Context<'_>,
        mut take: impl FnMut(&[u8]) -> usize,
    ) -> Poll<Result<usize>> {
        let mut stack = self.net.0.stack.borrow_mut();
        let machine = stack.tcp();
        if machine.readable(self.id) > 0 {
            return Poll::Ready(Ok(machine.receive(self.id, &mut take)));
        }
        if machine.is_at_end(self.id) {
            return Poll::Ready(match machine.close_reason(self.id) {
                None | Some(CloseReason::Finished) => Ok(0),
                reason => Err(ended(reason)),
            });
        }
        self.wait(cx, true);
        Poll::Pending
    }

    pub(super) fn poll_read_into(&self, cx: &Context<'_>, out: &mut [u8]) -> Poll<Result<usize>> {
        if out.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let mut filled = 0;
        self.poll_receive(cx, |piece| {
            let n = piece.len().min(out.len() - filled);
            out[filled..filled + n].copy_from_slice(&piece[..n]);
            filled += n;
            n
        })
    }

    pub(super) fn poll_write_from(&self, cx: &Context<'_>, data: &[u8]) -> Poll<Result<usize>> {
        let mut stack = self.net.0.stack.borrow_mut();
        match stack.tcp().send_slice(self.id, data) {
            Ok(n) => Poll::Ready(Ok(n)),
            Err(SendError::Full) => {
                self.wait(cx, false);
                Poll::Pending
            }
            Err(_) => Poll::Ready(Err(ended(stack.tcp().close_reason(self.id)))),
        }
    }

    pub(super) fn end(&self) {
        self.net.0.stack.borrow_mut().tcp().shut_down(self.id);
    }

    /// Reads what is there, at most as much as `out` holds. 0 bytes mean that the peer has ended
    /// its stream.
    ///
    /// # Errors
    /// The connection has failed.
    pub async fn read(&self, out: &mut [u8]) -> Result<usize> {
        poll_fn(|cx| self.poll_read_into(cx, out)).await
    }

    /// Writes all of `data`, which is copied.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn write_all(&self, mut data: &[u8]) -> Result<()> {
        while !data.is_empty() {
            let n = poll_fn(|cx| self.poll_write_from(cx, data)).await?;
            data = data.get(n..).unwrap_or_default();
        }
        Ok(())
    }

    /// Sends `bytes` without copying them: they are referenced until the peer has acknowledged
    /// them.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn send(&self, bytes: Bytes) -> Result<()> {
        let mut kept = Some(bytes);
        poll_fn(|cx| {
            let mut stack = self.net.0.stack.borrow_mut();
            match stack.tcp().send(self.id, kept.take().unwrap_or_default()) {
                Ok(()) => Poll::Ready(Ok(())),
                Err((SendError::Full, bytes)) => {
                    kept = Some(bytes);
                    self.wait(cx, false);
                    Poll::Pending
                }
                Err(_) => Poll::Ready(Err(ended(stack.tcp().close_reason(self.id)))),
            }
        })
        .await
    }

    /// Ends this side's stream after what was written; data can still be read.
    pub fn finish(&self) {
        self.end();
    }
}

impl<N: Nic> Drop for TcpStream<N> {
    fn drop(&mut self) {
        let shared = &*self.net.0;
        shared.connections.borrow_mut().remove(&self.id);
        shared.stack.borrow_mut().tcp().close(self.id, shared.now.get());
    }
}
