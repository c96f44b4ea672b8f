//! Ports without an owner: one discards every frame, one waits for its client, one has an owner
//! that does not receive.

use std::sync::{Arc, Mutex, PoisonError};

use port::{
    Batch, Delivered, DropReason, Effects, Egress, EgressCounters, FrameIdx, Ingress, Limits,
    Nanos, OffloadSet,
};
use shmem::Shared;

use super::{AttachError, Attached, Bells, Source};
use crate::state::PortState;

/// A port that discards every frame and sends none.
///
/// # Errors
/// [`AttachError`] when its counters are missing.
pub fn attach(state: &PortState) -> Result<Attached, AttachError> {
    silent(state, |counters| NullEgress { counters })
}

/// A configured port whose client is absent. It is not a member of the switch until the client
/// comes.
#[must_use]
pub fn vacant() -> Attached {
    Attached { source: Box::new(Silent), egresses: Vec::new(), bells: Bells::None }
}

/// A port whose owner is present but does not receive.
///
/// # Errors
/// [`AttachError`] when its counters are missing.
pub fn down(state: &PortState) -> Result<Attached, AttachError> {
    silent(state, |counters| DownEgress { counters })
}

/// A port that sends no frames, with an egress that counts.
fn silent<E: Egress + 'static>(
    state: &PortState,
    egress: impl FnOnce(Mutex<Shared<EgressCounters>>) -> E,
) -> Result<Attached, AttachError> {
    let counters = state.egress(0).ok_or(AttachError::Counters)?;
    let egresses = vec![Arc::new(egress(Mutex::new(counters))).into()];
    Ok(Attached { source: Box::new(Silent), egresses, bells: Bells::None })
}

struct DownEgress {
    counters: Mutex<Shared<EgressCounters>>,
}

impl Egress for DownEgress {
    fn deliver(&self, _batch: &Batch<'_>, list: &[FrameIdx], _limits: Limits) -> Delivered {
        let counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        counters.drop_frames(DropReason::Down, list.len() as u64);
        Delivered { finished: list.len() }
    }

    fn settle(&self, _now: Nanos) -> Effects {
        Effects::default()
    }
}

/// An owner that never sends.
#[derive(Debug)]
pub struct Silent;

impl Source for Silent {
    fn queues(&self) -> usize {
        0
    }

    fn queue(&mut self, _queue: usize) -> Option<&mut dyn Ingress> {
        None
    }
}

struct NullEgress {
    counters: Mutex<Shared<EgressCounters>>,
}

impl Egress for NullEgress {
    fn deliver(&self, batch: &Batch<'_>, list: &[FrameIdx], limits: Limits) -> Delivered {
        let counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |i: &&FrameIdx| batch.wire_len(**i) <= limits.max_frame as usize;
        let (mut frames, mut bytes) = (0, 0);
        for i in list.iter().filter(fits) {
            frames += 1;
            bytes += batch.frame(*i).len() as u64;
        }
        counters.frames.add(frames);
        counters.bytes.add(bytes);
        counters.drop_frames(DropReason::TooLong, list.len() as u64 - frames);
        Delivered { finished: list.len() }
    }

    fn settle(&self, _now: Nanos) -> Effects {
        Effects::default()
    }

    fn takes(&self) -> OffloadSet {
        OffloadSet::ALL
    }
}
