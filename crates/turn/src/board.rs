//! The board of a trusted switch: who is the switch, and which ports it has.
//!
//! The processes of a trusted switch forward in their own threads. One at a time is the switch: the
//! holder of the board's lock. The board follows the ports in the state memory:
//!
//! ```text
//!   head: lock | epoch | holders | ...     slot 0 | slot 1 | ...     one for each port number
//! ```
//!
//! The data process writes the slots; everything else only reads them. What a slot says is checked
//! like any message: a slot that is not valid is a port that is not there.

use std::sync::Arc;
use std::time::Duration;

use fabric::Monitor;
use port::PortId;
use serde::{Deserialize, Serialize};
use shmem::robust::{Held, RobustLock};
use shmem::sync::{AtomicU32, AtomicU64, Ordering};
use shmem::{Mapping, Shareable, Shared};
use topology::Policy;

use crate::attach::ring::RingAttach;
use crate::state::{BOARD_SLOT as SLOT, State};

const PAGE: usize = 4096;
/// Bytes of a slot's text.
const MOST_TEXT: usize = SLOT - size_of::<SlotHead>();

/// The words of the board that all processes share.
#[derive(Debug)]
#[repr(C, align(4096))]
struct BoardHead {
    lock: RobustLock,
    /// Grows when a port comes, changes or goes.
    ///
    /// # Protocol: `BoardHead`, `SlotHead`, the text of a slot
    /// - Writer: the holder of the board's lock
    /// - Reader: the holder of the board's lock
    /// - Ordering: relaxed: the lock orders them
    /// - Partner: `RobustLock.word`
    /// - Without it: a process forwards to ports that are gone
    /// - Shown by: `inline` tests `trusted`
    epoch: AtomicU64,
    /// Grows when a holder has died.
    deaths: AtomicU64,
    /// The number of the last holder.
    holder: AtomicU64,
    /// How many holders were numbered.
    holders: AtomicU64,
    /// The PID namespace of the processes, which the lock needs; 0 before the first one.
    namespace: AtomicU64,
}

// SAFETY: the type consists of atomic words only.
unsafe impl Shareable for BoardHead {}
const _: () = assert!(size_of::<BoardHead>() == PAGE);

/// The words before the text of a slot.
#[derive(Debug)]
#[repr(C, align(64))]
struct SlotHead {
    /// The epoch in which the slot changed.
    changed: AtomicU64,
    /// Bytes of the text; 0 for a port that is not there.
    len: AtomicU32,
}

// SAFETY: the type consists of an atomic word; the padding is never read.
unsafe impl Shareable for SlotHead {}

/// A port on the board.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its number.
    pub id: PortId,
    /// Differs from that of every other port that the switch had.
    pub instance: u64,
    /// The port's name without the switch's.
    pub name: String,
    /// Its rules.
    pub policy: Policy,
    /// What the port monitors: a port, whether what that port sends, and whether what it receives.
    pub monitor: Option<(PortId, bool, bool)>,
    /// Its rings.
    pub rings: RingAttach,
    /// The inode of the port's memory file.
    pub file: u64,
}

impl Entry {
    /// Checks that a port with these rules fits a slot.
    ///
    /// # Errors
    /// It does not.
    pub fn check(policy: &Policy) -> Result<(), TooLong> {
        // The rest of an entry is short.
        let len = serde_json::to_vec(policy).map_err(|_| TooLong)?.len();
        if len + 1024 <= MOST_TEXT { Ok(()) } else { Err(TooLong) }
    }

    /// Returns what the port monitors.
    #[must_use]
    pub fn monitor(&self) -> Option<Monitor> {
        self.monitor.map(|(of, sent, received)| Monitor { of, sent, received })
    }
}

/// The rules of a port take more room than a slot of the board has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "The rules of a port of a trusted switch take at most {MOST_TEXT} bytes; name fewer addresses \
     and VLANs"
)]
pub struct TooLong;

/// The mapped board.
#[derive(Clone, Debug)]
pub struct Board {
    head: Shared<BoardHead>,
    map: Arc<Mapping>,
    slots_at: usize,
    ports: PortId,
}

impl Board {
    /// The board in a switch's state; `None` if the switch is not trusted.
    #[must_use]
    pub fn of(state: &State) -> Option<Self> {
        let (map, at, ports) = state.board_room()?;
        Some(Self { head: map.shared(at)?, map: Arc::clone(map), slots_at: at + PAGE, ports })
    }

    /// Becomes the switch, until the result is dropped.
    ///
    /// # Errors
    /// As for [`RobustLock::lock`].
    #[inline]
    pub fn lock(&self) -> std::io::Result<Held<'_>> {
        self.head.lock.lock()
    }

    /// As [`lock`](Self::lock), for the data process; `None` if a process holds the lock all the
    /// time.
    #[must_use]
    pub fn lock_as_keeper(&self, time: Duration) -> Option<Held<'_>> {
        self.head.lock.lock_as_keeper(time)
    }

    /// A number for a new holder. The caller holds the lock.
    #[must_use]
    pub fn new_holder(&self) -> u64 {
        add(&self.head.holders)
    }

    /// Notes that this holder is the switch. Returns true if another one was meanwhile.
    #[inline]
    pub fn enter(&self, holder: u64) -> bool {
        let other = self.head.holder.load(Ordering::Relaxed) != holder;
        if other {
            self.head.holder.store(holder, Ordering::Relaxed);
        }
        other
    }

    /// The number of changes of ports.
    #[inline]
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.head.epoch.load(Ordering::Relaxed)
    }

    /// The number of holders that died.
    #[must_use]
    pub fn deaths(&self) -> u64 {
        self.head.deaths.load(Ordering::Relaxed)
    }

    /// Notes that a holder has died. The caller holds the lock.
    pub fn count_death(&self) {
        add(&self.head.deaths);
    }

    /// True if `namespace` is the PID namespace of the switch's processes. The first process sets
    /// the switch's namespace.
    #[must_use]
    pub fn is_of(&self, namespace: u64) -> bool {
        let order = Ordering::Relaxed;
        let set = self.head.namespace.compare_exchange(0, namespace, order, order);
        set.is_ok() || set == Err(namespace)
    }

    /// The number of the thread that is the switch, and the PID namespace that the number is from.
    #[must_use]
    pub fn lock_holder(&self) -> Option<(u32, u64)> {
        Some((self.head.lock.holder()?, self.head.namespace.load(Ordering::Relaxed)))
    }

    fn slot(&self, id: PortId) -> Option<(Shared<SlotHead>, usize)> {
        let at = self.slots_at + usize::from(id) * SLOT;
        Some((self.map.shared(at)?, at + size_of::<SlotHead>())).filter(|_| id < self.ports)
    }

    /// Writes a port's slot. The caller holds the lock.
    ///
    /// # Errors
    /// The slot is too small.
    pub fn write(&self, entry: &Entry) -> Result<(), TooLong> {
        let text = serde_json::to_vec(entry).map_err(|_| TooLong)?;
        let (head, at) = self.slot(entry.id).ok_or(TooLong)?;
        let room = self.map.bytes(at, text.len()).filter(|_| text.len() <= MOST_TEXT);
        let room = room.ok_or(TooLong)?;
        head.len.store(0, Ordering::Relaxed);
        room.copy_in(&text);
        head.len.store(text.len() as u32, Ordering::Relaxed);
        head.changed.store(add(&self.head.epoch), Ordering::Relaxed);
        Ok(())
    }

    /// Empties a port's slot. The caller holds the lock.
    pub fn clear(&self, id: PortId) {
        if let Some((head, _)) = self.slot(id) {
            head.len.store(0, Ordering::Relaxed);
            head.changed.store(add(&self.head.epoch), Ordering::Relaxed);
        }
    }

    /// True if a port's slot is not empty. The caller holds the lock.
    #[must_use]
    pub fn is_used(&self, id: PortId) -> bool {
        self.slot(id).is_some_and(|(head, _)| head.len.load(Ordering::Relaxed) != 0)
    }

    /// The epoch in which a port's slot changed last. The caller holds the lock.
    #[must_use]
    pub fn changed(&self, id: PortId) -> u64 {
        self.slot(id).map_or(0, |(head, _)| head.changed.load(Ordering::Relaxed))
    }

    /// The port in a slot, if the slot is valid. The caller holds the lock.
    #[must_use]
    pub fn read(&self, id: PortId) -> Option<Entry> {
        let (head, at) = self.slot(id)?;
        let len = head.len.load(Ordering::Relaxed) as usize;
        let bytes = self.map.bytes(at, len).filter(|_| (1..=MOST_TEXT).contains(&len))?;
        let mut text = vec![0; len];
        bytes.copy_out(&mut text);
        let entry: Entry = serde_json::from_slice(&text).ok()?;
        (entry.id == id).then_some(entry)
    }
}

/// Adds one to a word that the lock guards; returns the sum.
fn add(word: &AtomicU64) -> u64 {
    let next = word.load(Ordering::Relaxed).wrapping_add(1);
    word.store(next, Ordering::Relaxed);
    next
}
