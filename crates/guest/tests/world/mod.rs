//! Hosts on an inline switch, in one thread, in virtual time.

use std::net::Ipv4Addr;

use dataplane::config::Policy;
use dataplane::{Inline, SwitchConfig};
use frame::Mac;
use guest::{Config, Nanos, RingNic, Stack};
use link::Impairment;
use netring::{Port, Region, RegionConfig};

pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// A switch, and the time.
pub struct World {
    pub switch: Inline,
    pub now: Nanos,
}

impl World {
    pub fn new() -> Self {
        let config = SwitchConfig { max_ports: 4, ..SwitchConfig::default() };
        Self { switch: Inline::new(config).unwrap(), now: Nanos(Nanos::SECOND) }
    }

    /// A port of the switch; what its owner sends meets `impairment`.
    pub fn plug(&mut self, name: &str, mac: Mac, impairment: Option<Impairment>) -> Port {
        let region = Region::private(RegionConfig::ports(1, 1, 256)).unwrap();
        let port = Port::inline(&region, name, 1, 1, 256).unwrap();
        let policy = Policy { macs: vec![mac], tx_impairment: impairment, ..Policy::default() };
        self.switch.add_rings(name, policy, &port.rings()).unwrap();
        port
    }

    /// A host whose secret is fixed, so that a run is the same again.
    pub fn host(&mut self, address: Ipv4Addr, impairment: Option<Impairment>) -> Stack<RingNic> {
        let mac = Mac::local(address.to_bits());
        let port = self.plug(&address.to_string(), mac, impairment);
        let mut config = Config::new(mac, address, 24);
        config.secret = tcp::Secret([7, address.to_bits().into()]);
        Stack::new(RingNic::new(port), &config)
    }

    /// The switch moves what was sent.
    pub fn turn(&mut self) {
        self.now = self.now + 10 * Nanos::MICRO;
        self.switch.turn(port::Nanos(self.now.0));
    }
}
