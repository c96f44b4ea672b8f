//! The file of a bound Unix socket: sets its owner and who may connect.
//!
//! Another user may be able to write the socket's directory, and replace the socket by a link
//! between two calls. So owner and mode are never changed by path, but through a descriptor of the
//! socket's own file.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};

/// Ioctl that returns a descriptor of the file that a socket is bound to (`unix(7)`, Linux 5.0;
/// needs CAP_NET_ADMIN).
const SIOCUNIXFILE: libc::Ioctl = 0x89e0;
/// Since Linux 6.6.
const SYS_FCHMODAT2: libc::c_long = 452;

/// The file that a socket is bound to.
#[derive(Debug)]
pub struct BoundFile {
    file: OwnedFd,
    inode: u64,
}

impl BoundFile {
    /// Finds the file of `socket`, which was bound to `path` just now.
    ///
    /// # Errors
    /// The kernel's error; `AlreadyExists` if something else is at `path` by now.
    pub fn of(socket: impl AsFd, path: &Path) -> io::Result<Self> {
        match by_socket(&socket) {
            Some(file) => Self::checked(file, false),
            None => Self::by_path(path),
        }
    }

    /// Opens the file at `path` without following a link.
    fn by_path(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Self::checked(rustix::fs::open(path, flags, Mode::empty())?, true)
    }

    /// Whether the file is a socket of ours. Another socket of ours could be here only under a
    /// second name.
    fn checked(file: OwnedFd, by_path: bool) -> io::Result<Self> {
        let stat = rustix::fs::fstat(&file)?;
        let is_socket = FileType::from_raw_mode(stat.st_mode) == FileType::Socket;
        let is_ours = stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_nlink == 1;
        if !is_socket || (by_path && !is_ours) {
            let reason =
                "something else took the socket's place; use a directory of the daemon's own";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, reason));
        }
        Ok(Self { file, inode: stat.st_ino })
    }

    /// Sets the file's access control list, in the kernel's format.
    ///
    /// # Errors
    /// The kernel's error; the file system may have no such lists.
    pub fn set_access(&self, list: &[u8]) -> io::Result<()> {
        let file = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let flags = rustix::fs::XattrFlags::empty();
        Ok(rustix::fs::setxattr(file, "system.posix_acl_access", list, flags)?)
    }

    /// Device and inode, which tell the file from others at its path.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Lets a group connect, and an owner. Until then the umask admits only the daemon's user.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn share(&self, owner: Option<u32>, group: Option<u32>) -> io::Result<()> {
        let chown = |owner: Option<u32>, group: Option<u32>| {
            let (owner, group) = (owner.map(Uid::from_raw), group.map(Gid::from_raw));
            rustix::fs::chownat(&self.file, "", owner, group, AtFlags::EMPTY_PATH)
        };
        if group.is_some() {
            chown(None, group)?;
            self.set_mode(0o660)?;
        }
        if let Some(owner) = owner.filter(|owner| *owner != rustix::process::geteuid().as_raw()) {
            chown(Some(owner), None)?;
        }
        Ok(())
    }

    #[allow(unsafe_code, reason = "no library has fchmodat2 yet")]
    fn set_mode(&self, mode: u32) -> io::Result<()> {
        let fd = self.file.as_raw_fd();
        // SAFETY: the arguments are an open descriptor, a string that ends with a zero byte, and
        // numbers.
        let done =
            unsafe { libc::syscall(SYS_FCHMODAT2, fd, c"".as_ptr(), mode, libc::AT_EMPTY_PATH) };
        if done == 0 {
            return Ok(());
        }
        match io::Error::last_os_error() {
            // An older kernel: the descriptor's /proc link leads to the file itself, not to its
            // path.
            error if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
                let link = format!("/proc/self/fd/{fd}");
                Ok(rustix::fs::chmod(link, Mode::from_raw_mode(mode))?)
            }
            error => Err(error),
        }
    }
}

/// Asks the socket for its file. Returns `None` if the kernel does not permit it.
#[allow(unsafe_code, reason = "an ioctl that no library has")]
fn by_socket(socket: impl AsFd) -> Option<OwnedFd> {
    // SAFETY: the request takes no argument, and returns a new descriptor or -1.
    let file = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), SIOCUNIXFILE) };
    // SAFETY: the descriptor is open, and nothing else owns it.
    (file >= 0).then(|| unsafe { OwnedFd::from_raw_fd(file) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().mode() & 0o777
    }

    /// Objective: a user that may write a socket's directory cannot make the daemon hand over
    /// another file.
    ///
    /// Steps: after the socket is bound, replace the file at its path: by a link to a private file,
    /// by that file, and by another socket of ours under a second name. Each way of finding the
    /// socket is tried.
    #[test]
    fn regression_what_takes_a_sockets_place_is_not_handed_over() {
        let dir = tempfile::tempdir().unwrap();
        let (path, victim) = (dir.path().join("s"), dir.path().join("private"));
        std::fs::write(&victim, b"secret").unwrap();
        std::fs::set_permissions(&victim, std::fs::Permissions::from_mode(0o600)).unwrap();
        let control = dir.path().join("control.sock");
        let _control = UnixListener::bind(&control).unwrap();
        std::fs::set_permissions(&control, std::fs::Permissions::from_mode(0o600)).unwrap();
        let group = Some(rustix::process::getegid().as_raw());
        type Swap = fn(&Path, &Path, &Path);
        let swaps: [Swap; 3] = [
            |path, victim, _| symlink(victim, path).unwrap(),
            |path, victim, _| std::fs::hard_link(victim, path).unwrap(),
            |path, _, control| std::fs::hard_link(control, path).unwrap(),
        ];
        for swap in swaps {
            let listener = UnixListener::bind(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            swap(&path, &victim, &control);
            let by_path = BoundFile::by_path(&path).and_then(|file| file.share(None, group));
            assert_eq!(by_path.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
            // The socket itself leads to its own file, wherever that is.
            let _ = BoundFile::of(&listener, &path).and_then(|file| file.share(None, group));
            assert_eq!((mode(&victim), mode(&control)), (0o600, 0o600));
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn a_group_may_connect_however_the_socket_was_found() {
        let dir = tempfile::tempdir().unwrap();
        let group = rustix::process::getegid().as_raw();
        for by_path in [false, true] {
            let path = dir.path().join(format!("{by_path}"));
            let listener = UnixListener::bind(&path).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            let file = match by_path {
                true => BoundFile::by_path(&path),
                false => BoundFile::of(&listener, &path),
            };
            let file = file.unwrap();
            file.share(None, Some(group)).unwrap();
            let found = std::fs::metadata(&path).unwrap();
            assert_eq!((found.mode() & 0o777, found.gid()), (0o660, group));
            assert_eq!(found.ino(), file.inode());
        }
    }
}
