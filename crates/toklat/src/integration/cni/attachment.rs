//! An attachment: a container's interface, and the port of the switch that is its other end.

use std::path::PathBuf;

use frame::Mac;
use topology::{Tap, VhostUser};

use super::config::{Attach, Config};
use super::{Code, Failure};
use crate::api::PortKind;
use crate::integration::ports::{self, Wanted};
use client::name::{PortName, SwitchName};

/// The CNI environment variables of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// Its id.
    pub id: String,
    /// The name of the interface to make.
    pub ifname: String,
    /// The container's network namespace; empty at DEL if the namespace is gone.
    pub netns: String,
    /// `CNI_ARGS`: `KEY=VALUE;...`.
    args: String,
}

/// A variable of the environment; empty if it is not set.
pub fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

impl Container {
    /// Reads the environment.
    pub fn of_environment(needs_netns: bool) -> Result<Self, Failure> {
        let wanted = |name: &str| match variable(name) {
            value if value.is_empty() => Err(Failure::new(
                Code::Environment,
                format!("{name} is not set"),
                "the container runtime sets it",
            )),
            value => Ok(value),
        };
        let (id, ifname) = (wanted("CNI_CONTAINERID")?, wanted("CNI_IFNAME")?);
        let netns = if needs_netns { wanted("CNI_NETNS")? } else { variable("CNI_NETNS") };
        let container = Self { id, ifname, netns, args: variable("CNI_ARGS") };
        container.check()?;
        Ok(container)
    }

    fn check(&self) -> Result<(), Failure> {
        let wrong = |name: &str, value: &str, rule: &str| {
            Err(Failure::new(Code::Environment, format!("{name} is {value:?}"), rule))
        };
        let id_allowed = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        if !self.id.starts_with(|c: char| c.is_ascii_alphanumeric())
            || !self.id.chars().all(id_allowed)
        {
            return wrong(
                "CNI_CONTAINERID",
                &self.id,
                "an id has letters, digits, '_', '.' and '-'",
            );
        }
        let name_forbidden = |c: char| c == '/' || c == ':' || c.is_whitespace();
        if self.ifname.len() > 15
            || [".", ".."].contains(&&*self.ifname)
            || self.ifname.contains(name_forbidden)
        {
            return wrong(
                "CNI_IFNAME",
                &self.ifname,
                "an interface has up to 15 characters, without '/', ':' and blanks",
            );
        }
        if !self.netns.is_empty() && !self.netns.starts_with('/') {
            return wrong("CNI_NETNS", &self.netns, "a namespace is given by its path");
        }
        Ok(())
    }

    /// A word of `CNI_ARGS`.
    fn arg(&self, key: &str) -> Option<&str> {
        let words = self.args.split(';').filter_map(|word| word.split_once('='));
        words.filter(|(name, _)| *name == key).map(|(_, value)| value).next()
    }
}

/// The words' 64-bit FNV-1a hash, which is the same in every version of this program.
fn hash(words: &[&str]) -> u64 {
    let bytes = words.iter().flat_map(|word| word.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The prefix of a network's port names.
pub fn prefix(network: &str) -> String {
    format!("cni-{:08x}-", hash(&[network]) >> 32)
}

/// The name of an attachment's port, within its switch.
pub fn port_of(network: &str, container: &str, ifname: &str) -> String {
    format!("{}{:016x}", prefix(network), hash(&[network, container, ifname]))
}

/// The name of the switch.
pub fn switch_of(config: &Config) -> Result<SwitchName, Failure> {
    let wrong = |e: client::name::NameError| {
        Failure::new(
            Code::Config,
            format!("The switch is named {:?}", config.switch),
            e.to_string(),
        )
    };
    config.switch.parse().map_err(wrong)
}

/// The name of a container's port.
pub fn name(config: &Config, container: &Container) -> Result<PortName, Failure> {
    let port = port_of(&config.name, &container.id, &container.ifname);
    Ok(PortName { switch: switch_of(config)?, port })
}

/// The kind of a container's port.
pub fn kind(config: &Config, container: &Container, port: &PortName) -> Result<PortKind, Failure> {
    match config.attach {
        Attach::Tap => {
            let (ifname, netns) = (container.ifname.clone(), Some(container.netns.clone()));
            Ok(Tap { ifname, netns, queues: config.queues }.into())
        }
        Attach::VhostUser => {
            let path = socket(config, port).into_os_string().into_string();
            let wrong = |path| {
                Failure::new(
                    Code::Config,
                    format!("socketDir {path:?} is not UTF-8"),
                    "name another",
                )
            };
            let path = Some(path.map_err(wrong)?);
            Ok(VhostUser { path, client: false, queues: config.queues }.into())
        }
    }
}

/// Where a container's vhost-user socket is.
fn socket(config: &Config, port: &PortName) -> PathBuf {
    config.socket_dir.as_ref().unwrap_or(&config.dir).join(format!("{}.sock", port.port))
}

/// The specification of a container's port, and the address of its interface.
pub fn wanted(config: &Config, container: &Container) -> Result<(Wanted, Mac), Failure> {
    let name = name(config, container)?;
    let kind = kind(config, container, &name)?;
    let mac = mac(config, container)?;
    let options = config.options().chain([format!("--mac={mac}")]);
    let policy = ports::rules(options).map_err(|said| {
        let known = "its fields are the rules of toklat port add, without dashes";
        Failure::new(Code::Config, format!("In \"port\": {said}"), known)
    })?;
    Ok((Wanted { name, kind, rules: policy.patch() }, mac))
}

/// The interface's address: the one the runtime asks for, or one derived from the attachment's
/// name.
fn mac(config: &Config, container: &Container) -> Result<Mac, Failure> {
    let asked = config.runtime_config.mac.as_deref().or_else(|| container.arg("MAC"));
    let Some(text) = asked else {
        let [_, _, _, a, b, c, d, e] =
            hash(&[&config.name, &container.id, &container.ifname]).to_be_bytes();
        return Ok(Mac::new([0x0a, a, b, c, d, e]));
    };
    text.parse().map_err(|_| {
        Failure::new(
            Code::Config,
            format!("{text:?} is not an address"),
            "write it as in 0a:58:0a:00:00:02",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attachments_have_ports_of_their_own_with_names_that_stay() {
        let port = port_of("net", "container", "eth0");
        assert_eq!(
            port, "cni-e53f18ba-d19d9ac6555a64d4",
            "a later version would not find it at DEL"
        );
        assert!(port.len() <= 31 && port.starts_with(&prefix("net")), "{port}");
        for other in [
            port_of("net", "container", "eth1"),
            port_of("net", "containere", "th0"),
            port_of("other", "container", "eth0"),
        ] {
            assert_ne!(port, other);
        }
        assert_ne!(prefix("net"), prefix("other"));
    }
}
