//! Frames from the switch into the tunnel: to the peer of their destination, or to all peers.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use frame::TUNNEL_HEADER;
use port::{
    Batch, Delivered, DropReason, Effects, Egress, EgressCounters, FrameIdx, HEAD, Limits, Nanos,
    Software,
};
use rustix::io::Errno;
use shmem::{Bytes, Shared};

use super::answers::{Answer, Answers};
use super::flood::{Done, Floods, To, Way, count_refused};
use super::neighbours::Neighbours;
use super::peers::{Known, Paths, Peers};
use super::socket::Post;
use super::train::{FRAMES, Train, TrainKey, Trains};
use super::{MAX_FRAME, Tunnel};

/// Distance in bytes between the datagrams in the arena.
const STRIDE: usize = (TUNNEL_HEADER + MAX_FRAME).next_multiple_of(64);
/// The maximum number of copies of floods that a sender's turn makes. The tunnel's home worker
/// makes the rest.
const AT_HOME: usize = 64;

/// A tunnel's receive queue, as the switch calls it.
pub(super) struct VxlanEgress {
    pub tunnel: Arc<Tunnel>,
}

/// The state of sending, under the tunnel's lock.
pub(super) struct Sending {
    counters: Shared<EgressCounters>,
    /// [`STRIDE`] bytes for each of [`FRAMES`] frames.
    arena: Box<[u8]>,
    trains: Box<Trains>,
    pub floods: Floods,
    pub answers: Answers,
    paths: Paths,
    /// For each segment: which station has which IP address.
    pub neighbours: Vec<Neighbours>,
    /// The peers, as of the current batch.
    known: Known,
}

impl Sending {
    pub fn new(counters: Shared<EgressCounters>, known: Known, segments: u16) -> Self {
        Self {
            counters,
            arena: vec![0; FRAMES * STRIDE].into(),
            trains: Box::new(Trains::new()),
            floods: Floods::default(),
            answers: Answers::default(),
            paths: Paths::new(known.peers.count()),
            neighbours: (0..segments).map(|_| Neighbours::default()).collect(),
            known,
        }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.counters.drop_frames(DropReason::Detached, self.floods.pending() as u64);
    }
}

impl Egress for VxlanEgress {
    fn deliver(&self, batch: &Batch<'_>, list: &[FrameIdx], limits: Limits) -> Delivered {
        let tunnel = &*self.tunnel;
        let mut sending = tunnel.sending.lock().unwrap_or_else(PoisonError::into_inner);
        sending.refresh(tunnel);
        for list in list.chunks(FRAMES) {
            sending.sort(tunnel, batch, list, limits);
            sending.send_trains(tunnel, batch.now());
        }
        if sending.has_work() {
            sending.replicate(tunnel, AT_HOME, batch.now());
        }
        Delivered { finished: list.len() }
    }

    fn settle(&self, _now: Nanos) -> Effects {
        if self.tunnel.has_work.load(Ordering::Relaxed) {
            self.tunnel.wake();
        }
        Effects::default()
    }

    fn count_software(&self, done: Software) {
        let sending = self.tunnel.sending.lock().unwrap_or_else(PoisonError::into_inner);
        sending.counters.add_software(done);
    }
}

impl Sending {
    /// Takes over the tunnel's current peers.
    fn refresh(&mut self, tunnel: &Tunnel) {
        if self.known.refresh(&tunnel.hosts) {
            self.paths.resize(self.known.peers.count());
        }
    }

    /// Copies frames into the arena, each after its header. Sorts those for one peer into trains,
    /// and those for all peers into the queue of floods.
    fn sort(&mut self, tunnel: &Tunnel, batch: &Batch<'_>, list: &[FrameIdx], limits: Limits) {
        self.trains.clear();
        let longest = (limits.max_frame as usize).min(MAX_FRAME);
        let (mut last, mut last_via) = (None, None);
        for (number, i) in list.iter().enumerate() {
            let (head, len) = (batch.head(*i), batch.frame(*i).len());
            if len > longest {
                self.counters.drop_frames(DropReason::TooLong, 1);
                continue;
            }
            let Some(segment) = tunnel.segments.of_frame(head) else {
                self.counters.drop_frames(DropReason::Vlan, 1);
                continue;
            };
            if tunnel.suppress && self.converse(tunnel, segment, head) {
                continue;
            }
            let to = tunnel.key_of(head);
            if last != Some(to) {
                (last, last_via) = (Some(to), tunnel.via(&self.known.peers, segment, to));
            }
            let socket = (frame::flow_hash(head) % tunnel.senders.len() as u32) as u8;
            let (ecn, datagram) = (frame::ecn_of(head), tunnel.segments.datagram_len(len));
            let Some(via) = last_via else {
                if tunnel.drop_unknown && to.1 & 1 == 0 {
                    self.counters.drop_frames(DropReason::NoDestination, 1);
                    continue;
                }
                let write = |bytes: &mut [u8]| write(bytes, tunnel, segment, (batch, *i));
                if !self.floods.push(Way { segment, socket, ecn }, datagram, write) {
                    self.counters.drop_frames(DropReason::Full, 1);
                }
                continue;
            };
            if self.paths.refuses(via, datagram, batch.now()) {
                self.refuse((via, 1), Errno::MSGSIZE);
                self.answers.say(tunnel, (head, len), via, batch.now());
                continue;
            }
            let at = number * STRIDE;
            write(&mut self.arena[at..at + datagram], tunnel, segment, (batch, *i));
            self.trains.push(TrainKey { via, socket, ecn }, at, datagram as u16);
        }
    }

    /// Hears the IP addresses that a frame of ARP or neighbour discovery claims. Returns true if it
    /// asks for one of another host's station, and is answered here.
    fn converse(&mut self, tunnel: &Tunnel, segment: u16, head: &[u8]) -> bool {
        // The types of ARP, of IPv6 and of a tag.
        if !matches!(head.get(12..14), Some([0x08, 0x06] | [0x86, 0xdd] | [0x81, 0x00])) {
            return false;
        }
        let Some(heard) = frame::discovery(head) else { return false };
        let Some(its) = self.neighbours.get_mut(usize::from(segment)) else { return false };
        if let Some((mac, ip)) = heard.claim {
            its.note(mac, ip);
        }
        let owner = heard.asks.and_then(|ip| its.owner(ip));
        let Some(owner) = owner.filter(|_| head[0] & 1 != 0) else { return false };
        let to = (tunnel.membership.filter(head), owner.word());
        let Some(via) = tunnel.via(&self.known.peers, segment, to) else { return false };
        let answer = frame::neighbour_answer(head, owner);
        let answered = answer.is_some_and(|frame| self.answers.push(via, frame));
        if answered {
            // The frame has reached its receiver: it was answered here.
            self.counters.frames.add(1);
            self.counters.bytes.add(head.len() as u64);
        }
        answered
    }

    /// Sends all trains, with one call for each socket.
    fn send_trains(&mut self, tunnel: &Tunnel, now: Nanos) {
        let mut left = self.trains.all().len();
        for (number, socket) in tunnel.senders.iter().enumerate() {
            if left == 0 {
                break;
            }
            let mine = |train: &&Train| usize::from(train.way.socket) == number;
            let count = self.trains.all().iter().filter(mine).count();
            if count > 0 {
                self.send_by(tunnel, (number, socket.as_fd()), now);
            }
            left -= count;
        }
    }

    /// Sends the trains of one socket.
    fn send_by(&mut self, tunnel: &Tunnel, (number, socket): (usize, BorrowedFd<'_>), now: Nanos) {
        let Self { arena, trains, counters, known, .. } = &*self;
        let mine = || trains.all().iter().filter(|t| usize::from(t.way.socket) == number);
        let mut parts = [IoSlice::new(&[]); FRAMES];
        let cars = mine().flat_map(|train| trains.cars(train));
        for (part, (at, len)) in parts.iter_mut().zip(cars) {
            *part = IoSlice::new(&arena[at..at + len]);
        }
        let (mut post, mut posted, mut rest) = (Post::new(), 0, &parts[..]);
        for train in mine() {
            let (these, others) = rest.split_at(usize::from(train.count));
            rest = others;
            let segment = (train.count > 1).then_some(train.segment);
            // Trains name valid peers only, because the table does.
            let Some(address) = known.peers.address(train.way.via) else { continue };
            post.push(address, these, segment, train.way.ecn);
            posted += 1;
        }
        let mut refused = [None; FRAMES];
        let (mut at, mut refusals) = (0, 0);
        while at < posted {
            match post.send(socket, at) {
                Ok(sent) => {
                    mine().skip(at).take(sent).for_each(|train| {
                        count_sent(counters, &known.peers, train, trains);
                    });
                    at += sent;
                }
                Err(Errno::INTR) => {}
                Err(error) => {
                    refused[refusals] = mine().nth(at).map(|train| (*train, error));
                    refusals += 1;
                    at += 1;
                }
            }
        }
        for (train, error) in refused.into_iter().take(refusals).flatten() {
            self.send_singly(tunnel, socket, &train, error, now);
        }
    }

    /// Sends the frames of a train one by one after the kernel refused the train with `error`. The
    /// path may fit some of them, or the device cannot segment trains.
    #[cold]
    fn send_singly(
        &mut self,
        tunnel: &Tunnel,
        socket: BorrowedFd<'_>,
        train: &Train,
        error: Errno,
        now: Nanos,
    ) {
        let (via, all) = (train.way.via, u64::from(train.count));
        if matches!(error, Errno::AGAIN | Errno::NOBUFS) {
            return self.refuse((via, all), error);
        }
        let mut cars = [(0, 0); FRAMES];
        cars.iter_mut().zip(self.trains.cars(train)).for_each(|(to, car)| *to = car);
        for (at, len) in cars.into_iter().take(usize::from(train.count)) {
            let known = self.paths.refuses(via, len, now).then_some(Errno::MSGSIZE);
            let error = known.or_else(|| match train.count {
                1 => Some(error),
                _ => self.send_one(socket, train, at, len).err(),
            });
            match error {
                None => {
                    let bytes = (len - TUNNEL_HEADER) as u64;
                    count(&self.counters, &self.known.peers, via, (1, bytes));
                }
                Some(error) => {
                    if error == Errno::MSGSIZE {
                        self.paths.note(via, len, now);
                        let frame = &self.arena[at + TUNNEL_HEADER..at + len];
                        let head = &frame[..frame.len().min(HEAD)];
                        let head = tunnel.segments.tagged(tunnel.segments.of_peer(via), head);
                        self.answers.say(tunnel, (&head, frame.len()), via, now);
                    }
                    self.refuse((via, 1), error);
                }
            }
        }
    }

    fn send_one(
        &self,
        socket: BorrowedFd<'_>,
        train: &Train,
        at: usize,
        len: usize,
    ) -> rustix::io::Result<usize> {
        let part = [IoSlice::new(&self.arena[at..at + len])];
        let mut post = Post::new();
        let address = self.known.peers.address(train.way.via).ok_or(Errno::HOSTUNREACH)?;
        post.push(address, &part, None, train.way.ecn);
        post.send(socket, 0)
    }

    /// Counts frames to a peer that the kernel refused.
    fn refuse(&self, (via, frames): (u16, u64), error: Errno) {
        self.counters.drop_frames(reason(error), frames);
        count_refused(&self.known.peers, via, frames, error);
    }

    /// Makes up to `most` copies of floods.
    pub fn replicate(&mut self, tunnel: &Tunnel, most: usize, now: Nanos) {
        self.refresh(tunnel);
        let mut sockets = [tunnel.senders[0].as_fd(); super::MAX_SENDERS];
        sockets.iter_mut().zip(&tunnel.senders).for_each(|(to, fd)| *to = fd.as_fd());
        let sockets = &sockets[..tunnel.senders.len()];
        let mut made = 0;
        while made < most && !self.floods.is_empty() {
            let to = &mut To { peers: &self.known.peers, paths: &mut self.paths, sockets, now };
            let (tried, done) = self.floods.go_on(to, most - made);
            made += tried;
            match done {
                Some(Done { frames, error: Some(error), .. }) => {
                    self.counters.drop_frames(reason(error), frames);
                }
                Some(Done { frames, bytes, error: None }) => {
                    self.counters.frames.add(frames);
                    self.counters.bytes.add(bytes);
                }
                None => {}
            }
        }
        tunnel.has_work.store(self.has_work(), Ordering::Release);
    }

    /// True if the home worker has floods or answers to send.
    fn has_work(&self) -> bool {
        !self.floods.is_empty() || !self.answers.is_empty()
    }

    /// Takes the answers for senders.
    pub fn take_answers(&mut self, tunnel: &Tunnel) -> Vec<Answer> {
        let answers = self.answers.take();
        tunnel.has_work.store(self.has_work(), Ordering::Release);
        answers
    }
}

/// Writes a frame after its header.
fn write(bytes: &mut [u8], tunnel: &Tunnel, segment: u16, (batch, i): (&Batch<'_>, FrameIdx)) {
    tunnel.segments.write(segment, bytes, |frame| {
        batch.copy_frame(i, Bytes::of(frame));
    });
    tunnel.clamp(&mut bytes[TUNNEL_HEADER..]);
}

fn count_sent(counters: &EgressCounters, peers: &Peers, train: &Train, trains: &Trains) {
    let bytes: usize = trains.cars(train).map(|(_, len)| len - TUNNEL_HEADER).sum();
    count(counters, peers, train.way.via, (u64::from(train.count), bytes as u64));
}

fn count(counters: &EgressCounters, peers: &Peers, via: u16, (frames, bytes): (u64, u64)) {
    counters.frames.add(frames);
    counters.bytes.add(bytes);
    if let Some(peer) = peers.counters(via) {
        peer.out_frames.add(frames);
        peer.out_bytes.add(bytes);
    }
}

/// The drop reason for an error of the kernel.
fn reason(error: Errno) -> DropReason {
    match error {
        Errno::MSGSIZE => DropReason::TooLong,
        Errno::AGAIN | Errno::NOBUFS => DropReason::Full,
        Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::NETDOWN => DropReason::Down,
        _ => DropReason::Io,
    }
}
