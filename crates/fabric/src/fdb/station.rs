//! The word of an entry: where an address is, and how the table knows.
//!
//! ```text
//!   31        19 18    16 15          0
//!   |   via     | origin |    port    |
//! ```

use serde::{Deserialize, Serialize};

const ORIGIN_AT: u32 = 16;
const VIA_AT: u32 = 19;
const ORIGIN: u32 = 0b111;
/// The bits with an address's place: port and via.
const PLACE: u32 = !(ORIGIN << ORIGIN_AT);

/// How an address came into the table. The numbers are those in the entry's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Origin {
    /// A local port sent a frame from the address.
    Learned = 0,
    /// The address was configured.
    Static = 1,
    /// Another host reports the address as one that never moves.
    Sticky = 2,
    /// Another host reports the address.
    Remote = 3,
    /// A tunnel brought a frame from the address.
    Tunnel = 4,
}

impl Origin {
    /// The number of origins.
    pub const COUNT: usize = 5;

    /// All origins, by number.
    pub const ALL: [Self; Self::COUNT] =
        [Self::Learned, Self::Static, Self::Sticky, Self::Remote, Self::Tunnel];

    /// The origin's name in tables and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Learned => "learned",
            Self::Static => "static",
            Self::Sticky => "sticky",
            Self::Remote => "remote",
            Self::Tunnel => "tunnel",
        }
    }

    /// The precedence of an origin. The higher one holds an address; among equals, the later one.
    #[must_use]
    pub const fn precedence(self) -> u8 {
        match self {
            Self::Static => 4,
            Self::Sticky => 3,
            Self::Learned => 2,
            Self::Remote => 1,
            Self::Tunnel => 0,
        }
    }

    /// True for stations at ports of this switch.
    #[must_use]
    pub const fn is_local(self) -> bool {
        matches!(self, Self::Learned | Self::Static)
    }

    /// True for entries made by frames. They age, can be flushed, and count towards the share of
    /// their port and user.
    #[must_use]
    pub const fn is_dynamic(self) -> bool {
        matches!(self, Self::Learned | Self::Tunnel)
    }
}

/// Where the table places an address: a port, a destination behind it, and how that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Station(u32);

impl Station {
    /// The largest [`via`](Self::via).
    pub const MAX_VIA: u16 = (1 << (32 - VIA_AT)) - 2;

    /// A station directly at `port`.
    #[must_use]
    pub const fn at(port: u16, origin: Origin) -> Self {
        Self(port as u32 | (origin as u32) << ORIGIN_AT)
    }

    /// Behind `port`, through its destination `via`, from 1 to [`MAX_VIA`](Self::MAX_VIA).
    #[must_use]
    pub const fn behind(port: u16, via: u16, origin: Origin) -> Self {
        let via = if via > Self::MAX_VIA { Self::MAX_VIA } else { via };
        Self(Self::at(port, origin).0 | (via as u32) << VIA_AT)
    }

    pub(crate) const fn of_word(word: u32) -> Self {
        Self(word)
    }

    pub(crate) const fn word(self) -> u32 {
        self.0
    }

    /// The port's number.
    #[inline(always)]
    #[must_use]
    pub const fn port(self) -> u16 {
        self.0 as u16
    }

    /// The destination behind the port: 0 for the port itself.
    #[inline(always)]
    #[must_use]
    pub const fn via(self) -> u16 {
        (self.0 >> VIA_AT) as u16
    }

    /// How the table knows where the station is.
    #[must_use]
    pub const fn origin(self) -> Origin {
        match self.0 >> ORIGIN_AT & ORIGIN {
            1 => Origin::Static,
            2 => Origin::Sticky,
            3 => Origin::Remote,
            4 => Origin::Tunnel,
            _ => Origin::Learned,
        }
    }

    /// True if both name the same port and the same destination behind it.
    #[inline(always)]
    #[must_use]
    pub const fn is_same_place(self, other: Self) -> bool {
        (self.0 ^ other.0) & PLACE == 0
    }

    /// True if this holds an address against `other`, which places it elsewhere.
    pub(super) const fn outranks(self, other: Self) -> bool {
        self.origin().precedence() > other.origin().precedence()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_holds_port_via_and_origin() {
        for (port, via) in [(0, 0), (1, 1), (16_383, 8190), (u16::MAX, 4096)] {
            for (number, origin) in Origin::ALL.into_iter().enumerate() {
                let station = Station::behind(port, via, origin);
                assert_eq!((station.port(), station.via(), station.origin()), (port, via, origin));
                assert_eq!(origin as usize, number);
                assert_ne!(station.word(), u32::MAX, "the word of no entry");
            }
        }
        assert_eq!(Station::behind(1, u16::MAX, Origin::Remote).via(), Station::MAX_VIA);
    }

    #[test]
    fn words_of_tables_without_origins_mean_what_they_meant() {
        assert_eq!(Station::of_word(7), Station::at(7, Origin::Learned));
        assert_eq!(Station::of_word(7 | 1 << 16), Station::at(7, Origin::Static));
    }
}
