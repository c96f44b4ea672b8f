//! Servers and clients on a NIC.

use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use tcp::{Bytes, Nanos};

use super::carrier::Peer;
use super::client::{CallError, Client, Replies, SessionId, UNKNOWN};
use super::network::Network;
use super::server::{Call, Handler, Server};
use super::{Config, Dispatch};
use crate::nic::{BATCH, Exchange, Frame, Nic, Room, SendRing};

/// The maximum number of batches of frames in a turn.
const BATCHES: usize = 4;

/// How long a server's station is looked for, before the tries to open a session count: both ends
/// may be probing their IPv6 addresses, and questions are repeated after a second.
const LOCATING: u64 = 3 * Nanos::SECOND;

/// The frame in one piece, copied if necessary.
fn whole<'f>(frame: &Frame<'f>) -> Cow<'f, [u8]> {
    match frame.rest {
        [] => Cow::Borrowed(frame.front),
        _ => Cow::Owned(frame.to_vec()),
    }
}

/// True if the frame is about neighbours.
#[inline]
fn is_taken(network: &mut Option<Box<Network>>, frame: &[u8], now: Nanos) -> bool {
    network.as_mut().is_some_and(|network| network.frame(frame, now))
}

/// A server on a NIC.
pub struct Serving<N, H> {
    nic: N,
    server: Server,
    /// Its neighbours, over UDP.
    network: Option<Box<Network>>,
    /// Answers requests.
    pub handler: H,
}

impl<N, H> fmt::Debug for Serving<N, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Serving({} sessions)", self.server.sessions())
    }
}

struct ToServer<'s, H> {
    server: &'s mut Server,
    network: &'s mut Option<Box<Network>>,
    handler: &'s mut H,
    now: Nanos,
}

impl<H: Handler> Exchange for ToServer<'_, H> {
    #[inline]
    fn frame(&mut self, frame: &Frame<'_>, room: &mut impl Room) {
        let frame = whole(frame);
        if !is_taken(self.network, &frame, self.now) {
            self.server.frame(&frame, self.now, self.handler, room);
        }
    }
}

impl<N: Nic, H: Handler> Serving<N, H> {
    /// Makes a server on `nic` that answers requests by `handler`.
    pub fn new(nic: N, config: Config, handler: H) -> Self {
        Self { nic, server: Server::new(config), network: None, handler }
    }

    /// Makes a server on a UDP port of `host`, that answers requests by `handler`: at its IPv4
    /// address, or at its IPv6 address if it has no other. Of the host's settings, the addresses
    /// and the limit of neighbours count.
    pub fn over_udp(
        nic: N,
        host: &crate::Config,
        port: u16,
        mut config: Config,
        handler: H,
    ) -> Self {
        let network = Network::new(host, port, &mut config);
        Self { nic, server: Server::new(config), network: Some(Box::new(network)), handler }
    }

    /// Runs a turn: receives, answers, sends. Returns how many frames it has received.
    ///
    /// # Errors
    /// The error of the NIC.
    pub fn poll(&mut self, now: Nanos) -> Result<usize, N::Error> {
        let Self { nic, server, network, handler } = self;
        let mut frames = 0;
        for _ in 0..BATCHES {
            let more = nic.exchange(&mut ToServer { server, network, handler, now });
            frames += more;
            if more < BATCH {
                break;
            }
        }
        server.poll(&mut SendRing(nic));
        if let Some(network) = network {
            network.transmit(nic, now);
        }
        nic.flush()?;
        Ok(frames)
    }

    /// Sends the replies that workers have finished.
    ///
    /// # Errors
    /// The error of the NIC.
    pub fn collect(&mut self, workers: &mut Dispatch) -> Result<(), N::Error> {
        let Self { nic, server, .. } = self;
        workers.collect(|call, reply| server.answer(call, reply, &mut SendRing(nic)));
        nic.flush()
    }

    /// Answers a request that the handler left for later.
    pub fn answer(&mut self, call: Call, reply: Bytes) {
        self.server.answer(call, reply, &mut SendRing(&mut self.nic));
    }

    /// Sleeps until a frame arrives, or there is room for what could not be sent.
    ///
    /// # Errors
    /// The error of the NIC.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<(), N::Error> {
        self.nic.wait(self.server.has_work(), timeout)
    }

    /// The server.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// The NIC.
    pub fn nic(&mut self) -> &mut N {
        &mut self.nic
    }
}

/// A client on a NIC.
pub struct Calling<N> {
    nic: N,
    client: Client,
    /// Its neighbours, over UDP.
    network: Option<Box<Network>>,
    /// Sessions whose server's station is not known yet, and until when it is waited for.
    unlocated: Vec<(SessionId, Nanos)>,
}

impl<N> fmt::Debug for Calling<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.client.fmt(f)
    }
}

struct ToClient<'c, R> {
    client: &'c mut Client,
    network: &'c mut Option<Box<Network>>,
    replies: &'c mut R,
    now: Nanos,
}

impl<R: Replies> Exchange for ToClient<'_, R> {
    #[inline]
    fn frame(&mut self, frame: &Frame<'_>, room: &mut impl Room) {
        let frame = whole(frame);
        if !is_taken(self.network, &frame, self.now) {
            self.client.frame(&frame, self.now, self.replies, room);
        }
    }
}

impl<N: Nic> Calling<N> {
    /// Calls from `nic`.
    pub fn new(nic: N, config: Config) -> Self {
        Self { nic, client: Client::new(config), network: None, unlocated: Vec::new() }
    }

    /// Calls from a UDP port of `host`: from its IPv4 address, or from its IPv6 address if it has
    /// no other. Of the host's settings, the addresses and the limit of neighbours count.
    pub fn over_udp(nic: N, host: &crate::Config, port: u16, mut config: Config) -> Self {
        let network = Network::new(host, port, &mut config);
        let network = Some(Box::new(network));
        Self { nic, client: Client::new(config), network, unlocated: Vec::new() }
    }

    /// Opens a session. The packet leaves with the next [`flush`](Self::flush) or turn.
    pub fn connect(&mut self, peer: impl Into<Peer>, now: Nanos) -> SessionId {
        self.client.connect(peer, now, &mut SendRing(&mut self.nic))
    }

    /// Opens a session with the server at a UDP address, for clients that call
    /// [over UDP](Self::over_udp). The first packet leaves when the address of the server's, or the
    /// router's, station is known.
    pub fn connect_udp(&mut self, to: impl Into<SocketAddr>, now: Nanos) -> SessionId {
        let session = self.connect(Peer::over_udp(UNKNOWN, to), now);
        self.unlocated.push((session, now + LOCATING));
        self.locate(now);
        session
    }

    /// Looks for stations of servers.
    fn locate(&mut self, now: Nanos) {
        let Self { nic, client, network, unlocated } = self;
        let Some(network) = network else { return };
        let room = &mut SendRing(nic);
        unlocated.retain(|(session, until)| {
            let station_of = |to: SocketAddr| network.station_of(to.ip(), now);
            let located = client.locate(session.0, station_of, room);
            if !located && now < *until {
                client.wait_for_station(session.0, now);
            }
            !located
        });
    }

    /// Like [`Client::call`]. The packet leaves with the next [`flush`](Self::flush) or turn.
    ///
    /// # Errors
    /// See [`CallError`].
    #[inline]
    pub fn call(
        &mut self,
        session: SessionId,
        tag: u64,
        request: &[u8],
        now: Nanos,
    ) -> Result<(), CallError> {
        self.client.call(session, tag, request, now, &mut SendRing(&mut self.nic))
    }

    /// Like [`Client::call_bytes`].
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn call_bytes(
        &mut self,
        session: SessionId,
        tag: u64,
        request: Bytes,
        now: Nanos,
    ) -> Result<(), CallError> {
        self.client.call_bytes(session, tag, request, now, &mut SendRing(&mut self.nic))
    }

    /// Ends a session.
    pub fn close(&mut self, session: SessionId) {
        self.client.close(session, &mut SendRing(&mut self.nic));
    }

    /// Sends the requests that were made, and gives received slots back.
    ///
    /// # Errors
    /// The error of the NIC.
    pub fn flush(&mut self) -> Result<(), N::Error> {
        self.nic.flush()
    }

    /// Runs a turn: receives, repeats, sends. Returns when the next is due if no frame arrives
    /// before.
    ///
    /// # Errors
    /// The error of the NIC.
    pub fn poll(
        &mut self,
        now: Nanos,
        replies: &mut impl Replies,
    ) -> Result<Option<Nanos>, N::Error> {
        let Self { nic, client, network, .. } = self;
        for _ in 0..BATCHES {
            if nic.exchange(&mut ToClient { client, network, replies, now }) < BATCH {
                break;
            }
        }
        let mut due = client.poll(now, replies, &mut SendRing(nic));
        if self.network.is_some() {
            due = due.into_iter().chain(self.poll_network(now)).min();
        }
        self.nic.flush()?;
        Ok(due)
    }

    /// Locates servers, and sends what neighbours are to know.
    #[cold]
    fn poll_network(&mut self, now: Nanos) -> Option<Nanos> {
        self.locate(now);
        let Self { nic, network, .. } = self;
        network.as_mut()?.transmit(nic, now)
    }

    /// Sleeps until a frame arrives or `timeout` is over.
    ///
    /// # Errors
    /// The error of the NIC.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<(), N::Error> {
        self.nic.wait(false, timeout)
    }

    /// The client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The NIC.
    pub fn nic(&mut self) -> &mut N {
        &mut self.nic
    }
}
