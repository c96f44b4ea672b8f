//! The runtime directory: made, locked, and restored if the daemon could not start.

use std::fs::{self, File};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use rustix::fs::FlockOperation;

use crate::api;

/// Bytes of the longest path that a socket can have (unix(7)).
const LONGEST_SOCKET: usize = 107;

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
        if own_sockets {
            for name in [api::SOCKET, netring::attach::SOCKET] {
                let _ = fs::remove_file(self.path.join(name));
            }
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
    let lock = File::create(&file).with_context(|| {
        format!("Cannot write in {shown}; set TOKLAT_DIR to a directory of yours")
    })?;
    let held = rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
    // A failed start removes its lock file. A lock on a removed file keeps no other daemon out.
    let same = |there: fs::Metadata| lock.metadata().is_ok_and(|ours| ours.ino() == there.ino());
    if !held || !fs::metadata(&file).is_ok_and(same) {
        bail!("A daemon runs in {shown} already; use it, or set TOKLAT_DIR to another directory");
    }
    Ok(lock)
}

/// Removes files and empty directories.
fn remove(made: &[PathBuf]) {
    for path in made {
        let _ = if path.is_dir() { fs::remove_dir(path) } else { fs::remove_file(path) };
    }
}
