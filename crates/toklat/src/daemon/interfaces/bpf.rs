//! bpf(2), without a library: a map of AF_XDP sockets, the program that hands frames to them, the
//! programs between an interface and its host, and what attaches them: links, or an array that
//! filters jump into (`linux/bpf.h`).
#![allow(unsafe_code, reason = "bpf(2) takes pointers")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Commands.
const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE: libc::c_int = 2;
const PROG_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;
/// `BPF_MAP_TYPE_PROG_ARRAY`, `BPF_MAP_TYPE_XSKMAP`, `BPF_PROG_TYPE_XDP`, `BPF_XDP`.
const PROGRAMS: u32 = 3;
const XSKMAP: u32 = 17;
const XDP_PROGRAM: u32 = 6;
const ATTACHED: u32 = 37;
/// `BPF_PROG_TYPE_SCHED_CLS`, `BPF_TCX_INGRESS`, `BPF_TCX_EGRESS`.
const TC_PROGRAM: u32 = 3;
const INGRESS: u32 = 46;
const EGRESS: u32 = 47;
/// `BPF_F_BEFORE`: the program runs before all others at its place.
const FIRST: u32 = 1 << 3;
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
    put(map, queue, socket)
}

/// Puts a descriptor into a map, in place of an earlier one.
fn put(map: BorrowedFd<'_>, key: u32, value: &OwnedFd) -> io::Result<()> {
    #[repr(C)]
    struct Update {
        map: u32,
        pad: u32,
        key: *const u32,
        value: *const u32,
        flags: u64,
    }
    let value = value.as_raw_fd().cast_unsigned();
    let map = map.as_raw_fd().cast_unsigned();
    bpf(MAP_UPDATE, &Update { map, pad: 0, key: &raw const key, value: &raw const value, flags: 0 })
        .map(drop)
}

/// The mark of frames that a switch sends to the host. The mark leads them past the interface's
/// port and is taken off before the host's stack gets them.
pub(super) const FROM_SWITCH: i32 = 0x746b_6c74;
/// `TCX_NEXT`, `TCX_DROP`: `TC_ACT_UNSPEC`, `TC_ACT_SHOT` where filters run.
const NEXT: i32 = -1;
const TC_DROP: i32 = 2;
/// `PACKET_LOOPBACK`: what the host sends to itself and other listeners on the interface.
const LOOPED: i32 = 5;
/// `BPF_F_INGRESS`.
const TO_INGRESS: i32 = 1;
/// Where `struct __sk_buff` has the kind of packet and the mark.
const PACKET_KIND: i16 = 4;
const MARK: i16 = 8;

/// Loads the program that hands frames to AF_XDP sockets:
/// `return bpf_redirect_map(map, ctx->rx_queue_index, XDP_DROP)`.
pub(super) fn load(map: &OwnedFd) -> io::Result<OwnedFd> {
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
    load_program(XDP_PROGRAM, &program)
}

/// A program of a host's end of an interface, and where it runs.
#[derive(Debug)]
pub(super) struct HostProgram {
    program: OwnedFd,
    /// The number of the interface.
    pub at: u32,
    /// It sees what arrives at the interface, not what leaves it.
    pub ingress: bool,
}

/// Loads the programs of a host's end of an interface, in the order in which they are attached: the
/// host's end works before the host is moved to it.
///
/// - `tap`, ingress: `ctx->mark = FROM_SWITCH; return bpf_redirect(interface, BPF_F_INGRESS)`
/// - `interface`, ingress: what has the mark goes on without it. What the host has sent to itself
///   goes on. All else came from the wire and is dropped: it is the business of the wire's port.
/// - `interface`, egress: `return bpf_redirect(tap, 0)`
pub(super) fn host_programs(interface: u32, tap: u32) -> io::Result<[HostProgram; 3]> {
    let redirect = |to: u32, flags: i32| {
        [
            step(0xb7, (1, 0), 0, to.cast_signed()),
            step(0xb7, (2, 0), 0, flags),
            // bpf_redirect
            step(0x85, (0, 0), 0, 23),
            step(0x95, (0, 0), 0, 0),
        ]
    };
    let mark = [step(0xb7, (2, 0), 0, FROM_SWITCH), step(0x63, (1, 2), MARK, 0)];
    let inject = [&mark[..], &redirect(interface, TO_INGRESS)].concat();
    let gate = [
        step(0x61, (2, 1), MARK, 0),
        step(0x55, (2, 0), 4, FROM_SWITCH),
        step(0xb7, (2, 0), 0, 0),
        step(0x63, (1, 2), MARK, 0),
        step(0xb7, (0, 0), 0, NEXT),
        step(0x95, (0, 0), 0, 0),
        step(0x61, (2, 1), PACKET_KIND, 0),
        step(0xb7, (0, 0), 0, NEXT),
        step(0x15, (2, 0), 1, LOOPED),
        step(0xb7, (0, 0), 0, TC_DROP),
        step(0x95, (0, 0), 0, 0),
    ];
    let load = |steps: &[Step], at: u32, ingress: bool| {
        load_program(TC_PROGRAM, steps).map(|program| HostProgram { program, at, ingress })
    };
    Ok([
        load(&inject, tap, true)?,
        load(&gate, interface, true)?,
        load(&redirect(tap, 0), interface, false)?,
    ])
}

/// Attaches a program before all others of its place by tcx, until the link is closed by all that
/// hold it.
///
/// # Errors
/// The kernel's error; `EINVAL` before Linux 6.6.
pub(super) fn link_host(program: &HostProgram) -> io::Result<OwnedFd> {
    let place = if program.ingress { INGRESS } else { EGRESS };
    let number = program.program.as_raw_fd().cast_unsigned();
    // The attributes are the program, the interface, the place, the order among programs, the
    // program to be before (none), padding, and an expected revision (none).
    bpf_fd(LINK_CREATE, &[number, program.at, place, FIRST, 0, 0, 0, 0])
}

/// Makes an array for programs. The kernel empties it when all that hold the descriptor have closed
/// it, whatever else still refers to the array.
pub(super) fn program_array(programs: &[HostProgram]) -> io::Result<OwnedFd> {
    bpf_fd(MAP_CREATE, &[PROGRAMS, 4, 4, programs.len() as u32, 0])
}

/// Puts programs into an array, in their order.
pub(super) fn fill(array: &OwnedFd, programs: &[HostProgram]) -> io::Result<()> {
    let mut all = (0..).zip(programs);
    all.try_for_each(|(place, program)| put(array.as_fd(), place, &program.program))
}

/// Loads a program that runs the one at a place of an array, and has packets pass while there is
/// none: `bpf_tail_call(ctx, array, place); return TC_ACT_UNSPEC`.
pub(super) fn jump(array: &OwnedFd, place: u32) -> io::Result<OwnedFd> {
    let program = [
        // r2 = the array, in two steps
        step(0x18, (2, 1), 0, array.as_raw_fd()),
        step(0, (0, 0), 0, 0),
        step(0xb7, (3, 0), 0, place.cast_signed()),
        // bpf_tail_call
        step(0x85, (0, 0), 0, 12),
        step(0xb7, (0, 0), 0, NEXT),
        step(0x95, (0, 0), 0, 0),
    ];
    load_program(TC_PROGRAM, &program)
}

fn load_program(kind: u32, program: &[Step]) -> io::Result<OwnedFd> {
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
    let mut name = [0; 16];
    name[..6].copy_from_slice(b"toklat");
    let load = Load {
        kind,
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
