//! Floods to all peers: head-end replication (RFC 7348, 4.2, without multicast), a bounded number
//! of copies at a time.
//!
//! A flooded frame waits with others of its length, as a train that goes to one peer after the
//! other. The queue records the progress, so that any turn can continue it.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use frame::Ecn;
use port::Nanos;
use rustix::io::Errno;

use super::peers::{Paths, Peers};
use super::socket::{AT_ONCE, Post};

/// The maximum number of trains that wait.
const MAX_JOBS: usize = 256;
/// The maximum number of bytes that wait.
const MAX_BYTES: usize = 4 << 20;
/// The maximum number of frames of a train.
const MAX_CARS: u16 = 64;
/// The maximum number of bytes of a train.
const MAX_TRAIN: usize = 65_000;

/// A train for all peers.
#[derive(Debug, Default)]
struct Job {
    bytes: Vec<u8>,
    /// Bytes of each datagram of the train.
    segment: u16,
    count: u16,
    way: Way,
    /// The peer that is next.
    via: u16,
    /// How many peers got the train.
    reached: u16,
    /// The last error of a peer that did not get the train.
    error: Option<Errno>,
}

/// What the frames of a train for all peers have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Way {
    /// The segment whose peers get the train.
    pub segment: u16,
    /// The sending socket.
    pub socket: u8,
    /// The outer codepoint.
    pub ecn: Ecn,
}

/// A train that was sent to all peers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    /// Its frames.
    pub frames: u64,
    /// The bytes of the train's frames, without headers.
    pub bytes: u64,
    /// The error, if no peer got the train.
    pub error: Option<Errno>,
}

/// The tunnel's parts that sending needs.
pub(super) struct To<'a> {
    pub peers: &'a Peers,
    pub paths: &'a mut Paths,
    pub sockets: &'a [BorrowedFd<'a>],
    pub now: Nanos,
}

/// The trains for all peers.
#[derive(Debug, Default)]
pub(super) struct Floods {
    jobs: VecDeque<Job>,
    bytes: usize,
    /// Buffers of finished trains, to reuse.
    spare: Vec<Vec<u8>>,
}

impl Floods {
    /// Returns the number of frames that wait.
    pub fn pending(&self) -> usize {
        self.jobs.iter().map(|job| usize::from(job.count)).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Adds a frame of `len` bytes, header included, which `write` writes. False if too many wait.
    pub fn push(&mut self, way: Way, len: usize, write: impl FnOnce(&mut [u8])) -> bool {
        let Ok(segment) = u16::try_from(len) else { return false };
        if self.bytes + len > MAX_BYTES {
            return false;
        }
        let same = |job: &&mut Job| {
            let is_alike = (job.way, job.segment) == (way, segment);
            let has_room = job.count < MAX_CARS && job.bytes.len() + len <= MAX_TRAIN;
            is_alike && has_room && job.via == 1
        };
        if self.jobs.back_mut().filter(same).is_none() {
            if self.jobs.len() >= MAX_JOBS {
                return false;
            }
            let bytes = self.spare.pop().unwrap_or_default();
            let job = Job { bytes, segment, way, via: 1, ..Job::default() };
            self.jobs.push_back(job);
        }
        let Some(job) = self.jobs.back_mut() else { return false };
        let at = job.bytes.len();
        job.bytes.resize(at + len, 0);
        write(&mut job.bytes[at..]);
        job.count += 1;
        self.bytes += len;
        true
    }

    /// Sends about `most` datagrams, usually with one call. Returns how many were tried, and the
    /// train that this finished.
    pub fn go_on(&mut self, to: &mut To<'_>, most: usize) -> (usize, Option<Done>) {
        let Some(job) = self.jobs.front_mut() else { return (0, None) };
        let left = to.peers.flooded_from(job.way.segment, job.via).len();
        let each = usize::from(job.count).max(1);
        let tried = left.min((most / each).max(1)).min(AT_ONCE);
        job.send(to, tried);
        let tried = tried * each;
        if !to.peers.flooded_from(job.way.segment, job.via).is_empty() {
            return (tried, None);
        }
        (tried, self.jobs.pop_front().map(|job| self.retire(job)))
    }

    fn retire(&mut self, mut job: Job) -> Done {
        /// The maximum number of buffers that are kept for reuse.
        const SPARE: usize = 8;
        self.bytes -= job.bytes.len();
        let frames = u64::from(job.count);
        let bytes = job.bytes.len() as u64 - frames * frame::TUNNEL_HEADER as u64;
        if self.spare.len() < SPARE {
            job.bytes.clear();
            self.spare.push(job.bytes);
        }
        // A train that no peer got has failed, and so has one of a tunnel without peers.
        let error = (job.reached == 0).then(|| job.error.unwrap_or(Errno::HOSTUNREACH));
        Done { frames, bytes, error }
    }
}

impl Job {
    /// Sends the train to the next `count` peers.
    fn send(&mut self, to: &mut To<'_>, count: usize) {
        let mut left = count;
        while left > 0
            && let Some(via) = to.peers.flooded_from(self.way.segment, self.via).first()
        {
            self.via = *via;
            if to.paths.refuses(self.via, self.segment.into(), to.now) {
                self.refuse(to, u64::from(self.count), Errno::MSGSIZE);
                (self.via, left) = (self.via + 1, left - 1);
                continue;
            }
            match self.send_run(to, left) {
                Ok(sent) => left -= sent,
                Err(Errno::INTR) => {}
                Err(error) => {
                    self.send_singly(to, error);
                    (self.via, left) = (self.via + 1, left - 1);
                }
            }
        }
    }

    /// Sends the train to the next peers, at most `most`, until the kernel refuses one. Returns how
    /// many got it.
    fn send_run(&mut self, to: &To<'_>, most: usize) -> rustix::io::Result<usize> {
        let socket = to.sockets.get(usize::from(self.way.socket)).ok_or(Errno::BADF)?;
        let fits = |via: &&u16| !to.paths.refuses(**via, self.segment.into(), to.now);
        let segment = (self.count > 1).then_some(self.segment);
        let whole = [IoSlice::new(&self.bytes)];
        let mut post = Post::new();
        let next = to.peers.flooded_from(self.way.segment, self.via);
        let run = next.iter().take(most).take_while(fits);
        for address in run.filter_map(|via| to.peers.address(*via)) {
            post.push(address, &whole, segment, self.way.ecn);
        }
        let sent = post.send(*socket, 0)?;
        for via in &next[..sent] {
            self.count_sent(to.peers, *via, self.count);
            self.via = via + 1;
        }
        self.reached += sent as u16;
        Ok(sent)
    }

    /// Sends the train's frames one by one to the next peer, after the kernel refused the train
    /// with `error`.
    #[cold]
    fn send_singly(&mut self, to: &mut To<'_>, error: Errno) {
        let socket = to.sockets.get(usize::from(self.way.socket));
        let (Some(address), Some(socket)) = (to.peers.address(self.via), socket) else { return };
        if self.count == 1 || matches!(error, Errno::AGAIN | Errno::NOBUFS) {
            return self.refuse(to, u64::from(self.count), error);
        }
        let mut sent = 0;
        for number in 0..usize::from(self.count) {
            let segment = usize::from(self.segment);
            let Some(frame) = self.bytes.get(number * segment..(number + 1) * segment) else {
                break;
            };
            let part = [IoSlice::new(frame)];
            let mut post = Post::new();
            post.push(address, &part, None, self.way.ecn);
            match post.send(*socket, 0) {
                Ok(_) => sent += 1,
                Err(error) => {
                    // All packets of the train have the same length.
                    let left = u64::from(self.count) - number as u64;
                    self.refuse(to, left, error);
                    break;
                }
            }
        }
        self.count_sent(to.peers, self.via, sent);
        self.reached += u16::from(sent > 0);
    }

    /// Counts frames that the kernel refused for the next peer.
    fn refuse(&mut self, to: &mut To<'_>, frames: u64, error: Errno) {
        if error == Errno::MSGSIZE {
            to.paths.note(self.via, self.segment.into(), to.now);
        }
        self.error = Some(error);
        count_refused(to.peers, self.via, frames, error);
    }

    fn count_sent(&self, peers: &Peers, via: u16, frames: u16) {
        let Some(counters) = peers.counters(via) else { return };
        counters.out_frames.add(u64::from(frames));
        let len = usize::from(self.segment).saturating_sub(frame::TUNNEL_HEADER);
        counters.out_bytes.add(u64::from(frames) * len as u64);
    }
}

/// Counts frames that the kernel refused for a peer.
pub(super) fn count_refused(peers: &Peers, via: u16, frames: u64, error: Errno) {
    let Some(counters) = peers.counters(via) else { return };
    let counter = match error {
        Errno::MSGSIZE => &counters.too_long,
        Errno::AGAIN | Errno::NOBUFS => &counters.full,
        Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::NETDOWN => &counters.unreachable,
        _ => &counters.refused,
    };
    counter.add(frames);
}
