//! Segments: received ones, and requests to send.

use bitflags::bitflags;

use crate::flow::Flow;
use crate::options::Options;
use crate::send::Payload;
use crate::seq::Seq;

bitflags! {
    /// The flags of a TCP header (RFC 9293, 3.1; RFC 3168).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Flags: u8 {
        /// No more data from the sender.
        const FIN = frame::tcp_flags::FIN;
        /// Synchronise sequence numbers.
        const SYN = frame::tcp_flags::SYN;
        /// Reset the connection.
        const RST = frame::tcp_flags::RST;
        /// Push.
        const PSH = frame::tcp_flags::PSH;
        /// The acknowledgment number counts.
        const ACK = frame::tcp_flags::ACK;
        /// The urgent pointer counts.
        const URG = frame::tcp_flags::URG;
        /// The sender saw congestion marks.
        const ECE = frame::tcp_flags::ECE;
        /// The sender reduced its window.
        const CWR = frame::tcp_flags::CWR;
    }
}

/// The ECN field of an IP header (RFC 3168, 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// The sender does not use ECN.
    #[default]
    NotCapable = 0,
    /// ECT(1).
    Capable1 = 1,
    /// ECT(0), which this crate sends.
    Capable0 = 2,
    /// A router saw congestion.
    Congested = 3,
}

impl Ecn {
    /// The field in the low bits of an IPv4 TOS byte or an IPv6 traffic class.
    #[must_use]
    pub const fn from_traffic_class(byte: u8) -> Self {
        match byte & 3 {
            0 => Self::NotCapable,
            1 => Self::Capable1,
            2 => Self::Capable0,
            _ => Self::Congested,
        }
    }
}

/// A segment without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The addresses and ports of both ends, seen from this side.
    pub flow: Flow,
    /// The number of the first byte.
    pub seq: Seq,
    /// The number of the byte expected next.
    pub ack: Seq,
    /// Flags.
    pub flags: Flags,
    /// The window as it is written in the header, unscaled.
    pub window: u16,
    /// The ECN field of the IP header.
    pub ecn: Ecn,
    /// Options.
    pub options: Options,
}

/// A received segment. Its payload is borrowed from the frame.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'p> {
    /// The segment without its payload.
    pub header: Header,
    /// The payload.
    pub payload: &'p [u8],
}

impl Segment<'_> {
    /// Returns the segment's length in sequence numbers: payload, SYN and FIN (RFC 9293, 3.4).
    #[must_use]
    pub fn seq_len(&self) -> u32 {
        let control = self.header.flags.intersection(Flags::SYN | Flags::FIN).bits().count_ones();
        self.payload.len() as u32 + control
    }
}

/// One segment to send, or several in one request (TSO).
#[derive(Debug)]
pub struct Request<'a> {
    /// The header of the (first) segment.
    pub header: Header,
    /// Payload bytes of each segment; 0 if the request is one segment.
    pub gso_size: u16,
    /// The payload, in pieces that stay in the application's memory.
    pub payload: Payload<'a>,
}

impl Request<'_> {
    /// Returns the number of segments in the request.
    #[must_use]
    pub fn segments(&self) -> usize {
        match self.gso_size {
            0 => 1,
            size => self.payload.len().div_ceil(size.into()).max(1),
        }
    }
}

/// There is no room for a segment. The machine keeps it and offers it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// A destination of segments: slots of a ring, descriptors of a NIC, or a vector in a test.
pub trait Emit {
    /// Takes a request: writes its headers and gathers its payload.
    ///
    /// # Errors
    /// [`Full`] if there is no room. The machine stops and offers the same request at its next
    /// turn.
    fn emit(&mut self, request: &Request<'_>) -> Result<(), Full>;
}
