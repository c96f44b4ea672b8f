//! The driver's side of a queue. It uses the same memory as the device.
//!
//! ```text
//!   add, add, publish --> the device --> used, used
//! ```

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU16, AtomicU32, Ordering, fence};

use abi::virtio::packed::{self, advance};
use abi::virtio::{Descriptor, Features, QueueLayout, Word, flags, passed};
use shmem::{GuestMemory, SharedSlice};

/// A buffer of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Guest-physical address.
    pub at: u64,
    /// Bytes.
    pub len: u32,
    /// True if the device writes the buffer.
    pub writable: bool,
}

/// The device returned a chain that it was not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device returned chain {0}, which it was not given")]
pub struct NotGiven(pub u16);

/// A queue as its driver sees it.
#[derive(Debug)]
pub struct Driver {
    memory: Arc<GuestMemory>,
    features: Features,
    size: u16,
    descriptors: SharedSlice<Descriptor>,
    ring: Kind,
    /// Free descriptors; in packed queues, free numbers.
    free: VecDeque<u16>,
    /// For each chain number: the descriptors of a chain.
    chains: Vec<Vec<u16>>,
    /// Slots of the ring that are free.
    room: u16,
    /// The position of the next chain to add, and of the next one that comes back used.
    next: u16,
    used: u16,
    /// The last published position.
    published: u16,
    /// The first descriptor that was not published; it is stored last.
    first: Option<(u16, Word)>,
}

#[derive(Debug)]
enum Kind {
    Split {
        /// Flags, index, ring, used_event.
        driver: SharedSlice<AtomicU16>,
        /// Flags, index.
        device: SharedSlice<AtomicU16>,
        used: SharedSlice<[AtomicU32; 2]>,
        event: SharedSlice<AtomicU16>,
    },
    Packed {
        driver: SharedSlice<AtomicU32>,
        device: SharedSlice<AtomicU32>,
    },
}

/// Bytes of a queue with `size` entries, from a 64-byte boundary on.
#[must_use]
pub fn queue_bytes(size: u16) -> u64 {
    let size = u64::from(size);
    (16 * size).next_multiple_of(64)
        + (6 + 2 * size).next_multiple_of(64)
        + (6 + 8 * size).next_multiple_of(64)
}

/// A queue's parts one after the other, from `at` on, a multiple of 64.
#[must_use]
pub fn layout_at(at: u64, size: u16) -> QueueLayout {
    let driver = at + (16 * u64::from(size)).next_multiple_of(64);
    let device = driver + (6 + 2 * u64::from(size)).next_multiple_of(64);
    QueueLayout { size, descriptors: at, driver, device }
}

impl Driver {
    /// A new queue; `None` if it does not lie in memory.
    #[must_use]
    pub fn new(memory: &Arc<GuestMemory>, layout: QueueLayout, features: Features) -> Option<Self> {
        let size = usize::from(layout.size);
        let is_packed = features.contains(Features::RING_PACKED);
        memory.bytes(layout.descriptors, 16 * u32::from(layout.size))?.fill(0);
        let ring = if is_packed {
            memory.bytes(layout.driver, 4)?.fill(0);
            memory.bytes(layout.device, 4)?.fill(0);
            let driver = memory.shared_slice(layout.driver, 1)?;
            Kind::Packed { driver, device: memory.shared_slice(layout.device, 1)? }
        } else {
            memory.bytes(layout.driver, 6 + 2 * u32::from(layout.size))?.fill(0);
            memory.bytes(layout.device, 6 + 8 * u32::from(layout.size))?.fill(0);
            Kind::Split {
                driver: memory.shared_slice(layout.driver, 3 + size)?,
                device: memory.shared_slice(layout.device, 2)?,
                used: memory.shared_slice(layout.device + 4, size)?,
                event: memory.shared_slice(layout.device + 4 + 8 * size as u64, 1)?,
            }
        };
        let start = if is_packed { packed::WRAP } else { 0 };
        Some(Self {
            memory: Arc::clone(memory),
            features,
            size: layout.size,
            descriptors: memory.shared_slice(layout.descriptors, size)?,
            ring,
            free: (0..layout.size).collect(),
            chains: vec![Vec::with_capacity(4); size],
            room: layout.size,
            next: start,
            used: start,
            published: start,
            first: None,
        })
    }

    /// How many chains of one buffer still fit.
    #[must_use]
    pub fn room(&self) -> u16 {
        self.room.min(self.free.len() as u16)
    }

    /// The number that the next chain will have, if there is room for one.
    #[must_use]
    pub fn next_number(&self) -> Option<u16> {
        self.free.front().copied().filter(|_| self.room > 0)
    }

    /// Makes a chain of `buffers`: in descriptors of the ring, or in an indirect table at `table`.
    /// Returns its number; `None` without room.
    pub fn add(&mut self, buffers: &[Buffer], table: Option<u64>) -> Option<u16> {
        let Some(table) = table else { return self.add_direct(buffers, 0) };
        for (i, buffer) in buffers.iter().enumerate() {
            let last = i + 1 == buffers.len();
            let word = self.word(buffer, i as u16, (!last).then_some(i as u16 + 1), 0);
            self.memory
                .bytes(table + 16 * i as u64, 16)?
                .write(0, [buffer.at.to_le(), word.bits().to_le()]);
        }
        let len = 16 * buffers.len() as u32;
        self.add_direct(&[Buffer { at: table, len, writable: false }], flags::INDIRECT)
    }

    /// A descriptor's word: with the next descriptor in split queues, with its number in packed
    /// ones.
    fn word(&self, buffer: &Buffer, id: u16, next: Option<u16>, more: u16) -> Word {
        let write = if buffer.writable { flags::WRITE } else { 0 };
        let goes_on = if next.is_some() { flags::NEXT } else { 0 };
        let flags = write | goes_on | more;
        match self.ring {
            Kind::Split { .. } => Word::new(buffer.len, flags, next.unwrap_or(0)),
            Kind::Packed { .. } => Word::new(buffer.len, id, flags),
        }
    }

    fn add_direct(&mut self, buffers: &[Buffer], more: u16) -> Option<u16> {
        match self.ring {
            Kind::Split { .. } => self.add_split(buffers, more),
            Kind::Packed { .. } => self.add_packed(buffers, more),
        }
    }

    fn add_split(&mut self, buffers: &[Buffer], more: u16) -> Option<u16> {
        if self.free.len() < buffers.len() || self.room == 0 {
            return None;
        }
        let head = *self.free.front()?;
        let mut taken = core::mem::take(&mut self.chains[usize::from(head)]);
        taken.extend(self.free.drain(..buffers.len()));
        for (i, buffer) in buffers.iter().enumerate() {
            let descriptor = &self.descriptors[usize::from(taken[i])];
            descriptor.store_address(buffer.at);
            let word = self.word(buffer, 0, taken.get(i + 1).copied(), more);
            descriptor.store_word(word, Ordering::Relaxed);
        }
        self.chains[usize::from(head)] = taken;
        if let Kind::Split { driver, .. } = &self.ring {
            let at = 2 + usize::from(self.next % self.size);
            driver[at].store(head.to_le(), Ordering::Relaxed);
        }
        self.next = self.next.wrapping_add(1);
        self.room -= 1;
        Some(head)
    }

    fn add_packed(&mut self, buffers: &[Buffer], more: u16) -> Option<u16> {
        if usize::from(self.room) < buffers.len() {
            return None;
        }
        let id = self.free.pop_front()?;
        for (i, buffer) in buffers.iter().enumerate() {
            let at = self.next & !packed::WRAP;
            let round = packed::round_flags(self.next, false);
            let next = (i + 1 < buffers.len()).then_some(0);
            let word = self.word(buffer, id, next, more | round);
            let descriptor = &self.descriptors[usize::from(at)];
            descriptor.store_address(buffer.at);
            match self.first {
                None => self.first = Some((at, word)),
                Some(_) => descriptor.store_word(word, Ordering::Release),
            }
            self.next = advance(self.next, 1, self.size);
            self.chains[usize::from(id)].push(at);
        }
        self.room -= buffers.len() as u16;
        Some(id)
    }

    /// Makes the added chains available. True if the device wants a kick.
    pub fn publish(&mut self) -> bool {
        let old = core::mem::replace(&mut self.published, self.next);
        match &self.ring {
            Kind::Split { driver, device, event, .. } => {
                driver[1].store(self.next.to_le(), Ordering::Release);
                fence(Ordering::SeqCst);
                if self.features.contains(Features::EVENT_IDX) {
                    let event = u16::from_le(event[0].load(Ordering::Relaxed));
                    passed(event, self.next, old)
                } else {
                    old != self.next && u16::from_le(device[0].load(Ordering::Relaxed)) & 1 == 0
                }
            }
            Kind::Packed { device, .. } => {
                if let Some((at, word)) = self.first.take() {
                    self.descriptors[usize::from(at)].store_word(word, Ordering::Release);
                }
                fence(Ordering::SeqCst);
                packed::event_wanted(device[0].load(Ordering::Relaxed), old, self.next, self.size)
            }
        }
    }

    /// The next chain that the device has used: its number and the bytes written.
    ///
    /// # Panics
    /// When the device returns what it was not given. [`take_used`](Self::take_used) does not.
    pub fn used(&mut self) -> Option<(u16, u32)> {
        match self.take_used() {
            Ok(used) => used,
            Err(NotGiven(id)) => panic!("chain {id} is not the device's"),
        }
    }

    /// Like [`used`](Self::used), for devices that are not trusted. The number of bytes may be
    /// anything.
    ///
    /// # Errors
    /// [`NotGiven`]. The queue cannot be used any more.
    pub fn take_used(&mut self) -> Result<Option<(u16, u32)>, NotGiven> {
        let Some((id, len)) = self.next_used() else { return Ok(None) };
        self.free_chain(id)?;
        Ok(Some((id, len)))
    }

    /// True if the device has used a chain that was not taken back yet.
    #[must_use]
    pub fn has_used(&self) -> bool {
        self.next_used().is_some()
    }

    fn next_used(&self) -> Option<(u16, u32)> {
        Some(match &self.ring {
            Kind::Split { device, used, .. } => {
                if u16::from_le(device[1].load(Ordering::Acquire)) == self.used {
                    return None;
                }
                let [id, len] = &used[usize::from(self.used % self.size)];
                let load = |word: &AtomicU32| u32::from_le(word.load(Ordering::Relaxed));
                (load(id) as u16, load(len))
            }
            Kind::Packed { .. } => {
                let at = self.used & !packed::WRAP;
                let word = self.descriptors[usize::from(at)].word(Ordering::Acquire);
                let round = word.fourth() & (flags::AVAILABLE | flags::USED);
                if round != packed::round_flags(self.used, true) {
                    return None;
                }
                (word.third(), word.len())
            }
        })
    }

    fn free_chain(&mut self, id: u16) -> Result<(), NotGiven> {
        let chain = self.chains.get_mut(usize::from(id)).filter(|chain| !chain.is_empty());
        let chain = chain.ok_or(NotGiven(id))?;
        match self.ring {
            Kind::Split { .. } => {
                self.used = self.used.wrapping_add(1);
                self.room += 1;
                self.free.extend(chain.drain(..));
            }
            Kind::Packed { .. } => {
                let slots = chain.len() as u16;
                self.used = advance(self.used, slots, self.size);
                self.room += slots;
                self.free.push_back(id);
                chain.clear();
            }
        }
        Ok(())
    }

    /// Asks for an interrupt at the next used chain, or for none.
    pub fn want_interrupts(&mut self, wanted: bool) {
        let by_event = self.features.contains(Features::EVENT_IDX);
        match &self.ring {
            Kind::Split { driver, .. } if by_event => {
                let at = if wanted { self.used } else { self.used.wrapping_sub(1) };
                driver[2 + usize::from(self.size)].store(at.to_le(), Ordering::Relaxed);
            }
            Kind::Split { driver, .. } => {
                driver[0].store(u16::from(!wanted).to_le(), Ordering::Relaxed);
            }
            Kind::Packed { driver, .. } => {
                let word = packed::event_word(wanted, by_event.then_some(self.used));
                driver[0].store(word.to_le(), Ordering::Relaxed);
            }
        }
        fence(Ordering::SeqCst);
    }
}
