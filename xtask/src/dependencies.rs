//! Licences, sources and bans of all that is linked in, by `cargo metadata`; advisories by
//! cargo-deny. `deny.toml` has the lists. Looked at are all three lock files.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::tool::{self, cargo};

/// The manifests with a lock file of their own.
const MANIFESTS: [&str; 3] = ["Cargo.toml", "fuzz/Cargo.toml", "python/Cargo.toml"];

/// The lists of `deny.toml`.
struct Lists {
    licences: Vec<String>,
    banned: Vec<String>,
}

/// Names the crates that may not be linked in, and why.
pub fn check() -> Result<()> {
    let lists = lists()?;
    let mut broken = Vec::new();
    for manifest in MANIFESTS {
        for package in packages(manifest)? {
            broken.extend(wrong(&package, &lists).map(|why| format!("{manifest}: {why}")));
        }
    }
    broken.sort();
    broken.dedup();
    if broken.is_empty() { Ok(()) } else { bail!("{}", broken.join("\n")) }
}

/// Looks for advisories against what the lock files name. The reason, if it cannot be done here.
pub fn advisories() -> Result<Option<&'static str>> {
    if !tool::has_subcommand("", "deny") {
        return Ok(Some("cargo-deny is not here (cargo install cargo-deny --locked)"));
    }
    if !tool::succeeds(&mut cargo(&["deny", "fetch", "db"])) {
        return Ok(Some("their database cannot be had"));
    }
    for manifest in MANIFESTS {
        let deny = ["deny", "--manifest-path", manifest, "check", "--config", "deny.toml"];
        tool::run(cargo(&deny).args(["--hide-inclusion-graph", "advisories"]))?;
    }
    Ok(None)
}

fn packages(manifest: &str) -> Result<Vec<Value>> {
    let metadata = ["metadata", "--quiet", "--locked", "--format-version=1", "--manifest-path"];
    let done = cargo(&metadata).arg(tool::root().join(manifest)).output()?;
    if !done.status.success() {
        bail!("{manifest}: {}", String::from_utf8_lossy(&done.stderr).trim());
    }
    let metadata: Value = serde_json::from_slice(&done.stdout).context("cargo metadata")?;
    Ok(metadata["packages"].as_array().cloned().unwrap_or_default())
}

fn lists() -> Result<Lists> {
    let text = std::fs::read_to_string(tool::root().join("deny.toml")).context("deny.toml")?;
    let lists = Lists { licences: list(&text, "allow = ["), banned: list(&text, "deny = [") };
    if lists.licences.is_empty() || lists.banned.is_empty() {
        bail!("deny.toml lists no licences, or bans nothing");
    }
    Ok(lists)
}

/// The first text between quotes in each line of a list.
fn list(text: &str, start: &str) -> Vec<String> {
    let lines = text.lines().skip_while(|line| *line != start).skip(1);
    let lines = lines.take_while(|line| *line != "]");
    lines.filter_map(|line| Some(line.split('"').nth(1)?.to_owned())).collect()
}

/// What is wrong with a package.
fn wrong(package: &Value, lists: &Lists) -> impl Iterator<Item = String> {
    let name = package["name"].as_str().unwrap_or_default();
    let mut broken = Vec::new();
    // Ours have no source.
    if let Some(source) = package["source"].as_str() {
        if !source.starts_with("registry+") && !source.starts_with("sparse+") {
            broken.push(format!("{name} comes from {source}: only from a registry"));
        }
        let licence = package["license"].as_str().unwrap_or_default();
        if !is_allowed(licence, &lists.licences) {
            broken.push(format!(
                "{name} has the licence `{licence}`, which deny.toml does not allow"
            ));
        }
        if lists.banned.iter().any(|banned| banned == name) {
            broken.push(format!("{name} is banned by deny.toml"));
        }
    }
    let wildcard = |dependency: &&Value| dependency["req"] == "*" && dependency["path"].is_null();
    let wildcards = package["dependencies"].as_array().into_iter().flatten().filter(wildcard);
    if package["source"].is_null() {
        broken.extend(wildcards.map(|d| format!("{name} takes any version of {}", d["name"])));
    }
    broken.into_iter()
}

/// Whether an SPDX expression (`A OR B AND (C)`, old style: `A/B`) leaves a way that only asks for
/// licences of the list.
fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let ends = either(&words, &mut at, allowed);
    ends && at == words.len()
}

/// `A OR B OR ...`; `AND` binds tighter.
fn either(words: &[&str], at: &mut usize, allowed: &[String]) -> bool {
    let mut one = both(words, at, allowed);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        one |= both(words, at, allowed);
    }
    one
}

fn both(words: &[&str], at: &mut usize, allowed: &[String]) -> bool {
    let mut all = single(words, at, allowed);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        all &= single(words, at, allowed);
    }
    all
}

fn single(words: &[&str], at: &mut usize, allowed: &[String]) -> bool {
    let Some(word) = words.get(*at) else { return false };
    *at += 1;
    if *word == "(" {
        let inside = either(words, at, allowed);
        let closed = words.get(*at) == Some(&")");
        *at += 1;
        return inside && closed;
    }
    let mut name = (*word).to_owned();
    if words.get(*at) == Some(&"WITH") {
        name += &format!(" WITH {}", words.get(*at + 1).unwrap_or(&""));
        *at += 2;
    }
    allowed.contains(&name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lists() -> Lists {
        let licences = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"];
        Lists { licences: licences.map(str::to_owned).into(), banned: vec!["openssl".into()] }
    }

    #[test]
    fn licences_are_read_as_expressions() {
        let allowed = lists().licences;
        for good in ["MIT", "GPL-2.0 OR MIT", "MIT/GPL-2.0", "(MIT OR GPL-2.0) AND Apache-2.0"] {
            assert!(is_allowed(good, &allowed), "{good}");
        }
        assert!(is_allowed("Apache-2.0 WITH LLVM-exception OR GPL-2.0", &allowed));
        let others =
            ["", "GPL-2.0", "MIT AND GPL-2.0", "GPL-2.0 OR MIT AND BSL-1.0", "(MIT", "MIT )"];
        for bad in others {
            assert!(!is_allowed(bad, &allowed), "{bad}");
        }
    }

    #[test]
    fn each_kind_of_wrong_crate_is_named() {
        let registry = "registry+https://example.invalid/index";
        let all = |package: Value| wrong(&package, &lists()).collect::<Vec<_>>();
        let good = json!({"name": "a", "source": registry, "license": "MIT"});
        assert_eq!(all(good), [""; 0]);
        let git = json!({"name": "a", "source": "git+https://example.invalid", "license": "MIT"});
        assert!(all(git)[0].contains("only from a registry"));
        let banned = json!({"name": "openssl", "source": registry, "license": "Apache-2.0"});
        assert!(all(banned)[0].contains("banned"));
        let closed = json!({"name": "a", "source": registry, "license": null});
        assert!(all(closed)[0].contains("does not allow"));
        let any =
            json!({"name": "ours", "source": null, "dependencies": [{"name": "b", "req": "*"}]});
        assert!(all(any)[0].contains("any version"));
    }

    #[test]
    fn the_lists_are_those_of_the_file() {
        let lists = super::lists().unwrap();
        assert!(lists.licences.iter().any(|name| name == "MIT"));
        assert!(lists.banned.iter().any(|name| name == "memmap2"));
    }
}
