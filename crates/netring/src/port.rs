//! A port: its rings, and how its owner waits for them.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use frame::OffloadSet;
use rustix::io::Errno;
use shmem::Mapping;
use shmem::sync::{Ordering, fence};

use crate::ask::{OpenError, Opened};
use crate::doorbell::Doorbell;
use crate::layout::{Control, Fault, Geometry, GeometryError, RingSpec};
use crate::queue::{Memory, ReceiveQueue, SendQueue, View};
use crate::region::{Buffer, Ends, Lease, Region};
use crate::{Incoming, Outgoing};

/// The reason why a port cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// The switch found something malformed in the rings and ignores them.
    #[error("The switch put the port into its error state ({0:?}); call Port::reset")]
    Fault(Fault),
    /// The other side wrote something malformed into the rings. They are not read any more.
    #[error("The other side of the port broke its rings ({0:?}); close the port and open it again")]
    Peer(Fault),
    /// The daemon and the switch have ended, or have closed the port.
    #[error(
        "The port was removed, or its daemon ended (`toklat port show` tells); Port::reopen opens it again"
    )]
    Gone,
    /// The switch did not answer a request for a reset.
    #[error("The switch did not reset the port within {0:?}; close the port and open it again")]
    NotReset(Duration),
    /// Pipes and ports from another process cannot be reset or reopened here.
    #[error("This port cannot be put back into its first state; close it and open it again")]
    NotRestartable,
    /// The operating system refused something.
    #[error("Waiting for the port failed")]
    Io(#[source] Errno),
}

bitflags::bitflags! {
    /// What an owner waits for.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Interest: u8 {
        /// Received frames.
        const READ = 1;
        /// Free slots to send with.
        const WRITE = 2;
    }
}

/// What an owner can do without waiting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// There are received frames.
    pub readable: bool,
    /// There are free slots.
    pub writable: bool,
}

impl Readiness {
    /// True if the port is readable or writable.
    #[must_use]
    pub fn any(self) -> bool {
        self.readable || self.writable
    }
}

/// The rings of a port, for a switch in the same process.
#[derive(Clone, Debug)]
pub struct Rings {
    /// The region's memory.
    pub mapping: Arc<Mapping>,
    /// How the region is divided.
    pub geometry: Geometry,
    /// The port's send rings.
    pub tx: RingSpec,
    /// The port's receive rings.
    pub rx: RingSpec,
    /// Bytes of a buffer that the switch may fill.
    pub buf_usable: u32,
    /// The offload requests that slots carry.
    pub offloads: OffloadSet,
}

/// How long a switch may take to reset a port.
const RESET_TIME: Duration = Duration::from_secs(2);

/// A port of a switch, or an end of a pipe, as its owner uses it.
///
/// [`send`](Self::send) lends slots and [`receive`](Self::receive) lends frames. The other side
/// sees nothing of it until [`flush`](Self::flush), which publishes everything at once.
pub struct Port {
    // Fields are dropped in this order: the other side learns of the end before the memory is
    // reused.
    pub(crate) doorbell: Doorbell,
    pub(crate) send: Box<[SendQueue]>,
    pub(crate) receive: Box<[ReceiveQueue]>,
    pub(crate) lease: Option<Arc<Lease>>,
    pub(crate) memory: Memory,
    pub(crate) ends: Ends,
    /// Pipes: the other end's receive rings.
    pub(crate) twin: Option<RingSpec>,
    pub(crate) max_frame: usize,
    offloads: OffloadSet,
    pub(crate) opened: Option<Opened>,
    pub(crate) name: String,
    /// The positions of a ring that does not exist.
    nothing: (u32, Option<Fault>),
}

/// The parts of a port.
pub(crate) struct Parts<'a> {
    pub(crate) name: &'a str,
    pub(crate) memory: Memory,
    pub(crate) lease: Option<Arc<Lease>>,
    pub(crate) ends: Ends,
    /// Pipes: the other end's receive rings.
    pub(crate) twin: Option<RingSpec>,
    pub(crate) doorbell: Doorbell,
    pub(crate) max_frame: usize,
    pub(crate) offloads: OffloadSet,
}

impl Port {
    pub(crate) fn assemble(parts: Parts<'_>) -> Result<Self, GeometryError> {
        let Parts { name, memory, lease, ends, twin, doorbell, max_frame, offloads } = parts;
        let bad = GeometryError("ring number or position");
        let send = (0..ends.tx.rings).map(|i| {
            let twin = twin.map(|twin| twin.first + i);
            let queue = SendQueue::new(&memory, ends.tx.first + i, twin, ends.tx.slots)?;
            // The other end of a pipe usually reads the slots only.
            Some(queue.read_by_another_core(matches!(doorbell, Doorbell::Token(_))))
        });
        let receive = (0..ends.rx.rings)
            .map(|i| ReceiveQueue::new(&memory, ends.rx.first + i, ends.rx.slots));
        let mut port = Self {
            send: send.collect::<Option<_>>().ok_or(bad)?,
            receive: receive.collect::<Option<_>>().ok_or(bad)?,
            doorbell,
            lease,
            memory,
            ends,
            twin,
            max_frame,
            offloads,
            opened: None,
            name: name.to_owned(),
            nothing: (0, None),
        };
        port.carry(offloads);
        Ok(port)
    }

    /// Makes slots carry these offload requests.
    fn carry(&mut self, offloads: OffloadSet) {
        self.offloads = offloads;
        let sending = self.send.iter_mut().map(|queue| &mut queue.view);
        let views = sending.chain(self.receive.iter_mut().map(|queue| &mut queue.view));
        views.for_each(|view| view.offloads = offloads);
    }

    /// The port's name, with the switch's.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of the largest frame that the switch accepts from the port.
    #[must_use]
    pub fn max_frame(&self) -> usize {
        self.max_frame
    }

    /// The offload requests that the port's slots carry in both directions: those it asked for
    /// ([`Open::offloads`](crate::Open::offloads)), as far as its rings have room for the frames.
    /// The longest frame has [`MAX_SEGMENTED`](crate::layout::MAX_SEGMENTED) bytes;
    /// [`max_frame`](Self::max_frame) limits its segments only.
    #[must_use]
    pub fn offloads(&self) -> OffloadSet {
        self.offloads
    }

    /// Send and receive queues.
    #[must_use]
    pub fn queues(&self) -> (usize, usize) {
        (self.send.len(), self.receive.len())
    }

    /// Slots of a send and of a receive ring.
    #[must_use]
    pub fn slots(&self) -> (usize, usize) {
        (self.ends.tx.slots as usize, self.ends.rx.slots as usize)
    }

    /// The port's rings, for a switch in the same process.
    #[must_use]
    pub fn rings(&self) -> Rings {
        Rings {
            mapping: Arc::clone(&self.memory.mapping),
            geometry: self.memory.geometry,
            tx: self.ends.tx,
            rx: self.ends.rx,
            buf_usable: self.memory.usable,
            offloads: self.offloads,
        }
    }

    /// The port's region, if this process made it.
    #[must_use]
    pub fn region(&self) -> Option<&Arc<Region>> {
        self.memory.region.as_ref()
    }

    /// Gives the port's descriptors other numbers: `to` gets each, and returns it or a duplicate.
    /// For libraries in programs that close descriptors that they do not know.
    ///
    /// # Errors
    /// The system has no descriptor left; the port is unchanged.
    pub fn map_descriptors(&mut self, to: impl FnMut(OwnedFd) -> OwnedFd) -> Result<(), PortError> {
        let spare = Doorbell::inline().map_err(PortError::Io)?;
        let doorbell = std::mem::replace(&mut self.doorbell, spare);
        self.doorbell = doorbell.map_descriptors(to);
        Ok(())
    }

    /// Takes one of the extra buffers the port was opened with.
    pub fn take_extra(&mut self) -> Option<Buffer> {
        self.lease.as_ref()?.pop_extra()
    }

    /// Lends up to `max` free slots of send queue 0.
    #[inline]
    pub fn send(&mut self, max: usize) -> Outgoing<'_> {
        self.queue(0).send(max)
    }

    /// Lends up to `max` received frames of receive queue 0.
    #[inline]
    pub fn receive(&mut self, max: usize) -> Incoming<'_> {
        self.queue(0).receive(max)
    }

    /// The queues with number `i`. A queue that does not exist never has room or frames.
    #[inline]
    pub fn queue(&mut self, i: usize) -> QueuePair<'_> {
        QueuePair {
            send: self.send.get_mut(i),
            receive: self.receive.get_mut(i),
            nothing: &mut self.nothing,
        }
    }

    /// Publishes what was filled and released since the last call, on all queues, with one kick at
    /// most.
    ///
    /// # Errors
    /// The port is in its error state, the other side broke the rings, or the daemon has ended.
    /// What could be published was.
    #[inline]
    pub fn flush(&mut self) -> Result<(), PortError> {
        // One bit for each ring. Only rings that moved are a reason to wake the other side.
        let (mut sent, mut released) = (0u32, 0u32);
        for (i, queue) in self.send.iter_mut().enumerate() {
            sent |= u32::from(queue.publish()) << i;
        }
        for (i, queue) in self.receive.iter_mut().enumerate() {
            released |= u32::from(queue.publish()) << i;
        }
        if sent | released != 0 && !matches!(self.doorbell, Doorbell::Inline(_)) {
            fence(Ordering::SeqCst);
            let mut kick = false;
            for (i, queue) in self.send.iter_mut().enumerate() {
                kick |= sent >> i & 1 != 0 && queue.must_kick();
            }
            for (i, queue) in self.receive.iter_mut().enumerate() {
                kick |= released >> i & 1 != 0 && queue.must_kick();
            }
            if kick {
                self.doorbell.kick()?;
            }
        }
        self.check()
    }

    /// As [`flush`](Self::flush), but first copies the bytes of indirect slots into their buffers.
    ///
    /// # Errors
    /// As for [`flush`](Self::flush).
    ///
    /// # Safety
    /// Every slot that was filled since the last flush and is marked indirect must have the address
    /// of as many readable bytes as its length says. In a pipe the other end must be trusted, too:
    /// it can write to the slots.
    pub unsafe fn flush_indirect(&mut self) -> Result<(), PortError> {
        for queue in &mut self.send {
            // SAFETY: the caller keeps this function's contract.
            unsafe { queue.resolve_indirect() };
        }
        self.flush()
    }

    /// Returns the error that the port is in. Publishes nothing, and makes no system call.
    ///
    /// # Errors
    /// [`PortError::Fault`] or [`PortError::Peer`].
    #[inline]
    pub fn check(&self) -> Result<(), PortError> {
        let broken = self.send.iter().any(|queue| queue.fault.is_some())
            || self.receive.iter().any(|queue| queue.fault.is_some());
        if broken || self.core_faults().any(|fault| fault != 0) {
            return Err(self.error());
        }
        Ok(())
    }

    /// The faults that the switch reports. Rings of a pipe have none.
    #[inline]
    fn core_faults(&self) -> impl Iterator<Item = u32> + '_ {
        let send = self.send.iter().map(|queue| &queue.view);
        let views = send.chain(self.receive.iter().map(|queue| &queue.view));
        let said = |view: &View| view.ring.control.core_flags.0.fault.load(Relaxed);
        views.take_while(|_| self.twin.is_none()).map(said)
    }

    #[cold]
    fn error(&self) -> PortError {
        let peer = self.send.iter().find_map(|queue| queue.fault);
        let peer = peer.or_else(|| self.receive.iter().find_map(|queue| queue.fault));
        match (self.core_faults().find_map(Fault::from_number), peer) {
            (Some(fault), _) => PortError::Fault(fault),
            (None, peer) => PortError::Peer(peer.unwrap_or(Fault::Memory)),
        }
    }

    /// Returns what can be done without waiting, after reading the other side's positions.
    #[must_use]
    pub fn ready(&mut self) -> Readiness {
        let readable = self.receive.iter_mut().any(|queue| {
            queue.refresh();
            queue.fault.is_none() && queue.received() > 0
        });
        let writable = self.send.iter_mut().any(|queue| {
            queue.refresh();
            queue.fault.is_none() && queue.room() > 0
        });
        Readiness { readable, writable }
    }

    /// Asks for the descriptor to become readable when something of `interest` is there, then
    /// checks once more. If the result is not empty, do not wait. Call [`disarm`](Self::disarm)
    /// afterwards.
    ///
    /// This is how a port is used with epoll, tokio's `AsyncFd` and the like:
    ///
    /// ```no_run
    /// # use rustix::event::epoll;
    /// use netring::{Interest, Port};
    ///
    /// let mut port = Port::open("vale0:p1")?;
    /// let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    /// epoll::add(&epoll, &port, epoll::EventData::new_u64(1), epoll::EventFlags::IN)?;
    /// loop {
    ///     for frame in port.receive(64) {
    ///         println!("{} bytes", frame.len());
    ///     }
    ///     port.flush()?;
    ///     if !port.arm(Interest::READ).readable {
    ///         let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 8];
    ///         epoll::wait(&epoll, &mut events, None)?;
    ///     }
    ///     port.disarm()?;
    /// }
    /// # #[allow(unreachable_code, reason = "the type of the block")]
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn arm(&mut self, interest: Interest) -> Readiness {
        self.set_wake(interest, true);
        let ready = self.ready();
        Readiness {
            readable: ready.readable && interest.contains(Interest::READ),
            writable: ready.writable && interest.contains(Interest::WRITE),
        }
    }

    /// Undoes [`arm`](Self::arm), and empties the descriptor.
    ///
    /// # Errors
    /// [`PortError::Gone`] when the daemon has closed the port.
    pub fn disarm(&mut self) -> Result<(), PortError> {
        self.set_wake(Interest::all(), false);
        self.doorbell.drain()
    }

    fn set_wake(&self, interest: Interest, armed: bool) {
        if interest.contains(Interest::READ) {
            self.receive.iter().for_each(|queue| queue.set_wake(armed));
        }
        if interest.contains(Interest::WRITE) {
            self.send.iter().for_each(|queue| queue.set_wake(armed));
        }
    }

    /// Flushes, then waits until something of `interest` can be done or `timeout` is over (`None`
    /// for no limit). The result is empty after a timeout or a signal. A port without a token
    /// ([`inline`](Self::inline)) does not wait: its switch runs when its owner runs it.
    ///
    /// # Errors
    /// As for [`flush`](Self::flush).
    pub fn wait(
        &mut self,
        interest: Interest,
        timeout: Option<Duration>,
    ) -> Result<Readiness, PortError> {
        self.flush()?;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let ready = self.arm(interest);
            let error = self.check();
            if ready.any() || error.is_err() || matches!(self.doorbell, Doorbell::Inline(_)) {
                self.set_wake(interest, false);
                return error.map(|()| ready);
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let slept = self.doorbell.sleep(left);
            self.disarm()?;
            if !slept? {
                return Ok(Readiness::default());
            }
        }
    }

    /// Ends the error state of the port. Its rings become as new, and their content is lost. A port
    /// without an error is unchanged.
    ///
    /// # Errors
    /// [`PortError::NotReset`] when the switch does not answer; see also
    /// [`PortError::NotRestartable`].
    pub fn reset(&mut self) -> Result<(), PortError> {
        match self.check() {
            Err(PortError::Fault(_)) => self.restart()?,
            other => return other,
        }
        let Some(control) = self.first_control() else { return Ok(()) };
        let wanted = control.owner_flags.0.reset_wanted.load(Relaxed).wrapping_add(1);
        control.owner_flags.0.reset_wanted.store(wanted, Release);
        fence(Ordering::SeqCst);
        self.doorbell.kick()?;
        let started = Instant::now();
        while control.core_flags.0.reset_done.load(Acquire) != wanted {
            if matches!(self.doorbell, Doorbell::Inline(_)) {
                return Ok(());
            }
            if started.elapsed() > RESET_TIME {
                return Err(PortError::NotReset(RESET_TIME));
            }
            self.doorbell.sleep(Some(Duration::from_millis(1)))?;
            self.doorbell.drain()?;
        }
        Ok(())
    }

    /// Opens the port again under the same name and with the same rings, after [`PortError::Gone`].
    /// The content of the rings is lost.
    ///
    /// # Errors
    /// As for [`Port::open`]. The port can still be reopened later.
    pub fn reopen(&mut self) -> Result<(), OpenError> {
        let (Some(opened), Some(lease)) = (&self.opened, &self.lease) else {
            return Err(OpenError::NotOpenedHere);
        };
        lease.renew(self.ends)?;
        self.send.iter_mut().for_each(SendQueue::restart);
        self.receive.iter_mut().for_each(ReceiveQueue::restart);
        let attached = opened.attach(&self.memory, self.ends)?;
        (self.doorbell, self.max_frame) = (attached.doorbell, attached.max_frame);
        self.carry(attached.offloads);
        Ok(())
    }

    /// Resets our part of the rings to the first state.
    fn restart(&mut self) -> Result<(), PortError> {
        let lease = match (&self.lease, &self.doorbell) {
            (Some(lease), Doorbell::Token(_) | Doorbell::Trusted { .. } | Doorbell::Inline(_)) => {
                lease
            }
            _ => return Err(PortError::NotRestartable),
        };
        lease.reinitialise(self.ends).map_err(|_| PortError::NotRestartable)?;
        self.send.iter_mut().for_each(SendQueue::restart);
        self.receive.iter_mut().for_each(ReceiveQueue::restart);
        Ok(())
    }

    /// The control block where resets are asked for.
    fn first_control(&self) -> Option<&Control> {
        let first = self.send.first().map(|queue| &queue.view);
        let first = first.or_else(|| self.receive.first().map(|queue| &queue.view));
        first.map(|view| &*view.ring.control)
    }
}

impl AsFd for Port {
    /// The descriptor that becomes readable after [`Port::arm`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }
}

impl AsRawFd for Port {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, ends, doorbell, .. } = self;
        let mut port = f.debug_struct("Port");
        port.field("name", name).field("tx", &ends.tx).field("rx", &ends.rx);
        port.field("doorbell", doorbell).finish_non_exhaustive()
    }
}

/// The send and the receive queue with one number.
#[derive(Debug)]
pub struct QueuePair<'a> {
    send: Option<&'a mut SendQueue>,
    receive: Option<&'a mut ReceiveQueue>,
    nothing: &'a mut (u32, Option<Fault>),
}

impl<'a> QueuePair<'a> {
    /// Lends up to `max` free slots.
    #[inline]
    #[must_use]
    pub fn send(self, max: usize) -> Outgoing<'a> {
        match self.send {
            Some(queue) => queue.lend(max),
            None => Outgoing::none(&mut self.nothing.0, &mut self.nothing.1),
        }
    }

    /// Lends up to `max` received frames.
    #[inline]
    #[must_use]
    pub fn receive(self, max: usize) -> Incoming<'a> {
        match self.receive {
            Some(queue) => queue.lend(max),
            None => Incoming::none(&mut self.nothing.0, &mut self.nothing.1),
        }
    }

    /// Lends both at once, to answer frames on the port that they came from. `None` if one of the
    /// queues does not exist.
    #[inline]
    #[must_use]
    pub fn both(self, send: usize, receive: usize) -> Option<(Outgoing<'a>, Incoming<'a>)> {
        Some((self.send?.lend(send), self.receive?.lend(receive)))
    }
}
