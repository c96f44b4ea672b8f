//! Arbitrary accesses, ring contents, time steps and deaths. Nothing panics, work is bounded, and
//! every frame is accounted for. A reset by the driver makes the NIC work again.

use nic::device::{Combining, InterruptMode};
use nic::e1000::{Chip, TABLE};
use port::{Limits, Offload};
use proptest::prelude::*;

use super::bed::*;

#[derive(Clone, Debug)]
enum Step {
    Write(u64, u32),
    Read(u64),
    Poke(u64, u64),
    Gather(usize),
    Deliver(usize, Vec<u16>, bool),
    Wait(u64),
    Interrupt,
    Arm,
    Mode(InterruptMode),
    Bus(bool),
    Link(bool),
    Remake,
}

fn offset() -> impl Strategy<Value = u64> {
    let rows = prop::sample::select(TABLE);
    let hot = prop::sample::select(vec![
        reg::CTRL,
        reg::RCTL,
        reg::TCTL,
        reg::TDH,
        reg::TDT,
        reg::TDLEN,
        reg::TDBAL,
        reg::RDH,
        reg::RDT,
        reg::RDLEN,
        reg::RDBAL,
        reg::RFCTL,
        reg::CSBAL,
        0x2170,
    ]);
    let listed = rows.prop_flat_map(|row| {
        (0..row.count).prop_map(move |i| u64::from(row.at) + 4 * u64::from(i))
    });
    prop_oneof![3 => hot, 2 => listed, 1 => any::<u64>()]
}

fn value() -> impl Strategy<Value = u32> {
    let small = 0..40u32;
    let rings = prop::sample::select(vec![0x100u32, 0x80, TX_AT as u32, RX_AT as u32, 0x5000]);
    let bits = (0..32u32, 0..32u32).prop_map(|(a, b)| 1 << a | 1 << b);
    prop_oneof![3 => small, 2 => rings, 2 => bits, 1 => any::<u32>()]
}

/// Random words, most of which are second words of transmit descriptors.
fn word() -> impl Strategy<Value = u64> {
    let bits = prop::collection::vec(20..64u32, 0..6);
    let word = (bits, 0..3000u64).prop_map(|(bits, len)| bits.iter().fold(len, |w, b| w | 1 << b));
    let address = (0..0x100u64).prop_map(|i| TX_BUFFERS + 100 * i);
    prop_oneof![4 => word, 2 => address, 1 => any::<u64>(), 1 => Just(0)]
}

fn place() -> impl Strategy<Value = u64> {
    let rings = prop::sample::select(vec![TX_AT, RX_AT, 0x5000]);
    let ring = (rings, 0..64u64).prop_map(|(ring, i)| ring + 8 * i);
    let block = (0x5000..0x6000u64).prop_map(|at| at & !7);
    prop_oneof![6 => ring, 1 => block, 1 => 0..MEMORY - 8]
}

fn step() -> impl Strategy<Value = Step> {
    let lens = prop::collection::vec(0..3000u16, 1..20);
    let modes = vec![InterruptMode::Pin, InterruptMode::Msi, InterruptMode::Msix];
    prop_oneof![
        8 => (offset(), value()).prop_map(|(at, value)| Step::Write(at, value)),
        2 => offset().prop_map(Step::Read),
        8 => (place(), word()).prop_map(|(at, value)| Step::Poke(at, value)),
        4 => (0..2usize).prop_map(Step::Gather),
        4 => (0..2usize, lens, any::<bool>()).prop_map(|(q, l, b)| Step::Deliver(q, l, b)),
        1 => (0..100_000u64).prop_map(Step::Wait),
        2 => Just(Step::Interrupt),
        1 => Just(Step::Arm),
        1 => prop::sample::select(modes).prop_map(Step::Mode),
        1 => any::<bool>().prop_map(Step::Bus),
        1 => any::<bool>().prop_map(Step::Link),
        1 => Just(Step::Remake),
    ]
}

/// Performs a step. Returns how many frames were handed to the NIC.
fn carry_out(bed: &mut Bed, step: Step) -> u64 {
    match step {
        Step::Write(at, value) => bed.write(at, value),
        Step::Read(at) => _ = bed.read(at),
        Step::Poke(at, value) => bed.set_word(at, value),
        Step::Gather(queue) if queue < bed.model.transmit.len() => {
            let (frames, _) = bed.gather_from(queue);
            assert!(frames.len() <= 64);
        }
        Step::Deliver(queue, lens, lossless) if queue < bed.model.receive.len() => {
            let frames: Vec<_> = lens.iter().map(|len| frame(14 + usize::from(*len), 1)).collect();
            let limits = Limits { max_frame: 2800, lossless };
            let (finished, _) = bed.deliver_to(queue, &frames, limits, Offload::NONE);
            assert!(lossless || finished == frames.len());
            return finished as u64;
        }
        Step::Wait(time) => bed.now = bed.now + time,
        Step::Interrupt => {
            let interrupt = bed.interrupt();
            assert!(interrupt.due.is_none_or(|due| due > bed.now), "it would be asked for ever");
        }
        Step::Arm => {
            let _ = bed.model.transmit[0].arm();
            bed.model.transmit[0].disarm();
        }
        Step::Mode(mode) => bed.model.device.set_interrupt_mode(mode),
        Step::Bus(on) => bed.model.device.set_bus_master(on),
        Step::Link(up) => bed.model.device.set_link(up, bed.now),
        Step::Remake => bed.remake(),
        Step::Gather(_) | Step::Deliver(..) => {}
    }
    0
}

/// A reset by the driver makes the NIC work again.
fn heals(bed: &mut Bed) {
    bed.write(reg::CSBAH, 0);
    bed.write(reg::CSBAL, 0);
    bed.write(reg::CTRL, 1 << 26);
    bed.model.device.set_bus_master(true);
    bed.model.device.set_link(true, bed.now);
    bed.model.device.set_interrupt_mode(InterruptMode::Pin);
    bed.write(reg::MDIC, 1 << 26 | 1 << 21 | 0x1140);
    bed.start(16, 16);
    bed.now = bed.now + 1_000_000_000;
    bed.send(&frame(100, 3));
    assert_eq!(bed.gather(), [(frame(100, 3), Offload::NONE)]);
    assert_eq!(bed.interrupt().vectors, 1);
    let _ = bed.read(reg::ICR);
    bed.now = bed.now + 1_000_000_000;
    assert_eq!(bed.deliver(&[frame(100, 4)]), (1, true));
    assert_eq!(bed.interrupt().vectors, 1);
    assert_eq!(bed.receive().unwrap().0, frame(100, 4));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_guest_does(
        steps in prop::collection::vec(step(), 1..200),
        is_l in any::<bool>(),
        combining in any::<bool>(),
    ) {
        let chip = if is_l { Chip::L82574 } else { Chip::Em82540 };
        let mut bed = Bed::with(chip, |config| {
            config.csb = true;
            let combining = combining.then_some(Combining { frames: 4, delay_us: 10 });
            config.combining = combining;
        });
        bed.start(16, 16);
        let mut handed = 0;
        for step in steps {
            handed += carry_out(&mut bed, step);
        }
        let mut counted = 0;
        for counters in &bed.config.egress {
            let drops: u64 = counters.drops.iter().map(|drops| drops.get()).sum();
            counted += counters.frames.get() + drops;
        }
        prop_assert_eq!(counted, handed);
        heals(&mut bed);
    }
}
