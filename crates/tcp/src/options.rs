//! TCP options: parsed and written.

use crate::seq::Seq;

/// The maximum number of bytes of options.
pub const MAX_OPTIONS: usize = 40;

const END: u8 = 0;
const NOP: u8 = 1;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMP: u8 = 8;
/// An experiment (RFC 6994), whose number follows: the longest time for which the sender delays an
/// ACK, in milliseconds.
const EXPERIMENT: u8 = 254;
const ACK_DELAY: [u8; 2] = *b"tk";

/// The timestamp option (RFC 7323, 3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamp {
    /// TSval: the sender's clock.
    pub value: u32,
    /// TSecr: the value that the sender saw last.
    pub echo: u32,
}

/// Blocks of the SACK option: first byte, and the one after the last (RFC 2018, 3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackBlocks {
    blocks: [(Seq, Seq); 4],
    len: u8,
}

impl SackBlocks {
    /// No blocks.
    pub const NONE: Self = Self { blocks: [(Seq(0), Seq(0)); 4], len: 0 };

    /// Adds a block. Blocks after the fourth are ignored.
    pub fn push(&mut self, start: Seq, end: Seq) {
        if let Some(place) = self.blocks.get_mut(usize::from(self.len)) {
            *place = (start, end);
            self.len += 1;
        }
    }

    /// The blocks.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> &[(Seq, Seq)] {
        &self.blocks[..usize::from(self.len).min(4)]
    }

    /// True if there are no blocks.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// The options of a segment that this crate knows. Others are skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Largest payload that the sender accepts (RFC 9293, 3.7.1).
    pub mss: Option<u16>,
    /// Left shift of the sender's windows (RFC 7323, 2).
    pub window_scale: Option<u8>,
    /// The sender understands SACK (RFC 2018, 2).
    pub sack_permitted: bool,
    /// The longest time for which the sender delays an ACK, in milliseconds; 0 if it does not say.
    /// It is written in segments with an MSS only.
    pub ack_delay: u8,
    /// Timestamps.
    pub timestamp: Option<Timestamp>,
    /// Ranges that the sender holds out of order.
    pub sack: SackBlocks,
}

impl Options {
    /// Parses the option bytes of a header, as far as they make sense. An option whose length is
    /// wrong for its kind is skipped; one whose length cannot be is the last.
    #[must_use]
    pub fn parse(mut bytes: &[u8]) -> Self {
        let mut options = Self::default();
        // The common case: two NOPs and a timestamp (RFC 7323, appendix A).
        if let [NOP, NOP, TIMESTAMP, 10, value @ ..] = bytes
            && let Some(value) = timestamp(value)
        {
            options.timestamp = Some(value);
            return options;
        }
        while let [kind, rest @ ..] = bytes {
            match *kind {
                END => break,
                NOP => bytes = rest,
                kind => {
                    let len = rest.first().map_or(0, |len| usize::from(*len));
                    let Some(value) = bytes.get(2..len) else { break };
                    options.set(kind, value);
                    bytes = &bytes[len..];
                }
            }
        }
        options
    }

    fn set(&mut self, kind: u8, value: &[u8]) {
        match (kind, value) {
            (MSS, [high, low]) => self.mss = Some(u16::from_be_bytes([*high, *low])),
            (WINDOW_SCALE, [shift]) => self.window_scale = Some((*shift).min(14)),
            (SACK_PERMITTED, []) => self.sack_permitted = true,
            (EXPERIMENT, [a, b, 0, delay]) if [*a, *b] == ACK_DELAY => self.ack_delay = *delay,
            (TIMESTAMP, value) => self.timestamp = timestamp(value).or(self.timestamp),
            (SACK, value) => {
                let (words, rest) = value.as_chunks::<4>();
                let (pairs, odd) = words.as_chunks::<2>();
                if !rest.is_empty() || !odd.is_empty() {
                    return;
                }
                for [start, end] in pairs {
                    self.sack.push(Seq(u32::from_be_bytes(*start)), Seq(u32::from_be_bytes(*end)));
                }
            }
            _ => {}
        }
    }

    /// Writes the options, padded to a multiple of 4; returns their length. Blocks that do not fit
    /// are left out.
    pub fn write(&self, out: &mut [u8; MAX_OPTIONS]) -> usize {
        let mut writer = Writer { out, at: 0 };
        if let Some(mss) = self.mss {
            let [high, low] = mss.to_be_bytes();
            writer.put(&[MSS, 4, high, low]);
            if self.ack_delay > 0 {
                let [a, b] = ACK_DELAY;
                writer.put(&[NOP, NOP, EXPERIMENT, 6, a, b, 0, self.ack_delay]);
            }
        }
        if let Some(shift) = self.window_scale {
            writer.put(&[NOP, WINDOW_SCALE, 3, shift]);
        }
        if self.sack_permitted {
            writer.put(&[NOP, NOP, SACK_PERMITTED, 2]);
        }
        if let Some(Timestamp { value, echo }) = self.timestamp {
            writer.put(&[NOP, NOP, TIMESTAMP, 10]);
            writer.put(&value.to_be_bytes());
            writer.put(&echo.to_be_bytes());
        }
        let room = (MAX_OPTIONS - writer.at).saturating_sub(4) / 8;
        let blocks = &self.sack.as_slice()[..self.sack.as_slice().len().min(room)];
        if !blocks.is_empty() {
            writer.put(&[NOP, NOP, SACK, 2 + 8 * blocks.len() as u8]);
            for (start, end) in blocks {
                writer.put(&start.0.to_be_bytes());
                writer.put(&end.0.to_be_bytes());
            }
        }
        writer.at
    }

    /// Bytes that [`write`](Self::write) would write.
    #[must_use]
    pub fn written_len(&self) -> usize {
        let blocks = self.sack.as_slice().len();
        let delay = if self.ack_delay > 0 { 8 } else { 0 };
        let fixed = if self.mss.is_some() { 4 + delay } else { 0 }
            + usize::from(self.window_scale.is_some()) * 4
            + usize::from(self.sack_permitted) * 4
            + usize::from(self.timestamp.is_some()) * 12;
        let blocks = blocks.min((MAX_OPTIONS - fixed).saturating_sub(4) / 8);
        fixed + if blocks == 0 { 0 } else { 4 + 8 * blocks }
    }
}

fn timestamp(value: &[u8]) -> Option<Timestamp> {
    let (words, rest) = value.as_chunks::<4>();
    match words {
        [value, echo] if rest.is_empty() => {
            Some(Timestamp { value: u32::from_be_bytes(*value), echo: u32::from_be_bytes(*echo) })
        }
        _ => None,
    }
}

struct Writer<'a> {
    out: &'a mut [u8; MAX_OPTIONS],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        if let Some(place) = self.out.get_mut(self.at..self.at + bytes.len()) {
            place.copy_from_slice(bytes);
            self.at += bytes.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    prop_compose! {
        fn options()(
            mss in any::<Option<u16>>(),
            window_scale in proptest::option::of(0u8..15),
            sack_permitted in any::<bool>(),
            timestamp in any::<Option<(u32, u32)>>(),
            blocks in proptest::collection::vec(any::<(u32, u32)>(), 0..3),
            delay in 0u8..9,
        ) -> Options {
            // All options of a SYN leave no room for blocks.
            let delay = if mss.is_some() { delay } else { 0 };
            let is_syn = mss.is_some() || window_scale.is_some() || sack_permitted;
            let most = if is_syn { usize::from(delay == 0) } else { 3 };
            let mut sack = SackBlocks::default();
            for (start, end) in blocks.into_iter().take(most) {
                sack.push(Seq(start), Seq(end));
            }
            let timestamp = timestamp.map(|(value, echo)| Timestamp { value, echo });
            Options { mss, window_scale, sack_permitted, ack_delay: delay, timestamp, sack }
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_parsed(options in options()) {
            let mut bytes = [0; MAX_OPTIONS];
            let len = options.write(&mut bytes);
            prop_assert_eq!(len, options.written_len());
            prop_assert_eq!(len % 4, 0);
            prop_assert_eq!(Options::parse(&bytes[..len]), options);
        }

        #[test]
        fn any_bytes_are_parsed_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = Options::parse(&bytes);
        }
    }

    /// The right answer is Linux's: what can be read counts, and nothing else.
    #[test]
    fn malformed_options_cost_nothing_but_themselves() {
        const GOOD: &[u8] = &[MSS, 4, 5, 180];
        for (name, after, sack_permitted) in [
            ("nothing", &[][..], false),
            ("an unknown kind", &[99, 3, 1, SACK_PERMITTED, 2], true),
            ("a kind with length 0", &[99, 0, SACK_PERMITTED, 2], false),
            ("a kind with length 1", &[99, 1, SACK_PERMITTED, 2], false),
            ("a length past the end", &[99, 32, SACK_PERMITTED, 2], false),
            ("a kind in the last byte", &[NOP, NOP, NOP, 99], false),
            ("an end before others", &[END, SACK_PERMITTED, 2], false),
            ("MSS of length 3", &[MSS, 3, 1, SACK_PERMITTED, 2], true),
            ("MSS of length 5", &[MSS, 5, 1, 1, 1, SACK_PERMITTED, 2], true),
            ("SACK-permitted of length 3", &[SACK_PERMITTED, 3, 1], false),
            ("window scale of length 4", &[WINDOW_SCALE, 4, 7, 0, SACK_PERMITTED, 2], true),
            ("timestamps of length 8", &[TIMESTAMP, 8, 0, 0, 0, 1, 0, 0, SACK_PERMITTED, 2], true),
            ("timestamps of length 2", &[TIMESTAMP, 2, SACK_PERMITTED, 2], true),
            ("SACK of length 2", &[SACK, 2, SACK_PERMITTED, 2], true),
            ("SACK of length 6", &[SACK, 6, 1, 1, 1, 1, SACK_PERMITTED, 2], true),
            ("SACK of length 14", &[SACK, 14, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], false),
        ] {
            let wanted = Options { mss: Some(1460), sack_permitted, ..Options::default() };
            assert_eq!(Options::parse(&[GOOD, after].concat()), wanted, "{name}");
        }
        // The common form, but too short.
        assert_eq!(Options::parse(&[NOP, NOP, TIMESTAMP, 10, 0, 0, 0, 1]), Options::default());
    }
}
