//! The DMA proxy: a guest's memory by messages, for front ends that have no file to share
//! (vfio-user, `DMA_READ` and `DMA_WRITE`).
//!
//! ```text
//!   model <--> copy <--- Remote (nic) ---> Held, Out <--- Courier ---> messages <--> front end
//! ```
//!
//! The device's model works on a copy of the guest's memory. Its remote part ([`nic::remote`]) says
//! what to read and what was written; the DMA proxy sends a bounded number of messages for that.
//! Replies arrive between register accesses and are matched by their number. No thread waits for
//! them: a front end that waits for a register access cannot answer before it has its reply.
//!
//! Replies to requests from before a reset, or of a predecessor, are ignored. A reply that does not
//! match its request ends the session. A reply that memory is unreachable stops the device. If a
//! reply never comes, memory stays as it is until the driver resets its device.

use std::collections::VecDeque;
use std::sync::Arc;

use nic::device::Device;
use nic::remote::{Held, Out, Part};
use port::Nanos;

use super::message::{Fields, Header, ProtocolError, command, write_header};

/// The maximum number of messages in flight. The messages of the last descriptor may exceed it.
const WINDOW: usize = 32;
/// The maximum number of bytes in flight, with the same exception. A socket has room for them.
const WINDOW_BYTES: usize = 48 << 10;
/// Least and most bytes of a message's data, whatever the front end accepts.
const TRANSFER: (usize, usize) = (64, 4096);
/// Bytes before the data: address and count.
const HEAD: usize = 16;
/// The copy is replaced by an empty one once this many of its pages are touched, if possible.
/// Beyond twice as many, nothing is read until it is replaced.
const PAGES: usize = (64 << 20) / 4096;
/// Nanoseconds until a message is tried again that the socket had no room for.
const RETRY_NS: u64 = 1_000_000;

/// The DMA proxy of one device.
pub struct DmaProxy {
    device: Arc<dyn Device>,
    held: Held,
    /// The messages in flight, oldest first.
    open: Vec<Open>,
    /// The messages that were not sent yet.
    outbox: VecDeque<Vec<u8>>,
    /// The number of the last message.
    id: u16,
    /// Bytes of data in one message.
    transfer: usize,
    /// Pages of the copy that may be allocated.
    pages: usize,
    /// No reply has come yet. A predecessor's messages may have been answered in the meantime.
    fresh: bool,
}

/// A message in flight.
#[derive(Clone, Copy, Debug)]
struct Open {
    id: u16,
    at: u64,
    len: usize,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Read(Part),
    /// A write. When all earlier writes are answered, the driver is reminded of these interrupt
    /// causes.
    Write(u32),
}

impl What {
    fn command(self) -> u16 {
        match self {
            Self::Read(_) => command::DMA_READ,
            Self::Write(_) => command::DMA_WRITE,
        }
    }
}

impl DmaProxy {
    /// A proxy for a device whose memory is a copy. The front end accepts `transfer` bytes in a
    /// message; message numbers continue after `id`.
    #[must_use]
    pub fn new(device: Arc<dyn Device>, transfer: usize, id: u16) -> Self {
        let transfer = transfer.clamp(TRANSFER.0, TRANSFER.1);
        let (held, open, outbox) = (Held::default(), Vec::new(), VecDeque::new());
        Self { device, held, open, outbox, id, transfer, pages: 0, fresh: true }
    }

    /// Asks the device what to read and what was written.
    pub fn run(&mut self, now: Nanos) {
        let device = Arc::clone(&self.device);
        let Some(remote) = device.remote() else { return };
        self.held.begin();
        remote.fetch(&mut self.held, now);
        self.held.sweep();
        if self.held.take_reset() {
            self.outbox.clear();
            self.open.clear();
        }
        // Obsolete requests are given up, not waited for.
        let held = &self.held;
        self.open.retain(|open| match open.what {
            What::Read(part) => held.has(part),
            What::Write(_) => true,
        });
        let causes = remote.push(self);
        if let Some(Open { what: What::Write(of), .. }) = self.open.last_mut() {
            *of |= causes;
        }
        while self.has_room()
            && self.pages < 2 * PAGES
            && let Some(part) = self.held.next_part(self.transfer)
        {
            self.held.asked(part);
            self.ask(part.at, part.len, What::Read(part), &[]);
        }
        if self.pages > PAGES && remote.forget() {
            self.pages = 0;
        }
    }

    /// The next message to send.
    #[must_use]
    pub fn letter(&self) -> Option<&[u8]> {
        self.outbox.front().map(Vec::as_slice)
    }

    /// Notes that the first message has been sent.
    pub fn sent(&mut self) {
        self.outbox.pop_front();
        if let (true, Some(remote)) = (self.outbox.is_empty(), self.device.remote()) {
            remote.note_sent();
        }
    }

    /// When to run again without a message.
    #[must_use]
    pub fn deadline(&self, now: Nanos) -> Option<Nanos> {
        let again = (!self.outbox.is_empty()).then_some(now + RETRY_NS);
        again.into_iter().chain(self.device.remote()?.look_at()).min()
    }

    fn ask(&mut self, at: u64, len: usize, what: What, data: &[u8]) {
        self.id = self.id.wrapping_add(1);
        let mut message = Vec::new();
        write_header(&mut message, self.id, what.command(), HEAD + data.len(), 0);
        message.extend(at.to_ne_bytes());
        message.extend((len as u64).to_ne_bytes());
        message.extend(data);
        self.outbox.push_back(message);
        self.open.push(Open { id: self.id, at, len, what });
        self.pages += 2;
    }

    /// Handles a reply.
    ///
    /// # Errors
    /// [`ProtocolError`]: it does not match its request.
    pub fn answered(&mut self, header: Header, body: &[u8]) -> Result<(), ProtocolError> {
        let Some(place) = self.open.iter().position(|open| open.id == header.id) else {
            return Ok(());
        };
        let Open { at, len, what, .. } = self.open.remove(place);
        let mut fields = Fields(body);
        let echoes = fields.u64() == at && fields.u64() == len as u64;
        let failed = header.answers != Some(true);
        let good = header.command == what.command()
            && match what {
                _ if failed => true,
                What::Read(_) => echoes && body.len() == HEAD + len,
                // QEMU 11.1 answers with a header alone.
                What::Write(_) => body.is_empty() || echoes && body.len() == HEAD,
            };
        if !good {
            return Err(ProtocolError::Answer(header.command));
        }
        // Messages are answered in order.
        if let (true, Some(remote)) = (std::mem::take(&mut self.fresh), self.device.remote()) {
            remote.confirm_all_pushed();
        }
        match (what, self.device.remote()) {
            (_, Some(remote)) if failed => remote.fail(),
            (What::Read(part), _) => {
                self.held.receive_part(part, body.get(HEAD..).unwrap_or_default())
            }
            (What::Write(causes), Some(remote)) if causes != 0 => remote.confirm_pushed(causes),
            _ => {}
        }
        Ok(())
    }
}

impl Out for DmaProxy {
    fn has_room(&self) -> bool {
        let bytes: usize = self.open.iter().map(|open| open.len).sum();
        self.open.len() < WINDOW && bytes < WINDOW_BYTES && self.outbox.len() < WINDOW
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        for (n, data) in bytes.chunks(self.transfer).enumerate() {
            let at = at.wrapping_add((n * self.transfer) as u64);
            self.ask(at, data.len(), What::Write(0), data);
        }
    }
}

#[cfg(test)]
mod tests;
