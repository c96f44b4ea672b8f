//! Hosts on an inline switch, in one thread, in virtual time.

use std::net::Ipv4Addr;

use frame::{Mac, OffloadSet};
use guest::{Config, Nanos, RingNic, Stack};
use inline::{Inline, Policy, SwitchConfig};
use link::Impairment;
use netring::{Open, Port, Region, RegionConfig};

pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// The IPv6 address of a host: `fd00::`, and the last byte of its IPv4 address.
#[allow(dead_code, reason = "of tests of IPv6 only")]
pub fn v6(address: Ipv4Addr) -> std::net::Ipv6Addr {
    std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, address.octets()[3].into())
}

/// A switch, and the time.
pub struct World {
    pub switch: Inline,
    pub now: Nanos,
    /// Offloads of the ports that are plugged in after this is set.
    pub offloads: OffloadSet,
    /// The MTU of hosts that are plugged in after this is set.
    pub mtu: u16,
    /// Hosts read frames in place.
    pub in_place: bool,
    /// Hosts have IPv6 addresses beside the others.
    pub ipv6: bool,
}

impl World {
    pub fn new() -> Self {
        let config = SwitchConfig { max_ports: 4, ..SwitchConfig::default() };
        let (switch, now) = (Inline::new(config).unwrap(), Nanos(Nanos::SECOND));
        Self { switch, now, offloads: OffloadSet::NONE, mtu: 1500, in_place: false, ipv6: false }
    }

    /// Plugs in a port of the switch. Frames of its owner are subject to `impairment`.
    pub fn plug(&mut self, name: &str, mac: Mac, impairment: Option<Impairment>) -> Port {
        let region = Region::private(RegionConfig::ports(1, 1, 256)).unwrap();
        let open = Open::new(name).slots(256).in_region(&region).offloads(self.offloads);
        let port = open.inline().unwrap();
        let policy = Policy {
            macs: vec![mac],
            tx_impairment: impairment,
            mtu: self.mtu,
            ..Policy::default()
        };
        self.switch.add_rings(name, policy, &port.rings()).unwrap();
        port
    }

    /// Makes a host with a fixed secret, so that runs are reproducible.
    pub fn host(&mut self, address: Ipv4Addr, impairment: Option<Impairment>) -> Stack<RingNic> {
        let mut config = Config::new(Mac::local(address.to_bits()), address, 24);
        config.v6 = self.ipv6.then(|| guest::Ipv6Config {
            address: Some((v6(address), 64)),
            probes: 0,
            ..guest::Ipv6Config::default()
        });
        self.host_with(config, impairment)
    }

    /// Makes a host with these settings.
    pub fn host_with(
        &mut self,
        mut config: Config,
        impairment: Option<Impairment>,
    ) -> Stack<RingNic> {
        let name = format!("{}", config.mac);
        let port = self.plug(&name, config.mac, impairment);
        config.secret = tcp::Secret([7, config.mac.word()]);
        config.tcp.mtu = self.mtu;
        #[allow(unsafe_code, reason = "the switch runs in this thread")]
        let nic = match self.in_place {
            // SAFETY: the region is private and its port's own; the switch writes to it in `turn`
            // only, which runs between the stacks' turns.
            true => unsafe { RingNic::in_place(port) },
            false => RingNic::new(port),
        };
        Stack::new(nic, &config)
    }

    /// Lets the switch forward the frames that were sent.
    pub fn turn(&mut self) {
        self.now = self.now + 10 * Nanos::MICRO;
        self.switch.turn(port::Nanos(self.now.0));
    }
}
