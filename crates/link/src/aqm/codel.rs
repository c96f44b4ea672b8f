//! Controlled delay (RFC 8289).

use port::Nanos;

use super::{Load, Source};
use crate::Target;
use crate::meter::Cause;
use crate::store::Held;

/// The queue is never drained below a frame of this many bytes.
const MAX_PACKET: u64 = 1514;

/// The state of a controlled queue, with the names of RFC 8289, 5.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Codel {
    target: Target,
    first_above_time: Nanos,
    drop_next: Nanos,
    count: u32,
    last_count: u32,
    dropping: bool,
}

impl Codel {
    pub fn new(target: Target) -> Self {
        Self {
            target,
            first_above_time: Nanos(0),
            drop_next: Nanos(0),
            count: 0,
            last_count: 0,
            dropping: false,
        }
    }

    /// The next time to drop: `t + INTERVAL / sqrt(count)`.
    fn control_law(&self, t: Nanos) -> Nanos {
        // The root has 32 binary places.
        let root = (u128::from(self.count.max(1)) << 64).isqrt();
        let step = u128::from(self.target.interval_ns) << 32;
        t + u64::try_from(step / root).unwrap_or(u64::MAX)
    }

    /// `dodequeue`: a frame, and whether it may be dropped.
    fn next(
        &mut self,
        source: &mut impl Source,
        at: Nanos,
        load: &mut Load,
    ) -> (Option<Held>, bool) {
        let Some(held) = source.pop() else {
            self.first_above_time = Nanos(0);
            return (None, false);
        };
        load.leave(&held);
        if at - held.at < self.target.target_ns || source.bytes(load) <= MAX_PACKET {
            self.first_above_time = Nanos(0);
            return (Some(held), false);
        }
        if self.first_above_time == Nanos(0) {
            self.first_above_time = at + self.target.interval_ns;
            return (Some(held), false);
        }
        (Some(held), at >= self.first_above_time)
    }

    /// The next frame at `at`, after the drops that are due.
    #[inline]
    pub fn pop(&mut self, source: &mut impl Source, at: Nanos, load: &mut Load) -> Option<Held> {
        let (mut held, mut ok_to_drop) = self.next(source, at, load);
        if self.dropping {
            self.dropping = ok_to_drop;
            while self.dropping && at >= self.drop_next {
                let Some(frame) = held else { break };
                self.count = self.count.saturating_add(1);
                if load.mark(&frame) {
                    self.drop_next = self.control_law(self.drop_next);
                    break;
                }
                load.discard(&frame, Cause::Early);
                (held, ok_to_drop) = self.next(source, at, load);
                self.dropping = ok_to_drop;
                if ok_to_drop {
                    self.drop_next = self.control_law(self.drop_next);
                }
            }
        } else if let Some(frame) = held.filter(|_| ok_to_drop) {
            if !load.mark(&frame) {
                load.discard(&frame, Cause::Early);
                held = self.next(source, at, load).0;
            }
            self.start_dropping(at);
        }
        held
    }

    /// Starts a period of drops. If the last one was not long ago, its rate is taken up.
    fn start_dropping(&mut self, at: Nanos) {
        self.dropping = true;
        let delta = self.count.saturating_sub(self.last_count);
        let recent = at - self.drop_next < 16 * self.target.interval_ns;
        self.count = if delta > 1 && recent { delta } else { 1 };
        self.drop_next = self.control_law(at);
        self.last_count = self.count;
    }
}
