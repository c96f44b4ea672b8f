//! iperf3's control connection, both ends: answers do not depend on where the stream is cut, and a
//! hostile peer makes neither of them panic.
#![no_main]

use guest::apps::iperf3::{Client, Params, Server};
use guest::fuzz::converse;
use libfuzzer_sys::fuzz_target;

// The first byte says which end is driven, and how many of the next ones are lengths of pieces.
fuzz_target!(|input: &[u8]| {
    let Some((head, rest)) = input.split_first() else { return };
    let (cuts, stream) = rest.split_at(rest.len().min(usize::from(*head % 16)));
    let talk = |cuts: &[u8]| match head & 0x80 {
        0 => converse(&mut Server::new(|| 0.0), stream, cuts),
        _ => converse(&mut Client::new(Params::default(), [b'a'; 36], || 0.0), stream, cuts),
    };
    let answer = talk(cuts);
    if stream.len() <= 4096 {
        assert_eq!(answer, talk(&[]));
    }
});
