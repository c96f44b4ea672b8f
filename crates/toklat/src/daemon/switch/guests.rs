//! Ports of virtual machines: how they wait for front ends, and what their data process keeps.

use std::os::fd::{AsFd, BorrowedFd};

use dataplane::config::{Attachment, PortId};
use dataplane::control::Command;
use jail::strangers::Descriptor;
use serde_json::Value;
use topology::Place;

use super::super::front_ends::{self, Arrival, Waiting};
use super::super::hangups::Gone;
use super::super::open::{self, Following, Socket, Start};
use super::super::process::MAX_PENDING;
use super::super::{locked, system};
use super::{Environment, Port, Switch};
use crate::api::{ApiError, ErrorCode};

impl Switch {
    /// Listens at a port's socket, or connects there, if it has one; `occupied` if a peer is
    /// connected already.
    pub(super) fn wait_for_front_end(
        &self,
        port: &Port,
        occupied: bool,
    ) -> Result<Option<Waiting>, ApiError> {
        let name = (self.name.clone(), port.name.clone());
        let kind = open::of(&port.spec.kind);
        let Some(Socket { named, client, rights }) = kind.socket() else {
            let Environment { notices, exe, dir, require_walls, .. } = &*self.environment;
            let start = Start { exe, dir, require_walls: *require_walls };
            let (attachment, fds) = (&port.attachment, &port.fds[..]);
            let mtu = port.spec.policy.mtu;
            return kind.follow(name, Following { attachment, fds, notices, start, mtu });
        };
        let to = self.environment.arrivals.clone();
        let place = Place::of_port(&self.environment.dir, &self.name, &port.name, named);
        let waiting = if client {
            Waiting::connect(name, place, to, occupied, rights)
        } else {
            let owner = self.access.to(port.spec.owner);
            let users = (owner, self.environment.group.as_deref());
            let notices = self.environment.notices.clone();
            Waiting::listen(name, &place, (to, notices), (users, rights))?
        };
        Ok(Some(waiting))
    }

    /// Passes a connected front end to its port.
    ///
    /// # Errors
    /// The port has a front end already, the user may not open it, or the data process refused.
    pub async fn front_end_came(&mut self, arrival: Arrival) -> Result<(), ApiError> {
        let name = arrival.port.clone();
        let came = self.attach_front_end(arrival).await;
        self.wait_again(&name);
        came
    }

    /// Makes a port wait for the next front end, if it has none.
    pub fn wait_again(&self, name: &str) {
        if let Ok(port) = self.port(name)
            && let Some(waiting) = &port.waiting
        {
            waiting.set_vacant(!port.is_open());
        }
    }

    async fn attach_front_end(&mut self, arrival: Arrival) -> Result<(), ApiError> {
        let Arrival { port: name, waiting, socket, .. } = arrival;
        self.can_attach()?;
        self.drop_hung_up(&name).await?;
        let port = self.port(&name)?;
        if port.waiting.as_ref().is_none_or(|here| here.number() != waiting) {
            let reason = format!("{}:{name} waits elsewhere by now", self.name);
            return Err(ApiError::new(ErrorCode::NotFound, reason, "connect again"));
        }
        if port.is_open() {
            let reason = format!("{}:{name} has a front end already", self.name);
            return Err(ApiError::new(ErrorCode::Busy, reason, "add a port for each"));
        }
        let client =
            front_ends::peer(&socket).map_err(|e| system("Cannot read the peer's identity", e))?;
        if let Some(owner) = self.access.to(port.spec.owner)
            && client.is_none_or(|client| {
                ![owner, 0, rustix::process::geteuid().as_raw()].contains(&client.uid)
            })
        {
            let reason = format!("{}:{name} belongs to user {owner}", self.name);
            return Err(ApiError::new(ErrorCode::Forbidden, reason, "see toklat port set --owner"));
        }
        let uid = client.map_or_else(|| port.uid(self.access), |client| client.uid);
        self.check_quarantine(&name, uid)?;
        let id = port.id;
        let charge = self.charge(&name, uid)?;
        self.vacate(id).await?;
        let gone = Gone::Client { switch: self.name.clone(), port: name, uid };
        let watch = self.environment.hangups.watch(&socket, gone);
        let watch = watch.map_err(|e| system("Cannot watch a front end", e))?;
        let Some(port) = self.ports.get_mut(&id) else { return Ok(()) };
        let (attachment, beside) = open::of(&port.spec.kind).connected()?;
        port.attachment = attachment;
        port.fds = std::iter::once(socket).chain(beside.map(Descriptor::ours)).collect();
        (port.client, port.watch) = (client, Some(watch));
        (port.failure, port.quarantined) = (None, false);
        port.charges.take(charge, None);
        self.restore_port(id).await
    }

    /// Returns kept items to a new data process.
    pub(super) async fn restore_kept(&mut self) {
        let mut kept = std::mem::take(&mut *locked(&self.kept));
        let is_guest = |id: &PortId| {
            let port = self.ports.get(id);
            port.is_some_and(|port| {
                matches!(port.attachment, Attachment::VhostUser(_) | Attachment::VfioUser(_))
            })
        };
        kept.retain(|id, _| is_guest(id));
        let mut commands = Vec::new();
        for (id, things) in &kept {
            commands.extend(things.iter().map(|thing| restore(*id, thing)));
        }
        if let Some(process) = &self.process {
            for commands in commands.chunks(MAX_PENDING) {
                for answer in self.patient(process.ask_all(commands)).await {
                    if let Err(error) = answer {
                        tracing::error!(switch = self.name, %error, "a guest's session is not whole");
                    }
                }
            }
        }
        drop(commands);
        let mut here = locked(&self.kept);
        for (id, mut things) in kept {
            let new = here.entry(id).or_default();
            things.append(new);
            *new = things;
        }
    }
}

/// The command that returns one item, and its descriptor.
fn restore<'a>(
    id: PortId,
    (key, (value, fd)): (&String, &'a (Value, Option<Descriptor>)),
) -> (Command, Vec<BorrowedFd<'a>>) {
    let uid = fd.as_ref().map_or(0, Descriptor::uid);
    let command = Command::Restore { id, uid, key: key.clone(), value: value.clone() };
    (command, fd.iter().map(AsFd::as_fd).collect())
}
