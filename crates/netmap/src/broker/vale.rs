//! Requests about ports and switches that do not concern the calling descriptor's binding.

use std::collections::BTreeSet;

use rustix::io::Errno;

use super::Broker;
use super::adapter::Kind;
use super::effect::{Effect, Place};
use super::key::{Key, card_key};
use super::list::{NO_PORT, Owner};
use super::name::Name;
use super::region::{GLOBAL, Shape, global, pools};
use super::task::{Call, Step, Task, Then};
use crate::abi::{
    PoolsInfo, PortHeader, PortInfo, ValeAttach, ValeDetach, ValeList, mode, name_of,
};

impl Broker {
    /// `PORT_INFO_GET`: describes an existing port, or one as it would be made.
    pub(super) fn port_info(&self, call: &mut Call) -> Result<(), Errno> {
        let mut info: PortInfo = call.body()?;
        let (pools, shape) = self.describe_port(call, &info)?;
        (info.memsize, info.mem_id) = (pools.memsize, pools.mem_id);
        if let Some(shape) = shape {
            (info.tx_rings, info.rx_rings) = (shape.tx_rings as u16, shape.rx_rings as u16);
            (info.tx_slots, info.rx_slots) = (shape.tx_slots, shape.rx_slots);
            [info.host_tx_rings, info.host_rx_rings] = shape.host.map(|rings| rings as u16);
        }
        call.answer(&info);
        Ok(())
    }

    /// `POOLS_INFO_GET`.
    pub(super) fn pools_info(&self, call: &mut Call) -> Result<(), Errno> {
        let asked: PoolsInfo = call.body()?;
        if call.name()?.is_empty() {
            return Err(Errno::INVAL);
        }
        let info = PortInfo { mem_id: asked.mem_id, ..PortInfo::default() };
        let (pools, _) = self.describe_port(call, &info)?;
        call.answer(&pools);
        Ok(())
    }

    /// Describes the region and the rings of a port, or only the region if no port is named.
    fn describe_port(
        &self,
        call: &Call,
        asked: &PortInfo,
    ) -> Result<(PoolsInfo, Option<Shape>), Errno> {
        let name = call.name()?;
        // No number means the region that NICs share.
        let of_region = |id: u16| match self.regions.get(if id == 0 { GLOBAL } else { id }) {
            Some(region) => Ok(region.pools()),
            None if id == GLOBAL || id == 0 => Ok(pools(&global(), GLOBAL)),
            None => Err(Errno::INVAL),
        };
        if name.is_empty() {
            return Ok((of_region(asked.mem_id)?, None));
        }
        let (base, is_pipe) = match Name::parse(name)? {
            Name::Pipe { base, .. } => (base, true),
            _ => (name.to_owned(), false),
        };
        let own = |name: &str| Key::new(call.uid, name);
        let parsed = Name::parse(&base)?;
        let interface = call.interface().filter(|_| matches!(parsed, Name::Plain(_)));
        let of_interface = interface.map(|interface| {
            // The key of an interface's pipes begins with the interface's.
            let key = card_key(call.uid, &interface.name);
            let pipe = key.beside(key.name.clone() + name.strip_prefix(&base).unwrap_or(""));
            [pipe, key].into_iter().find(|key| self.adapters.contains_key(key))
        });
        let found = match parsed {
            _ if of_interface.is_some() => of_interface.flatten(),
            _ if self.adapters.contains_key(&own(name)) => Some(own(name)),
            Name::Vale { switch, port } => self.find_vale(call.uid, &switch, &port)?,
            Name::Plain(name) if self.adapters.contains_key(&own(&name)) => Some(own(&name)),
            Name::Plain(_) if is_pipe => None,
            _ => return Err(Errno::NXIO),
        };
        if let Some(adapter) = found.and_then(|key| self.adapters.get(&key)) {
            return Ok((of_region(adapter.region)?, Some(adapter.shape)));
        }
        let PortInfo { tx_rings, rx_rings, tx_slots, rx_slots, .. } = *asked;
        let mut shape = Shape::asked((tx_rings, tx_slots), (rx_rings, rx_slots));
        if interface.is_some_and(|interface| !interface.is_card) {
            shape = shape.with_host([asked.host_tx_rings, asked.host_rx_rings]);
        }
        let pools = match asked.mem_id {
            0 => pools(&shape.geometry(0), self.regions.free_id().ok_or(Errno::NOMEM)?),
            id => of_region(id)?,
        };
        Ok((pools, Some(shape)))
    }

    /// `VALE_ATTACH`: attaches a persistent port, or an interface of the host, to a switch.
    pub(super) fn vale_attach(&mut self, task: &mut Task) -> Result<(), Errno> {
        let call = &task.call;
        let asked: ValeAttach = call.body()?;
        let mode = asked.register.mode;
        if !matches!(mode, mode::ALL_NIC | mode::NIC_SW) || asked.register.ringid != 0 {
            return Err(Errno::INVAL);
        }
        let Name::Vale { switch, port } = Name::parse(call.name()?)? else {
            return Err(Errno::INVAL);
        };
        if self.adapters.contains_key(&Key::new(call.uid, format!("{switch}:{port}"))) {
            return Err(Errno::BUSY);
        }
        let who = call.who();
        // The interface is checked first, as in `REGISTER`.
        if call.interface().is_some() {
            let (place, host) = (Place::new(switch, port), mode == mode::NIC_SW);
            let effect = Effect::Plug { who, place: place.clone(), host };
            task.steps.push_back(Step::Ask(effect, Then::Plugged(asked, place, host)));
            return Ok(());
        }
        let key = Key::new(call.uid, port.clone());
        let adapter = self.adapters.get(&key).ok_or(Errno::INVAL)?;
        if !matches!(adapter.kind, Kind::Persistent { .. }) || mode == mode::NIC_SW {
            return Err(Errno::INVAL);
        }
        if adapter.is_at(&switch, &port) || adapter.second.is_some() || adapter.bindings > 0 {
            return Err(Errno::BUSY);
        }
        match &adapter.place {
            Some(first) => {
                let switches = [first.switch.clone(), switch.clone()];
                let effect = Effect::Join { who, switches, port };
                task.steps.push_back(Step::Ask(effect, Then::Joined(asked, key, switch)));
            }
            None => self.note_attached(task, asked, &key, switch),
        }
        Ok(())
    }

    /// Notes that a persistent port is in a switch, its first or its second, and answers.
    pub(super) fn note_attached(
        &mut self,
        task: &mut Task,
        mut asked: ValeAttach,
        key: &Key,
        switch: String,
    ) {
        asked.port_index = self.list.add(&switch, &key.name, Owner::User(key.uid));
        task.call.answer(&asked);
        let Some(adapter) = self.adapters.get_mut(key) else { return };
        match adapter.place {
            None => adapter.place = Some(Place::new(switch, &*key.name)),
            Some(_) => adapter.second = Some(switch),
        }
    }

    /// `VALE_DETACH`: detaches a persistent port, or an interface of the host, from its switch.
    pub(super) fn vale_detach(&mut self, task: &mut Task) -> Result<(), Errno> {
        let Name::Vale { switch, port } = Name::parse(task.call.name()?)? else {
            return Err(Errno::INVAL);
        };
        let key = Key::new(task.call.uid, &*port);
        let Some(adapter) = self.adapters.get_mut(&key) else {
            if self.adapters.contains_key(&key.beside(format!("{switch}:{port}"))) {
                return Err(Errno::INVAL);
            }
            let place = Place::new(switch, port);
            if self.is_polled(&place) {
                return Err(Errno::BUSY);
            }
            let effect = Effect::Unplug { who: task.call.who(), place: place.clone() };
            task.steps.push_back(Step::Ask(effect, Then::Unplugged(place)));
            return Ok(());
        };
        if !adapter.is_at(&switch, &port) {
            return Err(Errno::NXIO);
        }
        let is_second = adapter.second.as_ref() == Some(&switch);
        if adapter.bindings > 0 || adapter.second.is_some() && !is_second {
            return Err(Errno::BUSY);
        }
        match (adapter.second.take(), &adapter.place) {
            (Some(second), Some(first)) => {
                let switches = [first.switch.clone(), second];
                let effect = Effect::Part { switches, port: port.clone() };
                task.steps.push_back(Step::Tell(effect));
            }
            _ => adapter.place = None,
        }
        let number = self.list.remove(&switch, &port, Owner::User(key.uid));
        task.call.answer(&ValeDetach { port_index: number.unwrap_or(NO_PORT), pad: 0 });
        Ok(())
    }

    /// `VALE_LIST`: returns the numbers of a port, or the port of given numbers. Users see their
    /// own ports, and root's.
    pub(super) fn vale_list(&self, call: &mut Call) -> Result<(), Errno> {
        let mut asked: ValeList = call.body()?;
        let name = call.name()?.to_owned();
        if name.is_empty() {
            let next = self.list.next(call.uid, asked.bridge, asked.port).ok_or(Errno::NOENT)?;
            let (bridge, port, name) = next;
            (asked.bridge, asked.port) = (bridge, port);
            call.answer.name = name_of(&name);
        } else {
            if !Name::is_switched(&name) {
                return Err(Errno::INVAL);
            }
            let (switch, port) = name.split_once(':').unwrap_or((&name, ""));
            (asked.bridge, asked.port) = self.list.find(call.uid, switch, port)?;
        }
        call.answer(&asked);
        Ok(())
    }

    /// Brings the interfaces in switches, and the hosts behind them, up to date: they come and go
    /// by other ways than requests, too.
    pub fn set_plugged(&mut self, plugged: impl IntoIterator<Item = Place>) {
        let plugged: BTreeSet<Place> = plugged.into_iter().collect();
        for Place { switch, port } in self.plugged.difference(&plugged) {
            self.list.remove(switch, port, Owner::Host);
        }
        let listed = plugged.iter().filter(|place| Name::is_switched(&place.switch));
        for Place { switch, port } in listed {
            self.list.add(switch, port, Owner::Host);
        }
        self.plugged = plugged;
    }

    /// `PORT_HDR_SET`: sets the length of the virtio-net header that comes before each frame.
    pub(super) fn port_header_set(&mut self, task: &mut Task) -> Result<(), Errno> {
        let PortHeader { len, .. } = task.call.body()?;
        let header = match len {
            0 | 10 | 12 => len as u8,
            _ => return Err(Errno::INVAL),
        };
        let key = self.find_switched(&task.call)?;
        let adapter = self.adapters.get_mut(&key).ok_or(Errno::NXIO)?;
        adapter.header = header;
        self.write_formats(&key)?;
        task.steps.extend(self.have_format_read(&key));
        Ok(())
    }

    /// `PORT_HDR_GET`.
    pub(super) fn port_header_get(&self, call: &mut Call) -> Result<(), Errno> {
        let name = call.name()?;
        let base = name.split(['{', '}']).next().unwrap_or(name);
        let own = Key::new(call.uid, name);
        let key = match call.interface() {
            Some(interface) => {
                let key = card_key(call.uid, &interface.name);
                key.beside(key.name.clone() + name.strip_prefix(base).unwrap_or(""))
            }
            None if self.adapters.contains_key(&own) => own,
            None => self.find_switched(call)?,
        };
        // An interface that is not open has no header.
        let len = self.adapters.get(&key).map_or(0, |adapter| u32::from(adapter.header));
        call.answer(&PortHeader { len, pad: 0 });
        Ok(())
    }

    /// Returns the user's existing port of a switch that the request names.
    fn find_switched(&self, call: &Call) -> Result<Key, Errno> {
        let Name::Vale { switch, port } = Name::parse(call.name()?)? else {
            return Err(Errno::NXIO);
        };
        self.find_vale(call.uid, &switch, &port)?.ok_or(Errno::NXIO)
    }
}
