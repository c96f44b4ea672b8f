//! Taps: the host's network stack sends and receives through a switch. Runs as root, in network
//! namespaces of its own.

use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use bench::Bench;
use harness::skip;
use host::{Namespace, obstacle};
use port::DropReason;
use toklat_dataplane::attach::buffered::{self, tap::TapConfig};
use toklat_dataplane::config::Policy;
use toklat_dataplane::control::{Answer, Command as Ask};
use toklat_dataplane::state::PortState;

mod bench;
mod host;
mod process;

/// A tap with this address, and a UDP socket on it.
fn tap(at: &Namespace, address: &str) -> (OwnedFd, UdpSocket) {
    let queue = at.tap(&[&format!("{address}/24")], 1, 0).remove(0);
    let socket = at.run(|| UdpSocket::bind((address, 4000)).unwrap());
    socket.set_nonblocking(true).unwrap();
    (queue, socket)
}

impl Bench {
    fn add(&mut self, name: &str, queue: OwnedFd) -> u16 {
        let attach = |state: &PortState| buffered::tap::attach(vec![queue], true, state);
        self.switch.add_attached(name, Policy::default(), attach).unwrap()
    }

    /// Runs the switch until `socket` receives something.
    fn receive(&mut self, socket: &UdpSocket) -> Vec<u8> {
        let mut bytes = vec![0; 2000];
        let len = self.until(|_| socket.recv(&mut bytes).ok());
        bytes.truncate(len);
        bytes
    }

    fn dropped_at(&self, port: u16) -> u64 {
        self.switch.stats(port).out_drops.values().sum()
    }
}

#[test]
fn hosts_talk_through_a_switch_of_taps() {
    if let Some(why) = obstacle() {
        return skip("hosts_talk_through_a_switch_of_taps", why);
    }
    let (here, there) = (Namespace::new(), Namespace::new());
    let ((tap_a, a), (tap_b, b)) = (tap(&here, "10.9.8.1"), tap(&there, "10.9.8.2"));
    let mut bench = Bench::new();
    bench.add("a", tap_a);
    bench.add("b", tap_b);
    for len in [1, 18, 100, 1472] {
        let (ping, pong) = (vec![len as u8; len], vec![!(len as u8); len]);
        a.send_to(&ping, "10.9.8.2:4000").unwrap();
        assert!(bench.receive(&b) == ping, "{len} bytes there");
        b.send_to(&pong, "10.9.8.1:4000").unwrap();
        assert!(bench.receive(&a) == pong, "{len} bytes back");
    }
    assert!(bench.switch.stats(0).in_frames >= 4);
    assert!(bench.switch.stats(0).out_frames >= 4);
    bench.assert_sums_agree();
}

#[test]
fn a_removed_tap_goes_quiet_and_its_frames_are_counted() {
    if let Some(why) = obstacle() {
        return skip("a_removed_tap_goes_quiet_and_its_frames_are_counted", why);
    }
    let (here, there) = (Namespace::new(), Namespace::new());
    let ((tap_a, a), (tap_b, b)) = (tap(&here, "10.9.8.1"), tap(&there, "10.9.8.2"));
    let mut bench = Bench::new();
    let (_, second) = (bench.add("a", tap_a), bench.add("b", tap_b));
    a.send_to(b"hello", "10.9.8.2:4000").unwrap();
    assert_eq!(bench.receive(&b), b"hello");

    let before = bench.switch.stats(second);
    there.ip("link set dev t0 down");
    for round in 0..3 {
        if round == 1 {
            there.ip("link del dev t0");
        }
        a.send_to(b"anybody there?", "10.9.8.2:4000").unwrap();
        let until = Instant::now() + Duration::from_secs(30);
        while bench.dropped_at(second) == round && Instant::now() < until {
            bench.turn();
        }
    }
    let after = bench.switch.stats(second);
    assert_eq!(after.out_frames, before.out_frames);
    assert_eq!(after.out_drops.get(&DropReason::Down), Some(&3), "{:?}", after.out_drops);
    bench.assert_sums_agree();
}

/// Epoll wakes a sleeping worker for a tap, under the filters of a data process.
#[test]
fn a_sleeping_data_process_is_woken_by_taps() {
    if let Some(why) = obstacle() {
        return skip("a_sleeping_data_process_is_woken_by_taps", why);
    }
    if let Some(status) = process::in_child("a_sleeping_data_process_is_woken_by_taps") {
        return assert!(status.success(), "{status}");
    }
    let (here, there) = (Namespace::new(), Namespace::new());
    let ((tap_a, a), (tap_b, b)) = (tap(&here, "10.9.8.1"), tap(&there, "10.9.8.2"));
    let (thread, connection) = process::start();
    process::add(&connection, 0, TapConfig { uso: true }.into(), &tap_a);
    process::add(&connection, 1, TapConfig { uso: true }.into(), &tap_b);
    let (since, mut bytes) = (Instant::now(), [0; 100]);
    for round in 0..50u8 {
        a.send_to(&[round; 30], "10.9.8.2:4000").unwrap();
        while b.recv(&mut bytes).is_err() {
            assert!(since.elapsed() < Duration::from_secs(60), "round {round} was lost");
            std::thread::yield_now();
        }
        assert_eq!(bytes[..30], [round; 30]);
        // Long enough for the worker to fall asleep, so that epoll brings the next frame.
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(process::ask(&connection, &Ask::Stop, &[]), Answer::Done);
    thread.join().unwrap();
}
