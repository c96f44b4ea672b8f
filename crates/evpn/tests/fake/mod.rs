//! A daemon with GoBGP's API that does what a test says: it answers late, refuses, stalls, lies.

#[path = "gobgp.rs"]
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    reason = "generated: the names and fields of GoBGP's API"
)]
mod gobgp;

use std::collections::HashMap;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use evpn::gobgp as api;
use gobgp::go_bgp_service_server::{GoBgpService, GoBgpServiceServer};
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status, Streaming};

/// What the fake daemon should do, and which calls it got.
#[derive(Default)]
pub struct State {
    /// The AS and router under which the daemon runs.
    pub global: Option<(u32, String)>,
    /// The calls in order, by a word each.
    pub calls: Vec<String>,
    /// The routes, with their encoded bytes as keys.
    pub routes: Vec<Vec<u8>>,
    /// The number of moves of each route, if the route had one.
    pub moves: HashMap<Vec<u8>, u32>,
    /// Messages with a route that says fewer moves than these are refused, as GoBGP does it.
    pub counted: HashMap<Vec<u8>, u32>,
    pub peers: Vec<api::Peer>,
    /// Neighbours are shown as established.
    pub up: bool,
    /// Paths that a watch begins with.
    pub initial: Vec<api::Path>,
    pub watchers: Vec<mpsc::Sender<Result<api::WatchEventResponse, Status>>>,
    /// Calls of this name fail with these words.
    pub refuses: Option<(&'static str, &'static str)>,
    /// Each call is answered after this time.
    pub late: Duration,
    /// Calls of this name are never answered.
    pub stalls: Option<&'static str>,
}

/// The fake daemon. When it is dropped, it is gone with all its connections.
pub struct Fake {
    state: Arc<Mutex<State>>,
    task: tokio::task::JoinHandle<()>,
}

impl Fake {
    pub fn start(socket: &Path, state: State) -> Self {
        // Like GoBGP's socket file, this one stays when its daemon ends.
        let _ = std::fs::remove_file(socket);
        let listener = UnixListenerStream::new(UnixListener::bind(socket).unwrap());
        let state = Arc::new(Mutex::new(state));
        let service = GoBgpServiceServer::new(Service(Arc::clone(&state)));
        let server = tonic::transport::Server::builder().add_service(service);
        let task = tokio::spawn(async move { server.serve_with_incoming(listener).await.unwrap() });
        Self { state, task }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Tells all watchers of paths.
    pub fn tell(&self, paths: Vec<api::Path>) {
        let table = api::watch_event_response::TableEvent { paths };
        let event = api::WatchEventResponse { table: Some(table) };
        self.state().watchers.iter().for_each(|to| to.try_send(Ok(event.clone())).unwrap());
    }

    /// Tells the first watcher of many paths, as fast as it takes them.
    pub async fn flood(&self, messages: impl Iterator<Item = Vec<api::Path>>) {
        let to = self.state().watchers[0].clone();
        for paths in messages {
            let table = api::watch_event_response::TableEvent { paths };
            to.send(Ok(api::WatchEventResponse { table: Some(table) })).await.unwrap();
        }
    }

    /// Ends all watches.
    pub fn end_watches(&self) {
        self.state().watchers.clear();
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.state().watchers.clear();
        self.task.abort();
    }
}

/// The moves that a path says (RFC 7432, 7.7).
fn moves_of(path: &api::Path) -> Option<u32> {
    let communities = path.pattrs_binary.iter().find(|bytes| bytes[1] == 16)?;
    let moves = communities[3..].as_chunks::<8>().0.iter().find(|all| all[..2] == [6, 0])?;
    Some(u32::from_be_bytes([moves[4], moves[5], moves[6], moves[7]]))
}

struct Service(Arc<Mutex<State>>);

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Service {
    /// Notes a call, and does to it what the test wants.
    async fn called(&self, name: &'static str) -> Result<(), Status> {
        let late = {
            let mut state = self.0.lock().unwrap();
            state.calls.push(name.to_owned());
            state.late
        };
        tokio::time::sleep(late).await;
        let stalls = {
            let state = self.0.lock().unwrap();
            match state.refuses {
                Some((what, words)) if what == name => return Err(Status::invalid_argument(words)),
                _ => state.stalls == Some(name),
            }
        };
        if stalls {
            tokio::time::sleep(Duration::from_secs(3600)).await;
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

#[tonic::async_trait]
impl GoBgpService for Service {
    type WatchEventStream = Answers<api::WatchEventResponse>;
    type ListPeerStream = Answers<api::ListPeerResponse>;
    type ListPathStream = Answers<api::ListPathResponse>;

    async fn start_bgp(
        &self,
        request: Request<api::StartBgpRequest>,
    ) -> Result<Response<api::StartBgpResponse>, Status> {
        self.called("start").await?;
        let global = request.into_inner().global.unwrap();
        assert_eq!(global.listen_port, -1);
        self.state().global = Some((global.asn, global.router_id));
        Ok(Response::new(api::StartBgpResponse {}))
    }

    async fn get_bgp(
        &self,
        _: Request<api::GetBgpRequest>,
    ) -> Result<Response<api::GetBgpResponse>, Status> {
        self.called("get").await?;
        let global = self.state().global.clone();
        let global = global.map(|(asn, router_id)| api::Global { asn, router_id, listen_port: -1 });
        Ok(Response::new(api::GetBgpResponse { global }))
    }

    async fn watch_event(
        &self,
        _: Request<api::WatchEventRequest>,
    ) -> Result<Response<Self::WatchEventStream>, Status> {
        self.called("watch").await?;
        let (to, events) = mpsc::channel(64);
        let mut state = self.state();
        let table = api::watch_event_response::TableEvent { paths: state.initial.clone() };
        to.try_send(Ok(api::WatchEventResponse { table: Some(table) })).unwrap();
        state.watchers.push(to);
        Ok(Response::new(Box::pin(ReceiverStream::new(events))))
    }

    async fn add_peer(
        &self,
        request: Request<api::AddPeerRequest>,
    ) -> Result<Response<api::AddPeerResponse>, Status> {
        self.called("add peer").await?;
        self.state().peers.push(request.into_inner().peer.unwrap());
        Ok(Response::new(api::AddPeerResponse {}))
    }

    async fn delete_peer(
        &self,
        _: Request<api::DeletePeerRequest>,
    ) -> Result<Response<api::DeletePeerResponse>, Status> {
        self.called("delete peer").await?;
        Ok(Response::new(api::DeletePeerResponse {}))
    }

    async fn list_peer(
        &self,
        _: Request<api::ListPeerRequest>,
    ) -> Result<Response<Self::ListPeerStream>, Status> {
        self.called("list peers").await?;
        let state = self.state();
        let session_state = if state.up { 6 } else { 3 };
        let answers = state.peers.iter().cloned().map(|mut peer| {
            peer.state = Some(api::PeerState { session_state, ..api::PeerState::default() });
            Ok(api::ListPeerResponse { peer: Some(peer) })
        });
        let answers: Vec<_> = answers.collect();
        Ok(Response::new(Box::pin(tokio_stream::iter(answers))))
    }

    async fn delete_path(
        &self,
        request: Request<api::DeletePathRequest>,
    ) -> Result<Response<api::DeletePathResponse>, Status> {
        self.called("delete path").await?;
        let path = request.into_inner().path.expect("without a path all would go");
        self.state().routes.retain(|route| *route != path.nlri_binary);
        Ok(Response::new(api::DeletePathResponse {}))
    }

    async fn list_path(
        &self,
        _: Request<api::ListPathRequest>,
    ) -> Result<Response<Self::ListPathStream>, Status> {
        self.called("list paths").await?;
        Ok(Response::new(Box::pin(tokio_stream::iter([]))))
    }

    async fn add_path_stream(
        &self,
        request: Request<Streaming<api::AddPathStreamRequest>>,
    ) -> Result<Response<api::AddPathStreamResponse>, Status> {
        self.called("add paths").await?;
        let mut stream = request.into_inner();
        while let Some(message) = stream.message().await? {
            assert_eq!(message.table_type, 1);
            let mut state = self.state();
            let is_late = |path: &api::Path| {
                let counted = state.counted.get(&path.nlri_binary);
                moves_of(path).zip(counted).is_some_and(|(says, counted)| says < *counted)
            };
            if message.paths.iter().any(is_late) {
                return Err(Status::unknown("invalid MAC mobility sequence number"));
            }
            for path in message.paths {
                state.routes.retain(|route| *route != path.nlri_binary);
                if path.is_withdraw {
                    continue;
                }
                match moves_of(&path) {
                    Some(moves) => state.moves.insert(path.nlri_binary.clone(), moves),
                    None => state.moves.remove(&path.nlri_binary),
                };
                state.routes.push(path.nlri_binary);
            }
        }
        Ok(Response::new(api::AddPathStreamResponse {}))
    }
}
