//! What a request wants done outside of the broker, as values: the daemon carries it out, and tells
//! the outcome.

use std::os::fd::OwnedFd;

use netring::Monitor;
use netring::layout::{Geometry, RingSpec};
use rustix::io::Errno;

use super::end::End;
use super::region::File;

/// The process that makes a request.
#[derive(Clone, Copy, Debug)]
pub struct Requester {
    /// The user.
    pub uid: u32,
    /// The process.
    pub pid: u32,
}

/// A port of a switch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The switch.
    pub switch: String,
    /// The port.
    pub port: String,
}

impl Place {
    /// The port of this name in this switch.
    #[must_use]
    pub fn new(switch: impl Into<String>, port: impl Into<String>) -> Self {
        Self { switch: switch.into(), port: port.into() }
    }
}

/// A port to attach to a switch.
#[derive(Debug)]
pub struct NewPort {
    /// The owner of the port.
    pub who: Requester,
    /// The switch and the port.
    pub place: Place,
    /// The end of this interface of the host that the switch joins to programs.
    pub interface: Option<(End, String)>,
    /// If set, attaches a monitor of the port, which gets copies of these frames.
    pub monitor: Option<Monitor>,
    /// The region.
    pub memory: OwnedFd,
    /// Layout of the region.
    pub geometry: Geometry,
    /// The send rings.
    pub tx: RingSpec,
    /// The receive rings.
    pub rx: RingSpec,
}

/// VFIO's files of a card: device, group, container.
pub struct CardFiles(pub [File; 3]);

impl std::fmt::Debug for CardFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CardFiles")
    }
}

/// What is to be done.
#[derive(Debug)]
pub enum Effect {
    /// Open a card without a driver in the kernel. Outcome: [`Outcome::Card`], with `EBUSY` if
    /// others have it, `ENXIO` if no driver is for it.
    OpenCard {
        /// For whom.
        who: Requester,
        /// Its name.
        ifname: String,
    },
    /// Stop a card, so that it writes no memory any more, and close it.
    CloseCard {
        /// Its name.
        ifname: String,
        /// What was opened.
        files: CardFiles,
        /// Frames that it has lost: those that could not be sent, and damaged ones.
        lost: [u32; 2],
    },
    /// Attach a port to a switch, which is made if there is none. If the switch is
    /// [an interface's](NewPort::interface), this also adds a port of the interface's end;
    /// [`Effect::Detach`] removes it. Outcome: [`Outcome::Attached`].
    Attach(NewPort),
    /// Detach a port from its switch. Afterwards the buffers of its rings are all in slots.
    Detach(Place),
    /// Have the switch read what the slots of a port's rings hold besides frames
    /// ([`netring::layout::Format`]). Afterwards frames are delivered so.
    ReadFormat(Place),
    /// Make an interface of the host a port of a switch, which is made if there is none.
    Plug {
        /// For whom.
        who: Requester,
        /// The switch, and the interface's name.
        place: Place,
        /// Also the host's network stack behind it.
        host: bool,
    },
    /// Remove the ports that [`Effect::Plug`] has made. `ENXIO` if there are none.
    Unplug {
        /// For whom.
        who: Requester,
        /// The switch, and the interface's name.
        place: Place,
    },
    /// Join two switches by a port of this name in each: what one switch forwards to its port goes
    /// to the other. The second switch is made if there is none. `EBUSY` if a switch has such a
    /// port.
    Join {
        /// For whom.
        who: Requester,
        /// The switches.
        switches: [String; 2],
        /// The port's name in both.
        port: String,
    },
    /// Remove the ports that [`Effect::Join`] has made.
    Part {
        /// The switches.
        switches: [String; 2],
        /// The port's name in both.
        port: String,
    },
    /// Have the workers of a switch poll without a pause, or as its settings say. `EINVAL` if the
    /// interface has fewer queues.
    Poll {
        /// For whom.
        who: Requester,
        /// The switch, and the interface's name.
        place: Place,
        /// With a number, the interface must have at least so many receive queues.
        queues: Option<u32>,
    },
}

/// A port that was attached.
#[derive(Debug)]
pub struct Attached {
    /// The client's end of the port's token.
    pub token: OwnedFd,
    /// The port's name. A monitor's name differs from the requested one.
    pub name: String,
    /// The port's number, if its switch is trusted: programs forward what they send.
    pub number_if_trusted: Option<u16>,
}

/// What came of an [`Effect`]; an error is the number for the program.
#[derive(Debug)]
pub enum Outcome {
    /// Of all others.
    Done(Result<(), Errno>),
    /// Of [`Effect::Attach`].
    Attached(Result<Attached, Errno>),
    /// Of [`Effect::OpenCard`].
    Card(Result<CardFiles, Errno>),
}

impl Outcome {
    /// The error, if it failed.
    pub(super) fn error(&self) -> Option<Errno> {
        match self {
            Self::Done(Err(error)) | Self::Attached(Err(error)) | Self::Card(Err(error)) => {
                Some(*error)
            }
            _ => None,
        }
    }
}

/// What the broker has to know of the machine to carry out a request.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// What the name that [`super::interface_name`] returns is, if it is an interface of the host
    /// that this user's programs may open.
    pub interface: Option<Interface>,
    /// The number of CPUs of the machine.
    pub cpus: u32,
}

/// An interface of the host. For users whose programs may not open it, the name is free, and is
/// theirs alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name. Interfaces that programs know by several names have one of this kind.
    pub name: String,
    /// It is a card without a driver in the kernel: programs drive it.
    pub is_card: bool,
}
