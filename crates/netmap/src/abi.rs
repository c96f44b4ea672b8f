//! netmap's constants and structures, API 14 and 15 (`net/netmap.h`).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `NETMAP_API`.
pub const API: u16 = 14;
/// Supported versions of `nmreq_header`.
pub const VERSIONS: std::ops::RangeInclusive<u16> = 14..=15;

/// Requests of `ioctl`.
pub mod ioctl {
    /// Legacy: describes a port, or lists the ports of a switch.
    pub const NIOCGINFO: u32 = 0xc03c_6991;
    /// Legacy: binds a port, or controls a switch.
    pub const NIOCREGIF: u32 = 0xc03c_6992;
    /// Sync send rings.
    pub const NIOCTXSYNC: u32 = 0x6994;
    /// Sync receive rings.
    pub const NIOCRXSYNC: u32 = 0x6995;
    /// Opaque, to a switch module.
    pub const NIOCCONFIG: u32 = 0xc110_6996;
    /// All requests of the interface with `nmreq_header`.
    pub const NIOCCTRL: u32 = 0xc058_6997;

    /// Returns true for requests that a netmap descriptor supports.
    #[must_use]
    pub const fn is_netmap(request: u32) -> bool {
        matches!(request, NIOCGINFO | NIOCREGIF | NIOCTXSYNC | NIOCRXSYNC | NIOCCONFIG | NIOCCTRL)
    }
}

/// `nr_reqtype`.
pub mod reqtype {
    /// Bind a port.
    pub const REGISTER: u16 = 1;
    /// Describes the rings and the region of a port.
    pub const PORT_INFO_GET: u16 = 2;
    /// Attaches a port to a switch.
    pub const VALE_ATTACH: u16 = 3;
    /// Detaches a port from its switch.
    pub const VALE_DETACH: u16 = 4;
    /// Ports of switches.
    pub const VALE_LIST: u16 = 5;
    /// Sets the length of the virtio-net header.
    pub const PORT_HDR_SET: u16 = 6;
    /// Get it.
    pub const PORT_HDR_GET: u16 = 7;
    /// Make a persistent port.
    pub const VALE_NEWIF: u16 = 8;
    /// Remove it.
    pub const VALE_DELIF: u16 = 9;
    /// Starts to poll a NIC from a kernel thread.
    pub const VALE_POLLING_ENABLE: u16 = 10;
    /// Stop that.
    pub const VALE_POLLING_DISABLE: u16 = 11;
    /// Describes the layout of a port's region.
    pub const POOLS_INFO_GET: u16 = 12;
    /// Syncs rings in the calling thread.
    pub const SYNC_KLOOP_START: u16 = 13;
    /// Stop that.
    pub const SYNC_KLOOP_STOP: u16 = 14;
    /// Keeps cursors in blocks of the program (CSB).
    pub const CSB_ENABLE: u16 = 15;

    /// Returns the length of a request's body; `None` for unknown requests.
    #[must_use]
    pub const fn body_size(reqtype: u16) -> Option<usize> {
        Some(match reqtype {
            REGISTER => 56,
            PORT_INFO_GET => 32,
            VALE_ATTACH | POOLS_INFO_GET => 64,
            VALE_DETACH | VALE_LIST | PORT_HDR_SET | PORT_HDR_GET | SYNC_KLOOP_START => 8,
            VALE_NEWIF | VALE_POLLING_ENABLE | VALE_POLLING_DISABLE => 16,
            VALE_DELIF | SYNC_KLOOP_STOP | CSB_ENABLE => 0,
            _ => return None,
        })
    }
}

/// The maximum number of bytes of a body.
pub const MOST_BODY: usize = 64;

/// `nro_reqtype`.
pub mod option {
    /// Memory of the program's.
    pub const EXTMEM: u32 = 1;
    /// Event descriptors of a sync loop.
    pub const SYNC_KLOOP_EVENTFDS: u32 = 2;
    /// Cursors in blocks of the program (CSB).
    pub const CSB: u32 = 3;
    /// Mode of a sync loop.
    pub const SYNC_KLOOP_MODE: u32 = 4;
    /// Frames that start at an offset in their buffers.
    pub const OFFSETS: u32 = 5;
    /// The first unused number.
    pub const MAX: u32 = 6;
}

/// `nr_mode`.
pub mod mode {
    /// All pairs of NIC rings.
    pub const ALL_NIC: u32 = 1;
    /// All pairs of host rings.
    pub const SW: u32 = 2;
    /// Both.
    pub const NIC_SW: u32 = 3;
    /// One pair of NIC rings.
    pub const ONE_NIC: u32 = 4;
    /// Legacy: a pipe's `{` end.
    pub const PIPE_MASTER: u32 = 5;
    /// Legacy: a pipe's `}` end.
    pub const PIPE_SLAVE: u32 = 6;
    /// No port: only rings and buffers in an existing region.
    pub const NULL: u32 = 7;
    /// One pair of host rings.
    pub const ONE_SW: u32 = 8;
}

/// `nr_flags`.
pub mod flags {
    /// Monitors what the port sends.
    pub const MONITOR_TX: u64 = 0x100;
    /// Monitors what the port receives.
    pub const MONITOR_RX: u64 = 0x200;
    /// Monitors without copying: gets the buffers themselves.
    pub const ZCOPY_MON: u64 = 0x400;
    /// No other descriptor may bind these rings.
    pub const EXCLUSIVE: u64 = 0x800;
    /// No send rings.
    pub const RX_RINGS_ONLY: u64 = 0x2000;
    /// No receive rings.
    pub const TX_RINGS_ONLY: u64 = 0x4000;
    /// The program knows virtio-net headers.
    pub const ACCEPT_VNET_HDR: u64 = 0x8000;
    /// Has no effect.
    pub const DO_RX_POLL: u64 = 0x1_0000;
    /// `poll` sends only when asked for `POLLOUT`.
    pub const NO_TX_POLL: u64 = 0x2_0000;
}

/// Length of a name in the new interface, in bytes.
pub const NAME: usize = 64;

/// `struct nmreq_header`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    /// `nr_version`.
    pub version: u16,
    /// `nr_reqtype`.
    pub reqtype: u16,
    /// Zero.
    pub reserved: u32,
    /// `nr_name`.
    pub name: [u8; NAME],
    /// Address of the first option.
    pub options: u64,
    /// Address of the body.
    pub body: u64,
}

/// `struct nmreq_option`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OptionHeader {
    /// Address of the next one.
    pub next: u64,
    /// [`option`].
    pub reqtype: u32,
    /// 0, or an error number.
    pub status: u32,
    /// Size in bytes, for options without a fixed size.
    pub size: u64,
}

/// `struct nmreq_register`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Register {
    /// Offset of the `netmap_if` in the region.
    pub offset: u64,
    /// Bytes of the region.
    pub memsize: u64,
    /// Slots of a send ring.
    pub tx_slots: u32,
    /// Slots of a receive ring.
    pub rx_slots: u32,
    /// Send rings.
    pub tx_rings: u16,
    /// Receive rings.
    pub rx_rings: u16,
    /// Host send rings.
    pub host_tx_rings: u16,
    /// Host receive rings.
    pub host_rx_rings: u16,
    /// The region.
    pub mem_id: u16,
    /// Which ring.
    pub ringid: u16,
    /// [`mode`].
    pub mode: u32,
    /// Buffers in no ring.
    pub extra_bufs: u32,
    /// Padding, as in the C structure.
    pub pad: u32,
    /// [`flags`].
    pub flags: u64,
}

/// `struct nmreq_port_info_get`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PortInfo {
    /// Bytes of the region.
    pub memsize: u64,
    /// Slots of a send ring.
    pub tx_slots: u32,
    /// Slots of a receive ring.
    pub rx_slots: u32,
    /// Send rings.
    pub tx_rings: u16,
    /// Receive rings.
    pub rx_rings: u16,
    /// Host send rings.
    pub host_tx_rings: u16,
    /// Host receive rings.
    pub host_rx_rings: u16,
    /// The region.
    pub mem_id: u16,
    /// Padding.
    pub pad: [u16; 3],
}

/// `struct nmreq_vale_attach`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ValeAttach {
    /// How to bind the port.
    pub register: Register,
    /// Out: number of the port in its switch.
    pub port_index: u32,
    /// Padding.
    pub pad: u32,
}

/// `struct nmreq_vale_detach`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ValeDetach {
    /// Out: number of the port in its switch.
    pub port_index: u32,
    /// Padding.
    pub pad: u32,
}

/// `struct nmreq_vale_list`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ValeList {
    /// Number of the switch.
    pub bridge: u16,
    /// Padding.
    pub pad: u16,
    /// Number of the port in its switch.
    pub port: u32,
}

/// `struct nmreq_port_hdr`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PortHeader {
    /// 0, 10 or 12.
    pub len: u32,
    /// Padding.
    pub pad: u32,
}

/// `struct nmreq_vale_newif`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ValeNewif {
    /// Slots of a send ring.
    pub tx_slots: u32,
    /// Slots of a receive ring.
    pub rx_slots: u32,
    /// Send rings.
    pub tx_rings: u16,
    /// Receive rings.
    pub rx_rings: u16,
    /// The region.
    pub mem_id: u16,
    /// Padding.
    pub pad: u16,
}

/// `struct nmreq_vale_polling`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ValePolling {
    /// One of [`polling`].
    pub mode: u32,
    /// The first CPU, and with [`polling::MULTI_CPU`] also the first receive ring.
    pub first_cpu: u32,
    /// How many CPUs.
    pub cpus: u32,
    /// Padding.
    pub pad: u32,
}

/// `nr_mode` of [`ValePolling`].
pub mod polling {
    /// One CPU polls all rings.
    pub const SINGLE_CPU: u32 = 1;
    /// Each CPU polls the ring of its number.
    pub const MULTI_CPU: u32 = 2;
}

/// `struct nmreq_pools_info`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct PoolsInfo {
    /// Bytes of the region.
    pub memsize: u64,
    /// The region.
    pub mem_id: u16,
    /// Padding.
    pub pad: [u16; 3],
    /// Where interfaces start.
    pub if_offset: u64,
    /// The number of interfaces.
    pub if_total: u32,
    /// Bytes of one interface.
    pub if_size: u32,
    /// Where rings start.
    pub ring_offset: u64,
    /// The number of rings.
    pub ring_total: u32,
    /// Bytes of one ring.
    pub ring_size: u32,
    /// Where buffers start.
    pub buf_offset: u64,
    /// The number of buffers.
    pub buf_total: u32,
    /// Bytes of one buffer.
    pub buf_size: u32,
}

/// Body of the offsets option, after its header.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Offsets {
    /// The largest offset.
    pub max: u64,
    /// The initial offset.
    pub initial: u64,
    /// Number of bits of `ptr` that hold the offset; 0 for all.
    pub bits: u32,
    /// Alignment of what is sent.
    pub tx_align: u32,
    /// Least room behind a frame.
    pub min_gap: u64,
}

/// `struct nmreq` of the legacy interface.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Legacy {
    /// `nr_name`.
    pub name: [u8; 16],
    /// `nr_version`.
    pub version: u32,
    /// Offset of the `netmap_if` in the region.
    pub offset: u32,
    /// Bytes of the region.
    pub memsize: u32,
    /// Slots of a send ring.
    pub tx_slots: u32,
    /// Slots of a receive ring.
    pub rx_slots: u32,
    /// Send rings.
    pub tx_rings: u16,
    /// Receive rings.
    pub rx_rings: u16,
    /// Ring number, and flags of the oldest interface.
    pub ringid: u16,
    /// The command.
    pub cmd: u16,
    /// Depends on `cmd`.
    pub arg1: u16,
    /// The region.
    pub arg2: u16,
    /// Extra buffers.
    pub arg3: u32,
    /// Mode and flags.
    pub flags: u32,
    /// Depends on `cmd`.
    pub spare: u32,
}

const _: () = assert!(size_of::<Header>() == 88);
const _: () = assert!(size_of::<OptionHeader>() == 24);
const _: () = assert!(size_of::<Register>() == 56);
const _: () = assert!(size_of::<PortInfo>() == 32);
const _: () = assert!(size_of::<ValeAttach>() == 64);
const _: () = assert!(size_of::<PoolsInfo>() == 64);
const _: () = assert!(size_of::<Offsets>() == 32);
const _: () = assert!(size_of::<Legacy>() == 60);

/// Returns the text up to the first zero byte, or to the end of the array.
#[must_use]
pub fn text(bytes: &[u8]) -> Option<&str> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    std::str::from_utf8(&bytes[..end]).ok()
}

/// Returns a name padded with zeros, truncated so that a zero remains at the end.
#[must_use]
pub fn name_of(text: &str) -> [u8; NAME] {
    let mut name = [0; NAME];
    let len = text.len().min(NAME - 1);
    name[..len].copy_from_slice(&text.as_bytes()[..len]);
    name
}
