//! A server's slots: the last request of each, and its reply.

use std::num::NonZeroU16;

use tcp::Bytes;

use super::fragments::{Assembly, Sending, count};

/// Replies to this length are kept in the slot itself.
const INLINE: usize = 40;

/// What a slot does with the request of its sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The slot has had no request yet.
    Fresh,
    /// The request's fragments arrive.
    Receiving,
    /// A handler works on the request on another thread.
    Working,
    /// The request has a reply.
    Done,
}

/// A slot, in a cache line of its own.
#[derive(Debug)]
#[repr(align(64))]
pub struct Slot {
    pub sequence: u32,
    pub state: State,
    /// Bytes in `inline`, if the reply is there.
    len: u8,
    inline: [u8; INLINE],
    pub long: Option<Box<Long>>,
}

const _: () = assert!(size_of::<Slot>() == 64);

/// What does not fit into the slot.
#[derive(Debug, Default)]
pub struct Long {
    /// The request, while it arrives.
    pub assembly: Option<Assembly>,
    /// A reply of one fragment. Its memory is kept.
    short: Vec<u8>,
    /// A reply that the application lent.
    whole: Bytes,
    pub sending: Option<Box<Sending>>,
    /// Fragments that the client takes at once.
    pub credits: u16,
    /// The slot is on the list of slots with something to send.
    pub is_listed: bool,
}

impl Slot {
    pub fn new() -> Self {
        Self { sequence: 0, state: State::Fresh, len: 0, inline: [0; INLINE], long: None }
    }

    /// Keeps a reply of one fragment.
    #[inline]
    pub fn keep(&mut self, reply: &[u8]) {
        self.state = State::Done;
        self.len = 0;
        if let Some(place) = self.inline.get_mut(..reply.len()) {
            place.copy_from_slice(reply);
            self.len = reply.len() as u8;
            return;
        }
        let long = self.long.get_or_insert_default();
        long.short.clear();
        long.short.extend_from_slice(reply);
    }

    /// Keeps a reply that the application lends.
    pub fn keep_whole(&mut self, reply: Bytes, fragment: NonZeroU16) {
        (self.state, self.len) = (State::Done, 0);
        let total = count(reply.len(), fragment.into());
        let long = self.long.get_or_insert_default();
        long.short.clear();
        long.sending = (total > 1).then(|| Box::new(Sending::new(total)));
        long.whole = reply;
    }

    /// The reply.
    pub fn reply(&self) -> &[u8] {
        match &self.long {
            Some(long) if self.len == 0 && !long.short.is_empty() => &long.short,
            Some(long) if self.len == 0 => &long.whole,
            _ => &self.inline[..self.len.into()],
        }
    }

    /// Begins the request `sequence`: the client has the reply of the one before.
    #[inline]
    pub fn begin(&mut self, sequence: u32, state: State) {
        (self.sequence, self.state, self.len) = (sequence, state, 0);
        if let Some(long) = &mut self.long {
            long.clear();
        }
    }

    /// The bytes of memory that the slot uses outside of itself.
    pub fn bytes(&self) -> usize {
        self.long.as_ref().map_or(0, |long| {
            let assembly = long.assembly.as_ref().map_or(0, Assembly::len);
            long.short.capacity() + long.whole.len() + assembly
        })
    }
}

impl Long {
    fn clear(&mut self) {
        self.short.clear();
        self.whole = Bytes::new();
        (self.assembly, self.sending) = (None, None);
    }
}
