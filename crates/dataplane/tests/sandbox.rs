//! A data process after its start: it forwards, and gets nothing else from the kernel.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::Command as Program;
use std::time::Duration;

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use rustix::fs::MemfdFlags;
use toklat_dataplane::config::Attachment;
use toklat_dataplane::control::{Answer, Command};

use process::{add, ask, in_child, start};

mod process;

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
