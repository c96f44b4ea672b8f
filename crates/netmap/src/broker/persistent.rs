//! Persistent ports: `VALE_NEWIF` makes them, `VALE_DELIF` removes them, and they stay when their
//! program ends. Root lists and removes those of all users.

use std::collections::VecDeque;

use rustix::io::Errno;

use super::adapter::{Adapter, Kind};
use super::effect::Effect;
use super::key::Key;
use super::list::Owner;
use super::name::Name;
use super::register::shape_of;
use super::task::{Call, Step, Task};
use super::{Broker, Facts, Held};
use crate::abi::{Register, ValeNewif};
use crate::wire::{Answer, Ask};

/// A persistent port of a user, for root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PersistentPort {
    /// Whose it is.
    pub uid: u32,
    /// Its name.
    pub name: String,
    /// The switches that it is in.
    pub switches: Vec<String>,
    /// The descriptors that are bound to it, and the pipes and monitors that it has.
    pub users: u32,
}

impl Broker {
    /// `VALE_NEWIF`: makes a persistent port.
    pub(super) fn vale_newif(&mut self, call: &mut Call) -> Result<(), Errno> {
        let mut asked: ValeNewif = call.body()?;
        let name = call.name()?.to_owned();
        let Name::Plain(name) = Name::parse(&name)? else { return Err(Errno::INVAL) };
        if Name::is_switched(&name) {
            return Err(Errno::INVAL);
        }
        if self.adapters.contains_key(&Key::new(call.uid, &*name)) || call.interface().is_some() {
            return Err(Errno::EXIST);
        }
        let ValeNewif { tx_slots, rx_slots, tx_rings, rx_rings, mem_id, .. } = asked;
        let request =
            Register { tx_slots, rx_slots, tx_rings, rx_rings, mem_id, ..Register::default() };
        let kind = Kind::Persistent { auto: false };
        let key = self.make_persistent(call.uid, &name, kind, &request)?;
        if let Some(adapter) = self.adapters.get(&key) {
            (asked.tx_slots, asked.rx_slots) = (adapter.shape.tx_slots, adapter.shape.rx_slots);
            asked.tx_rings = adapter.shape.tx_rings as u16;
            asked.rx_rings = adapter.shape.rx_rings as u16;
            asked.mem_id = adapter.region;
        }
        self.persistent.insert(key);
        call.answer(&asked);
        Ok(())
    }

    /// Makes a persistent port, which is in no switch.
    pub(super) fn make_persistent(
        &mut self,
        uid: u32,
        name: &str,
        kind: Kind,
        request: &Register,
    ) -> Result<Key, Errno> {
        let shape = shape_of(request);
        let stays = matches!(kind, Kind::Persistent { auto: false });
        let region = self.regions.for_port(uid, request.mem_id, || shape.geometry(0))?;
        let (key, adapter) = (Key::new(uid, name), Adapter::new(kind, region, shape, None));
        self.insert(uid, key.clone(), adapter, stays.then_some(Held::PersistentPort))?;
        Ok(key)
    }

    /// `VALE_DELIF`: removes a persistent port.
    pub(super) fn vale_delif(&mut self, call: &Call) -> Result<(), Errno> {
        let key = Key::new(call.uid, call.name()?);
        let adapter = self.adapters.get(&key).ok_or(Errno::NXIO)?;
        if !matches!(adapter.kind, Kind::Persistent { auto: false }) {
            return Err(Errno::INVAL);
        }
        if adapter.bindings > 0 || adapter.place.is_some() || !adapter.children.is_empty() {
            return Err(Errno::BUSY);
        }
        self.remove_adapter(&key);
        Ok(())
    }

    /// The persistent ports of all users.
    #[must_use]
    pub fn persistent_ports(&self) -> Vec<PersistentPort> {
        let known = self.persistent.iter().filter_map(|key| Some((key, self.adapters.get(key)?)));
        let ports = known.map(|(key, adapter)| {
            let first = adapter.place.as_ref().map(|place| place.switch.clone());
            PersistentPort {
                uid: key.uid,
                name: key.name.clone(),
                switches: first.into_iter().chain(adapter.second.clone()).collect(),
                users: adapter.bindings + adapter.children.len() as u32,
            }
        });
        ports.collect()
    }

    /// Removes a persistent port of a user for root, from its switches, too.
    ///
    /// # Errors
    /// `ENXIO` if there is none, `EBUSY` while a program has it open.
    pub fn remove_persistent(&mut self, uid: u32, name: &str) -> Result<Task, Errno> {
        let key = Key::new(uid, name);
        let known = self.persistent.contains(&key).then(|| self.adapters.get(&key)).flatten();
        let adapter = known.ok_or(Errno::NXIO)?;
        if adapter.bindings > 0 || !adapter.children.is_empty() {
            return Err(Errno::BUSY);
        }
        let answer = Answer::to(&Ask::new(0, 0));
        let (cookie, pid, memory) = (0, 0, None);
        let mut task =
            Task::new(Call { cookie, uid, pid, facts: Facts::default(), answer, memory });
        if let (Some(first), Some(second)) = (&adapter.place, adapter.second.clone()) {
            self.list.remove(&second, name, Owner::User(uid));
            let (switches, port) = ([first.switch.clone(), second], name.to_owned());
            task.steps = VecDeque::from([Step::Tell(Effect::Part { switches, port })]);
        }
        self.remove_adapter(&key);
        Ok(task)
    }
}
