//! Everything as configured.

use std::collections::BTreeMap;

use fabric::VlanMode;
use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::{
    Collector, Evpn, Group, GuestSpec, LinkSpec, Policy, PortKind, Quotas, SwitchConfig, Table,
    rules, users,
};

/// The whole configuration: the topology file. Ports that clients created by opening them are not
/// part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schemars", schemars(extend("examples" = [
    {"switch": {"vale7": {"port": {"db": {"vlan": {"access": 10}}}}}},
    {
        "guest": {"web": {"app": "httpd", "port": "vale7:web", "address": "10.0.0.2/24"}},
        "switch": {"vale7": {}},
    },
])))]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// Limits for users.
    #[serde(default, skip_serializing_if = "Quotas::is_default")]
    pub quota: Quotas,
    /// EVPN, if tunnels use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evpn: Option<Evpn>,
    /// Guests that the daemon runs, by name: confined programs, each with a port of its own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "schemars", schemars(extend("propertyNames" = {"pattern": crate::PORT_PATTERN})))]
    pub guest: BTreeMap<String, GuestSpec>,
    /// Links by name, for the ports that name them: each is a table of words, such as
    /// `rate = "10Mb/s"` and `delay = "25ms"`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "schemars", schemars(extend("propertyNames" = {"pattern": crate::PORT_PATTERN})))]
    pub link: BTreeMap<String, LinkSpec>,
    /// Groups of rules by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "schemars", schemars(extend("propertyNames" = {"pattern": crate::PORT_PATTERN})))]
    pub group: BTreeMap<String, Group>,
    /// Tables of addresses by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "schemars", schemars(extend("propertyNames" = {"pattern": crate::PORT_PATTERN})))]
    pub table: BTreeMap<String, Table>,
    /// Switches by name.
    #[serde(default)]
    #[cfg_attr(feature = "schemars", schemars(extend("propertyNames" = {"pattern": crate::SWITCH_PATTERN})))]
    pub switch: BTreeMap<String, SwitchSpec>,
}

/// A configured switch. Its settings stand at the same level as `owner` and `port`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schemars", schemars(extend("examples" = [{"batch": 32}])))]
#[serde(deny_unknown_fields)]
pub struct SwitchSpec {
    /// Its settings.
    #[serde(flatten)]
    pub config: SwitchConfig,
    /// The only user, besides root and the daemon's, that may open ports without an owner of their
    /// own. A name or a uid; read back as a uid. `None`: every user that may use the attach socket.
    #[serde(default, deserialize_with = "users::optional_uid")]
    #[cfg_attr(feature = "schemars", schemars(schema_with = "crate::schema::user"))]
    pub owner: Option<u32>,
    /// The tenant that the switch belongs to, as `owner` for all of its ports. No port of it may
    /// have another owner.
    #[serde(default, deserialize_with = "users::optional_uid")]
    #[cfg_attr(feature = "schemars", schemars(schema_with = "crate::schema::user"))]
    pub user: Option<u32>,
    /// The collector that gets samples of the traffic by sFlow version 5; `None` for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(with = "Option<String>"))]
    pub sflow: Option<Collector>,
    /// The sampling rate: one frame in this many, 1 to 16,777,216; `None` for 10,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 16_777_216)))]
    pub sflow_rate: Option<u32>,
    /// Seconds between reports of the ports' counters, 1 to 3600; `None` for 20.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 3600)))]
    pub sflow_polling_s: Option<u32>,
    /// Its ports by name.
    #[serde(default)]
    #[cfg_attr(feature = "schemars", schemars(extend("propertyNames" = {"pattern": crate::PORT_PATTERN})))]
    pub port: BTreeMap<String, PortSpec>,
}

/// A configured port. Its policy stands at the same level as `kind`. It is read from words, too:
/// see [`rules`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schemars", schemars(extend("examples" = [
    {"tx_limit": "100Mb/s"},
    {"tx_rate_limiter": {"bandwidth": {"size": 1_250_000, "refill_time": 100}}},
])))]
#[cfg_attr(feature = "schemars", schemars(transform = crate::schema::add_words))]
pub struct PortSpec {
    /// What it is attached to.
    #[serde(default)]
    pub kind: PortKind,
    /// The worker that serves it; `None` for the least loaded.
    #[serde(default)]
    pub worker: Option<u16>,
    /// The only user, besides root and the daemon's, that may open the port; `None` for the
    /// switch's owner. A name or a uid; read back as a uid.
    #[serde(default)]
    #[cfg_attr(feature = "schemars", schemars(schema_with = "crate::schema::user"))]
    pub owner: Option<u32>,
    /// Its rules.
    #[serde(flatten)]
    pub policy: Policy,
}

impl<'de> Deserialize<'de> for PortSpec {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        /// The settings without words.
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Settled {
            #[serde(default)]
            kind: PortKind,
            #[serde(default)]
            worker: Option<u16>,
            #[serde(default, deserialize_with = "users::optional_uid")]
            owner: Option<u32>,
            #[serde(flatten)]
            policy: Policy,
        }

        let mut settings = Map::deserialize(from)?;
        rules::settle(&mut settings).map_err(D::Error::custom)?;
        let settled = Settled::deserialize(Value::Object(settings)).map_err(D::Error::custom)?;
        let Settled { kind, worker, owner, policy } = settled;
        Ok(Self { kind, worker, owner, policy })
    }
}

impl PortSpec {
    /// The port's VLANs: its kind's, if that says them, or its policy's.
    #[must_use]
    pub fn vlan(&self) -> VlanMode {
        self.kind.settings().vlans().unwrap_or_else(|| self.policy.vlan.clone())
    }

    /// The rules of the port, with its VLANs.
    #[must_use]
    pub fn rules(&self) -> Policy {
        Policy { vlan: self.vlan(), ..self.policy.clone() }
    }

    /// The settings as JSON.
    fn settings(&self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(settings)) => settings,
            _ => Map::new(),
        }
    }

    /// The settings with words where words say the same, in the order in which files have them.
    #[must_use]
    pub fn in_words(&self) -> Vec<(String, Value)> {
        rules::in_words(self.settings())
    }

    /// The rules that differ from an ordinary port's, in the command line's words, but for those
    /// that tables have columns for.
    #[must_use]
    pub fn special_rules(&self) -> Vec<String> {
        let mut settings = self.settings();
        if let Some(uid) = self.owner {
            settings.insert("owner".to_owned(), users::name(uid).into());
        }
        rules::shown(&settings, &Self::default().settings())
    }
}

/// The topology with the words of rules, as a file has it.
#[derive(Debug, Serialize)]
pub struct InWords<'t> {
    #[serde(skip_serializing_if = "Quotas::is_default")]
    quota: &'t Quotas,
    #[serde(skip_serializing_if = "Option::is_none")]
    evpn: &'t Option<Evpn>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    guest: &'t BTreeMap<String, GuestSpec>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    link: &'t BTreeMap<String, LinkSpec>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    group: &'t BTreeMap<String, Group>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    table: &'t BTreeMap<String, Table>,
    switch: BTreeMap<&'t str, SwitchInWords<'t>>,
}

#[derive(Debug, Serialize)]
struct SwitchInWords<'t> {
    /// All settings but the ports.
    #[serde(flatten)]
    config: &'t SwitchConfig,
    owner: Option<u32>,
    user: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sflow: &'t Option<Collector>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sflow_rate: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sflow_polling_s: Option<u32>,
    port: BTreeMap<&'t str, Settings>,
}

/// Settings in their order.
#[derive(Debug)]
struct Settings(Vec<(String, Value)>);

impl Serialize for Settings {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl Topology {
    /// The topology as a file has it, with words for rules.
    #[must_use]
    pub fn in_words(&self) -> InWords<'_> {
        let Self { quota, evpn, guest, link, group, table, switch } = self;
        let switches = switch.iter().map(|(name, switch)| {
            let SwitchSpec { config, owner, user, sflow, sflow_rate, sflow_polling_s, port } =
                switch;
            let port = port.iter().map(|(name, spec)| (name.as_str(), Settings(spec.in_words())));
            let (owner, user, port) = (*owner, *user, port.collect());
            let (sflow_rate, sflow_polling_s) = (*sflow_rate, *sflow_polling_s);
            let switch =
                SwitchInWords { config, owner, user, sflow, sflow_rate, sflow_polling_s, port };
            (name.as_str(), switch)
        });
        InWords { quota, evpn, guest, link, group, table, switch: switches.collect() }
    }
}
