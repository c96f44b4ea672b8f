//! Frames: slots lent to be filled, received frames lent to be read.

use std::ffi::{c_int, c_uint, c_void};
use std::slice;

use netring::Received;
use netring::layout::MAX_FRAGS;
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

const _: () = assert!(size_of::<Slot>() == 24 && size_of::<Frame>() == 16);

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
            // SAFETY: the caller's: `count` slots are writable.
            unsafe { slots.add(*reserved).write(slot) };
            *reserved += 1;
        }
        Ok(number(*reserved))
    };
    // SAFETY: the caller's.
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
    let commit = |handle: &mut Handle| {
        let (queue, count) = (queue as usize, count as usize);
        let reserved = *handle.reserved.get(queue).ok_or(NO_QUEUE)?;
        if count > reserved {
            return Err(NOT_RESERVED);
        }
        if slots.is_null() {
            return Err(NO_ARRAY);
        }
        // SAFETY: the caller's: `count` slots are readable, and no thread writes to them meanwhile.
        let slots = unsafe { slice::from_raw_parts(slots, count) };
        let frames = check(slots, handle.max_frame())?;
        fill(handle, queue, slots)?;
        handle.reserved[queue] -= count;
        handle.stats.sent_frames += frames;
        handle.stats.sent_bytes += slots.iter().map(|slot| u64::from(slot.length)).sum::<u64>();
        Ok(0)
    };
    // SAFETY: the caller's.
    unsafe { enter(port, commit) }
}

/// How many frames the slots are, if all of them can be sent.
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

/// Gives the next free slots their lengths, if they are those of the program.
fn fill(handle: &mut Handle, queue: usize, slots: &[Slot]) -> Result<(), Failure> {
    let mut out = handle.port.queue(queue).send(slots.len());
    let is_lent = |(at, slot): (usize, &Slot)| {
        out.window(at).is_some_and(|window| {
            window.as_ptr() == slot.data.cast() && window.len() >= slot.length as usize
        })
    };
    if !slots.iter().enumerate().all(is_lent) {
        return Err(NOT_RESERVED);
    }
    for slot in slots {
        if let Some(mut free) = out.slot() {
            free.set_len(slot.length as usize);
            free.set_more(slot.flags & MORE != 0);
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
    let push = |handle: &mut Handle| {
        let queue = queue as usize;
        *handle.reserved.get_mut(queue).ok_or(NO_QUEUE)? = 0;
        if frame.is_null() || length == 0 {
            return Err(Failure::invalid(c"The frame is null or has no bytes"));
        }
        // SAFETY: the caller's: `length` bytes are readable. They may be a received frame's, which others
        // write to, so they are a window; it is only read.
        let frame = unsafe { Bytes::from_raw(frame.cast_mut().cast(), length) };
        push(handle, queue, frame)?;
        handle.stats.sent_frames += 1;
        handle.stats.sent_bytes += length as u64;
        Ok(0)
    };
    // SAFETY: the caller's.
    unsafe { enter(port, push) }
}

fn push(handle: &mut Handle, queue: usize, frame: Bytes<'_>) -> Result<(), Failure> {
    const FULL: Failure = Failure::new(
        libc::EAGAIN,
        c"There is no room in the ring; call toklat_flush, and toklat_wait for TOKLAT_WRITE",
    );
    let too_long = frame.len() > handle.max_frame();
    let mut out = handle.port.queue(queue).send(MAX_FRAGS);
    if too_long || frame.len() > out.slot_bytes().saturating_mul(MAX_FRAGS) {
        return Err(TOO_LONG);
    }
    if frame.len() > out.slot_bytes() {
        return if out.push(&frame.to_vec()) { Ok(()) } else { Err(FULL) };
    }
    let mut slot = out.slot().ok_or(FULL)?;
    frame.copy_to(slot.window());
    slot.set_len(frame.len());
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
    let receive = |handle: &mut Handle| {
        let Handle { port, joined, stats, .. } = handle;
        if queue as usize >= port.queues().1 {
            return Err(NO_QUEUE);
        }
        if frames.is_null() {
            return Err(NO_ARRAY);
        }
        let mut came = 0;
        for received in port.queue(queue as usize).receive(count as usize) {
            let frame = lend(&received, joined);
            stats.received_frames += 1;
            stats.received_bytes += u64::from(frame.length);
            stats.joined_frames += u64::from(frame.slots > 1);
            // SAFETY: the caller's: `count` frames are writable, and no more come.
            unsafe { frames.add(came).write(frame) };
            came += 1;
        }
        Ok(number(came))
    };
    // SAFETY: the caller's.
    unsafe { enter(port, receive) }
}

/// The frame where it lies, or joined in memory of the handle's.
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
    // SAFETY: the caller's.
    unsafe { enter(port, flush) }
}
