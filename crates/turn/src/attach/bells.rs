//! How owners of ports are woken.

use std::fmt::Debug;
use std::sync::Arc;

use port::Nanos;

use crate::user::Waker;

/// One of a port's queues, by its number among those of its direction.
#[derive(Clone, Copy, Debug)]
pub enum Side {
    /// A send queue.
    Ingress(u16),
    /// A receive queue.
    Egress(u16),
}

/// How a port's owner is woken.
#[derive(Clone, Debug, Default)]
pub enum Bells {
    /// The owner does not sleep.
    #[default]
    None,
    /// A port is woken by a byte on its token.
    Token(Arc<Waker>),
    /// The interrupts of a guest, which may be deferred.
    Guest(Arc<dyn QueueBells>),
}

/// The interrupts of a guest's queues.
pub trait QueueBells: Debug + Send + Sync {
    /// Wakes the owner of a queue.
    fn ring(&self, side: Side, now: Nanos) -> WakeOutcome;

    /// Rings a bell that was deferred until `now`, unless it rang in between.
    fn ring_late(&self, side: Side, now: Nanos) -> WakeOutcome;

    /// Cancels a deferred interrupt: the owner has looked at its queue in the meantime.
    fn forget(&self, side: Side, now: Nanos);

    /// Wakes the owner for all of its queues.
    fn ring_all(&self, now: Nanos);
}

/// The outcome of a request to wake an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeOutcome {
    /// The owner cannot be woken, or another worker is about to wake it.
    No,
    /// The owner was woken. If traffic is heavy, kicks stay disabled until `rests_until`; the
    /// caller polls the owner's queues then.
    Yes {
        /// The time until which kicks stay disabled.
        rests_until: Option<Nanos>,
    },
    /// The owner is not woken before `due`; the caller has to ring then. If traffic is `heavy`,
    /// kicks stay disabled until then, too.
    Later {
        /// When the caller has to ring.
        due: Nanos,
        /// The owner's traffic is heavy.
        heavy: bool,
    },
}

impl WakeOutcome {
    /// The owner was woken, and kicks stay enabled.
    pub const YES: Self = Self::Yes { rests_until: None };
}

impl Bells {
    /// Wakes the owner of a queue.
    pub fn ring(&self, side: Side, now: Nanos) -> WakeOutcome {
        match self {
            Self::None => WakeOutcome::No,
            Self::Token(token) => {
                token.wake();
                WakeOutcome::YES
            }
            Self::Guest(bells) => bells.ring(side, now),
        }
    }

    /// Rings a bell that was deferred until `now`, unless it rang in between.
    pub fn ring_late(&self, side: Side, now: Nanos) -> WakeOutcome {
        match self {
            Self::None | Self::Token(_) => WakeOutcome::No,
            Self::Guest(bells) => bells.ring_late(side, now),
        }
    }

    /// Cancels a deferred interrupt: the owner has looked at its queue in the meantime.
    pub fn forget(&self, side: Side, now: Nanos) {
        if let Self::Guest(bells) = self {
            bells.forget(side, now);
        }
    }

    /// Wakes the owner for all of its queues.
    pub fn ring_all(&self, now: Nanos) {
        match self {
            Self::None => {}
            Self::Token(token) => token.wake(),
            Self::Guest(bells) => bells.ring_all(now),
        }
    }
}
