//! A guest's virtio-net queues over the vhost-user protocol, as QEMU, Cloud Hypervisor and DPDK's
//! virtio-user speak it.
//!
//! ```text
//!   front end ---- socket: messages, descriptors ----> VhostUser (control thread): Session, its rings
//!       |                                                     | halves(): made again when rings
//! change
//!   guest memory, mapped by both                              v
//!       +---- queues, kicks (eventfds) ----> worker: Queues (Source, Transmit), Receive (Egress)
//! ```
//!
//! Workers see the ingresses and egresses of running queues only. What a queue depends on (memory,
//! addresses, features) never changes under it. Its half is taken out of service and dropped, and a
//! new half continues at the position in the state memory. Without a running receive queue, frames
//! to the port are dropped as `down`.
//!
//! A front end that breaks the protocol is disconnected, and its port waits for the next one. If a
//! guest breaks a queue, that queue stops and the others run on. The fault is counted and logged
//! once, and the front end is told through the queue's error eventfd.

pub mod message;
pub mod session;
mod source;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use frame::Mac;
use jail::strangers::Descriptor;
use nic::virtio::{Features, QueueConfig, QueueError, QueueState, Receive, Transmit};
use port::{Egress, Nanos};
use rustix::io::Errno;
use rustix::net::SendFlags;
use serde::{Deserialize, Serialize};
use shmem::Shared;
use shmem::budget::Account;
use turn::attach::{AttachError, Attached, Bells, Exit, null};
use turn::state::{self, PortState};

use self::message::{ProtocolError, Receiver};
use self::session::{Changes, Offer, Refused, Session};
use self::source::{Announcement, Queues, Unplugged, VirtioQueue};
use super::guest::FrontEnd;
use super::guest::bells::{Bell, Eventfds};
use super::guest::kept::Kept;
use super::guest::moderation::Moved;
use crate::attach::Kind;
use crate::config::Interrupts;

/// A guest's virtio-net queues over the vhost-user protocol. Descriptors: the socket connected to
/// the front end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VhostUserConfig {
    /// The maximum number of pairs of queues (at most 16).
    pub queue_pairs: u16,
}

impl Kind for VhostUserConfig {
    fn has_stranger(&self) -> bool {
        true
    }

    fn lends_memory(&self) -> bool {
        true
    }

    fn hangup_fd(&self) -> Option<usize> {
        Some(0)
    }
}

/// The name in the persistent state that says that a reply is being sent. It sorts last.
const ANSWERING: &str = "~answering";
/// The maximum number of bytes of replies that wait for a front end to read.
const MAX_UNSENT: usize = 64 << 10;

/// The direction of a virtqueue, as its guest sees it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Receive,
    Transmit,
}

impl Direction {
    /// Receive and transmit queues alternate (Virtio 1.3, 5.1.2).
    const fn of(queue: usize) -> Self {
        if queue.is_multiple_of(2) { Self::Receive } else { Self::Transmit }
    }
}

/// A front end, which the control thread serves.
pub struct VhostUser {
    socket: Descriptor,
    receiver: Receiver,
    /// The session: what the front end and this process have negotiated.
    pub session: Session,
    state: PortState,
    queue_pairs: usize,
    link: bool,
    interrupts: Interrupts,
    /// Replies for which the socket had no room, and the file that belongs to the reply at that
    /// offset.
    unsent: Vec<u8>,
    unsent_file: Option<(usize, Arc<Descriptor>)>,
    /// The message is about to be taken from the socket, and its reply sent.
    pub answering: bool,
    /// The guest's address, which is to be announced to the network.
    announce: Option<Mac>,
    /// The state that the keeper has.
    kept: Kept,
    /// The front end has disconnected.
    ended: bool,
    /// The port's halves have running queues.
    live: bool,
    /// For each queue: its fault was already reported.
    said: Box<[bool]>,
    /// The reason why the first halves lack a queue, if they do.
    refused: Option<Refused>,
}

impl std::fmt::Debug for VhostUser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VhostUser").field("live", &self.live).field("ended", &self.ended).finish()
    }
}

impl VhostUser {
    /// A front end on a connected socket, whose memory is charged to `account`. `kept` is a
    /// predecessor's session.
    ///
    /// # Errors
    /// [`AttachError`] when the socket cannot be used.
    pub fn new(
        socket: Descriptor,
        offer: Offer,
        state: &PortState,
        account: &Arc<Account>,
        kept: Option<Kept>,
    ) -> Result<Self, AttachError> {
        let expected = "a stream socket to a vhost-user front end";
        let kind = rustix::net::sockopt::socket_type(&socket);
        if kind != Ok(rustix::net::SocketType::STREAM) {
            return Err(AttachError::Descriptors { expected });
        }
        let queue_pairs = usize::from(offer.queue_pairs.clamp(1, state::RINGS as u16));
        let offer = Offer { queue_pairs: queue_pairs as u16, ..offer };
        let known = |kept: &&Kept| !kept.contains_key(ANSWERING);
        let restore =
            |kept| Some(kept).filter(known).and_then(|kept| Session::restore(offer, kept, account));
        let restored = kept.as_ref().map(restore);
        // A session that is not whole was being changed when its process died. If a reply was being
        // sent, the front end might wait for it forever. In both cases the front end must start
        // over.
        let ended = matches!(restored, Some(None));
        let mut this = Self {
            socket,
            receiver: Receiver::default(),
            session: restored.flatten().unwrap_or_else(|| Session::new(offer, account)),
            state: state.clone(),
            queue_pairs,
            link: offer.link,
            interrupts: Interrupts::default(),
            unsent: Vec::new(),
            unsent_file: None,
            answering: false,
            announce: None,
            kept: kept.unwrap_or_default(),
            ended: false,
            live: false,
            said: vec![false; 2 * queue_pairs].into(),
            refused: None,
        };
        if this.kept.is_empty() {
            (0..2 * queue_pairs).filter_map(|queue| this.queue(queue)).for_each(|q| q.start_at(0));
        }
        if ended {
            this.end();
        }
        Ok(this)
    }

    /// Receives the next message, if it is complete.
    ///
    /// # Errors
    /// [`ProtocolError`]: the front end has to be [disconnected](Self::end).
    pub fn receive(&mut self) -> Result<Option<message::Message>, ProtocolError> {
        if self.ended {
            return Ok(None);
        }
        self.flush()?;
        self.state.payer().call(|| self.receiver.receive(&self.socket))
    }

    /// Notes that the last message is carried out and its persistent state is kept.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn done(&mut self) -> Result<(), ProtocolError> {
        self.state.payer().call(|| self.receiver.done(&self.socket))
    }

    /// Sends a reply, or queues it until the socket has room.
    ///
    /// # Errors
    /// [`ProtocolError`] when the front end reads nothing, or is gone.
    pub fn send(
        &mut self,
        bytes: &[u8],
        file: Option<Arc<Descriptor>>,
    ) -> Result<(), ProtocolError> {
        let second = file.is_some() && self.unsent_file.is_some();
        if self.unsent.len() + bytes.len() > MAX_UNSENT || second {
            return Err(ProtocolError::Unread);
        }
        if let Some(file) = file {
            self.unsent_file = Some((self.unsent.len(), file));
        }
        self.unsent.extend(bytes);
        self.flush()
    }

    fn flush(&mut self) -> Result<(), ProtocolError> {
        while !self.unsent.is_empty() {
            let (until, file) = match &self.unsent_file {
                Some((0, file)) => (self.unsent.len(), Some(file.as_fd())),
                Some((at, _)) => (*at, None),
                None => (self.unsent.len(), None),
            };
            let bytes = &self.unsent[..until];
            let send = || message::send_bytes(&self.socket, bytes, file.as_slice());
            match self.state.payer().call(send) {
                Ok(sent) => {
                    drop(self.unsent.drain(..sent));
                    let after = |(at, file): (usize, _)| Some((at.checked_sub(sent)?, file));
                    self.unsent_file = self.unsent_file.take().and_then(after);
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// True if a queue is to run, or a frame is to be sent for the guest.
    #[must_use]
    pub fn wants_halves(&self) -> bool {
        self.announce.is_some() || (0..2 * self.queue_pairs).any(|queue| self.is_running(queue))
    }

    fn is_running(&self, queue: usize) -> bool {
        !self.ended && self.session.is_running(queue)
    }

    /// Announces the guest's address with the next halves.
    pub fn announce(&mut self, mac: Mac) {
        self.announce = Some(mac);
    }

    /// Takes what messages have changed since the last call.
    pub fn take_changes(&mut self) -> Changes {
        let changes = self.session.take_changes();
        // The halves of a port without a link hold calls themselves.
        Changes { rings: changes.rings || changes.calls && !self.link, ..changes }
    }

    /// Changes the offer; true if that needs new halves.
    pub fn set_offer(&mut self, offer: Offer) -> bool {
        if self.session.set_offer(offer)
            && let Some(channel) = self.session.config_channel()
        {
            let told = message::notification(message::code::BACKEND_CONFIG_CHANGE);
            // A front end that does not read the channel misses the notification.
            let _ = rustix::net::send(channel, &told, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
        std::mem::replace(&mut self.link, offer.link) != offer.link
    }

    /// Sets the moderation of interrupts for the next [`bells`](Self::bells); true if it changed.
    pub fn set_interrupts(&mut self, interrupts: Interrupts) -> bool {
        std::mem::replace(&mut self.interrupts, interrupts) != interrupts
    }

    /// The maximum number of pairs of queues that the front end may use.
    #[must_use]
    pub fn queue_pairs(&self) -> u16 {
        self.queue_pairs as u16
    }

    /// The bells of the queues that the current halves serve.
    #[must_use]
    pub fn bells(&self) -> Bells {
        let moved = |queue: usize| Moved {
            sent: self.state.ingress(),
            received: self.state.egress(queue / 2).into_iter().collect(),
            only_sent: Direction::of(queue) == Direction::Transmit,
        };
        let calls = |direction| {
            let is_of = |queue: &usize| Direction::of(*queue) == direction;
            let queues = (0..2 * self.queue_pairs).filter(is_of).filter(|q| self.is_running(*q));
            let bell = |queue: usize| {
                let call = self.session.rings()[queue].call.clone()?;
                let call = self.state.payer().eventfd(call);
                Some(Arc::new(Bell::new(call, self.interrupts, moved(queue))))
            };
            queues.map(bell).collect()
        };
        let egress = if self.link { calls(Direction::Receive) } else { Box::default() };
        Bells::Guest(Arc::new(Eventfds { ingress: calls(Direction::Transmit), egress }))
    }

    /// The position and state of a queue.
    #[must_use]
    pub fn queue(&self, queue: usize) -> Option<Shared<QueueState>> {
        match Direction::of(queue) {
            Direction::Receive => self.state.receive_queue(queue / 2),
            Direction::Transmit => self.state.transmit(queue / 2),
        }
    }

    /// The position of a queue, as the front end gets it when it stops the queue.
    #[must_use]
    pub fn base(&self, queue: u32) -> u32 {
        let packed = self.session.features().contains(Features::RING_PACKED);
        self.queue(queue as usize).map_or(0, |state| state.base(packed))
    }

    /// Makes halves of the queues that are to run. No other halves may use these queues. A queue
    /// that cannot run is stopped and returned as refused.
    ///
    /// # Errors
    /// [`AttachError`] when counters are missing.
    pub fn make_halves(&mut self) -> Result<(Attached, Option<Refused>), AttachError> {
        self.begin_at_bases();
        let _ = self.take_changes();
        self.live = self.wants_halves();
        let (mut receivers, mut queues, mut refused) = (Vec::new(), Vec::new(), None);
        for queue in 0..2 * self.queue_pairs {
            if !self.is_running(queue) {
                continue;
            }
            let made = match Direction::of(queue) {
                Direction::Receive => self.receive_half(queue).map(|half| receivers.push(half)),
                Direction::Transmit => self.transmit_half(queue).map(|half| queues.push(half)),
            };
            self.session.set_adopted(queue);
            if let Err(why) = made {
                self.stop(queue);
                refused = Some(Refused::Ring { queue, why });
            }
        }
        let mut attached = null::down(&self.state)?;
        let announcement = self.announce.take().zip(self.state.ingress());
        let announcement = announcement.map(|(mac, counters)| Announcement::new(mac, counters));
        attached.source = Box::new(Queues { queues, announcement });
        attached.bells = self.bells();
        if self.link && !receivers.is_empty() {
            attached.egresses = receivers.into_iter().map(Exit::from).collect();
        }
        Ok((attached, refused))
    }

    /// Moves queues to the positions that the front end has set.
    pub fn begin_at_bases(&mut self) {
        for queue in 0..2 * self.queue_pairs {
            let state = self.queue(queue);
            let Some(ring) = self.session.ring_mut(queue) else { continue };
            if let (Some(base), Some(state)) = (ring.base.take(), state) {
                state.start_at(base);
                self.said[queue] = false;
            }
        }
    }

    fn config(&self, queue: usize) -> Result<QueueConfig, QueueError> {
        let session = &self.session;
        let ring = session.rings().get(queue).cloned().unwrap_or_default();
        let (memory, layout) = (Arc::clone(session.memory()), session.layout(&ring));
        let state = self.queue(queue).ok_or(QueueError::Size(0))?;
        let dirty = session.dirty_log().cloned();
        let inflight = session.inflight(queue)?;
        Ok(QueueConfig { memory, layout, features: session.features(), state, dirty, inflight })
    }

    fn transmit_half(&self, queue: usize) -> Result<VirtioQueue, QueueError> {
        let missing = QueueError::Size(0);
        let ring = self.session.rings().get(queue).ok_or(missing)?;
        let kick = ring.kick.clone().ok_or(missing)?;
        let counters = self.state.ingress().ok_or(missing)?;
        let transmit = Transmit::new(self.config(queue)?, counters.clone())?;
        let unplugged = (!self.link).then(|| {
            let call = ring.call.clone().map(|call| self.state.payer().eventfd(call));
            Unplugged::new(counters, call)
        });
        Ok(VirtioQueue { transmit, kick, unplugged })
    }

    fn receive_half(&self, queue: usize) -> Result<Arc<dyn Egress>, QueueError> {
        let counters = self.state.egress(queue / 2).ok_or(QueueError::Size(0))?;
        Ok(Arc::new(Receive::new(self.config(queue)?, counters)?))
    }

    /// Takes a queue out of service and tells the front end.
    fn stop(&mut self, queue: usize) {
        if let Some(ring) = self.session.ring_mut(queue) {
            ring.kick = None;
            let error = ring.error.clone();
            error.into_iter().for_each(|error| self.state.payer().eventfd(error).wake());
        }
    }
}

impl FrontEnd for VhostUser {
    fn waits(&self) -> Option<(BorrowedFd<'_>, bool)> {
        (!self.ended).then(|| (self.socket.as_fd(), !self.unsent.is_empty()))
    }

    fn halves(&mut self, _now: Nanos) -> Result<Attached, AttachError> {
        let (attached, refused) = self.make_halves()?;
        self.refused = refused;
        Ok(attached)
    }

    fn is_live(&self) -> bool {
        self.live
    }

    /// The front end's queues stop when the port's next halves are made.
    fn end(&mut self) {
        self.ended = true;
        self.socket.hang_up();
    }

    fn to_keep(&self) -> Kept {
        let mut kept = self.session.kept();
        if self.answering || !self.unsent.is_empty() {
            kept.insert(ANSWERING.into(), Default::default());
        }
        kept
    }

    fn kept(&mut self) -> &mut Kept {
        &mut self.kept
    }

    /// Also tells the front end of queues that its guest broke.
    fn new_faults(&mut self) -> Vec<(&'static str, String)> {
        let refused = self.refused.take().map(|refused| ("refused", refused.to_string()));
        let mut news: Vec<_> = refused.into_iter().collect();
        for queue in 0..2 * self.queue_pairs {
            let fault = self.queue(queue).and_then(|state| state.fault());
            let Some(fault) = fault.filter(|_| !self.said[queue]) else { continue };
            self.said[queue] = true;
            let error = self.session.rings().get(queue).and_then(|ring| ring.error.clone());
            error.into_iter().for_each(|error| self.state.payer().eventfd(error).wake());
            news.push(("stopped", format!("queue {queue} stopped: {fault}")));
        }
        news
    }
}
