//! What the start of guests costs: them, and the others on their switch.

use std::process::{Command, Stdio};

use rustix::process::{Pid, WaitId, WaitIdOptions};

use super::manager::{Manager, daemon, until};

/// Guests that start at once.
const GUESTS: u64 = 24;

/// With an announcement to all from each, it was some 300 frames.
#[test]
fn regression_frames_that_starting_guests_cause_grow_with_their_number_not_its_square() {
    let daemon = daemon();
    let manifest = format!(
        "[guest.g]\napp = \"echo\"\nport = \"vale0:g\"\naddress = \"10.0.0.1/24\"\n\
         slots = 64\ncount = {GUESTS}\n"
    );
    let _manager = Manager::of(&daemon, &manifest);
    until(&daemon, "all guests serve", |all| {
        all.len() as u64 == GUESTS && all.iter().all(|info| info["state"] == "running")
    });
    let places = || {
        let all = daemon.json(&["fdb", "show", "vale0"]);
        all.as_array().map_or(0, Vec::len) as u64
    };
    harness::wait_until("the switch knows where all are", || places() >= GUESTS);
    let stats = daemon.json(&["stats"]);
    let ports = stats["switches"][0]["ports"].as_array().unwrap();
    let delivered: u64 = ports.iter().map(|port| port["out_frames"].as_u64().unwrap()).sum();
    assert_eq!(ports.len() as u64, GUESTS);
    assert!(delivered <= GUESTS, "{delivered} frames for {GUESTS} guests");
}

/// The pages that a process has touched first, when it has ended. It is started with `words`.
fn pages(words: &[&str]) -> u64 {
    let mut command = Command::new(harness::program());
    command.args(words).env_clear().stdin(Stdio::null());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let (pid, mode) = (Pid::from_child(&child), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
    rustix::process::waitid(WaitId::Pid(pid), mode).unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    assert!(!child.wait().unwrap().success(), "{words:?}");
    // The name in parentheses is the second field, the minor faults are the tenth.
    let (_, rest) = stat.rsplit_once(')').unwrap();
    rest.split_whitespace().nth(7).unwrap().parse().unwrap()
}

/// The tree of all commands takes 268 KiB, which are 67 pages. The same program with a missing word
/// makes the tree, to say what is missing.
#[test]
fn regression_a_guests_program_does_not_pay_for_the_command_line() {
    let least = |words: &[&str]| (0..5).map(|_| pages(words)).min().unwrap();
    let (program, tree) = (least(&["guest-program", "echo"]), least(&["guest-program"]));
    assert!(program + 60 <= tree, "{program} pages for a program, {tree} for the tree");
}
