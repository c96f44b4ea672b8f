//! IPv6 of a host: its addresses and their probes (RFC 4862), routers and networks on the link (RFC
//! 4861, 5.1), and the choice of next hops and source addresses.
//!
//! Everything that routers may fill is bounded, and what a message costs does not depend on what
//! came before it. Advertisements end what they have announced; they never shorten the life of an
//! address below two hours (RFC 4862, 5.5.3).

mod groups;
mod input;
mod message;
mod output;

use std::net::Ipv6Addr;

use frame::Mac;
use tcp::Nanos;

use crate::config::Ipv6Config;
use crate::neighbours::Neighbours;
use groups::{Groups, Query, Told};
pub(crate) use message::{Advertisement, Prefix};

/// Maximum number of addresses, the link-local one included.
const MAX_ADDRESSES: usize = 8;
/// Maximum number of routers.
const MAX_ROUTERS: usize = 4;
/// Maximum number of networks that are on the link.
const MAX_NETWORKS: usize = 8;
/// Time between probes (`RetransTimer` of RFC 4861, 10).
const PROBE: u64 = Nanos::SECOND;
/// Time between router solicitations, and their number (RFC 4861, 10).
const SOLICITATION: u64 = 4 * Nanos::SECOND;
const SOLICITATIONS: u8 = 3;
/// The lifetime below which an unauthenticated advertisement does not shorten that of an address
/// (RFC 4862, 5.5.3).
const TWO_HOURS: u64 = 7200 * Nanos::SECOND;
/// Length of the prefix of an address that a host makes itself (RFC 4291, 2.5.1).
const PREFIX: u8 = 64;
/// The least MTU of a link (RFC 8200, 5).
pub(crate) const LEAST_MTU: u16 = 1280;

/// All hosts of the link (RFC 4291, 2.7.1).
pub(crate) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// All routers of the link.
pub(crate) const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);

/// What is known of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It is not used yet: this many probes are left, and the next step is due.
    Tentative { left: u8, due: Nanos },
    /// The host has it. Other hosts have been told, or are to be.
    Own { announced: bool },
    /// Another host has it.
    Duplicate,
}

/// An address of the host.
#[derive(Clone, Copy, Debug)]
struct Address {
    ip: Ipv6Addr,
    state: State,
    /// A router has advertised its prefix.
    advertised: bool,
    /// From then on, other addresses are preferred as sources.
    preferred: Nanos,
    /// From then on, it is not the host's address.
    valid: Nanos,
}

impl Address {
    fn is_own(&self) -> bool {
        matches!(self.state, State::Own { .. })
    }
}

/// What a host is to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Say {
    /// A probe for another host with this address (RFC 4862, 5.4.2).
    Probe(Ipv6Addr),
    /// That the host has this address (RFC 4861, 7.2.6).
    Announce(Ipv6Addr),
    /// A question for routers (RFC 4861, 6.3.7).
    SolicitRouters,
    /// The groups that the host listens to.
    Groups(Told),
}

/// The way of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// To a group, by this MAC address (RFC 2464, 7).
    Group(Mac),
    /// To a neighbour.
    Hop(Ipv6Addr),
}

/// IPv6 of a host.
#[derive(Debug)]
pub(crate) struct V6 {
    mac: Mac,
    autoconfigure: bool,
    probes: u8,
    gateway: Option<Ipv6Addr>,
    addresses: Vec<Address>,
    /// Routers, and until when each is one. The first is used.
    routers: Vec<(Ipv6Addr, Nanos)>,
    /// Networks on the link, and until when each is there.
    networks: Vec<(Prefix, Nanos)>,
    pub neighbours: Neighbours<Ipv6Addr>,
    groups: Groups,
    /// Router solicitations that are left, and when the next one is due.
    solicitations: Option<(u8, Nanos)>,
    /// The MTU that a router has advertised.
    mtu: Option<u16>,
    /// When [`next`](Self::next) next has work.
    due: Nanos,
}

/// The link-local address that follows from a MAC address (RFC 4291, appendix A).
fn with_interface_id(prefix: Ipv6Addr, mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.octets();
    let id = u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
    let high = prefix.to_bits() >> 64 << 64;
    Ipv6Addr::from_bits(high | u128::from(id))
}

/// The group that hosts with this address listen to (RFC 4291, 2.7.1).
pub(crate) fn solicited_node(ip: Ipv6Addr) -> Ipv6Addr {
    const GROUP: u128 = 0xff02_0000_0000_0000_0000_0001_ff00_0000;
    Ipv6Addr::from_bits(GROUP | ip.to_bits() & 0xff_ffff)
}

/// The MAC address of a group (RFC 2464, 7).
pub(crate) fn group_mac(ip: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = ip.octets();
    Mac::new([0x33, 0x33, a, b, c, d])
}

/// Until when something with a lifetime lives; all bits set is for ever.
fn until(seconds: u32, now: Nanos) -> Nanos {
    match seconds {
        u32::MAX => Nanos::NEVER,
        seconds => now + u64::from(seconds) * Nanos::SECOND,
    }
}

impl V6 {
    pub fn new(config: &Ipv6Config, mac: Mac, max_neighbours: usize) -> Self {
        let mut v6 = Self {
            mac,
            autoconfigure: config.autoconfigure,
            probes: config.probes,
            gateway: config.gateway,
            addresses: Vec::new(),
            routers: Vec::new(),
            networks: Vec::new(),
            neighbours: Neighbours::new(max_neighbours),
            groups: Groups::new(mac.word()),
            solicitations: config.autoconfigure.then_some((SOLICITATIONS, Nanos(0))),
            mtu: None,
            due: Nanos(0),
        };
        let link_local = with_interface_id(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), mac);
        v6.add(link_local, false, (Nanos::NEVER, Nanos::NEVER), Nanos(0));
        if let Some((ip, len)) = config.address {
            v6.networks.push((Prefix::new(ip, len), Nanos::NEVER));
            v6.add(ip, false, (Nanos::NEVER, Nanos::NEVER), Nanos(0));
        }
        v6
    }

    fn add(&mut self, ip: Ipv6Addr, advertised: bool, lives: (Nanos, Nanos), now: Nanos) {
        if self.addresses.len() >= MAX_ADDRESSES || self.addresses.iter().any(|a| a.ip == ip) {
            return;
        }
        let state = match self.probes {
            0 => State::Own { announced: false },
            left => State::Tentative { left, due: now },
        };
        let (preferred, valid) = lives;
        self.addresses.push(Address { ip, state, advertised, preferred, valid });
        self.due = now;
    }

    /// Whether the host has the address.
    pub fn is_own(&self, ip: Ipv6Addr) -> bool {
        self.addresses.iter().any(|address| address.ip == ip && address.is_own())
    }

    /// Whether the host asks if it may have the address.
    fn is_tentative(&self, ip: Ipv6Addr) -> bool {
        let tentative = |address: &Address| matches!(address.state, State::Tentative { .. });
        self.addresses.iter().any(|address| address.ip == ip && tentative(address))
    }

    /// Whether the host listens to the group.
    pub fn is_member(&self, group: Ipv6Addr) -> bool {
        group == ALL_NODES
            || self.addresses.iter().any(|address| {
                address.state != State::Duplicate && solicited_node(address.ip) == group
            })
    }

    /// The addresses that the host has.
    pub fn addresses(&self) -> impl Iterator<Item = Ipv6Addr> + '_ {
        self.addresses.iter().filter(|a| a.is_own()).map(|a| a.ip)
    }

    /// Whether no address is being probed, and there is one that other networks reach.
    pub fn is_configured(&self) -> bool {
        let settled = |a: &Address| !matches!(a.state, State::Tentative { .. }) || a.advertised;
        let reached = |a: &Address| a.is_own() && !a.ip.is_unicast_link_local();
        let wanted = self.autoconfigure || self.addresses.len() > 1;
        self.addresses.iter().all(settled) && (!wanted || self.addresses.iter().any(reached))
    }

    /// The MTU that a router has advertised.
    pub fn mtu(&self) -> Option<u16> {
        self.mtu
    }

    /// The source address of packets to `to` (RFC 6724, 5, without policies).
    pub fn source(&self, to: Ipv6Addr, now: Nanos) -> Option<Ipv6Addr> {
        let local = to.is_unicast_link_local() || to.octets()[..2] == [0xff, 2];
        let usable = self.addresses.iter().filter(|a| a.is_own());
        // A link-local address is no source for other networks.
        let fits = usable.filter(|a| local || !a.ip.is_unicast_link_local());
        let rank = |a: &&Address| {
            let common = (a.ip.to_bits() ^ to.to_bits()).leading_zeros();
            (local == a.ip.is_unicast_link_local(), now < a.preferred, common)
        };
        fits.max_by_key(rank).map(|address| address.ip)
    }

    /// The way of packets to `to` (RFC 4861, 5.2). `None` if there is no router.
    pub fn way(&self, to: Ipv6Addr) -> Option<Way> {
        if to.is_multicast() {
            return Some(Way::Group(group_mac(to)));
        }
        if to.is_unspecified() || to.is_loopback() || self.is_own(to) {
            return None;
        }
        let on_link = to.is_unicast_link_local()
            || self.networks.iter().any(|(network, _)| network.contains(to));
        let hop = if on_link { Some(to) } else { self.router() };
        hop.map(Way::Hop)
    }

    fn router(&self) -> Option<Ipv6Addr> {
        self.gateway.or_else(|| self.routers.first().map(|(router, _)| *router))
    }

    /// Notes that a neighbour does not answer: another router is used, if there is one.
    pub fn lost(&mut self, hop: Ipv6Addr) {
        if self.routers.first().is_some_and(|(first, _)| *first == hop) {
            self.routers.rotate_left(1);
        }
    }

    /// Notes that a neighbour is a host, and not a router (RFC 4861, 7.2.5).
    pub fn is_no_router(&mut self, ip: Ipv6Addr) {
        self.routers.retain(|(router, _)| *router != ip);
    }

    /// Notes that another host has an address that was probed (RFC 4862, 5.4.5). Returns whether
    /// it was one.
    pub fn is_taken(&mut self, ip: Ipv6Addr) -> bool {
        let tentative = |a: &&mut Address| a.ip == ip && matches!(a.state, State::Tentative { .. });
        let Some(address) = self.addresses.iter_mut().find(tentative) else { return false };
        address.state = State::Duplicate;
        // Its group is to be left.
        self.due = Nanos(0);
        true
    }

    /// Takes a query for the groups that the host listens to.
    fn asked(&mut self, query: &Query, now: Nanos) {
        self.groups.asked(query, now);
        self.due = self.due.min(self.groups.due());
    }

    /// The groups that the host listens to, one or several times. No host reports that it listens
    /// to [`ALL_NODES`] (RFC 3810, 6).
    fn memberships(addresses: &[Address]) -> impl Iterator<Item = Ipv6Addr> + Clone {
        let listens = |address: &&Address| address.state != State::Duplicate;
        addresses.iter().filter(listens).map(|address| solicited_node(address.ip))
    }

    /// The source of reports (RFC 3590, 4): the link-local address, once the host has it.
    fn reporter(&self) -> Ipv6Addr {
        let local = |ip: &Ipv6Addr| ip.is_unicast_link_local();
        self.addresses().find(local).unwrap_or(Ipv6Addr::UNSPECIFIED)
    }

    /// Returns the next thing that is due.
    pub fn next(&mut self, now: Nanos) -> Option<Say> {
        if now < self.due {
            return None;
        }
        self.addresses.retain(|address| now < address.valid);
        self.routers.retain(|(_, until)| now < *until);
        self.networks.retain(|(_, until)| now < *until);
        self.groups.set(Self::memberships(&self.addresses), now);
        // Before a probe: its answer comes to the group.
        if let Some(told) = self.groups.next(now) {
            return Some(Say::Groups(told));
        }
        for address in &mut self.addresses {
            match &mut address.state {
                State::Tentative { due, .. } if now < *due => {}
                State::Tentative { left: 0, .. } | State::Own { announced: false } => {
                    address.state = State::Own { announced: true };
                    if address.ip.is_unicast_link_local() {
                        self.groups.repeat(now);
                    }
                    return Some(Say::Announce(address.ip));
                }
                State::Tentative { left, due } => {
                    (*left, *due) = (*left - 1, now + PROBE);
                    return Some(Say::Probe(address.ip));
                }
                State::Own { .. } | State::Duplicate => {}
            }
        }
        let may_ask = self.may_solicit();
        if let Some((left, due)) = &mut self.solicitations
            && *due <= now
            && may_ask
        {
            (*left, *due) = (*left - 1, now + SOLICITATION);
            if *left == 0 {
                self.solicitations = None;
            }
            return Some(Say::SolicitRouters);
        }
        self.due = self.next_due().max(now + 1);
        None
    }

    /// Whether the link-local address, which is the source of router solicitations, was probed.
    fn may_solicit(&self) -> bool {
        self.addresses.first().is_none_or(|a| !matches!(a.state, State::Tentative { .. }))
    }

    fn next_due(&self) -> Nanos {
        let steps = self.addresses.iter().filter_map(|address| match address.state {
            State::Tentative { due, .. } => Some(due),
            _ => None,
        });
        let ends = self.addresses.iter().map(|address| address.valid);
        let ends = ends.chain(self.routers.iter().map(|(_, until)| *until));
        let ends = ends.chain(self.networks.iter().map(|(_, until)| *until));
        let asks = self.solicitations.iter().map(|(_, due)| *due).filter(|_| self.may_solicit());
        let groups = std::iter::once(self.groups.due());
        steps.chain(ends).chain(asks).chain(groups).min().unwrap_or(Nanos::NEVER)
    }

    /// Returns when [`next`](Self::next) or a neighbour next has work.
    pub fn deadline(&self) -> Option<Nanos> {
        let own = (self.due != Nanos::NEVER).then_some(self.due);
        own.into_iter().chain(self.neighbours.deadline()).min()
    }

    /// Takes what a router advertises (RFC 4861, 6.3.4). `longest` is the link's own MTU.
    fn advertised(&mut self, from: Ipv6Addr, told: &Advertisement<'_>, longest: u16, now: Nanos) {
        if !self.autoconfigure {
            return;
        }
        self.solicitations = None;
        let until_router = now + u64::from(told.router_lifetime) * Nanos::SECOND;
        let room = self.routers.len() < MAX_ROUTERS;
        match self.routers.iter_mut().find(|(router, _)| *router == from) {
            Some((_, until)) => *until = until_router,
            None if told.router_lifetime > 0 && room => {
                self.routers.push((from, until_router));
            }
            None => {}
        }
        for prefix in told.prefixes() {
            self.prefix(&prefix, now);
        }
        if let Some(mtu) = told.mtu().filter(|mtu| (LEAST_MTU..=longest).contains(mtu)) {
            self.mtu = Some(mtu);
        }
        self.due = now;
    }

    fn prefix(&mut self, told: &message::PrefixInformation, now: Nanos) {
        let prefix = told.prefix;
        if prefix.is_reserved() {
            return;
        }
        let valid = until(told.valid, now);
        if told.on_link {
            let room = self.networks.len() < MAX_NETWORKS;
            match self.networks.iter_mut().find(|(network, _)| *network == prefix) {
                // What the host's own settings say does not end.
                Some((_, Nanos::NEVER)) => {}
                Some((_, until)) => *until = valid,
                None if told.valid > 0 && room => {
                    self.networks.push((prefix, valid));
                }
                None => {}
            }
        }
        if !told.autonomous || told.preferred > told.valid || prefix.len() != PREFIX {
            return;
        }
        let preferred = until(told.preferred, now);
        let of_prefix = |a: &&mut Address| a.advertised && prefix.contains(a.ip);
        match self.addresses.iter_mut().find(of_prefix) {
            Some(address) => {
                address.preferred = preferred;
                let left = address.valid - now;
                if valid - now > TWO_HOURS || valid > address.valid {
                    address.valid = valid;
                } else if left > TWO_HOURS {
                    address.valid = now + TWO_HOURS;
                }
            }
            None if told.valid > 0 => {
                let ip = with_interface_id(prefix.first(), self.mac);
                self.add(ip, true, (preferred, valid), now);
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests;
