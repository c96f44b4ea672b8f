//! Segmentation in software: one long TCP or UDP packet becomes many (TSO, USO).
//!
//! For each segment, the caller copies the frame's headers and a piece of its payload. Then
//! [`Segments::write_headers`] corrects the copy of the headers. It changes the same fields as
//! Linux (`net/ipv4/tcp_offload.c`, `udp_offload.c`): lengths, the IPv4 identification, and TCP's
//! sequence number. FIN and PSH are only on the last segment, CWR only on the first (RFC 3168,
//! 6.1.2).

use core::ops::Range;

use crate::checksum::{checksum, update};
use crate::ip::{Ipv4, Ipv6};
use crate::offload::{Headers, Offload, Version};
use crate::transport::{Tcp, tcp_flags};

/// How a frame is cut into segments. Made by [`Offload::segments`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segments {
    network: usize,
    transport: usize,
    /// The offset of the checksum.
    checksum: usize,
    /// Bytes of all headers.
    headers: usize,
    size: usize,
    payload: usize,
    v6: bool,
    udp: bool,
}

impl Offload {
    /// How to cut a frame of `len` bytes with this validated request; `None` if it needs no
    /// segmentation.
    #[must_use]
    pub fn segments(&self, head: &[u8], len: usize) -> Option<Segments> {
        let headers = Headers::find(head).filter(|_| self.is_segmented())?;
        Segments::new(self, headers.network, headers.version? == Version::V6, len)
    }
}

impl Segments {
    /// The segments of a frame with a validated request; `None` for other requests.
    pub(crate) fn new(offload: &Offload, network: usize, v6: bool, len: usize) -> Option<Self> {
        let transport = usize::from(offload.checksum_start);
        let headers = usize::from(offload.header_len);
        let udp = offload.gso_type == Offload::GSO_UDP;
        let least = if udp { crate::Udp::LEN } else { Tcp::LEN };
        let network_header = if v6 { Ipv6::LEN } else { Ipv4::LEN };
        let whole = offload.gso_size > 0
            && len - network.min(len) <= usize::from(u16::MAX)
            && network + network_header <= transport
            && transport + least <= headers;
        Some(Self {
            network,
            transport,
            checksum: transport + usize::from(offload.checksum_offset),
            headers,
            size: offload.gso_size.into(),
            payload: len.checked_sub(headers).filter(|_| whole)?,
            v6,
            udp,
        })
        .filter(|this| this.checksum + 2 <= headers)
    }

    /// Bytes of the headers, the same in every segment.
    #[must_use]
    pub fn header_len(&self) -> usize {
        self.headers
    }

    /// How many segments there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.payload.div_ceil(self.size)
    }

    /// Bytes of the longest segment, headers included.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.headers + self.size.min(self.payload)
    }

    /// The range of the frame that is the payload of segment `i`.
    #[must_use]
    pub fn payload(&self, i: usize) -> Range<usize> {
        let start = (i * self.size).min(self.payload);
        let end = (start + self.size).min(self.payload);
        self.headers + start..self.headers + end
    }

    /// Turns a copy of the frame's headers, followed by the payload of segment `i`, into that
    /// segment. Its checksum is the pseudo header's sum, to be
    /// [completed](crate::checksum::complete). A piece that is too short stays unchanged.
    pub fn write_headers(&self, i: usize, piece: &mut [u8]) {
        let len = piece.len();
        if len < self.headers {
            return;
        }
        let payload = self.payload(i);
        self.write_network(i, piece);
        let transport = &mut piece[self.transport..];
        if self.udp {
            put(transport, 4, (len - self.transport) as u16);
        } else {
            let before = payload.start - self.headers;
            let sequence =
                u32::from_be_bytes([transport[4], transport[5], transport[6], transport[7]]);
            let sequence = sequence.wrapping_add(before as u32);
            transport[4..8].copy_from_slice(&sequence.to_be_bytes());
            let (first, last) = (i == 0, i + 1 == self.count());
            let not_first = if first { 0 } else { tcp_flags::CWR };
            let not_last = if last { 0 } else { tcp_flags::FIN | tcp_flags::PSH };
            transport[13] &= !(not_first | not_last);
        }
        // The sum of the pseudo header includes the packet's length, which changes.
        let whole = self.headers + self.payload - self.transport;
        let seed = u16::from_be_bytes([piece[self.checksum], piece[self.checksum + 1]]);
        let seed = !update(!seed, whole as u16, (len - self.transport) as u16);
        put(piece, self.checksum, seed);
    }

    fn write_network(&self, i: usize, piece: &mut [u8]) {
        let len = piece.len() - self.network;
        let header = &mut piece[self.network..self.transport];
        if self.v6 {
            put(header, 4, (len - Ipv6::LEN) as u16);
            return;
        }
        let id = u16::from_be_bytes([header[4], header[5]]).wrapping_add(i as u16);
        put(header, 2, len as u16);
        put(header, 4, id);
        put(header, 10, 0);
        let sum = checksum(header);
        put(header, 10, sum);
    }
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}
