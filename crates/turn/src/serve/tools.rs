//! What a worker serves ports with.

use fabric::{Fdb, Finisher, Forwarder, Ports, Recorder};
use port::{MapGuard, Nanos, Scratch, SoleWorker};
use shmem::Shared;

use super::fair::Fair;
use crate::attach::Exit;

/// The tools of a worker for serving ports.
#[derive(Debug)]
pub struct Tools {
    /// What moves batches through the switch.
    pub forwarder: Forwarder,
    pub(super) scratch: Box<Scratch>,
    /// Scratches to replace those that stalled senders hold.
    #[expect(clippy::vec_box, reason = "lent and given back: pointers move, not kilobytes")]
    pub(super) spare: Vec<Box<Scratch>>,
    pub(super) batch: usize,
    /// Whose turn it is.
    pub fair: Fair,
    /// Cuts what ports send over links; made when the first does.
    pub(super) finisher: Option<Box<Finisher>>,
    /// Nanoseconds that a sender waits for a lossless receiver.
    pub stall_timeout: u64,
    /// Records frames for observers of the switch.
    recorder: Shared<Recorder>,
}

impl Tools {
    /// Tools for batches of this size. `sole` is for the only worker of its switch.
    pub fn new(
        batch: u16,
        stall_timeout: u64,
        sole: Option<SoleWorker>,
        recorder: Shared<Recorder>,
    ) -> Self {
        let batch = usize::from(batch.clamp(1, 1024));
        Self {
            forwarder: Forwarder::new(batch).with_sole(sole).recording(recorder.clone()),
            scratch: Box::new(Scratch::new(batch)),
            spare: Vec::new(),
            batch,
            fair: Fair::default(),
            finisher: None,
            stall_timeout,
            recorder,
        }
    }

    /// Changes the batch size and the stall timeout.
    pub fn set(&mut self, batch: u16, stall_timeout: u64) {
        let sole = self.forwarder.take_sole();
        *self = Self::new(batch, stall_timeout, sole, self.recorder.clone());
    }

    /// Replaces the tools, which a panic may have left inconsistent.
    pub fn renew(&mut self) {
        self.set(self.batch as u16, self.stall_timeout);
    }
}

/// The switch, as a turn sees it.
#[derive(Clone, Copy, Debug)]
pub struct Switch<'a> {
    /// Its ports.
    pub ports: &'a Ports<Exit>,
    /// The forwarding table.
    pub fdb: &'a Fdb,
    /// Vouches for the mappings of all ports.
    pub map: &'a MapGuard<'a>,
    /// The time of the turn.
    pub now: Nanos,
    /// Nothing new is gathered, because the data process is about to exit.
    pub draining: bool,
    /// No owner of a port ever sleeps, so wake-ups and their fences are left out.
    pub sleepless: bool,
}
