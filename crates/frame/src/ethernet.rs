//! Ethernet, 802.1Q and ARP headers.

use core::net::Ipv4Addr;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Mac, VlanId};

/// What an Ethernet frame carries (IEEE 802.3, 3.2.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4 (RFC 894).
    pub const IPV4: Self = Self(0x0800);
    /// ARP (RFC 826).
    pub const ARP: Self = Self(0x0806);
    /// RARP (RFC 903).
    pub const REVERSE_ARP: Self = Self(0x8035);
    /// A customer VLAN tag follows (IEEE 802.1Q, 9.6).
    pub const VLAN: Self = Self(0x8100);
    /// IPv6 (RFC 2464).
    pub const IPV6: Self = Self(0x86dd);
    /// A service VLAN tag follows (IEEE 802.1Q, 9.6).
    pub const SERVICE_VLAN: Self = Self(0x88a8);
}

/// An Ethernet header.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Ethernet {
    destination: [u8; 6],
    source: [u8; 6],
    ethertype: U16,
}

impl Ethernet {
    /// A header with this content.
    #[must_use]
    pub fn new(destination: Mac, source: Mac, ethertype: EtherType) -> Self {
        let (destination, source) = (destination.octets(), source.octets());
        Self { destination, source, ethertype: U16::new(ethertype.0) }
    }

    /// The header at the start of `frame` and what follows it; `None` if it is cut short.
    #[must_use]
    pub fn parse(frame: &[u8]) -> Option<(&Self, &[u8])> {
        Self::ref_from_prefix(frame).ok()
    }

    /// The destination address.
    #[must_use]
    pub fn destination(&self) -> Mac {
        Mac::new(self.destination)
    }

    /// The source address.
    #[must_use]
    pub fn source(&self) -> Mac {
        Mac::new(self.source)
    }

    /// The type of the payload, or a length if below 0x600.
    #[must_use]
    pub fn ethertype(&self) -> EtherType {
        EtherType(self.ethertype.get())
    }
}

/// An 802.1Q tag as it follows [`EtherType::VLAN`], and the type of what comes after it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Tag {
    tci: U16,
    ethertype: U16,
}

impl Tag {
    /// A tag of this VLAN and priority (0 to 7), before data of type `ethertype`.
    #[must_use]
    pub fn new(vlan: VlanId, priority: u8, ethertype: EtherType) -> Self {
        let tci = u16::from(priority & 7) << 13 | vlan.get();
        Self { tci: U16::new(tci), ethertype: U16::new(ethertype.0) }
    }

    /// The tag at the start of `bytes` and what follows it; `None` if it is cut short.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<(&Self, &[u8])> {
        Self::ref_from_prefix(bytes).ok()
    }

    /// The VLAN's number; 0 (priority tag) and 4095 (reserved) are not VLANs.
    #[must_use]
    pub fn vlan(&self) -> u16 {
        self.tci.get() & 0xfff
    }

    /// The priority code point, 0 to 7.
    #[must_use]
    pub fn priority(&self) -> u8 {
        (self.tci.get() >> 13) as u8
    }

    /// Returns the Ethernet type after the tag.
    #[must_use]
    pub fn ethertype(&self) -> EtherType {
        EtherType(self.ethertype.get())
    }
}

/// The operation of an ARP packet: request or reply (RFC 826).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArpOperation(pub u16);

impl ArpOperation {
    /// Asks for the target's address.
    pub const REQUEST: Self = Self(1);
    /// Gives the sender's address.
    pub const REPLY: Self = Self(2);
}

/// An ARP packet for IPv4 over Ethernet (RFC 826).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Arp {
    hardware_type: U16,
    protocol_type: U16,
    hardware_len: u8,
    protocol_len: u8,
    operation: U16,
    sender: [u8; 6],
    sender_ip: [u8; 4],
    target: [u8; 6],
    target_ip: [u8; 4],
}

impl Arp {
    /// An unsolicited "`mac` has `ip`" (gratuitous ARP; RFC 5227, 3). With an `ip` of 0.0.0.0, it
    /// only announces `mac`.
    #[must_use]
    pub fn announcement(mac: Mac, ip: Ipv4Addr) -> Self {
        Self::new(ArpOperation::REQUEST, (mac, ip), (Mac::from_word(0), ip))
    }

    /// A packet with this operation.
    #[must_use]
    pub fn new(operation: ArpOperation, sender: (Mac, Ipv4Addr), target: (Mac, Ipv4Addr)) -> Self {
        Self {
            hardware_type: U16::new(1),
            protocol_type: U16::new(EtherType::IPV4.0),
            hardware_len: 6,
            protocol_len: 4,
            operation: U16::new(operation.0),
            sender: sender.0.octets(),
            sender_ip: sender.1.octets(),
            target: target.0.octets(),
            target_ip: target.1.octets(),
        }
    }

    /// The packet at the start of `bytes`; `None` if it is cut short or not IPv4 over Ethernet.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<&Self> {
        let (arp, _) = Self::ref_from_prefix(bytes).ok()?;
        let kind = (arp.hardware_type.get(), arp.protocol_type.get());
        let lengths = (arp.hardware_len, arp.protocol_len);
        (kind == (1, EtherType::IPV4.0) && lengths == (6, 4)).then_some(arp)
    }

    /// The operation.
    #[must_use]
    pub fn operation(&self) -> ArpOperation {
        ArpOperation(self.operation.get())
    }

    /// The sender's addresses.
    #[must_use]
    pub fn sender(&self) -> (Mac, Ipv4Addr) {
        (Mac::new(self.sender), self.sender_ip.into())
    }

    /// The target's addresses.
    #[must_use]
    pub fn target(&self) -> (Mac, Ipv4Addr) {
        (Mac::new(self.target), self.target_ip.into())
    }
}

/// Writes a broadcast frame that tells switches where `mac` is. Returns its length (60), or `None`
/// if `frame` is shorter.
#[must_use]
pub fn write_announcement(mac: Mac, ip: Ipv4Addr, frame: &mut [u8]) -> Option<usize> {
    let frame = frame.get_mut(..crate::MIN_FRAME)?;
    frame.fill(0);
    let (header, rest) = frame.split_at_mut(crate::ETHERNET_HEADER);
    Ethernet::new(Mac::BROADCAST, mac, EtherType::ARP).write_to(header).ok()?;
    Arp::announcement(mac, ip).write_to_prefix(rest).ok()?;
    Some(crate::MIN_FRAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_lie_as_the_standards_say() {
        let (to, from) = (Mac::local(1), Mac::local(2));
        let header = Ethernet::new(to, from, EtherType::IPV6);
        assert_eq!(header.as_bytes(), b"\x02\0\0\0\0\x01\x02\0\0\0\0\x02\x86\xdd");
        let tag = Tag::new(VlanId::new(0x123).unwrap(), 5, EtherType::IPV4);
        assert_eq!(tag.as_bytes(), b"\xa1\x23\x08\x00");
        assert_eq!((tag.vlan(), tag.priority()), (0x123, 5));
    }

    #[test]
    fn short_input_is_no_header() {
        assert!(Ethernet::parse(&[0; 13]).is_none());
        assert!(Tag::parse(&[0; 3]).is_none());
        assert!(Arp::parse(&[0; 27]).is_none());
        assert!(write_announcement(Mac::local(1), Ipv4Addr::UNSPECIFIED, &mut [0; 59]).is_none());
    }

    #[test]
    fn an_announcement_reads_back() {
        let (mac, ip) = (Mac::local(7), Ipv4Addr::new(10, 0, 0, 7));
        let mut frame = [0xff; 64];
        assert_eq!(write_announcement(mac, ip, &mut frame), Some(60));
        let (header, rest) = Ethernet::parse(&frame).unwrap();
        assert_eq!((header.source(), header.destination()), (mac, Mac::BROADCAST));
        let arp = Arp::parse(rest).unwrap();
        assert_eq!((arp.sender(), arp.target().1), ((mac, ip), ip));
        assert_eq!(frame[60..], [0xff; 4]);
    }
}
