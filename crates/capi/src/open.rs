//! Opens ports, and resets, reopens and closes them.

use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use frame::OffloadSet;
use netring::Open;

use crate::failure::Failure;
use crate::handle::{Handle, enter};

/// `struct toklat_options`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Options {
    size: u32,
    slots: u32,
    send_queues: u32,
    receive_queues: u32,
    flags: u32,
    message_size: u32,
    message: *mut c_char,
    directory: *const c_char,
    offloads: u32,
    unused: u32,
}

/// `TOKLAT_EXISTING`.
const EXISTING: u32 = 1;
/// `TOKLAT_NO_QUEUES`.
const NO_QUEUES: u32 = u32::MAX;
/// Length of the first version of the options; no version is shorter.
const FIRST_SIZE: usize = offset_of!(Options, offloads);
/// Limit of the options' length, beyond any future version.
const MOST_SIZE: usize = 4096;

impl Options {
    const DEFAULT: Self = Self {
        size: size_of::<Self>() as u32,
        slots: 0,
        send_queues: 0,
        receive_queues: 0,
        flags: 0,
        message_size: 0,
        message: ptr::null_mut(),
        directory: ptr::null(),
        offloads: 0,
        unused: 0,
    };

    /// Copies the options at `at`. The program may be older or newer than this library.
    ///
    /// # Safety
    /// `at` is null, or begins with as many readable bytes as its first field says.
    unsafe fn read(at: *const Self) -> Result<Self, Failure> {
        if at.is_null() {
            return Ok(Self::DEFAULT);
        }
        // SAFETY: the pointer is valid by the caller's contract; `size` is the first field.
        let size = unsafe { at.cast::<u32>().read_unaligned() } as usize;
        if !(FIRST_SIZE..=MOST_SIZE).contains(&size) {
            return Err(Failure::invalid(
                c"The options have no size; begin with TOKLAT_OPTIONS_INIT",
            ));
        }
        // SAFETY: the caller passes `size` readable bytes.
        let bytes = unsafe { std::slice::from_raw_parts(at.cast::<u8>(), size) };
        let known = size.min(size_of::<Self>());
        if bytes[known..].iter().any(|byte| *byte != 0) {
            return Err(Failure::new(
                libc::E2BIG,
                c"The options ask for what this version of the library does not have; update it",
            ));
        }
        let mut options = Self::DEFAULT;
        // SAFETY: `known` bytes are readable and fit, the two do not overlap, and every field may
        // have any value. What an older program does not have keeps its default.
        unsafe {
            ptr::copy_nonoverlapping(at.cast::<u8>(), (&raw mut options).cast(), known);
        }
        Ok(options)
    }

    /// Converts the options to those of the ring library.
    ///
    /// # Safety
    /// `directory` is null or a C string.
    unsafe fn apply(&self, name: &str) -> Result<Open, Failure> {
        if self.flags & !EXISTING != 0 {
            return Err(Failure::invalid(
                c"The options have an unknown flag; TOKLAT_EXISTING is the only one",
            ));
        }
        if self.offloads & !u32::from(OffloadSet::ALL.bits()) != 0 || self.unused != 0 {
            return Err(Failure::invalid(
                c"The options have an unknown offload; see TOKLAT_OFFLOAD_... in toklat.h",
            ));
        }
        let queues = |wanted| match wanted {
            0 => 1,
            NO_QUEUES => 0,
            some => some,
        };
        let mut open =
            Open::new(name).queues(queues(self.send_queues), queues(self.receive_queues));
        open = open.offloads(OffloadSet::from_bits(self.offloads as u8));
        if self.slots != 0 {
            open = open.slots(self.slots);
        }
        if self.flags & EXISTING != 0 {
            open = open.existing();
        }
        if !self.directory.is_null() {
            // SAFETY: the caller keeps this function's contract.
            let directory = unsafe { CStr::from_ptr(self.directory) };
            open = open.directory(OsStr::from_bytes(directory.to_bytes()));
        }
        Ok(open)
    }

    /// Copies a failure's message to the program's buffer, truncated to its size.
    ///
    /// # Safety
    /// `message` is null, or has `message_size` writable bytes.
    unsafe fn write_message(&self, failure: &Failure) {
        let Some(room) = (self.message_size as usize).checked_sub(1) else { return };
        if self.message.is_null() {
            return;
        }
        let text = failure.message.to_bytes();
        let len = text.len().min(room);
        // SAFETY: the caller's; `len` bytes and the zero are `message_size` at most.
        unsafe {
            ptr::copy_nonoverlapping(text.as_ptr(), self.message.cast(), len);
            self.message.add(len).write(0);
        }
    }
}

// A C compiler lays the structure out like this, without holes.
const _: () = assert!(offset_of!(Options, message) == 24 && FIRST_SIZE == 40);
const _: () = assert!(size_of::<Options>() == 48);

/// See toklat.h.
///
/// # Safety
/// As toklat.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toklat_open(
    name: *const c_char,
    options: *const Options,
    port: *mut *mut Handle,
) -> c_int {
    if port.is_null() {
        return -libc::EINVAL;
    }
    // SAFETY: the pointer is not null, and valid by the caller's contract.
    unsafe { port.write(ptr::null_mut()) };
    // SAFETY: the caller keeps this function's contract.
    let options = match unsafe { Options::read(options) } {
        Ok(options) => options,
        Err(failure) => return -failure.errno,
    };
    // SAFETY: the caller keeps this function's contract.
    let opened = catch_unwind(AssertUnwindSafe(|| unsafe { open(name, &options) }));
    let panicked = Failure::new(libc::EIO, c"The library panicked");
    match opened.unwrap_or(Err(panicked)) {
        Ok(handle) => {
            // SAFETY: as above.
            unsafe { port.write(Box::into_raw(handle)) };
            0
        }
        Err(failure) => {
            // SAFETY: the caller keeps this function's contract.
            unsafe { options.write_message(&failure) };
            -failure.errno
        }
    }
}

/// # Safety
/// `name` is null or a string, and the options' pointers are as toklat.h says.
unsafe fn open(name: *const c_char, options: &Options) -> Result<Box<Handle>, Failure> {
    if name.is_null() {
        return Err(Failure::invalid(c"The port's name is null"));
    }
    // SAFETY: the caller keeps this function's contract.
    let name = unsafe { CStr::from_ptr(name) };
    let Ok(name) = name.to_str() else {
        return Err(Failure::invalid(c"The port's name is not UTF-8"));
    };
    inline::trusted::install();
    // SAFETY: the caller keeps this function's contract.
    let port = unsafe { options.apply(name) }?.open()?;
    let name = CString::new(port.name()).unwrap_or_default();
    Ok(Box::new(Handle::new(port, name)))
}

/// See toklat.h.
///
/// # Safety
/// As toklat.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toklat_close(port: *mut Handle) {
    if port.is_null() {
        return;
    }
    // SAFETY: `toklat_open` made it of a box, and the caller gives it up.
    let handle = unsafe { Box::from_raw(port) };
    let _ = catch_unwind(AssertUnwindSafe(|| drop(handle)));
}

/// See toklat.h.
///
/// # Safety
/// As toklat.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toklat_reset(port: *mut Handle) -> c_int {
    let reset = |handle: &mut Handle| {
        if handle.port.check().is_ok() {
            return Ok(0);
        }
        handle.forget_lent();
        handle.port.reset()?;
        handle.stats.resets += 1;
        Ok(0)
    };
    // SAFETY: the caller keeps this function's contract.
    unsafe { enter(port, reset) }
}

/// See toklat.h.
///
/// # Safety
/// As toklat.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toklat_reopen(port: *mut Handle) -> c_int {
    let reopen = |handle: &mut Handle| {
        handle.forget_lent();
        handle.port.reopen()?;
        handle.stats.reopens += 1;
        Ok(0)
    };
    // SAFETY: the caller keeps this function's contract.
    unsafe { enter(port, reopen) }
}
