//! What packages and installations hold: `packaging/files`, and files laid out as it says.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::tool;

/// The list.
const LIST: &str = include_str!("../../../packaging/files");

/// Where files go. Its number is that of the list's column, counted from the first place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Deb,
    Rpm,
    /// Below the root of `cargo xtask install`.
    Root,
}

/// What packages know of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    /// The operator may change it.
    Config,
    Doc,
}

/// Where a file comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum From {
    File(PathBuf),
    /// A link, with this content.
    Link(String),
}

/// A file, and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    pub from: From,
    /// Below the root.
    pub to: PathBuf,
    pub mode: u32,
    pub kind: Kind,
    /// Cargo built it.
    pub is_built: bool,
}

/// Where the files come from that the repository does not hold.
#[derive(Clone, Debug)]
pub struct Sources {
    /// The program and the library.
    pub built: [PathBuf; 2],
    /// What is made of the program for packages.
    pub made: PathBuf,
}

impl Sources {
    /// The file, or a pattern of files, that a line names.
    fn path(&self, name: &str) -> Result<PathBuf> {
        if let Some(name) = name.strip_prefix("built/") {
            let mut built = self.built.iter();
            let found = built.find(|path| path.file_name().is_some_and(|file| file == name));
            return found.cloned().with_context(|| format!("cargo builds no {name}"));
        }
        let made = name.strip_prefix("made/").map(|name| self.made.join(name));
        Ok(made.unwrap_or_else(|| tool::root().join(name)))
    }
}

/// Returns the files that go to `place`.
pub fn items(place: Place, sources: &Sources) -> Result<Vec<Item>> {
    let lines = LIST.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut items = Vec::new();
    for line in lines {
        of_line(line, place, sources, &mut items).with_context(|| line.to_owned())?;
    }
    Ok(items)
}

/// The files of a line.
fn of_line(line: &str, place: Place, sources: &Sources, items: &mut Vec<Item>) -> Result<()> {
    let columns: Vec<&str> = line.split_whitespace().collect();
    let [from, mode, kind, places @ ..] = &columns[..] else { bail!("a line has six columns") };
    ensure!(places.len() == 3, "a line has six columns");
    let to = places[place as usize];
    if to == "-" {
        return Ok(());
    }
    let mode = u32::from_str_radix(mode, 8)?;
    let kind = match *kind {
        "file" => Kind::File,
        "config" => Kind::Config,
        "doc" => Kind::Doc,
        other => bail!("{other} is no kind of file"),
    };
    let is_built = from.starts_with("built/");
    if let Some(link) = from.strip_prefix("link:") {
        items.push(Item { from: From::Link(link.into()), to: to.into(), mode, kind, is_built });
        return Ok(());
    }
    for path in matching(&sources.path(from)?)? {
        let name = path.file_name().context("a file has a name")?;
        let to = if to.ends_with('/') { Path::new(to).join(name) } else { to.into() };
        items.push(Item { from: From::File(path), to, mode, kind, is_built });
    }
    Ok(())
}

/// The files that a path names, whose last part may have a `*`; sorted.
fn matching(pattern: &Path) -> Result<Vec<PathBuf>> {
    let name = pattern.file_name().unwrap_or_default().to_string_lossy();
    let Some((start, end)) = name.split_once('*') else { return Ok(vec![pattern.to_owned()]) };
    let directory = pattern.parent().unwrap_or(pattern);
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    let mut found = Vec::new();
    for path in entries.map(|entry| entry.map(|entry| entry.path())) {
        let path = path?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_file() && name.starts_with(start) && name.ends_with(end) {
            found.push(path);
        }
    }
    ensure!(!found.is_empty(), "no file is {}", pattern.display());
    found.sort();
    Ok(found)
}

/// Puts the files in their places below `root`. Each takes its place whole: one that is there, and
/// may be a program that runs, is replaced.
pub fn lay_out(items: &[Item], root: &Path) -> Result<()> {
    for item in items {
        let to = root.join(&item.to);
        let directory = to.parent().unwrap_or(root);
        make(root, directory)?;
        let name = to.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let new = directory.join(format!(".{name}.new"));
        let _ = fs::remove_file(&new);
        let put = || {
            match &item.from {
                From::Link(link) => symlink(link, &new)?,
                From::File(from) => {
                    fs::copy(from, &new).with_context(|| from.display().to_string())?;
                    fs::set_permissions(&new, PermissionsExt::from_mode(item.mode))?;
                }
            }
            anyhow::Ok(fs::rename(&new, &to)?)
        };
        put().with_context(|| format!("Cannot write {}", to.display()))?;
    }
    Ok(())
}

/// Makes a directory below `root`, and those above it that are missing, for all to read.
fn make(root: &Path, directory: &Path) -> Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    if let Some(parent) = directory.parent().filter(|_| directory != root) {
        make(root, parent)?;
    }
    fs::create_dir_all(directory)
        .and_then(|()| fs::set_permissions(directory, PermissionsExt::from_mode(0o755)))
        .with_context(|| format!("Cannot make {}", directory.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files where cargo and the program would put them.
    fn sources(directory: &Path) -> Sources {
        let [program, library] = ["toklat", "libtoklat_preload.so"].map(|n| directory.join(n));
        let made = directory.join("made");
        fs::create_dir_all(made.join("man")).unwrap();
        let pages = ["man/toklat.1.gz", "man/toklat-topology.5.gz", "changelog.gz"];
        let more = ["changelog.Debian.gz", "toklat.bash", "_toklat", "toklat.fish"];
        for file in pages.iter().chain(&more) {
            fs::write(made.join(file), file).unwrap();
        }
        fs::write(&program, "the program").unwrap();
        fs::write(&library, "the library").unwrap();
        Sources { built: [program, library], made }
    }

    fn temporary(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).unwrap();
        directory
    }

    /// Objective: all files that the packages contain exist.
    #[test]
    fn packages_name_files_that_there_are() {
        let directory = temporary("files");
        let sources = sources(&directory);
        for (place, least) in [(Place::Deb, 40), (Place::Rpm, 35), (Place::Root, 7)] {
            let items = items(place, &sources).unwrap();
            for item in &items {
                let From::File(from) = &item.from else { continue };
                assert!(from.is_file(), "{}", from.display());
            }
            assert!(items.len() >= least, "{place:?}: {}", items.len());
        }
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn files_are_laid_out_with_their_modes_over_those_that_are_there() {
        let directory = temporary("laid-out");
        let items = items(Place::Root, &sources(&directory)).unwrap();
        let root = directory.join("root");
        lay_out(&items, &root).unwrap();
        fs::write(root.join("bin/toklat"), "an older one").unwrap();
        lay_out(&items, &root).unwrap();
        let program = fs::metadata(root.join("bin/toklat")).unwrap();
        assert_eq!(program.permissions().mode() & 0o777, 0o755);
        assert_eq!(fs::read_to_string(root.join("bin/toklat")).unwrap(), "the program");
        let library = root.join("lib/toklat/libtoklat_preload.so");
        assert_eq!(fs::read_to_string(library).unwrap(), "the library");
        assert!(root.join("share/man/man1/toklat.1.gz").is_file());
        assert_eq!(fs::read_dir(root.join("bin")).unwrap().count(), 1, "nothing else is left");
        fs::remove_dir_all(directory).unwrap();
    }
}
