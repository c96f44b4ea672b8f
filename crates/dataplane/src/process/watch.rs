//! How the control thread finds ports whose memory delays workers (see [`crate::suspicion`]).

use port::Nanos;
use turn::port_link::Change;
use turn::state::PortState;
use turn::user::Payer;

use super::{Process, Record};
use crate::suspicion::{SLOW_NS, Seen, Step, timed};
use crate::worker::Job;

/// The counters of workers and users at the last look.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    slow: u64,
    waited: u64,
    touches: u64,
}

impl Process {
    /// Checks how long turns took; called once a second.
    pub(super) fn look_for_held_up_turns(&mut self, now: Nanos) {
        let workers = (0..self.common.workers.len()).filter_map(|n| self.state.worker(n));
        let told = Told {
            slow: workers.map(|worker| worker.turns.from(SLOW_NS)).fold(0, u64::wrapping_add),
            waited: self.common.waited(),
            touches: self.users.touches(),
        };
        let before = std::mem::replace(&mut self.told, told);
        let seen = Seen {
            slow: told.slow.saturating_sub(before.slow),
            waited: told.waited - before.waited,
            touches: told.touches - before.touches,
        };
        match self.suspicion.look(seen, now) {
            Step::Nothing => (),
            Step::Measure => {
                let until = now + Nanos::SECOND;
                self.common.workers.iter().for_each(|worker| worker.send(Job::Measure(until)));
            }
            Step::Watch => self.watch_ports(),
            Step::Relax => self.relax_ports(),
        }
    }

    /// Makes ports send copies, then times what they receive. So no timed delivery reads a sender's
    /// memory.
    fn watch_ports(&mut self) {
        self.change_watch(|payer| Some(payer.clone()));
        self.publish();
        // All workers have begun a pass since the table was published, so from here on they deliver
        // only copies.
        self.timed = true;
        self.publish();
    }

    fn relax_ports(&mut self) {
        self.timed = false;
        self.publish();
        self.change_watch(|_| None);
    }

    fn change_watch(&self, watch: impl Fn(&Payer) -> Option<Payer>) {
        for record in self.ports.iter().flatten() {
            if let Some(payer) = self.watch_of(record) {
                let change = Change::Watch(watch(&payer));
                let worker = &self.common.workers[usize::from(record.worker)];
                worker.send(Job::Link(record.spec.id, change));
            }
        }
    }

    /// The user who pays for accesses to a port's memory, if the port's owner lends any.
    fn watch_of(&self, record: &Record) -> Option<Payer> {
        let id = record.spec.id;
        let lends = record.config.attachment.lends_memory() && !self.has_failed(id);
        let state = lends.then(|| self.state.port(id)).flatten()?;
        Some(state.paid_by(self.users.of(record.config.uid)).payer().clone())
    }

    /// The payer for touches of the memory of a port that is being added, if ports are watched.
    pub(super) fn watch_of_new(&self, lends: bool, state: &PortState) -> Option<Payer> {
        (lends && self.suspicion.watches()).then(|| state.payer().clone())
    }

    /// The ports' entries for the table, with timed receive queues where ports are watched.
    pub(super) fn watched_specs(&self) -> Option<Vec<fabric::PortSpec<turn::attach::Exit>>> {
        let watch = |record: &Record| {
            let mut spec = record.spec.clone();
            if let Some(payer) = self.watch_of(record) {
                let exits = if spec.linked.is_empty() { &spec.egresses } else { &spec.linked };
                spec.linked = timed(exits, &payer);
            }
            spec
        };
        self.timed.then(|| self.ports.iter().flatten().map(watch).collect())
    }
}
