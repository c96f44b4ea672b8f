//! Requests about ports and switches that do not concern the calling descriptor's binding.

use rustix::io::Errno;

use super::adapter::Kind;
use super::host::card_key;
use super::name::Name;
use super::region::{GLOBAL, Shape, global, pools};
use super::{Broker, Call, Switches};
use crate::abi::{
    PoolsInfo, PortHeader, PortInfo, Register, ValeAttach, ValeDetach, ValeList, ValeNewif, mode,
    name_of,
};

impl<S: Switches> Broker<S> {
    /// `PORT_INFO_GET`: describes an existing port, or one as it would be made.
    pub(super) fn port_info(&self, mut call: Call<'_>) -> Result<(), Errno> {
        let mut info: PortInfo = call.body()?;
        let (pools, shape) = self.describe_port(&call, &info)?;
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
    pub(super) fn pools_info(&self, mut call: Call<'_>) -> Result<(), Errno> {
        let asked: PoolsInfo = call.body()?;
        if call.name()?.is_empty() {
            return Err(Errno::INVAL);
        }
        let info = PortInfo { mem_id: asked.mem_id, ..PortInfo::default() };
        let (pools, _) = self.describe_port(&call, &info)?;
        call.answer(&pools);
        Ok(())
    }

    /// Describes the region and the rings of a port, or only the region if no port is named.
    fn describe_port(
        &self,
        call: &Call<'_>,
        asked: &PortInfo,
    ) -> Result<(PoolsInfo, Option<Shape>), Errno> {
        let name = call.name()?;
        // No number means the region that NICs share.
        let of_region = |id: u16| match self.regions.get(&if id == 0 { GLOBAL } else { id }) {
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
        let parsed = Name::parse(&base)?;
        let interface = match &parsed {
            Name::Plain(plain) => self.switches.interface(call.uid, plain),
            _ => None,
        };
        let of_interface = interface.as_deref().map(|interface| {
            // The key of an interface's pipes begins with the interface's.
            let key = card_key(interface);
            let keys = [key.clone() + name.strip_prefix(&base).unwrap_or(""), key];
            keys.into_iter().find(|key| self.adapters.contains_key(key))
        });
        let found = match parsed {
            _ if of_interface.is_some() => of_interface.flatten(),
            _ if self.adapters.contains_key(name) => Some(name.to_owned()),
            Name::Vale { switch, port } => self.find_vale(&switch, &port)?,
            Name::Plain(name) if self.adapters.contains_key(&name) => Some(name),
            Name::Plain(_) if is_pipe => None,
            _ => return Err(Errno::NXIO),
        };
        if let Some(adapter) = found.and_then(|key| self.adapters.get(&key)) {
            return Ok((of_region(adapter.region)?, Some(adapter.shape)));
        }
        let PortInfo { tx_rings, rx_rings, tx_slots, rx_slots, .. } = *asked;
        let mut shape = Shape::asked((tx_rings, tx_slots), (rx_rings, rx_slots));
        if interface.is_some_and(|interface| !self.switches.is_card(&interface)) {
            shape = shape.with_host([asked.host_tx_rings, asked.host_rx_rings]);
        }
        let pools = match asked.mem_id {
            0 => pools(&shape.geometry(0), self.free_region_id().ok_or(Errno::NOMEM)?),
            id => of_region(id)?,
        };
        Ok((pools, Some(shape)))
    }

    /// `VALE_NEWIF`: makes a persistent port.
    pub(super) fn vale_newif(&mut self, mut call: Call<'_>) -> Result<(), Errno> {
        let mut asked: ValeNewif = call.body()?;
        let name = call.name()?.to_owned();
        let Name::Plain(name) = Name::parse(&name)? else { return Err(Errno::INVAL) };
        if Name::is_switched(&name) {
            return Err(Errno::INVAL);
        }
        if self.adapters.contains_key(&name) || self.switches.interface(call.uid, &name).is_some() {
            return Err(Errno::EXIST);
        }
        let ValeNewif { tx_slots, rx_slots, tx_rings, rx_rings, mem_id, .. } = asked;
        let request =
            Register { tx_slots, rx_slots, tx_rings, rx_rings, mem_id, ..Register::default() };
        self.make_persistent(call.uid, &name, Kind::Persistent { auto: false }, &request)?;
        if let Some(adapter) = self.adapters.get(&name) {
            (asked.tx_slots, asked.rx_slots) = (adapter.shape.tx_slots, adapter.shape.rx_slots);
            asked.tx_rings = adapter.shape.tx_rings as u16;
            asked.rx_rings = adapter.shape.rx_rings as u16;
            asked.mem_id = adapter.region;
        }
        call.answer(&asked);
        Ok(())
    }

    /// `VALE_DELIF`: removes a persistent port.
    pub(super) fn vale_delif(&mut self, call: &Call<'_>) -> Result<(), Errno> {
        let name = call.name()?;
        let adapter = self.adapters.get(name).ok_or(Errno::NXIO)?;
        if !matches!(adapter.kind, Kind::Persistent { auto: false }) {
            return Err(Errno::INVAL);
        }
        self.check_owner(call, name)?;
        if adapter.bindings > 0 || adapter.place.is_some() || self.has_children(name) {
            return Err(Errno::BUSY);
        }
        self.remove_adapter(name);
        Ok(())
    }

    /// `VALE_ATTACH`: attaches a persistent port, or an interface of the host, to a switch.
    pub(super) async fn vale_attach(&mut self, mut call: Call<'_>) -> Result<(), Errno> {
        let mut asked: ValeAttach = call.body()?;
        let mode = asked.register.mode;
        if !matches!(mode, mode::ALL_NIC | mode::NIC_SW) || asked.register.ringid != 0 {
            return Err(Errno::INVAL);
        }
        let Name::Vale { switch, port } = Name::parse(call.name()?)? else {
            return Err(Errno::INVAL);
        };
        if self.adapters.contains_key(&format!("{switch}:{port}")) {
            return Err(Errno::BUSY);
        }
        // The interface is checked first, as in `REGISTER`.
        if self.switches.interface(call.uid, &port).is_some() {
            let (who, host) = (call.who(), mode == mode::NIC_SW);
            self.switches.plug(who, &switch, &port, host).await?;
            asked.port_index = self.list.add(&switch, &port);
            if host {
                self.list.add(&switch, &host_of(&port));
            }
            call.answer(&asked);
            return Ok(());
        }
        let adapter = self.adapters.get(&port).ok_or(Errno::INVAL)?;
        if !matches!(adapter.kind, Kind::Persistent { .. }) || mode == mode::NIC_SW {
            return Err(Errno::INVAL);
        }
        if adapter.is_at(&switch, &port) || adapter.second.is_some() || adapter.bindings > 0 {
            return Err(Errno::BUSY);
        }
        let first = adapter.place.clone();
        self.check_owner(&call, &port)?;
        if let Some((first, _)) = &first {
            self.switches.join(call.who(), [first, &switch], &port).await?;
        }
        asked.port_index = self.list.add(&switch, &port);
        if let Some(adapter) = self.adapters.get_mut(&port) {
            match first {
                None => adapter.place = Some((switch, port)),
                Some(_) => adapter.second = Some(switch),
            }
        }
        call.answer(&asked);
        Ok(())
    }

    /// `VALE_DETACH`: detaches a persistent port, or an interface of the host, from its switch.
    pub(super) async fn vale_detach(&mut self, mut call: Call<'_>) -> Result<(), Errno> {
        let Name::Vale { switch, port } = Name::parse(call.name()?)? else {
            return Err(Errno::INVAL);
        };
        let Some(adapter) = self.adapters.get_mut(&port) else {
            if self.adapters.contains_key(&format!("{switch}:{port}")) {
                return Err(Errno::INVAL);
            }
            if self.is_polled(&switch, &port) {
                return Err(Errno::BUSY);
            }
            self.switches.unplug(call.who(), &switch, &port).await?;
            self.list.remove(&switch, &host_of(&port));
            let port_index = self.list.remove(&switch, &port).unwrap_or(super::list::NO_PORT);
            call.answer(&ValeDetach { port_index, pad: 0 });
            return Ok(());
        };
        if !adapter.is_at(&switch, &port) {
            return Err(Errno::NXIO);
        }
        let is_second = adapter.second.as_ref() == Some(&switch);
        if adapter.bindings > 0 || adapter.second.is_some() && !is_second {
            return Err(Errno::BUSY);
        }
        self.check_owner(&call, &port)?;
        let adapter = self.adapters.get_mut(&port).ok_or(Errno::NXIO)?;
        match (adapter.second.take(), &adapter.place) {
            (Some(second), Some((first, _))) => {
                self.switches.part([first, &second], &port).await;
            }
            _ => adapter.place = None,
        }
        let port_index = self.list.remove(&switch, &port).unwrap_or(super::list::NO_PORT);
        call.answer(&ValeDetach { port_index, pad: 0 });
        Ok(())
    }

    /// `VALE_LIST`: returns the numbers of a port, or the port of given numbers.
    pub(super) async fn vale_list(&mut self, mut call: Call<'_>) -> Result<(), Errno> {
        let mut asked: ValeList = call.body()?;
        self.list_plugged().await;
        let name = call.name()?.to_owned();
        if name.is_empty() {
            let next = self.list.next(asked.bridge, asked.port).ok_or(Errno::NOENT)?;
            let (bridge, port, name) = next;
            (asked.bridge, asked.port) = (bridge, port);
            *call.name = name_of(&name);
        } else {
            if !Name::is_switched(&name) {
                return Err(Errno::INVAL);
            }
            let (switch, port) = name.split_once(':').unwrap_or((&name, ""));
            (asked.bridge, asked.port) = self.list.find(switch, port)?;
        }
        call.answer(&asked);
        Ok(())
    }

    /// Brings the interfaces in the list up to date: they come and go by other ways, too.
    async fn list_plugged(&mut self) {
        let mut plugged = self.switches.plugged().await;
        plugged.retain(|(switch, _)| Name::is_switched(switch));
        for (switch, port) in &plugged {
            self.list.add(switch, port);
        }
        let is_adapter = |switch: &str, port: &str| {
            self.adapters.values().any(|adapter| adapter.is_at(switch, port))
        };
        let is_plugged =
            |s: &str, p: &str| plugged.iter().any(|(switch, port)| s == switch && p == port);
        let is_there =
            |switch: &str, port: &str| is_plugged(switch, port) || is_adapter(switch, port);
        self.list.retain(is_there);
    }

    /// `PORT_HDR_SET`: sets the length of the virtio-net header that comes before each frame.
    pub(super) async fn port_header_set(&mut self, call: &Call<'_>) -> Result<(), Errno> {
        let PortHeader { len, .. } = call.body()?;
        let header = match len {
            0 | 10 | 12 => len as u8,
            _ => return Err(Errno::INVAL),
        };
        let key = self.find_switched(call)?;
        self.check_owner(call, &key)?;
        let adapter = self.adapters.get_mut(&key).ok_or(Errno::NXIO)?;
        adapter.header = header;
        self.write_formats(&key)?;
        self.have_format_read(&key).await;
        Ok(())
    }

    /// `PORT_HDR_GET`.
    pub(super) fn port_header_get(&self, mut call: Call<'_>) -> Result<(), Errno> {
        let name = call.name()?;
        let base = name.split(['{', '}']).next().unwrap_or(name);
        let key = match self.switches.interface(call.uid, base) {
            Some(interface) => card_key(&interface) + name.strip_prefix(base).unwrap_or(""),
            None if self.adapters.contains_key(name) => name.to_owned(),
            None => self.find_switched(&call)?,
        };
        // An interface that is not open has no header.
        let len = self.adapters.get(&key).map_or(0, |adapter| u32::from(adapter.header));
        call.answer(&PortHeader { len, pad: 0 });
        Ok(())
    }

    /// Returns the existing port of a switch that the request names.
    fn find_switched(&self, call: &Call<'_>) -> Result<String, Errno> {
        let Name::Vale { switch, port } = Name::parse(call.name()?)? else {
            return Err(Errno::NXIO);
        };
        self.find_vale(&switch, &port)?.ok_or(Errno::NXIO)
    }

    fn check_owner(&self, call: &Call<'_>, name: &str) -> Result<(), Errno> {
        let adapter = self.adapters.get(name).ok_or(Errno::NXIO)?;
        let owner = self.regions.get(&adapter.region).map(|region| region.uid);
        let may = call.uid == 0 || owner == Some(call.uid);
        may.then_some(()).ok_or(Errno::ACCESS)
    }
}

/// The name that lists show for the host behind an attached interface.
#[must_use]
pub fn host_of(ifname: &str) -> String {
    format!("{ifname}^")
}
