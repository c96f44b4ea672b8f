//! Confined guests: their walls, and what happens to a guest that tries to cross one.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::manager::{Manager, daemon, fetched, guest, named, state, until};
use crate::trespass::{FORBIDDEN, early};
use harness::users::may_be_others;
use harness::{Daemon, PATIENCE, text};

#[test]
fn each_forbidden_call_ends_its_guest_alone_and_the_manager_names_it() {
    let daemon = daemon();
    let mut manifest = guest(0, "honest", "serve", "");
    for (i, (what, _)) in FORBIDDEN.iter().enumerate() {
        manifest += &guest(i + 1, &format!("g{i}"), what, "restart = \"never\"");
    }
    let _manager = Manager::of(&daemon, &manifest);
    let ended = |all: &[Value]| {
        state(all, "honest") == "running"
            && (0..FORBIDDEN.len()).all(|i| state(all, &format!("g{i}")) == "ended")
    };
    let all = until(&daemon, "the trespassers to end", ended);
    for (i, (what, call)) in FORBIDDEN.iter().enumerate() {
        let end = text(&named(&all, &format!("g{i}"))["last_end"]).to_owned();
        assert!(
            end.starts_with(&format!("tried a forbidden system call: {call} (")),
            "{what}: {end}"
        );
    }
    assert!(fetched(&daemon, "10.0.0.1") > 0);
    assert_eq!(named(&until(&daemon, "the list", |_| true), "honest")["restarts"], 0);
    // The ports of the ended guests are gone.
    let ports: Vec<String> = daemon.ports("vale0").into_iter().map(|(name, _)| name).collect();
    assert_eq!(ports, ["honest"]);
}

#[test]
fn root_s_guest_has_every_wall_and_the_kernel_agrees() {
    let daemon = daemon();
    let _manager = Manager::of(&daemon, &guest(0, "web", "serve", ""));
    let all = until(&daemon, "the guest", |all| state(all, "web") == "running");
    let info = named(&all, "web");
    assert_eq!(info["walls"]["refused"], json!([]), "{info}");
    let standing = info["walls"]["standing"].as_array().unwrap().len();
    let root = rustix::process::geteuid().is_root();
    assert_eq!(standing, if root { 17 } else { 16 }, "{info}");
    let pid = info["pid"].as_u64().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        assert_eq!(field(set), ["0000000000000000"], "{set}");
    }
    assert_eq!((field("NoNewPrivs:"), field("Seccomp:")), (vec!["1".into()], vec!["2".into()]));
    assert_eq!(field("NSpid:").last().unwrap(), "1");
    if root {
        assert!(field("Uid:").iter().all(|uid| uid.parse::<u32>().unwrap() > 60_000), "{status}");
        for name in ["user", "pid", "mnt", "ipc", "uts", "net", "cgroup"] {
            let of = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/{name}")).unwrap();
            assert_ne!(of(&pid.to_string()), of("self"), "{name}");
        }
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
        // The guest has its standard streams, the manager's socket, the memory and the token.
        assert_eq!(open, 6);
    }
    assert!(daemon.done(&["guest", "show", "web"]).contains("system_calls"));
}

#[test]
fn an_ordinary_user_s_guest_is_confined_too() {
    let test = "an_ordinary_user_s_guest_is_confined_too";
    if !may_be_others(test) {
        return;
    }
    const USER: u32 = 4_444;
    let daemon = Daemon::start_for_all(&[]);
    daemon.apply("[switch.vale0]\n");
    let own = tempfile::tempdir().unwrap();
    let id = Some(USER);
    std::os::unix::fs::chown(own.path(), id, id).unwrap();
    let as_user = |args: &[&str]| {
        let mut command = daemon.tool(args);
        command.uid(USER).gid(harness::users::GROUP).env("XDG_RUNTIME_DIR", own.path());
        command
    };
    let args = ["guest", "run", "httpd", "vale0:web", "10.0.0.1/24"];
    let _manager = Manager::start(as_user(&args));
    let start = Instant::now();
    let info = loop {
        let output = as_user(&["guest", "list", "--json"]).output().unwrap();
        let all: Value = serde_json::from_slice(&output.stdout).unwrap();
        if all[0]["state"] == "running" {
            break all[0].clone();
        }
        assert!(start.elapsed() < PATIENCE, "{all:#}");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(info["walls"]["refused"], json!([]), "{info}");
    assert_eq!(info["walls"]["standing"].as_array().unwrap().len(), 16, "{info}");
    assert!(fetched(&daemon, "10.0.0.1") > 0);
    // Guests of other users are not in root's list.
    assert_eq!(daemon.json(&["guest", "list"]), json!([]));
}

#[test]
fn a_guest_that_must_have_all_walls_does_not_serve_without_one() {
    let daemon = daemon();
    // The guest runs in a user namespace that allows no further ones.
    let run = |more: &str| {
        let script = "echo 0 > /proc/sys/user/max_user_namespaces; exec \"$0\" guest run httpd \
                      vale0:web 10.0.0.1/24 --restart never";
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "sh", "-c", &format!("{script} {more}")]);
        command.arg(env!("CARGO_BIN_EXE_toklat")).env("TOKLAT_DIR", daemon.dir());
        command
    };
    let output = run("--require-walls").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("all walls are required, and one is missing"), "{said}");
    assert!(said.contains("user_namespace"), "{said}");
    // Otherwise the guest serves, and reports which walls are missing.
    let _manager = Manager::start(run(""));
    let all = until(&daemon, "the guest", |all| state(all, "web") == "running");
    let refused = named(&all, "web")["walls"]["refused"].to_string();
    assert!(refused.contains("user_namespace"), "{refused}");
}

#[test]
fn a_guest_that_eats_memory_panics_or_lies_ends_alone_and_its_end_is_told() {
    let daemon = daemon();
    let never = "restart = \"never\"";
    let manifest = [
        guest(0, "honest", "serve", ""),
        guest(1, "eat", "eat", "restart = \"never\"\nmemory = \"32MiB\""),
        guest(2, "panic", "panic", never),
        guest(3, "babble", "babble", never),
        guest(4, "lie", "lie", never),
        guest(5, "flood", "flood", never),
    ];
    let _manager = Manager::of(&daemon, &manifest.concat());
    let ended = |all: &[Value]| {
        let ended = ["eat", "panic", "babble", "lie"];
        ended.iter().all(|name| state(all, name) == "ended") && state(all, "honest") == "running"
    };
    let all = until(&daemon, "the others to end", ended);
    let log = |name: &str| daemon.done(&["guest", "logs", name]);
    // By the limit of its private memory, or by its group's if it was in one by then.
    let (log_of_eater, end) = (log("eat"), text(&named(&all, "eat")["last_end"]).to_owned());
    let failed = log_of_eater.contains("memory allocation of 1048576 bytes failed");
    assert!(failed || end.contains("more than its 32.00 MiB of memory"), "{log_of_eater} {end}");
    assert!(log("panic").contains("as it was told to"), "{}", log("panic"));
    for name in ["babble", "lie"] {
        assert!(text(&named(&all, name)["last_end"]).contains("killed"), "{name}: {all:#?}");
    }
    assert!(fetched(&daemon, "10.0.0.1") > 0);
    // The guest that prints without end fills two log files, and no more.
    let path = daemon.dir().join("guests/flood.log");
    let start = Instant::now();
    while std::fs::metadata(path.with_extension("log.1")).is_err() {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(std::fs::metadata(&path).map_or(0, |data| data.len()) <= 1 << 21);
    // It only prints, and never gets to serve.
    assert_eq!(state(&until(&daemon, "the list", |_| true), "flood"), "starting");
    daemon.done(&["guest", "stop", "flood"]);
    let all = until(&daemon, "its end", |all| state(all, "flood") == "ended");
    assert_eq!(named(&all, "flood")["last_end"], "stopped");
}

/// Objective: a guest in a cgroup of its own that needs more memory than it may have is killed
/// alone, the manager says so, and it starts again. No directory is left.
#[test]
fn a_guest_beyond_its_group_s_memory_is_killed_alone_and_the_manager_says_so() {
    let test = "a_guest_beyond_its_group_s_memory_is_killed_alone_and_the_manager_says_so";
    if let Err(error) = jail::cgroup::Groups::new() {
        return harness::skip(test, &format!("no memory cgroup can be made: {error}"));
    }
    let daemon = daemon();
    let manifest =
        guest(0, "eater", "eat when told", "memory = \"32MiB\"") + &guest(1, "honest", "serve", "");
    let manager = Manager::of(&daemon, &manifest);
    let limited = |all: &[Value], name: &str| {
        let walls = named(all, name)["walls"]["standing"].to_string();
        state(all, name) == "running" && walls.contains("memory_group")
    };
    let both = |all: &[Value]| limited(all, "eater") && limited(all, "honest");
    let all = until(&daemon, "the groups", both);
    let walls = named(&all, "eater")["walls"]["standing"].to_string();
    assert!(!walls.contains("memory_limit"), "{walls}");
    let honest = named(&all, "honest")["pid"].as_u64().unwrap();
    let groups = groups_of(honest);
    // The other guest is told by datagrams.
    let deluge = guest(2, "deluge", "deluge", "");
    let file = daemon.dir().join("deluge.toml");
    std::fs::write(&file, deluge).unwrap();
    let deluge = daemon.tool(&["guest", "run", "--file", file.to_str().unwrap()]);
    let deluge = Manager::start(deluge);
    let killed = |all: &[Value]| named(all, "eater")["restarts"].as_u64() > Some(0);
    let all = until(&daemon, "the eater's end", killed);
    drop(deluge);
    let end = text(&named(&all, "eater")["last_end"]);
    assert_eq!(end, "needed more than its 32.00 MiB of memory, and was killed");
    assert_eq!(named(&all, "honest")["pid"].as_u64(), Some(honest));
    assert!(fetched(&daemon, "10.0.0.2") > 0);
    until(&daemon, "another start", |all| limited(all, "eater"));
    daemon.done(&["guest", "stop", "--all"]);
    harness::wait_until("the groups' end", || !groups.exists());
    drop(manager);
}

/// The directory of a manager's groups, of which one has this process.
fn groups_of(pid: u64) -> std::path::PathBuf {
    let own = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let path = own.lines().find_map(|line| {
        let (before, path) = line.split_once(":/")?;
        path.contains("toklat-").then(|| (before.to_owned(), path.to_owned()))
    });
    let (controller, path) = path.unwrap();
    let mounts = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
    let all = mounts.map(|mount| std::path::Path::new(mount).join(&path));
    let dir = all.into_iter().find(|dir| dir.exists());
    dir.unwrap_or_else(|| panic!("{controller} {path}")).parent().unwrap().to_owned()
}

#[test]
fn a_program_that_is_no_guest_ends_before_it_serves() {
    let daemon = daemon();
    let args = ["guest", "run", "/bin/true", "vale0:web", "10.0.0.1/24", "--restart", "never"];
    let (code, _, said) = daemon.run(&args);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("ended before it served"), "{said}");
    let (code, _, said) = daemon.run(&["guest", "run", "/no/program", "vale0:web", "10.0.0.1/24"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("cannot open the program /no/program"), "{said}");
    assert_eq!(daemon.ports("vale0"), []);
}

/// What a guest's program has printed of what it tried before it was sealed.
fn early_of(log: &str) -> std::collections::BTreeMap<String, i64> {
    let line = log.lines().find_map(|line| line.split_once("early: ")?.1.strip_suffix(" end"));
    let pairs = line.unwrap_or_else(|| panic!("{log}")).split_whitespace();
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap();
        (name.to_owned(), value.parse().unwrap())
    };
    pairs.map(pair).collect()
}

/// Objective: before it is sealed, a program starts few processes, writes little and nowhere on a
/// disk, and has neither io_uring nor sockets nor namespaces; it serves afterwards. The program of
/// copies has the same limits, but for the namespaces of its copies.
#[test]
fn regression_a_program_is_bounded_before_it_is_sealed() {
    let daemon = daemon();
    let copies = guest(1, "copies", early::ALL, "count = 2");
    let manifest = guest(0, "alone", early::ALL, "") + &copies;
    let _manager = Manager::of(&daemon, &manifest);
    let names = ["alone", "copies-0", "copies-1"];
    let up = |all: &[Value]| names.iter().all(|name| state(all, name) == "running");
    until(&daemon, "the guests", up);
    const EPERM: i64 = 1;
    for (name, forks) in [("alone", 33), ("copies", 3 * 33)] {
        let log = std::fs::read_to_string(daemon.dir().join(format!("guests/{name}.log")));
        let did = early_of(&log.unwrap());
        for call in ["uring", "packet", "unix"] {
            assert_eq!(did[call], EPERM, "{name}: {call}");
        }
        assert_ne!(did["remount"], 0, "{name}: a mount is written to again");
        assert!(did["bytes"] <= 1 << 20, "{name}: {did:?}");
        assert!((1..=forks).contains(&did["forks"]), "{name}: {did:?}");
        if name == "alone" {
            assert_eq!(did["namespace"], EPERM, "{did:?}");
        }
    }
    assert!(fetched(&daemon, "10.0.0.1") > 0);
}

/// Objective: a program that says that another guest is its copy harms that guest in no way; nor
/// does one whose copy never comes, or has the number 0, keep the manager from ending.
#[test]
fn regression_a_copy_is_the_process_that_the_kernel_names() {
    let daemon = daemon();
    let victim = daemon.dir().join("victim");
    let app = std::env::current_exe().unwrap();
    let liar = |name: &str, what: &str, file: &str, i: u32| {
        format!(
            "[guest.{name}]\napp = {app:?}\nargs = [{what:?}, {file:?}]\ncount = 2\n\
             port = \"vale0:{name}\"\naddress = \"10.0.0.{i}/24\"\nslots = 64\n"
        )
    };
    let honest = guest(0, "honest", "serve", "");
    let lies = liar("liar", early::LIE, victim.to_str().unwrap(), 10);
    let zero = liar("zero", early::LIE, "/no/file", 20);
    let none = liar("none", early::NONE, "", 30);
    // The liar waits for its ports, and so for the number in the file.
    let manager = Manager::of(&daemon, &(honest + &lies + &zero + &none));
    let all = until(&daemon, "the guest", |all| state(all, "honest") == "running");
    let pid = named(&all, "honest")["pid"].as_u64().unwrap();
    std::fs::write(&victim, pid.to_string()).unwrap();
    let tried = |all: &[Value]| named(all, "liar-0")["restarts"].as_u64() > Some(2);
    until(&daemon, "the lies", tried);
    daemon.done(&["guest", "stop", "liar-0", "liar-1"]);
    let all = until(&daemon, "its end", |all| state(all, "liar-0") == "ended");
    let info = named(&all, "honest");
    assert_eq!((info["pid"].as_u64(), &info["restarts"]), (Some(pid), &json!(0)), "{all:#?}");
    assert!(fetched(&daemon, "10.0.0.1") > 0);
    assert!(manager.ends_by_itself(Duration::from_secs(10)), "it is deaf to SIGTERM");
}
