//! AF_XDP sockets that a data process gets: bound, with their memory, their rings and the program
//! that hands frames to them.
#![allow(unsafe_code, reason = "no library that is kept well makes AF_XDP sockets")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use dataplane::attach::interface::xdp::TX_METADATA;
use dataplane::config::{Umem, XdpRing};
use host::part::Part;
use rustix::io::Errno;
use shmem::{Memfd, Pages};

use super::super::options::{get_words, set, set_bytes};
use super::bpf;

/// Chunks of each direction.
const CHUNKS: u32 = 2048;
/// Bytes before a frame that arrives (`XDP_PACKET_HEADROOM`).
const RX_HEADROOM: u32 = 256;
/// Bytes that may be on their way out.
const SEND_BUFFER: libc::c_int = 16 << 20;
/// How long a queue may take to be free after its last socket was closed.
const FREED: Duration = Duration::from_secs(2);

/// `linux/if_xdp.h`.
const SOL_XDP: libc::c_int = 283;
const XDP_MMAP_OFFSETS: libc::c_int = 1;
const XDP_RX_RING: libc::c_int = 2;
const XDP_TX_RING: libc::c_int = 3;
const XDP_UMEM_REG: libc::c_int = 4;
const XDP_UMEM_FILL_RING: libc::c_int = 5;
const XDP_UMEM_COMPLETION_RING: libc::c_int = 6;
const XDP_STATISTICS: libc::c_int = 7;
const XDP_OPTIONS: libc::c_int = 8;
const XDP_COPY: u16 = 1 << 1;
const XDP_ZEROCOPY: u16 = 1 << 2;
const XDP_USE_NEED_WAKEUP: u16 = 1 << 3;
const OPTION_ZEROCOPY: u32 = 1;
/// `XDP_UMEM_TX_METADATA_LEN`.
const WITH_METADATA: u32 = 1 << 2;

/// `struct xdp_umem_reg`.
#[repr(C)]
struct Registration {
    at: u64,
    len: u64,
    chunk_size: u32,
    headroom: u32,
    flags: u32,
    tx_metadata_len: u32,
}

/// `struct sockaddr_xdp`.
#[repr(C)]
struct Address {
    family: u16,
    flags: u16,
    ifindex: u32,
    queue: u32,
    shared: u32,
}

/// What reaches an interface by AF_XDP: the memory and rings, and the descriptors in the order of
/// the data process.
pub(super) struct Opened {
    pub umem: Umem,
    pub fds: Vec<OwnedFd>,
}

/// The bytes of chunks for an interface of this MTU; `None` if no chunk is long enough.
pub(super) fn chunk_len(mtu: u32) -> Option<u32> {
    // An Ethernet header and two tags.
    let frame = mtu.saturating_add(14 + 8);
    [2048, 4096].into_iter().find(|chunk| frame <= chunk - RX_HEADROOM)
}

/// The properties of an interface that must be known before it is opened.
#[derive(Clone, Copy)]
pub(super) struct Card {
    /// Its number.
    pub index: u32,
    /// The interface's receive queues, each of which gets a socket.
    pub queues: u16,
    /// Bytes of a chunk.
    pub chunk_len: u32,
}

/// Opens an interface of this thread's namespace, with a map and a link of its own.
/// `natively`: not by generic XDP.
pub(super) fn open(card: Card, natively: bool) -> io::Result<Opened> {
    let map = bpf::socket_map(card.queues.into())?;
    let program = bpf::load(&map)?;
    let native = bpf::link(&program, card.index, bpf::NATIVE);
    let link = match native {
        Err(_) if !natively => bpf::link(&program, card.index, bpf::GENERIC),
        native => native,
    }?;
    open_again(card, map, link)
}

/// Opens an interface again to which a program is attached: each new socket takes the place of an
/// earlier one in the map.
pub(super) fn open_again(card: Card, map: OwnedFd, link: OwnedFd) -> io::Result<Opened> {
    let (umem, mut fds) = sockets(card, map.as_fd())?;
    fds.extend([map, link]);
    Ok(Opened { umem, fds })
}

/// Opens the sockets of all queues. Returns the description of their memory, then the sockets and
/// memory files.
fn sockets(card: Card, map: BorrowedFd<'_>) -> io::Result<(Umem, Vec<OwnedFd>)> {
    let Card { index, queues, chunk_len } = card;
    let (mut sockets, mut memories, mut all) = (Vec::new(), Vec::new(), None::<Umem>);
    for queue in 0..u32::from(queues) {
        let (umem, socket, memory) = socket(index, queue, chunk_len)?;
        bpf::put_socket(map, queue, &socket)?;
        let both = all.get_or_insert(umem);
        both.zero_copy &= umem.zero_copy;
        both.checksum &= umem.checksum;
        sockets.push(socket);
        memories.push(memory);
    }
    sockets.append(&mut memories);
    let umem = all.ok_or(io::ErrorKind::InvalidInput)?;
    Ok((umem, sockets))
}

/// A queue. Zero-copy is tried first. The kernel frees a queue some time after its last socket was
/// closed.
fn socket(index: u32, queue: u32, chunk_len: u32) -> io::Result<(Umem, OwnedFd, OwnedFd)> {
    let memory = Memfd::create("toklat-umem", 2 * (CHUNKS * chunk_len) as usize, Pages::Small);
    let memory = memory.map_err(io::Error::other)?;
    let until = Instant::now() + FREED;
    loop {
        let (socket, mut umem) = unbound(&memory, chunk_len)?;
        let bound = bind(&socket, (index, queue), XDP_ZEROCOPY)
            .or_else(|_| bind(&socket, (index, queue), XDP_COPY));
        match bound {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(2));
            }
            bound => {
                bound?;
                umem.zero_copy = is_zero_copy(&socket)?;
                // The kernel completes checksums when it copies. Cards are not asked.
                umem.checksum &= !umem.zero_copy;
                return Ok((umem, socket, memory.into_fd()));
            }
        }
    }
}

/// Makes a socket that is not bound yet, with its memory and its rings.
fn unbound(memory: &Memfd, chunk_len: u32) -> io::Result<(OwnedFd, Umem)> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: this call takes numbers.
    let socket = unsafe { libc::socket(libc::AF_XDP, kind, 0) };
    if socket == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and nothing else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    let checksum = register(&socket, memory, chunk_len)?;
    for ring in [XDP_UMEM_FILL_RING, XDP_UMEM_COMPLETION_RING, XDP_RX_RING, XDP_TX_RING] {
        set(&socket, SOL_XDP, ring, CHUNKS.cast_signed())?;
    }
    let _ = set(&socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER)
        .or_else(|_| set(&socket, libc::SOL_SOCKET, libc::SO_SNDBUF, SEND_BUFFER));
    let rings = offsets(&socket)?;
    Ok((socket, Umem { chunks: CHUNKS, chunk_len, rings, zero_copy: false, checksum }))
}

/// Registers a socket's memory. The kernel pins its pages, so it need not stay mapped here. Returns
/// whether frames that leave may ask for their checksum (since Linux 6.8).
fn register(socket: &OwnedFd, memory: &Memfd, chunk_len: u32) -> io::Result<bool> {
    let mapping = memory.map().map_err(io::Error::other)?;
    let mut registration = Registration {
        at: mapping.address() as u64,
        len: mapping.len() as u64,
        chunk_size: chunk_len,
        headroom: 0,
        flags: WITH_METADATA,
        tx_metadata_len: TX_METADATA,
    };
    match set_bytes(socket, SOL_XDP, XDP_UMEM_REG, &registration) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            (registration.flags, registration.tx_metadata_len) = (0, 0);
            set_bytes(socket, SOL_XDP, XDP_UMEM_REG, &registration)?;
            Ok(false)
        }
        registered => registered.map(|()| true),
    }
}

fn bind(socket: &OwnedFd, (ifindex, queue): (u32, u32), how: u16) -> io::Result<()> {
    let (family, flags) = (libc::AF_XDP as u16, how | XDP_USE_NEED_WAKEUP);
    let address = Address { family, flags, ifindex, queue, shared: 0 };
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address lives during the call, and `len` is its length.
    match unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Where the kernel has put the words of the rings: receive, transmit, fill, completion.
fn offsets(socket: &OwnedFd) -> io::Result<[XdpRing; 4]> {
    let words = get_words::<32>(socket, SOL_XDP, XDP_MMAP_OFFSETS)?;
    let word = |at: usize| u64::from(words[2 * at]) | u64::from(words[2 * at + 1]) << 32;
    Ok(std::array::from_fn(|ring| {
        let [producer, consumer, entries, flags] = std::array::from_fn(|at| word(4 * ring + at));
        XdpRing { producer, consumer, entries, flags }
    }))
}

fn is_zero_copy(socket: &OwnedFd) -> io::Result<bool> {
    let [options] = get_words(socket, SOL_XDP, XDP_OPTIONS)?;
    Ok(options & OPTION_ZEROCOPY != 0)
}

/// Frames that a socket lost, because its ring was full or no memory was free.
pub(super) fn lost(socket: impl AsFd) -> u64 {
    let words = get_words::<12>(socket, SOL_XDP, XDP_STATISTICS).unwrap_or_default();
    // struct xdp_statistics: dropped, ..., ring full, fill ring empty.
    [0, 3, 4].iter().map(|at| u64::from(words[2 * at])).sum()
}

/// How many receive queues interface `ifname` has, each of which needs a socket: 1 if it does not
/// say.
pub(super) fn receive_queues(ifname: &str) -> u32 {
    super::ethtool::channels(ifname).unwrap_or(1).max(1)
}

/// The reason why AF_XDP cannot be used, in words.
pub(super) fn refusal(error: &io::Error) -> String {
    match Errno::from_io_error(error) {
        Some(Errno::PERM | Errno::ACCESS) => {
            let needs = "it needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF";
            format!("{error} ({})", Part::Interfaces.remedy(error, needs))
        }
        Some(Errno::AFNOSUPPORT) => {
            let needs = "the kernel has no AF_XDP";
            format!("{needs}, or {}", Part::Interfaces.remedy(error, needs))
        }
        _ => error.to_string(),
    }
}
