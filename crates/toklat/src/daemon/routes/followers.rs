//! Follows the journals of forwarding tables, and tells the speaker which stations are here.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use evpn::route::RouteTarget;
use evpn::segment::{SegmentConfig, Station};
use evpn::speaker::Order;
use fabric::{Change, Origin};
use frame::Mac;
use port::Nanos;
use tokio::sync::mpsc::Sender;
use topology::Evpn;

use super::super::supervisor::{Supervisor, monotonic_ns};
use super::super::switch::Segment;

/// Pause between two looks at the journals.
const PAUSE: Duration = Duration::from_millis(10);
/// How often the tunnels are listed, at least.
const LIST: Duration = Duration::from_millis(500);

/// The record of a segment whose stations the speaker is told about.
struct Follower {
    segment: Segment,
    /// The number of the next change to read; `None` if the whole table has to be read.
    next: Option<u64>,
    /// How often the switch's data process was started. A new one may have emptied parts of the
    /// table.
    restarts: u64,
    /// The speaker has no IP addresses yet, so all of them must be reported.
    heard: bool,
}

/// Follows all segments, for ever.
pub(super) async fn follow(supervisor: Arc<Supervisor>, settings: Evpn, orders: Sender<Order>) {
    let mut followers = BTreeMap::new();
    let (mut listed, mut ready) = (None::<Instant>, false);
    loop {
        if listed.is_none_or(|at| at.elapsed() >= LIST) {
            if !list(&supervisor, &settings, &mut followers, &orders).await {
                return;
            }
            listed = Some(Instant::now());
        }
        let mut all = true;
        for (vni, follower) in &mut followers {
            all &= follower.look(*vni, &orders);
        }
        if !ready && all {
            ready = true;
            if orders.send(Order::Ready).await.is_err() {
                return;
            }
        }
        tokio::time::sleep(if followers.is_empty() { LIST } else { PAUSE }).await;
    }
}

/// Compares the followed segments with the tunnels that exist. Returns false if the speaker is
/// gone.
async fn list(
    supervisor: &Supervisor,
    settings: &Evpn,
    followers: &mut BTreeMap<u32, Follower>,
    orders: &Sender<Order>,
) -> bool {
    let mut found = BTreeMap::new();
    for handle in supervisor.tunnel_handles() {
        found.extend(handle.lock().await.segments());
    }
    let gone: Vec<u32> = followers.keys().filter(|vni| !found.contains_key(vni)).copied().collect();
    for vni in gone {
        followers.remove(&vni);
        if orders.send(Order::NoSegment(vni)).await.is_err() {
            return false;
        }
    }
    for (vni, follower) in followers.iter_mut() {
        if !follower.tell_claims(*vni, supervisor, orders).await {
            return false;
        }
    }
    for (vni, segment) in found {
        let known = followers.get(&vni);
        if known.is_some_and(|known| known.is_of(&segment)) {
            continue;
        }
        // Another state memory has another table, so all stations are reported again.
        let orders_for = known.is_some().then_some(Order::NoSegment(vni));
        let config = config_of(vni, &segment, settings);
        for order in orders_for.into_iter().chain([Order::Segment(config)]) {
            if orders.send(order).await.is_err() {
                return false;
            }
        }
        let restarts = segment.state.switch().restarts.get();
        followers.insert(vni, Follower { segment, next: None, restarts, heard: false });
    }
    true
}

/// The segment, as the speaker gets it.
fn config_of(vni: u32, segment: &Segment, settings: &Evpn) -> SegmentConfig {
    let place = segment.place;
    let targets = |named: &[String]| {
        // The route targets were checked when the port was opened.
        let named: Vec<RouteTarget> = named.iter().filter_map(|rt| rt.parse().ok()).collect();
        if named.is_empty() { vec![RouteTarget::auto(settings.asn, vni)] } else { named }
    };
    let remote = segment.state.fdb(Nanos(monotonic_ns())).into_iter().filter(|entry| {
        let is_remote = matches!(entry.origin, Origin::Remote | Origin::Sticky);
        is_remote && entry.port == segment.port && filter_of(entry.vlan) == segment.filter
    });
    let station = |entry: fabric::FdbEntry| {
        let (via, sticky) = (place.in_segment(entry.via)?, entry.origin == Origin::Sticky);
        Some(Station { mac: entry.mac, via, sticky, moved: false })
    };
    SegmentConfig {
        vni,
        import: targets(&segment.kind.import_rt),
        export: targets(&segment.kind.export_rt),
        hosts: place.hosts(&segment.config.peers),
        max_hosts: place.room(),
        stations: remote.filter_map(station).collect(),
    }
}

fn filter_of(vlan: Option<frame::VlanId>) -> u16 {
    vlan.map_or(0, |vlan| vlan.get())
}

impl Follower {
    /// True if this follower is for the segment with these settings and this state memory.
    fn is_of(&self, other: &Segment) -> bool {
        let own = &self.segment;
        let targets = (&own.kind.import_rt, &own.kind.export_rt);
        std::ptr::eq(&raw const **own.state.journal(), &raw const **other.state.journal())
            && targets == (&other.kind.import_rt, &other.kind.export_rt)
            && (own.tunnel, own.filter, own.place) == (other.tunnel, other.filter, other.place)
    }

    /// Tells the speaker what has changed. Returns false if its queue has no room; the next look
    /// then tries again.
    fn look(&mut self, vni: u32, orders: &Sender<Order>) -> bool {
        let state = &self.segment.state;
        let restarts = state.switch().restarts.get();
        if restarts != self.restarts {
            (self.restarts, self.next) = (restarts, None);
        }
        let mut changes = Vec::new();
        let read = self.next.and_then(|next| state.journal().read(next, &mut changes));
        let (order, next) = match read {
            Some(next) => (self.news(vni, &changes), next),
            None => {
                // The journal's end is read before the table, so that no change is missed.
                let end = state.journal().end();
                (Some(Order::AllLocal(vni, self.all())), end)
            }
        };
        let told = order.is_none_or(|order| orders.try_send(order).is_ok());
        self.next = told.then_some(next);
        told
    }

    /// Tells the speaker which IP addresses stations here have. False if the speaker is gone.
    async fn tell_claims(
        &mut self,
        vni: u32,
        supervisor: &Supervisor,
        orders: &Sender<Order>,
    ) -> bool {
        for handle in supervisor.tunnel_handles() {
            let switch = handle.lock().await;
            if !switch.has_segment(vni) {
                continue;
            }
            let claims = switch.take_claims(vni, !self.heard).await;
            drop(switch);
            self.heard = true;
            return claims.is_empty() || orders.send(Order::Claims(vni, claims)).await.is_ok();
        }
        true
    }

    fn news(&self, vni: u32, changes: &[Change]) -> Option<Order> {
        let here = |change: &Change| {
            let there = change.after.filter(|there| self.is_here(*there));
            let gone = change.before.is_some_and(|there| self.is_here(there));
            let sticky = there.map(|there| there.origin() == Origin::Static);
            (sticky.is_some() || gone).then_some((change.mac, sticky))
        };
        let its = changes.iter().filter(|change| filter_of(change.vlan) == self.segment.filter);
        let news: Vec<_> = its.filter_map(here).collect();
        (!news.is_empty()).then_some(Order::Local(vni, news))
    }

    fn is_here(&self, there: fabric::Station) -> bool {
        there.origin().is_local() && there.port() != self.segment.port
    }

    /// All stations at local ports, and whether each is sticky.
    fn all(&self) -> HashMap<Mac, bool> {
        let entries = self.segment.state.fdb(Nanos(monotonic_ns())).into_iter();
        let its = entries.filter(|entry| {
            let is_local = entry.origin.is_local() && entry.port != self.segment.port;
            is_local && filter_of(entry.vlan) == self.segment.filter
        });
        its.map(|entry| (entry.mac, entry.origin == Origin::Static)).collect()
    }
}
