//! Which frames a device accepts (82540EM manual, 3.2.1 and 9.2), according to its registers.

use super::Chip;
use super::registers::Registers;
use super::table::{self, ctrl, rctl};

/// Exact addresses.
const EXACT: usize = 16;
/// RAH: the address is valid.
const VALID: u32 = 1 << 31;
/// Bits of an address in a word.
const ADDRESS: u64 = 0xffff_ffff_ffff;
/// Longest frame, with its check sequence, unless long packets are enabled.
const LONGEST: usize = 1522;
/// Longest frame, with its check sequence, when long packets are enabled.
const LONGEST_LONG: usize = 16384;
/// RFCTL: descriptors have the extended form.
const EXTENDED: u32 = 1 << 15;
/// RCTL: descriptors have the form of packet split.
const DTYP_SPLIT: u32 = 1 << 10;
/// RXCSUM: report TCP and UDP checksums; report IP header checksums.
const REPORT_TRANSPORT: u32 = 1 << 9;
const REPORT_IP: u32 = 1 << 8;

/// The registers that decide about received frames, decoded.
#[derive(Clone, Debug, Default)]
pub(super) struct Filter {
    /// True if the receiver is on.
    pub enabled: bool,
    unicast: bool,
    multicast: bool,
    broadcast: bool,
    /// True if VLAN tags matter: they are filtered or stripped.
    pub tags: bool,
    vlan: bool,
    pub strip: bool,
    vet: u16,
    exact: [u64; EXACT],
    exact_count: usize,
    /// The position of the hash in the address's last 16 bits.
    hash_shift: u32,
    /// Bytes of the longest frame, without its check sequence.
    pub longest: usize,
    /// Bytes of a buffer.
    pub buffer: usize,
    /// Bytes of the check sequence that count towards the length.
    pub fcs: usize,
    /// True if descriptors have the extended form.
    pub extended: bool,
    /// With packet split: the sizes of a descriptor's four buffers; a size may be 0.
    pub split: Option<[u32; 4]>,
    /// Frames up to this many bytes, with check sequence, raise their own cause; 0 for none.
    pub small: usize,
    /// True if TCP and UDP checksums are reported.
    pub report_transport: bool,
    /// True if IP header checksums are reported.
    pub report_ip: bool,
    /// How far to shift the ring's size right, to get the number of free descriptors at which the
    /// driver is told.
    pub threshold_shift: u32,
    /// True if the second receive queue is used.
    pub two_queues: bool,
}

/// The kind of a frame's destination address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Unicast,
    Multicast,
    Broadcast,
}

/// The kind of the address in the low 48 bits of `destination`.
#[inline(always)]
pub(super) fn class(destination: u64) -> Class {
    match destination {
        ADDRESS => Class::Broadcast,
        other if other & 1 != 0 => Class::Multicast,
        _ => Class::Unicast,
    }
}

/// The destination address at the start of a frame, in the low 48 bits.
#[inline(always)]
pub(super) fn destination(head: &[u8]) -> u64 {
    head.first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes) & ADDRESS)
}

impl Filter {
    pub fn new(registers: &Registers, chip: Chip) -> Self {
        let control = registers.get(table::RCTL);
        let mac = registers.get(table::CTRL);
        let is_l = chip == Chip::L82574;
        let (vlan, strip) = (control & rctl::VFE != 0, mac & ctrl::VME != 0);
        let checksums = registers.get(table::RXCSUM);
        let rfctl = if is_l { registers.get(table::RFCTL) } else { 0 };
        let long = control & (rctl::LPE | rctl::SBP) != 0;
        let mut filter = Self {
            enabled: control & rctl::EN != 0,
            unicast: control & rctl::UPE != 0,
            multicast: control & rctl::MPE != 0,
            broadcast: control & rctl::BAM != 0,
            tags: vlan || strip,
            vlan,
            strip,
            vet: registers.get(table::VET) as u16,
            exact: [0; EXACT],
            exact_count: 0,
            hash_shift: [4, 3, 2, 0][(control >> 12 & 3) as usize],
            longest: if long { LONGEST_LONG - 4 } else { LONGEST - 4 },
            buffer: registers.buffer_size() as usize,
            fcs: if control & rctl::SECRC != 0 { 0 } else { 4 },
            extended: rfctl & EXTENDED != 0,
            split: None,
            small: (registers.get(table::RSRPD) & 0xfff) as usize,
            report_transport: checksums & REPORT_TRANSPORT != 0,
            report_ip: checksums & REPORT_IP != 0,
            threshold_shift: 1 + (control >> 8 & 3).min(2),
            two_queues: is_l && two_queues(registers),
        };
        if is_l && control & DTYP_SPLIT != 0 {
            filter.split = Some(split_sizes(registers.get(table::PSRCTL)));
        }
        filter.read_addresses(registers);
        filter
    }

    fn read_addresses(&mut self, registers: &Registers) {
        for i in 0..EXACT {
            let (low, high) =
                (registers.get(table::RAL + 2 * i), registers.get(table::RAL + 2 * i + 1));
            // Bits 17:16 select the source address, or a use that this model lacks.
            if high & VALID != 0 && high >> 16 & 3 == 0 {
                self.exact[self.exact_count] = u64::from(low) | u64::from(high & 0xffff) << 32;
                self.exact_count += 1;
            }
        }
    }

    /// True if the device accepts a frame to this address (low 48 bits).
    #[inline(always)]
    pub fn takes(&self, registers: &Registers, destination: u64) -> bool {
        let kind = class(destination);
        if kind == Class::Unicast && (self.unicast || self.exact[0] == destination) {
            // An unused first entry is all zero, which is no station's address.
            return self.unicast || destination != 0;
        }
        if kind == Class::Broadcast && self.broadcast || kind != Class::Unicast && self.multicast {
            return true;
        }
        self.takes_listed(registers, destination)
    }

    fn takes_listed(&self, registers: &Registers, destination: u64) -> bool {
        if self.exact[..self.exact_count].contains(&destination) {
            return true;
        }
        let hash = ((destination >> 32) as usize >> self.hash_shift) & 0xfff;
        registers.get(table::MTA + hash / 32) >> (hash % 32) & 1 != 0
    }

    /// The VLAN tag of the frame that starts with `head`, if it has one.
    #[inline(always)]
    pub fn tag(&self, head: &[u8]) -> Option<u16> {
        let &[a, b, c, d] = head.get(12..16)?.first_chunk()?;
        (u16::from_be_bytes([a, b]) == self.vet).then(|| u16::from_be_bytes([c, d]))
    }

    /// True if the device accepts a frame with this tag, or without one.
    pub fn takes_tag(&self, registers: &Registers, tag: Option<u16>) -> bool {
        let Some(tag) = tag.filter(|_| self.vlan) else { return true };
        let id = usize::from(tag & 0xfff);
        registers.get(table::VFTA + id / 32) >> (id % 32) & 1 != 0
    }
}

/// Sizes of the four buffers (PSRCTL): the first in units of 128 bytes, the others in units of
/// 1,024.
fn split_sizes(psrctl: u32) -> [u32; 4] {
    let size = |at: u32, unit: u32| (psrctl >> at & 0x7f) * unit;
    [size(0, 128), size(8, 1024), (psrctl >> 16 & 0x3f) * 1024, (psrctl >> 24 & 0x3f) * 1024]
}

/// True if receive side scaling is on and sends some frames to the second queue.
fn two_queues(registers: &Registers) -> bool {
    const QUEUES: u32 = 0x8080_8080;
    registers.get(table::MRQC) & 3 == 1
        && (0..32).any(|i| registers.get(table::RETA + i) & QUEUES != 0)
}
