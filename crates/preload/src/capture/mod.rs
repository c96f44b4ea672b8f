//! libpcap handles that belong to this library.
//!
//! Each is a real handle from `pcap_open_dead`, so calls that are not replaced, such as
//! `pcap_compile` and `pcap_dump`, work as usual. A table maps it to our state.

pub mod abi;
pub mod hooks;
pub mod list;

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use frame::bpf;
use pcap::lock::Lock;
use pcap::{Capture, Code, Descriptors, Device, Failure, Frame, Interface, Interfaces};
use rustix::io::Errno;

use self::abi::{Header, Program};
use crate::marks;

/// `pcap_t`.
pub type Pcap = *mut c_void;

/// `PCAP_ERRBUF_SIZE`.
const MESSAGE: usize = 256;
/// `DLT_EN10MB`.
const ETHERNET: c_int = 1;

/// All ports that the program uses.
pub static INTERFACES: Lock<Interfaces> = Lock::new(Interfaces::new());

/// Hides the library's descriptors from the program.
pub const DESCRIPTORS: Descriptors = Descriptors { raise: marks::raise, lower: unprotect_one };

fn unprotect_one(fd: std::os::fd::RawFd) {
    marks::OURS.clear(fd);
}

/// Opens a port, or returns it if it is open.
pub fn open(device: &Device) -> Result<Arc<Interface>, Failure> {
    INTERFACES.lock().open(device, DESCRIPTORS)
}

/// Waits until the switch has taken all sent frames, before the program ends.
pub fn finish_all() {
    let open: Vec<_> = INTERFACES.lock().opened().collect();
    open.iter().for_each(|interface| interface.finish());
}

/// The state behind a handle.
#[derive(Debug)]
pub struct Handle {
    capture: Capture,
    /// The message for `pcap_geterr`.
    message: UnsafeCell<[c_char; MESSAGE]>,
    /// The last failure was libpcap's own.
    is_its: AtomicBool,
    /// Header of the frame that `pcap_next` returned last.
    header: UnsafeCell<Header>,
}

impl Handle {
    fn new(device: Device) -> Box<Self> {
        let time = libc::timeval { tv_sec: 0, tv_usec: 0 };
        Box::new(Self {
            capture: Capture::new(device),
            message: UnsafeCell::new([0; MESSAGE]),
            is_its: AtomicBool::new(false),
            header: UnsafeCell::new(Header { time, kept: 0, len: 0 }),
        })
    }

    /// Stores a failure for `pcap_geterr`; returns the call's result code.
    fn set_error(&self, failure: &Failure) -> c_int {
        self.is_its.store(false, Ordering::Relaxed);
        // SAFETY: the handle's, and a program uses a handle in one thread at a time.
        unsafe { write_message(self.message.get().cast(), &failure.message) };
        failure.code as c_int
    }

    /// Runs a call; returns its result or the failure's code. A panic is a failure.
    fn returned(&self, call: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
        match catch_unwind(AssertUnwindSafe(call)) {
            Ok(Ok(value)) => value,
            Ok(Err(failure)) => self.set_error(&failure),
            Err(_) => {
                let said = "The library failed; close the capture";
                self.set_error(&Failure::new(Code::Error, Errno::IO, said))
            }
        }
    }

    /// The header of a frame.
    fn header(&self, frame: &Frame<'_>, nanoseconds: bool) -> Header {
        let Frame { bytes, len, time, .. } = *frame;
        let fraction = if nanoseconds { time.subsec_nanos() } else { time.subsec_micros() };
        let time = libc::timeval { tv_sec: time.as_secs().cast_signed(), tv_usec: fraction.into() };
        Header { time, kept: bytes.len() as u32, len }
    }
}

/// Writes a message, truncated to [`MESSAGE`] bytes.
///
/// # Safety
/// `to` is null, or has [`MESSAGE`] writable bytes.
unsafe fn write_message(to: *mut c_char, message: &str) {
    if to.is_null() {
        return;
    }
    let bytes = message.bytes().filter(|byte| *byte != 0).take(MESSAGE - 1);
    let mut at = 0;
    for byte in bytes {
        // SAFETY: `at` stays below the size that the caller promises.
        unsafe { to.cast::<u8>().add(at).write(byte) };
        at += 1;
    }
    // SAFETY: as above.
    unsafe { to.add(at).write(0) };
}

/// Maximum number of a program's open handles.
const MOST: usize = 1024;

/// A table entry for a handle. It is read without a lock, also by signal handlers.
struct Place {
    /// What the program knows.
    ///
    /// # Protocol: `Place.key`
    /// - Writer: `pcap_create` (under `TAKING`), `pcap_close`
    /// - Reader: all calls on a handle, signal handlers among them
    /// - Ordering: store release after `handle`, load acquire
    /// - Partner: `Place.handle`, which is stored first and cleared last
    /// - Without it: a call finds its key, and nothing behind it
    /// - Shown by: `toklat` tests `pcap`
    key: AtomicPtr<c_void>,
    handle: AtomicPtr<Handle>,
}

static PLACES: [Place; MOST] = [const {
    Place {
        key: AtomicPtr::new(std::ptr::null_mut()),
        handle: AtomicPtr::new(std::ptr::null_mut()),
    }
}; MOST];
/// Number of entries in use so far; later ones were never used.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Locked while an entry is taken.
static TAKING: Lock<()> = Lock::new(());

fn place(key: Pcap) -> Option<&'static Place> {
    if key.is_null() {
        return None;
    }
    let used = PLACES.get(..USED.load(Ordering::Acquire))?;
    used.iter().find(|place| place.key.load(Ordering::Acquire) == key)
}

/// Returns the state of our handle; `None` for libpcap's own handles.
fn find<'a>(key: Pcap) -> Option<&'a Handle> {
    let handle = place(key)?.handle.load(Ordering::Acquire);
    // SAFETY: boxed, and freed by `pcap_close` only.
    unsafe { handle.as_ref() }
}

/// Adds a handle to the table; returns it if the table is full.
fn keep(key: Pcap, handle: Box<Handle>) -> Result<(), Box<Handle>> {
    let _taking = TAKING.lock();
    let Some(at) = PLACES.iter().position(|place| place.key.load(Ordering::Relaxed).is_null())
    else {
        return Err(handle);
    };
    let Some(place) = PLACES.get(at) else { return Err(handle) };
    place.handle.store(Box::into_raw(handle), Ordering::Release);
    place.key.store(key, Ordering::Release);
    USED.fetch_max(at + 1, Ordering::AcqRel);
    Ok(())
}

/// Removes a handle from the table, and returns its state.
fn forget(key: Pcap) -> Option<Box<Handle>> {
    let place = place(key)?;
    place.key.store(std::ptr::null_mut(), Ordering::Release);
    let handle = place.handle.swap(std::ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: `keep` made the handle; nothing else has it, because the program closes it.
    (!handle.is_null()).then(|| unsafe { Box::from_raw(handle) })
}

/// Locks the tables before a fork, so that they are consistent in the child; [`release`] unlocks
/// them.
pub fn hold() {
    TAKING.hold();
    INTERFACES.hold();
}

/// Unlocks what [`hold`] locked.
pub fn release() {
    INTERFACES.release();
    TAKING.release();
}

/// Returns our device of this name; `None` for other names.
///
/// # Safety
/// `name` is null or a C string.
unsafe fn device(name: *const c_char) -> Option<Device> {
    if name.is_null() {
        return None;
    }
    // SAFETY: the caller keeps this function's contract.
    Device::parse(unsafe { CStr::from_ptr(name) }.to_str().ok()?)
}

/// Checks a filter, and takes a copy of it.
///
/// # Safety
/// `program` is null, or has as many instructions as it says.
unsafe fn filter(program: *const Program) -> Result<bpf::Program, Failure> {
    let invalid = |said: &str| Failure::new(Code::Error, Errno::INVAL, said);
    // SAFETY: the caller keeps this function's contract.
    let given = unsafe { program.as_ref() }.filter(|given| !given.code.is_null() && given.len > 0);
    let given = given.ok_or_else(|| invalid("No filter was given"))?;
    // SAFETY: the caller passes this many instructions of eight bytes.
    let code = unsafe { std::slice::from_raw_parts(given.code, given.len as usize) };
    let code = code.iter().map(|word| bpf::Instruction::from_ne_bytes(word.to_ne_bytes()));
    bpf::Program::new(code.collect()).map_err(|error| invalid(&error.to_string()))
}
