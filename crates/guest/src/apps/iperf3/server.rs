//! The server's end. It runs one test at a time, as iperf3 does.

use tcp::{Bytes, CloseReason, ConnId, Nanos};

use super::Report;
use super::wire::{
    COOKIE, PIECE, Params, Results, StreamResult, Text, number, refusal, state, write,
};
use crate::app::{App, Io};

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
    cookie: [u8; COOKIE],
    phase: Phase,
    /// When it may be given up.
    due: Nanos,
    params: Params,
    streams: Vec<Stream>,
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
        Self { test: None, tests: 0, cpu, wakes: Vec::new(), reports: Vec::new(), refused: 0 }
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
                        test.began = (io.now(), (self.cpu)());
                        test.due = io.now() + test.params.seconds * Nanos::SECOND + STEP;
                        let senders = test.streams.iter().filter(|stream| stream.sends);
                        self.wakes.extend(senders.map(|stream| stream.id));
                        // The last one comes first.
                        self.wakes.push(test.control);
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

    fn test(&mut self, serial: u64) -> Option<&mut Test> {
        self.test.as_mut().filter(|test| test.serial == serial)
    }

    /// Takes one message of the control connection. Returns its bytes; 0 if it is not complete.
    fn control(&mut self, serial: u64, io: &mut Io<'_>, data: &[u8]) -> usize {
        let cpu = self.cpu;
        let Some(test) = self.test(serial) else {
            io.abort();
            return data.len();
        };
        let (step, report) = test.step(io, data, cpu);
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
    fn step(&mut self, io: &mut Io<'_>, data: &[u8], cpu: fn() -> f64) -> (Step, Option<Report>) {
        let step = match (self.phase, data.first().copied().unwrap_or(0)) {
            (Phase::Params | Phase::Results, _) => match Text::read(data) {
                Text::Part => Step::Part,
                Text::Wrong => Step::Abort,
                Text::Whole(len, value) if self.phase == Phase::Params => {
                    // Otherwise it was told why not.
                    if self.configure(&value, io) { Step::Took(len) } else { Step::Close }
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
        let params = Params { parallel: 0, reverse: false, both: false, piece: PIECE, seconds: 0 };
        Self {
            serial,
            control: io.id(),
            cookie,
            phase: Phase::Params,
            due: io.now() + STEP,
            params,
            streams: Vec::new(),
            piece: Bytes::new(),
            began: (io.now(), 0.0),
            seconds: 0.0,
            cpu: 0.0,
        }
    }

    /// Takes the parameters; false if the client was told that they cannot be.
    fn configure(&mut self, value: &serde_json::Value, io: &mut Io<'_>) -> bool {
        let Some(params) = Params::read(value) else {
            io.send(refusal());
            return false;
        };
        self.params = params;
        if params.both || params.reverse {
            self.piece = vec![0x5a; params.piece].into();
        }
        (self.phase, self.due) = (Phase::Streams, io.now() + STEP);
        io.send(Bytes::from_static(&[state::CREATE_STREAMS]));
        true
    }

    /// Adds a stream; the test runs with the last of them.
    fn join(&mut self, id: ConnId) -> Option<usize> {
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
        };
        let cpu = self.cpu / self.seconds.max(1e-9) * 100.0;
        Results { cpu, streams: self.streams.iter().enumerate().map(of).collect() }
    }

    fn report(&self, peer: Results) -> Report {
        let sum = |sends: bool| {
            let streams = self.streams.iter().filter(|stream| stream.sends == sends);
            streams.map(|stream| stream.bytes).sum()
        };
        Report { seconds: self.seconds, sent: sum(true), received: sum(false), peer }
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
            Line::Data(_, index) => test.send(*index, io),
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
