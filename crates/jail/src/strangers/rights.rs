//! Whether a socket accepts descriptors (`SO_PASSRIGHTS`, unix(7)).

use std::os::fd::{AsFd, AsRawFd};
use std::sync::OnceLock;

use rustix::net::{AddressFamily, sockopt};

/// The environment variable that, if it is `off`, disables `SO_PASSRIGHTS`, as on kernels before
/// 6.16. For tests.
pub const SWITCH: &str = "TOKLAT_PASSRIGHTS";

/// `SO_PASSRIGHTS` (asm-generic/socket.h), which libc does not name.
const SO_PASSRIGHTS: libc::c_int = 83;

fn is_wanted() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| std::env::var_os(SWITCH).is_none_or(|value| value != "off"))
}

pub(super) fn prepare() {
    is_wanted();
}

/// Makes the kernel fail a send with descriptors to `socket`. Connections that it accepts inherit
/// this. Call it before `listen`, before `connect`, or before handing out the other end of a pair,
/// because earlier descriptors stay.
///
/// Has no effect on a kernel that does not know the option: see [`refuses`].
pub fn refuse(socket: impl AsFd) {
    set(socket, 0);
}

/// Lets the kernel pass descriptors to `socket` again.
pub fn accept(socket: impl AsFd) {
    set(socket, 1);
}

fn set(socket: impl AsFd, value: libc::c_int) {
    if !is_wanted() {
        return;
    }
    let (socket, at) = (socket.as_fd().as_raw_fd(), (&raw const value).cast());
    let len = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the option's value is an int, which lives during the call. A kernel that does not
    // know the option refuses it.
    unsafe { libc::setsockopt(socket, libc::SOL_SOCKET, SO_PASSRIGHTS, at, len) };
}

/// True if no descriptors can come on `socket`.
#[must_use]
pub fn refuses(socket: impl AsFd) -> bool {
    let domain = sockopt::socket_domain(&socket);
    if domain.is_ok_and(|domain| domain != AddressFamily::UNIX) {
        return true;
    }
    let (mut value, mut len) = (1, size_of::<libc::c_int>() as libc::socklen_t);
    let (at, socket) = ((&raw mut value).cast(), socket.as_fd().as_raw_fd());
    // SAFETY: the option's value is an int, which lives during the call, as its length does.
    let got =
        unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, SO_PASSRIGHTS, at, &raw mut len) };
    is_wanted() && got == 0 && value == 0
}
