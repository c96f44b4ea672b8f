//! One set of features for every `-p`: the crate `features`, on which the tests of every crate
//! depend, asks each dependency for all that any crate of the workspace asks of it. After
//! `cargo test --workspace`, `cargo test -p X` finds every crate of the registry built.
//!
//! Cargo can do so itself only by an unstable option (`resolver.feature-unification`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::tool::{self, cargo};

/// A crate of the registry: its name and version.
type Crate = (String, String);
/// The features with which a crate is built, once or, for the host, in another way, too.
type Built = BTreeSet<(Crate, String)>;

fn manifest() -> PathBuf {
    tool::root().join("xtask/features/Cargo.toml")
}

/// Writes the manifest of the crate `features`.
pub fn write() -> Result<()> {
    let path = manifest();
    let text = std::fs::read_to_string(&path).context("xtask/features/Cargo.toml")?;
    let head = head(&text)?;
    let mut all = BTreeMap::new();
    // What it asks for asks for more: again, until nothing differs.
    loop {
        std::fs::write(&path, head.to_owned() + &sections(&all)?)?;
        follow()?;
        let differing = differing()?;
        if differing.iter().all(|(name, features)| all.get(name) == Some(features)) {
            return Ok(());
        }
        all.extend(differing);
    }
}

/// Has the lock file follow the manifest.
fn follow() -> Result<()> {
    let metadata = ["metadata", "--quiet", "--offline", "--format-version=1"];
    tool::run(cargo(&metadata).stdout(std::process::Stdio::null()))
}

/// Names crates of the registry that `-p` builds in another way than `--workspace`.
pub fn check() -> Result<Vec<String>> {
    let differing = differing()?;
    let names: BTreeSet<&str> = differing.iter().map(|((name, _), _)| name.as_str()).collect();
    Ok(names
        .into_iter()
        .map(|name| format!("{name} is built in two ways by -p: cargo xtask features"))
        .collect())
}

/// What stands above the generated sections.
fn head(manifest: &str) -> Result<&str> {
    let end = manifest.find("[dependencies]").context("features/Cargo.toml: no [dependencies]")?;
    Ok(&manifest[..end])
}

/// Crates that some `-p` builds with other features than the workspace, with all their features
/// there.
fn differing() -> Result<BTreeMap<Crate, BTreeSet<String>>> {
    let whole = built(&["--workspace"])?;
    let mut differing = BTreeMap::new();
    for package in packages()? {
        for (name, _) in built(&["-p", &package])?.difference(&whole) {
            differing.entry(name.clone()).or_insert_with(BTreeSet::new);
        }
    }
    for (name, features) in &whole {
        if let Some(all) = differing.get_mut(name) {
            all.extend(features.split(',').filter(|f| !f.is_empty()).map(str::to_owned));
        }
    }
    Ok(differing)
}

/// What a selection of packages builds of the registry, with features, tests included.
fn built(selection: &[&str]) -> Result<Built> {
    let tree = ["tree", "--quiet", "--locked", "-e", "normal,build,dev", "--prefix", "none"];
    let done = cargo(&tree).args(["-f", "{p}|{f}"]).args(selection).output()?;
    if !done.status.success() {
        bail!("cargo tree: {}", String::from_utf8_lossy(&done.stderr).trim());
    }
    let text = String::from_utf8_lossy(&done.stdout);
    Ok(text.lines().filter_map(line).collect())
}

/// Reads `name v1.2.3 (proc-macro)|features (*)`; `None` for a crate of our own.
fn line(line: &str) -> Option<(Crate, String)> {
    let (package, features) = line.trim_end_matches(" (*)").split_once('|')?;
    if package.contains('/') {
        return None;
    }
    let mut words = package.split_whitespace();
    let (name, version) = (words.next()?, words.next()?.trim_start_matches('v'));
    Some(((name.to_owned(), version.to_owned()), features.to_owned()))
}

/// The names of the workspace's packages.
fn packages() -> Result<Vec<String>> {
    let all = metadata()?;
    let members = all["packages"].as_array().context("cargo metadata names no packages")?;
    let ours = members.iter().filter(|package| package["source"].is_null());
    Ok(ours.filter_map(|package| Some(package["name"].as_str()?.to_owned())).collect())
}

fn metadata() -> Result<Value> {
    let metadata = ["metadata", "--quiet", "--locked", "--format-version=1"];
    let done = cargo(&metadata).output()?;
    serde_json::from_slice(&done.stdout).context("cargo metadata")
}

/// Crates that programs use, and those that procedural macros and build scripts use.
fn sides(metadata: &Value) -> [BTreeSet<String>; 2] {
    let empty = Vec::new();
    let list = |value: &'_ Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let packages = metadata["packages"].as_array().unwrap_or(&empty);
    let is_macro = |package: &&Value| {
        list(&package["targets"]).iter().any(|target| target["kind"][0] == "proc-macro")
    };
    let macros: BTreeSet<String> =
        packages.iter().filter(is_macro).map(|package| text(&package["id"])).collect();
    let nodes: BTreeMap<String, Value> = list(&metadata["resolve"]["nodes"])
        .into_iter()
        .map(|node| (text(&node["id"]), node["deps"].clone()))
        .collect();
    let mut sides = [BTreeSet::new(), BTreeSet::new()];
    let mut waiting: Vec<(String, bool)> =
        list(&metadata["workspace_members"]).iter().map(|id| (text(id), false)).collect();
    while let Some((id, host)) = waiting.pop() {
        if !sides[usize::from(host)].insert(id.clone()) {
            continue;
        }
        for dependency in nodes.get(&id).map(list).unwrap_or_default() {
            let next = text(&dependency["pkg"]);
            for kind in list(&dependency["dep_kinds"]) {
                let to_host = host || kind["kind"] == "build" || macros.contains(&next);
                waiting.push((next.clone(), to_host));
            }
        }
    }
    sides
}

/// The sections of the manifest.
fn sections(differing: &BTreeMap<Crate, BTreeSet<String>>) -> Result<String> {
    let metadata = metadata()?;
    let sides = sides(&metadata);
    let mut text = String::new();
    for (section, ids) in ["[dependencies]", "[build-dependencies]"].iter().zip(&sides) {
        let _ = writeln!(text, "{section}");
        for ((name, version), features) in differing {
            let id = format!("{name}@{version}");
            let short = format!("#{version}");
            let is_it = |known: &String| {
                known.ends_with(&id) || known.ends_with(&format!("/{name}{short}"))
            };
            if ids.iter().any(is_it) {
                let _ = writeln!(text, "{}", entry(name, version, features));
            }
        }
        let _ = writeln!(text);
    }
    Ok(text.trim_end().to_owned() + "\n")
}

/// One dependency, under a name that no other version of it has.
fn entry(name: &str, version: &str, features: &BTreeSet<String>) -> String {
    let mut numbers = version.split('.');
    let (major, minor) = (numbers.next().unwrap_or("0"), numbers.next().unwrap_or("0"));
    let asked = if major == "0" { format!("0.{minor}") } else { major.to_owned() };
    let renamed = format!("{name}-{}", asked.replace('.', "-"));
    let features: Vec<_> = features.iter().map(|feature| format!("\"{feature}\"")).collect();
    format!(
        "{renamed} = {{ package = \"{name}\", version = \"{asked}\", default-features = false, features = [{}] }}",
        features.join(", ")
    )
}
