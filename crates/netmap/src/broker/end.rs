//! The ends of an interface of the host that programs have open, and the switch of each.

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

/// The name that lists show for the host behind an attached interface.
#[must_use]
pub fn host_of(ifname: &str) -> String {
    format!("{ifname}^")
}
