//! IPv4 and IPv6 headers.

use core::net::{Ipv4Addr, Ipv6Addr};

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::checksum;
use crate::protocol::Protocol;

/// An IPv4 header without its options (RFC 791, 3.1).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Ipv4 {
    version_ihl: u8,
    tos: u8,
    total_len: U16,
    id: U16,
    flags_fragment: U16,
    ttl: u8,
    protocol: u8,
    checksum: U16,
    source: [u8; 4],
    destination: [u8; 4],
}

impl Ipv4 {
    /// Bytes of a header without options.
    pub const LEN: usize = size_of::<Self>();

    const DONT_FRAGMENT: u16 = 0x4000;

    /// A header without options for `payload_len` bytes that follow: TTL 64, "don't fragment", and
    /// a valid checksum.
    #[must_use]
    pub fn new(
        source: Ipv4Addr,
        destination: Ipv4Addr,
        protocol: Protocol,
        payload_len: u16,
    ) -> Self {
        let mut header = Self {
            version_ihl: 0x45,
            tos: 0,
            total_len: U16::new(payload_len.saturating_add(Self::LEN as u16)),
            id: U16::ZERO,
            flags_fragment: U16::new(Self::DONT_FRAGMENT),
            ttl: 64,
            protocol: protocol.0,
            checksum: U16::ZERO,
            source: source.octets(),
            destination: destination.octets(),
        };
        header.checksum = U16::new(checksum(header.as_bytes()));
        header
    }

    /// The header at the start of `bytes`, and what follows its options, up to the packet's length
    /// or the end of `bytes`. These may be the head of a longer packet. `None` if the header is cut
    /// short, of another version, or has contradictory lengths. The checksum is not checked; see
    /// [`checksum_ok`](Self::checksum_ok).
    #[must_use]
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<(&Self, &[u8])> {
        let (header, _) = Self::ref_from_prefix(bytes).ok()?;
        let (len, total) = (header.header_len(), header.total_len());
        if header.version_ihl >> 4 != 4 || len < Self::LEN || total < len {
            return None;
        }
        Some((header, bytes.get(len..total.min(bytes.len()))?))
    }

    /// Bytes of the header, options included.
    #[must_use]
    pub fn header_len(&self) -> usize {
        usize::from(self.version_ihl & 0xf) * 4
    }

    /// Bytes of the packet, header included.
    #[must_use]
    pub fn total_len(&self) -> usize {
        usize::from(self.total_len.get())
    }

    /// The type of service byte: DSCP and ECN.
    #[must_use]
    pub fn tos(&self) -> u8 {
        self.tos
    }

    /// The identification.
    #[must_use]
    pub fn id(&self) -> u16 {
        self.id.get()
    }

    /// Hops left.
    #[must_use]
    pub fn ttl(&self) -> u8 {
        self.ttl
    }

    /// The protocol that the packet carries.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        Protocol(self.protocol)
    }

    /// True for what begins its packet: all but later fragments.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.flags_fragment.get() & 0x1fff == 0
    }

    /// True for any fragment of a larger packet, the first included.
    #[must_use]
    pub fn is_fragment(&self) -> bool {
        self.flags_fragment.get() & 0x3fff != 0
    }

    /// The source address.
    #[must_use]
    pub fn source(&self) -> Ipv4Addr {
        self.source.into()
    }

    /// The destination address.
    #[must_use]
    pub fn destination(&self) -> Ipv4Addr {
        self.destination.into()
    }

    /// Source and destination as in the header, for pseudo headers.
    #[must_use]
    pub fn addresses(&self) -> &[u8] {
        &self.as_bytes()[12..20]
    }

    /// The header checksum.
    #[must_use]
    pub fn checksum(&self) -> u16 {
        self.checksum.get()
    }

    /// True if the checksum of the header that starts `bytes` is right.
    #[must_use]
    pub fn checksum_ok(bytes: &[u8]) -> bool {
        let len = Self::parse(bytes).map(|(header, _)| header.header_len());
        len.and_then(|len| bytes.get(..len)).is_some_and(|header| checksum(header) == 0)
    }

    /// Sets the identification and the packet's length, and updates the checksum (RFC 1624).
    /// Segmentation changes these from segment to segment.
    pub fn set_id_and_len(&mut self, id: u16, total_len: u16) {
        let sum = crate::checksum::update(self.checksum.get(), self.id.get(), id);
        let sum = crate::checksum::update(sum, self.total_len.get(), total_len);
        self.id = U16::new(id);
        self.total_len = U16::new(total_len);
        self.checksum = U16::new(sum);
    }
}

/// An IPv6 header without extension headers (RFC 8200, 3).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Ipv6 {
    version_class_flow: U32,
    payload_len: U16,
    next_header: u8,
    hop_limit: u8,
    source: [u8; 16],
    destination: [u8; 16],
}

/// The maximum number of extension headers that are parsed.
const MAX_EXTENSIONS: usize = 8;

impl Ipv6 {
    /// Bytes of the header.
    pub const LEN: usize = size_of::<Self>();

    /// A header with hop limit 64 for `payload_len` bytes that follow.
    #[must_use]
    pub fn new(
        source: Ipv6Addr,
        destination: Ipv6Addr,
        protocol: Protocol,
        payload_len: u16,
    ) -> Self {
        Self {
            version_class_flow: U32::new(6 << 28),
            payload_len: U16::new(payload_len),
            next_header: protocol.0,
            hop_limit: 64,
            source: source.octets(),
            destination: destination.octets(),
        }
    }

    /// The header at the start of `bytes` and what follows it, up to the packet's length or the end
    /// of `bytes`. `None` if it is cut short or of another version.
    #[must_use]
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<(&Self, &[u8])> {
        let (header, rest) = Self::ref_from_prefix(bytes).ok()?;
        let len = header.payload_len().min(rest.len());
        (header.version_class_flow.get() >> 28 == 6).then_some((header, &rest[..len]))
    }

    /// The protocol and payload after the extension headers. `None` for fragments, for more than 8
    /// extension headers, and if one is cut short.
    #[must_use]
    pub fn upper_layer<'a>(&self, payload: &'a [u8]) -> Option<(Protocol, &'a [u8])> {
        let (mut next, mut rest) = (Protocol(self.next_header), payload);
        for _ in 0..MAX_EXTENSIONS {
            match next {
                Protocol::HOP_BY_HOP | Protocol::ROUTING | Protocol::DESTINATION_OPTIONS => {
                    let (&[following, len], _) = rest.split_first_chunk()?;
                    next = Protocol(following);
                    rest = rest.get(8 + usize::from(len) * 8..)?;
                }
                Protocol::FRAGMENT => return None,
                _ => return Some((next, rest)),
            }
        }
        None
    }

    /// Like [`upper_layer`](Self::upper_layer), of a fragment that begins its packet (RFC 8200,
    /// 4.5). `None` for what is no fragment, and for later ones.
    #[must_use]
    pub fn first_fragment<'a>(&self, payload: &'a [u8]) -> Option<(Protocol, &'a [u8])> {
        const FRAGMENT: usize = 8;
        let (mut next, mut rest) = (Protocol(self.next_header), payload);
        for _ in 0..MAX_EXTENSIONS {
            match next {
                Protocol::HOP_BY_HOP | Protocol::ROUTING | Protocol::DESTINATION_OPTIONS => {
                    let (&[following, len], _) = rest.split_first_chunk()?;
                    next = Protocol(following);
                    rest = rest.get(8 + usize::from(len) * 8..)?;
                }
                Protocol::FRAGMENT => {
                    let [following, _, high, low, ..] = *rest.first_chunk::<FRAGMENT>()?;
                    let is_first = u16::from_be_bytes([high, low]) >> 3 == 0;
                    return is_first.then_some((Protocol(following), &rest[FRAGMENT..]));
                }
                _ => return None,
            }
        }
        None
    }

    /// Bytes that follow the header.
    #[must_use]
    pub fn payload_len(&self) -> usize {
        usize::from(self.payload_len.get())
    }

    /// Hops left.
    #[must_use]
    pub fn hop_limit(&self) -> u8 {
        self.hop_limit
    }

    /// The type of what follows directly: a protocol or an extension header.
    #[must_use]
    pub fn next_header(&self) -> Protocol {
        Protocol(self.next_header)
    }

    /// The source address.
    #[must_use]
    pub fn source(&self) -> Ipv6Addr {
        self.source.into()
    }

    /// The destination address.
    #[must_use]
    pub fn destination(&self) -> Ipv6Addr {
        self.destination.into()
    }

    /// Source and destination as in the header, for pseudo headers.
    #[must_use]
    pub fn addresses(&self) -> &[u8] {
        &self.as_bytes()[8..40]
    }

    /// Sets the number of bytes that follow.
    pub fn set_payload_len(&mut self, len: u16) {
        self.payload_len = U16::new(len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

    #[test]
    fn a_built_header_is_right() {
        let header = Ipv4::new(A, B, Protocol::UDP, 26);
        assert!(Ipv4::checksum_ok(header.as_bytes()));
        let (parsed, rest) = Ipv4::parse(header.as_bytes()).unwrap();
        assert_eq!((parsed.source(), parsed.destination(), parsed.total_len()), (A, B, 46));
        assert!(!parsed.is_fragment() && rest.is_empty());
    }

    #[test]
    fn contradicting_lengths_are_no_header() {
        let good = Ipv4::new(A, B, Protocol::UDP, 0);
        for (version_ihl, total_len) in [(0x44, 20), (0x46, 20), (0x45, 19), (0x65, 20), (0x4f, 60)]
        {
            let bad = Ipv4 { version_ihl, total_len: U16::new(total_len), ..good };
            assert!(Ipv4::parse(bad.as_bytes()).is_none(), "{version_ihl:x} {total_len}");
        }
    }

    #[test]
    fn padding_is_not_payload() {
        let mut bytes = [0xaa; 60];
        Ipv4::new(A, B, Protocol::UDP, 3).write_to_prefix(&mut bytes).unwrap();
        assert_eq!(Ipv4::parse(&bytes).unwrap().1, [0xaa; 3]);
    }

    #[test]
    fn extension_headers_are_walked_but_not_for_ever() {
        let loopback = Ipv6Addr::LOCALHOST;
        let header = Ipv6::new(loopback, loopback, Protocol::HOP_BY_HOP, 24);
        let mut payload = [0; 24];
        payload[0] = Protocol::ROUTING.0;
        payload[8] = Protocol::TCP.0;
        let (protocol, rest) = header.upper_layer(&payload).unwrap();
        assert_eq!((protocol, rest.len()), (Protocol::TCP, 8));
        assert!(header.upper_layer(&[0; 200]).is_none(), "hop-by-hop without end");
        payload[0] = Protocol::FRAGMENT.0;
        assert!(header.upper_layer(&payload).is_none());
    }

    proptest! {
        #[test]
        fn segments_keep_a_right_checksum(id in any::<u16>(), len in 20u16..) {
            let mut header = Ipv4::new(A, B, Protocol::TCP, 1000);
            header.set_id_and_len(id, len);
            prop_assert!(Ipv4::checksum_ok(header.as_bytes()));
        }

        #[test]
        fn any_bytes_are_parsed_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = Ipv4::checksum_ok(&bytes);
            if let Some((header, payload)) = Ipv6::parse(&bytes) {
                let _ = header.upper_layer(payload);
            }
        }
    }
}
