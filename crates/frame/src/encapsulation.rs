//! Ethernet frames in UDP datagrams: VXLAN (RFC 7348) and Geneve (RFC 8926).
//!
//! ```text
//!   VXLAN:  | flags 1         | reserved 3                | VNI 3 | reserved 1 | inner frame |
//!   Geneve: | version, length | flags 1 | protocol type 2 | VNI 3 | reserved 1 | options | inner frame |
//! ```
//!
//! The VNI is at the same place in both. The kernel makes the outer headers. This module handles
//! only the header behind them and the inner frame.

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

/// Bytes of the header that is sent, in both encapsulations (RFC 7348, 5; RFC 8926, 3.4).
pub const TUNNEL_HEADER: usize = 8;

/// VXLAN: the header names a segment, the I flag (RFC 7348, 5).
const VALID_VNI: u8 = 0x08;
/// Geneve: the number of 32-bit words of options, beside the version (RFC 8926, 3.4).
const OPTION_WORDS: u8 = 0x3f;
/// Geneve: a message of the control plane (the O flag), and critical options (the C flag).
const CONTROL: u8 = 0x80;
const CRITICAL: u8 = 0x40;
/// Geneve: an Ethernet frame (Trans-Ether bridging).
const ETHERNET: [u8; 2] = [0x65, 0x58];

/// How frames lie in datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Encapsulation {
    /// RFC 7348.
    #[default]
    Vxlan,
    /// RFC 8926.
    Geneve,
}

/// A segment's number, 24 bits (RFC 7348, 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Vni(u32);

impl Vni {
    /// The largest number.
    pub const MAX: u32 = (1 << 24) - 1;

    /// A number from 1 to [`MAX`](Self::MAX); `None` for others. 0 names no segment on any peer.
    #[must_use]
    pub const fn new(number: u32) -> Option<Self> {
        match number {
            1..=Self::MAX => Some(Self(number)),
            _ => None,
        }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// No number of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoVni;

impl fmt::Display for NoVni {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a VNI is a number from 1 to {}", Vni::MAX)
    }
}

impl core::error::Error for NoVni {}

impl TryFrom<u32> for Vni {
    type Error = NoVni;

    fn try_from(number: u32) -> Result<Self, NoVni> {
        Self::new(number).ok_or(NoVni)
    }
}

impl From<Vni> for u32 {
    fn from(vni: Vni) -> Self {
        vni.0
    }
}

impl FromStr for Vni {
    type Err = NoVni;

    fn from_str(text: &str) -> Result<Self, NoVni> {
        text.parse().ok().and_then(Self::new).ok_or(NoVni)
    }
}

impl fmt::Display for Vni {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a datagram holds no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoFrame {
    /// The datagram has no valid header, or critical options.
    Malformed,
    /// The inner frame is shorter than an Ethernet header.
    Runt,
}

impl fmt::Display for Encapsulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vxlan => "vxlan",
            Self::Geneve => "geneve",
        })
    }
}

impl FromStr for Encapsulation {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text {
            "vxlan" => Ok(Self::Vxlan),
            "geneve" => Ok(Self::Geneve),
            _ => Err("vxlan or geneve"),
        }
    }
}

impl Encapsulation {
    /// True for the usual one.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The UDP port (RFC 7348, 8.1; RFC 8926, 3.3).
    #[must_use]
    pub const fn port(self) -> u16 {
        match self {
            Self::Vxlan => 4789,
            Self::Geneve => 6081,
        }
    }

    /// The header of a frame in this segment. Reserved bits are zero; there are no options.
    #[must_use]
    pub const fn header(self, vni: Vni) -> [u8; TUNNEL_HEADER] {
        let [_, a, b, c] = vni.0.to_be_bytes();
        match self {
            Self::Vxlan => [VALID_VNI, 0, 0, 0, a, b, c, 0],
            Self::Geneve => [0, 0, ETHERNET[0], ETHERNET[1], a, b, c, 0],
        }
    }

    /// The segment's number in a datagram, and the offset of the inner frame. Reserved bits are
    /// ignored, and so are options that are not critical (RFC 7348, 5; RFC 8926, 3.4).
    ///
    /// # Errors
    /// [`NoFrame`].
    #[inline]
    pub fn open(self, datagram: &[u8]) -> Result<(u32, usize), NoFrame> {
        let header: &[u8; TUNNEL_HEADER] = datagram.first_chunk().ok_or(NoFrame::Malformed)?;
        let [first, second, _, _, a, b, c, _] = *header;
        let options = match self {
            Self::Vxlan if first & VALID_VNI != 0 => 0,
            Self::Geneve => {
                let is_ours = first & !OPTION_WORDS == 0
                    && second & (CONTROL | CRITICAL) == 0
                    && header[2..4] == ETHERNET;
                let words = is_ours.then_some(first & OPTION_WORDS).ok_or(NoFrame::Malformed)?;
                usize::from(words) * 4
            }
            Self::Vxlan => return Err(NoFrame::Malformed),
        };
        let at = TUNNEL_HEADER + options;
        match datagram.len() {
            len if len < at => Err(NoFrame::Malformed),
            len if len < at + crate::ETHERNET_HEADER => Err(NoFrame::Runt),
            _ => Ok((u32::from_be_bytes([0, a, b, c]), at)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const BOTH: [Encapsulation; 2] = [Encapsulation::Vxlan, Encapsulation::Geneve];

    #[test]
    fn headers_are_as_the_rfcs_draw_them() {
        let vni = Vni::new(0x12_3456).unwrap();
        assert_eq!(BOTH[0].header(vni), [0x08, 0, 0, 0, 0x12, 0x34, 0x56, 0]);
        assert_eq!(BOTH[1].header(vni), [0, 0, 0x65, 0x58, 0x12, 0x34, 0x56, 0]);
    }

    #[test]
    fn what_is_made_is_read() {
        for (way, number) in BOTH.into_iter().flat_map(|way| [1, 100, 0xff_ffff].map(|n| (way, n)))
        {
            let mut datagram = way.header(Vni::new(number).unwrap()).to_vec();
            assert_eq!(way.open(&datagram), Err(NoFrame::Runt));
            datagram.extend([0; crate::ETHERNET_HEADER]);
            assert_eq!(way.open(&datagram), Ok((number, TUNNEL_HEADER)));
        }
    }

    #[test]
    fn reserved_bits_are_ignored_and_the_flag_is_not() {
        let mut datagram = [0xff; 64];
        datagram[4..7].copy_from_slice(&[0, 0, 7]);
        assert_eq!(BOTH[0].open(&datagram), Ok((7, 8)));
        datagram[0] = 0xf7;
        assert_eq!(BOTH[0].open(&datagram), Err(NoFrame::Malformed));
        assert_eq!(BOTH[0].open(&[]), Err(NoFrame::Malformed));
        assert_eq!(BOTH[0].open(&[8, 0, 0, 0, 0, 0, 7]), Err(NoFrame::Malformed));
    }

    #[test]
    fn options_of_geneve_are_skipped_unless_they_are_critical() {
        let mut datagram = BOTH[1].header(Vni::new(7).unwrap()).to_vec();
        datagram.extend([0xff; 12 + 14]);
        datagram[0] = 3;
        // Six reserved flags and eight reserved bits.
        (datagram[1], datagram[7]) = (0x3f, 0xff);
        assert_eq!(BOTH[1].open(&datagram), Ok((7, 20)));
        for (at, byte) in [(0, 0x43), (1, 0x40), (1, 0x80), (2, 8), (3, 0)] {
            let mut wrong: Vec<u8> = datagram.clone();
            wrong[at] = byte;
            assert_eq!(BOTH[1].open(&wrong), Err(NoFrame::Malformed), "{at}: {byte}");
        }
        datagram[0] = 4;
        assert_eq!(BOTH[1].open(&datagram), Err(NoFrame::Runt));
        datagram[0] = 63;
        assert_eq!(BOTH[1].open(&datagram), Err(NoFrame::Malformed), "options beyond its end");
    }

    #[test]
    fn their_names_read_as_they_print() {
        for way in BOTH {
            assert_eq!(way.to_string().parse(), Ok(way));
        }
        assert!("vlan".parse::<Encapsulation>().is_err());
    }

    #[test]
    fn numbers_are_24_bits_and_not_zero() {
        assert_eq!("16777215".parse(), Ok(Vni(Vni::MAX)));
        for text in ["0", "16777216", "-1", "x", ""] {
            assert_eq!(text.parse::<Vni>(), Err(NoVni), "{text}");
        }
    }
}
