//! Wakes the owner of a port, by its token or an eventfd.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use jail::strangers::{Descriptor, Inlet};
use port::Nanos;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use shmem::Shared;

use super::stopwatch::Stopwatch;
use super::{By, Conduct, Standing, User};

/// The jobs of a helper.
const WAKE: u8 = 1;
const DRAIN: u8 = 2;

/// The means to wake a peer.
#[derive(Debug)]
enum Bell {
    /// Our end of a pair of sockets.
    Token(Inlet),
    Eventfd(Arc<Descriptor>),
}

/// The payer of calls whose cost a port's owner sets: its user, and the counters of the port.
/// `None` for ports within their owner's process.
#[derive(Clone, Debug, Default)]
pub struct Payer(Option<(Arc<User>, Option<Shared<Conduct>>)>);

impl Payer {
    /// The user of a port whose calls are counted in `conduct`.
    #[must_use]
    pub fn new(user: Arc<User>, conduct: Option<Shared<Conduct>>) -> Self {
        Self(Some((user, conduct)))
    }

    /// Makes a call on a thread that serves others.
    #[inline]
    pub fn call<T>(&self, call: impl FnOnce() -> T) -> T {
        match &self.0 {
            Some((user, conduct)) => user.call(conduct.as_ref(), call),
            None => call(),
        }
    }

    /// Like [`call`](Self::call), for a call that moves a batch of frames and may take much longer.
    #[inline]
    pub fn call_of_batch<T>(&self, call: impl FnOnce() -> T) -> T {
        match &self.0 {
            Some((user, conduct)) => user.call_of_batch(conduct.as_ref(), call),
            None => call(),
        }
    }

    /// Touches memory that the port's owner lent, and no other.
    pub fn touch<T>(&self, touch: impl FnOnce() -> T) -> T {
        match &self.0 {
            Some((user, conduct)) => user.touch(conduct.as_ref(), touch),
            None => touch(),
        }
    }

    /// True if the payer's ports are at fault.
    #[must_use]
    pub fn is_at_fault(&self) -> bool {
        self.0.as_ref().is_some_and(|(user, _)| user.is_at_fault())
    }

    /// A waker that signals an eventfd of the owner.
    #[must_use]
    pub fn eventfd(&self, fd: Arc<Descriptor>) -> Arc<Waker> {
        Arc::new(Waker { bell: Bell::Eventfd(fd), payer: self.clone(), asked: AtomicU8::new(0) })
    }

    /// A waker that puts a byte on a token.
    #[must_use]
    pub fn token(&self, token: Inlet) -> Arc<Waker> {
        Arc::new(Waker { bell: Bell::Token(token), payer: self.clone(), asked: AtomicU8::new(0) })
    }
}

/// A descriptor of a peer that wakes it, and the payer of that.
#[derive(Debug)]
pub struct Waker {
    bell: Bell,
    payer: Payer,
    /// The jobs that the user's helper thread was asked to do.
    asked: AtomicU8,
}

impl Waker {
    /// Wakes the peer, or asks the helper thread to.
    #[inline]
    pub fn wake(self: &Arc<Self>) {
        match self.other_thread() {
            Some(user) => self.ask(user, WAKE),
            None => self.payer.call(|| self.signal()),
        }
    }

    /// The user, if its helper thread makes the calls.
    #[inline]
    pub(super) fn other_thread(&self) -> Option<&Arc<User>> {
        let (user, _) = self.payer.0.as_ref()?;
        (user.standing() != Standing::Good).then_some(user)
    }

    /// Takes the bytes out of a token, or asks the helper thread to: that wakes threads that wait
    /// for room in it.
    pub fn drain(self: &Arc<Self>) {
        // Peeking wakes no thread, and a hot worker finds nothing there.
        let Bell::Token(token) = &self.bell else { return };
        if token.recv(&mut [0], RecvFlags::DONTWAIT | RecvFlags::PEEK) == Err(Errno::AGAIN) {
            return;
        }
        match self.other_thread() {
            Some(user) => self.ask(user, DRAIN),
            None => self.payer.call(|| self.empty()),
        }
    }

    #[cold]
    pub(super) fn ask(self: &Arc<Self>, user: &Arc<User>, what: u8) {
        if user.is_at_fault() {
            return;
        }
        // The flag is cleared before the job is done, so later requests are done again.
        let first = self.asked.fetch_or(what, Ordering::AcqRel) == 0;
        if first && !user.helper.push(Arc::clone(self)) {
            // The user's standing has improved in the meantime.
            self.carry_out(By::Server);
        }
    }

    #[cfg(test)]
    pub(super) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire) != 0
    }

    /// Does the jobs that were requested.
    pub(super) fn carry_out(&self, by: By) {
        let asked = self.asked.swap(0, Ordering::AcqRel);
        let Some((user, conduct)) = self.payer.0.as_ref().filter(|(user, _)| !user.is_at_fault())
        else {
            return;
        };
        let watch = Stopwatch::start(Nanos(u64::MAX));
        if asked & DRAIN != 0 {
            self.empty();
        }
        if asked & WAKE != 0 {
            self.signal();
            conduct.iter().for_each(|conduct| conduct.helped_kicks.add_shared(1));
        }
        if let Some(slow) = watch.stop() {
            user.was_slow(slow, conduct.as_ref(), by);
        }
    }

    fn signal(&self) {
        match &self.bell {
            Bell::Token(token) => crate::kick(token.as_fd()),
            Bell::Eventfd(fd) => crate::signal(fd.as_fd()),
        }
    }

    fn empty(&self) {
        let Bell::Token(token) = &self.bell else { return };
        // Bytes on a token have no meaning but "look".
        let mut bytes = [0u8; 64];
        if token.recv(&mut bytes, RecvFlags::DONTWAIT) == Err(Errno::BADMSG) {
            // The supervisor sees the hang-up and removes the port.
            token.hang_up();
        }
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.bell {
            Bell::Token(token) => token.as_fd(),
            Bell::Eventfd(fd) => fd.as_fd(),
        }
    }
}
