//! Reading pcap (draft-ietf-opsawg-pcap), with the variants that libpcap reads.

use super::Order;
use super::recording::{Packet, Recording};

/// The bytes of the file header.
const HEADER: usize = 24;
/// The bytes of a packet's header.
const RECORD: usize = 16;
/// The bytes that Kuznetzov's format, an old patch of libpcap, has in each packet's header besides.
const KUZNETZOV: usize = 8;
/// libpcap's largest snapshot length: a longer packet is a broken one.
const MAX_PACKET: u32 = 262_144;

/// What the file header says.
struct Header {
    order: Order,
    /// Nanoseconds of a unit of the time's fraction.
    unit: u64,
    record: usize,
    minor: u16,
    link: u32,
    fcs: u8,
}

/// The byte order, the unit of the times' fractions (ns), and the bytes of a packet's header.
fn by_magic(file: &[u8]) -> Option<(Order, u64, usize)> {
    [Order::Little, Order::Big].into_iter().find_map(|order| match order.word(file, 0)? {
        0xa1b2_c3d4 => Some((order, 1000, RECORD)),
        0xa1b2_3c4d => Some((order, 1, RECORD)),
        0xa1b2_cd34 => Some((order, 1000, RECORD + KUZNETZOV)),
        _ => None,
    })
}

/// True if a file begins with a number of pcap's.
pub(super) fn has_magic(head: &[u8]) -> bool {
    by_magic(head).is_some()
}

impl Header {
    fn read(file: &[u8]) -> Result<Self, &'static str> {
        if file.len() < 4 {
            return Err("it is shorter than a number");
        }
        let (order, unit, record) = by_magic(file).ok_or("it begins with another number")?;
        let (Some(major), Some(minor), Some(link)) =
            (order.half(file, 4), order.half(file, 6), order.word(file, 20))
        else {
            return Err("it is cut in the file header");
        };
        if major != 2 {
            return Err("its version is not 2");
        }
        // Bit 26 says that the four bits at the top are the FCS's length in 16-bit words.
        let fcs = if link & 1 << 26 == 0 { 0 } else { (link >> 28) as u8 * 2 };
        Ok(Self { order, unit, record, minor, link: link & 0x03ff_ffff, fcs })
    }

    /// The captured length and the length on the wire. Before version 2.3 they are swapped; in 2.3
    /// they may be.
    fn lengths(&self, header: &[u8]) -> Option<(u32, u32)> {
        let (captured, len) = (self.order.word(header, 8)?, self.order.word(header, 12)?);
        let swapped = self.minor < 3 || self.minor == 3 && captured > len;
        Some(if swapped { (len, captured) } else { (captured, len) })
    }
}

/// Reads all packets of a file.
///
/// # Errors
/// The file header is not pcap's.
pub(super) fn read(file: &[u8], recording: &mut Recording) -> Result<(), &'static str> {
    let header = Header::read(file)?;
    let mut at = HEADER;
    while at < file.len() {
        match next(&header, &file[at..]) {
            Ok((packet, len)) => {
                recording.push(packet);
                at += len;
            }
            Err(reason) => {
                recording.end(at, file.len() - at, reason);
                break;
            }
        }
    }
    Ok(())
}

/// The packet at the start of `rest`, and how many bytes it takes.
fn next<'a>(header: &Header, rest: &'a [u8]) -> Result<(Packet<'a>, usize), &'static str> {
    let cut = "a cut packet header";
    let record = rest.get(..header.record).ok_or(cut)?;
    let (captured, len) = header.lengths(record).ok_or(cut)?;
    if captured > MAX_PACKET {
        return Err("a packet of more than 262144 bytes");
    }
    let end = header.record + captured as usize;
    let bytes = rest.get(header.record..end).ok_or("a cut packet")?;
    let [seconds, fraction] = [0, 4].map(|at| header.order.word(record, at).unwrap_or_default());
    let time = u64::from(seconds) * 1_000_000_000 + u64::from(fraction) * header.unit;
    let (link, time) = (Some(header.link), Some(time));
    Ok((Packet { link, time, len, fcs: header.fcs, bytes }, end))
}
