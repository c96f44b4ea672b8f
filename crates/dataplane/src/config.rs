//! What a switch and its ports are asked to be. The same types are the topology file, the control
//! API and the messages to a data process.

mod interface;

use serde::{Deserialize, Serialize};

pub use self::interface::{Engine, InterfaceConfig, PacketRings};
pub use crate::attach::vxlan::VxlanConfig;
pub use topology::{
    Combine, Doorbell, Idle, Interrupts, NicConfig, NicModel, NoBytes, Policy, PortId,
    SwitchConfig, WorkerConfig, parse_bytes,
};
pub use turn::attach::ring::RingAttach;

/// What a port is attached to. The descriptors that go with it are named in order.
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
        /// What it sends (hands in).
        tx: bool,
        /// What it receives (is handed out).
        rx: bool,
    },
    /// A tap interface. Descriptors: its queues, 1 to 8, opened with IFF_VNET_HDR and non-blocking.
    Tap {
        /// The kernel accepts UDP segmentation requests (since Linux 6.2).
        uso: bool,
    },
    /// A network interface of the host. Descriptors: its queues.
    Interface(InterfaceConfig),
    /// A guest's virtio-net queues over the vhost-user protocol. Descriptors: the socket connected
    /// to the front end.
    VhostUser {
        /// Most pairs of queues (at most 16).
        queue_pairs: u16,
    },
    /// An emulated network card over the vfio-user protocol. Descriptors: the socket connected to
    /// the front end. With shared doorbells also a memory file as long as the card's first base
    /// address register.
    VfioUser(NicConfig),
    /// Frames over a stream socket, with a length before each (QEMU's `-netdev stream`, passt).
    /// Descriptors: the connected socket.
    Stream,
    /// Frames in datagrams (QEMU's `-netdev dgram`). Descriptors: the socket.
    Dgram,
    /// A VXLAN tunnel to other hosts. Descriptors: the receiving UDP socket, the sending ones (1 to
    /// 16), and a memory file for the counters of its peers.
    Vxlan(VxlanConfig),
    /// Frames from a pcap or pcapng file. Descriptors: the file.
    PcapRead {
        /// Start again at its end.
        repeat: bool,
        /// Percent of the recorded pace (200: twice as fast); 0 for as fast as possible.
        speed_percent: u32,
    },
    /// Frames into a pcapng file. Descriptors: the file.
    PcapWrite,
    /// Takes everything and sends nothing.
    Null,
    /// No owner: a configured port that waits for its client. No descriptors.
    Vacant,
}

impl Attachment {
    /// True if its owner lends memory that workers read and write.
    #[must_use]
    pub fn lends_memory(&self) -> bool {
        matches!(
            self,
            Self::Ring(_) | Self::Monitor { .. } | Self::VhostUser { .. } | Self::VfioUser(_)
        )
    }

    /// True if a peer that is not trusted made its descriptors, or sends to them.
    #[must_use]
    pub fn has_stranger(&self) -> bool {
        match self {
            Self::Ring(_)
            | Self::Monitor { .. }
            | Self::VhostUser { .. }
            | Self::VfioUser(_)
            | Self::Stream
            | Self::Dgram => true,
            Self::Tap { .. }
            | Self::Interface(_)
            | Self::Vxlan(_)
            | Self::PcapRead { .. }
            | Self::PcapWrite
            | Self::Null
            | Self::Vacant => false,
        }
    }

    /// True if other hosts are behind it.
    #[must_use]
    pub const fn is_tunnel(&self) -> bool {
        matches!(self, Self::Vxlan(_))
    }
}

/// A port, as a data process gets it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortConfig {
    /// Its name without the switch's.
    pub name: String,
    /// Its rules.
    pub policy: Policy,
    /// The worker that serves it; `None` for the least loaded.
    pub worker: Option<u16>,
    /// What it is attached to.
    pub attachment: Attachment,
    /// The user it works for: the peer at its socket, else its owner. Budgets and sanctions are per
    /// user.
    pub uid: u32,
}

/// The limits of one user in a switch's data process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UserLimits {
    /// Most learned addresses; `None` for the table's share, [`u32::MAX`] for no limit.
    pub addresses: Option<u32>,
    /// Most bytes of guests' memory that may be mapped; `None` for the process's share,
    /// [`u64::MAX`] for no limit.
    pub memory: Option<u64>,
}

/// The limits of all users in a switch's data process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// The limits of users that are not named.
    pub each: UserLimits,
    /// Users who are, by uid.
    pub users: Vec<(u32, UserLimits)>,
}

impl Limits {
    /// Most users that can be named: they must fit a message.
    pub const MAX_USERS: usize = 512;

    /// What a user may take.
    #[must_use]
    pub fn of(&self, uid: u32) -> UserLimits {
        let named = self.users.iter().find(|(named, _)| *named == uid);
        named.map_or(self.each, |(_, limits)| *limits)
    }
}
