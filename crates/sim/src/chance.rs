//! The one source of chance of a world.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;

/// Numbers that follow from a seed (SplitMix64: Steele, Lea and Flood, OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// The numbers of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The numbers of `name`. They depend on the seed and the name alone, not on what else was
    /// drawn.
    #[must_use]
    pub fn named(seed: u64, name: &str) -> Self {
        let mut hasher = SipHasher13::new_with_keys(seed, 0);
        hasher.write(name.as_bytes());
        Self(hasher.finish())
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 if `end` is 0.
    pub const fn below(&mut self, end: u64) -> u64 {
        ((self.next() as u128 * end as u128) >> 64) as u64
    }
}
