//! The cache beside memcached: the same bytes to both, from one table. The table holds memcached's
//! answers, so it is checked without memcached, too.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use guest::apps::kv::Kv;

#[path = "world/talk.rs"]
mod talk;
mod world;

use harness::{Running, skip, wait_for};

/// What both answer. `*` stands for a word that may differ: a version of an item.
const SAME: &[(&str, &str)] = &[
    ("set a 0 0 1\r\nx\r\nget a\r\n", "STORED|VALUE a 0 1|x|END|"),
    ("set n 0 -1 1\r\nx\r\nget n\r\n", "STORED|END|"),
    ("set s 0 0 3\r\nabc\r\nincr s 1 noreply\r\nget s\r\n", "STORED|VALUE s 0 3|abc|END|"),
    ("set s 0 0 1\r\n5\r\nincr s 0.2\r\n", "STORED|CLIENT_ERROR invalid numeric delta argument|"),
    ("incr s -1\r\n", "CLIENT_ERROR invalid numeric delta argument|"),
    ("set d 0 0 2\r\n10\r\ndecr d 1\r\nget d\r\n", "STORED|9|VALUE d 0 2|9 |END|"),
    ("set d 0 0 2\r\n5 \r\nincr d 1\r\nget d\r\n", "STORED|6|VALUE d 0 2|6 |END|"),
    ("set d 0 0 20\r\n18446744073709551615\r\nincr d 1\r\n", "STORED|0|"),
    ("set d 0 0 1\r\n1\r\ndelete d 0\r\nget d\r\n", "STORED|DELETED|END|"),
    (
        "set d 0 0 1\r\n1\r\ndelete d 1\r\n",
        "STORED|CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]|",
    ),
    ("delete d 1 noreply\r\nget d\r\n", "VALUE d 0 1|1|END|"),
    ("delete d noreply\r\nget d\r\n", "END|"),
    ("set d 0 0 1\r\n1\r\ntouch d 0.2\r\n", "STORED|CLIENT_ERROR invalid exptime argument|"),
    ("touch d 0.2 noreply\r\nget d\r\n", "VALUE d 0 1|1|END|"),
    ("touch nosuch 5\r\ntouch d\r\n", "NOT_FOUND|ERROR|"),
    ("get {251}\r\nget a\r\n", "CLIENT_ERROR bad command line format|VALUE a 0 1|x|END|"),
    ("get a {251}\r\nmn\r\n", "CLIENT_ERROR bad command line format|MN|"),
    ("get {250}\r\n", "END|"),
    ("delete {251}\r\nmn\r\n", "CLIENT_ERROR bad command line format|MN|"),
    ("incr {251} 1\r\nmn\r\n", "CLIENT_ERROR bad command line format|MN|"),
    ("touch {251} 1\r\nmn\r\n", "CLIENT_ERROR bad command line format|MN|"),
    ("gat 5 {251}\r\nmn\r\n", "CLIENT_ERROR bad command line format|MN|"),
    ("mg {251} v\r\nmn\r\n", "CLIENT_ERROR bad command line format|MN|"),
    ("set f 4294967295 0 1\r\nx\r\nget f\r\n", "STORED|VALUE f 4294967295 1|x|END|"),
    ("set f 0 0 -1\r\nmn\r\n", "CLIENT_ERROR bad command line format|MN|"),
    ("set f 0 0 2\r\nxyz\r\nmn\r\n", "CLIENT_ERROR bad data chunk|ERROR|MN|"),
    ("set f 0 0 2\r\nxyz12345\r\nmn\r\n", "CLIENT_ERROR bad data chunk|ERROR|MN|"),
    ("set f 0 0 2 noreply\r\nxyz\r\nmn\r\n", "ERROR|MN|"),
    ("incr nosuch 1 noreply\r\nmn\r\n", "MN|"),
    ("cas nosuch 0 0 1 9 noreply\r\nz\r\nmn\r\n", "MN|"),
    ("cas a 0 0 1\r\nz\r\nmn\r\n", "ERROR|ERROR|MN|"),
    ("cas a 0 0 1 99999 noreply\r\nz\r\nget a\r\n", "VALUE a 0 1|x|END|"),
    ("bogus noreply\r\nmn\r\n", "ERROR|MN|"),
    ("flush_all 100\r\nget a\r\n", "OK|VALUE a 0 1|x|END|"),
    ("flush_all 100 noreply\r\nget a\r\n", "VALUE a 0 1|x|END|"),
    ("flush_all x\r\n", "CLIENT_ERROR invalid exptime argument|"),
    ("flush_all noreply\r\nget a\r\n", "END|"),
    ("set a 0 0 1\r\nx\r\nflush_all -1\r\n", "STORED|OK|"),
    ("flush_all 0\r\nset a 0 0 1\r\nx\r\n", "OK|STORED|"),
    ("gat 10 a\r\n", "VALUE a 0 1|x|END|"),
    ("gats 10 a b\r\n", "VALUE a 0 1 *|x|END|"),
    ("mg a t\r\n", "HD t10|"),
    ("gat 0 a\r\nmg a t\r\n", "VALUE a 0 1|x|END|HD t-1|"),
    ("gat 10\r\ngat\r\n", "END|ERROR|"),
    ("gat x a\r\n", "CLIENT_ERROR invalid exptime argument|"),
    ("mg a v\r\nmg a\r\nmg nosuch v\r\n", "VA 1|x|HD|EN|"),
    ("mg a s f t c k O123 v\r\n", "VA 1 s1 f0 t-1 * ka O123|x|"),
    ("mg a q\r\nmg nosuch v q\r\nmn\r\n", "HD|MN|"),
    ("mg a h\r\nmg a l\r\n", "HD h1|HD l0|"),
    ("mg nosuch k O7\r\n", "EN knosuch O7|"),
    ("md nosuch k O7\r\nma nosuch k O7\r\n", "NF knosuch O7|NF knosuch O7|"),
    ("ms nosuch 1 MR k O7\r\nx\r\n", "NS knosuch O7|"),
    ("mg viv N30 v t\r\nmg viv N30 v\r\n", "VA 0 t30 W||VA 0 Z||"),
    ("ms e 1 T5\r\nx\r\nmg e R30 v\r\nmg e R30 v\r\n", "HD|VA 1 W|x|VA 1 Z|x|"),
    ("ms i 1\r\nx\r\nmd i I T30\r\nmg i v c t\r\nmg i v\r\n", "HD|HD|VA 1 * t30 X W|x|VA 1 Z X|x|"),
    ("ms i 1\r\ny\r\nmg i v\r\n", "HD|VA 1|y|"),
    ("mg a z\r\n", "CLIENT_ERROR invalid flag|"),
    ("mg a v v\r\n", "CLIENT_ERROR duplicate flag|"),
    ("mg\r\nmn\r\n", "ERROR|MN|"),
    (
        "ms a x\r\nms a\r\n",
        "CLIENT_ERROR bad command line format|CLIENT_ERROR bad command line format|",
    ),
    ("ms a 1 T0 F5 c k O9\r\nx\r\nmg a f v\r\n", "HD * ka O9|VA 1 f5|x|"),
    ("ms a 1 q\r\nx\r\nms nosuch 1 MR q\r\nx\r\nmn\r\n", "NS|MN|"),
    ("ms a 1 MA\r\ny\r\nmg a v\r\n", "HD|VA 2|xy|"),
    ("ms a 1 MP\r\nz\r\nmg a v\r\n", "HD|VA 3|zxy|"),
    ("ms a 1 ME\r\nz\r\nms nosuch 1 MA\r\nz\r\n", "NS|NS|"),
    ("ms a 1 MX\r\nz\r\nmn\r\n", "CLIENT_ERROR invalid mode for ms M token|MN|"),
    ("ms a 1 S1\r\nz\r\nmn\r\n", "CLIENT_ERROR invalid flag|MN|"),
    ("ms a 1 C1\r\nz\r\nms nosuch 1 C1\r\nz\r\n", "EX|NF|"),
    ("ms YQ== 2 b\r\nzz\r\nmg YQ== b k v\r\n", "HD|VA 2 kYQ== b|zz|"),
    ("ms YQ= 1 b\r\nz\r\nmn\r\n", "CLIENT_ERROR error decoding key|MN|"),
    ("ms a 2\r\nzzz\r\nmn\r\n", "CLIENT_ERROR bad data chunk|ERROR|MN|"),
    ("ms a 0\r\n\r\nmg a v s\r\n", "HD|VA 0 s0||"),
    ("md a C1\r\nmd a q\r\nmd a q\r\nmn\r\n", "EX|NF|MN|"),
    ("ms c 1\r\n5\r\nma c\r\nma c v\r\nma c v D5\r\n", "HD|HD|VA 1|7|VA 2|12|"),
    ("ma c v MD D3\r\nma c v M+ D2\r\nma c v M- D1\r\n", "VA 1|9|VA 2|11|VA 2|10|"),
    ("ma c T50 t v\r\nma c C1 v\r\n", "VA 2 t50|11|EX|"),
    ("ma c MD D99 v\r\n", "VA 1|0|"),
    ("ma c MZ\r\n", "CLIENT_ERROR invalid mode for ma M token|"),
    ("ma nosuch N0 J13 v\r\nma nosuch v\r\ndelete nosuch\r\n", "VA 2|13|VA 2|14|DELETED|"),
    ("ms w 1\r\nx\r\nma w\r\n", "HD|CLIENT_ERROR cannot increment or decrement non-numeric value|"),
    ("me nosuch\r\n", "EN|"),
    ("verbosity 1 noreply\r\nverbosity\r\nverbosity 1\r\n", "ERROR|OK|"),
    ("stats reset\r\nstats bogus\r\n", "RESET|ERROR|"),
    ("stats sizes\r\n", "STAT sizes_status disabled|END|"),
    ("GET a\r\nget c\n", "ERROR|VALUE c 0 2|0 |END|"),
    (
        "\r\nget\r\ngets\r\nincr a\r\nset a\r\nset a 0 0\r\ndelete\r\n",
        "ERROR|ERROR|ERROR|ERROR|ERROR|ERROR|ERROR|",
    ),
    (
        "set c 0 0 3\r\nabc\r\nappend c 5 0 1\r\nd\r\nget c\r\n",
        "STORED|STORED|VALUE c 0 4|abcd|END|",
    ),
    ("get {keys 1000}\r\nget c\r\n", "END|VALUE c 0 4|abcd|END|"),
    ("get c {keys 9000} c\r\nmn\r\n", "VALUE c 0 4|abcd|VALUE c 0 4|abcd|END|MN|"),
    ("gets {keys 300} c\r\n", "VALUE c 0 4 *|abcd|END|"),
    ("gat 0 {keys 300} c\r\n", "VALUE c 0 4|abcd|END|"),
    (
        "set big 0 0 2000000\r\n{value 2000000}\r\nmn\r\n",
        "SERVER_ERROR object too large for cache|MN|",
    ),
    ("ms big 2000000\r\n{value 2000000}\r\nmn\r\n", "SERVER_ERROR object too large for cache|MN|"),
    ("set big 0 0 1000000 noreply\r\n{value 1000000}\r\nmg big s\r\n", "HD s1000000|"),
    ("quit\r\nget c\r\n", "<closed>"),
    ("\u{80}{zeros 23}", "*<closed>"),
];

/// Where the cache differs on purpose: request, its answer, memcached's.
const DIFFERENT: &[(&str, &str, &str)] = &[
    // The bytes of a value are never taken for a command.
    (
        "set k 0 1.5 9\r\nflush_all\r\nget a\r\n",
        "CLIENT_ERROR bad command line format|VALUE a 0 1|x|END|",
        "CLIENT_ERROR bad command line format|OK|END|",
    ),
    (
        "set {251} 0 0 1\r\nx\r\nmn\r\n",
        "CLIENT_ERROR bad command line format|MN|",
        "CLIENT_ERROR bad command line format|ERROR|MN|",
    ),
    ("set f 4294967296 0 1\r\nx\r\n", "CLIENT_ERROR bad command line format|", "STORED|"),
];

/// Writes out what stands in braces.
fn request(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let (what, after) = after.split_once('}').unwrap();
        bytes.extend(before.chars().map(|char| char as u8));
        match what.split_once(' ') {
            Some(("keys", n)) => {
                let keys = (0..n.parse().unwrap()).map(|i: u32| format!("session:{i:026}"));
                bytes.extend(keys.collect::<Vec<_>>().join(" ").bytes());
            }
            Some(("value", n)) => bytes.resize(bytes.len() + n.parse::<usize>().unwrap(), b'v'),
            Some(("zeros", n)) => bytes.resize(bytes.len() + n.parse::<usize>().unwrap(), 0),
            _ => bytes.resize(bytes.len() + what.parse::<usize>().unwrap(), b'k'),
        }
        rest = after;
    }
    bytes.extend(rest.chars().map(|char| char as u8));
    bytes
}

/// Whether an answer is the expected one, in which `*` is any word.
fn is_like(answer: &[u8], expected: &str) -> bool {
    let answer = String::from_utf8_lossy(answer).replace("\r\n", "|");
    let words = |text: &str| text.replace('|', " | ").split(' ').map(str::to_owned).collect();
    let (got, wanted): (Vec<String>, Vec<String>) = (words(&answer), words(expected));
    expected == "*<closed>"
        || got.len() == wanted.len()
            && got.iter().zip(&wanted).all(|(got, wanted)| wanted == "*" || got == wanted)
}

fn shown(answer: &[u8]) -> String {
    let text = String::from_utf8_lossy(answer).replace("\r\n", "|");
    text.chars().take(300).collect()
}

/// Exchanges in order, on one cache: each request, and what it answers or `None` for what was
/// tried before.
fn exchanges() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    let different = DIFFERENT.iter().map(|(ask, ours, theirs)| (*ask, *ours, *theirs));
    let first = [("set a 0 0 1\r\nx\r\n", "STORED|", "STORED|")];
    first.into_iter().chain(different).chain(SAME.iter().map(|(ask, both)| (*ask, *both, *both)))
}

#[test]
fn exchanges_end_as_with_memcached() {
    let mut cache = Kv::new(64 << 20, 1_700_000_000);
    for (ask, ours, _) in exchanges() {
        let (answer, rest) = talk::talk(&request(ask), cache, 8 << 10);
        assert!(
            is_like(&answer, ours.trim_end_matches("<closed>")),
            "{ask:?}: {} for {ours}",
            shown(&answer)
        );
        cache = rest;
    }
}

/// The same bytes to memcached.
#[test]
fn memcached_answers_as_the_table_says() {
    let test = "memcached_answers_as_the_table_says";
    if Command::new("memcached").arg("-V").output().is_err() {
        return skip(test, "memcached is missing");
    }
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("memcached");
    let mut server = Command::new("memcached");
    server.args(["-u", "root", "-s"]).arg(&socket).stderr(Stdio::null());
    let _server = Running(server.spawn().unwrap());
    let connect = || UnixStream::connect(&socket).ok();
    for (ask, _, theirs) in exchanges() {
        let mut stream = wait_for("memcached", connect);
        // The end of the answers shows by an exchange that answers for sure.
        let closes = theirs.ends_with("<closed>");
        let (mut ask_all, mut wanted) = (request(ask), theirs.replace("<closed>", ""));
        if !closes {
            ask_all.extend(b"ms end 3\r\nend\r\nmg end v\r\n");
            wanted += "HD|VA 3|end|";
        }
        let answer = until(&mut stream, &ask_all, b"VA 3\r\nend\r\n");
        assert!(
            closes && wanted.is_empty() || is_like(&answer, &wanted) || wanted == "*",
            "{ask:?}: {} for {wanted}",
            shown(&answer)
        );
    }
}

/// Sends, and reads to the end of the stream or to these bytes.
fn until(stream: &mut (impl Read + Write), ask: &[u8], end: &[u8]) -> Vec<u8> {
    let (mut answer, mut piece) = (Vec::new(), [0; 65_536]);
    let _ = stream.write_all(ask);
    while !answer.ends_with(end) {
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(n) => answer.extend(&piece[..n]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    answer
}
