//! Ports that this process opens on a daemon's trusted switches.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use netring::trusted::{Forward, Joining};
use netring::{OpenError, ask_member, ask_state};
use port::PortId;
use rustix::io::Errno;
use shmem::{Mapping, Memfd, robust};
use topology::SwitchConfig;
use turn::clock;

use super::{Supply, Trusted, TrustedError};

/// A daemon's directory, and the name of a switch.
type Name = (PathBuf, String);

/// The number of forks when the switches were joined, and the trusted switches that this process
/// has joined.
type Joined = (u64, HashMap<Name, Weak<Mutex<Trusted>>>);

static JOINED: OnceLock<Mutex<Joined>> = OnceLock::new();

/// Gives a descriptor that is kept another number.
static RAISE: OnceLock<fn(OwnedFd) -> OwnedFd> = OnceLock::new();

/// Lets this process open ports of trusted switches.
pub fn install() {
    netring::trusted::install(join);
}

/// As [`install`], for a library in a program that closes descriptors that it does not know:
/// `raise` gets each that is kept, and returns it or a duplicate.
pub fn install_with(raise: fn(OwnedFd) -> OwnedFd) {
    let _ = RAISE.set(raise);
    install();
}

fn join(joining: &Joining<'_>) -> Result<Arc<dyn Forward>, String> {
    let (switch, _) = joining.name.split_once(':').ok_or("the name has no switch")?;
    let name = (joining.directory.to_owned(), switch.to_owned());
    let (id, file) = (joining.port, joining.file);
    let here = part_of(&name)?;
    lock(&here).lend(file, Arc::clone(joining.mapping));
    let mapping = Arc::clone(joining.mapping);
    let (forks, elsewhere) = (robust::forks(), Mutex::default());
    Ok(Arc::new(Owned { name, id, file, mapping, forks, here, elsewhere }))
}

/// This process's part in a switch.
fn part_of(name: &Name) -> Result<Arc<Mutex<Trusted>>, String> {
    if let Some(part) = known_part(&joined(), name) {
        return Ok(part);
    }
    // The daemon is asked with the table unlocked: a child forked meanwhile would find it locked.
    let part = Arc::new(Mutex::new(new_part(name).map_err(|error| in_words(&*error))?));
    let mut joined = joined();
    // Another thread may have joined meanwhile.
    if let Some(part) = known_part(&joined, name) {
        return Ok(part);
    }
    joined.1.insert(name.clone(), Arc::downgrade(&part));
    Ok(part)
}

/// The table of what this process has joined, locked.
fn joined() -> MutexGuard<'static, Joined> {
    let mut joined = lock(JOINED.get_or_init(Mutex::default));
    let forks = robust::forks();
    if joined.0 != forks {
        *joined = (forks, HashMap::new());
    }
    joined.1.retain(|_, part| part.strong_count() > 0);
    joined
}

fn known_part(joined: &Joined, name: &Name) -> Option<Arc<Mutex<Trusted>>> {
    joined.1.get(name).and_then(Weak::upgrade)
}

fn new_part((directory, switch): &Name) -> Result<Trusted, Box<dyn std::error::Error>> {
    let shape = ask_state(directory, switch)?;
    let config = SwitchConfig {
        max_ports: shape.max_ports,
        fdb_entries: shape.fdb_entries,
        batch: shape.batch,
        trusted: true,
        ..SwitchConfig::default()
    };
    let daemon = Daemon { directory: directory.clone(), switch: switch.clone() };
    let state = Memfd::adopt(shape.state)?;
    Ok(Trusted::join(&state, &config, Box::new(daemon))?)
}

/// An error with its causes, in one line.
fn in_words(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The daemon that has the switch.
#[derive(Debug)]
struct Daemon {
    directory: PathBuf,
    switch: String,
}

impl Supply for Daemon {
    fn port(&self, name: &str) -> io::Result<(OwnedFd, OwnedFd)> {
        let name = format!("{}:{name}", self.switch);
        let (memory, bell) = ask_member(&self.directory, &name).map_err(error_of)?;
        Ok(match RAISE.get() {
            Some(raise) => (memory, raise(bell)),
            None => (memory, bell),
        })
    }
}

/// `NotFound` if the daemon says that the port is gone.
fn error_of(error: OpenError) -> io::Error {
    match error {
        OpenError::Refused { errno, .. } if errno == Errno::NOENT.raw_os_error() => {
            io::Error::new(io::ErrorKind::NotFound, error)
        }
        other => io::Error::other(other),
    }
}

/// A port that this process has opened, or one that it was forked from.
struct Owned {
    name: Name,
    id: PortId,
    file: u64,
    mapping: Arc<Mapping>,
    /// The number of forks when it was opened.
    forks: u64,
    here: Arc<Mutex<Trusted>>,
    /// The part in the switch of a process that was forked since. Another thread may have held the
    /// lock of `here` then, which stays locked in the new process.
    elsewhere: Mutex<Option<(u64, Arc<Mutex<Trusted>>)>>,
}

impl std::fmt::Debug for Owned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Owned(port {} of {})", self.id, self.name.1)
    }
}

impl Owned {
    /// The part of a process that was forked.
    #[cold]
    fn part_elsewhere(&self, forks: u64) -> Result<Arc<Mutex<Trusted>>, Errno> {
        let mut elsewhere = lock(&self.elsewhere);
        if let Some((_, part)) = elsewhere.as_ref().filter(|(then, _)| *then == forks) {
            return Ok(Arc::clone(part));
        }
        let part = part_of(&self.name).map_err(|_| Errno::NXIO)?;
        lock(&part).lend(self.file, Arc::clone(&self.mapping));
        *elsewhere = Some((forks, Arc::clone(&part)));
        Ok(part)
    }

    fn turn(&self, part: &Mutex<Trusted>) -> Result<(), Errno> {
        lock(part).turn(self.id, self.file, clock()).map_err(|error| match error {
            TrustedError::Gone => Errno::NXIO,
            _ => Errno::IO,
        })
    }
}

impl Forward for Owned {
    fn forward(&self) -> Result<(), Errno> {
        let forks = robust::forks();
        if forks == self.forks {
            return self.turn(&self.here);
        }
        self.turn(&*self.part_elsewhere(forks)?)
    }
}
