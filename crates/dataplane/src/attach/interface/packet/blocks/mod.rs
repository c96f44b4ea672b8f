//! A receive ring of a packet socket (`TPACKET_V3`, `linux/if_packet.h`): blocks of frames that
//! the kernel and this process own in turn.
//!
//! ```text
//!   block: | version | private | status | frames | first | bytes | number u64 | times | frames ...
//!   frame: | next | sec | nsec | captured | length | status | mac u16, net u16 | hash | tag |
//!          ... header, bytes
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use frame::{ETHERNET_HEADER, OFFLOAD_HEADER, VLAN_TAG};
use port::Offload;
use shmem::{Bytes, Mapping, Shared, Span};

use super::super::PacketRings;
use crate::attach::interface::MAX_FRAME;

/// Words of a block's header that are read here.
const WORDS: usize = 8;
/// Offsets in a block: its status, its number of frames, and its first frame.
const STATUS: usize = 2;
const FRAMES: usize = 3;
const FIRST: usize = 4;
/// The offsets of the two halves of a block's number, the lower half first.
const NUMBER: (usize, usize) = (6, 7);
/// `TP_STATUS_KERNEL`, `TP_STATUS_USER`: who owns a block.
const KERNEL: u32 = 0;
const USER: u32 = 1;
/// `TP_STATUS_VLAN_VALID`, `TP_STATUS_VLAN_TPID_VALID`: the frame had a tag, and of which kind.
const TAGGED: u32 = 1 << 4;
const TAG_KIND: u32 = 1 << 6;
/// Bytes of a frame's header (`struct tpacket3_hdr`).
const HEADER: usize = 48;
/// The kind of a tag without another (IEEE 802.1Q).
const VLAN: u16 = 0x8100;

/// The header of a block, in words.
///
/// # Protocol: a packet ring's block status
/// - Writer: the kernel (to `USER`); home worker (to `KERNEL`)
/// - Reader: home worker; the kernel
/// - Ordering: load acquire / store release
/// - Partner: the block's frames, and the words beside it
/// - Without it: a frame is read before it is written, or overwritten while it is lent
/// - Shown by: `dataplane` tests `interface`
type BlockHeader = [AtomicU32; WORDS];

/// A block whose frames are lent.
#[derive(Debug)]
struct Lent {
    /// How many of the block's frames were not given back yet.
    frames: usize,
    /// The switch has looked at all frames of the block.
    whole: bool,
}

/// A receive ring.
#[derive(Debug)]
pub(super) struct Blocks {
    mapping: Arc<Mapping>,
    headers: Box<[Shared<BlockHeader>]>,
    block_len: usize,
    /// The block that is looked at, or is next.
    at: usize,
    /// How many frames of the current block are left, and where the next one is in it.
    left: u32,
    next: usize,
    /// The lent blocks, oldest first. The last one may still have frames that were not looked at.
    lent: VecDeque<Lent>,
}

/// Where a frame lies in a ring.
#[derive(Clone, Copy, Debug)]
pub(super) enum Found {
    /// A frame, and its offload request.
    Frame(Span, Offload),
    /// A frame of this many bytes that was truncated, or is longer than any allowed one.
    TooLong(usize),
}

impl Blocks {
    /// Opens the ring in `mapping`. It begins with the oldest block that the kernel handed over, or
    /// else with the next one.
    pub fn over(mapping: &Arc<Mapping>, rings: PacketRings) -> Option<Self> {
        let (count, block_len) = (rings.blocks as usize, rings.block_len as usize);
        let header = |block| mapping.shared::<BlockHeader>(block * block_len);
        let headers: Box<[_]> = (0..count).map(header).collect::<Option<_>>()?;
        let end = headers.len().checked_mul(block_len)?;
        if block_len < HEADER || end > mapping.len() {
            return None;
        }
        let at = start(&headers);
        let lent = VecDeque::with_capacity(count);
        Some(Self { mapping: Arc::clone(mapping), headers, block_len, at, left: 0, next: 0, lent })
    }

    /// True if a block is handed over that was not looked at.
    pub fn has_frames(&self) -> bool {
        self.left > 0
            || (self.lent.len() < self.headers.len()
                && self.headers[self.at][STATUS].load(Ordering::Acquire) & USER != 0)
    }

    /// The next frame; [give it back](Self::give_back) if it is lent on.
    pub fn take(&mut self) -> Option<Found> {
        while self.left == 0 {
            if !self.has_frames() {
                return None;
            }
            let word = |word: usize| self.headers[self.at][word].load(Ordering::Relaxed);
            (self.left, self.next) = (word(FRAMES), word(FIRST) as usize);
            self.lent.push_back(Lent { frames: 0, whole: false });
            self.end_block_if_done();
        }
        let block = self.mapping.bytes(self.at * self.block_len, self.block_len)?;
        let found = frame_at(block, self.next);
        let lent = matches!(found, Some((Found::Frame(..), _)));
        if let Some(last) = self.lent.back_mut() {
            last.frames += usize::from(lent);
        }
        // A frame that lies outside of its block ends the block.
        (self.left, self.next) = match found {
            Some((_, next)) if next > 0 => (self.left - 1, self.next + next),
            Some(_) | None => (0, 0),
        };
        self.end_block_if_done();
        found.map(|(found, _)| found)
    }

    /// Goes on to the next block if all frames of this one were looked at.
    fn end_block_if_done(&mut self) {
        if self.left > 0 {
            return;
        }
        if let Some(last) = self.lent.back_mut() {
            last.whole = true;
        }
        self.at = (self.at + 1) % self.headers.len();
        self.give_back(0);
    }

    /// Gives the oldest `frames` frames back. Returns each block to the kernel when none of its
    /// frames is lent.
    pub fn give_back(&mut self, mut frames: usize) {
        while let Some(oldest) = self.lent.front_mut() {
            let here = frames.min(oldest.frames);
            oldest.frames -= here;
            frames -= here;
            if oldest.frames > 0 || !oldest.whole {
                break;
            }
            let count = self.headers.len();
            // `at` is the position after the blocks that were looked at completely.
            let whole = self.lent.iter().filter(|lent| lent.whole).count();
            let oldest = (self.at + count - whole) % count;
            self.headers[oldest][STATUS].store(KERNEL, Ordering::Release);
            self.lent.pop_front();
        }
    }
}

/// Where a process begins to read: at the oldest block that is handed over, else at the one that
/// the kernel fills, which has the highest number.
fn start(headers: &[Shared<BlockHeader>]) -> usize {
    let number = |header: &BlockHeader| {
        let word = |at: usize| u64::from(header[at].load(Ordering::Relaxed));
        word(NUMBER.1) << 32 | word(NUMBER.0)
    };
    let all = || headers.iter().enumerate();
    let handed_over = all().filter(|(_, h)| h[STATUS].load(Ordering::Acquire) & USER != 0);
    let oldest = handed_over.min_by_key(|(_, header)| number(header));
    let filled = || all().max_by_key(|(at, header)| (number(header), usize::MAX - at));
    oldest.or_else(filled).map_or(0, |(at, _)| at)
}

/// The frame whose header is at `at` in its block, and the distance to the next one; `None` if it
/// lies outside of the block. A tag that the kernel took out is put back.
fn frame_at(block: Bytes<'_>, at: usize) -> Option<(Found, usize)> {
    let header = block.get(at, HEADER)?;
    let word = |at: usize| header.read::<u32>(at);
    let (next, captured, len) = (word(0)?, word(12)? as usize, word(16)? as usize);
    let (status, mac) = (word(20)?, header.read::<u16>(24)?);
    if captured < len || len > MAX_FRAME {
        return Some((Found::TooLong(len), next as usize));
    }
    let mac = at + usize::from(mac);
    let bytes = block.get(mac, len)?;
    let mut request = [0; OFFLOAD_HEADER];
    block.get(mac.checked_sub(OFFLOAD_HEADER)?, OFFLOAD_HEADER)?.copy_out(&mut request);
    let request = Offload::from_header(&request);
    if status & TAGGED == 0 || len < ETHERNET_HEADER {
        return Some((Found::Frame(bytes.span(), request), next as usize));
    }
    let (tci, kind) = (word(32)? as u16, header.read::<u16>(36)?);
    let kind = if status & TAG_KIND != 0 { kind } else { VLAN };
    // The tag overwrites the end of the frame's header, which was read before.
    let start = mac.checked_sub(VLAN_TAG)?;
    let mut addresses = [0; 12];
    bytes.copy_out(&mut addresses);
    let tagged = block.get(start, len + VLAN_TAG)?;
    tagged.copy_in(&addresses);
    tagged.suffix(12).copy_in(&kind.to_be_bytes());
    tagged.suffix(14).copy_in(&tci.to_be_bytes());
    Some((Found::Frame(tagged.span(), request.shifted(VLAN_TAG as i16)), next as usize))
}

#[cfg(test)]
mod tests;
