//! What a sender left for others to do: checksum and segmentation requests.

/// An offload request in virtio-net's meaning (virtio 1.2, 5.1.6): all zero asks for nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// VIRTIO_NET_HDR_F_* bits: 1 "needs checksum", 2 "data is valid".
    pub flags: u8,
    /// VIRTIO_NET_HDR_GSO_*: 0 none, 1 TCPv4, 3 UDP, 4 TCPv6, 5 UDP_L4; 0x80 ECN.
    pub gso_type: u8,
    /// Bytes of headers up to the payload (a hint).
    pub header_len: u16,
    /// Payload bytes of each segment.
    pub gso_size: u16,
    /// Where to start summing.
    pub checksum_start: u16,
    /// Where to store the sum, from `checksum_start`.
    pub checksum_offset: u16,
}

impl Offload {
    /// Asks for nothing.
    pub const NONE: Self = Self {
        flags: 0,
        gso_type: 0,
        header_len: 0,
        gso_size: 0,
        checksum_start: 0,
        checksum_offset: 0,
    };
}
