//! What the broker needs of the daemon: the switches to which it attaches ports.

use std::future::Future;
use std::os::fd::{BorrowedFd, OwnedFd};

use netring::Monitor;
use netring::layout::{Geometry, RingSpec};
use rustix::io::Errno;

use super::adapter::CardFiles;

/// The process that makes a request.
#[derive(Clone, Copy, Debug)]
pub struct Requester {
    /// The user.
    pub uid: u32,
    /// The process.
    pub pid: u32,
}

/// A port to attach to a switch.
#[derive(Clone, Copy, Debug)]
pub struct NewPort<'a> {
    /// The owner of the port.
    pub who: Requester,
    /// The switch.
    pub switch: &'a str,
    /// The end of this interface of the host that the switch joins to programs.
    pub interface: Option<(End, &'a str)>,
    /// The port.
    pub port: &'a str,
    /// If set, attaches a monitor of the port, which gets copies of these frames.
    pub monitor: Option<Monitor>,
    /// The region.
    pub memory: BorrowedFd<'a>,
    /// Layout of the region.
    pub geometry: Geometry,
    /// The send rings.
    pub tx: RingSpec,
    /// The receive rings.
    pub rx: RingSpec,
}

/// The ends of an interface of the host that programs have open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The card, or what else the interface is: its wire.
    Card,
    /// The host's network stack.
    Host,
}

/// Limit of the length of a switch's name, in bytes.
const SWITCH_NAME: usize = 15;
/// The name of the programs' port in the switch of an [`End`].
pub const CARD_PORT: &str = "netmap";

impl End {
    /// The prefix of the name of the switch that joins this end to programs. The interface's name
    /// follows.
    const fn prefix(self) -> &'static str {
        match self {
            Self::Card => "nic-",
            Self::Host => "os-",
        }
    }

    /// The name of the switch that joins this end of an interface to programs. If the interface's
    /// name is too long for it, or has other characters than switches may have, it has a part of
    /// that name and a hash. Two such names may be the same.
    #[must_use]
    pub fn switch(self, ifname: &str) -> String {
        let prefix = self.prefix();
        let letter = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if prefix.len() + ifname.len() <= SWITCH_NAME && ifname.chars().all(|c| letter(&c)) {
            return format!("{prefix}{ifname}");
        }
        // FNV-1a.
        let step = |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        let hash = ifname.bytes().fold(0x811c_9dc5, step);
        let tail = format!(".{:06x}", (hash ^ hash >> 24) & 0x00ff_ffff);
        let room = SWITCH_NAME - prefix.len() - tail.len();
        let part: String = ifname.chars().filter(letter).take(room).collect();
        format!("{prefix}{part}{tail}")
    }

    /// The end of an interface to which a switch of this name may belong. No client may make a
    /// switch that has such a name.
    #[must_use]
    pub fn of(switch: &str) -> Option<Self> {
        [Self::Card, Self::Host].into_iter().find(|end| switch.starts_with(end.prefix()))
    }
}

/// A user's charge for a region. Dropping it ends the charge.
pub type Charge = Box<dyn Send + Sync>;

/// The switches to which the broker attaches ports.
pub trait Switches: Send + Sync {
    /// Charges a user for a region's memory before anything is written there.
    ///
    /// # Errors
    /// The error number for the program: the user's quota is exhausted.
    fn charge(&self, uid: u32, memory: BorrowedFd<'_>) -> Result<Charge, Errno>;

    /// The name of the host's network interface that programs know as `ifname`, if there is one
    /// and this user's programs may open it. Interfaces of several names have one of this kind. For
    /// other users the name is free, and is theirs alone.
    fn interface(&self, uid: u32, ifname: &str) -> Option<String>;

    /// Returns true if an interface that [exists](Self::interface) is a card without a driver
    /// in the kernel: programs drive it.
    fn is_card(&self, ifname: &str) -> bool {
        let _ = ifname;
        false
    }

    /// Opens such a card.
    ///
    /// # Errors
    /// The error number for the program: `EBUSY` if others have it, `ENXIO` if no driver is for it.
    fn open_card(
        &self,
        who: Requester,
        ifname: &str,
    ) -> impl Future<Output = Result<CardFiles, Errno>> + Send {
        let _ = (who, ifname);
        std::future::ready(Err(Errno::NXIO))
    }

    /// Stops a card that was opened, so that it writes no memory any more, and closes it. It has
    /// lost frames: those that could not be sent, and damaged ones.
    fn close_card(
        &self,
        ifname: &str,
        files: CardFiles,
        lost: [u32; 2],
    ) -> impl Future<Output = ()> + Send {
        let _ = (ifname, files, lost);
        std::future::ready(())
    }

    /// Attaches a port to a switch, which is made if there is none. Returns the client's end of the
    /// port's token, and the port's name. A monitor's name differs from the requested one.
    ///
    /// If the switch is [an interface's](NewPort::interface), this also adds a port of the
    /// interface's end; `detach` removes it.
    ///
    /// # Errors
    /// The error number for the program.
    fn attach(
        &self,
        port: NewPort<'_>,
    ) -> impl Future<Output = Result<(OwnedFd, String), Errno>> + Send;

    /// The number of an attached port, if its switch is trusted: programs forward what they send.
    fn number_if_trusted(
        &self,
        switch: &str,
        port: &str,
    ) -> impl Future<Output = Option<u16>> + Send {
        let _ = (switch, port);
        std::future::ready(None)
    }

    /// Makes an interface of the host a port of a switch, which is made if there is none, and with
    /// `host` also the host's network stack behind it.
    ///
    /// # Errors
    /// The error number for the program.
    fn plug(
        &self,
        who: Requester,
        switch: &str,
        ifname: &str,
        host: bool,
    ) -> impl Future<Output = Result<(), Errno>> + Send {
        let _ = (who, switch, ifname, host);
        std::future::ready(Err(Errno::INVAL))
    }

    /// Removes the ports that [`plug`](Self::plug) has made.
    ///
    /// # Errors
    /// The error number for the program: `ENXIO` if there are none.
    fn unplug(
        &self,
        who: Requester,
        switch: &str,
        ifname: &str,
    ) -> impl Future<Output = Result<(), Errno>> + Send {
        let _ = (who, switch, ifname);
        std::future::ready(Err(Errno::NXIO))
    }

    /// The interfaces of the host that are ports of switches, and the hosts behind them: the names
    /// of each switch and port, as `VALE_LIST` shows them.
    fn plugged(&self) -> impl Future<Output = Vec<(String, String)>> + Send {
        std::future::ready(Vec::new())
    }

    /// Joins two switches by a port of this name in each: what one switch forwards to its port goes
    /// to the other. The second switch is made if there is none.
    ///
    /// # Errors
    /// The error number for the program: `EBUSY` if a switch has such a port.
    fn join(
        &self,
        who: Requester,
        switches: [&str; 2],
        port: &str,
    ) -> impl Future<Output = Result<(), Errno>> + Send {
        let _ = (who, switches, port);
        std::future::ready(Err(Errno::BUSY))
    }

    /// Removes the ports that [`join`](Self::join) has made.
    fn part(&self, switches: [&str; 2], port: &str) -> impl Future<Output = ()> + Send {
        let _ = (switches, port);
        std::future::ready(())
    }

    /// Has the workers of a switch poll without a pause, or as its settings say. With `queues`, the
    /// interface must be one with at least so many receive queues.
    ///
    /// # Errors
    /// The error number for the program: `EINVAL` if the interface has fewer queues.
    fn poll(
        &self,
        who: Requester,
        switch: &str,
        ifname: &str,
        queues: Option<u32>,
    ) -> impl Future<Output = Result<(), Errno>> + Send {
        let _ = (who, switch, ifname, queues);
        std::future::ready(Ok(()))
    }

    /// The number of CPUs of the machine.
    fn cpus(&self) -> u32 {
        std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32)
    }

    /// Has the switch read what the slots of a port's rings hold besides frames
    /// ([`netring::layout::Format`]). Afterwards frames are delivered so.
    fn read_format(&self, switch: &str, port: &str) -> impl Future<Output = ()> + Send {
        let _ = (switch, port);
        std::future::ready(())
    }

    /// Detaches a port from its switch. Afterwards the buffers of its rings are all in slots.
    fn detach(&self, switch: &str, port: &str) -> impl Future<Output = ()> + Send;
}
