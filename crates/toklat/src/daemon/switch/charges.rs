//! Charges for a switch and its ports, and the users that pay them.

use std::sync::Arc;

use dataplane::config::{PortId, SwitchConfig};
use dataplane::control::Command;
use dataplane::state;

use super::super::quota::{Charge, File, Item, Ledger};
use super::{Access, Port, Switch};
use crate::api::ApiError;

/// The charges for a port, on its user's account.
#[derive(Debug, Default)]
pub(super) struct Charges {
    port: Option<Charge>,
    memory: Option<Charge>,
    links: Option<Charge>,
}

impl Charges {
    /// Takes the charges of a new client. An old charge stays if there is no new one.
    pub(super) fn take(&mut self, port: Option<Charge>, memory: Option<Charge>) {
        if port.is_some() {
            self.port = port;
        }
        self.memory = memory;
    }

    /// Takes the charge of the port's links in place of an earlier one.
    pub(super) fn take_links(&mut self, links: Option<Charge>) {
        self.links = links;
    }

    fn is_of(&self, uid: u32) -> bool {
        self.port.as_ref().is_some_and(|charge| charge.uid() == uid)
    }
}

/// The state memory of a switch, as its user is charged for it. Only the state of a trusted switch
/// is charged, because its processes can write it: they could fill all of it.
#[derive(Debug)]
pub struct StateMemory<'a> {
    switch: &'a str,
    ports: u16,
    bytes: u64,
    uid: u32,
}

impl<'a> StateMemory<'a> {
    /// The memory that these settings need.
    #[must_use]
    pub fn of(switch: &'a str, config: &SwitchConfig, access: Access) -> Self {
        let bytes = if config.trusted { state::file_size(config) as u64 } else { 0 };
        Self { switch, ports: config.max_ports, bytes, uid: access.trusted_user() }
    }

    fn item(&self, bytes: u64) -> Item {
        Item::State { switch: self.switch.to_owned(), ports: self.ports, bytes }
    }

    /// Charges the user for this memory, or for what it has more than the one that it replaces, if
    /// the user's limits allow that.
    ///
    /// # Errors
    /// They do not.
    pub fn reserve(
        &self,
        instead_of: Option<&StateMemory<'_>>,
        ledger: &Arc<Ledger>,
    ) -> Result<Option<Charge>, ApiError> {
        let more = self.bytes.saturating_sub(instead_of.map_or(0, |old| old.bytes));
        (more > 0).then(|| ledger.charge(self.uid, self.item(more))).transpose()
    }

    /// Charges the user without checking limits: for what exists already, or has been reserved.
    pub(super) fn count(&self, ledger: &Arc<Ledger>) -> Option<Charge> {
        (self.bytes > 0).then(|| ledger.count(self.uid, self.item(self.bytes)))
    }
}

impl Switch {
    /// The state memory that the switch has.
    pub(super) fn state_memory(&self) -> StateMemory<'_> {
        StateMemory::of(&self.name, &self.config, self.access)
    }

    /// The item that a user is charged for a port; `None` if it is charged already.
    #[must_use]
    pub fn item_for(&self, port: Option<&str>, uid: u32) -> Option<Item> {
        let known = port.and_then(|name| self.port(name).ok());
        match known {
            Some(port) if port.charges.is_of(uid) => None,
            _ => Some(self.item(uid, port.unwrap_or_default())),
        }
    }

    fn item(&self, uid: u32, port: &str) -> Item {
        let own = [self.access.user, self.access.owner].contains(&Some(uid));
        let (switch, port) = (self.name.clone(), port.to_owned());
        Item::Port { switch, port, of: self.config.max_ports.into(), own }
    }

    /// Charges the future user of port `name`, or of a new port of this name. Does nothing if the
    /// user is charged already.
    pub(super) fn charge(&self, name: &str, uid: u32) -> Result<Option<Charge>, ApiError> {
        let port = self.port(name).ok();
        if port.is_some_and(|port| port.charges.is_of(uid)) {
            return Ok(None);
        }
        self.environment.ledger.charge(uid, self.item(uid, name)).map(Some)
    }

    /// Charges the port's present user, without checking limits.
    pub(super) fn recharge(&mut self, id: PortId) {
        let Some(port) = self.ports.get(&id) else { return };
        let uid = port.uid(self.access);
        let ledger = &self.environment.ledger;
        let count = || ledger.count(uid, self.item(uid, &port.name));
        let fresh = (!port.charges.is_of(uid)).then(count);
        let memory = region_of(port).map(|file| ledger.count(uid, Item::Memory(file)));
        let bytes = port.links.charged();
        let links = (bytes > 0).then(|| ledger.count(uid, Item::Links { bytes }));
        if let Some(port) = self.ports.get_mut(&id) {
            port.charges.take(fresh, memory);
            port.charges.take_links(links);
        }
    }

    /// Charges a switch that clients made to one of its users.
    pub fn recharge_switch(&mut self) {
        if !self.ephemeral {
            self.charge = None;
            return;
        }
        let users = || self.ports.values().map(|port| port.uid(self.access));
        let maker = self.charge.as_ref().map(Charge::uid);
        if maker.is_none_or(|maker| users().all(|uid| uid != maker))
            && let Some(uid) = users().next()
        {
            self.charge = Some(self.environment.ledger.count(uid, Item::Switch));
        }
    }

    /// Tells the data process each user's limits.
    pub async fn send_limits(&self) {
        let limits = self.environment.ledger.process_limits();
        if let Err(error) = self.command(&Command::SetLimits { limits }, &[]).await {
            tracing::error!(switch = self.name, %error, "limits of users were not taken");
        }
    }
}

/// The region that a client lends for a port.
fn region_of(port: &Port) -> Option<File> {
    let memory = port.attachment.rings().and_then(|_| port.fds.first());
    memory.and_then(|memory| File::of(memory).ok())
}
