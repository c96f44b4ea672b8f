//! The control API over TCP, for clients that have the token.
//!
//! A connection is a stranger's until a request on it has the token. Strangers have a time limit
//! for all that they do: head, body, and taking the answer. They share places of their own, so
//! they never hold up a client with the token.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::future::Future;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::{AUTHORIZATION, CONNECTION, HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::serve::Listener;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::api_server::{MAX_CONNECTIONS, known, problem, refusal, router};
use super::caller::Caller;
use super::locked;
use super::supervisor::Supervisor;
use super::who::{Peer, Sight, Who};
use crate::api::{ApiError, ErrorCode};

/// Time limit for a stranger, and for any client to send a request's head.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest head of a request, in bytes.
const MAX_HEAD: usize = 32 << 10;
/// Connection limit of strangers, who share it by address.
pub(super) const MAX_STRANGERS: usize = 128;

/// The tokens of clients over TCP.
#[derive(Debug)]
pub struct Tokens {
    /// Clients with this one change switches.
    pub control: Option<String>,
    /// Clients with this one read.
    pub view: Option<String>,
}

/// Serves TCP clients that send a token, until the daemon is to stop and all requests are answered.
pub async fn serve_tcp(mut listener: TcpListener, to: Arc<Supervisor>, tokens: Arc<Tokens>) {
    let router = router(Arc::clone(&to));
    let places = Arc::new(Places::default());
    loop {
        let (stream, peer) = tokio::select! {
            next = Listener::accept(&mut listener) => next,
            _ = to.asked_to_stop() => break,
        };
        let visit = Arc::new(Places::enter(&places, peer.ip()));
        let service = guarded(router.clone(), Arc::clone(&tokens), Arc::clone(&visit), peer);
        tokio::spawn(talk(stream, visit, service, Arc::clone(&to)));
    }
    // Waits for the clients that still have a request. The semaphore is never closed.
    let _ = places.clients.acquire_many(MAX_CONNECTIONS as u32).await;
}

/// Serves a connection until it ends, or its client is a stranger whose time or place is lost.
async fn talk(
    stream: TcpStream,
    visit: Arc<Visit>,
    service: impl Service<
        Request<Incoming>,
        Response = Response<Body>,
        Error = Infallible,
        Future: Future<Output = Result<Response<Body>, Infallible>> + Send,
    > + Send,
    to: Arc<Supervisor>,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(PATIENCE).max_buf_size(MAX_HEAD);
    let mut talk = pin!(http.serve_connection(TokioIo::new(stream), service));
    let done = tokio::select! {
        done = talk.as_mut() => done,
        () = visit.overstays(PATIENCE) => return,
        _ = to.asked_to_stop() => {
            if !visit.is_client() {
                return;
            }
            talk.as_mut().graceful_shutdown();
            talk.await
        }
    };
    if let Err(error) = done {
        tracing::debug!(%error, "control connection over TCP");
    }
}

/// The router, for requests that have a token. The body of any other request is not read.
fn guarded(
    router: Router,
    tokens: Arc<Tokens>,
    visit: Arc<Visit>,
    peer: SocketAddr,
) -> impl Service<
    Request<Incoming>,
    Response = Response<Body>,
    Error = Infallible,
    Future = impl Future<Output = Result<Response<Body>, Infallible>>,
> {
    let router = TowerToHyperService::new(router);
    service_fn(move |request: Request<Incoming>| {
        let asked = match tokens.known(request.headers(), peer) {
            Some(_) if !visit.become_client() => Err(full()),
            Some(who) => known(request, who).map_err(|error| refusal(&error)),
            None => Err(unknown()),
        };
        let router = router.clone();
        async move {
            match asked {
                Ok(request) => router.call(request).await,
                Err(refused) => Ok(closing(refused)),
            }
        }
    })
}

impl Tokens {
    /// Who asks, by the token that was sent; `None` if it is neither.
    fn known(&self, headers: &HeaderMap, peer: SocketAddr) -> Option<Who> {
        let sent = headers.get(AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")?;
        let is = |token: &Option<String>| {
            token.as_ref().is_some_and(|token| same(sent.as_bytes(), token.as_bytes()))
        };
        let views = match (is(&self.control), is(&self.view)) {
            (true, _) => None,
            (false, true) => Some(Sight::All),
            (false, false) => return None,
        };
        Some(Who { peer: Peer::Address(peer), caller: Caller::Remote, views })
    }
}

/// Compares in constant time, so that timing does not reveal where the difference is.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

fn unknown() -> Response {
    let remedy = "send Authorization: Bearer with what is in the daemon's token file";
    let error = ApiError::new(ErrorCode::Forbidden, "The token is missing or wrong", remedy);
    let asks = [(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))];
    (asks, problem(StatusCode::UNAUTHORIZED, &error)).into_response()
}

fn full() -> Response {
    let reason = format!("{MAX_CONNECTIONS} clients are connected over TCP");
    let error = ApiError::new(ErrorCode::Busy, reason, "close a connection, and try again");
    problem(StatusCode::SERVICE_UNAVAILABLE, &error)
}

/// The response as the last one of its connection.
fn closing(mut response: Response) -> Response {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// The places of connections over TCP.
#[derive(Debug)]
struct Places {
    strangers: Mutex<Strangers>,
    clients: Arc<Semaphore>,
}

impl Default for Places {
    fn default() -> Self {
        Self { strangers: Mutex::default(), clients: Arc::new(Semaphore::new(MAX_CONNECTIONS)) }
    }
}

/// Connections that have not sent the token, by number; the oldest has the lowest.
#[derive(Debug, Default)]
struct Strangers {
    next: u64,
    here: BTreeMap<u64, Stranger>,
}

/// A connection that has not sent the token.
#[derive(Debug)]
struct Stranger {
    network: IpAddr,
    leave: Arc<Notify>,
}

impl Strangers {
    /// The oldest connection of the network that has the most.
    fn crowded_out(&self) -> Option<u64> {
        let mut counts = HashMap::<IpAddr, usize>::new();
        for stranger in self.here.values() {
            *counts.entry(stranger.network).or_default() += 1;
        }
        let most = counts.values().max();
        let of_most = |(_, stranger): &(&u64, &Stranger)| counts.get(&stranger.network) == most;
        self.here.iter().find(of_most).map(|(number, _)| *number)
    }
}

impl Places {
    /// Gives a new connection a place among strangers. If there is none, the address with the most
    /// connections loses its oldest.
    fn enter(this: &Arc<Self>, peer: IpAddr) -> Visit {
        let leave = Arc::new(Notify::new());
        let mut strangers = locked(&this.strangers);
        if strangers.here.len() >= MAX_STRANGERS
            && let Some(number) = strangers.crowded_out()
            && let Some(stranger) = strangers.here.remove(&number)
        {
            stranger.leave.notify_one();
        }
        let number = strangers.next;
        strangers.next += 1;
        let stranger = Stranger { network: network_of(peer), leave: Arc::clone(&leave) };
        strangers.here.insert(number, stranger);
        drop(strangers);
        Visit { number, leave, places: Arc::clone(this), client: OnceLock::new() }
    }
}

/// The network that counts as one peer: an IPv4 address, or the 64 bits that one site has of IPv6.
fn network_of(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        v4 => v4,
    }
}

/// A connection's place: among strangers, or, after a request with the token, among clients.
#[derive(Debug)]
struct Visit {
    number: u64,
    leave: Arc<Notify>,
    places: Arc<Places>,
    client: OnceLock<OwnedSemaphorePermit>,
}

impl Visit {
    fn is_client(&self) -> bool {
        self.client.get().is_some()
    }

    /// Gives up the place among strangers. Returns false if it is lost already.
    fn leave_strangers(&self) -> bool {
        locked(&self.places.strangers).here.remove(&self.number).is_some()
    }

    /// Takes a place among clients, which a connection keeps until it ends.
    /// Returns false if there is none, or the place among strangers is lost already.
    fn become_client(&self) -> bool {
        if self.is_client() {
            return true;
        }
        let place = Arc::clone(&self.places.clients).try_acquire_owned();
        match place {
            Ok(place) if self.leave_strangers() => self.client.set(place).is_ok(),
            _ => false,
        }
    }

    /// Ends when the connection's time or place among strangers is lost. A client's never ends.
    async fn overstays(&self, time: Duration) {
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            () = self.leave.notified() => {}
        }
        self.leave_strangers();
        if self.is_client() {
            std::future::pending().await
        }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.leave_strangers();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_compared_whole() {
        assert!(same(b"secret", b"secret"));
        for wrong in [&b"secre"[..], b"secrets", b"Secret", b""] {
            assert!(!same(wrong, b"secret"));
        }
    }

    #[test]
    fn the_address_with_the_most_connections_loses_its_oldest() {
        let places = Arc::new(Places::default());
        let (crowd, other): (IpAddr, IpAddr) =
            ("2001:db8::1".parse().unwrap(), "::ffff:192.0.2.1".parse().unwrap());
        let is_here = |visit: &Visit| locked(&places.strangers).here.contains_key(&visit.number);
        let first = Places::enter(&places, other);
        let mut many: Vec<_> = (0..1000u32)
            .map(|i| Places::enter(&places, format!("2001:db8::{i:x}").parse().unwrap()))
            .collect();
        assert_eq!(network_of(crowd), network_of("2001:db8::ffff".parse().unwrap()));
        assert!(is_here(&first), "a crowd of one network has displaced another network");
        assert_eq!(many.iter().filter(|visit| is_here(visit)).count(), MAX_STRANGERS - 1);
        assert!(is_here(many.last().unwrap()) && !is_here(&many[0]));
        // One that is gone leaves its place, one with the token is no stranger.
        many.pop();
        assert!(first.become_client());
        assert_eq!(locked(&places.strangers).here.len(), MAX_STRANGERS - 2);
        let many_more: Vec<_> = (0..500).map(|_| Places::enter(&places, crowd)).collect();
        assert!(first.is_client() && !many[0].become_client(), "its place was lost");
        assert_eq!(many_more.iter().filter(|visit| visit.become_client()).count(), 127);
        drop((first, many, many_more));
        assert!(locked(&places.strangers).here.is_empty());
        assert_eq!(places.clients.available_permits(), MAX_CONNECTIONS);
    }

    #[tokio::test]
    async fn strangers_have_a_time_and_clients_have_none() {
        let places = Arc::new(Places::default());
        let peer = IpAddr::from([127, 0, 0, 1]);
        let stranger = Places::enter(&places, peer);
        stranger.overstays(Duration::ZERO).await;
        assert!(!stranger.become_client(), "its time was over");
        let client = Places::enter(&places, peer);
        assert!(client.become_client());
        let ended =
            tokio::time::timeout(Duration::from_millis(5), client.overstays(Duration::ZERO));
        assert!(ended.await.is_err(), "a client's time is not limited");
    }
}
