//! Frames into a capture file.

use serde::{Deserialize, Serialize};

use crate::place::{check_absolute, make_absolute};
use crate::{Claim, Invalid, Kind, Policy};

/// Writes the frames that it receives into a pcapng file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PcapWrite {
    /// The file, which is created, or overwritten if it is a capture.
    #[cfg_attr(feature = "clap", arg(id = "pcap_write", long = "pcap-write", value_name = "FILE"))]
    #[cfg_attr(feature = "clap", arg(value_hint = clap::ValueHint::FilePath))]
    pub path: String,
}

impl Kind for PcapWrite {
    fn check(&self, port: &str, _: &Policy) -> Result<(), Invalid> {
        check_absolute(port, &self.path)
    }

    fn claim(&self) -> Option<Claim> {
        let what = format!("File {}", self.path);
        Some(Claim { what, remedy: "have each port write a file of its own" })
    }

    fn describe(&self) -> String {
        format!("writes {}", self.path)
    }

    fn complete(&mut self, _: &str) -> Result<(), Invalid> {
        make_absolute(&mut self.path)
    }
}
