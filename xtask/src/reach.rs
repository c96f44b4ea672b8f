//! What the crates outside of the data process may not compile: a client of the control API is
//! small, and nothing of the data path comes with it.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail};

use crate::tool::cargo;

/// Crates that must not reach others, directly or through what they depend on.
const APART: [(&str, &[&str]); 3] = [
    ("api", &["dataplane", "netring", "nic", "turn"]),
    ("client", &["dataplane", "netring", "nic", "turn"]),
    ("vm", &["dataplane", "netring", "nic", "turn"]),
];
/// The most crates that a program with the client of the control API compiles, itself aside.
const CLIENT: usize = 62;

/// Names what is reached and should not be, and a client that has become too large.
pub fn check() -> Result<Vec<String>> {
    let mut broken = Vec::new();
    for (name, others) in APART {
        let tree = tree(name)?;
        broken.extend(reached(name, others, &tree));
        if name == "client" {
            broken.extend(too_large(&tree));
        }
    }
    Ok(broken)
}

/// The crates that a crate of ours is built of, a line each. A crate that stands in the tree twice
/// has another line, with a star.
fn tree(name: &str) -> Result<BTreeSet<String>> {
    let package = format!("--package=toklat-{name}");
    let arguments = ["tree", "--offline", &package, "--edges=normal", "--prefix=none"];
    let listed = cargo(&arguments).output().context("cargo tree")?;
    if !listed.status.success() {
        bail!("cargo tree {package}: {}", String::from_utf8_lossy(&listed.stderr));
    }
    Ok(String::from_utf8_lossy(&listed.stdout).lines().map(str::to_owned).collect())
}

fn reached(name: &str, others: &[&str], tree: &BTreeSet<String>) -> Vec<String> {
    let has = |other: &&&str| tree.iter().any(|line| line.starts_with(&format!("toklat-{other} ")));
    let found = others.iter().filter(has);
    found.map(|other| format!("crates/{name} reaches {other}: move what it needs down")).collect()
}

fn too_large(tree: &BTreeSet<String>) -> Option<String> {
    let lines = tree.len();
    (lines > CLIENT).then(|| {
        format!("crates/client: `cargo tree --prefix none` has {lines} lines, and {CLIENT} is most")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reached_is_named() {
        let tree: BTreeSet<_> = ["toklat-vm v0.1.0", "toklat-turn v0.1.0 (*)", "turn v1"]
            .map(str::to_owned)
            .into_iter()
            .collect();
        let others = ["dataplane", "turn"];
        assert_eq!(
            reached("vm", &others, &tree),
            ["crates/vm reaches turn: move what it needs down"]
        );
        assert_eq!(too_large(&tree), None);
        assert!(too_large(&(0..=CLIENT).map(|n| n.to_string()).collect()).is_some());
    }
}
