//! Network interfaces, by which a stack sends and receives frames.

use std::fmt;
use std::time::Duration;

use frame::{MIN_FRAME, Offload, OffloadSet};
use netring::layout::{MAX_FRAGS, MAX_SEGMENTED};
use netring::{Incoming, Interest, Outgoing, Port, PortError};
use tcp::Full;

/// The maximum number of frames of a batch.
pub const BATCH: usize = 64;
/// Maximum number of pieces of all frames of a batch, without the first of each.
const PIECES: usize = 4 * MAX_FRAGS;
/// Private memory for the copied frames of a batch, in bytes.
const ARENA: usize = 128 << 10;

/// A received frame, as a NIC lends it.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'f> {
    /// The frame's first bytes, or all of it.
    pub front: &'f [u8],
    /// The other pieces, in order.
    pub rest: &'f [&'f [u8]],
    /// The sender's offload request. Checksums of frames with a request are not verified.
    pub offload: Offload,
}

impl<'f> Frame<'f> {
    /// A frame in one piece, without an offload request.
    #[must_use]
    pub const fn new(front: &'f [u8]) -> Self {
        Self { front, rest: &[], offload: Offload::NONE }
    }

    /// The frame's bytes in one piece.
    #[must_use]
    pub fn to_vec(self) -> Vec<u8> {
        let mut bytes = self.front.to_vec();
        self.rest.iter().for_each(|piece| bytes.extend_from_slice(piece));
        bytes
    }
}

/// The payload of a frame to send, in pieces that stay in the application's memory.
#[derive(Clone, Debug)]
pub struct Pieces<I> {
    /// The pieces, in order.
    pub pieces: I,
    /// The pieces' bytes in all.
    pub len: usize,
}

impl Pieces<std::iter::Empty<&'static [u8]>> {
    /// No payload.
    #[must_use]
    pub fn none() -> Self {
        Self { pieces: std::iter::empty(), len: 0 }
    }
}

/// A network interface, as a stack uses it.
pub trait Nic {
    /// The reason why the interface has failed.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Returns the maximum length of a frame, Ethernet header included. For frames with a
    /// segmentation request, this is the limit of each segment.
    fn max_frame(&self) -> usize;

    /// The offload requests that frames may carry in both directions.
    fn offloads(&self) -> OffloadSet {
        OffloadSet::NONE
    }

    /// Lends received frames to `take`, oldest first and at most [`BATCH`], and removes them from
    /// the ring. Returns their number. A frame longer than its memory is truncated.
    fn receive(&mut self, take: impl FnMut(&[Frame<'_>])) -> usize;

    /// Writes a frame into send slots: `head`, then the payload. [`flush`](Self::flush) sends it.
    ///
    /// # Errors
    /// [`Full`] if there is no room.
    fn send<'p>(
        &mut self,
        head: &[u8],
        payload: Pieces<impl Iterator<Item = &'p [u8]>>,
        offload: Offload,
    ) -> Result<(), Full>;

    /// Lets `build` write a frame of at most `max` bytes, in its send slot if possible. It returns
    /// the frame's length; 0 sends nothing. [`flush`](Self::flush) sends it.
    ///
    /// # Errors
    /// [`Full`] if there is no room. `build` was not called then.
    fn build(&mut self, max: usize, build: impl FnOnce(&mut [u8]) -> usize) -> Result<(), Full> {
        let mut frame = vec![0; max];
        let len = build(&mut frame).min(max);
        match len {
            0 => Ok(()),
            _ => self.send(&frame[..len], Pieces::none(), Offload::NONE),
        }
    }

    /// Lends received frames to `to` one by one, as [`receive`](Self::receive) does, with room for
    /// answers. Returns the number of frames.
    fn exchange(&mut self, to: &mut impl Exchange) -> usize
    where
        Self: Sized,
    {
        let mut answers = Answers { max_frame: self.max_frame(), ..Answers::default() };
        let frames = self.receive(|frames| {
            for frame in frames {
                to.frame(frame, &mut answers);
            }
        });
        let mut bytes = &answers.bytes[..];
        for len in answers.lens {
            let (frame, rest) = bytes.split_at(len);
            // A frame that finds no room is lost, as on any link.
            let _ = self.send(frame, Pieces::none(), Offload::NONE);
            bytes = rest;
        }
        frames
    }

    /// Publishes sent frames, and returns received slots.
    ///
    /// # Errors
    /// The other side is gone, or the rings are broken.
    fn flush(&mut self) -> Result<(), Self::Error>;

    /// Flushes, then sleeps until a frame arrives or `timeout` is over. With `room`, it also wakes
    /// up when there is room to send.
    ///
    /// # Errors
    /// As for [`flush`](Self::flush).
    fn wait(&mut self, room: bool, timeout: Option<Duration>) -> Result<(), Self::Error>;
}

/// Room for frames to send.
pub trait Room {
    /// The maximum length of a frame.
    fn max_frame(&self) -> usize;

    /// Like [`Nic::build`].
    ///
    /// # Errors
    /// [`Full`] if there is no room. `build` was not called then.
    fn build(&mut self, max: usize, build: impl FnOnce(&mut [u8]) -> usize) -> Result<(), Full>;
}

/// The room of a NIC that lends no frames at present.
#[derive(Debug)]
pub struct SendRing<'n, N>(pub &'n mut N);

impl<N: Nic> Room for SendRing<'_, N> {
    fn max_frame(&self) -> usize {
        self.0.max_frame()
    }

    #[inline]
    fn build(&mut self, max: usize, build: impl FnOnce(&mut [u8]) -> usize) -> Result<(), Full> {
        self.0.build(max, build)
    }
}

/// A user of a NIC that answers received frames.
pub trait Exchange {
    /// Looks at a frame, and writes answers into `room`.
    fn frame(&mut self, frame: &Frame<'_>, room: &mut impl Room);
}

/// Answers that wait until the received frames are given back.
#[derive(Debug, Default)]
struct Answers {
    bytes: Vec<u8>,
    lens: Vec<usize>,
    max_frame: usize,
}

impl Room for Answers {
    fn max_frame(&self) -> usize {
        self.max_frame
    }

    fn build(&mut self, max: usize, build: impl FnOnce(&mut [u8]) -> usize) -> Result<(), Full> {
        let start = self.bytes.len();
        self.bytes.resize(start + max, 0);
        let len = build(&mut self.bytes[start..]).min(max);
        self.bytes.truncate(start + len);
        self.lens.extend((len > 0).then_some(len));
        Ok(())
    }
}

/// A port's first pair of rings as a NIC.
///
/// With [offloads](netring::Open::offloads), checksums and segmentation are left to the switch and
/// to receivers, and long frames arrive unsegmented.
pub struct RingNic {
    port: Port,
    /// Private memory for copies of received frames; `None` if frames are lent in place.
    arena: Option<Box<[u8]>>,
    /// Private memory for a frame that is not built in its slot.
    scratch: Vec<u8>,
    /// Bytes that a slot takes.
    slot: usize,
}

impl RingNic {
    /// Makes a NIC that copies each received frame once to private memory before reading it. Use it
    /// if the port's other side is another process, which can write to the buffers at any time.
    #[must_use]
    pub fn new(port: Port) -> Self {
        let len = ARENA.max(2 * MAX_SEGMENTED as usize);
        let arena = Some(vec![0; len].into_boxed_slice());
        Self { slot: slot_bytes(&port), port, arena, scratch: Vec::new() }
    }

    /// Makes a NIC that lends received frames in place, without a copy.
    ///
    /// # Safety
    /// While [`Nic::receive`] runs, nothing else may write to the buffers of received frames: no
    /// thread, no process. This holds for a port of a `inline::Inline` switch that runs in the
    /// thread of the stack, if the region is private to the process and no other port's owner
    /// writes to its buffers meanwhile.
    #[allow(unsafe_code, reason = "the promise is the caller's")]
    #[must_use]
    pub unsafe fn in_place(port: Port) -> Self {
        Self { slot: slot_bytes(&port), port, arena: None, scratch: Vec::new() }
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> &Port {
        &self.port
    }

    fn slot_bytes(&self) -> usize {
        self.slot
    }
}

fn slot_bytes(port: &Port) -> usize {
    (port.rings().buf_usable as usize).min(u16::MAX.into()).max(1)
}

impl fmt::Debug for RingNic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingNic")
            .field("port", &self.port)
            .field("in_place", &self.arena.is_none())
            .finish()
    }
}

/// Lends the port's frames as copies in `arena`.
fn receive_copies(
    port: &mut Port,
    slot: usize,
    arena: &mut [u8],
    mut take: impl FnMut(&[Frame<'_>]),
) -> usize {
    let mut list = [Frame::new(&[]); BATCH];
    let (mut n, mut room) = (0, arena);
    let mut incoming = port.receive(BATCH);
    loop {
        let next = match n {
            0 => incoming.next(),
            _ => incoming.next_within(room.len() / slot),
        };
        let Some(received) = next else { break };
        let offload = received.offload();
        let len = received.copy_out(room);
        let (front, rest) = std::mem::take(&mut room).split_at_mut(len);
        list[n] = Frame { front, rest: &[], offload };
        (n, room) = (n + 1, rest);
    }
    if n > 0 {
        take(&list[..n]);
    }
    n
}

/// Lends the port's frames in place.
///
/// # Safety
/// Nothing else writes to them meanwhile.
#[allow(unsafe_code, reason = "frames are lent where they lie")]
unsafe fn receive_in_place(port: &mut Port, mut take: impl FnMut(&[Frame<'_>])) -> usize {
    let mut list = [Frame::new(&[]); BATCH];
    let mut pieces: [&[u8]; PIECES] = [&[]; PIECES];
    let (mut n, mut free) = (0, &mut pieces[..]);
    let mut incoming = port.receive(BATCH);
    // A frame has one more piece than `rest`.
    while let Some(received) = incoming.next_within(free.len() + 1) {
        let mut windows = received.windows().map(|window| {
            // SAFETY: the frame stays this port's until the next flush, which needs the borrow of
            // the port that the slices have. The caller promises that nothing else writes to it.
            let bytes: &[u8] = unsafe { window.exclusive() };
            bytes
        });
        let front = windows.next().unwrap_or_default();
        let (rest, later) = std::mem::take(&mut free).split_at_mut(received.slot_count() - 1);
        rest.iter_mut().zip(windows).for_each(|(place, piece)| *place = piece);
        list[n] = Frame { front, rest, offload: received.offload() };
        (n, free) = (n + 1, later);
    }
    if n > 0 {
        take(&list[..n]);
    }
    n
}

/// Free send slots, with memory for frames that are not built in them.
struct SlotRoom<'p> {
    out: Outgoing<'p>,
    scratch: &'p mut Vec<u8>,
    /// Nothing else writes to the slots.
    in_place: bool,
    max_frame: usize,
}

impl Room for SlotRoom<'_> {
    fn max_frame(&self) -> usize {
        self.max_frame
    }

    #[inline]
    fn build(&mut self, max: usize, build: impl FnOnce(&mut [u8]) -> usize) -> Result<(), Full> {
        if !self.in_place || max > self.out.slot_bytes() {
            return self.build_aside(max, build);
        }
        let Some(mut slot) = self.out.slot() else { return Err(Full) };
        #[allow(unsafe_code, reason = "frames are built where they are sent from")]
        // SAFETY: the slot is free, so it is this port's until it is flushed. The promise made to
        // `RingNic::in_place` is that nothing else writes to the region meanwhile.
        let frame = unsafe { slot.window().prefix(max).exclusive() };
        let len = build(frame).min(max);
        if (1..MIN_FRAME).contains(&len)
            && let Some(padding) = frame.get_mut(len..MIN_FRAME)
        {
            padding.fill(0);
        }
        slot.set_len(if len == 0 { 0 } else { len.max(MIN_FRAME) });
        Ok(())
    }
}

impl SlotRoom<'_> {
    /// Builds a frame in private memory, and copies it into its slots.
    fn build_aside(
        &mut self,
        max: usize,
        build: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<(), Full> {
        if max.div_ceil(self.out.slot_bytes().max(1)) > self.out.room() {
            return Err(Full);
        }
        if self.scratch.len() < max.max(MIN_FRAME) {
            self.scratch.resize(max.max(MIN_FRAME), 0);
        }
        let len = build(&mut self.scratch[..max]).min(max);
        if len == 0 {
            return Ok(());
        }
        if len < MIN_FRAME {
            self.scratch[len..MIN_FRAME].fill(0);
        }
        match self.out.push(&self.scratch[..len.max(MIN_FRAME)]) {
            true => Ok(()),
            false => Err(Full),
        }
    }
}

/// Lends copies of the frames in `arena`, one by one.
fn exchange_copies(
    incoming: Incoming<'_>,
    arena: &mut [u8],
    to: &mut impl Exchange,
    room: &mut impl Room,
) -> usize {
    let mut frames = 0;
    for received in incoming {
        let offload = received.offload();
        let len = received.copy_out(arena);
        to.frame(&Frame { front: &arena[..len], rest: &[], offload }, room);
        frames += 1;
    }
    frames
}

/// Lends the frames in place, one by one. Frames of several slots are put together.
///
/// # Safety
/// Nothing else writes to them meanwhile.
#[allow(unsafe_code, reason = "frames are lent where they lie")]
unsafe fn exchange_in_place(
    incoming: Incoming<'_>,
    to: &mut impl Exchange,
    room: &mut impl Room,
) -> usize {
    let mut frames = 0;
    for received in incoming {
        frames += 1;
        let offload = received.offload();
        if received.slot_count() > 1 {
            let whole = received.to_vec();
            to.frame(&Frame { front: &whole, rest: &[], offload }, room);
            continue;
        }
        // SAFETY: the frame stays this port's until the next flush, which needs the borrow that
        // `incoming` has. The caller promises that nothing else writes to it.
        let front: &[u8] = unsafe { received.window().exclusive() };
        to.frame(&Frame { front, rest: &[], offload }, room);
    }
    frames
}

impl Nic for RingNic {
    type Error = PortError;

    fn max_frame(&self) -> usize {
        self.port.max_frame().min(self.slot_bytes() * MAX_FRAGS)
    }

    fn offloads(&self) -> OffloadSet {
        let offloads = self.port.offloads();
        let longest = (MAX_SEGMENTED as usize).div_ceil(self.slot_bytes());
        match longest < self.port.slots().0 {
            true => offloads,
            false => OffloadSet { checksum: offloads.checksum, ..OffloadSet::NONE },
        }
    }

    fn receive(&mut self, take: impl FnMut(&[Frame<'_>])) -> usize {
        let slot = self.slot_bytes();
        #[allow(unsafe_code, reason = "frames are lent where they lie")]
        match &mut self.arena {
            Some(arena) => receive_copies(&mut self.port, slot, arena, take),
            // SAFETY: the promise made to `in_place`.
            None => unsafe { receive_in_place(&mut self.port, take) },
        }
    }

    fn send<'p>(
        &mut self,
        head: &[u8],
        payload: Pieces<impl Iterator<Item = &'p [u8]>>,
        offload: Offload,
    ) -> Result<(), Full> {
        const PADDING: [u8; MIN_FRAME] = [0; MIN_FRAME];
        let len = head.len() + payload.len;
        let padding = &PADDING[..MIN_FRAME.saturating_sub(len)];
        // The pieces live as long as both `head` and the payload.
        let shorter = |piece: &'p [u8]| -> &[u8] { piece };
        let pieces = std::iter::once(head).chain(payload.pieces.map(shorter));
        let slots = len.div_ceil(self.slot_bytes());
        let mut out = self.port.send(slots);
        let pieces = pieces.chain(std::iter::once(padding));
        if out.gather(pieces, len.max(MIN_FRAME), offload) { Ok(()) } else { Err(Full) }
    }

    #[inline]
    fn build(&mut self, max: usize, build: impl FnOnce(&mut [u8]) -> usize) -> Result<(), Full> {
        let in_place = self.arena.is_none();
        let out = self.port.send(if max <= self.slot { 1 } else { usize::MAX });
        SlotRoom { out, scratch: &mut self.scratch, in_place, max_frame: max }.build(max, build)
    }

    fn exchange(&mut self, to: &mut impl Exchange) -> usize {
        let (max_frame, in_place) = (self.max_frame(), self.arena.is_none());
        let Self { port, arena, scratch, .. } = self;
        let Some((out, incoming)) = port.queue(0).both(usize::MAX, BATCH) else { return 0 };
        let mut room = SlotRoom { out, scratch, in_place, max_frame };
        #[allow(unsafe_code, reason = "frames are lent where they lie")]
        match arena {
            Some(arena) => exchange_copies(incoming, arena, to, &mut room),
            // SAFETY: the promise made to `in_place`.
            None => unsafe { exchange_in_place(incoming, to, &mut room) },
        }
    }

    fn flush(&mut self) -> Result<(), PortError> {
        self.port.flush()
    }

    fn wait(&mut self, room: bool, timeout: Option<Duration>) -> Result<(), PortError> {
        let interest = if room { Interest::all() } else { Interest::READ };
        self.port.wait(interest, timeout).map(|_| ())
    }
}
