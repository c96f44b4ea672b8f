//! A data process within a test's process.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub mod client;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Command as Program, ExitStatus};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use shmem::{Memfd, Pages};
use toklat_dataplane::config::{Attachment, Policy, PortConfig, WorkerConfig};
use toklat_dataplane::control::{self, Answer, Command};
use toklat_dataplane::{SwitchConfig, process, state};

const CHILD: &str = "TOKLAT_PROCESS_TEST_CHILD";

/// Runs the test of this name again, in a process that may be confined. `None` in that process.
pub fn in_child(test: &str) -> Option<ExitStatus> {
    in_child_with(test, &[])
}

/// Like [`in_child`], with these environment variables.
pub fn in_child_with(test: &str, variables: &[(&str, &str)]) -> Option<ExitStatus> {
    if std::env::var_os(CHILD).is_some() {
        return None;
    }
    let mut child = Program::new(std::env::current_exe().unwrap());
    child.args(["--exact", test, "--nocapture"]).env(CHILD, "1").env("RUST_BACKTRACE", "1");
    child.envs(variables.iter().copied());
    // The child's tally of tests must not mix with ours.
    child.stdout(std::process::Stdio::null());
    Some(child.status().unwrap())
}

/// A data process in a thread of this one, and a supervisor's connection to it.
pub fn start() -> (std::thread::JoinHandle<()>, OwnedFd) {
    start_with(1)
}

/// Like [`start`], with this many workers.
pub fn start_with(workers: usize) -> (std::thread::JoinHandle<()>, OwnedFd) {
    let workers = vec![WorkerConfig::default(); workers];
    let config = SwitchConfig { max_ports: 4, workers, ..SwitchConfig::default() };
    let (thread, connection, _) = start_as(config);
    (thread, connection)
}

/// Like [`start`], with this configuration; returns the state memory, too.
pub fn start_as(config: SwitchConfig) -> (std::thread::JoinHandle<()>, OwnedFd, state::State) {
    let socket = || {
        let kind = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        rustix::net::socket_with(AddressFamily::UNIX, kind.0, kind.1, None).unwrap()
    };
    let (listener, connection) = (socket(), socket());
    let name = format!("toklat-process-test-{}", std::process::id());
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    rustix::net::bind(&listener, &address).unwrap();
    rustix::net::listen(&listener, 1).unwrap();
    rustix::net::connect(&connection, &address).unwrap();
    let memory = Memfd::create("state", state::file_size(&config), Pages::Small).unwrap();
    let state = state::State::map(&memory, &config).unwrap();
    let run = || {
        process::run(listener, memory.into_fd(), "test".to_owned(), config, jail::Inside::outside())
            .unwrap()
    };
    let thread = std::thread::spawn(run);
    let hello = ask(&connection, &Command::Hello { version: control::VERSION }, &[]);
    assert!(matches!(hello, Answer::Hello { .. }));
    (thread, connection, state)
}

pub fn ask(connection: &OwnedFd, command: &Command, descriptors: &[BorrowedFd<'_>]) -> Answer {
    control::send(connection, command, descriptors).unwrap();
    loop {
        match control::receive(connection).unwrap().0 {
            // Said unasked.
            Answer::Keep { .. } | Answer::Forget { .. } => {}
            answer => return answer,
        }
    }
}

/// Adds port number `id`, attached to `file`.
pub fn add(connection: &OwnedFd, id: u16, attachment: Attachment, file: &OwnedFd) {
    let name = format!("p{id}");
    let config =
        PortConfig { name, policy: Policy::default(), worker: None, attachment, uid: 0, pid: None };
    let command = Command::AddPort { id, config, resume: false };
    let answer = ask(connection, &command, &[file.as_fd()]);
    assert!(matches!(answer, Answer::Added { .. }), "{answer:?}");
}
