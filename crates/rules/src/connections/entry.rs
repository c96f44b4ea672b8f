//! A connection in memory: eight words, of which the last says that the others are valid.
//!
//! | word | content |
//! |---|---|
//! | 0, 1 | first packet's source address |
//! | 2, 3 | its destination address |
//! | 4 | its source port, destination port, VLAN, protocol (8 bits) |
//! | 5 | the ports of the switch: of the first packet, of the answers |
//! | 6 | when it expires in seconds (32 bits), generations of rules (16 each) |
//! | 7 | the state, 0 for none |

use std::sync::atomic::{AtomicU64, Ordering};

use super::{ENTRY_WORDS, End, HEADER_WORDS, State, Tuple};

/// "toklatCT" and the version of the layout.
const MAGIC: [u64; 2] = [0x746f_6b6c_6174_4354, 1];

pub(super) struct Header<'m>(&'m [AtomicU64]);

impl<'m> Header<'m> {
    pub fn of(words: &'m [AtomicU64]) -> Self {
        Self(words)
    }

    pub fn is_ours(&self) -> bool {
        self.0.iter().zip(MAGIC).filter(|(word, is)| word.load(Ordering::Relaxed) == *is).count()
            == 2
    }

    pub fn mark(&self) {
        self.0.iter().zip(MAGIC).for_each(|(word, is)| word.store(is, Ordering::Relaxed));
    }
}

/// One entry. The words are atomics because the memory is shared with the next process; one thread
/// at a time uses them.
#[derive(Clone, Copy)]
pub(super) struct Entry<'m>(&'m [AtomicU64]);

impl<'m> Entry<'m> {
    #[inline(always)]
    pub fn of(words: &'m [AtomicU64], number: u32) -> Self {
        let at = HEADER_WORDS + number as usize * ENTRY_WORDS;
        Self(&words[at..at + ENTRY_WORDS])
    }

    #[inline(always)]
    fn get(self, at: usize) -> u64 {
        self.0[at].load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn set(self, at: usize, value: u64) {
        self.0[at].store(value, Ordering::Relaxed);
    }

    #[inline(always)]
    pub fn state(self) -> Option<State> {
        State::of(self.get(7) as u8)
    }

    #[inline(always)]
    pub fn expires(self) -> u32 {
        (self.get(6) >> 32) as u32
    }

    #[inline(always)]
    pub fn judged(self) -> (u16, u16) {
        let word = self.get(6);
        ((word >> 16) as u16, word as u16)
    }

    #[inline(always)]
    pub fn ends(self) -> (End, End) {
        let word = self.get(5);
        (End((word >> 32) as u32), End(word as u32))
    }

    #[inline(always)]
    pub fn tuple(self) -> Tuple {
        let word = self.get(4);
        let ip = |at: usize| u128::from(self.get(at)) << 64 | u128::from(self.get(at + 1));
        Tuple {
            from: ip(0),
            to: ip(2),
            ports: ((word >> 48) as u16, (word >> 32) as u16),
            vlan: (word >> 16) as u16,
            protocol: word as u8,
            flags: 0,
            related: false,
        }
    }

    pub fn set_ends(self, (from, to): (End, End)) {
        self.set(5, u64::from(from.0) << 32 | u64::from(to.0));
    }

    pub fn set_judged(self, (from, to): (u16, u16)) {
        let expires = self.get(6) >> 32 << 32;
        self.set(6, expires | u64::from(from) << 16 | u64::from(to));
    }

    pub fn set_state(self, state: State, expires: u32) {
        if self.expires() != expires {
            self.set(6, u64::from(expires) << 32 | self.get(6) & 0xffff_ffff);
        }
        if self.get(7) != state as u64 {
            self.set(7, state as u64);
        }
    }

    /// Writes all of it, the state last: a process that dies in between leaves no entry.
    pub fn write(
        self,
        tuple: &Tuple,
        ends: (End, End),
        judged: (u16, u16),
        state: State,
        expires: u32,
    ) {
        self.set(7, 0);
        for (at, ip) in [(0, tuple.from), (2, tuple.to)] {
            self.set(at, (ip >> 64) as u64);
            self.set(at + 1, ip as u64);
        }
        let (from, to) = (u64::from(tuple.ports.0) << 48, u64::from(tuple.ports.1) << 32);
        self.set(4, from | to | u64::from(tuple.vlan) << 16 | u64::from(tuple.protocol));
        self.set_ends(ends);
        self.set(6, u64::from(expires) << 32);
        self.set_judged(judged);
        self.0[7].store(state as u64, Ordering::Release);
    }

    pub fn clear(self) {
        self.set(7, 0);
    }
}
