//! The receive queues of all kinds of ports, as the switch calls them.

use std::sync::Arc;

use port::{
    Batch, Delivered, Effects, Egress, FrameIdx, Limits, Nanos, OffloadSet, Picked, Software,
    SoleWorker,
};

use super::ring::ReceiveQueue;

/// A receive queue of any kind of port. Ring queues are a variant of their own: traffic to many
/// ports goes through thousands of them, so the compiler inlines their code into the switch's
/// loops.
#[derive(Clone)]
pub struct Exit(Kind);

#[derive(Clone)]
enum Kind {
    Ring(Arc<ReceiveQueue>),
    Other(Arc<dyn Egress>),
}

impl Exit {
    pub(super) fn ring(queue: Arc<ReceiveQueue>) -> Self {
        Self(Kind::Ring(queue))
    }

    /// Reads again what the slots of a ring hold besides frames: its owner has changed it.
    pub fn read_format(&self) {
        if let Kind::Ring(queue) = &self.0 {
            queue.read_format();
        }
    }

    /// Puts the buffers that the client of a ring has not taken yet back into the ring's slots. No
    /// worker may use the ring any more.
    pub fn return_buffers(&self) {
        if let Kind::Ring(queue) = &self.0 {
            queue.return_buffers();
        }
    }
}

impl<E: Egress + 'static> From<Arc<E>> for Exit {
    fn from(egress: Arc<E>) -> Self {
        Self(Kind::Other(egress))
    }
}

impl From<Arc<dyn Egress>> for Exit {
    fn from(egress: Arc<dyn Egress>) -> Self {
        Self(Kind::Other(egress))
    }
}

impl std::fmt::Debug for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match &self.0 {
            Kind::Ring(_) => "Exit(ring)",
            Kind::Other(_) => "Exit",
        })
    }
}

/// Calls a method on the variant's own type.
macro_rules! each {
    ($exit:ident, $egress:ident => $call:expr) => {
        match &$exit.0 {
            Kind::Ring($egress) => $call,
            Kind::Other($egress) => $call,
        }
    };
}

impl Egress for Exit {
    #[inline(always)]
    fn deliver(&self, batch: &Batch<'_>, list: &[FrameIdx], limits: Limits) -> Delivered {
        each!(self, egress => egress.deliver(batch, list, limits))
    }

    fn deliver_copies(
        &self,
        batch: &Batch<'_>,
        list: &[FrameIdx],
        limits: Limits,
        sent: bool,
    ) -> Delivered {
        each!(self, egress => egress.deliver_copies(batch, list, limits, sent))
    }

    fn lost(&self) -> u64 {
        each!(self, egress => egress.lost())
    }

    #[inline(always)]
    fn deliver_one(&self, frame: Picked<'_>, limits: Limits, sole: Option<&SoleWorker>) -> bool {
        each!(self, egress => egress.deliver_one(frame, limits, sole))
    }

    #[inline(always)]
    fn settle(&self, now: Nanos) -> Effects {
        each!(self, egress => egress.settle(now))
    }

    fn takes(&self) -> OffloadSet {
        each!(self, egress => egress.takes())
    }

    fn count_software(&self, done: Software) {
        each!(self, egress => egress.count_software(done));
    }

    fn is_throttled(&self, now: Nanos) -> bool {
        each!(self, egress => egress.is_throttled(now))
    }

    #[inline(always)]
    fn prefetch_self(&self) {
        each!(self, egress => egress.prefetch_self());
    }

    #[inline(always)]
    fn prefetch(&self) {
        each!(self, egress => egress.prefetch());
    }
}
