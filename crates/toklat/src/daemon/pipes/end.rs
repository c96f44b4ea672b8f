//! The names and shapes of pipes.

use frame::OffloadSet;
use netring::layout::{Geometry, RingSpec};

/// An end of a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// `{`.
    Master,
    /// `}`.
    Slave,
}

impl End {
    /// The other end of the pipe.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Master => Self::Slave,
            Self::Slave => Self::Master,
        }
    }
}

/// The rings of one end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndRings {
    /// The end's send rings.
    pub tx: RingSpec,
    /// The end's receive rings, with the geometry of the other end's send rings.
    pub rx: RingSpec,
}

/// A pipe's region, as its maker laid it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipeLayout {
    /// How the region is divided.
    pub geometry: Geometry,
    /// The rings of the `{` end and of the `}` end.
    pub rings: [EndRings; 2],
    /// Bytes of a buffer that frames use.
    pub buf_usable: u32,
    /// The offload requests that slots carry.
    pub offloads: OffloadSet,
}

impl PipeLayout {
    /// The rings of `end` of the pipe.
    #[must_use]
    pub fn of(&self, end: End) -> EndRings {
        self.rings[end as usize]
    }
}

/// A pipe's name: its parent (`vale0:p`) and its id.
pub type PipeName = (String, String);
