//! Network namespaces that belong to a test, with taps in them.
#![allow(unsafe_code, reason = "there is no safe call that makes a tap or a network namespace")]
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::Command;

use rustix::fs::{Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

/// The reason why taps cannot be tested here, if any.
pub fn obstacle() -> Option<&'static str> {
    if Command::new("ip").arg("-V").output().is_err() {
        return Some("the program ip (iproute2) is missing");
    }
    let probe = || {
        // SAFETY: only this thread, which ends here, changes its namespace; descriptors stay
        // shared.
        if unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.is_err() {
            return Some("network namespaces are refused (CAP_SYS_ADMIN)");
        }
        open_tap(false, 0).err().map(|_| "taps are refused (CAP_NET_ADMIN, /dev/net/tun)")
    };
    std::thread::spawn(probe).join().unwrap()
}

/// A network namespace that belongs to the test. It ends with its descriptor and sockets.
pub struct Namespace(OwnedFd);

impl Namespace {
    pub fn new() -> Self {
        let make = || {
            // SAFETY: only this thread, which ends here, changes its namespace; descriptors stay
            // shared.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            Self(rustix::fs::open("/proc/thread-self/ns/net", flags, Mode::empty()).unwrap())
        };
        std::thread::spawn(make).join().unwrap()
    }

    /// Runs `f` in this namespace.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        let enter = || {
            let kind = Some(LinkNameSpaceType::Network);
            rustix::thread::move_into_link_name_space(self.0.as_fd(), kind).unwrap();
            f()
        };
        std::thread::scope(|scope| scope.spawn(enter).join().unwrap())
    }

    pub fn ip(&self, arguments: &str) {
        let run = || Command::new("ip").args(arguments.split(' ')).status().unwrap();
        assert!(self.run(run).success(), "ip {arguments}");
    }

    /// The queues of a tap named t0 with these addresses, whose owner accepts `offloads`
    /// (`TUN_F_*`).
    pub fn tap(&self, addresses: &[&str], queues: usize, offloads: libc::c_ulong) -> Vec<OwnedFd> {
        let open = || (0..queues).map(|_| open_tap(queues > 1, offloads)).collect();
        let queues: std::io::Result<_> = self.run(open);
        self.ip("link set dev t0 addrgenmode none");
        for address in addresses {
            let nodad = if address.contains(':') { " nodad" } else { "" };
            self.ip(&format!("addr add {address} dev t0{nodad}"));
        }
        self.ip("link set dev t0 up");
        queues.unwrap()
    }
}

fn open_tap(multi_queue: bool, offloads: libc::c_ulong) -> std::io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let queue = rustix::fs::open("/dev/net/tun", flags, Mode::empty())?;
    // SAFETY: an ifreq is plain data.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[..2].copy_from_slice(&[b't' as libc::c_char, b'0' as libc::c_char]);
    let several = if multi_queue { libc::IFF_MULTI_QUEUE } else { 0 };
    request.ifr_ifru.ifru_flags =
        (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | several) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes an ifreq, which lives here; TUNSETOFFLOAD takes a number.
    let results = unsafe {
        [
            libc::ioctl(queue.as_raw_fd(), libc::TUNSETIFF, &raw mut request),
            libc::ioctl(queue.as_raw_fd(), libc::TUNSETOFFLOAD, offloads),
        ]
    };
    if results != [0, 0] {
        return Err(std::io::Error::last_os_error());
    }
    Ok(queue)
}
