//! Objective: a pipe is a lossless queue in each direction, between threads and between processes.

use ring::{Interest, PipeConfig, Port, pipe};

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
        consume(&mut right, 20_000);
        produce(&mut right, 20_000);
    });
    produce(&mut left, 20_000);
    consume(&mut left, 20_000);
    other.join().unwrap();
}
