//! The persistent state of a session, which lets a successor of this process continue it.

use std::sync::Arc;

use jail::strangers::Descriptor;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use shmem::budget::Account;

use super::inflight::{Areas, SavedAreas};
use super::{Log, Offer, Ring, Session};
use crate::attach::guest::kept::Kept;
use crate::attach::guest::memory::{self, Region, Slot};
use crate::attach::virtio::message::{Request, RingAddress};

/// The key under which the session's state is kept, without descriptors.
pub(super) const SESSION: &str = "session";

/// The persistent state of a session, except its descriptors.
#[derive(Serialize, Deserialize)]
struct Saved {
    features: Option<u64>,
    protocol: u64,
    status: u8,
    rings: Vec<(u16, Option<RingAddress>, bool)>,
    slots: Vec<(Region, u32, u32)>,
    log: Option<(u64, u64)>,
    #[serde(default)]
    inflight: Option<SavedAreas>,
    #[serde(default)]
    untaken: Option<Counted>,
}

/// A message that must not be carried out twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Counted {
    Added(Region),
    Removed(Region),
}

impl Counted {
    pub fn of(request: &Request) -> Option<Self> {
        match request {
            Request::AddMemoryRegion(region, _) => Some(Self::Added(*region)),
            Request::RemoveMemoryRegion(region) => Some(Self::Removed(*region)),
            _ => None,
        }
    }
}

impl Session {
    /// The session's state, as a successor of this process needs it.
    #[must_use]
    pub fn kept(&self) -> Kept {
        let ring = |ring: &Ring| (ring.size, ring.address, ring.enabled);
        let saved = Saved {
            features: self.features,
            protocol: self.protocol,
            status: self.status,
            rings: self.rings.iter().map(ring).collect(),
            slots: self.slots.iter().map(|s| (s.region, s.number, s.times)).collect(),
            log: self.log.as_ref().map(|log| (log.offset, log.size)),
            inflight: self.inflight.as_ref().map(Areas::saved),
            untaken: self.untaken.or(self.again),
        };
        let mut kept = Kept::new();
        let mut keep = |name: String, fd: &Option<Arc<Descriptor>>| {
            if let Some(fd) = fd {
                kept.insert(name, (Value::Null, Some(Arc::clone(fd))));
            }
        };
        for (at, ring) in self.rings.iter().enumerate() {
            keep(format!("kick {at}"), &ring.kick);
            keep(format!("call {at}"), &ring.call);
            keep(format!("error {at}"), &ring.error);
        }
        for slot in &self.slots {
            keep(format!("memory {}", slot.number), &Some(Arc::clone(&slot.file)));
        }
        keep("channel".into(), &self.channel);
        keep("inflight".into(), &self.inflight.as_ref().map(|areas| Arc::clone(&areas.file)));
        keep("log".into(), &self.log.as_ref().map(|log| Arc::clone(&log.file)));
        kept.insert(SESSION.into(), (json!(saved), None));
        kept
    }

    /// Restores the session that a predecessor has kept; `None` if a part is missing.
    #[must_use]
    pub fn restore(offer: Offer, kept: &Kept, account: &Arc<Account>) -> Option<Self> {
        let fd = |name: String| kept.get(&name).and_then(|(_, fd)| fd.clone());
        let saved: Saved = serde_json::from_value(kept.get(SESSION)?.0.clone()).ok()?;
        let mut session = Self::new(offer, account);
        (session.features, session.protocol) = (saved.features, saved.protocol);
        (session.status, session.channel) = (saved.status, fd("channel".into()));
        session.again = saved.untaken;
        if saved.rings.len() > session.rings.len() {
            return None;
        }
        for (at, (ring, saved)) in session.rings.iter_mut().zip(saved.rings).enumerate() {
            (ring.size, ring.address, ring.enabled) = saved;
            ring.kick = fd(format!("kick {at}"));
            ring.call = fd(format!("call {at}"));
            ring.error = fd(format!("error {at}"));
        }
        for (region, number, times) in saved.slots {
            let file = fd(format!("memory {number}"))?;
            let mut slot = Slot::new(region, file, number, &session.slots, account).ok()?;
            slot.times = times.max(1);
            session.slots.push(slot);
            session.next_slot = session.next_slot.max(number.wrapping_add(1));
        }
        session.memory = memory::table(&session.slots).ok()?;
        if let Some((offset, size)) = saved.log {
            let file = fd("log".into())?;
            let pages = memory::log(&file, offset, size, account).ok()?;
            session.log = Some(Log { file, offset, size, pages });
        }
        if let Some(saved) = saved.inflight {
            let (file, queues) = (fd("inflight".into())?, session.rings.len() as u16);
            let packed = session.is_packed();
            session.inflight = Some(Areas::restore(saved, file, queues, packed, account)?);
        }
        session.changes.rings = true;
        Some(session)
    }
}
