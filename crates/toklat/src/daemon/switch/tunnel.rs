//! Ports that are tunnels, and the state they share with other tunnels of the host.

use std::io;

use dataplane::config::Attachment;
use jail::strangers::Descriptor;

use super::super::tunnels::Tunnel;
use super::{Port, Switch};
use crate::api::TunnelInfo;

impl Port {
    /// The other hosts, if the port is a tunnel.
    #[must_use]
    pub fn tunnel_info(&self) -> Option<TunnelInfo> {
        self.tunnel.as_ref().map(Tunnel::info)
    }
}

impl Switch {
    /// Takes over a tunnel's share of that state, if the port is a tunnel.
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
