//! Interrupt moderation: interrupts are coalesced, so that one serves several frames.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::config::Interrupts;
use port::{EgressCounters, IngressCounters, Nanos};
use shmem::Shared;

/// Traffic is heavy if this many frames arrive in the longest delay of an interrupt,
const HEAVY: u64 = 8;
/// and each interrupt serves this many frames, or all frames go one way. Requests and replies come
/// one by one; they must not wait.
const SEVERAL: u64 = 3;
/// The frames that one interrupt should serve under heavy traffic: well below a ring of 256.
const A_ROUND: u64 = 96;
const PAGE: u64 = 4096;

/// The counters of the frames that one interrupt announces.
#[derive(Clone, Debug, Default)]
pub struct Moved {
    /// The counters of frames sent by the guest.
    pub sent: Option<Shared<IngressCounters>>,
    /// The counters of frames received by the guest.
    pub received: Vec<Shared<EgressCounters>>,
    /// The interrupt announces sent frames only.
    pub only_sent: bool,
}

impl Moved {
    /// Frames sent and received. A frame counts once more for each page that it fills, because it
    /// takes that many more descriptors.
    fn frames(&self) -> [u64; 2] {
        let pages = |frames: u64, bytes: u64| frames.wrapping_add(bytes / PAGE);
        let sent = self.sent.as_ref().map_or(0, |c| pages(c.frames.get(), c.bytes.get()));
        let received = self.received.iter().map(|c| pages(c.frames.get(), c.bytes.get()));
        [sent, received.fold(0, u64::wrapping_add)]
    }
}

/// The moderation of one interrupt. Workers that ask at the same time may both be told that it is
/// due; it never happens that neither is.
#[derive(Debug)]
pub struct Moderation {
    /// Least nanoseconds between interrupts.
    gap: u64,
    /// Nanoseconds that an interrupt waits for more frames.
    delay: u64,
    /// Interrupts wait only under heavy traffic.
    adaptive: bool,
    /// Nanoseconds that an interrupt waits if it announces sent frames only.
    sent_delay: u64,
    moved: Moved,
    /// When the last interrupt was raised, and the frame counts at that time.
    ///
    /// # Protocol: `Moderation`: `rung_at`, `rung_after`, `asked_at`, `interval`
    /// - Writer: the worker that rings
    /// - Reader: the same
    /// - Ordering: relaxed: estimates; workers that ring at once may ring once too often
    /// - Without it: an interrupt too early or late
    /// - Shown by: `moderation` tests
    rung_at: AtomicU64,
    rung_after: [AtomicU64; 2],
    /// Nanoseconds from the last interrupt to the next one under heavy traffic; 0 under light
    /// traffic.
    interval: AtomicU64,
    /// When the next interrupt was first requested; 0 if none was.
    asked_at: AtomicU64,
}

impl Moderation {
    /// Moderates interrupts as `interrupts` says; `None` if that is off.
    #[must_use]
    pub fn new(interrupts: Interrupts, moved: Moved) -> Option<Self> {
        let gap = interrupts.max_rate.map_or(0, |rate| Nanos::SECOND / u64::from(rate.max(1)));
        let delay = u64::from(interrupts.max_delay_us) * 1000;
        let sent_delay = u64::from(interrupts.max_sent_delay_us) * 1000;
        (!interrupts.is_off()).then(|| Self {
            gap,
            delay,
            adaptive: interrupts.adaptive,
            sent_delay,
            rung_at: AtomicU64::new(0),
            rung_after: moved.frames().map(AtomicU64::new),
            interval: AtomicU64::new(0),
            asked_at: AtomicU64::new(0),
            moved,
        })
    }

    /// The earliest time for an interrupt that is asked for at `now`. With `enough` frames pending
    /// it is not delayed further, because the driver might run out of descriptors.
    pub fn due(&self, enough: u64, now: Nanos) -> Nanos {
        let rung_at = Nanos(self.rung_at.load(Ordering::Relaxed));
        let asked_at = match self.asked_at.load(Ordering::Relaxed) {
            0 => {
                self.asked_at.store(now.0, Ordering::Relaxed);
                now
            }
            then => Nanos(then),
        };
        let [sent, received] = self.frames();
        // Under heavy traffic frames have already waited in the switch, so the delay counts from
        // the last interrupt.
        let due = match self.adaptive {
            true => rung_at + self.interval(now),
            false => asked_at + self.delay,
        };
        let only_sent = self.moved.only_sent || received == 0 && sent > 0;
        let due = if only_sent { due.max(asked_at + self.sent_delay) } else { due };
        let moved = if only_sent { sent } else { sent.max(received) };
        let due = if moved < enough { now.max(due) } else { now };
        due.max(rung_at + self.gap)
    }

    /// Nanoseconds between interrupts under heavy traffic; 0 otherwise.
    fn interval(&self, now: Nanos) -> u64 {
        let rung_at = Nanos(self.rung_at.load(Ordering::Relaxed));
        let is_recent = now - rung_at < 2 * self.delay;
        if is_recent { self.interval.load(Ordering::Relaxed) } else { 0 }
    }

    /// True if interrupts are delayed because traffic is heavy.
    pub fn is_heavy(&self, now: Nanos) -> bool {
        self.adaptive && self.interval(now) > 0
    }

    /// Frames sent and received since the last interrupt.
    fn frames(&self) -> [u64; 2] {
        let mut frames = self.moved.frames();
        for (frames, before) in frames.iter_mut().zip(&self.rung_after) {
            *frames = frames.wrapping_sub(before.load(Ordering::Relaxed));
        }
        frames
    }

    /// Notes that the guest was interrupted, or has looked by itself. If traffic is heavy, returns
    /// until when no other interrupt is due.
    pub fn rung(&self, now: Nanos) -> Option<Nanos> {
        let (frames, since) = (self.frames(), now - Nanos(self.rung_at.load(Ordering::Relaxed)));
        let [sent, received] = frames;
        let moved = if self.moved.only_sent { sent.max(received) } else { received };
        let many = moved.saturating_mul(self.delay) >= since.saturating_mul(HEAVY);
        let heavy = many && (moved >= SEVERAL || sent == 0 || received == 0);
        let a_round = since.saturating_mul(A_ROUND) / moved.max(1);
        let interval = if heavy { self.delay.min(a_round) } else { 0 };
        self.interval.store(interval, Ordering::Relaxed);
        self.rung_at.store(now.0, Ordering::Relaxed);
        for (frames, before) in frames.iter().zip(&self.rung_after) {
            before.fetch_add(*frames, Ordering::Relaxed);
        }
        self.asked_at.store(0, Ordering::Relaxed);
        (self.adaptive && interval > 0).then(|| now + interval)
    }
}

#[cfg(test)]
mod tests {
    use shmem::Mapping;

    use super::*;

    const DELAY: u64 = 100_000;
    const ADAPTIVE: Interrupts =
        Interrupts { max_rate: None, max_delay_us: 100, adaptive: true, max_sent_delay_us: 0 };
    const ENOUGH: u64 = 128;

    /// A moderation, and the counters that it reads.
    fn moderation(
        interrupts: Interrupts,
    ) -> (Moderation, Shared<IngressCounters>, Shared<EgressCounters>) {
        moderation_of(interrupts, false)
    }

    fn moderation_of(
        interrupts: Interrupts,
        only_sent: bool,
    ) -> (Moderation, Shared<IngressCounters>, Shared<EgressCounters>) {
        let page = || Mapping::private(4096).unwrap();
        let (sent, received): (Shared<IngressCounters>, Shared<EgressCounters>) =
            (page().shared(0).unwrap(), page().shared(0).unwrap());
        let moved = Moved { sent: Some(sent.clone()), received: vec![received.clone()], only_sent };
        (Moderation::new(interrupts, moved).unwrap(), sent, received)
    }

    #[test]
    fn a_fixed_delay_counts_from_the_first_time_that_one_is_asked_for() {
        let (moderation, ..) = moderation(Interrupts { adaptive: false, ..ADAPTIVE });
        let now = Nanos(Nanos::SECOND);
        assert_eq!(moderation.due(ENOUGH, now), now + DELAY);
        assert_eq!(moderation.due(ENOUGH, now + 7), now + DELAY);
        moderation.rung(now + DELAY);
        assert_eq!(moderation.due(ENOUGH, now + 2 * DELAY), now + 3 * DELAY);
    }

    #[test]
    fn one_frame_at_a_time_is_not_delayed_and_many_are() {
        let (moderation, sent, received) = moderation(ADAPTIVE);
        let mut now = Nanos(Nanos::SECOND);
        for _ in 0..20 {
            now = now + DELAY / 20;
            received.frames.add(1);
            assert_eq!(moderation.due(ENOUGH, now), now);
            moderation.rung(now);
            sent.frames.add(1);
        }
        received.frames.add(SEVERAL);
        now = now + DELAY;
        moderation.rung(now);
        received.frames.add(1);
        assert_eq!(moderation.due(ENOUGH, now), now, "several in a long time");
        received.frames.add(HEAVY);
        assert_eq!(moderation.due(ENOUGH, now), now, "nobody knew");
        now = now + DELAY;
        moderation.rung(now);
        received.frames.add(1);
        assert_eq!(moderation.due(ENOUGH, now + 1), now + DELAY);
        received.frames.add(ENOUGH);
        assert_eq!(moderation.due(ENOUGH, now), now, "these are enough");
        moderation.rung(now);
        now = now + 2 * DELAY;
        assert_eq!(moderation.due(ENOUGH, now), now, "the traffic is over");
    }

    #[test]
    fn a_sender_without_receives_is_interrupted_late() {
        let held_back = Interrupts { max_sent_delay_us: 100, ..Interrupts::default() };
        let (moderation, sent, received) = moderation(held_back);
        let now = Nanos(Nanos::SECOND);
        sent.frames.add(1);
        assert_eq!(moderation.due(ENOUGH, now), now + DELAY);
        received.frames.add(1);
        assert_eq!(moderation.due(ENOUGH, now), now, "an answer");
    }

    #[test]
    fn the_heavier_traffic_is_the_sooner_comes_the_next() {
        let (moderation, _, received) = moderation(ADAPTIVE);
        let now = Nanos(Nanos::SECOND);
        assert_eq!(moderation.rung(now), None);
        received.frames.add(HEAVY);
        let now = now + DELAY;
        assert_eq!(moderation.rung(now), Some(now + DELAY));
        received.frames.add(4 * A_ROUND);
        let now = now + DELAY;
        assert_eq!(moderation.rung(now), Some(now + DELAY / 4));
    }

    #[test]
    fn what_was_sent_is_told_of_less_often_whatever_the_guest_receives() {
        let (moderation, sent, received) = moderation_of(ADAPTIVE, true);
        let now = Nanos(Nanos::SECOND);
        moderation.rung(now);
        received.frames.add(ENOUGH);
        sent.frames.add(SEVERAL);
        let now = now + DELAY;
        let due = moderation.rung(now).unwrap();
        received.frames.add(ENOUGH);
        sent.frames.add(1);
        assert_eq!(moderation.due(ENOUGH, now + 1), due);
        sent.frames.add(ENOUGH);
        assert_eq!(moderation.due(ENOUGH, now + 1), now + 1, "these are enough");
    }

    #[test]
    fn a_few_long_frames_are_heavy_traffic() {
        let (moderation, _, received) = moderation(ADAPTIVE);
        let now = Nanos(Nanos::SECOND);
        received.frames.add(1);
        moderation.rung(now);
        received.bytes.add(65_536);
        moderation.rung(now + DELAY);
        let now = now + DELAY;
        received.frames.add(1);
        assert_eq!(moderation.due(ENOUGH, now), now + DELAY);
    }

    #[test]
    fn without_limits_there_is_nothing_to_go_by() {
        assert!(Moderation::new(Interrupts::default(), Moved::default()).is_none());
    }
}
