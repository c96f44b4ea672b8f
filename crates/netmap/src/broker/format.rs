//! What the slots of a port's rings hold besides frames: offsets (`NETMAP_REQ_OPT_OFFSETS`) and
//! virtio-net headers (`NETMAP_REQ_PORT_HDR_SET`). It is written into the region, where the switch
//! and the programs' libraries read it.

use netring::layout::Format;
use rustix::io::Errno;

use super::adapter::{Kind, Offsets};
use super::effect::Effect;
use super::key::Key;
use super::task::{Call, Step};
use super::{Binding, Broker};
use crate::abi::option;

/// What the slots of the rings of transparent mode hold: frames at any offset.
const FORWARDED: Format = Format::from_bits(64 << 8);

impl Broker {
    /// Carries out the option OFFSETS for the rings of a new binding, if it was given.
    pub(super) fn set_offsets(&mut self, call: &mut Call, binding: &Binding) -> Result<(), Errno> {
        if !call.options().has(option::OFFSETS) {
            return Ok(());
        }
        let done = self.offset_rings(&mut call.options().offsets, binding);
        let errno = done.err().map_or(0, Errno::raw_os_error);
        call.options().status[option::OFFSETS as usize] = errno.unsigned_abs();
        done
    }

    fn offset_rings(
        &mut self,
        asked: &mut crate::abi::Offsets,
        binding: &Binding,
    ) -> Result<(), Errno> {
        let adapter = self.adapters.get_mut(&binding.adapter).ok_or(Errno::NXIO)?;
        if matches!(adapter.kind, Kind::Watcher { copies: false, .. } | Kind::Card { .. }) {
            return Err(Errno::OPNOTSUPP);
        }
        let region = self.regions.get(adapter.region).ok_or(Errno::INVAL)?;
        let offsets = check(asked, region.geometry.buf_size)?;
        let ranges = binding.choice.ranges().map(Clone::clone).into_iter().enumerate();
        let chosen = ranges.flat_map(|(way, rings)| rings.map(move |ring| (way, ring)));
        let chosen: Vec<(usize, u32)> = chosen.collect();
        // The rings keep the offsets of their first user. Nothing is changed if one refuses.
        let known = |&(way, ring): &(usize, u32)| adapter.offsets[way][ring as usize];
        let too_wide = |known: Offsets| known.bits < offsets.bits || known.max < offsets.max;
        if chosen.iter().filter_map(known).any(too_wide) {
            return Err(Errno::BUSY);
        }
        let specs = adapter.rings.ok_or(Errno::NOMEM)?.specs();
        let shared = matches!(adapter.kind, Kind::Pipe { .. });
        for (way, ring) in chosen {
            let (spec, known) = (specs[way], &mut adapter.offsets[way][ring as usize]);
            let offsets = *known.get_or_insert(offsets);
            let (mask, number) = (offsets.mask(), spec.first + ring);
            region.write_offset_mask(number, mask)?;
            if asked.initial != 0 && adapter.is_sole_user(way, ring) {
                region.write_offsets(number, spec.slots, (mask, asked.initial), shared)?;
            }
            asked.max = offsets.max;
        }
        Ok(())
    }

    /// Writes what the slots of an adapter's rings hold besides frames.
    pub(super) fn write_formats(&self, key: &Key) -> Result<(), Errno> {
        let adapter = self.adapters.get(key).ok_or(Errno::NXIO)?;
        let region = self.regions.get(adapter.region).ok_or(Errno::INVAL)?;
        let Some(rings) = adapter.rings else { return Ok(()) };
        let onward =
            rings.host.map_or_else(Default::default, |host| [(1, host.up), (3, host.down)]);
        for (_, spec) in onward.iter().filter(|(way, _)| adapter.has_offsets(*way)) {
            // Forwarded frames lie where they were received.
            (0..spec.rings).try_for_each(|n| region.write_format(spec.first + n, FORWARDED))?;
        }
        for (way, spec) in rings.specs().into_iter().enumerate() {
            for ring in 0..spec.rings {
                region.write_format(spec.first + ring, adapter.format(way, ring))?;
            }
        }
        Ok(())
    }

    /// Returns true if an adapter is in its switch already.
    pub(super) fn is_attached(&self, key: &Key) -> bool {
        self.adapters.get(key).is_some_and(|adapter| adapter.token.is_some())
    }

    /// The steps by which the switch of an adapter reads what was written by
    /// [`write_formats`](Self::write_formats).
    pub(super) fn have_format_read(&self, key: &Key) -> Vec<Step> {
        let Some(adapter) = self.adapters.get(key) else { return Vec::new() };
        let places = [(&adapter.token, &adapter.place), (&adapter.host_token, &adapter.host_place)];
        let attached = places.into_iter().filter_map(|(token, place)| {
            let place = place.clone().filter(|_| token.is_some())?;
            Some(Step::Tell(Effect::ReadFormat(place)))
        });
        attached.collect()
    }
}

/// Checks the option OFFSETS against the bytes of a buffer.
fn check(asked: &crate::abi::Offsets, buffer: u32) -> Result<Offsets, Errno> {
    let bits = match asked.bits {
        0 => 64,
        bits @ 1..=64 => bits as u8,
        _ => return Err(Errno::INVAL),
    };
    let offsets = Offsets { bits, max: asked.max };
    let good = asked.max <= buffer.into()
        && asked.max & !offsets.mask() == 0
        && asked.initial <= asked.max;
    good.then_some(offsets).ok_or(Errno::INVAL)
}
