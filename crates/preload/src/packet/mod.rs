//! Packet sockets (AF_PACKET) on ports.
//!
//! A packet socket stays the kernel's until it is bound to a port. Then one end of a pair of Unix
//! sockets takes over its number. So everything that waits for it or reads it works unchanged. What
//! was set before is carried over, or the socket is not bound.
//!
//! A thread carries frames from the port to the other end. Frames that the program sends go to the
//! port at once. A user without the right to packet sockets gets such a pair from the start.

pub mod hooks;
pub mod names;
mod options;
mod pump;
pub mod route;

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{c_int, sockaddr_ll};
use pcap::lock::Lock;
use pcap::{Device, Interface};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use self::options::Options;
use crate::capture::{self, INTERFACES};
use crate::marks::Bits;
use crate::real;

/// Packet sockets.
pub static PACKET: Bits = Bits::new();
static TABLE: Lock<BTreeMap<RawFd, Arc<Packet>>> = Lock::new(BTreeMap::new());

/// Locks the tables before a fork; [`release`] unlocks them.
pub fn hold() {
    TABLE.hold();
}

/// Unlocks what [`hold`] locked.
pub fn release() {
    TABLE.release();
}

/// A packet socket of the program.
#[derive(Debug)]
pub struct Packet {
    /// The protocol of the socket, in network byte order.
    protocol: u16,
    /// Frames without their headers (`SOCK_DGRAM`).
    cooked: bool,
    /// The socket was never the kernel's: the user has no right to one.
    is_ours: bool,
    /// The other end of the pair, until a thread takes it.
    far: Lock<Option<OwnedFd>>,
    /// What the program has set.
    options: Options,
    /// The ports that the socket sends to.
    opened: Lock<Vec<(u32, Arc<Interface>)>>,
    /// The number of the port that the socket is bound to; 0 for none.
    bound: AtomicU32,
}

/// The packet socket behind a descriptor.
pub fn find(fd: RawFd) -> Option<Arc<Packet>> {
    if !PACKET.has(fd) {
        return None;
    }
    TABLE.lock().get(&fd).cloned()
}

/// Forgets a descriptor that is about to be closed. Waits until the switch has taken what the
/// socket sent: the pump thread may drop the port last, and a program that ends does not wait for
/// that thread.
pub fn forget(fd: RawFd) {
    if PACKET.clear(fd) {
        let before = TABLE.lock().remove(&fd);
        if let Some(packet) = before {
            let ports: Vec<_> =
                packet.opened.lock().iter().map(|(_, port)| Arc::clone(port)).collect();
            drop(packet);
            ports.iter().for_each(|port| port.finish());
        }
    }
}

/// Notes that a descriptor was duplicated to another number.
pub fn copied(from: RawFd, to: RawFd) {
    if let Some(packet) = find(from) {
        insert(to, packet);
    }
}

fn insert(fd: RawFd, packet: Arc<Packet>) {
    if PACKET.set(fd) {
        let before = TABLE.lock().insert(fd, packet);
        drop(before);
    }
}

/// Returns the packet sockets among the descriptors from `first` to `last`.
pub fn between(first: u32, last: u32) -> Vec<RawFd> {
    PACKET.between(first, last)
}

fn pair(flags: c_int) -> Result<(OwnedFd, OwnedFd), Errno> {
    let close = SocketFlags::CLOEXEC;
    let (near, far) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, close, None)?;
    if flags & libc::SOCK_CLOEXEC == 0 {
        rustix::io::fcntl_setfd(&near, rustix::io::FdFlags::empty())?;
    }
    if flags & libc::SOCK_NONBLOCK != 0 {
        rustix::io::ioctl_fionbio(&near, true)?;
    }
    Ok((near, far))
}

/// Makes a packet socket: the kernel's, or a pair for a user without the right to one.
pub fn socket(kind: c_int, protocol: c_int) -> Result<RawFd, Errno> {
    // SAFETY: this is the program's own call.
    let made = crate::result(unsafe { real::socket(libc::AF_PACKET, kind, protocol) });
    let (fd, far) = match made {
        Ok(fd) => (fd, None),
        Err(Errno::PERM | Errno::ACCESS | Errno::AFNOSUPPORT) => {
            let (near, far) = pair(kind)?;
            (std::os::fd::IntoRawFd::into_raw_fd(near), Some(far))
        }
        Err(errno) => return Err(errno),
    };
    let is_ours = far.is_some();
    let packet = Packet {
        protocol: protocol as u16,
        cooked: kind & 0xf == libc::SOCK_DGRAM,
        is_ours,
        far: Lock::new(far.map(crate::marks::raise)),
        options: Options::default(),
        opened: Lock::default(),
        bound: AtomicU32::new(0),
    };
    insert(fd, Arc::new(packet));
    Ok(fd)
}

/// Returns the port with this number, if there is one.
pub fn device(index: c_int) -> Option<Device> {
    INTERFACES.lock().named(index.cast_unsigned()).cloned()
}

impl Packet {
    /// Returns the number of the port that the socket is bound to.
    pub fn port(&self) -> Option<u32> {
        Some(self.bound.load(Ordering::Acquire)).filter(|index| *index != 0)
    }

    /// Returns the port with this number, and opens it if necessary.
    fn interface(&self, index: u32) -> Result<Arc<Interface>, Errno> {
        let known = self.opened.lock().iter().find(|(of, _)| *of == index).map(|(_, i)| i.clone());
        if let Some(known) = known {
            return Ok(known);
        }
        let device = device(index.cast_signed()).ok_or(Errno::NODEV)?;
        let opened = capture::open(&device).map_err(|failure| failure.errno)?;
        self.opened.lock().push((index, Arc::clone(&opened)));
        Ok(opened)
    }

    /// Binds the socket to a port. Frames that arrive there can be read from this point on.
    pub fn bind(&self, fd: RawFd, to: &sockaddr_ll) -> Result<(), Errno> {
        let index = to.sll_ifindex.cast_unsigned();
        self.options.check()?;
        let interface = self.interface(index)?;
        let protocol = if to.sll_protocol == 0 { self.protocol } else { to.sll_protocol };
        if self.port() == Some(index) {
            return Ok(());
        }
        let far = self.far.lock().take();
        let far = match far {
            Some(far) => far,
            None if self.port().is_none() => self.replace(fd)?,
            // The socket's thread already reads from the first port to which it was bound.
            None => return Err(Errno::INVAL),
        };
        self.bound.store(index, Ordering::Release);
        // Protocol 0 receives nothing.
        if protocol == 0 {
            *self.far.lock() = Some(far);
            return Ok(());
        }
        let choice = self.options.choice();
        let wanted = pump::Wanted { protocol: u16::from_be(protocol), cooked: self.cooked, choice };
        pump::start(&interface, far, wanted).map_err(|failure| failure.errno)
    }

    /// Replaces the kernel's socket by one end of a pair; returns the other end.
    fn replace(&self, fd: RawFd) -> Result<OwnedFd, Errno> {
        let (near, far) = pair(0)?;
        let far = crate::marks::raise(far);
        self.options.carry_over(near.as_raw_fd())?;
        // SAFETY: descriptors that are open; flags are taken over from the one that is replaced.
        unsafe {
            let flags = real::fcntl(fd, libc::F_GETFL, std::ptr::null_mut());
            let close = real::fcntl(fd, libc::F_GETFD, std::ptr::null_mut());
            let flags = std::ptr::with_exposed_provenance_mut(flags as usize);
            real::fcntl(near.as_raw_fd(), libc::F_SETFL, flags);
            let close = if close & libc::FD_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
            crate::result(real::dup3(near.as_raw_fd(), fd, close))?;
        }
        Ok(far)
    }

    /// Sends a frame to a port.
    pub fn send(&self, to: &Destination, bytes: &[u8]) -> Result<usize, Errno> {
        let interface = self.interface(to.index)?;
        let done = if self.cooked {
            let mut frame = Vec::with_capacity(14 + bytes.len());
            frame.extend_from_slice(&to.address);
            frame.extend_from_slice(&interface.device().address());
            frame.extend_from_slice(&to.protocol.to_ne_bytes());
            frame.extend_from_slice(bytes);
            interface.send(&frame)
        } else {
            interface.send(bytes)
        };
        done.map(|()| bytes.len()).map_err(|failure| failure.errno)
    }

    /// Returns the destination of calls without an address.
    fn bound_to(&self) -> Option<Destination> {
        let (index, protocol) = (self.port()?, self.protocol);
        Some(Destination { index, protocol, address: [0xff; 6] })
    }
}

/// Where a frame goes.
#[derive(Clone, Copy, Debug)]
pub struct Destination {
    index: u32,
    /// The Ethernet type, in network byte order.
    protocol: u16,
    address: [u8; 6],
}

impl Destination {
    fn of(to: &sockaddr_ll) -> Self {
        let [a, b, c, d, e, f, ..] = to.sll_addr;
        let protocol = to.sll_protocol;
        Self { index: to.sll_ifindex.cast_unsigned(), protocol, address: [a, b, c, d, e, f] }
    }
}
