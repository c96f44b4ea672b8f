//! A host: a NIC, addresses, and all protocols above it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use frame::{ETHERNET_HEADER, Ipv4, Ipv6, Mac, Offload, Udp};
use tcp::codec::Summing;
use tcp::{Buffered, ConnId, ListenerId, Machine, Nanos, OpenError, Receive};

use crate::config::Config;
use crate::counters::Counters;
use crate::input::Input;
use crate::link::{Link, Segments};
use crate::nic::{Nic, Pieces};
use crate::udp::{Sockets, UdpError, UdpId, write_headers};
use crate::up::Up;

/// Maximum number of received batches in a turn, so that the turn also sends.
const BATCHES: usize = 4;
/// Maximum sleep while the send ring is full.
const PATIENCE: Duration = Duration::from_millis(5);

/// Usage of the bounded resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Neighbours.
    pub neighbours: usize,
    /// Bytes of packets that wait for a neighbour's address.
    pub unresolved: usize,
    /// Answers that wait for a send slot.
    pub outbox: usize,
    /// Bytes of fragments whose packets are not whole.
    pub fragments: usize,
    /// The resources that TCP uses.
    pub tcp: tcp::Usage,
}

/// The reason why a connection could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No address of this host reaches the peer.
    #[error("No address of this host reaches {0}")]
    NoAddress(IpAddr),
    /// TCP refuses.
    #[error(transparent)]
    Tcp(#[from] OpenError),
}

/// A TCP/IP host on a NIC.
///
/// Its owner runs turns: [`poll`](Self::poll), then work with [`tcp`](Self::tcp) and the UDP
/// sockets, then [`wait`](Self::wait). [`Guest`](crate::Guest) does this for applications that are
/// written as callbacks.
#[derive(Debug)]
pub struct Stack<N> {
    pub(crate) nic: N,
    link: Link,
    machine: Machine,
    udp: Sockets,
    mtu: usize,
    /// Whether the stack or the NIC computes TCP's checksums.
    summing: Summing,
    /// The send ring was full.
    full: bool,
    /// Frames may still wait in the receive ring.
    more: bool,
    /// Dropped with the first turn: from then on, listeners are answered for.
    pub(crate) started: Option<Arc<Up>>,
}

impl<N: Nic> Stack<N> {
    /// Makes a host. It announces itself in its first turn, so that switches learn where it is.
    #[must_use]
    pub fn new(nic: N, config: &Config) -> Self {
        let mut tcp = config.tcp.clone();
        let mtu = nic.max_frame().saturating_sub(ETHERNET_HEADER).min(tcp.mtu.into());
        tcp.mtu = mtu as u16;
        let offloads = nic.offloads();
        // Requests of several segments need a switch or receiver that cuts them.
        let cut = offloads.checksum && offloads.tso4 && offloads.tso6 && offloads.ecn;
        tcp.gso_max = if cut { u16::MAX.into() } else { 0 };
        let mut link = Link::new(config, tcp.mtu);
        link.announce();
        let machine = Machine::new(tcp, config.secret);
        let udp = Sockets::default();
        let summing = if offloads.checksum { Summing::Partial } else { Summing::Full };
        let (full, more, started) = (false, false, None);
        Self { nic, link, machine, udp, mtu, summing, full, more, started }
    }

    /// Notes a neighbour whose address is known otherwise, and introduces this host to it. So
    /// neither of them has to ask all hosts of the link.
    pub fn introduce(&mut self, neighbour: Ipv4Addr, mac: Mac, now: Nanos) {
        self.link.confirm(neighbour, mac, true, now);
        self.link.request_arp(neighbour, mac);
    }

    /// Receives, answers, runs timers and sends. Returns when to call it again if no frame arrives
    /// before.
    ///
    /// # Errors
    /// The error of the NIC.
    pub fn poll(&mut self, now: Nanos) -> Result<Option<Nanos>, N::Error> {
        self.receive(now, &mut Buffered);
        self.transmit(now)
    }

    /// The first half of a turn: receives. `app` may read TCP's data in place in the frames.
    pub fn receive(&mut self, now: Nanos, app: &mut impl Receive) {
        let Self { nic, link, machine, udp, .. } = self;
        let mut input = Input { link, machine, udp, now };
        self.more = (0..BATCHES).all(|_| nic.receive(|frames| input.frames(frames, app)) > 0);
    }

    /// The second half of a turn: runs timers and sends. Returns when the next turn is due.
    ///
    /// # Errors
    /// The error of the NIC.
    pub fn transmit(&mut self, now: Nanos) -> Result<Option<Nanos>, N::Error> {
        let Self { nic, link, machine, summing, .. } = self;
        if usize::from(link.mtu) != self.mtu {
            self.mtu = link.mtu.into();
            machine.set_mtu(link.mtu);
        }
        let mut full = link.transmit(nic, now).is_err();
        if !full {
            machine.transmit(now, &mut Segments { nic, link, now, summing: *summing });
            // TCP's packets may have caused ARP requests.
            full = link.transmit(nic, now).is_err() || machine.has_work();
        }
        self.full = full;
        self.nic.flush()?;
        if self.started.is_some() {
            self.started = None;
        }
        Ok(self.deadline(now))
    }

    fn deadline(&self, now: Nanos) -> Option<Nanos> {
        if self.more || self.full {
            return Some(now);
        }
        let (tcp, link) = (self.machine.deadline(), self.link.deadline());
        tcp.into_iter().chain(link).min()
    }

    /// Sleeps until a frame arrives or the deadline that [`poll`](Self::poll) returned. If the send
    /// ring was full, it also wakes up when there is room.
    ///
    /// # Errors
    /// The error of the NIC.
    pub fn wait(&mut self, deadline: Option<Nanos>, now: Nanos) -> Result<(), N::Error> {
        if self.more {
            return Ok(());
        }
        let timeout = match self.full {
            true => Some(PATIENCE),
            false => deadline.map(|deadline| Duration::from_nanos(deadline - now)),
        };
        self.nic.wait(self.full, timeout)
    }

    /// All of TCP.
    pub fn tcp(&mut self) -> &mut Machine {
        &mut self.machine
    }

    /// Listens at a TCP port of all addresses; at most `backlog` connections wait to be accepted.
    ///
    /// # Errors
    /// As for [`Machine::listen`].
    pub fn listen(&mut self, port: u16, backlog: usize) -> Result<ListenerId, OpenError> {
        self.machine.listen(None, port, backlog, None)
    }

    /// Opens a TCP connection from an ephemeral port.
    ///
    /// # Errors
    /// As for [`Machine::connect`], or no address of the host reaches the peer.
    pub fn connect(
        &mut self,
        to: impl Into<SocketAddr>,
        now: Nanos,
    ) -> Result<ConnId, ConnectError> {
        let to = to.into();
        let from = self.source(to.ip(), now).ok_or_else(|| ConnectError::NoAddress(to.ip()))?;
        Ok(self.machine.connect((from, 0), (to.ip(), to.port()), None, now)?)
    }

    /// The source address of packets to `to`.
    fn source(&self, to: IpAddr, now: Nanos) -> Option<IpAddr> {
        match to {
            IpAddr::V4(_) => {
                (!self.link.address.is_unspecified()).then(|| self.link.address.into())
            }
            IpAddr::V6(to) => Some(self.link.v6.as_ref()?.source(to, now)?.into()),
        }
    }

    /// Opens a UDP socket.
    ///
    /// # Errors
    /// The port is 0 or in use.
    pub fn udp_bind(&mut self, port: u16) -> Result<UdpId, UdpError> {
        self.udp.bind(port)
    }

    /// Sets how many bytes of datagrams may wait in a UDP socket; 128 KiB by default. 256 datagrams
    /// may wait in any.
    pub fn udp_buffer(&mut self, id: UdpId, bytes: usize) {
        self.udp.buffer(id, bytes);
    }

    /// The longest data of a datagram over IPv4 or IPv6.
    #[must_use]
    pub fn udp_longest(&self, v6: bool) -> usize {
        let ip_len = if v6 { Ipv6::LEN } else { Ipv4::LEN };
        self.mtu - ip_len - Udp::LEN
    }

    /// Closes a UDP socket, and drops its queued datagrams.
    pub fn udp_close(&mut self, id: UdpId) {
        self.udp.close(id);
    }

    /// Takes the oldest datagram of a socket; returns its sender and data.
    pub fn udp_receive(&mut self, id: UdpId) -> Option<(SocketAddr, Box<[u8]>)> {
        self.udp.receive(id)
    }

    /// Sends a datagram, copied straight into a send slot. It leaves with the next turn.
    ///
    /// # Errors
    /// See [`UdpError`].
    pub fn udp_send(
        &mut self,
        id: UdpId,
        to: impl Into<SocketAddr>,
        data: &[u8],
        now: Nanos,
    ) -> Result<(), UdpError> {
        let to = to.into();
        if !self.udp.is_open(id) {
            return Err(UdpError::Closed);
        }
        let ip_len = if to.is_ipv4() { Ipv4::LEN } else { Ipv6::LEN };
        let most = self.udp_longest(to.is_ipv6());
        if data.len() > most {
            return Err(UdpError::TooLong(data.len(), most));
        }
        let from = self.source(to.ip(), now).ok_or_else(|| UdpError::NoAddress(to.ip()))?;
        let mut head = [0; ETHERNET_HEADER + Ipv6::LEN + Udp::LEN];
        let head = &mut head[..ETHERNET_HEADER + ip_len + Udp::LEN];
        let partial = self.summing == Summing::Partial;
        write_headers(&mut head[ETHERNET_HEADER..], (from, id.0), to, data, partial);
        let offload = match partial {
            true => Offload {
                flags: Offload::NEEDS_CHECKSUM,
                checksum_start: (ETHERNET_HEADER + ip_len) as u16,
                checksum_offset: Udp::CHECKSUM,
                ..Offload::NONE
            },
            false => Offload::NONE,
        };
        let Self { nic, link, .. } = self;
        let payload = Pieces { pieces: std::iter::once(data), len: data.len() };
        let sent = match to.ip() {
            IpAddr::V4(to) => link.send(nic, to, head, offload, payload, now),
            IpAddr::V6(to) => link.send_v6(nic, to, head, offload, payload, now),
        };
        sent.map_err(|_| UdpError::Full)?;
        link.counters.datagrams_out += 1;
        Ok(())
    }

    /// Returns how many segments and datagrams have come in for this host. What all hosts get, such
    /// as the announcement of a new one, does not count: it makes no other frame likely.
    pub(crate) fn heard(&self) -> u64 {
        self.machine.segments_in() + self.link.counters.datagrams_in
    }

    /// The counters of the layers below TCP.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.link.counters
    }

    /// Returns the usage of the bounded resources.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let (mut neighbours, mut unresolved) = self.link.neighbours.usage();
        if let Some(v6) = &self.link.v6 {
            let (more, bytes) = v6.neighbours.usage();
            (neighbours, unresolved) = (neighbours + more, unresolved + bytes);
        }
        let outbox = self.link.waiting();
        let fragments = self.link.fragments.bytes();
        Usage { neighbours, unresolved, outbox, fragments, tcp: self.machine.usage() }
    }

    /// The NIC.
    #[must_use]
    pub fn nic(&self) -> &N {
        &self.nic
    }

    /// The NIC without the stack, for programs that speak another protocol.
    #[must_use]
    pub fn into_nic(self) -> N {
        self.nic
    }

    /// The NIC's address.
    #[must_use]
    pub fn mac(&self) -> Mac {
        self.link.mac
    }

    /// The host's IPv4 address; 0.0.0.0 for none.
    #[must_use]
    pub fn address(&self) -> Ipv4Addr {
        self.link.address
    }

    /// All addresses of the host, in the order in which they should be shown. An IPv6 address is
    /// one once no other host was found to have it.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let v4 = Some(self.link.address).filter(|address| !address.is_unspecified());
        let v6 = self.link.v6.iter().flat_map(|v6| v6.addresses());
        let (local, wide): (Vec<Ipv6Addr>, Vec<_>) = v6.partition(Ipv6Addr::is_unicast_link_local);
        v4.map(IpAddr::V4).into_iter().chain(wide.into_iter().chain(local).map(IpAddr::V6))
    }

    /// Whether the host has all the addresses that it was told to have.
    #[must_use]
    pub fn is_configured(&self) -> bool {
        let lent = self.link.dhcp.as_ref().is_none_or(|dhcp| dhcp.lease().is_some());
        lent && self.link.v6.as_ref().is_none_or(|v6| v6.is_configured())
    }

    /// The name servers that a DHCP server has named, the preferred one first.
    #[must_use]
    pub fn name_servers(&self) -> &[Ipv4Addr] {
        let lease = self.link.dhcp.as_ref().and_then(|dhcp| dhcp.lease());
        lease.map_or(&[], |lease| &lease.name_servers)
    }
}
