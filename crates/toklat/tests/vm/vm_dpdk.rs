//! DPDK's driver of the e1000 family in virtual machines, on cards that ports emulate.
//!
//! testpmd reflects frames to the test's port, with checksums offloaded in both directions.
//! All frames arrive, whatever their checksums are, and the card corrects each checksum as it
//! sends.

use std::io::Write;
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use frame::checksum::Sum;
use frame::{ETHERNET_HEADER, EtherType, Ethernet, Ipv4, Mac, Protocol, Tcp, Udp};
use netring::Port;
use serde_json::json;
use vm::guest;
use zerocopy::IntoBytes;

use harness::frames::send;
use harness::guests::{Guest, PATIENCE, can_emulate};
use harness::{Daemon, skip};

const CARDS: [&str; 2] = ["82540em", "82574l"];
/// The addresses of the card and of the test.
const CARD: Mac = Mac::local(1);
const PEER: Mac = Mac::local(2);
/// Bytes behind the headers of UDP and TCP: the shortest without padding, odd ones, the longest.
const PAYLOADS: [usize; 4] = [18, 19, 777, 1460];
/// How often each frame is sent.
const ROUNDS: usize = 50;

/// The guest with DPDK; `None` if the test is skipped.
fn guest_with_dpdk(test: &str) -> Option<PathBuf> {
    if !can_emulate(test) {
        return None;
    }
    let dir = guest::find().ok().and_then(|dir| guest::with_dpdk(&dir));
    if dir.is_none() {
        skip(test, "the test guest has no DPDK; cargo xtask guest says why");
    }
    dir
}

/// Which checksum of a frame is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Nothing,
    Header,
    Transport,
}

/// Returns a frame from the test to the card, with the right checksums.
fn packet(protocol: Protocol, payload: usize) -> Vec<u8> {
    let (source, destination) = (Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(10, 0, 0, 1));
    let mut upper = if protocol == Protocol::UDP {
        Udp::new(9, 9, payload as u16).as_bytes().to_vec()
    } else {
        // Ports, number 1, no acknowledgment, five words, PSH, a window, no checksum yet.
        vec![0, 9, 0, 9, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x08, 0x10, 0, 0, 0, 0, 0]
    };
    upper.extend((0..payload).map(|i| (7 * i) as u8));
    let ip = Ipv4::new(source, destination, protocol, upper.len() as u16);
    let sum = Sum::new().with_pseudo_header(ip.addresses(), protocol, upper.len() as u32);
    let sum = sum.with(&upper).checksum();
    let at = transport_checksum(protocol);
    upper[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    let ethernet = Ethernet::new(CARD, PEER, EtherType::IPV4);
    [ethernet.as_bytes(), ip.as_bytes(), &upper].concat()
}

fn transport_checksum(protocol: Protocol) -> usize {
    usize::from(if protocol == Protocol::UDP { Udp::CHECKSUM } else { Tcp::CHECKSUM })
}

/// The frame with a wrong checksum.
fn spoilt(mut frame: Vec<u8>, protocol: Protocol, wrong: Wrong) -> Vec<u8> {
    let transport = ETHERNET_HEADER + Ipv4::LEN + transport_checksum(protocol);
    match wrong {
        Wrong::Nothing => {}
        Wrong::Header => frame[ETHERNET_HEADER + 10] ^= 0x5a,
        Wrong::Transport => frame[transport] ^= 0x5a,
    }
    frame
}

/// Frames as they are sent, and as they must return.
fn frames() -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut frames = Vec::new();
    for protocol in [Protocol::UDP, Protocol::TCP] {
        for wrong in [Wrong::Nothing, Wrong::Header, Wrong::Transport] {
            for payload in PAYLOADS {
                let right = packet(protocol, payload);
                let mut back = right.clone();
                back[..12].copy_from_slice(&[PEER.octets(), CARD.octets()].concat());
                frames.push((spoilt(right, protocol, wrong), back));
            }
        }
    }
    frames
}

/// Sends all frames, and waits until they are back, each as it has to be, in the order in which
/// they were sent.
fn exchange(port: &mut Port, frames: &[(Vec<u8>, Vec<u8>)]) {
    let started = Instant::now();
    for (frame, _) in frames {
        assert!(send(port, frame), "the port's ring has room for all");
    }
    let mut back = Vec::new();
    while back.len() < frames.len() {
        let received = port.receive(64).map(|frame| frame.to_vec());
        back.extend(received.filter(|frame| frame[..6] == PEER.octets()));
        port.flush().unwrap();
        assert!(started.elapsed() < PATIENCE, "{} of {} frames", back.len(), frames.len());
        std::thread::sleep(Duration::from_micros(100));
    }
    for (back, (sent, expected)) in back.iter().zip(frames) {
        assert!(back == expected, "sent {sent:02x?}, expected {expected:02x?}, got {back:02x?}");
    }
}

/// A number of a line such as `  RX-packets: 12   RX-dropped: 0`.
fn number(line: &str, name: &str) -> usize {
    let rest = line.split(name).nth(1).unwrap_or_else(|| panic!("{name} is not in {line}"));
    let digits = rest.split_whitespace().next().unwrap_or_default();
    digits.parse().unwrap_or_else(|_| panic!("{name} has no number in {line}"))
}

#[test]
fn dpdk_s_driver_passes_frames_both_ways_with_checksums_on() {
    let Some(dir) = guest_with_dpdk("dpdk_s_driver_passes_frames_both_ways_with_checksums_on")
    else {
        return;
    };
    for card in CARDS {
        drive(&dir, card);
    }
}

/// Has a guest forward frames through a card, has its link go away and come back, and compares what
/// it counted.
fn drive(dir: &Path, card: &str) {
    let daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.peer]");
    let mut port = daemon.open("vale0:peer").unwrap();
    let commands = format!(
        "testpmd -i -a --forward-mode=csum --enable-rx-cksum --tx-offloads=0xe --eth-peer=0,{PEER} \
         --total-num-mbufs=2048 --no-flush-rx </dev/ttyS1"
    );
    // testpmd takes its commands at the second serial port.
    let socket = daemon.dir().join("commands");
    let serial = format!("unix:{},server=on,wait=off", socket.display());
    let mac = CARD.to_string();
    let options = ["--nic", card, "--mac", &mac, "--", "-serial", &serial];
    let mut guest = Guest::boot_from(Some(dir), &daemon, "dpdk", 1, &options, &commands);
    guest.says("Probe PCI driver: net_e1000_em");
    guest.says("csum packet forwarding - ports=1");
    let frames = frames();
    exchange(&mut port, &frames);
    // testpmd's counts begin when it forwards already.
    let mut testpmd = UnixStream::connect(socket).unwrap();
    testpmd.write_all(b"clear fwd stats all\nshow port summary 0\n").unwrap();
    guest.says("Number of available ports: 1");
    (0..ROUNDS).for_each(|_| exchange(&mut port, &frames));
    // The card sends an interrupt when its link changes.
    for link in [false, true] {
        let (status, _) =
            daemon.ask("PATCH", "/v1/switches/vale0/ports/dpdk", &json!({ "link": link }));
        assert_eq!(status, 200);
        guest.says("link state change event");
    }
    exchange(&mut port, &frames);
    testpmd.write_all(b"stop\nquit\n").unwrap();
    let each = (ROUNDS + 1) * frames.len();
    assert_eq!(number(&guest.says("RX-packets: "), "RX-packets: "), each, "{card}");
    // The card calls no checksum bad: of unverified checksums it reports nothing (IXSM).
    let bad = guest.says("Bad-ipcsum: ");
    assert_eq!((number(&bad, "Bad-ipcsum: "), number(&bad, "Bad-l4csum: ")), (0, 0), "{card}");
    assert_eq!(number(&guest.says("TX-packets: "), "TX-packets: "), each, "{card}");
    guest.succeeds();
}
