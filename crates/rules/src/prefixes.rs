//! Tables of prefixes, whose entries change while they are read.
//!
//! ```text
//!   IPv4:  65,536 words, one for each /16: none, all, or a block of 256 words,
//!          one for each /24: none, all, or 256 bits
//!   IPv6:  one set of networks for each length in use
//! ```
//!
//! Blocks exist where they are needed. A block that is in use is never given to another network,
//! so readers take no lock for IPv4.

use core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use crate::rule::Prefix;

const NO: u32 = 0;
const ALL: u32 = 1;
/// The first number of a block.
const BLOCK: u32 = 2;
/// Words of the first piece of the blocks. Each piece is twice as large as the one before.
const PIECE: usize = 1 << 12;
const PIECES: usize = 20;

/// A table of prefixes. An address is in it if any of its prefixes contains it.
#[derive(Debug, Default)]
pub struct Prefixes {
    top: OnceLock<Box<[AtomicU32]>>,
    pieces: [OnceLock<Box<[AtomicU32]>>; PIECES],
    v6: RwLock<Longer>,
    /// What is in the table; held while it changes.
    truth: Mutex<Truth>,
}

#[derive(Debug, Default)]
struct Truth {
    v4: BTreeSet<(u32, u8)>,
    /// Networks of each length of IPv4.
    lengths: BTreeMap<u8, usize>,
    /// Words of the blocks in use.
    used: usize,
}

#[derive(Debug, Default)]
struct Longer {
    networks: BTreeMap<u8, std::collections::HashSet<u128>>,
}

/// The tables of a switch, by number.
#[derive(Clone, Debug, Default)]
pub struct Tables(pub Vec<Arc<Prefixes>>);

impl Tables {
    /// True if the address is in this table. An unknown table is empty.
    #[must_use]
    #[inline]
    pub fn contains(&self, table: u32, ip: IpAddr) -> bool {
        self.0.get(table as usize).is_some_and(|table| table.contains(ip))
    }
}

fn masked(ip: u32, len: u8) -> u32 {
    ip & u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0)
}

fn words(count: usize) -> Box<[AtomicU32]> {
    (0..count).map(|_| AtomicU32::new(NO)).collect()
}

impl Prefixes {
    /// True if the address is in the table.
    #[must_use]
    #[inline]
    pub fn contains(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(ip) => self.contains_v4(ip.to_bits()),
            IpAddr::V6(ip) => {
                let v6 = self.v6.read().unwrap_or_else(PoisonError::into_inner);
                let ip = ip.to_bits();
                v6.networks.iter().any(|(len, networks)| {
                    let mask = u128::MAX.checked_shl(128 - u32::from(*len)).unwrap_or(0);
                    networks.contains(&(ip & mask))
                })
            }
        }
    }

    #[inline]
    fn contains_v4(&self, ip: u32) -> bool {
        let Some(top) = self.top.get() else { return false };
        let found = match top[(ip >> 16) as usize].load(Ordering::Acquire) {
            state @ (NO | ALL) => return state == ALL,
            block => self.word(block + (ip >> 8 & 0xff)),
        };
        match found.map_or(NO, |word| word.load(Ordering::Acquire)) {
            state @ (NO | ALL) => state == ALL,
            bits => {
                let word = self.word(bits + (ip >> 5 & 7));
                word.is_some_and(|word| word.load(Ordering::Relaxed) >> (ip & 31) & 1 != 0)
            }
        }
    }

    /// A word of the blocks.
    #[inline]
    fn word(&self, number: u32) -> Option<&AtomicU32> {
        let at = (number - BLOCK) as usize + PIECE;
        let piece = (at.ilog2() - PIECE.ilog2()) as usize;
        self.pieces.get(piece)?.get()?.get(at - (PIECE << piece))
    }

    /// Adds a prefix. False if it is there already, or if there is no room.
    pub fn add(&self, prefix: Prefix) -> bool {
        self.change(prefix, true)
    }

    /// Removes a prefix. False if it is not there.
    pub fn remove(&self, prefix: Prefix) -> bool {
        self.change(prefix, false)
    }

    /// How many prefixes there are.
    #[must_use]
    pub fn len(&self) -> usize {
        let truth = self.truth.lock().unwrap_or_else(PoisonError::into_inner);
        let v6 = self.v6.read().unwrap_or_else(PoisonError::into_inner);
        truth.v4.len() + v6.networks.values().map(std::collections::HashSet::len).sum::<usize>()
    }

    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn change(&self, prefix: Prefix, add: bool) -> bool {
        let mut truth = self.truth.lock().unwrap_or_else(PoisonError::into_inner);
        let len = prefix.bits();
        let ip = match prefix.ip() {
            IpAddr::V4(ip) => ip.to_bits(),
            IpAddr::V6(ip) => {
                let mut v6 = self.v6.write().unwrap_or_else(PoisonError::into_inner);
                let networks = v6.networks.entry(len).or_default();
                let changed = if add {
                    networks.insert(ip.to_bits())
                } else {
                    networks.remove(&ip.to_bits())
                };
                if networks.is_empty() {
                    v6.networks.remove(&len);
                }
                return changed;
            }
        };
        let changed = if add { truth.v4.insert((ip, len)) } else { truth.v4.remove(&(ip, len)) };
        if changed {
            let count = truth.lengths.entry(len).or_insert(0);
            *count = if add { *count + 1 } else { *count - 1 };
            if *count == 0 {
                truth.lengths.remove(&len);
            }
            self.refresh(&mut truth, ip, len);
        }
        changed
    }

    /// Makes the words of a network what the truth says.
    fn refresh(&self, truth: &mut Truth, ip: u32, len: u8) {
        let top = self.top.get_or_init(|| words(1 << 16));
        if len <= 16 {
            let first = ip >> 16;
            for at in first..first + (1 << (16 - len)) {
                self.refresh_16(truth, top, at);
            }
            return;
        }
        let word = &top[(ip >> 16) as usize];
        match word.load(Ordering::Relaxed) {
            NO | ALL => self.refresh_16(truth, top, ip >> 16),
            block => {
                let first = ip >> 8;
                for at in first..first + (1u32 << 24u8.saturating_sub(len)) {
                    self.refresh_24(truth, block, at);
                }
            }
        }
    }

    fn refresh_16(&self, truth: &mut Truth, top: &[AtomicU32], at: u32) {
        let word = &top[at as usize];
        let (base, block) = (at << 16, word.load(Ordering::Relaxed));
        if truth.covers(base, 16) {
            // A block stays where it is, and says the same.
            if block < BLOCK {
                return word.store(ALL, Ordering::Release);
            }
        } else if block < BLOCK {
            let mut inside = truth.v4.range((base, 17)..=(base | 0xffff, 32));
            if inside.next().is_none() {
                return word.store(NO, Ordering::Release);
            }
        }
        let block = if block < BLOCK { self.allocate(truth, 256) } else { Some(block) };
        let Some(block) = block else { return };
        for part in 0..256 {
            self.refresh_24(truth, block, at << 8 | part);
        }
        word.store(block, Ordering::Release);
    }

    fn refresh_24(&self, truth: &mut Truth, block: u32, at: u32) {
        let Some(word) = self.word(block + (at & 0xff)) else { return };
        let (base, bits) = (at << 8, word.load(Ordering::Relaxed));
        let covered = truth.covers(base, 24);
        let inside: Vec<(u32, u8)> = match covered {
            true => Vec::new(),
            false => truth.v4.range((base, 25)..=(base | 0xff, 32)).copied().collect(),
        };
        if bits < BLOCK && (covered || inside.is_empty()) {
            return word.store(if covered { ALL } else { NO }, Ordering::Release);
        }
        let mut image = if covered { [u32::MAX; 8] } else { [0; 8] };
        for (ip, len) in inside.into_iter().filter(|(_, len)| *len > 24) {
            for one in (ip & 0xff)..(ip & 0xff) + (1 << (32 - len)) {
                image[one as usize / 32] |= 1 << (one % 32);
            }
        }
        let bits = if bits < BLOCK { self.allocate(truth, 8) } else { Some(bits) };
        let Some(bits) = bits else { return };
        for (word, image) in (bits..).zip(image) {
            self.word(word).into_iter().for_each(|word| word.store(image, Ordering::Relaxed));
        }
        word.store(bits, Ordering::Release);
    }

    /// Zeroed words that belong to nothing yet, in one piece. `None` if there are no more.
    fn allocate(&self, truth: &mut Truth, count: usize) -> Option<u32> {
        let at = truth.used.next_multiple_of(count);
        truth.used = at + count;
        let place = at + PIECE;
        let piece = (place.ilog2() - PIECE.ilog2()) as usize;
        self.pieces.get(piece)?.get_or_init(|| words(PIECE << piece));
        Some(BLOCK + at as u32)
    }
}

impl Truth {
    /// True if a network of up to `most` bits contains `ip`.
    fn covers(&self, ip: u32, most: u8) -> bool {
        let lengths = self.lengths.range(..=most);
        lengths.into_iter().any(|(len, _)| self.v4.contains(&(masked(ip, *len), *len)))
    }
}
