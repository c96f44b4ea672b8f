//! Drivers over buffers of their caller: frames are sent and received where they lie.

/// The maximum number of buffers of a frame.
pub const MOST_PIECES: usize = 8;

/// A buffer that came back with bytes of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Bytes of the frame in this buffer; 0 if it holds the frame's check sequence alone.
    pub len: u32,
    /// How many more buffers with bytes the frame has. They are traded next, in the same call.
    pub after: u32,
}

/// A driver whose buffers change hands: to send, the caller lends a buffer and gets it back once
/// the frame has left; to receive, it trades a filled buffer for an empty one, or gives empty ones
/// and takes them back filled. No byte is copied.
///
/// The caller keeps which buffer is with which descriptor. What the device reports is checked
/// against private state, so a device that writes whatever it wants to the rings causes wrong
/// frames, and nothing else.
pub trait Lent {
    /// How many buffers with frames can be queued.
    fn room(&self) -> usize;

    /// The maximum number of buffers of a frame, at most [`MOST_PIECES`].
    fn most_pieces(&self) -> usize;

    /// Queues a frame whose pieces are at these addresses of the device, with their lengths in
    /// bytes. Returns false without room, or for a frame that the device cannot send. The device
    /// learns of it at the next [`publish`](Self::publish).
    fn send_lent(&mut self, pieces: &[(u64, u32)]) -> bool;

    /// Returns how many frames have left since the last call, oldest first. Their buffers are the
    /// caller's again.
    fn take_back(&mut self) -> usize;

    /// Trades buffers that came back, until `budget` or more are traded. `trade` gets a
    /// descriptor's number and what its buffer has of a frame, `None` for a frame that is damaged
    /// or too long. It returns the device's address of the descriptor's next buffer, which may be
    /// the same one, or `None` to leave this and all later frames: not in the middle of a frame,
    /// whose rest is damaged then. Frames that are not complete stay. Returns how many buffers were
    /// traded.
    fn trade(
        &mut self,
        budget: usize,
        trade: impl FnMut(u32, Option<Piece>) -> Option<u64>,
    ) -> usize;

    /// Gives the device an empty buffer at its address `at`, for a frame that it receives. Returns
    /// false without a free descriptor, or for an address that the device cannot have. The device
    /// learns of it at the next [`publish`](Self::publish), if not before.
    ///
    /// A driver whose buffers are given like this must not [`trade`](Self::trade).
    fn give(&mut self, at: u64) -> bool;

    /// Takes up to `budget` buffers back, in the order in which they were [given](Self::give).
    /// `visit` gets the length of each frame, `None` for one that is damaged or too long. Returns
    /// how many.
    fn take(&mut self, budget: usize, visit: impl FnMut(Option<u32>)) -> usize;

    /// Tells the device of queued frames and of new buffers, by one doorbell each at most.
    fn publish(&mut self);

    /// True if a buffer came back that was neither traded nor taken.
    fn has_frames(&self) -> bool;

    /// True while the link is up.
    fn carrier(&mut self) -> bool;

    /// Returns how many frames the device has dropped for want of buffers since the last call: at
    /// least so many, if the device does not count them.
    fn missed(&mut self) -> u64;
}
