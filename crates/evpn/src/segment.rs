//! A segment: which stations are here, which are behind which host, and which of several claims
//! holds.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;

use frame::Mac;

use crate::addresses::Addresses;
use crate::hosts::Hosts;
pub use crate::hosts::MAX_HOSTS;
use crate::path::Update;
use crate::route::{Distinguisher, Key, Mobility, OwnRoute, RouteTarget};
use crate::told::{Notice, Routes, Told};

/// More moves of a station than this within [`WINDOW_MS`] are a duplicate (RFC 7432, 15.1).
pub const MAX_MOVES: u32 = 5;
/// The window in which moves are counted. A duplicate stays where it is for as long.
pub const WINDOW_MS: u64 = 180_000;
/// The maximum number of stations in a [`TableChange`].
const STATIONS: usize = 512;

/// The settings of a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentConfig {
    /// Its number.
    pub vni: u32,
    /// The segment takes routes with one of these targets.
    pub import: Vec<RouteTarget>,
    /// The host's own routes carry these targets.
    pub export: Vec<RouteTarget>,
    /// The hosts of an earlier run by number, from 1; the unspecified address is a free number.
    pub hosts: Vec<IpAddr>,
    /// The maximum number of hosts; 0 for the largest number.
    pub max_hosts: usize,
    /// The stations that an earlier run has entered into the table.
    pub stations: Vec<Station>,
}

/// A station behind another host, for the forwarding table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Station {
    /// Its address.
    pub mac: Mac,
    /// The number of the station's host; 0 if it is at none.
    pub via: u16,
    /// The station never moves.
    pub sticky: bool,
    /// The station was at this host, and has moved there.
    pub moved: bool,
}

/// A change for the tunnel or the forwarding table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableChange {
    /// The hosts of the tunnel from here on.
    Hosts {
        /// The hosts by number, from 1; the unspecified address is a free number.
        peers: Vec<IpAddr>,
        /// The numbers of the hosts that get floods.
        flooded: Vec<u16>,
    },
    /// Entries of the table.
    Stations(Vec<Station>),
    /// The station behind the tunnel that has an IP address; `None` if none has it any more.
    Owners(Vec<(IpAddr, Option<Mac>)>),
}

/// A station here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Local {
    pub sticky: bool,
    /// The number of moves of the station, as its routes state it.
    pub sequence: u32,
}

/// The moves of a station.
#[derive(Clone, Copy, Debug)]
struct Moves {
    count: u32,
    since: u64,
}

/// A segment.
#[derive(Debug)]
pub(crate) struct Segment {
    pub config: SegmentConfig,
    pub rd: Distinguisher,
    pub local: HashMap<Mac, Local>,
    /// For each station behind another host: its routes.
    pub remote: HashMap<Mac, Vec<Key>>,
    pub hosts: Hosts,
    /// The entries of the table that routes made: the host's number, and whether it is sticky.
    pub table: HashMap<Mac, (u16, bool)>,
    /// Entries of an earlier run that no route has confirmed.
    pub unconfirmed: HashMap<Mac, u16>,
    moves: HashMap<Mac, Moves>,
    /// Duplicates, and until when they stay where they are.
    pub frozen: HashMap<Mac, u64>,
    pending: HashMap<Mac, Station>,
    pub addresses: Addresses,
    /// Stations that have no room: their hosts are too many.
    pub no_number: u64,
    /// Operators were told that it has too many hosts.
    pub is_full: bool,
}

impl Segment {
    pub fn new(mut config: SegmentConfig, rd: Distinguisher) -> Self {
        let hosts = Hosts::known(&std::mem::take(&mut config.hosts), config.max_hosts);
        let stations = std::mem::take(&mut config.stations);
        Self {
            config,
            rd,
            local: HashMap::new(),
            remote: HashMap::new(),
            hosts,
            table: HashMap::new(),
            unconfirmed: stations.into_iter().map(|station| (station.mac, station.via)).collect(),
            moves: HashMap::new(),
            frozen: HashMap::new(),
            pending: HashMap::new(),
            addresses: Addresses::default(),
            no_number: 0,
            is_full: false,
        }
    }

    /// True if a route is for this segment.
    pub fn takes(&self, update: &Update) -> bool {
        let config = &self.config;
        update.vni == config.vni && update.targets.iter().any(|rt| config.import.contains(rt))
    }

    /// Takes a route.
    pub fn import(&mut self, update: &Update) {
        match update.key {
            Key::Mac { mac, ip, .. } => {
                self.remote.entry(mac).or_default().push(update.key);
                self.hosts.count_station(update.vtep, 1);
                self.addresses.add_remote(ip, mac);
            }
            Key::Multicast { .. } => self.hosts.count_flood(update.vtep, 1),
        }
    }

    /// Removes a route.
    pub fn forget(&mut self, update: &Update) {
        match update.key {
            Key::Mac { mac, ip, .. } => {
                self.addresses.remove_remote(ip, mac);
                if let Some(keys) = self.remote.get_mut(&mac) {
                    keys.retain(|key| *key != update.key);
                    if keys.is_empty() {
                        self.remote.remove(&mac);
                    }
                }
                self.hosts.count_station(update.vtep, -1);
            }
            Key::Multicast { .. } => self.hosts.count_flood(update.vtep, -1),
        }
    }

    /// The claim that holds among other hosts': sticky ones first, then the highest sequence, then
    /// the lowest address (RFC 7432, 15.1).
    pub fn best<'r>(&self, mac: Mac, routes: &'r Routes) -> Option<&'r Update> {
        let claims = self.remote.get(&mac)?.iter().filter_map(|key| routes.get(key));
        let rank = |update: &&Update| {
            let Mobility { sticky, sequence } = update.mobility;
            (sticky, sequence, Reverse(update.vtep))
        };
        claims.map(|stored| &stored.update).max_by_key(rank)
    }

    /// The own routes of a station: one without, and one for each of its IP addresses.
    pub fn own(&self, mac: Mac, local: Local, vtep: IpAddr) -> Vec<OwnRoute> {
        let addresses = self.addresses.of(mac).map(Some);
        let ips = std::iter::once(None).chain(addresses);
        ips.map(|ip| self.own_with(mac, ip, local, vtep)).collect()
    }

    /// The own route of a station with one of its addresses, or none.
    fn own_with(&self, mac: Mac, ip: Option<IpAddr>, local: Local, vtep: IpAddr) -> OwnRoute {
        let Local { sticky, sequence } = local;
        let key = Key::Mac { rd: self.rd, tag: 0, mac, ip };
        let (vni, targets) = (self.config.vni, self.config.export.clone());
        OwnRoute { key, vni, vtep, targets, mobility: Mobility { sticky, sequence } }
    }

    /// A station here says that it has an IP address.
    pub fn claims(&mut self, mac: Mac, ip: IpAddr, told: &mut Told) {
        let earlier = self.addresses.claim(mac, ip);
        let route = |segment: &Self, mac: Mac| {
            let local = segment.local.get(&mac)?;
            Some(segment.own_with(mac, Some(ip), *local, told.vtep))
        };
        let (gone, new) = (earlier.and_then(|earlier| route(self, earlier)), route(self, mac));
        gone.into_iter().for_each(|route| told.withdraw(route));
        new.into_iter().for_each(|route| told.advertise(route));
    }

    /// The own route by which this host gets floods.
    pub fn own_flood(&self, vtep: IpAddr) -> OwnRoute {
        let key = Key::Multicast { rd: self.rd, tag: 0, ip: vtep };
        let (vni, targets) = (self.config.vni, self.config.export.clone());
        OwnRoute { key, vni, vtep, targets, mobility: Mobility::default() }
    }

    /// A station came to a local port.
    pub fn came(&mut self, mac: Mac, sticky: bool, now: u64, (routes, told): (&Routes, &mut Told)) {
        let best = self.best(mac, routes).map(|update| update.mobility);
        let theirs = best.is_some_and(|best| best.sticky && !sticky);
        if !self.local.contains_key(&mac) && best.is_some() && !sticky {
            self.note_move(mac, now, told);
        }
        if theirs || self.frozen.contains_key(&mac) && best.is_some() {
            // Another host's claim is better, so the local entry is removed again.
            self.table.remove(&mac);
            return self.place(mac, routes, true);
        }
        let known = self.local.get(&mac).map(|local| local.sequence);
        let sequence =
            known.or_else(|| best.map(|best| best.sequence.saturating_add(1))).unwrap_or(0);
        let local = Local { sticky, sequence };
        let earlier = self.local.insert(mac, local);
        self.table.remove(&mac);
        self.unconfirmed.remove(&mac);
        self.pending.remove(&mac);
        if earlier.is_none_or(|earlier| earlier.sticky != sticky) {
            let routes = self.own(mac, local, told.vtep);
            routes.into_iter().for_each(|route| told.advertise(route));
        }
    }

    /// Notes the mobility with which the daemon advertises a local station. If its sequence is
    /// later than this host's, the station has moved without this host's knowledge, and this host
    /// continues from there. A route that was sent without its count is not sticky either, so it is
    /// sent again with both.
    pub fn counted(&mut self, mac: Mac, said: Mobility, now: u64, about: (&Routes, &mut Told)) {
        let differs =
            |local: &&mut Local| local.sequence < said.sequence || local.sticky && !said.sticky;
        let Some(local) = self.local.get_mut(&mac).filter(differs) else { return };
        local.sequence = local.sequence.max(said.sequence);
        let local = *local;
        let routes = self.own(mac, local, about.1.vtep);
        routes.into_iter().for_each(|route| about.1.advertise(route));
        self.decide(mac, now, about);
    }

    /// A station is at no local port any more.
    pub fn went(&mut self, mac: Mac, (routes, told): (&Routes, &mut Told)) {
        if let Some(local) = self.local.remove(&mac) {
            let own = self.own(mac, local, told.vtep);
            own.into_iter().for_each(|route| told.withdraw(route));
            self.place(mac, routes, false);
        }
    }

    /// Decides where a station is, after other hosts' routes changed.
    pub fn decide(&mut self, mac: Mac, now: u64, (routes, told): (&Routes, &mut Told)) {
        let Some(best) = self.best(mac, routes) else {
            self.frozen.remove(&mac);
            return self.place(mac, routes, false);
        };
        let Some(local) = self.local.get(&mac).copied() else {
            return self.place(mac, routes, false);
        };
        let Mobility { sticky, sequence } = best.mobility;
        if local.sticky {
            return told.say(Notice::Claimed { vni: self.config.vni, mac, by: best.vtep });
        }
        let later =
            sequence > local.sequence || sequence == local.sequence && best.vtep < told.vtep;
        if sticky || later {
            self.local.remove(&mac);
            let own = self.own(mac, local, told.vtep);
            own.into_iter().for_each(|route| told.withdraw(route));
            self.note_move(mac, now, told);
            self.place(mac, routes, true);
        }
    }

    /// Has the table place a station where its best claim says.
    fn place(&mut self, mac: Mac, routes: &Routes, moved: bool) {
        let frozen = self.frozen.contains_key(&mac);
        let Some(best) = self.best(mac, routes) else {
            let known = self.table.remove(&mac).is_some() | self.unconfirmed.remove(&mac).is_some();
            if known && !self.local.contains_key(&mac) {
                let gone = Station { mac, via: 0, sticky: false, moved: false };
                self.pending.insert(mac, gone);
            }
            return;
        };
        let Some(via) = self.hosts.number(best.vtep) else {
            self.no_number += 1;
            return;
        };
        let entry = (via, best.mobility.sticky || frozen);
        let is_known = self.table.insert(mac, entry) == Some(entry);
        if !is_known || self.unconfirmed.remove(&mac).is_some() {
            let moved = moved || self.pending.get(&mac).is_some_and(|earlier| earlier.moved);
            let sticky = entry.1;
            self.pending.insert(mac, Station { mac, via, sticky, moved });
        }
    }

    fn note_move(&mut self, mac: Mac, now: u64, told: &mut Told) {
        let vni = self.config.vni;
        if self.frozen.contains_key(&mac) {
            return;
        }
        let moves = self.moves.entry(mac).or_insert(Moves { count: 0, since: now });
        if now.saturating_sub(moves.since) >= WINDOW_MS {
            *moves = Moves { count: 0, since: now };
        }
        moves.count += 1;
        told.count_move();
        if moves.count > MAX_MOVES {
            self.frozen.insert(mac, now + WINDOW_MS);
            told.say(Notice::Duplicate { vni, mac });
        }
    }

    /// Lets duplicates move again whose time is over, and forgets old moves.
    pub fn thaw(&mut self, now: u64, routes: &Routes) {
        self.moves.retain(|_, moves| now.saturating_sub(moves.since) < WINDOW_MS);
        let over = self.frozen.iter().filter(|(_, until)| now >= **until);
        let over: Vec<Mac> = over.map(|(mac, _)| *mac).collect();
        over.into_iter().for_each(|mac| self.release(mac, routes));
    }

    /// Lets a duplicate move again.
    pub fn release(&mut self, mac: Mac, routes: &Routes) {
        self.moves.remove(&mac);
        if self.frozen.remove(&mac).is_some() && !self.local.contains_key(&mac) {
            self.place(mac, routes, false);
        }
    }

    /// Gives up the entries of an earlier run that no route has confirmed.
    pub fn sweep(&mut self, routes: &Routes) {
        let left: Vec<Mac> = self.unconfirmed.keys().copied().collect();
        left.into_iter().for_each(|mac| self.place(mac, routes, false));
    }

    /// How often a station has moved lately.
    pub fn moves_of(&self, mac: Mac) -> u32 {
        self.moves.get(&mac).map_or(0, |moves| moves.count)
    }

    /// The next change for the tunnel or the table. New hosts come before stations behind them, and
    /// numbers are freed after the stations behind them went.
    pub fn next_change(&mut self) -> Option<TableChange> {
        if self.pending.is_empty() {
            let unconfirmed = &self.unconfirmed;
            self.hosts.free(|number| unconfirmed.values().any(|via| *via == number));
        }
        if let Some((peers, flooded)) = self.hosts.take() {
            return Some(TableChange::Hosts { peers, flooded });
        }
        let next: Vec<Mac> = self.pending.keys().take(STATIONS).copied().collect();
        let stations: Vec<_> = next.iter().filter_map(|mac| self.pending.remove(mac)).collect();
        if !stations.is_empty() {
            return Some(TableChange::Stations(stations));
        }
        self.addresses.take(STATIONS).map(TableChange::Owners)
    }
}
