//! Front ends that speak vhost-user: the control thread reads their sockets.

use std::sync::Arc;

use jail::strangers::Descriptor;
use shmem::budget::Account;
use turn::attach::{AttachError, null};
use turn::clock;
use turn::state::PortState;

use crate::attach::guest::FrontEnd;
use crate::attach::guest::kept::Kept;
use crate::attach::one;
use crate::attach::virtio::VhostUser;
use crate::attach::virtio::message::{self, Message, ProtocolError};
use crate::attach::virtio::session::{Answer, Offer, Refused};
use crate::config::{Attachment, Policy, PortConfig, PortId};
use crate::process::{Process, Record};

/// The maximum number of messages of a front end that are carried out before others get their turn.
const MESSAGES: usize = 32;

impl Process {
    /// A session on a connected socket. `kept` is a predecessor's session.
    pub(super) fn new_virtio(
        &self,
        state: &PortState,
        account: &Arc<Account>,
        config: &PortConfig,
        descriptors: Vec<Descriptor>,
        kept: Option<Kept>,
    ) -> Result<VhostUser, AttachError> {
        let queue_pairs = match config.attachment {
            Attachment::VhostUser(config) => config.queue_pairs,
            _ => 1,
        };
        let socket = one(descriptors, "a socket to a front end")?;
        let offer = self.offer(&config.policy, queue_pairs);
        let mut guest = VhostUser::new(socket, offer, state, account, kept)?;
        guest.set_interrupts(config.policy.interrupts);
        Ok(guest)
    }

    /// Carries out the messages of a front end.
    pub(super) fn serve_virtio(&mut self, id: PortId, guest: &mut VhostUser) {
        if let Err(error) = self.converse(id, guest) {
            if !matches!(error, ProtocolError::Closed) {
                self.say(id, "disconnected", format_args!("disconnected its front end: {error}"));
            }
            guest.end();
            self.remake(id, guest);
        }
        self.keep(id, guest);
    }

    fn converse(&mut self, id: PortId, guest: &mut VhostUser) -> Result<(), ProtocolError> {
        for _ in 0..MESSAGES {
            let Some(Message { code, need_reply, request }) = guest.receive()? else { break };
            let answer = guest.session.handle(request)?;
            let answer = answer.and_then(|answer| match self.carry_out(id, guest, &answer) {
                Some(refused) => Err(refused),
                None => Ok(answer),
            });
            let acknowledge = guest.session.is_acknowledged(need_reply);
            let acknowledged = |status: u64| acknowledge.then(|| status.to_ne_bytes().into());
            let file = match &answer {
                Ok(Answer::File(_, file)) => Some(Arc::clone(file)),
                _ => None,
            };
            let reply: Option<Vec<u8>> = match &answer {
                Ok(Answer::Bytes(bytes) | Answer::File(bytes, _)) => Some(bytes.clone()),
                Ok(Answer::Base(queue)) => {
                    Some([*queue, guest.base(*queue)].map(u32::to_ne_bytes).concat())
                }
                Ok(_) => acknowledged(0),
                Err(_) => acknowledged(1),
            };
            // The effects must outlive this process before the reply is sent. If the process dies
            // before, its successor finds the message again.
            guest.answering = reply.is_some();
            self.keep(id, guest);
            guest.done()?;
            guest.session.taken();
            if let Err(refused) = answer {
                self.say(id, "refused", &refused);
                if !acknowledge && !refused.is_provisional() {
                    return Err(ProtocolError::Refused);
                }
            }
            if let Some(reply) = reply {
                guest.send(&message::reply(code, &reply), file)?;
                guest.answering = false;
                self.keep(id, guest);
            }
        }
        Ok(())
    }

    /// Applies the changes of a message. What is refused is logged.
    fn carry_out(&mut self, id: PortId, guest: &mut VhostUser, answer: &Answer) -> Option<Refused> {
        if let Answer::Announce(mac) = answer {
            guest.announce(*mac);
            return self.remake(id, guest);
        }
        let changes = guest.take_changes();
        if changes.rings {
            return self.remake(id, guest);
        }
        if changes.calls && guest.is_live() {
            self.replace_bells(id, guest);
        }
        None
    }

    /// Replaces the eventfds of queues, or their moderation.
    fn replace_bells(&mut self, id: PortId, guest: &VhostUser) {
        let bells = guest.bells();
        let began = clock();
        if let Some(Some(record)) = self.ports.get_mut(usize::from(id)) {
            record.bells = bells.clone();
        }
        self.publish();
        self.charge_remake(id, began);
        // An interrupt may have gone to an old eventfd that is not read any more, or may be
        // deferred there.
        bells.ring_all(clock());
    }

    /// Makes a guest's halves again. The old ones are out of use before the first new one is made.
    fn remake(&mut self, id: PortId, guest: &mut VhostUser) -> Option<Refused> {
        if !guest.is_live() && !guest.wants_halves() {
            guest.begin_at_bases();
            return None;
        }
        let state = self.state.port(id)?;
        if guest.is_live() {
            self.install(id, null::down(&state).ok()?);
        }
        if state.has_failed() {
            guest.begin_at_bases();
            return None;
        }
        let (attached, refused) = guest.make_halves().ok()?;
        self.install(id, attached);
        refused
    }

    /// What a port with this policy offers to its guest.
    fn offer(&self, policy: &Policy, queue_pairs: u16) -> Offer {
        let mtu = policy.mtu.min(self.inner_mtu);
        Offer { queue_pairs, mac: policy.macs.first().copied(), mtu, link: policy.link }
    }

    /// Tells guests their new MTU after a tunnel was added or removed.
    pub(in crate::process) fn measure_tunnels(&mut self) {
        let mtu = |record: &Record| match &record.config.attachment {
            Attachment::Vxlan(tunnel) => tunnel.mtu,
            _ => None,
        };
        // The least that IPv4 needs (RFC 791, 3.2). Tunnels with less do not count.
        let mtus = self.ports.iter().flatten().filter_map(mtu).filter(|mtu| *mtu >= 68);
        let inner_mtu = mtus.min().unwrap_or(u16::MAX);
        if std::mem::replace(&mut self.inner_mtu, inner_mtu) != inner_mtu {
            (0..self.ports.len()).for_each(|id| self.announce_policy(id as PortId));
        }
    }

    /// Applies a new policy to a front end.
    pub(super) fn reoffer(&mut self, id: PortId, guest: &mut VhostUser, policy: &Policy) {
        if guest.set_offer(self.offer(policy, guest.queue_pairs())) {
            self.remake(id, guest);
        }
        if guest.set_interrupts(policy.interrupts) && guest.is_live() {
            self.replace_bells(id, guest);
        }
        self.keep(id, guest);
    }
}
