//! The configuration, and the file it is saved in.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::api::{Action, Change, Topology};

/// The name of EVPN's settings in a plan. No switch can have it.
pub(super) const EVPN: &str = "[evpn]";

/// A guest's name in a plan. No switch has such a name.
pub(super) fn guest(name: &str) -> String {
    format!("[guest.{name}]")
}

/// The name of the guest that a plan calls so, if it is one.
pub(super) fn guest_of(name: &str) -> Option<&str> {
    name.strip_prefix("[guest.")?.strip_suffix(']')
}

/// A group of rules and a table in a plan.
pub(super) fn group(name: &str) -> String {
    format!("[group.{name}]")
}

pub(super) fn table(name: &str) -> String {
    format!("[table.{name}]")
}

/// The name of the group that a plan calls so, if it is one.
pub(super) fn group_of(name: &str) -> Option<&str> {
    name.strip_prefix("[group.")?.strip_suffix(']')
}

/// The name of the table that a plan calls so, if it is one.
pub(super) fn table_of(name: &str) -> Option<&str> {
    name.strip_prefix("[table.")?.strip_suffix(']')
}

/// The configuration and the files it came from, saved across restarts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configured {
    /// The whole topology.
    topology: Topology,
    /// The file that made each object, by name (`vale0`, `vale0:p1`, `[guest.web]`, `quota`).
    /// Objects that commands made have none.
    #[serde(default)]
    pub made_by: BTreeMap<String, String>,
    /// The content of each file when it was applied last.
    #[serde(default)]
    pub applied: BTreeMap<String, Topology>,
    /// The switches that netmap programs have made for an interface (`VALE_ATTACH`). They go with
    /// their last port.
    #[serde(default)]
    pub attached: BTreeSet<String>,
}

/// The name of all links of the topology together; no switch can have it.
pub const LINK: &str = "[link]";

/// True for objects that are one table of the topology.
fn is_whole(name: &str) -> bool {
    ["quota", EVPN, LINK].contains(&name)
}

impl Configured {
    /// The topology, with `file` as the maker of all objects.
    #[must_use]
    pub fn made(topology: Topology, file: &str) -> Self {
        let mut made = Self::from(topology);
        let switches = made.switch.iter().flat_map(|(name, spec)| {
            let ports = spec.port.keys().map(move |port| format!("{name}:{port}"));
            std::iter::once(name.clone()).chain(ports)
        });
        let guests = made.guest.keys().map(|name| guest(name));
        let groups = made.group.keys().map(|name| group(name));
        let tables = made.table.keys().map(|name| table(name));
        let switches = switches.chain(guests).chain(groups).chain(tables);
        let names: Vec<_> = switches.chain(["quota", EVPN, LINK].map(str::to_owned)).collect();
        made.made_by = names.into_iter().map(|name| (name, file.to_owned())).collect();
        made.applied = [(file.to_owned(), made.topology.clone())].into();
        made
    }

    /// The HTTP entity tag of the configuration, which differs after every change.
    #[must_use]
    pub fn tag(&self) -> String {
        let text = serde_json::to_string(&self.topology).unwrap_or_default();
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        format!("\"{:016x}\"", hasher.finish())
    }

    /// Records a step that was done for a file.
    pub fn note(&mut self, change: &Change, file: &str) {
        match change.action {
            Action::Removed => drop(self.made_by.remove(&change.name)),
            Action::Changed if !is_whole(&change.name) => {}
            Action::Replaced => {}
            _ => drop(self.made_by.insert(change.name.clone(), file.to_owned())),
        }
    }

    /// Forgets the files of objects that do not exist any more.
    pub fn tidy(&mut self) {
        let topology = &self.topology;
        self.attached.retain(|name| topology.switch.contains_key(name));
        self.made_by.retain(|name, _| match name.split_once(':') {
            _ if is_whole(name) => true,
            None if guest_of(name).is_some() => {
                guest_of(name).is_some_and(|name| topology.guest.contains_key(name))
            }
            None if group_of(name).is_some() => {
                group_of(name).is_some_and(|name| topology.group.contains_key(name))
            }
            None if table_of(name).is_some() => {
                table_of(name).is_some_and(|name| topology.table.contains_key(name))
            }
            None => topology.switch.contains_key(name),
            Some((switch, port)) => {
                topology.switch.get(switch).is_some_and(|switch| switch.port.contains_key(port))
            }
        });
    }
}

impl From<Topology> for Configured {
    fn from(topology: Topology) -> Self {
        Self { topology, ..Self::default() }
    }
}

impl Deref for Configured {
    type Target = Topology;

    fn deref(&self) -> &Topology {
        &self.topology
    }
}

impl DerefMut for Configured {
    fn deref_mut(&mut self) -> &mut Topology {
        &mut self.topology
    }
}

/// The file that the applied topology is saved in.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
}

impl Store {
    /// The store in directory `dir`.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        Self { path: dir.join("topology.json") }
    }

    /// Reads what was saved last; `None` if nothing was.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    pub fn load(&self) -> io::Result<Option<Configured>> {
        match fs::read(&self.path) {
            Ok(bytes) => {
                let saved: serde_json::Value = serde_json::from_slice(&bytes)?;
                // Earlier versions saved the topology alone.
                let alone = saved.get("topology").is_none();
                Ok(Some(if alone {
                    Configured::from(serde_json::from_value::<Topology>(saved)?)
                } else {
                    serde_json::from_value(saved)?
                }))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Saves atomically: a reader finds the old content or the new content.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn save(&self, configured: &Configured) -> io::Result<()> {
        let fresh = self.path.with_extension("json.new");
        let mut file = fs::File::create(&fresh)?;
        file.write_all(&serde_json::to_vec_pretty(configured)?)?;
        file.sync_all()?;
        fs::rename(&fresh, &self.path)
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::super::file::parse;
    use super::*;

    #[test]
    fn what_was_saved_is_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path());
        assert_eq!(store.load().unwrap(), None);
        let topology = parse("[switch.v.port.p]\nlossless = true").unwrap();
        let made = Configured::made(topology.clone(), "/etc/net.toml");
        store.save(&made).unwrap();
        assert_eq!(store.load().unwrap(), Some(made.clone()));
        // A removed object has no file.
        let mut without = made.clone();
        without.switch.get_mut("v").unwrap().port.clear();
        without.tidy();
        assert_ne!(without.tag(), made.tag());
        store.save(&without).unwrap();
        assert!(!store.load().unwrap().unwrap().made_by.contains_key("v:p"));
        // Version 0.1 saved the topology in this form.
        std::fs::write(store.path(), serde_json::to_vec(&topology).unwrap()).unwrap();
        assert_eq!(store.load().unwrap(), Some(Configured::from(topology)));
    }

    /// Tables whose keys are names, not settings.
    const NAMES: [&str; 9] =
        ["switch", "port", "group", "table", "guest", "user", "made_by", "applied", "vlans"];

    /// Adds a setting of a later version to each table in turn, and hands over the result with the
    /// table's place.
    fn with_a_later_setting(saved: &serde_json::Value, try_it: &mut impl FnMut(&str, &str)) {
        fn places(value: &serde_json::Value, at: &str, is_names: bool, found: &mut Vec<String>) {
            match value {
                serde_json::Value::Object(fields) => {
                    found.extend((!is_names).then(|| at.to_owned()));
                    for (key, value) in fields {
                        let place = format!("{at}/{}", key.replace('/', "~1"));
                        places(value, &place, !is_names && NAMES.contains(&&**key), found);
                    }
                }
                serde_json::Value::Array(list) => list
                    .iter()
                    .enumerate()
                    .for_each(|(n, value)| places(value, &format!("{at}/{n}"), false, found)),
                _ => {}
            }
        }
        let mut found = Vec::new();
        places(saved, "", false, &mut found);
        for place in found {
            let mut later = saved.clone();
            later.pointer_mut(&place).unwrap()["of_a_later_version"] = true.into();
            try_it(&place, &serde_json::to_string_pretty(&later).unwrap());
        }
    }

    #[test]
    fn settings_of_a_later_version_are_refused_and_stay_in_the_file() {
        let text = "[quota]\nports = 7\n[quota.user.1000]\nports = 8\n\
            [evpn]\nas = 65000\nrouter_id = '10.0.0.1'\nvtep = '10.0.0.1'\n[[evpn.neighbor]]\naddress = '10.0.0.2'\n\
            [switch.v]\nworkers = [{ cpu = 0 }]\n\
            [switch.v.port.p]\nvlan = { trunk = { allowed = [2], native = 2 } }\n\
            interrupts = { max_rate = 8000 }\n\
            tx_rate_limiter = { bandwidth = { size = 1000, refill_time = 100 } }\n\
            rx_impairment = { loss_ppm = 7 }\n\
            [switch.v.port.t]\nkind = { tap = { ifname = 't' } }\n\
            [switch.v.port.n]\nkind = { vfio_user = { nic = { model = '82540em', combine = { frames = 8, delay_us = 9 } } } }\n\
            [switch.v.port.x]\nkind = { vxlan = { vni = 7, local = '10.0.0.1', peers = ['10.0.0.2'] } }\n\
            [group.g]\nrules = ['deny arp']\n[table.t]\nprefixes = ['10.0.0.0/8']\n\
            [guest.web]\nport = 'v:web'\napp = 'httpd'\naddress = '10.0.0.2/24'";
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path());
        let made = Configured::made(parse(text).unwrap(), "/etc/net.toml");
        store.save(&made).unwrap();
        let saved = serde_json::from_slice(&std::fs::read(store.path()).unwrap()).unwrap();
        let mut tables = 0;
        with_a_later_setting(&saved, &mut |place, text| {
            std::fs::write(store.path(), text).unwrap();
            store.load().expect_err(place);
            assert_eq!(std::fs::read_to_string(store.path()).unwrap(), text, "{place}");
            tables += 1;
        });
        assert!(tables > 30, "{tables}");
    }
}
