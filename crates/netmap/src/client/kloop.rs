//! Cursors in blocks of the program (CSB), and the loop that syncs by them in the calling thread
//! (`NETMAP_REQ_SYNC_KLOOP_START` in `net/netmap.h`).
//!
//! Each ring has two blocks of 64 bytes: the program writes one, the loop the other; send rings
//! come first. The program does not use the ring's own header in this mode, so the loop hands slots
//! over through it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::bound::Bound;
use super::ring::{Ring, Wake};
use super::{Local, Program, Waiter};
use crate::abi::flags;

/// Bytes of a block.
const BLOCK: u64 = 64;
/// Offsets in the blocks that the program writes.
mod program {
    pub(super) const HEAD: u64 = 0;
    pub(super) const CUR: u64 = 4;
    pub(super) const NEED_KICK: u64 = 8;
}
/// Offsets in the blocks that the loop writes.
mod core {
    pub(super) const HWCUR: u64 = 0;
    pub(super) const HWTAIL: u64 = 4;
    pub(super) const NEED_KICK: u64 = 8;
}
/// Maximum sleep, in microseconds.
const MOST_SLEEP: u32 = 1_000_000;
/// Longest sleep between signals.
const IDLE: Duration = Duration::from_secs(3);
/// Known modes. They are accepted without effect: they save work that only a kernel has.
const MODES: u32 = 3;

/// The arguments of a loop.
#[derive(Debug)]
pub struct Start {
    sleep: Duration,
    /// For each ring, the descriptor that the program signals, and the one that the loop signals.
    events: Option<Vec<(i32, i32)>>,
}

/// Parses the arguments of a loop, or says which of its two options is wrong.
///
/// # Errors
/// `EINVAL`, with true for each option (descriptors, mode) that is wrong.
pub fn start_arguments(sleep: u32, local: &Local) -> Result<Start, (Errno, [bool; 2])> {
    if sleep > MOST_SLEEP {
        return Err((Errno::INVAL, [false, false]));
    }
    let events = match &local.events {
        Some(None) => return Err((Errno::INVAL, [true, false])),
        // If any ring lacks a descriptor, the loop sleeps for fixed times instead of waiting for
        // signals.
        Some(Some(pairs)) if pairs.iter().all(|(io, _)| *io >= 0) => Some(pairs.clone()),
        _ => None,
    };
    let mode = local.mode.unwrap_or(0);
    if mode & !MODES != 0 || (mode != 0 && events.is_none()) {
        return Err((Errno::INVAL, [false, true]));
    }
    Ok(Start { sleep: Duration::from_micros(sleep.into()), events })
}

impl Bound {
    /// Returns true if the cursors are in blocks of the program.
    #[must_use]
    pub fn has_blocks(&self) -> bool {
        self.blocks.is_some()
    }

    /// Makes the blocks at these addresses the place of all cursors.
    ///
    /// # Errors
    /// `EINVAL` for a descriptor whose rings are not exclusive, or an address that is not a
    /// multiple of 64; `EBUSY` while a loop runs; `EFAULT`.
    pub fn use_blocks(
        &self,
        (program, core): (u64, u64),
        user: &dyn Program,
        raise: impl Fn(OwnedFd) -> OwnedFd,
    ) -> Result<(), Errno> {
        if self.blocks.running.load(Ordering::Acquire) {
            return Err(Errno::BUSY);
        }
        check_blocks(self.flags, (program, core))?;
        for (at, ring) in (0..).zip(self.send.iter().chain(&self.receive)) {
            let header = &ring.memory.header;
            let [head, cur, tail] =
                [&header.head, &header.cur, &header.tail].map(|word| word.load(Ordering::Relaxed));
            let words = |words: [u32; 4]| words.map(u32::to_le_bytes).concat();
            user.write(program + at * BLOCK, &words([head, cur, 1, 1]))?;
            user.write(core + at * BLOCK, &words([head, tail, 1, 0])[..12])?;
        }
        if self.blocks.stop.get().is_none() {
            let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            // If another thread has set its descriptor first, that descriptor is used.
            let _ = self.blocks.stop.set(raise(stop));
        }
        self.blocks.core.store(core, Ordering::Relaxed);
        self.blocks.program.store(program, Ordering::Relaxed);
        Ok(())
    }

    /// Syncs all rings until [`stop_loop`](Self::stop_loop) is called.
    ///
    /// # Errors
    /// `EINVAL` without blocks, `EBUSY` if a loop runs.
    pub fn run_loop(
        &self,
        start: &Start,
        user: &dyn Program,
        waiter: &mut Waiter,
    ) -> Result<(), Errno> {
        if !self.blocks.is_some() {
            return Err(Errno::INVAL);
        }
        let rings = self.send.len() + self.receive.len();
        if start.events.as_ref().is_some_and(|pairs| pairs.len() != rings) {
            return Err(Errno::INVAL);
        }
        if let Some(wake) = self.wake_fd() {
            waiter.watch(wake, 0)?;
        }
        if self.blocks.running.swap(true, Ordering::AcqRel) {
            return Err(Errno::BUSY);
        }
        while !self.blocks.stopping.load(Ordering::Acquire) && !self.is_gone() {
            if !self.turn(start, user) {
                self.pause(start, user, waiter);
            }
        }
        if let Some(stop) = self.blocks.stop_fd() {
            let _ = rustix::io::read(stop, &mut [0; 8]);
        }
        self.blocks.stopping.store(false, Ordering::Release);
        self.blocks.running.store(false, Ordering::Release);
        Ok(())
    }

    /// Ends the running loop. If none runs, the next one ends at once.
    pub fn stop_loop(&self) {
        self.blocks.stopping.store(true, Ordering::Release);
        if let Some(stop) = self.blocks.stop_fd() {
            let _ = rustix::io::write(stop, &1_u64.to_ne_bytes());
        }
        while self.blocks.running.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Syncs each ring once; returns true if something moved.
    fn turn(&self, start: &Start, user: &dyn Program) -> bool {
        let (mut moved, mut wake) = (false, Wake::default());
        for at in 0..self.send.len() + self.receive.len() {
            let changed = self.sync_by_blocks(at, user, &mut wake);
            moved |= changed;
            let irq = start.events.as_ref().and_then(|pairs| pairs.get(at)).map(|pair| pair.1);
            let block = self.blocks.program.load(Ordering::Relaxed) + BLOCK * at as u64;
            if let (true, Some(irq)) = (changed, irq.filter(|irq| *irq >= 0))
                && user.load(block + program::NEED_KICK) != 0
            {
                user.signal(irq);
            }
        }
        self.wake_peers(wake);
        self.exchange(true, true, user).0 > 0 || moved
    }

    /// Syncs a ring by its blocks; returns true if its tail moved.
    fn sync_by_blocks(&self, at: usize, user: &dyn Program, wake: &mut Wake) -> bool {
        let (theirs, ours) = self.addresses(at);
        let Some((ring, is_send)) = self.ring_number(at) else { return false };
        // The program writes `cur` before `head`, so `head` is read first.
        let head = user.load(theirs + program::HEAD);
        let cur = user.load(theirs + program::CUR);
        let header = &ring.memory.header;
        header.head.store(head, Ordering::Relaxed);
        header.cur.store(cur, Ordering::Relaxed);
        match is_send {
            true => wake.note(ring.end, ring.sync_send(user)),
            false => _ = self.sync_one(ring, wake),
        }
        let tail = header.tail.load(Ordering::Relaxed);
        let moved = user.load(ours + core::HWTAIL) != tail;
        user.store(ours + core::HWCUR, ring.memory.control.owner.0.own());
        user.store(ours + core::HWTAIL, tail);
        moved
    }

    fn addresses(&self, at: usize) -> (u64, u64) {
        let [theirs, ours] =
            [&self.blocks.program, &self.blocks.core].map(|at| at.load(Ordering::Relaxed));
        (theirs + BLOCK * at as u64, ours + BLOCK * at as u64)
    }

    fn ring_number(&self, at: usize) -> Option<(&Ring, bool)> {
        let send = self.send.get(at).map(|ring| (ring, true));
        send.or_else(|| Some((self.receive.get(at.checked_sub(self.send.len())?)?, false)))
    }

    /// Sleeps for the requested time, or until a descriptor is signalled.
    fn pause(&self, start: &Start, user: &dyn Program, waiter: &Waiter) {
        let Some(stop) = self.blocks.stop_fd() else { return };
        let Some(pairs) = &start.events else {
            if start.sleep.is_zero() {
                return std::thread::yield_now();
            }
            return user.wait(&[], &[stop], start.sleep);
        };
        let set_kicks = |wanted: u32| {
            for at in 0..pairs.len() {
                user.store(self.addresses(at).1 + core::NEED_KICK, wanted);
            }
        };
        // Events after this point wake the waiter.
        waiter.take();
        set_kicks(1);
        self.arm(true, true);
        // Each side stores before it loads, so that at least one sees the other's store.
        std::sync::atomic::fence(Ordering::SeqCst);
        if !self.turn(start, user) && !self.blocks.stopping.load(Ordering::Acquire) {
            let fds: Vec<i32> = pairs.iter().map(|pair| pair.0).collect();
            user.wait(&fds, &[stop, waiter.as_fd()], IDLE);
        }
        set_kicks(0);
    }
}

/// Checks whether a descriptor with these flags may have blocks at these addresses.
///
/// # Errors
/// `EINVAL`.
pub fn check_blocks(register: u64, (program, core): (u64, u64)) -> Result<(), Errno> {
    let aligned = program != 0 && core != 0 && (program | core).is_multiple_of(BLOCK);
    let good = aligned && register & flags::EXCLUSIVE != 0;
    good.then_some(()).ok_or(Errno::INVAL)
}
