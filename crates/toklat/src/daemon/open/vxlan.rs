//! Tunnels to other hosts.

use dataplane::config::Attachment;
use jail::strangers::Descriptor;
use topology::Vxlan;

use super::super::front_ends::Waiting;
use super::super::namespace::in_namespace;
use super::super::objects::Namespace;
use super::super::system;
use super::super::tunnels;
use super::{Following, Future, Open, Opened, Opening, Reach};
use crate::api::ApiError;

const _: () = assert!(Vxlan::MAX_PEERS == dataplane::attach::vxlan::MAX_PEERS);
const _: () = assert!(Vxlan::MAX_SEGMENTS == dataplane::attach::vxlan::MAX_SEGMENTS);

impl Open for Vxlan {
    fn reach(&self) -> Reach<'_> {
        Reach::Host("it talks to other hosts")
    }

    fn open<'a>(&'a self, at: Opening<'a>) -> Future<'a, Opened> {
        Box::pin(async move {
            let owner = format!("{}:{}", at.name.0, at.name.1);
            let (attachment, fds, tunnel) = at.tunnels.open(self, &owner).await?;
            let fds = fds.into_iter().map(Descriptor::ours).collect();
            Ok(Opened { attachment, fds, tunnel: Some(tunnel) })
        })
    }

    fn probe(&self, _: u16) -> Future<'_, ()> {
        let local = self.local;
        let failed = |e| system("Cannot use the address of the tunnel's own end", e);
        Box::pin(in_namespace(self.netns.clone(), move || {
            let bound = local.map(|local| std::net::UdpSocket::bind((local, 0)));
            bound.transpose().map(drop).map_err(failed)
        }))
    }

    fn follow(
        &self,
        name: (String, String),
        Following { fds, notices, .. }: Following<'_>,
    ) -> Result<Option<Waiting>, ApiError> {
        let namespace = Namespace::of(self.netns.as_deref(), fds);
        Ok(Some(Waiting::watch(name, notices, move || namespace.gone())))
    }

    fn is(&self, attachment: &Attachment) -> bool {
        let Attachment::Vxlan(tunnel) = attachment else { return false };
        let Self { local, netns, evpn, .. } = self;
        let ways = (self.drop_unknown, self.clamp_mss, !self.no_suppress);
        if *evpn != tunnel.flooded.is_some()
            || (self.encapsulation, self.port()) != (tunnel.encapsulation, tunnel.port)
            || tunnels::segments_of(self) != tunnel.segments
            || ways != (tunnel.drop_unknown, tunnel.clamp_mss, tunnel.suppress)
        {
            return false;
        }
        // A setting that is left out is taken from `[evpn]`, which has not changed.
        match evpn {
            true => local.is_none_or(|local| local == tunnel.local),
            false => {
                let peers = tunnels::peers_of(self);
                *local == Some(tunnel.local) && (&peers, netns) == (&tunnel.peers, &tunnel.netns)
            }
        }
    }
}
