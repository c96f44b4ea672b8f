//! The memcached-like cache over the stack: the protocol, its limits, and invalid input.

use guest::apps::kv::Kv;
use proptest::prelude::*;

#[path = "world/talk.rs"]
mod conversation;
mod world;

/// Returns the answers of a cache of `most` bytes, and the cache.
fn talk(text: &[u8], most: usize, piece: usize) -> (String, Kv) {
    let (answer, cache) = conversation::talk(text, Kv::new(most, 1_700_000_000), piece);
    (String::from_utf8_lossy(&answer).into_owned(), cache)
}

#[test]
fn commands_are_answered_as_memcached_answers_them() {
    let text = "set a 5 0 3\r\none\r\nget a b\r\nadd a 0 0 1\r\nx\r\nreplace b 0 0 1\r\nx\r\n\
                append a 0 0 2\r\n-2\r\nprepend a 0 0 2\r\n0-\r\nget a\r\ngets a\r\n\
                cas a 1 0 1 3\r\nz\r\ncas a 1 0 1 99\r\nz\r\ncas b 1 0 1 3\r\nz\r\n\
                set n 0 0 2\r\n18\r\nincr n 4\r\ndecr n 30\r\nincr a 1\r\nincr b 1\r\n\
                touch n 100\r\ntouch b 1\r\ndelete n\r\ndelete n\r\nset q 0 0 1 noreply\r\nq\r\n\
                get q\r\nset gone 0 -1 1\r\nx\r\nget gone\r\nbad\r\nset a 0 0\r\nget\r\n\
                set l 0 0 2\r\nlong\r\nflush_all\r\nget a\r\nquit\r\nget a\r\n";
    let expected = "STORED\r\nVALUE a 5 3\r\none\r\nEND\r\nNOT_STORED\r\nNOT_STORED\r\n\
                    STORED\r\nSTORED\r\nVALUE a 5 7\r\n0-one-2\r\nEND\r\n\
                    VALUE a 5 7 3\r\n0-one-2\r\nEND\r\n\
                    STORED\r\nEXISTS\r\nNOT_FOUND\r\nSTORED\r\n22\r\n0\r\n\
                    CLIENT_ERROR cannot increment or decrement non-numeric value\r\nNOT_FOUND\r\n\
                    TOUCHED\r\nNOT_FOUND\r\nDELETED\r\nNOT_FOUND\r\n\
                    VALUE q 0 1\r\nq\r\nEND\r\nSTORED\r\nEND\r\nERROR\r\n\
                    ERROR\r\nERROR\r\n\
                    CLIENT_ERROR bad data chunk\r\nERROR\r\nOK\r\nEND\r\n";
    for piece in [8 << 10, 7, 1] {
        assert_eq!(talk(text.as_bytes(), 1 << 20, piece).0, expected);
    }
}

#[test]
fn memory_is_bounded_and_what_is_used_stays() {
    let mut text = Vec::new();
    for i in 0..2000 {
        text.extend(format!("set k{i} 0 0 1000 noreply\r\n").bytes());
        text.extend([b'x'; 1000]);
        text.extend(b"\r\nget k0\r\n");
    }
    let (answer, cache) = talk(&text, 256 << 10, 8 << 10);
    let (items, bytes) = cache.usage();
    assert!(bytes <= 256 << 10 && items > 200, "{items} items of {bytes} bytes");
    assert_eq!(cache.hits, (2000, 0), "what is asked for all the time stays");
    assert!(answer.len() > 2000 * 1000);
    assert!(cache.evictions() > 1500);
}

#[test]
fn a_value_that_is_too_large_is_read_and_refused() {
    let mut text = format!("set big 0 0 {}\r\n", 2 << 20).into_bytes();
    text.extend(vec![b'\n'; 2 << 20]);
    text.extend(b"\r\nget big\r\n");
    let (answer, _) = talk(&text, 64 << 20, 8 << 10);
    assert_eq!(answer, "SERVER_ERROR object too large for cache\r\nEND\r\n");
    let line = vec![b'a'; 100_000];
    assert_eq!(talk(&line, 1 << 20, 8 << 10).0, "CLIENT_ERROR line too long\r\n");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_text_breaks_the_cache(
        words in prop::collection::vec(prop_oneof![
            prop::sample::select(vec![
                "set", "get", "gets", "add", "cas", "append", "incr", "touch", "stats", "k", "0", "-1", "5",
                "18446744073709551615", "99999999999999999999", "noreply", "\r\n", "\n", " ",
            ]).prop_map(str::to_owned),
            "[\\x00-\\x7f]{0,12}",
        ], 0..200),
    ) {
        let text: Vec<String> = words.iter().map(|word| format!("{word} ")).collect();
        let (_, cache) = talk(text.concat().as_bytes(), 4096, 50);
        prop_assert!(cache.usage().1 <= 4096);
    }
}
