//! How a guest's program gets its port and its walls: by a manager (`toklat guest run`), or from
//! its command line.
//!
//! ```no_run
//! use guest::apps::site::Site;
//! use guest::{Guest, Host};
//!
//! let host = Host::from_env()?;
//! // Files can be read until `run`, which raises the walls.
//! let index = std::fs::read(host.args().first().ok_or("usage: web [PORT ADDRESS] FILE")?)?;
//! host.run(|stack| {
//!     let mut site = Site::default();
//!     site.add("/", index.clone().into());
//!     let mut guest = Guest::new(stack, site);
//!     guest.listen(80, 1024)?;
//!     Ok(guest.run(|_| false)?)
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod order;

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Barrier, mpsc};

use frame::{Mac, OffloadSet};
use jail::cell::{self, Cell, Report, Sealed};
use netring::{Open, Port};
use rustix::io::Errno;
use tcp::Nanos;

pub use order::{MAX_PORTS, Order, Passed, Place};

use crate::clock;
use crate::config::Config;
use crate::nic::RingNic;
use crate::stack::Stack;
use crate::up::Up;

/// The descriptors that a guest needs in addition to those of its ports.
pub const OTHER_DESCRIPTORS: u64 = 16;
/// The processes and threads that a guest may have in addition to a thread for each port. Once it
/// serves, it can start none.
pub const OTHER_PROCESSES: u64 = 32;

/// The reason why a guest could not start, or why it ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// Neither a manager nor the command line says what the guest's port and address are.
    #[error(
        "Write the port and the address first, as in vale0:web 10.0.0.2/24; or start this program with \
         `toklat guest run`, which confines it"
    )]
    Usage,
    /// The address is not valid.
    #[error(
        "`{0}` is not a list of addresses; write 10.0.0.2/24 or dhcp, fd00::2/64, slaac, with commas \
         between them"
    )]
    Address(String),
    /// The port could not be opened.
    #[error(transparent)]
    Open(#[from] netring::OpenError),
    /// The manager's port could not be put together.
    #[error(transparent)]
    Parts(#[from] netring::PartsError),
    /// The manager's order is malformed.
    #[error("The manager's order is malformed ({0}); is the manager of the same version?")]
    Malformed(&'static str),
    /// The conversation with the manager failed.
    #[error("The conversation with the manager failed")]
    Manager(#[source] Errno),
    /// The process could not be sealed.
    #[error("The process could not report that it is confined; the manager is gone")]
    Unsealed(#[source] std::io::Error),
    /// The guest itself failed.
    #[error("{0}")]
    Guest(String),
}

/// Where a program gets its ports from.
#[derive(Debug)]
enum Origin {
    /// The program opens the port at a daemon, by name.
    Daemon { name: String, place: Place },
    /// The program gets its ports from the manager at this socket.
    Manager { control: OwnedFd, mounts: bool },
}

/// A program that is about to be a guest.
#[derive(Debug)]
pub struct Host {
    origin: Origin,
    args: Vec<String>,
    memory: Option<u64>,
}

type GuestResult = Result<(), Box<dyn Error>>;

impl Place {
    /// The host at `addresses` on the port `name`, whose MAC address follows from the name.
    ///
    /// The addresses are a list with commas, with at most one word of each kind: an IPv4 address
    /// with a prefix length (`10.0.0.2/24`) or `dhcp`, by which a server lends one; an IPv6 address
    /// (`fd00::2/64`); and `slaac`, by which routers assign IPv6 addresses.
    ///
    /// # Errors
    /// [`HostError::Address`].
    pub fn new(name: &str, addresses: &str) -> Result<Self, HostError> {
        let wrong = || HostError::Address(addresses.to_owned());
        let mut place = Self {
            mac: Mac::of_name(name),
            address: Ipv4Addr::UNSPECIFIED,
            prefix: 0,
            gateway: None,
            dhcp: false,
            v6: None,
        };
        for word in addresses.split(',') {
            let has_v4 = place.dhcp || !place.address.is_unspecified();
            if word == "dhcp" && !has_v4 {
                place.dhcp = true;
                continue;
            }
            if word == "slaac" && !place.v6.is_some_and(|v6| v6.autoconfigure) {
                place.v6.get_or_insert_default().autoconfigure = true;
                continue;
            }
            let (ip, len) = word.split_once('/').ok_or_else(wrong)?;
            let len: u8 = len.parse().map_err(|_| wrong())?;
            match ip.parse().map_err(|_| wrong())? {
                IpAddr::V4(ip) if len <= 32 && !has_v4 => {
                    (place.address, place.prefix) = (ip, len);
                }
                IpAddr::V6(ip) if len <= 128 && place.v6.is_none_or(|v6| v6.address.is_none()) => {
                    place.v6.get_or_insert_default().address = Some((ip, len));
                }
                _ => return Err(wrong()),
            }
        }
        Ok(place)
    }
}

impl Host {
    /// Finds the manager that has started this program, if one has. Otherwise the first two
    /// arguments of the command line name the port and the address. Call it once.
    ///
    /// # Errors
    /// [`HostError::Usage`] or [`HostError::Address`].
    pub fn from_env() -> Result<Self, HostError> {
        let mut args: Vec<String> =
            std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
        if let Some((control, mounts)) = manager() {
            let memory = rustix::process::getrlimit(rustix::process::Resource::Data).current;
            return Ok(Self { origin: Origin::Manager { control, mounts }, args, memory });
        }
        if args.len() < 2 {
            return Err(HostError::Usage);
        }
        let rest = args.split_off(2);
        let place = Place::new(&args[0], &args[1])?;
        let origin = Origin::Daemon { name: args.swap_remove(0), place };
        Ok(Self { origin, args: rest, memory: None })
    }

    /// The arguments of the program, without port and address.
    #[must_use]
    pub fn args(&self) -> &[String] {
        &self.args
    }

    /// Bytes of private memory that this process may have, if there is a limit. The kernel may end
    /// it at half of that.
    #[must_use]
    pub fn memory(&self) -> Option<u64> {
        self.memory
    }

    /// True if a manager has started this program, so that it will be confined.
    #[must_use]
    pub fn is_managed(&self) -> bool {
        matches!(self.origin, Origin::Manager { .. })
    }

    /// Takes the port, confines the process, waits for the host's addresses, and runs `guest` on a
    /// stack there. Under a manager
    /// nothing can be opened in `guest`: no file, no socket, no program. A call that tries ends the
    /// process.
    ///
    /// A manager may give several ports to a process: each has a thread that runs `guest`, and the
    /// process ends when all have returned. It may also ask for copies of the process as it is now.
    ///
    /// # Errors
    /// [`HostError`]; that of `guest` as [`HostError::Guest`].
    pub fn run(
        self,
        guest: impl Fn(Stack<RingNic>) -> GuestResult + Sync,
    ) -> Result<(), HostError> {
        let memory = self.memory;
        match self.origin {
            Origin::Daemon { name, place } => {
                let port = Open::new(&name).offloads(OffloadSet::ALL).open()?;
                told(boot(stack(port, &place, (memory, true)), None).and_then(guest))
            }
            Origin::Manager { control, mounts } => {
                let Some(inmate) = obey(control, mounts)? else { return Ok(()) };
                let Inmate { control, mounts, waits, is_copy, ports } = inmate;
                // The process ends with the guest, so the socket is there as long as it lives.
                let control: &'static OwnedFd = Box::leak(Box::new(control));
                let memory = memory.map(|memory| memory / ports.len().max(1) as u64);
                let stack = |port, place: &Place| stack(port, place, (memory, !is_copy));
                let done = serve(control.as_fd(), (mounts, waits), ports, stack, guest);
                if let Err(error) = &done {
                    cell::send(control.as_fd(), &Report::Failed(chain(error)));
                }
                done
            }
        }
    }
}

/// An error and its sources.
fn chain(error: &dyn Error) -> String {
    let sources = std::iter::successors(error.source(), |error| (*error).source());
    sources.fold(error.to_string(), |text, source| format!("{text}: {source}"))
}

fn told(result: GuestResult) -> Result<(), HostError> {
    result.map_err(|error| HostError::Guest(chain(&*error)))
}

/// Makes a stack. Its limits fit into `memory`, the guest's share of the process's. If it does not
/// announce itself to all, it tells the switch.
fn stack(port: Port, place: &Place, (memory, announces): (Option<u64>, bool)) -> Stack<RingNic> {
    let mut config = Config { announces, ..place.config() };
    if let Some(memory) = memory {
        config.tcp.fit_into(memory);
    }
    Stack::new(RingNic::new(port), &config)
}

/// How long a guest waits for all of its addresses. Then it begins with those that it has.
const PATIENCE: u64 = 13 * Nanos::SECOND;

/// Waits until the host has its addresses: for the probes of IPv6, DHCP servers and routers.
fn boot(mut stack: Stack<RingNic>, up: Option<Arc<Up>>) -> Result<Stack<RingNic>, Box<dyn Error>> {
    let (started, mut told) = (clock::now(), false);
    while !stack.is_configured() {
        let now = clock::now();
        let deadline = stack.poll(now)?;
        let late = now - started > PATIENCE;
        if stack.is_configured() || late && stack.addresses().next().is_some() {
            break;
        }
        if late && !told {
            told = true;
            eprintln!("no address yet: no DHCP server or router has answered; waiting for one");
        }
        let end = if told { None } else { Some(started + PATIENCE + 1) };
        stack.wait(deadline.into_iter().chain(end).min(), now)?;
    }
    stack.started = up;
    Ok(stack)
}

/// The socket to the manager, and whether this process has a mount namespace of its own.
fn manager() -> Option<(OwnedFd, bool)> {
    let value = std::env::var(cell::VARIABLE).ok()?;
    let (number, mounts) = value.split_once(':')?;
    let number: RawFd = number.parse().ok().filter(|number| *number > 2)?;
    #[allow(unsafe_code, reason = "the descriptor is inherited, and known by its number")]
    // SAFETY: the creator has opened it for this process alone, and this is called once.
    let control = unsafe { OwnedFd::from_raw_fd(number) };
    // The program may start others before it is confined.
    rustix::io::fcntl_setfd(&control, rustix::io::FdFlags::CLOEXEC).ok()?;
    Some((control, mounts == "m"))
}

/// A process that has its ports.
struct Inmate {
    control: OwnedFd,
    mounts: bool,
    waits: bool,
    /// It is one of many, which start at once.
    is_copy: bool,
    ports: Vec<Passed>,
}

/// Carries out the manager's orders: makes copies, or becomes a guest. `None` when the manager
/// wants no more copies.
fn obey(control: OwnedFd, mounts: bool) -> Result<Option<Inmate>, HostError> {
    // The filter is made once for all copies.
    let _ = jail::calls::filter();
    cell::send(control.as_fd(), &Report::Loaded);
    loop {
        let Some(order) = Order::receive(control.as_fd())? else { return Ok(None) };
        let Order { copy, waits, ports } = order;
        let Some([socket, output]) = copy else {
            return Ok(Some(Inmate { control, mounts, waits, is_copy: false, ports }));
        };
        let cell = Cell {
            user: None,
            memory: None,
            descriptors: OTHER_DESCRIPTORS + 2 * ports.len() as u64,
            processes: mounts.then_some(OTHER_PROCESSES + ports.len() as u64),
            user_namespaces: if mounts { 0 } else { Errno::PERM.raw_os_error() },
            copies: false,
        };
        match cell.copy(socket.as_fd()) {
            Ok(Ok(_)) => {
                cell::send(control.as_fd(), &Report::Copied);
            }
            Ok(Err(mounts)) => {
                speak_to(&output)?;
                let control = socket;
                return Ok(Some(Inmate { control, mounts, waits, is_copy: true, ports }));
            }
            Err(error) => {
                let why = format!("The program cannot be copied: {error}");
                cell::send(control.as_fd(), &Report::Failed(why));
            }
        }
    }
}

/// Makes `output` the standard output and error.
fn speak_to(output: &OwnedFd) -> Result<(), HostError> {
    rustix::stdio::dup2_stdout(output).map_err(HostError::Manager)?;
    rustix::stdio::dup2_stderr(output).map_err(HostError::Manager)
}

/// Confines the process and runs a guest on each port. The walls close every descriptor but the
/// ports' and `control`.
fn serve(
    control: BorrowedFd<'static>,
    (mounts, waits): (bool, bool),
    ports: Vec<Passed>,
    stack: impl Fn(Port, &Place) -> Stack<RingNic> + Sync,
    guest: impl Fn(Stack<RingNic>) -> GuestResult + Sync,
) -> Result<(), HostError> {
    let keep: Vec<RawFd> = ports.iter().flat_map(Passed::descriptors).collect();
    let ports = ports.into_iter().map(Passed::open).collect::<Result<Vec<_>, _>>()?;
    let sealed = Sealed { control, keep: &keep, mounts };
    let walls = cell::seal(&sealed);
    let finish = |control: BorrowedFd<'_>| -> Result<(), HostError> {
        cell::finish(control, walls.clone()).map_err(HostError::Unsealed)?;
        if waits { wait_for_go(control) } else { Ok(()) }
    };
    let mut ports = ports.into_iter();
    match (ports.next(), ports.len()) {
        (None, _) => Err(HostError::Malformed("it has no port")),
        (Some((port, place)), 0) => {
            let stack = stack(port, &place);
            let up = Arc::new(Up(control));
            if let Err(error) = finish(control) {
                std::mem::forget(up);
                return Err(error);
            }
            told(boot(stack, Some(up)).and_then(guest))
        }
        (Some(first), _) => run_threads(first, ports, control, || finish(control), stack, guest),
    }
}

/// Waits for the manager, which judges the walls.
fn wait_for_go(control: BorrowedFd<'_>) -> Result<(), HostError> {
    loop {
        match rustix::net::recv(control, &mut [0; 1][..], rustix::net::RecvFlags::empty()) {
            Ok((_, 1..)) => return Ok(()),
            Ok(_) => return Err(HostError::Manager(Errno::PIPE)),
            Err(Errno::INTR) => {}
            Err(error) => return Err(HostError::Manager(error)),
        }
    }
}

/// Runs a guest in each of several threads, and ends the process when all have ended. `finish` is
/// called when all threads exist.
fn run_threads(
    first: (Port, Place),
    others: impl ExactSizeIterator<Item = (Port, Place)>,
    control: BorrowedFd<'static>,
    finish: impl FnOnce() -> Result<(), HostError>,
    stack: impl Fn(Port, &Place) -> Stack<RingNic> + Sync,
    guest: impl Fn(Stack<RingNic>) -> GuestResult + Sync,
) -> Result<(), HostError> {
    let count = others.len();
    let barrier = Barrier::new(1 + count);
    let (results, ended) = mpsc::channel();
    let (barrier, guest, stack) = (&barrier, &guest, &stack);
    let up = Arc::new(Up(control));
    std::thread::scope(|scope| {
        for (port, place) in others {
            let (results, up) = (results.clone(), up.clone());
            scope.spawn(move || {
                // The thread allocates here, before system calls are forbidden: the allocator opens
                // files at a thread's first request.
                let stack = stack(port, &place);
                barrier.wait();
                barrier.wait();
                // The send fails only if the process is ending already.
                let _ = results.send(told(boot(stack, Some(up)).and_then(guest)));
                // The end of a thread would need system calls.
                loop {
                    std::thread::park();
                }
            });
        }
        drop(results);
        let stack = stack(first.0, &first.1);
        barrier.wait();
        if let Err(error) = finish() {
            eprintln!("{error}");
            std::process::exit(1);
        }
        barrier.wait();
        let mut failed = told(boot(stack, Some(up)).and_then(guest)).err();
        for result in ended.iter().take(count) {
            failed = failed.or_else(|| result.err());
        }
        if let Some(error) = failed {
            eprintln!("{error}");
            std::process::exit(1);
        }
        std::process::exit(0)
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;
    use netring::{Region, RegionConfig};

    /// "It serves" means that the addresses are there and the listeners answer.
    #[test]
    fn a_guest_is_up_with_the_first_turn_of_the_last_stack() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let ours: &'static UnixStream = Box::leak(Box::new(ours));
        let mut told = || theirs.read(&mut [0; 16]).unwrap_or(0) > 0;
        let up = Arc::new(Up(ours.as_fd()));
        let place = Place::new("p", "10.0.0.2/24").unwrap();
        let region = Region::private(RegionConfig::ports(2, 1, 64)).unwrap();
        let mut stacks = ["a", "b"].map(|name| {
            let port = Open::new(name).slots(64).in_region(&region).inline().unwrap();
            boot(stack(port, &place, (None, true)), Some(up.clone())).unwrap()
        });
        drop(up);
        assert!(!told(), "no stack has had a turn");
        stacks[0].listen(80, 1).unwrap();
        stacks[0].poll(Nanos(Nanos::SECOND)).unwrap();
        assert!(!told(), "the other one has not");
        stacks[1].poll(Nanos(Nanos::SECOND)).unwrap();
        assert!(told());
    }

    #[test]
    fn places_are_read_and_written() {
        for text in [
            "10.0.0.2/24",
            "dhcp",
            "dhcp,slaac",
            "fd00::2/64",
            "slaac",
            "10.0.0.2/8,fd00::2/64,slaac",
        ] {
            assert_eq!(Place::new("v:a", text).unwrap().to_string(), text);
        }
        for wrong in [
            "",
            "10.0.0.2",
            "10.0.0.2/33",
            "fd00::1/129",
            "slaac,slaac",
            "dhcp,10.0.0.2/8",
            "10.0.0.2/8,dhcp",
            "10.0.0.2/8,",
        ] {
            assert!(Place::new("v:a", wrong).is_err(), "{wrong}");
        }
        let twice = Place::new("v:a", "10.0.0.2/8,10.0.0.3/8").unwrap_err();
        assert!(twice.to_string().contains("with commas"), "{twice}");
    }
}
