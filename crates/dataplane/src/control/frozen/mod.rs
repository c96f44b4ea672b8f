//! What a supervisor and a data process of different versions understand of each other.
//!
//! A supervisor of a new version finds data processes of the version before. It takes their ports
//! over with these messages, which never change from version [`OLDEST`] on:
//!
//! ```text
//!   supervisor: Hello { version: its own }      data process: Hello { version: 7, .. }, disconnects
//!   supervisor: Hello { version: 7 }            data process: Hello { version: 7, .. } + state memory
//!   supervisor: ListPorts                       data process: Port + descriptors, ..., Keep, ..., Done
//!   supervisor: Stop                            data process: Done, ends
//! ```
//!
//! A new data process then gets the ports in the messages of its own version. It goes on where the
//! state memory says that the old one stood, which is frozen, too ([`turn::state`]).
//! `version_7.json` holds each message as version 7 sends it, and the test below says what must
//! stay as it is.
use serde::{Deserialize, Serialize};

use super::VERSION;

/// The oldest version whose ports are taken over.
pub const OLDEST: u32 = 7;

/// True if the ports of a data process of this version are taken over. Those of a newer version may
/// be attached to what this one does not know.
#[must_use]
pub const fn is_taken_over(version: u32) -> bool {
    OLDEST <= version && version <= VERSION
}

/// An [`Answer::Hello`](super::Answer::Hello) of any version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    /// Always "hello".
    pub answer: Hello,
    /// The version of the messages of the data process.
    pub version: u32,
    /// The switch's name.
    pub switch: String,
    /// How the data process is confined, as its version says it.
    #[serde(default)]
    pub walls: serde_json::Value,
}

/// The word for a greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hello {
    /// The only one.
    Hello,
}

#[cfg(test)]
mod tests;
