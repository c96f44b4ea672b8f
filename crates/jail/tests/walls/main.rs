//! Tests each wall from inside, by trying what it forbids, and from outside, by what the kernel
//! reports.
//!
//! The program has no standard harness, because it is the confined process, too. That process tries
//! everything, reports the results over a socket (its standard input), and waits while it is
//! inspected.

mod attempts;
mod harness;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};

use harness::Test;
use toklat_jail::{Inside, Wall, Walls};

/// The user that starts the process without root. In a user namespace, unknown users look like this
/// one.
const NOBODY: u32 = 65_534;
/// A user that is not trusted.
const STRANGER: u32 = 4_321;

const TESTS: &[Test] = &[
    ("a_jail_of_root_has_every_wall_and_nothing_gets_out", || every_wall(0)),
    ("a_jail_of_a_user_has_every_wall_but_a_user_of_its_own", || every_wall(NOBODY)),
    ("without_user_namespaces_root_raises_the_others", without_user_namespaces),
    ("where_namespaces_are_forbidden_landlock_stands_and_all_is_told", || without_namespaces(0)),
    ("a_user_without_namespaces_is_held_by_landlock", || without_namespaces(NOBODY)),
    ("where_the_kernel_has_no_landlock_namespaces_stand", without_landlock),
    ("a_stranger_is_known_from_inside", strangers_are_known),
    ("others_of_the_same_user_cannot_look_into_it", hidden_from_its_own_user),
    ("a_process_with_threads_stays_as_it_is", threads_are_refused),
];

fn main() {
    match std::env::var("TOKLAT_JAIL_PROBE") {
        Ok(how) => attempts::probe(&how),
        Err(_) => harness::run(TESTS, lacks),
    }
}

/// Returns what this machine does not let root do. Without these permissions, most tests prove
/// nothing.
fn lacks() -> Option<String> {
    static LACKS: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    let look = || {
        let prisoner = Confined::start(0, "all");
        let refused = prisoner.walls.refused.first()?;
        Some(format!("no {} here: {}", refused.wall, refused.reason))
    };
    LACKS.get_or_init(look).clone()
}

/// A confined process that has reported its attempts, and waits.
struct Confined {
    child: Child,
    talk: UnixStream,
    pid: i32,
    walls: Walls,
    tried: BTreeMap<String, String>,
    /// The name of the process's listener.
    name: String,
    /// The directory of the probe program, which other users run to connect.
    _files: tempfile::TempDir,
}

impl Confined {
    /// Starts a process as `user`, confined as `how` says.
    fn start(user: u32, how: &str) -> Self {
        let (talk, theirs) = UnixStream::pair().unwrap();
        rustix::net::sockopt::set_socket_passcred(&talk, true).unwrap();
        let files = tempfile::tempdir().unwrap();
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(files.path(), all).unwrap();
        let program = files.path().join("probe");
        fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let name = format!("toklat-jail-{}-{number}", std::process::id());
        let listener = listen(&name);
        // A descriptor that is not closed at exec.
        let (listener, leaked) = (inherited(listener.as_fd()), inherited(listener.as_fd()));
        let mut command = Command::new(program);
        command.uid(user).gid(user).stdin(OwnedFd::from(theirs));
        command.env("TOKLAT_JAIL_PROBE", how);
        command.env("LISTENER", listener.as_raw_fd().to_string());
        command.env("LEAKED", leaked.as_raw_fd().to_string());
        command.env("OUTSIDE", std::process::id().to_string());
        command.env("ABSTRACT", &name);
        let child = command.spawn().unwrap();
        drop((command, listener, leaked));
        let (told, pid) = receive(&talk);
        let (walls, tried) = serde_json::from_slice(&told).unwrap();
        Self { child, talk, pid, walls, tried, name, _files: files }
    }

    fn status(&self, key: &str) -> String {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap();
        let line = status.lines().find(|line| line.starts_with(&format!("{key}:")));
        line.unwrap().split_once(':').unwrap().1.trim().to_owned()
    }

    /// True if the process has a namespace of this kind of its own.
    fn is_apart(&self, kind: &str) -> bool {
        let link = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap();
        link(&self.pid.to_string()) != link("self")
    }

    fn refused(&self) -> Vec<Wall> {
        self.walls.refused.iter().map(|refused| refused.wall).collect()
    }

    #[track_caller]
    fn could_not(&self, attempts: &[&str]) {
        for attempt in attempts {
            let became =
                self.tried.get(*attempt).unwrap_or_else(|| panic!("{attempt} was not tried"));
            assert_ne!(became, "done", "{attempt}");
        }
    }

    /// True if the process trusts a peer that connects as `user`.
    fn trusts(&mut self, user: u32) -> bool {
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={user}"), "--clear-groups".into()]);
        command.arg(self._files.path().join("probe"));
        command.env("TOKLAT_JAIL_PROBE", format!("knock {}", self.name));
        let status = command.status().unwrap();
        assert!(status.success(), "{status}");
        receive(&self.talk).0 == b"trusted"
    }
}

impl Drop for Confined {
    fn drop(&mut self) {
        let _ = self.talk.shutdown(std::net::Shutdown::Both);
        let _ = self.child.wait();
    }
}

fn listen(name: &str) -> UnixListener {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap()
}

fn inherited(fd: impl AsFd) -> OwnedFd {
    let copy = fd.as_fd().try_clone_to_owned().unwrap();
    rustix::io::fcntl_setfd(&copy, rustix::io::FdFlags::empty()).unwrap();
    copy
}

/// Receives one message. Also returns its sender's process number, as the kernel reports it.
fn receive(talk: &UnixStream) -> (Vec<u8>, i32) {
    let mut bytes = vec![0; 1 << 16];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut control = rustix::net::RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [std::io::IoSliceMut::new(&mut bytes)];
    let flags = rustix::net::RecvFlags::empty();
    let got = rustix::net::recvmsg(talk, parts, &mut control, flags).unwrap();
    assert!(got.bytes > 0, "it ended without a word");
    let sender = control.drain().find_map(|message| match message {
        rustix::net::RecvAncillaryMessage::ScmCredentials(sender) => Some(sender.pid),
        _ => None,
    });
    bytes.truncate(got.bytes);
    (bytes, sender.unwrap().as_raw_nonzero().get())
}

/// What no confined process may do, whichever wall prevents it.
const EVERYTHING: &[&str] = &[
    "open a file",
    "list the root",
    "make a file",
    "look at processes",
    "signal a process",
    "trace a process",
    "connect by TCP",
    "reach an abstract socket",
    "mount",
    "become root",
    "name the host",
    "use what was left open",
    "dump core",
    "have a new group",
];

const NAMESPACES: &[(Wall, &str)] = &[
    (Wall::UserNamespace, "user"),
    (Wall::Root, "mnt"),
    (Wall::ProcessNamespace, "pid"),
    (Wall::IpcNamespace, "ipc"),
    (Wall::NameNamespace, "uts"),
    (Wall::NetworkNamespace, "net"),
    (Wall::CgroupNamespace, "cgroup"),
];

/// Needs root, and a kernel with everything.
fn every_wall(user: u32) {
    let prisoner = Confined::start(user, "all");
    assert_eq!(prisoner.refused(), [], "{:?}", prisoner.walls);
    prisoner.could_not(EVERYTHING);
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(prisoner.status(set), "0000000000000000", "{set}");
    }
    assert_eq!(prisoner.status("NoNewPrivs"), "1");
    for (_, kind) in NAMESPACES {
        assert!(prisoner.is_apart(kind), "{kind}");
    }
    let root = fs::read_dir(format!("/proc/{}/root", prisoner.pid)).unwrap();
    assert_eq!(root.count(), 0);
    let own = if user == 0 { attempts::OWN } else { user };
    assert_eq!(prisoner.status("Uid"), format!("{own}\t{own}\t{own}\t{own}"));
    assert_eq!(prisoner.status("Gid"), format!("{own}\t{own}\t{own}\t{own}"));
    assert_eq!(prisoner.walls.stands(Wall::User), user == 0);
    if user == 0 {
        assert_eq!(prisoner.status("Groups"), "");
    }
}

fn without_user_namespaces() {
    let prisoner = Confined::start(0, "no user namespace");
    assert_eq!(prisoner.refused(), [Wall::UserNamespace], "{:?}", prisoner.walls);
    prisoner.could_not(EVERYTHING);
    assert!(!prisoner.is_apart("user"));
    for (_, kind) in NAMESPACES.iter().filter(|(wall, _)| *wall != Wall::UserNamespace) {
        assert!(prisoner.is_apart(kind), "{kind}");
    }
    assert_eq!(prisoner.status("CapBnd"), "0000000000000000");
}

fn without_namespaces(user: u32) {
    let prisoner = Confined::start(user, "no namespace");
    let refused: BTreeSet<Wall> = prisoner.refused().into_iter().collect();
    assert_eq!(refused, NAMESPACES.iter().map(|(wall, _)| *wall).collect());
    for refused in &prisoner.walls.refused {
        assert!(refused.reason.contains("Operation not permitted"), "{refused:?}");
    }
    prisoner.could_not(EVERYTHING);
    assert_eq!(prisoner.status("CapEff"), "0000000000000000");
}

fn without_landlock() {
    let prisoner = Confined::start(0, "no landlock");
    let landlock = [Wall::LandlockFiles, Wall::LandlockNetwork, Wall::LandlockScope];
    assert_eq!(prisoner.refused(), landlock);
    prisoner.could_not(EVERYTHING);
}

/// The creator's user differs from all others, even if it has the number that stands for unknown
/// users.
fn strangers_are_known() {
    for (creator, how) in
        [(0, "all"), (NOBODY, "all"), (0, "no namespace"), (NOBODY, "no namespace")]
    {
        let mut prisoner = Confined::start(creator, how);
        assert!(prisoner.trusts(creator), "{creator}, {how}");
        assert!(!prisoner.trusts(STRANGER), "{creator}, {how}");
        assert!(!prisoner.trusts(attempts::OWN), "{creator}, {how}");
        if creator != NOBODY {
            assert!(!prisoner.trusts(NOBODY), "{creator}, {how}");
        }
    }
}

/// Other processes of the same user have no access to the confined one.
fn hidden_from_its_own_user() {
    let prisoner = Confined::start(0, "no namespace");
    let reads = |file: &str| {
        let file = format!("/proc/{}/{file}", prisoner.pid);
        let user = format!("--reuid={}", attempts::OWN);
        let group = format!("--regid={}", attempts::OWN);
        let output =
            Command::new("setpriv").args([&user, &group, "--clear-groups", "cat", &file]).output();
        output.unwrap().status.success()
    };
    assert!(reads("status"), "its user may look at what all may look at");
    assert!(!reads("environ") && !reads("maps") && !reads("mem"));
}

fn threads_are_refused() {
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || stopped.recv());
    let entered: Result<Inside, _> = toklat_jail::Jail::new(None).enter(&[]);
    drop(stop);
    thread.join().unwrap().unwrap_err();
    assert!(entered.unwrap_err().to_string().contains("threads"));
}
