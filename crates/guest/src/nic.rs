//! What a stack sends and receives frames by.

use std::fmt;
use std::time::Duration;

use frame::MIN_FRAME;
use netring::{Interest, Port, PortError};
use tcp::Full;

/// Most frames of a batch.
pub const BATCH: usize = 64;
/// Bytes of a slot that a frame is copied to: the usual buffer of a ring.
const SLOT: usize = 2048;

/// A network interface, as a stack uses it.
pub trait Nic {
    /// Why it does not go on.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Bytes of the largest frame that can be sent and received, Ethernet header included.
    fn max_frame(&self) -> usize;

    /// Lends received frames, oldest first and [`BATCH`] at most, to `take`, and takes them out of the ring. Returns
    /// how many there were. A frame that is longer than a slot is lent cut short.
    fn receive(&mut self, take: impl FnMut(&[&[u8]])) -> usize;

    /// Puts a frame into a send slot: `head`, then the pieces of `payload`. It is sent by [`flush`](Self::flush).
    ///
    /// # Errors
    /// [`Full`] if there is no free slot.
    fn send<'p>(
        &mut self,
        head: &[u8],
        payload: impl Iterator<Item = &'p [u8]>,
    ) -> Result<(), Full>;

    /// Publishes what was sent and gives received slots back.
    ///
    /// # Errors
    /// The other side is gone, or the rings are broken.
    fn flush(&mut self) -> Result<(), Self::Error>;

    /// Flushes, then sleeps until a frame comes, until there is room to send if `room` says so, or until `timeout` is
    /// over.
    ///
    /// # Errors
    /// As for [`flush`](Self::flush).
    fn wait(&mut self, room: bool, timeout: Option<Duration>) -> Result<(), Self::Error>;
}

/// A port's first pair of rings as a NIC.
pub struct RingNic {
    port: Port,
    /// Private slots that received frames are copied to; `None` if frames are lent where they lie.
    frames: Option<Box<[u8]>>,
}

impl RingNic {
    /// A NIC that copies each received frame to private memory once, before anything looks at it. This is for ports
    /// whose other side is another process: it can write to the buffers at any time.
    #[must_use]
    pub fn new(port: Port) -> Self {
        Self { port, frames: Some(vec![0; BATCH * SLOT].into_boxed_slice()) }
    }

    /// A NIC that lends received frames where they lie, without a copy.
    ///
    /// # Safety
    /// While [`Nic::receive`] runs, nothing else may write to the buffers of received frames: no thread, no process.
    /// This holds for a port of a `dataplane::Inline` switch that runs in the thread of the stack, if the region is
    /// private to the process and no other port's owner writes to its buffers meanwhile.
    #[allow(unsafe_code, reason = "the promise is the caller's")]
    #[must_use]
    pub unsafe fn in_place(port: Port) -> Self {
        Self { port, frames: None }
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> &Port {
        &self.port
    }
}

impl fmt::Debug for RingNic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingNic")
            .field("port", &self.port)
            .field("in_place", &self.frames.is_none())
            .finish()
    }
}

impl Nic for RingNic {
    type Error = PortError;

    fn max_frame(&self) -> usize {
        let slot = self.port.rings().buf_usable as usize;
        self.port.max_frame().min(slot).min(SLOT)
    }

    fn receive(&mut self, mut take: impl FnMut(&[&[u8]])) -> usize {
        let mut list: [&[u8]; BATCH] = [&[]; BATCH];
        let mut n = 0;
        match &mut self.frames {
            Some(slots) => {
                for (frame, slot) in self.port.receive(BATCH).zip(slots.chunks_exact_mut(SLOT)) {
                    let len = frame.copy_out(slot);
                    list[n] = &slot[..len];
                    n += 1;
                }
            }
            None => {
                for (frame, lent) in self.port.receive(BATCH).zip(&mut list) {
                    #[allow(unsafe_code, reason = "frames are lent where they lie")]
                    // SAFETY: the frame stays this port's until the next flush, which needs the borrow of the port that
                    // the slice has. That nothing else writes to it is the promise made to `in_place`.
                    let bytes = unsafe { frame.window().exclusive() };
                    *lent = bytes;
                    n += 1;
                }
            }
        }
        if n > 0 {
            take(&list[..n]);
        }
        n
    }

    fn send<'p>(
        &mut self,
        head: &[u8],
        payload: impl Iterator<Item = &'p [u8]>,
    ) -> Result<(), Full> {
        let mut out = self.port.send(1);
        let mut slot = out.slot().ok_or(Full)?;
        let window = slot.window();
        let mut len = window.copy_in(head);
        for piece in payload {
            len += window.suffix(len).copy_in(piece);
        }
        if len < MIN_FRAME {
            window.suffix(len).prefix(MIN_FRAME - len).fill(0);
            len = MIN_FRAME;
        }
        slot.set_len(len);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), PortError> {
        self.port.flush()
    }

    fn wait(&mut self, room: bool, timeout: Option<Duration>) -> Result<(), PortError> {
        let interest = if room { Interest::all() } else { Interest::READ };
        self.port.wait(interest, timeout).map(|_| ())
    }
}
