//! EVPN in the daemon: joins tunnels and forwarding tables with the speaker ([`evpn::speaker`]).
//!
//! ```text
//!   journals in state memory --> followers::follow --> orders --> speaker (a thread) --gRPC--> gobgpd
//!   tunnels, tables <-- switch.set_hosts, set_stations <-- changes --/                           ^
//!                                                 keeper (on the same thread): starts it, watches it
//! ```
//!
//! The speaker's thread may stall with the routing daemon. The supervisor never waits for it:
//! orders that do not fit its queue are said again as a whole, later.

mod followers;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use evpn::client::{Identity, Neighbor};
use evpn::report::{MacInfo, RouteInfo, Summary};
use evpn::rib::Limits;
use evpn::segment::TableChange;
use evpn::speaker::{Order, Setup, Speaker};
use frame::Mac;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use topology::{Evpn, EvpnNeighbor};

use super::evpn::gobgpd::Keeper;
use super::evpn::{Running, ask, no_evpn};
use super::supervisor::Supervisor;
use super::{locked, system};
use crate::api::{ApiError, ErrorCode};

/// Orders that wait for the speaker.
const ORDERS: usize = 4096;
/// Changes that wait for the switches.
const CHANGES: usize = 16;

impl Supervisor {
    /// Applies the settings of EVPN.
    ///
    /// # Errors
    /// The speaker's thread cannot be started.
    pub fn set_evpn(self: &Arc<Self>, settings: Option<&Evpn>) -> Result<(), ApiError> {
        self.environment.tunnels.set_evpn(settings.cloned());
        let earlier = locked(&self.evpn.running).take();
        if let Some(earlier) = earlier {
            // The new settings may have another AS, so the routing daemon ends, too.
            earlier.tasks.iter().for_each(JoinHandle::abort);
            earlier.keeper.end();
        }
        let Some(settings) = settings else { return Ok(()) };
        let running = self.start_evpn(settings.clone());
        let running = running.map_err(|e| system("Cannot start EVPN", e))?;
        *locked(&self.evpn.running) = Some(running);
        Ok(())
    }

    fn start_evpn(self: &Arc<Self>, settings: Evpn) -> std::io::Result<Running> {
        let (orders, taken) = mpsc::channel(ORDERS);
        let (made, changes) = mpsc::channel(CHANGES);
        let keeper = Arc::new(Keeper::new(&settings, &self.options.dir));
        let setup = setup_of(&settings, keeper.socket());
        let its = Arc::clone(&keeper);
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            match runtime {
                Ok(runtime) => runtime.block_on(async move {
                    let keeping = tokio::spawn(async move { its.keep().await });
                    Speaker::new(setup, taken, made).run().await;
                    keeping.abort();
                }),
                Err(error) => tracing::error!(%error, "cannot start EVPN"),
            }
        };
        std::thread::Builder::new().name("evpn".into()).spawn(run)?;
        let followers = followers::follow(Arc::clone(self), settings, orders.clone());
        let applying = apply_changes(Arc::clone(self), changes);
        let tasks = vec![tokio::spawn(followers), tokio::spawn(applying)];
        Ok(Running { orders, keeper, tasks })
    }

    /// Stops EVPN, and the routing daemon if this daemon started it.
    pub fn stop_evpn(&self) {
        if let Some(running) = locked(&self.evpn.running).take() {
            running.tasks.iter().for_each(JoinHandle::abort);
            running.keeper.end();
        }
    }

    /// The state of EVPN.
    ///
    /// # Errors
    /// This host has no EVPN, or the speaker does not answer.
    pub async fn evpn_summary(&self) -> Result<Summary, ApiError> {
        let orders = self.evpn.orders().ok_or_else(no_evpn)?;
        let mut summary = ask(&orders, Order::Summary).await?;
        let trouble = locked(&self.evpn.running).as_ref().and_then(|its| its.keeper.trouble());
        // If the keeper knows why the routing daemon does not run, that reason says more than its
        // missing answer.
        summary.trouble = trouble.filter(|_| !summary.connected).or(summary.trouble);
        Ok(summary)
    }

    /// All stations that EVPN knows.
    ///
    /// # Errors
    /// This host has no EVPN, or the speaker does not answer.
    pub async fn evpn_macs(&self) -> Result<Vec<MacInfo>, ApiError> {
        ask(&self.evpn.orders().ok_or_else(no_evpn)?, Order::Macs).await
    }

    /// All routes of other hosts.
    ///
    /// # Errors
    /// This host has no EVPN, or the speaker does not answer.
    pub async fn evpn_routes(&self) -> Result<Vec<RouteInfo>, ApiError> {
        ask(&self.evpn.orders().ok_or_else(no_evpn)?, Order::Routes).await
    }

    /// Lets a station that moved too often move again.
    ///
    /// # Errors
    /// The station did not move too often, this host has no EVPN, or the speaker does not answer.
    pub async fn release_duplicate(&self, vni: u32, mac: Mac) -> Result<(), ApiError> {
        let orders = self.evpn.orders().ok_or_else(no_evpn)?;
        let released = ask(&orders, |to| Order::Release(vni, mac, to)).await?;
        released.then_some(()).ok_or_else(|| {
            let reason = format!("{mac} of VNI {vni} is no duplicate");
            ApiError::new(ErrorCode::NotFound, reason, "see `toklat evpn show macs`")
        })
    }
}

fn setup_of(settings: &Evpn, socket: &Path) -> Setup {
    let identity = Identity {
        asn: settings.asn,
        router: settings.router_id,
        local: settings.vtep,
        restart_time: settings.graceful_restart_s,
    };
    let neighbor = |neighbor: &EvpnNeighbor| Neighbor {
        address: neighbor.address,
        asn: neighbor.asn.unwrap_or(settings.asn),
        multihop: neighbor.multihop,
        hold_time: neighbor.hold_time_s,
        bfd: neighbor.bfd.map(|bfd| (bfd.interval_ms, bfd.multiplier)),
        password: neighbor.password.clone(),
    };
    let limits = Limits { per_host: settings.max_stations_per_host, ..Limits::default() };
    let neighbors = settings.neighbor.iter().map(neighbor).collect();
    Setup { identity, neighbors, socket: socket.to_owned(), limits }
}

/// Hands changes to the switches. One that a switch cannot take now is tried again.
async fn apply_changes(
    supervisor: Arc<Supervisor>,
    mut changes: mpsc::Receiver<(u32, TableChange)>,
) {
    const PAUSE: Duration = Duration::from_millis(50);
    while let Some((vni, change)) = changes.recv().await {
        let mut said = false;
        while let Err(error) = apply(&supervisor, vni, &change).await {
            if !std::mem::replace(&mut said, true) {
                tracing::warn!(vni, %error, "routes wait for a switch");
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

async fn apply(supervisor: &Supervisor, vni: u32, change: &TableChange) -> Result<(), ApiError> {
    for handle in supervisor.tunnel_handles() {
        let mut switch = handle.lock().await;
        if !switch.has_segment(vni) {
            continue;
        }
        match change {
            TableChange::Hosts { peers, flooded } => {
                switch.set_hosts(vni, (peers.clone(), flooded.clone())).await?;
            }
            TableChange::Owners(owners) => switch.set_owners(vni, owners.clone()).await?,
            TableChange::Stations(stations) => {
                let remote = |station: &evpn::segment::Station| {
                    let evpn::segment::Station { mac, via, sticky, moved } = *station;
                    dataplane::control::Remote { mac, via, sticky, moved }
                };
                let stations = stations.iter().map(remote).collect();
                let refused = switch.set_stations(vni, stations).await?;
                if refused > 0 {
                    let switch = &switch.name;
                    tracing::warn!(switch, vni, refused, "stations had no room: raise fdb_entries");
                }
            }
        }
        return Ok(());
    }
    // The segment's tunnel is gone.
    Ok(())
}
