//! Interfaces of the host that programs open: the port of the interface, and its host rings.

use std::os::fd::OwnedFd;

use netring::layout::RingSpec;
use rustix::io::Errno;

use super::adapter::HostRings;
use super::{Binding, Broker, CARD_PORT, Call, End, NewPort, Switches};
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
        self.make_vale(call.uid, &End::Card.switch(ifname), CARD_PORT, request)
    }

    /// Writes the number of host rings into a reply. Without a port they are as if there were none.
    pub(super) fn count_host_rings(
        &self,
        binding: &Binding,
        request: &mut Register,
    ) -> Result<(), Errno> {
        let adapter = self.adapters.get(&binding.adapter);
        let host = adapter.filter(|adapter| adapter.host_token.is_some());
        let host = host.map_or([0; 2], |adapter| adapter.shape.host.map(|n| n as u16));
        [request.host_tx_rings, request.host_rx_rings] = host;
        let has_rings = !binding.choice.has_host() || host != [0; 2];
        has_rings.then_some(()).ok_or(Errno::INVAL)
    }

    /// Attaches the host rings of an interface to the host. `None` if there are none, or if the
    /// host cannot have a port: the interface then has none either.
    pub(super) async fn enter_host(
        &self,
        card: NewPort<'_>,
        rings: Option<HostRings>,
    ) -> Option<OwnedFd> {
        let (HostRings { tx, rx, .. }, (_, ifname)) = (rings?, End::of(card.switch)?);
        let switch = &End::Host.switch(ifname);
        let new = NewPort { switch, port: CARD_PORT, tx: with_next(tx), rx, ..card };
        self.switches.attach(new).await.ok().map(|(token, _)| token)
    }

    /// Detaches the host rings of an interface whose port is in `switch`.
    pub(super) async fn leave_host(&self, switch: &str, token: Option<&OwnedFd>) {
        if let (Some(_), Some((_, ifname))) = (token, End::of(switch)) {
            self.switches.detach(&End::Host.switch(ifname), CARD_PORT).await;
        }
    }
}

/// The key of an interface's adapter.
pub(super) fn card_key(ifname: &str) -> String {
    format!("{}:{CARD_PORT}", End::Card.switch(ifname))
}

/// These rings and the one after them.
pub(super) fn with_next(spec: RingSpec) -> RingSpec {
    RingSpec { rings: spec.rings + 1, ..spec }
}
