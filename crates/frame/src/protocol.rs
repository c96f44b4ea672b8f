//! Numbers of the protocols above IP.

/// The protocol that an IP packet carries (IANA protocol numbers).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Protocol(pub u8);

impl Protocol {
    /// ICMP (RFC 792).
    pub const ICMP: Self = Self(1);
    /// TCP (RFC 9293).
    pub const TCP: Self = Self(6);
    /// UDP (RFC 768).
    pub const UDP: Self = Self(17);
    /// ICMPv6 (RFC 4443).
    pub const ICMPV6: Self = Self(58);
    /// SCTP (RFC 9260).
    pub const SCTP: Self = Self(132);

    pub(crate) const HOP_BY_HOP: Self = Self(0);
    pub(crate) const ROUTING: Self = Self(43);
    pub(crate) const FRAGMENT: Self = Self(44);
    pub(crate) const AUTHENTICATION: Self = Self(51);
    pub(crate) const DESTINATION_OPTIONS: Self = Self(60);
}
