//! Messages of ICMPv6 and neighbour discovery (RFC 4443; RFC 4861, 4), by smoltcp's formats.

use std::net::Ipv6Addr;

use frame::{Ipv6, Mac, Protocol};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, Icmpv6Packet, Icmpv6Repr, NdiscNeighborFlags, NdiscOption, NdiscOptionRepr,
    NdiscPrefixInfoFlags, NdiscRepr, RawHardwareAddress,
};
use zerocopy::IntoBytes;

/// Types of messages.
pub(crate) const UNREACHABLE: u8 = 1;
pub(crate) const TOO_BIG: u8 = 2;
pub(crate) const ECHO_REQUEST: u8 = 128;
pub(crate) const ECHO_REPLY: u8 = 129;
pub(crate) const ROUTER_ADVERTISEMENT: u8 = 134;
pub(crate) const SOLICITATION: u8 = 135;
pub(crate) const ADVERTISEMENT: u8 = 136;
pub(crate) const REDIRECT: u8 = 137;

/// The header of options for all routers on the way (RFC 8200, 4.3).
pub(crate) const HOP_BY_HOP: u8 = 0;
/// The hop limit of neighbour discovery: a packet that has it was not forwarded (RFC 4861, 3.1).
pub(crate) const NEVER_FORWARDED: u8 = 255;
/// The offset of the hop limit in the IP header.
pub(crate) const HOP_LIMIT: usize = 7;

/// A network: its prefix, and the prefix's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prefix {
    bits: u128,
    len: u8,
}

impl Prefix {
    pub fn new(ip: Ipv6Addr, len: u8) -> Self {
        let len = len.min(128);
        Self { bits: ip.to_bits() & Self::mask(len), len }
    }

    fn mask(len: u8) -> u128 {
        u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0)
    }

    pub fn contains(&self, ip: Ipv6Addr) -> bool {
        ip.to_bits() & Self::mask(self.len) == self.bits
    }

    pub fn len(&self) -> u8 {
        self.len
    }

    /// The network's first address.
    pub fn first(&self) -> Ipv6Addr {
        Ipv6Addr::from_bits(self.bits)
    }

    /// Whether no router may advertise it: link-local (RFC 4862, 5.5.3), groups, everything.
    pub fn is_reserved(&self) -> bool {
        let first = self.first();
        self.len == 0 || first.is_unicast_link_local() || first.is_multicast()
    }
}

/// What a router says of a prefix (RFC 4861, 4.6.2). Lifetimes are in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PrefixInformation {
    pub prefix: Prefix,
    pub on_link: bool,
    pub autonomous: bool,
    pub valid: u32,
    pub preferred: u32,
}

/// A router advertisement (RFC 4861, 4.2).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Advertisement<'p> {
    /// How long the sender is a router, in seconds.
    pub router_lifetime: u16,
    options: &'p [u8],
}

impl<'p> Advertisement<'p> {
    /// Parses the message. `None` if it is cut short, or an option is (RFC 4861, 6.1.2).
    pub fn parse(message: &'p [u8]) -> Option<Self> {
        let (head, options) = message.split_first_chunk::<16>()?;
        let router_lifetime = u16::from_be_bytes([head[6], head[7]]);
        are_whole(options).then_some(Self { router_lifetime, options })
    }

    fn options(&self) -> impl Iterator<Item = NdiscOptionRepr<'p>> + use<'p> {
        let mut rest = self.options;
        std::iter::from_fn(move || {
            let option = NdiscOption::new_checked(rest).ok();
            let len = 8 * usize::from(*rest.get(1)?);
            rest = rest.get(len..)?;
            // An option that makes no sense is passed over.
            Some(option.and_then(|option| NdiscOptionRepr::parse(&option).ok()))
        })
        .flatten()
    }

    /// The router's MAC address.
    pub fn source(&self) -> Option<Mac> {
        self.options().find_map(|option| match option {
            NdiscOptionRepr::SourceLinkLayerAddr(address) => mac(address),
            _ => None,
        })
    }

    pub fn mtu(&self) -> Option<u16> {
        self.options().find_map(|option| match option {
            NdiscOptionRepr::Mtu(mtu) => u16::try_from(mtu).ok(),
            _ => None,
        })
    }

    pub fn prefixes(&self) -> impl Iterator<Item = PrefixInformation> + use<'p> {
        let seconds =
            |time: smoltcp::time::Duration| u32::try_from(time.secs()).unwrap_or(u32::MAX);
        self.options().filter_map(move |option| match option {
            NdiscOptionRepr::PrefixInformation(told) if told.prefix_len <= 128 => {
                Some(PrefixInformation {
                    prefix: Prefix::new(told.prefix, told.prefix_len),
                    on_link: told.flags.contains(NdiscPrefixInfoFlags::ON_LINK),
                    autonomous: told.flags.contains(NdiscPrefixInfoFlags::ADDRCONF),
                    valid: seconds(told.valid_lifetime),
                    preferred: seconds(told.preferred_lifetime),
                })
            }
            _ => None,
        })
    }
}

/// Whether all options have a length, and lie within the message.
fn are_whole(mut options: &[u8]) -> bool {
    while let [_, len, ..] = options {
        match options.get(8 * usize::from(*len)..) {
            Some(rest) if *len > 0 => options = rest,
            _ => return false,
        }
    }
    options.is_empty()
}

/// The MAC address of a host, if the option has one.
fn mac(address: RawHardwareAddress) -> Option<Mac> {
    let mac = Mac::new(address.as_bytes().try_into().ok()?);
    (!mac.is_group() && mac != Mac::from_word(0)).then_some(mac)
}

/// A message about neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Neighbour {
    Solicitation {
        target: Ipv6Addr,
        source: Option<Mac>,
    },
    Advertisement {
        target: Ipv6Addr,
        mac: Option<Mac>,
        solicited: bool,
        overrides: bool,
        router: bool,
    },
}

impl Neighbour {
    /// Parses the message. `None` if it is cut short, or an option is (RFC 4861, 7.1).
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let options = bytes.get(24..)?;
        let packet = Icmpv6Packet::new_checked(bytes).ok().filter(|_| are_whole(options))?;
        match NdiscRepr::parse(&packet).ok()? {
            NdiscRepr::NeighborSolicit { target_addr: target, lladdr } => {
                Some(Self::Solicitation { target, source: lladdr.and_then(mac) })
            }
            NdiscRepr::NeighborAdvert { flags, target_addr: target, lladdr } => {
                Some(Self::Advertisement {
                    target,
                    mac: lladdr.and_then(mac),
                    solicited: flags.contains(NdiscNeighborFlags::SOLICITED),
                    overrides: flags.contains(NdiscNeighborFlags::OVERRIDE),
                    router: flags.contains(NdiscNeighborFlags::ROUTER),
                })
            }
            _ => None,
        }
    }
}

/// A message of neighbour discovery that a host sends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sent {
    SolicitRouters { source: Option<Mac> },
    Solicit { target: Ipv6Addr, source: Option<Mac> },
    Advertise { target: Ipv6Addr, mac: Mac, solicited: bool },
}

impl Sent {
    /// The packet with this message.
    pub fn packet(self, from: Ipv6Addr, to: Ipv6Addr) -> Vec<u8> {
        let raw = |mac: Mac| RawHardwareAddress::from(EthernetAddress(mac.octets()));
        let repr = Icmpv6Repr::Ndisc(match self {
            Self::SolicitRouters { source } => NdiscRepr::RouterSolicit { lladdr: source.map(raw) },
            Self::Solicit { target, source } => {
                NdiscRepr::NeighborSolicit { target_addr: target, lladdr: source.map(raw) }
            }
            Self::Advertise { target, mac, solicited } => {
                let flags = NdiscNeighborFlags::OVERRIDE;
                let solicited = if solicited {
                    NdiscNeighborFlags::SOLICITED
                } else {
                    NdiscNeighborFlags::empty()
                };
                NdiscRepr::NeighborAdvert {
                    flags: flags | solicited,
                    target_addr: target,
                    lladdr: Some(raw(mac)),
                }
            }
        });
        let mut message = vec![0; repr.buffer_len()];
        let mut packet = Icmpv6Packet::new_unchecked(&mut message[..]);
        repr.emit(&from, &to, &mut packet, &ChecksumCapabilities::default());
        let header = Ipv6::new(from, to, Protocol::ICMPV6, message.len() as u16);
        let mut packet = header.as_bytes().to_vec();
        packet[HOP_LIMIT] = NEVER_FORWARDED;
        packet.extend(message);
        packet
    }
}
