//! Receiving what strangers send.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags};

use super::Descriptor;

/// The maximum number of descriptors that one receive call can bring (`SCM_MAX_FD`).
pub const MOST: usize = 253;

/// The result of a receive call.
#[derive(Debug)]
pub struct Received {
    /// The number of bytes received; for a longer message, the number for which there was room.
    pub bytes: usize,
    /// The length that the kernel reports; with `MSG_TRUNC`, that of the whole message.
    pub len: usize,
    /// The message was longer than the buffer, or some of its descriptors were [lost](Self::lost).
    pub truncated: bool,
    /// The message came with descriptors for which this process had no numbers left.
    pub lost: bool,
    /// The descriptors that came with the message.
    pub descriptors: Vec<Descriptor>,
}

/// The limit of descriptors of this process.
fn limit() -> i32 {
    static LIMIT: OnceLock<i32> = OnceLock::new();
    *LIMIT.get_or_init(|| {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        limit.current.map_or(i32::MAX, |limit| i32::try_from(limit).unwrap_or(i32::MAX))
    })
}

pub(super) fn prepare() {
    limit();
}

/// Descriptors that strangers never get: enough for a full message on each of a few threads.
fn spare() -> i32 {
    (limit() / 8).clamp(MOST as i32, 8 * MOST as i32)
}

/// The maximum number of descriptors that may wait to be closed: of all users, and of one.
pub(super) fn most_parked() -> (usize, usize) {
    let limit = limit().unsigned_abs() as usize;
    ((limit / 8).clamp(64, 8192), (limit / 16).clamp(32, 4096))
}

/// The last number of a stranger's descriptor. The kernel assigns the lowest free number, so a high
/// number means that few are left.
static HIGHEST: AtomicI32 = AtomicI32::new(0);

/// True if this process has enough free descriptor numbers for a message. The kernel closes
/// descriptors without a number at once, on the receiving thread.
fn has_room(socket: impl AsFd) -> bool {
    let most = limit() - spare();
    if HIGHEST.load(Ordering::Relaxed) < most {
        return true;
    }
    // Closing the duplicate does not wait, because the socket stays open elsewhere.
    let Ok(lowest) = rustix::io::fcntl_dupfd_cloexec(&socket, 0) else { return false };
    HIGHEST.store(lowest.as_raw_fd(), Ordering::Relaxed);
    lowest.as_raw_fd() < most
}

/// Receives bytes, and all descriptors that come with them, which are charged to user `uid` and
/// closed on exec.
///
/// # Errors
/// The kernel's error; `EMFILE` when descriptors are short. Then nothing is taken from the socket.
pub fn receive(
    socket: impl AsFd,
    uid: u32,
    bytes: &mut [u8],
    flags: RecvFlags,
) -> Result<Received, Errno> {
    if !has_room(&socket) {
        return Err(Errno::MFILE);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let room = bytes.len();
    let parts = &mut [IoSliceMut::new(bytes)];
    let got = rustix::net::recvmsg(socket, parts, &mut control, flags | RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            descriptors.extend(fds.map(|fd| charge(uid, fd)));
        }
    }
    let lost = got.flags.contains(ReturnFlags::CTRUNC);
    let truncated = lost || got.flags.contains(ReturnFlags::TRUNC);
    Ok(Received { bytes: got.bytes.min(room), len: got.bytes, truncated, lost, descriptors })
}

fn charge(uid: u32, fd: OwnedFd) -> Descriptor {
    HIGHEST.store(fd.as_raw_fd(), Ordering::Relaxed);
    Descriptor::of(uid, fd)
}
