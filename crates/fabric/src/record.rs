//! Records of frames for an observer in another process: samples of incoming frames, and dropped
//! frames.
//!
//! ```text
//!   worker:    claim a slot, copy the frame's head and fate       (no system call, no lock)
//!   observer:  read the new slots twice, and keep those that did not change meanwhile
//! ```
//!
//! The observer asks for records through one word, so an unobserved switch pays for one load a
//! batch. A ring that is not read in time loses its oldest records; the observer counts them.

use std::sync::atomic::{Ordering, fence};

use port::{DropReason, HEAD, Nanos};
use shmem::sync::AtomicU64;
use shmem::{Shareable, Shared};

/// Records that a ring keeps.
pub const RECORDS: usize = 1024;
/// Words of a record: time, port and fate, length, head.
const WORDS: usize = 3 + HEAD / 8;

/// What workers record, and until when.
#[derive(Debug)]
#[repr(C)]
pub struct Recorder {
    /// The low half: one frame in this many is sampled; 0 for none. The high half: dropped frames
    /// are recorded until this second of the monotonic clock.
    ///
    /// # Protocol: `Recorder.wanted`
    /// - Writer: supervisor
    /// - Reader: workers, once a batch
    /// - Ordering: relaxed
    /// - Without it: records begin or end a batch late
    /// - Shown by: `record` tests
    wanted: AtomicU64,
    samples: Ring,
    drops: Ring,
}

// SAFETY: the type consists of atomic words only.
unsafe impl Shareable for Recorder {}

/// The newest records.
#[derive(Debug)]
#[repr(C)]
struct Ring {
    /// How many records were begun so far.
    begun: AtomicU64,
    slots: [Slot; RECORDS],
}

/// The slot of a record.
#[derive(Debug)]
#[repr(C, align(64))]
struct Slot {
    /// Twice the record's number, plus two; one less while the record is written; 0 before any.
    ///
    /// # Protocol: `record::Slot.sequence`
    /// - Writer: the worker that made it odd by compare-and-exchange
    /// - Reader: observers
    /// - Ordering: release after the words, acquire before them, with a fence before the second
    ///   read
    /// - Partner: `Slot.words`
    /// - Without it: a record is half of one frame, half of another
    /// - Shown by: `record` tests
    sequence: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// What happened to a recorded frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The frame goes to this port.
    To(u16),
    /// The frame goes to all ports of its VLAN.
    Flooded,
    /// The frame was dropped: by the named receiver, or before it reached one.
    Dropped(DropReason, Option<u16>),
}

/// A recorded frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// When: the monotonic clock's time of the turn.
    pub at: Nanos,
    /// The port that sent the frame.
    pub from: u16,
    /// What happened to the frame.
    pub fate: Fate,
    /// Bytes of the whole frame.
    pub len: u32,
    /// The frame's first bytes; `head_len` says how many.
    head: [u8; HEAD],
    head_len: u8,
}

impl Record {
    /// A record of a frame of `len` bytes that begins with `head`.
    #[must_use]
    pub fn new(at: Nanos, from: u16, fate: Fate, len: u32, head: &[u8]) -> Self {
        let head_len = head.len().min(HEAD);
        let mut bytes = [0; HEAD];
        bytes[..head_len].copy_from_slice(&head[..head_len]);
        Self { at, from, fate, len, head: bytes, head_len: head_len as u8 }
    }

    /// The frame's first bytes: at most [`HEAD`].
    #[must_use]
    pub fn head(&self) -> &[u8] {
        &self.head[..usize::from(self.head_len)]
    }

    fn words(&self) -> [u64; WORDS] {
        let (kind, reason, to) = match self.fate {
            Fate::To(port) => (0, 0, port),
            Fate::Flooded => (1, 0, 0),
            Fate::Dropped(reason, None) => (2, reason as u8, 0),
            Fate::Dropped(reason, Some(port)) => (3, reason as u8, port),
        };
        let mut words = [0; WORDS];
        words[0] = self.at.0;
        words[1] = u64::from(self.from)
            | u64::from(to) << 16
            | u64::from(reason) << 32
            | kind << 40
            | u64::from(self.head_len) << 48;
        words[2] = self.len.into();
        for (word, bytes) in words[3..].iter_mut().zip(self.head.chunks_exact(8)) {
            *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        }
        words
    }

    /// Decodes these words, which may hold anything.
    fn of(words: &[u64; WORDS]) -> Option<Self> {
        let to = (words[1] >> 16) as u16;
        let reason = || DropReason::ALL.get((words[1] >> 32) as usize & 0xff).copied();
        let fate = match (words[1] >> 40) as u8 {
            0 => Fate::To(to),
            1 => Fate::Flooded,
            2 => Fate::Dropped(reason()?, None),
            3 => Fate::Dropped(reason()?, Some(to)),
            _ => return None,
        };
        let mut head = [0; HEAD];
        for (bytes, word) in head.chunks_exact_mut(8).zip(&words[3..]) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let head_len = ((words[1] >> 48) as u8).min(HEAD as u8);
        let (at, from, len) = (Nanos(words[0]), words[1] as u16, words[2] as u32);
        Some(Self { at, from, fate, len, head, head_len })
    }
}

impl Ring {
    /// Stores a record, unless another thread is writing to its slot.
    fn push(&self, record: &Record) {
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        let slot = &self.slots[number as usize % RECORDS];
        let before = slot.sequence.load(Ordering::Relaxed);
        let mine = number.wrapping_mul(2).wrapping_add(1);
        let free = before.is_multiple_of(2);
        if !free
            || slot
                .sequence
                .compare_exchange(before, mine, Ordering::Relaxed, Ordering::Relaxed)
                .is_err()
        {
            return;
        }
        fence(Ordering::Release);
        for (word, value) in slot.words.iter().zip(record.words()) {
            word.store(value, Ordering::Relaxed);
        }
        slot.sequence.store(mine.wrapping_add(1), Ordering::Release);
    }

    /// True if record `number` was begun but is not complete.
    fn is_unfinished(&self, number: u64) -> bool {
        let sequence = self.slots[number as usize % RECORDS].sequence.load(Ordering::Acquire);
        sequence < number.wrapping_mul(2).wrapping_add(2)
    }

    /// Record `number`, if it is complete and still there.
    fn get(&self, number: u64) -> Option<Record> {
        let slot = &self.slots[number as usize % RECORDS];
        let whole = number.wrapping_mul(2).wrapping_add(2);
        if slot.sequence.load(Ordering::Acquire) != whole {
            return None;
        }
        let words = std::array::from_fn(|i| slot.words[i].load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let same = slot.sequence.load(Ordering::Relaxed) == whole;
        same.then(|| Record::of(&words)).flatten()
    }

    /// Forgets all records, including unfinished ones. No other thread may use them meanwhile.
    fn clear(&self) {
        // Pages that were never used stay unallocated.
        if self.begun.load(Ordering::Relaxed) == 0 {
            return;
        }
        self.begun.store(0, Ordering::Relaxed);
        self.slots.iter().for_each(|slot| slot.sequence.store(0, Ordering::Relaxed));
    }
}

/// A kind of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// Samples of what came in.
    Samples,
    /// Frames that were dropped.
    Drops,
}

impl Recorder {
    /// Samples one frame in `rate` from now on; 0 for none.
    pub fn set_rate(&self, rate: u32) {
        let with = |wanted: u64| Some(wanted >> 32 << 32 | u64::from(rate));
        // The update fails only if the closure returns `None`, which it does not.
        let _ = self.wanted.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with);
    }

    /// Records dropped frames for `seconds`, starting at `now`.
    pub fn record_drops(&self, now: Nanos, seconds: u32) {
        let until = u64::from(now.seconds() as u32).saturating_add(seconds.into());
        let until = until.min(u32::MAX.into()) << 32;
        let with = |wanted: u64| Some(wanted & 0xffff_ffff | until.max(wanted >> 32 << 32));
        // Fails only if the closure returns `None`.
        let _ = self.wanted.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with);
    }

    /// True if anything may have to be recorded.
    #[inline(always)]
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) != 0
    }

    /// The sampling rate: one frame in this many; 0 for none.
    #[must_use]
    pub fn rate(&self) -> u32 {
        self.wanted.load(Ordering::Relaxed) as u32
    }

    /// True if frames dropped at `now` must be recorded.
    #[must_use]
    pub fn wants_drops(&self, now: Nanos) -> bool {
        let until = self.wanted.load(Ordering::Relaxed) >> 32;
        until != 0 && now.seconds() < until
    }

    fn ring(&self, which: Recorded) -> &Ring {
        match which {
            Recorded::Samples => &self.samples,
            Recorded::Drops => &self.drops,
        }
    }

    /// Keeps a record.
    #[cold]
    pub(crate) fn keep(&self, which: Recorded, record: &Record) {
        self.ring(which).push(record);
    }

    /// Forgets all records. A data process calls it before its workers start.
    pub fn clear(&self) {
        self.samples.clear();
        self.drops.clear();
    }
}

/// An observer's place in the records.
#[derive(Debug)]
pub struct Observer {
    recorder: Shared<Recorder>,
    which: Recorded,
    /// The next record.
    next: u64,
    /// A record that was unfinished at the last read. It is skipped if it is still unfinished at
    /// the next.
    unfinished: Option<u64>,
    /// Records that were overwritten before they were read.
    pub missed: u64,
}

impl Observer {
    /// An observer of records from now on.
    #[must_use]
    pub fn new(recorder: Shared<Recorder>, which: Recorded) -> Self {
        let next = recorder.ring(which).begun.load(Ordering::Relaxed);
        Self { recorder, which, next, unfinished: None, missed: 0 }
    }

    /// An observer that resumes at another one's [place](Self::place).
    #[must_use]
    pub fn resume(recorder: Shared<Recorder>, which: Recorded, place: u64) -> Self {
        let next = place >> 1;
        let unfinished = (place & 1 != 0).then_some(next);
        Self { recorder, which, next, unfinished, missed: 0 }
    }

    /// The observer's position, to [resume](Self::resume) later.
    #[must_use]
    pub fn place(&self) -> u64 {
        self.next << 1 | u64::from(self.unfinished == Some(self.next))
    }

    /// Passes every new record to `to`, at most [`RECORDS`] of them.
    pub fn read(&mut self, mut to: impl FnMut(Record)) {
        let ring = self.recorder.ring(self.which);
        let begun = ring.begun.load(Ordering::Acquire);
        // After a restart, numbers start over. A compromised data process may write anything here.
        let new = begun.checked_sub(self.next).unwrap_or_else(|| {
            self.next = 0;
            begun
        });
        let kept = new.min(RECORDS as u64);
        self.missed = self.missed.saturating_add(new - kept);
        for number in begun - kept..begun {
            self.next = number;
            match ring.get(number) {
                Some(record) => to(record),
                None if self.unfinished != Some(number) && ring.is_unfinished(number) => {
                    self.unfinished = Some(number);
                    return;
                }
                None => self.missed = self.missed.saturating_add(1),
            }
        }
        self.next = begun;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorder() -> Shared<Recorder> {
        let map = shmem::Mapping::private(size_of::<Recorder>()).unwrap();
        map.shared(0).unwrap()
    }

    fn record(n: u32) -> Record {
        let head: Vec<u8> = (0..HEAD as u32).map(|i| (n + i) as u8).collect();
        let reason = DropReason::ALL[n as usize % DropReason::COUNT];
        let to = n as u16;
        let fate = match n % 4 {
            0 => Fate::To(to),
            1 => Fate::Flooded,
            2 => Fate::Dropped(reason, None),
            _ => Fate::Dropped(reason, Some(to)),
        };
        Record::new(Nanos(n.into()), to, fate, n, &head[..n as usize % (HEAD + 1)])
    }

    #[test]
    fn records_are_read_as_they_were_kept_and_lost_ones_are_counted() {
        let recorder = recorder();
        let mut observer = Observer::new(recorder.clone(), Recorded::Drops);
        let mut read = Vec::new();
        (0..300).for_each(|n| recorder.keep(Recorded::Drops, &record(n)));
        observer.read(|record| read.push(record));
        assert_eq!(read, (0..300).map(record).collect::<Vec<_>>());
        (0..RECORDS as u32 + 7).for_each(|n| recorder.keep(Recorded::Drops, &record(n)));
        read.clear();
        observer.read(|record| read.push(record));
        assert_eq!((observer.missed, read.len()), (7, RECORDS));
        assert_eq!(read[0], record(7), "the oldest are gone");
        observer.read(|record| panic!("{record:?} is read twice"));
    }

    #[test]
    fn a_record_is_never_half_of_one_frame_and_half_of_another() {
        let recorder = recorder();
        let uniform = |n: u8| Record::new(Nanos(n.into()), n.into(), Fate::Flooded, 0, &[n; HEAD]);
        // Before the first record: it reads or misses each of them.
        let mut observer = Observer::new(recorder.clone(), Recorded::Samples);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let recorder = &recorder;
                scope.spawn(move || {
                    for n in 0..40_000u32 {
                        let n = (n % 100 + thread * 100) as u8;
                        recorder.keep(Recorded::Samples, &uniform(n));
                    }
                });
            }
            let mut read = 0;
            while read + observer.missed < 80_000 {
                observer.read(|record| {
                    assert_eq!(record, uniform(record.from as u8));
                    read += 1;
                });
            }
        });
    }

    #[test]
    fn a_lying_ring_costs_the_observer_one_turn_and_no_more() {
        let recorder = recorder();
        let mut observer = Observer::new(recorder.clone(), Recorded::Samples);
        for (begun, junk) in [(u64::MAX, u64::MAX), (0, 7), (1 << 60, 1 << 63), (5, 12)] {
            recorder.samples.begun.store(begun, Ordering::Relaxed);
            for slot in &recorder.samples.slots {
                slot.sequence.store(junk, Ordering::Relaxed);
                slot.words.iter().for_each(|word| word.store(junk, Ordering::Relaxed));
            }
            let mut read = 0;
            observer.read(|record| {
                assert!(record.head().len() <= HEAD);
                read += 1;
            });
            assert!(read <= RECORDS);
        }
    }

    #[test]
    fn a_rate_and_a_time_are_wanted_by_one_word() {
        let recorder = recorder();
        let at = |seconds| Nanos(seconds * Nanos::SECOND);
        assert!(!recorder.is_wanted());
        recorder.record_drops(at(100), 5);
        recorder.set_rate(400);
        recorder.record_drops(at(100), 2);
        assert!(recorder.wants_drops(at(104)) && !recorder.wants_drops(at(105)));
        assert_eq!(recorder.rate(), 400);
        recorder.set_rate(0);
        assert!(recorder.wants_drops(at(104)));
        assert_eq!(recorder.rate(), 0);
    }
}
