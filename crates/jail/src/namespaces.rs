//! Namespaces of a process's own.
//!
//! Three processes take part. The *creator* stays where it is: it may write which users there are in the namespace of another.
//! The *mover* enters the namespaces; a process namespace holds for its children only, so it starts the *inhabitant*, which goes
//! on as the program. Whichever ends early ends those that it started: they wait for a word of its.
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

/// The creator's user and group as the inhabitant sees them. Nobody else's look like these, not even where the creator's user
/// is the one that all unknown ones look like.
const CREATOR: u32 = 1;
/// The inhabitant's own user and group, as it sees them.
const OWN: u32 = 2;

/// What the mover and the inhabitant say: their user namespace is there, they have none (a reason follows), all walls stand.
const MAP: u8 = b'm';
const NO_USER: u8 = b'n';
const UP: u8 = b'u';
/// What the creator answers.
const GO: u8 = b'g';

/// Where a process is.
pub struct Place {
    /// Whether it has a mount namespace of its own.
    pub mounts: Result<(), String>,
    /// As which users it sees the creator's.
    pub creators: Vec<u32>,
    /// Its own user and group, once it is to take them; `None` for the number it was told.
    own: Option<u32>,
}

impl Place {
    /// Takes the user on that is this process's own: `user` outside.
    pub fn become_user(&self, user: Option<u32>) -> io::Result<()> {
        let Some(number) = self.own.or(user) else { return Ok(()) };
        let (uid, gid) = (Uid::from_raw(number), Gid::from_raw(number));
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        Ok(rustix::thread::set_thread_res_uid(uid, uid, uid)?)
    }
}

/// What waits for the creator's last word, where there is a creator.
pub struct Go(Option<UnixStream>);

impl Go {
    /// The descriptor that it needs.
    pub fn descriptor(&self) -> Option<RawFd> {
        self.0.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Tells the creator that all walls stand, after which that ends. Without it nobody knows of this process: it ends too.
    pub fn wait(self) -> io::Result<()> {
        let Some(mut creator) = self.0 else { return Ok(()) };
        creator.write_all(&[UP])?;
        creator.read_exact(&mut [0])
    }
}

/// Enters the namespaces that the jail wants. Returns in the inhabitant; the creator and the mover end here.
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

/// As which users a process outside of namespaces sees its creator's.
pub fn here() -> Vec<u32> {
    vec![rustix::process::geteuid().as_raw(), 0]
}

/// The namespaces beside the user namespace, which goes before them: it gives the right to enter these.
const NAMESPACES: [(Wall, UnshareFlags); 6] = [
    (Wall::Root, UnshareFlags::NEWNS),
    (Wall::ProcessNamespace, UnshareFlags::NEWPID),
    (Wall::IpcNamespace, UnshareFlags::NEWIPC),
    (Wall::NameNamespace, UnshareFlags::NEWUTS),
    (Wall::NetworkNamespace, UnshareFlags::NEWNET),
    (Wall::CgroupNamespace, UnshareFlags::NEWCGROUP),
];

/// The mover's part, and what the inhabitant begins with.
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
        // If the users cannot be mapped, the creator says why, and begins anew.
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
            // Stands once the old root is left.
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

/// What became of a mover.
enum Outcome {
    /// The inhabitant is confined.
    Up,
    /// There is no user namespace, for this reason.
    NoUser(String),
    /// It, or the inhabitant, ended for a reason that it told.
    Dead,
}

/// The creator's part.
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
    // A mover that still waits ends with this.
    drop(inner);
    fork::reap(mover);
    outcome
}

/// Says which users and groups there are in the namespace of `mover`: the creator's, and its own to be.
fn map_users(mover: Pid, jail: &Jail) -> io::Result<()> {
    let write = |file: &str, text: &str| {
        std::fs::write(format!("/proc/{}/{file}", mover.as_raw_nonzero()), text)
    };
    let map = |creator: u32| match jail.user {
        Some(user) => format!("{CREATOR} {creator} 1\n{OWN} {user} 1\n"),
        None => format!("{CREATOR} {creator} 1\n"),
    };
    if !user::may_change() {
        // Else a process could leave groups whose members a file denies something.
        write("setgroups", "deny")?;
    }
    write("gid_map", &map(rustix::process::getegid().as_raw()))?;
    write("uid_map", &map(rustix::process::geteuid().as_raw()))
}
