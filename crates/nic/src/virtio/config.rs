//! What a queue is made of, and the state that remains when it stops.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use shmem::{Cursor, DirtyLog, GuestMemory, Shareable, Shared};

use super::{Features, Inflight, QueueLayout};
use crate::model::fault::faults;

/// The maximum number of entries of a queue (virtio 1.2, 2.6 and 2.8).
const MAX_SIZE: u16 = 32_768;

/// The parts of which a queue is made.
#[derive(Clone, Debug)]
pub struct QueueConfig {
    /// The guest's memory.
    pub memory: Arc<GuestMemory>,
    /// Where the queue lies in the memory.
    pub layout: QueueLayout,
    /// The negotiated features.
    pub features: Features,
    /// Where the queue resumes, and where it stores its progress.
    pub state: Shared<QueueState>,
    /// Where the queue logs pages that it writes, while the guest migrates.
    pub dirty: Option<Arc<DirtyLog>>,
    /// Where the queue marks buffers that were taken and not used, for the next process that serves
    /// it, if the front end wants that.
    pub inflight: Option<Inflight>,
}

impl QueueConfig {
    /// A queue of a guest that does not migrate, without marks of buffers in flight.
    #[must_use]
    pub fn new(
        memory: Arc<GuestMemory>,
        layout: QueueLayout,
        features: Features,
        state: Shared<QueueState>,
    ) -> Self {
        Self { memory, layout, features, state, dirty: None, inflight: None }
    }
}

/// The reason why a queue cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// The size is out of range.
    #[error("A queue cannot have {0} entries: 1 to 32768, in split queues a power of two")]
    Size(u16),
    /// A part of the queue does not lie in guest memory, or is not aligned.
    #[error("The queue's {part} at {at:#x} do not lie in guest memory, aligned to {align} bytes")]
    Area {
        /// The part.
        part: &'static str,
        /// The part's guest-physical address.
        at: u64,
        /// Its alignment.
        align: usize,
    },
    /// The queue's area for buffers in flight is invalid, or has too few entries.
    #[error("The queue's area for buffers in flight is of another size or version")]
    Inflight,
}

faults! {
    /// Errors of a driver that stop its queue.
    Fault {
        /// The driver made more buffers available than the queue has, or moved the index back.
        BadIndex = 1, "the available index ran ahead of the queue's size, or backwards";
        /// A descriptor number beyond the queue's or table's end.
        BadDescriptor = 2, "a descriptor number is beyond the table's end";
        /// A chain longer than the queue, as from a loop, or longer than 1,024 descriptors.
        EndlessChain = 3, "a chain of descriptors is longer than the queue, or than 1024";
        /// A buffer outside of guest memory.
        BadAddress = 4, "a buffer does not lie in guest memory";
        /// A buffer for the device to write in a transmit chain, or to read in a receive chain.
        BadDirection = 5, "a buffer is of the wrong direction";
        /// An indirect table that is empty, not whole, nested, too long, or was not negotiated.
        BadIndirect = 6, "a table of indirect descriptors is malformed";
        /// A chain shorter than the header before a frame.
        BadLength = 7, "a chain of descriptors has no room for the frame's header";
        /// An invalid offload request, or one that was not negotiated.
        BadOffload = 8, "a frame's offload request is malformed";
        /// Guest memory that has failed: its file was truncated, or a page was lost.
        Memory = 9, "guest memory has failed";
    }
}

/// A queue's position. All zero is a queue that never ran. The state is in memory that outlives the
/// process that serves the queue.
///
/// A position is an index into the ring. Split queues use a free-running 16-bit index; packed
/// queues have the wrap counter in bit 15.
#[derive(Debug)]
#[repr(C)]
pub struct QueueState {
    /// Buffers before it were taken.
    ///
    /// # Protocol: `QueueState.taken`, `done`, `moving`, `first_put`
    /// - Writer: worker, holder of the egress lock
    /// - Reader: a successor, as it starts; the control thread, when the queue has stopped
    /// - Ordering: `first_put` before the used descriptors that follow the first, `moving` before
    ///   the first, `done` after it: fence or store release / relaxed: no two halves at a time
    /// - Partner: the used index
    /// - Without it: after a death frames are sent again, or a packed queue stands still
    /// - Shown by: `nic` tests `queues`, unit tests of `packed`
    pub(super) taken: Cursor,
    /// The position before which all buffers were used.
    pub(super) done: Cursor,
    /// The next value of `done`, stored before the ring shows it.
    pub(super) moving: Cursor,
    /// Packed queues: the used form of the descriptor at `done`, stored before any descriptor after
    /// it.
    pub(super) first_put: AtomicU64,
    /// The [`Fault`] that stopped the queue, or 0.
    ///
    /// # Protocol: `QueueState.fault`; a card's `fault`
    /// - Writer: the thread that finds the fault; a reset
    /// - Reader: workers, control thread
    /// - Ordering: store release (PCnet: relaxed) / load relaxed
    /// - Without it: a fault is shown late
    /// - Shown by: `nic` tests `hostile`, `e1000` (`hostile`), `pcnet_hostile`
    fault: AtomicU32,
}

#[allow(unsafe_code, reason = "a promise about a type that lies in shared memory")]
// SAFETY: the type consists of atomic words only.
unsafe impl Shareable for QueueState {}

impl QueueState {
    /// Restarts at `base`, an index as in VHOST_USER_SET_VRING_BASE. For packed queues, bit 15 is
    /// the wrap counter (a queue that was never used starts at 0x8000). Clears a fault.
    pub fn start_at(&self, base: u32) {
        let at = base & 0xffff;
        for cursor in [&self.taken, &self.done, &self.moving] {
            cursor.publish(at);
        }
        self.fault.store(0, Ordering::Relaxed);
    }

    /// The queue's position, as in VHOST_USER_GET_VRING_BASE. For packed queues, the upper half is
    /// the position of used buffers.
    #[must_use]
    pub fn base(&self, packed: bool) -> u32 {
        let done = self.done.own();
        if packed { done << 16 | done } else { done }
    }

    /// The fault that stopped the queue.
    #[inline]
    #[must_use]
    pub fn fault(&self) -> Option<Fault> {
        match self.fault.load(Ordering::Relaxed) {
            0 => None,
            number => Some(Fault::of(number).unwrap_or(Fault::Memory)),
        }
    }

    pub(super) fn fail(&self, fault: Fault) {
        self.fault.store(fault as u32, Ordering::Release);
    }
}

/// Checks that queues may have this size.
///
/// # Errors
/// [`QueueError::Size`].
pub fn check_size(layout: &QueueLayout, packed: bool) -> Result<(), QueueError> {
    let size = layout.size;
    let good = (1..=MAX_SIZE).contains(&size) && (packed || size.is_power_of_two());
    if good { Ok(()) } else { Err(QueueError::Size(size)) }
}

/// Checks that the queue's parts lie in `memory`, as making the queue does.
///
/// # Errors
/// [`QueueError::Area`].
pub fn check_areas(
    layout: &QueueLayout,
    memory: &GuestMemory,
    features: Features,
) -> Result<(), QueueError> {
    let (size, event) = (u32::from(layout.size), u32::from(features.contains(Features::EVENT_IDX)));
    let areas = match features.contains(Features::RING_PACKED) {
        false => [
            ("descriptors", layout.descriptors, 16 * size, 8),
            ("available ring", layout.driver, 4 + 2 * (size + event), 2),
            ("used ring", layout.device, 4 + 8 * size + 2 * event, 4),
        ],
        true => [
            ("descriptors", layout.descriptors, 16 * size, 8),
            ("driver's event suppression", layout.driver, 4, 4),
            ("device's event suppression", layout.device, 4, 4),
        ],
    };
    for (part, at, bytes, align) in areas {
        let lies = at.is_multiple_of(align as u64) && memory.bytes(at, bytes.max(1)).is_some();
        if !lies {
            return Err(QueueError::Area { part, at, align });
        }
    }
    Ok(())
}
