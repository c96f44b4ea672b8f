//! A switch as the supervisor knows it: its data process, its ports, and everything that is needed to
//! start the one again with the others.
//!
//! What is wanted is recorded first and told to the data process then. If that dies meanwhile, the
//! record is carried out when it is started again; if it refuses, the record is taken back.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::config::{Attachment, PortConfig, PortId, SwitchConfig};
use dataplane::control::{Answer, Command};
use dataplane::state::{self, State};
use shmem::{Memfd, Pages};

use super::hangups::{Gone, Hangups, WatchId};
use super::process::{AskError, DataProcess, FoundPort, socket_path};
use super::{endpoints, system, topology};
use crate::api::{
    ApiError, Client, ErrorCode, PortInfo, PortKind, PortSpec, PortState, SwitchInfo, SwitchState,
};

/// Deaths in a row after which a data process is not started again.
const MAX_DEATHS: u32 = 8;
/// A data process that ran this long was not one of those in a row.
const GOOD_RUN: Duration = Duration::from_secs(10);

/// What switches need of the supervisor.
#[derive(Debug)]
pub struct Environment {
    /// The runtime directory.
    pub dir: PathBuf,
    /// The program that is installed: after an upgrade, the new one.
    pub exe: PathBuf,
    /// Who is gone.
    pub hangups: Hangups,
}

/// A port and what is kept for it: at most a memory file and a token.
#[derive(Debug)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Its number.
    pub id: PortId,
    /// What it is.
    pub spec: PortSpec,
    /// It is in the topology: it stays when its client goes.
    pub configured: bool,
    /// Who opened it.
    pub client: Option<Client>,
    attachment: Attachment,
    fds: Vec<OwnedFd>,
    watch: Option<WatchId>,
    worker: Option<u16>,
    failure: Option<String>,
    /// A data process knew it: its state memory is in use.
    known: bool,
}

impl Port {
    fn new(id: PortId, name: &str, spec: PortSpec, configured: bool) -> Self {
        Self {
            name: name.into(),
            id,
            spec,
            configured,
            client: None,
            attachment: Attachment::Vacant,
            fds: Vec::new(),
            watch: None,
            worker: None,
            failure: None,
            known: false,
        }
    }

    /// True while a client has it open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.watch.is_some()
    }

    fn add_command(&self) -> Command {
        let config = PortConfig {
            name: self.name.clone(),
            policy: self.spec.policy.clone(),
            worker: self.spec.worker,
            attachment: self.attachment.clone(),
        };
        Command::AddPort { id: self.id, config, resume: self.known }
    }

    fn state(&self) -> PortState {
        match &self.attachment {
            _ if self.failure.is_some() => PortState::Failed,
            Attachment::Vacant => PortState::Vacant,
            _ => PortState::Attached,
        }
    }
}

/// A client's side of a port: what it sent, and where its hang-up is seen.
#[derive(Debug)]
pub struct Attach {
    /// Ring or monitor.
    pub attachment: Attachment,
    /// The region.
    pub memory: OwnedFd,
    /// The switch's end of the token.
    pub token: OwnedFd,
    /// Who it is.
    pub client: Client,
}

/// A switch.
#[derive(Debug)]
pub struct Switch {
    /// Its name.
    pub name: String,
    /// Its settings.
    pub config: SwitchConfig,
    /// The only user who may open its ports.
    pub owner: Option<u32>,
    /// It is not in the topology: it goes with its last port.
    pub ephemeral: bool,
    /// It was removed while somebody waited for it.
    pub removed: bool,
    environment: Arc<Environment>,
    process: Option<DataProcess>,
    watch: Option<WatchId>,
    memory: Memfd,
    view: State,
    ports: BTreeMap<PortId, Port>,
    names: HashMap<String, PortId>,
    /// Numbers whose ports were removed while no data process ran.
    unretired: Vec<PortId>,
    state: SwitchState,
    failure: Option<String>,
    restarts: u32,
    deaths: u32,
    started: Instant,
}

impl Switch {
    /// A switch without a data process yet.
    ///
    /// # Errors
    /// There is no memory for its state.
    pub fn new(
        environment: Arc<Environment>,
        name: &str,
        config: SwitchConfig,
        owner: Option<u32>,
        ephemeral: bool,
    ) -> Result<Self, ApiError> {
        let (memory, view) = new_state(&config)?;
        Ok(Self {
            name: name.into(),
            config,
            owner,
            ephemeral,
            removed: false,
            environment,
            process: None,
            watch: None,
            memory,
            view,
            ports: BTreeMap::new(),
            names: HashMap::new(),
            unretired: Vec::new(),
            state: SwitchState::Restarting,
            failure: None,
            restarts: 0,
            deaths: 0,
            started: Instant::now(),
        })
    }

    /// Takes over a data process that an earlier supervisor left, with its ports.
    ///
    /// # Errors
    /// There is none, or it does not answer; then it is killed.
    pub async fn find(&mut self) -> io::Result<()> {
        let (process, memory) = DataProcess::find(&self.environment.dir, &self.name).await?;
        let found = match State::map(&memory, &self.config) {
            Ok(_) if memory.len() != self.memory.len() => {
                Err(io::Error::other("Its memory is of another shape"))
            }
            Ok(view) => process.ports().await.map(|ports| (view, ports)),
            Err(error) => Err(io::Error::other(error)),
        };
        let (view, ports) = match found {
            Ok(found) => found,
            Err(error) => {
                process.kill();
                process.ended().await?;
                return Err(error);
            }
        };
        (self.memory, self.view) = (memory, view);
        self.runs(process)?;
        for port in ports {
            self.take_over(port)?;
        }
        // It may have been about to change when the earlier supervisor ended.
        if let Err(error) = self.tell(&set_switch(&self.config), &[]).await {
            tracing::error!(switch = self.name, %error, "settings were not taken");
        }
        Ok(())
    }

    fn take_over(&mut self, found: FoundPort) -> io::Result<()> {
        let FoundPort { id, config, fds } = found;
        let spec = PortSpec { policy: config.policy, worker: config.worker, ..PortSpec::default() };
        let mut port = Port::new(id, &config.name, spec, false);
        (port.attachment, port.fds, port.known) = (config.attachment, fds, true);
        if matches!(port.attachment, Attachment::Ring(_) | Attachment::Monitor { .. })
            && let Some(token) = port.fds.get(1)
        {
            let gone = Gone::Client { switch: self.name.clone(), port: config.name.clone() };
            port.watch = Some(self.environment.hangups.watch(token, gone)?);
        }
        self.names.insert(config.name, id);
        self.ports.insert(id, port);
        Ok(())
    }

    /// Notes that `process` runs, and watches for its end.
    fn runs(&mut self, process: DataProcess) -> io::Result<()> {
        let gone = Gone::DataProcess { switch: self.name.clone() };
        self.watch = Some(self.environment.hangups.watch(process.as_fd(), gone)?);
        self.process = Some(process);
        (self.state, self.failure) = (SwitchState::Running, None);
        Ok(())
    }

    /// Starts a data process with all ports.
    ///
    /// # Errors
    /// It cannot be started, or died again. The switch is as before.
    pub async fn start(&mut self) -> io::Result<()> {
        self.started = Instant::now();
        let Environment { dir, exe, .. } = &*self.environment;
        let process = DataProcess::start(exe, dir, &self.name, &self.config, &self.memory).await?;
        tracing::info!(switch = self.name, pid = process.pid(), "data process started");
        self.runs(process)?;
        self.retire_numbers().await;
        let ids: Vec<_> = self.ports.keys().copied().collect();
        for id in ids {
            if let Err(error) = self.add_again(id).await {
                tracing::error!(switch = self.name, port = id, %error, "port was not resumed");
            }
        }
        Ok(())
    }

    /// Has numbers cleared whose ports were removed while no data process ran.
    async fn retire_numbers(&mut self) {
        for id in std::mem::take(&mut self.unretired) {
            let mut port = Port::new(id, "retired", PortSpec::default(), false);
            port.known = true;
            // A refusal leaves old counters behind, no more.
            let _ = self.tell(&port.add_command(), &[]).await;
            let _ = self.tell(&Command::RemovePort { id }, &[]).await;
        }
    }

    async fn add_again(&mut self, id: PortId) -> Result<(), ApiError> {
        match self.tell_port(id).await {
            Err(error) => {
                self.detach(id);
                let Some(port) = self.ports.get_mut(&id) else { return Err(error) };
                if port.configured {
                    port.failure = Some(error.reason.clone());
                    self.tell_port(id).await?;
                } else {
                    self.forget(id);
                }
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }

    /// The data process ended; false if that is old news.
    pub fn ended(&mut self, watch: WatchId) -> bool {
        if self.watch != Some(watch) {
            return false;
        }
        self.drop_process();
        self.state = SwitchState::Restarting;
        self.restarts += 1;
        true
    }

    fn drop_process(&mut self) {
        if let (Some(process), Some(watch)) = (self.process.take(), self.watch.take()) {
            self.environment.hangups.unwatch(watch, &process);
            process.kill();
        }
    }

    /// How long to wait before it is started again; `None` to give up.
    pub fn restart_delay(&mut self) -> Option<Duration> {
        if self.started.elapsed() > GOOD_RUN {
            self.deaths = 0;
        }
        self.deaths += 1;
        if self.deaths >= MAX_DEATHS {
            self.state = SwitchState::Failed;
            self.failure = Some(format!(
                "Its data process died {} times in a row; see the daemon's log, then use toklat upgrade",
                self.deaths
            ));
            return None;
        }
        let shift = self.deaths.saturating_sub(2);
        let waits = if self.deaths == 1 { 0 } else { 50u64 << shift };
        Some(Duration::from_millis(waits.min(2000)))
    }

    /// Replaces the data process without losing a frame; returns process ids before and after, and
    /// how long there was none.
    ///
    /// # Errors
    /// The new one cannot be started; the supervisor goes on trying.
    pub async fn upgrade(&mut self) -> io::Result<(Option<u32>, u32, Duration)> {
        self.deaths = 0;
        let old = self.process.as_ref().map(DataProcess::pid);
        let from = Instant::now();
        self.stop().await;
        self.start().await?;
        let new = self.process.as_ref().map_or(0, DataProcess::pid);
        Ok((old, new, from.elapsed()))
    }

    /// Ends the data process in order.
    pub async fn stop(&mut self) {
        let Some(process) = &self.process else { return };
        let watch = self.watch.take();
        if let Some(watch) = watch {
            self.environment.hangups.unwatch(watch, process);
        }
        let stopped = process.ask(&Command::Stop, &[]).await;
        if let Err(error) = stopped {
            tracing::warn!(switch = self.name, %error, "data process did not stop in order");
            process.kill();
        }
        if let Err(error) = process.ended().await {
            tracing::warn!(switch = self.name, %error, "cannot wait for the data process");
        }
        self.process = None;
        self.state = SwitchState::Restarting;
    }

    /// Ends it for good: ports and socket go too, and with them the tokens of clients.
    pub async fn remove(&mut self) {
        self.stop().await;
        self.removed = true;
        let ids: Vec<_> = self.ports.keys().copied().collect();
        for id in ids {
            self.detach(id);
            self.forget(id);
        }
        // It may never have been made.
        let _ = std::fs::remove_file(socket_path(&self.environment.dir, &self.name));
    }

    /// Asks the data process; `None` if there is none and the record has to do.
    async fn tell(
        &self,
        command: &Command,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Option<Answer>, ApiError> {
        let Some(process) = &self.process else { return Ok(None) };
        match process.ask(command, fds).await {
            Ok(answer) => Ok(Some(answer)),
            Err(AskError::Dead(error)) => {
                tracing::warn!(switch = self.name, %error, "data process does not answer");
                Ok(None)
            }
            Err(AskError::Refused(reason)) => Err(ApiError::new(
                ErrorCode::DataProcess,
                reason,
                "the switch goes on without it: correct the settings, or see the daemon's log",
            )),
        }
    }

    /// As `tell`, for what is not recorded here.
    async fn tell_now(&self, command: &Command) -> Result<(), ApiError> {
        match self.tell(command, &[]).await? {
            Some(_) => Ok(()),
            None => Err(ApiError::new(
                ErrorCode::DataProcess,
                format!("The data process of {} is being started", self.name),
                "try again in a second",
            )),
        }
    }

    /// Tells of a port as it is recorded.
    async fn tell_port(&mut self, id: PortId) -> Result<(), ApiError> {
        let Some(port) = self.ports.get(&id) else { return Ok(()) };
        let fds: Vec<_> = port.fds.iter().map(AsFd::as_fd).collect();
        let answer = self.tell(&port.add_command(), &fds).await?;
        if let (Some(Answer::Added { worker }), Some(port)) = (answer, self.ports.get_mut(&id)) {
            (port.worker, port.known) = (Some(worker), true);
        }
        Ok(())
    }

    fn next_id(&self) -> Result<PortId, ApiError> {
        (0..self.config.max_ports).find(|id| !self.ports.contains_key(id)).ok_or_else(|| {
            let reason = format!("{} has {} ports already", self.name, self.ports.len());
            ApiError::new(ErrorCode::Limit, reason, "close some, or raise max_ports")
        })
    }

    /// The port of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn port(&self, name: &str) -> Result<&Port, ApiError> {
        self.names.get(name).and_then(|id| self.ports.get(id)).ok_or_else(|| self.no_port(name))
    }

    fn no_port(&self, name: &str) -> ApiError {
        let reason = format!("There is no port {}:{name}", self.name);
        ApiError::new(ErrorCode::NotFound, reason, "see `toklat port show`")
    }

    fn port_mut(&mut self, name: &str) -> Result<&mut Port, ApiError> {
        let missing = self.no_port(name);
        self.names.get(name).and_then(|id| self.ports.get_mut(id)).ok_or(missing)
    }

    /// Adds a port as configured.
    ///
    /// # Errors
    /// What it is attached to cannot be opened, or the data process refused.
    pub async fn add_port(&mut self, name: &str, spec: PortSpec) -> Result<(), ApiError> {
        if let Ok(port) = self.port(name) {
            if port.configured || spec.kind != PortKind::Ring {
                let reason = format!("{}:{name} exists", self.name);
                return Err(ApiError::new(ErrorCode::Exists, reason, "use `toklat port set`"));
            }
            // A client made it by opening it. From now on it stays.
            self.set_port(name, spec).await?;
            self.port_mut(name)?.configured = true;
            return Ok(());
        }
        let id = self.next_id()?;
        let (attachment, fds) = endpoints::open(&spec.kind, spec.policy.mtu).await?;
        let mut port = Port::new(id, name, spec, true);
        (port.attachment, port.fds) = (attachment, fds);
        self.insert(port).await
    }

    /// Adds a port whose kind could not be opened: it waits, and says why.
    pub async fn add_failed_port(&mut self, name: &str, spec: PortSpec, error: &ApiError) {
        let Ok(id) = self.next_id() else { return };
        let mut port = Port::new(id, name, spec, true);
        port.failure = Some(error.to_string());
        if let Err(error) = self.insert(port).await {
            tracing::error!(switch = self.name, port = name, %error, "port was not added");
        }
    }

    async fn insert(&mut self, port: Port) -> Result<(), ApiError> {
        let id = port.id;
        self.unretired.retain(|free| *free != id);
        self.names.insert(port.name.clone(), id);
        self.ports.insert(id, port);
        let told = self.tell_port(id).await;
        if told.is_err() {
            self.detach(id);
            self.forget(id);
        }
        told
    }

    /// Marks a port that was taken over as one of the topology's, with the settings it has there.
    ///
    /// # Errors
    /// As [`set_port`](Self::set_port).
    pub async fn claim_port(&mut self, name: &str, spec: PortSpec) -> Result<(), ApiError> {
        let port = self.port_mut(name)?;
        port.configured = true;
        let same = matches!(
            (&spec.kind, &port.attachment),
            (PortKind::Ring, Attachment::Ring(_) | Attachment::Vacant)
                | (PortKind::Tap { .. }, Attachment::Tap)
                | (PortKind::PcapRead { .. }, Attachment::PcapRead { .. })
                | (PortKind::PcapWrite { .. }, Attachment::PcapWrite)
                | (PortKind::Null, Attachment::Null)
        );
        if same {
            port.spec.kind = spec.kind.clone();
        }
        self.set_port(name, spec).await
    }

    /// Removes every port that belongs neither to the topology nor to a client: what an earlier
    /// supervisor was about to remove.
    pub async fn remove_leftovers(&mut self) {
        let left = |p: &&Port| !p.configured && !p.is_open();
        let names: Vec<_> = self.ports.values().filter(left).map(|p| p.name.clone()).collect();
        for name in names {
            if let Err(error) = self.remove_port(&name).await {
                tracing::error!(switch = self.name, port = name, %error, "port was not removed");
            }
        }
    }

    /// Changes a port; a new kind attaches it anew.
    ///
    /// # Errors
    /// The new kind cannot be opened, or the data process refused. The port is as before.
    pub async fn set_port(&mut self, name: &str, spec: PortSpec) -> Result<(), ApiError> {
        let port = self.port(name)?;
        let (id, old) = (port.id, port.spec.clone());
        if old.kind != spec.kind || port.failure.is_some() {
            return self.replace_port(id, spec).await;
        }
        if old.policy != spec.policy {
            let policy = spec.policy.clone();
            self.tell(&Command::SetPolicy { id, policy }, &[]).await?;
        }
        if old.worker != spec.worker
            && let Some(worker) = spec.worker
        {
            self.tell(&Command::MovePort { id, worker }, &[]).await?;
            self.port_mut(name)?.worker = Some(worker);
        }
        self.port_mut(name)?.spec = spec;
        Ok(())
    }

    async fn replace_port(&mut self, id: PortId, spec: PortSpec) -> Result<(), ApiError> {
        let (attachment, fds) = endpoints::open(&spec.kind, spec.policy.mtu).await?;
        self.vacate(id).await?;
        let Some(port) = self.ports.get_mut(&id) else { return Ok(()) };
        (port.spec, port.attachment, port.fds, port.failure) = (spec, attachment, fds, None);
        self.add_again(id).await
    }

    /// Has the data process let go of a port, and closes what was kept for it. The number stays.
    async fn vacate(&mut self, id: PortId) -> Result<(), ApiError> {
        let told = self.tell(&Command::RemovePort { id }, &[]).await;
        self.detach(id);
        match (told?, self.ports.get_mut(&id)) {
            (Some(_), Some(port)) => port.known = false,
            (None, Some(port)) if port.known => {
                // The next data process clears the number before it is used again.
                port.known = false;
                self.unretired.push(id);
            }
            _ => {}
        }
        Ok(())
    }

    /// Closes what is kept for a port; its client sees its token close.
    fn detach(&mut self, id: PortId) {
        let Some(port) = self.ports.get_mut(&id) else { return };
        if let (Some(watch), Some(token)) = (port.watch.take(), port.fds.get(1)) {
            self.environment.hangups.unwatch(watch, token);
        }
        port.fds.clear();
        (port.attachment, port.client) = (Attachment::Vacant, None);
    }

    fn forget(&mut self, id: PortId) {
        if let Some(port) = self.ports.remove(&id) {
            self.names.remove(&port.name);
        }
    }

    /// Removes a port and its monitors.
    ///
    /// # Errors
    /// There is none of this name, or the data process refused.
    pub async fn remove_port(&mut self, name: &str) -> Result<(), ApiError> {
        let id = self.port(name)?.id;
        let watches =
            |p: &&Port| matches!(p.attachment, Attachment::Monitor { of, .. } if of == id);
        let monitors: Vec<_> = self.ports.values().filter(watches).map(|p| p.id).collect();
        for id in monitors.into_iter().chain([id]) {
            self.vacate(id).await?;
            self.forget(id);
        }
        Ok(())
    }

    /// Gives a port, which is made if there is none of this name, to a client; returns its number
    /// and its largest frame.
    ///
    /// # Errors
    /// The port is open already or no ring port, or the data process refused.
    pub async fn attach(&mut self, name: &str, attach: Attach) -> Result<(u32, u32), ApiError> {
        self.can_attach()?;
        self.drop_hung_up(name).await?;
        let id = match self.port(name) {
            Ok(port) if port.spec.kind != PortKind::Ring || port.is_open() => {
                let reason = format!("{}:{name} is in use", self.name);
                return Err(ApiError::new(ErrorCode::Busy, reason, "open another port"));
            }
            Ok(port) => {
                let id = port.id;
                self.vacate(id).await?;
                id
            }
            Err(_) => self.next_id()?,
        };
        let gone = Gone::Client { switch: self.name.clone(), port: name.into() };
        let watch = self.environment.hangups.watch(&attach.token, gone);
        let watch = watch.map_err(|e| system("Cannot watch a token", e))?;
        let mut port = self
            .ports
            .remove(&id)
            .unwrap_or_else(|| Port::new(id, name, PortSpec::default(), false));
        (port.attachment, port.fds) = (attach.attachment, vec![attach.memory, attach.token]);
        (port.client, port.watch, port.failure) = (Some(attach.client), Some(watch), None);
        let largest = port.spec.policy.max_frame() as u32;
        let configured = port.configured;
        self.names.insert(name.into(), id);
        self.ports.insert(id, port);
        if let Err(error) = self.tell_port(id).await {
            self.detach(id);
            if configured {
                self.tell_port(id).await?
            } else {
                self.forget(id)
            }
            return Err(error);
        }
        Ok((u32::from(id), largest))
    }

    fn can_attach(&self) -> Result<(), ApiError> {
        match (&self.state, &self.failure) {
            (SwitchState::Failed, Some(failure)) => Err(ApiError::new(
                ErrorCode::DataProcess,
                format!("{} is out of service", self.name),
                failure.as_str(),
            )),
            _ => Ok(()),
        }
    }

    /// A name whose client has just died is free at once.
    async fn drop_hung_up(&mut self, name: &str) -> Result<(), ApiError> {
        use rustix::event::{PollFd, PollFlags, poll};
        let Ok(port) = self.port(name) else { return Ok(()) };
        let (Some(watch), Some(token)) = (port.watch, port.fds.get(1)) else { return Ok(()) };
        let mut look = [PollFd::new(token, PollFlags::RDHUP)];
        let now = Duration::ZERO.try_into().ok();
        let hung_up = poll(&mut look, now.as_ref()).is_ok_and(|n| n > 0);
        if hung_up { self.client_gone(name, watch).await } else { Ok(()) }
    }

    /// A client closed its last token: its port goes, or waits for the next one.
    ///
    /// # Errors
    /// The data process refused.
    pub async fn client_gone(&mut self, name: &str, watch: WatchId) -> Result<(), ApiError> {
        let Some(port) = self.port(name).ok().filter(|p| p.watch == Some(watch)) else {
            return Ok(());
        };
        let (id, configured) = (port.id, port.configured);
        if !configured {
            return self.remove_port(name).await;
        }
        self.vacate(id).await?;
        self.tell_port(id).await
    }

    /// A name for a monitor of `parent` that is free.
    #[must_use]
    pub fn monitor_name(&self, parent: &str, tx: bool, rx: bool) -> String {
        let what = format!("{}{}", if rx { "r" } else { "" }, if tx { "t" } else { "" });
        let names = (0u32..).map(|n| format!("{parent}/{what}#{n}"));
        names.into_iter().find(|name| !self.names.contains_key(name)).unwrap_or_default()
    }

    /// Changes the switch's settings.
    ///
    /// # Errors
    /// They need a new data process while clients have ports open, or it refused.
    pub async fn set_config(&mut self, config: SwitchConfig) -> Result<(), ApiError> {
        if topology::needs_restart(&self.config, &config) {
            return self.rebuild(config).await;
        }
        if self.config != config {
            self.tell(&set_switch(&config), &[]).await?;
            self.config = config;
        }
        Ok(())
    }

    /// Starts again with memory of another shape.
    async fn rebuild(&mut self, config: SwitchConfig) -> Result<(), ApiError> {
        let busy =
            |reason: String, remedy: &str| Err(ApiError::new(ErrorCode::Busy, reason, remedy));
        if self.ports.values().any(Port::is_open) {
            let reason = format!("Clients have ports of {} open", self.name);
            return busy(reason, "max_ports, workers and fdb_entries change without clients only");
        }
        if self.ports.keys().any(|id| *id >= config.max_ports) {
            let reason = format!("{} has more than {} ports", self.name, config.max_ports);
            return busy(reason, "remove ports first");
        }
        let fresh = new_state(&config)?;
        self.stop().await;
        (self.memory, self.view) = fresh;
        self.config = config;
        self.unretired.clear();
        self.ports.values_mut().for_each(|port| port.known = false);
        self.start().await.map_err(|e| system("Cannot start the data process", e))
    }

    /// Forgets learned addresses.
    ///
    /// # Errors
    /// There is no such port, or no data process now.
    pub async fn flush_fdb(&self, flush: &crate::api::FdbFlush) -> Result<(), ApiError> {
        let port = flush.port.as_deref().map(|name| self.port(name)).transpose()?.map(|p| p.id);
        self.tell_now(&Command::FlushFdb { port, vlan: flush.vlan }).await
    }

    /// Adds an address that stays.
    ///
    /// # Errors
    /// There is no such port, no room, or no data process now.
    pub async fn add_fdb(&self, entry: &crate::api::NewFdbEntry) -> Result<(), ApiError> {
        let port = self.port(&entry.port)?.id;
        self.tell_now(&Command::AddFdb { mac: entry.mac, vlan: entry.vlan, port }).await
    }

    /// Removes an address.
    ///
    /// # Errors
    /// There is none, or no data process now.
    pub async fn delete_fdb(
        &self,
        mac: frame::Mac,
        vlan: Option<frame::VlanId>,
    ) -> Result<(), ApiError> {
        self.tell_now(&Command::DeleteFdb { mac, vlan }).await
    }

    /// Whether the port of this name is as it should be; `None` if there is none.
    #[must_use]
    pub fn health(&self, name: &str) -> Option<bool> {
        self.port(name).ok().map(|port| port.failure.is_none())
    }

    /// True while it has a data process.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.process.is_some()
    }

    /// Its state memory.
    #[must_use]
    pub fn view(&self) -> &State {
        &self.view
    }

    /// Its ports, by number.
    pub fn ports(&self) -> impl ExactSizeIterator<Item = &Port> {
        self.ports.values()
    }

    /// The name of port `id`.
    #[must_use]
    pub fn name_of(&self, id: PortId) -> String {
        self.ports.get(&id).map_or_else(|| format!("#{id}"), |port| port.name.clone())
    }

    /// What the API says of it.
    #[must_use]
    pub fn info(&self) -> SwitchInfo {
        SwitchInfo {
            name: self.name.clone(),
            state: self.state,
            failure: self.failure.clone(),
            pid: self.process.as_ref().map(DataProcess::pid),
            restarts: self.restarts,
            ephemeral: self.ephemeral,
            ports: self.ports.len(),
            owner: self.owner,
            config: self.config.clone(),
        }
    }

    /// What the API says of a port.
    #[must_use]
    pub fn port_info(&self, port: &Port) -> PortInfo {
        let monitors = match port.attachment {
            Attachment::Monitor { of, .. } => Some(self.name_of(of)),
            _ => None,
        };
        PortInfo {
            name: port.name.clone(),
            id: port.id,
            state: port.state(),
            failure: port.failure.clone(),
            worker: port.worker.or(port.spec.worker),
            ephemeral: !port.configured,
            client: port.client,
            monitors,
            spec: port.spec.clone(),
        }
    }

    /// What the API counts of it.
    #[must_use]
    pub fn stats(&self) -> crate::api::SwitchStats {
        let ports = self.ports.values().map(|port| crate::api::PortStats {
            name: port.name.clone(),
            id: port.id,
            state: port.state(),
            counters: self.view.port(port.id).map(|p| p.snapshot()).unwrap_or_default(),
        });
        crate::api::SwitchStats {
            name: self.name.clone(),
            totals: self.view.switch().snapshot(),
            ports: ports.collect(),
            workers: self.view.workers(self.config.workers.len()),
        }
    }
}

fn set_switch(config: &SwitchConfig) -> Command {
    Command::SetSwitch {
        idle: config.idle,
        batch: config.batch,
        fdb_ageing_s: config.fdb_ageing_s,
        stall_timeout_ms: config.stall_timeout_ms,
    }
}

fn new_state(config: &SwitchConfig) -> Result<(Memfd, State), ApiError> {
    let failed = |e| system("Cannot make the switch's state memory", io::Error::other(e));
    let memory = Memfd::create("toklat-state", state::file_size(config), Pages::Small);
    let memory = memory.map_err(failed)?;
    let view = State::map(&memory, config).map_err(failed)?;
    Ok((memory, view))
}
