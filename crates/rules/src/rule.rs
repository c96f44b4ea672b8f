//! A rule: what it matches and what it does.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use frame::{Mac, Protocol};

use crate::packet::Direction;

/// A line of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The name by which `skipto` finds the rule.
    pub label: Option<String>,
    /// What happens to a frame that matches.
    pub action: Action,
    /// Allowed frames make no connection, so answers need a rule of their own.
    pub stateless: bool,
    /// Samples of matching frames are recorded.
    pub log: bool,
    /// The port that gets a copy of matching frames.
    pub mirror: Option<String>,
    /// Frames beyond this rate are denied.
    pub limit: Option<Rate>,
    /// The named link through which matching frames go.
    pub link: Option<String>,
    /// Which frames match.
    pub matches: Matches,
    /// The line on which the rule was written, from 1.
    pub line: usize,
}

/// What happens to a frame that matches a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// It passes.
    Allow,
    /// It is dropped.
    Deny,
    /// It is dropped, and its sender is told.
    Reset,
    /// It is counted, and the next rule is tried.
    Next,
    /// The rule with this label is tried next.
    Skip(String),
}

/// A rate, to which a rule limits its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// Frames a second.
    Frames(u64),
    /// Bits a second.
    Bits(u64),
}

/// Which frames a rule matches: those that fit all of it. The default fits every frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matches {
    /// The protocol.
    pub protocols: Protocols,
    /// The source.
    pub from: Side,
    /// The destination.
    pub to: Side,
    /// To the port or from the port; `None` for both.
    pub direction: Option<Direction>,
    /// Of the TCP flags in the first number, exactly those in the second are set.
    pub flags: Option<(u8, u8)>,
    /// Types of ICMP or ICMPv6 messages; empty for any.
    pub icmp_types: Vec<u8>,
    /// The source MAC address.
    pub source_mac: Option<Mac>,
    /// The destination MAC address.
    pub destination_mac: Option<Mac>,
    /// Ranges of VLANs; empty for any, also for none.
    pub vlans: Vec<(u16, u16)>,
    /// The type behind the VLAN tags.
    pub ethertype: Option<u16>,
    /// Bytes of the frame, the lowest and the highest.
    pub length: Option<(u32, u32)>,
    /// Only parts of packets.
    pub fragment: bool,
    /// The share of frames that match, out of 2^32.
    pub probability: Option<u32>,
    /// An expression of libpcap.
    pub bpf: Option<String>,
}

/// Which protocols a rule matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocols {
    /// Any frame.
    #[default]
    All,
    /// IPv4 and IPv6.
    Ip,
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
    /// ARP.
    Arp,
    /// A protocol above IPv4 or IPv6.
    Above(Protocol),
}

/// One end of a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Side {
    /// Its addresses.
    pub hosts: Hosts,
    /// Ranges of its ports; empty for any.
    pub ports: Vec<(u16, u16)>,
}

/// Addresses: a packet fits if it fits any of these. Empty for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts {
    /// The port to which the rule belongs.
    pub me: bool,
    /// Networks.
    pub prefixes: Vec<Prefix>,
    /// Names of tables.
    pub tables: Vec<String>,
    /// Names of groups; ports of such a group are meant.
    pub groups: Vec<String>,
}

/// The addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    ip: IpAddr,
    len: u8,
}

impl Hosts {
    /// True if any address fits, and frames without addresses, too.
    #[must_use]
    pub fn is_any(&self) -> bool {
        !self.me && self.prefixes.is_empty() && self.tables.is_empty() && self.groups.is_empty()
    }
}

impl Prefix {
    /// The network of `ip`; bits behind the prefix are cleared. `None` if the prefix is longer
    /// than the address.
    #[must_use]
    pub fn new(ip: IpAddr, len: u8) -> Option<Self> {
        let ip = match ip {
            IpAddr::V4(ip) if len <= 32 => {
                let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
                Ipv4Addr::from_bits(ip.to_bits() & mask).into()
            }
            IpAddr::V6(ip) if len <= 128 => {
                let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
                Ipv6Addr::from_bits(ip.to_bits() & mask).into()
            }
            _ => return None,
        };
        Some(Self { ip, len })
    }

    /// The first address.
    #[must_use]
    pub fn ip(self) -> IpAddr {
        self.ip
    }

    /// How many bits are the same.
    #[must_use]
    pub fn bits(self) -> u8 {
        self.len
    }

    /// True if `ip` is in the network.
    #[must_use]
    pub fn contains(self, ip: IpAddr) -> bool {
        Self::new(ip, self.len).is_some_and(|network| network == self)
    }
}

impl core::str::FromStr for Prefix {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (ip, len) = match text.split_once('/') {
            Some((ip, len)) => (ip, Some(len)),
            None => (text, None),
        };
        let ip: IpAddr = ip.parse().map_err(|_| ())?;
        let longest = if ip.is_ipv4() { 32 } else { 128 };
        let len = match len {
            Some(len) if !len.is_empty() && len.bytes().all(|b| b.is_ascii_digit()) => {
                len.parse().map_err(|_| ())?
            }
            Some(_) => return Err(()),
            None => longest,
        };
        Self::new(ip, len).ok_or(())
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.ip, self.len) {
            (IpAddr::V4(ip), 32) => write!(f, "{ip}"),
            (IpAddr::V6(ip), 128) => write!(f, "{ip}"),
            (ip, len) => write!(f, "{ip}/{len}"),
        }
    }
}

impl Rule {
    /// True if no later rule sees a frame that matches this one.
    #[must_use]
    pub fn ends(&self) -> bool {
        matches!(self.action, Action::Allow | Action::Deny | Action::Reset)
    }
}

impl Matches {
    /// True if the rule can match frames in this direction. `me` says one, too.
    #[must_use]
    pub fn applies(&self, direction: Direction) -> bool {
        let me = match direction {
            Direction::In => self.from.hosts.me && only_me(&self.from.hosts),
            Direction::Out => self.to.hosts.me && only_me(&self.to.hosts),
        };
        !me && self.direction.is_none_or(|own| own == direction)
    }

    /// True if only IP packets can match.
    #[must_use]
    pub fn needs_ip(&self) -> bool {
        let side = |side: &Side| {
            let hosts = &side.hosts;
            let addresses = !hosts.prefixes.is_empty() || !hosts.tables.is_empty();
            !side.ports.is_empty() || addresses && !hosts.me && hosts.groups.is_empty()
        };
        side(&self.from) || side(&self.to) || self.flags.is_some() || !self.icmp_types.is_empty()
    }
}

/// True if nothing but the port itself fits.
fn only_me(hosts: &Hosts) -> bool {
    hosts.prefixes.is_empty() && hosts.tables.is_empty() && hosts.groups.is_empty()
}
