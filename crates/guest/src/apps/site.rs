//! A web server for documents in memory: HTTP/1.1 with keep-alive, pipelining, HEAD, ranges and
//! conditional requests.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use tcp::Bytes;

use crate::app::{App, Io};

/// Maximum length of a request's head.
const MAX_HEAD: usize = 8 << 10;
const MAX_HEADERS: usize = 64;
/// Limit of the queued answers in bytes. Above it, no further request is read.
const MAX_QUEUED: usize = 1 << 20;

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
}

/// The server: documents by path.
#[derive(Clone, Debug, Default)]
pub struct Site {
    documents: HashMap<String, Document>,
    /// How many requests were answered.
    pub requests: u64,
}

/// The state of a connection.
#[derive(Debug, Default)]
pub struct Session {
    /// The last answer was sent, so the connection ends.
    done: bool,
}

/// The parts of a request that the server uses.
#[derive(Default)]
struct Request<'a> {
    head_only: bool,
    keep_alive: bool,
    has_body: bool,
    range: Option<&'a [u8]>,
    if_none_match: Option<&'a [u8]>,
}

impl<'a> Request<'a> {
    fn of(parsed: &httparse::Request<'_, 'a>) -> Self {
        let mut request = Self {
            head_only: parsed.method == Some("HEAD"),
            keep_alive: parsed.version == Some(1),
            ..Self::default()
        };
        for header in &*parsed.headers {
            let is = |name: &str| header.name.eq_ignore_ascii_case(name);
            let word = header.value.trim_ascii();
            if is("connection") {
                let says = |said: &str| word.eq_ignore_ascii_case(said.as_bytes());
                request.keep_alive = !says("close") && (request.keep_alive || says("keep-alive"));
            } else if is("range") {
                request.range = Some(word);
            } else if is("if-none-match") {
                request.if_none_match = Some(word);
            } else if is("transfer-encoding") || (is("content-length") && word != b"0") {
                request.has_body = true;
            }
        }
        request
    }
}

impl Site {
    /// Serves `body` at `path`.
    pub fn add(&mut self, path: &str, body: Bytes) {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(&body);
        let etag = format!("\"{hash:016x}\"");
        let kind = kind_of(path);
        let head = head("200 OK", kind, &etag, body.len(), "");
        let whole = (body.len() <= 16 << 10).then(|| Bytes::from([&head[..], &body[..]].concat()));
        self.documents.insert(path.to_owned(), Document { body, etag, kind, head, whole });
    }

    fn answer(&mut self, io: &mut Io<'_>, path: &str, request: &Request<'_>) {
        self.requests += 1;
        let path = path.split(['?', '#']).next().unwrap_or_default();
        let Some(document) = self.documents.get(path) else {
            return send_error(io, "404 Not Found", request.keep_alive);
        };
        let Document { body, etag, kind, .. } = document;
        if request.if_none_match.is_some_and(|tags| names(tags, etag)) {
            return io.send(head("304 Not Modified", kind, etag, 0, ""));
        }
        let mut sent = (&document.head, body.clone());
        let partial;
        match request.range.map(|range| parse_range(range, body.len())) {
            None | Some(Range::Ignored) if !request.head_only => {
                if let Some(whole) = &document.whole {
                    return io.send(whole.clone());
                }
            }
            None | Some(Range::Ignored) => {}
            Some(Range::Bytes(from, to)) => {
                let range = format!("Content-Range: bytes {from}-{}/{}\r\n", to - 1, body.len());
                partial = head("206 Partial Content", kind, etag, to - from, &range);
                sent = (&partial, body.slice(from..to));
            }
            Some(Range::Unsatisfiable) => {
                let range = format!("Content-Range: bytes */{}\r\n", body.len());
                return io.send(head("416 Range Not Satisfiable", kind, etag, 0, &range));
            }
        }
        io.send(sent.0.clone());
        if !request.head_only {
            io.send(sent.1);
        }
    }

    /// Answers the request at the start of `data`; returns its length, or 0 if it is incomplete.
    fn request(&mut self, session: &mut Session, io: &mut Io<'_>, data: &[u8]) -> usize {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut parsed = httparse::Request::new(&mut headers);
        let len = match parsed.parse(data) {
            Ok(httparse::Status::Complete(len)) if len <= MAX_HEAD => len,
            Ok(httparse::Status::Partial) if data.len() <= MAX_HEAD => return 0,
            Ok(_) | Err(httparse::Error::TooManyHeaders) => {
                session.end(io, "431 Request Header Fields Too Large");
                return data.len();
            }
            Err(_) => {
                session.end(io, "400 Bad Request");
                return data.len();
            }
        };
        let request = Request::of(&parsed);
        match parsed.method {
            // The end of the body is not parsed, so the connection must end here.
            _ if request.has_body => session.end(io, "413 Content Too Large"),
            Some("GET" | "HEAD") => self.answer(io, parsed.path.unwrap_or_default(), &request),
            _ => send_error(io, "405 Method Not Allowed", request.keep_alive),
        }
        if !request.keep_alive {
            session.finish(io);
        }
        len
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
            let len = self.request(session, io, &data[at..]);
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

    fn end(&mut self, io: &mut Io<'_>, status: &str) {
        send_error(io, status, false);
        self.finish(io);
    }
}

fn send_error(io: &mut Io<'_>, status: &str, keep_alive: bool) {
    let connection = if keep_alive { "" } else { "Connection: close\r\n" };
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n{connection}\r\n");
    io.send(head.into());
}

fn head(status: &str, kind: &str, etag: &str, len: usize, more: &str) -> Bytes {
    // A 304 answer has no body and states no length (RFC 9110, 15.4.5).
    let length = if status.starts_with("304") {
        String::new()
    } else {
        format!("Content-Type: {kind}\r\nContent-Length: {len}\r\n")
    };
    let ranges = "Accept-Ranges: bytes";
    format!("HTTP/1.1 {status}\r\n{length}ETag: {etag}\r\n{ranges}\r\n{more}\r\n").into()
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

/// Returns true if a list of entity tags contains this one, or `*` (RFC 9110, 13.1.2).
fn names(tags: &[u8], etag: &str) -> bool {
    let mut tags = tags.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    tags.any(|tag| tag == b"*" || tag.strip_prefix(b"W/").unwrap_or(tag) == etag.as_bytes())
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
        let range = std::str::from_utf8(value).ok()?.trim().strip_prefix("bytes=")?;
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
