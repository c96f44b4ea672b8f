//! The machine: all connections of a host, found by keyed hash, visited by work list and timer
//! wheel.

mod input;
mod listen;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;
use core::net::IpAddr;

use bytes::Bytes;

use crate::codec::{self, Verify};
use crate::config::{Config, Tuning};
use crate::connection::{CloseReason, Connection, Events, Marks, State};
use crate::counters::Counters;
use crate::flow::{Flow, Purpose, Secret};
use crate::handle::{ConnId, Path};
use crate::segment::{Emit, Full, Request, Segment};
use crate::send::Payload;
use crate::shared::Shared;
use crate::table::Table;
use crate::time::Nanos;

use listen::{HalfOpen, Listener};

/// A listener's handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenerId(u32);

/// The reason why a connection or a listener could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// One address is IPv4, the other IPv6.
    #[error("The addresses are of different families")]
    Family,
    /// The port is taken, or the flow is in TIME-WAIT.
    #[error("The address is in use; choose another port")]
    InUse,
    /// No port of the ephemeral range is free for this peer.
    #[error("All ports of the ephemeral range are in use")]
    NoPort,
    /// The number of connections has reached its limit.
    #[error("The limit of connections is reached; raise Config::max_connections")]
    Full,
}

/// The reason why data could not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// This side's stream was ended, or the connection is closed.
    #[error("The connection is closed for sending")]
    Closed,
    /// The send buffer is full. [`Events::WRITABLE`] reports when there is room.
    #[error("The send buffer is full")]
    Full,
}

/// How many ports are tried for a connection.
const PORT_TRIES: u16 = 64;

/// All TCP of a host, without I/O: segments and time go in, segments and events come out.
pub struct Machine {
    shared: Shared,
    connections: Table<Connection>,
    half_open: Table<HalfOpen>,
    listeners: Vec<Option<Listener>>,
    ports: BTreeMap<u16, u32>,
    generation: u32,
    next_port: u64,
    /// When the last SYN cookie was sent.
    last_cookie: Option<Nanos>,
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine")
            .field("connections", &self.connections.len())
            .field("half_open", &self.half_open.len())
            .field("time_wait", &self.shared.time_wait.len())
            .finish_non_exhaustive()
    }
}

/// Usage of the bounded resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Connections, including closed ones that the application has not released.
    pub connections: usize,
    /// Half-open connections.
    pub half_open: usize,
    /// Entries in TIME-WAIT.
    pub time_wait: usize,
    /// Bytes of blocks for copied data.
    pub memory: usize,
    /// Table entries that lookups have visited, in all.
    pub lookups: u64,
    /// Timer entries that were visited, in all.
    pub timers: u64,
}

impl Machine {
    /// Makes a machine without connections. `secret` must be random, and different for each
    /// machine.
    #[must_use]
    pub fn new(config: Config, secret: Secret) -> Self {
        let (connections, half_open) = (config.max_connections, config.max_half_open);
        Self {
            shared: Shared::new(config, secret),
            connections: Table::new(connections),
            half_open: Table::new(half_open),
            listeners: Vec::new(),
            ports: BTreeMap::new(),
            generation: 0,
            next_port: 0,
            last_cookie: None,
        }
    }

    /// Returns how many segments have come in: cheaper than all [`counters`](Self::counters).
    #[must_use]
    pub fn segments_in(&self) -> u64 {
        self.shared.counters.segments_in
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut counters = self.shared.counters.clone();
        counters.time_wait_evicted = self.shared.time_wait.evicted;
        counters
    }

    /// Returns the usage of the bounded resources, and the counts of visited entries.
    #[must_use]
    pub fn usage(&self) -> Usage {
        Usage {
            connections: self.connections.len(),
            half_open: self.half_open.len(),
            time_wait: self.shared.time_wait.len(),
            memory: self.shared.pool.used_bytes(),
            lookups: self.connections.visited + self.half_open.visited,
            timers: self.shared.wheel.visited,
        }
    }

    /// Parses an IP packet. A packet that is dropped is counted.
    pub fn parse<'p>(&mut self, packet: &'p [u8], verify: Verify) -> Option<Segment<'p>> {
        codec::parse(packet, verify).map_err(|reason| self.shared.counters.count(reason)).ok()
    }

    /// Parses a packet of `len` bytes from its first bytes, without verifying checksums; see
    /// [`codec::parse_front`]. A packet that is dropped is counted.
    pub fn parse_front<'p>(&mut self, front: &'p [u8], len: usize) -> Option<(Segment<'p>, usize)> {
        codec::parse_front(front, len).map_err(|reason| self.shared.counters.count(reason)).ok()
    }

    fn get(&self, id: ConnId) -> Option<&Connection> {
        let owned =
            |c: &&Connection| c.generation == id.generation && c.marks.contains(Marks::OWNED);
        self.connections.get(id.index).filter(owned)
    }

    /// Runs `work` on a connection, then frees what it no longer needs if it has ended.
    fn with<T>(
        &mut self,
        id: ConnId,
        work: impl FnOnce(&mut Connection, &mut Shared) -> T,
    ) -> Option<T> {
        let connection = self.connections.get_mut(id.index)?;
        if connection.generation != id.generation || !connection.marks.contains(Marks::OWNED) {
            return None;
        }
        let result = work(connection, &mut self.shared);
        self.settle(id.index);
        Some(result)
    }

    /// Frees what a connection that has ended no longer needs.
    fn settle(&mut self, index: u32) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        if connection.state != State::Closed {
            return;
        }
        let marks = connection.marks;
        connection.marks.remove(Marks::LINKED);
        let queued = connection.listener != 0;
        if marks.contains(Marks::LINKED) {
            self.shared.wheel.cancel(index);
            connection.timers = crate::connection::Timers::new();
            self.connections.unlink(index);
        }
        // A connection in an accept queue stays until the application accepts it.
        if !marks.contains(Marks::OWNED) && !queued {
            self.connections.remove(index);
        }
    }

    /// Opens a connection from `local`. If its port is 0, one is chosen (RFC 6056, 3.3.3). Without
    /// `tuning`, that of [`Config`] applies.
    ///
    /// # Errors
    /// [`OpenError`] if the address families differ, the port is in use, or there is no room.
    pub fn connect(
        &mut self,
        local: (IpAddr, u16),
        remote: (IpAddr, u16),
        tuning: Option<Tuning>,
        now: Nanos,
    ) -> Result<ConnId, OpenError> {
        let flow = Flow::new(local, remote).ok_or(OpenError::Family)?;
        let flow = if local.1 == 0 { self.choose_port(flow, now)? } else { flow };
        if self.is_in_use(&flow, now) {
            return Err(OpenError::InUse);
        }
        self.generation = self.generation.wrapping_add(1);
        let tuning = tuning.unwrap_or(self.shared.config.tuning);
        let connection = Connection::connect(flow, self.generation, &self.shared, tuning, now);
        let index = self.insert(connection).ok_or(OpenError::Full)?;
        self.shared.counters.opened += 1;
        Ok(ConnId { index, generation: self.generation })
    }

    /// Puts a connection into the table and on the work list.
    fn insert(&mut self, connection: Connection) -> Option<u32> {
        let hash = self.shared.secret.table_hash(&connection.flow) as u32;
        let index = self.connections.insert(hash, connection).ok()?;
        let connection = self.connections.get_mut(index)?;
        connection.index = index;
        connection.wake(&mut self.shared);
        Some(index)
    }

    fn is_in_use(&mut self, flow: &Flow, now: Nanos) -> bool {
        let hash = self.shared.secret.table_hash(flow);
        self.connections.find(hash as u32, |c| c.flow == *flow).is_some()
            || self.half_open.find(hash as u32, |h| h.flow == *flow).is_some()
            || self.shared.time_wait.find(hash, flow, now).is_some()
    }

    fn choose_port(&mut self, flow: Flow, now: Nanos) -> Result<Flow, OpenError> {
        let (first, last) =
            (*self.shared.config.ephemeral.start(), *self.shared.config.ephemeral.end());
        let len = u64::from(last.saturating_sub(first)) + 1;
        let offset = self.shared.secret.mac(Purpose::Port, &flow, 0) >> 32;
        for _ in 0..PORT_TRIES.min(len as u16) {
            let port = first + ((offset + self.next_port) % len) as u16;
            self.next_port += 1;
            let flow = flow.with_local_port(port);
            if !self.is_in_use(&flow, now) {
                return Ok(flow);
            }
        }
        Err(OpenError::NoPort)
    }

    /// Returns the next connection with events, and the events.
    pub fn next_event(&mut self) -> Option<(ConnId, Events)> {
        while let Some((index, generation)) = self.shared.events.pop_front() {
            let Some(connection) = self.connections.get_mut(index) else { continue };
            if connection.generation != generation
                || !connection.marks.contains(Marks::EVENTS_QUEUED)
            {
                continue;
            }
            connection.marks.remove(Marks::EVENTS_QUEUED);
            let events = core::mem::take(&mut connection.events);
            return Some((ConnId { index, generation }, events));
        }
        None
    }

    /// Sends `bytes` without copying them: they are referenced until the peer has acknowledged
    /// them.
    ///
    /// # Errors
    /// [`SendError`] and the bytes, if the connection is closed for sending, or its buffer full.
    pub fn send(&mut self, id: ConnId, bytes: Bytes) -> Result<(), (SendError, Bytes)> {
        let mut kept = Some(bytes);
        let result = self.with(id, |connection, shared| {
            let bytes = kept.take().unwrap_or_default();
            match connection.can_send() {
                true => connection.send(shared, bytes).map_err(|bytes| (SendError::Full, bytes)),
                false => Err((SendError::Closed, bytes)),
            }
        });
        result.unwrap_or_else(|| Err((SendError::Closed, kept.unwrap_or_default())))
    }

    /// Sends a copy of `bytes`; returns how many bytes found room.
    ///
    /// # Errors
    /// [`SendError::Closed`] if the connection is closed for sending, [`SendError::Full`] if there
    /// was no room at all.
    pub fn send_slice(&mut self, id: ConnId, bytes: &[u8]) -> Result<usize, SendError> {
        let result = self.with(id, |connection, shared| {
            connection.can_send().then(|| connection.send_slice(shared, bytes))
        });
        match result.flatten() {
            None => Err(SendError::Closed),
            Some(0) if !bytes.is_empty() => Err(SendError::Full),
            Some(n) => Ok(n),
        }
    }

    /// Returns how many bytes the send buffer has room for.
    #[must_use]
    pub fn send_room(&self, id: ConnId) -> usize {
        let open = |c: &&Connection| c.can_send();
        self.get(id).filter(open).map_or(0, |c| c.room(&self.shared.config))
    }

    /// Passes received data to `read`, piece by piece, until it takes less than a whole piece.
    /// Returns how many bytes it took.
    pub fn receive(&mut self, id: ConnId, read: impl FnMut(&[u8]) -> usize) -> usize {
        self.with(id, |connection, shared| connection.receive(shared, read)).unwrap_or(0)
    }

    /// Moves received data to `out`; returns how many bytes.
    pub fn receive_slice(&mut self, id: ConnId, out: &mut [u8]) -> usize {
        let n = self.peek(id, out);
        self.with(id, |connection, shared| connection.consume(shared, n)).unwrap_or(0)
    }

    /// Copies received data to `out` without consuming it; returns how many bytes.
    #[must_use]
    pub fn peek(&self, id: ConnId, out: &mut [u8]) -> usize {
        self.get(id).map_or(0, |connection| connection.peek(out))
    }

    /// Consumes `n` bytes that were peeked at; returns how many there were.
    pub fn consume(&mut self, id: ConnId, n: usize) -> usize {
        self.with(id, |connection, shared| connection.consume(shared, n)).unwrap_or(0)
    }

    /// Bytes that can be read.
    #[must_use]
    pub fn readable(&self, id: ConnId) -> usize {
        self.get(id).map_or(0, Connection::readable)
    }

    /// Returns true if no more data follows the readable data.
    #[must_use]
    pub fn is_at_end(&self, id: ConnId) -> bool {
        self.get(id).is_none_or(Connection::is_at_end)
    }

    /// Ends this side's stream after the queued data; data can still be read.
    pub fn shut_down(&mut self, id: ConnId) {
        self.with(id, |connection, shared| connection.shut_down(shared));
    }

    /// Closes a connection: its stream ends after the queued data, and the handle becomes stale. If
    /// data is unread or comes later, the peer gets a reset.
    pub fn close(&mut self, id: ConnId, now: Nanos) {
        self.with(id, |connection, shared| connection.release(shared, now));
    }

    /// Resets a connection and releases it.
    pub fn abort(&mut self, id: ConnId, now: Nanos) {
        self.with(id, |connection, shared| {
            connection.abort(shared, now);
            connection.release(shared, now);
        });
    }

    /// Returns the state of a connection; `None` if the handle is stale.
    #[must_use]
    pub fn state(&self, id: ConnId) -> Option<State> {
        self.get(id).map(|connection| connection.state)
    }

    /// The addresses and ports of both ends of a connection.
    #[must_use]
    pub fn flow(&self, id: ConnId) -> Option<Flow> {
        self.get(id).map(|connection| connection.flow)
    }

    /// The reason why a connection is closed, if it is.
    #[must_use]
    pub fn close_reason(&self, id: ConnId) -> Option<CloseReason> {
        self.get(id)?.reason
    }

    /// When the peer of a connection was last heard.
    #[must_use]
    pub fn last_heard(&self, id: ConnId) -> Option<Nanos> {
        self.get(id).map(|connection| connection.receive.last_heard())
    }

    /// True if less than a sixteenth of the places for connections are free.
    #[must_use]
    pub fn is_nearly_full(&self) -> bool {
        let most = self.shared.config.max_connections;
        self.connections.len() > most - most / 16
    }

    /// Returns what the connection knows about the path.
    #[must_use]
    pub fn path(&self, id: ConnId) -> Option<Path> {
        self.get(id).map(Connection::path)
    }

    /// Changes a connection's settings. The congestion algorithm stays.
    pub fn set_tuning(&mut self, id: ConnId, tuning: Tuning, now: Nanos) {
        self.with(id, |connection, shared| {
            connection.tuning = tuning;
            connection.arm_keep_alive();
            connection.rearm(shared, now);
        });
    }

    /// Returns when [`transmit`](Self::transmit) next has work, if no segment comes before.
    ///
    /// It is 0 while work is queued, also after a `transmit` that found no room. In that case, wait
    /// for room first.
    #[must_use]
    pub fn deadline(&self) -> Option<Nanos> {
        match self.shared.ready.is_empty() && self.shared.replies.is_empty() {
            true => self.shared.wheel.deadline(),
            false => Some(Nanos(0)),
        }
    }

    /// Runs the timers that are due, then sends until nothing is left or `out` is full.
    ///
    /// Call it at the end of each batch, after the application has answered, and at the
    /// [`deadline`](Self::deadline).
    pub fn transmit(&mut self, now: Nanos, out: &mut impl Emit) {
        self.run_timers(now);
        let _ = self.send_replies(out).and_then(|()| self.visit_ready(now, out));
    }

    fn send_replies(&mut self, out: &mut impl Emit) -> Result<(), Full> {
        while let Some(header) = self.shared.replies.front().copied() {
            out.emit(&Request { header, gso_size: 0, payload: Payload::EMPTY })?;
            self.shared.replies.pop_front();
            self.shared.counters.requests_out += 1;
            self.shared.counters.segments_out += 1;
        }
        Ok(())
    }

    /// Lets each connection on the work list send, in turn.
    fn visit_ready(&mut self, now: Nanos, out: &mut impl Emit) -> Result<(), Full> {
        while let Some(index) = self.shared.ready.pop_front() {
            let Some(connection) = self.connections.get_mut(index) else { continue };
            if !connection.marks.contains(Marks::READY) {
                continue;
            }
            self.shared.counters.visits += 1;
            let result = connection.transmit(&mut self.shared, now, out);
            connection.marks.remove(Marks::READY);
            match result {
                Ok(false) => {}
                Ok(true) => connection.wake(&mut self.shared),
                Err(Full) => {
                    connection.marks |= Marks::READY;
                    self.shared.ready.push_front(index);
                    return Err(Full);
                }
            }
            self.settle(index);
        }
        Ok(())
    }

    fn run_timers(&mut self, now: Nanos) {
        let connections = self.shared.config.max_connections as u32;
        while let Some(index) = self.shared.wheel.pop(now) {
            if index >= connections {
                self.on_half_open_timer(index - connections, now);
            } else if let Some(connection) = self.connections.get_mut(index) {
                connection.on_timer(&mut self.shared, now);
                self.settle(index);
            }
        }
    }

    /// Sets the maximum length of an IP packet for connections that are made from now on.
    pub fn set_mtu(&mut self, mtu: u16) {
        self.shared.config.mtu = mtu;
    }

    /// Handles an ICMP message that a packet was too big (RFC 1191; RFC 8201). `mtu` is the path's
    /// limit, `seq` the number of the segment that the message quotes.
    ///
    /// A message that quotes nothing in flight is counted and ignored.
    pub fn too_big(&mut self, flow: &Flow, seq: crate::Seq, mtu: u16, now: Nanos) {
        let hash = self.shared.secret.table_hash(flow) as u32;
        // RFC 1191, 3; RFC 8200, 5. A smaller MTU would be an attack.
        let (least, headers) = if flow.is_v4() { (552, 40) } else { (1280, 60) };
        let found = self.connections.find(hash, |c| c.flow == *flow);
        let connection = found.and_then(|index| self.connections.get_mut(index));
        match connection.filter(|c| c.is_in_flight(seq)) {
            Some(connection) => {
                connection.on_too_big(&mut self.shared, mtu.max(least) - headers, now)
            }
            None => self.shared.counters.count(crate::Drop::BadTooBig),
        }
    }

    /// Handles an ICMP message that the peer cannot be reached. `seq` is the number of the segment
    /// that the message quotes.
    ///
    /// It ends a connection that is being opened. Later it counts as a passing failure (RFC 5461,
    /// 4; RFC 5927, 5.2).
    pub fn unreachable(&mut self, flow: &Flow, seq: crate::Seq) {
        let hash = self.shared.secret.table_hash(flow) as u32;
        let Some(index) = self.connections.find(hash, |c| c.flow == *flow) else { return };
        if let Some(connection) = self.connections.get_mut(index)
            && connection.is_opening_with(seq)
        {
            connection.finish(&mut self.shared, CloseReason::Unreachable);
        }
        self.settle(index);
    }

    /// Returns true if replies or connections wait for `transmit`.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !(self.shared.ready.is_empty() && self.shared.replies.is_empty())
    }
}
