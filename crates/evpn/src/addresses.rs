//! The IP addresses of a segment's stations: of those here, as they claim them, and of those behind
//! other hosts, as routes say.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use frame::Mac;

#[derive(Debug, Default)]
pub(crate) struct Addresses {
    local: HashMap<IpAddr, Mac>,
    by_station: HashMap<Mac, BTreeSet<IpAddr>>,
    /// The stations that routes name for an address, each once for each route.
    remote: HashMap<IpAddr, Vec<Mac>>,
    /// The station of each address, as the tunnel knows it.
    told: HashMap<IpAddr, Mac>,
    /// Addresses whose station may have changed since the last report to the tunnel.
    changed: BTreeSet<IpAddr>,
}

impl Addresses {
    /// Notes that a station here has an address. Returns the station that had it before.
    pub fn claim(&mut self, mac: Mac, ip: IpAddr) -> Option<Mac> {
        let earlier = self.local.insert(ip, mac).filter(|earlier| *earlier != mac);
        if let Some(ips) = earlier.and_then(|earlier| self.by_station.get_mut(&earlier)) {
            ips.remove(&ip);
        }
        self.by_station.entry(mac).or_default().insert(ip);
        earlier
    }

    /// The addresses of a station here.
    pub fn of(&self, mac: Mac) -> impl Iterator<Item = IpAddr> + '_ {
        self.by_station.get(&mac).into_iter().flatten().copied()
    }

    /// True if a station here has this address.
    pub fn has(&self, mac: Mac, ip: IpAddr) -> bool {
        self.local.get(&ip) == Some(&mac)
    }

    /// Adds a route of a station behind another host.
    pub fn add_remote(&mut self, ip: Option<IpAddr>, mac: Mac) {
        let Some(ip) = ip else { return };
        self.remote.entry(ip).or_default().push(mac);
        self.changed.insert(ip);
    }

    /// Removes a route of a station behind another host.
    pub fn remove_remote(&mut self, ip: Option<IpAddr>, mac: Mac) {
        let Some(ip) = ip else { return };
        if let Some(stations) = self.remote.get_mut(&ip) {
            if let Some(at) = stations.iter().position(|station| *station == mac) {
                stations.remove(at);
            }
            if stations.is_empty() {
                self.remote.remove(&ip);
            }
        }
        self.changed.insert(ip);
    }

    /// Takes changes for the tunnel, at most this many. Of several stations with one address the
    /// lowest is named, whatever the order of their routes.
    pub fn take(&mut self, most: usize) -> Option<Vec<(IpAddr, Option<Mac>)>> {
        let mut changes = Vec::new();
        while changes.len() < most
            && let Some(ip) = self.changed.pop_first()
        {
            let stations = self.remote.get(&ip).into_iter().flatten();
            let owner = stations.copied().min();
            let known = match owner {
                Some(mac) => self.told.insert(ip, mac),
                None => self.told.remove(&ip),
            };
            if known != owner {
                changes.push((ip, owner));
            }
        }
        (!changes.is_empty()).then_some(changes)
    }
}
