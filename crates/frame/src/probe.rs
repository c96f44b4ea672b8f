//! Frames that generators make and sinks check: UDP in IPv4 with a [`Probe`] as payload.

use core::net::Ipv4Addr;

use zerocopy::IntoBytes;

use crate::ethernet::{EtherType, Ethernet, Tag};
use crate::ip::Ipv4;
use crate::protocol::Protocol;
use crate::transport::Udp;
use crate::{Mac, VlanId};

/// The smallest Ethernet frame, without its check sequence (IEEE 802.3, 4A.4.2).
pub const MIN_FRAME: usize = 60;

/// Simple IMIX: 7 small, 4 medium and 1 full-sized frame of 64, 594 and 1518 bytes with their check
/// sequence, here without it.
pub const IMIX: [usize; 12] = [60, 60, 594 - 4, 60, 60, 594 - 4, 60, 1518 - 4, 590, 60, 590, 60];

/// The headers of a UDP frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpFrame {
    /// Destination MAC address.
    pub destination: Mac,
    /// Source MAC address.
    pub source: Mac,
    /// The frame's VLAN tag.
    pub vlan: Option<VlanId>,
    /// IPv4 source.
    pub source_ip: Ipv4Addr,
    /// IPv4 destination.
    pub destination_ip: Ipv4Addr,
    /// UDP source port.
    pub source_port: u16,
    /// UDP destination port.
    pub destination_port: u16,
}

impl UdpFrame {
    /// Bytes of the headers without a tag.
    pub const HEADERS: usize = crate::ETHERNET_HEADER + Ipv4::LEN + Udp::LEN;

    /// An untagged frame between two addresses. Its IPv4 addresses 10.x.y.z come from their last
    /// three octets; both ports are the discard port (9).
    #[must_use]
    pub fn between(source: Mac, destination: Mac) -> Self {
        let ip = |mac: Mac| {
            let [.., x, y, z] = mac.octets();
            Ipv4Addr::new(10, x, y, z)
        };
        Self {
            destination,
            source,
            vlan: None,
            source_ip: ip(source),
            destination_ip: ip(destination),
            source_port: 9,
            destination_port: 9,
        }
    }

    /// Bytes of the headers: where the payload starts.
    #[must_use]
    pub fn header_len(&self) -> usize {
        Self::HEADERS + if self.vlan.is_some() { crate::VLAN_TAG } else { 0 }
    }

    /// Writes the headers of a frame of `frame`'s length. Returns where the payload starts; `None`
    /// if there is no room, or the length exceeds IPv4's.
    #[must_use]
    pub fn write(&self, frame: &mut [u8]) -> Option<usize> {
        let at = self.header_len();
        let payload_len = u16::try_from(frame.len().checked_sub(at)?).ok()?;
        let packet_len = payload_len.checked_add(Udp::LEN as u16)?;
        packet_len.checked_add(Ipv4::LEN as u16)?;
        let outer = if self.vlan.is_some() { EtherType::VLAN } else { EtherType::IPV4 };
        let ethernet = Ethernet::new(self.destination, self.source, outer);
        let tag = self.vlan.map(|vlan| Tag::new(vlan, 0, EtherType::IPV4));
        let ip = Ipv4::new(self.source_ip, self.destination_ip, Protocol::UDP, packet_len);
        let udp = Udp::new(self.source_port, self.destination_port, payload_len);
        let tag: &[u8] = tag.as_ref().map_or(&[], IntoBytes::as_bytes);
        let mut end = 0;
        for header in [ethernet.as_bytes(), tag, ip.as_bytes(), udp.as_bytes()] {
            frame[end..end + header.len()].copy_from_slice(header);
            end += header.len();
        }
        Some(at)
    }
}

/// The contents of a test frame, in the first 18 bytes of its payload, so that they fit into a
/// frame of 60 bytes. A pattern derived from them follows, so every byte can be checked.
///
/// ```text
///    0       2        4                          10                   18
///    | check | stream | filled, time (1, 47 bits) | sequence (64 bits) | pattern ...
/// ```
///
/// All numbers are most significant byte first. `check` is computed from the others and marks the
/// payload as a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The frame's stream; sequence numbers count per stream.
    pub stream: u16,
    /// The frame's number in the stream, from 0.
    pub sequence: u64,
    /// When the probe was sent: nanoseconds of any clock of the sender, modulo 2^47 (39 hours).
    pub time: u64,
    /// True if the rest of the payload is the pattern; otherwise it is whatever the buffer held.
    pub filled: bool,
}

/// The reason why a payload is not the expected probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// Shorter than a probe, or without its check word: an unrelated frame, or a damaged one.
    #[error("Not a probe")]
    NotAProbe,
    /// A byte of the pattern is wrong.
    #[error("Byte {at} of the payload is wrong")]
    Content {
        /// The offset of the byte in the payload.
        at: usize,
    },
}

impl Probe {
    /// Bytes of a probe.
    pub const LEN: usize = 18;
    /// The bits of a time that are sent.
    pub const TIME_MASK: u64 = (1 << 47) - 1;
    const FILLED: u64 = 1 << 47;

    /// The two words of the probe.
    fn words(self) -> (u64, u64) {
        let filled = if self.filled { Self::FILLED } else { 0 };
        (u64::from(self.stream) << 48 | filled | self.time & Self::TIME_MASK, self.sequence)
    }

    const FACTORS: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93];

    /// The check word: any change of one byte changes it (test `every_byte_counts`).
    fn check((first, second): (u64, u64)) -> u16 {
        let first = (first ^ 0x746f_6b6c_6174_2e31).wrapping_mul(Self::FACTORS[0]);
        let second = second.wrapping_mul(Self::FACTORS[1]);
        (first.wrapping_add(second) >> 48) as u16
    }

    /// Writes only the probe; false if `payload` is too short.
    #[inline]
    pub fn write_head(self, payload: &mut [u8]) -> bool {
        let Some(head) = payload.first_chunk_mut::<{ Self::LEN }>() else { return false };
        let words = self.words();
        head[..2].copy_from_slice(&Self::check(words).to_be_bytes());
        head[2..10].copy_from_slice(&words.0.to_be_bytes());
        head[10..].copy_from_slice(&words.1.to_be_bytes());
        true
    }

    /// Writes the probe as filled, and its pattern into the rest of `payload`; false if that is too
    /// short.
    #[inline]
    pub fn write(self, payload: &mut [u8]) -> bool {
        if !(Self { filled: true, ..self }).write_head(payload) {
            return false;
        }
        let mut pattern = self.pattern();
        let (words, rest) = payload[Self::LEN..].as_chunks_mut::<8>();
        for word in words {
            *word = pattern.next_word();
        }
        let last = pattern.next_word();
        rest.copy_from_slice(&last[..rest.len()]);
        true
    }

    /// Reads a probe without checking its pattern.
    ///
    /// # Errors
    /// [`ProbeError::NotAProbe`].
    #[inline]
    pub fn read(payload: &[u8]) -> Result<Self, ProbeError> {
        let head = payload.first_chunk::<{ Self::LEN }>().ok_or(ProbeError::NotAProbe)?;
        let [c0, c1, a @ .., _, _, _, _, _, _, _, _] = *head;
        let [.., b0, b1, b2, b3, b4, b5, b6, b7] = *head;
        let words = (u64::from_be_bytes(a), u64::from_be_bytes([b0, b1, b2, b3, b4, b5, b6, b7]));
        if u16::from_be_bytes([c0, c1]) != Self::check(words) {
            return Err(ProbeError::NotAProbe);
        }
        let (stream, time) = ((words.0 >> 48) as u16, words.0 & Self::TIME_MASK);
        Ok(Self { stream, sequence: words.1, time, filled: words.0 & Self::FILLED != 0 })
    }

    /// Reads a probe and checks every byte of `payload` that its sender wrote.
    ///
    /// # Errors
    /// [`ProbeError`].
    #[inline]
    pub fn verify(payload: &[u8]) -> Result<Self, ProbeError> {
        let probe = Self::read(payload)?;
        if !probe.filled {
            return Ok(probe);
        }
        let mut pattern = probe.pattern();
        let (words, rest) = payload[Self::LEN..].as_chunks::<8>();
        let good = words.iter().fold(true, |good, word| good & (*word == pattern.next_word()));
        let last = pattern.next_word();
        if good && *rest == last[..rest.len()] { Ok(probe) } else { Err(probe.blame(payload)) }
    }

    /// The first wrong byte.
    #[cold]
    fn blame(self, payload: &[u8]) -> ProbeError {
        let mut right = payload.to_vec();
        self.write(&mut right);
        let at = payload.iter().zip(&right).position(|(is, should)| is != should);
        ProbeError::Content { at: at.unwrap_or(0) }
    }

    fn pattern(self) -> Pattern {
        Pattern(self.sequence.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ u64::from(self.stream))
    }
}

/// Makes the words of a pattern: each is the previous one plus an odd step.
struct Pattern(u64);

impl Pattern {
    #[inline(always)]
    fn next_word(&mut self) -> [u8; 8] {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.0.to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_smallest_frame_has_room() {
        assert_eq!(UdpFrame::HEADERS + Probe::LEN, MIN_FRAME);
        let mut frame = [0; MIN_FRAME];
        let at = UdpFrame::between(Mac::local(1), Mac::local(2)).write(&mut frame).unwrap();
        let probe = Probe { stream: 1, sequence: 2, time: 3, filled: true };
        assert!(probe.write(&mut frame[at..]));
        assert_eq!(Probe::verify(&frame[at..]), Ok(probe));
        assert!(Ipv4::checksum_ok(&frame[14..]));
    }

    #[test]
    fn imix_is_seven_to_four_to_one() {
        let count = |size: usize| IMIX.iter().filter(|s| **s == size).count();
        assert_eq!((count(60), count(590), count(1514)), (7, 4, 1));
    }

    /// Changing byte `k` by `d` adds `d << 8k` to a word. That adds the high half of its product
    /// with the factor to the check word, and perhaps a carry.
    #[test]
    fn every_byte_counts() {
        for factor in Probe::FACTORS {
            for (d, byte) in (1..=255u64).flat_map(|d| (0..8).map(move |byte| (d, byte))) {
                for change in [d << (8 * byte), (d << (8 * byte)).wrapping_neg()] {
                    let high = (change.wrapping_mul(factor) >> 48) as u16;
                    assert!(high != 0 && high != 0xffff, "{factor:x} {d} {byte}");
                }
            }
        }
    }

    #[test]
    fn zeros_and_short_payloads_are_no_probes() {
        assert_eq!(Probe::read(&[0; 100]), Err(ProbeError::NotAProbe));
        assert_eq!(Probe::read(&[0xff; 100]), Err(ProbeError::NotAProbe));
        assert!(!Probe { stream: 0, sequence: 0, time: 0, filled: true }.write(&mut [0; 17]));
        assert_eq!(Probe::read(&[0; 17]), Err(ProbeError::NotAProbe));
    }

    #[test]
    fn what_was_not_filled_is_not_checked() {
        let probe = Probe { stream: 1, sequence: 2, time: 3, filled: false };
        let mut payload = [7; 100];
        assert!(probe.write_head(&mut payload));
        assert_eq!(Probe::verify(&payload), Ok(probe));
        assert_eq!(payload[Probe::LEN..], [7; 82]);
    }

    #[test]
    fn lengths_that_do_not_fit_are_refused() {
        let headers = UdpFrame::between(Mac::local(1), Mac::local(2));
        assert!(headers.write(&mut [0; 41]).is_none());
        assert!(headers.write(&mut vec![0; 14 + 65_536]).is_none());
        assert!(headers.write(&mut vec![0; 14 + 65_535]).is_some());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            stream in any::<u16>(), sequence in any::<u64>(), time in 0..=Probe::TIME_MASK,
            len in Probe::LEN..300,
        ) {
            let probe = Probe { stream, sequence, time, filled: true };
            let mut payload = vec![0; len];
            probe.write(&mut payload);
            prop_assert_eq!(Probe::verify(&payload), Ok(probe));
        }

        #[test]
        fn a_change_of_any_byte_is_found(
            stream in any::<u16>(), sequence in any::<u64>(), time in 0..=Probe::TIME_MASK,
            len in Probe::LEN..100, flip in 1u8..,
        ) {
            let mut payload = vec![0; len];
            Probe { stream, sequence, time, filled: true }.write(&mut payload);
            for at in 0..len {
                payload[at] ^= flip;
                prop_assert!(Probe::verify(&payload).is_err(), "byte {}", at);
                payload[at] ^= flip;
            }
        }

        #[test]
        fn frames_differ(sequence in any::<u64>(), other in any::<u64>(), stream in any::<u16>()) {
            prop_assume!(sequence != other);
            let mut payloads = [[0; 50]; 2];
            for (payload, sequence) in payloads.iter_mut().zip([sequence, other]) {
                Probe { stream, sequence, time: 0, filled: true }.write(payload);
            }
            prop_assert_ne!(&payloads[0][Probe::LEN..], &payloads[1][Probe::LEN..]);
        }
    }
}
