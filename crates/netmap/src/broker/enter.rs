//! How adapters enter switches, and leave them. An interface with host rings has a port in two.

use std::collections::VecDeque;

use netring::layout::RingSpec;
use rustix::io::Errno;

use super::adapter::{Adapter, Kind};
use super::effect::{Effect, NewPort, Place, Requester};
use super::end::End;
use super::key::{Key, ifname_of};
use super::task::Step;
use super::{Binding, Broker};

impl Broker {
    /// The steps by which an adapter enters its switches, if it belongs to any and is not attached.
    /// A card is opened.
    pub(super) fn enter(&self, key: &Key) -> Vec<Step> {
        let Some(adapter) = self.adapters.get(key) else { return Vec::new() };
        if let Kind::Card { files: None, .. } = adapter.kind {
            return vec![Step::OpenCard(key.clone())];
        }
        if adapter.token.is_some() || adapter.host_token.is_some() {
            return Vec::new();
        }
        // The card may be opened in a way that leaves the host its place, so the host comes first.
        [End::Host, End::Card].map(|end| Step::Attach(key.clone(), end)).into()
    }

    /// The port of an adapter, or that of its host rings, if it has such a port.
    pub(super) fn new_port(
        &self,
        who: Requester,
        key: &Key,
        end: End,
    ) -> Result<Option<NewPort>, Errno> {
        let adapter = self.adapters.get(key).ok_or(Errno::NXIO)?;
        let Some(rings) = adapter.rings else { return Ok(None) };
        let host = rings.host;
        let (place, tx, own, rx) = match (end, host) {
            (End::Card, host) => {
                (&adapter.place, rings.tx, host.map(|host| host.down).unwrap_or_default(), rings.rx)
            }
            (End::Host, Some(host)) => (&adapter.host_place, host.tx, host.up, host.rx),
            (End::Host, None) => return Ok(None),
        };
        let Some(place) = place.clone() else { return Ok(None) };
        let monitor = match adapter.kind {
            Kind::Monitor { of, .. } => Some(of),
            _ => None,
        };
        // A monitor's send ring exists because programs expect one. Its frames go nowhere.
        let tx = match monitor {
            Some(_) => RingSpec { rings: 0, ..rings.tx },
            None => RingSpec { rings: tx.rings + own.rings, ..tx },
        };
        let region = self.regions.get(adapter.region).ok_or(Errno::INVAL)?;
        let memory = region.file().try_clone_to_owned().map_err(|_| Errno::NFILE)?;
        let interface = adapter.ifname.clone().map(|ifname| (end, ifname));
        let geometry = region.geometry;
        Ok(Some(NewPort { who, place, interface, monitor, memory, geometry, tx, rx }))
    }

    /// Begins to undo a binding. Returns the steps that take its adapter out of its switches, if
    /// this was its last descriptor.
    pub(super) fn leave(&mut self, binding: Binding) -> VecDeque<Step> {
        let Some(adapter) = self.adapters.get_mut(&binding.adapter) else { return VecDeque::new() };
        adapter.give(&binding.choice);
        adapter.bindings = adapter.bindings.saturating_sub(1);
        let last = adapter.bindings == 0;
        let effects = if last { self.leave_switch(&binding.adapter) } else { Vec::new() };
        let left = Step::Left(binding, last);
        effects.into_iter().map(Step::Tell).chain([left]).collect()
    }

    /// What detaches an adapter from its switches, and closes its card.
    fn leave_switch(&mut self, key: &Key) -> Vec<Effect> {
        let Some(adapter) = self.adapters.get_mut(key) else { return Vec::new() };
        let mut effects = Vec::new();
        if let Kind::Card { files, descriptors, .. } = &mut adapter.kind
            && let Some(files) = files.take()
        {
            let region = self.regions.get(adapter.region);
            let lost = region.zip(*descriptors).map(|(region, first)| region.card_losses(first));
            let ifname = ifname_of(key).to_owned();
            effects.push(Effect::CloseCard { ifname, files, lost: lost.unwrap_or_default() });
        }
        let tokens = [adapter.token.take(), adapter.host_token.take()];
        let places = [adapter.place.clone(), adapter.host_place.clone()];
        let left: Vec<Place> = tokens
            .map(|token| token.is_some())
            .into_iter()
            .zip(places)
            .filter_map(|(was_attached, place)| place.filter(|_| was_attached))
            .collect();
        for place in left {
            if self.attached.get(&place) == Some(key) {
                self.attached.remove(&place);
            }
            effects.push(Effect::Detach(place));
        }
        effects
    }

    /// Ends the undoing of a binding, once its adapter left its switches.
    pub(super) fn left(&mut self, binding: &Binding, last: bool) {
        let Some(id) = self.adapters.get(&binding.adapter).map(|adapter| adapter.region) else {
            return;
        };
        if last {
            if self.unwatch(&binding.adapter) {
                self.retire(&binding.adapter);
            } else {
                self.lose_watchers(&binding.adapter);
            }
        }
        if let Some(region) = self.regions.get_mut(id) {
            region.remove_interface(binding.interface);
        }
        let is_pipe = |adapter: &Adapter| matches!(adapter.kind, Kind::Pipe { .. });
        if last && !self.adapters.get(&binding.adapter).is_some_and(is_pipe) {
            self.remove_rings(&binding.adapter);
        }
        if let Some(region) = self.regions.get_mut(id) {
            region.leave();
        }
        self.collect(&binding.adapter);
    }
}
