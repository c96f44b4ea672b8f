//! Ports that are attached to network interfaces, which come and go.

use dataplane::config::Attachment;

use super::super::interfaces::watched::Returned;
use super::super::open::{self, Opened, Written};
use super::{Port, Switch};
use crate::api::{ApiError, InterfaceInfo};

impl Port {
    /// The interface that the port is attached to.
    pub(super) fn interface_info(&self) -> Option<InterfaceInfo> {
        let Attachment::Interface(config) = &self.attachment else { return None };
        Some(self.waiting.as_ref()?.interface()?.info(config, &self.fds))
    }

    /// True while the interface that the port is attached to is gone or down.
    pub(super) fn waits_for_interface(&self) -> bool {
        matches!(self.attachment, Attachment::Interface(_)) && self.unconnected().is_some()
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
            if !open::of(&kind).serves_one_process(&port.attachment) {
                continue;
            }
            let attachment = std::mem::replace(&mut port.attachment, Attachment::Vacant);
            let fds = std::mem::take(&mut port.fds);
            let renewed = open::of(&kind).renew(attachment, fds).await;
            let Some(port) = self.ports.get_mut(&id) else { continue };
            match renewed {
                Ok(Opened { attachment, fds, .. }) => {
                    (port.attachment, port.fds) = (attachment, fds)
                }
                Err(error) => {
                    tracing::error!(switch = self.name, port = port.name, %error, "interface was not opened again");
                    port.failure = Some(error.to_string());
                    self.follow(id);
                }
            }
        }
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
        let same =
            |waiting: &super::super::front_ends::Waiting| waiting.number() == returned.waiting;
        if port.quarantined || !port.waiting.as_ref().is_some_and(same) {
            return Ok(());
        }
        let (id, spec) = (port.id, port.spec.clone());
        self.replace_port(id, spec, Written::Kept).await?;
        tracing::info!(switch = self.name, port = returned.port, "interface is back");
        Ok(())
    }
}
