//! bpf(2), without a library: a map of AF_XDP sockets, the program that hands frames to them, and
//! the link that attaches it (`linux/bpf.h`).
#![allow(unsafe_code, reason = "bpf(2) takes pointers")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Commands.
const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE: libc::c_int = 2;
const PROG_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;
/// `BPF_MAP_TYPE_XSKMAP`, `BPF_PROG_TYPE_XDP`, `BPF_XDP`.
const XSKMAP: u32 = 17;
const PROGRAM: u32 = 6;
const ATTACHED: u32 = 37;
/// `XDP_FLAGS_SKB_MODE`, `XDP_FLAGS_DRV_MODE`.
pub(super) const GENERIC: u32 = 1 << 1;
pub(super) const NATIVE: u32 = 1 << 2;
/// `XDP_DROP`: frames for which there is no socket are not passed to the host either.
const DROP: i32 = 1;

/// An instruction (`struct bpf_insn`).
#[derive(Clone, Copy)]
#[repr(C)]
struct Step {
    code: u8,
    /// The destination register, and the source register in the upper half.
    registers: u8,
    offset: i16,
    value: i32,
}

const fn step(code: u8, (to, from): (u8, u8), offset: i16, value: i32) -> Step {
    Step { code, registers: to | from << 4, offset, value }
}

/// Sends a command; `attributes` is the part of `union bpf_attr` that it reads.
fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<libc::c_long> {
    let (at, len) = (std::ptr::from_ref(attributes), size_of::<T>());
    // SAFETY: the kernel reads `len` bytes there, and what its pointers lead to, during the call.
    match unsafe { libc::syscall(libc::SYS_bpf, command, at, len) } {
        -1 => Err(io::Error::last_os_error()),
        done => Ok(done),
    }
}

fn bpf_fd<T>(command: libc::c_int, attributes: &T) -> io::Result<OwnedFd> {
    let fd = bpf(command, attributes)?;
    let fd = libc::c_int::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: these commands return a new descriptor, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes a map for the sockets of this many queues.
pub(super) fn socket_map(queues: u32) -> io::Result<OwnedFd> {
    // The attributes are the map's type, bytes of a key, bytes of a value, entries, and flags.
    bpf_fd(MAP_CREATE, &[XSKMAP, 4, 4, queues, 0])
}

/// Has the program hand the frames of a queue to a socket, in place of an earlier one.
pub(super) fn put_socket(map: BorrowedFd<'_>, queue: u32, socket: &OwnedFd) -> io::Result<()> {
    #[repr(C)]
    struct Update {
        map: u32,
        pad: u32,
        key: *const u32,
        value: *const u32,
        flags: u64,
    }
    let value = socket.as_raw_fd().cast_unsigned();
    let map = map.as_raw_fd().cast_unsigned();
    bpf(
        MAP_UPDATE,
        &Update { map, pad: 0, key: &raw const queue, value: &raw const value, flags: 0 },
    )
    .map(drop)
}

/// Loads the program: `return bpf_redirect_map(map, ctx->rx_queue_index, XDP_DROP)`.
pub(super) fn load(map: &OwnedFd) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Load {
        kind: u32,
        steps: u32,
        program: *const Step,
        license: *const u8,
        log_level: u32,
        log_size: u32,
        log: u64,
        kernel: u32,
        flags: u32,
        name: [u8; 16],
    }
    let program = [
        // r2 = the queue's number
        step(0x61, (2, 1), 16, 0),
        // r1 = the map, in two steps
        step(0x18, (1, 1), 0, map.as_raw_fd()),
        step(0, (0, 0), 0, 0),
        // r3 = the action if there is no socket
        step(0xb7, (3, 0), 0, DROP),
        // bpf_redirect_map
        step(0x85, (0, 0), 0, 51),
        step(0x95, (0, 0), 0, 0),
    ];
    let mut name = [0; 16];
    name[..6].copy_from_slice(b"toklat");
    let load = Load {
        kind: PROGRAM,
        steps: program.len() as u32,
        program: program.as_ptr(),
        license: c"Dual MIT/GPL".as_ptr().cast(),
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel: 0,
        flags: 0,
        name,
    };
    bpf_fd(PROG_LOAD, &load)
}

/// Attaches a program to interface number `index` of this thread's namespace, until the link is
/// closed by all that hold it.
pub(super) fn link(program: &OwnedFd, index: u32, how: u32) -> io::Result<OwnedFd> {
    // The attributes are the program, the interface, the place to attach, and the mode.
    bpf_fd(LINK_CREATE, &[program.as_raw_fd().cast_unsigned(), index, ATTACHED, how])
}
