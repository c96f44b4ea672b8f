//! Interfaces of the host that programs open by netmap's interface, as `netmap:eth0`. Each of its
//! ends, the card and the host's network stack, has a switch of its own, with a port of the end and
//! one for programs; no address is learned there, so each port's frames go to the other.

use ::card::vfio::{Files, VfioError};
use ::card::{Model, NicError};
use dataplane::config::{Idle, Policy, SwitchConfig};
use netmap::broker::{CARD_PORT, End, host_of};
use rustix::io::Errno;
use topology::{Host, Interface, InterfaceEngine, PortKind, Topology};

use super::end::{port_of, was_made, wire_spec};
use crate::api::{ApiError, Client, ErrorCode, NewPort, NewSwitch, PortSpec, SwitchSpec};
use crate::daemon::caller::Caller;
use crate::daemon::supervisor::{Claimed, Supervisor};
use crate::daemon::switch::{Access, Switch};
use crate::daemon::{cards, interfaces};

impl Supervisor {
    /// Makes the switch of an end of an interface, unless it is there.
    ///
    /// # Errors
    /// The client may not take interfaces, another port has it, or it cannot be opened.
    pub(in crate::daemon) async fn join_end(
        &self,
        client: Client,
        end: End,
        ifname: &str,
    ) -> Result<(), ApiError> {
        self.check_operator(client, ifname)?;
        let name = &end.switch(ifname);
        // The interface is this switch's before anything else can claim it. The topology is free
        // while a data process starts and the interface is opened.
        let _opening = {
            let topology = self.topology.lock().await;
            check_free(&topology, end, ifname)?;
            self.netmap.opens(name)
        };
        let _claim = match self.claim_name(name).await {
            Claimed::Exists(handle) => return is_end(&*handle.lock().await, end, ifname),
            Claimed::ToMake(claim) => claim,
        };
        self.check_goes_on()?;
        let access = Access { user: Some(client.uid), ..Access::default() };
        let handle = self.create(name, SwitchConfig::default(), access, true).await?;
        let mut switch = handle.lock().await;
        let port = port_of(end);
        let added = switch.add_temporary_port(port, end_spec(end, ifname)?).await;
        match (end, added) {
            (End::Card, Err(error)) => {
                tracing::info!(ifname, %error, "interface is opened by packet sockets instead");
                let by_packets = card_spec(ifname, InterfaceEngine::Packet)?;
                switch.add_temporary_port(port, by_packets).await
            }
            (End::Host, Err(error)) => {
                tracing::warn!(ifname, %error, "interface has no host rings");
                Err(error)
            }
            (_, added) => added,
        }
    }

    /// Removes the switch of an interface that no program has open. Monitors do not keep it.
    pub(in crate::daemon) async fn leave_card(&self, name: &str) {
        let Some(handle) = self.handle(name) else { return };
        let mut switch = handle.lock().await;
        // Others may have named a switch so before the program came.
        let is_ours = was_made(&switch) || switch.ports().len() == 0;
        let in_use = switch.port(CARD_PORT).is_ok();
        if switch.ephemeral && is_ours && !switch.removed && !in_use {
            self.drop_switch(&mut switch).await;
        }
    }

    /// Makes an interface a port of a switch, as an operator would, and with `host` also the host
    /// behind it. Both stay when the program ends.
    ///
    /// # Errors
    /// The client may not, a port of this name exists, another port has the interface, or it cannot
    /// be opened.
    pub(in crate::daemon) async fn plug(
        &self,
        client: Client,
        switch: &str,
        ifname: &str,
        host: bool,
    ) -> Result<(), ApiError> {
        self.check_operator(client, ifname)?;
        let mtu = interface_mtu(ifname)?;
        let is_new = !self.topology.lock().await.switch.contains_key(switch);
        if is_new {
            let new = NewSwitch { name: switch.into(), spec: SwitchSpec::default() };
            self.add_switch(new, Caller::Local).await?;
            self.topology.lock().await.attached.insert(switch.into());
        }
        let port = |name: String, kind: PortKind| {
            let policy = Policy { mtu, ..Policy::default() };
            NewPort { name, spec: PortSpec { kind, policy, ..PortSpec::default() } }
        };
        let card = port(ifname.into(), Interface::called(ifname).into());
        let mut added = self.add_port(switch, card, Caller::Local).await.map(drop);
        if added.is_ok() && host {
            let host = port(host_port(ifname), Host::behind(ifname).into());
            added = self.add_port(switch, host, Caller::Local).await.map(drop);
            if added.is_err() {
                self.delete_port(switch, ifname).await?;
            }
        }
        self.drop_if_made(switch).await;
        added
    }

    /// Removes an interface and the host behind it from a switch.
    ///
    /// # Errors
    /// The client may not, or the interface is no port there.
    pub(in crate::daemon) async fn unplug(
        &self,
        client: Client,
        switch: &str,
        ifname: &str,
    ) -> Result<(), ApiError> {
        self.check_operator(client, ifname)?;
        let has = |topology: &Topology, port: &str, kind: PortKind| {
            let ports = topology.switch.get(switch).map(|switch| &switch.port);
            let found = ports.and_then(|ports| ports.get(port));
            found.is_some_and(|found| match (&found.kind, &kind) {
                (PortKind::Interface(one), PortKind::Interface(other)) => {
                    (&one.ifname, &one.netns) == (&other.ifname, &other.netns)
                }
                (one, other) => one == other,
            })
        };
        let (host, is_card, is_host) = {
            let (topology, host) = (self.topology.lock().await, host_port(ifname));
            let is_card = has(&topology, ifname, Interface::called(ifname).into());
            let is_host = has(&topology, &host, Host::behind(ifname).into());
            (host, is_card, is_host)
        };
        if !is_card {
            return Err(crate::daemon::switch::no_port(switch, ifname));
        }
        if is_host {
            self.delete_port(switch, &host).await?;
        }
        self.delete_port(switch, ifname).await?;
        self.drop_if_made(switch).await;
        Ok(())
    }

    /// Has the workers of an interface's switch poll, if the interface has at least so many
    /// `queues`; with none, they idle as the switch's settings say. The settings stay as they are.
    ///
    /// # Errors
    /// The client may not, the interface is no port of the switch or has fewer queues, or the data
    /// process refused it.
    pub(in crate::daemon) async fn set_polling(
        &self,
        client: Client,
        switch: &str,
        ifname: &str,
        queues: Option<u32>,
    ) -> Result<(), ApiError> {
        self.check_operator(client, ifname)?;
        let topology = self.topology.lock().await;
        let spec = topology.switch.get(switch);
        let port = spec.and_then(|spec| spec.port.get(ifname)).map(|port| &port.kind);
        if let Some(wanted) = queues {
            let Some(PortKind::Interface(interface)) = port else {
                return Err(crate::daemon::switch::no_port(switch, ifname));
            };
            if wanted > interface.queues.into() {
                let reason = format!("{ifname} has {} receive queues", interface.queues);
                let remedy = "poll one, or add the interface with more (--queues)";
                return Err(ApiError::new(ErrorCode::BadRequest, reason, remedy));
            }
        }
        let idle = match queues {
            Some(_) => Idle::Poll,
            None => spec.map_or(Idle::Auto, |spec| spec.config.idle),
        };
        let Some(handle) = self.handle(switch) else { return Ok(()) };
        let mut switch = handle.lock().await;
        let config = SwitchConfig { idle, ..switch.config.clone() };
        switch.set_config(config).await
    }

    /// Removes a switch that [`plug`](Self::plug) has made, if it has no ports.
    async fn drop_if_made(&self, name: &str) {
        if !self.topology.lock().await.attached.contains(name) {
            return;
        }
        let Some(handle) = self.handle(name) else { return };
        let is_empty = handle.lock().await.is_empty();
        if is_empty && let Err(error) = self.delete_switch(name).await {
            tracing::warn!(switch = name, %error, "switch of an interface was not removed");
        }
    }

    fn check_operator(&self, client: Client, ifname: &str) -> Result<(), ApiError> {
        if self.is_trusted(client) {
            return Ok(());
        }
        let reason = format!("User {} may not take interface {ifname}", client.uid);
        let remedy = "run the program as root, or as the daemon's user";
        Err(ApiError::new(ErrorCode::Forbidden, reason, remedy))
    }

    /// Checks that no program has the interface that a port is to be.
    ///
    /// # Errors
    /// One has it.
    pub(in crate::daemon) async fn check_interface(&self, kind: &PortKind) -> Result<(), ApiError> {
        let (end, ifname) = match kind {
            PortKind::Interface(Interface { ifname, netns: None, .. }) => (End::Card, ifname),
            PortKind::Host(Host { ifname, netns: None }) => (End::Host, ifname),
            _ => return Ok(()),
        };
        let name = &end.switch(ifname);
        if !self.netmap.is_opening(name) {
            let Some(handle) = self.handle(name) else { return Ok(()) };
            let switch = handle.lock().await;
            if switch.removed || is_end(&switch, end, ifname).is_err() {
                return Ok(());
            }
        }
        let reason = format!("A netmap program has interface {ifname} open");
        Err(ApiError::new(ErrorCode::Busy, reason, "end the program"))
    }
}

/// The interfaces and hosts that are ports of switches as [`Supervisor::plug`] makes them.
pub(super) fn plugged(topology: &Topology) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (name, switch) in &topology.switch {
        for (port, spec) in &switch.port {
            match &spec.kind {
                PortKind::Interface(Interface { ifname, netns: None, .. }) if ifname == port => {
                    found.push((name.clone(), ifname.clone()));
                }
                PortKind::Host(Host { ifname, netns: None }) if *port == host_port(ifname) => {
                    found.push((name.clone(), host_of(ifname)));
                }
                _ => {}
            }
        }
    }
    found
}

/// Checks that a switch is one that [`Supervisor::join_end`] has made.
fn is_end(switch: &Switch, end: End, ifname: &str) -> Result<(), ApiError> {
    let ours = switch.port(port_of(end)).is_ok_and(|port| match &port.spec.kind {
        PortKind::Interface(of) => of.ifname == ifname,
        PortKind::Host(of) => of.ifname == ifname,
        _ => false,
    });
    if switch.ephemeral && ours {
        return Ok(());
    }
    let reason = format!("Switch {} is not the one of interface {ifname}", switch.name);
    let remedy = format!("remove it: toklat switch rm {}", switch.name);
    Err(ApiError::new(ErrorCode::Busy, reason, remedy))
}

/// Checks that no port has an end of an interface. The host's end is taken with the card's only.
fn check_free(topology: &Topology, end: End, ifname: &str) -> Result<(), ApiError> {
    let mut all = topology.clone();
    let ends = if end == End::Card { &[End::Card][..] } else { &[End::Card, End::Host] };
    for end in ends {
        let switch = all.switch.entry(end.switch(ifname)).or_default();
        switch.port.insert(port_of(*end).into(), end_spec(*end, ifname)?);
    }
    topology::check_claims(&all)
        .map_err(|wrong| ApiError::new(ErrorCode::Busy, wrong.reason, wrong.remedy))
}

/// The PCI address of a card that programs drive by toklat's drivers, if this is its name.
pub fn driven_card(ifname: &str) -> Option<String> {
    if interfaces::exists(ifname) { None } else { cards::address_of(ifname) }
}

/// Opens the card at a PCI address for a program that drives it.
pub fn open(address: &str) -> Result<Files, NicError> {
    Model::at(address)?;
    Ok(Files::open(address)?)
}

/// The error number for a program that cannot have a card.
pub fn errno_of(error: &NicError) -> Errno {
    match error {
        NicError::Card(VfioError::Open { source, .. }) => {
            source.raw_os_error().map_or(Errno::NXIO, Errno::from_raw_os_error)
        }
        _ => Errno::NXIO,
    }
}

/// The name of what programs can open by this name: the same for each of a card's names.
pub fn called(ifname: &str) -> Option<String> {
    if interfaces::exists(ifname) {
        return Some(ifname.to_owned());
    }
    let address = cards::address_of(ifname)?;
    Some(cards::name_of(&address).unwrap_or_else(|| ifname.to_owned()))
}

fn end_spec(end: End, ifname: &str) -> Result<PortSpec, ApiError> {
    let card = card_spec(ifname, InterfaceEngine::Xdp)?;
    Ok(match end {
        End::Card => card,
        End::Host => PortSpec { kind: Host::behind(ifname).into(), ..card },
    })
}

fn card_spec(ifname: &str, engine: InterfaceEngine) -> Result<PortSpec, ApiError> {
    let (spec, mtu) = (wire_spec(), interface_mtu(ifname)?);
    let kind = PortKind::Interface(Interface { engine, ..Interface::called(ifname) });
    Ok(PortSpec { kind, policy: Policy { mtu, ..spec.policy }, ..spec })
}

/// The MTU of the ports of an interface.
fn interface_mtu(ifname: &str) -> Result<u16, ApiError> {
    Ok(interfaces::mtu(ifname)?.clamp(68, Policy::MAX_MTU.into()) as u16)
}

/// The port of the host behind an attached interface.
fn host_port(ifname: &str) -> String {
    format!("{ifname}-host")
}
