//! Pipes: the second opener gets the first opener's region. There is no data process; the registry
//! only connects the two ends.
//!
//! A pipe's ends need no daemon once they are open, and run on when it is killed. The next daemon
//! does not know such a pipe. It must not make a second pipe of the same name, because that pipe's
//! one end would wait forever for a peer in the first. So each pipe has a file in the runtime
//! directory, locked as long as an end is open. A descriptor of the lock lies unread in the queue
//! of each client's token. The kernel releases the lock when the last of them is closed.

pub mod end;

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use frame::OffloadSet;
use jail::strangers::Descriptor;
use rustix::event::EventfdFlags;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use self::end::{End, PipeLayout, PipeName};
use super::attach::request::Lent;
use super::hangups::{Gone, Hangups, WatchId, has_hung_up};
use super::quota::Charge;
use super::{locked, system, token_pair};
use crate::api::{ApiError, Client, ErrorCode, PipeInfo};

/// The suffix of the lock files' names.
const SUFFIX: &str = ".pipe";

/// What a client gets that opens an end.
#[derive(Debug)]
pub struct Opened {
    /// The region.
    pub layout: PipeLayout,
    /// The token, the end's own eventfd, and the other end's eventfd; for the second opener also
    /// the memory file.
    pub fds: Vec<Descriptor>,
}

#[derive(Debug)]
struct Holder {
    client: Client,
    token: Descriptor,
    watch: WatchId,
}

#[derive(Debug)]
struct Pipe {
    uid: u32,
    layout: PipeLayout,
    memory: Descriptor,
    kicks: [OwnedFd; 2],
    /// What the pipe's maker is charged with: the pipe, and its memory.
    _charges: [Charge; 2],
    holders: [Option<Holder>; 2],
    lock: Lock,
}

/// All pipes.
#[derive(Debug)]
pub struct Pipes {
    dir: PathBuf,
    pipes: Mutex<HashMap<PipeName, Pipe>>,
}

impl Pipes {
    /// Makes an empty registry. Removes files from `dir`, the runtime directory, that an earlier
    /// daemon left.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        let files = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let is_ours = |path: &PathBuf| path.to_str().is_some_and(|path| path.ends_with(SUFFIX));
        for path in files.map(|file| file.path()).filter(is_ours) {
            // Dropping the lock removes the file. A locked file stays.
            drop(Lock::take(path));
        }
        Self { dir: dir.to_owned(), pipes: Mutex::default() }
    }

    /// Makes a pipe and opens `end` of it.
    ///
    /// # Errors
    /// The pipe exists, or the kernel refused.
    pub fn make(
        &self,
        hangups: &Hangups,
        (name, end): (PipeName, End),
        client: Client,
        ((layout, memory), charges): ((PipeLayout, Lent), [Charge; 2]),
    ) -> Result<Opened, ApiError> {
        let mut pipes = locked(&self.pipes);
        drop_hung_up(&mut pipes, hangups, &name);
        if pipes.contains_key(&name) {
            return Err(refuse(ErrorCode::Exists, &name, "exists", "open its other end"));
        }
        let eventfd = || {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            rustix::event::eventfd(0, flags).map_err(|e| system("Cannot make an eventfd", e.into()))
        };
        let mut pipe = Pipe {
            uid: client.uid,
            layout,
            memory: memory.file,
            kicks: [eventfd()?, eventfd()?],
            _charges: charges,
            holders: [None, None],
            lock: self.lock(&name)?,
        };
        let opened = pipe.hand_out(hangups, &name, end, client, false)?;
        pipes.insert(name, pipe);
        Ok(opened)
    }

    /// Takes the lock file that marks a pipe as existing.
    fn lock(&self, name: &PipeName) -> Result<Lock, ApiError> {
        let path = self.dir.join(format!("{}{{{}{SUFFIX}", name.0, name.1));
        Lock::take(path).map_err(|e| {
            if e == Errno::WOULDBLOCK {
                let remedy = "close what is left of it, or use another name";
                return refuse(ErrorCode::Busy, name, "is from before the daemon started", remedy);
            }
            system("Cannot lock a pipe's file in the runtime directory", e.into())
        })
    }

    /// Opens an end of a pipe that exists.
    ///
    /// # Errors
    /// The pipe does not exist, the end is open already, the pipe is another user's, or its slots
    /// carry offload requests that are not among `offloads`.
    pub fn open(
        &self,
        hangups: &Hangups,
        (name, end): (PipeName, End),
        client: Client,
        offloads: OffloadSet,
    ) -> Result<Opened, ApiError> {
        let mut pipes = locked(&self.pipes);
        drop_hung_up(&mut pipes, hangups, &name);
        let Some(pipe) = pipes.get_mut(&name) else {
            return Err(refuse(ErrorCode::NotFound, &name, "does not exist", "make it first"));
        };
        if client.uid != pipe.uid && client.uid != 0 {
            let remedy = "a pipe's two ends belong to one user, who may pass one on";
            return Err(refuse(ErrorCode::Forbidden, &name, "is another user's", remedy));
        }
        if pipe.holders[end as usize].is_some() {
            let remedy = "open the other end, or another pipe";
            return Err(refuse(ErrorCode::Busy, &name, "has this end open already", remedy));
        }
        if pipe.layout.offloads.bits() & !offloads.bits() != 0 {
            let remedy =
                "open it with the offloads that its other end has (netring::Open::offloads)";
            return Err(refuse(ErrorCode::BadRequest, &name, "carries offload requests", remedy));
        }
        pipe.hand_out(hangups, &name, end, client, true)
    }

    /// Handles that an end was closed. The pipe goes with its last end.
    pub fn closed(&self, hangups: &Hangups, name: &PipeName, end: End, watch: WatchId) {
        let mut pipes = locked(&self.pipes);
        let Some(pipe) = pipes.get_mut(name) else { return };
        let holder = &mut pipe.holders[end as usize];
        if holder.as_ref().is_some_and(|h| h.watch == watch)
            && let Some(holder) = holder.take()
        {
            hangups.unwatch(holder.watch, &holder.token);
        }
        if pipe.holders.iter().all(Option::is_none) {
            pipes.remove(name);
        }
    }

    /// All pipes, by name.
    #[must_use]
    pub fn list(&self) -> Vec<PipeInfo> {
        let pipes = locked(&self.pipes);
        let holder = |pipe: &Pipe, end| pipe.holders[end as usize].as_ref().map(|h| h.client);
        let mut list: Vec<_> = pipes
            .iter()
            .map(|((parent, id), pipe)| PipeInfo {
                parent: parent.clone(),
                id: id.clone(),
                master: holder(pipe, End::Master),
                slave: holder(pipe, End::Slave),
            })
            .collect();
        list.sort_by(|a, b| (&a.parent, &a.id).cmp(&(&b.parent, &b.id)));
        list
    }
}

/// Closes the ends whose holders have just died, so they are free at once.
fn drop_hung_up(pipes: &mut HashMap<PipeName, Pipe>, hangups: &Hangups, name: &PipeName) {
    let Some(pipe) = pipes.get_mut(name) else { return };
    for holder in &mut pipe.holders {
        if let Some(gone) = holder.take_if(|holder| has_hung_up(&holder.token)) {
            hangups.unwatch(gone.watch, &gone.token);
        }
    }
    if pipe.holders.iter().all(Option::is_none) {
        pipes.remove(name);
    }
}

impl Pipe {
    fn hand_out(
        &mut self,
        hangups: &Hangups,
        name: &PipeName,
        end: End,
        client: Client,
        with_memory: bool,
    ) -> Result<Opened, ApiError> {
        let refused = |e: io::Error| system("Cannot hand out a pipe", e);
        let (theirs, token) = token_pair(client.uid).map_err(refused)?;
        self.lock.pass_lock(&token).map_err(|e| refused(e.into()))?;
        let mut fds = vec![Descriptor::ours(theirs)];
        for kick in [&self.kicks[end as usize], &self.kicks[end.other() as usize]] {
            fds.push(Descriptor::ours(kick.try_clone().map_err(refused)?));
        }
        if with_memory {
            fds.push(self.memory.try_clone().map_err(refused)?);
        }
        let gone = Gone::Pipe { name: name.clone(), end };
        let watch = hangups.watch(token.as_fd(), gone).map_err(refused)?;
        self.holders[end as usize] = Some(Holder { client, token, watch });
        Ok(Opened { layout: self.layout, fds })
    }
}

/// The lock on a pipe's file. Dropping it removes the file.
#[derive(Debug)]
struct Lock {
    file: OwnedFd,
    path: PathBuf,
}

impl Lock {
    /// `EWOULDBLOCK` if an end of a pipe of this name is open.
    fn take(path: PathBuf) -> rustix::io::Result<Self> {
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self { file, path })
    }

    /// Sends the lock's descriptor to the other end of `token`, which then holds the lock too.
    fn pass_lock(&self, token: impl AsFd) -> rustix::io::Result<()> {
        let lock: [BorrowedFd<'_>; 1] = [self.file.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&lock));
        let bytes = [io::IoSlice::new(&[0])];
        rustix::net::sendmsg(token, &bytes, &mut control, SendFlags::DONTWAIT).map(drop)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A directory has one daemon, so no other process has opened the file since.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn refuse(code: ErrorCode, name: &PipeName, what: &str, remedy: &str) -> ApiError {
    ApiError::new(code, format!("Pipe {} of {} {what}", name.1, name.0), remedy)
}

#[cfg(test)]
mod tests {
    use frame::OffloadSet;
    use netring::layout::Geometry;

    use super::super::quota::{Item, Ledger, Machine};
    use super::end::EndRings;
    use super::*;
    use crate::api::Quota;

    fn layout() -> PipeLayout {
        PipeLayout {
            geometry: Geometry::default(),
            rings: [EndRings::default(); 2],
            buf_usable: 2048,
            offloads: OffloadSet::NONE,
        }
    }

    fn memory() -> Lent {
        let file = shmem::Memfd::create("pipe", 4096, shmem::Pages::Small).unwrap();
        Lent { file: Descriptor::ours(file.into_fd()), len: 4096 }
    }

    fn name() -> PipeName {
        ("vale0:p".into(), "1".into())
    }

    const ME: Client = Client { pid: 1, uid: 1000 };

    fn none() -> (tempfile::TempDir, Pipes, Hangups) {
        let dir = tempfile::tempdir().unwrap();
        let pipes = Pipes::new(dir.path());
        (dir, pipes, Hangups::new().unwrap())
    }

    fn files(dir: &tempfile::TempDir) -> usize {
        std::fs::read_dir(dir.path()).unwrap().count()
    }

    fn charges() -> [Charge; 2] {
        let machine = Machine { descriptors: 1024, memory: 1 << 30 };
        let ledger = Ledger::new(0, Quota::default(), machine);
        [(); 2].map(|()| ledger.count(ME.uid, Item::Pipe))
    }

    async fn settle(pipes: &Pipes, hangups: &Hangups) {
        for (watch, gone) in hangups.next().await.unwrap() {
            let Gone::Pipe { name, end } = gone else { panic!("not a pipe") };
            pipes.closed(hangups, &name, end, watch);
        }
    }

    #[tokio::test]
    async fn an_end_can_be_opened_again_and_the_last_close_ends_the_pipe() {
        let (dir, pipes, hangups) = none();
        let made = || ((layout(), memory()), charges());
        let make = || pipes.make(&hangups, (name(), End::Master), ME, made());
        let master = make().unwrap();
        assert_eq!(make().unwrap_err().code, ErrorCode::Exists);
        let open = |end| pipes.open(&hangups, (name(), end), ME, OffloadSet::NONE);
        let slave = open(End::Slave).unwrap();
        assert_eq!((master.fds.len(), slave.fds.len()), (3, 4));
        assert_eq!(open(End::Slave).unwrap_err().code, ErrorCode::Busy);
        drop(slave);
        // The end is free at once, before hang-ups are read. A later hang-up of the old holder does
        // not close the new holder's end.
        let slave = open(End::Slave).unwrap();
        assert_eq!(pipes.list()[0].slave, Some(ME));
        drop((master, slave));
        let master = make().unwrap();
        drop(master);
        while !pipes.list().is_empty() {
            settle(&pipes, &hangups).await;
        }
        assert_eq!(open(End::Slave).unwrap_err().code, ErrorCode::NotFound);
        assert_eq!(files(&dir), 0, "nothing is left behind");
    }

    #[tokio::test]
    async fn each_end_kicks_the_other() {
        let (_dir, pipes, hangups) = none();
        let made = ((layout(), memory()), charges());
        let master = pipes.make(&hangups, (name(), End::Master), ME, made).unwrap();
        let slave = pipes.open(&hangups, (name(), End::Slave), ME, OffloadSet::NONE).unwrap();
        rustix::io::write(&master.fds[2], &1u64.to_ne_bytes()).unwrap();
        let mut count = [0; 8];
        assert_eq!(rustix::io::read(&slave.fds[1], &mut count).unwrap(), 8);
        assert!(rustix::io::read(&master.fds[1], &mut count).is_err());
    }

    #[tokio::test]
    async fn another_user_is_refused_and_root_is_not() {
        let (_dir, pipes, hangups) = none();
        let made = ((layout(), memory()), charges());
        let _master = pipes.make(&hangups, (name(), End::Master), ME, made).unwrap();
        let open = |uid| {
            pipes.open(&hangups, (name(), End::Slave), Client { pid: 2, uid }, OffloadSet::NONE)
        };
        assert_eq!(open(1001).unwrap_err().code, ErrorCode::Forbidden);
        assert!(open(0).is_ok());
    }
}
