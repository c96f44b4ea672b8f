//! What the slots of a ring hold besides frames.

/// What the slots of a ring hold besides frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Format {
    /// Bytes of the virtio-net header before each frame: 0, 10 or 12.
    header: u8,
    /// Number of low bits of `ptr` that say where in its buffer a slot's bytes start; 0 for none.
    offset_bits: u8,
}

impl Format {
    /// Frames, from the start of their buffers.
    pub const PLAIN: Self = Self { header: 0, offset_bits: 0 };

    /// The format with these bits: `header` u8 | `offset_bits` u8. Invalid values count as 0.
    #[inline(always)]
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        let (header, offset_bits) = (bits as u8, (bits >> 8) as u8);
        Self {
            header: if matches!(header, 10 | 12) { header } else { 0 },
            offset_bits: if offset_bits <= 64 { offset_bits } else { 0 },
        }
    }

    /// The format's bits.
    #[must_use]
    pub const fn to_bits(self) -> u32 {
        self.header as u32 | (self.offset_bits as u32) << 8
    }

    /// Bytes of the virtio-net header before each frame.
    #[inline(always)]
    #[must_use]
    pub const fn header(self) -> usize {
        self.header as usize
    }

    /// The bits of `ptr` that are an offset.
    #[inline(always)]
    #[must_use]
    pub const fn offset_mask(self) -> u64 {
        match self.offset_bits {
            0 => 0,
            bits => u64::MAX >> (64 - bits as u32),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_survive_their_bits_and_invalid_ones_are_plain() {
        for (bits, header, mask) in
            [(0, 0, 0), (10, 10, 0), (12 | 12 << 8, 12, 0xfff), (64 << 8, 0, u64::MAX)]
        {
            let format = Format::from_bits(bits);
            assert_eq!(
                (format.to_bits(), format.header(), format.offset_mask()),
                (bits, header, mask)
            );
        }
        assert_eq!(Format::from_bits(11 | 65 << 8 | 1 << 16), Format::PLAIN);
    }
}
