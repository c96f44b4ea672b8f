//! Pass 1 on a switch with rules.
//!
//! ```text
//!   copy heads, police -> look up (teaches nothing) -> rules of the sender, frames out
//!                      -> rules of the receiver, frames in -> connections -> learn
//! ```
//!
//! A batch is judged by the one generation of rules that its table of ports has. A flood is judged
//! once for each distinct policy among the receivers.

use std::sync::PoisonError;

use frame::{Facts, Fragment};
use port::{DropReason, Egress, Limits, Nanos, Scratch};
use rules::{End, Tuple};

use super::classify::{PLAIN, TUNNEL};
use super::judging::{Judged, Judging, Side};
use super::{DROP, FLOOD, Forwarder, PassState, drop_for};
use crate::filter::Filters;
use crate::ports::{Inspection, QueueIdx};
use crate::{Fdb, PortMemory};

impl Forwarder {
    /// Pass 1 on a switch with rules.
    #[inline(never)]
    pub(super) fn classify_filtered<E: Egress>(
        &mut self,
        way: &mut PassState<'_, E>,
        memory: &mut PortMemory,
        fdb: &Fdb,
        scratch: &mut Scratch,
        filters: &Filters,
    ) -> Option<QueueIdx> {
        let tunnel = way.port.manner == Inspection::Tunnel;
        let vias = if tunnel { scratch.take_vias() } else { Box::default() };
        let mut teaching = std::mem::take(&mut self.policed);
        self.police_all(way, memory, scratch, &mut teaching);
        self.find_all(way, fdb, scratch);
        let mut judging = self.judging.take().unwrap_or_else(|| Box::new(Judging::new()));
        self.judge_all(way, scratch, filters, &mut judging, &mut teaching);
        self.answer_resets(way, scratch, filters, &judging);
        self.judging = Some(judging);
        self.learn_all(way, fdb, scratch, (&vias, &teaching));
        self.policed = teaching;
        if tunnel {
            scratch.give_vias(vias);
        }
        let one = self.conclude(way, memory, scratch.len());
        // Others' tags may have to change.
        one.filter(|_| way.port.is_plain())
    }

    /// Copies the heads, and finds out which frames may enter: those that teach their source.
    fn police_all<E: Egress>(
        &mut self,
        way: &PassState<'_, E>,
        memory: &mut PortMemory,
        scratch: &mut Scratch,
        teaching: &mut Vec<bool>,
    ) {
        let mut i = 0;
        let (tags, in_vlans) = (&mut self.tags, &mut self.filters);
        let police = |head: &port::Head, len: usize| {
            let (refused, filter, tag) = way.police(memory, head, len);
            (tags[i], in_vlans[i]) = (tag, filter);
            i += 1;
            refused.map_or(0, drop_for)
        };
        let destinations = &mut self.destinations[..scratch.len()];
        if scratch.any_offload() {
            scratch.judge_requests(way.map, destinations, drop_for(DropReason::Offload), police);
        } else {
            scratch.judge(way.map, destinations, police);
        }
        teaching.clear();
        teaching.extend(destinations.iter().map(|destination| *destination < DROP));
    }

    /// Looks up where frames go that may enter.
    fn find_all<E: Egress>(&mut self, way: &PassState<'_, E>, fdb: &Fdb, scratch: &Scratch) {
        let mut in_vlans = self.filters.iter();
        scratch.rejudge(&mut self.destinations[..scratch.len()], |head, len, before| {
            let filter = in_vlans.next().copied().unwrap_or_default();
            if before >= DROP {
                return before;
            }
            let to = head.addresses().0;
            way.find(|| fdb.lookup(filter, to), filter, to, head, len).0
        });
    }

    /// Learns the sources of the frames that teach them.
    fn learn_all<E: Egress>(
        &mut self,
        way: &mut PassState<'_, E>,
        fdb: &Fdb,
        scratch: &Scratch,
        (vias, teaching): (&[u16], &[bool]),
    ) {
        let mut i = 0;
        scratch.rejudge(&mut self.destinations[..scratch.len()], |head, _, destination| {
            let (filter, source) = (self.filters[i], head.addresses().1);
            if teaching[i] {
                match vias.get(i) {
                    Some(via) => {
                        way.note_via(*via);
                        way.learn::<TUNNEL>(fdb, filter, source);
                    }
                    None => way.learn::<PLAIN>(fdb, filter, source),
                }
            }
            i += 1;
            destination
        });
    }

    /// Judges the frames that a port with rules sends or receives. Frames that the sender's rules
    /// deny are taken out of `teaching`.
    fn judge_all<E: Egress>(
        &mut self,
        way: &PassState<'_, E>,
        scratch: &Scratch,
        filters: &Filters,
        judging: &mut Judging,
        teaching: &mut [bool],
    ) {
        self.collect(way, scratch, filters, judging);
        if judging.heads.is_empty() {
            return;
        }
        let (sender, from) = (way.port.id, filters.of(way.port.id));
        let side = Side { filters, sender, from, now: way.now, scratch };
        let mut connections = filters.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let seconds = (way.now.0 / Nanos::SECOND) as u32;
        let own = End::new(sender);
        for judged in &mut judging.heads {
            let packet = judged.packet(scratch);
            let (to, tuple) = (judged.to.map(End::new), Tuple::of(&packet));
            let follows = judged.facts.fragment == Fragment::Later
                && connections.has_fragment(&packet, own, to, seconds);
            judged.found = tuple.as_ref().and_then(|t| connections.find(t, own, to, seconds));
            (judged.tuple, judged.follows) = (tuple, follows);
        }
        judging.judge_sender(side);
        for judged in judging.heads.iter().filter(|judged| judged.denied.is_some()) {
            teaching[usize::from(judged.frame)] = false;
        }
        judging.judge_receivers(side);
        judging.judge_floods(side);
        let mut noting = Noting { own, generation: filters.generation, seconds, changed: false };
        for judged in &judging.heads {
            if let Some(reason) = noting.note(judged, &mut connections, scratch) {
                self.destinations[usize::from(judged.frame)] = drop_for(reason);
            }
        }
        connections.sweep(seconds, 4);
    }

    /// Finds the frames that rules look at.
    fn collect<E: Egress>(
        &self,
        way: &PassState<'_, E>,
        scratch: &Scratch,
        filters: &Filters,
        judging: &mut Judging,
    ) {
        let kinds = filters.of_kind.len();
        judging.begin(kinds);
        let sends = filters.of(way.port.id).is_some();
        for (frame, destination) in self.destinations[..scratch.len()].iter().enumerate() {
            let to = match *destination {
                FLOOD if sends || kinds > 0 => None,
                queue if queue < DROP => Some(way.ports.queue(queue).port),
                _ => continue,
            };
            if !sends && to.is_some_and(|to| filters.of(to).is_none()) {
                continue;
            }
            let (head, (len, head_len)) = (scratch.head(frame), scratch.lengths(frame));
            let Some(facts) = Facts::of(&head.bytes()[..head_len]) else { continue };
            let filter = self.filters[frame];
            let draw = judging.draw();
            judging.heads.push(Judged {
                frame: frame as u16,
                head_len: head_len as u16,
                facts,
                len: len as u32,
                vlan: if filter == 0 { facts.vlan.unwrap_or(0) } else { filter },
                draw,
                to,
                tuple: None,
                found: None,
                follows: false,
                begins: false,
                denied: None,
                reset: false,
            });
        }
    }

    /// Tells the sender of a frame that a rule with `reset` has dropped, as if by the destination.
    #[inline]
    fn answer_resets<E: Egress>(
        &mut self,
        way: &mut PassState<'_, E>,
        scratch: &Scratch,
        filters: &Filters,
        judging: &Judging,
    ) {
        let refused = judging.heads.iter().find(|judged| judged.can_be_reset());
        if let Some(refused) = refused {
            self.answer_reset(way, scratch, filters, refused);
        }
    }

    #[cold]
    fn answer_reset<E: Egress>(
        &mut self,
        way: &mut PassState<'_, E>,
        scratch: &Scratch,
        filters: &Filters,
        refused: &Judged,
    ) {
        let reach = way.port.reach;
        let told = reach.queues > 0 && way.port.manner != Inspection::Tunnel;
        if !told || !filters.may_reset(way.port.id, way.now) {
            return;
        }
        let Some(mut answer) = frame::tcp_reset(refused.packet(scratch).head) else { return };
        let limits = Limits { max_frame: way.port.max_frame as u32, lossless: false };
        let to = &way.ports.queue(reach.first_queue).egress;
        self.touched.finisher().deliver_own(to, &mut answer, limits, way.map);
        way.port.counters.copies.add(1);
        way.deliveries += 1;
        self.touched.queues.push(reach.first_queue);
    }
}

/// Notes the verdicts on a batch in the connections.
struct Noting {
    own: End,
    generation: u16,
    seconds: u32,
    /// A connection has changed since the batch was looked up.
    changed: bool,
}

impl Noting {
    /// Returns why the frame is dropped.
    fn note<M: std::ops::Deref<Target = [std::sync::atomic::AtomicU64]>>(
        &mut self,
        judged: &Judged,
        connections: &mut rules::Connections<M>,
        scratch: &Scratch,
    ) -> Option<DropReason> {
        let Self { own, generation, seconds, .. } = *self;
        if let Some(reason) = judged.denied {
            // The rules have changed against it.
            judged.found.iter().for_each(|found| connections.end(found));
            self.changed |= judged.found.is_some();
            return Some(reason);
        }
        let to = judged.to.map(End::new);
        if judged.facts.fragment == Fragment::First {
            connections.note_fragment(&judged.packet(scratch), own, to, seconds);
        }
        let tuple = judged.tuple.as_ref()?;
        let found = match self.changed {
            false => judged.found,
            true => connections.find(tuple, own, to, seconds),
        };
        if let Some(found) = found {
            self.changed |= connections.pass(&found, own, to, generation, seconds);
            return None;
        }
        let begins = judged.begins && !judged.facts.destination.is_group();
        self.changed |= begins;
        let has_room = !begins || connections.begin(tuple, own, to, generation, seconds);
        (!has_room).then_some(DropReason::Denied)
    }
}
