//! Applications: callbacks for the events of connections.

use std::collections::VecDeque;
use std::net::SocketAddr;

use tcp::{Bytes, CloseReason, ConnId, Flow, Machine, Nanos, Receive, SendError};

/// Limit of the bytes that wait for TCP's send buffer. Above it, a connection gets no more data to
/// answer.
const QUEUED: usize = 256 << 10;
/// The limit of the queued answers. Beyond this limit, a connection gets no more data to answer.
const CHUNKS: usize = 512;
/// Maximum bytes of a chunk that TCP gets at once: documents are longer than windows.
const CHUNK: usize = 64 << 10;
/// If this many bytes have arrived, at least as many are offered in one piece.
const PIECE: usize = 16 << 10;

/// How many connections are looked at for the one that gives way to a new one.
const PROBES: usize = 16;

/// An application: state of its own, and a `Conn` for each connection.
///
/// All functions are called in the thread of [`Guest::poll`](crate::Guest::poll). None may block.
pub trait App {
    /// The application's state of a connection.
    type Conn;

    /// A peer has connected to a port at which the guest listens.
    fn accepted(&mut self, io: &mut Io<'_>) -> Self::Conn;

    /// A connection of [`Guest::connect`](crate::Guest::connect) is established.
    fn connected(&mut self, _conn: &mut Self::Conn, _io: &mut Io<'_>) {}

    /// Receives data in order; it often lies in the frame itself. Returns how many bytes were
    /// taken.
    ///
    /// The rest is kept and offered again with the data that follows, at most 16 KiB in one piece.
    /// Nothing is offered while many of the application's answers are queued.
    fn data(&mut self, conn: &mut Self::Conn, io: &mut Io<'_>, data: &[u8]) -> usize;

    /// The next connection that is to be [`woken`](Self::woken), for what happened on another one.
    /// It is asked in each turn, until there is none.
    fn wake(&mut self) -> Option<ConnId> {
        None
    }

    /// The application has asked for this call by [`wake`](Self::wake).
    fn woken(&mut self, _conn: &mut Self::Conn, _io: &mut Io<'_>) {}

    /// TCP has taken everything that was sent.
    fn drained(&mut self, _conn: &mut Self::Conn, _io: &mut Io<'_>) {}

    /// The peer has ended its stream, and the application has taken all the data that it will.
    fn ended(&mut self, _conn: &mut Self::Conn, io: &mut Io<'_>) {
        io.close();
    }

    /// The connection is gone. There is no reason if the application has closed it.
    fn closed(&mut self, _conn: Self::Conn, _reason: Option<CloseReason>) {}
}

/// What the application has asked for, but TCP has not done yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wish {
    Open,
    Finish,
    /// The stream was ended (`Finish`), and TCP was told.
    Finished,
    Close,
    Abort,
}

/// The guest's state of a connection.
#[derive(Debug)]
pub(crate) struct Line {
    flow: Flow,
    out: VecDeque<Bytes>,
    queued: usize,
    wish: Wish,
    /// The connection is on the list of connections with work.
    listed: bool,
    /// The application was told that the stream has ended.
    told_end: bool,
}

/// A connection, as its application uses it during a call. Its requests take effect when the call
/// returns.
#[derive(Debug)]
pub struct Io<'a> {
    line: &'a mut Line,
    now: Nanos,
    id: ConnId,
}

impl<'a> Io<'a> {
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn new(line: &'a mut Line, now: Nanos) -> Self {
        Self { line, now, id: ConnId::NONE }
    }
}

impl Io<'_> {
    /// Sends `bytes` without copying them.
    pub fn send(&mut self, bytes: Bytes) {
        if self.line.wish == Wish::Open && !bytes.is_empty() {
            self.line.queued += bytes.len();
            self.line.out.push_back(bytes);
        }
    }

    /// Returns the number of bytes that the application has sent and that wait for TCP's send
    /// buffer.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.line.queued
    }

    /// Ends this side's stream after the queued data; data can still arrive.
    pub fn finish(&mut self) {
        self.line.wish = self.line.wish.max(Wish::Finish);
    }

    /// Closes the connection after the queued data. If the peer sends more, it gets a reset.
    pub fn close(&mut self) {
        self.line.wish = self.line.wish.max(Wish::Close);
    }

    /// Resets the connection.
    pub fn abort(&mut self) {
        self.line.wish = Wish::Abort;
    }

    /// The connection's name, for [`App::wake`].
    #[must_use]
    pub fn id(&self) -> ConnId {
        self.id
    }

    /// When this turn began.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// The addresses and ports of both ends of the connection.
    #[must_use]
    pub fn flow(&self) -> Flow {
        self.line.flow
    }

    /// The peer's address and port.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.line.flow.remote().into()
    }
}

#[derive(Debug)]
struct Entry<C> {
    id: ConnId,
    conn: C,
    line: Line,
}

/// An application's connections, by TCP's index.
pub(crate) struct Connections<A: App> {
    pub app: A,
    table: Vec<Option<Entry<A::Conn>>>,
    /// Connections with work.
    listed: Vec<ConnId>,
    /// The next place that is looked at for a connection that gives way.
    hand: usize,
    scratch: Box<[u8]>,
    pub now: Nanos,
}

impl<A: App> Connections<A> {
    pub fn new(app: A) -> Self {
        let scratch = vec![0; PIECE].into_boxed_slice();
        Self { app, table: Vec::new(), listed: Vec::new(), hand: 0, scratch, now: Nanos(0) }
    }

    /// Returns the number of ended connections of whose end the application has not been told.
    pub fn len(&self) -> usize {
        self.table.iter().flatten().count()
    }

    fn insert(&mut self, id: ConnId, conn: C<A>, line: Line) {
        if self.table.len() <= id.index() {
            self.table.resize_with(id.index() + 1, || None);
        }
        if let Some(place) = self.table.get_mut(id.index()) {
            *place = Some(Entry { id, conn, line });
        }
    }

    /// Adds a connection that this side is opening.
    pub fn opened(&mut self, id: ConnId, flow: Flow, conn: C<A>) {
        self.insert(id, conn, Line::new(flow));
    }

    pub fn accepted(&mut self, id: ConnId, flow: Flow) {
        let mut line = Line::new(flow);
        let conn = self.app.accepted(&mut Io { line: &mut line, now: self.now, id });
        self.insert(id, conn, line);
        self.list(id);
    }

    /// Makes room when nearly all places for connections are taken: of some connections, the one
    /// that was silent for longest is reset. So peers that connect and ask nothing, or never end
    /// what they ask, keep no others out.
    pub fn make_room(&mut self, machine: &mut Machine, new: ConnId) {
        if !machine.is_nearly_full() {
            return;
        }
        let len = self.table.len();
        let probed = (0..len).map(|i| (self.hand + i) % len);
        let probed = probed.filter_map(|place| self.table[place].as_ref().map(|it| (place, it.id)));
        let probed: Vec<_> = probed.filter(|(_, id)| *id != new).take(PROBES).collect();
        self.hand = probed.last().map_or(0, |(place, _)| place + 1);
        let silent = probed.iter().min_by_key(|(_, id)| machine.last_heard(*id));
        if let Some((_, id)) = silent {
            machine.abort(*id, self.now);
            self.forget(*id, Some(CloseReason::Aborted));
        }
    }

    /// Calls the application for a connection, then lists the connection if it has work.
    fn call<T>(
        &mut self,
        id: ConnId,
        work: impl FnOnce(&mut A, &mut C<A>, &mut Io<'_>) -> T,
    ) -> Option<T> {
        let place = self.table.get_mut(id.index())?;
        let Entry { conn, line, .. } = place.as_mut().filter(|entry| entry.id == id)?;
        let result = work(&mut self.app, conn, &mut Io { line, now: self.now, id });
        if !line.listed && (!line.out.is_empty() || line.wish != Wish::Open) {
            line.listed = true;
            self.listed.push(id);
        }
        Some(result)
    }

    fn list(&mut self, id: ConnId) {
        self.call(id, |_, _, _| ());
    }

    fn line(&self, id: ConnId) -> Option<&Line> {
        let entry = self.table.get(id.index())?.as_ref();
        entry.filter(|entry| entry.id == id).map(|entry| &entry.line)
    }

    /// Returns true if the application must not get data: too many of its answers are queued.
    fn is_stuck(&self, id: ConnId) -> bool {
        self.line(id).is_none_or(|line| line.queued >= QUEUED || line.out.len() >= CHUNKS)
    }

    pub fn connected(&mut self, id: ConnId) {
        self.call(id, |app, conn, io| app.connected(conn, io));
    }

    /// Offers data that TCP has copied: in place, or joined if the application wants a longer
    /// piece.
    pub fn pump(&mut self, machine: &mut Machine, id: ConnId) {
        while !self.is_stuck(id) && machine.readable(id) > 0 {
            let mut taken = machine.receive(id, |piece| self.receive(id, piece));
            if taken == 0 {
                let mut scratch = std::mem::take(&mut self.scratch);
                let n = machine.peek(id, &mut scratch);
                taken = self.receive(id, &scratch[..n]);
                self.scratch = scratch;
                machine.consume(id, taken);
            }
            if taken == 0 {
                break;
            }
        }
        self.report_end(machine, id);
    }

    /// Tells the application that the peer's stream has ended. An incomplete message is dropped.
    fn report_end(&mut self, machine: &Machine, id: ConnId) {
        let early = self.is_stuck(id) && machine.readable(id) > 0;
        let Some(Some(entry)) = self.table.get_mut(id.index()) else { return };
        if early || entry.id != id || entry.line.told_end || !machine.is_at_end(id) {
            return;
        }
        entry.line.told_end = true;
        self.call(id, |app, conn, io| app.ended(conn, io));
    }

    /// Calls the connections that the application wants to wake.
    pub fn wake(&mut self, machine: &mut Machine) {
        while let Some(id) = self.app.wake() {
            self.call(id, |app, conn, io| app.woken(conn, io));
            self.settle(machine);
        }
    }

    /// Passes to TCP what applications have asked for.
    pub fn settle(&mut self, machine: &mut Machine) {
        while let Some(id) = self.listed.pop() {
            if let Some(Some(entry)) = self.table.get_mut(id.index())
                && entry.id == id
            {
                entry.line.listed = false;
            }
            self.drain(machine, id);
        }
    }

    /// Passes queued data to TCP, as far as there is room, then the application's other requests.
    pub fn drain(&mut self, machine: &mut Machine, id: ConnId) {
        let now = self.now;
        let Some(Some(entry)) = self.table.get_mut(id.index()) else { return };
        let line = &mut entry.line;
        if entry.id != id {
            return;
        }
        if line.wish == Wish::Abort {
            machine.abort(id, now);
            return self.forget(id, None);
        }
        let had = !line.out.is_empty();
        line.hand_over(machine, id);
        if !line.out.is_empty() {
            return;
        }
        match line.wish {
            Wish::Open if had => {
                self.call(id, |app, conn, io| app.drained(conn, io));
            }
            Wish::Finish => {
                line.wish = Wish::Finished;
                machine.shut_down(id);
            }
            Wish::Close => {
                machine.close(id, now);
                self.forget(id, None);
            }
            _ => {}
        }
        if had {
            self.pump(machine, id);
        }
    }

    pub fn forget(&mut self, id: ConnId, reason: Option<CloseReason>) {
        let place = self.table.get_mut(id.index());
        let gone = place.and_then(|place| place.take_if(|entry| entry.id == id));
        if let Some(entry) = gone {
            self.app.closed(entry.conn, reason);
        }
    }
}

type C<A> = <A as App>::Conn;

/// Data that still lies in the frame.
impl<A: App> Receive for Connections<A> {
    fn receive(&mut self, id: ConnId, data: &[u8]) -> usize {
        if self.is_stuck(id) {
            return 0;
        }
        self.call(id, |app, conn, io| match io.line.wish {
            Wish::Open | Wish::Finish | Wish::Finished => app.data(conn, io, data),
            // The application has closed the connection, so data is discarded.
            Wish::Close | Wish::Abort => data.len(),
        })
        .unwrap_or(0)
    }
}

/// A line for fuzzers, without TCP.
#[cfg(any(test, feature = "fuzz"))]
impl Line {
    /// A connection that no machine knows.
    pub(crate) fn loose() -> Option<Self> {
        let end = |host: u8| (std::net::IpAddr::V4([10, 0, 0, host].into()), u16::from(host));
        Some(Self::new(Flow::new(end(1), end(2))?))
    }

    /// True unless the application has ended or closed the connection.
    pub(crate) fn is_open(&self) -> bool {
        self.wish == Wish::Open
    }

    /// Appends to `to` what the application has sent. Returns false if there was nothing.
    pub(crate) fn take(&mut self, to: &mut Vec<u8>) -> bool {
        let had = !self.out.is_empty();
        self.out.drain(..).for_each(|bytes| to.extend_from_slice(&bytes));
        self.queued = 0;
        had
    }
}

impl Line {
    fn new(flow: Flow) -> Self {
        let out = VecDeque::new();
        Self { flow, out, queued: 0, wish: Wish::Open, listed: false, told_end: false }
    }

    fn hand_over(&mut self, machine: &mut Machine, id: ConnId) {
        while let Some(mut bytes) = self.out.pop_front() {
            let chunk = bytes.split_to(bytes.len().min(CHUNK));
            let len = chunk.len();
            match machine.send(id, chunk) {
                Ok(()) => self.queued -= len,
                Err((SendError::Full, chunk)) => {
                    for rest in [bytes, chunk].into_iter().filter(|rest| !rest.is_empty()) {
                        self.out.push_front(rest);
                    }
                    return;
                }
                // The peer has reset the connection; an event reports its end.
                Err(_) => {
                    self.out.clear();
                    self.queued = 0;
                    return;
                }
            }
            if !bytes.is_empty() {
                self.out.push_front(bytes);
            }
        }
    }
}
