//! The commands of the specification.

use std::path::Path;

use serde_json::{Map, Value, json};
use topology::VhostUser;

use super::attachment::{self, Container, variable};
use super::config::{self, Attach, Config};
use super::ipam;
use super::namespace::Namespace;
use super::{Code, Failure, VERSIONS};
use crate::api::{PortInfo, PortKind, PortState, SwitchInfo};
use crate::integration::ports::{self, Found, Wanted};
use client::{Client, Global, Result as Done};

/// A network's configuration, parsed and as JSON.
struct Network {
    whole: Map<String, Value>,
    config: Config,
}

/// Executes `CNI_COMMAND`; returns the answer, if it has one.
pub fn run(text: &str) -> Result<Option<Value>, Failure> {
    let command = variable("CNI_COMMAND");
    if command == "VERSION" {
        let version = config::version_of(text);
        return Ok(Some(json!({ "cniVersion": version, "supportedVersions": VERSIONS })));
    }
    let (whole, config) = config::parse(text)?;
    let network = Network { whole, config };
    match command.as_str() {
        "ADD" => network.add().map(Some),
        "DEL" => network.del().map(|()| None),
        "CHECK" => network.check().map(|()| None),
        "GC" => network.gc().map(|()| None),
        "STATUS" => network.status().map(|()| None),
        other => {
            let known = "it is ADD, DEL, CHECK, GC, STATUS or VERSION";
            Err(Failure::new(Code::Environment, format!("CNI_COMMAND is {other:?}"), known))
        }
    }
}

impl Network {
    fn client(&self) -> Result<Client, Failure> {
        let global = Global { dir: Some(self.config.dir.clone()), json: false };
        let connected = Client::connect(&global).map(Client::without_progress);
        connected.map_err(|e| Failure::refused("Cannot reach the daemon", &e.into()))
    }

    fn needs_netns(&self) -> bool {
        self.config.attach == Attach::Tap
    }

    fn add(&self) -> Result<Value, Failure> {
        let container = Container::of_environment(self.needs_netns())?;
        let (wanted, mac) = attachment::wanted(&self.config, &container)?;
        let namespace = match self.config.attach {
            Attach::Tap => Some(Namespace::open(&container.netns)?),
            Attach::VhostUser => None,
        };
        let mut client = self.client()?;
        let what = format!("Cannot add {}", wanted.name);
        if let Some(namespace) = &namespace {
            make_way(&mut client, &wanted, (namespace, &container), mac)?;
        }
        let found = ports::add(&mut client, &wanted).map_err(|e| Failure::refused(&what, &e))?;
        let given = self.give_addresses(&container, namespace.as_ref(), mac);
        let finished = given.and_then(|addresses| {
            let kept = keep_to(&mut client, &wanted, &addresses);
            kept.map_err(|e| Failure::refused(&what, &e)).map(|()| addresses)
        });
        let addresses = finished.inspect_err(|_| {
            let _ = self.release_addresses();
            if found == Found::Added {
                let _ = ports::remove(&mut client, &wanted.name, &wanted.kind);
            }
        })?;
        Ok(self.answer(&container, &wanted.kind, &mac.to_string(), &addresses))
    }

    /// The IPAM plugin's result, which the interface has from then on.
    fn give_addresses(
        &self,
        container: &Container,
        namespace: Option<&Namespace>,
        mac: frame::Mac,
    ) -> Result<Value, Failure> {
        let addresses = match self.config.ipam() {
            Some(plugin) => ipam::call("ADD", plugin, &self.whole)?,
            None => Value::Null,
        };
        if let Some(namespace) = namespace {
            namespace.configure(&container.ifname, mac, &addresses)?;
        }
        Ok(addresses)
    }

    /// Makes the IPAM plugin release the addresses.
    fn release_addresses(&self) -> Result<(), Failure> {
        let Some(plugin) = self.config.ipam() else { return Ok(()) };
        ipam::call("DEL", plugin, &self.whole).map(drop)
    }

    /// The result of ADD.
    fn answer(
        &self,
        container: &Container,
        kind: &PortKind,
        mac: &str,
        addresses: &Value,
    ) -> Value {
        let mut interface =
            json!({ "name": container.ifname, "mac": mac, "sandbox": container.netns });
        if let PortKind::VhostUser(VhostUser { path, .. }) = kind {
            interface["socketPath"] = json!(path);
        }
        let mut answer =
            json!({ "cniVersion": self.whole["cniVersion"], "interfaces": [interface] });
        for field in ["ips", "routes", "dns"] {
            if !addresses[field].is_null() {
                answer[field] = addresses[field].clone();
            }
        }
        for ip in answer.get_mut("ips").and_then(Value::as_array_mut).into_iter().flatten() {
            ip["interface"] = json!(0);
        }
        answer
    }

    fn del(&self) -> Result<(), Failure> {
        let container = Container::of_environment(false)?;
        let name = attachment::name(&self.config, &container)?;
        self.release_addresses()?;
        let mut client = self.client()?;
        // The namespace may be gone, so its path identifies nothing. The port's name identifies the
        // attachment.
        let what = format!("Cannot remove {name}");
        let there = ports::find(&mut client, &name).map_err(|e| Failure::refused(&what, &e))?;
        let Some(PortInfo { spec, .. }) = there else { return Ok(()) };
        ports::remove(&mut client, &name, &spec.kind).map_err(|e| Failure::refused(&what, &e))
    }

    fn check(&self) -> Result<(), Failure> {
        let container = Container::of_environment(self.needs_netns())?;
        let (wanted, mac) = attachment::wanted(&self.config, &container)?;
        let Some(previous) = &self.config.prev_result else {
            return Err(Failure::new(
                Code::Config,
                "CHECK has no prevResult",
                "the runtime passes on what ADD answered",
            ));
        };
        if let Some(plugin) = self.config.ipam() {
            ipam::call("CHECK", plugin, &self.whole)?;
        }
        let what = format!("Cannot find {}", wanted.name);
        let there = ports::find(&mut self.client()?, &wanted.name)
            .map_err(|e| Failure::refused(&what, &e))?;
        let broken = |what: String| {
            Err(Failure::new(Code::Check, what, "remove the container and start it again"))
        };
        let Some(there) = there else { return broken(format!("Port {} is gone", wanted.name)) };
        if there.spec.kind != wanted.kind {
            return broken(format!("Port {} is another one", wanted.name));
        }
        if let (PortState::Failed | PortState::Quarantined, why) = (there.state, there.failure) {
            return broken(format!("Port {} failed: {}", wanted.name, why.unwrap_or_default()));
        }
        if self.needs_netns() { check_interface(&container, mac, previous) } else { Ok(()) }
    }

    /// Removes leftover ports: those of this network whose attachment is not in the list of valid
    /// ones.
    fn gc(&self) -> Result<(), Failure> {
        let config = &self.config;
        // libcni omits an empty list.
        let valid = config.valid.iter().chain(&config.attachments).flatten();
        let stay: Vec<String> =
            valid.map(|v| attachment::port_of(&config.name, &v.container, &v.ifname)).collect();
        let mut collected = match config.ipam() {
            Some(plugin) => ipam::call_if_known("GC", plugin, &self.whole),
            None => Ok(()),
        };
        let switch = attachment::switch_of(config)?;
        let mut client = self.client()?;
        let what = format!("Cannot list the ports of {switch}");
        let all: Vec<PortInfo> = client
            .get(&format!("{}/ports", switch.path()))
            .map_err(|e| Failure::refused(&what, &e.into()))?;
        let prefix = attachment::prefix(&config.name);
        for port in all
            .into_iter()
            .filter(|port| port.name.starts_with(&prefix) && !stay.contains(&port.name))
        {
            let name = client::name::PortName { switch: switch.clone(), port: port.name };
            let removed = ports::remove(&mut client, &name, &port.spec.kind);
            let removed =
                removed.map_err(|e| Failure::refused(&format!("Cannot remove {name}"), &e));
            collected = collected.and(removed);
        }
        collected
    }

    /// STATUS: checks that ADD would find everything it needs.
    fn status(&self) -> Result<(), Failure> {
        let switch = attachment::switch_of(&self.config)?;
        let unavailable = |mut failure: Failure| {
            failure.code = Code::Unavailable as u16;
            failure
        };
        let mut client = self.client().map_err(unavailable)?;
        let asked: Result<SwitchInfo, _> = client.get(&switch.path());
        asked.map_err(|e| {
            unavailable(Failure::refused(&format!("Cannot use {switch}"), &e.into()))
        })?;
        match self.config.ipam() {
            Some(plugin) => ipam::call_if_known("STATUS", plugin, &self.whole),
            None => Ok(()),
        }
    }
}

/// Removes the port of this name if its namespace is gone, which may be long before DEL.
///
/// # Errors
/// The interface is there: it is not one that the daemon has just made in another namespace of the
/// same name.
fn make_way(
    client: &mut Client,
    wanted: &Wanted,
    (namespace, container): (&Namespace, &Container),
    mac: frame::Mac,
) -> Result<(), Failure> {
    let Container { ifname, netns, .. } = container;
    let what = format!("Cannot find {}", wanted.name);
    let there = ports::find(client, &wanted.name).map_err(|e| Failure::refused(&what, &e))?;
    if namespace.has(ifname)? {
        let is_ours = there.is_some_and(|port| port.spec.kind == wanted.kind);
        // ADD has not set the address of one that was made again.
        let address = namespace.interface(ifname)?["address"].take();
        if is_ours && address.as_str() != Some(mac.to_string().as_str()) {
            return Ok(());
        }
        let what = format!("{ifname} is there already in {netns}");
        let remedy = "remove it, or have the runtime name another interface";
        return Err(Failure::new(Code::Environment, what, remedy));
    }
    let Some(PortInfo { spec, .. }) = there else { return Ok(()) };
    let is_dead = match &spec.kind {
        PortKind::Tap(tap) if spec.kind != wanted.kind => {
            let elsewhere = tap.netns.as_deref().filter(|netns| Path::new(netns).exists());
            elsewhere.map(Namespace::open).transpose()?.is_none_or(|other| {
                // A namespace that cannot be asked may have it.
                other.has(&tap.ifname).is_ok_and(|has| !has)
            })
        }
        kind => *kind == wanted.kind,
    };
    if !is_dead {
        return Ok(());
    }
    let what = format!("Cannot replace {}", wanted.name);
    ports::remove(client, &wanted.name, &spec.kind).map_err(|e| Failure::refused(&what, &e))
}

/// Has the guard of a port allow the addresses that its container was given, unless the
/// configuration names others (`ip`).
fn keep_to(client: &mut Client, wanted: &Wanted, addresses: &Value) -> Done {
    if wanted.rules.get("guard") != Some(&json!(true)) || wanted.rules.contains_key("ips") {
        return Ok(());
    }
    let given = addresses["ips"].as_array().into_iter().flatten();
    let given = given.filter_map(|ip| ip["address"].as_str()?.split('/').next());
    let ips: Vec<&str> = given.collect();
    match ips.is_empty() {
        true => Ok(()),
        false => ports::set(client, &wanted.name, &json!({ "ips": ips })),
    }
}

/// Whether a container's interface still has its addresses.
fn check_interface(
    container: &Container,
    mac: frame::Mac,
    previous: &Value,
) -> Result<(), Failure> {
    let Container { ifname, netns, .. } = container;
    let broken = |what: String| {
        Err(Failure::new(Code::Check, what, "remove the container and start it again"))
    };
    if !Path::new(netns).exists() || !Namespace::open(netns)?.has(ifname)? {
        return broken(format!("{ifname} is not in {netns}"));
    }
    let interface = Namespace::open(netns)?.interface(ifname)?;
    if interface["address"].as_str() != Some(mac.to_string().as_str()) {
        return broken(format!("{ifname} has the address {}, not {mac}", interface["address"]));
    }
    let has: Vec<String> = interface["addr_info"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|info| format!("{}/{}", info["local"].as_str().unwrap_or_default(), info["prefixlen"]))
        .collect();
    let given =
        previous["ips"].as_array().into_iter().flatten().filter_map(|ip| ip["address"].as_str());
    match given.into_iter().find(|address| !has.iter().any(|have| have == address)) {
        Some(missing) => broken(format!("{ifname} lacks {missing}; it has {}", has.join(", "))),
        None => Ok(()),
    }
}
