//! The SACK scoreboard: sent and unacknowledged data (RFC 6675, 4), with a send time for each
//! record (RFC 8985).
//!
//! A record is what was sent at once: a segment, or several in one request. The peer's SACK blocks
//! split it, but only at segment borders. So no peer can cause more records than there are
//! segments.

use alloc::collections::VecDeque;

use crate::seq::Seq;
use crate::time::Nanos;

/// Maximum number of records of a connection. At the limit, no new data is sent.
pub(crate) const MAX_RECORDS: usize = 4096;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub start: Seq,
    pub end: Seq,
    pub sent: Nanos,
    pub sacked: bool,
    /// The record was found lost, and is not yet retransmitted.
    pub lost: bool,
    pub retransmitted: bool,
}

impl Record {
    pub fn len(&self) -> u32 {
        self.end.since(self.start)
    }

    /// Returns true if this record was sent after one that was sent at `sent` and ends at `end`
    /// (RFC 8985, 5.2).
    pub fn sent_after(&self, sent: Nanos, end: Seq) -> bool {
        self.sent > sent || (self.sent == sent && self.end.after(end))
    }
}

/// Records in order of sequence numbers, without gaps.
#[derive(Default)]
pub(crate) struct Scoreboard {
    records: VecDeque<Record>,
    /// Bytes that the peer has selectively acknowledged (SACK).
    pub sacked: u32,
    /// Bytes that are lost and not yet retransmitted.
    pub lost: u32,
    /// The lowest number at which a lost record may start.
    lost_hint: Seq,
}

impl Scoreboard {
    pub fn is_full(&self) -> bool {
        self.records.len() >= MAX_RECORDS
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Adds data that was just sent. Whole segments of one turn become one record.
    pub fn push(&mut self, start: Seq, end: Seq, now: Nanos, mss: u32) {
        const MOST: u32 = 1 << 16;
        if let Some(last) = self.records.back_mut()
            && last.sent == now
            && !(last.sacked || last.lost || last.retransmitted)
            && last.len().is_multiple_of(mss)
            && end.since(last.start) <= MOST
        {
            last.end = end;
            return;
        }
        let flags =
            Record { start, end, sent: now, sacked: false, lost: false, retransmitted: false };
        self.records.push_back(flags);
    }

    /// Removes everything before `una`; calls `tell` for each whole record.
    pub fn acknowledge(&mut self, una: Seq, mut tell: impl FnMut(&Record)) {
        while let Some(record) = self.records.front_mut() {
            if !record.start.before(una) {
                break;
            }
            let covered = una.min(record.end).since(record.start);
            self.sacked -= if record.sacked { covered } else { 0 };
            self.lost -= if record.lost { covered } else { 0 };
            if record.end.after(una) {
                record.start = una;
                break;
            }
            tell(record);
            self.records.pop_front();
        }
    }

    /// Returns the index of the record that contains `seq`, or of the first after it.
    fn index_of(&self, seq: Seq) -> usize {
        self.records.partition_point(|record| !record.end.after(seq))
    }

    /// Splits record `index` at `at`, if that is within it.
    fn split(&mut self, index: usize, at: Seq) {
        let Some(record) = self.records.get_mut(index) else { return };
        if !(record.start.before(at) && at.before(record.end)) {
            return;
        }
        let tail = Record { start: at, ..*record };
        record.end = at;
        self.records.insert(index + 1, tail);
    }

    /// Marks `start..end` as held by the peer; calls `tell` for each newly marked record. A segment
    /// that the range covers only in part is left out.
    pub fn sack(&mut self, start: Seq, end: Seq, mss: u32, mut tell: impl FnMut(&Record)) {
        let mut index = self.index_of(start);
        if let Some(record) = self.records.get(index).filter(|r| !r.sacked && r.start.before(start))
        {
            let into = start.since(record.start).next_multiple_of(mss);
            let at = record.start + into;
            if !at.before(record.end) || self.records.len() >= 2 * MAX_RECORDS {
                index += 1;
            } else {
                self.split(index, at);
                index += 1;
            }
        }
        while let Some(record) = self.records.get(index) {
            if !record.start.before(end) {
                break;
            }
            if record.end.after(end) && !record.sacked {
                let whole = end.since(record.start) / mss * mss;
                if whole == 0 || self.records.len() >= 2 * MAX_RECORDS {
                    break;
                }
                let at = record.start + whole;
                self.split(index, at);
            }
            self.mark_sacked(index, &mut tell);
            index += 1;
        }
    }

    fn mark_sacked(&mut self, index: usize, tell: &mut impl FnMut(&Record)) {
        let Some(record) = self.records.get_mut(index).filter(|r| !r.sacked) else { return };
        tell(record);
        let len = record.len();
        record.sacked = true;
        self.sacked += len;
        if core::mem::take(&mut record.lost) {
            self.lost -= len;
        }
    }

    fn mark_lost(&mut self, index: usize) {
        let Some(record) = self.records.get_mut(index).filter(|r| !r.sacked && !r.lost) else {
            return;
        };
        record.lost = true;
        let (start, len) = (record.start, record.len());
        self.lost_hint = if self.lost == 0 { start } else { self.lost_hint.min(start) };
        self.lost += len;
    }

    /// Marks records as lost that were sent before (`sent`, `end`) by more than the reordering
    /// window (RFC 8985, 6.2, step 5).
    ///
    /// `limit` is the longest time that such a segment may be in flight. Returns when to check
    /// again.
    pub fn detect_lost(&mut self, sent: Nanos, end: Seq, limit: u64, now: Nanos) -> Option<u64> {
        let mut wait = None;
        for index in 0..self.records.len() {
            let record = self.records[index];
            if record.sacked || record.lost {
                continue;
            }
            if record.sent_after(sent, end) || (record.sent, record.end) == (sent, end) {
                // First transmissions are ordered by time.
                if record.retransmitted {
                    continue;
                }
                break;
            }
            match (record.sent + limit).0.checked_sub(now.0).filter(|left| *left > 0) {
                None => self.mark_lost(index),
                Some(left) => wait = wait.max(Some(left)),
            }
        }
        wait
    }

    /// Marks the first `len` bytes as lost, for peers without SACK.
    pub fn mark_first_lost(&mut self, len: u32) {
        if let Some(first) = self.records.front().copied() {
            self.split(0, first.start + len);
            self.mark_lost(0);
        }
    }

    /// Marks everything as lost that the peer does not hold (RFC 8985, 6.3). If the peer has
    /// reneged on its SACKs, this is everything.
    pub fn mark_all_lost(&mut self) {
        if self.records.front().is_some_and(|first| first.sacked) {
            self.sacked = 0;
            self.records.iter_mut().for_each(|record| record.sacked = false);
        }
        for index in 0..self.records.len() {
            self.mark_lost(index);
        }
    }

    /// Marks records longer than `mss` as lost: the path has become too narrow for them.
    pub fn mark_long_lost(&mut self, mss: u32) {
        for index in 0..self.records.len() {
            if self.records[index].len() > mss {
                self.mark_lost(index);
            }
        }
    }

    /// The first lost record.
    pub fn next_lost(&mut self) -> Option<(usize, Record)> {
        if self.lost == 0 {
            return None;
        }
        let from = self.index_of(self.lost_hint);
        let index = (from..self.records.len()).find(|index| self.records[*index].lost)?;
        self.lost_hint = self.records[index].start;
        Some((index, self.records[index]))
    }

    /// Notes that the first `len` bytes of record `index` were retransmitted.
    pub fn resent(&mut self, index: usize, len: u32, now: Nanos) {
        let Some(record) = self.records.get(index) else { return };
        let at = record.start + len;
        self.split(index, at);
        let record = &mut self.records[index];
        (record.sent, record.retransmitted) = (now, true);
        let len = record.len();
        if core::mem::take(&mut record.lost) {
            self.lost -= len;
        }
    }

    /// Returns the last record, cut to at most `mss` bytes: a tail loss probe sends it again.
    pub fn split_tail(&mut self, mss: u32) -> Option<(usize, Record)> {
        let last = *self.records.back()?;
        let len = last.len();
        if len > mss {
            self.split(self.records.len() - 1, last.start + (len - 1) / mss * mss);
        }
        Some((self.records.len() - 1, *self.records.back()?))
    }

    /// Returns the estimated number of bytes in flight (RFC 6675, 4: Pipe).
    #[inline]
    pub fn in_flight(&self) -> u32 {
        let all = match (self.records.front(), self.records.back()) {
            (Some(first), Some(last)) => last.end.since(first.start),
            _ => 0,
        };
        all - self.sacked - self.lost
    }

    pub fn clear(&mut self) {
        *self = Self { records: core::mem::take(&mut self.records), ..Self::default() };
        self.records.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const MSS: u32 = 10;

    fn check(board: &Scoreboard) {
        let sum = |f: fn(&Record) -> bool| -> u32 {
            board.records.iter().filter(|r| f(r)).map(Record::len).sum()
        };
        assert_eq!(board.sacked, sum(|r| r.sacked));
        assert_eq!(board.lost, sum(|r| r.lost));
        assert!(board.records.iter().all(|r| r.len() > 0 && !(r.sacked && r.lost)));
        for (a, b) in board.records.iter().zip(board.records.iter().skip(1)) {
            assert_eq!(a.end, b.start);
        }
        if let Some(first) = board.records.iter().find(|r| r.lost) {
            assert!(!board.lost_hint.after(first.start));
        }
    }

    #[test]
    fn a_block_within_a_segment_marks_nothing() {
        let mut board = Scoreboard::default();
        board.push(Seq(0), Seq(40), Nanos(1), MSS);
        board.sack(Seq(12), Seq(29), MSS, |_| panic!("no whole segment"));
        assert_eq!((board.sacked, board.records.len()), (0, 2));
        let mut told = Vec::new();
        board.sack(Seq(5), Seq(35), MSS, |r| told.push((r.start.0, r.end.0)));
        assert_eq!(told, [(10, 20), (20, 30)]);
    }

    #[test]
    fn older_ones_are_lost() {
        let mut board = Scoreboard::default();
        for i in 0..4 {
            board.push(Seq(i * 10), Seq(i * 10 + 10), Nanos(u64::from(i) * 100), MSS);
        }
        board.sack(Seq(20), Seq(30), MSS, |_| ());
        assert_eq!(board.detect_lost(Nanos(200), Seq(30), 250, Nanos(300)), Some(50));
        assert_eq!((board.lost, board.in_flight()), (10, 20));
        assert_eq!(board.next_lost().map(|(i, r)| (i, r.start)), Some((0, Seq(0))));
        board.resent(0, 10, Nanos(300));
        assert_eq!((board.lost, board.in_flight()), (0, 30));
    }

    proptest! {
        #[test]
        fn its_sums_are_right(
            base in prop_oneof![Just(0u32), Just(u32::MAX - 100)],
            steps in proptest::collection::vec((0u8..8, 0u32..400, 1u32..60), 0..80),
        ) {
            let mut board = Scoreboard::default();
            let (mut una, mut nxt) = (Seq(base), Seq(base));
            for (i, (step, a, b)) in steps.into_iter().enumerate() {
                let now = Nanos(i as u64);
                match step {
                    0 | 1 => {
                        board.push(nxt, nxt + b, now, MSS);
                        nxt += b;
                    }
                    2 => {
                        let to = una + a.min(nxt.since(una));
                        board.acknowledge(to, |_| ());
                        una = to;
                    }
                    3 => board.sack(una + a, una + a + b, MSS, |_| ()),
                    4 => { board.detect_lost(Nanos(u64::from(b)), nxt, u64::from(a) % 10, now); }
                    5 => board.mark_all_lost(),
                    6 => board.mark_first_lost(MSS),
                    _ => if let Some((index, record)) = board.next_lost() {
                        board.resent(index, record.len().min(MSS), now);
                    },
                }
                check(&board);
                prop_assert_eq!(board.in_flight() + board.sacked + board.lost, nxt.since(una));
            }
        }
    }
}
