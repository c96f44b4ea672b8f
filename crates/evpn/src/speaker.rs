//! The task that joins routes, tables and the daemon. It runs on a thread of its own, so neither a
//! daemon that stalls nor a flood of routes holds the supervisor up.
//!
//! ```text
//!   connect --> start as AS, router --> all own routes --> neighbours --> watch --> changes ...
//!      ^                                                                              |
//!      +-- a pause <-- daemon lost: tables stay as they are, routes are stale <--------+
//! ```
//!
//! Neighbours come after the routes: a neighbour that kept the routes of the daemon's predecessor
//! (RFC 4724) then loses none of them. Routes that nothing confirmed within the settling time after
//! a neighbour is up are given up.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use frame::Mac;
use tokio::sync::{mpsc, oneshot};
use tonic::codec::Streaming;

use crate::client::{Client, ClientError, Identity, Neighbor};
use crate::gobgp::WatchEventResponse;
use crate::path;
use crate::report::{MacInfo, NeighborInfo, RouteInfo, Summary};
use crate::rib::{Limits, Notice, Rib};
use crate::route::OwnRoute;
use crate::segment::{MAX_HOSTS, SegmentConfig, TableChange};

/// The pause before the next attempt to connect: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3));
/// How often the daemon is asked whether it lives.
const HEALTH: Duration = Duration::from_secs(1);
/// All routes count as arrived this long after a neighbour came up and after the last route was
/// confirmed.
const SETTLING: Duration = Duration::from_secs(10);
/// The longest such time, if routes keep being confirmed.
const LONGEST_SETTLING: Duration = Duration::from_secs(60);
/// How long events are collected before own routes are sent.
const COLLECT: Duration = Duration::from_millis(2);

/// An order to the speaker.
#[derive(Debug)]
pub enum Order {
    /// A segment is there, or has other route targets.
    Segment(SegmentConfig),
    /// A segment is gone.
    NoSegment(u32),
    /// Stations came to local ports (and whether each is sticky), or went (`None`).
    Local(u32, Vec<(Mac, Option<bool>)>),
    /// All stations at local ports, and whether each is sticky.
    AllLocal(u32, HashMap<Mac, bool>),
    /// Stations at local ports say that they have these IP addresses.
    Claims(u32, Vec<(Mac, IpAddr)>),
    /// All segments and their stations are known, so routes may be sent. Sent earlier, they would
    /// look as if the others had been withdrawn.
    Ready,
    /// Lets a duplicate move again; answers whether it was one.
    Release(u32, Mac, oneshot::Sender<bool>),
    /// Asks for the state.
    Summary(oneshot::Sender<Summary>),
    /// Asks for all stations.
    Macs(oneshot::Sender<Vec<MacInfo>>),
    /// Asks for all routes of other hosts.
    Routes(oneshot::Sender<Vec<RouteInfo>>),
}

/// How the speaker is set up.
#[derive(Clone, Debug)]
pub struct Setup {
    /// This host.
    pub identity: Identity,
    /// The speaker's neighbours; none if they are configured elsewhere.
    pub neighbors: Vec<Neighbor>,
    /// The daemon's socket.
    pub socket: PathBuf,
    /// The limits for what other hosts may use of this one.
    pub limits: Limits,
}

/// The task's state.
#[derive(Debug)]
pub struct Speaker {
    setup: Setup,
    rib: Rib,
    orders: mpsc::Receiver<Order>,
    changes: mpsc::Sender<(u32, TableChange)>,
    started: Instant,
    ready: bool,
    connected: bool,
    trouble: Option<String>,
    lost: u64,
    neighbors: Vec<NeighborInfo>,
    /// Since when a neighbour is up.
    up_since: Option<Instant>,
    /// When unconfirmed routes are given up, if no neighbour comes up before.
    give_up_at: Option<Instant>,
}

/// The reason why the connection to a daemon ended.
enum Ended {
    /// The supervisor has closed the channel.
    Finished,
    Lost(ClientError),
}

impl From<ClientError> for Ended {
    fn from(error: ClientError) -> Self {
        Self::Lost(error)
    }
}

impl Speaker {
    /// A speaker that takes orders and makes changes.
    #[must_use]
    pub fn new(
        setup: Setup,
        orders: mpsc::Receiver<Order>,
        changes: mpsc::Sender<(u32, TableChange)>,
    ) -> Self {
        let Identity { router, local, restart_time, .. } = setup.identity;
        let rib = Rib::new(router, local, setup.limits);
        let started = Instant::now();
        let give_up_at = Some(started + Duration::from_secs(restart_time.into()));
        Self {
            setup,
            rib,
            orders,
            changes,
            started,
            ready: false,
            connected: false,
            trouble: None,
            lost: 0,
            neighbors: Vec::new(),
            up_since: None,
            give_up_at,
        }
    }

    /// Runs until the orders end.
    pub async fn run(mut self) {
        let mut pause = PAUSES.0;
        while !self.ready {
            let Some(order) = self.orders.recv().await else { return };
            self.obey(order);
        }
        loop {
            let begun = Instant::now();
            let Ended::Lost(error) = self.session().await else { return };
            self.lose(&error);
            if begun.elapsed() > PAUSES.1 {
                pause = PAUSES.0;
            }
            let until = tokio::time::Instant::now() + pause;
            pause = (pause * 2).min(PAUSES.1);
            while tokio::time::Instant::now() < until {
                tokio::select! {
                    order = self.orders.recv() => match order {
                        Some(order) => self.obey(order),
                        None => return,
                    },
                    () = tokio::time::sleep_until(until) => {}
                }
                self.hand_out();
                self.settle();
            }
        }
    }

    /// Notes that the daemon is lost.
    fn lose(&mut self, error: &ClientError) {
        let reason = error.to_string();
        if self.connected {
            self.lost += 1;
            self.rib.lost_daemon();
            let restart_time = Duration::from_secs(self.setup.identity.restart_time.into());
            self.give_up_at = Some(Instant::now() + restart_time);
            tracing::error!(reason, "the routing daemon is lost; tunnels go on as they are");
        } else if self.trouble.as_ref() != Some(&reason) {
            tracing::warn!(reason, "the routing daemon cannot be used");
        }
        (self.connected, self.up_since, self.trouble) = (false, None, Some(reason));
        self.neighbors.clear();
    }

    /// Milliseconds since the start.
    fn now(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// One connection to a daemon, until it is lost.
    async fn session(&mut self) -> Ended {
        match self.begin().await {
            Ok((client, watch)) => self.follow(client, watch).await,
            Err(error) => Ended::Lost(error),
        }
    }

    async fn begin(&mut self) -> Result<(Client, Streaming<WatchEventResponse>), ClientError> {
        let mut client = Client::connect(&self.setup.socket).await?;
        client.begin(&self.setup.identity).await?;
        // Sends all own routes, and receives all others.
        let _ = (self.rib.take_changed(), self.rib.take_refresh());
        client.advertise(&self.rib.own_routes()).await?;
        let there = client.neighbors().await?;
        for neighbor in &self.setup.neighbors {
            let address = neighbor.address.to_string();
            if !there.iter().any(|known| known.address == address) {
                client.add_neighbor(neighbor, &self.setup.identity).await?;
            }
        }
        let watch = client.watch().await?;
        (self.connected, self.trouble) = (true, None);
        tracing::info!(routes = self.rib.own_count(), "the routing daemon has all routes");
        Ok((client, watch))
    }

    /// Serves the daemon's messages and the supervisor's orders, until the connection ends.
    async fn follow(
        &mut self,
        mut client: Client,
        mut watch: Streaming<WatchEventResponse>,
    ) -> Ended {
        let mut health = tokio::time::interval(HEALTH);
        health.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let changes = self.changes.clone();
            let next = tokio::select! {
                order = self.orders.recv() => match order {
                    None => return Ended::Finished,
                    Some(order) => {
                        self.obey(order);
                        self.collect().await;
                        self.send_own(&mut client).await
                    }
                },
                message = watch.message() => match message {
                    Ok(Some(message)) => {
                        self.take(&message);
                        self.send_own(&mut client).await
                    }
                    Ok(None) => Err(ClientError::Silent("watch: it ended")),
                    Err(status) => {
                        let reason = status.message().to_owned();
                        Err(ClientError::Refused { what: "go on watching", reason })
                    }
                },
                _ = health.tick() => match self.look(&mut client).await {
                    // The daemon sends all routes again, so none is missed. Those that are gone are
                    // swept later.
                    Ok(()) if self.rib.take_refresh() => {
                        self.rib.doubt();
                        self.up_since = self.up_since.map(|_| Instant::now());
                        client.watch().await.map(|begun| watch = begun)
                    }
                    other => other,
                },
                // Changes wait until the supervisor has room for them.
                _ = changes.reserve(), if changes.capacity() == 0 => Ok(()),
            };
            if let Err(error) = next {
                return Ended::Lost(error);
            }
            self.hand_out();
        }
    }

    /// Obeys the orders that come within a moment, so that their routes go out together.
    async fn collect(&mut self) {
        let until = tokio::time::Instant::now() + COLLECT;
        while let Ok(Some(order)) = tokio::time::timeout_at(until, self.orders.recv()).await {
            self.obey(order);
        }
    }

    fn obey(&mut self, order: Order) {
        let now = self.now();
        match order {
            Order::Segment(config) => self.rib.add_segment(config, now),
            Order::NoSegment(vni) => self.rib.remove_segment(vni),
            Order::Local(vni, stations) => {
                for (mac, here) in stations {
                    match here {
                        Some(sticky) => self.rib.came(vni, mac, sticky, now),
                        None => self.rib.went(vni, mac),
                    }
                }
            }
            Order::AllLocal(vni, stations) => self.rib.set_local(vni, &stations, now),
            Order::Claims(vni, claims) => {
                claims.into_iter().for_each(|(mac, ip)| self.rib.claims(vni, mac, ip));
            }
            Order::Ready => self.ready = true,
            // The sender of the question may be gone.
            Order::Release(vni, mac, to) => drop(to.send(self.rib.release(vni, mac))),
            Order::Summary(to) => drop(to.send(self.summary())),
            Order::Macs(to) => drop(to.send(self.rib.macs())),
            Order::Routes(to) => drop(to.send(self.rib.route_list())),
        }
    }

    fn summary(&self) -> Summary {
        Summary {
            connected: self.connected,
            trouble: self.trouble.clone(),
            restarts: self.lost,
            routes: self.rib.route_count(),
            stale: self.rib.stale(),
            own: self.rib.own_count(),
            counters: self.rib.counters(),
            neighbors: self.neighbors.clone(),
            vteps: self.rib.vteps(),
        }
    }

    fn take(&mut self, message: &WatchEventResponse) {
        let now = self.now();
        let paths = message.table.iter().flat_map(|table| &table.paths);
        paths.for_each(|path| self.rib.take(path::read(path), now));
    }

    /// Sends own routes that changed.
    async fn send_own(&mut self, client: &mut Client) -> Result<(), ClientError> {
        let changed = self.rib.take_changed().into_iter();
        let (withdrawn, added): (Vec<_>, Vec<_>) = changed.partition(|(_, gone)| *gone);
        let routes = |list: Vec<(OwnRoute, bool)>| list.into_iter().map(|(route, _)| route);
        let (withdrawn, added): (Vec<_>, Vec<_>) =
            (routes(withdrawn).collect(), routes(added).collect());
        if !withdrawn.is_empty() {
            client.withdraw(&withdrawn).await?;
        }
        if added.is_empty() { Ok(()) } else { client.advertise(&added).await }
    }

    /// Once a second: is the daemon alive, which neighbours are up?
    async fn look(&mut self, client: &mut Client) -> Result<(), ClientError> {
        let neighbors = client.neighbors().await?;
        say_sessions(&self.neighbors, &neighbors);
        self.neighbors = neighbors;
        let is_up = self.neighbors.iter().any(NeighborInfo::is_up);
        self.up_since = is_up.then(|| self.up_since.unwrap_or_else(Instant::now));
        if is_up {
            self.give_up_at = None;
        }
        self.settle();
        self.send_own(client).await
    }

    /// Gives up routes that were not confirmed in time, and lets old duplicates move again.
    fn settle(&mut self) {
        let (now, moment) = (self.now(), Instant::now());
        self.rib.tick(now);
        let is_quiet = now.saturating_sub(self.rib.confirmed()) >= SETTLING.as_millis() as u64;
        let is_settled = self.up_since.is_some_and(|since| {
            let up = moment - since;
            up >= LONGEST_SETTLING || up >= SETTLING && is_quiet
        });
        let is_late = self.give_up_at.is_some_and(|at| moment >= at);
        if is_settled || is_late {
            self.rib.sweep(now);
        }
    }

    /// Hands out as many changes as the supervisor takes now, and notices for operators.
    fn hand_out(&mut self) {
        for notice in self.rib.take_notices() {
            match notice {
                Notice::Duplicate { vni, mac } => {
                    tracing::warn!(vni, %mac, "a station moves too often: it stays where it is");
                }
                Notice::Claimed { vni, mac, by } => {
                    tracing::warn!(vni, %mac, %by, "another host claims a station that is fixed here");
                }
                Notice::Damped { host } => {
                    tracing::warn!(%host, "a host withdraws too many routes: none of its new ones is taken for a while");
                }
                Notice::TooManyHosts { vni } => {
                    tracing::warn!(
                        vni,
                        most = MAX_HOSTS,
                        "a segment has too many hosts: stations of some are not in the table"
                    );
                }
                Notice::TooMany { host } => {
                    tracing::warn!(%host, "a host advertises more stations than it may");
                }
            }
        }
        while let Ok(slot) = self.changes.try_reserve() {
            let Some((vni, change)) = self.rib.next_change() else { return };
            slot.send((vni, change));
        }
    }
}

/// Says which sessions came up or went down between two looks at the neighbours.
fn say_sessions(before: &[NeighborInfo], now: &[NeighborInfo]) {
    for NeighborInfo { address, reason, flaps, .. } in now.iter().filter(|info| info.is_up()) {
        let earlier = before.iter().find(|known| known.address == *address && known.is_up());
        match earlier {
            None => tracing::info!(neighbor = address, "a neighbour's session is up"),
            Some(known) if known.flaps != *flaps => {
                tracing::warn!(
                    neighbor = address,
                    reason,
                    "a neighbour's session went down, and is up again"
                );
            }
            Some(_) => {}
        }
    }
    for NeighborInfo { address, .. } in before.iter().filter(|info| info.is_up()) {
        let later = now.iter().find(|info| info.address == *address);
        if later.is_none_or(|info| !info.is_up()) {
            let reason = later.map_or("it is removed", |info| info.reason.as_str());
            tracing::warn!(neighbor = address, reason, "a neighbour's session is down");
        }
    }
}
