//! Clients that are other users: threads of the test with credentials of their own.

use std::os::unix::fs::PermissionsExt;

use netring::{OpenError, Port};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};

use crate::{Daemon, skip, small};

/// The group that all users of a test's daemon have.
pub const GROUP: u32 = 65534;

/// True if the test may become other users; otherwise reports that the test is skipped.
pub fn may_be_others(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip(
            test,
            "only root may become another user, or who has subordinate ids (uidmap, /etc/subuid)",
        );
    }
    root
}

/// Does something as another user.
pub fn as_user<T: Send>(uid: u32, act: impl FnOnce() -> T + Send) -> T {
    as_member(uid, GROUP, act)
}

/// Does something as another user in another group.
pub fn as_member<T: Send>(uid: u32, gid: u32, act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            set_thread_res_gid(gid, gid, gid).unwrap();
            set_thread_res_uid(uid, uid, uid).unwrap();
            act()
        });
        thread.join().unwrap()
    })
}

impl Daemon {
    /// Starts a daemon whose ports every user may open.
    pub fn start_for_all(options: &[&str]) -> Self {
        let group = GROUP.to_string();
        let daemon = Self::start_with(&[&["--group", &group], options].concat());
        std::fs::set_permissions(daemon.dir(), PermissionsExt::from_mode(0o755)).unwrap();
        daemon
    }

    /// Opens a port with small rings, as another user.
    pub fn open_as(&self, uid: u32, name: &str) -> Result<Port, OpenError> {
        as_user(uid, || small(name).directory(self.dir()).open())
    }
}

/// The reason why a port was not opened: an errno, and the daemon's message.
pub fn refusal(result: Result<Port, OpenError>) -> (Errno, String) {
    match result {
        Err(OpenError::Refused { errno, message, .. }) => {
            (Errno::from_raw_os_error(errno), message)
        }
        other => panic!("not refused: {other:?}"),
    }
}
