//! Where the time of a packet goes: stamps at the borders between the stages of its way.
//!
//! ```text
//!   scope(Stage::Deliver)                          the time until now belongs to the stage before
//!     +-- scope(Stage::Copy) ... dropped           an inner stage's time is not its outer stage's
//!   dropped                                        the outer stage goes on
//! ```
//!
//! Each border reads the processor's time stamp counter once. The counter does not wait for earlier
//! instructions, so neighbours share some cycles. Without the feature `stamps`, a scope is no
//! instruction at all.

/// A stage of a packet's way from one application to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Stage {
    /// None of the others: what measures.
    Outside,
    /// The sending or receiving application.
    Application,
    /// Headers, checksums, neighbours and sockets.
    Stack,
    /// Slots and descriptors, on the guest's side.
    Driver,
    /// Publishing to the device, and register accesses.
    Kick,
    /// The device's or port's sending side: reads and checks what the guest has published.
    Gather,
    /// Heads, addresses, rules, the forwarding table.
    Switch,
    /// The device's or port's receiving side: filters, and finds room.
    Deliver,
    /// Copies a frame into the receiver's memory.
    Copy,
    /// Hands copied frames over, and decides whether to wake the receiver.
    Publish,
    /// Wakes the receiver: the interrupt, and what the receiver does about it.
    WakeUp,
}

impl Stage {
    /// The number of stages.
    pub const COUNT: usize = 11;
}

/// What each stage has taken, by its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Ticks of the time stamp counter.
    pub ticks: [u64; Stage::COUNT],
    /// Stamps at which the stage ended. Each has cost it about one stamp's time.
    pub stamps: [u64; Stage::COUNT],
}

/// True if stages are told apart.
pub const STAMPED: bool = cfg!(feature = "stamps");

/// A stage's time, until this is dropped.
#[must_use = "the stage ends where its scope is dropped"]
#[derive(Debug)]
pub struct Scope {
    #[cfg(feature = "stamps")]
    outer: Stage,
}

/// Begins a stage within the current one.
#[inline(always)]
pub fn scope(stage: Stage) -> Scope {
    #[cfg(feature = "stamps")]
    return Scope { outer: on::enter(stage) };
    #[cfg(not(feature = "stamps"))]
    {
        let _ = stage;
        Scope {}
    }
}

#[cfg(feature = "stamps")]
impl Drop for Scope {
    #[inline(always)]
    fn drop(&mut self) {
        on::enter(self.outer);
    }
}

/// The stage that this thread is in; [`Stage::Outside`] without the feature `stamps`.
#[must_use]
pub fn current() -> Stage {
    #[cfg(feature = "stamps")]
    return on::current();
    #[cfg(not(feature = "stamps"))]
    Stage::Outside
}

/// What this thread's stages have taken since the last call. `None` without the feature `stamps`.
#[must_use]
pub fn take() -> Option<Spent> {
    #[cfg(feature = "stamps")]
    return Some(on::take());
    #[cfg(not(feature = "stamps"))]
    None
}

/// The processor's time stamp counter; nanoseconds where there is none that programs may read.
#[inline(always)]
#[must_use]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction, which touches no memory.
    return unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
    {
        use std::sync::OnceLock;
        use std::time::Instant;
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }
}

#[cfg(feature = "stamps")]
mod on {
    use std::cell::Cell;

    use super::{Spent, Stage, ticks};

    struct Clock {
        stage: Cell<Stage>,
        since: Cell<u64>,
        /// By stage: ticks, and stamps.
        spent: [Cell<(u64, u64)>; Stage::COUNT],
    }

    thread_local! {
        static CLOCK: Clock = const {
            Clock {
                stage: Cell::new(Stage::Outside),
                since: Cell::new(0),
                spent: [const { Cell::new((0, 0)) }; Stage::COUNT],
            }
        };
    }

    /// Ends the current stage, which is returned, and begins another one.
    #[inline(always)]
    pub(super) fn enter(stage: Stage) -> Stage {
        CLOCK.with(|clock| {
            let now = ticks();
            let before = clock.stage.replace(stage);
            let since = clock.since.replace(now);
            let spent = &clock.spent[before as usize];
            let (ticks, stamps) = spent.get();
            spent.set((ticks + now.wrapping_sub(since), stamps + 1));
            before
        })
    }

    pub(super) fn current() -> Stage {
        CLOCK.with(|clock| clock.stage.get())
    }

    pub(super) fn take() -> Spent {
        CLOCK.with(|clock| {
            let mut all = Spent::default();
            for (stage, spent) in clock.spent.iter().enumerate() {
                (all.ticks[stage], all.stamps[stage]) = spent.take();
            }
            clock.since.set(ticks());
            all
        })
    }
}

#[cfg(all(test, feature = "stamps"))]
mod tests {
    use super::*;

    /// Waits until the counter has gone on by `by`.
    fn pass(by: u64) {
        let start = ticks();
        while ticks() - start < by {}
    }

    #[test]
    fn an_inner_stage_is_not_counted_for_the_outer_one() {
        let _ = take();
        let outer = scope(Stage::Deliver);
        pass(1000);
        let inner = scope(Stage::Copy);
        assert_eq!(current(), Stage::Copy);
        pass(50_000_000);
        drop(inner);
        assert_eq!(current(), Stage::Deliver);
        pass(1000);
        drop(outer);
        let spent = take().unwrap();
        let of = |stage: Stage| (spent.ticks[stage as usize], spent.stamps[stage as usize]);
        assert!(of(Stage::Copy).0 >= 50_000_000);
        assert!(of(Stage::Deliver).0 >= 2000);
        assert_eq!((of(Stage::Copy).1, of(Stage::Deliver).1, of(Stage::Outside).1), (1, 2, 1));
        assert_eq!(take().unwrap().stamps, [0; Stage::COUNT]);
    }
}

#[cfg(all(test, not(feature = "stamps")))]
mod tests {
    use super::*;

    #[test]
    fn without_the_feature_a_scope_is_nothing() {
        assert_eq!(size_of::<Scope>(), 0);
        assert!(!std::mem::needs_drop::<Scope>());
        let _scope = scope(Stage::Copy);
        assert_eq!((take(), current()), (None, Stage::Outside));
    }
}
