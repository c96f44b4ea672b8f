//! Memory that guests and clients lend: limits for each port and for all, and the data process's
//! score for the kernel's OOM killer.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use dataplane::attach::virtio::message::code;
use netring::{Open, OpenError, Port};
use nic::virtio::Features;
use rustix::io::Errno;
use serde_json::{Value, json};

use harness::frames::frame;
use harness::front_end::{FrontEnd, MEMORY, USER, ask, memfd, say, words};
use harness::users::{as_user, may_be_others, refusal};
use harness::{Daemon, PATIENCE, small};

const TIB: u64 = 1 << 40;
const ALICE: u32 = 12_001;

/// The memory of the port's owner that is mapped for the port.
fn memory(daemon: &Daemon, port: &str) -> Value {
    daemon.get(&format!("/v1/switches/vale0/ports/{port}"))["memory"].clone()
}

fn vhost_user(ports: impl IntoIterator<Item = String>) -> String {
    let port = |name| format!("[switch.vale0.port.{name}]\nkind.vhost_user = {{}}\n");
    ports.into_iter().map(port).collect()
}

/// The size of a process's address space.
fn address_space(pid: i32) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    statm.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096
}

/// Sends frames from one guest to another until one arrives.
fn until_a_frame_arrives(a: &mut FrontEnd, b: &mut FrontEnd) {
    let started = std::time::Instant::now();
    while b.receive().is_empty() {
        a.send(&frame(1, 2, 1));
        assert!(started.elapsed() < PATIENCE, "no frame arrives");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Objective: front ends with the largest possible offsets and sizes are refused at a limit, and
/// other guests are served.
#[test]
fn regression_greedy_front_ends_do_not_stop_other_guests() {
    const GREEDY: usize = 64;
    let mut daemon = Daemon::start();
    let names = (0..GREEDY).map(|n| format!("g{n}")).chain(["a".to_owned(), "b".to_owned()]);
    daemon.apply(&vhost_user(names));
    let connect =
        |name: &str| UnixStream::connect(daemon.dir().join(format!("vale0-{name}.sock"))).unwrap();
    let file = memfd(4 * TIB);
    let greedy: Vec<_> = (0..GREEDY).map(|n| connect(&format!("g{n}"))).collect();
    let mut refused = 0;
    for (n, socket) in greedy.iter().enumerate() {
        let features = ask(socket, code::GET_PROTOCOL_FEATURES, &[], &[]);
        assert!(say(socket, code::SET_PROTOCOL_FEATURES, &words(&[features]), &[]));
        for at in 0..4 {
            let (offset, size) = match n % 2 {
                0 => (3 * TIB + (at << 30), 4096),
                _ => (at << 20, 3 * TIB),
            };
            let region = words(&[0, at * 4 * TIB, size, USER + at * 4 * TIB, offset]);
            refused += ask(socket, code::ADD_MEM_REG, &region, &[file.as_fd()]);
        }
    }
    assert!(refused > GREEDY as u64, "{refused}");
    let guest = |name| FrontEnd::start_on(connect(name), Features::VERSION_1.bits() | 1 << 30);
    let (mut a, mut b) = (guest("a"), guest("b"));
    until_a_frame_arrives(&mut a, &mut b);
    let used = address_space(daemon.data_process("vale0"));
    assert!(used < 65 * TIB, "{} TiB", used / TIB);
    daemon.wait_for("all to be shown", |daemon| memory(daemon, "g63")["refused"] == 4);
    assert_eq!(memory(&daemon, "g0")["refused"], 0);
    assert_eq!(memory(&daemon, "a")["bytes"], MEMORY);
    assert!(daemon.done(&["port", "show", "vale0:g63"]).contains("4 more refused"));
    // The memory that was mapped for them is free again.
    drop(greedy);
    daemon.wait_for("their ports to be vacant", |daemon| {
        memory(daemon, "g1")["bytes"] == 0 && address_space(daemon.data_process("vale0")) < TIB
    });
}

#[test]
fn the_most_memory_of_a_guest_is_set_on_the_switch() {
    let mut daemon = Daemon::start();
    daemon.apply(&vhost_user(["a".to_owned()]));
    let path = daemon.dir().join("vale0-a.sock");
    let add = |socket: &UnixStream, at: u64| {
        let region = words(&[0, at, MEMORY, USER + at, 0]);
        ask(socket, code::ADD_MEM_REG, &region, &[memfd(MEMORY).as_fd()])
    };
    let socket = UnixStream::connect(&path).unwrap();
    let features = ask(&socket, code::GET_PROTOCOL_FEATURES, &[], &[]);
    assert!(say(&socket, code::SET_PROTOCOL_FEATURES, &words(&[features]), &[]));
    daemon.done(&["switch", "set", "vale0", "--max-guest-memory", "2MiB"]);
    assert_eq!([0, 1, 2].map(|at| add(&socket, at * MEMORY)), [0, 0, 1]);
    daemon.wait_for("the refusal to be shown", |daemon| {
        let shown = memory(daemon, "a");
        shown == json!({"bytes": 2 << 20, "mappings": 2, "refused": 1, "refused_by": "port"})
    });
    daemon.wait_for("the remedy to be logged", |d| d.log().contains("--max-guest-memory"));
    daemon.done(&["switch", "set", "vale0", "--max-guest-memory", "3MiB"]);
    assert_eq!(add(&socket, 2 * MEMORY), 0);
    // A successor maps all of the memory again.
    daemon.done(&["upgrade", "vale0"]);
    assert_eq!(add(&socket, 3 * MEMORY), 1);
    daemon.wait_for("all to be mapped again", |daemon| memory(daemon, "a")["mappings"] == 3);
}

/// A region whose buffers take 400 MB of addresses, but no pages.
fn large(daemon: &Daemon, name: &str) -> Result<Port, OpenError> {
    let large = |open: Open| open.extra_buffers(200_000);
    large(small(name)).directory(daemon.dir()).open()
}

#[test]
fn large_regions_of_strangers_are_refused() {
    if !may_be_others("large_regions_of_strangers_are_refused") {
        return;
    }
    let daemon = Daemon::start_for_all(&[]);
    daemon.done(&["switch", "add", "vale0"]);
    let (errno, message) = refusal(as_user(ALICE, || large(&daemon, "vale0:a")));
    assert_eq!(errno, Errno::NOSPC, "{message}");
    assert!(message.contains("max_region_memory"), "{message}");
    daemon.open_as(ALICE, "vale0:a").unwrap();
    large(&daemon, "vale0:root").unwrap();
    daemon.done(&["switch", "set", "vale0", "--max-region-memory", "1GiB"]);
    as_user(ALICE, || large(&daemon, "vale0:b")).unwrap();
}

/// True if processes of ours may be spared: CAP_SYS_RESOURCE is in the effective set, and is the
/// machine's, not that of a user namespace.
fn may_spare() -> bool {
    let users = std::fs::read_to_string("/proc/self/uid_map").unwrap();
    if !users.split_whitespace().eq(["0", "0", "4294967295"]) {
        return false;
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap() >> 24 & 1 == 1
}

#[test]
fn a_data_process_is_spared_when_memory_runs_out() {
    let daemon = Daemon::start();
    daemon.done(&["switch", "add", "vale0"]);
    let score = |pid| std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
    let own = score(std::process::id() as i32).trim().parse::<i32>().unwrap();
    let data_process = score(daemon.data_process("vale0")).trim().parse::<i32>().unwrap();
    // Without the privilege to change it, the score is the same as the daemon's.
    assert_eq!(data_process, if may_spare() { own.min(-900) } else { own });
}
