//! Groups of processes with limits of their own: of memory (cgroup v1 and v2), and of processes
//! (v2).
//!
//! A group counts all memory: heap, stacks, shared pages that were touched there first, and what
//! the kernel holds for its processes. A process that needs more is killed alone.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::Pid;

/// The start of the name of a creator's directory; its process number follows.
const PREFIX: &str = "toklat-";

/// Which interface the kernel offers for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// A directory that groups are made in; removed on drop.
#[derive(Debug)]
pub struct Groups {
    dir: PathBuf,
    version: Version,
}

/// A group; removed on drop, once its processes have ended.
#[derive(Debug)]
pub struct Group {
    dir: PathBuf,
    version: Version,
}

impl Groups {
    /// Makes a directory for this process's groups, within its own group if that is possible.
    /// Directories of processes that were killed are removed.
    ///
    /// # Errors
    /// The kernel has no groups for memory, or this process may make none.
    pub fn new() -> io::Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let is_root = rustix::process::geteuid().is_root();
        let mut refused = io::Error::from(io::ErrorKind::NotFound);
        for (parent, version) in places(&mounts, &own, is_root) {
            sweep(&parent);
            match Self::within(&parent, version) {
                Ok(groups) => return Ok(groups),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    fn within(parent: &Path, version: Version) -> io::Result<Self> {
        let dir = parent.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&dir)?;
        let groups = Self { dir, version };
        if version == Version::Two {
            if !groups.dir.join("memory.max").exists() {
                fs::write(parent.join("cgroup.subtree_control"), "+memory")?;
            }
            fs::write(groups.dir.join("cgroup.subtree_control"), "+memory")?;
            // Processes are limited by `RLIMIT_NPROC`, too, so groups without a limit of them do.
            let _ = fs::write(parent.join("cgroup.subtree_control"), "+pids");
            let _ = fs::write(groups.dir.join("cgroup.subtree_control"), "+pids");
        }
        Ok(groups)
    }

    /// Makes a group that may use this many bytes, and have this many processes and threads.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn add(&self, name: &str, bytes: u64, processes: u64) -> io::Result<Group> {
        let group = Group { dir: self.dir.join(name), version: self.version };
        fs::create_dir(&group.dir)?;
        let (limit, swap, swapped) = match self.version {
            Version::One => ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", bytes),
            Version::Two => ("memory.max", "memory.swap.max", 0),
        };
        fs::write(group.dir.join(limit), bytes.to_string())?;
        // Without swap there is no such file, and nothing to limit.
        let _ = fs::write(group.dir.join(swap), swapped.to_string());
        if self.version == Version::Two {
            // There is no such file without the controller of processes.
            let _ = fs::write(group.dir.join("pids.max"), processes.to_string());
        }
        Ok(group)
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        remove(&self.dir);
    }
}

impl Group {
    /// Moves a process into the group. What it has had before is not counted. The kernel may need
    /// some ten milliseconds, in which processes start and end slowly.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn take(&self, process: Pid) -> io::Result<()> {
        fs::write(self.dir.join("cgroup.procs"), process.as_raw_pid().to_string())
    }

    /// Returns the file that counts the group's events, for [`kills`].
    #[must_use]
    pub fn events(&self) -> PathBuf {
        self.dir.join(match self.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Fails while a process is in the group: the directory is then removed with the creator's.
        let _ = fs::remove_dir(&self.dir);
    }
}

/// How many processes of a group the kernel has killed for want of memory; `events` is that of
/// [`Group::events`].
#[must_use]
pub fn kills(events: &Path) -> u64 {
    let text = fs::read_to_string(events).unwrap_or_default();
    let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// Where groups may be made, best first.
fn places(mounts: &str, own: &str, is_root: bool) -> Vec<(PathBuf, Version)> {
    let mut places = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let version = match controllers {
            "" => Version::Two,
            names if names.split(',').any(|name| name == "memory") => Version::One,
            _ => continue,
        };
        let Some((root, mount)) = mounts.lines().find_map(|line| mount(line, version)) else {
            continue;
        };
        let here = match Path::new(path).strip_prefix(root) {
            Ok(path) if path.components().next().is_some() => mount.join(path),
            _ => mount.clone(),
        };
        places.push((here.clone(), version));
        if version == Version::Two {
            // A group with processes cannot have groups below it, but there may be a group next to
            // it.
            places.extend(here.parent().filter(|_| here != mount).map(|up| (up.into(), version)));
            places.extend(is_root.then_some((mount, version)));
        }
    }
    // A machine with both has the controller in one of them.
    places.sort_by_key(|(_, version)| *version == Version::Two);
    places
}

/// The root and the place of a mount of groups, in a line of `/proc/self/mountinfo`.
fn mount(line: &str, version: Version) -> Option<(&str, PathBuf)> {
    let (before, after) = line.split_once(" - ")?;
    let mut before = before.split(' ').skip(3);
    let (root, place) = (before.next()?, before.next()?);
    let mut after = after.split(' ');
    let (kind, options) = (after.next()?, after.nth(1).unwrap_or_default());
    let is_it = match version {
        Version::One => kind == "cgroup" && options.split(',').any(|name| name == "memory"),
        Version::Two => kind == "cgroup2",
    };
    is_it.then(|| (root, place.into()))
}

/// Removes what creators have left that were killed.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse::<u32>().ok());
        let is_gone = |number: u32| !Path::new("/proc").join(number.to_string()).exists();
        if number.is_some_and(is_gone) {
            remove(&entry.path());
        }
    }
}

/// Removes a creator's directory, and the groups in it that have no process.
fn remove(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        // The files are the kernel's.
        let _ = fs::remove_dir(entry.path());
    }
    let _ = fs::remove_dir(dir);
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "30 29 0:26 / /sys/fs/cgroup/memory rw - cgroup none rw,memory\n\
                       31 29 0:27 / /sys/fs/cgroup/unified rw - cgroup2 none rw\n";
    const TWO: &str =
        "30 23 0:26 /docker/7 /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw,nsdelegate\n";

    fn shown(mounts: &str, own: &str, is_root: bool) -> Vec<String> {
        let places = places(mounts, own, is_root).into_iter();
        places.map(|(path, version)| format!("{version:?} {}", path.display())).collect()
    }

    #[test]
    fn groups_are_made_within_the_own_one_if_that_is_possible() {
        let own = "4:memory:/a/b\n1:cpu:/x\n0::/\n";
        let places = ["One /sys/fs/cgroup/memory/a/b", "Two /sys/fs/cgroup/unified"];
        assert_eq!(shown(ONE, own, false), places);
        let own = "0::/docker/7/system.slice/toklat.service\n";
        let service = "Two /sys/fs/cgroup/system.slice/toklat.service";
        let up = "Two /sys/fs/cgroup/system.slice";
        assert_eq!(shown(TWO, own, false), [service, up]);
        assert_eq!(shown(TWO, own, true), [service, up, "Two /sys/fs/cgroup"]);
        assert!(shown("", own, true).is_empty());
    }

    #[test]
    fn kills_are_read_in_both_forms() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events");
        for (text, count) in [
            ("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", 3),
            ("low 0\nmax 7\noom 1\noom_kill 1\noom_group_kill 0\n", 1),
            ("", 0),
        ] {
            fs::write(&path, text).unwrap();
            assert_eq!(kills(&path), count, "{text}");
        }
        assert_eq!(kills(Path::new("/nowhere")), 0);
    }

    #[test]
    fn directories_of_creators_that_are_gone_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (gone, own) = ("toklat-4294967295", format!("toklat-{}", std::process::id()));
        for name in [gone, &own, "other"] {
            fs::create_dir_all(dir.path().join(name).join("web")).unwrap();
        }
        sweep(dir.path());
        let left = |name: &str| dir.path().join(name).exists();
        assert_eq!([left(gone), left(&own), left("other")], [false, true, true]);
    }
}
