//! Circles of files within a crate: each uses the next, so that none can be read or moved alone.
//!
//! A file's paths (`crate::..`, `super::..`, `self::..`) name what it uses. A folder's first file
//! and the files in the folder belong together: arrows between them do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context as _, Result};

use crate::tool;

/// A module's path within its crate.
type Module = Vec<String>;
/// The modules that each file uses.
type Arrows = BTreeMap<Module, BTreeSet<Module>>;

/// Names all circles.
pub fn all() -> Result<Vec<String>> {
    let files = ["ls-files", "crates/*/src/*.rs", "lab/*/src/*.rs"];
    let listed = tool::command("git", &files).output();
    let listed = listed.context("git ls-files")?;
    let mut crates: BTreeMap<String, BTreeMap<Module, String>> = BTreeMap::new();
    for file in String::from_utf8_lossy(&listed.stdout).lines() {
        let Some((folder, path)) = file.split_once("/src/") else { continue };
        // A file may be gone that git still lists.
        let Ok(text) = fs::read_to_string(tool::root().join(file)) else { continue };
        crates.entry(folder.to_owned()).or_default().insert(module_of(path), code_of(&text));
    }
    let mut found = Vec::new();
    for (folder, texts) in &crates {
        let named =
            |circle: Vec<String>| format!("{folder}: a circle of files: {}", circle.join(" <-> "));
        found.extend(circles(&arrows(texts)).into_iter().map(named));
    }
    Ok(found)
}

/// The module that a file below `src` is.
fn module_of(path: &str) -> Module {
    let path = path.trim_end_matches(".rs").trim_end_matches("/mod");
    let parts = path.split('/').filter(|part| !["lib", "main"].contains(part));
    parts.map(str::to_owned).collect()
}

/// A file without comments and without its tests.
fn code_of(text: &str) -> String {
    let code = text.lines().take_while(|line| !line.starts_with("#[cfg(test)]"));
    let code = code.filter(|line| !line.trim_start().starts_with("//"));
    code.collect::<Vec<_>>().join("\n")
}

fn arrows(texts: &BTreeMap<Module, String>) -> Arrows {
    let used_by = |module: &Module, text: &str| {
        let mut used = BTreeSet::new();
        for root in ["crate::", "super::", "self::"] {
            for (at, _) in text.match_indices(root) {
                let is_start =
                    !text[..at].ends_with(|c: char| c.is_alphanumeric() || ":_".contains(c));
                if is_start {
                    paths(&text[at..]).iter().for_each(|path| {
                        used.extend(resolve(module, path, texts));
                    });
                }
            }
        }
        used
    };
    texts.iter().map(|(module, text)| (module.clone(), used_by(module, text))).collect()
}

/// The paths that begin at the start of `text`: one, or one for each name between braces.
fn paths(text: &str) -> Vec<Vec<&str>> {
    let end = text.find(|c: char| !c.is_alphanumeric() && !"_:".contains(c)).unwrap_or(text.len());
    let head: Vec<_> = text[..end].split("::").filter(|part| !part.is_empty()).collect();
    let Some(list) = text[end..].strip_prefix('{').filter(|_| text[..end].ends_with("::")) else {
        return vec![head];
    };
    let (mut depth, mut start, mut all) = (0, 0, Vec::new());
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                let name = list[start..at].trim().split([' ', '{']).next().unwrap_or_default();
                let more = name.split("::").filter(|part| !part.is_empty());
                all.push(head.iter().copied().chain(more).collect());
                start = at + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    all
}

/// The file that a path of `module` leads to; `None` for itself, and for what is in a folder with
/// it.
fn resolve(module: &Module, path: &[&str], texts: &BTreeMap<Module, String>) -> Option<Module> {
    let mut at = if path.first() == Some(&"crate") { Module::new() } else { module.clone() };
    for part in path {
        match *part {
            "crate" | "self" => {}
            "super" => drop(at.pop()),
            name => {
                at.push(name.to_owned());
                if !texts.contains_key(&at) {
                    at.pop();
                    break;
                }
            }
        }
    }
    let together = at.starts_with(module) || module.starts_with(&at);
    (!together && texts.contains_key(&at)).then_some(at)
}

/// Files that reach each other, with more than one in each circle.
fn circles(arrows: &Arrows) -> Vec<Vec<String>> {
    let reach: BTreeMap<&Module, BTreeSet<&Module>> =
        arrows.keys().map(|module| (module, reached(arrows, module))).collect();
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for (module, from_here) in &reach {
        let back = |other: &&&Module| reach.get(**other).is_some_and(|r| r.contains(*module));
        let circle: Vec<_> = from_here.iter().filter(back).copied().collect();
        if circle.len() > 1 && seen.insert(circle[0]) {
            found.push(circle.iter().map(|module| module.join("::")).collect());
        }
    }
    found
}

/// Returns the modules that can be reached from `module` by one arrow or more.
fn reached<'a>(arrows: &'a Arrows, module: &Module) -> BTreeSet<&'a Module> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![module]);
    while let Some(at) = next.pop() {
        for used in arrows.get(at).into_iter().flatten() {
            if seen.insert(used) {
                next.push(used);
            }
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let texts = files.iter().map(|(path, text)| (module_of(path), code_of(text)));
        circles(&arrows(&texts.collect()))
    }

    #[test]
    fn files_that_use_each_other_are_a_circle() {
        let files = [
            ("a.rs", "use super::b::B;"),
            ("b.rs", "use crate::{c::{self, C}, d};"),
            ("c/mod.rs", "fn f() { super::a::f() }"),
            ("d.rs", "// use crate::a;\n#[cfg(test)]\nmod tests { use crate::a; }"),
        ];
        assert_eq!(of(&files), [["a", "b", "c"]]);
    }

    #[test]
    fn a_folder_and_its_files_are_one() {
        let files = [
            ("lib.rs", "use self::a::A;"),
            ("a/mod.rs", "use self::x::X;"),
            ("a/x.rs", "use super::{A, y::Y}; use crate::Top;"),
            ("a/y.rs", "use super::A;"),
        ];
        assert_eq!(of(&files), Vec::<Vec<String>>::new());
    }
}
