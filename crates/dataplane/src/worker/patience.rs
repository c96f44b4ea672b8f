//! How long a worker waits for what, in `auto`.

use crate::attach::Heard;

/// How long a worker spins at most after the last frame before it sleeps.
const SPIN_NS: u64 = 50_000;
/// The same after an access to a card's registers. A virtual processor waits for most of them, and two threads
/// of its front end are woken between one access and the next: if those find this processor idle, they use it,
/// and are slower by several wake-ups across processors each time. For doorbells that nobody waits for it pays,
/// too: with 50 us a ping of an e1000e guest took 340 us instead of 205.
const SPIN_FOR_ACCESS_NS: u64 = 500_000;
/// For so many passes with frames.
const ACCESSES: u32 = 64;
/// Spinning in vain so often in a row ends it.
const GIVEN_UP: u32 = 5;
/// How long a worker naps at most. With 100 us, a guest that floods another took twice as many interrupts.
pub(super) const NAP_NS: u64 = 400_000;
/// So many frames after a nap were worth it: as many kicks were saved.
const NAP_FRAMES: usize = 4;
/// Least and most sleeps in a row that a kick ended early before a worker naps instead.
const NAP_AFTER: (u32, u32) = (2, 64);

/// How a worker waits in `auto`, as it turned out to pay.
///
/// It spins as long as what it waits for comes within [`SPIN_NS`], and less if it does not: spinning in vain
/// takes the processor from guests. Where owners wake it as soon as it sleeps, spinning for them was in
/// vain too, because they share its processor: then it *naps*, without having asked for kicks, and looks
/// at what they have made meanwhile. An owner that makes no more until it is served is not napped on, be it
/// that it waits for an answer or that its ring is full.
#[derive(Debug)]
pub(super) struct Patience {
    /// Passes with frames after which accesses to registers are forgotten.
    accesses: u32,
    /// Somebody waited for the last of them.
    asked: bool,
    /// How much more often that was in vain than not: the next time it is half as long for each.
    in_vain: u32,
    /// Sleeps in a row that were short.
    short: u32,
    /// How many of them are to come before the next nap.
    nap_after: u32,
    /// It has had a whole nap.
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
    /// How long to spin, in nanoseconds.
    pub fn spin(&self) -> u64 {
        let over = self.short >= self.nap_after || self.in_vain >= GIVEN_UP;
        if over { 0 } else { self.most() >> self.in_vain }
    }

    /// True if others that share the processor are to run while it spins. For doorbells it spins so long that it
    /// would have it to itself, and who rings the next one may be waiting for it: with this, e1000e guests send an
    /// eighth more in bursts. Where an answer is waited for, it would come late: pcnet32 guests send a third less,
    /// and round trips of programs take 40 us instead of 32.
    pub fn gives_way(&self) -> bool {
        self.accesses > 0 && !self.asked
    }

    /// How long to spin at most.
    fn most(&self) -> u64 {
        if self.accesses > 0 { SPIN_FOR_ACCESS_NS } else { SPIN_NS }
    }

    /// True if the worker is to nap.
    pub fn begin_nap(&mut self) -> bool {
        self.napping = self.short >= self.nap_after;
        self.napping
    }

    /// It slept for `slept`, `waited` after the last frame.
    pub fn woke(&mut self, slept: u64, waited: u64) {
        self.in_vain = match waited <= self.most() {
            true => self.in_vain.saturating_sub(1),
            false => GIVEN_UP.min(self.in_vain + 1),
        };
        self.short = if slept <= SPIN_NS { self.short + 1 } else { 0 };
    }

    /// Something ended the nap before its time. A timer says nothing about naps; an owner who knocks though
    /// nobody asked for it, as sockets do, is not to be napped on.
    pub fn cut_short(&mut self, by_owner: bool) {
        self.napping = false;
        if by_owner {
            self.napped_in_vain();
        }
    }

    /// It napped until its time, or until a timer's; an owner had filled its ring by then.
    pub fn overslept(&mut self) {
        self.napping = false;
        self.napped_in_vain();
    }

    /// Registers of a card were accessed.
    pub fn heard(&mut self, heard: Heard) {
        self.accesses = ACCESSES;
        self.asked = heard == Heard::Asked;
    }

    /// A pass found so many frames.
    #[inline]
    pub fn passed(&mut self, frames: usize) {
        self.accesses = self.accesses.saturating_sub(u32::from(frames > 0));
        if !std::mem::take(&mut self.napping) {
            return;
        }
        match frames {
            // The traffic is over.
            0 => (self.short, self.nap_after) = (0, NAP_AFTER.0),
            1..NAP_FRAMES => self.napped_in_vain(),
            _ => self.nap_after = NAP_AFTER.0,
        }
    }

    fn napped_in_vain(&mut self) {
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
            if patience.begin_nap() {
                return sleeps;
            }
            patience.woke(SHORT, 2 * SPIN_NS);
        }
        panic!("it never naps")
    }

    /// How many short sleeps come before each of eight naps that end in this way.
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
        patience.heard(Heard::Asked);
        assert_eq!(patience.spin(), SPIN_FOR_ACCESS_NS);
        assert!(!patience.gives_way(), "somebody waits for it");
        patience.heard(Heard::Told);
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
            assert!(patience.begin_nap());
        }
        patience.passed(0);
        assert!(!patience.begin_nap(), "nothing came: it is to be woken");
    }

    #[test]
    fn regression_who_fills_its_ring_is_napped_on_ever_more_rarely() {
        let mut patience = Patience::default();
        let sleeps = sleeps_before_naps(&mut patience, |patience| {
            patience.overslept();
            patience.passed(64);
        });
        assert_eq!(sleeps, [2, 4, 8, 16, 32, 64, 64, 64]);
    }

    #[test]
    fn who_waits_for_an_answer_is_napped_on_ever_more_rarely() {
        let mut patience = Patience::default();
        let sleeps = sleeps_before_naps(&mut patience, |patience| patience.passed(1));
        assert_eq!(sleeps, [2, 4, 8, 16, 32, 64, 64, 64]);
        after_short_sleeps(&mut patience);
        patience.cut_short(false);
        patience.passed(1);
        assert!(patience.begin_nap(), "a nap that a timer ended was judged");
        patience.cut_short(true);
        assert!(!patience.begin_nap(), "somebody knocked");
    }
}
