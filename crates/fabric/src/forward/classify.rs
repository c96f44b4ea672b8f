//! Pass 1: decides about each frame.

use frame::{Identity, Spoof};
use port::{DropReason, Egress, HEAD, Head, Scratch};

use super::{DROP, Destination, FLOOD, Forwarder, PassState, Tag, drop_for};
use crate::fdb::{Place, key_of};
use crate::ports::{Inspection, QueueIdx, Reach};
use crate::{Fdb, Filter, Learned, Origin, PortMemory, Station};

/// How to inspect frames, as a constant of the code that does it: [`Inspection`].
pub(super) const PLAIN: u8 = Inspection::Plain as u8;
pub(super) const POLICED: u8 = Inspection::Policed as u8;
pub(super) const TUNNEL: u8 = Inspection::Tunnel as u8;

/// Addresses that no frame has, to compare the first frame with.
const NO_SOURCE: (u64, u64) = (0, u64::MAX);

/// After a batch to more queues than this, it is worth prefetching the lookups of the next batch.
const SCATTERED: usize = 8;

impl Forwarder {
    /// Pass 1. Returns the queue for all frames, if there is only one.
    #[inline(never)]
    pub(super) fn classify<E: Egress, const INSPECTION: u8, const REQUESTS: bool>(
        &mut self,
        way: &mut PassState<'_, E>,
        memory: &mut PortMemory,
        fdb: &Fdb,
        scratch: &mut Scratch,
    ) -> Option<QueueIdx> {
        let frames = scratch.len();
        let vias = if INSPECTION == TUNNEL { scratch.take_vias() } else { Box::default() };
        // The previous frame's addresses, filter and destination.
        let (mut last, mut last_found) = (NO_SOURCE, DROP);
        let mut i = 0;
        let (tags, filters) = (&mut self.tags, &mut self.filters);
        let (map, longest) = (way.map, way.port.max_frame);
        let verdict = |head: &Head, len: usize| {
            let (mut filter, mut refused) = (0, None);
            if INSPECTION != PLAIN {
                (refused, filter, tags[i]) = way.police(memory, head, len);
                filters[i] = filter;
                if INSPECTION == TUNNEL {
                    way.note_via(vias[i]);
                }
                i += 1;
            } else if !fits(len, longest) {
                refused = too_short_or_long(len, longest);
            }
            match refused {
                Some(reason) => drop_for(reason),
                None => {
                    let (both, there) = head.both_addresses();
                    let mut these = (both, u64::from(there) | u64::from(filter) << 32);
                    if INSPECTION == TUNNEL {
                        these.1 |= u64::from(way.via) << 48;
                    }
                    if last != these {
                        let (to, source) = head.addresses();
                        way.learn::<INSPECTION>(fdb, filter, source);
                        let lookup = || fdb.lookup(filter, to);
                        let (found, lasting) = way.find(lookup, filter, to, head, len);
                        (last, last_found) = (if lasting { these } else { NO_SOURCE }, found);
                    }
                    last_found
                }
            }
        };
        let destinations = &mut self.destinations[..frames];
        if REQUESTS {
            scratch.judge_requests(map, destinations, drop_for(DropReason::Offload), verdict);
        } else {
            scratch.judge(map, destinations, verdict);
        }
        if INSPECTION == TUNNEL {
            scratch.give_vias(vias);
        }
        let one = self.conclude(way, memory, frames);
        one.filter(|_| INSPECTION == PLAIN)
    }

    /// Pass 1 of a batch without offload requests from a plain port, if the previous batch had many
    /// destinations. It prefetches the lookups of all frames before it decides about any.
    #[inline(never)]
    pub(super) fn classify_scattered<E: Egress>(
        &mut self,
        way: &mut PassState<'_, E>,
        memory: &mut PortMemory,
        fdb: &Fdb,
        scratch: &mut Scratch,
    ) -> Option<QueueIdx> {
        let frames = scratch.len();
        let destinations = &mut self.destinations[..frames];
        let longest = way.port.max_frame;
        scratch.judge(way.map, destinations, |head, _| fdb.fetch(0, head.addresses().0).0);
        scratch.rejudge(destinations, |head, len, place| {
            if !fits(len, longest) {
                return too_short_or_long(len, longest).map_or(DROP, drop_for);
            }
            let (to, source) = head.addresses();
            way.learn::<PLAIN>(fdb, 0, source);
            way.find(|| fdb.lookup_at(Place(place), 0, to), 0, to, head, len).0
        });
        self.conclude(way, memory, frames)
    }

    /// True if the previous batch had so many destinations that this batch probably has many, too.
    pub(super) fn is_scattered(&self) -> bool {
        self.queues.len() > SCATTERED
    }

    /// Ends pass 1. Returns the queue for all frames, if there is only one.
    #[inline(always)]
    pub(super) fn conclude<E: Egress>(
        &mut self,
        way: &PassState<'_, E>,
        memory: &mut PortMemory,
        frames: usize,
    ) -> Option<QueueIdx> {
        let destinations = &self.destinations[..frames];
        let first = *destinations.first()?;
        let uniform = destinations.iter().fold(0, |differ, d| differ | (d ^ first)) == 0;
        if !uniform || first == FLOOD {
            self.limit_floods(way, memory, frames);
        }
        (uniform && first < DROP).then_some(first)
    }

    /// Runs pass 1 for a batch with offload requests.
    #[inline(never)]
    pub(super) fn classify_requests<E: Egress>(
        &mut self,
        way: &mut PassState<'_, E>,
        memory: &mut PortMemory,
        fdb: &Fdb,
        scratch: &mut Scratch,
    ) -> Option<QueueIdx> {
        match way.port.manner {
            Inspection::Plain => self.classify::<_, PLAIN, true>(way, memory, fdb, scratch),
            Inspection::Policed => self.classify::<_, POLICED, true>(way, memory, fdb, scratch),
            Inspection::Tunnel => self.classify::<_, TUNNEL, true>(way, memory, fdb, scratch),
        }
    }

    /// Drops the floods of this batch beyond the port's limit, the last ones first.
    fn limit_floods<E: Egress>(
        &mut self,
        way: &PassState<'_, E>,
        memory: &mut PortMemory,
        frames: usize,
    ) {
        let floods = self.destinations[..frames].iter().filter(|d| **d == FLOOD).count();
        let Some(rate) = way.port.flood_limit.filter(|_| floods > 0) else { return };
        let mut left = memory.admit_floods(floods, rate, way.now);
        for destination in &mut self.destinations[..frames] {
            if *destination == FLOOD {
                match left.checked_sub(1) {
                    Some(fewer) => left = fewer,
                    None => *destination = drop_for(DropReason::FloodLimit),
                }
            }
        }
    }
}

/// True if the frame is neither too short nor too long, in one comparison.
#[inline(always)]
fn fits(len: usize, longest: usize) -> bool {
    len.wrapping_sub(frame::ETHERNET_HEADER) <= longest - frame::ETHERNET_HEADER
}

fn too_short_or_long(len: usize, longest: usize) -> Option<DropReason> {
    if len < frame::ETHERNET_HEADER {
        Some(DropReason::Runt)
    } else if len > longest {
        Some(DropReason::TooLong)
    } else {
        None
    }
}

impl<E: Egress> PassState<'_, E> {
    /// Whether a frame may enter, with its filter and its tag.
    pub(super) fn police(
        &self,
        memory: &mut PortMemory,
        head: &Head,
        len: usize,
    ) -> (Option<DropReason>, Filter, Tag) {
        if let Some(reason) = too_short_or_long(len, self.port.max_frame) {
            return (Some(reason), 0, Tag::default());
        }
        let tagged = head.be16(12) == 0x8100 && len >= frame::ETHERNET_HEADER + frame::VLAN_TAG;
        let tci = tagged.then(|| head.be16(14));
        let tag =
            Tag { tci, hides_another: frame::is_tag(head.be16(if tagged { 16 } else { 12 })) };
        let Some(filter) = self.port.vlan.classify(tci.map(|tci| tci & 0xfff)) else {
            return (Some(DropReason::Vlan), 0, tag);
        };
        let (_, source) = head.addresses();
        let allowed = match &self.port.allowed {
            None => true,
            Some(macs) if macs.is_empty() => *memory.first_source.get_or_insert(source) == source,
            Some(macs) => macs.contains(&source),
        };
        let refused = match allowed {
            false => Some(DropReason::PortSecurity),
            true => self.port.guard.as_deref().and_then(|own| spoofs(own, head, len)),
        };
        (refused, filter, tag)
    }

    /// Notes the host behind the port that sent the next frame.
    pub(super) fn note_via(&mut self, via: u16) {
        if self.via != via {
            self.via = via;
            self.from.forget_source();
        }
    }

    /// Learns the source, unless it equals the last one.
    #[inline(always)]
    pub(super) fn learn<const INSPECTION: u8>(&mut self, fdb: &Fdb, filter: Filter, source: u64) {
        if self.from.last_source != key_of(filter, source) {
            self.relearn::<INSPECTION>(fdb, filter, source);
        }
    }

    fn relearn<const INSPECTION: u8>(&mut self, fdb: &Fdb, filter: Filter, source: u64) {
        self.from.last_source = key_of(filter, source);
        if source & 1 != 0 || source == 0 {
            return;
        }
        let (limit, guard) = (self.port.mac_limit, self.port.flap_guard);
        let here = match INSPECTION {
            TUNNEL => Station::behind(self.port.id, self.via, Origin::Tunnel),
            _ => Station::at(self.port.id, Origin::Learned),
        };
        let learned = fdb.learn(filter, source, here, limit, guard, self.now);
        match learned {
            Learned::Known => {}
            Learned::Refused => self.port.counters.flaps.add(1),
            Learned::NoRoom => self.port.counters.unlearned.add(1),
        }
    }

    /// Where a frame to `to` goes, and whether the same holds for the next frame between these
    /// addresses.
    #[inline(always)]
    pub(super) fn find(
        &self,
        lookup: impl FnOnce() -> Option<Station>,
        filter: Filter,
        to: u64,
        head: &Head,
        len: usize,
    ) -> (Destination, bool) {
        if to & 1 != 0 {
            let kept_in = frame::Mac::from_word(to).is_link_local();
            return (if kept_in { drop_for(DropReason::LinkLocal) } else { FLOOD }, true);
        }
        let Some(id) = lookup().map(Station::port) else { return (FLOOD, true) };
        let dest = self.ports.reach(id);
        if dest.simple && filter == 0 && id != self.port.id {
            return (dest.first_queue, true);
        }
        if dest.queues == 0 {
            return (drop_for(DropReason::Down), true);
        }
        if id == self.port.id {
            return (drop_for(DropReason::SamePort), true);
        }
        if dest.is_apart_from(&self.port.reach) {
            return (drop_for(DropReason::Protected), true);
        }
        if !self.allows(id, dest, filter) {
            return (drop_for(DropReason::Vlan), true);
        }
        let by_flow = dest.queues > 1 && self.port.send_queues <= 1;
        let head = || &head.bytes()[..len.min(HEAD)];
        (dest.queue_for(self.port, self.from.queue, head), !by_flow)
    }

    /// True if frames of `filter` may pass to `dest`, the port with number `id`.
    #[inline(always)]
    fn allows(&self, id: u16, dest: &Reach, filter: Filter) -> bool {
        match dest.aware {
            false => filter == 0,
            true => self.ports.get(id).is_some_and(|dest| dest.vlan.allows(filter)),
        }
    }
}

/// The reason to drop a frame of a guarded port, if it forges anything.
#[cold]
fn spoofs(own: &Identity, head: &Head, len: usize) -> Option<DropReason> {
    own.forged(&head.bytes()[..len.min(HEAD)]).map(reason_of)
}

/// The reason to drop a frame that forges something.
pub(crate) const fn reason_of(spoof: Spoof) -> DropReason {
    match spoof {
        Spoof::Source => DropReason::PortSecurity,
        Spoof::Arp => DropReason::ArpSpoof,
        Spoof::Neighbour => DropReason::NdSpoof,
        Spoof::DhcpServer => DropReason::DhcpServer,
        Spoof::Router => DropReason::RouterAdvert,
        Spoof::Hidden => DropReason::HiddenHeaders,
    }
}
