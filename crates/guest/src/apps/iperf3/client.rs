//! The client's end.

use std::error::Error;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddr;

use tcp::{Bytes, CloseReason, ConnId, Nanos};

use super::Report;
use super::udp::{self, Streams};
use super::wire::{COOKIE, Params, Results, StreamResult, Text, number, state, write};
use crate::app::{App, Io};
use crate::clock;
use crate::guest::Guest;
use crate::nic::Nic;
use crate::stack::Stack;
use crate::udp::{UdpError, UdpId};

/// How long a server may take for a step.
const STEP: u64 = 10 * Nanos::SECOND;
/// How long a server may take to hear the end.
const GOODBYE: u64 = 2 * Nanos::SECOND;
/// After this time, a server is asked again to open a stream over UDP.
const AGAIN: u64 = Nanos::SECOND;
/// Ports that are tried for a stream over UDP.
const PORTS: u16 = 100;

impl Default for Params {
    fn default() -> Self {
        let piece = super::wire::PIECE;
        Self { parallel: 1, reverse: false, both: false, piece, seconds: 10, udp: None }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Starting,
    Running,
    Ending,
    Results,
    Done,
}

/// An iperf3 client.
#[derive(Debug)]
pub struct Client {
    params: Params,
    cookie: [u8; COOKIE],
    cpu: fn() -> f64,
    phase: Phase,
    control: Option<ConnId>,
    streams: Vec<Stream>,
    /// Streams that are to be opened now.
    wanted: usize,
    /// The streams of a test over UDP, and the one that is being opened: its socket, and when the
    /// server is asked again.
    datagrams: Option<Streams>,
    opening: Option<(UdpId, Nanos)>,
    /// Sockets of open streams.
    sockets: Vec<UdpId>,
    piece: Bytes,
    began: (Nanos, f64),
    /// When the test is to end.
    end: Nanos,
    seconds: f64,
    used: f64,
    wakes: Vec<ConnId>,
    failed: Option<&'static str>,
    report: Option<Report>,
}

#[derive(Debug)]
struct Stream {
    id: Option<ConnId>,
    sends: bool,
    bytes: u64,
}

/// A connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// The control connection.
    Control,
    /// The stream at this place.
    Data(usize),
}

impl Client {
    /// A client. `cpu` says how many seconds this thread has spent on a core; the cookie is to be
    /// the test's own.
    #[must_use]
    pub fn new(params: Params, cookie: [u8; 36], cpu: fn() -> f64) -> Self {
        let stream = |sends| Stream { id: None, sends, bytes: 0 };
        let mut whole = [0; COOKIE];
        whole[..36].copy_from_slice(&cookie);
        Self {
            params,
            cookie: whole,
            cpu,
            phase: Phase::Starting,
            control: None,
            streams: params.directions(false).into_iter().map(stream).collect(),
            wanted: 0,
            datagrams: params.udp.map(|settings| Streams::new(settings, params.piece)),
            opening: None,
            sockets: Vec::new(),
            piece: vec![0x5a; if params.udp.is_some() { 0 } else { params.piece }].into(),
            began: (Nanos(0), 0.0),
            end: Nanos(u64::MAX),
            seconds: 0.0,
            used: 0.0,
            wakes: Vec::new(),
            failed: None,
            report: None,
        }
    }

    /// The streams that are to be opened now: their places. Over UDP,
    /// [`datagrams`](Self::datagrams) opens them.
    pub fn wanted(&mut self) -> std::ops::Range<usize> {
        match self.datagrams {
            Some(_) => 0..0,
            None => 0..std::mem::take(&mut self.wanted),
        }
    }

    /// Opens the streams of a test over UDP, receives their datagrams, and sends those that are
    /// due. Returns when to call it again, if no frame arrives before.
    ///
    /// # Errors
    /// No port is free, or the server cannot be reached.
    pub fn datagrams<N: Nic>(
        &mut self,
        stack: &mut Stack<N>,
        server: SocketAddr,
        now: Nanos,
    ) -> Result<Option<Nanos>, UdpError> {
        let Some(streams) = &mut self.datagrams else { return Ok(None) };
        for socket in &self.sockets {
            while let Some((from, data)) = stack.udp_receive(*socket) {
                // What comes before the test or after it is not of it.
                if self.phase == Phase::Running {
                    streams.count(*socket, from, &data, now);
                }
            }
        }
        if self.wanted > 0 {
            return self.open(stack, server, now).map(Some);
        }
        if self.phase != Phase::Running || now >= self.end {
            return Ok(None);
        }
        Ok(streams.send(stack, self.began.0, now))
    }

    /// Opens streams, one after the other, as a server takes them.
    fn open<N: Nic>(
        &mut self,
        stack: &mut Stack<N>,
        server: SocketAddr,
        now: Nanos,
    ) -> Result<Nanos, UdpError> {
        let Some(streams) = &mut self.datagrams else { return Ok(now) };
        if let Some((socket, _)) = self.opening {
            while let Some((from, data)) = stack.udp_receive(socket) {
                if from == server && udp::is_answer(&data) {
                    let sends = self.streams.get(streams.len()).is_some_and(|stream| stream.sends);
                    streams.add(socket, server, sends);
                    self.sockets.push(socket);
                    (self.opening, self.wanted) = (None, self.wanted - 1);
                    return Ok(now);
                }
            }
        }
        let (socket, again) = match self.opening {
            Some(opening) => opening,
            None => {
                let socket = free_port(stack)?;
                stack.udp_buffer(socket, udp::RECEIVE);
                (socket, now)
            }
        };
        if now < again {
            return Ok(again);
        }
        match stack.udp_send(socket, server, &udp::greeting(), now) {
            Ok(()) | Err(UdpError::Full) => {}
            Err(error) => return Err(error),
        }
        self.opening = Some((socket, now + AGAIN));
        Ok(now + AGAIN)
    }

    /// Ends the test when its time is over. Returns when to ask again.
    pub fn tick(&mut self, now: Nanos) -> Option<Nanos> {
        if self.phase != Phase::Running {
            return None;
        }
        if now < self.end {
            return Some(self.end);
        }
        self.phase = Phase::Ending;
        self.seconds = (now - self.began.0) as f64 / Nanos::SECOND as f64;
        self.used = (self.cpu)() - self.began.1;
        self.wakes.extend(self.control);
        None
    }

    /// The result, once there is one.
    #[must_use]
    pub fn result(&self) -> Option<Result<&Report, &'static str>> {
        match (&self.report, self.failed) {
            (_, Some(why)) => Some(Err(why)),
            (Some(report), None) if self.phase == Phase::Done => Some(Ok(report)),
            _ => None,
        }
    }

    fn fail(&mut self, why: &'static str, io: &mut Io<'_>) {
        self.failed = self.failed.or(Some(why));
        io.abort();
    }

    /// Takes a message of the server; 0 if it is not complete.
    fn control(&mut self, io: &mut Io<'_>, data: &[u8]) -> usize {
        if self.phase == Phase::Results {
            return self.results(io, data);
        }
        match (data.first().copied().unwrap_or(0), self.phase) {
            (state::PARAM_EXCHANGE, Phase::Starting) => io.send(write(&self.params.json())),
            (state::CREATE_STREAMS, Phase::Starting) => self.wanted = self.streams.len(),
            (state::TEST_START, Phase::Starting) => {}
            (state::TEST_RUNNING, Phase::Starting) => {
                self.phase = Phase::Running;
                self.began = (io.now(), (self.cpu)());
                self.end = io.now() + self.params.seconds * Nanos::SECOND;
                let senders = self.streams.iter().filter(|stream| stream.sends);
                self.wakes.extend(senders.filter_map(|stream| stream.id));
            }
            (state::EXCHANGE_RESULTS, Phase::Ending) => {
                self.phase = Phase::Results;
                io.send(write(&self.own_results().json(self.seconds)));
            }
            (state::DISPLAY_RESULTS, Phase::Ending) if self.report.is_some() => {
                self.phase = Phase::Done;
                self.wakes.extend(self.streams.iter().filter_map(|stream| stream.id));
                io.send(Bytes::from_static(&[state::IPERF_DONE]));
                io.close();
            }
            (state::ACCESS_DENIED, _) => self.fail("the server is busy with another test", io),
            (state::SERVER_TERMINATE, _) => self.fail("the server ends", io),
            (state::SERVER_ERROR, _) => self.fail("the server cannot do this test", io),
            _ => self.fail("the server says what it should not", io),
        }
        1
    }

    fn results(&mut self, io: &mut Io<'_>, data: &[u8]) -> usize {
        let peer = match Text::read(data) {
            Text::Part => return 0,
            Text::Wrong => None,
            Text::Whole(len, value) => Results::read(&value).map(|peer| (len, peer)),
        };
        let Some((len, peer)) = peer else {
            self.fail("the server's results are malformed", io);
            return data.len();
        };
        let sum = |sends: bool| {
            let streams = self.streams.iter().filter(|stream| stream.sends == sends);
            streams.map(|stream| stream.bytes).sum()
        };
        let (seconds, sent, received) = (self.seconds, sum(true), sum(false));
        self.report = Some(match &self.datagrams {
            Some(streams) => streams.report(seconds, peer),
            None => Report { seconds, sent, received, datagrams: Vec::new(), peer },
        });
        self.phase = Phase::Ending;
        len
    }

    fn own_results(&self) -> Results {
        let of = |(index, stream): (usize, &Stream)| StreamResult {
            id: number(index),
            bytes: stream.bytes,
            ..StreamResult::default()
        };
        let cpu = self.used / self.seconds.max(1e-9) * 100.0;
        let streams = match &self.datagrams {
            Some(streams) => streams.all_results(),
            None => self.streams.iter().enumerate().map(of).collect(),
        };
        Results { cpu, streams }
    }

    fn send(&mut self, index: usize, io: &mut Io<'_>) {
        let Some(stream) = self.streams.get_mut(index) else { return };
        if self.phase == Phase::Running && stream.sends && io.now() < self.end {
            stream.bytes += self.piece.len() as u64;
            io.send(self.piece.clone());
        }
    }
}

impl App for Client {
    type Conn = Line;

    fn accepted(&mut self, io: &mut Io<'_>) -> Line {
        io.abort();
        Line::Control
    }

    fn connected(&mut self, line: &mut Line, io: &mut Io<'_>) {
        match *line {
            Line::Control => self.control = Some(io.id()),
            Line::Data(index) => {
                if let Some(stream) = self.streams.get_mut(index) {
                    stream.id = Some(io.id());
                }
            }
        }
        io.send(Bytes::copy_from_slice(&self.cookie));
    }

    fn data(&mut self, line: &mut Line, io: &mut Io<'_>, data: &[u8]) -> usize {
        if let Line::Data(index) = *line {
            if let Some(stream) = self.streams.get_mut(index).filter(|stream| !stream.sends) {
                // What comes after the end is not of the test.
                stream.bytes += if self.phase == Phase::Running { data.len() as u64 } else { 0 };
            }
            return data.len();
        }
        let mut taken = 0;
        while taken < data.len() && self.failed.is_none() {
            match self.control(io, &data[taken..]) {
                0 => return taken,
                len => taken += len,
            }
        }
        data.len()
    }

    fn drained(&mut self, line: &mut Line, io: &mut Io<'_>) {
        if let Line::Data(index) = *line {
            self.send(index, io);
        }
    }

    fn wake(&mut self) -> Option<ConnId> {
        self.wakes.pop()
    }

    fn woken(&mut self, line: &mut Line, io: &mut Io<'_>) {
        match *line {
            Line::Control => io.send(Bytes::from_static(&[state::TEST_END])),
            // The test is over: the server reads no more of the stream's data.
            Line::Data(_) if self.phase == Phase::Done => io.abort(),
            Line::Data(index) => self.send(index, io),
        }
    }

    fn closed(&mut self, line: Line, _: Option<CloseReason>) {
        if line == Line::Control && self.phase != Phase::Done {
            self.failed = self.failed.or(Some("the server has ended the connection"));
        } else if self.phase == Phase::Starting {
            self.failed = self.failed.or(Some("the server refuses a stream"));
        }
    }
}

/// Runs a test against a server.
///
/// # Errors
/// The server does not answer, or refuses; the NIC fails.
pub fn run<N: Nic>(
    stack: Stack<N>,
    server: SocketAddr,
    params: Params,
    cpu: fn() -> f64,
) -> Result<Report, Box<dyn Error>>
where
    N::Error: Error + 'static,
{
    let mut guest = Guest::new(stack, Client::new(params, cookie(), cpu));
    let started = clock::now();
    guest.connect(server, Line::Control, started)?;
    let last = (params.seconds + 2) * Nanos::SECOND + 3 * STEP;
    loop {
        let now = clock::now();
        let end = guest.app().tick(now);
        let deadline = guest.poll(now)?;
        for index in guest.app().wanted() {
            guest.connect(server, Line::Data(index), now)?;
        }
        let (stack, client) = guest.parts();
        let due = client.datagrams(stack, server, now)?;
        match guest.app().result() {
            Some(Ok(report)) => {
                let report = report.clone();
                return say_goodbye(&mut guest).map(|()| report);
            }
            Some(Err(why)) => return Err(why.into()),
            None if now - started > last => {
                return Err("the server does not answer".into());
            }
            None => {}
        }
        // A sender always has work; the others sleep until a frame comes.
        let rest = Some(now + Nanos::SECOND);
        let due = deadline.into_iter().chain(end).chain(due).chain(rest).min();
        guest.stack().wait(due, now)?;
    }
}

/// Runs until the server has the farewell, which would be lost with the port, and has closed its
/// end, too. A server without it waits for a long time.
fn say_goodbye<N: Nic>(guest: &mut Guest<N, Client>) -> Result<(), Box<dyn Error>>
where
    N::Error: Error + 'static,
{
    let end = clock::now() + GOODBYE;
    loop {
        let now = clock::now();
        let deadline = guest.poll(now)?;
        if guest.stack().usage().tcp.connections == 0 || now >= end {
            return Ok(());
        }
        guest.stack().wait(deadline.into_iter().chain([end]).min(), now)?;
    }
}

/// Opens a UDP socket at an ephemeral port (RFC 6335, 6).
fn free_port<N: Nic>(stack: &mut Stack<N>) -> Result<UdpId, UdpError> {
    let first = RandomState::new().build_hasher().finish() as u16;
    let port = |i: u16| first.wrapping_add(i) | 0xc000;
    let mut last = UdpError::NoPort;
    for i in 0..PORTS {
        match stack.udp_bind(port(i)) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Letters as iperf3 makes them.
fn cookie() -> [u8; 36] {
    const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let words: [u64; 3] = std::array::from_fn(|_| RandomState::new().build_hasher().finish());
    std::array::from_fn(|i| LETTERS[(words[i / 12] >> (5 * (i % 12))) as usize % 32])
}
