//! The descriptors that programs have of netmap's interface, and the users who opened them.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jail::strangers::Descriptor;
use netmap::broker::Broker;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use tokio::sync::Mutex as AsyncMutex;

use crate::api::Topology;
use crate::daemon::hangups::WatchId;
use crate::daemon::locked;
use crate::daemon::quota::{Charge, Item, Ledger};

/// The daemon's end of the socket behind a program's descriptor.
#[derive(Debug)]
pub struct Token {
    pub(in crate::daemon) end: Descriptor,
    pub(in crate::daemon) watch: WatchId,
}

/// A user whose programs have descriptors.
#[derive(Debug)]
pub struct User {
    /// The user's requests, one after the other, in the order in which they came.
    pub(super) queue: AsyncMutex<()>,
    /// The descriptors whose last copies were closed.
    pub(super) closed: Closed,
    _charge: Charge,
}

/// An epoll set over a user's descriptors. It finds those that were closed in the time that these
/// take, however many are open.
#[derive(Debug)]
pub struct Closed(OwnedFd);

impl Closed {
    /// Watches a descriptor.
    pub(super) fn add(&self, end: impl AsFd, cookie: u64) -> Result<(), Errno> {
        epoll::add(&self.0, end, EventData::new_u64(cookie), EventFlags::RDHUP)
    }

    /// Stops watching a descriptor.
    pub(super) fn remove(&self, end: impl AsFd) {
        // This fails only if the descriptor is not in the set.
        let _ = epoll::delete(&self.0, end);
    }

    /// One descriptor that was closed, until it is [removed](Self::remove).
    pub(super) fn next(&self) -> Option<u64> {
        let mut events: Vec<Event> = Vec::with_capacity(1);
        let now = Duration::ZERO.try_into().ok();
        let found = epoll::wait(&self.0, rustix::buffer::spare_capacity(&mut events), now.as_ref());
        found.ok()?;
        events.first().map(|event| event.data.u64())
    }
}

/// The daemon's state of programs that use netmap's interface.
#[derive(Debug, Default)]
pub struct Netmap {
    pub(super) broker: Mutex<Option<Broker>>,
    /// By the user who opened it, and its cookie.
    pub(super) tokens: Mutex<BTreeMap<(u32, u64), Token>>,
    users: Mutex<HashMap<u32, Arc<User>>>,
    /// The switches of ends of interfaces that are being opened, one for each task that does so.
    opening: Arc<Mutex<Vec<String>>>,
    /// The topology of which the broker knows the interfaces in switches.
    pub(super) told: Mutex<Option<Arc<(Topology, String)>>>,
}

/// Keeps an end of an interface from becoming a port, until this is dropped.
#[derive(Debug)]
pub(super) struct Opening {
    all: Arc<Mutex<Vec<String>>>,
    name: String,
}

impl Drop for Opening {
    fn drop(&mut self) {
        let mut all = locked(&self.all);
        if let Some(place) = all.iter().position(|name| *name == self.name) {
            all.swap_remove(place);
        }
    }
}

impl Netmap {
    /// Notes that the end of an interface whose switch has this name is being opened.
    pub(super) fn opens(&self, name: &str) -> Opening {
        locked(&self.opening).push(name.to_owned());
        Opening { all: Arc::clone(&self.opening), name: name.to_owned() }
    }

    /// Returns true while a task opens the end of an interface whose switch has this name.
    pub(super) fn is_opening(&self, name: &str) -> bool {
        locked(&self.opening).iter().any(|opening| opening == name)
    }

    /// The user of this id.
    pub(super) fn user(&self, ledger: &Arc<Ledger>, uid: u32) -> Result<Arc<User>, Errno> {
        let mut users = locked(&self.users);
        if let Some(user) = users.get(&uid) {
            return Ok(Arc::clone(user));
        }
        let charge = ledger.charge(uid, Item::NetmapQueue).map_err(|_| Errno::MFILE)?;
        let closed = Closed(epoll::create(CreateFlags::CLOEXEC)?);
        let user = Arc::new(User { queue: AsyncMutex::new(()), closed, _charge: charge });
        users.insert(uid, Arc::clone(&user));
        Ok(user)
    }

    /// Forgets a user without descriptors and requests.
    pub(super) fn forget(&self, uid: u32) {
        let mut users = locked(&self.users);
        let is_unused = users.get(&uid).is_some_and(|user| Arc::strong_count(user) == 1);
        let has_none = || locked(&self.tokens).range((uid, 0)..=(uid, u64::MAX)).next().is_none();
        if is_unused && has_none() {
            users.remove(&uid);
        }
    }
}
