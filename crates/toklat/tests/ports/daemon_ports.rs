//! As many ports as a switch may have, within the descriptors that a process may have.

use std::time::Instant;

use harness::frames::until_traffic_flows;
use harness::{Daemon, descriptors};
use rustix::process::{Resource, Rlimit};

/// A full switch.
const PORTS: usize = 4096;

/// The most descriptors that a process may have open.
const LIMIT: u64 = 20_000;

/// A port takes at most three descriptors in the supervisor and in the data process, so 4,096 ports
/// fit the limit.
#[test]
fn a_full_switch_fits_its_descriptors() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    if limit.maximum.is_some_and(|maximum| maximum < LIMIT) {
        return harness::skip(
            "a_full_switch_fits_its_descriptors",
            "fewer than 20,000 descriptors are allowed (ulimit -Hn)",
        );
    }
    // The daemon inherits the limit. This program has only this test, so no other is affected.
    let limit = Rlimit { current: Some(LIMIT), maximum: Some(LIMIT) };
    rustix::process::setrlimit(Resource::Nofile, limit).unwrap();
    let mut daemon = Daemon::start();
    daemon.apply(&format!("[switch.vale0]\nmax_ports = {PORTS}"));
    let data = daemon.data_process("vale0") as u32;
    let before = (descriptors(daemon.pid()), descriptors(data));
    let started = Instant::now();
    let open = |i| {
        let name = format!("vale0:p{i}");
        netring::Open::new(&name)
            .slots(64)
            .pages(netring::Pages::Small)
            .directory(daemon.dir())
            .open()
    };
    let mut ports: Vec<_> = (0..PORTS).map(|i| open(i).unwrap()).collect();
    eprintln!("{PORTS} ports in {:?}", started.elapsed());
    let (a, b) = ports.split_at_mut(1);
    until_traffic_flows(&mut a[0], &mut b[PORTS - 2], &mut 0);
    let used = (descriptors(daemon.pid()) - before.0, descriptors(data) - before.1);
    // A few connections may not be closed yet.
    assert!(used.0 <= 3 * PORTS + 64 && used.1 <= 3 * PORTS + 16, "{used:?} for {PORTS} ports");
    drop(ports);
    daemon.wait_for("descriptors to come back", |daemon| {
        descriptors(daemon.pid()) <= before.0 && descriptors(data) <= before.1
    });
}
