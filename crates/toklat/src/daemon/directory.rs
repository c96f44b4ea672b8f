//! The runtime directory: made, locked, and restored if the daemon could not start.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, bail, ensure};
use rustix::fs::FlockOperation;

use crate::api;

/// Bytes of the longest path that a socket can have (unix(7)).
const LONGEST_SOCKET: usize = 107;

/// The daemon whose lock this one has replaced; 0 if there was none.
static PREDECESSOR: AtomicU32 = AtomicU32::new(0);

/// A runtime directory that this daemon holds as long as this value lives.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// The lock file. The lock is held as long as the file is open.
    _lock: File,
    /// The directories that were made above this one, the innermost first.
    made: Vec<PathBuf>,
}

impl Directory {
    /// Makes the directory and ensures that only one daemon runs in it.
    ///
    /// # Errors
    /// The directory cannot be made, its sockets' paths would be too long, or a daemon runs in it.
    pub fn lock(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        let longest = path.join(api::SOCKET).as_os_str().len();
        ensure!(
            longest <= LONGEST_SOCKET,
            "The path of the socket in {shown} has {longest} bytes, and {LONGEST_SOCKET} are the most; \
             set TOKLAT_DIR to a directory with a shorter path"
        );
        let mut made: Vec<PathBuf> = path
            .ancestors()
            .take_while(|p| !p.as_os_str().is_empty() && !p.exists())
            .map(Into::into)
            .collect();
        let is_new = !path.join("lock").exists();
        let locked = make(path).and_then(|()| lock(path));
        match locked {
            Ok(lock) => {
                if is_new {
                    made.insert(0, path.join("lock"));
                }
                Ok(Self { path: path.into(), _lock: lock, made })
            }
            Err(error) => {
                remove(&made);
                Err(error)
            }
        }
    }

    /// Removes what a failed start has made. Of the files, the lock goes last, so that no other
    /// daemon has sockets here meanwhile.
    pub fn undo(&self, own_sockets: bool) {
        let own = if own_sockets { &[api::SOCKET, netring::attach::SOCKET][..] } else { &[] };
        for name in own.iter().chain([&api::VIEW_SOCKET]) {
            let _ = fs::remove_file(self.path.join(name));
        }
        remove(&self.made);
    }
}

fn make(path: &Path) -> anyhow::Result<()> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(path);
    made.with_context(|| {
        format!("Cannot make {}; set TOKLAT_DIR to a directory of yours", path.display())
    })
}

fn lock(path: &Path) -> anyhow::Result<File> {
    let (file, shown) = (path.join("lock"), path.display());
    let cannot = || format!("Cannot write in {shown}; set TOKLAT_DIR to a directory of yours");
    let there = open_lock(&file).with_context(cannot)?;
    let lock = match is_locked(&there, &file) {
        true => Some(there),
        false => replace(&there, &file).with_context(cannot)?,
    };
    let Some(mut lock) = lock else {
        bail!("A daemon runs in {shown} already; use it, or set TOKLAT_DIR to another directory");
    };
    let written = lock.set_len(0).and_then(|()| lock.write_all(own_name().as_bytes()));
    written.with_context(cannot)?;
    Ok(lock)
}

/// Opens the lock file, which is made if there is none. Who can open it can keep daemons out, so no
/// other user can.
fn open_lock(file: &Path) -> io::Result<File> {
    let mut options = File::options();
    let lock =
        options.read(true).write(true).create(true).truncate(false).mode(0o600).open(file)?;
    lock.set_permissions(fs::Permissions::from_mode(0o600))?;
    Ok(lock)
}

/// Locks the file, and says whether this one keeps other daemons out: a failed start removes its
/// lock file.
fn is_locked(lock: &File, file: &Path) -> bool {
    rustix::fs::flock(lock, FlockOperation::NonBlockingLockExclusive).is_ok() && is_at(lock, file)
}

fn is_at(lock: &File, file: &Path) -> bool {
    let same = |there: fs::Metadata| lock.metadata().is_ok_and(|ours| ours.ino() == there.ino());
    fs::metadata(file).is_ok_and(same)
}

/// Replaces a lock file that another process has locked, if that one is dead; `None` if not.
fn replace(there: &File, file: &Path) -> io::Result<Option<File>> {
    let Some(owner) = dead_owner(file) else { return Ok(None) };
    // Of several daemons that come here at a time, one has this other lock while it replaces the
    // file, and the next ones find another file.
    let first = rustix::fs::fcntl_lock(there, FlockOperation::NonBlockingLockExclusive).is_ok();
    if !first || !is_at(there, file) {
        return Ok(None);
    }
    fs::remove_file(file)?;
    let lock = open_lock(file)?;
    PREDECESSOR.store(owner, Ordering::Relaxed);
    Ok(is_locked(&lock, file).then_some(lock))
}

/// True if the predecessor whose lock was replaced listens at the other end of a socket: the kernel
/// keeps its sockets, and it accepts nothing any more.
pub fn is_of_predecessor(socket: impl AsFd) -> bool {
    let listens = rustix::net::sockopt::socket_peercred(socket);
    let pid = listens.map_or(0, |peer| peer.pid.as_raw_nonzero().get().unsigned_abs());
    pid != 0 && pid == PREDECESSOR.load(Ordering::Relaxed)
}

/// The lock's owner, if it has ended but for threads that the kernel keeps: a thread that closes a
/// stranger's file of FUSE stays until its server answers, whatever signal comes, and with it the
/// process's descriptors. The owner itself does not run any more.
fn dead_owner(file: &Path) -> Option<u32> {
    let name = fs::read_to_string(file).ok()?;
    let owner = name.split(' ').next()?.parse().ok()?;
    let (is_dead, its) = process(owner)?;
    (is_dead && its == name).then_some(owner)
}

/// How this process is called in the lock file.
fn own_name() -> String {
    process(std::process::id()).map_or_else(String::new, |(_, name)| name)
}

/// Whether a process has ended, and its name in the lock file: its number, and when it started.
fn process(pid: u32) -> Option<(bool, String)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program, in parentheses, may contain anything.
    let words: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    // State and start time: fields 3 and 22 (proc_pid_stat(5)).
    let (state, started) = (words.first()?, words.get(19)?);
    Some((["Z", "X"].contains(state), format!("{pid} {started}")))
}

/// Removes files and empty directories.
fn remove(made: &[PathBuf]) {
    for path in made {
        let _ = if path.is_dir() { fs::remove_dir(path) } else { fs::remove_file(path) };
    }
}
