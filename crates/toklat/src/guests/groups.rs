//! Memory limits by cgroups, which a thread of their own sets: the kernel may take tens of
//! milliseconds to move a process, and a guest that starts does not wait for that.
//!
//! Where this process may make none, private memory is limited (`RLIMIT_DATA`). That limit is twice
//! as high where there are groups, and holds until the guest is in its group.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use jail::cgroup::{self, Group};
use rustix::process::Pid;

/// A process that is to have a group. It is not reaped while its number is in use here.
#[derive(Clone, Debug)]
pub struct Member(Arc<Mutex<bool>>);

impl Member {
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(true)))
    }

    /// Runs `reap`, which may reap the process. Returns true if the process has been reaped.
    pub fn reap<T>(&self, reap: impl FnOnce() -> Option<T>) -> Option<T> {
        let mut lives = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let reaped = reap();
        *lives &= reaped.is_none();
        reaped
    }

    /// Does something with its number, if it still has one.
    fn use_number<T>(&self, act: impl FnOnce() -> T) -> Option<T> {
        let lives = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lives.then(act)
    }
}

/// A request for a group.
#[derive(Debug)]
pub struct Request {
    /// The number of the guest, and the number of the process among the guest's processes.
    pub unit: usize,
    pub turn: u32,
    pub name: String,
    pub bytes: u64,
    pub processes: u64,
    pub pid: Pid,
    pub member: Member,
}

/// A guest's process is in its group.
#[derive(Debug)]
pub struct Limited {
    pub unit: usize,
    pub turn: u32,
    pub group: Confined,
}

/// A group with a guest's process. The thread removes it when this is dropped.
#[derive(Debug)]
pub struct Confined {
    events: PathBuf,
    group: Option<Group>,
    to: Sender<Work>,
}

impl Confined {
    /// True if the kernel has killed the process for want of memory.
    pub fn was_killed(&self) -> bool {
        cgroup::kills(&self.events) > 0
    }
}

impl Drop for Confined {
    fn drop(&mut self) {
        // Without the thread it is removed here.
        let _ = self.group.take().map(|group| self.to.send(Work::Remove(group)));
    }
}

#[derive(Debug)]
enum Work {
    Add(Request),
    Remove(Group),
    End,
}

/// The thread that makes groups.
#[derive(Debug)]
pub struct Groups {
    to: Sender<Work>,
    done: Receiver<Limited>,
    wakes: UnixStream,
    /// The thread's end, so that the other one never ends: a socket that has ended is always
    /// readable.
    _wake: UnixStream,
    /// `None` if this process may make no groups.
    thread: Option<JoinHandle<()>>,
}

impl Groups {
    /// Starts the thread, if this process may make groups.
    ///
    /// # Errors
    /// The kernel refuses a thread or a socket.
    pub fn new() -> std::io::Result<Self> {
        Self::within(cgroup::Groups::new().ok())
    }

    fn within(place: Option<cgroup::Groups>) -> std::io::Result<Self> {
        let ((to, work), (limited, done)) = (channel(), channel());
        let (wakes, wake) = UnixStream::pair()?;
        wakes.set_nonblocking(true)?;
        wake.set_nonblocking(true)?;
        let (back, _wake) = (to.clone(), wake.try_clone()?);
        let start = |place| {
            let run = move || serve(&place, &work, &back, &limited, &wake);
            std::thread::Builder::new().name("groups".into()).spawn(run)
        };
        let thread = place.map(start).transpose()?;
        Ok(Self { to, done, wakes, _wake, thread })
    }

    /// Whether guests get groups.
    pub fn are_there(&self) -> bool {
        self.thread.is_some()
    }

    pub fn ask(&self, request: Request) {
        // Without the thread it is dropped.
        let _ = self.to.send(Work::Add(request));
    }

    /// Those that have been made.
    pub fn take(&self) -> Vec<Limited> {
        let _ = std::io::Read::read(&mut (&self.wakes), &mut [0; 256]);
        self.done.try_iter().collect()
    }
}

impl AsFd for Groups {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakes.as_fd()
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        let _ = self.to.send(Work::End);
        // If the thread panicked, the panic has been logged.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn serve(
    place: &cgroup::Groups,
    work: &Receiver<Work>,
    back: &Sender<Work>,
    limited: &Sender<Limited>,
    wake: &UnixStream,
) {
    for work in work {
        match work {
            Work::End => return,
            // The group is removed when it is dropped.
            Work::Remove(group) => drop(group),
            Work::Add(request) => {
                let Some(group) = add(place, &request) else { continue };
                let (events, to) = (group.events(), back.clone());
                let group = Confined { events, group: Some(group), to };
                let Request { unit, turn, .. } = request;
                // A full socket wakes the manager, too.
                if limited.send(Limited { unit, turn, group }).is_ok() {
                    let _ = (&*wake).write(&[1]);
                }
            }
        }
    }
}

/// Makes a group for a process, and moves it there.
fn add(place: &cgroup::Groups, request: &Request) -> Option<Group> {
    let group = place.add(&request.name, request.bytes, request.processes).ok()?;
    request.member.use_number(|| group.take(request.pid))?.ok()?;
    Some(group)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    #[test]
    fn regression_a_manager_without_groups_is_not_woken_for_ever() {
        let groups = Groups::within(None).unwrap();
        assert!(!groups.are_there());
        let (unit, turn, name, bytes) = (0, 1, "web".to_owned(), 1 << 20);
        let (pid, member) = (rustix::process::getpid(), Member::new());
        let processes = 1;
        groups.ask(Request { unit, turn, name, bytes, processes, pid, member });
        let wait = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        let mut fds = [PollFd::new(&groups, PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(&wait)).unwrap(), 0);
        assert!(groups.take().is_empty());
    }
}
