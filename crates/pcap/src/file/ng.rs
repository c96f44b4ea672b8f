//! Reading pcapng (draft-ietf-opsawg-pcapng).

use super::Order;
use super::blocks::{
    ENHANCED_PACKET, INTERFACE_DESCRIPTION, OBSOLETE_PACKET, SECTION_HEADER, SIMPLE_PACKET,
};
use super::recording::{Packet, Recording};

/// The bytes of a block without its body: type, length, and the length again.
const FRAME: usize = 12;
/// Options of an interface description (section 4.2).
mod options {
    pub(super) const END: u16 = 0;
    pub(super) const RESOLUTION: u16 = 9;
    pub(super) const FCS_LENGTH: u16 = 13;
    pub(super) const OFFSET: u16 = 14;
}

/// What a section says of an interface.
struct Interface {
    link: u32,
    /// The bytes that were kept of each packet; 0 for all.
    snap: u32,
    /// The unit of time, as in `if_tsresol`.
    resolution: u8,
    /// Seconds to be added to each time.
    offset: i64,
    fcs: u8,
}

/// Where the reader is: the section's byte order and interfaces.
struct Section {
    order: Order,
    interfaces: Vec<Interface>,
}

/// Reads all packets of a file.
///
/// # Errors
/// The first block is no section header.
pub(super) fn read(file: &[u8], recording: &mut Recording) -> Result<(), &'static str> {
    let mut section = Section { order: Order::Little, interfaces: Vec::new() };
    let mut at = 0;
    while at < file.len() {
        match section.block(&file[at..]) {
            Ok((kind, body)) => {
                section.take(kind, body, recording);
                at += FRAME + body.len();
            }
            Err(reason) if at == 0 => return Err(reason),
            Err(reason) => {
                recording.end(at, file.len() - at, reason);
                break;
            }
        }
    }
    Ok(())
}

impl Section {
    /// The type and the body of the block at the start of `rest`. A section header sets the byte
    /// order of all that follows.
    fn block<'a>(&mut self, rest: &'a [u8]) -> Result<(u32, &'a [u8]), &'static str> {
        let cut = "a cut block";
        if rest.starts_with(&SECTION_HEADER.to_be_bytes()) {
            self.order = match Order::Little.word(rest, 8).ok_or(cut)? {
                0x1a2b_3c4d => Order::Little,
                0x4d3c_2b1a => Order::Big,
                _ => return Err("a section without a byte order"),
            };
            self.interfaces.clear();
        }
        let kind = self.order.word(rest, 0).ok_or(cut)?;
        let len = self.order.word(rest, 4).ok_or(cut)? as usize;
        if len < FRAME || !len.is_multiple_of(4) {
            return Err("a block of an impossible length");
        }
        let block = rest.get(..len).ok_or(cut)?;
        if self.order.word(block, len - 4) != Some(len as u32) {
            return Err("a block whose lengths differ");
        }
        if kind == SECTION_HEADER && self.order.half(block, 12) != Some(1) {
            return Err("a section of another version than 1");
        }
        Ok((kind, &block[8..len - 4]))
    }

    /// Reads a block; blocks of other types say nothing about frames.
    fn take(&mut self, kind: u32, body: &[u8], recording: &mut Recording) {
        let packet = match kind {
            INTERFACE_DESCRIPTION => {
                self.interfaces.push(self.interface(body));
                return;
            }
            ENHANCED_PACKET => self.enhanced(body),
            OBSOLETE_PACKET => self.obsolete(body),
            SIMPLE_PACKET => self.simple(body),
            _ => return,
        };
        // A packet block without its fixed part is one of no interface.
        let nothing = Packet { link: None, time: None, len: 0, fcs: 0, bytes: &[] };
        recording.push(packet.unwrap_or(nothing));
    }

    /// Section 4.2.
    fn interface(&self, body: &[u8]) -> Interface {
        // A description that is too short for its link type is of none that can be sent.
        let link = self.order.half(body, 0).map_or(u32::MAX, u32::from);
        let snap = self.order.word(body, 4).unwrap_or(0);
        let mut interface = Interface { link, snap, resolution: 6, offset: 0, fcs: 0 };
        let mut rest = body.get(8..).unwrap_or_default();
        while let (Some(code), Some(len)) = (self.order.half(rest, 0), self.order.half(rest, 2)) {
            let len = usize::from(len);
            let Some(value) = rest.get(4..4 + len) else { break };
            match (code, value) {
                (options::END, _) => break,
                (options::RESOLUTION, [resolution]) => interface.resolution = *resolution,
                (options::FCS_LENGTH, [len]) => interface.fcs = *len,
                (options::OFFSET, _) if len == 8 => interface.offset = self.offset(value),
                _ => (),
            }
            rest = rest.get(4 + len.next_multiple_of(4)..).unwrap_or_default();
        }
        interface
    }

    /// A signed 64-bit number of seconds.
    fn offset(&self, value: &[u8]) -> i64 {
        let [first, second] = [0, 4].map(|at| self.order.word(value, at).unwrap_or_default());
        let (low, high) = match self.order {
            Order::Little => (first, second),
            Order::Big => (second, first),
        };
        (u64::from(high) << 32 | u64::from(low)).cast_signed()
    }

    /// Section 4.3.
    fn enhanced<'a>(&self, body: &'a [u8]) -> Option<Packet<'a>> {
        let number = self.order.word(body, 0)? as usize;
        self.timed(number, body)
    }

    /// Section A.1: like the enhanced block, with a number of drops beside the interface's.
    fn obsolete<'a>(&self, body: &'a [u8]) -> Option<Packet<'a>> {
        let number = self.order.half(body, 0)?.into();
        self.timed(number, body)
    }

    /// What both have behind the interface's number.
    fn timed<'a>(&self, number: usize, body: &'a [u8]) -> Option<Packet<'a>> {
        let (high, low) = (self.order.word(body, 4)?, self.order.word(body, 8)?);
        let (captured, len) = (self.order.word(body, 12)?, self.order.word(body, 16)?);
        let interface = self.interfaces.get(number);
        let units = u64::from(high) << 32 | u64::from(low);
        let time = interface.map(|at| nanoseconds(units, at.resolution, at.offset));
        let rest = &body[20..];
        // A block that has fewer bytes than it says was cut by its writer.
        let bytes = &rest[..rest.len().min(captured as usize)];
        let fcs = interface.map_or(0, |interface| interface.fcs);
        let len = len.max(captured);
        Some(Packet { link: interface.map(|at| at.link), time, len, fcs, bytes })
    }

    /// Section 4.4: of the first interface, without a time and the captured length.
    fn simple<'a>(&self, body: &'a [u8]) -> Option<Packet<'a>> {
        let len = self.order.word(body, 0)?;
        let interface = self.interfaces.first()?;
        let captured = if interface.snap == 0 { len } else { len.min(interface.snap) };
        let rest = &body[4..];
        let bytes = &rest[..rest.len().min(captured as usize)];
        Some(Packet { link: Some(interface.link), time: None, len, fcs: interface.fcs, bytes })
    }
}

/// Converts `units` to nanoseconds since 1970 by `if_tsresol`: a unit is a negative power of 10 of
/// a second, or with the highest bit set, of 2; `offset` is in seconds (section 4.2).
fn nanoseconds(units: u64, resolution: u8, offset: i64) -> u64 {
    let base: u128 = if resolution & 0x80 == 0 { 10 } else { 2 };
    let per_second = base.checked_pow(u32::from(resolution & 0x7f)).unwrap_or(u128::MAX);
    let time = (u128::from(units) * 1_000_000_000 / per_second).cast_signed();
    let time = time + i128::from(offset) * 1_000_000_000;
    u64::try_from(time.clamp(0, u64::MAX.into())).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolutions_are_powers_of_ten_or_two() {
        assert_eq!(nanoseconds(1_500_000, 6, 0), 1_500_000_000);
        assert_eq!(nanoseconds(1, 9, 2), 2_000_000_001);
        assert_eq!(nanoseconds(3, 0, -2), 1_000_000_000);
        assert_eq!(nanoseconds(512, 0x80 | 10, 0), 500_000_000);
        for resolution in 0..=255 {
            for offset in [i64::MIN, 0, i64::MAX] {
                let _ = nanoseconds(u64::MAX, resolution, offset);
            }
        }
    }
}
