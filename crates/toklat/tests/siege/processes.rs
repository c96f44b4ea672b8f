//! Processes that crash, come and go, take memory, and put links where the daemon has files.

use std::os::unix::fs::symlink;

use netring::{Open, Pages};
use rustix::process::{Signal, getpid, getuid, kill_process};

use super::attackers::own_directory;
use super::blows::open;
use super::{PART, again, directory, rest};
use harness::frames::frame;

/// Programs that open ports and are killed.
pub fn crash() {
    const CHILD: &str = "TOKLAT_SIEGE_CHILD";

    if std::env::var_os(CHILD).is_some() {
        let _ports: Vec<_> = (0..3).map(|n| open(&format!("vale0:crash{n}"))).collect();
        kill_process(getpid(), Signal::KILL).unwrap();
    }
    let part = std::env::var(PART).unwrap();
    loop {
        let mut child = again(&part).env(CHILD, "1").spawn().unwrap();
        child.wait().unwrap();
        rest();
    }
}

/// Switches that are made by opening a port, and go with it.
pub fn switches() {
    for n in 0u64.. {
        drop(open(&format!("q{}:a", n % 100)));
        rest();
    }
}

/// Large regions, all of whose pages are there when they are given back.
pub fn memory() {
    loop {
        let large = |name| {
            Open::new(name).slots(8192).pages(Pages::Small).directory(directory()).open().ok()
        };
        let mut ports = ["vale0:mem1", "vale0:mem2"].map(large);
        for port in ports.iter_mut().flatten() {
            let region = port.region().unwrap().mapping().clone();
            for at in (0..region.len()).step_by(4096) {
                // Only the owner's part can be written; what lies there is of no use to a switch.
                if let Some(byte) = region.bytes(at, 1) {
                    byte.copy_in(&[0]);
                }
            }
            port.send(1).push(&frame(15, 16, 0));
            let _ = port.flush();
        }
        drop(ports);
        rest();
    }
}

/// Links to the daemon's files in place of the sockets that ports have in a user's directory.
pub fn links() {
    let own = own_directory(getuid().as_raw());
    let targets =
        ["../attach.sock", "../control.sock", "../topology.json", "/etc/passwd", "d.sock"];
    for (n, target) in targets.iter().cycle().enumerate() {
        for name in ["a.sock", "d.sock", "r.sock"] {
            let _ = std::fs::remove_file(own.join(name));
            if !n.is_multiple_of(3) {
                let _ = symlink(target, own.join(name));
            }
        }
        rest();
    }
}
