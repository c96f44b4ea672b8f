//! Copies in `tests/snapshots` of what a change of the tree's shape must leave as it is. Most are
//! held by a test (`snapshots`); the names of tests are held here.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::test;
use crate::tool::{self, cargo};

fn tests() -> PathBuf {
    tool::root().join("tests/snapshots/tests.txt")
}

/// Rewrites all copies.
pub fn write() -> Result<()> {
    let mut write = cargo(&["test", "--package=toklat", "--test=control", "snapshots"]);
    tool::run(write.env("TOKLAT_WRITE_SNAPSHOTS", "1"))?;
    let text: String = last_parts(&test::names()?).iter().map(|name| format!("{name}\n")).collect();
    fs::write(tests(), text).context("tests/snapshots/tests.txt")
}

/// The last parts of the names, sorted: modules may move.
fn last_parts(names: &[String]) -> Vec<&str> {
    let last = |name: &'_ String| -> usize { name.rfind("::").map_or(0, |at| at + 2) };
    let mut parts: Vec<_> = names.iter().map(|name| &name[last(name)..]).collect();
    parts.sort_unstable();
    parts
}

/// Names the tests that the copy has and that are gone.
pub fn missing_tests(names: &[String]) -> Result<Vec<String>> {
    let kept = fs::read_to_string(tests()).context("tests/snapshots/tests.txt")?;
    Ok(missing(&kept, names))
}

fn missing(kept: &str, names: &[String]) -> Vec<String> {
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    let parts = last_parts(names).into_iter().map(str::to_owned);
    parts.for_each(|name| *found.entry(name).or_default() += 1);
    let is_gone = |name: &&str| match found.get_mut(*name) {
        Some(left @ 1..) => {
            *left -= 1;
            false
        }
        _ => true,
    };
    let gone = kept.lines().filter(is_gone);
    gone.map(|name| format!("{name}: this test is gone (cargo xtask snapshots)")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_may_move_but_not_go() {
        let names = ["ports::a".to_owned(), "control::b".to_owned(), "b".to_owned()];
        assert_eq!(missing("a\nb\nb\n", &names), [""; 0]);
        let gone = missing("a\na\nb\nc\n", &names);
        assert_eq!(gone.len(), 2);
        assert!(gone[0].starts_with("a: ") && gone[1].starts_with("c: "), "{gone:?}");
    }
}
