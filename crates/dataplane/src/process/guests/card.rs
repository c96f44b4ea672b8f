//! Front ends of emulated network cards, which speak vfio-user.
//!
//! One thread at a time reads the socket. The port's worker does until it finds a message that it
//! may not carry out. Then the control thread does until it finds one for the worker.

use std::sync::Arc;

use frame::Mac;
use jail::strangers::Descriptor;
use shmem::budget::Account;
use turn::attach::{AttachError, null};
use turn::clock;
use turn::state::PortState;

use crate::attach::card::message::ProtocolError;
use crate::attach::card::{Plug, VfioUser};
use crate::attach::guest::FrontEnd;
use crate::attach::guest::kept::Kept;
use crate::config::{NicConfig, Policy, PortConfig, PortId};
use crate::process::Process;
use crate::worker::Job;

/// The maximum number of messages of a front end that are carried out before others get their turn.
const MESSAGES: usize = 64;

impl Process {
    /// A session on a connected socket. `kept` is a predecessor's session.
    pub(super) fn new_card(
        &self,
        port: (PortId, &PortState, &Arc<Account>),
        config: &PortConfig,
        descriptors: Vec<Descriptor>,
        nic: NicConfig,
        kept: Option<Kept>,
    ) -> Result<VfioUser, AttachError> {
        let mut descriptors = descriptors.into_iter();
        let expected = "a socket to a front end";
        let socket = descriptors.next().ok_or(AttachError::Descriptors { expected })?;
        let files = (socket, descriptors.next());
        let mac = config.policy.macs.first().copied();
        let mac = mac.unwrap_or_else(|| Mac::of_name(&format!("{}:{}", self.switch, config.name)));
        let (link, interrupts) = (config.policy.link, config.policy.interrupts);
        let plug = Plug { nic, mac, link, interrupts };
        VfioUser::new(files, plug, port, kept, Arc::clone(&self.summons))
    }

    /// Carries out the messages of a front end, then passes its socket back to the worker.
    pub(super) fn serve_card(&mut self, id: PortId, card: &mut VfioUser) {
        match self.serve_messages(id, card) {
            Ok(true) => {}
            // The remaining messages are carried out after those of other front ends.
            Ok(false) => return self.summons.ask(id),
            Err(error) => {
                if !matches!(error, ProtocolError::Closed) {
                    self.say(
                        id,
                        "disconnected",
                        format_args!("disconnected its front end: {error}"),
                    );
                }
                self.suspend_device(id, card);
                card.end();
            }
        }
        self.report_faults(id, card.new_faults());
        if card.has_ended() {
            return;
        }
        if !card.is_live() {
            self.resume_device(id, card);
        }
        card.unpark();
        if let Ok(record) = self.record(id) {
            let worker = usize::from(record.worker);
            self.common.workers[worker].send(Job::Wake(id));
        }
    }

    /// Carries out messages; false if there may be more.
    fn serve_messages(&mut self, id: PortId, card: &mut VfioUser) -> Result<bool, ProtocolError> {
        for _ in 0..MESSAGES {
            let Some(message) = card.next_message()? else { return Ok(true) };
            if message.needs_quiet() {
                self.suspend_device(id, card);
            }
            let done = card.handle(message);
            // The effects must outlive this process before the answer is sent. If the process dies
            // before, its successor finds the message again.
            self.keep(id, card);
            card.done(&done)?;
        }
        Ok(false)
    }

    /// Takes a device's halves out of service. Returns once no worker uses them, nor guest memory.
    fn suspend_device(&mut self, id: PortId, card: &mut VfioUser) {
        if !card.is_live() {
            return;
        }
        card.is_quiet();
        let down = self.state.port(id).and_then(|state| null::down(&state).ok());
        self.install(id, down.unwrap_or_else(null::vacant));
    }

    /// Makes a device's halves again.
    fn resume_device(&mut self, id: PortId, card: &mut VfioUser) {
        let began = clock();
        let halves = card.halves(began);
        // The front end decides how long the memory table is.
        self.charge_remake(id, began);
        match halves {
            Ok(attached) => self.install(id, attached),
            Err(error) => {
                self.say(id, "disconnected", format_args!("disconnected its front end: {error}"));
                card.end();
            }
        }
    }

    /// Applies a new policy to a card.
    pub(super) fn replug(&mut self, id: PortId, card: &mut VfioUser, policy: &Policy) {
        if card.set_interrupts(policy.interrupts) && card.is_live() {
            self.suspend_device(id, card);
            self.resume_device(id, card);
        }
        if policy.link == card.has_link() {
            return;
        }
        let Ok(worker) = self.record(id).map(|record| record.worker) else { return };
        let served = self.release(id, worker);
        card.set_link(policy.link, clock());
        if let Some(served) = served {
            self.common.workers[usize::from(worker)].send(Job::Serve(served));
        }
    }
}
