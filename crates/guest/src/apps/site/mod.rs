//! A web server for documents in memory: HTTP/1.1 (RFC 9110, 9112) with keep-alive, pipelining,
//! HEAD, ranges and conditional requests.

mod head;
mod request;

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use tcp::{Bytes, Nanos};

use crate::app::{App, Io};
use head::Head;
use request::{Keep, Read, Request, list};

/// Limit of the queued answers in bytes. Above it, no further request is read.
const MAX_QUEUED: usize = 1 << 20;
/// Documents to this length are sent in one piece with their heads.
const MAX_WHOLE: usize = 16 << 10;
/// The methods that are there, and those of RFC 9110 that are not.
const ALLOW: &str = "Allow: GET, HEAD, OPTIONS\r\n";
const OTHERS: [&str; 6] = ["POST", "PUT", "DELETE", "PATCH", "CONNECT", "TRACE"];
const PLAIN: &str = "text/plain; charset=utf-8";

/// A document, and the heads that do not depend on the request.
#[derive(Clone, Debug)]
struct Document {
    body: Bytes,
    etag: String,
    kind: &'static str,
    /// Head of an answer with the whole document.
    head: Bytes,
    /// Head and body in one chunk, for short documents.
    whole: Option<Bytes>,
    /// The second in which they were made.
    second: u64,
}

impl Document {
    /// Rebuilds the heads with this time.
    fn tell(&mut self, date: &str, second: u64) {
        let Self { body, etag, kind, .. } = self;
        let (etag, len) = (Some(&etag[..]), Some(body.len()));
        self.head = Head { status: "200 OK", kind, etag, len, ..Head::default() }.write(date);
        let is_short = self.body.len() <= MAX_WHOLE;
        self.whole = is_short.then(|| Bytes::from([&self.head[..], &self.body[..]].concat()));
        self.second = second;
    }
}

/// The server: documents by path.
#[derive(Clone, Debug, Default)]
pub struct Site {
    documents: HashMap<String, Document>,
    /// How many requests were answered.
    pub requests: u64,
    /// Time of day at which the guest's clock was 0, in seconds since 1970.
    epoch: Option<u64>,
    /// The field `Date`, and its second.
    date: (String, u64),
}

/// The state of a connection.
#[derive(Debug, Default)]
pub struct Session {
    /// The last answer was sent, so the connection ends.
    done: bool,
    /// Bytes of a request's body that are still to come. They are dropped.
    body: usize,
}

/// An answer that is not a whole document.
#[derive(Default)]
struct Other<'a> {
    status: &'static str,
    document: Option<&'a Document>,
    /// The body, unless the status is that of a failure, which has its own.
    body: Option<Bytes>,
    more: &'a str,
}

impl Site {
    /// Serves `body` at `path`.
    pub fn add(&mut self, path: &str, body: Bytes) {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(&body);
        let (etag, kind) = (format!("\"{hash:016x}\""), kind_of(path));
        let (head, whole, second) = (Bytes::new(), None, 0);
        let mut document = Document { body, etag, kind, head, whole, second };
        document.tell("", 0);
        self.documents.insert(path.to_owned(), document);
    }

    /// Lets answers tell the time. `epoch` is the time of day at which the guest's clock was 0, in
    /// seconds since 1970. A server without a clock tells none (RFC 9110, 6.6.1).
    pub fn tell_time(&mut self, epoch: u64) {
        self.epoch = Some(epoch);
    }

    /// Brings the field `Date` up to date.
    fn tick(&mut self, now: Nanos) {
        let Some(epoch) = self.epoch else { return };
        let second = epoch + now.0 / Nanos::SECOND;
        if second != self.date.1 {
            self.date = (head::date(second), second);
        }
    }

    /// Answers a request for a document.
    fn answer(&mut self, io: &mut Io<'_>, request: &Request<'_>) {
        let head_only = request.method == "HEAD";
        let Some(path) = request.path() else {
            return self.other(io, request, &Other::of("400 Bad Request"));
        };
        let (date, second) = &self.date;
        if self.documents.get(&*path).is_some_and(|document| document.second != *second) {
            self.documents.entry(path.to_string()).and_modify(|it| it.tell(date, *second));
        }
        let Some(document) = self.documents.get(&*path) else {
            return self.other(io, request, &Other::of("404 Not Found"));
        };
        let Document { body, etag, .. } = document;
        if request.if_match.is_some_and(|tags| !names(tags, etag, true)) {
            return self.other(io, request, &Other::of("412 Precondition Failed"));
        }
        let about = |status| Other { status, document: Some(document), ..Other::default() };
        if request.if_none_match.is_some_and(|tags| names(tags, etag, false)) {
            return self.other(io, request, &about("304 Not Modified"));
        }
        // A range of another version would be mixed with what the client has (RFC 9110, 13.1.5).
        let is_current = request.if_range.is_none_or(|tag| tag == etag.as_bytes());
        let range = request.range.filter(|_| is_current && !head_only);
        match range.map_or(Range::Ignored, |range| parse_range(range, body.len())) {
            Range::Ignored => self.whole(io, request, document),
            Range::Bytes(from, to) => {
                let more = format!("Content-Range: bytes {from}-{}/{}\r\n", to - 1, body.len());
                let part = Some(body.slice(from..to));
                let other = Other { body: part, more: &more, ..about("206 Partial Content") };
                self.other(io, request, &other);
            }
            Range::Unsatisfiable => {
                let more = format!("Content-Range: bytes */{}\r\n", body.len());
                let other = Other::of("416 Range Not Satisfiable");
                self.other(io, request, &Other { more: &more, ..other });
            }
        }
    }

    /// Sends a document.
    fn whole(&self, io: &mut Io<'_>, request: &Request<'_>, document: &Document) {
        let head_only = request.method == "HEAD";
        if request.keep != Keep::Open {
            let body = Some(document.body.clone());
            let document = Some(document);
            let other = Other { status: "200 OK", document, body, more: "" };
            return self.other(io, request, &other);
        }
        match &document.whole {
            Some(whole) if !head_only => io.send(whole.clone()),
            _ => {
                io.send(document.head.clone());
                io.send(if head_only { Bytes::new() } else { document.body.clone() });
            }
        }
    }

    /// Sends an answer whose head depends on the request.
    fn other(&self, io: &mut Io<'_>, request: &Request<'_>, other: &Other<'_>) {
        let Other { status, document, more, .. } = *other;
        let failed = status.starts_with(['4', '5']);
        let body = match &other.body {
            None if failed => Bytes::from(format!("{status}\n")),
            body => body.clone().unwrap_or_default(),
        };
        // 204 and 304 answers have no body and state no length (RFC 9110, 8.6).
        let len = (failed || other.body.is_some()).then_some(body.len());
        let (kind, etag) = document.map_or((PLAIN, None), |it| (it.kind, Some(&it.etag[..])));
        let head = Head { status, kind, etag, len, keep: request.keep, more };
        io.send(head.write(&self.date.0));
        if request.method != "HEAD" {
            io.send(body);
        }
    }

    /// Answers the request at the start of `data`; returns its length, or 0 if it is incomplete.
    fn request(&mut self, session: &mut Session, io: &mut Io<'_>, data: &[u8]) -> usize {
        self.tick(io.now());
        let read = Read::of(data);
        let (len, request) = match read {
            Read::Part => return 0,
            Read::Refused(status) if status.starts_with("505") => {
                let Some(known) = request::with_known_version(data) else {
                    return self.refuse(session, io, status, data);
                };
                return self.request(session, io, &known).min(data.len());
            }
            Read::Refused(status) => return self.refuse(session, io, status, data),
            Read::Whole(len, request) => (len, request),
        };
        self.requests += 1;
        match request.method {
            "GET" | "HEAD" => self.answer(io, &request),
            "OPTIONS" => {
                let other = Other { status: "204 No Content", more: ALLOW, ..Other::default() };
                self.other(io, &request, &other);
            }
            method if OTHERS.contains(&method) => {
                let other = Other::of("405 Method Not Allowed");
                self.other(io, &request, &Other { more: ALLOW, ..other });
            }
            _ => self.other(io, &request, &Other::of("501 Not Implemented")),
        }
        session.body = request.body;
        if request.keep == Keep::Close {
            session.finish(io);
        }
        len
    }

    /// Ends a connection whose request cannot be understood.
    fn refuse(
        &self,
        session: &mut Session,
        io: &mut Io<'_>,
        status: &'static str,
        data: &[u8],
    ) -> usize {
        let request = Request::unknown();
        self.other(io, &request, &Other::of(status));
        session.finish(io);
        data.len()
    }
}

impl Other<'_> {
    fn of(status: &'static str) -> Self {
        Self { status, ..Self::default() }
    }
}

impl App for Site {
    type Conn = Session;

    fn accepted(&mut self, _: &mut Io<'_>) -> Session {
        Session::default()
    }

    fn data(&mut self, session: &mut Session, io: &mut Io<'_>, data: &[u8]) -> usize {
        let mut at = 0;
        while at < data.len() && !session.done && io.queued() < MAX_QUEUED {
            let rest = &data[at..];
            let len = match session.body {
                0 => self.request(session, io, rest),
                body => {
                    let dropped = body.min(rest.len());
                    session.body -= dropped;
                    dropped
                }
            };
            if len == 0 {
                break;
            }
            at += len;
        }
        // After the last answer, further data is read and discarded. Otherwise a reset could reach
        // the peer before it has read the answer (RFC 9112, 9.6).
        if session.done { data.len() } else { at }
    }
}

impl Session {
    fn finish(&mut self, io: &mut Io<'_>) {
        self.done = true;
        io.finish();
    }
}

fn kind_of(path: &str) -> &'static str {
    match path.rsplit_once('.').map(|(_, end)| end) {
        Some("html") | None => "text/html; charset=utf-8",
        Some("css") => "text/css",
        Some("js") => "text/javascript",
        Some("txt") => "text/plain; charset=utf-8",
        Some("png") => "image/png",
        Some("svg") => "image/svg+xml",
        Some(_) => "application/octet-stream",
    }
}

/// Returns true if a list of entity tags contains this one, or `*` (RFC 9110, 13.1). A weak tag is
/// not the strong one where that matters.
fn names(tags: &[u8], etag: &str, strong: bool) -> bool {
    list(tags).any(|tag| {
        let same = tag.strip_prefix(b"W/").filter(|_| !strong).unwrap_or(tag);
        tag == b"*" || same == etag.as_bytes()
    })
}

#[derive(Debug, PartialEq, Eq)]
enum Range {
    /// Not understood, or several ranges: the whole document is a valid answer (RFC 9110, 14.2).
    Ignored,
    Unsatisfiable,
    /// The bytes from the first offset to before the second.
    Bytes(usize, usize),
}

fn parse_range(value: &[u8], len: usize) -> Range {
    let parse = || {
        let (unit, range) = std::str::from_utf8(value).ok()?.trim().split_once('=')?;
        if !unit.eq_ignore_ascii_case("bytes") {
            return None;
        }
        let (from, to) = range.split_once('-')?;
        let number = |text: &str| text.trim().parse::<usize>().ok();
        Some(match (number(from), number(to)) {
            (None, Some(last)) if from.is_empty() => (len.saturating_sub(last), len),
            (Some(from), None) if to.is_empty() => (from, len),
            (Some(from), Some(to)) if from <= to => (from, to.saturating_add(1).min(len)),
            _ => return None,
        })
    };
    match parse() {
        None => Range::Ignored,
        Some((from, to)) if from < to => Range::Bytes(from, to),
        Some(_) => Range::Unsatisfiable,
    }
}
