//! The messages between the supervisor and a data process.
//!
//! The data process listens on a SEQPACKET socket in the runtime directory, which the supervisor
//! made and passed to it. The supervisor connects, again after it was restarted. Each packet is one
//! JSON message, with descriptors by SCM_RIGHTS. The data process answers each [`Command`] of the
//! supervisor with one [`Answer`], in order. Only [`Answer::Keep`] and [`Answer::Forget`] are sent
//! unasked. Counters, table and cursors need no messages: the supervisor reads them in the state
//! memory file ([`turn::state`]).

use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use frame::{Mac, VlanId};
use jail::Walls;
use jail::strangers::{self, Descriptor};
use link::LinkStats;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde::{Deserialize, Serialize};

pub use self::frozen::{Greeting, OLDEST, is_taken_over};
use crate::config::{Idle, Limits, Policy, PortConfig, PortId, SwitchConfig};

mod frozen;

/// The version of these messages. It changes with any of them. A supervisor asks a data process of
/// another version only for what never changes: the messages that say so are frozen.
pub const VERSION: u32 = 9;

/// The commands of the supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "command")]
pub enum Command {
    /// First message of a connection. Answered by [`Answer::Hello`]; a data process of another
    /// version then disconnects. Frozen.
    Hello {
        /// The version of the messages that follow.
        version: u32,
    },
    /// Adds a port under a free number. The attachment says which descriptors come along.
    AddPort {
        /// Its number.
        id: PortId,
        /// The configuration of the port.
        config: PortConfig,
        /// Continue from the cursors in the state memory: the port outlives an earlier data
        /// process.
        resume: bool,
    },
    /// Returns a part of the persistent state ([`Answer::Keep`]) of a port that is added next with
    /// `resume`. Descriptor: the one that came with that part, if any.
    Restore {
        /// The port's number.
        id: PortId,
        /// The user that the port works for.
        uid: u32,
        /// The name of the part of the state.
        key: String,
        /// The value that was kept.
        value: serde_json::Value,
    },
    /// Removes a port. Answered once no worker touches its memory any more.
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
    /// Reads again what the slots of a port's rings hold besides frames
    /// ([`netring::layout::Format`]). Answered once frames are delivered so.
    ReadFormat {
        /// Its number.
        id: PortId,
    },
    /// Gives a port to another worker.
    MovePort {
        /// Its number.
        id: PortId,
        /// The worker.
        worker: u16,
    },
    /// Changes those settings of a running switch that can change.
    SetSwitch {
        /// What workers do when idle.
        idle: Idle,
        /// Frames per turn.
        batch: u16,
        /// Seconds until a learned address is forgotten.
        fdb_ageing_s: u32,
        /// Milliseconds that a sender waits for a lossless port.
        stall_timeout_ms: u32,
        /// The maximum number of bytes that may be mapped for one port.
        max_guest_memory: u64,
        /// The maximum number of bytes that may be mapped for all ports.
        max_mapped_memory: u64,
    },
    /// Changes the limits of users ([`PortConfig::uid`]).
    SetLimits {
        /// The limits that hold from now on.
        limits: Limits,
    },
    /// Forgets learned addresses: all, or those of a port or VLAN.
    FlushFdb {
        /// Only addresses at this port.
        port: Option<PortId>,
        /// Only addresses in this VLAN.
        vlan: Option<VlanId>,
    },
    /// Adds an address that is never forgotten.
    AddFdb {
        /// The address.
        mac: Mac,
        /// The address's VLAN, on a switch with VLANs.
        vlan: Option<VlanId>,
        /// The port behind which the address is.
        port: PortId,
    },
    /// Removes an address.
    DeleteFdb {
        /// The address.
        mac: Mac,
        /// Its VLAN.
        vlan: Option<VlanId>,
    },
    /// Replaces the hosts of a tunnel whose peers a routing protocol names.
    SetHosts {
        /// The number of the tunnel's port.
        id: PortId,
        /// From now on.
        hosts: Hosts,
    },
    /// Enters and removes stations behind a tunnel, at most [`MAX_STATIONS`] at a time.
    SetStations {
        /// The tunnel's port.
        id: PortId,
        /// The number, from 0, of the segment with the stations.
        segment: u16,
        /// Each replaces what was said about its address.
        stations: Vec<Remote>,
    },
    /// Sets which stations behind a tunnel have which IP addresses, at most [`MAX_STATIONS`] at a
    /// time.
    SetOwners {
        /// The tunnel's port.
        id: PortId,
        /// The number, from 0, of the segment with the stations.
        segment: u16,
        /// The station of each address; `None` if none has it any more.
        owners: Vec<(IpAddr, Option<Mac>)>,
    },
    /// Takes the IP addresses of local stations that a tunnel has heard. Answered by
    /// [`Answer::Claims`].
    TakeClaims {
        /// The tunnel's port.
        id: PortId,
        /// The number, from 0, of the segment with the stations.
        segment: u16,
        /// Report earlier addresses, too, as they are heard again.
        all: bool,
    },
    /// Gives the content of a file that links may name from now on. Descriptor: a sealed memory
    /// file with it.
    LinkFile {
        /// The name of the file.
        name: String,
    },
    /// Asks for the counters of a port's links. Answered by [`Answer::Links`].
    LinkStats {
        /// The port's number.
        id: PortId,
    },
    /// Replaces the rules between ports. Descriptors: a sealed memory file with all of them
    /// ([`rules::Bundle`]), and one for connections. Connections go on; those in the memory that
    /// was used before are copied.
    SetRules,
    /// Adds and removes prefixes of a table that rules name.
    ChangeTable {
        /// The table's number.
        table: u32,
        /// Prefixes to add.
        add: Vec<String>,
        /// Prefixes to remove.
        remove: Vec<String>,
    },
    /// Returns how often the rules of a program have matched ([`Answer::Hits`]).
    ReadHits {
        /// The program's number.
        program: u16,
        /// The first rule; at most [`MAX_HITS`] are returned.
        from: u32,
    },
    /// Lets all rules count from 0.
    ZeroHits,
    /// Returns connections ([`Answer::Connections`]).
    ReadConnections,
    /// Returns frames that rules with `log` have matched ([`Answer::Logged`]), each once.
    ReadLog,
    /// All ports of an earlier data process are added: start to gather frames.
    Resume,
    /// Lists all ports with their descriptors, an [`Answer::Port`] for each, then their persistent
    /// state, then an [`Answer::Done`]. For a supervisor that was restarted. Frozen.
    ListPorts,
    /// Stops gathering, delivers or times out gathered frames, settles, then answers and exits. No
    /// frame is lost, and a successor can continue. Frozen.
    Stop,
}

/// The hosts behind a tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hosts {
    /// The hosts' addresses by number, from 1. The unspecified address is a free number.
    pub peers: Vec<IpAddr>,
    /// The numbers of the hosts that get floods.
    pub flooded: Vec<u16>,
    /// The largest IP packet of a guest that fits the paths to them, if known.
    pub mtu: Option<u16>,
}

/// A station that another host reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remote {
    /// Its address.
    pub mac: Mac,
    /// The number of the station's host; 0 if no host has the station any more.
    pub via: u16,
    /// The station never moves.
    pub sticky: bool,
    /// The station is known to have moved there from this switch, whose entry does not hold it.
    pub moved: bool,
}

/// A connection that rules have admitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionEntry {
    /// The number of the protocol above IP.
    pub protocol: u8,
    /// Address and port of the first packet's sender; the identifier of ICMP queries.
    pub source: (IpAddr, u16),
    /// Those of its receiver.
    pub destination: (IpAddr, u16),
    /// The VLAN; 0 for none.
    pub vlan: u16,
    /// The port of the switch that sent the first packet.
    pub from: PortId,
    /// The port that answers, if any has.
    pub to: Option<PortId>,
    /// The state's name, as Linux has it.
    pub state: String,
    /// Seconds until it is forgotten.
    pub expires_s: u32,
}

/// A frame that a rule with `log` has matched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoggedFrame {
    /// The port whose rules were asked.
    pub port: PortId,
    /// The number of its program, and of the rule in it.
    pub rule: (u16, u32),
    /// The port has sent the frame; else it was to receive it.
    pub sent: bool,
    /// The rules let it pass.
    pub allowed: bool,
    /// Source and destination of an IP packet.
    pub ip: Option<(IpAddr, IpAddr)>,
    /// The number of the protocol above IP.
    pub protocol: Option<u8>,
    /// The ports of TCP, UDP and SCTP.
    pub ports: Option<(u16, u16)>,
    /// Bytes of the frame.
    pub len: u32,
}

/// The maximum number of counters in a message.
pub const MAX_HITS: usize = 2048;
/// The maximum number of connections in a message.
pub const MAX_CONNECTIONS: usize = 200;

/// The maximum number of stations in a message.
pub const MAX_STATIONS: usize = 512;

impl Command {
    /// A [`Command::SetSwitch`] with all settings of `config` that can change.
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

/// The answers of the data process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "answer")]
pub enum Answer {
    /// Identifies the data process. Descriptor: the state memory file. Frozen: version and switch.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// The switch's name.
        switch: String,
        /// How the data process is confined.
        walls: Walls,
    },
    /// Done. Frozen.
    Done,
    /// A port was added, and this worker serves it.
    Added {
        /// The worker.
        worker: u16,
    },
    /// Stations were entered and removed.
    Stations {
        /// How many stations found no room in the table.
        refused: u32,
    },
    /// The IP addresses of local stations, in the order in which they were heard.
    Claims {
        /// Stations and addresses, at most [`MAX_STATIONS`].
        claims: Vec<(Mac, IpAddr)>,
    },
    /// The counters of a port's links.
    Links {
        /// Of what the port sends.
        sends: Option<Box<LinkStats>>,
        /// Of what the port receives.
        receives: Option<Box<LinkStats>>,
    },
    /// How often rules have matched, in order.
    Hits {
        /// The counters.
        hits: Vec<u64>,
    },
    /// Connections.
    Connections {
        /// How many there are.
        all: u64,
        /// New ones that found no room.
        refused: u64,
        /// Unanswered ones that made room for others.
        evicted: u64,
        /// At most [`MAX_CONNECTIONS`] of them.
        list: Vec<ConnectionEntry>,
    },
    /// Frames that rules with `log` have matched.
    Logged {
        /// At most 256, in order: one a second of each port.
        list: Vec<LoggedFrame>,
        /// How many more there were.
        others: u64,
    },
    /// A port of a [`Command::ListPorts`]. The attachment says which descriptors come along.
    /// Frozen: what is added has a default.
    Port {
        /// Its number.
        id: PortId,
        /// The configuration of the port.
        config: Box<PortConfig>,
        /// The worker that serves the port. Since version 8.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        worker: Option<u16>,
    },
    /// Sent unasked at any time: a part of a port's persistent state, which replaces the part with
    /// the same name. At most one descriptor. Frozen.
    Keep {
        /// The port's number.
        id: PortId,
        /// The user that the descriptor is charged to.
        uid: u32,
        /// The name of the part.
        key: String,
        /// The value of the part, in addition to the descriptor.
        value: serde_json::Value,
    },
    /// Sent unasked at any time: the part of this name is not needed any more.
    Forget {
        /// The port's number.
        id: PortId,
        /// The name of the part.
        key: String,
    },
    /// The command could not be carried out.
    Failed {
        /// The reason for the failure, and the remedy.
        reason: String,
    },
}

/// The reason why a message could not be sent or received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The other side has closed the channel.
    #[error("The other side closed the channel")]
    Closed,
    /// The socket failed.
    #[error("The channel failed")]
    Io(#[from] rustix::io::Errno),
    /// The bytes received are not a message.
    #[error("Not a message of this version")]
    Json(#[from] serde_json::Error),
    /// There are more bytes or descriptors than a message can have.
    #[error("A message is at most {MAX_MESSAGE} bytes and {MAX_DESCRIPTORS} descriptors")]
    TooLarge,
}

/// The maximum number of bytes of a message.
pub const MAX_MESSAGE: usize = 64 << 10;
/// The maximum number of descriptors with a message.
pub const MAX_DESCRIPTORS: usize = 20;

/// Sends one message with its descriptors.
///
/// # Errors
/// [`ChannelError`]; `Io(AGAIN)` if the socket is non-blocking and full.
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

/// Receives one message with its descriptors. They are charged to root until the message names
/// their user.
///
/// # Errors
/// [`ChannelError`]; `Io(AGAIN)` if the socket is non-blocking and empty.
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
    fn the_most_stations_and_hosts_fit_a_message() {
        let mac = Mac::from_word(u64::MAX >> 16);
        let remote = Remote { mac, via: u16::MAX, sticky: false, moved: false };
        let stations = vec![remote; MAX_STATIONS];
        let bytes =
            serde_json::to_vec(&Command::SetStations { id: u16::MAX, segment: u16::MAX, stations })
                .unwrap();
        assert!(bytes.len() <= MAX_MESSAGE, "{}", bytes.len());
        let most = crate::attach::vxlan::MAX_PEERS as u16;
        let peer = |n| [0xfd00, 0x1111, 0x1111, 0x1111, 0x1111, 0x1111, 0x1111, 0x1000 + n].into();
        let (peers, flooded) = ((0..most).map(peer).collect(), (1..=most).collect());
        let hosts = Hosts { peers, flooded, mtu: Some(9000) };
        let bytes = serde_json::to_vec(&Command::SetHosts { id: u16::MAX, hosts }).unwrap();
        assert!(bytes.len() <= MAX_MESSAGE, "{}", bytes.len());
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
