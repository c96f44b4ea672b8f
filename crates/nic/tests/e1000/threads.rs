//! A driver resets, filters and masks while a worker delivers. Every frame is accounted for, no
//! thread waits for ever, and afterwards the NIC works.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nic::e1000::Chip;
use port::{FrameIdx, MapGuard, Nanos, Scratch};
use shmem::Bytes;

use super::bed::*;

/// Delivers batches until told to stop. Returns how many frames.
fn worker(egress: &dyn port::Egress, device: &dyn nic::device::Device, stop: &AtomicBool) -> u64 {
    let mut scratch = Scratch::new(8);
    let mut bytes = [frame(64, 1), frame(1500, 2), frame(64, 3)];
    // SAFETY: `bytes` outlives the batches.
    let map = unsafe { MapGuard::assume_mapped() };
    let (mut handed, mut now) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        scratch.clear();
        bytes.iter_mut().for_each(|frame| scratch.push(Bytes::of(frame).span()));
        scratch.judge(&map, &mut [(); 8], |_, _| ());
        let list: [FrameIdx; 3] = [0, 1, 2];
        let finished = egress.deliver(&scratch.batch(&map), &list, LIMITS).finished;
        assert_eq!(finished, 3);
        handed += finished as u64;
        now += 1000;
        if egress.settle(Nanos(now)).kick {
            let _ = device.interrupt(Nanos(now));
        }
    }
    handed
}

#[test]
fn registers_change_while_frames_are_delivered() {
    for chip in [Chip::Em82540, Chip::L82574] {
        let mut bed = Bed::with(chip, |config| config.csb = true);
        let stop = AtomicBool::new(false);
        let (egresses, device) = (bed.model.receive.clone(), Arc::clone(&bed.model.device));
        let handed = std::thread::scope(|scope| {
            let workers: Vec<_> = egresses
                .iter()
                .map(|egress| scope.spawn(|| worker(&**egress, &*device, &stop)))
                .collect();
            for round in 0..300u32 {
                bed.write(reg::CTRL, 1 << 26);
                bed.write(reg::CSBAL, if round % 3 == 0 { 0x5000 } else { 0 });
                bed.start(16, 16);
                bed.write(reg::RDTR, round % 2 * 10);
                bed.write(reg::MRQC, round % 2);
                bed.write(reg::RETA, 0x80);
                for i in 0..50 {
                    bed.write(reg::RDT, i % 16);
                    bed.write(reg::IMS, RXT0 << (i % 3));
                    let _ = (bed.interrupt(), bed.read(reg::ICR));
                    bed.write(reg::CTRL, (i & 1) << 30);
                }
            }
            stop.store(true, Ordering::Relaxed);
            workers.into_iter().map(|worker| worker.join().unwrap()).sum::<u64>()
        });
        let counted = bed.config.egress.iter().map(|counters| {
            let drops: u64 = counters.drops.iter().map(|drops| drops.get()).sum();
            counters.frames.get() + drops
        });
        assert_eq!(counted.sum::<u64>(), handed);
        bed.write(reg::CTRL, 1 << 26);
        bed.start(16, 16);
        assert_eq!(bed.deliver(&[frame(64, 9)]).0, 1);
        assert_eq!(bed.receive().unwrap().0, frame(64, 9));
    }
}
