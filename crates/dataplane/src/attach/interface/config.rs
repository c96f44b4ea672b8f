//! What a data process gets for a network interface.

use serde::{Deserialize, Serialize};

/// An interface, as a data process gets it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InterfaceConfig {
    /// The interface's name, kept for the supervisor.
    pub ifname: String,
    /// The interface's network namespace, kept for the supervisor.
    #[serde(default)]
    pub netns: Option<String>,
    /// The interface's number in its namespace, kept for the supervisor.
    pub index: u32,
    /// How many queues the interface has.
    pub queues: u16,
    /// The way in which frames are received and sent.
    pub engine: Engine,
    /// The reason for that choice, in words.
    pub why: String,
}

/// How frames come from an interface and go to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Engine {
    /// Packet sockets (packet(7)). Descriptors: one for each queue, bound and non-blocking, with
    /// `PACKET_VNET_HDR` and a `TPACKET_V3` receive ring.
    Packet(PacketRings),
    /// AF_XDP sockets. Descriptors: one for each queue, bound and non-blocking, a memory file for
    /// each, the map of the sockets and the link of the program.
    Xdp(Box<Umem>),
}

/// The receive rings of packet sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PacketRings {
    /// Blocks of each ring.
    pub blocks: u32,
    /// Bytes of each block.
    pub block_len: u32,
    /// The kernel accepts UDP segmentation requests (since Linux 6.2).
    pub uso: bool,
}

impl PacketRings {
    /// Rings of 16 MiB. A block has room for three of the largest frames.
    pub const DEFAULT: Self = Self { blocks: 64, block_len: 256 << 10, uso: false };
}

/// Where a ring's words are in its mapping (`struct xdp_ring_offset`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct XdpRing {
    /// The count of entries that were written.
    pub producer: u64,
    /// The count of entries that were read.
    pub consumer: u64,
    /// The entries.
    pub entries: u64,
    /// Flags.
    pub flags: u64,
}

/// The memory and the rings of AF_XDP sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Umem {
    /// Chunks of each direction, and entries of each ring: a power of two.
    pub chunks: u32,
    /// Bytes of a chunk.
    pub chunk_len: u32,
    /// The rings: receive, transmit, fill, completion.
    pub rings: [XdpRing; 4],
    /// The card reads and writes the memory itself.
    pub zero_copy: bool,
    /// The kernel completes checksums of frames that leave.
    pub checksum: bool,
}
