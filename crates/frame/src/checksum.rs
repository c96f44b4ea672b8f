//! The internet checksum: in full (RFC 1071) and incrementally (RFC 1624).

use crate::protocol::Protocol;

/// A running one's complement sum over pieces of any length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Sum of the data's 16-bit words, in this machine's byte order.
    words: u64,
    /// True after an odd number of bytes: the next piece starts in the middle of a word.
    odd: bool,
}

impl Sum {
    /// An empty sum.
    #[must_use]
    pub const fn new() -> Self {
        Self { words: 0, odd: false }
    }

    /// Adds `bytes`, which follow what was added before.
    #[must_use]
    #[inline]
    pub fn with(self, bytes: &[u8]) -> Self {
        let (words, rest) = bytes.as_chunks::<4>();
        let mut sum: u64 = words.iter().map(|w| u64::from(u32::from_ne_bytes(*w))).sum();
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        sum += u64::from(u32::from_ne_bytes(last));
        let folded = fold(sum);
        let piece = if self.odd { folded.swap_bytes() } else { folded };
        Self {
            words: self.words + u64::from(piece),
            odd: self.odd ^ !bytes.len().is_multiple_of(2),
        }
    }

    /// Adds the pseudo header of a UDP or TCP packet of `len` bytes. `addresses` are source and
    /// destination, as in the IP header (RFC 768; RFC 8200, 8.1).
    #[must_use]
    #[inline]
    pub fn with_pseudo_header(self, addresses: &[u8], protocol: Protocol, len: u32) -> Self {
        self.with(addresses).with(&u32::from(protocol.0).to_be_bytes()).with(&len.to_be_bytes())
    }

    /// The checksum: the complement of the sum, as a number (stored most significant byte first).
    #[must_use]
    pub fn checksum(self) -> u16 {
        !u16::from_be(fold(self.words))
    }
}

/// The one's complement sum of the four 16-bit words of `sum`.
fn fold(sum: u64) -> u16 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    (sum as u16).wrapping_add((sum >> 16) as u16)
}

/// The checksum of `bytes`; zero if they contain their own correct checksum.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u16 {
    Sum::new().with(bytes).checksum()
}

/// The checksum after the data's 16-bit word `old` became `new` (RFC 1624, equation 3).
///
/// It equals the full checksum, unless all of the data is now zero.
#[must_use]
pub fn update(checksum: u16, old: u16, new: u16) -> u16 {
    let sum = u32::from(!checksum) + u32::from(!old) + u32::from(new);
    let sum = (sum >> 16) + (sum & 0xffff);
    !(((sum >> 16) + (sum & 0xffff)) as u16)
}

/// As [`update`], for several words. `old` and `new` are the same even number of bytes, at an even
/// offset in the data.
#[must_use]
pub fn update_bytes(checksum: u16, old: &[u8], new: &[u8]) -> u16 {
    let word = |w: &[u8; 2]| u16::from_be_bytes(*w);
    let pairs = old.as_chunks::<2>().0.iter().zip(new.as_chunks::<2>().0);
    pairs.fold(checksum, |sum, (old, new)| update(sum, word(old), word(new)))
}

/// Completes a partial checksum. Sums everything from `start` on, and stores the result `offset`
/// bytes from `start`, where the pseudo header's sum already is. Returns false and changes nothing
/// if the place is not within `bytes`.
///
/// A zero result is stored as 0xffff, which is the same number: in UDP, zero means that there is no
/// checksum.
pub fn complete(bytes: &mut [u8], start: u16, offset: u16) -> bool {
    let Some(covered) = bytes.get_mut(usize::from(start)..) else { return false };
    let sum = checksum(covered);
    let at = usize::from(offset);
    let Some(field) = covered.get_mut(at..at + 2) else { return false };
    field.copy_from_slice(&(if sum == 0 { 0xffff } else { sum }).to_be_bytes());
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The literal algorithm of RFC 1071, as the oracle.
    fn by_the_book(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
            sum = (sum >> 16) + (sum & 0xffff);
        }
        !(sum as u16)
    }

    #[test]
    fn the_example_of_rfc_1071() {
        assert_eq!(checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
    }

    proptest! {
        #[test]
        fn fast_equals_the_book(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            prop_assert_eq!(checksum(&bytes), by_the_book(&bytes));
        }

        #[test]
        fn pieces_sum_to_the_whole(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            cuts in proptest::collection::vec(0usize..200, 0..5),
        ) {
            let mut cuts: Vec<usize> = cuts.iter().map(|c| c % (bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let sum = cuts.windows(2).fold(Sum::new(), |sum, c| sum.with(&bytes[c[0]..c[1]]));
            prop_assert_eq!(sum.checksum(), by_the_book(&bytes));
        }

        #[test]
        fn incremental_equals_full(
            mut bytes in proptest::collection::vec(any::<u8>(), 2..200),
            at in 0usize..100,
            new in proptest::collection::vec(any::<u8>(), 2..20),
        ) {
            let at = ((at * 2) % bytes.len()) & !1;
            let len = new.len().min(bytes.len() - at) & !1;
            let before = checksum(&bytes);
            let old = bytes[at..at + len].to_vec();
            bytes[at..at + len].copy_from_slice(&new[..len]);
            prop_assume!(bytes.iter().any(|b| *b != 0));
            prop_assert_eq!(update_bytes(before, &old, &new[..len]), checksum(&bytes));
        }
    }
}
