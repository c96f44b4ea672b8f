//! A switch as the supervisor knows it: its data process, its ports, and everything needed to
//! restart the data process with its ports.
//!
//! A change is recorded first, and then sent to the data process. If the data process dies
//! meanwhile, the record is applied when it is restarted. If it refuses, the record is undone.

mod access;
mod charges;
mod clients;
mod found;
mod guests;
mod interfaces;
mod links;
mod port;
mod quarantine;
mod report;
mod restarts;
mod rules;
mod sampling;
mod tunnel;
mod watchdog;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dataplane::config::{PortId, SwitchConfig};
use dataplane::control::{Answer, Command};
use dataplane::state::{self, State};
use jail::strangers::Descriptor;
use jail::{Refused, Walls};
use shmem::{Memfd, Pages};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

pub use self::access::Access;
pub use self::charges::StateMemory;
pub use self::clients::Attach;
pub use self::links::Links;
pub use self::port::{Port, no_port};
use self::quarantine::{Offender, Quarantine};
use self::restarts::Restarts;
pub use self::rules::RuleBook;
pub use self::tunnel::Segment;
use self::watchdog::Watchdog;
use super::front_ends::Arrival;
use super::hangups::{Gone, Hangups, WatchId};
use super::log::ACTION;
use super::objects::Notice;
use super::process::{AskError, DataProcess, Keeper, check_version, socket_path};
use super::quota::{Charge, Ledger};
use super::readers::Readers;
use super::sflow::{Agents, Export};
use super::tunnels::Tunnels;
use super::{change, locked, system};
use crate::api::{ApiError, ErrorCode, SwitchState};

/// The parts of the supervisor that all switches share.
#[derive(Debug)]
pub struct Environment {
    /// The runtime directory.
    pub dir: PathBuf,
    /// The installed program: after an upgrade, the new one.
    pub exe: PathBuf,
    /// Reports which peers have disconnected.
    pub hangups: Hangups,
    /// The channel on which connected front ends are announced.
    pub arrivals: mpsc::Sender<Arrival>,
    /// The channel on which objects of ports are announced that are gone or back.
    pub notices: mpsc::Sender<Notice>,
    /// The group that may open ports.
    pub group: Option<String>,
    /// The ledger: what each user holds.
    pub ledger: Arc<Ledger>,
    /// A data process that cannot be confined in every way does not start.
    pub require_walls: bool,
    /// The directory for captures of clients over TCP.
    pub captures: PathBuf,
    /// The receiving sockets of tunnels.
    pub tunnels: Arc<Tunnels>,
    /// The switches that are sampled.
    pub agents: Arc<Agents>,
    /// The links of the topology, by name.
    pub links: Links,
    /// Groups of rules and tables.
    pub rules: Mutex<Arc<RuleBook>>,
}

/// A switch.
#[derive(Debug)]
pub struct Switch {
    /// Its name.
    pub name: String,
    /// Its settings.
    pub config: SwitchConfig,
    /// The users that may open the switch's ports.
    pub access: Access,
    /// The switch is not in the topology, and goes with its last port.
    pub ephemeral: bool,
    /// The charge of the client that made the switch.
    pub charge: Option<Charge>,
    /// The switch was removed while a task waited for its lock.
    pub removed: bool,
    environment: Arc<Environment>,
    process: Option<DataProcess>,
    watch: Option<WatchId>,
    /// Items that ports keep for the next data process.
    kept: Keeper,
    /// The task that reads the last data process's messages until its end.
    last_words: Option<JoinHandle<()>>,
    memory: Memfd,
    /// The charge for `memory`, of a trusted switch.
    memory_charge: Option<Charge>,
    view: State,
    /// How the last data process was confined.
    walls: Walls,
    ports: BTreeMap<PortId, Port>,
    names: HashMap<String, PortId>,
    /// Numbers of ports that were removed while no data process ran.
    unretired: Vec<PortId>,
    state: SwitchState,
    failure: Option<String>,
    restarts: u32,
    /// The deaths in a row, and how long each left the switch without a data process.
    row: Restarts,
    /// Ports that killed data processes.
    quarantine: Quarantine,
    watchdog: Watchdog,
    /// The export to an sFlow collector.
    sampling: Option<Export>,
    /// A task is restarting the data process.
    restarting: bool,
    /// Those who read the switch while a task waits as its holder.
    readers: Arc<Readers>,
    /// The rules between the ports, once there are any.
    firewall: Option<rules::Firewall>,
}

impl Switch {
    /// Makes a switch without a data process.
    ///
    /// # Errors
    /// There is no memory for the switch's state.
    pub fn new(
        environment: Arc<Environment>,
        name: &str,
        config: SwitchConfig,
        access: Access,
        ephemeral: bool,
    ) -> Result<Self, ApiError> {
        let (memory, view) = new_state(&config)?;
        let memory_charge = StateMemory::of(name, &config, access).count(&environment.ledger);
        Ok(Self {
            name: name.into(),
            config,
            access,
            ephemeral,
            charge: None,
            removed: false,
            walls: Walls::default(),
            environment,
            process: None,
            watch: None,
            kept: Keeper::default(),
            last_words: None,
            memory,
            memory_charge,
            view,
            ports: BTreeMap::new(),
            names: HashMap::new(),
            unretired: Vec::new(),
            state: SwitchState::Restarting,
            failure: None,
            restarts: 0,
            row: Restarts::new(Instant::now()),
            quarantine: Quarantine::default(),
            watchdog: Watchdog::default(),
            sampling: None,
            restarting: false,
            readers: Arc::default(),
            firewall: None,
        })
    }

    /// Records that `process` runs, and watches for its end.
    fn runs(&mut self, process: DataProcess) -> io::Result<()> {
        let gone = Gone::DataProcess { switch: self.name.clone() };
        let watch = self.environment.hangups.watch(process.as_fd(), gone);
        // A process whose end cannot be watched is killed.
        self.watch = Some(watch.inspect_err(|_| process.kill())?);
        if self.walls != process.walls {
            for refused in &process.walls.refused {
                let Refused { wall, reason } = refused;
                tracing::warn!(target: ACTION, switch = self.name, %wall, reason, "a wall does not stand");
            }
            self.walls = process.walls.clone();
        }
        self.process = Some(process);
        (self.state, self.failure) = (SwitchState::Running, None);
        Ok(())
    }

    /// Starts a data process with all ports.
    ///
    /// # Errors
    /// It cannot be started, or died again. The switch is as before.
    pub async fn start(&mut self) -> io::Result<()> {
        self.row.starts(Instant::now());
        if let Some(last_words) = self.last_words.take() {
            // Fails only if the task panicked.
            let _ = self.patient(last_words).await;
        }
        let Environment { dir, exe, require_walls, .. } = &*self.environment;
        let (config, memory) = (&self.config, &self.memory);
        let starting =
            DataProcess::start(exe, *require_walls, dir, &self.name, config, memory, &self.kept);
        let process = self.patient(starting).await?;
        tracing::info!(switch = self.name, pid = process.pid(), "data process started");
        self.runs(process)?;
        self.renew_sampling();
        self.warn_of_cpus();
        self.send_limits().await;
        self.retire_numbers().await;
        self.restore_kept().await;
        self.renew_ports().await;
        if let Err(error) = self.send_rules().await {
            // Without them, what they deny would pass.
            self.process.iter().for_each(DataProcess::kill);
            return Err(io::Error::other(format!("rules were not taken: {error}")));
        }
        self.restore_all_ports().await;
        if let Err(error) = self.command(&Command::Resume, &[]).await {
            tracing::error!(switch = self.name, %error, "the switch goes on late");
        }
        if let Some((gap, pause)) = self.row.forwards(Instant::now()) {
            tracing::info!(
                event = "restart",
                switch = self.name,
                ?gap,
                ?pause,
                "the switch forwards again"
            );
        }
        Ok(())
    }

    /// A CPU may have gone since it was configured. The switch then runs elsewhere, with a warning.
    fn warn_of_cpus(&self) {
        let workers = self.view.workers(self.config.workers.len());
        for (number, (wanted, is)) in self.config.workers.iter().zip(workers).enumerate() {
            if let (Some(cpu), None) = (wanted.cpu, is.cpu) {
                let switch = &self.name;
                tracing::warn!(switch, number, cpu, "worker cannot be on its CPU; it runs on any");
            }
        }
    }

    /// Handles the end of the data process. Returns false if another process has taken its place by
    /// now.
    pub fn ended(&mut self, watch: WatchId) -> bool {
        if self.watch != Some(watch) {
            return false;
        }
        let now = Instant::now();
        self.row.died(now);
        self.drop_process();
        self.state = SwitchState::Restarting;
        self.restarts += 1;
        if self.row.ran_well(now) {
            self.quarantine.ran_well();
        }
        let deed = self.view.take_last_deed(self.config.workers.len());
        if let Some((id, doing)) = deed {
            let port = self.name_of(id);
            let uid = self.uid_of(&port);
            tracing::error!(
                event = "fault",
                switch = self.name,
                port,
                uid,
                ?doing,
                "data process died serving a port"
            );
        }
        let culprit = deed.map(|(id, _)| id);
        if let Some(id) = culprit.filter(|_| self.quarantine.died_of(culprit)) {
            self.quarantine_port(id);
        }
        true
    }

    /// Kills a data process that has a stuck worker. Its successor serves the other ports.
    pub fn look_after_workers(&mut self, now: Instant) {
        let Some(process) = &self.process else { return self.watchdog.begin() };
        let at_work = self.view.at_work(self.config.workers.len());
        let Some((worker, id)) = self.watchdog.look(&at_work, now) else { return };
        let port = self.name_of(id);
        tracing::error!(
            event = "fault",
            switch = self.name,
            worker,
            port,
            uid = self.uid_of(&port),
            "worker is stuck serving a port: its process is ended"
        );
        self.view.blame(worker);
        process.kill();
        self.watchdog.begin();
    }

    /// Closes a port that killed two data processes in a row. The port and its user must wait, so
    /// the other ports live.
    fn quarantine_port(&mut self, id: PortId) {
        let Some(port) = self.ports.get(&id) else { return };
        let (name, configured) = (port.name.clone(), port.configured);
        let term = self.quarantine.begin(offender(&name, port.uid(self.access)), Instant::now());
        let uid = self.uid_of(&name);
        tracing::error!(
            event = "quarantine",
            switch = self.name,
            port = name,
            uid,
            ?term,
            "port is quarantined"
        );
        // No data process runs, so none has to be told.
        let _ = self.vacated(id, Ok(None));
        if !configured {
            return self.forget(id);
        }
        if let Some(port) = self.ports.get_mut(&id) {
            port.quarantined = true;
            port.failure = Some(format!(
                "The data process died twice as it served this port; it may be opened again {} s after that, or \
                 after toklat upgrade: see the daemon's log, and report a bug",
                term.as_secs()
            ));
        }
    }

    /// Checks that neither the user nor the port of this name is quarantined.
    ///
    /// # Errors
    /// Says how long the quarantine lasts.
    pub(super) fn check_quarantine(&self, name: &str, uid: u32) -> Result<(), ApiError> {
        let Some(left) = self.quarantine.lasts(&offender(name, uid), Instant::now()) else {
            return Ok(());
        };
        let left = left.as_secs() + 1;
        let reason = format!("{}:{name} is quarantined for {left} s more", self.name);
        let remedy =
            "its data process died of it twice: see the daemon's log, or use toklat upgrade";
        Err(ApiError::new(ErrorCode::Busy, reason, remedy))
    }

    fn drop_process(&mut self) {
        if let (Some(process), Some(watch)) = (self.process.take(), self.watch.take()) {
            self.environment.hangups.unwatch(watch, &process);
            process.kill();
            self.last_words = Some(process.into_reader());
        }
    }

    /// Claims the restart for the caller. Returns false if the data process runs, the switch was
    /// removed, or another task has claimed the restart.
    pub fn claim_restart(&mut self) -> bool {
        let wanted = !self.removed && !self.is_running() && !self.restarting;
        self.restarting |= wanted;
        wanted
    }

    /// Ends the claim of [`claim_restart`](Self::claim_restart), successful or not.
    pub fn end_restart(&mut self) {
        self.restarting = false;
    }

    /// The pause before a restart.
    pub fn restart_delay(&mut self) -> Duration {
        let (pause, is_first) = self.row.pause(Instant::now());
        if !is_first {
            self.release_host();
        }
        pause
    }

    /// Replaces the data process without losing a frame. Returns process ids before and after, and
    /// how long there was none.
    ///
    /// # Errors
    /// The installed program speaks other control messages: the old process runs on. The new
    /// process cannot be started: if none runs afterwards, the caller schedules a restart.
    pub async fn upgrade(&mut self) -> io::Result<(Option<u32>, u32, Duration)> {
        self.patient(check_version(&self.environment.exe)).await?;
        self.row.end_row();
        self.end_quarantine();
        let old = self.process.as_ref().map(DataProcess::pid);
        let from = Instant::now();
        self.stop().await;
        self.start().await?;
        let new = self.process.as_ref().map_or(0, DataProcess::pid);
        Ok((old, new, from.elapsed()))
    }

    /// Everybody may open ports again.
    fn end_quarantine(&mut self) {
        self.quarantine.end_all();
        for port in self.ports.values_mut().filter(|port| port.quarantined) {
            (port.quarantined, port.failure) = (false, None);
        }
    }

    /// Stops the data process gracefully.
    pub async fn stop(&mut self) {
        let Some(process) = &self.process else { return };
        let watch = self.watch.take();
        if let Some(watch) = watch {
            self.environment.hangups.unwatch(watch, process);
        }
        let stall_timeout = Duration::from_millis(self.config.stall_timeout_ms.into());
        let stopped = self.patient(process.stop(stall_timeout)).await;
        if let Err(error) = stopped {
            tracing::warn!(switch = self.name, %error, "data process did not stop in order");
            process.kill();
        }
        if let Err(error) = self.patient(process.ended()).await {
            tracing::warn!(switch = self.name, %error, "cannot wait for the data process");
        }
        self.last_words = self.process.take().map(DataProcess::into_reader);
        self.state = SwitchState::Restarting;
    }

    /// Removes the switch for good, with its ports and socket; clients' tokens close.
    pub async fn remove(&mut self) {
        self.stop().await;
        self.removed = true;
        (self.sampling, self.memory_charge) = (None, None);
        let ids: Vec<_> = self.ports.keys().copied().collect();
        for id in ids {
            self.detach(id);
            self.forget(id);
        }
        // Removing fails if the socket was never made.
        let _ = std::fs::remove_file(socket_path(&self.environment.dir, &self.name));
    }

    /// Sends a command to the data process. Returns `None` if none runs: the record then applies at
    /// its restart.
    async fn command(
        &self,
        command: &Command,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Option<Answer>, ApiError> {
        let Some(process) = &self.process else { return Ok(None) };
        self.interpret(self.patient(process.ask(command, fds)).await)
    }

    /// Waits for the data process, or for anything else that takes its time. Readers get a copy of
    /// the switch meanwhile.
    async fn patient<T>(&self, waiting: impl Future<Output = T>) -> T {
        self.readers.serve_during(waiting, || self.overview()).await
    }

    /// Those who read the switch while a task waits as its holder.
    #[must_use]
    pub fn readers(&self) -> Arc<Readers> {
        Arc::clone(&self.readers)
    }

    /// Interprets the answer to a command, as `command` does.
    fn interpret(&self, answer: Result<Answer, AskError>) -> Result<Option<Answer>, ApiError> {
        match answer {
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

    /// Works as `command`, for commands that are not recorded.
    async fn command_unrecorded(&self, command: &Command) -> Result<(), ApiError> {
        let told = self.command(command, &[]).await;
        // The command is not recorded, so it fails if no data process runs.
        match told.map_err(|error| ApiError { remedy: "nothing was changed".into(), ..error })? {
            Some(_) => Ok(()),
            None => Err(self.is_starting()),
        }
    }

    fn is_starting(&self) -> ApiError {
        ApiError::new(
            ErrorCode::DataProcess,
            format!("The data process of {} is being started", self.name),
            "try again in a second",
        )
    }

    /// Changes the switch's settings.
    ///
    /// # Errors
    /// The settings need a new data process while clients have ports open, or it refused. If no
    /// data process runs afterwards, the caller schedules a restart.
    pub async fn set_config(&mut self, config: SwitchConfig) -> Result<(), ApiError> {
        change::check_trusted(&self.name, &self.config, &config)?;
        if change::needs_restart(&self.config, &config) {
            return self.rebuild(config).await;
        }
        if self.config != config {
            self.command(&Command::set_switch(&config), &[]).await?;
            self.config = config;
        }
        Ok(())
    }

    /// Restarts the data process with memory of another layout.
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
        let ledger = &self.environment.ledger;
        let wanted = StateMemory::of(&self.name, &config, self.access);
        let _room = wanted.reserve(Some(&self.state_memory()), ledger)?;
        let (fresh, charge) = (new_state(&config)?, wanted.count(ledger));
        self.stop().await;
        ((self.memory, self.view), self.memory_charge) = (fresh, charge);
        self.config = config;
        self.unretired.clear();
        locked(&self.kept).clear();
        self.ports.values_mut().for_each(|port| port.known = false);
        self.start().await.map_err(|e| system("Cannot start the data process", e))
    }

    /// The state memory file, for a process of a trusted switch.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn state_file(&self) -> io::Result<Descriptor> {
        self.memory.as_fd().try_clone_to_owned().map(Descriptor::ours)
    }

    /// Returns true if the switch has no ports.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    /// Returns true while a data process runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.process.is_some()
    }
}

fn new_state(config: &SwitchConfig) -> Result<(Memfd, State), ApiError> {
    let failed = |e| system("Cannot make the switch's state memory", io::Error::other(e));
    let memory = Memfd::create("toklat-state", state::file_size(config), Pages::Small);
    let memory = memory.map_err(failed)?;
    let view = State::map(&memory, config).map_err(failed)?;
    Ok((memory, view))
}

/// Returns what to quarantine for a port of this name and user. Root and the daemon's user lose
/// only the port, not all their ports.
fn offender(name: &str, uid: u32) -> Offender {
    match uid == 0 || uid == rustix::process::geteuid().as_raw() {
        true => Offender::Port(name.into()),
        false => Offender::User(uid),
    }
}
