//! Frames: lends slots to fill, and received frames to read.

use std::ffi::{c_int, c_uint, c_void};
use std::slice;

use frame::Offload;
use netring::Received;
use netring::layout::{MAX_FRAGS, MAX_SEGMENTED};
use shmem::Bytes;

use crate::failure::Failure;
use crate::handle::{Handle, enter, number};

/// `struct toklat_slot`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Slot {
    data: *mut c_void,
    capacity: u32,
    length: u32,
    flags: u32,
    unused: u32,
}

/// `struct toklat_frame`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Frame {
    data: *const c_void,
    length: u32,
    slots: u32,
}

/// `struct toklat_offload`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Request {
    flags: u8,
    gso_type: u8,
    gso_size: u16,
    checksum_start: u16,
    checksum_offset: u16,
}

const _: () = assert!(size_of::<Slot>() == 24 && size_of::<Frame>() == 16);
const _: () = assert!(size_of::<Request>() == 8);

impl Request {
    /// # Safety
    /// `at` is null, or a request.
    unsafe fn read(at: *const Self) -> Offload {
        // SAFETY: the caller keeps this function's contract.
        let Some(request) = (unsafe { at.as_ref() }) else { return Offload::NONE };
        let Self { flags, gso_type, gso_size, checksum_start, checksum_offset } = *request;
        Offload { flags, gso_type, header_len: 0, gso_size, checksum_start, checksum_offset }
    }
}

impl From<Offload> for Request {
    fn from(offload: Offload) -> Self {
        let Offload { flags, gso_type, gso_size, checksum_start, checksum_offset, .. } = offload;
        Self { flags, gso_type, gso_size, checksum_start, checksum_offset }
    }
}

/// `TOKLAT_MORE`.
const MORE: u32 = 1;

const NO_ARRAY: Failure = Failure::invalid(c"The array is null");
const NO_QUEUE: Failure = Failure::invalid(c"The port has no queue of this number");
const NOT_RESERVED: Failure =
    Failure::invalid(c"The slots are not those that toklat_reserve lent last on this queue");
const BAD_LENGTH: Failure =
    Failure::invalid(c"A slot's length is 0 or above its capacity, or its flags are unknown");
const UNFINISHED: Failure =
    Failure::invalid(c"The last slot has TOKLAT_MORE: commit all slots of a frame at once");
const TOO_LONG: Failure = Failure::new(
    libc::EMSGSIZE,
    c"The frame is longer than toklat_max_frame, or has too many slots",
);

const NOT_CARRIED: Failure = Failure::new(
    libc::EOPNOTSUPP,
    c"The port does not carry the offload request; toklat_offloads says which it does",
);
const ONE_FRAME: Failure =
    Failure::invalid(c"The slots are several frames; a request is of one frame");

/// See toklat.h.
///
/// # Safety
/// As toklat.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toklat_offloads(port: *mut Handle) -> c_int {
    // SAFETY: the caller keeps this function's contract.
    unsafe { enter(port, |handle| Ok(c_int::from(handle.port.offloads().bits()))) }
}

/// Returns the maximum length of a frame with this offload request.
fn longest(handle: &mut Handle, offload: &Offload) -> Result<usize, Failure> {
    if !handle.port.offloads().takes(offload) {
        return Err(NOT_CARRIED);
    }
    Ok(if offload.is_segmented() { MAX_SEGMENTED as usize } else { handle.max_frame() })
}

/// See toklat.h.
///
/// # Safety
/// As toklat.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toklat_reserve(
    port: *mut Handle,
    queue: c_uint,
    slots: *mut Slot,
    count: c_uint,
) -> c_int {
    let reserve = |handle: &mut Handle| {
        let queue = queue as usize;
        let reserved = handle.reserved.get_mut(queue).ok_or(NO_QUEUE)?;
        *reserved = 0;
        if slots.is_null() {
            return Err(NO_ARRAY);
        }
        let out = handle.port.queue(queue).send(count as usize);
        while *reserved < count as usize
            && let Some(window) = out.window(*reserved)
        {
            let (data, capacity) = (window.as_ptr().cast(), window.len() as u32);
            let slot = Slot { data, capacity, length: 0, flags: 0, unused: 0 };
            // SAFETY: the caller passes `count` writable slots.
            unsafe { slots.add(*reserved).write(slot) };
            *reserved += 1;
        }
        Ok(number(*reserved))
    };
    // SAFETY: the caller keeps this function's contract.
    unsafe { enter(port, reserve) }
}

/// See toklat.h.
///
/// # Safety
/// As toklat.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toklat_commit(
    port: *mut Handle,
    queue: c_uint,
    slots: *const Slot,
    count: c_uint,
) -> c_int {
    // SAFETY: the caller keeps this function's contract.
    unsafe { enter(port, |handle| commit(handle, queue, slots, count, None)) }
}

/// See toklat.h.
///
/// # Safety
/// As toklat.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toklat_commit_offload(
    port: *mut Handle,
    queue: c_uint,
    slots: *const Slot,
    count: c_uint,
    offload: *const Request,
) -> c_int {
    // SAFETY: the caller keeps this function's contract.
    unsafe {
        let offload = Request::read(offload);
        enter(port, |handle| commit(handle, queue, slots, count, Some(offload)))
    }
}

/// Sends reserved slots: frames, or one frame with a request.
///
/// # Safety
/// `slots` is null, or has `count` readable slots that no thread writes to meanwhile.
unsafe fn commit(
    handle: &mut Handle,
    queue: c_uint,
    slots: *const Slot,
    count: c_uint,
    offload: Option<Offload>,
) -> Result<c_int, Failure> {
    let (queue, count) = (queue as usize, count as usize);
    let reserved = *handle.reserved.get(queue).ok_or(NO_QUEUE)?;
    if count > reserved {
        return Err(NOT_RESERVED);
    }
    if slots.is_null() {
        return Err(NO_ARRAY);
    }
    // SAFETY: the caller keeps this function's contract.
    let slots = unsafe { slice::from_raw_parts(slots, count) };
    let request = offload.unwrap_or(Offload::NONE);
    let frames = check(slots, longest(handle, &request)?)?;
    if offload.is_some() && frames != 1 {
        return Err(ONE_FRAME);
    }
    fill(handle, queue, slots, request)?;
    handle.reserved[queue] -= count;
    handle.stats.sent_frames += frames;
    handle.stats.sent_bytes += slots.iter().map(|slot| u64::from(slot.length)).sum::<u64>();
    Ok(0)
}

/// Returns the number of frames in the slots, if all of them can be sent.
fn check(slots: &[Slot], max_frame: usize) -> Result<u64, Failure> {
    let (mut frames, mut pieces, mut bytes) = (0, 0, 0);
    for slot in slots {
        if slot.length == 0 || slot.length > slot.capacity || slot.flags & !MORE != 0 {
            return Err(BAD_LENGTH);
        }
        (pieces, bytes) = (pieces + 1, bytes + slot.length as usize);
        if pieces > MAX_FRAGS || bytes > max_frame {
            return Err(TOO_LONG);
        }
        if slot.flags & MORE == 0 {
            (frames, pieces, bytes) = (frames + 1, 0, 0);
        }
    }
    if pieces > 0 { Err(UNFINISHED) } else { Ok(frames) }
}

/// Sets the lengths of the next free slots, if the program passes exactly those slots.
fn fill(
    handle: &mut Handle,
    queue: usize,
    slots: &[Slot],
    offload: Offload,
) -> Result<(), Failure> {
    let mut out = handle.port.queue(queue).send(slots.len());
    let is_lent = |(at, slot): (usize, &Slot)| {
        out.window(at).is_some_and(|window| {
            window.as_ptr() == slot.data.cast() && window.len() >= slot.length as usize
        })
    };
    if !slots.iter().enumerate().all(is_lent) {
        return Err(NOT_RESERVED);
    }
    for (i, slot) in slots.iter().enumerate() {
        if let Some(mut free) = out.slot() {
            free.set_len(slot.length as usize);
            free.set_more(slot.flags & MORE != 0);
            if i == 0 {
                free.set_offload(offload);
            }
        }
    }
    Ok(())
}

/// See toklat.h.
///
/// # Safety
/// As toklat.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toklat_push(
    port: *mut Handle,
    queue: c_uint,
    frame: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: the caller keeps this function's contract.
    unsafe { enter(port, |handle| push_any(handle, queue, frame, length, Offload::NONE)) }
}

/// See toklat.h.
///
/// # Safety
/// As toklat.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toklat_push_offload(
    port: *mut Handle,
    queue: c_uint,
    frame: *const c_void,
    length: usize,
    offload: *const Request,
) -> c_int {
    // SAFETY: the caller keeps this function's contract.
    unsafe {
        let offload = Request::read(offload);
        enter(port, |handle| push_any(handle, queue, frame, length, offload))
    }
}

/// Sends a copy of a frame, with an offload request.
///
/// # Safety
/// `frame` is null, or has `length` readable bytes.
unsafe fn push_any(
    handle: &mut Handle,
    queue: c_uint,
    frame: *const c_void,
    length: usize,
    offload: Offload,
) -> Result<c_int, Failure> {
    let queue = queue as usize;
    *handle.reserved.get_mut(queue).ok_or(NO_QUEUE)? = 0;
    if frame.is_null() || length == 0 {
        return Err(Failure::invalid(c"The frame is null or has no bytes"));
    }
    // SAFETY: the caller keeps this function's contract. The bytes may be a received frame's, which
    // others write to, so they are a window; it is only read.
    let frame = unsafe { Bytes::from_raw(frame.cast_mut().cast(), length) };
    push(handle, queue, frame, offload)?;
    handle.stats.sent_frames += 1;
    handle.stats.sent_bytes += length as u64;
    Ok(0)
}

fn push(
    handle: &mut Handle,
    queue: usize,
    frame: Bytes<'_>,
    offload: Offload,
) -> Result<(), Failure> {
    const FULL: Failure = Failure::new(
        libc::EAGAIN,
        c"There is no room in the ring; call toklat_flush, and toklat_wait for TOKLAT_WRITE",
    );
    let too_long = frame.len() > longest(handle, &offload)?;
    let mut out = handle.port.queue(queue).send(MAX_FRAGS);
    if too_long || frame.len() > out.slot_bytes().saturating_mul(MAX_FRAGS) {
        return Err(TOO_LONG);
    }
    if frame.len() > out.slot_bytes() {
        let bytes = frame.to_vec();
        return if out.gather([&bytes[..]], bytes.len(), offload) { Ok(()) } else { Err(FULL) };
    }
    let mut slot = out.slot().ok_or(FULL)?;
    frame.copy_to(slot.window());
    slot.set_len(frame.len());
    slot.set_offload(offload);
    Ok(())
}

/// See toklat.h.
///
/// # Safety
/// As toklat.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toklat_receive(
    port: *mut Handle,
    queue: c_uint,
    frames: *mut Frame,
    count: c_uint,
) -> c_int {
    // SAFETY: the caller keeps this function's contract.
    unsafe { enter(port, |handle| receive(handle, queue, frames, None, count)) }
}

/// See toklat.h.
///
/// # Safety
/// As toklat.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toklat_receive_offload(
    port: *mut Handle,
    queue: c_uint,
    frames: *mut Frame,
    offloads: *mut Request,
    count: c_uint,
) -> c_int {
    // SAFETY: the caller keeps this function's contract.
    unsafe { enter(port, |handle| receive(handle, queue, frames, Some(offloads), count)) }
}

/// Lends received frames, with their offload requests.
///
/// # Safety
/// `frames` and `offloads` are null, or have room for `count`.
unsafe fn receive(
    handle: &mut Handle,
    queue: c_uint,
    frames: *mut Frame,
    offloads: Option<*mut Request>,
    count: c_uint,
) -> Result<c_int, Failure> {
    let Handle { port, joined, stats, .. } = handle;
    if queue as usize >= port.queues().1 {
        return Err(NO_QUEUE);
    }
    if frames.is_null() || offloads.is_some_and(<*mut Request>::is_null) {
        return Err(NO_ARRAY);
    }
    let mut came = 0;
    for received in port.queue(queue as usize).receive(count as usize) {
        let frame = lend(&received, joined);
        stats.received_frames += 1;
        stats.received_bytes += u64::from(frame.length);
        stats.joined_frames += u64::from(frame.slots > 1);
        // SAFETY: the caller has room for `count`, and no more are written.
        unsafe {
            frames.add(came).write(frame);
            if let Some(offloads) = offloads {
                offloads.add(came).write(received.offload().into());
            }
        }
        came += 1;
    }
    Ok(number(came))
}

/// Returns the frame in place, or joined in the handle's memory if it has several slots.
fn lend(received: &Received<'_>, joined: &mut Vec<Box<[u8]>>) -> Frame {
    let slots = received.slot_count() as u32;
    if slots == 1 {
        let window = received.window();
        return Frame { data: window.as_ptr().cast(), length: window.len() as u32, slots };
    }
    let bytes = received.to_vec().into_boxed_slice();
    let frame = Frame { data: bytes.as_ptr().cast(), length: bytes.len() as u32, slots };
    joined.push(bytes);
    frame
}

/// See toklat.h.
///
/// # Safety
/// As toklat.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toklat_flush(port: *mut Handle) -> c_int {
    let flush = |handle: &mut Handle| {
        handle.forget_lent();
        handle.port.flush()?;
        Ok(0)
    };
    // SAFETY: the caller keeps this function's contract.
    unsafe { enter(port, flush) }
}
