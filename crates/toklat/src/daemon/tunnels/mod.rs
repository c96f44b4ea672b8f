//! Tunnels: their sockets, and which socket receives a segment's datagrams.
//!
//! A host has one UDP port for VXLAN, and each tunnel has a socket there. The sockets form a group
//! (SO_REUSEPORT), whose classic-BPF program chooses by VNI. The program names a socket by its
//! index in the group. The kernel appends a newly bound socket. When a socket's last descriptor is
//! closed, the kernel moves the group's last socket to its index. Each socket stores its index in a
//! socket option, where a restarted supervisor finds it.

mod diag;
mod sockets;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dataplane::attach::vxlan::{PeerCounters, Segment, VxlanConfig};
use dataplane::config::Attachment;
use dataplane::control::Hosts;
use evpn::route::RouteTarget;
use shmem::{Memfd, Pages, SharedSlice};
use topology::{Evpn, Vxlan};

use super::{locked, namespace, system};
use crate::api::{ApiError, ErrorCode, PeerInfo, TunnelInfo};

/// Bytes of the outer headers and the inner Ethernet header, beside the outer IP header.
const OVERHEAD: u16 = 8 + frame::TUNNEL_HEADER as u16 + frame::ETHERNET_HEADER as u16;
/// Time limit until all processes have closed a socket.
const CLOSING: Duration = Duration::from_secs(2);

/// The address and namespace at which a group's sockets are bound.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    netns: Option<String>,
    at: SocketAddr,
}

/// A socket of a group, for one segment.
#[derive(Debug)]
struct Member {
    index: usize,
    /// The name of the port to which the tunnel belongs.
    owner: String,
    /// The segments of each tunnel that uses the socket: of two while a port is replaced.
    users: Vec<Vec<u32>>,
    socket: OwnedFd,
}

impl Member {
    /// The segments whose datagrams it receives.
    fn vnis(&self) -> BTreeSet<u32> {
        self.users.iter().flatten().copied().collect()
    }

    /// One of these segments that the socket serves already.
    fn shared(&self, vnis: &[u32]) -> Option<u32> {
        let own = self.vnis();
        vnis.iter().copied().find(|vni| own.contains(vni))
    }
}

/// All groups of this daemon.
#[derive(Debug, Default)]
pub struct Tunnels {
    groups: Mutex<BTreeMap<Place, Vec<Member>>>,
    /// All tunnels of earlier data processes are known.
    settled: AtomicBool,
    /// The EVPN settings that tunnels share.
    evpn: Mutex<Option<Evpn>>,
}

/// A tunnel's share of a group, released when dropped.
#[derive(Debug)]
struct Share {
    tunnels: Arc<Tunnels>,
    place: Place,
    vnis: Vec<u32>,
}

/// The supervisor's record of a tunnel port.
#[derive(Debug)]
pub struct Tunnel {
    /// A number that no other tunnel of this daemon has had.
    number: u64,
    config: VxlanConfig,
    counters: SharedSlice<PeerCounters>,
    /// The share in the group, released after the port's descriptors are closed.
    _share: Share,
}

/// The result of opening a tunnel.
pub type Opened = (Attachment, Vec<OwnedFd>, Tunnel);

impl Tunnels {
    /// Opens what a tunnel is attached to; `owner` is the port's full name.
    ///
    /// # Errors
    /// Its segment is in use, or its sockets cannot be made.
    pub async fn open(self: &Arc<Self>, kind: &Vxlan, owner: &str) -> Result<Opened, ApiError> {
        let config = self.config_of(kind)?;
        let (tunnels, owner, netns) = (Arc::clone(self), owner.to_owned(), config.netns.clone());
        namespace::in_namespace(netns, move || tunnels.open_here(config, owner)).await
    }

    /// Sets the EVPN settings for tunnels that are opened later; `None` if this host has no EVPN.
    pub fn set_evpn(&self, evpn: Option<Evpn>) {
        *locked(&self.evpn) = evpn;
    }

    /// The settings of a tunnel. Those that `[evpn]` contains are not repeated at the port.
    fn config_of(&self, kind: &Vxlan) -> Result<VxlanConfig, ApiError> {
        let bad =
            |reason: String, remedy: &str| ApiError::new(ErrorCode::BadRequest, reason, remedy);
        let evpn = locked(&self.evpn).clone().filter(|_| kind.evpn);
        if kind.evpn && evpn.is_none() {
            let reason = format!("VNI {}: this host has no [evpn]", kind.name());
            return Err(bad(reason, "apply a topology with [evpn], see docs/many-hosts.md"));
        }
        for target in kind.import_rt.iter().chain(&kind.export_rt) {
            target.parse::<RouteTarget>().map_err(|e| bad(e.to_string(), "correct it"))?;
        }
        let local = kind.local.or_else(|| evpn.as_ref().map(|evpn| evpn.vtep));
        let local = local.ok_or_else(|| {
            bad(format!("VNI {}: the tunnel has no local address", kind.name()), "name it: local")
        })?;
        if evpn.as_ref().is_some_and(|evpn| evpn.vtep != local) {
            let reason = format!("VNI {}: {local} is not the vtep of [evpn]", kind.name());
            return Err(bad(reason, "leave local out"));
        }
        let netns = kind.netns.clone().or_else(|| evpn.as_ref()?.netns.clone());
        Ok(VxlanConfig {
            encapsulation: kind.encapsulation,
            segments: segments_of(kind),
            local,
            port: kind.port(),
            peers: peers_of(kind),
            flooded: evpn.map(|_| Vec::new()),
            drop_unknown: kind.drop_unknown,
            suppress: !kind.no_suppress,
            clamp_mss: kind.clamp_mss,
            netns,
            mtu: None,
        })
    }

    /// Works as `open`, in the namespace of this thread.
    fn open_here(
        self: &Arc<Self>,
        mut config: VxlanConfig,
        owner: String,
    ) -> Result<Opened, ApiError> {
        let VxlanConfig { local, port, .. } = config;
        let place = Place { netns: config.netns.clone(), at: SocketAddr::new(local, port) };
        let (receiver, share) = self.join(&place, vnis_of(&config), owner)?;
        let failed = |e| system(&format!("Cannot make sockets at {local}"), e);
        let senders = sockets::senders(local).map_err(failed)?;
        config.mtu = inner_mtu(&config);
        let (memory, counters) = peer_counters(room(&config))?;
        let fds = std::iter::once(receiver).chain(senders).chain([memory]).collect();
        let tunnel = Tunnel::new(config.clone(), counters, share);
        Ok((Attachment::Vxlan(config), fds, tunnel))
    }

    /// Makes a socket for segments, in its group.
    fn join(
        self: &Arc<Self>,
        place: &Place,
        vnis: Vec<u32>,
        owner: String,
    ) -> Result<(OwnedFd, Share), ApiError> {
        let mut groups = locked(&self.groups);
        let group = groups.entry(place.clone()).or_default();
        let failed = |e| system(&format!("Cannot use UDP port {}", place.at), e);
        let share = {
            let (place, vnis) = (place.clone(), vnis.clone());
            || Share { tunnels: Arc::clone(self), place, vnis }
        };
        check_free(group, place.at, &vnis, &owner)?;
        if let Some(member) = group.iter_mut().find(|member| member.shared(&vnis).is_some()) {
            let socket = member.socket.try_clone().map_err(failed)?;
            member.users.push(vnis);
            let share = share();
            choose(group).map_err(failed)?;
            return Ok((socket, share));
        }
        let socket = sockets::receiver(place.at).map_err(|e| cannot_bind(place.at, &e))?;
        // Sockets that were not taken over yet also precede it in the group.
        let index = diag::inodes_at(place.at).map_err(failed)?.len().saturating_sub(1);
        if index != group.len() && self.settled.load(Ordering::Relaxed) {
            let reason = format!("Another program receives at UDP port {}", place.at);
            let remedy = "one daemon serves all tunnels of an address: `ss -ulnp` shows which program has it";
            return Err(ApiError::new(ErrorCode::Busy, reason, remedy));
        }
        sockets::set_index(&socket, index).map_err(failed)?;
        let twin = socket.try_clone().map_err(failed)?;
        group.push(Member { index, owner, users: vec![vnis], socket });
        // From here on, a failure releases the share.
        let share = share();
        choose(group).map_err(failed)?;
        Ok((twin, share))
    }

    /// Takes over a tunnel of a data process.
    ///
    /// # Errors
    /// The descriptors are not a tunnel's.
    pub fn take_over(
        self: &Arc<Self>,
        config: &VxlanConfig,
        owner: &str,
        (receiver, memory): (OwnedFd, OwnedFd),
    ) -> io::Result<Tunnel> {
        let counters = map_counters(Memfd::adopt(memory), room(config))?;
        let (at, vnis) = (SocketAddr::new(config.local, config.port), vnis_of(config));
        let place = Place { netns: config.netns.clone(), at };
        let index = sockets::index(&receiver)?;
        let users = vec![vnis.clone()];
        let member = Member { index, owner: owner.into(), users, socket: receiver };
        locked(&self.groups).entry(place.clone()).or_default().push(member);
        let share = Share { tunnels: Arc::clone(self), place, vnis };
        Ok(Tunnel::new(config.clone(), counters, share))
    }

    /// Ends the takeover of tunnels. Sockets closed while no supervisor ran have left free indices,
    /// into which the kernel has moved the last sockets.
    pub fn settle(&self) {
        self.settled.store(true, Ordering::Relaxed);
        for (place, group) in locked(&self.groups).iter_mut() {
            group.sort_by_key(|member| member.index);
            while let Some(hole) = (0..group.len()).find(|place| group[*place].index != *place) {
                let Some(mut last) = group.pop() else { break };
                last.index = hole;
                group.insert(hole, last);
            }
            let kept = group.iter().try_for_each(|m| sockets::set_index(&m.socket, m.index));
            if let Err(error) = kept.and_then(|()| choose(group)) {
                tracing::error!(at = %place.at, %error, "tunnels were not told apart");
            }
        }
    }

    /// Releases a tunnel's share of its group. Must run in the group's namespace.
    fn leave(&self, place: &Place, vnis: &[u32]) -> io::Result<()> {
        let mut groups = locked(&self.groups);
        let Some(group) = groups.get_mut(place) else { return Ok(()) };
        let its = |member: &Member| member.users.iter().position(|user| user == vnis);
        let Some(at) = group.iter().position(|member| its(member).is_some()) else {
            return Ok(());
        };
        if let Some(user) = its(&group[at]) {
            group[at].users.remove(user);
        }
        if !group[at].users.is_empty() {
            return choose(group);
        }
        let Member { index, socket, .. } = group.remove(at);
        let inode = rustix::fs::fstat(&socket)?.st_ino;
        drop(socket);
        let deadline = Instant::now() + CLOSING;
        let left = loop {
            let inodes = diag::inodes_at(place.at)?;
            if !inodes.contains(&inode) {
                break inodes.len();
            }
            if Instant::now() >= deadline {
                // Another process still has it open, so its index stays taken.
                tracing::warn!(at = %place.at, ?vnis, "a tunnel's socket was not closed");
                return choose(group);
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        // The kernel has moved the last socket of the group to the free index.
        if let Some(last) = group.iter_mut().find(|member| member.index == left) {
            last.index = index;
            sockets::set_index(&last.socket, index)?;
        }
        let done = choose(group);
        if group.is_empty() {
            groups.remove(place);
        }
        done
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let (tunnels, place) = (Arc::clone(&self.tunnels), self.place.clone());
        let vnis = std::mem::take(&mut self.vnis);
        // This work may wait for a data process, and it enters a namespace.
        let leave = move || {
            let entered = place.netns.as_deref().map_or(Ok(()), host::tap::enter);
            let left =
                entered.map_err(io::Error::other).and_then(|()| tunnels.leave(&place, &vnis));
            if let Err(error) = left {
                tracing::error!(at = %place.at, ?vnis, %error, "a tunnel was not taken out of its group");
            }
        };
        if let Err(error) = std::thread::Builder::new().name("tunnels".into()).spawn(leave) {
            tracing::error!(%error, "cannot start a thread");
        }
    }
}

impl Tunnel {
    fn new(config: VxlanConfig, counters: SharedSlice<PeerCounters>, share: Share) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { number, config, counters, _share: share }
    }

    /// The tunnel's number. One that replaces another at the same port has another number.
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// The tunnel's settings, with the hosts it has at the moment.
    pub fn config(&self) -> &VxlanConfig {
        &self.config
    }

    /// Changes the tunnel's hosts. Returns the new settings.
    pub fn set_hosts(&mut self, hosts: &Hosts) -> &VxlanConfig {
        self.config.peers = hosts.peers.clone();
        self.config.flooded = Some(hosts.flooded.clone());
        self.config.mtu = hosts.mtu;
        &self.config
    }

    /// Describes the tunnel's peers for the API.
    #[must_use]
    pub fn info(&self) -> TunnelInfo {
        let Self { config, counters, .. } = self;
        let peers = config.peers.iter().zip(config.segments.iter().cycle()).zip(counters.iter());
        let peers = peers.filter(|((address, _), _)| !address.is_unspecified());
        let peer =
            |((address, segment), counters): ((&IpAddr, &Segment), &PeerCounters)| PeerInfo {
                address: *address,
                vni: segment.vni.get(),
                in_frames: counters.in_frames.get(),
                in_bytes: counters.in_bytes.get(),
                out_frames: counters.out_frames.get(),
                out_bytes: counters.out_bytes.get(),
                too_long: counters.too_long.get(),
                full: counters.full.get(),
                unreachable: counters.unreachable.get(),
                refused: counters.refused.get(),
            };
        TunnelInfo { inner_mtu: self.config.mtu, peers: peers.map(peer).collect() }
    }
}

/// How many peers a tunnel has counters for.
fn room(config: &VxlanConfig) -> usize {
    if config.flooded.is_some() { Vxlan::MAX_PEERS } else { config.peers.len() }
}

/// Checks that a group has room for these segments, and that no other port has one of them.
fn check_free(group: &[Member], at: SocketAddr, vnis: &[u32], owner: &str) -> Result<(), ApiError> {
    for member in group.iter().filter(|member| member.owner != owner) {
        if let Some(vni) = member.shared(vnis) {
            let reason = format!("VNI {vni} at {at} is {}'s", member.owner);
            let remedy = "give each tunnel VNIs of its own, or remove the other port";
            return Err(ApiError::new(ErrorCode::Busy, reason, remedy));
        }
    }
    // What the port itself has is about to leave; the program has room for both.
    let others = group.iter().filter(|member| member.owner != owner);
    let taken: usize = others.map(|member| member.vnis().len()).sum();
    if taken + vnis.len() > sockets::MAX_VNIS {
        let reason = format!("{taken} VNIs are at {at} already");
        return Err(ApiError::new(ErrorCode::Limit, reason, "use another local address"));
    }
    Ok(())
}

/// The segments of a tunnel.
pub fn segments_of(kind: &Vxlan) -> Vec<Segment> {
    kind.segments().into_iter().map(|(vni, vlan)| Segment { vni, vlan }).collect()
}

/// The peers of a tunnel: each host in each segment, the segments in turn.
pub fn peers_of(kind: &Vxlan) -> Vec<IpAddr> {
    let segments = kind.segments().len();
    kind.peers.iter().flat_map(|peer| std::iter::repeat_n(*peer, segments)).collect()
}

fn vnis_of(config: &VxlanConfig) -> Vec<u32> {
    config.segments.iter().map(|segment| segment.vni.get()).collect()
}

/// Makes the group choose by VNI.
fn choose(group: &[Member]) -> io::Result<()> {
    let Some(first) = group.first() else { return Ok(()) };
    let its = |member: &Member| {
        let index = member.index;
        member.vnis().into_iter().map(move |vni| (vni, index))
    };
    let places: Vec<_> = group.iter().flat_map(its).collect();
    sockets::choose_by_vni(&first.socket, &places, first.index)
}

/// Largest IP packet of a guest that fits the paths to all reachable peers.
pub fn inner_mtu(config: &VxlanConfig) -> Option<u16> {
    let to = |ip: &IpAddr| SocketAddr::new(*ip, config.port);
    let peers: BTreeSet<_> = config.peers.iter().filter(|ip| !ip.is_unspecified()).collect();
    let paths = peers.into_iter().filter_map(|ip| sockets::path_mtu(config.local, to(ip)).ok());
    let overhead = OVERHEAD + if config.local.is_ipv6() { 40 } else { 20 };
    paths.min().map(|path| path.saturating_sub(overhead))
}

fn peer_counters(peers: usize) -> Result<(OwnedFd, SharedSlice<PeerCounters>), ApiError> {
    let memory = Memfd::create("toklat-peers", PeerCounters::bytes(peers), Pages::Small);
    let failed = |e| system("Cannot make memory for counters", e);
    let memory = memory.map_err(io::Error::other).map_err(failed)?.into_fd();
    let twin = memory.try_clone().map_err(failed)?;
    let counters = map_counters(Memfd::adopt(twin), peers).map_err(failed)?;
    Ok((memory, counters))
}

fn map_counters(
    memory: Result<Memfd, shmem::RegionError>,
    peers: usize,
) -> io::Result<SharedSlice<PeerCounters>> {
    let mapping = memory.and_then(|memory| memory.map()).map_err(io::Error::other)?;
    mapping.shared_slice(0, peers).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn cannot_bind(at: SocketAddr, error: &io::Error) -> ApiError {
    match error.raw_os_error() {
        Some(libc::EADDRINUSE) => ApiError::new(
            ErrorCode::Busy,
            format!("UDP port {} of {} is in use", at.port(), at.ip()),
            "a VXLAN or Geneve interface of the kernel may have it (`ip -d link show type vxlan`, `... type \
             geneve`): remove that, or give both ends another port with --vxlan-port",
        ),
        Some(libc::EADDRNOTAVAIL) => ApiError::new(
            ErrorCode::BadRequest,
            format!("{} is not an address of this host", at.ip()),
            "name one of `ip address` with --local",
        ),
        _ => system(&format!("Cannot bind UDP port {at}"), io::Error::from(error.kind())),
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn place() -> Place {
        // A free port.
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        Place { netns: None, at: socket.local_addr().unwrap() }
    }

    fn join(tunnels: &Arc<Tunnels>, place: &Place, vni: u32) -> (OwnedFd, Share) {
        tunnels.join(place, vec![vni], format!("port of {vni}")).unwrap()
    }

    /// Sends a datagram of a segment, and asserts that this socket gets it.
    fn assert_reaches(place: &Place, vni: u32, socket: &OwnedFd) {
        let [_, a, b, c] = vni.to_be_bytes();
        let from = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        from.send_to(&[8, 0, 0, 0, a, b, c, 0], place.at).unwrap();
        // If the kernel is busy, the datagram may arrive later.
        let mut fds = [PollFd::new(socket, PollFlags::IN)];
        let seconds = Timespec { tv_sec: 20, tv_nsec: 0 };
        assert_eq!(poll(&mut fds, Some(&seconds)), Ok(1), "VNI {vni}");
        let flags = rustix::net::RecvFlags::DONTWAIT;
        let got = rustix::net::recv(socket, &mut [0; 64][..], flags);
        assert_eq!(got.map(|(len, _)| len), Ok(8), "VNI {vni}");
    }

    fn wait_for(what: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !what() {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn segments_are_told_apart_as_tunnels_come_and_go() {
        let (tunnels, place) = (Arc::<Tunnels>::default(), place());
        let mut all: Vec<_> = (1..=10).map(|vni| (vni, join(&tunnels, &place, vni))).collect();
        all.iter().for_each(|(vni, (socket, _))| assert_reaches(&place, *vni, socket));
        // Removes sockets at the front, in the middle and at the end.
        for gone in [0, 4, 7, 0] {
            let left = all.len() - 1;
            let (_, (socket, share)) = all.remove(gone);
            drop(socket);
            drop(share);
            wait_for(|| locked(&tunnels.groups)[&place].len() == left);
            all.iter().for_each(|(vni, (socket, _))| assert_reaches(&place, *vni, socket));
        }
        all.push((77, join(&tunnels, &place, 77)));
        all.iter().for_each(|(vni, (socket, _))| assert_reaches(&place, *vni, socket));
        drop(all);
        wait_for(|| locked(&tunnels.groups).is_empty());
    }

    #[test]
    fn a_segment_has_one_port_and_that_may_be_replaced() {
        let (tunnels, place) = (Arc::<Tunnels>::default(), place());
        let (first, share) = join(&tunnels, &place, 5);
        let other = tunnels.join(&place, vec![5], "vale1:x".into()).unwrap_err();
        assert_eq!(other.code, ErrorCode::Busy, "{other}");
        let (again, _share) = join(&tunnels, &place, 5);
        drop((first, share));
        wait_for(|| locked(&tunnels.groups)[&place][0].users.len() == 1);
        assert_reaches(&place, 5, &again);
    }

    #[test]
    fn a_port_of_several_segments_gets_all_of_them_and_may_change_them() {
        let (tunnels, place) = (Arc::<Tunnels>::default(), place());
        let port = |name: &str, vnis: &[u32]| tunnels.join(&place, vnis.into(), name.into());
        let (first, share) = port("a", &[10, 20, 30]).unwrap();
        let (other, _share) = port("b", &[40, 50]).unwrap();
        [10, 20, 30].iter().for_each(|vni| assert_reaches(&place, *vni, &first));
        [40, 50].iter().for_each(|vni| assert_reaches(&place, *vni, &other));
        for (name, vnis) in [("c", vec![60, 20]), ("a", vec![20, 50])] {
            assert_eq!(port(name, &vnis).unwrap_err().code, ErrorCode::Busy, "{name}");
        }
        let (again, _new) = port("a", &[20, 60]).unwrap();
        drop((first, share));
        wait_for(|| locked(&tunnels.groups)[&place][0].users == [[20, 60]]);
        [20, 60].iter().for_each(|vni| assert_reaches(&place, *vni, &again));
        let (later, _later) = port("c", &[10, 30]).unwrap();
        [10, 30].iter().for_each(|vni| assert_reaches(&place, *vni, &later));
        let most: Vec<_> = (100..100 + sockets::MAX_VNIS as u32).collect();
        assert_eq!(port("d", &most).unwrap_err().code, ErrorCode::Limit);
    }

    #[test]
    fn a_later_supervisor_knows_the_places_again() {
        let (tunnels, place) = (Arc::<Tunnels>::default(), place());
        let mut all: Vec<_> = (1..=4).map(|vni| (vni, join(&tunnels, &place, vni))).collect();
        // The supervisor is gone, and with it the socket that it was about to close.
        let ended = std::mem::take(&mut *locked(&tunnels.groups));
        all.iter_mut().for_each(|(_, (_, share))| share.tunnels = Arc::default());
        drop(ended);
        drop(all.remove(1));
        let later = Arc::<Tunnels>::default();
        for (vni, (socket, _)) in all.iter().rev() {
            let (index, socket) = (sockets::index(socket).unwrap(), socket.try_clone().unwrap());
            let member = Member { index, owner: String::new(), users: vec![vec![*vni]], socket };
            locked(&later.groups).entry(place.clone()).or_default().push(member);
        }
        later.settle();
        all.iter().for_each(|(vni, (socket, _))| assert_reaches(&place, *vni, socket));
    }

    #[test]
    fn two_daemons_do_not_share_an_address() {
        let (tunnels, place) = (Arc::<Tunnels>::default(), place());
        let _other = sockets::receiver(place.at).unwrap();
        tunnels.settle();
        let error = tunnels.join(&place, vec![5], "x".into()).unwrap_err();
        assert!(error.code == ErrorCode::Busy && error.reason.contains("Another"), "{error}");
    }

    #[test]
    fn an_open_port_is_reported_as_in_use() {
        let holder = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let place = Place { netns: None, at: holder.local_addr().unwrap() };
        let error = Arc::<Tunnels>::default().join(&place, vec![5], "x".into()).unwrap_err();
        assert_eq!(error.code, ErrorCode::Busy);
        assert!(error.remedy.contains("type vxlan"), "{error}");
        let place = Place { netns: None, at: ([192, 0, 2, 1], 4789).into() };
        let error = Arc::<Tunnels>::default().join(&place, vec![5], "x".into()).unwrap_err();
        assert_eq!(error.code, ErrorCode::BadRequest, "{error}");
    }
}
