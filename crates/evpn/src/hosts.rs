//! The hosts of a segment (VTEPs), numbered from 1, as the tunnel and the forwarding table know
//! them. A host keeps its number while it has stations or wants floods.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};

/// The maximum number of hosts of a segment, unless fewer are allowed.
pub const MAX_HOSTS: usize = 1024;
/// The address that marks a free number in lists.
const VACANT: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

#[derive(Clone, Copy, Debug)]
struct Host {
    address: IpAddr,
    /// How many routes name stations behind this host.
    stations: u32,
    /// How many routes say that this host wants floods.
    floods: u32,
}

#[derive(Debug)]
pub(crate) struct Hosts {
    /// The maximum number of hosts.
    most: usize,
    by_number: Vec<Option<Host>>,
    numbers: HashMap<IpAddr, u16>,
    /// The list has changed since it was last taken.
    is_new: bool,
}

impl Default for Hosts {
    fn default() -> Self {
        Self { most: MAX_HOSTS, by_number: Vec::new(), numbers: HashMap::new(), is_new: false }
    }
}

impl Hosts {
    /// Hosts that an earlier run has numbered; at most `most` of them, or [`MAX_HOSTS`] if that is
    /// 0.
    pub fn known(list: &[IpAddr], most: usize) -> Self {
        let most = if most == 0 { MAX_HOSTS } else { most.min(MAX_HOSTS) };
        let mut hosts = Self { most, ..Self::default() };
        for (address, number) in list.iter().zip(1..).take(most) {
            let is_there = !address.is_unspecified();
            let host = Host { address: *address, stations: 0, floods: 0 };
            hosts.by_number.push(is_there.then_some(host));
            if is_there {
                hosts.numbers.insert(*address, number);
            }
        }
        hosts
    }

    /// The number of a host; a new one if it has none. `None` if all are taken.
    pub fn number(&mut self, address: IpAddr) -> Option<u16> {
        if let Some(number) = self.numbers.get(&address) {
            return Some(*number);
        }
        let free = self.by_number.iter().position(Option::is_none);
        let at = free.unwrap_or(self.by_number.len());
        if at >= self.most {
            return None;
        }
        if at == self.by_number.len() {
            self.by_number.push(None);
        }
        self.by_number[at] = Some(Host { address, stations: 0, floods: 0 });
        let number = at as u16 + 1;
        self.numbers.insert(address, number);
        self.is_new = true;
        Some(number)
    }

    fn host(&mut self, address: IpAddr) -> Option<&mut Host> {
        let number = self.number(address)?;
        self.by_number.get_mut(usize::from(number) - 1)?.as_mut()
    }

    /// Counts a route of a station.
    pub fn count_station(&mut self, address: IpAddr, by: i32) {
        if let Some(host) = self.host(address) {
            host.stations = host.stations.saturating_add_signed(by);
        }
    }

    /// Counts a route by which a host wants floods.
    pub fn count_flood(&mut self, address: IpAddr, by: i32) {
        let Some(host) = self.host(address) else { return };
        let before = host.floods > 0;
        host.floods = host.floods.saturating_add_signed(by);
        self.is_new |= before != (host.floods > 0);
    }

    /// Returns the list if it has changed since the last call.
    pub fn take(&mut self) -> Option<(Vec<IpAddr>, Vec<u16>)> {
        std::mem::take(&mut self.is_new).then(|| self.list())
    }

    /// Frees the numbers of hosts without routes, except those that `is_held` names. Returns true
    /// if there were any.
    pub fn free(&mut self, is_held: impl Fn(u16) -> bool) -> bool {
        let mut any = false;
        for (place, number) in self.by_number.iter_mut().zip(1..) {
            let idle = place.filter(|host| host.stations == 0 && host.floods == 0);
            if let Some(host) = idle.filter(|_| !is_held(number)) {
                self.numbers.remove(&host.address);
                *place = None;
                any = true;
            }
        }
        while self.by_number.last().is_some_and(Option::is_none) {
            self.by_number.pop();
        }
        self.is_new |= any;
        any
    }

    /// The addresses by number, and the numbers of the hosts that get floods.
    pub fn list(&self) -> (Vec<IpAddr>, Vec<u16>) {
        let address = |place: &Option<Host>| place.map_or(VACANT, |host| host.address);
        let floods = self
            .by_number
            .iter()
            .zip(1..)
            .filter(|(place, _)| place.is_some_and(|host| host.floods > 0));
        (self.by_number.iter().map(address).collect(), floods.map(|(_, number)| number).collect())
    }

    /// Each host with its number, its stations and whether it gets floods.
    pub fn each(&self) -> impl Iterator<Item = (u16, IpAddr, u32, bool)> + '_ {
        let host = |(place, number): (&Option<Host>, u16)| {
            place.map(|host| (number, host.address, host.stations, host.floods > 0))
        };
        self.by_number.iter().zip(1..).filter_map(host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(n: u8) -> IpAddr {
        [10, 0, 0, n].into()
    }

    #[test]
    fn a_host_keeps_its_number_while_it_has_routes_and_others_get_free_ones() {
        let mut hosts = Hosts::known(&[ip(1), VACANT, ip(3)], 0);
        assert_eq!(hosts.take(), None, "as the earlier run left it");
        hosts.count_station(ip(3), 1);
        hosts.count_flood(ip(2), 1);
        assert_eq!(hosts.take(), Some((vec![ip(1), ip(2), ip(3)], vec![2])));
        assert!(hosts.free(|number| number == 9));
        assert_eq!(hosts.take(), Some((vec![VACANT, ip(2), ip(3)], vec![2])));
        hosts.count_station(ip(3), -1);
        assert!(!hosts.free(|number| number == 3), "an entry of the table is behind it");
        assert!(hosts.free(|_| false));
        assert_eq!(hosts.list(), (vec![VACANT, ip(2)], vec![2]));
        assert_eq!(hosts.number(ip(7)), Some(1));
    }

    #[test]
    fn there_are_no_more_hosts_than_numbers() {
        let mut hosts = Hosts::default();
        let address = |n: usize| IpAddr::from([10, 1, (n / 256) as u8, (n % 256) as u8]);
        let all = (0..MAX_HOSTS).all(|n| hosts.number(address(n)).is_some());
        assert!(all && hosts.number(address(MAX_HOSTS)).is_none());
    }
}
