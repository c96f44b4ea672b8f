//! Interfaces of the host that programs open by netmap's interface, as `netmap:eth0`. Each has a
//! switch of its own, with a port of the interface and one for programs; no address is learned
//! there, so each port's frames go to the other.

use dataplane::config::{Policy, SwitchConfig};
use netmap::broker::{CARD_PORT, card_switch};
use topology::{Interface, InterfaceEngine, PortKind};

use super::port_spec;
use crate::api::{ApiError, Client, ErrorCode, PortSpec};
use crate::daemon::interfaces;
use crate::daemon::supervisor::Supervisor;
use crate::daemon::switch::{Access, Switch};

/// The interface's port in its switch.
const PORT: &str = "card";

/// The rules of both ports: what comes from one goes to the other.
#[must_use]
pub fn wire_spec() -> PortSpec {
    let spec = port_spec();
    PortSpec { policy: Policy { mac_limit: 0, ..spec.policy }, ..spec }
}

impl Supervisor {
    /// Makes the switch of an interface, unless it is there.
    ///
    /// # Errors
    /// The client may not take interfaces, another port has it, or it cannot be opened.
    pub(in crate::daemon) async fn join_card(
        &self,
        client: Client,
        name: &str,
        ifname: &str,
    ) -> Result<(), ApiError> {
        if !self.is_trusted(client) {
            let reason = format!("User {} may not take interface {ifname}", client.uid);
            let remedy = "run the program as root, or as the daemon's user";
            return Err(ApiError::new(ErrorCode::Forbidden, reason, remedy));
        }
        // The interface and the name are this switch's before anything else can claim them.
        let topology = self.topology.lock().await;
        if let Some(handle) = self.handle(name) {
            return is_card(&*handle.lock().await, ifname);
        }
        let spec = card_spec(ifname, InterfaceEngine::Xdp)?;
        let by_packets = card_spec(ifname, InterfaceEngine::Packet)?;
        let mut all = topology.clone();
        all.switch.entry(name.into()).or_default().port.insert(PORT.into(), spec.clone());
        topology::check_claims(&all)
            .map_err(|wrong| ApiError::new(ErrorCode::Busy, wrong.reason, wrong.remedy))?;
        let access = Access { user: Some(client.uid), ..Access::default() };
        let handle = self.create(name, SwitchConfig::default(), access, true).await?;
        let mut switch = handle.lock().await;
        if let Err(error) = switch.add_temporary_port(PORT, spec).await {
            tracing::info!(ifname, %error, "interface is opened by packet sockets instead");
            switch.add_temporary_port(PORT, by_packets).await?;
        }
        Ok(())
    }

    /// Removes the switch of an interface that no program has open. Monitors do not keep it.
    pub(in crate::daemon) async fn leave_card(&self, name: &str) {
        let Some(handle) = self.handle(name) else { return };
        let mut switch = handle.lock().await;
        if switch.ephemeral && !switch.removed && switch.port(CARD_PORT).is_err() {
            self.drop_switch(&mut switch).await;
        }
    }

    /// Checks that no program has the interface that a port is to be.
    ///
    /// # Errors
    /// One has it.
    pub(in crate::daemon) async fn check_interface(&self, kind: &PortKind) -> Result<(), ApiError> {
        let PortKind::Interface(Interface { ifname, netns: None, .. }) = kind else {
            return Ok(());
        };
        let Some(handle) = self.handle(&card_switch(ifname)) else { return Ok(()) };
        let switch = handle.lock().await;
        if switch.removed || is_card(&switch, ifname).is_err() {
            return Ok(());
        }
        let reason = format!("A netmap program has interface {ifname} open");
        Err(ApiError::new(ErrorCode::Busy, reason, "end the program"))
    }
}

/// Checks that a switch is one that [`Supervisor::join_card`] has made.
fn is_card(switch: &Switch, ifname: &str) -> Result<(), ApiError> {
    let ours = switch.port(PORT).is_ok_and(
        |port| matches!(&port.spec.kind, PortKind::Interface(of) if of.ifname == ifname),
    );
    if switch.ephemeral && ours {
        return Ok(());
    }
    let reason = format!("Switch {} is not the one of interface {ifname}", switch.name);
    let remedy = format!("remove it: toklat switch rm {}", switch.name);
    Err(ApiError::new(ErrorCode::Busy, reason, remedy))
}

fn card_spec(ifname: &str, engine: InterfaceEngine) -> Result<PortSpec, ApiError> {
    let spec = wire_spec();
    let mtu = interfaces::mtu(ifname)?.clamp(68, Policy::MAX_MTU.into()) as u16;
    let kind = PortKind::Interface(Interface { engine, ..Interface::called(ifname) });
    Ok(PortSpec { kind, policy: Policy { mtu, ..spec.policy }, ..spec })
}
