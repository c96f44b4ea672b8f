//! The register accesses of pcnet32.

use crate::target::{Space, Target};
use crate::{Intended, Seen};

const IO: Space = Space(0);
const INIT: u32 = 0x1000;
const RX: u32 = 0x2000;
const TX: u32 = 0x3000;
const BUFFERS: u32 = 0x1_0000;

/// Where this model differs from QEMU (7.2 to 11), and why.
pub const INTENDED: &[Intended] = &[
    Intended {
        at: "CSR0 stopped",
        bits: 0x10,
        why: "STOP turns the transmitter off (Am79C970A, CSR0, TXON); QEMU turns it on",
    },
    Intended { at: "CSR0 all three", bits: 0x10, why: "the same" },
    Intended {
        at: "what came back+0x64",
        bits: u32::MAX,
        why: "a check sequence is the complement of the CRC, its first bit first (IEEE 802.3, 3.2.9); \
              QEMU stores the CRC itself, most significant byte first",
    },
    Intended {
        at: "CSR15 written while it runs",
        bits: 0xffff,
        why: "the mode is written while STOP or SPND is set (Am79C970A, CSR15)",
    },
];

/// A card's registers, and what the script saw of them.
struct Card<'t> {
    target: &'t mut dyn Target,
    seen: Seen,
}

impl Card<'_> {
    fn csr(&mut self, number: u32) -> u32 {
        self.target.write(IO, 0x12, 2, number);
        self.target.read(IO, 0x10, 2)
    }

    fn set_csr(&mut self, number: u32, value: u32) {
        self.target.write(IO, 0x12, 2, number);
        self.target.write(IO, 0x10, 2, value);
    }

    fn bcr(&mut self, number: u32) -> u32 {
        self.target.write(IO, 0x12, 2, number);
        self.target.read(IO, 0x16, 2)
    }

    fn set_bcr(&mut self, number: u32, value: u32) {
        self.target.write(IO, 0x12, 2, number);
        self.target.write(IO, 0x16, 2, value);
    }

    fn see_csr(&mut self, when: &str, number: u32) {
        let value = self.csr(number);
        self.seen.see(&format!("CSR{number} {when}"), value);
    }

    fn see_bcr(&mut self, when: &str, number: u32) {
        let value = self.bcr(number);
        self.seen.see(&format!("BCR{number} {when}"), value);
    }

    fn reset(&mut self) {
        let value = self.target.read(IO, 0x14, 2);
        self.seen.see("RESET", value);
    }

    /// Lays out rings of 16 and 32 descriptors in software style 2, as pcnet32 does.
    fn lay_out(&mut self, mode: u16) {
        let mut block = Vec::from(mode.to_le_bytes());
        block.extend([0x50, 0x40]);
        block.extend([0x52, 0x54, 0, 0x12, 0x34, 0x56, 0, 0]);
        block.extend([0; 8]);
        block.extend(RX.to_le_bytes());
        block.extend(TX.to_le_bytes());
        self.target.store(INIT, &block);
        for number in 0..32 {
            self.describe(RX + 16 * number, BUFFERS + 0x800 * number, 0x8000, 1544);
        }
        for number in 0..16 {
            self.describe(TX + 16 * number, 0, 0, 0);
        }
        self.set_csr(1, INIT & 0xffff);
        self.set_csr(2, INIT >> 16);
    }

    fn describe(&mut self, at: u32, buffer: u32, status: u32, len: u32) {
        let count = len.wrapping_neg() & 0xffff | status << 16;
        let words = [buffer, count, 0, 0];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.target.store(at, &bytes);
    }

    /// A descriptor's second and third word.
    fn see_descriptor(&mut self, what: &str, at: u32) {
        let bytes = self.target.load(at, 16);
        for (word, name) in [(1, "status"), (2, "message")] {
            let mut four = [0; 4];
            four.copy_from_slice(&bytes[4 * word..4 * word + 4]);
            self.seen.see(&format!("{what}, {name}"), u32::from_le_bytes(four));
        }
    }
}

/// `pcnet32_probe1`, `pcnet32_open`, an interrupt, the watchdog, `pcnet32_close`.
pub fn probe_and_open(target: &mut dyn Target) -> Seen {
    let mut card = Card { target, seen: Seen::default() };
    card.reset();
    card.see_csr("after reset", 0);
    card.target.write(IO, 0x12, 2, 88);
    let rap = card.target.read(IO, 0x12, 2);
    card.seen.see("RAP", rap);
    for number in [88, 89, 12, 13, 14] {
        card.see_csr("at probe", number);
    }
    for at in 0..16 {
        let byte = card.target.read(IO, at, 1);
        card.seen.see(&format!("APROM {at}"), byte);
    }
    card.set_bcr(20, 2);
    card.see_bcr("after style 2", 20);
    card.lay_out(3);
    card.set_csr(0, 1);
    card.see_csr("initialized without halves", 0);
    // Open.
    card.reset();
    card.set_bcr(20, 2);
    let asel = card.bcr(2);
    card.seen.see("BCR2 at open", asel);
    card.set_bcr(2, asel & !2 | 2);
    card.see_bcr("after ASEL", 2);
    card.see_bcr("at open", 9);
    card.see_csr("at open", 124);
    card.lay_out(0);
    card.set_csr(4, 0x0915);
    card.see_csr("at open", 4);
    card.set_csr(0, 1);
    card.see_csr("initialized", 0);
    card.set_csr(0, 0x42);
    card.see_csr("started", 0);
    card.see_bcr("watchdog", 4);
    // Handles an interrupt as NAPI does. IDON is still set.
    let status = card.csr(0);
    card.set_csr(0, status & !0x4f);
    let masks = card.csr(3);
    card.seen.see("CSR3 masked", masks);
    card.set_csr(3, masks | 0x5f00);
    card.see_csr("masked", 3);
    card.see_csr("acknowledged", 0);
    card.set_csr(3, 0);
    card.set_csr(0, 0x40);
    card.see_csr("unmasked", 0);
    // A change of the multicast list suspends the card.
    card.set_csr(5, 1);
    card.see_csr("suspended", 5);
    card.set_csr(8, 0x1234);
    card.see_csr("suspended", 8);
    card.set_csr(5, 0);
    card.see_csr("resumed", 5);
    card.see_csr("resumed", 0);
    // Close.
    card.see_csr("at close", 112);
    card.set_csr(0, 4);
    card.see_csr("stopped", 0);
    card.seen
}

/// Looped-back frames, and the descriptors as given back.
pub fn frames(target: &mut dyn Target) -> Seen {
    let mut card = Card { target, seen: Seen::default() };
    card.reset();
    card.set_bcr(20, 2);
    // Internal loopback, promiscuous.
    card.lay_out(0x8044);
    card.set_csr(4, 0x0115);
    card.set_csr(0, 1);
    card.see_csr("initialized", 0);
    card.set_csr(0, 0x42);
    let frame: Vec<u8> = (0..100).map(|i| i as u8 + 1).collect();
    card.target.store(0x2_8000, &frame);
    card.describe(TX, 0x2_8000, 0x8300, 100);
    card.set_csr(0, 0x48);
    card.see_descriptor("sent", TX);
    card.see_descriptor("came back", RX);
    card.seen.see_bytes("what came back", &card.target.load(BUFFERS, 104));
    card.see_csr("one frame later", 0);
    card.set_csr(0, 0x7f40);
    card.see_csr("acknowledged", 0);
    // This frame has two pieces.
    card.describe(TX + 32, 0x2_8000 + 60, 0x8100, 40);
    card.describe(TX + 16, 0x2_8000, 0x8200, 60);
    card.set_csr(0, 0x48);
    card.see_descriptor("sent, first piece", TX + 16);
    card.see_descriptor("sent, last piece", TX + 32);
    card.see_descriptor("came back in one", RX + 16);
    card.see_csr("two frames later", 0);
    // The multicast filter and the station address, without promiscuity.
    card.set_csr(0, 4);
    card.set_csr(15, 0x44);
    card.see_csr("written while stopped", 15);
    card.seen
}

/// Registers that only need to read back.
pub fn registers(target: &mut dyn Target) -> Seen {
    let mut card = Card { target, seen: Seen::default() };
    card.reset();
    for number in (0..46).chain([47, 58, 80, 88, 89, 100, 112, 114, 122, 124]) {
        card.see_csr("after reset", number);
    }
    for number in [0, 1, 2, 4, 5, 6, 7, 9, 18, 19, 20, 22] {
        card.see_bcr("after power-on", number);
    }
    for number in [1, 2, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 30, 31, 76, 78] {
        card.set_csr(number, 0x5a5a);
        card.see_csr("written", number);
    }
    for (csr, value) in [(3, 0x5f40), (4, 0x1915), (5, 0x8000), (16, 0x4321), (17, 0x0012)] {
        card.set_csr(csr, value);
        card.see_csr("written", csr);
    }
    card.see_csr("after its alias", 1);
    card.see_csr("after its alias", 2);
    for style in 0..4 {
        card.set_bcr(20, style);
        card.see_bcr(&format!("style {style}"), 20);
        card.see_csr(&format!("style {style}"), 58);
    }
    for (bcr, value) in [(2, 0x1002), (5, 0x0010), (9, 1), (22, 0x1234)] {
        card.set_bcr(bcr, value);
        card.see_bcr("written", bcr);
    }
    // The lowest bits of CSR0 come last. They start the card, and then these registers must not be
    // written.
    card.set_csr(0, 2);
    card.see_csr("started", 0);
    card.set_csr(15, 0);
    card.see_csr("written while it runs", 15);
    card.set_csr(0, 7);
    card.see_csr("all three", 0);
    // Wide windows.
    card.target.write(IO, 0x10, 4, 0);
    let narrow = card.target.read(IO, 0x10, 2);
    card.seen.see("RDP, narrow in a wide window", narrow);
    card.target.write(IO, 0x14, 4, 18);
    let bus = card.target.read(IO, 0x1c, 4);
    card.seen.see("BCR18, wide", bus);
    card.target.write(IO, 0x14, 4, 88);
    let id = card.target.read(IO, 0x10, 4);
    card.seen.see("CSR88, wide", id);
    card.seen
}
