//! Offload requests over any bytes are refused, or can be met: every segment has a checksum that is
//! right if the frame's was begun as it should be, all payload is there once, and no header that
//! was judged changes.
#![no_main]

use frame::{Facts, Identity, MAX_SEGMENTS, Mac, OFFLOAD_HEADER, Offload, checksum};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: ([u8; OFFLOAD_HEADER], Vec<u8>)| {
    let (header, frame) = input;
    let mut offload = Offload::from_header(&header);
    let head = &frame[..frame.len().min(128)];
    let Ok(longest) = offload.validate(head, frame.len()) else { return };
    assert!(longest <= frame.len());
    let mut again = offload;
    assert_eq!(again.validate(head, frame.len()), Ok(longest));
    assert_eq!(again, offload);
    let Some(segments) = offload.segments(head, frame.len()) else {
        assert!(!offload.is_segmented());
        if offload.needs_checksum() {
            let mut whole = frame.clone();
            let (start, offset) = (offload.checksum_start, offload.checksum_offset);
            assert!(checksum::complete(&mut whole, start, offset));
            let field = usize::from(start) + usize::from(offset);
            assert_eq!(
                (&whole[..field], &whole[field + 2..]),
                (&frame[..field], &frame[field + 2..])
            );
            assert!(field >= 14);
            // What was judged is what is delivered.
            let written = &whole[..head.len()];
            assert_eq!(Facts::of(written), Facts::of(head));
            let own = Identity::new(&[Mac::local(1)], &[[10, 0, 0, 7].into()]);
            assert_eq!(own.forged(written), own.forged(head));
        }
        return;
    };
    assert!((2..=MAX_SEGMENTS).contains(&segments.count()));
    let mut payload = Vec::new();
    for i in 0..segments.count() {
        let mut piece = frame[..segments.header_len()].to_vec();
        piece.extend_from_slice(&frame[segments.payload(i)]);
        assert!(piece.len() <= longest);
        segments.write_headers(i, &mut piece);
        let left = offload.of_segment();
        assert!(checksum::complete(&mut piece, left.checksum_start, left.checksum_offset));
        assert_eq!(piece[..14], frame[..14]);
        payload.extend_from_slice(&piece[segments.header_len()..]);
    }
    assert_eq!(payload, frame[segments.header_len()..]);
});
