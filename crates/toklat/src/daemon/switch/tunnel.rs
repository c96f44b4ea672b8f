//! Ports that are tunnels, and the state they share with other tunnels of the host.

use std::io;
use std::net::IpAddr;

use dataplane::attach::vxlan::VxlanConfig;
use dataplane::config::{Attachment, PortId};
use dataplane::control::{Answer, Command, Hosts, Remote};
use dataplane::state::State;
use fabric::VlanMode;
use frame::Mac;
use jail::strangers::Descriptor;
use topology::Vxlan;

use super::super::namespace;
use super::super::tunnels::{self, Tunnel};
use super::{Port, Switch};
use crate::api::{ApiError, PortKind, TunnelInfo};

/// A tunnel whose hosts come from EVPN.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Its port.
    pub port: PortId,
    /// The tunnel's settings, with the hosts that are known.
    pub config: VxlanConfig,
    /// As configured.
    pub kind: Vxlan,
    /// The filter in which the tunnel's stations are looked up.
    pub filter: u16,
    /// The switch's state memory.
    pub state: State,
}

impl Port {
    /// The other hosts, if the port is a tunnel.
    #[must_use]
    pub fn tunnel_info(&self) -> Option<TunnelInfo> {
        self.tunnel.as_ref().map(Tunnel::info)
    }
}

impl Switch {
    /// The tunnels whose hosts EVPN says.
    #[must_use]
    pub fn segments(&self) -> Vec<Segment> {
        let segment = |port: &Port| {
            let PortKind::Vxlan(kind) = &port.spec.kind else { return None };
            let config = port.tunnel.as_ref().map(Tunnel::config);
            let config = config.filter(|config| config.flooded.is_some())?.clone();
            let filter = match &port.spec.policy.vlan {
                VlanMode::Unaware => 0,
                VlanMode::Access(id) => id.get(),
                VlanMode::Trunk { native, .. } => native.map_or(0, |id| id.get()),
            };
            let (kind, state) = (kind.clone(), self.view.clone());
            Some(Segment { port: port.id, config, kind, filter, state })
        };
        self.ports.values().filter_map(segment).collect()
    }

    /// Changes the hosts of a segment's tunnel.
    ///
    /// # Errors
    /// The data process refused; or it is being started, and the call must be repeated.
    pub async fn set_hosts(
        &mut self,
        vni: u32,
        (peers, flooded): (Vec<IpAddr>, Vec<u16>),
    ) -> Result<(), ApiError> {
        let Some(id) = self.segment_port(vni) else { return Ok(()) };
        let Some(tunnel) = self.ports.get(&id).and_then(|port| port.tunnel.as_ref()) else {
            return Ok(());
        };
        let config = VxlanConfig { peers, ..tunnel.config().clone() };
        let netns = config.netns.clone();
        let measure = move || Ok((tunnels::inner_mtu(&config), config.peers));
        let (mtu, peers) = namespace::in_namespace(netns, measure).await?;
        let hosts = Hosts { peers, flooded, mtu };
        let Some(port) = self.ports.get_mut(&id) else { return Ok(()) };
        if let Some(tunnel) = &mut port.tunnel {
            port.attachment = Attachment::Vxlan(tunnel.set_hosts(&hosts).clone());
        }
        // The change is recorded, so a data process that starts later gets it.
        self.command(&Command::SetHosts { id, hosts }, &[]).await.map(drop)
    }

    /// Enters and removes stations behind a segment's tunnel. Returns how many had no room.
    ///
    /// # Errors
    /// The data process refused; or it is being started, and the call must be repeated.
    pub async fn set_stations(&self, vni: u32, stations: Vec<Remote>) -> Result<u32, ApiError> {
        let Some(id) = self.segment_port(vni) else { return Ok(0) };
        match self.command(&Command::SetStations { id, stations }, &[]).await? {
            Some(Answer::Stations { refused }) => Ok(refused),
            Some(_) => Ok(0),
            None => Err(self.is_starting()),
        }
    }

    /// Sets which stations behind a segment's tunnel have which IP addresses.
    ///
    /// # Errors
    /// The data process refused; or it is being started, and the call must be repeated.
    pub async fn set_owners(
        &self,
        vni: u32,
        owners: Vec<(IpAddr, Option<Mac>)>,
    ) -> Result<(), ApiError> {
        let Some(id) = self.segment_port(vni) else { return Ok(()) };
        let told = self.command(&Command::SetOwners { id, owners }, &[]).await?;
        told.map(drop).ok_or_else(|| self.is_starting())
    }

    /// Takes the IP addresses of local stations that a segment's tunnel has heard.
    pub async fn take_claims(&self, vni: u32, all: bool) -> Vec<(Mac, IpAddr)> {
        let Some(id) = self.segment_port(vni) else { return Vec::new() };
        match self.command(&Command::TakeClaims { id, all }, &[]).await {
            Ok(Some(Answer::Claims { claims })) => claims,
            // The stations claim their addresses again later.
            _ => Vec::new(),
        }
    }

    /// True if a tunnel of this segment is here.
    #[must_use]
    pub fn has_segment(&self, vni: u32) -> bool {
        self.segment_port(vni).is_some()
    }

    fn segment_port(&self, vni: u32) -> Option<PortId> {
        let is_its = |port: &&Port| {
            let config = port.tunnel.as_ref().map(Tunnel::config);
            config.is_some_and(|config| config.flooded.is_some() && config.vni.get() == vni)
        };
        self.ports.values().find(is_its).map(|port| port.id)
    }

    /// Takes over a tunnel's share of the state that tunnels have in common, if the port is a
    /// tunnel.
    pub(super) fn take_over_tunnel(&self, port: &mut Port) {
        let Attachment::Vxlan(config) = &port.attachment else { return };
        // The descriptors are our own, so closing them does not block.
        let fds = std::mem::take(&mut port.fds).into_iter();
        port.fds = fds.map(|fd| Descriptor::ours(fd.into_ours())).collect();
        let twin = |fd: Option<&Descriptor>| {
            let fd = fd.ok_or(io::ErrorKind::InvalidData)?;
            fd.try_clone().map(Descriptor::into_ours)
        };
        let owner = format!("{}:{}", self.name, port.name);
        let tunnels = &self.environment.tunnels;
        let taken = twin(port.fds.first())
            .and_then(|socket| Ok((socket, twin(port.fds.last())?)))
            .and_then(|fds| tunnels.take_over(config, &owner, fds));
        match taken {
            Ok(tunnel) => port.tunnel = Some(tunnel),
            Err(error) => tracing::error!(port = owner, %error, "a tunnel was not taken over"),
        }
    }
}
