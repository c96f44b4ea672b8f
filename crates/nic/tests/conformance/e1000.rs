//! The register accesses of Linux's e1000 and e1000e.

use crate::target::{Space, Target};
use crate::{Intended, Seen};

const MEM: Space = Space(0);
const TX: u32 = 0x2000;
const RX: u32 = 0x3000;
const BUFFERS: u32 = 0x1_0000;

const CTRL: u64 = 0x0000;
const STATUS: u64 = 0x0008;
const EECD: u64 = 0x0010;
const EERD: u64 = 0x0014;
const CTRL_EXT: u64 = 0x0018;
const MDIC: u64 = 0x0020;
const ICR: u64 = 0x00c0;
const ITR: u64 = 0x00c4;
const ICS: u64 = 0x00c8;
const IMS: u64 = 0x00d0;
const IMC: u64 = 0x00d8;
const RCTL: u64 = 0x0100;
const TCTL: u64 = 0x0400;
const PBA: u64 = 0x1000;
const MANC: u64 = 0x5820;

/// Where this 82540EM differs from QEMU's e1000 (7.2 to 11), and why.
pub const INTENDED_E1000: &[Intended] = &[
    Intended {
        at: "MANC without ARP",
        bits: 0x2000,
        why: "MANC is read and written; QEMU drops it",
    },
    Intended {
        at: "ICR at reset",
        bits: 4,
        why: "the link has come up since power-on: LSC; QEMU leaves the first change out",
    },
    Intended {
        at: "EECD",
        bits: 0x80,
        why: "granted when it is requested (EECD, EE_GNT); QEMU grants always",
    },
    Intended { at: "EEPROM 0x05", bits: 0xffff, why: OEM },
    Intended { at: "EEPROM 0x06", bits: 0xffff, why: OEM },
    Intended { at: "EEPROM 0x07", bits: 0xffff, why: OEM },
    Intended { at: "EEPROM 0x1*", bits: 0xffff, why: OEM },
    Intended { at: "EEPROM 0x2*", bits: 0xffff, why: OEM },
    Intended { at: "EEPROM 0x3*", bits: 0xffff, why: OEM },
    Intended { at: "EERD 63", bits: 0xffff_0000, why: "the adjusting word follows from the rest" },
    Intended { at: "FC*", bits: u32::MAX, why: LATCH },
    Intended { at: "TIPG", bits: u32::MAX, why: LATCH },
    Intended { at: "TIDV", bits: u32::MAX, why: LATCH },
    Intended { at: "RXCSUM", bits: u32::MAX, why: LATCH },
    Intended { at: "GOTCL", bits: u32::MAX, why: "QEMU 7.2 counts good octets sent, 11 does not" },
    Intended { at: "statistic 0x40dc", bits: 1, why: "frames by length: likewise" },
];

const OEM: &str = "words of the board's maker, which no driver looks at but for their sum";
const LATCH: &str = "read and written in the data sheet; QEMU does not give it back";

/// Where this 82574L differs from QEMU's e1000e, and why.
pub const INTENDED_E1000E: &[Intended] = &[
    Intended { at: "STATUS", bits: 0x100, why: "ASDV says 1000 Mb/s by 10 and by 11" },
    Intended { at: "EECD", bits: 8, why: "the level of a pin that nobody drives" },
    Intended {
        at: "SWSM",
        bits: 1,
        why: "free after power-on, taken by the first read (SWSM, SMBI)",
    },
    Intended { at: "EXTCNF_CTRL", bits: 8, why: "loaded from the NVM, where ours has zero" },
    Intended { at: "MANC", bits: 0x1000_0000, why: "there is no management engine to tell" },
    Intended { at: "PHY 1", bits: 0x20, why: "negotiated at once; QEMU takes half a second" },
    Intended { at: "PHY 9", bits: 0x100, why: "1000BASE-T half duplex is not offered" },
    Intended { at: "NVM 0x04", bits: 0xffff_0000, why: OEM },
    Intended { at: "NVM 0x08", bits: 0xffff_0000, why: OEM },
    Intended { at: "NVM 0x09", bits: 0xffff_0000, why: OEM },
    Intended { at: "NVM 0x0b", bits: 0xffff_0000, why: OEM },
    Intended { at: "NVM 0x0e", bits: 0xffff_0000, why: OEM },
    Intended { at: "NVM 0x0f", bits: 0xffff_0000, why: OEM },
    Intended { at: "NVM 0x1*", bits: 0xffff_0000, why: OEM },
    Intended { at: "NVM 0x2*", bits: 0xffff_0000, why: OEM },
    Intended { at: "NVM 0x3*", bits: 0xffff_0000, why: OEM },
    Intended {
        at: "GCR",
        bits: 0x0680_0000,
        why: "of the PCI Express core, which is the bus's here",
    },
    Intended { at: "TIDV", bits: u32::MAX, why: LATCH },
    Intended {
        at: "ICR, all taken",
        bits: 0x0100_0004,
        why: "the link has come up since power-on: LSC; QEMU leaves the first change out",
    },
    Intended { at: "IMS*", bits: 8, why: "a reserved bit, which causes nothing" },
    Intended {
        at: "ICR after ICS",
        bits: 0x0100_0000,
        why: "OTHER comes with LSC (82574, ICR); QEMU sets it with MSI-X only",
    },
    Intended { at: "GOTCL", bits: 4, why: FCS },
    Intended { at: "TOTL", bits: 4, why: FCS },
    Intended { at: "statistic 0x40c8", bits: 4, why: FCS },
    Intended { at: "PTC64", bits: 1, why: FCS },
    Intended { at: "statistic 0x40dc", bits: 1, why: FCS },
];

const FCS: &str = "check sequences count as octets and in lengths; QEMU 7.2 leaves them out";

/// A card's registers, and the values that the script has read from them.
struct Card<'t> {
    target: &'t mut dyn Target,
    seen: Seen,
}

impl Card<'_> {
    fn get(&mut self, at: u64) -> u32 {
        self.target.read(MEM, at, 4)
    }

    fn set(&mut self, at: u64, value: u32) {
        self.target.write(MEM, at, 4, value);
    }

    /// Reads a register and records the value.
    fn look(&mut self, name: &str, at: u64) -> u32 {
        let value = self.get(at);
        self.seen.see(name, value);
        value
    }

    /// Writes a register and records its value afterwards.
    fn store(&mut self, name: &str, at: u64, value: u32) {
        self.set(at, value);
        self.look(name, at);
    }

    /// A word of the EEPROM, clocked out bit by bit.
    fn shift_out(&mut self, word: u32) -> u32 {
        const SK: u32 = 1;
        const CS: u32 = 2;
        const DI: u32 = 4;
        const DO: u32 = 8;
        const REQ: u32 = 0x40;
        let base = self.get(EECD) & !(SK | CS | DI) | REQ;
        self.set(EECD, base);
        self.get(EECD);
        self.set(EECD, base | CS);
        // The read command is 110, then six address bits.
        for bit in (0..9).rev() {
            let di = if (6 << 6 | word) >> bit & 1 == 1 { DI } else { 0 };
            for sk in [0, SK, 0] {
                self.set(EECD, base | CS | di | sk);
            }
        }
        let mut value = 0;
        for _ in 0..16 {
            self.set(EECD, base | CS | SK);
            value = value << 1 | u32::from(self.get(EECD) & DO != 0);
            self.set(EECD, base | CS);
        }
        self.set(EECD, base);
        self.set(EECD, base & !REQ);
        value
    }

    /// A register of the PHY.
    fn phy(&mut self, register: u32) -> u32 {
        self.set(MDIC, 2 << 26 | 1 << 21 | register << 16);
        self.get(MDIC)
    }

    fn see_phy(&mut self, registers: &[u32]) {
        for register in registers {
            let value = self.phy(*register);
            self.seen.see(&format!("PHY {register}"), value);
        }
    }

    fn see_memory(&mut self, what: &str, at: u32, len: u32) {
        self.seen.see_bytes(what, &self.target.load(at, len));
    }

    /// Rings of eight descriptors each, as both drivers set them up.
    fn rings(&mut self) {
        for (name, at, value) in [
            ("TDLEN", 0x3808, 128),
            ("TDBAH", 0x3804, 0),
            ("TDBAL", 0x3800, TX),
            ("TDT", 0x3818, 0),
            ("TDH", 0x3810, 0),
            ("TIPG", 0x0410, 0x0060_200a),
            ("TIDV", 0x3820, 8),
            ("TADV", 0x382c, 32),
            ("RDTR", 0x2820, 0),
            ("RADV", 0x282c, 8),
            ("RDLEN", 0x2808, 128),
            ("RDBAH", 0x2804, 0),
            ("RDBAL", 0x2800, RX),
            ("RDT", 0x2818, 0),
            ("RDH", 0x2810, 0),
        ] {
            self.store(name, at, value);
        }
    }

    /// Sends a frame by a legacy descriptor and records the result.
    fn send(&mut self) {
        let frame: Vec<u8> = (0..64).collect();
        self.target.store(BUFFERS, &frame);
        let mut descriptor = u64::from(BUFFERS).to_le_bytes().to_vec();
        // A descriptor of 64 bytes with EOP, IFCS and RS.
        descriptor.extend((64u32 | 0x0b00_0000).to_le_bytes());
        descriptor.extend([0; 4]);
        self.target.store(TX, &descriptor);
        self.set(TCTL, 0x0103_f0fa);
        self.look("TCTL", TCTL);
        self.set(0x3818, 1);
        self.look("TDH after a frame", 0x3810);
        self.look("TDT after a frame", 0x3818);
        self.see_memory("descriptor sent", TX, 16);
        self.look("GPTC", 0x4080);
        self.look("GPTC, read again", 0x4080);
        self.look("TPT", 0x40d4);
        self.look("GOTCL", 0x4090);
        self.look("GOTCH", 0x4094);
        self.look("TOTL", 0x40c8);
        self.look("PTC64", 0x40d8);
    }

    fn statistics(&mut self) {
        for offset in (0x4000..0x4100).step_by(4) {
            self.look(&format!("statistic {offset:#x}"), offset);
        }
    }

    fn interrupts(&mut self) {
        self.set(IMC, u32::MAX);
        self.look("ICR, all taken", ICR);
        self.look("ICR, again", ICR);
        self.set(IMS, 0x9d);
        self.look("IMS", IMS);
        self.set(IMC, 0x4);
        self.look("IMS, LSC masked", IMS);
        self.set(IMS, 4);
        self.set(ICS, 4);
        self.look("ICR after ICS", ICR);
        self.look("ICR after ICS, again", ICR);
        self.set(IMC, u32::MAX);
        self.look("IMS, all masked", IMS);
        self.look("ICR, none left", ICR);
        self.store("ITR", ITR, 488);
        self.set(ITR, 0);
    }
}

/// `e1000_probe` and `e1000_open`, then a frame.
pub fn probe_and_open(target: &mut dyn Target) -> Seen {
    let mut card = Card { target, seen: Seen::default() };
    card.look("STATUS", STATUS);
    card.look("CTRL", CTRL);
    // As e1000_reset_hw. The driver resets by I/O, which QEMU does not have.
    card.set(IMC, u32::MAX);
    card.set(RCTL, 0);
    card.set(TCTL, 8);
    card.get(STATUS);
    let manc = card.look("MANC", MANC);
    card.store("MANC without ARP", MANC, manc & !0x2000);
    card.set(IMC, u32::MAX);
    card.look("ICR at reset", ICR);
    card.look("EECD", EECD);
    let mut sum = 0;
    for word in 0..64 {
        let value = card.shift_out(word);
        sum += value;
        card.seen.see(&format!("EEPROM {word:#04x}"), value);
    }
    card.seen.see("sum of the EEPROM", sum & 0xffff);
    for word in [0, 1, 2, 63] {
        card.set(EERD, word << 8 | 1);
        card.look(&format!("EERD {word}"), EERD);
    }
    card.see_phy(&[2, 3, 0, 4, 9, 16, 20]);
    // e1000_init_hw.
    card.store("VET", 0x38, 0);
    card.look("RAL0", 0x5400);
    card.look("RAH0", 0x5404);
    for index in 0..128 {
        card.set(0x5600 + 4 * index, 0);
        card.set(0x5200 + 4 * index, 0);
    }
    for index in 1..16 {
        card.set(0x5400 + 8 * index, 0);
        card.set(0x5404 + 8 * index, 0);
    }
    card.look("RAH1", 0x540c);
    card.look("MTA127", 0x53fc);
    card.store("PBA", PBA, 48);
    card.store("FCAL", 0x28, 0x00c2_8001);
    card.store("FCAH", 0x2c, 0x0100);
    card.store("FCT", 0x30, 0x8808);
    card.store("FCTTV", 0x170, 0xffff);
    card.store("FCRTL", 0x2160, 0x8000_8000);
    card.store("FCRTH", 0x2168, 0x8008);
    card.store("LEDCTL", 0xe00, 0x0602);
    card.store("CTRL_EXT", CTRL_EXT, 0);
    card.rings();
    card.store("RXCSUM", 0x5000, 0x300);
    card.store("TXDCTL", 0x3828, 0x0101_0000);
    card.store("RCTL", RCTL, 0x0000_8002);
    card.interrupts();
    card.send();
    card.look("ICR after a frame", ICR);
    card.look("STATUS at the end", STATUS);
    card.statistics();
    card.look("nothing", 0x7000);
    card.seen
}

/// What boot loaders do differently. U-Boot takes a semaphore. iPXE switches its transmit queue on,
/// sends several frames at once, and checks all causes.
pub fn boot(target: &mut dyn Target) -> Seen {
    let mut card = Card { target, seen: Seen::default() };
    card.look("SWSM", 0x5b50);
    card.store("SWSM taken", 0x5b50, 2);
    card.look("SWSM, again", 0x5b50);
    card.store("SWSM given back", 0x5b50, 0);
    card.rings();
    card.set(0x3808, 256);
    let control = card.get(0x3828);
    card.set(0x3828, control | 1 << 25);
    card.set(IMC, u32::MAX);
    card.get(ICR);
    let frame: Vec<u8> = (0..64).collect();
    card.target.store(BUFFERS, &frame);
    for index in 0..12 {
        let words = [u64::from(BUFFERS), 0x0b00_0000 | 64].map(u64::to_le_bytes);
        card.target.store(TX + 16 * index, &words.concat());
    }
    card.set(TCTL, 0x0103_f0fa);
    card.set(0x3818, 12);
    card.look("TDH after twelve frames", 0x3810);
    card.look("ICR after twelve frames", ICR);
    card.look("ICR, again", ICR);
    card.seen
}

/// `e1000_probe` and `e1000e_open`, then a frame.
pub fn probe_and_open_e(target: &mut dyn Target) -> Seen {
    const SWSM: u64 = 0x5b50;
    const FWSM: u64 = 0x5b54;
    const EXTCNF: u64 = 0x0f00;
    const GCR: u64 = 0x5b00;
    let mut card = Card { target, seen: Seen::default() };
    card.look("STATUS", STATUS);
    card.look("CTRL", CTRL);
    card.look("CTRL_EXT", CTRL_EXT);
    card.look("EECD", EECD);
    card.look("SWSM", SWSM);
    card.look("FWSM", FWSM);
    card.look("EXTCNF_CTRL", EXTCNF);
    card.look("MANC", MANC);
    // The semaphore for software, and that for the management bus (MDIO).
    card.store("SWSM taken", SWSM, 2);
    card.store("SWSM given back", SWSM, 0);
    card.store("EXTCNF_CTRL, MDIO taken", EXTCNF, 0x20);
    card.set(EXTCNF, 0);
    card.see_phy(&[2, 3, 0, 1, 4, 9, 10, 15]);
    let mut sum = 0;
    for word in 0..64 {
        card.set(EERD, word << 2 | 1);
        sum += card.look(&format!("NVM {word:#04x}"), EERD) >> 16;
    }
    card.seen.see("sum of the NVM", sum & 0xffff);
    card.look("RAL0", 0x5400);
    card.look("RAH0", 0x5404);
    card.look("PBA", PBA);
    card.store("IMC is not a register", IMC, u32::MAX);
    card.store("GCR", GCR, 0);
    card.store("IVAR", 0xe4, 0x8000_0b0a);
    card.store("EIAC", 0xdc, 0x01f0_0000);
    card.store("IAM", 0xe0, 0xffff_ffff);
    card.store("EITR0", 0xe8, 488);
    card.store("EITR4", 0xf8, 488);
    card.store("RFCTL", 0x5008, 0x8000);
    card.store("MRQC", 0x5818, 0);
    card.store("RXDCTL", 0x2828, 0x0100_0000);
    card.store("TXDCTL", 0x3828, 0x0141_0000);
    card.store("TARC0", 0x3840, 0x0000_0403);
    card.store("TXDCTL1", 0x3928, 0x0141_0000);
    card.store("KABGTXD", 0x3004, 0x0005_0000);
    card.rings();
    card.store("RXCSUM", 0x5000, 0x2300);
    card.store("RCTL", RCTL, 0x0400_8002);
    card.interrupts();
    card.send();
    card.statistics();
    card.look("nothing", 0x7000);
    card.seen
}

/// Where looped-back frames differ from QEMU's, and why.
pub const INTENDED_FRAMES: &[Intended] = &[
    Intended { at: "plain: status*", bits: 0x6074, why: SUMS },
    Intended { at: "legacy sum: status*", bits: 0x6074, why: SUMS },
    Intended { at: "TCP sums: status*", bits: 0x6074, why: SUMS },
    Intended { at: "UDP sums: status*", bits: 0x6074, why: SUMS },
    Intended {
        at: "legacy sum: frame 1 +0x18",
        bits: 0x0000_ffff,
        why: "a legacy descriptor may ask for a sum, too (TDESC.CMD.IC); QEMU does not look",
    },
    Intended { at: "TSO: RDH", bits: u32::MAX, why: WHOLE },
    Intended { at: "TSO: length*", bits: u32::MAX, why: WHOLE },
    Intended { at: "TSO: status*", bits: u32::MAX, why: WHOLE },
    Intended { at: "TSO: frame*", bits: u32::MAX, why: WHOLE },
    Intended { at: "GPTC", bits: u32::MAX, why: "what comes back is not counted as sent" },
    Intended { at: "TSCTC", bits: u32::MAX, why: "likewise" },
];

/// Further differences, which exist in QEMU's e1000e but not in its e1000.
pub const INTENDED_FRAMES_E: &[Intended] = &[
    Intended { at: "TCP sums: frame 2 +0x18", bits: 0x0000_ffff, why: UNDONE },
    Intended { at: "TCP sums: frame 2 +0x30", bits: 0xffff_0000, why: UNDONE },
    Intended { at: "UDP sums: frame 3 +0x18", bits: 0x0000_ffff, why: UNDONE },
    Intended { at: "UDP sums: frame 3 +0x28", bits: 0x0000_ffff, why: UNDONE },
];

const UNDONE: &str =
    "frames come back with the sums that were asked for; QEMU's e1000e leaves them undone";
const SUMS: &str = "sums that nobody vouched for are not looked at, which IXSM says; QEMU's e1000e checks \
                    them, and finds these wrong";
const WHOLE: &str =
    "a gap: frames to be segmented do not come back; the switch cuts them where they go";

/// Where looped-back frames go, in eight buffers.
const BACK: u32 = 0x2_0000;
const ROOM: u32 = 2048;
/// Bytes of Ethernet, IPv4 and TCP headers.
const HEADERS: usize = 54;

/// An IPv4 frame to the card's own address, without checksums. `seed` goes into the transport
/// checksum's field.
fn ipv4(protocol: u8, payload: usize, seed: u16) -> Vec<u8> {
    let transport = if protocol == 6 { 20 } else { 8 };
    let mut frame = vec![0x52, 0x54, 0, 0x12, 0x34, 0x56, 2, 0, 0, 0, 0, 1, 8, 0];
    frame.extend([0x45, 0]);
    frame.extend(((20 + transport + payload) as u16).to_be_bytes());
    frame.extend([0x12, 0x34, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([0x30, 0x39, 0, 7]);
    if protocol == 6 {
        // A TCP header: sequence and acknowledgment number, a length of five words, FIN, PSH and
        // ACK.
        frame.extend([0, 0, 1, 0, 0, 0, 0, 9, 0x50, 0x19, 0x20, 0]);
        frame.extend(seed.to_be_bytes());
        frame.extend([0, 0]);
    } else {
        frame.extend(((8 + payload) as u16).to_be_bytes());
        frame.extend(seed.to_be_bytes());
    }
    frame.extend((0..payload).map(|i| (i * 7 + 1) as u8));
    frame
}

impl Card<'_> {
    /// Prepares buffers for looped-back frames, and rings of 16 and 8 descriptors.
    fn prepare(&mut self) {
        self.set(IMC, u32::MAX);
        // The PHY loops frames back, at 1000 Mb/s and full duplex, without negotiation.
        self.set_phy(0, 0x4140);
        for index in 0..8 {
            let at = BACK + ROOM * index;
            self.target.store(RX + 16 * index, &[u64::from(at), 0].map(u64::to_le_bytes).concat());
        }
        let setup = [
            (0x3800, TX),
            (0x3804, 0),
            (0x3808, 256),
            (0x3810, 0),
            (0x3818, 0),
            (0x2800, RX),
            (0x2804, 0),
            (0x2808, 128),
            (0x2810, 0),
            (0x2818, 7),
        ];
        setup.into_iter().for_each(|(at, value)| self.set(at, value));
        self.set(TCTL, 0x0103_f0fa);
        // The receiver accepts all frames, and strips check sequences.
        self.set(RCTL, 0x0400_801a);
        self.target.pass(2_000_000_000);
    }

    fn set_phy(&mut self, register: u32, value: u32) {
        self.set(MDIC, 1 << 26 | 1 << 21 | register << 16 | value);
    }

    /// Hands descriptors over from `first` on, and records what has come back since frame `seen`.
    fn exchange(&mut self, what: &str, first: u32, descriptors: &[[u64; 2]], seen: u32) -> u32 {
        for (index, words) in descriptors.iter().enumerate() {
            let bytes = words.map(u64::to_le_bytes).concat();
            self.target.store(TX + 16 * (first + index as u32), &bytes);
        }
        let tail = first + descriptors.len() as u32;
        self.set(0x3818, tail);
        self.look(&format!("{what}: TDH"), 0x3810);
        let head = self.look(&format!("{what}: RDH"), 0x2810);
        for index in seen..head {
            let words = self.target.load(RX + 16 * index, 16);
            let half = |at: usize| u32::from(u16::from_le_bytes([words[at], words[at + 1]]));
            let (len, status) = (half(8), half(12));
            self.seen.see(&format!("{what}: length {index}"), len);
            self.seen.see(&format!("{what}: status {index}"), status);
            self.see_memory(&format!("{what}: frame {index} "), BACK + ROOM * index, len);
        }
        self.see_memory(&format!("{what}: last descriptor"), TX + 16 * (tail - 1) + 8, 8);
        head
    }
}

/// Looped-back frames with everything that a transmit descriptor can request.
pub fn frames(target: &mut dyn Target) -> Seen {
    const LEGACY: u64 = 0x0b00_0000;
    const IC: u64 = 1 << 26;
    const DATA: u64 = 0x2b10_0000;
    const TSE: u64 = 1 << 26;
    let mut card = Card { target, seen: Seen::default() };
    card.prepare();
    let plain = ipv4(17, 40, 0);
    card.target.store(BUFFERS, &plain);
    let at = u64::from(BUFFERS);
    let legacy = |len: usize, more: u64| [at, LEGACY | more | len as u64];
    let mut head = card.exchange("plain", 0, &[legacy(plain.len(), 0)], 0);
    // A legacy descriptor requests the IP header's checksum: the sum from byte 14 to the end,
    // stored at byte 24.
    let more = IC | 24 << 16 | 14 << 40;
    head = card.exchange("legacy sum", 1, &[legacy(plain.len(), more)], head);
    // A context for TCP over IPv4 without segmentation, and a frame in two pieces.
    let frame = ipv4(6, 300, 0x1234);
    card.target.store(BUFFERS, &frame);
    let context = |command: u64, sum: u64, payload: u64, header: u64, mss: u64| {
        let offsets = 14 | 24 << 8 | 33 << 16 | 34 << 32 | sum << 40;
        [offsets, payload | (0x2000_0000 | command) | header << 40 | mss << 48]
    };
    let (tcp, ip) = (1 << 24, 1 << 25);
    let sums = 3 << 40;
    let pieces = [
        context(tcp | ip, 50, 0, 0, 0),
        [at, (DATA & !0x0100_0000) | 100 | sums],
        [at + 100, DATA | (frame.len() as u64 - 100)],
    ];
    head = card.exchange("TCP sums", 2, &pieces, head);
    let frame = ipv4(17, 200, 0x4321);
    card.target.store(BUFFERS, &frame);
    let pieces = [context(ip, 40, 0, 0, 0), [at, DATA | frame.len() as u64 | sums]];
    head = card.exchange("UDP sums", 5, &pieces, head);
    // Three segments; the header in a buffer of its own.
    let frame = ipv4(6, 1200, 0x1111);
    card.target.store(BUFFERS, &frame);
    let pieces = [
        context(tcp | ip | TSE, 50, 1200, HEADERS as u64, 500),
        [at, (DATA & !0x0100_0000) | TSE | HEADERS as u64 | sums],
        [at + HEADERS as u64, DATA | TSE | 1200],
    ];
    card.exchange("TSO", 7, &pieces, head);
    card.look("GPTC", 0x4080);
    card.look("TSCTC", 0x40f8);
    card.seen
}
