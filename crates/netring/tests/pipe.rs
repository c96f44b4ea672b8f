//! Objective: a pipe is a lossless queue in each direction, between threads and between processes.

use std::os::fd::OwnedFd;
use std::process::Command;
use std::time::Duration;

use frame::{Offload, OffloadSet};
use netring::{Interest, PARTS_BYTES, PartsError, PipeConfig, Port, PortError, pipe};

#[test]
fn frames_pass_and_buffers_come_back() {
    let (mut left, mut right) = pipe(&PipeConfig::default().slots(8)).unwrap();
    for round in 0..100_u32 {
        let mut sent = 0;
        while left.send(1).push(&(round * 10 + sent).to_ne_bytes()) {
            sent += 1;
        }
        assert_eq!(sent, 7);
        left.flush().unwrap();
        for i in 0..7 {
            let frame = right.receive(1).next().unwrap().to_vec();
            assert_eq!(frame, (round * 10 + i).to_ne_bytes());
        }
        assert_eq!(left.send(1).room(), 0, "released, not yet visible");
        right.flush().unwrap();
    }
}

/// Sends `count` frames of changing lengths, sleeping when the pipe is full.
fn produce(port: &mut Port, count: u32) {
    let mut next = 0;
    while next < count {
        let mut out = port.send(64);
        while next < count && out.push(&frame(next)) {
            next += 1;
        }
        port.wait(Interest::WRITE, None).unwrap();
    }
}

fn consume(port: &mut Port, count: u32) {
    let mut next = 0;
    while next < count {
        for received in port.receive(64) {
            assert_eq!(received.to_vec(), frame(next));
            next += 1;
        }
        if next < count {
            port.wait(Interest::READ, None).unwrap();
        }
    }
    port.flush().unwrap();
}

fn frame(i: u32) -> Vec<u8> {
    let len = 4 + (i * 37) as usize % 5000;
    let mut bytes: Vec<u8> = (0..len).map(|at| (i as usize + at) as u8).collect();
    bytes[..4].copy_from_slice(&i.to_ne_bytes());
    bytes
}

#[test]
fn two_threads_lose_nothing_in_either_direction() {
    let (mut left, mut right) = pipe(&PipeConfig::default().slots(64)).unwrap();
    let other = std::thread::spawn(move || {
        consume(&mut right, 5_000);
        produce(&mut right, 5_000);
    });
    produce(&mut left, 5_000);
    consume(&mut left, 5_000);
    other.join().unwrap();
}

/// The environment variable that tells the other process of [`two_processes_lose_nothing`] its
/// descriptors and description.
const PARTS: &str = "RING_TEST_PARTS";

/// The test binary runs itself again, with the other end's descriptors inherited.
#[test]
fn two_processes_lose_nothing() {
    if let Ok(parts) = std::env::var(PARTS) {
        return echo(&parts);
    }
    let (mut ours, theirs) = pipe(&PipeConfig::default().slots(64)).unwrap();
    // This frame is filled in before the end is passed on, and must not be lost.
    assert!(ours.send(1).push(&frame(0)));
    ours.flush().unwrap();
    let (fds, description) = theirs.into_parts().unwrap();
    for fd in &fds {
        rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty()).unwrap();
    }
    let numbers = fds.iter().map(|fd| std::os::fd::AsRawFd::as_raw_fd(fd).to_string());
    let hex: String = description.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = numbers.chain([hex]).collect::<Vec<_>>().join(",");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "two_processes_lose_nothing"])
        .env(PARTS, parts)
        .spawn()
        .unwrap();
    drop(fds);
    let (mut sent, mut received) = (1, 0);
    while received < COUNT {
        let mut out = ours.send(16);
        while sent < COUNT && out.push(&frame(sent)) {
            sent += 1;
        }
        for back in ours.receive(16) {
            assert_eq!(back.to_vec(), frame(received));
            received += 1;
        }
        let interest = if sent < COUNT { Interest::all() } else { Interest::READ };
        if received < COUNT {
            ours.wait(interest, Some(Duration::from_secs(60))).unwrap();
        }
    }
    ours.flush().unwrap();
    assert!(child.wait().unwrap().success());
}

const COUNT: u32 = 3000;

/// The other process: sends everything back without a copy.
fn echo(parts: &str) {
    let mut port = inherited(parts);
    let mut echoed = 0;
    while echoed < COUNT {
        let (mut out, mut batch) = port.queue(0).both(16, 16).unwrap();
        while let Some(frame) = batch.next_within(out.room()) {
            out.forward(frame).unwrap();
            echoed += 1;
        }
        let full = out.room() < 4;
        let interest = if full { Interest::WRITE } else { Interest::READ };
        if echoed < COUNT {
            port.wait(interest, Some(Duration::from_secs(60))).unwrap();
        }
    }
    port.flush().unwrap();
}

#[expect(unsafe_code, reason = "inherited descriptors are known by their numbers")]
fn inherited(parts: &str) -> Port {
    let (numbers, hex) = parts.rsplit_once(',').unwrap();
    let own = |number: &str| {
        let fd = number.parse().unwrap();
        // SAFETY: the parent left these open for us, and nobody else here knows them.
        unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd) }
    };
    let byte = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap();
    let description: Vec<u8> = (0..PARTS_BYTES).map(byte).collect();
    Port::from_parts(numbers.split(',').map(own).collect(), &description).unwrap()
}

#[test]
fn an_end_goes_on_where_it_was_handed_on() {
    let (mut left, mut right) = pipe(&PipeConfig::default().slots(8)).unwrap();
    for i in 0..5 {
        assert!(left.send(1).push(&[i]) && right.send(1).push(&[i + 10]));
    }
    left.flush().unwrap();
    right.flush().unwrap();
    assert_eq!(right.receive(2).count(), 2);
    assert_eq!(left.receive(2).count(), 2);
    let (fds, description) = left.into_parts().unwrap();
    let mut left = Port::from_parts(fds, &description).unwrap();
    let batch: Vec<_> = left.receive(9).map(|frame| frame.to_vec()[0]).collect();
    assert_eq!(batch, [12, 13, 14]);
    let batch: Vec<_> = right.receive(9).map(|frame| frame.to_vec()[0]).collect();
    assert_eq!(batch, [2, 3, 4]);
    assert_eq!(left.send(9).room(), 2, "the last release was not flushed");
    right.flush().unwrap();
    assert_eq!(left.send(9).room(), 7);
    assert!(matches!(left.reset(), Ok(())));
}

#[test]
fn what_is_no_port_is_not_put_together() {
    let (left, _right) = pipe(&PipeConfig::default().slots(8)).unwrap();
    let (fds, description) = left.into_parts().unwrap();
    let copies = |count: usize| -> Vec<OwnedFd> {
        fds.iter().cycle().take(count).map(|fd| fd.try_clone().unwrap()).collect()
    };
    for count in [0, 1, 2, 5] {
        assert!(matches!(
            Port::from_parts(copies(count), &description),
            Err(PartsError::Malformed)
        ));
    }
    assert!(matches!(Port::from_parts(copies(3), &description[1..]), Err(PartsError::Malformed)));
    for byte in 0..60 {
        let mut scribbled = description;
        scribbled[byte] ^= 0x80;
        // A description with a larger size may be accepted, but memory beyond the file must not be
        // mapped.
        let _ = Port::from_parts(copies(3), &scribbled);
    }
    let mut swapped = copies(3);
    swapped.swap(0, 1);
    assert!(Port::from_parts(swapped, &description).is_err(), "an eventfd is no memory file");
}

#[test]
fn waiting_ends_with_its_time() {
    let (mut left, mut right) = pipe(&PipeConfig::default().slots(4)).unwrap();
    let tenth = Some(Duration::from_millis(20));
    assert!(!left.wait(Interest::READ, tenth).unwrap().any());
    assert!(left.wait(Interest::WRITE, tenth).unwrap().writable);
    while left.send(1).push(b"full") {}
    assert!(!left.wait(Interest::WRITE, tenth).unwrap().any());
    assert_eq!(right.receive(1).count(), 1);
    right.flush().unwrap();
    assert!(left.wait(Interest::all(), tenth).unwrap().writable);
    assert!(matches!(left.reopen(), Err(netring::OpenError::NotOpenedHere)));
    assert!(matches!(left.flush(), Ok::<(), PortError>(())));
}

#[test]
fn a_pipe_that_was_made_for_offload_requests_carries_them() {
    let (flags, checksum_start, checksum_offset) = (Offload::NEEDS_CHECKSUM, 34, 16);
    let asked = Offload { flags, checksum_start, checksum_offset, ..Offload::NONE };
    let cut = Offload { gso_type: Offload::GSO_TCP4, gso_size: 1448, ..asked };
    let bytes: Vec<u8> = (0..50_000u32).map(|i| i as u8).collect();
    let (mut left, mut right) = pipe(&PipeConfig::default().offloads(OffloadSet::ALL)).unwrap();
    assert_eq!((left.offloads(), right.offloads()), (OffloadSet::ALL, OffloadSet::ALL));
    for request in [cut, asked, Offload::NONE] {
        let (head, rest) = bytes.split_at(54);
        assert!(left.send(64).gather([head, &[], rest], bytes.len(), request));
        left.flush().unwrap();
        let frame = right.receive(1).next().unwrap();
        assert_eq!(frame.offload(), request);
        let windows: Vec<u8> = frame.windows().flat_map(|window| window.to_vec()).collect();
        assert!(windows == bytes && frame.to_vec() == bytes);
        right.flush().unwrap();
    }
    // A pipe that was not made for offload requests refuses them, and asks for none.
    let (mut left, mut right) = pipe(&PipeConfig::default()).unwrap();
    assert!(!left.send(64).gather([&bytes[..100]], 100, asked));
    let mut out = left.send(1);
    assert!(!out.slot().unwrap().set_offload(asked));
    assert!(out.gather([&bytes[..100]], 100, Offload::NONE));
    left.flush().unwrap();
    assert_eq!(right.receive(1).next().unwrap().offload(), Offload::NONE);
}
