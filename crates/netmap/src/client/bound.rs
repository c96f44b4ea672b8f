//! A bound descriptor: its rings, and the work of `poll` on them (netmap(4), "SELECT, POLL, EPOLL,
//! KQUEUE").

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime};

use netring::attach::runtime_directory;
use netring::layout::{RingMemory, RingSpec};
use netring::trusted::{self, Forward, Joining};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use shmem::{Mapping, Memfd};

use super::UserMemory;
use super::blocks::Blocks;
use super::card::DrivenCard;
use super::ring::{Buffers, End, Peer, Ring, Synced, Wake};
use super::watch::Watchers;
use crate::abi::{flags, text};
use crate::wire::{self, port};

/// How often a sync of send rings checks for the switch before it sleeps.
const SPINS: u32 = 2_000;
/// Maximum time that a sync of send rings waits for the switch.
const SYNC_TIME: Duration = Duration::from_millis(200);
/// `NR_FORWARD`, in a ring's flags.
const NR_FORWARD: u32 = 4;
/// The part of that time in which it does not sleep.
const AWAKE: Duration = Duration::from_micros(100);
/// The token is emptied after this many armings, as each may bring a byte.
const ARMINGS: u32 = 32;

/// What a descriptor is ready for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// A receive ring has frames.
    pub readable: bool,
    /// A send ring has room.
    pub writable: bool,
    /// The program's cursors were invalid, or the port is gone.
    pub error: bool,
}

impl Ready {
    /// Returns true if there is anything to report.
    #[must_use]
    pub fn any(self) -> bool {
        self.readable || self.writable || self.error
    }
}

/// How this side and its peer wake each other.
#[derive(Debug)]
enum Wakes {
    Token(OwnedFd),
    /// The tokens of an interface's port and its host's, and an epoll set of both.
    Both {
        port: OwnedFd,
        host: OwnedFd,
        set: OwnedFd,
    },
    /// The token wakes us. The peer is the calling thread.
    Trusted(OwnedFd, Arc<dyn Forward>),
    Pipe {
        own: OwnedFd,
        peer: OwnedFd,
    },
    Nothing,
    /// A zero-copy monitor: the region's bell wakes it.
    Bell,
    /// The card's interrupts wake us. The calling thread drives it.
    Card(Box<DrivenCard>),
}

impl Wakes {
    /// Makes them of the descriptors that came after the memory file.
    fn new(
        bound: &wire::Bound,
        mut fds: impl Iterator<Item = OwnedFd>,
        (memory, mapping): (&Memfd, &Arc<Mapping>),
        raise: impl Fn(OwnedFd) -> OwnedFd,
    ) -> Result<Self, Errno> {
        Ok(match (bound.port, fds.next(), fds.next()) {
            (port::SWITCHED, Some(token), None) if bound.trusted != 0 => {
                Self::Trusted(token, join(bound, memory, mapping)?)
            }
            (port::SWITCHED, Some(token), None) => Self::Token(token),
            (port::SWITCHED, Some(port), Some(host)) => {
                let set = raise(both(&port, &host)?);
                Self::Both { port, host, set }
            }
            (port::PIPE, Some(own), Some(peer)) => Self::Pipe { own, peer },
            (port::SILENT, None, None) => Self::Nothing,
            (port::WATCHER, None, None) => Self::Bell,
            (port::CARD, Some(wake), Some(device)) => {
                let files =
                    [device, fds.next().ok_or(Errno::PROTO)?, fds.next().ok_or(Errno::PROTO)?];
                let card = DrivenCard::new(bound, mapping, wake, files).ok_or(Errno::PROTO)?;
                Self::Card(Box::new(card))
            }
            _ => return Err(Errno::PROTO),
        })
    }
}

/// The mapped region and rings of a bound descriptor.
#[derive(Debug)]
pub struct Bound {
    memory: Memfd,
    /// Number of bytes that the program may map.
    region_size: u64,
    pub(super) send: Vec<Ring>,
    pub(super) receive: Vec<Ring>,
    /// Where slots of transparent mode go: to the host, and from it.
    up: Option<Ring>,
    down: Option<Ring>,
    /// All released slots go there, whatever the program says (netmap(4), "dev.netmap.fwd").
    forwards_all: bool,
    wakes: Wakes,
    watchers: Arc<Watchers>,
    pub(super) flags: u64,
    pub(super) blocks: Blocks,
    gone: AtomicBool,
    armings: AtomicU32,
}

impl Bound {
    /// Maps the region that the daemon described. `raise` moves a descriptor to a number that
    /// programs do not use.
    ///
    /// # Errors
    /// `EPROTO` for an invalid description, `ENOMEM` if there is no room for the mapping.
    pub fn new(
        bound: &wire::Bound,
        fds: Vec<OwnedFd>,
        raise: impl Fn(OwnedFd) -> OwnedFd,
    ) -> Result<Self, Errno> {
        let mut fds = fds.into_iter().map(&raise);
        let memory = Memfd::adopt(fds.next().ok_or(Errno::PROTO)?).map_err(|_| Errno::PROTO)?;
        bound.geometry.check(memory.len()).map_err(|_| Errno::PROTO)?;
        let mapping = memory.map().map_err(|_| Errno::NOMEM)?;
        let bell = fds.next().ok_or(Errno::PROTO)?;
        let (geometry, map) = (bound.geometry, Arc::clone(&mapping));
        let watchers = Arc::new(Watchers { mapping: map, geometry, bell });
        let wakes = Wakes::new(bound, fds, (&memory, &mapping), &raise)?;
        let make =
            |spec, twins| rings(&watchers, bound, End::Port, spec, twins).ok_or(Errno::PROTO);
        let make_host = |spec| {
            rings(&watchers, bound, End::Host, spec, RingSpec::default()).ok_or(Errno::PROTO)
        };
        let [mut send, mut receive] =
            [make(bound.tx, bound.twin_rx)?, make(bound.rx, bound.twin_tx)?];
        send.extend(make_host(bound.host_tx)?);
        receive.extend(make_host(bound.host_rx)?);
        Ok(Self {
            region_size: bound.geometry.region_size(),
            up: make_host(bound.up)?.pop(),
            down: make(bound.down, RingSpec::default())?.pop(),
            send,
            receive,
            memory,
            forwards_all: false,
            wakes,
            watchers,
            flags: bound.flags,
            blocks: Blocks::default(),
            gone: AtomicBool::new(false),
            armings: AtomicU32::new(0),
        })
    }

    /// Has all released slots of an interface go on to its other end, as the kernel does if
    /// `dev.netmap.fwd` is 1.
    #[must_use]
    pub fn forwarding_all(self, forwards_all: bool) -> Self {
        Self { forwards_all, ..self }
    }

    /// Returns the memory file, and how much of it the program may map.
    #[must_use]
    pub fn memory(&self) -> (BorrowedFd<'_>, u64) {
        (self.memory.as_fd(), self.region_size)
    }

    /// Returns the library's own descriptors, which the program must not close.
    pub fn internal_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let wakes = match &self.wakes {
            Wakes::Token(token) | Wakes::Trusted(token, _) => [Some(token), None, None],
            Wakes::Both { port, host, set } => [Some(port), Some(host), Some(set)],
            Wakes::Pipe { own, peer } => [Some(own), Some(peer), None],
            Wakes::Nothing | Wakes::Bell | Wakes::Card(_) => [None; 3],
        };
        let card = match &self.wakes {
            Wakes::Card(card) => Some(card.fds()),
            _ => None,
        };
        let wakes = wakes.into_iter().flatten().map(AsFd::as_fd);
        let wakes = wakes.chain(card.into_iter().flatten());
        [self.memory.as_fd(), self.watchers.bell.as_fd()]
            .into_iter()
            .chain(wakes)
            .chain(self.blocks.stop_fd())
    }

    /// Returns the descriptor that becomes readable when an armed descriptor has news.
    #[must_use]
    pub fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.wakes {
            Wakes::Token(token)
            | Wakes::Both { set: token, .. }
            | Wakes::Trusted(token, _)
            | Wakes::Pipe { own: token, .. } => Some(token.as_fd()),
            Wakes::Bell => Some(self.watchers.bell.as_fd()),
            Wakes::Card(card) => Some(card.wake_fd()),
            Wakes::Nothing => None,
        }
    }

    /// Returns true if the port is known to be gone.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        let lost = || self.receive.iter().any(Ring::has_lost_its_port);
        self.gone.load(Ordering::Relaxed) || matches!(self.wakes, Wakes::Bell) && lost()
    }

    /// Checks whether the port is gone: the daemon has closed its end of the program's descriptor,
    /// or of the port's token.
    pub fn look(&self, fd: BorrowedFd<'_>) -> bool {
        let ended = |fd: BorrowedFd<'_>| {
            let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
            matches!(
                rustix::net::recv(fd, &mut [0_u8][..], flags),
                Ok((0, _)) | Err(Errno::CONNRESET)
            )
        };
        let token = self.tokens().any(|token| ended(token.as_fd()));
        if (ended(fd) || token) && !self.gone.swap(true, Ordering::Relaxed) {
            // A switch that outlives its daemon keeps the port while any process holds the token.
            for token in self.tokens() {
                let _ = rustix::net::shutdown(token, Shutdown::Both);
            }
        }
        self.is_gone()
    }

    /// The tokens of the switches' ports.
    fn tokens(&self) -> impl Iterator<Item = &OwnedFd> {
        let tokens = match &self.wakes {
            Wakes::Token(token) | Wakes::Trusted(token, _) => [Some(token), None],
            Wakes::Both { port, host, .. } => [Some(port), Some(host)],
            Wakes::Pipe { .. } | Wakes::Nothing | Wakes::Bell | Wakes::Card(_) => [None, None],
        };
        tokens.into_iter().flatten()
    }

    /// Exchanges slots with the descriptor's card, if it has one: what was submitted (`send`) and
    /// released (`receive`) goes there, and what is done comes back. Returns how many slots moved,
    /// and whether cursors of the program's were invalid.
    pub(super) fn exchange(&self, send: bool, receive: bool, user: &dyn UserMemory) -> (u32, bool) {
        let Wakes::Card(card) = &self.wakes else { return (0, false) };
        let mut was_reset = false;
        for ring in self.send.iter().filter(|ring| send && ring.has_news()) {
            was_reset |= ring.sync_send(user) == Synced::Reset;
        }
        for ring in self.receive.iter().filter(|_| receive) {
            was_reset |= ring.sync_receive() == Synced::Reset;
        }
        let moved = card.turn().unwrap_or_else(|_| {
            self.gone.store(true, Ordering::Relaxed);
            0
        });
        (moved, was_reset)
    }

    /// Begins to use a descriptor that this process has just bound: a card that does not come up is
    /// an error of this request, not of a later one.
    ///
    /// # Errors
    /// `ENXIO`: the card does not work; `ENOMEM`: the limit of locked memory is too low for it.
    pub fn begin(&self) -> Result<(), Errno> {
        match &self.wakes {
            Wakes::Card(card) => card.turn().map(drop),
            _ => Ok(()),
        }
    }

    /// Carries out `NIOCTXSYNC`: on return, a switch has taken everything that was submitted.
    pub fn sync_send(&self, user: &dyn UserMemory) {
        self.exchange(true, false, user);
        let mut wake = Wake::default();
        for ring in &self.send {
            wake.note(ring.end, ring.sync_send(user));
        }
        self.wake_peers(wake);
        self.settle();
        // Only after the wait does the tail match the switch's position.
        for ring in &self.send {
            ring.sync_send(user);
        }
    }

    /// Waits, for a bounded time, until the switch has taken what was submitted.
    fn settle(&self) {
        if !matches!(self.wakes, Wakes::Token(_) | Wakes::Both { .. }) {
            return;
        }
        let done = || self.send.iter().all(Ring::is_done);
        for _ in 0..SPINS {
            if done() {
                return;
            }
            std::hint::spin_loop();
        }
        let started = Instant::now();
        while !done() && !self.is_gone() && started.elapsed() < SYNC_TIME {
            if started.elapsed() < AWAKE {
                std::thread::yield_now();
            } else {
                std::thread::sleep(AWAKE);
            }
        }
    }

    /// Carries out `NIOCRXSYNC`.
    pub fn sync_receive(&self, user: &dyn UserMemory) {
        self.exchange(false, true, user);
        let mut wake = Wake::default();
        for ring in &self.receive {
            self.sync_one(ring, &mut wake);
        }
        self.stamp();
        self.wake_peers(wake);
    }

    /// Syncs a receive ring. In transparent mode its released slots go on to the other end.
    pub(super) fn sync_one(&self, ring: &Ring, wake: &mut Wake) -> Synced {
        let onward = match ring.end {
            End::Port => &self.up,
            End::Host => &self.down,
        };
        let flags = ring.memory.header.flags.load(Ordering::Relaxed);
        let synced = match onward {
            Some(onward) if self.forwards_all || flags & NR_FORWARD != 0 => {
                let (synced, moved) = ring.sync_and_forward(onward, self.forwards_all);
                wake.note(onward.end, moved);
                synced
            }
            _ => ring.sync_receive(),
        };
        wake.note(ring.end, synced);
        synced
    }

    fn stamp(&self) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now = (now.as_secs(), u64::from(now.subsec_micros()));
        self.receive.iter().for_each(|ring| ring.stamp(now));
    }

    /// Syncs as `poll` does, and returns what the descriptor is ready for.
    pub fn poll(&self, want_send: bool, want_receive: bool, user: &dyn UserMemory) -> Ready {
        if self.blocks.is_some() {
            return Ready { error: true, ..Ready::default() };
        }
        let pushes = want_send || self.flags & flags::NO_TX_POLL == 0;
        let (_, was_reset) = self.exchange(pushes, want_receive, user);
        let mut ready = Ready { error: was_reset || self.is_gone(), ..Ready::default() };
        let mut wake = Wake::default();
        if pushes {
            self.poll_send(want_send, user, &mut ready, &mut wake);
        }
        if want_receive && !self.receive.is_empty() {
            for ring in &self.receive {
                let synced = self.sync_one(ring, &mut wake);
                ready.error |= synced == Synced::Reset;
                ready.readable |= ring.is_ready();
            }
            self.stamp();
        }
        self.wake_peers(wake);
        ready
    }

    /// Where the rings stand: a number whose lower half changes when frames arrive, and whose upper
    /// half changes when room to send comes.
    #[must_use]
    pub fn position(&self) -> u64 {
        let sum =
            |rings: &[Ring]| rings.iter().fold(0, |sum: u32, ring| sum.wrapping_add(ring.tail()));
        u64::from(sum(&self.receive)) | u64::from(sum(&self.send)) << 32
    }

    fn poll_send(&self, want: bool, user: &dyn UserMemory, ready: &mut Ready, wake: &mut Wake) {
        for ring in &self.send {
            // Once one ring has room, the others are synced only to send what they hold.
            let wanted = want && !ready.writable;
            if !wanted && !ring.has_news() {
                continue;
            }
            let synced = ring.sync_send(user);
            ready.error |= synced == Synced::Reset;
            wake.note(ring.end, synced);
            ready.writable |= want && ring.is_ready();
        }
    }

    /// Arms wake-ups for the wanted directions. The caller polls once more before it sleeps.
    pub fn arm(&self, want_send: bool, want_receive: bool) {
        self.empty_token();
        if want_send {
            self.send.iter().for_each(Ring::arm);
        }
        if want_receive {
            self.receive.iter().for_each(Ring::arm);
            // Slots that wait for room in the rings of transparent mode.
            if self.receive.iter().any(Ring::has_unreleased) {
                self.up.iter().chain(&self.down).for_each(Ring::arm);
            }
        }
        if let Wakes::Card(card) = &self.wakes {
            card.arm(want_send, want_receive);
        }
    }

    #[cfg(test)]
    pub(super) fn send_ring(&self, at: usize) -> &Ring {
        &self.send[at]
    }

    #[cfg(test)]
    pub(super) fn up_ring(&self) -> &Ring {
        self.up.as_ref().unwrap()
    }

    #[cfg(test)]
    pub(super) fn down_ring(&self) -> &Ring {
        self.down.as_ref().unwrap()
    }

    #[cfg(test)]
    pub(super) fn receive_ring(&self, at: usize) -> &Ring {
        &self.receive[at]
    }

    pub(super) fn wake_peers(&self, must: Wake) {
        if must == Wake::default() {
            return;
        }
        let kick = |token: &OwnedFd| {
            rustix::net::send(token, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
        };
        // A full socket or counter already holds a wake-up. A peer that is gone needs none.
        let _ = match &self.wakes {
            // A port that is gone is noticed by its token.
            Wakes::Trusted(_, turn) => turn.forward().map(|()| 0),
            Wakes::Token(token) => kick(token),
            Wakes::Both { port, host, .. } => {
                // A full token of one end does not keep the other asleep.
                let _ = if must.port { kick(port) } else { Ok(0) };
                if must.host { kick(host) } else { Ok(0) }
            }
            Wakes::Pipe { peer, .. } => rustix::io::write(peer, &1_u64.to_ne_bytes()),
            Wakes::Nothing | Wakes::Bell | Wakes::Card(_) => Ok(0),
        };
    }

    /// Empties the tokens now and then, but leaves one byte: several waiters may wait for the next
    /// byte. A full token would accept no new byte, so it would wake no one.
    fn empty_token(&self) {
        if !self.armings.fetch_add(1, Ordering::Relaxed).is_multiple_of(ARMINGS) {
            return;
        }
        self.tokens().for_each(empty);
    }
}

/// An epoll set that is readable while either of these is.
fn both(one: &OwnedFd, other: &OwnedFd) -> Result<OwnedFd, Errno> {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for fd in [one, other] {
        epoll::add(&set, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    }
    Ok(set)
}

/// Empties a token but for one byte.
fn empty(token: &OwnedFd) {
    let waiting = rustix::io::ioctl_fionread(token).unwrap_or(0);
    let mut bytes = [0; 1024];
    let spare = usize::try_from(waiting.saturating_sub(1)).unwrap_or(0).min(bytes.len());
    if spare > 0 {
        let _ = rustix::net::recv(token, &mut bytes[..spare], RecvFlags::DONTWAIT);
    }
}

/// Makes this process a part of the trusted switch of a port.
fn join(
    bound: &wire::Bound,
    memory: &Memfd,
    mapping: &Arc<Mapping>,
) -> Result<Arc<dyn Forward>, Errno> {
    let directory = &runtime_directory();
    let name = text(bound.name.as_flattened()).ok_or(Errno::PROTO)?;
    let port = u16::try_from(bound.trusted - 1).map_err(|_| Errno::PROTO)?;
    let file = rustix::fs::fstat(memory.as_fd())?.st_ino;
    let turn = trusted::join(&Joining { directory, name, port, file, mapping });
    let turn = turn.map_err(|_| Errno::OPNOTSUPP)?;
    // The first turn asks for the first kick.
    turn.forward()?;
    Ok(turn)
}

/// Returns the rings of one direction; `None` if they lie outside the mapping.
fn rings(
    watchers: &Arc<Watchers>,
    bound: &wire::Bound,
    end: End,
    spec: RingSpec,
    twins: RingSpec,
) -> Option<Vec<Ring>> {
    let Watchers { mapping, geometry, .. } = &**watchers;
    let pool = Buffers {
        at: usize::try_from(geometry.buf_offset()).ok()?,
        count: geometry.buf_num,
        bytes: geometry.buf_size,
    };
    let ring = |i: u32| {
        let memory = RingMemory::of(mapping, geometry, spec.first + i, spec.slots)?;
        let twin = || RingMemory::of(mapping, geometry, twins.first + i, spec.slots);
        let peer = match bound.port {
            port::SWITCHED | port::CARD => Peer::Switch,
            port::PIPE => Peer::Twin(Box::new(twin()?)),
            _ => Peer::Nobody,
        };
        Some(Ring::new(memory, (peer, end), spec.slots, pool, Arc::clone(watchers)))
    };
    if spec.rings == 0 {
        return Some(Vec::new());
    }
    spec.check(geometry).ok()?;
    (0..spec.rings).map(ring).collect()
}
