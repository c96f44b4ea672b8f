use super::*;

fn guard() -> MapGuard<'static> {
    // SAFETY: the tests' vectors outlive the scratch.
    unsafe { MapGuard::assume_mapped() }
}

/// A scratch with one frame of `bytes`, cut into segments of `cut` bytes.
fn scratch_of(bytes: &mut [u8], cut: usize) -> Scratch {
    let mut scratch = Scratch::new(4);
    let (len, mut segs) = (bytes.len(), 0);
    for piece in bytes.chunks_mut(cut) {
        scratch.push_segment(Bytes::of(piece).span());
        segs += 1;
    }
    scratch.end_frame(segs, len);
    scratch.judge(&guard(), &mut [()], |_, _| ());
    scratch
}

fn delivered(scratch: &Scratch, i: FrameIdx) -> Vec<u8> {
    let guard = guard();
    let batch = scratch.batch(&guard);
    let len = batch.frame(i).len();
    let mut out = vec![0xee; len + 64];
    assert_eq!(batch.copy_frame(i, Bytes::of(&mut out)), len);
    assert!(out[len..].iter().all(|byte| *byte == 0xee), "written beyond {len} bytes");
    out.truncate(len);
    out
}

#[test]
fn frames_arrive_as_they_were_however_they_are_cut() {
    for len in [1, 14, 15, 16, 31, 32, 33, 60, 63, 64, 65, 127, 128, 129, 200, 1500] {
        for cut in [1.max(len / 60), 13.max(len / 60), 64, 128, 2000] {
            let mut bytes: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
            let expected = bytes.clone();
            let scratch = scratch_of(&mut bytes, cut);
            assert_eq!(delivered(&scratch, 0), expected, "{len} bytes cut at {cut}");
        }
    }
}

#[test]
fn a_frame_can_be_copied_in_pieces() {
    let mut bytes: Vec<u8> = (0..1000).map(|i| (i / 4) as u8).collect();
    let expected = bytes.clone();
    let scratch = scratch_of(&mut bytes, 333);
    let guard = guard();
    let mut out = Vec::new();
    while out.len() < 1000 {
        let mut piece = [0; 90];
        let n = scratch.batch(&guard).pick(0).copy_range(out.len(), Bytes::of(&mut piece));
        out.extend_from_slice(&piece[..n]);
    }
    assert_eq!(out, expected);
}

#[test]
fn only_frames_that_lie_one_after_the_other_are_consecutive() {
    let mut scratch = Scratch::new(8);
    let mut bytes = [0; 5 * 20];
    bytes.chunks_mut(20).for_each(|frame| scratch.push(Bytes::of(frame).span()));
    let guard = guard();
    let batch = scratch.batch(&guard);
    let count = |list: &[FrameIdx]| batch.consecutive(list).map(|frames| frames.len());
    assert_eq!(count(&[0, 1, 2, 3, 4]), Some(5));
    assert_eq!(count(&[2, 3]), Some(2));
    assert_eq!(count(&[4]), Some(1));
    for list in [&[][..], &[1, 3], &[2, 1], &[1, 1], &[0, 1, 3, 3], &[3, 4, 5], &[5]] {
        assert_eq!(count(list), None, "{list:?}");
    }
}

#[test]
fn a_head_cannot_change_after_it_was_taken() {
    let mut bytes = vec![1u8; 200];
    let scratch = scratch_of(&mut bytes, 200);
    bytes.fill(2);
    let out = delivered(&scratch, 0);
    assert!(out[..HEAD].iter().all(|b| *b == 1), "the head was judged as ones");
    assert!(out[HEAD..].iter().all(|b| *b == 2), "the payload is lent");
}

#[test]
fn tags_are_added_and_removed_without_touching_the_payload() {
    let lens = [28, 32, 60, 61, 63, 64, 65, 68, 124, 125, 126, 127, 128, 130, 132, 400];
    for (len, cut) in lens.into_iter().flat_map(|len| [(len, 77), (len, len)]) {
        let mut bytes: Vec<u8> = (0..len).map(|i| (i * 3) as u8).collect();
        let expected = bytes.clone();
        let mut scratch = scratch_of(&mut bytes, cut);
        let tagged = scratch.with_tag(0, 0x2005).unwrap();
        let mut want = expected.clone();
        want.splice(12..12, [0x81, 0, 0x20, 5]);
        assert_eq!(delivered(&scratch, tagged), want, "{len}");
        let untagged = scratch.without_tag(usize::from(tagged)).unwrap();
        assert_eq!(delivered(&scratch, untagged), expected, "{len}");
        assert_eq!(delivered(&scratch, 0), expected, "the original is as it was");
    }
}

#[test]
fn a_frame_of_no_segments_has_none_of_an_earlier_batch() {
    let mut bytes = [9; 64];
    let mut scratch = scratch_of(&mut bytes, 64);
    scratch.clear();
    scratch.end_frame(0, 0);
    scratch.judge(&guard(), &mut [()], |_, len| assert_eq!(len, 0));
    assert!(delivered(&scratch, 0).is_empty());
}
