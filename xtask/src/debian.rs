//! Debian packages, fetched and unpacked as an ordinary user; nothing is installed.
//!
//! [`Apt`] is `apt-get` with lists in a directory of our own, either of the machine's own sources
//! or of another release of Debian, from the mirror that the machine's sources name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::tool::{self, command, installed};

/// Where Debian is if apt's sources do not say it.
const MIRROR: &str = "http://deb.debian.org/debian";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// `apt-get` with its own lists.
pub struct Apt {
    /// The directory of apt's state.
    state: PathBuf,
    /// The releases from which packages come; if empty, those that the machine's own sources name.
    suites: &'static [&'static str],
}

impl Apt {
    /// Of the machine's own sources, whose lists are used if it has them.
    pub fn of_this_machine(state: PathBuf) -> Self {
        Self { state, suites: &[] }
    }

    /// Of these releases alone, whatever this machine runs.
    pub fn of(state: PathBuf, suites: &'static [&'static str]) -> Self {
        Self { state, suites }
    }

    /// Fetches the lists again.
    pub fn update(&self) -> Result<()> {
        for dir in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(self.state.join(dir))?;
        }
        if self.suites.is_empty() {
            return self.run(&["update"], &self.state);
        }
        // A mirror need not have every release.
        let mut done = Ok(());
        for mirror in mirrors() {
            self.write_sources(&mirror)?;
            done = self.run(&["update"], &self.state);
            if done.is_ok() {
                break;
            }
        }
        done
    }

    fn write_sources(&self, mirror: &str) -> Result<()> {
        let suites = self.suites.join(" ");
        let sources = format!(
            "Types: deb\nURIs: {mirror}\nSuites: {suites}\nComponents: main\nSigned-By: {KEYRING}\n"
        );
        fs::write(self.state.join("own.sources"), sources)?;
        // Nothing counts as installed.
        Ok(fs::write(self.state.join("status"), "")?)
    }

    /// Downloads packages into `dir`.
    pub fn download(&self, names: &[&str], dir: &Path) -> Result<()> {
        let download = [&["download"], names].concat();
        let own = || tool::run(command("apt-get", &["-q"]).args(&download).current_dir(dir));
        if self.suites.is_empty() && own().is_ok() {
            return Ok(());
        }
        // No lists, as in images of containers: lists of our own.
        self.update_once()?;
        self.run(&download, dir).with_context(|| unavailable(&names.join(", ")))
    }

    /// Downloads a package of the last of the releases, with all that it depends on, and tells
    /// where they all are.
    pub fn download_all(&self, name: &str) -> Result<Vec<PathBuf>> {
        self.update_once()?;
        let release = self.suites.last().copied().unwrap_or_default();
        let install = ["install", "-y", "--no-install-recommends", "--download-only"];
        let install = [install.as_slice(), &["-t", release, name]].concat();
        self.run(&install, &self.state).with_context(|| unavailable(name))?;
        let mut packages = Vec::new();
        for entry in fs::read_dir(self.state.join("cache/archives"))? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "deb") {
                packages.push(path);
            }
        }
        Ok(packages)
    }

    /// Fetches the lists if a run before this one has not.
    fn update_once(&self) -> Result<()> {
        let lists = self.state.join("lists");
        let there = fs::read_dir(&lists).is_ok_and(|mut entries| {
            entries.any(|e| e.is_ok_and(|e| e.file_name().to_string_lossy().ends_with("Release")))
        });
        if there { Ok(()) } else { self.update() }
    }

    fn run(&self, args: &[&str], dir: &Path) -> Result<()> {
        tool::run(self.command("apt-get", args).current_dir(dir))
    }

    fn command(&self, program: &str, args: &[&str]) -> std::process::Command {
        let at = |name: &str, path: &str| format!("-o{name}={}", self.state.join(path).display());
        let mut command = command(program, &["-q"]);
        command.args([at("Dir::State::Lists", "lists"), at("Dir::Cache", "cache")]);
        // Without a network it is to be over soon. The sandbox's user cannot write here.
        command.args(["-oAcquire::Retries=0", "-oAcquire::http::Timeout=20"]);
        command.args(["-oAPT::Sandbox::User=root", "-oDebug::NoLocking=1"]);
        command.arg("-oAcquire::IndexTargets::deb::DEP-11::DefaultEnabled=false");
        command.arg("-oAcquire::Languages=none");
        if !self.suites.is_empty() {
            command.args([
                at("Dir::Etc::SourceList", "own.sources"),
                at("Dir::State::Status", "status"),
            ]);
            command.arg("-oDir::Etc::SourceParts=/dev/null");
        }
        command.args(args);
        command
    }
}

fn unavailable(name: &str) -> String {
    format!("{name} cannot be had as a package (no network, or not Debian)")
}

/// Mirrors of Debian: what apt's sources name, and the one that is everywhere.
pub fn mirrors() -> Vec<String> {
    let targets = ["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"];
    let said = command("apt-get", &targets).output().map(|output| output.stdout);
    let said = said.unwrap_or_default();
    let mut mirrors = mirrors_among(&String::from_utf8_lossy(&said));
    if !mirrors.iter().any(|mirror| mirror == MIRROR) {
        mirrors.push(MIRROR.to_owned());
    }
    mirrors
}

/// The first address that is one of Debian itself, not of what is beside it.
fn mirrors_among(addresses: &str) -> Vec<String> {
    let addresses = addresses.lines().map(|line| line.trim().trim_end_matches('/'));
    addresses.filter(|address| address.ends_with("/debian")).take(1).map(str::to_owned).collect()
}

/// Checks that everything is installed that is needed to make a tree of packages.
pub fn tools(names: &[&str]) -> Result<()> {
    let missing: Vec<&str> = names.iter().copied().filter(|name| !installed(name)).collect();
    if !missing.is_empty() {
        bail!("{} is missing", missing.join(", "));
    }
    Ok(())
}

/// Unpacks a package into `root`.
pub fn unpack(package: &Path, root: &Path) -> Result<()> {
    let status = command("dpkg-deb", &["-x"]).args([package, root]).status()?;
    ensure!(status.success(), "dpkg-deb cannot unpack {} ({status})", package.display());
    Ok(())
}

/// Fetches packages, and those they depend on whose names begin as `taken` says, that are not in
/// `dir` yet.
pub fn fetch(apt: &Apt, dir: &Path, names: &[&str], taken: &[&str]) -> Result<Vec<PathBuf>> {
    let mut wanted: BTreeSet<String> = names.iter().copied().map(str::to_owned).collect();
    let mut packages: BTreeMap<String, PathBuf> = BTreeMap::new();
    while !wanted.is_empty() {
        // All packages are fetched at once: apt takes longer to start than to fetch most of them.
        let is_here = |name: &str| find(dir, &format!("{name}_")).is_ok();
        let missing: Vec<&str> =
            wanted.iter().map(String::as_str).filter(|name| !is_here(name)).collect();
        if !missing.is_empty() {
            apt.download(&missing, dir)?;
        }
        let mut next = BTreeSet::new();
        for name in wanted {
            let package = find(dir, &format!("{name}_"))?;
            let depends = command("dpkg-deb", &["-f"]).arg(&package).arg("Depends").output()?;
            next.extend(dependencies(&String::from_utf8_lossy(&depends.stdout), taken));
            packages.insert(name, package);
        }
        wanted = next.into_iter().filter(|name| !packages.contains_key(name)).collect();
    }
    Ok(packages.into_values().collect())
}

/// The packages of a `Depends` field whose names begin with a word in `taken`: the first of several
/// alternatives, and no package for compilers (`-dev`).
fn dependencies(field: &str, taken: &[&str]) -> impl Iterator<Item = String> {
    let names = field.split(',').filter_map(|clause| clause.split_whitespace().next());
    let names = names.map(|name| name.split(':').next().unwrap_or(name));
    let names = names.filter(|name| taken.iter().any(|start| name.starts_with(start)));
    names.filter(|name| !name.ends_with("-dev")).map(str::to_owned)
}

/// The file in `dir` whose name begins with `start`.
pub fn find(dir: &Path, start: &str) -> Result<PathBuf> {
    let mut entries = fs::read_dir(dir).with_context(|| dir.display().to_string())?.flatten();
    let entry = entries.find(|entry| entry.file_name().to_string_lossy().starts_with(start));
    Ok(entry.with_context(|| format!("{start}* is missing in {}", dir.display()))?.path())
}

#[cfg(test)]
mod tests {
    use super::{dependencies, mirrors_among};

    #[test]
    fn libraries_and_the_kernel_are_fetched_with_what_needs_them() {
        let field = "debconf, libc6:amd64 (>= 2.34), libiperf0 (= 1) | libiperf1, libc6-dev, linux-image-6.1.0-1-amd64 (= 6)";
        let taken = ["lib", "linux-image-"];
        let names: Vec<String> = dependencies(field, &taken).collect();
        assert_eq!(names, ["libc6", "libiperf0", "linux-image-6.1.0-1-amd64"]);
        assert_eq!(dependencies("", &taken).count(), 0);
    }

    #[test]
    fn the_mirror_is_the_one_that_apt_uses_for_debian_itself() {
        let said = "http://m.invalid/debian-security/\nhttp://m.invalid/debian/\nhttp://n.invalid/debian/\n";
        assert_eq!(mirrors_among(said), ["http://m.invalid/debian"]);
        assert!(mirrors_among("https://packages.invalid/apt/\n").is_empty());
    }
}
