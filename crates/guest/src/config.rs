//! The settings that a stack is made with.

use std::hash::{BuildHasher, RandomState};
use std::net::Ipv4Addr;

use frame::Mac;
use tcp::Secret;

/// Settings of a stack.
#[derive(Clone, Debug)]
pub struct Config {
    /// The NIC's address.
    pub mac: Mac,
    /// The host's address.
    pub address: Ipv4Addr,
    /// Prefix length of the network.
    pub prefix: u8,
    /// The router to other networks.
    pub gateway: Option<Ipv4Addr>,
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
        let random = RandomState::new();
        Self {
            mac,
            address,
            prefix,
            gateway: None,
            max_neighbours: 1024,
            secret: Secret([random.hash_one(1), random.hash_one(2)]),
            tcp: tcp::Config::default(),
        }
    }
}
