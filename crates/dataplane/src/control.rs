//! What the supervisor and a data process say to each other.
//!
//! The data process listens on a SEQPACKET socket in the runtime directory that the supervisor made
//! and passed to it; the supervisor connects, also after it was restarted itself. One JSON message a
//! packet, descriptors by SCM_RIGHTS. The supervisor asks, the data process answers each [`Command`]
//! with one [`Answer`], in order. Counters, table and cursors are not asked for: they stand in the
//! state memory file ([`crate::state`]), which the supervisor reads.

use fabric::Policy;
use frame::{Mac, VlanId};
use serde::{Deserialize, Serialize};

use crate::config::{Idle, PortConfig, PortId};

/// Version of these messages; both sides close the connection if it differs.
pub const VERSION: u32 = 1;

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
    /// All ports, with their descriptors, one [`Answer::Port`] each and an [`Answer::Done`] at last:
    /// for a supervisor that was restarted.
    ListPorts,
    /// Stops gathering, delivers or times out what was gathered, settles, then answers and exits:
    /// nothing is lost, and a successor can go on.
    Stop,
}

/// What the data process answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "answer")]
pub enum Answer {
    /// Who it is. Descriptor: the state memory file.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// Its process id.
        pid: u32,
        /// The switch's name.
        switch: String,
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
        config: PortConfig,
    },
    /// It could not be done.
    Failed {
        /// Why, and what to do about it.
        reason: String,
    },
}
