//! The entries of a forwarding table, and lookups in them.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use shmem::{Shareable, SharedSlice};

use super::{Filter, Station, entry_of};

/// Entries of a bucket.
pub(super) const WAYS: usize = 4;
/// A word that no entry has.
const NO_WORD: u32 = u32::MAX;

#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Bucket {
    /// Odd while a writer changes the bucket.
    ///
    /// # Protocol: `Bucket.sequence` (forwarding table)
    /// - Writer: the holder of the table's lock: odd, the entry, even
    /// - Reader: workers, which look up without it
    /// - Ordering: odd: relaxed store, fence release; even: store release / load acquire, the
    ///   entry, fence acquire, load relaxed
    /// - Partner: `keys`, `words` of the bucket (relaxed); `Fdb::open` finds a writer that died
    /// - Without it: a lookup finds an address at the port of another that took its place
    /// - Shown by: `fdb` test `a_read_beside_a_write_is_of_one_entry`
    pub(super) sequence: AtomicU32,
    /// The first two buckets hold the halves of the hash's key here; both are 0 before the first
    /// use.
    ///
    /// # Protocol: `Bucket.seed` (forwarding table)
    /// - Writer: data process, at the table's first use
    /// - Reader: the same and its successors, as they start
    /// - Ordering: relaxed: before there are workers
    /// - Without it: entries are not found again
    /// - Shown by: `fdb` tests
    pub(super) seed: AtomicU32,
    /// MAC in the low 48 bits, filter above, the highest bit set; 0 means no entry.
    pub(super) keys: [AtomicU64; WAYS],
    /// Each a [`Station`].
    pub(super) words: [AtomicU32; WAYS],
    /// Second in which the address was last seen, modulo 65,536.
    ///
    /// # Protocol: `Bucket.seen`
    /// - Writer: any worker that hears the address; the holder of the lock
    /// - Reader: ageing
    /// - Ordering: relaxed
    /// - Without it: an address is forgotten a little early or late
    /// - Shown by: `fdb` tests
    pub(super) seen: [AtomicU16; WAYS],
}

// SAFETY: the type consists of atomics only, 64 bytes without padding between them.
unsafe impl Shareable for Bucket {}

const _: () = assert!(size_of::<Bucket>() == 64);

/// The bucket in which an address is looked up first: the lower half of its hash.
#[derive(Clone, Copy)]
pub(crate) struct Place(pub u32);

impl Place {
    #[inline(always)]
    pub(super) fn of(hash: u64) -> Self {
        Self(hash as u32)
    }
}

/// The entries of a table, for lookups.
#[derive(Clone, Debug)]
pub struct Entries {
    pub(super) buckets: SharedSlice<Bucket>,
    pub(super) mask: u32,
    /// The key of the hash.
    pub(super) seed: u64,
}

impl Entries {
    #[inline(always)]
    pub(super) fn hash(&self, key: u64) -> u64 {
        let hash = fold(key ^ self.seed, 0x9e37_79b9_7f4a_7c15);
        fold(hash ^ self.seed.rotate_left(32), 0xbf58_476d_1ce4_e5b9)
    }

    /// The first bucket of a key whose address hashes to this place.
    #[inline(always)]
    pub(super) fn first(&self, place: Place) -> &Bucket {
        &self.buckets[(place.0 & self.mask) as usize]
    }

    /// The bucket for keys that had no room in their first one.
    #[inline(always)]
    pub(super) fn second(&self, hash: u64) -> &Bucket {
        let other = (hash >> 32) as u32 & self.mask | 1;
        &self.buckets[(hash as u32 & self.mask ^ other) as usize]
    }

    /// Looks up where an address is.
    #[inline]
    #[must_use]
    pub fn lookup(&self, filter: Filter, mac: u64) -> Option<Station> {
        self.lookup_at(self.place(filter, mac), filter, mac)
    }

    /// The place where an address is looked up first.
    #[inline(always)]
    pub(super) fn place(&self, filter: Filter, mac: u64) -> Place {
        Place::of(self.hash(entry_of(filter, mac)))
    }

    /// The place where an address is looked up first; prefetches it.
    #[inline(always)]
    pub(super) fn fetch(&self, filter: Filter, mac: u64) -> Place {
        let place = self.place(filter, mac);
        shmem::prefetch(std::ptr::from_ref(self.first(place)).cast());
        place
    }

    /// Like [`lookup`](Self::lookup), for an address whose place is known.
    #[inline(always)]
    pub(super) fn lookup_at(&self, place: Place, filter: Filter, mac: u64) -> Option<Station> {
        let key = entry_of(filter, mac);
        let found = self.first(place).find(key).or_else(|| self.find_second(key));
        found.map(|(_, station)| station)
    }

    #[cold]
    fn find_second(&self, key: u64) -> Option<(usize, Station)> {
        self.second(self.hash(key)).find(key)
    }

    /// The entry of a key.
    #[inline(always)]
    pub(super) fn find(&self, key: u64) -> Option<(&Bucket, usize, Station)> {
        let hash = self.hash(key);
        let found = |bucket| move |(way, station)| (bucket, way, station);
        let first = self.first(Place::of(hash));
        first.find(key).map(found(first)).or_else(|| {
            let second = self.second(hash);
            second.find(key).map(found(second))
        })
    }
}

/// Folds the two halves of a product: every bit of the result depends on all of `word`.
#[inline(always)]
fn fold(word: u64, by: u64) -> u64 {
    let product = u128::from(word) * u128::from(by);
    product as u64 ^ (product >> 64) as u64
}

/// The key of a table's hash. It is made at the first use, when the table is empty.
pub(super) fn seed_of(low: &Bucket, high: &Bucket) -> u64 {
    let halves = [low, high].map(|bucket| u64::from(bucket.seed.load(Ordering::Relaxed)));
    if halves != [0, 0] {
        return halves[0] | halves[1] << 32;
    }
    let seed = RandomState::new().hash_one(0);
    low.seed.store(seed as u32, Ordering::Relaxed);
    high.seed.store((seed >> 32) as u32, Ordering::Relaxed);
    seed
}

/// Chooses the key of an empty table's hash.
pub(super) fn set_seed(low: &Bucket, high: &Bucket, seed: u64) {
    low.seed.store(seed as u32, Ordering::Relaxed);
    high.seed.store((seed >> 32) as u32 | 1, Ordering::Relaxed);
}

impl Bucket {
    /// The way that holds `key`, and its station. Reads again if a writer was active. The way is
    /// random, so no processor predicts it: all ways are compared, without a branch.
    #[inline(always)]
    pub(super) fn find(&self, key: u64) -> Option<(usize, Station)> {
        loop {
            let before = self.sequence.load(Ordering::Acquire);
            let (mut found, mut word) = (0, NO_WORD);
            for way in 0..WAYS {
                let here = self.words[way].load(Ordering::Relaxed);
                let hit = self.keys[way].load(Ordering::Relaxed) == key;
                (found, word) = if hit { (way, here) } else { (found, word) };
            }
            fence(Ordering::Acquire);
            if before & 1 == 0 && before == self.sequence.load(Ordering::Relaxed) {
                return (word != NO_WORD).then_some((found, Station::of_word(word)));
            }
            std::hint::spin_loop();
        }
    }

    /// A way without an entry.
    pub(super) fn free(&self) -> Option<usize> {
        self.keys.iter().position(|key| key.load(Ordering::Relaxed) == 0)
    }

    pub(super) fn used(&self) -> impl Iterator<Item = usize> + '_ {
        (0..WAYS).filter(|way| self.keys[*way].load(Ordering::Relaxed) != 0)
    }

    /// The key of an entry, its station, and the second in which the address was seen.
    pub(super) fn entry(&self, way: usize) -> (u64, Station, u16) {
        let key = self.keys[way].load(Ordering::Relaxed);
        let word = self.words[way].load(Ordering::Relaxed);
        (key, Station::of_word(word), self.seen[way].load(Ordering::Relaxed))
    }

    /// Frees a way. The caller holds the writer's lock.
    pub(super) fn clear(&self, way: usize) {
        self.write(way, 0, Station::of_word(0), 0);
    }

    /// Replaces an entry. The caller holds the writer's lock.
    pub(super) fn write(&self, way: usize, key: u64, station: Station, seen: u16) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.keys[way].store(key, Ordering::Relaxed);
        self.words[way].store(station.word(), Ordering::Relaxed);
        self.seen[way].store(seen, Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(2), Ordering::Release);
    }
}
