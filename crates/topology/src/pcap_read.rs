//! Frames from a capture file.

use serde::{Deserialize, Serialize};

use crate::place::{check_absolute, make_absolute};
use crate::{Invalid, Kind, Policy};

/// Sends the frames of a pcap or pcapng file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PcapRead {
    /// The file.
    #[cfg_attr(feature = "clap", arg(id = "pcap_read", long = "pcap-read", value_name = "FILE"))]
    #[cfg_attr(feature = "clap", arg(value_hint = clap::ValueHint::FilePath))]
    pub path: String,
    /// Start over at the end of the file.
    #[serde(default)]
    #[cfg_attr(feature = "clap", arg(long = "loop"))]
    pub repeat: bool,
    /// Speed in percent of the recorded pace (200: twice as fast); 0 for as fast as possible. On
    /// the command line, a factor such as 0.5, or max.
    #[serde(default = "recorded_pace")]
    #[cfg_attr(feature = "clap", arg(long = "speed", value_name = "N|max", default_value = "1"))]
    #[cfg_attr(feature = "clap", arg(value_parser = speed_percent))]
    pub speed_percent: u32,
}

const fn recorded_pace() -> u32 {
    100
}

#[cfg(feature = "clap")]
fn speed_percent(text: &str) -> Result<u32, &'static str> {
    if text == "max" {
        return Ok(0);
    }
    let times: f64 = text.parse().map_err(|_| "use a factor such as 2, or max")?;
    if !(0.01..=1_000_000.0).contains(&times) {
        return Err("from 0.01 to 1000000 times, or max");
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    Ok((times * 100.0).round() as u32)
}

impl Kind for PcapRead {
    fn check(&self, port: &str, _: &Policy) -> Result<(), Invalid> {
        check_absolute(port, &self.path)
    }

    fn describe(&self) -> String {
        format!("reads {}", self.path)
    }

    fn complete(&mut self, _: &str) -> Result<(), Invalid> {
        make_absolute(&mut self.path)
    }
}
