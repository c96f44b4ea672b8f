//! The table's journal: which stations came to local ports, moved and went, for an observer in
//! another process.
//!
//! A ring in shared memory. The holder of the table's lock writes it, and never waits. An observer
//! keeps its own place. If it falls behind by more than the ring holds, it is told so, and reads
//! the whole table instead.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use frame::{Mac, VlanId};
use shmem::Shareable;

use crate::Station;
use crate::fdb::filter_in;

/// Changes that the journal holds.
const CHANGES: usize = 4096;
/// The word that means "no station".
const NOWHERE: u32 = u32::MAX;

/// A change: 16 bytes.
#[derive(Debug)]
#[repr(C)]
struct Slot {
    key: AtomicU64,
    before: AtomicU32,
    after: AtomicU32,
}

/// The journal, as it lies in memory.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Journal {
    /// How many changes were ever written. Number `n` is in slot `n` modulo their count.
    ///
    /// # Protocol: `Journal.written` (forwarding table)
    /// - Writer: the holder of the table's lock, in a data process
    /// - Reader: supervisor
    /// - Ordering: writer: fence release, slot relaxed, store release / reader: load acquire,
    ///   slots relaxed, fence acquire, load relaxed
    /// - Partner: `slots`
    /// - Without it: the supervisor takes half a change for a whole one
    /// - Shown by: `journal` test `a_reader_beside_a_writer_sees_whole_changes_or_a_loss`
    written: AtomicU64,
    padding: [u64; 7],
    slots: [Slot; CHANGES],
}

// SAFETY: the type consists of atomics and integers only, without implicit padding.
unsafe impl Shareable for Journal {}

/// A station that came, moved or went. At least one of the places is a local port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its address.
    pub mac: Mac,
    /// The station's VLAN, if its port is VLAN-aware.
    pub vlan: Option<VlanId>,
    /// Where the station was before.
    pub before: Option<Station>,
    /// Where the station is now.
    pub after: Option<Station>,
}

impl Journal {
    /// Notes that the entry of `key` changed, if one of the places is local. The caller holds the
    /// table's lock.
    pub(crate) fn note(&self, key: u64, before: Option<Station>, after: Option<Station>) {
        let is_local = |there: &Station| there.origin().is_local();
        if before == after || ![before, after].iter().flatten().any(is_local) {
            return;
        }
        let written = self.written.load(Ordering::Relaxed);
        // A reader that sees part of the following stores sees this count, too.
        fence(Ordering::Release);
        let slot = &self.slots[written as usize % CHANGES];
        let word = |there: Option<Station>| there.map_or(NOWHERE, Station::word);
        slot.key.store(key, Ordering::Relaxed);
        slot.before.store(word(before), Ordering::Relaxed);
        slot.after.store(word(after), Ordering::Relaxed);
        self.written.store(written.wrapping_add(1), Ordering::Release);
    }

    /// The number of the next change: where an observer that has read the table begins.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// Appends the changes from number `from` on to `changes`, and returns the number of the next
    /// one. `None` if some of them are lost: then read [`end`](Self::end), and the table after it.
    pub fn read(&self, from: u64, changes: &mut Vec<Change>) -> Option<u64> {
        let end = self.end();
        if from > end || end - from >= CHANGES as u64 {
            return None;
        }
        let earlier = changes.len();
        changes.extend((from..end).map(|number| self.change(number)));
        fence(Ordering::Acquire);
        // The slot after the last one may be half written.
        if self.written.load(Ordering::Relaxed).wrapping_sub(from) >= CHANGES as u64 {
            changes.truncate(earlier);
            return None;
        }
        Some(end)
    }

    fn change(&self, number: u64) -> Change {
        let slot = &self.slots[number as usize % CHANGES];
        let place = |word: &AtomicU32| match word.load(Ordering::Relaxed) {
            NOWHERE => None,
            word => Some(Station::of_word(word)),
        };
        let key = slot.key.load(Ordering::Relaxed);
        let (before, after) = (place(&slot.before), place(&slot.after));
        Change { mac: Mac::from_word(key), vlan: VlanId::new(filter_in(key)), before, after }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use port::Nanos;
    use shmem::{Mapping, Shared};

    use super::*;
    use crate::{Fdb, Learned, Origin};

    fn journal() -> Shared<Journal> {
        Mapping::private(size_of::<Journal>()).unwrap().shared(0).unwrap()
    }

    fn table(journal: &Shared<Journal>) -> Fdb {
        Fdb::private(8192, 8).unwrap().with_journal(journal.clone())
    }

    fn here(port: u16) -> Station {
        Station::at(port, Origin::Learned)
    }

    fn there(via: u16, origin: Origin) -> Station {
        Station::behind(7, via, origin)
    }

    fn learn(fdb: &Fdb, mac: u64, station: Station) -> Learned {
        fdb.learn(0, mac, station, u32::MAX, false, Nanos(0))
    }

    #[test]
    fn stations_that_come_move_and_go_are_told_and_remote_ones_are_not() {
        let journal = journal();
        let fdb = table(&journal);
        let (mac, far) = (Mac::from_word(2), there(1, Origin::Remote));
        let _ = learn(&fdb, 2, here(1));
        let _ = learn(&fdb, 2, here(1));
        let _ = learn(&fdb, 2, here(3));
        assert_eq!(fdb.enter(0, mac, far, Nanos(0)), Learned::Refused, "it is here");
        assert_eq!(fdb.enter_moved(0, mac, far, Nanos(0)), Learned::Known, "it moved there");
        assert!(fdb.leave(0, mac, 7));
        let _ = learn(&fdb, 4, there(2, Origin::Tunnel));
        let _ = learn(&fdb, 6, here(2));
        assert_eq!(fdb.age(1, Nanos(9 * Nanos::SECOND)), 2);
        let mut changes = Vec::new();
        assert_eq!(journal.read(0, &mut changes), Some(5));
        let steps: Vec<_> = changes.iter().map(|c| (c.mac.word(), c.before, c.after)).collect();
        let expected = [
            (2, None, Some(here(1))),
            (2, Some(here(1)), Some(here(3))),
            (2, Some(here(3)), Some(far)),
            (6, None, Some(here(2))),
            (6, Some(here(2)), None),
        ];
        assert_eq!(steps, expected);
        assert_eq!(journal.read(5, &mut changes), Some(5), "nothing more");
    }

    #[test]
    fn a_reader_that_falls_behind_is_told_so() {
        let journal = journal();
        let fdb = table(&journal);
        let mut changes = Vec::new();
        for mac in 1..CHANGES as u64 {
            let _ = learn(&fdb, mac << 1, here(1));
        }
        assert_eq!(journal.read(0, &mut changes), Some(CHANGES as u64 - 1));
        let _ = learn(&fdb, 1 << 20, here(1));
        changes.clear();
        assert_eq!(journal.read(0, &mut changes), None);
        assert!(changes.is_empty());
        assert_eq!(journal.read(1, &mut changes), Some(CHANGES as u64));
        assert_eq!(journal.read(u64::MAX, &mut changes), None, "the memory is another one");
    }

    /// Objective: a reader never sees a mix of two changes.
    ///
    /// Steps: a writer notes changes whose three words agree, until a reader beside it has read
    /// enough of them and was told a few times that some are lost.
    #[test]
    fn a_reader_beside_a_writer_sees_whole_changes_or_a_loss() {
        let (journal, done) = (journal(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut from, mut read, mut lost, mut changes) = (0, 0, 0, Vec::new());
                while read < 100_000 || lost < 3 {
                    changes.clear();
                    match journal.read(from, &mut changes) {
                        Some(next) => from = next,
                        None => (from, lost) = (journal.end(), lost + 1),
                    }
                    for change in &changes {
                        let number = change.mac.word() as u16;
                        assert_eq!(change.after, Some(here(number)));
                        assert_eq!(change.before, Some(there(number % 1000 + 1, Origin::Remote)));
                    }
                    read += changes.len();
                }
                done.store(true, Ordering::Relaxed);
            });
            let mut number = 0u16;
            while !done.load(Ordering::Relaxed) {
                number = number.wrapping_add(1);
                let before = there(number % 1000 + 1, Origin::Remote);
                journal.note(u64::from(number), Some(before), Some(here(number)));
                // Now and then the reader can follow.
                if number.is_multiple_of(1000) {
                    std::thread::yield_now();
                }
            }
        });
    }
}
