//! The ledger: what each user holds, and its quotas.
//!
//! Every resource is charged to a user before it is made, and released when its [`Charge`] is
//! dropped. Three rules keep room for others, from the strictest to the widest:
//!
//! 1. A user holds at most its quota ([`api::Quotas`]). Root and the daemon's user are
//!    counted, but only limits under their own names apply to them.
//! 2. Without a configured quota, a user holds at most as much as is left for others. So
//!    however many users are greedy, the next one finds room. One user has at most a
//!    quarter of a switch's ports.
//! 3. An eighth of everything is kept for root and the daemon's user.
//!
//! The descriptors that this process keeps for an item are charged with it.

mod item;

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dataplane::config::UserLimits;

use self::item::Resource;
pub use self::item::{File, Item};
use super::locked;
use crate::api::{self, ApiError, ErrorCode, Limit, Quota, Quotas, Usage};

/// The maximum number of switches that clients made by opening ports of them: each has a process.
const MAX_SWITCHES: u64 = 64;
/// Users whose paces are kept before those that have caught up are forgotten.
const PACES: usize = 256;
/// Pipes.
const MAX_PIPES: u64 = 1024;
/// Open descriptors, adapters and regions of netmap's interface: regions have 16-bit numbers.
const MAX_NETMAP_OBJECTS: u64 = 1 << 16;
/// Persistent ports of netmap's interface.
const MAX_NETMAP_PORTS: u64 = 1 << 14;
/// Connections to the attach socket.
pub const MAX_CONNECTIONS: u64 = 256;

/// The resources that a user, or several, hold.
#[derive(Debug, Default)]
struct Held {
    usage: Usage,
    /// Ports by switch.
    ports: HashMap<String, u64>,
    /// The names of switches and ports, and how often each is held.
    names: BTreeMap<(String, String), u64>,
}

impl Held {
    /// How much is held of the resource that an item counts towards; of ports, in its switch.
    fn beside(&self, resource: Resource, item: &Item) -> u64 {
        match (resource, item) {
            (Resource::Ports, Item::Port { switch, .. }) => {
                self.ports.get(switch).copied().unwrap_or(0)
            }
            _ => resource.held(&self.usage),
        }
    }

    fn add(&mut self, item: &Item, prices: [(Resource, u64); 2]) {
        for (resource, price) in prices {
            *resource.held_mut(&mut self.usage) += price;
        }
        if let Item::Port { switch, port, .. } = item {
            *self.ports.entry(switch.clone()).or_default() += 1;
            *self.names.entry((switch.clone(), port.clone())).or_default() += 1;
        }
    }

    fn remove(&mut self, item: &Item, prices: [(Resource, u64); 2]) {
        for (resource, price) in prices {
            let held = resource.held_mut(&mut self.usage);
            *held = held.saturating_sub(price);
        }
        if let Item::Port { switch, port, .. } = item {
            less(&mut self.ports, switch);
            let name = (switch.clone(), port.clone());
            if let Some(count) = self.names.get_mut(&name) {
                *count -= 1;
                if *count == 0 {
                    self.names.remove(&name);
                }
            }
        }
    }

    /// The first port after this one, by the names of its switch and its own.
    fn next_port(&self, after: &(String, String)) -> Option<&(String, String)> {
        let range = (Bound::Excluded(after), Bound::Unbounded);
        self.names.range(range).next().map(|(name, _)| name)
    }
}

fn less<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, u64>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

/// The resources that one user holds.
#[derive(Debug, Default)]
struct Account {
    held: Held,
    /// Memory files, and how often each is lent.
    files: HashMap<(u64, u64), u64>,
}

impl Account {
    /// How much an item adds to the user's account, of each resource that it counts towards.
    fn prices(&self, item: &Item) -> [(Resource, u64); 2] {
        let price = match item {
            Item::Memory(file) if self.files.contains_key(&file.id) => 0,
            Item::Memory(file) => file.len,
            Item::State { bytes, .. } | Item::Links { bytes } => *bytes,
            Item::NetmapQueue => 0,
            _ => 1,
        };
        [(item.resource(), price), (Resource::Descriptors, item.descriptors())]
    }
}

/// The limits of the machine.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// The daemon's limit of descriptors.
    pub descriptors: u64,
    /// Bytes of memory.
    pub memory: u64,
}

/// The record of everything that users hold.
#[derive(Debug)]
pub struct Ledger {
    book: Mutex<Book>,
}

#[derive(Debug)]
struct Book {
    /// The daemon's user.
    own_uid: u32,
    machine: Machine,
    /// The quotas that the daemon was started with.
    base: Quota,
    configured: Quotas,
    accounts: BTreeMap<u32, Account>,
    /// What all users hold together, and what those do who are not trusted.
    all: Held,
    strangers: Held,
    refused: Usage,
    /// By user: the time up to which what it asks for is paced.
    paces: HashMap<(u32, Paced), Instant>,
    /// How many of these are kept before those that are over go.
    most_paces: usize,
}

/// What a user may do as often as it likes, but not as fast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Paced {
    /// Making a switch, which starts a process.
    Switch,
    /// Connecting to the attach socket, and each request there.
    Request,
}

impl Paced {
    /// How many are free at once, and the time between two after that.
    const fn burst(self) -> (u32, Duration) {
        match self {
            Self::Switch => (8, Duration::from_millis(250)),
            Self::Request => (400, Duration::from_millis(5)),
        }
    }
}

/// A charge on a user's account, until this is dropped.
#[derive(Debug)]
pub struct Charge {
    ledger: Arc<Ledger>,
    uid: u32,
    item: Item,
}

impl Charge {
    /// The user that is charged.
    #[must_use]
    pub const fn uid(&self) -> u32 {
        self.uid
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        locked(&self.ledger.book).remove(self.uid, &self.item);
    }
}

impl Ledger {
    /// Makes an empty ledger; `base` holds the quotas that the daemon was started with.
    #[must_use]
    pub fn new(own_uid: u32, base: Quota, machine: Machine) -> Arc<Self> {
        let book = Book {
            own_uid,
            machine,
            base,
            configured: Quotas::default(),
            accounts: BTreeMap::new(),
            all: Held::default(),
            strangers: Held::default(),
            refused: Usage::default(),
            paces: HashMap::new(),
            most_paces: PACES,
        };
        Arc::new(Self { book: Mutex::new(book) })
    }

    /// Charges a user, if its limits allow the item.
    ///
    /// # Errors
    /// The user's limit, or the total limit, is reached.
    pub fn charge(self: &Arc<Self>, uid: u32, item: Item) -> Result<Charge, ApiError> {
        let mut book = locked(&self.book);
        if let Err((resource, refusal)) = book.check(uid, &item) {
            *resource.held_mut(&mut book.refused) += 1;
            return Err(refusal);
        }
        drop(book);
        Ok(self.count(uid, item))
    }

    /// Whether the user's limits allow the item now.
    #[must_use]
    pub fn allows(&self, uid: u32, item: &Item) -> bool {
        locked(&self.book).check(uid, item).is_ok()
    }

    /// How long a user must wait before it does this. A burst is free, then one in a while. (The
    /// generic cell rate algorithm.)
    #[must_use]
    pub fn pace(&self, uid: u32, what: Paced, now: Instant) -> Duration {
        let (at_once, each) = what.burst();
        let mut book = locked(&self.book);
        if book.is_trusted(uid) {
            return Duration::ZERO;
        }
        let due = book.paces.get(&(uid, what)).map_or(now, |due| now.max(*due)) + each;
        book.paces.insert((uid, what), due);
        if book.paces.len() > book.most_paces {
            book.paces.retain(|_, due| *due > now);
            book.most_paces = PACES.max(2 * book.paces.len());
        }
        due.saturating_duration_since(now + at_once * each)
    }

    /// Charges a user without checking limits: for what an operator adds, and what exists already.
    #[must_use]
    pub fn count(self: &Arc<Self>, uid: u32, item: Item) -> Charge {
        locked(&self.book).add(uid, &item);
        Charge { ledger: Arc::clone(self), uid, item }
    }

    /// The name of the port after this one that a user sees, in the order of the names of switches
    /// and ports: the user's own and those of root and the daemon's user. These see all.
    #[must_use]
    pub fn next_port(&self, uid: u32, after: &str) -> Option<String> {
        let (switch, port) = after.split_once(':').unwrap_or_default();
        let after = (switch.to_owned(), port.to_owned());
        let book = locked(&self.book);
        let next = if book.is_trusted(uid) {
            book.all.next_port(&after)
        } else {
            let seen = [0, book.own_uid, uid].into_iter().filter_map(|uid| book.accounts.get(&uid));
            seen.filter_map(|account| account.held.next_port(&after)).min()
        };
        next.map(|(switch, port)| format!("{switch}:{port}"))
    }

    /// Changes the limits. A user that holds more keeps it.
    pub fn configure(&self, quotas: Quotas) {
        locked(&self.book).configured = quotas;
    }

    /// Reports the configuration, the limits of users without one, what each user holds, and what
    /// was refused. Addresses are not counted here.
    #[must_use]
    pub fn info(&self) -> api::QuotaInfo {
        let book = locked(&self.book);
        let named = book.configured.user.keys().copied();
        let users: std::collections::BTreeSet<u32> =
            book.accounts.keys().copied().chain(named).collect();
        let user = |uid: u32| api::UserQuota {
            uid,
            usage: book.accounts.get(&uid).map(|account| account.held.usage).unwrap_or_default(),
            limits: book.limits(uid),
        };
        api::QuotaInfo {
            configured: book.configured.clone(),
            limits: book.limits_by(book.configured.each.or(book.base)),
            users: users.into_iter().map(user).collect(),
            refused: book.refused,
        }
    }

    /// The users' limits, as data processes get them.
    #[must_use]
    pub fn process_limits(&self) -> dataplane::config::Limits {
        let book = locked(&self.book);
        let limits = |quota: Quota, all: bool| {
            let unlimited = if all { Some(Limit::None) } else { None };
            let number = |limit: Limit| limit.number().unwrap_or(u64::MAX);
            let addresses = quota.addresses.or(unlimited).map(number);
            UserLimits {
                addresses: addresses.map(|most| u32::try_from(most).unwrap_or(u32::MAX)),
                memory: quota.memory.or(unlimited).map(number),
            }
        };
        let each = book.configured.each.or(book.base);
        let named = |uid: u32| (uid, limits(book.quota(uid), book.is_trusted(uid)));
        let mut users: Vec<u32> = vec![0, book.own_uid];
        users.extend(book.configured.user.keys());
        users.sort_unstable();
        users.dedup();
        dataplane::config::Limits {
            each: limits(each, false),
            users: users.into_iter().map(named).collect(),
        }
    }
}

impl Book {
    const fn is_trusted(&self, uid: u32) -> bool {
        uid == 0 || uid == self.own_uid
    }

    /// The quota that is configured for a user.
    fn quota(&self, uid: u32) -> Quota {
        let own = self.configured.user.get(&uid).copied().unwrap_or_default();
        if self.is_trusted(uid) { own } else { own.or(self.configured.each).or(self.base) }
    }

    fn limits(&self, uid: u32) -> api::Limits {
        let quota = self.quota(uid);
        let none = Some(Limit::None);
        let all = Quota {
            ports: none,
            switches: none,
            pipes: none,
            memory: none,
            connections: none,
            addresses: none,
            descriptors: none,
            netmap_objects: none,
            netmap_ports: none,
        };
        self.limits_by(if self.is_trusted(uid) { quota.or(all) } else { quota })
    }

    fn limits_by(&self, quota: Quota) -> api::Limits {
        let limit = |resource: Resource| match resource.of(&quota) {
            Some(limit) => limit.number(),
            None => Some(self.default_limit(resource)),
        };
        api::Limits {
            ports: limit(Resource::Ports),
            switches: limit(Resource::Switches),
            pipes: limit(Resource::Pipes),
            memory: limit(Resource::Memory),
            connections: limit(Resource::Connections),
            addresses: quota.addresses.and_then(Limit::number),
            descriptors: limit(Resource::Descriptors),
            netmap_objects: limit(Resource::NetmapObjects),
            netmap_ports: limit(Resource::NetmapPorts),
        }
    }

    /// A port has two descriptors and a pipe six. So by default a user takes at most about a
    /// quarter of all descriptors for ports, and a fifth for pipes.
    fn default_limit(&self, resource: Resource) -> u64 {
        match resource {
            Resource::Ports => (self.machine.descriptors / 8).min(1024),
            Resource::Switches => MAX_SWITCHES / 8,
            Resource::Pipes => (self.machine.descriptors / 32).min(MAX_PIPES / 8),
            Resource::Memory => self.machine.memory / 4,
            Resource::Connections => MAX_CONNECTIONS / 4,
            Resource::Descriptors => self.machine.descriptors / 2,
            Resource::NetmapObjects => MAX_NETMAP_OBJECTS / 8,
            Resource::NetmapPorts => 64,
        }
    }

    fn add(&mut self, uid: u32, item: &Item) {
        let account = self.accounts.entry(uid).or_default();
        let prices = account.prices(item);
        account.held.add(item, prices);
        if let Item::Memory(file) = item {
            *account.files.entry(file.id).or_default() += 1;
        }
        self.all.add(item, prices);
        if !self.is_trusted(uid) {
            self.strangers.add(item, prices);
        }
    }

    fn remove(&mut self, uid: u32, item: &Item) {
        let Some(account) = self.accounts.get_mut(&uid) else { return };
        if let Item::Memory(file) = item {
            less(&mut account.files, &file.id);
        }
        // A file that is still lent elsewhere stays charged.
        let prices = account.prices(item);
        account.held.remove(item, prices);
        if account.held.usage == Usage::default() && account.files.is_empty() {
            self.accounts.remove(&uid);
        }
        self.all.remove(item, prices);
        if !self.is_trusted(uid) {
            self.strangers.remove(item, prices);
        }
    }

    /// Checks each resource that an item counts towards. An error names the one that is short.
    fn check(&self, uid: u32, item: &Item) -> Result<(), (Resource, ApiError)> {
        let nothing = Account::default();
        let account = self.accounts.get(&uid).unwrap_or(&nothing);
        for (resource, price) in account.prices(item) {
            let limit = match resource.of(&self.quota(uid)) {
                None if !self.is_trusted(uid) => Some(self.default_limit(resource)),
                limit => limit.and_then(Limit::number),
            };
            let has = resource.held(&account.held.usage);
            if let Some(limit) = limit
                && (price > 0 || resource == item.resource())
                && has.saturating_add(price) > limit
            {
                return Err((resource, over(uid, item, resource, has, limit)));
            }
            let room = self.room(resource, item);
            let checked =
                room.map_or(Ok(()), |room| self.check_room(uid, item, (resource, price), room));
            checked.map_err(|error| (resource, error))?;
        }
        Ok(())
    }

    /// The total of a resource that an item counts towards.
    const fn room(&self, resource: Resource, item: &Item) -> Option<u64> {
        match (resource, item) {
            (Resource::Ports, Item::Port { own: false, of, .. }) => Some(*of),
            (Resource::Ports, _) => None,
            (Resource::Switches, _) => Some(MAX_SWITCHES),
            (Resource::Pipes, _) => Some(MAX_PIPES),
            (Resource::Connections, _) => Some(MAX_CONNECTIONS),
            (Resource::Memory, _) => Some(self.machine.memory),
            (Resource::Descriptors, _) => Some(self.machine.descriptors),
            (Resource::NetmapObjects, _) => Some(MAX_NETMAP_OBJECTS),
            (Resource::NetmapPorts, _) => Some(MAX_NETMAP_PORTS),
        }
    }

    /// Checks that there is room for an item of this price in addition to what is kept for others.
    fn check_room(
        &self,
        uid: u32,
        item: &Item,
        (resource, price): (Resource, u64),
        room: u64,
    ) -> Result<(), ApiError> {
        let is_counted_here = !matches!(resource, Resource::Ports | Resource::Memory);
        if is_counted_here && price > 0 && self.all.beside(resource, item) >= room {
            return Err(full(room, resource));
        }
        if price == 0 || self.is_trusted(uid) {
            return Ok(());
        }
        let left = (room - room / 8).saturating_sub(self.strangers.beside(resource, item));
        let own = self.accounts.get(&uid).map_or(0, |account| account.held.beside(resource, item));
        let by_default = resource.of(&self.quota(uid)).is_none();
        let quarter = resource == Resource::Ports && own >= (room / 4).max(1);
        if price > left || by_default && (quarter || own.saturating_add(price) > left) {
            return Err(for_others(uid, (resource, item), own, room));
        }
        Ok(())
    }
}

/// The error for a limit that is reached: which limit, and whom to ask.
fn over(uid: u32, item: &Item, resource: Resource, has: u64, limit: u64) -> ApiError {
    let name = resource.name();
    let reason = match item {
        _ if resource != item.resource() => {
            format!("User {uid} has {has} {name}, and may have {limit}")
        }
        Item::Memory(file) => {
            format!("User {uid} lends {has} bytes, and {} more are over {limit}", file.len)
        }
        Item::State { switch, ports, bytes } => format!(
            "{switch} with {ports} ports needs {bytes} bytes of state memory; user {uid} has {has} \
             bytes of memory, and may have {limit}"
        ),
        Item::Switch => {
            format!("User {uid} has made {has} switches by opening ports, and may {limit}")
        }
        _ => format!("User {uid} has {has} {name}, and may have {limit}"),
    };
    let first = first_remedy(item, "give some back");
    let remedy = format!("{first}, or allow more: toklat quota set --user {uid} {name}=N");
    ApiError::new(ErrorCode::Limit, reason, remedy)
}

fn for_others(uid: u32, (resource, item): (Resource, &Item), own: u64, room: u64) -> ApiError {
    let name = resource.name();
    let whose = match item {
        Item::Port { switch, .. } if resource == Resource::Ports => {
            format!("{switch}'s {room} {name}")
        }
        _ => format!("{room} {name}"),
    };
    let reason = format!("User {uid} has {own} of {whose}; what is left is for others");
    let first = first_remedy(item, "close some");
    let remedy = format!("{first}, or set a quota: toklat quota set --user {uid} {name}=N");
    ApiError::new(ErrorCode::Limit, reason, remedy)
}

/// What helps without another quota.
const fn first_remedy(item: &Item, usual: &'static str) -> &'static str {
    match item {
        Item::State { .. } => "make the switch for fewer ports (max_ports)",
        _ => usual,
    }
}

fn full(room: u64, resource: Resource) -> ApiError {
    let (reason, remedy) = match resource {
        Resource::Switches => (
            format!("Clients have made {room} switches already"),
            "add it: toklat switch add".to_owned(),
        ),
        _ => (
            format!("All {room} {} are in use", resource.name()),
            "close some; see who has them: toklat quota show".to_owned(),
        ),
    };
    ApiError::new(ErrorCode::Limit, reason, remedy)
}

#[cfg(test)]
mod tests;
