//! The settings that a stack is made with.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, Ipv6Addr};

use frame::Mac;
use tcp::Secret;

/// IPv6 settings of a host. It has a link-local address, which follows from its MAC address, and
/// the addresses that are named here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Config {
    /// An address, and the prefix length of its network.
    pub address: Option<(Ipv6Addr, u8)>,
    /// The router to other networks.
    pub gateway: Option<Ipv6Addr>,
    /// Takes addresses, routers and the MTU from router advertisements (RFC 4862).
    pub autoconfigure: bool,
    /// How often the network is asked whether another host has an address, before the address is
    /// used (`DupAddrDetectTransmits` of RFC 4862, 5.1); 0 to use addresses at once.
    pub probes: u8,
}

impl Default for Ipv6Config {
    fn default() -> Self {
        Self { address: None, gateway: None, autoconfigure: false, probes: 1 }
    }
}

/// Settings of a stack.
#[derive(Clone, Debug)]
pub struct Config {
    /// The NIC's address.
    pub mac: Mac,
    /// The host's IPv4 address; 0.0.0.0 for none.
    pub address: Ipv4Addr,
    /// Prefix length of the IPv4 network.
    pub prefix: u8,
    /// The IPv4 router to other networks.
    pub gateway: Option<Ipv4Addr>,
    /// Asks a DHCP server for the IPv4 address, network, router and MTU, which replace those above.
    pub dhcp: bool,
    /// IPv6 settings; `None` for a host without IPv6.
    pub v6: Option<Ipv6Config>,
    /// Tells all hosts of the link where the addresses are, once the host has them. Otherwise the
    /// switch alone is told. The announcements of N hosts that start are N x N frames.
    pub announces: bool,
    /// The maximum number of neighbours that are remembered.
    pub max_neighbours: usize,
    /// The key of hashes and sequence numbers: random, and different for each stack.
    pub secret: Secret,
    /// TCP's settings. Its MTU is lowered to what the NIC can send.
    pub tcp: tcp::Config,
}

impl Config {
    /// Returns the settings of a host with this address, with a random secret and no gateway.
    #[must_use]
    pub fn new(mac: Mac, address: Ipv4Addr, prefix: u8) -> Self {
        Self {
            mac,
            address,
            prefix,
            gateway: None,
            dhcp: false,
            v6: None,
            announces: true,
            max_neighbours: 1024,
            secret: random(),
            tcp: tcp::Config::default(),
        }
    }
}

/// A new random secret.
pub(crate) fn random() -> Secret {
    let random = RandomState::new();
    Secret([random.hash_one(1), random.hash_one(2)])
}
