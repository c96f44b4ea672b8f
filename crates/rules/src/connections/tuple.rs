//! What names a connection: addresses, ports, protocol and VLAN.

use core::net::IpAddr;

use frame::{Fragment, Protocol};

use crate::packet::Packet;

/// The ends of a packet, as its connection is named by them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    /// The source address; IPv4 as mapped IPv6 address.
    pub(crate) from: u128,
    /// The destination address.
    pub(crate) to: u128,
    /// Source and destination port; the identifier of ICMP queries, twice; else 0.
    pub(crate) ports: (u16, u16),
    /// The protocol's number.
    pub(crate) protocol: u8,
    /// The VLAN in the switch.
    pub(crate) vlan: u16,
    /// TCP flags; the type of an ICMP query.
    pub(crate) flags: u8,
    /// True if the packet is an ICMP error about a packet the other way.
    pub(crate) related: bool,
}

impl Tuple {
    /// The tuple of a packet, or of the packet that an ICMP error is about, turned round. `None`
    /// for packets without a connection: later fragments, other ICMP messages, no IP packets.
    #[must_use]
    pub fn of(packet: &Packet<'_>) -> Option<Self> {
        let facts = packet.facts;
        let ((from, to), protocol) = (facts.ip?, facts.protocol?);
        if facts.fragment == Fragment::Later {
            return None;
        }
        let bare = Self {
            from: number(from),
            to: number(to),
            ports: facts.ports.unwrap_or_default(),
            protocol: protocol.0,
            vlan: packet.sides.vlan,
            flags: facts.tcp_flags,
            related: false,
        };
        let message = facts.payload(packet.head);
        match (protocol, packet.icmp_type()) {
            (Protocol::ICMP, Some(3 | 4 | 11 | 12)) => inside_v4(message, &bare),
            (Protocol::ICMPV6, Some(1..=4)) => inside_v6(message, &bare),
            (Protocol::ICMP, Some(0 | 8 | 13..=18)) | (Protocol::ICMPV6, Some(128 | 129)) => {
                let id = be16(message, 4)?;
                Some(Self { ports: (id, id), flags: message[0], ..bare })
            }
            (Protocol::ICMP | Protocol::ICMPV6, _) => None,
            _ => Some(bare),
        }
    }

    /// True if both are of one connection, in either direction.
    #[inline]
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let ends = |tuple: &Self| ((tuple.from, tuple.ports.0), (tuple.to, tuple.ports.1));
        let ((a, b), (c, d)) = (ends(self), ends(other));
        self.protocol == other.protocol
            && self.vlan == other.vlan
            && ((a, b) == (c, d) || (a, b) == (d, c))
    }

    /// True if the packet goes to where it comes from.
    pub(crate) fn is_loop(&self) -> bool {
        (self.from, self.ports.0) == (self.to, self.ports.1)
    }

    /// A hash that is the same for both directions.
    #[inline]
    pub(crate) fn hash(&self, key: u64) -> u64 {
        let end = |ip: u128, port: u16| {
            super::mix(super::mix(key ^ u64::from(port) << 32, (ip >> 64) as u64), ip as u64)
        };
        let both = end(self.from, self.ports.0).wrapping_add(end(self.to, self.ports.1));
        super::mix(both, u64::from(self.vlan) << 8 | u64::from(self.protocol))
    }

    /// True if the packet is an ICMP error, about a packet of the connection.
    #[must_use]
    pub fn is_about_another(&self) -> bool {
        self.related
    }

    /// True if the packet answers a query of ICMP.
    pub(crate) fn is_reply_message(&self) -> bool {
        match Protocol(self.protocol) {
            Protocol::ICMP => matches!(self.flags, 0 | 14 | 16 | 18),
            Protocol::ICMPV6 => self.flags == 129,
            _ => false,
        }
    }

    /// True if the packet is a query of ICMP.
    pub(crate) fn is_query(&self) -> bool {
        match Protocol(self.protocol) {
            Protocol::ICMP => matches!(self.flags, 8 | 13 | 15 | 17),
            Protocol::ICMPV6 => self.flags == 128,
            _ => false,
        }
    }

    /// The source address.
    #[must_use]
    pub fn source(&self) -> (IpAddr, u16) {
        (address(self.from), self.ports.0)
    }

    /// The destination address.
    #[must_use]
    pub fn destination(&self) -> (IpAddr, u16) {
        (address(self.to), self.ports.1)
    }

    /// The protocol.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        Protocol(self.protocol)
    }

    /// The VLAN; 0 for none.
    #[must_use]
    pub fn vlan(&self) -> u16 {
        self.vlan
    }
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

fn address(number: u128) -> IpAddr {
    IpAddr::V6(number.into()).to_canonical()
}

/// The packet in an ICMP error (RFC 792): 8 bytes follow its header at least.
fn inside_v4(message: &[u8], error: &Tuple) -> Option<Tuple> {
    let packet = message.get(8..)?;
    let first = *packet.first()?;
    let len = usize::from(first & 0xf) * 4;
    let is_first = be16(packet, 6)? & 0x1fff == 0;
    if first >> 4 != 4 || len < 20 || !is_first {
        return None;
    }
    let ip = |at: usize| {
        let octets: [u8; 4] = packet.get(at..)?.first_chunk().copied()?;
        Some(number(IpAddr::from(octets)))
    };
    about(*packet.get(9)?, (ip(12)?, ip(16)?), packet.get(len..)?, error)
}

/// The packet in an ICMPv6 error (RFC 4443), if it has no extension headers.
fn inside_v6(message: &[u8], error: &Tuple) -> Option<Tuple> {
    let packet = message.get(8..)?;
    let ip = |at: usize| {
        let octets: [u8; 16] = packet.get(at..)?.first_chunk().copied()?;
        Some(number(IpAddr::from(octets)))
    };
    if packet.first()? >> 4 != 6 {
        return None;
    }
    about(packet[6..].first().copied()?, (ip(8)?, ip(24)?), packet.get(40..)?, error)
}

/// The tuple of a packet from `ends.0` to `ends.1`, turned round: an error about it goes back.
fn about(protocol: u8, ends: (u128, u128), rest: &[u8], error: &Tuple) -> Option<Tuple> {
    let ports = match Protocol(protocol) {
        Protocol::TCP | Protocol::UDP | Protocol::SCTP => (be16(rest, 0)?, be16(rest, 2)?),
        Protocol::ICMP | Protocol::ICMPV6 => (be16(rest, 4)?, be16(rest, 4)?),
        _ => (0, 0),
    };
    // An error goes to the sender of what it is about.
    (error.to == ends.0).then_some(Tuple {
        from: ends.1,
        to: ends.0,
        ports: (ports.1, ports.0),
        protocol,
        vlan: error.vlan,
        flags: 0,
        related: true,
    })
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}
