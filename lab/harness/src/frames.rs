//! Frames with numbers in them, through ports of the test's own.

use std::time::{Duration, Instant};

use netring::Port;

use crate::PATIENCE;

/// A frame of 64 bytes from station `from` to station `to` with a number in it.
pub fn frame(from: u8, to: u8, number: u64) -> [u8; 64] {
    let mut frame = [0; 64];
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from]);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame[16..24].copy_from_slice(&number.to_le_bytes());
    frame
}

/// Sends a frame; false if there is no room.
pub fn send(port: &mut Port, frame: &[u8]) -> bool {
    let sent = port.send(64).push(frame);
    port.flush().unwrap();
    sent
}

/// The numbers of the frames that are there now.
pub fn receive(port: &mut Port) -> Vec<u64> {
    let ours = |frame: netring::Received<'_>| {
        let bytes = frame.to_vec();
        let number = bytes[16..24].try_into().unwrap();
        (bytes[12..14] == [0x88, 0xb5]).then(|| u64::from_le_bytes(number))
    };
    let numbers = port.receive(64).filter_map(ours).collect();
    port.flush().unwrap();
    numbers
}

/// Sends frame after frame from `a` until one arrives at `b`; returns how long that took.
pub fn until_traffic_flows(a: &mut Port, b: &mut Port, number: &mut u64) -> Duration {
    let started = Instant::now();
    loop {
        // Station 2 sends, too, so that the switch learns where it is.
        send(b, &frame(2, 1, 0));
        receive(a);
        *number += 1;
        send(a, &frame(1, 2, *number));
        std::thread::sleep(Duration::from_millis(1));
        if receive(b).last().is_some_and(|last| *last > 0) {
            return started.elapsed();
        }
        assert!(started.elapsed() < PATIENCE, "no traffic flows");
    }
}
