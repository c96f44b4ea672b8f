//! The Linux driver `guest-driver/linux` in virtual machines, on cards that ports emulate.
//!
//! The driver uses a status block, or combines doorbells without one. Its guest exchanges frames
//! with another guest, with offloads. The driver can be removed and loaded again under traffic, and
//! does not notice the end of a data process.

use std::time::Duration;

use serde_json::json;
use vm::guest;

use harness::guests::{Guest, can_emulate};
use harness::{Daemon, kill_process, skip};

const CARDS: [&str; 2] = ["82540em", "82574l"];

/// True if all is here; else the test is skipped.
fn can_drive(test: &str) -> bool {
    if !can_emulate(test) {
        return false;
    }
    let has = guest::find().is_ok_and(|dir| guest::has_driver(&dir));
    if !has {
        skip(test, "the test guest has no toklat_e1000; cargo xtask guest says why");
    }
    has
}

fn switch() -> Daemon {
    let daemon = Daemon::start();
    assert_eq!(daemon.ask("POST", "/v1/switches", &json!({ "name": "vale0" })).0, 201);
    daemon
}

/// A guest that serves, with a VLAN too.
fn server(daemon: &Daemon) -> Guest {
    let serve = format!("vlan eth0 7 10.7.0.1/24; {}", guest::SERVE);
    let mut server = Guest::boot(daemon, "a", 1, &[], &serve);
    server.says("toklat-guest: ready");
    server
}

/// A guest with our driver, which reaches the other one first.
fn client(daemon: &Daemon, card: &str, parameters: &str, commands: &str) -> Guest {
    let append = format!("toklat.driver=toklat {parameters}");
    let commands = format!("{} && {commands}; sleep 1", guest::reach("10.0.0.1"));
    Guest::boot(daemon, "b", 2, &["--nic", card, "--csb", "--append", &append], &commands)
}

/// Returns the number at the end of a line such as `     send_doorbells: 12`.
fn number(line: &str) -> u64 {
    line.rsplit(' ').next().and_then(|number| number.trim().parse().ok()).expect(line)
}

/// Measures what frames cost, and checks that they arrive. A server of iperf3 may not be ready
/// again at once.
const PASS: &str = "flow() { iperf3 -c 10.0.0.1 -t 1 $* >/dev/null || { sleep 1; iperf3 -c 10.0.0.1 -t 1 $* >/dev/null; }; }; \
    readlink /sys/class/net/eth0/device/driver; ping -c 3 -s 1400 10.0.0.1 | grep received; \
    flow --bidir && ethtool -K eth0 tso off && flow && ethtool -K eth0 tx off rx off && flow --bidir && \
    vlan eth0 7 10.7.0.2/24 && ping -c 2 -s 1400 10.7.0.1 >/dev/null && \
    ethtool -K eth0 rxvlan off && ping -c 2 -s 1400 10.7.0.1 >/dev/null && ethtool -S eth0 | grep send_doorbells; \
    pktgen 10.0.0.1 $(ip neigh show 10.0.0.1 dev eth0 | tr -s ' ' | cut -d' ' -f3) 60 32 1; ethtool -S eth0";

#[test]
fn our_driver_of_the_82540em_passes_frames_and_leaves_doorbells_out() {
    pass_frames(CARDS[0], "our_driver_of_the_82540em_passes_frames_and_leaves_doorbells_out");
}

#[test]
fn our_driver_of_the_82574l_passes_frames_and_leaves_doorbells_out() {
    pass_frames(CARDS[1], "our_driver_of_the_82574l_passes_frames_and_leaves_doorbells_out");
}

fn pass_frames(card: &str, test: &str) {
    if !can_drive(test) {
        return;
    }
    let daemon = switch();
    let _server = server(&daemon);
    for (parameters, block) in [("", 2), ("toklat_e1000.csb=0", 0)] {
        let mut client = client(&daemon, card, parameters, PASS);
        client.says("/toklat_e1000");
        client.says(" 0% packet loss");
        let before = number(&client.says("send_doorbells: "));
        let sent = client.says("\"sent\": ");
        let sent = sent.trim_start_matches("{\"sent\": ").split(',').next().unwrap().to_owned();
        let doorbells = number(&client.says("send_doorbells: "));
        assert_eq!(number(&client.says("status_block: ")), block, "{card} {parameters}");
        assert_eq!(number(&client.says("status_block_fault: ")), 0);
        client.succeeds();
        // Bursts of 32 frames need one doorbell each at most, and one when the ring is full.
        let sent: u64 = sent.parse().expect("a number of frames");
        let rung = doorbells - before;
        assert!(sent > 0 && rung < 1000 + sent / 8, "{rung} doorbells for {sent} frames");
    }
}

#[test]
fn our_driver_is_taken_apart_and_put_together_under_traffic() {
    if !can_drive("our_driver_is_taken_apart_and_put_together_under_traffic") {
        return;
    }
    let daemon = switch();
    let _server = server(&daemon);
    let commands = "dmesg -c >/dev/null; (while :; do pkt udp 10.0.0.1 9 64 1 >/dev/null 2>&1; done) & \
        for i in 1 2 3 4; do ethtool -G eth0 tx $((64 * i)) rx $((72 * i)) && sleep 0.3 && \
        ip link set eth0 down && sleep 0.1 && ip link set eth0 up && sleep 0.3 && \
        ip link set eth0 mtu $((1500 + 100 * i)) || exit 1; done; kill %1; \
        ip link set eth0 down; rmmod toklat_e1000 && insmod /lib/modules/toklat_e1000.ko && \
        ip link set eth0 up && ip addr add 10.0.0.2/24 dev eth0 && sleep 0.5 && \
        ping -c 3 10.0.0.1 | grep received && echo complaints: $(dmesg | grep -ciE 'bug:|warning:|nothing is sent'); echo toklat-guest: over";
    for card in CARDS {
        let mut client = client(&daemon, card, "", commands);
        client.says(" 0% packet loss");
        assert_eq!(number(&client.says("complaints: ")), 0, "{card}");
        client.says("toklat-guest: over");
        client.succeeds();
    }
}

#[test]
fn a_killed_data_process_is_a_pause_to_our_driver() {
    if !can_drive("a_killed_data_process_is_a_pause_to_our_driver") {
        return;
    }
    for card in CARDS {
        let daemon = switch();
        let _server = server(&daemon);
        let commands = "sleep 0.3; iperf3 -c 10.0.0.1 -t 6 --bidir >/dev/null && ping -c 2 10.0.0.1 && \
            ethtool -S eth0; echo toklat-guest: over";
        let mut client = client(&daemon, card, "", commands);
        client.says("toklat-guest: reached");
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(1100));
            kill_process(daemon.data_process("vale0"));
        }
        client.says(" 0% packet loss");
        assert_eq!(number(&client.says("resets: ")), 0, "{card}");
        assert_eq!(number(&client.says("status_block: ")), 2, "{card}");
        client.says("toklat-guest: over");
        client.succeeds();
    }
}
