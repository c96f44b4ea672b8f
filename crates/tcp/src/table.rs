//! A bounded hash table: values in fixed pages, chained by hash. No value moves, and no operation
//! walks the whole table.

use alloc::vec;
use alloc::vec::Vec;

/// Number of entries of a page. A page is allocated as a whole and never moves.
const PAGE: usize = 64;
/// End of a chain.
const NONE: u32 = 0;

struct Entry<T> {
    hash: u32,
    /// The chain's next entry plus 1; of a free entry, the next free one.
    next: u32,
    value: Option<T>,
}

/// Values by index, and indexes by hash. An index stays valid until [`remove`](Self::remove).
pub(crate) struct Table<T> {
    /// The first entry of each chain plus 1. Zeroed pages cost no memory until they are used.
    heads: Vec<u32>,
    pages: Vec<Vec<Entry<T>>>,
    free: u32,
    made: usize,
    len: usize,
    max: usize,
    /// Entries that lookups have visited.
    pub visited: u64,
}

impl<T> Table<T> {
    /// Bytes of an entry.
    #[cfg(test)]
    pub const ENTRY: usize = size_of::<Entry<T>>();

    /// A table for at most `max` values.
    pub fn new(max: usize) -> Self {
        Self {
            heads: vec![0; max.max(1).next_power_of_two()],
            pages: Vec::new(),
            free: NONE,
            made: 0,
            len: 0,
            max,
            visited: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_full(&self) -> bool {
        self.len >= self.max
    }

    #[inline]
    fn entry(&self, index: u32) -> Option<&Entry<T>> {
        self.pages.get(index as usize / PAGE)?.get(index as usize % PAGE)
    }

    #[inline]
    fn entry_mut(&mut self, index: u32) -> Option<&mut Entry<T>> {
        self.pages.get_mut(index as usize / PAGE)?.get_mut(index as usize % PAGE)
    }

    #[inline]
    fn head_of(&self, hash: u32) -> usize {
        hash as usize & (self.heads.len() - 1)
    }

    #[inline]
    pub fn get(&self, index: u32) -> Option<&T> {
        self.entry(index)?.value.as_ref()
    }

    #[inline]
    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.entry_mut(index)?.value.as_mut()
    }

    /// Returns the entry with this hash that `matches`.
    #[inline]
    pub fn find(&mut self, hash: u32, matches: impl Fn(&T) -> bool) -> Option<u32> {
        let mut link = self.heads[self.head_of(hash)];
        let mut visited = 0;
        let mut found = None;
        while link != NONE {
            visited += 1;
            let Some(entry) = self.entry(link - 1) else { break };
            if entry.hash == hash && entry.value.as_ref().is_some_and(&matches) {
                found = Some(link - 1);
                break;
            }
            link = entry.next;
        }
        self.visited += visited;
        found
    }

    /// Adds a value, so that `find` finds it. Returns the value if the table is full.
    pub fn insert(&mut self, hash: u32, value: T) -> Result<u32, T> {
        if self.is_full() {
            return Err(value);
        }
        let head = self.head_of(hash);
        let entry = Entry { hash, next: self.heads[head], value: Some(value) };
        let index = self.place(entry);
        self.heads[head] = index + 1;
        self.len += 1;
        Ok(index)
    }

    fn place(&mut self, entry: Entry<T>) -> u32 {
        if self.free != NONE {
            let index = self.free - 1;
            if let Some(place) = self.entry_mut(index) {
                let next = place.next;
                *place = entry;
                self.free = next;
            }
            return index;
        }
        if self.made.is_multiple_of(PAGE) {
            self.pages.push(Vec::with_capacity(PAGE.min(self.max)));
        }
        if let Some(page) = self.pages.last_mut() {
            page.push(entry);
        }
        self.made += 1;
        (self.made - 1) as u32
    }

    /// Unlinks an entry from its chain. `find` does not return it any more, but its index stays
    /// valid.
    pub fn unlink(&mut self, index: u32) {
        let Some((hash, after)) = self.entry(index).map(|e| (e.hash, e.next)) else { return };
        let head = self.head_of(hash);
        let mut link = self.heads[head];
        if link == index + 1 {
            self.heads[head] = after;
            return;
        }
        while link != NONE {
            let Some(entry) = self.entry_mut(link - 1) else { return };
            if entry.next == index + 1 {
                entry.next = after;
                return;
            }
            link = entry.next;
        }
    }

    /// Removes an entry that was [unlinked](Self::unlink).
    pub fn remove(&mut self, index: u32) -> Option<T> {
        let free = self.free;
        let entry = self.entry_mut(index)?;
        let value = entry.value.take()?;
        entry.next = free;
        self.free = index + 1;
        self.len -= 1;
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn it_is_a_map(steps in proptest::collection::vec((0u32..4, 0u32..20), 0..400)) {
            let mut table = Table::new(10);
            let mut model = HashMap::new();
            for (step, key) in steps {
                // Few distinct hashes make the chains long.
                let hash = key % 3;
                let found = table.find(hash, |v| *v == key);
                prop_assert_eq!(found, model.get(&key).copied());
                match (step, found) {
                    (0..=2, None) => {
                        let inserted = table.insert(hash, key);
                        prop_assert_eq!(inserted.is_ok(), model.len() < 10);
                        if let Ok(index) = inserted {
                            model.insert(key, index);
                        }
                    }
                    (3, Some(index)) => {
                        table.unlink(index);
                        prop_assert_eq!(table.find(hash, |v| *v == key), None);
                        prop_assert_eq!(table.remove(index), Some(key));
                        model.remove(&key);
                    }
                    _ => {}
                }
                prop_assert_eq!(table.len(), model.len());
            }
        }
    }
}
