//! The supervisor: all switches, the topology, and the operations of the API.
//!
//! Locks, outermost first: `topology` (held during every change of the configuration), then the
//! name of a switch that is being made, then a switch (held during requests to its data process).
//! Who opens ports never has `topology`. The map of switches is locked for look-ups only.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dataplane::config::SwitchConfig;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, mpsc, watch};
use tokio::time::{Instant, timeout_at};

use super::events::Journal;
use super::evpn::Speaking;
use super::front_ends::Arrival;
use super::guests::Guests;
use super::hangups::WatchId;
use super::mistake;
use super::netmap::opened::Netmap;
use super::objects::Notice;
use super::open::Written;
use super::overview::BRIEF;
use super::pipes::Pipes;
use super::sflow;
use super::shared::{Handle, Shared};
use super::store::{Configured, Store};
use super::switch::{Access, Environment, Switch};
use super::{DaemonOptions, locked, system};
use crate::api::{
    ApiError, ErrorCode, PipeInfo, PortKind, Stop, Topology, Upgraded, UpgradedSwitch,
};

/// The name of a switch that is made by the task that has this.
#[derive(Debug)]
pub(super) struct NameClaim {
    _claim: OwnedMutexGuard<()>,
}

/// The name of a switch, once no other task makes it.
#[derive(Debug)]
pub(super) enum Claimed {
    /// There is such a switch.
    Exists(Handle),
    /// There is none.
    ToMake(NameClaim),
}

/// Everything the daemon knows.
#[derive(Debug)]
pub struct Supervisor {
    pub(super) options: DaemonOptions,
    pub(super) started: std::time::Instant,
    pub(super) descriptor_limit: u64,
    pub(super) environment: Arc<Environment>,
    /// What has happened.
    pub(super) journal: Arc<Journal>,
    pub(super) topology: AsyncMutex<Configured>,
    /// The topology and its entity tag as of the last change, for readers during the next one.
    pub(super) last: Mutex<Arc<(Topology, String)>>,
    store: Store,
    switches: Mutex<BTreeMap<String, Handle>>,
    /// The names of switches that are being made, each locked by the task that makes it.
    making: Mutex<BTreeMap<String, Arc<AsyncMutex<()>>>>,
    /// The names of the trusted ones, which have no tunnels.
    trusted: Mutex<BTreeSet<String>>,
    pub(super) pipes: Pipes,
    pub(super) netmap: Netmap,
    pub(super) evpn: Speaking,
    pub(super) guests: Arc<Guests>,
    stop: watch::Sender<Option<Stop>>,
}

impl Supervisor {
    /// A supervisor without switches.
    #[must_use]
    pub fn new(
        options: DaemonOptions,
        environment: Environment,
        journal: Arc<Journal>,
        descriptor_limit: u64,
    ) -> Self {
        let pipes = Pipes::new(&options.dir);
        let guests = Arc::new(Guests::new(&options.dir, &environment.exe));
        Self {
            store: Store::new(options.state_directory()),
            options,
            started: std::time::Instant::now(),
            descriptor_limit,
            environment: Arc::new(environment),
            journal,
            topology: AsyncMutex::default(),
            last: Mutex::default(),
            switches: Mutex::default(),
            making: Mutex::default(),
            trusted: Mutex::default(),
            pipes,
            netmap: Netmap::default(),
            evpn: Speaking::default(),
            guests,
            stop: watch::Sender::new(None),
        }
    }

    /// The daemon's user.
    #[must_use]
    pub fn uid(&self) -> u32 {
        rustix::process::geteuid().as_raw()
    }

    /// The directory that keeps the topology, and captures that TCP clients ask for.
    pub(super) fn state_directory(&self) -> &Path {
        self.options.state_directory()
    }

    /// Where the applied topology is kept.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Saves the configuration.
    ///
    /// # Errors
    /// The kernel's error; the change is in force nevertheless.
    pub(super) fn save(&self, topology: &mut Configured) -> Result<(), ApiError> {
        topology.tidy();
        self.changed(topology);
        self.store.save(topology).map_err(|e| {
            let what = format!("Done, but not saved in {}", self.store.path().display());
            system(&what, e)
        })
    }

    /// Notes the configuration for readers.
    fn changed(&self, topology: &Configured) {
        *locked(&self.last) = Arc::new((Topology::clone(topology), topology.tag()));
    }

    /// All switches, by name.
    #[must_use]
    pub fn handles(&self) -> Vec<Handle> {
        locked(&self.switches).values().cloned().collect()
    }

    /// All switches that may have tunnels. A hostile process can hold up a trusted one, and
    /// whatever waits for its lock; so those are left out without their locks.
    #[must_use]
    pub fn tunnel_handles(&self) -> Vec<Handle> {
        let trusted = locked(&self.trusted).clone();
        let switches = locked(&self.switches);
        let others = switches.iter().filter(|(name, _)| !trusted.contains(*name));
        others.map(|(_, handle)| Arc::clone(handle)).collect()
    }

    /// Adds a switch to the map.
    fn put_in_map(&self, name: &str, switch: Switch) -> Handle {
        if switch.config.trusted {
            locked(&self.trusted).insert(name.to_owned());
        }
        let handle = Arc::new(Shared::new(switch));
        locked(&self.switches).insert(name.to_owned(), Arc::clone(&handle));
        handle
    }

    /// The switch of this name.
    #[must_use]
    pub fn handle(&self, name: &str) -> Option<Handle> {
        locked(&self.switches).get(name).cloned()
    }

    /// Finds the switch of this name.
    ///
    /// # Errors
    /// There is no such switch.
    pub fn switch(&self, name: &str) -> Result<Handle, ApiError> {
        self.handle(name).ok_or_else(|| {
            let reason = format!("There is no switch {name}");
            let switches = locked(&self.switches);
            let near = mistake::nearest(name, switches.keys().map(String::as_str));
            let remedy = near.map_or_else(
                || "see `toklat switch show`".to_owned(),
                |near| format!("did you mean {near}? See `toklat switch show`"),
            );
            ApiError::new(ErrorCode::NotFound, reason, remedy)
        })
    }

    /// Locks the name of a switch that is to be made, if there is none of this name yet. Other
    /// switches are made meanwhile.
    pub(super) async fn claim_name(&self, name: &str) -> Claimed {
        let lock = Arc::clone(locked(&self.making).entry(name.to_owned()).or_default());
        let claim = lock.lock_owned().await;
        locked(&self.making).retain(|_, lock| Arc::strong_count(lock) > 1);
        match self.handle(name) {
            Some(handle) => Claimed::Exists(handle),
            None => Claimed::ToMake(NameClaim { _claim: claim }),
        }
    }

    /// Makes a switch, or takes over its data process from an earlier supervisor.
    ///
    /// # Errors
    /// Its data process cannot be started.
    pub(super) async fn create(
        &self,
        name: &str,
        config: SwitchConfig,
        access: Access,
        ephemeral: bool,
    ) -> Result<Handle, ApiError> {
        let environment = Arc::clone(&self.environment);
        let mut switch = Switch::new(environment, name, config, access, ephemeral)?;
        let found = switch.find().await;
        if let Err(error) = &found {
            tracing::debug!(switch = name, %error, "no data process to take over");
            switch.start().await.map_err(|e| {
                ApiError::new(
                    ErrorCode::DataProcess,
                    format!("Cannot start the data process of {name}: {e}"),
                    "see the daemon's log",
                )
            })?;
        }
        Ok(self.put_in_map(name, switch))
    }

    /// All pipes.
    #[must_use]
    pub fn list_pipes(&self) -> Vec<PipeInfo> {
        self.pipes.list()
    }

    /// Kills data processes with stuck workers, forever, and reports to systemd that the daemon
    /// lives (`WatchdogSec=`).
    pub async fn look_after_workers(self: Arc<Self>, lives: impl Fn()) {
        let mut second = tokio::time::interval(Duration::from_secs(1));
        second.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            second.tick().await;
            let until = Instant::now() + BRIEF;
            for handle in self.handles() {
                // A switch that is locked for long waits for its data process, which is killed if
                // it does not answer.
                if let Ok(mut switch) = timeout_at(until, handle.lock()).await {
                    switch.look_after_workers(std::time::Instant::now());
                }
            }
            lives();
        }
    }

    /// Logs the frames of rules with `log`, forever.
    pub async fn log_frames(self: Arc<Self>) {
        let mut second = tokio::time::interval(Duration::from_secs(1));
        second.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            second.tick().await;
            for handle in self.handles() {
                // A switch that is locked for long is asked later.
                if let Ok(switch) = timeout_at(Instant::now() + BRIEF, handle.lock()).await {
                    switch.log_frames().await;
                }
            }
        }
    }

    /// Passes connected front ends to their ports, forever.
    pub async fn receive_front_ends(self: Arc<Self>, mut arriving: mpsc::Receiver<Arrival>) {
        while let Some(arrival) = arriving.recv().await {
            let Some(handle) = self.handle(&arrival.switch) else { continue };
            let room = self.check_descriptors(&arrival.socket);
            let whose = self.whose_are(arrival.socket.uid());
            tokio::spawn(async move {
                let uid = arrival.socket.uid();
                let mut switch = handle.lock_for(whose).await;
                let port = arrival.port.clone();
                let came = match room {
                    Ok(()) => switch.front_end_came(arrival).await,
                    Err(error) => {
                        switch.wait_again(&port);
                        Err(error)
                    }
                };
                match came {
                    Ok(()) => tracing::info!(
                        event = "client",
                        switch = switch.name,
                        port,
                        uid,
                        "front end connected"
                    ),
                    Err(error) => {
                        tracing::error!(event = "client", switch = switch.name, port, uid, %error, "front end was turned away");
                    }
                }
            });
        }
    }

    /// Makes ports wait whose objects are gone, and opens those whose objects are back, forever.
    pub async fn look_after_objects(self: Arc<Self>, mut noticed: mpsc::Receiver<Notice>) {
        while let Some(notice) = noticed.recv().await {
            let Some(handle) = self.handle(&notice.switch) else { continue };
            tokio::spawn(async move {
                let mut switch = handle.lock().await;
                if let Err(error) = switch.object_noticed(&notice).await {
                    let port = &notice.port;
                    tracing::debug!(switch = switch.name, port, %error, "port is not opened yet");
                }
            });
        }
    }

    /// Removes ports that a user's clients have closed.
    pub(super) async fn clients_gone(&self, switch: &str, uid: u32, gone: Vec<(String, WatchId)>) {
        let Some(handle) = self.handle(switch) else { return };
        if !handle.note_gone(uid, gone) {
            return;
        }
        // Closing is its user's task, as opening is.
        let mut switch = handle.lock_for(self.whose_are(uid)).await;
        let gone = handle.take_gone(uid);
        for (port, _) in &gone {
            let uid = switch.uid_of(port);
            tracing::info!(
                event = "client",
                switch = switch.name,
                port,
                uid,
                "client closed its port"
            );
        }
        if let Err(error) = switch.clients_gone(&gone).await {
            tracing::error!(switch = switch.name, %error, "ports were not detached in order");
        }
        self.drop_if_unused(&mut switch).await;
    }

    /// Removes a switch that clients made, once its last port is gone.
    pub(super) async fn drop_if_unused(&self, switch: &mut Switch) {
        if switch.ephemeral && !switch.removed && switch.ports().len() == 0 {
            tracing::info!(switch = switch.name, "switch is not used any more");
            self.drop_switch(switch).await;
        }
    }

    /// Removes a switch for good. The caller holds its lock. Tasks that wait for the lock find the
    /// switch marked removed, and out of the map.
    pub(super) async fn drop_switch(&self, switch: &mut Switch) {
        switch.remove().await;
        // In this order: the next switch of this name may be another kind.
        locked(&self.trusted).remove(&switch.name);
        locked(&self.switches).remove(&switch.name);
    }

    pub(super) async fn data_process_gone(&self, name: &str, watch: WatchId) {
        let Some(handle) = self.handle(name) else { return };
        if handle.lock().await.ended(watch) {
            restart(handle).await;
        }
    }

    /// Replaces data processes: of all switches, or of one.
    ///
    /// # Errors
    /// There is no such switch, or the new process cannot be started.
    pub async fn upgrade(&self, only: Option<&str>) -> Result<Upgraded, ApiError> {
        let handles = match only {
            Some(name) => vec![self.switch(name)?],
            None => self.handles(),
        };
        let mut switches = Vec::new();
        for handle in handles {
            let mut switch = handle.lock().await;
            if switch.removed {
                continue;
            }
            let upgraded = switch.upgrade().await;
            if upgraded.is_err() && !switch.is_running() {
                tokio::spawn(restart(Arc::clone(&handle)));
            }
            let (old_pid, new_pid, gap) = upgraded.map_err(|e| {
                let reason = format!("Cannot replace the data process of {}: {e}", switch.name);
                ApiError::new(ErrorCode::DataProcess, reason, "see the daemon's log")
            })?;
            let gap_ms = u64::try_from(gap.as_millis()).unwrap_or(u64::MAX);
            let name = switch.name.clone();
            switches.push(UpgradedSwitch { name, old_pid, new_pid, gap_ms });
        }
        Ok(Upgraded { switches })
    }

    /// Sends samples forever; sleeps while no switch is sampled.
    pub async fn export_samples(self: Arc<Self>) {
        let agents = Arc::clone(&self.environment.agents);
        loop {
            let mut any = false;
            for handle in self.handles() {
                // A switch that is locked now is served in the next round.
                any |= handle.try_lock().is_none_or(|mut switch| switch.send_samples());
            }
            match any {
                true => tokio::time::sleep(sflow::PAUSE).await,
                false => agents.wake.notified().await,
            }
        }
    }

    /// Checks that the daemon is not about to stop: then no client makes a switch.
    ///
    /// # Errors
    /// It is.
    pub(super) fn check_goes_on(&self) -> Result<(), ApiError> {
        if self.stop.borrow().is_none() {
            return Ok(());
        }
        Err(ApiError::new(ErrorCode::Busy, "The daemon stops", "start it again"))
    }

    /// Asks the daemon to stop.
    pub fn ask_to_stop(&self, how: Stop) {
        self.stop.send_replace(Some(how));
    }

    /// Waits until the daemon is told to stop.
    pub async fn asked_to_stop(&self) -> Stop {
        let mut asked = self.stop.subscribe();
        // The sender lives as long as self.
        let how = asked.wait_for(Option::is_some).await.map(|how| how.clone());
        how.ok().flatten().unwrap_or_default()
    }

    /// Ends all data processes in order, also one that is being started; no other is started any
    /// more.
    pub async fn stop_all(&self) {
        /// If a change of the topology takes longer than this, it is not waited for.
        const PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);
        let topology = tokio::time::timeout(PATIENCE, self.topology.lock()).await;
        self.guests.end_all().await;
        // Switches that are being made for clients are there first.
        let making: Vec<_> = locked(&self.making).keys().cloned().collect();
        for name in making {
            // One that takes longer is not waited for.
            let _ = tokio::time::timeout(PATIENCE, self.claim_name(&name)).await;
        }
        for handle in self.handles() {
            handle.lock().await.remove().await;
        }
        // The topology stays locked until the process ends, which is soon.
        std::mem::forget(topology);
    }

    /// Restores the saved topology or the topology file, and takes over running data processes.
    /// What fails is logged and does not stop the rest.
    pub async fn begin(&self, wanted: Configured) {
        let mut topology = self.topology.lock().await;
        self.environment.ledger.configure(wanted.quota.clone());
        self.environment.links.set(&wanted.link);
        *topology = wanted;
        self.changed(&topology);
        if let Err(error) = self.note_rules_again(&topology).await {
            tracing::error!(%error, "ports with this rule are not opened");
        }
        self.guests.begin(&topology.guest);
        for (name, spec) in &topology.switch {
            let made = self.create(name, spec.config.clone(), Access::of(spec), false).await;
            let handle = match made {
                Ok(handle) => handle,
                Err(error) => {
                    tracing::error!(switch = name, %error, "switch was not started");
                    continue;
                }
            };
            let mut switch = handle.lock().await;
            if let Err(error) = switch.set_config(spec.config.clone()).await {
                tracing::error!(switch = name, %error, "settings were not taken");
            }
            if let Err(error) = switch.set_sampling(sflow::Settings::of(spec)) {
                tracing::error!(switch = name, %error, "traffic is not sampled");
            }
            for (port, spec) in &spec.port {
                let done = match switch.port(port) {
                    Ok(_) => switch.claim_port(port, spec.clone()).await,
                    Err(_) => switch.add_port(port, spec.clone(), Written::Kept).await,
                };
                if let Err(error) = done {
                    tracing::error!(switch = name, port, %error, "port was not attached");
                    if switch.port(port).is_err() && spec.kind != PortKind::Ring {
                        switch.add_failed_port(port, spec.clone(), &error).await;
                    }
                }
            }
            switch.remove_leftovers().await;
        }
        self.find_others().await;
        self.environment.tunnels.settle();
    }

    /// Takes over switches that clients had made.
    async fn find_others(&self) {
        let Ok(entries) = std::fs::read_dir(&self.options.dir) else { return };
        for entry in entries.flatten() {
            let file = entry.file_name();
            let name = file.to_str().and_then(|f| f.strip_suffix(super::process::SOCKET_SUFFIX));
            let Some(name) = name.filter(|name| self.handle(name).is_none()) else { continue };
            let environment = Arc::clone(&self.environment);
            let access = Access::default();
            let switch = Switch::new(environment, name, SwitchConfig::default(), access, true);
            let Ok(mut switch) = switch else { continue };
            if let Err(error) = switch.find().await {
                tracing::debug!(switch = name, %error, "no data process to take over");
                // The interface may be gone already.
                let _ = std::fs::remove_file(entry.path());
                continue;
            }
            if super::netmap::end::was_made(&switch) {
                // The program lost its descriptors when the daemon that it had asked ended.
                switch.remove().await;
                continue;
            }
            switch.remove_leftovers().await;
            let handle = self.put_in_map(name, switch);
            self.drop_if_unused(&mut *handle.lock().await).await;
        }
    }
}

/// Restarts a data process: at once the first time, then with growing pauses if it keeps dying.
pub(super) async fn restart(handle: Handle) {
    if !handle.lock().await.claim_restart() {
        return;
    }
    try_to_restart(&handle).await;
    handle.lock().await.end_restart();
}

async fn try_to_restart(handle: &Handle) {
    loop {
        let mut switch = handle.lock().await;
        if switch.removed || switch.is_running() {
            return;
        }
        let delay = switch.restart_delay();
        tracing::warn!(
            event = "restart",
            switch = switch.name,
            ?delay,
            "no data process; starting it again"
        );
        if !delay.is_zero() {
            drop(switch);
            tokio::time::sleep(delay).await;
            switch = handle.lock().await;
        }
        if switch.removed || switch.is_running() {
            return;
        }
        match switch.start().await {
            Ok(()) => return,
            Err(error) => {
                tracing::error!(event = "restart", switch = switch.name, %error, "data process did not start");
            }
        }
    }
}

/// Time of the monotonic clock, in nanoseconds.
pub(super) fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let now = Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32);
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}
