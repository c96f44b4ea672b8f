//! A daemon is replaced by one of another version, with ports of every kind under traffic.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Program, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dataplane::control::{self, Answer, Command, VERSION};
use harness::frames::{frame, receive, send, until_traffic_flows};
use harness::front_end::FrontEnd;
use harness::namespace::Namespace;
use harness::raw::Socket;
use harness::{Daemon, PATIENCE, is_alive, program, root, skip, wait, wait_until};
use nic::virtio::Features;
use serde_json::json;

/// Where `cargo xtask setup` has built the earlier version; else the test is skipped.
fn base(test: &str) -> Option<PathBuf> {
    let program = root().join("target/base/program");
    if program.join("commit").exists() {
        return Some(program.canonicalize().unwrap());
    }
    let why = std::fs::read_to_string(program.join("reason"));
    skip(
        test,
        &why.unwrap_or_else(|_| "no earlier version in target/base: cargo xtask setup".into()),
    );
    None
}

/// The longest time between two frames of a flow that arrived.
struct Gap {
    last: Instant,
    longest: Duration,
    frames: u64,
}

impl Gap {
    /// Runs a flow until it is told to end: `turn` sends frames, and says how many arrived.
    fn of(end: &AtomicBool, mut turn: impl FnMut() -> usize) -> Self {
        let mut gap = Self { last: Instant::now(), longest: Duration::ZERO, frames: 0 };
        while !end.load(Ordering::Relaxed) {
            let came = turn();
            if came > 0 {
                gap.longest = gap.longest.max(gap.last.elapsed());
                (gap.last, gap.frames) = (Instant::now(), gap.frames + came as u64);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        gap.longest = gap.longest.max(gap.last.elapsed());
        gap
    }
}

/// The number of frames that have a number in them.
fn numbered<'f>(frames: impl IntoIterator<Item = &'f Vec<u8>>) -> usize {
    frames.into_iter().filter(|frame| frame[12..14] == [0x88, 0xb5]).count()
}

/// A program that was written for netmap, on the earlier version.
fn netmap_program(
    daemon: &Daemon,
    base: &Path,
    port: &str,
) -> (Child, BufReader<std::process::ChildStdout>) {
    let program = daemon.dir().join("stay");
    let source = root().join("crates/toklat/tests/programs/netmap/stay.c");
    let built = Program::new("cc").args(["-O1", "-w", "-o"]).arg(&program).arg(source).status();
    assert!(built.expect("a C compiler, cc").success());
    let mut command = Program::new(base.join("toklat"));
    command.env("TOKLAT_DIR", daemon.dir());
    command.env("TOKLAT_PRELOAD", base.join("libtoklat_preload.so"));
    command.args(["run", "--"]).arg(&program).arg(port).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap());
    (child, lines)
}

/// Objective: whoever replaces version 7 by today's keeps all ports.
///
/// Steps: a daemon of commit 7b91426 has a ring client, a guest by vhost-user, a tap and a netmap
/// program under traffic; it is stopped as the package stops it, and today's is started. No port
/// closes, the data process is replaced, and no flow pauses for more than a second. The netmap
/// program sees that its daemon has ended, as after each restart of a daemon, and its name is free.
#[test]
fn ports_of_version_7_are_taken_over_under_traffic() {
    let name = "ports_of_version_7_are_taken_over_under_traffic";
    let Some(base) = base(name) else { return };
    let namespace = match Namespace::new() {
        Ok(namespace) => namespace,
        Err(why) => return skip(name, why),
    };
    let mut daemon = Daemon::start_from(&base.join("toklat"));
    daemon.apply(&format!(
        "[switch.vale0.port.c]\nkind.vhost_user = {{}}\n[switch.vale0.port.d]\nkind.vhost_user = {{}}\n\
         [switch.vale0.port.t]\nkind.tap = {{ ifname = 'tkold', netns = '{}' }}\n[switch.vale1.port.a]",
        namespace.id()
    ));
    let (mut a, mut b) = (daemon.open("vale1:a").unwrap(), daemon.open("vale1:b").unwrap());
    until_traffic_flows(&mut a, &mut b, &mut 0);
    let guest = |port: &str| {
        let socket = daemon.dir().join(format!("vale0-{port}.sock"));
        FrontEnd::start(&socket, Features::VERSION_1 | Features::EVENT_IDX)
    };
    let (mut c, mut d) = (guest("c"), guest("d"));
    let mut e = daemon.open("vale0:e").unwrap();
    let tap = namespace.enter(|| Socket::open("tkold"));
    let (mut stay, mut lines) = netmap_program(&daemon, &base, "vale2:n");
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let old = ["vale0", "vale1", "vale2"].map(|switch| daemon.data_process(switch));

    let (end, seen) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; 3]);
    let note = |flow: usize, frames: usize| {
        seen[flow].fetch_add(frames as u64, Ordering::Relaxed);
        frames
    };
    let frames = || seen.each_ref().map(|seen| seen.load(Ordering::Relaxed));
    let (new, gaps) = std::thread::scope(|scope| {
        let rings = scope.spawn(|| {
            Gap::of(&end, || {
                send(&mut a, &frame(1, 2, 7));
                send(&mut b, &frame(2, 1, 7));
                receive(&mut a);
                note(0, receive(&mut b).len())
            })
        });
        let guests = scope.spawn(|| {
            Gap::of(&end, || {
                c.send(&frame(3, 4, 7));
                d.send(&frame(4, 3, 7));
                c.receive();
                note(1, numbered(&d.receive()))
            })
        });
        let taps = scope.spawn(|| {
            Gap::of(&end, || {
                send(&mut e, &frame(5, 6, 7));
                tap.send(&frame(6, 5, 7));
                receive(&mut e);
                note(2, numbered(&std::iter::from_fn(|| tap.receive()).collect::<Vec<_>>()))
            })
        });
        let flow_on = |since: [u64; 3]| {
            wait_until("frames of each flow", || {
                frames().iter().zip(since).all(|(now, before)| *now > before + 100)
            });
        };
        flow_on([0; 3]);
        daemon.stop(&json!({"leave_data_processes": true}));
        daemon.start_again_from(program());
        let new = ["vale0", "vale1"].map(|switch| daemon.data_process(switch));
        flow_on(frames());
        end.store(true, Ordering::Relaxed);
        (new, [rings, guests, taps].map(|flow| flow.join().unwrap()))
    });

    for (kind, gap) in ["ring", "vhost-user", "tap"].iter().zip(&gaps) {
        println!("{kind}: {} frames, the longest gap {:?}", gap.frames, gap.longest);
        assert!(gap.longest <= Daemon::longest_gap(), "{kind}: {:?}", gap.longest);
        assert!(gap.frames > 200, "{kind}: {} frames", gap.frames);
    }
    assert!(
        old.iter().zip(&new).all(|(old, new)| old != new && !is_alive(*old)),
        "{old:?} {new:?}"
    );
    let replaced = "a data process of an earlier version was replaced";
    assert_eq!(daemon.log().matches(replaced).count(), 3, "{}", daemon.log());
    let mut ports: Vec<_> = daemon.ports("vale0");
    ports.sort();
    let attached = |name: &str| (name.to_owned(), "attached".to_owned());
    assert_eq!(ports, ["c", "d", "e", "t"].map(attached));
    // The program's ends are the daemon's own, and end with it.
    let gone = lines.lines().map_while(Result::ok).find(|line| line == "gone");
    assert!(gone.is_some(), "the program hangs");
    daemon.wait_for("its name to be free", |daemon| daemon.open("vale2:n").is_ok());
    drop(stay.stdin.take());
    assert!(wait(&mut stay, PATIENCE).is_some_and(|status| status.success()));
}

/// Objective: an earlier version takes no later one's ports, and says so.
///
/// Steps: today's daemon is replaced by that of commit 7b91426, which ends the data process that it
/// cannot speak with, names its version, and has a new one; clients open their ports anew.
#[test]
fn version_7_starts_anew_after_a_later_one() {
    let name = "version_7_starts_anew_after_a_later_one";
    let Some(base) = base(name) else { return };
    let mut daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.a]");
    let _a = daemon.open("vale0:a").unwrap();
    let old = daemon.data_process("vale0");
    daemon.stop(&json!({"leave_data_processes": true}));
    daemon.start_again_from(&base.join("toklat"));
    assert_ne!(daemon.data_process("vale0"), old);
    assert!(!is_alive(old));
    let log = daemon.log();
    assert!(log.contains(&format!("version {VERSION}")), "{log}");
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    until_traffic_flows(&mut a, &mut b, &mut 0);
}

/// A version that no toklat has yet.
const FUTURE: u32 = 99;
/// What tells this program to play its data process: the path of its socket.
const PLAYS: &str = "TOKLAT_TEST_FUTURE";

/// This module, as the test runner calls it.
fn module() -> &'static str {
    module_path!().split_once("::").map_or("", |(_, module)| module)
}

/// A data process of a version that is not known: it says so, and knows what never changes. It ends
/// well if it is stopped in order.
fn play_future(path: &str) -> bool {
    let listener = rustix::net::socket_with(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    rustix::net::bind(&listener, &rustix::net::SocketAddrUnix::new(path).unwrap()).unwrap();
    rustix::net::listen(&listener, 8).unwrap();
    println!("ready");
    loop {
        let supervisor = rustix::net::accept(&listener).unwrap();
        while let Ok((command, _)) = control::receive::<Command>(&supervisor) {
            match command {
                Command::Hello { version } => {
                    let walls = json!({"standing": ["a wall of the future"], "more": 1});
                    let hello = json!({"answer": "hello", "version": FUTURE, "switch": "vale0", "walls": walls});
                    control::send(&supervisor, &hello, &[]).unwrap();
                    if version != FUTURE {
                        break;
                    }
                }
                Command::Stop => {
                    control::send(&supervisor, &Answer::Done, &[]).unwrap();
                    return true;
                }
                other => panic!("{other:?} of a later version"),
            }
        }
    }
}

#[test]
fn a_data_process_of_an_unknown_version_is_stopped_in_order_and_named() {
    let name = "a_data_process_of_an_unknown_version_is_stopped_in_order_and_named";
    if let Ok(path) = std::env::var(PLAYS) {
        return assert!(play_future(&path));
    }
    let mut daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.a]");
    daemon.stop(&json!({}));
    let path = daemon.dir().join("vale0.data.sock");
    let mut future = Program::new(std::env::current_exe().unwrap());
    future
        .args(["--exact", &format!("{}::{name}", module()), "--nocapture"])
        .env(PLAYS, &path)
        .stdout(Stdio::piped());
    let mut future =
        jail::parent_death::signal(&mut future, rustix::process::Signal::KILL).spawn().unwrap();
    let lines = BufReader::new(future.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut lines = lines.filter(|line| line.ends_with("ready"));
    assert!(lines.next().is_some(), "it does not listen");
    daemon.start_again();
    let ended = wait(&mut future, PATIENCE).expect("it is not stopped");
    assert!(ended.success(), "it was not stopped in order: {ended}");
    let log = daemon.log();
    let line = log.lines().find(|line| line.contains("cannot be taken over")).expect(&log);
    assert!(line.contains("version=99") && line.contains(&format!("7 to {VERSION}")), "{line}");
    assert!(line.contains("a toklat that is not older"), "{line}");
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    until_traffic_flows(&mut a, &mut b, &mut 0);
}
