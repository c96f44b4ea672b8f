//! The speaker and a daemon that lies, stalls, answers late, dies.

mod fake;

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use evpn::client::{Identity, Neighbor};
use evpn::gobgp as api;
use evpn::report::Summary;
use evpn::rib::Limits;
use evpn::route::{Key, RouteTarget, distinguisher};
use evpn::segment::{SegmentConfig, Station, TableChange};
use evpn::speaker::{Order, Setup, Speaker};
use fake::{Fake, State};
use frame::Mac;
use tokio::sync::{mpsc, oneshot};

const VNI: u32 = 100;
/// How long a test waits for something.
const PATIENCE: Duration = Duration::from_secs(60);

/// A speaker, and the table that its changes make.
struct Host {
    orders: mpsc::Sender<Order>,
    changes: mpsc::Receiver<(u32, TableChange)>,
    peers: Vec<IpAddr>,
    stations: HashMap<Mac, Station>,
    socket: PathBuf,
    _dir: tempfile::TempDir,
}

impl Host {
    async fn start() -> Self {
        Self::start_with(Limits::default()).await
    }

    async fn start_with(limits: Limits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("api.sock");
        let (orders, taken) = mpsc::channel(64);
        let (made, changes) = mpsc::channel(16);
        let own = [10, 99, 0, 5].into();
        let identity =
            Identity { asn: 65000, router: [10, 99, 0, 5].into(), local: own, restart_time: 120 };
        let neighbor = Neighbor {
            address: [10, 99, 0, 254].into(),
            asn: 65000,
            multihop: None,
            hold_time: 9,
            bfd: None,
            password: None,
        };
        let setup = Setup { identity, neighbors: vec![neighbor], socket: socket.clone(), limits };
        tokio::spawn(Speaker::new(setup, taken, made).run());
        let rt = vec![RouteTarget::auto(65000, VNI)];
        let segment =
            SegmentConfig { vni: VNI, import: rt.clone(), export: rt, ..Default::default() };
        let host =
            Self { orders, changes, peers: vec![], stations: HashMap::new(), socket, _dir: dir };
        host.order(Order::Segment(segment)).await;
        host.order(Order::AllLocal(VNI, HashMap::from([(Mac::local(1), false)]))).await;
        host.order(Order::Ready).await;
        host
    }

    async fn order(&self, order: Order) {
        self.orders.send(order).await.unwrap();
    }

    async fn summary(&self) -> Summary {
        let (to, summary) = oneshot::channel();
        self.order(Order::Summary(to)).await;
        tokio::time::timeout(PATIENCE, summary).await.expect("it serves orders").unwrap()
    }

    /// Follows changes until something holds.
    async fn until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let end = tokio::time::Instant::now() + PATIENCE;
        while !holds(self) {
            match tokio::time::timeout(Duration::from_millis(5), self.changes.recv()).await {
                Ok(Some((_, TableChange::Hosts { peers, .. }))) => self.peers = peers,
                Ok(Some((_, TableChange::Stations(list)))) => {
                    for station in list {
                        match station.via {
                            0 => self.stations.remove(&station.mac),
                            _ => self.stations.insert(station.mac, station),
                        };
                    }
                }
                Ok(Some((_, TableChange::Owners(_)))) => {}
                Ok(None) => panic!("the speaker ended"),
                Err(_) => assert!(tokio::time::Instant::now() < end, "no {what}"),
            }
        }
    }

    fn at(&self, station: u32) -> Option<IpAddr> {
        let station = self.stations.get(&Mac::local(station))?;
        self.peers.get(usize::from(station.via) - 1).copied()
    }
}

async fn wait(what: &str, holds: impl AsyncFn() -> bool) {
    let end = tokio::time::Instant::now() + PATIENCE;
    while !holds().await {
        assert!(tokio::time::Instant::now() < end, "no {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn nlri(own: u8, station: u32) -> Vec<u8> {
    let rd = distinguisher([10, 99, 0, own].into(), 100);
    Key::Mac { rd, tag: 0, mac: Mac::local(station), ip: None }.encode(VNI)
}

/// A path of host 1, in GoBGP's form.
fn path(station: u32, sequence: u32) -> api::Path {
    path_of("10.99.0.1", station, sequence)
}

fn path_of(host: &str, station: u32, sequence: u32) -> api::Path {
    use api::{attribute::Attr, extended_community::Extcom, nlri::Nlri, route_distinguisher::Rd};
    let rd = api::RouteDistinguisherIpAddress { admin: host.into(), assigned: 100 };
    let route = api::EvpnMacIpAdvertisementRoute {
        rd: Some(api::RouteDistinguisher { rd: Some(Rd::IpAddress(rd)) }),
        mac_address: Mac::local(station).to_string(),
        labels: vec![VNI],
        ..Default::default()
    };
    let target = api::TwoOctetAsSpecificExtended {
        is_transitive: true,
        sub_type: 2,
        asn: 65000,
        local_admin: VNI,
    };
    let moves = api::MacMobilityExtended { is_sticky: false, sequence_num: sequence };
    let communities = [Extcom::TwoOctetAsSpecific(target), Extcom::MacMobility(moves)];
    let communities =
        communities.map(|extcom| api::ExtendedCommunity { extcom: Some(extcom) }).to_vec();
    let attributes = [
        Attr::MpReach(api::MpReachNlriAttribute { next_hops: vec![host.into()] }),
        Attr::ExtendedCommunities(api::ExtendedCommunitiesAttribute { communities }),
    ];
    api::Path {
        nlri: Some(api::Nlri { nlri: Some(Nlri::EvpnMacadv(route)) }),
        pattrs: attributes.map(|attr| api::Attribute { attr: Some(attr) }).to_vec(),
        neighbor_ip: "10.99.0.254".into(),
        ..Default::default()
    }
}

#[tokio::test]
async fn neighbours_are_added_after_all_routes_and_moves_are_told() {
    let mut host = Host::start().await;
    let daemon = Fake::start(&host.socket, State::default());
    wait("watch", async || !daemon.state().calls.is_empty() && host.summary().await.connected)
        .await;
    {
        let state = daemon.state();
        let place = |name: &str| state.calls.iter().position(|call| call == name).unwrap();
        assert!(place("start") < place("add paths"));
        assert!(place("add paths") < place("add peer") && place("add peer") < place("watch"));
        assert_eq!(state.global, Some((65000, "10.99.0.5".into())));
        assert!(state.routes.contains(&nlri(5, 1)) && state.routes.len() == 2);
        let graceful = state.peers[0].graceful_restart.as_ref().unwrap();
        assert!(graceful.enabled && graceful.restart_time == 120);
    }
    daemon.tell(vec![path(7, 0)]);
    host.until("station", |host| host.at(7) == Some([10, 99, 0, 1].into())).await;
    // The station moves here, and back.
    host.order(Order::Local(VNI, vec![(Mac::local(7), Some(false))])).await;
    wait("own route", async || daemon.state().routes.contains(&nlri(5, 7))).await;
    daemon.tell(vec![path(7, 2)]);
    wait("withdrawal", async || !daemon.state().routes.contains(&nlri(5, 7))).await;
    host.until("move", |host| host.stations[&Mac::local(7)].moved).await;
}

#[tokio::test]
async fn a_daemon_that_dies_costs_no_entry_and_gets_all_routes_again() {
    let mut host = Host::start().await;
    let daemon = Fake::start(&host.socket, State { initial: vec![path(7, 0)], ..State::default() });
    host.until("station", |host| host.at(7).is_some()).await;
    drop(daemon);
    wait("loss", async || !host.summary().await.connected).await;
    let summary = host.summary().await;
    assert_eq!((summary.restarts, summary.stale), (1, 1));
    host.order(Order::Local(VNI, vec![(Mac::local(2), Some(false))])).await;
    let daemon = Fake::start(&host.socket, State::default());
    wait("routes", async || daemon.state().routes.len() == 3).await;
    wait("connection", async || host.summary().await.connected).await;
    assert!(host.changes.try_recv().is_err(), "nothing changed in the table");
    assert_eq!(host.summary().await.stale, 1, "not confirmed yet");
    daemon.tell(vec![path(7, 0)]);
    wait("confirmation", async || host.summary().await.stale == 0).await;
    assert!(host.at(7).is_some());
}

#[tokio::test]
async fn a_daemon_that_stalls_or_refuses_holds_no_order_up_for_long() {
    for (refuses, stalls, words) in [
        (None, Some("get"), "does not answer"),
        (Some(("add paths", "invalid MAC mobility sequence number")), None, "mobility"),
        (Some(("watch", "no")), None, "refused to watch"),
    ] {
        let host = Host::start().await;
        let state = State { refuses, stalls, ..State::default() };
        let daemon = Fake::start(&host.socket, state);
        let is_said = async || host.summary().await.trouble.is_some_and(|t| t.contains(words));
        wait(words, is_said).await;
        assert!(!host.summary().await.connected);
        // The daemon answers again.
        (daemon.state().refuses, daemon.state().stalls) = (None, None);
        wait("connection", async || host.summary().await.connected).await;
    }
}

#[tokio::test]
async fn a_daemon_of_another_as_is_not_used() {
    let host = Host::start().await;
    let state = State { global: Some((64999, "10.99.0.5".into())), ..State::default() };
    let daemon = Fake::start(&host.socket, state);
    wait("reason", async || {
        host.summary().await.trouble.is_some_and(|trouble| trouble.contains("AS 64999"))
    })
    .await;
    assert!(daemon.state().routes.is_empty());
}

#[tokio::test]
async fn a_watch_that_ends_begins_again_and_nonsense_in_it_is_counted() {
    let mut host = Host::start().await;
    let daemon = Fake::start(&host.socket, State::default());
    wait("connection", async || host.summary().await.connected).await;
    let mut bad = path(8, 0);
    bad.pattrs.clear();
    daemon.tell(vec![bad, api::Path::default(), path(7, 0)]);
    host.until("station", |host| host.at(7).is_some()).await;
    assert_eq!(host.summary().await.counters.malformed, 1);
    daemon.end_watches();
    wait("loss", async || host.summary().await.restarts == 1).await;
    wait("connection", async || host.summary().await.connected).await;
    daemon.tell(vec![path(9, 0)]);
    host.until("station", |host| host.at(9).is_some()).await;
}

/// Objective: a route that is refused because the daemon knows a later move costs no other route,
/// and not the session; the daemon's count becomes this host's.
///
/// Steps: many stations come from another host at once, and the daemon has a later route of one.
#[tokio::test]
async fn regression_a_route_that_is_late_is_counted_by_the_daemon_and_costs_no_other() {
    let late = 150;
    let mut host = Host::start().await;
    let initial = (100..200).map(|station| path(station, 3)).collect();
    let counted = HashMap::from([(nlri(5, late), 9)]);
    let state = State { initial, counted, ..State::default() };
    let daemon = Fake::start(&host.socket, state);
    host.until("stations", |host| host.stations.len() == 100).await;
    let moved = (100..200).map(|station| (Mac::local(station), Some(false))).collect();
    host.order(Order::Local(VNI, moved)).await;
    wait("own routes", async || daemon.state().routes.len() == 102).await;
    let moves = |station| daemon.state().moves.get(&nlri(5, station)).copied();
    assert!((100..200).all(|station| moves(station) == (station != late).then_some(4)));
    // The daemon reports the route as it took it.
    let own = api::Path { neighbor_ip: String::new(), ..path_of("10.99.0.5", late, 9) };
    daemon.tell(vec![own]);
    wait("the same count", async || moves(late) == Some(9)).await;
    assert_eq!(host.summary().await.restarts, 0);
    daemon.tell(vec![path(late, 9)]);
    wait("withdrawal", async || !daemon.state().routes.contains(&nlri(5, late))).await;
    daemon.tell(vec![path(late - 1, 3), path(300, 0)]);
    host.until("both", |host| host.at(300).is_some()).await;
    assert!(daemon.state().routes.contains(&nlri(5, late - 1)), "no later move");
}

#[tokio::test]
async fn a_daemon_that_answers_late_holds_no_question_up_for_long() {
    let host = Host::start().await;
    let state = State { late: Duration::from_millis(700), ..State::default() };
    let daemon = Fake::start(&host.socket, state);
    wait("connection", async || host.summary().await.connected).await;
    let stations = |here| (100..200).map(|n| (Mac::local(n), here)).collect::<Vec<_>>();
    host.order(Order::Local(VNI, stations(Some(false)))).await;
    wait("own routes", async || daemon.state().routes.len() == 102).await;
    let calls = daemon.state().calls.len();
    host.order(Order::Local(VNI, stations(None))).await;
    host.order(Order::Local(VNI, vec![(Mac::local(300), Some(false))])).await;
    wait("the next call", async || daemon.state().calls.len() > calls).await;
    let asked = daemon.state().calls.len();
    let summary = host.summary().await;
    // The call under way is waited for; the next one may begin as the answer is on its way.
    let begun = daemon.state().calls.len() - asked;
    assert!(summary.connected && begun <= 2, "{summary:?} {begun}");
    wait("withdrawals", async || daemon.state().routes.len() == 3).await;
    let made = daemon.state().calls[calls..].to_vec();
    assert!(made.iter().filter(|call| *call == "add paths").count() <= 4, "{made:?}");
    assert_eq!(host.summary().await.restarts, 0);
}

/// Objective: a flood of routes of one host costs no question, no other host, and no memory.
///
/// Steps: a host advertises fifty times what it may have, while nothing takes the changes, as a
/// supervisor that is busy; questions are answered meanwhile; another host's station comes after.
#[tokio::test]
async fn a_flood_of_routes_holds_no_question_up_and_costs_no_other_host() {
    let mut host = Host::start_with(Limits { per_host: 1000, routes: 2000 }).await;
    let daemon = Fake::start(&host.socket, State::default());
    wait("watch", async || !daemon.state().watchers.is_empty()).await;
    let messages = (0..50).map(|at| (at * 1000..(at + 1) * 1000).map(|n| path(n, 0)).collect());
    let questions = async {
        let (mut most, mut before) = (0, 0);
        while before < 49_000 {
            let refused = host.summary().await.counters.over_limit;
            most = most.max(refused - before);
            before = refused;
        }
        most
    };
    let ((), most) = tokio::join!(daemon.flood(messages), questions);
    // The speaker's task gives way after so many messages, whatever the clock says.
    assert!(most < 40_000, "a question waited while {most} routes were refused");
    assert_eq!(host.summary().await.routes, 1000);
    daemon.tell(vec![path_of("10.99.0.9", 60_000, 0)]);
    host.until("another host's station", |host| host.at(60_000).is_some()).await;
}

/// Objective: what others say about this host itself changes nothing here.
///
/// Steps: another host advertises stations with this host as their next hop, and this host's
/// sticky station as its own; the daemon says routes of this host that it never sent.
#[tokio::test]
async fn lies_about_this_host_change_nothing() {
    let mut host = Host::start().await;
    host.order(Order::Local(VNI, vec![(Mac::local(2), Some(true))])).await;
    let daemon = Fake::start(&host.socket, State::default());
    wait("watch", async || !daemon.state().watchers.is_empty()).await;
    let mut ours = path_of("10.99.0.5", 7, 0);
    daemon.tell(vec![ours.clone(), path_of("10.99.0.9", 2, 99)]);
    ours.neighbor_ip.clear();
    daemon.tell(vec![ours, path(8, 0)]);
    host.until("the honest station", |host| host.at(8).is_some()).await;
    let summary = host.summary().await;
    assert_eq!((summary.counters.bad_host, summary.restarts), (1, 0));
    assert!(host.at(7).is_none() && host.at(2).is_none());
    assert!(daemon.state().routes.contains(&nlri(5, 2)), "the sticky station is still advertised");
}
