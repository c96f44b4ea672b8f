//! Users of netmap's interface who do not trust each other: what one makes, holds or waits for
//! costs the others nothing, and is refused by number. The messages are those of the library.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use netmap::abi::{PoolsInfo, Register, ValeAttach, name_of, option, reqtype};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use serde_json::json;
use shmem::{Memfd, Pages};
use zerocopy::{FromBytes, FromZeros};

use harness::netmap::{Program, all, ask, status};
use harness::users::{as_user, may_be_others};
use harness::{Daemon, wait_until};

const GREEDY: u32 = 4001;
const OTHER: u32 = 4002;

/// Starts a program of another user.
fn start(daemon: &Daemon, uid: u32) -> Program {
    try_to_start(daemon, uid).unwrap()
}

fn try_to_start(daemon: &Daemon, uid: u32) -> Result<Program, Errno> {
    as_user(uid, || Program::connect(daemon.dir()))
}

fn usage(daemon: &Daemon, uid: u32, what: &str) -> u64 {
    let info = daemon.get("/v1/quotas");
    let users = info["users"].as_array().unwrap();
    let user = users.iter().find(|user| user["uid"] == uid);
    user.map_or(0, |user| user["usage"][what].as_u64().unwrap())
}

/// Objective: a user has 64 persistent ports, which stay when the program ends, and root as many as
/// it likes. Root sees whose they are, and removes them; DELIF removes the user's own.
#[test]
fn regression_a_user_makes_64_persistent_ports_and_root_removes_them() {
    if !may_be_others("regression_a_user_makes_64_persistent_ports_and_root_removes_them") {
        return;
    }
    let mut daemon = Daemon::start_for_all(&[]);
    let greedy = start(&daemon, GREEDY);
    let made = (0..).take_while(|n| greedy.new_port(&format!("s{n}"), 0).is_ok()).count();
    assert_eq!((made, greedy.new_port("more", 0).err()), (64, Some(Errno::NOMEM)));
    assert!(daemon.log().contains("has 64 netmap_ports, and may have 64"), "{}", daemon.log());
    assert!(start(&daemon, OTHER).new_port("s0", 0).is_ok(), "the same name");
    let root = start(&daemon, 0);
    (0..70).for_each(|n| _ = root.new_port(&format!("s{n}"), 0).unwrap());
    let attach = ValeAttach { register: all(), ..ValeAttach::new_zeroed() };
    greedy.ask(reqtype::VALE_ATTACH, "vale0:s7", &attach).unwrap();
    drop(greedy);
    daemon.wait_for("the program's descriptor to go", |daemon| {
        usage(daemon, GREEDY, "netmap_objects") == 2 * 64
    });
    let shown = daemon.done(&["netmap", "show"]);
    let line = shown.lines().find(|line| line.starts_with("4001") && line.contains("s7 "));
    assert!(line.is_some_and(|line| line.contains("vale0")), "{shown}");
    daemon.done(&["netmap", "rm", "--user", "4001", "s7"]);
    assert_eq!(usage(&daemon, GREEDY, "netmap_ports"), 63);
    assert_eq!(daemon.ask("DELETE", "/v1/netmap/ports/4001/s7", &json!(null)).0, 404);
    let again = start(&daemon, GREEDY);
    again.new_port("s7", 0).unwrap();
    let none = [0_u8; 0];
    let removed = again.send(&ask(reqtype::VALE_DELIF, "s7", &none), None).unwrap();
    assert_eq!((removed.status, usage(&daemon, GREEDY, "netmap_ports")), (0, 63));
    let refused = &daemon.get("/v1/quotas")["refused"]["netmap_ports"];
    assert_eq!(*refused, 2, "by number");
}

/// Objective: memory that programs lend, and keep by persistent ports, takes descriptors of the
/// daemon up to the user's quota. Others go on to open ports, and root to add switches.
#[test]
fn regression_descriptors_kept_for_a_user_are_counted_and_refused() {
    if !may_be_others("regression_descriptors_kept_for_a_user_are_counted_and_refused") {
        return;
    }
    let mut daemon = Daemon::start_for_all(&["--quota", "netmap_ports=none,descriptors=100"]);
    let mut refused = None;
    for n in 0..200 {
        match lend_and_keep(&daemon, n) {
            Ok(()) => {}
            Err(error) => {
                refused = Some((n, error));
                break;
            }
        }
    }
    let (made, error) = refused.expect("a limit");
    assert!((20..100).contains(&made), "{made} {error}");
    assert!([Errno::NOMEM, Errno::MFILE].contains(&error), "{error}");
    assert!(usage(&daemon, GREEDY, "descriptors") <= 100);
    let other = start(&daemon, OTHER);
    other.register("vale1:p").unwrap();
    daemon.done(&["switch", "add", "vale2"]);
    drop(daemon.open("vale2:p").unwrap());
    for port in daemon.get("/v1/netmap/ports").as_array().unwrap() {
        daemon.done(&["netmap", "rm", "--user", "4001", port["name"].as_str().unwrap()]);
    }
    daemon.wait_for("all to be given back", |daemon| usage(daemon, GREEDY, "descriptors") == 0);
}

/// Makes a region in memory of the program's, which a persistent port keeps when the program ends.
fn lend_and_keep(daemon: &Daemon, n: u32) -> Result<(), Errno> {
    let program = try_to_start(daemon, GREEDY)?;
    let wanted = PoolsInfo { memsize: 1 << 21, buf_total: 300, ..PoolsInfo::default() };
    let geometry = netmap::extmem::geometry(&wanted).unwrap();
    let memory = Memfd::create("lent", geometry.file_size() as usize, Pages::Small).unwrap();
    let small = Register { tx_slots: 2, rx_slots: 2, ..all() };
    let mut request = ask(reqtype::REGISTER, &format!("p{n}{{1"), &small);
    (request.options.given, request.options.extmem) = (1 << option::EXTMEM, wanted);
    let answer = program.send(&request, Some(memory.as_fd()))?;
    // A pipe's parent is in a region of its own, so the memory is refused: a port is in it.
    assert_ne!(answer.status, 0);
    request.name = name_of(&format!("vale0:p{n}"));
    let answer = program.send(&request, Some(memory.as_fd()))?;
    status(&answer)?;
    let bound = Register::read_from_prefix(&answer.body).ok().unwrap().0;
    program.new_port(&format!("kept{n}"), bound.mem_id).map(drop)
}

/// Objective: a user's request whose switch does not answer holds up no other user's.
#[test]
fn regression_a_request_that_waits_for_a_stopped_switch_delays_no_other_user() {
    if !may_be_others("regression_a_request_that_waits_for_a_stopped_switch_delays_no_other_user") {
        return;
    }
    let daemon = Daemon::start_for_all(&[]);
    daemon.apply("[switch.vale0]\n[switch.vale1]");
    let (greedy, other) = (start(&daemon, GREEDY), start(&daemon, OTHER));
    let process = Pid::from_raw(daemon.data_process("vale0")).unwrap();
    rustix::process::kill_process(process, Signal::STOP).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| greedy.register("vale0:p"));
        // Descriptor, region and adapter: the switch is asked next.
        wait_until("the request to be under way", || usage(&daemon, GREEDY, "netmap_objects") >= 3);
        for n in 0..3 {
            assert!(other.list().is_empty(), "{n}");
            other.new_port(&format!("n{n}"), 0).unwrap();
        }
        other.register("vale1:p").unwrap();
        assert!(!waiting.is_finished(), "the stopped switch has answered");
        rustix::process::kill_process(process, Signal::CONT).unwrap();
        // It may have been killed meanwhile, and replaced.
        let _ = waiting.join().unwrap();
    });
}

/// Objective: what strangers have made does not slow down other users' requests, nor do lists show
/// it.
#[test]
fn regression_thousands_of_foreign_ports_are_not_seen_and_cost_nothing() {
    // With two requests for each, a user stays within what is not paced.
    const EACH: u32 = 150;

    if !may_be_others("regression_thousands_of_foreign_ports_are_not_seen_and_cost_nothing") {
        return;
    }
    let daemon = Daemon::start_for_all(&["--quota", "netmap_ports=none"]);
    let other = start(&daemon, OTHER);
    for uid in 5001..5021 {
        let stranger = start(&daemon, uid);
        let region = stranger.new_port("first", 0).unwrap().mem_id;
        let attach = ValeAttach { register: all(), ..ValeAttach::new_zeroed() };
        for n in 0..EACH {
            stranger.new_port(&format!("s{n}"), region).unwrap();
            let name = format!("vale{}:s{n}", n % 50);
            stranger.ask(reqtype::VALE_ATTACH, &name, &attach).unwrap();
        }
        assert_eq!(stranger.list().len(), EACH as usize);
    }
    assert!(other.list().is_empty());
    other.register("vale0:s0").expect("their names are free");
    let time = |act: &dyn Fn()| {
        let once = || {
            let began = Instant::now();
            act();
            began.elapsed()
        };
        (0..10).map(|_| once()).min().unwrap()
    };
    let times = [
        time(&|| assert_eq!(other.list(), ["vale0:s0"])),
        time(&|| drop(start(&daemon, OTHER))),
        time(&|| drop(daemon.get("/v1/switches"))),
    ];
    assert!(times.iter().all(|time| *time < Duration::from_millis(20)), "{times:?}");
}

/// Objective: a name that one user takes is nobody else's trouble, and root's programs do not get
/// this user's memory.
#[test]
fn regression_a_users_ports_take_neither_names_nor_memory_of_others() {
    if !may_be_others("regression_a_users_ports_take_neither_names_nor_memory_of_others") {
        return;
    }
    let daemon = Daemon::start_for_all(&[]);
    let greedy = start(&daemon, GREEDY);
    greedy.new_port("p1", 0).unwrap();
    for uid in [OTHER, 0] {
        let bound = start(&daemon, uid).register("vale0:p1");
        assert!(bound.is_ok(), "{uid}: {bound:?}");
    }
    let theirs = greedy.register("vale0:1").unwrap();
    let root = start(&daemon, 0);
    assert_eq!(root.register("vale0:1").err(), Some(Errno::BUSY));
    let asked = Register { mem_id: theirs.mem_id, ..all() };
    let shared = root.ask(reqtype::REGISTER, "vale0:1", &asked).unwrap();
    assert_eq!(shared.mem_id, theirs.mem_id, "asked for by its number");
    let watch = Register { flags: netmap::abi::flags::ZCOPY_MON, ..all() };
    let monitor = start(&daemon, 0).ask(reqtype::REGISTER, "vale0:1", &watch).unwrap();
    assert_ne!(monitor.mem_id, theirs.mem_id, "copies");
    let watch = start(&daemon, OTHER).ask(reqtype::REGISTER, "vale0:1", &watch);
    assert_eq!(watch.err(), Some(Errno::ACCESS));
}

/// Objective: programs that list the daemon's ports learn the names of their user's and root's.
#[test]
fn regression_the_ports_of_other_users_are_not_named() {
    if !may_be_others("regression_the_ports_of_other_users_are_not_named") {
        return;
    }
    let daemon = Daemon::start_for_all(&[]);
    let open = |uid, name: &str| daemon.open_as(uid, name).unwrap();
    let _ports = [open(GREEDY, "vale0:a"), open(OTHER, "vale0:b"), open(0, "vale1:root")];
    let named = |uid| as_user(uid, || netring::ports(daemon.dir()).unwrap());
    assert_eq!(named(GREEDY), ["vale0:a", "vale1:root"]);
    assert_eq!(named(OTHER), ["vale0:b", "vale1:root"]);
    assert_eq!(named(0), ["vale0:a", "vale0:b", "vale1:root"]);
}
