//! Front ends of virtual machines, as the control thread serves them: messages, the halves of their
//! queues, and what the supervisor keeps so that a successor goes on.
//!
//! A front end is never waited for: a message is read when it is all there, replies wait for room in its
//! socket, and each gets a bounded number of messages at a time.

use std::collections::HashMap;
use std::fmt::Display;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use jail::strangers::Descriptor;
use port::Nanos;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use shmem::budget::Account;

use super::{Process, Record};
use crate::attach::guest::kept::Kept;
use crate::attach::virtio::FrontEnd;
use crate::attach::virtio::message::{self, Message, ProtocolError};
use crate::attach::virtio::session::{Answer, Offer, Refused};
use crate::attach::{AttachError, Attached, null};
use crate::config::{Attachment, Policy, PortConfig, PortId};
use crate::control::{self, Answer as ControlAnswer, ChannelError};
use crate::log;
use crate::port_link;
use crate::serve::Served;
use crate::worker::{Job, clock};

/// Most messages that are taken of a front end before others have their turn.
const MESSAGES: usize = 32;

/// What is kept for ports that are about to be added again.
pub(super) type Restored = HashMap<PortId, Kept>;

impl Process {
    /// The front ends' sockets, to be waited for; `ids` gets the port of each.
    /// Returns when the first of those that are not heard now will be.
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
            let guest = record.guest.as_ref();
            let Some((socket, send)) = guest.and_then(|guest| guest.waits()) else { continue };
            let also = if send { PollFlags::OUT } else { PollFlags::empty() };
            fds.push(PollFd::from_borrowed_fd(socket, PollFlags::IN | also));
            ids.push(id as PortId);
        }
        rested
    }

    fn take_guest(&mut self, id: PortId) -> Option<Box<FrontEnd>> {
        self.ports.get_mut(usize::from(id))?.as_mut()?.guest.take()
    }

    /// Does what a front end asks.
    pub(super) fn serve_guest(&mut self, id: PortId) {
        let Some(mut guest) = self.take_guest(id) else { return };
        if let Err(error) = self.converse(id, &mut guest) {
            if !matches!(error, ProtocolError::Closed) {
                self.say(id, "disconnected", format_args!("disconnected its front end: {error}"));
            }
            guest.end();
            self.remake(id, &mut guest);
        }
        self.put_back(id, guest);
    }

    fn put_back(&mut self, id: PortId, mut guest: Box<FrontEnd>) {
        self.keep_guest(id, &mut guest);
        if let Some(Some(record)) = self.ports.get_mut(usize::from(id)) {
            record.guest = Some(guest);
        }
        self.note_memory(id);
    }

    fn converse(&mut self, id: PortId, guest: &mut FrontEnd) -> Result<(), ProtocolError> {
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
            // What was answered for must outlive this process; if it dies before, its successor
            // finds the message again.
            guest.answering = reply.is_some();
            self.keep_guest(id, guest);
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
                self.keep_guest(id, guest);
            }
        }
        Ok(())
    }

    /// Carries out what a message changed; what could not be done is said.
    fn carry_out(&mut self, id: PortId, guest: &mut FrontEnd, answer: &Answer) -> Option<Refused> {
        if let Answer::Announce(mac) = answer {
            guest.announce(*mac);
            return self.remake(id, guest);
        }
        let changes = guest.take_changes();
        if changes.rings {
            return self.remake(id, guest);
        }
        if changes.calls && guest.live {
            self.rehang_bells(id, guest);
        }
        None
    }

    /// Takes other eventfds, or other ways to ring them, into use.
    fn rehang_bells(&mut self, id: PortId, guest: &FrontEnd) {
        let bells = guest.bells();
        let began = clock();
        if let Some(Some(record)) = self.ports.get_mut(usize::from(id)) {
            record.bells = bells.clone();
        }
        self.publish();
        self.charge_remake(id, began);
        // An interrupt may have gone to an old one to nobody's notice, or have been put off there.
        bells.ring_all();
    }

    /// Makes a guest's halves anew: none of the old are in use when the first of the new is made.
    pub(super) fn remake(&mut self, id: PortId, guest: &mut FrontEnd) -> Option<Refused> {
        if !guest.live && !guest.wants_halves() {
            guest.begin_at_bases();
            return None;
        }
        let state = self.state.port(id)?;
        if guest.live {
            self.install(id, null::down(&state).ok()?);
        }
        if state.has_failed() {
            guest.begin_at_bases();
            return None;
        }
        let (attached, refused) = guest.halves().ok()?;
        self.install(id, attached);
        refused
    }

    /// Replaces a port's halves; returns when no worker uses the old ones, which are dropped. One whose
    /// code panicked gets none.
    pub(super) fn install(&mut self, id: PortId, attached: Attached) {
        let Some(worker) = self.record(id).ok().map(|record| record.worker) else { return };
        let began = clock();
        let old = self.release(id, worker);
        // If it panicked, its worker has said so by now.
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
        let receiving = port_link::receiving(&egresses, &policy, &record.spec.received);
        let unused = (
            std::mem::replace(&mut record.spec.egresses, egresses),
            std::mem::replace(&mut record.spec.linked, receiving.exits),
        );
        self.publish();
        drop(unused);
        if let Some(mut old) = old {
            old.abandon();
        }
        // Nobody was told of what the old halves gave back as they were dropped.
        ring.ring_all();
        let served = Served::new(id, source, counters, clock());
        let state = self.state.port(id).map(|state| state.paid_by(self.users.of(uid)));
        let watch = state.and_then(|state| self.watch_of_new(true, &state));
        let served = served.linked(&policy, receiving.far).watched(watch);
        self.common.workers[usize::from(worker)].send(Job::Serve(Box::new(served)));
        self.charge_remake(id, began);
    }

    /// Notes what its front end had this thread do since `began`.
    fn charge_remake(&mut self, id: PortId, began: Nanos) {
        if let Ok(record) = self.record(id) {
            record.remakes.charge(began, clock());
        }
    }

    /// Makes the port of a front end. Its queues run when it has said enough; those of a predecessor's
    /// session run on from the port's first turn, so that no frame finds them missing.
    pub(super) fn attach_guest(
        &mut self,
        (id, account): (PortId, &Arc<Account>),
        config: &PortConfig,
        socket: Descriptor,
        queue_pairs: u16,
        resume: bool,
    ) -> Result<(Attached, Box<FrontEnd>), AttachError> {
        let state = self.state.port(id).ok_or(AttachError::Number(id))?;
        let state = state.paid_by(self.users.of(config.uid));
        let kept = self.restored.remove(&id);
        // A session that cannot be gone on with: the front end begins anew.
        let lost = kept.is_some() && !resume;
        let offer = self.offer(&config.policy, queue_pairs);
        let mut guest = FrontEnd::new(socket, offer, (&state, account), kept.filter(|_| resume))?;
        if lost {
            guest.end();
        }
        guest.set_interrupts(config.policy.interrupts);
        let (attached, refused) = guest.halves()?;
        if let Some(refused) = refused {
            log::say(&format!("{}:{}", self.switch, config.name), "refused", refused);
        }
        if resume {
            // The predecessor may have died between publishing and kicking.
            attached.bells.ring_all();
        }
        Ok((attached, Box::new(guest)))
    }

    /// What a port of these rules offers its guest.
    fn offer(&self, policy: &Policy, queue_pairs: u16) -> Offer {
        let mtu = policy.mtu.min(self.inner_mtu);
        Offer { queue_pairs, mac: policy.macs.first().copied(), mtu, link: policy.link }
    }

    /// Tells guests of another MTU, if tunnels that came or went have one.
    pub(super) fn measure_tunnels(&mut self) {
        let mtu = |record: &Record| match &record.config.attachment {
            Attachment::Vxlan(tunnel) => tunnel.mtu,
            _ => None,
        };
        // What IPv4 needs at least (RFC 791, 3.2): a path with less is no path.
        let mtus = self.ports.iter().flatten().filter_map(mtu).filter(|mtu| *mtu >= 68);
        let inner_mtu = mtus.min().unwrap_or(u16::MAX);
        if std::mem::replace(&mut self.inner_mtu, inner_mtu) != inner_mtu {
            (0..self.ports.len()).for_each(|id| self.reoffer(id as PortId));
        }
    }

    /// Tells a port's front end of new rules.
    pub(super) fn reoffer(&mut self, id: PortId) {
        let Some(mut guest) = self.take_guest(id) else { return };
        let Ok(record) = self.record(id) else { return };
        let policy = record.config.policy.clone();
        if guest.set_offer(self.offer(&policy, guest.queue_pairs())) {
            self.remake(id, &mut guest);
        }
        if guest.set_interrupts(policy.interrupts) && guest.live {
            self.rehang_bells(id, &guest);
        }
        self.put_back(id, guest);
    }

    /// Tells front ends of queues that their guests broke, and says it once. Tells the supervisor what it
    /// did not take.
    pub(super) fn look_after_guests(&mut self) {
        let behind = std::mem::take(&mut self.behind);
        self.look_after_devices(behind);
        for id in 0..self.ports.len() as PortId {
            let Some(guest) = self.ports[usize::from(id)].as_mut().and_then(|r| r.guest.as_mut())
            else {
                continue;
            };
            for (queue, fault) in guest.new_faults() {
                self.say(id, "stopped", format_args!("queue {queue} stopped: {fault}"));
            }
            if behind && let Some(guest) = self.take_guest(id) {
                self.put_back(id, guest);
            }
        }
    }

    /// Says something of a port in the log.
    pub(super) fn say(&self, id: PortId, reason: &'static str, what: impl Display) {
        let record = self.ports.get(usize::from(id)).and_then(Option::as_ref);
        let name = record.map_or("", |record| &record.config.name);
        log::say(&format!("{}:{name}", self.switch), reason, what);
    }

    fn keep_guest(&mut self, id: PortId, guest: &mut FrontEnd) {
        let now = guest.to_keep();
        self.keep(id, &mut guest.kept, now);
    }

    /// Keeps what a successor of this process needs of a session where it outlives this process; `kept` is
    /// what is there.
    pub(super) fn keep(&mut self, id: PortId, kept: &mut Kept, now: Kept) {
        let Some(supervisor) = self.supervisor.as_ref().filter(|_| !self.behind) else { return };
        match tell_changes(supervisor.as_fd(), id, kept, &now) {
            Ok(()) => *kept = now,
            // It is slow, or stopped: nobody else is to wait for it.
            Err(ChannelError::Io(Errno::AGAIN | Errno::TOOMANYREFS)) => self.behind = true,
            // The next supervisor asks for everything.
            Err(_) => self.supervisor = None,
        }
    }

    /// Sends a supervisor everything that is kept.
    pub(super) fn list_kept(&mut self, to: BorrowedFd<'_>) -> Result<(), ChannelError> {
        let records = self.ports.iter_mut().enumerate();
        for (id, record) in records.filter_map(|(id, record)| Some((id, record.as_mut()?))) {
            if let Some(guest) = &mut record.guest {
                let kept = guest.to_keep();
                tell_changes(to, id as PortId, &Kept::new(), &kept)?;
                guest.kept = kept;
            }
            if let Some(device) = &mut record.device {
                let kept = device.to_keep();
                tell_changes(to, id as PortId, &Kept::new(), &kept)?;
                device.kept = kept;
            }
        }
        Ok(())
    }

    /// Takes back what a port's predecessor kept.
    pub(super) fn restore(
        &mut self,
        id: PortId,
        uid: u32,
        (key, value): (String, serde_json::Value),
        mut descriptors: Vec<Descriptor>,
    ) -> Result<ControlAnswer, String> {
        let kept = self.restored.entry(id).or_default();
        let descriptor = descriptors.pop().map(|descriptor| descriptor.charged_to(uid));
        kept.insert(key, (value, descriptor.map(Arc::new)));
        Ok(ControlAnswer::Done)
    }
}

/// Tells the keeper what of a port's things is new, other, or not needed any more.
fn tell_changes(
    to: BorrowedFd<'_>,
    id: PortId,
    old: &Kept,
    new: &Kept,
) -> Result<(), ChannelError> {
    let same = |a: &Option<Arc<Descriptor>>, b: &Option<Arc<Descriptor>>| match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        (a, b) => a.is_none() && b.is_none(),
    };
    let changed = new.iter().filter(|(key, (value, fd))| {
        old.get(*key).is_none_or(|(old_value, old_fd)| old_value != value || !same(old_fd, fd))
    });
    // "session", which names the others, comes behind them in their order.
    for (key, (value, fd)) in changed {
        let uid = fd.as_ref().map_or(0, |fd| fd.uid());
        let keep = ControlAnswer::Keep { id, uid, key: key.clone(), value: value.clone() };
        let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
        control::send(to, &keep, &fds)?;
    }
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        control::send(to, &ControlAnswer::Forget { id, key: key.clone() }, &[])?;
    }
    Ok(())
}
