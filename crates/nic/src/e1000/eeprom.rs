//! The EEPROM: its contents, its four wires (82540EM manual, 5.3) and reads by number.

use std::sync::atomic::Ordering::Relaxed;

use frame::Mac;

use super::Chip;
use super::registers::Shifter;

/// The number of words in the EEPROM.
const WORDS: usize = 64;
/// The required sum of all words.
const SUM: u16 = 0xbaba;
/// Bits of a command: start bit and opcode, then the address.
pub(super) const COMMAND_BITS: u32 = 9;
/// A start bit and the opcode for reading.
const READ: u32 = 0b110;

/// Bits of EECD.
pub(super) mod eecd {
    pub const SK: u32 = 1;
    pub const CS: u32 = 1 << 1;
    pub const DI: u32 = 1 << 2;
    pub const DO: u32 = 1 << 3;
    pub const REQ: u32 = 1 << 6;
    pub const GNT: u32 = 1 << 7;
    pub const PRES: u32 = 1 << 8;
    /// 82574L: the EEPROM's contents were loaded.
    pub const AUTO_RD: u32 = 1 << 9;
    /// Bits that keep what was written.
    pub const KEPT: u32 = 0x77;
}

/// The contents.
#[derive(Clone, Debug)]
pub(super) struct Eeprom {
    words: [u16; WORDS],
    chip: Chip,
}

impl Eeprom {
    pub fn new(chip: Chip, mac: Mac) -> Self {
        let mut words = match chip {
            Chip::Em82540 => Self::em82540(),
            Chip::L82574 => Self::l82574(),
        };
        let octets = mac.octets();
        for (word, pair) in words.iter_mut().zip(octets.chunks_exact(2)) {
            *word = u16::from_le_bytes([pair[0], pair[1]]);
        }
        let sum = words[..WORDS - 1].iter().fold(0u16, |sum, word| sum.wrapping_add(*word));
        words[WORDS - 1] = SUM.wrapping_sub(sum);
        Self { words, chip }
    }

    /// The map of the 82540EM (manual, 5.6), as far as drivers read it. Unused words are all ones.
    fn em82540() -> [u16; WORDS] {
        let mut words = [0xffff; WORDS];
        words[0x03] = 0;
        words[0x08..0x0c].copy_from_slice(&[0x3000, 0x1000, 0x6403, 0x100e]);
        words[0x0c..0x10].copy_from_slice(&[0x8086, 0x100e, 0x8086, 0x3040]);
        // These bits disable wake on LAN.
        words[0x21..0x25].copy_from_slice(&[0, 0, 0, 0x0001]);
        words
    }

    /// The map of the 82574L (datasheet, 6.1).
    fn l82574() -> [u16; WORDS] {
        let mut words = [0xffff; WORDS];
        words[0x03] = 0x0420;
        words[0x05] = 0x2010;
        words[0x08..0x0c].copy_from_slice(&[0x3000, 0x1000, 0x026b, 0x0000]);
        words[0x0c..0x10].copy_from_slice(&[0x8086, 0x10d3, 0x8086, 0x0000]);
        words[0x21..0x25].copy_from_slice(&[0, 0, 0, 0]);
        words
    }

    /// The word with this number; all ones where there is none.
    pub fn word(&self, number: u32) -> u16 {
        self.words.get(number as usize).copied().unwrap_or(0xffff)
    }

    /// The answer to a write to EERD, which is done at once.
    pub fn read_by_number(&self, request: u32) -> u32 {
        // The 82540 has the address in bits 15:8, and bit 4 says that the read is done. Later chips
        // use bits 15:2 and bit 1.
        let (address, done) = match self.chip {
            Chip::Em82540 => (request >> 8 & 0xff, 1 << 4),
            Chip::L82574 => (request >> 2 & 0x3fff, 1 << 1),
        };
        if request & 1 == 0 {
            return request;
        }
        u32::from(self.word(address)) << 16 | request & 0xffff & !1 | done
    }

    /// Handles a write to the wires.
    pub fn write_wires(&self, shifter: &Shifter, value: u32) {
        let old = shifter.wires.swap(value & eecd::KEPT, Relaxed);
        if value & eecd::CS == 0 {
            return;
        }
        if old & eecd::CS == 0 {
            shifter.bits_in.store(0, Relaxed);
            shifter.value.store(0, Relaxed);
            shifter.bit_out.store(0, Relaxed);
        }
        let reads = shifter.bit_out.load(Relaxed);
        match (old & eecd::SK != 0, value & eecd::SK != 0) {
            (true, false) if reads != 0 => shifter.bit_out.store(reads % 0xffff + 1, Relaxed),
            (false, true) if reads == 0 => shift_in(shifter, value & eecd::DI != 0),
            _ => {}
        }
    }

    /// The present levels of the wires.
    pub fn read_wires(&self, shifter: &Shifter) -> u32 {
        let wires = shifter.wires.load(Relaxed);
        let granted = if wires & eecd::REQ != 0 { eecd::GNT } else { 0 };
        let out = match shifter.bit_out.load(Relaxed) {
            0 => true,
            // A zero precedes the first data bit.
            1 => false,
            bit => {
                let index = bit - 2;
                self.word(index / 16 % WORDS as u32) >> (15 - index % 16) & 1 != 0
            }
        };
        let loaded = if self.chip == Chip::L82574 { eecd::AUTO_RD } else { 0 };
        wires | granted | eecd::PRES | loaded | if out { eecd::DO } else { 0 }
    }
}

/// Shifts a bit in. The last bit of a read command starts shifting out.
fn shift_in(shifter: &Shifter, bit: bool) {
    let value = shifter.value.load(Relaxed) << 1 & 0xffff | u32::from(bit);
    // Zeros before the start bit belong to no command.
    let bits = shifter.bits_in.load(Relaxed);
    if bits == 0 && !bit {
        return;
    }
    shifter.value.store(value, Relaxed);
    shifter.bits_in.store((bits + 1).min(COMMAND_BITS + 1), Relaxed);
    if bits + 1 == COMMAND_BITS && value >> 6 & 7 == READ {
        shifter.bit_out.store(16 * (value & 0x3f) + 1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    fn shifter() -> Shifter {
        let zero = || AtomicU32::new(0);
        Shifter { bits_in: zero(), value: zero(), bit_out: zero(), wires: zero() }
    }

    fn read_by_wire(eeprom: &Eeprom, shifter: &Shifter, number: u32) -> u16 {
        eeprom.write_wires(shifter, eecd::REQ);
        assert!(eeprom.read_wires(shifter) & eecd::GNT != 0);
        let idle = eecd::REQ | eecd::CS;
        eeprom.write_wires(shifter, idle);
        for bit in (0..9).rev() {
            let data = if (READ << 6 | number) >> bit & 1 != 0 { eecd::DI } else { 0 };
            for clock in [0, eecd::SK, 0] {
                eeprom.write_wires(shifter, idle | data | clock);
            }
        }
        let mut word = 0;
        for _ in 0..16 {
            eeprom.write_wires(shifter, idle | eecd::SK);
            word = word << 1 | u16::from(eeprom.read_wires(shifter) & eecd::DO != 0);
            eeprom.write_wires(shifter, idle);
        }
        eeprom.write_wires(shifter, 0);
        word
    }

    #[test]
    fn every_word_comes_over_the_wires() {
        let eeprom = Eeprom::new(Chip::Em82540, Mac::new([2, 3, 4, 5, 6, 7]));
        let shifter = shifter();
        let words: Vec<u16> = (0..64).map(|n| read_by_wire(&eeprom, &shifter, n)).collect();
        assert_eq!(words[..3], [0x0302, 0x0504, 0x0706]);
        assert_eq!(words.iter().fold(0u16, |sum, word| sum.wrapping_add(*word)), SUM);
        assert_eq!(words, eeprom.words);
    }

    #[test]
    fn words_are_read_by_number_in_the_member_s_own_layout() {
        let mac = Mac::new([2, 3, 4, 5, 6, 7]);
        let em = Eeprom::new(Chip::Em82540, mac);
        assert_eq!(em.read_by_number(1 | 1 << 8), 0x0504_0110);
        let l = Eeprom::new(Chip::L82574, mac);
        assert_eq!(l.read_by_number(1 | 2 << 2), 0x0706_000a);
        assert_eq!(l.read_by_number(1 | 0x3fff << 2) >> 16, 0xffff);
        let sum = l.words.iter().fold(0u16, |sum, word| sum.wrapping_add(*word));
        assert_eq!(sum, SUM);
    }
}
