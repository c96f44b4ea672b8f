//! Descriptor rings and the initialization block (Am79C970A, "Initialization Block", "Receive
//! Descriptors", "Transmit Descriptors").
//!
//! ```text
//!   SWSTYLE 0          1, 2                 3
//!   OWN.. | address    address              message count / errors
//!   count | BCNT       OWN.. | BCNT         OWN.. | BCNT
//!                      message count/errors address
//!                      user                 user
//! ```

use std::sync::atomic::{AtomicU32, Ordering};

use shmem::{GuestMemory, SharedSlice};

use super::registers::{Registers, bcr, csr};

/// Status bits of a descriptor: the upper half of its second word; in style 0 the upper byte of
/// both.
pub(super) mod bits {
    pub const OWN: u16 = 1 << 15;
    pub const ERR: u16 = 1 << 14;
    /// Transmit: append the FCS despite DXMTFCS; in style 1, do not append it.
    pub const ADD_FCS: u16 = 1 << 13;
    /// Transmit, with LTINTEN: interrupt when the frame is sent.
    pub const LTINT: u16 = 1 << 12;
    /// Receive: no buffer for the rest of the frame.
    pub const BUFF: u16 = 1 << 10;
    pub const STP: u16 = 1 << 9;
    pub const ENP: u16 = 1 << 8;
    /// Receive: matched the station address, the logical filter, broadcast.
    pub const PAM: u16 = 1 << 6;
    pub const LAFM: u16 = 1 << 5;
    pub const BAM: u16 = 1 << 4;
}

/// Transmit errors: TMD2 from bit 16 on.
pub(super) mod errors {
    pub const BUFF: u16 = 1 << 15;
    pub const UFLO: u16 = 1 << 14;
    pub const LCAR: u16 = 1 << 11;
}

/// Descriptor formats (BCR20, SWSTYLE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// Style 0: as in the LANCE, with 8 bytes and addresses of 24 bits. CSR2 has the upper bits.
    Short {
        /// Bits 31 to 24 of every address.
        high: u32,
    },
    /// 1 and 2: ILACC, PCnet-32.
    Long {
        /// Style 1: the bit that style 2 takes for ADD_FCS means not to append.
        ilacc: bool,
    },
    /// Style 3: PCnet-PCI, with buffers' addresses after their lengths.
    Swapped,
}

impl Style {
    pub fn of(registers: &Registers) -> Self {
        match registers.bcr(bcr::STYLE) & 0xff {
            1 => Self::Long { ilacc: true },
            2 => Self::Long { ilacc: false },
            3 => Self::Swapped,
            // Undefined values mean the style after power-on.
            _ => Self::Short { high: u32::from(registers.csr(csr::INIT_BLOCK + 1) & 0xff00) << 16 },
        }
    }

    /// 32-bit words of a descriptor.
    #[inline(always)]
    pub fn words(self) -> usize {
        if matches!(self, Self::Short { .. }) { 2 } else { 4 }
    }

    /// The index of the word with OWN.
    #[inline(always)]
    fn status(self) -> usize {
        usize::from(!matches!(self, Self::Short { .. }))
    }

    /// Decodes a descriptor. `word` is its word with OWN, and `load` reads the others.
    #[inline(always)]
    fn describe(self, word: u32, load: impl Fn(usize) -> u32) -> Descriptor {
        match self {
            Self::Short { high } => Descriptor {
                address: word & 0x00ff_ffff | high,
                status: (word >> 16) as u16 & 0xff00,
                len: buffer_len(load(1)),
            },
            Self::Long { .. } => Descriptor::long(word, load(0)),
            Self::Swapped => Descriptor::long(word, load(2)),
        }
    }

    /// True if PAM, LAFM and BAM exist.
    pub fn has_match_bits(self) -> bool {
        !matches!(self, Self::Short { .. })
    }
}

/// A descriptor that the controller owns, read once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Descriptor {
    pub address: u32,
    pub status: u16,
    /// Bytes of the descriptor's buffer: 1 to 4,096.
    pub len: u32,
}

impl Descriptor {
    /// Decodes a descriptor of a long style from the word with OWN and the address.
    #[inline(always)]
    fn long(word: u32, address: u32) -> Self {
        Self { address, status: (word >> 16) as u16, len: buffer_len(word) }
    }
}

/// Decodes BCNT: twelve bits of a two's complement; all zero means the longest buffer.
#[inline(always)]
fn buffer_len(count: u32) -> u32 {
    4096u32.wrapping_sub(count & 0xfff)
}

/// A ring in guest memory.
#[derive(Clone, Debug)]
pub(super) struct Ring {
    /// # Protocol: PCnet (`nic::pcnet`): a descriptor's OWN bit
    /// - Writer: the side that owns the descriptor, which gives it away
    /// - Reader: the other
    /// - Ordering: store release / load acquire; the rest of the descriptor relaxed
    /// - Partner: the frame, the buffer, the other words
    /// - Without it: a descriptor is read half written, or a buffer that is still copied is used
    ///   again
    /// - Shown by: `nic` tests `pcnet_rings`
    words: SharedSlice<AtomicU32>,
    /// The number of words in a descriptor, and the index of the word with OWN. For the long
    /// styles, also the index of the address, and of the word that [`Ring::other_word`] gives.
    stride: usize,
    status: usize,
    address: usize,
    other: usize,
    pub len: u32,
    pub base: u32,
    pub style: Style,
}

impl Ring {
    /// The ring whose base and length are in these CSRs; `None` if it is not in one piece of guest
    /// memory.
    pub fn new(
        registers: &Registers,
        memory: &GuestMemory,
        base: usize,
        len: usize,
    ) -> Option<Self> {
        let style = Style::of(registers);
        let (base, len) = (registers.csr_pair(base), registers.ring_len(len));
        // Rings are aligned to their descriptors; the chip ignores the bits below.
        let base = base & !(4 * style.words() as u32 - 1);
        let words = memory.shared_slice(base.into(), len as usize * style.words())?;
        let (address, other) = if style == Style::Swapped { (2, 0) } else { (0, 2) };
        let (stride, status) = (style.words(), style.status());
        Some(Self { words, stride, status, address, other, len, base, style })
    }

    pub fn is_same(&self, other: &Self) -> bool {
        (self.base, self.len, self.style) == (other.base, other.len, other.style)
    }

    #[inline(always)]
    fn word(&self, at: u32, word: usize) -> &AtomicU32 {
        &self.words[(at as usize).wrapping_mul(self.stride).wrapping_add(word)]
    }

    /// The word that OWN is in.
    #[inline(always)]
    fn status_word(&self, at: u32) -> &AtomicU32 {
        self.word(at, self.status)
    }

    /// The descriptor after `at`.
    #[inline(always)]
    pub fn next(&self, at: u32) -> u32 {
        let next = at.wrapping_add(1);
        if next >= self.len { 0 } else { next }
    }

    /// The descriptor `count` after `at`, `count` being at most the ring's length.
    #[inline(always)]
    pub fn after(&self, at: u32, count: u32) -> u32 {
        let after = at.wrapping_add(count);
        if after >= self.len { after.wrapping_sub(self.len) } else { after }
    }

    /// The descriptor `count` before `at`, `count` being at most the ring's length.
    pub fn before(&self, at: u32, count: u32) -> u32 {
        if at >= count { at - count } else { at + self.len - count }
    }

    /// True if the controller owns the descriptor at `at`.
    #[inline(always)]
    pub fn is_owned(&self, at: u32) -> bool {
        u32::from_le(self.status_word(at).load(Ordering::Acquire)) >> 31 != 0
    }

    /// The descriptor at `at`, if the controller owns it.
    #[inline(always)]
    pub fn take(&self, at: u32) -> Option<Descriptor> {
        let word = u32::from_le(self.status_word(at).load(Ordering::Acquire));
        if word >> 31 == 0 {
            return None;
        }
        if let Style::Short { .. } = self.style {
            return Some(self.style.describe(word, |n| self.load(at, n)));
        }
        Some(Descriptor::long(word, self.load(at, self.address)))
    }

    #[inline(always)]
    fn load(&self, at: u32, word: usize) -> u32 {
        u32::from_le(self.word(at, word).load(Ordering::Relaxed))
    }

    /// The descriptor at `at`, whichever side owns it.
    pub fn describe(&self, at: u32) -> Descriptor {
        self.style.describe(self.load(at, self.style.status()), |n| self.load(at, n))
    }

    /// A received frame's length, according to its last descriptor.
    pub fn message(&self, at: u32) -> u32 {
        match self.style {
            Style::Short { .. } => self.load(at, 1) >> 16 & 0xfff,
            _ => u32::from_le(self.other_word(at).load(Ordering::Relaxed)) & 0xfff,
        }
    }

    /// Bytes of a descriptor.
    pub fn size(&self) -> u32 {
        4 * self.style.words() as u32
    }

    /// The address of the descriptor at `at`.
    pub fn address(&self, at: u32) -> u64 {
        u64::from(self.base) + u64::from(at * self.size())
    }

    /// Decodes a descriptor from its bytes in memory, if the controller owns it.
    pub fn parse(&self, bytes: &[u8]) -> Option<Descriptor> {
        let load = |n: usize| {
            let word = bytes.get(4 * n..).and_then(|rest| rest.first_chunk());
            word.map_or(0, |word| u32::from_le_bytes(*word))
        };
        let word = load(self.style.status());
        (word >> 31 != 0).then(|| self.style.describe(word, load))
    }

    /// Writes a descriptor to memory, OWN last.
    pub fn put(&self, at: u32, bytes: &[u8]) {
        let status = self.style.status();
        let words =
            || bytes.as_chunks::<4>().0.iter().map(|word| u32::from_ne_bytes(*word)).enumerate();
        for (n, word) in words().filter(|(n, _)| *n != status) {
            self.word(at, n).store(word, Ordering::Relaxed);
        }
        words().filter(|(n, _)| *n == status).for_each(|(_, word)| {
            self.status_word(at).store(word, Ordering::Release);
        });
    }

    /// The bytes of the descriptor at `at`.
    pub fn bytes(&self, at: u32) -> Vec<u8> {
        let word = |n| self.word(at, n).load(Ordering::Relaxed).to_ne_bytes();
        (0..self.style.words()).flat_map(word).collect()
    }

    /// The same bytes, with OWN set.
    pub fn with_own(&self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        bytes[4 * self.style.status() + 3] |= 0x80;
        bytes
    }

    /// Clears OWN in every descriptor.
    pub fn clear(&self) {
        (0..self.len).for_each(|at| self.status_word(at).store(0, Ordering::Release));
    }

    /// Gives the transmit descriptor at `at` back as sent.
    #[inline(always)]
    pub fn give_back(&self, at: u32) {
        let word = self.status_word(at);
        let kept = u32::from_le(word.load(Ordering::Relaxed)) & !(u32::from(bits::OWN) << 16);
        word.store(kept.to_le(), Ordering::Release);
    }

    /// True if the driver wants to be told that the transmit descriptor at `at` was sent (LTINT).
    pub fn wants_interrupt(&self, at: u32) -> bool {
        let word = u32::from_le(self.status_word(at).load(Ordering::Relaxed));
        word >> 16 & u32::from(bits::LTINT) != 0
    }

    /// Gives the transmit descriptor at `at` back with these errors.
    pub fn give_back_failed(&self, at: u32, errors: u16) {
        if let Style::Short { .. } = self.style {
            let count = self.word(at, 1);
            let kept = u32::from_le(count.load(Ordering::Relaxed)) & 0xffff;
            count.store((kept | u32::from(errors) << 16).to_le(), Ordering::Relaxed);
        } else {
            self.other_word(at).store((u32::from(errors) << 16).to_le(), Ordering::Relaxed);
        }
        let word = self.status_word(at);
        let kept = u32::from_le(word.load(Ordering::Relaxed)) & !(u32::from(bits::OWN) << 16);
        word.store((kept | u32::from(bits::ERR) << 16).to_le(), Ordering::Release);
    }

    /// In long styles: a receive descriptor's message count, or a transmit descriptor's errors.
    #[inline(always)]
    fn other_word(&self, at: u32) -> &AtomicU32 {
        self.word(at, self.other)
    }

    /// Gives the receive descriptor at `at` back with a status. A frame's last descriptor also gets
    /// the frame's length.
    #[inline(always)]
    pub fn fill(&self, at: u32, status: u16, message: Option<u32>) {
        let word = self.status_word(at);
        let old = u32::from_le(word.load(Ordering::Relaxed));
        let new = if let Style::Short { .. } = self.style {
            if let Some(message) = message {
                let count = self.word(at, 1);
                let kept = u32::from_le(count.load(Ordering::Relaxed)) & 0xffff;
                count.store((kept | (message & 0xfff) << 16).to_le(), Ordering::Relaxed);
            }
            old & 0x00ff_ffff | u32::from(status & 0xff00) << 16
        } else {
            if let Some(message) = message {
                self.other_word(at).store((message & 0xfff).to_le(), Ordering::Relaxed);
            }
            old & 0xffff | u32::from(status) << 16
        };
        word.store(new.to_le(), Ordering::Release);
    }
}

/// The contents of an initialization block (Am79C970A, "Initialization Block").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InitBlock {
    pub mode: u16,
    pub station: [u16; 3],
    pub logical: [u16; 4],
    /// Bases, and lengths as their logarithms.
    pub receive: (u32, u16),
    pub transmit: (u32, u16),
}

impl InitBlock {
    /// Bytes of the longer form.
    pub const MOST: usize = 28;

    /// Bytes of a block in this style.
    pub fn size(style: Style) -> usize {
        if let Style::Short { .. } = style { 24 } else { Self::MOST }
    }

    pub fn parse(bytes: &[u8; Self::MOST], style: Style) -> Self {
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let word = |at: usize| u32::from(half(at)) | u32::from(half(at + 2)) << 16;
        let mode = half(0);
        if let Style::Short { high } = style {
            let ring = |at| (word(at) & 0x00ff_ffff | high, half(at + 2) >> 13);
            return Self {
                mode,
                station: [2, 4, 6].map(half),
                logical: [8, 10, 12, 14].map(half),
                receive: ring(16),
                transmit: ring(20),
            };
        }
        let lengths = half(2);
        Self {
            mode,
            station: [4, 6, 8].map(half),
            logical: [12, 14, 16, 18].map(half),
            receive: (word(20), lengths >> 4 & 15),
            transmit: (word(24), lengths >> 12 & 15),
        }
    }

    /// The number of descriptors for this length code: 512 at most.
    pub fn ring_len(code: u16) -> u16 {
        1 << code.min(9)
    }
}
