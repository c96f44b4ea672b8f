//! The control API over HTTP, and its server on a Unix socket. [`super::tcp_server`] is the one on
//! TCP.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::{BytesRejection, RawPathParamsRejection};
use axum::extract::{
    DefaultBodyLimit, Extension, MatchedPath, Query, RawPathParams, Request, State,
};
use axum::http::header::{ALLOW, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, IF_MATCH};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, on};
use axum::serve::Listener;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use port::Nanos;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

use super::apply::{How, Removes};
use super::caller::Caller;
use super::supervisor::{Supervisor, monotonic_ns};
use super::who::{Peer, Who, command};
use super::words::plain;
use super::{answers, metrics, shape};
use crate::api::{
    ApiError, Applied, ApplyQuery, Client, DropsQuery, ErrorCode, EventsQuery, EvpnQuery, FdbQuery,
    GuestLogQuery, Operation, PROBLEM, Problem, ROUTES, StatsQuery, openapi,
};

/// Longest request body in bytes: a topology of many thousand ports fits.
const MAX_BODY: usize = 16 << 20;
/// Connection limit of clients, on the Unix socket and over TCP each. On the Unix socket, further
/// connections wait to be accepted.
pub(super) const MAX_CONNECTIONS: usize = 128;
/// Longest wait for an event.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

type Params = HashMap<String, String>;

/// A request, but for what it is to do.
#[derive(Clone, Copy)]
struct Asked<'r> {
    uri: &'r Uri,
    params: &'r Params,
    body: &'r [u8],
    who: &'r Who,
}

/// Serves clients of the Unix socket until the daemon is to stop and all requests are answered.
pub async fn serve_unix(mut listener: UnixListener, to: Arc<Supervisor>) {
    let router = router(Arc::clone(&to));
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let next = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (place, Listener::accept(&mut listener).await.0)
        };
        let (place, stream) = tokio::select! {
            next = next => next,
            _ = to.asked_to_stop() => break,
        };
        let who = Who { peer: peer(&stream), caller: Caller::Local, views: None };
        let (router, to) = (router.clone(), Arc::clone(&to));
        tokio::spawn(async move {
            let _place = place;
            talk(http1::Builder::new(), stream, who, router, to).await;
        });
    }
    // Waits for the connections that still have a request. The semaphore is never closed.
    let _ = places.acquire_many(MAX_CONNECTIONS as u32).await;
}

/// The process that has connected a socket.
fn peer(stream: &UnixStream) -> Peer {
    let known = jail::peer::of(stream).ok();
    let pid = known.and_then(|peer| peer.pid).map_or(0, i32::cast_unsigned);
    Peer::Process(Client { pid, uid: known.map_or(u32::MAX, |peer| peer.uid) })
}

/// Serves a connection of a process until it ends, or the daemon is to stop and its request is
/// answered.
pub(super) async fn talk(
    http: http1::Builder,
    stream: UnixStream,
    who: Who,
    router: Router,
    to: Arc<Supervisor>,
) {
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |request: Request<Incoming>| {
        let (router, request) = (router.clone(), known(request, who));
        async move {
            match request {
                Ok(request) => router.call(request).await,
                Err(error) => Ok::<_, Infallible>(refusal(&error)),
            }
        }
    });
    let mut talk = pin!(http.serve_connection(TokioIo::new(stream), service));
    let done = tokio::select! {
        done = talk.as_mut() => done,
        _ = to.asked_to_stop() => {
            talk.as_mut().graceful_shutdown();
            talk.await
        }
    };
    if let Err(error) = done {
        tracing::debug!(%error, "control connection");
    }
}

/// A request that says who asks. That of a reader has no body.
///
/// # Errors
/// A reader may not ask this. Its body is not read.
pub(super) fn known(request: Request<Incoming>, who: Who) -> Result<Request, ApiError> {
    who.check_method(request.method())?;
    let mut request = match who.views {
        Some(_) => request.map(|_| Body::empty()),
        None => request.map(Body::new),
    };
    request.extensions_mut().insert(who);
    Ok(request)
}

/// The router that [`ROUTES`] describes. Each request says [`Who`] asks.
pub(super) fn router(to: Arc<Supervisor>) -> Router {
    let nothing = |request: Request| async move {
        let reason = format!("There is no {} {}", request.method(), request.uri().path());
        refusal(&ApiError::new(ErrorCode::NotFound, reason, "see /openapi.json"))
    };
    let mut router = Router::new();
    for route in ROUTES {
        let operation = route.operation;
        let handler = move |State(to): State<Arc<Supervisor>>,
                            Extension(who): Extension<Who>,
                            path: Result<RawPathParams, RawPathParamsRejection>,
                            uri: Uri,
                            headers: HeaderMap,
                            body: Result<Bytes, BytesRejection>| async move {
            let done = async {
                let params = params_of(path, &headers)?;
                let body = body.map_err(|e| unread(&e))?;
                carry_out(operation, to, who, uri, params, body).await
            };
            done.await.unwrap_or_else(|error| refusal(&error))
        };
        router = router.route(route.path, on(filter(route.method), handler));
    }
    router
        .fallback(nothing)
        .method_not_allowed_fallback(|request: Request| async move { other_method(&request) })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(axum::middleware::from_fn(answers::shorten))
        .with_state(to)
}

/// Carries out a request. What changes something is a line in the log.
async fn carry_out(
    operation: Operation,
    to: Arc<Supervisor>,
    who: Who,
    uri: Uri,
    params: Params,
    body: Bytes,
) -> Result<Response, ApiError> {
    who.check_operation(operation)?;
    if operation == Operation::GetEvents {
        // A wait ends with its connection.
        return events(&to, &who, query(&uri)?).await;
    }
    // The rest runs in a task of its own: a client that disconnects must not stop a change halfway.
    let done = tokio::spawn(async move {
        let did = command(operation, &params, &uri, &body);
        let asked = Asked { uri: &uri, params: &params, body: &body, who: &who };
        let done = answer(operation, &to, &asked).await;
        if let Some(did) = did {
            let steps = done.as_ref().ok().and_then(|reply| reply.extensions().get::<Steps>());
            let ended = steps.map_or("done", |steps| steps.0.as_str());
            who.audit(&did, done.as_ref().map(|_| ended));
        }
        done
    });
    let failed = |_| Err(super::system("The request failed", std::io::ErrorKind::Other.into()));
    done.await.unwrap_or_else(failed)
}

/// Replies with what has happened, after a wait that ends with the daemon.
async fn events(to: &Supervisor, who: &Who, asked: EventsQuery) -> Result<Response, ApiError> {
    let since = asked.since.unwrap_or(0);
    let time = Duration::from_secs(asked.wait.into());
    if time > LONGEST_WAIT {
        let longest = LONGEST_WAIT.as_secs();
        return Err(bad(format!("wait={} is longer than {longest} seconds", asked.wait)));
    }
    let wanted = |event: &crate::api::Event| who.sees_event(event);
    tokio::select! {
        found = to.journal.wait(since, time, wanted) => reply(&found),
        _ = to.asked_to_stop() => reply(&to.journal.since(since, wanted)),
    }
}

/// What a topology has changed, for the log.
#[derive(Clone)]
struct Steps(String);

fn applied(done: &Applied) -> Result<Response, ApiError> {
    let step = |change: &crate::api::Change| format!("{} {}", change.action, change.name);
    let steps: Vec<_> = done.changes.iter().map(step).collect();
    let steps = if steps.is_empty() { "nothing to change".into() } else { steps.join(", ") };
    Ok((Extension(Steps(steps)), axum::Json(done)).into_response())
}

/// Refuses a method that a path does not have, and lists the methods it has.
fn other_method(request: &Request) -> Response {
    let path = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let methods = methods(path);
    let reason = format!("{} is not for {}", request.method(), request.uri().path());
    let remedy = format!("it is for {methods}; see /openapi.json");
    let refused = refusal(&ApiError::new(ErrorCode::MethodNotAllowed, reason, remedy));
    (HeaderValue::try_from(methods).map(|methods| [(ALLOW, methods)]).ok(), refused).into_response()
}

/// A request's path parameters and precondition.
fn params_of(
    path: Result<RawPathParams, RawPathParamsRejection>,
    headers: &HeaderMap,
) -> Result<Params, ApiError> {
    let path = path.map_err(|e| bad(format!("The path: {e}")))?;
    let mut params: Params = path.iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
    let expected = headers.get(IF_MATCH).and_then(|tag| tag.to_str().ok());
    params.extend(expected.map(|tag| (IF_MATCH.to_string(), tag.to_owned())));
    Ok(params)
}

/// The methods of a path, for `Allow` (RFC 9110, 10.2.1). Each path with `GET` also has `HEAD`.
fn methods(path: &str) -> String {
    let methods = ROUTES.iter().filter(|route| route.path == path).map(|route| route.method);
    let methods = methods.flat_map(|method| match method {
        "GET" => vec!["GET", "HEAD"],
        other => vec![other],
    });
    methods.collect::<Vec<_>>().join(", ")
}

/// The reason why a request body could not be read.
fn unread(why: &BytesRejection) -> ApiError {
    if why.status() == StatusCode::PAYLOAD_TOO_LARGE {
        let reason = format!("The body is longer than {} MiB", MAX_BODY >> 20);
        return ApiError::new(ErrorCode::TooLarge, reason, "send it in parts");
    }
    bad(format!("The body: {why}"))
}

/// The axum filter of a method in [`ROUTES`].
fn filter(method: &str) -> MethodFilter {
    match method {
        "PUT" => MethodFilter::PUT,
        "POST" => MethodFilter::POST,
        "PATCH" => MethodFilter::PATCH,
        "DELETE" => MethodFilter::DELETE,
        _ => MethodFilter::GET,
    }
}

/// Carries out an operation of the API.
async fn answer(
    operation: Operation,
    to: &Arc<Supervisor>,
    asked: &Asked<'_>,
) -> Result<Response, ApiError> {
    let Asked { uri, params, body, who } = *asked;
    let caller = who.caller;
    let param = |name: &str| params.get(name).map_or("", String::as_str);
    let (switch, port, guest) = (param("switch"), param("port"), param("guest"));
    match operation {
        Operation::GetStatus => reply(&to.status().await),
        Operation::GetTopology => {
            let (topology, tag) = to.get_topology().await;
            Ok(([(ETAG, tag)], axum::Json(who.reads_as().readable(topology))).into_response())
        }
        Operation::PutTopology => applied(&to.apply(parse(body)?, &how(query(uri)?, asked)).await?),
        Operation::ListSwitches => reply(&to.switch_infos().await),
        Operation::AddSwitch => created(&to.add_switch(parse(body)?, caller).await?),
        Operation::GetSwitch => reply(&to.switch_info(switch).await?),
        Operation::PatchSwitch => reply(&to.patch_switch(switch, &parse(body)?, caller).await?),
        Operation::DeleteSwitch => done(to.delete_switch(switch).await),
        Operation::ListPorts => reply(&to.overview(switch).await?.seen_by(who).ports),
        Operation::AddPort => created(&to.add_port(switch, parse(body)?, caller).await?),
        Operation::GetPort => reply(&to.port_seen(switch, port, who).await?),
        Operation::GetPortLink => {
            to.port_seen(switch, port, who).await?;
            reply(&to.port_link(switch, port).await?)
        }
        Operation::PatchPort => reply(&to.patch_port(switch, port, &parse(body)?, caller).await?),
        Operation::DeletePort => done(to.delete_port(switch, port).await),
        Operation::ListFdb => reply(&to.overview(switch).await?.fdb_seen_by(who, now())),
        Operation::AddFdb => done(to.switch(switch)?.lock().await.add_fdb(&parse(body)?).await),
        Operation::FlushFdb => {
            done(to.switch(switch)?.lock().await.flush_fdb(&parse_or_default(body)?).await)
        }
        Operation::DeleteFdb => {
            let mac = word(param("mac"))?;
            let FdbQuery { vlan } = query(uri)?;
            done(to.switch(switch)?.lock().await.delete_fdb(mac, vlan).await)
        }
        Operation::ListRules => reply(&to.switch(switch)?.lock().await.policies().await?),
        Operation::ZeroRules => done(to.switch(switch)?.lock().await.zero_rules().await),
        Operation::ListConnections => reply(&to.switch(switch)?.lock().await.connections().await?),
        Operation::ListGroups => reply(&to.groups().await),
        Operation::PutGroup => reply(&to.put_group(param("group"), parse(body)?).await?),
        Operation::DeleteGroup => done(to.delete_group(param("group")).await),
        Operation::ListTables => reply(&to.tables().await),
        Operation::PutTable => done(to.put_table(param("table"), parse(body)?).await),
        Operation::PatchTable => done(to.patch_table(param("table"), parse(body)?).await),
        Operation::DeleteTable => done(to.delete_table(param("table")).await),
        Operation::ListDrops => {
            let DropsQuery { since } = query(uri)?;
            reply(&to.overview(switch).await?.dropped(since, now()))
        }
        Operation::GetEvents => events(to, who, query(uri)?).await,
        Operation::GetStats => {
            let StatsQuery { switch } = query(uri)?;
            reply(&to.stats(switch.as_deref(), who).await?)
        }
        Operation::ListPipes => reply(&pipes(to, who)),
        Operation::ListNetmapPorts => reply(&to.netmap_ports()),
        Operation::DeleteNetmapPort => {
            done(to.delete_netmap_port(param("uid"), param("netmap_port")).await)
        }
        Operation::ListGuests => reply(&to.guest_entries().await),
        Operation::GetGuest => reply(&to.guest_entry(guest).await?),
        Operation::PutGuest => match to.put_guest(guest, parse(body)?, caller).await? {
            (true, entry) => created(&entry),
            (false, entry) => reply(&entry),
        },
        Operation::DeleteGuest => done(to.delete_guest(guest).await),
        Operation::StopGuest => done(to.stop_guest(guest).await),
        Operation::GetGuestLog => {
            let GuestLogQuery { guest: which } = query(uri)?;
            Ok(to.guest_log(guest, which.as_deref()).await?.into_response())
        }
        Operation::GetEvpn => reply(&to.evpn_summary().await?),
        Operation::ListEvpnMacs => reply(&to.evpn_macs().await?),
        Operation::ListEvpnRoutes => reply(&to.evpn_routes().await?),
        Operation::ReleaseEvpnMac => {
            let EvpnQuery { vni } = query(uri)?;
            done(to.release_duplicate(vni, word(param("mac"))?).await)
        }
        Operation::GetQuotas => reply(&to.quotas()),
        Operation::PatchQuotas => reply(&to.patch_quotas(&parse(body)?).await?),
        Operation::Upgrade => {
            let what: crate::api::Upgrade = parse_or_default(body)?;
            reply(&to.upgrade(what.switch.as_deref()).await?)
        }
        Operation::Stop => {
            to.ask_to_stop(parse_or_default(body)?);
            Ok(StatusCode::NO_CONTENT.into_response())
        }
        Operation::GetMetrics => Ok(metrics::page(to).await.into_response()),
        Operation::GetOpenApi => reply(&openapi::document()),
    }
}

/// The pipes that the caller may see.
fn pipes(of: &Supervisor, who: &Who) -> Vec<crate::api::PipeInfo> {
    let uid = |end: Option<Client>| end.map(|client| client.uid);
    let mut pipes = of.list_pipes();
    pipes.retain(|pipe| who.sees_users(&[uid(pipe.master), uid(pipe.slave)]));
    pipes
}

/// Time of the monotonic clock.
fn now() -> Nanos {
    Nanos(monotonic_ns())
}

fn bad(reason: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::BadRequest, reason, "see /openapi.json for what it takes")
}

/// Parses a request body. A list in place of an object is refused.
fn parse<T: DeserializeOwned + Serialize>(body: &[u8]) -> Result<T, ApiError> {
    let wrong =
        |e: serde_json::Error| bad(format!("The request's JSON: {}", plain(&e.to_string())));
    let understood = serde_json::from_slice(body).map_err(wrong)?;
    shape::check(&serde_json::from_slice(body).map_err(wrong)?, &understood)?;
    Ok(understood)
}

/// How a topology is applied, according to the request's query and `If-Match`.
fn how(query: ApplyQuery, asked: &Asked<'_>) -> How {
    How {
        file: query.file.unwrap_or_else(|| "api".into()),
        removes: if query.prune { Removes::All } else { Removes::Nothing },
        content: None,
        dry_run: query.dry_run,
        goes_on: false,
        expected: asked.params.get(IF_MATCH.as_str()).filter(|tag| *tag != "*").cloned(),
        caller: asked.who.caller,
    }
}

/// A request's query.
fn query<T: DeserializeOwned>(uri: &Uri) -> Result<T, ApiError> {
    let Query(query) = Query::try_from_uri(uri)
        .map_err(|e| bad(format!("The query: {}", plain(&e.to_string()))))?;
    Ok(query)
}

fn parse_or_default<T: DeserializeOwned + Serialize + Default>(body: &[u8]) -> Result<T, ApiError> {
    if body.is_empty() { Ok(T::default()) } else { parse(body) }
}

/// A path parameter that is a string in JSON too.
fn word<T: DeserializeOwned>(text: &str) -> Result<T, ApiError> {
    serde_json::from_value(text.into()).map_err(|e| bad(e.to_string()))
}

fn reply(value: &impl Serialize) -> Result<Response, ApiError> {
    Ok(axum::Json(value).into_response())
}

fn created(value: &impl Serialize) -> Result<Response, ApiError> {
    Ok((StatusCode::CREATED, axum::Json(value)).into_response())
}

fn done(result: Result<(), ApiError>) -> Result<Response, ApiError> {
    result.map(|()| StatusCode::NO_CONTENT.into_response())
}

/// Replies with a refusal, with its code's HTTP status.
pub(super) fn refusal(error: &ApiError) -> Response {
    let status = StatusCode::from_u16(error.code.status());
    problem(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), error)
}

/// A refusal in the format of RFC 9457, with members of our own: `error`, `reason`, `remedy`.
pub(super) fn problem(status: StatusCode, error: &ApiError) -> Response {
    let kind = HeaderValue::from_static(PROBLEM);
    let named = (status.as_u16(), status.canonical_reason().unwrap_or_default());
    let body = Problem::of(named, error);
    (status, [(CONTENT_TYPE, kind)], axum::Json(body)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_of_the_table_has_its_filter() {
        for route in ROUTES {
            let known = ["GET", "PUT", "POST", "PATCH", "DELETE"];
            assert!(known.contains(&route.method), "{} {}", route.method, route.path);
        }
    }
}
