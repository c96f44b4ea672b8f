//! Keys of adapters. A name belongs to the user who made it: two users may use the same name for
//! two adapters.

use std::fmt;

/// A user's name of an adapter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) uid: u32,
    pub(super) name: String,
}

impl Key {
    pub(super) fn new(uid: u32, name: impl Into<String>) -> Self {
        Self { uid, name: name.into() }
    }

    /// The key of another adapter of the same user.
    pub(super) fn beside(&self, name: impl Into<String>) -> Self {
        Self::new(self.uid, name)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of user {}", self.name, self.uid)
    }
}

/// The prefix of the keys of interfaces.
const CARD_KEY: &str = "netmap:";

/// The key of an interface's adapter. No other adapter has its form.
pub(super) fn card_key(uid: u32, ifname: &str) -> Key {
    Key::new(uid, format!("{CARD_KEY}{ifname}"))
}

/// The interface of such a key.
pub(super) fn ifname_of(key: &Key) -> &str {
    key.name.trim_start_matches(CARD_KEY)
}
