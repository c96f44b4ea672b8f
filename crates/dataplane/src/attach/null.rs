//! Ports with nobody behind them: one that takes everything, and one that waits for its client.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use port::{
    Batch, Delivered, DropReason, Effects, Egress, EgressCounters, FrameIdx, Ingress, Limits, Nanos,
};
use shmem::Shared;

use super::{AttachError, Attached, Source};
use crate::state::PortState;

/// A port that takes every frame and sends none.
///
/// # Errors
/// [`AttachError`] when its counters are missing.
pub fn attach(state: &PortState) -> Result<Attached, AttachError> {
    let expected = "counters in the state memory";
    let counters = state.egress(0).ok_or(AttachError::Descriptors { expected })?;
    let egress = NullEgress { counters: Mutex::new(counters) };
    Ok(Attached { source: Box::new(Silent), egresses: vec![Arc::new(egress)], token: None })
}

/// A configured port whose client is not there: no member of the switch until it comes.
#[must_use]
pub fn vacant() -> Attached {
    Attached { source: Box::new(Silent), egresses: Vec::new(), token: None::<Arc<OwnedFd>> }
}

/// An owner that never sends.
pub(crate) struct Silent;

impl Source for Silent {
    fn queues(&self) -> usize {
        0
    }

    fn queue(&mut self, _queue: usize) -> &mut dyn Ingress {
        unreachable!("a silent port has no send queue")
    }
}

struct NullEgress {
    counters: Mutex<Shared<EgressCounters>>,
}

impl Egress for NullEgress {
    fn deliver(&self, batch: &Batch<'_>, list: &[FrameIdx], limits: Limits) -> Delivered {
        let counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |i: &&FrameIdx| batch.frame(**i).len() <= limits.max_frame as usize;
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
}
