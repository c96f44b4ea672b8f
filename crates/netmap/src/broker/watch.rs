//! Zero-copy monitors, and copying monitors of ports that are in no switch. Their receive rings
//! are in the region of the port that they monitor, and the processes that sync its rings fill
//! them: see `client::watch`. Here, rings are told which monitor gets their buffers, and which get
//! copies.
//!
//! ```text
//!   ring of the port --> ring of the first monitor --> ring of the next monitor
//! ```

use netring::layout::RingSpec;
use rustix::io::Errno;

use super::Broker;
use super::adapter::{Adapter, Choice, Kind, Rings};
use super::key::Key;
use super::region::Shape;
use super::task::Call;
use crate::abi::{Register, flags};

/// Limit of the pipes and monitors of a port that gets one more monitor: each looks at the others.
const MOST_MONITORS: usize = 64;

impl Broker {
    /// Makes a monitor of an adapter that has descriptors. A copying one has to be in the region of
    /// the adapter, too.
    pub(super) fn make_watcher(
        &mut self,
        call: &Call,
        parent: &Key,
        request: &Register,
    ) -> Result<Key, Errno> {
        let of = self.adapters.get(parent).ok_or(Errno::INVAL)?;
        let mut chosen = Choice { exclusive: false, ..of.choose(request)? };
        let shape = monitor_shape(of, &chosen, request)?;
        let copies = request.flags & flags::ZCOPY_MON == 0;
        if copies && ![0, of.region].contains(&request.mem_id) {
            return Err(Errno::OPNOTSUPP);
        }
        for (flag, rings) in
            [(flags::MONITOR_TX, &mut chosen.tx), (flags::MONITOR_RX, &mut chosen.rx)]
        {
            if request.flags & flag == 0 {
                *rings = 0..0;
            }
        }
        if of.children.len() >= MOST_MONITORS {
            return Err(Errno::NOMEM);
        }
        let kind = Kind::Watcher { parent: parent.clone(), of: chosen, copies, lost: false };
        let (region, key) = (of.region, parent.beside(format!("monitor#{}", call.cookie)));
        self.insert(call.uid, key.clone(), Adapter::new(kind, region, shape, None), None)?;
        Ok(key)
    }

    /// The rings that a new monitor gets: those of an earlier one of the same port, if they fit.
    pub(super) fn retired_rings(&mut self, key: &Key) -> Result<Option<Rings>, Errno> {
        let Some(Adapter { kind: Kind::Watcher { parent, .. }, shape, region, .. }) =
            self.adapters.get(key)
        else {
            return Ok(None);
        };
        let (parent, shape, region) = (parent.clone(), *shape, *region);
        let retired = self.adapters.get_mut(&parent).map(|parent| &mut parent.retired);
        let Some(retired) = retired else { return Ok(None) };
        let Some(at) = retired.iter().position(|(_, of)| *of == shape) else { return Ok(None) };
        let (rings, _) = retired.swap_remove(at);
        let region = self.regions.get(region).ok_or(Errno::INVAL)?;
        let [_, rx, _, host_rx] = rings.specs();
        [rx, host_rx].into_iter().try_for_each(|rx| region.empty(rx))?;
        Ok(Some(rings))
    }

    /// Puts a new monitor behind the last one of each ring that it monitors.
    pub(super) fn watch(&mut self, key: &Key) -> Result<(), Errno> {
        let Some(Adapter { kind: Kind::Watcher { parent, of, copies, .. }, rings, .. }) =
            self.adapters.get(key)
        else {
            return Ok(());
        };
        let (parent, of) = (parent.clone(), of.clone());
        let [_, rx, _, host_rx] = rings.ok_or(Errno::NOMEM)?.specs();
        if *copies {
            return self.add_to_lists(key, &parent, &of, rx);
        }
        for (way, (range, own)) in
            of.ranges().into_iter().zip([rx, rx, host_rx, host_rx]).enumerate()
        {
            for ring in range.clone() {
                let ours = (own.first + ring, own.slots);
                let (mut last, mut place) = (parent.clone(), (way, ring));
                while let Some(next) = self.watcher_of(&last, place) {
                    let Some(owner) = self.owner_of(&parent, next.0) else { break };
                    (last, place) = owner;
                }
                if last != *key {
                    self.set_watcher(&last, place, Some(ours))?;
                }
            }
        }
        Ok(())
    }

    /// Puts a new copying monitor at the end of the list of each ring that it monitors.
    fn add_to_lists(
        &mut self,
        key: &Key,
        parent: &Key,
        of: &Choice,
        own: RingSpec,
    ) -> Result<(), Errno> {
        for (list, range) in [of.tx.clone(), of.rx.clone()].into_iter().enumerate() {
            for ring in range {
                let mut last = parent.clone();
                while let Some(next) = self.copier_of(&last, (list, ring)) {
                    let Some((owner, _)) = self.owner_of(parent, next.0) else { break };
                    last = owner;
                }
                // Each descriptor of a monitor gets here.
                if last != *key {
                    self.set_copier(&last, (list, ring), Some((own.first + ring, own.slots)))?;
                }
            }
        }
        Ok(())
    }

    fn copier_of(&self, name: &Key, (list, ring): (usize, u32)) -> Option<(u32, u32)> {
        self.adapters.get(name)?.copiers[list].get(ring as usize).copied().flatten()
    }

    fn set_copier(
        &mut self,
        name: &Key,
        (list, ring): (usize, u32),
        monitor: Option<(u32, u32)>,
    ) -> Result<(), Errno> {
        let adapter = self.adapters.get_mut(name).ok_or(Errno::NXIO)?;
        let region = self.regions.get(adapter.region).ok_or(Errno::INVAL)?;
        let specs = adapter.rings.ok_or(Errno::NOMEM)?.specs();
        let is_monitor = matches!(adapter.kind, Kind::Watcher { .. });
        let spec = if is_monitor { specs[1] } else { specs[list] };
        let place = adapter.copiers[list].get_mut(ring as usize).ok_or(Errno::INVAL)?;
        *place = monitor;
        region.write_copier(spec.first + ring, list, monitor)
    }

    /// Takes the rings of a monitor out of the list of an adapter.
    fn take_from_lists(&mut self, name: &Key, key: &Key, own: RingSpec) {
        let Some(adapter) = self.adapters.get(name) else { return };
        let ours = |next: &Option<(u32, u32)>| {
            next.is_some_and(|(number, _)| (own.first..own.first + own.rings).contains(&number))
        };
        let lists = adapter.copiers.iter().enumerate();
        let found: Vec<_> = lists
            .flat_map(|(list, rings)| {
                let found = rings.iter().enumerate().filter(|(_, next)| ours(next));
                found.map(move |(ring, _)| (list, ring as u32))
            })
            .collect();
        for place in found {
            // If the file cannot be written, the rings stay as they are.
            let _ = self.set_copier(name, place, self.copier_of(key, place));
        }
    }

    /// Takes a monitor that is about to go out of the chains. Returns true if its rings may still
    /// be filled.
    pub(super) fn unwatch(&mut self, key: &Key) -> bool {
        let Some(Adapter { kind: Kind::Watcher { parent, lost, .. }, rings, .. }) =
            self.adapters.get(key)
        else {
            return false;
        };
        let (parent, lost, rings) = (parent.clone(), *lost, *rings);
        let Some(rings) = rings.filter(|_| !lost) else { return false };
        let before: Vec<_> = self.monitors_of(&parent).chain([parent.clone()]).collect();
        for name in before {
            self.take_from_lists(&name, key, rings.rx);
            let Some(adapter) = self.adapters.get(&name) else { continue };
            let mut found = Vec::new();
            for (way, watchers) in adapter.watchers.iter().enumerate() {
                for (ring, watcher) in watchers.iter().enumerate() {
                    let ours = watcher.and_then(|(number, _)| place_of(&rings, number));
                    found.extend(ours.map(|at| (way, ring as u32, at)));
                }
            }
            for (way, ring, ours) in found {
                let after = self.watcher_of(key, ours);
                // If the file cannot be written, the rings stay as they are.
                let _ = self.set_watcher(&name, (way, ring), after);
            }
        }
        true
    }

    /// Leaves the rings of a zero-copy monitor to the port that it monitors.
    pub(super) fn retire(&mut self, key: &Key) {
        let Some(adapter) = self.adapters.get_mut(key) else { return };
        let Kind::Watcher { parent, .. } = &adapter.kind else { return };
        let (parent, shape) = (parent.clone(), adapter.shape);
        if let (Some(rings), Some(parent)) = (adapter.rings.take(), self.adapters.get_mut(&parent))
        {
            parent.retired.push((rings, shape));
        }
    }

    /// The monitors of an adapter whose rings are in its region.
    fn monitors_of(&self, parent: &Key) -> impl Iterator<Item = Key> {
        let children = self.adapters.get(parent).map(|parent| &parent.children);
        children.into_iter().flatten().cloned()
    }

    /// Tells the monitors of an adapter that its last descriptor was closed.
    pub(super) fn lose_watchers(&mut self, parent: &Key) {
        let mut unlinked = vec![parent.clone()];
        for key in self.monitors_of(parent).collect::<Vec<_>>() {
            let Some(adapter) = self.adapters.get_mut(&key) else { continue };
            let Kind::Watcher { lost, .. } = &mut adapter.kind else { continue };
            if !std::mem::replace(lost, true)
                && let (Some(rings), Some(region)) =
                    (adapter.rings, self.regions.get(adapter.region))
            {
                let [_, rx, _, host_rx] = rings.specs();
                let _ = region.lose_port(rx);
                let _ = region.lose_port(host_rx);
                unlinked.push(key);
            }
        }
        unlinked.iter().for_each(|key| self.unlink(key));
    }

    /// Empties the lists of an adapter's rings: what is lost gives nothing on.
    fn unlink(&mut self, name: &Key) {
        let Some(adapter) = self.adapters.get(name) else { return };
        let [watched, copied] = [&adapter.watchers[..], &adapter.copiers[..]].map(named);
        for place in watched {
            let _ = self.set_watcher(name, place, None);
        }
        for place in copied {
            let _ = self.set_copier(name, place, None);
        }
    }

    fn watcher_of(&self, name: &Key, (way, ring): (usize, u32)) -> Option<(u32, u32)> {
        self.adapters.get(name)?.watchers[way].get(ring as usize).copied().flatten()
    }

    /// The monitor of this adapter that has a receive ring, and the ring's place there.
    fn owner_of(&self, parent: &Key, number: u32) -> Option<(Key, (usize, u32))> {
        self.monitors_of(parent).find_map(|key| {
            let adapter = self.adapters.get(&key)?;
            let Kind::Watcher { .. } = adapter.kind else { return None };
            let place = place_of(&adapter.rings?, number)?;
            Some((key, place))
        })
    }

    fn set_watcher(
        &mut self,
        name: &Key,
        (way, ring): (usize, u32),
        watcher: Option<(u32, u32)>,
    ) -> Result<(), Errno> {
        let adapter = self.adapters.get_mut(name).ok_or(Errno::NXIO)?;
        let region = self.regions.get(adapter.region).ok_or(Errno::INVAL)?;
        let specs = adapter.rings.ok_or(Errno::NOMEM)?.specs();
        let place = adapter.watchers[way].get_mut(ring as usize).ok_or(Errno::INVAL)?;
        *place = watcher;
        region.write_watcher(specs[way].first + ring, watcher)
    }
}

/// The places at which these lists of rings name a monitor.
fn named(lists: &[Vec<Option<(u32, u32)>>]) -> Vec<(usize, u32)> {
    let places = lists.iter().enumerate().flat_map(|(list, rings)| {
        let some = rings.iter().enumerate().filter(|(_, monitor)| monitor.is_some());
        some.map(move |(ring, _)| (list, ring as u32))
    });
    places.collect()
}

/// The place of a receive ring of this number among these rings.
fn place_of(rings: &Rings, number: u32) -> Option<(usize, u32)> {
    let specs = rings.specs();
    [1, 3].into_iter().find_map(|way| {
        let at = number.checked_sub(specs[way].first)?;
        (at < specs[way].rings).then_some((way, at))
    })
}

/// The rings of a monitor of some rings of an adapter.
pub(super) fn monitor_shape(
    of: &Adapter,
    chosen: &Choice,
    request: &Register,
) -> Result<Shape, Errno> {
    let Shape { tx_rings, rx_rings, tx_slots, rx_slots, host: [host_tx, host_rx] } = of.shape;
    let slots = if request.rx_slots == 0 { rx_slots } else { request.rx_slots };
    let shape = Shape::asked((1, tx_slots), (tx_rings.max(rx_rings) as u16, slots));
    match chosen.has_host() {
        false => Ok(shape),
        true if of.has_host() => Ok(Shape { host: [0, host_tx.max(host_rx)], ..shape }),
        true => Err(Errno::INVAL),
    }
}
