//! A client's rings, as the switch sees them.
//!
//! ```text
//!   send ring:     done .... taken ........ head            receive ring:  released ... published ... (room)
//!                  | lent to the switch | to be gathered |                 | the client's       | spare buffers
//! ```
//!
//! The client can write anything into the region at any time. So the switch reads a head or a slot
//! once and validates the copy. It trusts only its own cursors, in the state memory that no client
//! sees. If a client breaks the rules, its port enters the error state, with a [`Fault`] in its
//! control block, until the client asks for a reset. Other ports do not notice.
//!
//! Crash consistency: storing `taken` takes frames, before they are delivered, so that none is
//! delivered twice. Storing `published` delivers frames; storing `released` takes buffers back. The
//! number of spare buffers follows from the cursors and is not stored.

mod description;
mod receive;
mod send;
mod shares;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use jail::strangers::{Descriptor, Inlet};
use netring::layout::{Control, Fault, RESERVED_BUFFERS, RingMemory, SlotWord};
use port::{Counter, Ingress, Nanos, OffloadSet};
use shmem::budget::Account;
use shmem::{Buffers, LentWindow, Mapping, Memfd, Pool, Shared, Windows};

pub use self::description::RingAttach;
pub(super) use self::receive::ReceiveQueue;
use self::send::SendRing;
use super::{AttachError, Attached, Bells, Exit, Source};
use crate::state::PortState;
use crate::user::Waker;

/// The maximum number of bytes in one slot, whose length has 16 bits.
const MAX_PIECE: u32 = u16::MAX as u32;

/// Attaches a client's rings.
///
/// # Errors
/// [`AttachError`] when the region does not match the client's description.
pub fn attach(
    memory: &Descriptor,
    account: &Arc<Account>,
    token: Descriptor,
    rings: &RingAttach,
    state: &PortState,
    resume: bool,
) -> Result<Attached, AttachError> {
    rings.geometry.check(Memfd::sealed_len(memory.as_fd())?)?;
    // The file may be longer than the rings need.
    let window = LentWindow::map(memory.as_fd(), 0, rings.geometry.file_size(), account)?;
    attach_mapped(window.mapping(), Some(Inlet::new(token)), rings, state, resume)
}

/// Attaches rings that are mapped already. Switches in the client's own process use it; they need
/// no token.
///
/// # Errors
/// [`AttachError`] when the rings are not within the mapping.
pub fn attach_mapped(
    map: &Arc<Mapping>,
    token: Option<Inlet>,
    rings: &RingAttach,
    state: &PortState,
    resume: bool,
) -> Result<Attached, AttachError> {
    let geometry = &rings.geometry;
    geometry.check(map.len())?;
    rings.tx.check(geometry)?;
    rings.rx.check(geometry)?;
    let missing = || AttachError::Descriptors { expected: "a region of the announced size" };
    let reserved = RESERVED_BUFFERS * geometry.buf_size;
    let at = geometry.buf_offset() as usize + reserved as usize;
    let buffers = geometry.buf_num - RESERVED_BUFFERS;
    let pool = Pool::new(map, at, geometry.buf_size, buffers).ok_or_else(missing)?;
    let ring = |first: u32, i: u32, slots: u32| {
        RingMemory::of(map, geometry, first + i, slots).ok_or_else(missing)
    };
    let token = token.map(|token| state.payer().token(token));
    let usable = rings.buf_usable.min(MAX_PIECE).clamp(64, geometry.buf_size);
    let offloads = netring::layout::carried(rings.offloads, usable, &rings.rx);
    let fault = AtomicU32::new(0);
    let health = Arc::new(Health { fault, token: token.clone(), offloads });
    for spec in [&rings.tx, &rings.rx] {
        for i in 0..spec.rings {
            health.take_over(&ring(spec.first, i, spec.slots)?.control, resume);
        }
    }
    let mut senders = Vec::new();
    for i in 0..rings.tx.rings {
        let memory = ring(rings.tx.first, i, rings.tx.slots)?;
        let state = (state.send(i as usize).zip(state.ingress())).ok_or_else(missing)?;
        senders.push(SendRing::new(memory, pool.clone(), state, Arc::clone(&health), resume));
    }
    let mut receivers = Vec::new();
    for i in 0..rings.rx.rings {
        let memory = ring(rings.rx.first, i, rings.rx.slots)?;
        let spares = state.spares(i as usize).ok_or_else(missing)?;
        let state = state.receive(i as usize).ok_or_else(missing)?;
        let parts = receive::Parts { memory, pool: pool.clone(), state, spares, usable };
        receivers.push(Arc::new(ReceiveQueue::new(parts, Arc::clone(&health), resume)));
    }
    let egresses = receivers.iter().map(|q| Exit::ring(Arc::clone(q))).collect();
    let source = Box::new(RingPort { senders, receivers, health });
    if let (true, Some(token)) = (resume, &token) {
        // The predecessor may have died after it published and before it kicked.
        token.wake();
    }
    let bells = token.map_or(Bells::None, Bells::Token);
    Ok(Attached { source, egresses, bells })
}

/// A client's port: its send rings, and what its two directions share.
struct RingPort {
    senders: Vec<SendRing>,
    receivers: Vec<Arc<ReceiveQueue>>,
    health: Arc<Health>,
}

impl Source for RingPort {
    fn queues(&self) -> usize {
        self.senders.len()
    }

    #[inline]
    fn queue(&mut self, queue: usize) -> Option<&mut dyn Ingress> {
        Some(self.senders.get_mut(queue)?)
    }

    fn wake_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.health.token.iter().map(|token| token.as_fd()).collect()
    }

    fn arm(&mut self, _now: Nanos) -> bool {
        self.reset_if_wanted();
        self.senders.iter_mut().for_each(SendRing::check_memory);
        self.controls().for_each(|control| control.core_flags.0.wake.arm());
        let work = self.senders.iter().any(SendRing::has_work) || self.reset_is_wanted();
        if work {
            self.disarm();
        }
        work
    }

    fn disarm(&mut self) {
        self.senders.iter().for_each(|ring| ring.control.core_flags.0.wake.disarm());
        if let Some(token) = &self.health.token {
            token.drain();
        }
        self.reset_if_wanted();
    }

    fn refresh(&mut self) {
        let controls = self.controls().chain(self.receivers.iter().map(|queue| &*queue.control));
        let said = controls.map(|control| control.core_flags.0.fault.load(Ordering::Relaxed));
        let fault = said.fold(0, u32::max);
        self.health.fault.store(fault, Ordering::Relaxed);
        self.senders.iter_mut().for_each(SendRing::refresh);
        self.receivers.iter().for_each(|queue| queue.refresh());
    }

    fn is_full(&self) -> bool {
        self.senders.iter().any(SendRing::is_full)
    }

    fn give_up(&mut self, fault: Fault) {
        let Some(control) = self.reset_control() else { return };
        self.health.fault.store(fault as u32, Ordering::Relaxed);
        control.core_flags.0.fault.store(fault as u32, Ordering::Release);
    }
}

impl RingPort {
    fn controls(&self) -> impl Iterator<Item = &Control> {
        self.senders.iter().map(|ring| &*ring.control)
    }

    /// The control block where the client asks for a reset.
    fn reset_control(&self) -> Option<Shared<Control>> {
        let sender = self.senders.first().map(|ring| ring.control.clone());
        sender.or_else(|| self.receivers.first().map(|queue| queue.control.clone()))
    }

    fn reset_is_wanted(&self) -> bool {
        self.reset_control().is_some_and(|control| {
            let wanted = control.owner_flags.0.reset_wanted.load(Ordering::Acquire);
            wanted != control.core_flags.0.reset_done.load(Ordering::Relaxed)
        })
    }

    /// If the client has asked for a reset, ends the port's error state and empties all rings. This
    /// waits while frames of the port wait for a lossless receiver, because their slots must be
    /// returned first. The port is polled until then.
    fn reset_if_wanted(&mut self) {
        if self.senders.iter().any(SendRing::lends) {
            return;
        }
        let Some(control) = self.reset_control().filter(|_| self.reset_is_wanted()) else { return };
        // If the memory has failed, a reset does not help: the client reads the fault again.
        if !control.mapping().has_failed() {
            self.restart();
        }
        let wanted = control.owner_flags.0.reset_wanted.load(Ordering::Acquire);
        control.core_flags.0.reset_done.store(wanted, Ordering::Release);
        self.health.kick();
    }

    fn restart(&mut self) {
        self.senders.iter_mut().for_each(SendRing::restart);
        self.receivers.iter().for_each(|queue| queue.restart());
        for control in self.controls().chain(self.receivers.iter().map(|queue| &*queue.control)) {
            control.core_flags.0.fault.store(0, Ordering::Relaxed);
        }
        self.health.fault.store(0, Ordering::Relaxed);
    }
}

/// What all rings of a port share: its error state, the token that wakes its owner, and the offload
/// requests that it makes and accepts.
struct Health {
    /// The [`Fault`] that caused the error state, or 0.
    ///
    /// # Protocol: `Health.fault` (of a port, in the process)
    /// - Writer: the thread that finds the fault; a reset
    /// - Reader: workers
    /// - Ordering: relaxed: a turn sooner or later
    /// - Partner: `core_flags.fault` tells the client
    /// - Without it: a fault is found once more
    /// - Shown by: `dataplane` tests `faults`
    fault: AtomicU32,
    /// The token by which the owner is woken.
    token: Option<Arc<Waker>>,
    /// The offload requests that slots carry.
    offloads: OffloadSet,
}

impl Health {
    /// Continues in the error state that a predecessor has noted in the control block. The client
    /// may have changed that, but harms only its own rings.
    fn take_over(&self, control: &Control, resume: bool) {
        let said = if resume { control.core_flags.0.fault.load(Ordering::Relaxed) } else { 0 };
        match Fault::from_number(said) {
            Some(fault) => self.fault.store(fault as u32, Ordering::Relaxed),
            None => control.core_flags.0.fault.store(0, Ordering::Relaxed),
        }
    }

    #[inline(always)]
    fn failed(&self) -> bool {
        self.fault.load(Ordering::Relaxed) != 0
    }

    /// Puts the port into its error state, and wakes its owner, which may be waiting for frames.
    #[cold]
    fn fail(&self, fault: Fault, control: &Control, count: &Counter) {
        self.fault.store(fault as u32, Ordering::Relaxed);
        control.core_flags.0.fault.store(fault as u32, Ordering::Release);
        count.add(1);
        self.kick();
    }

    fn kick(&self) {
        self.token.iter().for_each(Waker::wake);
    }
}

/// The bytes of a slot.
#[inline(always)]
fn buffer(pool: Buffers<'_>, word: SlotWord) -> Option<shmem::Bytes<'_>> {
    window(pool.windows(u32::from(word.len))?, word.buf)
}

/// The bytes of a slot that start at `offset` in its buffer.
#[inline(always)]
fn buffer_at(pool: Buffers<'_>, word: SlotWord, offset: u64) -> Option<shmem::Bytes<'_>> {
    let len = u32::from(word.len);
    if offset == 0 {
        return buffer(pool, word);
    }
    let offset = u32::try_from(offset).ok()?;
    let whole = window(pool.windows(offset.checked_add(len)?)?, word.buf)?;
    whole.get(offset as usize, len as usize)
}

/// The window onto buffer number `buf`. The pool starts after the reserved buffers.
#[inline(always)]
fn window(windows: Windows<'_>, buf: u32) -> Option<shmem::Bytes<'_>> {
    windows.get(buf.wrapping_sub(RESERVED_BUFFERS))
}
