//! UDP, TCP and ICMP headers.

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A UDP header (RFC 768).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Udp {
    source: U16,
    destination: U16,
    len: U16,
    checksum: U16,
}

impl Udp {
    /// Bytes of the header.
    pub const LEN: usize = size_of::<Self>();
    /// Offset of the checksum in the header.
    pub const CHECKSUM: u16 = 6;

    /// A header for `payload_len` bytes that follow, without a checksum, which IPv4 allows.
    #[must_use]
    pub fn new(source: u16, destination: u16, payload_len: u16) -> Self {
        Self {
            source: U16::new(source),
            destination: U16::new(destination),
            len: U16::new(payload_len.saturating_add(Self::LEN as u16)),
            checksum: U16::ZERO,
        }
    }

    /// The header at the start of `bytes` and what follows it, up to the datagram's length or the
    /// end of `bytes`. `None` if it is cut short, or its length is too small.
    #[must_use]
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<(&Self, &[u8])> {
        let (header, rest) = Self::ref_from_prefix(bytes).ok()?;
        let len = usize::from(header.len.get()).checked_sub(Self::LEN)?;
        Some((header, &rest[..len.min(rest.len())]))
    }

    /// The sender's port.
    #[must_use]
    pub fn source(&self) -> u16 {
        self.source.get()
    }

    /// The receiver's port.
    #[must_use]
    pub fn destination(&self) -> u16 {
        self.destination.get()
    }

    /// Bytes of header and payload.
    #[must_use]
    pub fn datagram_len(&self) -> usize {
        usize::from(self.len.get())
    }

    /// The checksum; 0 for none.
    #[must_use]
    pub fn checksum(&self) -> u16 {
        self.checksum.get()
    }

    /// Sets the checksum; 0 is stored as 0xffff, because 0 means "none".
    pub fn set_checksum(&mut self, checksum: u16) {
        self.checksum = U16::new(if checksum == 0 { 0xffff } else { checksum });
    }
}

/// A TCP header without its options (RFC 9293, 3.1).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Tcp {
    source: U16,
    destination: U16,
    sequence: U32,
    acknowledgment: U32,
    offset_flags: U16,
    window: U16,
    checksum: U16,
    urgent: U16,
}

/// TCP's flags (RFC 9293, 3.1; RFC 3168).
pub mod tcp_flags {
    /// No more data from the sender.
    pub const FIN: u8 = 0x01;
    /// Synchronise sequence numbers.
    pub const SYN: u8 = 0x02;
    /// Reset the connection.
    pub const RST: u8 = 0x04;
    /// Push.
    pub const PSH: u8 = 0x08;
    /// The acknowledgment number counts.
    pub const ACK: u8 = 0x10;
    /// The urgent pointer counts.
    pub const URG: u8 = 0x20;
    /// The sender saw congestion marks.
    pub const ECE: u8 = 0x40;
    /// The sender reduced its window.
    pub const CWR: u8 = 0x80;
}

impl Tcp {
    /// Bytes of a header without options.
    pub const LEN: usize = size_of::<Self>();
    /// The offset of the checksum in the header.
    pub const CHECKSUM: u16 = 16;

    /// The header at the start of `bytes`, and what follows its options. `None` if it is cut short,
    /// or its length is too small.
    #[must_use]
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<(&Self, &[u8])> {
        let (header, _) = Self::ref_from_prefix(bytes).ok()?;
        let len = header.header_len();
        Some((header, bytes.get(len..).filter(|_| len >= Self::LEN)?))
    }

    /// Bytes of the header, options included.
    #[must_use]
    pub fn header_len(&self) -> usize {
        usize::from(self.offset_flags.get() >> 12) * 4
    }

    /// The sender's port.
    #[must_use]
    pub fn source(&self) -> u16 {
        self.source.get()
    }

    /// The receiver's port.
    #[must_use]
    pub fn destination(&self) -> u16 {
        self.destination.get()
    }

    /// The sequence number of the first byte.
    #[must_use]
    pub fn sequence(&self) -> u32 {
        self.sequence.get()
    }

    /// The sequence number expected next.
    #[must_use]
    pub fn acknowledgment(&self) -> u32 {
        self.acknowledgment.get()
    }

    /// The flags: see [`tcp_flags`].
    #[must_use]
    pub fn flags(&self) -> u8 {
        self.offset_flags.get() as u8
    }

    /// The window, unscaled.
    #[must_use]
    pub fn window(&self) -> u16 {
        self.window.get()
    }

    /// The checksum.
    #[must_use]
    pub fn checksum(&self) -> u16 {
        self.checksum.get()
    }

    /// Sets the sequence number of the first byte.
    pub fn set_sequence(&mut self, sequence: u32) {
        self.sequence = U32::new(sequence);
    }

    /// Sets the flags.
    pub fn set_flags(&mut self, flags: u8) {
        self.offset_flags = U16::new(self.offset_flags.get() & 0xff00 | u16::from(flags));
    }

    /// Sets the checksum.
    pub fn set_checksum(&mut self, checksum: u16) {
        self.checksum = U16::new(checksum);
    }
}

/// The start of an ICMP or ICMPv6 message (RFC 792; RFC 4443).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Icmp {
    /// Type; 8 and 0 are ICMP's echo request and reply, 128 and 129 ICMPv6's.
    pub kind: u8,
    /// Code.
    pub code: u8,
    checksum: U16,
    /// Identifier and sequence number of echo messages.
    rest: [U16; 2],
}

impl Icmp {
    /// Offset of the checksum in the header.
    pub const CHECKSUM: u16 = 2;

    /// The header at the start of `bytes` and what follows it; `None` if it is cut short.
    #[must_use]
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<(&Self, &[u8])> {
        Self::ref_from_prefix(bytes).ok()
    }

    /// Identifier and sequence number of an echo message.
    #[must_use]
    pub fn echo(&self) -> (u16, u16) {
        (self.rest[0].get(), self.rest[1].get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn udp_lies_as_rfc_768_says() {
        let mut udp = Udp::new(0x1234, 0x5678, 4);
        udp.set_checksum(0);
        assert_eq!(udp.as_bytes(), b"\x12\x34\x56\x78\x00\x0c\xff\xff");
        let mut bytes = [7; 20];
        udp.write_to_prefix(&mut bytes).unwrap();
        assert_eq!(Udp::parse(&bytes).unwrap().1, [7; 4]);
        bytes[5] = 7;
        assert!(Udp::parse(&bytes).is_none(), "shorter than its header");
    }

    #[test]
    fn tcp_lies_as_rfc_9293_says() {
        let mut bytes = [0; 30];
        bytes[..4].copy_from_slice(&[0, 80, 1, 0]);
        bytes[7] = 9;
        bytes[12..14].copy_from_slice(&[0x60, tcp_flags::SYN]);
        let (tcp, rest) = Tcp::parse(&bytes).unwrap();
        assert_eq!((tcp.source(), tcp.destination(), tcp.sequence()), (80, 256, 9));
        assert_eq!((tcp.flags(), tcp.header_len(), rest.len()), (tcp_flags::SYN, 24, 6));
        bytes[12] = 0x40;
        assert!(Tcp::parse(&bytes).is_none(), "offset below 5");
        bytes[12] = 0xf0;
        assert!(Tcp::parse(&bytes).is_none(), "options beyond the end");
    }

    #[test]
    fn setting_flags_keeps_the_offset() {
        let mut tcp = Tcp::read_from_bytes(&[0x50; 20]).unwrap();
        tcp.set_flags(tcp_flags::ACK | tcp_flags::CWR);
        assert_eq!((tcp.header_len(), tcp.flags()), (20, 0x90));
    }
}
