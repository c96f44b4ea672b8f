//! `toklat port`: add, set, rm, show.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::bail;
use clap::Subcommand;
use dataplane::config::NicModel;
use fabric::VlanMode;
use frame::VlanId;
use hyper::Method;
use port::stats::{LimitOf, MappedMemory};
use serde_json::json;
use topology::VfioUser;

use super::connect;
use super::port_options::{KindOptions, RuleOptions};
use crate::api::{InterfaceInfo, PortInfo, PortKind, PortSpec, PortState, SwitchInfo, TunnelInfo};
use client::name::{Name, PortName, SwitchName};
use client::table::{Table, binary_bytes, bytes, count};
use client::{Client, ClientError};
use client::{Global, Result, UsageError};
use vm::Qmp;

/// What can be done with ports.
#[derive(Debug, Subcommand)]
pub enum PortCommand {
    /// Add a port; without a kind, a program opens it by its name
    #[command(after_help = "Examples:\n  \
        toklat port add vale0:p1 --lossless\n  \
        toklat port add vale0:up --vlan-trunk 10,20 --native 10 --tap tap0 --netns blue\n  \
        toklat port add vale0:replay --pcap-read day.pcap --loop --speed max\n  \
        toklat port add vale0:log --pcap-write /var/lib/toklat/log.pcapng\n  \
        toklat port add vale0:fabric --vxlan 100 --local 10.99.0.2 --peer 10.99.0.1 --peer 10.99.0.3\n  \
        toklat port add vale0:vm1 --vhost-user --mac 52:54:00:00:00:01")]
    Add {
        /// Its name, as in vale0:p1
        name: PortName,
        #[command(flatten)]
        policy: Box<RuleOptions>,
        #[command(flatten)]
        kind: Box<KindOptions>,
    },
    /// Change a port's rules while it runs, or move it to another worker
    #[command(after_help = "Examples:\n  \
        toklat port set vale0:p1 --worker 1\n  \
        toklat port set vale0:p1 --lossless=off --flood-limit off --mirror-in spy\n  \
        toklat port set vale0:vm1 --link down")]
    Set {
        /// Its name, as in vale0:p1
        name: PortName,
        #[command(flatten)]
        policy: Box<RuleOptions>,
    },
    /// Plug a port's emulated card into its virtual machine again, after they lost their connection
    #[command(
        after_help = "Example, for a QEMU started with -qmp unix:/tmp/qmp.sock,server=on,wait=off:\n  \
        toklat port reattach vale0:vm1 --qmp /tmp/qmp.sock"
    )]
    Reattach {
        /// Its name, as in vale0:vm1
        name: PortName,
        /// QEMU's monitor
        #[arg(long, value_name = "SOCKET")]
        qmp: PathBuf,
        /// The device's id in QEMU
        #[arg(long, value_name = "ID", default_value = "nic0")]
        id: String,
        /// Also unplug a card with MSI-X (82574l), although QEMU 11.1 aborts when it is unplugged
        #[arg(long)]
        force: bool,
    },
    /// Remove ports; their clients see them close
    Rm {
        /// Their names, as in vale0:p1
        #[arg(required = true, value_name = "NAME")]
        names: Vec<PortName>,
    },
    /// Show ports: all, a switch's, or one
    Show {
        /// A switch (vale0) or a port (vale0:p1)
        name: Option<Name>,
    },
}

impl PortCommand {
    /// Runs the command.
    ///
    /// # Errors
    /// If the daemon does not run or refuses, or if nothing is to be changed.
    pub fn run(self, global: &Global) -> Result {
        match self {
            Self::Add { name, policy, kind } => {
                let mut body = policy.patch();
                body.insert("kind".into(), json!(kind.kind(&name.port)?));
                body.insert("name".into(), name.port.as_str().into());
                let path = format!("{}/ports", name.switch.path());
                let info: PortInfo = Client::connect(global)?.send(Method::POST, &path, &body)?;
                let more = connect::lines(&name, &info.spec, &global.dir());
                let more = more.map_or_else(String::new, |lines| format!("\n{lines}"));
                global.print_done(&info, &format!("added {name}{more}"))
            }
            Self::Set { name, policy } => {
                let patch = policy.patch();
                if patch.is_empty() {
                    return Err(
                        UsageError::new("nothing to change; see toklat port set --help").into()
                    );
                }
                let info: PortInfo =
                    Client::connect(global)?.send(Method::PATCH, &name.path(), &patch)?;
                global.print_done(&info, &format!("changed {name}"))
            }
            Self::Rm { names } => {
                let mut client = Client::connect(global)?;
                for name in names {
                    client.delete(&name.path())?;
                    global.print_removed(&name)?;
                }
                Ok(())
            }
            Self::Reattach { name, qmp, id, force } => {
                let info: PortInfo = Client::connect(global)?.get(&name.path())?;
                let PortKind::VfioUser(VfioUser { path, nic }) = &info.spec.kind else {
                    return Err(UsageError::new(
                        "only emulated cards (--nic) are plugged in again",
                    )
                    .into());
                };
                if nic.model == NicModel::I82574L && !force {
                    bail!(
                        "QEMU up to 11.1 ends itself when a vfio-user device with MSI-X is unplugged; restart \
                         the virtual machine, or say --force where a later QEMU does better"
                    );
                }
                let default = || global.dir().join(format!("{}-{}.sock", name.switch, name.port));
                let socket = path.as_ref().map_or_else(default, PathBuf::from);
                Qmp::connect(&qmp)?.replug(&id, &socket)?;
                global.print_done(&info, &format!("{name} is plugged in again"))
            }
            Self::Show { name } => show(global, name.as_ref()),
        }
    }
}

fn show(global: &Global, name: Option<&Name>) -> Result {
    let mut client = Client::connect(global)?;
    let switches = match name {
        Some(name) => vec![name.switch().clone()],
        None => switches(&mut client)?,
    };
    let mut ports: Vec<(SwitchName, PortInfo)> = Vec::new();
    for switch in switches {
        let of_switch: Vec<PortInfo> = match name {
            Some(Name::Port(port)) => vec![client.get(&port.path())?],
            _ => client.get(&format!("{}/ports", switch.path()))?,
        };
        ports.extend(of_switch.into_iter().map(|info| (switch.clone(), info)));
    }
    // The API's JSON plus the switch, which the API has in the path.
    let json: Vec<_> = ports
        .iter()
        .map(|(switch, info)| {
            let mut port = json!(info);
            port["switch"] = json!(switch.as_str());
            port
        })
        .collect();
    global.print_list(&json, || table(&ports), "no ports; add one: toklat port add vale0:p1")?;
    if let (Some(Name::Port(_)), [(_, PortInfo { sflow_interface: Some(number), .. })], false) =
        (name, ports.as_slice(), global.json)
    {
        writeln!(std::io::stdout().lock(), "sflow: interface {number}")?;
    }
    match (name, ports.as_slice()) {
        (Some(Name::Port(_)), [(_, PortInfo { interface: Some(interface), .. })])
            if !global.json =>
        {
            writeln!(std::io::stdout().lock())?;
            global.print_list(&(), || facts(interface), "")
        }
        (Some(Name::Port(_)), [(_, PortInfo { tunnel: Some(tunnel), .. })]) if !global.json => {
            writeln!(std::io::stdout().lock())?;
            global.print_list(&(), || peers(tunnel), "")
        }
        _ => Ok(()),
    }
}

/// The interface of a port: how frames come and go, its link, and its counters that are not zero.
fn facts(interface: &InterfaceInfo) -> Table {
    let InterfaceInfo { engine, why, queues, lost, host, link, .. } = interface;
    let mut table = Table::new(&["interface", ""]);
    table.row(["engine".into(), format!("{engine}: {why}")]);
    table.row(["queues".into(), queues.to_string()]);
    table.row(["lost, because the port was late".into(), count(*lost)]);
    table.row(["the host's stack".into(), host.clone()]);
    let Some(link) = link else { return table };
    let up = if link.up { "up" } else { "down" };
    let carrier = if link.carrier { "carrier" } else { "no carrier" };
    let promiscuous = if link.promiscuous { ", promiscuous" } else { "" };
    table.row(["link".into(), format!("{up}, {carrier}{promiscuous}, MTU {}", link.mtu)]);
    table.row(["address".into(), link.mac.map_or_else(|| "-".into(), |mac| mac.to_string())]);
    table.row(["kind".into(), link.kind.clone().unwrap_or_else(|| "card".into())]);
    for (name, value) in link.statistics.iter().filter(|(_, value)| **value > 0) {
        table.row([name.clone(), count(*value)]);
    }
    table
}

/// The hosts behind a tunnel.
fn peers(tunnel: &TunnelInfo) -> Table {
    let mut table = Table::new(&["peer", ">VNI", ">in", ">in bytes", ">out", ">out bytes", "lost"]);
    for peer in &tunnel.peers {
        let lost = [
            (peer.too_long, "too_long"),
            (peer.full, "full"),
            (peer.unreachable, "unreachable"),
            (peer.refused, "refused"),
        ];
        let lost: Vec<_> = lost.iter().filter(|(n, _)| *n > 0).collect();
        let lost: Vec<_> = lost.iter().map(|(n, why)| format!("{why} {n}")).collect();
        table.row([
            peer.address.to_string(),
            peer.vni.to_string(),
            count(peer.in_frames),
            bytes(peer.in_bytes),
            count(peer.out_frames),
            bytes(peer.out_bytes),
            if lost.is_empty() { "-".into() } else { lost.join(", ") },
        ]);
    }
    table
}

fn switches(client: &mut Client) -> Result<Vec<SwitchName>, ClientError> {
    let all: Vec<SwitchInfo> = client.get("/v1/switches")?;
    Ok(all.iter().filter_map(|info| info.name.parse().ok()).collect())
}

fn table(ports: &[(SwitchName, PortInfo)]) -> Table {
    let mut table = Table::new(&[
        "port", ">id", "state", "kind", ">worker", "vlan", ">mtu", "rules", "memory", "client",
    ]);
    for (switch, info) in ports {
        let spec = &info.spec;
        let client = info.client.map_or_else(
            || "-".to_owned(),
            |client| format!("pid {} uid {}", client.pid, client.uid),
        );
        table.row([
            format!("{switch}:{}", info.name),
            info.id.to_string(),
            state(info),
            kind(info),
            info.worker.map_or_else(|| "-".to_owned(), |worker| worker.to_string()),
            vlan(&spec.vlan()),
            spec.policy.mtu.to_string(),
            rules(spec),
            memory(&info.memory),
            client,
        ]);
    }
    table
}

/// A port's state in a word, and its failure.
fn state(info: &PortInfo) -> String {
    match &info.failure {
        Some(why) => format!("failed: {why}"),
        None => match &info.unconnected {
            Some(why) if info.state == PortState::Waiting => format!("waiting: {why}"),
            Some(why) => format!("{}: {why}", state_name(info.state)),
            None => state_name(info.state).to_owned(),
        },
    }
}

/// A port's state in a word.
#[must_use]
pub const fn state_name(state: PortState) -> &'static str {
    state.name()
}

fn kind(info: &PortInfo) -> String {
    if let Some(of) = &info.monitors {
        return format!("monitor of {of}");
    }
    let mtu = info.tunnel.as_ref().and_then(|tunnel| tunnel.inner_mtu);
    let mtu = mtu.map_or_else(String::new, |mtu| format!(", inner MTU {mtu}"));
    format!("{}{mtu}", info.spec.kind)
}

fn vlan(mode: &VlanMode) -> String {
    let list = |vlans: &[VlanId]| match vlans {
        [] => "all".to_owned(),
        vlans => topology::ranges::text(&vlans.iter().map(|vlan| vlan.get()).collect::<Vec<_>>()),
    };
    match mode {
        VlanMode::Unaware => "-".into(),
        VlanMode::Access(vlan) => vlan.to_string(),
        VlanMode::Trunk { allowed, native: None } => format!("trunk {}", list(allowed)),
        VlanMode::Trunk { allowed, native: Some(native) } => {
            format!("trunk {} native {native}", list(allowed))
        }
    }
}

/// The rules that differ from an ordinary port's, in the words of `port set`.
fn rules(spec: &PortSpec) -> String {
    let words = spec.special_rules();
    if words.is_empty() { "-".into() } else { words.join(", ") }
}

/// How much of its owner's memory is mapped, and whether more was refused.
fn memory(memory: &MappedMemory) -> String {
    let mapped = match memory.bytes {
        0 => "-".to_owned(),
        bytes => binary_bytes(bytes),
    };
    let whose = match memory.refused_by {
        None => return mapped,
        Some(LimitOf::Port) => "the port",
        Some(LimitOf::User) => "its user",
        Some(LimitOf::Switch) => "the switch",
    };
    format!("{mapped}, {} more refused (limit of {whose})", memory.refused)
}

#[cfg(test)]
mod tests {
    use dataplane::config::Policy;

    use super::*;
    use crate::api::Client as Opener;

    #[test]
    fn the_table_says_what_is_special() {
        let policy = Policy {
            lossless: true,
            flood_limit: None,
            vlan: VlanMode::Trunk { allowed: vec![], native: VlanId::new(5) },
            mirror_egress: Some("p2".into()),
            ..Policy::default()
        };
        let info = PortInfo {
            name: "p1".into(),
            id: 0,
            state: PortState::Attached,
            failure: None,
            unconnected: None,
            worker: Some(1),
            ephemeral: false,
            client: Some(Opener { pid: 17, uid: 1000 }),
            monitors: None,
            tunnel: None,
            interface: None,
            sflow_interface: None,
            memory: MappedMemory {
                bytes: 6 << 30,
                mappings: 2,
                refused: 3,
                refused_by: Some(LimitOf::User),
            },
            spec: PortSpec { policy, ..PortSpec::default() },
        };
        let switch: SwitchName = "vale0".parse().unwrap();
        assert_eq!(
            table(&[(switch, info)]).to_string(),
            "PORT      ID  STATE     KIND  WORKER  VLAN                 MTU  \
             RULES                                     \
             MEMORY                                        CLIENT\n\
             vale0:p1   0  attached  ring       1  trunk all native 5  1500  \
             lossless, flood-limit off, mirror-out p2  \
             6.00 GiB, 3 more refused (limit of its user)  pid 17 uid 1000\n"
        );
    }
}
