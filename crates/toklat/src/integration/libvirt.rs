//! `toklat libvirt-hook`: the ports of a libvirt domain, added before it starts and removed after
//! it ended.
//!
//! libvirt calls `/etc/libvirt/hooks/qemu DOMAIN OPERATION SUBOPERATION EXTRA` with the domain's
//! XML on standard input (<https://libvirt.org/hooks.html>). A port is named in the domain's
//! `<metadata>`, and described by the `vhostuser` interface with the same address; a failure of
//! `prepare` keeps the domain from starting, and libvirt shows why.

use std::io::Read;

use anyhow::{Context, anyhow, bail, ensure};
use frame::Mac;
use roxmltree::{Document, Node};
use topology::VhostUser;

use super::ports::{self, Found, Wanted};
use crate::api::PortKind;
use crate::cli::port_options::RuleOptions;
use crate::users;
use client::name::PortName;
use client::{Client, Global, Result};

/// The namespace of our elements in a domain's metadata.
pub const NAMESPACE: &str = "https://toklat.invalid/libvirt/1";

/// Longest domain XML that is read.
const LONGEST: u64 = 16 << 20;

/// Users that QEMU runs as: Debian's libvirt, Fedora's.
const QEMU_USERS: [&str; 2] = ["libvirt-qemu", "qemu"];

/// What libvirt says.
#[derive(Debug, clap::Args)]
#[command(after_help = "libvirt calls it by way of /etc/libvirt/hooks/qemu.d/toklat. By hand:\n  \
    virsh dumpxml web1 | toklat libvirt-hook web1 prepare begin -")]
pub struct HookArgs {
    /// The domain's name
    domain: String,
    /// The event: prepare and reconnect add the domain's ports, release removes them, others do
    /// nothing
    operation: String,
    /// begin or end
    #[arg(default_value = "-")]
    suboperation: String,
    /// Further arguments of libvirt's
    #[arg(default_value = "-", allow_hyphen_values = true)]
    extra: String,
}

/// Does what the operation asks for.
///
/// # Errors
/// If the domain's XML is wrong, or the daemon does not run or refuses.
pub fn run(args: &HookArgs, global: &Global) -> Result {
    let does = match (args.operation.as_str(), args.suboperation.as_str()) {
        ("prepare" | "reconnect", "begin") => add_all,
        ("release", "end") => remove_all,
        _ => return Ok(()),
    };
    let mut xml = String::new();
    std::io::stdin()
        .lock()
        .take(LONGEST)
        .read_to_string(&mut xml)
        .context("Cannot read the domain's XML")?;
    let domain = || format!("Domain {}", args.domain);
    let wanted = wanted(&xml).with_context(domain)?;
    if wanted.is_empty() {
        return Ok(());
    }
    let mut client = Client::connect(global).with_context(domain)?.without_progress();
    does(&mut client, &wanted).with_context(domain)
}

/// Adds all ports or none: if one fails, those added before it are removed again.
fn add_all(client: &mut Client, wanted: &[Wanted]) -> Result {
    let mut added = Vec::new();
    for port in wanted {
        match ports::add(client, port).with_context(|| format!("Cannot add {}", port.name)) {
            Ok(Found::Added) => added.push(port),
            Ok(Found::There) => {}
            Err(error) => {
                for port in added {
                    let _ = ports::remove(client, &port.name, &port.kind);
                }
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Removes the ports that exist. A port that cannot be removed does not stop the others.
fn remove_all(client: &mut Client, wanted: &[Wanted]) -> Result {
    let mut failed = Ok(());
    for port in wanted {
        let removed = ports::remove(client, &port.name, &port.kind)
            .with_context(|| format!("Cannot remove {}", port.name));
        failed = failed.and(removed);
    }
    failed
}

/// The ports named in the domain's metadata.
fn wanted(xml: &str) -> Result<Vec<Wanted>> {
    let document = Document::parse(xml).context("Its XML cannot be read")?;
    let domain = document.root_element();
    let children = |of, name| Node::children(&of).filter(move |node| node.has_tag_name(name));
    let metadata = children(domain, "metadata").flat_map(|node| node.descendants());
    let named = metadata.filter(|node| node.has_tag_name((NAMESPACE, "port")));
    let interfaces: Vec<Interface<'_, '_>> = children(domain, "devices")
        .flat_map(|devices| children(devices, "interface"))
        .map(Interface)
        .collect();
    named.map(|port| wanted_port(port, &interfaces)).collect()
}

/// A port of the metadata, and its interface.
fn wanted_port(port: Node<'_, '_>, interfaces: &[Interface<'_, '_>]) -> Result<Wanted> {
    let name = port.attribute("name").context("A toklat:port has no name; add name='vale0:vm1'")?;
    let of_port = || format!("toklat:port {name}");
    let port_name: PortName = name.parse().with_context(of_port)?;
    let mac = port.attribute("mac").context("It has no mac; give that of its <interface>");
    let mac: Mac = mac.and_then(parse_mac).with_context(of_port)?;
    let interface = interfaces.iter().find(|interface| interface.mac() == Some(mac));
    let interface = interface
        .with_context(|| {
            format!("No <interface> has the address {mac}; give it one: <mac address='{mac}'/>")
        })
        .with_context(of_port)?;
    let kind = interface.kind().with_context(of_port)?;
    let policy = rules(port, mac).with_context(of_port)?;
    let mut rules = policy.patch();
    if !rules.contains_key("owner")
        && let Some(uid) = QEMU_USERS.iter().find_map(|user| users::uid(user).ok())
    {
        rules.insert("owner".into(), uid.into());
    }
    Ok(Wanted { name: port_name, kind, rules })
}

/// Reads the rules from a port's attributes: `tx-limit='1Gb/s'` means `--tx-limit=1Gb/s`.
fn rules(port: Node<'_, '_>, mac: Mac) -> Result<RuleOptions> {
    let attributes = port.attributes().filter(|a| !["name", "mac"].contains(&a.name()));
    let words = attributes.map(|a| format!("--{}={}", a.name(), a.value()));
    ports::rules(words.chain([format!("--mac={mac}")])).map_err(|said| {
        anyhow!("{said}; its attributes are the rules of toklat port add, as in tx-limit='1Gb/s'")
    })
}

fn parse_mac(text: &str) -> Result<Mac> {
    text.parse().map_err(|_| anyhow!("{text:?} is not an address such as 52:54:00:00:00:01"))
}

/// An `<interface>` of a domain.
struct Interface<'a, 'input>(Node<'a, 'input>);

impl<'a, 'input> Interface<'a, 'input> {
    fn child(&self, name: &str) -> Option<Node<'a, 'input>> {
        self.0.children().find(|node| node.has_tag_name(name))
    }

    fn mac(&self) -> Option<Mac> {
        self.child("mac")?.attribute("address")?.parse().ok()
    }

    /// The kind of port to which the interface connects. `mode` is QEMU's side of the socket.
    fn kind(&self) -> Result<PortKind> {
        let of = self.0.attribute("type").unwrap_or_default();
        ensure!(of == "vhostuser", "Its <interface> is of type '{of}'; make it type='vhostuser'");
        let source = self
            .child("source")
            .context("Its <interface> has no <source>; add one with the socket's path")?;
        let path = source.attribute("path").unwrap_or_default();
        ensure!(
            path.starts_with('/'),
            "The <source> has the path '{path}'; name a socket as in /run/toklat/vm1.sock"
        );
        let client = match source.attribute("mode") {
            Some("client") => false,
            Some("server") => true,
            mode => bail!(
                "The <source> has the mode '{}'; use client or server",
                mode.unwrap_or_default()
            ),
        };
        Ok(VhostUser { path: Some(path.into()), client, queues: self.queues()? }.into())
    }

    /// Pairs of queues. Without a setting it is one, QEMU's default.
    fn queues(&self) -> Result<u16> {
        let text =
            self.child("driver").and_then(|driver| driver.attribute("queues")).unwrap_or("1");
        let most = dataplane::state::RINGS as u16;
        let queues = text.parse().ok().filter(|queues| (1..=most).contains(queues));
        queues.with_context(|| format!("The <driver> has queues='{text}'; a port has 1 to {most}"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Makes the XML of a domain with one interface, and the metadata of its port.
    fn domain(port: &str, interface: &str) -> String {
        format!(
            "<domain type='kvm'><name>web1</name>\
             <metadata><toklat:ports xmlns:toklat='{NAMESPACE}'>{port}</toklat:ports></metadata>\
             <devices><interface type='vhostuser'>{interface}</interface></devices></domain>"
        )
    }

    const PORT: &str = "<toklat:port name='vale0:web1' mac='52:54:00:00:00:01'/>";
    const INTERFACE: &str = "<mac address='52:54:00:00:00:01'/><source type='unix' path='/run/toklat/web1.sock' mode='client'/>";

    #[test]
    fn a_port_is_its_interface_and_its_rules() {
        let port = "<toklat:port name='vale0:web1' mac='52:54:00:00:00:01' owner='0' guard='on' tx-limit='8kb/s'/>";
        let interface = format!("{INTERFACE}<driver queues='2'/>");
        let wanted = wanted(&domain(port, &interface)).unwrap();
        let [port] = wanted.as_slice() else { panic!("{wanted:?}") };
        assert_eq!(port.name.to_string(), "vale0:web1");
        let path = Some("/run/toklat/web1.sock".into());
        assert_eq!(port.kind, VhostUser { path, client: false, queues: 2 }.into());
        assert_eq!(port.rules["macs"], json!(["52:54:00:00:00:01"]));
        assert_eq!((&port.rules["owner"], &port.rules["guard"]), (&json!(0), &json!(true)));
        assert!(port.rules.contains_key("tx_rate_limiter"));
    }

    #[test]
    fn domains_that_are_not_ours_want_nothing() {
        for xml in ["<domain/>", &domain("", INTERFACE), &domain("<port name='x'/>", INTERFACE)] {
            assert_eq!(wanted(xml).unwrap(), [], "{xml}");
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_its_port() {
        let with = |from: &str, to: &str| domain(PORT, &INTERFACE.replace(from, to));
        let port = |from: &str, to: &str| domain(&PORT.replace(from, to), INTERFACE);
        for (xml, words) in [
            ("<domain>".into(), "cannot be read"),
            (port("vale0:web1", "vale0"), "SWITCH:PORT"),
            (port("name='vale0:web1'", ""), "no name"),
            (port("mac=", "amc="), "no mac"),
            (port("mac='52", "mac='5"), "vale0:web1: \"5:54"),
            (port("/>", " colour='blue'/>"), "--colour"),
            (port("/>", " tx-limit='fast'/>"), "fast"),
            (with("01'", "02'"), "No <interface> has the address 52:54:00:00:00:01"),
            (with("client", "both"), "mode 'both'"),
            (with("/run/toklat/web1.sock", "web1.sock"), "'web1.sock'"),
            (with("<source", "<driver queues='17'/><source"), "1 to 16"),
            (domain(PORT, INTERFACE).replace("vhostuser", "network"), "type 'network'"),
        ] {
            let error = format!("{:#}", wanted(&xml).unwrap_err());
            assert!(error.contains(words), "{words}: {error}");
        }
    }
}
