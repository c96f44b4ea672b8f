//! A packet socket of a test's own, which sends frames as they are, and receives them so.
#![allow(unsafe_code, reason = "no library makes packet sockets")]

use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A packet socket of one interface of the calling thread's namespace.
pub struct Socket(OwnedFd);

impl Socket {
    /// Opens one.
    pub fn open(ifname: &str) -> Self {
        let name = CString::new(ifname).unwrap();
        // SAFETY: the name lives during the call, and the others take numbers.
        let (index, socket) = unsafe {
            let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
            (libc::if_nametoindex(name.as_ptr()), libc::socket(libc::AF_PACKET, kind, 0))
        };
        assert!(socket != -1 && index != 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the descriptor is new; an address of zeros is a valid one.
        let (socket, mut address) =
            unsafe { (OwnedFd::from_raw_fd(socket), std::mem::zeroed::<libc::sockaddr_ll>()) };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = index.cast_signed();
        let len = size_of_val(&address) as libc::socklen_t;
        // SAFETY: the address lives during the call, and `len` is its length.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
        assert_eq!(bound, 0, "{}", std::io::Error::last_os_error());
        Self(socket)
    }

    /// Sends a frame; false if the kernel refuses it.
    pub fn send(&self, frame: &[u8]) -> bool {
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: the kernel reads the frame's bytes during the call.
        let sent =
            unsafe { libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), flags) };
        sent == frame.len() as isize
    }

    /// The next frame that arrived, if there is one.
    pub fn receive(&self) -> Option<Vec<u8>> {
        let mut frame = vec![0; 2048];
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: the kernel writes to the vector's bytes during the call.
        let len = unsafe {
            libc::recv(self.0.as_raw_fd(), frame.as_mut_ptr().cast(), frame.len(), flags)
        };
        frame.truncate(usize::try_from(len).ok()?);
        Some(frame)
    }
}
