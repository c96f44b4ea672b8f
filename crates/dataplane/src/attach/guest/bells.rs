//! The interrupts of a guest's queues by eventfds, and how they are coalesced.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use port::Nanos;
use turn::attach::{QueueBells, Side, WakeOutcome};
use turn::user::Waker;

use super::moderation::{Moderation, Moved};
use crate::config::Interrupts;

/// With this many frames pending, a queue interrupts without further delay. It is half of the usual
/// ring. A Linux socket may have no more in flight: 88 frames of 1500 bytes, which count as 120.
const ENOUGH: u64 = 120;

/// Eventfds, one for each queue that has one.
#[derive(Debug)]
pub struct Eventfds {
    /// The eventfds of the send queues, by ingress.
    pub ingress: Box<[Option<Arc<Bell>>]>,
    /// The eventfds of the receive queues, by egress.
    pub egress: Box<[Option<Arc<Bell>>]>,
}

impl Eventfds {
    fn bell(&self, side: Side) -> Option<&Bell> {
        let bell = match side {
            Side::Ingress(queue) => self.ingress.get(usize::from(queue)),
            Side::Egress(queue) => self.egress.get(usize::from(queue)),
        };
        bell?.as_deref()
    }
}

impl QueueBells for Eventfds {
    fn ring(&self, side: Side, now: Nanos) -> WakeOutcome {
        self.bell(side).map_or(WakeOutcome::No, |bell| bell.ring(now))
    }

    fn ring_late(&self, side: Side, now: Nanos) -> WakeOutcome {
        self.bell(side).map_or(WakeOutcome::No, |bell| bell.ring_late(now))
    }

    fn forget(&self, side: Side, now: Nanos) {
        if let Some(bell) = self.bell(side) {
            bell.forget(now);
        }
    }

    fn ring_all(&self, now: Nanos) {
        self.ingress.iter().chain(&self.egress).flatten().for_each(|bell| {
            bell.signal(now);
        });
    }
}

/// An eventfd that interrupts a guest, and the moderation of its interrupts.
#[derive(Debug)]
pub struct Bell {
    eventfd: Arc<Waker>,
    moderation: Option<Moderation>,
    /// Set while a worker has promised to ring when the interrupt is due.
    ///
    /// # Protocol: `Bell.put_off` (an interrupt that a worker takes care of)
    /// - Writer: the worker that puts it off (set), the worker that rings early or late (clear)
    /// - Reader: the worker that puts it off: the first one takes care of it; the worker that rings
    ///   late
    /// - Ordering: set and cleared: swap acquire-release, where a relaxed load says that there is
    ///   something to clear; cleared before the eventfd is written
    /// - Partner: used ring, published before
    /// - Without it: an interrupt is lost, or one too many is written
    /// - Shown by: `bells` tests; `vhost_user` test `interrupts_are_held_back_and_none_is_lost`
    put_off: AtomicBool,
}

impl Bell {
    /// A bell whose interrupts are moderated as `interrupts` says, by the frames that have `moved`.
    #[must_use]
    pub fn new(eventfd: Arc<Waker>, interrupts: Interrupts, moved: Moved) -> Self {
        let moderation = Moderation::new(interrupts, moved);
        Self { eventfd, moderation, put_off: AtomicBool::new(false) }
    }

    fn ring(&self, now: Nanos) -> WakeOutcome {
        if let Some(moderation) = &self.moderation {
            let due = moderation.due(ENOUGH, now);
            if due > now {
                let first = !self.put_off.swap(true, Ordering::AcqRel);
                let later = WakeOutcome::Later { due, heavy: moderation.is_heavy(now) };
                return if first { later } else { WakeOutcome::No };
            }
            self.see_to_it();
        }
        self.signal(now)
    }

    fn ring_late(&self, now: Nanos) -> WakeOutcome {
        if self.see_to_it() { self.signal(now) } else { WakeOutcome::No }
    }

    fn forget(&self, now: Nanos) {
        if let (true, Some(moderation)) = (self.see_to_it(), &self.moderation) {
            moderation.rung(now);
        }
    }

    /// Claims the deferred interrupt, because the caller signals next; true if there was one. The
    /// flag is cleared before the signal, so that later requests schedule another interrupt. If the
    /// relaxed load misses a flag, the worker that set it rings late.
    fn see_to_it(&self) -> bool {
        self.put_off.load(Ordering::Relaxed) && self.put_off.swap(false, Ordering::AcqRel)
    }

    fn signal(&self, now: Nanos) -> WakeOutcome {
        let moderation = self.moderation.as_ref();
        let rests_until = moderation.and_then(|moderation| moderation.rung(now));
        self.eventfd.wake();
        WakeOutcome::Yes { rests_until }
    }
}

impl Drop for Bell {
    /// A deferred interrupt is signalled, because no worker can reach the bell any more.
    fn drop(&mut self) {
        if *self.put_off.get_mut() {
            self.eventfd.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use port::EgressCounters;
    use shmem::{Mapping, Shared};

    use turn::user::Payer;

    use super::*;

    const OFF: Interrupts =
        Interrupts { max_rate: None, max_delay_us: 0, adaptive: false, max_sent_delay_us: 0 };
    const SECOND: u64 = Nanos::SECOND;

    fn bell(interrupts: Interrupts) -> Bell {
        bell_for(interrupts, Moved::default())
    }

    fn bell_for(interrupts: Interrupts, moved: Moved) -> Bell {
        let flags = rustix::event::EventfdFlags::NONBLOCK;
        let eventfd = Arc::new(rustix::event::eventfd(0, flags).unwrap().into());
        Bell::new(Payer::default().eventfd(eventfd), interrupts, moved)
    }

    fn signals(bell: &Bell) -> u64 {
        let mut count = [0; 8];
        let read = rustix::io::read(&*bell.eventfd, &mut count);
        read.map_or(0, |_| u64::from_ne_bytes(count))
    }

    #[test]
    fn without_moderation_every_ring_is_one() {
        let bell = bell(OFF);
        (0..3).for_each(|now| assert_eq!(bell.ring(Nanos(now)), WakeOutcome::YES));
        assert_eq!(signals(&bell), 3);
    }

    #[test]
    fn a_rate_spaces_interrupts_and_loses_none() {
        let bell = bell(Interrupts { max_rate: Some(1000), ..OFF });
        assert_eq!(bell.ring(Nanos(SECOND)), WakeOutcome::YES);
        let due = Nanos(SECOND + SECOND / 1000);
        assert_eq!(bell.ring(Nanos(SECOND + 5)), WakeOutcome::Later { due, heavy: false });
        assert_eq!(bell.ring(Nanos(SECOND + 6)), WakeOutcome::No, "one is on its way");
        assert_eq!(signals(&bell), 1);
        assert_eq!([bell.ring_late(due), bell.ring_late(due)], [WakeOutcome::YES, WakeOutcome::No]);
        assert_eq!(signals(&bell), 1);
        assert_eq!(
            bell.ring(due + 1),
            WakeOutcome::Later { due: due + SECOND / 1000, heavy: false }
        );
        assert_eq!(
            bell.ring(due + SECOND),
            WakeOutcome::YES,
            "a late worker costs nobody an interrupt"
        );
    }

    #[test]
    fn enough_frames_are_rung_for_early_and_then_not_late() {
        let received: Shared<EgressCounters> = Mapping::private(4096).unwrap().shared(0).unwrap();
        let moved = Moved { sent: None, received: vec![received.clone()], only_sent: false };
        let bell = bell_for(Interrupts { max_delay_us: 100, ..OFF }, moved);
        let now = Nanos(SECOND);
        let due = now + 100_000;
        assert_eq!(bell.ring(now), WakeOutcome::Later { due, heavy: false });
        received.frames.add(ENOUGH - 1);
        assert_eq!(bell.ring(now + 1), WakeOutcome::No, "one is on its way");
        received.frames.add(1);
        assert_eq!(bell.ring(now + 2), WakeOutcome::YES);
        assert_eq!(bell.ring_late(due), WakeOutcome::No, "nothing is left to ring for");
        assert_eq!(signals(&bell), 1);
    }

    #[test]
    fn a_bell_that_is_replaced_rings_what_it_had_put_off() {
        let bell = bell(Interrupts { max_delay_us: 100, ..OFF });
        let eventfd = Arc::clone(&bell.eventfd);
        assert_eq!(
            bell.ring(Nanos(SECOND)),
            WakeOutcome::Later { due: Nanos(SECOND + 100_000), heavy: false }
        );
        drop(bell);
        assert_eq!(signals(&Bell::new(eventfd, OFF, Moved::default())), 1);
    }
}
