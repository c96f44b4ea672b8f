//! Moves a process into namespaces of its own.
//!
//! Three processes take part. The *creator* stays outside: it may map the users of another
//! process's namespace. The *mover* enters the namespaces. A process namespace applies to children
//! only, so the mover starts the *inhabitant*, which continues as the program. If one of them ends
//! early, the processes that it started end, too, because they wait for its message.
#![allow(
    unsafe_code,
    reason = "rustix calls unshare unsafe, for the sake of its tables of descriptors"
)]

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

use rustix::process::Pid;
use rustix::thread::{Gid, Uid, UnshareFlags};

use super::fork::{self, Side};
use super::{Jail, JailError, Wall, Walls, user};

/// The creator's user and group, as the inhabitant sees them. No other user looks like these, even
/// if the creator's user has the number that stands for unknown users.
const CREATOR: u32 = 1;
/// The inhabitant's own user and group, as it sees them.
const OWN: u32 = 2;

/// The messages of mover and inhabitant: the user namespace exists; there is none (the reason
/// follows); all walls stand.
const MAP: u8 = b'm';
const NO_USER: u8 = b'n';
const UP: u8 = b'u';
/// The creator's answer: go on.
const GO: u8 = b'g';

/// What a confined process knows about its namespaces and its users.
pub struct Place {
    /// Whether the process has a mount namespace of its own.
    pub mounts: Result<(), String>,
    /// The numbers under which the process sees the creator's user.
    pub creators: Vec<u32>,
    /// The user and group that the process takes on; `None` to keep the number that it was given.
    own: Option<u32>,
}

impl Place {
    /// Takes on the user of this process: `user` outside.
    pub fn become_user(&self, user: Option<u32>) -> io::Result<()> {
        let Some(number) = self.own.or(user) else { return Ok(()) };
        let (uid, gid) = (Uid::from_raw(number), Gid::from_raw(number));
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        Ok(rustix::thread::set_thread_res_uid(uid, uid, uid)?)
    }
}

/// Waits for the creator's last message, if there is a creator.
pub struct Go(Option<UnixStream>);

impl Go {
    /// The descriptor that must stay open, if there is a creator.
    pub fn descriptor(&self) -> Option<RawFd> {
        self.0.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Tells the creator that all walls stand; the creator then ends. If the creator does not
    /// answer, no process knows of this one, and it ends, too.
    pub fn wait(self) -> io::Result<()> {
        let Some(mut creator) = self.0 else { return Ok(()) };
        creator.write_all(&[UP])?;
        creator.read_exact(&mut [0])
    }
}

/// Enters the namespaces that the jail wants. Returns in the inhabitant; the creator and the mover
/// end here.
pub fn enter(jail: &Jail, walls: &mut Walls) -> Result<(Place, Go), JailError> {
    let system = |what| move |source| JailError::System { what, source };
    let mut with_user = jail.wants(Wall::UserNamespace);
    if !with_user && NAMESPACES.iter().all(|(wall, _)| !jail.wants(*wall)) {
        let place = Place { mounts: Err("it was not wanted".into()), creators: here(), own: None };
        return Ok((place, Go(None)));
    }
    loop {
        let (ours, theirs) = UnixStream::pair().map_err(system("make a pair of sockets"))?;
        match fork::fork().map_err(system("start a process"))? {
            Side::Child => {
                drop(ours);
                return move_in(jail, with_user, walls, theirs).map_err(system("start a process"));
            }
            Side::Parent(mover) => {
                drop(theirs);
                match attend(ours, mover, jail) {
                    Outcome::Up => fork::end(0),
                    Outcome::Dead => fork::end(1),
                    Outcome::NoUser(reason) => {
                        walls.note(Wall::UserNamespace, Err(reason));
                        with_user = false;
                    }
                }
            }
        }
    }
}

/// The numbers under which a process outside of namespaces sees its creator's user.
pub fn here() -> Vec<u32> {
    vec![rustix::process::geteuid().as_raw(), 0]
}

/// The namespaces that follow the user namespace, which gives the right to enter them.
const NAMESPACES: [(Wall, UnshareFlags); 6] = [
    (Wall::Root, UnshareFlags::NEWNS),
    (Wall::ProcessNamespace, UnshareFlags::NEWPID),
    (Wall::IpcNamespace, UnshareFlags::NEWIPC),
    (Wall::NameNamespace, UnshareFlags::NEWUTS),
    (Wall::NetworkNamespace, UnshareFlags::NEWNET),
    (Wall::CgroupNamespace, UnshareFlags::NEWCGROUP),
];

/// The part of the mover, and the start of the inhabitant.
fn move_in(
    jail: &Jail,
    with_user: bool,
    walls: &mut Walls,
    mut creator: UnixStream,
) -> io::Result<(Place, Go)> {
    let mut creators = here();
    if with_user {
        if let Err(error) = unshare(UnshareFlags::NEWUSER) {
            let _ = creator.write_all(&[NO_USER]);
            let _ = creator.write_all(error.to_string().as_bytes());
            fork::end(1);
        }
        // If the users cannot be mapped, the creator reports why and starts over.
        if creator.write_all(&[MAP]).and_then(|()| creator.read_exact(&mut [0])).is_err() {
            fork::end(1);
        }
        walls.note(Wall::UserNamespace, Ok(()));
        creators = vec![CREATOR];
    }
    let mut mounts = Err("it was not wanted".to_owned());
    for (wall, flag) in NAMESPACES.into_iter().filter(|(wall, _)| jail.wants(*wall)) {
        let done = unshare(flag).map_err(|error| error.to_string());
        match wall {
            // The wall of the root directory stands only after the old root directory is left.
            Wall::Root => mounts = done,
            _ => walls.note(wall, done),
        }
    }
    if let Side::Parent(_) = fork::fork()? {
        fork::end(0);
    }
    if walls.stands(Wall::ProcessNamespace) {
        fork::obey_signals()?;
    }
    let own = (with_user && jail.user.is_some()).then_some(OWN);
    Ok((Place { mounts, creators, own }, Go(Some(creator))))
}

fn unshare(flag: UnshareFlags) -> io::Result<()> {
    // SAFETY: the table of descriptors is not among these flags.
    Ok(unsafe { rustix::thread::unshare_unsafe(flag) }?)
}

/// The outcome of a mover.
enum Outcome {
    /// The inhabitant is confined.
    Up,
    /// The user namespace could not be created, for this reason.
    NoUser(String),
    /// The mover or the inhabitant ended, for a reason that it reported.
    Dead,
}

/// The part of the process that creates the namespaces: maps users, and waits for the mover's
/// reports.
fn attend(mut inner: UnixStream, mover: Pid, jail: &Jail) -> Outcome {
    let outcome = loop {
        let mut word = [0];
        let heard = inner.read_exact(&mut word);
        match word[0] {
            _ if heard.is_err() => break Outcome::Dead,
            MAP => match map_users(mover, jail).and_then(|()| inner.write_all(&[GO])) {
                Ok(()) => (),
                Err(error) => {
                    break Outcome::NoUser(format!("its users cannot be mapped: {error}"));
                }
            },
            NO_USER => {
                let mut reason = String::new();
                let _ = inner.read_to_string(&mut reason);
                break Outcome::NoUser(reason);
            }
            UP if inner.write_all(&[GO]).is_ok() => break Outcome::Up,
            _ => break Outcome::Dead,
        }
    };
    // Closing the socket ends a mover that still waits.
    drop(inner);
    fork::reap(mover);
    outcome
}

/// Maps the users and groups in the namespace of `mover`: those of the creator, and its own.
fn map_users(mover: Pid, jail: &Jail) -> io::Result<()> {
    let write = |file: &str, text: &str| {
        std::fs::write(format!("/proc/{}/{file}", mover.as_raw_nonzero()), text)
    };
    let map = |creator: u32| match jail.user {
        Some(user) => format!("{CREATOR} {creator} 1\n{OWN} {user} 1\n"),
        None => format!("{CREATOR} {creator} 1\n"),
    };
    if !user::may_change() {
        // Otherwise a process could leave a group to which a file denies access.
        write("setgroups", "deny")?;
    }
    write("gid_map", &map(rustix::process::getegid().as_raw()))?;
    write("uid_map", &map(rustix::process::geteuid().as_raw()))
}
