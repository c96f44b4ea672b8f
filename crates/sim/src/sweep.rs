//! Many seeds, the smallest fault that breaks one, and runs that must be the same.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::chance::Chance;
use crate::trace::Trace;
use crate::world::{Fault, SimError, World};

/// A test of one seed: makes a world, and draws what goes wrong in it.
#[derive(Debug)]
pub struct Trial {
    seed: u64,
    /// Of the faults that are drawn, those that happen; `None` for all.
    kept: Option<Vec<usize>>,
    drawn: Vec<(Duration, Fault)>,
    quiet: bool,
}

impl Trial {
    fn new(seed: u64, kept: Option<Vec<usize>>, quiet: bool) -> Self {
        Self { seed, kept, drawn: Vec::new(), quiet }
    }

    /// A world of this trial's seed.
    #[must_use]
    pub fn world(&self) -> World {
        let mut world = World::new(self.seed);
        world.quiet = self.quiet;
        world
    }

    /// Draws `number` moments of the time `during`, and lets a fault happen at each, which `draw`
    /// chooses. If the seed fails, the smallest part of them is looked for that fails, too.
    pub fn faults(
        &mut self,
        world: &mut World,
        number: usize,
        during: Range<Duration>,
        mut draw: impl FnMut(&mut Chance) -> Fault,
    ) {
        let mut chance = world.chance("faults");
        let span = u64::try_from((during.end - during.start).as_nanos()).unwrap_or(u64::MAX);
        for _ in 0..number {
            let at = during.start + Duration::from_nanos(chance.below(span));
            let (place, fault) = (self.drawn.len(), draw(&mut chance));
            if self.kept.as_ref().is_none_or(|kept| kept.contains(&place)) {
                world.at(at, fault.clone());
            }
            self.drawn.push((at, fault));
        }
    }
}

type Outcome = Result<(), String>;

fn run<E: std::fmt::Display>(
    trial: &mut Trial,
    test: &impl Fn(&mut Trial) -> Result<(), E>,
) -> Outcome {
    match catch_unwind(AssertUnwindSafe(|| test(trial))) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(text.unwrap_or("it panicked").to_owned())
        }
    }
}

/// Runs `test` with each seed. If one fails, it is run again with ever fewer of its
/// [faults](Trial::faults), until none can be left out.
///
/// # Panics
/// A seed fails. The message has the seed, the faults that are enough, and the error.
#[expect(clippy::panic, reason = "it is an assertion")]
pub fn sweep<E: std::fmt::Display>(seeds: Range<u64>, test: impl Fn(&mut Trial) -> Result<(), E>) {
    for seed in seeds {
        let mut trial = Trial::new(seed, None, true);
        let Err(mut why) = run(&mut trial, &test) else { continue };
        let drawn = trial.drawn;
        let mut kept: Vec<usize> = (0..drawn.len()).collect();
        let mut at = 0;
        while at < kept.len() {
            let mut fewer = kept.clone();
            fewer.remove(at);
            match run(&mut Trial::new(seed, Some(fewer.clone()), true), &test) {
                Err(also) => (kept, why) = (fewer, also),
                Ok(()) => at += 1,
            }
        }
        // Once more, to leave its frames.
        let _ = run(&mut Trial::new(seed, Some(kept.clone()), false), &test);
        let faults: Vec<String> = kept
            .iter()
            .map(|place| format!("{:?} at {:?}", drawn[*place].1, drawn[*place].0))
            .collect();
        let (few, all) = (kept.len(), drawn.len());
        panic!("seed {seed} fails with {few} of {all} faults ({}): {why}", faults.join(", "));
    }
}

/// Runs what `run` makes of a seed twice, and compares all frames. So code that reads a clock, or
/// depends on addresses or on the order of a hash table, is found.
///
/// # Errors
/// As `run` says; [`SimError::Differs`] with the first frame that differs.
pub fn same(
    seed: u64,
    mut run: impl FnMut(&mut World) -> Result<(), SimError>,
) -> Result<u64, SimError> {
    let mut once = || {
        let mut world = World::new(seed);
        world.trace().borrow_mut().steps = Some(Vec::new());
        world.keep_frames();
        run(&mut world)?;
        Ok::<_, SimError>(world)
    };
    let (first, second) = (once()?, once()?);
    let steps = |world: &World| world.trace().borrow_mut().steps.take().unwrap_or_default();
    let (ours, theirs) = (steps(&first), steps(&second));
    let differs = ours.iter().zip(&theirs).position(|(ours, theirs)| ours != theirs);
    let shorter = (ours.len() != theirs.len()).then(|| ours.len().min(theirs.len()));
    let Some(frame) = differs.or(shorter) else { return Ok(first.hash()) };
    let names = second.names();
    let what = second
        .seen()
        .get(frame)
        .map(|seen| Trace::decoded(seen, names.get(seen.host.0).copied().unwrap_or_default()));
    let what = what.unwrap_or_else(|| "the second run has no such frame".to_owned());
    Err(SimError::Differs { seed, frame, what })
}
