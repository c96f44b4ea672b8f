//! What a routing protocol says about tunnels: their hosts, and the stations behind them.

use std::net::IpAddr;

use fabric::{Learned, Origin, Station};
use frame::Mac;
use turn::clock;

use super::Process;
use crate::config::{Attachment, PortId};
use crate::control::{Answer, Hosts, Remote};

impl Process {
    /// Replaces the hosts of a tunnel. The port's record has them for the next supervisor.
    pub(super) fn set_hosts(&mut self, id: PortId, hosts: Hosts) -> Result<Answer, String> {
        let record = self.record(id)?;
        let tunnel = record.tunnel.as_ref();
        let (Some(tunnel), Attachment::Vxlan(config)) = (tunnel, &mut record.config.attachment)
        else {
            return Err(format!("Port number {id} is no tunnel"));
        };
        let Hosts { peers, flooded, mtu } = hosts;
        if config.flooded.is_none() {
            return Err(format!("The hosts of port number {id} are configured"));
        }
        if !tunnel.set_hosts(&peers, &flooded, mtu) {
            return Err(format!("{} hosts are too many for a tunnel", peers.len()));
        }
        (config.peers, config.flooded, config.mtu) = (peers, Some(flooded), mtu);
        self.measure_tunnels();
        Ok(Answer::Done)
    }

    /// Sets which stations behind a tunnel have which IP addresses.
    pub(super) fn set_owners(
        &mut self,
        (id, segment): (PortId, u16),
        owners: &[(IpAddr, Option<Mac>)],
    ) -> Result<Answer, String> {
        let tunnel = self.record(id)?.tunnel.as_ref();
        tunnel.ok_or_else(|| format!("Port number {id} is no tunnel"))?.set_owners(segment, owners);
        Ok(Answer::Done)
    }

    /// Takes the IP addresses of local stations that a tunnel has heard.
    pub(super) fn take_claims(
        &mut self,
        (id, segment): (PortId, u16),
        all: bool,
    ) -> Result<Answer, String> {
        let tunnel = self.record(id)?.tunnel.as_ref();
        let tunnel = tunnel.ok_or_else(|| format!("Port number {id} is no tunnel"))?;
        Ok(Answer::Claims { claims: tunnel.take_claims(segment, all) })
    }

    /// Enters and removes stations behind a tunnel.
    pub(super) fn set_stations(
        &mut self,
        (id, segment): (PortId, u16),
        stations: &[Remote],
    ) -> Result<Answer, String> {
        let tunnel = self.record(id)?.tunnel.as_ref();
        let tunnel = tunnel.ok_or_else(|| format!("Port number {id} is no tunnel"))?;
        let (filter, is_its) =
            (tunnel.filter(segment), stations.iter().map(|s| tunnel.segment_of(s.via) == segment));
        if stations.iter().zip(is_its).any(|(station, is_its)| station.via > 0 && !is_its) {
            return Err(format!("Stations of several segments of port number {id}"));
        }
        let (fdb, now) = (&self.common.fdb, clock());
        let mut refused = Vec::new();
        for Remote { mac, via, sticky, moved } in stations.iter().copied() {
            if via == 0 {
                fdb.leave(filter, mac, id);
                continue;
            }
            let origin = if sticky { Origin::Sticky } else { Origin::Remote };
            let there = Station::behind(id, via, origin);
            let entered = match moved {
                true => fdb.enter_moved(filter, mac, there, now),
                false => fdb.enter_remote(filter, mac, there, now),
            };
            if entered == Learned::NoRoom {
                refused.push(mac);
            }
        }
        Ok(Answer::Stations { refused: refused.len() as u32 })
    }
}
