//! Closes strangers' descriptors on threads that serve no others.
//!
//! A close may take forever, and nothing can interrupt it, not even SIGKILL. So its effects are
//! bounded. At most two closes of a user run at a time; other descriptors of the user wait. If both
//! are stuck, or too many wait, servers must refuse the user. Idle threads end after a while.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use super::receive::most_parked;
use super::{drain_and_hang_up, shut_down};

/// The maximum number of closes of a user that run at a time.
const AT_ONCE: usize = 2;
/// The maximum number of threads that close for users other than root and the process's own.
const MOST_THREADS: usize = 32;
/// How long a close may take before its user is refused. Ordinary closes take microseconds, except
/// on an overloaded machine.
const STUCK: Duration = Duration::from_millis(500);
/// How long an idle thread waits for more work.
const IDLE: Duration = Duration::from_millis(100);
/// The size of a thread's stack: it only calls close(2).
const STACK: usize = 64 << 10;
/// The name of the closer's threads. They may outlive the rest of a killed process.
pub const CLOSER_NAME: &str = "closer";

/// A user has descriptors that cannot be closed, or too many that wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Descriptors that user {uid} sent cannot be closed; {waiting} more wait for that")]
pub struct TooMany {
    /// The user.
    pub uid: u32,
    /// How many of the user's descriptors wait.
    pub waiting: usize,
}

/// The state of the closer, over all users.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Closing {
    /// How many closes are running.
    pub under_way: usize,
    /// How many of the running closes are stuck.
    pub stuck: usize,
    /// Descriptors that wait to be closed.
    pub waiting: usize,
    /// How often a user was refused because of stuck or waiting closes.
    pub refused: u64,
}

/// A function to call after a close.
type Then = Box<dyn FnOnce() + Send>;

enum Job {
    Close(OwnedFd),
    CloseThen(OwnedFd, Then),
    HangUp(OwnedFd),
    DrainAndHangUp(OwnedFd),
}

impl Job {
    /// Runs the job, which may take forever.
    fn run(self) {
        match self {
            Self::Close(fd) => close(fd),
            Self::CloseThen(fd, then) => {
                close(fd);
                then();
            }
            Self::HangUp(socket) => shut_down(&socket),
            Self::DrainAndHangUp(socket) => drain_and_hang_up(&socket),
        }
    }
}

fn close(fd: OwnedFd) {
    // Without lingering, a socket's close does not wait for unsent data. The call takes the
    // socket's lock, which others may hold.
    let _ = sockopt::set_socket_linger(&fd, None);
    drop(fd);
}

#[derive(Default)]
struct User {
    waiting: VecDeque<Job>,
    /// When each running close began.
    under_way: [Option<Instant>; AT_ONCE],
    /// The user is in a queue for its turn.
    queued: bool,
}

impl User {
    fn under_way(&self) -> usize {
        self.under_way.iter().flatten().count()
    }

    fn stuck(&self) -> usize {
        let stuck = |began: &&Instant| began.elapsed() > STUCK;
        self.under_way.iter().flatten().filter(stuck).count()
    }

    fn may_begin(&self) -> bool {
        !self.waiting.is_empty() && self.under_way() < AT_ONCE
    }
}

#[derive(Default)]
struct State {
    users: BTreeMap<u32, User>,
    /// Users with a job that may begin, in turn: trusted ones, and others.
    trusted: VecDeque<u32>,
    others: VecDeque<u32>,
    /// Closes of untrusted users that are running.
    others_under_way: usize,
    /// Threads that wait for work.
    idle: usize,
    waiting: usize,
    refused: u64,
}

impl State {
    fn has_work(&self) -> bool {
        !self.trusted.is_empty() || !self.others.is_empty() && self.others_under_way < MOST_THREADS
    }

    fn next(&mut self) -> Option<u32> {
        if !self.has_work() {
            return None;
        }
        let uid = self.trusted.pop_front().or_else(|| self.others.pop_front())?;
        self.users.get_mut(&uid)?.queued = false;
        Some(uid)
    }

    /// Queues a user if one of its jobs may begin.
    fn queue(&mut self, uid: u32, trusted: bool) {
        let Some(user) = self.users.get_mut(&uid) else { return };
        if user.may_begin() && !std::mem::replace(&mut user.queued, true) {
            if trusted { self.trusted.push_back(uid) } else { self.others.push_back(uid) }
        }
    }
}

/// Closes descriptors of strangers.
pub struct Closer {
    own_uid: u32,
    state: Mutex<State>,
    work: Condvar,
}

/// The process's closer.
pub fn closer() -> &'static Closer {
    static CLOSER: OnceLock<Closer> = OnceLock::new();
    CLOSER.get_or_init(Closer::new)
}

impl Closer {
    fn new() -> Self {
        let own_uid = rustix::process::geteuid().as_raw();
        Self { own_uid, state: Mutex::default(), work: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes a descriptor of user `uid` without waiting. If it cannot be closed at once, it is
    /// kept until it can be, even if the user is refused meanwhile.
    pub fn close(&'static self, uid: u32, fd: OwnedFd) {
        self.add(uid, Job::Close(fd));
    }

    /// Closes a descriptor of user `uid`, then calls `then` on the thread that closed it.
    pub(super) fn close_then(&'static self, uid: u32, fd: OwnedFd, then: Then) {
        self.add(uid, Job::CloseThen(fd, then));
    }

    /// Shuts down a socket of user `uid` and closes it.
    pub(super) fn hang_up(&'static self, uid: u32, socket: OwnedFd) {
        self.add(uid, Job::HangUp(socket));
    }

    /// Like [`hang_up`](Self::hang_up), but first discards what the peer sent last.
    pub(super) fn drain_and_hang_up(&'static self, uid: u32, socket: OwnedFd) {
        self.add(uid, Job::DrainAndHangUp(socket));
    }

    fn add(&'static self, uid: u32, job: Job) {
        let mut state = self.lock();
        state.users.entry(uid).or_default().waiting.push_back(job);
        state.waiting += 1;
        state.queue(uid, self.is_trusted(uid));
        drop(self.see_to_it(state));
    }

    /// Wakes a thread, or starts one, if a waiting job may begin.
    fn see_to_it<'a>(&'static self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        if state.has_work() {
            if state.idle > 0 {
                self.work.notify_one();
            } else {
                let thread = std::thread::Builder::new().name(CLOSER_NAME.into()).stack_size(STACK);
                // If no thread can start, the job waits until the next descriptor comes.
                let _ = thread.spawn(|| self.work());
            }
        }
        state
    }

    fn is_trusted(&self, uid: u32) -> bool {
        uid == 0 || uid == self.own_uid
    }

    fn work(&'static self) {
        let mut state = self.lock();
        loop {
            if let Some(uid) = state.next() {
                state = self.do_one(state, uid);
                continue;
            }
            state.idle += 1;
            let waited = self.work.wait_timeout(state, IDLE);
            let (woken, time) = waited.unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            if time.timed_out() && !state.has_work() {
                return;
            }
        }
    }

    fn do_one<'a>(
        &'static self,
        mut state: MutexGuard<'a, State>,
        uid: u32,
    ) -> MutexGuard<'a, State> {
        let trusted = self.is_trusted(uid);
        let Some(user) = state.users.get_mut(&uid) else { return state };
        let slot = user.under_way.iter().position(Option::is_none);
        let Some((slot, job)) = slot.zip(user.waiting.pop_front()) else { return state };
        user.under_way[slot] = Some(Instant::now());
        state.waiting -= 1;
        state.others_under_way += usize::from(!trusted);
        state.queue(uid, trusted);
        // This thread may be blocked for long.
        drop(self.see_to_it(state));
        job.run();
        let mut state = self.lock();
        state.others_under_way -= usize::from(!trusted);
        let Some(user) = state.users.get_mut(&uid) else { return state };
        user.under_way[slot] = None;
        if user.waiting.is_empty() && user.under_way() == 0 {
            state.users.remove(&uid);
        }
        state.queue(uid, trusted);
        state
    }

    /// Checks whether more descriptors may be accepted from a user.
    ///
    /// # Errors
    /// [`TooMany`]: both closes of this user are stuck, or too many descriptors wait.
    pub fn admits(&self, uid: u32) -> Result<(), TooMany> {
        let mut state = self.lock();
        let Some(user) = state.users.get(&uid) else { return Ok(()) };
        let (all, each) = most_parked();
        let waiting = user.waiting.len();
        let much = waiting >= each || state.waiting >= all && waiting > 0 && !self.is_trusted(uid);
        if user.stuck() < AT_ONCE && !much {
            return Ok(());
        }
        state.refused += 1;
        Err(TooMany { uid, waiting })
    }

    /// How much work the closer has.
    #[must_use]
    pub fn closing(&self) -> Closing {
        let state = self.lock();
        Closing {
            under_way: state.users.values().map(User::under_way).sum(),
            stuck: state.users.values().map(User::stuck).sum(),
            waiting: state.waiting,
            refused: state.refused,
        }
    }
}

impl fmt::Debug for Closer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Closer({:?})", self.closing())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::super::Descriptor;
    use super::*;

    /// A socket whose close waits as long as its peer, which does not read, is there.
    struct Lingering {
        socket: OwnedFd,
        _peer: TcpStream,
    }

    fn lingering() -> Lingering {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        sockopt::set_socket_linger(&socket, Some(Duration::from_secs(60))).unwrap();
        socket.set_nonblocking(true).unwrap();
        while socket.write(&[0; 65536]).is_ok() {}
        Lingering { socket: socket.into(), _peer: peer }
    }

    /// Puts a descriptor into the queue of a socket, so that the last close of the socket closes
    /// it.
    fn in_a_queue(fd: &OwnedFd) -> OwnedFd {
        let (sender, socket) = UnixStream::pair().unwrap();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
        let fds = [fd.as_fd()];
        assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&fds)));
        let bytes = [std::io::IoSlice::new(b"x")];
        let flags = rustix::net::SendFlags::empty();
        rustix::net::sendmsg(&sender, &bytes, &mut control, flags).unwrap();
        socket.into()
    }

    fn until(what: &str, mut is_so: impl FnMut() -> bool) {
        let began = Instant::now();
        while !is_so() {
            assert!(began.elapsed() < Duration::from_secs(50), "no end of waiting for {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn is_at_work(uid: u32) -> bool {
        closer().lock().users.contains_key(&uid)
    }

    /// Objective: a lingering socket is closed without waiting for its peer.
    #[test]
    fn regression_a_socket_that_lingers_is_closed_at_once() {
        const USER: u32 = 90_001;
        let Lingering { socket, _peer } = lingering();
        let (closed, watch) = UnixStream::pair().unwrap();
        drop(Descriptor::of(USER, socket));
        drop(Descriptor::of(USER, closed.into()));
        until("the closes", || !is_at_work(USER));
        assert_eq!(read_to_end(&watch), 0);
        closer().admits(USER).unwrap();
    }

    /// The number of bytes read until the other end is closed.
    fn read_to_end(mut socket: &UnixStream) -> usize {
        std::io::Read::read_to_end(&mut socket, &mut Vec::new()).unwrap()
    }

    /// Objective: stuck closes take two threads. They delay neither the thread that closes nor
    /// other users, and their user is refused until one of them ends.
    ///
    /// Steps: close three sockets with a lingering socket in their queues, and another user's
    /// socket; check which user is refused; let one peer go, and check again.
    #[test]
    fn regression_a_user_whose_closes_are_stuck_is_refused_alone() {
        const USER: u32 = 90_002;
        const OTHER: u32 = 90_003;
        let (sockets, peers): (Vec<_>, Vec<_>) = (0..3)
            .map(|_| lingering())
            .map(|Lingering { socket, _peer }| (in_a_queue(&socket), _peer))
            .unzip();
        let began = Instant::now();
        sockets.into_iter().for_each(|socket| drop(Descriptor::of(USER, socket)));
        assert!(began.elapsed() < Duration::from_secs(10), "closing waited");
        until("the refusal", || closer().admits(USER).is_err());
        assert_eq!(closer().admits(USER), Err(TooMany { uid: USER, waiting: 1 }));
        drop(Descriptor::of(
            OTHER,
            rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap(),
        ));
        until("the other user's close", || !is_at_work(OTHER));
        closer().admits(OTHER).unwrap();
        assert!(closer().admits(USER).is_err());
        // Gone peers answer with a reset, so nothing is left to send.
        drop(peers);
        until("the end", || !is_at_work(USER));
        closer().admits(USER).unwrap();
    }

    /// Objective: work that must follow a close follows it, on a thread that serves no others.
    #[test]
    fn what_follows_a_close_finds_it_done() {
        const USER: u32 = 90_005;
        let (last, watch) = UnixStream::pair().unwrap();
        let (sender, done) = std::sync::mpsc::channel();
        Descriptor::of(USER, last.into()).close_then(move || {
            watch.set_nonblocking(true).unwrap();
            let name = std::thread::current().name().map(str::to_owned);
            sender.send((read_to_end(&watch), name)).unwrap();
        });
        let (read, thread) = done.recv().unwrap();
        assert_eq!((read, thread.as_deref()), (0, Some(CLOSER_NAME)));
    }

    /// Objective: many concurrent closes all end, on two threads.
    #[test]
    fn many_closes_of_a_user_are_done_by_two_threads() {
        const USER: u32 = 90_004;
        let (last, watch) = UnixStream::pair().unwrap();
        for _ in 0..2000 {
            drop(Descriptor::of(USER, last.as_fd().try_clone_to_owned().unwrap()));
        }
        drop(last);
        assert!(closer().closing().under_way <= AT_ONCE * 4);
        until("the closes", || !is_at_work(USER));
        assert_eq!(read_to_end(&watch), 0);
    }
}
