//! What device and driver agree on.

use frame::OffloadSet;

bitflags::bitflags! {
    /// Feature bits of virtio-net (virtio 1.2, 5.1.3; 1.3 for USO) and of its queues (6), as they are
    /// negotiated.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Features: u64 {
        /// The driver leaves checksums to us.
        const CSUM = 1 << 0;
        /// The driver takes frames whose checksum is not filled in.
        const GUEST_CSUM = 1 << 1;
        /// The device says which MTU to use.
        const MTU = 1 << 3;
        /// The device says which address to use.
        const MAC = 1 << 5;
        /// The driver takes TCP over IPv4 segments of up to 64 KiB.
        const GUEST_TSO4 = 1 << 7;
        /// The driver takes TCP over IPv6 segments of up to 64 KiB.
        const GUEST_TSO6 = 1 << 8;
        /// The driver takes such segments with ECN.
        const GUEST_ECN = 1 << 9;
        /// The driver leaves segmentation of TCP over IPv4 to us.
        const HOST_TSO4 = 1 << 11;
        /// The driver leaves segmentation of TCP over IPv6 to us.
        const HOST_TSO6 = 1 << 12;
        /// The driver leaves segmentation of TCP with ECN to us.
        const HOST_ECN = 1 << 13;
        /// A received frame may be spread over several buffers.
        const MRG_RXBUF = 1 << 15;
        /// The device says whether the link is up.
        const STATUS = 1 << 16;
        /// There is a control queue, which the front end serves.
        const CTRL_VQ = 1 << 17;
        /// The control queue sets receive modes.
        const CTRL_RX = 1 << 18;
        /// The control queue filters VLANs.
        const CTRL_VLAN = 1 << 19;
        /// The device asks the driver to announce itself.
        const GUEST_ANNOUNCE = 1 << 21;
        /// Several pairs of queues.
        const MQ = 1 << 22;
        /// The control queue sets the address.
        const CTRL_MAC_ADDR = 1 << 23;
        /// The header may lie anywhere in a chain (before VERSION_1).
        const ANY_LAYOUT = 1 << 27;
        /// Tables of descriptors outside of the ring.
        const INDIRECT_DESC = 1 << 28;
        /// Each side says at which position it wants to be notified.
        const EVENT_IDX = 1 << 29;
        /// Virtio 1.0 and later.
        const VERSION_1 = 1 << 32;
        /// Packed queues instead of split ones.
        const RING_PACKED = 1 << 34;
        /// Buffers are used in the order in which they were made available.
        const IN_ORDER = 1 << 35;
        /// The driver takes UDP over IPv4 segments of up to 64 KiB.
        const GUEST_USO4 = 1 << 54;
        /// The driver takes UDP over IPv6 segments of up to 64 KiB.
        const GUEST_USO6 = 1 << 55;
        /// The driver leaves segmentation of UDP to us.
        const HOST_USO = 1 << 56;
    }
}

impl Features {
    /// What the queues here can do: what a device may offer, before its maker takes away what it was
    /// told to.
    pub const OFFERED: Self = Self::all();

    /// What a driver may leave to us: without any of it, the header before a frame says nothing.
    pub const HOST_OFFLOADS: Self = Self::CSUM
        .union(Self::HOST_TSO4)
        .union(Self::HOST_TSO6)
        .union(Self::HOST_ECN)
        .union(Self::HOST_USO);

    /// Bytes of the header before each frame (virtio 1.2, 5.1.6.1).
    #[must_use]
    pub const fn header_len(self) -> u32 {
        if self.intersects(Self::VERSION_1.union(Self::MRG_RXBUF)) { 12 } else { 10 }
    }

    /// Requests that the driver may make of us, for frames that it sends.
    #[must_use]
    pub fn host_offloads(self) -> OffloadSet {
        OffloadSet {
            checksum: self.contains(Self::CSUM),
            tso4: self.contains(Self::HOST_TSO4),
            tso6: self.contains(Self::HOST_TSO6),
            ecn: self.contains(Self::HOST_ECN),
            uso: self.contains(Self::HOST_USO),
        }
    }

    /// Requests that the driver takes, with frames that it receives.
    #[must_use]
    pub fn guest_offloads(self) -> OffloadSet {
        OffloadSet {
            checksum: self.contains(Self::GUEST_CSUM),
            tso4: self.contains(Self::GUEST_TSO4),
            tso6: self.contains(Self::GUEST_TSO6),
            ecn: self.contains(Self::GUEST_ECN),
            uso: self.contains(Self::GUEST_USO4.union(Self::GUEST_USO6)),
        }
    }
}
