//! What the supervisor and a data process say to each other.
//!
//! The data process listens on a SEQPACKET socket in the runtime directory that the supervisor made
//! and passed to it; the supervisor connects, also after it was restarted itself. One JSON message a
//! packet, descriptors by SCM_RIGHTS. The supervisor asks, the data process answers each [`Command`]
//! with one [`Answer`], in order; only [`Answer::Keep`] and [`Answer::Forget`] come unasked. Counters, table and cursors are not asked for: they stand in the
//! state memory file ([`crate::state`]), which the supervisor reads.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};

use frame::{Mac, VlanId};
use jail::Walls;
use jail::strangers::{self, Descriptor};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde::{Deserialize, Serialize};

use crate::config::{Idle, Limits, Policy, PortConfig, PortId, SwitchConfig};

/// Version of these messages; both sides close the connection if it differs.
pub const VERSION: u32 = 4;

/// What the supervisor asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "command")]
pub enum Command {
    /// First message of a connection. Answered by [`Answer::Hello`].
    Hello {
        /// [`VERSION`].
        version: u32,
    },
    /// Adds a port under a number that is free. Descriptors as its attachment says.
    AddPort {
        /// Its number.
        id: PortId,
        /// What it is.
        config: PortConfig,
        /// Go on from the cursors in the state memory: the port outlives an earlier data process.
        resume: bool,
    },
    /// What a port that is added next, to go on, said is to be kept ([`Answer::Keep`]). Descriptor: the
    /// one that came with it, if one did.
    Restore {
        /// The port's number.
        id: PortId,
        /// The user that the port works for.
        uid: u32,
        /// The name it was kept under.
        key: String,
        /// What was kept.
        value: serde_json::Value,
    },
    /// Removes a port; answered when no worker touches its memory any more.
    RemovePort {
        /// Its number.
        id: PortId,
    },
    /// Changes a port's rules.
    SetPolicy {
        /// Its number.
        id: PortId,
        /// The new rules.
        policy: Policy,
    },
    /// Gives a port to another worker.
    MovePort {
        /// Its number.
        id: PortId,
        /// The worker.
        worker: u16,
    },
    /// Changes what can be changed of a running switch.
    SetSwitch {
        /// What workers do when idle.
        idle: Idle,
        /// Frames per turn.
        batch: u16,
        /// Seconds until a learned address is forgotten.
        fdb_ageing_s: u32,
        /// Milliseconds a sender waits for a lossless port.
        stall_timeout_ms: u32,
        /// Bytes that are mapped for one port.
        max_guest_memory: u64,
        /// Bytes that are mapped for all ports.
        max_mapped_memory: u64,
    },
    /// Changes what each user may take ([`PortConfig::uid`]).
    SetLimits {
        /// From now on.
        limits: Limits,
    },
    /// Forgets learned addresses: all, or those of a port or VLAN.
    FlushFdb {
        /// Only those at this port.
        port: Option<PortId>,
        /// Only those in this VLAN.
        vlan: Option<VlanId>,
    },
    /// Adds an address that stays.
    AddFdb {
        /// The address.
        mac: Mac,
        /// Its VLAN, on a switch that has them.
        vlan: Option<VlanId>,
        /// Where it is.
        port: PortId,
    },
    /// Removes an address.
    DeleteFdb {
        /// The address.
        mac: Mac,
        /// Its VLAN.
        vlan: Option<VlanId>,
    },
    /// All ports of an earlier data process are added: from now on frames are gathered.
    Resume,
    /// All ports, with their descriptors, one [`Answer::Port`] each, what they keep, and an
    /// [`Answer::Done`] at last: for a supervisor that was restarted.
    ListPorts,
    /// Stops gathering, delivers or times out what was gathered, settles, then answers and exits:
    /// nothing is lost, and a successor can go on.
    Stop,
}

impl Command {
    /// [`Command::SetSwitch`], with what of a configuration can be changed.
    #[must_use]
    pub fn set_switch(config: &SwitchConfig) -> Self {
        Self::SetSwitch {
            idle: config.idle,
            batch: config.batch,
            fdb_ageing_s: config.fdb_ageing_s,
            stall_timeout_ms: config.stall_timeout_ms,
            max_guest_memory: config.max_guest_memory,
            max_mapped_memory: config.max_mapped_memory,
        }
    }
}

/// What the data process answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "answer")]
pub enum Answer {
    /// Who it is. Descriptor: the state memory file.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// The switch's name.
        switch: String,
        /// How it is confined.
        walls: Walls,
    },
    /// Done.
    Done,
    /// A port was added; it is served by this worker.
    Added {
        /// The worker.
        worker: u16,
    },
    /// A port of a [`Command::ListPorts`]; descriptors as its attachment says.
    Port {
        /// Its number.
        id: PortId,
        /// What it is.
        config: Box<PortConfig>,
    },
    /// Not an answer, and sent at any time: something that the port needs to go on after a restart of
    /// the data process, in place of what was kept under this name. At most one descriptor.
    Keep {
        /// The port's number.
        id: PortId,
        /// The user that the descriptor is charged to.
        uid: u32,
        /// The name of it, one of the port's own.
        key: String,
        /// What is to be kept, beside the descriptor.
        value: serde_json::Value,
    },
    /// Not an answer, and sent at any time: what was kept under this name is not needed any more.
    Forget {
        /// The port's number.
        id: PortId,
        /// The name of it.
        key: String,
    },
    /// It could not be done.
    Failed {
        /// Why, and what to do about it.
        reason: String,
    },
}

/// Why a message could not be sent or received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The other side is gone.
    #[error("The other side closed the channel")]
    Closed,
    /// The socket failed.
    #[error("The channel failed")]
    Io(#[from] rustix::io::Errno),
    /// What came is not a message.
    #[error("Not a message of this version")]
    Json(#[from] serde_json::Error),
    /// More bytes or descriptors than a message has.
    #[error("A message is at most {MAX_MESSAGE} bytes and {MAX_DESCRIPTORS} descriptors")]
    TooLarge,
}

/// Most bytes of a message.
pub const MAX_MESSAGE: usize = 64 << 10;
/// Most descriptors with a message.
pub const MAX_DESCRIPTORS: usize = 20;

/// Sends one message with its descriptors.
///
/// # Errors
/// [`ChannelError`]; `Io(AGAIN)` if the socket does not block and is full.
pub fn send<T: Serialize>(
    to: impl AsFd,
    message: &T,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), ChannelError> {
    let bytes = serde_json::to_vec(message)?;
    if bytes.len() > MAX_MESSAGE || descriptors.len() > MAX_DESCRIPTORS {
        return Err(ChannelError::TooLarge);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let parts = [std::io::IoSlice::new(&bytes)];
    rustix::net::sendmsg(to, &parts, &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives one message with its descriptors, which are root's until the message says whose they are.
///
/// # Errors
/// [`ChannelError`]; `Io(AGAIN)` if the socket does not block and nothing is there.
pub fn receive<T: for<'de> Deserialize<'de>>(
    from: impl AsFd,
) -> Result<(T, Vec<Descriptor>), ChannelError> {
    let mut bytes = vec![0; MAX_MESSAGE];
    let received = strangers::receive(from, 0, &mut bytes, RecvFlags::empty())?;
    if received.bytes == 0 {
        return Err(ChannelError::Closed);
    }
    if received.truncated || received.descriptors.len() > MAX_DESCRIPTORS {
        return Err(ChannelError::TooLarge);
    }
    Ok((serde_json::from_slice(&bytes[..received.bytes])?, received.descriptors))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn limits_of_many_users_fit_a_message() {
        use crate::config::UserLimits;
        let most = UserLimits { addresses: Some(u32::MAX), memory: Some(u64::MAX) };
        let users = (0..Limits::MAX_USERS as u32).map(|n| (u32::MAX - n, most));
        let limits = Limits { each: UserLimits::default(), users: users.collect() };
        let bytes = serde_json::to_vec(&Command::SetLimits { limits: limits.clone() }).unwrap();
        assert!(bytes.len() <= MAX_MESSAGE, "{}", bytes.len());
        let again: Command = serde_json::from_slice(&bytes).unwrap();
        assert_eq!((limits.of(u32::MAX), limits.of(0)), (most, UserLimits::default()));
        assert_eq!(again, Command::SetLimits { limits });
    }

    #[test]
    fn messages_and_descriptors_arrive() {
        let flags = SocketFlags::CLOEXEC;
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let command = Command::FlushFdb { port: Some(3), vlan: VlanId::new(9) };
        send(&a, &command, &[a.as_fd(), b.as_fd()]).unwrap();
        let (got, fds) = receive::<Command>(&b).unwrap();
        assert_eq!((got, fds.len()), (command, 2));
        rustix::net::send(&a, b"{\"command\":\"nonsense\"}", SendFlags::empty()).unwrap();
        assert!(matches!(receive::<Command>(&b), Err(ChannelError::Json(_))));
        drop((a, fds));
        assert!(matches!(receive::<Command>(&b), Err(ChannelError::Closed)));
    }
}
