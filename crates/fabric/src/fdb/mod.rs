//! The forwarding table: it maps addresses to ports.
//!
//! ```text
//!   (filter, MAC) --hash--> a bucket of four entries, a cache line; a second one when that is full
//! ```
//!
//! Every worker looks addresses up without a lock; a sequence number per bucket detects torn reads.
//! Changes take one mutex, because learning a *new* or *moved* address is rare. Refreshing a known
//! one is a plain store of the second in which it was seen. The table is in memory that outlives a
//! data process.
//!
//! A *filter* is the domain in which addresses are looked up: 0 for ports that are not VLAN-aware,
//! else the VLAN id (IEEE 802.1Q, 8.8: independent learning).
//!
//! A random key in the table seeds the hash. So no sender can choose addresses that fill the two
//! buckets of another address.
//!
//! The [`ledger`] says how many addresses each port and user may learn, whose are evicted from a
//! full table, and where an address stays that moves too often.

mod entries;
mod ledger;
mod station;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use frame::{Mac, VlanId};
use port::Nanos;
use serde::{Deserialize, Serialize};
use shmem::{Mapping, Shared};

pub use self::entries::Entries;
pub(crate) use self::entries::Place;
use self::entries::{Bucket, WAYS, seed_of, set_seed};
use self::ledger::{Ledger, Moved};
pub use self::station::{Origin, Station};
use crate::Journal;

/// How many buckets are searched for an entry to evict in favour of another user's.
const SWEEP: u32 = 64;
/// Set in every key, so that no key is 0.
const USED: u64 = 1 << 63;

/// The result of learning a source address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// The address is in the table, at this port.
    Known,
    /// The address moved too often lately and stays where it was, or an origin with precedence says
    /// it is elsewhere.
    Refused,
    /// The table is full, or the share of the port, its user or the origin is used up.
    NoRoom,
}

/// An entry for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FdbEntry {
    /// The address.
    pub mac: Mac,
    /// The address's VLAN, if its port is VLAN-aware.
    pub vlan: Option<VlanId>,
    /// The port's number.
    pub port: u16,
    /// The destination behind the port; 0 for the port itself.
    pub via: u16,
    /// How the table knows the address.
    pub origin: Origin,
    /// Seconds since the last frame from it.
    pub age_s: u32,
}

/// The forwarding table of a switch.
#[derive(Debug)]
pub struct Fdb {
    entries: Entries,
    limit: u32,
    writer: Mutex<Ledger>,
    /// Increases whenever entries move or go, so that senders forget the source they saw last.
    ///
    /// # Protocol: `Fdb.generation`
    /// - Writer: the holder of the lock
    /// - Reader: workers, once a turn
    /// - Ordering: add release / load acquire
    /// - Partner: the entry
    /// - Without it: a sender keeps its old source for up to a second, and is not learned meanwhile
    /// - Shown by: `fdb`, `switch` tests
    generation: AtomicU64,
    /// The journal, in which an observer reads which local stations came and went.
    journal: Option<Shared<Journal>>,
}

/// The filter of a frame: 0, or a VLAN id.
pub type Filter = u16;

/// An address with its filter, as one word.
#[inline(always)]
pub(crate) fn key_of(filter: Filter, mac: u64) -> u64 {
    mac | u64::from(filter) << 48
}

/// The key as stored in the table.
#[inline(always)]
fn entry_of(filter: Filter, mac: u64) -> u64 {
    key_of(filter, mac) | USED
}

/// The filter of an entry's key.
pub(crate) fn filter_in(key: u64) -> Filter {
    (key >> 48) as u16 & 0xfff
}

impl Fdb {
    /// Bytes of memory for a table of `entries` entries.
    #[must_use]
    pub fn bytes(entries: u32) -> usize {
        Self::bucket_count(entries) as usize * size_of::<Bucket>()
    }

    /// The table stays at most half full, so a move almost always finds a slot.
    fn bucket_count(entries: u32) -> u32 {
        (entries.clamp(16, 1 << 20) / 2).next_power_of_two()
    }

    /// Opens the table at byte `at` of a mapping, and keeps the entries that are there. `None` if
    /// it does not fit there.
    #[must_use]
    pub fn open(mapping: &Arc<Mapping>, at: usize, entries: u32, ports: usize) -> Option<Self> {
        let count = Self::bucket_count(entries);
        let buckets = mapping.shared_slice::<Bucket>(at, count as usize)?;
        let mut writer = Ledger::new(ports, entries);
        take_stock(&buckets, &mut writer);
        let seed = seed_of(&buckets[0], &buckets[1]);
        Some(Self {
            entries: Entries { mask: count - 1, seed, buckets },
            limit: entries,
            writer: Mutex::new(writer),
            generation: AtomicU64::new(0),
            journal: None,
        })
    }

    /// Chooses the key of the hash of an empty table before it is [opened](Self::open), for runs
    /// that are to be repeated. Otherwise it is random.
    pub fn seed(mapping: &Arc<Mapping>, at: usize, entries: u32, seed: u64) {
        let count = Self::bucket_count(entries) as usize;
        if let Some(buckets) = mapping.shared_slice::<Bucket>(at, count) {
            set_seed(&buckets[0], &buckets[1], seed);
        }
    }

    /// The same table, which notes in `journal` which local stations come, move and go.
    #[must_use]
    pub fn with_journal(self, journal: Shared<Journal>) -> Self {
        Self { journal: Some(journal), ..self }
    }

    /// Takes stock of what another writer of the same memory has left, who may have died: empties
    /// half-written buckets and counts the entries again. No writer may be at work.
    pub fn take_stock(&self) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        writer.forget_counts();
        take_stock(&self.entries.buckets, &mut writer);
        self.note_moves();
    }

    /// Notes that another writer of the same memory may have moved or removed entries.
    pub fn note_moves(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Notes that an entry changed. The caller holds the lock.
    fn note(&self, key: u64, before: Option<Station>, after: Option<Station>) {
        if let Some(journal) = &self.journal {
            journal.note(key, before, after);
        }
    }

    /// A table in private memory, for inline switches and tests.
    ///
    /// # Errors
    /// [`shmem::RegionError`] when there is no memory.
    pub fn private(entries: u32, ports: usize) -> Result<Self, shmem::RegionError> {
        let mapping = Mapping::private(Self::bytes(entries))?;
        let too_small = shmem::RegionError::TooSmall { len: mapping.len() };
        Self::open(&mapping, 0, entries, ports).ok_or(too_small)
    }

    /// Counts moves and removals. Compare it to tell whether cached results are still valid.
    #[inline]
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The entries, for lookups without the rest of the table.
    #[must_use]
    pub fn entries(&self) -> &Entries {
        &self.entries
    }

    /// The station of an address.
    #[inline]
    #[must_use]
    pub fn lookup(&self, filter: Filter, mac: u64) -> Option<Station> {
        self.entries.lookup(filter, mac)
    }

    /// The place where an address is looked up first; prefetches it.
    #[inline(always)]
    pub(crate) fn fetch(&self, filter: Filter, mac: u64) -> Place {
        self.entries.fetch(filter, mac)
    }

    /// Like [`lookup`](Self::lookup), for an address whose place is known.
    #[inline(always)]
    pub(crate) fn lookup_at(&self, place: Place, filter: Filter, mac: u64) -> Option<Station> {
        self.entries.lookup_at(place, filter, mac)
    }

    /// Notes that a frame from `mac` came from `there`. `limit` bounds the addresses of the port.
    /// With `guard`, an address that moves too often stays where it is.
    pub fn learn(
        &self,
        filter: Filter,
        mac: u64,
        there: Station,
        limit: u32,
        guard: bool,
        now: Nanos,
    ) -> Learned {
        let key = entry_of(filter, mac);
        match self.entries.find(key) {
            Some((bucket, way, known)) if known.is_same_place(there) => {
                bucket.seen[way].store(now.seconds() as u16, Ordering::Relaxed);
                Learned::Known
            }
            Some((_, _, known)) if known.outranks(there) => Learned::Refused,
            None if limit == 0 => Learned::NoRoom,
            _ => self.learn_slowly(key, there, limit, guard, now),
        }
    }

    /// Adds or moves an entry under the lock. The entry may have changed since it was read without
    /// the lock.
    #[cold]
    fn learn_slowly(
        &self,
        key: u64,
        there: Station,
        limit: u32,
        guard: bool,
        now: Nanos,
    ) -> Learned {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.entries.find(key).map(|(_, _, known)| known);
        match known {
            Some(known) if known.is_same_place(there) => return Learned::Known,
            Some(known) if known.outranks(there) => return Learned::Refused,
            _ if writer.of(there.port()) >= limit => return Learned::NoRoom,
            _ => (),
        }
        let Some(known) = known else { return self.put(&mut writer, key, there, now) };
        match writer.moves(key, known, there, now) {
            Moved::Home(home) if guard => {
                if home != known {
                    self.put(&mut writer, key, home, now);
                }
                if home.is_same_place(there) { Learned::Known } else { Learned::Refused }
            }
            _ => self.put(&mut writer, key, there, now),
        }
    }

    /// Writes an entry over the one with its key, or where there is room.
    fn put(&self, writer: &mut Ledger, key: u64, station: Station, now: Nanos) -> Learned {
        if let Some((bucket, way, earlier)) = self.entries.find(key) {
            writer.count(earlier, -1);
            writer.count(station, 1);
            bucket.write(way, key, station, now.seconds() as u16);
            self.note(key, Some(earlier), Some(station));
            // Senders that saw the address last must learn it again if it comes back.
            self.generation.fetch_add(1, Ordering::Release);
            return Learned::Known;
        }
        let full = |writer: &Ledger| writer.entries() >= self.limit;
        if !writer.may_add(station) || full(writer) && !self.evict(writer, station) {
            return Learned::NoRoom;
        }
        let Some((bucket, way)) = self.make_room(key) else { return Learned::NoRoom };
        writer.count(station, 1);
        bucket.write(way, key, station, now.seconds() as u16);
        self.note(key, None, Some(station));
        Learned::Known
    }

    /// Evicts a learned entry of the user who has the most, if that is more than the user of
    /// `station`'s port has. Returns false if it found none. It searches a bounded number of
    /// buckets; the next call continues there.
    fn evict(&self, writer: &mut Ledger, station: Station) -> bool {
        let Some(heaviest) = writer.heavier_than(station) else { return false };
        for _ in 0..SWEEP.min(self.entries.mask + 1) {
            let bucket = &self.entries.buckets[(writer.next_hand() & self.entries.mask) as usize];
            for way in bucket.used() {
                let (_, known, _) = bucket.entry(way);
                if known.origin().is_dynamic() && writer.user_of(known) == heaviest {
                    self.take_out(writer, bucket, way);
                    self.generation.fetch_add(1, Ordering::Release);
                    return true;
                }
            }
        }
        false
    }

    fn take_out(&self, writer: &mut Ledger, bucket: &Bucket, way: usize) {
        let (key, station, _) = bucket.entry(way);
        writer.count(station, -1);
        writer.forget(key);
        bucket.clear(way);
        self.note(key, Some(station), None);
    }

    /// Limits the number of entries of an origin.
    pub fn set_capacity(&self, origin: Origin, entries: u32) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        writer.set_capacity(origin, entries);
    }

    /// Sets the user of a port, and how many addresses that user may learn over all ports. `None`
    /// means the default share, half of the table.
    pub fn set_user(&self, port: u16, user: u32, quota: Option<u32>) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        writer.set_user(port, user, quota.unwrap_or(self.limit / 2));
    }

    /// Finds a free way for `key`: in its first bucket, else in its second, else by moving an entry
    /// to that entry's other bucket.
    fn make_room(&self, key: u64) -> Option<(&Bucket, usize)> {
        let hash = self.entries.hash(key);
        let buckets = [self.entries.first(Place::of(hash)), self.entries.second(hash)];
        let free = buckets.into_iter().find_map(|bucket| Some((bucket, bucket.free()?)));
        let ways = |bucket| (0..WAYS).map(move |way| (bucket, way));
        let movable = |(bucket, way): &(&Bucket, usize)| self.move_away(bucket, *way);
        free.or_else(|| buckets.into_iter().flat_map(ways).find(movable))
    }

    /// Moves an entry to its other bucket; false if that is full. A concurrent lookup may miss it;
    /// then the frame is flooded.
    fn move_away(&self, bucket: &Bucket, way: usize) -> bool {
        let (key, station, seen) = bucket.entry(way);
        let hash = self.entries.hash(key);
        let (first, second) = (self.entries.first(Place::of(hash)), self.entries.second(hash));
        let other = if std::ptr::eq(first, bucket) { second } else { first };
        let Some(free) = other.free() else { return false };
        bucket.clear(way);
        other.write(free, key, station, seen);
        true
    }

    /// Adds a static entry, which stays until it is removed, or makes a learned one static. Returns
    /// false if there is no room, or if `mac` is a group address or zero, which no port can have.
    pub fn add_static(&self, filter: Filter, mac: Mac, port: u16, now: Nanos) -> bool {
        self.enter(filter, mac, Station::at(port, Origin::Static), now) == Learned::Known
    }

    /// Adds an entry that no frame made, or replaces one of the same or lower precedence. Returns
    /// [`Learned::Refused`] if `mac` is a group address or zero, which no station can have.
    pub fn enter(&self, filter: Filter, mac: Mac, station: Station, now: Nanos) -> Learned {
        self.enter_over(filter, mac, station, now, |known| known.outranks(station))
    }

    /// As [`enter`](Self::enter), for a station behind another host. What was reported earlier does
    /// not hold it, so a sticky station can be an ordinary one afterwards.
    pub fn enter_remote(&self, filter: Filter, mac: Mac, station: Station, now: Nanos) -> Learned {
        let holds = |known: Station| known.outranks(station) && known.origin() != Origin::Sticky;
        self.enter_over(filter, mac, station, now, holds)
    }

    /// As [`enter`](Self::enter), for a station that is known to have moved away from a local port:
    /// an entry that frames made does not hold it. Only a static one does.
    pub fn enter_moved(&self, filter: Filter, mac: Mac, station: Station, now: Nanos) -> Learned {
        let holds = |known: Station| known.origin() == Origin::Static;
        self.enter_over(filter, mac, station, now, holds)
    }

    /// Adds an entry, unless one that `holds` is there.
    fn enter_over(
        &self,
        filter: Filter,
        mac: Mac,
        station: Station,
        now: Nanos,
        holds: impl Fn(Station) -> bool,
    ) -> Learned {
        if mac.is_group() || mac.word() == 0 {
            return Learned::Refused;
        }
        let key = entry_of(filter, mac.word());
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        match self.entries.find(key) {
            Some((_, _, known)) if holds(known) => Learned::Refused,
            _ => self.put(&mut writer, key, station, now),
        }
    }

    /// Removes an address that another host reported behind `port`; false if none is there.
    pub fn leave(&self, filter: Filter, mac: Mac, port: u16) -> bool {
        let key = entry_of(filter, mac.word());
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let found = self.entries.find(key).filter(|(_, _, known)| {
            known.port() == port && matches!(known.origin(), Origin::Remote | Origin::Sticky)
        });
        let Some((bucket, way, _)) = found else { return false };
        self.take_out(&mut writer, bucket, way);
        self.generation.fetch_add(1, Ordering::Release);
        true
    }

    /// Removes an address; false if it was not there.
    pub fn remove(&self, filter: Filter, mac: Mac) -> bool {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((bucket, way, _)) = self.entries.find(entry_of(filter, mac.word())) else {
            return false;
        };
        self.take_out(&mut writer, bucket, way);
        self.generation.fetch_add(1, Ordering::Release);
        true
    }

    /// Forgets learned addresses: all, or those at `port`, or those of `filter`. Static ones stay.
    pub fn flush(&self, port: Option<u16>, filter: Option<Filter>) -> u32 {
        self.remove_where(|key, known, _| {
            known.origin().is_dynamic()
                && port.is_none_or(|port| known.port() == port)
                && filter.is_none_or(|filter| filter_in(key) == filter)
        })
    }

    /// Forgets everything at `port`, static entries too, because the port is gone.
    pub fn detach(&self, port: u16) -> u32 {
        self.remove_where(|_, known, _| known.port() == port)
    }

    /// Forgets learned addresses that were not seen for `seconds` (at most 32,766; 0: none). Call
    /// it often: ages wrap after 65,536 seconds. Ages in the upper half count as the future,
    /// because an address may have been seen after `now` was read.
    pub fn age(&self, seconds: u32, now: Nanos) -> u32 {
        let now = now.seconds() as u16;
        let limit = seconds.min(32_766) as i16;
        if limit == 0 {
            return 0;
        }
        self.remove_where(|_, known, seen| {
            known.origin().is_dynamic() && now.wrapping_sub(seen) as i16 > limit
        })
    }

    fn remove_where(&self, mut which: impl FnMut(u64, Station, u16) -> bool) -> u32 {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut removed = 0;
        for bucket in self.entries.buckets.iter() {
            for way in bucket.used() {
                let (key, known, seen) = bucket.entry(way);
                if which(key, known, seen) {
                    self.take_out(&mut writer, bucket, way);
                    removed += 1;
                }
            }
        }
        if removed > 0 {
            self.generation.fetch_add(1, Ordering::Release);
        }
        removed
    }

    /// Entries in the table.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner).entries()
    }

    /// True if the table is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads the entries of the table at byte `at` of a mapping, in no order, for an observer. May
    /// miss or repeat an entry that moves meanwhile. `None` if no such table fits there.
    #[must_use]
    pub fn read(
        mapping: &Arc<Mapping>,
        at: usize,
        entries: u32,
        now: Nanos,
    ) -> Option<Vec<FdbEntry>> {
        let count = Self::bucket_count(entries) as usize;
        let buckets = mapping.shared_slice::<Bucket>(at, count)?;
        let mut entries = Vec::new();
        for bucket in buckets.iter() {
            for way in bucket.used() {
                let (key, known, seen) = bucket.entry(way);
                entries.push(FdbEntry {
                    mac: Mac::from_word(key),
                    vlan: VlanId::new(filter_in(key)),
                    port: known.port(),
                    via: known.via(),
                    origin: known.origin(),
                    age_s: u32::from((now.seconds() as u16).wrapping_sub(seen)),
                });
            }
        }
        Some(entries)
    }
}

/// Counts the entries of a table whose writer may have died.
fn take_stock(buckets: &[Bucket], writer: &mut Ledger) {
    for bucket in buckets {
        // A writer died while it changed the bucket, so the content is unreliable.
        if bucket.sequence.load(Ordering::Relaxed) & 1 != 0 {
            bucket.keys.iter().for_each(|key| key.store(0, Ordering::Relaxed));
            bucket.sequence.store(0, Ordering::Release);
        }
        for way in bucket.used() {
            writer.count(bucket.entry(way).1, 1);
        }
    }
}

#[cfg(test)]
mod tests;
