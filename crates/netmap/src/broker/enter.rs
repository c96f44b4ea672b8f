//! How adapters enter switches, and leave them. An interface with host rings has a port in two.

use std::os::fd::OwnedFd;

use netring::layout::RingSpec;
use rustix::io::Errno;

use super::adapter::{Adapter, Kind};
use super::host::CARD_KEY;
use super::{Broker, End, NewPort, Requester, Switches};

impl<S: Switches> Broker<S> {
    /// Attaches an adapter to its switches, if it belongs to any and is not attached. A card is
    /// opened.
    pub(super) async fn enter_switch(&mut self, who: Requester, key: &str) -> Result<(), Errno> {
        self.open_card(who, key).await?;
        let Some(adapter) = self.adapters.get(key) else { return Err(Errno::NXIO) };
        if adapter.token.is_some() || adapter.host_token.is_some() {
            return Ok(());
        }
        let [port, host] = self.new_ports(who, adapter)?;
        // The card may be opened in a way that leaves the host its place, so the host comes first.
        let host = match self.attach(host).await {
            // If the host cannot have a port, the interface has no host rings.
            Err(_) if adapter.ifname.is_some() => None,
            host => host?,
        };
        let attached = self.attach(port).await;
        if let (Err(_), Some((_, port)), Some((switch, _))) =
            (&attached, &host, &adapter.host_place)
        {
            self.switches.detach(switch, port).await;
        }
        let attached = attached?;
        let number = match (&attached, &adapter.place) {
            (Some((_, name)), Some((switch, _))) => {
                self.switches.number_if_trusted(switch, name).await
            }
            _ => None,
        };
        if let Some(adapter) = self.adapters.get_mut(key) {
            adapter.number_if_trusted = number;
            adapter.token = named(attached, &mut adapter.place);
            adapter.host_token = named(host, &mut adapter.host_place);
        }
        Ok(())
    }

    async fn attach(&self, port: Option<NewPort<'_>>) -> Result<Option<(OwnedFd, String)>, Errno> {
        match port {
            Some(port) => self.switches.attach(port).await.map(Some),
            None => Ok(None),
        }
    }

    /// The ports of an adapter: its own, and that of its host rings.
    fn new_ports<'a>(
        &'a self,
        who: Requester,
        adapter: &'a Adapter,
    ) -> Result<[Option<NewPort<'a>>; 2], Errno> {
        let Some(rings) = adapter.rings else { return Ok([None, None]) };
        let region = self.regions.get(&adapter.region).ok_or(Errno::INVAL)?;
        let (memory, geometry) = (region.file(), region.geometry);
        let monitor = match adapter.kind {
            Kind::Monitor { of, .. } => Some(of),
            _ => None,
        };
        // A monitor's send ring exists because programs expect one. Its frames go nowhere.
        let sent = |tx: RingSpec, own: RingSpec| match monitor {
            Some(_) => RingSpec { rings: 0, ..rings.tx },
            None => RingSpec { rings: tx.rings + own.rings, ..tx },
        };
        let new = |end: End, place: &'a Option<(String, String)>, tx, rx| {
            let (switch, port) = place.as_ref()?;
            let interface = adapter.ifname.as_deref().map(|ifname| (end, ifname));
            Some(NewPort { who, switch, interface, port, monitor, memory, geometry, tx, rx })
        };
        let down = rings.host.map(|host| host.down).unwrap_or_default();
        let port = new(End::Card, &adapter.place, sent(rings.tx, down), rings.rx);
        let host = rings
            .host
            .and_then(|host| new(End::Host, &adapter.host_place, sent(host.tx, host.up), host.rx));
        Ok([port, host])
    }

    /// Detaches an adapter from its switches.
    pub(super) async fn leave_switch(&mut self, key: &str) {
        let Some(adapter) = self.adapters.get_mut(key) else { return };
        if let Kind::Card { files, descriptors, .. } = &mut adapter.kind
            && let Some(files) = files.take()
        {
            let region = self.regions.get(&adapter.region);
            let lost = region.zip(*descriptors).map(|(region, first)| region.card_losses(first));
            let ifname = key.trim_start_matches(CARD_KEY);
            self.switches.close_card(ifname, files, lost.unwrap_or_default()).await;
        }
        let tokens = [adapter.token.take(), adapter.host_token.take()];
        let places = [adapter.place.clone(), adapter.host_place.clone()];
        let left = tokens.map(|token| token.is_some()).into_iter().zip(places);
        for (switch, port) in
            left.filter_map(|(was_attached, place)| place.filter(|_| was_attached))
        {
            self.switches.detach(&switch, &port).await;
        }
    }
}

/// Notes the name that a port has got; returns its token.
fn named(
    attached: Option<(OwnedFd, String)>,
    place: &mut Option<(String, String)>,
) -> Option<OwnedFd> {
    let (token, name) = attached?;
    if let Some((_, port)) = place {
        *port = name;
    }
    Some(token)
}
