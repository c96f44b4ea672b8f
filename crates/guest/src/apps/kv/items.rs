//! The items, and all memory of the cache: of items, of values that arrive, and of those that
//! answers still hold.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tcp::Bytes;

/// Memory that an item takes beyond key and value: entries of two tables.
pub const OVERHEAD: usize = 192;

#[derive(Clone, Debug)]
pub struct Item {
    pub value: Bytes,
    pub flags: u32,
    /// Expiry in seconds since 1970; 0 for never.
    pub until: u64,
    /// The number that `cas` compares.
    pub version: u64,
    /// The item was asked for since the evictor last looked at it.
    pub used: bool,
    /// The item was read, and when it last was, in seconds since 1970.
    pub fetched: bool,
    pub last: u64,
    /// A meta command has marked the value as outdated.
    pub stale: bool,
    /// A client was told to fetch the value again.
    pub won: bool,
    /// The number of its entry in `order`.
    place: u64,
}

/// What is put into the cache.
#[derive(Clone, Debug)]
pub struct New {
    pub value: Bytes,
    pub flags: u32,
    pub until: u64,
    pub stale: bool,
    pub won: bool,
}

/// How items have ended, and how many were made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ends {
    pub evictions: u64,
    pub expired: u64,
    pub expired_unfetched: u64,
    pub evicted_unfetched: u64,
    pub made: u64,
}

/// The items. The least recently used are evicted first, approximately (second chance).
#[derive(Debug, Default)]
pub struct Items {
    table: HashMap<Arc<[u8]>, Item>,
    /// Keys and places, oldest first. An entry whose place differs from the item's is stale.
    order: VecDeque<(Arc<[u8]>, u64)>,
    /// Values of items that are gone, but which an answer on its way to a client still holds.
    lent: VecDeque<Bytes>,
    /// Bytes of items, of lent values, and of what has not arrived whole.
    bytes: usize,
    lent_bytes: usize,
    unfinished: usize,
    most: usize,
    serial: u64,
    pub ends: Ends,
}

fn size(key: &[u8], value: &Bytes) -> usize {
    OVERHEAD + key.len() + value.len()
}

impl Items {
    pub fn new(most: usize) -> Self {
        Self { most, ..Self::default() }
    }

    /// The number of items, and the bytes that they take.
    pub fn usage(&self) -> (usize, usize) {
        (self.table.len(), self.bytes)
    }

    /// All bytes that count towards the limit.
    pub fn held(&self) -> usize {
        self.bytes + self.lent_bytes + self.unfinished
    }

    pub fn most(&self) -> usize {
        self.most
    }

    /// Whether an item of this size can be put at all.
    pub fn fits(&self, key: &[u8], value: &Bytes) -> bool {
        size(key, value) <= self.most
    }

    /// The item of a key, unless its time is over.
    pub fn find(&mut self, key: &[u8], seconds: u64) -> Option<&mut Item> {
        let item = self.table.get(key)?;
        if item.until != 0 && item.until <= seconds {
            self.ends.expired += 1;
            self.ends.expired_unfetched += u64::from(!item.fetched);
            self.remove(key);
            return None;
        }
        let item = self.table.get_mut(key)?;
        item.used = true;
        Some(item)
    }

    /// Removes an item. Its entry in `order` is dropped when it becomes the oldest.
    pub fn remove(&mut self, key: &[u8]) -> bool {
        let Some(item) = self.table.remove(key) else { return false };
        self.bytes -= size(key, &item.value);
        self.keep_lent(item.value);
        true
    }

    /// Counts a value on, while an answer holds it.
    fn keep_lent(&mut self, value: Bytes) {
        if !value.is_empty() && !value.is_unique() {
            self.lent_bytes += value.len();
            self.lent.push_back(value);
        }
    }

    /// Forgets lent values that no answer holds any more.
    fn settle_lent(&mut self) {
        let bytes = &mut self.lent_bytes;
        self.lent.retain(|value| {
            let held = !value.is_unique();
            *bytes -= if held { 0 } else { value.len() };
            held
        });
    }

    /// Makes room for `need` bytes by evictions; returns false if answers and what arrives hold too
    /// much.
    fn make_room(&mut self, need: usize) -> bool {
        if self.held() + need > self.most && self.lent_bytes > 0 {
            self.settle_lent();
        }
        while self.held() + need > self.most {
            let Some((oldest, place)) = self.order.pop_front() else { return false };
            let Some(item) = self.table.get_mut(&oldest).filter(|item| item.place == place) else {
                continue;
            };
            if std::mem::take(&mut item.used) {
                self.order.push_back((oldest, place));
            } else {
                self.ends.evicted_unfetched += u64::from(!item.fetched);
                self.remove(&oldest);
                self.ends.evictions += 1;
            }
        }
        true
    }

    /// Sets how many bytes have arrived of values that are not whole; returns false if there is no
    /// room for them. They get half of the memory, at most.
    pub fn set_unfinished(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.unfinished);
        if more > 0 && (bytes > self.most / 2 || !self.make_room(more)) {
            return false;
        }
        self.unfinished = bytes;
        true
    }

    /// Puts an item in place of the one of the same key. Returns its version, or `None` if there is
    /// no room for it: then there is no item of this key.
    pub fn put(&mut self, key: &[u8], new: New, seconds: u64) -> Option<u64> {
        self.remove(key);
        if !self.make_room(size(key, &new.value)) {
            return None;
        }
        if self.order.len() > 2 * self.table.len() + 1024 {
            let table = &self.table;
            let lives = |key: &[u8], place: u64| table.get(key).is_some_and(|it| it.place == place);
            self.order.retain(|(key, place)| lives(key, *place));
        }
        let version = self.next_version();
        let New { value, flags, until, stale, won } = new;
        self.bytes += size(key, &value);
        let key = Arc::<[u8]>::from(key);
        let (used, fetched, last) = (false, false, seconds);
        let item =
            Item { value, flags, until, version, used, fetched, last, stale, won, place: version };
        self.order.push_back((key.clone(), version));
        self.table.insert(key, item);
        self.ends.made += 1;
        Some(version)
    }

    /// A number for a change of an item.
    pub fn next_version(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    pub fn clear(&mut self) {
        let table = std::mem::take(&mut self.table);
        self.order.clear();
        self.bytes = 0;
        self.serial += 1;
        table.into_values().for_each(|item| self.keep_lent(item.value));
    }
}
