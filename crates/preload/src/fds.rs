//! The descriptors of `/dev/netmap` that this process has.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::sync::Arc;

use netmap::client;
use pcap::lock::Lock;
use rustix::io::Errno;

use crate::device::{Device, borrow};
use crate::marks::NETMAP;

/// The devices behind some descriptors. Each part has cache lines of its own, because threads that
/// use different descriptors look them up in every call.
#[repr(align(128))]
struct Part(Lock<BTreeMap<RawFd, Arc<Device>>>);

/// The devices behind netmap descriptors, in parts by their numbers.
static TABLE: [Part; 16] = [const { Part(Lock::new(BTreeMap::new())) }; 16];

fn table(fd: RawFd) -> &'static Lock<BTreeMap<RawFd, Arc<Device>>> {
    &TABLE[fd.rem_euclid(TABLE.len() as i32) as usize].0
}

/// Locks the table, before a fork.
pub fn hold() {
    TABLE.iter().for_each(|part| part.0.hold());
}

/// Unlocks it.
pub fn release() {
    TABLE.iter().for_each(|part| part.0.release());
}

/// The device behind a descriptor.
pub fn get(fd: RawFd) -> Option<Arc<Device>> {
    if !NETMAP.has(fd) {
        return None;
    }
    table(fd).lock().get(&fd).cloned()
}

/// Registers a netmap descriptor; returns false if its number is too high.
pub fn insert(fd: RawFd, device: Arc<Device>) -> bool {
    if !NETMAP.set(fd) {
        return false;
    }
    let before = table(fd).lock().insert(fd, device);
    drop(before);
    true
}

/// Forgets a descriptor that is about to be closed; returns true if it was netmap's.
pub fn forget(fd: RawFd) -> bool {
    let is_ours = NETMAP.clear(fd);
    if is_ours {
        let before = table(fd).lock().remove(&fd);
        drop(before);
    }
    is_ours
}

/// Opens the device. As with any descriptor, the token gets the lowest free number.
pub fn open(flags: c_int) -> Result<i32, Errno> {
    let token = client::open()?;
    let lowest = match flags & libc::O_CLOEXEC {
        0 => rustix::io::dup(&token)?,
        _ => rustix::io::fcntl_dupfd_cloexec(&token, 0)?,
    };
    // While the token arrived, the connection to the daemon occupied the lowest number.
    let token = if lowest.as_raw_fd() < token.as_raw_fd() {
        lowest
    } else {
        rustix::io::fcntl_setfd(&token, rustix::io::fcntl_getfd(&lowest)?)?;
        token
    };
    if flags & libc::O_NONBLOCK != 0 {
        rustix::io::ioctl_fionbio(&token, true)?;
    }
    if !insert(token.as_raw_fd(), Device::new()) {
        return Err(Errno::MFILE);
    }
    Ok(token.into_raw_fd())
}

/// Returns the device behind a descriptor, also for one from another process.
pub fn find(fd: RawFd) -> Option<Arc<Device>> {
    if let Some(device) = get(fd) {
        return Some(device);
    }
    if fd < 0 || rustix::net::sockopt::socket_cookie(borrow(fd)).is_err() {
        return None;
    }
    let (answer, fds) = client::identify(borrow(fd)).ok()??;
    let device = Device::new();
    device.bind(&answer, fds).ok()?;
    insert(fd, Arc::clone(&device)).then_some(device)
}

/// Handles the six netmap requests of `ioctl`; `None` for any other request or descriptor.
pub fn netmap_ioctl(fd: RawFd, request: u32, arg: *mut c_void) -> Option<Result<i32, Errno>> {
    let device = find(fd)?;
    Some(device.ioctl(fd, request, arg.expose_provenance() as u64))
}
