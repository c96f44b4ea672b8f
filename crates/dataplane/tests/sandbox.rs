//! A data process after its start: it forwards frames, and the kernel refuses all its other calls.
#![allow(unsafe_code, reason = "memory is mapped as no safe code would")]

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::Command as Program;
use std::time::Duration;

use pcap::file::{begin_packet, end_packet, interface, section};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use shmem::{Memfd, Pages};
use toklat_dataplane::attach::buffered::pcap::{PcapReadConfig, PcapWriteConfig};
use toklat_dataplane::control::{Answer, Command};
use toklat_dataplane::process::ProcessError;
use toklat_dataplane::{SwitchConfig, state};

use process::{add, ask, in_child, start};

mod process;

fn file() -> OwnedFd {
    rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap()
}

fn recording(frames: usize) -> OwnedFd {
    let mut bytes = Vec::new();
    section(&mut bytes);
    interface(&mut bytes, None, 0);
    for i in 0..frames {
        let start = begin_packet(&mut bytes, 0, Duration::from_micros(i as u64 * 100), 60, 60);
        bytes.extend([0xff; 60]);
        end_packet(&mut bytes, start);
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

    // Attaching reads one file, starts a thread, and writes the other file.
    let read = PcapReadConfig { repeat: false, speed_percent: 100 }.into();
    add(&connection, 0, PcapWriteConfig { max_bytes: None }.into(), &output);
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

/// Neither fresh memory, nor written memory, nor a mapped file can be made executable.
#[test]
fn a_confined_process_makes_no_memory_executable() {
    if let Some(status) = in_child("a_confined_process_makes_no_memory_executable") {
        return assert!(status.success(), "{status}");
    }
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect};
    let code = file();
    rustix::io::write(&code, &[0xc3; 4096]).unwrap();
    let (_thread, connection) = start();
    let (private, null) = (MapFlags::PRIVATE, std::ptr::null_mut());
    let written = ProtFlags::READ | ProtFlags::WRITE;
    for prot in [ProtFlags::EXEC, written | ProtFlags::EXEC] {
        // SAFETY: fresh mappings at addresses of the kernel's choice.
        let (fresh, files) = unsafe {
            (mmap_anonymous(null, 4096, prot, private), mmap(null, 4096, prot, private, &code, 0))
        };
        assert_eq!((fresh.err(), files.err()), (Some(Errno::PERM), Some(Errno::PERM)), "{prot:?}");
    }
    // SAFETY: a fresh mapping, of which nothing is referred to.
    let memory = unsafe { mmap_anonymous(null, 4096, written, private) }.unwrap();
    for flags in [MprotectFlags::EXEC, MprotectFlags::READ | MprotectFlags::EXEC] {
        // SAFETY: a fresh mapping, as above.
        let refused = unsafe { mprotect(memory, 4096, flags) };
        assert_eq!(refused, Err(Errno::PERM), "{flags:?}");
    }
    // SAFETY: as above; the call takes numbers only.
    let by_key = unsafe { libc::syscall(libc::SYS_pkey_mprotect, memory, 4096, 5, -1) };
    assert_eq!((by_key, std::io::Error::last_os_error().kind()), (-1, ErrorKind::PermissionDenied));
    // SAFETY: the call takes a number, and changes no memory.
    let implied = unsafe { libc::personality(libc::READ_IMPLIES_EXEC as libc::c_ulong) };
    assert_eq!(
        (implied, std::io::Error::last_os_error().kind()),
        (-1, ErrorKind::PermissionDenied)
    );
    let executable = rustix::fs::memfd_create("code", MemfdFlags::CLOEXEC | MemfdFlags::EXEC);
    assert_eq!(executable.err(), Some(Errno::PERM));
    assert_eq!(ask(&connection, &Command::Stop, &[]), Answer::Done);
}

/// As in a container whose own filter refuses further filters.
#[test]
fn a_process_that_cannot_be_confined_does_not_start() {
    let name = "a_process_that_cannot_be_confined_does_not_start";
    if let Some(status) = in_child(name) {
        return assert!(status.success(), "{status}");
    }
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    let rules = [(libc::SYS_seccomp, Vec::new())].into();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch).unwrap();
    let filter: BpfProgram = filter.try_into().unwrap();
    seccompiler::apply_filter(&filter).unwrap();
    let config = SwitchConfig { max_ports: 4, ..SwitchConfig::default() };
    let memory = Memfd::create("state", state::file_size(&config), Pages::Small).unwrap();
    let (listener, _supervisor) = std::os::unix::net::UnixStream::pair().unwrap();
    let ended = toklat_dataplane::process::run(
        listener.into(),
        memory.into_fd(),
        "test".to_owned(),
        config,
        jail::Inside::outside(),
    );
    let error = ended.unwrap_err();
    assert!(matches!(error, ProcessError::Sandbox(_)), "{error}");
    assert!(error.to_string().contains("TOKLAT_SANDBOX=off"), "{error}");
}

/// Objective: of the calls that a process needs, only the needed forms are allowed.
#[test]
fn a_confined_process_has_no_more_of_its_calls_than_it_needs() {
    let name = "a_confined_process_has_no_more_of_its_calls_than_it_needs";
    if let Some(status) = in_child(name) {
        return assert!(status.success(), "{status}");
    }
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::net::sockopt;
    let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let parent = rustix::process::getppid();
    let (_thread, connection) = start();
    let memory = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = rustix::fs::memfd_create("kept", memory).unwrap();
    assert_eq!(fallocate(&memory, FallocateFlags::empty(), 0, (1 << 20) + 1), Err(Errno::PERM));
    assert_eq!(fallocate(&memory, FallocateFlags::empty(), 4096, 4096), Err(Errno::PERM));
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(fallocate(&memory, punch, 0, 4096), Err(Errno::PERM));
    fallocate(&memory, FallocateFlags::empty(), 0, 1 << 20).unwrap();
    let cpus = rustix::thread::sched_getaffinity(None).unwrap();
    assert_eq!(rustix::thread::sched_setaffinity(parent, &cpus), Err(Errno::PERM));
    rustix::thread::sched_setaffinity(None, &cpus).unwrap();
    assert_eq!(sockopt::socket_recv_buffer_size(&ours).err(), Some(Errno::PERM));
    sockopt::socket_type(&ours).unwrap();
    assert_eq!(ask(&connection, &Command::Stop, &[]), Answer::Done);
}

#[test]
fn running_a_program_ends_a_confined_process() {
    if let Some(status) = in_child("running_a_program_ends_a_confined_process") {
        return assert_eq!(status.signal(), Some(libc::SIGSYS), "{status}");
    }
    let (_thread, _connection) = start();
    let _ = std::os::unix::process::CommandExt::exec(&mut Program::new("/bin/true"));
}
