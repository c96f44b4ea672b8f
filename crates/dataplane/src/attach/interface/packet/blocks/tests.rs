//! The test plays the kernel's part.
#![allow(unsafe_code, reason = "frames are looked at in the ring")]

use super::*;

const RINGS: PacketRings = PacketRings { blocks: 4, block_len: 4096, uso: true };
/// Where a frame's bytes begin behind its header.
const MAC: usize = 96;
/// Bytes from a frame to the next.
const STEP: usize = 512;

fn ring() -> (Arc<Mapping>, Blocks) {
    let mapping = Mapping::private(4 * 4096).unwrap();
    let blocks = Blocks::over(&mapping, RINGS).unwrap();
    (mapping, blocks)
}

/// Writes a frame of `len` bytes, all of them `fill`.
fn write(mapping: &Mapping, at: usize, next: usize, (len, fill): (usize, u8)) {
    let frame = mapping.bytes(at, STEP).unwrap();
    frame.write(0, next as u32);
    frame.write(12, len as u32);
    frame.write(16, len as u32);
    frame.write(20, 1u32);
    frame.write(24, MAC as u16);
    frame.suffix(MAC - OFFLOAD_HEADER).copy_in(&[0; OFFLOAD_HEADER]);
    frame.suffix(MAC).copy_in(&vec![fill; len]);
}

/// Hands a block with these frames over, as number `number`.
fn hand_over(mapping: &Arc<Mapping>, block: usize, number: u64, frames: &[(usize, u8)]) {
    let at = block * 4096;
    for (i, frame) in frames.iter().enumerate() {
        let next = if i + 1 < frames.len() { STEP } else { 0 };
        write(mapping, at + 128 + i * STEP, next, *frame);
    }
    let header = mapping.shared::<BlockHeader>(at).unwrap();
    header[FRAMES].store(frames.len() as u32, Ordering::Relaxed);
    header[FIRST].store(128, Ordering::Relaxed);
    header[NUMBER.0].store(number as u32, Ordering::Relaxed);
    header[STATUS].store(USER, Ordering::Release);
}

fn owner(mapping: &Arc<Mapping>, block: usize) -> u32 {
    mapping.shared::<BlockHeader>(block * 4096).unwrap()[STATUS].load(Ordering::Acquire)
}

/// The length and the first byte of the next frame.
fn take(blocks: &mut Blocks) -> Option<(usize, u8)> {
    match blocks.take()? {
        Found::Frame(span, _) => {
            // SAFETY: the mapping lives as long as the ring.
            let bytes = unsafe { span.bytes() }.to_vec();
            Some((bytes.len(), bytes[0]))
        }
        Found::TooLong(len) => Some((len, 0)),
    }
}

#[test]
fn frames_come_in_order_and_a_block_goes_back_with_its_last_frame() {
    let (mapping, mut blocks) = ring();
    assert_eq!((take(&mut blocks), blocks.has_frames()), (None, false));
    hand_over(&mapping, 0, 1, &[(60, 1), (61, 2)]);
    hand_over(&mapping, 1, 2, &[(62, 3)]);
    for expected in [(60, 1), (61, 2), (62, 3)] {
        assert_eq!(take(&mut blocks), Some(expected));
    }
    assert_eq!(take(&mut blocks), None);
    for (frames, owners) in [(1, [USER, USER]), (1, [KERNEL, USER]), (1, [KERNEL, KERNEL])] {
        blocks.give_back(frames);
        assert_eq!([owner(&mapping, 0), owner(&mapping, 1)], owners);
    }
}

#[test]
fn a_ring_that_is_lent_whole_is_not_read_again() {
    let (mapping, mut blocks) = ring();
    for round in 0..3 {
        for block in 0..4 {
            hand_over(&mapping, block, round * 4 + block as u64 + 1, &[(60, block as u8)]);
        }
        for block in 0..4 {
            assert_eq!(take(&mut blocks), Some((60, block)), "round {round}");
        }
        assert_eq!((take(&mut blocks), blocks.has_frames()), (None, false));
        blocks.give_back(4);
        assert!((0..4).all(|block| owner(&mapping, block) == KERNEL));
    }
}

#[test]
fn an_empty_block_and_one_of_truncated_frames_go_back_at_once() {
    let (mapping, mut blocks) = ring();
    hand_over(&mapping, 0, 1, &[]);
    hand_over(&mapping, 1, 2, &[(60, 1)]);
    mapping.bytes(4096 + 128 + 16, 4).unwrap().write(0, 70u32);
    assert_eq!(take(&mut blocks), Some((70, 0)));
    assert_eq!([owner(&mapping, 0), owner(&mapping, 1)], [KERNEL, KERNEL]);
    assert_eq!(take(&mut blocks), None);
}

#[test]
fn a_new_process_begins_with_the_oldest_block_else_with_the_one_that_is_filled() {
    let (mapping, _) = ring();
    hand_over(&mapping, 2, 7, &[(60, 7)]);
    hand_over(&mapping, 3, 8, &[(60, 8)]);
    hand_over(&mapping, 0, 9, &[(60, 9)]);
    let mut next = Blocks::over(&mapping, RINGS).unwrap();
    for fill in 7..=9 {
        assert_eq!(take(&mut next), Some((60, fill)));
    }
    next.give_back(3);
    // The kernel has opened the next block, but has not handed it over.
    mapping.shared::<BlockHeader>(4096).unwrap()[NUMBER.0].store(10, Ordering::Relaxed);
    let mut third = Blocks::over(&mapping, RINGS).unwrap();
    hand_over(&mapping, 1, 10, &[(60, 10)]);
    assert_eq!(take(&mut third), Some((60, 10)));
}

#[test]
fn a_tag_that_the_kernel_took_out_is_back_and_the_request_moves() {
    let (mapping, mut blocks) = ring();
    hand_over(&mapping, 0, 1, &[(60, 5)]);
    let frame = mapping.bytes(128, STEP).unwrap();
    frame.write(20, 1 | TAGGED | TAG_KIND);
    frame.write(32, 0x2064u32);
    frame.write(36, 0x88a8u16);
    let asked = Offload {
        flags: Offload::NEEDS_CHECKSUM,
        checksum_start: 34,
        checksum_offset: 16,
        ..Offload::NONE
    };
    frame.suffix(MAC - OFFLOAD_HEADER).copy_in(&asked.header());
    let Some(Found::Frame(span, request)) = blocks.take() else { panic!("no frame") };
    // SAFETY: the mapping lives as long as the ring.
    let bytes = unsafe { span.bytes() }.to_vec();
    assert_eq!(bytes, [&[5; 12][..], &[0x88, 0xa8, 0x20, 0x64], &[5; 48]].concat());
    assert_eq!(request, Offload { checksum_start: 38, ..asked });
}

#[test]
fn words_of_any_value_lead_to_no_byte_outside_of_the_block() {
    let (mapping, mut blocks) = ring();
    let mut seed = 1u64;
    let mut random = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as u32 >> (seed >> 59)
    };
    for round in 0..20_000 {
        let block = blocks.at;
        let at = block * 4096;
        for word in 0..1024 {
            if round % 3 == 0 || word < 60 {
                mapping.bytes(at + 4 * word, 4).unwrap().write(0, random());
            }
        }
        let header = mapping.shared::<BlockHeader>(at).unwrap();
        header[STATUS].store(USER, Ordering::Release);
        let mut taken = 0;
        // If a block claims more frames than it has room for, the ring leaves it where they exceed
        // it.
        while blocks.at == block && taken < 5000 {
            let Some(found) = blocks.take() else { break };
            taken += 1;
            if let Found::Frame(span, _) = found {
                // SAFETY: the mapping lives as long as the ring.
                let start = unsafe { span.bytes() }.as_ptr() as usize - mapping.address();
                assert!(start >= at && start + span.len() <= at + 4096, "{start} {}", span.len());
                blocks.give_back(1);
            }
        }
        assert!(taken < 5000);
    }
}
