//! Which frames a PCnet accepts (Am79C970A, "Address Matching", "CSR8" to "CSR15").

use super::registers::{Registers, csr, mode};
use super::ring::bits;

/// CRC-32 of each byte, least significant bit first (IEEE 802.3, 3.2.9).
static CRC: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 0 { crc >> 1 } else { crc >> 1 ^ 0xedb8_8320 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// The CRC register after these bytes, not inverted.
fn crc(bytes: &[u8]) -> u32 {
    bytes.iter().fold(u32::MAX, |crc, byte| crc >> 8 ^ CRC[usize::from(crc as u8 ^ byte)])
}

/// The frame check sequence of a frame, as its last four bytes.
pub(super) fn frame_check(frame: &[u8]) -> [u8; 4] {
    (!crc(frame)).to_le_bytes()
}

/// The addresses that the controller accepts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Filter {
    promiscuous: bool,
    broadcast: bool,
    /// The station address, as [`port::Mac::word`] gives it, or a value that no frame has.
    station: u64,
    logical: u64,
}

/// All ones in the low 48 bits.
const BROADCAST: u64 = 0xffff_ffff_ffff;
/// A value that matches no destination: it has more than 48 bits.
const NO_DESTINATION: u64 = u64::MAX;

impl Filter {
    pub fn new(registers: &Registers) -> Self {
        let of = |first: usize, halves: usize| {
            let halves = (0..halves).rev().map(|half| registers.csr(first + half));
            halves.fold(0, |word, half| word << 16 | u64::from(half))
        };
        let mode = registers.csr(csr::MODE);
        let station = if mode & mode::DRCVPA == 0 { of(csr::STATION, 3) } else { NO_DESTINATION };
        Self {
            promiscuous: mode & mode::PROM != 0,
            broadcast: mode & mode::DRCVBC == 0,
            station,
            logical: of(csr::LOGICAL, 4),
        }
    }

    /// Whether the controller accepts a frame to this address, and by which match. The address is
    /// in the low 48 bits, first octet lowest.
    #[inline(always)]
    pub fn matches(&self, to: u64) -> Option<u16> {
        if to == self.station {
            return Some(bits::PAM);
        }
        if to == BROADCAST && self.broadcast {
            return Some(bits::BAM);
        }
        if to & 1 != 0 && self.logical != 0 && self.is_logical(to) {
            return Some(bits::LAFM);
        }
        self.promiscuous.then_some(0)
    }

    /// The six upper bits of the address's CRC pick a bit of the logical address filter.
    fn is_logical(&self, to: u64) -> bool {
        let bytes = to.to_le_bytes();
        self.logical >> (crc(&bytes[..6]) >> 26) & 1 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frame_check_is_the_ieee_one() {
        assert_eq!(frame_check(b"123456789"), 0xcbf4_3926_u32.to_le_bytes());
    }

    #[test]
    fn addresses_match_by_station_broadcast_hash_or_not_at_all() {
        let station = 0x5634_1200_5452;
        let filter = Filter { broadcast: true, station, ..Filter::default() };
        assert_eq!(filter.matches(station), Some(bits::PAM));
        assert_eq!(filter.matches(station ^ 1 << 40), None);
        assert_eq!(filter.matches(BROADCAST), Some(bits::BAM));
        // 01:00:5e:00:00:01 is bit 23 of the filter with the little-endian CRC.
        let all_hosts = 0x0100_005e_0001;
        assert_eq!(filter.matches(all_hosts), None);
        let hash = crc(&[1, 0, 0x5e, 0, 0, 1]) >> 26;
        let with = Filter { logical: 1 << hash, ..filter };
        assert_eq!(with.matches(all_hosts), Some(bits::LAFM));
        assert_eq!(Filter { logical: !(1 << hash), ..filter }.matches(all_hosts), None);
        let everything = Filter { promiscuous: true, broadcast: false, ..Filter::default() };
        assert_eq!(everything.matches(BROADCAST), Some(0));
        assert_eq!(everything.matches(2), Some(0));
    }
}
