//! The walls around a process, and which of them stand.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One restriction of a confined process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Wall {
    /// No capability in any set, nor in the bounding set if that can be emptied.
    Capabilities,
    /// A user and a group of its own, and no other group.
    User,
    /// Not dumpable: no core file, no debugger, no access to its memory for other processes of its
    /// user.
    Memory,
    /// No program can give it privileges (`PR_SET_NO_NEW_PRIVS`).
    NoNewPrivileges,
    /// The process has only the descriptors that it was given.
    Descriptors,
    /// Landlock: opens no file.
    LandlockFiles,
    /// Landlock: no TCP listener, no TCP connection.
    LandlockNetwork,
    /// Landlock: no signal to a process outside, no abstract socket.
    LandlockScope,
    /// A user namespace: privileges gained in it have no effect outside.
    UserNamespace,
    /// A mount namespace whose root is an empty read-only directory.
    Root,
    /// A process namespace: processes outside have no number.
    ProcessNamespace,
    /// An IPC namespace: no System V memory, no message queue.
    IpcNamespace,
    /// A UTS namespace: the host's name is hidden.
    NameNamespace,
    /// A network namespace without an interface.
    NetworkNamespace,
    /// A cgroup namespace.
    CgroupNamespace,
    /// A list of system calls (seccomp).
    SystemCalls,
    /// A limit for its private memory (`RLIMIT_DATA`).
    MemoryLimit,
    /// A limit for all of its memory, by a cgroup of its own.
    MemoryGroup,
}

impl Wall {
    /// All of them.
    pub const ALL: [Self; 18] = [
        Self::Capabilities,
        Self::User,
        Self::Memory,
        Self::NoNewPrivileges,
        Self::Descriptors,
        Self::LandlockFiles,
        Self::LandlockNetwork,
        Self::LandlockScope,
        Self::UserNamespace,
        Self::Root,
        Self::ProcessNamespace,
        Self::IpcNamespace,
        Self::NameNamespace,
        Self::NetworkNamespace,
        Self::CgroupNamespace,
        Self::SystemCalls,
        Self::MemoryLimit,
        Self::MemoryGroup,
    ];

    /// The limits of memory: a process has one of them.
    pub const LIMITS: [Self; 2] = [Self::MemoryLimit, Self::MemoryGroup];

    /// The name of the wall, as in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Capabilities => "capabilities",
            Self::User => "user",
            Self::Memory => "memory",
            Self::NoNewPrivileges => "no_new_privileges",
            Self::Descriptors => "descriptors",
            Self::LandlockFiles => "landlock_files",
            Self::LandlockNetwork => "landlock_network",
            Self::LandlockScope => "landlock_scope",
            Self::UserNamespace => "user_namespace",
            Self::Root => "root",
            Self::ProcessNamespace => "process_namespace",
            Self::IpcNamespace => "ipc_namespace",
            Self::NameNamespace => "name_namespace",
            Self::NetworkNamespace => "network_namespace",
            Self::CgroupNamespace => "cgroup_namespace",
            Self::SystemCalls => "system_calls",
            Self::MemoryLimit => "memory_limit",
            Self::MemoryGroup => "memory_group",
        }
    }
}

impl fmt::Display for Wall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A wall that could not be raised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schemars", schemars(rename = "RefusedWall"))]
pub struct Refused {
    /// Which.
    pub wall: Wall,
    /// Why.
    pub reason: String,
}

/// The walls that stand around a process, and those that were refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Walls {
    /// The walls that stand.
    pub standing: Vec<Wall>,
    /// The walls that were wanted but could not be raised.
    pub refused: Vec<Refused>,
}

impl Walls {
    /// Notes whether a wall was raised.
    pub fn note(&mut self, wall: Wall, done: Result<(), String>) {
        match done {
            Ok(()) => self.standing.push(wall),
            Err(reason) => self.refused.push(Refused { wall, reason }),
        }
    }

    /// True if this wall stands.
    #[must_use]
    pub fn stands(&self, wall: Wall) -> bool {
        self.standing.contains(&wall)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wall_is_called_the_same_everywhere() {
        for wall in Wall::ALL {
            assert_eq!(serde_name(wall), wall.name());
        }
    }

    fn serde_name(wall: Wall) -> String {
        use serde::de::IntoDeserializer;
        use serde::de::value::{Error, StrDeserializer};
        let name: StrDeserializer<'_, Error> = wall.name().into_deserializer();
        assert_eq!(Wall::deserialize(name).unwrap(), wall);
        wall.to_string()
    }
}
