//! Ports that are tunnels, and the state they share with other tunnels of the host.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use dataplane::attach::vxlan::{self, VxlanConfig};
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

/// A segment of a tunnel whose hosts EVPN says.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Its port.
    pub port: PortId,
    /// The number of the tunnel that the port has at the moment.
    pub tunnel: u64,
    /// The tunnel's settings, with the hosts that are known.
    pub config: VxlanConfig,
    /// The segment's place in the tunnel.
    pub place: Place,
    /// As configured.
    pub kind: Vxlan,
    /// The filter in which the tunnel's stations are looked up.
    pub filter: u16,
    /// The switch's state memory.
    pub state: State,
}

/// The place of a segment among those of its tunnel, which share the numbers of peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The segment's number, from 0.
    pub number: u16,
    /// How many there are.
    pub of: u16,
}

impl Place {
    /// The tunnel's number of a host of the segment; 0 stays.
    #[must_use]
    pub fn in_tunnel(self, via: u16) -> u16 {
        via.checked_sub(1).map_or(0, |at| at * self.of + self.number + 1)
    }

    /// The segment's number of a peer of the tunnel, if it is in the segment.
    #[must_use]
    pub fn in_segment(self, via: u16) -> Option<u16> {
        let at = via.checked_sub(1)?;
        (at % self.of == self.number).then_some(at / self.of + 1)
    }

    /// The maximum number of hosts of the segment.
    #[must_use]
    pub fn room(self) -> usize {
        Vxlan::MAX_PEERS / usize::from(self.of)
    }

    /// The hosts of the segment, from the tunnel's peers.
    #[must_use]
    pub fn hosts(self, peers: &[IpAddr]) -> Vec<IpAddr> {
        peers.iter().skip(self.number.into()).step_by(self.of.into()).copied().collect()
    }

    /// Replaces the hosts of the segment among the tunnel's peers, and the numbers of the peers
    /// that get floods.
    fn replace(
        self,
        peers: &mut Vec<IpAddr>,
        flooded: &mut Vec<u16>,
        by: &(Vec<IpAddr>, Vec<u16>),
    ) {
        const FREE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let (hosts, floods) = by;
        let own = peers.iter_mut().skip(self.number.into()).step_by(self.of.into());
        own.for_each(|peer| *peer = FREE);
        for (host, via) in hosts.iter().take(self.room()).zip(1..) {
            let at = usize::from(self.in_tunnel(via)) - 1;
            peers.resize(peers.len().max(at + 1), FREE);
            peers[at] = *host;
        }
        let used = peers.iter().rposition(|peer| !peer.is_unspecified());
        peers.truncate(used.map_or(0, |at| at + 1));
        flooded.retain(|via| self.in_segment(*via).is_none());
        flooded.extend(floods.iter().map(|via| self.in_tunnel(*via)));
        flooded.sort_unstable();
    }
}

impl Port {
    /// The other hosts, if the port is a tunnel.
    #[must_use]
    pub fn tunnel_info(&self) -> Option<TunnelInfo> {
        self.tunnel.as_ref().map(Tunnel::info)
    }
}

impl Switch {
    /// The segments of tunnels whose hosts EVPN says, by their numbers.
    #[must_use]
    pub fn segments(&self) -> Vec<(u32, Segment)> {
        let segments = |port: &Port| {
            let PortKind::Vxlan(kind) = &port.spec.kind else { return None };
            let tunnel = port.tunnel.as_ref()?;
            let config = Some(tunnel.config()).filter(|config| config.flooded.is_some())?.clone();
            let tunnel = tunnel.number();
            let (kind, state, port_id) = (kind.clone(), self.view.clone(), port.id);
            let native = match &port.spec.policy.vlan {
                VlanMode::Unaware => 0,
                VlanMode::Access(id) => id.get(),
                VlanMode::Trunk { native, .. } => native.map_or(0, |id| id.get()),
            };
            let places = (0..).zip(config.segments.clone());
            let segment = move |(number, segment): (u16, vxlan::Segment)| {
                let place = Place { number, of: config.segments.len() as u16 };
                let filter = segment.vlan.map_or(native, |vlan| vlan.get());
                let (config, kind, state) = (config.clone(), kind.clone(), state.clone());
                let segment_of =
                    Segment { port: port_id, tunnel, config, place, kind, filter, state };
                (segment.vni.get(), segment_of)
            };
            Some(places.map(segment))
        };
        self.ports.values().filter_map(segments).flatten().collect()
    }

    /// Changes the hosts of a segment.
    ///
    /// # Errors
    /// The data process refused; or it is being started, and the call must be repeated.
    pub async fn set_hosts(
        &mut self,
        vni: u32,
        hosts: (Vec<IpAddr>, Vec<u16>),
    ) -> Result<(), ApiError> {
        let Some((id, place)) = self.segment_place(vni) else { return Ok(()) };
        let Some(tunnel) = self.ports.get(&id).and_then(|port| port.tunnel.as_ref()) else {
            return Ok(());
        };
        let mut config = tunnel.config().clone();
        let mut flooded = config.flooded.take().unwrap_or_default();
        place.replace(&mut config.peers, &mut flooded, &hosts);
        let netns = config.netns.clone();
        let measure = move || Ok((tunnels::inner_mtu(&config), config.peers));
        let (mtu, peers) = self.patient(namespace::in_namespace(netns, measure)).await?;
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
    /// The data process refused, or is being started: then say it again.
    pub async fn set_stations(&self, vni: u32, mut stations: Vec<Remote>) -> Result<u32, ApiError> {
        let Some((id, place)) = self.segment_place(vni) else { return Ok(0) };
        stations.iter_mut().for_each(|station| station.via = place.in_tunnel(station.via));
        let command = Command::SetStations { id, segment: place.number, stations };
        match self.command(&command, &[]).await? {
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
        let Some((id, place)) = self.segment_place(vni) else { return Ok(()) };
        let command = Command::SetOwners { id, segment: place.number, owners };
        let told = self.command(&command, &[]).await?;
        told.map(drop).ok_or_else(|| self.is_starting())
    }

    /// Takes the IP addresses of local stations that a segment's tunnel has heard.
    pub async fn take_claims(&self, vni: u32, all: bool) -> Vec<(Mac, IpAddr)> {
        let Some((id, place)) = self.segment_place(vni) else { return Vec::new() };
        match self.command(&Command::TakeClaims { id, segment: place.number, all }, &[]).await {
            Ok(Some(Answer::Claims { claims })) => claims,
            // The stations claim their addresses again later.
            _ => Vec::new(),
        }
    }

    /// True if a tunnel of this segment is here.
    #[must_use]
    pub fn has_segment(&self, vni: u32) -> bool {
        self.segment_place(vni).is_some()
    }

    /// The port of a segment, and its place there.
    fn segment_place(&self, vni: u32) -> Option<(PortId, Place)> {
        let place = |port: &Port| {
            let config = port.tunnel.as_ref().map(Tunnel::config);
            let segments = &config.filter(|config| config.flooded.is_some())?.segments;
            let number = segments.iter().position(|segment| segment.vni.get() == vni)?;
            Some((port.id, Place { number: number as u16, of: segments.len() as u16 }))
        };
        self.ports.values().find_map(place)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_segments_of_a_tunnel_number_their_hosts_beside_each_other() {
        let ip = |n: u8| IpAddr::from([10, 0, 0, n]);
        let free = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let [a, b] = [0, 1].map(|number| Place { number, of: 2 });
        let (mut peers, mut flooded) = (Vec::new(), Vec::new());
        b.replace(&mut peers, &mut flooded, &(vec![ip(1), ip(2)], vec![1, 2]));
        assert_eq!((&peers, &flooded), (&vec![free, ip(1), free, ip(2)], &vec![2, 4]));
        a.replace(&mut peers, &mut flooded, &(vec![ip(2), free, ip(3)], vec![3]));
        assert_eq!(peers, [ip(2), ip(1), free, ip(2), ip(3)]);
        assert_eq!(flooded, [2, 4, 5]);
        assert_eq!(
            (a.hosts(&peers), b.hosts(&peers)),
            (vec![ip(2), free, ip(3)], vec![ip(1), ip(2)])
        );
        a.replace(&mut peers, &mut flooded, &(vec![], vec![]));
        assert_eq!((a.hosts(&peers).len(), peers.len(), flooded), (2, 4, vec![2, 4]));
        for via in 1..=512 {
            assert_eq!(b.in_segment(b.in_tunnel(via)), Some(via));
            assert_eq!(a.in_segment(b.in_tunnel(via)), None);
        }
        assert_eq!((a.in_tunnel(0), a.in_segment(0), b.room()), (0, None, 512));
    }
}
