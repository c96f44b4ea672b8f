//! The ports of a switch: what is recorded of each, and how each is added, changed and removed.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use dataplane::config::{Attachment, PortConfig, PortId};
use dataplane::control::{Answer, Command};
use jail::strangers::Descriptor;
use netring::Monitor;

use super::super::front_ends::Waiting;
use super::super::hangups::{Gone, WatchId};
use super::super::locked;
use super::super::open::{self, Opened, Opening, Written};
use super::super::process::{FoundPort, MAX_PENDING};
use super::super::tunnels::Tunnel;
use super::charges::Charges;
use super::links::{Links, PortLinks};
use super::{Access, Switch};
use crate::api::{ApiError, Client, ErrorCode, PortKind, PortSpec};

/// A port and what is kept for it: at most a memory file and a token.
#[derive(Debug)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Its number.
    pub id: PortId,
    /// The configuration of the port.
    pub spec: PortSpec,
    /// The port is in the topology, so it stays when its client disconnects.
    pub configured: bool,
    /// The client that opened the port.
    pub client: Option<Client>,
    /// The port's user, if an earlier supervisor opened it and knew its client.
    pub(super) user: Option<u32>,
    pub(super) attachment: Attachment,
    pub(super) fds: Vec<Descriptor>,
    pub(super) watch: Option<WatchId>,
    pub(super) worker: Option<u16>,
    pub(super) failure: Option<String>,
    /// The port killed two data processes.
    pub(super) quarantined: bool,
    /// A data process has had the port, so its state memory is in use.
    pub(super) known: bool,
    /// The charges on the account of the port's user.
    pub(super) charges: Charges,
    /// What the port's links need.
    pub(super) links: PortLinks,
    /// The wait for the port's front end, if it has one.
    pub(super) waiting: Option<Waiting>,
    /// The port's share of tunnels' state. The field order matters: the descriptors above are
    /// closed before the share is released.
    pub(super) tunnel: Option<Tunnel>,
}

impl Port {
    /// Returns true if a process that this daemon starts is to drive a card for the port.
    #[must_use]
    pub fn is_driven(&self) -> bool {
        matches!(self.spec.kind, PortKind::Card(_))
    }

    pub(super) fn new(id: PortId, name: &str, spec: PortSpec, configured: bool) -> Self {
        Self {
            name: name.into(),
            id,
            spec,
            configured,
            client: None,
            user: None,
            attachment: Attachment::Vacant,
            fds: Vec::new(),
            watch: None,
            worker: None,
            failure: None,
            quarantined: false,
            known: false,
            charges: Charges::default(),
            links: PortLinks::default(),
            waiting: None,
            tunnel: None,
        }
    }

    /// The descriptor that reports when the client or front end disconnects.
    pub(super) fn hangup_fd(&self) -> Option<&Descriptor> {
        self.fds.get(self.attachment.hangup_fd()?)
    }

    /// Returns true while a client has the port open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.watch.is_some()
    }

    /// Returns true while a client has the port open, or it is attached to something that frames
    /// may come from.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        self.is_open() || !matches!(self.attachment, Attachment::Vacant | Attachment::Null)
    }

    /// The memory file and the switch's end of the token, if a client has the port open.
    #[must_use]
    pub fn parts(&self) -> Option<[Descriptor; 2]> {
        self.attachment.rings().filter(|_| self.is_open())?;
        let [memory, token] = &self.fds[..] else { return None };
        Some([memory.try_clone().ok()?, token.try_clone().ok()?])
    }

    /// The reason why the port cannot connect to its peer, and for how long by now.
    #[must_use]
    pub fn unconnected(&self) -> Option<(String, Duration)> {
        self.waiting.as_ref()?.trouble()
    }

    /// The port's user, on a switch with this `access`.
    pub(super) fn uid(&self, access: Access) -> u32 {
        let owner = access.to(self.spec.owner);
        let known = self.client.map(|client| client.uid).or(self.user).or(owner);
        known.unwrap_or_else(|| rustix::process::geteuid().as_raw())
    }

    /// The command that adds the port, whose links are in words.
    pub(super) fn add_command(&self, access: Access, links: &Links) -> Command {
        let config = PortConfig {
            name: self.name.clone(),
            policy: links.policy_or_none(self),
            worker: self.spec.worker,
            attachment: self.attachment.clone(),
            uid: self.uid(access),
            pid: self.client.map(|client| client.pid),
        };
        Command::AddPort { id: self.id, config, resume: self.known }
    }
}

/// The error for a port that does not exist.
pub fn no_port(switch: &str, port: &str) -> ApiError {
    let reason = format!("There is no port {switch}:{port}");
    ApiError::new(ErrorCode::NotFound, reason, "see `toklat port show`")
}

impl Switch {
    /// Records a port of a data process that outlived its supervisor.
    pub(super) fn take_over(&mut self, found: FoundPort) -> io::Result<()> {
        let FoundPort { id, config, worker, fds } = found;
        let spec = PortSpec { policy: config.policy, worker: config.worker, ..PortSpec::default() };
        let mut port = Port::new(id, &config.name, spec, false);
        (port.attachment, port.fds, port.known) = (config.attachment, fds, true);
        (port.user, port.worker) = (Some(config.uid), worker);
        port.client = config.pid.map(|pid| Client { pid, uid: config.uid });
        port.links = PortLinks::taken_over(&port.spec.policy, &port.spec.kind);
        self.take_over_tunnel(&mut port);
        if let Some(token) = port.hangup_fd() {
            let (switch, name, uid) = (self.name.clone(), config.name.clone(), config.uid);
            let gone = Gone::Client { switch, port: name, uid };
            port.watch = Some(self.environment.hangups.watch(token, gone)?);
        }
        self.names.insert(config.name, id);
        self.ports.insert(id, port);
        self.recharge(id);
        Ok(())
    }

    /// Clears the numbers of ports that were removed while no data process ran.
    pub(super) async fn retire_numbers(&mut self) {
        for id in std::mem::take(&mut self.unretired) {
            let mut port = Port::new(id, "retired", PortSpec::default(), false);
            port.known = true;
            // If the command fails, only old counters remain.
            let _ =
                self.command(&port.add_command(self.access, &self.environment.links), &[]).await;
            let _ = self.command(&Command::RemovePort { id }, &[]).await;
        }
    }

    /// Adds a recorded port to a new data process. If it refuses, a configured port stays vacant
    /// with the reason, and any other port is removed.
    pub(super) async fn restore_port(&mut self, id: PortId) -> Result<(), ApiError> {
        match self.send_port(id).await {
            Err(error) => Err(self.refused(id, error).await),
            Ok(()) => Ok(()),
        }
    }

    /// Works as `restore_port`, for all recorded ports. Many commands are in flight at a time, so
    /// the data process adds the ports together.
    pub(super) async fn restore_all_ports(&mut self) {
        self.send_all_link_files().await;
        let ids: Vec<_> = self.ports.keys().copied().collect();
        for ids in ids.chunks(MAX_PENDING) {
            let ask = |id| {
                let port = &self.ports[id];
                let links = &self.environment.links;
                (port.add_command(self.access, links), port.fds.iter().map(AsFd::as_fd).collect())
            };
            let commands: Vec<_> = ids.iter().map(ask).collect();
            let Some(process) = &self.process else { return };
            let answers = self.patient(process.ask_all(&commands)).await;
            drop(commands);
            for (id, answer) in ids.iter().zip(answers) {
                match self.interpret(answer) {
                    Ok(answer) => self.added(*id, answer.as_ref()),
                    Err(error) => {
                        let error = self.refused(*id, error).await;
                        tracing::error!(switch = self.name, port = id, %error, "port was not resumed");
                    }
                }
            }
        }
    }

    /// Handles a refused port: a configured port stays vacant with the reason, and any other is
    /// removed. Returns the reason.
    async fn refused(&mut self, id: PortId, error: ApiError) -> ApiError {
        self.detach(id);
        let Some(port) = self.ports.get_mut(&id) else { return error };
        if !port.configured {
            self.forget(id);
            return error;
        }
        port.failure = Some(error.reason.clone());
        self.send_port(id).await.err().unwrap_or(error)
    }

    /// Sends the recorded port to the data process.
    pub(super) async fn send_port(&mut self, id: PortId) -> Result<(), ApiError> {
        let Some(port) = self.ports.get(&id) else { return Ok(()) };
        let fds: Vec<_> = port.fds.iter().map(AsFd::as_fd).collect();
        self.send_link_files(&port.links).await?;
        let answer =
            self.command(&port.add_command(self.access, &self.environment.links), &fds).await?;
        self.added(id, answer.as_ref());
        Ok(())
    }

    fn added(&mut self, id: PortId, answer: Option<&Answer>) {
        if let (Some(Answer::Added { worker }), Some(port)) = (answer, self.ports.get_mut(&id)) {
            (port.worker, port.known) = (Some(*worker), true);
        }
    }

    /// The lowest free number.
    pub(super) fn next_id(&self) -> Result<PortId, ApiError> {
        let taken = self.ports.keys().copied();
        let id = (0..).zip(taken).find(|(id, taken)| id != taken).map(|(id, _)| id);
        let id = id.unwrap_or(self.ports.len() as PortId);
        if id < self.config.max_ports {
            return Ok(id);
        }
        let reason = format!("{} has {} ports already", self.name, self.ports.len());
        Err(ApiError::new(ErrorCode::Limit, reason, "close some, or raise max_ports"))
    }

    /// The port of this name.
    ///
    /// # Errors
    /// There is no such port.
    pub fn port(&self, name: &str) -> Result<&Port, ApiError> {
        self.names
            .get(name)
            .and_then(|id| self.ports.get(id))
            .ok_or_else(|| no_port(&self.name, name))
    }

    pub(super) fn port_mut(&mut self, name: &str) -> Result<&mut Port, ApiError> {
        let missing = no_port(&self.name, name);
        self.names.get(name).and_then(|id| self.ports.get_mut(id)).ok_or(missing)
    }

    /// Adds a port as configured.
    ///
    /// # Errors
    /// What it is attached to cannot be opened, or the data process refused.
    pub async fn add_port(
        &mut self,
        name: &str,
        spec: PortSpec,
        written: Written,
    ) -> Result<(), ApiError> {
        if let Ok(port) = self.port(name) {
            if port.configured || spec.kind != PortKind::Ring {
                let reason = format!("{}:{name} exists", self.name);
                return Err(ApiError::new(ErrorCode::Exists, reason, "use `toklat port set`"));
            }
            // A client made the port by opening it. From here on it is permanent.
            self.set_port(name, spec).await?;
            self.port_mut(name)?.configured = true;
            return Ok(());
        }
        let id = self.next_id()?;
        let links = self.prepare_links(name, &spec).await?;
        let opened = self.open(name, &spec, written).await?;
        let mut port = Port::new(id, name, spec, true);
        port.links = links;
        (port.attachment, port.fds) = (opened.attachment, opened.fds);
        port.tunnel = opened.tunnel;
        port.waiting = self.wait_for_front_end(&port, false)?;
        self.insert(port).await
    }

    /// Adds a port that no topology has.
    ///
    /// # Errors
    /// As [`add_port`](Self::add_port).
    pub async fn add_temporary_port(&mut self, name: &str, spec: PortSpec) -> Result<(), ApiError> {
        self.add_port(name, spec, Written::Emptied).await?;
        self.port_mut(name)?.configured = false;
        Ok(())
    }

    /// Adds a port whose kind could not be opened. It stays vacant, with the reason.
    pub async fn add_failed_port(&mut self, name: &str, spec: PortSpec, error: &ApiError) {
        let Ok(id) = self.next_id() else { return };
        let links = self.prepare_links(name, &spec).await;
        let mut port = Port::new(id, name, spec, true);
        port.links = links.unwrap_or_default();
        port.failure = Some(error.to_string());
        if let Err(error) = self.insert(port).await {
            let uid = self.uid_of(name);
            tracing::error!(event = "port", switch = self.name, port = name, uid, %error, "port was not added");
        }
        self.follow(id);
        self.watch_again(id);
    }

    /// Opens what a port is attached to.
    async fn open(
        &self,
        name: &str,
        spec: &PortSpec,
        written: Written,
    ) -> Result<Opened, ApiError> {
        let at = Opening {
            name: (&self.name, name),
            mtu: spec.policy.mtu,
            written,
            users: (self.access.to(spec.owner), self.environment.group.as_deref()),
            tunnels: &self.environment.tunnels,
            captures: &self.environment.captures,
        };
        self.patient(open::of(&spec.kind).open(at)).await
    }

    async fn insert(&mut self, port: Port) -> Result<(), ApiError> {
        let id = port.id;
        self.unretired.retain(|free| *free != id);
        self.names.insert(port.name.clone(), id);
        self.ports.insert(id, port);
        self.recharge(id);
        let told = match self.renew_rules().await {
            Ok(()) => self.send_port(id).await,
            refused => refused,
        };
        if told.is_err() {
            self.detach(id);
            self.forget(id);
        }
        told
    }

    /// Marks a port that was taken over as configured, with its settings from the topology.
    ///
    /// # Errors
    /// As [`set_port`](Self::set_port).
    pub async fn claim_port(&mut self, name: &str, spec: PortSpec) -> Result<(), ApiError> {
        let port = self.port_mut(name)?;
        port.configured = true;
        let same = open::of(&spec.kind).is(&port.attachment);
        if same {
            port.spec.kind = spec.kind.clone();
        }
        let port = self.port(name)?;
        let id = port.id;
        match self.wait_for_front_end(port, port.is_open()) {
            Ok(waiting) => self.port_mut(name)?.waiting = waiting,
            Err(error) => {
                self.watch_again(id);
                self.note(id, &error.reason);
            }
        }
        self.change_port(name, spec, Written::Kept).await
    }

    /// Removes every port that is neither configured nor open: an earlier supervisor was about to
    /// remove it.
    pub async fn remove_leftovers(&mut self) {
        let left = |p: &&Port| !p.configured && !p.is_open();
        let names: Vec<_> = self.ports.values().filter(left).map(|p| p.name.clone()).collect();
        for name in names {
            if let Err(error) = self.remove_port(&name).await {
                tracing::error!(switch = self.name, port = name, %error, "port was not removed");
            }
        }
    }

    /// Changes a port. A new kind replaces its attachment.
    ///
    /// # Errors
    /// The new kind cannot be opened: the port stays unchanged. The data process refused it: the
    /// port stays vacant, with the reason.
    pub async fn set_port(&mut self, name: &str, spec: PortSpec) -> Result<(), ApiError> {
        let same = self.port(name)?.spec.kind == spec.kind;
        self.change_port(name, spec, if same { Written::Kept } else { Written::Emptied }).await
    }

    async fn change_port(
        &mut self,
        name: &str,
        spec: PortSpec,
        written: Written,
    ) -> Result<(), ApiError> {
        let port = self.port(name)?;
        let (id, old) = (port.id, port.spec.clone());
        let links = self.prepare_links(name, &spec).await?;
        let resized = old.policy.mtu != spec.policy.mtu;
        let again = resized && open::of(&spec.kind).is_opened_for_mtu();
        if again || old.kind != spec.kind || self.failure_of(port).is_some() {
            return self.replace_port(id, spec, Some(links), written).await;
        }
        if resized {
            let resizing = open::of(&spec.kind).set_mtu(spec.policy.mtu, &port.attachment);
            self.patient(resizing).await?;
        }
        if old.rules() != spec.rules() {
            let policy = self.environment.links.policy(&spec)?;
            self.send_link_files(&links).await?;
            self.command(&Command::SetPolicy { id, policy }, &[]).await?;
        }
        if old.worker != spec.worker
            && let Some(worker) = spec.worker
        {
            self.command(&Command::MovePort { id, worker }, &[]).await?;
            self.port_mut(name)?.worker = Some(worker);
        }
        let anew = self.access.to(old.owner) != self.access.to(spec.owner);
        let port = self.port_mut(name)?;
        (port.spec, port.links) = (spec, links);
        self.recharge(id);
        self.renew_rules_of(name, old.policy).await?;
        if anew { self.remake_socket(id).await } else { Ok(()) }
    }

    /// Attaches a port once more, with other settings, and other `links` if there are any.
    pub(super) async fn replace_port(
        &mut self,
        id: PortId,
        spec: PortSpec,
        links: Option<PortLinks>,
        written: Written,
    ) -> Result<(), ApiError> {
        let name = self.ports.get(&id).map(|port| port.name.clone()).unwrap_or_default();
        // A part of the host is given back before it is taken again.
        let old = self.ports.get(&id).map(|port| open::of(&port.spec.kind).takes_from_host());
        let again = old == Some(true) && open::of(&spec.kind).takes_from_host();
        if again {
            self.vacate(id).await?;
        }
        let opened = self.open(&name, &spec, written).await;
        if let (true, Err(error), Some(port)) = (again, &opened, self.ports.get_mut(&id)) {
            port.failure = Some(error.to_string());
        }
        let Opened { attachment, fds, tunnel } = opened?;
        if !again {
            self.vacate(id).await?;
        }
        let Some(port) = self.ports.get_mut(&id) else { return Ok(()) };
        // The old socket may have the path of the new one.
        port.waiting = None;
        (port.spec, port.attachment, port.fds, port.failure) = (spec, attachment, fds, None);
        port.tunnel = tunnel;
        port.links = links.unwrap_or_else(|| port.links.clone());
        self.renew_rules().await?;
        if let Some(port) = self.ports.get(&id) {
            match self.wait_for_front_end(port, false) {
                Ok(waiting) => self.ports.entry(id).and_modify(|port| port.waiting = waiting),
                Err(error) => return Err(self.refused(id, error).await),
            };
        }
        self.restore_port(id).await
    }

    /// Removes a port from the data process, if that has it, and closes what was kept for it. Its
    /// number stays taken.
    pub(super) async fn vacate(&mut self, id: PortId) -> Result<(), ApiError> {
        if self.ports.get(&id).is_some_and(|port| port.known) {
            return self.vacate_all(&[id]).await;
        }
        self.detach(id);
        Ok(())
    }

    /// Works as `vacate`, for many ports. Many commands are in flight at a time, so the data
    /// process removes the ports together.
    pub(super) async fn vacate_all(&mut self, ids: &[PortId]) -> Result<(), ApiError> {
        let mut done = Ok(());
        for ids in ids.chunks(MAX_PENDING) {
            let remove = |id: &PortId| (Command::RemovePort { id: *id }, Vec::new());
            let commands: Vec<_> = ids.iter().map(remove).collect();
            let answers = match &self.process {
                Some(process) => self.patient(process.ask_all(&commands)).await,
                None => Vec::new(),
            };
            let answers = answers.into_iter().map(Some).chain(std::iter::repeat_with(|| None));
            for (id, answer) in ids.iter().zip(answers) {
                let told = answer.map_or(Ok(None), |answer| self.interpret(answer));
                let vacated = self.vacated(*id, told);
                done = done.and(vacated);
            }
        }
        done
    }

    /// Closes what was kept for a port; `told` is the data process's answer to its removal.
    pub(super) fn vacated(
        &mut self,
        id: PortId,
        told: Result<Option<Answer>, ApiError>,
    ) -> Result<(), ApiError> {
        self.detach(id);
        match (told?, self.ports.get_mut(&id)) {
            (Some(_), Some(port)) => port.known = false,
            (None, Some(port)) if port.known => {
                // The next data process clears the number before it is reused.
                port.known = false;
                self.unretired.push(id);
            }
            _ => {}
        }
        Ok(())
    }

    /// Closes what is kept for a port; its client sees its token close.
    pub(super) fn detach(&mut self, id: PortId) {
        let Some(port) = self.ports.get_mut(&id) else { return };
        let watch = port.watch.take();
        if let (Some(watch), Some(token)) = (watch, port.hangup_fd()) {
            self.environment.hangups.unwatch(watch, token);
        }
        if let (Attachment::VfioUser(_), Some(socket)) = (&port.attachment, port.fds.first()) {
            // A front end would take a reset connection for more than a disconnect, so the socket
            // is drained first.
            socket.drain_and_hang_up();
        }
        port.fds.clear();
        port.tunnel = None;
        (port.attachment, port.client, port.user) = (Attachment::Vacant, None, None);
        if let (Some(waiting), Some(_)) = (&port.waiting, watch) {
            waiting.set_vacant(true);
        }
        self.recharge(id);
        locked(&self.kept).remove(&id);
    }

    pub(super) fn forget(&mut self, id: PortId) {
        if let Some(port) = self.ports.remove(&id) {
            self.names.remove(&port.name);
        }
    }

    /// Removes a port and its monitors.
    ///
    /// # Errors
    /// There is no port of this name, or the data process refused.
    pub async fn remove_port(&mut self, name: &str) -> Result<(), ApiError> {
        let id = self.port(name)?.id;
        self.remove_all(&[id]).await
    }

    /// As `remove_port`, for many ports.
    pub(super) async fn remove_all(&mut self, ids: &[PortId]) -> Result<(), ApiError> {
        let watches =
            |p: &&Port| matches!(p.attachment, Attachment::Monitor { of, .. } if ids.contains(&of));
        let monitors = self.ports.values().filter(watches).map(|p| p.id);
        let mut all: Vec<_> = monitors.filter(|id| !ids.contains(id)).collect();
        all.extend(ids);
        let done = self.vacate_all(&all).await;
        all.into_iter().for_each(|id| self.forget(id));
        done
    }

    /// Finds a free name for a monitor of `parent`.
    #[must_use]
    pub fn monitor_name(&self, parent: &str, monitor: Monitor) -> String {
        let what = match monitor {
            Monitor::Sent => "t",
            Monitor::Received => "r",
            Monitor::Both => "rt",
        };
        let names = (0u32..).map(|n| format!("{parent}/{what}#{n}"));
        names.into_iter().find(|name| !self.names.contains_key(name)).unwrap_or_default()
    }
}
