//! The features that device and driver negotiate.

use frame::OffloadSet;

bitflags::bitflags! {
    /// Feature bits of virtio-net (virtio 1.2, 5.1.3; 1.3 for USO) and of its queues (6).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Features: u64 {
        /// The device completes checksums for the driver.
        const CSUM = 1 << 0;
        /// The driver accepts frames without a complete checksum.
        const GUEST_CSUM = 1 << 1;
        /// The device provides the MTU.
        const MTU = 1 << 3;
        /// The device provides the address.
        const MAC = 1 << 5;
        /// The driver accepts TCP over IPv4 segments of up to 64 KiB.
        const GUEST_TSO4 = 1 << 7;
        /// The driver accepts TCP over IPv6 segments of up to 64 KiB.
        const GUEST_TSO6 = 1 << 8;
        /// The driver accepts such segments with ECN.
        const GUEST_ECN = 1 << 9;
        /// The device segments TCP over IPv4 for the driver.
        const HOST_TSO4 = 1 << 11;
        /// The device segments TCP over IPv6 for the driver.
        const HOST_TSO6 = 1 << 12;
        /// The device segments TCP with ECN for the driver.
        const HOST_ECN = 1 << 13;
        /// A received frame may be spread over several buffers.
        const MRG_RXBUF = 1 << 15;
        /// The device reports whether the link is up.
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
        /// Descriptors may refer to tables outside of the ring.
        const INDIRECT_DESC = 1 << 28;
        /// Each side says at which position it wants to be notified.
        const EVENT_IDX = 1 << 29;
        /// Virtio 1.0 and later.
        const VERSION_1 = 1 << 32;
        /// The driver and device use packed queues instead of split ones.
        const RING_PACKED = 1 << 34;
        /// Buffers are used in the order in which they were made available.
        const IN_ORDER = 1 << 35;
        /// The driver accepts UDP over IPv4 segments of up to 64 KiB.
        const GUEST_USO4 = 1 << 54;
        /// The driver accepts UDP over IPv6 segments of up to 64 KiB.
        const GUEST_USO6 = 1 << 55;
        /// The device segments UDP for the driver.
        const HOST_USO = 1 << 56;
    }
}

impl Features {
    /// The features that these queues support. A device may offer them, except for those that its
    /// configuration removes.
    pub const OFFERED: Self = Self::all();

    /// Offloads that a driver may request. Without any of them, the header before a frame is
    /// meaningless.
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

    /// Offloads that the driver may request for frames that it sends.
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

    /// Offloads that the driver accepts in frames that it receives.
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
