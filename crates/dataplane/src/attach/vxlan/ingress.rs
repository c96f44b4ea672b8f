//! Datagrams from the tunnel's peers: frames into the switch, each with the number of its peer.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use frame::ETHERNET_HEADER;
use port::{DropReason, Effects, Ingress, IngressCounters, Nanos, Scratch};
use shmem::{Bytes, Shared};
use turn::attach::{Attended, Source};

use super::answers::Answer;
use super::coalesce::Coalescer;
use super::peers::{Known, Peers};
use super::socket::{Arrived, Inbox, Part};
use super::{MAX_FRAME, Tunnel};
use crate::attach::buffered::{Dry, is_readable};

/// The sending side of a tunnel: what its home worker polls.
pub(super) struct VxlanSource {
    tunnel: Arc<Tunnel>,
    socket: OwnedFd,
    counters: Shared<IngressCounters>,
    /// The messages of the last call, allocated with the first one. Not touched between gathering
    /// frames and completing them.
    inbox: Option<Box<Inbox>>,
    /// The number of the next message, and how many of its bytes were gathered.
    next: (usize, usize),
    gathered: usize,
    /// The frame that may be extended while frames are gathered.
    coalescer: Box<Coalescer>,
    /// The peers, as they were at the last look.
    known: Known,
    /// The last peer that was looked up.
    last: Option<(Host, Option<u16>)>,
    /// The answers to senders in the last turn.
    answers: Vec<Answer>,
    /// Whether the socket was found empty.
    dry: Dry,
}

impl VxlanSource {
    pub fn new(tunnel: Arc<Tunnel>, socket: OwnedFd, counters: Shared<IngressCounters>) -> Self {
        let (inbox, next, last, dry) = (None, (0, 0), None, Dry::default());
        let coalescer = Box::new(Coalescer::new());
        let known = tunnel.hosts.current();
        Self {
            tunnel,
            socket,
            counters,
            inbox,
            next,
            gathered: 0,
            coalescer,
            known,
            last,
            answers: Vec::new(),
            dry,
        }
    }

    /// Receives messages if all are used up; false if there are none.
    fn refill(&mut self, now: Nanos) -> bool {
        if self.next.0 < self.next.1 {
            return true;
        }
        if self.dry.is_recent(now) {
            return false;
        }
        if self.known.refresh(&self.tunnel.hosts) {
            self.last = None;
        }
        let inbox = self.inbox.get_or_insert_with(|| Box::new(Inbox::new()));
        match inbox.receive(self.socket.as_fd()) {
            Ok(count) if count > 0 => {
                (self.next, self.gathered) = ((0, count), 0);
                true
            }
            // The socket is empty, or reports an error of one peer. Reading the error has cleared
            // it.
            _ => {
                self.dry.set(now);
                false
            }
        }
    }

    /// Hands in frames of the current message, up to `max` in all.
    fn unpack(&mut self, scratch: &mut Scratch, max: usize) {
        let Self { tunnel, counters, inbox, next, gathered, known, last, coalescer, .. } = self;
        let inbox = inbox.get_or_insert_with(|| Box::new(Inbox::new()));
        let Some(arrived) = inbox.arrived(next.0) else {
            next.0 += 1;
            return;
        };
        if arrived.cut_off {
            let datagrams = arrived.len.div_ceil(arrived.segment).max(1) as u64;
            count_dropped(counters, DropReason::TooLong, (datagrams, arrived.len as u64));
            (next.0, *gathered) = (next.0 + 1, 0);
            return;
        }
        let mut tally = Tally::default();
        let is_plain = tunnel.segments.count() == 1;
        let sender = is_plain.then(|| peer_of(last, &known.peers, (0, arrived.from)));
        while *gathered < arrived.len && has_room(scratch, coalescer, max) {
            let (message, at) = (next.0, *gathered);
            let len = arrived.segment.min(arrived.len - at);
            *gathered += len;
            let datagram = inbox.part_mut(Part { message, at, len });
            let peer_of = |segment| match sender {
                Some(via) => via,
                None => peer_of(last, &known.peers, (segment, arrived.from)),
            };
            match judge(tunnel, datagram, arrived, peer_of) {
                Ok((via, frame)) => {
                    // Without the tag, which is not in the datagram.
                    tally.add(&known.peers, via, (frame - tunnel.segments.tag()) as u64);
                    let part = Part { message, at: at + len - frame, len: frame };
                    coalescer.push(part, via, inbox, scratch);
                }
                Err(reason) => count_dropped(counters, reason, (1, len as u64)),
            }
        }
        tally.flush(&known.peers);
        if *gathered >= arrived.len {
            if arrived.len == 0 {
                count_dropped(counters, DropReason::Encapsulation, (1, 0));
            }
            (next.0, *gathered) = (next.0 + 1, 0);
        }
    }

    /// Hands in the answers to senders, as frames of their peers.
    fn hand_in_answers(&mut self, scratch: &mut Scratch, max: usize) {
        self.answers = self.tunnel.take_answers();
        for Answer { via, frame } in self.answers.iter_mut().take(max.min(scratch.capacity())) {
            scratch.push(Bytes::of(frame).span());
            scratch.set_via(*via);
        }
    }
}

/// The frames of one peer that are not counted yet.
#[derive(Default)]
struct Tally {
    via: u16,
    frames: u64,
    bytes: u64,
}

impl Tally {
    fn add(&mut self, peers: &Peers, via: u16, bytes: u64) {
        if via != self.via {
            self.flush(peers);
            self.via = via;
        }
        self.frames += 1;
        self.bytes += bytes;
    }

    fn flush(&mut self, peers: &Peers) {
        if let Some(peer) = peers.counters(self.via) {
            peer.in_frames.add(std::mem::take(&mut self.frames));
            peer.in_bytes.add(std::mem::take(&mut self.bytes));
        }
    }
}

/// A host in a segment.
type Host = (u16, IpAddr);

/// The number of a peer. `last` caches the last lookup.
#[inline]
fn peer_of(last: &mut Option<(Host, Option<u16>)>, peers: &Peers, host: Host) -> Option<u16> {
    match *last {
        Some((known, via)) if known == host => via,
        _ => last.insert((host, peers.via(host.0, host.1))).1,
    }
}

/// True if the scratch has room for another frame in addition to the waiting one.
fn has_room(scratch: &Scratch, coalescer: &Coalescer, max: usize) -> bool {
    scratch.len() + usize::from(coalescer.is_open()) < max && scratch.has_room()
}

/// The peer that sent a datagram, and the length of the frame at the datagram's end; otherwise the
/// reason to drop it.
fn judge(
    tunnel: &Tunnel,
    datagram: &mut [u8],
    arrived: Arrived,
    peer_of: impl FnOnce(u16) -> Option<u16>,
) -> Result<(u16, usize), DropReason> {
    let (segment, at) = tunnel.segments.open(datagram)?;
    let via = peer_of(segment).ok_or(DropReason::UnknownPeer)?;
    let frame = &mut datagram[at..];
    debug_assert!(frame.len() >= ETHERNET_HEADER, "shorter ones are refused");
    if frame.len() + tunnel.segments.tag() > MAX_FRAME {
        return Err(DropReason::TooLong);
    }
    if !frame::leave_tunnel(frame, arrived.ecn) {
        return Err(DropReason::Congestion);
    }
    tunnel.clamp(frame);
    let at = tunnel.segments.tag_frame(segment, datagram, at).ok_or(DropReason::Vlan)?;
    Ok((via, datagram.len() - at))
}

/// Counts frames that arrived and were dropped.
fn count_dropped(counters: &IngressCounters, reason: DropReason, (frames, bytes): (u64, u64)) {
    counters.frames.add(frames);
    counters.bytes.add(bytes);
    counters.drop_frames(reason, frames);
}

impl Ingress for VxlanSource {
    fn gather(&mut self, scratch: &mut Scratch, max: usize, now: Nanos) -> usize {
        if max == 0 {
            return 0;
        }
        self.hand_in_answers(scratch, max);
        if scratch.is_empty() && !self.refill(now) {
            return 0;
        }
        let max = max.min(scratch.capacity());
        while self.next.0 < self.next.1 && has_room(scratch, &self.coalescer, max) {
            self.unpack(scratch, max);
        }
        if let Some(inbox) = &mut self.inbox {
            self.coalescer.flush(inbox, scratch);
        }
        self.counters.frames.add(scratch.len() as u64);
        self.counters.bytes.add(scratch.bytes());
        scratch.len()
    }

    /// Does nothing: the next messages may overwrite the buffers.
    fn complete(&mut self, _frames: usize) {}

    fn settle(&mut self, _now: Nanos) -> Effects {
        Effects::default()
    }
}

impl Source for VxlanSource {
    fn queues(&self) -> usize {
        1
    }

    fn queue(&mut self, queue: usize) -> Option<&mut dyn Ingress> {
        (queue == 0).then_some(self as _)
    }

    fn attends(&self) -> bool {
        true
    }

    fn attend(&mut self, now: Nanos) -> Attended {
        self.tunnel.replicate();
        Attended::next_turn(now)
    }

    fn wake_fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.socket.as_fd(), self.tunnel.bell.as_fd()]
    }

    fn arm(&mut self, _now: Nanos) -> bool {
        let work = self.tunnel.arm() || self.next.0 < self.next.1 || is_readable(&self.socket);
        if work {
            self.tunnel.disarm();
            self.dry.clear();
        }
        work
    }

    fn disarm(&mut self) {
        self.tunnel.disarm();
        self.dry.clear();
    }
}
