//! Licences, sources and bans of all that is linked in, by `cargo tree`; advisories by cargo-deny.
//! `deny.toml` has the lists. Looked at are all three lock files.

use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::tool::{self, cargo};

/// The manifests with a lock file of their own.
const MANIFESTS: [&str; 3] = ["Cargo.toml", "fuzz/Cargo.toml", "python/Cargo.toml"];

/// What toklat is built for, as in `deny.toml`.
const TARGETS: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

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
        let linked = linked(manifest)?;
        let wrong = linked.lines().filter_map(|line| wrong(line, &lists));
        broken.extend(
            wrong.chain(wildcards(&ours(manifest)?)).map(|why| format!("{manifest}: {why}")),
        );
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

/// What is linked in, also into tests, a line each: `NAME vVERSION SOURCE|LICENCE`. Cargo's
/// metadata also names what features would ask for that are off.
fn linked(manifest: &str) -> Result<String> {
    let mut tree =
        cargo(&["tree", "--quiet", "--locked", "--workspace", "--edges=normal,build,dev"]);
    tree.args(["--prefix=none", "--format={p}|{l}"]);
    for target in TARGETS {
        tree.args(["--target", target]);
    }
    output(&mut tree, manifest)
}

/// The packages of a workspace.
fn ours(manifest: &str) -> Result<Vec<Value>> {
    let mut metadata = cargo(&["metadata", "--quiet", "--locked", "--no-deps"]);
    let metadata = output(metadata.arg("--format-version=1"), manifest)?;
    let metadata: Value = serde_json::from_str(&metadata).context("cargo metadata")?;
    Ok(metadata["packages"].as_array().cloned().unwrap_or_default())
}

fn output(cargo: &mut Command, manifest: &str) -> Result<String> {
    let done = cargo.arg("--manifest-path").arg(tool::root().join(manifest)).output()?;
    if !done.status.success() {
        bail!("{manifest}: {}", String::from_utf8_lossy(&done.stderr).trim());
    }
    Ok(String::from_utf8(done.stdout)?)
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

/// What is wrong with a linked crate, if anything is. Behind its version and `(proc-macro)`, a
/// crate of crates.io has no source, and one of ours a path.
fn wrong(line: &str, lists: &Lists) -> Option<String> {
    // What was printed before has a star.
    let (package, licence) = line.trim_end_matches(" (*)").split_once('|')?;
    let mut words = package.split_whitespace();
    let name = words.next()?;
    let source = words.skip(1).find(|word| *word != "(proc-macro)");
    if source.is_some_and(|source| source.starts_with("(/")) {
        return None;
    }
    if let Some(source) = source {
        return Some(format!("{name} comes from {source}: only from crates.io"));
    }
    if !is_allowed(licence, &lists.licences) {
        return Some(format!("{name} has the licence `{licence}`, which deny.toml does not allow"));
    }
    let banned = lists.banned.iter().any(|banned| banned == name);
    banned.then(|| format!("{name} is banned by deny.toml"))
}

/// Which packages of ours take any version of a crate.
fn wildcards(packages: &[Value]) -> impl Iterator<Item = String> {
    packages.iter().flat_map(|package| {
        let any = |d: &&Value| d["req"] == "*" && d["path"].is_null();
        let dependencies = package["dependencies"].as_array().into_iter().flatten().filter(any);
        dependencies.map(|d| format!("{} takes any version of {}", package["name"], d["name"]))
    })
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
        let one = |line: &str| wrong(line, &lists()).unwrap_or_default();
        assert_eq!(one("a v1.0.0|MIT"), "");
        assert_eq!(one("a v1.0.0 (proc-macro)|MIT (*)"), "");
        assert_eq!(one("ours v0.1.0 (/somewhere/ours)|"), "");
        assert!(one("a v1.0.0 (https://example.invalid/a#1)|MIT").contains("only from crates.io"));
        assert!(one("a v1.0.0 (registry `other`)|MIT").contains("only from crates.io"));
        let hidden = "a v1.0.0 (proc-macro) (https://example.invalid/a#1)|MIT";
        assert!(one(hidden).contains("comes from (https://example.invalid"));
        assert!(one("openssl v1.0.0|Apache-2.0").contains("banned"));
        assert!(one("a v1.0.0|").contains("does not allow"));
        let dependencies = json!([{"name": "b", "req": "*"}, {"name": "c", "req": "^1"}]);
        let any: Vec<_> =
            wildcards(&[json!({"name": "ours", "dependencies": dependencies})]).collect();
        assert_eq!(any, ["\"ours\" takes any version of \"b\""]);
    }

    #[test]
    fn the_lists_are_those_of_the_file() {
        let lists = super::lists().unwrap();
        assert!(lists.licences.iter().any(|name| name == "MIT"));
        assert!(lists.banned.iter().any(|name| name == "memmap2"));
    }
}
