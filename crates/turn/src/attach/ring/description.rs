//! How a client's region is divided, as a data process is told.

use netring::layout::{Geometry, RingSpec};
use port::OffloadSet;
use serde::{Deserialize, Serialize};

/// The rings of a region, as a data process gets them. They are validated again when they are
/// mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingAttach {
    /// How the region is divided: if_size, if_num, ring_size, ring_num, buf_size, buf_num.
    #[serde(with = "geometry")]
    pub geometry: Geometry,
    /// The send rings: number of the first one, how many, and slots of each.
    #[serde(with = "ring_spec")]
    pub tx: RingSpec,
    /// The receive rings: number of the first one, how many, and slots of each.
    #[serde(with = "ring_spec")]
    pub rx: RingSpec,
    /// Bytes of a buffer that the switch may fill.
    pub buf_usable: u32,
    /// The region belongs to the supervisor. When the port is removed, all free buffers are put
    /// back into the slots, where the supervisor finds them.
    #[serde(default)]
    pub supervised: bool,
    /// The offload requests that slots carry, as bits.
    #[serde(default, with = "offloads")]
    pub offloads: OffloadSet,
}

impl From<&netring::Rings> for RingAttach {
    fn from(rings: &netring::Rings) -> Self {
        let netring::Rings { geometry, tx, rx, buf_usable, offloads, .. } = *rings;
        Self { geometry, tx, rx, buf_usable, supervised: false, offloads }
    }
}

mod geometry {
    use super::Geometry;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(g: &Geometry, to: S) -> Result<S::Ok, S::Error> {
        [g.if_size, g.if_num, g.ring_size, g.ring_num, g.buf_size, g.buf_num].serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Geometry, D::Error> {
        let [if_size, if_num, ring_size, ring_num, buf_size, buf_num] =
            Deserialize::deserialize(from)?;
        Ok(Geometry { if_size, if_num, ring_size, ring_num, buf_size, buf_num })
    }
}

mod offloads {
    use super::OffloadSet;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(set: &OffloadSet, to: S) -> Result<S::Ok, S::Error> {
        set.bits().serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<OffloadSet, D::Error> {
        Deserialize::deserialize(from).map(OffloadSet::from_bits)
    }
}

mod ring_spec {
    use super::RingSpec;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(r: &RingSpec, to: S) -> Result<S::Ok, S::Error> {
        [r.first, r.rings, r.slots].serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<RingSpec, D::Error> {
        let [first, rings, slots] = Deserialize::deserialize(from)?;
        Ok(RingSpec { first, rings, slots })
    }
}
