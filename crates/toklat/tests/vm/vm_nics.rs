//! Network cards that ports emulate, in virtual machines with the drivers that every guest has.
//!
//! A guest reaches another over the switch, both ways, with checksums on; neither notices the end
//! of a data process; QEMU outlives the port.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;
use vm::guest;

use harness::guests::{Guest, MEMORY, PATIENCE, can_emulate, newer_qemu};
use harness::{Daemon, is_alive, kill_process};

/// Models, and the drivers that Linux has for them.
const MODELS: [(&str, &str); 4] = [
    ("82540em", "/e1000"),
    ("82574l", "/e1000e"),
    ("am79c970a", "/pcnet32"),
    ("am79c973", "/pcnet32"),
];

fn switch() -> Daemon {
    let daemon = Daemon::start();
    assert_eq!(daemon.ask("POST", "/v1/switches", &json!({ "name": "vale0" })).0, 201);
    daemon
}

fn state(daemon: &Daemon, port: &str) -> String {
    daemon.get(&format!("/v1/switches/vale0/ports/{port}"))["state"].as_str().unwrap().to_owned()
}

#[test]
fn drivers_of_every_guest_reach_the_switch() {
    if !can_emulate("drivers_of_every_guest_reach_the_switch") {
        return;
    }
    let daemon = switch();
    let mut server = Guest::boot(&daemon, "a", 1, &["--nic", "82574l"], guest::SERVE);
    server.says("toklat-guest: ready");
    let ask = format!(
        "{}; readlink /sys/class/net/eth0/device/driver; ping -c 3 -s 1400 10.0.0.1 | grep received; \
         iperf3 -c 10.0.0.1 -t 1 --bidir && echo toklat-guest: over; sleep 1",
        guest::reach("10.0.0.1")
    );
    for (nic, driver) in MODELS {
        let mut client = Guest::boot(&daemon, nic, 2, &["--nic", nic], &ask);
        client.says(driver);
        client.says(" 0% packet loss");
        client.says("toklat-guest: over");
        client.succeeds();
    }
}

/// Objective: stock drivers behind an IOMMU reach the switch, page by page: what they send the
/// device can only read, and each buffer is mapped for one frame. A successor of the data process
/// has what is mapped. A frame that arrives while a page is mapped or unmapped is dropped, so they
/// ask until they are answered.
#[test]
fn drivers_behind_an_iommu_reach_the_switch() {
    if !can_emulate("drivers_behind_an_iommu_reach_the_switch") {
        return;
    }
    let daemon = switch();
    let mut server = Guest::boot(&daemon, "a", 1, &["--nic", "82574l"], guest::SERVE);
    server.says("toklat-guest: ready");
    let ping = "until ping -c 1 -W 1 -s 1400 10.0.0.1 | grep ' 0% packet loss'; do :; done";
    let ask = format!(
        "{}; readlink /sys/class/net/eth0/device/driver; \
         echo domain: $(cat /sys/class/net/eth0/device/iommu_group/type); \
         {ping}; {ping}; echo toklat-guest: half; {ping}; {ping}; \
         echo faults: $(dmesg | grep -cE 'DMAR:.\\[(DMA|INTR)')",
        guest::reach("10.0.0.1")
    );
    let options = ["--iommu", "--append", "intel_iommu=on iommu=nopt", "--nic"];
    for (nic, driver) in &MODELS[..3] {
        let mut client = Guest::boot(&daemon, nic, 2, &[&options[..], &[nic]].concat(), &ask);
        client.says(driver);
        assert_eq!(client.says("domain: "), "domain: DMA");
        client.says("toklat-guest: half");
        kill_process(daemon.data_process("vale0"));
        assert_eq!(client.says("faults: "), "faults: 0");
        client.succeeds();
    }
}

/// Objective: stock guests of the next Debian release (kernel 6.12 or newer) reach others by virtio
/// and by each card.
///
/// Steps: with each NIC, such a guest asks, pings and sends TCP both ways to a guest of this
/// release.
#[test]
fn guests_with_newer_kernels_reach_the_switch() {
    let test = "guests_with_newer_kernels_reach_the_switch";
    if !can_emulate(test) {
        return;
    }
    let Some(newer) = guest::find().ok().and_then(|dir| guest::with_newer_kernel(&dir)) else {
        return harness::skip(
            test,
            "the test guest with a newer kernel is missing; cargo xtask setup",
        );
    };
    let daemon = switch();
    let mut server = Guest::boot(&daemon, "a", 1, &["--nic", "82574l"], guest::SERVE);
    server.says("toklat-guest: ready");
    let ask = format!(
        "{}; echo toklat-guest: Linux $(uname -r); readlink /sys/class/net/eth0/device/driver; \
         ping -c 3 -s 1400 10.0.0.1 | grep received; \
         iperf3 -c 10.0.0.1 -t 1 --bidir && echo toklat-guest: over; sleep 1",
        guest::reach("10.0.0.1")
    );
    for (nic, driver) in MODELS.into_iter().chain([("virtio", "/virtio_net")]) {
        let options = ["--nic", nic];
        let mut client = Guest::boot_from(Some(&newer), &daemon, nic, 2, &options, &ask);
        let said = client.says("toklat-guest: Linux ");
        let release = said.split_once("Linux ").unwrap().1;
        let numbers: Vec<u32> = release.split('.').map_while(|n| n.parse().ok()).collect();
        assert!(numbers >= vec![6, 12], "{said}");
        client.says(driver);
        client.says(" 0% packet loss");
        client.says("toklat-guest: over");
        client.succeeds();
    }
}

/// Objective: guests whose frames wait for others (`--combine`) lose none, and their last one goes.
///
/// Steps: with each model, a guest asks another one by one, which has each question wait for others
/// that do not come; then both send as fast as they can.
#[test]
fn guests_whose_frames_wait_for_others_lose_none() {
    if !can_emulate("guests_whose_frames_wait_for_others_lose_none") {
        return;
    }
    let daemon = switch();
    let mut server = Guest::boot(&daemon, "a", 1, &["--nic", "82574l"], guest::SERVE);
    server.says("toklat-guest: ready");
    // How long a single frame waits, in microseconds.
    const PAUSE: u64 = 10_000;
    let ask = format!(
        "{}; pkt ask 10.0.0.1 7 64 100; ping -c 3 -s 1400 10.0.0.1 | grep received; \
         iperf3 -c 10.0.0.1 -t 1 --bidir && echo toklat-guest: over; sleep 1",
        guest::reach("10.0.0.1")
    );
    let combine = format!("64,{PAUSE}");
    for (nic, _) in MODELS {
        let mut client = Guest::boot(&daemon, nic, 2, &["--nic", nic, "--combine", &combine], &ask);
        let trips = client.says("us_99");
        let trips: serde_json::Value =
            serde_json::from_str(&trips[trips.find('{').unwrap()..]).unwrap();
        assert_eq!((&trips["round_trips"], &trips["lost"]), (&json!(100), &json!(0)), "{nic}");
        assert!(trips["us_99"].as_f64().unwrap() >= PAUSE as f64, "{nic}: none waited: {trips}");
        client.says(" 0% packet loss");
        client.says("toklat-guest: over");
        client.succeeds();
    }
}

/// Objective: a guest with private memory reaches the switch with the drivers that it has.
///
/// Steps: guests of private memory, which QEMU reads and writes for their cards by messages, ping
/// one another's server with long frames, and answer pings themselves.
#[test]
fn guests_whose_memory_is_private_reach_the_switch() {
    if !can_emulate("guests_whose_memory_is_private_reach_the_switch") {
        return;
    }
    let private = format!("memory-backend-ram,id=private,size={MEMORY}M");
    let private = ["-object", &private, "-machine"];
    let options = |nic| [&["--nic", nic, "--"][..], &private, &["memory-backend=private"]].concat();
    let mut daemon = switch();
    let mut server = Guest::boot(&daemon, "a", 1, &options("82574l"), guest::SERVE);
    server.says("toklat-guest: ready");
    let ask = format!(
        "{}; ping -c 10 -i 0.2 -s 1400 10.0.0.1 | grep received; echo toklat-guest: over; sleep 1",
        guest::reach("10.0.0.1")
    );
    for (nic, _) in MODELS {
        let mut client = Guest::boot(&daemon, nic, 2, &options(nic), &ask);
        client.says(" 0% packet loss");
        client.says("toklat-guest: over");
        client.succeeds();
    }
    daemon.wait_for("the log's line", |daemon| daemon.log().contains("frames go by messages"));
}

#[test]
fn cards_pass_the_tests_that_their_drivers_have_for_them() {
    if !can_emulate("cards_pass_the_tests_that_their_drivers_have_for_them") {
        return;
    }
    let daemon = switch();
    // The tests cover registers, EEPROM, interrupts, loopback and link.
    let test = "until ethtool eth0 | grep -q detected..yes; do sleep 0.1; done; \
        ethtool -t eth0 offline; sleep 1";
    for (nic, _) in &MODELS[..2] {
        let mut guest = Guest::boot(&daemon, nic, 1, &["--nic", nic], test);
        guest.says("The test result is PASS");
        guest.succeeds();
    }
}

#[test]
fn a_killed_data_process_is_a_pause_to_guests() {
    if !can_emulate("a_killed_data_process_is_a_pause_to_guests") {
        return;
    }
    for (nic, _) in &MODELS[..3] {
        let daemon = switch();
        let options = ["--nic", *nic];
        let mut server = Guest::boot(&daemon, "a", 1, &options, guest::SERVE);
        server.says("toklat-guest: ready");
        let ask = format!(
            "{}; iperf3 -c 10.0.0.1 -t 8 >/dev/null && ping -c 2 10.0.0.1 && echo toklat-guest: over; sleep 1",
            guest::reach("10.0.0.1")
        );
        let mut client = Guest::boot(&daemon, "b", 2, &options, &ask);
        client.says("toklat-guest: reached");
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(1100));
            kill_process(daemon.data_process("vale0"));
        }
        client.says("toklat-guest: over");
        assert_eq!(
            (state(&daemon, "a"), state(&daemon, "b")),
            ("attached".into(), "attached".into())
        );
        client.succeeds();
    }
}

#[test]
fn a_port_that_goes_does_not_take_its_guest_along() {
    if !can_emulate("a_port_that_goes_does_not_take_its_guest_along") {
        return;
    }
    for (nic, _) in &MODELS[..3] {
        let mut daemon = switch();
        let options = ["--nic", *nic];
        let mut server = Guest::boot(&daemon, "a", 1, &options, guest::SERVE);
        server.says("toklat-guest: ready");
        let ask = format!("{}; iperf3 -c 10.0.0.1 -t 60", guest::reach("10.0.0.1"));
        let mut client = Guest::boot(&daemon, "b", 2, &options, &ask);
        client.says("toklat-guest: reached");
        std::thread::sleep(Duration::from_secs(1));
        let qemus = [client.qemu(), server.qemu()];
        assert_eq!(daemon.ask("DELETE", "/v1/switches/vale0/ports/b", &json!(null)).0, 204);
        std::thread::sleep(Duration::from_secs(1));
        assert!(
            is_alive(qemus[0]),
            "QEMU did not live through the end of its port: {}",
            client.ends()
        );
        // The guest also survives when the whole daemon goes.
        daemon.stop(&json!({}));
        std::thread::sleep(Duration::from_secs(1));
        assert!(
            is_alive(qemus[1]),
            "QEMU did not live through the end of it all: {}",
            server.ends()
        );
    }
}

#[test]
fn a_port_waits_for_the_next_guest() {
    if !can_emulate("a_port_waits_for_the_next_guest") {
        return;
    }
    let mut daemon = switch();
    let nic = json!({ "model": "82574l" });
    let socket = daemon.dir().join("vale0-b.sock");
    let port = json!({ "name": "b", "kind": { "vfio_user": { "nic": nic } } });
    assert_eq!(daemon.ask("POST", "/v1/switches/vale0/ports", &port).0, 201);
    let mut before = None;
    for round in 0..3 {
        // The first NIC's port has no peer: this test is about the second NIC.
        let device =
            json!({ "driver": "vfio-user-pci", "socket": { "path": socket, "type": "unix" } });
        let device = device.to_string();
        let qemu = newer_qemu().unwrap();
        let more = ["--qemu", &qemu, "--", "-device", &device];
        let mut guest = Guest::boot(&daemon, "a", 1, &more, "while :; do sleep 1; done");
        guest.says("toklat-guest: ready");
        assert_eq!(state(&daemon, "b"), "attached");
        kill_process(guest.qemu());
        drop(guest);
        daemon.wait_for("the port to wait for the next", |daemon| state(daemon, "b") == "vacant");
        let started = Instant::now();
        let fds = |daemon: &Daemon| {
            let pids = [daemon.pid() as i32, daemon.data_process("vale0")];
            pids.map(|pid| std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count))
        };
        // Some of the guest's may be closed a moment after its port is free.
        let more = |now: [usize; 2], then: [usize; 2]| now.iter().zip(then).any(|(n, t)| *n > t);
        while more(fds(&daemon), *before.get_or_insert_with(|| fds(&daemon))) {
            assert!(started.elapsed() < PATIENCE, "descriptors are left behind in round {round}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_card_is_plugged_in_again() {
    if !can_emulate("a_card_is_plugged_in_again") {
        return;
    }
    let mut daemon = switch();
    let dir = daemon.dir().to_owned();
    let port = json!({ "name": "b", "kind": { "vfio_user": { "nic": { "model": "82540em" } } } });
    let add = |daemon: &Daemon| daemon.ask("POST", "/v1/switches/vale0/ports", &port).0;
    assert_eq!(add(&daemon), 201);
    let socket = json!({ "path": dir.join("vale0-b.sock"), "type": "unix" });
    let device =
        json!({ "driver": "vfio-user-pci", "id": "nic1", "bus": "root1", "socket": socket });
    let (device, qmp) = (device.to_string(), dir.join("qmp"));
    let monitor = format!("unix:{},server=on,wait=off", qmp.display());
    let qemu = newer_qemu().unwrap();
    let more = [
        "--qemu",
        &qemu,
        "--",
        "-device",
        "pcie-root-port,id=root1,chassis=1",
        "-device",
        &device,
        "-qmp",
        &monitor,
    ];
    let both = "eth0 /sys/class/net/eth1";
    let watch = "while :; do echo nics $(echo /sys/class/net/*); sleep 0.3; done";
    let mut guest = Guest::boot(&daemon, "a", 1, &more, watch);
    guest.says(both);
    for _ in 0..2 {
        assert_eq!(daemon.ask("DELETE", "/v1/switches/vale0/ports/b", &json!(null)).0, 204);
        assert_eq!(add(&daemon), 201);
        let mut again = Command::new(env!("CARGO_BIN_EXE_toklat"));
        again
            .env("TOKLAT_DIR", &dir)
            .args(["port", "reattach", "vale0:b", "--id", "nic1", "--qmp"]);
        let done = again.arg(&qmp).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        daemon.wait_for("the card", |daemon| state(daemon, "b") == "attached");
        // Earlier output of the guest is older than that.
        std::thread::sleep(Duration::from_secs(1));
        guest.says("eth0 /sys/class/net/lo");
        guest.says(both);
    }
}
