//! A tunnel by VXLAN (RFC 7348) or Geneve (RFC 8926): one port, with other hosts behind it.
//!
//! ```text
//!   switch -> egress -> trains, each for one peer, length and socket -> sendmmsg, one call a
//! socket
//!                   \-> floods: a copy for each peer, some each turn (head-end replication)
//!   recvmmsg -> datagrams, or trains of them -> peer, VNI, ECN -> TCP segments coalesced by flow
//!            -> frames with their peer's number -> switch
//! ```
//!
//! The supervisor makes the UDP sockets, which are not connected, and sets their options. One
//! receives. Several send, so that flows differ in their source port (RFC 7348, 5); a flow never
//! changes its socket. A classic-BPF program of the supervisor's chooses the socket of a host that
//! receives the datagrams of a segment.
//!
//! The forwarding table knows which peer a station is behind
//! ([`Station::via`](fabric::Station::via)). The switch only needs the port. The egress looks up
//! the peer of the frames that leave.
//!
//! The tunnel validates what it receives: the sender must be a peer, the VNI one of the tunnel's.
//! A tunnel has one segment, or one for each of several VLANs ([`segments`]). The
//! switch validates the inner frame, as it does for all ports. A peer can claim any station that is
//! neither local nor static.

mod answers;
mod coalesce;
mod egress;
mod flood;
mod ingress;
mod neighbours;
mod peers;
mod segments;
mod socket;
mod train;

use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use fabric::{Entries, Rules, VlanMode};
use frame::{ETHERNET_HEADER, Encapsulation, Mac, VLAN_TAG};
use rustix::event::EventfdFlags;
use rustix::net::SocketType;
use serde::{Deserialize, Serialize};
use turn::attach::{AttachError, Attached, Bells};
use turn::clock;
use turn::state::PortState;

use self::answers::Answer;
use self::egress::{Sending, VxlanEgress};
use self::ingress::VxlanSource;
use self::peers::{Hosts, List, Peers};
pub use self::peers::{MAX_PEERS, PeerCounters};
use self::segments::Segments;
pub use self::segments::{MAX_SEGMENTS, Segment};
use crate::attach::Kind;
use crate::config::PortId;

/// The number of sockets that a tunnel sends on.
pub const SENDERS: usize = 8;
/// The most sockets that a tunnel may send on.
const MAX_SENDERS: usize = 16;
/// Bytes of the largest frame.
const MAX_FRAME: usize = Rules::MAX_MTU as usize + ETHERNET_HEADER + 2 * VLAN_TAG;
/// For how long a turn replicates floods at most, and the number of copies between two reads of the
/// clock.
const REPLICATION_NS: u64 = 400_000;
const COPIES: usize = 64;

/// A tunnel to other hosts. Descriptors: the receiving UDP socket, the sending ones (1 to
/// 16), and a memory file for the counters of its peers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VxlanConfig {
    /// How frames lie in datagrams.
    pub encapsulation: Encapsulation,
    /// The segments: one for the frames as they are, or one for each of the tunnel's VLANs.
    pub segments: Vec<Segment>,
    /// Our address in the underlay.
    pub local: IpAddr,
    /// The UDP port that all peers use.
    pub port: u16,
    /// The addresses of the other hosts; the first is peer number 1. The unspecified address is a
    /// free number. Of `n` segments, peer `v` is in segment `(v - 1) % n`.
    pub peers: Vec<IpAddr>,
    /// The numbers of the peers that get floods, if a routing protocol names the peers: they then
    /// change while the tunnel is up ([`SetHosts`](crate::control::Command::SetHosts)), and
    /// stations are not learned from frames. `None` for peers that are configured.
    #[serde(default)]
    pub flooded: Option<Vec<u16>>,
    /// Frames to stations that are not known are dropped, not flooded.
    #[serde(default)]
    pub drop_unknown: bool,
    /// Questions for IP addresses of other hosts' stations are answered here (ARP, ND).
    #[serde(default)]
    pub suppress: bool,
    /// TCP's segment sizes are lowered to what fits the paths to the peers.
    #[serde(default)]
    pub clamp_mss: bool,
    /// The network namespace of the sockets, kept for the supervisor.
    #[serde(default)]
    pub netns: Option<String>,
    /// The largest IP packet of a guest that fits the paths to the peers, if known.
    #[serde(default)]
    pub mtu: Option<u16>,
}

impl Kind for VxlanConfig {
    /// Only hosts send to the tunnel's sockets. The supervisor makes these, so no untrusted program
    /// holds them.
    fn has_stranger(&self) -> bool {
        false
    }

    fn is_tunnel(&self) -> bool {
        true
    }
}

/// What the two directions of a tunnel share.
struct Tunnel {
    segments: Segments,
    hosts: Hosts,
    senders: Vec<OwnedFd>,
    sending: Mutex<Sending>,
    /// Set while copies of floods are to be made, or senders are to get an answer.
    ///
    /// # Protocol: `Tunnel.has_work`
    /// - Writer: holder of the sending lock
    /// - Reader: home worker; the worker that settles
    /// - Ordering: store release / load acquire
    /// - Partner: floods and answers, which lie under the lock
    /// - Without it: floods wait for the next datagram
    /// - Shown by: `toklat` test `floods_reach_a_thousand_hosts_some_at_a_time`
    has_work: AtomicBool,
    /// Set while the home worker may sleep.
    ///
    /// # Protocol: `Tunnel.sleeps`
    /// - Writer: home worker, as it is armed and disarmed; the worker that settles (swap)
    /// - Reader: the worker that settles
    /// - Ordering: relaxed, a `SeqCst` fence on both sides between it and `has_work`; swap
    ///   acquire-release
    /// - Partner: `has_work`
    /// - Without it: floods wait for the next datagram
    /// - Shown by: `toklat` test `floods_reach_a_thousand_hosts_some_at_a_time`
    sleeps: AtomicBool,
    /// Wakes it.
    bell: OwnedFd,
    id: PortId,
    table: Entries,
    membership: Membership,
    /// The UDP port of all peers.
    port: u16,
    drop_unknown: bool,
    suppress: bool,
    clamp_mss: bool,
    /// Largest IP packet that fits the paths to the peers; 0 if that is not known.
    ///
    /// # Protocol: `Tunnel.mtu`
    /// - Writer: control thread
    /// - Reader: holder of the sending lock; home worker
    /// - Ordering: relaxed
    /// - Without it: a sender is told an earlier size
    mtu: AtomicU16,
}

/// A tunnel, as the control thread sees it.
pub(crate) struct Handle(Arc<Tunnel>);

impl Handle {
    /// Applies a policy.
    pub fn set_vlans(&self, mode: &VlanMode) {
        self.0.membership.set(mode);
    }

    /// The filter in which stations behind a peer or in a segment are looked up.
    pub fn filter(&self, segment: u16) -> u16 {
        match self.0.segments.vlan(segment) {
            Some(vlan) => vlan.get(),
            None => self.0.membership.filter(&[]),
        }
    }

    /// The segment of a peer.
    pub fn segment_of(&self, via: u16) -> u16 {
        self.0.segments.of_peer(via)
    }

    /// Replaces the peers; `flooded` has the numbers of the peers that get floods. Returns false if
    /// they are too many.
    pub fn set_hosts(&self, peers: &[IpAddr], flooded: &[u16], mtu: Option<u16>) -> bool {
        let earlier = self.0.hosts.current().peers;
        let segments = self.0.segments.count();
        let list = List { peers, flooded: Some(flooded), segments, port: self.0.port };
        let Some(peers) = earlier.replaced(&list) else { return false };
        self.0.hosts.replace(peers);
        self.0.mtu.store(mtu.unwrap_or(0), Ordering::Relaxed);
        true
    }

    /// Sets which stations of other hosts in a segment have which IP addresses.
    pub fn set_owners(&self, segment: u16, owners: &[(IpAddr, Option<Mac>)]) {
        let mut sending = self.0.sending.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(its) = sending.neighbours.get_mut(usize::from(segment)) {
            owners.iter().for_each(|(ip, owner)| its.set_owner(*ip, *owner));
        }
    }

    /// Takes the IP addresses of local stations in a segment that were heard since the last call;
    /// with `all`, earlier ones are told again as they are heard.
    pub fn take_claims(&self, segment: u16, all: bool) -> Vec<(Mac, IpAddr)> {
        let mut sending = self.0.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(its) = sending.neighbours.get_mut(usize::from(segment)) else { return Vec::new() };
        if all {
            its.forget();
        }
        its.take()
    }
}

/// The VLANs of the port. They say in which filter to look up the stations of frames that leave.
///
/// # Protocol: a tunnel's `Membership`
/// - Writer: control thread
/// - Reader: holder of the sending lock
/// - Ordering: relaxed: frames meanwhile are looked up in either filter, and flooded if not found
/// - Without it: a flood too many
#[derive(Debug, Default)]
struct Membership(AtomicU32);

impl Membership {
    /// Set for ports whose frames carry tags; the native VLAN is below.
    const TAGGED: u32 = 1 << 16;

    /// Applies a policy.
    pub fn set(&self, mode: &VlanMode) {
        let word = match mode {
            VlanMode::Unaware => 0,
            VlanMode::Access(id) => u32::from(id.get()),
            VlanMode::Trunk { native, .. } => {
                Self::TAGGED | native.map_or(0, |id| u32::from(id.get()))
            }
        };
        self.0.store(word, Ordering::Relaxed);
    }

    /// The filter of a frame that leaves, from its header.
    fn filter(&self, head: &[u8]) -> u16 {
        let word = self.0.load(Ordering::Relaxed);
        let filter = word as u16;
        match head.get(12..16) {
            Some(&[0x81, 0x00, a, b]) if word & Self::TAGGED != 0 => {
                u16::from_be_bytes([a, b]) & 0xfff
            }
            _ => filter,
        }
    }
}

/// Attaches a tunnel. Descriptors: the receiving socket, the sending sockets, memory for the peers'
/// counters.
///
/// # Errors
/// [`AttachError`] when descriptors are of another kind, or counters are missing.
pub(crate) fn attach(
    config: &VxlanConfig,
    mut descriptors: Vec<OwnedFd>,
    id: PortId,
    state: &PortState,
    table: Entries,
    vlans: &VlanMode,
) -> Result<(Attached, Handle), AttachError> {
    let wrong = || AttachError::Descriptors { expected: "2 to 17 UDP sockets and counters" };
    let memory = descriptors.pop().ok_or_else(wrong)?;
    let is_udp =
        |fd: &OwnedFd| matches!(rustix::net::sockopt::socket_type(fd), Ok(SocketType::DGRAM));
    if !(2..=MAX_SENDERS + 1).contains(&descriptors.len()) || !descriptors.iter().all(is_udp) {
        return Err(wrong());
    }
    let receiver = descriptors.remove(0);
    let expected = "1 to 256 segments, each with its VLAN, or one without";
    let segments = Segments::new(config.encapsulation, &config.segments)
        .ok_or(AttachError::Descriptors { expected })?;
    let (flooded, count) = (config.flooded.as_deref(), segments.count());
    let list = List { peers: &config.peers, flooded, segments: count, port: config.port };
    let hosts = Hosts::new(Peers::new(&list, memory)?);
    let membership = Membership::default();
    membership.set(vlans);
    let (ingress, egress) = (state.ingress().ok_or(AttachError::Counters)?, state.egress(0));
    let egress = egress.ok_or(AttachError::Counters)?;
    let sending = Mutex::new(Sending::new(egress, hosts.current(), count));
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let no_bell = |_| AttachError::Descriptors { expected: "room for an eventfd" };
    let tunnel = Arc::new(Tunnel {
        segments,
        hosts,
        senders: descriptors,
        sending,
        has_work: AtomicBool::new(false),
        sleeps: AtomicBool::new(false),
        bell: rustix::event::eventfd(0, flags).map_err(no_bell)?,
        id,
        table,
        membership,
        port: config.port,
        drop_unknown: config.drop_unknown,
        suppress: config.suppress && config.flooded.is_some(),
        clamp_mss: config.clamp_mss,
        mtu: AtomicU16::new(config.mtu.unwrap_or(0)),
    });
    let source = VxlanSource::new(Arc::clone(&tunnel), receiver, ingress);
    let handle = Handle(Arc::clone(&tunnel));
    let egresses = vec![Arc::new(VxlanEgress { tunnel }).into()];
    Ok((Attached { source: Box::new(source), egresses, bells: Bells::None }, handle))
}

impl Tunnel {
    /// The lookup key of a frame: its filter and destination.
    fn key_of(&self, head: &[u8]) -> (u16, u64) {
        let mut mac = [0; 8];
        if let Some(to) = head.get(..6) {
            mac[..6].copy_from_slice(to);
        }
        (self.membership.filter(head), u64::from_le_bytes(mac))
    }

    /// The peer of a segment that a station is behind; `None` for all of them.
    fn via(&self, peers: &Peers, segment: u16, (filter, mac): (u16, u64)) -> Option<u16> {
        if mac & 1 != 0 {
            return None;
        }
        let station = self.table.lookup(filter, mac)?;
        let via = station.via();
        let is_its = station.port() == self.id && self.segments.of_peer(via) == segment;
        (is_its && peers.address(via).is_some()).then_some(via)
    }

    /// Largest IP packet that fits the paths to the peers, if known.
    fn mtu(&self) -> Option<u16> {
        Some(self.mtu.load(Ordering::Relaxed)).filter(|mtu| *mtu > 0)
    }

    /// Lowers the segment size in a TCP SYN, if that is asked for.
    fn clamp(&self, frame: &mut [u8]) {
        if self.clamp_mss
            && let Some(mtu) = self.mtu()
        {
            frame::clamp_mss(frame, mtu);
        }
    }

    /// Continues the floods for a while. Called by the home worker.
    fn replicate(&self) {
        if !self.has_work.load(Ordering::Acquire) {
            return;
        }
        let mut now = clock();
        let until = now + REPLICATION_NS;
        let mut left = true;
        while left && now < until {
            // The lock is released between two runs, so that other workers can take it.
            let mut sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
            sending.replicate(self, COPIES, now);
            left = !sending.floods.is_empty();
            drop(sending);
            now = clock();
        }
    }

    /// Takes the answers for senders. There are rarely any.
    fn take_answers(&self) -> Vec<Answer> {
        if !self.has_work.load(Ordering::Acquire) {
            return Vec::new();
        }
        self.sending.lock().unwrap_or_else(PoisonError::into_inner).take_answers(self)
    }

    /// Notes that the home worker may sleep. Returns true if it has work.
    fn arm(&self) -> bool {
        self.sleeps.store(true, Ordering::Relaxed);
        // Pairs with the fence before egresses are settled: at least one side sees the other's
        // store.
        fence(Ordering::SeqCst);
        self.has_work.load(Ordering::Relaxed)
    }

    fn disarm(&self) {
        self.sleeps.store(false, Ordering::Relaxed);
    }

    /// Wakes the home worker if it may be asleep.
    fn wake(&self) {
        if self.sleeps.load(Ordering::Relaxed) && self.sleeps.swap(false, Ordering::AcqRel) {
            // The write fails only if the counter overflows, after about 2^64 signals.
            let _ = rustix::io::write(self.bell.as_fd(), &1u64.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests;
