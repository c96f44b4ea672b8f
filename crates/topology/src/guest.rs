//! Guests: programs that are linked with the library OS, and run confined on ports of their own.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

#[cfg(feature = "clap")]
use crate::bytes::parse_bytes;
use crate::{Invalid, PORT_NAME, PortKind, SWITCH_NAME, Topology, bytes, check_name};

/// Most guests of one entry.
pub const MAX_GUESTS: u32 = 20_000;
/// Most guests in one process.
pub const MAX_THREADS: u32 = 64;
/// Bytes of private memory that a guest gets by default.
const MEMORY: u64 = 256 << 20;
/// Slots of a guest's rings by default.
const SLOTS: u32 = 256;

/// When a guest that has ended is started again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub enum Restart {
    /// Never.
    Never,
    /// When it fails: by a status other than 0, a signal, a forbidden system call.
    #[default]
    OnFailure,
    /// Always, until it is stopped.
    Always,
}

/// A guest, or several of a kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schemars", schemars(extend("examples" = [
    {"app": "httpd", "port": "vale7:site", "address": "10.0.0.2/24"},
])))]
#[serde(deny_unknown_fields)]
pub struct GuestSpec {
    /// The program: a path, or the name of one that is built in (`toklat guest programs`).
    #[cfg_attr(feature = "clap", arg(value_hint = clap::ValueHint::FilePath))]
    pub app: String,
    /// Its port, such as vale0:web; ports of several guests get a number, as in vale0:web-0.
    #[cfg_attr(feature = "clap", arg(value_name = "SWITCH:PORT"))]
    pub port: String,
    /// Its address and the length of its network's prefix, such as 10.0.0.2/24 or fd00::2/64; dhcp
    /// for an address from a server, slaac for IPv6 addresses from routers. Commas separate
    /// several. Further guests get the next addresses.
    #[cfg_attr(feature = "clap", arg(value_name = "ADDRESS/PREFIX"))]
    pub address: String,
    /// The program's arguments.
    #[serde(default)]
    #[cfg_attr(feature = "clap", arg(last = true, value_name = "ARGUMENT"))]
    pub args: Vec<String>,
    /// The router to other IPv4 networks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "ADDRESS"))]
    #[cfg_attr(feature = "schemars", schemars(with = "Option<String>"))]
    pub gateway: Option<Ipv4Addr>,
    /// The router to other IPv6 networks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "ADDRESS"))]
    #[cfg_attr(feature = "schemars", schemars(with = "Option<String>"))]
    pub gateway6: Option<Ipv6Addr>,
    /// Slots of its rings, 2 to 4096.
    #[serde(default = "default_slots")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", default_value_t = SLOTS))]
    #[cfg_attr(feature = "schemars", schemars(range(min = 2, max = 4096)))]
    pub slots: u32,
    /// Most private memory of a process, such as 64MiB.
    #[serde(default = "default_memory", with = "bytes")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "BYTES", default_value = "256MiB"))]
    #[cfg_attr(feature = "clap", arg(value_parser = parse_bytes))]
    #[cfg_attr(feature = "schemars", schemars(schema_with = "bytes::schema"))]
    pub memory: u64,
    /// When it is started again, after a pause that grows from 0.1 to 30 s.
    #[serde(default)]
    #[cfg_attr(feature = "clap", arg(long, value_name = "WHEN", default_value = "on-failure"))]
    pub restart: Restart,
    /// How many guests.
    #[serde(default = "one")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", default_value_t = 1))]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 20_000)))]
    pub count: u32,
    /// How many guests share a process, each in a thread of its own.
    #[serde(default = "one")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", default_value_t = 1))]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 64)))]
    pub threads: u32,
    /// Do not let a guest serve unless all its walls stand.
    #[serde(default)]
    #[cfg_attr(feature = "clap", arg(long))]
    pub require_walls: bool,
}

fn default_slots() -> u32 {
    SLOTS
}

fn default_memory() -> u64 {
    MEMORY
}

fn one() -> u32 {
    1
}

impl GuestSpec {
    /// Finds what is wrong with it.
    ///
    /// # Errors
    /// The first mistake, and the remedy.
    pub fn check(&self) -> Result<(), Invalid> {
        let (switch, port) = self.port.split_once(':').unwrap_or_default();
        if switch.is_empty() || port.is_empty() || port.contains(['{', '}', '/']) {
            let reason = format!("`{}` is not the name of a port", self.port);
            return Err(Invalid::new(reason, "write it as switch:port, for example vale0:web"));
        }
        check_name(switch, SWITCH_NAME)?;
        check_name(port, PORT_NAME)?;
        let has_v6 = |address: &Address| matches!(address, Address::V6(..) | Address::Slaac);
        if self.gateway6.is_some() && !self.addresses()?.iter().any(has_v6) {
            let reason = "gateway6 of a guest without an IPv6 address";
            return Err(Invalid::new(
                reason,
                "add one to its address, as in 10.0.0.2/24,fd00::2/64",
            ));
        }
        self.addresses()?;
        let ranges = [
            ("slots", self.slots, 2, 4096),
            ("count", self.count, 1, MAX_GUESTS),
            ("threads", self.threads, 1, MAX_THREADS),
        ];
        match ranges.into_iter().find(|(_, value, low, high)| !(low..=high).contains(&value)) {
            Some((name, value, low, high)) => {
                let reason = format!("{name} of a guest is {value}");
                Err(Invalid::new(reason, format!("use {low} to {high}")))
            }
            None if self.app.is_empty() => {
                Err(Invalid::new("A guest has no program", "write app = \"PATH\""))
            }
            None => Ok(()),
        }
    }

    /// Finds what is wrong with it as the entry `name`.
    ///
    /// # Errors
    /// The first mistake, with the entry's name.
    pub fn check_as(&self, name: &str) -> Result<(), Invalid> {
        let checked = check_name(name, PORT_NAME).and_then(|()| self.check());
        checked
            .map_err(|wrong| Invalid { reason: format!("guest.{name}: {}", wrong.reason), ..wrong })
    }

    /// The switch of its ports.
    #[must_use]
    pub fn switch(&self) -> &str {
        self.port.split(':').next().unwrap_or_default()
    }

    /// The name, the port and the list of addresses of each guest. `name` is that of the entry.
    ///
    /// # Errors
    /// A word of the list is no address, or its network has fewer addresses than there are guests.
    pub fn hosts(&self, name: &str) -> Result<Vec<(String, String, String)>, Invalid> {
        let addresses = self.addresses()?;
        let host = |i: u32| {
            let words: Vec<String> = addresses.iter().map(|address| address.nth(i)).collect();
            match self.count {
                1 => (name.to_owned(), self.port.clone(), words.join(",")),
                _ => (format!("{name}-{i}"), format!("{}-{i}", self.port), words.join(",")),
            }
        };
        Ok((0..self.count).map(host).collect())
    }

    /// Reads the list of addresses, with at most one word of each kind.
    fn addresses(&self) -> Result<Vec<Address>, Invalid> {
        let mut addresses: Vec<Address> = Vec::new();
        for word in self.address.split(',') {
            let address = Address::read(word).ok_or_else(|| {
                let reason = format!("`{word}` is not an address with a prefix length");
                Invalid::new(
                    reason,
                    "write it as in 10.0.0.2/24 or fd00::2/64; or write dhcp or slaac",
                )
            })?;
            if addresses.iter().any(|other| other.kind() == address.kind()) {
                let reason = format!("`{}` has two addresses of a kind", self.address);
                return Err(Invalid::new(
                    reason,
                    "write one of each, as in 10.0.0.2/24,fd00::2/64",
                ));
            }
            if !address.has(self.count) {
                let reason = format!("{} guests from {word} on leave its network", self.count);
                return Err(Invalid::new(reason, "use a shorter prefix, or fewer guests"));
            }
            addresses.push(address);
        }
        Ok(addresses)
    }
}

/// A word of the list of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Address {
    V4(Ipv4Addr, u8),
    V6(Ipv6Addr, u8),
    /// Of a DHCP server.
    Dhcp,
    /// Of router advertisements.
    Slaac,
}

impl Address {
    fn read(word: &str) -> Option<Self> {
        match word {
            "dhcp" => return Some(Self::Dhcp),
            "slaac" => return Some(Self::Slaac),
            _ => {}
        }
        let (ip, len) = word.split_once('/')?;
        let len: u8 = len.parse().ok()?;
        match ip.parse().ok()? {
            IpAddr::V4(ip) => (len <= 32 && !ip.is_unspecified()).then_some(Self::V4(ip, len)),
            IpAddr::V6(ip) => (len <= 128 && !ip.is_unspecified()).then_some(Self::V6(ip, len)),
        }
    }

    /// What a host may have one of.
    fn kind(&self) -> u8 {
        match self {
            Self::V4(..) | Self::Dhcp => 4,
            Self::V6(..) => 6,
            Self::Slaac => 0,
        }
    }

    /// Whether the network has this many addresses from this one on.
    fn has(&self, count: u32) -> bool {
        let more = u128::from(count.saturating_sub(1));
        let same = |first: u128, all: u32, len: u8, last: Option<u128>| {
            let network = |bits: u128| bits.checked_shr(all - u32::from(len)).unwrap_or(0);
            last.is_some_and(|last| last >> (all - 1) < 2 && network(last) == network(first))
        };
        match self {
            Self::V4(ip, len) => {
                let first = u128::from(ip.to_bits());
                same(first, 32, *len, Some(first + more))
            }
            Self::V6(ip, len) => same(ip.to_bits(), 128, *len, ip.to_bits().checked_add(more)),
            Self::Dhcp | Self::Slaac => true,
        }
    }

    /// The word of the guest with this number.
    fn nth(&self, i: u32) -> String {
        match self {
            Self::V4(ip, len) => format!("{}/{len}", Ipv4Addr::from_bits(ip.to_bits() + i)),
            Self::V6(ip, len) => {
                format!("{}/{len}", Ipv6Addr::from_bits(ip.to_bits() + u128::from(i)))
            }
            Self::Dhcp => "dhcp".to_owned(),
            Self::Slaac => "slaac".to_owned(),
        }
    }
}

/// Checks that no two guests have one name or one port, and that their ports can be opened by
/// programs.
///
/// # Errors
/// Names the first guest that is wrong.
pub(crate) fn check_places(topology: &Topology) -> Result<(), Invalid> {
    let mut claims = BTreeMap::new();
    for (entry, spec) in &topology.guest {
        for (name, port, _) in spec.hosts(entry)? {
            for what in [format!("The name {name} of a guest"), format!("The port {port}")] {
                if let Some(other) = claims.insert(what.clone(), entry) {
                    let reason =
                        format!("{what} is used twice: by guest.{other} and guest.{entry}");
                    return Err(Invalid::new(
                        reason,
                        "give each guest a name and a port of its own",
                    ));
                }
            }
            let (switch, own) = port.split_once(':').unwrap_or_default();
            let there = topology.switch.get(switch).and_then(|switch| switch.port.get(own));
            if let Some(other) = there.filter(|there| there.kind != PortKind::Ring) {
                let reason = format!(
                    "guest.{entry} cannot open {port}, which is a {} port",
                    other.kind.word()
                );
                return Err(Invalid::new(reason, "leave out its kind, or name another port"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> GuestSpec {
        toml::from_str(&format!("app = \"httpd\"\n{text}")).unwrap()
    }

    #[test]
    fn several_guests_have_ports_and_addresses_in_a_row() {
        let spec = spec("port = \"vale0:web\"\naddress = \"10.0.0.254/16\"\ncount = 3");
        spec.check().unwrap();
        let hosts = spec.hosts("web").unwrap();
        let last = ("web-2".to_owned(), "vale0:web-2".to_owned(), "10.0.1.0/16".to_owned());
        assert_eq!((hosts.len(), &hosts[2]), (3, &last));
    }

    #[test]
    fn a_guest_has_addresses_of_both_families() {
        let text = "port = \"v:web\"\naddress = \"10.0.0.2/24,fd00::ffff/64,slaac\"\ncount = 2";
        let hosts = spec(text).hosts("web").unwrap();
        assert_eq!(hosts[0].2, "10.0.0.2/24,fd00::ffff/64,slaac");
        assert_eq!(hosts[1].2, "10.0.0.3/24,fd00::1:0/64,slaac");
        let hosts = spec("port = \"v:web\"\naddress = \"dhcp\"\ncount = 2").hosts("web").unwrap();
        assert_eq!((hosts[0].2.as_str(), hosts[1].2.as_str()), ("dhcp", "dhcp"));
    }

    #[test]
    fn mistakes_are_told_with_the_remedy() {
        let good = spec("port = \"vale0:web\"\naddress = \"10.0.0.2/24\"");
        good.check().unwrap();
        let wrong = |change: fn(&mut GuestSpec), words: &str| {
            let mut spec = good.clone();
            change(&mut spec);
            let told = spec.check().unwrap_err().to_string();
            assert!(told.contains(words), "{told}");
        };
        wrong(|spec| spec.port = "web".into(), "switch:port");
        wrong(|spec| spec.port = "vale0:a{1".into(), "switch:port");
        wrong(|spec| spec.address = "10.0.0.2".into(), "10.0.0.2/24");
        wrong(|spec| spec.address = "10.0.0.2/33".into(), "10.0.0.2/24");
        wrong(|spec| spec.address = "fd00::1/129".into(), "fd00::2/64");
        wrong(|spec| spec.address = "slaac,".into(), "10.0.0.2/24");
        wrong(|spec| spec.address = "10.0.0.2/24,dhcp".into(), "one of each");
        wrong(|spec| spec.address = "slaac,slaac".into(), "one of each");
        wrong(|spec| spec.count = 255, "leave its network");
        wrong(|spec| spec.gateway6 = Some(Ipv6Addr::LOCALHOST), "an IPv6 address");
        wrong(|spec| spec.count = 0, "use 1 to");
        wrong(|spec| spec.threads = 65, "use 1 to 64");
        wrong(|spec| spec.slots = 1, "use 2 to 4096");
        wrong(|spec| spec.app.clear(), "app");
    }
    #[test]
    fn guests_of_a_file_have_names_and_ports_of_their_own() {
        let entry = |name: &str, port: &str, more: &str| {
            let port = format!("port = \"{port}\"\naddress = \"10.0.0.2/24\"");
            format!("[guest.{name}]\napp = \"httpd\"\n{port}\n{more}\n")
        };
        let told = |text: String| {
            let topology: Topology = toml::from_str(&text).unwrap();
            crate::check(&topology).map_err(|wrong| wrong.to_string()).err()
        };
        let web = entry("web", "v:web", "");
        assert_eq!(told(web.clone()), None);
        assert_eq!(told(web.clone() + "[switch.v.port.web]\nlossless = true\n"), None);
        for (text, words) in [
            (web.clone() + &entry("other", "v:web", ""), "The port v:web is used twice"),
            (entry("w", "v:w", "count = 2") + &entry("w-1", "v:x", ""), "The name w-1 of a guest"),
            (web.clone() + "[switch.v.port.web]\nkind = \"null\"\n", "which is a null port"),
            (entry("'a b'", "v:web", ""), "a b"),
            (entry("web", "web", ""), "guest.web: `web` is not the name of a port"),
        ] {
            assert!(told(text.clone()).is_some_and(|told| told.contains(words)), "{text}");
        }
    }
}
