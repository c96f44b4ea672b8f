//! Where ports stand: the part of the state that never moves, so that ports outlive a change of
//! everything else.
//!
//! From layout [`FIRST`] on, every layout has these words at the same place (`tests.rs` has the
//! numbers): the bits of the ports that exist, each ring's cursors, each queue's words, each
//! receive ring's spare buffers. A file of an earlier layout keeps them, and resets all
//! else: counters, records, table.

use std::sync::atomic::Ordering;

use port::PortId;
use shmem::{Memfd, RegionError};

use super::{PAGE, PORT, PortState, QueueWords, RINGS, State};

/// The first layout that has positions where all later ones have them.
const FIRST: u64 = 0x0d;

/// True if a file of layout `magic` has its positions where layout `now` has them. Later layouts
/// are of later versions, which this one does not take over.
pub(super) const fn are_kept(magic: u64, now: u64) -> bool {
    let (word, layout) = (!0xffff, 0xffff);
    magic & word == now & word && FIRST <= magic & layout && magic & layout < now & layout
}

/// The positions of one ring in each direction: taken, its queue's words; published, released,
/// primed, its queue's words.
type Ring = (u32, [u64; 4], [u32; 3], [u64; 4]);

impl State {
    /// Clears all but the positions of the ports that exist.
    ///
    /// # Errors
    /// [`RegionError::Map`] when it cannot be cleared.
    pub(super) fn keep_positions(&self, file: &Memfd) -> Result<(), RegionError> {
        let port = |id| Some((id, self.port(id)?.positions()));
        let stand: Vec<(PortId, Vec<Ring>)> = self.ports().filter_map(port).collect();
        let pages = stand.iter().map(|(id, _)| (self.ports_at + usize::from(*id) * PORT, PAGE));
        for (at, len) in std::iter::once((0, self.ports_at)).chain(pages) {
            file.punch(at, len).map_err(|source| RegionError::Map { len, source })?;
        }
        for (id, rings) in stand {
            self.switch.set_port(id, true);
            if let Some(port) = self.port(id) {
                port.set_positions(&rings);
            }
        }
        Ok(())
    }
}

impl PortState {
    fn positions(&self) -> Vec<Ring> {
        let words =
            |QueueWords(words): &QueueWords| words.each_ref().map(|w| w.load(Ordering::Relaxed));
        let ring = |ring| {
            let (send, receive) = (self.send(ring)?, self.receive(ring)?);
            let cursors = [&receive.published, &receive.released].map(shmem::Cursor::own);
            let primed = receive.primed.load(Ordering::Relaxed);
            let received = [cursors[0], cursors[1], primed];
            Some((send.taken.own(), words(&send.queue), received, words(&receive.queue)))
        };
        (0..RINGS).map_while(ring).collect()
    }

    fn set_positions(&self, rings: &[Ring]) {
        let put = |QueueWords(to): &QueueWords, words: &[u64; 4]| {
            to.iter().zip(words).for_each(|(to, word)| to.store(*word, Ordering::Relaxed));
        };
        for (ring, (taken, sent, [published, released, primed], received)) in
            rings.iter().enumerate()
        {
            let (Some(send), Some(receive)) = (self.send(ring), self.receive(ring)) else { return };
            send.taken.publish(*taken);
            put(&send.queue, sent);
            receive.published.publish(*published);
            receive.released.publish(*released);
            receive.primed.store(*primed, Ordering::Relaxed);
            put(&receive.queue, received);
        }
    }
}
