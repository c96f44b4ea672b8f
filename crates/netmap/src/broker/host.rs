//! Interfaces of the host that programs open: the port of the interface, and its host rings.

use rustix::io::Errno;

use super::adapter::{Adapter, Kind};
use super::register::{MOST_EXTRA, shape_of};
use super::{Binding, Broker, CARD_PORT, Call, End, Switches};
use crate::abi::{Register, flags};

impl<S: Switches> Broker<S> {
    /// The port by which programs reach an interface of the host.
    pub(super) fn card_port(
        &mut self,
        call: &Call<'_>,
        ifname: &str,
        request: &Register,
    ) -> Result<String, Errno> {
        let key = card_key(ifname);
        if self.adapters.contains_key(&key) {
            return Ok(key);
        }
        if request.flags & (flags::MONITOR_TX | flags::MONITOR_RX) != 0 {
            return Err(Errno::INVAL);
        }
        let shape = shape_of(request).with_host([request.host_tx_rings, request.host_rx_rings]);
        let extra = request.extra_bufs.min(MOST_EXTRA);
        let region = self.region_for(call.uid, request.mem_id, || shape.geometry(extra))?;
        let place = |end: End| Some((end.switch(ifname), CARD_PORT.to_owned()));
        let mut card = Adapter::new(Kind::Ephemeral, region, shape, place(End::Card));
        (card.ifname, card.host_place) = (Some(ifname.to_owned()), place(End::Host));
        self.adapters.insert(key.clone(), card);
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

/// The key of an interface's adapter. No other adapter has its form.
pub(super) fn card_key(ifname: &str) -> String {
    format!("netmap:{ifname}")
}
