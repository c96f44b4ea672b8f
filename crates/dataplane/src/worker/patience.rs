//! How long a worker spins and naps in `auto`.

use turn::attach::RegisterAccess;

/// For how long a worker spins at most after the last frame before it sleeps.
const SPIN_NS: u64 = 50_000;
/// The same after an access to a card's registers. A virtual processor waits for most accesses, and
/// two threads of its front end are woken between one and the next. If they find this processor
/// idle, they use it, and each access is slower by several wake-ups across processors. Spinning
/// also pays for doorbells, which no processor waits for.
const SPIN_FOR_ACCESS_NS: u64 = 500_000;
/// The number of passes with frames for which an access keeps the longer spin.
const ACCESSES: u32 = 64;
/// After this many unsuccessful spins in a row, a worker does not spin.
const GIVEN_UP: u32 = 5;
/// The longest nap of a worker. With shorter naps, a guest that floods another one interrupts it
/// more often.
pub(super) const NAP_NS: u64 = 400_000;
/// A nap is worth its delay if this many frames follow it, because as many kicks were saved.
const NAP_FRAMES: usize = 4;
/// Least and most sleeps in a row that a kick ended early before a worker naps instead.
const NAP_AFTER: (u32, u32) = (2, 64);

/// How a worker waits in `auto`, adapted to what has paid so far.
///
/// It spins for as long as the next frame usually comes within [`SPIN_NS`], and less if it does
/// not: vain spinning takes the processor from guests. If owners wake it as soon as it sleeps, they
/// share its processor, and spinning for them is vain, too. Then it *naps*: it sleeps without
/// having asked for kicks, and afterwards gathers what they have sent. It does not nap if an owner
/// waits for it, because of an answer or a full ring.
#[derive(Debug)]
pub(super) struct Patience {
    /// The number of passes with frames until accesses to registers are forgotten.
    accesses: u32,
    /// A virtual processor waited for the last access.
    asked: bool,
    /// Vain spins less successful ones. Each halves the next spin.
    in_vain: u32,
    /// The number of short sleeps in a row.
    short: u32,
    /// How many short sleeps in a row must come before the next nap.
    nap_after: u32,
    /// The worker is in a nap, or has had a full one.
    napping: bool,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            accesses: 0,
            asked: false,
            in_vain: 0,
            short: 0,
            nap_after: NAP_AFTER.0,
            napping: false,
        }
    }
}

impl Patience {
    /// For how long to spin, in nanoseconds.
    pub fn spin(&self) -> u64 {
        let over = self.short >= self.nap_after || self.in_vain >= GIVEN_UP;
        if over { 0 } else { self.most() >> self.in_vain }
    }

    /// True if the worker yields its processor to other threads while it spins. After doorbells it
    /// spins for so long that the thread that rings the next one may wait for the processor. After
    /// an access that a virtual processor waits for, yielding would delay the answer.
    pub fn gives_way(&self) -> bool {
        self.accesses > 0 && !self.asked
    }

    /// The longest spin, in nanoseconds.
    fn most(&self) -> u64 {
        if self.accesses > 0 { SPIN_FOR_ACCESS_NS } else { SPIN_NS }
    }

    /// True if the worker should nap, which then counts as begun.
    pub fn start_nap(&mut self) -> bool {
        self.napping = self.short >= self.nap_after;
        self.napping
    }

    /// Notes a sleep of `slept` nanoseconds that ended `waited` nanoseconds after the last frame.
    pub fn woke(&mut self, slept: u64, waited: u64) {
        self.in_vain = match waited <= self.most() {
            true => self.in_vain.saturating_sub(1),
            false => GIVEN_UP.min(self.in_vain + 1),
        };
        self.short = if slept <= SPIN_NS { self.short + 1 } else { 0 };
    }

    /// Notes that a nap was cut short. A timer says nothing about naps. But if an owner wakes the
    /// worker unasked, as sockets do, naps do not pay.
    pub fn cut_short(&mut self, by_owner: bool) {
        self.napping = false;
        if by_owner {
            self.nap_was_useless();
        }
    }

    /// Notes that an owner had filled its ring when the nap ended.
    pub fn nap_was_too_long(&mut self) {
        self.napping = false;
        self.nap_was_useless();
    }

    /// Notes an access to a card's registers.
    pub fn note_access(&mut self, access: RegisterAccess) {
        self.accesses = ACCESSES;
        self.asked = access == RegisterAccess::AwaitsReply;
    }

    /// Notes that a pass gathered this many frames.
    #[inline]
    pub fn passed(&mut self, frames: usize) {
        self.accesses = self.accesses.saturating_sub(u32::from(frames > 0));
        if !std::mem::take(&mut self.napping) {
            return;
        }
        match frames {
            // A pass without frames: the traffic is over.
            0 => (self.short, self.nap_after) = (0, NAP_AFTER.0),
            1..NAP_FRAMES => self.nap_was_useless(),
            _ => self.nap_after = NAP_AFTER.0,
        }
    }

    fn nap_was_useless(&mut self) {
        self.short = 0;
        self.nap_after = NAP_AFTER.1.min(2 * self.nap_after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: u64 = 10 * SPIN_NS;
    const SHORT: u64 = SPIN_NS / 2;

    fn after_short_sleeps(patience: &mut Patience) -> u32 {
        for sleeps in 0..1000 {
            if patience.start_nap() {
                return sleeps;
            }
            patience.woke(SHORT, 2 * SPIN_NS);
        }
        panic!("it never naps")
    }

    /// Returns the number of short sleeps before each of eight naps. `end` ends each nap.
    fn sleeps_before_naps(patience: &mut Patience, end: impl Fn(&mut Patience)) -> [u32; 8] {
        std::array::from_fn(|_| {
            let sleeps = after_short_sleeps(patience);
            end(patience);
            sleeps
        })
    }

    #[test]
    fn spinning_in_vain_gets_shorter_until_it_pays() {
        let mut patience = Patience::default();
        assert_eq!(patience.spin(), SPIN_NS);
        patience.woke(LONG, LONG);
        assert_eq!(patience.spin(), SPIN_NS / 2);
        (0..20).for_each(|_| patience.woke(LONG, LONG));
        assert_eq!(patience.spin(), 0);
        patience.woke(SHORT, SPIN_NS);
        assert_eq!(patience.spin(), SPIN_NS >> (GIVEN_UP - 1), "it would have come while spinning");
        (1..GIVEN_UP).for_each(|_| patience.woke(LONG, SPIN_NS));
        assert_eq!(patience.spin(), SPIN_NS);
        patience.note_access(RegisterAccess::AwaitsReply);
        assert_eq!(patience.spin(), SPIN_FOR_ACCESS_NS);
        assert!(!patience.gives_way(), "somebody waits for it");
        patience.note_access(RegisterAccess::Posted);
        assert!(patience.gives_way());
        (0..ACCESSES).for_each(|_| patience.passed(1));
        assert_eq!(patience.spin(), SPIN_NS, "frames are another matter");
        assert!(!patience.gives_way());
    }

    #[test]
    fn naps_go_on_as_long_as_they_save_kicks() {
        let mut patience = Patience::default();
        assert_eq!(after_short_sleeps(&mut patience), NAP_AFTER.0);
        for _ in 0..3 {
            patience.passed(NAP_FRAMES);
            patience.passed(0);
            assert_eq!(patience.spin(), 0);
            assert!(patience.start_nap());
        }
        patience.passed(0);
        assert!(!patience.start_nap(), "nothing came: it is to be woken");
    }

    #[test]
    fn regression_naps_get_rarer_for_an_owner_that_fills_its_ring() {
        let mut patience = Patience::default();
        let sleeps = sleeps_before_naps(&mut patience, |patience| {
            patience.nap_was_too_long();
            patience.passed(64);
        });
        assert_eq!(sleeps, [2, 4, 8, 16, 32, 64, 64, 64]);
    }

    #[test]
    fn naps_get_rarer_for_an_owner_that_waits_for_answers() {
        let mut patience = Patience::default();
        let sleeps = sleeps_before_naps(&mut patience, |patience| patience.passed(1));
        assert_eq!(sleeps, [2, 4, 8, 16, 32, 64, 64, 64]);
        after_short_sleeps(&mut patience);
        patience.cut_short(false);
        patience.passed(1);
        assert!(patience.start_nap(), "a nap that a timer ended was judged");
        patience.cut_short(true);
        assert!(!patience.start_nap(), "somebody knocked");
    }
}
