//! The attempts of the confined process.
#![allow(unsafe_code, reason = "what is tried are system calls that no safe interface has")]

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::{FromRawFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use rustix::process::{Pid, Signal};
use seccompiler::{
    SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use toklat_jail::{Inside, Jail, Wall};

/// The user that jails started by root run as.
pub const OWN: u32 = 62_345;

/// Runs the part of the confined process that `how` names.
pub fn probe(how: &str) {
    if let Some(name) = how.strip_prefix("knock ") {
        return connect_once(name);
    }
    refuse(how);
    let user = toklat_jail::user::may_change().then_some(OWN);
    let listener: RawFd = variable("LISTENER").parse().unwrap();
    let jail = Jail::new(user).without(&[Wall::SystemCalls]);
    let inside = jail.enter(&[listener]).unwrap();
    // SAFETY: a system call on numbers, or on a descriptor that nothing else here owns.
    let mut talk = unsafe { UnixStream::from_raw_fd(0) };
    let told = serde_json::to_vec(&(&inside.walls, try_everything())).unwrap();
    talk.write_all(&told).unwrap();
    // SAFETY: a system call on numbers, or on a descriptor that nothing else here owns.
    let listener = unsafe { UnixListener::from_raw_fd(listener) };
    watch_door(&inside, &listener, &mut talk);
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap()
}

/// Makes calls fail, as on a kernel or in a container without the feature that `how` names.
fn refuse(how: &str) {
    let condition = |operator, value| {
        SeccompCondition::new(0, SeccompCmpArgLen::Qword, operator, value).unwrap()
    };
    let user = libc::CLONE_NEWUSER as u64;
    let new_user = condition(SeccompCmpOp::MaskedEq(user), user);
    let only = SeccompRule::new(vec![new_user]).unwrap();
    let (calls, error) = match how {
        "all" => return,
        "no user namespace" => (vec![(libc::SYS_unshare, vec![only])], libc::ENOSPC),
        "no namespace" => (vec![(libc::SYS_unshare, vec![])], libc::EPERM),
        "no landlock" => (vec![(libc::SYS_landlock_create_ruleset, vec![])], libc::ENOSYS),
        _ => panic!("{how}?"),
    };
    let (others, these) = (SeccompAction::Allow, SeccompAction::Errno(error as u32));
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(calls.into_iter().collect(), others, these, arch).unwrap();
    let filter: seccompiler::BpfProgram = filter.try_into().unwrap();
    seccompiler::apply_filter(&filter).unwrap();
}

/// Reports for each peer that connects whether it is trusted, until the test ends the conversation.
fn watch_door(inside: &Inside, listener: &UnixListener, talk: &mut UnixStream) {
    let mut fds = [libc::pollfd { fd: 0, events: libc::POLLIN, revents: 0 }; 2];
    fds[1].fd = std::os::fd::AsRawFd::as_raw_fd(listener);
    loop {
        // SAFETY: a system call on numbers, or on a descriptor that nothing else here owns.
        unsafe { libc::poll(fds.as_mut_ptr(), 2, -1) };
        if fds[0].revents != 0 {
            return;
        }
        let (guest, _) = listener.accept().unwrap();
        let peer = toklat_jail::peer::of(&guest).unwrap();
        let trusted = inside.creators.contains(&peer.uid);
        talk.write_all(if trusted { b"trusted" } else { b"strange" }).unwrap();
    }
}

/// Plays the peer: connects, and ends once the connection was seen.
fn connect_once(name: &str) {
    let address = SocketAddr::from_abstract_name(name).unwrap();
    let mut door = UnixStream::connect_addr(&address).unwrap();
    let _ = door.read(&mut [0]);
}

fn try_everything() -> BTreeMap<&'static str, String> {
    let mut tried = BTreeMap::new();
    let mut attempt = |what, became: io::Result<()>| {
        let became = became.map_or_else(|error| error.to_string(), |()| "done".to_owned());
        tried.insert(what, became);
    };
    let outside = Pid::from_raw(variable("OUTSIDE").parse().unwrap()).unwrap();
    let outside_raw = outside.as_raw_nonzero().get();
    attempt("open a file", std::fs::File::open("/etc/passwd").map(drop));
    attempt("list the root", non_empty("/"));
    attempt("make a file", std::fs::write("/tmp/toklat-jail", "x"));
    attempt("look at processes", std::fs::read(format!("/proc/{outside_raw}/cmdline")).map(drop));
    attempt(
        "signal a process",
        rustix::process::kill_process(outside, Signal::CONT).map_err(io::Error::from),
    );
    attempt(
        "trace a process",
        // SAFETY: a system call on numbers, or on a descriptor that nothing else here owns.
        call(|| unsafe { libc::ptrace(libc::PTRACE_SEIZE, outside_raw, 0, 0) }),
    );
    attempt("connect by TCP", connect());
    attempt("reach an abstract socket", reach(&variable("ABSTRACT")));
    attempt("mount", mount());
    // SAFETY: a system call on numbers, or on a descriptor that nothing else here owns.
    attempt("become root", call(|| i64::from(unsafe { libc::setuid(0) })));
    // SAFETY: a system call on numbers, or on a descriptor that nothing else here owns.
    attempt("have a new group", call(|| i64::from(unsafe { libc::setgroups(1, &0) })));
    attempt(
        "name the host",
        // SAFETY: a system call on numbers, or on a descriptor that nothing else here owns.
        call(|| i64::from(unsafe { libc::sethostname(c"toklat".as_ptr(), 6) })),
    );
    let leaked: RawFd = variable("LEAKED").parse().unwrap();
    attempt(
        "use what was left open",
        // SAFETY: a system call on numbers, or on a descriptor that nothing else here owns.
        call(|| i64::from(unsafe { libc::fcntl(leaked, libc::F_GETFD) })),
    );
    attempt("dump core", dump());
    tried
}

fn call(of: impl FnOnce() -> i64) -> io::Result<()> {
    match of() {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn non_empty(directory: &str) -> io::Result<()> {
    match std::fs::read_dir(directory)?.count() {
        0 => Err(io::ErrorKind::NotFound.into()),
        _ => Ok(()),
    }
}

/// Connects to a port without a listener. A refusal by the host would prove that it was reached.
fn connect() -> io::Result<()> {
    match std::net::TcpStream::connect("127.0.0.1:9") {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        other => other.map(drop),
    }
}

fn reach(name: &str) -> io::Result<()> {
    let address = SocketAddr::from_abstract_name(name)?;
    UnixStream::connect_addr(&address).map(drop)
}

fn mount() -> io::Result<()> {
    let kind = c"tmpfs".as_ptr();
    // SAFETY: a system call on numbers, or on a descriptor that nothing else here owns.
    call(|| i64::from(unsafe { libc::mount(kind, c"/".as_ptr(), kind, 0, std::ptr::null()) }))
}

/// Two limits against core dumps: either alone might not do if the core pattern is a pipe.
fn dump() -> io::Result<()> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Core);
    let dumpable = rustix::process::dumpable_behavior()?;
    let hidden =
        limit.maximum == Some(0) && dumpable == rustix::process::DumpableBehavior::NotDumpable;
    if hidden { Err(io::ErrorKind::PermissionDenied.into()) } else { Ok(()) }
}
