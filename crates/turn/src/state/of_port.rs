//! A port's part of the state.

use std::mem::offset_of;
use std::sync::Arc;

use netring::layout::MAX_SLOTS;
use port::stats::{MappedMemory, PortStats};
use port::{Counter, EgressCounters, IngressCounters};
use shmem::budget::Account;
use shmem::sync::AtomicU32;
use shmem::{Mapping, Shareable, Shared, SharedSlice};

use super::{
    BusCounters, IngressPage, QueueWords, RINGS, ReceiveState, SPARES, SPARES_AT, SendState,
    SwitchState,
};
use crate::user::{Conduct, Payer, Standing, User};

/// The state of a port.
#[derive(Clone, Debug)]
pub struct PortState {
    pub(super) page: Shared<IngressPage>,
    pub(super) at: usize,
    /// Where the state of the port's receive queue 0 is, and the distance in bytes to that of queue
    /// 1.
    pub(super) queue_at: usize,
    pub(super) next_queue: usize,
    pub(super) map: Arc<Mapping>,
    pub(super) payer: Payer,
}

impl PortState {
    /// The same state, with a user that pays for calls whose cost the port's owner sets.
    #[must_use]
    pub fn paid_by(mut self, user: Arc<User>) -> Self {
        self.payer = Payer::new(user, self.conduct());
        self
    }

    /// The payer of calls whose cost the port's owner sets.
    #[must_use]
    pub fn payer(&self) -> &Payer {
        &self.payer
    }

    /// The port's ingress counters.
    #[must_use]
    pub fn ingress(&self) -> Option<Shared<IngressCounters>> {
        self.map.shared(self.at)
    }

    /// The cursors of send ring `ring`.
    #[must_use]
    pub fn send(&self, ring: usize) -> Option<Shared<SendState>> {
        let at = size_of::<IngressCounters>() + ring * size_of::<SendState>();
        self.map.shared(self.at + at).filter(|_| ring < RINGS)
    }

    /// The counters and cursors of receive ring `ring`.
    #[must_use]
    pub fn receive(&self, ring: usize) -> Option<Shared<ReceiveState>> {
        let at = self.queue_at + ring * self.next_queue;
        self.map.shared(at).filter(|_| ring < RINGS)
    }

    /// The counters of receive queue `ring`.
    #[must_use]
    pub fn egress(&self, ring: usize) -> Option<Shared<EgressCounters>> {
        let at = self.queue_at + ring * self.next_queue;
        self.map.shared(at + offset_of!(ReceiveState, counters)).filter(|_| ring < RINGS)
    }

    /// What a device keeps for its transmit queue `queue`.
    #[must_use]
    pub fn transmit<T: Shareable>(&self, queue: usize) -> Option<Shared<T>> {
        const { fits_queue::<T>() };
        let at = size_of::<IngressCounters>() + queue * size_of::<SendState>();
        let at = self.at + at + offset_of!(SendState, queue);
        self.map.shared(at).filter(|_| queue < RINGS)
    }

    /// What a device keeps for its receive queue `queue`.
    #[must_use]
    pub fn receive_queue<T: Shareable>(&self, queue: usize) -> Option<Shared<T>> {
        const { fits_queue::<T>() };
        let at = self.queue_at + queue * self.next_queue;
        let at = at + offset_of!(ReceiveState, queue);
        self.map.shared(at).filter(|_| queue < RINGS)
    }

    /// The counters of accesses over the bus of the port's device.
    #[must_use]
    pub fn bus(&self) -> Option<Shared<BusCounters>> {
        self.map.shared(self.at + offset_of!(IngressPage, bus))
    }

    /// The counters of the kernel's work for the port's user on threads that serve others.
    #[must_use]
    pub fn conduct(&self) -> Option<Shared<Conduct>> {
        self.map.shared(self.at + offset_of!(IngressPage, conduct))
    }

    /// Stores the standing of the port's user.
    pub fn set_standing(&self, standing: Standing) {
        self.page.conduct.standing.set(standing as u64);
    }

    /// The standing of the port's user.
    #[must_use]
    pub fn standing(&self) -> Standing {
        Standing::of(self.page.conduct.standing.get())
    }

    /// Room for the buffer numbers that receive ring `ring` has not handed out.
    #[must_use]
    pub fn spares(&self, ring: usize) -> Option<SharedSlice<AtomicU32>> {
        let at = self.at + SPARES_AT + ring * SPARES;
        self.map.shared_slice(at, MAX_SLOTS as usize).filter(|_| ring < RINGS)
    }

    /// The counters of all receive rings or queues that the port can have.
    #[must_use]
    pub fn received(&self) -> Vec<Shared<EgressCounters>> {
        (0..RINGS).map_while(|ring| self.egress(ring)).collect()
    }

    /// The memory of [`spares`](Self::spares), which ports without rings use for something else:
    /// the mapping, and the range in it.
    #[must_use]
    pub fn room(&self) -> (Arc<Mapping>, std::ops::Range<usize>) {
        let at = self.at + SPARES_AT;
        (Arc::clone(&self.map), at..at + RINGS * SPARES)
    }

    /// True if the port's senders do not wait any more, because the port is lossless and has freed
    /// no slot for the stall time.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.received().iter().any(|queue| queue.is_stalled())
    }

    /// True if the port's code panicked in this data process, so that no worker serves it.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.page.failed.get() != 0
    }

    /// Notes whether the port has failed. For the control thread only.
    pub fn set_failed(&self, failed: bool) {
        self.page.failed.set(failed.into());
    }

    /// The error that stopped writing the port's file, if any.
    #[must_use]
    pub fn write_error(&self) -> Option<std::io::Error> {
        let errno = i32::try_from(self.page.write_error.get()).ok().filter(|errno| *errno != 0);
        errno.map(std::io::Error::from_raw_os_error)
    }

    /// Notes the error that stopped writing the port's file, or that there is none. For the file's
    /// writer only.
    pub fn set_write_error(&self, error: Option<&std::io::Error>) {
        let errno = error.map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO));
        self.page.write_error.set(u64::from(errno.unsigned_abs()));
    }

    /// Notes the memory that is mapped for the port. For the control thread only.
    pub fn set_lent(&self, account: &Account) {
        self.page.lent.set(account);
    }

    /// The memory of the port's owner that is mapped for the port.
    #[must_use]
    pub fn memory(&self) -> MappedMemory {
        self.page.lent.read()
    }

    /// Its numbers.
    #[must_use]
    pub fn snapshot(&self) -> PortStats {
        let (bus, conduct) = (&self.page.bus, &self.page.conduct);
        let mut stats = PortStats {
            slow_calls: conduct.slow_calls.get(),
            slowest_call_ns: conduct.slowest_call_ns.get(),
            slow_touches: conduct.slow_touches.get(),
            slowest_touch_ns: conduct.slowest_touch_ns.get(),
            helped_kicks: conduct.helped_kicks.get(),
            reads: bus.reads.get(),
            writes: bus.writes.get(),
            posted_writes: bus.posted.get(),
            acknowledgements: bus.acknowledgements.get(),
            interrupts: bus.interrupts.get(),
            memory: self.memory(),
            ..PortStats::of_ingress(&self.page.counters)
        };
        for ring in 0..RINGS {
            if let Some(counters) = self.egress(ring) {
                stats.add_egress(&counters);
            }
        }
        stats
    }

    /// Adds the counters to the totals of removed ports, and clears them.
    pub fn retire(&self, switch: &SwitchState) {
        self.set_failed(false);
        self.set_write_error(None);
        self.page.conduct.clear();
        let gone = &switch.gone_ingress;
        let here = &self.page.counters;
        let move_to = |to: &Counter, from: &Counter| {
            to.add_shared(from.get());
            from.set(0);
        };
        move_to(&gone.frames, &here.frames);
        move_to(&gone.bytes, &here.bytes);
        move_to(&gone.copies, &here.copies);
        here.drops.iter().zip(&gone.drops).for_each(|(from, to)| move_to(to, from));
        for rest in here.batches.iter().chain([
            &here.kicks,
            &here.wakeups,
            &here.faults,
            &here.flaps,
            &here.unlearned,
        ]) {
            rest.set(0);
        }
        let BusCounters { reads, writes, posted, acknowledgements, interrupts } = &self.page.bus;
        for counter in [reads, writes, posted, acknowledgements, interrupts] {
            counter.set(0);
        }
        self.page.lent.clear();
        for ring in 0..RINGS {
            let Some(state) = self.receive(ring) else { continue };
            let (here, gone) = (&state.counters, &switch.gone_egress);
            move_to(&gone.frames, &here.frames);
            move_to(&gone.bytes, &here.bytes);
            here.drops.iter().zip(&gone.drops).for_each(|(from, to)| move_to(to, from));
            move_to(&gone.segments, &here.segments);
            for rest in [&here.kicks, &here.faults, &here.segmented, &here.checksums] {
                rest.set(0);
            }
            here.forget_stall();
        }
    }
}

/// Refuses types that are larger than the words of a queue.
const fn fits_queue<T>() {
    let fits =
        size_of::<T>() <= size_of::<QueueWords>() && align_of::<T>() <= align_of::<QueueWords>();
    assert!(fits, "a device's words for a queue");
}
