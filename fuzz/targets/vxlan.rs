//! Datagrams of any bytes from a tunnel's underlay, as VXLAN and as Geneve: only frames of the
//! segment come out, nothing but a congestion mark, a SYN's segment sizes and their checksums
//! changes in them, and what is merged of them is cut into the same again.
//!
//! Input: the outer codepoint, then datagrams, each behind its length (two bytes).
#![no_main]

use frame::{Ecn, Encapsulation, Run, checksum, clamp_mss, ecn_of, leave_tunnel};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((outer, rest)) = input.split_first() else { return };
    for way in [Encapsulation::Vxlan, Encapsulation::Geneve] {
        run(way, Ecn::of_tos(*outer), rest);
    }
});

fn run(way: Encapsulation, outer: Ecn, mut rest: &[u8]) {
    let mut frames = Vec::new();
    while let Some((len, after)) = rest.split_first_chunk() {
        let (datagram, after) = after.split_at(after.len().min(u16::from_be_bytes(*len).into()));
        rest = after;
        frames.extend(decapsulate(way, datagram, outer));
    }
    let mut frames = frames.iter();
    let Some(mut first) = frames.next() else { return };
    let (mut run, mut merged) = (Run::begin(first), vec![first]);
    for frame in frames {
        let taken = run.as_mut().and_then(|run| run.push(first, frame));
        if let Some(payload) = taken {
            assert_eq!(payload.end, frame.len());
            merged.push(frame);
            continue;
        }
        check(run, &merged);
        (first, run, merged) = (frame, Run::begin(frame), vec![frame]);
    }
    check(run, &merged);
}

/// The frame in a datagram.
fn decapsulate(way: Encapsulation, datagram: &[u8], outer: Ecn) -> Option<Vec<u8>> {
    let (_, at) = way.open(datagram).ok().filter(|(vni, _)| *vni == 7)?;
    assert_eq!(datagram[4..7], [0, 0, 7]);
    let before = &datagram[at..];
    assert!(before.len() >= 14);
    let mut frame = before.to_vec();
    let kept = leave_tunnel(&mut frame, outer);
    let changed = before.iter().zip(&frame).filter(|(a, b)| a != b).count();
    assert!(changed <= 3, "a mark and a checksum");
    assert!(kept || (outer == Ecn::Ce && ecn_of(before) == Ecn::NotEct && changed == 0));
    let mut clamped = frame.clone();
    if clamp_mss(&mut clamped, 1450) {
        let changed = frame.iter().zip(&clamped).filter(|(a, b)| a != b).count();
        // Ten options of four bytes.
        assert!(changed <= 2 * 10 + 2, "sizes and a checksum");
        assert!(!clamp_mss(&mut clamped, 1450), "once is enough");
    }
    kept.then_some(frame)
}

/// The merged frame must be cut into the same segments again, except for IPv4 identifications
/// without a meaning.
fn check(run: Option<Run>, merged: &[&Vec<u8>]) {
    let Some(run) = run else { return assert_eq!(merged.len(), 1) };
    assert_eq!(usize::from(run.segments()), merged.len());
    if merged.len() == 1 {
        return;
    }
    let mut whole = merged[0].clone();
    let bytes = merged.iter().map(|frame| frame.len()).sum::<usize>();
    let headers = (bytes - run.len()) / (merged.len() - 1);
    merged[1..].iter().for_each(|frame| whole.extend_from_slice(&frame[headers..]));
    let mut request = run.finish(&mut whole);
    let head = &whole[..whole.len().min(128)];
    assert!(request.validate(head, whole.len()).is_ok(), "a request that cannot be met");
    let segments = request.segments(head, whole.len()).expect("several segments");
    assert_eq!(segments.count(), merged.len());
    for (i, frame) in merged.iter().enumerate() {
        let mut piece = whole[..segments.header_len()].to_vec();
        piece.extend_from_slice(&whole[segments.payload(i)]);
        segments.write_headers(i, &mut piece);
        let left = request.of_segment();
        assert!(checksum::complete(&mut piece, left.checksum_start, left.checksum_offset));
        assert_eq!(piece.len(), frame.len());
        let is_v4 = frame[12..14] == [8, 0];
        // Ignores the identification and the header checksum. TCP checksums of 0 and 0xffff are the
        // same number.
        let ignored = |at: usize| is_v4 && (matches!(at, 18 | 19 | 24 | 25));
        let sum = usize::from(left.checksum_start) + 16;
        let differs =
            |at: &usize| piece[*at] != frame[*at] && !ignored(*at) && !(sum..sum + 2).contains(at);
        assert_eq!((0..frame.len()).find(differs), None, "segment {i}");
    }
}
