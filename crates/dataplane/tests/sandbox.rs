//! A data process after its start: it forwards, and gets nothing else from the kernel.

use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command as Program, ExitStatus};
use std::time::Duration;

use fabric::Policy;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use rustix::fs::MemfdFlags;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use shmem::{Memfd, Pages};
use toklat_dataplane::config::{Attachment, PortConfig};
use toklat_dataplane::control::{self, Answer, Command};
use toklat_dataplane::{SwitchConfig, process, state};

const CHILD: &str = "TOKLAT_SANDBOX_TEST_CHILD";

/// Runs the test of this name again, in a process that may be confined; `None` in that process.
fn in_child(test: &str) -> Option<ExitStatus> {
    if std::env::var_os(CHILD).is_some() {
        return None;
    }
    let mut child = Program::new(std::env::current_exe().unwrap());
    child.args(["--exact", test, "--nocapture"]).env(CHILD, "1").env("RUST_BACKTRACE", "1");
    Some(child.status().unwrap())
}

/// A data process in a thread of this one, and a supervisor's connection to it.
fn start() -> (std::thread::JoinHandle<()>, OwnedFd) {
    let socket = || {
        let kind = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        rustix::net::socket_with(AddressFamily::UNIX, kind.0, kind.1, None).unwrap()
    };
    let (listener, connection) = (socket(), socket());
    let name = format!("toklat-sandbox-test-{}", std::process::id());
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    rustix::net::bind(&listener, &address).unwrap();
    rustix::net::listen(&listener, 1).unwrap();
    rustix::net::connect(&connection, &address).unwrap();
    let config = SwitchConfig { max_ports: 4, ..SwitchConfig::default() };
    let memory = Memfd::create("state", state::file_size(&config), Pages::Small).unwrap();
    let run = || process::run(listener, memory.into_fd(), "test".to_owned(), config).unwrap();
    let thread = std::thread::spawn(run);
    let hello = ask(&connection, &Command::Hello { version: control::VERSION }, &[]);
    assert!(matches!(hello, Answer::Hello { .. }));
    (thread, connection)
}

fn ask(connection: &OwnedFd, command: &Command, descriptors: &[BorrowedFd<'_>]) -> Answer {
    control::send(connection, command, descriptors).unwrap();
    control::receive(connection).unwrap().0
}

fn add(connection: &OwnedFd, id: u16, attachment: Attachment, file: &OwnedFd) {
    let name = format!("p{id}");
    let config = PortConfig { name, policy: Policy::default(), worker: None, attachment };
    let command = Command::AddPort { id, config, resume: false };
    let answer = ask(connection, &command, &[file.as_fd()]);
    assert!(matches!(answer, Answer::Added { .. }), "{answer:?}");
}

fn file() -> OwnedFd {
    rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap()
}

fn recording(frames: usize) -> OwnedFd {
    let mut bytes = Vec::new();
    let mut writer = PcapWriter::with_header(&mut bytes, PcapHeader::default()).unwrap();
    for i in 0..frames {
        let at = Duration::from_micros(i as u64 * 100);
        writer.write_packet(&PcapPacket::new(at, 60, &[0xff; 60])).unwrap();
    }
    let file = file();
    assert_eq!(rustix::io::write(&file, &bytes).unwrap(), bytes.len());
    file
}

fn size(file: &OwnedFd) -> i64 {
    rustix::fs::fstat(file).unwrap().st_size
}

#[test]
fn a_confined_data_process_forwards_and_opens_nothing() {
    if let Some(status) = in_child("a_confined_data_process_forwards_and_opens_nothing") {
        return assert!(status.success(), "{status}");
    }
    let (input, output) = (recording(100), file());
    let (thread, connection) = start();

    let refused = |error: std::io::Error| assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    refused(std::fs::File::open("/dev/null").unwrap_err());
    refused(std::net::UdpSocket::bind("127.0.0.1:0").unwrap_err());
    refused(std::os::unix::net::UnixDatagram::unbound().unwrap_err());
    refused(Program::new("/bin/true").spawn().unwrap_err());
    std::thread::spawn(|| panic!("a panic, with a backtrace, is survived")).join().unwrap_err();

    // Attaching reads the one file, starts a thread and writes the other.
    let read = Attachment::PcapRead { repeat: false, speed_percent: 100 };
    add(&connection, 0, Attachment::PcapWrite, &output);
    add(&connection, 1, read, &input);
    let whole = 100 * (32 + 60);
    while size(&output) < whole {
        std::thread::sleep(Duration::from_millis(5));
    }
    for id in [1, 0] {
        assert_eq!(ask(&connection, &Command::RemovePort { id }, &[]), Answer::Done);
    }
    assert_eq!(ask(&connection, &Command::Stop, &[]), Answer::Done);
    thread.join().unwrap();
}

#[test]
fn running_a_program_ends_a_confined_process() {
    if let Some(status) = in_child("running_a_program_ends_a_confined_process") {
        return assert_eq!(status.signal(), Some(libc::SIGSYS), "{status}");
    }
    let (_thread, _connection) = start();
    let _ = std::os::unix::process::CommandExt::exec(&mut Program::new("/bin/true"));
}
