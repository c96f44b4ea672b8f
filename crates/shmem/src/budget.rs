//! Limits on what lent memory may cost this process: address space and mappings.
//!
//! A peer decides how much is mapped, but a process has limited room. Most machines have 128 TiB of
//! addresses and `vm.max_map_count` mappings, and each mapping takes an entry of the
//! [guard](crate::guard)'s table. So every mapping of lent memory, and every reservation for a
//! peer, is charged to the [`Account`] of a port. Unmapping it returns the charge.
//!
//! ```text
//!                      Budget: all that may be mapped
//!   +---------------------------------------------+------------------------+
//!   | guaranteed: an equal share for every port   | shared by all          |
//!   +---------------------------------------------+------------------------+
//!     an account takes its own share first,         then here: at most half of it for one user
//! ```
//!
//! Three limits hold at once: of a port, of a user, and of all together. A port always gets its
//! share, so a guest of usual size is served despite any number of greedy ones.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Part of the bytes that is guaranteed to ports: one half.
const GUARANTEED_BYTES: (u64, u64) = (1, 2);
/// Part of the mappings that is guaranteed: three quarters, because a guest needs a few, whatever
/// its size.
const GUARANTEED_MAPPINGS: (u64, u64) = (3, 4);
/// The part of the shared budget that one user may take, unless user limits say otherwise: one
/// half.
const USERS_PART: u64 = 2;

/// An amount of address space and of mappings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Bytes of address space.
    pub bytes: u64,
    /// Mappings: entries of the kernel's table and of the guard's.
    pub mappings: u64,
}

impl Extent {
    /// No limit.
    pub const MAX: Self = Self { bytes: u64::MAX, mappings: u64::MAX };

    fn each(self, other: Self, of: impl Fn(u64, u64) -> u64) -> Self {
        Self { bytes: of(self.bytes, other.bytes), mappings: of(self.mappings, other.mappings) }
    }

    fn add(self, other: Self) -> Self {
        self.each(other, u64::saturating_add)
    }

    fn minus(self, other: Self) -> Self {
        self.each(other, u64::saturating_sub)
    }

    fn within(self, most: Self) -> Result<(), What> {
        if self.bytes > most.bytes {
            return Err(What::Bytes);
        }
        if self.mappings > most.mappings { Err(What::Mappings) } else { Ok(()) }
    }

    fn of(self, what: What) -> u64 {
        match what {
            What::Bytes => self.bytes,
            What::Mappings => self.mappings,
        }
    }
}

/// The resource that ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Bytes of address space.
    Bytes,
    /// Mappings.
    Mappings,
}

/// The holder of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// One port's.
    Port,
    /// One user's.
    User,
    /// All ports together.
    All,
}

/// A mapping would exceed a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "Mapping {wanted} more {what} would exceed the limit of {whose}, {most}, of which {used} are in use; {}",
    self.remedy()
)]
pub struct OverBudget {
    /// The holder of the limit.
    pub whose: Whose,
    /// The resource.
    pub what: What,
    /// How much was requested.
    pub wanted: u64,
    /// How much of the resource is in use already.
    pub used: u64,
    /// The limit.
    pub most: u64,
}

impl OverBudget {
    /// What the operator can do about the refusal.
    fn remedy(&self) -> &'static str {
        match (self.whose, self.what) {
            (Whose::Port, What::Bytes) => {
                "raise it: toklat switch set SWITCH --max-guest-memory BYTES"
            }
            (Whose::Port, What::Mappings) => "have memory shared in fewer pieces",
            (Whose::User, What::Bytes) => "raise the user's quota of memory",
            (Whose::All, What::Bytes) => {
                "raise it: toklat switch set SWITCH --max-mapped-memory BYTES"
            }
            (Whose::User | Whose::All, What::Mappings) => {
                "raise vm.max_map_count, then use toklat upgrade"
            }
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bytes => "bytes",
            Self::Mappings => "mappings",
        })
    }
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Port => "the port",
            Self::User => "its user",
            Self::All => "all ports",
        })
    }
}

/// Limits of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The limit of one port.
    pub port: Extent,
    /// The limit of all ports together.
    pub all: Extent,
    /// The maximum number of ports; each is guaranteed a share.
    pub ports: u64,
}

impl Limits {
    /// The share that each port is guaranteed.
    #[must_use]
    pub fn guaranteed(&self) -> Extent {
        let share = |all: u64, (part, of): (u64, u64)| all / of * part / self.ports.max(1);
        Extent {
            bytes: share(self.all.bytes, GUARANTEED_BYTES),
            mappings: share(self.all.mappings, GUARANTEED_MAPPINGS),
        }
    }

    /// Returns how much all ports together may use beyond their guaranteed shares.
    #[must_use]
    pub fn shared(&self) -> Extent {
        let rest = |all: u64, (part, of): (u64, u64)| all - all / of * part;
        Extent {
            bytes: rest(self.all.bytes, GUARANTEED_BYTES),
            mappings: rest(self.all.mappings, GUARANTEED_MAPPINGS),
        }
    }
}

/// What users may have mapped, in bytes; [`u64::MAX`] for no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserLimits {
    /// The limit of every user without a named limit; `None` for the default part.
    pub each: Option<u64>,
    /// The limits of named users.
    pub named: HashMap<u32, Option<u64>>,
}

/// What a process has mapped for all ports, and its limits.
#[derive(Debug)]
pub struct Budget(Mutex<Books>);

#[derive(Debug)]
struct Books {
    limits: Limits,
    user_limits: UserLimits,
    /// The part of all accounts beyond their guaranteed shares.
    shared: Extent,
    users: HashMap<u32, User>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct User {
    used: Extent,
    /// How much of the shared part the user has taken.
    shared: Extent,
}

impl Budget {
    /// An unused budget.
    #[must_use]
    pub fn new(limits: Limits) -> Arc<Self> {
        let user_limits = UserLimits::default();
        let (shared, users) = (Extent::default(), HashMap::new());
        Arc::new(Self(Mutex::new(Books { limits, user_limits, shared, users })))
    }

    /// Changes the limits. Mappings above them stay, but further ones are refused.
    pub fn set_limits(&self, limits: Limits) {
        self.books().limits = limits;
    }

    /// Changes the limits of users. Mappings above them stay, but further ones are refused.
    pub fn set_user_limits(&self, limits: UserLimits) {
        self.books().user_limits = limits;
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        locked(&self.0)
    }
}

/// A change under these locks cannot panic halfway, so poisoning is harmless.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Books {
    /// Returns what an account that has `used` would take from the shared part by taking `more`, if
    /// that is allowed.
    fn check(&self, uid: u32, used: Extent, more: Extent) -> Result<Extent, OverBudget> {
        let over = |whose, used: Extent, most: Extent| {
            move |what: What| {
                let (wanted, used, most) = (more.of(what), used.of(what), most.of(what));
                OverBudget { whose, what, wanted, used, most }
            }
        };
        let most = self.limits.port;
        used.add(more).within(most).map_err(over(Whose::Port, used, most))?;
        let guaranteed = self.limits.guaranteed();
        let beyond = used.add(more).minus(guaranteed).minus(used.minus(guaranteed));
        let user = self.users.get(&uid).copied().unwrap_or_default();
        let shared = self.limits.shared();
        match *self.user_limits.named.get(&uid).unwrap_or(&self.user_limits.each) {
            Some(u64::MAX) => {}
            Some(bytes) => {
                let most = Extent { bytes, ..Extent::MAX };
                user.used.add(more).within(most).map_err(over(Whose::User, user.used, most))?;
            }
            None => {
                let most = shared.each(shared, |all, _| all / USERS_PART);
                let sum = user.shared.add(beyond);
                sum.within(most).map_err(over(Whose::User, user.shared, most))?;
            }
        }
        self.shared.add(beyond).within(shared).map_err(over(Whose::All, self.shared, shared))?;
        Ok(beyond)
    }
}

/// What is mapped for one port.
#[derive(Debug)]
pub struct Account {
    budget: Arc<Budget>,
    uid: u32,
    /// Written under the budget's lock.
    bytes: AtomicU64,
    mappings: AtomicU64,
    shared_bytes: AtomicU64,
    shared_mappings: AtomicU64,
    refused: AtomicU64,
    /// The limit that caused the last refusal.
    refused_by: Mutex<Option<Whose>>,
}

impl Account {
    /// An account of a port of user `uid`.
    #[must_use]
    pub fn new(budget: &Arc<Budget>, uid: u32) -> Arc<Self> {
        Arc::new(Self {
            budget: Arc::clone(budget),
            uid,
            bytes: AtomicU64::new(0),
            mappings: AtomicU64::new(0),
            shared_bytes: AtomicU64::new(0),
            shared_mappings: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            refused_by: Mutex::new(None),
        })
    }

    /// An account without limits, in its own budget.
    #[must_use]
    pub fn unlimited() -> Arc<Self> {
        let limits = Limits { port: Extent::MAX, all: Extent::MAX, ports: 1 };
        let budget = Budget::new(limits);
        budget.set_user_limits(UserLimits { each: Some(u64::MAX), named: HashMap::new() });
        Self::new(&budget, 0)
    }

    /// How much is mapped.
    #[must_use]
    pub fn used(&self) -> Extent {
        let (bytes, mappings) = (&self.bytes, &self.mappings);
        Extent { bytes: bytes.load(Ordering::Relaxed), mappings: mappings.load(Ordering::Relaxed) }
    }

    /// How many mappings were refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// The limit that caused the last refusal.
    #[must_use]
    pub fn refused_by(&self) -> Option<Whose> {
        *locked(&self.refused_by)
    }

    /// True if one mapping of `bytes` bytes could be [charged](Self::charge).
    #[must_use]
    pub fn allows(&self, bytes: u64) -> bool {
        let more = Extent { bytes, mappings: 1 };
        self.budget.books().check(self.uid, self.used(), more).is_ok()
    }

    /// Charges one mapping of `bytes` bytes.
    ///
    /// # Errors
    /// [`OverBudget`]: do not make the mapping.
    pub fn charge(self: &Arc<Self>, bytes: u64) -> Result<Charge, OverBudget> {
        let more = Extent { bytes, mappings: 1 };
        let mut books = self.budget.books();
        let beyond = books.check(self.uid, self.used(), more).inspect_err(|over| {
            self.refused.fetch_add(1, Ordering::Relaxed);
            *locked(&self.refused_by) = Some(over.whose);
        })?;
        books.shared = books.shared.add(beyond);
        let user = books.users.entry(self.uid).or_default();
        *user = User { used: user.used.add(more), shared: user.shared.add(beyond) };
        self.set(self.used().add(more), self.shared().add(beyond));
        drop(books);
        Ok(Charge { account: Arc::clone(self), extent: more })
    }

    /// How much of the shared part is used.
    fn shared(&self) -> Extent {
        let (bytes, mappings) = (&self.shared_bytes, &self.shared_mappings);
        Extent { bytes: bytes.load(Ordering::Relaxed), mappings: mappings.load(Ordering::Relaxed) }
    }

    fn set(&self, used: Extent, shared: Extent) {
        self.bytes.store(used.bytes, Ordering::Relaxed);
        self.mappings.store(used.mappings, Ordering::Relaxed);
        self.shared_bytes.store(shared.bytes, Ordering::Relaxed);
        self.shared_mappings.store(shared.mappings, Ordering::Relaxed);
    }

    fn give_back(&self, less: Extent) {
        let mut books = self.budget.books();
        let used = self.used().minus(less);
        // Limits may have changed since: return no more than was taken.
        let beyond = used.minus(books.limits.guaranteed());
        let shared = self.shared().each(beyond, u64::min);
        let returned = self.shared().minus(shared);
        books.shared = books.shared.minus(returned);
        if let Some(user) = books.users.get_mut(&self.uid) {
            *user = User { used: user.used.minus(less), shared: user.shared.minus(returned) };
            if user.used == Extent::default() {
                books.users.remove(&self.uid);
            }
        }
        self.set(used, shared);
    }
}

/// The charge for a mapping. Dropping it returns the charge.
#[derive(Debug)]
pub struct Charge {
    account: Arc<Account>,
    extent: Extent,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.give_back(self.extent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four ports are guaranteed 10 bytes and 3 mappings each; 40 bytes and 4 mappings are shared.
    fn budget() -> Arc<Budget> {
        let port = Extent { bytes: 35, mappings: 6 };
        Budget::new(Limits { port, all: Extent { bytes: 80, mappings: 16 }, ports: 4 })
    }

    fn over(refused: Result<Charge, OverBudget>) -> (Whose, What) {
        let refused = refused.unwrap_err();
        (refused.whose, refused.what)
    }

    #[test]
    fn a_port_has_a_limit_and_gets_back_what_it_gives_back() {
        let account = Account::new(&budget(), 7);
        assert!(account.allows(30) && !account.allows(31));
        let charges = [account.charge(5).unwrap(), account.charge(25).unwrap()];
        assert!(!account.allows(1));
        assert_eq!(account.used(), Extent { bytes: 30, mappings: 2 });
        assert_eq!(over(account.charge(6)), (Whose::Port, What::Bytes));
        assert_eq!(over(account.charge(u64::MAX)), (Whose::Port, What::Bytes));
        let error = account.charge(6).unwrap_err();
        assert_eq!((error.wanted, error.used, error.most), (6, 30, 35));
        drop(charges);
        assert_eq!(account.used(), Extent::default());
        let charges: Vec<_> = (0..5).map(|_| account.charge(1).unwrap()).collect();
        assert_eq!((charges.len(), account.refused()), (5, 3));
        assert_eq!(account.refused_by(), Some(Whose::Port));
        // The port takes three mappings of its own, and two of the four shared ones: half of them.
        assert_eq!(over(account.charge(1)), (Whose::User, What::Mappings));
    }

    /// A front end of the largest size leaves the others their guaranteed shares.
    #[test]
    fn what_is_guaranteed_is_there_whatever_others_take() {
        let budget = budget();
        let greedy = [Account::new(&budget, 1), Account::new(&budget, 2)];
        let taken = greedy.each_ref().map(|account| account.charge(30).unwrap());
        assert_eq!(over(greedy[0].charge(1)), (Whose::User, What::Bytes));
        let third = Account::new(&budget, 3);
        assert_eq!(over(third.charge(11)), (Whose::All, What::Bytes));
        let own = third.charge(10).unwrap();
        assert_eq!(over(third.charge(1)), (Whose::All, What::Bytes));
        drop(taken);
        let more = third.charge(20).unwrap();
        drop((own, more));
        assert_eq!(budget.books().shared, Extent::default());
        assert!(budget.books().users.is_empty());
    }

    #[test]
    fn users_have_limits_of_their_own() {
        let budget = budget();
        let named = HashMap::from([(1, Some(u64::MAX)), (2, None)]);
        budget.set_user_limits(UserLimits { each: Some(12), named });
        let [free, usual, bound] = [1, 2, 3].map(|uid| Account::new(&budget, uid));
        let all = free.charge(35).unwrap();
        assert_eq!(over(usual.charge(31)), (Whose::User, What::Bytes));
        let twice = [bound.charge(6).unwrap(), bound.charge(6).unwrap()];
        assert_eq!(over(bound.charge(1)), (Whose::User, What::Bytes));
        drop((all, twice));
    }

    #[test]
    fn limits_that_change_lose_nothing() {
        let budget = budget();
        let account = Account::new(&budget, 1);
        let (first, second) = (account.charge(15).unwrap(), account.charge(10).unwrap());
        assert_eq!(budget.books().shared.bytes, 15);
        let before = budget.books().limits;
        for bytes in [40, 800] {
            budget.set_limits(Limits { all: Extent { bytes, mappings: 16 }, ..before });
            let _ = account.charge(2);
        }
        drop(first);
        budget.set_limits(before);
        drop(second);
        assert_eq!((budget.books().shared, account.used()), Default::default());
    }
}
