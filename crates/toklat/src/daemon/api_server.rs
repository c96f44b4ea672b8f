//! The control API over HTTP, and its server on a Unix socket. [`super::tcp_server`] is the one on
//! TCP.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, RawPathParamsRejection};
use axum::extract::{DefaultBodyLimit, MatchedPath, Query, RawPathParams, Request, State};
use axum::http::header::{ALLOW, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, IF_MATCH};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, on};
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use port::Nanos;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixListener;
use tokio::sync::Semaphore;

use super::apply::{How, Removes};
use super::caller::Caller;
use super::supervisor::{Supervisor, monotonic_ns};
use super::{metrics, shape};
use crate::api::{
    ApiError, ApplyQuery, DropsQuery, ErrorCode, EvpnQuery, FdbQuery, GuestLogQuery, Operation,
    PROBLEM, Problem, ROUTES, StatsQuery, openapi,
};

/// Longest request body in bytes: a topology of many thousand ports fits.
const MAX_BODY: usize = 16 << 20;
/// Connection limit of clients, on the Unix socket and over TCP each. On the Unix socket, further
/// connections wait to be accepted.
pub(super) const MAX_CONNECTIONS: usize = 128;

type Params = HashMap<String, String>;

/// A request, but for what it is to do.
#[derive(Clone, Copy)]
struct Asked<'r> {
    uri: &'r Uri,
    params: &'r Params,
    body: &'r [u8],
    caller: Caller,
}

/// Serves clients of the Unix socket until the daemon is to stop and all requests are answered.
pub async fn serve_unix(mut listener: UnixListener, to: Arc<Supervisor>) {
    let router = router(Arc::clone(&to), Caller::Local);
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
        let service = TowerToHyperService::new(router.clone());
        let to = Arc::clone(&to);
        tokio::spawn(async move {
            let _place = place;
            let mut talk =
                pin!(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
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
        });
    }
    // Waits for the connections that still have a request. The semaphore is never closed.
    let _ = places.acquire_many(MAX_CONNECTIONS as u32).await;
}

/// The router that [`ROUTES`] describes.
pub(super) fn router(to: Arc<Supervisor>, caller: Caller) -> Router {
    let nothing = |request: Request| async move {
        let reason = format!("There is no {} {}", request.method(), request.uri().path());
        refusal(&ApiError::new(ErrorCode::NotFound, reason, "see /openapi.json"))
    };
    let mut router = Router::new();
    for route in ROUTES {
        let operation = route.operation;
        let handler = move |State(to): State<Arc<Supervisor>>,
                            path: Result<RawPathParams, RawPathParamsRejection>,
                            uri: Uri,
                            headers: HeaderMap,
                            body: Result<Bytes, BytesRejection>| async move {
            let done = async {
                let params = params_of(path, &headers)?;
                let body = body.map_err(|e| unread(&e))?;
                // The handler runs in a task of its own: a client that disconnects must not stop a
                // change halfway.
                let done = tokio::spawn(async move {
                    let asked = Asked { uri: &uri, params: &params, body: &body, caller };
                    answer(operation, &to, &asked).await
                });
                let failed =
                    |_| Err(super::system("The request failed", std::io::ErrorKind::Other.into()));
                done.await.unwrap_or_else(failed)
            };
            done.await.unwrap_or_else(|error| refusal(&error))
        };
        router = router.route(route.path, on(filter(route.method), handler));
    }
    router
        .fallback(nothing)
        .method_not_allowed_fallback(|request: Request| async move { other_method(&request) })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(to)
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
    let Asked { uri, params, body, caller } = *asked;
    let param = |name: &str| params.get(name).map_or("", String::as_str);
    let (switch, port, guest) = (param("switch"), param("port"), param("guest"));
    match operation {
        Operation::GetStatus => reply(&to.status().await),
        Operation::GetTopology => {
            let (topology, tag) = to.get_topology().await;
            Ok(([(ETAG, tag)], axum::Json(caller.readable(topology))).into_response())
        }
        Operation::PutTopology => reply(&to.apply(parse(body)?, &how(query(uri)?, asked)).await?),
        Operation::ListSwitches => reply(&to.switch_infos().await),
        Operation::AddSwitch => created(&to.add_switch(parse(body)?, caller).await?),
        Operation::GetSwitch => reply(&to.switch_info(switch).await?),
        Operation::PatchSwitch => reply(&to.patch_switch(switch, &parse(body)?, caller).await?),
        Operation::DeleteSwitch => done(to.delete_switch(switch).await),
        Operation::ListPorts => reply(&to.overview(switch).await?.ports),
        Operation::AddPort => created(&to.add_port(switch, parse(body)?, caller).await?),
        Operation::GetPort => reply(&to.port_info(switch, port).await?),
        Operation::GetPortLink => reply(&to.port_link(switch, port).await?),
        Operation::PatchPort => reply(&to.patch_port(switch, port, &parse(body)?, caller).await?),
        Operation::DeletePort => done(to.delete_port(switch, port).await),
        Operation::ListFdb => reply(&to.overview(switch).await?.fdb(now())),
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
        Operation::GetStats => {
            let StatsQuery { switch } = query(uri)?;
            reply(&to.stats(switch.as_deref()).await?)
        }
        Operation::ListPipes => reply(&to.list_pipes()),
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

/// Time of the monotonic clock.
fn now() -> Nanos {
    Nanos(monotonic_ns())
}

fn bad(reason: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::BadRequest, reason, "see /openapi.json for what it takes")
}

/// Parses a request body. A list in place of an object is refused.
fn parse<T: DeserializeOwned + Serialize>(body: &[u8]) -> Result<T, ApiError> {
    let wrong = |e| bad(format!("The request's JSON: {e}"));
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
        caller: asked.caller,
    }
}

/// A request's query.
fn query<T: DeserializeOwned>(uri: &Uri) -> Result<T, ApiError> {
    let Query(query) = Query::try_from_uri(uri).map_err(|e| bad(format!("The query: {e}")))?;
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
fn refusal(error: &ApiError) -> Response {
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
