//! What a port sends over a link, or within a limit.

use std::sync::atomic::{Ordering, fence};
use std::sync::{Mutex, PoisonError};

use fabric::{Delivery, Finisher};
use link::{Link, LinkConfig, Pacer, Tally};
use port::{
    Batch, Delivered, DropReason, Effects, Egress, FrameIdx, Limits, MapGuard, Nanos, OffloadSet,
    Scratch,
};

use super::{Grain, Served, Side, Switch, Tools};
use crate::port_link::Line;
use crate::user::Payer;

/// A link as the receiver of frames that are cut for it.
struct Entrance<'a> {
    at: Mutex<At<'a>>,
    takes: OffloadSet,
    /// The host behind the port that has sent the frames.
    via: u16,
}

struct At<'a> {
    link: &'a mut Link,
    /// Why a frame was dropped.
    dropped: Option<DropReason>,
}

impl Egress for Entrance<'_> {
    fn deliver(&self, batch: &Batch<'_>, list: &[FrameIdx], _limits: Limits) -> Delivered {
        let mut at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        for i in list {
            let (frame, beside) = (batch.pick(*i), (batch.offload(*i), self.via));
            let dropped = at.link.admit_beyond(frame, beside, batch.now());
            at.dropped = at.dropped.or(dropped);
        }
        Delivered { finished: list.len() }
    }

    fn settle(&self, _now: Nanos) -> Effects {
        Effects::default()
    }

    fn takes(&self) -> OffloadSet {
        self.takes
    }
}

/// Frames that changed in number as they were put onto a link.
#[derive(Clone, Copy, Default)]
struct Put {
    /// Segments beyond the first of each frame.
    added: u64,
    /// Frames with requests that cannot be met, which were dropped.
    refused: u64,
}

/// Copies gathered frames onto a link, as they are on a wire. `dropped` is called for those that
/// it drops at once.
fn copy(
    link: &mut Link,
    scratch: &mut Scratch,
    finisher: &mut Option<Box<Finisher>>,
    switch: Switch<'_>,
    mut dropped: impl FnMut(&Batch<'_>, FrameIdx, DropReason),
) -> Put {
    let mut fine = [true; 1024];
    if scratch.any_offload() {
        scratch.judge_requests(switch.map, &mut fine, false, |_, _| true);
    } else {
        scratch.judge(switch.map, &mut [(); 1024], |_, _| ());
    }
    let vias = scratch.take_vias();
    let batch = scratch.batch(switch.map);
    let (takes, now) = (link.takes(), switch.now);
    let mut put = Put::default();
    for i in 0..scratch.len() as u16 {
        let via = vias.get(usize::from(i)).copied().unwrap_or(0);
        let offload = batch.offload(i);
        let reason = if !fine[usize::from(i)] {
            put.refused += 1;
            continue;
        } else if takes.takes(&offload) {
            link.admit_beyond(batch.pick(i), (offload, via), now)
        } else {
            let at = Mutex::new(At { link, dropped: None });
            let entrance = Entrance { at, takes, via };
            put.added += cut(&entrance, &batch, i, finisher, switch.map);
            entrance.at.into_inner().unwrap_or_else(PoisonError::into_inner).dropped
        };
        if let Some(reason) = reason {
            dropped(&batch, i, reason);
        }
    }
    scratch.give_vias(vias);
    put
}

/// Cuts a superframe onto a link. Returns how many segments there are beyond the first.
fn cut(
    to: &Entrance<'_>,
    batch: &Batch<'_>,
    frame: FrameIdx,
    finisher: &mut Option<Box<Finisher>>,
    map: &MapGuard<'_>,
) -> u64 {
    let limits = Limits { max_frame: u32::MAX, lossless: false };
    let delivery = Delivery { to, batch, list: &[frame], limits, map, narrow: false };
    let handed = finisher.get_or_insert_default().deliver_finished(&delivery, 0);
    handed.copies.saturating_sub(1) as u64
}

impl Served {
    /// Puts what the port sends onto another line. Frames in flight on the old one arrive.
    pub(super) fn set_line(&mut self, line: Option<Box<Line>>) {
        self.pacer = line.as_ref().and_then(|line| Pacer::new(&line.config)).map(Box::new);
        let line = line.filter(|_| self.pacer.is_none());
        for (number, queue) in self.queues.iter_mut().enumerate() {
            let line = line.as_ref().map(|line| {
                let meter = line.meters.get(number).cloned().unwrap_or_default();
                (line.config.clone(), meter)
            });
            match (&mut queue.link, line) {
                (Some(link), Some((config, meter))) => link.set(Some((config, meter))),
                (Some(link), None) => link.set(None),
                (link, Some((config, meter))) => {
                    *link = Some(Box::new(Link::sending(config, number, meter)));
                }
                (None, None) => {}
            }
        }
    }

    /// If touches are timed, even a link that does nothing copies the frames that the port sends.
    pub(super) fn set_watch(&mut self, watch: Option<Payer>) {
        self.watch = watch;
        if self.watch.is_some() {
            for (number, queue) in self.queues.iter_mut().enumerate() {
                let config = LinkConfig::default();
                let copies = || Box::new(Link::sending(config, number, Default::default()));
                queue.link.get_or_insert_with(copies);
            }
        }
    }

    pub(super) fn look_for_impediments(&mut self) {
        let links = self.queues.iter().any(|queue| queue.link.is_some());
        self.impeded = links || self.limiter.is_some() || self.pacer.is_some();
    }

    /// When the port's link or rate limiter lets it send again; `None` if it may send now.
    #[inline]
    pub fn opens_at(&mut self, now: Nanos) -> Option<Nanos> {
        if !self.impeded {
            return None;
        }
        let links = self.queues.iter().filter_map(|queue| queue.link.as_deref());
        let full = links.filter(|link| link.room(1514) == 0).filter_map(Link::due).max();
        let limit = self.limiter.as_deref_mut().map(|limiter| {
            limiter.refill(now);
            limiter.opens_at(now)
        });
        let line = self.pacer.as_deref().map(Pacer::opens_at);
        full.into_iter().chain(limit).chain(line).max().filter(|at| *at > now)
    }

    /// When the next frame that the port has sent leaves a link, or a frame that waits in the
    /// port's ring may enter it.
    #[must_use]
    pub fn due(&self) -> Option<Nanos> {
        if !self.impeded {
            return None;
        }
        self.queues.iter().filter_map(|queue| queue.link.as_deref()?.due()).min()
    }

    /// Makes all frames in flight on a link due, because the port or the process ends.
    pub fn make_all_due(&mut self) {
        self.queues.iter_mut().filter_map(|q| q.link.as_deref_mut()).for_each(Link::make_all_due);
        self.far.iter().for_each(|(_, far)| far.make_all_due());
    }

    /// True if frames are in flight on a link.
    #[must_use]
    pub fn has_under_way(&self) -> bool {
        self.due().is_some() || self.flush_due().is_some()
    }

    pub(super) fn count(&self, tally: Tally) {
        self.counters.drop_frames(DropReason::Impaired, tally.lost);
        self.counters.drop_frames(DropReason::Full, tally.queue_drops());
        self.counters.copies.add(tally.duplicated);
    }

    /// Gathers as many frames as there are tokens, or frames that leave a link.
    #[cold]
    pub(super) fn gather_impeded(
        &mut self,
        queue: usize,
        most: usize,
        tools: &mut Tools,
        switch: Switch<'_>,
        effect: &mut impl FnMut(u16, Side, Effects),
    ) -> usize {
        let Switch { now, draining, .. } = switch;
        let Some(mut link) = self.queues[queue].link.take() else {
            let max = if draining { 0 } else { most };
            return self.gather_limited(queue, &mut tools.scratch, max, now);
        };
        let Grain { frames, len } = self.queues[queue].grain;
        let room = link.room_at(len.into(), now);
        // A superframe may be a little more than there is room for.
        let room = if room > 0 { (room / usize::from(frames)).max(1) } else { 0 };
        let max = if draining { 0 } else { most.min(room) };
        let sent = self.gather_limited(queue, &mut tools.scratch, max, now);
        if sent > 0 {
            self.admit(&mut link, queue, tools, switch, effect);
        }
        tools.scratch.clear();
        let frames = link.release(&mut tools.scratch, tools.batch, now);
        self.count(link.take_tally());
        let stays = self.watch.is_some() || !link.is_done();
        self.queues[queue].lent_by_link = stays;
        if stays {
            self.queues[queue].link = Some(link);
        } else {
            self.look_for_impediments();
        }
        frames
    }

    /// Puts gathered frames onto a link. Their owner gets them back.
    fn admit(
        &mut self,
        link: &mut Link,
        queue: usize,
        tools: &mut Tools,
        switch: Switch<'_>,
        effect: &mut impl FnMut(u16, Side, Effects),
    ) {
        let sent = tools.scratch.len();
        let (from, Tools { scratch, finisher, forwarder, .. }) = (self.id, &mut *tools);
        forwarder.begin_recording(switch.now);
        let put = self.touch(|source| {
            let put = copy(link, scratch, finisher, switch, |batch, i, reason| {
                forwarder.lost(batch, i, from, reason);
            });
            if let Some(ingress) = source.queue(queue) {
                ingress.complete(sent);
            }
            put
        });
        self.counters.copies.add(put.added);
        self.counters.drop_frames(DropReason::Offload, put.refused);
        let (frames, bytes) = scratch.on_wire(sent);
        let most = |value: u64| u16::try_from(value.max(1)).unwrap_or(u16::MAX);
        let frames_each = most(frames.div_ceil(sent) as u64);
        let len = most(bytes.div_ceil(frames.max(1) as u64));
        self.queues[queue].grain = Grain { frames: frames_each, len };
        self.charge(sent, &tools.scratch);
        if !switch.sleepless {
            fence(Ordering::SeqCst);
            let effects = self.touch(|source| {
                source.queue(queue).map(|q| q.settle(switch.now)).unwrap_or_default()
            });
            if effects != Effects::default() {
                effect(self.id, Side::Ingress(queue as u16), effects);
            }
        }
        self.busy_at = switch.now;
    }

    /// Gathers as many frames as there are tokens. They are [charged](Self::charge) afterwards.
    fn gather_limited(
        &mut self,
        queue: usize,
        scratch: &mut Scratch,
        max: usize,
        now: Nanos,
    ) -> usize {
        let mut max = max;
        if let Some(limiter) = &mut self.limiter {
            limiter.refill(now);
            max = max.min(limiter.allowance());
        }
        if let Some(pacer) = &mut self.pacer {
            max = max.min(pacer.allowance(now));
        }
        let gathered =
            self.touch(|source| source.queue(queue).map_or(0, |q| q.gather(scratch, max, now)));
        if let Some(pacer) = self.pacer.as_deref_mut().filter(|_| gathered < max) {
            pacer.run_dry(now);
        }
        gathered
    }

    /// Takes tokens for gathered frames, once their requests were validated.
    pub(super) fn charge(&mut self, gathered: usize, scratch: &Scratch) {
        if let Some(limiter) = &mut self.limiter {
            limiter.charge_allowed(gathered, scratch.on_wire(gathered));
        }
        if let Some(pacer) = &mut self.pacer {
            pacer.charge(gathered, scratch.on_wire(gathered));
        }
    }
}
