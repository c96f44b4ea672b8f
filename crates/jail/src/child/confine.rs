//! Walls around a program that knows nothing of them: they are raised between fork and exec, and
//! the program inherits them.
//!
//! What is left is what the program needs: an empty root would hide its files.
#![allow(unsafe_code, reason = "between fork and exec there are system calls only")]

use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::pipe::PipeFlags;
use rustix::thread::{Gid, Uid};

use super::{ChildSetup, Pipes, Supervised};
use crate::cell::before::{self, First};
use crate::{Wall, Walls, landlock, privileges, user};

/// The namespaces that a program can be in without knowing.
const NAMESPACES: [(Wall, libc::c_int); 4] = [
    (Wall::IpcNamespace, libc::CLONE_NEWIPC),
    (Wall::NameNamespace, libc::CLONE_NEWUTS),
    (Wall::CgroupNamespace, libc::CLONE_NEWCGROUP),
    (Wall::NetworkNamespace, libc::CLONE_NEWNET),
];
/// The walls that the child tells of, in the order of [`Told`].
const TOLD: [Wall; 7] = [
    Wall::IpcNamespace,
    Wall::NameNamespace,
    Wall::CgroupNamespace,
    Wall::NetworkNamespace,
    Wall::Capabilities,
    Wall::LandlockFiles,
    Wall::SystemCalls,
];
const CAPABILITIES: usize = 4;
const LANDLOCK: usize = 5;
const CALLS: usize = 6;
/// For each wall of [`TOLD`]: 0 if it stands, -1 if it was not wanted, else an errno.
type Told = [i32; TOLD.len()];

/// The walls to raise around a program.
#[derive(Debug, Default)]
pub struct Confinement {
    user: Option<Option<u32>>,
    namespaces: Vec<Wall>,
    landlock: Option<Result<OwnedFd, String>>,
    calls: Option<First>,
    drops: bool,
    own_pids: bool,
}

impl Confinement {
    /// None yet, beside those of each child: it gains no privilege, and has the descriptors that it
    /// is handed.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The program runs as this user, and the group with the same number, in no other group.
    /// Without one it keeps this process's user, and the wall is refused.
    #[must_use]
    pub fn as_user(self, user: Option<u32>) -> Self {
        Self { user: Some(user), ..self }
    }

    /// The program is in namespaces of its own: IPC, UTS and cgroup, and with `network` in one
    /// without an interface. Only root may make them.
    #[must_use]
    pub fn in_namespaces(self, network: bool) -> Self {
        let all = NAMESPACES.into_iter().map(|(wall, _)| wall);
        let wanted = all.filter(|wall| network || *wall != Wall::NetworkNamespace);
        Self { namespaces: wanted.collect(), ..self }
    }

    /// The program is the first process of a process namespace of its own, and what it starts ends
    /// with it. It handles the signals that are to end it. Only root may make one.
    #[must_use]
    pub fn with_own_processes(self) -> Self {
        Self { own_pids: true, ..self }
    }

    /// The program has no capability.
    #[must_use]
    pub fn without_capabilities(self) -> Self {
        Self { drops: true, ..self }
    }

    /// Landlock: the program reads files below `reads` only, writes below `writes` only, listens at
    /// no TCP port, signals no process outside, and connects to no abstract socket.
    #[must_use]
    pub fn with_files(self, reads: &[&Path], writes: &[&Path]) -> Self {
        Self { landlock: Some(landlock::rules_for(reads, writes)), ..self }
    }

    /// The program has no call that reaches far into the kernel, and sockets of the common families
    /// only. One that `confines_itself` may make namespaces for that.
    #[must_use]
    pub fn with_calls(self, confines_itself: bool) -> Self {
        let calls = First { sockets: true, namespaces: confines_itself };
        Self { calls: Some(calls), ..self }
    }

    /// What the child does before exec. The result must not be dropped there.
    fn raise(&self) -> io::Result<Told> {
        let mut told = [-1; TOLD.len()];
        for ((wall, flag), told) in NAMESPACES.into_iter().zip(&mut told) {
            if self.namespaces.contains(&wall) {
                // SAFETY: the call changes only namespaces of this process.
                *told = match unsafe { libc::unshare(flag) } {
                    0 => 0,
                    _ => errno(&io::Error::last_os_error()),
                };
            }
        }
        if self.drops {
            privileges::drop_bounds();
        }
        if let Some(Some(number)) = self.user {
            let (uid, gid) = (Uid::from_raw(number), Gid::from_raw(number));
            rustix::thread::set_thread_groups(&[])?;
            rustix::thread::set_thread_res_gid(gid, gid, gid)?;
            rustix::thread::set_thread_res_uid(uid, uid, uid)?;
        }
        if self.drops {
            told[CAPABILITIES] = privileges::drop_capabilities().map_or_else(|e| errno(&e), |()| 0);
        }
        if let Some(Ok(rules)) = &self.landlock {
            told[LANDLOCK] = landlock::enforce(rules).map_or_else(|e| errno(&e), |()| 0);
        }
        if let Some(first) = self.calls {
            told[CALLS] =
                before::install(before::filters(first)).map_or_else(|e| errno(&e), |()| 0);
        }
        Ok(told)
    }

    /// The walls that stand.
    fn judge(&self, told: &Told) -> Walls {
        let mut walls = Walls::default();
        walls.note(Wall::NoNewPrivileges, Ok(()));
        walls.note(Wall::Descriptors, Ok(()));
        match self.user {
            Some(Some(_)) => walls.note(Wall::User, Ok(())),
            Some(None) => walls.note(Wall::User, Err(user::NOT_ROOT.into())),
            None => {}
        }
        for (wall, errno) in TOLD.into_iter().zip(told) {
            let done = match errno {
                -1 => continue,
                0 => Ok(()),
                errno => Err(io::Error::from_raw_os_error(*errno).to_string()),
            };
            match wall {
                Wall::LandlockFiles => landlock::note_files(&mut walls, &done),
                wall => walls.note(wall, done),
            }
        }
        if let Some(Err(reason)) = &self.landlock {
            walls.note(Wall::LandlockFiles, Err(reason.clone()));
        }
        walls
    }
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EPERM)
}

impl Supervised {
    /// Starts a child within walls. Returns also those that stand, and those that were refused.
    ///
    /// # Errors
    /// The kernel's error, also if the child cannot change its user.
    pub fn start_confined(
        command: &mut Command,
        setup: &ChildSetup,
        confinement: Confinement,
    ) -> io::Result<(Self, Pipes, Walls)> {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let confinement = std::sync::Arc::new(confinement);
        if let Some(first) = confinement.calls {
            // Made here, because the child may not allocate.
            let _ = before::filters(first);
        }
        let (within, to): (_, RawFd) = (std::sync::Arc::clone(&confinement), write.as_raw_fd());
        // The child's own preparations come first: Landlock needs `PR_SET_NO_NEW_PRIVS`.
        setup.equip(command);
        let raise = move || {
            let mut bytes = [0; size_of::<Told>()];
            for (place, errno) in bytes.chunks_exact_mut(4).zip(within.raise()?) {
                place.copy_from_slice(&errno.to_ne_bytes());
            }
            // SAFETY: the bytes exist, and the pipe is open until exec.
            let sent = unsafe { libc::write(to, bytes.as_ptr().cast(), bytes.len()) };
            match usize::try_from(sent) {
                Ok(len) if len == bytes.len() => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        // SAFETY: between fork and exec the child only makes system calls. Neither they nor the
        // errors that are returned allocate memory or take a lock.
        unsafe { command.pre_exec(raise) };
        let mut needs = setup.needs();
        needs.extend(confinement.landlock.iter().flatten().map(AsRawFd::as_raw_fd));
        needs.push(to);
        let own_pids = confinement.own_pids;
        let (child, pipes, pids) = Self::start_equipped(command, &needs, own_pids)?;
        drop(write);
        let mut bytes = [0; size_of::<Told>()];
        // The child has written before exec, and exec is over.
        std::fs::File::from(read).read_exact(&mut bytes)?;
        let mut told = [-1; TOLD.len()];
        for (errno, bytes) in told.iter_mut().zip(bytes.as_chunks().0) {
            *errno = i32::from_ne_bytes(*bytes);
        }
        let mut walls = confinement.judge(&told);
        if let Some(done) = pids {
            walls.note(Wall::ProcessNamespace, done.map_err(|error| error.to_string()));
        }
        Ok((child, pipes, walls))
    }
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    /// What a shell in this confinement says, and the walls around it.
    fn said(confinement: Confinement, script: &str) -> (String, Walls) {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped());
        let (child, pipes, walls) =
            Supervised::start_confined(&mut command, &ChildSetup::new(), confinement).unwrap();
        let said = io::read_to_string(pipes.stdout.unwrap()).unwrap();
        child.wait().unwrap();
        (said, walls)
    }

    #[test]
    fn a_program_reads_and_writes_where_it_may_and_nowhere_else() {
        let [open, closed] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let system = ["/usr", "/bin", "/lib", "/lib64", "/dev", "/proc"].map(Path::new);
        let confinement = Confinement::new().with_files(&system, &[open.path()]);
        let script = format!(
            "echo x > {}/a && echo wrote; echo x > {}/a || echo refused; cat /etc/passwd || echo hidden",
            open.path().display(),
            closed.path().display()
        );
        let (said, walls) = said(confinement, &script);
        if !walls.stands(Wall::LandlockFiles) {
            return println!("skipped: {walls:?}");
        }
        assert_eq!(said, "wrote\nrefused\nhidden\n");
        assert!(!closed.path().join("a").exists());
    }

    #[test]
    fn a_program_has_no_capability_no_common_namespace_and_few_calls() {
        let user = user::dedicated("a test of jail");
        let confinement =
            Confinement::new().as_user(user).in_namespaces(true).without_capabilities();
        let script = "grep -e CapEff -e CapPrm -e Seccomp: -e NoNewPrivs /proc/self/status; id -u; \
                      unshare --user true 2>/dev/null || echo no namespace; readlink /proc/self/ns/ipc";
        let (said, walls) = said(confinement.with_calls(false), script);
        for line in ["CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "no namespace"] {
            assert!(said.contains(line), "{said}");
        }
        assert!(said.contains("Seccomp:\t2") && said.contains("NoNewPrivs:\t1"), "{said}");
        assert_eq!(walls.stands(Wall::User), user.is_some(), "{walls:?}");
        if let Some(user) = user {
            assert!(said.contains(&user.to_string()), "{said}");
            assert_eq!(walls.refused, [], "{walls:?}");
            let own = std::fs::read_link("/proc/self/ns/ipc").unwrap();
            assert!(!said.contains(own.to_str().unwrap()), "{said}");
        }
    }
}
