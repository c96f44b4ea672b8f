//! Finds the wrong setting of a topology file.
//!
//! Settings of switches and ports share one table, although types group them. So serde reports only
//! the table of a mistake, not the setting. To find it, each setting is tried by itself.

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use toml::de::{DeTable, DeValue};
use topology::{GuestSpec, rules, schema};

use super::words::plain;
use crate::api::{PortSpec, SwitchSpec};

/// A setting that is wrong.
#[derive(Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The names of its tables, and its own.
    pub path: Vec<String>,
    /// What is wrong with it, and what there is.
    pub why: String,
}

impl std::fmt::Display for Mistake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path.join("."), self.why)
    }
}

impl Mistake {
    fn at(path: &[&str], why: String) -> Self {
        Self { path: path.iter().map(|name| (*name).to_owned()).collect(), why }
    }

    /// The line of the text where the setting stands, from 1.
    #[must_use]
    pub fn line(&self, text: &str) -> Option<usize> {
        let table = DeTable::parse(text).ok()?;
        let mut within = table.get_ref();
        let mut line = None;
        for name in &self.path {
            let (key, value) = within.iter().find(|(key, _)| key.get_ref() == name)?;
            line = text.get(..key.span().start).map(|before| before.matches('\n').count() + 1);
            match value.get_ref() {
                DeValue::Table(table) => within = table,
                _ => break,
            }
        }
        line
    }
}

/// Finds the first setting that is invalid by itself: `switch.vale0.batch: ...`.
#[must_use]
pub fn find(table: &toml::Table) -> Option<Mistake> {
    if let Some(key) = table.keys().find(|key| !TABLES.contains(&key.as_str())) {
        let near = nearest(key, TABLES.into_iter());
        let meant = near.map_or_else(String::new, |near| format!(" Did you mean {near}?"));
        let known = TABLES.join(", ");
        let why = format!("there is no such table.{meant} There are: {known}");
        return Some(Mistake::at(&[key], why));
    }
    let guests = table.get("guest").and_then(toml::Value::as_table);
    let in_guests = guests.into_iter().flatten().find_map(|(name, spec)| {
        let error = spec.clone().try_into::<GuestSpec>().err()?;
        Some(Mistake::at(&["guest", name], plain(error.message())))
    });
    let switches = table.get("switch").and_then(toml::Value::as_table);
    let in_switches = switches.into_iter().flatten().find_map(|(name, spec)| in_switch(name, spec));
    in_switches.or(in_guests)
}

/// The first mistake of a switch.
fn in_switch(name: &str, spec: &toml::Value) -> Option<Mistake> {
    let spec = spec.as_table()?;
    let ports = spec.get("port").and_then(toml::Value::as_table);
    let in_ports = ports.into_iter().flatten().find_map(|(port, spec)| {
        in_settings::<PortSpec>(&["switch", name, "port", port], spec.as_table()?, rules::together)
    });
    let own: toml::Table = spec
        .iter()
        .filter(|(key, _)| *key != "port")
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    in_settings::<SwitchSpec>(&["switch", name], &own, |_| Vec::new()).or(in_ports)
}

/// The tables of a topology file.
const TABLES: [&str; 5] = ["switch", "guest", "link", "quota", "evpn"];

/// The first mistake among settings. `together` names settings that are read at once.
fn in_settings<T: DeserializeOwned + JsonSchema>(
    place: &[&str],
    settings: &toml::Table,
    together: fn(&str) -> Vec<&'static str>,
) -> Option<Mistake> {
    settings.keys().find_map(|key| {
        let group = together(key);
        let is_read = |other: &&String| *other == key || group.contains(&other.as_str());
        let names = settings.keys().filter(is_read);
        let alone: toml::Table =
            names.filter_map(|name| Some((name.clone(), settings.get(name)?.clone()))).collect();
        let error = alone.try_into::<T>().err()?;
        let path = [place, &[key.as_str()]].concat();
        let known = schema::settings::<T>();
        if known.contains(key) || known.is_empty() {
            let why = error.message();
            let why = why.strip_prefix(&format!("{key}: ")).unwrap_or(why);
            return Some(Mistake::at(&path, plain(why)));
        }
        let near = known.iter().min_by_key(|known| distance(known, key));
        let near = near.filter(|near| distance(near, key) <= 2);
        let meant = near.map_or_else(String::new, |near| format!(" Did you mean {near}?"));
        let known = known.join(", ");
        Some(Mistake::at(&path, format!("there is no such setting.{meant} There are: {known}")))
    })
}

/// Edit distance of two words: letters to add, remove or change (Levenshtein).
#[must_use]
pub fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.chars().enumerate() {
            let above = row[j + 1];
            let changed = diagonal + usize::from(x != y);
            row[j + 1] = changed.min(above + 1).min(row[j] + 1);
            diagonal = above;
        }
    }
    row[b.chars().count()]
}

/// The known word closest to what was written, if one is close.
#[must_use]
pub fn nearest<'a>(written: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let most = match written.len() {
        0..=1 => 0,
        2..=4 => 1,
        _ => 2,
    };
    known
        .map(|word| (distance(word, written), word))
        .filter(|(n, _)| *n <= most)
        .min()
        .map(|(_, word)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_is_named_with_its_setting_and_what_there_is() {
        for (text, said) in [
            ("[swich.v]", "swich: there is no such table. Did you mean switch?"),
            (
                "[switch.v]\nbatch = 'x'",
                "switch.v.batch: \"x\" (a text) is given, and a whole number",
            ),
            ("[switch.v]\nidle = 'never'", "switch.v.idle: never is none of auto, "),
            ("[switch.v.port.p]\nlosslesss = true", "Did you mean lossless?"),
            (
                "[switch.v.port.p]\nmtu = 70000",
                "switch.v.port.p.mtu: 70000 is given, and a whole number from 0 to 65535",
            ),
            (
                "[switch.v.port.p]\nvlan = { access = 5000 }",
                "switch.v.port.p.vlan: \"5000\" is not a VLAN id",
            ),
            ("[guest.web]\napp = 'httpd'", "guest.web: port is missing"),
            (
                "[switch.v.port.p]\nspeed = 3",
                "switch.v.port.p.speed: there is no such setting. There are: ",
            ),
        ] {
            let found = find(&toml::from_str(text).unwrap()).unwrap().to_string();
            assert!(found.contains(said), "{text}: {found}");
        }
        assert_eq!(find(&toml::from_str("[switch.v.port.p]\nmtu = 1500").unwrap()), None);
    }

    /// Objective: a user who mistypes a setting is told all that there are, those that are left out
    /// of what is written while they are off, too.
    #[test]
    fn all_settings_are_listed() {
        for (text, names) in [
            (
                "[switch.v.port.p]\nspeed = 3",
                "tx_rate_limiter, rx_rate_limiter, tx_impairment, rx_impairment, interrupts, ips, \
                 kind, owner, worker, tx_limit, rx_impair, vlan_access, native, mirror_in, mtu",
            ),
            ("[switch.v]\nspeed = 3", "sflow, sflow_rate, sflow_polling_s, trusted, owner, batch"),
        ] {
            let Mistake { why, .. } = find(&toml::from_str(text).unwrap()).unwrap();
            let known = why.split("There are: ").nth(1).unwrap();
            for name in names.split(", ") {
                assert!(known.split(", ").any(|known| known == name), "{name}: {known}");
            }
        }
    }

    #[test]
    fn a_mistake_has_the_line_of_its_setting() {
        for (text, line) in [
            ("[switch.v]\n\n[switch.v.port.p]\nmtu = 1500\ntx_limit = 'fast'", 5),
            ("[switch.v.port.p]\nvlan_access = 1\n\nvlan_trunk = 'all'\n", 2),
            ("[switch.v]\nidle = 'never'", 2),
            ("\n\n[swich.v]", 3),
            ("[switch]\nv = { port = { p = {\n  mtu = 1500,\n  lossles = true } } }", 4),
        ] {
            let found = find(&toml::from_str(text).unwrap()).unwrap();
            assert_eq!(found.line(text), Some(line), "{text}: {found}");
        }
    }

    /// Objective: words that belong together are no mistake because each is none alone.
    #[test]
    fn words_of_a_rule_are_read_together() {
        let text = "[switch.v.port.p]\nnative = 1\nvlan_trunk = '1,2'\nmtu = 'x'";
        let found = find(&toml::from_str(text).unwrap()).unwrap();
        assert_eq!(found.path, ["switch", "v", "port", "p", "mtu"]);
    }

    #[test]
    fn words_are_as_far_apart_as_the_letters_that_differ() {
        assert_eq!(
            (distance("vale0", "vael0"), distance("", "abc"), distance("a", "a")),
            (2, 3, 0)
        );
        assert_eq!(nearest("vael0", ["vale0", "lab"].into_iter()), Some("vale0"));
        assert_eq!(nearest("vm1", ["vale0", "vm"].into_iter()), Some("vm"));
        assert_eq!(nearest("other", ["vale0"].into_iter()), None);
        assert_eq!(nearest("1", ["w"].into_iter()), None);
    }
}
