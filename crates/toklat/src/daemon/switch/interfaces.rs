//! Ports that are attached to network interfaces and cards, which come and go.

use dataplane::config::{Attachment, PortId};

use super::super::front_ends::Waiting;
use super::super::objects::{Notice, Seen};
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

    /// True while what the port is attached to is gone or down. A port with a peer works without
    /// its socket's file.
    pub(super) fn waits(&self) -> bool {
        let has_peer = !matches!(self.attachment, Attachment::Vacant)
            && open::of(&self.spec.kind).socket().is_some();
        !has_peer && self.unconnected().is_some()
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
            let renewed = self.patient(open::of(&kind).renew(attachment, fds)).await;
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
    pub(super) fn follow(&mut self, id: PortId) {
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

    /// Deals with what was noticed of a port's object: a port whose object is gone gives back what
    /// it has of it, and waits; one that waits is opened again.
    ///
    /// # Errors
    /// It cannot be opened; the port stays as it is.
    pub async fn object_noticed(&mut self, notice: &Notice) -> Result<(), ApiError> {
        let port = self.port(&notice.port)?;
        let same = |waiting: &Waiting| waiting.number() == notice.waiting;
        let kind = open::of(&port.spec.kind);
        let is_released = kind.takes_from_host() && !self.is_running();
        if port.quarantined || is_released || !port.waiting.as_ref().is_some_and(same) {
            return Ok(());
        }
        let (id, is_vacant) = (port.id, matches!(port.attachment, Attachment::Vacant));
        let gone = match &notice.seen {
            Seen::Gone(why) => Some(why.clone()),
            Seen::Fine => kind.lost(&port.fds),
            Seen::Back => None,
        };
        match (gone, &notice.seen) {
            (Some(why), _) if kind.socket().is_some() => {
                self.note(id, &why);
                self.reopen(id).await
            }
            (Some(why), _) if is_vacant => {
                self.note(id, &why);
                Ok(())
            }
            (Some(why), _) => self.lose(id, &why).await,
            (None, Seen::Back) => self.reopen(id).await,
            (None, _) if is_vacant || port.failure.is_some() => self.reopen(id).await,
            (None, _) => {
                port.waiting.as_ref().into_iter().for_each(Waiting::settle);
                Ok(())
            }
        }
    }

    /// Makes a port wait whose object is gone.
    async fn lose(&mut self, id: PortId, why: &str) -> Result<(), ApiError> {
        // As long as descriptors are open, a namespace stays.
        self.vacate(id).await?;
        self.restore_port(id).await?;
        self.follow(id);
        self.note(id, why);
        Ok(())
    }

    /// Opens a port again, or records why that cannot be.
    async fn reopen(&mut self, id: PortId) -> Result<(), ApiError> {
        let Some(port) = self.ports.get(&id) else { return Ok(()) };
        let (name, spec) = (port.name.clone(), port.spec.clone());
        let has_socket = open::of(&spec.kind).socket().is_some();
        let opened = match has_socket && port.failure.is_none() {
            true => self.remake_socket(id).await,
            false => self.replace_port(id, spec, None, Written::Kept).await,
        };
        if let Err(error) = opened {
            self.watch_again(id);
            self.note(id, &error.reason);
            return Err(error);
        }
        let uid = self.uid_of(&name);
        tracing::info!(
            event = "port",
            switch = self.name,
            port = name,
            uid,
            "what the port is attached to is back"
        );
        Ok(())
    }

    /// Has a port that waits for nothing any more be opened again after a while.
    pub(super) fn watch_again(&mut self, id: PortId) {
        let notices = &self.environment.notices;
        if let Some(port) = self.ports.get_mut(&id).filter(|port| port.waiting.is_none()) {
            let name = (self.name.clone(), port.name.clone());
            port.waiting = Some(Waiting::watch(name, notices, || None));
        }
    }

    /// Records the reason why a port waits.
    pub(super) fn note(&self, id: PortId, why: &str) {
        let Some(port) = self.ports.get(&id).filter(|port| port.failure.is_none()) else { return };
        let name = (self.name.clone(), port.name.clone());
        port.waiting.iter().for_each(|waiting| waiting.note(&name, why));
    }
}
