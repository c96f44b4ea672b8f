//! Children that a thread with descriptors of its own starts: they have what they are handed, and
//! have never had anything else of this process.
#![allow(unsafe_code, reason = "what a child does before it runs its program, and namespaces")]

use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Once;

use rustix::io::FdFlags;
use rustix::thread::{UnshareFlags, unshare_unsafe};
use toklat_jail::Wall;
use toklat_jail::child::{ChildSetup, Confinement, Supervised, start_apart};

/// All tests of this program start children from that thread.
fn apart() {
    static APART: Once = Once::new();
    APART.call_once(|| start_apart().unwrap());
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// What a child says.
fn said(mut command: Command, setup: &ChildSetup) -> String {
    let (child, pipes) = Supervised::start(&mut command, setup).unwrap();
    let said = std::io::read_to_string(pipes.stdout.unwrap()).unwrap();
    assert!(child.wait().unwrap().success());
    said.trim().to_owned()
}

/// Descriptors that each child of another thread would inherit.
fn leaky<const N: usize>() -> [OwnedFd; N] {
    std::array::from_fn(|_| {
        let fd = rustix::pipe::pipe().unwrap().0;
        rustix::io::fcntl_setfd(&fd, FdFlags::empty()).unwrap();
        fd
    })
}

#[test]
fn a_child_has_what_it_is_handed_under_the_same_numbers_and_never_had_more() {
    apart();
    // One of the first numbers after the start is that of the thread's own socket.
    let (given, strangers) = (leaky::<8>(), leaky::<8>());
    let setup = given.iter().fold(ChildSetup::new(), |setup, fd| setup.with(fd.as_fd()));
    let mut command = shell("ls -l /proc/$$/fd; true");
    // By pipes, not by numbers: the thread's own descriptors may have the same ones.
    let pipe = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).map_or(0, |stat| stat.st_ino);
    let pipes = strangers.each_ref().map(|fd| pipe(fd.as_fd()));
    let never = move || {
        // SAFETY: the call only looks, whether there is one or not.
        let has = |fd: i32| pipes.contains(&pipe(unsafe { BorrowedFd::borrow_raw(fd) }));
        if (3..256).any(has) { Err(rustix::io::Errno::EXIST.into()) } else { Ok(()) }
    };
    // SAFETY: between fork and exec the child only makes system calls.
    unsafe { command.pre_exec(never) };
    let said = said(command, &setup);
    let place = |fd: &OwnedFd| {
        let number = fd.as_raw_fd();
        let link = std::fs::read_link(format!("/proc/self/fd/{number}")).unwrap();
        format!("{number} -> {}", link.display())
    };
    let mut expected: Vec<String> = given.iter().map(place).collect();
    let shown = said.lines().filter_map(|line| {
        let (words, link) = line.split_once(" -> ")?;
        let number: i32 = words.split(' ').next_back()?.parse().ok()?;
        (number > 2).then(|| format!("{number} -> {link}"))
    });
    let mut lines: Vec<String> = shown.collect();
    expected.sort();
    lines.sort();
    assert_eq!(lines, expected, "{said}");
}

#[test]
fn standard_streams_are_pipes_and_failures_are_told() {
    apart();
    let mut command = shell("cat; echo wrong >&2; exit 7");
    command.stdin(Stdio::piped()).stderr(Stdio::piped());
    let (child, pipes) = Supervised::start(&mut command, &ChildSetup::new()).unwrap();
    pipes.stdin.unwrap().write_all(b"hello").unwrap();
    let (mut said, mut wrong) = (String::new(), String::new());
    pipes.stdout.unwrap().read_to_string(&mut said).unwrap();
    pipes.stderr.unwrap().read_to_string(&mut wrong).unwrap();
    assert_eq!((&*said, &*wrong), ("hello", "wrong\n"));
    assert_eq!(child.wait().unwrap().code(), Some(7));
    let none = Supervised::start(&mut Command::new("/no/program"), &ChildSetup::new());
    assert_eq!(none.unwrap_err().kind(), std::io::ErrorKind::NotFound);
    let each = |n: usize| {
        std::thread::spawn(move || {
            for _ in 0..5 {
                assert_eq!(said_number(n), n.to_string());
            }
        })
    };
    let all: Vec<_> = (0..4).map(each).collect();
    all.into_iter().for_each(|thread| thread.join().unwrap());
}

fn said_number(n: usize) -> String {
    said(shell(&format!("echo {n}")), &ChildSetup::new())
}

#[test]
fn a_child_starts_in_the_network_and_the_process_namespace_that_it_is_to_have() {
    let test = "a_child_starts_in_the_network_and_the_process_namespace_that_it_is_to_have";
    apart();
    if !rustix::process::geteuid().is_root() {
        return harness::skip(test, "only root may make namespaces");
    }
    let other = std::thread::spawn(|| {
        // SAFETY: the table of descriptors is not among these flags.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
        std::fs::File::open("/proc/thread-self/ns/net").unwrap()
    });
    let network = other.join().unwrap();
    let link = |path: &str| std::fs::read_link(path).unwrap().display().to_string();
    let (its, own) = (format!("/proc/self/fd/{}", network.as_raw_fd()), "/proc/self/ns/net");
    let look = "readlink /proc/self/ns/net";
    let setup = ChildSetup::new().in_network(network.as_fd());
    assert_eq!(said(shell(look), &setup), link(&its));
    assert_eq!(said(shell(look), &ChildSetup::new()), link(own), "later children are here");
    let confinement = Confinement::new().with_own_processes();
    let confinement = confinement.with_files(&[Path::new("/")], &[]).with_calls(false);
    let started =
        Supervised::start_confined(&mut shell("echo $$"), &ChildSetup::new(), confinement);
    let (child, pipes, walls) = started.unwrap();
    assert_eq!(std::io::read_to_string(pipes.stdout.unwrap()).unwrap(), "1\n");
    assert!(child.wait().unwrap().success() && walls.stands(Wall::ProcessNamespace), "{walls:?}");
    assert!(walls.stands(Wall::SystemCalls), "{walls:?}");
    assert_eq!(walls.stands(Wall::LandlockFiles), toklat_jail::landlock::is_available());
    assert_ne!(said(shell("echo $$"), &ChildSetup::new()), "1", "later children are here");
}
