//! MAC addresses and VLAN identifiers.

use alloc::format;
use alloc::string::{String, ToString as _};
use core::fmt;
use core::str::FromStr;

/// Text that is not an address; says what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {expected}")]
pub struct ParseAddressError {
    text: String,
    expected: &'static str,
}

/// A MAC address (EUI-48), in the low 48 bits, first octet lowest. A little-endian read of eight
/// bytes of a frame's head gives this form, once masked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Mac(u64);

impl Mac {
    /// The broadcast address.
    pub const BROADCAST: Self = Self(0xffff_ffff_ffff);

    const MASK: u64 = 0xffff_ffff_ffff;

    /// The address whose octets are `octets`, first on the wire first.
    #[must_use]
    pub const fn new(octets: [u8; 6]) -> Self {
        let [a, b, c, d, e, f] = octets;
        Self(u64::from_le_bytes([a, b, c, d, e, f, 0, 0]))
    }

    /// The address in the low 48 bits of `word`, first octet lowest.
    #[inline(always)]
    #[must_use]
    pub const fn from_word(word: u64) -> Self {
        Self(word & Self::MASK)
    }

    /// The address as a 48-bit number, first octet lowest.
    #[inline(always)]
    #[must_use]
    pub const fn word(self) -> u64 {
        self.0
    }

    /// The address's octets, first on the wire first.
    #[must_use]
    pub const fn octets(self) -> [u8; 6] {
        let [a, b, c, d, e, f, _, _] = self.0.to_le_bytes();
        [a, b, c, d, e, f]
    }

    /// True for group addresses: multicast and broadcast.
    #[inline(always)]
    #[must_use]
    pub const fn is_group(self) -> bool {
        self.0 & 1 != 0
    }

    /// True for 01:80:C2:00:00:00 to 0F, which bridges do not forward (IEEE 802.1D, 7.12.6).
    #[inline(always)]
    #[must_use]
    pub const fn is_link_local(self) -> bool {
        self.0 & 0xf0ff_ffff_ffff == 0x0000_00c2_8001
    }

    /// A locally administered unicast address made from a number: 02:00 and four octets.
    #[must_use]
    pub const fn local(number: u32) -> Self {
        let [a, b, c, d] = number.to_be_bytes();
        Self::new([0x02, 0, a, b, c, d])
    }

    /// An address in QEMU's range (52:54:00), the same for the same name: from the name's FNV-1a
    /// hash.
    #[must_use]
    pub fn of_name(name: &str) -> Self {
        let hash = name
            .bytes()
            .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        let [_, a, b, c] = (hash ^ (hash >> 24)).to_be_bytes();
        Self::new([0x52, 0x54, 0x00, a, b, c])
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.octets();
        let text = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}");
        f.pad(&text)
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Mac {
    type Err = ParseAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseAddressError {
            text: text.into(),
            expected: "a MAC address such as 02:00:00:00:00:01",
        };
        let mut octets = [0; 6];
        let mut parts = text.split([':', '-']);
        for octet in &mut octets {
            let part = parts.next().filter(|p| p.len() == 2).ok_or_else(wrong)?;
            *octet = u8::from_str_radix(part, 16).map_err(|_| wrong())?;
        }
        if parts.next().is_some() { Err(wrong()) } else { Ok(Self::new(octets)) }
    }
}

impl serde::Serialize for Mac {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Mac {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = <alloc::borrow::Cow<'de, str>>::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A VLAN identifier, 1 to 4094 (IEEE 802.1Q, 9.6).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(try_from = "u16", into = "u16")]
pub struct VlanId(u16);

impl VlanId {
    /// The identifier `id`; `None` if it is out of range.
    #[must_use]
    pub const fn new(id: u16) -> Option<Self> {
        if id >= 1 && id <= 4094 { Some(Self(id)) } else { None }
    }

    /// As a number.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl TryFrom<u16> for VlanId {
    type Error = ParseAddressError;

    fn try_from(id: u16) -> Result<Self, Self::Error> {
        let wrong =
            || ParseAddressError { text: id.to_string(), expected: "a VLAN id (1 to 4094)" };
        Self::new(id).ok_or_else(wrong)
    }
}

impl From<VlanId> for u16 {
    fn from(id: VlanId) -> Self {
        id.0
    }
}

impl FromStr for VlanId {
    type Err = ParseAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseAddressError { text: text.into(), expected: "a VLAN id (1 to 4094)" };
        text.parse().ok().and_then(Self::new).ok_or_else(wrong)
    }
}

impl fmt::Display for VlanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_as_they_print() {
        let mac: Mac = "02:00:5e:10:00:ff".parse().unwrap();
        assert_eq!(mac.octets(), [2, 0, 0x5e, 0x10, 0, 0xff]);
        assert_eq!(mac.to_string(), "02:00:5e:10:00:ff");
        for bad in
            ["", "02:00:5e:10:00", "02:00:5e:10:00:ff:00", "02:00:5e:10:00:fg", "2:0:5e:1:0:f"]
        {
            assert!(bad.parse::<Mac>().is_err(), "{bad}");
        }
    }

    /// Guests' configurations contain these addresses, so every release must derive the same ones.
    #[test]
    fn a_name_has_the_same_address_for_ever() {
        assert_eq!(Mac::of_name("").to_string(), "52:54:00:1c:9d:44");
        assert_eq!(Mac::of_name("vale0:vm1").to_string(), "52:54:00:5d:a8:01");
        assert_ne!(Mac::of_name("vale0:vm1"), Mac::of_name("vale0:vm2"));
    }

    #[test]
    fn kinds_of_addresses() {
        let mac = |text: &str| text.parse::<Mac>().unwrap();
        assert!(Mac::BROADCAST.is_group());
        assert!(mac("01:00:5e:00:00:01").is_group());
        assert!(!mac("02:00:00:00:00:01").is_group());
        assert!(mac("01:80:c2:00:00:00").is_link_local());
        assert!(mac("01:80:c2:00:00:0e").is_link_local());
        assert!(!mac("01:80:c2:00:00:10").is_link_local());
        assert!(!mac("01:80:c2:00:01:00").is_link_local());
    }

    #[test]
    fn vlan_ids_have_a_range() {
        assert!(VlanId::new(0).is_none() && VlanId::new(4095).is_none());
        assert_eq!("17".parse::<VlanId>().unwrap().get(), 17);
    }
}
