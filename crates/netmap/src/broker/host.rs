//! Interfaces of the host that programs open: the port of the interface, and its host rings.

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::adapter::{Adapter, Kind};
use super::effect::{Interface, Place};
use super::end::{CARD_PORT, End};
use super::key::{Key, card_key};
use super::region::Shape;
use super::register::{MOST_EXTRA, shape_of};
use super::task::Call;
use super::{Binding, Broker};
use crate::abi::{Register, flags};
use crate::wire::CARD_BUFFERS;

/// Slots of each ring of a card that programs drive.
const CARD_SLOTS: u32 = 256;

impl Broker {
    /// The port by which programs reach an interface of the host.
    pub(super) fn card_port(
        &mut self,
        call: &Call,
        interface: &Interface,
        request: &Register,
    ) -> Result<Key, Errno> {
        let ifname = &*interface.name;
        let key = card_key(call.uid, ifname);
        if self.adapters.contains_key(&key) {
            return Ok(key);
        }
        if request.flags & (flags::MONITOR_TX | flags::MONITOR_RX) != 0 {
            return Err(Errno::INVAL);
        }
        if interface.is_card {
            return self.driven_card(call, key, request);
        }
        let shape = shape_of(request).with_host([request.host_tx_rings, request.host_rx_rings]);
        let extra = request.extra_bufs.min(MOST_EXTRA);
        let region = self.regions.for_port(call.uid, request.mem_id, || shape.geometry(extra))?;
        let place = |end: End| Some(Place::new(end.switch(ifname), CARD_PORT));
        let mut card = Adapter::new(Kind::Ephemeral, region, shape, place(End::Card));
        (card.ifname, card.host_place) = (Some(ifname.to_owned()), place(End::Host));
        self.insert(call.uid, key.clone(), card, None)?;
        Ok(key)
    }

    /// A card that programs drive themselves. It has one ring in each direction, of as many slots
    /// as cards have descriptors.
    fn driven_card(&mut self, call: &Call, key: Key, request: &Register) -> Result<Key, Errno> {
        let shape = Shape::asked((1, CARD_SLOTS), (1, CARD_SLOTS));
        let extra = request.extra_bufs.min(MOST_EXTRA) + CARD_BUFFERS;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let region = self.regions.for_port(call.uid, request.mem_id, || shape.geometry(extra))?;
        let bytes = self.regions.get(region).map_or(0, |region| region.geometry.buf_size);
        if bytes < card::BUFFER {
            self.regions.drop_unused(region);
            return Err(Errno::INVAL);
        }
        let kind = Kind::Card { wake, files: None, descriptors: None };
        self.insert(call.uid, key.clone(), Adapter::new(kind, region, shape, None), None)?;
        Ok(key)
    }

    /// Writes the number of host rings into a reply. Without a port they are as if there were none.
    pub(super) fn count_host_rings(
        &self,
        binding: &Binding,
        request: &mut Register,
    ) -> Result<(), Errno> {
        let adapter = self.adapters.get(&binding.adapter);
        let host = adapter.filter(|adapter| adapter.has_host());
        let host = host.map_or([0; 2], |adapter| adapter.shape.host.map(|n| n as u16));
        [request.host_tx_rings, request.host_rx_rings] = host;
        let has_rings = !binding.choice.has_host() || host != [0; 2];
        has_rings.then_some(()).ok_or(Errno::INVAL)
    }
}
