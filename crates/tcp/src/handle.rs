//! Handles of connections, and the readers that get their data.

/// A connection's handle. It becomes stale when the application closes the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl ConnId {
    /// The handle of no connection.
    pub const NONE: Self = Self { index: u32::MAX, generation: 0 };

    /// Returns a small number that is unique among open connections: an index for the application's
    /// own table.
    #[must_use]
    pub const fn index(self) -> usize {
        self.index as usize
    }
}

/// A reader of data that still lies in the frame.
pub trait Receive {
    /// Receives data in order. Returns how many bytes were taken; the rest is copied and can be
    /// read later.
    fn receive(&mut self, id: ConnId, data: &[u8]) -> usize;
}

impl<F: FnMut(ConnId, &[u8]) -> usize> Receive for F {
    fn receive(&mut self, id: ConnId, data: &[u8]) -> usize {
        self(id, data)
    }
}

/// A reader that takes nothing: all data is copied, for
/// [`Machine::receive`](crate::Machine::receive).
#[derive(Clone, Copy, Debug, Default)]
pub struct Buffered;

impl Receive for Buffered {
    fn receive(&mut self, _: ConnId, _: &[u8]) -> usize {
        0
    }
}

/// What a connection knows of the path to its peer. Sizes are in bytes, times in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Smoothed round-trip time; 0 if none was measured.
    pub rtt: u64,
    /// Least round-trip time of the last seconds; 0 if none was measured.
    pub rtt_min: u64,
    /// Retransmission time-out.
    pub rto: u64,
    /// Congestion window.
    pub congestion_window: u32,
    /// Slow-start threshold.
    pub threshold: u32,
    /// Bytes in flight.
    pub in_flight: u32,
    /// The peer's window.
    pub send_window: u32,
    /// Our window.
    pub receive_window: u32,
    /// Largest payload of a segment.
    pub mss: u32,
}
