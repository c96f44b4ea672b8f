//! Emulated network cards, as the control thread serves them: messages that are no register accesses, the
//! halves of their models, and what the supervisor keeps so that a successor goes on.
//!
//! The socket is read by one thread at a time: the port's worker, until it finds a message that is not its
//! to carry out; then this one, until it finds one that is.

use std::sync::Arc;

use frame::Mac;
use jail::strangers::Descriptor;
use shmem::budget::Account;

use super::Process;
use crate::attach::card::message::ProtocolError;
use crate::attach::card::{Plug, Server};
use crate::attach::{AttachError, Attached, null};
use crate::config::{NicConfig, PortConfig, PortId};
use crate::state::Doing;
use crate::worker::{Job, clock};

/// Most messages that are taken of a front end before others have their turn.
const MESSAGES: usize = 64;

impl Process {
    fn take_device(&mut self, id: PortId) -> Option<Box<Server>> {
        self.ports.get_mut(usize::from(id))?.as_mut()?.device.take()
    }

    fn put_device_back(&mut self, id: PortId, mut device: Box<Server>) {
        if self.has_failed(id) {
            // It panicked meanwhile.
            device.end();
        }
        if let Some(Some(record)) = self.ports.get_mut(usize::from(id)) {
            record.device = Some(device);
        }
        self.note_memory(id);
    }

    /// Does what front ends ask of whom workers said so.
    pub(super) fn serve_devices(&mut self) {
        for id in self.summons.take() {
            if self.rests(id) {
                self.resting.push(id);
                continue;
            }
            let Some(mut device) = self.take_device(id) else { continue };
            self.state.switch().control.serve(id, Doing::Message);
            self.serve_device(id, &mut device);
            self.put_device_back(id, device);
        }
    }

    /// Serves those that have waited long enough.
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

    fn serve_device(&mut self, id: PortId, device: &mut Server) {
        match self.talk(id, device) {
            Ok(true) => {}
            // The rest has its turn after others.
            Ok(false) => return self.summons.ask(id),
            Err(error) => {
                if !matches!(error, ProtocolError::Closed) {
                    self.say(
                        id,
                        "disconnected",
                        format_args!("disconnected its front end: {error}"),
                    );
                }
                self.hush(id, device);
                device.end();
            }
        }
        for news in device.news() {
            self.say(id, "news", news);
        }
        if device.has_ended() {
            return;
        }
        if !device.is_live() {
            self.rouse(id, device);
        }
        device.unpark();
        if let Ok(record) = self.record(id) {
            let worker = usize::from(record.worker);
            self.common.workers[worker].send(Job::Wake(id));
        }
    }

    /// Carries messages out; false if there may be more.
    fn talk(&mut self, id: PortId, device: &mut Server) -> Result<bool, ProtocolError> {
        for _ in 0..MESSAGES {
            let Some(message) = device.next_message()? else { return Ok(true) };
            if message.needs_quiet() {
                self.hush(id, device);
            }
            let done = device.handle(message)?;
            // What is answered for must outlive this process; if it dies before, its successor finds
            // the message again.
            self.keep_device(id, device);
            device.done(&done)?;
        }
        Ok(false)
    }

    /// Takes a device's halves out of service; returns when no worker uses them, nor guest memory.
    fn hush(&mut self, id: PortId, device: &mut Server) {
        if !device.is_live() {
            return;
        }
        device.is_quiet();
        let down = self.state.port(id).and_then(|state| null::down(&state).ok());
        self.install(id, down.unwrap_or_else(null::vacant));
    }

    /// Makes a device's halves anew.
    fn rouse(&mut self, id: PortId, device: &mut Server) {
        match device.halves(clock()) {
            Ok(attached) => self.install(id, attached),
            Err(error) => {
                self.say(id, "disconnected", format_args!("disconnected its front end: {error}"));
                device.end();
            }
        }
    }

    /// Makes the port of an emulated network card. That of a predecessor goes on from the port's first
    /// turn.
    pub(super) fn attach_device(
        &mut self,
        (id, account): (PortId, &Arc<Account>),
        config: &PortConfig,
        files: (Descriptor, Option<Descriptor>),
        nic: NicConfig,
        resume: bool,
    ) -> Result<(Attached, Box<Server>), AttachError> {
        let state = self.state.port(id).ok_or(AttachError::Number(id))?;
        let state = state.paid_by(self.users.of(config.uid));
        let kept = self.restored.remove(&id);
        // A session that cannot be gone on with: the front end begins anew.
        let lost = kept.is_some() && !resume;
        let mac = config.policy.macs.first().copied();
        let mac = mac.unwrap_or_else(|| Mac::of_name(&format!("{}:{}", self.switch, config.name)));
        let (link, interrupts) = (config.policy.link, config.policy.interrupts);
        let plug = Plug { nic, mac, link, interrupts };
        let summons = Arc::clone(&self.summons);
        let kept = kept.filter(|_| resume);
        let mut device = Server::new(files, plug, (id, &state, account), kept, summons)?;
        if lost {
            device.end();
        }
        let attached =
            if device.has_ended() { null::down(&state)? } else { device.halves(clock())? };
        Ok((attached, Box::new(device)))
    }

    /// Tells a port's device of new rules.
    pub(super) fn replug(&mut self, id: PortId) {
        let Some(mut device) = self.take_device(id) else { return };
        if let Ok(record) = self.record(id) {
            let (link, worker) = (record.config.policy.link, record.worker);
            let interrupts = record.config.policy.interrupts;
            if device.set_interrupts(interrupts) && device.is_live() {
                self.hush(id, &mut device);
                self.rouse(id, &mut device);
            }
            if link != device.has_link() {
                let served = self.release(id, worker);
                device.set_link(link, clock());
                if let Some(served) = served {
                    self.common.workers[usize::from(worker)].send(Job::Serve(served));
                }
            }
        }
        self.put_device_back(id, device);
    }

    /// Says what is new of guests' devices. Tells the supervisor what it did not take, if it was `behind`.
    pub(super) fn look_after_devices(&mut self, behind: bool) {
        for id in 0..self.ports.len() as PortId {
            let Some(mut device) = self.take_device(id) else { continue };
            for news in device.news() {
                self.say(id, "news", news);
            }
            if behind {
                self.keep_device(id, &mut device);
            }
            self.put_device_back(id, device);
        }
    }

    fn keep_device(&mut self, id: PortId, device: &mut Server) {
        let now = device.to_keep();
        self.keep(id, &mut device.kept, now);
    }
}
