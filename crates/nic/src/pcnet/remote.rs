//! Rings of a guest whose memory is reached by messages ([`crate::remote`]).
//!
//! ```text
//!   pushed ............ at ............ shown ............
//!   given back, not     the model's     the driver's, as far as is known: read from time to time
//!   yet in the guest's
//! ```
//!
//! There are no tails. A descriptor is shown to the model by its OWN bit in the copy, once its
//! buffer is there. It is pushed when the model has cleared the bit. A transmit demand triggers a
//! read of the ring. Receive descriptors come back without a notification. So their ring is read
//! again some time after frames were pushed, as long as it is not full.

use std::sync::atomic::{AtomicU32, Ordering};

use port::Nanos;

use super::copy::{Half, Inner};
use super::core::Core;
use super::registers::{Fault, NOT_SENT, board, csr, extended, features, status};
use super::ring::{Descriptor, InitBlock, Ring, Style, bits};
use crate::csb::Direction;
use crate::remote::{AHEAD, Held, Out, Remote, Want};

/// The maximum number of descriptors that are fetched together.
const RUN: u32 = 32;
/// When to read a ring again that had nothing. The time doubles with each empty read, at most this
/// many times: for the transmit ring, whose driver announces frames, and for the receive ring.
const LOOK_NS: u64 = 2 * Nanos::MILLI;
const MAX_BACKOFF: [u32; 2] = [8, 3];
/// Longest buffer.
const LONGEST: u32 = 4096;
const WAYS: [Direction; 2] = [Direction::Send, Direction::Receive];

impl Core {
    fn ring_of(&self, way: Direction) -> Option<Ring> {
        let (base, len) = match way {
            Direction::Send => (csr::TRANSMIT_BASE, csr::TRANSMIT_LENGTH),
            Direction::Receive => (csr::RECEIVE_BASE, csr::RECEIVE_LENGTH),
        };
        Ring::new(&self.registers, &self.memory, base, len)
    }

    /// The place in state memory before which all descriptors have left.
    fn sent(&self, way: Direction) -> &AtomicU32 {
        match way {
            Direction::Send => &self.registers.transmit.sent,
            Direction::Receive => &self.registers.receive.sent,
        }
    }

    /// The model's position in a ring.
    fn at(&self, way: Direction) -> u32 {
        match way {
            Direction::Send => self.registers.position().at,
            Direction::Receive => self.registers.receive.at(),
        }
    }

    /// Starts a model that reaches guest memory directly: it has no copy to push or to wait for.
    pub fn resume_copy(&self) {
        if self.copied.is_none() {
            WAYS.into_iter().for_each(|way| self.sent(way).store(NOT_SENT, Ordering::Relaxed));
            if self.registers.has(board::INITIALIZING) {
                self.end_initializing();
            }
        }
    }

    /// Notes that the driver has announced frames.
    pub fn demand_copy(&self) {
        if let Some(copied) = &self.copied {
            copied.demanded.store(true, Ordering::Relaxed);
        }
    }

    /// Handles rings that restart: the driver owns what a copy has of them.
    pub fn clear_copy(&self) {
        let rings = WAYS.into_iter().filter(|_| self.copied.is_some());
        rings.filter_map(|way| self.ring_of(way)).for_each(|ring| ring.clear());
        self.demand_copy();
    }

    /// Notices rings that restarted or were replaced.
    fn notice_rings(&self, inner: &mut Inner, held: &mut Held) {
        let epoch = self.registers.epoch.load(Ordering::Acquire);
        let first = inner.epoch.is_none();
        let anew = inner.epoch.replace(epoch) != Some(epoch);
        for way in WAYS {
            let (ring, half) = (self.ring_of(way), &mut inner.halves[way as usize]);
            let same = match (&half.ring, &ring) {
                (Some(old), Some(new)) => old.is_same(new),
                (old, new) => old.is_none() && new.is_none(),
            };
            if same && !anew {
                continue;
            }
            if anew && !first {
                held.restart()
            } else {
                held.clear()
            }
            let (at, sent) = (self.at(way), self.sent(way));
            let from = sent.load(Ordering::Relaxed);
            let len = ring.as_ref().map_or(0, |ring| ring.len);
            let lost = Some(from).filter(|from| first && *from < len && *from != at && at < len);
            if lost.is_none() {
                sent.store(at, Ordering::Relaxed);
            }
            *half = Half { ring, pushed: at, lost, ..Half::default() };
        }
    }

    fn fetch_init_block(&self, held: &mut Held) {
        let at = u64::from(self.registers.csr_pair(csr::INIT_BLOCK));
        let len = InitBlock::size(Style::of(&self.registers)) as u32;
        if let Want::Here(bytes) = held.want_buffer(&self.memory, at, len, len) {
            self.memory.put(at, bytes);
            held.taken(at);
            self.end_initializing();
        }
    }

    /// Fetches descriptors that were given back and may not have left, and gives them back. A
    /// descriptor that came back since looks the same, and is given back once more.
    fn find_lost(&self, half: &mut Half, ring: &Ring, held: &mut Held, way: Direction, at: u32) {
        let end = self.at(way);
        let run = if end > at { end - at } else { ring.len - at }.min(RUN);
        let Want::Here(bytes) = held.want_run(ring.address(at), (run * ring.size()) as usize)
        else {
            return;
        };
        let next = ring.after(at, run);
        for (place, bytes) in (at..).zip(bytes.chunks_exact(ring.size() as usize)) {
            ring.put(place, bytes);
            match way {
                _ if !ring.is_owned(place) => continue,
                Direction::Send => ring.give_back(place),
                Direction::Receive => {
                    ring.fill(place, bits::ERR | bits::BUFF | bits::STP | bits::ENP, Some(0));
                }
            }
            half.mended.push_back((ring.address(place), ring.bytes(place)));
        }
        half.lost = Some(next).filter(|next| *next != end);
    }

    /// Fetches descriptors that the controller may own, with the buffers of those to be sent.
    fn fetch_ring(
        &self,
        half: &mut Half,
        ring: &Ring,
        held: &mut Held,
        way: Direction,
        now: Nanos,
    ) {
        let at = ring.after(half.pushed % ring.len, half.count);
        let run = (ring.len - at).min(ring.len - half.count).min(RUN);
        let from = ring.address(at);
        half.asking = true;
        let Want::Here(bytes) = held.want_run(from, (run * ring.size()) as usize) else { return };
        let descriptors = bytes.chunks_exact(ring.size() as usize);
        let owned = descriptors.map_while(|bytes| Some((bytes.to_vec(), ring.parse(bytes)?)));
        let owned: Vec<_> = owned.collect();
        let ready = match way {
            Direction::Send => {
                let buffer = |of: &Descriptor| Some((u64::from(of.address), of.len));
                let buffers: Vec<_> = owned.iter().map(|(_, of)| buffer(of)).collect();
                held.lay(&self.memory, &buffers, LONGEST)
            }
            Direction::Receive => Some(owned.len()),
        };
        let Some(ready) = ready else { return };
        // The first one comes last, so that a driver that sees it sees all.
        for (place, (bytes, _)) in (at..).zip(&owned[..ready]).collect::<Vec<_>>().into_iter().rev()
        {
            ring.put(place, bytes);
        }
        held.taken(from);
        half.count += ready as u32;
        half.asking = false;
        let all = ready as u32 == run || ready < owned.len();
        half.misses = if ready > 0 { 0 } else { half.misses + 1 }.min(MAX_BACKOFF[way as usize]);
        let again = std::mem::take(&mut half.again) || all;
        half.look_at = if again { Nanos(0) } else { now + (LOOK_NS << half.misses) };
        if way == Direction::Send && ready > 0 {
            self.registers.transmit.demands.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// True if a direction's ring is due for a read, or is being read.
    fn is_due(&self, half: &Half, way: Direction, now: Nanos) -> bool {
        half.asking || self.looks_at(half, way).is_some_and(|at| at <= now)
    }

    /// When to read a direction's ring, if at all.
    fn looks_at(&self, half: &Half, way: Direction) -> Option<Nanos> {
        let len = half.ring.as_ref()?.len;
        let on = if way == Direction::Send { status::TXON } else { status::RXON };
        let polls = way == Direction::Receive
            || half.look_at == Nanos(0)
            || self.registers.csr(csr::FEATURES) & features::TXDPOLL == 0;
        let idle = !half.asking && half.lost.is_none() && !self.registers.has(board::INITIALIZING);
        let looks = polls && idle && half.count < len.min(AHEAD) && self.works(on);
        looks.then_some(half.look_at)
    }

    /// Pushes what the model gave back: frames first, then their descriptors.
    fn push_ring(&self, half: &mut Half, ring: &Ring, way: Direction, out: &mut dyn Out) -> u16 {
        let mut causes = 0;
        while out.has_room()
            && let Some((at, bytes)) = half.mended.pop_front()
        {
            out.write(at, &bytes);
            causes |= if way == Direction::Send { status::TINT } else { status::RINT };
        }
        loop {
            let at = half.pushed % ring.len;
            let most = half.count.min(ring.len - at).min(RUN);
            let mut run = 0;
            while run < most && !ring.is_owned(at + run) && out.has_room() {
                if way == Direction::Receive {
                    self.push_buffer(half, ring, at + run, out);
                }
                run += 1;
            }
            if run == 0 {
                return causes;
            }
            let bytes: Vec<_> = (at..at + run).map(|at| ring.bytes(at)).collect();
            if way == Direction::Receive {
                // Lengths go first, so that no driver finds a descriptor without its length.
                let owned = bytes.iter().flat_map(|bytes| ring.with_own(bytes)).collect::<Vec<_>>();
                out.write(ring.address(at), &owned);
            }
            out.write(ring.address(at), &bytes.concat());
            half.pushed = ring.after(at, run);
            half.count -= run;
            // The driver is about to give descriptors back, so the ring is read soon.
            (half.look_at, half.misses) = (half.look_at.min(Nanos(1)), 0);
            let silent = self.registers.csr(csr::EXTENDED) & extended::TOKINTD != 0;
            causes |= match way {
                Direction::Send if silent => 0,
                Direction::Send => status::TINT,
                Direction::Receive => status::RINT,
            };
        }
    }

    /// Pushes the part of a frame that is in a received descriptor's buffer.
    fn push_buffer(&self, half: &mut Half, ring: &Ring, at: u32, out: &mut dyn Out) {
        let Descriptor { address, status, len } = ring.describe(at);
        let last = status & (bits::ENP | bits::ERR) != 0;
        let left = ring.message(at).saturating_sub(half.before);
        let len = if status & bits::ENP != 0 { left.min(len) } else { len };
        half.before = if last { 0 } else { half.before + len };
        self.memory.read_each(address.into(), len, |at, bytes| out.write(at, &bytes.to_vec()));
    }
}

impl Remote for Core {
    fn fetch(&self, held: &mut Held, now: Nanos) {
        let Some(copied) = self.copied.as_ref().filter(|_| self.registers.has(board::MASTER))
        else {
            return;
        };
        if self.registers.has(board::INITIALIZING) {
            return self.fetch_init_block(held);
        }
        let mut inner = copied.inner();
        self.notice_rings(&mut inner, held);
        if copied.demanded.swap(false, Ordering::Relaxed) {
            let half = &mut inner.halves[Direction::Send as usize];
            (half.look_at, half.again) = (Nanos(0), half.asking);
        }
        for way in WAYS {
            let half = &mut inner.halves[way as usize];
            let Some(ring) = half.ring.clone() else { continue };
            match half.lost {
                Some(at) => self.find_lost(half, &ring, held, way, at),
                None if self.is_due(half, way, now) => {
                    self.fetch_ring(half, &ring, held, way, now);
                }
                None => {}
            }
        }
    }

    fn push(&self, out: &mut dyn Out) -> u32 {
        let Some(copied) = &self.copied else { return 0 };
        let mut inner = copied.inner();
        let current = inner.epoch == Some(self.registers.epoch.load(Ordering::Acquire));
        let mut causes = 0;
        for way in WAYS.into_iter().filter(|_| current && self.registers.has(board::MASTER)) {
            let half = &mut inner.halves[way as usize];
            if let Some(ring) = half.ring.clone() {
                causes |= self.push_ring(half, &ring, way, out);
            }
        }
        causes.into()
    }

    fn confirm_pushed(&self, causes: u32) {
        self.registers.raise(causes as u16);
    }

    fn confirm_all_pushed(&self) {
        if self.registers.status() & status::STRT != 0 {
            self.registers.raise(status::TINT | status::RINT);
        }
    }

    fn note_sent(&self) {
        let Some(copied) = &self.copied else { return };
        let inner = copied.inner();
        if inner.epoch != Some(self.registers.epoch.load(Ordering::Acquire)) {
            return;
        }
        for way in WAYS {
            let half = &inner.halves[way as usize];
            if half.lost.is_none() && half.mended.is_empty() {
                self.sent(way).store(half.pushed, Ordering::Relaxed);
            }
        }
    }

    fn look_at(&self) -> Option<Nanos> {
        let inner = self.copied.as_ref()?.inner();
        let times = WAYS.into_iter().map(|way| self.looks_at(&inner.halves[way as usize], way));
        times.flatten().min()
    }

    fn forget(&self) -> bool {
        let Some(copied) = &self.copied else { return false };
        let (unused, mut inner) = (self.lock(), copied.inner());
        let is_pushed = |way: Direction| {
            let half = &inner.halves[way as usize];
            let owned = |ring: &Ring| half.count == 0 || ring.is_owned(half.pushed % ring.len);
            half.lost.is_none() && half.mended.is_empty() && half.ring.as_ref().is_none_or(owned)
        };
        if self.registers.position().lent > 0 || !WAYS.into_iter().all(is_pushed) {
            return false;
        }
        for half in &mut inner.halves {
            half.ring.iter().for_each(Ring::clear);
            *half = Half { ring: half.ring.take(), pushed: half.pushed, ..Half::default() };
        }
        // The copy shows no descriptors now, so no thread reads or awaits what is discarded here.
        drop(unused);
        self.memory.discard();
        true
    }

    fn fail(&self) {
        Core::fail(self, Fault::Unreachable);
    }
}
