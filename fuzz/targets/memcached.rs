//! Commands to the cache of light guests: its answers do not depend on where the stream is cut, and
//! its memory is bounded.
#![no_main]

use guest::apps::kv::Kv;
use guest::fuzz::converse;
use libfuzzer_sys::fuzz_target;

/// Bytes that the cache may use.
const MOST: usize = 4096;

// The first byte says how many of the next ones are lengths of pieces.
fuzz_target!(|input: &[u8]| {
    let Some((count, rest)) = input.split_first() else { return };
    let (cuts, stream) = rest.split_at(rest.len().min(usize::from(*count % 16)));
    let mut cache = Kv::new(MOST, 0);
    let answer = converse(&mut cache, stream, cuts);
    assert!(cache.held() <= MOST, "{:?}", cache.usage());
    if stream.len() <= 4096 {
        assert_eq!(answer, converse(&mut Kv::new(MOST, 0), stream, &[]));
    }
});
