//! A copy of a bare Debian, whose programs run in namespaces of their own.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// The script that runs first in the copy. The root directory is changed by a mount namespace,
/// because `chroot` would forbid user namespaces.
const INIT: &str = r#"set -e
mount --bind "$1" "$1"
cd "$1"
for device in null zero full random urandom; do
    : >dev/$device
    mount --bind /dev/$device dev/$device
done
mount -t proc proc proc
PATH=$PATH:/usr/sbin:/sbin pivot_root . mnt
umount -l /mnt
echo
read end"#;

/// A copy of a system in a directory. Its processes end when it is dropped.
pub struct Chroot {
    root: PathBuf,
    init: Child,
    _dir: tempfile::TempDir,
}

impl Chroot {
    /// Makes a copy, or returns the reason why it cannot.
    pub fn new() -> Result<Self, &'static str> {
        let dir = unpack()?;
        let root = dir.path().join("root");
        let mut init = Command::new("unshare");
        init.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", INIT, "sh"]);
        init.arg(&root).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut init = init.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(init.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let chroot = Self { root, init, _dir: dir };
        match line.is_empty() {
            true => Err("mount and process namespaces (CAP_SYS_ADMIN) are refused"),
            false => Ok(chroot),
        }
    }

    /// Returns where a path of the copy is outside of it.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    pub fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.path(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Returns a command that is to run in the copy.
    pub fn command(&self, script: &str) -> Command {
        let init = self.init.id();
        let mut command = Command::new("nsenter");
        command.args(["--target", &init.to_string(), "--mount"]);
        command.arg(format!("--pid=/proc/{init}/ns/pid_for_children"));
        command.args(["/bin/bash", "-c", script]);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", "/root");
        command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C.UTF-8");
        command.stdin(Stdio::null());
        // It would hold the test up if it were given one that the test reads to the end.
        command.process_group(0);
        command
    }

    /// Returns whether a script succeeded, and all its output.
    pub fn output(&self, script: &str) -> (bool, String) {
        let Output { status, stdout, stderr } = self.command(script).output().unwrap();
        (status.success(), String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned())
    }

    /// Returns the output of a script, which has to succeed.
    pub fn run(&self, script: &str) -> String {
        let (succeeded, said) = self.output(script);
        assert!(succeeded, "{script}: {said}");
        said
    }

    /// The number of a user (of `etc/passwd`) or a group (of `etc/group`).
    pub fn id(&self, file: &str, name: &str) -> u32 {
        let text = self.read(file);
        let mut lines = text.lines().map(|line| line.split(':'));
        let line = lines.find_map(|mut line| (line.next()? == name).then_some(line));
        line.and_then(|mut rest| rest.nth(1)?.parse().ok()).unwrap_or_else(|| panic!("{name}"))
    }

    /// Returns all files of the copy, except those that the kernel provides and the records of
    /// package managers.
    pub fn files(&self) -> BTreeSet<PathBuf> {
        const NOTES: [&str; 6] =
            ["proc", "dev", "var/lib/dpkg", "var/lib/rpm", "var/log", "var/cache/man"];
        let mut files = BTreeSet::new();
        let mut folders = vec![PathBuf::new()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(self.root.join(&folder)).unwrap() {
                let entry = entry.unwrap();
                let path = folder.join(entry.file_name());
                if NOTES.iter().any(|note| path == Path::new(note)) {
                    continue;
                }
                if entry.file_type().unwrap().is_dir() {
                    folders.push(path.clone());
                }
                files.insert(path);
            }
        }
        files
    }
}

/// Unpacks the bare Debian into `root` of a directory, or returns the reason why it cannot.
pub fn unpack() -> Result<tempfile::TempDir, &'static str> {
    let program = Path::new(env!("CARGO_BIN_EXE_toklat"));
    let archive = program.parent().unwrap().parent().unwrap().join("chroot/debian.tar");
    if !rustix::process::geteuid().is_root() {
        return Err("only root may install packages");
    }
    if !archive.is_file() {
        return Err("a bare Debian (target/chroot) is missing; cargo xtask setup");
    }
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    std::fs::create_dir(&root).unwrap();
    let mut tar = Command::new("tar");
    tar.args(["--numeric-owner", "--exclude=./dev/*", "-xf"]).arg(archive);
    assert!(tar.arg("-C").arg(&root).status().unwrap().success());
    Ok(dir)
}

impl Drop for Chroot {
    fn drop(&mut self) {
        // When the first process of a process namespace ends, the others end, too.
        drop(self.init.stdin.take());
        let _ = self.init.wait();
    }
}
