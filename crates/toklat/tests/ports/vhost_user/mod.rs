//! Guests by vhost-user that exchange frames, and go on when the processes that serve them die.

mod hostile;
mod interrupts;
mod sessions;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use nic::virtio::Features;
use serde_json::Value;

use harness::frames::frame;
use harness::front_end::FrontEnd;
use harness::{Daemon, PATIENCE, kill_process};

/// Frames in flight between two guests, at most.
const WINDOW: u64 = 40;
const SPLIT: Features = Features::VERSION_1.union(Features::EVENT_IDX);
const PACKED: Features = SPLIT.union(Features::RING_PACKED);

/// A daemon with ports a, b, ... for guests.
fn daemon(ports: &[&str]) -> Daemon {
    let daemon = Daemon::start();
    let port = |name: &&str| format!("[switch.vale0.port.{name}]\nkind.vhost_user = {{}}\n");
    daemon.apply(&ports.iter().map(port).collect::<String>());
    daemon
}

fn socket(daemon: &Daemon, port: &str) -> PathBuf {
    daemon.dir().join(format!("vale0-{port}.sock"))
}

fn guest(daemon: &Daemon, port: &str, features: Features) -> FrontEnd {
    FrontEnd::start(&socket(daemon, port), features)
}

fn number_of(frame: &[u8]) -> Option<u64> {
    (frame[12..14] == [0x88, 0xb5]).then(|| u64::from_le_bytes(frame[16..24].try_into().unwrap()))
}

fn numbers(guest: &mut FrontEnd) -> Vec<u64> {
    guest.receive().iter().filter_map(|frame| number_of(frame)).collect()
}

/// Sends frames from `a` (station 1) until one arrives at `b` (station 2), and waits for those that
/// are on their way; how long that took.
fn until_frames_flow(a: &mut FrontEnd, b: &mut FrontEnd, number: &mut u64) -> Duration {
    until_frames_flow_from(1, a, b, number)
}

fn until_frames_flow_from(
    station: u8,
    a: &mut FrontEnd,
    b: &mut FrontEnd,
    number: &mut u64,
) -> Duration {
    let (started, first) = (Instant::now(), *number + 1);
    let mut flow = false;
    loop {
        if !flow {
            b.send(&frame(2, station, 0));
            *number += u64::from(a.send(&frame(station, 2, *number + 1)));
        }
        std::thread::sleep(Duration::from_millis(1));
        numbers(a);
        let arrived = numbers(b);
        if arrived.contains(number) {
            return started.elapsed();
        }
        flow |= arrived.iter().any(|n| (first..=*number).contains(n));
        assert!(started.elapsed() < PATIENCE, "no frames flow");
    }
}

fn state(daemon: &Daemon, port: &str) -> String {
    daemon.get(&format!("/v1/switches/vale0/ports/{port}"))["state"].as_str().unwrap().to_owned()
}

/// Returns the number of mappings of the port owner's memory.
fn mappings(daemon: &Daemon, port: &str) -> u64 {
    daemon.get(&format!("/v1/switches/vale0/ports/{port}"))["memory"]["mappings"].as_u64().unwrap()
}

#[test]
fn guests_exchange_frames_in_split_and_packed_queues() {
    let daemon = daemon(&["a", "b"]);
    for (one, other) in [(SPLIT, SPLIT), (PACKED, PACKED), (PACKED, SPLIT)] {
        let (mut a, mut b) = (guest(&daemon, "a", one), guest(&daemon, "b", other));
        let mut number = 0;
        until_frames_flow(&mut a, &mut b, &mut number);
        let mut seen = number;
        let last = number + 2000;
        let started = Instant::now();
        while seen < last {
            while number < last && number < seen + 40 && a.send(&frame(1, 2, number + 1)) {
                number += 1;
            }
            for got in numbers(&mut b) {
                assert_eq!(got, seen + 1, "lost or doubled");
                seen = got;
            }
            assert!(started.elapsed() < PATIENCE, "{seen} of {last}");
        }
        assert_eq!(state(&daemon, "a"), "attached");
    }
}

#[test]
fn a_killed_data_process_is_not_noticed_by_guests() {
    for features in [SPLIT, PACKED] {
        let mut daemon = daemon(&["a", "b"]);
        let (mut a, mut b) = (guest(&daemon, "a", features), guest(&daemon, "b", features));
        let mut number = 0;
        until_frames_flow(&mut a, &mut b, &mut number);
        let (mut seen, mut repeated, mut lost) = (number, 0, 0);
        for round in 1..=4 {
            if round == 3 {
                // The next supervisor, too, knows what is kept.
                daemon.kill();
                daemon.start_again();
            }
            kill_process(daemon.data_process("vale0"));
            let (started, before) = (Instant::now(), number);
            let (mut back, mut heard, mut window) = (None, Instant::now(), seen);
            while back.is_none_or(|at: Instant| at.elapsed() < Duration::from_millis(50)) {
                while number < window + WINDOW && a.send(&frame(1, 2, number + 1)) {
                    number += 1;
                }
                for got in numbers(&mut b) {
                    repeated += u64::from(got <= seen);
                    lost += got.saturating_sub(seen + 1);
                    seen = seen.max(got);
                    (heard, window) = (Instant::now(), seen);
                    if started.elapsed() > Duration::from_millis(5) && got > before {
                        back.get_or_insert(heard);
                    }
                }
                if heard.elapsed() > Duration::from_millis(100) {
                    // Frames in flight may have been lost: one more is sent, which will show it.
                    (heard, window) = (Instant::now(), (number + 1).saturating_sub(WINDOW));
                }
                let log = || daemon.log();
                assert!(started.elapsed() < PATIENCE, "no frames after kill {round}: {}", log());
                std::thread::yield_now();
            }
        }
        // The next supervisor has seen the last two deaths.
        assert_eq!(daemon.gaps_in_time("vale0"), 2);
        let limit = if features == PACKED { 0 } else { 4 * WINDOW };
        assert!(repeated <= limit, "{repeated} frames came twice");
        assert!(lost <= 4 * WINDOW, "{lost} frames were lost by four deaths");
        assert_eq!(state(&daemon, "a"), "attached");
    }
}

#[test]
fn regression_an_upgrade_loses_nothing_to_ports_that_come_back_last() {
    for features in [SPLIT, PACKED] {
        let daemon = daemon(&["a", "b"]);
        let (mut a, mut b) = (guest(&daemon, "a", features), guest(&daemon, "b", features));
        let mut number = 0;
        until_frames_flow(&mut a, &mut b, &mut number);
        let mut seen = number;
        for _ in 0..3 {
            std::thread::scope(|scope| {
                let upgrade = scope.spawn(|| daemon.ask("POST", "/v1/upgrade", &Value::Null));
                let (mut last, started) = (None, Instant::now());
                while last.is_none_or(|last| seen < last) {
                    let sender = || daemon.counters("a");
                    assert!(started.elapsed() < PATIENCE, "{seen} of {number}: {}", sender());
                    if last.is_none() && upgrade.is_finished() {
                        last = Some(number + 1000);
                    }
                    while number < seen + WINDOW && a.send(&frame(1, 2, number + 1)) {
                        number += 1;
                    }
                    for got in numbers(&mut b) {
                        assert_eq!(got, seen + 1, "lost or doubled");
                        seen = got;
                    }
                    std::thread::yield_now();
                }
                assert_eq!(upgrade.join().unwrap().0, 200);
            });
        }
    }
}

fn wait_until(mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "waited in vain");
        std::thread::sleep(Duration::from_millis(5));
    }
}
