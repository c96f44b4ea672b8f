//! What tests use and cargo does not build for them: programs and libraries of other packages, what
//! is installed from them, packages. Tests build nothing: they would wait for each other.
//!
//! All lie beside the test's own program, below cargo's target folder. Nothing that is older than
//! its sources is used: then a test fails, and names the command that builds it.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

/// Set by those who have built everything just before the tests, and do not want tests to look
/// again: somebody may edit a file while they run.
const BUILT: &str = "TOKLAT_ARTIFACTS_BUILT";
/// What is made in other ways than by cargo alone, and the files and folders that it is made of.
const SOURCES: [(&str, &[&str]); 6] = [
    ("capi", &["Cargo.lock", "Cargo.toml", "crates"]),
    ("python", &["Cargo.lock", "Cargo.toml", "crates", "python"]),
    ("deb", PACKED),
    ("rpm", PACKED),
    ("install", PACKED),
    ("schemathesis", &[]),
];
const PACKED: &[&str] =
    &["CHANGELOG.md", "Cargo.lock", "Cargo.toml", "README.md", "crates", "docs", "packaging"];
/// Folders that nothing is made of.
const OTHER_FOLDERS: [&str; 4] = ["tests", "benches", "target", "__pycache__"];

/// The workspace's root.
pub fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Where cargo puts what this test's profile builds, such as `target/debug`.
pub fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let test = std::env::current_exe().unwrap();
        test.ancestors().nth(2).expect("it lies in target/PROFILE/deps").to_owned()
    })
}

/// The folder for all that is made.
pub fn target() -> &'static Path {
    built().parent().expect("a folder in the target folder")
}

/// The program `toklat`. Cargo builds it before the tests of its package.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        if std::env::var("CARGO_PKG_NAME").is_ok_and(|package| package == "toklat") {
            return built().join("toklat");
        }
        program_of("toklat", "toklat")
    })
}

/// A program of a package.
pub fn program_of(package: &str, name: &str) -> PathBuf {
    fresh(built().join(name), &format!("--package {package} --bin {name}"))
}

/// The library for `LD_PRELOAD`.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        fresh(built().join("libtoklat_preload.so"), "--package toklat-preload --lib")
    })
}

/// An example of a package.
pub fn example(package: &str, name: &str) -> PathBuf {
    let build = format!("--package {package} --example {name}");
    fresh(built().join("examples").join(name), &build)
}

/// Returns a file that cargo builds, in other profiles than that of tests with these arguments.
/// Fails where it is missing, or older than one of the sources, which cargo lists beside it.
fn fresh(file: PathBuf, build: &str) -> PathBuf {
    fresh_unless(are_just_built(), file, build)
}

/// As [`fresh`]; a file that was `just_built` is not compared.
fn fresh_unless(just_built: bool, file: PathBuf, build: &str) -> PathBuf {
    let listed = file.with_extension("d");
    let why = match (modified(&file), std::fs::read_to_string(&listed)) {
        (Some(_), _) if just_built => return file,
        (Some(made), Ok(list)) => sources(&list).find(|source| is_newer(source, made)),
        _ => Some(file.clone()),
    };
    // `artifacts` builds with the features of tests, so that all that is compiled serves both.
    let command = match built().file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "cargo xtask artifacts programs".to_owned(),
        Some(other) => format!("cargo build --profile {other} {build}"),
    };
    match why {
        None => file,
        Some(why) if why == file => panic!("{} is missing: {command}", file.display()),
        Some(source) => {
            panic!("{} is older than {}: {command}", file.display(), source.display())
        }
    }
}

/// The paths that a rule of make names after its colon. A space in one stands behind a backslash.
fn sources(rule: &str) -> impl Iterator<Item = PathBuf> {
    let (_, list) = rule.split_once(": ").unwrap_or_default();
    let list = list.replace("\\ ", "\0");
    let paths: Vec<_> = list.split_whitespace().map(|path| path.replace('\0', " ")).collect();
    paths.into_iter().map(PathBuf::from)
}

/// Makes sure that `cargo xtask artifacts NAME` was called since its sources changed.
///
/// # Errors
/// The reason why it cannot be made on this machine.
pub fn made(name: &str) -> Result<(), String> {
    let (_, parts) = SOURCES.iter().find(|(known, _)| *known == name).expect("a known artifact");
    let stamp = target().join("artifacts").join(name);
    let Ok(why) = std::fs::read_to_string(&stamp) else {
        panic!("{name} is missing: cargo xtask artifacts {name}")
    };
    let made = modified(&stamp).expect("the time of a file that was read");
    let newer = parts.iter().find_map(|part| newer_below(&root().join(part), made));
    if let Some(newer) = newer.filter(|_| !are_just_built()) {
        let newer = newer.strip_prefix(root()).unwrap_or(&newer).display();
        panic!("{name} is older than {newer}: cargo xtask artifacts {name}");
    }
    if why.is_empty() { Ok(()) } else { Err(why) }
}

/// Python in a virtual environment that is an artifact, such as `schemathesis`.
///
/// # Errors
/// The reason why it cannot be made on this machine.
pub fn python(name: &str) -> Result<PathBuf, String> {
    made(name)?;
    Ok(target().join("tmp").join(name).join("bin/python"))
}

fn are_just_built() -> bool {
    std::env::var_os(BUILT).is_some()
}

/// A source at or below a path that was changed after a time.
fn newer_below(path: &Path, than: SystemTime) -> Option<PathBuf> {
    if !path.is_dir() {
        return is_newer(path, than).then(|| path.to_owned());
    }
    let is_other = OTHER_FOLDERS.iter().any(|other| path.ends_with(other));
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let mut entries = entries.filter(|_| !is_other);
    entries.find_map(|entry| newer_below(&entry.path(), than))
}

/// True if a file was changed after that time, or is gone.
fn is_newer(file: &Path, than: SystemTime) -> bool {
    modified(file).is_none_or(|changed| changed > than)
}

fn modified(file: &Path) -> Option<SystemTime> {
    file.metadata().and_then(|metadata| metadata.modified()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_older_than_one_of_its_sources_is_refused_with_what_builds_it() {
        let place = tempfile::tempdir().unwrap();
        let [file, source] = ["made", "a source.rs"].map(|name| place.path().join(name));
        let said = || {
            let file = file.clone();
            let refused =
                std::panic::catch_unwind(|| fresh_unless(false, file, "--package x")).unwrap_err();
            refused.downcast_ref::<String>().unwrap().clone()
        };
        let command = "cargo xtask artifacts programs";
        assert!(said().ends_with(&format!("made is missing: {command}")), "{}", said());
        std::fs::write(&source, "").unwrap();
        std::fs::write(&file, "").unwrap();
        let escaped = source.to_str().unwrap().replace(' ', "\\ ");
        std::fs::write(file.with_extension("d"), format!("made: {escaped}\n")).unwrap();
        let at = |seconds| SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        let set = |path: &Path, to| std::fs::File::open(path).unwrap().set_modified(to).unwrap();
        set(&file, at(2000));
        set(&source, at(1000));
        assert_eq!(fresh_unless(false, file.clone(), "--package x"), file);
        set(&source, at(3000));
        let older = format!("is older than {}: {command}", source.display());
        assert!(said().contains(&older), "{}", said());
        std::fs::remove_file(&source).unwrap();
        assert!(said().contains(&older), "{}", said());
    }

    #[test]
    fn sources_are_looked_for_in_all_folders_but_those_of_tests() {
        let place = tempfile::tempdir().unwrap();
        for folder in ["a/src/deep", "a/tests"] {
            std::fs::create_dir_all(place.path().join(folder)).unwrap();
        }
        let made = SystemTime::UNIX_EPOCH;
        std::fs::write(place.path().join("a/tests/x.rs"), "").unwrap();
        assert_eq!(newer_below(place.path(), made), None);
        let source = place.path().join("a/src/deep/y.rs");
        std::fs::write(&source, "").unwrap();
        assert_eq!(newer_below(place.path(), made), Some(source));
        assert_eq!(
            newer_below(place.path(), SystemTime::now() + std::time::Duration::from_secs(9)),
            None
        );
    }
}
