//! What users are charged for, and the resources that it counts towards.

use std::io;
use std::os::fd::AsFd;

use crate::api::{Limit, Quota, Usage};

/// An item that a user is charged for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A port of a switch.
    Port {
        /// The switch.
        switch: String,
        /// The port's name.
        port: String,
        /// How many ports the switch may have.
        of: u64,
        /// The switch belongs to the user, so it needs no room for other users.
        own: bool,
    },
    /// A switch that a client makes by opening a port of it.
    Switch,
    /// A pipe.
    Pipe,
    /// A connection to the attach socket.
    Connection,
    /// A lent memory file. It is counted once, for however many ports.
    Memory(File),
    /// The state memory of a trusted switch, all of which the switch's user can fill.
    State {
        /// The switch.
        switch: String,
        /// How many ports it may have, which decides its size.
        ports: u16,
        /// Its size.
        bytes: u64,
    },
    /// The memory that the links of a port may need.
    Links {
        /// Bytes.
        bytes: u64,
    },
    /// A program's open descriptor of netmap's interface.
    NetmapDescriptor,
    /// What such a descriptor can be bound to: a port, an end of a pipe, a monitor.
    NetmapAdapter,
    /// A port of netmap's interface that stays when its program ends.
    NetmapPort,
    /// A region of netmap's interface, besides its memory.
    NetmapRegion,
    /// A user's queue of requests to netmap's interface.
    NetmapQueue,
}

/// A memory file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct File {
    pub(super) id: (u64, u64),
    pub(super) len: u64,
}

impl File {
    /// Identifies the file of a descriptor that is known to be a sealed memory file, so fstat does
    /// not block.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn of(memory: impl AsFd) -> io::Result<Self> {
        let stat = rustix::fs::fstat(memory)?;
        Ok(Self { id: (stat.st_dev, stat.st_ino), len: u64::try_from(stat.st_size).unwrap_or(0) })
    }
}

/// The resources that have quotas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resource {
    Ports,
    Switches,
    Pipes,
    Memory,
    Connections,
    Descriptors,
    NetmapObjects,
    NetmapPorts,
}

impl Resource {
    /// The resource's name in the API.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Ports => "ports",
            Self::Switches => "switches",
            Self::Pipes => "pipes",
            Self::Memory => "memory",
            Self::Connections => "connections",
            Self::Descriptors => "descriptors",
            Self::NetmapObjects => "netmap_objects",
            Self::NetmapPorts => "netmap_ports",
        }
    }

    /// The limit that a quota sets.
    pub(super) const fn of(self, quota: &Quota) -> Option<Limit> {
        match self {
            Self::Ports => quota.ports,
            Self::Switches => quota.switches,
            Self::Pipes => quota.pipes,
            Self::Memory => quota.memory,
            Self::Connections => quota.connections,
            Self::Descriptors => quota.descriptors,
            Self::NetmapObjects => quota.netmap_objects,
            Self::NetmapPorts => quota.netmap_ports,
        }
    }

    /// How much of it is held.
    pub(super) const fn held(self, usage: &Usage) -> u64 {
        match self {
            Self::Ports => usage.ports,
            Self::Switches => usage.switches,
            Self::Pipes => usage.pipes,
            Self::Memory => usage.memory,
            Self::Connections => usage.connections,
            Self::Descriptors => usage.descriptors,
            Self::NetmapObjects => usage.netmap_objects,
            Self::NetmapPorts => usage.netmap_ports,
        }
    }

    pub(super) const fn held_mut(self, usage: &mut Usage) -> &mut u64 {
        match self {
            Self::Ports => &mut usage.ports,
            Self::Switches => &mut usage.switches,
            Self::Pipes => &mut usage.pipes,
            Self::Memory => &mut usage.memory,
            Self::Connections => &mut usage.connections,
            Self::Descriptors => &mut usage.descriptors,
            Self::NetmapObjects => &mut usage.netmap_objects,
            Self::NetmapPorts => &mut usage.netmap_ports,
        }
    }
}

impl Item {
    /// The resource that it counts towards first.
    pub(super) const fn resource(&self) -> Resource {
        match self {
            Self::Port { .. } => Resource::Ports,
            Self::Switch => Resource::Switches,
            Self::Pipe => Resource::Pipes,
            Self::Connection => Resource::Connections,
            Self::Memory(_) | Self::State { .. } | Self::Links { .. } => Resource::Memory,
            Self::NetmapDescriptor | Self::NetmapAdapter | Self::NetmapRegion => {
                Resource::NetmapObjects
            }
            Self::NetmapPort => Resource::NetmapPorts,
            Self::NetmapQueue => Resource::Descriptors,
        }
    }

    /// The descriptors that this process keeps for it.
    pub(super) const fn descriptors(&self) -> u64 {
        match self {
            // Its token and its memory; the descriptor that wakes it.
            Self::Port { .. } => 2,
            // Of each end a token and two bells, and the memory twice: at most.
            Self::Pipe => 6,
            // Its data process, the socket to it, its state, and what is kept for its restart.
            Self::Switch => 6,
            // The file, and the bell of the monitors in it.
            Self::NetmapRegion => 2,
            // The program's token; the token or the eventfd that wakes the adapter; the epoll set.
            Self::Connection | Self::NetmapDescriptor | Self::NetmapAdapter | Self::NetmapQueue => {
                1
            }
            // The memory's file is its port's.
            Self::Memory(_) | Self::State { .. } | Self::Links { .. } | Self::NetmapPort => 0,
        }
    }
}
