//! Quotas: limits on how much of the shared resources one user may hold.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::de::{Deserializer, Error, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

use crate::users;

/// A limit: a count or a number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// At most this many.
    AtMost(u64),
    /// No limit.
    None,
}

impl Limit {
    /// The number, if there is one.
    #[must_use]
    pub const fn number(self) -> Option<u64> {
        match self {
            Self::AtMost(number) => Some(number),
            Self::None => None,
        }
    }
}

/// An invalid limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a limit; use a number, such as 100 or 2GiB, or none")]
pub struct NoLimit(String);

impl FromStr for Limit {
    type Err = NoLimit;

    fn from_str(text: &str) -> Result<Self, NoLimit> {
        if text == "none" {
            return Ok(Self::None);
        }
        let units = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40), ("", 0)];
        let split = units.iter().find_map(|(unit, bits)| Some((text.strip_suffix(unit)?, *bits)));
        let number = split.and_then(|(digits, bits)| {
            let number: u64 = digits.trim_end().parse().ok()?;
            // TOML's integers are signed.
            number.checked_mul(1 << bits).filter(|number| i64::try_from(*number).is_ok())
        });
        number.map(Self::AtMost).ok_or_else(|| NoLimit(text.into()))
    }
}

impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::AtMost(number) => to.serialize_u64(*number),
            Self::None => to.serialize_str("none"),
        }
    }
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader;

        impl Visitor<'_> for Reader {
            type Value = Limit;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, such as 100 or \"2GiB\", or \"none\"")
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Limit, E> {
                Ok(Limit::AtMost(number))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Limit, E> {
                let number =
                    u64::try_from(number).map_err(|_| E::custom("a limit is not negative"));
                number.map(Limit::AtMost)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Limit, E> {
                text.parse().map_err(E::custom)
            }
        }

        from.deserialize_any(Reader)
    }
}

/// Limits for one user. A limit that is not set has its default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Quota {
    /// Ports in all switches together. Default: 1,024, and at most a quarter of a switch's ports.
    pub ports: Option<Limit>,
    /// Switches that the user created by opening a port of them. Default: 8.
    pub switches: Option<Limit>,
    /// Pipes. Default: 128.
    pub pipes: Option<Limit>,
    /// Bytes of memory that the user lends for ports and pipes, and of the state of the user's
    /// trusted switches. Default: a quarter of the machine's memory.
    pub memory: Option<Limit>,
    /// Connections to the attach socket at a time. Default: 64.
    pub connections: Option<Limit>,
    /// Learned addresses in the table of one switch. Default: a share of the table.
    pub addresses: Option<Limit>,
    /// Descriptors that the daemon keeps for the user's ports, pipes, regions and connections.
    /// Default: half of the daemon's, and at most as many as are left for others.
    pub descriptors: Option<Limit>,
    /// Open descriptors, adapters and regions of netmap's interface. Default: 8,192.
    pub netmap_objects: Option<Limit>,
    /// Persistent ports of netmap's interface (`VALE_NEWIF`). Default: 64.
    pub netmap_ports: Option<Limit>,
}

impl Quota {
    /// Takes each limit that is not set from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            ports: self.ports.or(other.ports),
            switches: self.switches.or(other.switches),
            pipes: self.pipes.or(other.pipes),
            memory: self.memory.or(other.memory),
            connections: self.connections.or(other.connections),
            addresses: self.addresses.or(other.addresses),
            descriptors: self.descriptors.or(other.descriptors),
            netmap_objects: self.netmap_objects.or(other.netmap_objects),
            netmap_ports: self.netmap_ports.or(other.netmap_ports),
        }
    }
}

/// Configured quotas: for every user, and for single users by name or uid. Root and the daemon's
/// user have only the limits that are set under their own names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schemars", schemars(extend("examples" = [{"user": {"1000": {"ports": 16}}}])))]
#[serde(default, deny_unknown_fields)]
pub struct Quotas {
    /// For every user.
    #[serde(flatten)]
    pub each: Quota,
    /// For single users, by uid.
    #[serde(with = "users::by_uid")]
    #[cfg_attr(feature = "schemars", schemars(with = "BTreeMap<String, Quota>"))]
    pub user: BTreeMap<u32, Quota>,
}

impl Quotas {
    /// True if no limit is set.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_have_units_and_may_be_none() {
        let limit = |text: &str| text.parse::<Limit>().ok();
        assert_eq!(limit("100"), Some(Limit::AtMost(100)));
        assert_eq!(limit("2GiB"), Some(Limit::AtMost(2 << 30)));
        assert_eq!(limit("64 KiB"), Some(Limit::AtMost(64 << 10)));
        assert_eq!(limit("none"), Some(Limit::None));
        for bad in ["", "-1", "x", "2GB", "9223372036854775808", "9999999999TiB", "KiB"] {
            assert_eq!(limit(bad), None, "{bad}");
        }
    }

    #[test]
    fn quotas_are_read_and_written_back_the_same() {
        let text =
            "ports = 100\nmemory = '1GiB'\n[user.root]\nports = 5\n[user.1000]\npipes = 'none'";
        let quotas: Quotas = toml::from_str(text).unwrap();
        assert_eq!(quotas.each.memory, Some(Limit::AtMost(1 << 30)));
        assert_eq!(quotas.user[&0].ports, Some(Limit::AtMost(5)));
        assert_eq!(quotas.user[&1000].pipes, Some(Limit::None));
        assert_eq!(toml::from_str::<Quotas>(&toml::to_string(&quotas).unwrap()).unwrap(), quotas);
        let json = serde_json::to_string(&quotas).unwrap();
        assert_eq!(serde_json::from_str::<Quotas>(&json).unwrap(), quotas);
        for bad in ["prots = 1", "ports = -1", "[user.0]\nprots = 1", "[user.'no such user']"] {
            assert!(toml::from_str::<Quotas>(bad).is_err(), "{bad}");
        }
        let twice = "[user.root]\nports = 1\n[user.0]\nports = 2";
        assert!(toml::from_str::<Quotas>(twice).is_err());
    }
}
