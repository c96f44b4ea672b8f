//! The packets: the headers of what carries them, a [`Header`], and a payload.
//!
//! ```text
//!   0        6        12     14                                   50
//!   | to     | from   | type | header (36 bytes, little-endian)   | payload |      Ethernet
//!   | to     | from   | IP, UDP   | header                        | payload |      UDP
//! ```

use frame::Mac;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::carrier::{Bad, Carrier, Peer};

/// Bytes of a packet's header.
pub const HEADER: usize = size_of::<Header>();
/// Bytes before the payload of a packet in an Ethernet frame.
pub const HEAD: usize = frame::ETHERNET_HEADER + HEADER;
/// The version of the protocol.
const VERSION: u8 = 2;

/// The type of a packet. `C` and `S` are client and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// C: opens a session. `token` is a nonce of the client, `session` the client's number,
    /// `fragment` the longest payload it takes, `slot` how many slots it wishes. The payload is the
    /// cookie of the server, or 0.
    Open = 1,
    /// S: the session is open. `token` is the session's key, `sequence` the server's number,
    /// `fragment` the longest payload, `slot` the slots. The payload is the nonce.
    Opened = 2,
    /// S: there are no more sessions. `token` is the nonce.
    Refused = 3,
    /// C: a fragment of a request.
    Request = 4,
    /// S: a fragment of a reply.
    Reply = 5,
    /// S: which fragments of a request have arrived; [`Flags::WORKING`] if all have.
    Got = 6,
    /// C: which fragments of a reply have arrived, or a question for the state of a request.
    Pull = 7,
    /// S: the session of this `token` is unknown.
    Gone = 8,
    /// C: the session ends.
    Close = 9,
    /// S: what an `Open` must carry, so that the server knows that its sender receives. `token` is
    /// the nonce, the payload the cookie.
    Cookie = 10,
}

impl Kind {
    const ALL: [Self; 10] = [
        Self::Open,
        Self::Opened,
        Self::Refused,
        Self::Request,
        Self::Reply,
        Self::Got,
        Self::Pull,
        Self::Gone,
        Self::Close,
        Self::Cookie,
    ];

    #[inline]
    fn of(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte).wrapping_sub(1)).copied()
    }
}

/// Bits of a header's `flags`.
#[derive(Clone, Copy, Debug)]
pub struct Flags;

impl Flags {
    /// The header's checksum is set.
    pub const SUMMED: u8 = 1;
    /// Of [`Kind::Pull`]: a timer has expired, so all fragments in flight may be lost.
    /// Of [`Kind::Got`]: the answer to such a packet.
    pub const EXPIRED: u8 = 2;
    /// Of [`Kind::Got`]: the request is complete, and a handler works on it.
    pub const WORKING: u8 = 4;
    /// Of a fragment: the sender asks for a report.
    pub const ASKS: u8 = 8;
}

/// The header, after Ethernet's.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    pub(super) version: u8,
    pub kind: u8,
    /// The slot of the session.
    pub slot: u8,
    pub flags: u8,
    /// The session: the server's number in packets to the server, the client's in those to it.
    pub session: U32,
    /// The session's key.
    pub token: U64,
    /// The number of the request within its slot.
    pub sequence: U32,
    /// Bytes of the whole message.
    pub len: U32,
    /// The number of this fragment. In `Got` and `Pull`: the number of the first missing fragment.
    pub fragment: U16,
    /// How many fragments the receiver of this packet may have in flight to its sender.
    pub credits: U16,
    /// Bytes of the payload. Short frames are padded.
    pub(super) payload: U16,
    pub(super) reserved: U16,
    pub(super) checksum: U32,
}

const _: () = assert!(size_of::<Header>() == 36);

impl Header {
    pub fn new(kind: Kind) -> Self {
        Self { version: VERSION, kind: kind as u8, ..Self::default() }
    }
}

/// A packet that was checked.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'f> {
    pub kind: Kind,
    pub from: Peer,
    pub header: Header,
    pub payload: &'f [u8],
}

impl Packet<'_> {
    /// Whether this is one whole message.
    #[inline]
    pub fn is_whole(&self) -> bool {
        self.header.len.get() as usize == self.payload.len() && self.header.fragment.get() == 0
    }

    /// The bit map of `Got` and `Pull`, the nonce of `Opened`, or the cookie of `Open` and
    /// `Cookie`.
    pub fn word(&self) -> Option<u64> {
        Some(u64::from_le_bytes(*self.payload.first_chunk()?))
    }
}

/// One end of the packets.
#[derive(Clone, Copy, Debug)]
pub struct End {
    pub mac: Mac,
    pub carrier: Carrier,
    /// Packets have a checksum.
    pub checksum: bool,
}

impl End {
    /// Bytes before the payload.
    #[inline]
    pub const fn head(self) -> usize {
        self.carrier.head() + HEADER
    }
}

/// Checks a frame to `own`. If its packets have checksums, those without are refused.
#[inline]
pub fn parse(frame: &[u8], own: End) -> Result<Packet<'_>, Bad> {
    let (from, rest) = own.carrier.open(frame, own.mac)?;
    let (header, rest) = Header::read_from_prefix(rest).map_err(|_| Bad::Malformed)?;
    let payload = rest.get(..header.payload.get().into()).ok_or(Bad::Malformed)?;
    if header.version != VERSION {
        return Err(Bad::Malformed);
    }
    let is_summed = header.flags & Flags::SUMMED != 0;
    if own.checksum && !is_summed
        || is_summed && checksum(&header, payload) != header.checksum.get()
    {
        return Err(Bad::Checksum);
    }
    let kind = Kind::of(header.kind).ok_or(Bad::Malformed)?;
    Ok(Packet { kind, from, header, payload })
}

/// Writes the head of a packet whose `payload` bytes lie behind it already. Returns the frame's
/// length.
#[inline]
pub fn seal(out: &mut [u8], to: Peer, from: End, mut header: Header, payload: usize) -> usize {
    let Some((head, rest)) = out.split_at_mut_checked(from.head()) else { return 0 };
    from.carrier.write(head, (to, from.mac), HEADER + payload);
    header.payload = U16::new(payload as u16);
    header.checksum = U32::ZERO;
    if from.checksum {
        header.flags |= Flags::SUMMED;
        let payload = rest.get(..payload).unwrap_or_default();
        header.checksum = U32::new(checksum(&header, payload));
    }
    head[from.carrier.head()..].copy_from_slice(header.as_bytes());
    let len = from.head() + payload;
    if let Some(frame) = out.get_mut(..len) {
        from.carrier.complete(frame);
    }
    len
}

/// Odd constants with as many ones as zeros.
const KEYS: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f];

/// Folds a product, so that each bit of `a` and `b` reaches the result.
#[inline(always)]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// The checksum of header (its own field taken as zero) and payload. It finds errors of memory and
/// links, and is no proof of who sent it.
fn checksum(header: &Header, payload: &[u8]) -> u32 {
    let mut zeroed = *header;
    zeroed.checksum = U32::ZERO;
    let sum = fold(fold(payload.len() as u64, zeroed.as_bytes()), payload);
    (sum ^ sum >> 32) as u32
}

fn fold(mut sum: u64, bytes: &[u8]) -> u64 {
    let word = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
    let (words, rest) = bytes.as_chunks::<8>();
    let (pairs, odd) = words.as_chunks::<2>();
    for [a, b] in pairs {
        sum = mix(word(a) ^ KEYS[0] ^ sum, word(b) ^ KEYS[1]) ^ sum.rotate_left(23);
    }
    for a in odd {
        sum = mix(word(a) ^ KEYS[0], sum ^ KEYS[1]);
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    mix(word(&last) ^ KEYS[0], sum ^ KEYS[1])
}

#[cfg(test)]
mod tests {
    use frame::ETHERNET_HEADER;

    use super::*;

    const ENDS: (Mac, Mac) = (Mac::local(1), Mac::local(2));

    fn end(mac: Mac, checksum: bool) -> End {
        End { mac, carrier: Carrier::Ethernet, checksum }
    }

    fn packet(payload: &[u8], sum: bool) -> Vec<u8> {
        let mut out = vec![0; HEAD + payload.len()];
        out[HEAD..].copy_from_slice(payload);
        let header = Header { slot: 3, len: U32::new(9), ..Header::new(Kind::Request) };
        let len = seal(&mut out, ENDS.0.into(), end(ENDS.1, sum), header, payload.len());
        assert_eq!(len, out.len());
        out
    }

    #[test]
    fn a_packet_is_read_as_it_was_written_and_padding_is_ignored() {
        let mut frame = packet(b"hello", true);
        frame.resize(60, 7);
        let read = parse(&frame, end(ENDS.0, true)).unwrap();
        assert_eq!((read.kind, read.from, read.header.slot), (Kind::Request, ENDS.1.into(), 3));
        assert_eq!(read.payload, b"hello");
        assert_eq!(parse(&frame, end(ENDS.1, true)).unwrap_err(), Bad::Foreign);
    }

    #[test]
    fn each_flipped_bit_after_the_ethernet_header_is_found() {
        let frame = packet(&[0x5a; 45], true);
        for bit in 8 * ETHERNET_HEADER..8 * frame.len() {
            let mut frame = frame.clone();
            frame[bit / 8] ^= 1 << (bit % 8);
            assert!(parse(&frame, end(ENDS.0, true)).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn packets_that_are_cut_or_lack_a_required_checksum_are_refused() {
        let frame = packet(b"hello", false);
        assert!(parse(&frame, end(ENDS.0, false)).is_ok());
        assert_eq!(parse(&frame, end(ENDS.0, true)).unwrap_err(), Bad::Checksum);
        for len in 0..frame.len() {
            assert!(parse(&frame[..len], end(ENDS.0, false)).is_err(), "{len} bytes");
        }
        let mut kind = frame;
        kind[ETHERNET_HEADER + 1] = 11;
        assert_eq!(parse(&kind, end(ENDS.0, false)).unwrap_err(), Bad::Malformed);
    }
}
