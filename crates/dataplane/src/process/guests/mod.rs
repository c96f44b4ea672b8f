//! How the control thread serves the front ends of guests: messages, halves of ports, and
//! notifications.
//!
//! The control thread never waits for a front end. It reads complete messages only, queues replies
//! until the socket has room, and handles a bounded number of messages of each at a time.

mod card;
mod virtio;

use std::fmt::Display;
use std::sync::Arc;

use jail::strangers::Descriptor;
use port::Nanos;
use rustix::event::{PollFd, PollFlags};
use shmem::budget::Account;
use turn::attach::{AttachError, Attached};
use turn::clock;
use turn::serve::Served;
use turn::state::Activity;

use super::Process;
use crate::attach::card::VfioUser;
use crate::attach::guest::FrontEnd;
use crate::attach::virtio::VhostUser;
use crate::config::{Attachment, PortConfig, PortId};
use crate::log;
use crate::worker::Job;

/// A guest's front end, which the control thread serves.
#[derive(Debug)]
pub(super) enum Guest {
    /// The guest drives virtio-net queues: vhost-user.
    Virtio(Box<VhostUser>),
    /// The guest drives an emulated network card: vfio-user.
    Card(Box<VfioUser>),
}

impl Guest {
    /// The front end, by what both protocols have in common.
    pub(super) fn front_end(&self) -> &dyn FrontEnd {
        match self {
            Self::Virtio(guest) => &**guest,
            Self::Card(guest) => &**guest,
        }
    }

    /// Like [`front_end`](Self::front_end), but returns a mutable reference.
    pub(super) fn front_end_mut(&mut self) -> &mut dyn FrontEnd {
        match self {
            Self::Virtio(guest) => &mut **guest,
            Self::Card(guest) => &mut **guest,
        }
    }
}

impl Process {
    /// Adds the front ends' sockets to those to poll; `ids` gets the port of each. Returns when the
    /// first of the front ends that are skipped now is due again.
    pub(super) fn poll_guests<'a>(
        &'a self,
        fds: &mut Vec<PollFd<'a>>,
        ids: &mut Vec<PortId>,
        now: Nanos,
    ) -> Option<Nanos> {
        let mut rested = None;
        for (id, record) in self.ports.iter().enumerate() {
            let Some(record) = record else { continue };
            if let Some(until) = record.remakes.rests_until(now) {
                rested = Some(rested.map_or(until, |other: Nanos| other.min(until)));
                continue;
            }
            let guest = record.guest.as_ref().map(Guest::front_end);
            let Some((socket, send)) = guest.and_then(|guest| guest.waits()) else { continue };
            let also = if send { PollFlags::OUT } else { PollFlags::empty() };
            fds.push(PollFd::from_borrowed_fd(socket, PollFlags::IN | also));
            ids.push(id as PortId);
        }
        rested
    }

    fn take_guest(&mut self, id: PortId) -> Option<Guest> {
        self.ports.get_mut(usize::from(id))?.as_mut()?.guest.take()
    }

    fn put_back(&mut self, id: PortId, mut guest: Guest) {
        if self.has_failed(id) {
            // The guest's code panicked while a worker held it.
            guest.front_end_mut().lost_worker();
        }
        if let Some(Some(record)) = self.ports.get_mut(usize::from(id)) {
            record.guest = Some(guest);
        }
        self.note_memory(id);
    }

    /// Carries out the messages of a front end.
    pub(super) fn serve_guest(&mut self, id: PortId) {
        let Some(mut guest) = self.take_guest(id) else { return };
        match &mut guest {
            Guest::Virtio(guest) => self.serve_virtio(id, guest),
            Guest::Card(guest) => self.serve_card(id, guest),
        }
        self.put_back(id, guest);
    }

    /// Serves the front ends whose workers summoned this thread.
    pub(super) fn serve_summoned(&mut self) {
        for id in self.summons.take() {
            if self.rests(id) {
                self.resting.push(id);
                continue;
            }
            self.state.switch().control.serve(id, Activity::Message);
            self.serve_guest(id);
        }
    }

    /// Serves the front ends whose rest has ended.
    pub(super) fn wake_rested(&mut self) {
        let rested = std::mem::take(&mut self.resting);
        let (rest, heard) = rested.into_iter().partition(|id| self.rests(*id));
        self.resting = rest;
        heard.into_iter().for_each(|id: PortId| self.summons.ask(id));
    }

    fn rests(&mut self, id: PortId) -> bool {
        let now = clock();
        self.record(id).is_ok_and(|record| record.remakes.rests_until(now).is_some())
    }

    /// Replaces a port's halves. Returns once no worker uses the old ones, and drops them. A port
    /// whose code panicked gets none.
    pub(super) fn install(&mut self, id: PortId, attached: Attached) {
        let Some(worker) = self.record(id).ok().map(|record| record.worker) else { return };
        let began = clock();
        let old = self.release(id, worker);
        // If the port's code panicked, its worker has reported that by now.
        self.take_out_failed();
        if self.has_failed(id) {
            return;
        }
        let Attached { source, egresses, bells } = attached;
        self.instances += 1;
        let instance = self.instances;
        let Ok(record) = self.record(id) else { return };
        record.spec.instance = instance;
        record.spec.send_queues = source.queues() as u16;
        record.bells = bells;
        let ring = record.bells.clone();
        let counters = record.spec.counters.clone();
        let uid = record.config.uid;
        let policy = record.config.policy.clone();
        let receiving = record.links.receiving(&egresses, &policy, &record.spec.received);
        let unused = (
            std::mem::replace(&mut record.spec.egresses, egresses),
            std::mem::replace(&mut record.spec.linked, receiving.exits),
        );
        self.publish();
        drop(unused);
        if let Some(mut old) = old {
            old.abandon();
        }
        // Dropping the old halves returned buffers without waking the owner.
        ring.ring_all(clock());
        let served = Served::new(id, source, counters, clock());
        let state = self.state.port(id).map(|state| state.paid_by(self.users.of(uid)));
        let watch = state.and_then(|state| self.watch_of_new(true, &state));
        let Ok(record) = self.record(id) else { return };
        let served = served.linked(&policy, receiving.far, &mut record.links).watched(watch);
        self.common.workers[usize::from(worker)].send(Job::Serve(Box::new(served)));
        self.charge_remake(id, began);
    }

    /// Charges the front end for the work since `began`.
    pub(super) fn charge_remake(&mut self, id: PortId, began: Nanos) {
        if let Ok(record) = self.record(id) {
            record.remakes.charge(began, clock());
        }
    }

    /// Makes the port of a front end. The queues of a predecessor's session run from the port's
    /// first turn on, so that no frame is dropped.
    pub(super) fn attach_guest(
        &mut self,
        id: PortId,
        account: &Arc<Account>,
        config: &PortConfig,
        descriptors: Vec<Descriptor>,
        resume: bool,
    ) -> Result<(Attached, Guest), AttachError> {
        let state = self.state.port(id).ok_or(AttachError::Number(id))?;
        let state = state.paid_by(self.users.of(config.uid));
        let kept = self.restored.remove(&id);
        // The session cannot be continued: its front end must start over.
        let lost = kept.is_some() && !resume;
        let kept = kept.filter(|_| resume);
        let mut guest = match config.attachment {
            Attachment::VfioUser(nic) => {
                let port = (id, &state, account);
                Guest::Card(Box::new(self.new_card(port, config, descriptors, nic, kept)?))
            }
            _ => Guest::Virtio(Box::new(self.new_virtio(
                &state,
                account,
                config,
                descriptors,
                kept,
            )?)),
        };
        let front_end = guest.front_end_mut();
        if lost {
            front_end.end();
        }
        let attached = front_end.halves(clock())?;
        if resume {
            // The predecessor may have died after it published buffers and before it rang.
            attached.bells.ring_all(clock());
        }
        Ok((attached, guest))
    }

    /// Tells a port's front end of a new policy.
    pub(super) fn announce_policy(&mut self, id: PortId) {
        let Some(mut guest) = self.take_guest(id) else { return };
        if let Ok(policy) = self.record(id).map(|record| record.config.policy.clone()) {
            match &mut guest {
                Guest::Virtio(guest) => self.reoffer(id, guest, &policy),
                Guest::Card(guest) => self.replug(id, guest, &policy),
            }
        }
        self.put_back(id, guest);
    }

    /// Reports what is new about guests to the log and to the supervisor.
    pub(super) fn look_after_guests(&mut self) {
        let behind = std::mem::take(&mut self.behind);
        for id in 0..self.ports.len() as PortId {
            let Some(mut guest) = self.take_guest(id) else { continue };
            self.report_faults(id, guest.front_end_mut().new_faults());
            if behind {
                self.keep(id, guest.front_end_mut());
            }
            self.put_back(id, guest);
        }
    }

    fn report_faults(&self, id: PortId, news: Vec<(&'static str, String)>) {
        news.into_iter().for_each(|(reason, news)| self.say(id, reason, news));
    }

    /// Logs a sentence about a port.
    pub(super) fn say(&self, id: PortId, reason: &'static str, what: impl Display) {
        let record = self.ports.get(usize::from(id)).and_then(Option::as_ref);
        let name = record.map_or("", |record| &record.config.name);
        log::say(&format!("{}:{name}", self.switch), reason, what);
    }
}
