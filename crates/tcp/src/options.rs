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
    /// Timestamps.
    pub timestamp: Option<Timestamp>,
    /// Ranges that the sender holds out of order.
    pub sack: SackBlocks,
}

/// An option has an invalid length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadOption;

impl Options {
    /// Parses the option bytes of a header.
    ///
    /// # Errors
    /// [`BadOption`] if a length is below 2, beyond the end, or wrong for its kind.
    pub fn parse(mut bytes: &[u8]) -> Result<Self, BadOption> {
        let mut options = Self::default();
        // The common case: two NOPs and a timestamp (RFC 7323, appendix A).
        if let [NOP, NOP, TIMESTAMP, 10, value @ ..] = bytes
            && value.len() == 8
        {
            options.timestamp = Some(timestamp(value)?);
            return Ok(options);
        }
        while let [kind, rest @ ..] = bytes {
            match *kind {
                END => break,
                NOP => bytes = rest,
                kind => {
                    let len = usize::from(*rest.first().ok_or(BadOption)?);
                    let value = bytes.get(2..len).ok_or(BadOption)?;
                    options.set(kind, value)?;
                    bytes = &bytes[len..];
                }
            }
        }
        Ok(options)
    }

    fn set(&mut self, kind: u8, value: &[u8]) -> Result<(), BadOption> {
        match (kind, value) {
            (MSS, [high, low]) => self.mss = Some(u16::from_be_bytes([*high, *low])),
            (WINDOW_SCALE, [shift]) => self.window_scale = Some((*shift).min(14)),
            (SACK_PERMITTED, []) => self.sack_permitted = true,
            (TIMESTAMP, value) => self.timestamp = Some(timestamp(value)?),
            (SACK, value) => {
                let (words, rest) = value.as_chunks::<4>();
                let (pairs, odd) = words.as_chunks::<2>();
                if !rest.is_empty() || !odd.is_empty() || pairs.is_empty() {
                    return Err(BadOption);
                }
                for [start, end] in pairs {
                    self.sack.push(Seq(u32::from_be_bytes(*start)), Seq(u32::from_be_bytes(*end)));
                }
            }
            (MSS | WINDOW_SCALE | SACK_PERMITTED, _) => return Err(BadOption),
            _ => {}
        }
        Ok(())
    }

    /// Writes the options, padded to a multiple of 4; returns their length. Blocks that do not fit
    /// are left out.
    pub fn write(&self, out: &mut [u8; MAX_OPTIONS]) -> usize {
        let mut writer = Writer { out, at: 0 };
        if let Some(mss) = self.mss {
            let [high, low] = mss.to_be_bytes();
            writer.put(&[MSS, 4, high, low]);
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
        let fixed = usize::from(self.mss.is_some()) * 4
            + usize::from(self.window_scale.is_some()) * 4
            + usize::from(self.sack_permitted) * 4
            + usize::from(self.timestamp.is_some()) * 12;
        let blocks = blocks.min((MAX_OPTIONS - fixed).saturating_sub(4) / 8);
        fixed + if blocks == 0 { 0 } else { 4 + 8 * blocks }
    }
}

fn timestamp(value: &[u8]) -> Result<Timestamp, BadOption> {
    let (words, rest) = value.as_chunks::<4>();
    match words {
        [value, echo] if rest.is_empty() => {
            Ok(Timestamp { value: u32::from_be_bytes(*value), echo: u32::from_be_bytes(*echo) })
        }
        _ => Err(BadOption),
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
        ) -> Options {
            let most = if mss.is_some() || window_scale.is_some() || sack_permitted { 1 } else { 3 };
            let mut sack = SackBlocks::default();
            for (start, end) in blocks.into_iter().take(most) {
                sack.push(Seq(start), Seq(end));
            }
            let timestamp = timestamp.map(|(value, echo)| Timestamp { value, echo });
            Options { mss, window_scale, sack_permitted, timestamp, sack }
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_parsed(options in options()) {
            let mut bytes = [0; MAX_OPTIONS];
            let len = options.write(&mut bytes);
            prop_assert_eq!(len, options.written_len());
            prop_assert_eq!(len % 4, 0);
            prop_assert_eq!(Options::parse(&bytes[..len]), Ok(options));
        }

        #[test]
        fn any_bytes_are_parsed_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = Options::parse(&bytes);
        }
    }

    #[test]
    fn impossible_lengths_are_refused() {
        for bytes in [
            &[5, 0][..],
            &[8, 1],
            &[2, 4, 1],
            &[8, 9, 0, 0, 0, 0, 0, 0, 0],
            &[5, 6, 1, 1, 1, 1],
            &[99],
        ] {
            assert_eq!(Options::parse(bytes), Err(BadOption), "{bytes:?}");
        }
        assert_eq!(
            Options::parse(&[99, 3, 1, 1, 0, 77]),
            Ok(Options::default()),
            "unknown kinds are skipped"
        );
    }
}
