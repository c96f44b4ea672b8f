//! What crates over `futures-io` run on.

use std::io::Result;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_io::{AsyncRead, AsyncWrite};

use super::TcpStream;
use crate::nic::Nic;

impl<N: Nic> AsyncRead for TcpStream<N> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut [u8],
    ) -> Poll<Result<usize>> {
        self.poll_read_into(cx, out)
    }
}

impl<N: Nic> AsyncWrite for TcpStream<N> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<Result<usize>> {
        self.poll_write_from(cx, data)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        self.end();
        Poll::Ready(Ok(()))
    }
}
