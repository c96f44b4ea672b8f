//! What a ring's slots give to monitors: see [`super::super::watch`].

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use netring::layout::{RingMemory, copier, slot_flags};

use super::super::watch::{Copy, Exchange, Given, Watch};
use super::{Peer, Ring};

/// Maximum number of monitors that a ring remembers.
const MOST_KNOWN: usize = 64;

impl Ring {
    /// Gives the buffers of slots that are given back to a zero-copy monitor, if the ring has one.
    /// The caller holds the ring.
    pub(super) fn show(&self, from: u32, to: u32, flag: u16) {
        let word = self.memory.control.owner_flags.0.watcher.load(Relaxed);
        if word != 0 && from != to && from < self.slots && to < self.slots {
            self.show_to(word, from, to, flag);
        }
    }

    #[cold]
    fn show_to(&self, word: u32, from: u32, to: u32, flag: u16) {
        if let Some(watch) = self.watch(word) {
            let given = Given { slots: &self.memory.slots[..], from, to, flag };
            self.watchers.show(&watch, given, &Exchange(|buf| self.has_buffer(buf)));
        }
    }

    /// The monitor that a word names.
    fn watch(&self, word: u32) -> Option<Arc<Watch>> {
        let mut known = self.known.lock().ok()?;
        if let Some(watch) = known.iter().find(|watch| watch.word == word) {
            return Some(Arc::clone(watch));
        }
        let watch = Arc::new(self.watchers.find(word)?);
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.push(Arc::clone(&watch));
        Some(watch)
    }

    /// Copies the frames of submitted slots to the monitors of this ring and of the ring at the
    /// other end of a pipe, if they have any. The caller holds the ring, and the other end does not
    /// see the frames yet.
    pub(super) fn copy_to_monitors(&self, from: u32, to: u32) {
        let first = |memory: &RingMemory, list: usize| {
            memory.control.owner_flags.0.copiers[list].load(Relaxed)
        };
        let sent = first(&self.memory, copier::SENT);
        if sent != 0 {
            self.copy_to_list(copier::SENT, sent, (from, to));
        }
        let Peer::Twin(twin) = &self.peer else { return };
        let received = first(twin, copier::RECEIVED);
        if received != 0 {
            self.copy_to_list(copier::RECEIVED, received, (from, to));
        }
    }

    #[cold]
    fn copy_to_list(&self, list: usize, mut word: u32, (from, to): (u32, u32)) {
        let flag = if list == copier::SENT { slot_flags::TXMON } else { 0 };
        let buffer = |buf| self.has_buffer(buf).then(|| self.buffer(buf)).flatten();
        // A list that was spoilt may have no end.
        for _ in 0..self.watchers.geometry.ring_num {
            let Some(watch) = self.watch(word) else { return };
            let given = Given { slots: &self.memory.slots[..], from, to, flag };
            let formats = [self.format(), watch.format()];
            self.watchers.show(&watch, given, &Copy { formats, buffer });
            word = watch.next(list);
        }
    }
}
