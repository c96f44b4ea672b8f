//! Rules of the house that a program can check: arrows between crates, circles of files, tables,
//! width of comments, subjects of commits.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::{circles, features, profiles, reach, tool};

/// What each crate may depend on, as ARCHITECTURE.md draws it. `toklat` may use all that are listed
/// before it.
const ARROWS: &[(&str, &[&str])] = &[
    ("shmem", &[]),
    ("frame", &[]),
    ("jail", &[]),
    ("evpn", &["frame"]),
    ("rules", &["frame"]),
    ("tcp", &["frame"]),
    ("port", &["frame", "shmem"]),
    ("link", &["frame", "port", "shmem"]),
    ("fabric", &["frame", "link", "port", "rules", "shmem"]),
    ("netring", &["frame", "shmem"]),
    ("abi", &["frame", "shmem"]),
    ("topology", &["abi", "fabric", "frame", "rules"]),
    ("turn", &["fabric", "frame", "jail", "link", "netring", "port", "shmem", "topology"]),
    ("inline", &["fabric", "link", "netring", "port", "shmem", "topology", "turn"]),
    ("nic", &["abi", "frame", "port", "shmem"]),
    ("driver", &["abi", "frame", "shmem"]),
    ("card", &["abi", "driver", "frame", "netring", "nic", "port", "shmem"]),
    ("guest", &["abi", "card", "driver", "frame", "jail", "netring", "port", "shmem", "tcp"]),
    ("netmap", &["card", "driver", "netring", "shmem"]),
    ("pcap", &["frame", "netring", "shmem"]),
    ("preload", &["frame", "inline", "netmap", "netring", "pcap", "shmem"]),
    ("capi", &["frame", "inline", "netring", "shmem"]),
    (
        "dataplane",
        &[
            "abi", "fabric", "frame", "jail", "link", "nic", "pcap", "port", "netring", "rules",
            "shmem", "topology", "turn",
        ],
    ),
    ("vm", &["frame", "jail", "topology"]),
    ("api", &["frame", "jail", "port", "topology"]),
    ("client", &["api"]),
    ("host", &["api", "jail"]),
    (
        "sim",
        &[
            "fabric", "frame", "guest", "inline", "link", "netring", "pcap", "port", "tcp",
            "topology",
        ],
    ),
    ("tools", &["client", "dataplane", "frame", "netring", "pcap"]),
    (
        "lab",
        &[
            "api",
            "card",
            "client",
            "dataplane",
            "driver",
            "evpn",
            "fabric",
            "frame",
            "guest",
            "host",
            "inline",
            "jail",
            "link",
            "netring",
            "nic",
            "port",
            "rules",
            "shmem",
            "vm",
        ],
    ),
    (
        "toklat",
        &[
            "abi",
            "api",
            "card",
            "client",
            "dataplane",
            "driver",
            "evpn",
            "fabric",
            "frame",
            "guest",
            "host",
            "inline",
            "jail",
            "lab",
            "link",
            "netmap",
            "netring",
            "nic",
            "pcap",
            "port",
            "preload",
            "rules",
            "shmem",
            "sim",
            "tools",
            "topology",
            "vm",
        ],
    ),
];
/// Characters of a table's cell.
const CELL: usize = 160;
/// Characters of a commit's subject.
const SUBJECT: usize = 72;
/// The commits whose subjects are checked.
const COMMITS: &str = "-8";
/// Columns of a comment.
const COMMENT: usize = 100;
/// Words that end as an imperative does not, and are one all the same.
const IMPERATIVES: &[&str] = &[
    "access", "address", "bring", "bypass", "compress", "discuss", "embed", "feed", "focus",
    "guess", "pass", "ping", "press", "process", "ring", "seed", "shed", "speed", "string",
];

/// Names what breaks a rule, and fails if anything does.
pub fn check() -> Result<()> {
    let mut broken = arrows()?;
    for page in pages()? {
        let text = fs::read_to_string(tool::root().join(&page))?;
        broken.extend(long_cells(&text).map(|line| {
            format!("{page}:{line}: a cell of a table has more than {CELL} characters")
        }));
    }
    broken.extend(metadata()?);
    broken.extend(subjects()?);
    broken.extend(wide_comments()?);
    broken.extend(modules_beside_folders()?);
    broken.extend(circles::all()?);
    broken.extend(features::check()?);
    broken.extend(one_rust()?);
    broken.extend(profiles::check()?);
    broken.extend(reach::check()?);
    if broken.is_empty() {
        return Ok(());
    }
    bail!("{}", broken.join("\n"))
}

/// Places that name another Rust than rust-toolchain.toml.
fn one_rust() -> Result<Vec<String>> {
    let toolchain = fs::read_to_string(tool::root().join("rust-toolchain.toml"))?;
    let channel = toolchain.lines().find_map(|line| line.strip_prefix("channel = "));
    let channel = channel.context("rust-toolchain.toml names no channel")?.trim_matches('"');
    let image = fs::read_to_string(tool::root().join("packaging/Containerfile"))?;
    let same = image.contains(&format!("/rust:{channel}-"));
    let broken = (!same).then(|| format!("packaging/Containerfile: not Rust {channel}"));
    Ok(broken.into_iter().collect())
}

/// Arrows between crates that are not in the picture.
fn arrows() -> Result<Vec<String>> {
    let mut broken = Vec::new();
    for entry in fs::read_dir(tool::root().join("crates"))? {
        let folder = entry?.path();
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some((_, allowed)) = ARROWS.iter().find(|(known, _)| *known == name) else {
            broken.push(format!("crates/{name}: no arrow says what it may depend on"));
            continue;
        };
        for used in dependencies(&folder)? {
            let ours = ARROWS.iter().any(|(known, _)| *known == used);
            if ours && !allowed.contains(&used.as_str()) {
                broken.push(format!(
                    "crates/{name} depends on {used}, which the picture does not show"
                ));
            }
            if used == "harness" {
                broken.push(format!("crates/{name} depends on harness, which is for tests alone"));
            }
        }
    }
    Ok(broken)
}

/// Crates whose manifests do not say all that a registry shows of them.
fn metadata() -> Result<Vec<String>> {
    const SAID: [&str; 8] = [
        "description = ",
        "version.",
        "license.",
        "repository.",
        "authors.",
        "readme.",
        "keywords = [\"",
        "categories = [\"",
    ];
    let mut broken = Vec::new();
    for entry in fs::read_dir(tool::root().join("crates"))? {
        let manifest = entry?.path().join("Cargo.toml");
        let text = fs::read_to_string(&manifest)?;
        let package = text.lines().take_while(|line| !line.starts_with("[lints]"));
        let package: Vec<_> = package.collect();
        let says = |what: &&str| package.iter().any(|line| line.starts_with(what));
        broken.extend(SAID.iter().filter(|what| !says(what)).map(|what| {
            let what = what.trim_end_matches(['.', ' ', '=', '[', '"']);
            format!("{}: no {what}", manifest.display())
        }));
    }
    Ok(broken)
}

/// The names under `[dependencies]`.
fn dependencies(folder: &Path) -> Result<Vec<String>> {
    let manifest = folder.join("Cargo.toml");
    let text = fs::read_to_string(&manifest).with_context(|| manifest.display().to_string())?;
    let lines = text.lines().skip_while(|line| *line != "[dependencies]").skip(1);
    let names = lines.take_while(|line| !line.starts_with('['));
    Ok(names.filter_map(|line| Some(line.split(['.', ' ', '=']).next()?.to_owned())).collect())
}

/// Pages that are written by hand or made from the source.
fn pages() -> Result<Vec<String>> {
    let listed = tool::command("git", &["ls-files", "*.md"]).output().context("git ls-files")?;
    Ok(String::from_utf8_lossy(&listed.stdout).lines().map(str::to_owned).collect())
}

/// Lines with a cell that is too long.
fn long_cells(text: &str) -> impl Iterator<Item = usize> + '_ {
    let is_long = |line: &str| {
        line.starts_with('|') && line.split(" | ").any(|cell| cell.trim().chars().count() > CELL)
    };
    text.lines().enumerate().filter(move |(_, line)| is_long(line)).map(|(at, _)| at + 1)
}

/// Subjects of the last commits that are too long, or do not say what the commit is to do.
fn subjects() -> Result<Vec<String>> {
    let log = tool::command("git", &["log", COMMITS, "--no-merges", "--format=%s"]).output();
    let log = log.context("git log")?;
    let text = String::from_utf8_lossy(&log.stdout);
    let wrong = |subject: &str| wrong_subject(subject).map(|why| format!("{why}: {subject}"));
    Ok(text.lines().filter_map(wrong).collect())
}

/// What is wrong with the subject of a commit.
fn wrong_subject(subject: &str) -> Option<String> {
    if subject.chars().count() > SUBJECT {
        return Some(format!("a commit's subject has more than {SUBJECT} characters"));
    }
    let Some((_, summary)) = subject.split_once(": ") else {
        return Some("a commit's subject does not begin with a crate or an area".into());
    };
    let first = summary.split_whitespace().next().unwrap_or_default();
    (!is_imperative(first)).then(|| format!("a commit's subject begins with {first:?}, not a verb"))
}

/// Whether a word may be an imperative: none ends as other forms of verbs, and as plurals, do.
fn is_imperative(word: &str) -> bool {
    let articles = ["a", "an", "the", "no", "one", "two"];
    let other_form = ["ed", "ing", "s"].iter().any(|end| word.ends_with(end));
    IMPERATIVES.contains(&word) || !(other_form || articles.contains(&word))
}

/// Comments that are wider than the rule.
fn wide_comments() -> Result<Vec<String>> {
    let listed = tool::command("git", &["ls-files", "*.rs"]).output().context("git ls-files")?;
    let mut broken = Vec::new();
    for file in String::from_utf8_lossy(&listed.stdout).lines() {
        // A file may be gone that git still lists.
        let Ok(text) = fs::read_to_string(tool::root().join(file)) else { continue };
        if text.starts_with("// This file is @generated") {
            continue;
        }
        let wide = text.lines().enumerate().filter(|(_, line)| is_wide(line));
        broken.extend(wide.map(|(at, _)| format!("{file}:{}: a comment is too wide", at + 1)));
    }
    Ok(broken)
}

/// Modules with a folder whose file is not the folder's `mod.rs`. Programs and tests are roots, and
/// name the files of their folders by path.
fn modules_beside_folders() -> Result<Vec<String>> {
    let listed = tool::command("git", &["ls-files", "*.rs"]).output().context("git ls-files")?;
    let names = String::from_utf8_lossy(&listed.stdout).into_owned();
    let files: Vec<_> = names.lines().filter(|file| !is_root(file)).collect();
    let has_folder = |file: &&&str| {
        let folder = format!("{}/", file.trim_end_matches(".rs"));
        files.iter().any(|other| other.starts_with(&folder))
    };
    let beside = files.iter().filter(has_folder).filter(|file| tool::root().join(file).exists());
    Ok(beside.map(|file| format!("{file}: move it into its folder, as mod.rs")).collect())
}

/// Whether a file is the root of a test, an example or a program of its own.
fn is_root(file: &str) -> bool {
    let folder = Path::new(file).parent().and_then(Path::file_name).and_then(|name| name.to_str());
    matches!(folder, Some("tests" | "examples" | "benches" | "bin" | "targets"))
}

/// Whether a line is a comment of prose that is too wide. Tables and drawings may be wider.
fn is_wide(line: &str) -> bool {
    let Some(comment) = line.trim_start().strip_prefix("//") else { return false };
    let text = comment.trim_start_matches(['/', '!']);
    let prose = !text.trim_start().starts_with('|') && !text.contains("  ");
    prose && line.chars().count() > COMMENT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_measured_one_by_one() {
        let long = "x".repeat(CELL + 1);
        let text = format!(
            "| a | b |\n{long}\n| a | {long} |\n| {} | {} |\n",
            "y".repeat(100),
            "z".repeat(100)
        );
        assert_eq!(long_cells(&text).collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn subjects_begin_with_an_area_and_a_verb() {
        for good in ["nic: remove unused import", "docs: address readers", "a, b: pass it on"] {
            assert_eq!(wrong_subject(good), None);
        }
        let long = format!("nic: {}", "x".repeat(SUBJECT));
        for bad in ["remove it", "nic: removed it", "nic: removes it", "nic: an import less", &long]
        {
            assert!(wrong_subject(bad).is_some(), "{bad}");
        }
    }

    #[test]
    fn roots_may_stand_beside_their_folders() {
        assert!(is_root("crates/toklat/tests/siege.rs") && is_root("fuzz/targets/virtio.rs"));
        assert!(!is_root("crates/toklat/src/daemon/process.rs"));
    }

    #[test]
    fn only_prose_is_too_wide() {
        let words = "word ".repeat(25);
        assert!(is_wide(&format!("    /// {words}")));
        for narrow in [format!("// | {words}"), format!("//   {words}"), format!("let x = {words}")]
        {
            assert!(!is_wide(&narrow), "{narrow}");
        }
    }

    #[test]
    fn arrows_point_to_crates_that_are_listed_before() {
        for (at, (name, allowed)) in ARROWS.iter().enumerate() {
            let before = &ARROWS[..at];
            let is_before = |used: &&&str| before.iter().any(|(known, _)| known == *used);
            assert_eq!(allowed.iter().filter(is_before).count(), allowed.len(), "{name}");
        }
    }
}
