//! The e1000 family.

/// A chip of the family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chip {
    /// 82540EM (8086:100E), driver e1000: one queue each way, interrupts by its pin.
    Em82540 = 0,
    /// 82574L (8086:10D3), driver e1000e: two queues each way, MSI-X.
    L82574 = 1,
}

impl From<Chip> for usize {
    fn from(chip: Chip) -> Self {
        chip as Self
    }
}
