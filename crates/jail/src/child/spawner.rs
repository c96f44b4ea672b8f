//! A thread that starts children with a descriptor table of its own.
//!
//! A child has copies of all descriptors of the thread that starts it, and its `exec` closes them.
//! Each close of a file of FUSE waits for the file's server, not only the last one. So a stranger's
//! descriptor of that kind would hold up the start of any child, for as long as the stranger likes,
//! and whatever waits for that start. This thread got a table of its own before strangers could
//! send anything, and what a child needs is sent to it.
#![allow(unsafe_code, reason = "descriptors have numbers that the child knows")]

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::io::{Errno, fcntl_dupfd_cloexec, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, socketpair,
};
use rustix::process::{Pid, Signal};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// The most descriptors that go either way at a time.
const MOST: usize = 16;

static SPAWNER: OnceLock<Mutex<Spawner>> = OnceLock::new();

/// The other threads' end of the conversation with the thread.
struct Spawner {
    socket: OwnedFd,
    jobs: Sender<Job>,
    done: Receiver<Done>,
}

/// A child to start. The descriptors with these numbers come over the socket.
struct Job {
    command: Command,
    needs: Vec<RawFd>,
    own_pids: bool,
}

/// What became of it. The pipes that it has come over the socket.
struct Done {
    command: Command,
    started: io::Result<Started<bool>>,
}

/// A child that was started.
pub(super) struct Started<End> {
    pub pid: Pid,
    /// Our ends of its standard streams.
    pub ends: [End; 3],
    /// Whether it got the process namespace that it was to have, if any.
    pub own_pids: Option<io::Result<()>>,
}

impl<End> Started<End> {
    fn with<Other>(self, ends: [Other; 3]) -> Started<Other> {
        Started { pid: self.pid, ends, own_pids: self.own_pids }
    }
}

/// Starts the thread from which all children start from now on. Call it before strangers can send
/// descriptors to this process. The standard streams of a command must be pipes, null or inherited
/// then: the thread does not have other files.
///
/// # Errors
/// The kernel refuses a thread, or a table of its own.
pub fn start_apart() -> io::Result<()> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let (socket, theirs) = socketpair(family, kind, SocketFlags::CLOEXEC, None)?;
    let ((jobs, todo), (tell, done)) = (channel::<Job>(), channel());
    let (ready, is_ready) = channel();
    let number = theirs.as_raw_fd();
    let work = move || {
        // SAFETY: this thread uses no descriptor but its end of the socket from here on, and that
        // is in both tables.
        let apart = unsafe { unshare_unsafe(UnshareFlags::FILES) };
        let is_apart = apart.is_ok();
        let _ = ready.send(apart);
        if is_apart {
            close_but(number);
            serve(theirs, &todo, &tell);
        } else {
            // The table is shared still, and the other thread closes this end.
            std::mem::forget(theirs);
        }
    };
    std::thread::Builder::new().name("spawner".into()).spawn(work)?;
    let apart = is_ready.recv().map_err(io::Error::other)?;
    // SAFETY: of this table's copy nothing else knows.
    unsafe { libc::close(number) };
    apart?;
    let _ = SPAWNER.set(Mutex::new(Spawner { socket, jobs, done }));
    Ok(())
}

/// Closes all descriptors of this thread's table but the standard streams and one more.
fn close_but(number: RawFd) {
    let number = number.unsigned_abs();
    for (first, last) in [(3, number.saturating_sub(1)), (number + 1, libc::c_uint::MAX)] {
        if first <= last {
            // SAFETY: nothing uses these descriptors by this table.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
    }
}

/// Starts a child that needs the descriptors with these numbers: from the thread, if it runs. With
/// `own_pids` it is the first process of a process namespace, where this process may make one.
pub(super) fn spawn(
    command: &mut Command,
    needs: &[RawFd],
    own_pids: bool,
) -> io::Result<Started<Option<OwnedFd>>> {
    let Some(spawner) = SPAWNER.get() else { return start(command, own_pids) };
    let spawner = spawner.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the caller has them open.
    let fds = needs.iter().map(|fd| unsafe { BorrowedFd::borrow_raw(*fd) }).collect::<Vec<_>>();
    send(&spawner.socket, &fds)?;
    let taken = std::mem::replace(command, Command::new(""));
    let gone = || io::Error::other("the thread that starts children is gone");
    let job = Job { command: taken, needs: needs.to_vec(), own_pids };
    spawner.jobs.send(job).map_err(|_| gone())?;
    let done = spawner.done.recv().map_err(|_| gone())?;
    *command = done.command;
    let started = done.started?;
    // A pipe that does not arrive is one that the caller misses.
    let mut came = receive(&spawner.socket).unwrap_or_default().into_iter();
    let ends = started.ends.map(|is_piped| if is_piped { came.next() } else { None });
    Ok(started.with(ends))
}

/// Starts a child here.
fn start(command: &mut Command, own_pids: bool) -> io::Result<Started<Option<OwnedFd>>> {
    if !own_pids {
        return start_here(command, None);
    }
    // All further children of a thread with such a namespace are in it, so this thread ends.
    let alone = || {
        // SAFETY: the table of descriptors is not among these flags.
        let done = unsafe { unshare_unsafe(UnshareFlags::NEWPID) };
        start_here(command, Some(done.map_err(io::Error::from)))
    };
    let started = std::thread::scope(|scope| scope.spawn(alone).join());
    started.unwrap_or_else(|_| Err(io::Error::other("the thread that starts a child panicked")))
}

fn start_here(
    command: &mut Command,
    own_pids: Option<io::Result<()>>,
) -> io::Result<Started<Option<OwnedFd>>> {
    let mut child = command.spawn()?;
    let ends = [
        child.stdin.take().map(OwnedFd::from),
        child.stdout.take().map(OwnedFd::from),
        child.stderr.take().map(OwnedFd::from),
    ];
    Ok(Started { pid: Pid::from_child(&child), ends, own_pids })
}

/// What the thread does: the other threads' jobs, until this process ends.
fn serve(mut socket: OwnedFd, todo: &Receiver<Job>, tell: &Sender<Done>) {
    while let Ok(mut job) = todo.recv() {
        let started = job.start(&mut socket);
        if tell.send(Done { command: job.command, started }).is_err() {
            return;
        }
    }
}

impl Job {
    fn start(&mut self, socket: &mut OwnedFd) -> io::Result<Started<bool>> {
        let needed = self.place(socket)?;
        let started = start(&mut self.command, self.own_pids)?;
        drop(needed);
        let fds: Vec<_> = started.ends.iter().flatten().map(AsFd::as_fd).collect();
        send(&*socket, &fds).inspect_err(|_| {
            // It fails only without memory. The caller never knows of this child.
            let _ = rustix::process::kill_process(started.pid, Signal::KILL);
        })?;
        let piped = started.ends.each_ref().map(Option::is_some);
        Ok(started.with(piped))
    }

    /// Receives what the child needs, and gives each the number that the child knows. If that is
    /// the number of the thread's own socket, the socket gets another one.
    fn place(&self, socket: &mut OwnedFd) -> io::Result<Vec<OwnedFd>> {
        let came = receive(&*socket)?;
        if came.len() != self.needs.len() {
            return Err(Errno::BADF.into());
        }
        let free = self.needs.iter().max().map_or(3, |most| most + 1);
        if self.needs.contains(&socket.as_raw_fd()) {
            *socket = fcntl_dupfd_cloexec(&*socket, free)?;
        }
        // Above all numbers that are wanted, so that each is free.
        let moved = came.iter().map(|fd| fcntl_dupfd_cloexec(fd, free));
        let moved = moved.collect::<Result<Vec<_>, _>>()?;
        drop(came);
        let place = |(fd, number): (&OwnedFd, &RawFd)| {
            // SAFETY: no descriptor of this table has this number.
            match unsafe { libc::dup3(fd.as_raw_fd(), *number, libc::O_CLOEXEC) } {
                -1 => Err(io::Error::last_os_error()),
                // SAFETY: it was made by the call.
                placed => Ok(unsafe { OwnedFd::from_raw_fd(placed) }),
            }
        };
        moved.iter().zip(&self.needs).map(place).collect()
    }
}

/// Sends descriptors, if any, with one byte.
fn send(socket: impl AsFd, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::INVAL.into());
    }
    let (part, flags) = ([IoSlice::new(&[0])], SendFlags::NOSIGNAL);
    let sent = retry_on_intr(|| rustix::net::sendmsg(&socket, &part, &mut control, flags));
    Ok(sent.map(drop)?)
}

/// Receives what the other side has sent with the next byte.
fn receive(socket: impl AsFd) -> io::Result<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    retry_on_intr(|| rustix::net::recvmsg(&socket, &mut parts, &mut control, flags))?;
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    Ok(rights.flatten().collect())
}
