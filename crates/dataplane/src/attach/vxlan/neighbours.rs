//! ARP and neighbour discovery at a tunnel whose stations a routing protocol names: which IP
//! addresses local stations have, and answers on behalf of stations of other hosts.

use std::collections::HashMap;
use std::net::IpAddr;

use frame::Mac;

/// The maximum number of IP addresses of local stations.
const MAX_CLAIMS: usize = 8192;
/// The maximum number of IP addresses of one station.
const MAX_OF_ONE: u8 = 16;
/// The maximum number of claims that wait for the supervisor.
const MAX_NEWS: usize = 512;
/// The maximum number of addresses of other hosts' stations.
const MAX_OWNERS: usize = 262_144;

/// The known IP addresses: of local stations, and of stations at other hosts.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    /// The local station that claims each address.
    claims: HashMap<IpAddr, Mac>,
    counts: HashMap<Mac, u8>,
    /// Claims that the supervisor does not know yet.
    news: Vec<(Mac, IpAddr)>,
    /// The station of each address at other hosts.
    owners: HashMap<IpAddr, Mac>,
}

impl Neighbours {
    /// Notes that a station here has an address. Claims beyond the limits are not noted: requests
    /// for them are flooded.
    pub fn note(&mut self, mac: Mac, ip: IpAddr) {
        if self.claims.get(&ip) == Some(&mac) || self.news.len() >= MAX_NEWS {
            return;
        }
        let count = self.counts.get(&mac).copied().unwrap_or(0);
        if count >= MAX_OF_ONE || self.claims.len() >= MAX_CLAIMS {
            return;
        }
        self.counts.insert(mac, count + 1);
        if let Some(earlier) = self.claims.insert(ip, mac)
            && let Some(count) = self.counts.get_mut(&earlier)
        {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.counts.remove(&earlier);
            }
        }
        self.news.push((mac, ip));
    }

    /// Takes what the supervisor does not know yet.
    pub fn take(&mut self) -> Vec<(Mac, IpAddr)> {
        std::mem::take(&mut self.news)
    }

    /// Forgets all claims, so that each is reported again when it is next heard.
    pub fn forget(&mut self) {
        (self.claims, self.counts, self.news) = Default::default();
    }

    /// Sets the station of an address at another host; `None` if none has it.
    pub fn set_owner(&mut self, ip: IpAddr, owner: Option<Mac>) {
        match owner {
            Some(mac) if self.owners.len() < MAX_OWNERS || self.owners.contains_key(&ip) => {
                self.owners.insert(ip, mac);
            }
            Some(_) => {}
            None => drop(self.owners.remove(&ip)),
        }
    }

    /// The station of an address at another host.
    pub fn owner(&self, ip: IpAddr) -> Option<Mac> {
        self.owners.get(&ip).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(n: u32) -> IpAddr {
        n.to_be_bytes().into()
    }

    #[test]
    fn claims_are_told_once_and_again_when_they_move() {
        let mut all = Neighbours::default();
        let (a, b) = (Mac::local(1), Mac::local(2));
        (0..3).for_each(|_| all.note(a, ip(1)));
        assert_eq!(all.take(), [(a, ip(1))]);
        all.note(b, ip(1));
        all.note(b, ip(1));
        assert_eq!(all.take(), [(b, ip(1))]);
        assert!(!all.counts.contains_key(&a));
        all.forget();
        all.note(b, ip(1));
        assert_eq!(all.take(), [(b, ip(1))]);
    }

    #[test]
    fn a_station_that_claims_all_addresses_gets_few() {
        let mut all = Neighbours::default();
        (0..1000).for_each(|n| all.note(Mac::local(1), ip(n)));
        assert_eq!(all.take().len(), usize::from(MAX_OF_ONE));
        for n in 0..20_000 {
            all.note(Mac::local(n), ip(100_000 + n));
            if n % 100 == 0 {
                all.take();
            }
        }
        assert_eq!(all.claims.len(), MAX_CLAIMS);
    }

    #[test]
    fn owners_come_and_go() {
        let mut all = Neighbours::default();
        all.set_owner(ip(1), Some(Mac::local(1)));
        all.set_owner(ip(1), Some(Mac::local(2)));
        assert_eq!(all.owner(ip(1)), Some(Mac::local(2)));
        all.set_owner(ip(1), None);
        assert_eq!(all.owner(ip(1)), None);
    }
}
