//! Ports that are attached to network interfaces and cards, which come and go.

use dataplane::config::Attachment;

use super::super::front_ends::Waiting;
use super::super::interfaces::watched::Returned;
use super::super::open::{self, Opened, Written};
use super::{Port, Switch};
use crate::api::{ApiError, InterfaceInfo, PortKind};

impl Port {
    /// The interface or card that the port is attached to.
    pub(super) fn interface_info(&self) -> Option<InterfaceInfo> {
        if let Some(card) = self.waiting.as_ref().and_then(Waiting::card) {
            return card.info();
        }
        let watched = || self.waiting.as_ref()?.interface();
        match &self.attachment {
            Attachment::Interface(config) => Some(watched()?.info(config, &self.fds)),
            Attachment::Host(config) => Some(watched()?.host_info(config)),
            _ => None,
        }
    }

    /// True while the interface or card that the port is attached to is gone or down.
    pub(super) fn waits_for_interface(&self) -> bool {
        let is_card = matches!(self.spec.kind, PortKind::Card(_));
        let has_one = matches!(self.attachment, Attachment::Interface(_) | Attachment::Host(_));
        (is_card || has_one) && self.unconnected().is_some()
    }

    /// True if a process may open the port as its client.
    pub(super) fn may_be_opened_by(&self, pid: u32) -> bool {
        match &self.spec.kind {
            PortKind::Ring => true,
            PortKind::Card(_) => {
                let card = self.waiting.as_ref().and_then(Waiting::card);
                card.is_some_and(|card| card.is(pid))
            }
            _ => false,
        }
    }
}

impl Switch {
    /// Opens again what serves one data process only, for the next one. A port whose turn fails
    /// stays vacant, with the reason, and is tried again.
    pub(super) async fn renew_ports(&mut self) {
        let ids: Vec<_> = self.ports.keys().copied().collect();
        for id in ids {
            let Some(port) = self.ports.get_mut(&id) else { continue };
            let kind = port.spec.kind.clone();
            let open = open::of(&kind);
            let is_released = open.takes_from_host() && port.fds.is_empty() && !port.quarantined;
            if !is_released && !open.serves_one_process(&port.attachment) {
                continue;
            }
            let attachment = std::mem::replace(&mut port.attachment, Attachment::Vacant);
            let fds = std::mem::take(&mut port.fds);
            let renewed = open::of(&kind).renew(attachment, fds).await;
            let Some(port) = self.ports.get_mut(&id) else { continue };
            match renewed {
                Ok(Opened { attachment, fds, .. }) => {
                    (port.attachment, port.fds, port.failure) = (attachment, fds, None);
                    if is_released {
                        self.follow(id);
                    }
                }
                Err(error) => {
                    tracing::error!(switch = self.name, port = port.name, %error, "interface was not opened again");
                    port.failure = Some(error.to_string());
                    self.follow(id);
                }
            }
        }
    }

    /// Gives back what ports have taken from the host, because no data process may run for a while.
    pub(super) fn release_host(&mut self) {
        let takers =
            self.ports.values_mut().filter(|port| open::of(&port.spec.kind).takes_from_host());
        takers.for_each(|port| port.fds.clear());
    }

    /// Watches what a port without a socket waits for.
    pub(super) fn follow(&mut self, id: dataplane::config::PortId) {
        let Some(port) = self.ports.get(&id) else { return };
        if open::of(&port.spec.kind).socket().is_some() {
            return;
        }
        match self.wait_for_front_end(port, false) {
            Ok(waiting) => {
                self.ports.entry(id).and_modify(|port| port.waiting = waiting);
            }
            Err(error) => {
                tracing::error!(switch = self.name, port = id, %error, "interface is not watched");
            }
        }
    }

    /// Opens a port again whose interface is back.
    ///
    /// # Errors
    /// It cannot be opened; the port stays as it is.
    pub async fn interface_returned(&mut self, returned: &Returned) -> Result<(), ApiError> {
        let port = self.port(&returned.port)?;
        let same = |waiting: &Waiting| waiting.number() == returned.waiting;
        let is_released = open::of(&port.spec.kind).takes_from_host() && !self.is_running();
        if port.quarantined || is_released || !port.waiting.as_ref().is_some_and(same) {
            return Ok(());
        }
        let (id, spec) = (port.id, port.spec.clone());
        self.replace_port(id, spec, Written::Kept).await?;
        tracing::info!(switch = self.name, port = returned.port, "interface is back");
        Ok(())
    }
}
