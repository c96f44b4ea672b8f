//! Bulk data over TCP: a source that always has more, and a sink that counts.

use tcp::{Bytes, CloseReason};

use crate::app::{App, Io};

/// Bytes that the source sends at a time.
const PIECE: usize = 64 << 10;

/// One end of a bulk transfer.
#[derive(Debug, Default)]
pub struct Bulk {
    /// The piece that the source sends repeatedly; empty in a sink.
    piece: Bytes,
    /// Destination of the copies of received data, if the application makes any.
    buffer: Vec<u8>,
    /// The source copies each piece, like a program that writes from its own buffer.
    copies: bool,
    /// How many bytes were received.
    pub received: u64,
    /// How many connections were made.
    pub made: u64,
    /// How many connections have ended.
    pub lost: u64,
}

impl Bulk {
    /// Makes a source. With `copies`, each piece is copied into a new buffer first.
    #[must_use]
    pub fn source(copies: bool) -> Self {
        Self { piece: vec![0x5a; PIECE].into(), copies, ..Self::default() }
    }

    /// Makes a sink. With `copies`, it copies received data into its own buffer.
    #[must_use]
    pub fn sink(copies: bool) -> Self {
        Self { buffer: vec![0; PIECE], copies, ..Self::default() }
    }

    fn send(&self, io: &mut Io<'_>) {
        match self.copies {
            true => io.send(Bytes::copy_from_slice(&self.piece)),
            false => io.send(self.piece.clone()),
        }
    }
}

impl App for Bulk {
    type Conn = ();

    fn accepted(&mut self, io: &mut Io<'_>) {
        self.connected(&mut (), io);
    }

    fn connected(&mut self, _: &mut (), io: &mut Io<'_>) {
        self.made += 1;
        if !self.piece.is_empty() {
            self.send(io);
        }
    }

    fn data(&mut self, _: &mut (), _: &mut Io<'_>, data: &[u8]) -> usize {
        if self.copies {
            for piece in data.chunks(self.buffer.len().max(1)) {
                if let Some(place) = self.buffer.get_mut(..piece.len()) {
                    place.copy_from_slice(piece);
                }
            }
        }
        self.received += data.len() as u64;
        data.len()
    }

    fn drained(&mut self, _: &mut (), io: &mut Io<'_>) {
        self.send(io);
    }

    fn closed(&mut self, _: (), _: Option<CloseReason>) {
        self.lost += 1;
    }
}
