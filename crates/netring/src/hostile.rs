//! The target of a fuzzer: our end of a pipe whose other end writes arbitrary data.

use std::sync::atomic::Ordering::Relaxed;

use crate::layout::{Control, RingMemory, SlotWord};
use crate::{Interest, PipeConfig, PortError, Region, RegionConfig, pipe};

/// Lets a hostile peer write to the rings of a pipe between the calls of an honest end, as `script`
/// says. Returns the error by which the honest end noticed, if it did.
///
/// No script may cause a panic or a long run: that is what is tested. Each step of the script has 9
/// bytes: an action, a position, and 8 bytes to write there.
#[doc(hidden)]
#[expect(clippy::expect_used, reason = "a fuzzer wants to hear of it")]
pub fn drive_hostile_pipe(script: &[u8]) -> Option<PortError> {
    const SLOTS: u32 = 8;
    let sizes = RegionConfig::default().interfaces(2).rings(4).slots(SLOTS).buffers(2 * SLOTS);
    let region = Region::private(sizes).expect("a small region");
    let config =
        PipeConfig::default().slots(SLOTS).in_region(&region).offloads(frame::OffloadSet::ALL);
    let (mut honest, peer) = pipe(&config).expect("a pipe in it");
    let (geometry, mapping) = (region.geometry(), region.mapping());
    let rings: Vec<RingMemory> = (0..geometry.ring_num)
        .map(|ring| RingMemory::of(mapping, &geometry, ring, SLOTS).expect("its rings"))
        .collect();
    let mut bytes = [0; 4096];
    for step in script.chunks_exact(9) {
        let (op, at) = (step[0], step[0] / 8);
        let value = u64::from_le_bytes(step[1..9].try_into().expect("8 bytes"));
        let ring = &rings[usize::from(at) % rings.len()];
        match op % 8 {
            0 => control_word(&ring.control, value),
            1 => {
                let slot = &ring.slots[(value >> 61) as usize];
                slot.ptr.store(value.rotate_right(u32::from(at)), Relaxed);
                slot.store(SlotWord::from_bits(value));
            }
            2 => ring.control.core.0.publish(value as u32),
            3 => ring.control.owner.0.publish(value as u32),
            4 => {
                honest.send(value as usize % 16).push(&bytes[..(value >> 8) as usize % 4096]);
            }
            5 => {
                for frame in honest.receive(value as usize % 16) {
                    assert!(frame.copy_out(&mut bytes) <= frame.len());
                    assert!(frame.slot_count() < SLOTS as usize);
                    let _ = frame.offload().validate(&bytes[..128], frame.len());
                    frame.into_slots().for_each(|slot| assert!(slot.len() <= bytes.len()));
                }
            }
            6 => {
                if let Some((mut out, mut batch)) = honest.queue(0).both(8, 8) {
                    while let Some(frame) = batch.next_within(out.room()) {
                        let _ = out.forward(frame);
                    }
                }
            }
            _ => {
                let ready = honest.arm(Interest::all());
                assert!(ready.any() || honest.send(1).room() == 0);
                if let Err(error) = honest.disarm().and_then(|()| honest.flush()) {
                    return Some(error);
                }
            }
        }
    }
    drop(peer);
    honest.flush().err()
}

/// Writes to the flags of a ring: wake-ups, faults, resets.
fn control_word(control: &Control, value: u64) {
    let (owner, core) = (&control.owner_flags.0, &control.core_flags.0);
    let words = [&owner.reset_wanted, &core.fault, &core.reset_done];
    words[(value >> 62) as usize % 3].store(value as u32, Relaxed);
    if value & 1 == 0 { owner.wake.arm() } else { core.wake.arm() }
}
