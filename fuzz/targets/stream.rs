//! What a peer writes into a stream, in pieces of any length: frames come out as they were framed,
//! or the stream ends.
#![no_main]

use dataplane::attach::buffered::stream::{Fifo, next_frame};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (Vec<u8>, Vec<u8>)| {
    let (bytes, cuts) = input;
    let mut inbox = Fifo::private().unwrap();
    let (mut rest, mut cuts, mut taken) = (&bytes[..], cuts.iter().cycle(), 0);
    while !rest.is_empty() {
        let space = inbox.space();
        let cut = cuts.next().map_or(rest.len(), |cut| usize::from(*cut) + 1);
        let len = cut.min(rest.len()).min(space.len());
        assert!(len > 0, "no room, and no whole frame");
        space[..len].copy_from_slice(&rest[..len]);
        inbox.fill(len);
        inbox.settle();
        rest = &rest[len..];
        loop {
            match next_frame(&mut inbox) {
                Ok(Some(frame)) => {
                    let frame = frame.to_vec();
                    assert_eq!(bytes[taken..taken + 4], (frame.len() as u32).to_be_bytes());
                    taken += 4;
                    assert_eq!(bytes[taken..taken + frame.len()], frame);
                    taken += frame.len();
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
});
