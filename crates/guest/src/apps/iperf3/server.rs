//! The server's end. It runs one test at a time, as iperf3 does.

use std::net::{IpAddr, SocketAddr};

use tcp::{Bytes, CloseReason, ConnId, Nanos};

use super::udp::{self, Streams};
use super::wire::{COOKIE, Params, Results, StreamResult, Text, number, refusal, state, write};
use super::{PORT, Report};
use crate::app::{App, Io};
use crate::nic::Nic;
use crate::stack::Stack;
use crate::udp::{UdpError, UdpId};

/// How long a client may take for a step, before another client's test takes its place.
const STEP: u64 = 10 * Nanos::SECOND;
/// The maximum number of reports that are kept.
const REPORTS: usize = 64;

/// An iperf3 server.
#[derive(Debug)]
pub struct Server {
    test: Option<Test>,
    tests: u64,
    /// Seconds that this thread has spent on a core.
    cpu: fn() -> f64,
    wakes: Vec<ConnId>,
    /// The last tests that have ended whole.
    pub reports: Vec<Report>,
    /// Connections that were turned away.
    pub refused: u64,
    /// The socket of tests over UDP, and the longest datagrams over IPv4 and IPv6.
    socket: Option<(UdpId, [usize; 2])>,
    /// Datagrams that are of no test.
    pub strays: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Params,
    Streams,
    Running,
    Results,
    Shown,
}

#[derive(Debug)]
struct Test {
    serial: u64,
    control: ConnId,
    /// The client. Streams over UDP have no cookie, and must come from there.
    client: IpAddr,
    cookie: [u8; COOKIE],
    phase: Phase,
    /// When it may be given up.
    due: Nanos,
    params: Params,
    streams: Vec<Stream>,
    /// The streams of a test over UDP.
    datagrams: Option<Streams>,
    piece: Bytes,
    began: (Nanos, f64),
    seconds: f64,
    cpu: f64,
}

#[derive(Debug)]
struct Stream {
    id: ConnId,
    sends: bool,
    bytes: u64,
}

/// A connection: what it is, once it has said its cookie.
#[derive(Debug)]
pub enum Line {
    /// The connection has sent a part of its cookie.
    Cookie(Vec<u8>),
    /// The control connection of the test with this number.
    Control(u64),
    /// A stream of that test.
    Data(u64, usize),
    /// The connection is turned away.
    Refused,
}

impl Server {
    /// A server. `cpu` says how many seconds this thread has spent on a core.
    #[must_use]
    pub fn new(cpu: fn() -> f64) -> Self {
        Self {
            test: None,
            tests: 0,
            cpu,
            wakes: Vec::new(),
            reports: Vec::new(),
            refused: 0,
            socket: None,
            strays: 0,
        }
    }

    /// Serves tests over UDP, too. [`datagrams`](Self::datagrams) is to be called in each turn.
    ///
    /// # Errors
    /// The port is in use.
    pub fn over_udp<N: Nic>(self, stack: &mut Stack<N>) -> Result<Self, UdpError> {
        let socket = stack.udp_bind(PORT)?;
        stack.udp_buffer(socket, udp::RECEIVE);
        Ok(self.at(socket, [stack.udp_longest(false), stack.udp_longest(true)]))
    }

    /// The same with a socket. `longest`: of the datagrams over IPv4 and IPv6.
    pub(crate) fn at(self, socket: UdpId, longest: [usize; 2]) -> Self {
        Self { socket: Some((socket, longest)), ..self }
    }

    /// True while a test is under way.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.test.is_some()
    }

    fn refuse(&mut self, io: &mut Io<'_>) -> Line {
        self.refused += 1;
        io.send(Bytes::from_static(&[state::ACCESS_DENIED]));
        io.close();
        Line::Refused
    }

    /// A connection has said its cookie.
    fn identify(&mut self, cookie: [u8; COOKIE], io: &mut Io<'_>) -> Line {
        match &mut self.test {
            Some(test) if test.cookie == cookie => match test.join(io.id()) {
                Some(index) => {
                    if test.phase == Phase::Running {
                        let senders = test.streams.iter().filter(|stream| stream.sends);
                        self.wakes.extend(senders.map(|stream| stream.id));
                        // The last one comes first.
                        self.wakes.push(test.begin(io.now(), self.cpu));
                    }
                    Line::Data(test.serial, index)
                }
                None => self.refuse(io),
            },
            Some(test) if io.now() < test.due => self.refuse(io),
            _ => {
                self.give_up();
                self.tests += 1;
                self.test = Some(Test::new(self.tests, cookie, io));
                io.send(Bytes::from_static(&[state::PARAM_EXCHANGE]));
                Line::Control(self.tests)
            }
        }
    }

    /// Ends the test, and wakes its connections to end them.
    fn give_up(&mut self) {
        if let Some(test) = self.test.take() {
            self.wakes.push(test.control);
            self.wakes.extend(test.streams.iter().map(|stream| stream.id));
        }
    }

    /// Receives the datagrams of a test, and sends those that are due. Returns when to call it
    /// again, if no frame arrives before.
    pub fn datagrams<N: Nic>(&mut self, stack: &mut Stack<N>, now: Nanos) -> Option<Nanos> {
        let (socket, _) = self.socket?;
        while let Some((from, data)) = stack.udp_receive(socket) {
            if let Some(answer) = self.datagram(socket, from, &data, now) {
                // A client whose answer is lost asks again.
                let _ = stack.udp_send(socket, from, &answer, now);
            }
        }
        if !self.wakes.is_empty() {
            return Some(now);
        }
        let test = self.test.as_mut().filter(|test| test.phase == Phase::Running)?;
        // A client that has vanished gets no more.
        let streams = test.datagrams.as_mut().filter(|_| now < test.due)?;
        streams.send(stack, test.began.0, now)
    }

    /// Takes a datagram. Returns the answer, if it opens a stream.
    pub(crate) fn datagram(
        &mut self,
        socket: UdpId,
        from: SocketAddr,
        data: &[u8],
        now: Nanos,
    ) -> Option<[u8; 4]> {
        let test = self.test.as_mut().filter(|test| test.client == from.ip());
        let Some((test, greeting)) = test.map(|test| (test, udp::answer(data))) else {
            self.strays += 1;
            return None;
        };
        match (greeting, &mut test.datagrams) {
            (Some(answer), Some(streams)) if streams.has(socket, from) => return Some(answer),
            (Some(answer), Some(streams)) if test.phase == Phase::Streams => {
                let all = test.params.directions(true);
                streams.add(socket, from, all.get(streams.len()).is_some_and(|sends| *sends));
                if streams.len() == all.len() {
                    test.phase = Phase::Running;
                    self.wakes.push(test.begin(now, self.cpu));
                }
                return Some(answer);
            }
            (None, Some(streams)) if test.phase == Phase::Running => {
                self.strays += u64::from(!streams.count(socket, from, data, now));
            }
            // Of a test that has ended just now, or of none.
            _ => self.strays += 1,
        }
        None
    }

    fn test(&mut self, serial: u64) -> Option<&mut Test> {
        self.test.as_mut().filter(|test| test.serial == serial)
    }

    /// Takes one message of the control connection. Returns its bytes; 0 if it is not complete.
    fn control(&mut self, serial: u64, io: &mut Io<'_>, data: &[u8]) -> usize {
        let (cpu, longest) = (self.cpu, self.socket.map(|(_, longest)| longest));
        let Some(test) = self.test(serial) else {
            io.abort();
            return data.len();
        };
        let was_running = test.phase == Phase::Running;
        let (step, report) = test.step(io, data, cpu, longest);
        if was_running && test.phase == Phase::Results {
            let streams = test.streams.iter().map(|stream| stream.id).collect::<Vec<_>>();
            self.wakes.extend(streams);
        }
        report.into_iter().for_each(|report| self.keep(report));
        match step {
            Step::Part => return 0,
            Step::Took(len) => return len,
            Step::Close => io.close(),
            Step::Abort => io.abort(),
        }
        self.give_up();
        data.len()
    }

    fn keep(&mut self, report: Report) {
        if self.reports.len() >= REPORTS {
            self.reports.remove(0);
        }
        self.reports.push(report);
    }
}

/// What a message of the control connection leads to.
enum Step {
    /// The message is not complete.
    Part,
    /// The message took this many bytes.
    Took(usize),
    Close,
    Abort,
}

impl Test {
    /// Takes a message. The client's results end the test, with a report.
    fn step(
        &mut self,
        io: &mut Io<'_>,
        data: &[u8],
        cpu: fn() -> f64,
        longest: Option<[usize; 2]>,
    ) -> (Step, Option<Report>) {
        let step = match (self.phase, data.first().copied().unwrap_or(0)) {
            (Phase::Params | Phase::Results, _) => match Text::read(data) {
                Text::Part => Step::Part,
                Text::Wrong => Step::Abort,
                Text::Whole(len, value) if self.phase == Phase::Params => {
                    // Otherwise it was told why not.
                    if self.configure(&value, io, longest) { Step::Took(len) } else { Step::Close }
                }
                Text::Whole(len, value) => return self.conclude(io, len, &value),
            },
            (Phase::Running, state::TEST_END) => {
                self.seconds = (io.now() - self.began.0) as f64 / Nanos::SECOND as f64;
                self.cpu = cpu() - self.began.1;
                (self.phase, self.due) = (Phase::Results, io.now() + STEP);
                io.send(Bytes::from_static(&[state::EXCHANGE_RESULTS]));
                Step::Took(1)
            }
            (Phase::Shown, state::IPERF_DONE) => Step::Close,
            // Among them is `CLIENT_TERMINATE` (12).
            _ => Step::Abort,
        };
        (step, None)
    }

    fn conclude(
        &mut self,
        io: &mut Io<'_>,
        len: usize,
        value: &serde_json::Value,
    ) -> (Step, Option<Report>) {
        let Some(peer) = Results::read(value) else { return (Step::Abort, None) };
        io.send(write(&self.results().json(self.seconds)));
        io.send(Bytes::from_static(&[state::DISPLAY_RESULTS]));
        (self.phase, self.due) = (Phase::Shown, io.now() + STEP);
        (Step::Took(len), Some(self.report(peer)))
    }

    fn new(serial: u64, cookie: [u8; COOKIE], io: &Io<'_>) -> Self {
        Self {
            serial,
            control: io.id(),
            client: io.peer().ip(),
            cookie,
            phase: Phase::Params,
            due: io.now() + STEP,
            params: Params { parallel: 0, ..Params::default() },
            streams: Vec::new(),
            datagrams: None,
            piece: Bytes::new(),
            began: (io.now(), 0.0),
            seconds: 0.0,
            cpu: 0.0,
        }
    }

    /// Takes the parameters; false if the client was told that they cannot be. `longest`: of the
    /// datagrams over IPv4 and IPv6, if there is UDP.
    fn configure(
        &mut self,
        value: &serde_json::Value,
        io: &mut Io<'_>,
        longest: Option<[usize; 2]>,
    ) -> bool {
        let longest = longest.map_or(0, |longest| longest[usize::from(self.client.is_ipv6())]);
        // Longer datagrams would come and go as fragments.
        let fits = |params: &Params| params.udp.is_none() || params.piece <= longest;
        let Some(params) = Params::read(value).filter(fits) else {
            io.send(refusal());
            return false;
        };
        self.params = params;
        self.datagrams = params.udp.map(|settings| Streams::new(settings, params.piece));
        if params.udp.is_none() && (params.both || params.reverse) {
            self.piece = vec![0x5a; params.piece].into();
        }
        (self.phase, self.due) = (Phase::Streams, io.now() + STEP);
        io.send(Bytes::from_static(&[state::CREATE_STREAMS]));
        true
    }

    /// The last stream is there. Returns the connection to be told.
    fn begin(&mut self, now: Nanos, cpu: fn() -> f64) -> ConnId {
        self.began = (now, cpu());
        self.due = now + self.params.seconds * Nanos::SECOND + STEP;
        self.control
    }

    /// Adds a stream; the test runs with the last of them.
    fn join(&mut self, id: ConnId) -> Option<usize> {
        if self.datagrams.is_some() {
            return None;
        }
        let all = self.params.directions(true);
        let index = self.streams.len();
        let sends = *all.get(index).filter(|_| self.phase == Phase::Streams)?;
        self.streams.push(Stream { id, sends, bytes: 0 });
        if self.streams.len() == all.len() {
            self.phase = Phase::Running;
        }
        Some(index)
    }

    fn results(&self) -> Results {
        let of = |(index, stream): (usize, &Stream)| StreamResult {
            id: number(index),
            bytes: stream.bytes,
            ..StreamResult::default()
        };
        let cpu = self.cpu / self.seconds.max(1e-9) * 100.0;
        let streams = match &self.datagrams {
            Some(streams) => streams.all_results(),
            None => self.streams.iter().enumerate().map(of).collect(),
        };
        Results { cpu, streams }
    }

    fn report(&self, peer: Results) -> Report {
        if let Some(streams) = &self.datagrams {
            return streams.report(self.seconds, peer);
        }
        let sum = |sends: bool| {
            let streams = self.streams.iter().filter(|stream| stream.sends == sends);
            streams.map(|stream| stream.bytes).sum()
        };
        let (sent, received) = (sum(true), sum(false));
        Report { seconds: self.seconds, sent, received, datagrams: Vec::new(), peer }
    }

    fn send(&mut self, index: usize, io: &mut Io<'_>) {
        let Some(stream) = self.streams.get_mut(index) else { return };
        if self.phase == Phase::Running && stream.sends {
            stream.bytes += self.piece.len() as u64;
            io.send(self.piece.clone());
        }
    }
}

impl App for Server {
    type Conn = Line;

    fn accepted(&mut self, _: &mut Io<'_>) -> Line {
        Line::Cookie(Vec::new())
    }

    fn data(&mut self, line: &mut Line, io: &mut Io<'_>, data: &[u8]) -> usize {
        let mut taken = 0;
        while taken < data.len() {
            let rest = &data[taken..];
            let len = match line {
                Line::Cookie(had) => {
                    let len = rest.len().min(COOKIE - had.len());
                    had.extend_from_slice(&rest[..len]);
                    if let Ok(cookie) = <[u8; COOKIE]>::try_from(had.as_slice()) {
                        *line = self.identify(cookie, io);
                    }
                    len
                }
                Line::Control(serial) => self.control(*serial, io, rest),
                Line::Data(serial, index) => {
                    let stream = (*serial, *index);
                    if let Some(test) = self.test(stream.0)
                        && let Some(stream) = test.streams.get_mut(stream.1)
                        && !stream.sends
                    {
                        stream.bytes += rest.len() as u64;
                    }
                    rest.len()
                }
                Line::Refused => rest.len(),
            };
            taken += len;
            if len == 0 {
                break;
            }
        }
        taken
    }

    fn drained(&mut self, line: &mut Line, io: &mut Io<'_>) {
        if let Line::Data(serial, index) = line
            && let Some(test) = self.test.as_mut().filter(|test| test.serial == *serial)
        {
            test.send(*index, io);
        }
    }

    fn wake(&mut self) -> Option<ConnId> {
        self.wakes.pop()
    }

    fn woken(&mut self, line: &mut Line, io: &mut Io<'_>) {
        let serial = match line {
            Line::Control(serial) | Line::Data(serial, _) => *serial,
            _ => return,
        };
        let Some(test) = self.test.as_mut().filter(|test| test.serial == serial) else {
            return io.close();
        };
        match line {
            Line::Data(_, index) if test.phase == Phase::Running => test.send(*index, io),
            // The test is over. A client may be waiting for the rest of a piece: it reads the end.
            Line::Data(..) => io.close(),
            _ => {
                io.send(Bytes::from_static(&[state::TEST_START]));
                io.send(Bytes::from_static(&[state::TEST_RUNNING]));
            }
        }
    }

    fn closed(&mut self, line: Line, _: Option<CloseReason>) {
        if let Line::Control(serial) = line
            && self.test(serial).is_some()
        {
            self.give_up();
        }
    }
}
