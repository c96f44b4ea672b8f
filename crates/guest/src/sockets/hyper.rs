//! What hyper runs on.

use std::io::Result;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use ::hyper::rt::{Read, ReadBufCursor, Write};

use super::{Sleep, TcpStream, Timer};
use crate::nic::Nic;

impl<N: Nic> Read for TcpStream<N> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<Result<()>> {
        let read = self.poll_receive(cx, |piece| {
            let n = piece.len().min(buffer.remaining());
            buffer.put_slice(&piece[..n]);
            n
        });
        read.map_ok(|_| ())
    }
}

impl<N: Nic> Write for TcpStream<N> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<Result<usize>> {
        self.poll_write_from(cx, data)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        self.end();
        Poll::Ready(Ok(()))
    }
}

impl ::hyper::rt::Sleep for Sleep {}

impl ::hyper::rt::Timer for Timer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn ::hyper::rt::Sleep>> {
        Box::pin(Self::sleep(self, duration))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn ::hyper::rt::Sleep>> {
        Box::pin(Self::sleep(self, deadline.saturating_duration_since(Instant::now())))
    }
}
