//! What a stranger's descriptor is, asked without entering its file system.

use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{AtFlags, FileType, OFlags, StatxFlags};
use rustix::net::{AddressFamily, SocketType, sockopt};

/// What a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Memory: a memfd, or a file of tmpfs or hugetlbfs. `fstat(2)` of it does not wait.
    Memory,
    /// An eventfd.
    Event,
    /// A socket.
    Socket,
    /// Anything else. To ask more of it may wait as long as its maker likes.
    Other,
}

/// What a stranger's descriptor is. Never waits.
#[must_use]
pub fn kind(fd: impl AsFd) -> Kind {
    // Answered by shmem and hugetlbfs, sealed or not; no other file has seals.
    if rustix::fs::fcntl_get_seals(&fd).is_ok() {
        return Kind::Memory;
    }
    // Takes no lock; what is no socket is found by its operations.
    if sockopt::socket_type(&fd).is_ok() {
        return Kind::Socket;
    }
    if is_anonymous(&fd) && takes_eight_bytes(&fd) { Kind::Event } else { Kind::Other }
}

/// Asked for no more than the type, and not to ask others, a file system answers with what it knows.
fn is_anonymous(fd: impl AsFd) -> bool {
    let how = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    // No file of a file system is without a type; eventfds and their like are.
    rustix::fs::statx(fd, "", how, StatxFlags::TYPE)
        .is_ok_and(|found| FileType::from_raw_mode(found.stx_mode.into()) == FileType::Unknown)
}

/// Of what has no type, only eventfds are written so: others refuse before they look at the bytes. These
/// are nowhere, so that nothing is written, and nobody woken.
fn takes_eight_bytes(fd: impl AsFd) -> bool {
    // SAFETY: the kernel finds nothing at this address, and says so.
    let wrote = unsafe { libc::write(fd.as_fd().as_raw_fd(), std::ptr::null(), 8) };
    wrote == -1 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT)
}

/// True if it is an eventfd. It does not block from now on, as those of QEMU and DPDK never did.
#[must_use]
pub fn is_event(fd: impl AsFd) -> bool {
    kind(&fd) == Kind::Event
        && rustix::fs::fcntl_getfl(&fd)
            .and_then(|flags| rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK))
            .is_ok()
}

/// True if it is a stream socket of this machine.
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

    /// Objective: files of tmpfs that nobody sealed, which guests' memory often is, are memory.
    #[test]
    fn files_of_tmpfs_are_memory() {
        let dir = std::path::Path::new("/dev/shm");
        let path = dir.join(format!("toklat-kind-{}", std::process::id()));
        let Ok(file) = File::create_new(&path) else { return eprintln!("SKIPPED: no /dev/shm") };
        std::fs::remove_file(&path).unwrap();
        let is_tmpfs = rustix::fs::fstatfs(&file).unwrap().f_type as u64 == 0x0102_1994;
        assert_eq!(kind(&file), if is_tmpfs { Kind::Memory } else { Kind::Other });
        assert_eq!(kind(File::open(dir).unwrap()), Kind::Other, "a directory is no memory");
    }

    /// Objective: an eventfd is known without waking those who watch it, and does not block afterwards.
    #[test]
    fn asking_an_eventfd_wakes_nobody() {
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
