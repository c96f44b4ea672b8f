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

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dataplane::config::UserLimits;

use super::locked;
use crate::api::{self, ApiError, ErrorCode, Limit, Quota, Quotas, Usage};

/// The maximum number of switches that clients made by opening ports of them: each has a process.
const MAX_SWITCHES: u64 = 64;
/// Pause between two switches of a user, after a burst of [`AT_ONCE`].
const PACE: Duration = Duration::from_millis(250);
/// How many switches a user may make at once.
const AT_ONCE: u32 = 8;
/// Pipes.
const MAX_PIPES: u64 = 1024;
/// Connections to the attach socket.
pub const MAX_CONNECTIONS: u64 = 256;

/// An item that a user is charged for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A port of a switch.
    Port {
        /// The switch.
        switch: String,
        /// How many ports the switch may have.
        of: u64,
        /// The switch belongs to the user, so it needs no room for other users.
        own: bool,
    },
    /// A switch that a client makes by opening a port of it.
    Switch,
    /// A pipe.
    Pipe,
    /// A connection to the attach socket.
    Connection,
    /// A lent memory file. It is counted once, for however many ports.
    Memory(File),
    /// The state memory of a trusted switch, all of which the switch's user can fill.
    State {
        /// The switch.
        switch: String,
        /// How many ports it may have, which decides its size.
        ports: u16,
        /// Its size.
        bytes: u64,
    },
}

/// A memory file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct File {
    id: (u64, u64),
    len: u64,
}

impl File {
    /// Identifies the file of a descriptor that is known to be a sealed memory file, so fstat does
    /// not block.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn of(memory: impl AsFd) -> io::Result<Self> {
        let stat = rustix::fs::fstat(memory)?;
        Ok(Self { id: (stat.st_dev, stat.st_ino), len: u64::try_from(stat.st_size).unwrap_or(0) })
    }
}

/// The resources that have quotas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resource {
    Ports,
    Switches,
    Pipes,
    Memory,
    Connections,
}

impl Resource {
    /// The resource's name in the API.
    const fn name(self) -> &'static str {
        match self {
            Self::Ports => "ports",
            Self::Switches => "switches",
            Self::Pipes => "pipes",
            Self::Memory => "memory",
            Self::Connections => "connections",
        }
    }

    const fn of(self, quota: &Quota) -> Option<Limit> {
        match self {
            Self::Ports => quota.ports,
            Self::Switches => quota.switches,
            Self::Pipes => quota.pipes,
            Self::Memory => quota.memory,
            Self::Connections => quota.connections,
        }
    }

    const fn held(self, usage: &Usage) -> u64 {
        match self {
            Self::Ports => usage.ports,
            Self::Switches => usage.switches,
            Self::Pipes => usage.pipes,
            Self::Memory => usage.memory,
            Self::Connections => usage.connections,
        }
    }

    const fn held_mut(self, usage: &mut Usage) -> &mut u64 {
        match self {
            Self::Ports => &mut usage.ports,
            Self::Switches => &mut usage.switches,
            Self::Pipes => &mut usage.pipes,
            Self::Memory => &mut usage.memory,
            Self::Connections => &mut usage.connections,
        }
    }
}

impl Item {
    const fn resource(&self) -> Resource {
        match self {
            Self::Port { .. } => Resource::Ports,
            Self::Switch => Resource::Switches,
            Self::Pipe => Resource::Pipes,
            Self::Connection => Resource::Connections,
            Self::Memory(_) | Self::State { .. } => Resource::Memory,
        }
    }
}

/// The resources that one user holds.
#[derive(Debug, Default)]
struct Account {
    usage: Usage,
    /// Ports by switch.
    ports: HashMap<String, u64>,
    /// Memory files, and how often each is lent.
    files: HashMap<(u64, u64), u64>,
}

impl Account {
    /// How much an item adds to the user's account.
    fn price(&self, item: &Item) -> u64 {
        match item {
            Item::Memory(file) if self.files.contains_key(&file.id) => 0,
            Item::Memory(file) => file.len,
            Item::State { bytes, .. } => *bytes,
            _ => 1,
        }
    }

    /// How much the user holds of the resource that an item counts towards.
    fn held_beside(&self, item: &Item) -> u64 {
        match item {
            Item::Port { switch, .. } => self.ports.get(switch).copied().unwrap_or(0),
            _ => item.resource().held(&self.usage),
        }
    }

    fn add(&mut self, item: &Item) {
        *item.resource().held_mut(&mut self.usage) += self.price(item);
        match item {
            Item::Port { switch, .. } => *self.ports.entry(switch.clone()).or_default() += 1,
            Item::Memory(file) => *self.files.entry(file.id).or_default() += 1,
            _ => {}
        }
    }

    fn remove(&mut self, item: &Item) {
        fn less<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, u64>, key: &K) {
            if let Some(count) = counts.get_mut(key) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(key);
                }
            }
        }
        match item {
            Item::Port { switch, .. } => less(&mut self.ports, switch),
            Item::Memory(file) => less(&mut self.files, &file.id),
            _ => {}
        }
        // A file that is still lent elsewhere stays charged.
        let price = self.price(item);
        let held = item.resource().held_mut(&mut self.usage);
        *held = held.saturating_sub(price);
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
    refused: Usage,
    /// By user: the time up to which its new switches are paced.
    paces: HashMap<u32, Instant>,
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
        let mut book = locked(&self.ledger.book);
        if let Some(account) = book.accounts.get_mut(&self.uid) {
            account.remove(&self.item);
            if account.usage == Usage::default() && account.files.is_empty() {
                book.accounts.remove(&self.uid);
            }
        }
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
            refused: Usage::default(),
            paces: HashMap::new(),
        };
        Arc::new(Self { book: Mutex::new(book) })
    }

    /// Charges a user, if its limits allow the item.
    ///
    /// # Errors
    /// The user's limit, or the total limit, is reached.
    pub fn charge(self: &Arc<Self>, uid: u32, item: Item) -> Result<Charge, ApiError> {
        let mut book = locked(&self.book);
        if let Err(refusal) = book.check(uid, &item) {
            *item.resource().held_mut(&mut book.refused) += 1;
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

    /// How long a user must wait before making a switch, because each starts a process. A burst is
    /// free, then one switch per [`PACE`]. (The generic cell rate algorithm.)
    #[must_use]
    pub fn pace(&self, uid: u32, now: Instant) -> Duration {
        let mut book = locked(&self.book);
        if book.is_trusted(uid) {
            return Duration::ZERO;
        }
        book.paces.retain(|_, due| *due > now);
        let due = book.paces.get(&uid).copied().unwrap_or(now) + PACE;
        book.paces.insert(uid, due);
        due.saturating_duration_since(now + AT_ONCE * PACE)
    }

    /// Charges a user without checking limits: for what an operator adds, and what exists already.
    #[must_use]
    pub fn count(self: &Arc<Self>, uid: u32, item: Item) -> Charge {
        locked(&self.book).accounts.entry(uid).or_default().add(&item);
        Charge { ledger: Arc::clone(self), uid, item }
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
            usage: book.accounts.get(&uid).map(|account| account.usage).unwrap_or_default(),
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
        }
    }

    fn check(&self, uid: u32, item: &Item) -> Result<(), ApiError> {
        let resource = item.resource();
        let nothing = Account::default();
        let account = self.accounts.get(&uid).unwrap_or(&nothing);
        let limit = match resource.of(&self.quota(uid)) {
            None if !self.is_trusted(uid) => Some(self.default_limit(resource)),
            limit => limit.and_then(Limit::number),
        };
        let (has, price) = (resource.held(&account.usage), account.price(item));
        if let Some(limit) = limit
            && has.saturating_add(price) > limit
        {
            return Err(over(uid, item, has, limit));
        }
        self.room(item).map_or(Ok(()), |room| self.check_room(uid, item, price, room))
    }

    /// The total of the resource that an item counts towards.
    const fn room(&self, item: &Item) -> Option<u64> {
        match item {
            Item::Port { own: true, .. } => None,
            Item::Port { of, .. } => Some(*of),
            Item::Switch => Some(MAX_SWITCHES),
            Item::Pipe => Some(MAX_PIPES),
            Item::Connection => Some(MAX_CONNECTIONS),
            Item::Memory(_) | Item::State { .. } => Some(self.machine.memory),
        }
    }

    /// Checks that there is room for an item of this price in addition to what is kept for others.
    fn check_room(&self, uid: u32, item: &Item, price: u64, room: u64) -> Result<(), ApiError> {
        let held = |(_, account): (&u32, &Account)| account.held_beside(item);
        let resource = item.resource();
        let is_counted_here = !matches!(resource, Resource::Ports | Resource::Memory);
        if is_counted_here && self.accounts.iter().map(held).sum::<u64>() >= room {
            return Err(full(room, resource));
        }
        if price == 0 || self.is_trusted(uid) {
            return Ok(());
        }
        let strangers = self.accounts.iter().filter(|(uid, _)| !self.is_trusted(**uid));
        let left = (room - room / 8).saturating_sub(strangers.map(held).sum());
        let own = self.accounts.get(&uid).map_or(0, |account| account.held_beside(item));
        let by_default = resource.of(&self.quota(uid)).is_none();
        let quarter = resource == Resource::Ports && own >= (room / 4).max(1);
        if price > left || by_default && (quarter || own.saturating_add(price) > left) {
            return Err(for_others(uid, item, own, room));
        }
        Ok(())
    }
}

/// The error for a limit that is reached: which limit, and whom to ask.
fn over(uid: u32, item: &Item, has: u64, limit: u64) -> ApiError {
    let name = item.resource().name();
    let reason = match item {
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

fn for_others(uid: u32, item: &Item, own: u64, room: u64) -> ApiError {
    let name = item.resource().name();
    let whose = match item {
        Item::Port { switch, .. } => format!("{switch}'s {room} {name}"),
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
mod tests {
    use super::*;

    const MACHINE: Machine = Machine { descriptors: 4096, memory: 1 << 30 };

    fn ledger(base: Quota) -> Arc<Ledger> {
        Ledger::new(1000, base, MACHINE)
    }

    fn port(switch: &str) -> Item {
        Item::Port { switch: switch.into(), of: 16, own: false }
    }

    /// Charges as many items as the user may have.
    fn take_all(ledger: &Arc<Ledger>, uid: u32, item: &Item) -> Vec<Charge> {
        std::iter::from_fn(|| ledger.charge(uid, item.clone()).ok()).take(10_000).collect()
    }

    #[test]
    fn however_many_users_are_greedy_the_next_finds_room_and_root_more() {
        let ledger = ledger(Quota::default());
        let held: Vec<_> = (1..6).map(|uid| take_all(&ledger, uid, &Item::Pipe)).collect();
        assert!(held.iter().all(|held| !held.is_empty() && held.len() <= 128));
        assert!(!take_all(&ledger, 6, &Item::Pipe).is_empty());
        for trusted in [0, 1000] {
            assert!(ledger.charge(trusted, Item::Pipe).is_ok());
        }
        let ports = take_all(&ledger, 1, &port("a"));
        assert_eq!(ports.len(), 4, "a quarter of one switch's");
        assert_eq!(take_all(&ledger, 1, &port("b")).len(), 4, "and of another's");
        drop(ports);
        assert_eq!(take_all(&ledger, 1, &port("a")).len(), 4, "what is dropped is given back");
    }

    #[test]
    fn a_file_that_is_lent_twice_counts_once_until_its_last_charge_goes() {
        let base = Quota { memory: Some(Limit::AtMost(100)), ..Quota::default() };
        let ledger = ledger(base);
        let file = |id, len| Item::Memory(File { id: (1, id), len });
        let first = ledger.charge(1, file(1, 100)).unwrap();
        let second = ledger.charge(1, file(1, 100)).unwrap();
        assert_eq!(ledger.charge(1, file(2, 1)).unwrap_err().code, ErrorCode::Limit);
        drop(first);
        assert!(ledger.charge(1, file(2, 1)).is_err(), "it is lent still");
        drop(second);
        ledger.charge(1, file(2, 1)).unwrap();
        assert_eq!(ledger.info().refused.memory, 2);
        assert!(ledger.info().users.is_empty());
    }

    #[test]
    fn the_state_of_a_trusted_switch_counts_with_lent_memory() {
        let base = Quota { memory: Some(Limit::AtMost(100)), ..Quota::default() };
        let ledger = ledger(base);
        let state = |bytes| Item::State { switch: "vale9".into(), ports: 7, bytes };
        let held = ledger.charge(1, state(60)).unwrap();
        let file = Item::Memory(File { id: (1, 1), len: 40 });
        let lent = ledger.charge(1, file.clone()).unwrap();
        let refused = ledger.charge(1, state(1)).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Limit);
        assert!(refused.reason.contains("vale9 with 7 ports needs 1 bytes"), "{refused}");
        assert!(refused.remedy.contains("max_ports"), "{refused}");
        drop(held);
        assert_eq!(ledger.info().users[0].usage.memory, 40);
        drop(lent);
        assert!(ledger.info().users.is_empty());
    }

    #[test]
    fn switches_come_eight_at_once_and_then_one_in_a_while() {
        let ledger = ledger(Quota::default());
        let now = Instant::now();
        assert!((0..AT_ONCE).all(|_| ledger.pace(1, now).is_zero()));
        assert_eq!(ledger.pace(1, now), PACE);
        assert!(ledger.pace(2, now).is_zero() && ledger.pace(0, now).is_zero());
        assert!(ledger.pace(1, now + 3 * PACE).is_zero());
    }

    #[test]
    fn what_is_configured_comes_first_and_names_root_too() {
        let few = Quota { ports: Some(Limit::AtMost(2)), ..Quota::default() };
        let ledger = ledger(few);
        let held = take_all(&ledger, 1, &port("a"));
        assert_eq!(held.len(), 2);
        let one = Quota { ports: Some(Limit::AtMost(3)), ..Quota::default() };
        ledger.configure(Quotas { each: Quota::default(), user: [(0, one), (1, one)].into() });
        assert_eq!(take_all(&ledger, 1, &port("a")).len(), 1);
        assert_eq!(take_all(&ledger, 0, &port("b")).len(), 3);
        assert_eq!(take_all(&ledger, 2, &port("b")).len(), 2, "as the daemon was started");
    }
}
