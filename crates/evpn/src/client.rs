//! A client of GoBGP 4's API: each call with a time limit, at a Unix socket.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::codec::Streaming;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::gobgp::go_bgp_service_client::GoBgpServiceClient;
use crate::gobgp::{
    AddPathStreamRequest, AddPeerRequest, AfiSafi, AfiSafiConfig, BfdPeerConfig, DeletePeerRequest,
    EbgpMultihop, Family, GetBgpRequest, Global, GracefulRestart, ListPeerRequest,
    MpGracefulRestart, MpGracefulRestartConfig, Path, Peer, PeerConf, StartBgpRequest, Timers,
    TimersConfig, Transport, WatchEventRequest, WatchEventResponse, watch_event_request,
};
use crate::report::NeighborInfo;
use crate::route::{Mobility, OwnRoute};

/// Time limit of a call.
const CALL: Duration = Duration::from_secs(3);
/// The additional time for each route that is added.
const EACH: Duration = Duration::from_millis(1);
/// The maximum number of bytes of a message.
const MAX_MESSAGE: usize = 16 << 20;
/// The maximum number of paths in a message.
const BATCH: usize = 500;
/// The maximum number of splits of a refused part; beyond, the whole part is sent without counts.
const SEARCHES: u32 = 64;
/// The global table (`api.TableType`).
const GLOBAL: i32 = 1;
/// Best paths (`api.WatchEventRequest.Table.Filter.Type`).
const BEST: i32 = 1;

/// The family of EVPN: L2VPN, EVPN (RFC 7432, 7).
const EVPN: Family = Family { afi: 25, safi: 70 };

/// A BGP neighbour, as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbor {
    /// Its address.
    pub address: IpAddr,
    /// Its AS.
    pub asn: u32,
    /// The number of hops to the neighbour, if it is in another AS and not on the same link.
    pub multihop: Option<u8>,
    /// Seconds without a message after which the neighbour counts as dead.
    pub hold_time: u16,
    /// Detection by BFD: the interval in milliseconds, and how many may be missed.
    pub bfd: Option<(u32, u8)>,
    /// The session's password (RFC 2385), if any.
    pub password: Option<String>,
}

/// This host, as a BGP speaker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its AS.
    pub asn: u32,
    /// The host's router id.
    pub router: Ipv4Addr,
    /// The host's address in the underlay.
    pub local: IpAddr,
    /// Seconds for which neighbours keep the daemon's routes while the daemon is gone.
    pub restart_time: u16,
}

/// The reason why the daemon cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No process answers at the socket.
    #[error("Nothing answers at {0}: {1}")]
    Unreachable(String, String),
    /// The daemon does not know these calls.
    #[error("It speaks another API: GoBGP 4 is needed (3.x is slow with many stations, too)")]
    OtherApi,
    /// The daemon belongs to another AS or router.
    #[error("It runs as AS {asn}, router {router}, which is not what [evpn] says")]
    OtherIdentity {
        /// Its AS.
        asn: u32,
        /// The daemon's router id.
        router: String,
    },
    /// The daemon did not answer in time.
    #[error("It does not answer: {0}")]
    Silent(&'static str),
    /// It refused.
    #[error("It refused to {what}: {reason}")]
    Refused {
        /// The request.
        what: &'static str,
        /// Its words.
        reason: String,
    },
}

impl ClientError {
    fn of(what: &'static str, status: &Status) -> Self {
        match status.code() {
            Code::Unimplemented => Self::OtherApi,
            _ => Self::Refused { what, reason: status.message().to_owned() },
        }
    }

    /// True if a station has moved more often than a route says (GoBGP's `fixupApiPath`).
    fn is_late_move(&self) -> bool {
        matches!(self, Self::Refused { reason, .. } if reason.contains("mobility sequence"))
    }
}

/// A connection to the daemon.
#[derive(Clone, Debug)]
pub struct Client {
    calls: GoBgpServiceClient<Channel>,
}

/// Waits for an answer, but not for ever.
async fn within<T>(
    what: &'static str,
    call: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, ClientError> {
    within_time(CALL, what, call).await
}

async fn within_time<T>(
    limit: Duration,
    what: &'static str,
    call: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, ClientError> {
    match tokio::time::timeout(limit, call).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(ClientError::of(what, &status)),
        Err(_) => Err(ClientError::Silent(what)),
    }
}

impl Client {
    /// Connects to the daemon at a Unix socket.
    ///
    /// # Errors
    /// Nothing answers there.
    pub async fn connect(socket: &FilePath) -> Result<Self, ClientError> {
        let at: Arc<FilePath> = socket.into();
        let shown = socket.display().to_string();
        let failed = |reason: String| ClientError::Unreachable(shown.clone(), reason);
        let connector = tower::service_fn(move |_| {
            let at = Arc::clone(&at);
            async move { UnixStream::connect(&*at).await.map(TokioIo::new) }
        });
        // The connector does not use this name.
        let endpoint = Endpoint::from_static("http://local");
        let connected = tokio::time::timeout(CALL, endpoint.connect_with_connector(connector));
        let channel = match connected.await {
            Ok(Ok(channel)) => channel,
            Ok(Err(error)) => return Err(failed(reason(&error))),
            Err(_) => return Err(failed("it does not accept".to_owned())),
        };
        let calls = GoBgpServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
        Ok(Self { calls })
    }

    /// Asks whether the daemon lives; the identity under which it runs, if it does.
    ///
    /// # Errors
    /// It does not answer, or speaks another API.
    pub async fn identity(&mut self) -> Result<Option<(u32, String)>, ClientError> {
        let answer = within("tell its state", self.calls.get_bgp(GetBgpRequest {})).await?;
        let global = answer.global.filter(|global| global.asn != 0);
        Ok(global.map(|global| (global.asn, global.router_id)))
    }

    /// Has the daemon run as `identity`, if it does not run yet.
    ///
    /// # Errors
    /// It runs as another one, or refuses.
    pub async fn begin(&mut self, identity: &Identity) -> Result<(), ClientError> {
        let Identity { asn, router, .. } = identity;
        match self.identity().await? {
            Some((is, its)) if is == *asn && its == router.to_string() => Ok(()),
            Some((asn, router)) => Err(ClientError::OtherIdentity { asn, router }),
            None => {
                // The daemon listens nowhere: it calls its neighbours.
                let global = Global { asn: *asn, router_id: router.to_string(), listen_port: -1 };
                let request = StartBgpRequest { global: Some(global) };
                within("start", self.calls.start_bgp(request)).await.map(drop)
            }
        }
    }

    /// Adds own routes. If another host's route for the same station has more moves, the daemon
    /// refuses the whole message. Such a route is sent without its number of moves: the daemon then
    /// counts them, and the watch reports the count.
    ///
    /// # Errors
    /// It refuses one for another reason, or does not answer.
    pub async fn advertise(&mut self, routes: &[OwnRoute]) -> Result<(), ClientError> {
        match self.add(routes).await {
            Err(error) if error.is_late_move() => {}
            other => return other,
        }
        let mut rest: Vec<&[OwnRoute]> = routes.chunks(BATCH).collect();
        // Other hosts can cause refusals, and orders wait in the meantime, so the search is
        // bounded.
        let (mut searches, until) = (SEARCHES, Instant::now() + CALL);
        while let Some(part) = rest.pop() {
            let (left, right) = part.split_at(part.len() / 2);
            match self.add(part).await {
                Err(error) if !error.is_late_move() => return Err(error),
                Err(_) if left.is_empty() || searches == 0 || Instant::now() >= until => {
                    let uncounted = |route: &OwnRoute| OwnRoute {
                        mobility: Mobility::default(),
                        ..route.clone()
                    };
                    self.add(&part.iter().map(uncounted).collect::<Vec<_>>()).await?;
                }
                Err(_) => {
                    searches -= 1;
                    rest.extend([left, right]);
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }

    async fn add(&mut self, routes: &[OwnRoute]) -> Result<(), ClientError> {
        let path = |route: &OwnRoute| Path {
            nlri_binary: route.nlri(),
            pattrs_binary: route.attributes(),
            family: Some(EVPN),
            ..Path::default()
        };
        self.stream("add routes", routes, path).await
    }

    async fn stream(
        &mut self,
        what: &'static str,
        routes: &[OwnRoute],
        path: impl Fn(&OwnRoute) -> Path,
    ) -> Result<(), ClientError> {
        let message = |routes: &[OwnRoute]| {
            let paths = routes.iter().map(&path).collect();
            AddPathStreamRequest { table_type: GLOBAL, paths }
        };
        let messages: Vec<_> = routes.chunks(BATCH).map(message).collect();
        let stream = tokio_stream::iter(messages);
        let limit = CALL + EACH * routes.len() as u32;
        let call = self.calls.add_path_stream(stream);
        within_time(limit, what, call).await.map(drop)
    }

    /// Withdraws own routes in one call, so a slow daemon delays the caller only once.
    ///
    /// # Errors
    /// It refuses, or does not answer.
    pub async fn withdraw(&mut self, routes: &[OwnRoute]) -> Result<(), ClientError> {
        let path = |route: &OwnRoute| Path {
            nlri_binary: route.nlri(),
            pattrs_binary: route.attributes_of_withdrawal(),
            family: Some(EVPN),
            is_withdraw: true,
            ..Path::default()
        };
        self.stream("withdraw routes", routes, path).await
    }

    /// The neighbours, with their states.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn neighbors(&mut self) -> Result<Vec<NeighborInfo>, ClientError> {
        const WHAT: &str = "list neighbours";
        let request = ListPeerRequest::default();
        let mut stream = within(WHAT, self.calls.list_peer(request)).await?;
        let mut all = Vec::new();
        while let Some(answer) = next(WHAT, &mut stream, CALL).await? {
            all.extend(answer.peer.as_ref().map(info));
        }
        Ok(all)
    }

    /// Adds a neighbour. Routes that are added before are all sent to it before the end-of-RIB
    /// marker, so that it keeps them over a restart (RFC 4724).
    ///
    /// # Errors
    /// It refuses, or does not answer.
    pub async fn add_neighbor(
        &mut self,
        neighbor: &Neighbor,
        identity: &Identity,
    ) -> Result<(), ClientError> {
        let request = AddPeerRequest { peer: Some(peer_of(neighbor, identity)) };
        within("add a neighbour", self.calls.add_peer(request)).await.map(drop)
    }

    /// Removes a neighbour.
    ///
    /// # Errors
    /// It refuses, or does not answer.
    pub async fn remove_neighbor(&mut self, address: &str) -> Result<(), ClientError> {
        let request = DeletePeerRequest { address: address.to_owned() };
        within("remove a neighbour", self.calls.delete_peer(request)).await.map(drop)
    }

    /// Watches the best paths: first all current ones, then every change.
    ///
    /// # Errors
    /// It refuses, or does not answer.
    pub async fn watch(&mut self) -> Result<Streaming<WatchEventResponse>, ClientError> {
        let filter = watch_event_request::table::Filter { r#type: BEST, init: true };
        let table = watch_event_request::Table { filters: vec![filter] };
        // Without a batch size the first message has all paths.
        let request = WatchEventRequest { table: Some(table), batch_size: BATCH as u32 };
        let call = self.calls.watch_event(request);
        within("watch", call).await
    }
}

/// The next message of a stream.
async fn next<T>(
    what: &'static str,
    stream: &mut Streaming<T>,
    limit: Duration,
) -> Result<Option<T>, ClientError> {
    match tokio::time::timeout(limit, stream.message()).await {
        Ok(Ok(message)) => Ok(message),
        Ok(Err(status)) => Err(ClientError::of(what, &status)),
        Err(_) => Err(ClientError::Silent(what)),
    }
}

fn peer_of(neighbor: &Neighbor, identity: &Identity) -> Peer {
    let Neighbor { address, asn, multihop, hold_time, bfd, password } = neighbor;
    let graceful = GracefulRestart {
        enabled: true,
        restart_time: identity.restart_time.into(),
        local_restarting: true,
    };
    let evpn = AfiSafi {
        mp_graceful_restart: Some(MpGracefulRestart {
            config: Some(MpGracefulRestartConfig { enabled: true }),
        }),
        config: Some(AfiSafiConfig { family: Some(EVPN), enabled: true }),
        state: None,
    };
    let hold_time = u64::from(*hold_time);
    let timers = TimersConfig {
        connect_retry: 1,
        hold_time,
        keepalive_interval: (hold_time / 3).max(1),
        idle_hold_time_after_reset: 1,
    };
    Peer {
        conf: Some(PeerConf {
            auth_password: password.clone().unwrap_or_default(),
            neighbor_address: address.to_string(),
            peer_asn: *asn,
        }),
        ebgp_multihop: multihop
            .map(|hops| EbgpMultihop { enabled: true, multihop_ttl: hops.into() }),
        timers: Some(Timers { config: Some(timers) }),
        transport: Some(Transport {
            local_address: identity.local.to_string(),
            passive_mode: false,
        }),
        graceful_restart: Some(graceful),
        afi_safis: vec![evpn],
        bfd: bfd.map(|(interval, multiplier)| BfdPeerConfig {
            enabled: true,
            desired_minimum_tx_interval: interval.saturating_mul(1000),
            required_minimum_receive: interval.saturating_mul(1000),
            detection_multiplier: multiplier.into(),
        }),
        state: None,
    }
}

fn info(peer: &Peer) -> NeighborInfo {
    let state = peer.state.clone().unwrap_or_default();
    let conf = peer.conf.clone().unwrap_or_default();
    let counts = peer.afi_safis.iter().filter_map(|family| family.state.as_ref());
    let (received, advertised) =
        counts.fold((0, 0), |sum, state| (sum.0 + state.accepted, sum.1 + state.advertised));
    NeighborInfo {
        address: conf.neighbor_address,
        asn: conf.peer_asn,
        state: state_name(state.session_state).to_owned(),
        received,
        advertised,
        flaps: state.flops,
        reason: state.disconnect_message,
    }
}

/// The state's name (RFC 4271, 8.2.2; `api.PeerState.SessionState`).
fn state_name(number: i32) -> &'static str {
    match number {
        1 => "idle",
        2 => "connect",
        3 => "active",
        4 => "opensent",
        5 => "openconfirm",
        6 => "established",
        _ => "unknown",
    }
}

/// An error with its causes.
fn reason(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
