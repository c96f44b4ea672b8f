//! Packet sockets (packet(7)) that a data process gets: bound, with their rings and options set.
#![allow(unsafe_code, reason = "no library makes packet sockets")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use dataplane::config::{Engine, PacketRings};

use super::super::options::{get, get_words, set, set_bytes};
use super::bpf::FROM_SWITCH;

/// Bytes of frames that may wait in the kernel to be sent.
const SEND_BUFFER: libc::c_int = 16 << 20;
/// How long a block waits for more frames, in milliseconds. The kernel knows no shorter time.
const RETIRE_MS: u32 = 1;
/// Bytes by which the kernel counts room for frames; those of `TPACKET_V3` are not that long.
const FRAME: u32 = 2048;

/// `linux/if_packet.h`; libc does not name all of them.
const PACKET_ADD_MEMBERSHIP: libc::c_int = 1;
const PACKET_RX_RING: libc::c_int = 5;
const PACKET_STATISTICS: libc::c_int = 6;
const PACKET_VERSION: libc::c_int = 10;
const PACKET_VNET_HDR: libc::c_int = 15;
const PACKET_FANOUT: libc::c_int = 18;
const PACKET_QDISC_BYPASS: libc::c_int = 20;
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
const TPACKET_V3: libc::c_int = 2;
const PACKET_MR_PROMISC: u16 = 1;
/// Flows keep to one queue; the kernel chooses a number that no other group has.
const FANOUT_HASH: libc::c_int = 0;
const FANOUT_UNIQUE: libc::c_int = 0x2000;

/// `struct tpacket_req3`.
#[repr(C)]
struct RingRequest {
    block_size: u32,
    block_nr: u32,
    frame_size: u32,
    frame_nr: u32,
    retire_ms: u32,
    private: u32,
    features: u32,
}

/// `struct packet_mreq`.
#[repr(C)]
struct Membership {
    ifindex: libc::c_int,
    kind: u16,
    alen: u16,
    address: [u8; 8],
}

/// Opens the queues of interface number `index` of this thread's namespace.
pub(super) fn open(index: u32, queues: u16) -> io::Result<(Engine, Vec<OwnedFd>)> {
    let rings = PacketRings { uso: knows_udp_segmentation(), ..PacketRings::DEFAULT };
    let sockets = (0..queues).map(|_| socket(index, rings)).collect::<io::Result<Vec<_>>>()?;
    if let [first, others @ ..] = &sockets[..]
        && !others.is_empty()
    {
        set(first, libc::SOL_PACKET, PACKET_FANOUT, group_of(0, FANOUT_HASH | FANOUT_UNIQUE))?;
        // The answer holds the group's number and its kind.
        let group = get(first, libc::SOL_PACKET, PACKET_FANOUT)?;
        let group = group_of(group & 0xffff, FANOUT_HASH);
        others.iter().try_for_each(|other| set(other, libc::SOL_PACKET, PACKET_FANOUT, group))?;
    }
    Ok((Engine::Packet(rings), sockets))
}

const fn group_of(number: libc::c_int, kind: libc::c_int) -> libc::c_int {
    number | kind << 16
}

/// A queue: it receives all frames of the interface but those that leave, and sends past queueing
/// disciplines. While it is open, the interface is promiscuous.
fn socket(index: u32, rings: PacketRings) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // Without a protocol it receives nothing until it is bound.
    // SAFETY: this call takes numbers.
    let socket = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if socket == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and nothing else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    let level = libc::SOL_PACKET;
    set(&socket, level, PACKET_VERSION, TPACKET_V3)?;
    set(&socket, level, PACKET_VNET_HDR, 1)?;
    set(&socket, level, PACKET_QDISC_BYPASS, 1)?;
    set(&socket, level, PACKET_IGNORE_OUTGOING, 1)?;
    let _ = set(&socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER)
        .or_else(|_| set(&socket, libc::SOL_SOCKET, libc::SO_SNDBUF, SEND_BUFFER));
    let request = RingRequest {
        block_size: rings.block_len,
        block_nr: rings.blocks,
        frame_size: FRAME,
        frame_nr: rings.blocks * (rings.block_len / FRAME),
        retire_ms: RETIRE_MS,
        private: 0,
        features: 0,
    };
    set_bytes(&socket, level, PACKET_RX_RING, &request)?;
    pass_by(&socket)?;
    bind(&socket, index)?;
    let ifindex = index.cast_signed();
    let membership = Membership { ifindex, kind: PACKET_MR_PROMISC, alen: 0, address: [0; 8] };
    set_bytes(&socket, level, PACKET_ADD_MEMBERSHIP, &membership)?;
    Ok(socket)
}

/// Has a socket receive nothing of what a switch sends to the host behind the interface.
fn pass_by(socket: &OwnedFd) -> io::Result<()> {
    const MARK: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_MARK).cast_unsigned();
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, MARK),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, FROM_SWITCH.cast_unsigned()),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    set_bytes(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)
}

fn bind(socket: &OwnedFd, index: u32) -> io::Result<()> {
    // SAFETY: an address of zeros is a valid one.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index.cast_signed();
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address lives during the call, and `len` is its length.
    match unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// True if the kernel accepts UDP segmentation requests (since Linux 6.2).
fn knows_udp_segmentation() -> bool {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(2))
}

/// Frames that a socket lost since the last call, because its ring was full.
pub(super) fn lost(socket: impl AsFd) -> u64 {
    // struct tpacket_stats_v3: frames, drops, freezes.
    let [_, lost, _] = get_words(socket, libc::SOL_PACKET, PACKET_STATISTICS).unwrap_or_default();
    lost.into()
}
