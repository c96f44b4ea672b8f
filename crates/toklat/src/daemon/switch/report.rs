//! Descriptions of a switch, and operations on its forwarding table.

use std::os::unix::fs::MetadataExt;

use dataplane::board::Board;
use dataplane::config::{Attachment, PortId};
use dataplane::control::Command;
use dataplane::state::State;
use dataplane::user::Standing;
use fabric::VlanMode;
use frame::{Mac, VlanId};

use super::super::open;
use super::super::overview::Overview;
use super::super::process::DataProcess;
use super::super::supervisor::monotonic_ns;
use super::{Port, Switch};
use crate::api::{
    ApiError, ChildInfo, ErrorCode, FdbFlush, NewFdbEntry, PortInfo, PortState, SwitchInfo,
};

/// The VLAN of an address that is added at a port of this mode: the given one or the port's own.
///
/// # Errors
/// No frame to the port is in this VLAN, or the port has several.
fn vlan_of(port: &str, mode: &VlanMode, given: Option<VlanId>) -> Result<Option<VlanId>, ApiError> {
    let bad =
        |reason: String, remedy: &str| Err(ApiError::new(ErrorCode::BadRequest, reason, remedy));
    match (mode, given) {
        (VlanMode::Unaware, None) => Ok(None),
        (VlanMode::Unaware, Some(vlan)) => bad(
            format!("{port} is in no VLAN, so that no frame to it is in VLAN {vlan}"),
            "leave --vlan out, or make the port a member: toklat port set --vlan-access",
        ),
        (VlanMode::Access(own), None) => Ok(Some(*own)),
        (VlanMode::Access(own), Some(vlan)) if *own != vlan => {
            bad(format!("{port} is in VLAN {own}, not in {vlan}"), "leave --vlan out")
        }
        (VlanMode::Trunk { allowed, .. }, Some(vlan))
            if !allowed.is_empty() && !allowed.contains(&vlan) =>
        {
            let remedy = "see toklat port show, and toklat port set --vlan-trunk";
            bad(format!("{port} is not in VLAN {vlan}"), remedy)
        }
        (VlanMode::Trunk { native: None, .. }, None) => {
            bad(format!("{port} is in several VLANs"), "say which the address is in: --vlan")
        }
        (VlanMode::Trunk { native, .. }, None) => Ok(*native),
        (_, given) => Ok(given),
    }
}

impl Switch {
    /// The user whose a port is; the daemon's if there is none of this name.
    #[must_use]
    pub fn uid_of(&self, name: &str) -> u32 {
        let own = || rustix::process::geteuid().as_raw();
        self.port(name).map_or_else(|_| own(), |port| port.uid(self.access))
    }

    /// Whether the port of this name works; `None` if there is none.
    #[must_use]
    pub fn health(&self, name: &str) -> Option<bool> {
        self.port(name).ok().map(|port| self.failure_of(port).is_none())
    }

    /// Forgets learned addresses.
    ///
    /// # Errors
    /// There is no such port, or no data process runs.
    pub async fn flush_fdb(&self, flush: &FdbFlush) -> Result<(), ApiError> {
        let port = flush.port.as_deref().map(|name| self.port(name)).transpose()?.map(|p| p.id);
        self.command_unrecorded(&Command::FlushFdb { port, vlan: flush.vlan }).await
    }

    /// Adds a permanent address.
    ///
    /// # Errors
    /// There is no such port, it is not in this VLAN, the address is fixed at another port, there
    /// is no room, or no data process runs.
    pub async fn add_fdb(&self, entry: &NewFdbEntry) -> Result<(), ApiError> {
        let port = self.port(&entry.port)?;
        let name = format!("{}:{}", self.name, entry.port);
        let vlan = vlan_of(&name, &port.spec.vlan(), entry.vlan)?;
        let port = port.id;
        self.check_fixed(entry.mac, vlan, port)?;
        self.command_unrecorded(&Command::AddFdb { mac: entry.mac, vlan, port }).await
    }

    /// Checks that the rules of no other port fix this address there (`--mac`).
    fn check_fixed(&self, mac: Mac, vlan: Option<VlanId>, at: PortId) -> Result<(), ApiError> {
        let is_in = |mode: &VlanMode| match mode {
            VlanMode::Unaware => vlan.is_none(),
            VlanMode::Access(own) => Some(*own) == vlan,
            VlanMode::Trunk { allowed, native } => {
                vlan.is_none_or(|vlan| allowed.is_empty() || allowed.contains(&vlan))
                    || *native == vlan
            }
        };
        let fixes = |port: &&Port| {
            port.id != at && port.spec.policy.macs.contains(&mac) && is_in(&port.spec.vlan())
        };
        let Some(other) = self.ports().find(fixes) else { return Ok(()) };
        let name = format!("{}:{}", self.name, other.name);
        let reason = format!("{mac} is fixed at {name} (--mac)");
        let remedy = format!("take it from there first: toklat port set {name} --mac none");
        Err(ApiError::new(ErrorCode::Exists, reason, remedy))
    }

    /// Removes an address.
    ///
    /// # Errors
    /// There is no such address, or no data process runs.
    pub async fn delete_fdb(&self, mac: Mac, vlan: Option<VlanId>) -> Result<(), ApiError> {
        let done = self.command_unrecorded(&Command::DeleteFdb { mac, vlan }).await;
        let now = port::Nanos(monotonic_ns());
        done.map_err(|error| {
            let entries = self.view.fdb(now);
            let mut of_mac = entries.iter().filter(|entry| entry.mac == mac);
            let code = match of_mac.clone().any(|entry| entry.vlan == vlan) {
                true => error.code,
                false => ErrorCode::NotFound,
            };
            match of_mac.find_map(|entry| entry.vlan.filter(|other| Some(*other) != vlan)) {
                Some(other) if code == ErrorCode::NotFound => {
                    let reason = format!("{mac} is in the table in VLAN {other} only");
                    ApiError::new(code, reason, format!("name it: --vlan {other}"))
                }
                _ => ApiError { code, ..error },
            }
        })
    }

    /// The switch's state memory.
    #[must_use]
    pub fn view(&self) -> &State {
        &self.view
    }

    /// The switch's ports, by number.
    pub fn ports(&self) -> impl ExactSizeIterator<Item = &Port> {
        self.ports.values()
    }

    /// The name of port `id`.
    #[must_use]
    pub fn name_of(&self, id: PortId) -> String {
        self.ports.get(&id).map_or_else(|| format!("#{id}"), |port| port.name.clone())
    }

    /// The frames of a port that were dropped so far, with the reasons; `None` if all were
    /// delivered.
    #[must_use]
    pub fn losses(&self, name: &str) -> Option<String> {
        let port = self.port(name).ok().filter(|port| port.known)?;
        let stats = self.view.port(port.id)?.snapshot();
        let ways = [("sent", stats.in_drops), ("to be received", stats.out_drops)];
        let lost: Vec<_> = ways
            .iter()
            .flat_map(|(way, drops)| {
                drops.iter().map(move |(reason, count)| format!("{count} {way}: {}", reason.name()))
            })
            .collect();
        (!lost.is_empty()).then(|| lost.join(", "))
    }

    /// Describes the switch for the API.
    #[must_use]
    pub fn info(&self) -> SwitchInfo {
        SwitchInfo {
            name: self.name.clone(),
            state: self.state,
            failure: self.failure.clone(),
            pid: self.process.as_ref().map(DataProcess::pid),
            restarts: self.restarts,
            restart_gaps: self.row.gaps(),
            ephemeral: self.ephemeral,
            stopped_holder: self.stopped_holder(),
            walls: self.walls.clone(),
            children: self.ports.values().filter_map(|port| self.card_process(port)).collect(),
            ports: self.ports.len(),
            owner: self.access.owner,
            user: self.access.user,
            sflow: self.sampling.as_ref().map(|sampling| sampling.info()),
            config: self.config.clone(),
        }
    }

    /// The process that is a trusted switch, if it is stopped. Until it goes on, nothing is
    /// forwarded.
    fn stopped_holder(&self) -> Option<u32> {
        let (thread, namespace) = Board::of(&self.view)?.lock_holder()?;
        let own = std::fs::metadata("/proc/self/ns/pid").ok()?.ino();
        let status = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let is_stopped = field("State:")?.starts_with(['T', 't']) && own == namespace;
        // One that went on meanwhile has freed the lock, or will.
        is_stopped.then(|| field("Tgid:")?.parse().ok())?
    }

    /// The process that drives a port's card.
    fn card_process(&self, port: &Port) -> Option<ChildInfo> {
        let (pid, walls) = port.waiting.as_ref()?.card()?.process()?;
        let name = format!("card process of {}:{}", self.name, port.name);
        Some(ChildInfo { name, pid: Some(pid), walls })
    }

    /// The reason why a port does not work; `None` if it does.
    pub(super) fn failure_of(&self, port: &Port) -> Option<String> {
        let failed = || {
            let state = self.view.port(port.id).filter(|state| port.known && state.has_failed())?;
            Some(match state.standing() {
                Standing::AtFault => {
                    "Its user is at fault: it took too long to wake the owners of its ports, or to touch their \
                     memory (`slow_calls`, `slow_touches`). It may open ports again some minutes after that"
                }
                _ => {
                    "Its code panicked, and it is out of service: see the daemon's log and report a bug; \
                     `toklat upgrade` serves it again"
                }
            })
        };
        let failed = || failed().map(ToOwned::to_owned).or_else(|| self.unwritten(port));
        port.failure.clone().or_else(failed)
    }

    /// The reason why a port's file is not written any more; `None` if it is.
    fn unwritten(&self, port: &Port) -> Option<String> {
        let path = open::of(&port.spec.kind).file()?;
        let error = self.view.port(port.id).filter(|_| port.known)?.write_error()?;
        Some(format!(
            "Cannot write {path}: {error}; it ends behind the last whole frame. Free space, then toklat upgrade {}",
            self.name
        ))
    }

    fn is_stalled(&self, port: &Port) -> bool {
        self.view.port(port.id).is_some_and(|state| port.known && state.is_stalled())
    }

    pub(super) fn state_of(&self, port: &Port) -> PortState {
        match &port.attachment {
            _ if port.quarantined => PortState::Quarantined,
            _ if self.failure_of(port).is_some() => PortState::Failed,
            _ if port.waits() => PortState::Waiting,
            Attachment::Vacant => PortState::Vacant,
            _ if port.spec.policy.lossless && self.is_stalled(port) => PortState::Stalled,
            _ => PortState::Attached,
        }
    }

    /// Describes a port for the API.
    #[must_use]
    pub fn port_info(&self, port: &Port) -> PortInfo {
        let monitors = match port.attachment {
            Attachment::Monitor { of, .. } => Some(self.name_of(of)),
            _ => None,
        };
        PortInfo {
            name: port.name.clone(),
            id: port.id,
            state: self.state_of(port),
            failure: self.failure_of(port),
            unconnected: port
                .unconnected()
                .map(|(why, time)| format!("{why}, for {} s", time.as_secs())),
            worker: port.worker.or(port.spec.worker),
            ephemeral: !port.configured,
            client: port.client,
            monitors,
            memory: self.view.port(port.id).map(|state| state.memory()).unwrap_or_default(),
            tunnel: port.tunnel_info(),
            interface: port.interface_info(),
            sflow_interface: self.sampling.as_ref().map(|sampling| sampling.interface(port.id)),
            spec: port.spec.clone(),
        }
    }

    /// A copy of what readers need.
    #[must_use]
    pub fn overview(&self) -> Overview {
        let ports = || self.ports.values();
        let unconnected = ports().filter_map(|port| {
            let (_, time) = port.unconnected()?;
            Some((port.name.clone(), time.as_secs()))
        });
        Overview {
            info: self.info(),
            view: self.view.clone(),
            ports: ports().map(|port| self.port_info(port)).collect(),
            unconnected: unconnected.collect(),
        }
    }
}
