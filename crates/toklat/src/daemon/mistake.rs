//! Finds the wrong setting of a topology file.
//!
//! Settings of switches and ports share one table, although types group them. So serde reports only
//! the table of a mistake, not the setting. To find it, each setting is tried by itself.

use serde::Serialize;
use serde::de::DeserializeOwned;

use topology::GuestSpec;

use crate::api::{PortSpec, SwitchSpec};

/// Finds the first setting that is invalid by itself, with the error: `switch.vale0.batch: invalid
/// type: ...`.
#[must_use]
pub fn find(table: &toml::Table) -> Option<String> {
    if let Some(key) = table.keys().find(|key| !TABLES.contains(&key.as_str())) {
        let near = nearest(key, TABLES.into_iter());
        let meant = near.map_or_else(String::new, |near| format!(" Did you mean {near}?"));
        let known = TABLES.join(", ");
        return Some(format!("{key}: there is no such table.{meant} There are: {known}"));
    }
    let guests = table.get("guest").and_then(toml::Value::as_table);
    let in_guests = guests.into_iter().flatten().find_map(|(name, spec)| {
        let error = spec.clone().try_into::<GuestSpec>().err()?;
        Some(format!("guest.{name}: {}", error.message()))
    });
    let switches = table.get("switch").and_then(toml::Value::as_table);
    let in_switches = switches.into_iter().flatten().find_map(|(name, spec)| in_switch(name, spec));
    in_switches.or(in_guests)
}

/// The first mistake of a switch.
fn in_switch(name: &str, spec: &toml::Value) -> Option<String> {
    let spec = spec.as_table()?;
    let ports = spec.get("port").and_then(toml::Value::as_table);
    let in_ports = ports.into_iter().flatten().find_map(|(port, spec)| {
        in_settings::<PortSpec>(&format!("switch.{name}.port.{port}"), spec.as_table()?)
    });
    let own: toml::Table = spec
        .iter()
        .filter(|(key, _)| *key != "port")
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    in_settings::<SwitchSpec>(&format!("switch.{name}"), &own).or(in_ports)
}

/// The tables of a topology file.
const TABLES: [&str; 4] = ["switch", "guest", "quota", "evpn"];

/// Settings that are left out of the output while they have the default.
const OMITTED: [&str; 6] =
    ["interrupts", "ips", "tx_rate_limiter", "rx_rate_limiter", "tx_impairment", "rx_impairment"];

fn in_settings<T: DeserializeOwned + Serialize + Default>(
    place: &str,
    settings: &toml::Table,
) -> Option<String> {
    settings.iter().find_map(|(key, value)| {
        let alone: toml::Table = [(key.clone(), value.clone())].into_iter().collect();
        let error = alone.try_into::<T>().err()?;
        let known = serde_json::to_value(T::default()).unwrap_or_default();
        let known: Vec<&String> =
            known.as_object().into_iter().flat_map(|known| known.keys()).collect();
        if known.contains(&key) || known.is_empty() || OMITTED.contains(&key.as_str()) {
            return Some(format!("{place}.{key}: {}", error.message()));
        }
        let near = known.iter().min_by_key(|known| distance(known, key));
        let near = near.filter(|near| distance(near, key) <= 2);
        let meant = near.map_or_else(String::new, |near| format!(" Did you mean {near}?"));
        let known: Vec<&str> = known.iter().map(|known| known.as_str()).collect();
        Some(format!(
            "{place}.{key}: there is no such setting.{meant} There are: {}",
            known.join(", ")
        ))
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
            ("[switch.v]\nbatch = 'x'", "switch.v.batch: invalid type: string \"x\""),
            ("[switch.v]\nidle = 'never'", "switch.v.idle: unknown variant `never`"),
            ("[switch.v.port.p]\nlosslesss = true", "Did you mean lossless?"),
            ("[switch.v.port.p]\nmtu = 70000", "switch.v.port.p.mtu: invalid value"),
            (
                "[switch.v.port.p]\nvlan = { access = 5000 }",
                "switch.v.port.p.vlan: \"5000\" is not a VLAN id",
            ),
            ("[guest.web]\napp = 'httpd'", "guest.web: missing field `port`"),
            (
                "[switch.v.port.p]\nspeed = 3",
                "switch.v.port.p.speed: there is no such setting. There are: ",
            ),
        ] {
            let found = find(&toml::from_str(text).unwrap()).unwrap();
            assert!(found.contains(said), "{text}: {found}");
        }
        assert_eq!(find(&toml::from_str("[switch.v.port.p]\nmtu = 1500").unwrap()), None);
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
