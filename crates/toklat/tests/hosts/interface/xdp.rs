//! AF_XDP by several queues, and with checksums that are left to the kernel.

use std::net::UdpSocket;

use frame::{Offload, OffloadSet};

use super::{Cards, NO_PROGRAMS, info};
use harness::namespace::{Namespace, may_load_programs};
use harness::{Daemon, raw};

/// The value of a counter of each of an interface's receive queues (`ethtool -S`).
fn by_queue(namespace: &Namespace, ifname: &str, counter: &str) -> Vec<u64> {
    let all = namespace.run(&["ethtool", "-S", ifname]);
    let values = all.lines().filter_map(|line| line.split_once(": "));
    let of_queue = values.filter(|(name, _)| {
        name.trim().starts_with("rx_queue_") && name.ends_with(&format!("_{counter}"))
    });
    of_queue.map(|(_, value)| value.trim().parse().unwrap()).collect()
}

#[test]
fn af_xdp_has_a_socket_for_each_queue_also_after_a_death() {
    let test = "af_xdp_has_a_socket_for_each_queue_also_after_a_death";
    if !may_load_programs() {
        return harness::skip(test, NO_PROGRAMS);
    }
    const FLOWS: u8 = 64;
    let Some(cards) = Cards::with_queues(test, 1, 4) else { return };
    cards.complete_checksums();
    let mut daemon = Daemon::start();
    daemon.apply(&cards.switch(", engine = \"xdp\""));
    assert_eq!(info(&daemon, "p1")["interface"]["queues"], 4, "{}", daemon.log());
    let mut port = daemon.open("vale0:client").unwrap();
    let flows: Vec<_> = cards.far[0].enter(|| {
        let flow = |_| UdpSocket::bind("10.77.0.1:0").unwrap();
        (0..FLOWS).map(flow).inspect(|flow| flow.set_broadcast(true).unwrap()).collect()
    });
    for life in 0..3_u8 {
        // The kernel spreads the flows over the queues. Each has to arrive.
        let before = by_queue(&cards.host, "c1", "xdp_redirect");
        let mut missing: Vec<u8> = (0..FLOWS).collect();
        daemon.wait_for("a frame of each flow", |_| {
            for number in &missing {
                let bytes = [b'q', life, *number];
                flows[usize::from(*number)].send_to(&bytes, ("10.77.0.255", 9)).unwrap();
            }
            for frame in port.receive(256) {
                if let Some([b'q', number, flow]) = frame.to_vec().get(42..45)
                    && *number == life
                {
                    missing.retain(|number| number != flow);
                }
            }
            port.flush().unwrap();
            missing.is_empty()
        });
        let after = by_queue(&cards.host, "c1", "xdp_redirect");
        let used = before.iter().zip(&after).filter(|(before, after)| after > before).count();
        assert!(before.len() == 4 && used > 1, "{before:?} {after:?}");
        // Fresh sockets take the places of all.
        let process = daemon.data_process("vale0");
        harness::kill_process(process);
        daemon.wait_for("another data process", |daemon| {
            let info = daemon.get("/v1/switches/vale0");
            info["state"] == "running" && info["pid"] != process
        });
    }
}

#[test]
fn the_kernel_completes_checksums_of_what_leaves_by_af_xdp() {
    let test = "the_kernel_completes_checksums_of_what_leaves_by_af_xdp";
    if !may_load_programs() {
        return harness::skip(test, NO_PROGRAMS);
    }
    let Some(cards) = Cards::new(test, 1) else { return };
    // A veth would leave the checksum to its other end.
    cards.host.run(&["ethtool", "-K", "c1", "tx", "off"]);
    let mut daemon = Daemon::start();
    daemon.apply(&cards.switch(", engine = \"xdp\""));
    let open = harness::small("vale0:client").directory(daemon.dir()).offloads(OffloadSet::ALL);
    let mut port = open.open().unwrap();
    let far = cards.far[0].enter(|| raw::Socket::open("u0"));
    let sum = |bytes: &[u8], start: u32| {
        let words = bytes
            .chunks(2)
            .map(|two| u32::from(two[0]) << 8 | two.get(1).map_or(0, |b| u32::from(*b)));
        let sum = words.sum::<u32>() + start;
        ((sum & 0xffff) + (sum >> 16)) as u16
    };
    let mut ip = [0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 77, 0, 9, 10, 77, 0, 1];
    ip[3] = 20 + 8 + 21;
    let checksum = !sum(&ip, 0);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    let mut udp = [&[0x30, 0x39, 0x30, 0x3a, 0, 29, 0, 0][..], b"complete my checksum!"].concat();
    let pseudo = sum(&ip[12..20], 17 + 29);
    let whole = !sum(&udp, pseudo.into());
    udp[6..8].copy_from_slice(&pseudo.to_be_bytes());
    let ethernet = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 9, 8, 0];
    let frame = [&ethernet[..], &ip, &udp].concat();
    let request = Offload {
        flags: Offload::NEEDS_CHECKSUM,
        checksum_start: 34,
        checksum_offset: 6,
        ..Offload::NONE
    };
    let mut arrived = Vec::new();
    daemon.wait_for("the frame to arrive", |_| {
        assert!(port.send(4).gather([&frame[..]], frame.len(), request));
        port.flush().unwrap();
        arrived.extend(far.receive().filter(|got| got.ends_with(b"complete my checksum!")));
        !arrived.is_empty()
    });
    let mut expected = frame.clone();
    expected[40..42].copy_from_slice(&whole.to_be_bytes());
    assert_eq!(arrived[0], expected);
    let sums = daemon.counters("p1")["out_checksums"].as_u64().unwrap();
    let by_kernel = kernel() >= (6, 8);
    assert_eq!(sums == 0, by_kernel, "{sums} were completed by the port");
}

/// The kernel's version.
fn kernel() -> (u32, u32) {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    (numbers.next().unwrap(), numbers.next().unwrap())
}
