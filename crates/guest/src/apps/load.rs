//! A load generator for HTTP: each connection sends its next request when the last answer is
//! complete (closed loop).

use hdrhistogram::Histogram;
use tcp::{Bytes, CloseReason, ConnId, Nanos};

use crate::app::{App, Io};

const MAX_HEADERS: usize = 32;

/// The generator, with its measurements.
#[derive(Debug)]
pub struct Load {
    request: Bytes,
    /// Nanoseconds from the turn that sent a request to the turn that completed its answer.
    pub latencies: Histogram<u64>,
    /// Answers with status 200.
    pub answers: u64,
    /// Answers with other status codes, and invalid ones.
    pub errors: u64,
    /// Bytes of bodies.
    pub bytes: u64,
    /// Connections that were made.
    pub made: u64,
    /// Connections that ended.
    pub lost: u64,
    /// New connections wait until this is false.
    held: bool,
    waiting: Vec<ConnId>,
}

/// A connection: when its request was sent, and how much of the body is missing.
#[derive(Debug, Default)]
pub struct Fetch {
    sent: Nanos,
    body: Option<(bool, u64)>,
}

impl Load {
    /// Makes a generator that requests `path` of `host` repeatedly.
    ///
    /// # Panics
    /// Never: the histogram's bounds are valid.
    #[expect(clippy::expect_used, reason = "constants")]
    #[must_use]
    pub fn new(host: &str, path: &str) -> Self {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        // Three significant digits, up to a minute.
        let latencies = Histogram::new_with_bounds(1, 60 * Nanos::SECOND, 3);
        Self {
            request: request.into(),
            latencies: latencies.expect("the bounds are right"),
            answers: 0,
            errors: 0,
            bytes: 0,
            made: 0,
            lost: 0,
            held: false,
            waiting: Vec::new(),
        }
    }

    /// Makes new connections wait with their first requests, or lets them all begin.
    pub fn hold(&mut self, held: bool) {
        self.held = held;
    }

    fn ask(&mut self, fetch: &mut Fetch, io: &mut Io<'_>) {
        fetch.sent = io.now();
        io.send(self.request.clone());
    }

    /// Parses the head at the start of `data`: its length, whether the status is 200, and the
    /// body's length.
    fn head(data: &[u8]) -> Option<Option<(usize, bool, u64)>> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut parsed = httparse::Response::new(&mut headers);
        let httparse::Status::Complete(len) = parsed.parse(data).ok()? else { return Some(None) };
        let mut lengths = parsed.headers.iter();
        let length = lengths.find(|header| header.name.eq_ignore_ascii_case("content-length"));
        let body = std::str::from_utf8(length?.value).ok()?.trim().parse().ok()?;
        Some(Some((len, parsed.code == Some(200), body)))
    }
}

impl App for Load {
    type Conn = Fetch;

    fn accepted(&mut self, _: &mut Io<'_>) -> Fetch {
        Fetch::default()
    }

    fn connected(&mut self, fetch: &mut Fetch, io: &mut Io<'_>) {
        self.made += 1;
        match self.held {
            true => self.waiting.push(io.id()),
            false => self.ask(fetch, io),
        }
    }

    fn wake(&mut self) -> Option<ConnId> {
        if self.held { None } else { self.waiting.pop() }
    }

    fn woken(&mut self, fetch: &mut Fetch, io: &mut Io<'_>) {
        self.ask(fetch, io);
    }

    fn data(&mut self, fetch: &mut Fetch, io: &mut Io<'_>, data: &[u8]) -> usize {
        let (mut at, good, left) = match fetch.body {
            Some((good, left)) => (0, good, left),
            None => match Self::head(data) {
                Some(Some(head)) => head,
                Some(None) => return 0,
                None => {
                    self.errors += 1;
                    io.abort();
                    return data.len();
                }
            },
        };
        let taken = left.min((data.len() - at) as u64);
        at += taken as usize;
        self.bytes += taken;
        if taken < left {
            fetch.body = Some((good, left - taken));
            return at;
        }
        fetch.body = None;
        self.answers += u64::from(good);
        self.errors += u64::from(!good);
        self.latencies.saturating_record(io.now() - fetch.sent);
        self.ask(fetch, io);
        at
    }

    fn closed(&mut self, _: Fetch, _: Option<CloseReason>) {
        self.lost += 1;
    }
}
