//! The state of a vhost-user session, and how messages change it.
//!
//! A session does not know workers: it says what has [changed](Session::take_changes), and its port
//! makes the rings' halves again. A request that cannot be met is [`Refused`]: the front end is
//! told if it asked for an acknowledgement; otherwise the session ends.
//!
//! Order of messages: a ring runs once features, memory, address and kick are there, in any order.
//! If the front end negotiated protocol features, it must also enable the ring. (QEMU sends
//! `SET_VRING_ENABLE` before `SET_FEATURES`.)

mod inflight;
mod kept;
mod offer;

use std::sync::Arc;

use frame::Mac;
use jail::strangers::{Descriptor, is_event, is_unix_stream};
use nic::virtio::{Features, QueueLayout};
use shmem::budget::Account;
use shmem::{DirtyLog, GuestMemory};

use self::inflight::Areas;
use self::kept::Counted;
pub use self::offer::Offer;
use super::message::{ProtocolError, Request, RingAddress};
use crate::attach::guest::memory::{self, MemoryError, Region, Slot};
use abi::vhost_user::{PROTOCOL_FEATURES, protocol};

/// vhost's own feature bit: log written pages.
const LOG_ALL: u64 = 1 << 26;
/// The protocol features that are offered.
const OFFERED: u64 = protocol::MQ
    | protocol::LOG_SHMFD
    | protocol::RARP
    | protocol::REPLY_ACK
    | protocol::MTU
    | protocol::BACKEND_REQ
    | protocol::CONFIG
    | protocol::INFLIGHT_SHMFD
    | protocol::RESET_DEVICE
    | protocol::CONFIGURE_MEM_SLOTS
    | protocol::STATUS;

/// The reason why a request was refused. The session can go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// Features that were not offered.
    #[error("The front end wants features {0:#x}, which were not offered")]
    Features(u64),
    /// Memory that is not used.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A size that no ring can have.
    #[error("A ring cannot have {0} entries: 1 to 32768, and without RING_PACKED a power of two")]
    Size(u32),
    /// A ring that is not inside guest memory. It may be by the time it is to run.
    #[error("Queue {queue} could not run: {why}")]
    Address {
        /// The queue.
        queue: u32,
        /// The reason why the address cannot be used.
        why: nic::virtio::QueueError,
    },
    /// A kick or call without an eventfd.
    #[error("Queue {0} comes without an eventfd; polling for kicks is not supported")]
    Eventfd(u32),
    /// An MTU beyond the port's.
    #[error(
        "The front end wants an MTU of {wanted}, the port's is {most}; raise it: toklat port set --mtu"
    )]
    Mtu {
        /// The MTU that was requested.
        wanted: u64,
        /// The largest MTU that the port allows.
        most: u16,
    },
    /// The channel for our messages is not a stream socket.
    #[error("The channel for the back end's messages is not a stream socket")]
    Channel,
    /// The configuration space is read only.
    #[error("The configuration space is read only")]
    ReadOnly,
    /// The areas for buffers in flight do not match their description.
    #[error(
        "The areas for buffers in flight are of another version or size than the queues, or too large"
    )]
    Inflight,
    /// A ring that is not inside guest memory.
    #[error("Queue {queue} cannot run: {why}")]
    Ring {
        /// The queue.
        queue: usize,
        /// The reason why the ring cannot be used.
        why: nic::virtio::QueueError,
    },
}

/// How to go on after a message, in addition to the session's changes.
#[derive(Debug)]
pub enum Answer {
    /// Acknowledge the message if the front end asks for it.
    Done,
    /// A reply of these bytes.
    Bytes(Vec<u8>),
    /// Reply with these bytes and this file.
    File(Vec<u8>, Arc<Descriptor>),
    /// Stop this ring, then reply with its position.
    Base(u32),
    /// Announce to the network that the guest with this address is here.
    Announce(Mac),
}

/// The changes that a message made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Properties of the rings changed, so the port's halves have to be made again.
    pub rings: bool,
    /// Only the eventfds to which rings signal have changed.
    pub calls: bool,
}

/// A ring as the front end describes it.
#[derive(Clone, Debug, Default)]
pub struct Ring {
    /// Entries.
    pub size: u16,
    /// Where the ring lies.
    pub address: Option<RingAddress>,
    /// The position to start at, until the ring has started there.
    pub base: Option<u32>,
    /// The front end has enabled the ring.
    pub enabled: bool,
    /// The eventfd of the guest's kicks. A ring runs only with one.
    pub kick: Option<Arc<Descriptor>>,
    /// Interrupts to the guest.
    pub call: Option<Arc<Descriptor>>,
    /// The eventfd that tells the front end that the ring failed.
    pub error: Option<Arc<Descriptor>>,
}

/// A vhost-user session.
#[derive(Debug)]
pub struct Session {
    offer: Offer,
    /// The mappings for this session.
    account: Arc<Account>,
    /// The features that the front end accepted.
    features: Option<u64>,
    protocol: u64,
    status: u8,
    rings: Box<[Ring]>,
    slots: Vec<Slot>,
    next_slot: u32,
    memory: Arc<GuestMemory>,
    log: Option<Log>,
    inflight: Option<Areas>,
    channel: Option<Arc<Descriptor>>,
    changes: Changes,
    /// A message that was carried out, but is still in the socket.
    untaken: Option<Counted>,
    /// A predecessor's `untaken` message. If the next message is the same, it is not carried out
    /// again.
    again: Option<Counted>,
}

/// The log of written pages.
#[derive(Debug)]
struct Log {
    file: Arc<Descriptor>,
    offset: u64,
    size: u64,
    pages: Arc<DirtyLog>,
}

impl Refused {
    /// True if the session goes on after this refusal, even if the front end did not ask for an
    /// acknowledgement.
    #[must_use]
    pub fn is_provisional(&self) -> bool {
        matches!(self, Self::Address { .. })
    }
}

impl Session {
    /// A session before its first message.
    #[must_use]
    pub fn new(offer: Offer, account: &Arc<Account>) -> Self {
        Self {
            offer,
            account: Arc::clone(account),
            features: None,
            protocol: 0,
            status: 0,
            rings: vec![Ring::default(); 2 * usize::from(offer.queue_pairs)].into(),
            slots: Vec::new(),
            next_slot: 0,
            memory: Arc::default(),
            log: None,
            inflight: None,
            channel: None,
            changes: Changes::default(),
            untaken: None,
            again: None,
        }
    }

    /// The rings by number: the guest's receive queue of pair i is 2 i, its transmit queue 2 i + 1.
    #[must_use]
    pub fn rings(&self) -> &[Ring] {
        &self.rings
    }

    /// Borrows a ring, to apply a pending position or to stop it.
    pub fn ring_mut(&mut self, queue: usize) -> Option<&mut Ring> {
        self.rings.get_mut(queue)
    }

    /// The guest's memory.
    #[must_use]
    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// The virtio features that the front end accepted.
    #[must_use]
    pub fn features(&self) -> Features {
        Features::from_bits_truncate(self.features.unwrap_or(0))
    }

    /// The log of written pages, if the front end wants one.
    #[must_use]
    pub fn dirty_log(&self) -> Option<&Arc<DirtyLog>> {
        let wanted = self.features.unwrap_or(0) & LOG_ALL != 0;
        self.log.as_ref().filter(|_| wanted).map(|log| &log.pages)
    }

    fn is_packed(&self) -> bool {
        self.features().contains(Features::RING_PACKED)
    }

    /// A ring's addresses in the guest's memory. Parts outside of it get an address where no memory
    /// can be.
    #[must_use]
    pub fn layout(&self, ring: &Ring) -> QueueLayout {
        let RingAddress { descriptors, used, available, .. } = ring.address.unwrap_or_default();
        let guest = |user| self.memory.guest_address(user).unwrap_or(u64::MAX);
        QueueLayout {
            size: ring.size,
            descriptors: guest(descriptors),
            driver: guest(available),
            device: guest(used),
        }
    }

    /// Checks that a ring that does not run yet lies in guest memory.
    fn check_address(&self, queue: u32) -> Result<Answer, Refused> {
        let idle = |ring: &&Ring| ring.kick.is_none() && !self.slots.is_empty();
        let Some(ring) = self.rings.get(queue as usize).filter(idle) else {
            return Ok(Answer::Done);
        };
        let checked = nic::virtio::check_areas(&self.layout(ring), &self.memory, self.features());
        checked.map(|()| Answer::Done).map_err(|why| Refused::Address { queue, why })
    }

    /// True if the ring has to be served.
    #[must_use]
    pub fn is_running(&self, queue: usize) -> bool {
        let Some(features) = self.features else { return false };
        self.rings.get(queue).is_some_and(|ring| {
            let enabled = ring.enabled || features & PROTOCOL_FEATURES == 0;
            enabled && ring.kick.is_some() && ring.address.is_some() && ring.size != 0
        })
    }

    /// Returns and clears what changed since the last call.
    pub fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    /// True if the front end wants an acknowledgement of this message.
    #[must_use]
    pub fn is_acknowledged(&self, need_reply: bool) -> bool {
        need_reply && self.protocol & protocol::REPLY_ACK != 0
    }

    /// The back end's channel, if the front end listens there for changes of the configuration
    /// space.
    #[must_use]
    pub fn config_channel(&self) -> Option<&Arc<Descriptor>> {
        let both = protocol::BACKEND_REQ | protocol::CONFIG;
        self.channel.as_ref().filter(|_| self.protocol & both == both)
    }

    /// Changes the offer; true if that changed the configuration space.
    pub fn set_offer(&mut self, offer: Offer) -> bool {
        let offer = Offer { queue_pairs: self.offer.queue_pairs, ..offer };
        std::mem::replace(&mut self.offer, offer) != offer
    }

    /// Applies a message to the session's state.
    ///
    /// # Errors
    /// A violation of the protocol ends the session. So does a [`Refused`] request, unless the
    /// front end asked for an acknowledgement.
    pub fn handle(&mut self, request: Request) -> Result<Result<Answer, Refused>, ProtocolError> {
        use Request as R;
        let counted = Counted::of(&request);
        self.untaken = self.again.take().filter(|again| counted == Some(*again));
        if self.untaken.is_some() {
            return Ok(Ok(Answer::Done));
        }
        let done = match request {
            R::GetFeatures => number(self.offered()),
            R::GetProtocolFeatures => number(OFFERED),
            R::GetQueueNumber => number(self.offer.queue_pairs.into()),
            R::GetMaxMemorySlots => number(memory::MAX_SLOTS as u64),
            R::GetStatus => number(self.status.into()),
            R::GetConfig { offset, size, flags } => Answer::Bytes(self.config(offset, size, flags)),
            R::SetConfig { .. } => return Ok(Err(Refused::ReadOnly)),
            R::SetOwner | R::SetLogFd => Answer::Done,
            R::SetFeatures(features) => return Ok(self.set_features(features)),
            R::SetProtocolFeatures(wanted) => return Ok(self.set_protocol(wanted)),
            R::SetMemoryTable(table) => return Ok(self.set_memory(table)),
            R::AddMemoryRegion(region, file) => {
                let added = self.add_region(region, file);
                self.untaken = counted.filter(|_| added.is_ok());
                return Ok(added);
            }
            R::RemoveMemoryRegion(region) => {
                let removed = self.remove_region(region);
                self.untaken = counted.filter(|_| removed.is_ok());
                return Ok(removed);
            }
            R::SetLogBase { size, offset, file } => return Ok(self.set_log(size, offset, file)),
            R::SetMtu(wanted) if wanted > self.offer.mtu.into() => {
                return Ok(Err(Refused::Mtu { wanted, most: self.offer.mtu }));
            }
            R::SetMtu(_) => Answer::Done,
            R::SetBackendChannel(channel) if !is_unix_stream(&channel) => {
                return Ok(Err(Refused::Channel));
            }
            R::SetBackendChannel(channel) => {
                self.channel = Some(Arc::new(channel));
                Answer::Done
            }
            R::SendRarp(mac) => Answer::Announce(mac),
            R::ResetOwner => self.disable(),
            R::GetInflight(asked) => return Ok(self.make_inflight(asked)),
            R::SetInflight(said, file) => return Ok(self.set_inflight(said, file)),
            R::ResetDevice => {
                (self.features, self.status) = (None, 0);
                self.disable();
                self.stop()
            }
            R::SetStatus(status) => {
                self.status = status as u8;
                if status == 0 { self.stop() } else { Answer::Done }
            }
            ring => return self.handle_ring(ring),
        };
        Ok(Ok(done))
    }

    /// Notes that the last message was taken from the socket. If the process dies before the
    /// supervisor keeps that, its successor takes an identical next message for the old one.
    pub fn taken(&mut self) {
        self.untaken = None;
    }

    fn handle_ring(&mut self, request: Request) -> Result<Result<Answer, Refused>, ProtocolError> {
        use Request as R;
        match request {
            R::SetRingSize { queue, size } => {
                // Before features are negotiated, the size is checked when the ring is to run.
                let packed = self.features.is_none() || self.is_packed();
                let ring = ring(&mut self.rings, queue)?;
                match u16::try_from(size) {
                    Ok(size @ 1..=32_768) if packed || size.is_power_of_two() => ring.size = size,
                    _ => return Ok(Err(Refused::Size(size))),
                }
                self.changes.rings = true;
            }
            R::SetRingAddress { queue, address } => {
                let ring = ring(&mut self.rings, queue)?;
                // The features say whether writes to the used ring are logged.
                let same = ring.address.is_some_and(|old| {
                    RingAddress { log: None, ..old } == RingAddress { log: None, ..address }
                });
                ring.address = Some(address);
                self.changes.rings |= !same;
                return Ok(self.check_address(queue));
            }
            R::SetRingBase { queue, base } => {
                ring(&mut self.rings, queue)?.base = Some(base);
                self.changes.rings = true;
            }
            R::GetRingBase { queue } => {
                ring(&mut self.rings, queue)?.kick = None;
                self.changes.rings = true;
                return Ok(Ok(Answer::Base(queue)));
            }
            R::SetRingKick { queue, fd } => {
                let ring = ring(&mut self.rings, queue)?;
                let Some(fd) = fd.filter(|fd| is_event(fd)) else {
                    return Ok(Err(Refused::Eventfd(queue)));
                };
                ring.kick = Some(Arc::new(fd));
                self.changes.rings = true;
            }
            R::SetRingCall { queue, fd } => {
                let ring = ring(&mut self.rings, queue)?;
                match event(fd, queue) {
                    Ok(fd) => ring.call = fd,
                    Err(refused) => return Ok(Err(refused)),
                }
                self.changes.calls = true;
            }
            R::SetRingError { queue, fd } => {
                let ring = ring(&mut self.rings, queue)?;
                match event(fd, queue) {
                    Ok(fd) => ring.error = fd,
                    Err(refused) => return Ok(Err(refused)),
                }
            }
            R::SetRingEnable { queue, on } => {
                let ring = ring(&mut self.rings, queue)?;
                self.changes.rings |= ring.enabled != on;
                ring.enabled = on;
            }
            _ => {}
        }
        Ok(Ok(Answer::Done))
    }

    fn offered(&self) -> u64 {
        self.offer.features().bits() | LOG_ALL | PROTOCOL_FEATURES
    }

    fn set_features(&mut self, features: u64) -> Result<Answer, Refused> {
        if features & !self.offered() != 0 {
            return Err(Refused::Features(features & !self.offered()));
        }
        // QEMU sends the features once for each pair of queues, while other pairs run.
        self.changes.rings |= self.features != Some(features);
        self.features = Some(features);
        Ok(Answer::Done)
    }

    fn set_protocol(&mut self, wanted: u64) -> Result<Answer, Refused> {
        if wanted & !OFFERED != 0 {
            return Err(Refused::Features(wanted & !OFFERED));
        }
        self.protocol = wanted;
        Ok(Answer::Done)
    }

    fn set_memory(&mut self, regions: Vec<(Region, Descriptor)>) -> Result<Answer, Refused> {
        let mut slots = Vec::with_capacity(regions.len());
        for (region, file) in regions {
            // Parts of files that are mapped already are not mapped twice.
            let others = slots.iter().chain(&self.slots);
            let slot = Slot::new(region, Arc::new(file), self.next_slot, others, &self.account)?;
            self.next_slot = self.next_slot.wrapping_add(1);
            slots.push(slot);
        }
        self.use_slots(slots)
    }

    fn add_region(&mut self, region: Region, file: Descriptor) -> Result<Answer, Refused> {
        if let Some(same) = self.slots.iter_mut().find(|slot| slot.is(region, &file)) {
            same.times = same.times.saturating_add(1);
            return Ok(Answer::Done);
        }
        let slot = Slot::new(region, Arc::new(file), self.next_slot, &self.slots, &self.account)?;
        self.next_slot = self.next_slot.wrapping_add(1);
        let mut slots = self.slots.clone();
        slots.push(slot);
        self.use_slots(slots)
    }

    fn remove_region(&mut self, region: Region) -> Result<Answer, Refused> {
        // Some front ends do not repeat the region's offset in its file.
        let key = |region: Region| (region.guest, region.size, region.user);
        let at = self.slots.iter().position(|slot| key(slot.region) == key(region));
        let at = at.ok_or(MemoryError::NoRegion)?;
        self.slots[at].times -= 1;
        if self.slots[at].times > 0 {
            return Ok(Answer::Done);
        }
        let mut slots = self.slots.clone();
        slots.remove(at);
        self.use_slots(slots)
    }

    fn use_slots(&mut self, slots: Vec<Slot>) -> Result<Answer, Refused> {
        self.memory = memory::table(&slots)?;
        self.slots = slots;
        self.changes.rings = true;
        Ok(Answer::Done)
    }

    fn set_log(&mut self, size: u64, offset: u64, file: Descriptor) -> Result<Answer, Refused> {
        let pages = memory::log(&file, offset, size, &self.account)?;
        self.log = Some(Log { file: Arc::new(file), offset, size, pages });
        self.changes.rings |= self.features.unwrap_or(0) & LOG_ALL != 0;
        // Front ends wait for this reply, whatever they negotiated.
        Ok(number(0))
    }

    fn disable(&mut self) -> Answer {
        self.rings.iter_mut().for_each(|ring| ring.enabled = false);
        self.changes.rings = true;
        Answer::Done
    }

    fn stop(&mut self) -> Answer {
        self.rings.iter_mut().for_each(|ring| ring.kick = None);
        // The driver of the guest starts over.
        self.inflight = None;
        self.changes.rings = true;
        Answer::Done
    }

    /// The reply to a request for the configuration space; empty if the range ends beyond it.
    fn config(&self, offset: u32, size: u32, flags: u32) -> Vec<u8> {
        let (from, bytes) = (offset as usize, size as usize);
        let space = self.offer.config();
        let Some(wanted) = from.checked_add(bytes).and_then(|end| space.get(from..end)) else {
            return Vec::new();
        };
        let head = [offset, size, flags].map(u32::to_ne_bytes).concat();
        [&head, wanted].concat()
    }
}

fn number(value: u64) -> Answer {
    Answer::Bytes(value.to_ne_bytes().into())
}

fn ring(rings: &mut [Ring], queue: u32) -> Result<&mut Ring, ProtocolError> {
    rings.get_mut(queue as usize).ok_or(ProtocolError::Queue(queue))
}

/// Takes an eventfd, which may be missing, and makes it non-blocking.
fn event(fd: Option<Descriptor>, queue: u32) -> Result<Option<Arc<Descriptor>>, Refused> {
    let good = fd.as_ref().is_none_or(is_event);
    if good { Ok(fd.map(Arc::new)) } else { Err(Refused::Eventfd(queue)) }
}

#[cfg(test)]
mod tests;
