//! Guest memory that a device reaches by messages: what its model wants of the code that sends
//! them.
//!
//! ```text
//!   guest ---- read ----> Held ---- fetch: buffers first, then what shows them ----> copy <--> model
//!         <--- written -------------- push: frames first, then what shows them ------'
//! ```
//!
//! A model works on a [copy](GuestMemory::into_copy) of the guest's memory as on any memory. Its
//! [`Remote`] part names what to read of what the driver made available. Once all of it has come,
//! it puts it into the copy and shows it to the model. It also names what the model has written.
//! None of its calls wait: the home worker calls again when data has come, a register was written,
//! or frames were delivered.

use port::Nanos;
use shmem::GuestMemory;

/// The maximum number of bytes held at a time.
const ROOM: usize = 128 << 10;

/// The maximum number of descriptors of a ring that are shown and not pushed. It bounds what a
/// front end that never answers can have a model fill.
pub const AHEAD: u32 = 1024;

/// The part of a device that keeps a copy of memory in step with the driver's memory.
pub trait Remote {
    /// Asks `held` for what the driver has made available, and shows the model the parts that have
    /// come.
    fn fetch(&self, held: &mut Held, now: Nanos);

    /// Reports what the model has written since. Returns the causes to
    /// [remind](Self::confirm_pushed) the driver of once the data is there.
    fn push(&self, out: &mut dyn Out) -> u32;

    /// Notes that what was pushed with these causes is in the driver's memory. Interrupts again a
    /// driver that was told too early.
    fn confirm_pushed(&self, causes: u32);

    /// Like [`confirm_pushed`](Self::confirm_pushed), for everything that a predecessor may have
    /// pushed without reminding the driver.
    fn confirm_all_pushed(&self);

    /// Notes that everything pushed has left for the driver's memory, so a successor need not check
    /// it.
    fn note_sent(&self);

    /// When to [fetch](Self::fetch) without being asked.
    fn look_at(&self) -> Option<Nanos> {
        None
    }

    /// Forgets the copy if none of it is in use or waits to be pushed; later it is fetched again.
    /// Returns true if it was forgotten.
    fn forget(&self) -> bool;

    /// Stops the device, because memory could not be read or written.
    fn fail(&self);
}

/// Where a device writes guest memory.
pub trait Out {
    /// True if there is room for all that belongs to a descriptor, and for a run of descriptors.
    fn has_room(&self) -> bool;
    /// Writes these bytes to this address, after all bytes of earlier calls.
    fn write(&mut self, at: u64, bytes: &[u8]);
}

/// Data that was read from the guest's memory, or has been requested.
#[derive(Debug, Default)]
pub struct Held {
    pieces: Vec<Piece>,
    /// The number that the next piece gets.
    next: u32,
    /// True if the device was reset.
    anew: bool,
}

/// One range.
#[derive(Debug)]
struct Piece {
    number: u32,
    at: u64,
    bytes: Vec<u8>,
    /// True if the range holds descriptors; its length is then that of the first request.
    run: bool,
    /// How many bytes were requested, and how many have come.
    asked: usize,
    came: usize,
    /// True if the device still wants the range.
    wanted: bool,
}

/// A part of a range, to read by one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its address.
    pub at: u64,
    /// Its bytes.
    pub len: usize,
    piece: u32,
    from: usize,
}

/// The answer to a request for data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want<'h> {
    /// The bytes are here.
    Here(&'h [u8]),
    /// The bytes were requested, and will come.
    Coming,
    /// There is no room for the bytes until other ranges are gone.
    Refused,
}

impl Held {
    /// Asks for the `len` bytes at `at`.
    pub fn want(&mut self, at: u64, len: usize) -> Want<'_> {
        self.look(at, len, false)
    }

    /// Asks for the run of descriptors at `at`: `len` bytes, or fewer if the first request was for
    /// fewer.
    pub fn want_run(&mut self, at: u64, len: usize) -> Want<'_> {
        self.look(at, len, true)
    }

    fn look(&mut self, at: u64, len: usize, run: bool) -> Want<'_> {
        let is_it =
            |piece: &Piece| piece.at == at && piece.run == run && (run || piece.bytes.len() == len);
        if let Some(found) = self.pieces.iter().position(is_it) {
            let piece = &mut self.pieces[found];
            piece.wanted = true;
            let whole = piece.came == piece.bytes.len();
            let bytes = piece.bytes.get(..len).unwrap_or(&piece.bytes);
            return if whole { Want::Here(bytes) } else { Want::Coming };
        }
        let held: usize = self.pieces.iter().map(|piece| piece.bytes.len()).sum();
        if held + len > ROOM {
            return Want::Refused;
        }
        let (number, bytes) = (self.next, vec![0; len]);
        self.next = self.next.wrapping_add(1);
        self.pieces.push(Piece { number, at, bytes, run, asked: 0, came: 0, wanted: true });
        Want::Coming
    }

    /// As [`want`](Self::want), for a buffer. The model itself reports buffers that are not memory,
    /// or larger than any frame.
    pub fn want_buffer(&mut self, memory: &GuestMemory, at: u64, len: u32, most: u32) -> Want<'_> {
        let is_memory = len > 0 && len <= most && memory.read_each(at, len, |_, _| ());
        if is_memory { self.want(at, len as usize) } else { Want::Here(&[]) }
    }

    /// Puts buffers into the copy, once all that fit have come. Returns how many.
    pub fn lay(
        &mut self,
        memory: &GuestMemory,
        buffers: &[Option<(u64, u32)>],
        most: u32,
    ) -> Option<usize> {
        let (mut ready, mut whole) = (0, true);
        for buffer in buffers {
            match buffer
                .map_or(Want::Here(&[]), |(at, len)| self.want_buffer(memory, at, len, most))
            {
                Want::Here(_) => ready += 1,
                Want::Coming => whole = false,
                Want::Refused => break,
            }
        }
        if !whole || ready == 0 && !buffers.is_empty() {
            return None;
        }
        for (at, len) in buffers[..ready].iter().flatten() {
            if let Want::Here(bytes) = self.want_buffer(memory, *at, *len, most) {
                memory.put(*at, bytes);
            }
        }
        Some(ready)
    }

    /// Notes that the data at an address was used; it must be asked for again.
    pub fn taken(&mut self, at: u64) {
        self.pieces.retain(|piece| piece.at != at);
    }

    /// Forgets all data.
    pub fn clear(&mut self) {
        self.pieces.clear();
    }

    /// Handles a reset of the device: forgets all, pushed data included.
    pub fn restart(&mut self) {
        self.clear();
        self.anew = true;
    }

    /// True if the device was reset since the last call.
    pub fn take_reset(&mut self) -> bool {
        std::mem::take(&mut self.anew)
    }

    /// Begins a round of asking the device what it wants.
    pub fn begin(&mut self) {
        self.pieces.iter_mut().for_each(|piece| piece.wanted = false);
    }

    /// Ends the round: forgets what the device did not ask for.
    pub fn sweep(&mut self) {
        self.pieces.retain(|piece| piece.wanted);
    }

    /// The next part, of at most `most` bytes, that was not asked for yet.
    #[must_use]
    pub fn next_part(&self, most: usize) -> Option<Part> {
        let piece = self.pieces.iter().find(|piece| piece.asked < piece.bytes.len())?;
        let (from, len) = (piece.asked, (piece.bytes.len() - piece.asked).min(most));
        Some(Part { at: piece.at.wrapping_add(from as u64), len, piece: piece.number, from })
    }

    /// Notes that a part was asked for.
    pub fn asked(&mut self, part: Part) {
        if let Some(piece) = self.piece(part) {
            piece.asked = part.from + part.len;
        }
    }

    /// True if a part is still wanted.
    #[must_use]
    pub fn has(&self, part: Part) -> bool {
        self.pieces.iter().any(|piece| piece.number == part.piece)
    }

    /// Stores a part that has come.
    pub fn receive_part(&mut self, part: Part, bytes: &[u8]) {
        if let Some(piece) = self.piece(part) {
            let to = piece.bytes.get_mut(part.from..).unwrap_or_default();
            to.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
            piece.came += part.len;
        }
    }

    fn piece(&mut self, part: Part) -> Option<&mut Piece> {
        self.pieces.iter_mut().find(|piece| piece.number == part.piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two rings may begin at one address.
    #[test]
    fn regression_a_reader_gets_at_most_what_it_asked_for() {
        let mut held = Held::default();
        assert_eq!(held.want_run(64, 32), Want::Coming);
        let part = held.next_part(4096).unwrap();
        held.asked(part);
        held.receive_part(part, &[1; 32]);
        assert_eq!(held.want_run(64, 16), Want::Here(&[1; 16]));
        assert_eq!(held.want_run(64, 48), Want::Here(&[1; 32]));
    }
}
