//! Capture files as other programs write them, whole and damaged: what tcpdump or tshark reads of
//! one is what is read here, and what is left out is named and counted.

use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use ::pcap::file::{self, CaptureError, Captured, Direction, LeftOut, Recording, parse};
use harness::skip;
use proptest::prelude::*;

/// Seconds since 1970.
const START: u64 = 1_700_000_000;

/// The byte order of a file.
#[derive(Clone, Copy, Debug)]
enum Order {
    Little,
    Big,
}
use Order::{Big, Little};

impl Order {
    fn half(self, number: u16) -> [u8; 2] {
        match self {
            Little => number.to_le_bytes(),
            Big => number.to_be_bytes(),
        }
    }

    fn words(self, numbers: &[u32]) -> Vec<u8> {
        let bytes = |number: &u32| match self {
            Little => number.to_le_bytes(),
            Big => number.to_be_bytes(),
        };
        numbers.iter().flat_map(bytes).collect()
    }
}

/// Five frames of a station.
fn frames() -> Vec<Vec<u8>> {
    let head = |i| [[0xff; 6], [2, 0, 0, 0, 9, i]].concat();
    (1..=5_u8).map(|i| [head(i), vec![0x88, 0xb5], vec![i; 46 + usize::from(i)]].concat()).collect()
}

/// A pcap file: packets with these times (seconds and a fraction).
fn pcap(order: Order, magic: u32, minor: u16, link: u32, times: &[[u32; 2]]) -> Vec<u8> {
    let mut file = [
        order.words(&[magic]),
        [order.half(2), order.half(minor)].concat(),
        order.words(&[0, 0, 65_535, link]),
    ]
    .concat();
    for (frame, [seconds, fraction]) in frames().iter().cycle().zip(times) {
        let len = frame.len() as u32;
        file.extend(order.words(&[*seconds, *fraction, len, len]));
        if magic == 0xa1b2_cd34 {
            file.extend([0; 8]);
        }
        file.extend(frame);
    }
    file
}

/// Five packets, a thousand units apart.
fn usual(order: Order, magic: u32) -> Vec<u8> {
    pcap(order, magic, 4, 1, &std::array::from_fn::<_, 5, _>(|i| [START as u32, i as u32 * 1000]))
}

/// Five packets at these seconds.
fn at(seconds: [u32; 5]) -> Vec<u8> {
    pcap(Little, 0xa1b2_c3d4, 4, 1, &seconds.map(|second| [second, 0]))
}

fn block(order: Order, kind: u32, body: &[u8]) -> Vec<u8> {
    let len = 12 + body.len().next_multiple_of(4);
    let mut block = order.words(&[kind, len as u32]);
    block.extend(body);
    block.resize(len - 4, 0);
    block.extend(order.words(&[len as u32]));
    block
}

fn section(order: Order) -> Vec<u8> {
    let body = [order.words(&[0x1a2b_3c4d]), order.half(1).to_vec(), order.half(0).to_vec()];
    block(order, 0x0a0d_0d0a, &[body.concat(), vec![0xff; 8]].concat())
}

fn interface(order: Order, link: u16, options: &[(u16, &[u8])]) -> Vec<u8> {
    let mut body = [order.half(link), order.half(0)].concat();
    body.extend(order.words(&[65_535]));
    for (code, value) in options {
        body.extend([order.half(*code), order.half(value.len() as u16)].concat());
        body.extend(*value);
        body.resize(body.len().next_multiple_of(4), 0);
    }
    block(order, 1, &body)
}

fn packet(order: Order, interface: u32, time: u64, frame: &[u8]) -> Vec<u8> {
    let (high, low, len) = ((time >> 32) as u32, time as u32, frame.len() as u32);
    let head = order.words(&[interface, high, low, len, len]);
    block(order, 6, &[&head, frame].concat())
}

/// A pcapng file of five packets, `step` units apart.
fn pcapng(order: Order, resolution: Option<u8>, first: u64, step: u64) -> Vec<u8> {
    let value = resolution.map(|resolution| [resolution]);
    let options: Vec<(u16, &[u8])> = value.iter().map(|value| (9, &value[..])).collect();
    let mut file = [section(order), interface(order, 1, &options)].concat();
    for (i, frame) in (0..).zip(frames()) {
        file.extend(packet(order, 0, first + i * step, &frame));
    }
    file
}

/// A file: its name, its bytes, and what is left out of it.
type Case = (&'static str, Vec<u8>, &'static str);

/// Files of five frames that are all there, 1 ms apart.
fn whole() -> Vec<Case> {
    let (micro, nano, kuznetzov) = (0xa1b2_c3d4, 0xa1b2_3c4d, 0xa1b2_cd34);
    let mut files = vec![("old patch", usual(Little, kuznetzov), "nothing")];
    for order in [Little, Big] {
        files.push(("us", usual(order, micro), "nothing"));
        files.push(("us ng", pcapng(order, None, START * 1_000_000, 1000), "nothing"));
        files.push(("ns ng", pcapng(order, Some(9), START * 1_000_000_000, 1_000_000), "nothing"));
        files.push(("2^-32 ng", pcapng(order, Some(0xa0), START << 32, 4_294_968), "nothing"));
        let times: [[u32; 2]; 5] = std::array::from_fn(|i| [START as u32, i as u32 * 1_000_000]);
        files.push(("ns", pcap(order, nano, 4, 1, &times), "nothing"));
        files.push((
            "version 2.3",
            pcap(order, micro, 3, 1, &times.map(|[s, f]| [s, f / 1000])),
            "nothing",
        ));
        files.push((
            "late",
            pcap(order, micro, 4, 1, &times.map(|[s, f]| [s - 1, f / 1000 + 1_000_000])),
            "nothing",
        ));
    }
    files
}

/// Files that are cut or damaged, or have blocks and times that are seldom seen.
fn odd() -> Vec<Case> {
    let usual = || usual(Little, 0xa1b2_c3d4);
    let ng = || pcapng(Little, None, START * 1_000_000, 1000);
    let cut = |mut file: Vec<u8>, by: usize| {
        file.truncate(file.len() - by);
        file
    };
    let old = |(i, frame): (u32, Vec<u8>)| {
        let (time, len) = (START * 1_000_000 + u64::from(i), frame.len() as u32);
        let head = Little.words(&[0, (time >> 32) as u32, time as u32, len, len]);
        block(Little, 2, &[head, frame].concat())
    };
    let simple =
        |frame: Vec<u8>| block(Little, 3, &[Little.words(&[frame.len() as u32]), frame].concat());
    let start = || [section(Little), interface(Little, 1, &[])].concat();
    let mut broken = ng();
    let middle = broken.len() - 200;
    broken[middle..].fill(0x55);
    vec![
        ("cut in a packet", cut(usual(), 20), "the last 61 bytes (a cut packet at byte 338)"),
        (
            "cut in a header",
            cut(usual(), 70),
            "the last 11 bytes (a cut packet header at byte 338)",
        ),
        (
            "zeros at the end",
            [usual(), vec![0; 512]].concat(),
            "32 frames shorter than an Ethernet header",
        ),
        (
            "from 1970 to today",
            at([0, 0, START as u32, START as u32, START as u32]),
            "1 jump of the clock",
        ),
        (
            "back in time",
            at([9, 5, 9, 2, 9].map(|s| START as u32 + 10_000 * s)),
            "2 jumps of the clock",
        ),
        ("cut pcapng", cut(ng(), 30), "the last 70 bytes (a cut block at byte 432)"),
        ("broken pcapng", broken, "the last 292 bytes (a block whose lengths differ at byte 240)"),
        ("no times", pcapng(Little, None, 0, 0), "nothing"),
        (
            "simple",
            [start(), frames().into_iter().map(simple).collect::<Vec<_>>().concat()].concat(),
            "nothing",
        ),
        (
            "old blocks",
            [start(), (0..).zip(frames()).map(old).collect::<Vec<_>>().concat()].concat(),
            "nothing",
        ),
    ]
}

/// Files with several interfaces or sections.
fn mixed() -> Vec<Case> {
    let (frames, us) = (frames(), START * 1_000_000);
    let ethernet = || [section(Little), interface(Little, 1, &[])].concat();
    let of = |order, number, time, i: usize| packet(order, number, time, &frames[i]);
    let all = (0..5).flat_map(|i| of(Little, 0, us + i as u64, i)).collect();
    let raw = interface(Little, 101, &[]);
    let offset = interface(Little, 1, &[(14, &START.to_le_bytes())]);
    let nano = interface(Little, 1, &[(9, &[9])]);
    let unknown = [block(Little, 0x0bad, b"abcd"), block(Little, 0x8000_0001, b"")].concat();
    let ip = packet(Little, 1, us, &[[0x45; 1].to_vec(), vec![0; 39]].concat());
    vec![
        ("unused loopback", [ethernet(), interface(Little, 113, &[]), all].concat(), "nothing"),
        (
            "mixed links",
            [ethernet(), raw, of(Little, 0, us, 0), ip, of(Little, 0, us + 1, 1)].concat(),
            "1 frame of another link type",
        ),
        (
            "offset",
            [ethernet(), offset, of(Little, 0, us, 0), of(Little, 1, 5, 1)].concat(),
            "nothing",
        ),
        (
            "units",
            [ethernet(), nano, of(Little, 0, us, 0), of(Little, 1, us * 1000 + 7, 1)].concat(),
            "nothing",
        ),
        (
            "sections",
            [
                ethernet(),
                of(Little, 0, us, 0),
                section(Big),
                interface(Big, 1, &[]),
                of(Big, 0, us + 9, 1),
            ]
            .concat(),
            "nothing",
        ),
        ("unknown blocks", [ethernet(), unknown, of(Little, 0, us, 0)].concat(), "nothing"),
        (
            "no interface",
            [ethernet(), of(Little, 0, us, 0), of(Little, 3, us, 1)].concat(),
            "1 frame of an unknown interface",
        ),
    ]
}

/// The nanoseconds since the first frame and the bytes of each frame.
fn read(recording: &Recording) -> Vec<(u64, Vec<u8>)> {
    let frame = |i| {
        let (at, bytes) = recording.frame(i);
        (at.as_nanos() as u64, bytes.to_vec())
    };
    (0..recording.len()).map(frame).collect()
}

fn parsed(name: &str, file: &[u8]) -> Recording {
    parse(file).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn whole_captures_give_frames_and_times_in_every_order_and_unit() {
    let expected: Vec<_> = (0..).map(|i| i * 1_000_000).zip(frames()).collect();
    for (name, file, left_out) in whole() {
        let recording = parsed(name, &file);
        let found = read(&recording);
        let near = found
            .iter()
            .zip(&expected)
            .all(|(found, expected)| found.1 == expected.1 && found.0.abs_diff(expected.0) < 300);
        assert!(found.len() == 5 && near, "{name}: {found:?}");
        assert_eq!(recording.left_out().to_string(), left_out, "{name}");
    }
}

#[test]
fn damaged_captures_give_what_is_whole_and_say_what_is_left_out() {
    for (name, file, left_out) in odd().into_iter().chain(mixed()) {
        let recording = parsed(name, &file);
        assert_eq!(recording.left_out().to_string(), left_out, "{name}");
        let all: Vec<_> = read(&recording).into_iter().map(|(_, frame)| frame).collect();
        assert_eq!(all, frames()[..all.len()], "{name}: the first frames, whole");
        assert!(recording.duration() < Duration::from_secs(1), "{name}: no jump is waited for");
    }
}

/// The frames' lengths as tcpdump, or tshark, prints them. tcpdump stops at an interface of another
/// link type, and does not change the byte order.
fn peers(program: &str, file: &[u8]) -> Vec<usize> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("capture");
    std::fs::write(&path, file).unwrap();
    let mut command = Command::new(program);
    let filter = "frame.encap_type == 1 && frame.len >= 14";
    match program {
        "tcpdump" => command.args(["-enn", "-r"]).arg(&path),
        _ => command.args(["-T", "fields", "-e", "frame.len", "-Y", filter, "-r"]).arg(&path),
    };
    let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
    let of_tcpdump =
        |line: &str| Some(line.split_once(", length ")?.1.split(':').next()?.parse().unwrap());
    let of_tshark = |line: &str| line.trim().parse().ok();
    text.lines()
        .filter_map(|line| if program == "tcpdump" { of_tcpdump(line) } else { of_tshark(line) })
        .collect()
}

fn is_here(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        skip(
            "what_tcpdump_and_tshark_read_of_a_capture_is_read_here",
            &format!("{program} is missing"),
        );
    }
    found
}

#[test]
fn what_tcpdump_and_tshark_read_of_a_capture_is_read_here() {
    let lengths = |file: &[u8]| {
        read(&parse(file).unwrap()).iter().map(|(_, frame)| frame.len()).collect::<Vec<_>>()
    };
    if is_here("tcpdump") {
        for (name, file, _) in whole().into_iter().chain(odd()) {
            let of_peer: Vec<_> =
                peers("tcpdump", &file).into_iter().filter(|len| *len >= 14).collect();
            assert_eq!(lengths(&file), of_peer, "{name}");
        }
    }
    if is_here("tshark") {
        std::thread::scope(|scope| {
            for (name, file, _) in mixed().into_iter().filter(|case| case.0 != "no interface") {
                scope.spawn(move || assert_eq!(lengths(&file), peers("tshark", &file), "{name}"));
            }
        });
    }
}

#[test]
fn frames_cut_by_the_snap_length_are_counted_and_check_sequences_are_not_sent() {
    let mut file = usual(Little, 0xa1b2_c3d4);
    let len = frames()[0].len();
    file[24 + 12] = 200;
    let recording = parse(&file).unwrap();
    assert_eq!((recording.len(), recording.left_out().cut_short), (4, 1));
    // Link types with the FCS's length: two words.
    let file = pcap(Little, 0xa1b2_c3d4, 4, 0x2400_0001, &[[0, 0]]);
    assert_eq!(parse(&file).unwrap().frame(0).1, &frames()[0][..len - 4]);
    let file =
        [section(Little), interface(Little, 1, &[(13, &[4])]), packet(Little, 0, 0, &frames()[0])];
    assert_eq!(parse(&file.concat()).unwrap().frame(0).1, &frames()[0][..len - 4]);
}

#[test]
fn what_cannot_be_used_at_all_says_why() {
    let why = |file: &[u8]| parse(file).unwrap_err().to_string();
    assert!(why(b"").contains("shorter than a number"));
    assert!(why(b"GIF89a").contains("begins with another number"));
    assert!(why(&[0x1f, 0x8b, 8, 0]).contains("compressed; unpack it first"));
    assert!(why(&usual(Little, 0xa1b2_c3d4)[..20]).contains("cut in the file header"));
    assert!(why(&section(Big)[..10]).contains("a cut block"));
    assert_eq!(why(&usual(Little, 0xa1b2_c3d4)[..24]), "The capture has no frames");
    let cut = why(&usual(Little, 0xa1b2_c3d4)[..60]);
    assert!(cut.ends_with("the last 36 bytes (a cut packet at byte 24)"), "{cut}");
    let loopback = pcap(Little, 0xa1b2_c3d4, 4, 113, &[[0, 0]]);
    assert!(matches!(parse(&loopback), Err(CaptureError::LinkType(113))));
}

#[test]
fn what_is_written_is_read() {
    let mut bytes = Vec::new();
    file::section(&mut bytes);
    file::interface(&mut bytes, Some("vale0:p1"), 64);
    for (at, frame) in (0..).zip(frames()) {
        let (at, len) = (Duration::new(START, at * 1_000_007), frame.len());
        let captured = Captured {
            at,
            port: "test",
            direction: Direction::Sent,
            len,
            bytes: &frame,
            comment: Some("why"),
        };
        file::packet(&mut bytes, 0, &captured, 64);
    }
    let recording = parse(&bytes).unwrap();
    assert_eq!((recording.len(), recording.left_out().cut_short), (4, 1), "one is longer than 64");
    assert_eq!(recording.duration().as_nanos(), 3 * 1_000_007);
    if is_here("tshark") {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("capture");
        std::fs::write(&path, &bytes).unwrap();
        let fields = ["frame.comment", "frame.interface_name", "frame.packet_flags_direction"];
        let fields = fields.map(|field| ["-e", field]).concat();
        let mut tshark = Command::new("tshark");
        let shown = tshark.args(["-T", "fields", "-r"]).arg(&path).args(fields).output().unwrap();
        let shown = String::from_utf8(shown.stdout).unwrap();
        assert_eq!(shown, "why\tvale0:p1\t0x00000002\n".repeat(5));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_bytes_are_read_or_refused(
        which in 0..64_usize,
        noise in proptest::collection::vec((0usize..600, any::<u8>()), 0..8),
        cut in 24usize..600,
    ) {
        static FILES: LazyLock<Vec<Case>> =
            LazyLock::new(|| [whole(), odd(), mixed()].into_iter().flatten().collect());
        let mut file = FILES[which % FILES.len()].1.clone();
        for (at, byte) in noise {
            let at = at % file.len();
            file[at] = byte;
        }
        file.truncate(cut);
        match parse(&file) {
            Ok(recording) => {
                let (bytes, frames) = recording.into_parts();
                prop_assert!(bytes.len() <= file.len() && frames.is_sorted_by_key(|frame| frame.at));
                prop_assert_eq!(frames.last().unwrap().end, bytes.len());
            }
            Err(CaptureError::Empty(left_out)) => prop_assert!(left_out.frames() <= file.len() as u64),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
        prop_assert!(LeftOut::default().is_nothing());
    }
}
