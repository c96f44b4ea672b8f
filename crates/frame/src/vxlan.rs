//! VXLAN: Ethernet frames in UDP datagrams (RFC 7348).
//!
//! ```text
//!   | flags | reserved 3 | VNI 3 | reserved 1 | inner Ethernet frame |
//! ```
//!
//! The kernel makes the outer headers. This module handles only the VXLAN header and the inner
//! frame.

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

/// Bytes of a VXLAN header (RFC 7348, 5).
pub const VXLAN_HEADER: usize = 8;
/// The UDP port of VXLAN (RFC 7348, 8.1).
pub const VXLAN_PORT: u16 = 4789;

/// The header names a segment: the I flag (RFC 7348, 5).
const VALID_VNI: u8 = 0x08;

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

/// The number is not that of a segment.
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

/// The reason why a datagram holds no frame of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoVxlan {
    /// Shorter than a header, or its header names no segment.
    Malformed,
    /// The datagram belongs to another segment.
    OtherVni,
    /// The inner frame is shorter than an Ethernet header.
    Runt,
}

/// The header of a frame in this segment. Reserved bits are zero (RFC 7348, 5).
#[must_use]
pub fn vxlan_header(vni: Vni) -> [u8; VXLAN_HEADER] {
    let [_, a, b, c] = vni.0.to_be_bytes();
    [VALID_VNI, 0, 0, 0, a, b, c, 0]
}

/// The VNI in a datagram's header. Reserved bits are ignored (RFC 7348, 5).
#[must_use]
pub fn vni_of(datagram: &[u8]) -> Option<u32> {
    let header: &[u8; VXLAN_HEADER] = datagram.first_chunk()?;
    let [flags, _, _, _, a, b, c, _] = *header;
    (flags & VALID_VNI != 0).then(|| u32::from_be_bytes([0, a, b, c]))
}

/// The offset of the inner frame, if the datagram belongs to segment `vni`.
///
/// # Errors
/// [`NoVxlan`].
pub fn vxlan_frame(datagram: &[u8], vni: Vni) -> Result<usize, NoVxlan> {
    match vni_of(datagram) {
        None => Err(NoVxlan::Malformed),
        Some(number) if number != vni.0 => Err(NoVxlan::OtherVni),
        Some(_) if datagram.len() < VXLAN_HEADER + crate::ETHERNET_HEADER => Err(NoVxlan::Runt),
        Some(_) => Ok(VXLAN_HEADER),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_as_the_rfc_draws_it() {
        let vni = Vni::new(0x12_3456).unwrap();
        assert_eq!(vxlan_header(vni), [0x08, 0, 0, 0, 0x12, 0x34, 0x56, 0]);
    }

    #[test]
    fn what_is_made_is_read() {
        for number in [1, 100, 0xff_ffff] {
            let vni = Vni::new(number).unwrap();
            let mut datagram = vxlan_header(vni).to_vec();
            assert_eq!(vxlan_frame(&datagram, vni), Err(NoVxlan::Runt));
            datagram.extend([0; crate::ETHERNET_HEADER]);
            assert_eq!(vxlan_frame(&datagram, vni), Ok(VXLAN_HEADER));
            assert_eq!(vni_of(&datagram), Some(number));
        }
    }

    #[test]
    fn reserved_bits_are_ignored_and_the_flag_is_not() {
        let vni = Vni::new(7).unwrap();
        let mut datagram = [0xff; 64];
        datagram[4..7].copy_from_slice(&[0, 0, 7]);
        assert_eq!(vxlan_frame(&datagram, vni), Ok(8));
        datagram[0] = 0xf7;
        assert_eq!(vxlan_frame(&datagram, vni), Err(NoVxlan::Malformed));
    }

    #[test]
    fn others_are_refused_by_what_they_are() {
        let vni = Vni::new(7).unwrap();
        assert_eq!(vxlan_frame(&[], vni), Err(NoVxlan::Malformed));
        assert_eq!(vxlan_frame(&vxlan_header(vni)[..7], vni), Err(NoVxlan::Malformed));
        let other = vxlan_header(Vni::new(8).unwrap());
        assert_eq!(vxlan_frame(&other, vni), Err(NoVxlan::OtherVni));
    }

    #[test]
    fn numbers_are_24_bits_and_not_zero() {
        assert_eq!("16777215".parse(), Ok(Vni(Vni::MAX)));
        for text in ["0", "16777216", "-1", "x", ""] {
            assert_eq!(text.parse::<Vni>(), Err(NoVni), "{text}");
        }
    }
}
