//! Which crates are optimised in `release`, and which check sums of what strangers wrote. The lists
//! are in the manifests, by names of packages: cargo only warns of a name that is none.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};

use crate::tool;

/// Crates whose arithmetic is over bytes that a guest, a client or the network wrote: a sum that
/// overflows there ends the port, not in another number.
const PARSERS: [&str; 4] = ["toklat-abi", "toklat-netring", "toklat-nic", "toklat-shmem"];

/// What a manifest says of a package in a profile: `key -> value`.
type Settings = BTreeMap<String, String>;

/// Names what the profiles say of packages that do not exist, and what they miss.
pub fn check() -> Result<Vec<String>> {
    let mut broken = Vec::new();
    for folder in ["", "python/"] {
        let manifest = fs::read_to_string(tool::root().join(folder).join("Cargo.toml"))?;
        let lock = fs::read_to_string(tool::root().join(folder).join("Cargo.lock"))
            .with_context(|| format!("{folder}Cargo.lock"))?;
        let place = format!("{folder}Cargo.toml");
        broken.extend(wrong(&packages_of(&manifest), &lock).map(|what| format!("{place}: {what}")));
    }
    let ours = packages_of(&fs::read_to_string(tool::root().join("Cargo.toml"))?);
    let python = packages_of(&fs::read_to_string(tool::root().join("python/Cargo.toml"))?);
    broken.extend(unlike(&ours, &python).map(|what| format!("python/Cargo.toml: {what}")));
    Ok(broken)
}

/// The packages of `[profile.release.package.NAME]`.
fn packages_of(manifest: &str) -> BTreeMap<String, Settings> {
    let mut packages = BTreeMap::new();
    let mut current: Option<String> = None;
    for line in manifest.lines() {
        if line.starts_with('[') {
            let name = line.strip_prefix("[profile.release.package.");
            current = name.map(|name| name.trim_end_matches(']').trim_matches('"').to_owned());
            if let Some(name) = &current {
                packages.insert(name.clone(), Settings::new());
            }
        } else if let (Some(name), Some((key, value))) = (&current, line.split_once('=')) {
            let settings = packages.entry(name.clone()).or_default();
            settings.insert(key.trim().to_owned(), value.trim().to_owned());
        }
    }
    packages
}

/// What is wrong with a list of packages, beside the packages there are.
fn wrong<'a>(
    packages: &'a BTreeMap<String, Settings>,
    lock: &'a str,
) -> impl Iterator<Item = String> + 'a {
    let exists = |name: &str| lock.contains(&format!("name = \"{name}\"\n"));
    let gone = packages.keys().filter(move |name| name.as_str() == "*" || !exists(name));
    let gone = gone.map(|name| format!("[profile.release.package.{name}] matches no package"));
    let checks = |name: &str| {
        packages.get(name).is_some_and(|settings| {
            settings.get("overflow-checks").is_some_and(|value| value == "true")
        })
    };
    let parsers = PARSERS.into_iter().filter(move |name| exists(name) && !checks(name));
    gone.chain(parsers.map(|name| format!("{name} parses strangers' bytes: overflow-checks")))
}

/// Packages of which two lists say unlike things.
fn unlike<'a>(
    ours: &'a BTreeMap<String, Settings>,
    theirs: &'a BTreeMap<String, Settings>,
) -> impl Iterator<Item = String> + 'a {
    let differ = theirs.iter().filter(|(name, settings)| ours.get(*name) != Some(settings));
    differ.map(|(name, _)| format!("[profile.release.package.{name}] is not what Cargo.toml says"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = "[[package]]\nname = \"toklat-abi\"\n[[package]]\nname = \"other\"\n";

    fn broken(manifest: &str) -> Vec<String> {
        wrong(&packages_of(manifest), LOCK).collect()
    }

    #[test]
    fn packages_that_do_not_exist_are_found() {
        let checked = "[profile.release.package.toklat-abi]\noverflow-checks = true\n";
        assert_eq!(broken(checked), [""; 0]);
        let renamed = format!("{checked}[profile.release.package.toklat-abj]\nopt-level = 3\n");
        assert_eq!(broken(&renamed), ["[profile.release.package.toklat-abj] matches no package"]);
        let all = format!("{checked}[profile.release.package.\"*\"]\nopt-level = 3\n");
        assert_eq!(broken(&all), ["[profile.release.package.*] matches no package"]);
    }

    #[test]
    fn parsers_without_checks_are_found() {
        let missing = "toklat-abi parses strangers' bytes: overflow-checks";
        assert_eq!(broken("[profile.release.package.toklat-abi]\nopt-level = 3\n"), [missing]);
        assert_eq!(broken("[profile.release]\nopt-level = 1\n"), [missing]);
    }

    #[test]
    fn a_second_list_may_be_shorter_but_not_different() {
        let ours = packages_of("[profile.release.package.other]\nopt-level = 3\n");
        assert_eq!(unlike(&ours, &BTreeMap::new()).count(), 0);
        let theirs = packages_of("[profile.release.package.other]\nopt-level = 2\n");
        assert_eq!(unlike(&ours, &theirs).count(), 1);
    }
}
