//! A data process in threads of this one, and what a supervisor needs to talk to it.

use std::os::fd::OwnedFd;
use std::thread::JoinHandle;
use std::time::Duration;

use dataplane::config::SwitchConfig;
use dataplane::control::{self, Answer, ChannelError};
use dataplane::process;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

/// The switch's name.
pub const SWITCH: &str = "fuzz";
/// How long an answer may take on a busy machine before the target fails.
const PATIENCE: Duration = Duration::from_secs(20);

fn socket() -> OwnedFd {
    let kind = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    rustix::net::socket_with(AddressFamily::UNIX, kind.0, kind.1, None).expect("a socket")
}

/// Starts one that keeps its state in this file. Returns where it listens.
pub fn start(config: SwitchConfig, state: OwnedFd) -> (SocketAddrUnix, JoinHandle<()>) {
    let listener = socket();
    let name = format!("toklat-fuzz-{}", std::process::id());
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("a short name");
    rustix::net::bind(&listener, &address).expect("the name is free");
    rustix::net::listen(&listener, 8).expect("it is bound");
    let run = move || {
        let inside = jail::Inside::outside();
        process::run(listener, state, SWITCH.to_owned(), config, inside).expect("it starts");
    };
    (address, std::thread::spawn(run))
}

/// Connects to it.
#[must_use]
pub fn connect(address: &SocketAddrUnix) -> OwnedFd {
    let connection = socket();
    sockopt::set_socket_timeout(&connection, sockopt::Timeout::Recv, Some(PATIENCE))
        .expect("it has one");
    rustix::net::connect(&connection, address).expect("it listens");
    connection
}

/// Receives the next answer. Messages with state to keep are not answers.
///
/// # Errors
/// The connection ended, or there was no answer in time.
pub fn answer(connection: &OwnedFd) -> Result<Answer, ChannelError> {
    loop {
        match control::receive(connection) {
            Ok((Answer::Keep { .. } | Answer::Forget { .. }, _)) => {}
            // The fuzzer's timer.
            Err(ChannelError::Io(rustix::io::Errno::INTR)) => {}
            answer => return answer.map(|(answer, _)| answer),
        }
    }
}
