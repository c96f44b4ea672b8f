//! One row for each register, whatever the family. Decoding, masks, resets, documentation and names
//! in traces come from it.
//!
//! Each family gives its rows its own effect type: what an access does besides reading or writing
//! the register's word.

/// What an access does to a register, apart from its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Keeps the written bits that are in the mask.
    ReadWrite,
    /// Like [`ReadWrite`](Self::ReadWrite) while the device is stopped; otherwise ignores writes.
    Halted,
    /// Writes are ignored.
    ReadOnly,
    /// A statistic: reading resets it to zero.
    ReadClear,
    /// Reads as zero.
    WriteOnly,
}

/// Which chips of a family have a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Members(u8);

impl Members {
    /// All chips.
    pub const ALL: Self = Self(u8::MAX);

    /// The chips whose numbers are bits in `chips`.
    #[must_use]
    pub const fn of(chips: u8) -> Self {
        Self(chips)
    }

    /// True if the chip with this number is in the set.
    #[inline]
    #[must_use]
    pub const fn has_number(self, chip: usize) -> bool {
        self.0 >> chip & 1 != 0
    }

    /// True if `chip` is a member.
    #[inline]
    #[must_use]
    pub fn has(self, chip: impl Into<usize>) -> bool {
        self.has_number(chip.into())
    }
}

/// The use of a register in a page that the driver may write without a trap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageUse {
    /// The driver sets something up with it.
    Setup,
    /// Applies the setup in the registers written before it.
    Last,
    /// The device reports its position in it.
    Head,
    /// A doorbell.
    Tail,
}

/// A register, or several in a row, with the effect `E`.
#[derive(Clone, Copy, Debug)]
pub struct Row<E> {
    /// The register's place: an offset, or a number.
    pub at: u32,
    /// The number of consecutive registers.
    pub count: u16,
    /// The register's name in the manuals.
    pub name: &'static str,
    /// What an access does to the register.
    pub access: Access,
    /// Bits that can be written.
    pub mask: u32,
    /// The register's value after a reset, by chip.
    pub reset: [u32; 2],
    /// Which chips have the register.
    pub members: Members,
    /// The effect of an access.
    pub effect: E,
    /// Bits that a reset by the driver keeps.
    pub survives: u32,
    /// How the register is used if it lies in a page that the driver may write without a trap.
    pub shared: Option<PageUse>,
}

impl<E: Copy> Row<E> {
    /// A register that keeps the written bits in `mask`.
    #[must_use]
    pub const fn new(at: u32, name: &'static str, mask: u32, reset: u32, effect: E) -> Self {
        Self {
            at,
            count: 1,
            name,
            access: Access::ReadWrite,
            mask,
            reset: [reset; 2],
            members: Members::ALL,
            effect,
            survives: 0,
            shared: None,
        }
    }

    /// The same row, with its effect in words.
    pub fn described(&self, effect: impl FnOnce(E) -> String) -> Row<String> {
        let Self { at, count, name, access, mask, reset, members, survives, shared, .. } = *self;
        let effect = effect(self.effect);
        Row { at, count, name, access, mask, reset, members, effect, survives, shared }
    }
}

/// How many registers in `rows` a chip shares with its driver for a use in `wanted`.
#[must_use]
pub const fn count_shared<E: Copy>(rows: &[Row<E>], chip: usize, wanted: &[PageUse]) -> usize {
    let (mut count, mut which) = (0, 0);
    while which < wanted.len() {
        let mut row = 0;
        while row < rows.len() {
            count += is_shared(&rows[row], chip, wanted[which]) as usize;
            row += 1;
        }
        which += 1;
    }
    count
}

/// The places of these registers, in the order of `wanted`.
#[must_use]
pub const fn shared<E: Copy, const N: usize>(
    rows: &[Row<E>],
    chip: usize,
    wanted: &[PageUse],
) -> [u32; N] {
    let mut places = [0; N];
    let (mut count, mut which) = (0, 0);
    while which < wanted.len() {
        let mut row = 0;
        while row < rows.len() {
            if is_shared(&rows[row], chip, wanted[which]) {
                places[count] = rows[row].at;
                count += 1;
            }
            row += 1;
        }
        which += 1;
    }
    places
}

const fn is_shared<E: Copy>(row: &Row<E>, chip: usize, wanted: PageUse) -> bool {
    match row.shared {
        Some(shared) => shared as u8 == wanted as u8 && row.members.has_number(chip),
        None => false,
    }
}

/// A table of registers, for documentation.
#[derive(Clone, Debug)]
pub struct RegisterTable {
    /// The family, and how its registers are reached.
    pub title: &'static str,
    /// The chips, by number.
    pub chips: &'static [&'static str],
    /// The distance between consecutive registers of one row.
    pub step: u32,
    /// Its rows.
    pub rows: Vec<Row<String>>,
}
