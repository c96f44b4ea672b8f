//! The kind of a stranger's descriptor, determined without entering its file system.

use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{AtFlags, FileType, OFlags, StatxFlags};
use rustix::net::{AddressFamily, SocketType, sockopt};

/// The kind of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Memory: a memfd, or a file of tmpfs or hugetlbfs. `fstat(2)` on it does not wait.
    Memory,
    /// An eventfd.
    Event,
    /// A socket.
    Socket,
    /// Any other kind. Further calls on it may wait as long as its maker likes.
    Other,
}

/// The kind of a stranger's descriptor. Never waits.
#[must_use]
pub fn kind(fd: impl AsFd) -> Kind {
    // Only shmem and hugetlbfs know seals. They answer even if a file has none.
    if rustix::fs::fcntl_get_seals(&fd).is_ok() {
        return Kind::Memory;
    }
    // Asking for the socket type takes no lock: the kernel compares the file's operations.
    if sockopt::socket_type(&fd).is_ok() {
        return Kind::Socket;
    }
    if is_anonymous(&fd) && takes_eight_bytes(&fd) { Kind::Event } else { Kind::Other }
}

/// True if the file has no type. Asked for the type only, and not to synchronize, a file system
/// answers from its cache.
fn is_anonymous(fd: impl AsFd) -> bool {
    let how = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    // Files of a file system have a type; eventfds and similar files have none.
    rustix::fs::statx(fd, "", how, StatxFlags::TYPE)
        .is_ok_and(|found| FileType::from_raw_mode(found.stx_mode.into()) == FileType::Unknown)
}

/// Among files without a type, only eventfds access the bytes of such a write; others refuse it
/// before. The address is invalid, so nothing is written and no thread is woken.
fn takes_eight_bytes(fd: impl AsFd) -> bool {
    // SAFETY: the kernel finds nothing at this address, and returns an error.
    let wrote = unsafe { libc::write(fd.as_fd().as_raw_fd(), std::ptr::null(), 8) };
    wrote == -1 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT)
}

/// True if the descriptor is an eventfd. Makes it non-blocking, as those of QEMU and DPDK always
/// are.
#[must_use]
pub fn is_event(fd: impl AsFd) -> bool {
    kind(&fd) == Kind::Event
        && rustix::fs::fcntl_getfl(&fd)
            .and_then(|flags| rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK))
            .is_ok()
}

/// True if the descriptor is a Unix stream socket.
#[must_use]
pub fn is_unix_stream(fd: impl AsFd) -> bool {
    sockopt::socket_domain(&fd) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(&fd) == Ok(SocketType::STREAM)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::OwnedFd;

    use rustix::event::{EventfdFlags, epoll, eventfd};
    use rustix::fs::MemfdFlags;

    use super::*;

    #[test]
    fn kinds_are_told_apart() {
        let memory = rustix::fs::memfd_create("x", MemfdFlags::empty()).unwrap();
        assert_eq!(kind(&memory), Kind::Memory);
        let event = eventfd(0, EventfdFlags::empty()).unwrap();
        assert_eq!(kind(&event), Kind::Event);
        let (socket, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(kind(&socket), Kind::Socket);
        assert!(is_unix_stream(&socket) && !is_unix_stream(&event));
        let others: [OwnedFd; 5] = [
            File::open("/").unwrap().into(),
            File::open("/dev/null").unwrap().into(),
            File::open("/proc/self/status").unwrap().into(),
            epoll::create(epoll::CreateFlags::empty()).unwrap(),
            rustix::pipe::pipe().unwrap().1,
        ];
        for other in others {
            assert_eq!(kind(&other), Kind::Other, "{other:?}");
        }
    }

    /// Objective: unsealed files of tmpfs, which guests' memory often is, are memory.
    #[test]
    fn files_of_tmpfs_are_memory() {
        let dir = std::path::Path::new("/dev/shm");
        let path = dir.join(format!("toklat-kind-{}", std::process::id()));
        let Ok(file) = File::create_new(&path) else {
            return harness::skip("files_of_tmpfs_are_memory", "no /dev/shm here");
        };
        std::fs::remove_file(&path).unwrap();
        let is_tmpfs = rustix::fs::fstatfs(&file).unwrap().f_type as u64 == 0x0102_1994;
        assert_eq!(kind(&file), if is_tmpfs { Kind::Memory } else { Kind::Other });
        assert_eq!(kind(File::open(dir).unwrap()), Kind::Other, "a directory cannot be memory");
    }

    /// Objective: an eventfd is identified without waking its watchers, and is non-blocking
    /// afterwards.
    #[test]
    fn reading_an_eventfd_wakes_no_thread() {
        let event = eventfd(7, EventfdFlags::empty()).unwrap();
        let watch = epoll::create(epoll::CreateFlags::empty()).unwrap();
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&watch, &event, epoll::EventData::new_u64(0), flags).unwrap();
        let mut events = Vec::with_capacity(1);
        let mut told = || {
            events.clear();
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            epoll::wait(&watch, rustix::buffer::spare_capacity(&mut events), Some(&now)).unwrap()
        };
        assert_eq!(told(), 1, "it counts seven");
        assert!(is_event(&event));
        assert_eq!(told(), 0);
        assert!(rustix::fs::fcntl_getfl(&event).unwrap().contains(OFlags::NONBLOCK));
        let mut count = [0; 8];
        rustix::io::read(&event, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 7);
    }
}
