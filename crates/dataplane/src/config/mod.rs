//! What a switch and its ports are asked to be. The same types are the topology file, the control
//! API and the messages to a data process.

use fabric::Monitor;
use jail::strangers::Descriptor;
use serde::{Deserialize, Serialize};
use turn::attach::{AttachError, Attached, null, ring};

pub use crate::attach::buffered::host::HostConfig;
pub use crate::attach::interface::{Engine, InterfaceConfig, PacketRings, Umem, XdpRing};
use crate::attach::{Kind, Place, kinds};
pub use port::PortId;
pub use topology::{
    Combine, Doorbell, Idle, Interrupts, NicConfig, NicModel, NoBytes, Policy, SwitchConfig,
    WorkerConfig, parse_bytes,
};
pub use turn::attach::ring::RingAttach;

macro_rules! define {
    (
        plain { $($(#[$meta:meta])* $Plain:ident $plain:literal,)* }
        set { $($Set:ident $set:literal,)* }
    ) => {
        /// The kind of a port, and what the port is attached to. For each kind, the descriptors
        /// that go with it are named in order.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Attachment {
            /// A client's rings. Descriptors: memory file, token.
            Ring(RingAttach),
            /// Copies of what another port sends or receives. Descriptors: memory file, token.
            Monitor {
                /// The receive rings.
                ring: RingAttach,
                /// The port that is watched.
                of: PortId,
                /// Copy the frames that the other port sends (hands in).
                tx: bool,
                /// Copy the frames that the other port receives (is handed out).
                rx: bool,
            },
            /// A sink: takes all frames and sends none.
            Null,
            /// No owner: a configured port that waits for its client. No descriptors.
            Vacant,
            $(
                #[doc = concat!("A [`", stringify!($Set), "`](kinds::", stringify!($Set), ").")]
                #[serde(rename = $set)]
                $Set(kinds::$Set),
            )*
        }

        impl Attachment {
            /// What the kind of port provides, if the attachment is of a kind with settings.
            fn kind(&self) -> Option<&dyn Kind> {
                match self {
                    Self::Ring(_) | Self::Monitor { .. } | Self::Null | Self::Vacant => None,
                    $(Self::$Set(settings) => Some(settings),)*
                }
            }
        }

        $(
            impl From<kinds::$Set> for Attachment {
                fn from(settings: kinds::$Set) -> Self {
                    Self::$Set(settings)
                }
            }
        )*
    };
}
topology::with_kinds!(define);

impl Attachment {
    /// Makes the port's halves from its descriptors, and what it monitors.
    ///
    /// # Errors
    /// [`AttachError`] when a descriptor is missing or of the wrong kind, or counters are missing.
    pub fn attach(
        &self,
        fds: Vec<Descriptor>,
        place: Place<'_>,
    ) -> Result<(Attached, Option<Monitor>), AttachError> {
        match self {
            Self::Ring(rings) => Ok((attach_rings(rings, fds, place)?, None)),
            Self::Monitor { ring, .. } if ring.tx.rings != 0 => Err(AttachError::MonitorSends),
            Self::Monitor { ring, of, tx, rx } => {
                let monitor = Monitor { of: *of, sent: *tx, received: *rx };
                Ok((attach_rings(ring, fds, place)?, Some(monitor)))
            }
            Self::Null => Ok((null::attach(place.state)?, None)),
            _ => Ok((
                self.kind().map_or_else(|| Ok(null::vacant()), |kind| kind.attach(fds, place))?,
                None,
            )),
        }
    }

    /// The rings of the client, if the port has one.
    #[must_use]
    pub const fn rings(&self) -> Option<&RingAttach> {
        match self {
            Self::Ring(ring) | Self::Monitor { ring, .. } => Some(ring),
            _ => None,
        }
    }

    /// True if the port's owner lends memory that workers read and write.
    #[must_use]
    pub fn lends_memory(&self) -> bool {
        self.rings().is_some() || self.kind().is_some_and(Kind::lends_memory)
    }

    /// True if a peer that is not trusted made its descriptors, or sends to them.
    #[must_use]
    pub fn has_stranger(&self) -> bool {
        self.rings().is_some() || self.kind().is_some_and(Kind::has_stranger)
    }

    /// The number of the descriptor that reports a hang-up of the client or peer.
    #[must_use]
    pub fn hangup_fd(&self) -> Option<usize> {
        self.rings().map_or_else(|| self.kind().and_then(Kind::hangup_fd), |_| Some(1))
    }

    /// True if other hosts are behind the port.
    #[must_use]
    pub fn is_tunnel(&self) -> bool {
        self.kind().is_some_and(Kind::is_tunnel)
    }
}

fn attach_rings(
    rings: &RingAttach,
    fds: Vec<Descriptor>,
    Place { state, account, resume, .. }: Place<'_>,
) -> Result<Attached, AttachError> {
    let expected = "a memory file and a token";
    let pair: Result<[Descriptor; 2], _> = fds.try_into();
    let [memory, token] = pair.map_err(|_| AttachError::Descriptors { expected })?;
    ring::attach(&memory, account, token, rings, state, resume)
}

/// A port, as a data process gets it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortConfig {
    /// The port's name without the switch's.
    pub name: String,
    /// Its rules.
    pub policy: Policy,
    /// The worker that serves the port; `None` for the least loaded.
    pub worker: Option<u16>,
    /// What the port is attached to.
    pub attachment: Attachment,
    /// The user that the port works for: the peer at its socket, else its owner. Budgets and
    /// sanctions are per user.
    pub uid: u32,
    /// The process that opened the port, kept for the supervisor. Since version 8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
}

/// The limits of one user in a switch's data process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UserLimits {
    /// The maximum number of learned addresses; `None` for the table's share, [`u32::MAX`] for no
    /// limit.
    pub addresses: Option<u32>,
    /// The maximum number of bytes of guests' memory that may be mapped; `None` for the process's
    /// share, [`u64::MAX`] for no limit.
    pub memory: Option<u64>,
}

/// The limits of all users in a switch's data process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// The limits of each user that `users` does not name.
    pub each: UserLimits,
    /// The users with limits of their own, by uid.
    pub users: Vec<(u32, UserLimits)>,
}

impl Limits {
    /// The maximum number of users that can be named: they must fit a message.
    pub const MAX_USERS: usize = 512;

    /// The limits of a user.
    #[must_use]
    pub fn of(&self, uid: u32) -> UserLimits {
        let named = self.users.iter().find(|(named, _)| *named == uid);
        named.map_or(self.each, |(_, limits)| *limits)
    }
}
