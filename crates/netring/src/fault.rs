//! What clients do wrong.

/// What a client did to put its port into the error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[non_exhaustive]
pub enum Fault {
    /// A head outside of the ring, or not between the core's position and the tail.
    BadHead = 1,
    /// A buffer number outside the region.
    BadBuffer = 2,
    /// A length beyond the buffer.
    BadLength = 3,
    /// A frame of more slots than `MAX_FRAGS`.
    EndlessFrame = 4,
    /// An indirect slot, which the client's library must resolve.
    Indirect = 5,
    /// The region's memory has failed.
    Memory = 6,
    /// Waking the owners of the user's ports took the switch too long again and again, on this port
    /// or another one. The port is out of service until it is opened again.
    SlowBell = 7,
    /// Memory of the owner's user delayed the switch again and again. The port is out of service
    /// until it is opened again.
    SlowMemory = 8,
    /// An offload request that the port was not opened for, or one that is not in a frame's first
    /// slot.
    Offload = 9,
}

impl Fault {
    /// The fault with this number, if it is one.
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            1 => Self::BadHead,
            2 => Self::BadBuffer,
            3 => Self::BadLength,
            4 => Self::EndlessFrame,
            5 => Self::Indirect,
            6 => Self::Memory,
            7 => Self::SlowBell,
            8 => Self::SlowMemory,
            9 => Self::Offload,
            _ => return None,
        })
    }
}
