//! iperf3's control connection, both ends, and the server's datagrams: answers do not depend on
//! where the stream is cut, and a hostile peer makes neither of them panic.
#![no_main]

use guest::apps::iperf3::{Client, Params, Server};
use guest::fuzz::{converse, iperf3_datagrams, iperf3_server};
use libfuzzer_sys::fuzz_target;

// The first byte says which end is driven, and how many of the next ones are lengths of pieces.
// With 0x40, two bytes and as many as they say are the stream, and datagrams follow.
fuzz_target!(|input: &[u8]| {
    let Some((head, rest)) = input.split_first() else { return };
    let (cuts, stream) = rest.split_at(rest.len().min(usize::from(*head % 16)));
    if head & 0xc0 == 0x40 {
        let Some((len, rest)) = stream.split_first_chunk() else { return };
        let len = usize::from(u16::from_le_bytes(*len));
        let (stream, datagrams) = rest.split_at(rest.len().min(len));
        let mut server = iperf3_server();
        converse(&mut server, stream, cuts);
        iperf3_datagrams(&mut server, datagrams);
        return;
    }
    let talk = |cuts: &[u8]| match head & 0x80 {
        0 => converse(&mut Server::new(|| 0.0), stream, cuts),
        _ => converse(&mut Client::new(Params::default(), [b'a'; 36], || 0.0), stream, cuts),
    };
    let answer = talk(cuts);
    if stream.len() <= 4096 {
        assert_eq!(answer, talk(&[]));
    }
});
