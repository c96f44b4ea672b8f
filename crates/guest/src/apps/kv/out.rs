//! The answers of a turn: short ones are joined, long values are sent where they lie.

use tcp::{Bytes, ConnId, Nanos};

use crate::app::Io;

/// Values of at least this length are sent without a copy.
const LEND: usize = 4 << 10;
/// Text is sent when it has this length.
const TEXT: usize = 16 << 10;

pub struct Out<'a, 'i> {
    io: &'a mut Io<'i>,
    text: Vec<u8>,
    sent: usize,
}

impl<'a, 'i> Out<'a, 'i> {
    pub fn new(io: &'a mut Io<'i>) -> Self {
        Self { io, text: Vec::new(), sent: 0 }
    }
}

impl Out<'_, '_> {
    pub fn now(&self) -> Nanos {
        self.io.now()
    }

    pub fn id(&self) -> ConnId {
        self.io.id()
    }

    /// Bytes that wait for the client.
    pub fn queued(&self) -> usize {
        self.io.queued() + self.text.len()
    }

    pub fn line(&mut self, line: &str) {
        self.text(line.as_bytes());
    }

    pub fn text(&mut self, text: &[u8]) {
        self.text.extend_from_slice(text);
        if self.text.len() >= TEXT {
            self.flush();
        }
    }

    /// Sends a value and its line end.
    pub fn value(&mut self, value: &Bytes) {
        if value.len() < LEND {
            self.text(value);
        } else {
            self.flush();
            self.sent += value.len();
            self.io.send(value.clone());
        }
        self.text(b"\r\n");
    }

    /// Sends the text; returns how many bytes were sent in all.
    pub fn flush(&mut self) -> usize {
        self.sent += self.text.len();
        self.io.send(std::mem::take(&mut self.text).into());
        self.sent
    }

    /// Ends the stream, after what was sent.
    pub fn finish(&mut self) {
        self.flush();
        self.io.finish();
    }

    pub fn abort(&mut self) {
        self.io.abort();
    }
}
