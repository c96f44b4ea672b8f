//! Clients of a switch's ports: how they connect and disconnect.

use dataplane::config::Attachment;
use dataplane::control::Command;
use jail::strangers::Descriptor;

use super::super::hangups::{self, Gone, WatchId};
use super::super::quota::Charge;
use super::super::system;
use super::{Port, Switch};
use crate::api::{ApiError, Client, ErrorCode, PortSpec, SwitchState};

/// A client's side of a port: its region, and the token that reports its hang-up.
#[derive(Debug)]
pub struct Attach {
    /// The attachment: rings, or a monitor.
    pub attachment: Attachment,
    /// The region.
    pub memory: Descriptor,
    /// The switch's end of the token.
    pub token: Descriptor,
    /// The user and process of the client.
    pub client: Client,
    /// The charge for the region that the client lends.
    pub lent: Charge,
    /// The settings of the port, if it has to be made.
    pub spec: PortSpec,
}

impl Switch {
    /// The refusal of a port that another program has open.
    fn in_use(&self, port: &Port, client: Client) -> ApiError {
        let whole = format!("{}:{}", self.name, port.name);
        // Whose program it is, another user need not know.
        let is_known = |other: &Client| other.uid == client.uid || client.uid == 0;
        let by = port.client.filter(is_known);
        let by = by.map_or_else(String::new, |other| format!(" by process {}", other.pid));
        let remedy = format!("open another port, or end that program: toklat port show {whole}");
        ApiError::new(ErrorCode::Busy, format!("{whole} is in use{by}"), remedy)
    }

    /// Opens a port for a client, and makes it if there is none of this name. Returns its number
    /// and its largest frame.
    ///
    /// # Errors
    /// The port is open already or is not a ring port, or the data process refused.
    pub async fn attach(&mut self, name: &str, attach: Attach) -> Result<(u32, u32), ApiError> {
        self.can_attach()?;
        self.check_quarantine(name, attach.client.uid)?;
        self.drop_hung_up(name).await?;
        let known = match self.port(name) {
            Ok(port) if port.is_open() || !port.may_be_opened_by(attach.client.pid) => {
                return Err(self.in_use(port, attach.client));
            }
            Ok(port) => Some(port.id),
            Err(_) => None,
        };
        let charge = self.charge(name, attach.client.uid)?;
        let id = match known {
            Some(id) => {
                self.vacate(id).await?;
                id
            }
            None => self.next_id()?,
        };
        let uid = attach.client.uid;
        let gone = Gone::Client { switch: self.name.clone(), port: name.into(), uid };
        let watch = self.environment.hangups.watch(&attach.token, gone);
        let watch = watch.map_err(|e| system("Cannot watch a token", e))?;
        let mut port =
            self.ports.remove(&id).unwrap_or_else(|| Port::new(id, name, attach.spec, false));
        (port.attachment, port.fds) = (attach.attachment, vec![attach.memory, attach.token]);
        (port.client, port.watch) = (Some(attach.client), Some(watch));
        (port.failure, port.quarantined) = (None, false);
        port.charges.take(charge, Some(attach.lent));
        let largest = port.spec.policy.max_frame() as u32;
        let configured = port.configured || port.is_driven();
        self.names.insert(name.into(), id);
        self.ports.insert(id, port);
        if let Err(error) = self.send_port(id).await {
            self.detach(id);
            if configured {
                self.send_port(id).await?
            } else {
                self.forget(id)
            }
            return Err(error);
        }
        Ok((u32::from(id), largest))
    }

    pub(super) fn can_attach(&self) -> Result<(), ApiError> {
        match (&self.state, &self.failure) {
            (SwitchState::Failed, Some(failure)) => Err(ApiError::new(
                ErrorCode::DataProcess,
                format!("{} is out of service", self.name),
                failure.as_str(),
            )),
            _ => Ok(()),
        }
    }

    /// Frees the name at once if its client has just died.
    pub(super) async fn drop_hung_up(&mut self, name: &str) -> Result<(), ApiError> {
        let Ok(port) = self.port(name) else { return Ok(()) };
        let (Some(watch), Some(token)) = (port.watch, port.hangup_fd()) else { return Ok(()) };
        if hangups::has_hung_up(token) {
            self.clients_gone(&[(name.to_owned(), watch)]).await
        } else {
            Ok(())
        }
    }

    /// Takes a port from its client, as if the client had closed it. Does nothing if there is no
    /// port of this name.
    ///
    /// # Errors
    /// As [`clients_gone`](Self::clients_gone).
    pub async fn close_port(&mut self, name: &str) -> Result<(), ApiError> {
        match self.port(name).ok().and_then(|port| port.watch) {
            Some(watch) => self.clients_gone(&[(name.to_owned(), watch)]).await,
            None => Ok(()),
        }
    }

    /// Has the data process read what the slots of a port's rings hold besides frames.
    ///
    /// # Errors
    /// There is no such port, or the data process refused.
    pub async fn read_format(&mut self, name: &str) -> Result<(), ApiError> {
        let id = self.port(name)?.id;
        self.command(&Command::ReadFormat { id }, &[]).await.map(|_| ())
    }

    /// Handles clients that closed their last tokens: their ports go, or wait for the next client.
    ///
    /// # Errors
    /// The data process refused; the other ports went.
    pub async fn clients_gone(&mut self, gone: &[(String, WatchId)]) -> Result<(), ApiError> {
        let theirs = |(name, watch): &(String, WatchId)| {
            self.port(name).ok().filter(|port| port.watch == Some(*watch))
        };
        let (stay, go): (Vec<_>, Vec<_>) =
            gone.iter().filter_map(theirs).partition(|p| p.configured || p.is_driven());
        let ids = |ports: Vec<&Port>| ports.iter().map(|port| port.id).collect::<Vec<_>>();
        let (stay, go) = (ids(stay), ids(go));
        let mut done = self.remove_all(&go).await.and(self.vacate_all(&stay).await);
        self.recharge_switch();
        for id in stay {
            done = done.and(self.send_port(id).await);
        }
        done
    }
}
