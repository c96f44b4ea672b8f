//! How owners of ports are woken, and how interrupts of guests are held back for more of them to be one.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fabric::Interrupts;
use port::Nanos;

use super::vfio_user::vectors::{Asked, Vectors};
use crate::serve::Side;

/// How a port's owner is woken.
#[derive(Clone, Debug, Default)]
pub enum Bells {
    /// It does not sleep.
    #[default]
    None,
    /// By a byte on its token.
    Token(Arc<OwnedFd>),
    /// By eventfds, one for each queue that wants it.
    Queues {
        /// Of its send queues, by ingress.
        ingress: Box<[Option<Arc<Bell>>]>,
        /// Of its receive queues, by egress.
        egress: Box<[Option<Arc<Bell>>]>,
    },
    /// By a device's interrupts: the device says which, and when.
    Device(Arc<Vectors>),
}

/// What became of a wish to wake somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rung {
    /// There is no way to, or it is about to be done.
    No,
    Yes,
    /// Not before then; whoever asked sees to it.
    Later(Nanos),
}

impl Rung {
    /// What asking a device came to.
    fn of(Asked { rung, due }: Asked) -> Self {
        match due {
            Some(due) => Self::Later(due),
            None if rung => Self::Yes,
            None => Self::No,
        }
    }
}

impl Bells {
    /// Wakes the owner of a queue.
    pub(crate) fn ring(&self, side: Side, now: Nanos) -> Rung {
        match self {
            Self::None => Rung::No,
            Self::Token(token) => {
                crate::kick(token.as_fd());
                Rung::Yes
            }
            Self::Queues { .. } => self.bell(side).map_or(Rung::No, |bell| bell.ring(now)),
            Self::Device(vectors) => Rung::of(vectors.ask_once(now)),
        }
    }

    /// Rings a bell that was put off until `now`, unless it was rung since.
    pub(crate) fn ring_late(&self, side: Side, now: Nanos) -> Rung {
        if let Self::Device(vectors) = self {
            return Rung::of(vectors.ask_late(now));
        }
        let rung = self.bell(side).is_some_and(|bell| bell.ring_late(now));
        if rung { Rung::Yes } else { Rung::No }
    }

    /// Wakes the owner, whatever it waits for.
    pub(crate) fn ring_all(&self) {
        match self {
            Self::None => {}
            Self::Token(token) => crate::kick(token.as_fd()),
            Self::Queues { ingress, egress } => {
                ingress.iter().chain(egress).flatten().for_each(|bell| bell.signal());
            }
            // When more is due, its home worker asks.
            Self::Device(vectors) => drop(vectors.ask(crate::worker::clock())),
        }
    }

    fn bell(&self, side: Side) -> Option<&Bell> {
        let Self::Queues { ingress, egress } = self else { return None };
        let bell = match side {
            Side::Ingress(queue) => ingress.get(usize::from(queue)),
            Side::Egress(queue) => egress.get(usize::from(queue)),
        };
        bell?.as_deref()
    }
}

/// An eventfd that interrupts a guest, and how far interrupts are held back.
#[derive(Debug)]
pub struct Bell {
    eventfd: Arc<OwnedFd>,
    moderation: Option<Moderation>,
}

/// The state of held back interrupts. Workers that ring at the same time may ring once too often, and
/// never once too little.
#[derive(Debug)]
struct Moderation {
    /// Least nanoseconds between interrupts.
    gap: u64,
    /// Nanoseconds that an interrupt waits for more to come.
    delay: u64,
    /// It only waits while they come faster than that.
    adaptive: bool,
    rung_at: AtomicU64,
    asked_at: AtomicU64,
    /// Nanoseconds between the times it was asked for, averaged over about eight.
    average: AtomicU64,
    /// Some worker rings when it is due.
    put_off: AtomicBool,
}

impl Bell {
    /// A bell that is rung as `interrupts` says.
    #[must_use]
    pub fn new(eventfd: Arc<OwnedFd>, interrupts: Interrupts) -> Self {
        let gap = interrupts.max_rate.map_or(0, |rate| Nanos::SECOND / u64::from(rate.max(1)));
        let delay = u64::from(interrupts.max_delay_us) * 1000;
        let moderation = (gap > 0 || delay > 0).then(|| Moderation {
            gap,
            delay,
            adaptive: interrupts.adaptive,
            rung_at: AtomicU64::new(0),
            asked_at: AtomicU64::new(0),
            average: AtomicU64::new(8 * delay),
            put_off: AtomicBool::new(false),
        });
        Self { eventfd, moderation }
    }

    fn ring(&self, now: Nanos) -> Rung {
        if let Some(moderation) = &self.moderation {
            let due = moderation.due(now);
            if due > now {
                let first = !moderation.put_off.swap(true, Ordering::AcqRel);
                return if first { Rung::Later(due) } else { Rung::No };
            }
            moderation.rung_at.store(now.0, Ordering::Relaxed);
        }
        self.signal();
        Rung::Yes
    }

    fn ring_late(&self, now: Nanos) -> bool {
        let Some(moderation) = &self.moderation else { return false };
        // Cleared before the signal: who asks from now on has somebody see to it anew.
        let put_off = moderation.put_off.swap(false, Ordering::AcqRel);
        if put_off {
            moderation.rung_at.store(now.0, Ordering::Relaxed);
            self.signal();
        }
        put_off
    }

    fn signal(&self) {
        crate::signal(self.eventfd.as_fd());
    }
}

impl Drop for Bell {
    /// What was put off has nobody to see to it any more.
    fn drop(&mut self) {
        if self.moderation.as_mut().is_some_and(|m| *m.put_off.get_mut()) {
            self.signal();
        }
    }
}

impl Moderation {
    /// When an interrupt that is asked for now may be.
    fn due(&self, now: Nanos) -> Nanos {
        let since = now - Nanos(self.asked_at.swap(now.0, Ordering::Relaxed));
        let average = self.average.load(Ordering::Relaxed);
        let average = average - average / 8 + since.min(8 * self.delay) / 8;
        self.average.store(average, Ordering::Relaxed);
        let rare = self.adaptive && average >= self.delay;
        let delayed = if rare { now } else { now + self.delay };
        delayed.max(Nanos(self.rung_at.load(Ordering::Relaxed)) + self.gap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFF: Interrupts = Interrupts { max_rate: None, max_delay_us: 0, adaptive: false };
    const SECOND: u64 = Nanos::SECOND;

    fn bell(interrupts: Interrupts) -> Bell {
        let flags = rustix::event::EventfdFlags::NONBLOCK;
        Bell::new(Arc::new(rustix::event::eventfd(0, flags).unwrap()), interrupts)
    }

    fn signals(bell: &Bell) -> u64 {
        let mut count = [0; 8];
        let read = rustix::io::read(&bell.eventfd, &mut count);
        read.map_or(0, |_| u64::from_ne_bytes(count))
    }

    #[test]
    fn without_moderation_every_ring_is_one() {
        let bell = bell(OFF);
        (0..3).for_each(|now| assert_eq!(bell.ring(Nanos(now)), Rung::Yes));
        assert_eq!(signals(&bell), 3);
    }

    #[test]
    fn a_rate_spaces_interrupts_and_loses_none() {
        let bell = bell(Interrupts { max_rate: Some(1000), ..OFF });
        assert_eq!(bell.ring(Nanos(SECOND)), Rung::Yes);
        let due = Nanos(SECOND + SECOND / 1000);
        assert_eq!(bell.ring(Nanos(SECOND + 5)), Rung::Later(due));
        assert_eq!(bell.ring(Nanos(SECOND + 6)), Rung::No, "one is on its way");
        assert_eq!(signals(&bell), 1);
        assert!(bell.ring_late(due) && !bell.ring_late(due));
        assert_eq!(signals(&bell), 1);
        assert_eq!(bell.ring(due + 1), Rung::Later(due + SECOND / 1000));
        assert_eq!(bell.ring(due + SECOND), Rung::Yes, "a late worker costs nobody an interrupt");
    }

    #[test]
    fn a_bell_that_is_replaced_rings_what_it_had_put_off() {
        let bell = bell(Interrupts { max_delay_us: 100, ..OFF });
        let eventfd = Arc::clone(&bell.eventfd);
        assert_eq!(bell.ring(Nanos(SECOND)), Rung::Later(Nanos(SECOND + 100_000)));
        drop(bell);
        assert_eq!(signals(&Bell::new(eventfd, OFF)), 1);
    }

    #[test]
    fn a_delay_gathers_and_adapts() {
        let delay = 100_000;
        let fixed = bell(Interrupts { max_delay_us: 100, ..OFF });
        assert_eq!(fixed.ring(Nanos(SECOND)), Rung::Later(Nanos(SECOND + delay)));
        let adaptive = bell(Interrupts { max_delay_us: 100, adaptive: true, ..OFF });
        let mut now = Nanos(SECOND);
        for _ in 0..10 {
            now = now + 2 * delay;
            assert_eq!(adaptive.ring(now), Rung::Yes, "rare interrupts are not delayed");
        }
        let mut delayed = 0;
        for _ in 0..200 {
            now = now + delay / 20;
            match adaptive.ring(now) {
                Rung::Later(due) => {
                    delayed += 1;
                    assert_eq!(due, now + delay);
                    assert!(adaptive.ring_late(due));
                }
                rung => assert_eq!(rung, Rung::Yes),
            }
        }
        assert!(delayed > 100, "frequent ones are: {delayed}");
        now = now + 100 * delay;
        for i in 0..20 {
            adaptive.ring(now + i * 8 * delay);
        }
        assert_eq!(adaptive.ring(now + 300 * delay), Rung::Yes, "until they are rare again");
    }
}
