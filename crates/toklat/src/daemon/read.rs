//! Reads the state of switches and the topology, without waiting for those that are busy.

use std::pin::pin;
use std::sync::Arc;

use tokio::time::{Instant, sleep_until, timeout};

use super::locked;
use super::overview::{BRIEF, Overview};
use super::shared::Handle;
use super::supervisor::{Supervisor, monotonic_ns};
use super::switch::{Switch, no_port};
use super::who::Who;
use crate::api::{ApiError, ChildInfo, PortInfo, Stats, Status, SwitchInfo, Topology};

impl Supervisor {
    /// Describes a switch.
    ///
    /// # Errors
    /// There is no such switch.
    pub async fn switch_info(&self, name: &str) -> Result<SwitchInfo, ApiError> {
        let handle = self.switch(name)?;
        Ok(info(&handle, Instant::now() + BRIEF).await)
    }

    /// Describes all switches.
    pub async fn switch_infos(&self) -> Vec<SwitchInfo> {
        let until = Instant::now() + BRIEF;
        let mut infos = Vec::new();
        for handle in self.handles() {
            infos.push(info(&handle, until).await);
        }
        infos
    }

    /// Describes a port.
    ///
    /// # Errors
    /// There is no such port.
    pub async fn port_info(&self, switch: &str, port: &str) -> Result<PortInfo, ApiError> {
        let handle = self.switch(switch)?;
        let live = |of: &Switch| Ok(of.port_info(of.port(port)?));
        let copy = |of: &Arc<Overview>| {
            let found = of.ports.iter().find(|info| info.name == port);
            found.cloned().ok_or_else(|| no_port(switch, port))
        };
        read(&handle, Instant::now() + BRIEF, live, copy).await
    }

    /// As [`Self::port_info`], of a port that the caller may see.
    ///
    /// # Errors
    /// There is no such port that the caller may see.
    pub async fn port_seen(
        &self,
        switch: &str,
        port: &str,
        who: &Who,
    ) -> Result<PortInfo, ApiError> {
        let of = self.switch_info(switch).await?;
        let found = self.port_info(switch, port).await?;
        if who.sees(&of, &found) { Ok(found) } else { Err(no_port(switch, port)) }
    }

    /// A switch as readers of all its ports see it.
    ///
    /// # Errors
    /// There is no such switch.
    pub async fn overview(&self, name: &str) -> Result<Arc<Overview>, ApiError> {
        let handle = self.switch(name)?;
        Ok(overview_of(&handle, Instant::now() + BRIEF).await)
    }

    /// All switches as readers of all ports see them.
    pub async fn overviews(&self) -> Vec<Arc<Overview>> {
        let until = Instant::now() + BRIEF;
        let mut all = Vec::new();
        for handle in self.handles() {
            all.push(overview_of(&handle, until).await);
        }
        all
    }

    /// Counters of all switches, or of one: of the ports that the caller may see.
    ///
    /// # Errors
    /// There is no such switch.
    pub async fn stats(&self, only: Option<&str>, who: &Who) -> Result<Stats, ApiError> {
        let overviews = match only {
            Some(name) => vec![self.overview(name).await?],
            None => self.overviews().await,
        };
        let seen: Vec<_> = overviews.iter().map(|overview| overview.seen_by(who)).collect();
        Ok(stats(seen.iter().map(AsRef::as_ref)))
    }

    /// Describes the daemon for the API.
    pub async fn status(&self) -> Status {
        let until = Instant::now() + BRIEF;
        let handles = self.handles();
        let (mut ports, mut gap, mut children) = (0, 0, Vec::new());
        let counts =
            |ports: usize, info: SwitchInfo| (ports, info.restart_gaps.longest_ms, processes(info));
        for handle in &handles {
            let live = |of: &Switch| counts(of.ports().len(), of.info());
            let copied = |copy: &Arc<Overview>| counts(copy.ports.len(), copy.info.clone());
            let (count, longest, its) = read(handle, until, live, copied).await;
            (ports, gap) = (ports + count, gap.max(longest));
            children.extend(its);
        }
        children.extend(locked(&self.evpn.running).as_ref().and_then(|its| its.keeper.child()));
        children.extend(self.guests.children());
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs(),
            runtime_dir: self.options.dir.display().to_string(),
            switches: handles.len(),
            ports,
            descriptors: std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count),
            descriptor_limit: self.descriptor_limit,
            longest_restart_gap_ms: gap,
            children,
        }
    }

    /// The configuration and its entity tag, which differs after each change. During a change that
    /// takes long, it is that from before the change.
    pub async fn get_topology(&self) -> (Topology, String) {
        match timeout(BRIEF, self.topology.lock()).await {
            Ok(now) => (Topology::clone(&now), now.tag()),
            Err(_) => {
                let last = Arc::clone(&locked(&self.last));
                (*last).clone()
            }
        }
    }
}

/// Reads a switch: as it is or, if another task has it beyond `until`, the copy that this task
/// leaves while it waits.
async fn read<T>(
    handle: &Handle,
    until: Instant,
    live: impl FnOnce(&Switch) -> T,
    copy: impl FnOnce(&Arc<Overview>) -> T,
) -> T {
    let mut lock = pin!(handle.lock());
    tokio::select! {
        biased;
        switch = lock.as_mut() => return live(&switch),
        () = sleep_until(until) => {}
    }
    tokio::select! {
        biased;
        switch = lock => live(&switch),
        known = handle.readers().copy() => copy(&known),
    }
}

async fn info(handle: &Handle, until: Instant) -> SwitchInfo {
    read(handle, until, Switch::info, |copy| copy.info.clone()).await
}

async fn overview_of(handle: &Handle, until: Instant) -> Arc<Overview> {
    read(handle, until, |of| Arc::new(of.overview()), Arc::clone).await
}

/// The processes of a switch.
fn processes(info: SwitchInfo) -> impl Iterator<Item = ChildInfo> {
    let name = format!("data process of {}", info.name);
    let data = ChildInfo { name, pid: info.pid, walls: info.walls };
    std::iter::once(data).chain(info.children)
}

/// Counters of these switches.
pub(super) fn stats<'o>(overviews: impl Iterator<Item = &'o Overview>) -> Stats {
    let switches = overviews.map(Overview::stats).collect();
    Stats { at_ns: monotonic_ns(), switches }
}
