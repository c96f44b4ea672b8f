//! Cells: processes that start inside walls, for programs that take part in their confinement.
//!
//! A jail's program confines itself before it does anything else. The program in a cell may first
//! load its libraries and read its files, so its creator raises what can be raised before, between
//! `clone` and `exec`: a user of its own, namespaces, limits, no new privileges. When the program
//! is ready, it [seals](seal()) its cell, and [forbids](finish) all system calls that it needs no
//! more.
//!
//! A program may [copy](Cell::copy) itself before it is sealed: each copy gets a cell of its own,
//! and is a child of the creator. Both sides talk over one socket, whose messages to the
//! creator are [`Report`]s.
#![allow(unsafe_code, reason = "clone, exec and what is done between them")]

pub(crate) mod before;
mod report;
mod seal;

use std::ffi::{CStr, CString, c_char};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

use rustix::process::{DumpableBehavior, Pid, Resource, Rlimit, Signal};
use rustix::thread::{Gid, Uid};

pub use self::before::TEMPORARY;
pub use self::report::{MAX_REPORT, Report, send};
pub use self::seal::{Sealed, finish, seal};
use crate::child::Supervised;
use crate::{Wall, user};

/// The walls that a creator raises before the program runs, in the order of [`Report::Entered`].
pub const ENTERED: [Wall; 8] = [
    Wall::User,
    Wall::UserNamespace,
    Wall::ProcessNamespace,
    Wall::Root,
    Wall::IpcNamespace,
    Wall::NameNamespace,
    Wall::NetworkNamespace,
    Wall::CgroupNamespace,
];
/// The namespaces of [`ENTERED`] from [`Wall::Root`] on.
const NAMESPACES: [libc::c_int; 5] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWCGROUP,
];
const USER: usize = 0;
const USER_NAMESPACE: usize = 1;
const PROCESS_NAMESPACE: usize = 2;
const ROOT: usize = 3;

/// For each wall of [`ENTERED`]: 0 if it stands, -1 if it was not wanted, else the errno of the
/// failure.
pub type Entered = [i32; ENTERED.len()];

/// The environment variable that names the socket to the creator: its number, a colon, and `m` if
/// the process has a mount namespace of its own.
pub const VARIABLE: &str = "TOKLAT_CELL";

/// Steps before the program runs. If one of them fails, there is no process ([`Report::Stuck`]).
pub const STEPS: [&str; 6] = [
    "map its user",
    "become its user",
    "set its limits",
    "pass on its descriptors",
    "execute the program",
    "limit its system calls",
];

/// How cells are made.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The user, and the group with the same number, that processes become.
    pub user: Option<u32>,
    /// The maximum number of bytes of private memory (`RLIMIT_DATA`).
    pub memory: Option<u64>,
    /// The maximum number of descriptors.
    pub descriptors: u64,
    /// The maximum number of processes and threads of the cell, with those of its copies
    /// (`RLIMIT_NPROC`). It has no effect on kernels that count all of the user's (before 5.14).
    pub processes: Option<u64>,
    /// Whether user namespaces can be made: 0 or an errno.
    pub user_namespaces: i32,
    /// The process will make copies of itself, so it shares the creator's process namespace.
    pub copies: bool,
}

/// A program and its arguments, ready for `exec`.
#[derive(Debug)]
pub struct Program {
    file: OwnedFd,
    args: Vec<CString>,
    /// The environment. Its last variable is [`VARIABLE`].
    environment: Vec<CString>,
}

impl Program {
    /// A program with these arguments and variables. The first argument is its name. The file is
    /// opened here, so the user of the cell needs no access to the directories above it; but that
    /// user must be able to read and execute the file.
    ///
    /// # Errors
    /// There is no such file, or a string contains a zero byte.
    pub fn new(path: &Path, args: &[&[u8]], environment: &[(&str, &str)]) -> io::Result<Self> {
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, rustix::fs::Mode::empty())?;
        let text = |bytes: &[u8]| CString::new(bytes).map_err(io::Error::from);
        let args = args.iter().map(|arg| text(arg)).collect::<io::Result<_>>()?;
        let variable = |(name, value): &(&str, &str)| text(format!("{name}={value}").as_bytes());
        let environment = environment.iter().map(variable).collect::<io::Result<_>>()?;
        Ok(Self { file, args, environment })
    }
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
}

/// The texts for the maps of users and groups, made before `clone`.
struct Maps([CString; 2]);

/// Maps the user and the group 0 to the 0 of the namespace outside.
fn map_root() -> io::Result<()> {
    write_maps(c"0 0 1\n", c"0 0 1\n")
}

impl Maps {
    /// Maps this user and group to 0.
    fn of([uid, gid]: [u32; 2]) -> io::Result<Self> {
        let text = |id: u32| CString::new(format!("0 {id} 1\n")).map_err(io::Error::from);
        Ok(Self([text(uid)?, text(gid)?]))
    }

    /// Writes the maps for this process, which has just entered its user namespace.
    fn write(&self) -> io::Result<()> {
        write_maps(&self.0[0], &self.0[1])
    }
}

fn write_maps(users: &CStr, groups: &CStr) -> io::Result<()> {
    let write = |path: &CStr, text: &CStr| -> io::Result<()> {
        let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, rustix::fs::Mode::empty())?;
        rustix::io::write(&file, text.to_bytes())?;
        Ok(())
    };
    // Without this, a process could leave a group to which a file denies access. In a namespace
    // within such a namespace, `setgroups` is denied already, so the write may fail.
    let _ = write(c"/proc/self/setgroups", c"deny");
    write(c"/proc/self/gid_map", groups)?;
    write(c"/proc/self/uid_map", users)
}

impl Cell {
    /// Finds out what this process can make: a user for `name`, and whether there are user
    /// namespaces.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let user_namespaces = match clone(libc::CLONE_NEWUSER) {
            Ok(None) => crate::fork::end(0),
            Ok(Some(child)) => {
                crate::fork::reap(child);
                0
            }
            Err(error) => error.raw_os_error().unwrap_or(libc::EPERM),
        };
        let user = user::dedicated(name);
        let (memory, processes) = (None, None);
        Self { user, memory, descriptors: 64, processes, user_namespaces, copies: false }
    }

    /// Starts a program in a cell. It gets `output` as its standard output and error, the socket
    /// `control`, and no other descriptor. It ends when the calling thread does, so call this in a
    /// thread that lives long.
    ///
    /// # Errors
    /// The kernel's error. What fails later is a [`Report::Stuck`].
    pub fn start(
        &self,
        program: &mut Program,
        control: BorrowedFd<'_>,
        output: BorrowedFd<'_>,
    ) -> io::Result<Supervised> {
        let variable = format!("{VARIABLE}={}:.", control.as_raw_fd());
        program.environment.push(CString::new(variable)?);
        let args = pointers(&program.args);
        let environment = pointers(&program.environment);
        let (maps, filters) = (self.maps()?, before::filters(self.first()));
        let _ = before::counts_processes();
        let started = Supervised::start_by(|| self.clone_process(0));
        let Ok(None) = started else {
            program.environment.pop();
            return started.and_then(|child| child.ok_or_else(|| io::ErrorKind::Other.into()));
        };
        let result: Result<(), _> = self.settle(&maps, control, Some(output)).and_then(|entered| {
            before::install(filters).map_err(|error| (5, error))?;
            if entered[ROOT] == 0
                && let Some(variable) = program.environment.last()
            {
                let last = variable.as_bytes().len() - 1;
                // SAFETY: within the string, which belongs to this process alone, and is read by
                // exec only.
                unsafe { variable.as_ptr().cast_mut().add(last).write(b'm' as c_char) };
            }
            // SAFETY: the arrays end with null, and their strings live.
            unsafe {
                libc::syscall(
                    libc::SYS_execveat,
                    program.file.as_raw_fd(),
                    c"".as_ptr(),
                    args.as_ptr(),
                    environment.as_ptr(),
                    libc::AT_EMPTY_PATH,
                )
            };
            Err((4, io::Error::last_os_error()))
        });
        if let Err((step, error)) = result {
            send(control, &Report::Stuck { step, errno: error.raw_os_error().unwrap_or(0) });
        }
        crate::fork::end(127)
    }

    /// Makes a copy of this process in a cell of its own, which is a child of this process's
    /// parent. Returns its number, or `None` in the copy, and then whether it has a mount namespace
    /// of its own.
    ///
    /// # Errors
    /// The kernel's error. In the copy, the step that failed; it must end then.
    pub fn copy(&self, control: BorrowedFd<'_>) -> io::Result<Result<Pid, bool>> {
        let (maps, filters) = (Maps::of([0, 0])?, before::filters(self.first()));
        let _ = before::counts_processes();
        match self.clone_process(libc::CLONE_PARENT)? {
            Some(pid) => Ok(Ok(pid)),
            None => match self.settle(&maps, control, None).and_then(|entered| {
                before::install(filters).map_err(|error| (5, error))?;
                Ok(entered)
            }) {
                Ok(entered) => Ok(Err(entered[ROOT] == 0)),
                Err((step, error)) => {
                    let errno = error.raw_os_error().unwrap_or(0);
                    send(control, &Report::Stuck { step, errno });
                    crate::fork::end(127)
                }
            },
        }
    }

    fn maps(&self) -> io::Result<Maps> {
        let own = [rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()];
        Maps::of(self.user.map_or(own, |user| [user, user]))
    }

    /// True if the process needs a user namespace to make the other namespaces.
    fn begins_with_user(&self) -> bool {
        self.user.is_none() && self.user_namespaces == 0
    }

    fn clone_process(&self, more: libc::c_int) -> io::Result<Option<Pid>> {
        let mut flags = more;
        if self.begins_with_user() {
            flags |= libc::CLONE_NEWUSER;
        }
        if !self.copies && (self.begins_with_user() || self.user.is_some()) {
            flags |= libc::CLONE_NEWPID;
        }
        clone(flags)
    }

    /// Sets the new process up. It allocates nothing and takes no lock, because the process that it
    /// was copied from may have had other threads.
    fn settle(
        &self,
        maps: &Maps,
        control: BorrowedFd<'_>,
        output: Option<BorrowedFd<'_>>,
    ) -> Result<Entered, (u32, io::Error)> {
        let step = |step: u32| move |error: io::Error| (step, error);
        let mut entered = [-1; ENTERED.len()];
        let has_pid = self.begins_with_user() || self.user.is_some();
        entered[PROCESS_NAMESPACE] = match (self.copies, has_pid) {
            (true, _) => -1,
            (false, true) => 0,
            (false, false) => self.user_namespaces.max(1),
        };
        entered[USER_NAMESPACE] = self.user_namespaces;
        if self.user_namespaces != 0 {
            // The process enters its namespaces as root, before it becomes another user.
            enter_namespaces(&mut entered);
        }
        if let Some(number) = self.user {
            become_user(number).map_err(step(1))?;
            entered[USER] = 0;
        }
        if self.user_namespaces == 0 {
            if !self.begins_with_user() {
                unshare(libc::CLONE_NEWUSER).map_err(step(0))?;
            }
            maps.write().map_err(step(0))?;
            enter_namespaces(&mut entered);
        }
        if entered[ROOT] == 0
            && let Err(error) = self.furnish()
        {
            // The process then cannot leave its root directory, and says so.
            entered[ROOT] = error.raw_os_error().unwrap_or(libc::EPERM);
        }
        self.limit().map_err(step(2))?;
        if let Some(output) = output {
            hand_over(control, output).map_err(step(3))?;
        }
        send(control, &Report::Entered(entered));
        Ok(entered)
    }

    /// What the program may do before it is sealed.
    fn first(&self) -> before::First {
        before::First { sockets: false, namespaces: self.copies }
    }

    /// Makes all mounts of this mount namespace read-only, and gives the process a small directory
    /// of its own for temporary files. A second user namespace takes the right to undo that.
    fn furnish(&self) -> io::Result<()> {
        before::furnish()?;
        if self.user_namespaces != 0 {
            // This process has become a user without that right.
            return Ok(());
        }
        unshare(libc::CLONE_NEWUSER)?;
        map_root()?;
        unshare(libc::CLONE_NEWNS)
    }

    fn limit(&self) -> io::Result<()> {
        let most = |limit| Rlimit { current: Some(limit), maximum: Some(limit) };
        rustix::process::setrlimit(Resource::Core, most(0))?;
        let has = rustix::process::getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        rustix::process::setrlimit(Resource::Nofile, most(self.descriptors.min(has)))?;
        let has = rustix::process::getrlimit(Resource::Fsize).maximum.unwrap_or(u64::MAX);
        rustix::process::setrlimit(Resource::Fsize, most(before::MAX_FILE.min(has)))?;
        if let Some(processes) = self.processes.filter(|_| before::counts_processes()) {
            let has = rustix::process::getrlimit(Resource::Nproc).maximum.unwrap_or(u64::MAX);
            rustix::process::setrlimit(Resource::Nproc, most(processes.min(has)))?;
        }
        if let Some(memory) = self.memory {
            let has = rustix::process::getrlimit(Resource::Data).maximum.unwrap_or(u64::MAX);
            rustix::process::setrlimit(Resource::Data, most(memory.min(has)))?;
        }
        rustix::thread::set_no_new_privs(true)?;
        Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?)
    }
}

fn become_user(number: u32) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(number), Gid::from_raw(number));
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    // The files with the namespace's maps belong to the process's user only while the process is
    // dumpable.
    Ok(rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable)?)
}

fn enter_namespaces(entered: &mut Entered) {
    for (flag, place) in NAMESPACES.into_iter().zip(&mut entered[ROOT..]) {
        *place = unshare(flag).map_or_else(|error| error.raw_os_error().unwrap_or(1), |()| 0);
    }
}

fn unshare(flag: libc::c_int) -> io::Result<()> {
    // SAFETY: the call changes only namespaces of this process.
    match unsafe { libc::unshare(flag) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes `output` the standard output and error, nothing the standard input, and marks all others
/// but `control` for closing at exec.
fn hand_over(control: BorrowedFd<'_>, output: BorrowedFd<'_>) -> io::Result<()> {
    let (control, output) = (control.as_raw_fd(), output.as_raw_fd());
    // SAFETY: the calls take only numbers; the standard streams are the new process's own.
    unsafe {
        libc::close(0);
        let nothing = libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY);
        if nothing < 0 || libc::dup2(output, 1) < 0 || libc::dup2(output, 2) < 0 {
            return Err(io::Error::last_os_error());
        }
        let mark = libc::CLOSE_RANGE_CLOEXEC;
        if libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, mark) != 0
            || libc::fcntl(control, libc::F_SETFD, 0) != 0
        {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Copies this process; `None` in the copy, which may do nothing that takes a lock.
fn clone(flags: libc::c_int) -> io::Result<Option<Pid>> {
    // SAFETY: no memory is shared, so this is a fork.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags | libc::SIGCHLD, 0, 0, 0, 0) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(Pid::from_raw(pid as RawFd)),
    }
}
