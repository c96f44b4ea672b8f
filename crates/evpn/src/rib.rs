//! All routes: those of this host's stations, those of other hosts, and what follows from them.
//!
//! No I/O and no clock: events and milliseconds in; routes to advertise, changes of tables and
//! notices out.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};

use frame::Mac;

use crate::path::{Event, Unusable, Update};
use crate::route::{Key, Mobility, OwnRoute, distinguisher};
use crate::segment::{Segment, SegmentConfig, TableChange, WINDOW_MS};
pub use crate::told::{Counters, Notice};
use crate::told::{Routes, Stored, Told};

/// The most hosts whose routes are counted; routes of further hosts are ignored.
const HOSTS: usize = 16_384;

/// The limits for what other hosts may use of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of stations of a host. Routes of more are ignored until it has fewer.
    pub per_host: u32,
    /// The maximum number of routes of all hosts together.
    pub routes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { per_host: 131_072, routes: 262_144 }
    }
}

/// The routes of a host, whatever they are for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Share {
    stations: u32,
    /// Routes beyond the host's limit that were ignored, since the host is known.
    pub ignored: u64,
    /// Some routes were ignored that the daemon was not asked for again.
    has_more: bool,
    /// The segment of the route that changed last.
    pub vni: u32,
    /// Routes that the host has withdrawn or changed since `since`.
    withdrawn: u32,
    since: u64,
    /// The host has withdrawn too many routes: until then no new ones are taken from it.
    pub damped: Option<u64>,
}

impl Share {
    /// True if nothing about the host has to be remembered.
    fn is_idle(&self, now: u64) -> bool {
        let is_quiet = now.saturating_sub(self.since) >= WINDOW_MS;
        (self.stations, self.has_more, self.damped) == (0, false, None) && is_quiet
    }
}

/// All routes.
#[derive(Debug)]
pub struct Rib {
    router: Ipv4Addr,
    limits: Limits,
    pub(crate) routes: Routes,
    pub(crate) shares: HashMap<IpAddr, Share>,
    pub(crate) segments: BTreeMap<u32, Segment>,
    told: Told,
    /// There is room again for routes that were ignored.
    refresh: bool,
    /// When the ignored routes were last requested.
    refreshed: u64,
    /// When a stale route was last confirmed.
    confirmed: u64,
}

impl Rib {
    /// No routes, for the host `vtep` whose router id is `router`.
    #[must_use]
    pub fn new(router: Ipv4Addr, vtep: IpAddr, limits: Limits) -> Self {
        let counters = Counters::default();
        let told = Told { vtep, routes: HashMap::new(), notices: Vec::new(), counters };
        let (routes, shares, segments) = (HashMap::new(), HashMap::new(), BTreeMap::new());
        let (refresh, refreshed, confirmed) = (false, 0, 0);
        Self { router, limits, routes, shares, segments, told, refresh, refreshed, confirmed }
    }

    /// This host.
    #[must_use]
    pub const fn vtep(&self) -> IpAddr {
        self.told.vtep
    }

    /// The counts so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut counters = self.told.counters;
        counters.no_number += self.segments.values().map(|segment| segment.no_number).sum::<u64>();
        counters
    }

    /// Adds a segment, or changes its route targets.
    pub fn add_segment(&mut self, config: SegmentConfig, now: u64) {
        let vni = config.vni;
        if let Some(there) = self.segments.get(&vni) {
            let same = (&there.config.import, &there.config.export);
            if same == (&config.import, &config.export) {
                return;
            }
            self.remove_segment(vni);
        }
        let taken = |number: u16| {
            let rd = distinguisher(self.router, number);
            self.segments.values().any(|segment| segment.rd == rd)
        };
        let wanted = vni as u16;
        let number = (0..=u16::MAX).map(|n| wanted.wrapping_add(n)).find(|n| !taken(*n));
        let rd = distinguisher(self.router, number.unwrap_or(wanted));
        let mut segment = Segment::new(config, rd);
        let mut macs = HashSet::new();
        for Stored { update, .. } in self.routes.values() {
            if segment.takes(update) {
                segment.import(update);
                macs.extend(mac_of(&update.key));
            }
        }
        self.told.advertise(segment.own_flood(self.told.vtep));
        for mac in macs {
            segment.decide(mac, now, (&self.routes, &mut self.told));
        }
        self.segments.insert(vni, segment);
    }

    /// Removes a segment with its routes.
    pub fn remove_segment(&mut self, vni: u32) {
        let Some(segment) = self.segments.remove(&vni) else { return };
        self.told.counters.no_number += segment.no_number;
        let vtep = self.told.vtep;
        for (mac, local) in &segment.local {
            let routes = segment.own(*mac, *local, vtep);
            routes.into_iter().for_each(|route| self.told.withdraw(route));
        }
        self.told.withdraw(segment.own_flood(vtep));
    }

    /// A station came to a local port; a sticky one never moves.
    pub fn came(&mut self, vni: u32, mac: Mac, sticky: bool, now: u64) {
        if let Some(segment) = self.segments.get_mut(&vni)
            && !mac.is_group()
            && mac.word() != 0
        {
            segment.came(mac, sticky, now, (&self.routes, &mut self.told));
        }
    }

    /// A station is at no local port any more.
    pub fn went(&mut self, vni: u32, mac: Mac) {
        if let Some(segment) = self.segments.get_mut(&vni) {
            segment.went(mac, (&self.routes, &mut self.told));
        }
    }

    /// A station at a local port says that it has an IP address.
    pub fn claims(&mut self, vni: u32, mac: Mac, ip: IpAddr) {
        if let Some(segment) = self.segments.get_mut(&vni) {
            segment.claims(mac, ip, &mut self.told);
        }
    }

    /// Sets all stations at local ports, for a reader that has lost events.
    pub fn set_local(&mut self, vni: u32, stations: &HashMap<Mac, bool>, now: u64) {
        let Some(segment) = self.segments.get(&vni) else { return };
        let gone = segment.local.keys().filter(|mac| !stations.contains_key(mac));
        let gone: Vec<Mac> = gone.copied().collect();
        gone.into_iter().for_each(|mac| self.went(vni, mac));
        stations.iter().for_each(|(mac, sticky)| self.came(vni, *mac, *sticky, now));
    }

    /// Takes the route in an event, or withdraws it.
    pub fn take(&mut self, event: Result<Event, Unusable>, now: u64) {
        match event {
            Ok(Event::Update(update)) => self.update(update, now),
            Ok(Event::Withdraw(key)) => self.withdraw(&key, now),
            Ok(Event::Own(key, mobility)) => self.compare(key, mobility, now),
            Err(Unusable::Malformed) => self.told.counters.malformed += 1,
            Err(Unusable::OtherTunnel) => self.told.counters.other_tunnel += 1,
            Err(Unusable::OtherType) => {}
        }
    }

    fn update(&mut self, update: Update, now: u64) {
        if !self.is_host(update.vtep) {
            self.told.counters.bad_host += 1;
            return self.drop_route(&update.key, now);
        }
        let known = self.routes.get_mut(&update.key);
        if let Some(known) = known {
            if known.update == update {
                if std::mem::take(&mut known.stale) {
                    self.confirmed = now;
                }
                return;
            }
            // A changed route costs as much work as a withdrawn one, so it counts.
            if let Some(host) = self.forget(&update.key) {
                self.note_change(host, now);
                if host != update.vtep && !self.has_room(&update, now) {
                    return self.decide(update.key, now);
                }
            }
        } else if !self.has_room(&update, now) {
            return;
        }
        self.told.counters.updates += 1;
        let key = update.key;
        if let Key::Mac { .. } = key {
            self.shares.entry(update.vtep).or_default().stations += 1;
        }
        for segment in self.segments.values_mut().filter(|segment| segment.takes(&update)) {
            segment.import(&update);
        }
        self.routes.insert(key, Stored { update, stale: false });
        self.decide(key, now);
    }

    /// True for an address that can be another host's.
    fn is_host(&self, ip: IpAddr) -> bool {
        let own = self.told.vtep;
        let is_nobody = ip.is_unspecified() || ip.is_multicast() || ip.is_loopback();
        ip != own && ip.is_ipv4() == own.is_ipv4() && !is_nobody
    }

    /// True if the limits allow one more route.
    fn has_room(&mut self, update: &Update, now: u64) -> bool {
        if self.shares.len() >= HOSTS && !self.shares.contains_key(&update.vtep) {
            self.told.counters.over_limit += 1;
            return false;
        }
        let share = self.shares.entry(update.vtep).or_default();
        let is_damped = share.damped.is_some_and(|until| now < until);
        let too_many = share.stations >= self.limits.per_host && mac_of(&update.key).is_some();
        if !is_damped && !too_many && self.routes.len() < self.limits.routes {
            return true;
        }
        let first = !std::mem::replace(&mut share.has_more, true) && !is_damped;
        share.ignored += 1;
        share.vni = update.vni;
        let counters = &mut self.told.counters;
        *(if is_damped { &mut counters.damped } else { &mut counters.over_limit }) += 1;
        if first {
            self.told.say(Notice::TooMany { host: update.vtep });
        }
        false
    }

    fn withdraw(&mut self, key: &Key, now: u64) {
        if let Some(host) = self.forget(key) {
            self.told.counters.withdrawals += 1;
            self.note_change(host, now);
            self.decide(*key, now);
        }
    }

    /// Removes a route that its host did not withdraw.
    fn drop_route(&mut self, key: &Key, now: u64) {
        if self.forget(key).is_some() {
            self.decide(*key, now);
        }
    }

    /// Damps a host that withdraws or changes twice as many routes within a window as it may have:
    /// such routes only cost work.
    fn note_change(&mut self, host: IpAddr, now: u64) {
        let most = self.limits.per_host.saturating_mul(2);
        let Some(share) = self.shares.get_mut(&host) else { return };
        if now.saturating_sub(share.since) >= WINDOW_MS {
            (share.since, share.withdrawn) = (now, 0);
        }
        share.withdrawn = share.withdrawn.saturating_add(1);
        if share.withdrawn > most && share.damped.is_none() {
            share.damped = Some(now + WINDOW_MS);
            self.told.say(Notice::Damped { host });
        }
    }

    /// Removes a route, and returns its host; `None` if it was not there.
    fn forget(&mut self, key: &Key) -> Option<IpAddr> {
        let Stored { update, .. } = self.routes.remove(key)?;
        if let Some(share) = self.shares.get_mut(&update.vtep) {
            share.vni = update.vni;
            share.stations -= u32::from(mac_of(key).is_some()).min(share.stations);
        }
        for segment in self.segments.values_mut().filter(|segment| segment.takes(&update)) {
            segment.forget(&update);
        }
        Some(update.vtep)
    }

    fn decide(&mut self, key: Key, now: u64) {
        let Some(mac) = mac_of(&key) else { return };
        for segment in self.segments.values_mut() {
            segment.decide(mac, now, (&self.routes, &mut self.told));
        }
    }

    /// Compares a route of this host in the daemon's table with what this host knows. A route from
    /// an earlier run that no longer holds is withdrawn.
    fn compare(&mut self, key: Key, mobility: Mobility, now: u64) {
        let [_, _, a, b, c, d, ..] = key.rd();
        if Ipv4Addr::new(a, b, c, d) != self.router || key.rd()[1] != 1 {
            return;
        }
        let mut segment = self.segments.values_mut().find(|segment| segment.rd == key.rd());
        let is_own = segment.as_ref().is_some_and(|segment| match key {
            Key::Mac { mac, ip, .. } => {
                let has = ip.is_none_or(|ip| segment.addresses.has(mac, ip));
                has && segment.local.contains_key(&mac)
            }
            Key::Multicast { ip, .. } => ip == self.told.vtep,
        });
        if is_own {
            if let (Some(mac), Some(segment)) = (mac_of(&key), &mut segment) {
                segment.counted(mac, mobility, now, (&self.routes, &mut self.told));
            }
        } else {
            let (vni, vtep) = (segment.map_or(0, |segment| segment.config.vni), self.told.vtep);
            let (targets, mobility) = (Vec::new(), Mobility::default());
            self.told.withdraw(OwnRoute { key, vni, vtep, targets, mobility });
        }
    }

    /// All routes of this host, for a daemon that has none yet.
    #[must_use]
    pub fn own_routes(&self) -> Vec<OwnRoute> {
        let vtep = self.told.vtep;
        let of = |segment: &Segment| {
            let stations = segment.local.iter();
            let routes = stations.flat_map(|(mac, local)| segment.own(*mac, *local, vtep));
            routes.chain([segment.own_flood(vtep)]).collect::<Vec<_>>()
        };
        self.segments.values().flat_map(of).collect()
    }

    /// Takes the own routes that changed, and whether each is withdrawn.
    pub fn take_changed(&mut self) -> Vec<(OwnRoute, bool)> {
        std::mem::take(&mut self.told.routes).into_values().collect()
    }

    /// The next change of a segment's tunnel or table.
    pub fn next_change(&mut self) -> Option<(u32, TableChange)> {
        let next = |(vni, segment): (&u32, &mut Segment)| Some((*vni, segment.next_change()?));
        self.segments.iter_mut().find_map(next)
    }

    /// Takes the notices for the operator.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.told.notices)
    }

    /// Notes that the daemon is lost: its routes hold until they are confirmed or
    /// [swept](Self::sweep).
    pub fn lost_daemon(&mut self) {
        self.doubt();
        // A new daemon gets all routes anyway, so pending changes are dropped.
        self.told.routes.clear();
    }

    /// Marks all routes as stale, before the daemon is asked for all of them. They hold until they
    /// are confirmed or [swept](Self::sweep).
    pub fn doubt(&mut self) {
        self.routes.values_mut().for_each(|stored| stored.stale = true);
    }

    /// True, once, if routes that were ignored could be taken now: the daemon is to be asked for
    /// all.
    pub fn take_refresh(&mut self) -> bool {
        std::mem::take(&mut self.refresh)
    }

    /// When a doubtful route was last confirmed, in milliseconds.
    #[must_use]
    pub const fn confirmed(&self) -> u64 {
        self.confirmed
    }

    /// Gives up routes and entries that were not confirmed since the daemon was lost.
    pub fn sweep(&mut self, now: u64) {
        let stale = self.routes.iter().filter(|(_, stored)| stored.stale);
        let stale: Vec<Key> = stale.map(|(key, _)| *key).collect();
        stale.iter().for_each(|key| self.drop_route(key, now));
        self.segments.values_mut().for_each(|segment| segment.sweep(&self.routes));
    }

    /// The number of routes that were not confirmed.
    #[must_use]
    pub fn stale(&self) -> usize {
        self.routes.values().filter(|stored| stored.stale).count()
    }

    /// Lets duplicates move again whose time is over, and takes routes of damped hosts.
    pub fn tick(&mut self, now: u64) {
        self.undamp(now);
        for (vni, segment) in &mut self.segments {
            if segment.no_number > 0 && !std::mem::replace(&mut segment.is_full, true) {
                self.told.say(Notice::TooManyHosts { vni: *vni });
            }
        }
        self.segments.values_mut().for_each(|segment| segment.thaw(now, &self.routes));
    }

    /// Ends damping whose time is over. Routes that were ignored are wanted again if a quarter of
    /// the limits is free, of their host's and of all; at most once in a while, whatever hosts do.
    fn undamp(&mut self, now: u64) {
        let enough = self.limits.per_host - self.limits.per_host / 4;
        let has_room_at_all = self.routes.len() <= self.limits.routes - self.limits.routes / 4;
        let may_ask = has_room_at_all && now.saturating_sub(self.refreshed) >= WINDOW_MS;
        for share in self.shares.values_mut() {
            if share.damped.is_some_and(|until| now >= until) {
                (share.damped, share.withdrawn, share.since) = (None, 0, now);
            }
            let has_room = share.damped.is_none() && share.stations <= enough;
            if may_ask && share.has_more && has_room {
                share.has_more = false;
                (self.refresh, self.refreshed) = (true, now);
            }
        }
        self.shares.retain(|_, share| !share.is_idle(now));
    }

    /// Lets a duplicate move again. Returns false if it is none.
    pub fn release(&mut self, vni: u32, mac: Mac) -> bool {
        let Some(segment) = self.segments.get_mut(&vni) else { return false };
        let is_frozen = segment.frozen.contains_key(&mac);
        segment.release(mac, &self.routes);
        is_frozen
    }
}

/// The station that a route is about.
pub(crate) fn mac_of(key: &Key) -> Option<Mac> {
    match key {
        Key::Mac { mac, .. } => Some(*mac),
        Key::Multicast { .. } => None,
    }
}
