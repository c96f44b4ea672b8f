//! The area of a split queue.

use std::collections::VecDeque;
use std::sync::atomic::{Ordering, fence};

use super::{INFLIGHT, Inflight, VERSION, fields, word};

/// The inflight area of a split queue.
#[derive(Debug)]
pub struct Journal {
    area: Inflight,
    /// Marked heads, in the order in which they were taken.
    marked: VecDeque<u16>,
    counter: u64,
    /// The head that was used last.
    last: u16,
}

/// Words of head `id`'s entry: state, counter.
fn entry(id: u16) -> usize {
    2 + 2 * usize::from(id)
}

impl Journal {
    /// Starts with the used ring at `used`. If another process served the queue with this area,
    /// also returns the heads in flight. They are already marked, and must be given back. There are
    /// none if they exceed `most`, the number that the driver can wait for.
    pub fn new(area: Inflight, used: u16, most: u16) -> (Self, Option<Vec<u16>>) {
        let found = area.is_to_adopt().then(|| Self::found(&area, used));
        // More heads than the driver waits for: the queue was reset since.
        let found = found.map(|f| if f.len() > usize::from(most) { Vec::new() } else { f });
        let counter = found.iter().flatten().last().map_or(0, |(counter, _)| *counter);
        let heads = found.map(|f| f.into_iter().map(|(_, head)| head).collect::<Vec<u16>>());
        let mut is_marked = vec![false; area.size().into()];
        let mut marked = VecDeque::with_capacity(area.size().into());
        for head in heads.iter().flatten() {
            is_marked[usize::from(*head)] = true;
            marked.push_back(*head);
        }
        for id in (0..area.size()).filter(|id| !is_marked[usize::from(*id)]) {
            area.store(entry(id), 0);
        }
        let this = Self { area, marked, counter, last: 0 };
        this.write_head(used);
        (this, heads)
    }

    /// The heads in flight with their counters, ordered by counter.
    fn found(area: &Inflight, used: u16) -> Vec<(u64, u16)> {
        let state = |id: u16| area.word(entry(id));
        let mut inflight: Vec<bool> =
            (0..area.size()).map(|id| state(id) & 0xff == INFLIGHT).collect();
        let [_, _, mut last, known] = area.fields(1);
        // The last batch was published, but its marks are still there.
        for _ in 0..used.wrapping_sub(known).min(area.size()) {
            let Some(head) = inflight.get_mut(usize::from(last)) else { break };
            *head = false;
            last = fields(state(last))[3];
        }
        let heads = (0..area.size()).filter(|id| inflight[usize::from(*id)]);
        let mut heads: Vec<_> = heads.map(|id| (area.word(entry(id) + 1), id)).collect();
        heads.sort_unstable();
        heads
    }

    fn write_head(&self, used: u16) {
        self.area.store(1, word([VERSION, self.area.size(), self.last, used]));
    }

    /// Marks the taken chain with this head.
    pub fn take(&mut self, head: u16) {
        self.counter = self.counter.wrapping_add(1);
        self.area.store(entry(head) + 1, self.counter);
        fence(Ordering::Release);
        self.area.store(entry(head), INFLIGHT);
        self.marked.push_back(head);
    }

    /// Prepares to publish the oldest `count` chains; the ring's position remains `used` until
    /// then.
    pub fn link(&mut self, count: u16, used: u16) {
        for head in self.marked.iter().take(count.into()) {
            self.area.store(entry(*head), INFLIGHT | u64::from(self.last) << 48);
            self.last = *head;
        }
        self.write_head(used);
        fence(Ordering::Release);
    }

    /// Removes the marks of the oldest `count` chains after these were published. The ring then
    /// stands at `used`.
    pub fn unmark(&mut self, count: u16, used: u16) {
        fence(Ordering::Release);
        let count = self.marked.len().min(count.into());
        for head in self.marked.drain(..count) {
            let next = self.area.word(entry(head)) >> 48 << 48;
            self.area.store(entry(head), next);
        }
        fence(Ordering::Release);
        self.write_head(used);
    }
}
