//! Packed queues (virtio 1.2, 2.8): positions, rounds and events.

use super::{Word, flags, passed};

/// Bit 15 of a position: the wrap counter.
pub const WRAP: u16 = 1 << 15;
/// Event suppression flags (virtio 1.2, 2.8.10), in the upper half of the word.
const ENABLE: u32 = 0;
const DISABLE: u32 = 1 << 16;
const AT_POSITION: u32 = 2 << 16;
const EVENT_FLAGS: u32 = 3 << 16;

/// The flags of a descriptor that is available, or used, in the round of `position`.
#[inline(always)]
pub fn round_flags(position: u16, used: bool) -> u16 {
    let wrap = position & WRAP != 0;
    let available = if wrap { flags::AVAILABLE } else { 0 };
    let used = if wrap == used { flags::USED } else { 0 };
    available | used
}

/// True if a descriptor's flags make it available, or used, in the round of this position.
#[inline(always)]
pub fn is_in_round(word: Word, position: u16, used: bool) -> bool {
    word.fourth() & (flags::AVAILABLE | flags::USED) == round_flags(position, used)
}

/// The position `slots` after `position`.
#[inline(always)]
pub fn advance(position: u16, slots: u16, size: u16) -> u16 {
    // At most 2 * 32,767 + 1: no overflow.
    let index = (position & !WRAP) + slots;
    let wrap = position & WRAP;
    if index >= size { (index - size) | (wrap ^ WRAP) } else { index | wrap }
}

/// The number of slots from `from` to `to`, which is at most a round later.
#[inline(always)]
pub fn distance(from: u16, to: u16, size: u16) -> u16 {
    let slots = (to & !WRAP).wrapping_sub(from & !WRAP);
    if (from ^ to) & WRAP == 0 { slots } else { slots.wrapping_add(size) }
}

/// The event suppression word with which a side asks for notifications, or for none. With a
/// position, it asks for one when that is passed.
pub fn event_word(wanted: bool, position: Option<u16>) -> u32 {
    match (wanted, position) {
        (true, Some(position)) => AT_POSITION | u32::from(position),
        (true, None) => ENABLE,
        (false, _) => DISABLE,
    }
}

/// True if the side that wrote `word` wants a notification for what was published since `old`, up
/// to `new`.
#[inline(always)]
pub fn event_wanted(word: u32, old: u16, new: u16, size: u16) -> bool {
    let word = u32::from_le(word);
    if old == new {
        return false;
    }
    match word & EVENT_FLAGS {
        ENABLE => true,
        AT_POSITION => {
            // The distance from the newest position, computed from places in the rounds.
            let place = |at: u16| {
                let index = at & !WRAP;
                if (at ^ new) & WRAP == 0 { index } else { index.wrapping_sub(size) }
            };
            passed(place(word as u16), new & !WRAP, place(old))
        }
        _ => false,
    }
}
