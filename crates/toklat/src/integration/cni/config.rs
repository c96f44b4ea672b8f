//! A network's configuration, as the runtime passes it on.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Code, Failure, VERSION, VERSIONS};

/// How a container is attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Attach {
    /// A tap interface in its network namespace.
    #[default]
    Tap,
    /// A socket for a vhost-user front end: DPDK, a virtual machine.
    VhostUser,
}

/// The fields of a configuration that this plugin reads. IPAM plugins get the whole configuration.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Config {
    /// The network.
    pub name: String,
    /// The switch of the network.
    #[serde(default)]
    pub switch: String,
    /// The daemon's runtime directory.
    #[serde(default = "system_dir")]
    pub dir: PathBuf,
    /// How containers are attached.
    #[serde(default)]
    pub attach: Attach,
    /// Directory of vhost-user sockets; by default the runtime directory.
    pub socket_dir: Option<PathBuf>,
    /// Pairs of queues.
    #[serde(default = "one")]
    pub queues: u16,
    /// Rules of the ports, in the words of `toklat port add` and of topology files.
    #[serde(default)]
    pub port: BTreeMap<String, Value>,
    /// The plugin that assigns addresses.
    pub ipam: Option<Ipam>,
    /// The runtime's additions for this container.
    #[serde(default)]
    pub runtime_config: RuntimeConfig,
    /// The result of an earlier ADD.
    pub prev_result: Option<Value>,
    /// The attachments that are valid, for GC.
    #[serde(rename = "cni.dev/valid-attachments")]
    pub valid: Option<Vec<Valid>>,
    /// The valid attachments, in the form of version 1.1.0.
    #[serde(rename = "cni.dev/attachments")]
    pub attachments: Option<Vec<Valid>>,
}

/// The field of `ipam` that every plugin has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Ipam {
    /// The plugin; empty for none.
    #[serde(rename = "type", default)]
    pub plugin: String,
}

/// What a runtime passes by capabilities.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct RuntimeConfig {
    /// The interface's address.
    pub mac: Option<String>,
}

/// A valid attachment.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Valid {
    /// The container.
    #[serde(rename = "containerID")]
    pub container: String,
    /// Its interface.
    pub ifname: String,
}

fn system_dir() -> PathBuf {
    "/run/toklat".into()
}

const fn one() -> u16 {
    1
}

/// The configuration, as JSON and parsed.
pub fn parse(text: &str) -> Result<(Map<String, Value>, Config), Failure> {
    let no_json = |e: serde_json::Error| {
        Failure::new(Code::Decode, "The configuration cannot be read", e.to_string())
    };
    let whole: Map<String, Value> = serde_json::from_str(text).map_err(no_json)?;
    let version = whole.get("cniVersion").and_then(Value::as_str).unwrap_or("0.1.0");
    if !VERSIONS.contains(&version) {
        let known = format!("the plugin understands {}", VERSIONS.join(", "));
        return Err(Failure::new(
            Code::Version,
            format!("CNI version {version} is not supported"),
            known,
        ));
    }
    let config: Config = serde_json::from_str(text).map_err(no_json)?;
    if config.switch.is_empty() {
        let remedy = r#"name the switch, as in "switch": "vale0""#;
        return Err(Failure::new(Code::Config, "The configuration names no switch", remedy));
    }
    Ok((whole, config))
}

/// The version of the result that the configuration asks for.
pub fn version_of(text: &str) -> String {
    let whole: Option<Value> = serde_json::from_str(text).ok();
    let version = whole.as_ref().and_then(|whole| whole["cniVersion"].as_str());
    version.unwrap_or(VERSION).to_owned()
}

impl Config {
    /// The rules of a port, as options of `toklat port add`.
    pub fn options(&self) -> impl Iterator<Item = String> + '_ {
        // As in topology files, too: `tx_limit`.
        let named = self.port.iter().map(|(name, value)| (name.replace('_', "-"), value));
        named.map(|(name, value)| match value {
            Value::Bool(true) => format!("--{name}=on"),
            Value::Bool(false) => format!("--{name}=off"),
            Value::String(text) => format!("--{name}={text}"),
            value => format!("--{name}={value}"),
        })
    }

    /// The IPAM plugin's name, if there is one.
    pub fn ipam(&self) -> Option<&str> {
        self.ipam.as_ref().map(|ipam| ipam.plugin.as_str()).filter(|plugin| !plugin.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::super::ports;
    use super::*;

    /// Objective: a configuration of CNI, a topology file and the command line say a rule alike.
    #[test]
    fn rules_have_the_words_of_topology_files() {
        let rules = json!({
            "tx_limit": "100Mb/s,100kpps", "rx-impair": "loss=1%,delay=10ms", "guard": true,
            "vlan_access": 10, "flap_guard": false, "mtu": 9000,
        });
        let text = json!({ "name": "n", "switch": "vale0", "cniVersion": VERSION, "port": rules });
        let (_, config) = parse(&text.to_string()).unwrap();
        let patch = Value::Object(ports::rules(config.options()).unwrap().patch());
        let file = "tx_limit = '100Mb/s,100kpps'\nrx_impair = 'loss=1%,delay=10ms'\n\
                    guard = true\nvlan_access = 10\nflap_guard = false\nmtu = 9000";
        let of_file: crate::api::PortSpec = toml::from_str(file).unwrap();
        assert_eq!(serde_json::from_value::<crate::api::PortSpec>(patch).unwrap(), of_file);
    }
}
