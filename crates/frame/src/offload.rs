//! Work that a sender leaves to the switch or the receiver: checksum and segmentation requests.

use crate::ethernet::{EtherType, Ethernet, Tag};
use crate::facts::Facts;
use crate::ip::{Ipv4, Ipv6};
use crate::protocol::Protocol;
use crate::transport::{Icmp, Tcp, Udp};
use crate::{ETHERNET_HEADER, VLAN_TAG};

/// An offload request in virtio-net's meaning (virtio 1.2, 5.1.6). All zero requests nothing.
///
/// A request from outside may hold anything; one that [`validate`](Self::validate) accepted is
/// consistent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// [`NEEDS_CHECKSUM`](Self::NEEDS_CHECKSUM), [`DATA_VALID`](Self::DATA_VALID).
    pub flags: u8,
    /// [`GSO_NONE`](Self::GSO_NONE), [`GSO_TCP4`](Self::GSO_TCP4), [`GSO_TCP6`](Self::GSO_TCP6) or
    /// [`GSO_UDP`](Self::GSO_UDP); [`GSO_ECN`](Self::GSO_ECN).
    pub gso_type: u8,
    /// Bytes of headers up to the payload. It is a hint, but exact for validated frames with
    /// segmentation.
    pub header_len: u16,
    /// Payload bytes of each segment.
    pub gso_size: u16,
    /// Where to start summing, from the frame's start.
    pub checksum_start: u16,
    /// Where to store the sum, from `checksum_start`.
    pub checksum_offset: u16,
}

/// The reason why an offload request cannot be met: it is invalid, or was never offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OffloadError {
    /// The request is for neither TCP nor UDP segments, such as for the obsolete UFO.
    #[error("The kind of segmentation is unknown")]
    Kind,
    /// Segments of no bytes.
    #[error("Segments have no bytes")]
    Size,
    /// More than [`MAX_SEGMENTS`], or a packet that is too long for IP.
    #[error("The frame is too long, or makes too many segments")]
    Length,
    /// The checksum lies outside of the frame, or in the wrong header.
    #[error("The checksum is not where the headers say")]
    Checksum,
    /// The headers are cut short, too long, not of the requested protocol, or those of a fragment.
    #[error("The headers are not what the request says")]
    Headers,
}

/// The maximum number of bytes of headers of a frame with segmentation.
pub const MAX_HEADERS: usize = 124;
/// The maximum number of segments of a frame: a full frame (64 KiB) in segments of 64 bytes.
pub const MAX_SEGMENTS: usize = 1024;
/// Bytes of a virtio-net header without `num_buffers`.
pub const OFFLOAD_HEADER: usize = 10;

impl Offload {
    /// Requests nothing.
    pub const NONE: Self = Self {
        flags: 0,
        gso_type: 0,
        header_len: 0,
        gso_size: 0,
        checksum_start: 0,
        checksum_offset: 0,
    };
    /// Flag: the checksum holds only the pseudo header's sum, and must be completed.
    pub const NEEDS_CHECKSUM: u8 = 1;
    /// Flag: the checksum was verified.
    pub const DATA_VALID: u8 = 2;
    /// No segmentation.
    pub const GSO_NONE: u8 = 0;
    /// TCP in IPv4.
    pub const GSO_TCP4: u8 = 1;
    /// TCP in IPv6.
    pub const GSO_TCP6: u8 = 4;
    /// UDP datagrams, in IPv4 or IPv6.
    pub const GSO_UDP: u8 = 5;
    /// Beside a TCP kind: the sender uses ECN.
    pub const GSO_ECN: u8 = 0x80;

    /// The request in a virtio-net header (little-endian, as in virtio 1, and as tap uses it on
    /// every supported machine).
    #[must_use]
    pub fn from_header(bytes: &[u8; OFFLOAD_HEADER]) -> Self {
        let [flags, gso_type, a, b, c, d, e, f, g, h] = *bytes;
        Self {
            flags,
            gso_type,
            header_len: u16::from_le_bytes([a, b]),
            gso_size: u16::from_le_bytes([c, d]),
            checksum_start: u16::from_le_bytes([e, f]),
            checksum_offset: u16::from_le_bytes([g, h]),
        }
    }

    /// The virtio-net header of this request.
    #[must_use]
    pub fn header(&self) -> [u8; OFFLOAD_HEADER] {
        let [a, b] = self.header_len.to_le_bytes();
        let [c, d] = self.gso_size.to_le_bytes();
        let [e, f] = self.checksum_start.to_le_bytes();
        let [g, h] = self.checksum_offset.to_le_bytes();
        [self.flags, self.gso_type, a, b, c, d, e, f, g, h]
    }

    /// The request as one word, without the header length, which [`validate`](Self::validate)
    /// finds: `flags` u8 | `gso_type` u8 | `gso_size` u16 | `checksum_start` u16 |
    /// `checksum_offset` u16.
    #[inline]
    #[must_use]
    pub const fn to_word(&self) -> u64 {
        self.flags as u64
            | (self.gso_type as u64) << 8
            | (self.gso_size as u64) << 16
            | (self.checksum_start as u64) << 32
            | (self.checksum_offset as u64) << 48
    }

    /// The request in a word from [`to_word`](Self::to_word).
    #[inline]
    #[must_use]
    pub const fn from_word(word: u64) -> Self {
        Self {
            flags: word as u8,
            gso_type: (word >> 8) as u8,
            header_len: 0,
            gso_size: (word >> 16) as u16,
            checksum_start: (word >> 32) as u16,
            checksum_offset: (word >> 48) as u16,
        }
    }

    /// The request of a sender that may make those in `allowed`; `None` if it makes another. Drops
    /// the sender's claim that its own checksum is good, because it is unverified.
    #[inline]
    #[must_use]
    pub fn from_sender(self, allowed: &OffloadSet) -> Option<Self> {
        let asked = Self { flags: self.flags & Self::NEEDS_CHECKSUM, ..self };
        let good = allowed.takes(&asked) && (!asked.is_segmented() || asked.gso_size > 0);
        good.then_some(asked)
    }

    /// True if a checksum must be completed.
    #[inline]
    #[must_use]
    pub const fn needs_checksum(&self) -> bool {
        self.flags & Self::NEEDS_CHECKSUM != 0
    }

    /// True if the frame must be segmented.
    #[inline]
    #[must_use]
    pub const fn is_segmented(&self) -> bool {
        self.gso_type != Self::GSO_NONE
    }

    /// Bytes of the longest frame on the wire for a validated frame of `len` bytes.
    #[inline]
    #[must_use]
    pub fn wire_len(&self, len: usize) -> usize {
        if self.is_segmented() {
            len.min(usize::from(self.header_len) + usize::from(self.gso_size))
        } else {
            len
        }
    }

    /// How many frames on the wire a validated frame of `len` bytes is, and the bytes of all of
    /// them: each segment has its own headers.
    #[inline]
    #[must_use]
    pub fn on_wire(&self, len: usize) -> (usize, usize) {
        if !self.is_segmented() {
            return (1, len);
        }
        let headers = usize::from(self.header_len);
        let payload = len.saturating_sub(headers);
        let segments = payload.div_ceil(usize::from(self.gso_size).max(1)).max(1);
        (segments, len + (segments - 1) * headers)
    }

    /// Checks the sender's request for a frame of `len` bytes against the private copy of its
    /// `head`, and simplifies it. Unknown flags are cleared, the header length becomes exact, and a
    /// frame of one segment requests only a checksum. Returns [`wire_len`](Self::wire_len).
    ///
    /// What a switch decides on stays unchanged: a checksum lies at its place in TCP, UDP or ICMP,
    /// or after all that [`Facts`] and guards look at. It lies never in an Ethernet, VLAN or IP
    /// header, in ARP or in neighbour discovery.
    ///
    /// # Errors
    /// [`OffloadError`]: drop the frame.
    #[inline]
    pub fn validate(&mut self, head: &[u8], len: usize) -> Result<usize, OffloadError> {
        self.flags &= Self::NEEDS_CHECKSUM | Self::DATA_VALID;
        if self.is_segmented() {
            return self.validate_segments(head, len);
        }
        if !self.needs_checksum() {
            *self = Self { flags: self.flags, ..Self::NONE };
            return Ok(len);
        }
        let (start, offset) = (self.checksum_start, self.checksum_offset);
        *self = Self {
            flags: self.flags,
            checksum_start: start,
            checksum_offset: offset,
            ..Self::NONE
        };
        let end = usize::from(start) + usize::from(offset) + 2;
        let headers = Headers::find(head).ok_or(OffloadError::Checksum)?;
        // A first fragment has a transport header; the request is the sender's own affair, as it
        // is in Linux.
        let protocol = headers.protocol.or(headers.fragmented);
        let fits = match (usize::from(start).checked_sub(headers.transport), protocol) {
            (None, _) => false,
            (Some(0), Some(Protocol::TCP)) => offset == Tcp::CHECKSUM,
            (Some(0), Some(Protocol::UDP)) => offset == Udp::CHECKSUM,
            (Some(0), Some(Protocol::ICMP | Protocol::ICMPV6)) => offset == Icmp::CHECKSUM,
            // A later fragment has no checksum of its own.
            (Some(_), None) if headers.version.is_some() => false,
            // Another protocol, or the inner packet of a tunnel.
            (Some(_), _) => is_beyond_facts(head, usize::from(start) + usize::from(offset)),
        };
        if fits && end <= len { Ok(len) } else { Err(OffloadError::Checksum) }
    }

    fn validate_segments(&mut self, head: &[u8], len: usize) -> Result<usize, OffloadError> {
        let (version, protocol, checksum) = match self.gso_type {
            Self::GSO_UDP => (None, Protocol::UDP, Udp::CHECKSUM),
            kind => match kind & !Self::GSO_ECN {
                Self::GSO_TCP4 => (Some(Version::V4), Protocol::TCP, Tcp::CHECKSUM),
                Self::GSO_TCP6 => (Some(Version::V6), Protocol::TCP, Tcp::CHECKSUM),
                _ => return Err(OffloadError::Kind),
            },
        };
        if self.gso_size == 0 {
            return Err(OffloadError::Size);
        }
        let headers = Headers::find(head).ok_or(OffloadError::Headers)?;
        let found = version.is_none_or(|version| headers.version == Some(version))
            && headers.version.is_some()
            && headers.protocol == Some(protocol);
        let end = headers.end(head).filter(|end| found && *end <= MAX_HEADERS.min(len));
        let end = end.ok_or(OffloadError::Headers)?;
        let start = usize::from(self.checksum_start);
        if !self.needs_checksum() || start != headers.transport || self.checksum_offset != checksum
        {
            return Err(OffloadError::Checksum);
        }
        let (payload, size) = (len - end, usize::from(self.gso_size));
        if len - headers.network > u16::MAX.into() || payload.div_ceil(size) > MAX_SEGMENTS {
            return Err(OffloadError::Length);
        }
        self.header_len = end as u16;
        if payload <= size {
            (self.gso_type, self.gso_size, self.header_len) = (Self::GSO_NONE, 0, 0);
        }
        Ok(self.wire_len(len))
    }

    /// The remaining request of each segment after the frame was cut.
    #[must_use]
    pub const fn of_segment(&self) -> Self {
        Self { gso_type: Self::GSO_NONE, gso_size: 0, header_len: 0, ..*self }
    }

    /// The request of the same frame after `bytes` were inserted before its network header
    /// (negative: removed).
    #[must_use]
    pub fn shifted(&self, bytes: i16) -> Self {
        let shift =
            |at: u16, wanted: bool| if wanted { at.saturating_add_signed(bytes) } else { at };
        Self {
            header_len: shift(self.header_len, self.header_len != 0),
            checksum_start: shift(self.checksum_start, self.needs_checksum()),
            ..*self
        }
    }
}

/// The requests that a receiver accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OffloadSet {
    /// Accepts partial checksums. Without it, no request is accepted.
    pub checksum: bool,
    /// Accepts TCP over IPv4 that needs segmentation.
    pub tso4: bool,
    /// Accepts TCP over IPv6 that needs segmentation.
    pub tso6: bool,
    /// The same TCP with ECN.
    pub ecn: bool,
    /// Accepts UDP over IPv4 and IPv6 that needs segmentation.
    pub uso: bool,
}

impl OffloadSet {
    /// No request.
    pub const NONE: Self =
        Self { checksum: false, tso4: false, tso6: false, ecn: false, uso: false };
    /// Every request.
    pub const ALL: Self = Self { checksum: true, tso4: true, tso6: true, ecn: true, uso: true };

    /// The set as bits: 1 checksum, 2 tso4, 4 tso6, 8 ecn, 16 uso.
    #[must_use]
    pub const fn bits(&self) -> u8 {
        self.checksum as u8
            | (self.tso4 as u8) << 1
            | (self.tso6 as u8) << 2
            | (self.ecn as u8) << 3
            | (self.uso as u8) << 4
    }

    /// The set with these [`bits`](Self::bits); unknown bits are ignored.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        Self {
            checksum: bits & 1 != 0,
            tso4: bits & 2 != 0,
            tso6: bits & 4 != 0,
            ecn: bits & 8 != 0,
            uso: bits & 16 != 0,
        }
    }

    /// True if a receiver accepts a frame with this request as it is. Every receiver accepts an
    /// empty request, with or without the flag for a verified checksum.
    #[inline]
    #[must_use]
    pub const fn takes(&self, offload: &Offload) -> bool {
        if !offload.needs_checksum() {
            return true;
        }
        let segments = match offload.gso_type & !Offload::GSO_ECN {
            Offload::GSO_NONE => true,
            Offload::GSO_TCP4 => self.tso4,
            Offload::GSO_TCP6 => self.tso6,
            _ => self.uso,
        };
        let ecn = self.ecn || offload.gso_type & Offload::GSO_ECN == 0;
        self.checksum && segments && ecn
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    V4,
    V6,
}

/// Where a frame's headers are.
pub(crate) struct Headers {
    /// The network header's start.
    pub(crate) network: usize,
    pub(crate) version: Option<Version>,
    /// The transport header's start; for other than IP packets, the same as `network`.
    pub(crate) transport: usize,
    /// `None` for fragments, and for other than IP packets.
    pub(crate) protocol: Option<Protocol>,
    /// The protocol of a first fragment, which has the transport header, too.
    pub(crate) fragmented: Option<Protocol>,
}

/// True if a checksum at `at` is behind all that [`Facts`] has of the frame, and all that a guard
/// looks at.
#[cold]
fn is_beyond_facts(head: &[u8], at: usize) -> bool {
    let facts = Facts::of(head).filter(|facts| facts.hidden.is_none());
    facts.and_then(|facts| facts.end()).is_some_and(|end| at >= end)
}

impl Headers {
    /// `None` if a required header is cut short or inconsistent.
    pub(crate) fn find(head: &[u8]) -> Option<Self> {
        let mut ethertype = Ethernet::parse(head)?.0.ethertype();
        let mut network = ETHERNET_HEADER;
        while matches!(ethertype, EtherType::VLAN | EtherType::SERVICE_VLAN) {
            ethertype = Tag::parse(head.get(network..)?)?.0.ethertype();
            network += VLAN_TAG;
        }
        let bytes = head.get(network..)?;
        let (version, header_len, protocol, fragmented) = match ethertype {
            EtherType::IPV4 => {
                let (header, _) = Ipv4::parse(bytes)?;
                let protocol = Some(header.protocol()).filter(|_| !header.is_fragment());
                let first = header.is_fragment() && header.is_first();
                let fragmented = Some(header.protocol()).filter(|_| first);
                (Some(Version::V4), header.header_len(), protocol, fragmented)
            }
            EtherType::IPV6 => {
                let (header, rest) = Ipv6::parse(bytes)?;
                let whole = header.upper_layer(rest);
                let first = whole.is_none().then(|| header.first_fragment(rest)).flatten();
                let upper = whole.or(first).map_or(rest, |(_, upper)| upper);
                let extensions = rest.len() - upper.len();
                let [protocol, fragmented] = [whole, first].map(|of| of.map(|(of, _)| of));
                (Some(Version::V6), Ipv6::LEN + extensions, protocol, fragmented)
            }
            _ => (None, 0, None, None),
        };
        Some(Self { network, version, transport: network + header_len, protocol, fragmented })
    }

    /// The end of the transport header, if it is a complete TCP or UDP header.
    fn end(&self, head: &[u8]) -> Option<usize> {
        let bytes = head.get(self.transport..)?;
        let len = match self.protocol? {
            Protocol::TCP => Tcp::parse(bytes)?.0.header_len(),
            Protocol::UDP => Some(Udp::LEN).filter(|len| *len <= bytes.len())?,
            _ => return None,
        };
        Some(self.transport + len)
    }
}
