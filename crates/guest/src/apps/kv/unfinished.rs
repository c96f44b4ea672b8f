//! Values that have not arrived whole: all of them have one limit.
//!
//! A client may announce a value and never send its end. So when there is no room, the value that
//! was begun first gives way, and its connection is reset.

use std::collections::BTreeMap;

use tcp::ConnId;

use super::items::Items;

/// The memory of a value grows by at least this much.
const STEP: usize = 64 << 10;

#[derive(Debug)]
struct Part {
    id: ConnId,
    bytes: Vec<u8>,
}

/// The outcome of [`Unfinished::add`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    Yes,
    /// There is no room, even without the others.
    NoRoom,
    /// This value has given way to another.
    Gone,
}

/// The values, oldest first.
#[derive(Debug, Default)]
pub struct Unfinished {
    parts: BTreeMap<u64, Part>,
    bytes: usize,
    serial: u64,
    /// Connections whose values have given way.
    gone: Vec<ConnId>,
}

impl Unfinished {
    /// Begins a value; returns its number.
    pub fn begin(&mut self, id: ConnId) -> u64 {
        self.serial += 1;
        self.parts.insert(self.serial, Part { id, bytes: Vec::new() });
        self.serial
    }

    /// Adds bytes to a value, of which `left` are still to come, these included.
    pub fn add(&mut self, number: u64, data: &[u8], left: usize, items: &mut Items) -> Added {
        let Some(part) = self.parts.get(&number) else { return Added::Gone };
        let (len, had) = (part.bytes.len(), part.bytes.capacity());
        let more = if len + data.len() > had { data.len().max(STEP).min(left) } else { 0 };
        let wanted = if more > 0 { len + more } else { had };
        if !self.make_room(wanted - had, number, items) {
            return Added::NoRoom;
        }
        if let Some(part) = self.parts.get_mut(&number) {
            part.bytes.reserve_exact(more);
            part.bytes.extend_from_slice(data);
            // The allocator may give more than was asked for.
            self.bytes = self.bytes + part.bytes.capacity() - had;
        }
        Added::Yes
    }

    /// Makes room for a value that is here in one piece; returns false if there is none.
    pub fn pass(&mut self, len: usize, items: &mut Items) -> bool {
        let has_room = self.make_room(len, 0, items);
        items.set_unfinished(self.bytes);
        has_room
    }

    /// Makes room for `more` bytes of the value `number`. The others give way, the oldest first.
    fn make_room(&mut self, more: usize, number: u64, items: &mut Items) -> bool {
        while !items.set_unfinished(self.bytes + more) {
            let oldest = self.parts.keys().copied().find(|other| *other != number);
            let Some(part) = oldest.and_then(|oldest| self.remove(oldest, items)) else {
                return false;
            };
            self.gone.push(part.id);
        }
        true
    }

    fn remove(&mut self, number: u64, items: &mut Items) -> Option<Part> {
        let part = self.parts.remove(&number)?;
        self.bytes -= part.bytes.capacity();
        items.set_unfinished(self.bytes);
        Some(part)
    }

    /// Takes a value, or what there is of it.
    pub fn take(&mut self, number: u64, items: &mut Items) -> Vec<u8> {
        self.remove(number, items).map(|part| part.bytes).unwrap_or_default()
    }

    /// The next connection whose value has given way.
    pub fn next_gone(&mut self) -> Option<ConnId> {
        self.gone.pop()
    }

    /// Values that are arriving.
    pub fn len(&self) -> usize {
        self.parts.len()
    }
}
