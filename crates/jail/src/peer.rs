//! The process and user at the other end of a Unix socket, and those that sent a message.
#![allow(unsafe_code, reason = "rustix takes a peer's process number for one that is never 0")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// A peer, as this process sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The peer's process; `None` if it has no number here, because it is outside of this process
    /// namespace.
    pub pid: Option<i32>,
    /// The peer's user number. For users that this user namespace does not map, it is the
    /// kernel's overflow uid, 65534.
    pub uid: u32,
}

/// The peer that connected a socket, or listened for it (`SO_PEERCRED`).
///
/// # Errors
/// The kernel's error.
pub fn of(socket: impl AsFd) -> io::Result<Peer> {
    let found = credentials(socket)?;
    Ok(Peer { pid: (found.pid > 0).then_some(found.pid), uid: found.uid })
}

/// The groups that the peer was in when it connected: its own, and its supplementary ones
/// (`SO_PEERGROUPS`).
///
/// # Errors
/// The kernel's error.
pub fn groups(socket: impl AsFd) -> io::Result<Vec<u32>> {
    let socket = socket.as_fd();
    let mut groups = vec![0u32; 64];
    loop {
        let mut len = size_of_val(&groups[..]) as libc::socklen_t;
        let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERGROUPS);
        let (at, socket) = (groups.as_mut_ptr().cast(), socket.as_raw_fd());
        // SAFETY: `len` bytes are written to `groups` at most, which lives during the call.
        let done = unsafe { libc::getsockopt(socket, level, name, at, &raw mut len) };
        // If there is not enough room, the kernel says how much is needed.
        let number = len as usize / size_of::<u32>();
        let error = (done != 0).then(io::Error::last_os_error);
        match error {
            Some(error) if error.raw_os_error() != Some(libc::ERANGE) => return Err(error),
            Some(_) => groups.resize(number.max(groups.len() * 2), 0),
            None => {
                groups.truncate(number);
                break;
            }
        }
    }
    groups.push(credentials(socket)?.gid);
    Ok(groups)
}

fn credentials(socket: impl AsFd) -> io::Result<libc::ucred> {
    let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of_val(&found) as libc::socklen_t;
    let socket = socket.as_fd().as_raw_fd();
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: `len` bytes are written to `found` at most, which lives during the call.
    let done =
        unsafe { libc::getsockopt(socket, level, name, (&raw mut found).cast(), &raw mut len) };
    match done {
        0 => Ok(found),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Lets a socket say who sent each message that arrives from now on (`SO_PASSCRED`).
///
/// # Errors
/// The kernel's error.
pub fn name_senders(socket: impl AsFd) -> io::Result<()> {
    Ok(rustix::net::sockopt::set_socket_passcred(socket, true)?)
}

/// Room for the credentials of a sender, and for no descriptor.
#[repr(C, align(8))]
struct Control([u8; CONTROL]);
// SAFETY: the macro computes with the number alone.
const CONTROL: usize = unsafe { libc::CMSG_SPACE(size_of::<libc::ucred>() as u32) } as usize;

/// Receives a message without waiting: its length, which may exceed that of `bytes`, and the
/// process that the kernel says has sent it. Only a process that may forge numbers (CAP_SYS_ADMIN
/// over this process namespace) can name another. Descriptors in the message are closed.
///
/// # Errors
/// The kernel's error; `WouldBlock` if there is no message.
pub fn receive(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<(usize, Option<i32>)> {
    let mut control = Control([0; CONTROL]);
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: zero is a valid value for each field.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: all of the buffers live during the call, and are as long as the message says.
    let len = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, flags) };
    let Ok(len) = usize::try_from(len) else { return Err(io::Error::last_os_error()) };
    // SAFETY: the kernel has filled the message in.
    let head = unsafe { libc::CMSG_FIRSTHDR(&raw const message).as_ref() };
    let is_sender = |head: &&libc::cmsghdr| {
        head.cmsg_level == libc::SOL_SOCKET && head.cmsg_type == libc::SCM_CREDENTIALS
    };
    let pid = head.filter(is_sender).map(|head| {
        // SAFETY: credentials follow a header of this type.
        unsafe { libc::CMSG_DATA(head).cast::<libc::ucred>().read_unaligned().pid }
    });
    Ok((len, pid.filter(|pid| *pid > 0)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn a_peer_has_its_own_group_and_all_others() {
        let (ours, _theirs) = UnixDatagram::pair().unwrap();
        let mut groups = groups(&ours).unwrap();
        assert_eq!(groups.pop(), Some(rustix::process::getegid().as_raw()));
        let all = rustix::process::getgroups().unwrap();
        assert_eq!(groups, all.into_iter().map(rustix::process::Gid::as_raw).collect::<Vec<_>>());
    }

    #[test]
    fn the_kernel_names_the_sender_of_each_message_and_descriptors_do_not_arrive() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        name_senders(&ours).unwrap();
        let mut bytes = [0; 4];
        assert_eq!(receive(&ours, &mut bytes).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        theirs.send(b"longer").unwrap();
        let own = std::process::id().cast_signed();
        assert_eq!(receive(&ours, &mut bytes).unwrap(), (6, Some(own)));
        // The pair's maker is another process than the sender.
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "echo hi >&0"]);
        command.stdin(std::os::fd::OwnedFd::from(theirs.try_clone().unwrap()));
        let child = command.spawn().unwrap();
        let pid = child.id().cast_signed();
        assert!(child.wait_with_output().unwrap().status.success());
        assert_eq!(receive(&ours, &mut bytes).unwrap(), (3, Some(pid)));
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = rustix::net::SendAncillaryBuffer::new(&mut space);
        let fds = [reader.as_fd()];
        assert!(rights.push(rustix::net::SendAncillaryMessage::ScmRights(&fds)));
        let flags = rustix::net::SendFlags::empty();
        rustix::net::sendmsg(&theirs, &[io::IoSlice::new(b"fd")], &mut rights, flags).unwrap();
        assert_eq!(receive(&ours, &mut bytes).unwrap(), (2, Some(own)));
        drop(reader);
        // std ignores SIGPIPE.
        assert_eq!(rustix::io::write(&writer, b"x"), Err(rustix::io::Errno::PIPE), "it is gone");
    }
}
